//! The circuit breaker of a source: one that does not answer is not asked for a while.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Admits requests until several in a row have failed. After that it admits one at a time, each
/// after a pause, until one is answered.
#[derive(Debug)]
pub(crate) struct SourceBreaker {
    failures_max: u32,
    pause: Duration,
    state: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    /// Failures since the last answer.
    failures: u32,
    /// When the next request may be tried; set while the source is paused.
    not_before: Option<Instant>,
}

/// What an outcome has changed, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerChange {
    None,
    Paused,
    Recovered,
}

impl SourceBreaker {
    /// A breaker that pauses for `pause` after `failures_max` failures in a row.
    pub(crate) fn new(failures_max: u32, pause: Duration) -> Self {
        Self { failures_max, pause, state: Mutex::default() }
    }

    /// Whether the source may be asked now. The caller reports the outcome with one of the
    /// functions below; if it does not, another request is tried after a pause.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let mut state = self.state();
        match state.not_before {
            None => true,
            Some(at) if now >= at => {
                state.not_before = Some(now + self.pause);
                true
            }
            Some(_) => false,
        }
    }

    /// The source has answered.
    pub(crate) fn answered(&self) -> BreakerChange {
        let before = std::mem::take(&mut *self.state());
        if before.not_before.is_some() { BreakerChange::Recovered } else { BreakerChange::None }
    }

    /// The source has not answered.
    pub(crate) fn failed(&self, now: Instant) -> BreakerChange {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        if state.failures < self.failures_max {
            return BreakerChange::None;
        }
        let was_paused = state.not_before.replace(now + self.pause).is_some();
        if was_paused { BreakerChange::None } else { BreakerChange::Paused }
    }

    /// Whether the source is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.state().not_before.is_some()
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_pause_and_an_answer_ends_the_pause() {
        let (breaker, start) = (SourceBreaker::new(3, Duration::from_secs(5)), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        for _ in 0..2 {
            assert_eq!(breaker.failed(at(0)), BreakerChange::None);
        }
        assert_eq!(breaker.answered(), BreakerChange::None, "a row ends with an answer");
        for _ in 0..2 {
            assert_eq!(breaker.failed(at(1)), BreakerChange::None);
        }
        assert!(breaker.admits(at(1)) && !breaker.is_paused());
        assert_eq!(breaker.failed(at(1)), BreakerChange::Paused);
        assert!(!breaker.admits(at(5)) && breaker.is_paused());
        assert!(breaker.admits(at(6)) && !breaker.admits(at(10)), "one is being tried");
        assert_eq!(breaker.failed(at(7)), BreakerChange::None, "it is paused already");
        assert!(!breaker.admits(at(11)) && breaker.admits(at(12)));
        assert_eq!(breaker.answered(), BreakerChange::Recovered);
        assert!(breaker.admits(at(12)) && breaker.admits(at(12)));
    }
}
