//! A message after its envelope: header, body, credential.

use super::auth::put_client;
use super::credential::Credential;
use super::cursor::Cursor;
use super::envelope::{Envelope, EnvelopeFlags};
use super::guard::ChangeGuard;
use super::header::Header;
use super::put;
use super::request::Request;
use super::response::Reply;
use crate::code::{OpFlags, ResponseCode, Version};
use crate::error::{DecodeError, Field};
use crate::limit::MESSAGE_LEN_MAX;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

/// The parsed bytes after the envelope: header, body, and the bytes of the credential.
///
/// RFC 3652 section 2.2. The body is not decoded yet, because its form depends on the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The header.
    pub header: Header,
    /// The body, of the length in the header.
    pub body: &'a [u8],
    /// Bytes of the credential; empty if the message is not signed.
    pub credential: &'a [u8],
    /// Header and body as received, which digests and signatures cover.
    pub covered: &'a [u8],
}

impl<'a> Message<'a> {
    /// Parses `bytes`, which are everything after the envelope.
    ///
    /// A message that ends before the length of the credential is unsigned, and bytes after the
    /// credential are ignored, as in deployed software.
    ///
    /// # Errors
    /// When the header is cut short, or body or credential do not fit.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, rest) = Header::split(bytes)?;
        let body = rest
            .get(..header.body_len as usize)
            .ok_or(DecodeError::Truncated { field: Field::BodyLength, at: 20 })?;
        let covered = &bytes[..Header::LEN + body.len()];
        let mut cursor = Cursor::new(bytes);
        cursor.bytes(covered.len(), Field::Body)?;
        let credential = if cursor.rest().len() < 4 { &[] } else { cursor.string(Field::Credential)? };
        Ok(Self { header, body, credential, covered })
    }

    /// Decodes the body in the form of `version`, that of the envelope.
    ///
    /// # Errors
    /// When the body does not have the form that its codes require.
    pub fn decode_body(&self, version: Version) -> Result<Body<'a>, DecodeError> {
        Ok(match self.header.response_code {
            ResponseCode::RESERVED => {
                Body::Request(Request::decode(self.header.op_code, version, self.body)?)
            }
            _ => Body::Reply(Reply::decode(&self.header, version, self.body)?),
        })
    }

    /// Decodes the credential; `None` if the message is not signed.
    ///
    /// # Errors
    /// When a length in it does not fit.
    pub fn decode_credential(&self) -> Result<Option<Credential<'a>>, DecodeError> {
        if self.credential.is_empty() { Ok(None) } else { Credential::decode(self.credential).map(Some) }
    }
}

/// A body. The message is a request if, and only if, its response code is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// The body of a request.
    Request(Request<'a>),
    /// The body of a response.
    Reply(Reply<'a>),
}

/// A message is too long to be sent: deployed peers refuse more than [`MESSAGE_LEN_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageTooLong {
    /// Bytes after the envelope.
    pub len: usize,
}

impl fmt::Display for MessageTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message of {} bytes is longer than {MESSAGE_LEN_MAX}", self.len)
    }
}

impl core::error::Error for MessageTooLong {}

/// A message being written: envelope, header and body, whose lengths are filled in at the end.
///
/// [`unsigned`](Self::unsigned) or [`signed`](Self::signed) completes it.
#[derive(Clone, Debug)]
#[must_use = "without `unsigned` or `signed` it is not a message"]
pub struct MessageBuf {
    envelope: Envelope,
    bytes: Vec<u8>,
}

impl MessageBuf {
    /// Begins a message; `body` appends the body. The lengths in `envelope` and `header` do not
    /// matter.
    pub fn new(envelope: &Envelope, header: &Header, body: impl FnOnce(&mut Vec<u8>)) -> Self {
        const BODY_AT: usize = Envelope::LEN + Header::LEN;
        let mut bytes = alloc::vec![0; BODY_AT];
        body(&mut bytes);
        // A longer body does not become a message, so its length does not matter.
        let body_len = u32::try_from(bytes.len() - BODY_AT).unwrap_or(u32::MAX);
        bytes[Envelope::LEN..BODY_AT].copy_from_slice(&Header { body_len, ..*header }.to_bytes());
        Self { envelope: *envelope, bytes }
    }

