//! Snapshots: the state of the store at one moment.

use super::StoreError;
use super::log::{LogEntry, LogStart};
use super::record::{RecordBuf, StoreRecord};
use super::removal_keys::{LastChange, RemovalKey, RemovalKind};
use super::store_records::StoreRecords;
use super::tables::{
    ALL_KEYS, KeyRange, RecordRow, RowIterator, SnapshotTables, StoreTable, keys_after, names, number_in,
};
use handle_proto::Handle;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The state of the store at one moment. While a snapshot is kept, the store keeps what it shows:
/// in a file, the old pages.
#[derive(Debug)]
pub struct StoreSnapshot {
    pub(super) tables: SnapshotTables,
    folds: bool,
}

/// A record and its name, borrowed from the store.
pub struct StoredRecord(RecordRow);

impl std::fmt::Debug for StoredRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", Handle(self.handle()))
    }
}

impl StoredRecord {
    /// The name under which the record is stored, folded as the service folds it.
    #[must_use]
    pub fn handle(&self) -> &[u8] {
        self.0.key()
    }

    /// The record.
    ///
    /// # Errors
    /// When the record is damaged.
    pub fn record(&self) -> Result<StoreRecord<'_>, StoreError> {
        StoreRecord::decode(self.as_bytes())
    }

    /// The stored form of the record, which may be damaged.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.record()
    }
}

/// The changes since a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChanges {
    /// The log does not reach back far enough: any record may have changed.
    Everything,
    /// The changes listed in the log.
    These {
        /// The last transaction considered.
        to: u64,
        /// Whether there are later transactions.
        has_more: bool,
        /// Whether a prefix was homed or released.
        homed: bool,
        /// Each handle once, in ascending order.
        handles: Vec<ChangedRecord>,
    },
}

/// A changed handle, and its current record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedRecord {
    /// The name under which the record is stored.
    pub handle: Vec<u8>,
    /// The record; `None` if it was deleted.
    pub record: Option<RecordBuf>,
}

/// The last transactions before and after a promotion, between which nothing changed; zeros if
/// there was none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenumberedRange {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl RenumberedRange {
    /// The present number of the state after transaction `id`.
    pub(crate) const fn of(self, id: u64) -> u64 {
        if self.to > 0 && id == self.from { self.to } else { id }
    }
}

impl StoreSnapshot {
    pub(super) const fn new(tables: SnapshotTables, folds: bool) -> Self {
        Self { tables, folds }
    }

