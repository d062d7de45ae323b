//! TLS with servers whose certificates are known by their keys: names, dates and issuers are not
//! checked.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A configuration that accepts the certificates for which `accepts` returns true.
///
/// # Errors
/// When TLS cannot be set up.
pub fn config_accepting(
    accepts: impl Fn(&CertificateDer<'_>) -> Result<bool, Error> + Send + Sync + 'static,
) -> Result<ClientConfig, Error> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider()));
    let verifier = Arc::new(KeyVerifier { accepts, provider: Arc::clone(provider) });
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(provider)).with_safe_default_protocol_versions()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// The public key of a certificate, as `SubjectPublicKeyInfo`.
///
/// # Errors
/// When it is not a certificate.
pub fn public_key_der(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, Error> {
    Ok(ParsedCertificate::try_from(certificate)?.subject_public_key_info().to_vec())
}

struct KeyVerifier<F> {
    accepts: F,
    provider: Arc<CryptoProvider>,
}

impl<F> fmt::Debug for KeyVerifier<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyVerifier")
    }
}

impl<F> ServerCertVerifier for KeyVerifier<F>
where
    F: Fn(&CertificateDer<'_>) -> Result<bool, Error> + Send + Sync,
{
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match (self.accepts)(end_entity)? {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
