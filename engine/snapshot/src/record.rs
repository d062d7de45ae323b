//! One record: its key, its public values as one run, and its other values.

use crate::format::{
    KEY_LEN_MAX, POSITION_LEN, RECORD_ALIGN, RECORD_HEAD_LEN, RECORD_TOMBSTONE, RecordHead, VALUES_COUNT_MAX,
    VALUES_LEN_MAX, record_sum,
};
use core::fmt;
use handle_proto::{Value, limit};

/// A record, borrowed from its layer. Its lengths are checked; its values are not.
#[derive(Clone, Copy, Debug)]
pub struct EncodedRecord<'a> {
    bytes: &'a [u8],
    key: &'a [u8],
    public: &'a [u8],
    private: &'a [u8],
    public_count: u16,
    private_count: u16,
    flags: u8,
    is_homed: bool,
}

impl<'a> EncodedRecord<'a> {
    /// Splits a record from the bytes that follow it; `None` when its lengths contradict each
    /// other.
    #[inline]
    pub(crate) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let head = RecordHead::decode(bytes.first_chunk()?);
        let (record, rest) = bytes.split_at_checked(head.record_len as usize)?;
        if !record.len().is_multiple_of(RECORD_ALIGN) || usize::from(head.padding) >= RECORD_ALIGN {
            return None;
        }
        if head.flags & !RECORD_TOMBSTONE != 0 {
            return None;
        }
        let parts = record.get(RECORD_HEAD_LEN..record.len().checked_sub(head.padding.into())?)?;
        let (key, parts) = parts.split_at_checked(head.key_len.into())?;
        let (public, private) = parts.split_at_checked(head.public_len as usize)?;
        let record = Self {
            bytes: record,
            key,
            public,
            private,
            public_count: head.public_count,
            private_count: head.private_count,
            flags: head.flags,
            is_homed: false,
        };
        Some((record, rest))
    }

    /// A record that comes from no layer: `count` public values in wire form, of a handle whose
    /// prefix counts as homed. It has no key and no checksum.
    #[must_use]
    pub const fn of_public_values(values: &'a [u8], count: u16) -> Self {
        Self {
            bytes: &[],
            key: &[],
            public: values,
            private: &[],
            public_count: count,
            private_count: 0,
            flags: 0,
            is_homed: true,
        }
    }

    /// Whether the record matches its checksum.
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        has_its_checksum(self.bytes)
    }

    /// Sets whether the layer vouches that the prefix is homed.
    #[inline]
    pub(crate) const fn vouched_for(self, is_homed: bool) -> Self {
        Self { is_homed, ..self }
    }

    /// Whether the prefix is known to be homed. If not, search the table of homed prefixes.
    #[must_use]
    pub const fn is_homed(&self) -> bool {
        self.is_homed
    }

    /// The key: the handle, folded where the service folds.
    #[must_use]
    pub const fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Whether the handle was deleted in this layer. Such a record has no values.
    #[must_use]
    pub const fn is_tombstone(&self) -> bool {
        self.flags & RECORD_TOMBSTONE != 0
    }

    /// Number of public values.
    #[must_use]
    pub const fn public_count(&self) -> usize {
        self.public_count as usize
    }

    /// The public values in wire form, one after the other in stored order.
    #[must_use]
    pub const fn public_bytes(&self) -> &'a [u8] {
        self.public
    }

    /// The public values in stored order, decoded and checked one after the other.
    #[must_use]
    pub const fn public_values(&self) -> PublicValues<'a> {
        PublicValues { remaining: self.public_count, bytes: self.public }
    }

    /// Number of values.
    #[must_use]
    pub const fn values_count(&self) -> usize {
        self.public_count as usize + self.private_count as usize
    }

    /// The values that are not public, each with its position among all values and its wire form.
    ///
    /// Ends early where the bytes are damaged.
    #[must_use]
    pub const fn private(&self) -> PrivateValues<'a> {
        PrivateValues { remaining: self.private_count, bytes: self.private }
    }

    /// All values, in stored order.
    #[must_use]
    pub const fn values_in_order(&self) -> ValuesInOrder<'a> {
        ValuesInOrder {
            position: 0,
            public_left: self.public_count,
            public: self.public,
            private: self.private(),
            private_next: None,
        }
    }

    /// The whole record, as in the file.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of values that are not public.
    #[must_use]
    pub const fn private_count(&self) -> usize {
        self.private_count as usize
    }
}

/// The public values of a record. See [`EncodedRecord::public_values`].
#[derive(Clone, Copy, Debug)]
pub struct PublicValues<'a> {
    remaining: u16,
    bytes: &'a [u8],
}

impl<'a> Iterator for PublicValues<'a> {
    type Item = Result<Value<'a>, CorruptValues>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let Some(left) = self.remaining.checked_sub(1) else {
            // Bytes after the last value are damage; they are reported once.
            return (!core::mem::take(&mut self.bytes).is_empty()).then_some(Err(CorruptValues));
        };
        let Ok((value, rest)) = Value::split(self.bytes) else {
            *self = Self { remaining: 0, bytes: &[] };
            return Some(Err(CorruptValues));
        };
        *self = Self { remaining: left, bytes: rest };
        Some(Ok(value))
    }
}

