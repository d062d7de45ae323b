//! Challenges: what the authority asks under a name, to see that this process answers there.

use crate::reply::{GatewayResponse, response};
use crate::tls::certificate;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use hyper::{Method, StatusCode};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::ClientHello;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use std::collections::HashMap;
use std::sync::Arc;

/// The protocol of a challenge over TLS. RFC 8737 section 6.2.
const TLS_PROTOCOL: &[u8] = b"acme-tls/1";

/// The challenges that wait for the authority, by token or name. Workers look here at each request
/// for a challenge and at each handshake.
#[derive(Default)]
pub struct PendingChallenges(ArcSwap<HashMap<String, PendingChallenge>>);

#[derive(Clone)]
enum PendingChallenge {
    /// The answer over HTTP.
    Http(String),
    /// The handshake.
    Tls(Arc<ServerConfig>),
}

impl PendingChallenges {
    /// Whether no challenge waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.load().is_empty()
    }

    /// Answers requests for `token` over HTTP with `key_authorization`.
    pub(super) fn add_http(&self, token: &str, key_authorization: &str) {
        self.add(token.to_owned(), PendingChallenge::Http(key_authorization.to_owned()));
    }

    /// Answers handshakes for `name` that ask for the challenge, with a certificate that has the
    /// SHA-256 of the key authorization. RFC 8737 section 3.
    pub(super) fn add_tls(&self, name: &str, digest: &[u8]) -> anyhow::Result<()> {
        let server = handshake(name, digest).context("cannot make the certificate of a challenge")?;
        self.add(name.to_ascii_lowercase(), PendingChallenge::Tls(Arc::new(server)));
        Ok(())
    }

    fn add(&self, key: String, challenge: PendingChallenge) {
        // One thread makes the orders, so nothing is lost between reading and storing.
        let mut challenges = HashMap::clone(&self.0.load());
        challenges.insert(key, challenge);
        self.0.store(Arc::new(challenges));
    }

    /// Forgets all challenges.
    pub(super) fn clear(&self) {
        self.0.store(Arc::default());
    }

    /// The answer to a request for the challenge with `token`, if it waits. RFC 8555 section 8.3.
    pub(crate) fn for_request(&self, method: &Method, token: &str) -> Option<GatewayResponse> {
        let challenges = self.0.load();
        let PendingChallenge::Http(key_authorization) = challenges.get(token)? else { return None };
        matches!(*method, Method::GET | Method::HEAD)
            .then(|| response(StatusCode::OK, "application/octet-stream", key_authorization.clone()))
    }

    /// The handshake of a client that asks for a challenge that waits, and for nothing else.
    pub(crate) fn for_hello(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        let mut protocols = hello.alpn()?;
        let is_challenge = protocols.next() == Some(TLS_PROTOCOL) && protocols.next().is_none();
        let name = hello.server_name().filter(|_| is_challenge)?.to_ascii_lowercase();
        match self.0.load().get(&name)? {
            PendingChallenge::Tls(server) => Some(Arc::clone(server)),
            PendingChallenge::Http(_) => None,
        }
    }
}

/// The handshake of a challenge for `name`.
fn handshake(name: &str, digest: &[u8]) -> anyhow::Result<ServerConfig> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = ring::sign::any_supported_type(&PrivateKeyDer::Pkcs8(key.serialize_der().into()))?;
    // rustls does not know the critical extension, so it would refuse the certificate as its own.
    let certified = CertifiedKey::new(vec![certificate.der().clone()], key);
    let builder = certificate::builder()?.with_no_client_auth();
    let mut server = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    server.alpn_protocols = vec![TLS_PROTOCOL.to_vec()];
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_for_a_challenge_that_waits_are_answered() {
        let challenges = PendingChallenges::default();
        let status =
            |method, token| challenges.for_request(&method, token).map(|response| response.status().as_u16());
        assert!(challenges.is_empty() && status(Method::GET, "token").is_none());
        challenges.add_http("token", "token.thumbprint");
        assert_eq!(status(Method::GET, "token"), Some(200));
        assert_eq!(status(Method::POST, "token"), None);
        for token in ["other", "", "token/"] {
            assert_eq!(status(Method::GET, token), None, "{token}");
        }
        challenges.add_tls("a.example", &[7; 32]).unwrap();
        assert!(!challenges.is_empty());
        challenges.clear();
        assert!(challenges.is_empty() && status(Method::GET, "token").is_none());
    }
}
