//! Publishing: the sets that readers see, and the files that are left after a power failure at any
//! step.
#![cfg(feature = "std")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::Value;
use handle_snapshot::set::SetErrorKind;
use handle_snapshot::set::manifest::{MANIFEST, SetOrigin};
use handle_snapshot::set::storage::{Storage, create_directory};
use handle_snapshot::{
    BuildError, Builder, HomedPrefixes, LayerOptions, LayerPosition, LoadMode, MergeProgress, PublishedSet,
    SetError, SetPublisher, hash_key,
};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const OPTIONS: LayerOptions = LayerOptions { seed: 42, folds: true, created_unix_ms: 1 };
const NO_GRACE: Duration = Duration::ZERO;

/// A builder with these records: handle and URL, or `None` for a deletion.
fn builder(records: &[(&str, Option<&str>)], is_base: bool, options: LayerOptions) -> Builder<'static> {
    let mut builder = Builder::new(&std::env::temp_dir(), options);
    if is_base {
        let mut homed = HomedPrefixes::default();
        homed.add(b"1");
        builder = builder.homed(homed);
    }
    for (origin, (handle, url)) in (0..).zip(records) {
        match url {
            Some(url) => {
                builder.add(origin, handle.as_bytes(), [Value::new(1, b"URL", url.as_bytes())]).unwrap()
            }
            None => builder.delete(origin, handle.as_bytes()).unwrap(),
        }
    }
    builder
}

/// All answers of the published set.
fn answers(dir: &Path) -> BTreeMap<String, String> {
    let set = PublishedSet::open(dir, LoadMode::Map).unwrap();
    set.verify().unwrap();
    assert!(set.records().homed(b"1") && !set.records().homed(b"2"));
    let mut answers = BTreeMap::new();
    for layer in set.layers() {
        for record in layer.records() {
            let key = record.unwrap().key();
            if let Some(record) = set.records().find(hash_key(set.records().seed(), key), key).unwrap() {
                let data = record.values_in_order().next().unwrap().unwrap().data;
                answers.insert(text(key), text(data));
            }
        }
    }
    assert_eq!(set.handles_count(), answers.len() as u64, "as the publisher counted");
    answers
}

fn go_on(_: &MergeProgress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(handle, url)| (handle.into(), url.into())).collect()
}

fn refusal(result: Result<&handle_snapshot::set::manifest::Manifest, SetError>) -> SetErrorKind {
    result.map(|_| ()).unwrap_err().kind
}

