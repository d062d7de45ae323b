//! The predefined types: the meaning of a value's data. RFC 3651 section 3.2.
//!
//! [`PREDEFINED_TYPES`] has a row for each. Each format is a view over the data, and encodes to the
//! same bytes. Data that do not decode as their type stay opaque bytes.

pub mod admin;
pub mod key;
pub mod keyfile;
pub mod site;
pub mod site_build;
mod types;
pub mod vlist;

pub use admin::{Admin, AdminPermissions};
pub use key::{PrivateKey, PrivateKeyBuf, PublicKey};
pub use keyfile::KeyFile;
pub use site::{Site, SiteBuf};
pub use site_build::{ServerBuilder, SiteBuilder};
pub use types::{DataFormat, PREDEFINED_TYPES, PredefinedType, kind};
pub use vlist::Vlist;

use crate::error::{DecodeError, Field};
use crate::fold;
use crate::name::Handle;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};

/// The decoded data of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Data<'a> {
    /// HS_ADMIN.
    Admin(Admin<'a>),
    /// HS_VLIST.
    Vlist(Vlist<'a>),
    /// HS_SITE, HS_SITE.6, HS_SITE.PREFIX, HS_NA_DELEGATE.
    Site(Site<'a>),
    /// HS_PUBKEY.
    PublicKey(PublicKey<'a>),
    /// HS_SECKEY: the secret, as used in a MAC.
    SecretKey(Secret<'a>),
    /// HS_SERV, HS_SERV.PREFIX: the handle of a record with site records.
    Service(Handle<'a>),
    /// HS_ALIAS: another handle.
    Alias(Handle<'a>),
    /// HS_NAMESPACE: XML, not parsed.
    Namespace(&'a [u8]),
    /// Any other type: opaque to the protocol. [`text`] tells whether it can be shown.
    Opaque(&'a [u8]),
}

impl<'a> Data<'a> {
    /// Decodes the data of a value of type `kind`. Data that do not decode are opaque.
    #[must_use]
    pub fn decode(kind: &[u8], data: &'a [u8]) -> Self {
        Self::try_decode(kind, data).unwrap_or(Self::Opaque(data))
    }

    /// Decodes the data of a value of type `kind`.
    ///
    /// # Errors
    /// When the type has a format that the data do not have.
    pub fn try_decode(kind: &[u8], data: &'a [u8]) -> Result<Self, DecodeError> {
        match DataFormat::of(kind) {
            DataFormat::Admin => Admin::decode(data).map(Self::Admin),
            DataFormat::Vlist => Vlist::decode(data).map(Self::Vlist),
            DataFormat::Site => Site::decode(data).map(Self::Site),
            DataFormat::PublicKey => PublicKey::decode(data).map(Self::PublicKey),
            DataFormat::SecretKey => Ok(Self::SecretKey(Secret(data))),
            DataFormat::Service => named(data).map(Self::Service),
            DataFormat::Alias => named(data).map(Self::Alias),
            DataFormat::Namespace => Ok(Self::Namespace(data)),
            DataFormat::Opaque => Ok(Self::Opaque(data)),
        }
    }

    /// Appends the data that decode as these. Bytes after a key are not kept.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Admin(admin) => admin.encode(out),
            Self::Vlist(vlist) => vlist.encode(out),
            Self::Site(site) => site.encode(out),
            Self::PublicKey(key) => key.encode(out),
            Self::SecretKey(secret) => out.extend_from_slice(secret.0),
            Self::Service(handle) | Self::Alias(handle) => out.extend_from_slice(handle.0),
            Self::Namespace(data) | Self::Opaque(data) => out.extend_from_slice(data),
        }
    }
}

/// What the data say, on one line for people. Secrets are not shown.
impl fmt::Display for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admin(admin) => write!(f, "{} may {}", admin.reference, admin.permissions),
            Self::Vlist(group) => group.0.iter().enumerate().try_for_each(|(at, member)| {
                f.write_str(if at > 0 { ", " } else { "" })?;
                write!(f, "{member}")
            }),
            Self::Site(site) => site.summarize(f),
            Self::PublicKey(key) => write!(f, "{} key, {} bits", key.algorithm(), key.bits()),
            Self::SecretKey(secret) => write!(f, "secret of {} bytes", secret.0.len()),
            Self::Service(Handle(data))
            | Self::Alias(Handle(data))
            | Self::Namespace(data)
            | Self::Opaque(data) => match text(data) {
                Some(text) => text
                    .chars()
                    .try_for_each(|c| f.write_char(if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c })),
                None => data.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            },
        }
    }
}

/// Whether `kind` is `name` or a sub-type of it, in any ASCII case. See
/// [`Value::is_a`](crate::Value::is_a).
#[must_use]
pub fn is_a(kind: &[u8], name: &[u8]) -> bool {
    fold::starts_with(kind, name) && matches!(kind.get(name.len()), None | Some(b'.'))
}

fn named(data: &[u8]) -> Result<Handle<'_>, DecodeError> {
    if data.is_empty() {
        return Err(DecodeError::Invalid { field: Field::Data, at: 0 });
    }
    Ok(Handle(data))
}

/// A secret, borrowed. `Debug` shows only its length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a [u8]);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The data as text, if they are UTF-8 without control characters other than tab and line ends.
#[must_use]
pub fn text(data: &[u8]) -> Option<&str> {
    let text = str::from_utf8(data).ok()?;
    // Most texts are a URL. Without an early end, several bytes are compared at a time.
    if data.iter().fold(true, |is_plain, byte| is_plain & matches!(byte, b' '..=b'~')) {
        return Some(text);
    }
    let shown = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r');
    text.chars().all(shown).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString as _;

    #[test]
    fn types_are_known_in_any_case_and_with_subtypes() {
        let admin = b"\x0c\x7f\0\0\0\x070.NA/10\0\0\0\x03";
        for kind in [&b"HS_ADMIN"[..], b"hs_admin", b"HS_ADMIN.x"] {
            assert!(matches!(Data::decode(kind, admin), Data::Admin(_)), "{kind:?}");
        }
        for kind in [&b"HS_ADMINX"[..], b"HS_ADMI", b"XHS_ADMIN", b""] {
            assert_eq!(Data::decode(kind, admin), Data::Opaque(admin), "{kind:?}");
        }
        let site = SiteBuilder::new().build();
        for kind in [kind::HS_SITE, kind::HS_SITE_6, kind::HS_SITE_PREFIX, kind::HS_NA_DELEGATE] {
            assert_eq!(Data::decode(kind, site.as_bytes()), Data::Site(site.view()));
        }
        assert_eq!(Data::decode(kind::HS_VLIST, &[0; 4]), Data::Vlist(Vlist::decode(&[0; 4]).unwrap()));
        assert_eq!(Data::decode(kind::HS_SERV_PREFIX, b"0.SERV/1"), Data::Service(Handle(b"0.SERV/1")));
        assert_eq!(Data::decode(kind::HS_ALIAS, b"10/b"), Data::Alias(Handle(b"10/b")));
        assert_eq!(Data::decode(kind::HS_NAMESPACE, b"<n/>"), Data::Namespace(b"<n/>"));
        assert_eq!(Data::decode(kind::URL, b"x"), Data::Opaque(b"x"));
    }

    #[test]
    fn invalid_data_are_opaque_and_the_reason_is_known() {
        for kind in [kind::HS_ADMIN, kind::HS_SITE, kind::HS_VLIST, kind::HS_PUBKEY] {
            assert_eq!(Data::decode(kind, b"not valid"), Data::Opaque(b"not valid"));
            assert!(Data::try_decode(kind, b"not valid").is_err());
        }
        assert!(Data::try_decode(kind::HS_SERV, b"").is_err());
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(format!("{:?}", Data::decode(kind::HS_SECKEY, b"open sesame")), "SecretKey(11 bytes)");
    }

    #[test]
    fn data_are_described_on_one_line() {
        let group = b"\0\0\0\x02\0\0\0\x0410/a\0\0\x01\x2c\0\0\0\x0410/b\0\0\0\x01";
        let admin = b"\x0c\x7f\0\0\0\x070.NA/10\0\0\0\x03";
        for (kind, data, expected) in [
            (kind::HS_VLIST, &group[..], "300:10/a, 1:10/b"),
            (kind::HS_ADMIN, admin, "3:0.NA/10 may 110001111111"),
            (kind::HS_SECKEY, b"open sesame", "secret of 11 bytes"),
            (kind::HS_ALIAS, b"10/b", "10/b"),
            (kind::URL, b"a\tb\r\nc", "a b  c"),
            (kind::HS_NAMESPACE, b"\xff\0", "ff00"),
        ] {
            let decoded = Data::decode(kind, data);
            assert_eq!(decoded.to_string(), expected, "{kind:?}");
            let mut encoded = Vec::new();
            decoded.encode(&mut encoded);
            assert_eq!(encoded, data, "{kind:?}");
        }
        let site = SiteBuilder::new().build();
        assert!(Data::decode(kind::HS_SITE, site.as_bytes()).to_string().contains(" site, serial "));
    }

    #[test]
    fn text_has_no_control_characters() {
        for shown in ["", "a", "é日本😀", "a\tb\r\nc", "\u{2028}"] {
            assert_eq!(text(shown.as_bytes()), Some(shown));
        }
        for hidden in [&b"\0"[..], b"\x7f", b"\x0b", b"\x1f", b"\xc2\x80", b"\xff", b"\xed\xa0\x80", b"\xc3"]
        {
            assert_eq!(text(hidden), None, "{hidden:?}");
        }
    }
}
