//! Values that are signed: HS_SIGNATURE and HS_CERT, up to keys that are trusted.
//!
//! A signature lists digests of values; who made it is an identity whose key stands in a certificate, an HS_CERT
//! value; that certificate is signed by another, and so on, until one is signed by itself with a trusted key.
//! It has nothing to do with the signatures of messages.

mod chain;
mod claims;
mod jws;
mod make;
#[cfg(test)]
mod tests;

pub use chain::{CERTIFICATES_FETCHED_MAX, Fetch, Verifier};
pub use claims::{Certificate, Claims, Permission, SigningScope};
pub use jws::{Jws, JwsError};
pub use make::{certificate, signature};

use handle_auth::ValueDigest;
use handle_proto::data::{PublicKey, kind};
use handle_proto::{Value, fold};
use std::fmt;

/// What is known of a value after its record was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueVerdict {
    /// No signature with a good chain lists it.
    Unsigned,
    /// A signature with a good chain lists it with another digest, or several values have its index.
    BadDigest,
    /// A signature with a good chain lists it as it is.
    Verified,
}

/// What is known of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureReport {
    /// Each value that needs a signature, by its index.
    pub values: Vec<(i32, ValueVerdict)>,
    /// Values that a signature with a good chain lists, and that are not there.
    pub missing: Vec<i32>,
    /// Why signatures do not count, by the index of their value.
    pub refused: Vec<(i32, SignatureError)>,
}

impl SignatureReport {
    /// Whether the value with this index is listed as it is.
    #[must_use]
    pub fn is_verified(&self, index: i32) -> bool {
        self.values.contains(&(index, ValueVerdict::Verified))
    }

    /// Whether every value that needs a signature has one.
    #[must_use]
    pub fn is_good(&self) -> bool {
        !self.values.is_empty() && self.values.iter().all(|(_, verdict)| *verdict == ValueVerdict::Verified)
    }

    /// Whether every value is there that was signed, too. One that not everybody may read is not, for those who may not.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_good() && self.missing.is_empty()
    }
}

/// Why a signature does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureError {
    /// The value does not read, or was not made with the key of the certificate.
    Jws(JwsError),
    /// It is about another handle, or a certificate about another identity.
    Subject,
    /// Its time has not come, or is over.
    Dates,
    /// A certificate that the chain needs is not there.
    NoCertificate(String),
    /// A certificate is its own issuer's, by way of others.
    Circle,
    /// The chain has too many links.
    TooLong,
    /// The signatures of the record need more certificates than are fetched for one record.
    TooManyCertificates,
    /// Whoever signed may not sign for this handle.
    Permission(String),
    /// The chain ends with a key that is not trusted.
    Untrusted,
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jws(error) => error.fmt(f),
            Self::Subject => f.write_str("it is about something else"),
            Self::Dates => f.write_str("its time has not come, or is over"),
            Self::NoCertificate(whose) => write!(f, "there is no certificate of {whose}"),
            Self::Circle => f.write_str("the chain of certificates is a circle"),
            Self::TooLong => f.write_str("the chain of certificates is too long"),
            Self::TooManyCertificates => write!(
                f,
                "the signatures of this record need more than {CERTIFICATES_FETCHED_MAX} certificates"
            ),
            Self::Permission(whose) => write!(f, "{whose} may not sign for this handle"),
            Self::Untrusted => f.write_str("the chain of certificates ends with a key that is not trusted"),
        }
    }
}

impl std::error::Error for SignatureError {}

impl From<JwsError> for SignatureError {
    fn from(error: JwsError) -> Self {
        Self::Jws(error)
    }
}

/// Whether two records are the same key, whatever stands behind their numbers.
pub(crate) fn is_same_key(one: &[u8], other: &[u8]) -> bool {
    match (PublicKey::decode(one), PublicKey::decode(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// The digest that a signature lists a value by: of its encoding without index and timestamp.
#[must_use]
pub fn value_digest(digest: ValueDigest, value: &Value<'_>) -> Vec<u8> {
    /// Index and timestamp.
    const LEFT_OUT: usize = 8;
    let mut encoded = Vec::with_capacity(value.encoded_len());
    value.encode(&mut encoded);
    digest.of(&[&encoded[LEFT_OUT..]])
}

/// Whether a value needs a signature for its record to be verified: all but signatures, and on the root record those of
/// the older scheme. A value that is not public does, too: whoever forges one may say so of it.
fn needs_signature(handle: &[u8], value: &Value<'_>) -> bool {
    let is_old = fold::eq(handle, handle_proto::name::ROOT) && value.kind.starts_with(b"10320/sig.");
    !fold::eq(value.kind, kind::HS_SIGNATURE) && !is_old
}
