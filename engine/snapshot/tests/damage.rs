//! Truncated, changed and forged layers give an error or no record, never a panic.
#![cfg(feature = "std")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{Permissions, Value};
use handle_snapshot::format::{
    BASE_BITS, BASE_GOES_ON, BUCKET_LEN, BUCKET_SLOTS, BUCKET_SUM_MASK, HEADER_LEN, LayerHeader, bucket_sum,
    checksum, fingerprint, header_at, record_sum,
};
use handle_snapshot::{
    Builder, CorruptRecord, HomedPrefixes, Layer, LayerOptions, RecordSet, Trust, hash_key, verify,
};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use std::io::Cursor;
use std::ops::ControlFlow;
use std::sync::Mutex;

const HANDLES: [&str; 12] = [
    "10.1/A",
    "10.1/B",
    "10.2/LONGER-NAME",
    "20/",
    "0.NA/10.1",
    "0.NA/10",
    "A/B/C",
    "1/1",
    "1/2",
    "1/3",
    "1/4",
    "1/5",
];

fn layer() -> Vec<u8> {
    let options = LayerOptions { seed: 99, folds: true, created_unix_ms: 5 };
    let mut homed = HomedPrefixes::default();
    for prefix in ["10.1", "10.2", "0.NA", "0.NA/10"] {
        homed.add(prefix.as_bytes());
    }
    let mut builder = Builder::new(&std::env::temp_dir(), options).homed(homed);
    let private = Value { permissions: Permissions(0x0c), ..Value::new(300, b"HS_SECKEY", b"secret") };
    for (origin, handle) in (0..).zip(HANDLES) {
        let values =
            [private, Value::new(1, b"URL", handle.as_bytes()), Value::new(100, b"HS_ADMIN", b"admin")];
        builder
            .add(origin, handle.as_bytes(), values[usize::try_from(origin % 3).unwrap()..].iter().copied())
            .unwrap();
    }
    builder.delete(100, b"10.1/gone").unwrap();
    builder.finish(Cursor::new(Vec::new())).unwrap().0.into_inner()
}

/// Calls everything that reads a layer, over arbitrary bytes.
fn use_it(bytes: &[u8]) {
    let Ok(layer) = Layer::open(bytes) else { return };
    let layers = [layer];
    let records = RecordSet::new(&layers).unwrap();
    for key in HANDLES.iter().map(|handle| handle.as_bytes()).chain([b"10.1/GONE".as_slice(), b"no/such"]) {
        let hash = hash_key(records.seed(), key);
        records.prefetch_index(hash);
        let staged = records.probe(hash);
        records.prefetch_record(staged);
        let found = records.resolve(staged, hash, key);
        assert_eq!(
            found.map(|record| record.is_some()),
            records.find(hash, key).map(|record| record.is_some())
        );
        if let Ok(Some(record)) = found {
            assert_eq!(record.key(), key);
            record.values_in_order().count();
            record.private().count();
            record.public_values().count();
        }
    }
    for prefix in ["10.1", "0.na", "none"] {
        let _ = records.homed(prefix.as_bytes());
    }
    if let Some(homed) = records.homed_table() {
        homed.iter().count();
    }
    layers[0].records().count();
    check(&layers[0]);
}

fn is_whole(bytes: &[u8]) -> bool {
    Layer::open(bytes).is_ok_and(|layer| check(&layer))
}

/// Both checks of a layer: whether it is whole.
fn check(layer: &Layer<impl AsRef<[u8]> + Sync>) -> bool {
    let checked = verify::layer(layer);
    let halves = verify::content_in_halves(layer, |_| ControlFlow::Continue(()));
    let halves = verify::homed_sum(layer).and(halves);
    assert_eq!(checked.is_ok(), halves.is_ok(), "{checked:?}, {halves:?}");
    if let Ok(report) = checked {
        assert_eq!(halves, Ok(Some(report)));
    }
    checked.is_ok()
}

