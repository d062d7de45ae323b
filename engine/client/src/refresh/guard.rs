//! A renewal of the records of the global service, with the client that uses them.

use super::{Refresh, RefreshError};
use crate::bootstrap::{Root, write};
use crate::lookup::{Client, LookupOptions};
use crate::{ClockReading, Question, SharedAnswer};
use std::sync::Arc;

/// A renewal in progress. Its owner sends its questions. Dropping it abandons the renewal.
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
        renewal.note_fresh();
        match &renewal.file {
            Some(path) => write(path, &file).map_err(|error| RefreshError::Unwritten(path.clone(), error)),
            None => Ok(()),
        }
    }
}

impl Drop for RenewalGuard {
    fn drop(&mut self) {
        self.client.renewal.end();
    }
}
