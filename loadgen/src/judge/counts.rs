//! Accounts: every request and every answer is counted exactly once.

use std::collections::BTreeMap;
use std::fmt;

/// The fate of all requests, and of all datagrams received.
///
/// [`check`](Self::check) states the sums that hold. `lost` and `sent` are counted independently,
/// so that the sums are a test and not a definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerCounts {
    /// Requests of the schedule; in a closed loop, those handed to the kernel.
    pub scheduled: u64,
    /// Requests accepted by the kernel.
    pub sent: u64,
    /// Requests that were due, but not handed to the kernel before the end of the run.
    pub behind: u64,
    /// Requests refused by the kernel.
    pub refused: u64,
    /// Requests dropped because the send queue stayed full.
    pub blocked: u64,
    /// Requests with an answer within the timeout.
    pub answered: u64,
    /// Requests with an answer after the timeout.
    pub late: u64,
    /// Requests with an incomplete answer, of which repeated pieces arrived instead of the missing
    /// ones.
    pub duplicate_only: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Answers in time, by response code.
    pub codes: Codes,
    /// Answers in time that cannot be decoded.
    pub malformed: u64,
    /// Answers in time whose end is missing: they are shorter than their length field says.
    pub truncated: u64,
    /// Answers to requests that had been answered before.
    pub duplicates: u64,
    /// Datagrams that answer no request: unknown id, other sender, or too short for an id.
    pub unmatched: u64,
    /// Datagrams received, of any kind.
    pub datagrams: u64,
    /// Fragments received again before their answer was complete.
    pub fragment_duplicates: u64,
    /// Incomplete answers to pending requests, discarded to make room for others.
    pub fragments_dropped: u64,
    /// Answers, in time or late, that match the reference data.
    pub verified: u64,
    /// Answers, in time or late, that differ from the reference data.
    pub mismatched: u64,
    /// Answers, in time or late, that cannot be judged: a set was published and replaced unseen.
    pub undecided: u64,
    /// Answers, in time or late, that were not compared, because only a sample is.
    pub unjudged: u64,
    /// Received datagrams that the kernel dropped because the generator was too slow.
    pub kernel_drops: u64,
}

impl AnswerCounts {
    /// Requests that were due and not sent, for any reason.
    #[must_use]
    pub const fn not_sent(&self) -> u64 {
        self.behind + self.refused + self.blocked
    }

    /// Adds the counts of another thread.
    pub fn add(&mut self, other: &Self) {
        // Names all fields, so that a new one cannot be forgotten.
        let Self {
            scheduled,
            sent,
            behind,
            refused,
            blocked,
            answered,
            late,
            duplicate_only,
            lost,
            codes,
            malformed,
            truncated,
            duplicates,
            unmatched,
            datagrams,
            fragment_duplicates,
            fragments_dropped,
            verified,
            mismatched,
            undecided,
            unjudged,
            kernel_drops,
        } = other;
        self.scheduled += scheduled;
        self.sent += sent;
        self.behind += behind;
        self.refused += refused;
        self.blocked += blocked;
        self.answered += answered;
        self.late += late;
        self.duplicate_only += duplicate_only;
        self.lost += lost;
        self.codes.add(codes);
        self.malformed += malformed;
        self.truncated += truncated;
        self.duplicates += duplicates;
        self.unmatched += unmatched;
        self.datagrams += datagrams;
        self.fragment_duplicates += fragment_duplicates;
        self.fragments_dropped += fragments_dropped;
        self.verified += verified;
        self.mismatched += mismatched;
        self.undecided += undecided;
        self.unjudged += unjudged;
        self.kernel_drops += kernel_drops;
    }

