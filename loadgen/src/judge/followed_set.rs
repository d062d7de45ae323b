//! Published sets: handles to ask for, expected answers, and the times of replacements.

use std::borrow::Cow;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use handle_proto::Handle;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_snapshot::set::manifest::MANIFEST;
use handle_snapshot::{EncodedRecord, LoadMode, PublishedSet, fold_key, hash_key};

use crate::clock::Clock;
use crate::error::Error;
use crate::judge::expect::EachValue;
use crate::judge::verify::{ContentSource, SetContent, SetGeneration, SharedTimeline, Timeline};
use crate::load::workload::RequestSampler;
use crate::read::Interrupt;

/// How often the directory is checked. Sets are published much less often, so that none is missed.
const POLL: Duration = Duration::from_millis(2);

/// File times have the resolution of the kernel tick: they are at most this much too early.
const FILE_TIME_ERROR_NS: i64 = 10_000_000;

/// Opens the set published in `dir`.
///
/// # Errors
///
/// If there is none, or it is not intact.
pub fn open(dir: &Path) -> Result<PublishedSet, Error> {
    PublishedSet::open(dir, LoadMode::Map).map_err(|error| damaged(dir, &error))
}

fn damaged(dir: &Path, reason: &impl ToString) -> Error {
    Error::Snapshot { path: dir.to_owned(), reason: reason.to_string() }
}

/// Offers every handle of a set once, except deleted ones and those that a server with this set
/// does not answer from it, as the record of a prefix whose place is at the registry.
///
/// # Errors
///
/// If a layer is damaged, or the user stopped it.
pub(crate) fn read_handles(
    set: &PublishedSet,
    sampler: &mut RequestSampler,
    interrupt: &mut Interrupt<'_>,
) -> Result<(), Error> {
    let (homed, folds) = (set.records().homed_table(), set.records().folds());
    for (i, layer) in set.layers().iter().enumerate() {
        let newer = &set.layers()[..i];
        for record in layer.records() {
            let record = record.map_err(|error| damaged(set.dir(), &error))?;
            interrupt.step()?;
            if record.is_tombstone() {
                continue;
            }
            let hash = hash_key(layer.seed(), record.key());
            let mut is_newest = true;
            for layer in newer {
                let found = layer.find(hash, record.key()).map_err(|error| damaged(set.dir(), &error))?;
                is_newest &= found.is_none();
            }
            if is_newest {
                match homed.is_none_or(|homed| homed.has_record(record.key(), folds)) {
                    true => sampler.offer(record.key()),
                    false => sampler.leave_out(),
                }
            }
        }
    }
    Ok(())
}

/// A set as reference data.
#[derive(Debug)]
struct SetSource(PublishedSet);

impl SetSource {
    fn find(&self, name: &[u8]) -> Result<Option<EncodedRecord<'_>>, String> {
        let records = self.0.records();
        let mut buffer = [0; HANDLE_LEN_MAX];
        let Some(key) = buffer.get_mut(..name.len()) else { return Ok(None) };
        key.copy_from_slice(name);
        fold_key(key, records.folds());
        let seed = self.0.layers().first().map_or(0, handle_snapshot::Layer::seed);
        records.find(hash_key(seed, key), key).map_err(|error| error.to_string())
    }
}

/// The name under which `handle` is looked up.
fn looked_up(handle: &[u8]) -> Cow<'_, [u8]> {
    if handle.contains(&b'/') { handle.into() } else { Handle(handle).looked_up().into() }
}

impl ContentSource for SetSource {
    fn each_value(&self, handle: &[u8], each: EachValue<'_>) -> Result<(), String> {
        let Some(record) = self.find(&looked_up(handle))? else { return Ok(()) };
        let mut values = record.values_in_order();
        while let Some(value) = values.next_encoded() {
            let (value, encoded) = value.map_err(|error| error.to_string())?;
            each(&value, encoded);
        }
        Ok(())
    }

    fn content_of(&self, handle: &[u8]) -> Result<SetContent<'_>, String> {
        let name = &*looked_up(handle);
        if name.len() > HANDLE_LEN_MAX {
            return Ok(SetContent::Absent);
        }
        let records = self.0.records();
        let is_homed = || {
            // A set of a few layers without any table has nothing to tell homed prefixes by.
            records.homed_table().is_none_or(|homed| homed.has_record(name, records.folds()))
        };
        match self.find(name)? {
            // A server refers to the service that has it, and a gateway may answer from the set.
            Some(_) if !is_homed() => Ok(SetContent::Unknown),
            Some(record) if record.public_count() == 0 => Ok(SetContent::NothingPublic),
            Some(record) => Ok(SetContent::Values {
                count: u32::try_from(record.public_count()).map_err(|error| error.to_string())?,
                bytes: record.public_bytes(),
            }),
            None if records.homed(Handle(name).naming_authority()) => Ok(SetContent::Absent),
            None => Ok(SetContent::Remote),
        }
    }
}