    /// Begins a request. The operation code is that of `request`, the response code is 0, and below
    /// version 2.1 the flag RD is cleared, as in deployed software.
    pub fn request(envelope: &Envelope, header: &Header, request: &Request<'_>) -> Self {
        Self::guarded_request(envelope, header, &ChangeGuard::default(), request)
    }

    /// Like [`request`](Self::request), for a proof of the client at `client`, on whose behalf it
    /// is sent.
    pub fn proof_for(envelope: &Envelope, header: &Header, request: &Request<'_>, client: IpAddr) -> Self {
        let header = Self::request_header(envelope, header, request);
        Self::new(envelope, &header, |out| {
            request.encode(envelope.version, out);
            put_client(out, client);
        })
    }

    /// Like [`request`](Self::request), with `guard` in front of the body of a change.
    pub fn guarded_request(
        envelope: &Envelope,
        header: &Header,
        guard: &ChangeGuard<'_>,
        request: &Request<'_>,
    ) -> Self {
        let header = Self::request_header(envelope, header, request);
        Self::new(envelope, &header, |out| {
            guard.encode(out);
            request.encode(envelope.version, out);
        })
    }

    fn request_header(envelope: &Envelope, header: &Header, request: &Request<'_>) -> Header {
        let flags = match envelope.version >= Version::LOWEST {
            true => header.flags,
            false => header.flags.without(OpFlags::REQUEST_DIGEST),
        };
        let (op_code, response_code) = (request.op_code(), ResponseCode::RESERVED);
        Header { op_code, response_code, flags, ..*header }
    }

    /// Begins a response. The response code is that of `reply`, in the form of the envelope's
    /// version, and the flag RD tells whether there is a digest.
    pub fn reply(envelope: &Envelope, header: &Header, reply: &Reply<'_>) -> Self {
        let response_code = reply.code.for_version(envelope.version);
        let flags = reply.flags(header.flags, envelope.version);
        let header = Header { response_code, flags, ..*header };
        Self::new(envelope, &header, |out| reply.encode(envelope.version, out))
    }

    /// Header and body, which digests and signatures cover.
    #[must_use]
    pub fn covered(&self) -> &[u8] {
        &self.bytes[Envelope::LEN..]
    }

    /// The message in its stream form, envelope first, without a credential.
    ///
    /// # Errors
    /// When it is too long.
    pub fn unsigned(mut self) -> Result<Vec<u8>, MessageTooLong> {
        put::u32(&mut self.bytes, 0);
        finish(&self.envelope, self.bytes)
    }

    /// The message in its stream form, envelope first, with a credential over
    /// [`covered`](Self::covered).
    ///
    /// # Errors
    /// When it is too long.
    pub fn signed(mut self, credential: &Credential<'_>) -> Result<Vec<u8>, MessageTooLong> {
        put::count(&mut self.bytes, credential.encoded_len());
        credential.encode(&mut self.bytes);
        finish(&self.envelope, self.bytes)
    }
}

/// An encrypted message in its stream form: the envelope, followed by `parts`, initialisation
/// vector and ciphertext.
///
/// # Errors
/// When it is too long.
pub fn encrypted(envelope: &Envelope, parts: &[&[u8]]) -> Result<Vec<u8>, MessageTooLong> {
    let flags = EnvelopeFlags(envelope.flags.0 | EnvelopeFlags::ENCRYPTED.0);
    let mut bytes = alloc::vec![0; Envelope::LEN];
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    finish(&Envelope { flags, ..*envelope }, bytes)
}

