//! Reads fields one after the other. Every read is checked, and none copies.

use crate::error::{DecodeError, Field};
use crate::limit::LIST_COUNT_MAX;

/// A position in borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

#[expect(clippy::cast_possible_truncation, reason = "offsets are below 4 GiB: messages end at 256 KiB")]
const fn offset(at: usize) -> u32 {
    at as u32
}

impl<'a> Cursor<'a> {
    /// Starts at the first of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next byte.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// The bytes not read yet.
    #[must_use]
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// The bytes read since offset `start`.
    #[must_use]
    #[inline]
    pub fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    /// `Truncated`, at the next byte.
    #[must_use]
    pub const fn truncated(&self, field: Field) -> DecodeError {
        DecodeError::Truncated { field, at: offset(self.at) }
    }

    /// `Invalid`, at the next byte.
    #[must_use]
    pub const fn invalid(&self, field: Field) -> DecodeError {
        DecodeError::Invalid { field, at: offset(self.at) }
    }

    /// `TooLong`, at the next byte.
    #[must_use]
    pub const fn too_long(&self, field: Field) -> DecodeError {
        DecodeError::TooLong { field, at: offset(self.at) }
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    #[inline]
    pub fn array<const N: usize>(&mut self, field: Field) -> Result<&'a [u8; N], DecodeError> {
        let array = self.bytes[self.at..].first_chunk().ok_or(self.truncated(field))?;
        self.at += N;
        Ok(array)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    #[inline]
    pub fn bytes(&mut self, len: usize, field: Field) -> Result<&'a [u8], DecodeError> {
        let bytes = self.bytes[self.at..].get(..len).ok_or(self.truncated(field))?;
        self.at += len;
        Ok(bytes)
    }

    /// The next byte.
    ///
    /// # Errors
    /// When none is left.
    #[inline]
    pub fn u8(&mut self, field: Field) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|&[byte]| byte)
    }

    /// The next two bytes.
    ///
    /// # Errors
    /// When fewer are left.
    #[inline]
    pub fn u16(&mut self, field: Field) -> Result<u16, DecodeError> {
        self.array(field).map(|&bytes| u16::from_be_bytes(bytes))
    }

    /// The next four bytes.
    ///
    /// # Errors
    /// When fewer are left.
    #[inline]
    pub fn u32(&mut self, field: Field) -> Result<u32, DecodeError> {
        self.array(field).map(|&bytes| u32::from_be_bytes(bytes))
    }

    /// The next four bytes, with a sign.
    ///
    /// # Errors
    /// When fewer are left.
    #[inline]
    pub fn i32(&mut self, field: Field) -> Result<i32, DecodeError> {
        self.array(field).map(|&bytes| i32::from_be_bytes(bytes))
    }

    /// The next eight bytes.
    ///
    /// # Errors
    /// When fewer are left.
    #[inline]
    pub fn u64(&mut self, field: Field) -> Result<u64, DecodeError> {
        self.array(field).map(|&bytes| u64::from_be_bytes(bytes))
    }

    /// A counted byte string: four bytes of length, then the bytes.
    ///
    /// # Errors
    /// When the length is negative or exceeds what is left.
    #[inline]
    pub fn string(&mut self, field: Field) -> Result<&'a [u8], DecodeError> {
        let start = *self;
        let len = self.u32(field)? as usize;
        self.bytes(len, field).map_err(|_| start.truncated(field))
    }

    /// The count before a list whose items have at least `item_len_min` bytes.
    ///
    /// # Errors
    /// When the count is not allowed, or the items cannot fit into what is left.
    #[inline]
    pub fn count(&mut self, item_len_min: usize, field: Field) -> Result<usize, DecodeError> {
        let start = *self;
        let count = self.u32(field)? as usize;
        if count > LIST_COUNT_MAX {
            return Err(start.too_long(field));
        }
        if count * item_len_min > self.rest().len() {
            return Err(start.truncated(field));
        }
        Ok(count)
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// When bytes are left.
    pub const fn finish(&self, field: Field) -> Result<(), DecodeError> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(DecodeError::Trailing { field, at: offset(self.at) })
        }
    }
}
