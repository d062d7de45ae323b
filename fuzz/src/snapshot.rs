//! Files of a published set: layers, and the MANIFEST that names them.

use handle_proto::{Permissions, Value, Values};
use handle_snapshot::format::{
    BASE_BITS, BUCKET_LEN, BUCKET_SUM_MASK, HEADER_LEN, RECORD_HEAD_LEN, bucket_sum, checksum, header_at,
    record_sum,
};
use handle_snapshot::set::manifest::{LAYERS_MAX, Manifest};
use handle_snapshot::set::steps;
use handle_snapshot::{
    Builder, EncodedRecord, HomedPrefixes, HomedTable, Layer, LayerOptions, LayerWriter, MergeProgress,
    RecordSet, SetPublisher, hash_key, merge, verify,
};
use sha2::{Digest as _, Sha256};
use std::io::Cursor;
use std::ops::{ControlFlow, Range};
use std::path::Path;

/// A lookup in a layer that opens never reads out of bounds and always ends, and the staged lookup
/// gives the same record. A layer that `verify` accepts is intact: each record is found by its key,
/// all values decode, and a copy has the same contents.
///
/// Input: a layer file. It is used as it is, and with corrected lengths and checksums, as an
/// attacker would write it.
pub fn layer(bytes: &[u8]) {
    check_layer(bytes);
    let mut mended = bytes.to_vec();
    if mend(&mut mended).is_some() {
        check_layer(&mended);
    }
}

fn check_layer(bytes: &[u8]) {
    let Ok(layer) = Layer::open(bytes) else { return };
    let layers = [layer];
    let [layer] = &layers;
    let is_whole = verify::layer(layer).is_ok();
    let keys: Vec<_> = layer.records().map_while(Result::ok).map(|record| record.key()).collect();
    assert!(
        layer.records().count() <= bytes.len() / RECORD_HEAD_LEN + 1,
        "more records than fit into the file"
    );
    let records = RecordSet::new(&layers).expect("one layer makes a set");
    for key in keys.iter().copied().chain([&b"10.1/A"[..], b"", b"no/such"]) {
        let hash = hash_key(records.seed(), key);
        records.prefetch_index(hash);
        let staged = records.probe(hash);
        records.prefetch_record(staged);
        let bytes_of = |record: Option<EncodedRecord<'_>>| record.map(|record| record.as_bytes().as_ptr());
        let (found, staged_record) = (records.find(hash, key), records.resolve(staged, hash, key));
        assert_eq!(staged_record.map(bytes_of), found.map(bytes_of));
        if let Ok(Some(record)) = found {
            assert_eq!(record.key(), key);
            read(&record, is_whole);
        }
    }
    let prefixes: Vec<_> = records.homed_table().iter().flat_map(HomedTable::iter).collect();
    assert!(prefixes.len() <= bytes.len());
    let homed_count = prefixes.iter().filter(|prefix| records.homed(prefix)).count();
    let _ = records.homed(b"0.na");
    if is_whole {
        assert_eq!(homed_count, prefixes.len());
        copy(layer);
    }
}

fn read(record: &EncodedRecord<'_>, is_whole: bool) {
    let public = Values::from_encoded(record.public_count(), record.public_bytes());
    let in_order: Result<Vec<_>, _> = record.values_in_order().collect();
    let private: Vec<_> = record.private().collect();
    assert!(private.len() <= record.private_count());
    if let Ok(values) = &in_order {
        assert_eq!(values.len(), record.values_count());
    }
    if !is_whole {
        return;
    }
    let (public, in_order) = (public.expect("public values"), in_order.expect("values in order"));
    assert!(public.iter().all(|value| value.is_public()));
    let again: Vec<_> = in_order.iter().filter(|value| value.is_public()).copied().collect();
    assert_eq!(public.iter().collect::<Vec<_>>(), again);
    assert_eq!((private.len(), public.len()), (record.private_count(), record.public_count()));
    for (position, bytes) in private {
        let value = in_order[usize::from(position)];
        assert_eq!(Value::split(bytes), Ok((value, &[][..])));
        assert!(!value.is_public());
    }
}

