//! The submission and completion rings: set-up, entering the kernel, and explanations of set-up
//! errors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{Builder, CompletionQueue, IoUring, SubmissionQueue, Submitter};

/// The socket of the path, registered with its ring, which saves a lookup for each sent datagram.
pub(super) const SOCKET: Fixed = Fixed(0);

/// Longer waits are cut to this, because the kernel counts in signed seconds.
const TIMEOUT_MAX: Duration = Duration::from_secs(1 << 30);

/// The rings of one thread. Pending requests make progress only while that thread is in
/// [`enter`](Self::enter).
pub(super) struct Ring(IoUring);

impl Ring {
    /// Opens rings for `submissions` at a time and `completions` that were not read yet.
    pub(super) fn open(socket: BorrowedFd<'_>, submissions: u32, completions: u32) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions.next_power_of_two()).setup_clamp();
        // Without interrupts: the kernel makes completions when this thread enters it (Linux 6.1).
        builder.setup_single_issuer().setup_defer_taskrun();
        // One refused datagram must not hold back the others (Linux 5.18).
        builder.setup_submit_all();
        let ring =
            Self::build(builder, submissions.next_power_of_two()).map_err(explain("io_uring_setup"))?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "io_uring lacks waits with a timeout (needs Linux 5.11 or later: uname -r)",
            ));
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

    /// Submits queued requests, without waiting.
    pub(super) fn submit(&self) -> io::Result<usize> {
        self.0.submit()
    }

    /// Submits queued requests, lets the kernel make progress, and waits for a completion at most
    /// for `timeout`, or without limit. A signal ends the wait early.
    pub(super) fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let result = match timeout {
            None => self.0.submit_and_wait(1),
            Some(timeout) => {
                let timeout = Timespec::from(timeout.min(TIMEOUT_MAX));
                self.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
        };
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => Ok(()),
            // The completions that fill the ring are read before the next call.
            Err((Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }
}

/// Makes the error of the set-up `call` name its likely cause, and the command that checks it.
pub(super) fn explain(call: &'static str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| {
        let hint = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                " (disabled by sysctl kernel.io_uring_disabled, or by a seccomp profile)"
            }
            Some(libc::ENOSYS) => " (not in this kernel, or hidden by a container: uname -r)",
            Some(libc::EINVAL) => " (needs Linux 6.1 or later: uname -r)",
            Some(libc::ENOMEM) => " (the limit of locked memory is too low: ulimit -l)",
            Some(libc::EMFILE | libc::ENFILE) => " (the limit of open files is reached: ulimit -n)",
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