#[test]
fn base_deltas_merges_and_pruning() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut publisher = SetPublisher::open(dir).unwrap();
    assert!(publisher.manifest().is_none() && publisher.options(0).is_none());
    assert!(matches!(PublishedSet::open(dir, LoadMode::Map).unwrap_err().kind, SetErrorKind::NotPublished));

    let base = [("1/a", Some("a1")), ("1/b", Some("b1")), ("1/c", Some("c1"))];
    publisher.publish_base(10, |file, _| builder(&base, true, OPTIONS).finish(file)).unwrap();
    assert_eq!(answers(dir), map(&[("1/A", "a1"), ("1/B", "b1"), ("1/C", "c1")]));
    let first = PublishedSet::open(dir, LoadMode::CopyToMemory).unwrap();
    assert_eq!((first.generation(), first.created_unix_ms()), (1, 10));

    // A changed record, a deletion, a new record, and the deletion of a handle that does not exist.
    let delta = [("1/a", Some("a2")), ("1/b", None), ("1/d", Some("d2")), ("1/x", None)];
    publisher.publish_delta(20, |file, _| builder(&delta, false, OPTIONS).finish(file)).unwrap();
    let second = map(&[("1/A", "a2"), ("1/C", "c1"), ("1/D", "d2")]);
    assert_eq!(answers(dir), second);
    publisher
        .publish_delta(30, |file, _| {
            builder(&[("1/b", Some("b3")), ("1/d", None)], false, OPTIONS).finish(file)
        })
        .unwrap();
    let third = map(&[("1/A", "a2"), ("1/B", "b3"), ("1/C", "c1")]);
    assert_eq!(answers(dir), third);

    // Merges the two newest layers while another delta is published above them.
    let stager = publisher.stager();
    let merged = stager.stage_merge(publisher.manifest().unwrap(), 0..2, 35, go_on).unwrap();
    assert_eq!(merged.header().tombstones_count, 2, "the base is still below");
    publisher
        .publish_delta(40, |file, _| builder(&[("1/e", Some("e4"))], false, OPTIONS).finish(file))
        .unwrap();
    assert_eq!(publisher.prune(SystemTime::now(), NO_GRACE).unwrap().files_count, 0, "staged or published");
    publisher.publish(merged, 50).unwrap();
    let fifth = map(&[("1/A", "a2"), ("1/B", "b3"), ("1/C", "c1"), ("1/E", "e4")]);
    assert_eq!(answers(dir), fifth);
    assert_eq!(publisher.manifest().unwrap().layers.len(), 3);

    // A merge of all layers drops deletions.
    let all = publisher.stager().stage_merge(publisher.manifest().unwrap(), 0..3, 55, go_on).unwrap();
    assert_eq!(all.header().tombstones_count, 0);
    publisher.publish(all, 60).unwrap();
    assert_eq!(answers(dir), fifth);
    assert_eq!(publisher.manifest().unwrap().layers.len(), 1);

    let hour = Duration::from_secs(3600);
    assert_eq!(publisher.prune(SystemTime::now(), hour).unwrap().files_count, 0, "grace");
    assert_eq!(publisher.prune(SystemTime::now() + hour, hour).unwrap().files_count, 5);
    assert_eq!(answers(dir), fifth);
    // Removed files stay readable for sets that have them open.
    assert_eq!(first.verify().unwrap().len(), 1);
    assert_eq!(PublishedSet::reopen(&first).unwrap().generation(), 6);
}

