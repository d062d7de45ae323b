//! Leases: of several processes over one database, the one that has the lease of a task does it,
//! and the others wait to take over. The tasks are publishing, and following the primaries of a
//! mirror.
//!
//! A thread takes and renews a lease. The task goes on only until the end of the lease as this
//! process knows it, which is not later than the end in the database. A process that is stopped
//! between looking at the clock and writing is kept from publishing by the fence of the directory
//! and by the conditions of the location to which sets are shipped, and from following by the
//! position of the mirror, which has the epoch of the lease.

use handle_daemon::threads;
use handle_store::{LeaseHolder, LeaseTurn, StoreError, StoreLease};
use serde::Serialize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Which process has a lease, as `status` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeaseStatus {
    /// Whether this process has it.
    pub held: bool,
    /// Host of the process that has it, or was the last to have it.
    pub host: String,
    /// Its epoch, which each change of the process raises.
    pub epoch: u64,
    /// How often this process has taken over since it started.
    pub taken: u64,
    /// The error of the last attempt to take or renew the lease, if it failed.
    pub last_error: Option<String>,
}

#[derive(Debug, Default)]
struct LeaseInner {
    status: LeaseStatus,
    /// The epoch of this process, and until when it may do the task.
    held: Option<(u64, Instant)>,
    /// The highest epoch that was used, above which that of this process has to be.
    epoch_above: u64,
    gives_up: bool,
    stops: bool,
}

/// A lease as its task sees it.
#[derive(Debug, Default)]
pub(crate) struct LeaseState {
    inner: Mutex<LeaseInner>,
    wake: Condvar,
}

impl LeaseState {
    fn lock(&self) -> MutexGuard<'_, LeaseInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch with which this process may do the task now.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.lock().held.filter(|(_, until)| Instant::now() < *until).map(|(epoch, _)| epoch)
    }

    /// When this process may no longer do the task, unless the lease is renewed.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        self.lock().held.map(|(_, until)| until)
    }

    pub(crate) fn status(&self) -> LeaseStatus {
        let held = self.epoch().is_some();
        LeaseStatus { held, ..self.lock().status.clone() }
    }

    /// Notes that this epoch was used, as by a set that is published.
    pub(crate) fn note_used(&self, epoch: u64) {
        let mut inner = self.lock();
        inner.epoch_above = inner.epoch_above.max(epoch);
    }

    /// Lets the lease go, and waits before it is taken again, with a higher epoch: this process
    /// cannot take over, or a set with a higher epoch is published, for example after
    /// `hdl ship --take-over`.
    pub(crate) fn give_up(&self) {
        let mut inner = self.lock();
        inner.held = None;
        inner.gives_up = true;
        self.wake.notify_all();
    }
}

/// The thread that takes and renews a lease. Dropping it releases the lease.
#[derive(Debug)]
pub(crate) struct ProcessLease {
    pub(crate) state: Arc<LeaseState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A process as it holds leases: with a random number, and the name of its host.
pub(crate) fn this_process() -> LeaseHolder {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // The highest bit stays free, for numbers with a sign.
    LeaseHolder { id: u64::from_be_bytes(handle_auth::random()) >> 1, host }
}

impl ProcessLease {
    /// Begins to wait for `lease` of `task`, which lasts for `length`, and to renew it. Calls
    /// `changed` after each attempt that may have changed whether this process has it.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(
        task: &'static str,
        lease: StoreLease,
        host: String,
        length: Duration,
        changed: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let state = Arc::new(LeaseState::default());
        let shared = Arc::clone(&state);
        let thread = threads::spawn("lease", move || keep(task, lease, &host, length, &shared, &changed))?;
        Ok(Self { state, thread: Mutex::new(Some(thread)) })
    }

