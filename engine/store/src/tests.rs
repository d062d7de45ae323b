//! Tests of the public interface: acknowledged changes are stored, and nothing else.

mod bulk;
mod damage;
mod dates;
mod disk_failures;
mod index;
#[path = "../../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod needs;
mod postgres;
#[path = "../../../tests/src/postgres_server.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod postgres_server;
mod pulled;
mod relocate;

use super::*;
use handle_proto::{Value, Values};
use postgres_server::PostgresServer;
use std::sync::Arc;
use tempfile::TempDir;

/// Bounds of a log without transactions.
const ALL: LogBounds = LogBounds { before_unix_ms: u64::MAX, transactions_max: None };

/// How commits in a file are made: `quick_repair` and `quick_repair_bytes`.
pub(crate) type CommitKind = (bool, u64);

/// The map of free pages is written with each commit.
pub(crate) const QUICK: CommitKind = (true, u64::MAX);
/// Each commit is synced before it becomes the last one, as in a large file.
pub(crate) const SYNCED_TWICE: CommitKind = (true, 0);
/// Each commit is synced once.
pub(crate) const SYNCED_ONCE: CommitKind = (false, 0);
pub(crate) const COMMIT_KINDS: [CommitKind; 3] = [QUICK, SYNCED_TWICE, SYNCED_ONCE];

/// The configuration of a file with commits of this kind.
pub(crate) fn committing((quick_repair, quick_repair_bytes): CommitKind, file: &Path) -> StoreConfig {
    StoreConfig { quick_repair, quick_repair_bytes, ..StoreConfig::at(file) }
}

/// The engine that a test runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestEngine {
    Embedded,
    Postgres,
}

/// A directory for files, and the store of a test.
pub(crate) struct TestLocation {
    directory: TempDir,
    pub(crate) config: StoreConfig,
}

impl TestLocation {
    fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn config(location: &TestLocation) -> StoreConfig {
    location.config.clone()
}

/// A location for a store; `None` if the engine is not installed.
fn new_location(engine: TestEngine) -> Option<TestLocation> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.redb");
    let config = match engine {
        TestEngine::Embedded => StoreConfig { cache_bytes: 4 << 20, ..StoreConfig::at(&file) },
        TestEngine::Postgres => {
            let url = PostgresServer::shared()?.new_database();
            let mut config = StoreConfig::at(Path::new(&url));
            config.postgres.connections = 4;
            config
        }
    };
    Some(TestLocation { directory, config })
}

/// An empty store; `None` if the engine is not installed.
pub(crate) fn new_store(engine: TestEngine) -> Option<(TestLocation, Store)> {
    let location = new_location(engine)?;
    let store = Store::create(&location.config, true).unwrap();
    Some((location, store))
}