/// The same bytes with every checksum corrected, as an attacker would do.
fn with_sums(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() < HEADER_LEN {
        return bytes;
    }
    let at = |at: usize| {
        usize::try_from(u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())).unwrap_or(usize::MAX)
    };
    // Offset and length of each section are adjacent, followed by its checksum.
    let sections = [56, 80, 128].map(|field| (field, at(field), at(field + 8)));
    let [records_at, homed_at, index_at] = sections.map(|(_, at, _)| at);
    let counts = at(header_at::HANDLES_COUNT).saturating_add(at(header_at::TOMBSTONES_COUNT));
    mend_records(&mut bytes, records_at..homed_at, counts);
    let buckets = index_at..bytes.len();
    for bucket in bytes.get_mut(buckets).unwrap_or_default().as_chunks_mut::<BUCKET_LEN>().0 {
        let sum = bucket_sum(bucket);
        let (_, base) = bucket.split_last_chunk_mut::<8>().unwrap();
        *base = ((u64::from_le_bytes(*base) & !BUCKET_SUM_MASK) | sum << BASE_BITS).to_le_bytes();
    }
    for (field, start, len) in sections {
        let Some(section) = start.checked_add(len).and_then(|end| bytes.get(start..end)) else { continue };
        let sum = checksum(section).to_le_bytes();
        bytes[field + 16..field + 24].copy_from_slice(&sum);
    }
    let content = Sha256::digest(&bytes[HEADER_LEN..]);
    bytes[header_at::CONTENT_DIGEST..][..32].copy_from_slice(&content);
    let sum = checksum(&bytes[..HEADER_LEN - 8]).to_le_bytes();
    bytes[HEADER_LEN - 8..HEADER_LEN].copy_from_slice(&sum);
    bytes
}

/// Corrects the checksums of records, as far as their lengths lead from one to the next.
fn mend_records(bytes: &mut [u8], section: std::ops::Range<usize>, count: usize) {
    let Some(mut rest) = bytes.get_mut(section) else { return };
    for _ in 0..count {
        let Some(len) = rest.get(4..8).map(|len| u32::from_le_bytes(*len.first_chunk().unwrap())) else {
            return;
        };
        let Some((record, after)) = rest.split_at_mut_checked(len as usize) else { return };
        if record.len() < 8 {
            return;
        }
        let sum = record_sum(record).to_le_bytes();
        record[..4].copy_from_slice(&sum);
        rest = after;
    }
}

/// Every key of the layer, and some that it does not have.
fn keys() -> impl Iterator<Item = &'static [u8]> {
    let missing = [&b"10.1/GONE"[..], b"no/such", b"10.1/C", b"0.NA/20"];
    HANDLES.iter().map(|handle| handle.as_bytes()).chain(missing)
}

/// The results of lookups: the bytes of the record, nothing, or damage.
fn answers<B: AsRef<[u8]>>(layers: &[Layer<B>]) -> Vec<Result<Option<Vec<u8>>, CorruptRecord>> {
    let records = RecordSet::new(layers).unwrap();
    let find = |key| {
        let hash = hash_key(records.seed(), key);
        let found = records.find(hash, key);
        let staged = records.resolve(records.probe(hash), hash, key);
        let bytes = |record: Option<handle_snapshot::EncodedRecord<'_>>| {
            record.map(|record| record.as_bytes().to_vec())
        };
        assert_eq!(staged.map(bytes), found.map(bytes));
        found.map(bytes)
    };
    keys().map(find).collect()
}

/// Asserts that a damaged layer returns what the undamaged one does, or an error.
fn assert_right_or_damaged(expected: &[Result<Option<Vec<u8>>, CorruptRecord>], bytes: &[u8], what: &str) {
    let Ok(layer) = Layer::open(bytes) else { return };
    let found = answers(&[layer.with_trust(Trust::Checked)]);
    for ((key, found), expected) in keys().zip(found).zip(expected) {
        assert!(found.is_err() || found == *expected, "{what}: {} is {found:?}", key.escape_ascii());
    }
}

#[test]
fn zeroed_bytes_give_a_right_answer_or_an_error() {
    let whole = layer();
    let expected = answers(&[Layer::open(whole.as_slice()).unwrap()]);
    for len in 1..=BUCKET_LEN {
        for at in (0..whole.len() - len).step_by(if len > 8 { 7 } else { 1 }) {
            let mut bytes = whole.clone();
            bytes[at..at + len].fill(0);
            assert_right_or_damaged(&expected, &bytes, "zeroed");
        }
    }
}

