//! Answers to challenges, made with the key of an identity. RFC 3652 section 3.5.

use crate::administration::{ClientIdentity, IdentityKey};
use handle_auth::SignError;
use handle_auth::challenge::{answer_in_session, answer_with_key, answer_with_secret};
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::limit::PBKDF2_SALT_LEN;
use handle_proto::wire::auth::{GATEWAY_SESSION, PUBLIC_KEY, SECRET_KEY, SecretAnswer};
use handle_proto::wire::list::Reference;

impl ClientIdentity {
    /// The reference to the value with the key.
    pub(crate) fn reference(&self) -> Reference<'_> {
        Reference { handle: &self.handle, index: self.index }
    }

    /// The name of the authentication type in a message.
    pub(crate) const fn auth_type(&self) -> &'static [u8] {
        match self.key {
            IdentityKey::Private(_) => PUBLIC_KEY,
            IdentityKey::Secret(_) => SECRET_KEY,
            IdentityKey::Session(_) => GATEWAY_SESSION,
        }
    }

    /// Whether the answer to a challenge of `version` that suggests `suggested` is a plain digest
    /// of the secret. An attacker who made the challenge can then guess the secret at the speed of
    /// that digest.
    pub(crate) fn gives_old_proof(&self, version: Version, suggested: Version) -> bool {
        let algorithm = SecretAnswer::algorithm_for(version, suggested);
        matches!(self.key, IdentityKey::Secret(_)) && algorithm != DigestAlgorithm::PBKDF2_HMAC_SHA1
    }

    /// Answers a challenge of `version` that suggests `suggested`, with fresh `salt`.
    pub(crate) fn answer(
        &self,
        version: Version,
        suggested: Version,
        covered: &[&[u8]; 2],
        salt: &[u8; PBKDF2_SALT_LEN],
    ) -> Result<Vec<u8>, SignError> {
        match &self.key {
            IdentityKey::Private(key) => answer_with_key(version, covered, key),
            IdentityKey::Secret(secret) => Ok(answer_with_secret(version, suggested, covered, secret, salt)),
            IdentityKey::Session(key) => Ok(answer_in_session(covered, &key.id, &*key.secret)),
        }
    }
}
