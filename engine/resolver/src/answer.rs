//! Answers one request: decode, find the record, select values, assemble the reply. This form is
//! the definition; tests compare the batch form with it.

use crate::question::{RecordQuestion, decode};
use crate::record_key::{KeyBuf, RecordLookup};
use crate::refusal::RefusalReason;
use crate::reply::{ReplyParts, WireReply as _};
use crate::request::{DropReason, ParsedRequest, UndecidableMessage, UnreadableRequest};
use crate::service::AnswerContext;
use crate::slow::{FirstEvaluation, SlowPathRequest, SlowReason, evaluate};
use handle_proto::OpCode;
use handle_proto::wire::Envelope;
use handle_snapshot::{CorruptRecord, EncodedRecord};

/// The result of answering a datagram.
#[derive(Clone, Copy, Debug)]
pub enum AnswerOutcome<'a> {
    /// Send this reply.
    Reply(ReplyParts<'a>),
    /// Send nothing.
    Drop(DropReason),
    /// The datagram is one fragment of a message. Once the message is complete, [`answer_message`]
    /// answers it.
    Fragment(Envelope),
    /// The reply to a request for public values in a session. The caller sends it if the session
    /// exists and the MAC of the request, where there is one, is correct; it adds a MAC to the
    /// reply if the request asked for one.
    InSession(ReplyParts<'a>),
    /// The message is encrypted in a session. Once it is decrypted, [`answer_message`] answers it.
    Encrypted,
    /// The request asks for a list of names, which another process answers. Where that process
    /// cannot be asked, [`refuse_listing`] makes the reply.
    Listing,
    /// The request changes records of another service, which answers it. Where that service cannot
    /// be asked, [`refuse_listing`] makes the reply.
    Administration,
    /// The answer takes too long for a worker: it needs a signature, an identity or computed
    /// values. [`slow`](mod@crate::slow) continues with the request.
    Slow(SlowPathRequest<'a>),
}

/// Answers one datagram.
///
/// An unreadable datagram is answered too, with the reason as text, except where an answer could
/// loop or amplify.
pub fn answer<'a, B: AsRef<[u8]>>(context: &AnswerContext<'a, B>, datagram: &'a [u8]) -> AnswerOutcome<'a> {
    answer_request(context, ParsedRequest::from_datagram(datagram))
}

/// Answers one whole message: `bytes` are the bytes after `envelope`, or the reassembled fragments.
pub fn answer_message<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    envelope: Envelope,
    bytes: &'a [u8],
) -> AnswerOutcome<'a> {
    answer_request(context, ParsedRequest::from_message(envelope, bytes))
}

/// The reply to a stream that cannot be read any further, whether or not a request had begun. It
/// carries `text`, or the text of `refused` if `text` is empty.
pub fn refuse_stream<'a, B>(
    context: &AnswerContext<'_, B>,
    refused: RefusalReason,
    text: &'a [u8],
) -> ReplyParts<'a> {
    let reply = ReplyParts::unreadable(refused, OpCode::RESERVED, context.now_unix_s);
    if text.is_empty() { reply } else { reply.with_text(text) }
}

/// The reply that refuses, because of `refused`, the request in `bytes` behind `envelope` to list
/// names or to change records.
#[cold]
pub fn refuse_listing<'a, B>(
    context: &AnswerContext<'_, B>,
    envelope: Envelope,
    bytes: &'a [u8],
    refused: RefusalReason,
) -> ReplyParts<'a> {
    match ParsedRequest::from_operation(&envelope, bytes) {
        Some(request) => {
            ReplyParts::to(&request, refused.code(), &context.service, context.now_unix_s).refuse(refused)
        }
        None => refuse_stream(context, refused, b""),
    }
}

pub(crate) fn answer_request<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    request: Result<ParsedRequest<'a>, UndecidableMessage>,
) -> AnswerOutcome<'a> {
    let mut key: KeyBuf = KeyBuf::new();
    match prepare(context, request, &mut key) {
        PreparedRequest::Done(outcome) => outcome,
        PreparedRequest::Find(question) => {
            let lookup = RecordLookup::new(context, key.as_bytes());
            let found = context.records.find(lookup.hash, lookup.key());
            question.outcome(context, &lookup, found)
        }
    }
}

