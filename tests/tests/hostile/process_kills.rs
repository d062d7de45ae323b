//! `handle-admin` killed at random moments under a load of changes: no acknowledged change is lost,
//! none is applied in part, and readers always find a complete set that is not older than before.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::publish::StorePublisher;
use handle_snapshot::set::manifest::Manifest;
use handle_snapshot::{EncodedRecord, LoadMode, PublishedSet, hash_key};
use handle_store::{Store, StoreConfig};
use handle_tests::kill_limits::{KEYS, WRITERS, key, publish_config};
use handle_tests::postgres_server::PostgresServer;
use handle_tests::process::RunningProcess;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of kills; `HANDLE_KILLS` overrides it.
const KILLS: u64 = 6;
/// Shortest and longest time until a kill, in milliseconds.
const LIFE_MS: std::ops::Range<u64> = 20..320;

/// The number in each record.
type State = BTreeMap<Vec<u8>, i64>;

/// The output of a keeper until it was killed.
#[derive(Default)]
struct KeeperOutput {
    /// The change of each writer that was not acknowledged.
    pending: [Option<(Vec<u8>, i64)>; WRITERS],
    acknowledged: usize,
    visible: u64,
}

/// Applies the acknowledged changes to `state`.
fn replay(text: &str, state: &mut State) -> KeeperOutput {
    let mut output = KeeperOutput::default();
    // The kill may have truncated the last line.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    for line in whole.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<i64>().unwrap();
        let small = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            "try" => output.pending[small(1)] = Some((key(small(1), small(2)), number(3))),
            "done" => {
                let (key, number) = output.pending[small(1)].take().expect("a change that was tried");
                apply(state, key, number);
                output.acknowledged += 1;
            }
            "shown" => output.visible = output.visible.max(words[1].parse().unwrap()),
            other => panic!("unknown output {other}"),
        }
    }
    output
}

fn apply(state: &mut State, key: Vec<u8>, number: i64) {
    if number < 0 {
        state.remove(&key);
    } else {
        state.insert(key, number);
    }
}

/// The number that both values of a record contain.
fn number<'a>(values: impl Iterator<Item = &'a [u8]>) -> i64 {
    let numbers: Vec<i64> = values.map(|data| std::str::from_utf8(data).unwrap().parse().unwrap()).collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1], "a partial record: {numbers:?}");
    numbers[0]
}

fn published_number(record: &EncodedRecord<'_>) -> i64 {
    number(record.values_in_order().map(|value| value.unwrap().data))
}

fn stored(store: &Store) -> State {
    let snapshot = store.snapshot().unwrap();
    let records = snapshot.records().unwrap().map(|stored| {
        let stored = stored.unwrap();
        (stored.handle().to_vec(), number(stored.record().unwrap().values.iter().map(|value| value.data)))
    });
    records.collect()
}

fn published(dir: &Path) -> (Manifest, State) {
    let set = PublishedSet::open(dir, LoadMode::Map).unwrap();
    set.verify().unwrap();
    let records = set.records();
    let mut state = State::new();
    for key in (0..WRITERS).flat_map(|writer| (0..KEYS).map(move |at| key(writer, at))) {
        if let Some(record) = records.find(hash_key(records.seed(), &key), &key).unwrap() {
            state.insert(key, published_number(&record));
        }
    }
    assert_eq!(set.handles_count(), state.len() as u64, "count of handles");
    (set.manifest().clone(), state)
}

