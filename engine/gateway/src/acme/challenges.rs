//! Challenges: what the authority asks under a name, to see that this process answers there.

use crate::reply::{GatewayResponse, response};
use crate::tls::certificate;
use arc_swap::ArcSwap;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::ClientHello;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Start of the path of a challenge over HTTP. RFC 8555 section 8.3.
const HTTP_PATH: &str = "/.well-known/acme-challenge/";
/// The protocol of a challenge over TLS. RFC 8737 section 6.2.
const TLS_PROTOCOL: &[u8] = b"acme-tls/1";

/// The challenges that wait for the authority. Workers look here at each request and handshake.
#[derive(Default)]
pub struct PendingChallenges(ArcSwap<ChallengeTable>);

#[derive(Clone, Default)]
struct ChallengeTable {
    /// Answers over HTTP, by token.
    http: HashMap<String, String>,
    /// Handshakes, by name.
    tls: HashMap<String, Arc<ServerConfig>>,
}

impl fmt::Debug for PendingChallenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.0.load();
        let (http, tls) = (table.http.len(), table.tls.len());
        f.debug_struct("PendingChallenges").field("http", &http).field("tls", &tls).finish()
    }
}

/// Why a challenge cannot be answered over TLS.
#[derive(Debug)]
pub enum ChallengeError {
    /// Its certificate cannot be made.
    Certificate(rcgen::Error),
    /// Its certificate cannot be used.
    Tls(rustls::Error),
}

impl fmt::Display for ChallengeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot make the certificate of a challenge: ")?;
        match self {
            Self::Certificate(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ChallengeError {}

impl PendingChallenges {
    /// Whether no challenge waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let table = self.0.load();
        table.http.is_empty() && table.tls.is_empty()
    }

    /// Answers requests for `token` over HTTP with `key_authorization`.
    pub fn add_http(&self, token: &str, key_authorization: &str) {
        self.change(|table| {
            table.http.insert(token.to_owned(), key_authorization.to_owned());
        });
    }

    /// Answers handshakes for `name` that ask for the challenge, with a certificate that has the
    /// SHA-256 of the key authorization. RFC 8737 section 3.
    ///
    /// # Errors
    /// When the certificate cannot be made.
    pub fn add_tls(&self, name: &str, digest: &[u8; 32]) -> Result<(), ChallengeError> {
        let mut params = CertificateParams::new([name.to_owned()]).map_err(ChallengeError::Certificate)?;
        params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
        let key = KeyPair::generate().map_err(ChallengeError::Certificate)?;
        let certificate = params.self_signed(&key).map_err(ChallengeError::Certificate)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let key = ring::sign::any_supported_type(&key).map_err(ChallengeError::Tls)?;
        // rustls does not know the critical extension, so it would refuse the certificate as its
        // own.
        let certified = CertifiedKey::new(vec![certificate.der().clone()], key);
        let resolver = Arc::new(SingleCertAndKey::from(certified));
        let builder = certificate::builder().map_err(ChallengeError::Tls)?.with_no_client_auth();
        let mut server = builder.with_cert_resolver(resolver);
        server.alpn_protocols = vec![TLS_PROTOCOL.to_vec()];
        let server = Arc::new(server);
        self.change(|table| {
            table.tls.insert(name.to_ascii_lowercase(), Arc::clone(&server));
        });
        Ok(())
    }

    /// Forgets all challenges.
    pub fn clear(&self) {
        self.0.store(Arc::default());
    }

    fn change(&self, change: impl Fn(&mut ChallengeTable)) {
        self.0.rcu(|table| {
            let mut table = ChallengeTable::clone(table);
            change(&mut table);
            table
        });
    }

    /// The answer to a request for a challenge that waits.
    #[must_use]
    pub fn for_request(&self, parts: &Parts) -> Option<GatewayResponse> {
        let token = parts.uri.path().strip_prefix(HTTP_PATH)?;
        let table = self.0.load();
        let key_authorization = table.http.get(token)?;
        matches!(parts.method, Method::GET | Method::HEAD)
            .then(|| response(StatusCode::OK, "application/octet-stream", key_authorization.clone()))
    }

    /// The handshake of a client that asks for a challenge that waits, and for nothing else.
    #[must_use]
    pub fn for_hello(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        let mut protocols = hello.alpn()?;
        let is_challenge = protocols.next() == Some(TLS_PROTOCOL) && protocols.next().is_none();
        let name = hello.server_name().filter(|_| is_challenge)?.to_ascii_lowercase();
        self.0.load().tls.get(&name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    #[test]
    fn only_requests_for_a_challenge_that_waits_are_answered() {
        let challenges = PendingChallenges::default();
        let status = |method: &str, path: &str| {
            let parts = Request::builder().method(method).uri(path).body(()).unwrap().into_parts().0;
            challenges.for_request(&parts).map(|response| response.status().as_u16())
        };
        let path = "/.well-known/acme-challenge/token";
        assert!(challenges.is_empty() && status("GET", path).is_none());
        challenges.add_http("token", "token.thumbprint");
        assert_eq!(status("GET", path), Some(200));
        for (method, path) in [
            ("POST", path),
            ("GET", "/.well-known/acme-challenge/other"),
            ("GET", "/.well-known/acme-challenge/"),
            ("GET", "/.well-known/acme-challenge/token/"),
            ("GET", "/token"),
        ] {
            assert_eq!(status(method, path), None, "{method} {path}");
        }
        challenges.add_tls("a.example", &[7; 32]).unwrap();
        assert!(!challenges.is_empty());
        challenges.clear();
        assert!(challenges.is_empty() && status("GET", path).is_none());
    }
}
