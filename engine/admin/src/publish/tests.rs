//! Publishing from a real store: the sets that readers see, with failures at every step and
//! restarts.

mod copies;
mod limits;
mod statements;

use super::planner::PublisherPlan;
use super::*;
use handle_proto::{Value, Values};
use handle_snapshot::set::manifest::{MANIFEST, Manifest};
use handle_snapshot::set::storage::DiskStorage;
use handle_snapshot::{
    Builder, HomedPrefixes, LayerOptions, LoadMode, MappedFile, PublishedSet, SetError, hash_key,
};
use handle_store::{LogBounds, StoreConfig};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;

/// The records that readers find: handles with the data of their first value.
type ReadableContent = BTreeMap<String, String>;

/// A directory with a store, and a directory for a published set.
struct PublishSetup {
    dir: tempfile::TempDir,
    store: Option<Arc<Store>>,
}

impl PublishSetup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("set")).unwrap();
        let store = Store::create(&StoreConfig::at(&dir.path().join("store")), true).unwrap();
        store.home(b"1").unwrap();
        Self { dir, store: Some(Arc::new(store)) }
    }

    fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    /// A copy of the store's file, as it is now.
    fn copy_store(&mut self) -> PathBuf {
        let (file, copy) = (self.dir.path().join("store"), self.dir.path().join("copy"));
        drop(self.store.take());
        std::fs::copy(&file, &copy).unwrap();
        self.store = Some(Arc::new(Store::open(&StoreConfig::at(&file)).unwrap()));
        copy
    }

    fn set(&self) -> PathBuf {
        self.dir.path().join("set")
    }

    fn config(&self) -> PublishConfig {
        // Small, so that tests reach every limit.
        PublishConfig {
            directory: Some(self.set()),
            absorb_len: 1024,
            keep_every_s: 10,
            keep_count: 2,
            grace_s: 60,
            ..PublishConfig::default()
        }
    }

    fn engine_with(&self, config: PublishConfig) -> PublisherPlan<DiskStorage> {
        let publisher = SetPublisher::open(&self.set()).unwrap();
        PublisherPlan::new(self.store().clone(), publisher, Arc::new(config)).unwrap()
    }

    /// A publisher that has published all changes.
    fn engine(&self) -> PublisherPlan<DiskStorage> {
        let mut engine = self.engine_with(self.config());
        settle(&mut engine);
        engine
    }

    fn put(&self, handle: &str, url: &str) {
        put(self.store(), handle.as_bytes(), url.as_bytes());
    }

    fn delete(&self, handle: &str) {
        let key = handle.to_ascii_uppercase().into_bytes();
        assert!(self.store().change(move |transaction| transaction.delete(&key)).unwrap());
    }

    fn seen(&self) -> ReadableContent {
        seen(&self.set())
    }

    /// The records of the store.
    fn stored(&self) -> ReadableContent {
        let snapshot = self.store().snapshot().unwrap();
        let records = snapshot.records().unwrap().map(|stored| {
            let stored = stored.unwrap();
            let data = stored.record().unwrap().values.iter().next().unwrap().data.to_vec();
            (text(stored.handle()), text(&data))
        });
        records.collect()
    }

    fn manifest(&self) -> Manifest {
        handle_snapshot::set::read_manifest(&self.set()).unwrap()
    }

    fn shown(&self) -> u64 {
        self.manifest().source.unwrap().transaction
    }
}

fn put(store: &Store, handle: &[u8], data: &[u8]) {
    let (key, data) = (handle.to_ascii_uppercase(), data.to_vec());
    let put = move |transaction: &mut handle_store::Transaction<'_>| {
        let mut buffer = Vec::new();
        transaction.put(&key, Values::build([Value::new(1, b"URL", &data)], &mut buffer))
    };
    store.change(put).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn seen(dir: &Path) -> ReadableContent {
    let set = PublishedSet::open(dir, LoadMode::Map).unwrap();
    set.verify().unwrap();
    let mut seen = ReadableContent::new();
    for layer in set.layers() {
        for record in layer.records() {
            let key = record.unwrap().key();
            if let Some(record) = set.records().find(hash_key(set.records().seed(), key), key).unwrap() {
                seen.insert(text(key), text(record.values_in_order().next().unwrap().unwrap().data));
            }
        }
    }
    assert_eq!(set.handles_count(), seen.len() as u64, "as the publisher counted");
    seen
}

