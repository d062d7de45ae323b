//! TLS with a server whose key is in its site record. Only the key of the certificate is checked.
//!
//! Deployed servers make their certificates themselves, so names, dates and issuers prove nothing.
//! RFC 3651 section 3.2.2 for the key in the site record.

use super::AttemptError;
use crate::signature::is_same_key;
use handle_auth::pem::public_key_from_der;
use handle_proto::data::PublicKey;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme,
};
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// A TLS connection, without its socket.
#[derive(Debug)]
pub(crate) struct Tls(ClientConnection);

impl Tls {
    /// A connection to the server at `address` with the key of this record, which sends `request`.
    pub(crate) fn new(address: IpAddr, key_record: &[u8], request: &[u8]) -> Result<Self, AttemptError> {
        if PublicKey::decode(key_record).is_err() {
            return Err(AttemptError::NoKey);
        }
        let provider = provider();
        let site_key = SiteKey { record: key_record.to_vec(), provider: Arc::clone(provider) };
        let versions = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()
            .map_err(|_| AttemptError::Tls)?;
        let mut config =
            versions.dangerous().with_custom_certificate_verifier(Arc::new(site_key)).with_no_client_auth();
        // A connection carries one request, and the next may be to another server.
        config.resumption = Resumption::disabled();
        // By address, so that no name is sent: it would come from a site record, and the server
        // does not need it.
        let name = ServerName::from(address);
        let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|_| AttemptError::Tls)?;
        // The request waits there until the server has proved its key; it is at most as long as a
        // message.
        connection.set_buffer_limit(None);
        connection.writer().write_all(request).map_err(|_| AttemptError::Tls)?;
        Ok(Self(connection))
    }

    /// Whether there are bytes to send.
    pub(crate) fn has_outgoing(&self) -> bool {
        self.0.wants_write()
    }

    /// The bytes to send now.
    pub(crate) fn outgoing(&mut self) -> Vec<u8> {
        let mut bytes = vec![];
        while self.0.wants_write() {
            if self.0.write_tls(&mut bytes).is_err() {
                break;
            }
        }
        bytes
    }

    /// Takes received bytes, and returns their plain text.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Result<Vec<u8>, AttemptError> {
        let mut plain = vec![];
        while !bytes.is_empty() {
            // After the close notification of the other side, no more bytes are taken.
            if self.0.read_tls(&mut bytes).map_err(|_| AttemptError::Tls)? == 0 {
                break;
            }
            let state = self.0.process_new_packets().map_err(|error| match error {
                Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                    AttemptError::Certificate
                }
                _ => AttemptError::Tls,
            })?;
            let begin = plain.len();
            plain.resize(begin + state.plaintext_bytes_to_read(), 0);
            self.0.reader().read_exact(&mut plain[begin..]).map_err(|_| AttemptError::Tls)?;
        }
        Ok(plain)
    }
}

fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider()))
}

/// Accepts any certificate with this key.
#[derive(Debug)]
struct SiteKey {
    record: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for SiteKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // TLS no longer supports such keys, so these servers show another, unknown key. Callers who
        // need proof must request signed answers.
        if matches!(PublicKey::decode(&self.record), Ok(PublicKey::Dsa { .. })) {
            return Ok(ServerCertVerified::assertion());
        }
        let certificate = ParsedCertificate::try_from(end_entity)?;
        match public_key_from_der(&certificate.subject_public_key_info()) {
            Ok(shown) if is_same_key(&shown, &self.record) => Ok(ServerCertVerified::assertion()),
            _ => Err(CertificateError::ApplicationVerificationFailure.into()),
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
