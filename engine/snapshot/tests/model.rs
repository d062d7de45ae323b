//! Layers built from random records answer like a map.
#![cfg(feature = "std")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{Permissions, Value};
use handle_snapshot::{
    BuildError, Builder, HomedPrefixes, Layer, LayerOptions, LayerWriter, RecordSet, fold_key, hash_key,
    merge, verify,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Cursor;
use std::ops::ControlFlow;

/// Handle, and values as (index, is public, data); `None` stands for a deletion.
type Input = (Vec<u8>, Option<Vec<(i32, bool, Vec<u8>)>>);
type Model = BTreeMap<Vec<u8>, Option<Vec<(i32, bool, Vec<u8>)>>>;

fn options(folds: bool) -> LayerOptions {
    LayerOptions { seed: 0x5eed, folds, created_unix_ms: 1_700_000_000_000 }
}

fn value(&(index, is_public, ref data): &(i32, bool, Vec<u8>)) -> Value<'_> {
    let permissions = if is_public { Permissions::DEFAULT } else { Permissions(0x0c) };
    Value { permissions, ..Value::new(index, b"URL", data) }
}

fn key(handle: &[u8], folds: bool) -> Vec<u8> {
    let mut key = handle.to_vec();
    fold_key(&mut key, folds);
    key
}

fn build(
    records: &[Input],
    folds: bool,
    memory_len: usize,
    homed: Option<&[&str]>,
) -> Result<Vec<u8>, BuildError> {
    let temp_dir = std::env::temp_dir();
    let mut builder = Builder::new(&temp_dir, options(folds)).memory_len_max(memory_len);
    if let Some(homed) = homed {
        let mut prefixes = HomedPrefixes::default();
        for prefix in homed {
            assert!(prefixes.add(prefix.as_bytes()));
        }
        builder = builder.homed(prefixes);
    }
    for (origin, (handle, values)) in (0..).zip(records) {
        match values {
            Some(values) => builder.add(origin, handle, values.iter().map(value))?,
            None => builder.delete(origin, handle)?,
        }
    }
    Ok(builder.finish(Cursor::new(Vec::new()))?.0.into_inner())
}

fn check(layers: &[Layer<Vec<u8>>], model: &Model, handles: &[Vec<u8>], folds: bool) {
    let records = RecordSet::new(layers).unwrap();
    for layer in layers {
        let report = verify::layer(layer).unwrap();
        assert_eq!(report.handles_count, layer.handles_count(), "what is built is whole");
    }
    for handle in handles {
        let key = key(handle, folds);
        let hash = hash_key(records.seed(), &key);
        let found = records.find(hash, &key).unwrap();
        records.prefetch_index(hash);
        let staged = records.probe(hash);
        records.prefetch_record(staged);
        let in_steps = records.resolve(staged, hash, &key).unwrap();
        assert_eq!(found.map(|record| record.as_bytes()), in_steps.map(|record| record.as_bytes()));
        match (found, model.get(&key)) {
            (None, None | Some(None)) => {}
            (Some(record), Some(Some(values))) => {
                assert_eq!(record.key(), key);
                let expected: Vec<_> = values.iter().map(value).collect();
                assert_eq!(record.values_in_order().map(Result::unwrap).collect::<Vec<_>>(), expected);
                let public = handle_proto::Values::from_encoded(record.public_count(), record.public_bytes());
                let is_public = |value: &Value<'_>| value.is_public();
                let expected: Vec<_> = expected.into_iter().filter(is_public).collect();
                assert_eq!(public.unwrap().iter().collect::<Vec<_>>(), expected);
            }
            (found, expected) => panic!("{key:?}: found {}, expected {expected:?}", found.is_some()),
        }
    }
}

fn handle() -> impl Strategy<Value = Vec<u8>> {
    // Few distinct names, so that layers overlap, and both cases, so that folding matters.
    "(0\\.na|0\\.NA|10\\.[1-3]|20)/[a-cA-C]{0,3}".prop_map(String::into_bytes)
}

