//! The key and the results of a request to change many records. Not in the RFCs: processes exchange
//! them, and the store keeps them.

use super::cursor::Cursor;
use super::put;
use crate::ResponseCode;
use crate::error::Field;
use alloc::string::String;
use alloc::vec::Vec;

/// A key under which a request may be repeated without being carried out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkKey<'a> {
    /// The name that the client has chosen.
    pub name: &'a [u8],
    /// SHA-256 of the body of the request.
    pub digest: [u8; 32],
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkResult {
    /// The number of the change.
    pub number: u32,
    /// The response code.
    pub code: ResponseCode,
    /// The text of a refusal; may be empty.
    pub text: String,
}

impl BulkResult {
    /// Appends the result.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::u32(out, self.number);
        put::i32(out, self.code.0);
        put::string(out, self.text.as_bytes());
    }

    /// Decodes results that follow one another; `None` if they are malformed.
    #[must_use]
    pub fn decode_all(bytes: &[u8]) -> Option<Vec<Self>> {
        let (mut cursor, mut results) = (Cursor::new(bytes), Vec::new());
        while !cursor.rest().is_empty() {
            let (number, code) = (cursor.u32(Field::Answer).ok()?, cursor.i32(Field::Answer).ok()?);
            let text = String::from_utf8_lossy(cursor.string(Field::Answer).ok()?).into_owned();
            results.push(Self { number, code: ResponseCode(code), text });
        }
        Some(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_round_trip_and_those_that_are_cut_are_refused() {
        let result =
            |number, text: &str| BulkResult { number, code: ResponseCode::SUCCESS, text: text.into() };
        let (first, second) = (result(1, ""), result(u32::MAX, "no such handle"));
        let mut bytes = Vec::new();
        first.encode(&mut bytes);
        let first_len = bytes.len();
        second.encode(&mut bytes);
        assert_eq!(BulkResult::decode_all(&bytes).unwrap(), [first.clone(), second]);
        for len in 1..bytes.len() {
            let cut = BulkResult::decode_all(&bytes[..len]);
            assert_eq!(cut, (len == first_len).then(|| [first.clone()].into()), "cut to {len}");
        }
        assert_eq!(BulkResult::decode_all(&[0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
