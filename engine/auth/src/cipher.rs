//! AES, triple DES and DES in the CBC and ECB modes, with the padding of PKCS #7, for key files and
//! for messages in sessions. These modes do not authenticate a ciphertext; a MAC has to.

use aes::{Aes128, Aes192, Aes256};
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt};
use cbc::cipher::{KeyInit, KeyIvInit};
use des::{Des, TdesEde3};
use zeroize::Zeroizing;

/// A block cipher. The length of the key selects the variant of AES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CipherBlock {
    Aes,
    DesEde,
    Des,
}

/// How blocks are chained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode<'a> {
    /// Each block depends on the previous one, and the first on this initial vector.
    Cbc(&'a [u8]),
    /// Blocks are independent.
    Ecb,
}

/// Dispatches to the cipher that a key of this length belongs to; `None` when there is none.
macro_rules! with_cipher {
    ($block:expr, $key:expr, $function:ident, $($argument:expr),*) => {
        match ($block, $key.len()) {
            (CipherBlock::Aes, 16) => $function::<Aes128>($key, $($argument),*),
            (CipherBlock::Aes, 24) => $function::<Aes192>($key, $($argument),*),
            (CipherBlock::Aes, 32) => $function::<Aes256>($key, $($argument),*),
            (CipherBlock::DesEde, 24) => $function::<TdesEde3>($key, $($argument),*),
            (CipherBlock::Des, 8) => $function::<Des>($key, $($argument),*),
            _ => None,
        }
    };
}

impl CipherBlock {
    /// Bytes of a block, and of an initial vector.
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Aes => 16,
            Self::DesEde | Self::Des => 8,
        }
    }

    /// `None` when key or initial vector have a length that the cipher does not use.
    pub(crate) fn encrypt(self, mode: Mode<'_>, key: &[u8], text: &[u8]) -> Option<Vec<u8>> {
        with_cipher!(self, key, encrypt, mode, text)
    }

    /// `None` as for [`encrypt`](Self::encrypt), and when the text has no padding where it should.
    pub(crate) fn decrypt(self, mode: Mode<'_>, key: &[u8], text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        with_cipher!(self, key, decrypt, mode, text)
    }
}

fn encrypt<C: BlockCipherEncrypt + KeyInit>(key: &[u8], mode: Mode<'_>, text: &[u8]) -> Option<Vec<u8>> {
    Some(match mode {
        Mode::Cbc(iv) => {
            cbc::Encryptor::<C>::new_from_slices(key, iv).ok()?.encrypt_padded_vec::<Pkcs7>(text)
        }
        Mode::Ecb => ecb::Encryptor::<C>::new_from_slice(key).ok()?.encrypt_padded_vec::<Pkcs7>(text),
    })
}

fn decrypt<C: BlockCipherDecrypt + KeyInit>(
    key: &[u8],
    mode: Mode<'_>,
    text: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    let plain = match mode {
        Mode::Cbc(iv) => {
            cbc::Decryptor::<C>::new_from_slices(key, iv).ok()?.decrypt_padded_vec::<Pkcs7>(text)
        }
        Mode::Ecb => ecb::Decryptor::<C>::new_from_slice(key).ok()?.decrypt_padded_vec::<Pkcs7>(text),
    };
    plain.ok().map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEYS: [(CipherBlock, usize); 5] = [
        (CipherBlock::Aes, 16),
        (CipherBlock::Aes, 24),
        (CipherBlock::Aes, 32),
        (CipherBlock::DesEde, 24),
        (CipherBlock::Des, 8),
    ];
    const BYTES: &[u8; 33] = b"0123456789abcdefghijklmnopqrstuvw";

    #[test]
    fn other_lengths_of_keys_and_vectors_are_refused() {
        for block in [CipherBlock::Aes, CipherBlock::DesEde, CipherBlock::Des] {
            for len in 0..=BYTES.len() {
                let (key, iv) = (&BYTES[..len], &BYTES[..block.len()]);
                let is_key = KEYS.contains(&(block, len));
                assert_eq!(block.encrypt(Mode::Cbc(iv), key, b"text").is_some(), is_key, "{block:?} {len}");
                assert_eq!(block.encrypt(Mode::Ecb, key, b"text").is_some(), is_key, "{block:?} {len}");
                let key = &BYTES[..KEYS.iter().find(|key| key.0 == block).unwrap().1];
                let is_iv = len == block.len();
                let encrypted = block.encrypt(Mode::Cbc(&BYTES[..len]), key, b"text");
                assert_eq!(encrypted.is_some(), is_iv, "{block:?}, vector of {len}");
            }
        }
    }

    #[test]
    fn empty_texts_and_partial_blocks_do_not_decrypt() {
        for (block, key_len) in KEYS {
            let key = &BYTES[..key_len];
            for mode in [Mode::Cbc(&BYTES[..block.len()]), Mode::Ecb] {
                let text = block.encrypt(mode, key, b"some text of 19 b.").unwrap();
                for len in (0..text.len()).filter(|len| len % block.len() != 0) {
                    assert_eq!(block.decrypt(mode, key, &text[..len]), None, "{block:?} cut to {len}");
                }
                assert_eq!(block.decrypt(mode, key, b""), None, "{block:?} of nothing");
            }
        }
    }

    proptest! {
        #[test]
        fn encrypted_texts_decrypt(text: Vec<u8>, key: [u8; 32], iv: [u8; 16]) {
            for (block, key_len) in KEYS {
                for mode in [Mode::Cbc(&iv[..block.len()]), Mode::Ecb] {
                    let encrypted = block.encrypt(mode, &key[..key_len], &text).unwrap();
                    prop_assert_eq!(encrypted.len(), (text.len() / block.len() + 1) * block.len());
                    let back = block.decrypt(mode, &key[..key_len], &encrypted).unwrap();
                    prop_assert_eq!(&**back, &text[..]);
                }
            }
        }
    }
}
