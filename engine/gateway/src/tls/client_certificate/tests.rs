use super::*;
use data_encoding::HEXLOWER;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::Acceptor;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConnection};
use serde_json::Value as Json;

const NONCE: CallerNonce = [0x5a; 32];
const LEN_MAX: usize = 16 << 10;

/// The lines of a file of vectors.
fn vectors(file: &str) -> Vec<Json> {
    let path = format!("{}/../../tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The certificate that a client of the vectors has shown.
fn certificate_of(name: &str) -> CertificateDer<'static> {
    let line = vectors("handshakes.jsonl").into_iter().find(|line| line["name"] == name).unwrap();
    let messages = HEXLOWER.decode(line["messages_hex"].as_str().unwrap().as_bytes()).unwrap();
    SignedHandshake::parse(&messages).unwrap().certificate.to_vec().into()
}

fn key_of(id: &str) -> PrivateKeyDer<'static> {
    let of_key = |line: &Json| line["kind"] == "key" && line["key_id"] == id;
    let line = vectors("credentials.jsonl").into_iter().find(of_key).unwrap();
    PrivateKeyDer::from_pem_slice(line["pkcs8_pem"].as_str().unwrap().as_bytes()).unwrap()
}

/// A server and the clients that trust it.
struct Endpoint {
    server: CertificateServer,
    roots: RootCertStore,
}

impl Endpoint {
    fn new() -> Self {
        let pair = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&pair).unwrap();
        let key = PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let certified = CertifiedKey::from_der(vec![certificate.der().clone()], key, &SYSTEM).unwrap();
        Self { server: CertificateServer::new(Arc::new(SingleCertAndKey::from(certified))), roots }
    }

    fn client(
        &self,
        version: &'static rustls::SupportedProtocolVersion,
        shown: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    ) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(&[version]).unwrap();
        let builder = builder.with_root_certificates(self.roots.clone());
        let Some((chain, key)) = shown else { return builder.with_no_client_auth() };
        // Without the check whether both belong together.
        let key = provider.key_provider.load_private_key(key).unwrap();
        let certified = SingleCertAndKey::from(CertifiedKey::new(chain, key));
        builder.with_client_cert_resolver(Arc::new(certified) as Arc<dyn ResolvesClientCert>)
    }

    /// What the client has shown in a handshake with this nonce.
    fn shake(
        &self,
        client: &Arc<ClientConfig>,
        nonce: Option<CallerNonce>,
        len_max: usize,
    ) -> Result<(ShownCertificate, ServerConnection), Error> {
        let mut client =
            ClientConnection::new(Arc::clone(client), ServerName::try_from("localhost").unwrap())?;
        let mut acceptor = Acceptor::default();
        let mut sent = Vec::new();
        client.write_tls(&mut sent).unwrap();
        acceptor.read_tls(&mut &sent[..]).unwrap();
        let accepted = acceptor.accept().map_err(|(error, _)| error)?.unwrap();
        let recorder = Arc::new(HandshakeRecorder::new(nonce, len_max));
        let config = self.server.config(Arc::clone(&recorder));
        let server = with_nonce(nonce, || accepted.into_connection(config));
        let mut server = server.map_err(|(error, _)| error)?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut sent = Vec::new();
            server.write_tls(&mut sent).unwrap();
            let mut sent = &sent[..];
            while !sent.is_empty() {
                client.read_tls(&mut sent).unwrap();
                client.process_new_packets()?;
            }
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            let mut sent = &sent[..];
            while !sent.is_empty() {
                server.read_tls(&mut sent).unwrap();
                server.process_new_packets()?;
            }
        }
        assert_eq!(NEXT_NONCE.take(), None, "the nonce is used in the handshake or not at all");
        Ok((recorder.shown(), server))
    }
}

fn shown(name: &str, key: &str) -> Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    Some((vec![certificate_of(name)], key_of(key)))
}

