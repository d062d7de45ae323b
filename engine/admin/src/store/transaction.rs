//! Changes to the store: the steps of a transaction on the writer's thread.

use super::guard::guarded;
use super::log::{LogAction, LogBounds, LogEntry};
use super::record::{HEAD_LEN, RecordBuf, StoreRecord};
use super::removals::{OWN_PRIORITY, RemovalKey};
use super::snapshot::{StoreRecords, stored};
use super::{StoreError, schema};
use handle_daemon::clock::now_unix_ms;
use handle_proto::Values;
use handle_proto::fold;
use handle_proto::name::PREFIX_RECORDS;
use redb::{ReadableTable as _, Table, WriteTransaction};
use std::path::Path;

/// A transaction in progress. Reads through it see its own changes.
pub struct Transaction<'t> {
    /// For tables that few transactions need.
    pub(super) begun: &'t WriteTransaction,
    records: Table<'t, &'static [u8], &'static [u8]>,
    homed: Table<'t, &'static [u8], ()>,
    log: Table<'t, u64, &'static [u8]>,
    pub(super) removals: Table<'t, &'static [u8], (u64, u64, u32)>,
    pub(super) meta: Table<'t, &'static str, u64>,
    folds: bool,
    /// The path of the file, for errors.
    pub(super) file: &'t Path,
    pub(super) last_id: u64,
    last_unix_ms: u64,
    pub(super) writes_count: u64,
    /// The number of values and bytes of all records; `None` if they have not been counted.
    content: Option<RecordContent>,
    room: Vec<u8>,
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a transaction after {}", self.last_id)
    }
}

/// The total content of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordContent {
    pub(super) values: u64,
    pub(super) bytes: u64,
}

impl RecordContent {
    /// The content of one record, as it is stored under `key`.
    pub(super) fn of(key: &[u8], stored: &[u8]) -> Self {
        let values = StoreRecord::decode(stored).map_or(0, |record| record.values.len() as u64);
        let bytes = (key.len() + stored.len().saturating_sub(HEAD_LEN)) as u64;
        Self { values, bytes }
    }

    pub(super) const fn add(&mut self, other: Self) {
        self.values = self.values.wrapping_add(other.values);
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }

    const fn subtract(&mut self, other: Self) {
        self.values = self.values.wrapping_sub(other.values);
        self.bytes = self.bytes.wrapping_sub(other.bytes);
    }
}

impl<'t> Transaction<'t> {
    pub(super) fn new(
        transaction: &'t WriteTransaction,
        folds: bool,
        file: &'t Path,
    ) -> Result<Self, StoreError> {
        guarded(file, || {
            let meta = transaction.open_table(schema::META)?;
            let number = |name| Ok::<_, StoreError>(meta.get(name)?.map_or(0, |number| number.value()));
            let (last_id, last_unix_ms) = (number(schema::LAST_ID)?, number(schema::LAST_MS)?);
            let content = RecordContent { values: number(schema::VALUES)?, bytes: number(schema::BYTES)? };
            let content = (number(schema::COUNTED_ID)? == last_id).then_some(content);
            Ok(Self {
                begun: transaction,
                records: transaction.open_table(schema::RECORDS)?,
                homed: transaction.open_table(schema::HOMED)?,
                log: transaction.open_table(schema::LOG)?,
                removals: transaction.open_table(schema::REMOVALS)?,
                meta,
                folds,
                file,
                last_id,
                last_unix_ms,
                writes_count: 0,
                content,
                room: Vec::new(),
            })
        })
    }