#[test]
fn refuses_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut publisher = SetPublisher::open(dir).unwrap();
    assert!(matches!(SetPublisher::open(dir).map(|_| ()).unwrap_err().kind, SetErrorKind::Locked));
    let one = [("1/a", Some("a"))];
    let publish = |publisher: &mut SetPublisher, is_base, homed, options| {
        let write = |file, _: &Path| builder(&one, homed, options).finish(file);
        match is_base {
            true => publisher.publish_base(1, write).map(|_| ()),
            false => publisher.publish_delta(1, write).map(|_| ()),
        }
    };
    let delta_first = publish(&mut publisher, false, false, OPTIONS).unwrap_err();
    assert!(matches!(delta_first.kind, SetErrorKind::Refused(_)), "{delta_first}");
    let not_homed = publish(&mut publisher, true, false, OPTIONS).unwrap_err();
    assert!(matches!(not_homed.kind, SetErrorKind::Refused(_)), "{not_homed}");
    publish(&mut publisher, true, true, OPTIONS).unwrap();
    for options in [LayerOptions { seed: 43, ..OPTIONS }, LayerOptions { folds: false, ..OPTIONS }] {
        let mixed = publish(&mut publisher, false, false, options).unwrap_err();
        assert!(matches!(mixed.kind, SetErrorKind::Mixed), "{mixed}");
        publish(&mut publisher, true, true, options).unwrap();
        publish(&mut publisher, true, true, OPTIONS).unwrap();
    }
    let twice = [("1/a", Some("a")), ("1/A", Some("a"))];
    let duplicate =
        refusal(publisher.publish_delta(1, |file, _| builder(&twice, false, OPTIONS).finish(file)));
    assert!(matches!(duplicate, SetErrorKind::Build(_)));

    // A merge of layers that have left the set in the meantime.
    publish(&mut publisher, false, false, OPTIONS).unwrap();
    let merged = publisher.stager().stage_merge(publisher.manifest().unwrap(), 0..2, 1, go_on).unwrap();
    publish(&mut publisher, true, true, OPTIONS).unwrap();
    assert!(matches!(refusal(publisher.publish(merged, 1)), SetErrorKind::Refused(_)));

    // Publishes more layers than are allowed.
    let mut published = 1;
    let too_many = loop {
        match publish(&mut publisher, false, false, OPTIONS) {
            Ok(()) => published += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(published, handle_snapshot::set::manifest::LAYERS_MAX);
    assert!(too_many.to_string().contains("merge"), "{too_many}");
    drop(publisher);
    SetPublisher::open(dir).unwrap();
}

/// Publishes a delta that includes store 7 up to `transaction`.
fn publish_change(publisher: &mut SetPublisher, transaction: u64, records: &[(&str, Option<&str>)]) {
    let write = |file, _: &Path| builder(records, false, OPTIONS).finish(file);
    let layer = publisher.stager().stage(LayerPosition::Delta, write).unwrap();
    let layer = layer.showing(SetOrigin { store: 7, transaction });
    publisher.publish(layer, transaction * 1000).unwrap();
}

#[test]
fn a_delta_takes_the_place_of_the_newest_layers() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    publisher
        .publish_base(1, |file, _| {
            builder(&[("1/a", Some("a1")), ("1/b", Some("b1"))], true, OPTIONS).finish(file)
        })
        .unwrap();
    assert_eq!(publisher.manifest().unwrap().source, None);
    publish_change(&mut publisher, 2, &[("1/a", Some("a2")), ("1/c", Some("c2"))]);
    publish_change(&mut publisher, 3, &[("1/b", None)]);
    let below = publisher.manifest().unwrap().layers.clone();
    // The content of the two deltas, and more: 1/c is deleted, 1/d is new.
    let all = [("1/a", Some("a2")), ("1/b", None), ("1/c", None), ("1/d", Some("d4"))];
    let stage = |publisher: &SetPublisher, gone: &[_]| {
        let write = |file, _: &Path| builder(&all, false, OPTIONS).finish(file);
        publisher.stager().stage(LayerPosition::Absorbing(gone.to_vec()), write).unwrap()
    };
    let (late, layer) = (stage(&publisher, &below[..2]), stage(&publisher, &below[..2]));
    let candidate = publisher.candidate(std::slice::from_ref(&layer), 5).unwrap();
    let entry = layer.entry().clone();
    let manifest =
        publisher.publish(layer.showing(SetOrigin { store: 7, transaction: 4 }), 5).unwrap().clone();
    assert_eq!((&candidate.layers, candidate.handles_count), (&manifest.layers, 2));
    assert_eq!(manifest.layers, [entry, below[2].clone()]);
    assert_eq!(manifest.source, Some(SetOrigin { store: 7, transaction: 4 }));
    assert_eq!(answers(dir.path()), map(&[("1/A", "a2"), ("1/D", "d4")]));
    assert!(matches!(refusal(publisher.publish(late, 6)), SetErrorKind::Refused(_)), "they are gone");
    // A merge shows the same state of the store as before.
    let merged = publisher.stager().stage_merge(&manifest, 0..2, 7, go_on).unwrap();
    publisher.publish(merged, 7).unwrap();
    assert_eq!(publisher.manifest().unwrap().source, Some(SetOrigin { store: 7, transaction: 4 }));
    assert_eq!(answers(dir.path()), map(&[("1/A", "a2"), ("1/D", "d4")]));
    let stopped = publisher.stager().stage_merge(&manifest, 0..2, 8, |_| ControlFlow::Break(()));
    assert!(matches!(stopped.unwrap_err().kind, SetErrorKind::Build(BuildError::Stopped)));
}

