//! HS_ADMIN: the permissions of an administrator on a handle. RFC 3651 section 3.2.1, with the
//! permissions first, as deployed.

use crate::error::{DecodeError, Field};
use crate::name::Handle;
use crate::wire::cursor::Cursor;
use crate::wire::list::Reference;
use crate::wire::put;
use alloc::vec::Vec;
use core::fmt;

/// The permissions of an administrator: twelve known bits, and reserved ones. RFC 3651 section
/// 3.2.1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AdminPermissions(pub u16);

impl AdminPermissions {
    /// Create handles under the prefix.
    pub const ADD_HANDLE: Self = Self(0x0001);
    /// Delete the handle.
    pub const DELETE_HANDLE: Self = Self(0x0002);
    /// Create derived prefixes.
    pub const ADD_DERIVED_PREFIX: Self = Self(0x0004);
    /// Delete derived prefixes; stored, but required by no operation.
    pub const DELETE_DERIVED_PREFIX: Self = Self(0x0008);
    /// Change values.
    pub const MODIFY_VALUE: Self = Self(0x0010);
    /// Remove values.
    pub const REMOVE_VALUE: Self = Self(0x0020);
    /// Add values.
    pub const ADD_VALUE: Self = Self(0x0040);
    /// Change administrators.
    pub const MODIFY_ADMIN: Self = Self(0x0080);
    /// Remove administrators.
    pub const REMOVE_ADMIN: Self = Self(0x0100);
    /// Add administrators.
    pub const ADD_ADMIN: Self = Self(0x0200);
    /// Read values that only administrators may read.
    pub const READ_VALUE: Self = Self(0x0400);
    /// List the handles under the prefix.
    pub const LIST_HANDLES: Self = Self(0x0800);
    /// Every bit that has a meaning.
    pub const ALL: Self = Self(0x0fff);

    /// Number of bits with a meaning, and of characters in the text form.
    pub const COUNT: usize = 12;

    /// Every permission with its name, from the lowest bit.
    pub const KNOWN: [(Self, &'static str); Self::COUNT] = [
        (Self::ADD_HANDLE, "add_handle"),
        (Self::DELETE_HANDLE, "delete_handle"),
        (Self::ADD_DERIVED_PREFIX, "add_derived_prefix"),
        (Self::DELETE_DERIVED_PREFIX, "delete_derived_prefix"),
        (Self::MODIFY_VALUE, "modify_value"),
        (Self::REMOVE_VALUE, "remove_value"),
        (Self::ADD_VALUE, "add_value"),
        (Self::MODIFY_ADMIN, "modify_admin"),
        (Self::REMOVE_ADMIN, "remove_admin"),
        (Self::ADD_ADMIN, "add_admin"),
        (Self::READ_VALUE, "read_value"),
        (Self::LIST_HANDLES, "list_handles"),
    ];

    /// Whether all bits of `permissions` are set.
    #[must_use]
    pub const fn has(self, permissions: Self) -> bool {
        self.0 & permissions.0 == permissions.0
    }

    /// These permissions with the bits of `permissions` set.
    #[must_use]
    pub const fn with(self, permissions: Self) -> Self {
        Self(self.0 | permissions.0)
    }

    /// Clears the bits without a meaning, as deployed software does when it writes.
    #[must_use]
    pub const fn known(self) -> Self {
        Self(self.0 & Self::ALL.0)
    }

    /// Parses the text form: twelve digits `0` or `1`, highest bit first. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != Self::COUNT {
            return None;
        }
        text.bytes().try_fold(Self(0), |bits, digit| match digit {
            b'0' | b'1' => Some(Self(bits.0 << 1 | u16::from(digit == b'1'))),
            _ => None,
        })
    }
}

impl fmt::Display for AdminPermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012b}", self.known().0)
    }
}

