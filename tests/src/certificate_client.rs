//! HTTP clients with certificates, over TLS 1.2.

use crate::gateway_server::{HttpAnswer, described, trusted_certificates};
use crate::vectors::{fixture, hex, load};
use handle_auth::handshake::SignedHandshake;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned, SupportedProtocolVersion};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The header line that refers to the certificate.
pub const BY_CERTIFICATE: &str = "Authorization: Handle clientCert=\"true\"\r\n";
/// The attribute `UID` of a subject.
const UID: [u64; 7] = [0, 9, 2342, 19_200_300, 100, 1, 1];

/// A certificate and its key.
#[derive(Debug)]
pub struct ClientCertificate {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Further certificates that the client sends.
    issuers: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Clone for ClientCertificate {
    fn clone(&self) -> Self {
        let (certificate, issuers) = (self.certificate.clone(), self.issuers.clone());
        Self { certificate, issuers, key: self.key.clone_key() }
    }
}

/// The PEM of a key of `servers.json`.
///
/// # Panics
/// If there is no such key.
#[must_use]
pub fn key_pem(id: &str) -> String {
    fixture("servers.json")["keys"][id]["pkcs8_pem"].as_str().expect("a key").to_owned()
}

impl ClientCertificate {
    /// A self-signed certificate whose subject has this `UID`, for a key of `servers.json`.
    ///
    /// # Panics
    /// If there is no such key.
    #[must_use]
    pub fn with_uid(uid: &str, key_id: &str) -> Self {
        Self::of_key(DnType::CustomDnType(UID.to_vec()), uid, &key_pem(key_id))
    }

    /// Like [`with_uid`](Self::with_uid), with a `CN` alone.
    ///
    /// # Panics
    /// If there is no such key.
    #[must_use]
    pub fn with_name(name: &str, key_id: &str) -> Self {
        Self::of_key(DnType::CommonName, name, &key_pem(key_id))
    }

    fn of_key(attribute: DnType, text: &str, pem: &str) -> Self {
        let pair = KeyPair::from_pem(pem).expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(attribute, text);
        let certificate = params.self_signed(&pair).expect("a certificate").der().clone();
        Self { certificate, issuers: Vec::new(), key: private_key(pem) }
    }

    /// The same certificate, followed by so many others.
    #[must_use]
    pub fn with_issuers(self, count: usize) -> Self {
        Self { issuers: vec![self.certificate.clone(); count], ..self }
    }

    /// The same certificate with another key of `servers.json`.
    ///
    /// # Panics
    /// If there is no such key.
    #[must_use]
    pub fn with_key(self, key_id: &str) -> Self {
        Self { key: private_key(&key_pem(key_id)), ..self }
    }

    /// The certificate of a client of `handshakes.jsonl`, with a key of `servers.json`.
    ///
    /// # Panics
    /// If there is no such line or key.
    #[must_use]
    pub fn of_vectors(name: &str, key_id: &str) -> Self {
        let line = load("handshakes.jsonl").into_iter().find(|line| line["name"] == name);
        let messages = hex(&line.expect("a handshake")["messages_hex"]);
        let handshake = SignedHandshake::parse(&messages).expect("a handshake");
        let certificate = handshake.certificate.to_vec().into();
        Self { certificate, issuers: Vec::new(), key: private_key(&key_pem(key_id)) }
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        [&self.certificate].into_iter().chain(&self.issuers).cloned().collect()
    }
}

fn private_key(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key")
}

/// A connection, in which requests follow each other.
pub struct CertificateConnection(StreamOwned<ClientConnection, TcpStream>);

impl CertificateConnection {
    /// Connects, with a certificate or without one.
    ///
    /// # Panics
    /// If there is no connection.
    #[must_use]
    pub fn open(address: SocketAddr, shown: Option<&ClientCertificate>) -> Self {
        Self::open_after(b"", address, shown)
    }

    /// Like [`open`](Self::open); `first` is sent before the handshake.
    ///
    /// # Panics
    /// If there is no connection.
    #[must_use]
    pub fn open_after(first: &[u8], address: SocketAddr, shown: Option<&ClientCertificate>) -> Self {
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream.write_all(first).expect("the first bytes are sent");
        let config = client_config(&rustls::version::TLS12, shown);
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
        Self(StreamOwned::new(connection, stream))
    }

    /// Sends a request, and returns its answer.
    ///
    /// # Panics
    /// When there is none, or the OpenAPI document does not describe it.
    pub fn ask(&mut self, method: &str, target: &str, headers: &str, body: &str) -> HttpAnswer {
        self.send(method, target, headers, body);
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            if let Some((_, rest)) = HttpAnswer::split(&bytes, method == "HEAD") {
                assert_eq!(rest, b"", "one answer");
                return described(method, target, &bytes);
            }
            match self.0.read(&mut buffer) {
                Ok(0) => panic!("{target}: no whole answer: {}", String::from_utf8_lossy(&bytes)),
                Ok(len) => bytes.extend_from_slice(&buffer[..len]),
                Err(error) => panic!("{target}: {error}: {}", String::from_utf8_lossy(&bytes)),
            }
        }
    }

    fn send(&mut self, method: &str, target: &str, headers: &str, body: &str) {
        let len = body.len();
        let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}");
        let request = format!("{head}Content-Length: {len}\r\n\r\n{body}");
        self.0.write_all(request.as_bytes()).expect("the request is sent");
        self.0.flush().expect("the request is sent");
    }

    /// Whether the handshake succeeds.
    #[must_use]
    pub fn handshake(mut self) -> bool {
        self.0.conn.complete_io(&mut self.0.sock).is_ok()
    }

    /// The certificate of the server, after a request.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn server_certificate(&self) -> Vec<u8> {
        self.0.conn.peer_certificates().expect("a certificate")[0].to_vec()
    }

    /// Whether the server closes the connection.
    #[must_use]
    pub fn is_closed(mut self) -> bool {
        match self.0.read(&mut [0; 1]) {
            Ok(len) => len == 0,
            // A timeout has one of the other kinds.
            Err(error) => matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
        }
    }
}

/// A client that trusts the certificates of the tests and shows a certificate or none, also one
/// with a key that is not its own.
///
/// # Panics
/// If the key cannot be used.
#[must_use]
pub fn client_config(
    version: &'static SupportedProtocolVersion,
    shown: Option<&ClientCertificate>,
) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[version]).expect("a version of TLS");
    let builder = builder.with_root_certificates(trusted_certificates());
    let Some(shown) = shown else { return builder.with_no_client_auth() };
    let key = provider.key_provider.load_private_key(shown.key.clone_key()).expect("a key");
    let certified = rustls::sign::CertifiedKey::new(shown.chain(), key);
    builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)))
}
