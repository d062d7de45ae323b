//! Long tasks: merges and rebuilds. They run beside publishing and hand over a layer at the end.

use super::check;
use super::delta::{UnfitFilter, homed_prefixes};
use super::error::PublishError;
use super::settings::PublishConfig;
use handle_daemon::clock::now_unix_ms;
use handle_snapshot::format::FLAG_FOLDS;
use handle_snapshot::set::manifest::{LayerEntry, Manifest, SetOrigin};
use handle_snapshot::set::stager::NewLayer;
use handle_snapshot::set::storage::Storage;
use handle_snapshot::set::{SetError, SetErrorKind};
use handle_snapshot::{BuildError, BuildProgress, Builder, LayerOptions, LayerPosition, NameRule, Stager};
use handle_store::{Store, StoreError, StoreRecord, StoreRecords as _, StoreSnapshot, StoredRecord};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Maximum time that a job sleeps to keep its rate before it checks whether it should end.
const NAP_MAX: Duration = Duration::from_millis(50);
/// Bytes of records that a rebuild reads before it checks whether it should end.
const CHUNK_LEN: usize = 256 << 10;
/// Such chunks that are read before they are needed.
const CHUNKS_AHEAD: usize = 4;

/// The source of the layer that a job makes.
#[derive(Clone, Debug)]
pub(super) enum JobInput {
    /// These layers of a set, by position.
    Merge(Manifest, Range<usize>),
    /// All records of the store.
    Rebuild,
}

/// A merge or a rebuild.
pub(super) struct PublishJob<S: Storage> {
    pub(super) number: u64,
    pub(super) input: JobInput,
    pub(super) stager: Stager<S>,
    pub(super) store: Arc<Store>,
    pub(super) config: Arc<PublishConfig>,
    pub(super) control: Arc<JobControl>,
}

/// Progress of a job, and the signals to it.
#[derive(Debug, Default)]
pub(super) struct JobControl {
    /// Records read.
    pub(super) records: AtomicU64,
    /// Whether all jobs are to end early.
    pub(super) stop: AtomicBool,
    /// Whether the job ignores its rate limit: there are many layers, or most records are not
    /// published.
    pub(super) hurry: AtomicBool,
}

/// A layer that a job has made.
#[derive(Debug)]
pub(super) struct JobOutput {
    pub(super) layer: NewLayer,
    /// The state of the store that the layer shows, if the layer contains all records.
    pub(super) source: Option<SetOrigin>,
    /// Records that exceed the limits of a layer.
    pub(super) left_out: u64,
}

impl<S: Storage> PublishJob<S> {
    /// The layers that a merge replaces.
    pub(super) fn takes(&self) -> &[LayerEntry] {
        match &self.input {
            JobInput::Merge(set, which) => &set.layers[which.clone()],
            JobInput::Rebuild => &[],
        }
    }

    /// Makes the layer.
    pub(super) fn run(&self) -> Result<JobOutput, PublishError> {
        let made = match &self.input {
            JobInput::Merge(set, which) => self.merge(set, which.clone())?,
            JobInput::Rebuild => self.rebuild()?,
        };
        if !self.config.check.command.is_empty() {
            check::ask(&self.config.check, self.dir()?, &self.alone(&made), &self.control.stop)?;
        }
        Ok(made)
    }

    fn dir(&self) -> Result<&Path, PublishError> {
        self.config.directory.as_deref().ok_or(PublishError::Refused("there is no directory to publish to"))
    }

    fn merge(&self, set: &Manifest, which: Range<usize>) -> Result<JobOutput, PublishError> {
        let pace = WritePace::new(&self.config, &self.control);
        let layer = self.stager.stage_merge(set, which, now_unix_ms(), |merging| {
            self.control.records.store(merging.records_count(), Ordering::Relaxed);
            pace.keep(merging.written_len())
        });
        Ok(JobOutput { layer: layer.map_err(stopped)?, source: None, left_out: 0 })
    }

