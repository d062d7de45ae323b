//! Callers over HTTP: one request and one reply on each connection.
//!
//! `handle-gateway` cannot authenticate anybody by itself. It forwards the signature or MAC of a
//! caller; `handle-admin` verifies it with the keys of the caller, and starts a session for the
//! identity. What a caller with a certificate has signed is its TLS handshake, in which the random
//! bytes of the server are a nonce.

use crate::fields::{address, put_address};
use handle_auth::handshake::{HANDSHAKE_LEN_MAX, HandshakeProof, SERVER_RANDOM_LEN};
use handle_proto::error::Field;
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::list::Reference;
use handle_proto::wire::put;
use std::net::IpAddr;
use zeroize::Zeroizing;

/// Length of the part of a nonce that `handle-admin` makes.
pub const NONCE_START_LEN: usize = 16;
/// Length of a nonce: its start, and as many random bytes of `handle-gateway`.
pub const NONCE_LEN: usize = 2 * NONCE_START_LEN;
/// The number of a session.
pub type CallerSessionId = [u8; 16];
/// The secret of a session.
pub type CallerSessionSecret = Zeroizing<[u8; 32]>;
/// Maximum length of a request or reply.
pub const LEN_MAX: usize = 64 << 10;
const _: () = assert!(NONCE_LEN == SERVER_RANDOM_LEN, "the random bytes of a server are a nonce");
const _: () = assert!(HANDSHAKE_LEN_MAX <= LEN_MAX / 2, "a handshake and its signature fit");

/// The proof of a caller for its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerProof<'a> {
    /// The nonce that the caller received.
    pub nonce: &'a [u8],
    /// The caller's own nonce.
    pub client_nonce: &'a [u8],
    /// `HS_PUBKEY` or `HS_SECKEY`.
    pub auth_type: &'a [u8],
    /// The identity.
    pub identity: Reference<'a>,
    /// The signature or MAC of both nonces, in the form of an answer to a challenge.
    pub signed_response: &'a [u8],
    /// The address of the caller.
    pub source: IpAddr,
}

/// The proof of a caller for the identity in its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateProof<'a> {
    /// The handshake that the caller has signed. It has the certificate, and a nonce as the random
    /// bytes of the server.
    pub handshake: HandshakeProof<'a>,
    /// The address of the caller.
    pub source: IpAddr,
}

/// A request of `handle-gateway`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerRequest<'a> {
    /// The start of further nonces.
    NonceStart,
    /// Verify a proof, and start a session.
    Prove(CallerProof<'a>),
    /// Sign both nonces with the key of the server.
    Sign {
        /// A nonce that begins with such a start.
        nonce: &'a [u8],
        /// The caller's own nonce.
        client_nonce: &'a [u8],
        /// The address of the caller.
        source: IpAddr,
    },
    /// End a session.
    End(CallerSessionId),
    /// Verify a proof, and start a session for the identity in the certificate.
    ProveByCertificate(CertificateProof<'a>),
}

/// Why a proof is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerRefusal {
    /// It was not made with a key of the identity.
    Wrong,
    /// Its nonce has an unknown start, is too old, or was used before.
    Stale,
    /// Too much work waits.
    Busy,
    /// The service of the identity was asked and did not answer.
    Unanswered,
    /// This server does not support the request.
    Unsupported,
}

/// A reply of `handle-admin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerReply {
    /// The start of nonces, and their validity.
    NonceStart {
        /// The first bytes of nonces.
        start: [u8; NONCE_START_LEN],
        /// Milliseconds for which proofs with such nonces are accepted.
        valid_ms: u32,
    },
    /// The proof is valid, and a session has started.
    Proven {
        /// The number of the session.
        id: CallerSessionId,
        /// Its secret.
        secret: CallerSessionSecret,
        /// The index of the key that verified the proof.
        index: i32,
    },
    /// The signature of the server.
    Signed {
        /// The name of its digest.
        algorithm: Vec<u8>,
        /// The signature.
        signature: Vec<u8>,
    },
    /// The session has ended.
    Ended,
    /// The request is refused.
    Refused(CallerRefusal),
}

impl CallerRefusal {
    const ALL: [Self; 5] = [Self::Wrong, Self::Stale, Self::Busy, Self::Unanswered, Self::Unsupported];
}

