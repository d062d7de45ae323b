//! Answers many requests at once, in stages, so that the cache misses of one request overlap with
//! the work on others.
//!
//! A lookup among millions of records waits twice for memory: for the line of the index, then for
//! the record. A worker that answers one request at a time waits each time. Here all requests of a
//! batch are decoded and their index lines are prefetched; then all lines are read and the records
//! are prefetched; then all records are read. Prefetching only a few requests ahead is slower,
//! because the memory latency is longer than a few replies take.

use crate::answer::{AnswerOutcome, PreparedRequest, answer_request, prepare};
use crate::fast_path::{FastAnswer, FastRequest};
use crate::question::{RecordQuestion, is_homed, is_table_damaged};
use crate::record_key::{KeyBuf, RecordLookup};
use crate::request::{ParsedRequest, UndecidableMessage};
use crate::service::{AnswerContext, CachedLookup, RecordCache, StagedCacheLookup};
use crate::slow::SlowPathRequest;
use arrayvec::ArrayVec;
use handle_proto::Handle;
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_snapshot::{CorruptRecord, EncodedRecord, StagedLookup};

/// Requests that are in flight together. With more, their cache lines evict each other.
pub const STAGED_COUNT: usize = 32;

/// A buffer for the key of any handle that fits into a datagram, with the prefix that may be put
/// before it.
type StagedKey = KeyBuf<UDP_MESSAGE_LEN_MAX>;

/// A buffer for the keys of a batch, kept between batches because clearing it costs more than using
/// it.
pub struct Scratch {
    keys: [StagedKey; STAGED_COUNT],
}

impl Scratch {
    /// An empty buffer.
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
    /// Send this answer, the most frequent kind.
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
    parse: impl Fn(&'a [u8]) -> Result<ParsedRequest<'a>, UndecidableMessage>,
    mut sink: impl FnMut(usize, &InBatch<'a>),
) {
    let mut requests = requests.into_iter().enumerate();
    let mut staged = StagedRequests { requests: ArrayVec::new(), questions: ArrayVec::new() };
    loop {
        staged.requests.clear();
        staged.questions.clear();
        while !staged.requests.is_full()
            && let Some((at, bytes)) = requests.next()
        {
            if let Some(outcome) = staged.add(context, scratch, at, bytes, &parse) {
                sink(at, &InBatch::Other(outcome));
            }
        }
        staged.answer(context, scratch, &mut sink);
        if !staged.requests.is_full() {
            return;
        }
    }
}

/// The requests of one pass through the stages.
struct StagedRequests<'a> {
    requests: ArrayVec<StagedRequest<'a>, STAGED_COUNT>,
    /// The questions of the requests that are not fast requests.
    questions: ArrayVec<RecordQuestion<'a>, STAGED_COUNT>,
}

/// A request between two stages.
struct StagedRequest<'a> {
    at: usize,
    hash: u64,
    /// A fast request, or the position of its question among the questions of the batch.
    request: Result<FastRequest<'a>, usize>,
}

impl<'a> StagedRequests<'a> {
    /// The first stage for request number `at`: decodes it and hashes the key of its record.
    /// Returns its outcome, if it needs no record.
    #[inline(always)]
    fn add<B: AsRef<[u8]>>(
        &mut self,
        context: &AnswerContext<'a, B>,
        scratch: &mut Scratch,
        at: usize,
        bytes: &'a [u8],
        parse: impl Fn(&'a [u8]) -> Result<ParsedRequest<'a>, UndecidableMessage>,
    ) -> Option<AnswerOutcome<'a>> {
        if bytes.len() > UDP_MESSAGE_LEN_MAX {
            // In a message of a stream the handle may be longer than a staged key. In a datagram
            // such a handle is refused anyway.
            return Some(answer_request(context, parse(bytes)));
        }
        let key = &mut scratch.keys[self.requests.len()];
        let fast = FastRequest::read(bytes).filter(|request| context.service.has(request.handle()));
        if let Some(request) = fast
            && context.knows_only_cached()
        {
            // The key is that of another request, and nothing will be found with it.
            self.requests.push(StagedRequest { at, hash: 0, request: Ok(request) });
            return None;
        }
        if let Some(request) = fast
            && key.write(request.handle(), context.records.folds())
        {
            let hash = RecordLookup::new(context, key.as_bytes()).hash;
            self.requests.push(StagedRequest { at, hash, request: Ok(request) });
            return None;
        }
        match prepare(context, parse(bytes), key) {
            PreparedRequest::Done(outcome) => Some(outcome),
            PreparedRequest::Find(question) => {
                let hash = RecordLookup::new(context, key.as_bytes()).hash;
                self.requests.push(StagedRequest { at, hash, request: Err(self.questions.len()) });
                self.questions.push(question);
                None
            }
        }
    }

