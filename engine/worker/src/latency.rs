//! Time to answer inside the process: a histogram with fixed buckets for each worker.
//!
//! The time runs from the receipt of a batch to the moment its answers are handed to the kernel. A
//! sample of the batches is measured, and the time counts once for each answer of the batch. Over
//! TCP, a batch is everything received on all connections in one wait. Requests on the slow path
//! are measured individually, from the handover to the sending of the answer. The time in the
//! socket queue before and in the kernel afterwards is not included; a growing queue shows as
//! longer batches.

use crate::counters::Counter;
use serde_json::{Value, json};
use std::time::Duration;

/// All times below 2^10 ns are in the first bucket.
const OCTAVE_FIRST: u32 = 10;
/// All times from 2^30 ns, about a second, are in the last bucket.
const OCTAVE_END: u32 = 30;
/// Buckets for each power of two; the resolution is a quarter of it.
const STEPS: usize = 4;
const BUCKETS: usize = 2 + (OCTAVE_END - OCTAVE_FIRST) as usize * STEPS;

/// A histogram of times. One thread counts and others read.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Counter::default()), sum_ns: Counter::default() }
    }
}

/// The bucket of a time. An upper bound belongs to its bucket.
fn bucket_of(ns: u64) -> usize {
    let ns = ns.saturating_sub(1);
    match ns.checked_ilog2() {
        Some(octave @ OCTAVE_FIRST..OCTAVE_END) => {
            // The two bits below the highest bit select the step.
            #[expect(clippy::cast_possible_truncation, reason = "below STEPS")]
            let step = (ns >> (octave - 2) & (STEPS as u64 - 1)) as usize;
            1 + (octave - OCTAVE_FIRST) as usize * STEPS + step
        }
        Some(octave) if octave >= OCTAVE_END => BUCKETS - 1,
        _ => 0,
    }
}

/// The upper bound of a bucket, in nanoseconds; `None` for the last.
fn bound_ns(bucket: usize) -> Option<u64> {
    match bucket {
        0 => Some(1 << OCTAVE_FIRST),
        bucket if bucket == BUCKETS - 1 => None,
        bucket => {
            let (octaves, step) = ((bucket - 1) / STEPS, (bucket - 1) % STEPS);
            Some(((STEPS + step + 1) as u64) << (octaves + OCTAVE_FIRST as usize - 2))
        }
    }
}

impl Histogram {
    /// Counts `count` answers that took `time`. Only the owner may call this.
    pub fn add(&self, time: Duration, count: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(ns)].add(count);
        self.sum_ns.add(ns.saturating_mul(count));
    }
}

/// The contents of one or several histograms at a moment.
#[derive(Clone, Debug)]
pub struct AnswerTimes {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl AnswerTimes {
    /// The sum of `histograms` now.
    pub fn of<'h>(histograms: impl IntoIterator<Item = &'h Histogram>) -> Self {
        let mut times = Self { counts: [0; BUCKETS], sum_ns: 0 };
        for histogram in histograms {
            for (sum, bucket) in times.counts.iter_mut().zip(&histogram.buckets) {
                *sum += bucket.get();
            }
            times.sum_ns = times.sum_ns.saturating_add(histogram.sum_ns.get());
        }
        times
    }

    /// Number of measured answers.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all times, in seconds.
    #[must_use]
    pub fn sum_s(&self) -> f64 {
        Duration::from_nanos(self.sum_ns).as_secs_f64()
    }

    /// Upper bound in seconds and count for each power of two; the last bound is infinite.
    #[must_use]
    pub fn by_octave(&self) -> Vec<(f64, u64)> {
        let (first, rest) = self.counts.split_at(1);
        let bounds =
            (OCTAVE_FIRST..=OCTAVE_END).map(|octave| Duration::from_nanos(1 << octave).as_secs_f64());
        let counts = first.chunks(1).chain(rest.chunks(STEPS)).map(|steps| steps.iter().sum());
        bounds.chain([f64::INFINITY]).zip(counts).collect()
    }

