//! Notices of a primary that is `handle-admin` ([`handle_daemon::notice`]): the mirror requests
//! transactions as soon as the primary has published changes, instead of at the next interval.
//!
//! A thread keeps the connection, and wakes the worker. Nothing is believed because of a notice,
//! and without a connection the worker requests transactions at intervals.

use super::status::MirrorSourceState;
use handle_daemon::event::EventDescriptor;
use handle_daemon::notice::listener::{NoticeReceiver, NotifyConfig};
use handle_daemon::notice::{ChangedHandles, NoticeKey, PublicationNotice};
use handle_daemon::shutdown::Shutdown;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits until `timeout` is over, the process stops, or there is a notice that was not waited for
/// yet; in the last case, at least until `earliest`.
pub(super) fn wait_for_notice(
    noticed: &EventDescriptor,
    shutdown: &Shutdown,
    timeout: Duration,
    earliest: Instant,
) {
    if shutdown.wait_for(noticed.as_fd(), Some(timeout)) {
        let left = earliest.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            shutdown.poll(&mut [], Some(left));
        }
        noticed.clear();
    }
}

/// What keeps the connection to a primary.
#[derive(Debug)]
pub struct NoticeListener {
    /// The settings.
    pub(super) config: NotifyConfig,
    /// The key of the connection.
    pub(super) key: Arc<NoticeKey>,
    pub(super) noticed: Arc<EventDescriptor>,
    pub(super) state: Arc<MirrorSourceState>,
}

impl NoticeListener {
    /// Keeps the connection until the process stops.
    pub fn run(&self, shutdown: &Shutdown) {
        handle_daemon::notice::listener::listen(&PrimaryNotices { listener: self, shutdown }, &self.key);
    }
}

struct PrimaryNotices<'l> {
    listener: &'l NoticeListener,
    shutdown: &'l Shutdown,
}

impl NoticeReceiver for PrimaryNotices<'_> {
    fn config(&self) -> NotifyConfig {
        self.listener.config.clone()
    }

    fn shutdown(&self) -> &Shutdown {
        self.shutdown
    }

    fn note_connected(&self) {
        self.listener.state.note_notified(true);
    }

    fn note_failure(&self, _error: &str) {
        self.listener.state.note_notified(false);
    }

    fn take(&self, _notice: PublicationNotice, _changed: Option<&ChangedHandles>) {
        self.listener.state.note_notice();
        self.listener.noticed.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_notice_ends_a_wait_once_and_not_too_early() {
        let (noticed, shutdown) = (EventDescriptor::new().unwrap(), Shutdown::new().unwrap());
        let started = Instant::now();
        noticed.raise();
        noticed.raise();
        wait_for_notice(&noticed, &shutdown, LONG, started);
        assert!(started.elapsed() < LONG / 2);
        // Both were taken.
        let earliest = Instant::now() + Duration::from_millis(30);
        wait_for_notice(&noticed, &shutdown, Duration::from_millis(20), earliest);
        let waited = Instant::now();
        noticed.raise();
        wait_for_notice(&noticed, &shutdown, LONG, waited + Duration::from_millis(20));
        assert!(waited.elapsed() >= Duration::from_millis(20));
        noticed.raise();
        shutdown.drain();
        wait_for_notice(&noticed, &shutdown, LONG, Instant::now());
        assert!(started.elapsed() < LONG / 2);
    }
}
