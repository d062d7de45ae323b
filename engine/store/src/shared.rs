//! What processes over one database share beside records: rows that are taken once.

use super::StoreError;
use super::postgres::PostgresChallenges;
use std::time::Duration;

/// Challenges that wait for an answer, which any process over the same database may take. Values
/// are encrypted by the caller.
#[derive(Debug)]
pub struct SharedChallenges(pub(super) PostgresChallenges);

impl SharedChallenges {
    /// Keeps values under their numbers for some time. A value under the same number is replaced.
    ///
    /// # Errors
    /// When the database does not do it.
    pub fn put(&self, ids: &[i32], values: &[Vec<u8>], lasts: Duration) -> Result<(), StoreError> {
        self.0.put(ids, values, lasts)
    }

    /// Takes a value; of several processes that take it, one gets it.
    ///
    /// # Errors
    /// When the database does not do it.
    pub fn take(&self, id: i32) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.take(id)
    }

    /// Removes values before their time is over.
    ///
    /// # Errors
    /// When the database does not do it.
    pub fn remove(&self, ids: &[i32]) -> Result<(), StoreError> {
        self.0.remove(ids)
    }

    /// Removes the values whose time is over; returns their number.
    ///
    /// # Errors
    /// When the database does not do it.
    pub fn expire(&self) -> Result<u64, StoreError> {
        self.0.expire()
    }
}
