//! Snapshots: the state of the store at one moment.

use super::guard::{guarded, guarded_items};
use super::log::{LogEntry, LogStart};
use super::record::{RecordBuf, StoreRecord};
use super::removals::{LastChange, RemovalKey, RemovalKind};
use super::{StoreError, schema};
use handle_proto::Handle;
use handle_proto::name::PREFIX_RECORDS;
use redb::{
    AccessGuard, ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata as _, TableDefinition,
};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// Access to records and homed prefixes, on which operations are decided.
pub trait StoreRecords {
    /// Whether the service folds local names.
    fn folds(&self) -> bool;

    /// The record stored under `key`.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    fn record(&self, key: &[u8]) -> Result<Option<RecordBuf>, StoreError>;

    /// Whether `prefix`, folded and without `0.NA/`, is homed.
    ///
    /// # Errors
    /// When the file cannot be read.
    fn is_homed(&self, prefix: &[u8]) -> Result<bool, StoreError>;
}

/// The state of the store at one moment. Keeping a snapshot costs nothing but the space in the file
/// for the old pages it still shows.
#[derive(Debug)]
pub struct StoreSnapshot {
    records: ReadOnlyTable<&'static [u8], &'static [u8]>,
    homed: ReadOnlyTable<&'static [u8], ()>,
    log: ReadOnlyTable<u64, &'static [u8]>,
    removals: ReadOnlyTable<&'static [u8], (u64, u64, u32)>,
    homed_dates: ReadOnlyTable<&'static [u8], (u64, u64, u32)>,
    meta: ReadOnlyTable<&'static str, u64>,
    folds: bool,
    /// The path of the file, for errors.
    file: PathBuf,
}

/// A record and its name, borrowed from the file.
pub struct StoredRecord {
    key: AccessGuard<'static, &'static [u8]>,
    record: AccessGuard<'static, &'static [u8]>,
}

impl std::fmt::Debug for StoredRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", Handle(self.handle()))
    }
}

impl StoredRecord {
    /// The name under which the record is stored, folded as the service folds it.
    #[must_use]
    pub fn handle(&self) -> &[u8] {
        self.key.value()
    }

    /// The stored bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.record.value()
    }

    /// The record.
    ///
    /// # Errors
    /// When the record is damaged.
    pub fn record(&self) -> Result<StoreRecord<'_>, StoreError> {
        StoreRecord::decode(self.record.value())
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

impl StoreSnapshot {
    pub(super) fn new(transaction: &ReadTransaction, folds: bool, file: &Path) -> Result<Self, StoreError> {
        fn open<K: redb::Key, V: redb::Value>(
            transaction: &ReadTransaction,
            table: TableDefinition<'static, K, V>,
        ) -> Result<ReadOnlyTable<K, V>, StoreError> {
            Ok(transaction.open_table(table)?)
        }
        Ok(Self {
            records: open(transaction, schema::RECORDS)?,
            homed: open(transaction, schema::HOMED)?,
            log: open(transaction, schema::LOG)?,
            removals: open(transaction, schema::REMOVALS)?,
            homed_dates: open(transaction, schema::HOMED_DATES)?,
            meta: open(transaction, schema::META)?,
            folds,
            file: file.to_owned(),
        })
    }

