//! Removals: the last changes of deleted handles and released prefixes, from which a mirror knows
//! whether another change is older. Their number is bounded: the oldest are dropped.

use super::guard::guarded;
use super::transaction::Transaction;
use super::{StoreError, schema};
use redb::{ReadableTable as _, ReadableTableMetadata as _};

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

impl From<(u64, u64, u32)> for LastChange {
    fn from((id, unix_ms, priority): (u64, u64, u32)) -> Self {
        Self { id, unix_ms, priority }
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
        guarded(self.file, || Ok(self.removals.is_empty()?))
    }

    /// The time of a removal, in milliseconds since 1970, if it is still known.
    pub(super) fn removal_ms(&self, key: &RemovalKey) -> Result<Option<u64>, StoreError> {
        if self.has_no_removals()? {
            return Ok(None);
        }
        guarded(self.file, || Ok(self.removals.get(key.as_bytes())?.map(|date| date.value().1)))
    }

    /// Drops a removal because the handle or prefix exists again, and returns its time.
    pub(super) fn take_removal(&mut self, key: &RemovalKey) -> Result<Option<u64>, StoreError> {
        let unix_ms = self.removal_ms(key)?;
        self.drop_removal(key)?;
        Ok(unix_ms)
    }

    pub(super) fn drop_removal(&mut self, key: &RemovalKey) -> Result<(), StoreError> {
        guarded(self.file, || {
            let id = self.removals.remove(key.as_bytes())?.map(|date| date.value().0);
            if let Some(id) = id {
                self.begun.open_table(schema::REMOVAL_IDS)?.remove(id)?;
            }
            Ok(())
        })
    }

    /// Records that the last transaction has removed `key`, at `unix_ms`.
    pub(super) fn record_removal(&mut self, key: &RemovalKey, unix_ms: u64) -> Result<(), StoreError> {
        guarded(self.file, || {
            let date = (self.last_id, unix_ms, OWN_PRIORITY);
            let replaced = self.removals.insert(key.as_bytes(), date)?.map(|date| date.value().0);
            let mut ids = self.begun.open_table(schema::REMOVAL_IDS)?;
            if let Some(replaced) = replaced {
                ids.remove(replaced)?;
            }
            ids.insert(self.last_id, key.as_bytes())?;
            Ok(())
        })
    }

    /// Drops up to `most` of the oldest removals, so that at most `kept` remain; returns their number.
    pub(super) fn prune_removals(&mut self, kept: u64, most: usize) -> Result<usize, StoreError> {
        let count = guarded(self.file, || {
            let excess = self.removals.len()?.saturating_sub(kept);
            let most = usize::try_from(excess).map_or(most, |excess| excess.min(most));
            let mut ids = self.begun.open_table(schema::REMOVAL_IDS)?;
            for _ in 0..most {
                let Some((_, key)) = ids.pop_first()? else { break };
                self.removals.remove(key.value())?;
            }
            Ok(most)
        })?;
        self.writes_count += u64::from(count > 0);
        Ok(count)
    }
}
