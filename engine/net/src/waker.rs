//! What ends a wait from another thread.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// Ends the wait of a path early, from any thread, also after the path is gone.
#[derive(Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// One that no path has: whoever polls its descriptor is woken, from then on.
    ///
    /// # Errors
    /// When the kernel has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Lets the path return from the wait that it is in, or at once from its next one.
    ///
    /// Several calls before that are as one. After a wait that ended for datagrams as well, the next one may
    /// end early once more. Costs a short system call, so who has much to say says it first and wakes once.
    pub fn wake(&self) {
        #[expect(clippy::host_endian_bytes, reason = "the kernel's numbers are in host order")]
        let one = 1u64.to_ne_bytes();
        // It is refused only when 2^64 - 2 calls were not waited for, and then the path is awake.
        let _ = rustix::io::write(&self.0, &one);
    }

    /// Forgets the calls so far.
    pub(crate) fn reset(&self) {
        // It is refused when there were none.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
