//! An event that threads wait for by its descriptor.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that has input from a call of [`raise`](Self::raise) until
/// [`clear`](Self::clear).
#[derive(Debug)]
pub struct EventDescriptor(OwnedFd);

impl EventDescriptor {
    /// An event that has not been raised.
    ///
    /// # Errors
    /// When the kernel has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the threads that wait for it.
    pub fn raise(&self) {
        #[expect(clippy::host_endian_bytes, reason = "the kernel's numbers are in host order")]
        let one = 1u64.to_ne_bytes();
        // It is refused only after 2^64 - 2 calls, and then the descriptor is ready.
        let _ = rustix::io::write(&self.0, &one);
    }

    /// Lets threads wait for the next call of [`raise`](Self::raise).
    pub fn clear(&self) {
        // The read fails if there was none.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::Shutdown;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_thread_is_woken_until_the_event_is_cleared() {
        let (event, shutdown) = (EventDescriptor::new().unwrap(), Shutdown::new().unwrap());
        let wait = |timeout| shutdown.wait_for(event.as_fd(), Some(timeout));
        let started = Instant::now();
        assert!(!wait(Duration::from_millis(1)));
        (0..1000).for_each(|_| event.raise());
        assert!(wait(LONG) && wait(LONG));
        event.clear();
        assert!(!wait(Duration::from_millis(1)));
        event.raise();
        assert!(wait(LONG));
        event.clear();
        shutdown.stop();
        assert!(!wait(LONG));
        assert!(started.elapsed() < LONG / 2);
    }
}