/// Runs due jobs and publishes changes until nothing is left to do.
fn settle<S: Storage>(engine: &mut PublisherPlan<S>) {
    loop {
        let published = engine.publish(now_unix_ms()).unwrap();
        let job = engine.due(now_unix_ms());
        if let Some(job) = &job {
            engine.finish(job.number, job.run(), now_unix_ms()).unwrap();
        }
        if !published && job.is_none() {
            return;
        }
    }
}

#[test]
fn only_changed_records_are_published() {
    let setup = PublishSetup::new();
    let mut engine = setup.engine();
    assert_eq!(setup.seen(), ReadableContent::new(), "an empty set can be served");
    assert_eq!(setup.shown(), setup.store().last_id());
    for n in 0..300_u64 {
        setup.put(&format!("1/{}", n * n % 31), &format!("at {n}"));
        if n % 7 == 3 {
            setup.delete(&format!("1/{}", n * n % 31));
        }
        if n % 3 == 0 {
            assert!(engine.publish(now_unix_ms()).unwrap());
            assert!(!engine.publish(now_unix_ms()).unwrap(), "once");
            assert_eq!(setup.seen(), setup.stored(), "at {n}");
            assert_eq!(setup.shown(), setup.store().last_id());
        }
        if n % 11 == 0 {
            let before = setup.manifest();
            settle(&mut engine);
            assert_eq!(setup.seen(), setup.stored(), "merged at {n}");
            assert_eq!(setup.shown(), setup.store().last_id());
            assert!(setup.manifest().generation >= before.generation);
        }
        assert!(setup.manifest().layers.len() < 8);
    }
    let counts = engine.status().counts;
    assert!(counts.deltas >= 100 && counts.merges > 0, "{counts:?}");
    assert!(counts.delta_bytes <= counts.changed_bytes + counts.deltas * 1024, "{counts:?}");
}

#[test]
fn publishing_continues_from_the_manifest() {
    let mut setup = PublishSetup::new();
    drop(setup.engine());
    setup.put("1/a", "one");
    drop(setup.store.take());
    setup.store = Some(Arc::new(Store::open(&StoreConfig::at(&setup.dir.path().join("store"))).unwrap()));
    let generation = setup.manifest().generation;
    let mut engine = setup.engine_with(setup.config());
    assert!(engine.publish(now_unix_ms()).unwrap(), "a delta, and no rebuild");
    assert_eq!(setup.manifest().generation, generation + 1);
    assert_eq!(setup.seen(), setup.stored());
}

#[test]
fn many_changes_are_published_in_parts_and_very_many_as_a_rebuild() {
    let setup = PublishSetup::new();
    let config = PublishConfig { changes_max: 10, rebuild_changes: 25, ..setup.config() };
    let mut engine = setup.engine_with(config);
    settle(&mut engine);
    let (first, rebuilds) = (setup.shown(), engine.status().counts.rebuilds);
    (0..25).for_each(|n| setup.put(&format!("1/{n}"), "x"));
    for part in 1..=3 {
        assert!(engine.publish(now_unix_ms()).unwrap());
        assert_eq!(setup.shown(), first + (part * 10).min(25));
    }
    assert_eq!(setup.seen(), setup.stored());
    (0..26).for_each(|n| setup.put(&format!("1/{n}"), "y"));
    assert!(!engine.publish(now_unix_ms()).unwrap());
    assert!(engine.status().rebuild.is_some());
    settle(&mut engine);
    assert_eq!(engine.status().counts.rebuilds, rebuilds + 1);
    assert_eq!(setup.seen(), setup.stored());
}