fn values() -> impl Strategy<Value = Vec<(i32, bool, Vec<u8>)>> {
    let one = (1..2000, any::<bool>(), vec(any::<u8>(), 0..40));
    vec(one, 0..6).prop_map(|mut values| {
        let mut seen = std::collections::HashSet::new();
        values.retain(|(index, ..)| seen.insert(*index));
        values
    })
}

fn inputs(count_max: usize) -> impl Strategy<Value = Vec<Input>> {
    let deletion_or_values = prop_oneof![1 => Just(None), 4 => values().prop_map(Some)];
    vec((handle(), deletion_or_values), 0..count_max)
}

/// The records whose keys are new, and the model of them.
fn distinct(inputs: Vec<Input>, folds: bool) -> (Vec<Input>, Model) {
    let mut model = Model::new();
    let mut kept = Vec::new();
    for (handle, values) in inputs {
        if let Entry::Vacant(entry) = model.entry(key(&handle, folds)) {
            entry.insert(values.clone());
            kept.push((handle, values));
        }
    }
    (kept, model)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn one_layer_is_a_map(input in inputs(200), folds: bool, memory in prop_oneof![1 => Just(0_usize), 2 => 0..5000_usize, 1 => Just(1 << 24)], asked in vec(handle(), 50)) {
        let (records, model) = distinct(input, folds);
        let bytes = build(&records, folds, memory, None).unwrap();
        prop_assert_eq!(&bytes, &build(&records, folds, 1 << 24, None).unwrap(), "memory does not matter");
        let layer = Layer::open(bytes).unwrap();
        let live = model.values().flatten().count() as u64;
        prop_assert_eq!(layer.handles_count(), live);
        prop_assert_eq!(layer.tombstones_count(), model.len() as u64 - live);
        prop_assert_eq!(layer.records().count(), model.len());
        prop_assert!(layer.homed().is_none());
        let handles: Vec<_> = records.iter().map(|(handle, _)| handle.clone()).chain(asked).collect();
        check(&[layer], &model, &handles, folds);
    }

    #[test]
    fn layers_and_their_merge_are_maps(inputs in vec(inputs(60), 1..6), folds: bool, upper in 0..6_usize) {
        let mut model = Model::new();
        let mut layers = Vec::new();
        let mut handles = Vec::new();
        for (n, input) in inputs.into_iter().enumerate() {
            let (records, newer) = distinct(input, folds);
            handles.extend(records.iter().map(|(handle, _)| handle.clone()));
            let homed: Option<&[&str]> = match n { 0 => Some(&["10.1"]), 2 => Some(&["0.NA", "20"]), _ => None };
            layers.insert(0, Layer::open(build(&records, folds, 2000, homed).unwrap()).unwrap());
            model.extend(newer);
        }
        check(&layers, &model, &handles, folds);
        let homed = |layers: &[Layer<Vec<u8>>]| {
            let records = RecordSet::new(layers).unwrap();
            ["10.1", "0.na", "20"].map(|prefix| records.homed(prefix.as_bytes()))
        };
        let answer = if layers.len() > 2 { [false, true, true] } else { [true, false, false] };
        prop_assert_eq!(homed(&layers), answer);

        // Merges some layers in the middle, then the upper ones, keeping tombstones, and then all.
        let writer = || LayerWriter::new(Cursor::new(Vec::new()), &std::env::temp_dir(), options(folds)).unwrap();
        if layers.len() > 3 {
            let (merged, _) = merge(&layers[1..3], true, writer(), |_| ControlFlow::Continue(())).unwrap();
            layers.splice(1..3, [Layer::open(merged.into_inner()).unwrap()]);
            check(&layers, &model, &handles, folds);
            prop_assert_eq!(homed(&layers), answer);
        }
        let upper = upper.min(layers.len());
        let (merged, _) = merge(&layers[..upper], true, writer(), |_| ControlFlow::Continue(())).unwrap();
        layers.splice(..upper, [Layer::open(merged.into_inner()).unwrap()]);
        check(&layers, &model, &handles, folds);
        prop_assert_eq!(homed(&layers), answer);
        let (merged, _) = merge(&layers, false, writer(), |_| ControlFlow::Continue(())).unwrap();
        let merged = [Layer::open(merged.into_inner()).unwrap()];
        check(&merged, &model, &handles, folds);
        prop_assert_eq!(homed(&merged), answer);
        prop_assert_eq!(merged[0].tombstones_count(), 0);
        prop_assert_eq!(merged[0].handles_count(), model.values().flatten().count() as u64);
    }

    #[test]
    fn homed_tables_are_sets(prefixes in btree_set("[0-9A-C./]{0,6}", 0..300), asked in vec("[0-9a-cA-C./]{0,6}", 50)) {
        let list: Vec<&str> = prefixes.iter().map(String::as_str).collect();
        let layer = Layer::open(build(&[], true, 1 << 20, Some(&list)).unwrap()).unwrap();
        let homed = layer.homed().unwrap();
        prop_assert_eq!(homed.len(), list.len() as u64);
        let mut listed: Vec<_> = homed.iter().collect();
        listed.sort_unstable();
        prop_assert_eq!(listed, list.iter().map(|prefix| prefix.as_bytes()).collect::<Vec<_>>());
        for prefix in asked.iter().map(String::as_str).chain(list.iter().copied()) {
            prop_assert_eq!(homed.has(prefix.as_bytes()), prefixes.contains(&prefix.to_ascii_uppercase()));
        }
    }

    #[test]
    fn duplicates_name_both_positions(input in inputs(40), at: prop::sample::Index, memory in 0..3000_usize) {
        let (mut records, _) = distinct(input, true);
        prop_assume!(!records.is_empty());
        let first = at.index(records.len());
        let twice = (records[first].0.to_ascii_lowercase(), Some(Vec::new()));
        records.push(twice);
        match build(&records, true, memory, None) {
            Err(BuildError::Duplicate { key, origins }) => {
                prop_assert_eq!(key, records[first].0.to_ascii_uppercase());
                prop_assert_eq!(origins, [first as u64, records.len() as u64 - 1]);
            }
            other => prop_assert!(false, "{:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn a_hundred_thousand_records() {
    let mut builder = Builder::new(&std::env::temp_dir(), options(true)).memory_len_max(4 << 20);
    for n in 0..100_000_u64 {
        let handle = format!("10.{}/{n}", n % 7);
        let data = format!("https://example.org/{n}");
        builder.add(n, handle.as_bytes(), [Value::new(1, b"URL", data.as_bytes())]).unwrap();
    }
    let (bytes, header) = builder.finish(Cursor::new(Vec::new())).unwrap();
    assert!(header.index_len <= 12 * 100_000, "{} bytes of index", header.index_len);
    let layer = Layer::open(bytes.into_inner()).unwrap();
    for n in 0..100_000_u64 {
        let key = format!("10.{}/{n}", n % 7);
        let record = layer.find(hash_key(layer.seed(), key.as_bytes()), key.as_bytes()).unwrap().unwrap();
        let value = record.values_in_order().next().unwrap().unwrap();
        assert_eq!(value.data, format!("https://example.org/{n}").as_bytes());
        let key = format!("11/{n}");
        assert!(layer.find(hash_key(layer.seed(), key.as_bytes()), key.as_bytes()).unwrap().is_none());
    }
}

#[test]
fn long_prefixes_fold_too() {
    let long = "a".repeat(2048);
    let layer = Layer::open(build(&[], true, 0, Some(&[&long, "10"])).unwrap()).unwrap();
    let homed = layer.homed().unwrap();
    assert!(homed.has(long.as_bytes()) && homed.has(long.to_uppercase().as_bytes()));
    assert!(!homed.has(&[b'a'; 2049]) && !homed.has(&[b'A'; 2047]) && homed.has(b"10"));
    assert!(!HomedPrefixes::default().add(&[b'a'; 2049]));
}

#[test]
fn writers_refuse_disorder() {
    let record = |handle: &str| Layer::open(build(&[(handle.into(), None)], true, 0, None).unwrap()).unwrap();
    let (a, b) = (record("1/A"), record("1/B"));
    let push = |layers: [&Layer<Vec<u8>>; 2]| {
        let mut writer =
            LayerWriter::new(Cursor::new(Vec::new()), &std::env::temp_dir(), options(true)).unwrap();
        layers.iter().try_for_each(|layer| writer.push(&layer.records().next().unwrap().unwrap()))
    };
    assert!(matches!(push([&a, &a]), Err(BuildError::Order { .. })));
    assert_ne!(push([&a, &b]).is_ok(), push([&b, &a]).is_ok());
}

#[test]
fn the_layer_with_the_table_that_counts_vouches_for_its_records() {
    let one = |handle: &str| (handle.into(), Some(vec![(1, true, vec![])]));
    let layer = |handles: &[&str], homed: Option<&[&str]>| {
        let records: Vec<Input> = handles.iter().map(|handle| one(handle)).collect();
        Layer::open(build(&records, true, 0, homed).unwrap()).unwrap()
    };
    let base = || layer(&["10.1/a", "10.2/b", "10.1/d"], Some(&["10.1", "10.2"]));
    assert!(base().is_within());
    assert!(!layer(&["10.1/a", "10.3/c"], Some(&["10.1"])).is_within(), "10.3 is not homed");
    assert!(!layer(&["0.NA/10.1"], Some(&["0.NA/10"])).is_within(), "homed by an ancestor needs asking");
    assert!(!layer(&["10.1/a"], None).is_within(), "no table");
    let is_homed = |layers: &[Layer<Vec<u8>>], key: &str| {
        let records = RecordSet::new(layers).unwrap();
        let hash = hash_key(records.seed(), key.as_bytes());
        records.find(hash, key.as_bytes()).unwrap().unwrap().is_homed()
    };
    // A delta without a table: the older layer still vouches for its records, and the delta does
    // not.
    let layers = [layer(&["10.1/A", "10.9/E"], None), base()];
    assert!(is_homed(&layers, "10.2/B") && !is_homed(&layers, "10.1/A") && !is_homed(&layers, "10.9/E"));
    // With a table of its own the delta vouches, and the table of the base no longer counts.
    let layers = [layer(&["10.1/A"], Some(&["10.1"])), base()];
    assert!(is_homed(&layers, "10.1/A") && !is_homed(&layers, "10.2/B") && !is_homed(&layers, "10.1/D"));
}

/// Distances of 16 bits reach over 512 KiB: a bucket of long records ends early, and marks that
/// more follows.
#[test]
fn records_as_long_as_they_may_be_are_found() {
    let options = LayerOptions { seed: 7, folds: true, created_unix_ms: 1 };
    let mut builder = Builder::new(&std::env::temp_dir(), options);
    let long = vec![b'x'; 250_000];
    for n in 0..120_u64 {
        // Long ones among short ones.
        let data = if n % 3 == 0 { &long[..5] } else { &long };
        builder.add(n, format!("10.1/{n}").as_bytes(), [Value::new(1, b"N", data)]).unwrap();
    }
    let (bytes, header) = builder.finish(std::io::Cursor::new(Vec::new())).unwrap();
    assert_eq!(header.index_buckets, header.records_len.div_ceil(1 << 17), "by length");
    let layer = Layer::open(bytes.into_inner()).unwrap();
    verify::layer(&layer).unwrap();
    assert!(layer.find(hash_key(7, b"10.1/NONE"), b"10.1/NONE").unwrap().is_none());
}
