//! Handle values: index, type, data, TTL, permissions and references. RFC 3651 section 3.1.
//!
//! The encoding is the deployed one: a timestamp of four bytes in seconds, where the RFC has eight
//! in milliseconds.

use crate::error::{DecodeError, Field};
use crate::wire::cursor::Cursor;
use crate::wire::list::References;
use crate::wire::put;
use alloc::vec::Vec;
use core::fmt;

/// The permissions of a value: who may read and write it. RFC 3651 section 3.1.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permissions(pub u8);

impl Permissions {
    /// Administrators may read.
    pub const ADMIN_READ: Self = Self(0x08);
    /// Administrators may write.
    pub const ADMIN_WRITE: Self = Self(0x04);
    /// Anyone may read.
    pub const PUBLIC_READ: Self = Self(0x02);
    /// Anyone may write.
    pub const PUBLIC_WRITE: Self = Self(0x01);
    /// The default permissions, `1110`.
    pub const DEFAULT: Self = Self(0x0e);

    /// Whether all bits of `permissions` are set.
    #[must_use]
    pub const fn has(self, permissions: Self) -> bool {
        self.0 & permissions.0 == permissions.0
    }

    /// Clears the bits without a meaning, as deployed software does when it stores and compares
    /// them. Two of those are the RFC's permissions to execute.
    #[must_use]
    pub const fn known(self) -> Self {
        Self(self.0 & 0x0f)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04b}", self.known().0)
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The time for which a value may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ttl {
    /// 0: `seconds` count from receipt. 1: `seconds` are Unix time. Other kinds are kept unchanged.
    pub kind: u8,
    /// Seconds, by `kind`.
    pub seconds: i32,
}

impl Ttl {
    /// Seconds from receipt.
    pub const RELATIVE: u8 = 0;
    /// Unix time.
    pub const ABSOLUTE: u8 = 1;
    /// One day from receipt.
    pub const DEFAULT: Self = Self::relative(crate::limit::TTL_DEFAULT_S);

    /// A time to live that counts from receipt.
    #[must_use]
    pub const fn relative(seconds: i32) -> Self {
        Self { kind: Self::RELATIVE, seconds }
    }

    /// A time to live that ends at a Unix time.
    #[must_use]
    pub const fn absolute(unix_s: i32) -> Self {
        Self { kind: Self::ABSOLUTE, seconds: unix_s }
    }
}

/// One handle value, borrowed from its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    /// Number of the value in its record; greater than zero in stored values.
    pub index: i32,
    /// Time of the last change, Unix seconds.
    pub timestamp: u32,
    /// Its time to live.
    pub ttl: Ttl,
    /// Who may read and write it.
    pub permissions: Permissions,
    /// Type, UTF-8 by convention.
    pub kind: &'a [u8],
    /// Data, opaque to the protocol.
    pub data: &'a [u8],
    /// References to other values; informational.
    pub references: References<'a>,
}

impl<'a> Value<'a> {
    /// Bytes of the smallest value: no type, no data, no references.
    pub const LEN_MIN: usize = 26;

    /// A value with the default TTL and permissions.
    #[must_use]
    pub const fn new(index: i32, kind: &'a [u8], data: &'a [u8]) -> Self {
        Self {
            index,
            timestamp: 0,
            ttl: Ttl::DEFAULT,
            permissions: Permissions::DEFAULT,
            kind,
            data,
            references: References::EMPTY,
        }
    }

    /// Splits a value from the bytes that follow it.
    ///
    /// # Errors
    /// When the bytes end inside the value, or a length in it does not fit.
    #[inline]
    pub fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let value = Self::decode(&mut cursor)?;
        Ok((value, cursor.rest()))
    }

    #[inline]
    pub(crate) fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let fixed: &[u8; 14] = cursor.array(Field::Value)?;
        let kind = cursor.string(Field::Type)?;
        let data = cursor.string(Field::Data)?;
        let references = References::decode(cursor)?;
        let [i0, i1, i2, i3, s0, s1, s2, s3, ttl_kind, t0, t1, t2, t3, permissions] = *fixed;
        Ok(Self {
            index: i32::from_be_bytes([i0, i1, i2, i3]),
            timestamp: u32::from_be_bytes([s0, s1, s2, s3]),
            ttl: Ttl { kind: ttl_kind, seconds: i32::from_be_bytes([t0, t1, t2, t3]) },
            permissions: Permissions(permissions),
            kind,
            data,
            references,
        })
    }

    /// Bytes of the encoding.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        Self::LEN_MIN + self.kind.len() + self.data.len() + self.references.as_bytes().len()
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::i32(out, self.index);
        put::u32(out, self.timestamp);
        out.push(self.ttl.kind);
        put::i32(out, self.ttl.seconds);
        out.push(self.permissions.0);
        put::string(out, self.kind);
        put::string(out, self.data);
        self.references.encode(out);
    }

    /// Whether the type is `kind`, or a sub-type after a dot.
    ///
    /// Servers use this rule for their own records (`HS_ADMIN`, `HS_SITE`); request filters have
    /// another, [`type_matches`].
    #[must_use]
    pub fn is_a(&self, kind: &[u8]) -> bool {
        crate::data::is_a(self.kind, kind)
    }

    /// Whether anyone may read it.
    #[must_use]
    pub const fn is_public(&self) -> bool {
        self.permissions.has(Permissions::PUBLIC_READ)
    }
}

