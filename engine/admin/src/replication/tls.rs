//! TLS with the server key. Receivers compare the key of the certificate with the site record, and
//! ignore everything else in it.

use handle_auth::pem::{PemError, encode_private_key};
use handle_proto::data::PrivateKey;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_RSA_SHA256};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use std::fmt;
use std::sync::Arc;

/// Name in the certificate, which proves nothing.
const SUBJECT: &str = "anonymous";

/// Why there is no TLS with a key.
#[derive(Debug)]
pub enum TlsKeyError {
    /// The key is not an RSA key.
    NotRsa,
    /// The key cannot be written as PKCS #8.
    Form(PemError),
    /// The key is not supported, for example because it has less than 2048 bits.
    Key(rcgen::Error),
    /// TLS cannot be set up.
    Tls(rustls::Error),
}

impl fmt::Display for TlsKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRsa => f.write_str("the server key is not an RSA key"),
            Self::Form(error) => error.fmt(f),
            Self::Key(error) => write!(f, "the server key cannot be used: {error}"),
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TlsKeyError {}

/// TLS with the server key and a certificate that is made for it. TLS 1.2 is offered, since
/// deployed receivers know no later version.
///
/// # Errors
/// When the key cannot be used for TLS.
pub fn server_config(key: &PrivateKey<'_>) -> Result<Arc<ServerConfig>, TlsKeyError> {
    if matches!(key, PrivateKey::Dsa { .. }) {
        return Err(TlsKeyError::NotRsa);
    }
    let pem = encode_private_key(key).map_err(TlsKeyError::Form)?;
    let unusable = |_| TlsKeyError::Form(PemError::Form);
    let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(unusable)?;
    let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_RSA_SHA256).map_err(TlsKeyError::Key)?;
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, SUBJECT);
    let certificate = parameters.self_signed(&pair).map_err(TlsKeyError::Key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsKeyError::Tls)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(der))
        .map_err(TlsKeyError::Tls)?;
    // A connection carries one stream.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
