//! Private key files: unencrypted ones, and those encrypted under a passphrase.

use crate::cipher::{CipherBlock, Mode};
use crate::error::KeyError;
use crate::kdf::pbkdf2_sha1;
use crate::{pem, random};
use handle_proto::DecodeError;
use handle_proto::data::keyfile::{Pbkdf2, Scheme};
use handle_proto::data::{KeyFile, PrivateKey, PrivateKeyBuf};
use handle_proto::limit;
use std::fmt;
use zeroize::Zeroizing;

/// Rounds of PBKDF2 in written key files: sixty times those of deployed software, which reads any
/// number. Opening such a file takes about 0.15 s.
pub const ITERATIONS: u32 = 600_000;
const SALT_LEN: usize = limit::PBKDF2_SALT_LEN;

/// Why a private key file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The frame does not decode, or demands more work than allowed.
    Frame(DecodeError),
    /// The file demands more rounds of PBKDF2 than allowed.
    Work,
    /// The key is encrypted with single DES (schemes 0 and 2), which is broken.
    Legacy(Scheme),
    /// The key is encrypted, and there is no passphrase.
    PassphraseNeeded,
    /// The passphrase is wrong or the file is damaged. The two cannot be distinguished.
    Undecryptable,
    /// The key is not encrypted, and the content is not a private key.
    Key(KeyError),
    /// The file looks like PEM, but not like that of a private key.
    Pem(pem::PemError),
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame(error) => write!(f, "not a private key file: {error}"),
            Self::Legacy(scheme) => write!(
                f,
                "the key is encrypted with single DES (type {}), which is not read; decrypt it with the tool \
                 that made it (hdl-passwd, hdl-convert-key) and encrypt it again",
                scheme.0
            ),
            Self::Work => f.write_str(
                "the key file demands more rounds of PBKDF2 than allowed; encrypt the key again with fewer",
            ),
            Self::PassphraseNeeded => f.write_str("the key is encrypted and needs a passphrase"),
            Self::Undecryptable => f.write_str("the passphrase is wrong, or the file is damaged"),
            Self::Key(error) => write!(f, "{error}"),
            Self::Pem(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for KeyFileError {}

/// Reads a private key file: native or PEM, plain or encrypted.
///
/// Native types 1, 3 and 4 are supported. To convert a file of type 3, triple DES, [`encrypt`] the
/// result.
///
/// # Errors
/// See [`KeyFileError`].
pub fn decode(file: &[u8], passphrase: Option<&[u8]>) -> Result<PrivateKeyBuf, KeyFileError> {
    decode_within(file, passphrase, limit::PBKDF2_ITERATIONS_MAX)
}

/// [`decode`], with at most `iterations_max` rounds of PBKDF2 in place of a million.
///
/// # Errors
/// See [`KeyFileError`]; a file with more rounds is [`KeyFileError::Work`].
pub fn decode_within(
    file: &[u8],
    passphrase: Option<&[u8]>,
    iterations_max: u32,
) -> Result<PrivateKeyBuf, KeyFileError> {
    if pem::is_pem(file) {
        return pem::decode_private_key(file, passphrase, iterations_max);
    }
    match KeyFile::decode(file).map_err(KeyFileError::Frame)? {
        KeyFile::Plain { key } => owned(key).map_err(|error| KeyFileError::Key(error.into())),
        KeyFile::Pbkdf2(pbkdf2) if pbkdf2.iterations > iterations_max => Err(KeyFileError::Work),
        KeyFile::Pbkdf2(pbkdf2) => decrypt(&pbkdf2, passphrase.ok_or(KeyFileError::PassphraseNeeded)?),
        legacy @ (KeyFile::DesEcb { .. } | KeyFile::DesCbc { .. }) => {
            Err(KeyFileError::Legacy(legacy.scheme()))
        }
    }
}

fn decrypt(file: &Pbkdf2<'_>, passphrase: &[u8]) -> Result<PrivateKeyBuf, KeyFileError> {
    let (block, key_bits) = match file.scheme {
        Scheme::PBKDF2_DESEDE => (CipherBlock::DesEde, [192].as_slice()),
        _ => (CipherBlock::Aes, [128, 192, 256].as_slice()),
    };
    if file.iterations == 0 || !key_bits.contains(&file.key_bits) {
        return Err(KeyFileError::Undecryptable);
    }
    let key = pbkdf2_sha1(passphrase, file.salt, file.iterations, file.key_bits as usize / 8);
    let plain = block.decrypt(Mode::Cbc(file.iv), &key, file.ciphertext);
    // With a wrong key the padding is correct once in 256 times, and then the content is no key.
    let plain = plain.ok_or(KeyFileError::Undecryptable)?;
    owned(&plain).map_err(|_| KeyFileError::Undecryptable)
}

fn owned(key: &[u8]) -> Result<PrivateKeyBuf, DecodeError> {
    PrivateKeyBuf::from_bytes(key.to_vec())
}

/// An unencrypted key file (type 1).
#[must_use]
pub fn plain(key: &PrivateKey<'_>) -> Zeroizing<Vec<u8>> {
    KeyFile::Plain { key: &key.to_bytes() }.to_bytes()
}

/// A key file of type 4, AES-128 under `passphrase`, with fresh salt and initial vector.
///
/// # Panics
/// When the operating system has no random numbers.
#[must_use]
pub fn encrypt(key: &PrivateKey<'_>, passphrase: &[u8]) -> Zeroizing<Vec<u8>> {
    encrypt_with(key, passphrase, ITERATIONS, &random(), &random())
}

/// [`encrypt`] with explicit rounds, salt and initial vector.
#[must_use]
pub fn encrypt_with(
    key: &PrivateKey<'_>,
    passphrase: &[u8],
    iterations: u32,
    salt: &[u8; SALT_LEN],
    iv: &[u8; 16],
) -> Zeroizing<Vec<u8>> {
    let aes_key = pbkdf2_sha1(passphrase, salt, iterations, 16);
    let ciphertext = CipherBlock::Aes.encrypt(Mode::Cbc(iv), &aes_key, &key.to_bytes());
    let ciphertext = ciphertext.expect("lengths of AES-128");
    let scheme = Scheme::PBKDF2_AES;
    let file = Pbkdf2 { scheme, salt, iterations, key_bits: 128, iv, ciphertext: &ciphertext };
    KeyFile::Pbkdf2(file).to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::private_record;
    use proptest::prelude::*;

    fn encrypted(record: &[u8], passphrase: &[u8]) -> Zeroizing<Vec<u8>> {
        encrypt_with(&PrivateKey::decode(record).unwrap(), passphrase, 3, &[1; 16], &[2; 16])
    }

    #[test]
    fn plain_and_encrypted_keys_read_back() {
        for id in ["admin_rsa", "rsa1024", "admin_dsa"] {
            let record = private_record(id);
            let key = PrivateKey::decode(&record).unwrap();
            assert_eq!(decode(&plain(&key), None).unwrap().as_bytes(), record, "{id}");
            assert_eq!(decode(&plain(&key), Some(b"needless")).unwrap().as_bytes(), record, "{id}");
            for passphrase in [&b"pass phrase"[..], b"", "schl\u{fc}ssel".as_bytes(), b"\xff\x80"] {
                let file = encrypted(&record, passphrase);
                assert_eq!(decode(&file, Some(passphrase)).unwrap().as_bytes(), record, "{id}");
                assert_eq!(decode(&file, None).unwrap_err(), KeyFileError::PassphraseNeeded, "{id}");
            }
        }
    }

    #[test]
    fn encrypted_files_have_a_fresh_salt_and_no_plain_key() {
        let record = private_record("admin_dsa");
        let key = PrivateKey::decode(&record).unwrap();
        let (one, two) = (encrypt(&key, b"pass phrase"), encrypt(&key, b"pass phrase"));
        assert_ne!(one[8..24], two[8..24], "the salt");
        assert!(!one.windows(8).any(|window| window == &record[20..28]));
        let KeyFile::Pbkdf2(file) = KeyFile::decode(&one).unwrap() else { panic!("not encrypted") };
        assert_eq!((file.scheme, file.key_bits), (Scheme::PBKDF2_AES, 128));
        assert_eq!((file.salt.len(), file.iv.len(), file.iterations), (16, 16, ITERATIONS));
        assert_eq!(decode(&one, Some(b"pass phrase")).unwrap().as_bytes(), record);
    }

    #[test]
    fn a_wrong_passphrase_and_damage_give_the_same_error() {
        let record = private_record("admin_dsa");
        let file = encrypted(&record, b"pass phrase");
        // Often enough that some wrong key gives a correct padding.
        for n in 0..2000 {
            let wrong = format!("wrong {n}");
            let error = decode(&file, Some(wrong.as_bytes())).unwrap_err();
            assert_eq!(error, KeyFileError::Undecryptable, "{wrong}");
        }
        let iv_at = 4 + 4 + 16 + 4 + 4 + 4;
        for at in [8, iv_at, iv_at + 16 + 4, file.len() - 17, file.len() - 1] {
            let mut damaged = file.to_vec();
            damaged[at] ^= 1;
            let error = decode(&damaged, Some(b"pass phrase")).unwrap_err();
            assert_eq!(error, KeyFileError::Undecryptable, "byte {at}");
        }
    }

    #[test]
    fn single_des_is_refused_with_a_hint() {
        for (file, scheme) in [(&b"\0\0\0\0ciphertext"[..], 0), (b"\0\0\0\x0212345678ciphertext", 2)] {
            let error = decode(file, Some(b"pass phrase")).unwrap_err();
            assert_eq!(error, KeyFileError::Legacy(Scheme(scheme)));
            assert!(error.to_string().contains("hdl-convert-key"), "{error}");
        }
    }

    #[test]
    fn odd_parameters_do_not_decrypt() {
        let (salt, iv, ciphertext) = (&[1; 16][..], &[2; 16][..], &[3; 32][..]);
        for (scheme, iterations, key_bits, iv) in [
            (Scheme::PBKDF2_AES, 0, 128, iv),
            (Scheme::PBKDF2_AES, 1, 0, iv),
            (Scheme::PBKDF2_AES, 1, 127, iv),
            (Scheme::PBKDF2_AES, 1, 512, iv),
            (Scheme::PBKDF2_AES, 1, 128, &iv[..8]),
            (Scheme::PBKDF2_AES, 1, 128, &[]),
            (Scheme::PBKDF2_DESEDE, 1, 128, &iv[..8]),
            (Scheme::PBKDF2_DESEDE, 1, 192, iv),
        ] {
            let file = KeyFile::Pbkdf2(Pbkdf2 { scheme, salt, iterations, key_bits, iv, ciphertext });
            let error = decode(&file.to_bytes(), Some(b"pass phrase")).unwrap_err();
            assert_eq!(error, KeyFileError::Undecryptable, "{file:?}");
        }
    }

    #[test]
    fn rounds_are_bounded_at_their_edge() {
        let record = private_record("admin_dsa");
        let key = PrivateKey::decode(&record).unwrap();
        let native = encrypt_with(&key, b"pass phrase", 3, &[1; 16], &[2; 16]);
        let pem = pem::encrypted(&key, b"pass phrase", 3, &[1; 16], [2; 16]).unwrap();
        for file in [&native[..], pem.as_bytes()] {
            assert!(decode_within(file, Some(b"pass phrase"), 3).is_ok());
            assert_eq!(decode_within(file, Some(b"pass phrase"), 2).unwrap_err(), KeyFileError::Work);
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let record = private_record("admin_dsa");
        let key = PrivateKey::decode(&record).unwrap();
        for file in [plain(&key), encrypted(&record, b"pass phrase")] {
            for len in 0..file.len() {
                assert!(decode(&file[..len], Some(b"pass phrase")).is_err(), "cut to {len}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_file_is_refused_or_read(mut bytes: Vec<u8>, scheme in 0u8..6, mut header in prop::bool::ANY) {
            header &= bytes.len() >= 4;
            if header {
                bytes[..4].copy_from_slice(&[0, 0, 0, scheme]);
            }
            prop_assert!(decode(&bytes, Some(b"pass phrase")).is_err());
        }
    }
}
