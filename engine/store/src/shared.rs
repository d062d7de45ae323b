//! What processes over one database share beside records: challenges and sessions.

use super::StoreError;
use super::postgres::{PostgresChallenges, PostgresSessions};
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

/// A session in the database. Facts are encrypted by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSession {
    /// Raised by one with each change.
    pub version: i64,
    /// Facts about the session.
    pub facts: Vec<u8>,
    /// The counters of its messages.
    pub counters: Vec<u8>,
}

/// Sessions that any process over the same database may use, each until its time is over.
#[derive(Debug)]
pub struct StoredSessions(pub(super) PostgresSessions);

impl StoredSessions {
    /// Adds a session for some seconds; false if there is one with the number.
    ///
    /// # Errors
    /// When the database does not do it.
    pub fn insert(&self, id: i32, session: &StoredSession, lasts_s: u32) -> Result<bool, StoreError> {
        self.0.insert(id, session, lasts_s)
    }

    /// Reads a session.
    ///
    /// # Errors
    /// When the database does not do it.
    pub fn read(&self, id: i32) -> Result<Option<StoredSession>, StoreError> {
        self.0.read(id)
    }

    /// Changes the counters of a session that has this version, its facts if there are others, and
    /// for how many seconds it lasts from now on, if that changes. False if there is no session
    /// with the version.
    ///
    /// # Errors
    /// When the database does not do it, or it is unknown whether it has.
    pub fn change(
        &self,
        id: i32,
        version: i64,
        counters: &[u8],
        facts: Option<&[u8]>,
        lasts_s: Option<u32>,
    ) -> Result<bool, StoreError> {
        self.0.change(id, version, counters, facts, lasts_s)
    }

    /// Removes sessions; returns how many of them there were.
    ///
    /// # Errors
    /// When the database does not do it.
    pub fn remove(&self, ids: &[i32]) -> Result<u64, StoreError> {
        self.0.remove(ids)
    }

    /// Removes the sessions whose time is over; returns their number.
    ///
    /// # Errors
    /// When the database does not do it.
    pub fn expire(&self) -> Result<u64, StoreError> {
        self.0.expire()
    }
}
