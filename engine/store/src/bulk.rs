//! Loads many records at once: sorts them first, then writes them in the order of the file.

mod checkpoint;

pub use checkpoint::UnfinishedImport;

use super::filling::filling_order;
use super::sorter::Sorter;
use super::tables::StoreTable;
use super::transaction::Transaction;
use super::{Store, StoreError, StoreRecords as _, key};
use handle_proto::limit::{HANDLE_LEN_MAX, REFERENCES_COUNT_MAX, VALUES_COUNT_MAX, VALUES_LEN_MAX};
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::{Value, Values};
use std::path::Path;

/// Bytes of records in one commit, unless others are set.
const COMMIT_BYTES: usize = 64 << 20;

/// Loads records and homed prefixes in any order, with bounded memory.
///
/// The store does not change until [`finish`](Self::finish), which writes in several commits of
/// whole records. The log has no entries for them; it only starts again, so mirrors and the
/// publisher reload everything. An import that is interrupted between these commits can be resumed
/// with the same input.
#[derive(Debug)]
#[must_use = "without `finish` nothing is taken in"]
pub struct Bulk<'s> {
    store: &'s Store,
    sorter: Sorter,
    homed: Vec<Vec<u8>>,
    keeps_existing: bool,
    resumes: bool,
    commit_bytes: usize,
    dated_unix_s: u32,
    /// The hash of the records so far.
    input: InputHash,
    buffer: Vec<u8>,
}

/// Counts of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkCounts {
    /// Records written, each handle once.
    pub written: u64,
    /// Existing records left unchanged because of [`Bulk::keep_existing`].
    pub kept: u64,
    /// Records that the interrupted import has written or kept ([`Bulk::resume`]).
    pub resumed: u64,
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
    /// The value with this index has too many references.
    TooManyReferences(i32),
    /// All values together have this many bytes in wire form, which no message can carry.
    TooLong(usize),
}

impl std::fmt::Display for UnfitRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::HandleTooLong => write!(f, "the handle has more than {HANDLE_LEN_MAX} bytes"),
            Self::TooManyReferences(index) => {
                write!(f, "the value with index {index} has more than {REFERENCES_COUNT_MAX} references")
            }
            Self::TooLong(len) => write!(
                f,
                "the values take {len} bytes together; at most {VALUES_LEN_MAX} can be published and answered"
            ),
            Self::TooManyValues => write!(f, "there are more than {VALUES_COUNT_MAX} values"),
            Self::BadIndex(index) => write!(f, "the index {index} is below 1"),
            Self::DuplicateIndex(index) => write!(f, "two values have the index {index}"),
        }
    }
}

impl std::error::Error for UnfitRecord {}

/// Checks that `values` can be the record of `handle`, within the bounds of every record in the
/// store. They are those of layers, so that each record of the store can be published and answered.
///
/// # Errors
/// Names the bound that is exceeded.
pub fn check_record<'v>(handle: &[u8], values: impl Iterator<Item = Value<'v>>) -> Result<(), UnfitRecord> {
    // A prefix is stored under the longer name of its record.
    let record_len = if handle.contains(&b'/') { 0 } else { PREFIX_RECORDS.len() };
    if handle.len() + record_len > HANDLE_LEN_MAX {
        return Err(UnfitRecord::HandleTooLong);
    }
    let mut len = 0;
    // Most records have few values, whose indexes need no memory of their own.
    let (mut few, mut more) = ([0; 8], std::collections::BTreeSet::new());
    for (nth, value) in values.enumerate() {
        if value.index < 1 {
            return Err(UnfitRecord::BadIndex(value.index));
        }
        let is_new = !few.contains(&value.index)
            && match few.get_mut(nth) {
                Some(index_left) => {
                    *index_left = value.index;
                    true
                }
                None => more.insert(value.index),
            };
        if !is_new {
            return Err(UnfitRecord::DuplicateIndex(value.index));
        }
        if nth >= VALUES_COUNT_MAX {
            return Err(UnfitRecord::TooManyValues);
        }
        if value.references.len() > REFERENCES_COUNT_MAX {
            return Err(UnfitRecord::TooManyReferences(value.index));
        }
        len += value.encoded_len();
    }
    match len > VALUES_LEN_MAX {
        true => Err(UnfitRecord::TooLong(len)),
        false => Ok(()),
    }
}

impl<'s> Bulk<'s> {
    pub(super) fn new(store: &'s Store, temp_dir: &Path, memory_bytes: usize) -> Self {
        let sorter = Sorter::new(temp_dir, memory_bytes);
        Self {
            store,
            sorter,
            homed: Vec::new(),
            keeps_existing: false,
            resumes: false,
            commit_bytes: COMMIT_BYTES,
            dated_unix_s: 0,
            input: InputHash::default(),
            buffer: Vec::new(),
        }
    }

