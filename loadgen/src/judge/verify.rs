//! Verifies that an answer matches the published set, also while the set changes.
//!
//! A server may answer from any set that was current at some time between the send time of the
//! request, less the permitted staleness, and the receive time of the answer. A set is current from
//! the creation of its manifest until its successor is in place; both ends are chosen so that a
//! right answer never counts as wrong. The staleness of accepted answers is measured and reported.
//!
//! An answer may come from a set that has not been seen yet. An answer that matches no known set is
//! therefore kept until the directory has been checked once more, and judged then.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use handle_auth::PublicKey;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Message};
use handle_proto::{Handle, OpFlags};
use serde::{Deserialize, Serialize};

use crate::judge::counts::AnswerCounts;
pub use crate::judge::expect::{AnswerDifference, AnsweredQuestion, ContentSource, SetContent};
use crate::judge::expect::{ExpectedAnswer, check_signature, compare};
use crate::judge::redirect;
use crate::load::question::{GeneratedQuestion, request_head};

/// A set, and when it was current. Times are nanoseconds from the start of the run.
#[derive(Clone, Debug)]
pub struct SetGeneration {
    /// Its generation in the manifest.
    pub number: u64,
    /// Creation time: no earlier answer can come from it.
    pub from_ns: i64,
    /// When its successor was in place; [`i64::MAX`] while it is current.
    pub until_ns: i64,
    /// `None` if it was replaced before it could be opened.
    pub source: Option<Arc<dyn ContentSource>>,
}

/// The sets of the recent past, newest first.
#[derive(Clone, Debug, Default)]
pub struct Timeline(Vec<SetGeneration>);

/// Maximum number of sets kept, however fast they are published.
pub const GENERATIONS_MAX: usize = 1024;

impl Timeline {
    /// A single set that is always current.
    pub fn fixed(source: Arc<dyn ContentSource>) -> Self {
        Self(vec![SetGeneration { number: 0, from_ns: i64::MIN, until_ns: i64::MAX, source: Some(source) }])
    }

    /// The newest set.
    #[must_use]
    pub fn newest(&self) -> Option<&SetGeneration> {
        self.0.first()
    }

    /// Adds a newer set, which replaced the newest at `published_ns`, and drops those that were
    /// replaced before `forget_ns`.
    pub fn publish(&mut self, generation: SetGeneration, published_ns: i64, forget_ns: i64) {
        if let Some(newest) = self.0.first_mut() {
            newest.until_ns = published_ns;
        }
        self.0.retain(|old| old.until_ns >= forget_ns);
        self.0.truncate(GENERATIONS_MAX - 1);
        self.0.insert(0, generation);
    }

    /// Judges an answer.
    fn judge(&self, timed_answer: &TimedAnswer<'_>, rules: &VerifyRules) -> AnswerVerdict {
        let Ok(message) = Message::decode(timed_answer.answered.message) else {
            return AnswerVerdict::Mismatch(AnswerDifference::Unreadable, 0);
        };
        let number = self.newest().map_or(0, |newest| newest.number);
        if let Some(Err(difference)) =
            rules.key.as_ref().map(|key| check_signature(&timed_answer.answered, &message, key))
        {
            return AnswerVerdict::Mismatch(difference, number);
        }
        let oldest_ns = timed_answer.sent_ns.saturating_sub(rules.staleness_ns);
        let (mut missed, mut first) = (false, None);
        for generation in self.0.iter().filter(|set| set.from_ns <= timed_answer.received_ns) {
            let in_time = generation.until_ns >= oldest_ns;
            let Some(source) = &generation.source else {
                missed |= in_time;
                continue;
            };
            let compared = match rules.form {
                AnswerForm::Record => compare(&timed_answer.answered, &message, &**source),
                AnswerForm::Redirect => {
                    redirect::compare(timed_answer.answered.question, &message, &**source)
                }
            };
            match compared {
                Ok(()) if in_time => {
                    let stale_ns = timed_answer.sent_ns.saturating_sub(generation.until_ns).max(0);
                    return AnswerVerdict::Match { stale_ns };
                }
                Ok(()) => {
                    let stale_ms = timed_answer.sent_ns.saturating_sub(generation.until_ns) / 1_000_000;
                    first = Some((AnswerDifference::Stale { stale_ms }, generation.number));
                    break;
                }
                Err(AnswerDifference::Unknown) => missed |= in_time,
                Err(difference) if in_time && first.is_none() => {
                    first = Some((difference, generation.number))
                }
                Err(_) => {}
            }
        }
        match first {
            Some((difference, number)) if !missed => AnswerVerdict::Mismatch(difference, number),
            _ => AnswerVerdict::Undecided,
        }
    }

