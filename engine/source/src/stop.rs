//! Ends waiting for sources when the process stops.

use crate::error::SourceError;
use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;

/// Whether the process stops, for those that wait for a source.
#[derive(Clone, Debug)]
pub(crate) struct PullStop(pub(crate) watch::Receiver<bool>);

impl PullStop {
    /// Waits for `work` up to `timeout`.
    ///
    /// # Errors
    /// When it takes longer, or the process stops.
    pub(crate) async fn wait<T>(
        &self,
        timeout: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, SourceError> {
        // Without this check, a ready future would win every select.
        if timeout.is_zero() {
            return Err(SourceError::Late);
        }
        let mut stop = self.0.clone();
        tokio::select! {
            done = tokio::time::timeout(timeout, work) => done.map_err(|_| SourceError::Late),
            // Also when the sender is gone.
            _ = stop.wait_for(|stops| *stops) => Err(SourceError::Stopped),
        }
    }
}