/// Copies an intact layer by a merge, and asserts that the copy has the same records and prefixes.
fn copy(layer: &Layer<&[u8]>) {
    let options =
        LayerOptions { seed: layer.seed(), folds: layer.folds(), created_unix_ms: layer.created_unix_ms() };
    let out = LayerWriter::new(Cursor::new(Vec::new()), &std::env::temp_dir(), options).expect("a writer");
    let (merged, _) = merge(std::slice::from_ref(layer), true, out, |_| ControlFlow::Continue(()))
        .expect("an intact layer can be copied");
    let copied = Layer::open(merged.into_inner()).expect("a layer was written");
    verify::layer(&copied).expect("the copy is intact");
    let bytes_of = |record: Result<EncodedRecord<'_>, _>| record.map(|record| record.as_bytes().to_vec());
    assert!(copied.records().map(bytes_of).eq(layer.records().map(bytes_of)));
    let prefixes =
        |homed: Option<HomedTable<'_>>| homed.map(|homed| homed.iter().map(<[u8]>::to_vec).collect());
    let prefixes: [Option<Vec<_>>; 2] = [prefixes(copied.homed()), prefixes(layer.homed())];
    assert_eq!(prefixes[0], prefixes[1]);
}

/// Corrects lengths and checksums as far as possible.
fn mend(bytes: &mut [u8]) -> Option<()> {
    let len = bytes.len() as u64;
    let put = |bytes: &mut [u8], at: usize, number: u64| {
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    };
    let get = |bytes: &[u8], at: usize| {
        let number: &[u8; 8] = bytes.get(at..)?.first_chunk()?;
        Some(u64::from_le_bytes(*number))
    };
    bytes.first_chunk::<HEADER_LEN>()?;
    put(bytes, header_at::FILE_LEN, len);
    // Records, homed prefixes and index are adjacent up to the end.
    let homed_at = (HEADER_LEN as u64).checked_add(get(bytes, header_at::RECORDS_LEN)?)?;
    let index_at = homed_at.checked_add(get(bytes, header_at::HOMED_LEN)?)?;
    let index_len = len.checked_sub(index_at)?;
    put(bytes, header_at::HOMED_AT, homed_at);
    put(bytes, header_at::INDEX_AT, index_at);
    put(bytes, header_at::INDEX_LEN, index_len / BUCKET_LEN as u64 * BUCKET_LEN as u64);
    let [homed_start, index_start] = [homed_at, index_at].map(|at| usize::try_from(at).ok());
    mend_records(bytes.get_mut(HEADER_LEN..homed_start?)?);
    for bucket in bytes.get_mut(index_start?..)?.as_chunks_mut::<BUCKET_LEN>().0 {
        let sum = bucket_sum(bucket);
        let (_, base) = bucket.split_last_chunk_mut::<8>()?;
        *base = ((u64::from_le_bytes(*base) & !BUCKET_SUM_MASK) | sum << BASE_BITS).to_le_bytes();
    }
    for (at, len, sum) in [
        (header_at::RECORDS_AT, header_at::RECORDS_LEN, header_at::RECORDS_SUM),
        (header_at::HOMED_AT, header_at::HOMED_LEN, header_at::HOMED_SUM),
        (header_at::INDEX_AT, header_at::INDEX_LEN, header_at::INDEX_SUM),
    ] {
        let (start, len) = (get(bytes, at)?, get(bytes, len)?);
        let [start, end] = [start, start.checked_add(len)?].map(|at| usize::try_from(at).ok());
        let of_section = checksum(bytes.get(start?..end?)?);
        put(bytes, sum, of_section);
    }
    let content: [u8; 32] = Sha256::digest(&bytes[HEADER_LEN..]).into();
    bytes[header_at::CONTENT_DIGEST..][..content.len()].copy_from_slice(&content);
    let of_header = checksum(&bytes[..header_at::HEADER_SUM]);
    put(bytes, header_at::HEADER_SUM, of_header);
    Some(())
}

/// Corrects the checksums of records, as far as their lengths lead from one to the next.
fn mend_records(mut rest: &mut [u8]) {
    while let Some(len) = rest.get(4..8).and_then(<[u8]>::first_chunk).map(|len| u32::from_le_bytes(*len)) {
        match rest.split_at_mut_checked(len as usize) {
            Some((record, after)) if record.len() >= RECORD_HEAD_LEN => {
                let sum = record_sum(record).to_le_bytes();
                record[..sum.len()].copy_from_slice(&sum);
                rest = after;
            }
            _ => return,
        }
    }
}

