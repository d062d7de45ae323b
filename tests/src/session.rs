//! A minimal implementation of the client side of a session.

use crate::vectors::hex;
use handle_auth::PublicKey;
use handle_auth::agreement::{self, Group, KeyPair};
use handle_auth::message::{attach, mac_message, verify_mac_message, verify_message};
use handle_auth::session::SessionKey;
use handle_proto::data::key::Number;
use handle_proto::wire::counter::SeenCounters;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::Reference;
use handle_proto::wire::session::{self, KeyExchange, SessionSetup};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, Version};
use serde_json::Value as Json;
use std::net::SocketAddr;

/// Function that sends a message over UDP or TCP and returns the answer.
pub type SessionExchange = fn(SocketAddr, &[u8]) -> Option<Vec<u8>>;

/// The identity of an anonymous client.
pub const NOBODY: Reference<'_> = Reference { handle: b"", index: session::ANONYMOUS_INDEX };

/// The client side of a session.
#[derive(Debug)]
pub struct ClientSession {
    /// The number of the session.
    pub id: i32,
    /// The version of its messages.
    pub version: Version,
    /// The key.
    pub key: SessionKey,
    counter: i32,
    seen: SeenCounters,
}

/// The protection of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Whether it has a MAC that is valid and not replayed.
    pub mac: bool,
    /// Whether it is encrypted.
    pub encrypted: bool,
}

/// A key pair in the group that deployed clients use.
#[must_use]
pub fn pair() -> KeyPair {
    KeyPair::new(Group::oakley_2(), &handle_auth::random())
}

/// Reads the key pair of one side from the vectors.
///
/// # Panics
/// If the numbers are invalid.
#[must_use]
pub fn recorded_pair(side: &Json) -> KeyPair {
    let number = |member: &str| {
        let digits = side[member].as_str().expect("a number in hexadecimal");
        let zero = if digits.len().is_multiple_of(2) { "" } else { "0" };
        hex(&Json::from(format!("{zero}{digits}")))
    };
    let (p, g) = (number("p_hex"), number("g_hex"));
    let group = Group::new(Number::new(&p), Number::new(&g), &agreement::BITS).expect("a group");
    KeyPair::from_private(group, &number("x_hex"))
}

/// The request to set up a session, as deployed clients write it.
///
/// # Panics
/// Never.
#[must_use]
pub fn set_up_request(pair: &KeyPair, identity: Reference<'_>, timeout_s: i32) -> Vec<u8> {
    set_up_request_as(Version::CURRENT, pair, identity, timeout_s)
}

/// The same request, by a client that supports versions up to `version`.
///
/// # Panics
/// Never.
#[must_use]
pub fn set_up_request_as(
    version: Version,
    pair: &KeyPair,
    identity: Reference<'_>,
    timeout_s: i32,
) -> Vec<u8> {
    let record = pair.public_record();
    let setup = SessionSetup { exchange: KeyExchange::DiffieHellman(&record), timeout_s, identity };
    let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY).with(OpFlags::REQUEST_DIGEST);
    let header = Header::request(OpCode::SESSION_SETUP, flags, 0);
    let envelope = Envelope { version, suggested: version, ..Envelope::request(4711) };
    let message = MessageBuf::request(&envelope, &header, &Request::SessionSetup(setup));
    message.unsigned().expect("a short message")
}

impl ClientSession {
    /// Sets up a session with the server at `address`, whose signature must verify with
    /// `server_key`.
    ///
    /// # Panics
    /// If no session is set up.
    #[must_use]
    pub fn open(
        exchange: SessionExchange,
        address: SocketAddr,
        identity: Reference<'_>,
        server_key: &PublicKey,
    ) -> Self {
        let pair = pair();
        let answer = exchange(address, &set_up_request(&pair, identity, 0)).expect("an answer");
        Self::from_answer(&pair, &answer, Some(server_key))
    }

