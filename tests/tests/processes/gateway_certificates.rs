//! Client certificates at `handle-gateway` from outside: whom they prove, for how long, and what
//! does not count.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use data_encoding::BASE64;
use handle_auth::PrivateKey;
use handle_auth::handshake::{HandshakeProof, SignedHandshake};
use handle_gateway::Config;
use handle_gateway::reload::reload;
use handle_local::callers::{CallerRefusal, CallerReply, CallerRequest, CertificateProof};
use handle_local::client::LocalClient;
use handle_local::kind::LocalKind;
use handle_proto::code::DigestAlgorithm;
use handle_proto::{Value, Values};
use handle_store::Transaction;
use handle_tests::certificate_client::{
    BY_CERTIFICATE, CertificateConnection, ClientCertificate, client_config, key_pem,
};
use handle_tests::daemon::{self, free_address};
use handle_tests::gateway_server::{
    AdministeredGateway, HttpAnswer, ask_over_tls, exchange, of_session, session_of, write_tls,
};
use handle_tests::needs::{TestNeed, has};
use handle_tests::process::{RunningProcess, program, until};
use handle_tests::vectors::{fixture, hex, load};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const PROTECTED: &str = "/api/handles/TST/HALF?publicOnly=false";
const PUBLIC: &str = "/api/handles/TST/HALF";
const THIS_SESSION: &str = "/api/sessions/this";
const NOT_VERIFIED: &str = "error=\"Identity not verified\"";

/// A gateway with its administration service, and clients with certificates.
struct ServedPair(AdministeredGateway);

fn pair_with(
    administer: impl FnOnce(&mut handle_admin::config::Config),
    change: impl FnOnce(&mut Config),
) -> ServedPair {
    ServedPair(AdministeredGateway::start(administer, |config| {
        config.tls.client_certificates.listen = vec![([127, 0, 0, 1], 0).into()];
        change(config);
    }))
}

fn pair() -> ServedPair {
    pair_with(|_| (), |_| ())
}

