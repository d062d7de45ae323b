#![expect(clippy::cast_possible_truncation, reason = "numbers of tests")]

use super::{CachedEntry, CachedRecordTable, EntryStamp, NO_SLOT, TableEntry, TableLookup, WalkStep};
use handle_snapshot::hash_key;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

const SEED: u64 = 0x5eed;

fn stamp(n: u32) -> EntryStamp {
    EntryStamp {
        stored_unix_s: n,
        ttl_s: !n,
        values_count: n as u16,
        kind: n as u8 & 0xf,
        flags: (n >> 8) as u8,
    }
}

fn insert(table: &CachedRecordTable, key: &[u8], n: u32, values: &[u8]) -> bool {
    table.insert(hash_key(SEED, key), key, stamp(n), values)
}

fn find(table: &CachedRecordTable, key: &[u8]) -> Option<(EntryStamp, Vec<u8>)> {
    let hash = hash_key(SEED, key);
    table.prefetch(hash);
    let slot = table.probe(hash);
    table.prefetch_entry(hash, slot);
    find_at(table, slot, key)
}

fn find_at(table: &CachedRecordTable, slot: usize, key: &[u8]) -> Option<(EntryStamp, Vec<u8>)> {
    let mut buffer = vec![0; table.entry_len_max() + 8];
    match table.find_at(
        hash_key(SEED, key),
        slot,
        key.len(),
        |found: &[u8]| found == key,
        |len| buffer.get_mut(..len),
    ) {
        TableLookup::Found(CachedEntry { stamp, values, .. }) => Some((stamp, values.to_vec())),
        TableLookup::Missing => None,
        TableLookup::NoCapacity => panic!("there is room"),
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("10.1045/{n}").into_bytes()
}

#[test]
fn entries_come_back_as_inserted() {
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    for len in (0..70).chain([1000, 4096, 10_000]) {
        let values: Vec<u8> = (0..len).map(|at| at as u8).collect();
        assert!(insert(&table, &key(len), len, &values), "{len}");
        assert_eq!(find(&table, &key(len)), Some((stamp(len), values)), "{len}");
    }
    assert_eq!(find(&table, b"10.1045/other"), None);
    assert_eq!(find(&table, b""), None);
    assert!(insert(&table, b"", 7, b""), "an empty key is a key");
    assert_eq!(find(&table, b""), Some((stamp(7), vec![])));
}

#[test]
fn an_entry_is_found_whatever_its_slot_has_become() {
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    (0..100).for_each(|n| assert!(insert(&table, &key(n), n, b"values")));
    let slots: Vec<_> = (0..100).map(|n| table.probe(hash_key(SEED, &key(n)))).collect();
    assert!(!slots.contains(&NO_SLOT));
    for n in 0..100 {
        for slot in slots.iter().copied().chain([NO_SLOT, NO_SLOT - 1]) {
            assert_eq!(find_at(&table, slot, &key(n)), Some((stamp(n), b"values".to_vec())), "{n} {slot}");
        }
        assert_eq!(find_at(&table, slots[n as usize], &key(n + 100)), None);
    }
    assert_eq!(table.probe(hash_key(SEED, &key(1000))), NO_SLOT);
}

#[test]
fn an_entry_is_replaced_and_removed() {
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    insert(&table, &key(1), 1, b"old");
    insert(&table, &key(2), 2, b"other");
    insert(&table, &key(1), 3, b"newer");
    assert_eq!(find(&table, &key(1)), Some((stamp(3), b"newer".to_vec())));
    assert_eq!((table.stats().entries, table.stats().bytes), (2, 2 * key(1).len() + 10));
    assert!(table.remove(hash_key(SEED, &key(1)), &key(1)));
    assert!(!table.remove(hash_key(SEED, &key(1)), &key(1)));
    assert_eq!(find(&table, &key(1)), None);
    assert_eq!(table.remove_if(&mut |key, _| key.ends_with(b"/2")), 1);
    assert_eq!((table.stats().entries, table.stats().bytes), (0, 0));
}

#[test]
fn an_entry_that_is_too_long_is_refused_and_replaces_nothing() {
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    let key = key(1);
    let most = table.entry_len_max() - key.len();
    assert!(insert(&table, &key, 1, &vec![1; most]));
    assert_eq!(find(&table, &key).map(|(_, values)| values.len()), Some(most));
    assert!(!insert(&table, &key, 2, &vec![2; most + 8]));
    assert_eq!(find(&table, &key), None, "the old entry would be out of date");
    let long = CachedRecordTable::new(1 << 30);
    assert!(!insert(&long, &key, 1, &vec![1; super::VALUES_LEN_MAX + 1]));
    assert!(!insert(&long, &vec![b'k'; super::KEY_LEN_MAX + 1], 1, b""));
}

#[test]
fn without_a_buffer_nothing_is_copied() {
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    insert(&table, &key(1), 1, b"values");
    let mut asked = 0;
    let lookup = table.find(hash_key(SEED, &key(1)), &key(1), |len| {
        asked = len;
        None
    });
    assert_eq!((lookup, asked), (TableLookup::NoCapacity, key(1).len() + 6));
}

#[test]
fn memory_is_bounded_and_used() {
    let table = CachedRecordTable::new(4 << 20);
    let values = [7; 300];
    for n in 0..100_000 {
        assert!(insert(&table, &key(n), n, &values));
        let stats = table.stats();
        assert!(stats.bytes <= stats.bytes_max);
    }
    let stats = table.stats();
    assert!(stats.bytes > stats.bytes_max * 3 / 4, "{stats:?}");
    for n in 0..100_000 {
        insert(&table, &key(n % 20_000), n, &values);
        find(&table, &key(n % 20_000));
    }
    let stats = table.stats();
    let overhead = (stats.bytes_max - stats.bytes) / stats.entries;
    assert!(overhead <= 64, "{overhead} bytes for each of {} entries", stats.entries);
    assert_eq!(stats.insertions, 200_000);
}

#[test]
fn names_in_use_survive_a_scan() {
    let table = CachedRecordTable::new(4 << 20);
    let values = [7; 300];
    let used = 5000;
    for n in (0..used).chain(0..used) {
        insert(&table, &key(n), n, &values);
        find(&table, &key(n));
    }
    for n in 0..200_000 {
        insert(&table, &key(1_000_000 + n), n, &values);
        find(&table, &key(n % used));
    }
    let left = (0..used).filter(|&n| find(&table, &key(n)).is_some()).count();
    assert!(left as f64 > 0.99 * f64::from(used), "{left} of {used}");
}

#[test]
fn names_in_use_survive_long_entries_that_are_asked_for_twice() {
    let table = CachedRecordTable::new(8 << 20);
    let (used, long) = (8000, vec![9; 64 << 10]);
    for n in (0..used).chain(0..used) {
        insert(&table, &key(n), n, &[7; 300]);
        find(&table, &key(n));
    }
    for n in 0..2000 {
        insert(&table, &key(1_000_000 + n), n, &long);
        (0..2).for_each(|_| assert!(find(&table, &key(1_000_000 + n)).is_some()));
        (0..400).for_each(|m| drop(find(&table, &key((n * 400 + m) % used))));
    }
    let left = (0..used).filter(|&n| find(&table, &key(n)).is_some()).count();
    assert!(left as f64 > 0.95 * f64::from(used), "{left} of {used}");
}

#[test]
fn an_entry_that_is_there_stays_if_it_is_not_to_be_replaced() {
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    let absent =
        |n, values: &[u8]| table.insert_if_absent(hash_key(SEED, &key(1)), &key(1), stamp(n), values);
    assert!(absent(1, b"first") && !absent(2, b"second"));
    assert_eq!(find(&table, &key(1)), Some((stamp(1), b"first".to_vec())));
    assert_eq!(table.stats().insertions, 1);
}

#[test]
fn a_walk_pauses_without_a_lock_and_misses_nothing_that_stays() {
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    (0..2000).for_each(|n| assert!(insert(&table, &key(n), n, b"values")));
    let (mut walked, mut pauses) = (std::collections::HashSet::new(), 0);
    table.walk(&mut |step| match step {
        WalkStep::Entry(entry) => assert!(walked.insert(entry.key.to_vec())),
        // With the lock of the shard, this would wait without end.
        WalkStep::Pause => {
            pauses += 1;
            insert(&table, &key(pauses), pauses, b"newer");
        }
    });
    assert_eq!((walked.len(), pauses > 1), (2000, true), "{pauses}");
}

#[test]
fn every_entry_is_walked_once() {
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    (0..1000).for_each(|n| assert!(insert(&table, &key(n), n, &n.to_be_bytes())));
    find(&table, &key(3));
    let mut walked = HashMap::new();
    table.for_each(&mut |TableEntry { key, stamp, values, uses }| {
        assert_eq!(walked.insert(key.to_vec(), (stamp, values.to_vec(), uses)), None);
    });
    for n in 0..1000 {
        let uses = u8::from(n == 3);
        assert_eq!(walked.get(&key(n)), Some(&(stamp(n), n.to_be_bytes().to_vec(), uses)), "{n}");
    }
    table.clear();
    assert_eq!((table.stats().entries, table.stats().bytes), (0, 0));
    assert_eq!(find(&table, &key(3)), None);
}

/// Values that say whose they are: a reader that gets a mixture notices.
fn values_of(n: u32, version: u32) -> Vec<u8> {
    let len = 40 + (n.wrapping_mul(31) ^ version.wrapping_mul(17)) % 400;
    let word = (u64::from(n) << 32 | u64::from(version)).to_be_bytes();
    word.iter().copied().cycle().take(len as usize).collect()
}

#[test]
fn readers_never_see_a_mixture() {
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    let stop = AtomicBool::new(false);
    let names = 6000;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (table, stop) = (&table, &stop);
                scope.spawn(move || {
                    let (mut hits, mut random) = (0_u64, reader);
                    while !stop.load(Ordering::Relaxed) {
                        random = 1_103_515_245_u32.wrapping_mul(random).wrapping_add(12_345);
                        let n = (random >> 8) % names;
                        let Some((stamp, values)) = find(table, &key(n)) else { continue };
                        assert_eq!(values, values_of(n, stamp.stored_unix_s));
                        hits += 1;
                    }
                    hits
                })
            })
            .collect();
        for version in 0..12 {
            for n in 0..names {
                let values = values_of(n, version);
                let stamp = EntryStamp { stored_unix_s: version, ..EntryStamp::default() };
                table.insert(hash_key(SEED, &key(n)), &key(n), stamp, &values);
            }
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().expect("a reader") > 0);
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, usize),
    Remove(u32),
    Find(u32),
    Purge(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4000_u32, 0..3000_usize).prop_map(|(n, len)| Step::Insert(n, len)),
        1 => (0..4000_u32).prop_map(Step::Remove),
        6 => (0..4000_u32).prop_map(Step::Find),
        1 => (0..10_u32).prop_map(Step::Purge),
    ];
    proptest::collection::vec(step, 1..4000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever happens, an entry that is found is the last one inserted, and the counts agree with
    /// a walk.
    #[test]
    fn what_is_found_was_inserted_last(steps in steps()) {
        let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
        let mut model: HashMap<u32, (u32, usize)> = HashMap::new();
        for (at, step) in (0..).zip(steps) {
            match step {
                Step::Insert(n, len) => {
                    prop_assert!(insert(&table, &key(n), at, &vec![at as u8; len]));
                    model.insert(n, (at, len));
                }
                Step::Remove(n) => {
                    let removed = table.remove(hash_key(SEED, &key(n)), &key(n));
                    prop_assert!(!removed || model.contains_key(&n));
                    model.remove(&n);
                }
                Step::Find(n) => {
                    if let Some((found, values)) = find(&table, &key(n)) {
                        prop_assert_eq!(model.get(&n).map(|&(at, len)| (stamp(at), len)), Some((found, values.len())));
                        prop_assert!(values.iter().all(|&byte| byte == model[&n].0 as u8));
                    }
                }
                Step::Purge(digit) => {
                    let ends = |key: &[u8]| key.last() == Some(&(b'0' + digit as u8));
                    table.remove_if(&mut |key, _| ends(key));
                    model.retain(|&n, _| !ends(&key(n)));
                }
            }
        }
        let (mut entries, mut bytes) = (0, 0);
        table.for_each(&mut |entry| {
            entries += 1;
            bytes += entry.key.len() + entry.values.len();
        });
        prop_assert_eq!((table.stats().entries, table.stats().bytes), (entries, bytes));
        prop_assert!(entries <= model.len());
    }
}
