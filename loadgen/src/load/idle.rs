//! How a thread waits for its next request.

use std::fmt;
use std::str::FromStr;

/// How to wait for the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdleStrategy {
    /// Sleeps until shortly before, then polls the clock: on time, and idle at low rates.
    #[default]
    Auto,
    /// Polls the clock all the time, which uses the whole core: the smallest error.
    Spin,
    /// Sleeps: late by the wake-up time, but leaves the core to others.
    Sleep,
}

impl fmt::Display for IdleStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Spin => "spin",
            Self::Sleep => "sleep",
        })
    }
}

impl FromStr for IdleStrategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Auto, Self::Spin, Self::Sleep]
            .into_iter()
            .find(|idle| idle.to_string() == text)
            .ok_or_else(|| "expected auto, spin or sleep".to_owned())
    }
}

/// No sleep this close to the next request: waking up takes about as long.
pub(crate) const SPIN_NS: u64 = 100_000;

/// Time between two ticks.
pub(crate) const TICK_NS: u64 = 1_000_000_000;

/// The part of the time until the next request that is slept.
pub(crate) const fn sleep_ns(idle: IdleStrategy, until_ns: u64) -> u64 {
    match idle {
        IdleStrategy::Auto => until_ns.saturating_sub(SPIN_NS),
        IdleStrategy::Spin => 0,
        IdleStrategy::Sleep => until_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pacing_parses_as_printed() {
        for text in ["auto", "spin", "sleep"] {
            assert_eq!(text.parse::<IdleStrategy>().unwrap().to_string(), text);
        }
        assert!("busy".parse::<IdleStrategy>().is_err());
    }

    #[test]
    fn sleeps_as_the_pacing_demands() {
        for (idle, until_ns, slept_ns) in [
            (IdleStrategy::Auto, SPIN_NS, 0),
            (IdleStrategy::Auto, SPIN_NS + 7, 7),
            (IdleStrategy::Spin, u64::MAX, 0),
            (IdleStrategy::Sleep, 5, 5),
            (IdleStrategy::Sleep, 0, 0),
        ] {
            assert_eq!(sleep_ns(idle, until_ns), slept_ns, "{idle} with {until_ns} ns left");
        }
    }
}
