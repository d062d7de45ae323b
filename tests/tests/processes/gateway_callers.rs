//! Callers of `handle-gateway` whose keys are at another service, and batches by sessions.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use data_encoding::BASE64;
use handle_auth::PrivateKey;
use handle_auth::digest::mac;
use handle_gateway::{Config, Gateway};
use handle_proto::code::DigestAlgorithm;
use handle_tests::admin_server::AdminServer;
use handle_tests::certificate_client::{BY_CERTIFICATE, CertificateConnection, ClientCertificate};
use handle_tests::gateway_server::{
    HttpAnswer, OpenedSession, ask_over_tls, config, of_session, session_of, session_proof, use_tls,
};
use handle_tests::process::until;
use handle_tests::services::{ServicesPlan, admin, group, key, public_key, secret};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

const SECRET: &[u8] = b"a secret that only the other service knows";
const JSON: &str = "Content-Type: application/json\r\n";

/// The service of `10.1`, whose administrators are a group at the service of `20.2`, and a gateway
/// for the first.
struct ServedServices {
    gateway: Gateway,
    here: AdminServer,
    there: AdminServer,
    _directory: TempDir,
}

fn start() -> ServedServices {
    let here = ServicesPlan::new(
        "server",
        &["10.1"],
        vec![
            ("0.NA/10.1", vec![admin(100, 1, "20.2/group"), admin(101, 300, "10.1/own")]),
            ("10.1/own", vec![public_key(300, "admin_rsa")]),
        ],
    );
    let there = ServicesPlan::new(
        "mirror",
        &["20.2"],
        vec![
            ("0.NA/20.2", vec![admin(100, 300, "20.2/who")]),
            ("20.2/group", vec![group(1, &[(300, "20.2/who"), (301, "20.2/who")])]),
            ("20.2/who", vec![public_key(300, "admin_rsa"), secret(301, SECRET)]),
            ("20.2/other", vec![public_key(300, "admin_rsa")]),
        ],
    );
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (set, socket) = (path("set"), path("admin.socket"));
    std::fs::create_dir(&set).unwrap();
    let administration = here.start(&there, |config| {
        config.publish.directory = Some(set.clone());
        config.publish.interval_ms = 1;
        config.local.socket = Some(socket.clone());
        config.remote.timeout_ms = 2000;
    });
    until("the set is published", || set.join("MANIFEST").exists());
    let mut config = Config { snapshot: Some(set), ..config() };
    config.admin.address = Some(administration.address());
    config.admin.socket = Some(socket);
    config.tls.client_certificates.listen = vec![([127, 0, 0, 1], 0).into()];
    use_tls(&mut config, directory.path());
    let gateway = Gateway::start(&config).unwrap();
    ServedServices { gateway, here: administration, there: there.start(&here, |_| ()), _directory: directory }
}

impl ServedServices {
    fn ask(&self, method: &str, target: &str, headers: &str, body: &str) -> HttpAnswer {
        ask_over_tls(self.gateway.addresses()[0], method, target, headers, body)
    }

    fn open(&self) -> OpenedSession {
        session_of(&self.ask("POST", "/api/sessions", "", "").json())
    }

    /// Gives a session the identity whose proof this is.
    fn prove(&self, id: &str, identity: &str, kind: &str, algorithm: &str, proof: &[u8]) -> HttpAnswer {
        let body = session_proof(id, identity, kind, algorithm, proof);
        self.ask("PUT", "/api/sessions/this", JSON, &body.to_string())
    }

    /// Opens a session and signs its nonce with a key of the vectors.
    fn sign_in(&self, identity: &str, key_id: &str) -> (String, HttpAnswer) {
        let (id, nonce) = self.open();
        let private = PrivateKey::from_record(&key(key_id, "handle_private_hex")).unwrap();
        let signature = private.sign(DigestAlgorithm::SHA256, &[&nonce, b"client nonce"]).unwrap();
        let answer = self.prove(&id, identity, "HS_PUBKEY", "SHA256", &signature);
        (id, answer)
    }

