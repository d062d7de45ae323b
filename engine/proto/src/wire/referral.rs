//! Referrals: another service has the requested record. RFC 3652 section 3.4.

use super::cursor::Cursor;
use super::list::Values;
use super::put;
use crate::error::{DecodeError, Field};
use crate::limit::{HANDLE_LEN_MAX, VALUES_COUNT_MAX};
use alloc::vec::Vec;

/// Body of a service referral (302), and from version 2.5 on of a prefix referral (303).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Referral<'a> {
    /// The handle whose values name the service; empty if [`values`](Self::values) name it.
    pub handle: &'a [u8],
    /// The values that name the service. An absent list differs from an empty one.
    pub values: Option<Values<'a>>,
}

impl<'a> Referral<'a> {
    /// Decodes a body. Bytes after the values are ignored, as in deployed software.
    ///
    /// # Errors
    /// When a field does not fit, or is longer than deployed clients accept.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        let handle = cursor.string(Field::Handle)?;
        if handle.len() > HANDLE_LEN_MAX {
            return Err(DecodeError::TooLong { field: Field::Handle, at: 0 });
        }
        if cursor.rest().is_empty() {
            return Ok(Self { handle, values: None });
        }
        let start = cursor;
        let values = Values::decode(&mut cursor)?;
        if values.len() > VALUES_COUNT_MAX {
            return Err(start.too_long(Field::Values));
        }
        Ok(Self { handle, values: Some(values) })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.handle);
        if let Some(values) = self.values {
            values.encode(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{refuses_every_truncation, survives_false_numbers};
    use super::*;
    use crate::value::Value;
    use alloc::vec;

    #[test]
    fn an_absent_list_is_not_an_empty_one() {
        let mut out = vec![];
        let absent = Referral { handle: b"10.SERV/A", values: None };
        absent.encode(&mut out);
        assert_eq!(Referral::decode(&out), Ok(absent));
        let empty = Referral { values: Some(Values::EMPTY), ..absent };
        out.clear();
        empty.encode(&mut out);
        assert_eq!(Referral::decode(&out), Ok(empty));
    }

    #[test]
    fn stands_truncation_and_lies() {
        let (mut storage, mut out) = (vec![], vec![]);
        let values = Values::build([Value::new(1, b"HS_SITE", b"..")], &mut storage);
        Referral { handle: b"10/x", values: Some(values) }.encode(&mut out);
        // Truncated after the handle, it is the referral without values.
        refuses_every_truncation(&out, &[8], |bytes| Referral::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| Referral::decode(bytes).map(|_| ()));
    }

    #[test]
    fn takes_as_much_as_deployed_clients_and_no_more() {
        for (len, count) in
            [(HANDLE_LEN_MAX, VALUES_COUNT_MAX), (HANDLE_LEN_MAX + 1, 0), (0, VALUES_COUNT_MAX + 1)]
        {
            let (handle, mut storage, mut out) = (vec![b'a'; len], vec![], vec![]);
            let values = Values::build(core::iter::repeat_n(Value::new(1, b"", b""), count), &mut storage);
            Referral { handle: &handle, values: Some(values) }.encode(&mut out);
            let fits = len <= HANDLE_LEN_MAX && count <= VALUES_COUNT_MAX;
            assert_eq!(Referral::decode(&out).is_ok(), fits, "{len} {count}");
        }
    }
}
