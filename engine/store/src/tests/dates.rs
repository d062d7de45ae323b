//! The dates of last changes and removals, and the bounds of the log.

use super::*;

over_engines! {
    every_change_of_a_handle_has_a_later_date_also_after_its_deletion,
    homed_and_released_prefixes_have_dates_as_well,
    the_oldest_removals_beyond_the_bound_are_dropped,
    the_log_keeps_its_bounds_and_the_time_from_which_it_is_complete,
    times_of_the_log_do_not_decrease_when_the_clock_is_set_back,
}

fn delete(store: &Store, handle: &[u8]) {
    let handle = handle.to_vec();
    assert!(store.change(move |transaction| transaction.delete(&handle)).unwrap());
}

fn removals(store: &Store) -> Vec<(RemovalKind, String, u64)> {
    let snapshot = store.snapshot().unwrap();
    let mut all = vec![];
    for kind in [RemovalKind::Handle, RemovalKind::Prefix] {
        for entry in snapshot.removals_after(kind, None).unwrap() {
            let (name, change) = entry.unwrap();
            assert_eq!(snapshot.removal(kind, &name).unwrap(), Some(change));
            all.push((kind, String::from_utf8(name).unwrap(), change.id));
        }
    }
    all
}

fn every_change_of_a_handle_has_a_later_date_also_after_its_deletion(engine: TestEngine) {
    let Some((directory, mut store)) = new_store(engine) else { return };
    let mut last_ms = 0;
    for round in 0..20 {
        put(&store, "10.1/a", "one");
        let put_ms = store.snapshot().unwrap().record(b"10.1/A").unwrap().unwrap().view().unix_ms;
        assert!(put_ms > last_ms, "round {round}");
        assert_eq!(removals(&store), []);
        delete(&store, b"10.1/A");
        let change = store.snapshot().unwrap().removal(RemovalKind::Handle, b"10.1/A").unwrap().unwrap();
        assert!(change.unix_ms > put_ms && change.id == store.last_id(), "round {round}");
        last_ms = change.unix_ms;
        if round == 10 {
            drop(store);
            store = Store::open(&config(&directory)).unwrap();
        }
    }
    assert_eq!(removals(&store), [(RemovalKind::Handle, "10.1/A".to_owned(), 40)]);
}

fn homed_and_released_prefixes_have_dates_as_well(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    store.home(b"10.1").unwrap();
    store.home(b"10.2").unwrap();
    assert!(store.change(|transaction| transaction.unhome(b"10.1")).unwrap());
    assert_eq!(removals(&store), [(RemovalKind::Prefix, "10.1".to_owned(), 3)]);
    let dates = store.snapshot().unwrap().homed_dates().unwrap();
    assert!(dates.len() == 1 && dates[0].0 == b"10.2" && dates[0].1.id == 2, "{dates:?}");
    let released = store.snapshot().unwrap().removal(RemovalKind::Prefix, b"10.1").unwrap().unwrap();
    store.home(b"10.1").unwrap();
    assert_eq!(removals(&store), []);
    let dates = store.snapshot().unwrap().homed_dates().unwrap();
    assert!(dates.len() == 2 && dates[0].1.unix_ms > released.unix_ms, "{dates:?}");
}

fn the_oldest_removals_beyond_the_bound_are_dropped(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    for name in ["10.1/c", "10.1/a", "10.1/d", "10.1/b"] {
        put(&store, name, "x");
        delete(&store, &key(name.as_bytes(), true));
    }
    assert_eq!(store.prune_removals(4, 100).unwrap(), 0);
    assert_eq!(store.prune_removals(2, 1).unwrap(), 1);
    assert_eq!(store.prune_removals(2, 100).unwrap(), 1);
    let names: Vec<_> = removals(&store).into_iter().map(|(_, name, _)| name).collect();
    assert_eq!(names, ["10.1/B", "10.1/D"]);
    assert_eq!(store.snapshot().unwrap().removals_count().unwrap(), 2);
    // The removal of a handle that exists again is dropped, and does not count.
    put(&store, "10.1/b", "x");
    assert_eq!(store.prune_removals(0, 100).unwrap(), 1);
    assert_eq!(removals(&store), []);
    let after: Vec<_> = {
        ["10.1/y", "10.1/x"].iter().for_each(|name| {
            put(&store, name, "x");
            delete(&store, &key(name.as_bytes(), true));
        });
        let snapshot = store.snapshot().unwrap();
        snapshot
            .removals_after(RemovalKind::Handle, Some(b"10.1/X"))
            .unwrap()
            .map(|it| it.unwrap().0)
            .collect()
    };
    assert_eq!(after, [b"10.1/Y"]);
}

/// Mirrors and readers of the log rely on the order of its times.
fn times_of_the_log_do_not_decrease_when_the_clock_is_set_back(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    put(&store, "10.1/before", "x");
    // As if the clock had been two hours ahead until now.
    let ahead_ms = handle_daemon::clock::now_unix_ms() + 7_200_000;
    store.promote(0, ahead_ms, |_| Ok(())).unwrap();
    put(&store, "10.1/after", "x");
    assert!(store.home(b"10.2").unwrap());
    delete(&store, b"10.1/BEFORE");
    let entries: Vec<_> = store.snapshot().unwrap().log_after(0).unwrap().map(Result::unwrap).collect();
    assert!(entries.is_sorted_by_key(|entry| entry.unix_ms), "{entries:?}");
    let last = entries.last().unwrap();
    assert!(last.unix_ms >= ahead_ms, "{last:?}");
    assert_eq!(store.snapshot().unwrap().last_unix_ms().unwrap(), last.unix_ms);
}

fn the_log_keeps_its_bounds_and_the_time_from_which_it_is_complete(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    let start = || store.snapshot().unwrap().log_start().unwrap();
    assert_eq!(start(), LogStart { base: 0, unix_ms: None, anew: 0 });
    (0..10).for_each(|n| put(&store, &format!("10.1/{n}"), "x"));
    let entries: Vec<_> = store.snapshot().unwrap().log_after(0).unwrap().map(Result::unwrap).collect();
    assert_eq!(start(), LogStart { base: 0, unix_ms: Some(entries[0].unix_ms), anew: 0 });
    let bounds = |most| LogBounds { before_unix_ms: 0, transactions_max: Some(most) };
    assert_eq!(store.prune_log(bounds(10), 100).unwrap(), 0);
    assert_eq!(store.prune_log(bounds(4), 2).unwrap(), 2, "in steps");
    assert_eq!(store.prune_log(bounds(4), 100).unwrap(), 4);
    assert_eq!(start(), LogStart { base: 6, unix_ms: Some(entries[5].unix_ms + 1), anew: 0 });
    assert_eq!(store.prune_log(bounds(0), 100).unwrap(), 4);
    assert_eq!(start(), LogStart { base: 10, unix_ms: Some(entries[9].unix_ms + 1), anew: 0 });
    assert!(!findings(&store).iter().any(StoreFinding::is_damage));
    let directory = tempfile::tempdir().unwrap();
    let mut bulk = store.bulk(directory.path(), 1 << 20);
    bulk.home(b"10.1");
    bulk.finish(|_| ()).unwrap();
    let last_ms = store.snapshot().unwrap().last_unix_ms().unwrap();
    assert_eq!(
        start(),
        LogStart { base: store.last_id(), unix_ms: Some(last_ms + 1), anew: store.last_id() }
    );
}
