//! The clock of a run: nanoseconds from its start, and their relation to the time of day.

use std::time::Instant;

use handle_auth::clock::now_unix;

/// Monotonic time from the start of a run, which may be in the future.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    /// The time of day at the start, comparable with file times on the same host.
    start_unix_ns: i128,
}

impl Clock {
    /// Creates a clock that reads 0 at `start`.
    #[must_use]
    pub fn new(start: Instant) -> Self {
        let now = Instant::now();
        let unix_ns = i128::try_from(now_unix().as_nanos()).unwrap_or(i128::MAX);
        let ahead = i128::try_from(start.saturating_duration_since(now).as_nanos()).unwrap_or(0);
        let behind = i128::try_from(now.saturating_duration_since(start).as_nanos()).unwrap_or(0);
        Self { start, start_unix_ns: unix_ns + ahead - behind }
    }

    /// The current time; 0 before the start.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Sleeps until the start.
    pub fn wait_for_start(&self) {
        std::thread::sleep(self.start.saturating_duration_since(Instant::now()));
    }

    /// The time of day `unix_ns` on this clock.
    #[must_use]
    pub fn from_unix_ns(&self, unix_ns: i128) -> i64 {
        let ns = unix_ns - self.start_unix_ns;
        i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
    }

    /// The start as Unix milliseconds.
    #[must_use]
    pub fn start_unix_ms(&self) -> u64 {
        u64::try_from(self.start_unix_ns / 1_000_000).unwrap_or(0)
    }
}
