//! Step 1: a received message becomes a request that can be decided, or the reason why it cannot be
//! decided. A message of a session becomes a plain message with a known sender here.

use crate::operation::{OperationRefusal, OperationRequest};
use crate::replication::StreamRoute;
use handle_auth::challenges::IssuedChallenge;
use handle_local::forward::{ForwardedForm, ForwardedRequest, Task};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::guard::ChangeGuard;
use handle_proto::wire::{Envelope, Header, Message, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};
use handle_session::endpoint::DecryptionFailure;
use handle_session::{IncomingMessage, SessionEndpoint};
use std::net::SocketAddr;

/// A message to be answered, with what is known about it.
#[derive(Debug)]
pub struct ReceivedMessage<'a> {
    /// The message, envelope first.
    pub(super) message: &'a [u8],
    /// Address of the client.
    pub(super) source: SocketAddr,
    /// Whether `handled` has already opened the message.
    pub(super) form: ForwardedForm,
    /// The challenge that the request answers, if `handled` issued it and has removed it from its
    /// table.
    pub(super) challenge: Option<IssuedChallenge>,
    /// Limits on the answer.
    pub(super) reply_limits: ReplyLimits,
}

/// The limits of the transport to the client, and the abilities of the client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyLimits {
    /// The maximum number of datagrams over UDP; `None` over TCP.
    pub(super) datagrams_max: Option<u16>,
    /// Whether to resolve a referral on behalf of a client that does not understand it.
    pub(super) resolves_referrals: bool,
    /// The transport of a stream for a mirror; `None` if the client cannot get a stream.
    pub(super) stream_route: Option<StreamRoute>,
}

impl<'a> ReceivedMessage<'a> {
    /// A message that this process received from `source`.
    #[must_use]
    pub const fn direct(message: &'a [u8], source: SocketAddr) -> Self {
        Self::over(StreamRoute::Tcp, message, source)
    }

    /// A message of `source`, to which streams are sent over `route`.
    #[must_use]
    pub const fn over(route: StreamRoute, message: &'a [u8], source: SocketAddr) -> Self {
        let reply_limits =
            ReplyLimits { datagrams_max: None, resolves_referrals: false, stream_route: Some(route) };
        Self { message, source, form: ForwardedForm::AsReceived, challenge: None, reply_limits }
    }
}

/// A request that `handled` received and has opened as far as it can. It is answered as if its
/// client had connected to this process.
impl<'a> From<ForwardedRequest<'a>> for ReceivedMessage<'a> {
    fn from(forwarded: ForwardedRequest<'a>) -> Self {
        let ForwardedRequest { task, source, datagrams_max, opening, challenge, message } = forwarded;
        let resolves_referrals = task == Task::Resolve;
        let reply_limits = ReplyLimits { datagrams_max, resolves_referrals, stream_route: None };
        Self { message, source, form: opening, challenge, reply_limits }
    }
}

/// Finds the session of a message, decrypts the message and checks its MAC.
///
/// # Errors
/// When the message was encrypted in a session and cannot be accepted.
pub(super) fn decrypt<'m>(
    sessions: Option<&SessionEndpoint>,
    message: &'m [u8],
    form: ForwardedForm,
) -> Result<IncomingMessage<'m>, OpeningFailure> {
    match (form, sessions) {
        (_, None) => Ok(IncomingMessage::outside(message)),
        (ForwardedForm::InSession { was_hidden, has_mac }, Some(sessions)) => {
            Ok(sessions.checked(message, was_hidden, has_mac))
        }
        (ForwardedForm::AsReceived, Some(sessions)) => {
            sessions.open(message).map_err(|failure| match failure {
                DecryptionFailure::Undecryptable => UNDECRYPTABLE.into(),
                DecryptionFailure::Unavailable => UNAVAILABLE.into(),
            })
        }
    }
}

/// Parses a decrypted message.
///
/// # Errors
/// When the message is not a request that can be decided.
pub(super) fn parse<'m>(incoming: &'m IncomingMessage<'_>) -> Result<OpenedRequest<'m>, OpeningFailure> {
    open(incoming.message()).map_err(|failure| match incoming.may_be_a_guess() {
        // The answer must not reveal whether a forged message had the right padding.
        true => UNDECRYPTABLE.into(),
        false => failure,
    })
}

/// A parsed message.
#[derive(Clone, Copy, Debug)]
pub struct OpenedRequest<'a> {
    /// The protocol version of the answer.
    pub version: Version,
    /// The number of the session, or of the challenge that is answered; 0 for none.
    pub session_id: i32,
    /// The request id, which the answer repeats.
    pub request_id: i32,
    /// Header, body and credential, decrypted.
    pub message: Message<'a>,
    /// The conditions on the change in front of the body.
    pub guard: ChangeGuard<'a>,
    /// The body.
    pub request: Request<'a>,
}

