//! The keys of publishers: the private key that signs sets, and the public keys that are accepted.

use crate::server_key::{self, ServerKeyConfig, ServerKeyError};
use crate::settings;
use crate::settings::SettingError;
use handle_auth::{KeyError, PublisherKey, PublisherSigner, pem};
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Maximum of `age_max_s`: a year and a day.
const AGE_S_MAX: u64 = 366 * 86_400;

settings! {
    /// The publishers whose sets are served ([publishing.md](publishing.md#signed-sets)).
    pub struct PublishersConfig where settings_fit {
        /// Set this when sets come over a network, or a store that others can write to: files with
        /// the public keys of the publishers, native or PEM. If there are any, sets that are not
        /// signed, signed by others, or older than the one in service are refused.
        restart keys: Vec<PathBuf> = Vec::new();
        /// Set this when an older set must be refused after a restart as well: file for the
        /// statement about the last set served, in a writable directory and of this process only.
        /// Needs `keys`.
        restart last_set_file: Option<PathBuf> = None;
        /// Set this when held-back sets must be noticed: maximum age of the newest statement of the
        /// publisher; beyond it, the set is stale, and `/readyz` answers 503. 0 for no limit.
        /// Without `keys`, the age is not known, and there is none.
        live age_max_s: u64 = 0, 0..=AGE_S_MAX;
        /// Set this when no answer is better than one from a stale set: the server answers RC 3
        /// (server too busy), so that clients ask another.
        live refuse_stale: bool = false;
    }
}

fn settings_fit(config: &PublishersConfig) -> Result<(), SettingError> {
    if config.keys.is_empty() && config.last_set_file.is_some() {
        return Err(SettingError::Together(
            "`publishers.last_set_file` needs `publishers.keys`: without them, every set is served"
                .to_owned(),
        ));
    }
    if config.age_max_s == 0 && config.refuse_stale {
        return Err(SettingError::Together(
            "`publishers.refuse_stale` needs `publishers.age_max_s`: without it, no set is stale".to_owned(),
        ));
    }
    Ok(())
}

/// Why the public key of a publisher cannot be used. Its text names the file.
#[derive(Debug)]
pub enum PublisherKeyError {
    /// The file cannot be read.
    Io(PathBuf, io::Error),
    /// The file is PEM, but not of a public key.
    Pem(PathBuf, pem::PemError),
    /// The file is not a public key that verifies signatures.
    Key(PathBuf, KeyError),
}

impl fmt::Display for PublisherKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, error): (_, &dyn fmt::Display) = match self {
            Self::Io(path, error) => (path, error),
            Self::Pem(path, error) => (path, error),
            Self::Key(path, error) => (path, error),
        };
        write!(f, "cannot use the public key of a publisher {}: {error}", path.display())
    }
}

/// Without a source, because the text includes that of the source.
impl std::error::Error for PublisherKeyError {}

/// Reads public key files, native or PEM.
///
/// # Errors
/// When a file cannot be read, or is not a public key.
pub fn read_public(files: &[PathBuf]) -> Result<Vec<PublisherKey>, PublisherKeyError> {
    files.iter().map(|file| read_one(file)).collect()
}

fn read_one(path: &Path) -> Result<PublisherKey, PublisherKeyError> {
    let bytes = std::fs::read(path).map_err(|error| PublisherKeyError::Io(path.into(), error))?;
    let record = if pem::is_pem(&bytes) {
        pem::decode_public_key(&bytes).map_err(|error| PublisherKeyError::Pem(path.into(), error))?
    } else {
        bytes
    };
    PublisherKey::from_record(&record).map_err(|error| PublisherKeyError::Key(path.into(), error))
}

/// Reads the key that signs sets from a file that only its owner may read.
///
/// # Errors
/// When the file, its permissions, the passphrase or the key is wrong.
pub fn read_signer(config: &ServerKeyConfig) -> Result<PublisherSigner, ServerKeyError> {
    let record = server_key::read_record(config)?;
    PublisherSigner::new(&record.view()).map_err(|error| ServerKeyError::Key(config.file.clone(), error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingSection as _;
    use handle_auth::generate;

    #[test]
    fn refusing_stale_sets_needs_a_maximum_age() {
        let config = PublishersConfig { refuse_stale: true, ..PublishersConfig::default() };
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("age_max_s"), "{error}");
        PublishersConfig { age_max_s: 1, ..config }.check().unwrap();
    }

    #[test]
    fn the_last_set_is_only_stored_if_sets_are_signed() {
        let config =
            PublishersConfig { last_set_file: Some("last-set".into()), ..PublishersConfig::default() };
        assert!(config.check().unwrap_err().to_string().contains("publishers.keys"));
        PublishersConfig { keys: vec!["public.bin".into()], ..config }.check().unwrap();
    }

    #[test]
    fn public_keys_are_read_in_both_forms() {
        let private = generate::rsa(2048).unwrap();
        let public = private.view().public().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let [native, in_pem] = ["native", "pem"].map(|file| directory.path().join(file));
        std::fs::write(&native, public.to_bytes()).unwrap();
        std::fs::write(&in_pem, pem::encode_public_key(&public).unwrap()).unwrap();
        let keys = read_public(&[native, in_pem]).unwrap();
        assert_eq!(keys[0].name(), keys[1].name());
        let missing = read_public(&[directory.path().join("none")]).unwrap_err().to_string();
        assert!(missing.contains("none") && missing.contains("No such file"), "{missing}");
        let wrong = directory.path().join("wrong");
        std::fs::write(&wrong, b"no key").unwrap();
        let error = read_public(&[wrong]).unwrap_err().to_string();
        assert!(error.contains("wrong"), "{error}");
    }
}
