//! The state that the stream of a connection, its requests and its timeouts share.

use crate::answers::WaitingAnswers;
use handle_daemon::clock::MonotonicClock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Capacity of the copy of a head that is kept for the next request.
const HEAD_CAPACITY_KEPT: usize = 2048;

/// The requests of one connection. All access is from one thread; atomics and the lock only make
/// the type `Sync`.
#[derive(Debug)]
pub struct ConnectionActivity {
    /// The time since the connection began.
    clock: MonotonicClock,
    head_len_max: usize,
    /// Requests that are being answered.
    running: AtomicU32,
    /// Whether an answer is waiting for the client to read.
    is_writing: AtomicBool,
    /// With HTTP/2, the answers that wait for the client to read.
    pub answers: WaitingAnswers,
    /// Time since which the connection waits for a request, in milliseconds of `clock`.
    idle_since_ms: AtomicU64,
    /// Whether the bytes in `head` belong to a request that hyper has parsed.
    is_head_read: AtomicBool,
    is_head_too_long: AtomicBool,
    /// The bytes received since the start of the last request, at most `head_len_max` and one.
    head: Mutex<Vec<u8>>,
    /// Their number.
    head_len: AtomicUsize,
}

/// A request that is being answered, until it is dropped.
#[derive(Debug)]
pub struct RunningRequest(Arc<ConnectionActivity>);

impl RunningRequest {
    /// Records that a request has arrived.
    #[must_use]
    pub fn begin(activity: &Arc<ConnectionActivity>) -> Self {
        activity.running.fetch_add(1, Ordering::Relaxed);
        activity.is_head_read.store(true, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        self.0.idle_since_ms.store(self.0.clock.now_ms(), Ordering::Relaxed);
    }
}

impl ConnectionActivity {
    /// The state of a new connection with heads of at most `head_len_max` bytes.
    #[must_use]
    pub fn new(head_len_max: usize) -> Self {
        Self {
            clock: MonotonicClock::start(),
            head_len_max,
            running: AtomicU32::new(0),
            is_writing: AtomicBool::new(false),
            answers: WaitingAnswers::default(),
            idle_since_ms: AtomicU64::new(0),
            is_head_read: AtomicBool::new(false),
            is_head_too_long: AtomicBool::new(false),
            head: Mutex::new(Vec::new()),
            head_len: AtomicUsize::new(0),
        }
    }

    fn head(&self) -> MutexGuard<'_, Vec<u8>> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request arrived at `now` and has been answered.
    pub fn note_request(&self, now: Instant) {
        self.is_head_read.store(true, Ordering::Relaxed);
        self.idle_since_ms.store(self.clock.ms_at(now), Ordering::Relaxed);
    }

    /// Whether a request is being answered.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// Whether a request is being answered, or an answer waits for the client to read.
    #[must_use]
    pub fn is_answering(&self) -> bool {
        self.is_busy() || self.is_writing.load(Ordering::Relaxed) || !self.answers.is_empty()
    }

    /// Records whether an answer is waiting for the client to read.
    pub fn set_writing(&self, is_writing: bool) {
        if self.is_writing.load(Ordering::Relaxed) != is_writing {
            self.is_writing.store(is_writing, Ordering::Relaxed);
            self.idle_since_ms.store(self.clock.now_ms(), Ordering::Relaxed);
        }
    }

    /// The time at which the connection will have waited for a request for `timeout`; `None` if it
    /// already has.
    #[must_use]
    pub fn deadline(&self, timeout: Duration) -> Option<Instant> {
        let now = Instant::now();
        if self.is_answering() {
            return Some(now + timeout);
        }
        let since_ms = self.idle_since_ms.load(Ordering::Relaxed);
        let waited = Duration::from_millis(self.clock.ms_at(now).saturating_sub(since_ms));
        timeout.checked_sub(waited).filter(|left| !left.is_zero()).map(|left| now + left)
    }

    /// Whether more of a head may be read. Otherwise the head is too long.
    #[must_use]
    pub fn may_read_head(&self) -> bool {
        let is_next = self.is_head_read.load(Ordering::Relaxed);
        let may = is_next || !self.exceeds_head();
        self.is_head_too_long.store(!may, Ordering::Relaxed);
        may
    }

    /// Adds bytes that were read while no request was being answered.
    pub fn add_head(&self, bytes: &[u8]) {
        let mut head = self.head();
        if self.is_head_read.swap(false, Ordering::Relaxed) {
            head.clear();
            head.shrink_to(HEAD_CAPACITY_KEPT);
        }
        let capacity = (self.head_len_max + 1).saturating_sub(head.len());
        head.extend_from_slice(&bytes[..bytes.len().min(capacity)]);
        self.head_len.store(head.len(), Ordering::Relaxed);
    }

