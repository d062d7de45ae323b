//! TLS with clients that show a certificate, so that `handle-admin` can verify who they are.
//!
//! - The version is TLS 1.2, in which a client signs all messages of the handshake. A verifier of
//!   this connection alone keeps them, with the signature.
//! - The random bytes of the server in them are a nonce of `handle-admin`.
//! - Handshakes are never resumed, so the client of every connection signs one.
//!
//! Any certificate is accepted, whoever issued it and when. What it says counts for nothing here:
//! `handle-admin` reads it, in the bytes that the client has signed.

use crate::callers::CallerNonce;
use handle_auth::PublicKey;
use handle_auth::certificate::{CallerCertificate, CertificateError};
use handle_auth::handshake::{HandshakeError, HandshakeProof, SERVER_RANDOM_LEN, SignedHandshake};
use handle_daemon::settings;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, verify_tls12_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::{CertificateError as TlsCertificateError, DigitallySignedStruct, DistinguishedName};
use rustls::{Error, PeerIncompatible, ServerConfig, SignatureScheme};
use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, OnceLock};

settings! {
    /// Addresses at which clients may show certificates
    /// ([gateway.md](../gateway.md#client-certificates)).
    pub struct ClientCertificatesConfig {
        /// Set this when clients authenticate with certificates: addresses for them, besides
        /// `listen`; none if empty. They speak TLS 1.2 only, with the certificate of the gateway.
        /// Needs `admin.socket`.
        restart listen: Vec<SocketAddr> = Vec::new();
    } constants {
        /// Maximum length of the messages of a handshake that a client signs, which include the
        /// certificates of both sides: some chains of usual length, and half of what `handle-admin`
        /// accepts. They are kept until the first request that needs them. A client with more of
        /// them has no identity.
        handshake_bytes: usize = 16 << 10;
    }
}

/// What a client has shown in its handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownCertificate {
    /// No certificate.
    Absent,
    /// Nothing that is known: a listed proxy has made the handshake, for its clients.
    OfProxy,
    /// A certificate with an identity, and a signature with its key.
    Signed(SignedCertificate),
    /// A certificate that proves no identity.
    Unusable(CertificateProblem),
}

/// A certificate with an identity, and a signature with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedCertificate {
    /// The messages of the handshake.
    messages: Vec<u8>,
    scheme: u16,
    signature: Vec<u8>,
    /// The random bytes of the server in the messages.
    pub nonce: CallerNonce,
    /// The handle of the identity.
    pub handle: Vec<u8>,
}

impl SignedCertificate {
    /// What proves the identity.
    #[must_use]
    pub fn proof(&self) -> HandshakeProof<'_> {
        HandshakeProof { messages: &self.messages, scheme: self.scheme, signature: &self.signature }
    }
}

impl fmt::Debug for SignedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a signed handshake of {} bytes", self.messages.len())
    }
}

/// Why a certificate proves no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateProblem {
    /// It does not say who its owner is.
    Certificate(CertificateError),
    /// The messages of the handshake are longer than this.
    TooLong(usize),
    /// The messages are not those of a handshake of today.
    Handshake(HandshakeError),
    /// There was no nonce, because `handle-admin` did not answer.
    NoNonce,
}

impl fmt::Display for CertificateProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(error) => write!(f, "The client certificate cannot be used: {error}"),
            Self::TooLong(most) => {
                write!(f, "The client has sent too many certificates: a handshake may have {most} bytes")
            }
            Self::Handshake(error) => write!(f, "The client certificate cannot be used: {error}"),
            Self::NoNonce => f.write_str(
                "The client certificate cannot be used in this connection: it began when the \
                 administration service did not answer",
            ),
        }
    }
}

/// Keeps what the client of one connection signs.
#[derive(Debug)]
pub struct HandshakeRecorder {
    nonce: Option<CallerNonce>,
    len_max: usize,
    shown: OnceLock<ShownCertificate>,
}

impl HandshakeRecorder {
    /// A recorder for a handshake with the random bytes `nonce`, of which at most `len_max` bytes
    /// are kept.
    #[must_use]
    pub const fn new(nonce: Option<CallerNonce>, len_max: usize) -> Self {
        Self { nonce, len_max, shown: OnceLock::new() }
    }

    /// What the client has shown, after the handshake.
    #[must_use]
    pub fn shown(&self) -> ShownCertificate {
        self.shown.get().cloned().unwrap_or(ShownCertificate::Absent)
    }

