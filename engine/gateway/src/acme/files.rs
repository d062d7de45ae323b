//! The account and the certificate on disk: files that only their owner may read, each replaced as
//! a whole.

use crate::tls::certificate::TlsCertificate;
use anyhow::bail;
use handle_auth::file::{OpenError, open_secret_file, replace_secret_file};
use instant_acme::AccountCredentials;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const ACCOUNT_FILE: &str = "account.json";
const CERTIFICATE_FILE: &str = "certificate.pem";
const LOCK_FILE: &str = "lock";
/// Start of the line in front of the key, which names the directory of the authority.
const ORIGIN: &str = "Issued through ";

/// An account, as it is stored.
#[derive(Deserialize, Serialize)]
struct StoredAccount<C> {
    /// The directory of the authority that has the account.
    directory: String,
    credentials: C,
}

/// A certificate of the authority with this directory. It is stored in one file with its key, so
/// that both are replaced together.
pub(super) struct StoredCertificate {
    /// The directory of the authority.
    pub(super) directory: String,
    /// The certificate with its key.
    pub(super) certificate: TlsCertificate,
}

impl StoredCertificate {
    /// The content of the file. Key and chain are PEM.
    pub(super) fn encode(directory: &str, key: &str, chain: &str) -> Zeroizing<Vec<u8>> {
        let parts = [ORIGIN, directory, "\n", key, "\n", chain];
        // Allocated at once, because growing would leave copies behind that are not cleared.
        let mut bytes = Zeroizing::new(Vec::with_capacity(parts.iter().map(|part| part.len()).sum()));
        parts.iter().for_each(|part| bytes.extend_from_slice(part.as_bytes()));
        bytes
    }

    /// Reads the content of the file; `None` if it is damaged.
    pub(super) fn decode(bytes: &[u8], has_http2: bool) -> Option<Self> {
        let line = bytes.split(|&byte| byte == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
        let directory = line.and_then(|line| line.strip_prefix(ORIGIN)).unwrap_or_default().to_owned();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(bytes).collect::<Result<_, _>>().ok()?;
        let key = PrivateKeyDer::from_pem_slice(bytes).ok()?;
        Some(Self { directory, certificate: TlsCertificate::new(chain, key, has_http2).ok()? })
    }
}

/// The files in the state directory.
#[derive(Debug)]
pub(super) struct AcmeFiles(PathBuf);

impl AcmeFiles {
    /// Opens the directory, which is created if needed.
    pub(super) fn open(directory: &Path) -> Result<Self, OpenError> {
        let path = directory.to_owned();
        match DirBuilder::new().recursive(true).mode(0o700).create(directory) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(OpenError::Io { path, error }),
        }
    }

    /// Reserves the directory for an order, until the file is dropped.
    pub(super) fn lock(&self) -> anyhow::Result<File> {
        let path = self.0.join(LOCK_FILE);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        match opened.map_err(TryLockError::Error).and_then(|file| file.try_lock().map(|()| file)) {
            Ok(file) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                bail!("another process orders a certificate ({})", path.display())
            }
            Err(TryLockError::Error(error)) => Err(OpenError::Io { path, error }.into()),
        }
    }

    /// The certificate, if there is one. A damaged file is as none.
    pub(super) fn certificate(&self, has_http2: bool) -> Result<Option<StoredCertificate>, OpenError> {
        let bytes = self.read(CERTIFICATE_FILE)?;
        Ok(bytes.and_then(|bytes| StoredCertificate::decode(&bytes, has_http2)))
    }

    /// Replaces the certificate.
    pub(super) fn keep_certificate(&self, encoded: &[u8]) -> Result<(), OpenError> {
        replace_secret_file(&self.0.join(CERTIFICATE_FILE), encoded)
    }

    /// The account at the authority with this directory, if there is one. A damaged file is as
    /// none.
    pub(super) fn account(&self, directory: &str) -> Result<Option<AccountCredentials>, OpenError> {
        let Some(bytes) = self.read(ACCOUNT_FILE)? else { return Ok(None) };
        let stored: Option<StoredAccount<AccountCredentials>> = serde_json::from_slice(&bytes).ok();
        Ok(stored.filter(|stored| stored.directory == directory).map(|stored| stored.credentials))
    }

    /// Replaces the account.
    pub(super) fn keep_account(
        &self,
        directory: &str,
        credentials: &AccountCredentials,
    ) -> anyhow::Result<()> {
        let stored = StoredAccount { directory: directory.to_owned(), credentials };
        let mut bytes = Zeroizing::new(Vec::with_capacity(1 << 14));
        serde_json::to_writer(&mut *bytes, &stored)?;
        Ok(replace_secret_file(&self.0.join(ACCOUNT_FILE), &bytes)?)
    }

    fn read(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, OpenError> {
        match open_secret_file(&self.0.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(OpenError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
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
        let files = AcmeFiles::open(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        assert!(files.certificate(true).unwrap().is_none());
        let key = KeyPair::generate().unwrap();
        let chain = CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let encoded = StoredCertificate::encode("https://ca.example/dir", &key.serialize_pem(), &chain.pem());
        for _ in 0..2 {
            files.keep_certificate(&encoded).unwrap();
        }
        let file = path.join(CERTIFICATE_FILE);
        assert_eq!(mode(&file), 0o600);
        let again = files.certificate(true).unwrap().unwrap();
        assert_eq!(again.directory, "https://ca.example/dir");
        assert_eq!(again.certificate.facts().unwrap().names, ["a.example"]);
        for len in (0..encoded.len() - 1).step_by(7) {
            assert!(StoredCertificate::decode(&encoded[..len], true).is_none(), "{len} bytes");
        }
        let other = KeyPair::generate().unwrap().serialize_pem();
        let encoded = StoredCertificate::encode("x", &other, &chain.pem());
        assert!(StoredCertificate::decode(&encoded, true).is_none(), "another key");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(files.certificate(true).err().unwrap().to_string().contains("chmod 600"));
    }

    #[test]
    fn an_account_belongs_to_one_authority() {
        let directory = tempfile::tempdir().unwrap();
        let files = AcmeFiles::open(directory.path()).unwrap();
        assert!(files.account("https://a").unwrap().is_none());
        let text = r#"{"id":"id","key_pkcs8":"AAAA","directory":"https://a"}"#;
        let credentials: AccountCredentials = serde_json::from_str(text).unwrap();
        files.keep_account("https://a", &credentials).unwrap();
        assert_eq!(mode(&directory.path().join(ACCOUNT_FILE)), 0o600);
        assert!(files.account("https://a").unwrap().is_some());
        assert!(files.account("https://b").unwrap().is_none());
    }

    #[test]
    fn one_process_at_a_time_makes_an_order() {
        let directory = tempfile::tempdir().unwrap();
        let files = AcmeFiles::open(directory.path()).unwrap();
        let lock = files.lock().unwrap();
        let error = AcmeFiles::open(directory.path()).unwrap().lock().unwrap_err().to_string();
        assert!(error.starts_with("another process orders a certificate"), "{error}");
        drop(lock);
        files.lock().unwrap();
    }
}