#[test]
fn a_set_that_does_not_fit_the_store_is_rebuilt() {
    let rebuilds_after = |change: &dyn Fn(&mut PublishSetup)| {
        let mut setup = PublishSetup::new();
        setup.put("1/a", "one");
        drop(setup.engine());
        setup.put("1/b", "two");
        change(&mut setup);
        let mut engine = setup.engine_with(setup.config());
        settle(&mut engine);
        assert_eq!(setup.seen(), setup.stored());
        assert_eq!(setup.shown(), setup.store().last_id());
        engine.status().counts.rebuilds
    };
    assert_eq!(rebuilds_after(&|_| {}), 0);
    // The log does not reach back far enough.
    assert_eq!(
        rebuilds_after(&|setup| {
            let bounds = LogBounds { before_unix_ms: u64::MAX, transactions_max: None };
            assert!(setup.store().prune_log(bounds, 1000).unwrap() > 0);
        }),
        1
    );
    // Many records at once, without entries in the log.
    assert_eq!(
        rebuilds_after(&|setup| {
            let mut bulk = setup.store().bulk(setup.dir.path(), 1 << 20);
            let mut buffer = Vec::new();
            bulk.add(b"1/bulk", Values::build([Value::new(1, b"URL", b"b")], &mut buffer)).unwrap();
            bulk.finish(|_| {}).unwrap();
        }),
        1
    );
    // Another store, with more transactions than the set.
    assert_eq!(
        rebuilds_after(&|setup| {
            let other = StoreConfig::at(&setup.dir.path().join("other"));
            setup.store = Some(Arc::new(Store::create(&other, true).unwrap()));
            (0..10).for_each(|n| setup.put(&format!("1/other-{n}"), "x"));
        }),
        1
    );
    // A copy of this store that is older than the set.
    assert_eq!(
        rebuilds_after(&|setup| {
            let copy = setup.copy_store();
            (0..10).for_each(|n| setup.put(&format!("1/{n}"), "later"));
            drop(setup.engine());
            setup.store = Some(Arc::new(Store::open(&StoreConfig::at(&copy)).unwrap()));
        }),
        1
    );
    // A set of another publisher.
    assert_eq!(
        rebuilds_after(&|setup| {
            let mut publisher = SetPublisher::open(&setup.set()).unwrap();
            let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
            let base = |file, temp_dir: &Path| {
                let mut builder = Builder::new(temp_dir, options).homed(HomedPrefixes::default());
                builder.add(1, b"1/foreign", [Value::new(1, b"URL", b"f")])?;
                builder.finish(file)
            };
            publisher.publish_base(1, base).unwrap();
        }),
        1
    );
}

#[test]
fn visible_records_stay_visible_during_a_rebuild() {
    let setup = PublishSetup::new();
    setup.put("1/a", "one");
    setup.put("1/b", "one");
    let mut engine = setup.engine();
    engine.rebuild();
    let job = engine.due(now_unix_ms()).unwrap();
    let made = job.run();
    // Changes that are published while the rebuild runs.
    setup.put("1/a", "two");
    setup.delete("1/b");
    setup.put("1/c", "two");
    setup.store().home(b"2").unwrap();
    assert!(engine.publish(now_unix_ms()).unwrap());
    let shown = setup.shown();
    setup.put("1/d", "three");
    engine.finish(job.number, made, now_unix_ms()).unwrap();
    assert!(setup.shown() > shown);
    assert_eq!(setup.seen(), setup.stored());
    let set = PublishedSet::open(&setup.set(), LoadMode::Map).unwrap();
    assert!(set.records().homed(b"1") && set.records().homed(b"2"));
    assert!(engine.status().rebuild.is_none());
}

