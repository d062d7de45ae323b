//! Wrong secret keys: a source that sends many of them waits, and nobody else does.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use data_encoding::BASE64;
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, ask_over_tls, serve_over_http, use_tls};
use handle_tests::vectors::VectorSource;
use tempfile::TempDir;

const PROTECTED: &str = "/api/handles/TST/HALF?publicOnly=false";
const RIGHT: &str = "open sesame open";

struct GuessedService {
    gateway: GatewayServer,
    _administration: AdminServer,
    _directory: TempDir,
}

/// A gateway that accepts two wrong keys at once for a handle from a source, and believes the test
/// about sources.
fn service() -> GuessedService {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("callers.sock");
    let administration = administer_with("root", |config| config.callers.socket = Some(socket.clone()));
    let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
        config.admin.address = Some(administration.address());
        config.admin.callers = Some(socket.clone());
        config.proxies.trusted = vec!["127.0.0.1".to_owned()];
        config.secret_guesses.burst_of_identity = 2;
        config.secret_guesses.per_minute_of_identity = 1;
        use_tls(config, directory.path());
    });
    GuessedService { gateway, _administration: administration, _directory: directory }
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