    /// The later stages: looks the records up and answers the requests.
    #[inline(always)]
    fn answer<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        scratch: &Scratch,
        mut sink: impl FnMut(usize, &InBatch<'a>),
    ) {
        // All records are prefetched at once, because each prefetch waits for the page tables and
        // delays the work behind it.
        for request in &self.requests {
            context.records.prefetch_index(request.hash);
        }
        let mut lookups = [StagedLookup::default(); STAGED_COUNT];
        for (request, lookup) in self.requests.iter().zip(&mut lookups) {
            *lookup = context.records.probe(request.hash);
            context.records.prefetch_record(*lookup);
        }
        if let Some(cached) = context.cached {
            return self.answer_caching(context, cached, &lookups, scratch, sink);
        }
        for ((staged, lookup), key) in self.requests.iter().zip(&lookups).zip(&scratch.keys) {
            let found = context.records.resolve(*lookup, staged.hash, key.as_bytes());
            let lookup = RecordLookup::hashed(key.as_bytes(), staged.hash);
            match staged.request {
                Ok(request) => match answer_fast(context, request, &found) {
                    Some(answer) => sink(staged.at, &InBatch::Fast(answer)),
                    None => sink(staged.at, &InBatch::Other(answer_other(context, request, &lookup, found))),
                },
                Err(at) => answer_question(context, &self.questions[at], &lookup, found, |outcome| {
                    sink(staged.at, outcome);
                }),
            }
        }
    }
}

impl<'a> StagedRequests<'a> {
    /// The last stage on a caching server: a fast request is answered from the cache if the set
    /// does not have its handle. Separate, so that other servers do not pay for it.
    #[inline(never)]
    fn answer_caching<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        cached: &'a dyn RecordCache,
        lookups: &[StagedLookup; STAGED_COUNT],
        scratch: &Scratch,
        mut sink: impl FnMut(usize, &InBatch<'a>),
    ) {
        let lookup = |staged: &StagedRequest<'a>| match staged.request {
            Ok(request) => StagedCacheLookup::new(request.handle(), !request.is_authoritative()),
            Err(at) => StagedCacheLookup::new(Handle(self.questions[at].query.handle), false),
        };
        let mut cache_lookups: ArrayVec<_, STAGED_COUNT> = self.requests.iter().map(lookup).collect();
        // What the set has about the requests that it decides. None is decided by an empty set,
        // which is the usual one.
        let mut local: ArrayVec<LocalLookup<'a>, STAGED_COUNT> = ArrayVec::new();
        cached.prefetch(&mut cache_lookups);
        if !(context.knows_only_cached() && self.questions.is_empty()) {
            for (at, staged) in self.requests.iter().enumerate() {
                let key = scratch.keys[at].as_bytes();
                local.push(self.find_local(context, staged, lookups[at], key));
                cache_lookups[at].is_wanted &= local[at].is_none();
            }
        }
        // All records are copied before the first answer is written: reading a copy that was
        // written just before would wait for it.
        cached.find(&mut cache_lookups);
        for (at, staged) in self.requests.iter().enumerate() {
            let key = scratch.keys[at].as_bytes();
            let lookup = RecordLookup::hashed(key, staged.hash);
            let outcome = match (staged.request, local.get_mut(at).and_then(Option::take)) {
                (Ok(request), None) => answer_known(context, request, cache_lookups[at].known),
                (Ok(request), Some(found)) => match answer_fast(context, request, &found) {
                    Some(answer) => InBatch::Fast(answer),
                    None => InBatch::Other(answer_other(context, request, &lookup, found)),
                },
                (Err(question), Some(found)) => {
                    answer_question(context, &self.questions[question], &lookup, found, |outcome| {
                        sink(staged.at, outcome);
                    });
                    continue;
                }
                // Unreachable: the set is asked about every request that is not a fast one.
                (Err(_), None) => continue,
            };
            sink(staged.at, &outcome);
        }
    }

    /// What the set has about a request; `None` if that does not decide, and the cache is asked.
    fn find_local<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        staged: &StagedRequest<'a>,
        lookup: StagedLookup,
        key: &[u8],
    ) -> LocalLookup<'a> {
        if staged.request.is_ok() && context.knows_only_cached() {
            return None;
        }
        let found = context.records.resolve(lookup, staged.hash, key);
        let is_local = matches!(&found, Ok(Some(record)) if record.is_homed())
            || is_homed(context, key)
            || is_table_damaged(context, key);
        (staged.request.is_err() || is_local).then_some(found)
    }
}

