//! The key that signs answers: read from a file that only its owner can read, and checked against
//! the site record.

use crate::settings;
use crate::settings::{PATH, SettingType};
use handle_auth::file::OpenError;
use handle_auth::keyfile::KeyFileError;
use handle_auth::{KeyError, PrivateKey, PublicKey, SignError, file, keyfile};
use handle_proto::Version;
use handle_proto::data::PrivateKeyBuf;
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fmt, io};
use zeroize::Zeroizing;

/// Where systemd puts credentials.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

settings! {
    /// The key that signs answers; without this section, answers are not signed
    /// ([authentication.md](authentication.md)).
    pub struct ServerKeyConfig {
        /// Set this when answers are to be signed: private key file, as written by `hdl-keygen` of
        /// the reference implementation.
        restart file: PathBuf = PathBuf::new(), PATH;
        /// Set this when the key is encrypted: where its passphrase is: `file:PATH`, `env:NAME` for
        /// an environment variable, or `credential:NAME` for a credential of systemd
        /// (`LoadCredential=`).
        restart passphrase: Option<PassphraseSource> = None;
    }
}

/// Where the passphrase of a key is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum PassphraseSource {
    /// A file that only its owner may have access to.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A credential of systemd.
    Credential(String),
}

impl TryFrom<String> for PassphraseSource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let source = text.split_once(':').filter(|(_, name)| !name.is_empty());
        match source {
            Some(("file", path)) => Ok(Self::File(path.into())),
            Some(("env", name)) => Ok(Self::Environment(name.to_owned())),
            Some(("credential", name)) => Ok(Self::Credential(name.to_owned())),
            _ => Err("invalid passphrase: expected file:PATH, env:NAME or credential:NAME".to_owned()),
        }
    }
}

impl From<PassphraseSource> for String {
    fn from(source: PassphraseSource) -> Self {
        match source {
            PassphraseSource::File(path) => format!("file:{}", path.display()),
            PassphraseSource::Environment(name) => format!("env:{name}"),
            PassphraseSource::Credential(name) => format!("credential:{name}"),
        }
    }
}

impl SettingType for PassphraseSource {
    fn type_name() -> String {
        "source of a passphrase".to_owned()
    }

    fn resolve(&mut self, directory: &Path) {
        if let Self::File(path) = self {
            path.resolve(directory);
        }
    }
}

/// Why a secret file cannot be read. Its text names the file.
#[derive(Debug)]
pub enum SecretFileError {
    /// It cannot be opened as a file that only its owner may read.
    Open(OpenError),
    /// A system call failed.
    Io(PathBuf, io::Error),
    /// It is longer than any key.
    TooLong(PathBuf),
}

impl fmt::Display for SecretFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::TooLong(path) => write!(f, "{} is too long to be a key", path.display()),
        }
    }
}

/// Why answers cannot be signed with the configured key: one sentence with the likely cause.
#[derive(Debug)]
pub enum ServerKeyError {
    /// The file with the key cannot be read.
    KeyFile(SecretFileError),
    /// The file with the passphrase cannot be read.
    PassphraseFile(SecretFileError),
    /// The environment variable with the passphrase is not set.
    Variable(String),
    /// The credential with this name is configured, and systemd has provided none.
    NoCredentials(String),
    /// The credential with this name cannot be read.
    Credential(String, SecretFileError),
    /// The content of the file cannot be decoded or decrypted.
    Content(PathBuf, KeyFileError),
    /// The key in the file cannot be used.
    Key(PathBuf, KeyError),
    /// The site record has no public key for this server.
    NoSiteKey,
    /// The public key of this server in the site record cannot be used.
    SiteKey(KeyError),
    /// The key does not sign.
    Sign(SignError),
    /// The site record has another key for this server.
    OtherKey {
        /// The configured key.
        configured: PublicKey,
        /// The one of the site record.
        site: PublicKey,
    },
}

