//! When the records of the global service are renewed automatically: when they are old, when a
//! server of it has newer ones, or when a server reports that they are outdated.

use super::{Refresh, RefreshError};
use crate::bootstrap::{Root, write};
use crate::lookup::{Client, LookupOptions};
use crate::{ClockReading, Question, SharedAnswer};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Records that a server has newer records, or reports that the known ones are outdated.
    pub fn note_stale(&self) {
        self.state().is_stale = true;
    }

    fn state(&self) -> MutexGuard<'_, RenewalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a renewal is due and not under way. The caller then has to make it.
    fn begins(&self, root: &Root, now: ClockReading) -> bool {
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
}

/// A renewal under way. Its owner asks its questions. Dropping it abandons the renewal.
#[derive(Debug)]
pub struct RenewalGuard {
    client: Arc<Client>,
    refresh: Refresh,
}

impl RenewalGuard {
    /// Starts a renewal, if one is due.
    #[must_use]
    pub fn begin(client: &Arc<Client>, now: ClockReading) -> Option<Self> {
        let root = client.root.get();
        if !client.renewal.begins(&root, now) {
            return None;
        }
        let refresh = Refresh::new(root, u64::from(now.unix_s) * 1000);
        Some(Self { client: Arc::clone(client), refresh })
    }

    /// The options of its questions: cached answers are not used.
    #[must_use]
    pub fn options() -> LookupOptions {
        LookupOptions { use_cache: false, ..LookupOptions::default() }
    }

    /// The next question; `None` when there are no more.
    pub fn poll_question(&mut self) -> Option<Question> {
        self.refresh.poll_question()
    }

    /// Handles the answer to a question.
    pub fn handle_answer(&mut self, question: Question, answer: Option<SharedAnswer>) {
        self.refresh.handle_answer(question, answer.map(SharedAnswer::into_answer));
    }

    /// Uses the new records, if they are valid, and writes them.
    ///
    /// # Errors
    /// When they are invalid, and the known records stay; or when they could not be written.
    ///
    /// # Panics
    /// While there is a question left.
    pub fn finish(mut self) -> Result<(), RefreshError> {
        let file = self.refresh.take_outcome().expect("every question has been asked")?;
        let known = self.client.root.get();
        let root = Root::from_json(&file, &known.service).map_err(RefreshError::File)?;
        self.client.root.replace(root);
        let renewal = &self.client.renewal;
        renewal.state().is_stale = false;
        match &renewal.file {
            Some(path) => write(path, &file).map_err(|error| RefreshError::Unwritten(path.clone(), error)),
            None => Ok(()),
        }
    }
}

impl Drop for RenewalGuard {
    fn drop(&mut self) {
        self.client.renewal.state().is_under_way = false;
    }
}
