//! The results of each phase of a schedule: steps and ramps with their loss and times.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::load::schedule::{Phase, Schedule};
use crate::show::latency::{ResponseTimes, add, histogram};

/// Maximum number of phases with results of their own; a longer schedule has only totals.
pub const STEPS_MAX: usize = 64;

/// The requests of one thread by the phase in which they were due. Records nothing without phases.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// In ascending order.
    starts_ns: Vec<u64>,
    tallies: Vec<StepTally>,
}

/// The requests of one phase.
#[derive(Clone, Debug)]
struct StepTally {
    sent: u64,
    answered: u64,
    late: u64,
    response: Histogram<u32>,
    schedule_error: Histogram<u32>,
}

impl StepTally {
    fn new() -> Self {
        Self { sent: 0, answered: 0, late: 0, response: histogram(2), schedule_error: histogram(2) }
    }
}

/// A phase, and the results of the requests that were due in it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PhaseStep {
    /// Requests per second at its start.
    pub rate_from: f64,
    /// Requests per second at its end.
    pub rate_to: f64,
    /// Seconds from the start of the run.
    pub start_s: f64,
    /// Duration in seconds.
    pub duration_s: f64,
    /// Requests that were due in it and sent. If the kernel refuses part of a burst at the border
    /// of two phases, the refused ones are assumed to be the first of the burst.
    pub sent: u64,
    /// Requests among these with an answer in time.
    pub answered: u64,
    /// Requests among these with a late answer.
    pub late: u64,
    /// Requests among these without a complete answer: lost, and duplicate only.
    pub unanswered: u64,
    /// Answers in time per second.
    pub answered_per_s: f64,
    /// Response times of answers in time, to two digits.
    pub response_ns: ResponseTimes,
    /// Lag of its requests, to two digits.
    pub schedule_error_ns: ResponseTimes,
}

impl Steps {
    /// For the phases of `schedule`, if there are at least two and not too many.
    #[must_use]
    pub fn of(schedule: &Schedule) -> Self {
        let starts_ns = schedule.starts_ns();
        if !(2..=STEPS_MAX).contains(&starts_ns.len()) {
            return Self::default();
        }
        let tallies = starts_ns.iter().map(|_| StepTally::new()).collect();
        Self { starts_ns, tallies }
    }

    /// The phase in which a request was due.
    #[inline]
    fn at(&mut self, intended_ns: u64) -> Option<&mut StepTally> {
        if self.starts_ns.is_empty() {
            return None;
        }
        let after = self.starts_ns.partition_point(|start_ns| *start_ns <= intended_ns);
        self.tallies.get_mut(after.saturating_sub(1))
    }

    /// Records a request that was due at `intended_ns` and handed over at `sent_ns`.
    #[inline]
    pub fn note_sent(&mut self, intended_ns: u64, sent_ns: u64, is_taken: bool) {
        if let Some(tally) = self.at(intended_ns) {
            tally.sent += u64::from(is_taken);
            tally.schedule_error.saturating_record(sent_ns.saturating_sub(intended_ns));
        }
    }

    /// Records an answer in time.
    #[inline]
    pub fn note_answered(&mut self, intended_ns: u64, response_ns: u64) {
        if let Some(tally) = self.at(intended_ns) {
            tally.answered += 1;
            tally.response.saturating_record(response_ns);
        }
    }

    /// Records a late answer.
    #[inline]
    pub fn note_late(&mut self, intended_ns: u64) {
        if let Some(tally) = self.at(intended_ns) {
            tally.late += 1;
        }
    }

    /// Adds the results of another thread for the same phases.
    pub fn add(&mut self, other: &Self) {
        if self.tallies.is_empty() {
            self.clone_from(other);
            return;
        }
        for (sum, tally) in self.tallies.iter_mut().zip(&other.tallies) {
            sum.sent += tally.sent;
            sum.answered += tally.answered;
            sum.late += tally.late;
            add(&mut sum.response, &tally.response);
            add(&mut sum.schedule_error, &tally.schedule_error);
        }
    }

    /// The results of each of `phases`, which are those of the schedule.
    #[must_use]
    pub fn summary(&self, phases: &[Phase]) -> Vec<PhaseStep> {
        let each = phases.iter().zip(&self.starts_ns).zip(&self.tallies);
        each.map(|((phase, start_ns), tally)| {
            let duration_s = phase.duration.as_secs_f64();
            PhaseStep {
                rate_from: phase.from,
                rate_to: phase.to,
                start_s: *start_ns as f64 / 1e9,
                duration_s,
                sent: tally.sent,
                answered: tally.answered,
                late: tally.late,
                unanswered: tally.sent.saturating_sub(tally.answered + tally.late),
                answered_per_s: tally.answered as f64 / duration_s.max(1e-9),
                response_ns: ResponseTimes::of(&tally.response),
                schedule_error_ns: ResponseTimes::of(&tally.schedule_error),
            }
        })
        .collect()
    }
}

impl PhaseStep {
    /// Requests without a complete answer, as a share of those sent.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.unanswered as f64 / self.sent.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::schedule::Arrivals;
    use std::time::Duration;

    fn phases(count: usize) -> Vec<Phase> {
        (0..count).map(|i| Phase::constant((i + 1) as f64, Duration::from_secs(1))).collect()
    }

    fn steps(count: usize) -> Steps {
        Steps::of(&Schedule::phases(&phases(count), Arrivals::Even))
    }

    #[test]
    fn a_request_belongs_to_the_phase_in_which_it_was_due() {
        const S: u64 = 1_000_000_000;
        let mut steps = steps(3);
        // Due in the first, sent and answered in the second.
        steps.note_sent(S - 1, S + 100, true);
        steps.note_answered(S - 1, 2_000);
        steps.note_sent(S, S, false);
        steps.note_sent(S, S, true);
        steps.note_late(S);
        // Sent after the end of the schedule.
        steps.note_sent(3 * S + 5, 3 * S + 5, true);
        let mut both = Steps::default();
        both.add(&steps);
        both.add(&steps);
        let counts: Vec<_> = both
            .summary(&phases(3))
            .iter()
            .map(|step| (step.sent, step.answered, step.late, step.unanswered, step.schedule_error_ns.count))
            .collect();
        assert_eq!(counts, [(2, 2, 0, 0, 2), (2, 0, 2, 0, 4), (2, 0, 0, 2, 2)]);
        let first = both.summary(&phases(3))[0];
        assert_eq!((first.rate_from, first.start_s, first.duration_s), (1.0, 0.0, 1.0));
        assert!(first.response_ns.max.abs_diff(2_000) < 40 && first.loss() == 0.0, "{first:?}");
    }

    #[test]
    fn one_phase_and_too_many_are_summed_up_as_a_whole() {
        for (count, expected) in [(1, 0), (2, 2), (STEPS_MAX, STEPS_MAX), (STEPS_MAX + 1, 0)] {
            let mut steps = steps(count);
            steps.note_sent(0, 0, true);
            assert_eq!(steps.summary(&phases(count)).len(), expected, "{count}");
        }
        assert!(Steps::of(&Schedule::recorded(vec![1, 2, 3])).summary(&phases(3)).is_empty());
    }
}
