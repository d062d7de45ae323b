//! What the cache counts.

use crossbeam_utils::CachePadded;
use handle_daemon::metrics::{EventCounter, MetricNumber};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

handle_daemon::event_counters! {
    /// Events that are rare beside answers from the cache.
    pub struct CacheCounters of EventCounter, "handle_cache_" {
        /// Requests whose record was not in the cache.
        misses,
        /// Of these, requests that waited for a question that another one had caused.
        coalesced,
        /// Answers with a record that had expired, because no server answered, or not soon enough.
        stale_answers,
        /// Questions to other services.
        questions,
        /// Of these, questions asked in the background to renew a record early or after a failure.
        renewals,
        /// Renewals not begun because too many were under way.
        renewals_left_out,
        /// Questions without an answer that counts.
        failures,
        /// Questions without an answer that has a valid signature, where answers must be certified.
        uncertified,
        /// Questions that came through too many servers, because caches ask each other.
        loops,
        /// Questions not asked because they, or others about their prefix, had just failed.
        questions_refused,
        /// Questions that a rule denied.
        denied,
        /// Questions that waited too long for their turn.
        questions_left_out,
        /// Records that were not stored because they are too long or may not be kept.
        not_stored,
        /// Requests handed to the responsible service.
        relayed,
        /// Of these, requests that it did not answer.
        relays_failed,
        /// Wrong secret keys in requests that were handed over.
        secret_guesses,
        /// Requests not handed over, because their source had sent too many wrong secret keys.
        secret_guesses_refused,
        /// Notices of a publisher.
        notices,
        /// Of these, notices without names, after which all of its records are asked for again.
        notices_of_all,
        /// Handles that notices have named, whose records are asked for again.
        handles_notified,
        /// Connections for notices that failed or ended.
        notify_failures,
        /// Entries removed by an operator.
        purged,
        /// Entries read from the file of an earlier process.
        restored,
        /// Times that the file of the cache was written.
        saves,
        /// Times that it could not be written.
        saves_failed,
    }
}

/// Number of parts of a counter. Threads beyond so many share the last part.
const PARTS_COUNT: usize = 256;

/// A counter of an event that several threads see all the time: each thread adds to its own part.
#[derive(Debug)]
pub struct BusyCounter(Box<[CachePadded<AtomicU64>]>);

impl Default for BusyCounter {
    fn default() -> Self {
        Self((0..PARTS_COUNT).map(|_| CachePadded::default()).collect())
    }
}

/// The part of this thread in every counter.
fn part_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PART: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let mut part = PART.get();
    if part == usize::MAX {
        part = THREADS.fetch_add(1, Ordering::Relaxed).min(PARTS_COUNT - 1);
        PART.set(part);
    }
    part
}

impl BusyCounter {
    /// Counts one event. Returns how many this part of the counter had before.
    #[inline]
    pub fn add(&self) -> u64 {
        let at = part_of_thread();
        let part = &self.0[at];
        if at == PARTS_COUNT - 1 {
            return part.fetch_add(1, Ordering::Relaxed);
        }
        // No other thread writes this part, so this needs no locked instruction.
        let before = part.load(Ordering::Relaxed);
        part.store(before + 1, Ordering::Relaxed);
        before
    }

    /// The number of events.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }
}

/// Upper bounds of the durations that are counted together, in milliseconds.
const BOUNDS_MS: [u64; 10] = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 60_000];

/// Durations, counted by their length.
#[derive(Debug, Default)]
pub struct DurationCounts {
    counts: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_us: AtomicU64,
}

impl DurationCounts {
    /// Counts one duration.
    pub fn add(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let at = BOUNDS_MS.partition_point(|&bound_ms| bound_ms * 1000 < us);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The durations as a metric.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a sum of durations needs no more digits")]
    pub fn number(&self) -> MetricNumber {
        let counts = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let bounds = BOUNDS_MS.iter().map(|&ms| ms as f64 / 1000.0).chain([f64::INFINITY]);
        MetricNumber::Durations {
            sum_s: self.sum_us.load(Ordering::Relaxed) as f64 / 1e6,
            count: counts.iter().sum(),
            buckets: bounds.zip(counts).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_counts_and_none_is_lost() {
        let counter = BusyCounter::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).map(|_| counter.add()).max());
            }
        });
        assert_eq!(counter.get(), 4000);
    }

    #[test]
    fn a_duration_counts_up_to_its_bound() {
        let durations = DurationCounts::default();
        for us in [0, 1000, 1001, 3_000_000, 3_600_000_000] {
            durations.add(Duration::from_micros(us));
        }
        let MetricNumber::Durations { count, buckets, .. } = durations.number() else { panic!("durations") };
        assert_eq!(count, 5);
        let counts: Vec<u64> = buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1]);
    }
}
