//! Resolution: the query for handle values and its answer. RFC 3652 section 3.2.

use super::cursor::Cursor;
use super::list::{Indexes, Strings, Values};
use super::put;
use crate::error::{DecodeError, Field};
use alloc::vec::Vec;

/// Body of a resolution request. RFC 3652 section 3.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The handle, as the client spells it.
    pub handle: &'a [u8],
    /// Values asked for by index.
    pub indexes: Indexes<'a>,
    /// Values asked for by type; the union of both lists is meant, and all values when both are empty.
    pub types: Strings<'a>,
}

impl<'a> Query<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When a length or count in it does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        Ok(Self {
            handle: cursor.string(Field::Handle)?,
            indexes: Indexes::decode(&mut cursor)?,
            types: Strings::decode(&mut cursor)?,
        })
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
pub struct Answer<'a> {
    /// The handle, as the client spelt it.
    pub handle: &'a [u8],
    /// The values found.
    pub values: Values<'a>,
}

impl<'a> Answer<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When something in it does not fit, or there is more of it than deployed clients accept.
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