    /// Leaves existing records unchanged; otherwise they are replaced.
    pub const fn keep_existing(mut self) -> Self {
        self.keeps_existing = true;
        self
    }

    /// Goes on with the import that was interrupted, if there is one: it must have had the same
    /// records in the same order. Records that it has written are not written again.
    pub const fn resume(mut self) -> Self {
        self.resumes = true;
        self
    }

    /// Sets the bytes of records in one commit; one record may go beyond.
    pub const fn commit_bytes(mut self, commit_bytes: usize) -> Self {
        self.commit_bytes = commit_bytes;
        self
    }

    /// Notes the timestamp that values without one get, so that a resumed import can use it again.
    pub const fn dated(mut self, dated_unix_s: u32) -> Self {
        self.dated_unix_s = dated_unix_s;
        self
    }

    /// Adds the record of `handle`; if it is added several times, the last one counts.
    ///
    /// `values` are stored as they are, with their timestamps.
    ///
    /// # Errors
    /// When a temporary file cannot be written.
    pub fn add(&mut self, handle: &[u8], values: Values<'_>) -> Result<(), StoreError> {
        self.buffer.clear();
        values.encode(&mut self.buffer);
        let key = key(handle, self.store.folds());
        self.input.add(&key);
        self.input.add(&self.buffer);
        self.sorter.add(&key, &self.buffer)
    }

    /// Homes `prefix`, as in [`Transaction::home`](super::Transaction::home).
    pub fn home(&mut self, prefix: &[u8]) {
        self.homed.push(prefix.to_vec());
    }

    /// Writes everything.
    ///
    /// # Errors
    /// When a file cannot be read or written, or the import to resume had other records. Some of
    /// the records are then in the store; loading them again does no harm.
    pub fn finish(self, mut progress: impl FnMut(&BulkCounts)) -> Result<BulkCounts, StoreError> {
        let Self { store, sorter, homed, keeps_existing, resumes, commit_bytes, dated_unix_s, input, .. } =
            self;
        let input = input.0;
        // Done first, so that no reader relies on a log without the records that follow.
        let import = store.change(move |transaction| {
            let import = transaction.begin_import(input, dated_unix_s, resumes)?;
            transaction.begin_log_anew()?;
            homed.iter().try_for_each(|prefix| transaction.home_unlogged(prefix))?;
            Ok(import)
        })?;
        let counts = BulkCounts { resumed: import.records, ..BulkCounts::default() };
        let snapshot = store.snapshot()?;
        let (starts_empty, last_id) = (snapshot.records_count()? == 0, snapshot.last_id()?);
        drop(snapshot);
        let mut writer = BulkWriter { store, keeps_existing, import, counts, starts_empty, last_id };
        let written = writer.import.last.clone();
        let mut batch = BulkBatch::default();
        sorter.finish(|key, values| {
            if !written.is_empty() && key <= &*written {
                return Ok(());
            }
            batch.push(key, values);
            if batch.bytes.len() < commit_bytes {
                return Ok(());
            }
            writer.write(&mut batch)?;
            progress(&writer.counts);
            Ok(())
        })?;
        writer.write(&mut batch)?;
        progress(&writer.counts);
        // Done again, so that a reader which looked in between reloads.
        store.change(|transaction| {
            transaction.end_import()?;
            transaction.begin_log_anew()
        })?;
        Ok(writer.counts)
    }
}

/// A hash of the input, which tells another input from the same one. Nobody gains from two with the
/// same hash, so it is a fast one; a version of the program that changes it cannot resume imports
/// of the one before.
#[derive(Clone, Copy, Debug, Default)]
struct InputHash(u64);

