//! The scheme `Handle` of `Authorization` from outside: each kind of proof, and the answer to each
//! fault.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use data_encoding::BASE64;
use handle_auth::PrivateKey;
use handle_auth::digest::mac;
use handle_auth::kdf::pbkdf2_sha1;
use handle_gateway::Config;
use handle_proto::code::DigestAlgorithm;
use handle_proto::{Value, Values};
use handle_store::{Store, Transaction};
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, described, exchange, exchange_over_tls, serve_over_http, use_tls,
};
use handle_tests::vectors::{VectorSource, fixture, hex};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

const SECRET: &[u8] = b"open sesame open";
/// The handle of an identity whose name is not ASCII.
const NAME: &str = "TST/ÜBER";
const RESTRICTED: &str = "/api/handles/TST/HALF?publicOnly=false";

/// A gateway with its administration service, which knows the keys of the tests.
struct ServedPair {
    gateway: GatewayServer,
    _administration: AdminServer,
    _directory: TempDir,
}

/// A session without an identity.
struct OpenSession {
    id: String,
    nonce: Vec<u8>,
}

/// The fields of a proof.
type ProofFields = Vec<(&'static str, String)>;

impl ServedPair {
    fn start(change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("admin.socket");
        let administration = administer_with("root", |config| {
            config.local.socket = Some(socket.clone());
            let keys = &fixture("servers.json")["keys"];
            let [small, large] = ["admin_dsa", "admin_dsa2048"].map(|id| hex(&keys[id]["handle_public_hex"]));
            let store = Store::open(&config.store).unwrap();
            let put = move |transaction: &mut Transaction<'_>| {
                let values = [
                    Value::new(1, b"HS_SECKEY", SECRET),
                    Value::new(2, b"HS_PUBKEY", &small),
                    Value::new(3, b"HS_PUBKEY", &large),
                ];
                transaction.put(NAME.as_bytes(), Values::build(values, &mut Vec::new()))
            };
            store.change(put).unwrap();
        });
        let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
            config.admin.address = Some(administration.address());
            config.admin.socket = Some(socket.clone());
            use_tls(config, directory.path());
            change(config);
        });
        Self { gateway, _administration: administration, _directory: directory }
    }

    fn ask(&self, method: &str, target: &str, headers: &str, body: &str) -> HttpAnswer {
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        described(method, target, &exchange_over_tls(self.gateway.address(), request.as_bytes()))
    }

    /// The answer over plain HTTP.
    fn ask_plainly(&self, method: &str, target: &str, headers: &str) -> HttpAnswer {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        let request = format!("{head}{headers}Content-Length: 0\r\n\r\n");
        described(method, target, &exchange(self.gateway.address(), request.as_bytes()))
    }

    fn open(&self) -> OpenSession {
        let answer = self.ask("POST", "/api/sessions", "", "");
        assert_eq!((answer.status, answer.header("location")), (201, Some("/api/sessions/this")));
        let json = answer.json();
        let nonce = BASE64.decode(json["nonce"].as_str().unwrap().as_bytes()).unwrap();
        assert!(nonce.len() >= 16);
        OpenSession { id: json["sessionId"].as_str().unwrap().to_owned(), nonce }
    }

    /// Sends a proof in the header of an ordinary request.
    fn prove_in_header(&self, fields: &[(&str, String)]) -> HttpAnswer {
        self.ask("GET", RESTRICTED, &header(fields), "")
    }

    /// Sends a proof in the body of a request for the session.
    fn prove_in_body(&self, fields: &[(&str, String)]) -> HttpAnswer {
        let body: Json =
            fields.iter().map(|(name, text)| ((*name).to_owned(), Json::from(&**text))).collect();
        self.ask("PUT", "/api/sessions/this", "Content-Type: application/json\r\n", &body.to_string())
    }

    fn sha1_proofs(&self) -> u64 {
        self.gateway.gateway.state().counters.sha1_proofs.get()
    }
}

fn header(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, text)| format!("{name}=\"{text}\"")).collect();
    format!("Authorization: Handle {}\r\n", fields.join(", "))
}

fn private_key(id: &str) -> PrivateKey {
    let record = hex(&fixture("servers.json")["keys"][id]["handle_private_hex"]);
    PrivateKey::from_record(&record).unwrap()
}

