//! One lookup in flight for many callers: those who ask the same question meanwhile wait for the
//! same answer.

use crate::{LookupError, Question, SharedAnswer};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The outcome of a question.
pub type FlightOutcome = Result<SharedAnswer, LookupError>;

type FlightKey = (Vec<u8>, Vec<u8>);

/// Questions in flight.
#[derive(Debug, Default)]
pub struct Flights {
    under_way: Mutex<HashMap<FlightKey, Arc<Flight>>>,
}

/// A question in flight.
#[derive(Debug, Default)]
pub struct Flight {
    state: Mutex<FlightState>,
    landed: Condvar,
}

#[derive(Debug)]
enum FlightState {
    /// In flight, with the tasks to wake at its end.
    UnderWay(Vec<Waker>),
    Landed(FlightOutcome),
    /// The leader is gone without an outcome.
    Lost,
}

impl Default for FlightState {
    fn default() -> Self {
        Self::UnderWay(vec![])
    }
}

/// The role of a caller.
#[derive(Debug)]
pub enum FlightRole<'a> {
    /// Make the lookup, and report its outcome.
    Lead(FlightLead<'a>),
    /// Wait for the lookup of another caller.
    Follow(Arc<Flight>),
}

/// The duty to make a lookup. If it is dropped without an outcome, other callers make the lookup
/// themselves.
#[derive(Debug)]
pub struct FlightLead<'a> {
    flights: &'a Flights,
    key: FlightKey,
    flight: Arc<Flight>,
}

impl Flights {
    /// The role of the caller for `question`.
    pub fn join(&self, question: &Question) -> FlightRole<'_> {
        let key = (question.handle_key(), question.values_key());
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = under_way.get(&key) {
            return FlightRole::Follow(Arc::clone(flight));
        }
        let flight = Arc::new(Flight::default());
        under_way.insert(key.clone(), Arc::clone(&flight));
        FlightRole::Lead(FlightLead { flights: self, key, flight })
    }
}

impl FlightLead<'_> {
    /// Reports the outcome to all who wait.
    pub fn land(self, outcome: FlightOutcome) {
        self.flight.set(FlightState::Landed(outcome));
    }
}

impl Drop for FlightLead<'_> {
    fn drop(&mut self) {
        self.flights.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.flight.set(FlightState::Lost);
    }
}

impl Flight {
    /// Ends the flight, if it has not ended, and wakes all who wait.
    fn set(&self, end: FlightState) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let FlightState::UnderWay(wakers) = &mut *state {
            let wakers = std::mem::take(wakers);
            *state = end;
            drop(state);
            self.landed.notify_all();
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Polls for the outcome; `None` if there is none.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Option<FlightOutcome>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            FlightState::Landed(outcome) => Poll::Ready(Some(outcome.clone())),
            FlightState::Lost => Poll::Ready(None),
            FlightState::UnderWay(wakers) => {
                if !wakers.iter().any(|known| known.will_wake(context.waker())) {
                    wakers.push(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Waits for the outcome; `None` if it takes longer than `timeout`, or there is none.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<FlightOutcome> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited =
            self.landed.wait_timeout_while(state, timeout, |state| matches!(state, FlightState::UnderWay(_)));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*state {
            FlightState::Landed(outcome) => Some(outcome.clone()),
            FlightState::UnderWay(_) | FlightState::Lost => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::ResponseCode;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn all_waiting_questions_get_the_answer_of_one_request() {
        let (flights, question) = (Flights::default(), Question::all(b"a/b"));
        let FlightRole::Lead(lead) = flights.join(&question) else { panic!("no question is in flight yet") };
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..4)
                .map(|_| match flights.join(&question) {
                    FlightRole::Follow(flight) => scope.spawn(move || flight.wait(LONG)),
                    FlightRole::Lead(_) => panic!("a question is in flight"),
                })
                .collect();
            lead.land(Ok(crate::LookupAnswer::new(b"a/b", ResponseCode::SUCCESS, []).into()));
            for waiting in waiting {
                let outcome = waiting.join().unwrap().unwrap();
                assert_eq!(outcome.unwrap().handle, b"a/b");
            }
        });
        assert!(matches!(flights.join(&question), FlightRole::Lead(_)), "and then it is over");
    }

    #[test]
    fn a_dropped_leader_is_reported_to_the_waiting() {
        let (flights, question) = (Flights::default(), Question::all(b"a/b"));
        let FlightRole::Lead(lead) = flights.join(&question) else { panic!("no question is in flight yet") };
        let FlightRole::Follow(flight) = flights.join(&question) else { panic!("a question is in flight") };
        assert!(flight.wait(Duration::ZERO).is_none());
        drop(lead);
        assert!(flight.wait(LONG).is_none());
        assert!(matches!(flights.join(&Question::all(b"a/c")), FlightRole::Lead(_)));
    }
}