#[test]
fn jobs_end_early_when_publishing_ends() {
    let setup = PublishSetup::new();
    setup.put("1/a", "one");
    let mut engine = setup.engine();
    let before = setup.manifest();
    engine.rebuild();
    let job = engine.due(now_unix_ms()).unwrap();
    engine.stop();
    let ended = job.run();
    assert!(matches!(ended, Err(PublishError::Stopped)), "{ended:?}");
    let finished = engine.finish(job.number, ended, now_unix_ms());
    assert!(matches!(finished, Err(PublishError::Stopped)), "{finished:?}");
    assert_eq!(setup.manifest(), before);
    // The rebuild is still due, and the next publisher does it.
    settle(&mut engine);
    assert_eq!(engine.status().counts.rebuilds, 2);
    setup.put("1/a", "two");
    assert!(engine.publish(now_unix_ms()).unwrap());
    engine.merge();
    let job = engine.due(now_unix_ms()).unwrap();
    assert_eq!(job.takes().len(), 2);
    engine.stop();
    assert!(matches!(job.run(), Err(PublishError::Stopped)));
    assert_eq!(setup.seen(), setup.stored());
}

#[test]
fn homing_is_a_change() {
    let setup = PublishSetup::new();
    let mut engine = setup.engine();
    let homed = || {
        let set = PublishedSet::open(&setup.set(), LoadMode::Map).unwrap();
        [b"1", b"2", b"3"].map(|prefix| set.records().homed(prefix))
    };
    assert_eq!(homed(), [true, false, false]);
    setup.store().home(b"2").unwrap();
    settle(&mut engine);
    assert_eq!(homed(), [true, true, false]);
    setup.put("1/a", "x");
    setup.store().home(b"3").unwrap();
    setup.store().change(|transaction| transaction.unhome(b"1")).unwrap();
    settle(&mut engine);
    assert_eq!(homed(), [false, true, true]);
}

#[test]
fn a_merge_does_not_delay_deltas_and_is_dropped_if_outdated() {
    let setup = PublishSetup::new();
    let mut engine = setup.engine();
    let mut n = 0;
    let job = loop {
        n += 1;
        setup.put(&format!("1/{n}"), &"x".repeat(900));
        assert!(engine.publish(now_unix_ms()).unwrap());
        if let Some(job) = engine.due(now_unix_ms()) {
            break job;
        }
    };
    let taken = job.takes().to_vec();
    setup.put("1/while", "it runs");
    assert!(engine.publish(now_unix_ms()).unwrap());
    assert!(setup.manifest().layers.ends_with(&taken), "what it takes is left alone");
    assert!(engine.due(now_unix_ms()).is_none(), "one at a time");
    assert_eq!(engine.status().running[0].layers, taken.len());
    engine.finish(job.number, job.run(), now_unix_ms()).unwrap();
    assert_eq!(setup.manifest().layers.len(), 2, "the merged one, and the delta of meanwhile");
    assert_eq!(setup.seen(), setup.stored());

    // All of them, on command.
    setup.put("1/more", "x");
    assert!(engine.publish(now_unix_ms()).unwrap());
    engine.merge();
    settle(&mut engine);
    assert_eq!(setup.manifest().layers.len(), 1);
    engine.merge();
    assert!(engine.due(now_unix_ms()).is_none(), "one layer is as few as can be");
    assert_eq!(setup.seen(), setup.stored());

    // A rebuild overtakes a merge.
    let job = loop {
        n += 1;
        setup.put(&format!("1/{n}"), &"x".repeat(900));
        engine.publish(now_unix_ms()).unwrap();
        if let Some(job) = engine.due(now_unix_ms()) {
            break job;
        }
    };
    let made = job.run();
    engine.rebuild();
    let rebuild = engine.due(now_unix_ms()).unwrap();
    engine.finish(rebuild.number, rebuild.run(), now_unix_ms()).unwrap();
    let generation = setup.manifest().generation;
    engine.finish(job.number, made, now_unix_ms()).unwrap();
    assert_eq!(setup.manifest().generation, generation);
    assert_eq!(setup.seen(), setup.stored());
}

