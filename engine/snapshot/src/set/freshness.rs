//! Decides which sets a process serves, and how long without a new statement of the publisher.

use super::last_served::LastServedFile;
use super::manifest::MANIFEST;
use super::statement::{AcceptedPublishers, ahead_ms};
use super::{PublishedSet, SetError, SetErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The rules for served sets, and the time of the newest statement about the one in service.
#[derive(Debug, Default)]
pub struct SetFreshness {
    accepted: Option<AcceptedPublishers>,
    age_max_s: AtomicU64,
    refuses_stale: AtomicBool,
    signed_unix_ms: AtomicU64,
    /// See [`statement_ahead_ms`](Self::statement_ahead_ms).
    refused_ahead_ms: AtomicU64,
    last_served: Option<LastServedFile>,
}

impl SetFreshness {
    /// Accepts the sets of these publishers; `None` for every set, signed or not.
    #[must_use]
    pub fn new(accepted: Option<AcceptedPublishers>) -> Self {
        Self { accepted, ..Self::default() }
    }

    /// Refuses sets that are older than the one in this file.
    #[must_use]
    pub fn remembering(self, file: Option<LastServedFile>) -> Self {
        Self { last_served: file, ..self }
    }

    /// Sets the maximum age of a set in seconds, 0 for none, and whether an older set, which is
    /// stale, is refused.
    pub fn set_limits(&self, age_max_s: u64, refuses_stale: bool) {
        self.age_max_s.store(age_max_s, Ordering::Relaxed);
        self.refuses_stale.store(refuses_stale, Ordering::Relaxed);
    }

    /// Checks that `set` may follow `previous`, and stores the time of the newest statement about
    /// it.
    ///
    /// # Errors
    /// When the set is not signed by an accepted publisher, is signed too far ahead of the clock,
    /// or is older than `previous` or than the last one that was served before a restart.
    pub fn check(
        &self,
        set: &PublishedSet,
        previous: Option<&PublishedSet>,
        now_unix_ms: u64,
    ) -> Result<(), SetError> {
        if let Some(accepted) = &self.accepted {
            let previous_manifest = previous.map(PublishedSet::manifest);
            let newest = accepted.check(set.dir(), set.manifest(), previous_manifest, now_unix_ms);
            let refused_ahead_ms = match &newest {
                Ok(newest) => newest.refused_ahead_ms,
                Err(SetError { kind: SetErrorKind::Ahead(ahead_ms), .. }) => *ahead_ms,
                Err(_) => 0,
            };
            self.refused_ahead_ms.store(refused_ahead_ms, Ordering::Relaxed);
            let mut signed = newest?.signed_unix_ms;
            if previous_manifest == Some(set.manifest()) {
                // A refused or damaged file has replaced a statement about the same set, which was
                // heard nevertheless.
                let heard = self.signed_unix_ms.load(Ordering::Relaxed);
                let is_believed = ahead_ms(heard, now_unix_ms) == 0;
                signed = if is_believed { signed.max(heard) } else { signed };
            }
            // While a set is in service, it is at least as new as the file.
            if let (Some(file), None) = (&self.last_served, previous) {
                file.check(&set.dir().join(MANIFEST), set.manifest())?;
            }
            self.signed_unix_ms.store(signed, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Stores which set is in service, for the time after a restart. Call it after each look for a
    /// new set, at least once a second: it writes at most that often.
    ///
    /// # Errors
    /// When it cannot be stored and the last attempt could.
    pub fn store_served(&self, set: &PublishedSet) -> Result<(), SetError> {
        self.last_served.as_ref().map_or(Ok(()), |file| file.store(set.manifest()))
    }

    /// The time of the newest statement about the set in service, in Unix milliseconds; `None` if
    /// every set is accepted.
    #[must_use]
    pub fn signed_unix_ms(&self) -> Option<u64> {
        self.accepted.as_ref().map(|_| self.signed_unix_ms.load(Ordering::Relaxed))
    }

    /// Time since the newest statement, milliseconds.
    #[must_use]
    pub fn age_ms(&self, now_unix_ms: u64) -> Option<u64> {
        self.signed_unix_ms().map(|signed| now_unix_ms.saturating_sub(signed))
    }

    /// By how many milliseconds the newest statement in the directory is ahead of the clock, if it
    /// is refused for that; otherwise 0.
    #[must_use]
    pub fn statement_ahead_ms(&self) -> u64 {
        self.refused_ahead_ms.load(Ordering::Relaxed)
    }

    /// Whether the set in service is stale. With a maximum age, it is stale as well if the clock
    /// was set back so far that the age of the set is not known.
    #[must_use]
    pub fn is_stale(&self, now_unix_ms: u64) -> bool {
        let age_max_s = self.age_max_s.load(Ordering::Relaxed);
        let is_past = |signed_unix_ms| {
            let age_ms = now_unix_ms.saturating_sub(signed_unix_ms);
            age_ms > age_max_s.saturating_mul(1000) || ahead_ms(signed_unix_ms, now_unix_ms) > 0
        };
        age_max_s > 0 && self.signed_unix_ms().is_some_and(is_past)
    }

    /// Whether the set in service is stale, and stale sets are refused.
    #[must_use]
    pub fn refuses(&self, now_unix_ms: u64) -> bool {
        self.refuses_stale.load(Ordering::Relaxed) && self.is_stale(now_unix_ms)
    }
}