/// Writes the envelope with the length of the bytes that follow it.
fn finish(envelope: &Envelope, mut bytes: Vec<u8>) -> Result<Vec<u8>, MessageTooLong> {
    let len = bytes.len() - Envelope::LEN;
    match u32::try_from(len) {
        Ok(message_len) if message_len <= MESSAGE_LEN_MAX => {
            bytes[..Envelope::LEN].copy_from_slice(&Envelope { message_len, ..*envelope }.to_bytes());
            Ok(bytes)
        }
        _ => Err(MessageTooLong { len }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::admin::HandleBody;
    use super::*;
    use crate::code::OpCode;

    const ENVELOPE: Envelope = Envelope {
        version: Version::CURRENT,
        flags: EnvelopeFlags(0),
        suggested: Version::CURRENT,
        session_id: 0,
        request_id: 0x0102_0304,
        sequence: 0,
        message_len: 0,
    };
    const HEADER: Header = Header {
        op_code: OpCode::RESERVED,
        response_code: ResponseCode::RESERVED,
        flags: OpFlags::PLAIN_REQUEST,
        site_serial: Header::NO_SITE_SERIAL,
        recursion_count: 0,
        reserved: 0,
        expiration: 0x6700_0000,
        body_len: 0,
    };
    const REQUEST: Request<'_> = Request::ListHandles(HandleBody { handle: b"0.NA/10" });

    #[test]
    fn writes_what_it_reads() {
        let bytes = MessageBuf::request(&ENVELOPE, &HEADER, &REQUEST).unsigned().unwrap();
        let (envelope, rest) = Envelope::split(&bytes).unwrap();
        assert_eq!(envelope.message_len as usize, rest.len());
        let message = Message::decode(rest).unwrap();
        assert_eq!(message.header.op_code, OpCode::LIST_HANDLES);
        assert_eq!(message.decode_body(envelope.version), Ok(Body::Request(REQUEST)));
        assert_eq!(message.decode_credential(), Ok(None));
        assert_eq!(message.covered, &rest[..rest.len() - 4]);
    }

    #[test]
    fn signs_what_is_covered() {
        let credential = Credential::signed(7, b"SHA-256", b"signature");
        let unsigned = MessageBuf::request(&ENVELOPE, &HEADER, &REQUEST);
        let covered = unsigned.covered().to_vec();
        let bytes = unsigned.signed(&credential).unwrap();
        let message = Message::decode(&bytes[Envelope::LEN..]).unwrap();
        assert_eq!(message.covered, covered);
        assert_eq!(message.decode_credential(), Ok(Some(credential)));
    }

    #[test]
    fn cut_messages_are_refused_unless_the_credential_is_all_that_is_missing() {
        let credential = Credential::signed(7, b"SHA-256", b"signature");
        let bytes = MessageBuf::request(&ENVELOPE, &HEADER, &REQUEST).signed(&credential).unwrap();
        let message = &bytes[Envelope::LEN..];
        let body_end = Message::decode(message).unwrap().covered.len();
        for len in 0..message.len() {
            let is_unsigned = (body_end..body_end + 4).contains(&len);
            match Message::decode(&message[..len]) {
                Ok(message) => assert!(is_unsigned && message.credential.is_empty(), "cut to {len}"),
                Err(error) => assert!(!is_unsigned && error.at() <= len, "cut to {len}: {error}"),
            }
        }
    }

    #[test]
    fn a_body_length_that_lies_is_refused() {
        let bytes = MessageBuf::request(&ENVELOPE, &HEADER, &REQUEST).unsigned().unwrap();
        for lie in [1_000_u32, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            let mut message = bytes[Envelope::LEN..].to_vec();
            message[20..24].copy_from_slice(&lie.to_be_bytes());
            assert!(Message::decode(&message).is_err(), "{lie}");
        }
    }

    #[test]
    fn a_message_has_at_most_the_maximum_length() {
        let body_len_max = MESSAGE_LEN_MAX as usize - Header::LEN - 4;
        for (body_len, fits) in [(body_len_max, true), (body_len_max + 1, false)] {
            let body = alloc::vec![0; body_len];
            let message = MessageBuf::new(&ENVELOPE, &HEADER, |out| out.extend_from_slice(&body)).unsigned();
            assert_eq!(message.is_ok(), fits, "{body_len}");
            if let Ok(bytes) = message {
                assert!(Envelope::split(&bytes).is_ok());
            }
        }
    }

    #[test]
    fn an_encrypted_message_has_the_flag() {
        let bytes = encrypted(&ENVELOPE, &[b"vector", b"ciphertext"]).unwrap();
        let (envelope, rest) = Envelope::split(&bytes).unwrap();
        assert!(envelope.flags.has(EnvelopeFlags::ENCRYPTED));
        assert_eq!((rest, envelope.message_len), (&b"vectorciphertext"[..], 16));
    }
}
