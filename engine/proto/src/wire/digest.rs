//! The digest of a request, before the body of its response.

use super::cursor::Cursor;
use super::put;
use crate::code::{DigestAlgorithm, Version};
use crate::error::{DecodeError, Field};
use alloc::vec::Vec;

impl DigestAlgorithm {
    /// The algorithm with which a response of `version` digests its request.
    #[must_use]
    pub fn for_response(version: Version) -> Self {
        match version {
            version if version >= Version::new(2, 7) => Self::SHA256,
            version if version >= Version::LOWEST => Self::SHA1,
            _ => Self::OLD_MD5,
        }
    }

    /// The algorithm with which an RSA key signs messages of `version`, and answers their
    /// challenges.
    #[must_use]
    pub fn for_rsa_signature(version: Version) -> Self {
        if version >= Version::new(2, 7) { Self::SHA256 } else { Self::SHA1 }
    }

    /// The algorithm with which a DSA key signs messages of `version`, and answers their
    /// challenges.
    #[must_use]
    pub fn for_dsa_signature(version: Version) -> Self {
        if version >= Version::new(2, 11) { Self::SHA256 } else { Self::SHA1 }
    }

    /// Bytes of a plain digest; `None` for other algorithms.
    #[must_use]
    pub const fn digest_len(self) -> Option<usize> {
        match self {
            Self::OLD_MD5 | Self::MD5 => Some(16),
            Self::SHA1 => Some(20),
            Self::SHA256 => Some(32),
            _ => None,
        }
    }

    /// Whether it is an HMAC, which includes the key; for a plain digest the key surrounds the
    /// message.
    #[must_use]
    pub const fn is_hmac(self) -> bool {
        matches!(self, Self::HMAC_SHA1 | Self::HMAC_SHA256)
    }

    /// Parses the name of an algorithm, or its one-byte code, as in credentials and answers.
    ///
    /// Digests have two spellings each; case and punctuation do not matter in the names of HMACs.
    /// Shown by `credentials.jsonl`, kinds `mac` and `signed_message`.
    #[must_use]
    pub fn from_identifier(identifier: &[u8]) -> Option<Self> {
        match identifier {
            &[code] => Some(Self(code)),
            b"MD5" => Some(Self::MD5),
            b"SHA1" | b"SHA-1" => Some(Self::SHA1),
            b"SHA256" | b"SHA-256" => Some(Self::SHA256),
            _ if letters(identifier).eq(*b"HMACSHA1") => Some(Self::HMAC_SHA1),
            _ if letters(identifier).eq(*b"HMACSHA256") => Some(Self::HMAC_SHA256),
            _ => None,
        }
    }
}

/// The letters and digits of a name, in one case.
fn letters(text: &[u8]) -> impl Iterator<Item = u8> {
    text.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_uppercase)
}

/// The digest of a request's header and body, as the response repeats it.
///
/// It precedes every response body if the header has the flag RD, and is part of the request to
/// verify an answer. It has two framings: the algorithm in one byte and then the digest, or
/// ([`DigestAlgorithm::OLD_MD5`]) a counted string. They cannot be confused, because the count
/// begins with a zero byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDigest<'a> {
    /// The algorithm. [`DigestAlgorithm::OLD_MD5`] means that the digest is framed as a counted
    /// string.
    pub algorithm: DigestAlgorithm,
    /// The digest, of the length of its algorithm.
    pub digest: &'a [u8],
}

