//! The schedule of requests. A due time depends on the schedule alone, never on what happened.
//!
//! - A schedule is a sequence of phases, each with a constant or linearly changing rate, or the
//!   times of a recording.
//! - Requests are evenly spaced, or a Poisson process: random and independent, as from many users.
//! - The due time of a request is computed from its number, so that no error accumulates in a long
//!   run.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::random::RandomGenerator;

const NS_PER_S: u64 = 1_000_000_000;

/// A period with a constant or linearly changing rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Its duration.
    pub duration: Duration,
    /// Requests per second at its start.
    pub from: f64,
    /// Requests per second at its end.
    pub to: f64,
}

impl Phase {
    /// A phase of `duration` with a constant `rate`.
    #[must_use]
    pub const fn constant(rate: f64, duration: Duration) -> Self {
        Self { duration, from: rate, to: rate }
    }
}

/// Maximum number of requests of a Poisson process that are drawn one by one at the end of a run.
/// An overloaded schedule can leave billions, which would take minutes to draw.
pub const COUNTED_MAX: u64 = 1 << 20;

/// The distribution of requests within a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal intervals.
    #[default]
    Even,
    /// At random, each independent of the others. Each thread has a process of its own; together
    /// they are one.
    Poisson {
        /// The seed of the random times.
        seed: u64,
    },
}

/// The intended send times of a whole run, in nanoseconds from its start.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    times: SendTimes,
    arrivals: Arrivals,
}

#[derive(Clone, Debug, PartialEq)]
enum SendTimes {
    Phases(Vec<ScheduledPhase>),
    /// In ascending order.
    Recorded(Arc<[u64]>),
}

/// A phase with its position in the schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ScheduledPhase {
    start_ns: u64,
    len_ns: u64,
    pace: PhasePace,
    /// Number of requests before it and in it, if evenly spaced.
    first: u64,
    count: u64,
    /// The same without rounding.
    before: f64,
    volume: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum PhasePace {
    /// Exact integers.
    Constant(NonZeroU64),
    Linear {
        from: f64,
        to: f64,
    },
}

impl Schedule {
    /// `rate` requests per second for `duration`, evenly spaced, the first at 0.
    ///
    /// All are due before `duration` is over: those at 0, 1/rate, 2/rate and so on.
    #[must_use]
    pub fn constant(rate: NonZeroU64, duration: Duration) -> Self {
        let mut phases = Vec::new();
        add_phase(&mut phases, PhasePace::Constant(rate), duration);
        Self { times: SendTimes::Phases(phases), arrivals: Arrivals::Even }
    }

