//! The part of a worker in sessions: it checks that a request for public values comes from the
//! owner of the session, and adds the MAC to the answer. It takes no lock, uses no queue and does
//! not allocate.

use super::ServerSessions;
use crate::config::ANSWER_LEN_MAX;
use handle_proto::ResponseCode;
use handle_proto::limit::UDP_DATA_LEN_MAX;
use handle_proto::wire::{Envelope, Message, fragment};
use handle_resolver::{RefusalReason, ReplyParts, ServiceFacts, WireReply};
use handle_session::traffic::{check, is_downgraded, seal};
use handle_session::{LiveSession as _, MessageRejection, Session};
use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Most bytes of a credential with a MAC.
const MAC_CREDENTIAL_LEN: usize = 96;

/// Answers requests in sessions, for one worker.
#[derive(Debug)]
pub struct SessionSealer {
    sessions: Arc<ServerSessions>,
    now: Instant,
    message: Vec<u8>,
    text: [u8; 80],
}

/// The outcome for a request for public values in a session.
#[derive(Debug)]
pub(crate) enum SealOutcome<'s> {
    /// An answer without a MAC.
    Plain(ReplyParts<'s>, AnswerRecipient),
    /// An answer with a MAC.
    Mac(SealedReply<'s>, AnswerRecipient),
    /// The session does not exist, and the answer is to be signed nevertheless, so the slow path
    /// makes it.
    SlowPath,
}

/// A reply with the MAC of its session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedReply<'s> {
    reply: ReplyParts<'s>,
    /// The reply with its MAC, envelope first.
    message: &'s [u8],
}

/// What a request in a session proves about its source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerRecipient {
    /// The owner of the session wrote the request, and set the session up from the same address:
    /// answers to that address arrive.
    Proven,
    /// Nothing is proven.
    Unproven,
}

/// Most bytes and datagrams of an answer.
pub(crate) struct SealedSize {
    pub(crate) len: usize,
    pub(crate) datagrams_count: usize,
}

impl SessionSealer {
    /// Creates a sealer with a buffer for the longest answer.
    #[must_use]
    pub fn new(sessions: &Arc<ServerSessions>) -> Self {
        let message = Vec::with_capacity(ANSWER_LEN_MAX + MAC_CREDENTIAL_LEN);
        Self { sessions: Arc::clone(sessions), now: Instant::now(), message, text: [0; 80] }
    }

    /// Sets the current time. Called once for each batch.
    pub(crate) const fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Most bytes and datagrams of the answer. There has to be capacity for it before it is made,
    /// because no request is accepted twice.
    pub(crate) const fn sealed_size(reply: &ReplyParts<'_>) -> SealedSize {
        // An error may be longer than the answer that it replaces.
        const ERROR_LEN: usize = 256;
        let least = if reply.message_len() > ERROR_LEN { reply.message_len() } else { ERROR_LEN };
        let len = least + MAC_CREDENTIAL_LEN;
        let datagrams_count = len.div_ceil(UDP_DATA_LEN_MAX);
        SealedSize { len: len + datagrams_count * Envelope::LEN, datagrams_count }
    }

