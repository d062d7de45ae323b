//! Sessions of `handle-gateway` from outside: who gets an identity, how it ends, and what a
//! stranger can do.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use data_encoding::BASE64;
use handle_auth::digest::mac;
use handle_auth::{PrivateKey, PublicKey};
use handle_gateway::Config;
use handle_local::callers::{CallerProof, CallerRefusal, CallerReply, CallerRequest};
use handle_local::client::LocalClient;
use handle_local::kind::LocalKind;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::list::Reference;
use handle_proto::{Value, Values};
use handle_store::{Store, Transaction};
use handle_tests::gateway_server::{
    AdministeredGateway, HttpAnswer, OpenedSession, ask_over_tls, exchange, of_session, session_of,
    session_proof,
};
use handle_tests::vectors::{fixture, hex};
use serde_json::{Value as Json, json};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

const SECRET: &[u8] = b"open sesame open";
const PROTECTED: &str = "/api/handles/TST/HALF?publicOnly=false";

/// A gateway with its administration service.
struct ServedPair(AdministeredGateway);

fn pair_with(
    administer: impl FnOnce(&mut handle_admin::config::Config),
    change: impl FnOnce(&mut Config),
) -> ServedPair {
    ServedPair(AdministeredGateway::start(administer, change))
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
    fn ask(&self, method: &str, target: &str, headers: &str, body: &str) -> HttpAnswer {
        ask_over_tls(self.gateway.address(), method, target, headers, body)
    }

    fn open(&self) -> OpenedSession {
        let answer = self.ask("POST", "/api/sessions", "", "");
        assert_eq!(answer.status, 201, "{}", answer.text());
        session_of(&answer.json())
    }

    /// A session of the identity 300:0.NA/TST, with its private key.
    fn signed_in(&self) -> String {
        let (id, nonce) = self.open();
        let answer = self.sign_in(&id, &nonce, "300:0.NA/TST");
        assert_eq!(answer.status, 200, "{}", answer.text());
        id
    }

    fn sign_in(&self, id: &str, nonce: &[u8], identity: &str) -> HttpAnswer {
        let signature = key().sign(DigestAlgorithm::SHA256, &[nonce, b"client nonce"]).unwrap();
        let body = session_proof(id, identity, "HS_PUBKEY", "SHA256", &signature);
        self.ask("PUT", "/api/sessions/this", "Content-Type: application/json\r\n", &body.to_string())
    }

    fn status(&self, id: &str) -> u16 {
        self.ask("GET", PROTECTED, &of_session(id), "").status
    }
}

fn key() -> PrivateKey {
    let record = hex(&fixture("servers.json")["keys"]["admin_rsa"]["handle_private_hex"]);
    PrivateKey::from_record(&record).unwrap()
}

#[test]
fn a_session_has_the_rights_of_the_key_that_signed_its_nonce() {
    let pair = pair();
    let id = pair.signed_in();
    assert_eq!(pair.status(&id), 200);
    let body = "[{\"index\": 1, \"type\": \"URL\", \"data\": \"https://example.org/s\"}]";
    let headers = format!("{}Content-Type: application/json\r\n", of_session(&id));
    let created = pair.ask("PUT", "/api/handles/TST/BY-SESSION", &headers, body);
    assert_eq!(created.status, 201, "{}", created.text());
    let shown = pair.ask("GET", "/api/sessions/this", &of_session(&id), "").json();
    assert_eq!((shown["authenticated"].as_bool(), shown["id"].as_str()), (Some(true), Some("300:0.NA/TST")));
    let audit = std::fs::read_to_string(pair.administration.config.audit.clone().unwrap()).unwrap();
    assert!(audit.contains("TST/BY-SESSION") && audit.contains("300:0.NA/TST"), "{audit}");
    assert!(!audit.contains(&id));
}

#[test]
fn any_key_of_a_handle_is_found_by_its_signature() {
    let pair = pair();
    let (id, nonce) = pair.open();
    assert_eq!(pair.sign_in(&id, &nonce, "0.NA/TST").json()["id"], "300:0.NA/TST");
    assert_eq!(pair.status(&id), 200);
}

