//! An answer of a server that was checked to belong to the request.

use super::AskError;
use handle_proto::wire::message::Body;
use handle_proto::wire::{Envelope, Message, Reply, Response};
use handle_proto::{OpFlags, ResponseCode, Version};

/// An answer that was checked to belong to the request.
#[derive(Debug)]
pub struct AdministrationAnswer {
    pub(super) bytes: Vec<u8>,
    pub(super) was_repeated: bool,
    /// Whether it is signed or has a MAC, or no proof is required.
    pub(super) is_proven: bool,
}

impl AdministrationAnswer {
    pub(super) const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, was_repeated: false, is_proven: false }
    }

    /// The decoded reply.
    ///
    /// # Panics
    /// Never: it was decoded before.
    #[must_use]
    pub fn reply(&self) -> Reply<'_> {
        decode_reply(&self.bytes).expect("decoded when it was received").2
    }

    /// The version of the answer: the highest that the server supports, up to that of the client.
    ///
    /// # Panics
    /// Never: it was decoded before.
    #[must_use]
    pub fn version(&self) -> Version {
        decode_reply(&self.bytes).expect("decoded when it was received").0.version
    }

    /// The response code.
    #[must_use]
    pub fn code(&self) -> ResponseCode {
        self.reply().code
    }

    /// Whether the session had ended, according to a message that need not come from the server,
    /// and the request was repeated in a new one. A refusal may then be the consequence of a
    /// successful first attempt.
    #[must_use]
    pub const fn was_repeated(&self) -> bool {
        self.was_repeated
    }

    /// The text of a refusal; may be empty.
    #[must_use]
    pub fn text(&self) -> String {
        match self.reply().response {
            Response::Failure(failure) => String::from_utf8_lossy(failure.message).into_owned(),
            _ => String::new(),
        }
    }

    /// Whether further messages to the same request follow.
    pub(super) fn is_continued(&self) -> bool {
        self.has_flag(OpFlags::CONTINUOUS)
    }

    /// Whether the server says that it keeps the connection.
    pub(super) fn keeps_connection(&self) -> bool {
        self.has_flag(OpFlags::KEEP_CONNECTION)
    }

    fn has_flag(&self, flag: OpFlags) -> bool {
        decode_reply(&self.bytes).is_ok_and(|(_, message, _)| message.header.flags.has(flag))
    }
}

/// Decodes envelope, message and reply.
pub(super) fn decode_reply(bytes: &[u8]) -> Result<(Envelope, Message<'_>, Reply<'_>), AskError> {
    let (envelope, rest) = Envelope::split(bytes)?;
    let message = Message::decode(rest)?;
    match message.decode_body(envelope.version)? {
        Body::Reply(reply) => Ok((envelope, message, reply)),
        Body::Request(_) => Err(AskError::Another("it is a request itself")),
    }
}