#[test]
fn a_roll_back_stays_until_it_is_ended() {
    let setup = PublishSetup::new();
    setup.put("1/a", "one");
    let mut engine = setup.engine();
    let (one, at_one) = (setup.stored(), setup.manifest().generation);
    engine.keep(1).unwrap();
    setup.put("1/a", "two");
    setup.put("1/b", "two");
    settle(&mut engine);
    let two = setup.stored();
    assert!(matches!(engine.roll_back(Some(99), now_unix_ms()), Err(PublishError::Refused(_))));
    assert_eq!(setup.seen(), two);
    assert_eq!(engine.status().held, None);
    assert_eq!(engine.roll_back(None, now_unix_ms()).unwrap(), at_one);
    assert_eq!(setup.seen(), one);

    // It stays held, also after a restart.
    setup.put("1/c", "three");
    assert!(!engine.publish(now_unix_ms()).unwrap());
    drop(engine);
    let mut engine = setup.engine();
    assert_eq!(setup.seen(), one);
    let status = engine.status();
    assert!(status.held.unwrap().contains("rolled back"), "and says why");
    assert!(status.pending >= 3 && engine.position().is_none());

    // Back to the previous set, from which publishing continues.
    let newest = engine.status().kept.last().unwrap().generation;
    assert_eq!(engine.roll_back(Some(newest), now_unix_ms()).unwrap(), newest);
    assert_eq!(setup.seen(), two);
    engine.resume().unwrap();
    settle(&mut engine);
    assert_eq!(setup.seen(), setup.stored());
    assert!(engine.status().kept.len() <= 2);
}

#[test]
fn generations_are_kept_at_intervals_and_files_go_after_their_grace() {
    let setup = PublishSetup::new();
    let mut engine = setup.engine();
    let begin = now_unix_ms() + 100_000;
    for second in 0..45 {
        setup.put("1/a", &format!("{second}"));
        assert!(engine.publish(begin + second * 1000).unwrap());
    }
    let kept: Vec<u64> = engine.status().kept.iter().map(|kept| kept.created_unix_ms).collect();
    assert_eq!(kept.len(), 2);
    assert_eq!(kept[1] - kept[0], 10_000);
    let at =
        |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(begin) + Duration::from_secs(seconds);
    engine.prune(at(44)).unwrap();
    assert_eq!(engine.status().counts.files_removed, 0);
    engine.prune(at(110)).unwrap();
    let named: std::collections::BTreeSet<String> =
        setup.manifest().layers.into_iter().map(|layer| layer.file).collect();
    let left = std::fs::read_dir(setup.set()).unwrap();
    let left: Vec<_> = left.map(|file| text(file.unwrap().file_name().as_encoded_bytes())).collect();
    assert!(
        left.len() <= named.len() + 2 + 2 + 2,
        "the set, two kept with a layer each, LOCK, MANIFEST: {left:?}"
    );
    assert!(named.iter().all(|file| left.contains(file)));
    let kept = engine.status().kept[0].generation;
    engine.roll_back(Some(kept), now_unix_ms()).unwrap();
    assert_eq!(setup.seen().len(), 1);
}

#[test]
fn a_set_that_the_check_refuses_does_not_go_live() {
    let setup = PublishSetup::new();
    setup.put("1/a", "one");
    let mut engine = setup.engine();
    drop(engine);
    let flag = setup.dir.path().join("refuse");
    let command = format!("test ! -e {} || {{ echo not this one >&2; exit 1; }}", flag.display());
    let check =
        CheckConfig { command: ["sh", "-c", &command].map(Into::into).to_vec(), ..CheckConfig::default() };
    engine = setup.engine_with(PublishConfig { check, ..setup.config() });
    setup.put("1/a", "two");
    settle(&mut engine);
    assert_eq!(setup.seen(), setup.stored());
    std::fs::write(&flag, "").unwrap();
    setup.put("1/a", "three");
    let before = setup.manifest();
    let refused = engine.publish(now_unix_ms()).unwrap_err();
    assert!(refused.to_string().contains("not this one"), "{refused}");
    engine.rebuild();
    let job = engine.due(now_unix_ms()).unwrap();
    assert!(matches!(engine.finish(job.number, job.run(), now_unix_ms()), Err(PublishError::Check(_))));
    assert_eq!(setup.manifest(), before);
    std::fs::remove_file(&flag).unwrap();
    settle(&mut engine);
    assert_eq!(setup.seen(), setup.stored());
    assert!(engine.status().rebuild.is_none());
}