#[test]
fn a_base_and_what_changed_since_come_together() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    assert!(matches!(refusal(publisher.publish_together(Vec::new(), 1)), SetErrorKind::Refused(_)));
    publisher
        .publish_base(1, |file, _| builder(&[("1/old", Some("1"))], true, OPTIONS).finish(file))
        .unwrap();
    // With another seed: new layers only have to match each other.
    let options = LayerOptions { seed: 43, ..OPTIONS };
    let stage = |publisher: &SetPublisher, position: LayerPosition, records: &[_], options| {
        let is_base = position == LayerPosition::Base;
        let write = |file, _: &Path| builder(records, is_base, options).finish(file);
        publisher.stager().stage(position, write).unwrap()
    };
    let base = [("1/a", Some("2")), ("1/b", Some("2"))];
    let delta = [("1/a", None), ("1/c", Some("3"))];
    let layers = vec![
        stage(&publisher, LayerPosition::Base, &base, options),
        stage(&publisher, LayerPosition::Delta, &delta, options)
            .showing(SetOrigin { store: 1, transaction: 3 }),
    ];
    let manifest = publisher.publish_together(layers, 3).unwrap();
    assert_eq!((manifest.generation, manifest.layers.len(), manifest.handles_count), (2, 2, 2));
    assert_eq!(manifest.source, Some(SetOrigin { store: 1, transaction: 3 }));
    let set = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
    let find = |key: &[u8]| set.records().find(hash_key(43, key), key).unwrap().is_some();
    assert_eq!([b"1/OLD".as_slice(), b"1/A", b"1/B", b"1/C"].map(find), [false, false, true, true]);
    let layers = vec![
        stage(&publisher, LayerPosition::Base, &base, OPTIONS),
        stage(&publisher, LayerPosition::Delta, &delta, options),
    ];
    assert!(matches!(refusal(publisher.publish_together(layers, 4)), SetErrorKind::Mixed));
}

#[test]
fn a_hold_stays_until_it_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    assert_eq!(publisher.hold_reason().unwrap(), None);
    publisher.hold("because").unwrap();
    publisher.hold("because of that").unwrap();
    drop(publisher);
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    assert_eq!(publisher.hold_reason().unwrap().as_deref(), Some("because of that"));
    publisher.resume().unwrap();
    publisher.resume().unwrap();
    assert_eq!(publisher.hold_reason().unwrap(), None);
}

#[test]
fn kept_generations_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, minute) = (dir.path(), Duration::from_secs(60));
    let mut publisher = SetPublisher::open(dir).unwrap();
    publisher.keep().unwrap();
    assert!(publisher.kept_manifests().unwrap().is_empty(), "there is nothing to keep");
    let base = |url| move |file, _: &Path| builder(&[("1/a", Some(url))], true, OPTIONS).finish(file);
    publisher.publish_base(1000, base("one")).unwrap();
    publish_change(&mut publisher, 2, &[("1/a", Some("two")), ("1/b", Some("two"))]);
    publisher.keep().unwrap();
    publisher.keep().unwrap();
    publish_change(&mut publisher, 3, &[("1/a", None)]);
    publisher.publish_base(4000, base("four")).unwrap();
    // Much later, the kept layers are still there. The third layer, which only generation 3 had, is
    // removed.
    assert_eq!(publisher.prune(SystemTime::now() + minute, minute).unwrap().files_count, 1);
    let kept: Vec<_> = publisher.kept_manifests().unwrap().iter().map(|set| set.generation).collect();
    assert_eq!(kept, [2]);
    assert!(matches!(refusal(publisher.roll_back(3, 5)), SetErrorKind::Refused(_)));

    let rolled_back = publisher.roll_back(2, 5000).unwrap();
    assert_eq!((rolled_back.generation, rolled_back.created_unix_ms), (5, 5000));
    assert_eq!(rolled_back.source, Some(SetOrigin { store: 7, transaction: 2 }));
    assert_eq!(answers(dir), map(&[("1/A", "two"), ("1/B", "two")]));

    // After a rollback the kept generation can be forgotten; its layers stay, because they are
    // published.
    publisher.forget(2, 6000).unwrap();
    assert_eq!(publisher.prune(SystemTime::now() + minute, minute).unwrap().files_count, 1, "of four");
    assert_eq!(answers(dir), map(&[("1/A", "two"), ("1/B", "two")]));
    let unknown = publisher.forget(2, 7000).unwrap_err();
    assert!(matches!(unknown.kind, SetErrorKind::Refused(_)), "{unknown}");

    // An unreadable kept generation keeps nothing, and an incomplete one cannot be rolled back to.
    publisher.keep().unwrap();
    fs::write(dir.join("MANIFEST-0000000001"), "torn").unwrap();
    publisher.publish_base(8000, base("eight")).unwrap();
    assert_eq!(publisher.kept_manifests().unwrap().len(), 1);
    let gone = publisher.kept_manifests().unwrap()[0].layers[0].file.clone();
    fs::remove_file(dir.join(gone)).unwrap();
    assert!(matches!(refusal(publisher.roll_back(5, 9000)), SetErrorKind::Io { .. }));
    assert_eq!(answers(dir), map(&[("1/A", "eight")]));
    publisher.prune(SystemTime::now() + minute, NO_GRACE).unwrap();
    assert!(!dir.join("MANIFEST-0000000001").exists() && dir.join("MANIFEST-0000000005").exists());
}

