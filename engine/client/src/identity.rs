//! What an identity answers when a server asks who asks. RFC 3652 section 3.5.

use crate::administration::{Identity, Key};
use handle_auth::SignError;
use handle_auth::challenge::{answer_with_key, answer_with_secret};
use handle_proto::Version;
use handle_proto::limit::PBKDF2_SALT_LEN;
use handle_proto::wire::auth::{PUBLIC_KEY, SECRET_KEY};
use handle_proto::wire::list::Reference;

impl Identity {
    /// The value that it is known by.
    pub(crate) fn reference(&self) -> Reference<'_> {
        Reference { handle: &self.handle, index: self.index }
    }

    /// How its proof is called in a message.
    pub(crate) const fn auth_type(&self) -> &'static [u8] {
        match self.key {
            Key::Private(_) => PUBLIC_KEY,
            Key::Secret(_) => SECRET_KEY,
        }
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
            Key::Private(key) => answer_with_key(version, covered, key),
            Key::Secret(secret) => Ok(answer_with_secret(version, suggested, covered, secret, salt)),
        }
    }
}
