//! Signs answers with the key of the server, and keeps signatures that can be reused.

use crate::server_key;
use crate::site::OwnSite;
use handle_auth::message::{attach, covers_request_id, sign_message};
use handle_auth::{PrivateKey, PublicKey, SignError};
use handle_proto::Version;
use handle_proto::wire::credential::CoveredPrefix;
use handle_proto::wire::{Envelope, Message};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The key of the server, and the signatures that can be reused.
#[derive(Debug)]
pub struct AnswerSigner {
    key: PrivateKey,
    credentials: Mutex<CredentialCache>,
}

/// Whether a signature is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Made for this answer.
    Made,
    /// Made earlier, over the same bytes.
    Kept,
    /// Not made, because the client has got too many.
    Refused,
}

impl AnswerSigner {
    /// Signs with `key`, and keeps at most `kept_max` signatures (at least two, unless it is 0).
    #[must_use]
    pub fn new(key: PrivateKey, kept_max: usize) -> Self {
        let kept = CredentialCache { half: kept_max.div_ceil(2), young: HashMap::new(), old: HashMap::new() };
        Self { key, credentials: Mutex::new(kept) }
    }

    /// The public half of the key.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        self.key.public()
    }

    /// Checks that the site record contains this key.
    ///
    /// # Errors
    /// When the site record contains another key or none.
    pub fn check_site(&self, site: &OwnSite) -> anyhow::Result<()> {
        match site.public_key() {
            Some(public) => Ok(server_key::check_site(&self.key, public)?),
            None => {
                tracing::warn!("there is no site record that tells clients the server's key");
                Ok(())
            }
        }
    }

    /// Whether a signature of a message of `version` can be reused, because it does not cover the
    /// request id.
    #[must_use]
    pub fn keeps(version: Version) -> bool {
        !covers_request_id(version)
    }

    /// Appends a credential to `message`, an answer in its stream form that has none yet. `admits`
    /// says whether the client gets a new one; one that is kept costs nothing.
    ///
    /// # Errors
    /// When signing fails; the message is then unchanged, as without a credential.
    pub fn sign(&self, message: &mut Vec<u8>, admits: impl FnOnce() -> bool) -> Result<Signature, SignError> {
        let Ok((envelope, rest)) = Envelope::split(message) else { return Err(SignError::Failed) };
        let Ok(Message { covered, .. }) = Message::decode(rest) else { return Err(SignError::Failed) };
        let covered_len = covered.len();
        let (from, credential) = if Self::keeps(envelope.version) {
            let prefix = CoveredPrefix::of_signature(&envelope, 0);
            let version = [envelope.version.major, envelope.version.minor];
            let name: CredentialKey = Sha256::new()
                .chain_update(version)
                .chain_update(prefix.as_bytes())
                .chain_update(covered)
                .finalize()
                .into();
            let kept = self.lock_credentials().get(&name);
            match kept {
                Some(credential) => (Signature::Kept, credential),
                None if !admits() => return Ok(Signature::Refused),
                None => {
                    // Signing happens without the lock. Another thread may sign the same bytes
                    // meanwhile, which is harmless.
                    let credential = sign_message(&envelope, 0, covered, &self.key)?;
                    self.lock_credentials().put(name, credential.clone());
                    (Signature::Made, credential)
                }
            }
        } else if !admits() {
            return Ok(Signature::Refused);
        } else {
            (Signature::Made, sign_message(&envelope, 0, covered, &self.key)?)
        };
        attach(message, covered_len, |out| out.extend_from_slice(&credential));
        Ok(from)
    }

    fn lock_credentials(&self) -> std::sync::MutexGuard<'_, CredentialCache> {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// SHA-256 of the bytes that a signature covers.
type CredentialKey = [u8; 32];

/// Credentials by the hash of the bytes that they cover. Unused credentials are discarded, half of
/// the cache at a time.
struct CredentialCache {
    half: usize,
    young: HashMap<CredentialKey, Vec<u8>>,
    old: HashMap<CredentialKey, Vec<u8>>,
}

