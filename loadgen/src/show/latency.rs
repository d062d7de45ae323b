//! Histograms of times: from due time to answer, from send time to answer, and from due time to
//! send time.

use hdrhistogram::{Counter, Histogram};

/// Longest recorded time, one hour.
const NS_MAX: u64 = 3_600_000_000_000;

/// The histograms of a run, in nanoseconds, exact to three digits.
#[derive(Clone, Debug)]
pub struct Latency {
    /// From the due time to the answer: the response time of users who do not wait for each other.
    pub response: Histogram<u64>,
    /// From the send time to the answer.
    pub service: Histogram<u64>,
    /// From the due time to the send time: the error of the generator.
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

/// A histogram of times with this number of significant digits.
pub(crate) fn histogram<C: Counter>(digits: u8) -> Histogram<C> {
    Histogram::new_with_bounds(1, NS_MAX, digits).expect("the bounds are in order")
}

/// Adds one histogram of times to another.
pub(crate) fn add<C: Counter>(sum: &mut Histogram<C>, other: &Histogram<C>) {
    sum.add(other).expect("all have the same bounds");
}