    /// What a client has shown with this signature, which is right.
    fn usable(
        &self,
        proof: &HandshakeProof<'_>,
        certificate: &[u8],
    ) -> Result<SignedCertificate, CertificateProblem> {
        let identity =
            CallerCertificate::parse(certificate).map_err(CertificateProblem::Certificate)?.identity;
        if proof.messages.len() > self.len_max {
            return Err(CertificateProblem::TooLong(self.len_max));
        }
        let handshake = SignedHandshake::parse(proof.messages).map_err(CertificateProblem::Handshake)?;
        let nonce = self.nonce.filter(|nonce| handshake.server_random == nonce);
        let nonce = nonce.ok_or(CertificateProblem::NoNonce)?;
        Ok(SignedCertificate {
            messages: proof.messages.to_vec(),
            scheme: proof.scheme,
            signature: proof.signature.to_vec(),
            nonce,
            handle: identity.handle.to_vec(),
        })
    }
}

impl ClientCertVerifier for HandshakeRecorder {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let proof =
            HandshakeProof { messages: message, scheme: dss.scheme.into(), signature: dss.signature() };
        let key = CallerCertificate::parse(cert).ok().and_then(|it| PublicKey::from_record(&it.key).ok());
        let verified = match key {
            // Certificates of any version of X.509, as `handle-admin` reads them.
            Some(key) if proof.is_made_with(&key) => HandshakeSignatureValid::assertion(),
            Some(_) => return Err(TlsCertificateError::BadSignature.into()),
            // Of a key that no record has: the connection may do without an identity.
            None => verify_tls12_signature(message, cert, dss, &SYSTEM.signature_verification_algorithms)?,
        };
        let shown = match self.usable(&proof, cert) {
            Ok(signed) => ShownCertificate::Signed(signed),
            Err(problem) => ShownCertificate::Unusable(problem),
        };
        // A handshake has one signature of the client.
        let _ = self.shown.set(shown);
        Ok(verified)
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SYSTEM.signature_verification_algorithms.supported_schemes()
    }
}

/// The certificate of the gateway, as connections with client certificates use it.
#[derive(Clone, Debug)]
pub struct CertificateServer(Arc<dyn ResolvesServerCert>);

impl CertificateServer {
    /// With this certificate.
    #[must_use]
    pub fn new(certificate: Arc<dyn ResolvesServerCert>) -> Self {
        Self(certificate)
    }

    /// The configuration of one handshake, which `recorder` follows.
    ///
    /// # Panics
    /// Never: the provider has TLS 1.2.
    #[must_use]
    pub fn config(&self, recorder: Arc<HandshakeRecorder>) -> Arc<ServerConfig> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&PROVIDER));
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS12]).expect("TLS 1.2");
        let mut config = builder.with_client_cert_verifier(recorder).with_cert_resolver(Arc::clone(&self.0));
        // A resumed handshake has no signature. Tickets are off unless somebody makes them.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // HTTP/2 could not end a connection whose nonce has expired with an answer.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

/// What TLS has of its library.
static SYSTEM: LazyLock<CryptoProvider> = LazyLock::new(rustls::crypto::ring::default_provider);
/// The same, with nonces as the random bytes of servers.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider { secure_random: &NonceSource, ..rustls::crypto::ring::default_provider() })
});

thread_local! {
    /// The random bytes of the server in the next `ServerHello` of this thread.
    static NEXT_NONCE: Cell<Option<CallerNonce>> = const { Cell::new(None) };
}

/// Has `answer` write a `ServerHello`, whose random bytes are `nonce` if there is one.
pub(super) fn with_nonce<T>(nonce: Option<CallerNonce>, answer: impl FnOnce() -> T) -> T {
    NEXT_NONCE.set(nonce);
    let answered = answer();
    NEXT_NONCE.set(None);
    answered
}

/// Random bytes of handshakes. Without sessions that are resumed, those of the server in its
/// `ServerHello` are all that it makes here; keys are made by the library below it.
#[derive(Debug)]
struct NonceSource;

impl SecureRandom for NonceSource {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        if bytes.len() == SERVER_RANDOM_LEN
            && let Some(nonce) = NEXT_NONCE.take()
        {
            bytes.copy_from_slice(&nonce);
            return Ok(());
        }
        SYSTEM.secure_random.fill(bytes)
    }
}

#[cfg(test)]
mod tests;
