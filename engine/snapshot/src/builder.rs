//! Builds one layer file from records in any order, in bounded memory.

use crate::encode::{Encoder, tombstone};
use crate::format::{KEY_LEN_MAX, LayerHeader, RECORD_ALIGN, RECORD_HEAD_LEN, RecordHead, hash_key};
use crate::merge::{Head, Merge, Source};
use crate::record::{EncodedRecord, RecordRefusal};
use crate::writer::{BUFFER_LEN, BuildError, HomedPrefixes, LayerOptions, LayerWriter};
use handle_proto::Value;
use std::boxed::Box;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::string::String;
use std::thread::JoinHandle;
use std::vec::Vec;

/// Memory for records, if the caller sets no other bound.
pub const MEMORY_LEN_DEFAULT: usize = 256 << 20;
/// Smallest buffer for reading a run back.
const RUN_BUFFER_LEN_MIN: usize = 16 << 10;
/// Largest buffer for reading a run back. Larger buffers do not make reading faster.
const RUN_BUFFER_LEN_MAX: usize = 1 << 20;
/// Records between two calls of the progress function.
const PROGRESS_EVERY: u64 = 1 << 16;
/// Bytes before each record of a run: its hash and its origin.
const RUN_HEAD_LEN: usize = 16;

/// Progress of a builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildProgress {
    /// Records added so far.
    Taken {
        /// Number of records.
        records: u64,
    },
    /// Records written so far, in order.
    Written {
        /// Number of records written.
        records: u64,
        /// Number of records in total.
        records_all: u64,
    },
}

/// Builds a layer from records in any order.
///
/// The builder keeps records in memory up to a bound. Whenever half of it is full, a thread sorts
/// these records and writes them as a run to a nameless temporary file, while the other half takes
/// further ones; at the end the runs are merged. Two records with the same key are an error, which
/// names the origins of both.
#[must_use = "without `finish` there is no layer"]
pub struct Builder<'p> {
    options: LayerOptions,
    temp_dir: PathBuf,
    memory_len_max: usize,
    progress: Option<Box<dyn FnMut(BuildProgress) + 'p>>,
    homed: Option<HomedPrefixes>,
    encoder: Encoder,
    batch: RecordBatch,
    runs: RunWriter,
    records_count: u64,
}

impl core::fmt::Debug for Builder<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Builder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<'p> Builder<'p> {
    /// Makes a builder that keeps [`MEMORY_LEN_DEFAULT`] bytes of records in memory, and the others
    /// in nameless files in `temp_dir`.
    pub fn new(temp_dir: &Path, options: LayerOptions) -> Self {
        Self {
            options,
            temp_dir: temp_dir.into(),
            memory_len_max: MEMORY_LEN_DEFAULT,
            progress: None,
            homed: None,
            encoder: Encoder::default(),
            batch: RecordBatch::default(),
            runs: RunWriter::default(),
            records_count: 0,
        }
    }

    /// Sets the most bytes of records that are kept in memory; one record is always kept.
    pub fn memory_len_max(mut self, len: usize) -> Self {
        self.memory_len_max = len.min(ARENA_LEN_MAX);
        self
    }

    /// Calls `progress` from time to time.
    pub fn on_progress(mut self, progress: impl FnMut(BuildProgress) + 'p) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Gives the layer a table of homed prefixes: these and those of earlier calls.
    ///
    /// Without a call, the table of an older layer stays in force.
    pub fn homed(mut self, homed: HomedPrefixes) -> Self {
        match &mut self.homed {
            Some(all) => all.extend(homed),
            none => *none = Some(homed),
        }
        self
    }

    /// Number of records added.
    pub const fn records_count(&self) -> u64 {
        self.records_count
    }

    /// Adds a record. `origin` is the caller's number for the position that the record comes from.
    ///
    /// # Errors
    /// When the record cannot be stored, or a temporary file cannot be written.
    pub fn add<'v>(
        &mut self,
        origin: u64,
        handle: &[u8],
        values: impl IntoIterator<Item = Value<'v>>,
    ) -> Result<(), BuildError> {
        let at = self.batch.arena.len();
        let result = self.encoder.record(&mut self.batch.arena, handle, self.options.folds, values);
        self.added(origin, handle, at, result)
    }

    /// Adds the deletion of a handle that an older layer has.
    ///
    /// # Errors
    /// When the handle cannot be stored, or a temporary file cannot be written.
    pub fn delete(&mut self, origin: u64, handle: &[u8]) -> Result<(), BuildError> {
        let at = self.batch.arena.len();
        let result = tombstone(&mut self.batch.arena, handle, self.options.folds);
        self.added(origin, handle, at, result)
    }

