//! Follows the transactions that other processes make in the same store.

use super::snapshot::RenumberedRange;
use super::tables::{StoreEngine, StoreTable, names, number_in};
use super::{Inner, StoreError};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
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

/// Reads what other processes may have changed of the numbers that are kept in memory.
pub(super) fn look(inner: &Inner) -> Result<(), StoreError> {
    if let StoreEngine::Postgres(store) = &inner.engine {
        let snapshot = store.snapshot()?;
        let number = |name: &str| {
            let number = snapshot.get(StoreTable::Meta, name.as_bytes())?;
            Ok::<_, StoreError>(number.map_or(0, |number| number_in(&number)))
        };
        inner.identity.store(number(names::IDENTITY)?, Ordering::Relaxed);
        let renumbered =
            RenumberedRange { from: number(names::RENUMBERED_FROM)?, to: number(names::RENUMBERED_TO)? };
        *inner.renumbered.lock().unwrap_or_else(PoisonError::into_inner) = renumbered;
        inner.commits.committed_elsewhere(number(names::LAST_ID)?);
    }
    Ok(())
}