    /// Sorts all records of a snapshot of the store in bounded memory.
    fn rebuild(&self) -> Result<JobOutput, PublishError> {
        let snapshot = self.store.snapshot()?;
        if snapshot.is_dumping()? {
            return Err(PublishError::Refused("a dump of the primary has begun"));
        }
        let source = SetOrigin { store: self.store.identity(), transaction: snapshot.last_id()? };
        let options =
            LayerOptions { seed: rand::random(), folds: snapshot.folds(), created_unix_ms: now_unix_ms() };
        let homed = homed_prefixes(&snapshot)?;
        let mut problem = None;
        let mut leaving = UnfitFilter::default();
        let layer = self.stager.stage(LayerPosition::Base, |file, temp_dir| {
            let report = |progress| {
                if let BuildProgress::Written { records, .. } = progress {
                    self.control.records.store(records, Ordering::Relaxed);
                }
            };
            let mut builder = Builder::new(temp_dir, options)
                .memory_len_max(self.config.memory_len)
                .homed(homed)
                .on_progress(report);
            if let Err(error) = self.take_all(&snapshot, &mut builder, &mut leaving) {
                return Err(match error {
                    RecordsError::Build(error) => error,
                    RecordsError::Store(error) => {
                        problem = Some(error);
                        BuildError::Stopped
                    }
                });
            }
            let pace = WritePace::new(&self.config, &self.control);
            let (out, header) =
                builder.finish(PacedWriter { out: self.stager.steady(file)?, len: 0, pace })?;
            Ok((out.out.into_inner()?, header))
        });
        if self.control.stop.load(Ordering::Relaxed) {
            return Err(PublishError::Stopped);
        }
        if let Some(problem) = problem {
            return Err(problem.into());
        }
        let layer = layer.map_err(stopped)?.showing(source);
        Ok(JobOutput { layer, source: Some(source), left_out: leaving.count() })
    }

    fn take_all(
        &self,
        snapshot: &StoreSnapshot,
        builder: &mut Builder<'_>,
        leaving: &mut UnfitFilter,
    ) -> Result<(), RecordsError> {
        let (sender, chunks) = sync_channel(CHUNKS_AHEAD);
        let records = snapshot.records()?;
        // One thread reads the store, and the other one encodes and sorts.
        std::thread::scope(|scope| {
            scope.spawn(move || read_chunks(records, &sender));
            let mut nth = 0;
            for chunk in chunks {
                let chunk: RecordChunk = chunk?;
                for (handle, stored) in chunk.iter() {
                    leaving.add(builder, nth, handle, StoreRecord::decode(stored)?.values)?;
                    nth += 1;
                }
                if self.control.stop.load(Ordering::Relaxed) {
                    return Err(BuildError::Stopped.into());
                }
            }
            Ok(())
        })
    }

    /// The set that the layer would be part of if no other set were published meanwhile.
    fn alone(&self, made: &JobOutput) -> Manifest {
        let entry = made.layer.entry().clone();
        match &self.input {
            JobInput::Merge(set, which) => {
                let mut set = set.clone();
                set.layers.splice(which.clone(), [entry]);
                set.seal = None;
                set
            }
            JobInput::Rebuild => Manifest {
                epoch: 0,
                generation: 0,
                created_unix_ms: made.layer.header().created_unix_ms,
                handles_count: made.layer.header().handles_count,
                names: Some(NameRule::of(made.layer.header().flags & FLAG_FOLDS != 0)),
                root: made.layer.root().unwrap_or_default(),
                source: made.source,
                layers: vec![entry],
                seal: None,
            },
        }
    }
}

/// Some records of the store, one after the other in one piece of memory.
#[derive(Default)]
struct RecordChunk {
    bytes: Vec<u8>,
    /// The ends of the handle and of the stored form of each record.
    ends: Vec<(usize, usize)>,
}

impl RecordChunk {
    fn push(&mut self, record: &StoredRecord) {
        self.bytes.extend_from_slice(record.handle());
        let handle_end = self.bytes.len();
        self.bytes.extend_from_slice(record.as_bytes());
        self.ends.push((handle_end, self.bytes.len()));
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|ends| ends.1));
        starts
            .zip(&self.ends)
            .map(|(start, &(handle_end, end))| (&self.bytes[start..handle_end], &self.bytes[handle_end..end]))
    }
}

