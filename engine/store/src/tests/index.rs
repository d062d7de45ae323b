//! The index answers as a look at every record would, whatever has changed.

use super::*;
use handle_proto::Permissions;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

over_engines! {
    an_index_that_is_built_while_records_change_answers_when_it_is_complete,
    every_change_of_a_record_changes_its_rows,
    parts_have_each_handle_once_whatever_their_bounds,
    a_type_that_is_not_wanted_any_more_is_dropped_in_steps,
    a_bulk_import_is_indexed_too,
    long_values_and_zero_bytes_are_told_apart,
    a_check_compares_the_index_with_the_records,
}

/// Bounds of no test.
const WIDE: SearchBounds = SearchBounds { handles: 1000, bytes: 1 << 20, rows: 10_000 };

fn types(kinds: &[&str]) -> Vec<String> {
    kinds.iter().map(|&kind| kind.to_owned()).collect()
}

/// Builds the index of these types to its end.
fn build(store: &Store, kinds: &[&str]) {
    while store.index_step(&types(kinds), 1000).unwrap() {}
}

fn condition(kind: &str, pattern: &[u8]) -> SearchCondition {
    SearchCondition { kind: kind.as_bytes().to_vec(), pattern: ValuePattern::new(pattern).unwrap() }
}

fn search_of(conditions: &[(&str, &[u8])]) -> StoreSearch {
    let conditions = conditions.iter().map(|&(kind, pattern)| condition(kind, pattern)).collect();
    StoreSearch { conditions, prefix: None }
}

/// The handles that are found in one part with these bounds.
fn part(store: &Store, search: &StoreSearch, after: Option<&[u8]>, bounds: SearchBounds) -> FoundHandles {
    store.snapshot().unwrap().search(search, after, bounds, |_| Ok(true)).unwrap()
}

/// All handles with a URL that matches `pattern`.
fn find(store: &Store, pattern: &[u8]) -> Vec<String> {
    let found = part(store, &search_of(&[("url", pattern)]), None, WIDE);
    assert_eq!(found.next, None);
    found.handles.into_iter().map(|handle| String::from_utf8(handle).unwrap()).collect()
}

fn refused(store: &Store, search: &StoreSearch) -> String {
    let found = store.snapshot().unwrap().search(search, None, WIDE, |_| Ok(true));
    found.unwrap_err().to_string()
}

fn an_index_that_is_built_while_records_change_answers_when_it_is_complete(engine: TestEngine) {
    let Some((_location, store)) = new_store(engine) else { return };
    for number in 0..10 {
        put(&store, &format!("10.1/{number}"), "http://old");
    }
    let search = search_of(&[("URL", b"http://old")]);
    assert!(refused(&store, &search).contains("not indexed"));
    assert!(store.index_step(&types(&["URL"]), 4).unwrap());
    assert!(refused(&store, &search).contains("is being built"));
    let progress = store.index_progress().unwrap();
    assert_eq!((progress[0].state, progress[0].records), (IndexState::Building, 4));
    // Before and behind the records that have been read.
    for handle in ["10.1/1", "10.1/8"] {
        put(&store, handle, "http://new");
    }
    for handle in ["10.1/2", "10.1/9"] {
        let handle = key(handle.as_bytes(), true);
        assert!(store.change(move |transaction| transaction.delete(&handle)).unwrap());
    }
    let mut steps = 0;
    while store.index_step(&types(&["URL"]), 4).unwrap() {
        steps += 1;
    }
    assert_eq!(steps, 2, "records 4 to 7, and 8");
    assert_eq!(find(&store, b"http://new"), ["10.1/1", "10.1/8"]);
    assert_eq!(find(&store, b"http://old"), ["10.1/0", "10.1/3", "10.1/4", "10.1/5", "10.1/6", "10.1/7"]);
    assert_eq!(findings_of_index(&store), 0);
}

fn findings_of_index(store: &Store) -> usize {
    let is_about_index = |finding: &StoreFinding| matches!(finding, StoreFinding::WrongIndex(_));
    findings(store).iter().filter(|&finding| is_about_index(finding)).count()
}