/// Follows the sets published in a directory.
#[derive(Debug)]
pub struct Follower {
    set: PublishedSet,
    shared_timeline: Arc<SharedTimeline>,
    timeline: Timeline,
    seen: Option<FileId>,
    clock: Clock,
    keep_ns: i64,
    followed: FollowReport,
}

/// Identifies a MANIFEST, to detect a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    inode: u64,
    len: u64,
    changed_unix_ns: i128,
}

impl FileId {
    fn of(file: &Metadata) -> Self {
        let changed_unix_ns = i128::from(file.ctime()) * 1_000_000_000 + i128::from(file.ctime_nsec());
        Self { inode: file.ino(), len: file.len(), changed_unix_ns }
    }
}

/// What was observed in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowReport {
    /// Sets that were opened, including the first.
    pub opened: u64,
    /// Sets that were replaced between two checks.
    pub missed: u64,
    /// Checks at which the set could not be opened.
    pub failed: u64,
}

impl Follower {
    /// Starts with `set`, which counts as always present; keeps sets for `keep_ns` after their end.
    #[must_use]
    pub fn new(set: PublishedSet, clock: Clock, keep_ns: i64) -> Self {
        let source: Arc<dyn ContentSource> = Arc::new(SetSource(set.clone()));
        let mut timeline = Timeline::default();
        let first = SetGeneration {
            number: set.generation(),
            from_ns: i64::MIN,
            until_ns: i64::MAX,
            source: Some(source),
        };
        timeline.publish(first, 0, i64::MIN);
        Self {
            shared_timeline: Arc::new(SharedTimeline::new(timeline.clone(), 0)),
            set,
            timeline,
            seen: None,
            clock,
            keep_ns,
            followed: FollowReport { opened: 1, ..FollowReport::default() },
        }
    }

    /// The shared timeline that it updates.
    #[must_use]
    pub fn watch(&self) -> Arc<SharedTimeline> {
        Arc::clone(&self.shared_timeline)
    }

    /// Checks the directory repeatedly until `stop`, and returns the observations.
    pub fn follow(mut self, stop: &AtomicBool) -> FollowReport {
        while !stop.load(Ordering::Relaxed) {
            self.look();
            std::thread::sleep(POLL);
        }
        self.followed
    }

    /// Checks once. Afterwards the timeline has all sets that were published before the check
    /// began.
    pub fn look(&mut self) {
        let looked_ns = self.clock.now_ns().cast_signed();
        let path = self.set.dir().join(MANIFEST);
        let file = path.metadata().ok().map(|file| FileId::of(&file));
        if file != self.seen {
            match PublishedSet::reopen(&self.set) {
                Ok(set) => {
                    // The file time is valid only if it belongs to the opened file.
                    let after = path.metadata().ok().map(|file| FileId::of(&file));
                    self.take(set, file.filter(|_| file == after));
                    self.seen = file;
                }
                Err(_) => self.followed.failed += 1,
            }
        }
        self.shared_timeline.set_complete(looked_ns);
    }

    fn take(&mut self, set: PublishedSet, file: Option<FileId>) {
        let (old, new) = (self.set.generation(), set.generation());
        if old == new {
            return;
        }
        let now_ns = self.clock.now_ns().cast_signed();
        let from_ns = self.clock.from_unix_ns(i128::from(set.created_unix_ms()) * 1_000_000);
        // The end of the old set: the time at which the new MANIFEST took its name according to the
        // file system, or else now. Never before the new set was made.
        let published_ns = file.map_or(now_ns, |file| {
            self.clock.from_unix_ns(file.changed_unix_ns).saturating_add(FILE_TIME_ERROR_NS).min(now_ns)
        });
        let published_ns = published_ns.max(from_ns.min(now_ns));
        let forget_ns = now_ns.saturating_sub(self.keep_ns);
        if new != old + 1 {
            self.followed.missed += new.saturating_sub(old + 1).max(1);
            let since = self.timeline.newest().map_or(i64::MIN, |newest| newest.from_ns);
            let missed =
                SetGeneration { number: old + 1, from_ns: since, until_ns: published_ns, source: None };
            self.timeline.publish(missed, published_ns, forget_ns);
        }
        self.followed.opened += 1;
        let source: Arc<dyn ContentSource> = Arc::new(SetSource(set.clone()));
        let generation = SetGeneration { number: new, from_ns, until_ns: i64::MAX, source: Some(source) };
        self.timeline.publish(generation, published_ns, forget_ns);
        self.shared_timeline.update(self.timeline.clone());
        self.set = set;
    }
}
