//! Loads many records at once: sorts them first, then writes them in the order of the file.

use super::sorter::Sorter;
use super::tables::StoreTable;
use super::transaction::Transaction;
use super::{Store, StoreError, StoreRecords as _, key};
use handle_proto::limit::{HANDLE_LEN_MAX, VALUES_COUNT_MAX};
use handle_proto::{Value, Values};
use std::path::Path;

/// Bytes of records in one commit.
const COMMIT_BYTES: usize = 64 << 20;

/// Loads records and homed prefixes in any order, with bounded memory.
///
/// The store does not change until [`finish`](Self::finish), which writes in several commits of
/// whole records. The log has no entries for them; it only starts again, so mirrors and the
/// publisher reload everything.
#[derive(Debug)]
#[must_use = "without `finish` nothing is taken in"]
pub struct Bulk<'s> {
    store: &'s Store,
    sorter: Sorter,
    homed: Vec<Vec<u8>>,
    keeps_existing: bool,
    room: Vec<u8>,
}

/// Counts of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkCounts {
    /// Records written, each handle once.
    pub written: u64,
    /// Existing records left unchanged because of [`Bulk::keep_existing`].
    pub kept: u64,
}

/// Why a record cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfitRecord {
    /// The handle is too long.
    HandleTooLong,
    /// The record has too many values.
    TooManyValues,
    /// An index is below 1.
    BadIndex(i32),
    /// Two values have the same index.
    DuplicateIndex(i32),
}

impl std::fmt::Display for UnfitRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::HandleTooLong => write!(f, "the handle has more than {HANDLE_LEN_MAX} bytes"),
            Self::TooManyValues => write!(f, "there are more than {VALUES_COUNT_MAX} values"),
            Self::BadIndex(index) => write!(f, "the index {index} is below 1"),
            Self::DuplicateIndex(index) => write!(f, "two values have the index {index}"),
        }
    }
}

impl std::error::Error for UnfitRecord {}

/// Checks that `values` can be the record of `handle`, within the bounds of every record in the
/// store.
///
/// # Errors
/// Names the bound that is exceeded.
pub fn check_record<'v>(handle: &[u8], values: impl Iterator<Item = Value<'v>>) -> Result<(), UnfitRecord> {
    if handle.len() > HANDLE_LEN_MAX {
        return Err(UnfitRecord::HandleTooLong);
    }
    let mut seen = std::collections::BTreeSet::new();
    for value in values {
        if value.index < 1 {
            return Err(UnfitRecord::BadIndex(value.index));
        }
        if !seen.insert(value.index) {
            return Err(UnfitRecord::DuplicateIndex(value.index));
        }
        if seen.len() > VALUES_COUNT_MAX {
            return Err(UnfitRecord::TooManyValues);
        }
    }
    Ok(())
}

impl<'s> Bulk<'s> {
    pub(super) fn new(store: &'s Store, temp_dir: &Path, memory_bytes: usize) -> Self {
        let sorter = Sorter::new(temp_dir, memory_bytes);
        Self { store, sorter, homed: Vec::new(), keeps_existing: false, room: Vec::new() }
    }

    /// Leaves existing records unchanged; otherwise they are replaced.
    pub const fn keep_existing(mut self) -> Self {
        self.keeps_existing = true;
        self
    }

    /// Adds the record of `handle`; if it is added several times, the last one counts.
    ///
    /// `values` are stored as they are, with their timestamps.
    ///
    /// # Errors
    /// When a temporary file cannot be written.
    pub fn add(&mut self, handle: &[u8], values: Values<'_>) -> Result<(), StoreError> {
        self.room.clear();
        values.encode(&mut self.room);
        self.sorter.add(&key(handle, self.store.folds()), &self.room)
    }

    /// Homes `prefix`, as `10.1045` or `0.NA/10.1045`.
    pub fn home(&mut self, prefix: &[u8]) {
        self.homed.push(prefix.to_vec());
    }

    /// Writes everything.
    ///
    /// # Errors
    /// When a file cannot be read or written. Some of the records are then in the store; loading
    /// them again does no harm.
    pub fn finish(self, mut progress: impl FnMut(&BulkCounts)) -> Result<BulkCounts, StoreError> {
        let inner = &self.store.inner;
        let mut counts = BulkCounts::default();
        let homed = self.homed;
        // Done first, so that no reader relies on a log without the records that follow.
        self.store.change(move |transaction| {
            transaction.begin_log_anew()?;
            homed.iter().try_for_each(|prefix| transaction.home_unlogged(prefix))
        })?;
        let mut batch = BulkBatch::default();
        let keeps_existing = self.keeps_existing;
        let mut write = |batch: &mut BulkBatch| {
            let begun = inner.engine.begin_write()?;
            {
                let mut transaction = Transaction::new(begun.tables()?, inner.folds)?;
                let keys = batch.records().map(|(key, _)| key);
                transaction.tables.prefetch(StoreTable::Records, keys)?;
                for (key, values) in batch.records() {
                    if keeps_existing && transaction.record(key)?.is_some() {
                        counts.kept += 1;
                        continue;
                    }
                    let count = values.first_chunk().map_or(0, |count| u32::from_be_bytes(*count));
                    let values = Values::from_encoded(count as usize, values.get(4..).unwrap_or_default());
                    let damaged = |_| StoreError::Damaged("a sorted record does not decode");
                    transaction.put_unlogged(key, values.map_err(damaged)?)?;
                    counts.written += 1;
                }
                transaction.finish()?;
            }
            begun.commit()?;
            batch.clear();
            progress(&counts);
            Ok::<_, StoreError>(())
        };
        self.sorter.finish(|key, values| {
            batch.push(key, values);
            if batch.bytes.len() >= COMMIT_BYTES { write(&mut batch) } else { Ok(()) }
        })?;
        write(&mut batch)?;
        // Done again, so that a reader which looked in between reloads.
        self.store.change(|transaction| transaction.begin_log_anew())?;
        Ok(counts)
    }
}

/// The records of one commit.
#[derive(Debug, Default)]
struct BulkBatch {
    bytes: Vec<u8>,
    /// The ends of keys and values.
    ends: Vec<(usize, usize)>,
}

impl BulkBatch {
    fn push(&mut self, key: &[u8], values: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(values);
        self.ends.push((key_end, self.bytes.len()));
    }

    fn records(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|ends| ends.1));
        starts
            .zip(&self.ends)
            .map(|(start, &(key_end, end))| (&self.bytes[start..key_end], &self.bytes[key_end..end]))
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}
