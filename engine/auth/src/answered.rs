//! Whether the answer to a challenge was made with a key.

use crate::challenge::{Covered, verify_public, verify_secret};
use crate::kdf::Pbkdf2Limits;
use crate::key::PublicKey;
use handle_proto::Version;
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