#[test]
fn slots_of_other_records_give_a_right_answer_or_an_error() {
    let whole = layer();
    let expected = answers(&[Layer::open(whole.as_slice()).unwrap()]);
    let header = LayerHeader::decode(&whole, whole.len() as u64).unwrap();
    let index = usize::try_from(header.index_at).unwrap()..whole.len();
    for bucket in index.step_by(BUCKET_LEN) {
        for (from, to) in (0..BUCKET_SLOTS).flat_map(|from| (0..BUCKET_SLOTS).map(move |to| (from, to))) {
            // The fingerprint stays in its slot, or moves to the other one; the distance does not.
            for moves in [false, true] {
                let mut bytes = whole.clone();
                let slots = &mut bytes[bucket..bucket + BUCKET_LEN];
                slots.copy_within(
                    2 * BUCKET_SLOTS + 2 * from..2 * BUCKET_SLOTS + 2 * from + 2,
                    2 * BUCKET_SLOTS + 2 * to,
                );
                if moves {
                    slots.copy_within(2 * to..2 * to + 2, 2 * from);
                }
                assert_right_or_damaged(&expected, &bytes, "another slot");
                // The last slot of a bucket, after which a search continues in the next bucket.
                let slots = &mut bytes[bucket..bucket + BUCKET_LEN];
                slots.copy_within(2 * from..2 * from + 2, 2 * (BUCKET_SLOTS - 1));
                slots[2 * from..2 * from + 2].fill(0);
                assert_right_or_damaged(&expected, &bytes, "the last slot");
            }
        }
    }
}

#[test]
fn a_flipped_bit_gives_a_right_answer_or_an_error() {
    let whole = layer();
    let opened = Layer::open(whole.as_slice()).unwrap();
    assert_eq!(opened.trust(), Trust::Checked, "it has private values");
    let expected = answers(&[opened]);
    assert!(expected.iter().all(Result::is_ok));
    let mut errors = 0;
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_right_or_damaged(&expected, &bytes, &format!("bit {bit}"));
        let Ok(layer) = Layer::open(bytes.as_slice()) else { continue };
        errors += answers(&[layer]).iter().filter(|found| found.is_err()).count();
    }
    assert!(errors > 5_000, "{errors} answers met the damage");
}

/// Prefixes that the layer homes, and others.
const PREFIXES: [&str; 7] = ["10.1", "10.2", "0.NA", "0.NA/10", "10.3", "20", "1"];

#[test]
fn a_flipped_bit_makes_no_homed_prefix_disappear() {
    let whole = layer();
    let header = *Layer::open(whole.as_slice()).unwrap().header();
    let section = usize::try_from(header.homed_at).unwrap()..usize::try_from(header.index_at).unwrap();
    let mut errors = 0;
    for bit in section.start * 8..section.end * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let layer = Layer::open(bytes.as_slice()).unwrap();
        let homed = layer.homed().unwrap();
        for (n, prefix) in PREFIXES.iter().enumerate() {
            let found = homed.find(prefix.as_bytes());
            assert!(found.is_err() || found == Ok(n < 4), "bit {bit}: {prefix} is {found:?}");
            errors += usize::from(found.is_err());
            let key = [prefix.as_bytes(), b"/x"].concat();
            let of_record = homed.find_record(&key);
            assert!(of_record.is_err() || of_record == Ok(n < 4), "bit {bit}: {prefix}");
        }
    }
    assert!(errors > 500, "{errors} lookups met the damage");
    // A table without prefixes is not damaged.
    let options = LayerOptions { seed: 99, folds: true, created_unix_ms: 5 };
    let mut builder = Builder::new(&std::env::temp_dir(), options).homed(HomedPrefixes::default());
    builder.add(0, b"10.1/a", [Value::new(1, b"URL", b"x")]).unwrap();
    let empty = builder.finish(Cursor::new(Vec::new())).unwrap().0.into_inner();
    let layer = Layer::open(empty.as_slice()).unwrap();
    assert_eq!(layer.homed().unwrap().find(b"10.1"), Ok(false));
}

#[test]
fn a_flipped_bit_in_a_newer_layer_does_not_bring_an_older_record_back() {
    let options = LayerOptions { seed: 99, folds: true, created_unix_ms: 6 };
    let mut builder = Builder::new(&std::env::temp_dir(), options);
    for (origin, handle) in (0..).zip(&HANDLES[..6]) {
        builder.add(origin, handle.as_bytes(), [Value::new(1, b"URL", b"newer")]).unwrap();
    }
    builder.delete(100, HANDLES[6].as_bytes()).unwrap();
    let newer = builder.finish(Cursor::new(Vec::new())).unwrap().0.into_inner();
    let base = layer();
    let open = |bytes: &[u8]| Layer::open(bytes.to_vec()).map(|layer| layer.with_trust(Trust::Checked));
    let expected = answers(&[open(&newer).unwrap(), open(&base).unwrap()]);
    for bit in HEADER_LEN * 8..newer.len() * 8 {
        let mut bytes = newer.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        for (found, expected) in answers(&[open(&bytes).unwrap(), open(&base).unwrap()]).iter().zip(&expected)
        {
            assert!(found.is_err() || found == expected, "bit {bit}: {found:?}");
        }
    }
}