fn every_change_of_a_record_changes_its_rows(engine: TestEngine) {
    let Some((_location, store)) = new_store(engine) else { return };
    build(&store, &["URL", "CHECKSUM"]);
    store
        .change(|transaction| {
            let secret = Value { permissions: Permissions::ADMIN_READ, ..Value::new(3, b"URL", b"secret") };
            let values = [
                Value::new(1, b"url", b"http://a"),
                Value::new(2, b"CHECKSUM", b"99"),
                secret,
                Value::new(4, b"URL", b"http://b"),
                Value::new(5, b"EMAIL", b"a@b"),
            ];
            let mut storage = Vec::new();
            transaction.put(b"10.1/A", Values::build(values, &mut storage))
        })
        .unwrap();
    put(&store, "10.2/B", "http://b");
    assert_eq!(find(&store, b"http://a"), ["10.1/A"]);
    assert_eq!(find(&store, b"http://b"), ["10.1/A", "10.2/B"]);
    assert_eq!(find(&store, b"http://*"), ["10.1/A", "10.2/B"], "each once");
    assert_eq!(find(&store, b"*b"), ["10.1/A", "10.2/B"]);
    assert_eq!(find(&store, b"secret"), [""; 0], "it is not public");
    let both = |email: &'static [u8]| search_of(&[("URL", b"*"), ("CHECKSUM", b"99"), ("EMAIL", email)]);
    assert_eq!(part(&store, &both(b"a@b"), None, WIDE).handles, [b"10.1/A"]);
    assert_eq!(part(&store, &both(b"b@b"), None, WIDE).handles, [[0; 0]; 0]);
    assert!(refused(&store, &search_of(&[("EMAIL", b"a@b")])).contains("EMAIL are not indexed"));
    assert!(refused(&store, &search_of(&[])).contains("names no type"));
    let of_prefix = StoreSearch { prefix: Some(b"10.2".to_vec()), ..search_of(&[("URL", b"*")]) };
    assert_eq!(part(&store, &of_prefix, None, WIDE).handles, [b"10.2/B"]);
    let snapshot = store.snapshot().unwrap();
    let shown = snapshot.search(&search_of(&[("URL", b"*")]), None, WIDE, |handle| Ok(handle[3] == b'1'));
    assert_eq!(shown.unwrap().handles, [b"10.1/A"]);
    put(&store, "10.1/A", "http://c");
    assert_eq!(find(&store, b"*"), ["10.2/B", "10.1/A"]);
    store.change(|transaction| transaction.delete(b"10.2/B")).unwrap();
    assert_eq!(find(&store, b"*"), ["10.1/A"]);
    assert_eq!(findings_of_index(&store), 0);
}

fn parts_have_each_handle_once_whatever_their_bounds(engine: TestEngine) {
    let Some((_location, store)) = new_store(engine) else { return };
    build(&store, &["URL"]);
    let mut expected = BTreeSet::new();
    for number in 0..20 {
        put(&store, &format!("10.1/{number:02}"), &format!("http://{}", number % 3));
        expected.insert(format!("10.1/{number:02}").into_bytes());
    }
    let search = search_of(&[("URL", b"http://*")]);
    for bounds in [
        SearchBounds { handles: 1, ..WIDE },
        SearchBounds { handles: 7, ..WIDE },
        SearchBounds { rows: 3, ..WIDE },
        SearchBounds { bytes: 1, ..WIDE },
        SearchBounds { handles: 20, ..WIDE },
    ] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let part = part(&store, &search, after.as_deref(), bounds);
            assert!(part.handles.len() <= bounds.handles.min(bounds.rows), "{bounds:?}");
            found.extend(part.handles);
            after = part.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found.len(), expected.len(), "{bounds:?}");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
    }
    let other = part(&store, &search, None, SearchBounds { handles: 1, ..WIDE }).next.unwrap();
    let snapshot = store.snapshot().unwrap();
    let refused = snapshot.search(&search_of(&[("URL", b"ftp*")]), Some(&other), WIDE, |_| Ok(true));
    assert!(matches!(refused, Err(SearchError::OtherSearch)), "{refused:?}");
}

fn a_type_that_is_not_wanted_any_more_is_dropped_in_steps(engine: TestEngine) {
    let Some((_location, store)) = new_store(engine) else { return };
    for number in 0..5 {
        put(&store, &format!("10.1/{number}"), "http://a");
    }
    build(&store, &["URL", "URLX"]);
    assert!(store.index_step(&types(&["URLX"]), 2).unwrap());
    assert!(refused(&store, &search_of(&[("URL", b"*")])).contains("not indexed"));
    put(&store, "10.1/0", "http://b");
    build(&store, &["URLX"]);
    let progress = store.index_progress().unwrap();
    assert_eq!((progress.len(), &*progress[0].kind), (1, "URLX"));
    build(&store, &["URLX", "URL"]);
    assert_eq!(find(&store, b"http://b"), ["10.1/0"]);
    assert_eq!(find(&store, b"http://a").len(), 4);
    build(&store, &[]);
    assert_eq!(store.index_progress().unwrap(), []);
}

