//! Schedules as text: one line per phase, with its length and one or two rates.

use std::fmt;
use std::time::Duration;

use crate::judge::assertion::number;
use crate::load::schedule::Phase;

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

/// Parses phases, one per line: duration, rate, and the rate at the end if it differs. Skips empty
/// lines and lines that begin with `#`.
///
/// # Errors
///
/// The first invalid line.
pub fn read(text: &str) -> Result<Vec<Phase>, BadLine> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|(line, text)| phase(text).map_err(|reason| BadLine { line, reason })).collect()
}

fn phase(line: &str) -> Result<Phase, String> {
    let words: Vec<_> = line.split_whitespace().collect();
    let (length, from, to) = match words[..] {
        [length, at] => (length, at, at),
        [length, from, to] => (length, from, to),
        _ => return Err("expected a time and one or two rates, as in 10s 1k 5k".to_owned()),
    };
    Ok(Phase { duration: duration(length)?, from: rate(from)?, to: rate(to)? })
}

/// Parses a time with its unit.
///
/// # Errors
///
/// A hint if it is invalid.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("m", 60.0), ("h", 3600.0)];
    let seconds = number(text, &units).ok_or("expected a number with its unit, as 500ms, 10s, 5m or 1h")?;
    // Rounded to the nanosecond: 0.1 s has no exact representation.
    Duration::try_from_secs_f64((seconds * 1e9).round() / 1e9).map_err(|error| error.to_string())
}

/// Parses a rate, which may be fractional or 0.
///
/// # Errors
///
/// A hint if it is invalid.
pub fn rate(text: &str) -> Result<f64, String> {
    let units = [("", 1.0), ("k", 1e3), ("M", 1e6)];
    number(text.trim(), &units).ok_or_else(|| "expected a number, as 20000, 20k or 1.5M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_line_by_line() {
        let phases = read("# warm up\n1s 100\n\n500ms 1k 2.5k\n1s 0\n").unwrap();
        assert_eq!(phases.len(), 3);
        assert_eq!(phases[1], Phase { duration: Duration::from_millis(500), from: 1000.0, to: 2500.0 });
        for (text, part) in [
            ("1s 1 2 3", "line 1: expected a time"),
            ("1s 5\n1 5", "line 2: expected a number"),
            ("1s x", "line 1: "),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(read(""), Ok(vec![]));
    }

    #[test]
    fn times_and_rates_have_units() {
        for (text, ms) in [("10s", 10_000), ("500ms", 500), ("0.5s", 500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "10", "s", "-1s", "1 s", "1d", "1..5s", "9e9s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!((rate("20k"), rate("0"), rate("1.5M")), (Ok(20_000.0), Ok(0.0), Ok(1_500_000.0)));
        for text in ["", "k", "-5", "1m", "inf", "nan"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
