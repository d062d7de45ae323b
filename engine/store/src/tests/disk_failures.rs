//! The store on a disk that fails or loses power: acknowledged changes are there, and none
//! partially.

use super::super::*;
use super::{COMMIT_KINDS, CommitKind, committing};
use crate::embedded::{EmbeddedStore, schema};
use crate::tables::StoreEngine;
use handle_proto::{Value, Values};
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

/// Number of bytes that a disk writes atomically.
const SECTOR_LEN: usize = 512;

/// A file in memory that loses unsynced writes.
#[derive(Clone, Debug, Default)]
struct FailingDisk(Arc<Mutex<DiskState>>);

#[derive(Debug, Default)]
struct DiskState {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// The writes since the last sync.
    unsynced: Vec<UnsyncedWrite>,
    steps: usize,
    fails: FailurePlan,
}

#[derive(Clone, Debug)]
enum UnsyncedWrite {
    Len(usize),
    Write(usize, Vec<u8>),
}

/// The steps that fail.
#[derive(Clone, Copy, Debug, Default)]
enum FailurePlan {
    #[default]
    None,
    /// One step: the disk was full, or failed for a moment.
    At(usize),
    /// All steps from this one on: the power failed.
    From(usize),
}

impl DiskState {
    fn step(&mut self) -> io::Result<()> {
        let fails = match self.fails {
            FailurePlan::None => false,
            FailurePlan::At(at) => self.steps == at,
            FailurePlan::From(at) => self.steps >= at,
        };
        self.steps += 1;
        if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// A possible content after the power failed.
    fn after_crash(&self, random: &mut impl FnMut() -> usize) -> Vec<u8> {
        let mut found = self.synced.clone();
        for change in &self.unsynced {
            match change {
                UnsyncedWrite::Len(len) if !random().is_multiple_of(3) => found.resize(*len, 0),
                UnsyncedWrite::Len(_) => {}
                UnsyncedWrite::Write(at, bytes) => {
                    for (nth, sector) in bytes.chunks(SECTOR_LEN).enumerate() {
                        let at = at + nth * SECTOR_LEN;
                        if !random().is_multiple_of(3) {
                            put_at(&mut found, at, sector);
                        }
                    }
                }
            }
        }
        found
    }
}

fn put_at(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    if bytes.len() < at + new.len() {
        bytes.resize(at + new.len(), 0);
    }
    bytes[at..at + new.len()].copy_from_slice(new);
}

fn index_of(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

impl StorageBackend for FailingDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock().unwrap();
        let from = state.now.get(index_of(offset)..index_of(offset) + out.len());
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step()?;
        state.now.resize(index_of(len), 0);
        state.unsynced.push(UnsyncedWrite::Len(index_of(len)));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step()?;
        let state = &mut *state;
        state.synced.clone_from(&state.now);
        state.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let step = state.step();
        // A failed write may have written a part.
        let len = if step.is_ok() { data.len() } else { data.len() / 2 };
        put_at(&mut state.now, index_of(offset), &data[..len]);
        state.unsynced.push(UnsyncedWrite::Write(index_of(offset), data[..len].to_vec()));
        step
    }
}

impl FailingDisk {
    fn of(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(DiskState { now: bytes.clone(), synced: bytes, ..DiskState::default() })))
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().now.clone()
    }

    fn open(&self, kind: CommitKind) -> Result<Store, StoreError> {
        let config = StoreConfig { cache_bytes: 1 << 20, ..committing(kind, Path::new("memory")) };
        let is_new = self.bytes().is_empty();
        let database = redb::Database::builder().create_with_backend(self.clone())?;
        if is_new {
            schema::begin(&database, true, None)?;
        }
        schema::upgrade(&database, schema::UPGRADES)?;
        Store::start(StoreEngine::Embedded(EmbeddedStore::new(database, &config)), &config, false)
    }
}

/// The content of each record: the number in both of its values.
type RandomWalk = BTreeMap<Vec<u8>, usize>;

