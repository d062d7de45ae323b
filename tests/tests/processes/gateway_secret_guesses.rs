//! Wrong secret keys: a source that sends many of them waits, and no other source does.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use data_encoding::BASE64;
use handle_daemon::source_rates::RetryAfter;
use handle_gateway::refusal::HttpRefusal;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::auth::{ChallengeAnswer, SECRET_KEY, VerificationRequest};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags};
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, ask_over_tls, exchange_over_tls, get, post_request, serve_over_http,
    session_of, use_tls,
};
use handle_tests::vectors::VectorSource;
use tempfile::TempDir;

const PROTECTED: &str = "/api/handles/TST/HALF?publicOnly=false";
const RIGHT: &str = "open sesame open";

struct GuessedService {
    gateway: GatewayServer,
    administration: AdminServer,
    _directory: TempDir,
}

/// A gateway that accepts two wrong keys at once for a handle from a source, and believes the test
/// about sources.
fn service() -> GuessedService {
    service_with(|_| ())
}

fn service_with(change: impl FnOnce(&mut handle_gateway::Config)) -> GuessedService {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.socket");
    let administration = administer_with("root", |config| config.local.socket = Some(socket.clone()));
    let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
        config.admin.address = Some(administration.address());
        config.admin.socket = Some(socket.clone());
        config.proxies.trusted = vec!["127.0.0.1".to_owned()];
        config.secret_guesses.per_minute = 6;
        use_tls(config, directory.path());
        change(config);
    });
    GuessedService { gateway, administration, _directory: directory }
}

impl GuessedService {
    fn ask(&self, source: &str, method: &str, target: &str, headers: &str, body: &str) -> HttpAnswer {
        let headers = format!("X-Forwarded-For: {source}\r\n{headers}");
        ask_over_tls(self.gateway.address(), method, target, &headers, body)
    }

    /// Reads protected values with a secret key.
    fn read(&self, source: &str, identity: &str, secret: &str) -> HttpAnswer {
        let sent = BASE64.encode(format!("{}:{secret}", identity.replace(':', "%3A")).as_bytes());
        self.ask(source, "GET", PROTECTED, &format!("Authorization: Basic {sent}\r\n"), "")
    }

    /// Asks over plain HTTP.
    fn ask_plainly(&self, source: &str, target: &str) -> HttpAnswer {
        get(self.gateway.address(), target, &format!("X-Forwarded-For: {source}\r\n"))
    }

    fn counted(&self) -> (u64, u64) {
        let counters = &self.gateway.gateway.state().counters;
        (counters.secret_guesses.get(), counters.secret_guesses_refused.get())
    }
}

#[test]
fn a_source_with_wrong_keys_waits_and_others_with_the_identity_do_not() {
    let service = service();
    let (guesser, other) = ("192.0.2.1", "192.0.2.2");
    for _ in 0..2 {
        assert_eq!(service.read(guesser, "301:0.NA/TST", "wrong").status, 401);
    }
    for secret in ["wrong", RIGHT] {
        let refused = service.read(guesser, "301:0.na/tst", secret);
        assert_eq!(refused.status, 429, "{}", refused.text());
        let seconds: u32 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds), "{seconds} s");
        assert!(refused.text().contains("Too many wrong secret keys"), "{}", refused.text());
    }
    assert_eq!(service.counted(), (2, 2));
    assert_eq!(service.read(other, "301:0.NA/TST", RIGHT).status, 200, "the identity is not locked");
    assert_eq!(service.read(guesser, "300:10.5072/NONE", RIGHT).status, 403, "another handle");
    assert_eq!(service.ask(guesser, "GET", "/api/handles/TST/HALF", "", "").status, 200, "public values");
    let wrong_form = format!("Authorization: Basic {}\r\n", BASE64.encode(b"301%3A0.NA/TST:wrong"));
    for (source, status) in [(guesser, 429), (other, 201)] {
        let session = service.ask(source, "POST", "/api/sessions", &wrong_form, "");
        assert_eq!(session.status, status, "{}", session.text());
    }
    assert_eq!(service.counted(), (3, 3), "a session that is opened without its identity");
}

#[test]
fn right_keys_are_not_counted() {
    let service = service();
    for _ in 0..10 {
        assert_eq!(service.read("192.0.2.1", "301:0.NA/TST", RIGHT).status, 200);
    }
    assert_eq!(service.counted(), (0, 0));
}

#[test]
fn the_form_of_the_administration_pages_has_the_same_limit() {
    let service = service();
    let form = |secret: &str| {
        let body = format!("id=301%3A0.NA%2FTST&secret={}", secret.replace(' ', "+"));
        let headers = "Content-Type: application/x-www-form-urlencoded\r\nOrigin: https://localhost\r\n";
        service.ask("192.0.2.1", "POST", "/admin/sign-in", headers, &body)
    };
    let statuses: Vec<u16> = (0..3).map(|_| form("wrong").status).collect();
    assert_eq!(statuses, [403, 403, 429]);
    let refused = form(RIGHT);
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (429, true));
    assert_eq!(service.counted(), (2, 2));
}

