//! The clocks of a process: the time of day, and times from the start of something. Whatever can be
//! wrong because of the time takes it as an argument.

use std::time::{Duration, Instant, SystemTime};

/// Time since 1970; zero where the clock of the machine says an earlier one.
#[must_use]
pub fn now_unix() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_unix_ms() -> u64 {
    u64::try_from(now_unix().as_millis()).unwrap_or(u64::MAX)
}

/// Seconds since 1970 as on the wire, which has 32 bits; they wrap in 2106.
#[must_use]
pub fn now_unix_s() -> u32 {
    wire_s(now_unix())
}

/// Seconds of a time since 1970 as on the wire, which has 32 bits; they wrap in 2106.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "as on the wire")]
pub const fn wire_s(now_unix: Duration) -> u32 {
    now_unix.as_secs() as u32
}

/// A clock that reads 0 when it is started, and never goes back.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    started: Instant,
}

impl MonotonicClock {
    /// Starts a clock.
    #[must_use]
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The current time, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    /// The time `at`, in milliseconds; 0 before the start.
    #[must_use]
    pub fn ms_at(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_millis()).unwrap_or(u64::MAX)
    }
}
