//! A log with a line for each request, which never blocks a worker.
//!
//! - Workers put entries into a queue of fixed size, and one thread writes them as lines. An entry
//!   that does not fit into the queue is refused.
//! - The file is opened again on request, for log rotation.

use crate::shutdown::Shutdown;
use crossbeam_queue::ArrayQueue;
use std::fmt;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _, stdout};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Interval at which the writer checks the queue. A queue of 1024 then suffices for 50,000 lines a
/// second.
const WRITE_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which the writer checks the queue while nothing is logged.
const WRITE_INTERVAL_IDLE: Duration = Duration::from_millis(320);
/// Mode of a new file: its owner may write, its group may read.
pub const MODE: u32 = 0o640;
/// Bytes that are written in one call.
const WRITE_LEN: usize = 64 << 10;

/// A file to which no lines can be written.
#[derive(Debug)]
pub struct LineLogError {
    name: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl fmt::Display for LineLogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, path, error } = self;
        write!(f, "cannot write {name} {}: {error} (check: ls -ld of its directory)", path.display())
    }
}

impl std::error::Error for LineLogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// The log: the queue that workers fill, and its counters.
#[derive(Debug)]
pub struct LineLog<E> {
    name: &'static str,
    path: Option<PathBuf>,
    queue: ArrayQueue<E>,
    reopen: AtomicBool,
    written: AtomicU64,
    failed: AtomicU64,
}

/// Number of lines of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Lines that were written.
    pub written: u64,
    /// Lines that could not be written. Entries that [`LineLog::push`] refused are not among them:
    /// whoever pushes counts these.
    pub lost: u64,
}

impl<E> LineLog<E> {
    /// A log in the file `path`, or on standard output, with at most `queue_lines` waiting entries.
    /// `name` is its name in messages, such as `the query log`.
    #[must_use]
    pub fn new(name: &'static str, path: Option<PathBuf>, queue_lines: usize) -> Self {
        Self {
            name,
            path,
            queue: ArrayQueue::new(queue_lines),
            reopen: AtomicBool::new(false),
            written: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Queues an entry. Returns whether there was capacity.
    pub fn push(&self, entry: E) -> bool {
        self.queue.push(entry).is_ok()
    }

    /// Opens the file again before the next line, because it was renamed.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    /// Number of lines so far.
    #[must_use]
    pub fn counts(&self) -> LineCounts {
        let (written, lost) = (self.written.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed));
        LineCounts { written, lost }
    }

    /// Opens the file, and returns the writing end of the log.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn writer(self: &Arc<Self>) -> Result<LineLogWriter<E>, LineLogError> {
        let file = self.path.as_deref().map(open).transpose().map_err(|error| {
            let path = self.path.clone().unwrap_or_default();
            LineLogError { name: self.name, path, error }
        })?;
        Ok(LineLogWriter { log: Arc::clone(self), file, torn: false })
    }
}

/// The writing end of a log.
#[derive(Debug)]
pub struct LineLogWriter<E> {
    log: Arc<LineLog<E>>,
    /// Standard output if there is none.
    file: Option<File>,
    /// Whether the last write failed, perhaps within a line.
    torn: bool,
}

impl<E> LineLogWriter<E> {
    /// Writes lines in `format` until `shutdown`, and then the remaining ones. `append` appends an
    /// entry, with its line end.
    pub fn run<F: Copy>(
        mut self,
        shutdown: &Shutdown,
        format: impl Fn() -> F,
        append: fn(&E, F, &mut String),
    ) {
        let mut interval = WRITE_INTERVAL;
        loop {
            // Read before the queue is emptied, so that entries queued before the stop are written.
            let is_last = shutdown.is_stopped();
            interval = match self.log.queue.is_empty() {
                true => (2 * interval).min(WRITE_INTERVAL_IDLE),
                false => WRITE_INTERVAL,
            };
            self.write_queue(format(), append);
            if is_last {
                return;
            }
            shutdown.poll(&mut [], Some(interval));
        }
    }