/// The private values of a record. See [`EncodedRecord::private`].
#[derive(Clone, Copy, Debug)]
pub struct PrivateValues<'a> {
    remaining: u16,
    bytes: &'a [u8],
}

impl<'a> PrivateValues<'a> {
    fn split(&mut self) -> Option<(u16, &'a [u8], Value<'a>)> {
        let left = self.remaining.checked_sub(1)?;
        let (position, bytes) = self.bytes.split_first_chunk::<POSITION_LEN>()?;
        let (value, rest) = Value::split(bytes).ok()?;
        let encoded = &bytes[..bytes.len() - rest.len()];
        (self.remaining, self.bytes) = (left, rest);
        Some((u16::from_le_bytes(*position), encoded, value))
    }

    /// The bytes not read yet; none at the end of an undamaged record.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for PrivateValues<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.split().map(|(position, encoded, _)| (position, encoded))
    }
}

/// All values of a record in stored order. See [`EncodedRecord::values_in_order`].
#[derive(Clone, Copy, Debug)]
pub struct ValuesInOrder<'a> {
    position: usize,
    public_left: u16,
    public: &'a [u8],
    private: PrivateValues<'a>,
    private_next: Option<(u16, Value<'a>, &'a [u8])>,
}

/// The values of a record do not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptValues;

impl core::fmt::Display for CorruptValues {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the values of a record do not decode")
    }
}

impl core::error::Error for CorruptValues {}

impl<'a> ValuesInOrder<'a> {
    fn advance(&mut self) -> Result<(Value<'a>, &'a [u8]), CorruptValues> {
        if self.private_next.is_none() && self.private.remaining > 0 {
            let (position, encoded, value) = self.private.split().ok_or(CorruptValues)?;
            self.private_next = Some((position, value, encoded));
        }
        match self.private_next {
            Some((position, value, encoded)) if usize::from(position) == self.position => {
                self.private_next = None;
                Ok((value, encoded))
            }
            _ => {
                self.public_left = self.public_left.checked_sub(1).ok_or(CorruptValues)?;
                let (value, rest) = Value::split(self.public).map_err(|_| CorruptValues)?;
                let encoded = &self.public[..self.public.len() - rest.len()];
                self.public = rest;
                Ok((value, encoded))
            }
        }
    }

    /// The next value with its wire form. Otherwise as [`next`](Iterator::next).
    pub fn next_encoded(&mut self) -> Option<Result<(Value<'a>, &'a [u8]), CorruptValues>> {
        if self.public_left == 0 && self.private.remaining == 0 && self.private_next.is_none() {
            return None;
        }
        let value = self.advance();
        self.position += 1;
        if value.is_err() {
            (self.public_left, self.private.remaining, self.private_next) = (0, 0, None);
        }
        Some(value)
    }
}

impl<'a> Iterator for ValuesInOrder<'a> {
    type Item = Result<Value<'a>, CorruptValues>;

    /// The next value. After an error the iterator ends.
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_encoded()?.map(|(value, _)| value))
    }
}

/// Whether a record matches the checksum in its head. Not inlined, so that lookups without checks
/// save no registers for it.
#[inline(never)]
fn has_its_checksum(record: &[u8]) -> bool {
    record.first_chunk().is_some_and(|head| RecordHead::decode(head).sum == record_sum(record))
}

/// Why a record cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordRefusal {
    /// The handle has no slash. Such a name is stored as `0.NA/` and the name.
    NoSlash,
    /// The handle is too long.
    HandleLen(usize),
    /// There are too many values.
    ValuesCount,
    /// All values together do not fit into a message.
    ValuesLen,
    /// An index is zero or negative.
    Index(i32),
    /// Two values have the same index.
    IndexTwice(i32),
    /// A value has too many references.
    ReferencesCount {
        /// The index of the value.
        index: i32,
        /// The number of references.
        count: usize,
    },
}

impl fmt::Display for RecordRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlash => f.write_str("the handle has no slash"),
            Self::HandleLen(len) => {
                write!(f, "the handle has {len} bytes; at most {KEY_LEN_MAX} are allowed")
            }
            Self::ValuesCount => write!(f, "there are more than {VALUES_COUNT_MAX} values"),
            Self::ValuesLen => write!(f, "the values take more than {VALUES_LEN_MAX} bytes together"),
            Self::Index(index) => write!(f, "index {index} is not greater than zero"),
            Self::IndexTwice(index) => write!(f, "two values have index {index}"),
            Self::ReferencesCount { index, count } => {
                let max = limit::REFERENCES_COUNT_MAX;
                write!(f, "the value with index {index} has {count} references; at most {max} are allowed")
            }
        }
    }
}

impl core::error::Error for RecordRefusal {}