#[test]
fn a_record_too_large_for_a_layer_delays_nothing() {
    let setup = PublishSetup::new();
    let mut engine = setup.engine();
    setup.put("1/good", "one");
    setup.put("1/turns-bad", "one");
    settle(&mut engine);
    put(setup.store(), b"no slash", b"x");
    put(setup.store(), b"1/turns-bad", &vec![b'x'; 300_000]);
    setup.put("1/good", "two");
    settle(&mut engine);
    let seen: Vec<_> = setup.seen().into_iter().collect();
    assert_eq!(seen, [("1/GOOD".to_owned(), "two".to_owned())], "no old value of what has turned bad");
    assert_eq!(engine.status().counts.left_out, 2);
    engine.rebuild();
    settle(&mut engine);
    assert_eq!(setup.seen().into_iter().collect::<Vec<_>>(), seen);
}

/// A directory in which one step fails, as when the disk is full or broken.
struct FailingStorage {
    disk: DiskStorage,
    steps: Arc<AtomicUsize>,
    fails_at: Arc<AtomicUsize>,
}

struct FailingFile {
    file: File,
    steps: Arc<AtomicUsize>,
    fails_at: Arc<AtomicUsize>,
}

fn step(steps: &AtomicUsize, fails_at: &AtomicUsize) -> io::Result<()> {
    match steps.fetch_add(1, Ordering::Relaxed) == fails_at.load(Ordering::Relaxed) {
        true => Err(io::ErrorKind::StorageFull.into()),
        false => Ok(()),
    }
}

impl FailingStorage {
    fn step(&self) -> io::Result<()> {
        step(&self.steps, &self.fails_at)
    }
}

impl Write for FailingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = step(&self.steps, &self.fails_at) {
            // A part of it is written nevertheless.
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for FailingFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Storage for FailingStorage {
    type File = FailingFile;
    type Bytes = MappedFile;

    fn create(&self, name: &str) -> io::Result<FailingFile> {
        self.step()?;
        let file = self.disk.create(name)?;
        Ok(FailingFile { file, steps: self.steps.clone(), fails_at: self.fails_at.clone() })
    }
    fn sync(&self, file: &FailingFile) -> io::Result<()> {
        self.step()?;
        self.disk.sync(&file.file)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.step()?;
        self.disk.sync_dir()
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.step()?;
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.step()?;
        self.disk.remove(name)
    }
    fn list(&self) -> io::Result<Vec<(String, u64, SystemTime)>> {
        self.disk.list()
    }
    fn read(&self, name: &str, len_max: usize) -> io::Result<Vec<u8>> {
        self.disk.read(name, len_max)
    }
    fn open(&self, name: &str) -> io::Result<MappedFile> {
        self.step()?;
        self.disk.open(name)
    }
    fn forget(&self, bytes: &MappedFile, range: Range<u64>) {
        self.disk.forget(bytes, range);
    }
    fn dir(&self) -> &Path {
        self.disk.dir()
    }
}

/// All steps of publishing, several times. After each attempt readers see a complete set that is
/// not older than the previous one; a failed attempt is repeated.
fn work(setup: &PublishSetup, engine: &mut PublisherPlan<FailingStorage>) -> usize {
    let mut failures = 0;
    let mut shown = 0;
    let check = |shown: &mut u64| {
        if setup.set().join(MANIFEST).exists() {
            setup.seen();
            assert!(setup.shown() >= *shown, "what was visible still is");
            *shown = setup.shown();
        }
    };
    let mut attempt =
        |engine: &mut PublisherPlan<FailingStorage>,
         act: &mut dyn FnMut(&mut PublisherPlan<FailingStorage>) -> Result<bool, PublishError>| {
            loop {
                let result = act(engine);
                check(&mut shown);
                match result {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        failures += 1;
                        assert!(failures < 3, "a step fails once: {error}");
                    }
                }
            }
        };
    for round in 0..3 {
        for n in 0..2 {
            setup.put(&format!("1/{n}"), &format!("{round} {}", "x".repeat(700 * n)));
            attempt(engine, &mut |engine| engine.publish(now_unix_ms()));
            attempt(engine, &mut |engine| {
                let Some(job) = engine.due(now_unix_ms()) else { return Ok(false) };
                engine.finish(job.number, job.run(), now_unix_ms()).map(|()| true)
            });
        }
        if round == 1 {
            setup.delete("1/0");
            engine.rebuild();
        }
        attempt(engine, &mut |engine| engine.keep(now_unix_ms()).map(|()| false));
        attempt(engine, &mut |engine| engine.prune(SystemTime::now()).map(|()| false));
    }
    attempt(engine, &mut |engine| engine.publish(now_unix_ms()));
    failures
}

