//! A store that is moved takes its changes with it, from one engine to another and to the same.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64};

over_engines! {
    a_store_is_moved_with_all_that_it_has,
    a_move_goes_on_after_an_interruption_and_after_an_import,
    changes_during_a_move_are_in_the_copy_or_refused,
    a_location_with_another_store_is_refused,
    a_move_that_was_killed_when_it_had_made_the_tables_begins_again,
}

/// An engine that is not `engine`, if it is installed; the other one gets tested from there.
fn other_location(engine: TestEngine) -> Option<TestLocation> {
    new_location(match engine {
        TestEngine::Embedded => TestEngine::Postgres,
        TestEngine::Postgres => TestEngine::Embedded,
    })
}

/// Everything that a snapshot shows.
fn content(store: &Store) -> Vec<String> {
    let snapshot = store.snapshot().unwrap();
    let mut lines = Vec::new();
    for stored in snapshot.records().unwrap() {
        let stored = stored.unwrap();
        lines.push(format!("{:?} {:?}", stored, stored.as_bytes()));
    }
    lines.extend(snapshot.log_after(0).unwrap().map(|entry| format!("{:?}", entry.unwrap())));
    lines.extend(snapshot.homed_dates().unwrap().iter().map(|it| format!("{it:?}")));
    lines.extend(snapshot.homed().unwrap().iter().map(|it| format!("{it:?}")));
    for kind in [RemovalKind::Handle, RemovalKind::Prefix] {
        let removals = snapshot.removals_after(kind, None).unwrap();
        lines.extend(removals.map(|removal| format!("{:?}", removal.unwrap())));
    }
    lines.push(format!("{:?} {:?} {}", store.position(), store.stats().unwrap(), snapshot.probe().unwrap()));
    lines
}

fn delete(store: &Store, handle: &'static [u8]) {
    assert!(store.change(move |transaction| transaction.delete(handle)).unwrap());
}

fn fill(store: &Store) {
    store.home(b"10.1").unwrap();
    store.home(b"10.2").unwrap();
    for number in 0..50 {
        put(store, &format!("10.1/{number:02}"), "first");
    }
    delete(store, b"10.1/07");
    store.change(|transaction| transaction.unhome(b"10.2")).unwrap();
}

fn a_store_is_moved_with_all_that_it_has(engine: TestEngine) {
    let (Some((_location, store)), Some(to)) = (new_store(engine), other_location(engine)) else { return };
    fill(&store);
    store.change(|transaction| transaction.set_mirror_position("primary", b"here", false)).unwrap();
    store.change(|transaction| transaction.set_pull_position("source", b"there")).unwrap();
    while store.index_step(&["URL".to_owned()], 100).unwrap() {}
    let mut moving = StoreMove::begin(&store, &to.config).unwrap();
    assert_eq!(moving.step(|_| true).unwrap(), Some(0));
    put(&store, "10.1/00", "second");
    put(&store, "10.1/07", "again");
    put(&store, "10.1/new", "new");
    delete(&store, b"10.1/08");
    store.home(b"10.2").unwrap();
    store.home(b"10.3").unwrap();
    store.change(|transaction| transaction.unhome(b"10.1")).unwrap();
    store.prune_log(LogBounds { before_unix_ms: 0, transactions_max: Some(20) }, 1000).unwrap();
    let summary = moving.finish().unwrap();
    assert_eq!((summary.records, summary.last_transaction), (50, store.last_id()));
    let refused = store.home(b"10.9").unwrap_err();
    assert!(matches!(refused, StoreError::Moved), "{refused}");
    let before = content(&store);
    let moved = Store::open(&to.config).unwrap();
    assert_eq!(content(&moved), before);
    assert_eq!(findings(&moved).iter().filter(|finding| finding.is_damage()).count(), 0);
    let position = moved.change(|transaction| transaction.mirror_position("primary")).unwrap();
    assert_eq!(position.unwrap(), b"here");
    let position = moved.change(|transaction| transaction.pull_position("source")).unwrap();
    assert_eq!(position.unwrap(), b"there");
    assert_eq!(moved.index_progress().unwrap(), [], "it is built again");
    let config = store.inner.config.clone();
    drop((store, moved));
    // As if the process had ended before the last step.
    let engine = StoreEngine::open(&to.config, false).unwrap();
    let begun = engine.begin_write().unwrap();
    let (name, level) = (names::COPY_STATE.as_bytes(), 3_u64.to_be_bytes());
    begun.tables().unwrap().insert(crate::tables::StoreTable::Meta, name, &level).unwrap();
    begun.commit().unwrap();
    drop(engine);
    assert!(matches!(Store::open(&to.config).unwrap_err(), StoreError::UnfinishedCopy(_)));
    assert!(Store::finish_move(&config, &to.config).unwrap());
    assert!(!Store::finish_move(&config, &to.config).unwrap(), "once");
    let moved = Store::open(&to.config).unwrap();
    put(&moved, "10.1/00", "third");
    let reopened = Store::open(&config).unwrap_err();
    assert!(matches!(reopened, StoreError::Moved), "{reopened}");
    assert_eq!(content(&Store::open_to_read(&config).unwrap()), before, "for looking");
}