    fn added(
        &mut self,
        origin: u64,
        handle: &[u8],
        at: usize,
        result: Result<(), RecordRefusal>,
    ) -> Result<(), BuildError> {
        if let Err(why) = result {
            let handle = handle[..handle.len().min(KEY_LEN_MAX)].into();
            return Err(BuildError::Record { handle, origin, why });
        }
        let key = key_at(&self.batch.arena, at);
        let hash = hash_key(self.options.seed, key);
        self.batch.entries.push(SortEntry { hash, origin, at: unit(at) });
        self.records_count += 1;
        if self.batch.len() >= self.memory_len_max / 2 {
            self.spill()?;
        }
        if self.records_count.is_multiple_of(PROGRESS_EVERY) {
            let records = self.records_count;
            self.report(BuildProgress::Taken { records });
        }
        Ok(())
    }

    fn report(&mut self, progress: BuildProgress) {
        if let Some(report) = &mut self.progress {
            report(progress);
        }
    }

    fn spill(&mut self) -> Result<(), BuildError> {
        self.batch = self.runs.begin(core::mem::take(&mut self.batch), &self.temp_dir)?;
        Ok(())
    }

    /// Writes the layer to `out`, which must be empty, and returns it with its header.
    ///
    /// # Errors
    /// When two records have the same key, or a file cannot be written or read.
    pub fn finish<W: Write + Seek>(mut self, out: W) -> Result<(W, LayerHeader), BuildError> {
        let mut writer = LayerWriter::new(out, &self.temp_dir, self.options)?;
        if self.runs.has_begun() {
            if !self.batch.entries.is_empty() {
                self.spill()?;
            }
            self.batch = RecordBatch::default();
            let (runs, _) = self.runs.wait(&self.temp_dir)?;
            let sources = runs.sources(self.memory_len_max)?;
            self.write(Merge::new(sources), &mut writer)?;
        } else {
            let mut batch = core::mem::take(&mut self.batch);
            batch.sort();
            self.write(Merge::new(std::vec![InMemory { batch, next: 0 }]), &mut writer)?;
        }
        writer.finish(self.homed.as_ref())
    }

    fn write<W: Write + Seek, S: Source<Error = io::Error>>(
        &mut self,
        mut merge: Merge<S>,
        writer: &mut LayerWriter<W>,
    ) -> Result<(), BuildError> {
        let records_all = self.records_count;
        let mut last_origin = 0;
        while let Some(Head { hash, origin, record }) = merge.head() {
            writer.push_hashed(hash, &record).map_err(|error| match error {
                // The inputs are sorted, so a record that is not greater than the last one has the
                // same key.
                BuildError::Order { key } => {
                    BuildError::Duplicate { key, origins: [last_origin.min(origin), last_origin.max(origin)] }
                }
                error => error,
            })?;
            last_origin = origin;
            merge.advance()?;
            let records = writer.records_count();
            if records.is_multiple_of(PROGRESS_EVERY) || records == records_all {
                self.report(BuildProgress::Written { records, records_all });
            }
        }
        Ok(())
    }
}

/// Records in memory, in the form they have in the file, and their order.
#[derive(Debug, Default)]
struct RecordBatch {
    arena: Vec<u8>,
    entries: Vec<SortEntry>,
}

#[derive(Clone, Copy, Debug)]
struct SortEntry {
    hash: u64,
    origin: u64,
    /// Offset in the arena, in units of [`RECORD_ALIGN`].
    at: u32,
}

/// Most bytes that 32 bits of units can address, less the longest record.
const ARENA_LEN_MAX: usize = 16 << 30;

fn unit(at: usize) -> u32 {
    u32::try_from(at / RECORD_ALIGN).expect("the arena ends far below")
}

fn key_at(arena: &[u8], at: usize) -> &[u8] {
    let head = RecordHead::decode(arena[at..].first_chunk().expect("a record was written here"));
    &arena[at + RECORD_HEAD_LEN..][..head.key_len.into()]
}

impl RecordBatch {
    fn len(&self) -> usize {
        self.arena.len() + self.entries.len() * size_of::<SortEntry>()
    }

    fn clear(&mut self) {
        self.arena.clear();
        self.entries.clear();
    }

    fn sort(&mut self) {
        let arena = &self.arena;
        let key = |entry: &SortEntry| key_at(arena, entry.at as usize * RECORD_ALIGN);
        // Ordered by origin too, so that the error about a duplicate always names the same two
        // records.
        self.entries.sort_unstable_by(|a, b| {
            a.hash.cmp(&b.hash).then_with(|| key(a).cmp(key(b))).then(a.origin.cmp(&b.origin))
        });
    }

    fn record(&self, entry: &SortEntry) -> EncodedRecord<'_> {
        let at = entry.at as usize * RECORD_ALIGN;
        EncodedRecord::split(&self.arena[at..]).expect("a record was written here").0
    }
}

struct InMemory {
    batch: RecordBatch,
    next: usize,
}

impl Source for InMemory {
    type Error = io::Error;

    fn head(&self) -> Option<Head<'_>> {
        let entry = self.batch.entries.get(self.next)?;
        Some(Head { hash: entry.hash, origin: entry.origin, record: self.batch.record(entry) })
    }

    fn advance(&mut self) -> io::Result<()> {
        self.next += 1;
        Ok(())
    }
}

