//! Resolution: the query for handle values and its answer. RFC 3652 section 3.2.

mod sorted;

pub use sorted::SortedQuery;

use super::cursor::Cursor;
use super::list::{Indexes, Strings, Values};
use super::put;
use crate::error::{DecodeError, Field};
use crate::value::{Value, type_matches};
use alloc::vec::Vec;

/// Body of a resolution request. RFC 3652 section 3.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The handle, as the client spells it.
    pub handle: &'a [u8],
    /// Indexes of the requested values.
    pub indexes: Indexes<'a>,
    /// Types of further requested values. If both lists are empty, all values are requested.
    pub types: Strings<'a>,
}

impl<'a> Query<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When a length or count in it does not fit.
    #[inline]
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        let handle = cursor.string(Field::Handle)?;
        // Nearly every query has neither list: two counts of zero.
        if cursor.rest().first_chunk() == Some(&[0; 8]) {
            return Ok(Self { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY });
        }
        Self::decode_lists(handle, cursor)
    }

    #[inline(never)]
    fn decode_lists(handle: &'a [u8], mut cursor: Cursor<'a>) -> Result<Self, DecodeError> {
        let indexes = Indexes::decode(&mut cursor)?;
        Ok(Self { handle, indexes, types: Strings::decode(&mut cursor)? })
    }

    /// Whether `value` is in either list, which takes as many comparisons as the lists are long. If
    /// both lists are empty, every value is requested, but none is listed.
    #[must_use]
    #[inline]
    pub fn lists(&self, value: &Value<'_>) -> bool {
        self.indexes.has(value.index)
            || self.types.iter().any(|requested| type_matches(requested, value.kind))
    }

    /// Most comparisons that it takes to select among `values_count` values one by one.
    #[must_use]
    pub const fn comparisons(&self, values_count: usize) -> usize {
        (self.indexes.len() + self.types.len()).saturating_mul(values_count)
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.handle);
        self.indexes.encode(out);
        self.types.encode(out);
    }
}

/// Body of a successful answer to a [`Query`], after the request digest. RFC 3652 section 3.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryAnswer<'a> {
    /// The handle, as the client spelt it.
    pub handle: &'a [u8],
    /// The values found.
    pub values: Values<'a>,
}

impl<'a> QueryAnswer<'a> {
    /// Decodes a body. Bytes after it are ignored, as in deployed software.
    ///
    /// # Errors
    /// When a field does not fit, or is longer than deployed clients accept.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        let handle = cursor.string(Field::Handle)?;
        if handle.len() > crate::limit::HANDLE_LEN_MAX {
            return Err(DecodeError::TooLong { field: Field::Handle, at: 0 });
        }
        let start = cursor;
        let values = Values::decode(&mut cursor)?;
        if values.len() > crate::limit::VALUES_COUNT_MAX {
            return Err(start.too_long(Field::Values));
        }
        Ok(Self { handle, values })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.handle);
        self.values.encode(out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{refuses_every_truncation, survives_false_numbers};
    use super::*;
    use crate::limit::{HANDLE_LEN_MAX, VALUES_COUNT_MAX};
    use alloc::vec;

    #[test]
    fn queries_round_trip_and_stand_truncation_and_lies() {
        let (mut indexes, mut types, mut out) = (vec![], vec![], vec![]);
        let query = Query {
            handle: b"10.1045/may99-payette",
            indexes: Indexes::build([1, 300], &mut indexes),
            types: Strings::build([&b"URL"[..], b"EMAIL."], &mut types),
        };
        query.encode(&mut out);
        assert_eq!(Query::decode(&out), Ok(query));
        refuses_every_truncation(&out, &[], |bytes| Query::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| Query::decode(bytes).map(|_| ()));
    }

    #[test]
    fn answers_round_trip_and_stand_truncation_and_lies() {
        let (mut values, mut out) = (vec![], vec![]);
        let values =
            Values::build([Value::new(1, b"URL", b"http://a"), Value::new(2, b"", b"")], &mut values);
        let answer = QueryAnswer { handle: b"10/a", values };
        answer.encode(&mut out);
        assert_eq!(QueryAnswer::decode(&out), Ok(answer));
        refuses_every_truncation(&out, &[], |bytes| QueryAnswer::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| QueryAnswer::decode(bytes).map(|_| ()));
    }

    #[test]
    fn answers_may_be_as_large_as_deployed_clients_accept_and_no_larger() {
        for (len, count) in
            [(HANDLE_LEN_MAX, VALUES_COUNT_MAX), (HANDLE_LEN_MAX + 1, 0), (0, VALUES_COUNT_MAX + 1)]
        {
            let (handle, mut storage, mut out) = (vec![b'a'; len], vec![], vec![]);
            let values = Values::build(core::iter::repeat_n(Value::new(1, b"", b""), count), &mut storage);
            QueryAnswer { handle: &handle, values }.encode(&mut out);
            let fits = len <= HANDLE_LEN_MAX && count <= VALUES_COUNT_MAX;
            assert_eq!(QueryAnswer::decode(&out).is_ok(), fits, "{len} {count}");
        }
    }
}