impl<'a> CallerRequest<'a> {
    /// Encodes the request.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(1024));
        match *self {
            Self::NonceStart => out.push(1),
            Self::Prove(proof) => {
                out.push(2);
                put::string(&mut out, proof.nonce);
                put::string(&mut out, proof.client_nonce);
                put::string(&mut out, proof.auth_type);
                proof.identity.encode(&mut out);
                put::string(&mut out, proof.signed_response);
                put_address(&mut out, proof.source);
            }
            Self::Sign { nonce, client_nonce, source } => {
                out.push(3);
                put::string(&mut out, nonce);
                put::string(&mut out, client_nonce);
                put_address(&mut out, source);
            }
            Self::End(id) => {
                out.push(4);
                out.extend_from_slice(&id);
            }
            Self::ProveByCertificate(CertificateProof { handshake, source }) => {
                out.push(5);
                out.extend_from_slice(&handshake.scheme.to_be_bytes());
                put::string(&mut out, handshake.messages);
                put::string(&mut out, handshake.signature);
                put_address(&mut out, source);
            }
        }
        out
    }

    /// Decodes a request; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, body) = bytes.split_first()?;
        let mut cursor = Cursor::new(body);
        let request = match kind {
            1 => Self::NonceStart,
            2 => Self::Prove(CallerProof {
                nonce: cursor.string(Field::Nonce).ok()?,
                client_nonce: cursor.string(Field::Nonce).ok()?,
                auth_type: cursor.string(Field::Answer).ok()?,
                identity: Reference {
                    handle: cursor.string(Field::Handle).ok()?,
                    index: cursor.i32(Field::Answer).ok()?,
                },
                signed_response: cursor.string(Field::Answer).ok()?,
                source: address(&mut cursor)?,
            }),
            3 => Self::Sign {
                nonce: cursor.string(Field::Nonce).ok()?,
                client_nonce: cursor.string(Field::Nonce).ok()?,
                source: address(&mut cursor)?,
            },
            4 => Self::End(cursor.bytes(16, Field::Answer).ok()?.try_into().ok()?),
            5 => {
                let scheme = u16::from_be_bytes(cursor.bytes(2, Field::Answer).ok()?.try_into().ok()?);
                let (messages, signature) =
                    (cursor.string(Field::Answer).ok()?, cursor.string(Field::Answer).ok()?);
                let source = address(&mut cursor)?;
                let handshake = HandshakeProof { messages, scheme, signature };
                Self::ProveByCertificate(CertificateProof { handshake, source })
            }
            _ => return None,
        };
        cursor.rest().is_empty().then_some(request)
    }
}

impl CallerReply {
    /// Encodes the reply.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(1024));
        match self {
            Self::NonceStart { start, valid_ms } => {
                out.push(1);
                out.extend_from_slice(start);
                out.extend_from_slice(&valid_ms.to_be_bytes());
            }
            Self::Proven { id, secret, index } => {
                out.push(2);
                out.extend_from_slice(id);
                out.extend_from_slice(&secret[..]);
                out.extend_from_slice(&index.to_be_bytes());
            }
            Self::Signed { algorithm, signature } => {
                out.push(3);
                put::string(&mut out, algorithm);
                put::string(&mut out, signature);
            }
            Self::Ended => out.push(4),
            Self::Refused(why) => {
                let code = CallerRefusal::ALL.iter().position(|refusal| refusal == why);
                out.extend_from_slice(&[5, u8::try_from(code.unwrap_or(0)).unwrap_or(0)]);
            }
        }
        out
    }

    /// Decodes a reply; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, body) = bytes.split_first()?;
        let mut cursor = Cursor::new(body);
        let reply = match kind {
            1 => Self::NonceStart {
                start: cursor.bytes(NONCE_START_LEN, Field::Nonce).ok()?.try_into().ok()?,
                valid_ms: u32::from_be_bytes(cursor.bytes(4, Field::Nonce).ok()?.try_into().ok()?),
            },
            2 => Self::Proven {
                id: cursor.bytes(16, Field::Answer).ok()?.try_into().ok()?,
                secret: Zeroizing::new(cursor.bytes(32, Field::Answer).ok()?.try_into().ok()?),
                index: cursor.i32(Field::Answer).ok()?,
            },
            3 => Self::Signed {
                algorithm: cursor.string(Field::Answer).ok()?.to_vec(),
                signature: cursor.string(Field::Answer).ok()?.to_vec(),
            },
            4 => Self::Ended,
            5 => {
                let code = *cursor.bytes(1, Field::Answer).ok()?.first()?;
                Self::Refused(*CallerRefusal::ALL.get(usize::from(code))?)
            }
            _ => return None,
        };
        cursor.rest().is_empty().then_some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_survive_their_encoding_and_no_other_length_does() {
        let source = IpAddr::from([192, 0, 2, 1]);
        let proof = CallerProof {
            nonce: &[1; 32],
            client_nonce: &[2; 16],
            auth_type: b"HS_PUBKEY",
            identity: Reference { handle: b"0.NA/20.500.1", index: 300 },
            signed_response: &[3; 300],
            source,
        };
        let handshake = HandshakeProof { messages: &[4; 900], scheme: 0x0804, signature: &[5; 256] };
        let requests = [
            CallerRequest::NonceStart,
            CallerRequest::Prove(proof),
            CallerRequest::Sign { nonce: &[1; 32], client_nonce: b"", source },
            CallerRequest::End([9; 16]),
            CallerRequest::ProveByCertificate(CertificateProof { handshake, source }),
        ];
        for request in requests {
            let bytes = request.encode();
            assert_eq!(CallerRequest::decode(&bytes), Some(request));
            for len in 0..bytes.len() {
                assert_eq!(CallerRequest::decode(&bytes[..len]), None, "{request:?} cut to {len}");
            }
            assert_eq!(CallerRequest::decode(&[&bytes[..], b"x"].concat()), None);
        }
        let replies = [
            CallerReply::NonceStart { start: [4; 16], valid_ms: 300_000 },
            CallerReply::Proven { id: [5; 16], secret: Zeroizing::new([6; 32]), index: -1 },
            CallerReply::Signed { algorithm: b"SHA-256".to_vec(), signature: vec![7; 256] },
            CallerReply::Ended,
        ];
        for reply in replies.into_iter().chain(CallerRefusal::ALL.map(CallerReply::Refused)) {
            let bytes = reply.encode();
            assert_eq!(CallerReply::decode(&bytes).as_ref(), Some(&reply));
            for len in 0..bytes.len() {
                assert_eq!(CallerReply::decode(&bytes[..len]), None, "{reply:?} cut to {len}");
            }
        }
    }
}
