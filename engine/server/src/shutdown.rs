//! The end of the server, as something that threads can sleep on.

use handle_net::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// While the server drains, how often threads look whether they should stop: it takes a moment only.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Whether the server drains, or has stopped, and the sleep of whoever has to know.
#[derive(Debug)]
pub struct Shutdown {
    draining: AtomicBool,
    stopped: AtomicBool,
    /// Used once, when the server begins to drain, and never reset: it can be polled from then on.
    signal: Waker,
}

impl Shutdown {
    /// Of a server that runs.
    ///
    /// # Errors
    /// When the kernel has no more descriptors.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { draining: AtomicBool::new(false), stopped: AtomicBool::new(false), signal: Waker::new()? })
    }

    /// Begins the end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.signal.wake();
    }

    /// Ends it, some moments after [`drain`](Self::drain).
    pub fn stop(&self) {
        self.drain();
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether the end has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether threads are to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Sleeps until one of `fds` is ready, the server begins to drain, or `patience` is over; while it drains, for a
    /// moment. A signal ends it early.
    pub fn poll<'a>(&'a self, fds: &mut [PollFd<'a>], patience: Option<Duration>) {
        let is_draining = self.is_draining();
        let patience =
            if is_draining { Some(patience.map_or(DRAIN_LOOK, |it| it.min(DRAIN_LOOK))) } else { patience };
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let polled = if is_draining {
            poll(fds, timeout.as_ref())
        } else {
            let mut all = fds.to_vec();
            all.push(PollFd::from_borrowed_fd(self.signal.as_fd(), PollFlags::IN));
            let polled = poll(&mut all, timeout.as_ref());
            for (fd, polled) in fds.iter_mut().zip(all) {
                *fd = polled;
            }
            polled
        };
        if polled.is_err() {
            // A signal; or no memory, for which there is no better answer than some patience.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sleeps until `fd` has input, the server begins to drain, or `patience` is over. Whether there is input.
    pub fn wait_for(&self, fd: BorrowedFd<'_>, patience: Option<Duration>) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        self.poll(&mut fds, patience);
        !fds[0].revents().is_empty()
    }
}

/// What ends the waits of the workers, when something they look at between two batches has changed.
#[derive(Debug, Default)]
pub struct WorkerWakers(Mutex<Vec<Waker>>);

impl WorkerWakers {
    /// With the waker of one more.
    pub(crate) fn add(&self, waker: Waker) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }

    /// Wakes all, who then look. To be called after the change.
    pub(crate) fn wake(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Waker::wake);
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
