//! Counted lists as views: checked once, then read without failing.

use super::cursor::Cursor;
use super::put;
use crate::error::{DecodeError, Field};
use crate::value::Value;
use alloc::vec::Vec;
use core::fmt;

/// A list of value indexes: four bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexes<'a>(&'a [[u8; 4]]);

impl<'a> Indexes<'a> {
    /// No index.
    pub const EMPTY: Self = Self(&[]);

    /// Reads the count and the indexes.
    ///
    /// # Errors
    /// When the count is not allowed or does not fit.
    pub fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let count = cursor.count(4, Field::Indexes)?;
        let (indexes, _) = cursor.bytes(count * 4, Field::Indexes)?.as_chunks();
        Ok(Self(indexes))
    }

    /// A list over indexes that are already in wire form.
    #[must_use]
    pub const fn new(indexes: &'a [[u8; 4]]) -> Self {
        Self(indexes)
    }

    /// The indexes, in order.
    pub fn iter(self) -> impl Iterator<Item = i32> + 'a {
        self.0.iter().map(|&index| i32::from_be_bytes(index))
    }

    /// How many there are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Whether `index` is among them.
    #[must_use]
    pub fn has(self, index: i32) -> bool {
        self.0.contains(&index.to_be_bytes())
    }

    /// Appends count and indexes.
    pub fn encode(self, out: &mut Vec<u8>) {
        put::count(out, self.0.len());
        out.extend_from_slice(self.0.as_flattened());
    }
}

macro_rules! counted_list {
    ($(#[$doc:meta])* $name:ident, $item:ty, $len_min:expr, $field:ident, |$cursor:ident| $read:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name<'a> {
            count: u32,
            items: &'a [u8],
        }

        impl<'a> $name<'a> {
            /// The empty list.
            pub const EMPTY: Self = Self { count: 0, items: &[] };

            /// Reads the count and the items.
            ///
            /// # Errors
            /// When the count is not allowed or does not fit, or an item does not decode.
            pub fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
                let count = cursor.count($len_min, Field::$field)?;
                let start = cursor.at();
                for _ in 0..count {
                    let $cursor = &mut *cursor;
                    $read?;
                }
                Ok(Self { count: put::len(count), items: cursor.since(start) })
            }

            /// The items, in order.
            #[must_use]
            pub fn iter(self) -> Items<'a, $item> {
                Items {
                    left: self.count,
                    cursor: Cursor::new(self.items),
                    read: |$cursor| $read.expect("checked when the list was made"),
                }
            }

            /// How many there are.
            #[must_use]
            pub const fn len(self) -> usize {
                self.count as usize
            }

            /// Whether there is none.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.count == 0
            }

            /// The encoded items, without their count.
            #[must_use]
            pub const fn as_bytes(self) -> &'a [u8] {
                self.items
            }

            /// Appends count and items.
            pub fn encode(self, out: &mut Vec<u8>) {
                put::u32(out, self.count);
                out.extend_from_slice(self.items);
            }
        }

        impl<'a> IntoIterator for $name<'a> {
            type Item = $item;
            type IntoIter = Items<'a, $item>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }

        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_list().entries(self.iter()).finish()
            }
        }
    };
}

/// The items of a list.
#[derive(Clone)]
pub struct Items<'a, T> {
    left: u32,
    cursor: Cursor<'a>,
    read: fn(&mut Cursor<'a>) -> T,
}

impl<T> Iterator for Items<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        Some((self.read)(&mut self.cursor))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl<T> ExactSizeIterator for Items<'_, T> {}

counted_list! {
    /// A list of byte strings: handles or type names.
    Strings, &'a [u8], 4, Types, |cursor| cursor.string(Field::Types)
}
counted_list! {
    /// A list of values, one after the other.
    Values, Value<'a>, Value::LEN_MIN, Values, |cursor| Value::decode(cursor)
}
counted_list! {
    /// The references of a value, and the entries of HS_VLIST: handle and index.
    References, Reference<'a>, 8, References, |cursor| Reference::decode(cursor)
}

impl<'a> Values<'a> {
    /// A list over `count` values that are already in wire form, one after the other.
    ///
    /// # Errors
    /// When the bytes are not exactly so many values.
    pub fn from_encoded(count: usize, items: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(items);
        for _ in 0..count {
            Value::decode(&mut cursor)?;
        }
        cursor.finish(Field::Values)?;
        Ok(Self { count: put::len(count), items })
    }
}

impl<'a> Strings<'a> {
    /// A list over `count` strings that are already in wire form, one after the other.
    ///
    /// # Errors
    /// When the bytes are not exactly so many strings.
    pub fn from_encoded(count: usize, items: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(items);
        for _ in 0..count {
            cursor.string(Field::Types)?;
        }
        cursor.finish(Field::Types)?;
        Ok(Self { count: put::len(count), items })
    }
}

impl<'a> References<'a> {
    /// A list over `count` references that are already in wire form, one after the other.
    ///
    /// # Errors
    /// When the bytes are not exactly so many references.
    pub fn from_encoded(count: usize, items: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(items);
        for _ in 0..count {
            Reference::decode(&mut cursor)?;
        }
        cursor.finish(Field::References)?;
        Ok(Self { count: put::len(count), items })
    }
}

/// One value of one handle: what administrators, groups and references are named by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reference<'a> {
    /// The handle.
    pub handle: &'a [u8],
    /// The index of the value; 0 stands for any key of the handle.
    pub index: i32,
}

impl<'a> Reference<'a> {
    pub(crate) fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        Ok(Self { handle: cursor.string(Field::References)?, index: cursor.i32(Field::References)? })
    }

    /// Appends handle and index.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.handle);
        put::i32(out, self.index);
    }
}

impl fmt::Display for Reference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.index, crate::Handle(self.handle))
    }
}

impl fmt::Debug for Reference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
