//! The submission and completion rings: set-up, entering the kernel, and what to say when it fails.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{Builder, CompletionQueue, IoUring, SubmissionQueue, Submitter};

/// The socket of the path, registered with its ring: spares a lookup for each datagram sent.
pub(super) const SOCKET: Fixed = Fixed(0);

/// Longer waits are cut to this; the kernel counts in signed seconds.
const PATIENCE_MAX: Duration = Duration::from_secs(1 << 30);

/// One thread's rings. What waits in the kernel is done only while that thread is in [`enter`](Self::enter).
pub(super) struct Ring(IoUring);

impl Ring {
    /// Rings for `submissions` at a time and `completions` not yet looked at.
    pub(super) fn open(socket: BorrowedFd<'_>, submissions: u32, completions: u32) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions.next_power_of_two()).setup_clamp();
        // Without interrupts: completions are made when we ask, on this thread (Linux 6.1).
        builder.setup_single_issuer().setup_defer_taskrun();
        // One refused datagram must not hold back the others (Linux 5.18).
        builder.setup_submit_all();
        let ring =
            Self::build(builder, submissions.next_power_of_two()).map_err(explain("io_uring_setup"))?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring lacks waits with a timeout"));
        }
        let register = ring.submitter().register_files(&[socket.as_raw_fd()]);
        register.map_err(explain("IORING_REGISTER_FILES"))?;
        Ok(Self(ring))
    }

    fn build(builder: Builder, submissions: u32) -> io::Result<IoUring> {
        // One indirection less (Linux 6.6).
        match builder.clone().setup_no_sqarray().build(submissions) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(submissions),
            result => result,
        }
    }

    pub(super) fn submitter(&self) -> Submitter<'_> {
        self.0.submitter()
    }

    pub(super) fn submissions(&mut self) -> SubmissionQueue<'_> {
        self.0.submission()
    }

    pub(super) fn completions(&mut self) -> CompletionQueue<'_> {
        self.0.completion()
    }

    /// Submits what is queued, and waits for nothing.
    pub(super) fn submit(&self) -> io::Result<usize> {
        self.0.submit()
    }

    /// Submits what is queued, lets the kernel do what has become possible, and waits for a completion
    /// until `patience` is over, for ever without one. A signal ends it early.
    pub(super) fn enter(&mut self, patience: Option<Duration>) -> io::Result<()> {
        let result = match patience {
            None => self.0.submit_and_wait(1),
            Some(patience) => {
                let timeout = Timespec::from(patience.min(PATIENCE_MAX));
                self.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
        };
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => Ok(()),
            // The completions that are in the way will be read before we come back.
            Err((Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }
}

/// Makes the error of a set-up `call` say what is likely wrong, and what checks it.
pub(super) fn explain(call: &'static str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| {
        let hint = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                " (is it disabled? sysctl kernel.io_uring_disabled; or by a seccomp profile)"
            }
            Some(libc::ENOSYS) => " (not in this kernel, or hidden by a container: uname -r)",
            Some(libc::EINVAL) => " (needs Linux 6.1 or later: uname -r)",
            Some(libc::ENOMEM) => " (too little memory may be locked: ulimit -l)",
            Some(libc::EMFILE | libc::ENFILE) => " (too many files are open: ulimit -n)",
            _ => "",
        };
        io::Error::new(error.kind(), format!("{call} failed: {error}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_call_the_cause_and_the_check() {
        let error = explain("io_uring_setup")(io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let text = error.to_string();
        assert!(text.starts_with("io_uring_setup failed: Operation not permitted"), "{text}");
        assert!(text.contains("sysctl kernel.io_uring_disabled"), "{text}");
    }
}
