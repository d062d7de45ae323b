//! Requests over UDP: a batch is answered together, and what it leaves over one by one.

mod fragments;
mod leftovers;
mod replies;
mod requests;

use crate::cache::WorkerCache;
use crate::config::{ANSWER_LEN_MAX, Config};
use crate::counters::{Counters, Transport};
use crate::dispatch::{DispatchResult, dispatch};
use crate::rate_limit::SlowRequest;
use crate::sessions::sealer::SessionSealer;
use crate::slow::queue::SlowJob;
use crate::worker_parts::{WorkerParts, flush};
use fragments::RequestFragments;
use handle_net::{Batch, Datagram, Datapath, Inbox, Outbox, Peer};
use handle_proto::limit::{FRAGMENTS_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::wire::Envelope;
use handle_resolver::batch::{STAGED_COUNT, Scratch};
use handle_resolver::{AnswerContext, AnswerOutcome, InBatch, answer, answer_batch, answer_message};
use handle_snapshot::map::MappedFile;
use leftovers::LeftoverDatagrams;
use replies::UdpReplies;
use requests::UdpBatch;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The datagrams of a worker.
pub(crate) struct UdpWorker {
    scratch: Scratch,
    fragments: RequestFragments,
    /// For each datagram of the batch, including those in trains, its position in the inbox.
    trains_at: Vec<u16>,
    /// For each datagram of the batch, whether it has been handled.
    done: Vec<bool>,
    /// Datagrams that the batch could not answer.
    leftovers: LeftoverDatagrams,
}

impl UdpWorker {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            scratch: Scratch::new(),
            fragments: RequestFragments::new(config),
            trains_at: Vec::new(),
            done: Vec::new(),
            leftovers: LeftoverDatagrams::default(),
        }
    }

    /// Applies other settings.
    pub(crate) fn set(&mut self, config: &Config) {
        self.fragments.set(config);
    }

    /// The earliest time at which [`expire`](Self::expire) has something to do.
    pub(crate) fn next_expiry_ms(&self) -> Option<u64> {
        self.fragments.next_expiry_ms()
    }

    /// Drops fragments of requests that were not completed in time.
    pub(crate) fn expire(&mut self, now_ms: u64, counters: &Counters) {
        self.fragments.expire(now_ms, counters);
    }

    /// Counts the datagrams in `inbox`, which are [answered](Self::answer) next. Returns their
    /// number.
    pub(crate) fn receive(&mut self, inbox: Inbox<'_>, counters: &Counters) -> usize {
        requests::receive(inbox, &mut self.trains_at, counters);
        self.trains_at.len()
    }

    /// Answers the batch that was [received](Self::receive). Returns whether nothing is left over
    /// for [`answer_leftovers`](Self::answer_leftovers).
    pub(crate) fn answer(
        &mut self,
        batch: Batch<'_>,
        context: &AnswerContext<'_, MappedFile>,
        cache: Option<&mut WorkerCache>,
        parts: &mut WorkerParts,
        counters: &Counters,
    ) -> bool {
        let Self { scratch, trains_at, done, leftovers, .. } = self;
        let (batch, outbox) = (UdpBatch::new(batch.inbox, trains_at), batch.outbox);
        let WorkerParts { slow, sealer, rate_limit, telemetry, clock } = parts;
        telemetry.sample_sources(clock, batch.len(), |at| batch.request(at).peer().remote().ip());
        let mut replies = UdpReplies { outbox, slow, rate_limit, telemetry, counters, now: clock.now() };
        done.clear();
        done.resize(batch.len(), false);
        // Once the outbox is full, the remaining datagrams are not looked up until there is
        // capacity.
        let is_full = Cell::new(false);
        let sink = UdpBatchSink { batch: &batch, sealer, replies: &mut replies, done, is_full: &is_full };
        // Answering has no side effects, so a panic leaves no broken state: the remaining datagrams
        // are retried one by one.
        let answered = catch_unwind(AssertUnwindSafe(|| {
            let datagrams = batch.datagrams().map(|(_, datagram)| datagram).take_while(|_| !is_full.get());
            #[cfg(test)]
            let datagrams = datagrams.inspect(|datagram| crate::tests::before_reading(datagram));
            match cache {
                None => answer_part(context, scratch, datagrams, 0, sink),
                Some(cache) => answer_caching(context, cache, clock.now_unix_s(), scratch, datagrams, sink),
            }
        }));
        if answered.is_ok() && !done.contains(&false) {
            return true;
        }
        // Flushing returns the receive buffers, so unanswered datagrams are copied first.
        leftovers.clear();
        for ((peer, datagram), _) in batch.datagrams().zip(done.iter()).filter(|&(_, &done)| !done) {
            leftovers.push(peer, datagram);
        }
        false
    }

    /// Answers the datagrams that the batch left over: fragments, datagrams for which the outbox
    /// had no capacity, and datagrams after one that caused a panic.
    ///
    /// # Errors
    /// Errors of the datapath, after which it is unusable.
    #[cold]
    pub(crate) fn answer_leftovers(
        &mut self,
        path: &mut dyn Datapath,
        context: &AnswerContext<'_, MappedFile>,
        parts: &mut WorkerParts,
        counters: &Counters,
    ) -> io::Result<()> {
        let Self { leftovers, fragments, .. } = self;
        for (peer, datagram) in leftovers.iter() {
            if !path.outbox().has_capacity(FRAGMENTS_MAX, ANSWER_LEN_MAX) {
                flush(path, counters)?;
            }
            let answered = catch_unwind(AssertUnwindSafe(|| {
                #[cfg(test)]
                crate::tests::before_reading(datagram);
                #[cfg(test)]
                crate::tests::before_answering(datagram);
                answer_alone(peer, datagram, fragments, context, path.outbox(), parts, counters)
            }));
            // There was capacity for the longest answer.
            if !matches!(answered, Ok(DispatchResult::Done)) {
                counters.dropped_bug.add(1);
            }
        }
        flush(path, counters)
    }
}

