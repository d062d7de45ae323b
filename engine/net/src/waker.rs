//! Ends a wait from another thread.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// Ends the wait of a path early, from any thread. It may be used after the path is gone.
#[derive(Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A waker without a path. A thread that polls its descriptor sees every call of
    /// [`wake`](Self::wake) from then on.
    ///
    /// # Errors
    /// When the kernel has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Makes the path return from its current wait, or at once from its next one.
    ///
    /// Several calls before that count as one. If a wait ended for datagrams at the same time, the
    /// next one may end early too. It costs a short system call, so senders of several messages
    /// should wake once, after the last.
    pub fn wake(&self) {
        #[expect(clippy::host_endian_bytes, reason = "the kernel's numbers are in host order")]
        let one = 1u64.to_ne_bytes();
        // The write fails only after 2^64 - 2 calls without a wait, and then the path is awake.
        let _ = rustix::io::write(&self.0, &one);
    }

    /// Drops the calls so far.
    pub(crate) fn reset(&self) {
        // The read fails if there were none.
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