/// Whether a request for type `requested` selects values of type `kind`.
///
/// It selects the same type in any ASCII case and, if `requested` ends with a dot, sub-types too.
/// An empty `requested` selects nothing, and nothing selects an empty type. Shown by
/// `hashing.jsonl`, kind `type_match`.
#[must_use]
#[inline]
pub fn type_matches(requested: &[u8], kind: &[u8]) -> bool {
    match requested.split_last() {
        None => false,
        Some(_) if kind.is_empty() => false,
        Some((b'.', stem)) => crate::data::is_a(kind, stem),
        Some(_) => crate::fold::eq(requested, kind),
    }
}

/// An owned value: its encoding, checked.
#[derive(Clone, PartialEq, Eq)]
pub struct ValueBuf(Vec<u8>);

impl ValueBuf {
    /// Takes the encoding of exactly one value.
    ///
    /// # Errors
    /// When the bytes do not decode, or continue after the value.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(&bytes);
        Value::decode(&mut cursor)?;
        cursor.finish(Field::Value)?;
        Ok(Self(bytes))
    }

    /// The value.
    #[must_use]
    pub fn view(&self) -> Value<'_> {
        Value::split(&self.0).expect("the encoding was checked").0
    }

    /// The encoding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&Value<'_>> for ValueBuf {
    fn from(value: &Value<'_>) -> Self {
        let mut bytes = Vec::with_capacity(value.encoded_len());
        value.encode(&mut bytes);
        Self(bytes)
    }
}

impl fmt::Debug for ValueBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

pub use crate::wire::list::Values;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::list::Reference;
    use alloc::vec;
    use proptest::prelude::*;

    /// Index 5, permissions `1110`, type EMAIL, data `a@b`, one reference to 300:0.NA/TST.
    const VALUE: &[u8] = b"\0\0\0\x05\x5c\x81\x0f\xf0\0\0\x01\x51\x80\x0e\0\0\0\x05EMAIL\0\0\0\x03a@b\
        \0\0\0\x01\0\0\0\x080.NA/TST\0\0\x01\x2c";

    #[test]
    fn reads_each_field() {
        let (value, rest) = Value::split(VALUE).unwrap();
        assert!(rest.is_empty());
        assert_eq!((value.index, value.timestamp), (5, 1_551_962_096));
        assert_eq!((value.ttl, value.permissions), (Ttl::DEFAULT, Permissions::DEFAULT));
        assert_eq!((value.kind, value.data), (&b"EMAIL"[..], &b"a@b"[..]));
        let references: Vec<_> = value.references.iter().collect();
        assert_eq!(references, [Reference { handle: b"0.NA/TST", index: 300 }]);
        assert_eq!(value.encoded_len(), VALUE.len());
        assert_eq!(ValueBuf::from(&value).as_bytes(), VALUE);
    }

    #[test]
    fn refuses_every_truncation_and_lying_length() {
        for len in 0..VALUE.len() {
            let error = Value::split(&VALUE[..len]).unwrap_err();
            assert!(error.at() <= len, "cut to {len}: {error}");
        }
        for at in [14, 23, 30, 34] {
            for lie in [0x7fff_ffff, u32::MAX, 0x4000_0000] {
                let mut bytes = VALUE.to_vec();
                bytes[at..at + 4].copy_from_slice(&u32::to_be_bytes(lie));
                assert!(Value::split(&bytes).is_err(), "{lie} at {at}");
            }
        }
        assert!(ValueBuf::from_bytes([VALUE, &[0]].concat()).is_err());
    }

    #[test]
    fn types_match_as_asked() {
        for (requested, kind, matches) in [
            ("URL", "url", true),
            ("URL", "URL.HTTP", false),
            ("URL.", "URL", true),
            ("URL.", "URL.HTTP", true),
            ("URL.", "URLX", false),
            ("", "URL", false),
            (".", ".", true),
            (".", "", false),
        ] {
            assert_eq!(type_matches(requested.as_bytes(), kind.as_bytes()), matches, "{requested} {kind}");
        }
    }

    proptest! {
        #[test]
        fn round_trips(
            index: i32, timestamp: u32, ttl: (u8, i32), permissions: u8, kind: Vec<u8>, data: Vec<u8>,
            references: Vec<(Vec<u8>, i32)>,
        ) {
            let mut encoded = vec![];
            for (handle, index) in &references {
                Reference { handle, index: *index }.encode(&mut encoded);
            }
            let references = References::from_encoded(references.len(), &encoded).unwrap();
            let ttl = Ttl { kind: ttl.0, seconds: ttl.1 };
            let permissions = Permissions(permissions);
            let value = Value { index, timestamp, ttl, permissions, kind: &kind, data: &data, references };
            let owned = ValueBuf::from(&value);
            prop_assert_eq!(owned.view(), value);
        }
    }
}