    /// Stores `values` under `key`, replacing an existing record.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&mut self, key: &[u8], values: Values<'_>) -> Result<(), StoreError> {
        let before = self.record(key)?;
        let action = if before.is_some() { LogAction::Update } else { LogAction::Create };
        let unix_ms = self.log(action, key)?;
        // Each change of a record must have a later time than the one before, for readers that
        // compare times. The change before may be its deletion.
        let before_ms = match before {
            Some(before) => Some(before.view().unix_ms),
            None => self.removal_ms(&RemovalKey::handle(key))?,
        };
        let unix_ms = before_ms.map_or(unix_ms, |before_ms| unix_ms.max(before_ms + 1));
        self.put_record(key, &StoreRecord { id: self.last_id, unix_ms, values })
    }

    /// Deletes the record under `key`; false if there was none.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let removed = guarded(self.file, || {
            Ok(self.records.remove(key)?.map(|stored| {
                // A damaged record can be deleted too.
                let unix_ms = StoreRecord::decode(stored.value()).map_or(0, |record| record.unix_ms);
                (RecordContent::of(key, stored.value()), unix_ms)
            }))
        })?;
        let Some((removed, before_ms)) = removed else { return Ok(false) };
        if let Some(content) = &mut self.content {
            content.subtract(removed);
        }
        let unix_ms = self.log(LogAction::Delete, key)?.max(before_ms + 1);
        self.record_removal(&RemovalKey::handle(key), unix_ms)?;
        Ok(true)
    }

    /// Homes `prefix`, as `10.1045` or `0.NA/10.1045`; false if it was homed already.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn home(&mut self, prefix: &[u8]) -> Result<bool, StoreError> {
        let prefix = bare_prefix(prefix);
        if self.is_homed(&prefix)? {
            return Ok(false);
        }
        self.put_homed(&prefix)?;
        let unix_ms = self.log(LogAction::Home, &[PREFIX_RECORDS, &prefix].concat())?;
        let before_ms = self.take_removal(&RemovalKey::prefix(&prefix))?;
        let unix_ms = before_ms.map_or(unix_ms, |before_ms| unix_ms.max(before_ms + 1));
        let date = (self.last_id, unix_ms, OWN_PRIORITY);
        guarded(self.file, || {
            let mut dates = self.begun.open_table(schema::HOMED_DATES)?;
            Ok(dates.insert(&*prefix, date).map(drop)?)
        })?;
        Ok(true)
    }

    /// Releases `prefix`, as `10.1045` or `0.NA/10.1045`; false if it was not homed.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn unhome(&mut self, prefix: &[u8]) -> Result<bool, StoreError> {
        let prefix = bare_prefix(prefix);
        if !guarded(self.file, || Ok(self.homed.remove(&*prefix)?.is_some()))? {
            return Ok(false);
        }
        let unix_ms = self.log(LogAction::Unhome, &[PREFIX_RECORDS, &prefix].concat())?;
        let before_ms = guarded(self.file, || {
            let mut dates = self.begun.open_table(schema::HOMED_DATES)?;
            Ok(dates.remove(&*prefix)?.map_or(0, |date| date.value().1))
        })?;
        self.record_removal(&RemovalKey::prefix(&prefix), unix_ms.max(before_ms + 1))?;
        Ok(true)
    }

    /// Writes an arbitrary number, which the health check reads back.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_probe(&mut self, number: u64) -> Result<(), StoreError> {
        self.put_number(schema::PROBE, number)?;
        self.writes_count += 1;
        Ok(())
    }

    /// See [`Store::renew_identity`](super::Store::renew_identity).
    pub(super) fn set_identity(&mut self, identity: u64) -> Result<(), StoreError> {
        self.put_number(schema::IDENTITY, identity)?;
        self.writes_count += 1;
        Ok(())
    }

    /// See [`Store::prune_log`](super::Store::prune_log).
    pub(super) fn prune_log(&mut self, bounds: LogBounds, most: usize) -> Result<usize, StoreError> {
        let kept_from = self.last_id.saturating_sub(bounds.transactions_max.unwrap_or(u64::MAX));
        let count = guarded(self.file, || {
            let mut last = None;
            for entry in self.log.iter()?.take(most) {
                let (id, bytes) = entry?;
                let entry = LogEntry::decode(id.value(), bytes.value())?;
                if entry.unix_ms >= bounds.before_unix_ms && entry.id > kept_from {
                    break;
                }
                last = Some((entry.id, entry.unix_ms));
            }
            let Some((last, last_ms)) = last else { return Ok(0) };
            let mut count = 0;
            self.log.retain_in(..=last, |_, _| {
                count += 1;
                false
            })?;
            self.meta.insert(schema::LOG_BASE, last)?;
            self.meta.insert(schema::LOG_BASE_MS, last_ms)?;
            Ok(count)
        })?;
        self.writes_count += u64::from(count > 0);
        Ok(count)
    }

    /// Empties the log, and uses up one number for the changes that the log does not contain.
    pub(super) fn begin_log_anew(&mut self) -> Result<(), StoreError> {
        self.next_id()?;
        guarded(self.file, || Ok(self.log.retain(|_, _| false)?))?;
        self.put_number(schema::LOG_BASE_MS, self.last_unix_ms)?;
        self.put_number(schema::LOG_BASE, self.last_id)
    }

    /// Stores a record without a log entry.
    pub(super) fn put_unlogged(&mut self, key: &[u8], values: Values<'_>) -> Result<(), StoreError> {
        self.put_record(key, &StoreRecord { id: self.last_id, unix_ms: self.last_unix_ms, values })
    }

    /// Homes a prefix without a log entry.
    pub(super) fn home_unlogged(&mut self, prefix: &[u8]) -> Result<(), StoreError> {
        let prefix = bare_prefix(prefix);
        self.drop_removal(&RemovalKey::prefix(&prefix))?;
        self.put_homed(&prefix)
    }

    fn put_record(&mut self, key: &[u8], record: &StoreRecord<'_>) -> Result<(), StoreError> {
        self.room.clear();
        record.encode(&mut self.room);
        let replaced = guarded(self.file, || {
            let replaced = self.records.insert(key, &*self.room)?;
            Ok(replaced.map(|stored| RecordContent::of(key, stored.value())))
        })?;
        if replaced.is_none() && !self.has_no_removals()? {
            self.drop_removal(&RemovalKey::handle(key))?;
        }
        if let Some(content) = &mut self.content {
            content.add(RecordContent::of(key, &self.room));
            content.subtract(replaced.unwrap_or_default());
        }
        Ok(())
    }

    /// Writes the total content after all changes have been made.
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
        match self.content {
            Some(content) => self.set_content(content),
            None => Ok(()),
        }
    }

    /// Sets the total content.
    pub(super) fn set_content(&mut self, content: RecordContent) -> Result<(), StoreError> {
        self.put_number(schema::VALUES, content.values)?;
        self.put_number(schema::BYTES, content.bytes)?;
        self.put_number(schema::COUNTED_ID, self.last_id)
    }

    fn put_homed(&mut self, prefix: &[u8]) -> Result<(), StoreError> {
        guarded(self.file, || self.homed.insert(prefix, ()).map(drop).map_err(Into::into))
    }

    fn put_number(&mut self, name: &str, number: u64) -> Result<(), StoreError> {
        guarded(self.file, || self.meta.insert(name, number).map(drop).map_err(Into::into))
    }

    fn log(&mut self, action: LogAction, handle: &[u8]) -> Result<u64, StoreError> {
        self.next_id()?;
        let entry = LogEntry::encode(self.last_unix_ms, action, handle);
        guarded(self.file, || self.log.insert(self.last_id, &*entry).map(drop).map_err(Into::into))?;
        Ok(self.last_unix_ms)
    }

    fn next_id(&mut self) -> Result<(), StoreError> {
        self.last_id += 1;
        // Clocks may be set back; times in the log do not decrease.
        self.last_unix_ms = self.last_unix_ms.max(now_unix_ms());
        self.put_number(schema::LAST_ID, self.last_id)?;
        self.put_number(schema::LAST_MS, self.last_unix_ms)?;
        self.writes_count += 1;
        Ok(())
    }

    /// The number of writes in this transaction.
    pub(super) const fn writes_count(&self) -> u64 {
        self.writes_count
    }

    /// The number of the last transaction.
    #[must_use]
    pub const fn last_id(&self) -> u64 {
        self.last_id
    }
}

impl StoreRecords for Transaction<'_> {
    fn folds(&self) -> bool {
        self.folds
    }

    fn record(&self, key: &[u8]) -> Result<Option<RecordBuf>, StoreError> {
        guarded(self.file, || stored(&self.records, key))
    }

    fn is_homed(&self, prefix: &[u8]) -> Result<bool, StoreError> {
        guarded(self.file, || Ok(self.homed.get(prefix)?.is_some()))
    }
}

/// The folded prefix, without `0.NA/`.
fn bare_prefix(prefix: &[u8]) -> Vec<u8> {
    let prefix = fold::folded(prefix);
    prefix.strip_prefix(PREFIX_RECORDS).map_or_else(|| prefix.clone(), <[u8]>::to_vec)
}
