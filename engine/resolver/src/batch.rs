//! Answers many requests at once, in stages, so that the cache misses of one request overlap with
//! the work on others.
//!
//! A lookup among millions of records waits twice for memory: for the line of the index, then for
//! the record. A worker that answers one request at a time waits each time. Here all requests of a
//! batch are decoded and their index lines are prefetched; then all lines are read and the records
//! are prefetched; then all records are read. Prefetching only a few requests ahead is slower,
//! because the memory latency is longer than a few replies take.

use crate::answer::{
    AnswerOutcome, KeyBuf, PreparedRequest, RecordLookup, RecordQuestion, answer_request, prepare,
};
use crate::fast_path::{FastAnswer, FastRequest};
use crate::request::{ParsedRequest, UndecidableMessage};
use crate::service::AnswerContext;
use crate::slow::SlowPathRequest;
use arrayvec::ArrayVec;
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_snapshot::{CorruptRecord, EncodedRecord, StagedLookup};

/// Requests that are in flight together. With more, their cache lines evict each other.
pub const STAGED_COUNT: usize = 32;

/// Room for the key of any handle that fits into a datagram, with the prefix that may be put before
/// it.
type StagedKey = KeyBuf<UDP_MESSAGE_LEN_MAX>;

/// Room for the keys of a batch. It is kept between batches because clearing it costs more than
/// using it.
pub struct Scratch {
    keys: [StagedKey; STAGED_COUNT],
}

impl Scratch {
    /// Empty room.
    #[must_use]
    pub const fn new() -> Self {
        Self { keys: [const { StagedKey::new() }; STAGED_COUNT] }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// The outcome of a request in a batch.
#[derive(Clone, Copy, Debug)]
pub enum InBatch<'a> {
    /// The answer that nearly every request gets: send it.
    Fast(FastAnswer<'a>),
    /// Any other outcome.
    Other(AnswerOutcome<'a>),
}

/// Answers whole messages, each with its envelope, as [`answer_message`](crate::answer_message)
/// does: the messages of one receive from a stream. Positions are as in [`answer_batch`].
pub fn answer_messages<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    scratch: &mut Scratch,
    messages: impl IntoIterator<Item = &'a [u8]>,
    sink: impl FnMut(usize, &InBatch<'a>),
) {
    answer_staged(context, scratch, messages, ParsedRequest::from_stream, sink);
}

/// Answers datagrams as [`answer`](crate::answer()) does, and passes each outcome to `sink` with
/// the position of its datagram. Requests that need no record come first, so positions are not in
/// order.
pub fn answer_batch<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    scratch: &mut Scratch,
    datagrams: impl IntoIterator<Item = &'a [u8]>,
    sink: impl FnMut(usize, &InBatch<'a>),
) {
    answer_staged(context, scratch, datagrams, ParsedRequest::from_datagram, sink);
}

#[inline(always)]
fn answer_staged<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    scratch: &mut Scratch,
    requests: impl IntoIterator<Item = &'a [u8]>,
    read: impl Fn(&'a [u8]) -> Result<ParsedRequest<'a>, UndecidableMessage>,
    mut sink: impl FnMut(usize, &InBatch<'a>),
) {
    let mut requests = requests.into_iter().enumerate();
    let mut staged: ArrayVec<StagedRequest<'a>, STAGED_COUNT> = ArrayVec::new();
    let mut questions: ArrayVec<RecordQuestion<'a>, STAGED_COUNT> = ArrayVec::new();
    loop {
        staged.clear();
        questions.clear();
        while !staged.is_full()
            && let Some((at, bytes)) = requests.next()
        {
            if bytes.len() > UDP_MESSAGE_LEN_MAX {
                // In a message of a stream the handle may be longer than a staged key. In a
                // datagram such a handle is refused anyway.
                sink(at, &InBatch::Other(answer_request(context, read(bytes))));
                continue;
            }
            let key = &mut scratch.keys[staged.len()];
            if let Some(asked) = FastRequest::read(bytes)
                && context.service.has(asked.handle())
                && key.write(asked.handle(), context.records.folds())
            {
                let hash = RecordLookup::new(context, key.as_bytes()).hash;
                staged.push(StagedRequest { at, hash, request: Ok(asked) });
                continue;
            }
            match prepare(context, read(bytes), key) {
                PreparedRequest::Done(outcome) => sink(at, &InBatch::Other(outcome)),
                PreparedRequest::Find(question) => {
                    let hash = RecordLookup::new(context, key.as_bytes()).hash;
                    staged.push(StagedRequest { at, hash, request: Err(questions.len()) });
                    questions.push(question);
                }
            }
        }
        // All records are prefetched at once, because each prefetch waits for the page tables and
        // delays the work behind it.
        for one in &staged {
            context.records.prefetch_index(one.hash);
        }
        let mut lookups = [StagedLookup::default(); STAGED_COUNT];
        for (one, lookup) in staged.iter().zip(&mut lookups) {
            *lookup = context.records.probe(one.hash);
            context.records.prefetch_record(*lookup);
        }
        for ((one, lookup), key) in staged.iter().zip(&lookups).zip(&scratch.keys) {
            let found = context.records.resolve(*lookup, one.hash, key.as_bytes());
            let lookup = RecordLookup::hashed(key.as_bytes(), one.hash);
            match one.request {
                Ok(asked) => match answer_fast(context, asked, &found) {
                    Some(usual) => sink(one.at, &InBatch::Fast(usual)),
                    None => sink(one.at, &InBatch::Other(answer_other(context, asked, &lookup, found))),
                },
                Err(question) => {
                    let question = &questions[question];
                    let mut outcome = InBatch::Other(AnswerOutcome::Reply(question.success(context)));
                    if let InBatch::Other(AnswerOutcome::Reply(reply)) = &mut outcome
                        && question.answer_into(context, &lookup, found, reply)
                    {
                        outcome =
                            InBatch::Other(AnswerOutcome::Slow(SlowPathRequest::template(&question.request)));
                    } else if question.request.is_in_session(&context.service)
                        && let InBatch::Other(AnswerOutcome::Reply(reply)) = outcome
                    {
                        outcome = InBatch::Other(AnswerOutcome::InSession(reply));
                    }
                    sink(one.at, &outcome);
                }
            }
        }
        if !staged.is_full() {
            return;
        }
    }
}

#[inline]
fn answer_fast<'a, B>(
    context: &AnswerContext<'a, B>,
    asked: FastRequest<'a>,
    found: &Result<Option<EncodedRecord<'a>>, CorruptRecord>,
) -> Option<FastAnswer<'a>> {
    match found {
        Ok(Some(record)) => asked.answer(record, &context.service, context.now_unix_s),
        _ => None,
    }
}

/// Answers a request of the fast path that has another answer than a [`FastAnswer`].
#[inline(never)]
fn answer_other<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    asked: FastRequest<'a>,
    lookup: &RecordLookup<'_>,
    found: Result<Option<EncodedRecord<'a>>, CorruptRecord>,
) -> AnswerOutcome<'a> {
    match ParsedRequest::from_stream(asked.bytes()) {
        Ok(request) => RecordQuestion { request, query: asked.query() }.outcome(context, lookup, found),
        // Unreachable: a fast request can always be parsed.
        refused => answer_request(context, refused),
    }
}

/// A request between two stages.
struct StagedRequest<'a> {
    at: usize,
    hash: u64,
    /// A fast request, or the position of its question among the questions of the batch.
    request: Result<FastRequest<'a>, usize>,
}