/// Makes tests of functions that take an engine.
macro_rules! over_engines {
    ($($test:ident,)*) => {
        mod over_file {
            $(#[test] fn $test() { super::$test(crate::tests::TestEngine::Embedded); })*
        }
        mod over_postgres {
            $(#[test] fn $test() { super::$test(crate::tests::TestEngine::Postgres); })*
        }
    };
}
pub(crate) use over_engines;

over_engines! {
    acknowledged_changes_survive_reopening,
    a_snapshot_does_not_change,
    concurrent_changes_share_commits_and_none_is_lost,
    a_refused_change_is_isolated_and_a_partial_change_stops_the_store,
    a_panic_of_the_writer_is_reported,
    each_changed_handle_is_returned_once_with_its_current_record,
    waiting_for_a_change_ends_when_it_is_durable,
    each_change_of_a_record_is_later_than_the_one_before,
    bulk_import_takes_any_order_and_marks_everything_as_changed,
    handles_under_a_prefix_are_listed_in_pages,
    a_check_finds_inconsistencies,
    statistics_are_kept_without_counting,
}

fn put(store: &Store, handle: &str, data: &str) {
    let (handle, data) = (key(handle.as_bytes(), true), data.to_owned());
    let put = move |transaction: &mut Transaction<'_>| {
        let mut storage = Vec::new();
        transaction.put(&handle, Values::build([Value::new(1, b"URL", data.as_bytes())], &mut storage))
    };
    store.change(put).unwrap();
}

fn data(snapshot: &StoreSnapshot, handle: &[u8]) -> Option<Vec<u8>> {
    let record = snapshot.record(handle).unwrap()?;
    Some(record.view().value(1).unwrap().data.to_vec())
}

fn findings(store: &Store) -> Vec<StoreFinding> {
    let mut findings = Vec::new();
    store.check(|finding| findings.push(finding)).unwrap();
    findings
}

fn acknowledged_changes_survive_reopening(engine: TestEngine) {
    let Some((directory, store)) = new_store(engine) else { return };
    store.home(b"10.1").unwrap();
    put(&store, "10.1/a", "one");
    put(&store, "10.1/A", "two");
    put(&store, "10.1/b", "three");
    assert!(store.change(|transaction| transaction.delete(b"10.1/B")).unwrap());
    assert!(!store.change(|transaction| transaction.delete(b"10.1/B")).unwrap());
    drop(store);
    let store = Store::open(&config(&directory)).unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!((store.last_id(), snapshot.last_id().unwrap()), (5, 5));
    assert_eq!(data(&snapshot, b"10.1/A").unwrap(), b"two");
    assert_eq!(data(&snapshot, b"10.1/B"), None);
    let log: Vec<_> = snapshot.log_after(0).unwrap().map(Result::unwrap).collect();
    let logged: Vec<_> = log.iter().map(|entry| (entry.id, entry.action, entry.handle.as_slice())).collect();
    let (a, b) = (&b"10.1/A"[..], &b"10.1/B"[..]);
    let expected = [
        (1, LogAction::Home, &b"0.NA/10.1"[..]),
        (2, LogAction::Create, a),
        (3, LogAction::Update, a),
        (4, LogAction::Create, b),
        (5, LogAction::Delete, b),
    ];
    assert_eq!(logged, expected);
    assert_eq!(findings(&store), []);
}

#[test]
fn a_second_process_is_refused_and_so_are_missing_and_existing_files() {
    let (directory, store) = new_store(TestEngine::Embedded).unwrap();
    let config = config(&directory);
    let error = Store::open(&config).unwrap_err();
    assert!(matches!(error, StoreError::Locked(_)), "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(store);
    Store::open(&config).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&config.file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "secrets are in it");
    assert!(matches!(Store::create(&config, true).unwrap_err(), StoreError::Exists(_)));
    let elsewhere = StoreConfig::at(&directory.path().join("elsewhere"));
    assert!(matches!(Store::open(&elsewhere).unwrap_err(), StoreError::Missing(_)));
}

fn a_snapshot_does_not_change(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    put(&store, "10.1/a", "old");
    let before = store.snapshot().unwrap();
    put(&store, "10.1/a", "new");
    assert_eq!(data(&before, b"10.1/A").unwrap(), b"old");
    assert_eq!(data(&store.snapshot().unwrap(), b"10.1/A").unwrap(), b"new");
}

fn concurrent_changes_share_commits_and_none_is_lost(engine: TestEngine) {
    const THREADS: usize = 8;
    const CHANGES: usize = 50;
    let Some((_directory, store)) = new_store(engine) else { return };
    let store = Arc::new(store);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || (0..CHANGES).for_each(|n| put(store, &format!("10.1/{thread}-{n}"), "x")));
        }
    });
    let CommitCounts { commits, changes } = store.commits();
    assert_eq!(changes, (THREADS * CHANGES) as u64);
    assert!(commits <= changes);
    assert_eq!(store.stats().unwrap().records, (THREADS * CHANGES) as u64);
    assert_eq!(store.last_id(), (THREADS * CHANGES) as u64);
    assert_eq!(store.waiting(), 0);
}

fn a_refused_change_is_isolated_and_a_partial_change_stops_the_store(engine: TestEngine) {
    let Some((directory, store)) = new_store(engine) else { return };
    let refused = store.change(|_| Err::<(), _>(StoreError::Damaged("this one")));
    assert!(matches!(refused, Err(StoreError::Damaged(_))));
    put(&store, "10.1/a", "x");
    let half = store.change(|transaction| {
        transaction.delete(b"10.1/A")?;
        Err::<(), _>(StoreError::Damaged("after half of it"))
    });
    assert!(matches!(half, Err(StoreError::Failed)));
    assert!(store.failure().is_some());
    assert!(matches!(store.home(b"10.1"), Err(StoreError::Failed)));
    drop(store);
    let store = Store::open(&config(&directory)).unwrap();
    assert!(data(&store.snapshot().unwrap(), b"10.1/A").is_some(), "half a change was not made");
}

