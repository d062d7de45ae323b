//! Parses requests before they are answered, or refuses them.

use crate::refusal::RefusalReason;
use crate::reply::ReplyParts;
use crate::service::ServiceFacts;
use handle_proto::limit::{MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::{Envelope, Header, Message};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};

/// First version whose clients understand a prefix referral in reply to any request. RFC 3652 names
/// no such version; deployed servers resolve on behalf of older clients.
const UNDERSTOOD_SINCE: Version = Version::new(2, 10);

/// The reason why a datagram gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// The message is an error reply to an unreadable message. Two servers that answered such
    /// replies would never stop.
    ErrorReply,
    /// The datagram is shorter than an envelope. No client sends such a request, and any answer
    /// would be longer.
    TooShort,
}

/// A parsed message that can be answered: the fields that a reply repeats, and the bytes of the
/// message.
///
/// There are no other fields, because a batch keeps a parsed request for each datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParsedRequest<'a> {
    /// The version of the reply.
    pub(crate) version: Version,
    pub(crate) session_id: i32,
    pub(crate) request_id: i32,
    pub(crate) op_code: OpCode,
    pub(crate) flags: OpFlags,
    pub(crate) recursion_count: u8,
    /// Header and body.
    pub(crate) covered: &'a [u8],
}

/// A message that is not answered as a request.
pub(crate) enum UndecidableMessage {
    /// The message is answered with an error.
    Reply(UnreadableRequest),
    /// The message is not answered.
    Drop(DropReason),
    /// The datagram is one fragment of a message, which the caller reassembles.
    Fragment(Envelope),
    /// The message is encrypted in a session; the owner of the session decrypts it.
    Encrypted,
}

/// An error for a message whose own header is unreadable. The reply has the oldest version.
#[derive(Clone, Copy)]
pub(crate) struct UnreadableRequest {
    refused: RefusalReason,
    op_code: OpCode,
}

impl UnreadableRequest {
    /// Whether the request asks for a list of names, which belongs on an interface for
    /// administration.
    pub(crate) const fn is_listing(&self) -> bool {
        matches!(self.refused, RefusalReason::Administration)
            && matches!(self.op_code, OpCode::LIST_HANDLES | OpCode::LIST_HOMED_NAS)
    }

    /// Whether the request changes records.
    pub(crate) const fn is_change(&self) -> bool {
        matches!(self.refused, RefusalReason::Administration)
            && matches!(
                self.op_code,
                OpCode::CREATE_HANDLE
                    | OpCode::DELETE_HANDLE
                    | OpCode::ADD_VALUE
                    | OpCode::REMOVE_VALUE
                    | OpCode::MODIFY_VALUE
            )
    }

    pub(crate) fn reply(self, now_unix_s: u32) -> ReplyParts<'static> {
        ReplyParts::unreadable(self.refused, self.op_code, now_unix_s)
    }
}

impl From<RefusalReason> for UnreadableRequest {
    fn from(refused: RefusalReason) -> Self {
        Self { refused, op_code: OpCode::RESERVED }
    }
}

impl<'a> ParsedRequest<'a> {
    /// Parses a datagram.
    #[inline]
    pub(crate) fn from_datagram(datagram: &'a [u8]) -> Result<Self, UndecidableMessage> {
        let Some((fixed, rest)) = datagram.split_first_chunk() else {
            return Err(UndecidableMessage::Drop(DropReason::TooShort));
        };
        let envelope = Envelope::from_bytes(fixed);
        if envelope.message_len > MESSAGE_LEN_MAX {
            return Err(UndecidableMessage::Reply(RefusalReason::Malformed.into()));
        }
        if envelope.flags.has(EnvelopeFlags::TRUNCATED) {
            return Err(UndecidableMessage::Fragment(envelope));
        }
        // Bytes after the message are ignored, as in every request.
        if datagram.len() > UDP_MESSAGE_LEN_MAX && envelope.message_len as usize > UDP_DATA_LEN_MAX {
            return Err(UndecidableMessage::Reply(RefusalReason::Oversized.into()));
        }
        Self::from_message(envelope, rest)
    }

    /// Parses a whole message of a stream, envelope first.
    #[inline]
    pub(crate) fn from_stream(message: &'a [u8]) -> Result<Self, UndecidableMessage> {
        match message.split_first_chunk() {
            Some((envelope, rest)) => Self::from_message(Envelope::from_bytes(envelope), rest),
            // Unreachable: readers of streams split them at envelopes.
            None => Err(UndecidableMessage::Drop(DropReason::TooShort)),
        }
    }

