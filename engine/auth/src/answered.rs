//! Whether the answer to a challenge was made with a key.

use crate::challenge::{Covered, verify_public, verify_secret};
use crate::kdf::Pbkdf2Limits;
use crate::key::PublicKey;
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::auth::{self, SecretAnswer, SignedAnswer};

/// An answer, and what it should be made of.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// Of the challenge.
    pub version: Version,
    /// What the answer covers.
    pub covered: Covered<'a>,
    /// The answer.
    pub signed_response: &'a [u8],
    /// What its sender may ask for in work.
    pub limits: Pbkdf2Limits,
}

impl Answered<'_> {
    /// Whether it can be compared with a key of type `kind` at all: it decodes, and names an algorithm that is known.
    #[must_use]
    pub fn is_readable(&self, kind: &[u8]) -> bool {
        if kind == auth::PUBLIC_KEY {
            let answer = SignedAnswer::decode(self.signed_response);
            return answer.is_ok_and(|it| DigestAlgorithm::from_identifier(it.algorithm).is_some());
        }
        match SecretAnswer::decode(self.signed_response) {
            // From there on, its first byte is a code.
            Ok(SecretAnswer::BareMd5(&[code, ..])) if self.version >= Version::LOWEST => {
                is_mac(DigestAlgorithm(code))
            }
            Ok(SecretAnswer::Mac { algorithm, .. }) => is_mac(algorithm),
            Ok(SecretAnswer::BareMd5(_) | SecretAnswer::Pbkdf2 { .. }) => true,
            Err(_) => false,
        }
    }

    /// Whether it was made with `key`, the data of a value of type `kind`. A key that cannot be used fits
    /// nothing, and neither does an empty secret, which everybody has.
    #[must_use]
    pub fn is_made_with(&self, kind: &[u8], key: &[u8]) -> bool {
        if kind == auth::PUBLIC_KEY {
            let (Ok(key), Ok(answer)) =
                (PublicKey::from_record(key), SignedAnswer::decode(self.signed_response))
            else {
                return false;
            };
            return verify_public(&self.covered, &answer, &key).is_ok();
        }
        !key.is_empty()
            && SecretAnswer::decode(self.signed_response).is_ok_and(|answer| {
                verify_secret(self.version, &self.covered, &answer, key, &self.limits).is_ok()
            })
    }
}

/// Whether the algorithm makes a MAC of challenge and secret alone.
const fn is_mac(algorithm: DigestAlgorithm) -> bool {
    matches!(
        algorithm,
        DigestAlgorithm::MD5
            | DigestAlgorithm::SHA1
            | DigestAlgorithm::SHA256
            | DigestAlgorithm::HMAC_SHA1
            | DigestAlgorithm::HMAC_SHA256
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::mac;

    #[test]
    fn what_is_readable_can_be_compared() {
        let readable = |minor, kind, signed_response: &[u8]| {
            let (version, covered) = (Version::new(2, minor), [&b"nonce"[..], b"digest"]);
            Answered { version, covered, signed_response, limits: Pbkdf2Limits::DEFAULT }.is_readable(kind)
        };
        for code in 0..=255 {
            let made = mac(DigestAlgorithm(code), b"secret", &[b"challenge"]).filter(|_| code > 0);
            assert_eq!(readable(11, auth::SECRET_KEY, &[code]), made.is_some(), "{code}");
            let mut of_16 = [7; 16];
            of_16[0] = code;
            assert_eq!(readable(11, auth::SECRET_KEY, &of_16), made.is_some(), "{code}, 16 bytes");
            assert!(readable(0, auth::SECRET_KEY, &of_16), "{code}: an MD5");
        }
        let mut derived = Vec::new();
        SecretAnswer::Pbkdf2 { salt: b"salt", iterations: 1, key_bits: 160, mac: b"mac" }
            .encode(&mut derived);
        assert!(readable(11, auth::SECRET_KEY, &derived));
        assert!((0..derived.len()).all(|len| !readable(11, auth::SECRET_KEY, &derived[..len])));
        for (algorithm, is_known) in
            [(&b"SHA1"[..], true), (b"SHA-256", true), (b"\x02", true), (b"CRC", false)]
        {
            let mut signed = Vec::new();
            SignedAnswer { algorithm, signature: b"signature" }.encode(&mut signed);
            assert_eq!(readable(11, auth::PUBLIC_KEY, &signed), is_known, "{algorithm:?}");
            assert!((0..signed.len()).all(|len| !readable(11, auth::PUBLIC_KEY, &signed[..len])));
        }
    }
}