fn a_panic_of_the_writer_is_reported(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    let failed = store.change(|_| -> Result<(), StoreError> { panic!("a bug, for this test") });
    assert!(matches!(failed, Err(StoreError::Failed)));
    assert_eq!(
        store.wait_past(0, Duration::from_secs(600)),
        0,
        "no wait for a transaction that does not come"
    );
    assert!(store.failure().is_some());
}

fn each_changed_handle_is_returned_once_with_its_current_record(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    put(&store, "10.1/a", "one");
    put(&store, "10.1/b", "one");
    put(&store, "10.1/a", "two");
    store.change(|transaction| transaction.delete(b"10.1/B")).unwrap();
    store.home(b"10.1").unwrap();
    let snapshot = store.snapshot().unwrap();
    let changes = |after, most| match snapshot.changes_after(after, most).unwrap() {
        StoreChanges::Everything => panic!("the log is complete"),
        StoreChanges::These { to, has_more, homed, handles } => {
            let names = handles.iter().map(|it| {
                let name = String::from_utf8(it.handle.clone()).unwrap();
                (name, it.record.as_ref().map(|record| record.view().value(1).unwrap().data.to_vec()))
            });
            (to, has_more, homed, names.collect::<Vec<_>>())
        }
    };
    let (a, b) = (("10.1/A".to_owned(), Some(b"two".to_vec())), ("10.1/B".to_owned(), None));
    assert_eq!(changes(0, 100), (5, false, true, vec![a.clone(), b.clone()]));
    assert_eq!(changes(0, 1), (1, true, false, vec![a.clone()]));
    assert_eq!(changes(3, 1), (4, true, false, vec![b]));
    assert_eq!(changes(5, 100), (5, false, false, vec![]));
    assert_eq!(
        snapshot.changes_after(6, 100).unwrap(),
        StoreChanges::Everything,
        "a number that was never given"
    );
    assert_eq!(store.prune_log(ALL, 2).unwrap(), 2);
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.changes_after(1, 100).unwrap(), StoreChanges::Everything);
    assert!(matches!(snapshot.changes_after(2, 100).unwrap(), StoreChanges::These { to: 5, .. }));
    assert_eq!(
        store.prune_log(LogBounds { before_unix_ms: 0, transactions_max: None }, 100).unwrap(),
        0,
        "none is so old"
    );
    assert_eq!(findings(&store), []);
}

fn waiting_for_a_change_ends_when_it_is_durable(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    assert_eq!(store.wait_past(0, Duration::ZERO), 0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| store.wait_past(0, Duration::from_secs(600)));
        store.home(b"10.1").unwrap();
        assert_eq!(waits.join().unwrap(), 1);
    });
}

fn each_change_of_a_record_is_later_than_the_one_before(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    let mut last = 0;
    for n in 0..20 {
        put(&store, "10.1/a", &n.to_string());
        let record = store.snapshot().unwrap().record(b"10.1/A").unwrap().unwrap();
        assert!(record.view().unix_ms > last);
        assert_eq!(record.view().id, n + 1);
        last = record.view().unix_ms;
    }
}

fn bulk_import_takes_any_order_and_marks_everything_as_changed(engine: TestEngine) {
    let Some((directory, store)) = new_store(engine) else { return };
    put(&store, "10.1/old", "kept");
    for (keeps, shown) in [(true, "kept"), (false, "7")] {
        let before = store.last_id();
        // Little memory, so that the sorter writes many runs.
        let mut bulk = store.bulk(directory.path(), 500);
        bulk.home(b"10.1");
        if keeps {
            bulk = bulk.keep_existing();
        }
        let mut storage = Vec::new();
        for n in (0..100_u32).rev().chain([7]) {
            let handle = if n == 7 { "10.1/Old".to_owned() } else { format!("10.1/x{n}") };
            let data = n.to_string();
            bulk.add(
                handle.as_bytes(),
                Values::build([Value::new(1, b"URL", data.as_bytes())], &mut storage),
            )
            .unwrap();
        }
        let counts = bulk.finish(|_| ()).unwrap();
        let kept = u64::from(keeps);
        assert_eq!(counts, BulkCounts { written: 100 - kept, kept, resumed: 0 });
        let snapshot = store.snapshot().unwrap();
        assert_eq!(data(&snapshot, b"10.1/OLD").unwrap(), shown.as_bytes());
        assert_eq!(data(&snapshot, b"10.1/X99").unwrap(), b"99");
        assert_eq!(snapshot.changes_after(before, 100).unwrap(), StoreChanges::Everything);
        assert_eq!(findings(&store), []);
        put(&store, "10.1/old", "kept");
    }
    let names: Vec<_> =
        store.snapshot().unwrap().records().unwrap().map(|it| it.unwrap().handle().to_vec()).collect();
    assert!(names.is_sorted());
    assert_eq!(names.len(), 100);
}