#[test]
fn no_failing_step_loses_or_reverts_a_change() {
    let run = |fails_at: usize| {
        let setup = PublishSetup::new();
        let disk = DiskStorage::lock(&setup.set()).unwrap().unwrap();
        let steps = Arc::new(AtomicUsize::new(0));
        let storage =
            FailingStorage { disk, steps: steps.clone(), fails_at: Arc::new(AtomicUsize::new(fails_at)) };
        let publisher = SetPublisher::with_storage(storage).unwrap();
        let config = PublishConfig { grace_s: 0, ..setup.config() };
        let mut engine = PublisherPlan::new(setup.store().clone(), publisher, Arc::new(config)).unwrap();
        let failures = work(&setup, &mut engine);
        assert_eq!(setup.seen(), setup.stored(), "failed at {fails_at}");
        assert_eq!(setup.shown(), setup.store().last_id(), "failed at {fails_at}");
        let counts = engine.status().counts;
        // An interrupted step may be repeated, or may not be needed any more.
        let did_all = counts.merges > 0 && counts.rebuilds == 2 && counts.files_removed > 0;
        assert!(did_all || fails_at != usize::MAX, "{counts:?}");
        (steps.load(Ordering::Relaxed), failures)
    };
    let (steps, failures) = run(usize::MAX);
    assert_eq!(failures, 0);
    println!("{steps} steps");
    assert!(steps > 100, "{steps} steps");
    // Each failing step needs a store of its own; `HANDLE_FAULTS=all` lets every single one fail.
    let every = if std::env::var("HANDLE_FAULTS").is_ok_and(|which| which == "all") { 1 } else { 7 };
    let tried = (0..steps).step_by(every);
    let (all, failed) = (tried.len(), tried.filter(|&fails_at| run(fails_at).1 > 0).count());
    assert!(failed > all / 2, "{failed} of {all} steps were seen to fail");
}