    /// The number of the last transaction in the snapshot; 0 before the first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn last_id(&self) -> Result<u64, StoreError> {
        self.number(schema::LAST_ID)
    }

    /// The last transaction that was dropped from the log; 0 if the log is complete.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log_base(&self) -> Result<u64, StoreError> {
        self.number(schema::LOG_BASE)
    }

    /// The time of the last transaction, in milliseconds since 1970; 0 before the first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn last_unix_ms(&self) -> Result<u64, StoreError> {
        self.number(schema::LAST_MS)
    }

    /// The start of the log.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn log_start(&self) -> Result<LogStart, StoreError> {
        let base = self.log_base()?;
        let unix_ms = match base {
            0 => guarded(&self.file, || {
                let first = self.log.first()?;
                first.map(|(id, entry)| LogEntry::decode(id.value(), entry.value())).transpose()
            })?
            .map(|entry| entry.unix_ms),
            _ => Some(self.number(schema::LOG_BASE_MS)? + 1),
        };
        Ok(LogStart { base, unix_ms })
    }

    /// The removal of a handle or a prefix, if it is still known.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn removal(&self, kind: RemovalKind, name: &[u8]) -> Result<Option<LastChange>, StoreError> {
        let key = RemovalKey::new(kind, name);
        guarded(&self.file, || Ok(self.removals.get(key.as_bytes())?.map(|date| date.value().into())))
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
    ) -> Result<impl Iterator<Item = Result<(Vec<u8>, LastChange), StoreError>> + use<>, StoreError> {
        let from = RemovalKey::new(kind, after.unwrap_or_default());
        let from = match after {
            Some(_) => Bound::Excluded(from.as_bytes()),
            None => Bound::Included(from.as_bytes()),
        };
        let end = [kind as u8 + 1];
        let range = (from, Bound::Excluded(&end[..]));
        let range = guarded(&self.file, || Ok(self.removals.range::<&[u8]>(range)?))?;
        Ok(guarded_items(&self.file, range, |entry| {
            let (key, date) = entry?;
            Ok((key.value().get(1..).unwrap_or_default().to_vec(), date.value().into()))
        }))
    }

    /// Homed prefixes with a known last change, without `0.NA/`, in ascending order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn homed_dates(&self) -> Result<Vec<(Vec<u8>, LastChange)>, StoreError> {
        guarded(&self.file, || {
            let dates = self.homed_dates.iter()?;
            dates
                .map(|entry| entry.map(|(name, date)| (name.value().to_vec(), date.value().into())))
                .map(|entry| Ok(entry?))
                .collect()
        })
    }

    /// The number of known removals.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn removals_count(&self) -> Result<u64, StoreError> {
        guarded(&self.file, || Ok(self.removals.len()?))
    }

    /// The number last written by the health check.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn probe(&self) -> Result<u64, StoreError> {
        self.number(schema::PROBE)
    }

    /// The number of values in all records, and the bytes of their names and values; `None` if the
    /// last writer was older software.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn content(&self) -> Result<Option<(u64, u64)>, StoreError> {
        if self.number(schema::COUNTED_ID)? != self.last_id()? {
            return Ok(None);
        }
        Ok(Some((self.number(schema::VALUES)?, self.number(schema::BYTES)?)))
    }

    fn number(&self, name: &str) -> Result<u64, StoreError> {
        guarded(&self.file, || Ok(self.meta.get(name)?.map_or(0, |number| number.value())))
    }

    /// The number of records.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn records_count(&self) -> Result<u64, StoreError> {
        guarded(&self.file, || Ok(self.records.len()?))
    }

    /// All records, in ascending order of stored name.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn records(
        &self,
    ) -> Result<impl Iterator<Item = Result<StoredRecord, StoreError>> + use<>, StoreError> {
        self.records_from(Bound::Unbounded, b"")
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
        self.records_from(after.map_or(Bound::Included(start), Bound::Excluded), start)
    }

    fn records_from(
        &self,
        from: Bound<&[u8]>,
        start: &[u8],
    ) -> Result<impl Iterator<Item = Result<StoredRecord, StoreError>> + use<>, StoreError> {
        let start = start.to_vec();
        let range = guarded(&self.file, || Ok(self.records.range::<&[u8]>((from, Bound::Unbounded))?))?;
        let records = guarded_items(&self.file, range, |entry| {
            let (key, record) = entry?;
            // Reading them here makes a damaged entry fail inside the guard, not at the caller.
            let _ = (key.value(), record.value());
            Ok(StoredRecord { key, record })
        });
        Ok(records.take_while(move |entry| {
            entry.as_ref().map_or(true, |entry: &StoredRecord| entry.handle().starts_with(&start))
        }))
    }

    /// Homed prefixes without `0.NA/`, folded, in ascending order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn homed(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        guarded(&self.file, || self.homed.iter()?.map(|entry| Ok(entry?.0.value().to_vec())).collect())
    }

    /// The transactions after number `id`, in order.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn log_after(
        &self,
        id: u64,
    ) -> Result<impl Iterator<Item = Result<LogEntry, StoreError>> + use<>, StoreError> {
        let range = guarded(&self.file, || Ok(self.log.range((Bound::Excluded(id), Bound::Unbounded))?))?;
        Ok(guarded_items(&self.file, range, |entry| {
            let (id, entry) = entry?;
            LogEntry::decode(id.value(), entry.value())
        }))
    }

    /// The number of transactions in the log.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log_count(&self) -> Result<u64, StoreError> {
        guarded(&self.file, || Ok(self.log.len()?))
    }

    /// The changes after transaction `id`, from at most `most` transactions. The state of each
    /// handle is that of this snapshot, which may be later than `to`: a caller that continues from
    /// `to` sees some handles again.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn changes_after(&self, id: u64, most: usize) -> Result<StoreChanges, StoreError> {
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
        let handles = names.into_keys().map(|handle| {
            let record = self.record(&handle)?;
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
        guarded(&self.file, || stored(&self.records, key))
    }

    fn is_homed(&self, prefix: &[u8]) -> Result<bool, StoreError> {
        guarded(&self.file, || Ok(self.homed.get(prefix)?.is_some()))
    }
}

/// The record under `key` in `table`.
pub(super) fn stored(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Option<RecordBuf>, StoreError> {
    table.get(key)?.map(|bytes| RecordBuf::from_bytes(bytes.value().to_vec())).transpose()
}

/// Whether this service is responsible for the handle stored under `key`: its prefix is homed or,
/// for the record of a derived prefix, the prefix records under one of its ancestors are homed.
///
/// # Errors
/// When the file cannot be read.
pub fn is_responsible(records: &(impl StoreRecords + ?Sized), key: &[u8]) -> Result<bool, StoreError> {
    /// Limits the ancestors looked at for one name; a name made of dots would have thousands.
    const ANCESTORS_MAX: usize = 16;
    let prefix = handle_proto::fold::folded(Handle(key).naming_authority());
    if records.is_homed(&prefix)? {
        return Ok(true);
    }
    let mut name = Handle(key);
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = name.parent_prefix_record() else { return Ok(false) };
        // Everything derived from the parent is homed then, under the name of the parent's record.
        if records.is_homed(&handle_proto::fold::folded(parent.0))? {
            return Ok(true);
        }
        name = parent;
    }
    Ok(false)
}

/// Whether `key` is the name of the record of a prefix homed here. The record itself is at the
/// registry, but an operator may have put a copy into the store, whose keys and groups count.
///
/// # Errors
/// When the file cannot be read.
pub fn is_record_of_homed_prefix(
    records: &(impl StoreRecords + ?Sized),
    key: &[u8],
) -> Result<bool, StoreError> {
    match Handle(key).is_prefix_record() {
        true => records.is_homed(&handle_proto::fold::folded(&key[PREFIX_RECORDS.len()..])),
        false => Ok(false),
    }
}
