//! What holds for a database only: several processes, and connections that are lost.

use super::*;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// The name of the database of `location`.
fn database(location: &TestLocation) -> String {
    let url = &location.config.postgres.url;
    url.trim_start_matches("postgresql:///").split('?').next().unwrap().to_owned()
}

/// Ends the connections of all stores in the database of `location`.
fn end_connections(server: &PostgresServer, location: &TestLocation) {
    let database = database(location);
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
    let Some(location) = new_location(TestEngine::Postgres) else { return };
    let missing = Store::open(&location.config).unwrap_err();
    assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
    drop(Store::create(&location.config, true).unwrap());
    assert!(matches!(Store::create(&location.config, true).unwrap_err(), StoreError::Exists(_)));
    let store = Store::open_to_read(&location.config).unwrap();
    let refused = store.home(b"10.1").unwrap_err();
    assert!(refused.to_string().contains("opened for reading"), "{refused}");
    let server = PostgresServer::shared().unwrap();
    let newer = "UPDATE handle_meta SET value = '\\x00000000000000ff' WHERE key = 'schema'";
    server.psql(&database(&location), newer);
    let newer = Store::open(&location.config).unwrap_err();
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
    let Some((location, first)) = new_store(TestEngine::Postgres) else { return };
    let second = Store::open(&location.config).unwrap();
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
    let Some((location, store)) = new_store(TestEngine::Postgres) else { return };
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
            end_connections(PostgresServer::shared().unwrap(), &location);
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

fn holder(id: u64) -> LeaseHolder {
    LeaseHolder { id, host: format!("host{id}") }
}

#[test]
fn a_lease_has_one_holder_and_its_epoch_grows_with_each_change() {
    let Some((location, store)) = new_store(TestEngine::Postgres) else { return };
    let lease = |id, length| store.publish_lease(holder(id), length).unwrap();
    let epoch = |turn| match turn {
        LeaseTurn::Held { epoch, .. } => Some(epoch),
        LeaseTurn::Elsewhere { .. } => None,
    };
    let long = Duration::from_secs(600);
    let (mut first, mut second) = (lease(1, long), lease(2, long));
    let before = std::time::Instant::now();
    let held = first.hold(0).unwrap();
    assert!(matches!(held, LeaseTurn::Held { epoch: 1, until } if until >= before + long), "{held:?}");
    assert_eq!(second.hold(0).unwrap(), LeaseTurn::Elsewhere { host: "host1".to_owned(), epoch: 1 });
    assert_eq!(epoch(first.hold(7).unwrap()), Some(1), "renewing it changes no epoch");
    second.release().unwrap();
    assert_eq!(epoch(second.hold(0).unwrap()), None, "only the holder releases it");
    first.release().unwrap();
    assert_eq!(epoch(second.hold(0).unwrap()), Some(2));
    second.release().unwrap();
    assert_eq!(epoch(first.hold(10).unwrap()), Some(11), "above what the set has");
    first.release().unwrap();
    // Over by itself, also while the connections of the holder are lost.
    let mut short = lease(3, Duration::from_millis(300));
    assert_eq!(epoch(short.hold(0).unwrap()), Some(12));
    end_connections(PostgresServer::shared().unwrap(), &location);
    let since = std::time::Instant::now();
    let taken = loop {
        if let Ok(LeaseTurn::Held { epoch, .. }) = second.hold(0) {
            break epoch;
        }
        std::thread::yield_now();
    };
    assert!(taken == 13 && since.elapsed() >= Duration::from_millis(200), "{taken} {:?}", since.elapsed());
}

#[test]
fn of_two_processes_that_want_a_lease_at_once_one_gets_it() {
    const RACES: u64 = 1000;
    let Some((location, store)) = new_store(TestEngine::Postgres) else { return };
    let other = Store::open(&location.config).unwrap();
    let long = Duration::from_secs(600);
    let leases =
        [store.publish_lease(holder(1), long).unwrap(), other.publish_lease(holder(2), long).unwrap()];
    let barrier = std::sync::Barrier::new(2);
    let won = std::thread::scope(|scope| {
        let racers = leases.map(|mut lease| {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut won = Vec::new();
                for _ in 0..RACES {
                    barrier.wait();
                    if let LeaseTurn::Held { epoch, .. } = lease.hold(0).unwrap() {
                        won.push(epoch);
                    }
                    barrier.wait();
                    lease.release().unwrap();
                }
                won
            })
        });
        racers.map(|racer| racer.join().unwrap())
    });
    let mut epochs = won.concat();
    epochs.sort_unstable();
    assert_eq!(epochs, (1..=RACES).collect::<Vec<_>>(), "one winner of each race");
    println!("{} and {} races won", won[0].len(), won[1].len());
}

