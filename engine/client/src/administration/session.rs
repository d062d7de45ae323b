//! A session with the server: set up once, it proves every request by a MAC instead of a challenge.
//! RFC 3652 section 3.8.

use super::{Answer, AskError, Identity, taken_apart};
use handle_auth::agreement::{Group, KeyPair};
use handle_auth::message::{mac_message, verify_mac_message};
use handle_auth::random;
use handle_auth::session::SessionKey;
use handle_proto::Version;
use handle_proto::wire::counter::SeenCounters;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::Reference;
use handle_proto::wire::message::{MessageTooLong, encrypted};
use handle_proto::wire::session::{self, ANONYMOUS_INDEX, KeyExchange, SessionSetup};
use handle_proto::wire::{Credential, Envelope, Message, MessageBuf, Request, Response};

/// The key of a session, and the messages that it has seen.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: i32,
    key: SessionKey,
    /// Counter of the last message sent.
    sent: i32,
    seen: SeenCounters,
}

/// A session that is being set up.
pub(super) struct Proposal {
    pair: KeyPair,
    record: Vec<u8>,
}

impl Proposal {
    /// A fresh pair of values, in the group of 2048 bits.
    pub(super) fn new() -> Self {
        let pair = KeyPair::new(Group::modp_14(), &random());
        Self { record: pair.public_record(), pair }
    }

    /// The request. `timeout_s` idle seconds end the session; zero leaves it to the server.
    pub(super) fn request<'a>(&'a self, identity: Option<&'a Identity>, timeout_s: i32) -> Request<'a> {
        let nobody = Reference { handle: b"", index: ANONYMOUS_INDEX };
        let identity = identity.map_or(nobody, |it| Reference { handle: &it.handle, index: it.index });
        let exchange = KeyExchange::DiffieHellman(&self.record);
        Request::SessionSetup(SessionSetup { exchange, timeout_s, identity })
    }

    /// The session that `answer` establishes; `None` when the server refuses, or agrees to nothing that is used.
    pub(super) fn agree(self, answer: &Answer) -> Option<Session> {
        let (envelope, _, reply) = taken_apart(&answer.0).ok()?;
        let Response::Session(agreed) = reply.response else { return None };
        let since = session::SessionKey::DIFFIE_HELLMAN_SINCE;
        let theirs = session::SessionKey::decode(agreed.data, Version::CURRENT, since).ok()?;
        let secret = self.pair.agree(theirs.key).ok()?;
        let key = SessionKey::derive(theirs.cipher, &secret)?;
        Some(Session { id: envelope.session_id, key, sent: 0, seen: SeenCounters::default() })
    }
}

impl Session {
    /// Finishes a message with the MAC that proves who sends it; encrypted, if others must not read it.
    pub(super) fn seal(
        &mut self,
        envelope: &Envelope,
        message: MessageBuf,
        is_secret: bool,
    ) -> Result<Vec<u8>, MessageTooLong> {
        self.sent = self.sent.checked_add(1).unwrap_or(1);
        let mac = mac_message(envelope, self.sent, message.covered(), self.key.as_bytes());
        let sealed = message.signed(&Credential::decode(&mac).expect("encoded just now"))?;
        if !is_secret {
            return Ok(sealed);
        }
        let text = self.key.encrypt(envelope.version, &random(), &sealed[Envelope::LEN..]);
        encrypted(envelope, &[&text])
    }

    /// A message as it was before it was encrypted.
    pub(super) fn decrypt(&self, message: &[u8]) -> Result<Vec<u8>, AskError> {
        let (envelope, text) = Envelope::split(message)?;
        let plain =
            (envelope.session_id == self.id).then(|| self.key.decrypt(envelope.version, text)).flatten();
        let plain = plain.ok_or(AskError::Another("it cannot be decrypted"))?;
        let flags = EnvelopeFlags(envelope.flags.0 & !EnvelopeFlags::ENCRYPTED.0);
        let message_len = u32::try_from(plain.len()).unwrap_or(u32::MAX);
        Ok([&Envelope { flags, message_len, ..envelope }.to_bytes()[..], &plain].concat())
    }

    /// Whether the server made this message in this session, and it has not come before.
    pub(super) fn check(&mut self, envelope: &Envelope, message: &Message<'_>) -> Result<(), AskError> {
        let credential =
            verify_mac_message(envelope, message, self.key.as_bytes()).map_err(AskError::Unproven)?;
        match self.seen.accept(credential.counter) {
            true => Ok(()),
            false => Err(AskError::Another("it has come before")),
        }
    }
}
