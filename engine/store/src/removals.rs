//! Removals: the last changes of deleted handles and released prefixes, from which a mirror knows
//! whether another change is older. Their number is bounded: the oldest are dropped.

use super::StoreError;
use super::removal_keys::{LastChange, OWN_PRIORITY, RemovalKey};
use super::tables::{ALL_KEYS, StoreTable, number_in};
use super::transaction::Transaction;
use std::ops::ControlFlow;

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
