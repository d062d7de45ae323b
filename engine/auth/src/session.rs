//! The keys of sessions, and the encryption of messages in them. RFC 3652 section 3.8, with the
//! deployed ciphers.
//!
//! The counters against replay are [`SeenCounters`](handle_proto::wire::counter::SeenCounters), and
//! MACs are made by [`mac_message`](crate::message::mac_message).

use crate::cipher::{CipherBlock, Mode};
use handle_proto::Version;
use handle_proto::code::Cipher;
use std::fmt;
use zeroize::Zeroizing;

/// First version in which messages are encrypted in CBC mode, after an initial vector.
const CBC_SINCE: Version = Version::new(2, 4);
/// Bytes of the key that AES uses. MACs use the whole key.
const AES_KEY_LEN: usize = 16;

/// The key of a session, and its cipher.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey {
    cipher: Cipher,
    key: Zeroizing<Vec<u8>>,
}

impl SessionKey {
    /// Derives the key from a shared secret, which is as long as the modulus of the agreement.
    ///
    /// DES and triple DES use the first 8 or 24 bytes and set their parity. AES uses 32 bytes,
    /// without leading zeros if there are more.
    ///
    /// `None` if the cipher is unknown, or the secret too short for it.
    #[must_use]
    pub fn derive(cipher: Cipher, secret: &[u8]) -> Option<Self> {
        let key = match cipher {
            Cipher::DES => with_parity(secret.get(..8)?),
            Cipher::DESEDE => with_parity(secret.get(..24)?),
            Cipher::AES => {
                let zeros = secret.iter().take_while(|&&byte| byte == 0).count();
                let from = zeros.min(secret.len().checked_sub(32)?);
                secret[from..from + 32].to_vec()
            }
            _ => return None,
        };
        Self::new(cipher, key)
    }

    /// Wraps a key; `None` if the cipher is unknown, or takes keys of another length.
    #[must_use]
    pub fn new(cipher: Cipher, key: Vec<u8>) -> Option<Self> {
        let key = Zeroizing::new(key);
        let is_length = match cipher {
            Cipher::DES => key.len() == 8,
            Cipher::DESEDE => key.len() == 24,
            Cipher::AES => (AES_KEY_LEN..=32).contains(&key.len()),
            _ => false,
        };
        is_length.then_some(Self { cipher, key })
    }

    /// The cipher.
    #[must_use]
    pub const fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The whole key, as MACs use it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.key
    }

    fn block(&self) -> (CipherBlock, &[u8]) {
        match self.cipher {
            Cipher::DES => (CipherBlock::Des, &self.key),
            Cipher::DESEDE => (CipherBlock::DesEde, &self.key),
            _ => (CipherBlock::Aes, &self.key[..AES_KEY_LEN]),
        }
    }

    /// Encrypts the bytes of a message of `version` from its envelope up to its credential. Returns
    /// the bytes that replace them.
    ///
    /// `random` must be fresh for every message. The cipher uses as much of it as it needs for an
    /// initial vector.
    #[must_use]
    pub fn encrypt(&self, version: Version, random: &[u8; 16], text: &[u8]) -> Vec<u8> {
        let (block, key) = self.block();
        let (iv, mode) = match &random[..block.len()] {
            iv if version >= CBC_SINCE => (iv, Mode::Cbc(iv)),
            _ => (&[][..], Mode::Ecb),
        };
        let text = block.encrypt(mode, key, text).expect("a key of the cipher's length");
        [iv, &text].concat()
    }

    /// Decrypts the bytes behind the envelope of a message of `version`.
    ///
    /// `None` if their length or their padding is wrong. Success does not prove that the key was
    /// correct or the message unchanged; only its MAC does. A server's answers must not reveal
    /// which of these checks failed.
    #[must_use]
    pub fn decrypt(&self, version: Version, bytes: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (block, key) = self.block();
        if version >= CBC_SINCE {
            let (iv, text) = bytes.split_at_checked(block.len())?;
            return block.decrypt(Mode::Cbc(iv), key, text);
        }
        block.decrypt(Mode::Ecb, key, bytes)
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} key of {} bytes", self.cipher, self.key.len())
    }
}