/// Where the answers to a batch of datagrams go.
struct UdpBatchSink<'s, 'r, 'w> {
    batch: &'r UdpBatch<'r>,
    sealer: &'s mut Option<SessionSealer>,
    replies: &'s mut UdpReplies<'w>,
    /// For each datagram, whether nothing more is to be done for it.
    done: &'s mut [bool],
    /// Whether the outbox had no capacity for an answer.
    is_full: &'s Cell<bool>,
}

/// Answers `datagrams`, the first of which is number `first` of the batch.
#[inline(always)]
fn answer_part<'a, 'd: 'a>(
    context: &AnswerContext<'a, MappedFile>,
    scratch: &mut Scratch,
    datagrams: impl Iterator<Item = &'d [u8]>,
    first: usize,
    sink: UdpBatchSink<'_, '_, '_>,
) {
    let UdpBatchSink { batch, sealer, replies, done, is_full } = sink;
    let datagrams = datagrams.map(|datagram| -> &'a [u8] { datagram });
    answer_batch(context, scratch, datagrams, |at, outcome| {
        let at = first + at;
        #[cfg(test)]
        crate::tests::before_answering(batch.request(at).message());
        let result = dispatch(outcome, batch.request(at), context, sealer.as_mut(), replies);
        done[at] = result == DispatchResult::Done;
        is_full.set(result == DispatchResult::NoCapacity);
    });
}

/// Answers `datagrams` from the set and a cache, in parts that are answered together anyway. The
/// copies of all parts are in the same buffer, which so stays in the caches of the processor.
fn answer_caching<'r>(
    context: &AnswerContext<'_, MappedFile>,
    cache: &mut WorkerCache,
    now_unix_s: u32,
    scratch: &mut Scratch,
    mut datagrams: impl Iterator<Item = &'r [u8]>,
    sink: UdpBatchSink<'_, 'r, '_>,
) {
    let UdpBatchSink { batch, sealer, replies, done, is_full } = sink;
    for first in (0..batch.len()).step_by(STAGED_COUNT) {
        let cached = cache.of_batch(now_unix_s);
        let part = UdpBatchSink { batch, sealer, replies, done, is_full };
        let datagrams = datagrams.by_ref().take(STAGED_COUNT);
        answer_part(&context.with_cached(&cached), scratch, datagrams, first, part);
        if is_full.get() {
            return;
        }
    }
}