    /// Phases one after another.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be whole and positive"
    )]
    pub fn phases(list: &[Phase], arrivals: Arrivals) -> Self {
        let mut phases = Vec::new();
        for phase in list {
            let is_whole = phase.from == phase.to && phase.from.fract() == 0.0;
            let pace = match NonZeroU64::new(phase.from as u64) {
                Some(rate) if is_whole => PhasePace::Constant(rate),
                _ => PhasePace::Linear { from: phase.from.max(0.0), to: phase.to.max(0.0) },
            };
            add_phase(&mut phases, pace, phase.duration);
        }
        Self { times: SendTimes::Phases(phases), arrivals }
    }

    /// Requests at recorded times, in any order.
    #[must_use]
    pub fn recorded(mut due_ns: Vec<u64>) -> Self {
        due_ns.sort_unstable();
        Self { times: SendTimes::Recorded(due_ns.into()), arrivals: Arrivals::Even }
    }

    /// The number of requests; for a Poisson process the expected number.
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.times {
            SendTimes::Phases(phases) => {
                phases.last().map_or(0, |last| last.first.saturating_add(last.count))
            }
            SendTimes::Recorded(times) => times.len() as u64,
        }
    }

    /// The end of the schedule. All requests are due before.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        match &self.times {
            SendTimes::Phases(phases) => {
                phases.last().map_or(0, |last| last.start_ns.saturating_add(last.len_ns))
            }
            SendTimes::Recorded(times) => times.last().map_or(0, |last| last.saturating_add(1)),
        }
    }

    /// The start of each phase, in order; empty for a recording.
    #[must_use]
    pub fn starts_ns(&self) -> Vec<u64> {
        match &self.times {
            SendTimes::Phases(phases) => phases.iter().map(|phase| phase.start_ns).collect(),
            SendTimes::Recorded(_) => Vec::new(),
        }
    }

    /// The highest rate; for a recording averaged over a second.
    #[must_use]
    pub fn rate_max(&self) -> f64 {
        match &self.times {
            SendTimes::Phases(phases) => phases.iter().fold(0.0, |max, phase| max.max(phase.pace.max())),
            SendTimes::Recorded(times) => {
                let mut first = 0;
                let mut max = 0;
                for (i, due_ns) in times.iter().enumerate() {
                    while due_ns - times[first] >= NS_PER_S {
                        first += 1;
                    }
                    max = max.max(i + 1 - first);
                }
                max as f64
            }
        }
    }

    /// The schedule of one thread: every `threads`-th request, from number `thread` on.
    ///
    /// # Panics
    ///
    /// If `threads` is 0.
    #[must_use]
    pub fn share(&self, thread: u64, threads: u64) -> ThreadShare<'_> {
        assert!(threads > 0, "a schedule is shared by at least one thread");
        let random = match self.arrivals {
            Arrivals::Even => None,
            // Another stream than the one that chooses handles.
            Arrivals::Poisson { seed } => Some(RandomGenerator::new(seed, (1 << 32) | thread)),
        };
        let mut share = ThreadShare {
            schedule: self,
            phase: 0,
            next: thread,
            step: threads,
            random,
            position: 0.0,
            due_ns: ThreadShare::NEVER,
        };
        match share.random {
            None => share.find(),
            Some(_) => share.advance(),
        }
        share
    }
}

fn add_phase(phases: &mut Vec<ScheduledPhase>, pace: PhasePace, duration: Duration) {
    let last = phases.last().copied();
    let len_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let volume = pace.volume(duration);
    phases.push(ScheduledPhase {
        start_ns: last.map_or(0, |last| last.start_ns.saturating_add(last.len_ns)),
        len_ns,
        pace,
        first: last.map_or(0, |last| last.first.saturating_add(last.count)),
        count: pace.count(duration),
        before: last.map_or(0.0, |last| last.before + last.volume),
        volume,
    });
}

impl PhasePace {
    fn max(self) -> f64 {
        match self {
            Self::Constant(rate) => rate.get() as f64,
            Self::Linear { from, to } => from.max(to),
        }
    }

    fn volume(self, duration: Duration) -> f64 {
        match self {
            Self::Constant(rate) => rate.get() as f64 * duration.as_secs_f64(),
            Self::Linear { from, to } => f64::midpoint(from, to) * duration.as_secs_f64(),
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    fn count(self, duration: Duration) -> u64 {
        match self {
            Self::Constant(rate) => {
                let exact = (duration.as_nanos() * u128::from(rate.get())).div_ceil(u128::from(NS_PER_S));
                u64::try_from(exact).unwrap_or(u64::MAX)
            }
            Self::Linear { .. } => self.volume(duration).ceil() as u64,
        }
    }

    /// Nanoseconds from the start of the phase until `n` requests are due, for an integer `n`.
    fn after(self, n: u64, len_ns: u64) -> u64 {
        match self {
            Self::Constant(rate) => {
                let rate = rate.get();
                // Below one second the product does not overflow at any rate that a machine can
                // reach; for higher rates it saturates.
                n / rate * NS_PER_S + (n % rate).saturating_mul(NS_PER_S) / rate
            }
            Self::Linear { .. } => self.after_real(n as f64, len_ns),
        }
    }

    /// The same for any number: the solution of `from t + (to - from) t^2 / 2T = n`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    fn after_real(self, n: f64, len_ns: u64) -> u64 {
        let seconds = match self {
            Self::Constant(rate) => n / rate.get() as f64,
            _ if n <= 0.0 => 0.0,
            Self::Linear { from, to } => {
                let growth = (to - from) / (len_ns as f64 / 1e9);
                // In the form that does not subtract nearly equal numbers.
                2.0 * n / (from + (from * from + 2.0 * growth * n).max(0.0).sqrt())
            }
        };
        ((seconds * 1e9) as u64).min(len_ns.saturating_sub(1))
    }
}

/// One thread's part of a [`Schedule`], and its position.
#[derive(Clone, Copy, Debug)]
pub struct ThreadShare<'a> {
    schedule: &'a Schedule,
    phase: usize,
    next: u64,
    step: u64,
    /// A Poisson process at `position`, in requests of all threads.
    random: Option<RandomGenerator>,
    position: f64,
    due_ns: u64,
}