/// The result of a lookup in the set, if it decides.
type LocalLookup<'a> = Option<Result<Option<EncodedRecord<'a>>, CorruptRecord>>;

/// Passes the outcome for `question` to `sink`. The reply is written where `sink` reads it: see
/// [`RecordQuestion::answer_into`].
#[inline(always)]
fn answer_question<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    question: &RecordQuestion<'a>,
    lookup: &RecordLookup<'_>,
    found: Result<Option<EncodedRecord<'a>>, CorruptRecord>,
    sink: impl FnOnce(&InBatch<'a>),
) {
    let mut outcome = InBatch::Other(AnswerOutcome::Reply(question.success(context)));
    if let InBatch::Other(AnswerOutcome::Reply(reply)) = &mut outcome
        && question.answer_into(context, lookup, found, reply)
    {
        outcome = InBatch::Other(AnswerOutcome::Slow(SlowPathRequest::template(&question.request)));
    } else if question.request.is_in_session(&context.service)
        && let InBatch::Other(AnswerOutcome::Reply(reply)) = outcome
    {
        outcome = InBatch::Other(AnswerOutcome::InSession(reply));
    }
    sink(&outcome);
}

#[inline]
fn answer_fast<'a, B>(
    context: &AnswerContext<'a, B>,
    request: FastRequest<'a>,
    found: &Result<Option<EncodedRecord<'a>>, CorruptRecord>,
) -> Option<FastAnswer<'a>> {
    match found {
        Ok(Some(record)) => request.answer(record, &context.service, context.now_unix_s),
        _ => None,
    }
}

/// Answers a request of the fast path with what the cache knows about its handle.
#[inline]
fn answer_known<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    fast: FastRequest<'a>,
    known: CachedLookup<'a>,
) -> InBatch<'a> {
    if let CachedLookup::Record(record) = &known
        && let Some(answer) = fast.answer(record, &context.service, context.now_unix_s)
    {
        return InBatch::Fast(answer);
    }
    InBatch::Other(match ParsedRequest::from_stream(fast.bytes()) {
        Ok(request) => {
            let question = RecordQuestion { request, query: fast.query() };
            let mut reply = question.success(context);
            match question.answer_cached(context, known, &mut reply) {
                true => AnswerOutcome::Slow(SlowPathRequest::template(&request)),
                false => AnswerOutcome::Reply(reply),
            }
        }
        // Unreachable: a fast request can always be parsed.
        refused => answer_request(context, refused),
    })
}

/// Answers a request of the fast path whose answer is not a [`FastAnswer`].
#[inline(never)]
fn answer_other<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    fast: FastRequest<'a>,
    lookup: &RecordLookup<'_>,
    found: Result<Option<EncodedRecord<'a>>, CorruptRecord>,
) -> AnswerOutcome<'a> {
    match ParsedRequest::from_stream(fast.bytes()) {
        Ok(request) => RecordQuestion { request, query: fast.query() }.outcome(context, lookup, found),
        // Unreachable: a fast request can always be parsed.
        refused => answer_request(context, refused),
    }
}