impl Deref for ServedPair {
    type Target = AdministeredGateway;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for ServedPair {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl ServedPair {
    fn address(&self) -> SocketAddr {
        self.gateway.gateway.state().writing.certificate_addresses[0]
    }

    fn connect(&self, shown: &ClientCertificate) -> CertificateConnection {
        CertificateConnection::open(self.address(), Some(shown))
    }

    /// The answer to a request for what is protected, in a connection of its own.
    fn read(&self, shown: &ClientCertificate) -> HttpAnswer {
        self.connect(shown).ask("GET", PROTECTED, BY_CERTIFICATE, "")
    }

    /// Number of sessions with an identity, of gateway and `handle-admin`.
    fn sessions(&self) -> (usize, usize) {
        let service = &self.administration.server().shared().service;
        (self.gateway.gateway.state().writing.sessions.counts().0, service.proof.caller_sessions().count())
    }

    /// Connections with a certificate, proofs that were accepted, and refused requests.
    fn counts(&self) -> [u64; 3] {
        let counters = &self.gateway.gateway.state().counters;
        let counters =
            [&counters.client_certificates, &counters.certificate_proofs, &counters.certificate_refusals];
        counters.map(|counter| counter.get())
    }

    /// Number of lines of the audit log of this kind. It is written later than answers are sent.
    fn audited(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let audit = std::fs::read_to_string(self.administration.config.audit.clone().unwrap()).unwrap();
        audit.lines().filter(|line| is_meant(line)).count()
    }

    /// Gives 0.NA/TST this key, and no other value.
    fn put_key(&self, index: i32, key_id: &str) {
        let key = hex(&fixture("servers.json")["keys"][key_id]["handle_public_hex"]);
        let put = move |transaction: &mut Transaction<'_>| {
            let values = [Value::new(index, b"HS_PUBKEY", &key)];
            transaction.put(b"0.NA/TST", Values::build(values, &mut Vec::new()))
        };
        self.administration.server().shared().service.store.change(put).unwrap();
    }
}

/// The certificate of the identity 300:0.NA/TST, with its key.
fn administrator() -> ClientCertificate {
    ClientCertificate::with_uid("300:0.NA/TST", "admin_rsa")
}

#[track_caller]
fn assert_refused(answer: &HttpAnswer, message: &str) {
    let challenge = answer.list("www-authenticate");
    assert_eq!(answer.status, 401, "{}", answer.text());
    assert!(challenge.starts_with("Handle sessionId=") && challenge.contains(NOT_VERIFIED), "{challenge}");
    let json = answer.json();
    assert_eq!(json["responseCode"], 402, "{json}");
    assert!(json["message"].as_str().is_some_and(|text| text.contains(message)), "{json}");
}

#[test]
fn the_uid_or_the_common_name_is_the_identity() {
    let pair = pair();
    let with_uid = ClientCertificate::with_uid;
    for (shown, identity) in [
        (administrator(), "300:0.NA/TST"),
        (ClientCertificate::with_name("300:0.NA/TST", "admin_rsa"), "300:0.NA/TST"),
        // Any key of the handle.
        (with_uid("0.NA/TST", "admin_rsa"), "300:0.NA/TST"),
        (with_uid("0:0.na/tst", "admin_rsa"), "300:0.na/tst"),
        // Made by OpenSSL: with both attributes, and of version 1 of X.509.
        (ClientCertificate::of_vectors("handshake/uid", "admin_rsa"), "300:0.NA/TST"),
        (ClientCertificate::of_vectors("handshake/cn", "admin_rsa"), "300:0.NA/TST"),
        (ClientCertificate::of_vectors("handshake/version_1_with_chain", "admin_rsa"), "300:0.NA/TST"),
    ] {
        let mut connection = pair.connect(&shown);
        let session = connection.ask("GET", THIS_SESSION, BY_CERTIFICATE, "");
        assert_eq!(session.json(), json!({ "authenticated": true, "id": identity }), "{}", session.text());
        let read = connection.ask("GET", PROTECTED, BY_CERTIFICATE, "");
        assert_eq!(read.status, 200, "{identity}: {}", read.text());
    }
    let renegotiating = "Authorization: Handle clientCert=\"true\", renegotiate=\"true\"\r\n";
    let body = "[{\"index\": 1, \"type\": \"URL\", \"data\": \"https://example.org/s\"}]";
    let headers = format!("{renegotiating}Content-Type: application/json\r\n");
    let created =
        pair.connect(&administrator()).ask("PUT", "/api/handles/TST/BY-CERTIFICATE", &headers, body);
    assert_eq!(created.status, 201, "{}", created.text());
    let is_change = |line: &str| line.contains("TST/BY-CERTIFICATE") && line.contains("300:0.NA/TST");
    until("the audit log has the change", || pair.audited(is_change) == 1);
    assert_eq!(pair.counts(), [8, 8, 0]);
}

#[test]
fn a_proof_and_its_session_belong_to_one_connection() {
    let pair = pair();
    let mut connection = pair.connect(&administrator());
    assert_eq!(connection.ask("GET", PUBLIC, "", "").status, 200);
    assert_eq!(pair.sessions(), (0, 0), "nothing is proven before a request needs it");
    for _ in 0..3 {
        assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
        assert_eq!((pair.sessions(), pair.counts()), ((1, 1), [1, 1, 0]));
    }
    let mut other = pair.connect(&administrator());
    assert_eq!(other.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    assert_eq!((pair.sessions(), pair.counts()), ((2, 2), [2, 2, 0]));
    drop(connection);
    until("the session of the connection ends", || pair.sessions() == (1, 1));
    assert_eq!(other.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    drop(other);
    until("no session is left", || pair.sessions() == (0, 0));
}

#[test]
fn a_certificate_counts_only_if_the_request_says_so() {
    let pair = pair();
    let mut connection = pair.connect(&administrator());
    let without = connection.ask("GET", PROTECTED, "", "");
    assert_eq!((without.status, without.list("www-authenticate").contains("error=")), (401, false));
    let deleting = connection.ask("DELETE", "/api/handles/TST/HALF", "", "");
    assert_eq!(deleting.status, 401);
    let other = connection.ask("GET", PROTECTED, "Authorization: Handle clientCert=\"false\"\r\n", "");
    assert_eq!(other.status, 401);
    assert_eq!((pair.sessions(), pair.counts()), ((0, 0), [1, 0, 0]));
}

#[test]
fn keys_that_the_identity_does_not_have_prove_nobody() {
    let pair = pair();
    let wrong = "does not have the key";
    for (uid, key_id) in [
        ("300:0.NA/TST", "mirror"),
        ("0.NA/TST", "mirror"),
        // Another index, another handle, no such handle, and a handle of another service.
        ("302:0.NA/TST", "admin_rsa"),
        ("300:TST/HALF", "admin_rsa"),
        ("300:TST/NOBODY", "admin_rsa"),
        ("300:20.500.99/ELSEWHERE", "admin_rsa"),
        // The server signs for everybody.
        ("300:0.NA/TST", "server"),
    ] {
        let shown = ClientCertificate::with_uid(uid, key_id);
        let mut connection = pair.connect(&shown);
        for _ in 0..2 {
            let answer = connection.ask("GET", PROTECTED, BY_CERTIFICATE, "");
            assert_refused(&answer, wrong);
            assert_eq!(answer.header("connection"), None, "{uid}: another request may follow");
        }
        assert_eq!(connection.ask("GET", PUBLIC, "", "").status, 200, "{uid}");
        assert_refused(&connection.ask("GET", THIS_SESSION, BY_CERTIFICATE, ""), wrong);
    }
    assert_eq!((pair.sessions(), pair.counts()[1..].to_vec()), ((0, 0), vec![0, 21]));
    // Lines about refusals are limited.
    until("the audit log has some", || pair.audited(|line| line.contains("wrong proof")) > 0);
    let no_name = ClientCertificate::of_vectors("handshake/no_identity", "admin_rsa");
    assert_refused(&pair.read(&no_name), "its subject has no identity");
    let mut without = CertificateConnection::open(pair.address(), None);
    assert_refused(&without.ask("GET", PROTECTED, BY_CERTIFICATE, ""), "has sent no certificate");
    assert_eq!(without.ask("GET", PUBLIC, "", "").status, 200);
}

#[test]
fn a_handshake_that_the_key_has_not_signed_fails() {
    let pair = pair();
    let stolen = administrator().with_key("mirror");
    assert!(pair.connect(&administrator()).handshake());
    assert!(!pair.connect(&stolen).handshake());
    let version_3 = client_config(&rustls::version::TLS13, Some(&administrator()));
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(version_3), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(pair.address()).unwrap());
    assert!(stream.write_all(b"GET / HTTP/1.1\r\n\r\n").is_err(), "TLS 1.3 hides what a client signs");
    let plain = exchange(pair.address(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(!plain.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&plain));
}

#[test]
fn other_credentials_win_over_the_certificate() {
    let pair = pair();
    let basic = |secret: &str| {
        let text = BASE64.encode(format!("301%3A0.NA/TST:{secret}").as_bytes());
        format!("Authorization: Basic {text}\r\n")
    };
    let mut connection = pair.connect(&administrator());
    assert_eq!(connection.ask("GET", PROTECTED, &basic("open sesame open"), "").status, 200);
    assert_eq!(connection.ask("GET", PROTECTED, &basic("open barley"), "").status, 401);
    let (unproven, _) = session_of(&connection.ask("POST", "/api/sessions", "", "").json());
    let both = format!("Authorization: Handle clientCert=\"true\", sessionId=\"{unproven}\"\r\n");
    assert_eq!(connection.ask("GET", PROTECTED, &both, "").status, 401, "the session has no identity");
    let opened = connection.ask("POST", "/api/sessions", &basic("open sesame open"), "");
    let (proven, _) = session_of(&opened.json());
    let both = format!("Authorization: Handle clientCert=\"true\", sessionId=\"{proven}\"\r\n");
    let shown = connection.ask("GET", THIS_SESSION, &both, "");
    assert_eq!(shown.json()["id"], "301:0.NA/TST", "{}", shown.text());
    assert_eq!(connection.ask("GET", PROTECTED, &of_session(&proven), "").status, 200);
    assert_eq!(pair.counts(), [1, 0, 0]);
}

#[test]
fn other_addresses_say_where_certificates_are_accepted() {
    let pair = pair();
    let ordinary = pair.gateway.address();
    let answer = ask_over_tls(ordinary, "GET", PROTECTED, BY_CERTIFICATE, "");
    assert_refused(&answer, &format!("at port {} only", pair.address().port()));
    let created = ask_over_tls(ordinary, "PUT", "/api/handles/TST/ELSEWHERE", BY_CERTIFICATE, "[]");
    assert_refused(&created, "Client certificates are accepted at port");
    let request = format!("GET {PROTECTED} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{BY_CERTIFICATE}\r\n");
    let plain = HttpAnswer::split(&exchange(ordinary, request.as_bytes()), false).unwrap().0;
    assert_eq!((plain.status, plain.header("www-authenticate")), (403, None));
    let without = pair_with(|_| (), |config| config.tls.client_certificates.listen.clear());
    let answer = ask_over_tls(without.gateway.address(), "GET", PROTECTED, BY_CERTIFICATE, "");
    assert_refused(&answer, "does not accept client certificates");
}

#[test]
fn a_connection_ends_when_its_identity_loses_the_key() {
    let pair = pair();
    let mut connection = pair.connect(&administrator());
    assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    pair.put_key(300, "admin_rsa");
    assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200, "the same key");
    pair.put_key(300, "mirror");
    let answer = connection.ask("GET", PROTECTED, BY_CERTIFICATE, "");
    assert_eq!((answer.status, answer.header("connection")), (401, Some("close")));
    assert!(answer.list("www-authenticate").contains(NOT_VERIFIED), "{:?}", answer.headers);
    assert!(connection.is_closed());
    until("its session has ended", || pair.sessions() == (0, 0));
    assert_refused(&pair.read(&administrator()), "does not have the key");
    pair.put_key(300, "admin_rsa");
    assert_eq!(pair.read(&administrator()).status, 200, "it is back");
    // With any key of the handle, the session is that of the index at which it was found.
    let any = ClientCertificate::with_uid("0.NA/TST", "admin_rsa");
    let mut connection = pair.connect(&any);
    assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    pair.put_key(303, "admin_rsa");
    assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 401, "another index");
    let session = pair.connect(&any).ask("GET", THIS_SESSION, BY_CERTIFICATE, "").json();
    assert_eq!(session["id"], "303:0.NA/TST", "{session}");
}

#[test]
fn a_handshake_proves_nothing_after_its_nonce_has_expired() {
    let pair = pair_with(|config| config.callers.nonce_ms = 1000, |_| ());
    let mut early = pair.connect(&administrator());
    let mut late = pair.connect(&administrator());
    assert_eq!(early.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    assert_eq!(late.ask("GET", PUBLIC, "", "").status, 200);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(early.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200, "its session goes on");
    let answer = late.ask("GET", PROTECTED, BY_CERTIFICATE, "");
    assert_refused(&answer, "connect again");
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(late.is_closed());
    assert_eq!(pair.read(&administrator()).status, 200, "another connection");
}

#[test]
fn a_session_that_is_displaced_ends_its_connection() {
    const PER_IDENTITY: usize = 64;
    let pair = pair_with(|_| (), |_| ());
    let mut connections: Vec<_> = (0..=PER_IDENTITY).map(|_| pair.connect(&administrator())).collect();
    for connection in &mut connections {
        assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    }
    until("handle-admin is told", || pair.sessions() == (PER_IDENTITY, PER_IDENTITY));
    let mut oldest = connections.remove(0);
    let answer = oldest.ask("GET", PROTECTED, BY_CERTIFICATE, "");
    assert_refused(&answer, "connect again");
    assert!(answer.header("connection") == Some("close") && oldest.is_closed());
    for connection in &mut connections {
        assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    }
    let behind = pair_with(|config| config.callers.sessions = 256, |_| ());
    let [mut first, mut second] = [(); 2].map(|()| behind.connect(&administrator()));
    assert_eq!(first.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    assert_eq!(second.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    assert_eq!(first.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 401);
    assert_eq!(second.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
}

#[test]
fn sessions_are_as_many_as_allowed() {
    let pair = pair_with(|_| (), |config| config.sessions.sessions = 1);
    let mut first = pair.connect(&administrator());
    assert_eq!(first.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    let mut second = pair.connect(&administrator());
    let answer = second.ask("GET", PROTECTED, BY_CERTIFICATE, "");
    assert!(answer.status == 401 && answer.text().contains("try again later"), "{}", answer.text());
    until("the session at handle-admin is given back", || pair.sessions() == (1, 1));
    assert_eq!(first.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
}

#[test]
fn a_certificate_counts_again_when_handle_admin_is_back() {
    let mut pair = pair();
    pair.administration.config.listen = vec![pair.administration.address()];
    pair.administration.stop();
    let mut connection = pair.connect(&administrator());
    assert_eq!(connection.ask("GET", PUBLIC, "", "").status, 200, "the set is served");
    let answer = connection.ask("GET", PROTECTED, BY_CERTIFICATE, "");
    assert_eq!(answer.status, 401);
    assert!(answer.text().contains("administration service did not answer"), "{}", answer.text());
    pair.administration.restart();
    let mut connection = pair.connect(&administrator());
    assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    // After a restart, nonces of before prove nothing, and the first refusal tells the gateway.
    pair.administration.restart();
    let answers = [pair.read(&administrator()), pair.read(&administrator())];
    assert_eq!(answers.map(|answer| answer.status), [401, 200]);
}

#[test]
fn too_many_certificates_are_named() {
    let pair = pair();
    assert_eq!(pair.read(&administrator()).status, 200);
    let long = ClientCertificate::with_uid(&format!("300:0.NA/{}", "x".repeat(3000)), "admin_rsa");
    // Such a name is no identity; a long chain of issuers is what really occurs.
    assert_refused(&pair.read(&long), "no identity");
    assert_eq!(pair.read(&administrator().with_issuers(10)).status, 200);
    assert_refused(&pair.read(&administrator().with_issuers(40)), "a handshake may have 16384 bytes");
}

#[test]
fn a_reload_replaces_the_certificate_of_the_server() {
    let pair = pair();
    let served = || {
        let mut connection = pair.connect(&administrator());
        assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
        connection.server_certificate()
    };
    let before = served();
    write_tls(pair.directory.path(), 1);
    let state = pair.gateway.gateway.state();
    state.tls.as_ref().unwrap().reload().unwrap();
    let _ = reload(state);
    assert_ne!(served(), before);
}

#[test]
fn slow_and_numerous_clients_are_limited_as_at_other_addresses() {
    let pair = pair_with(
        |_| (),
        |config| {
            config.limits.header_ms = 500;
            config.limits.connections_per_source = 2;
        },
    );
    let open = || {
        let stream = TcpStream::connect(pair.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    let is_closed = |stream: &mut TcpStream| matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_));
    let mut silent = [open(), open()];
    silent[1].write_all(b"\x16\x03\x01").unwrap();
    until("both are counted", || pair.gateway.gateway.state().connections.count() == 2);
    assert!(is_closed(&mut open()), "a third one");
    for stream in &mut silent {
        assert!(is_closed(stream));
    }
    until("both have ended", || pair.gateway.gateway.state().connections.count() == 0);
    let mut idle = pair.connect(&administrator());
    assert_eq!(idle.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    assert!(idle.is_closed(), "between two requests");
    until("its session has ended", || pair.sessions() == (0, 0));
}

#[test]
fn the_certificate_of_a_proxy_is_not_that_of_its_clients() {
    let trusting = |has_protocol: bool| {
        pair_with(
            |_| (),
            |config| {
                config.proxies.trusted = vec!["127.0.0.1".to_owned()];
                config.proxies.proxy_protocol = has_protocol;
            },
        )
    };
    // The proxy ends TLS, and has a certificate of its own.
    let answer = trusting(false).read(&administrator());
    assert_refused(&answer, "is that of a proxy");
    // The proxy forwards bytes, and the client has the certificate.
    let pair = trusting(true);
    let from = b"PROXY TCP4 192.0.2.1 127.0.0.1 4711 443\r\n";
    let mut connection = CertificateConnection::open_after(from, pair.address(), Some(&administrator()));
    assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    until("the audit log has the client", || pair.audited(|line| line.contains("192.0.2.1")) > 0);
}

/// The messages of a handshake of the vectors with another nonce, and their signature.
struct MadeHandshake {
    messages: Vec<u8>,
    signature: Vec<u8>,
}

fn private_key(id: &str) -> PrivateKey {
    PrivateKey::from_record(&hex(&fixture("servers.json")["keys"][id]["handle_private_hex"])).unwrap()
}

impl MadeHandshake {
    fn new(nonce: &[u8], shown: &ClientCertificate, key_id: &str) -> Self {
        let line = load("handshakes.jsonl").into_iter().find(|line| line["name"] == "handshake/uid").unwrap();
        let mut messages = hex(&line["messages_hex"]);
        let handshake = SignedHandshake::parse(&messages).unwrap();
        let find = |part: &[u8]| messages.windows(part.len()).position(|window| window == part).unwrap();
        let random_at = find(handshake.server_random);
        let (at, len) = (find(handshake.certificate), handshake.certificate.len());
        messages[random_at..random_at + 32].copy_from_slice(nonce);
        // The certificate, and the lengths of certificate, list and message before it.
        messages.splice(at..at + len, shown.certificate.iter().copied());
        for (from_end, more) in [(3, 0), (6, 3), (9, 6)] {
            let len = u32::try_from(shown.certificate.len() + more).unwrap().to_be_bytes();
            messages[at - from_end..at - from_end + 3].copy_from_slice(&len[1..]);
        }
        Self::of(messages, key_id)
    }

    fn of(messages: Vec<u8>, key_id: &str) -> Self {
        let signature = private_key(key_id).sign(DigestAlgorithm::SHA256, &[&messages]).unwrap();
        Self { messages, signature }
    }

    fn proof(&self, scheme: u16) -> CallerRequest<'_> {
        let handshake = HandshakeProof { messages: &self.messages, scheme, signature: &self.signature };
        CallerRequest::ProveByCertificate(CertificateProof {
            handshake,
            source: IpAddr::from([192, 0, 2, 1]),
        })
    }
}

#[test]
fn the_socket_accepts_each_handshake_once_and_only_with_its_own_nonce() {
    let pair = pair();
    let ask = |request: CallerRequest<'_>| {
        let timeout = Duration::from_secs(30);
        let mut client = LocalClient::connect(&pair.socket, LocalKind::Callers, timeout).unwrap();
        client.send(0, |content| content.extend_from_slice(&request.encode())).unwrap();
        CallerReply::decode(&client.receive().unwrap()).unwrap()
    };
    let CallerReply::NonceStart { start, .. } = ask(CallerRequest::NonceStart) else { panic!() };
    let nonce = |end: u8| [&start[..], &[end; 16]].concat();
    const PKCS1_SHA256: u16 = 0x0401;
    let (wrong, stale) =
        (CallerReply::Refused(CallerRefusal::Wrong), CallerReply::Refused(CallerRefusal::Stale));
    let good = MadeHandshake::new(&nonce(1), &administrator(), "admin_rsa");
    // Other schemes, signatures, messages and keys.
    for scheme in [0, 0x0201, 0x0501, 0x0804] {
        assert_eq!(ask(good.proof(scheme)), wrong, "{scheme:04x}");
    }
    let mut forged = MadeHandshake { messages: good.messages.clone(), signature: good.signature.clone() };
    forged.signature[9] ^= 1;
    assert_eq!(ask(forged.proof(PKCS1_SHA256)), wrong, "another signature");
    for at in [8, good.messages.len() - 1] {
        let mut changed =
            MadeHandshake { messages: good.messages.clone(), signature: good.signature.clone() };
        changed.messages[at] ^= 1;
        assert_eq!(ask(changed.proof(PKCS1_SHA256)), wrong, "changed at {at}");
    }
    for len in (0..good.messages.len()).step_by(97) {
        let cut = MadeHandshake::of(good.messages[..len].to_vec(), "admin_rsa");
        assert_eq!(ask(cut.proof(PKCS1_SHA256)), wrong, "cut to {len}");
    }
    let longer = MadeHandshake::of([&good.messages[..], &[0]].concat(), "admin_rsa");
    assert_eq!(ask(longer.proof(PKCS1_SHA256)), wrong, "longer");
    let twice = MadeHandshake::of([&good.messages[..], &good.messages].concat(), "admin_rsa");
    assert_eq!(ask(twice.proof(PKCS1_SHA256)), wrong, "twice");
    let other_signer = MadeHandshake::new(&nonce(1), &administrator(), "mirror");
    assert_eq!(ask(other_signer.proof(PKCS1_SHA256)), wrong, "signed with another key");
    for (uid, key_id) in
        [("300:0.NA/TST", "mirror"), ("300:0.NA/TST", "server"), ("301:0.NA/TST", "admin_rsa")]
    {
        let shown = ClientCertificate::with_uid(uid, key_id);
        let foreign = MadeHandshake::new(&nonce(1), &shown, key_id);
        assert_eq!(ask(foreign.proof(PKCS1_SHA256)), wrong, "{uid} {key_id}");
    }
    // Nonces of others, and those with a changed start.
    let mut start_changed = nonce(1);
    start_changed[15] ^= 1;
    for other in [[7; 32].to_vec(), start_changed] {
        let other = MadeHandshake::new(&other, &administrator(), "admin_rsa");
        assert_eq!(ask(other.proof(PKCS1_SHA256)), stale);
    }
    // None of these has used the nonce up.
    assert!(matches!(ask(good.proof(PKCS1_SHA256)), CallerReply::Proven { index: 300, .. }));
    assert_eq!(ask(good.proof(PKCS1_SHA256)), stale, "used");
    let renewed =
        MadeHandshake::new(&nonce(1), &ClientCertificate::with_uid("0.NA/TST", "admin_rsa"), "admin_rsa");
    assert_eq!(ask(renewed.proof(PKCS1_SHA256)), stale, "another handshake with the same nonce");
    let next = MadeHandshake::new(&nonce(2), &administrator(), "admin_rsa");
    assert!(matches!(ask(next.proof(PKCS1_SHA256)), CallerReply::Proven { index: 300, .. }));
}

#[test]
fn curl_and_openssl_need_only_a_key_and_a_certificate() {
    let is_installed = |name: &str, option: &str| Command::new(name).arg(option).output().is_ok();
    if !has(TestNeed::Curl, is_installed("curl", "--version") && is_installed("openssl", "version")) {
        return;
    }
    let pair = pair();
    let path = |name: &str| pair.directory.path().join(name);
    std::fs::write(path("admin.pem"), key_pem("admin_rsa")).unwrap();
    for (name, subject) in [("uid.crt", "/UID=300:0.NA\\/TST"), ("cn.crt", "/CN=300:0.NA\\/TST")] {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-new", "-utf8", "-days", "3650", "-subj", subject, "-key"]);
        let made = openssl.arg(path("admin.pem")).arg("-out").arg(path(name)).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--cert"]).arg(path(name));
        curl.arg("--key").arg(path("admin.pem")).arg("--cacert").arg(path("certificate.pem"));
        curl.args(["-H", "Authorization: Handle clientCert=\"true\""]);
        let port = pair.address().port();
        let answer = curl.arg(format!("https://localhost:{port}{THIS_SESSION}")).output().unwrap();
        let (text, errors) =
            (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        assert_eq!(text, "{\"authenticated\":true,\"id\":\"300:0.NA/TST\"}", "{name}: {errors}");
    }
}

#[test]
fn a_restart_takes_over_addresses_with_client_certificates() {
    let pair = pair();
    let (path, control) =
        (pair.directory.path().join("gateway.toml"), pair.directory.path().join("control.sock"));
    let mut config = Config::clone(&pair.gateway.gateway.state().settings.current_shared());
    config.listen = vec![free_address()];
    config.control = Some(control.clone());
    let address = free_address();
    config.tls.client_certificates.listen = vec![address];
    std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
    let start = || {
        let mut command = Command::new(program("handle-gateway", "handle-gateway"));
        command.stdin(Stdio::null()).env("HANDLE_GATEWAY_ALLOW_ROOT", "true");
        command.arg("--config").arg(&path).arg("--take-over");
        let mut process = RunningProcess::start(command);
        until("the process serves", || {
            assert!(process.0.try_wait().unwrap().is_none(), "the process has exited");
            control.exists() && daemon::ask(&control, "status")["pid"] == process.0.id()
        });
        process
    };
    let mut old = start();
    let mut connection = CertificateConnection::open(address, Some(&administrator()));
    assert_eq!(connection.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    let _new = start();
    // For a moment both processes accept connections. One that the old process accepts and that has
    // no further request would be waited for.
    until("the old process has handed over", || {
        let answer = connection.ask("GET", PROTECTED, BY_CERTIFICATE, "");
        assert_eq!(answer.status, 200, "of the old process");
        answer.header("connection") == Some("close")
    });
    let mut other = CertificateConnection::open(address, Some(&administrator()));
    assert_eq!(other.ask("GET", PROTECTED, BY_CERTIFICATE, "").status, 200);
    assert!(connection.is_closed());
    assert_eq!(old.wait(), Some(0));
    until("the session of the other connection is left", || pair.sessions().1 == 1);
}
