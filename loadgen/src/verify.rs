//! Whether an answer is what the published set holds, also while the set changes.
//!
//! A server may answer from any set that was current at some time between the moment the request was
//! sent, less the staleness we allow, and the moment the answer came. A set is current from when its
//! manifest was made until its successor was in place: both ends are taken so that a right answer is
//! never called wrong. The staleness of what was accepted is measured and reported.
//!
//! An answer may come from a set that we have not seen yet. So one that fits no known set is kept until
//! the directory has been looked at once more, and judged then.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use handle_proto::wire::Message;
use handle_proto::wire::cursor::Cursor;
use handle_proto::{Field, Handle, ResponseCode};
use serde::Serialize;

use crate::counts::Counts;

/// What a set says about a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held<'a> {
    /// The values anyone may read, in wire form.
    Values {
        /// How many.
        count: u32,
        /// One after the other.
        bytes: &'a [u8],
    },
    /// The handle exists, but has no value that anyone may read.
    NothingPublic,
    /// There is no such handle.
    Absent,
    /// There is no such handle, and its prefix is not homed here: somebody else may have it.
    Elsewhere,
}

/// One published set, or something that stands for it.
pub trait Source: Send + Sync + fmt::Debug {
    /// What it says about `handle`; an error where it is damaged.
    ///
    /// # Errors
    ///
    /// What is damaged.
    fn held(&self, handle: &[u8]) -> Result<Held<'_>, String>;
}

/// A set, and when it was current. Times are nanoseconds from the start of the run.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Its number in the manifest.
    pub number: u64,
    /// When it was made: it cannot have been answered from before.
    pub from_ns: i64,
    /// When its successor was in place; [`i64::MAX`] while it is current.
    pub until_ns: i64,
    /// `None` when it came and went before we could open it.
    pub source: Option<Arc<dyn Source>>,
}

/// The sets of the recent past, newest first.
#[derive(Clone, Debug, Default)]
pub struct Timeline(Vec<Generation>);

/// Most sets that are remembered, however fast they follow each other.
pub const GENERATIONS_MAX: usize = 1024;

impl Timeline {
    /// A single set that was always there.
    pub fn fixed(source: Arc<dyn Source>) -> Self {
        Self(vec![Generation { number: 0, from_ns: i64::MIN, until_ns: i64::MAX, source: Some(source) }])
    }

    /// The newest set.
    #[must_use]
    pub fn newest(&self) -> Option<&Generation> {
        self.0.first()
    }

    /// Adds a newer set, which took the place of the newest at `published_ns`, and forgets those that
    /// were replaced before `forget_ns`.
    pub fn publish(&mut self, generation: Generation, published_ns: i64, forget_ns: i64) {
        if let Some(newest) = self.0.first_mut() {
            newest.until_ns = published_ns;
        }
        self.0.retain(|old| old.until_ns >= forget_ns);
        self.0.truncate(GENERATIONS_MAX - 1);
        self.0.insert(0, generation);
    }

    /// Judges an answer: `message` is all of it but the envelope.
    fn judge(&self, asked: &Asked<'_>, message: &[u8], staleness_ns: i64) -> Verdict {
        let Ok(message) = Message::decode(message) else {
            return Verdict::Mismatch(Difference::Unreadable, 0);
        };
        let oldest_ns = asked.sent_ns.saturating_sub(staleness_ns);
        let (mut missed, mut first) = (false, None);
        for generation in self.0.iter().filter(|set| set.from_ns <= asked.received_ns) {
            let in_time = generation.until_ns >= oldest_ns;
            let Some(source) = &generation.source else {
                missed |= in_time;
                continue;
            };
            match compare(asked.handle, &message, &**source) {
                Ok(()) if in_time => {
                    let stale_ns = asked.sent_ns.saturating_sub(generation.until_ns).max(0);
                    return Verdict::Match { stale_ns };
                }
                Ok(()) => {
                    let stale_ms = asked.sent_ns.saturating_sub(generation.until_ns) / 1_000_000;
                    first = Some((Difference::Stale { stale_ms }, generation.number));
                    break;
                }
                Err(difference) if in_time && first.is_none() => {
                    first = Some((difference, generation.number))
                }
                Err(_) => {}
            }
        }
        match first {
            Some((difference, number)) if !missed => Verdict::Mismatch(difference, number),
            _ => Verdict::Undecided,
        }
    }

    fn held_by(&self, number: u64, handle: &[u8]) -> Option<Held<'_>> {
        let generation = self.0.iter().find(|generation| generation.number == number)?;
        generation.source.as_ref()?.held(handle).ok()
    }
}

#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    handle: &'a [u8],
    request_id: i32,
    sent_ns: i64,
    received_ns: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It equals a set that was replaced so long before the request was sent.
    Match {
        stale_ns: i64,
    },
    /// How it differs from the newest set that it could be from, and which that is.
    Mismatch(Difference, u64),
    Undecided,
}