impl fmt::Display for ServerKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyFile(error) => write!(f, "cannot read the server key: {error}"),
            Self::PassphraseFile(error) => write!(f, "cannot read the passphrase of the server key: {error}"),
            Self::Variable(name) => {
                write!(f, "the environment variable {name} with the passphrase of the server key is not set")
            }
            Self::NoCredentials(name) => write!(
                f,
                "there are no systemd credentials; the unit needs LoadCredential={name}:/path/of/the/file"
            ),
            Self::Credential(name, error) => write!(f, "cannot read the systemd credential {name}: {error}"),
            Self::Content(path, error) => {
                write!(f, "cannot use the server key {}: {error}", path.display())
            }
            Self::Key(path, error) => write!(f, "cannot use the server key {}: {error}", path.display()),
            Self::NoSiteKey => f.write_str(
                "the site record has no public key for this server, so clients cannot verify its signatures",
            ),
            Self::SiteKey(error) => {
                write!(f, "the public key of this server in the site record: {error}")
            }
            Self::Sign(error) => write!(f, "the server key does not sign: {error}"),
            Self::OtherKey { configured, site } => write!(
                f,
                "the server key ({configured:?}) is not the one of this server in the site record ({site:?}): \
                 clients would refuse every signature; is `server_id` right, is the site record current?"
            ),
        }
    }
}

/// Without a source, because the text includes it already.
impl std::error::Error for ServerKeyError {}

/// Reads the key that `config` names.
///
/// # Errors
/// When the file, its permissions, the passphrase or the key is wrong.
pub fn read(config: &ServerKeyConfig) -> Result<PrivateKey, ServerKeyError> {
    let record = read_record(config)?;
    PrivateKey::from_record(record.as_bytes())
        .map_err(|error| ServerKeyError::Key(config.file.clone(), error))
}

/// Reads the numbers of the server key, for uses other than signing answers.
///
/// # Errors
/// As [`read`], except that the key need not be able to sign.
pub fn read_record(config: &ServerKeyConfig) -> Result<PrivateKeyBuf, ServerKeyError> {
    let bytes = read_secret(&config.file).map_err(ServerKeyError::KeyFile)?;
    let passphrase = passphrase(config)?;
    keyfile::decode(&bytes, passphrase.as_deref().map(Vec::as_slice))
        .map_err(|error| ServerKeyError::Content(config.file.clone(), error))
}

/// The passphrase from whichever source is configured, without its line ending.
fn passphrase(config: &ServerKeyConfig) -> Result<Option<Zeroizing<Vec<u8>>>, ServerKeyError> {
    let Some(source) = &config.passphrase else { return Ok(None) };
    let mut passphrase = match source {
        PassphraseSource::File(path) => read_secret(path).map_err(ServerKeyError::PassphraseFile)?,
        PassphraseSource::Environment(name) => {
            let value = std::env::var_os(name).ok_or_else(|| ServerKeyError::Variable(name.clone()))?;
            Zeroizing::new(std::os::unix::ffi::OsStringExt::into_vec(value))
        }
        PassphraseSource::Credential(name) => {
            let directory = std::env::var_os(CREDENTIALS_DIRECTORY);
            let directory = directory.ok_or_else(|| ServerKeyError::NoCredentials(name.clone()))?;
            read_bounded(&PathBuf::from(directory).join(name))
                .map_err(|error| ServerKeyError::Credential(name.clone(), error))?
        }
    };
    while passphrase.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
        passphrase.pop();
    }
    Ok(Some(passphrase))
}

/// Reads a file that only its owner may read. Credentials of systemd have permissions of their own.
///
/// # Errors
/// When it cannot be read, others may read it, or it is too long.
pub fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretFileError> {
    match std::env::var_os(CREDENTIALS_DIRECTORY) {
        Some(directory) if path.starts_with(&directory) => read_bounded(path),
        _ => file::open_secret_file(path).map_err(SecretFileError::Open),
    }
}