#[test]
fn grace_begins_when_a_set_stops_naming_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    let base = |file, _: &Path| builder(&[("1/a", Some("a"))], true, OPTIONS).finish(file);
    publisher.publish_base(1, base).unwrap();
    let later = SystemTime::now() + Duration::from_secs(1000);
    let later_unix_ms = later.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    publisher.publish_base(u64::try_from(later_unix_ms).unwrap(), base).unwrap();
    let grace = Duration::from_secs(10);
    assert_eq!(publisher.prune(later + grace / 2, grace).unwrap().files_count, 0, "written long ago");
    assert_eq!(publisher.prune(later + grace, grace).unwrap().files_count, 1);
}

#[test]
fn says_which_file_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut publisher = SetPublisher::open(dir).unwrap();
    publisher.publish_base(1, |file, _| builder(&[("1/a", Some("a"))], true, OPTIONS).finish(file)).unwrap();
    let layer = publisher.manifest().unwrap().layers[0].file.clone();
    let whole = fs::read(dir.join(&layer)).unwrap();
    let open_with = |bytes: &[u8]| {
        let _ = fs::remove_file(dir.join(&layer));
        fs::write(dir.join(&layer), bytes).unwrap();
        PublishedSet::open(dir, LoadMode::Map)
    };
    assert!(open_with(&whole).is_ok());
    let mut torn = whole.clone();
    torn[20] ^= 1;
    let mut other = Vec::new();
    builder(&[("1/b", Some("b"))], true, OPTIONS).finish(Cursor::new(&mut other)).unwrap();
    for (bytes, expected) in [
        (&whole[..whole.len() - 1], "length"),
        (&torn, "does not match its checksum"),
        (&other, "not the file that MANIFEST names"),
    ] {
        let error = open_with(bytes).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&layer), "{error}");
    }
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let error = open_with(&flipped).unwrap().verify().unwrap_err().to_string();
    assert!(error.contains("index") && error.contains(&layer), "{error}");

    fs::remove_file(dir.join(&layer)).unwrap();
    let error = PublishedSet::open(dir, LoadMode::Map).unwrap_err().to_string();
    assert!(error.contains(&layer), "{error}");
    let _ = fs::remove_file(dir.join(MANIFEST));
    fs::write(dir.join(MANIFEST), "generation 5\n").unwrap();
    let error = PublishedSet::open(dir, LoadMode::Map).unwrap_err().to_string();
    assert!(error.contains(MANIFEST) && error.contains("cut short"), "{error}");
}

// A directory in memory that loses what was not synced.

#[derive(Clone, Debug, Default)]
struct Inode {
    now: Vec<u8>,
    synced: Vec<u8>,
    is_synced: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    names_synced: BTreeMap<String, usize>,
    changes: Vec<Change>,
    steps: usize,
    stop_at: Option<usize>,
    /// A file of this name is removed as soon as it exists.
    robbed: Option<&'static str>,
}

