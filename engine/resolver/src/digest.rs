//! The digest of a request, for clients that ask for it in the response.

use handle_proto::Version;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A digest with its algorithm byte before it, as at the start of a response body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestDigest {
    bytes: [u8; Self::LEN_MAX],
    len: usize,
}

impl RequestDigest {
    /// Most bytes: the algorithm byte and a SHA-256.
    const LEN_MAX: usize = 33;
    const SHA1: u8 = 2;
    const SHA256: u8 = 3;

    /// The digest of `covered`, which is header and body of the request, in the form of a response
    /// in `version`.
    ///
    /// SHA-256 from version 2.7 on, SHA-1 from 2.1 on; `None` below 2.1, whose form is not
    /// supported.
    pub(crate) fn of(covered: &[u8], version: Version) -> Option<Self> {
        let mut bytes = [0; Self::LEN_MAX];
        let (algorithm, digest) = bytes.split_first_mut()?;
        let len = if version >= Version::new(2, 7) {
            *algorithm = Self::SHA256;
            digest.copy_from_slice(&Sha256::digest(covered));
            33
        } else if version >= Version::LOWEST {
            *algorithm = Self::SHA1;
            digest[..20].copy_from_slice(&Sha1::digest(covered));
            21
        } else {
            return None;
        };
        Some(Self { bytes, len })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