/// Answers up to the first refusal, and the refusal.
fn until_refused(mut ask: impl FnMut() -> HttpAnswer) -> (usize, HttpAnswer) {
    let answers: Vec<HttpAnswer> = (0..5).map(|_| ask()).collect();
    let at = answers.iter().position(|answer| answer.status == 429).expect("a refusal");
    (at, answers.into_iter().nth(at).unwrap())
}

/// Whoever asks whether a MAC is made with a secret guesses the secret.
#[test]
fn verifications_have_the_same_limit_over_plain_http() {
    let service = service();
    let query = "nonce=AAAA&cnonce=AAAA&alg=HMAC-SHA256&signature=AAAA";
    let target = format!("/api/verifications/301%3A0.NA/TST?{query}");
    let (count, refused) = until_refused(|| service.ask_plainly("192.0.2.1", &target));
    assert_eq!(count, 2, "{}", refused.text());
    let expected = HttpRefusal::TooManySecrets(RetryAfter { seconds: 1 }).message();
    assert!(refused.text().contains(expected), "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    let other = service.ask_plainly("192.0.2.2", &target);
    assert_eq!((other.status, other.json()["isValid"].as_bool()), (200, Some(false)), "{}", other.text());
    assert_eq!(service.read("192.0.2.1", "301:0.NA/TST", RIGHT).status, 429, "the limit is of the outcome");
}

/// The scheme `Handle` with a MAC of a secret, in a header and in a body.
#[test]
fn proofs_of_the_scheme_handle_have_the_same_limit() {
    let service = service();
    let fields = |source: &str| {
        let session = session_of(&service.ask(source, "POST", "/api/sessions", "", "").json());
        [
            ("sessionId", session.0),
            ("id", "301:0.NA/TST".to_owned()),
            ("type", "HS_SECKEY".to_owned()),
            ("cnonce", "AAAA".to_owned()),
            ("alg", "HMAC-SHA256".to_owned()),
            ("signature", BASE64.encode(&[1; 32])),
        ]
    };
    let (count, _) = until_refused(|| {
        let list: Vec<String> =
            fields("192.0.2.1").iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let header = format!("Authorization: Handle {}\r\n", list.join(", "));
        service.ask("192.0.2.1", "GET", PROTECTED, &header, "")
    });
    assert_eq!(count, 2);
    let (count, _) = until_refused(|| {
        let json: serde_json::Map<String, serde_json::Value> =
            fields("192.0.2.3").into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let body = serde_json::Value::from(json).to_string();
        let header = "Content-Type: application/json\r\n";
        service.ask("192.0.2.3", "PUT", "/api/sessions/this", header, &body)
    });
    assert_eq!(count, 2);
    assert_eq!(service.counted().0, 4);
    assert_eq!(service.read("192.0.2.2", "301:0.NA/TST", RIGHT).status, 200, "another source");
}

/// Messages of the handle protocol over HTTP, which are passed on to `handle-admin`.
#[test]
fn native_messages_over_http_have_the_same_limit() {
    let service = service();
    let identity = Reference { handle: b"0.NA/TST", index: 301 };
    let digest = RequestDigest { algorithm: DigestAlgorithm::SHA1, digest: &[1; 20] };
    let answer = [&[3][..], &[0; 32]].concat();
    let question = VerificationRequest { identity, nonce: &[9; 16], digest, signed_response: &answer };
    let send = |source: &str, request: &Request<'_>| {
        let header = Header::request(OpCode::RESERVED, OpFlags::PLAIN_REQUEST, 0);
        let message = MessageBuf::request(&Envelope::request(1), &header, request).unsigned().unwrap();
        let headers = format!(
            "X-Forwarded-For: {source}\r\nContent-Type: application/x-hdl-message\r\nAccept: application/x-hdl-message\r\n"
        );
        let bytes = exchange_over_tls(service.gateway.address(), &post_request("/%2F", &headers, &message));
        HttpAnswer::split(&bytes, false).unwrap().0
    };
    let (count, _) = until_refused(|| send("192.0.2.1", &Request::VerifyChallenge(question)));
    assert_eq!(count, 2);
    let proof = ChallengeAnswer { auth_type: SECRET_KEY, identity, signed_response: &answer };
    assert_eq!(send("192.0.2.1", &Request::AnswerChallenge(proof)).status, 429);
    assert_eq!(send("192.0.2.2", &Request::VerifyChallenge(question)).status, 200, "another source");
}

/// Without a limit of the gateway, `handle-admin` has its own by the source that the gateway names.
#[test]
fn handle_admin_limits_the_clients_of_a_gateway_by_their_own_sources() {
    let service = service_with(|config| config.secret_guesses.per_minute = 0);
    let wrong = format!("Authorization: Basic {}\r\n", BASE64.encode(b"301%3A0.NA/TST:wrong"));
    let open =
        |source: &str| service.ask(source, "POST", "/api/sessions", &wrong, "").json()["error"].clone();
    let errors: Vec<_> = (0..22).map(|_| open("192.0.2.1")).collect();
    assert!(errors[..20].iter().all(|error| error == "Identity not verified"), "{errors:?}");
    assert!(errors[20..].iter().all(|error| error == "Identity not verified at the moment"), "{errors:?}");
    assert_eq!(open("192.0.2.2"), "Identity not verified", "another source");
    let counters = &service.administration.server().shared().service.counters;
    assert_eq!((counters.secret_guesses.get(), counters.secret_guesses_refused.get()), (21, 2));
}
