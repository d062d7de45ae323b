//! Dispatches the outcome of each request that a worker reads, over UDP and TCP alike: to the
//! sender as a reply, to the slow path, or to a counter.

use crate::sessions::sealer::{AnswerRecipient, SealOutcome, SealedSize, SessionSealer};
use handle_proto::wire::Envelope;
use handle_resolver::{
    AnswerContext, AnswerOutcome, DropReason, InBatch, RefusalReason, ReplyParts, WireReply, refuse_listing,
    refuse_stream,
};
use std::net::IpAddr;

/// Where one transport of a worker sends replies, and hands over and counts requests.
pub(crate) trait ReplySink<'r> {
    /// A request as this transport received it.
    type Request: Copy;

    /// The message of `request`, envelope first.
    fn message(request: Self::Request) -> &'r [u8];

    /// The address that sent `request`.
    fn source(&self, request: Self::Request) -> IpAddr;

    /// Whether there is capacity for `datagrams_count` datagrams of `len` bytes together.
    fn has_capacity(&self, datagrams_count: usize, len: usize) -> bool;

    /// Sends `reply`, as far as the limits for addresses allow it. Returns false when there is no
    /// capacity.
    fn send(&mut self, request: Self::Request, reply: &impl WireReply) -> bool;

    /// Sends `reply` to a sender that has proven its address. Returns false when there is no
    /// capacity.
    fn send_proven(&mut self, request: Self::Request, reply: &impl WireReply) -> bool;

    /// Hands `request` to the slow path. If the slow path has no capacity for it, sends a refusal
    /// made from `busy`. Returns false when there is no capacity for the refusal.
    fn defer(&mut self, request: Self::Request, busy: &ReplyParts<'_>) -> bool;

    /// Counts a request that is not answered.
    fn count_drop(&self, reason: DropReason);
}

/// The result of dispatching an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DispatchResult {
    /// The worker has nothing more to do for the request until the slow path answers.
    Done,
    /// There was no capacity for the reply. Nothing has happened.
    NoCapacity,
    /// The request is a fragment, and nothing has happened.
    Fragment,
}

/// Dispatches the `outcome` of `request`. `sealer` answers in sessions, if there are any.
#[inline]
pub(crate) fn dispatch<'a, 'r, S: ReplySink<'r>, B: AsRef<[u8]>>(
    outcome: &InBatch<'a>,
    request: S::Request,
    context: &AnswerContext<'a, B>,
    sealer: Option<&mut SessionSealer>,
    sink: &mut S,
) -> DispatchResult {
    let is_done = match outcome {
        InBatch::Fast(reply) => sink.send(request, reply),
        InBatch::Other(AnswerOutcome::Reply(reply)) => sink.send(request, reply),
        InBatch::Other(AnswerOutcome::InSession(reply)) => {
            send_in_session(reply, request, context, sealer, sink)
        }
        InBatch::Other(AnswerOutcome::Slow(slow)) => {
            sink.defer(request, &slow.refuse(context, RefusalReason::Busy))
        }
        InBatch::Other(AnswerOutcome::Encrypted) => {
            sink.defer(request, &refuse_stream(context, RefusalReason::Busy, b""))
        }
        InBatch::Other(AnswerOutcome::Listing | AnswerOutcome::Administration) => {
            let busy = match Envelope::split(S::message(request)) {
                Ok((envelope, rest)) => refuse_listing(context, envelope, rest, RefusalReason::Busy),
                Err(_) => refuse_stream(context, RefusalReason::Busy, b""),
            };
            sink.defer(request, &busy)
        }
        InBatch::Other(AnswerOutcome::Drop(reason)) => {
            sink.count_drop(*reason);
            true
        }
        InBatch::Other(AnswerOutcome::Fragment(_)) => return DispatchResult::Fragment,
    };
    if is_done { DispatchResult::Done } else { DispatchResult::NoCapacity }
}

/// Sends the `reply` to a request for public values in a session, if the session accepts the
/// request. Returns false when there is no capacity.
#[inline(never)]
fn send_in_session<'a, 'r, S: ReplySink<'r>, B: AsRef<[u8]>>(
    reply: &ReplyParts<'a>,
    request: S::Request,
    context: &AnswerContext<'a, B>,
    sealer: Option<&mut SessionSealer>,
    sink: &mut S,
) -> bool {
    let SealedSize { len, datagrams_count } = SessionSealer::sealed_size(reply);
    if !sink.has_capacity(datagrams_count, len) {
        return false;
    }
    let Some(sealer) = sealer else {
        return sink.send(request, &reply.refusing(RefusalReason::UnknownSession));
    };
    match sealer.answer(S::message(request), sink.source(request), reply, context.service()) {
        SealOutcome::Plain(reply, AnswerRecipient::Unproven) => sink.send(request, &reply),
        SealOutcome::Plain(reply, AnswerRecipient::Proven) => sink.send_proven(request, &reply),
        SealOutcome::Mac(reply, AnswerRecipient::Unproven) => sink.send(request, &reply),
        SealOutcome::Mac(reply, AnswerRecipient::Proven) => sink.send_proven(request, &reply),
        SealOutcome::SlowPath => sink.defer(request, &reply.refusing(RefusalReason::Busy)),
    }
}