    /// Parses the bytes that follow `envelope`. Bytes after the message are ignored; missing bytes
    /// matter only where they are needed.
    #[inline]
    pub(crate) fn from_message(envelope: Envelope, bytes: &'a [u8]) -> Result<Self, UndecidableMessage> {
        let refuse = |refused: RefusalReason| Err(UndecidableMessage::Reply(refused.into()));
        let bytes = &bytes[..bytes.len().min(envelope.message_len as usize)];
        if bytes.len() < Header::LEN {
            return refuse(Self::refuse_cut(&envelope, bytes));
        }
        if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
            return match envelope.session_id {
                1.. => Err(UndecidableMessage::Encrypted),
                _ => refuse(RefusalReason::EncryptedOutsideSession),
            };
        }
        let Ok(message) = Message::decode(bytes) else {
            return refuse(RefusalReason::Malformed);
        };
        let Header { op_code, response_code, .. } = message.header;
        if response_code != ResponseCode::RESERVED {
            // Otherwise two servers would answer each other's errors without end.
            return if envelope.request_id == ReplyParts::UNREADABLE_REQUEST_ID {
                Err(UndecidableMessage::Drop(DropReason::ErrorReply))
            } else {
                refuse(RefusalReason::Response)
            };
        }
        if op_code == OpCode::RESERVED {
            return refuse(RefusalReason::NoOperation);
        }
        if op_code != OpCode::RESOLUTION {
            Self::check_other(&envelope, &message)?;
        }
        Ok(Self::new(&envelope, &message))
    }

    /// The parsed form of a message that was checked, or that will only be refused.
    #[inline]
    fn new(envelope: &Envelope, message: &Message<'a>) -> Self {
        Self {
            version: envelope.answer_version(),
            session_id: envelope.session_id,
            request_id: envelope.request_id,
            op_code: message.header.op_code,
            flags: message.header.flags,
            recursion_count: message.header.recursion_count,
            covered: message.covered,
        }
    }

    /// The parsed form of `bytes` behind `envelope`, for any operation; `None` if the bytes are no
    /// message.
    pub(crate) fn from_operation(envelope: &Envelope, bytes: &'a [u8]) -> Option<Self> {
        let bytes = &bytes[..bytes.len().min(envelope.message_len as usize)];
        Some(Self::new(envelope, &Message::decode(bytes).ok()?))
    }

    /// Whether the request asks for public values without a signature, as nearly every request
    /// does.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        const DECIDE: u32 = OpFlags::PUBLIC_ONLY.0 | OpFlags::CERTIFY.0;
        self.op_code.0 == OpCode::RESOLUTION.0 && self.flags.0 & DECIDE == OpFlags::PUBLIC_ONLY.0
    }

    /// Whether the client does not understand a referral to another service, so that the server has
    /// to resolve on its behalf.
    #[inline]
    pub(crate) fn wants_no_referral(&self) -> bool {
        self.version < UNDERSTOOD_SINCE
            && self.flags.has(OpFlags::RECURSIVE)
            && !self.flags.has(OpFlags::DO_NOT_REFER)
    }

    /// Whether the request is in a session, on a server that has sessions.
    #[inline]
    pub(crate) const fn is_in_session(&self, service: &ServiceFacts<'_>) -> bool {
        self.session_id > 0 && service.sessions
    }

    /// Whether the request asks for public values without encryption. In a session every other
    /// request goes to the slow path.
    pub(crate) const fn is_public_in_the_clear(&self) -> bool {
        const DECIDE: u32 = OpFlags::PUBLIC_ONLY.0 | OpFlags::ENCRYPT.0;
        self.op_code.0 == OpCode::RESOLUTION.0 && self.flags.0 & DECIDE == OpFlags::PUBLIC_ONLY.0
    }

    /// The body, of the length that the header gives.
    #[inline]
    pub(crate) fn body(&self) -> &'a [u8] {
        self.covered.get(Header::LEN..).unwrap_or_default()
    }

    /// Checks a request that is no resolution: the operation is known, the body is readable, and
    /// the request is not for administration. The order is that of deployed servers.
    #[cold]
    fn check_other(envelope: &Envelope, message: &Message<'_>) -> Result<(), UndecidableMessage> {
        let op_code = message.header.op_code;
        if !op_code.is_deployed() {
            return Err(UndecidableMessage::Reply(RefusalReason::UnknownOperation.into()));
        }
        if message.decode_body(envelope.version).is_err() {
            return Err(UndecidableMessage::Reply(RefusalReason::Malformed.into()));
        }
        match op_code.is_admin() {
            true => Err(UndecidableMessage::Reply(UnreadableRequest {
                refused: RefusalReason::Administration,
                op_code,
            })),
            false => Ok(()),
        }
    }

    /// The reason to refuse a datagram that ends within its header. Missing bytes count as zero, as
    /// in deployed servers, so the operation may be 0; if it is not, the rest is not examined.
    #[cold]
    fn refuse_cut(envelope: &Envelope, bytes: &[u8]) -> RefusalReason {
        let announced = envelope.message_len as usize >= Header::LEN;
        let begins = bytes.iter().take(size_of::<OpCode>()).any(|&byte| byte != 0);
        match announced && !begins && !envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
            true => RefusalReason::NoOperation,
            false => RefusalReason::Short,
        }
    }
}
