//! What slow threads count.

use crate::counters::Counter;
use serde_json::{Map, Value};

macro_rules! slow_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one slow thread counts; others read.
        #[derive(Debug, Default)]
        pub struct SlowCounters { $($(#[$doc])* pub $name: Counter,)* }

        impl SlowCounters {
            /// Every counter with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get()),)*].into_iter()
            }
        }
    };
}

slow_counters! {
    /// Requests taken on.
    requests,
    /// Answers signed.
    signed,
    /// Answers with a signature that was made before, over the same bytes.
    signed_before,
    /// Answers sent unsigned because signing failed.
    signing_failed,
    /// Answers to challenges that were right.
    answers_right,
    /// Questions of other servers whether an answer is right.
    verifications,
    /// Decisions without a look at all groups of administrators: there were too many.
    groups_given_up,
    /// Challenges not made because the kernel gave no random numbers.
    without_random,
    /// Requests lost: answering them failed inside, which is a bug.
    bugs,
}

/// The sums over all threads.
pub(crate) fn sums<'c>(counters: impl Iterator<Item = &'c SlowCounters>) -> Map<String, Value> {
    let mut sums = Map::new();
    for (name, count) in counters.flat_map(SlowCounters::named) {
        let sum = sums.get(name).and_then(Value::as_u64).unwrap_or(0) + count;
        sums.insert(name.to_owned(), sum.into());
    }
    sums
}
