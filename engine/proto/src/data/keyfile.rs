//! Private key files (`privkey.bin`, `admpriv.bin`, `replpriv.bin`): their frame, without the
//! ciphers.

use crate::error::{DecodeError, Field};
use crate::limit;
use crate::wire::cursor::Cursor;
use crate::wire::put;
use alloc::vec::Vec;
use core::fmt;
use zeroize::Zeroizing;

/// How the key in a file is encrypted: the first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme(pub u32);

impl Scheme {
    /// DES in ECB mode, key from the MD5 of the passphrase; legacy.
    pub const DES_ECB: Self = Self(0);
    /// Not encrypted.
    pub const NONE: Self = Self(1);
    /// DES in CBC mode, key as for [`DES_ECB`](Self::DES_ECB); legacy.
    pub const DES_CBC: Self = Self(2);
    /// Triple DES in CBC mode, key from PBKDF2 with HMAC-SHA1; legacy.
    pub const PBKDF2_DESEDE: Self = Self(3);
    /// AES in CBC mode, key from PBKDF2 with HMAC-SHA1; the current scheme.
    pub const PBKDF2_AES: Self = Self(4);
}

/// A private key file, borrowed. Its bytes are not shown by `Debug`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyFile<'a> {
    /// The key itself, for [`PrivateKey::decode`](crate::data::key::PrivateKey::decode).
    Plain {
        /// All bytes after the scheme.
        key: &'a [u8],
    },
    /// Scheme 0.
    DesEcb {
        /// All bytes after the scheme.
        ciphertext: &'a [u8],
    },
    /// Scheme 2.
    DesCbc {
        /// The initial vector.
        iv: &'a [u8; 8],
        /// All bytes after the initial vector.
        ciphertext: &'a [u8],
    },
    /// Schemes 3 and 4.
    Pbkdf2(Pbkdf2<'a>),
}

/// A key encrypted under a key that PBKDF2 derives from the passphrase.
///
/// Each byte of the passphrase is taken as a character U+0000 to U+00FF, and these are encoded in
/// UTF-8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pbkdf2<'a> {
    /// [`Scheme::PBKDF2_AES`] or [`Scheme::PBKDF2_DESEDE`].
    pub scheme: Scheme,
    /// The salt.
    pub salt: &'a [u8],
    /// The rounds; bounded by [`limit::PBKDF2_ITERATIONS_MAX`].
    pub iterations: u32,
    /// Length of the derived key, in bits; bounded by [`limit::PBKDF2_KEY_BITS_MAX`].
    pub key_bits: u32,
    /// The initial vector.
    pub iv: &'a [u8],
    /// The encrypted key.
    pub ciphertext: &'a [u8],
}

impl<'a> KeyFile<'a> {
    /// Decodes a file.
    ///
    /// # Errors
    /// When the scheme is unknown, a field does not fit, bytes follow the ciphertext, or the file
    /// demands more work than allowed.
    pub fn decode(file: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(file);
        let start = cursor;
        match Scheme(cursor.u32(Field::KeyFile)?) {
            Scheme::DES_ECB => Ok(Self::DesEcb { ciphertext: cursor.rest() }),
            Scheme::NONE => Ok(Self::Plain { key: cursor.rest() }),
            Scheme::DES_CBC => {
                let iv = cursor.array(Field::KeyFile)?;
                Ok(Self::DesCbc { iv, ciphertext: cursor.rest() })
            }
            scheme @ (Scheme::PBKDF2_DESEDE | Scheme::PBKDF2_AES) => {
                Pbkdf2::decode(scheme, &mut cursor).map(Self::Pbkdf2)
            }
            _ => Err(start.invalid(Field::KeyFile)),
        }
    }

    /// How the key is encrypted.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        match self {
            Self::Plain { .. } => Scheme::NONE,
            Self::DesEcb { .. } => Scheme::DES_ECB,
            Self::DesCbc { .. } => Scheme::DES_CBC,
            Self::Pbkdf2(pbkdf2) => pbkdf2.scheme,
        }
    }

    /// Whether a passphrase is needed.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        !matches!(self, Self::Plain { .. })
    }

    /// The encoded file, cleared when it is dropped, because it may hold the key in the clear.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        // Allocated at once, because growing would leave copies behind that are not cleared.
        let mut out = Zeroizing::new(Vec::with_capacity(self.encoded_len()));
        put::u32(&mut out, self.scheme().0);
        match self {
            Self::Plain { key: rest } | Self::DesEcb { ciphertext: rest } => out.extend_from_slice(rest),
            Self::DesCbc { iv, ciphertext } => {
                out.extend_from_slice(*iv);
                out.extend_from_slice(ciphertext);
            }
            Self::Pbkdf2(pbkdf2) => pbkdf2.encode(&mut out),
        }
        out
    }

    fn encoded_len(&self) -> usize {
        match self {
            Self::Plain { key: rest } | Self::DesEcb { ciphertext: rest } => 4 + rest.len(),
            Self::DesCbc { ciphertext, .. } => 12 + ciphertext.len(),
            Self::Pbkdf2(pbkdf2) => 24 + pbkdf2.salt.len() + pbkdf2.iv.len() + pbkdf2.ciphertext.len(),
        }
    }
}

