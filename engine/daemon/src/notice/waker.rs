//! Wakes the thread that does what a notice is about.

use crate::shutdown::Shutdown;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A pipe through which one thread wakes another, which waits for the end of the process as well.
#[derive(Debug)]
pub struct NoticeWaker {
    /// A byte is written here to wake the other thread.
    wake: UnixStream,
    woken: UnixStream,
}

impl NoticeWaker {
    /// # Errors
    /// When there are no file descriptors left.
    pub fn new() -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok(Self { wake, woken })
    }

    /// Wakes the other thread.
    pub fn wake(&self) {
        // If the pipe is full, the thread is being woken.
        let _ = (&self.wake).write(&[0]);
    }

    /// Waits until the thread is woken, `patience` is over, or the process stops. Returns whether
    /// the thread was woken. Until [`take`](Self::take) is called, further waits return true at
    /// once.
    #[must_use]
    pub fn wait(&self, shutdown: &Shutdown, patience: Duration) -> bool {
        shutdown.wait_for(self.woken.as_fd(), Some(patience))
    }

    /// Lets the thread wait again. After more than 64 calls of [`wake`](Self::wake), the rest needs
    /// further calls.
    pub fn take(&self) {
        let _ = (&self.woken).read(&mut [0; 64]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_thread_is_woken_until_it_takes_what_has_woken_it() {
        let (waker, shutdown) = (NoticeWaker::new().unwrap(), Shutdown::new().unwrap());
        let started = Instant::now();
        assert!(!waker.wait(&shutdown, Duration::from_millis(1)));
        waker.wake();
        waker.wake();
        assert!(waker.wait(&shutdown, LONG) && waker.wait(&shutdown, LONG));
        waker.take();
        assert!(!waker.wait(&shutdown, Duration::from_millis(1)));
        // More than the pipe takes.
        (0..100_000).for_each(|_| waker.wake());
        assert!(waker.wait(&shutdown, LONG));
        waker.take();
        shutdown.stop();
        let _ = waker.wait(&shutdown, LONG);
        assert!(started.elapsed() < LONG / 2);
    }
}