/// A request after the first stage.
pub(crate) enum PreparedRequest<'a> {
    /// The outcome needs no record.
    Done(AnswerOutcome<'a>),
    /// The record must be looked up, with the key that was written.
    Find(RecordQuestion<'a>),
}

/// The first stage: everything that can be decided without a record.
#[inline]
pub(crate) fn prepare<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: Result<ParsedRequest<'a>, UndecidableMessage>,
    key: &mut KeyBuf<N>,
) -> PreparedRequest<'a> {
    let request = match request {
        Ok(request) => request,
        Err(UndecidableMessage::Reply(unreadable))
            if unreadable.is_listing() && context.service.forwards_listing =>
        {
            return PreparedRequest::Done(AnswerOutcome::Listing);
        }
        Err(UndecidableMessage::Reply(unreadable)) if unreadable.is_change() && context.service.relays => {
            return PreparedRequest::Done(AnswerOutcome::Administration);
        }
        Err(UndecidableMessage::Reply(unreadable)) => {
            return PreparedRequest::Done(AnswerOutcome::Reply(unreadable.reply(context.now_unix_s)));
        }
        Err(UndecidableMessage::Drop(reason)) => return PreparedRequest::Done(AnswerOutcome::Drop(reason)),
        Err(UndecidableMessage::Fragment(envelope)) => {
            return PreparedRequest::Done(AnswerOutcome::Fragment(envelope));
        }
        Err(UndecidableMessage::Encrypted) if context.service.sessions => {
            return PreparedRequest::Done(AnswerOutcome::Encrypted);
        }
        Err(UndecidableMessage::Encrypted) => {
            let refused = UnreadableRequest::from(RefusalReason::EncryptedInUnknownSession);
            return PreparedRequest::Done(AnswerOutcome::Reply(refused.reply(context.now_unix_s)));
        }
    };
    let is_in_session = request.is_in_session(&context.service);
    if !(request.is_plain() && !is_in_session || is_in_session && request.is_public_in_the_clear()) {
        return PreparedRequest::Done(answer_unusual(context, &request, key));
    }
    match decode(context, &request, key) {
        Ok(question) => PreparedRequest::Find(question),
        Err(reply) if is_in_session => PreparedRequest::Done(AnswerOutcome::InSession(reply)),
        Err(reply) => PreparedRequest::Done(AnswerOutcome::Reply(reply)),
    }
}

impl<'a> RecordQuestion<'a> {
    /// The last stage: the outcome of the request, once its record was looked up.
    #[inline]
    pub(crate) fn outcome<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        lookup: &RecordLookup<'_>,
        found: Result<Option<EncodedRecord<'a>>, CorruptRecord>,
    ) -> AnswerOutcome<'a> {
        let mut reply = self.success(context);
        match self.answer_into(context, lookup, found, &mut reply) {
            true => AnswerOutcome::Slow(SlowPathRequest::template(&self.request)),
            false if self.request.is_in_session(&context.service) => AnswerOutcome::InSession(reply),
            false => AnswerOutcome::Reply(reply),
        }
    }
}

/// Answers a request that is not plain, without stages.
#[cold]
#[inline(never)]
pub(crate) fn answer_unusual<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    key: &mut KeyBuf<N>,
) -> AnswerOutcome<'a> {
    if let Some(reason) = SlowReason::of(&context.service, request) {
        return AnswerOutcome::Slow(SlowPathRequest::new(request, reason));
    }
    match evaluate(context, request, key) {
        FirstEvaluation::Reply(reply)
            if reply.refused() == Some(RefusalReason::QueryTooLong) && can_sort(context) =>
        {
            AnswerOutcome::Slow(SlowPathRequest::template(request))
        }
        FirstEvaluation::Reply(reply) => AnswerOutcome::Reply(reply),
        FirstEvaluation::Identity => AnswerOutcome::Slow(SlowPathRequest::new(request, SlowReason::Identity)),
        FirstEvaluation::Template | FirstEvaluation::Uncached => {
            AnswerOutcome::Slow(SlowPathRequest::template(request))
        }
    }
}

/// Whether other threads can sort the lists of a query and this one cannot.
const fn can_sort<B>(context: &AnswerContext<'_, B>) -> bool {
    context.service.authenticates && context.sorting.is_none()
}
