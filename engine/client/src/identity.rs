//! Identities to authenticate with, and the answers to challenges that are made with their keys.
//! RFC 3652 section 3.5.

use handle_auth::challenge::{SessionKeyId, answer_in_session, answer_with_key, answer_with_secret};
use handle_auth::{PrivateKey, SignError};
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::limit::PBKDF2_SALT_LEN;
use handle_proto::wire::auth::{GATEWAY_SESSION, PUBLIC_KEY, SECRET_KEY, SecretAnswer};
use handle_proto::wire::list::Reference;
use std::fmt;
use zeroize::Zeroizing;

/// The key that authenticates an identity.
pub enum IdentityKey {
    /// The data of an HS_SECKEY value.
    Secret(Zeroizing<Vec<u8>>),
    /// The private key of an HS_PUBKEY value.
    Private(Box<PrivateKey>),
    /// A session that the server has started for `handle-gateway` after it verified the identity.
    Session(SessionKey),
}

/// The key that answers challenges in a session of a caller of `handle-gateway`.
#[derive(Clone)]
pub struct SessionKey {
    /// The number of the session.
    pub id: SessionKeyId,
    /// Its secret.
    pub secret: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a session")
    }
}

impl fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(_) => f.write_str("a secret"),
            Self::Private(key) => key.fmt(f),
            Self::Session(key) => key.fmt(f),
        }
    }
}

/// An identity to authenticate with: the reference to the value with the key, and the key.
#[derive(Debug)]
pub struct ClientIdentity {
    /// The handle of the value.
    pub handle: Vec<u8>,
    /// The index of the value; 0 for any key of the handle.
    pub index: i32,
    /// The key.
    pub key: IdentityKey,
}

impl fmt::Display for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Reference { handle: &self.handle, index: self.index })
    }
}

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