    /// Checks the sums at the end of a run. `verify` tells whether answers were verified.
    ///
    /// # Errors
    ///
    /// The sum that does not hold: a bug of this program.
    pub fn check(&self, verify: bool) -> Result<(), String> {
        let judged = if verify { self.answered + self.late } else { 0 };
        let sums = [
            ("scheduled = sent + not sent", self.scheduled, self.sent + self.not_sent()),
            (
                "sent = answered + late + duplicate only + lost",
                self.sent,
                self.answered + self.late + self.duplicate_only + self.lost,
            ),
            (
                "answered = sum of codes + malformed + truncated",
                self.answered,
                self.codes.sum() + self.malformed + self.truncated,
            ),
            (
                "answered + late = verified + mismatched + undecided + not judged",
                judged,
                self.verified + self.mismatched + self.undecided + self.unjudged,
            ),
        ];
        match sums.into_iter().find(|(_, left, right)| left != right) {
            None => Ok(()),
            Some((sum, left, right)) => {
                Err(format!("inconsistent accounts: expected {sum}, found {left} and {right}"))
            }
        }
    }
}

/// Codes below this are counted in an array, which covers all named codes.
const COMMON_END: usize = 512;

/// The number of answers with each response code.
#[derive(Clone, PartialEq, Eq)]
pub struct Codes {
    common: Box<[u64; COMMON_END]>,
    /// At most [`OTHERS_MAX`](Self::OTHERS_MAX) different ones.
    others: BTreeMap<i32, u64>,
}

impl fmt::Debug for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Default for Codes {
    fn default() -> Self {
        Self { common: Box::new([0; COMMON_END]), others: BTreeMap::new() }
    }
}

impl Codes {
    /// Maximum number of unnamed codes with a count of their own; a server may send any number.
    pub const OTHERS_MAX: usize = 64;
    /// The key that counts all further codes.
    pub const OVERFLOW: i32 = i32::MIN;

    /// Counts one.
    #[inline]
    pub fn count(&mut self, code: i32) {
        match usize::try_from(code).ok().and_then(|code| self.common.get_mut(code)) {
            Some(count) => *count += 1,
            None => self.add_other(code, 1),
        }
    }

    fn add_other(&mut self, code: i32, count: u64) {
        let known = self.others.contains_key(&code) || self.others.len() < Self::OTHERS_MAX;
        *self.others.entry(if known { code } else { Self::OVERFLOW }).or_default() += count;
    }

    /// The codes received, each with its count, in order.
    pub fn iter(&self) -> impl Iterator<Item = (i32, u64)> {
        let common = (0..).zip(*self.common).filter(|&(_, count)| count > 0);
        let (negative, large) = (self.others.range(..0), self.others.range(0..));
        let copied = |(&code, &count): (&i32, &u64)| (code, count);
        negative.map(copied).chain(common).chain(large.map(copied))
    }

    /// The total count.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }

    /// Adds the counts of another thread.
    pub fn add(&mut self, other: &Self) {
        for (code, count) in other.iter() {
            match usize::try_from(code).ok().and_then(|code| self.common.get_mut(code)) {
                Some(sum) => *sum += count,
                None => self.add_other(code, count),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_counted_within_bounds() {
        let mut codes = Codes::default();
        for code in [1, 1, 100, 511, 512, -1] {
            codes.count(code);
        }
        assert_eq!(codes.iter().collect::<Vec<_>>(), [(-1, 1), (1, 2), (100, 1), (511, 1), (512, 1)]);
        for code in 1000..2000 {
            codes.count(code);
        }
        assert_eq!(codes.sum(), 1006);
        assert!(codes.others.len() <= Codes::OTHERS_MAX + 1);
        let mut twice = codes.clone();
        twice.add(&codes);
        assert_eq!(twice.sum(), 2012);
    }

    #[test]
    fn names_the_sum_that_does_not_hold() {
        let counts = AnswerCounts {
            scheduled: 10,
            sent: 8,
            behind: 1,
            refused: 1,
            lost: 7,
            ..AnswerCounts::default()
        };
        let error = counts.check(false).unwrap_err();
        assert!(error.ends_with("sent = answered + late + duplicate only + lost, found 8 and 7"), "{error}");
    }
}
