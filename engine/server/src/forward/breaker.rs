//! A circuit breaker for a process that may hang.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Admits requests until one takes too long. After that it admits one request at a time, each after
/// a rest, until one is answered. So a process that hangs delays only the requests that are being
/// forwarded at that moment.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    rest: Duration,
    state: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    /// When the next request may be tried; set while the breaker rests.
    not_before: Option<Instant>,
    /// Whether that request is being tried.
    is_trying: bool,
}

impl CircuitBreaker {
    pub(crate) fn new(rest: Duration) -> Self {
        Self { rest, state: Mutex::default() }
    }

    /// Whether a request may be forwarded now. The caller reports the outcome with one of the
    /// functions below.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let mut state = self.state();
        match state.not_before {
            None => true,
            Some(at) if now >= at && !state.is_trying => {
                state.is_trying = true;
                true
            }
            Some(_) => false,
        }
    }

    /// A request was answered.
    pub(crate) fn answered(&self) {
        *self.state() = BreakerState::default();
    }

    /// A request took too long.
    pub(crate) fn took_too_long(&self, now: Instant) {
        *self.state() = BreakerState { not_before: Some(now + self.rest), is_trying: false };
    }

    /// The connection was refused, so no request took too long.
    pub(crate) fn not_there(&self) {
        *self.state() = BreakerState::default();
    }

    /// Whether the breaker rests.
    pub(crate) fn is_open(&self) -> bool {
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
    fn after_a_long_wait_one_at_a_time_is_tried() {
        let (breaker, start) = (CircuitBreaker::new(Duration::from_secs(5)), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert!(breaker.admits(at(0)) && breaker.admits(at(0)));
        breaker.took_too_long(at(10));
        assert!(!breaker.admits(at(14)) && breaker.is_open());
        assert!(breaker.admits(at(15)) && !breaker.admits(at(16)), "one is being tried");
        breaker.took_too_long(at(20));
        assert!(!breaker.admits(at(24)) && breaker.admits(at(25)));
        breaker.answered();
        assert!(breaker.admits(at(25)) && breaker.admits(at(25)) && !breaker.is_open());
        breaker.took_too_long(at(30));
        assert!(breaker.admits(at(35)));
        breaker.not_there();
        assert!(breaker.admits(at(35)) && breaker.admits(at(35)), "who is not there does not hang");
    }
}
