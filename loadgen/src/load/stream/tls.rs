//! TLS to the server, and the requirements for its certificate.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use data_encoding::BASE64;
use handle_client::key_verifier::{config_accepting, public_key_der};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::load::transport::HttpVersion;

/// The requirement for the certificate of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsTrust {
    /// None: every certificate is accepted.
    Any,
    /// One of the certificates in this file issued it, for the requested host.
    Authorities(PathBuf),
    /// Its key has this digest; host, dates and issuer are not checked.
    Pin(KeyPin),
}

impl fmt::Display for TlsTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("insecure"),
            Self::Authorities(path) => write!(f, "ca {}", path.display()),
            Self::Pin(pin) => write!(f, "pin {pin}"),
        }
    }
}

/// The SHA-256 digest of a public key, written as curl does: `sha256//` and base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPin([u8; 32]);

impl KeyPin {
    /// The digest of a key as `SubjectPublicKeyInfo`.
    #[must_use]
    pub fn of(public_key_der: &[u8]) -> Self {
        Self(Sha256::digest(public_key_der).into())
    }
}

impl fmt::Display for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256//{}", BASE64.encode(&self.0))
    }
}

impl FromStr for KeyPin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digest = text.strip_prefix("sha256//").and_then(|text| BASE64.decode(text.as_bytes()).ok());
        let digest = digest.and_then(|digest| digest.try_into().ok());
        digest.map(Self).ok_or_else(|| "expected sha256// and 32 bytes in base64".to_owned())
    }
}

/// The configuration of TLS connections.
#[derive(Clone, Debug)]
pub(crate) struct TlsContext {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsContext {
    /// Prepares connections to `host`, with or without a port, that carry `version`.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or `host` is neither a name nor an address.
    pub(crate) fn new(trust: &TlsTrust, host: &str, version: HttpVersion) -> Result<Self, Error> {
        let failed = |error: rustls::Error| Error::Option(format!("cannot set up TLS: {error}"));
        let mut config = match trust {
            TlsTrust::Any => config_accepting(|_| Ok(true)).map_err(failed)?,
            &TlsTrust::Pin(pin) => {
                config_accepting(move |shown| Ok(KeyPin::of(&public_key_der(shown)?) == pin))
                    .map_err(failed)?
            }
            TlsTrust::Authorities(path) => {
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let builder =
                    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
                let builder = builder.map_err(failed)?;
                builder.with_root_certificates(authorities(path)?).with_no_client_auth()
            }
        };
        config.alpn_protocols = vec![version.alpn().to_vec()];
        let name = name_of(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| Error::Option(format!("{name:?} cannot be the name of a server in TLS")))?;
        Ok(Self { config: Arc::new(config), name })
    }

    pub(crate) fn begin(&self) -> Result<ClientConnection, rustls::Error> {
        let mut connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone())?;
        // Requests wait there until the handshake is done; their number is limited.
        connection.set_buffer_limit(None);
        Ok(connection)
    }
}

/// `host` without its port and the brackets of an IPv6 address.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    match host.rsplit_once(':') {
        Some((name, _)) if !name.contains(':') => name,
        _ => host,
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, Error> {
    let bad = |reason: String| Error::Key { path: path.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))? {
        let certificate = certificate.map_err(|error| bad(error.to_string()))?;
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    if roots.is_empty() { Err(bad("it has no certificate as PEM".to_owned())) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_parse_as_printed() {
        let pin = KeyPin::of(b"key");
        assert_eq!(pin.to_string().parse(), Ok(pin));
        for bad in ["", "sha256//", "sha256//AAAA", "sha1//AAAA", &pin.to_string()[8..]] {
            assert!(bad.parse::<KeyPin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_those_of_hosts() {
        for (host, name) in [
            ("example.org:443", "example.org"),
            ("example.org", "example.org"),
            ("[::1]:8443", "::1"),
            ("::1", "::1"),
            ("127.0.0.1:8443", "127.0.0.1"),
        ] {
            assert_eq!(name_of(host), name);
            TlsContext::new(&TlsTrust::Any, host, HttpVersion::Http1).unwrap();
        }
        assert!(TlsContext::new(&TlsTrust::Any, "a b", HttpVersion::Http1).is_err());
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let trust = TlsTrust::Authorities(file.path().to_owned());
        let error = TlsContext::new(&trust, "localhost:1", HttpVersion::Http2).unwrap_err().to_string();
        assert!(error.contains("has no certificate"), "{error}");
    }
}