/// Sets the lowest bit of every byte so that its number of set bits is odd.
fn with_parity(key: &[u8]) -> Vec<u8> {
    key.iter().map(|byte| byte & 0xfe | u8::from((byte >> 1).count_ones() % 2 == 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CIPHERS: [Cipher; 3] = [Cipher::DES, Cipher::DESEDE, Cipher::AES];

    #[test]
    fn derived_keys_have_parity_and_drop_leading_zeros_if_enough_bytes_remain() {
        let des = SessionKey::derive(Cipher::DES, &[0, 1, 2, 3, 0x7f, 0x80, 0xfe, 0xff, 9]).unwrap();
        assert_eq!(des.as_bytes(), [1, 1, 2, 2, 0x7f, 0x80, 0xfe, 0xfe]);
        for (zeros, len, from) in [(0, 64, 0), (3, 64, 3), (40, 64, 32), (3, 32, 0), (3, 33, 1), (3, 34, 2)] {
            let mut secret = vec![0; zeros];
            secret.extend((1..=u8::try_from(len - zeros).unwrap()).map(|byte| byte | 0x80));
            let key = SessionKey::derive(Cipher::AES, &secret).unwrap();
            assert_eq!(key.as_bytes(), &secret[from..from + 32], "{zeros} zeros of {len}");
        }
        for (cipher, len) in [(Cipher::DES, 7), (Cipher::DESEDE, 23), (Cipher::AES, 31)] {
            assert_eq!(SessionKey::derive(cipher, &vec![1; len]), None, "{cipher}");
            assert!(SessionKey::derive(cipher, &vec![1; len + 1]).is_some(), "{cipher}");
        }
        for code in [-1, 0, 4, i32::MAX] {
            assert_eq!(SessionKey::derive(Cipher(code), &[1; 64]), None, "{code}");
        }
    }

    #[test]
    fn keys_of_other_lengths_are_refused_and_debug_output_has_no_key() {
        for (cipher, lengths) in [(Cipher::DES, 8..=8), (Cipher::DESEDE, 24..=24), (Cipher::AES, 16..=32)] {
            for len in 0..40 {
                let key = SessionKey::new(cipher, vec![1; len]);
                assert_eq!(key.is_some(), lengths.contains(&len), "{cipher} {len}");
            }
        }
        let key = SessionKey::new(Cipher::AES, vec![0x5a; 32]).unwrap();
        assert_eq!(format!("{key:?}"), "AES key of 32 bytes");
    }

    #[test]
    fn texts_cut_short_do_not_decrypt() {
        for cipher in CIPHERS {
            let key = SessionKey::derive(cipher, &[0x35; 64]).unwrap();
            for version in [Version::new(2, 3), Version::new(2, 4)] {
                let encrypted = key.encrypt(version, &[7; 16], b"all that follows the envelope");
                let block = key.block().0.len();
                assert_eq!(encrypted.len() % block, 0);
                for len in (0..encrypted.len()).filter(|len| len % block != 0 || *len < block) {
                    assert_eq!(
                        key.decrypt(version, &encrypted[..len]),
                        None,
                        "{cipher} {version} cut to {len}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn encrypted_texts_decrypt(secret: [u8; 64], random: [u8; 16], text: Vec<u8>, minor in 1u8..12) {
            for cipher in CIPHERS {
                let (key, version) = (SessionKey::derive(cipher, &secret).unwrap(), Version::new(2, minor));
                let encrypted = key.encrypt(version, &random, &text);
                let back = key.decrypt(version, &encrypted);
                prop_assert_eq!(back.as_deref(), Some(&text));
            }
        }

        #[test]
        fn any_bytes_decrypt_or_not(secret: [u8; 64], bytes: Vec<u8>, minor in 1u8..12) {
            for cipher in CIPHERS {
                let key = SessionKey::derive(cipher, &secret).unwrap();
                let _ = key.decrypt(Version::new(2, minor), &bytes);
            }
        }
    }
}
