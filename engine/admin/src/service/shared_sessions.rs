//! The rows by which processes over one database share sessions.
//!
//! The facts about a session, with its key, are encrypted with a key that is derived from the
//! server key, which all processes have. The counters of its messages are not: who can change rows
//! can change records as well.

use super::row_cipher::RowCipher;
use handle_session::{RowChange, RowsUnavailable, SessionRow, SessionRows};
use handle_store::{StoreError, StoredSession, StoredSessions};
use zeroize::Zeroizing;

/// The sessions in the database, decrypted.
#[derive(Debug)]
pub struct SharedSessionRows {
    stored: StoredSessions,
    cipher: RowCipher,
}

impl SharedSessionRows {
    /// Shares sessions by `stored` with the processes that have the same server key.
    #[must_use]
    pub fn new(stored: StoredSessions, server_key: &[u8]) -> Option<Self> {
        Some(Self { stored, cipher: RowCipher::new("handle sessions of several processes", server_key)? })
    }

    fn seal(&self, id: i32, facts: &[u8]) -> Result<Vec<u8>, RowsUnavailable> {
        self.cipher.seal(id, &mut Zeroizing::new(facts.to_vec())).ok_or(RowsUnavailable)
    }
}

fn logged<T>(done: Result<T, StoreError>) -> Result<T, RowsUnavailable> {
    done.map_err(|error| {
        tracing::warn!(%error, "cannot share sessions with other processes");
        RowsUnavailable
    })
}

impl SessionRows for SharedSessionRows {
    fn insert(&self, id: i32, row: &SessionRow, lasts_s: u32) -> Result<bool, RowsUnavailable> {
        let facts = self.seal(id, &row.facts)?;
        let row = StoredSession { version: row.version, facts, counters: row.counters.to_vec() };
        logged(self.stored.insert(id, &row, lasts_s))
    }

    fn read(&self, id: i32) -> Result<Option<SessionRow>, RowsUnavailable> {
        let Some(row) = logged(self.stored.read(id))? else { return Ok(None) };
        // A row of a process with another server key is none for this one.
        let facts = self.cipher.open(id, &row.facts);
        let counters = row.counters.try_into().ok();
        Ok(facts.zip(counters).map(|(facts, counters)| SessionRow { version: row.version, facts, counters }))
    }

    fn change(&self, id: i32, change: RowChange<'_>) -> Result<bool, RowsUnavailable> {
        let facts = change.facts.map(|facts| self.seal(id, facts)).transpose()?;
        let RowChange { version, counters, lasts_s, .. } = change;
        logged(self.stored.change(id, version, counters, facts.as_deref(), lasts_s))
    }

    fn remove(&self, ids: &[i32]) -> Result<u64, RowsUnavailable> {
        logged(self.stored.remove(ids))
    }

    fn expire(&self) -> Result<(), RowsUnavailable> {
        logged(self.stored.expire()).map(drop)
    }
}
