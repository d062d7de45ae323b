//! Why a key cannot be used, a message cannot be signed, or a signature is not accepted.

use handle_proto::DecodeError;
use handle_proto::code::DigestAlgorithm;
use std::fmt;

/// Why a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The record does not decode.
    Undecodable(DecodeError),
    /// Keys of this size are not supported.
    Size {
        /// `RSA` or `DSA`.
        algorithm: &'static str,
        /// Bits of the modulus.
        bits: usize,
        /// The supported sizes, as text.
        accepted: &'static str,
    },
    /// The numbers do not belong to one key.
    Inconsistent {
        /// `RSA` or `DSA`.
        algorithm: &'static str,
    },
    /// An RSA key without its primes, `RSA_PRIV_KEY`.
    NoPrimes,
    /// A Diffie-Hellman key, which cannot sign.
    NotForSigning,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undecodable(error) => write!(f, "not a key: {error}"),
            Self::Size { algorithm, bits, accepted } => {
                write!(f, "{algorithm} keys of {bits} bits are not supported, only those of {accepted}")
            }
            Self::Inconsistent { algorithm } => {
                write!(f, "the numbers are not those of one {algorithm} key, or it is too weak")
            }
            Self::NoPrimes => f.write_str("an RSA key without its primes (RSA_PRIV_KEY); make a new key"),
            Self::NotForSigning => f.write_str("a Diffie-Hellman key cannot sign"),
        }
    }
}

impl std::error::Error for KeyError {}

impl From<DecodeError> for KeyError {
    fn from(error: DecodeError) -> Self {
        Self::Undecodable(error)
    }
}

/// Why signing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignError {
    /// Signatures with this digest are not supported.
    Digest(DigestAlgorithm),
    /// The computation failed, or its result did not verify and was discarded.
    Failed,
}

impl fmt::Display for SignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digest(algorithm) => {
                write!(f, "cannot sign with the digest {algorithm}: use SHA-1 or SHA-256")
            }
            Self::Failed => f.write_str("signing failed"),
        }
    }
}

impl std::error::Error for SignError {}

/// Why a signature, a MAC or the answer to a challenge is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyError {
    /// The message has no credential.
    Unsigned,
    /// The credential does not decode.
    Malformed(DecodeError),
    /// The credential is of the wrong kind: a MAC where a signature is needed, or the other way
    /// round.
    Kind,
    /// The digest is unknown, or not accepted here.
    Digest,
    /// The answer to a challenge demands too much work, or has a derived key that can be guessed.
    Work,
    /// The signature or the MAC is wrong.
    Wrong,
}

impl VerifyError {
    /// Whether the check would fail with every key, because the form or the algorithm is unknown.
    #[must_use]
    pub const fn is_unreadable(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::Digest)
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned => f.write_str("the message is not signed"),
            Self::Malformed(error) => write!(f, "the credential does not decode: {error}"),
            Self::Kind => f.write_str("the credential is of another kind"),
            Self::Digest => f.write_str("the credential names an unsupported digest"),
            Self::Work => f.write_str("the rounds or the length of the derived key are outside the limits"),
            Self::Wrong => f.write_str("the signature is wrong"),
        }
    }
}

impl std::error::Error for VerifyError {}