    /// Creates a record; returns the answer.
    fn create(&self, handle: &str, authorization: &str) -> HttpAnswer {
        let headers = format!("{JSON}{authorization}");
        let body = r#"[{"index": 1, "type": "URL", "data": "https://example.org/"}]"#;
        self.ask("PUT", &format!("/api/handles/{handle}"), &headers, body)
    }

    /// The status of a batch, and the codes of its lines.
    fn batch(&self, headers: &str, lines: &[Json]) -> (u16, Vec<i64>) {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let headers = format!("Content-Type: application/x-ndjson\r\n{headers}");
        let answer = self.ask("POST", "/api/batch", &headers, &body);
        let code = |line: &str| serde_json::from_str::<Json>(line).unwrap()["responseCode"].as_i64();
        let is_done = answer.status == 200;
        let codes = answer.text().lines().filter(|_| is_done).filter_map(code).collect();
        (answer.status, codes)
    }

    /// A connection whose client shows a certificate with this identity and key.
    fn connect(&self, identity: &str, key_id: &str) -> CertificateConnection {
        let shown = ClientCertificate::with_uid(identity, key_id);
        CertificateConnection::open(self.gateway.state().writing.certificate_addresses[0], Some(&shown))
    }

    fn audit(&self) -> String {
        std::fs::read_to_string(self.here.config.audit.as_ref().unwrap()).unwrap()
    }
}

fn basic(identity: &str, secret: &[u8]) -> String {
    let text = [identity.replace(':', "%3A").as_bytes(), b":", secret].concat();
    format!("Authorization: Basic {}\r\n", BASE64.encode(&text))
}

fn creation(handle: &str) -> Json {
    json!({ "handle": handle, "values": [{ "index": 1, "type": "URL", "data": "https://example.org/" }] })
}

#[test]
fn callers_with_keys_at_another_service_have_the_rights_of_their_group() {
    let services = start();
    let (id, proven) = services.sign_in("300:20.2/who", "admin_rsa");
    assert_eq!((proven.status, proven.json()["id"].as_str()), (200, Some("300:20.2/who")));
    assert_eq!(services.create("10.1/by-session", &of_session(&id)).status, 201);
    let made = |nonce: &[u8], secret: &[u8]| {
        mac(DigestAlgorithm::HMAC_SHA256, secret, &[nonce, b"client nonce"]).unwrap().to_vec()
    };
    let (id, nonce) = services.open();
    let wrong = services.prove(&id, "301:20.2/who", "HS_SECKEY", "HMAC-SHA256", &made(&nonce, b"another"));
    assert_eq!((wrong.status, &wrong.json()["error"]), (401, &json!("Identity not verified")));
    let (id, nonce) = services.open();
    let right = services.prove(&id, "301:20.2/who", "HS_SECKEY", "HMAC-SHA256", &made(&nonce, SECRET));
    assert_eq!(right.status, 200, "{}", right.text());
    assert_eq!(services.create("10.1/by-secret", &of_session(&id)).status, 201);
    assert_eq!(services.create("10.1/by-basic", &basic("301:20.2/who", SECRET)).status, 201);
    assert_eq!(services.create("10.1/refused", &basic("301:20.2/who", b"another")).status, 401);
    let audit = services.audit();
    for handle in ["10.1/by-session", "10.1/by-secret", "10.1/by-basic"] {
        let has = |line: &str| line.contains(handle) && line.contains("20.2/who");
        assert!(audit.lines().any(has), "{handle} in {audit}");
    }
}

#[test]
fn callers_of_another_service_without_rights_or_with_the_wrong_key_change_nothing() {
    let services = start();
    let (id, proven) = services.sign_in("300:20.2/other", "admin_rsa");
    assert_eq!(proven.status, 200, "the identity exists");
    let refused = services.create("10.1/refused", &of_session(&id));
    assert_eq!((refused.status, refused.json()["responseCode"].as_i64()), (403, Some(400)));
    assert_eq!(services.batch(&of_session(&id), &[creation("10.1/refused")]), (200, vec![400]));
    assert_eq!(services.sign_in("300:20.2/who", "mirror").1.status, 401, "another key");
    assert_eq!(services.sign_in("300:20.2/nobody", "admin_rsa").1.status, 401, "no such identity");
}

