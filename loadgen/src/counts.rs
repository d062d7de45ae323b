//! Every request and every answer, counted once.

use std::collections::BTreeMap;
use std::fmt;

/// What became of all requests, and of all that came back.
///
/// [`check`](Self::check) says which sums hold. `lost` and `sent` are counted on different ways, so
/// that the sums are a test and not a definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerCounts {
    /// Requests of the schedule; in a closed loop, those that were handed to the kernel.
    pub scheduled: u64,
    /// Requests that the kernel took.
    pub sent: u64,
    /// Requests that were due, but not handed to the kernel before the run was over.
    pub behind: u64,
    /// Requests that the kernel refused.
    pub refused: u64,
    /// Requests that were dropped because the send queue stayed full.
    pub blocked: u64,
    /// Requests with an answer within the timeout.
    pub answered: u64,
    /// Requests with an answer after it.
    pub late: u64,
    /// Requests without a whole answer, of which pieces came again in place of what was missing.
    pub duplicate_only: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Answers in time, by response code.
    pub codes: Codes,
    /// Answers in time that are for a request of ours, but cannot be read.
    pub malformed: u64,
    /// Answers in time of which the end is missing: shorter than they say themselves.
    pub truncated: u64,
    /// Answers to requests that had been answered before.
    pub duplicates: u64,
    /// Datagrams that answer no request: unknown id, other sender, or too short for an id.
    pub unmatched: u64,
    /// Datagrams received, whatever they are.
    pub datagrams: u64,
    /// Fragments that came again before their answer was complete.
    pub fragment_duplicates: u64,
    /// Incomplete answers that were waited for and had to make room for others.
    pub fragments_dropped: u64,
    /// Answers, in time or late, that are what the set holds.
    pub verified: u64,
    /// Answers, in time or late, that are not.
    pub mismatched: u64,
    /// Answers, in time or late, of which we cannot know: a set came and went unseen.
    pub undecided: u64,
    /// Answers, in time or late, that were not looked at, because only a sample is.
    pub unjudged: u64,
    /// Received datagrams that the kernel dropped because we were too slow to take them.
    pub kernel_drops: u64,
}

impl AnswerCounts {
    /// Requests that were due and not sent, for whatever reason.
    #[must_use]
    pub const fn not_sent(&self) -> u64 {
        self.behind + self.refused + self.blocked
    }

    /// Adds the counts of another thread.
    pub fn add(&mut self, other: &Self) {
        // All fields by name, so that a new one cannot be forgotten.
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

    /// Whether the sums hold at the end of a run. `verify` says whether answers were verified.
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
                Err(format!("the accounts do not add up: {sum}, but {left} is not {right}"))
            }
        }
    }
}

/// Codes below this are counted in an array; all that have a name are.
const COMMON_END: usize = 512;

/// How often each response code came.
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
    /// Most codes without a name that are told apart; a server may make up as many as it likes.
    pub const OTHERS_MAX: usize = 64;
    /// Under which further ones are counted.
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

    /// The codes that came, each with its count, in order.
    pub fn iter(&self) -> impl Iterator<Item = (i32, u64)> {
        let common = (0..).zip(*self.common).filter(|&(_, count)| count > 0);
        let (negative, large) = (self.others.range(..0), self.others.range(0..));
        let copied = |(&code, &count): (&i32, &u64)| (code, count);
        negative.map(copied).chain(common).chain(large.map(copied))
    }

    /// How many came in all.
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
        assert!(error.ends_with("sent = answered + late + duplicate only + lost, but 8 is not 7"), "{error}");
    }
}
