//! When each request is due. An intended time depends on the schedule alone, never on what happened.

use std::num::NonZeroU64;
use std::time::Duration;

/// The intended send times of a whole run, in nanoseconds from its start.
///
/// Other shapes than a constant rate are other answers to [`due_ns`](Self::due_ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    rate: NonZeroU64,
    count: u64,
}

const NS_PER_S: u64 = 1_000_000_000;

impl Schedule {
    /// `rate` requests a second for `duration`, evenly spaced, the first at 0.
    ///
    /// All are due before `duration` is over: those at 0, 1/rate, 2/rate and so on.
    #[must_use]
    pub fn constant(rate: NonZeroU64, duration: Duration) -> Self {
        let exact = (duration.as_nanos() * u128::from(rate.get())).div_ceil(u128::from(NS_PER_S));
        Self { rate, count: u64::try_from(exact).unwrap_or(u64::MAX) }
    }

    /// How many requests there are.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// When request `i` is due: i/rate, rounded down. No error adds up over a long run.
    #[must_use]
    pub const fn due_ns(&self, i: u64) -> u64 {
        let rate = self.rate.get();
        // Below one second the product does not overflow for any rate a machine can reach; the
        // saturation is for those it cannot.
        i / rate * NS_PER_S + (i % rate).saturating_mul(NS_PER_S) / rate
    }

    /// Every `threads`-th request, from the one numbered `thread` on: the schedule of one thread.
    ///
    /// # Panics
    ///
    /// If `threads` is 0.
    #[must_use]
    pub const fn share(self, thread: u64, threads: u64) -> Share {
        assert!(threads > 0, "a schedule is shared by at least one thread");
        Share { schedule: self, next: thread, step: threads }
    }
}

/// One thread's part of a [`Schedule`], and how far it has come.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    schedule: Schedule,
    next: u64,
    step: u64,
}

impl Share {
    /// When the next request is due; `None` after the last.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        (self.next < self.schedule.count).then(|| self.schedule.due_ns(self.next))
    }

    /// Goes on to the request after the next.
    pub const fn advance(&mut self) {
        self.next = self.next.saturating_add(self.step);
    }

    /// How many requests are left.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.schedule.count.saturating_sub(self.next).div_ceil(self.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(rate: u64, ms: u64) -> Schedule {
        Schedule::constant(NonZeroU64::new(rate).unwrap(), Duration::from_millis(ms))
    }

    #[test]
    fn all_are_due_before_the_end_and_one_more_would_not_be() {
        for (rate, ms) in [(1, 1), (1, 1000), (3, 1000), (7, 12_345), (100_000, 10_000), (999_983, 333)] {
            let schedule = schedule(rate, ms);
            let exact = |i: u64| u128::from(i) * u128::from(NS_PER_S);
            let end = u128::from(ms) * 1_000_000 * u128::from(rate);
            assert!(exact(schedule.count() - 1) < end, "{rate}/s for {ms} ms");
            assert!(exact(schedule.count()) >= end, "{rate}/s for {ms} ms");
        }
        assert_eq!(schedule(1000, 0).count(), 0);
    }

    #[test]
    fn times_are_exact_however_long_it_runs() {
        let day = schedule(333_333, 86_400_000);
        for i in [0, 1, 333_332, 333_333, day.count() - 1] {
            let exact = u128::from(i) * u128::from(NS_PER_S) / 333_333;
            assert_eq!(u128::from(day.due_ns(i)), exact, "request {i}");
        }
    }

    #[test]
    fn shares_add_up_to_the_schedule() {
        let schedule = schedule(1000, 1001);
        for threads in 1..7 {
            let mut due = Vec::new();
            for thread in 0..threads {
                let mut share = schedule.share(thread, threads);
                let left = share.left();
                let before = due.len();
                while let Some(at) = share.due_ns() {
                    due.push(at);
                    share.advance();
                }
                assert_eq!((due.len() - before) as u64, left);
                assert_eq!(share.left(), 0);
            }
            due.sort_unstable();
            let whole: Vec<_> = (0..schedule.count()).map(|i| schedule.due_ns(i)).collect();
            assert_eq!(due, whole, "{threads} threads");
        }
    }

    #[test]
    fn more_threads_than_requests_leave_some_idle() {
        assert_eq!(schedule(1, 1000).share(3, 4).due_ns(), None);
        assert_eq!(schedule(1, 1000).share(3, 4).left(), 0);
    }
}