impl fmt::Debug for KeyFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFile({:?}, {} bytes)", self.scheme(), self.encoded_len())
    }
}

impl<'a> Pbkdf2<'a> {
    fn decode(scheme: Scheme, cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let salt = cursor.string(Field::KeyFile)?;
        let start = *cursor;
        let iterations = cursor.u32(Field::KeyFile)?;
        let key_bits = cursor.u32(Field::KeyFile)?;
        if iterations > limit::PBKDF2_ITERATIONS_MAX || key_bits > limit::PBKDF2_KEY_BITS_MAX {
            return Err(start.too_long(Field::KeyFile));
        }
        let iv = cursor.string(Field::KeyFile)?;
        let ciphertext = cursor.string(Field::KeyFile)?;
        cursor.finish(Field::KeyFile)?;
        Ok(Self { scheme, salt, iterations, key_bits, iv, ciphertext })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.salt);
        put::u32(out, self.iterations);
        put::u32(out, self.key_bits);
        put::string(out, self.iv);
        put::string(out, self.ciphertext);
    }
}

impl fmt::Debug for Pbkdf2<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pbkdf2({:?}, {} rounds, {} bits)", self.scheme, self.iterations, self.key_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    const AES: &[u8] = b"\0\0\0\x04\0\0\0\x02sa\0\0\x27\x10\0\0\0\x80\0\0\0\x02iv\0\0\0\x03abc";

    #[test]
    fn reads_each_scheme() {
        let pbkdf2 = Pbkdf2 {
            scheme: Scheme::PBKDF2_AES,
            salt: b"sa",
            iterations: 10_000,
            key_bits: 128,
            iv: b"iv",
            ciphertext: b"abc",
        };
        assert_eq!(KeyFile::decode(AES), Ok(KeyFile::Pbkdf2(pbkdf2)));
        assert_eq!(KeyFile::decode(b"\0\0\0\x01key"), Ok(KeyFile::Plain { key: b"key" }));
        assert_eq!(KeyFile::decode(b"\0\0\0\0abc"), Ok(KeyFile::DesEcb { ciphertext: b"abc" }));
        let cbc = KeyFile::DesCbc { iv: b"12345678", ciphertext: b"abc" };
        assert_eq!(KeyFile::decode(b"\0\0\0\x0212345678abc"), Ok(cbc));
        assert!(cbc.is_encrypted() && !KeyFile::Plain { key: b"" }.is_encrypted());
    }

    #[test]
    fn refuses_truncations_unknown_schemes_and_trailing_bytes() {
        for len in 0..AES.len() {
            assert!(KeyFile::decode(&AES[..len]).is_err(), "cut to {len}");
        }
        let longer = [AES, &[0]].concat();
        assert_eq!(KeyFile::decode(&longer), Err(DecodeError::Trailing { field: Field::KeyFile, at: 31 }));
        for scheme in [5, 7, 12, u32::MAX] {
            let file = [&scheme.to_be_bytes()[..], &AES[4..]].concat();
            let error = DecodeError::Invalid { field: Field::KeyFile, at: 0 };
            assert_eq!(KeyFile::decode(&file), Err(error), "{scheme}");
        }
        assert!(KeyFile::decode(b"\0\0\0\x021234567").is_err());
    }

    #[test]
    fn refuses_a_file_that_asks_for_endless_work() {
        for (at, lie) in [(10, limit::PBKDF2_ITERATIONS_MAX + 1), (14, limit::PBKDF2_KEY_BITS_MAX + 1)] {
            let mut file = AES.to_vec();
            file[at..at + 4].copy_from_slice(&lie.to_be_bytes());
            assert_eq!(KeyFile::decode(&file), Err(DecodeError::TooLong { field: Field::KeyFile, at: 10 }));
        }
    }

    #[test]
    fn does_not_show_the_key() {
        assert_eq!(format!("{:?}", KeyFile::Plain { key: b"secret" }), "KeyFile(Scheme(1), 10 bytes)");
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(scheme in 0u32..6, tail: Vec<u8>) {
            let bytes = [&scheme.to_be_bytes()[..], &tail].concat();
            if let Ok(file) = KeyFile::decode(&bytes) {
                prop_assert_eq!(&**file.to_bytes(), &bytes[..]);
            }
        }

        #[test]
        fn round_trips(salt: Vec<u8>, iterations in 0..=1_000_000u32, key_bits in 0..=512u32, iv: Vec<u8>, text: Vec<u8>) {
            let file = KeyFile::Pbkdf2(Pbkdf2 {
                scheme: Scheme::PBKDF2_DESEDE, salt: &salt, iterations, key_bits, iv: &iv, ciphertext: &text,
            });
            let bytes = file.to_bytes();
            prop_assert_eq!(bytes.len(), file.encoded_len());
            prop_assert_eq!(KeyFile::decode(&bytes), Ok(file));
        }
    }
}
