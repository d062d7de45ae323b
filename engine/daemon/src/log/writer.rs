//! Standard error as a log that only accompanies the work: a line that cannot be written is left
//! out and counted, and nothing stops or waits for it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::io::{self, StderrLock, Write};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Lines that could not be written.
static LOST: AtomicU64 = AtomicU64::new(0);
/// Whether the last line found no capacity in time.
static IS_STUCK: AtomicBool = AtomicBool::new(false);

/// Time that a line waits for a reader that is behind. After a line that waited in vain, further
/// ones do not wait until there is capacity again.
const TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Bytes for which a pipe has capacity when it polls as writable (PIPE_BUF of Linux), so that
/// writing them does not block.
const CHUNK_LEN: usize = 4096;

/// Number of lines that could not be written since the process started.
#[must_use]
pub fn lines_lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Writes a line to standard error, as before the log has started. A failure is counted.
pub fn say(line: fmt::Arguments<'_>) {
    // The writer does not fail.
    let _ = LogWriter.write(format!("{line}\n").as_bytes());
}

/// Writes lines to standard error. Never fails, and never blocks for long.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        if line.chunks(CHUNK_LEN).try_for_each(|chunk| put(&mut stderr, chunk)).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes `chunk` if there is capacity for it.
fn put(stderr: &mut StderrLock<'_>, chunk: &[u8]) -> io::Result<()> {
    let timeout = if IS_STUCK.load(Ordering::Relaxed) { Timespec::default() } else { TIMEOUT };
    let is_writable = {
        let mut ready = [PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::OUT)];
        // An error shows again when writing.
        poll(&mut ready, Some(&timeout)) != Ok(0)
    };
    IS_STUCK.store(!is_writable, Ordering::Relaxed);
    if is_writable { stderr.write_all(chunk) } else { Err(io::ErrorKind::WouldBlock.into()) }
}
