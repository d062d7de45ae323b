//! HS_VLIST: a group of administrators. RFC 3651 section 3.2.7.

use crate::data::admin;
use crate::error::{DecodeError, Field};
use crate::name::Handle;
use crate::wire::cursor::Cursor;
use crate::wire::list::References;
use alloc::vec::Vec;

/// The data of an HS_VLIST value: references to keys, or to other groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlist<'a>(pub References<'a>);

impl<'a> Vlist<'a> {
    /// Decodes the data of a value.
    ///
    /// # Errors
    /// When the count is not allowed, an entry does not fit, or bytes follow.
    pub fn decode(data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(data);
        let references = References::decode(&mut cursor)?;
        cursor.finish(Field::Vlist)?;
        Ok(Self(references))
    }

    /// Appends the encoding to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }

    /// Whether an entry names `handle` and `index` directly. Groups in the group are not expanded.
    #[must_use]
    pub fn names(self, handle: Handle<'_>, index: i32) -> bool {
        self.0.iter().any(|reference| admin::names(&reference, handle, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VLIST: &[u8] = b"\0\0\0\x02\0\0\0\x0410/a\0\0\x01\x2c\0\0\0\x0410/b\0\0\0\x01";

    #[test]
    fn reads_each_entry() {
        let vlist = Vlist::decode(VLIST).unwrap();
        let entries: Vec<_> = vlist.0.iter().map(|entry| (entry.handle, entry.index)).collect();
        assert_eq!(entries, [(&b"10/a"[..], 300), (b"10/b", 1)]);
        assert!(vlist.names(Handle(b"10/b"), 1) && !vlist.names(Handle(b"10/b"), 2));
    }

    #[test]
    fn refuses_every_truncation_and_trailing_bytes() {
        for len in 0..VLIST.len() {
            assert!(Vlist::decode(&VLIST[..len]).is_err(), "cut to {len}");
        }
        let longer = [VLIST, &[0]].concat();
        assert_eq!(Vlist::decode(&longer), Err(DecodeError::Trailing { field: Field::Vlist, at: 28 }));
    }

    #[test]
    fn refuses_counts_that_lie() {
        for count in [3, 0x7fff_ffff, u32::MAX] {
            let mut data = VLIST.to_vec();
            data[..4].copy_from_slice(&u32::to_be_bytes(count));
            assert!(Vlist::decode(&data).is_err(), "{count}");
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(count in 0u32..4, tail: Vec<u8>) {
            let data = [&count.to_be_bytes()[..], &tail].concat();
            if let Ok(vlist) = Vlist::decode(&data) {
                let mut again = Vec::new();
                vlist.encode(&mut again);
                prop_assert_eq!(again, data);
            }
        }
    }
}