    /// The quantile for `share`, in nanoseconds, with a resolution of a quarter of a power of two.
    #[must_use]
    pub fn percentile_ns(&self, share: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank, which may be off by one"
        )]
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        // For the last bucket, only the lower bound is known.
        bucket.map(|bucket| bound_ns(bucket).unwrap_or(1 << OCTAVE_END))
    }

    /// The times in `stats`, in microseconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
    pub fn to_json(&self) -> Value {
        let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1000.0);
        let count = self.count();
        json!({
            "answers_measured": count,
            "mean_us": us(self.sum_ns.checked_div(count)),
            "p50_us": us(self.percentile_ns(0.5)),
            "p90_us": us(self.percentile_ns(0.9)),
            "p99_us": us(self.percentile_ns(0.99)),
            "p999_us": us(self.percentile_ns(0.999)),
        })
    }
}

/// Selects the batches that are measured: one of `every`, or none if `every` is 0.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    every: u32,
    left: u32,
}

impl Stopwatch {
    /// The first batch is measured, then one of `every`.
    #[must_use]
    pub const fn new(every: u32) -> Self {
        Self { every, left: if every == 0 { u32::MAX } else { 1 } }
    }

    /// Whether this batch is measured.
    #[inline]
    pub fn measures_next(&mut self) -> bool {
        self.left -= 1;
        self.left == 0 && self.restart()
    }

    #[cold]
    const fn restart(&mut self) -> bool {
        self.left = if self.every == 0 { u32::MAX } else { self.every };
        self.every > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_whose_bounds_hold_it() {
        let mut before = 0;
        for bucket in 0..BUCKETS - 1 {
            let bound = bound_ns(bucket).unwrap();
            assert_eq!(bucket_of(bound), bucket, "{bound} ns");
            assert_eq!(bucket_of(bound + 1), bucket + 1, "{bound} ns and one");
            assert_eq!(bucket_of(before + 1), bucket);
            assert!(bucket == 0 || bound - before <= before / 4, "a quarter of {before} ns");
            before = bound;
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
        assert_eq!(before, 1 << OCTAVE_END);
    }

    #[test]
    fn counts_once_for_each_answer_and_adds_up() {
        let (one, other) = (Histogram::default(), Histogram::default());
        one.add(Duration::from_micros(3), 60);
        one.add(Duration::from_micros(100), 39);
        other.add(Duration::from_secs(5), 1);
        let times = AnswerTimes::of([&one, &other]);
        assert_eq!((times.count(), times.sum_ns), (100, 180_000 + 3_900_000 + 5_000_000_000));
        let us = |share| times.percentile_ns(share).unwrap() / 1000;
        assert_eq!((us(0.5), us(0.6), us(0.61), us(0.99)), (3, 3, 114, 114));
        assert_eq!(times.percentile_ns(1.0), Some(1 << OCTAVE_END), "longer than we can tell");
        let octaves = times.by_octave();
        assert_eq!(octaves.len(), (OCTAVE_END - OCTAVE_FIRST) as usize + 2);
        assert_eq!(octaves.iter().map(|(_, count)| count).sum::<u64>(), 100);
        assert_eq!(octaves.last(), Some(&(f64::INFINITY, 1)));
        let holds = |s: f64| octaves.iter().find(|(bound, _)| *bound >= s).unwrap().1;
        assert_eq!((holds(3e-6), holds(100e-6), holds(1e-6)), (60, 39, 0));
        assert!(AnswerTimes::of([]).percentile_ns(0.5).is_none());
    }

    #[test]
    fn measures_one_batch_of_some() {
        let measured = |every| {
            let mut stopwatch = Stopwatch::new(every);
            (0..10).map(|_| u8::from(stopwatch.measures_next())).collect::<Vec<_>>()
        };
        assert_eq!(measured(1), [1; 10]);
        assert_eq!(measured(4), [1, 0, 0, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(measured(0), [0; 10]);
    }
}