#[test]
fn a_caller_whose_service_does_not_answer_gets_an_error() {
    let mut services = start();
    services.there.stop();
    let (_, refused) = services.sign_in("300:20.2/who", "admin_rsa");
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, error), (401, json!("Identity not verified at the moment")));
    let (id, own) = services.sign_in("300:10.1/own", "admin_rsa");
    assert_eq!(own.status, 200, "an identity of this service");
    assert_eq!(services.create("10.1/by-own", &of_session(&id)).status, 201);
}

#[test]
fn client_certificates_prove_identities_of_another_service_while_it_answers() {
    let mut services = start();
    let create = |connection: &mut CertificateConnection, handle: &str| {
        let body = r#"[{"index": 1, "type": "URL", "data": "https://example.org/"}]"#;
        let target = format!("/api/handles/{handle}");
        connection.ask("PUT", &target, &format!("{JSON}{BY_CERTIFICATE}"), body)
    };
    // With its index, and without one.
    for (number, identity) in ["300:20.2/who", "20.2/who"].into_iter().enumerate() {
        let mut connection = services.connect(identity, "admin_rsa");
        let created = create(&mut connection, &format!("10.1/certificate-{number}"));
        assert_eq!(created.status, 201, "{identity}: {}", created.text());
        let lines = format!("{}\n", creation(&format!("10.1/batch-{number}")));
        let headers = format!("Content-Type: application/x-ndjson\r\n{BY_CERTIFICATE}");
        let batch = connection.ask("POST", "/api/batch", &headers, &lines);
        assert_eq!((batch.status, batch.json()["responseCode"].as_i64()), (200, Some(1)), "{}", batch.text());
    }
    let other = create(&mut services.connect("300:20.2/other", "admin_rsa"), "10.1/refused");
    assert_eq!((other.status, other.json()["responseCode"].as_i64()), (403, Some(400)), "no rights");
    for (identity, key_id) in [("300:20.2/who", "mirror"), ("300:20.2/nobody", "admin_rsa")] {
        let refused = create(&mut services.connect(identity, key_id), "10.1/refused");
        assert_eq!(refused.status, 401, "{identity} {key_id}");
    }
    services.there.stop();
    // An identity about which nothing is cached.
    let mut connection = services.connect("300:20.2/never-asked", "admin_rsa");
    let refused = create(&mut connection, "10.1/refused");
    assert_eq!(refused.status, 401);
    assert!(refused.list("www-authenticate").contains("Identity not verified at the moment"));
    assert!(refused.text().contains("try again later"), "{}", refused.text());
    assert_eq!(create(&mut services.connect("300:10.1/own", "admin_rsa"), "10.1/own-2").status, 201);
}

#[test]
fn a_session_changes_many_records_until_it_ends() {
    let services = start();
    let lines = |name: &str| [creation(&format!("10.1/{name}")), creation("99.9/foreign")];
    for (name, identity) in [("remote", "300:20.2/who"), ("here", "300:10.1/own")] {
        let (id, proven) = services.sign_in(identity, "admin_rsa");
        assert_eq!(proven.status, 200, "{identity}: {}", proven.text());
        assert_eq!(services.batch(&of_session(&id), &lines(name)), (200, vec![1, 301]), "{identity}");
        // A repetition under a key has the results of the first request.
        let keyed = format!("{}Idempotency-Key: {name}\r\n", of_session(&id));
        let first = services.batch(&keyed, &lines(&format!("{name}-2")));
        assert_eq!((first.0, &first.1[..]), (200, &[1, 301][..]));
        assert_eq!(services.batch(&keyed, &lines(&format!("{name}-2"))), first);
        assert_eq!(services.batch(&keyed, &lines(name)).0, 422, "another body");
        assert_eq!(services.ask("DELETE", "/api/sessions/this", &of_session(&id), "").status, 204);
        assert_eq!(services.batch(&of_session(&id), &lines("ended")).0, 401);
    }
    let (unproven, _) = services.open();
    assert_eq!(services.batch(&of_session(&unproven), &lines("unproven")).0, 401);
    let audit = services.audit();
    assert!(audit.contains("10.1/remote-2") && audit.contains("10.1/here-2"), "{audit}");
    assert!(!audit.contains("10.1/ended") && !audit.contains("10.1/unproven"), "{audit}");
}