/// Builds small intact layers as seeds: empty, with and without homed prefixes, tombstones and
/// private values, with and without folding.
///
/// # Panics
/// If one cannot be built.
#[must_use]
pub fn layer_examples() -> Vec<Vec<u8>> {
    let build = |folds, homed: &[&str], handles: &[&str]| {
        let options = LayerOptions { seed: 99, folds, created_unix_ms: 5 };
        let mut prefixes = HomedPrefixes::default();
        homed.iter().for_each(|prefix| assert!(prefixes.add(prefix.as_bytes())));
        let mut builder = Builder::new(&std::env::temp_dir(), options);
        if !homed.is_empty() {
            builder = builder.homed(prefixes);
        }
        let private = Value { permissions: Permissions(0x0c), ..Value::new(300, b"HS_SECKEY", b"secret") };
        for (origin, handle) in (0..).zip(handles) {
            let url = Value::new(1, b"URL", handle.as_bytes());
            let all = [url, private, Value { index: 100, ..url }, Value { index: 301, ..private }];
            let values = &all[..usize::try_from(origin % 5).expect("a small number")];
            builder.add(origin, handle.as_bytes(), values.iter().copied()).expect("a record");
        }
        if folds {
            builder.delete(100, b"10.1/gone").expect("a deletion");
        }
        builder.finish(Cursor::new(Vec::new())).expect("a layer").0.into_inner()
    };
    let few = ["10.1/A", "10.1/B", "0.NA/10.1", "20/", "A/B/C"];
    let many: Vec<_> = (0..40).map(|number| format!("10.{}/{number}", number % 7)).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let prefixes = ["10.1", "0.NA", "0.NA/10", "20", "10.2", "10.3"];
    vec![
        build(true, &[], &[]),
        build(true, &["10.1"], &["10.1/A"]),
        build(true, &prefixes, &few),
        build(false, &prefixes[..2], &["10.1/a", "10.1/A", "0.na/x"]),
        build(true, &[], &few),
        build(true, &prefixes, &many),
    ]
}

/// Only the output of `encode` is accepted as a MANIFEST, to the byte. It names at least one layer,
/// not too many, and none outside its directory.
///
/// Input: a MANIFEST. It is used as it is, and with a corrected last line.
pub fn manifest(bytes: &[u8]) {
    one_manifest(bytes);
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let last_at = body.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let body = if body[last_at..].starts_with(b"end ") { &bytes[..last_at] } else { bytes };
    let last = format!("end {:016x}\n", checksum(body));
    one_manifest(&[body, last.as_bytes()].concat());
}

fn one_manifest(bytes: &[u8]) {
    let Ok(manifest) = Manifest::parse(bytes) else { return };
    assert_eq!(manifest.encode().as_bytes(), bytes);
    assert!((1..=LAYERS_MAX).contains(&manifest.layers.len()));
    for layer in &manifest.layers {
        assert!(!layer.file.contains('/') && !layer.file.starts_with('.') && layer.file.ends_with(".layer"));
    }
}

/// Sets of which [`steps`] builds the layers of the last on a machine with the first.
struct SteppedSets {
    /// The files of all layers.
    directory: tempfile::TempDir,
    sets: Vec<Manifest>,
}

