//! What holds for a database only: several processes, and connections that are lost.

use super::*;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// The name of the database of `place`.
fn database(place: &TestPlace) -> String {
    let url = &place.config.postgres.url;
    url.trim_start_matches("postgresql:///").split('?').next().unwrap().to_owned()
}

/// Ends the connections of all stores in the database of `place`.
fn end_connections(server: &PostgresServer, place: &TestPlace) {
    let database = database(place);
    let end =
        format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{database}'");
    server.psql("postgres", &end);
}

/// Every transaction in the log, which has no gap.
fn log(store: &Store) -> Vec<LogEntry> {
    let entries: Vec<_> = store.snapshot().unwrap().log_after(0).unwrap().map(Result::unwrap).collect();
    let numbers: Vec<_> = entries.iter().map(|entry| entry.id).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    entries
}

#[test]
fn databases_without_a_store_and_with_one_are_told_apart() {
    let Some(place) = new_place(TestEngine::Postgres) else { return };
    let missing = Store::open(&place.config).unwrap_err();
    assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
    drop(Store::create(&place.config, true).unwrap());
    assert!(matches!(Store::create(&place.config, true).unwrap_err(), StoreError::Exists(_)));
    let store = Store::open_to_read(&place.config).unwrap();
    let refused = store.home(b"10.1").unwrap_err();
    assert!(refused.to_string().contains("opened for reading"), "{refused}");
    let server = PostgresServer::shared().unwrap();
    let newer = "UPDATE handle_meta SET value = '\\x00000000000000ff' WHERE key = 'schema'";
    server.psql(&database(&place), newer);
    let newer = Store::open(&place.config).unwrap_err();
    assert!(matches!(newer, StoreError::Newer { found: 255, .. }), "{newer}");
}

#[test]
fn an_unreachable_server_is_named_with_what_to_try() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("postgresql:///handles?host={}&user=handle", directory.path().display());
    let error = Store::open(&StoreConfig::at(Path::new(&url))).unwrap_err().to_string();
    for part in ["cannot connect to the database handles at ", "pg_isready"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn changes_of_several_processes_follow_each_other_and_are_seen_by_all() {
    const CHANGES: u64 = 100;
    let Some((place, first)) = new_store(TestEngine::Postgres) else { return };
    let second = Store::open(&place.config).unwrap();
    std::thread::scope(|scope| {
        for (name, store) in [("a", &first), ("b", &second), ("c", &first), ("d", &second)] {
            scope.spawn(move || (0..CHANGES).for_each(|n| put(store, &format!("10.1/{name}{n}"), "x")));
        }
    });
    for store in [&first, &second] {
        assert_eq!(store.wait_past(4 * CHANGES - 1, Duration::from_secs(600)), 4 * CHANGES);
        let entries = log(store);
        assert_eq!(entries.len() as u64, 4 * CHANGES);
        assert!(entries.is_sorted_by_key(|entry| entry.unix_ms));
        for name in ["A", "B", "C", "D"] {
            let of_one = |entry: &&LogEntry| entry.handle.starts_with(format!("10.1/{name}").as_bytes());
            let names: Vec<_> = entries.iter().filter(of_one).map(|entry| entry.handle.clone()).collect();
            let expected = (0..CHANGES).map(|n| format!("10.1/{name}{n}").into_bytes());
            assert_eq!(names, expected.collect::<Vec<_>>(), "in the order of the client");
        }
        assert_eq!(store.stats().unwrap().records, 4 * CHANGES);
    }
}

#[test]
fn acknowledged_changes_are_there_and_once_when_connections_are_lost() {
    const LOSSES: usize = 100;
    let Some((place, store)) = new_store(TestEngine::Postgres) else { return };
    store.home(b"10.1").unwrap();
    let (is_over, acknowledged) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, is_over, acknowledged, refused) = (&store, &is_over, &acknowledged, &refused);
            scope.spawn(move || {
                for n in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    let handle = format!("10.1/{thread}-{n}").into_bytes();
                    let name = handle.clone();
                    let created = store.change(move |transaction| {
                        let mut storage = Vec::new();
                        let values = Values::build([Value::new(1, b"URL", b"x")], &mut storage);
                        transaction.put(&name, values)
                    });
                    match created {
                        Ok(()) => _ = acknowledged.lock().unwrap().insert(handle),
                        Err(StoreError::Server(_)) => _ = refused.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        for _ in 0..LOSSES {
            std::thread::sleep(Duration::from_millis(20));
            end_connections(PostgresServer::shared().unwrap(), &place);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(store.failure().is_none());
    let mut created = BTreeSet::new();
    for entry in log(&store) {
        assert!(entry.action == LogAction::Home || created.insert(entry.handle), "a change was made twice");
    }
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.is_subset(&created) && acknowledged.len() > LOSSES, "{}", acknowledged.len());
    assert!(created.len() - acknowledged.len() <= usize::try_from(refused.into_inner()).unwrap());
    assert_eq!(store.stats().unwrap().records, created.len() as u64);
    assert_eq!(findings(&store), []);
}
