//! Times: ISO 8601 in JSON, seconds since 1970 on the wire.

use super::JsonError;
use super::read::Result;
use alloc::string::{String, ToString};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The text of a Unix time.
///
/// Seconds are signed, as in deployed software: the last of four bytes of ones is 1969, not 2106.
/// `values.jsonl`, `timestamp/-1`.
pub(super) fn to_text(unix_s: i32) -> String {
    Timestamp::from_second(unix_s.into()).expect("any 32 bits are in range").to_string()
}

/// Reads a time with any offset. Without an offset it is UTC, and a date is its first second.
/// Fractions are cut off.
///
/// Times up to 2106 are read as four unsigned bytes.
pub(super) fn from_text(text: &str) -> Result<u32> {
    let unix_s = match text.parse::<Timestamp>() {
        Ok(time) => Some(time.as_second()),
        Err(_) => utc(text),
    };
    let unix_s = unix_s.ok_or_else(|| JsonError::new("not a time such as 2024-01-31T10:00:00Z"))?;
    match i32::try_from(unix_s) {
        Ok(signed) => Ok(signed.cast_unsigned()),
        Err(_) => u32::try_from(unix_s).map_err(|_| JsonError::new("a time outside 1901 to 2106")),
    }
}

fn utc(text: &str) -> Option<i64> {
    let time: DateTime = text.parse().ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}
