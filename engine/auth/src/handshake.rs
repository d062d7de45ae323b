//! Handshakes of TLS 1.2 in which a client shows a certificate.
//!
//! With its key, the client signs all messages from its `ClientHello` to its `ClientKeyExchange`,
//! concatenated (RFC 5246 section 7.4.8). They contain its certificate, and random bytes of the
//! server, which may be a nonce. So the signature, verified over these bytes, shows that the client
//! has the key and was asked with this nonce. Nothing in the messages is encrypted.
//!
//! The messages are read strictly: those that a full handshake with a certificate has, each once
//! and in this order, and nothing between or after them. Other bytes that the same key may have
//! signed do not have this form: a message or challenge of the handle protocol, a handshake of TLS
//! 1.3 or DTLS.

use crate::key::PublicKey;
use std::fmt;

/// Maximum length of the signed messages of a handshake.
pub const HANDSHAKE_LEN_MAX: usize = 32 << 10;
/// Length of the random bytes of a server.
pub const SERVER_RANDOM_LEN: usize = 32;

/// The version TLS 1.2, as messages write it.
const VERSION: [u8; 2] = [3, 3];

/// The messages that are signed, in their order. RFC 5246 sections 7.3 and 7.4.
const MESSAGES: [HandshakeMessage; 8] = [
    HandshakeMessage::ClientHello,
    HandshakeMessage::ServerHello,
    HandshakeMessage::Certificate,
    HandshakeMessage::ServerKeyExchange,
    HandshakeMessage::CertificateRequest,
    HandshakeMessage::ServerHelloDone,
    HandshakeMessage::Certificate,
    HandshakeMessage::ClientKeyExchange,
];

/// The type of a message, with its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeMessage {
    /// The first message of the client.
    ClientHello = 1,
    /// The answer of the server, with its random bytes.
    ServerHello = 2,
    /// The certificates of either side.
    Certificate = 11,
    /// The signed part of the server in the key exchange.
    ServerKeyExchange = 12,
    /// The question for a certificate of the client.
    CertificateRequest = 13,
    /// The end of the messages of the server.
    ServerHelloDone = 14,
    /// The part of the client in the key exchange.
    ClientKeyExchange = 16,
}

/// Why bytes are not the signed messages of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// They are longer than [`HANDSHAKE_LEN_MAX`].
    TooLong,
    /// They end before or within this message.
    Truncated(HandshakeMessage),
    /// Another message is in the place of this one.
    Order(HandshakeMessage),
    /// A length or field of this message is wrong.
    Malformed(HandshakeMessage),
    /// This message is of another version of TLS.
    Version(HandshakeMessage),
    /// The client has sent no certificate.
    NoCertificate,
    /// Bytes follow the last message.
    Trailing,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a handshake of more than {HANDSHAKE_LEN_MAX} bytes"),
            Self::Truncated(message) => write!(f, "the handshake ends before the end of {message:?}"),
            Self::Order(message) => write!(f, "another message in the place of {message:?}"),
            Self::Malformed(message) => write!(f, "a wrong length in {message:?}"),
            Self::Version(message) => write!(f, "{message:?} is not of TLS 1.2"),
            Self::NoCertificate => f.write_str("the client has sent no certificate"),
            Self::Trailing => f.write_str("bytes after the last message of the handshake"),
        }
    }
}

impl std::error::Error for HandshakeError {}

/// The signed messages of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedHandshake<'a> {
    /// The random bytes of the server.
    pub server_random: &'a [u8; SERVER_RANDOM_LEN],
    /// The certificate of the client, the first of those that it has sent.
    pub certificate: &'a [u8],
}

impl<'a> SignedHandshake<'a> {
    /// Reads the messages, as the client has signed them.
    ///
    /// # Errors
    /// When they are not those of one whole handshake.
    pub fn parse(messages: &'a [u8]) -> Result<Self, HandshakeError> {
        if messages.len() > HANDSHAKE_LEN_MAX {
            return Err(HandshakeError::TooLong);
        }
        let (mut rest, mut bodies) = (messages, [&[][..]; MESSAGES.len()]);
        for (message, body) in MESSAGES.into_iter().zip(&mut bodies) {
            (*body, rest) = split_message(message, rest)?;
        }
        if !rest.is_empty() {
            return Err(HandshakeError::Trailing);
        }
        let [hello, server_hello, _, _, _, done, certificates, _] = bodies;
        if !hello.starts_with(&VERSION) {
            return Err(HandshakeError::Version(HandshakeMessage::ClientHello));
        }
        if !done.is_empty() {
            return Err(HandshakeError::Malformed(HandshakeMessage::ServerHelloDone));
        }
        Ok(Self {
            server_random: server_random(server_hello)?,
            certificate: first_certificate(certificates)?,
        })
    }
}

