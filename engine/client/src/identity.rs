//! Who asks, and with what it is proven: answers to challenges. RFC 3652 section 3.5.

use handle_auth::challenge::{answer_with_key, answer_with_secret};
use handle_auth::{PrivateKey, SignError};
use handle_proto::Version;
use handle_proto::limit::PBKDF2_SALT_LEN;
use handle_proto::wire::auth::{PUBLIC_KEY, SECRET_KEY};
use handle_proto::wire::list::Reference;
use std::fmt;
use zeroize::Zeroizing;

/// An identity, as `300:20.500.1/ADMIN`, and what only it has.
pub struct Identity {
    /// The handle whose value has the public half, or the secret.
    pub handle: Vec<u8>,
    /// The index of that value.
    pub index: i32,
    /// What proves it.
    pub proof: Proof,
}

/// What proves an identity.
pub enum Proof {
    /// The private half of a value HS_PUBKEY.
    Key(Box<PrivateKey>),
    /// The data of a value HS_SECKEY.
    Secret(Zeroizing<Vec<u8>>),
}

impl Identity {
    /// The value that it is known by.
    #[must_use]
    pub fn reference(&self) -> Reference<'_> {
        Reference { handle: &self.handle, index: self.index }
    }

    /// How its proof is called in a message.
    #[must_use]
    pub const fn auth_type(&self) -> &'static [u8] {
        match self.proof {
            Proof::Key(_) => PUBLIC_KEY,
            Proof::Secret(_) => SECRET_KEY,
        }
    }

    /// Answers a challenge of `version` that suggests `suggested`, with fresh `salt`.
    ///
    /// # Errors
    /// When signing fails.
    pub fn answer(
        &self,
        version: Version,
        suggested: Version,
        covered: &[&[u8]; 2],
        salt: &[u8; PBKDF2_SALT_LEN],
    ) -> Result<Vec<u8>, SignError> {
        match &self.proof {
            Proof::Key(key) => answer_with_key(version, covered, key),
            Proof::Secret(secret) => Ok(answer_with_secret(version, suggested, covered, secret, salt)),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = String::from_utf8_lossy(self.auth_type());
        write!(f, "{}:{} ({kind})", self.index, handle_proto::Handle(&self.handle))
    }
}
