//! A source with its limits: permits, circuit breaker, cache and counters.

use crate::cache::AnswerCache;
use crate::config::SourceConfig;
use crate::counts::SourceCounts;
use crate::error::SourceError;
use crate::{RecordSource, SourceChange};
use handle_daemon::breaker::{BreakerChange, CircuitBreaker};
use handle_daemon::permits::CountedPermit;
use handle_daemon::threads::lock;
use handle_store::RecordBuf;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a source says about a handle: its record, or that there is none.
pub type SourceAnswer = Result<Option<RecordBuf>, SourceError>;

/// A source behind its limits.
#[derive(Debug)]
pub struct GuardedSource {
    name: String,
    source: Box<dyn RecordSource>,
    timeout: Duration,
    outstanding_max: usize,
    outstanding: AtomicUsize,
    breaker: CircuitBreaker,
    cache: Mutex<AnswerCache>,
    /// Questions under way, which others who ask the same wait for.
    flights: Mutex<HashMap<Vec<u8>, Arc<SourceFlight>>>,
    /// Changes that were made here, or may have been.
    changes: AtomicU64,
    counts: SourceCounts,
}

/// A question under way.
#[derive(Debug, Default)]
struct SourceFlight {
    answer: Mutex<Option<SourceAnswer>>,
    answered: Condvar,
}

/// Ends a flight, also if the source panics.
struct FlightGuard<'s> {
    source: &'s GuardedSource,
    flight: Arc<SourceFlight>,
    key: &'s [u8],
    answer: SourceAnswer,
}

impl Drop for FlightGuard<'_> {
    fn drop(&mut self) {
        let answer = std::mem::replace(&mut self.answer, Err(SourceError::Late));
        lock(&self.source.flights).remove(self.key);
        *lock(&self.flight.answer) = Some(answer);
        self.flight.answered.notify_all();
    }
}

impl GuardedSource {
    /// Puts `source` behind the limits of `config`.
    #[must_use]
    pub fn new(config: &SourceConfig, source: Box<dyn RecordSource>) -> Self {
        let seconds = |s: u32| Duration::from_secs(s.into());
        Self {
            name: config.name.clone(),
            source,
            timeout: config.timeout(),
            outstanding_max: config.outstanding,
            outstanding: AtomicUsize::new(0),
            breaker: CircuitBreaker::new(config.failures, config.pause(), config.pause()),
            cache: Mutex::new(AnswerCache::new(
                config.cache_bytes,
                seconds(config.cache_s),
                seconds(config.negative_s()),
            )),
            flights: Mutex::default(),
            changes: AtomicU64::new(0),
            counts: SourceCounts::default(),
        }
    }

    /// Its name in metrics and logs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How requests have ended.
    #[must_use]
    pub const fn counts(&self) -> &SourceCounts {
        &self.counts
    }

    /// Requests in progress, with those that wait for the answer to another one.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Whether it is paused, because it has failed repeatedly.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.breaker.is_open()
    }

    /// Bytes of cached answers.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        lock(&self.cache).bytes()
    }

    /// The record of `key`, a name as the store has it. Blocks for at most `timeout_ms`, or twice
    /// that if somebody else asks the same.
    ///
    /// # Errors
    /// When the source does not say, or may not be asked now.
    pub fn record(&self, key: &[u8]) -> SourceAnswer {
        if let Some(answer) = lock(&self.cache).get(key, Instant::now()) {
            self.counts.cached();
            return Ok(answer);
        }
        // Those who wait for the answer to another request take a permit, too: each is a thread.
        let answer = self.take_permit().and_then(|_permit| match self.join(key) {
            Ok(flight) => self.wait_for_answer(&flight),
            Err(flight) => self.ask(key, flight),
        });
        match &answer {
            Ok(Some(_)) => self.counts.found(),
            Ok(None) => self.counts.absent(),
            Err(error) => self.counts.failed(error),
        }
        answer
    }

    fn take_permit(&self) -> Result<CountedPermit<&AtomicUsize>, SourceError> {
        CountedPermit::take(&self.outstanding, self.outstanding_max).ok_or(SourceError::Busy)
    }

    /// Whether its records can be changed here.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.source.is_writable()
    }

    /// Has `decide` decide on the record of `key`, and makes the change, as
    /// [`RecordSource::change`] does.
    ///
    /// # Errors
    /// When the change cannot be made, or the source may not be asked now.
    pub fn change(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&RecordBuf>) -> SourceChange,
    ) -> Result<(), SourceError> {
        let changed =
            self.take_permit().and_then(|_permit| self.ask_unless_paused(|| self.source.change(key, decide)));
        self.changes.fetch_add(1, Ordering::AcqRel);
        lock(&self.cache).remove(key);
        match changed {
            Ok(true) => self.counts.changed(),
            Ok(false) => {}
            Err(error) => {
                self.counts.failed(&error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The flight of `key` that is under way, or as an error a new one.
    fn join(&self, key: &[u8]) -> Result<Arc<SourceFlight>, Arc<SourceFlight>> {
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(key) {
            return Ok(Arc::clone(flight));
        }
        let flight = Arc::new(SourceFlight::default());
        flights.insert(key.to_vec(), Arc::clone(&flight));
        Err(flight)
    }

    fn wait_for_answer(&self, flight: &SourceFlight) -> SourceAnswer {
        let answer = lock(&flight.answer);
        let answered =
            flight.answered.wait_timeout_while(answer, self.timeout * 2, |answer| answer.is_none());
        let (answer, _) = answered.unwrap_or_else(PoisonError::into_inner);
        answer.clone().unwrap_or(Err(SourceError::Late))
    }

    fn ask(&self, key: &[u8], flight: Arc<SourceFlight>) -> SourceAnswer {
        let mut guard = FlightGuard { source: self, flight, key, answer: Err(SourceError::Late) };
        let changes = self.changes.load(Ordering::Acquire);
        guard.answer = self.ask_unless_paused(|| self.source.record(key));
        if let Ok(record) = &guard.answer {
            let mut cache = lock(&self.cache);
            // What was read before a change does not count after it.
            if self.changes.load(Ordering::Acquire) == changes {
                cache.insert(key, record.clone(), Instant::now());
            }
        }
        guard.answer.clone()
    }

    /// Asks the source, if it is not paused. The caller has a permit.
    fn ask_unless_paused<T>(&self, ask: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
        if !self.breaker.admits(Instant::now()) {
            return Err(SourceError::Paused);
        }
        let answer = ask();
        self.note(answer.as_ref().err());
        answer
    }

    /// Notes an outcome for the breaker and the log.
    fn note(&self, error: Option<&SourceError>) {
        let source = &self.name;
        let change = match error {
            Some(error) if error.is_silence() => self.breaker.note_failure(Instant::now()),
            _ => self.breaker.note_answer(),
        };
        match (change, error) {
            (BreakerChange::Opened, Some(error)) => {
                tracing::warn!(source, %error, "a source of records does not answer and is paused");
            }
            (BreakerChange::Closed, _) => tracing::info!(source, "a source of records answers again"),
            (_, Some(error)) => tracing::debug!(source, %error, "a source of records did not answer"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