impl SteppedSets {
    /// A base, a delta, a delta that absorbs it, and a merge of all. They are the same in each run.
    fn publish() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut publisher = SetPublisher::open(directory.path()).expect("no other publisher");
        let mut sets = Vec::new();
        for (at, names) in [0..60, 10..20, 15..30].into_iter().enumerate() {
            let now = at as u64 + 1;
            let write = |file, dir: &Path| {
                let options = LayerOptions { seed: 7, folds: true, created_unix_ms: now };
                let mut builder = Builder::new(dir, options);
                if at != 2 {
                    let mut homed = HomedPrefixes::default();
                    homed.add(format!("10.{at}").as_bytes());
                    builder = builder.homed(homed);
                }
                for name in names {
                    let data = format!("https://{at}.example/");
                    let handle = format!("10.1/{name}");
                    builder.add(0, handle.as_bytes(), [Value::new(1, b"URL", data.as_bytes())])?;
                }
                if at > 0 {
                    builder.delete(0, b"10.1/59")?;
                }
                builder.finish(file)
            };
            let set = match at {
                0 => publisher.publish_base(now, write),
                _ => publisher.publish_delta(now, write),
            };
            sets.push(set.expect("an intact layer").clone());
        }
        for (which, now) in [(0..2, 10), (0..2, 11)] {
            let go_on = |_: &MergeProgress<'_>| ControlFlow::Continue(());
            let set = publisher.manifest().expect("a set").clone();
            let merged = publisher.stager().stage_merge(&set, which, now, go_on).expect("intact layers");
            sets.push(publisher.publish(merged, now).expect("it fits").clone());
        }
        Self { directory, sets }
    }

    /// The objects that a publisher ships, and one without a table.
    fn objects(&self) -> Vec<Vec<u8>> {
        let between = |sets: &[Manifest]| steps::between(self.directory.path(), &sets[0], &sets[1], 1 << 20);
        let all: Vec<_> = self.sets.windows(2).filter_map(between).collect();
        let objects = (0..all.len()).map(|at| steps::window(&all[at], all[..at].iter().rev(), 1 << 20));
        objects.chain(all.iter().map(|step| steps::window(step, [], 0))).collect()
    }

    /// A directory that has the first set.
    fn machine(&self) -> (tempfile::TempDir, SetPublisher) {
        let directory = tempfile::tempdir().expect("a directory");
        for entry in &self.sets[0].layers {
            let (from, to) = [&self.directory, &directory].map(|dir| dir.path().join(&entry.file)).into();
            std::fs::copy(from, to).expect("a copy");
        }
        let mut machine = SetPublisher::open_replica(directory.path()).expect("no other publisher");
        machine.adopt(&self.sets[0]).expect("a complete set");
        (directory, machine)
    }
}

thread_local! {
    static STEPPED_SETS: SteppedSets = SteppedSets::publish();
}

/// Steps build a layer with the bytes that the MANIFEST names, or none. The start of an object that
/// a machine reads has the same steps as the whole.
///
/// Input: an object with steps. It is used as it is, and as one between two sets of the target.
pub fn steps(bytes: &[u8]) {
    STEPPED_SETS.with(|sets| {
        check_steps(sets, bytes);
        let mut mended = bytes.to_vec();
        if let (Some(names), [first, .., last]) = (mended.get_mut(8..24), &sets.sets[..]) {
            names[..8].copy_from_slice(&steps::set_id(last));
            names[8..].copy_from_slice(&steps::set_id(first));
            check_steps(sets, &mended);
        }
    });
}

/// Returns how many layers were built.
fn check_steps(sets: &SteppedSets, object: &[u8]) -> usize {
    build_all(sets, object).unwrap_or_default()
}

fn build_all(sets: &SteppedSets, object: &[u8]) -> Option<usize> {
    let (held, from) = (&sets.sets[0], steps::set_id(&sets.sets[0]));
    let head = steps::StepsHead::parse(object)?;
    let Range { start, end } = head.table();
    let table = object.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)?;
    let start = object.get(..usize::try_from(head.find(from, table)?).ok()?)?;
    let found = steps::split(start, from);
    assert_eq!(found, steps::split(object, from));
    let recipes = steps::LayerRecipes::new(held, &found?)?;
    let (mut machine, mut built) = (None, 0);
    let later = sets.sets[1..].iter().flat_map(|set| &set.layers);
    let mut later: Vec<_> = later.filter(|entry| !held.layers.contains(entry)).collect();
    later.sort_by_key(|entry| &entry.file);
    later.dedup();
    for entry in later {
        let Some(recipe) = recipes.find(entry) else { continue };
        assert!(recipe.parts.len() <= steps::RECIPE_PARTS_MAX);
        let (directory, machine) = machine.get_or_insert_with(|| sets.machine());
        if machine.rebuild_layer("built.part", entry, &recipe, &|| false).is_ok() {
            let read = |dir: &Path, name: &str| std::fs::read(dir.join(name)).expect("a layer");
            let published = read(sets.directory.path(), &entry.file);
            assert!(read(directory.path(), "built.part") == published, "the bytes of the layer");
            built += 1;
        }
    }
    Some(built)
}

/// Objects with steps, as seeds.
#[must_use]
pub fn steps_examples() -> Vec<Vec<u8>> {
    STEPPED_SETS.with(SteppedSets::objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_steps_build_layers() {
        STEPPED_SETS.with(|sets| {
            let built: usize = sets.objects().iter().map(|object| check_steps(sets, object)).sum();
            assert_eq!(built, 1 + 2 + 3 + 4 + 1, "all layers of four objects, and of the first step");
        });
    }
}
