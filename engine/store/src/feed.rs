//! Follows the transactions that other processes make in the same store.

use super::tables::StoreEngine;
use super::{Inner, StoreError};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that looks for transactions of others.
#[derive(Debug)]
pub(super) struct StoreFeed {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreFeed {
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Self, StoreError> {
        let (stop, stopped) = sync_channel(1);
        let (inner, interval) =
            (Arc::clone(inner), Duration::from_millis(inner.config.postgres.poll_ms.into()));
        let follow = move || {
            let mut failed = false;
            while matches!(stopped.recv_timeout(interval), Err(RecvTimeoutError::Timeout)) {
                let looked = look(&inner);
                if let Err(error) = &looked
                    && !failed
                {
                    tracing::warn!(%error, "cannot look for transactions of other processes");
                }
                failed = looked.is_err();
            }
        };
        let thread = std::thread::Builder::new()
            .name("store-feed".to_owned())
            .spawn(follow)
            .map_err(StoreError::NoThread)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for StoreFeed {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been logged where it happened.
            let _ = thread.join();
        }
    }
}

fn look(inner: &Inner) -> Result<(), StoreError> {
    if let StoreEngine::Postgres(store) = &inner.engine {
        inner.commits.committed_elsewhere(store.last_id()?);
    }
    Ok(())
}
