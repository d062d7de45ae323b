//! Failures of questions, remembered for a short time. RFC 9520 has the same for DNS.
//!
//! - A failed question is refused for that time.
//! - After several failures in a row of different questions about a prefix, all questions about
//!   that prefix are refused, except for one in each such time. An answer to it ends the refusal.
//!
//! Questions that only primary sites may answer count apart from the others: that the primary sites
//! of a prefix do not work says nothing about its mirrors.
//!
//! One failure does not count against the prefix, because whoever asks could choose a handle about
//! which the service does not answer. Neither do failures of questions for signed answers, and
//! those that do not tell whether the servers work (`is_outage`).

use crate::exchange::AttemptError;
use crate::{LookupError, Question};
use handle_proto::fold;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Limits of the memory of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureLimits {
    /// Time for which a failure is remembered, in milliseconds; 0 to remember none.
    pub keeps_ms: u64,
    /// Failures in a row after which a prefix is refused.
    pub per_prefix: u32,
    /// Maximum number of failures, of questions and prefixes together.
    pub entries_max: usize,
}

/// The remembered failures.
#[derive(Debug)]
pub struct FailureMemory {
    limits: FailureLimits,
    /// Names are hashed with a secret key, so that names whose hashes collide cannot be chosen.
    hasher: RandomState,
    failures: Mutex<HashMap<u64, RememberedFailure>>,
}

#[derive(Debug)]
struct RememberedFailure {
    error: LookupError,
    until_ms: u64,
    /// Failures in a row, of a prefix.
    count: u32,
    is_of_prefix: bool,
}

/// Failures of a prefix are in a row if the time between two of them is at most this multiple of
/// `keeps_ms`.
const ROW_FACTOR: u64 = 12;

impl RememberedFailure {
    /// Whether the prefix is refused, except for one question in each period.
    const fn is_closed(&self, limits: &FailureLimits) -> bool {
        !self.is_of_prefix || self.count >= limits.per_prefix
    }

    const fn is_over(&self, now_ms: u64, limits: &FailureLimits) -> bool {
        let longer = if self.is_of_prefix { limits.keeps_ms * ROW_FACTOR } else { 0 };
        now_ms >= self.until_ms + longer
    }
}

/// Whether a failure tells that the servers of a prefix do not work, whatever they are asked.
const fn is_outage(error: &LookupError) -> bool {
    use AttemptError::{Ended, NoAddress, Partial, Refused, Silence, Unreachable};
    match error {
        LookupError::TooSlow { .. } => true,
        LookupError::AllFailed { last, .. } => {
            matches!(last, Silence | Partial | Unreachable | Ended | NoAddress | Refused(_))
        }
        _ => false,
    }
}