impl CredentialCache {
    fn get(&mut self, name: &CredentialKey) -> Option<Vec<u8>> {
        if let Some(credential) = self.young.get(name) {
            return Some(credential.clone());
        }
        let credential = self.old.remove(name)?;
        self.put(*name, credential.clone());
        Some(credential)
    }

    fn put(&mut self, name: CredentialKey, credential: Vec<u8>) {
        if self.half == 0 {
            return;
        }
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, credential);
    }
}

impl std::fmt::Debug for CredentialCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({} of {})", self.young.len() + self.old.len(), 2 * self.half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u8) -> CredentialKey {
        [n; 32]
    }

    #[test]
    fn so_many_signatures_are_kept_and_those_that_are_asked_for_stay() {
        let mut kept = CredentialCache { half: 2, young: HashMap::new(), old: HashMap::new() };
        for n in 0..4 {
            kept.put(name(n), vec![n]);
        }
        assert_eq!(kept.young.len() + kept.old.len(), 4);
        assert_eq!(kept.get(&name(0)), Some(vec![0]), "and is young again");
        assert_eq!((kept.young.len(), kept.old.len()), (1, 2));
        kept.put(name(4), vec![4]);
        kept.put(name(5), vec![5]);
        assert_eq!(kept.get(&name(0)), Some(vec![0]));
        assert_eq!(kept.get(&name(1)), None);
        assert!(kept.young.len() + kept.old.len() <= 4);
    }

    fn signer() -> AnswerSigner {
        let servers = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/servers.json");
        let servers: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(servers).unwrap()).unwrap();
        let hex = servers["keys"]["server"]["handle_private_hex"].as_str().unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let record: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        AnswerSigner::new(PrivateKey::from_record(&record).unwrap(), 4)
    }

    #[test]
    fn what_is_not_an_answer_stays_as_it_is_and_unsigned() {
        let signer = signer();
        let envelope = Envelope { message_len: 24, ..Envelope::request(1) }.to_bytes();
        // A header that declares a longer body than follows.
        let cut = [&envelope[..], &[0; 20], &[0, 0, 0, 9]].concat();
        for message in [&b""[..], b"short", &envelope, &cut] {
            let mut signed = message.to_vec();
            assert_eq!(signer.sign(&mut signed, || true), Err(SignError::Failed));
            assert_eq!(signed, message);
        }
    }

    #[test]
    fn a_credential_is_put_behind_an_answer_whatever_its_version() {
        let signer = signer();
        for (minor, is_kept) in [(4, true), (6, true), (7, false), (11, false)] {
            let version = Version::new(2, minor);
            let envelope = Envelope { version, message_len: 28, ..Envelope::request(1) }.to_bytes();
            let unsigned = [&envelope[..], &[0; 24], &[0; 4]].concat();
            for from in [Signature::Made, if is_kept { Signature::Kept } else { Signature::Made }] {
                let mut signed = unsigned.clone();
                let admits = || from == Signature::Made;
                assert_eq!(signer.sign(&mut signed, admits), Ok(from), "2.{minor}");
                let (envelope, rest) = Envelope::split(&signed).unwrap();
                assert_eq!(envelope.message_len as usize, rest.len());
                let message = Message::decode(rest).unwrap();
                handle_auth::message::verify_message(&envelope, &message, signer.public()).unwrap();
            }
        }
    }

    #[test]
    fn a_new_signature_is_made_only_if_the_client_gets_one() {
        let signer = signer();
        for minor in [6, 11] {
            let envelope =
                Envelope { version: Version::new(2, minor), message_len: 28, ..Envelope::request(1) };
            let unsigned = [&envelope.to_bytes()[..], &[0; 24], &[0; 4]].concat();
            let mut message = unsigned.clone();
            assert_eq!(signer.sign(&mut message, || false), Ok(Signature::Refused));
            assert_eq!(message, unsigned, "2.{minor}");
            assert_eq!(signer.sign(&mut message, || true), Ok(Signature::Made));
        }
    }

    #[test]
    fn none_is_kept_where_none_may_be() {
        let mut kept = CredentialCache { half: 0, young: HashMap::new(), old: HashMap::new() };
        kept.put(name(1), vec![1]);
        assert_eq!(kept.get(&name(1)), None);
    }
}