#[test]
fn a_layer_that_is_refused_answers_nothing() {
    let bytes = layer();
    let refused = Layer::open(bytes.as_slice()).unwrap().with_trust(Trust::Refused);
    assert!(answers(&[refused]).iter().all(Result::is_err));
    let layers = [Layer::open(bytes.as_slice()).unwrap(), Layer::open(bytes.as_slice()).unwrap()];
    let [newer, older] = layers.map(|layer| layer.with_trust(Trust::Checked));
    let older = older.with_trust(Trust::Refused);
    for (key, found) in keys().zip(answers(&[newer, older])) {
        let is_in_newer = HANDLES.iter().any(|handle| handle.as_bytes() == key) || key == b"10.1/GONE";
        assert_eq!(found.is_ok(), is_in_newer, "{}", key.escape_ascii());
    }
}

#[test]
fn a_layer_of_another_version_is_refused_with_what_to_do() {
    let mut bytes = layer();
    bytes[8] = 3;
    let sum = checksum(&bytes[..HEADER_LEN - 8]).to_le_bytes();
    bytes[HEADER_LEN - 8..HEADER_LEN].copy_from_slice(&sum);
    let error = Layer::open(bytes).unwrap_err().to_string();
    assert!(error.contains("version 3") && error.contains("this program reads version 1"), "{error}");
    assert!(error.contains("update it, or publish the records with this program"), "{error}");
}

#[test]
fn a_header_that_vouches_wrongly_is_found_out() {
    let mut bytes = layer();
    assert!(!Layer::open(bytes.as_slice()).unwrap().is_within(), "20/ is not homed");
    bytes[12] |= 4;
    let bytes = with_sums(bytes);
    let opened = Layer::open(bytes.as_slice()).unwrap();
    assert!(verify::layer(&opened).unwrap_err().to_string().contains("is not homed"));
}

#[test]
fn a_whole_layer_is_whole() {
    let bytes = layer();
    let report = verify::layer(&Layer::open(bytes.as_slice()).unwrap()).unwrap();
    assert_eq!((report.handles_count, report.tombstones_count), (12, 1));
    assert_eq!((report.public_count, report.private_count), (20, 4));
    assert_eq!(report.homed_count, Some(4));
    assert_eq!(with_sums(bytes.clone()), bytes);
}