fn apply(names: &mut BTreeMap<String, usize>, change: &Change) {
    match change {
        Change::Create(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        Change::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        Change::Remove(name) => {
            names.remove(name);
        }
    }
}

impl State {
    /// Counts a step; from `stop_at` on, every step fails.
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        match self.stop_at {
            Some(stop_at) if self.steps > stop_at => Err(io::Error::other("the power failed")),
            _ => Ok(()),
        }
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.names, &change);
        self.changes.push(change);
    }

    /// The files after a power failure; `random` decides which unsynced writes reached the disk.
    fn after_crash(&self, random: &mut impl FnMut() -> u64) -> BTreeMap<String, Vec<u8>> {
        let mut names = self.names_synced.clone();
        for change in &self.changes {
            if !random().is_multiple_of(3) {
                apply(&mut names, change);
            }
        }
        let content = |inode: &Inode, random: &mut dyn FnMut() -> u64| {
            let mut bytes = inode.now.clone();
            match random() % 5 {
                _ if inode.is_synced => {}
                0 => bytes.clone_from(&inode.synced),
                1 => bytes.clear(),
                2 => bytes.fill(0),
                3 => bytes.truncate(usize::try_from(random()).unwrap() % (bytes.len() + 1)),
                _ => {}
            }
            bytes
        };
        names.into_iter().map(|(name, inode)| (name, content(&self.inodes[inode], random))).collect()
    }
}

#[derive(Clone, Debug)]
struct FaultyStorage(Arc<Mutex<State>>, PathBuf);

struct FaultyFile(Arc<Mutex<State>>, usize, usize);

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock().unwrap();
        let step = state.step();
        // A failed write may have written a part.
        let len = if step.is_ok() { bytes.len() } else { bytes.len() / 2 };
        let inode = &mut state.inodes[self.1];
        let end = self.2 + len;
        if inode.now.len() < end {
            inode.now.resize(end, 0);
        }
        inode.now[self.2..end].copy_from_slice(&bytes[..len]);
        inode.is_synced = false;
        self.2 = end;
        step.map(|()| len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for FaultyFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let SeekFrom::Start(at) = to else { return Err(io::ErrorKind::Unsupported.into()) };
        self.2 = usize::try_from(at).unwrap();
        Ok(at)
    }
}

impl Storage for FaultyStorage {
    type File = FaultyFile;
    type Bytes = Vec<u8>;

    fn create(&self, name: &str) -> io::Result<FaultyFile> {
        let mut state = self.0.lock().unwrap();
        state.step()?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.change(Change::Create(name.into(), inode));
        Ok(FaultyFile(self.0.clone(), inode, 0))
    }

