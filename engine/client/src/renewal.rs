//! When the records of the global service are renewed automatically: when they are old, when a
//! server of it has newer ones, or when a server reports that they are outdated.

use crate::ClockReading;
use crate::bootstrap::Root;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// When the records of the global service are renewed, and where they are written.
#[derive(Debug)]
pub struct Renewal {
    /// Whether renewal is automatic. Without trusted keys it never is.
    pub automatic: bool,
    /// Highest age of the records, in seconds.
    pub age_max_s: u32,
    /// Seconds between two renewals, successful or not.
    pub retry_s: u32,
    /// The file to write, atomically.
    pub file: Option<PathBuf>,
    state: Mutex<RenewalState>,
}

#[derive(Debug, Default)]
struct RenewalState {
    /// Whether a server has newer records.
    is_stale: bool,
    is_under_way: bool,
    began_ms: Option<u64>,
}

impl Default for Renewal {
    fn default() -> Self {
        Self { automatic: true, age_max_s: AGE_MAX_S, retry_s: RETRY_S, file: None, state: Mutex::default() }
    }
}

/// A day, as in deployed clients.
const AGE_MAX_S: u32 = 86_400;
const RETRY_S: u32 = 600;

impl Renewal {
    /// Notes that a server has newer records, or reports that the known ones are outdated.
    pub fn note_stale(&self) {
        self.state().is_stale = true;
    }

    fn state(&self) -> MutexGuard<'_, RenewalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a renewal is due and not in progress. If so, the caller has to make it.
    pub(crate) fn begins(&self, root: &Root, now: ClockReading) -> bool {
        if !self.automatic || root.trusted_keys.is_empty() {
            return false;
        }
        let mut state = self.state();
        let age_s = root.updated_unix_ms.map(|at| u64::from(now.unix_s).saturating_sub(at / 1000));
        let is_old = age_s.is_some_and(|age_s| age_s >= self.age_max_s.into());
        let retry_ms = u64::from(self.retry_s) * 1000;
        let is_rested = state.began_ms.is_none_or(|began_ms| now.ms.saturating_sub(began_ms) >= retry_ms);
        let begins = (is_old || state.is_stale) && !state.is_under_way && is_rested;
        if begins {
            (state.is_under_way, state.began_ms) = (true, Some(now.ms));
        }
        begins
    }

    /// Records that the known records are the newest ones.
    pub(crate) fn note_fresh(&self) {
        self.state().is_stale = false;
    }

    /// Ends the renewal that has [begun](Self::begins).
    pub(crate) fn end(&self) {
        self.state().is_under_way = false;
    }
}