    /// Whether the head of a request was found too long while it was read.
    #[must_use]
    pub fn is_head_too_long(&self) -> bool {
        self.is_head_too_long.load(Ordering::Relaxed)
    }

    /// Whether more bytes arrived with the last request than a head may have. Some of them may
    /// belong to its body.
    #[must_use]
    pub fn exceeds_head(&self) -> bool {
        self.head_len.load(Ordering::Relaxed) > self.head_len_max
    }

    /// Whether the bytes that arrived with the last request have a line that begins with `name` and
    /// a colon, in any case of letters.
    #[must_use]
    pub fn has_line(&self, name: &str) -> bool {
        self.head().split(|&byte| byte == b'\n').skip(1).any(|line| is_named(line, name))
    }

    /// Whether the bytes that arrived with the last request have a line about the length of a body
    /// that begins or ends at a line feed without carriage return.
    #[must_use]
    pub fn has_framing_with_bare_line_feed(&self) -> bool {
        let head = self.head();
        let mut lines = head.split(|&byte| byte == b'\n').peekable();
        let mut is_bare = lines.next().is_some_and(|line| !line.ends_with(b"\r"));
        while let Some(line) = lines.next() {
            // The last line may be cut.
            let ends_bare = lines.peek().is_some() && !line.ends_with(b"\r");
            let is_framing = is_named(line, "content-length") || is_named(line, "transfer-encoding");
            if is_framing && (is_bare || ends_bare) {
                return true;
            }
            is_bare = ends_bare;
        }
        false
    }
}

/// Whether a line of a head begins with `name` and a colon, in any case of letters.
fn is_named(line: &[u8], name: &str) -> bool {
    line.split_at_checked(name.len()).is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(name.as_bytes()) && rest.first() == Some(&b':')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_as_many_bytes_as_allowed() {
        let activity = ConnectionActivity::new(10);
        activity.add_head(b"0123456789");
        assert!(activity.may_read_head() && !activity.exceeds_head());
        activity.add_head(b"abcdef");
        assert!(!activity.may_read_head() && activity.exceeds_head() && activity.is_head_too_long());
        let activity = Arc::new(activity);
        drop(RunningRequest::begin(&activity));
        assert!(activity.may_read_head(), "the next head");
        activity.add_head(b"x");
        assert!(activity.may_read_head() && !activity.exceeds_head());
    }

    #[test]
    fn lines_are_found_by_their_names() {
        let activity = ConnectionActivity::new(100);
        activity.add_head(b"GET /a:b HTTP/1.1\r\nHost: x\r\nCONTENT-");
        activity.add_head(b"length: 5\r\n\r\n");
        assert!(activity.has_line("content-length") && activity.has_line("host"));
        assert!(!activity.has_line("content") && !activity.has_line("GET /a"));
    }

    #[test]
    fn lines_about_lengths_end_with_both_characters() {
        for (head, is_found) in [
            ("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\na\nb", false),
            ("POST / HTTP/1.1\nHost: x\r\nContent-Length: 4\r\n\r\n", false),
            ("POST / HTTP/1.1\r\nHost: x\nContent-Length: 4\r\n\r\n", true),
            ("POST / HTTP/1.1\r\ncontent-LENGTH: 4\nHost: x\r\n\r\n", true),
            ("POST / HTTP/1.1\nTransfer-Encoding: chunked\r\n\r\n", true),
        ] {
            let activity = ConnectionActivity::new(100);
            activity.add_head(head.as_bytes());
            assert_eq!(activity.has_framing_with_bare_line_feed(), is_found, "{head:?}");
        }
    }

    #[test]
    fn a_connection_waits_from_the_end_of_its_last_request() {
        let activity = Arc::new(ConnectionActivity::new(10));
        let hour = Duration::from_secs(3600);
        let first = activity.deadline(hour).unwrap();
        let running = RunningRequest::begin(&activity);
        std::thread::sleep(Duration::from_millis(5));
        assert!(activity.is_busy() && activity.deadline(Duration::ZERO).is_some(), "while it is answered");
        drop(running);
        assert!(!activity.is_busy() && activity.deadline(hour).unwrap() >= first + Duration::from_millis(4));
        assert_eq!(activity.deadline(Duration::ZERO), None);
        activity.set_writing(true);
        assert!(activity.deadline(Duration::ZERO).is_some(), "the client reads slowly");
        activity.set_writing(false);
        assert_eq!(activity.deadline(Duration::ZERO), None);
    }
}
