//! Copies the records of sources into the store, from where they are published.
//!
//! - [`worker`]: a thread for each source, which asks for changes, and compares all records.
//! - [`task`]: which items are stored, in batches of bounded size.
//! - [`named`]: the handles that a listing has named, in bounded memory.
//! - [`position`]: how far a source has been copied, in the same commits as the records.
//! - [`status`]: progress, errors, metrics, and the commands of operators.
//! - [`error`]: why a source cannot be copied now.
//!
//! All handles below the prefixes of such a source belong to it: requests to change them are
//! refused (`operation`), and those that it does not list are deleted.
//!
//! Of several processes over one database, the one that publishes copies. Each commit raises a
//! number in the position and requires the one that the process has read, so a process that was
//! stopped for a while cannot write what it has received before.

pub mod error;
pub mod named;
pub mod position;
pub mod status;
pub mod task;
#[cfg(test)]
mod tests;
pub mod worker;

use crate::publish::StorePublisher;
use crate::state::AdminState;
use handle_source::{PulledSource, RecordSources};
use handle_store::{Store, StoreError};
use position::PullPosition;
use status::{PullState, PullStatus};
use std::sync::{Arc, Mutex, PoisonError};
use worker::PullWorker;

/// The copied sources of a process.
#[derive(Debug)]
pub struct Pulls {
    states: Vec<Arc<PullState>>,
    /// The workers until they are started.
    workers: Mutex<Vec<PullWorker>>,
}

impl Pulls {
    /// Takes the copied sources from `sources`. Positions of sources that are not configured any
    /// more are dropped.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn open(store: &Arc<Store>, sources: Option<&RecordSources>) -> Result<Self, StoreError> {
        let pulled = sources.map(RecordSources::take_pulled).unwrap_or_default();
        let names: Vec<String> = pulled.iter().map(|source| source.name.clone()).collect();
        store.change(move |transaction| transaction.keep_pull_positions(&names))?;
        let (mut states, mut workers) = (Vec::new(), Vec::new());
        for source in pulled {
            let state = Arc::new(PullState::new(&source.name));
            let position = PullPosition::of(store, &source.name)?;
            state.set_position(&position.unwrap_or_else(|| PullPosition::new(&source.scope)));
            states.push(Arc::clone(&state));
            workers.push(PullWorker::new(source, Arc::clone(store), state));
        }
        Ok(Self { states, workers: Mutex::new(workers) })
    }

    /// The work of each thread, once.
    #[must_use]
    pub fn take_workers(&self) -> Vec<PullWorker> {
        std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The progress with each source.
    #[must_use]
    pub fn status(&self) -> Vec<PullStatus> {
        self.states.iter().map(|state| state.status()).collect()
    }

    /// The state of the source `name`.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<&PullState> {
        self.states.iter().find(|state| state.name() == name).map(|state| &**state)
    }
}

/// Whether this process copies now: it is not a mirror and, of several processes over one database,
/// the one that publishes.
#[must_use]
pub fn is_puller(state: &AdminState) -> bool {
    let publishes = state.publisher.as_ref().is_none_or(StorePublisher::has_lease);
    publishes && state.service.decision.site().is_primary()
}

/// Has the next comparison of the source `name` delete as many handles as the last one would have
/// deleted, and makes it at once. Returns their number, or why there is nothing to accept.
///
/// # Errors
/// When the store cannot be written.
pub fn accept_deletions(store: &Store, name: &str) -> Result<Option<u64>, StoreError> {
    let name = name.to_owned();
    store.change(move |transaction| {
        let Some(mut position) = PullPosition::read(transaction, &name)? else { return Ok(None) };
        let Some(refused) = &position.refused else { return Ok(None) };
        let deletions = refused.deletions;
        position.accepted = Some(deletions);
        position.write(transaction, &name)?;
        Ok(Some(deletions))
    })
}

/// The limits of one source, from its settings.
#[derive(Clone, Copy, Debug)]
pub struct PullLimits {
    /// Records in a transaction.
    pub commit_records: usize,
    /// Bytes of records in a transaction.
    pub commit_bytes: usize,
}

impl PullLimits {
    /// The limits of `source`.
    #[must_use]
    pub fn new(source: &PulledSource) -> Self {
        Self { commit_records: source.config.commit_records, commit_bytes: source.config.commit_bytes }
    }
}