#[test]
fn a_check_tells_which_parts_of_records_and_index_it_has_read() {
    let options = LayerOptions { seed: 7, folds: true, created_unix_ms: 5 };
    let mut builder = Builder::new(&std::env::temp_dir(), options);
    let data = [b'x'; 500];
    for origin in 0..70_000_u64 {
        builder.add(origin, format!("10.1/{origin}").as_bytes(), [Value::new(1, b"URL", &data)]).unwrap();
    }
    let bytes = builder.finish(Cursor::new(Vec::new())).unwrap().0.into_inner();
    let layer = Layer::open(bytes.as_slice()).unwrap();
    let header = layer.header();
    let (mut records_len, mut index_len) = (0, 0);
    let report = verify::layer_in_steps(&layer, |range| {
        assert!(range.end - range.start < 9 << 20, "{range:?}");
        match range.start < header.index_at {
            true => records_len += range.end - range.start,
            false => index_len += range.end - range.start,
        }
        ControlFlow::Continue(())
    });
    let report = report.unwrap();
    assert_eq!(report.unwrap().handles_count, 70_000);
    // Both are read for their checksums, record by record with a lookup each, and the slots at the
    // end. The last step of the lookups is not reported.
    let step_len = 8 << 20;
    assert!(records_len > 2 * header.records_len - step_len, "{records_len} of {header:?}");
    assert!(
        index_len > 2 * header.index_len && index_len < 3 * header.index_len,
        "{index_len} of {header:?}"
    );
    let passed = Mutex::new(Vec::new());
    let halves = verify::content_in_halves(&layer, |range| {
        passed.lock().unwrap().push(range);
        ControlFlow::Continue(())
    });
    assert_eq!(halves, Ok(report));
    let mut passed = passed.into_inner().unwrap();
    passed.sort_unstable_by_key(|range| range.start);
    assert!(passed.iter().all(|range| range.end - range.start < 9 << 20), "{passed:?}");
    let records_len: u64 = passed
        .iter()
        .filter(|range| range.start < header.index_at)
        .map(|range| range.end - range.start)
        .sum();
    assert!(records_len > header.records_len - 2 * step_len, "{records_len} of {header:?}");
    let stopped = verify::content_in_halves(&layer, |_| ControlFlow::Break(()));
    assert!(stopped.unwrap().is_none());
    for calls in 1..=6 {
        let mut left = calls;
        let stopped = verify::layer_in_steps(&layer, |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(stopped.unwrap().is_none(), "at call {calls}");
    }
}

#[test]
fn refuses_every_truncation_and_every_addition() {
    let bytes = layer();
    for len in 0..bytes.len() {
        assert!(Layer::open(&bytes[..len]).is_err(), "cut to {len}");
        use_it(&with_sums(bytes[..len].to_vec()));
    }
    assert!(Layer::open([bytes, vec![0]].concat()).is_err());
}

#[test]
fn every_flip_is_found_by_verify_and_none_panics() {
    let whole = layer();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_whole(&bytes), "bit {bit}");
        use_it(&bytes);
        // A changed bit with corrected checksums may give another valid layer, but does no harm.
        use_it(&with_sums(bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_change_is_a_right_answer_or_an_error(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<[u8; 8]>(), 1..9_usize), 1..6)) {
        let mut bytes = layer();
        let expected = answers(&[Layer::open(bytes.as_slice()).unwrap()]);
        for (at, new, len) in changes {
            let at = at.index(bytes.len() - len);
            bytes[at..at + len].copy_from_slice(&new[..len]);
        }
        assert_right_or_damaged(&expected, &bytes, "changed");
        use_it(&bytes);
        use_it(&with_sums(bytes));
    }

    #[test]
    fn any_section_is_an_error_or_a_miss(records in prop::collection::vec(any::<u8>(), 0..512), homed in prop::collection::vec(any::<u8>(), 64..512), index in prop::collection::vec(any::<u8>(), 64..1024), buckets in 1..8_u64) {
        let pad = |mut bytes: Vec<u8>| {
            bytes.resize(bytes.len().next_multiple_of(64), 0);
            bytes
        };
        let sections = [records, homed, index].map(pad);
        let [records_len, homed_len, index_len] = sections.each_ref().map(|section| section.len() as u64);
        let header = LayerHeader {
            flags: 3,
            file_len: 320 + records_len + homed_len + index_len,
            handles_count: buckets,
            records_at: 320,
            records_len,
            homed_at: 320 + records_len,
            homed_len,
            homed_count: 5,
            homed_buckets: 1,
            homed_index_len: 64,
            index_at: 320 + records_len + homed_len,
            index_len,
            index_buckets: buckets.min(index_len / 64),
            ..LayerHeader::default()
        };
        let bytes = [header.encode().to_vec(), sections.concat()].concat();
        prop_assert!(Layer::open(bytes.as_slice()).is_ok());
        use_it(&with_sums(bytes));
    }

    #[test]
    fn any_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
        use_it(&bytes);
        use_it(&with_sums(bytes));
    }
}

#[test]
fn a_full_index_does_not_hold_a_lookup_up() {
    // Every slot is used and has the searched fingerprint, but points to a record with another key.
    let hash = hash_key(99, b"no/such");
    let mut bytes = layer();
    let header = *Layer::open(bytes.as_slice()).unwrap().header();
    let index_at = usize::try_from(header.index_at).unwrap();
    bytes.truncate(index_at);
    let buckets = 1000_u64;
    for _ in 0..buckets {
        for _ in 0..BUCKET_SLOTS {
            bytes.extend_from_slice(&fingerprint(hash).to_le_bytes());
        }
        bytes.extend_from_slice(&[0; 2 * BUCKET_SLOTS]);
        let base = BASE_GOES_ON | (header.records_at / 8);
        bytes.extend_from_slice(&base.to_le_bytes());
    }
    let header =
        LayerHeader { file_len: bytes.len() as u64, index_len: buckets * 64, index_buckets: 1, ..header };
    bytes[..HEADER_LEN].copy_from_slice(&header.encode());
    let layer = Layer::open(bytes).unwrap().with_trust(Trust::Plain);
    assert!(layer.find(hash, b"no/such").unwrap().is_none());
    assert!(layer.with_trust(Trust::Checked).find(hash, b"no/such").is_err(), "it goes on past its end");
}
