//! A circuit breaker: a service that does not answer is not asked for a while.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Admits requests until several in a row have failed. After that it admits one at a time, the
/// first after a pause and the next when that one has failed and the pause is over again, until one
/// is answered. So a service that hangs delays only the requests that are with it at that moment.
#[derive(Debug)]
pub struct CircuitBreaker {
    failures_max: u32,
    pause: Duration,
    attempt_max: Duration,
    state: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    /// Failures since the last answer.
    failures: u32,
    /// When the next request may be tried; set while the breaker is open.
    not_before: Option<Instant>,
}

/// What an outcome has changed, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerChange {
    /// Nothing.
    None,
    /// The breaker has opened.
    Opened,
    /// The breaker has closed.
    Closed,
}

impl CircuitBreaker {
    /// A breaker that pauses for `pause` after `failures_max` failures in a row. An attempt whose
    /// outcome is not reported within `attempt_max` no longer prevents the next one.
    #[must_use]
    pub fn new(failures_max: u32, pause: Duration, attempt_max: Duration) -> Self {
        Self { failures_max, pause, attempt_max, state: Mutex::default() }
    }

    /// Whether a request may be made now. The caller reports its outcome with one of the functions
    /// below.
    pub fn admits(&self, now: Instant) -> bool {
        let mut state = self.state();
        match state.not_before {
            None => true,
            Some(at) if now >= at => {
                state.not_before = Some(now + self.attempt_max);
                true
            }
            Some(_) => false,
        }
    }

    /// A request was answered, or refused in a way that takes no time.
    pub fn note_answer(&self) -> BreakerChange {
        let before = std::mem::take(&mut *self.state());
        if before.not_before.is_some() { BreakerChange::Closed } else { BreakerChange::None }
    }

    /// A request was not answered.
    pub fn note_failure(&self, now: Instant) -> BreakerChange {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        if state.failures < self.failures_max {
            return BreakerChange::None;
        }
        let was_open = state.not_before.replace(now + self.pause).is_some();
        if was_open { BreakerChange::None } else { BreakerChange::Opened }
    }

    /// Whether the breaker is open: few requests are admitted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state().not_before.is_some()
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    #[test]
    fn failures_in_a_row_open_it_and_an_answer_closes_it() {
        let (breaker, start) = (CircuitBreaker::new(3, PAUSE, PAUSE), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        for _ in 0..2 {
            assert_eq!(breaker.note_failure(at(0)), BreakerChange::None);
        }
        assert_eq!(breaker.note_answer(), BreakerChange::None, "a row ends with an answer");
        for _ in 0..2 {
            assert_eq!(breaker.note_failure(at(1)), BreakerChange::None);
        }
        assert!(breaker.admits(at(1)) && !breaker.is_open());
        assert_eq!(breaker.note_failure(at(1)), BreakerChange::Opened);
        assert!(!breaker.admits(at(5)) && breaker.is_open());
        assert!(breaker.admits(at(6)) && !breaker.admits(at(10)), "one is being tried");
        assert_eq!(breaker.note_failure(at(7)), BreakerChange::None, "it is open already");
        assert!(!breaker.admits(at(11)) && breaker.admits(at(12)));
        assert_eq!(breaker.note_answer(), BreakerChange::Closed);
        assert!(breaker.admits(at(12)) && breaker.admits(at(12)));
    }

    #[test]
    fn one_attempt_at_a_time_may_take_longer_than_the_pause() {
        let (breaker, start) = (CircuitBreaker::new(1, PAUSE, 4 * PAUSE), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert!(breaker.admits(at(0)) && breaker.admits(at(0)));
        assert_eq!(breaker.note_failure(at(10)), BreakerChange::Opened);
        assert!(!breaker.admits(at(14)) && breaker.admits(at(15)));
        assert!(!breaker.admits(at(34)), "one is being tried");
        assert!(breaker.admits(at(35)), "its outcome was not reported");
        assert_eq!(breaker.note_failure(at(36)), BreakerChange::None);
        assert!(!breaker.admits(at(40)) && breaker.admits(at(41)));
        assert_eq!(breaker.note_answer(), BreakerChange::Closed);
        assert!(breaker.admits(at(41)) && breaker.admits(at(41)) && !breaker.is_open());
    }
}