impl<'a> RequestDigest<'a> {
    /// Reads either framing.
    ///
    /// # Errors
    /// When the digest does not fit, or its algorithm is unknown, so that its length is unknown
    /// too.
    pub fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let start = *cursor;
        if start.rest().first() == Some(&DigestAlgorithm::OLD_MD5.0) {
            return Ok(Self { algorithm: DigestAlgorithm::OLD_MD5, digest: cursor.string(Field::Digest)? });
        }
        let algorithm = DigestAlgorithm(cursor.u8(Field::Digest)?);
        let len = algorithm.digest_len().ok_or(start.invalid(Field::Digest))?;
        Ok(Self { algorithm, digest: cursor.bytes(len, Field::Digest)? })
    }

    /// Appends the framing that belongs to the algorithm.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if self.algorithm == DigestAlgorithm::OLD_MD5 {
            put::string(out, self.digest);
        } else {
            out.push(self.algorithm.0);
            out.extend_from_slice(self.digest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::refuses_every_truncation;
    use super::*;
    use alloc::vec;

    fn decode(bytes: &[u8]) -> Result<(DigestAlgorithm, &[u8]), DecodeError> {
        RequestDigest::decode(&mut Cursor::new(bytes)).map(|it| (it.algorithm, it.digest))
    }

    #[test]
    fn every_form_round_trips_and_stands_truncation() {
        for (code, len) in [(0, 16), (1, 16), (2, 20), (3, 32)] {
            let (algorithm, bytes) = (DigestAlgorithm(code), vec![0x5a; len]);
            let mut encoded = vec![];
            RequestDigest { algorithm, digest: &bytes }.encode(&mut encoded);
            assert_eq!(encoded[0], code);
            assert_eq!(decode(&encoded), Ok((algorithm, &bytes[..])));
            refuses_every_truncation(&encoded, &[], |bytes| decode(bytes).map(|_| ()));
        }
    }

    #[test]
    fn an_unknown_algorithm_hides_the_body() {
        for code in 4..=255 {
            let refused = DecodeError::Invalid { field: Field::Digest, at: 0 };
            assert_eq!(decode(&[&[code][..], &[0; 64]].concat()), Err(refused), "{code}");
        }
    }

    #[test]
    fn the_version_decides_the_algorithm() {
        let of = |major, minor| DigestAlgorithm::for_response(Version::new(major, minor));
        assert_eq!((of(2, 0), of(5, 9)), (DigestAlgorithm::OLD_MD5, DigestAlgorithm::OLD_MD5));
        assert_eq!((of(2, 1), of(2, 6)), (DigestAlgorithm::SHA1, DigestAlgorithm::SHA1));
        assert_eq!((of(2, 7), of(2, 11)), (DigestAlgorithm::SHA256, DigestAlgorithm::SHA256));
        let (sha1, sha256) = (DigestAlgorithm::SHA1, DigestAlgorithm::SHA256);
        for (minor, rsa, dsa) in
            [(6, sha1, sha1), (7, sha256, sha1), (10, sha256, sha1), (11, sha256, sha256)]
        {
            let version = Version::new(2, minor);
            assert_eq!(DigestAlgorithm::for_rsa_signature(version), rsa, "{version}");
            assert_eq!(DigestAlgorithm::for_dsa_signature(version), dsa, "{version}");
        }
    }

    #[test]
    fn identifiers_are_names_or_codes_in_the_deployed_spellings() {
        let cases: [(&[u8], Option<DigestAlgorithm>); 15] = [
            (b"MD5", Some(DigestAlgorithm::MD5)),
            (b"SHA1", Some(DigestAlgorithm::SHA1)),
            (b"SHA-1", Some(DigestAlgorithm::SHA1)),
            (b"SHA-256", Some(DigestAlgorithm::SHA256)),
            (b"SHA256", Some(DigestAlgorithm::SHA256)),
            (b"HMAC-SHA1", Some(DigestAlgorithm::HMAC_SHA1)),
            (b"hmac sha1", Some(DigestAlgorithm::HMAC_SHA1)),
            (b"HmacSHA256", Some(DigestAlgorithm::HMAC_SHA256)),
            (b"\x02", Some(DigestAlgorithm::SHA1)),
            (b"\x13", Some(DigestAlgorithm::HMAC_SHA256)),
            (b"X", Some(DigestAlgorithm(b'X'))),
            (b"", None),
            (b"sha1", None),
            (b"SHA-512", None),
            (b"PBKDF2-HMAC-SHA1", None),
        ];
        for (identifier, algorithm) in cases {
            assert_eq!(DigestAlgorithm::from_identifier(identifier), algorithm, "{identifier:?}");
        }
    }
}
