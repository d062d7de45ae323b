//! Notices of a primary that is `handle-admin` ([`handle_daemon::notice`]): the mirror requests
//! transactions as soon as the primary has published changes, instead of at the next interval.
//!
//! A thread keeps the connection, and wakes the worker. Nothing is believed because of a notice,
//! and without a connection the worker requests transactions at intervals.

use super::status::MirrorSourceState;
use handle_daemon::notice::listener::{NoticeReceiver, NotifyConfig};
use handle_daemon::notice::{ChangedHandles, NoticeKey, PublicationNotice};
use handle_daemon::shutdown::Shutdown;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Wakes a worker.
#[derive(Debug)]
pub struct NoticeWaker {
    /// A byte is written here for each notice.
    wake: UnixStream,
    woken: UnixStream,
}

impl NoticeWaker {
    /// # Errors
    /// When there are no file descriptors left.
    pub(super) fn new() -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok(Self { wake, woken })
    }

    fn wake_worker(&self) {
        // If the pipe is full, the worker is being woken.
        let _ = (&self.wake).write(&[0]);
    }

    /// Waits until `patience` is over, the process stops, or there is a notice that was not waited
    /// for yet; in the last case, at least until `earliest`.
    pub(super) fn wait(&self, shutdown: &Shutdown, patience: Duration, earliest: Instant) {
        if shutdown.wait_for(self.woken.as_fd(), Some(patience)) {
            let left = earliest.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                shutdown.poll(&mut [], Some(left));
            }
            // What is left is read the next time.
            let _ = (&self.woken).read(&mut [0; 64]);
        }
    }
}

/// What keeps the connection to a primary.
#[derive(Debug)]
pub struct NoticeListener {
    /// The settings.
    pub(super) config: NotifyConfig,
    /// The key of the connection.
    pub(super) key: Arc<NoticeKey>,
    pub(super) waker: Arc<NoticeWaker>,
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
        self.listener.waker.wake_worker();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_notice_ends_a_wait_once_and_not_too_early() {
        let (waker, shutdown) = (NoticeWaker::new().unwrap(), Shutdown::new().unwrap());
        let started = Instant::now();
        waker.wake_worker();
        waker.wake_worker();
        waker.wait(&shutdown, LONG, started);
        assert!(started.elapsed() < LONG / 2);
        // Both were taken.
        let earliest = Instant::now() + Duration::from_millis(30);
        waker.wait(&shutdown, Duration::from_millis(20), earliest);
        let waited = Instant::now();
        waker.wake_worker();
        waker.wait(&shutdown, LONG, waited + Duration::from_millis(20));
        assert!(waited.elapsed() >= Duration::from_millis(20));
        // More than the pipe takes.
        (0..100_000).for_each(|_| waker.wake_worker());
        shutdown.drain();
        waker.wait(&shutdown, LONG, Instant::now());
        assert!(started.elapsed() < LONG / 2);
    }
}
