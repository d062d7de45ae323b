//! The digests in signatures of values, by name. The digests of messages have codes.

use crate::backend::digest::{self, Context};
use md5::Md5;
use md5::digest::Digest as _;

/// A digest in a signature of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueDigest {
    /// MD5, which may list values but is never signed.
    Md5,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// The names, as deployed software writes them, with or without the hyphen.
const NAMES: [(&str, ValueDigest); 5] = [
    ("MD5", ValueDigest::Md5),
    ("SHA-1", ValueDigest::Sha1),
    ("SHA-256", ValueDigest::Sha256),
    ("SHA-384", ValueDigest::Sha384),
    ("SHA-512", ValueDigest::Sha512),
];

impl ValueDigest {
    /// The digest with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let plain = |name: &str| name.replace('-', "").to_ascii_uppercase();
        NAMES.iter().find(|(known, _)| plain(known) == plain(name)).map(|(_, digest)| *digest)
    }

    /// The digest of the concatenation of `parts`.
    #[must_use]
    pub fn of(self, parts: &[&[u8]]) -> Vec<u8> {
        let algorithm = match self {
            Self::Md5 => {
                let mut md5 = Md5::new();
                parts.iter().for_each(|part| md5.update(part));
                return md5.finalize().to_vec();
            }
            Self::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        };
        let mut context = Context::new(algorithm);
        parts.iter().for_each(|part| context.update(part));
        context.finish().as_ref().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_go_by_their_names() {
        for (name, begin) in [
            ("MD5", [0x90, 0x01, 0x50, 0x98]),
            ("SHA-1", [0xa9, 0x99, 0x3e, 0x36]),
            ("sha256", [0xba, 0x78, 0x16, 0xbf]),
            ("SHA-384", [0xcb, 0x00, 0x75, 0x3f]),
            ("SHA512", [0xdd, 0xaf, 0x35, 0xa1]),
        ] {
            let digest = ValueDigest::from_name(name).unwrap();
            assert_eq!(digest.of(&[b"a", b"bc"])[..4], begin, "{name}");
        }
        for name in ["", "SHA", "SHA-224", "SHA-512/256", "SHA-3"] {
            assert_eq!(ValueDigest::from_name(name), None, "{name}");
        }
    }
}