fn signed(shown: ShownCertificate) -> SignedCertificate {
    match shown {
        ShownCertificate::Signed(signed) => signed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_signs_the_nonce_in_every_handshake() {
    let endpoint = Endpoint::new();
    for name in ["handshake/uid", "handshake/version_1_with_chain"] {
        let client = Arc::new(endpoint.client(&TLS12, shown(name, "admin_rsa")));
        // A session could be resumed by the client from the second time on.
        for round in 0..3_u8 {
            let nonce = [round; 32];
            let (shown, server) = endpoint.shake(&client, Some(nonce), LEN_MAX).unwrap();
            let signed = signed(shown);
            assert_eq!((signed.nonce, &signed.handle[..]), (nonce, &b"0.NA/TST"[..]), "{name}");
            let handshake = SignedHandshake::parse(&signed.messages).unwrap();
            assert_eq!(*handshake.server_random, nonce);
            assert_eq!(handshake.certificate, &*certificate_of(name));
            let key = CallerCertificate::parse(handshake.certificate).unwrap().key;
            assert!(signed.proof().is_made_with(&PublicKey::from_record(&key).unwrap()));
            assert_eq!(server.handshake_kind(), Some(HandshakeKind::Full), "{name} {round}");
            // Neither a session id nor a ticket is made, which would be from the same source.
            let hello_len = usize::from(signed.messages[2]) << 8 | usize::from(signed.messages[3]);
            assert_eq!(signed.messages[4 + hello_len + 4 + 34], 0, "no session id");
        }
    }
}

#[test]
fn a_client_without_certificate_is_served_and_shows_none() {
    let endpoint = Endpoint::new();
    let client = Arc::new(endpoint.client(&TLS12, None));
    let (shown, server) = endpoint.shake(&client, Some(NONCE), LEN_MAX).unwrap();
    assert_eq!((shown, server.handshake_kind()), (ShownCertificate::Absent, Some(HandshakeKind::Full)));
    assert_eq!(endpoint.shake(&client, Some(NONCE), LEN_MAX).unwrap().0, ShownCertificate::Absent);
}

#[test]
fn as_much_of_a_handshake_is_kept_as_allowed() {
    let endpoint = Endpoint::new();
    let client = Arc::new(endpoint.client(&TLS12, shown("handshake/uid", "admin_rsa")));
    let (shown, _) = endpoint.shake(&client, Some(NONCE), 1000).unwrap();
    assert_eq!(shown, ShownCertificate::Unusable(CertificateProblem::TooLong(1000)));
    let recorder = HandshakeRecorder::new(Some(NONCE), LEN_MAX);
    let proof = |messages| HandshakeProof { messages, scheme: 0x0401, signature: &[] };
    let line = vectors("handshakes.jsonl").swap_remove(0);
    let messages = HEXLOWER.decode(line["messages_hex"].as_str().unwrap().as_bytes()).unwrap();
    let certificate = certificate_of("handshake/uid");
    let at = |len_max| HandshakeRecorder { len_max, ..HandshakeRecorder::new(None, 0) };
    let edge = messages.len();
    assert_eq!(at(edge).usable(&proof(&messages), &certificate), Err(CertificateProblem::NoNonce));
    let too_long = Err(CertificateProblem::TooLong(edge - 1));
    assert_eq!(at(edge - 1).usable(&proof(&messages), &certificate), too_long);
    // A nonce that is not in the handshake proves nothing.
    assert_eq!(recorder.usable(&proof(&messages), &certificate), Err(CertificateProblem::NoNonce));
}

#[test]
fn certificates_that_prove_nobody_do_not_end_the_handshake() {
    let endpoint = Endpoint::new();
    let problem = |shown: Option<_>, nonce| {
        let client = Arc::new(endpoint.client(&TLS12, shown));
        match endpoint.shake(&client, nonce, LEN_MAX).unwrap().0 {
            ShownCertificate::Unusable(problem) => problem,
            other => panic!("{other:?}"),
        }
    };
    let without_nonce = problem(shown("handshake/uid", "admin_rsa"), None);
    assert_eq!(without_nonce, CertificateProblem::NoNonce);
    let without_identity = problem(shown("handshake/no_identity", "admin_rsa"), Some(NONCE));
    assert_eq!(without_identity, CertificateProblem::Certificate(CertificateError::Identity));
    for pair in [KeyPair::generate(), KeyPair::generate_for(&rcgen::PKCS_ED25519)] {
        let pair = pair.unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "300:0.NA/TST");
        let certificate = params.self_signed(&pair).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
        let other_key = problem(Some((vec![certificate], key)), Some(NONCE));
        assert_eq!(other_key, CertificateProblem::Certificate(CertificateError::Key));
    }
}

#[test]
fn a_signature_with_another_key_ends_the_handshake() {
    let endpoint = Endpoint::new();
    let client = Arc::new(endpoint.client(&TLS12, shown("handshake/uid", "client_rsa")));
    let error = endpoint.shake(&client, Some(NONCE), LEN_MAX).unwrap_err();
    assert_eq!(error, TlsCertificateError::BadSignature.into());
}

#[test]
fn other_versions_of_tls_are_refused() {
    let endpoint = Endpoint::new();
    let client = Arc::new(endpoint.client(&TLS13, None));
    let error = endpoint.shake(&client, Some(NONCE), LEN_MAX).unwrap_err();
    assert_eq!(error, Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled));
    NEXT_NONCE.take();
}

#[test]
fn other_random_bytes_are_not_the_nonce() {
    let filled = |len: usize| {
        let mut bytes = vec![0; len];
        NonceSource.fill(&mut bytes).unwrap();
        bytes
    };
    with_nonce(Some(NONCE), || {
        assert!(
            [16, 31, 33, 64].into_iter().all(|len| !filled(len).windows(8).any(|part| part == [0x5a; 8]))
        );
        assert_eq!(filled(32), NONCE);
        assert_ne!(filled(32), NONCE, "once");
    });
    with_nonce(Some(NONCE), || ());
    assert_ne!(filled(32), NONCE, "not later");
}
