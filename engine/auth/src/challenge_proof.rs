//! Checks whether the answer to a challenge was made with a key.

use crate::challenge::{CoveredBytes, verify_public, verify_secret};
use crate::error::VerifyError;
use crate::kdf::Pbkdf2Limits;
use crate::key::PublicKey;
use handle_proto::Version;
use handle_proto::wire::auth::{self, SecretAnswer, SignedAnswer};

/// An answer, and the challenge that it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct ChallengeProof<'a> {
    /// The version of the challenge.
    pub version: Version,
    /// The bytes that the answer covers.
    pub covered: CoveredBytes<'a>,
    /// The answer.
    pub signed_response: &'a [u8],
    /// Bounds of the work that the sender may demand.
    pub limits: Pbkdf2Limits,
}

impl ChallengeProof<'_> {
    /// Whether the answer was made with `key`, the data of a value of type `kind`.
    #[must_use]
    pub fn is_made_with(&self, kind: &[u8], key: &[u8]) -> bool {
        self.check(kind, key).is_ok()
    }

    /// Like [`is_made_with`](Self::is_made_with), with the reason for a failure. A key that cannot
    /// be used matches nothing, and neither does an empty secret, which is not secret.
    ///
    /// # Errors
    /// When the answer was made with another key, or cannot be checked.
    pub fn check(&self, kind: &[u8], key: &[u8]) -> Result<(), VerifyError> {
        if kind == auth::PUBLIC_KEY {
            let key = PublicKey::from_record(key).map_err(|_| VerifyError::Wrong)?;
            let answer = SignedAnswer::decode(self.signed_response).map_err(VerifyError::Malformed)?;
            return verify_public(&self.covered, &answer, &key);
        }
        let answer = SecretAnswer::decode(self.signed_response).map_err(VerifyError::Malformed)?;
        match key {
            [] => Err(VerifyError::Wrong),
            _ => verify_secret(self.version, &self.covered, &answer, key, &self.limits),
        }
    }
}