/// Sorts and writes runs in a thread of its own, one at a time.
#[derive(Default)]
struct RunWriter {
    /// The thread that writes the last run.
    thread: Option<JoinHandle<io::Result<(SortedRuns, RecordBatch)>>>,
}

impl RunWriter {
    const fn has_begun(&self) -> bool {
        self.thread.is_some()
    }

    /// Begins to write a run once the one before is written, and returns the memory of that one.
    fn begin(&mut self, mut batch: RecordBatch, temp_dir: &Path) -> io::Result<RecordBatch> {
        let (mut runs, spare) = self.wait(temp_dir)?;
        let write = move || {
            batch.sort();
            runs.write(&batch)?;
            batch.clear();
            Ok((runs, batch))
        };
        self.thread = Some(std::thread::Builder::new().name(String::from("sort")).spawn(write)?);
        Ok(spare)
    }

    /// Waits until all runs are written; returns them, and memory for the next one.
    fn wait(&mut self, temp_dir: &Path) -> io::Result<(SortedRuns, RecordBatch)> {
        match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => Ok((SortedRuns::new(temp_dir)?, RecordBatch::default())),
        }
    }
}

/// Sorted runs, one after the other in a nameless file.
struct SortedRuns {
    file: BufWriter<File>,
    at: u64,
    ends: Vec<u64>,
}

impl SortedRuns {
    fn new(temp_dir: &Path) -> io::Result<Self> {
        let file = BufWriter::with_capacity(BUFFER_LEN, tempfile::tempfile_in(temp_dir)?);
        Ok(Self { file, at: 0, ends: Vec::new() })
    }

    fn write(&mut self, batch: &RecordBatch) -> io::Result<()> {
        for entry in &batch.entries {
            let record = batch.record(entry).as_bytes();
            self.file.write_all(&entry.hash.to_le_bytes())?;
            self.file.write_all(&entry.origin.to_le_bytes())?;
            self.file.write_all(record)?;
            self.at += (RUN_HEAD_LEN + record.len()) as u64;
        }
        self.ends.push(self.at);
        Ok(())
    }

    fn sources(self, memory_len_max: usize) -> io::Result<Vec<SortedRun>> {
        let file = std::sync::Arc::new(self.file.into_inner()?);
        let len = (memory_len_max / self.ends.len()).clamp(RUN_BUFFER_LEN_MIN, RUN_BUFFER_LEN_MAX);
        let starts = core::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(at, &end)| SortedRun::open(file.clone(), at, end, len)).collect()
    }
}

/// Reads one run back through a buffer.
struct SortedRun {
    file: std::sync::Arc<File>,
    /// Offset in the file behind the buffered bytes, and the end of the run.
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    buffer_len: usize,
    head_at: usize,
    head_len: usize,
}

impl SortedRun {
    fn open(file: std::sync::Arc<File>, at: u64, end: u64, buffer_len: usize) -> io::Result<Self> {
        let mut run = Self { file, at, end, buffer: Vec::new(), buffer_len, head_at: 0, head_len: 0 };
        run.advance()?;
        Ok(run)
    }

    /// Ensures that the first `len` bytes of the run are in the buffer; `false` at the end of the
    /// run.
    fn fill(&mut self, len: usize) -> io::Result<bool> {
        let held = self.buffer.len() - self.head_at;
        if held >= len {
            return Ok(true);
        }
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let more = left.min(self.buffer_len.max(len) - held);
        if held + more < len {
            return Ok(false);
        }
        self.buffer.drain(..self.head_at);
        self.head_at = 0;
        self.buffer.resize(held + more, 0);
        self.file.read_exact_at(&mut self.buffer[held..], self.at)?;
        self.at += more as u64;
        Ok(true)
    }

    fn word(&self, nth: usize) -> u64 {
        let at = self.head_at + nth * 8;
        u64::from_le_bytes(*self.buffer[at..].first_chunk().expect("`advance` filled it"))
    }
}

impl Source for SortedRun {
    type Error = io::Error;

    fn head(&self) -> Option<Head<'_>> {
        if self.head_len == 0 {
            return None;
        }
        let record = &self.buffer[self.head_at..][..self.head_len][RUN_HEAD_LEN..];
        let (record, _) = EncodedRecord::split(record)?;
        Some(Head { hash: self.word(0), origin: self.word(1), record })
    }

    fn advance(&mut self) -> io::Result<()> {
        self.head_at += self.head_len;
        self.head_len = 0;
        if !self.fill(RUN_HEAD_LEN + RECORD_HEAD_LEN)? {
            return Ok(());
        }
        let head = self.buffer[self.head_at + RUN_HEAD_LEN..].first_chunk().expect("filled above");
        let len = RUN_HEAD_LEN + RecordHead::decode(head).record_len as usize;
        if !self.fill(len)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.head_len = len;
        Ok(())
    }
}
