//! The clock of a worker.

use handle_daemon::clock::{MonotonicClock, now_unix, wire_s};
use std::time::{Duration, Instant};

/// The current time of a worker, read once after each wait, and once before it sends answers of the
/// slow path. Everything in between uses that time: answers, limits, timeouts, sessions and the
/// query log. A clock is read otherwise only where an interval ends that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerClock {
    since_start: MonotonicClock,
    now: Instant,
    now_unix: Duration,
}

impl WorkerClock {
    /// Starts the clock.
    pub(crate) fn new() -> Self {
        Self { since_start: MonotonicClock::start(), now: Instant::now(), now_unix: now_unix() }
    }

    /// Reads the time.
    pub(crate) fn read(&mut self) {
        (self.now, self.now_unix) = (Instant::now(), now_unix());
    }

    /// The monotonic time, for everything that waits or is limited.
    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    /// Milliseconds since the clock was started.
    pub(crate) fn now_ms(&self) -> u64 {
        self.since_start.ms_at(self.now)
    }

    /// The time since 1970, for logs.
    pub(crate) const fn now_unix(&self) -> Duration {
        self.now_unix
    }

    /// Seconds since 1970, as answers have them.
    pub(crate) const fn now_unix_s(&self) -> u32 {
        wire_s(self.now_unix)
    }
}