#[test]
fn proofs_that_are_wrong_or_of_another_nonce_or_used_are_refused() {
    let pair = pair();
    let (id, nonce) = pair.open();
    for (nonce, identity) in [
        (&[7; 32][..], "300:0.NA/TST"),
        (&nonce[..31], "300:0.NA/TST"),
        (&nonce, "302:0.NA/TST"),
        (&nonce, "300:TST/NOBODY"),
        (&nonce, "300:20.500.99/ELSEWHERE"),
    ] {
        let answer = pair.sign_in(&id, nonce, identity);
        assert_eq!(answer.status, 401, "{identity}: {}", answer.text());
        assert_eq!(answer.json()["error"], "Identity not verified", "{identity}");
        assert!(answer.list("www-authenticate").contains(&format!("sessionId=\"{id}\"")));
    }
    assert_eq!(pair.sign_in(&id, &nonce, "300:0.NA/TST").status, 200);
    assert_eq!(pair.sign_in(&id, &nonce, "300:0.NA/TST").status, 401, "the nonce has been used");
    // No other client can use the signature either.
    let (other, _) = pair.open();
    assert_eq!(pair.sign_in(&other, &nonce, "300:0.NA/TST").status, 401);
    assert_eq!(pair.status(&other), 401);
}

#[test]
fn a_session_keeps_its_identity_and_gets_a_fresh_nonce() {
    let pair = pair();
    let (id, nonce) = pair.open();
    let first = pair.sign_in(&id, &nonce, "300:0.NA/TST").json();
    let (_, fresh) = session_of(&first);
    assert_ne!(fresh, nonce);
    let secret = |nonce: &[u8]| {
        let made = mac(DigestAlgorithm::HMAC_SHA256, SECRET, &[nonce, b"c"]).unwrap();
        let fields = format!(
            "Authorization: Handle sessionId=\"{id}\", id=\"301%3A0.NA/TST\", type=\"HS_SECKEY\", alg=\"HMAC-SHA256\", cnonce=\"{}\", signature=\"{}\"\r\n",
            BASE64.encode(b"c"),
            BASE64.encode(&made)
        );
        pair.ask("GET", PROTECTED, &fields, "")
    };
    let other = secret(&fresh);
    assert_eq!(
        (other.status, &other.json()["message"]),
        (401, &"Identity not verified".into()),
        "another identity"
    );
    assert_eq!(pair.sign_in(&id, &fresh, "300:0.NA/TST").status, 200, "the same one");
    assert_eq!(pair.status(&id), 200);
}

#[test]
fn sessions_end_and_are_nothing_over_plain_http() {
    let pair = pair();
    let id = pair.signed_in();
    let plain =
        format!("GET {PROTECTED} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}\r\n", of_session(&id));
    let answer = HttpAnswer::split(&exchange(pair.gateway.address(), plain.as_bytes()), false).unwrap().0;
    assert_eq!((answer.status, answer.header("www-authenticate")), (403, None));
    for method in ["POST", "GET", "PUT", "DELETE"] {
        let request = format!(
            "{method} /api/sessions/this HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}\r\n",
            of_session(&id)
        );
        let bytes = exchange(pair.gateway.address(), request.as_bytes());
        let answer = HttpAnswer::split(&bytes, false).unwrap().0;
        assert_eq!(
            (answer.status, &answer.json()["message"]),
            (403, &"Sessions need TLS".into()),
            "{method}"
        );
    }
    assert_eq!(pair.ask("DELETE", "/api/sessions/this", &of_session(&id), "").status, 204);
    assert_eq!(pair.status(&id), 401);
    assert_eq!(pair.ask("DELETE", "/api/sessions/this", &of_session(&id), "").status, 403);
    assert_eq!(pair.ask("GET", "/api/sessions/this", &of_session(&id), "").status, 403);
}