/// Opens sets as `handled` does until `stop`; returns how many there were.
fn watch(dir: &Path, stop: &AtomicBool) -> u64 {
    let mut set = PublishedSet::open(dir, LoadMode::Map).unwrap();
    let transaction = |set: &PublishedSet| set.manifest().source.unwrap().transaction;
    let (mut sets, mut reads) = (1, 0);
    while !stop.load(Ordering::Relaxed) {
        let next = PublishedSet::reopen(&set).unwrap();
        assert!(transaction(&next) >= transaction(&set), "a set older than the one before");
        sets += u64::from(next.generation() > set.generation());
        set = next;
        let records = set.records();
        for _ in 0..20 {
            reads += 1;
            let key = key(reads % WRITERS, reads / WRITERS % KEYS);
            if let Some(record) = records.find(hash_key(records.seed(), &key), &key).unwrap() {
                published_number(&record);
            }
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    sets
}

/// Runs a keeper for a while, kills it, and returns its output.
fn run_and_kill(dir: &Path, store: &Path, round: u64) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keeper"));
    command.arg(dir).arg((round + 1).to_string()).arg(store).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut keeper = RunningProcess::start(command);
    let mut out = keeper.0.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        out.read_to_end(&mut output).unwrap();
        String::from_utf8(output).unwrap()
    });
    let span = LIFE_MS.end - LIFE_MS.start;
    let life = LIFE_MS.start + round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % span;
    std::thread::sleep(Duration::from_millis(life));
    keeper.signal("KILL");
    drop(keeper);
    reader.join().unwrap()
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_visible_becomes_older() {
    let directory = tempfile::tempdir().unwrap();
    kill_keepers(directory.path(), &directory.path().join("store"));
}

#[test]
fn nothing_acknowledged_is_lost_over_postgres_and_nothing_visible_becomes_older() {
    let Some(server) = PostgresServer::start(true) else { return };
    let directory = tempfile::tempdir().unwrap();
    kill_keepers(directory.path(), Path::new(&server.new_database()));
}

/// Kills processes that change the store at `location` and publish it to a set in `directory`.
fn kill_keepers(directory: &Path, location: &Path) {
    let kills = std::env::var("HANDLE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let set = directory.join("set");
    let config = StoreConfig::at(location);
    let store = Store::create(&config, true).unwrap();
    store.home(b"1").unwrap();
    let mut state = State::new();
    let catch_up = |store: Store| {
        let (last, store) = (store.last_id(), Arc::new(store));
        let publishing = StorePublisher::start(store, &publish_config(&set)).unwrap();
        assert!(publishing.wait_for(last, Duration::from_secs(60)), "{:?}", publishing.status());
    };
    catch_up(store);
    let stop = AtomicBool::new(false);
    let (mut changes, mut shown) = (0, 0);
    let sets = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&set, &stop));
        for round in 0..kills {
            let output = replay(&run_and_kill(directory, location, round), &mut state);
            changes += output.acknowledged;
            // The set is complete and has at least what the keeper has announced as visible.
            let (manifest, _) = published(&set);
            let visible = manifest.source.unwrap().transaction;
            assert!(
                visible >= output.visible.max(shown),
                "round {round}: {visible} after {} and {shown}",
                output.visible
            );
            shown = visible;
            // The store has all acknowledged changes, and pending ones completely or not at all.
            let store = Store::open(&config).unwrap();
            assert!(store.last_id() >= shown, "round {round}: published and not stored");
            let found = stored(&store);
            for (key, number) in output.pending.into_iter().flatten() {
                let mut done = state.clone();
                apply(&mut done, key.clone(), number);
                if found.get(&key) == done.get(&key) {
                    state = done;
                }
            }
            assert_eq!(found, state, "round {round}");
            let mut findings = 0;
            store
                .check(|finding| {
                    println!("round {round}: {finding:?}");
                    findings += 1;
                })
                .unwrap();
            assert_eq!(findings, 0, "round {round}");
            // The rest is published here, or by the next keeper.
            if round % 2 == 0 {
                catch_up(store);
                let (manifest, visible) = published(&set);
                assert_eq!(visible, state, "round {round}");
                shown = manifest.source.unwrap().transaction;
            }
        }
        stop.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    });
    println!("{kills} kills, {changes} changes acknowledged, {sets} sets seen");
    assert!(changes > 0 && sets > kills, "no change was interrupted");
}
