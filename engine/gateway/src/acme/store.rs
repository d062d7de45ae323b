//! The account and the certificate on disk: files that only their owner may read, each replaced as
//! a whole.

use crate::tls::certificate::TlsCertificate;
use handle_auth::file::{OpenError, open_secret_file, replace_secret_file};
use instant_acme::AccountCredentials;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const ACCOUNT_FILE: &str = "account.json";
const CERTIFICATE_FILE: &str = "certificate.pem";
const LOCK_FILE: &str = "lock";
/// Start of the line in front of the key, which names the directory of the authority.
const ORIGIN: &str = "Issued through ";

/// Why the state directory cannot be used.
#[derive(Debug)]
pub enum StoreError {
    /// A file cannot be read or written.
    File(OpenError),
    /// The directory, or the lock in it, failed.
    Io(PathBuf, io::Error),
    /// Another process uses the directory for an order.
    Locked(PathBuf),
    /// The credentials of the account cannot be written as JSON.
    Json(serde_json::Error),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Locked(path) => write!(f, "another process orders a certificate ({})", path.display()),
            Self::Json(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {}

/// An account, as it is stored.
#[derive(Deserialize, Serialize)]
struct StoredAccount<C> {
    /// The directory of the authority that has the account.
    directory: String,
    credentials: C,
}

/// A certificate with its key, as it is stored: one file, so that both are replaced together.
pub struct StoredCertificate(Zeroizing<Vec<u8>>);

impl fmt::Debug for StoredCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredCertificate").finish_non_exhaustive()
    }
}

impl StoredCertificate {
    /// A certificate of the authority with this directory. Key and chain are PEM.
    #[must_use]
    pub fn new(directory: &str, key: &str, chain: &str) -> Self {
        let parts = [ORIGIN, directory, "\n", key, "\n", chain];
        // Allocated at once, because growing would leave copies behind that are not cleared.
        let mut bytes = Zeroizing::new(Vec::with_capacity(parts.iter().map(|part| part.len()).sum()));
        parts.iter().for_each(|part| bytes.extend_from_slice(part.as_bytes()));
        Self(bytes)
    }

    /// The directory of the authority.
    #[must_use]
    pub fn directory(&self) -> &str {
        let line = self.0.split(|&byte| byte == b'\n').next().unwrap_or_default();
        std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix(ORIGIN)).unwrap_or_default()
    }

    /// The certificate; `None` if the file is damaged.
    #[must_use]
    pub fn open(&self, has_http2: bool) -> Option<TlsCertificate> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.0).collect::<Result<_, _>>().ok()?;
        let key = PrivateKeyDer::from_pem_slice(&self.0).ok()?;
        TlsCertificate::new(chain, key, has_http2).ok()
    }
}

/// The state directory.
#[derive(Debug)]
pub struct AcmeStore(PathBuf);