fn a_move_goes_on_after_an_interruption_and_after_an_import(engine: TestEngine) {
    let (Some((location, store)), Some(to)) = (new_store(engine), other_location(engine)) else { return };
    fill(&store);
    let long = "x".repeat(1 << 20);
    for number in 0..20 {
        put(&store, &format!("10.1/long-{number}"), &long);
    }
    // In the middle of the snapshot.
    let mut moving = StoreMove::begin(&store, &to.config).unwrap();
    assert_eq!(moving.step(|_| false).unwrap(), None);
    drop(moving);
    put(&store, "10.1/00", "second");
    let mut moving = StoreMove::begin(&store, &to.config).unwrap();
    assert_eq!(moving.step(|_| true).unwrap(), Some(0), "it begins again");
    drop(moving);
    let opened = Store::open(&to.config).unwrap_err();
    assert!(matches!(opened, StoreError::UnfinishedCopy(_)), "{opened}");
    delete(&store, b"10.1/01");
    let mut moving = StoreMove::begin(&store, &to.config).unwrap();
    assert_eq!(moving.step(|_| panic!("it is not copied again")).unwrap(), Some(0));
    // The log has no entries for these.
    let mut bulk = store.bulk(location.path(), 1 << 20);
    let mut storage = Vec::new();
    bulk.add(b"10.1/bulk", Values::build([Value::new(1, b"URL", b"x")], &mut storage)).unwrap();
    bulk.finish(|_| ()).unwrap();
    moving.finish().unwrap();
    let before = content(&store);
    drop(store);
    assert_eq!(content(&Store::open(&to.config).unwrap()), before);
}

fn changes_during_a_move_are_in_the_copy_or_refused(engine: TestEngine) {
    let (Some((_location, store)), Some(to)) = (new_store(engine), other_location(engine)) else { return };
    fill(&store);
    let (stop, accepted) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::SeqCst) {
                let handle = format!("10.1/W-{number}").into_bytes();
                let put = move |transaction: &mut Transaction<'_>| {
                    let mut storage = Vec::new();
                    transaction.put(&handle, Values::build([Value::new(1, b"URL", b"w")], &mut storage))
                };
                match store.change(put) {
                    Ok(()) => accepted.store(number + 1, Ordering::SeqCst),
                    Err(StoreError::Moved) => return,
                    Err(error) => panic!("{error}"),
                }
                number += 1;
            }
        });
        while accepted.load(Ordering::SeqCst) < 20 {
            std::thread::yield_now();
        }
        StoreMove::begin(&store, &to.config).unwrap().finish().unwrap();
        writer.join().unwrap();
        stop.store(true, Ordering::SeqCst);
    });
    let moved = Store::open(&to.config).unwrap();
    let snapshot = moved.snapshot().unwrap();
    let count = accepted.load(Ordering::SeqCst);
    for number in 0..count {
        assert!(snapshot.record(format!("10.1/W-{number}").as_bytes()).unwrap().is_some(), "{number}");
    }
    assert!(snapshot.record(format!("10.1/W-{count}").as_bytes()).unwrap().is_none());
    assert_eq!(content(&moved), content(&store));
}

fn a_move_that_was_killed_when_it_had_made_the_tables_begins_again(engine: TestEngine) {
    let (Some((_location, store)), Some(to)) = (new_store(engine), new_location(engine)) else { return };
    fill(&store);
    // What a move makes first: there is no moment at which the tables are without the mark.
    drop(StoreMove::create(&to.config, store.folds()).unwrap());
    let opened = Store::open(&to.config).unwrap_err();
    assert!(matches!(opened, StoreError::UnfinishedCopy(_)), "{opened}");
    let mut moving = StoreMove::begin(&store, &to.config).unwrap();
    while moving.step(|_| true).unwrap() != Some(0) {}
    moving.finish().unwrap();
    assert_eq!(content(&Store::open(&to.config).unwrap()), content(&store));
}

#[test]
fn a_move_takes_a_file_that_was_never_used() {
    let new = || new_store(TestEngine::Embedded).unwrap();
    let ((_location, store), (to, made)) = (new(), new());
    fill(&store);
    drop(made);
    let mut moving = StoreMove::begin(&store, &to.config).unwrap();
    while moving.step(|_| true).unwrap() != Some(0) {}
    moving.finish().unwrap();
    assert_eq!(content(&Store::open(&to.config).unwrap()), content(&store));
}

fn a_location_with_another_store_is_refused(engine: TestEngine) {
    let (Some((_location, store)), Some((other, third))) = (new_store(engine), new_store(engine)) else {
        return;
    };
    third.home(b"10.3").unwrap();
    drop(third);
    let refused = StoreMove::begin(&store, &other.config).unwrap_err();
    assert!(matches!(refused, StoreError::Exists(_)), "{refused}");
    let Some(to) = other_location(engine) else { return };
    fill(&store);
    let mut moving = StoreMove::begin(&store, &to.config).unwrap();
    moving.step(|_| true).unwrap();
    drop(moving);
    let third = Store::open(&other.config).unwrap();
    let refused = StoreMove::begin(&third, &to.config).unwrap_err();
    assert!(matches!(refused, StoreError::OtherCopy), "{refused}");
    assert!(!Store::finish_move(&other.config, &to.config).unwrap_or(false), "nothing is left to finish");
}
