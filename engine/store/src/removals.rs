//! Removals: the last changes of deleted handles and released prefixes, from which a mirror knows
//! whether another change is older. Their number is bounded: the oldest are dropped.

use super::StoreError;
use super::tables::{ALL_KEYS, StoreTable, number_in};
use super::transaction::Transaction;
use std::ops::ControlFlow;

/// The priority of changes that were made here.
pub(super) const OWN_PRIORITY: u32 = 0;

/// What was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RemovalKind {
    /// A handle was deleted.
    Handle = 0,
    /// A prefix was released.
    Prefix = 1,
}

/// Number and time of the last change of a handle or prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastChange {
    /// The transaction that made it.
    pub id: u64,
    /// Its time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The priority of the site that made it; 0 for this one.
    pub priority: u32,
}

impl LastChange {
    pub(super) fn encode(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.id.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.unix_ms.to_be_bytes());
        bytes[16..].copy_from_slice(&self.priority.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let decoded = || {
            let (&id, rest) = bytes.split_first_chunk()?;
            let (&unix_ms, rest) = rest.split_first_chunk()?;
            let priority = u32::from_be_bytes(rest.try_into().ok()?);
            Some(Self { id: u64::from_be_bytes(id), unix_ms: u64::from_be_bytes(unix_ms), priority })
        };
        decoded().ok_or(StoreError::Damaged("the date of a change does not decode"))
    }
}

/// A key of the table: the kind, and the name as stored. Names of prefixes are without `0.NA/`.
pub(super) struct RemovalKey(Vec<u8>);

impl RemovalKey {
    pub(super) fn new(kind: RemovalKind, name: &[u8]) -> Self {
        Self([&[kind as u8], name].concat())
    }

    pub(super) fn handle(key: &[u8]) -> Self {
        Self::new(RemovalKind::Handle, key)
    }

    pub(super) fn prefix(prefix: &[u8]) -> Self {
        Self::new(RemovalKind::Prefix, prefix)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Transaction<'_> {
    pub(super) fn has_no_removals(&self) -> Result<bool, StoreError> {
        Ok(self.tables.len(StoreTable::Removals)? == 0)
    }

    /// The time of a removal, in milliseconds since 1970, if it is still known.
    pub(super) fn removal_ms(&self, key: &RemovalKey) -> Result<Option<u64>, StoreError> {
        if self.has_no_removals()? {
            return Ok(None);
        }
        let date = self.tables.get(StoreTable::Removals, key.as_bytes())?;
        date.map(|date| Ok(LastChange::decode(&date)?.unix_ms)).transpose()
    }

    /// Drops a removal because the handle or prefix exists again, and returns its time.
    pub(super) fn take_removal(&mut self, key: &RemovalKey) -> Result<Option<u64>, StoreError> {
        let unix_ms = self.removal_ms(key)?;
        self.drop_removal(key)?;
        Ok(unix_ms)
    }

    pub(super) fn drop_removal(&mut self, key: &RemovalKey) -> Result<(), StoreError> {
        if let Some(date) = self.tables.remove(StoreTable::Removals, key.as_bytes())? {
            self.tables.remove(StoreTable::RemovalIds, &LastChange::decode(&date)?.id.to_be_bytes())?;
        }
        Ok(())
    }

    /// Records that the last transaction has removed `key`, at `unix_ms`.
    pub(super) fn record_removal(&mut self, key: &RemovalKey, unix_ms: u64) -> Result<(), StoreError> {
        let date = LastChange { id: self.last_id, unix_ms, priority: OWN_PRIORITY };
        let replaced =
            self.tables.replace(StoreTable::Removals, key.as_bytes(), &date.encode(), number_in)?;
        if let Some(replaced) = replaced {
            self.tables.remove(StoreTable::RemovalIds, &replaced.to_be_bytes())?;
        }
        self.tables.insert(StoreTable::RemovalIds, &self.last_id.to_be_bytes(), key.as_bytes())
    }

    /// Drops up to `most` of the oldest removals, so that at most `kept` remain; returns their
    /// number.
    pub(super) fn prune_removals(&mut self, kept: u64, most: usize) -> Result<usize, StoreError> {
        let excess = self.tables.len(StoreTable::Removals)?.saturating_sub(kept);
        let most = usize::try_from(excess).map_or(most, |excess| excess.min(most));
        if most == 0 {
            return Ok(0);
        }
        let mut oldest = Vec::new();
        self.tables.each(StoreTable::RemovalIds, ALL_KEYS, &mut |id, key| {
            oldest.push((id.to_vec(), key.to_vec()));
            Ok(if oldest.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        for (id, key) in &oldest {
            self.tables.remove(StoreTable::RemovalIds, id)?;
            self.tables.remove(StoreTable::Removals, key)?;
        }
        self.writes_count += 1;
        Ok(most)
    }
}
