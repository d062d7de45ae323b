//! The key that signs answers: read from a file that only its owner can read, and checked against
//! the site record.

use crate::settings;
use crate::settings::{PATH, SettingError};
use anyhow::{Context as _, bail, ensure};
use handle_auth::{PrivateKey, PublicKey, file, keyfile};
use handle_proto::Version;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Where systemd puts credentials.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

settings! {
    /// The key that signs answers; without this section, answers are not signed
    /// ([authentication.md](authentication.md)). At most one of the settings for the passphrase is
    /// set.
    pub struct ServerKeyConfig where passphrase_has_one_source {
        /// Private key file, as `hdl-keygen` of the reference implementation writes it. Only its
        /// owner may have access to it.
        restart file: PathBuf = PathBuf::new(), PATH;
        /// File with the passphrase of the key. Only its owner may have access to it.
        restart passphrase_file: Option<PathBuf> = None;
        /// Environment variable with the passphrase of the key.
        restart passphrase_env: Option<String> = None;
        /// Name of the systemd credential with the passphrase of the key (`LoadCredential=`).
        restart passphrase_credential: Option<String> = None;
    }
}

fn passphrase_has_one_source(key: &ServerKeyConfig) -> Result<(), SettingError> {
    let is_set =
        [key.passphrase_file.is_some(), key.passphrase_env.is_some(), key.passphrase_credential.is_some()];
    match is_set.into_iter().filter(|&is_set| is_set).count() {
        0 | 1 => Ok(()),
        _ => Err(SettingError::Together(
            "the passphrase of `server_key` is set in several ways: choose one".to_owned(),
        )),
    }
}

/// Reads the key that `config` names.
///
/// # Errors
/// One sentence with the likely cause: the file, its permissions, the passphrase or the key.
pub fn read(config: &ServerKeyConfig) -> anyhow::Result<PrivateKey> {
    let shown = config.file.display();
    let bytes = read_secret(&config.file).context("cannot read the server key")?;
    let passphrase = passphrase(config)?;
    let record = keyfile::decode(&bytes, passphrase.as_deref().map(Vec::as_slice))
        .with_context(|| format!("cannot use the server key {shown}"))?;
    PrivateKey::from_record(record.as_bytes()).with_context(|| format!("cannot use the server key {shown}"))
}

/// The passphrase from whichever source is configured, without its line ending.
fn passphrase(config: &ServerKeyConfig) -> anyhow::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut passphrase = if let Some(path) = &config.passphrase_file {
        read_secret(path).context("cannot read the passphrase of the server key")?
    } else if let Some(name) = &config.passphrase_env {
        let Some(value) = std::env::var_os(name) else {
            bail!("the environment variable {name} with the passphrase of the server key is not set");
        };
        Zeroizing::new(std::os::unix::ffi::OsStringExt::into_vec(value))
    } else if let Some(name) = &config.passphrase_credential {
        let Some(directory) = std::env::var_os(CREDENTIALS_DIRECTORY) else {
            bail!("there are no systemd credentials; the unit needs LoadCredential={name}:/path/of/the/file");
        };
        read_bounded(&PathBuf::from(directory).join(name))
            .with_context(|| format!("cannot read the systemd credential {name}"))?
    } else {
        return Ok(None);
    };
    while passphrase.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
        passphrase.pop();
    }
    Ok(Some(passphrase))
}

/// Reads a file that only its owner may read. Credentials of systemd have permissions of their own.
fn read_secret(path: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    match std::env::var_os(CREDENTIALS_DIRECTORY) {
        Some(directory) if path.starts_with(&directory) => read_bounded(path),
        _ => Ok(file::open_secret_file(path)?),
    }
}

/// Reads a file without checking its permissions.
fn read_bounded(path: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    use std::io::Read as _;
    let opened = std::fs::File::open(path).with_context(|| format!("{}", path.display()))?;
    // Full capacity from the start: a buffer that grows leaves copies in freed memory that are not
    // cleared.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(file::FILE_LEN_MAX)? + 1));
    opened
        .take(file::FILE_LEN_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("{}", path.display()))?;
    ensure!(bytes.len() as u64 <= file::FILE_LEN_MAX, "{} is too long to be a key", path.display());
    Ok(bytes)
}

/// Checks that `key` is the private half of `public`, the record of this server's key in the site
/// record: clients verify signatures with that record.
///
/// # Errors
/// When the keys do not match, or the site record has no key.
pub fn check_site(key: &PrivateKey, public: &[u8]) -> anyhow::Result<()> {
    ensure!(
        !public.is_empty(),
        "the site record has no public key for this server, so clients cannot verify its signatures"
    );
    let public =
        PublicKey::from_record(public).context("the public key of this server in the site record")?;
    let message: [&[u8]; 1] = [b"Is this the key that clients check with?"];
    let digest = key.digest_for(Version::CURRENT);
    let signature = key.sign(digest, &message).context("the server key does not sign")?;
    ensure!(
        public.algorithm() == key.algorithm() && public.verify(digest, &message, &signature).is_ok(),
        "the server key ({:?}) is not the one of this server in the site record ({public:?}): \
         clients would refuse every signature; is `server_id` right, is the site record current?",
        key.public()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingSection as _;

    #[test]
    fn a_passphrase_has_one_source() {
        let mut key = ServerKeyConfig { file: "key".into(), ..ServerKeyConfig::default() };
        key.check().unwrap();
        key.passphrase_env = Some("KEY".into());
        key.check().unwrap();
        key.passphrase_credential = Some("key".into());
        assert!(key.check().is_err());
        assert!(ServerKeyConfig::default().check().is_err());
    }
}