fn numbers(store: &Store) -> RandomWalk {
    let snapshot = store.snapshot().unwrap();
    let records = snapshot.records().unwrap().map(|stored| {
        let stored = stored.unwrap();
        let record = stored.record().unwrap();
        let numbers: Vec<usize> = record
            .values
            .iter()
            .map(|value| std::str::from_utf8(value.data).unwrap().trim().parse().unwrap())
            .collect();
        assert!(numbers.len() == 2 && numbers[0] == numbers[1], "a record by half");
        (stored.handle().to_vec(), numbers[0])
    });
    records.collect()
}

/// Change `nth`: stores several records, some of them large; every fourth change deletes one.
fn change(store: &Store, nth: usize) -> Result<(), StoreError> {
    let key = format!("1/{}", nth % 3).into_bytes();
    store.change(move |transaction| {
        if nth % 4 == 3 {
            return transaction.delete(&key).map(|_| ());
        }
        let data = format!("{nth:<width$}", width = nth % 5 * 3000);
        let twice = [1, 2].map(|index| Value::new(index, b"N", data.as_bytes()));
        transaction.put(&key, Values::build(twice, &mut Vec::new()))
    })
}

fn apply(numbers: &mut RandomWalk, nth: usize) {
    let key = format!("1/{}", nth % 3).into_bytes();
    if nth % 4 == 3 {
        numbers.remove(&key)
    } else {
        numbers.insert(key, nth)
    };
}

const CHANGES: usize = 12;

/// Makes changes until one fails. Returns the acknowledged ones.
fn work(store: &Store) -> usize {
    (0..CHANGES).take_while(|&nth| change(store, nth).is_ok()).count()
}

/// Checks that `disk` has the acknowledged changes, or those and the next one, and that the store
/// continues from there.
fn check(disk: &FailingDisk, acknowledged: usize, kind: CommitKind, what: &str) {
    let store = disk.open(kind).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut expected = RandomWalk::new();
    (0..acknowledged).for_each(|nth| apply(&mut expected, nth));
    let found = numbers(&store);
    if found != expected {
        apply(&mut expected, acknowledged);
        assert_eq!(found, expected, "{what}, {acknowledged} acknowledged");
    }
    let mut findings = Vec::new();
    store.check(|finding| findings.push(finding)).unwrap();
    findings.retain(StoreFinding::is_damage);
    assert_eq!(findings, [], "{what}");
    change(&store, 100).unwrap();
    apply(&mut expected, 100);
    assert_eq!(numbers(&store), expected, "{what}");
}

#[test]
fn no_failing_step_loses_an_acknowledged_change() {
    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        index_of(seed >> 8)
    };
    // Each failing step needs a file of its own; `HANDLE_FAULTS=all` lets every single one fail.
    let every = if std::env::var("HANDLE_FAULTS").is_ok_and(|which| which == "all") { 1 } else { 3 };
    for kind in COMMIT_KINDS {
        let empty = FailingDisk::default();
        drop(empty.open(kind).unwrap());
        let begin = empty.bytes();
        let whole = FailingDisk::of(begin.clone());
        let store = whole.open(kind).unwrap();
        let first = whole.0.lock().unwrap().steps;
        assert_eq!(work(&store), CHANGES);
        let last = whole.0.lock().unwrap().steps;
        assert!(last - first > 5 * CHANGES, "{} steps", last - first);
        let mut failed = 0;
        for at in (first..last).step_by(every) {
            for fails in [FailurePlan::At(at), FailurePlan::From(at)] {
                let what = format!("{kind:?}, {fails:?}");
                let disk = FailingDisk::of(begin.clone());
                disk.0.lock().unwrap().fails = fails;
                let store = disk.open(kind).unwrap();
                let acknowledged = work(&store);
                failed += usize::from(acknowledged < CHANGES);
                if acknowledged < CHANGES {
                    assert!(store.failure().is_some(), "{what}: it says that it has failed");
                    assert!(change(&store, 50).is_err(), "{what}: and does nothing more");
                }
                for _ in 0..3 {
                    let crashed = FailingDisk::of(disk.0.lock().unwrap().after_crash(&mut random));
                    check(&crashed, acknowledged, kind, &what);
                }
                // The process ends, and the disk keeps everything that was written.
                drop(store);
                check(&FailingDisk::of(disk.bytes()), acknowledged, kind, &what);
            }
        }
        assert!(failed > 0, "some steps were seen to fail");
    }
}
