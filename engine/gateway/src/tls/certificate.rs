//! A certificate with its key, as the server side of TLS uses it, and what it says.

use super::client_certificate::CertificateServer;
use handle_auth::pem::public_key_from_der;
use handle_proto::data::PublicKey;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ConfigBuilder, ServerConfig, WantsVerifier};
use std::sync::Arc;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The names and the validity of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The DNS names, in lower case.
    pub names: Vec<String>,
    /// Start of the validity, in seconds since 1970.
    pub begins_unix_s: u64,
    /// End of the validity, in seconds since 1970.
    pub expires_unix_s: u64,
}

impl CertificateFacts {
    /// Reads a certificate; `None` if it is malformed.
    #[must_use]
    pub fn read(certificate: &[u8]) -> Option<Self> {
        let certificate = Certificate::from_der(certificate).ok()?;
        let certificate = certificate.tbs_certificate();
        let names = match certificate.get_extension::<SubjectAltName>().ok()? {
            Some((_, SubjectAltName(names))) => names,
            None => Vec::new(),
        };
        let dns_name = |name: &GeneralName| match name {
            GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
            _ => None,
        };
        let validity = certificate.validity();
        Some(Self {
            names: names.iter().filter_map(dns_name).collect(),
            begins_unix_s: validity.not_before.to_unix_duration().as_secs(),
            expires_unix_s: validity.not_after.to_unix_duration().as_secs(),
        })
    }

    /// Whether the certificate is for all of these names.
    #[must_use]
    pub fn covers(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.names.iter().any(|own| own.eq_ignore_ascii_case(name)))
    }
}

/// A certificate in use.
#[derive(Debug)]
pub struct TlsCertificate {
    server: Arc<ServerConfig>,
    /// For connections with client certificates.
    certificate_server: CertificateServer,
    facts: Option<CertificateFacts>,
    /// The public key as a key record; empty without a certificate, or for a kind of key that no
    /// record has.
    key_record: Vec<u8>,
}

impl TlsCertificate {
    /// The certificate at the start of `chain`, with its key. With `has_http2`, HTTP/2 is offered
    /// to clients.
    ///
    /// # Errors
    /// When the key cannot be used, or is not that of the certificate.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        has_http2: bool,
    ) -> Result<Self, rustls::Error> {
        let facts = chain.first().and_then(|certificate| CertificateFacts::read(certificate));
        let key_record = chain.first().and_then(key_record).unwrap_or_default();
        let builder = builder()?;
        let certified = CertifiedKey::from_der(chain, key, builder.crypto_provider())?;
        let certified: Arc<dyn ResolvesServerCert> = Arc::new(SingleCertAndKey::from(certified));
        let mut server = builder.with_no_client_auth().with_cert_resolver(Arc::clone(&certified));
        // In the order of our preference. Clients that offer neither speak HTTP/1.1.
        let protocols = [(has_http2, &b"h2"[..]), (true, b"http/1.1")].into_iter();
        server.alpn_protocols =
            protocols.filter(|(is_spoken, _)| *is_spoken).map(|(_, it)| it.to_vec()).collect();
        let certificate_server = CertificateServer::new(certified);
        Ok(Self { server: Arc::new(server), certificate_server, facts, key_record })
    }

    /// No certificate: every handshake is refused with an alert.
    ///
    /// # Panics
    /// Never: the provider has the versions of TLS that this crate is built with.
    #[must_use]
    pub fn none() -> Self {
        let builder = builder().expect("the versions of TLS");
        let server = builder.with_no_client_auth().with_cert_resolver(Arc::new(NoCertificate));
        let certificate_server = CertificateServer::new(Arc::new(NoCertificate));
        Self { server: Arc::new(server), certificate_server, facts: None, key_record: Vec::new() }
    }

    /// The configuration of handshakes.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// The configuration of handshakes with client certificates.
    #[must_use]
    pub fn certificate_server(&self) -> CertificateServer {
        self.certificate_server.clone()
    }

    /// Whether the certificate has the RSA key of this record, by its numbers: some records end
    /// with bytes that mean nothing.
    #[must_use]
    pub fn has_key(&self, record: &[u8]) -> bool {
        is_same_rsa_key(&self.key_record, record)
    }

    /// What the certificate says; `None` without one, or if it is in a form that only TLS accepts.
    #[must_use]
    pub const fn facts(&self) -> Option<&CertificateFacts> {
        self.facts.as_ref()
    }
}

/// The public key of a certificate as a key record; `None` for a kind of key that no record has.
fn key_record(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    public_key_from_der(&parsed.subject_public_key_info()).ok()
}

fn is_same_rsa_key(shown: &[u8], record: &[u8]) -> bool {
    match (PublicKey::decode(shown), PublicKey::decode(record)) {
        (Ok(PublicKey::Rsa { e, n }), Ok(PublicKey::Rsa { e: other_e, n: other_n })) => {
            e == other_e && n == other_n
        }
        _ => false,
    }
}

/// A configuration of handshakes before it has a certificate.
///
/// # Errors
/// When the provider has none of the versions of TLS.
pub fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

/// Finds no certificate for any client.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::data::key::Number;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    #[test]
    fn a_certificate_says_its_names_and_when_it_expires() {
        let mut params = CertificateParams::new(["A.example".to_owned(), "b.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 4, 1));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let facts = CertificateFacts::read(certificate.der()).unwrap();
        assert_eq!(facts.names, ["a.example", "b.example"]);
        assert_eq!((facts.begins_unix_s, facts.expires_unix_s), (1_767_225_600, 1_775_001_600));
        let covers =
            |names: &[&str]| facts.covers(&names.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
        assert!(covers(&["a.example"]) && covers(&["B.example", "a.example"]));
        assert!(!covers(&["a.example", "c.example"]));
    }

    #[test]
    fn a_damaged_certificate_says_nothing() {
        let params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        for len in 0..certificate.der().len() {
            assert_eq!(CertificateFacts::read(&certificate.der()[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn keys_are_compared_by_their_numbers() {
        let key = |n: &[u8]| PublicKey::Rsa { e: Number::new(&[1, 0, 1]), n: Number::new(n) }.to_bytes();
        let own = key(&[5, 6, 7]);
        assert!(is_same_rsa_key(&own, &own));
        assert!(!is_same_rsa_key(&own, &key(&[5, 6, 8])));
        assert!(!is_same_rsa_key(&own, b"") && !is_same_rsa_key(b"", &own) && !is_same_rsa_key(b"", b""));
    }
}
