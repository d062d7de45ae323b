//! Whether the answer to a challenge was made with a key.

use crate::challenge::{CoveredBytes, verify_public, verify_secret};
use crate::error::VerifyError;
use crate::kdf::Pbkdf2Limits;
use crate::key::PublicKey;
use handle_proto::Version;
use handle_proto::wire::auth::{self, SecretAnswer, SignedAnswer};

/// An answer, and what it should be made of.
#[derive(Clone, Copy, Debug)]
pub struct ChallengeProof<'a> {
    /// Of the challenge.
    pub version: Version,
    /// What the answer covers.
    pub covered: CoveredBytes<'a>,
    /// The answer.
    pub signed_response: &'a [u8],
    /// What its sender may ask for in work.
    pub limits: Pbkdf2Limits,
}

impl ChallengeProof<'_> {
    /// Whether it was made with `key`, the data of a value of type `kind`.
    #[must_use]
    pub fn is_made_with(&self, kind: &[u8], key: &[u8]) -> bool {
        self.check(kind, key).is_ok()
    }

    /// The same, with the reason why not. A key that cannot be used fits nothing, and neither does an empty secret,
    /// which everybody has.
    ///
    /// # Errors
    /// When another key made it, or it cannot be checked.
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