    /// Writes what is in the queue now.
    pub fn write_queue<F: Copy>(&mut self, format: F, append: fn(&E, F, &mut String)) {
        if self.log.reopen.swap(false, Ordering::Relaxed) {
            self.open_again();
        }
        let (mut text, mut lines) = (String::new(), 0);
        // Bounded, so that the lines are written even if the queue is filled as fast as it is
        // emptied.
        for _ in 0..self.log.queue.capacity() {
            let Some(entry) = self.log.queue.pop() else { break };
            append(&entry, format, &mut text);
            lines += 1;
            if text.len() >= WRITE_LEN {
                self.write(&mut text, &mut lines);
            }
        }
        self.write(&mut text, &mut lines);
    }

    fn open_again(&mut self) {
        let Some(path) = &self.log.path else { return };
        match open(path) {
            Ok(file) => (self.file, self.torn) = (Some(file), false),
            Err(error) => {
                let name = self.log.name;
                tracing::error!(path = %path.display(), %error, "cannot reopen {name}; continuing with the old file");
            }
        }
    }

    fn write(&mut self, text: &mut String, lines: &mut u64) {
        if text.is_empty() {
            return;
        }
        if self.torn {
            text.insert(0, '\n');
        }
        let written = match &mut self.file {
            Some(file) => file.write_all(text.as_bytes()),
            None => stdout().lock().write_all(text.as_bytes()),
        };
        match &written {
            Ok(()) => self.log.written.fetch_add(*lines, Ordering::Relaxed),
            Err(error) => {
                // Logged once for each series of failures, not once for each line.
                if !self.torn {
                    let (name, path) = (self.log.name, self.log.path.as_deref().unwrap_or(Path::new("-")));
                    tracing::error!(path = %path.display(), %error, "{name} cannot be written");
                }
                self.log.failed.fetch_add(*lines, Ordering::Relaxed)
            }
        };
        self.torn = written.is_err();
        text.clear();
        *lines = 0;
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).mode(MODE);
    match options.clone().create_new(true).open(path) {
        // Sets the mode explicitly, so that the group may read the file under any umask.
        Ok(file) => file.set_permissions(Permissions::from_mode(MODE)).map(|()| file),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(entry: &u32, (): (), text: &mut String) {
        text.push_str(&format!("{entry}\n"));
    }

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_renamed_file_goes_on_until_it_is_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("a.log"), directory.path().join("a.log.1"));
        let log = Arc::new(LineLog::new("the log", Some(path.clone()), 2));
        let mut writer = log.writer().unwrap();
        let mut one = |entry| {
            assert!(log.push(entry));
            writer.write_queue((), append);
        };
        one(1);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE, "{mode:o}");
        std::fs::rename(&path, &old).unwrap();
        one(2);
        assert!(!path.exists());
        log.reopen();
        one(3);
        assert_eq!((&*text(&old), &*text(&path)), ("1\n2\n", "3\n"));
        assert_eq!(log.counts(), LineCounts { written: 3, lost: 0 });
    }

    #[test]
    fn a_full_queue_refuses_entries_and_the_rest_is_written_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let log = Arc::new(LineLog::new("the log", Some(path.clone()), 2));
        assert_eq!([1, 2, 3].map(|entry| log.push(entry)), [true, true, false]);
        let shutdown = Shutdown::new().unwrap();
        shutdown.stop();
        log.writer().unwrap().run(&shutdown, || (), append);
        assert_eq!(text(&path), "1\n2\n");
    }

    #[test]
    fn lost_lines_are_counted_and_the_next_one_starts_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let log = Arc::new(LineLog::new("the log", Some(path.clone()), 2));
        let mut writer = log.writer().unwrap();
        // Nothing can be written to it.
        writer.file = Some(File::open(&path).unwrap());
        log.push(1);
        writer.write_queue((), append);
        writer.file = Some(open(&path).unwrap());
        log.push(2);
        writer.write_queue((), append);
        assert_eq!((&*text(&path), log.counts()), ("\n2\n", LineCounts { written: 1, lost: 1 }));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let log = Arc::new(LineLog::<u32>::new("the log", Some("/nowhere/a.log".into()), 2));
        let error = log.writer().unwrap_err().to_string();
        assert!(error.starts_with("cannot write the log /nowhere/a.log: No such file"), "{error}");
    }
}