/// Splits a message of this type from what follows: type, length in three bytes, body.
fn split_message(message: HandshakeMessage, bytes: &[u8]) -> Result<(&[u8], &[u8]), HandshakeError> {
    let truncated = HandshakeError::Truncated(message);
    let (&code, bytes) = bytes.split_first().ok_or(truncated)?;
    if code != message as u8 {
        return Err(HandshakeError::Order(message));
    }
    split_vector::<3>(bytes).ok_or(truncated)
}

/// Splits a vector from what follows: its length in `LEN` bytes, and its content.
fn split_vector<const LEN: usize>(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, bytes) = bytes.split_first_chunk::<LEN>()?;
    let len = len.iter().fold(0, |len, &byte| len << 8 | usize::from(byte));
    bytes.split_at_checked(len)
}

/// The random bytes in the body of a `ServerHello`. RFC 5246 section 7.4.1.3.
fn server_random(body: &[u8]) -> Result<&[u8; SERVER_RANDOM_LEN], HandshakeError> {
    let malformed = HandshakeError::Malformed(HandshakeMessage::ServerHello);
    let (version, body) = body.split_first_chunk().ok_or(malformed)?;
    if *version != VERSION {
        return Err(HandshakeError::Version(HandshakeMessage::ServerHello));
    }
    let (random, body) = body.split_first_chunk().ok_or(malformed)?;
    let (session_id, body) = split_vector::<1>(body).ok_or(malformed)?;
    // The cipher suite, and the method of compression.
    let (_, body) = body.split_first_chunk::<3>().ok_or(malformed)?;
    let has_whole_extensions = split_vector::<2>(body).is_some_and(|(_, rest)| rest.is_empty());
    if session_id.len() > 32 || (!body.is_empty() && !has_whole_extensions) {
        return Err(malformed);
    }
    Ok(random)
}

/// The first certificate in the body of a `Certificate`. RFC 5246 section 7.4.2.
fn first_certificate(body: &[u8]) -> Result<&[u8], HandshakeError> {
    let malformed = HandshakeError::Malformed(HandshakeMessage::Certificate);
    let (mut list, rest) = split_vector::<3>(body).ok_or(malformed)?;
    if !rest.is_empty() {
        return Err(malformed);
    }
    let mut first = None;
    while !list.is_empty() {
        let (certificate, rest) = split_vector::<3>(list).ok_or(malformed)?;
        if certificate.is_empty() {
            return Err(malformed);
        }
        first.get_or_insert(certificate);
        list = rest;
    }
    first.ok_or(HandshakeError::NoCertificate)
}

/// How a client signs a handshake with an RSA key: the schemes of TLS 1.2 with a digest of today,
/// and their codes. RFC 5246 section 7.4.1.4.1, RFC 8446 section 4.2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeSignature {
    /// PKCS #1 v1.5 with SHA-256.
    Pkcs1Sha256 = 0x0401,
    /// PKCS #1 v1.5 with SHA-384.
    Pkcs1Sha384 = 0x0501,
    /// PKCS #1 v1.5 with SHA-512.
    Pkcs1Sha512 = 0x0601,
    /// PSS with SHA-256.
    PssSha256 = 0x0804,
    /// PSS with SHA-384.
    PssSha384 = 0x0805,
    /// PSS with SHA-512.
    PssSha512 = 0x0806,
}

impl HandshakeSignature {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Pkcs1Sha256,
        Self::Pkcs1Sha384,
        Self::Pkcs1Sha512,
        Self::PssSha256,
        Self::PssSha384,
        Self::PssSha512,
    ];

    /// The scheme with this code; `None` for one of other keys or digests.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| *scheme as u16 == code)
    }
}

/// A signature over the messages of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeProof<'a> {
    /// The signed messages.
    pub messages: &'a [u8],
    /// The code of the scheme.
    pub scheme: u16,
    /// The signature.
    pub signature: &'a [u8],
}

impl HandshakeProof<'_> {
    /// Whether the signature was made with `key`, which has at least 2048 bits.
    #[must_use]
    pub fn is_made_with(&self, key: &PublicKey) -> bool {
        HandshakeSignature::from_code(self.scheme)
            .is_some_and(|scheme| key.verify_handshake(scheme, self.messages, self.signature).is_ok())
    }
}

#[cfg(test)]
mod tests;