/// Sends records in chunks, until there are no more, an error is sent, or the receiver is gone.
fn read_chunks(
    records: impl Iterator<Item = Result<StoredRecord, StoreError>>,
    sender: &SyncSender<Result<RecordChunk, StoreError>>,
) {
    let mut chunk = RecordChunk::default();
    for record in records {
        match record {
            Ok(record) => chunk.push(&record),
            Err(error) => return drop(sender.send(Err(error))),
        }
        if chunk.bytes.len() >= CHUNK_LEN && sender.send(Ok(std::mem::take(&mut chunk))).is_err() {
            return;
        }
    }
    drop(sender.send(Ok(chunk)));
}

/// Errors while records are read from the store.
enum RecordsError {
    Build(BuildError),
    Store(StoreError),
}

impl From<BuildError> for RecordsError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl From<StoreError> for RecordsError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Distinguishes a requested end from a failure.
fn stopped(error: SetError) -> PublishError {
    match error.kind {
        SetErrorKind::Build(BuildError::Stopped) => PublishError::Stopped,
        _ => error.into(),
    }
}

/// Limits the rate of writing by sleeping.
struct WritePace<'a> {
    started: Instant,
    bytes_per_s: u64,
    control: &'a JobControl,
}

impl<'a> WritePace<'a> {
    fn new(config: &PublishConfig, watch: &'a JobControl) -> Self {
        Self { started: Instant::now(), bytes_per_s: config.merge_bytes_per_s, control: watch }
    }

    fn keep(&self, written_len: u64) -> ControlFlow<()> {
        loop {
            if self.control.stop.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            let ahead = ahead(written_len, self.bytes_per_s, self.started.elapsed());
            if ahead.is_zero() || self.control.hurry.load(Ordering::Relaxed) {
                return ControlFlow::Continue(());
            }
            std::thread::sleep(ahead.min(NAP_MAX));
        }
    }
}

/// A writer with a rate limit, which fails when the job is to end.
struct PacedWriter<'a, W> {
    out: W,
    len: u64,
    pace: WritePace<'a>,
}

impl<W: Write> Write for PacedWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.out.write(bytes)?;
        self.len += len as u64;
        match self.pace.keep(self.len) {
            ControlFlow::Continue(()) => Ok(len),
            ControlFlow::Break(()) => Err(io::Error::other(PublishError::Stopped)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Seek> Seek for PacedWriter<'_, W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.out.seek(to)
    }
}

/// The time by which this many bytes, written after `elapsed`, are ahead of the rate; zero with a
/// rate of 0.
fn ahead(written_len: u64, bytes_per_s: u64, elapsed: Duration) -> Duration {
    if bytes_per_s == 0 {
        return Duration::ZERO;
    }
    let micros = u128::from(written_len) * 1_000_000 / u128::from(bytes_per_s);
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).saturating_sub(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_by_waiting() {
        let second = Duration::from_secs(1);
        assert_eq!(ahead(0, 100, Duration::ZERO), Duration::ZERO);
        assert_eq!(ahead(100, 100, Duration::ZERO), second);
        assert_eq!(ahead(300, 100, second), 2 * second);
        assert_eq!(ahead(300, 100, 4 * second), Duration::ZERO, "late, and nothing is made up for");
        assert_eq!(ahead(u64::MAX, 0, Duration::ZERO), Duration::ZERO, "no limit");
        assert!(ahead(u64::MAX, 1, Duration::ZERO) > second);
    }

    #[test]
    fn waiting_ends_on_stop() {
        let watch = JobControl::default();
        let pace = WritePace { started: Instant::now(), bytes_per_s: 1, control: &watch };
        watch.hurry.store(true, Ordering::Relaxed);
        assert!(pace.keep(1 << 40).is_continue());
        watch.stop.store(true, Ordering::Relaxed);
        assert!(pace.keep(1 << 40).is_break());
        let mut paced = PacedWriter { out: io::Cursor::new(Vec::new()), len: 0, pace };
        assert!(paced.write_all(b"x").is_err());
        watch.stop.store(false, Ordering::Relaxed);
        paced.write_all(b"y").unwrap();
        assert_eq!((paced.len, paced.out.get_ref().as_slice()), (2, b"xy".as_slice()));
    }
}