/// A proof with this algorithm, for the identity 300 or 301 of 0.NA/TST.
fn proof(session: &OpenSession, kind: &str, algorithm: &str, client_nonce: &[u8]) -> ProofFields {
    let covered = [&session.nonce[..], client_nonce];
    let digest = |name: &str| DigestAlgorithm::from_identifier(name.to_ascii_uppercase().as_bytes()).unwrap();
    let mut derived = Vec::new();
    let (id, signature) = match (kind, algorithm) {
        ("HS_PUBKEY", _) => {
            ("300:0.NA/TST", private_key("admin_rsa").sign(digest(algorithm), &covered).unwrap())
        }
        (_, "PBKDF2-HMAC-SHA1") => {
            derived = vec![
                ("salt", BASE64.encode(b"salt")),
                ("iterations", "500".into()),
                ("length", "160".into()),
            ];
            let key = pbkdf2_sha1(SECRET, b"salt", 500, 20);
            ("301:0.NA/TST", mac(DigestAlgorithm::HMAC_SHA1, &key, &covered).unwrap().to_vec())
        }
        _ => ("301:0.NA/TST", mac(digest(algorithm), SECRET, &covered).unwrap().to_vec()),
    };
    let mut fields = vec![
        ("sessionId", session.id.clone()),
        ("id", id.to_owned()),
        ("type", kind.to_owned()),
        ("cnonce", BASE64.encode(client_nonce)),
        ("alg", algorithm.to_owned()),
        ("signature", BASE64.encode(&signature)),
    ];
    fields.extend(derived);
    fields
}

const ALGORITHMS: [(&str, &str); 12] = [
    ("HS_PUBKEY", "SHA1"),
    ("HS_PUBKEY", "SHA-1"),
    ("HS_PUBKEY", "SHA256"),
    ("HS_PUBKEY", "SHA-256"),
    ("HS_PUBKEY", "sha-256"),
    ("HS_SECKEY", "SHA1"),
    ("HS_SECKEY", "SHA256"),
    ("HS_SECKEY", "sha256"),
    ("HS_SECKEY", "HMAC-SHA1"),
    ("HS_SECKEY", "HMAC-SHA256"),
    ("HS_SECKEY", "hmac-sha256"),
    ("HS_SECKEY", "PBKDF2-HMAC-SHA1"),
];

#[test]
fn each_algorithm_proves_an_identity_in_a_header_and_in_a_body() {
    let pair = ServedPair::start(|_| ());
    for (kind, algorithm) in ALGORITHMS {
        for client_nonce in [&b"sixteen bytes ok"[..], b"", &[7; 300]] {
            let len = client_nonce.len();
            let session = pair.open();
            let mut fields = proof(&session, kind, algorithm, client_nonce);
            // In any order.
            fields.rotate_left(len % 5);
            let answer = pair.prove_in_header(&fields);
            assert_eq!(answer.status, 200, "{kind} {algorithm} {len}: {}", answer.text());
            // Later requests name the session only.
            let named = header(&[("sessionId", session.id)]);
            assert_eq!(pair.ask("GET", RESTRICTED, &named, "").status, 200, "{kind} {algorithm}");
            let answer = pair.prove_in_body(&proof(&pair.open(), kind, algorithm, client_nonce));
            assert_eq!(
                (answer.status, &answer.json()["authenticated"]),
                (200, &json!(true)),
                "{algorithm} {len}"
            );
        }
    }
    // Three of the twelve, each six times.
    assert_eq!(pair.sha1_proofs(), 18);
}

#[test]
fn sha1_is_refused_if_the_settings_say_so() {
    let pair = ServedPair::start(|config| config.sessions.sha1 = false);
    for (kind, algorithm) in ALGORITHMS {
        let is_refused = matches!(algorithm, "SHA1" | "SHA-1");
        let answer = pair.prove_in_body(&proof(&pair.open(), kind, algorithm, b"c"));
        assert_eq!(answer.status, if is_refused { 401 } else { 200 }, "{kind} {algorithm}");
        if is_refused {
            assert_eq!(answer.json()["error"], "Error parsing Authorization: Handle");
        }
    }
    assert_eq!(pair.sha1_proofs(), 0);
}

#[test]
fn identities_have_names_in_any_script_and_keys_of_dsa() {
    let pair = ServedPair::start(|_| ());
    let encoded: String = NAME.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for (index, key, algorithm) in
        [(2, "admin_dsa", "SHA1"), (3, "admin_dsa2048", "SHA1"), (3, "admin_dsa2048", "SHA256")]
    {
        let digest = DigestAlgorithm::from_identifier(algorithm.as_bytes()).unwrap();
        // In a header the name is percent-encoded, in JSON it is not.
        for (name, in_header) in [(&*encoded, true), (NAME, false)] {
            let session = pair.open();
            let signature = private_key(key).sign(digest, &[&session.nonce, b"c"]).unwrap();
            let fields = [
                ("sessionId", session.id.clone()),
                ("id", format!("{index}:{name}")),
                ("type", "HS_PUBKEY".to_owned()),
                ("cnonce", BASE64.encode(b"c")),
                ("alg", algorithm.to_owned()),
                ("signature", BASE64.encode(&signature)),
            ];
            let answer = match in_header {
                true => pair.ask("GET", "/api/handles/TST/HALF?publicOnly=true", &header(&fields), ""),
                false => pair.prove_in_body(&fields),
            };
            assert_eq!(answer.status, 200, "{key} {algorithm}: {}", answer.text());
            let shown =
                pair.ask("GET", "/api/sessions/this", &header(&[("sessionId", session.id)]), "").json();
            assert_eq!(shown["id"], format!("{index}:{NAME}"), "{key} {algorithm} {shown}");
        }
    }
}

