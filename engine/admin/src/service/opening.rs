//! Parses a message into a request that can be decided, or into the reason why it cannot be
//! decided.
//!
//! A message of a session becomes a plain message with a known sender here.

use crate::operation::OperationRefusal;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::{Envelope, Header, Message, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};

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
    /// The body.
    pub request: Request<'a>,
}

/// Why a message is not decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpeningFailure {
    /// Send this error, which refers to no request.
    Answered(OpCode, OperationRefusal),
    /// Send nothing: the message is itself an answer, and answering it could cause an endless
    /// exchange.
    Dropped,
}

/// The request cannot be parsed; the text is that of deployed servers.
pub(super) const UNREADABLE: OperationRefusal =
    OperationRefusal::new(ResponseCode::ERROR, "Server error processing request, see server logs");
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
pub fn open(message: &[u8]) -> Result<OpenedRequest<'_>, OpeningFailure> {
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
    // Unknown operations end here, as do bodies that cannot be parsed.
    let request = Request::decode(op_code, envelope.version, message.body).map_err(|_| UNREADABLE)?;
    if matches!(request, Request::Unknown(..)) {
        return Err(UNREADABLE.into());
    }
    Ok(OpenedRequest {
        version: envelope.answer_version(),
        session_id: envelope.session_id,
        request_id: envelope.request_id,
        message,
        request,
    })
}

/// The request id of an answer to a message that cannot be parsed.
pub const UNREADABLE_REQUEST_ID: i32 = -1;

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