    fn expected_by(&self, number: u64, question: &GeneratedQuestion<'_>) -> Option<ExpectedAnswer> {
        let generation = self.0.iter().find(|generation| generation.number == number)?;
        ExpectedAnswer::of(question, &**generation.source.as_ref()?)
    }
}

/// What answers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerForm {
    /// Records.
    #[default]
    Record,
    /// Redirects of a proxy, in messages that stand for them.
    Redirect,
}

/// The rules for judging answers besides the sets.
#[derive(Clone, Debug)]
pub struct VerifyRules {
    /// Permitted staleness: how long ago a set may have been replaced.
    pub staleness_ns: i64,
    /// One of this many answers is judged.
    pub every: u32,
    /// Maximum number of mismatches that are kept.
    pub keep: usize,
    /// The key that must verify requested signatures.
    pub key: Option<Arc<PublicKey>>,
    /// What answers are.
    pub form: AnswerForm,
}

impl VerifyRules {
    /// Judges all answers, with a permitted staleness of `staleness_ns`.
    #[must_use]
    pub const fn new(staleness_ns: i64) -> Self {
        Self { staleness_ns, every: 1, keep: MISMATCHES_MAX, key: None, form: AnswerForm::Record }
    }
}

#[derive(Clone, Copy, Debug)]
struct TimedAnswer<'a> {
    answered: AnsweredQuestion<'a>,
    sent_ns: i64,
    received_ns: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerVerdict {
    /// It matches a set that was replaced this long before the request was sent.
    Match {
        stale_ns: i64,
    },
    /// How it differs from the newest possible set, and which set that is.
    Mismatch(AnswerDifference, u64),
    Undecided,
}

/// The timeline, shared by the thread that follows a directory and those that verify.
#[derive(Debug)]
pub struct SharedTimeline {
    timeline: Mutex<Arc<Timeline>>,
    version: AtomicU64,
    /// The timeline has all sets published before this time.
    complete_ns: AtomicI64,
}

impl SharedTimeline {
    /// Starts with `timeline`, complete up to `complete_ns`; with [`i64::MAX`], forever.
    pub fn new(timeline: Timeline, complete_ns: i64) -> Self {
        let timeline = Mutex::new(Arc::new(timeline));
        Self { timeline, version: AtomicU64::new(0), complete_ns: AtomicI64::new(complete_ns) }
    }

    /// A single set that is always current.
    pub fn fixed(source: Arc<dyn ContentSource>) -> Self {
        Self::new(Timeline::fixed(source), i64::MAX)
    }

