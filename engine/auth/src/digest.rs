//! Digests, HMACs and plain keyed digests, by the codes of the protocol.

use crate::backend;
use crate::error::VerifyError;
use ctutils::CtEq;
use handle_proto::code::DigestAlgorithm;
use md5::Md5;
use md5::digest::Digest as _;
use std::fmt;
use std::ops::Deref;

/// A digest or MAC of up to 32 bytes.
#[derive(Clone, Copy)]
pub struct Digest {
    bytes: [u8; 32],
    len: u8,
}

impl Digest {
    /// Wraps a digest that was computed elsewhere.
    ///
    /// # Panics
    /// When the digest has more than 32 bytes.
    #[must_use]
    pub fn from_bytes(digest: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..digest.len()].copy_from_slice(digest);
        Self { bytes, len: u8::try_from(digest.len()).expect("at most 32 bytes") }
    }

    /// Compares the digest with `other`, in a time that depends only on the lengths.
    ///
    /// # Errors
    /// [`VerifyError::Wrong`] when they differ.
    pub fn check(&self, other: &[u8]) -> Result<(), VerifyError> {
        if self.ct_eq(other).to_bool() { Ok(()) } else { Err(VerifyError::Wrong) }
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        self.check(other).is_ok()
    }
}

impl Eq for Digest {}

impl Deref for Digest {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// The digest of the concatenation of `parts`; `None` if the code is not that of a plain digest.
#[must_use]
pub fn digest<'a>(algorithm: DigestAlgorithm, parts: impl IntoIterator<Item = &'a [u8]>) -> Option<Digest> {
    let algorithm = match algorithm {
        DigestAlgorithm::OLD_MD5 | DigestAlgorithm::MD5 => {
            let mut md5 = Md5::new();
            parts.into_iter().for_each(|part| md5.update(part));
            return Some(Digest::from_bytes(&md5.finalize()));
        }
        DigestAlgorithm::SHA1 => &backend::digest::SHA1_FOR_LEGACY_USE_ONLY,
        DigestAlgorithm::SHA256 => &backend::digest::SHA256,
        _ => return None,
    };
    let mut context = backend::digest::Context::new(algorithm);
    parts.into_iter().for_each(|part| context.update(part));
    Some(Digest::from_bytes(context.finish().as_ref()))
}

/// The HMAC of the concatenation of `parts`; `None` if the code is not that of an HMAC.
fn hmac<'a>(
    algorithm: DigestAlgorithm,
    key: &[u8],
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Option<Digest> {
    let algorithm = match algorithm {
        DigestAlgorithm::HMAC_SHA1 => backend::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        DigestAlgorithm::HMAC_SHA256 => backend::hmac::HMAC_SHA256,
        _ => return None,
    };
    let mut context = backend::hmac::Context::with_key(&backend::hmac::Key::new(algorithm, key));
    parts.into_iter().for_each(|part| context.update(part));
    Some(Digest::from_bytes(context.sign().as_ref()))
}

/// The digest or HMAC of `parts`. For a plain digest, the parts include the key; an HMAC adds it:
/// see [`Mac::parts`](handle_proto::wire::credential::Mac::parts).
pub(crate) fn keyed<'a>(
    algorithm: DigestAlgorithm,
    key: &[u8],
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Option<Digest> {
    if algorithm.is_hmac() { hmac(algorithm, key, parts) } else { digest(algorithm, parts) }
}

/// The MAC of `parts` with `key`: an HMAC, or a digest of key, parts, key. `None` for any other
/// code.
#[must_use]
pub fn mac(algorithm: DigestAlgorithm, key: &[u8], parts: &[&[u8]]) -> Option<Digest> {
    let around: &[&[u8]] = if algorithm.is_hmac() { &[] } else { &[key] };
    keyed(algorithm, key, around.iter().chain(parts).chain(around).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_depend_on_the_code_and_not_on_the_division_into_parts() {
        let plain =
            [DigestAlgorithm::OLD_MD5, DigestAlgorithm::MD5, DigestAlgorithm::SHA1, DigestAlgorithm::SHA256];
        for code in 0..=255 {
            let algorithm = DigestAlgorithm(code);
            let computed = digest(algorithm, [&b"ab"[..], b"", b"c"]);
            assert_eq!(computed.is_some(), plain.contains(&algorithm), "{code}");
            assert_eq!(computed.map(|digest| digest.len()), algorithm.digest_len(), "{code}");
            let Some(computed) = computed else { continue };
            assert_eq!(*computed, *digest(algorithm, [&b"abc"[..]]).unwrap(), "{code}");
            assert_eq!(
                *mac(algorithm, b"k", &[b"abc"]).unwrap(),
                *digest(algorithm, [&b"kabck"[..]]).unwrap()
            );
        }
        assert_eq!(digest(DigestAlgorithm::MD5, [&b"abc"[..]]).unwrap()[..4], [0x90, 0x01, 0x50, 0x98]);
        assert_eq!(digest(DigestAlgorithm::SHA1, [&b"abc"[..]]).unwrap()[..4], [0xa9, 0x99, 0x3e, 0x36]);
        assert_eq!(digest(DigestAlgorithm::SHA256, [&b"abc"[..]]).unwrap()[..4], [0xba, 0x78, 0x16, 0xbf]);
    }

    #[test]
    fn a_check_compares_every_byte() {
        let mac_digest = mac(DigestAlgorithm::HMAC_SHA1, b"k", &[b"abc"]).unwrap();
        assert_eq!(mac_digest.check(&mac_digest), Ok(()));
        for len in 0..mac_digest.len() {
            assert_eq!(mac_digest.check(&mac_digest[..len]), Err(VerifyError::Wrong), "cut to {len}");
        }
        assert_eq!(mac_digest.check(&[&mac_digest[..], &[0]].concat()), Err(VerifyError::Wrong));
        for at in 0..mac_digest.len() {
            let mut wrong = mac_digest.to_vec();
            wrong[at] ^= 0x80;
            assert_eq!(mac_digest.check(&wrong), Err(VerifyError::Wrong), "byte {at}");
        }
        assert!(mac(DigestAlgorithm::PBKDF2_HMAC_SHA1, b"k", &[b"abc"]).is_none());
        assert_eq!(format!("{mac_digest:?}"), "20 bytes");
    }
}
