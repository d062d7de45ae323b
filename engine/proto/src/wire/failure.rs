//! The body of an error response. RFC 3652 section 3.3.

use super::cursor::Cursor;
use super::put;
use crate::error::{DecodeError, Field};
use alloc::vec::Vec;

/// Body of every response that is neither a success, a referral nor a challenge.
///
/// The RFC's list of indexes after the text is not deployed, and is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// Text for people, UTF-8 by convention; may be empty.
    pub message: &'a [u8],
}

impl<'a> Failure<'a> {
    /// Decodes a body. An empty body, without the length, is an empty text too.
    ///
    /// # Errors
    /// When the text does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        if body.is_empty() {
            return Ok(Self { message: b"" });
        }
        Ok(Self { message: Cursor::new(body).string(Field::ErrorMessage)? })
    }

    /// Appends the body to `out`, always with the length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.message);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{refuses_every_truncation, survives_false_numbers};
    use super::*;
    use alloc::vec;

    #[test]
    fn round_trips_and_accepts_no_body_at_all() {
        let mut out = vec![];
        Failure { message: b"not here" }.encode(&mut out);
        assert_eq!(out, b"\0\0\0\x08not here");
        assert_eq!(Failure::decode(&out), Ok(Failure { message: b"not here" }));
        refuses_every_truncation(&out, &[0], |bytes| Failure::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| Failure::decode(bytes).map(|_| ()));
        assert_eq!(Failure::decode(b""), Ok(Failure { message: b"" }));
    }
}