    /// Decides about `request`, a complete message with its envelope that came from `source`.
    /// `reply` is its answer if the request is valid. `service` says whether the slow path signs,
    /// and how long the answer may be.
    pub(crate) fn answer<'s>(
        &'s mut self,
        request: &[u8],
        source: IpAddr,
        reply: &ReplyParts<'s>,
        service: &ServiceFacts<'_>,
    ) -> SealOutcome<'s> {
        let Self { sessions, now, message, text } = self;
        let now_s = sessions.second_at(*now);
        let parts = Envelope::split(request).ok();
        let found = parts.and_then(|(envelope, _)| sessions.table.find(envelope.session_id, now_s));
        let (Some((envelope, rest)), Some(session)) = (parts, found) else {
            return match reply.certifies() && service.signs {
                true => SealOutcome::SlowPath,
                false => SealOutcome::Plain(
                    reply.refusing(RefusalReason::UnknownSession),
                    AnswerRecipient::Unproven,
                ),
            };
        };
        let checked = match Message::decode(&rest[..rest.len().min(envelope.message_len as usize)]) {
            Ok(request) => check(&*session, &envelope, &request, now_s),
            Err(_) => Err(MessageRejection::WrongMac),
        };
        let sender = match checked {
            Ok(true) if session.source() == handle_auth::source::of(source) => AnswerRecipient::Proven,
            _ => AnswerRecipient::Unproven,
        };
        let reply = match checked {
            Ok(_) => *reply,
            Err(reject) => refusing(reply, &session, reject, text),
        };
        if !reply.certifies() || is_downgraded(&*session, envelope.answer_version()) {
            return SealOutcome::Plain(reply, sender);
        }
        let refused = match put(&reply, &session, message) {
            true => too_long(message, service.answer_datagrams_max),
            false => Some(RefusalReason::AnswerTooLong),
        };
        let Some(refused) = refused else {
            return SealOutcome::Mac(SealedReply { reply, message }, sender);
        };
        let reply = reply.refusing(refused);
        match put(&reply, &session, message) {
            true => SealOutcome::Mac(SealedReply { reply, message }, sender),
            false => SealOutcome::Plain(reply, sender),
        }
    }
}

impl WireReply for SealedReply<'_> {
    fn response_code(&self) -> ResponseCode {
        self.reply.response_code()
    }

    fn refused(&self) -> Option<RefusalReason> {
        self.reply.refused()
    }

    fn has_mac(&self) -> bool {
        true
    }

    fn identity(&self) -> u64 {
        self.reply.identity()
    }

    fn limited(&self) -> ReplyParts<'static> {
        self.reply.limited()
    }

    fn datagrams_count(&self) -> usize {
        (self.message.len() - Envelope::LEN).div_ceil(UDP_DATA_LEN_MAX)
    }

    fn datagrams_len(&self) -> usize {
        self.message.len() + (self.datagrams_count() - 1) * Envelope::LEN
    }

    fn write_datagrams(&self, out: &mut [u8]) {
        let mut buffer = &mut out[..self.datagrams_len()];
        each_datagram_part(self.message, |part| {
            let (now, later) = std::mem::take(&mut buffer).split_at_mut(part.len());
            now.copy_from_slice(part);
            buffer = later;
        });
    }

    fn stream_len(&self) -> usize {
        self.message.len()
    }

    fn write_stream(&self, out: &mut [u8]) {
        out[..self.message.len()].copy_from_slice(self.message);
    }
}

/// A reply in the frame of `reply` that says why a message in the session is rejected. `text` is
/// the buffer for the details.
pub(crate) fn refusing<'t>(
    reply: &ReplyParts<'_>,
    session: &Session,
    reject: MessageRejection,
    text: &'t mut [u8; 80],
) -> ReplyParts<'t> {
    let MessageRejection::Replayed(counter) = reject else { return reply.refusing(RefusalReason::WrongMac) };
    let mut buffer = &mut text[..];
    let id = session.keys().id;
    // The text of deployed servers; 80 bytes are enough for any two numbers.
    let _ = write!(buffer, "Duplicate session counter {counter} in session {id}");
    let left = buffer.len();
    reply.refusing(RefusalReason::Replayed).with_text(&text[..text.len() - left])
}

/// Writes `reply` to `message` with the MAC of the session. Returns false if the MAC cannot be
/// made.
fn put(reply: &ReplyParts<'_>, session: &Session, message: &mut Vec<u8>) -> bool {
    message.clear();
    message.resize(Envelope::LEN + reply.message_len(), 0);
    reply.write_stream(message);
    seal(session, message).is_ok()
}

/// Returns why a message, envelope first and with its credential, is too long to be sent, if it is.
pub(crate) fn too_long(message: &[u8], datagrams_max: usize) -> Option<RefusalReason> {
    handle_resolver::too_long(message.len().saturating_sub(Envelope::LEN), datagrams_max)
}

/// Calls `take` with each part of the datagrams in which `message` is sent.
pub(crate) fn each_datagram_part(message: &[u8], mut take: impl FnMut(&[u8])) {
    let Ok((envelope, rest)) = Envelope::split(message) else { return };
    for datagram in fragment::cut(&envelope) {
        take(&datagram.envelope);
        take(&rest[datagram.range]);
    }
}