#[test]
fn stores_of_schema_1_get_the_tables_of_later_ones() {
    let Some((location, store)) = new_store(TestEngine::Postgres) else { return };
    put(&store, "10.1/a", "x");
    drop(store);
    let server = PostgresServer::shared().unwrap();
    let older = "DROP TABLE handle_index, handle_imports, handle_leases, handle_challenges, handle_pulls, \
                 handle_sessions; \
                 UPDATE handle_meta SET value = '\\x0000000000000001' WHERE key = 'schema'";
    server.psql(&database(&location), older);
    for _ in 0..2 {
        let store = Store::open(&location.config).unwrap();
        assert_eq!(data(&store.snapshot().unwrap(), b"10.1/A").unwrap(), b"x");
        let mut lease = store.publish_lease(holder(1), Duration::from_secs(600)).unwrap();
        assert!(matches!(lease.hold(0).unwrap(), LeaseTurn::Held { epoch: 1, .. }));
        store.change(|transaction| transaction.set_pull_position("source", b"here")).unwrap();
    }
    let schema = "SELECT encode(value, 'hex') FROM handle_meta WHERE key = 'schema'";
    assert_eq!(server.psql(&database(&location), schema), format!("{:016x}", 4));
}

/// A row of a session, with the version, its facts and its counters.
fn stored(version: i64, facts: &[u8], counters: &[u8]) -> StoredSession {
    StoredSession { version, facts: facts.to_vec(), counters: counters.to_vec() }
}

#[test]
fn a_session_is_changed_by_whoever_knows_its_version_until_its_time_is_over() {
    let Some((location, store)) = new_store(TestEngine::Postgres) else { return };
    let other = Store::open(&location.config).unwrap();
    let (here, there) = (store.stored_sessions().unwrap(), other.stored_sessions().unwrap());
    assert_eq!(here.read(3).unwrap(), None);
    assert!(here.insert(3, &stored(7, b"facts", b"c1"), 600).unwrap());
    assert!(!there.insert(3, &stored(1, b"others", b"c"), 600).unwrap(), "the number is in use");
    assert_eq!(there.read(3).unwrap(), Some(stored(7, b"facts", b"c1")));
    assert!(there.change(3, 7, b"c2", None, Some(600)).unwrap());
    assert!(!here.change(3, 7, b"c3", Some(b"others"), None).unwrap(), "another version by now");
    assert!(here.change(3, 8, b"c3", Some(b"more facts"), None).unwrap());
    assert_eq!(there.read(3).unwrap(), Some(stored(9, b"more facts", b"c3")));
    // A session whose time is over is neither read nor changed.
    assert!(here.insert(7, &stored(0, b"facts", b"c"), 600).unwrap());
    assert!(here.insert(11, &stored(0, b"facts", b"c"), 0).unwrap());
    assert!(here.change(7, 0, b"c", None, Some(0)).unwrap());
    assert_eq!((there.read(7).unwrap(), there.read(11).unwrap()), (None, None));
    assert!(!there.change(7, 1, b"c", None, Some(600)).unwrap());
    assert_eq!((there.expire().unwrap(), there.expire().unwrap()), (2, 0));
    assert_eq!((here.remove(&[3, 7, 11]).unwrap(), there.remove(&[3]).unwrap()), (1, 0));
    assert!(!there.change(3, 9, b"c", None, None).unwrap());
}

#[test]
fn of_processes_that_change_a_session_at_once_one_does_each_time() {
    const CHANGES: i64 = 500;
    let Some((location, store)) = new_store(TestEngine::Postgres) else { return };
    let other = Store::open(&location.config).unwrap();
    let sessions = [store.stored_sessions().unwrap(), other.stored_sessions().unwrap()];
    assert!(sessions[0].insert(3, &stored(0, b"facts", b"c"), 600).unwrap());
    let changed: Vec<i64> = std::thread::scope(|scope| {
        let racers = sessions.map(|sessions| {
            scope.spawn(move || {
                let change = |&version: &i64| sessions.change(3, version, b"c", None, Some(600)).unwrap();
                // Each version is waited for, so that both try to change it.
                let wait = |&version: &i64| {
                    while sessions.read(3).unwrap().unwrap().version < version {
                        std::thread::yield_now();
                    }
                };
                (0..CHANGES).inspect(wait).filter(change).collect::<Vec<_>>()
            })
        });
        racers.into_iter().flat_map(|racer| racer.join().unwrap()).collect()
    });
    let mut sorted = changed;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..CHANGES).collect::<Vec<_>>());
}

#[test]
fn what_another_process_has_changed_is_known_after_catching_up() {
    let Some((mut location, first)) = new_store(TestEngine::Postgres) else { return };
    location.config.postgres.poll_ms = 60_000;
    let second = Store::open(&location.config).unwrap();
    put(&first, "10.1/a", "x");
    first.renew_identity().unwrap();
    assert!(second.last_id() == 0 && second.identity() != first.identity());
    second.catch_up().unwrap();
    assert_eq!((second.last_id(), second.identity()), (1, first.identity()));
    let promoted = first.promote(100, 0, |_| Ok(())).unwrap();
    second.catch_up().unwrap();
    assert_eq!((second.renumbered(1), second.last_id()), (promoted, promoted));
    let probes = [&first, &second].map(|store| store.change(|it| it.raise_probe()).unwrap());
    assert_eq!(probes, [1, 2], "each process raises the number");
}
