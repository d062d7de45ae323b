//! Notices of `handle-admin` about new sets ([`handle_daemon::notice`]).
//!
//! A thread keeps the connection. It wakes the thread that fetches when a notice names another set
//! than the one before. Without a connection, the source is only asked at intervals.

use crate::config::NotifyConfig;
use crate::state::FetchState;
use handle_daemon::event::EventDescriptor;
use handle_daemon::notice::listener::NoticeReceiver;
use handle_daemon::notice::{ChangedHandles, PublicationNotice};
use handle_daemon::shutdown::Shutdown;
use handle_snapshot::set::manifest::Manifest;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The newest notice, and how the thread that fetches is woken by it.
#[derive(Debug)]
pub(crate) struct NoticeInbox {
    newest: Mutex<PublicationNotice>,
    noticed: EventDescriptor,
}

impl NoticeInbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { newest: Mutex::default(), noticed: EventDescriptor::new()? })
    }

    fn put(&self, notice: PublicationNotice) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = notice;
        self.noticed.raise();
    }

    /// Waits until `timeout` is over, the process stops, or a notice names a later set than
    /// `current`.
    pub(crate) fn wait(&self, shutdown: &Shutdown, timeout: Duration, current: Option<&Manifest>) {
        let deadline = Instant::now() + timeout;
        let known = current.map(|set| PublicationNotice { epoch: set.epoch, generation: set.generation });
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if !shutdown.wait_for(self.noticed.as_fd(), Some(left)) {
                return;
            }
            self.noticed.clear();
            let newest = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
            if known.is_none_or(|known| known < newest) || left.is_zero() {
                return;
            }
        }
    }
}

/// The thread that keeps the connection.
#[derive(Debug)]
pub(crate) struct FetchReceiver {
    pub(crate) state: Arc<FetchState>,
    pub(crate) inbox: Arc<NoticeInbox>,
}

impl NoticeReceiver for FetchReceiver {
    fn config(&self) -> NotifyConfig {
        self.state.config().notify.clone()
    }

    fn shutdown(&self) -> &Shutdown {
        &self.state.shutdown
    }

    fn note_connected(&self) {
        self.state.lock_notices().connected = true;
    }

    fn note_failure(&self, error: &str) {
        self.state.counters.notify_failures.add();
        let mut status = self.state.lock_notices();
        (status.connected, status.last_error) = (false, Some(error.to_owned()));
    }

    fn take(&self, notice: PublicationNotice, _changed: Option<&ChangedHandles>) {
        self.state.counters.notices.add();
        self.inbox.put(notice);
    }
}
