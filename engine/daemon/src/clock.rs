//! The time of day, read in one place. Whatever can be wrong because of it takes the time as an
//! argument.

use std::time::{Duration, SystemTime};

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
