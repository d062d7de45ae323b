//! The counters of slow threads.

use crate::counters::Counter;
use serde_json::{Map, Value};

macro_rules! slow_counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// The counters of one slow thread, which other threads read.
        #[derive(Debug, Default)]
        pub struct SlowCounters { $($(#[doc = $doc])* pub $name: Counter,)* }

        impl SlowCounters {
            /// The name and description of every counter.
            pub const TABLE: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), concat!($($doc),*).trim_ascii()),)*];

            /// The counters, in the order of [`TABLE`](Self::TABLE).
            #[must_use]
            pub fn values(&self) -> [u64; Self::TABLE.len()] {
                [$(self.$name.get(),)*]
            }
        }
    };
}

slow_counters! {
    /// Requests taken from the queue.
    requests,
    /// Answers with values that templates have computed.
    computed,
    /// Answers signed.
    signed,
    /// Answers with a kept signature, made before over the same bytes.
    signed_before,
    /// Answers sent unsigned because signing failed.
    signing_failed,
    /// Answers with the MAC of a session; those that workers make are not among them.
    with_mac,
    /// Answers encrypted.
    encrypted,
    /// Answers to challenges that were right.
    answers_right,
    /// Requests of other servers to verify the answer to a challenge.
    verifications,
    /// Decisions that did not check all groups of administrators, because there were too many.
    groups_given_up,
    /// Work done for clients, in rounds of PBKDF2 and their equivalents.
    work_units,
    /// Challenges not made because the kernel gave no random numbers.
    without_random,
    /// Requests lost: answering them failed because of a bug.
    bugs,
}

/// The sums over all threads, in the order of [`SlowCounters::TABLE`].
pub(crate) fn sums<'c>(counters: impl Iterator<Item = &'c SlowCounters>) -> [u64; SlowCounters::TABLE.len()] {
    counters.map(SlowCounters::values).fold([0; _], |mut sums, values| {
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        sums
    })
}

/// Sums by name.
pub(crate) fn to_json(sums: &[u64; SlowCounters::TABLE.len()]) -> Map<String, Value> {
    SlowCounters::TABLE.iter().zip(sums).map(|((name, _), &sum)| ((*name).to_owned(), sum.into())).collect()
}
