//! Times as histograms: from when a request was due, from when it was sent, and how far apart those were.

use hdrhistogram::{Counter, Histogram};

/// Longest time that is told apart, one hour.
const NS_MAX: u64 = 3_600_000_000_000;

/// The histograms of a run, in nanoseconds, exact to three digits.
#[derive(Clone, Debug)]
pub struct Latency {
    /// From the intended time to the answer: what a user sees who does not wait for others.
    pub response: Histogram<u64>,
    /// From the actual time to the answer.
    pub service: Histogram<u64>,
    /// From the intended to the actual time: our own error.
    pub schedule_error: Histogram<u64>,
}

impl Default for Latency {
    fn default() -> Self {
        Self { response: histogram(3), service: histogram(3), schedule_error: histogram(3) }
    }
}

impl Latency {
    /// Adds the times of another thread.
    pub fn add(&mut self, other: &Self) {
        add(&mut self.response, &other.response);
        add(&mut self.service, &other.service);
        add(&mut self.schedule_error, &other.schedule_error);
    }
}

/// A histogram of times, exact to so many digits.
pub(crate) fn histogram<C: Counter>(digits: u8) -> Histogram<C> {
    Histogram::new_with_bounds(1, NS_MAX, digits).expect("the bounds are in order")
}

/// Adds one histogram of times to another.
pub(crate) fn add<C: Counter>(sum: &mut Histogram<C>, other: &Histogram<C>) {
    sum.add(other).expect("all have the same bounds");
}
