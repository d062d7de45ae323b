//! The encryption of rows that processes over one database share.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use zeroize::Zeroizing;

/// Encrypts rows with a key that only those have who have the server key.
pub(super) struct RowCipher(LessSafeKey);

impl std::fmt::Debug for RowCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowCipher").finish_non_exhaustive()
    }
}

impl RowCipher {
    /// The cipher for rows of one kind, which `kind` names.
    pub(super) fn new(kind: &str, server_key: &[u8]) -> Option<Self> {
        let secret = Salt::new(HKDF_SHA256, kind.as_bytes()).extract(server_key);
        let key = secret.expand(&[b"chacha20-poly1305"], &CHACHA20_POLY1305).ok()?;
        Some(Self(LessSafeKey::new(UnboundKey::from(key))))
    }

    /// A nonce and the encrypted `text` of row `id`. The text is overwritten.
    pub(super) fn seal(&self, id: i32, text: &mut Zeroizing<Vec<u8>>) -> Option<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = handle_auth::random();
        let sealing = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(sealing, Aad::from(id.to_be_bytes()), text).ok()?;
        Some([&nonce, &text[..], tag.as_ref()].concat())
    }

    /// The text of a row; `None` if it was made with another key, or for another row.
    pub(super) fn open(&self, id: i32, row: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, sealed) = row.split_first_chunk::<NONCE_LEN>()?;
        let mut text = Zeroizing::new(sealed.to_vec());
        let opening = Nonce::assume_unique_for_key(*nonce);
        let len = self.0.open_in_place(opening, Aad::from(id.to_be_bytes()), &mut text).ok()?.len();
        text.truncate(len);
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_with_the_same_key_kind_and_number_only() {
        let text = || Zeroizing::new(b"a request with a secret".to_vec());
        let cipher = |kind, key: &[u8]| RowCipher::new(kind, key).unwrap();
        let (here, there) = (cipher("a", b"key"), cipher("a", b"key"));
        let row = here.seal(5, &mut text()).unwrap();
        assert!(!row.windows(6).any(|bytes| bytes == b"secret"));
        assert_eq!(there.open(5, &row), Some(text()));
        assert_eq!(there.open(7, &row), None, "another number");
        assert_eq!(cipher("a", b"another key").open(5, &row), None);
        assert_eq!(cipher("b", b"key").open(5, &row), None, "another kind");
        for at in 0..row.len() {
            let mut changed = row.clone();
            changed[at] ^= 1;
            assert_eq!(there.open(5, &changed), None, "byte {at}");
            assert_eq!(there.open(5, &row[..at]), None, "cut to {at}");
        }
        assert_ne!(here.seal(5, &mut text()).unwrap(), row, "another nonce");
    }
}
