//! The last changes of deleted handles and released prefixes, which a mirror needs to tell an old
//! change from a new one. Their number is bounded: the oldest are forgotten.

use super::guard::guarded;
use super::transaction::Transaction;
use super::{StoreError, schema};
use redb::{ReadableTable as _, ReadableTableMetadata as _};

/// The priority of changes that were made here.
pub(super) const OWN_PRIORITY: u32 = 0;

/// What is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GoneKind {
    /// A handle was deleted.
    Handle = 0,
    /// A prefix was released.
    Prefix = 1,
}

/// The date of a change.
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

/// A key of the table: the kind, and the name as stored; that of a prefix without `0.NA/`.
pub(super) struct GoneKey(Vec<u8>);

impl GoneKey {
    pub(super) fn new(kind: GoneKind, name: &[u8]) -> Self {
        Self([&[kind as u8], name].concat())
    }

    pub(super) fn handle(key: &[u8]) -> Self {
        Self::new(GoneKind::Handle, key)
    }

    pub(super) fn prefix(prefix: &[u8]) -> Self {
        Self::new(GoneKind::Prefix, prefix)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Transaction<'_> {
    pub(super) fn is_nothing_gone(&self) -> Result<bool, StoreError> {
        guarded(self.file, || Ok(self.gone.is_empty()?))
    }

    /// The time of the last change of what is gone.
    pub(super) fn gone_ms(&self, key: &GoneKey) -> Result<Option<u64>, StoreError> {
        if self.is_nothing_gone()? {
            return Ok(None);
        }
        guarded(self.file, || Ok(self.gone.get(key.as_bytes())?.map(|date| date.value().1)))
    }

    /// The time at which `key` went, which is forgotten because it exists again.
    pub(super) fn recall(&mut self, key: &GoneKey) -> Result<Option<u64>, StoreError> {
        let unix_ms = self.gone_ms(key)?;
        self.forget(key)?;
        Ok(unix_ms)
    }

    pub(super) fn forget(&mut self, key: &GoneKey) -> Result<(), StoreError> {
        guarded(self.file, || {
            let id = self.gone.remove(key.as_bytes())?.map(|date| date.value().0);
            if let Some(id) = id {
                self.begun.open_table(schema::GONE_IDS)?.remove(id)?;
            }
            Ok(())
        })
    }

    /// Remembers that `key` went with the last transaction, at `unix_ms`.
    pub(super) fn remember(&mut self, key: &GoneKey, unix_ms: u64) -> Result<(), StoreError> {
        guarded(self.file, || {
            let date = (self.last_id, unix_ms, OWN_PRIORITY);
            let replaced = self.gone.insert(key.as_bytes(), date)?.map(|date| date.value().0);
            let mut ids = self.begun.open_table(schema::GONE_IDS)?;
            if let Some(replaced) = replaced {
                ids.remove(replaced)?;
            }
            ids.insert(self.last_id, key.as_bytes())?;
            Ok(())
        })
    }

    /// Forgets up to `most` of the oldest, so that at most `kept` remain; returns how many.
    pub(super) fn prune_gone(&mut self, kept: u64, most: usize) -> Result<usize, StoreError> {
        let count = guarded(self.file, || {
            let excess = self.gone.len()?.saturating_sub(kept);
            let most = usize::try_from(excess).map_or(most, |excess| excess.min(most));
            let mut ids = self.begun.open_table(schema::GONE_IDS)?;
            for _ in 0..most {
                let Some((_, key)) = ids.pop_first()? else { break };
                self.gone.remove(key.value())?;
            }
            Ok(most)
        })?;
        self.writes_count += u64::from(count > 0);
        Ok(count)
    }
}