/// Reads a file without checking its permissions.
fn read_bounded(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretFileError> {
    let failed = |error| SecretFileError::Io(path.to_owned(), error);
    let opened = std::fs::File::open(path).map_err(failed)?;
    // Full capacity from the start: a buffer that grows leaves copies in freed memory that are not
    // cleared.
    let len_max = file::FILE_LEN_MAX + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(len_max).unwrap_or_default()));
    opened.take(len_max).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > file::FILE_LEN_MAX {
        return Err(SecretFileError::TooLong(path.to_owned()));
    }
    Ok(bytes)
}

/// Checks that `key` is the private half of `public`, the record of this server's key in the site
/// record: clients verify signatures with that record.
///
/// # Errors
/// When the keys do not match, or the site record has no key.
pub fn check_site(key: &PrivateKey, public: &[u8]) -> Result<(), ServerKeyError> {
    if public.is_empty() {
        return Err(ServerKeyError::NoSiteKey);
    }
    let site = PublicKey::from_record(public).map_err(ServerKeyError::SiteKey)?;
    let message: [&[u8]; 1] = [b"Is this the key that clients check with?"];
    let digest = key.digest_for(Version::CURRENT);
    let signature = key.sign(digest, &message).map_err(ServerKeyError::Sign)?;
    if site.algorithm() != key.algorithm() || site.verify(digest, &message, &signature).is_err() {
        return Err(ServerKeyError::OtherKey { configured: key.public().clone(), site });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingSection as _;

    #[test]
    fn a_passphrase_comes_from_a_file_a_variable_or_a_credential() {
        for (text, expected) in [
            ("file:secret", PassphraseSource::File("/etc/handled/secret".into())),
            ("file:/run/secret", PassphraseSource::File("/run/secret".into())),
            ("env:KEY", PassphraseSource::Environment("KEY".to_owned())),
            ("credential:handle-key", PassphraseSource::Credential("handle-key".to_owned())),
        ] {
            let mut key: ServerKeyConfig =
                toml::from_str(&format!("file = \"key\"\npassphrase = \"{text}\"")).unwrap();
            key.resolve(Path::new("/etc/handled"));
            key.check().unwrap();
            assert_eq!(key.passphrase.as_ref(), Some(&expected));
            let again: ServerKeyConfig = toml::from_str(&toml::to_string(&key).unwrap()).unwrap();
            assert_eq!(again, key);
        }
        for wrong in ["", "secret", "file:", "pass:secret"] {
            let error = toml::from_str::<ServerKeyConfig>(&format!("passphrase = \"{wrong}\"")).unwrap_err();
            assert!(error.to_string().contains("expected file:PATH"), "{error}");
        }
        let error = ServerKeyConfig::default().check().unwrap_err().to_string();
        assert!(error.contains("file"), "{error}");
    }

    #[test]
    fn every_error_names_its_file_and_cause() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let config = ServerKeyConfig { file: file.clone(), ..ServerKeyConfig::default() };
        let error = |config: &ServerKeyConfig| read(config).unwrap_err().to_string();
        let missing = error(&config);
        let begin = format!("cannot read the server key: {}: ", file.display());
        assert!(missing.starts_with(&begin) && missing.contains("No such file"), "{missing}");
        std::fs::write(&file, b"no key").unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let wrong = error(&config);
        assert!(wrong.starts_with(&format!("cannot use the server key {}: ", file.display())), "{wrong}");
        let unset = PassphraseSource::Environment("HANDLE_TEST_UNSET".to_owned());
        let unset = ServerKeyConfig { passphrase: Some(unset), ..config };
        assert!(error(&unset).contains("HANDLE_TEST_UNSET"), "{}", error(&unset));
        let long = dir.path().join("long");
        std::fs::write(&long, vec![0; 65_537]).unwrap();
        assert!(matches!(read_bounded(&long), Err(SecretFileError::TooLong(path)) if path == long));
        std::fs::write(&long, vec![0; 65_536]).unwrap();
        assert_eq!(read_bounded(&long).unwrap().len(), 65_536);
    }
}