impl InputHash {
    fn add(&mut self, part: &[u8]) {
        // The length separates the parts, and the zeros of the last word from those of the part.
        self.add_word(part.len() as u64);
        let (words, rest) = part.as_chunks();
        words.iter().for_each(|word| self.add_word(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add_word(u64::from_le_bytes(last));
    }

    const fn add_word(&mut self, word: u64) {
        /// An odd number with as many ones as zeros: the fraction of the golden ratio.
        const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
        // Zeros change it too.
        let mixed = (self.0.rotate_left(26) ^ word).wrapping_add(1).wrapping_mul(FACTOR);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// Writes batches of sorted records.
struct BulkWriter<'s> {
    store: &'s Store,
    keeps_existing: bool,
    import: UnfinishedImport,
    counts: BulkCounts,
    /// Whether there were no records when the import began.
    starts_empty: bool,
    /// The last transaction when the import began.
    last_id: u64,
}

impl BulkWriter<'_> {
    /// Writes the records of `batch` in one commit, with the progress, and empties it.
    fn write(&mut self, batch: &mut BulkBatch) -> Result<(), StoreError> {
        let Some(last_at) = batch.ends.len().checked_sub(1) else { return Ok(()) };
        let (last, _) = batch.record(last_at);
        let import = UnfinishedImport {
            last: last.to_vec(),
            records: self.import.records + batch.ends.len() as u64,
            ..self.import.clone()
        };
        let inner = &self.store.inner;
        let begun = inner.engine.begin_write()?;
        let mut counts = self.counts;
        {
            let mut transaction = Transaction::new(begun.tables()?, inner.folds)?;
            let keys = (0..batch.ends.len()).map(|at| batch.record(at).0);
            // Every other change of a database would have made a transaction.
            if self.starts_empty && transaction.last_id() == self.last_id {
                transaction.tables.assume_absent(StoreTable::Records, keys);
            } else {
                transaction.tables.prefetch(StoreTable::Records, keys)?;
            }
            for at in filling_order(batch.ends.len()) {
                let (key, values) = batch.record(at);
                if self.keeps_existing && transaction.record(key)?.is_some() {
                    counts.kept += 1;
                    continue;
                }
                let count = values.first_chunk().map_or(0, |count| u32::from_be_bytes(*count));
                let values = Values::from_encoded(count as usize, values.get(4..).unwrap_or_default());
                let damaged = |_| StoreError::Damaged("a sorted record does not decode");
                transaction.put_unlogged(key, values.map_err(damaged)?)?;
                counts.written += 1;
            }
            transaction.put_unfinished_import(&import)?;
            transaction.finish()?;
        }
        begun.commit()?;
        (self.import, self.counts) = (import, counts);
        batch.clear();
        Ok(())
    }
}

impl Transaction<'_> {
    /// Notes that an import of `input` begins; with `resumes`, goes on with the one that was
    /// interrupted.
    fn begin_import(
        &mut self,
        input: u64,
        dated_unix_s: u32,
        resumes: bool,
    ) -> Result<UnfinishedImport, StoreError> {
        if let Some(import) = self.unfinished_import()?.filter(|_| resumes) {
            return if import.input == input { Ok(import) } else { Err(StoreError::OtherImport) };
        }
        let import = UnfinishedImport { input, dated_unix_s, records: 0, last: Vec::new() };
        self.put_unfinished_import(&import)?;
        Ok(import)
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

    /// The key and values of a record.
    fn record(&self, at: usize) -> (&[u8], &[u8]) {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (key_end, end) = self.ends[at];
        (&self.bytes[start..key_end], &self.bytes[key_end..end])
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn records_have_each_index_once_and_a_bounded_number_of_values() {
        let check = |indexes: &[i32]| {
            check_record(b"10.1/A", indexes.iter().map(|&index| Value::new(index, b"URL", b"x")))
        };
        let many: Vec<i32> = (1..=i32::try_from(VALUES_COUNT_MAX).unwrap()).rev().collect();
        assert_eq!((check(&[]), check(&many)), (Ok(()), Ok(())));
        for twice in [0, 7, 8, 30] {
            for again in [8, 9, 20] {
                let indexes = [&many[..31], &many[twice..=twice], &many[..again]].concat();
                assert_eq!(check(&indexes), Err(UnfitRecord::DuplicateIndex(many[twice])));
            }
        }
        assert_eq!(check(&[3, 3]), Err(UnfitRecord::DuplicateIndex(3)));
        assert_eq!(check(&[3, 0]), Err(UnfitRecord::BadIndex(0)));
        assert_eq!(check(&[&many[..], &[i32::MAX]].concat()), Err(UnfitRecord::TooManyValues));
    }

    #[test]
    fn inputs_that_differ_in_order_length_or_a_bit_have_other_hashes() {
        let hash = |parts: &[&[u8]]| {
            let mut hash = InputHash::default();
            parts.iter().for_each(|part| hash.add(part));
            hash.0
        };
        let base: Vec<u8> = (0..40).collect();
        let mut hashes = BTreeSet::from([hash(&[&base])]);
        let mut count = 1;
        let mut add = |parts: &[&[u8]]| {
            hashes.insert(hash(parts));
            count += 1;
            assert_eq!(hashes.len(), count, "{parts:?}");
        };
        for bit in 0..base.len() * 8 {
            let mut other = base.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            add(&[&other]);
        }
        for len in 0..base.len() {
            add(&[&base[..len]]);
            add(&[&base[..len], &base[len..]]);
        }
        for parts in [&[b"a".as_slice(), b"b"][..], &[b"b", b"a"], &[b"\xff"], &[b"\xff\0"], &[]] {
            add(parts);
        }
    }
}
