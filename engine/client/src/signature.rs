//! Signed values: HS_SIGNATURE and HS_CERT, up to trusted keys.
//!
//! A signature lists digests of values. Its issuer is an identity whose key is in a certificate, an
//! HS_CERT value; that certificate is signed by another issuer, and so on, until a self-signed one
//! with a trusted key. These signatures are independent of the signatures of messages.

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

/// The result of verifying a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueVerdict {
    /// No signature with a valid chain lists it.
    Unsigned,
    /// A signature with a valid chain lists it with another digest, or several values have its
    /// index.
    BadDigest,
    /// A signature with a valid chain lists it with its digest.
    Verified,
}

/// The result of verifying a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureReport {
    /// Each value that needs a signature, by its index.
    pub values: Vec<(i32, ValueVerdict)>,
    /// Indexes of values that a signature with a valid chain lists, but the record lacks.
    pub missing: Vec<i32>,
    /// Reasons why signatures do not count, by the index of their value.
    pub refused: Vec<(i32, SignatureError)>,
}

impl SignatureReport {
    /// Whether the value with this index is listed with its digest.
    #[must_use]
    pub fn is_verified(&self, index: i32) -> bool {
        self.values.contains(&(index, ValueVerdict::Verified))
    }

    /// Whether every value that needs a signature has one.
    #[must_use]
    pub fn is_good(&self) -> bool {
        !self.values.is_empty() && self.values.iter().all(|(_, verdict)| *verdict == ValueVerdict::Verified)
    }

    /// Whether, in addition, no signed value is missing. For clients that may not read a private
    /// value it is missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_good() && self.missing.is_empty()
    }
}

/// Why a signature does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureError {
    /// The value is malformed, or was not made with the key of the certificate.
    Jws(JwsError),
    /// It is about another handle, or the certificate about another identity.
    Subject,
    /// It is not valid yet, or has expired.
    Dates,
    /// A certificate that the chain needs is missing.
    NoCertificate(String),
    /// A certificate is, through others, its own issuer's.
    Circle,
    /// The chain has too many links.
    TooLong,
    /// The signatures of the record need more certificates than are fetched for one record.
    TooManyCertificates,
    /// The issuer may not sign for this handle.
    Permission(String),
    /// The chain ends with a key that is not trusted.
    Untrusted,
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jws(error) => error.fmt(f),
            Self::Subject => f.write_str("it is about something else"),
            Self::Dates => f.write_str("it is not valid yet, or has expired"),
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

/// Whether two records hold the same key, whatever follows its numbers.
pub(crate) fn is_same_key(one: &[u8], other: &[u8]) -> bool {
    match (PublicKey::decode(one), PublicKey::decode(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// The digest by which a signature lists a value: over its encoding without index and timestamp.
#[must_use]
pub fn value_digest(digest: ValueDigest, value: &Value<'_>) -> Vec<u8> {
    /// Bytes of index and timestamp.
    const LEFT_OUT: usize = 8;
    let mut encoded = Vec::with_capacity(value.encoded_len());
    value.encode(&mut encoded);
    digest.of(&[&encoded[LEFT_OUT..]])
}

/// Whether a value needs a signature for its record to be verified: all but signatures and, on the
/// root record, those of the older scheme. Values that are not public need one too, because whoever
/// forges a value chooses its permissions.
fn needs_signature(handle: &[u8], value: &Value<'_>) -> bool {
    let is_old = fold::eq(handle, handle_proto::name::ROOT) && value.kind.starts_with(b"10320/sig.");
    !fold::eq(value.kind, kind::HS_SIGNATURE) && !is_old
}