#[test]
fn each_fault_of_a_proof_has_its_text() {
    let pair = ServedPair::start(|_| ());
    let good = |session: &OpenSession| proof(session, "HS_SECKEY", "HMAC-SHA256", b"c");
    let with = |session: &OpenSession, name: &'static str, text: &str| {
        let mut fields = good(session);
        fields.iter_mut().filter(|field| field.0 == name).for_each(|field| field.1 = text.to_owned());
        fields
    };
    let not_verified = "Identity not verified";
    let missing = "Missing fields in authentication data";
    let malformed = "Error parsing Authorization: Handle";
    let wrong = BASE64.encode(&[0; 32]);
    let mut cases: Vec<(ProofFields, OpenSession, &str)> = Vec::new();
    for (name, text, error) in [
        ("signature", &*wrong, not_verified),
        ("id", "301:TST/NOBODY", not_verified),
        ("id", "302:0.NA/TST", not_verified),
        ("alg", "SHA-512", malformed),
        ("alg", "MD5", malformed),
        ("alg", "", malformed),
        ("type", "HS_CERT", malformed),
        ("signature", "no base64!", malformed),
        ("id", "301:", malformed),
    ] {
        let session = pair.open();
        cases.push((with(&session, name, text), session, error));
    }
    for name in ["id", "type", "cnonce", "alg", "signature"] {
        let session = pair.open();
        let mut fields = good(&session);
        fields.retain(|field| field.0 != name);
        cases.push((fields, session, missing));
    }
    for name in ["salt", "iterations", "length"] {
        let session = pair.open();
        let mut fields = proof(&session, "HS_SECKEY", "PBKDF2-HMAC-SHA1", b"c");
        fields.retain(|field| field.0 != name);
        cases.push((fields, session, missing));
    }
    for (fields, session, error) in &cases {
        let answer = pair.prove_in_header(fields);
        assert_eq!((answer.status, &answer.json()["message"]), (401, &(*error).into()), "{fields:?}");
        let challenge = answer.list("www-authenticate");
        // The challenge of the same session, and only of this scheme.
        let start = format!("Handle sessionId=\"{}\", nonce=", session.id);
        assert!(
            challenge.starts_with(&start) && challenge.contains(&format!("error=\"{error}\"")),
            "{challenge}"
        );
        let answer = pair.prove_in_body(fields);
        assert_eq!((answer.status, &answer.json()["error"]), (401, &json!(error)), "{fields:?}");
        assert_eq!(answer.json()["sessionId"], *session.id);
        assert!(answer.list("www-authenticate").starts_with(&start));
    }
}

#[test]
fn an_unknown_session_is_answered_with_another_one() {
    let pair = ServedPair::start(|_| ());
    let ended = pair.open();
    assert_eq!(
        pair.ask("DELETE", "/api/sessions/this", &header(&[("sessionId", ended.id.clone())]), "").status,
        204
    );
    for id in [ended.id.as_str(), "nope", ""] {
        let named = header(&[("sessionId", id.to_owned())]);
        let answer = pair.ask("GET", RESTRICTED, &named, "");
        let message = "Unknown or ended session";
        assert_eq!((answer.status, &answer.json()["message"]), (401, &message.into()), "{id}");
        let challenge = answer.list("www-authenticate");
        let is_other =
            challenge.starts_with("Handle sessionId=\"") && (id.is_empty() || !challenge.contains(id));
        assert!(is_other && !challenge.contains("error="), "{id}: {challenge}");
        // The session that is offered is one.
        let offered = challenge.split('"').nth(1).unwrap().to_owned();
        let shown = pair.ask("GET", "/api/sessions/this", &header(&[("sessionId", offered)]), "");
        assert_eq!(shown.status, 200);
        for method in ["GET", "DELETE"] {
            let answer = pair.ask(method, "/api/sessions/this", &named, "");
            assert_eq!((answer.status, &answer.json()["message"]), (403, &message.into()), "{method} {id}");
        }
    }
    let without = pair.ask("GET", "/api/sessions/this", "", "");
    assert_eq!((without.status, without.json()), (200, json!({ "authenticated": false })));
}

