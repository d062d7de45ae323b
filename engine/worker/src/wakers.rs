//! Wakes the workers when something that they check between two batches has changed.

use handle_net::Waker;
use std::sync::{Mutex, PoisonError};

/// The wakers of all workers.
#[derive(Debug, Default)]
pub struct WorkerWakers(Mutex<Vec<Waker>>);

impl WorkerWakers {
    /// Adds the waker of a worker.
    pub(crate) fn add(&self, waker: Waker) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }

    /// Wakes all workers, which then check for changes. Must be called after the change.
    pub(crate) fn wake(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Waker::wake);
    }
}