    /// Releases the lease.
    pub(crate) fn stop(&self) {
        {
            let mut inner = self.state.lock();
            (inner.stops, inner.held) = (true, None);
            self.state.wake.notify_all();
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of the thread has already been logged where it happened.
        let _ = thread.map(JoinHandle::join);
    }
}

impl Drop for ProcessLease {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Takes and renews the lease until the process stops.
fn keep(
    task: &str,
    mut lease: StoreLease,
    host: &str,
    length: Duration,
    state: &LeaseState,
    changed: &dyn Fn(),
) {
    loop {
        let (stops, gives_up, above) = {
            let mut inner = state.lock();
            (inner.stops, std::mem::take(&mut inner.gives_up), inner.epoch_above)
        };
        if (stops || gives_up)
            && let Err(error) = lease.release()
        {
            tracing::warn!(task, %error, "cannot release a lease; it ends by itself");
        }
        if stops {
            return;
        }
        if gives_up {
            // So long that another process takes it, if there is one.
            let waited = state.wake.wait_timeout_while(state.lock(), length / 4, |inner| !inner.stops);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        let before = (state.epoch(), state.status());
        // The state is not locked while the database is asked.
        let turn = lease.hold(above);
        let pause = note(&mut state.lock(), task, host, length, turn);
        if before != (state.epoch(), state.status()) {
            changed();
        }
        let waits = |inner: &mut LeaseInner| !inner.stops && !inner.gives_up;
        let waited = state.wake.wait_timeout_while(state.lock(), pause, waits);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Notes the outcome of an attempt; returns the time until the next one.
fn note(
    inner: &mut LeaseInner,
    task: &str,
    host: &str,
    length: Duration,
    turn: Result<LeaseTurn, StoreError>,
) -> Duration {
    match turn {
        // Given up while it was renewed.
        Ok(LeaseTurn::Held { .. }) if inner.gives_up || inner.stops => Duration::ZERO,
        Ok(LeaseTurn::Held { epoch, until }) => {
            // The epoch changes with the holder, and does not come back.
            inner.status.taken += u64::from(inner.status.epoch != epoch);
            inner.held = Some((epoch, until));
            (inner.status.host, inner.status.epoch) = (host.to_owned(), epoch);
            inner.status.last_error = None;
            length / 3
        }
        Ok(LeaseTurn::Elsewhere { host, epoch }) => {
            inner.held = None;
            (inner.status.host, inner.status.epoch) = (host, epoch);
            inner.status.last_error = None;
            // Often enough that the time in which no process has it is little longer than a lease.
            length / 8
        }
        Err(error) => {
            let text = error.to_string();
            // Logged once, not for each attempt.
            if inner.status.last_error.as_ref() != Some(&text) {
                tracing::warn!(task, %error, "cannot take or renew a lease");
                inner.status.last_error = Some(text);
            }
            length / 8
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(epoch: u64, length: Duration) -> Result<LeaseTurn, StoreError> {
        Ok(LeaseTurn::Held { epoch, until: Instant::now() + length })
    }

    #[test]
    fn a_lease_that_is_not_renewed_ends_by_itself() {
        let (state, hour) = (LeaseState::default(), Duration::from_secs(3600));
        assert_eq!(state.epoch(), None);
        note(&mut state.lock(), "a task", "here", hour, held(3, hour));
        assert_eq!((state.epoch(), state.status().held, state.status().taken), (Some(3), true, 1));
        note(&mut state.lock(), "a task", "here", hour, Err(StoreError::Busy));
        assert_eq!(state.epoch(), Some(3), "until its end");
        assert!(state.status().last_error.is_some());
        note(&mut state.lock(), "a task", "here", hour, held(3, Duration::ZERO));
        assert_eq!((state.epoch(), state.status().held), (None, false));
        note(&mut state.lock(), "a task", "here", hour, held(3, hour));
        assert_eq!((state.epoch(), state.status().taken), (Some(3), 1), "renewed late, but not taken over");
        let elsewhere = LeaseTurn::Elsewhere { host: "there".to_owned(), epoch: 4 };
        assert_eq!(note(&mut state.lock(), "a task", "here", hour, Ok(elsewhere)), hour / 8);
        let status = LeaseStatus { host: "there".to_owned(), epoch: 4, taken: 1, ..LeaseStatus::default() };
        assert_eq!((state.epoch(), state.status()), (None, status));
        note(&mut state.lock(), "a task", "here", hour, held(5, hour));
        assert_eq!((state.epoch(), state.status().taken), (Some(5), 2));
        state.give_up();
        assert_eq!(state.epoch(), None);
        note(&mut state.lock(), "a task", "here", hour, held(5, hour));
        assert_eq!(state.epoch(), None, "it was given up while it was renewed");
    }
}