/// Why a message is not decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpeningFailure {
    /// Send this error, which refers to no request.
    Answered(OpCode, OperationRefusal),
    /// Send nothing: the message is itself an answer, and answering it could cause an endless
    /// exchange.
    Dropped,
}

/// The session of the request cannot be reached.
pub(super) const UNAVAILABLE: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "The session cannot be reached at the moment; ask again later.",
);
/// The request cannot be parsed; the text is that of deployed servers.
pub(super) const UNREADABLE: OperationRefusal =
    OperationRefusal::new(ResponseCode::ERROR, "Server error processing request, see server logs");
/// The encrypted content cannot be parsed, or has nothing that authenticates its sender.
pub(super) const UNDECRYPTABLE: OperationRefusal = OperationRefusal::new(
    ResponseCode::SESSION_FAILED,
    "Exception decrypting request with session key HandleException (ENCRYPTION_ERROR) Error decrypting buffer",
);
const TOO_SHORT: OperationRefusal =
    OperationRefusal::new(ResponseCode::PROTOCOL_ERROR, "Invalid message length");

impl From<OperationRefusal> for OpeningFailure {
    fn from(refused: OperationRefusal) -> Self {
        Self::Answered(OpCode::RESERVED, refused)
    }
}

/// Parses `message`, envelope first. Bytes after the message are ignored.
///
/// # Errors
/// When the message is not a request that can be decided.
pub(super) fn open(message: &[u8]) -> Result<OpenedRequest<'_>, OpeningFailure> {
    let (envelope, rest) = Envelope::split(message).map_err(|_| TOO_SHORT)?;
    let rest = &rest[..rest.len().min(envelope.message_len as usize)];
    if rest.len() < Header::LEN {
        return Err(TOO_SHORT.into());
    }
    if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
        return Err(match envelope.session_id > 0 {
            true => OperationRefusal::new(
                ResponseCode::SESSION_TIMEOUT,
                "Session information not available or time out. Unable to decrypt request message.",
            ),
            false => OperationRefusal::new(
                ResponseCode::SESSION_FAILED,
                "Invalid session id. Unable to decrypt request message.",
            ),
        }
        .into());
    }
    let message = Message::decode(rest).map_err(|_| UNREADABLE)?;
    let Header { op_code, response_code, .. } = message.header;
    if response_code != ResponseCode::RESERVED {
        return Err(match envelope.request_id == UNREADABLE_REQUEST_ID {
            true => OpeningFailure::Dropped,
            false => UNREADABLE.into(),
        });
    }
    if op_code == OpCode::RESERVED {
        let text = "Unknown opCode in message: 0";
        return Err(OperationRefusal::new(ResponseCode::PROTOCOL_ERROR, text).into());
    }
    let (guard, body) = match op_code {
        OpCode::CREATE_HANDLE
        | OpCode::DELETE_HANDLE
        | OpCode::ADD_VALUE
        | OpCode::REMOVE_VALUE
        | OpCode::MODIFY_VALUE => ChangeGuard::split(message.body).map_err(|_| UNREADABLE)?,
        _ => (ChangeGuard::default(), message.body),
    };
    // Unknown operations end here, as do bodies that cannot be parsed.
    let request = Request::decode(op_code, envelope.version, body).map_err(|_| UNREADABLE)?;
    if matches!(request, Request::Unknown(..)) {
        return Err(UNREADABLE.into());
    }
    Ok(OpenedRequest {
        version: envelope.answer_version(),
        session_id: envelope.session_id,
        request_id: envelope.request_id,
        message,
        guard,
        request,
    })
}

/// The request id of an answer to a message that cannot be parsed.
pub(super) const UNREADABLE_REQUEST_ID: i32 = -1;

impl OpenedRequest<'_> {
    /// The flags of the request.
    #[must_use]
    pub const fn flags(&self) -> OpFlags {
        self.message.header.flags
    }

    /// The operation of the request.
    #[must_use]
    pub const fn op_code(&self) -> OpCode {
        self.message.header.op_code
    }
}

impl<'a> OpenedRequest<'a> {
    /// The request as decisions get it, answered in `version`.
    pub(super) const fn operation_request(
        &self,
        version: Version,
        random: [u8; 16],
        now_unix_s: u32,
    ) -> OperationRequest<'a> {
        OperationRequest {
            request: self.request,
            flags: self.flags(),
            guard: self.guard,
            version,
            in_session: self.session_id != 0,
            random,
            now_unix_s,
        }
    }
}
