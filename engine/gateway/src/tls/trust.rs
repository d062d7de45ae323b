//! Authorities whose certificates are trusted for requests of this process over HTTPS: those of the
//! host, or those in a file.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why there are no trusted authorities.
#[derive(Debug)]
pub enum TrustError {
    /// The file with them cannot be read as PEM.
    File(PathBuf, rustls::pki_types::pem::Error),
    /// The file has a certificate that is malformed.
    Certificate(PathBuf, rustls::Error),
    /// The file has no certificate.
    Empty(PathBuf),
    /// The host has no authorities.
    Host,
    /// TLS cannot be set up.
    Tls(rustls::Error),
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => {
                write!(f, "cannot read the authorities in {}: {error}", path.display())
            }
            Self::Certificate(path, error) => {
                write!(f, "{} has a certificate that is not valid: {error}", path.display())
            }
            Self::Empty(path) => write!(f, "{} has no certificate: expected PEM", path.display()),
            Self::Host => f.write_str(
                "this host has no trusted authorities: install ca-certificates, or name a file with them",
            ),
            Self::Tls(error) => write!(f, "cannot set up TLS: {error}"),
        }
    }
}

impl std::error::Error for TrustError {}

/// A client of TLS that trusts the authorities in `ca_file`, or those of the host.
///
/// # Errors
/// When there are none.
pub fn client_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TrustError> {
    client_trusting(match ca_file {
        Some(path) => roots_in(path)?,
        None => roots_of_host()?,
    })
}

/// A client of TLS that trusts no authority, for configurations that are only checked: every
/// handshake fails.
///
/// # Errors
/// When TLS cannot be set up.
pub fn client_without_trust() -> Result<Arc<ClientConfig>, TrustError> {
    client_trusting(RootCertStore::empty())
}

fn client_trusting(roots: RootCertStore) -> Result<Arc<ClientConfig>, TrustError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(Arc::new(builder.map_err(TrustError::Tls)?.with_root_certificates(roots).with_no_client_auth()))
}

fn roots_in(path: &Path) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| TrustError::File(path.to_owned(), error))?;
    for certificate in certificates {
        roots.add(certificate).map_err(|error| TrustError::Certificate(path.to_owned(), error))?;
    }
    if roots.is_empty() { Err(TrustError::Empty(path.to_owned())) } else { Ok(roots) }
}

fn roots_of_host() -> Result<RootCertStore, TrustError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some hosts have certificates in forms that rustls does not know.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() { Err(TrustError::Host) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn a_file_has_at_least_one_authority() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        assert!(matches!(client_config(Some(&path)), Err(TrustError::File(..))));
        std::fs::write(&path, "no certificate").unwrap();
        assert!(matches!(client_config(Some(&path)), Err(TrustError::Empty(_))));
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        assert!(matches!(client_config(Some(&path)), Err(TrustError::Certificate(..))));
        let params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        std::fs::write(&path, certificate.pem()).unwrap();
        client_config(Some(&path)).unwrap();
    }
}