impl FailureMemory {
    /// An empty memory.
    #[must_use]
    pub fn new(limits: FailureLimits) -> Self {
        Self { limits, hasher: RandomState::new(), failures: Mutex::default() }
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<u64, RememberedFailure>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a question.
    #[must_use]
    pub fn key(&self, question: &Question) -> u64 {
        let is_authoritative = question.wants.authoritative;
        self.hasher.hash_one((0_u8, is_authoritative, question.handle_key(), question.values_key()))
    }

    fn prefix_key(&self, question: &Question) -> u64 {
        let is_authoritative = question.wants.authoritative;
        self.hasher.hash_one((1_u8, is_authoritative, fold::folded(&question.handle().prefix_record())))
    }

    /// Whether a failure of this question or its prefix is remembered.
    #[must_use]
    pub fn is_remembered(&self, question: &Question) -> bool {
        let failures = self.failures();
        !failures.is_empty()
            && (failures.contains_key(&self.key(question))
                || failures.contains_key(&self.prefix_key(question)))
    }

    /// The failure because of which a question is not asked now. If this returns `None` for a
    /// prefix that is refused, the caller has to ask, and to report the outcome by
    /// [`note`](Self::note), [`forget`](Self::forget) or [`give_back`](Self::give_back): until
    /// then, others are refused.
    pub fn refuses(&self, question: &Question, now_ms: u64) -> Option<LookupError> {
        let mut failures = self.failures();
        let own = failures.get(&self.key(question)).filter(|failure| now_ms < failure.until_ms);
        if let Some(own) = own {
            return Some(own.error.clone());
        }
        let prefix_failure = failures.get_mut(&self.prefix_key(question))?;
        if !prefix_failure.is_closed(&self.limits) || prefix_failure.is_over(now_ms, &self.limits) {
            return None;
        }
        if now_ms < prefix_failure.until_ms {
            return Some(prefix_failure.error.clone());
        }
        prefix_failure.until_ms = now_ms + self.limits.keeps_ms;
        None
    }

    /// Remembers the failure of a question.
    pub fn note(&self, question: &Question, error: &LookupError, now_ms: u64) {
        if self.limits.keeps_ms == 0 {
            return;
        }
        let (key, prefix_key) = (self.key(question), self.prefix_key(question));
        let mut failures = self.failures();
        let until_ms = now_ms + self.limits.keeps_ms;
        let before = failures.get(&prefix_key).filter(|failure| !failure.is_over(now_ms, &self.limits));
        let count = before.map_or(0, |failure| failure.count).saturating_add(1);
        let counts = !question.wants.certified && is_outage(error);
        let prefix_failure = counts.then_some((prefix_key, count, true));
        for (key, count, is_of_prefix) in [Some((key, 1, false)), prefix_failure].into_iter().flatten() {
            if failures.len() >= self.limits.entries_max && !failures.contains_key(&key) {
                failures.retain(|_, failure| !failure.is_over(now_ms, &self.limits));
            }
            if failures.len() >= self.limits.entries_max && !failures.contains_key(&key) {
                // Keys are random, so this removes a random entry.
                let any = failures.keys().next().copied();
                any.map(|any| failures.remove(&any));
            }
            failures.insert(key, RememberedFailure { error: error.clone(), until_ms, count, is_of_prefix });
        }
    }

    /// Allows another question about a prefix that is refused: the one that was allowed has ended
    /// without an outcome.
    pub fn give_back(&self, question: &Question, now_ms: u64) {
        if let Some(prefix_failure) = self.failures().get_mut(&self.prefix_key(question)) {
            prefix_failure.until_ms = prefix_failure.until_ms.min(now_ms);
        }
    }

    /// Forgets the failures of a question that was answered, and of its prefix. A primary site that
    /// answers is one that answers ordinary questions too.
    pub fn forget(&self, question: &Question) {
        let mut failures = self.failures();
        if failures.is_empty() {
            return;
        }
        let mut ordinary = question.clone();
        ordinary.wants.authoritative = false;
        for answered in [question, &ordinary] {
            failures.remove(&self.key(answered));
            failures.remove(&self.prefix_key(answered));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(entries_max: usize) -> FailureMemory {
        FailureMemory::new(FailureLimits { keeps_ms: 5_000, per_prefix: 3, entries_max })
    }

    fn question(handle: &str) -> Question {
        Question::all(handle.as_bytes())
    }

    const ERROR: LookupError = LookupError::TooSlow { handle: Vec::new() };

    #[test]
    fn a_question_that_failed_is_refused_for_its_time_and_others_are_not() {
        let memory = memory(16);
        assert!(!memory.is_remembered(&question("a/x")));
        memory.note(&question("A/x"), &ERROR, 1_000);
        assert_eq!(memory.refuses(&question("a/x"), 5_999), Some(ERROR));
        assert_eq!(memory.refuses(&question("a/x"), 6_000), None);
        assert_eq!(memory.refuses(&question("a/y"), 1_001), None);
        let mut certified = question("a/x");
        certified.wants.certified = true;
        assert_eq!(memory.refuses(&certified, 1_001), None, "another question");
        memory.forget(&question("a/x"));
        assert!(!memory.is_remembered(&question("a/x")));
    }

    #[test]
    fn failures_of_primary_sites_do_not_count_against_mirrors() {
        let memory = memory(16);
        let authoritative = |handle: &str| {
            let mut question = question(handle);
            question.wants.authoritative = true;
            question
        };
        ["a/1", "a/2", "a/3"].iter().for_each(|handle| memory.note(&authoritative(handle), &ERROR, 0));
        assert_eq!(memory.refuses(&authoritative("a/9"), 1), Some(ERROR));
        assert_eq!((memory.refuses(&question("a/1"), 1), memory.refuses(&question("a/9"), 1)), (None, None));
        memory.forget(&question("a/9"));
        assert_eq!(memory.refuses(&authoritative("a/8"), 1), Some(ERROR));
        ["a/1", "a/2", "a/3"].iter().for_each(|handle| memory.note(&question(handle), &ERROR, 0));
        assert_eq!(memory.refuses(&question("a/8"), 1), Some(ERROR));
        memory.forget(&authoritative("a/8"));
        assert_eq!(memory.refuses(&question("a/8"), 1), None, "a primary site answers");
    }

    #[test]
    fn whoever_asks_cannot_close_a_prefix_or_keep_it_closed() {
        let memory = memory(16);
        let server = ([192, 0, 2, 1], 2641).into();
        let failed = |last| LookupError::AllFailed { handle: Vec::new(), attempts: 1, server, last };
        for handle in ["a/1", "a/2", "a/3"] {
            memory.note(&question(handle), &failed(AttemptError::TooLong), 0);
            memory.note(&question(handle), &LookupError::TooManyRequests, 0);
            let mut certified = question(handle);
            certified.wants.certified = true;
            memory.note(&certified, &ERROR, 0);
        }
        assert_eq!(memory.refuses(&question("a/9"), 1), None, "nothing tells that the servers are down");
        for handle in ["a/1", "a/2", "a/3"] {
            memory.note(&question(handle), &failed(AttemptError::Silence), 0);
        }
        assert!(memory.refuses(&question("a/9"), 1).is_some());
        assert_eq!(memory.refuses(&question("a/9"), 6_000), None, "it has to ask");
        assert!(memory.refuses(&question("a/8"), 6_001).is_some());
        memory.give_back(&question("a/9"), 6_002);
        assert_eq!(memory.refuses(&question("a/8"), 6_002), None, "the one that asked has gone away");
        assert_eq!(memory.refuses(&question("a/8"), 900_000), None, "the failures are long ago");
        assert_eq!(memory.refuses(&question("a/9"), 900_001), None);
    }

    #[test]
    fn a_prefix_that_fails_in_a_row_is_asked_by_one_question_at_a_time() {
        let memory = memory(16);
        ["a/1", "a/2"].iter().for_each(|handle| memory.note(&question(handle), &ERROR, 0));
        assert_eq!(memory.refuses(&question("a/9"), 1), None, "two failures");
        memory.note(&question("a/3"), &ERROR, 2_000);
        assert_eq!(memory.refuses(&question("a/9"), 6_999), Some(ERROR));
        assert_eq!(memory.refuses(&question("b/9"), 6_999), None, "another prefix");
        assert_eq!(memory.refuses(&question("a/9"), 7_000), None, "it has to ask");
        assert_eq!(memory.refuses(&question("a/8"), 7_001), Some(ERROR));
        memory.note(&question("a/9"), &ERROR, 9_000);
        assert_eq!(memory.refuses(&question("a/8"), 13_999), Some(ERROR));
        memory.forget(&question("a/7"));
        assert_eq!(memory.refuses(&question("a/8"), 9_001), None, "the service answers again");
        ["a/1", "a/2"].iter().for_each(|handle| memory.note(&question(handle), &ERROR, 20_000));
        memory.note(&question("a/3"), &ERROR, 90_000);
        assert_eq!(memory.refuses(&question("a/8"), 90_001), None, "not in a row");
    }

    #[test]
    fn the_number_of_failures_is_bounded() {
        let memory = memory(10);
        for number in 0..1_000 {
            memory.note(&question(&format!("{number}/x")), &ERROR, number);
            assert!(memory.failures().len() <= 10);
        }
        assert!(memory.is_remembered(&question("999/x")));
        let none = FailureMemory::new(FailureLimits { keeps_ms: 0, per_prefix: 1, entries_max: 10 });
        none.note(&question("a/x"), &ERROR, 0);
        assert!(!none.is_remembered(&question("a/x")));
    }
}