    fn sync(&self, file: &FaultyFile) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step()?;
        let inode = &mut state.inodes[file.1];
        inode.synced.clone_from(&inode.now);
        inode.is_synced = true;
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step()?;
        state.names_synced = state.names.clone();
        state.changes.clear();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step()?;
        state.change(Change::Rename(from.into(), to.into()));
        if state.robbed == Some(to) {
            state.change(Change::Remove(to.into()));
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if !state.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.step()?;
        state.change(Change::Remove(name.into()));
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<(String, u64, SystemTime)>> {
        let state = self.0.lock().unwrap();
        let file = |(name, &inode): (&String, &usize)| {
            (name.clone(), state.inodes[inode].now.len() as u64, SystemTime::UNIX_EPOCH)
        };
        Ok(state.names.iter().map(file).collect())
    }

    fn read(&self, name: &str, _len_max: usize) -> io::Result<Vec<u8>> {
        self.open(name)
    }

    fn open(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.0.lock().unwrap();
        let inode = state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(state.inodes[*inode].now.clone())
    }

    fn dir(&self) -> &Path {
        &self.1
    }
}

/// Publishes step by step: a base, a delta, a merge of both, which is kept, a delta, another that
/// replaces it, another base, and a rollback to the kept generation; with pruning in between.
fn publish_all(storage: FaultyStorage, mut after: impl FnMut(&FaultyStorage)) -> Result<(), SetError> {
    let mut publisher = SetPublisher::with_storage(storage.clone())?;
    let base = [("1/a", Some("a1")), ("1/b", Some("b1"))];
    publisher.publish_base(1, |file, _| builder(&base, true, OPTIONS).finish(file))?;
    after(&storage);
    let delta = [("1/a", Some("a2")), ("1/b", None), ("1/c", Some("c2"))];
    publisher.publish_delta(2, |file, _| builder(&delta, false, OPTIONS).finish(file))?;
    after(&storage);
    publisher.prune(SystemTime::now(), NO_GRACE)?;
    let merged = publisher.stager().stage_merge(publisher.manifest().unwrap(), 0..2, 3, go_on)?;
    publisher.publish(merged, 3)?;
    after(&storage);
    publisher.prune(SystemTime::now(), NO_GRACE)?;
    publisher.keep()?;
    publisher.publish_delta(4, |file, _| builder(&[("1/c", None)], false, OPTIONS).finish(file))?;
    after(&storage);
    let gone = publisher.manifest().unwrap().layers[..1].to_vec();
    let absorbing = [("1/c", None), ("1/d", Some("d5"))];
    let layer = publisher
        .stager()
        .stage(LayerPosition::Absorbing(gone), |file, _| builder(&absorbing, false, OPTIONS).finish(file))?;
    publisher.publish(layer, 5)?;
    after(&storage);
    publisher.prune(SystemTime::now(), NO_GRACE)?;
    let other = [("1/z", Some("z4"))];
    publisher.publish_base(6, |file, _| builder(&other, true, OPTIONS).finish(file))?;
    after(&storage);
    publisher.prune(SystemTime::now(), NO_GRACE)?;
    publisher.roll_back(3, 7)?;
    after(&storage);
    publisher.forget(3, 7)?;
    publisher.prune(SystemTime::now(), NO_GRACE)?;
    Ok(())
}

#[test]
fn a_set_that_is_taken_away_while_it_is_published_is_missing() {
    let storage = FaultyStorage(Arc::default(), std::env::temp_dir());
    storage.0.lock().unwrap().robbed = Some("MANIFEST");
    let mut publisher = SetPublisher::with_storage(storage.clone()).unwrap();
    let publish = |publisher: &mut SetPublisher<FaultyStorage>| {
        let base = [("1/a", Some("a1"))];
        publisher.publish_base(1, |file, _| builder(&base, true, OPTIONS).finish(file)).map(|_| ())
    };
    let error = publish(&mut publisher).unwrap_err();
    assert!(matches!(error.kind, SetErrorKind::NotPublished), "{error}");
    storage.0.lock().unwrap().robbed = None;
    publish(&mut publisher).unwrap();
    assert_eq!(publisher.manifest().unwrap().layers.len(), 1);
}

#[test]
fn after_a_crash_at_any_step_there_is_the_old_set_or_the_new_one() {
    let a = map(&[("1/A", "a1"), ("1/B", "b1")]);
    let b = map(&[("1/A", "a2"), ("1/C", "c2")]);
    let c = map(&[("1/A", "a2")]);
    let d = map(&[("1/A", "a2"), ("1/D", "d5")]);
    let z = map(&[("1/Z", "z4")]);
    let states = [None, Some(a), Some(b.clone()), Some(b.clone()), Some(c), Some(d), Some(z), Some(b)];
    let storage = |stop_at| {
        let state = State { stop_at, ..State::default() };
        FaultyStorage(Arc::new(Mutex::new(state)), std::env::temp_dir())
    };
    let mut steps_after = vec![0];
    let whole = storage(None);
    publish_all(whole.clone(), |storage| steps_after.push(storage.0.lock().unwrap().steps)).unwrap();
    let steps = whole.0.lock().unwrap().steps;
    assert_eq!(steps_after.len(), states.len());

    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed >> 8
    };
    for stop_at in 0..=steps {
        let storage = storage(Some(stop_at));
        assert_eq!(publish_all(storage.clone(), |_| {}).is_ok(), stop_at == steps);
        // Every set up to here was reported as published; the next one may or may not be there.
        let published = steps_after.iter().rposition(|&steps| steps <= stop_at).unwrap();
        for attempt in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            for (name, bytes) in storage.0.lock().unwrap().after_crash(&mut random) {
                fs::write(dir.path().join(name), bytes).unwrap();
            }
            let seen = match PublishedSet::open(dir.path(), LoadMode::Map) {
                Err(SetError { kind: SetErrorKind::NotPublished, .. }) => None,
                Err(error) => panic!("stopped at {stop_at}, attempt {attempt}: {error}"),
                Ok(_) => Some(answers(dir.path())),
            };
            let expected = &states[published..states.len().min(published + 2)];
            assert!(expected.contains(&seen), "stopped at {stop_at}, attempt {attempt}: {seen:?}");

            if attempt > 1 {
                continue;
            }
            let mut publisher = SetPublisher::open(dir.path()).unwrap();
            let again = [("1/again", Some("again"))];
            publisher.publish_base(9, |file, _| builder(&again, true, OPTIONS).finish(file)).unwrap();
            for kept in publisher.kept_manifests().unwrap() {
                publisher.forget(kept.generation, 9).unwrap();
            }
            publisher.prune(SystemTime::now() + Duration::from_secs(9), NO_GRACE).unwrap();
            assert_eq!(answers(dir.path()), map(&[("1/AGAIN", "again")]));
            let mut left: Vec<_> =
                fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
            left.sort();
            assert_eq!(left.len(), 3, "the layer, LOCK and MANIFEST: {left:?}");
        }
    }
}