fn a_bulk_import_is_indexed_too(engine: TestEngine) {
    let Some((location, store)) = new_store(engine) else { return };
    build(&store, &["URL"]);
    put(&store, "10.1/a", "http://before");
    let mut bulk = store.bulk(location.path(), 1 << 20);
    let mut storage = Vec::new();
    for handle in ["10.1/a", "10.1/b"] {
        let values = Values::build([Value::new(1, b"URL", b"http://after")], &mut storage);
        bulk.add(handle.as_bytes(), values).unwrap();
    }
    bulk.finish(|_| ()).unwrap();
    build(&store, &["URL"]);
    assert_eq!(find(&store, b"*"), ["10.1/A", "10.1/B"]);
    assert_eq!(findings_of_index(&store), 0);
}

fn long_values_and_zero_bytes_are_told_apart(engine: TestEngine) {
    let Some((_location, store)) = new_store(engine) else { return };
    build(&store, &["URL"]);
    let long = |end: &[u8]| [&b"x".repeat(300)[..], end].concat();
    let values: [(&str, Vec<u8>); 8] = [
        ("10.1/LONG-A", long(b"a")),
        ("10.1/LONG-B", long(b"b")),
        ("10.1/WHOLE", b"x".repeat(256)),
        ("10.1/ZEROS", vec![0; 256]),
        ("10.1/ZERO", b"a\0".to_vec()),
        ("10.1/ZERO-B", b"a\0b".to_vec()),
        ("10.1/A", b"a".to_vec()),
        ("10.1/EMPTY", Vec::new()),
    ];
    for (handle, value) in values.clone() {
        let put = move |transaction: &mut Transaction<'_>| {
            let mut storage = Vec::new();
            transaction.put(handle.as_bytes(), Values::build([Value::new(1, b"URL", &value)], &mut storage))
        };
        store.change(put).unwrap();
    }
    for (handle, value) in &values {
        assert_eq!(find(&store, value), [*handle]);
    }
    let sorted = |pattern: &[u8]| {
        let mut found = find(&store, pattern);
        found.sort();
        found
    };
    assert_eq!(sorted(&[&long(b"")[..], b"*"].concat()), ["10.1/LONG-A", "10.1/LONG-B"]);
    assert_eq!(sorted(b"a*"), ["10.1/A", "10.1/ZERO", "10.1/ZERO-B"]);
    assert_eq!(sorted(b"a\0*"), ["10.1/ZERO", "10.1/ZERO-B"]);
    assert_eq!(sorted(b"*").len(), values.len());
}

fn a_check_compares_the_index_with_the_records(engine: TestEngine) {
    let Some((_location, store)) = new_store(engine) else { return };
    build(&store, &["URL"]);
    put(&store, "10.1/a", "http://a");
    put(&store, "10.1/b", "http://b");
    assert_eq!(findings_of_index(&store), 0);
    let row = [&b"URL\0http://a\0\x01"[..], b"10.1/A"].concat();
    store
        .change(move |transaction| {
            transaction.tables.discard(crate::tables::StoreTable::Index, &row)?;
            transaction.raise_probe()
        })
        .unwrap();
    assert_eq!(findings_of_index(&store), 1);
    assert!(findings(&store).iter().any(StoreFinding::is_damage));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn what_is_found_is_what_a_look_at_every_record_finds(
        changes in proptest::collection::vec((0..6_u8, 0..4_u8, "[ab\0]{0,3}", "[ab]{0,2}"), 0..40),
        pattern in "[ab\0*]{0,4}", built_at in 0..40_usize, step in 1..4_usize,
    ) {
        let store = Store::in_memory(&StoreConfig::default(), true).unwrap();
        let mut expected: BTreeMap<String, [String; 2]> = BTreeMap::new();
        for (at, (name, action, first, second)) in changes.into_iter().enumerate() {
            if at >= built_at {
                store.index_step(&types(&["URL"]), step).unwrap();
            }
            let name = format!("10.1/{name}");
            let handle = name.clone().into_bytes();
            if action == 0 {
                expected.remove(&name);
                store.change(move |transaction| transaction.delete(&handle)).unwrap();
                continue;
            }
            expected.insert(name, [first.clone(), second.clone()]);
            store.change(move |transaction| {
                let values = [Value::new(1, b"URL", first.as_bytes()), Value::new(2, b"url", second.as_bytes())];
                let mut storage = Vec::new();
                transaction.put(&handle, Values::build(values, &mut storage))
            }).unwrap();
        }
        while store.index_step(&types(&["URL"]), step).unwrap() {}
        if let Ok(parsed) = ValuePattern::new(pattern.as_bytes()) {
            let matching = expected.iter().filter(|(_, values)| values.iter().any(|it| parsed.matches(it.as_bytes())));
            let matching: BTreeSet<String> = matching.map(|(name, _)| name.clone()).collect();
            let found = find(&store, pattern.as_bytes());
            prop_assert_eq!(found.len(), matching.len());
            prop_assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), matching);
            prop_assert_eq!(findings_of_index(&store), 0);
        }
    }
}
