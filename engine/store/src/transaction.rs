//! Changes to the store: the steps of a transaction on the writer's thread.

use super::StoreError;
use super::index::{IndexedType, indexed_types, keys_of};
use super::log::{LogAction, LogBounds, LogEntry};
use super::record::{HEAD_LEN, RecordBuf, StoreRecord};
use super::removal_keys::{LastChange, OWN_PRIORITY, RemovalKey};
use super::store_records::StoreRecords;
use super::tables::{ALL_KEYS, StoreTable, WriteTables, names, number_in};
use handle_daemon::clock::now_unix_ms;
use handle_proto::Values;
use handle_proto::fold;
use handle_proto::name::PREFIX_RECORDS;
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

/// A transaction in progress. Reads through it see its own changes.
pub struct Transaction<'t> {
    pub(super) tables: WriteTables<'t>,
    folds: bool,
    pub(super) last_id: u64,
    last_unix_ms: u64,
    /// `last_id` as it is stored; it is written once, by [`finish`](Self::finish).
    stored_id: u64,
    pub(super) writes_count: u64,
    /// The number of values and bytes of all records.
    content: RecordContent,
    buffer: Vec<u8>,
    /// The types with an index.
    pub(super) indexed: Vec<IndexedType>,
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
        let values_count = StoreRecord::decode(stored).map_or(0, |record| record.values.len());
        Self::with(key, stored, values_count)
    }

    /// The content of one record whose number of values is known.
    const fn with(key: &[u8], stored: &[u8], values_count: usize) -> Self {
        let bytes = (key.len() + stored.len().saturating_sub(HEAD_LEN)) as u64;
        Self { values: values_count as u64, bytes }
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
    pub(super) fn new(tables: WriteTables<'t>, folds: bool) -> Result<Self, StoreError> {
        let number = |name: &str| {
            let number = tables.get(StoreTable::Meta, name.as_bytes())?;
            Ok::<_, StoreError>(number.map_or(0, |number| number_in(&number)))
        };
        let (last_id, last_unix_ms) = (number(names::LAST_ID)?, number(names::LAST_MS)?);
        let content = RecordContent { values: number(names::VALUES)?, bytes: number(names::BYTES)? };
        // Another process may have moved a database.
        if number(names::MOVED)? != 0 {
            return Err(StoreError::Moved);
        }
        let indexed = indexed_types(&tables)?;
        Ok(Self {
            tables,
            folds,
            last_id,
            last_unix_ms,
            stored_id: last_id,
            writes_count: 0,
            content,
            buffer: Vec::new(),
            indexed,
        })
    }

    /// Stores `values` under `key`, replacing an existing record.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&mut self, key: &[u8], values: Values<'_>) -> Result<(), StoreError> {
        let before = self.record(key)?;
        self.put_at(key, values, before.as_ref(), None)
    }

    /// Replaces the record `before` under `key`. The change has the time `unix_ms`, if there is
    /// one.
    pub(super) fn put_at(
        &mut self,
        key: &[u8],
        values: Values<'_>,
        before: Option<&RecordBuf>,
        unix_ms: Option<u64>,
    ) -> Result<(), StoreError> {
        let action = if before.is_some() { LogAction::Update } else { LogAction::Create };
        let log_ms = self.log(action, key)?;
        // Each change of a record must have a later time than the one before, for readers that
        // compare times. The change before may be its deletion.
        let before_ms = match before {
            Some(before) => Some(before.view().unix_ms),
            None => self.removal_ms(&RemovalKey::handle(key))?,
        };
        let next_ms = before_ms.map_or(log_ms, |before_ms| log_ms.max(before_ms.saturating_add(1)));
        let unix_ms = unix_ms.unwrap_or(next_ms);
        self.put_record(key, &StoreRecord { id: self.last_id, unix_ms, values }).map(drop)
    }

    /// Raises the number and the time of the last transaction.
    pub(super) fn renumber_from(&mut self, last_id: u64, last_unix_ms: u64) {
        self.last_id = self.last_id.max(last_id);
        self.last_unix_ms = self.last_unix_ms.max(last_unix_ms);
    }

    /// Deletes the record under `key`; false if there was none.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let Some(removed) = self.tables.remove(StoreTable::Records, key)? else { return Ok(false) };
        // A damaged record can be deleted too.
        let before_ms = StoreRecord::decode(&removed).map_or(0, |record| record.unix_ms);
        self.content.subtract(RecordContent::of(key, &removed));
        self.change_index(&self.index_keys(key, &removed), &BTreeSet::new())?;
        let unix_ms = self.log(LogAction::Delete, key)?.max(before_ms.saturating_add(1));
        self.record_removal(&RemovalKey::handle(key), unix_ms)?;
        Ok(true)
    }

    /// Homes `prefix`, as `10.1045`; false if it was homed already. The name of its record has to
    /// pass [`Handle::homed_prefix`](handle_proto::Handle::homed_prefix) first: a prefix that
    /// begins with `0.NA/` homes those that are derived from another one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn home(&mut self, prefix: &[u8]) -> Result<bool, StoreError> {
        let prefix = fold::folded(prefix);
        if self.is_homed(&prefix)? {
            return Ok(false);
        }
        self.put_homed(&prefix)?;
        let unix_ms = self.log(LogAction::Home, &[PREFIX_RECORDS, &prefix].concat())?;
        let before_ms = self.take_removal(&RemovalKey::prefix(&prefix))?;
        let unix_ms = before_ms.map_or(unix_ms, |before_ms| unix_ms.max(before_ms.saturating_add(1)));
        let date = LastChange { id: self.last_id, unix_ms, priority: OWN_PRIORITY };
        self.tables.insert(StoreTable::HomedDates, &prefix, &date.encode())?;
        Ok(true)
    }

    /// Releases `prefix`, as in [`home`](Self::home); false if it was not homed.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn unhome(&mut self, prefix: &[u8]) -> Result<bool, StoreError> {
        let prefix = fold::folded(prefix);
        if self.tables.remove(StoreTable::Homed, &prefix)?.is_none() {
            return Ok(false);
        }
        let unix_ms = self.log(LogAction::Unhome, &[PREFIX_RECORDS, &prefix].concat())?;
        let date = self.tables.remove(StoreTable::HomedDates, &prefix)?;
        let before_ms = date.map_or(Ok(0), |date| LastChange::decode(&date).map(|date| date.unix_ms))?;
        self.record_removal(&RemovalKey::prefix(&prefix), unix_ms.max(before_ms.saturating_add(1)))?;
        Ok(true)
    }

    /// Raises the number that health checks read back, and returns it. Those of other processes
    /// raise it too.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn raise_probe(&mut self) -> Result<u64, StoreError> {
        let number = self.number(names::PROBE)?.wrapping_add(1);
        self.put_number(names::PROBE, number)?;
        self.writes_count += 1;
        Ok(number)
    }

    /// See [`Store::renew_identity`](super::Store::renew_identity).
    pub(super) fn set_identity(&mut self, identity: u64) -> Result<(), StoreError> {
        self.put_number(names::IDENTITY, identity)?;
        self.writes_count += 1;
        Ok(())
    }

    /// See [`Store::prune_log`](super::Store::prune_log).
    pub(super) fn prune_log(&mut self, bounds: LogBounds, most: usize) -> Result<usize, StoreError> {
        let kept_from = self.last_id.saturating_sub(bounds.transactions_max.unwrap_or(u64::MAX));
        let (mut last, mut looked_at) = (None, 0);
        self.tables.each(StoreTable::Log, ALL_KEYS, &mut |id, bytes| {
            let entry = LogEntry::decode(number_in(id), bytes)?;
            if looked_at == most || entry.unix_ms >= bounds.before_unix_ms && entry.id > kept_from {
                return Ok(ControlFlow::Break(()));
            }
            looked_at += 1;
            last = Some((entry.id, entry.unix_ms));
            Ok(ControlFlow::Continue(()))
        })?;
        let Some((last, last_ms)) = last else { return Ok(0) };
        let through_last = (Bound::Unbounded, Bound::Included(&last.to_be_bytes()[..]));
        let count = self.tables.remove_range(StoreTable::Log, through_last)?;
        self.put_number(names::LOG_BASE, last)?;
        self.put_number(names::LOG_BASE_MS, last_ms)?;
        self.writes_count += 1;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Empties the log, and uses up one number for the changes that the log does not contain.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin_log_anew(&mut self) -> Result<(), StoreError> {
        self.next_id();
        self.tables.remove_range(StoreTable::Log, ALL_KEYS)?;
        self.put_number(names::LOG_BASE_MS, self.last_unix_ms)?;
        self.put_number(names::LOG_ANEW, self.last_id)?;
        self.put_number(names::LOG_BASE, self.last_id)
    }

    /// Stores a record without a log entry; returns the last transaction of the one that it has
    /// replaced.
    pub(super) fn put_unlogged(&mut self, key: &[u8], values: Values<'_>) -> Result<Option<u64>, StoreError> {
        self.put_record(key, &StoreRecord { id: self.last_id, unix_ms: self.last_unix_ms, values })
    }

    /// Homes a prefix without a log entry.
    pub(super) fn home_unlogged(&mut self, prefix: &[u8]) -> Result<(), StoreError> {
        let prefix = fold::folded(prefix);
        self.drop_removal(&RemovalKey::prefix(&prefix))?;
        self.put_homed(&prefix)
    }

    /// Stores a record; returns the last transaction of the one that it has replaced.
    fn put_record(&mut self, key: &[u8], record: &StoreRecord<'_>) -> Result<Option<u64>, StoreError> {
        self.buffer.clear();
        record.encode(&mut self.buffer);
        let types = &self.indexed;
        let read = |stored: &[u8]| {
            let id = StoreRecord::decode(stored).map_or(0, |record| record.id);
            (id, RecordContent::of(key, stored), keys_of(types, key, stored))
        };
        let replaced = self.tables.replace(StoreTable::Records, key, &self.buffer, read)?;
        let replaced_id = replaced.as_ref().map(|(id, ..)| *id);
        let (_, replaced, rows_before) = replaced.unwrap_or_default();
        self.change_index(&rows_before, &self.index_keys(key, &self.buffer))?;
        if replaced_id.is_none() && !self.has_no_removals()? {
            self.drop_removal(&RemovalKey::handle(key))?;
        }
        self.content.add(RecordContent::with(key, &self.buffer, record.values.len()));
        self.content.subtract(replaced);
        Ok(replaced_id)
    }

    /// Writes the last number and the total content after all changes have been made.
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
        if self.last_id != self.stored_id {
            self.put_number(names::LAST_ID, self.last_id)?;
            self.put_number(names::LAST_MS, self.last_unix_ms)?;
            self.stored_id = self.last_id;
        }
        self.put_number(names::VALUES, self.content.values)?;
        self.put_number(names::BYTES, self.content.bytes)
    }

    fn put_homed(&mut self, prefix: &[u8]) -> Result<(), StoreError> {
        self.tables.insert(StoreTable::Homed, prefix, &[])
    }

    pub(super) fn put_number(&mut self, name: &str, number: u64) -> Result<(), StoreError> {
        self.tables.insert(StoreTable::Meta, name.as_bytes(), &number.to_be_bytes())
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, StoreError> {
        Ok(self.tables.get(StoreTable::Meta, name.as_bytes())?.map_or(0, |number| number_in(&number)))
    }

    fn log(&mut self, action: LogAction, handle: &[u8]) -> Result<u64, StoreError> {
        self.next_id();
        let entry = LogEntry::encode(self.last_unix_ms, action, handle);
        self.tables.insert(StoreTable::Log, &self.last_id.to_be_bytes(), &entry)?;
        Ok(self.last_unix_ms)
    }

    fn next_id(&mut self) {
        self.last_id += 1;
        // Clocks may be set back; times in the log do not decrease.
        self.last_unix_ms = self.last_unix_ms.max(now_unix_ms());
        self.writes_count += 1;
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

impl Transaction<'_> {
    /// The keys of a stored record.
    pub(super) fn index_keys(&self, handle: &[u8], stored: &[u8]) -> BTreeSet<Vec<u8>> {
        keys_of(&self.indexed, handle, stored)
    }

    /// Replaces the rows `before` of a record by `after`.
    pub(super) fn change_index(
        &mut self,
        before: &BTreeSet<Vec<u8>>,
        after: &BTreeSet<Vec<u8>>,
    ) -> Result<(), StoreError> {
        for key in before.difference(after) {
            self.tables.discard(StoreTable::Index, key)?;
        }
        for key in after.difference(before) {
            self.tables.insert(StoreTable::Index, key, &[])?;
        }
        Ok(())
    }
}

impl StoreRecords for Transaction<'_> {
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