fn handles_under_a_prefix_are_listed_in_pages(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    for handle in ["10.1/a", "10.1/b", "10.1/c", "10.10/a", "10.1", "10.0/z"] {
        put(&store, handle, "x");
    }
    let snapshot = store.snapshot().unwrap();
    let names = |after: Option<&[u8]>| -> Vec<Vec<u8>> {
        snapshot.records_under(b"10.1/", after).unwrap().map(|it| it.unwrap().handle().to_vec()).collect()
    };
    assert_eq!(names(None), [b"10.1/A", b"10.1/B", b"10.1/C"]);
    assert_eq!(names(Some(b"10.1/A")), [b"10.1/B", b"10.1/C"]);
    assert_eq!(names(Some(b"10.1/C")), Vec::<Vec<u8>>::new());
}

fn a_check_finds_inconsistencies(engine: TestEngine) {
    let Some((_directory, store)) = new_store(engine) else { return };
    let put_raw = |name: &'static [u8], indexes: &'static [i32]| {
        store
            .change(move |transaction| {
                let mut storage = Vec::new();
                let values = indexes.iter().map(|&index| Value::new(index, b"URL", b""));
                transaction.put(name, Values::build(values, &mut storage))
            })
            .unwrap();
    };
    store.home(b"10.1").unwrap();
    put_raw(b"10.1/lower", &[1]);
    put_raw(b"10.1/ZERO", &[0]);
    put_raw(b"10.1/TWICE", &[3, 3]);
    put_raw(b"10.2/ELSEWHERE", &[1]);
    let findings = findings(&store);
    assert!(findings.contains(&StoreFinding::WrongName(b"10.1/lower".to_vec())), "{findings:?}");
    assert!(findings.contains(&StoreFinding::NotHomed(b"10.2/ELSEWHERE".to_vec())), "{findings:?}");
    let unfit = findings.iter().filter(|it| matches!(it, StoreFinding::UnfitRecord(..))).count();
    assert_eq!((unfit, findings.len()), (2, 4), "{findings:?}");
    assert_eq!(findings.iter().filter(|it| !it.is_damage()).count(), 1);
}

/// The content of the store as it is kept, and as a check counts it.
fn kept_and_counted(store: &Store) -> [(u64, u64); 2] {
    let counted = store.check(|_| ()).unwrap();
    [store.stats().unwrap(), counted].map(|stats| (stats.values, stats.bytes))
}

fn statistics_are_kept_without_counting(engine: TestEngine) {
    let Some((directory, store)) = new_store(engine) else { return };
    assert_eq!(kept_and_counted(&store), [(0, 0); 2]);
    for number in 0..50 {
        put(&store, &format!("10.1/{number}"), &"x".repeat(number));
        put(&store, &format!("10.1/{}", number / 2), "y");
    }
    store.change(|transaction| transaction.delete(b"10.1/7")).unwrap();
    store.change(|transaction| transaction.delete(b"10.1/7")).unwrap();
    let mut bulk = store.bulk(directory.path(), 1 << 20);
    let mut storage = Vec::new();
    let values = [Value::new(1, b"URL", b"a"), Value::new(2, b"URL", b"b")];
    let values = Values::build(values, &mut storage);
    for handle in [&b"10.1/3"[..], b"10.1/BULK"] {
        bulk.add(handle, values).unwrap();
    }
    bulk.finish(|_| ()).unwrap();
    let [kept, counted] = kept_and_counted(&store);
    assert_eq!(kept, counted);
    assert_eq!(kept.0, 49 + 3, "one deleted, one more of two values, one that has two now");
}
