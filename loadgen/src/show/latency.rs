//! Histograms of times: from due time to answer, from send time to answer, and from due time to
//! send time.

use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Serialize};

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

/// A summary of a histogram.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ResponseTimes {
    pub count: u64,
    pub min: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub p99_99: u64,
    pub max: u64,
}

impl ResponseTimes {
    pub(crate) fn of<C: Counter>(histogram: &Histogram<C>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile).min(histogram.max());
        Self {
            count: histogram.len(),
            min: histogram.min(),
            mean: histogram.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: histogram.max(),
        }
    }
}