impl AcmeStore {
    /// Opens the directory, which is created if needed.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        created.map_err(|error| StoreError::Io(directory.to_owned(), error))?;
        Ok(Self(directory.to_owned()))
    }

    /// Reserves the directory for an order, until the file is dropped.
    ///
    /// # Errors
    /// When another process has reserved it.
    pub fn lock(&self) -> Result<File, StoreError> {
        let path = self.0.join(LOCK_FILE);
        let failed = |error| StoreError::Io(path.clone(), error);
        let options = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = options.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked(path)),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// The certificate, if there is one.
    ///
    /// # Errors
    /// When other users may read it, or a system call fails.
    pub fn certificate(&self) -> Result<Option<StoredCertificate>, StoreError> {
        Ok(self.read(CERTIFICATE_FILE)?.map(StoredCertificate))
    }

    /// Replaces the certificate.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_certificate(&self, certificate: &StoredCertificate) -> Result<(), StoreError> {
        replace_secret_file(&self.0.join(CERTIFICATE_FILE), &certificate.0).map_err(StoreError::File)
    }

    /// The account at the authority with this directory, if there is one. A damaged file is as
    /// none.
    ///
    /// # Errors
    /// When other users may read it, or a system call fails.
    pub fn account(&self, directory: &str) -> Result<Option<AccountCredentials>, StoreError> {
        let Some(bytes) = self.read(ACCOUNT_FILE)? else { return Ok(None) };
        let stored: Option<StoredAccount<AccountCredentials>> = serde_json::from_slice(&bytes).ok();
        Ok(stored.filter(|stored| stored.directory == directory).map(|stored| stored.credentials))
    }

    /// Replaces the account.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_account(&self, directory: &str, credentials: &AccountCredentials) -> Result<(), StoreError> {
        let stored = StoredAccount { directory: directory.to_owned(), credentials };
        let mut bytes = Zeroizing::new(Vec::with_capacity(1 << 14));
        serde_json::to_writer(&mut *bytes, &stored).map_err(StoreError::Json)?;
        replace_secret_file(&self.0.join(ACCOUNT_FILE), &bytes).map_err(StoreError::File)
    }

    /// Removes the account, which the authority does not have any more.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove_account(&self) -> Result<(), StoreError> {
        let path = self.0.join(ACCOUNT_FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::Io(path, error)),
            _ => Ok(()),
        }
    }

    fn read(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        match open_secret_file(&self.0.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(OpenError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::File(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::os::unix::fs::PermissionsExt as _;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_certificate_comes_back_with_its_key_and_origin() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/acme");
        let store = AcmeStore::open(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        assert!(store.certificate().unwrap().is_none());
        let key = KeyPair::generate().unwrap();
        let chain = CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let stored = StoredCertificate::new("https://ca.example/dir", &key.serialize_pem(), &chain.pem());
        for _ in 0..2 {
            store.keep_certificate(&stored).unwrap();
        }
        let file = path.join(CERTIFICATE_FILE);
        assert_eq!(mode(&file), 0o600);
        let again = store.certificate().unwrap().unwrap();
        assert_eq!(again.directory(), "https://ca.example/dir");
        assert_eq!(again.open(true).unwrap().facts().unwrap().names, ["a.example"]);
        let bytes = std::fs::read(&file).unwrap();
        for len in (0..bytes.len() - 1).step_by(7) {
            let damaged = StoredCertificate(Zeroizing::new(bytes[..len].to_vec()));
            assert!(damaged.open(true).is_none(), "{len} bytes");
        }
        let other = KeyPair::generate().unwrap().serialize_pem();
        assert!(StoredCertificate::new("x", &other, &chain.pem()).open(true).is_none(), "another key");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(store.certificate().unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn an_account_belongs_to_one_authority() {
        let directory = tempfile::tempdir().unwrap();
        let store = AcmeStore::open(directory.path()).unwrap();
        assert!(store.account("https://a").unwrap().is_none());
        let text = r#"{"id":"id","key_pkcs8":"AAAA","directory":"https://a"}"#;
        let credentials: AccountCredentials = serde_json::from_str(text).unwrap();
        store.keep_account("https://a", &credentials).unwrap();
        assert_eq!(mode(&directory.path().join(ACCOUNT_FILE)), 0o600);
        assert!(store.account("https://a").unwrap().is_some());
        assert!(store.account("https://b").unwrap().is_none());
        store.remove_account().unwrap();
        store.remove_account().unwrap();
        assert!(store.account("https://a").unwrap().is_none());
    }

    #[test]
    fn one_process_at_a_time_makes_an_order() {
        let directory = tempfile::tempdir().unwrap();
        let store = AcmeStore::open(directory.path()).unwrap();
        let lock = store.lock().unwrap();
        assert!(matches!(AcmeStore::open(directory.path()).unwrap().lock(), Err(StoreError::Locked(_))));
        drop(lock);
        store.lock().unwrap();
    }
}
