//! Keys of publishers, which sign statements about published sets.
//!
//! The name of a key is the SHA-256 of its public key record, as in a public key file of native
//! form.

use crate::error::{KeyError, SignError};
use crate::key::{PrivateKey, PublicKey, public_record_of};
use handle_proto::code::DigestAlgorithm;
use handle_proto::data;
use sha2::{Digest as _, Sha256};

/// A key that verifies the signatures of a publisher.
#[derive(Clone, Debug)]
pub struct PublisherKey {
    name: [u8; 32],
    key: PublicKey,
}

impl PublisherKey {
    /// The key with this record.
    ///
    /// # Errors
    /// When the record is not a public key that verifies signatures.
    pub fn from_record(record: &[u8]) -> Result<Self, KeyError> {
        let public = data::PublicKey::decode(record)?;
        Ok(Self { name: name_of(&public), key: PublicKey::new(&public)? })
    }

    /// The name of the key.
    #[must_use]
    pub const fn name(&self) -> [u8; 32] {
        self.name
    }

    /// Whether the key has this name and made this signature over `message`.
    #[must_use]
    pub fn has_signed(&self, name: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
        *name == self.name && self.key.verify(DigestAlgorithm::SHA256, &[message], signature).is_ok()
    }
}

/// The name of a key. Files may have bytes behind the numbers, which are not part of the name.
fn name_of(public: &data::PublicKey<'_>) -> [u8; 32] {
    Sha256::digest(public.to_bytes()).into()
}

/// A key that signs sets.
#[derive(Debug)]
pub struct PublisherSigner {
    name: [u8; 32],
    key: PrivateKey,
}

impl PublisherSigner {
    /// The key with these numbers.
    ///
    /// # Errors
    /// When the key cannot sign.
    pub fn new(key: &data::PrivateKey<'_>) -> Result<Self, KeyError> {
        let public = public_record_of(key).ok_or(KeyError::NoPrimes)?;
        Ok(Self { name: name_of(&data::PublicKey::decode(&public)?), key: PrivateKey::new(key)? })
    }

    /// The name of the key.
    #[must_use]
    pub const fn name(&self) -> [u8; 32] {
        self.name
    }

    /// The signature over `message`.
    ///
    /// # Errors
    /// When the computation fails.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        self.key.sign(DigestAlgorithm::SHA256, &[message])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{private_record, public_record};

    #[test]
    fn a_signature_verifies_only_with_its_key_under_its_name() {
        let other = PublisherKey::from_record(&public_record("server")).unwrap();
        for id in ["admin_rsa", "admin_dsa2048"] {
            let record = private_record(id);
            let signer = PublisherSigner::new(&data::PrivateKey::decode(&record).unwrap()).unwrap();
            let signature = signer.sign(b"message").unwrap();
            let key = PublisherKey::from_record(&public_record(id)).unwrap();
            assert_eq!(key.name(), signer.name(), "{id}");
            assert!(key.has_signed(&signer.name(), b"message", &signature), "{id}");
            assert!(!key.has_signed(&signer.name(), b"massage", &signature), "{id}");
            assert!(!key.has_signed(&[0; 32], b"message", &signature), "{id}");
            assert!(!other.has_signed(&signer.name(), b"message", &signature), "{id}");
            assert!(!other.has_signed(&other.name(), b"message", &signature), "{id}");
        }
    }
}
