//! Shutdown of a process, as an event that threads can wait for.

use crate::event::EventDescriptor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which threads check whether to stop while the process drains.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Whether a process drains or has stopped.
///
/// A process first drains: it answers what has arrived. Then it stops, and its threads end.
#[derive(Debug)]
pub struct Shutdown {
    draining: AtomicBool,
    stopped: AtomicBool,
    /// Raised when the process begins to drain, and never cleared.
    draining_event: EventDescriptor,
}

impl Shutdown {
    /// State of a process that serves.
    ///
    /// # Errors
    /// When the kernel has no more descriptors.
    pub fn new() -> std::io::Result<Self> {
        let draining_event = EventDescriptor::new()?;
        Ok(Self { draining: AtomicBool::new(false), stopped: AtomicBool::new(false), draining_event })
    }

    /// Begins to drain, and wakes the threads that sleep in [`poll`](Self::poll).
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.draining_event.raise();
    }

    /// Ends the threads, some moments after [`drain`](Self::drain).
    pub fn stop(&self) {
        self.drain();
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether the process drains, or has stopped.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether threads must end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Sleeps until one of `fds` is ready, the process begins to drain, or `timeout` is over.
    /// While the process drains, it sleeps for a moment at most. A signal ends the sleep early.
    pub fn poll<'a>(&'a self, fds: &mut [PollFd<'a>], timeout: Option<Duration>) {
        let is_draining = self.is_draining();
        let timeout =
            if is_draining { Some(timeout.map_or(DRAIN_LOOK, |it| it.min(DRAIN_LOOK))) } else { timeout };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let polled = if is_draining {
            poll(fds, timeout.as_ref())
        } else {
            let mut all = fds.to_vec();
            all.push(PollFd::from_borrowed_fd(self.draining_event.as_fd(), PollFlags::IN));
            let polled = poll(&mut all, timeout.as_ref());
            for (fd, polled) in fds.iter_mut().zip(all) {
                *fd = polled;
            }
            polled
        };
        if polled.is_err() {
            // A signal, or no memory; for the latter, waiting is the best answer.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sleeps until `fd` has input, the process begins to drain, or `timeout` is over. Returns
    /// whether there is input.
    pub fn wait_for(&self, fd: BorrowedFd<'_>, timeout: Option<Duration>) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        self.poll(&mut fds, timeout);
        !fds[0].revents().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn whoever_sleeps_is_woken_by_the_end_and_then_sleeps_for_moments() {
        let shutdown = Shutdown::new().unwrap();
        let (quiet, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let started = Instant::now();
        assert!(!shutdown.wait_for(quiet.as_fd(), Some(Duration::from_millis(30))));
        assert!(started.elapsed() >= Duration::from_millis(30));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| shutdown.wait_for(quiet.as_fd(), None));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!sleeper.is_finished());
            shutdown.drain();
            assert!(!sleeper.join().unwrap(), "there is no input");
        });
        assert!(shutdown.is_draining() && !shutdown.is_stopped());
        let started = Instant::now();
        assert!(!shutdown.wait_for(quiet.as_fd(), None));
        assert!(started.elapsed() >= DRAIN_LOOK, "a process that drains does not spin");
        shutdown.stop();
        assert!(shutdown.is_stopped());
    }
}