    /// Replaces the timeline.
    pub fn update(&self, timeline: Timeline) {
        *self.timeline.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(timeline);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Marks the timeline as complete up to `complete_ns`.
    pub fn set_complete(&self, complete_ns: i64) {
        self.complete_ns.store(complete_ns, Ordering::Release);
    }

    /// The time up to which the timeline is complete.
    pub fn complete_ns(&self) -> i64 {
        self.complete_ns.load(Ordering::Acquire)
    }

    /// The current timeline.
    pub fn timeline(&self) -> Arc<Timeline> {
        Arc::clone(&self.timeline.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An answer that does not match, for inspection and for sending again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mismatch {
    /// The requested handle.
    pub handle: String,
    /// The id of the request.
    pub request_id: i32,
    /// When it was sent, nanoseconds from the start of the run.
    pub sent_ns: i64,
    /// When the answer came.
    pub received_ns: i64,
    /// What is wrong.
    pub difference: String,
    /// The set that it was compared with.
    pub generation: u64,
    /// A request with the same question.
    pub request_hex: String,
    /// The answer without its envelope, at most [`HEX_LEN_MAX`] bytes of it.
    pub answer_hex: String,
    /// The expected response code; `None` if code and values alone do not make an answer right, as
    /// with a missing signature.
    #[serde(default)]
    pub expected_code: Option<i32>,
    /// The expected number of values.
    #[serde(default)]
    pub expected_count: u32,
    /// All expected values.
    pub expected_values_hex: String,
}

/// Maximum number of bytes of an answer that are kept.
pub const HEX_LEN_MAX: usize = 4096;
/// Default of the maximum number of mismatches that each thread, and the report, keep.
pub const MISMATCHES_MAX: usize = 8;

/// Maximum number of answers of one thread that wait for the next check of the directory.
const PENDING_MAX: usize = 4096;
/// Maximum number of bytes of these answers.
const PENDING_LEN_MAX: usize = 16 << 20;

#[derive(Debug)]
struct DeferredAnswer {
    handle: Box<[u8]>,
    indexes: Box<[[u8; 4]]>,
    types_count: usize,
    types: Box<[u8]>,
    flags: OpFlags,
    envelope: Envelope,
    message: Box<[u8]>,
    sent_ns: i64,
    received_ns: i64,
}

impl DeferredAnswer {
    fn new(timed_answer: &TimedAnswer<'_>) -> Self {
        let AnsweredQuestion { question, envelope, message } = timed_answer.answered;
        Self {
            handle: question.handle.into(),
            indexes: question.indexes.iter().map(i32::to_be_bytes).collect(),
            types_count: question.types.len(),
            types: question.types.as_bytes().into(),
            flags: question.flags,
            envelope: *envelope,
            message: message.into(),
            sent_ns: timed_answer.sent_ns,
            received_ns: timed_answer.received_ns,
        }
    }

    fn question(&self) -> GeneratedQuestion<'_> {
        GeneratedQuestion {
            handle: &self.handle,
            indexes: Indexes::new(&self.indexes),
            types: Strings::from_encoded(self.types_count, &self.types).unwrap_or(Strings::EMPTY),
            flags: self.flags,
        }
    }
}

/// Judges the answers of one thread.
#[derive(Debug)]
pub struct AnswerVerifier {
    shared_timeline: Arc<SharedTimeline>,
    version: u64,
    timeline: Arc<Timeline>,
    rules: VerifyRules,
    /// Number of answers to skip until the next one is judged.
    skip: u32,
    staleness_max_ns: i64,
    pending: VecDeque<DeferredAnswer>,
    pending_len: usize,
    mismatches: Vec<Mismatch>,
}

impl AnswerVerifier {
    /// Judges by the timeline in `watch`.
    pub fn new(watch: Arc<SharedTimeline>, rules: VerifyRules) -> Self {
        let version = watch.version.load(Ordering::Acquire);
        let timeline = watch.timeline();
        Self {
            shared_timeline: watch,
            version,
            timeline,
            rules,
            skip: 0,
            staleness_max_ns: 0,
            pending: VecDeque::new(),
            pending_len: 0,
            mismatches: Vec::new(),
        }
    }

    /// Takes news about the sets, and judges the answers that waited for it. Cheap without news.
    pub fn refresh(&mut self, counts: &mut AnswerCounts) {
        // Read before the timeline, so that the timeline has all that this time promises.
        let complete_ns = self.shared_timeline.complete_ns();
        let version = self.shared_timeline.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.timeline = self.shared_timeline.timeline();
        }
        while self.pending.front().is_some_and(|pending| pending.received_ns < complete_ns) {
            let Some(pending) = self.pending.pop_front() else { break };
            self.pending_len -= pending.message.len();
            let (question, envelope) = (pending.question(), pending.envelope);
            let answered =
                AnsweredQuestion { question: &question, envelope: &envelope, message: &pending.message };
            let timed_answer =
                TimedAnswer { answered, sent_ns: pending.sent_ns, received_ns: pending.received_ns };
            let verdict = self.timeline.judge(&timed_answer, &self.rules);
            self.count(&timed_answer, verdict, counts);
        }
    }

    /// Whether the next answer is judged; skipped answers are counted.
    pub fn is_next(&mut self, counts: &mut AnswerCounts) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            counts.unjudged += 1;
            return false;
        }
        self.skip = self.rules.every.saturating_sub(1);
        true
    }