    /// The number of the last transaction in the snapshot; 0 before the first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn last_id(&self) -> Result<u64, StoreError> {
        self.number(names::LAST_ID)
    }

    /// The last transaction that was dropped from the log; 0 if the log is complete.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log_base(&self) -> Result<u64, StoreError> {
        self.number(names::LOG_BASE)
    }

    /// The time of the last transaction, in milliseconds since 1970; 0 before the first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn last_unix_ms(&self) -> Result<u64, StoreError> {
        self.number(names::LAST_MS)
    }

    /// The start of the log.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn log_start(&self) -> Result<LogStart, StoreError> {
        let base = self.log_base()?;
        let unix_ms = match base {
            0 => self.log_after(0)?.next().transpose()?.map(|entry| entry.unix_ms),
            _ => Some(self.number(names::LOG_BASE_MS)? + 1),
        };
        Ok(LogStart { base, unix_ms, anew: self.number(names::LOG_ANEW)? })
    }

    /// The removal of a handle or a prefix, if it is still known.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn removal(&self, kind: RemovalKind, name: &[u8]) -> Result<Option<LastChange>, StoreError> {
        let key = RemovalKey::new(kind, name);
        let date = self.tables.get(StoreTable::Removals, key.as_bytes())?;
        date.map(|date| LastChange::decode(&date)).transpose()
    }

    /// Deleted handles or released prefixes after the name `after`, in ascending order, with their
    /// removals.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn removals_after(
        &self,
        kind: RemovalKind,
        after: Option<&[u8]>,
    ) -> Result<RowIterator<(Vec<u8>, LastChange)>, StoreError> {
        let from = RemovalKey::new(kind, after.unwrap_or_default());
        let from = match after {
            Some(_) => Bound::Excluded(from.as_bytes()),
            None => Bound::Included(from.as_bytes()),
        };
        let end = [kind as u8 + 1];
        let range = (from, Bound::Excluded(&end[..]));
        self.tables.rows(StoreTable::Removals, range, |key, date| {
            Ok((key.get(1..).unwrap_or_default().to_vec(), LastChange::decode(date)?))
        })
    }

    /// Homed prefixes with a known last change, without `0.NA/`, in ascending order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn homed_dates(&self) -> Result<Vec<(Vec<u8>, LastChange)>, StoreError> {
        let row = |name: &[u8], date: &[u8]| Ok((name.to_vec(), LastChange::decode(date)?));
        self.tables.rows(StoreTable::HomedDates, ALL_KEYS, row)?.collect()
    }

    /// The number of known removals.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn removals_count(&self) -> Result<u64, StoreError> {
        self.tables.len(StoreTable::Removals)
    }

    /// The number that health checks raise.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn probe(&self) -> Result<u64, StoreError> {
        self.number(names::PROBE)
    }

    /// Whether the records of a mirror are incomplete, or as of different moments: before the end
    /// of its first dump, in a dump, and in the middle of a stream of transactions.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn is_dumping(&self) -> Result<bool, StoreError> {
        Ok(self.number(names::MIRROR_DUMPS)? > 0)
    }

    /// The last promotion.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn renumbering(&self) -> Result<RenumberedRange, StoreError> {
        let [from, to] = [names::RENUMBERED_FROM, names::RENUMBERED_TO].map(|name| self.number(name));
        Ok(RenumberedRange { from: from?, to: to? })
    }

    /// The number of values in all records, and the bytes of their names and values.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn content(&self) -> Result<(u64, u64), StoreError> {
        Ok((self.number(names::VALUES)?, self.number(names::BYTES)?))
    }

    fn number(&self, name: &str) -> Result<u64, StoreError> {
        Ok(self.tables.get(StoreTable::Meta, name.as_bytes())?.map_or(0, |number| number_in(&number)))
    }

    /// The number of records.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn records_count(&self) -> Result<u64, StoreError> {
        self.tables.len(StoreTable::Records)
    }

    /// All records, in ascending order of stored name.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn records(
        &self,
    ) -> Result<impl Iterator<Item = Result<StoredRecord, StoreError>> + use<>, StoreError> {
        self.records_from(ALL_KEYS, b"")
    }

    /// The records whose names begin with `start`; with `after`, only those after that name.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn records_under(
        &self,
        start: &[u8],
        after: Option<&[u8]>,
    ) -> Result<impl Iterator<Item = Result<StoredRecord, StoreError>> + use<>, StoreError> {
        let from = after.map_or(Bound::Included(start), Bound::Excluded);
        self.records_from((from, Bound::Unbounded), start)
    }

    fn records_from(
        &self,
        range: KeyRange<'_>,
        start: &[u8],
    ) -> Result<impl Iterator<Item = Result<StoredRecord, StoreError>> + use<>, StoreError> {
        let start = start.to_vec();
        let records = self.tables.records(range)?.map(|row| row.map(StoredRecord));
        Ok(records.take_while(move |entry| {
            entry.as_ref().map_or(true, |entry: &StoredRecord| entry.handle().starts_with(&start))
        }))
    }

    /// Homed prefixes without `0.NA/`, folded, in ascending order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn homed(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        self.tables.rows(StoreTable::Homed, ALL_KEYS, |prefix, _| Ok(prefix.to_vec()))?.collect()
    }

    /// The transactions after number `id`, in order.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn log_after(&self, id: u64) -> Result<RowIterator<LogEntry>, StoreError> {
        let after = id.to_be_bytes();
        self.tables.rows(StoreTable::Log, keys_after(Some(&after)), |id, entry| {
            LogEntry::decode(number_in(id), entry)
        })
    }

    /// The records stored under these keys, each `None` if there is none.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn records_of(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<RecordBuf>>, StoreError> {
        let unique: BTreeSet<&Vec<u8>> = keys.iter().collect();
        let unique: Vec<Vec<u8>> = unique.into_iter().cloned().collect();
        let found = self.tables.get_all(StoreTable::Records, &unique)?;
        let found = found.into_iter().map(|record| record.map(RecordBuf::from_bytes).transpose());
        let found: BTreeMap<Vec<u8>, Option<RecordBuf>> =
            unique.into_iter().zip(found.collect::<Result<Vec<_>, _>>()?).collect();
        Ok(keys.iter().map(|key| found.get(key).cloned().flatten()).collect())
    }

    /// The number of transactions in the log.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log_count(&self) -> Result<u64, StoreError> {
        self.tables.len(StoreTable::Log)
    }

    /// The changes after transaction `id`, from at most `most` transactions. The state of each
    /// handle is that of this snapshot, which may be later than `to`: a caller that continues from
    /// `to` sees some handles again.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn changes_after(&self, id: u64, most: usize) -> Result<StoreChanges, StoreError> {
        let id = self.renumbering()?.of(id);
        if id < self.log_base()? || id > self.last_id()? {
            return Ok(StoreChanges::Everything);
        }
        let (mut to, mut homed, mut names) = (id, false, BTreeMap::new());
        for entry in self.log_after(id)?.take(most) {
            let entry = entry?;
            to = entry.id;
            match entry.action.is_about_homing() {
                true => homed = true,
                false => _ = names.insert(entry.handle, ()),
            }
        }
        let names: Vec<Vec<u8>> = names.into_keys().collect();
        let records = self.tables.get_all(StoreTable::Records, &names)?;
        let handles = names.into_iter().zip(records).map(|(handle, record)| {
            let record = record.map(RecordBuf::from_bytes).transpose()?;
            Ok::<_, StoreError>(ChangedRecord { handle, record })
        });
        Ok(StoreChanges::These {
            to,
            has_more: to < self.last_id()?,
            homed,
            handles: handles.collect::<Result<_, _>>()?,
        })
    }
}

impl StoreRecords for StoreSnapshot {
    fn folds(&self) -> bool {
        self.folds
    }

    fn record(&self, key: &[u8]) -> Result<Option<RecordBuf>, StoreError> {
        self.tables.get(StoreTable::Records, key)?.map(RecordBuf::from_bytes).transpose()
    }

    fn is_homed(&self, prefix: &[u8]) -> Result<bool, StoreError> {
        Ok(self.tables.get(StoreTable::Homed, prefix)?.is_some())
    }
}