    /// The session that results from the answer to a set-up with `pair`.
    ///
    /// # Panics
    /// When the answer is a refusal, or is not signed with `server_key`.
    #[must_use]
    pub fn from_answer(pair: &KeyPair, answer: &[u8], server_key: Option<&PublicKey>) -> Self {
        let (envelope, rest) = Envelope::split(answer).expect("an envelope");
        let message = Message::decode(rest).expect("a message");
        if let Some(key) = server_key {
            verify_message(&envelope, &message, key).expect("the signature of the server");
        }
        let body = message.decode_body(envelope.version);
        let Ok(Body::Reply(Reply { response: Response::Session(set_up), .. })) = body else {
            panic!("no session: {:?}", message.header.response_code);
        };
        let since = session::SessionKey::DIFFIE_HELLMAN_SINCE;
        let session_key = session::SessionKey::decode(set_up.data, envelope.version, since).expect("a key");
        let secret = pair.agree(session_key.key).expect("a secret");
        Self {
            id: envelope.session_id,
            version: envelope.version,
            key: SessionKey::derive(session_key.cipher, &secret).expect("a key for the cipher"),
            counter: 0,
            seen: SeenCounters::new(),
        }
    }

    /// A request in the session, without a MAC.
    ///
    /// # Panics
    /// When it is too long.
    #[must_use]
    pub fn request(&self, request_id: i32, flags: OpFlags, request: &Request<'_>) -> Vec<u8> {
        let (version, suggested) = (self.version, self.version);
        let envelope = Envelope { version, suggested, session_id: self.id, ..Envelope::request(request_id) };
        let header = Header::request(OpCode::RESERVED, flags, 0);
        MessageBuf::request(&envelope, &header, request).unsigned().expect("a message that is not too long")
    }

    /// The message with a MAC and the next counter.
    #[must_use]
    pub fn seal(&mut self, message: Vec<u8>) -> Vec<u8> {
        self.counter += 1;
        self.add_mac(message, self.counter)
    }

    /// The message with a MAC and this counter.
    ///
    /// # Panics
    /// When the message is invalid.
    #[must_use]
    pub fn add_mac(&self, mut message: Vec<u8>, counter: i32) -> Vec<u8> {
        let (envelope, rest) = Envelope::split(&message).expect("an envelope");
        let covered = Message::decode(rest).expect("a message").covered;
        let credential = mac_message(&envelope, counter, covered, self.key.as_bytes());
        let covered_len = covered.len();
        attach(&mut message, covered_len, |out| out.extend_from_slice(&credential));
        message
    }

    /// The message encrypted.
    ///
    /// # Panics
    /// When the message is invalid.
    #[must_use]
    pub fn encrypt(&self, message: &[u8]) -> Vec<u8> {
        let (envelope, text) = Envelope::split(message).expect("an envelope");
        let encrypted = self.key.encrypt(envelope.version, &handle_auth::random(), text);
        let message_len = u32::try_from(encrypted.len()).expect("a short message");
        let envelope = Envelope { flags: EnvelopeFlags::ENCRYPTED, message_len, ..envelope };
        [&envelope.to_bytes()[..], &encrypted].concat()
    }

    /// Decrypts an answer, and returns its protection.
    ///
    /// # Panics
    /// When its MAC is wrong, or the message is a replay.
    #[must_use]
    pub fn read(&mut self, answer: &[u8]) -> (Vec<u8>, Protection) {
        let (envelope, rest) = Envelope::split(answer).expect("an envelope");
        let encrypted = envelope.flags.has(EnvelopeFlags::ENCRYPTED);
        let plain = match encrypted {
            true => self.key.decrypt(envelope.version, rest).expect("encrypted with our key").to_vec(),
            false => rest.to_vec(),
        };
        let message = Message::decode(&plain).expect("a message");
        let mac = !message.credential.is_empty();
        if mac {
            let checked = verify_mac_message(&envelope, &message, self.key.as_bytes());
            assert!(self.seen.accept(checked.expect("the MAC of the session").counter), "a replayed message");
        }
        let message_len = u32::try_from(plain.len()).expect("a short message");
        let envelope = Envelope { flags: EnvelopeFlags::default(), message_len, ..envelope };
        ([&envelope.to_bytes()[..], &plain].concat(), Protection { mac, encrypted })
    }
}