impl fmt::Debug for AdminPermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0)?;
        for (permission, name) in Self::KNOWN {
            if self.has(permission) {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

/// The data of an HS_ADMIN value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admin<'a> {
    /// The permissions of the administrator.
    pub permissions: AdminPermissions,
    /// The value that holds the administrator's key, or a group; index 0 stands for any key.
    pub reference: Reference<'a>,
    /// Two bytes that software up to version 7.3 appended; `values.jsonl`,
    /// `admin/legacy_trailing_two_bytes`.
    pub legacy: Option<[u8; 2]>,
}

impl<'a> Admin<'a> {
    /// An administrator in the current form.
    #[must_use]
    pub const fn new(permissions: AdminPermissions, handle: &'a [u8], index: i32) -> Self {
        Self { permissions, reference: Reference { handle, index }, legacy: None }
    }

    /// Decodes the data of a value.
    ///
    /// # Errors
    /// When something does not fit, or other than none or two bytes follow.
    pub fn decode(data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(data);
        let permissions = AdminPermissions(cursor.u16(Field::Admin)?);
        let reference = Reference { handle: cursor.string(Field::Admin)?, index: cursor.i32(Field::Admin)? };
        let legacy = match *cursor.rest() {
            [first, second] => Some([first, second]),
            _ => {
                cursor.finish(Field::Admin)?;
                None
            }
        };
        Ok(Self { permissions, reference, legacy })
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::u16(out, self.permissions.0);
        self.reference.encode(out);
        out.extend_from_slice(self.legacy.as_ref().map_or(&[], <[u8; 2]>::as_slice));
    }

    /// Whether the value names `handle` and `index` directly.
    #[must_use]
    pub fn names(&self, handle: Handle<'_>, index: i32) -> bool {
        names(&self.reference, handle, index)
    }
}

/// Whether `reference` authorises the identity `index:handle`: the same handle, with its local name
/// in the same case, and the same index or index 0.
///
/// The comparison does not depend on whether the service folds local names.
#[must_use]
pub fn names(reference: &Reference<'_>, handle: Handle<'_>, index: i32) -> bool {
    (reference.index == index || reference.index == 0) && Handle(reference.handle).is_same(handle, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use proptest::prelude::*;

    const ADMIN: &[u8] = b"\x0c\x7f\0\0\0\x070.NA/10\0\0\0\x03";

    #[test]
    fn reads_permissions_before_the_reference() {
        let admin = Admin::decode(ADMIN).unwrap();
        assert_eq!(admin.permissions, AdminPermissions(0x0c7f));
        assert_eq!(admin.reference, Reference { handle: b"0.NA/10", index: 3 });
        assert_eq!(admin.legacy, None);
        assert_eq!(admin.permissions.to_string(), "110001111111");
    }

    #[test]
    fn each_permission_has_its_bit_and_its_place() {
        for (at, (permission, name)) in AdminPermissions::KNOWN.into_iter().enumerate() {
            assert_eq!(permission.0, 1 << at, "{name}");
            let text = permission.to_string();
            assert_eq!(text.rfind('1'), Some(11 - at), "{name}: {text}");
            assert_eq!(AdminPermissions::parse(&text), Some(permission));
            assert!(format!("{permission:?}").contains(name));
        }
        assert_eq!(AdminPermissions(0xf000).to_string(), "000000000000");
    }

    #[test]
    fn refuses_permission_texts_of_other_lengths_and_digits() {
        for text in ["", "0", "11111111111", "1111111111111", "11111111111x", "00000000000é"] {
            assert_eq!(AdminPermissions::parse(text), None, "{text}");
        }
    }

    #[test]
    fn keeps_the_two_legacy_bytes_and_refuses_one_or_three() {
        let with = |tail: &[u8]| [ADMIN, tail].concat();
        let legacy = with(&[0, 7]);
        let admin = Admin::decode(&legacy).unwrap();
        assert_eq!(admin.legacy, Some([0, 7]));
        let mut again = Vec::new();
        admin.encode(&mut again);
        assert_eq!(again, legacy);
        for tail in [&[0][..], &[0; 3], &[0; 4]] {
            let error = DecodeError::Trailing { field: Field::Admin, at: 17 };
            assert_eq!(Admin::decode(&with(tail)), Err(error), "{tail:?}");
        }
    }

    #[test]
    fn refuses_every_truncation_and_lying_length() {
        for len in 0..ADMIN.len() {
            let error = Admin::decode(&ADMIN[..len]).unwrap_err();
            assert!(error.at() <= len, "cut to {len}: {error}");
        }
        for len in [12, 0x7fff_ffff, u32::MAX] {
            let mut data = ADMIN.to_vec();
            data[2..6].copy_from_slice(&u32::to_be_bytes(len));
            assert!(Admin::decode(&data).is_err(), "{len}");
        }
    }

    #[test]
    fn index_zero_names_every_key_and_local_names_keep_their_case() {
        let admin = Admin::new(AdminPermissions::ALL, b"10.1/adm", 300);
        assert!(admin.names(Handle(b"10.1/adm"), 300));
        assert!(!admin.names(Handle(b"10.1/ADM"), 300));
        assert!(!admin.names(Handle(b"10.1/adm"), 301));
        assert!(!admin.names(Handle(b"10.1/adm"), 0));
        assert!(Admin::new(AdminPermissions::ALL, b"10.1/adm", 0).names(Handle(b"10.1/adm"), 7));
    }

    proptest! {
        #[test]
        fn round_trips(bits: u16, handle: Vec<u8>, index: i32, legacy: Option<[u8; 2]>) {
            let mut admin = Admin::new(AdminPermissions(bits), &handle, index);
            admin.legacy = legacy;
            let mut data = Vec::new();
            admin.encode(&mut data);
            prop_assert_eq!(Admin::decode(&data), Ok(admin));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(data: Vec<u8>) {
            if let Ok(admin) = Admin::decode(&data) {
                let mut again = Vec::new();
                admin.encode(&mut again);
                prop_assert_eq!(again, data);
            }
        }
    }
}
