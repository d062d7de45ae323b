//! A message after its envelope: header, body, credential.

use super::cursor::Cursor;
use super::header::Header;
use crate::error::{DecodeError, Field};

/// Everything after the envelope, taken apart: header, body, and the bytes of the credential.
///
/// RFC 3652 section 2.2. The body is not decoded yet: what it is depends on the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// What is asked or answered.
    pub header: Header,
    /// As many bytes as the header says.
    pub body: &'a [u8],
    /// Bytes of the credential; empty when the message is not signed.
    pub credential: &'a [u8],
    /// Header and body as they came: what digests and signatures cover.
    pub covered: &'a [u8],
}

impl<'a> Message<'a> {
    /// Takes apart `bytes`, which are all that follows the envelope.
    ///
    /// A message that ends before the length of the credential is unsigned, and what follows the
    /// credential is ignored, as deployed.
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
}