/// How an answer differs from what the set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// It does not decode.
    Unreadable,
    /// It has another response code.
    Code {
        /// What came.
        got: ResponseCode,
        /// What should have come.
        want: ResponseCode,
    },
    /// It does not repeat the handle as it was spelt.
    Handle,
    /// It has another number of values.
    Count {
        /// What came.
        got: u32,
        /// What should have come.
        want: u32,
    },
    /// The values differ.
    Values {
        /// First byte that differs, from the first value on.
        at: usize,
    },
    /// It equals a set that was replaced longer ago than is allowed.
    Stale {
        /// How long before the request was sent.
        stale_ms: i64,
    },
    /// The set cannot be read.
    SetDamaged,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => f.write_str("the answer does not decode"),
            Self::Code { got, want } => write!(f, "response code is {got:?}, should be {want:?}"),
            Self::Handle => f.write_str("the answer is for another handle, or spells it differently"),
            Self::Count { got, want } => write!(f, "{got} values, should be {want}"),
            Self::Values { at } => write!(f, "the values differ from byte {at} on"),
            Self::Stale { stale_ms } => {
                write!(f, "from a set that had been replaced {stale_ms} ms before the request was sent")
            }
            Self::SetDamaged => f.write_str("the record in the set is damaged"),
        }
    }
}

/// Compares an answer with what one set holds.
fn compare(handle: &[u8], message: &Message<'_>, source: &dyn Source) -> Result<(), Difference> {
    let got = message.header.response_code;
    let code = |want| if got == want { Ok(()) } else { Err(Difference::Code { got, want }) };
    let (count, bytes) = match source.held(handle).map_err(|_| Difference::SetDamaged)? {
        Held::Values { count, bytes } => (count, bytes),
        Held::NothingPublic => return code(ResponseCode::VALUES_NOT_FOUND),
        // Instead of saying that the record of a prefix is not there, a server may say who has it.
        Held::Absent | Held::Elsewhere
            if got == ResponseCode::PREFIX_REFERRAL && Handle(handle).is_prefix_record() =>
        {
            return Ok(());
        }
        Held::Absent => return code(ResponseCode::HANDLE_NOT_FOUND),
        Held::Elsewhere => return code(ResponseCode::SERVER_NOT_RESPONSIBLE),
    };
    code(ResponseCode::SUCCESS)?;
    let mut cursor = Cursor::new(message.body);
    let echo = cursor.string(Field::Handle).map_err(|_| Difference::Unreadable)?;
    let got_count = cursor.u32(Field::Values).map_err(|_| Difference::Unreadable)?;
    if echo != handle {
        return Err(Difference::Handle);
    }
    if got_count != count {
        return Err(Difference::Count { got: got_count, want: count });
    }
    let values = cursor.rest();
    if values != bytes {
        let same = values.iter().zip(bytes).take_while(|(got, want)| got == want).count();
        return Err(Difference::Values { at: same });
    }
    Ok(())
}

/// The timeline that is shared by the thread that watches a directory and those that verify.
#[derive(Debug)]
pub struct Watch {
    timeline: Mutex<Arc<Timeline>>,
    version: AtomicU64,
    /// Everything that was published before is in the timeline.
    complete_ns: AtomicI64,
}

impl Watch {
    /// Starts with `timeline`, complete up to `complete_ns`; with [`i64::MAX`], for ever.
    pub fn new(timeline: Timeline, complete_ns: i64) -> Self {
        let timeline = Mutex::new(Arc::new(timeline));
        Self { timeline, version: AtomicU64::new(0), complete_ns: AtomicI64::new(complete_ns) }
    }

    /// A single set that was always there and stays.
    pub fn fixed(source: Arc<dyn Source>) -> Self {
        Self::new(Timeline::fixed(source), i64::MAX)
    }