#[test]
fn the_work_of_a_derived_key_is_bounded() {
    let pair = ServedPair::start(|_| ());
    for (iterations, length) in
        [("2147483647", "160"), ("1000001", "160"), ("0", "160"), ("500", "4294967288"), ("500", "8")]
    {
        let session = pair.open();
        let mut fields = proof(&session, "HS_SECKEY", "PBKDF2-HMAC-SHA1", b"c");
        for (name, text) in [("iterations", iterations), ("length", length)] {
            fields.iter_mut().filter(|field| field.0 == name).for_each(|field| field.1 = text.to_owned());
        }
        let since = std::time::Instant::now();
        let answer = pair.prove_in_body(&fields);
        assert_eq!(answer.status, 401, "{iterations} {length}: {}", answer.text());
        assert!(since.elapsed().as_secs() < 5, "{iterations} {length}: {:?}", since.elapsed());
    }
}

#[test]
fn a_challenge_is_two_headers_and_plain_http_gets_none() {
    let pair = ServedPair::start(|_| ());
    let challenges = |answer: &HttpAnswer| -> Vec<String> {
        let all = answer.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("www-authenticate"));
        all.map(|(_, text)| text.split_whitespace().next().unwrap().to_owned()).collect()
    };
    let refused = pair.ask("GET", RESTRICTED, "", "");
    assert_eq!((refused.status, refused.json()["responseCode"].as_i64()), (401, Some(402)));
    assert_eq!(challenges(&refused), ["Basic", "Handle"]);
    let session = pair.open();
    let named = header(&[("sessionId", session.id.clone())]);
    assert_eq!(challenges(&pair.ask("GET", RESTRICTED, &named, "")), ["Handle"]);
    // A proof over plain HTTP is ignored, and so is an identity that was proven over TLS.
    let proven = pair.prove_in_body(&proof(&session, "HS_SECKEY", "HMAC-SHA256", b"c"));
    assert_eq!(proven.status, 200);
    let answer = pair.ask_plainly("GET", RESTRICTED, &named);
    assert_eq!((answer.status, answer.json()["responseCode"].as_i64()), (403, Some(402)));
    assert!(challenges(&answer).is_empty());
    assert_eq!(pair.ask_plainly("GET", "/api/handles/TST/HALF", &named).status, 200);
    for (method, target) in [
        ("POST", "/api/sessions"),
        ("GET", "/api/sessions/this"),
        ("PUT", "/api/sessions/this"),
        ("DELETE", "/api/sessions/this"),
    ] {
        let answer = pair.ask_plainly(method, target, &named);
        assert_eq!(
            (answer.status, &answer.json()["message"]),
            (403, &"Sessions need TLS".into()),
            "{method}"
        );
    }
}

#[test]
fn basic_credentials_open_a_session_and_give_an_open_one_an_identity() {
    let pair = ServedPair::start(|_| ());
    let basic = |secret: &str| {
        let text = BASE64.encode(format!("301%3A0.NA/TST:{secret}").as_bytes());
        format!("Authorization: Basic {text}\r\n")
    };
    let good = basic("open sesame open");
    let opened = pair.ask("POST", "/api/sessions", &good, "");
    let json = opened.json();
    assert_eq!(
        (opened.status, &json["authenticated"], &json["id"]),
        (201, &json!(true), &json!("301:0.NA/TST"))
    );
    let wrong = pair.ask("POST", "/api/sessions", &basic("wrong"), "");
    let json = wrong.json();
    assert_eq!((wrong.status, &json["error"]), (201, &json!("Identity not verified")));
    assert!(json.get("id").is_none() && json.get("authenticated").is_none(), "{json}");
    // The session that was opened for the wrong secret, with the right one.
    let body = json!({ "sessionId": json["sessionId"] }).to_string();
    let put = |headers: &str| pair.ask("PUT", "/api/sessions/this", headers, &body);
    let refused = put(&basic("wrong"));
    assert_eq!((refused.status, &refused.json()["error"]), (401, &json!("Identity not verified")));
    let signed = put(&good);
    assert_eq!((signed.status, &signed.json()["id"]), (200, &json!("301:0.NA/TST")));
    // A client nonce gets the signature of the server.
    let cnonce = json!({ "cnonce": BASE64.encode(b"") }).to_string();
    let opened = pair.ask("POST", "/api/sessions", "Content-Type: application/json\r\n", &cnonce).json();
    assert!(opened["serverSignature"].is_string() && opened["serverAlg"] == "SHA-256", "{opened}");
    let fields =
        [("sessionId", opened["sessionId"].as_str().unwrap().to_owned()), ("cnonce", BASE64.encode(b"x"))];
    let shown = pair.ask("GET", "/api/sessions/this", &header(&fields), "").json();
    assert!(shown["serverSignature"].is_string() && shown.get("authenticated").is_none(), "{shown}");
}
