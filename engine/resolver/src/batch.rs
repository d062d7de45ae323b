//! Many requests at once, in stages, so that the misses of one cover the work on another.
//!
//! A lookup among millions of records waits twice for memory: for the line of the index, then for the
//! record. With one request at a time the worker waits with it. Here every request of a batch is
//! decoded and its index line asked for; then every line is read and its record asked for; then
//! every record is read. To ask for records only some requests ahead of the one that is answered was
//! tried, and is slower: memory is further away than a few replies.

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

/// Requests that are in flight together. More would only push each other out of the cache.
pub const STAGED_COUNT: usize = 32;

/// Any handle in a datagram fits, with what may be put in front of it.
type StagedKey = KeyBuf<UDP_MESSAGE_LEN_MAX>;

/// Room for the keys of a batch; kept between batches, for the room costs more to clear than to use.
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

/// What becomes of a request in a batch.
#[derive(Clone, Copy, Debug)]
pub enum InBatch<'a> {
    /// What nearly every answer is goes back.
    Fast(FastAnswer<'a>),
    /// Anything, the like of it included.
    Other(AnswerOutcome<'a>),
}

/// Answers whole messages, each with its envelope, as [`answer_message`](crate::answer_message) does: those of
/// one receive from a stream. Positions are as with [`answer_batch`].
pub fn answer_messages<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    scratch: &mut Scratch,
    messages: impl IntoIterator<Item = &'a [u8]>,
    sink: impl FnMut(usize, &InBatch<'a>),
) {
    answer_staged(context, scratch, messages, ParsedRequest::from_stream, sink);
}

/// Answers datagrams as [`answer`](crate::answer()) does, and hands each outcome to `sink` with the position
/// of its datagram. What needs no record comes first, so positions are not in order.
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
                // Its handle may be longer than a staged key. In a datagram it is refused anyway.
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
        // All at once, because each waits for the page tables, and what is behind it for long.
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

/// A usual request with another answer.
#[inline(never)]
fn answer_other<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    asked: FastRequest<'a>,
    lookup: &RecordLookup<'_>,
    found: Result<Option<EncodedRecord<'a>>, CorruptRecord>,
) -> AnswerOutcome<'a> {
    match ParsedRequest::from_stream(asked.bytes()) {
        Ok(request) => RecordQuestion { request, query: asked.query() }.outcome(context, lookup, found),
        // Never: what is usual can be read.
        refused => answer_request(context, refused),
    }
}

/// A request between two stages.
struct StagedRequest<'a> {
    at: usize,
    hash: u64,
    /// A usual request, or the position of the question among those of the batch.
    request: Result<FastRequest<'a>, usize>,
}