    /// Replaces the timeline.
    pub fn update(&self, timeline: Timeline) {
        *self.timeline.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(timeline);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Says that everything that was published before `complete_ns` is in the timeline.
    pub fn set_complete(&self, complete_ns: i64) {
        self.complete_ns.store(complete_ns, Ordering::Release);
    }

    /// Up to when the timeline is complete.
    pub fn complete_ns(&self) -> i64 {
        self.complete_ns.load(Ordering::Acquire)
    }

    /// The timeline as it is now.
    pub fn timeline(&self) -> Arc<Timeline> {
        Arc::clone(&self.timeline.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One answer that was not what the set holds, for people to look at.
#[derive(Clone, Debug, Serialize)]
pub struct Mismatch {
    /// The handle that was asked for.
    pub handle: String,
    /// The id of the request.
    pub request_id: i32,
    /// When it was sent, nanoseconds from the start of the run.
    pub sent_ns: i64,
    /// When the answer came.
    pub received_ns: i64,
    /// What is wrong.
    pub difference: String,
    /// The set it was compared with.
    pub generation: u64,
    /// The answer without its envelope, at most [`HEX_LEN_MAX`] bytes of it.
    pub answer_hex: String,
    /// The values that should have come, at most as many bytes.
    pub expected_values_hex: String,
}

/// Most bytes of an answer that are kept for people to look at.
pub const HEX_LEN_MAX: usize = 4096;
/// Most mismatches that each thread, and the report, keep.
pub const MISMATCHES_MAX: usize = 8;

/// Answers of one thread that wait for the directory to be looked at, at most.
const PENDING_MAX: usize = 4096;
/// Bytes of them, at most.
const PENDING_LEN_MAX: usize = 16 << 20;

#[derive(Debug)]
struct Pending {
    handle: Box<[u8]>,
    message: Box<[u8]>,
    request_id: i32,
    sent_ns: i64,
    received_ns: i64,
}

/// Judges the answers of one thread.
#[derive(Debug)]
pub struct Verifier {
    watch: Arc<Watch>,
    version: u64,
    timeline: Arc<Timeline>,
    staleness_ns: i64,
    staleness_max_ns: i64,
    pending: VecDeque<Pending>,
    pending_len: usize,
    mismatches: Vec<Mismatch>,
}

impl Verifier {
    /// Judges by what `watch` knows, and allows sets that were replaced `staleness_ns` ago.
    pub fn new(watch: Arc<Watch>, staleness_ns: i64) -> Self {
        let version = watch.version.load(Ordering::Acquire);
        let timeline = watch.timeline();
        Self {
            watch,
            version,
            timeline,
            staleness_ns,
            staleness_max_ns: 0,
            pending: VecDeque::new(),
            pending_len: 0,
            mismatches: Vec::new(),
        }
    }

    /// Takes what is new about the sets, and judges what waited for it. Cheap when nothing is new.
    pub fn refresh(&mut self, counts: &mut Counts) {
        // Read before the timeline: what it promises must be in what we then judge by.
        let complete_ns = self.watch.complete_ns();
        let version = self.watch.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.timeline = self.watch.timeline();
        }
        while self.pending.front().is_some_and(|pending| pending.received_ns < complete_ns) {
            let Some(pending) = self.pending.pop_front() else { break };
            self.pending_len -= pending.message.len();
            let asked = Asked {
                handle: &pending.handle,
                request_id: pending.request_id,
                sent_ns: pending.sent_ns,
                received_ns: pending.received_ns,
            };
            let verdict = self.timeline.judge(&asked, &pending.message, self.staleness_ns);
            self.count(&asked, &pending.message, verdict, counts);
        }
    }

    /// Judges an answer, now or when it can be; `message` is all of it but the envelope.
    pub fn judge(
        &mut self,
        handle: &[u8],
        request_id: i32,
        times_ns: (i64, i64),
        message: &[u8],
        counts: &mut Counts,
    ) {
        let (sent_ns, received_ns) = times_ns;
        let asked = Asked { handle, request_id, sent_ns, received_ns };
        let verdict = self.timeline.judge(&asked, message, self.staleness_ns);
        let final_ = matches!(verdict, Verdict::Match { .. }) || received_ns < self.watch.complete_ns();
        if final_ && self.version == self.watch.version.load(Ordering::Acquire) {
            self.count(&asked, message, verdict, counts);
        } else if self.pending.len() < PENDING_MAX && self.pending_len + message.len() <= PENDING_LEN_MAX {
            self.pending_len += message.len();
            let (handle, message) = (handle.into(), message.into());
            self.pending.push_back(Pending { handle, message, request_id, sent_ns, received_ns });
        } else {
            counts.undecided += 1;
        }
    }

    /// Whether all answers have been judged.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// Gives up on what still waits; returns the kept mismatches and the longest accepted staleness.
    pub fn finish(mut self, counts: &mut Counts) -> (Vec<Mismatch>, i64) {
        self.refresh(counts);
        counts.undecided += self.pending.len() as u64;
        (self.mismatches, self.staleness_max_ns)
    }

    fn count(&mut self, asked: &Asked<'_>, message: &[u8], verdict: Verdict, counts: &mut Counts) {
        match verdict {
            Verdict::Match { stale_ns } => {
                counts.verified += 1;
                self.staleness_max_ns = self.staleness_max_ns.max(stale_ns);
            }
            Verdict::Undecided => counts.undecided += 1,
            Verdict::Mismatch(difference, generation) => {
                counts.mismatched += 1;
                if self.mismatches.len() < MISMATCHES_MAX {
                    let expected = match self.timeline.held_by(generation, asked.handle) {
                        Some(Held::Values { bytes, .. }) => bytes,
                        _ => &[],
                    };
                    self.mismatches.push(Mismatch {
                        handle: Handle(asked.handle).to_string(),
                        request_id: asked.request_id,
                        sent_ns: asked.sent_ns,
                        received_ns: asked.received_ns,
                        difference: difference.to_string(),
                        generation,
                        answer_hex: hex(message),
                        expected_values_hex: hex(expected),
                    });
                }
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&bytes[..bytes.len().min(HEX_LEN_MAX)])
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