#[test]
fn readers_see_whole_sets_while_a_publisher_works() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut publisher = SetPublisher::open(dir).unwrap();
    let generation = |n: u64| {
        let url = n.to_string();
        move |file, _: &Path| {
            builder(&[("1/a", Some(url.as_str())), ("1/b", Some(url.as_str()))], true, OPTIONS).finish(file)
        }
    };
    publisher.publish_base(0, generation(1)).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut set = PublishedSet::open(dir, LoadMode::Map).unwrap();
            while set.generation() < 30 {
                let next = PublishedSet::reopen(&set).unwrap();
                assert!(next.generation() >= set.generation());
                set = next;
                for key in [b"1/A", b"1/B"] {
                    let record = set.records().find(hash_key(OPTIONS.seed, key), key).unwrap().unwrap();
                    let value = record.values_in_order().next().unwrap().unwrap();
                    assert_eq!(text(value.data), set.generation().to_string());
                }
            }
        });
        for n in 2..=30 {
            publisher.publish_base(n, generation(n)).unwrap();
            // Prunes without grace, so that readers meet removed files.
            publisher.prune(SystemTime::now() + Duration::from_secs(1), NO_GRACE).unwrap();
        }
        reader.join().unwrap();
    });
}

#[test]
fn files_are_for_owner_and_group_and_the_lock_for_the_owner() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("sets/one");
    create_directory(&dir).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&dir), 0o750);
    // The mode of a lock file that an earlier version left open to others is corrected.
    fs::write(dir.join("LOCK"), "").unwrap();
    fs::set_permissions(dir.join("LOCK"), fs::Permissions::from_mode(0o644)).unwrap();
    let mut publisher = SetPublisher::open(&dir).unwrap();
    publisher.publish_base(1, |file, _| builder(&[], true, OPTIONS).finish(file)).unwrap();
    publisher.keep().unwrap();
    publisher.hold("a test").unwrap();
    let mut modes = BTreeMap::new();
    for file in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
        modes.insert(file.file_name().into_string().unwrap(), mode(&file.path()));
    }
    assert_eq!(modes.remove("LOCK"), Some(0o600));
    assert_eq!(modes.len(), 4, "{modes:?}");
    assert!(modes.values().all(|&mode| mode == 0o640), "{modes:?}");
}

#[test]
fn a_directory_that_exists_stays_as_it_is_and_groups_are_inherited() {
    let above = tempfile::tempdir().unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    fs::set_permissions(above.path(), fs::Permissions::from_mode(0o2711)).unwrap();
    create_directory(above.path()).unwrap();
    assert_eq!(mode(above.path()), 0o2711);
    let dir = above.path().join("set");
    create_directory(&dir).unwrap();
    assert_eq!(mode(&dir), 0o2750);
    fs::write(above.path().join("file"), "").unwrap();
    let error = create_directory(&above.path().join("file")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
}