    /// Judges an answer now or as soon as possible. The times are those of its request and its
    /// arrival.
    pub fn judge(
        &mut self,
        answered: AnsweredQuestion<'_>,
        sent_ns: i64,
        received_ns: i64,
        counts: &mut AnswerCounts,
    ) {
        let timed_answer = TimedAnswer { answered, sent_ns, received_ns };
        let verdict = self.timeline.judge(&timed_answer, &self.rules);
        let final_ = matches!(verdict, AnswerVerdict::Match { .. })
            || received_ns < self.shared_timeline.complete_ns();
        let len = answered.message.len();
        if final_ && self.version == self.shared_timeline.version.load(Ordering::Acquire) {
            self.count(&timed_answer, verdict, counts);
        } else if self.pending.len() < PENDING_MAX && self.pending_len + len <= PENDING_LEN_MAX {
            self.pending_len += len;
            self.pending.push_back(DeferredAnswer::new(&timed_answer));
        } else {
            counts.undecided += 1;
        }
    }

    /// Whether all answers have been judged.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// Gives up the answers that still wait; returns the kept mismatches and the longest accepted
    /// staleness.
    pub fn finish(mut self, counts: &mut AnswerCounts) -> (Vec<Mismatch>, i64) {
        self.refresh(counts);
        counts.undecided += self.pending.len() as u64;
        (self.mismatches, self.staleness_max_ns)
    }

    fn count(&mut self, timed_answer: &TimedAnswer<'_>, verdict: AnswerVerdict, counts: &mut AnswerCounts) {
        match verdict {
            AnswerVerdict::Match { stale_ns } => {
                counts.verified += 1;
                self.staleness_max_ns = self.staleness_max_ns.max(stale_ns);
            }
            AnswerVerdict::Undecided => counts.undecided += 1,
            AnswerVerdict::Mismatch(difference, generation) => {
                counts.mismatched += 1;
                if self.mismatches.len() < self.rules.keep {
                    self.mismatches.push(self.mismatch(timed_answer, difference, generation));
                }
            }
        }
    }

    fn mismatch(
        &self,
        timed_answer: &TimedAnswer<'_>,
        difference: AnswerDifference,
        generation: u64,
    ) -> Mismatch {
        let AnsweredQuestion { question, envelope, message } = timed_answer.answered;
        let expected = match difference {
            _ if self.rules.form == AnswerForm::Redirect => None,
            AnswerDifference::Signature | AnswerDifference::Stale { .. } => None,
            _ => self.timeline.expected_by(generation, question),
        };
        Mismatch {
            handle: Handle(question.handle).to_string(),
            request_id: envelope.request_id,
            sent_ns: timed_answer.sent_ns,
            received_ns: timed_answer.received_ns,
            difference: difference.to_string(),
            generation,
            request_hex: data_encoding::HEXLOWER.encode(&request(question, envelope.request_id)),
            answer_hex: hex(message),
            expected_code: expected.as_ref().map(|expected| expected.code.0),
            expected_count: expected.as_ref().map_or(0, |expected| expected.count),
            expected_values_hex: expected
                .map_or_else(String::new, |expected| data_encoding::HEXLOWER.encode(&expected.values)),
        }
    }
}

/// A request with the content of `question`.
pub(crate) fn request(question: &GeneratedQuestion<'_>, request_id: i32) -> Vec<u8> {
    let mut body = Vec::new();
    let GeneratedQuestion { handle, indexes, types, flags } = *question;
    Query { handle, indexes, types }.encode(&mut body);
    let mut bytes = request_head(flags, 0).to_vec();
    let len = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    let message_len = bytes.len() - Envelope::LEN + body.len() + 4;
    bytes[8..12].copy_from_slice(&request_id.to_be_bytes());
    bytes[16..20].copy_from_slice(&len(message_len));
    bytes[40..44].copy_from_slice(&len(body.len()));
    bytes.extend(body);
    bytes.extend([0; 4]);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&bytes[..bytes.len().min(HEX_LEN_MAX)])
}

#[cfg(test)]
pub(crate) mod tests;