impl ThreadShare<'_> {
    const NEVER: u64 = u64::MAX;

    /// The due time of the next request; `None` after the last.
    #[inline]
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        (self.due_ns != Self::NEVER).then_some(self.due_ns)
    }

    /// The schedule that it is a part of.
    #[must_use]
    pub const fn schedule(&self) -> &Schedule {
        self.schedule
    }

    /// Advances to the next request.
    pub fn advance(&mut self) {
        match &mut self.random {
            None => self.next = self.next.saturating_add(self.step),
            Some(random) => self.position += random.exponential() * self.step as f64,
        }
        self.find();
    }

    fn find(&mut self) {
        self.due_ns = match &self.schedule.times {
            SendTimes::Recorded(times) => {
                usize::try_from(self.next).ok().and_then(|at| times.get(at).copied()).unwrap_or(Self::NEVER)
            }
            SendTimes::Phases(phases) => loop {
                let Some(phase) = phases.get(self.phase) else { break Self::NEVER };
                if self.random.is_some() {
                    let n = self.position - phase.before;
                    if n < phase.volume {
                        break phase.start_ns + phase.pace.after_real(n, phase.len_ns);
                    }
                } else if self.next < phase.first + phase.count {
                    break phase.start_ns + phase.pace.after(self.next - phase.first, phase.len_ns);
                }
                self.phase += 1;
            },
        };
    }

    /// Number of remaining requests. Those of a Poisson process are drawn one by one up to
    /// [`COUNTED_MAX`]; beyond that, the expected number is added.
    #[must_use]
    pub fn left(&self) -> u64 {
        if self.random.is_none() {
            return self.schedule.count().saturating_sub(self.next).div_ceil(self.step);
        }
        let (mut rest, mut left) = (*self, 0);
        while rest.due_ns().is_some() && left < COUNTED_MAX {
            left += 1;
            rest.advance();
        }
        left + rest.expected_left()
    }

    /// Expected number of remaining requests of a Poisson process; none after the last.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    fn expected_left(&self) -> u64 {
        match &self.schedule.times {
            SendTimes::Phases(phases) if self.due_ns().is_some() => {
                let volume = phases.last().map_or(0.0, |last| last.before + last.volume);
                ((volume - self.position) / self.step as f64).max(0.0).round() as u64
            }
            _ => 0,
        }
    }

    /// Whether the number of requests is known in advance.
    #[must_use]
    pub const fn is_counted(&self) -> bool {
        self.random.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule(rate: u64, ms: u64) -> Schedule {
        Schedule::constant(NonZeroU64::new(rate).unwrap(), Duration::from_millis(ms))
    }

    fn all(schedule: &Schedule, thread: u64, threads: u64) -> Vec<u64> {
        let mut share = schedule.share(thread, threads);
        let left = share.left();
        let mut due = Vec::new();
        while let Some(at) = share.due_ns() {
            due.push(at);
            share.advance();
        }
        assert_eq!((due.len() as u64, share.left()), (left, 0));
        due
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
            assert_eq!(day.share(i, 1).due_ns().map(u128::from), Some(exact), "request {i}");
        }
    }

    #[test]
    fn more_threads_than_requests_leave_some_idle() {
        assert_eq!(schedule(1, 1000).share(3, 4).due_ns(), None);
        assert_eq!(schedule(1, 1000).share(3, 4).left(), 0);
    }

    #[test]
    fn a_ramp_has_the_rate_of_its_moment() {
        let second = Duration::from_secs(10);
        let up = Schedule::phases(&[Phase { duration: second, from: 0.0, to: 1000.0 }], Arrivals::Even);
        let due = all(&up, 0, 1);
        assert_eq!(due.len(), 5000);
        for s in 0..10u64 {
            let count = due.iter().filter(|ns| **ns / NS_PER_S == s).count() as u64;
            assert!(count.abs_diff(s * 100 + 50) <= 1, "{count} in second {s}");
        }
    }

    #[test]
    fn steps_and_pauses_follow_each_other() {
        let second = Duration::from_secs(1);
        let list =
            [Phase::constant(10.0, second), Phase::constant(0.0, second), Phase::constant(20.0, second)];
        let due = all(&Schedule::phases(&list, Arrivals::Even), 0, 1);
        assert_eq!(due.len(), 30);
        assert_eq!((due[9], due[10], due[11]), (900_000_000, 2_000_000_000, 2_050_000_000));
    }

    #[test]
    fn recorded_times_are_kept() {
        let recorded = Schedule::recorded(vec![7, 3, 1_000_000_004, 5]);
        assert_eq!(all(&recorded, 0, 1), [3, 5, 7, 1_000_000_004]);
        assert_eq!((recorded.count(), recorded.end_ns(), recorded.rate_max()), (4, 1_000_000_005, 3.0));
        assert_eq!(all(&recorded, 1, 2), [5, 1_000_000_004]);
    }

    #[test]
    fn a_poisson_process_has_the_rate_and_the_spread_of_one() {
        let phase = Phase::constant(10_000.0, Duration::from_secs(10));
        let schedule = Schedule::phases(&[phase], Arrivals::Poisson { seed: 7 });
        let mut due: Vec<_> = (0..3).flat_map(|thread| all(&schedule, thread, 3)).collect();
        due.sort_unstable();
        // The standard deviation of the count is its square root; five of them are practically
        // never exceeded.
        assert!(due.len().abs_diff(100_000) < 5 * 317, "{}", due.len());
        let gaps: Vec<_> = due.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let variation = variance.sqrt() / mean;
        assert!((0.97..1.03).contains(&variation), "{variation}: 1 is exponential, 0 is even");
    }

    #[test]
    fn uncountable_requests_are_estimated() {
        let of = |rate| {
            let phase = Phase::constant(rate, Duration::from_secs(10));
            Schedule::phases(&[phase], Arrivals::Poisson { seed: 7 })
        };
        let (few, many) = (of(100_000.0), of(1e9));
        assert!(few.share(0, 1).left().abs_diff(COUNTED_MAX) < 5 * 1000 + 48_576);
        for threads in [1, 3] {
            let left: u64 = (0..threads).map(|thread| many.share(thread, threads).left()).sum();
            // The standard deviation is the square root.
            assert!(left.abs_diff(10_000_000_000) < 5 * 100_000, "{left}");
        }
        let mut share = few.share(0, 1);
        while share.due_ns().is_some() {
            share.advance();
        }
        assert_eq!(share.left(), 0);
    }

    proptest! {
        #[test]
        fn shares_add_up_to_any_schedule(
            phases in proptest::collection::vec((0u64..500, 0u32..3000, 0u32..3000), 1..5),
            threads in 1u64..6,
        ) {
            let list: Vec<_> = phases.iter().map(|&(ms, from, to)| Phase {
                duration: Duration::from_millis(ms), from: f64::from(from), to: f64::from(to),
            }).collect();
            let schedule = Schedule::phases(&list, Arrivals::Even);
            let whole = all(&schedule, 0, 1);
            prop_assert_eq!(whole.len() as u64, schedule.count());
            prop_assert!(whole.is_sorted(), "due times are not in order");
            prop_assert!(whole.iter().all(|ns| *ns < schedule.end_ns()));
            let mut shares: Vec<_> = (0..threads).flat_map(|thread| all(&schedule, thread, threads)).collect();
            shares.sort_unstable();
            prop_assert_eq!(shares, whole);
        }
    }
}
