//! Administration: bodies that create, change and list records. RFC 3652 sections 3.6 and 3.7.

use super::cursor::Cursor;
use super::list::{Handles, Indexes, Values};
use super::put;
use crate::error::{DecodeError, Field};
use crate::limit::HANDLE_LEN_MAX;
use alloc::vec::Vec;

/// A body with one handle: delete, list, home, terminate, site information and others.
///
/// Operations without a handle send [`BLANK`](crate::name::BLANK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleBody<'a> {
    /// The handle.
    pub handle: &'a [u8],
}

impl<'a> HandleBody<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When the handle does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self { handle: Cursor::new(body).string(Field::Handle)? })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.handle);
    }
}

/// Body of the requests to create a handle, and to add or modify values. RFC 3652 section 3.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleValues<'a> {
    /// The handle.
    pub handle: &'a [u8],
    /// The values to create, add or replace.
    pub values: Values<'a>,
}

impl<'a> HandleValues<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When a length or count in it does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        Ok(Self { handle: cursor.string(Field::Handle)?, values: Values::decode(&mut cursor)? })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.handle);
        self.values.encode(out);
    }
}

/// Body of the request to remove values. RFC 3652 section 3.6.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleIndexes<'a> {
    /// The handle.
    pub handle: &'a [u8],
    /// The indexes of the values to remove.
    pub indexes: Indexes<'a>,
}

impl<'a> HandleIndexes<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When a length or count in it does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        Ok(Self { handle: cursor.string(Field::Handle)?, indexes: Indexes::decode(&mut cursor)? })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.handle);
        self.indexes.encode(out);
    }
}

/// Body of the answer to a creation: the handle that was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedHandle<'a> {
    /// The handle. `None` from old servers, whose body is empty; it is then the requested one.
    pub handle: Option<&'a [u8]>,
}

impl<'a> CreatedHandle<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When the handle does not fit, or is longer than deployed clients accept.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        if body.is_empty() {
            return Ok(Self { handle: None });
        }
        let handle = Cursor::new(body).string(Field::Handle)?;
        if handle.len() > HANDLE_LEN_MAX {
            return Err(DecodeError::TooLong { field: Field::Handle, at: 0 });
        }
        Ok(Self { handle: Some(handle) })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if let Some(handle) = self.handle {
            put::string(out, handle);
        }
    }
}

/// A state of the store of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePosition {
    /// Identity of the store.
    pub store: u64,
    /// The last transaction that the state includes.
    pub transaction: u64,
}

impl StorePosition {
    /// Decodes a position.
    ///
    /// # Errors
    /// When the bytes are truncated.
    pub fn decode(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(Self { store: cursor.u64(Field::Replication)?, transaction: cursor.u64(Field::Replication)? })
    }

    /// Appends the position to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        put::u64(out, self.store);
        put::u64(out, self.transaction);
    }
}

/// Body of the answer to a change with the flag
/// [`SHOW_TRANSACTION`](crate::code::OpFlags::SHOW_TRANSACTION). Not in the RFCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedChange<'a> {
    /// The handle, after a creation.
    pub handle: Option<&'a [u8]>,
    /// A state of the store that includes the change.
    pub position: StorePosition,
}

impl<'a> CommittedChange<'a> {
    /// Decodes a body. Bytes after it are ignored.
    ///
    /// # Errors
    /// When a field does not fit, or the handle is too long.
    pub fn decode(body: &'a [u8], is_creation: bool) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        let handle = is_creation.then(|| cursor.string(Field::Handle)).transpose()?;
        if handle.is_some_and(|handle| handle.len() > HANDLE_LEN_MAX) {
            return Err(DecodeError::TooLong { field: Field::Handle, at: 0 });
        }
        Ok(Self { handle, position: StorePosition::decode(&mut cursor)? })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if let Some(handle) = self.handle {
            put::string(out, handle);
        }
        self.position.encode(out);
    }
}

/// Body of one message of a listing, of handles or of homed prefixes.
///
/// A listing has [`LIST_PAGE_COUNT`](crate::limit::LIST_PAGE_COUNT) names in each message, and the
/// flag CN on all messages but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listing<'a> {
    /// The names, as stored.
    pub handles: Handles<'a>,
}

impl<'a> Listing<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When the count or a handle does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self { handles: Handles::decode(&mut Cursor::new(body))? })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.handles.encode(out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{refuses_every_truncation, survives_false_numbers};
    use super::*;
    use crate::value::Value;
    use alloc::vec;

    #[test]
    fn bodies_round_trip_and_stand_truncation_and_lies() {
        let (mut values, mut indexes, mut handles) = (vec![], vec![], vec![]);
        let mut out = vec![];

        let body = HandleBody { handle: b"0.NA/10" };
        body.encode(&mut out);
        assert_eq!(out, b"\0\0\0\x070.NA/10");
        assert_eq!(HandleBody::decode(&out), Ok(body));
        refuses_every_truncation(&out, &[], |bytes| HandleBody::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| HandleBody::decode(bytes).map(|_| ()));

        let values =
            Values::build([Value::new(1, b"URL", b"http://a"), Value::new(2, b"", b"")], &mut values);
        let body = HandleValues { handle: b"10/new", values };
        out.clear();
        body.encode(&mut out);
        assert_eq!(HandleValues::decode(&out), Ok(body));
        refuses_every_truncation(&out, &[], |bytes| HandleValues::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| HandleValues::decode(bytes).map(|_| ()));

        let body = HandleIndexes { handle: b"10/new", indexes: Indexes::build([1, 2], &mut indexes) };
        out.clear();
        body.encode(&mut out);
        assert_eq!(out, b"\0\0\0\x0610/new\0\0\0\x02\0\0\0\x01\0\0\0\x02");
        assert_eq!(HandleIndexes::decode(&out), Ok(body));
        refuses_every_truncation(&out, &[], |bytes| HandleIndexes::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| HandleIndexes::decode(bytes).map(|_| ()));

        let body = Listing { handles: Handles::build([&b"10/A"[..], b"10/B"], &mut handles) };
        out.clear();
        body.encode(&mut out);
        assert_eq!(Listing::decode(&out), Ok(body));
        refuses_every_truncation(&out, &[], |bytes| Listing::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| Listing::decode(bytes).map(|_| ()));
    }

    #[test]
    fn an_empty_answer_to_a_creation_is_not_an_empty_handle() {
        let mut out = vec![];
        CreatedHandle { handle: Some(b"") }.encode(&mut out);
        assert_eq!(out, [0; 4]);
        assert_eq!(CreatedHandle::decode(&out), Ok(CreatedHandle { handle: Some(b"") }));
        assert_eq!(CreatedHandle::decode(b""), Ok(CreatedHandle { handle: None }));
        refuses_every_truncation(b"\0\0\0\x0410/a", &[0], |bytes| CreatedHandle::decode(bytes).map(|_| ()));
    }

    #[test]
    fn a_created_handle_has_at_most_the_maximum_length() {
        for (len, fits) in [(HANDLE_LEN_MAX, true), (HANDLE_LEN_MAX + 1, false)] {
            let (handle, mut out) = (vec![b'a'; len], vec![]);
            CreatedHandle { handle: Some(&handle) }.encode(&mut out);
            assert_eq!(CreatedHandle::decode(&out).is_ok(), fits, "{len}");
        }
    }
}
