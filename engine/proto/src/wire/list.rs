//! Counted lists as views: checked once, then read without errors.

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
    #[inline]
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

    /// A list of `entries`, encoded into `storage`, which is cleared first.
    pub fn build(entries: impl IntoIterator<Item = i32>, storage: &'a mut Vec<[u8; 4]>) -> Self {
        storage.clear();
        storage.extend(entries.into_iter().map(i32::to_be_bytes));
        Self(storage)
    }

    /// The indexes, in order.
    pub fn iter(self) -> impl Iterator<Item = i32> + 'a {
        self.0.iter().map(|&index| i32::from_be_bytes(index))
    }

    /// Number of indexes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there are no indexes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Whether the list has `index`.
    #[must_use]
    #[inline]
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
    (
        $(#[$doc:meta])* $name:ident, $item:ty, $len_min:expr, $field:ident,
        |$cursor:ident| $read:expr $(, |$entry:ident, $out:ident| $write:expr)?
    ) => {
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
            #[inline]
            pub fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
                let count = cursor.count($len_min, Field::$field)?;
                let start = cursor.at();
                for _ in 0..count {
                    let $cursor = &mut *cursor;
                    $read?;
                }
                Ok(Self { count: put::len(count), items: cursor.since(start) })
            }

            /// A list over `count` items that are already in wire form, one after the other.
            ///
            /// # Errors
            /// When the bytes are not exactly `count` items.
            pub fn from_encoded(count: usize, items: &'a [u8]) -> Result<Self, DecodeError> {
                let mut cursor = Cursor::new(items);
                for _ in 0..count {
                    let $cursor = &mut cursor;
                    $read?;
                }
                cursor.finish(Field::$field)?;
                Ok(Self { count: put::len(count), items })
            }

            $(/// A list of `entries`, encoded to `storage`, which is cleared first.
            pub fn build<'s>(
                entries: impl IntoIterator<Item = $item>,
                storage: &'s mut Vec<u8>,
            ) -> $name<'s> {
                storage.clear();
                let mut count = 0;
                for $entry in entries {
                    let $out = &mut *storage;
                    $write;
                    count += 1;
                }
                $name { count, items: storage }
            })?

            /// The items, in order.
            #[must_use]
            pub fn iter(self) -> Items<'a, $item> {
                Items {
                    left: self.count,
                    cursor: Cursor::new(self.items),
                    read: |$cursor| $read.expect("the items were checked"),
                }
            }

            /// Number of items.
            #[must_use]
            pub const fn len(self) -> usize {
                self.count as usize
            }

            /// Whether there are no items.
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

pub(crate) use counted_list;

/// The items of a list.
#[derive(Clone)]
pub struct Items<'a, T> {
    pub(crate) left: u32,
    pub(crate) cursor: Cursor<'a>,
    pub(crate) read: fn(&mut Cursor<'a>) -> T,
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
    /// A list of type names.
    Strings, &'a [u8], 4, Types,
    |cursor| cursor.string(Field::Types), |entry, out| put::string(out, entry)
}
counted_list! {
    /// A list of handles.
    Handles, &'a [u8], 4, Handles,
    |cursor| cursor.string(Field::Handles), |entry, out| put::string(out, entry)
}
counted_list! {
    /// A list of values, one after the other.
    Values, Value<'a>, Value::LEN_MIN, Values,
    |cursor| Value::decode(cursor), |entry, out| entry.encode(out)
}
counted_list! {
    /// The references of a value, and the entries of HS_VLIST: handle and index.
    References, Reference<'a>, 8, References,
    |cursor| Reference::decode(cursor), |entry, out| entry.encode(out)
}

/// A reference to one value of one handle, as in administrators, groups and the references of
/// values.
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

    /// Parses `300:10.1/admin`, as clients write an identity; without digits and a colon in front
    /// the index is 0. `None` without a handle, and for an index that is too large.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let (index, handle) = match text.split_once(':') {
            Some((index, handle)) if index.bytes().all(|byte| byte.is_ascii_digit()) => {
                (index.parse().ok()?, handle)
            }
            _ => (0, text),
        };
        (!handle.is_empty()).then_some(Self { handle: handle.as_bytes(), index })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LIST_COUNT_MAX;
    use alloc::vec;

    #[test]
    fn builds_what_it_reads() {
        let (mut strings, mut values, mut indexes) = (vec![1], vec![], vec![]);
        let handles = Handles::build([&b"10/a"[..], b""], &mut strings);
        assert_eq!(handles.iter().collect::<Vec<_>>(), [&b"10/a"[..], b""]);
        let list = Values::build([Value::new(1, b"URL", b"x"), Value::new(2, b"", b"")], &mut values);
        let mut encoded = vec![];
        list.encode(&mut encoded);
        assert_eq!(Values::decode(&mut Cursor::new(&encoded)), Ok(list));
        assert_eq!(Values::from_encoded(2, list.as_bytes()), Ok(list));
        assert_eq!(Indexes::build([-1, 7], &mut indexes).iter().collect::<Vec<_>>(), [-1, 7]);
    }

    #[test]
    fn refuses_a_wrong_count_of_encoded_items() {
        let mut storage = vec![];
        let items = Handles::build([&b"10/a"[..], b"10/b"], &mut storage).as_bytes();
        assert!(matches!(Handles::from_encoded(1, items), Err(DecodeError::Trailing { at: 8, .. })));
        assert!(matches!(Handles::from_encoded(3, items), Err(DecodeError::Truncated { .. })));
    }

    #[test]
    fn a_list_has_at_most_the_maximum_count() {
        let mut bytes = vec![0; 4 + 4 * (LIST_COUNT_MAX + 1)];
        bytes[..4].copy_from_slice(&put::len(LIST_COUNT_MAX).to_be_bytes());
        assert_eq!(Strings::decode(&mut Cursor::new(&bytes)).unwrap().len(), LIST_COUNT_MAX);
        assert_eq!(Indexes::decode(&mut Cursor::new(&bytes)).unwrap().len(), LIST_COUNT_MAX);
        bytes[..4].copy_from_slice(&put::len(LIST_COUNT_MAX + 1).to_be_bytes());
        let refused = DecodeError::TooLong { field: Field::Types, at: 0 };
        assert_eq!(Strings::decode(&mut Cursor::new(&bytes)), Err(refused));
        assert!(Indexes::decode(&mut Cursor::new(&bytes)).is_err());
    }

    #[test]
    fn a_count_that_lies_is_refused_before_anything_is_read() {
        for count in [2_u32, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            let mut bytes = count.to_be_bytes().to_vec();
            bytes.extend([0, 0, 0, 0]);
            assert!(Strings::decode(&mut Cursor::new(&bytes)).is_err(), "{count}");
            assert!(References::decode(&mut Cursor::new(&bytes)).is_err(), "{count}");
            assert!(Values::decode(&mut Cursor::new(&bytes)).is_err(), "{count}");
        }
    }
}