#[test]
fn sessions_end_with_the_one_behind_them() {
    let mut pair = pair();
    let id = pair.signed_in();
    pair.administration.config.listen = vec![pair.administration.address()];
    pair.administration.restart();
    let answer = pair.ask("GET", PROTECTED, &of_session(&id), "");
    assert_eq!(answer.status, 401);
    let offered = answer.list("www-authenticate");
    assert!(offered.starts_with("Handle sessionId=") && !offered.contains(&id), "{offered}");
    let (id, nonce) = pair.open();
    // The nonce may begin with bytes of before the restart, which the refusal makes known.
    let again = pair.sign_in(&id, &nonce, "300:0.NA/TST");
    let (id, nonce) = if again.status == 200 { (id, nonce) } else { pair.open() };
    assert!(again.status == 200 || pair.sign_in(&id, &nonce, "300:0.NA/TST").status == 200);
}

#[test]
fn a_session_ends_when_its_identity_loses_the_key() {
    let pair = pair();
    let record = hex(&fixture("servers.json")["keys"]["admin_rsa"]["handle_public_hex"]);
    let put = |index: i32, key: &[u8]| {
        let key = key.to_vec();
        let put = move |transaction: &mut Transaction<'_>| {
            let values = [Value::new(index, b"HS_PUBKEY", &key)];
            transaction.put(b"0.NA/TST", Values::build(values, &mut Vec::new()))
        };
        pair.administration.server().shared().service.store.change(put).unwrap();
    };
    let id = pair.signed_in();
    put(300, &record);
    assert_eq!(pair.status(&id), 200, "the same key");
    put(300, &hex(&fixture("servers.json")["keys"]["mirror"]["handle_public_hex"]));
    assert_eq!(pair.status(&id), 401, "another key");
    put(300, &record);
    assert_eq!(pair.status(&id), 401, "it has ended");
    let id = pair.signed_in();
    assert_eq!(pair.status(&id), 200);
    put(303, &record);
    assert_eq!(pair.status(&id), 401, "another index");
}

#[test]
fn sessions_expire_when_they_are_idle() {
    let pair = pair_with(|_| (), |config| config.sessions.idle_ms = 1000);
    let id = pair.signed_in();
    assert_eq!(pair.status(&id), 200);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(pair.status(&id), 401);
    let behind = pair_with(|config| config.callers.idle_ms = 1000, |_| ());
    let id = behind.signed_in();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(behind.status(&id), 401, "handle-admin has ended it");
}

/// Sessions of one identity.
const PER_IDENTITY: usize = 64;
/// Sessions without an identity of one source.
const UNPROVEN_PER_SOURCE: usize = 256;

#[test]
fn there_are_as_many_sessions_as_allowed() {
    let pair = pair_with(|_| (), |config| config.sessions.sessions = 2);
    let ids = [pair.signed_in(), pair.signed_in()];
    let (third, nonce) = pair.open();
    assert_eq!(pair.sign_in(&third, &nonce, "300:0.NA/TST").status, 401);
    let first = pair.open().0;
    for _ in 0..UNPROVEN_PER_SOURCE {
        pair.open();
    }
    assert_eq!(pair.ask("GET", "/api/sessions/this", &of_session(&first), "").status, 403, "displaced");
    assert_eq!(ids.map(|id| pair.status(&id)), [200, 200]);
    let of_one = pair_with(|_| (), |_| ());
    let ids: Vec<_> = (0..=PER_IDENTITY).map(|_| of_one.signed_in()).collect();
    let statuses: Vec<_> = ids.iter().map(|id| of_one.status(id)).collect();
    assert_eq!(statuses[0], 401, "the oldest of the identity");
    assert_eq!(statuses[1..], [200; PER_IDENTITY]);
    let (proven, _) = of_one.gateway.gateway.state().writing.sessions.counts();
    assert_eq!(proven, PER_IDENTITY);
    let limited = pair_with(|config| config.callers.sessions = 256, |_| ());
    let ids = [limited.signed_in(), limited.signed_in()];
    assert_eq!(ids.map(|id| limited.status(&id)), [401, 200], "one displaces the other");
}

