//! Private keys that sign, and public keys that verify.

use crate::error::{KeyError, SignError, VerifyError};
use crate::rsa;
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::data;
use std::fmt;

/// What kind of key it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSA; signatures are PKCS #1 v1.5.
    Rsa,
    /// DSA; signatures are DER sequences of two integers.
    Dsa,
}

impl Algorithm {
    /// The digest with which such a key signs messages of `version`, and answers challenges of it.
    #[must_use]
    pub fn digest_for(self, version: Version) -> DigestAlgorithm {
        match self {
            Self::Rsa => DigestAlgorithm::for_rsa_signature(version),
            Self::Dsa => DigestAlgorithm::for_dsa_signature(version),
        }
    }
}

/// A private key, ready to sign. Can be shared by threads.
pub struct PrivateKey {
    secret: Secret,
    public: PublicKey,
}

enum Secret {
    Rsa(Box<rsa::PrivateKey>),
}

impl PrivateKey {
    /// A key from its record, the plain content of a private key file.
    ///
    /// # Errors
    /// When it does not decode, its numbers do not belong together, or it is of a kind or size that is not
    /// used: RSA keys sign with 2048, 3072 or 4096 bits.
    pub fn from_record(record: &[u8]) -> Result<Self, KeyError> {
        Self::new(&data::PrivateKey::decode(record)?)
    }

    /// A key from its numbers.
    ///
    /// # Errors
    /// As [`from_record`](Self::from_record).
    pub fn new(key: &data::PrivateKey<'_>) -> Result<Self, KeyError> {
        match *key {
            data::PrivateKey::RsaCrt { n, e, .. } => {
                let secret = Secret::Rsa(Box::new(rsa::PrivateKey::new(key)?));
                Ok(Self { secret, public: PublicKey::new(&data::PublicKey::Rsa { e, n })? })
            }
            data::PrivateKey::Rsa { .. } => Err(KeyError::NoPrimes),
            data::PrivateKey::Dsa { p, .. } => {
                Err(KeyError::Size { algorithm: "DSA", bits: p.bits(), accepted: "none yet" })
            }
        }
    }

    /// The public half.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// What kind of key it is.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.public.algorithm()
    }

    /// Signs the concatenation of `parts`.
    ///
    /// With RSA and [`DigestAlgorithm::SHA256`] this is the fast way; SHA-1, which only versions below 2.7
    /// use, takes several times as long.
    ///
    /// # Errors
    /// When the digest is neither SHA-1 nor SHA-256, or the computation fails.
    pub fn sign(&self, digest: DigestAlgorithm, parts: &[&[u8]]) -> Result<Vec<u8>, SignError> {
        match &self.secret {
            Secret::Rsa(key) => key.sign(digest, parts),
        }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "private half of {:?}", self.public)
    }
}

/// A public key, ready to verify.
#[derive(Clone)]
pub struct PublicKey(Public);

#[derive(Clone)]
enum Public {
    Rsa(rsa::PublicKey),
}

impl PublicKey {
    /// A key from its record: the data of a value HS_PUBKEY, or a server's key in a site record.
    ///
    /// # Errors
    /// When it does not decode, or is of a kind or size that is not used: RSA keys verify with 1024 to 8192
    /// bits.
    pub fn from_record(record: &[u8]) -> Result<Self, KeyError> {
        Self::new(&data::PublicKey::decode(record)?)
    }

    /// A key from its numbers.
    ///
    /// # Errors
    /// As [`from_record`](Self::from_record).
    pub fn new(key: &data::PublicKey<'_>) -> Result<Self, KeyError> {
        match *key {
            data::PublicKey::Rsa { e, n } => rsa::PublicKey::new(e, n).map(Public::Rsa).map(Self),
            data::PublicKey::Dsa { p, .. } => {
                Err(KeyError::Size { algorithm: "DSA", bits: p.bits(), accepted: "none yet" })
            }
            data::PublicKey::Dh { .. } => Err(KeyError::NotForSigning),
        }
    }

    /// What kind of key it is.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        match self.0 {
            Public::Rsa(_) => Algorithm::Rsa,
        }
    }

    /// Size of the modulus in bits.
    #[must_use]
    pub fn bits(&self) -> usize {
        match &self.0 {
            Public::Rsa(key) => key.bits(),
        }
    }

    /// Whether `signature` was made over the concatenation of `parts`, with `digest`.
    ///
    /// # Errors
    /// When it was not, or the digest is neither SHA-1 nor SHA-256.
    pub fn verify(
        &self,
        digest: DigestAlgorithm,
        parts: &[&[u8]],
        signature: &[u8],
    ) -> Result<(), VerifyError> {
        match &self.0 {
            Public::Rsa(key) => key.verify(digest, parts, signature),
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} key of {} bits", self.algorithm(), self.bits())
    }
}
