//! The counters of slow threads.

use crate::counters::Counter;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value};
use std::time::Duration;

handle_daemon::event_counters! {
    /// The counters of one slow thread, which other threads read.
    pub struct SlowCounters of Counter, "handled_slow_" {
        /// Requests accepted by the slow path.
        requests,
        /// Answers with values computed by templates.
        computed,
        /// Answers signed.
        signed,
        /// Answers with a kept signature over the same bytes.
        signed_before,
        /// Answers sent unsigned because signing failed.
        signing_failed,
        /// Answers with the MAC of a session, without those that workers make.
        with_mac,
        /// Answers encrypted.
        encrypted,
        /// Correct answers to challenges; wrong ones are in `handled_refused_total`.
        answers_right,
        /// Verification requests of other servers.
        verifications,
        /// Decisions made without all groups of administrators, because there were too many.
        groups_given_up,
        /// Work done for requesters, in rounds of PBKDF2 and operations of equal cost.
        work_units,
        /// Challenges not issued because the kernel returned no random numbers.
        without_random,
        /// Requests lost by a bug.
        bugs,
    }
}

/// The sums over all threads, in the order of [`SlowCounters::NAMES`].
pub(crate) fn sums<'c>(counters: impl Iterator<Item = &'c SlowCounters>) -> [u64; SlowCounters::NAMES.len()] {
    counters.map(SlowCounters::values).fold([0; _], |mut sums, values| {
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        sums
    })
}

/// Sums by name.
pub(crate) fn to_json(sums: &[u64; SlowCounters::NAMES.len()]) -> Map<String, Value> {
    SlowCounters::NAMES.iter().zip(sums).map(|(name, &sum)| ((*name).to_owned(), sum.into())).collect()
}

/// The processor time of this thread.
pub(super) fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