#[test]
fn refusals_offer_both_schemes_and_the_server_proves_itself() {
    let pair = pair();
    let refused = pair.ask("GET", PROTECTED, "", "");
    let offered: Vec<_> =
        refused.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("www-authenticate")).collect();
    assert_eq!((refused.status, offered.len()), (401, 2), "{offered:?}");
    assert_eq!(offered[0].1, "Basic realm=\"handle\"");
    assert!(offered[1].1.starts_with("Handle sessionId=\""));
    let asked = json!({ "cnonce": BASE64.encode(b"prove yourself") }).to_string();
    let opened = pair.ask("POST", "/api/sessions", "Content-Type: application/json\r\n", &asked).json();
    let (id, nonce) = session_of(&opened);
    let server = hex(&fixture("servers.json")["keys"]["server"]["handle_public_hex"]);
    let server = PublicKey::from_record(&server).unwrap();
    let signature = BASE64.decode(opened["serverSignature"].as_str().unwrap().as_bytes()).unwrap();
    assert_eq!(opened["serverAlg"], "SHA-256");
    server.verify(DigestAlgorithm::SHA256, &[&nonce, b"prove yourself"], &signature).unwrap();
    let header = format!(
        "Authorization: Handle sessionId=\"{id}\", cnonce=\"{}\"\r\n",
        BASE64.encode(b"prove yourself")
    );
    let public = pair.ask("GET", "/api/handles/TST/HALF", &header, "");
    assert_eq!(public.status, 200);
    assert!(public.list("www-authenticate").contains("serverSignature="));
}

#[test]
fn the_server_signs_for_a_source_at_a_rate() {
    let pair = pair_with(|_| (), |config| config.proxies.trusted = vec!["127.0.0.1".to_owned()]);
    let asked = json!({ "cnonce": BASE64.encode(b"prove yourself") }).to_string();
    let json_headers = "Content-Type: application/json\r\n";
    let is_signed = |headers: &str| {
        let opened = pair.ask("POST", "/api/sessions", &format!("{json_headers}{headers}"), &asked);
        assert_eq!(opened.status, 201, "{}", opened.text());
        !opened.json()["serverSignature"].is_null()
    };
    let since = Instant::now();
    let signed = (0..600).filter(|_| is_signed("")).count();
    let most = 200 + usize::try_from(since.elapsed().as_millis()).unwrap() / 20 + 1;
    assert!((200..=most).contains(&signed), "{signed} signatures in {:?}", since.elapsed());
    // The request itself is answered, and another source gets its signature.
    assert!(is_signed("X-Forwarded-For: 192.0.2.7\r\n"));
}

#[test]
fn the_signature_of_the_server_proves_nobody() {
    let keys = &fixture("servers.json")["keys"];
    let public = |id: &str| hex(&keys[id]["handle_public_hex"]);
    let (server, own) = (public("server"), public("admin_rsa"));
    let pair = pair_with(
        move |config| {
            let store = Store::open(&config.store).unwrap();
            let put = move |transaction: &mut Transaction<'_>| {
                let values = [Value::new(1, b"HS_PUBKEY", &server), Value::new(2, b"HS_PUBKEY", &own)];
                transaction.put(b"TST/SERVER", Values::build(values, &mut Vec::new()))
            };
            store.change(put).unwrap();
        },
        |_| (),
    );
    let asked = json!({ "cnonce": BASE64.encode(b"c") }).to_string();
    for identity in ["1:TST/SERVER", "0:TST/SERVER"] {
        let opened = pair.ask("POST", "/api/sessions", "Content-Type: application/json\r\n", &asked).json();
        let body = json!({
            "sessionId": opened["sessionId"], "id": identity, "type": "HS_PUBKEY", "alg": "SHA256",
            "cnonce": BASE64.encode(b"c"), "signature": opened["serverSignature"],
        });
        let answer =
            pair.ask("PUT", "/api/sessions/this", "Content-Type: application/json\r\n", &body.to_string());
        assert_eq!(answer.status, 401, "{identity}: {}", answer.text());
    }
    let (id, nonce) = pair.open();
    assert_eq!(pair.sign_in(&id, &nonce, "0:TST/SERVER").json()["id"], "2:TST/SERVER");
}