#[test]
fn the_publisher_runs_in_its_own_threads() {
    let setup = PublishSetup::new();
    let config = PublishConfig { interval_ms: 2, ..setup.config() };
    let publishing = StorePublisher::start(setup.store().clone(), &config).unwrap();
    let second = StorePublisher::start(setup.store().clone(), &config).map(|_| ());
    assert!(matches!(second, Err(PublishError::Set(SetError { .. }))), "one at a time");
    let minute = Duration::from_secs(60);
    for n in 0..200 {
        setup.put(&format!("1/{}", n % 50), &format!("{n}"));
        if n % 20 == 0 {
            assert!(publishing.wait_for(setup.store().last_id(), minute));
            assert_eq!(setup.seen(), setup.stored());
        }
    }
    assert_eq!(publishing.command(Command::Keep).unwrap(), "kept");
    assert!(publishing.wait_for(setup.store().last_id(), minute));
    publishing.command(Command::Rebuild).unwrap();
    let deadline = Instant::now() + minute;
    while publishing.status().counts.rebuilds < 2 {
        assert!(Instant::now() < deadline, "{:?}", publishing.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    publishing.command(Command::Hold("for a test".to_owned())).unwrap();
    assert_eq!(publishing.status().held.as_deref(), Some("for a test"));
    setup.put("1/held", "x");
    assert!(!publishing.wait_for(setup.store().last_id(), Duration::from_millis(50)));
    let rolled_back = publishing.command(Command::RollBack(None)).unwrap();
    assert!(rolled_back.contains("held"), "{rolled_back}");
    let unknown = publishing.command(Command::RollBack(Some(12_345))).unwrap_err().to_string();
    assert!(unknown.starts_with("no such generation is kept"), "{unknown}");
    publishing.command(Command::Resume).unwrap();
    assert!(publishing.wait_for(setup.store().last_id(), minute));
    // Remaining changes are published before the end.
    setup.put("1/last", "x");
    drop(publishing);
    assert_eq!(setup.seen(), setup.stored());
    assert_eq!(setup.stored()["1/LAST"], "x");
}

#[test]
fn a_publisher_whose_work_another_process_continues_does_not_wait_for_its_check() {
    let setup = PublishSetup::new();
    let config = PublishConfig { interval_ms: 0, ..setup.config() };
    drop(setup.engine());
    let started = setup.dir.path().join("started");
    let command = format!("touch {}; exec sleep 1000", started.display());
    let command = ["sh", "-c", &command].map(Into::into).to_vec();
    let check = CheckConfig { command, deltas: true, timeout_s: 1000 };
    let slow = PublishConfig { check, ..config.clone() };
    let publishing = StorePublisher::start(setup.store().clone(), &slow).unwrap();
    setup.put("1/a", "x");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !started.exists() {
        assert!(Instant::now() < deadline, "{:?}", publishing.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    setup.put("1/b", "y");
    publishing.leave();
    assert!(Instant::now() < deadline, "it has waited for the check");
    assert!(!setup.seen().contains_key("1/A"), "what was not checked is not published");
    let next = StorePublisher::start(setup.store().clone(), &config).unwrap();
    assert!(next.wait_for(setup.store().last_id(), Duration::from_secs(60)));
    assert_eq!(setup.seen(), setup.stored());
}

#[test]
fn errors_are_reported_until_publishing_works_again() {
    let setup = PublishSetup::new();
    let config = PublishConfig { retry_s: 1, interval_ms: 0, ..setup.config() };
    let publishing = StorePublisher::start(setup.store().clone(), &config).unwrap();
    assert!(publishing.wait_for(setup.store().last_id(), Duration::from_secs(60)));
    let manifest = setup.set().join(MANIFEST);
    let whole = std::fs::read(&manifest).unwrap();
    std::fs::remove_file(&manifest).unwrap();
    std::fs::write(&manifest, "torn").unwrap();
    setup.put("1/a", "x");
    let until = |what: &str, condition: &dyn Fn(&PublishStatus) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition(&publishing.status()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", publishing.status());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until("it is told", &|status| status.last_error.as_ref().is_some_and(|error| error.contains(MANIFEST)));
    let status = publishing.status();
    assert!(status.pending > 0 && status.counts.failures > 0 && status.last_error_unix_ms.is_some());
    std::fs::remove_file(&manifest).unwrap();
    std::fs::write(&manifest, whole).unwrap();
    until("it works again", &|status| status.last_error.is_none() && status.pending == 0);
    assert_eq!(setup.seen(), setup.stored());
}