/// Answers one datagram, or the message that it completes.
fn answer_alone(
    peer: Peer,
    datagram: &[u8],
    fragments: &mut RequestFragments,
    context: &AnswerContext<'_, MappedFile>,
    outbox: &mut Outbox,
    parts: &mut WorkerParts,
    counters: &Counters,
) -> DispatchResult {
    let outcome = answer(context, datagram);
    let result = dispatch_alone(outcome, peer, datagram, context, outbox, parts, counters);
    if result != DispatchResult::Fragment {
        return result;
    }
    let (source, now_ms) = (peer.remote().ip(), parts.clock.now_ms());
    let Some(message) = fragments.put_together(source, datagram, now_ms, counters) else {
        return DispatchResult::Done;
    };
    let Ok((envelope, rest)) = Envelope::split(&message) else { return DispatchResult::Done };
    let outcome = answer_message(context, envelope, rest);
    dispatch_alone(outcome, peer, &message, context, outbox, parts, counters)
}

/// Dispatches the `outcome` of `message`, as a batch of one.
fn dispatch_alone<'a>(
    outcome: AnswerOutcome<'a>,
    peer: Peer,
    message: &[u8],
    context: &AnswerContext<'a, MappedFile>,
    outbox: &mut Outbox,
    parts: &mut WorkerParts,
    counters: &Counters,
) -> DispatchResult {
    let train = [Datagram { bytes: message, peer, segment_len: message.len(), truncated: false }];
    let batch = UdpBatch::new(Inbox::new(&train), &[0]);
    let WorkerParts { slow, sealer, rate_limit, telemetry, clock } = parts;
    let mut replies = UdpReplies { outbox, slow, rate_limit, telemetry, counters, now: clock.now() };
    dispatch(&InBatch::Other(outcome), batch.request(0), context, sealer.as_mut(), &mut replies)
}

/// Sends an answer of the slow path as datagrams to `peer`. The caller flushes.
///
/// # Errors
/// Errors of the datapath, after which it is unusable.
#[cold]
pub(crate) fn reply(
    path: &mut dyn Datapath,
    peer: Peer,
    job: &SlowJob,
    parts: &mut WorkerParts,
    counters: &Counters,
) -> io::Result<()> {
    let is_sent = !job.answer.is_empty()
        && (push(path.outbox(), peer, &job.answer) || {
            // An empty outbox has capacity for any one answer.
            flush(path, counters)?;
            push(path.outbox(), peer, &job.answer)
        });
    if !is_sent {
        counters.dropped_bug.add(1);
        return Ok(());
    }
    if let Some(rate_limit) = parts.rate_limit.as_mut().filter(|_| !job.is_proven) {
        let (answer_len, request) = (job.answer.len(), SlowRequest::of(&job.request));
        let datagrams = answer_len.div_ceil(UDP_MESSAGE_LEN_MAX);
        rate_limit.count_slow(peer, request, job.request.len(), answer_len, datagrams);
    }
    counters.requests_answered.add(1);
    counters.bytes_sent.add(job.answer.len() as u64);
    counters.count_reply(Transport::Udp, job.code, job.refused);
    parts.telemetry.sent(job, counters);
    Ok(())
}

/// Puts the datagrams in `answer` into the outbox. Returns false when there is no capacity.
fn push(outbox: &mut Outbox, peer: Peer, answer: &[u8]) -> bool {
    let len = answer.len();
    let write = |buffer: &mut [u8]| {
        buffer[..len].copy_from_slice(answer);
        len
    };
    outbox.push_train(peer, UDP_MESSAGE_LEN_MAX, len, write).is_ok()
}