#[test]
fn old_digests_count_only_if_they_are_allowed() {
    let made = |pair: &ServedPair| {
        let (id, nonce) = pair.open();
        let made = mac(DigestAlgorithm::MD5, SECRET, &[&nonce, b"c"]).unwrap();
        let body = json!({
            "sessionId": id, "id": "301:0.NA/TST", "type": "HS_SECKEY", "alg": "MD5",
            "cnonce": BASE64.encode(b"c"), "signature": BASE64.encode(&made),
        });
        pair.ask("PUT", "/api/sessions/this", "", &body.to_string())
    };
    let refused = made(&pair());
    assert_eq!(
        (refused.status, refused.json()["error"].as_str().unwrap().starts_with("Error parsing")),
        (401, true)
    );
    assert_eq!(made(&pair_with(|_| (), |config| config.sessions.md5 = true)).status, 200);
}

#[test]
fn basic_opens_a_session_without_the_secret_in_it() {
    let pair = pair();
    let basic = |secret: &str| {
        let text = BASE64.encode(format!("301%3A0.NA/TST:{secret}").as_bytes());
        pair.ask("POST", "/api/sessions", &format!("Authorization: Basic {text}\r\n"), "")
    };
    let good = basic("open sesame open");
    assert_eq!((good.status, good.json()["id"].as_str()), (201, Some("301:0.NA/TST")));
    assert_eq!(pair.status(&session_of(&good.json()).0), 200);
    let wrong = basic("open barley").json();
    assert_eq!((&wrong["error"], wrong.get("id")), (&Json::from("Identity not verified"), None));
}

#[test]
fn the_socket_gives_an_identity_only_for_a_proof() {
    let pair = pair();
    assert_eq!(pair.socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let ask = |request: CallerRequest<'_>| {
        let timeout = Duration::from_secs(30);
        let mut client = LocalClient::connect(&pair.socket, LocalKind::Callers, timeout).unwrap();
        client.send(0, |content| content.extend_from_slice(&request.encode())).unwrap();
        CallerReply::decode(&client.receive().unwrap()).unwrap()
    };
    let CallerReply::NonceStart { start, valid_ms } = ask(CallerRequest::NonceStart) else { panic!() };
    assert_eq!(valid_ms, 300_000);
    let nonce = [&start[..], &[1; 16]].concat();
    let source = IpAddr::from([192, 0, 2, 1]);
    let prove = |nonce: &[u8], auth_type: &[u8], signed_response: &[u8]| {
        let identity = Reference { handle: b"0.NA/TST", index: 300 };
        let proof = CallerProof { nonce, client_nonce: b"c", auth_type, identity, signed_response, source };
        ask(CallerRequest::Prove(proof))
    };
    let mut signed = Vec::new();
    let signature = key().sign(DigestAlgorithm::SHA256, &[&nonce, b"c"]).unwrap();
    let answer = handle_proto::wire::auth::SignedAnswer { algorithm: b"SHA-256", signature: &signature };
    answer.encode(&mut signed);
    let wrong = CallerReply::Refused(CallerRefusal::Wrong);
    for (auth_type, response) in [
        (&b"HS_PUBKEY"[..], &b""[..]),
        (b"HS_PUBKEY", &[0; 300]),
        (b"HS_SECKEY", &signed),
        (b"GATEWAY_SESSION", &[1; 48]),
        (b"", b""),
    ] {
        assert_eq!(prove(&nonce, auth_type, response), wrong);
    }
    let stale = CallerReply::Refused(CallerRefusal::Stale);
    assert_eq!(prove(&[1; 32], b"HS_PUBKEY", &signed), stale, "a nonce of our own");
    assert!(matches!(prove(&nonce, b"HS_PUBKEY", &signed), CallerReply::Proven { index: 300, .. }));
    assert_eq!(prove(&nonce, b"HS_PUBKEY", &signed), stale, "used");
    assert_eq!(ask(CallerRequest::Sign { nonce: &[1; 32], client_nonce: b"c", source }), stale);
}
