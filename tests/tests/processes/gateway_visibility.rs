//! Reading one's own changes through `handle-gateway`: a change that is answered is visible.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::Config;
use handle_proto::Value;
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, exchange_over_tls, get, serve_over_http, use_tls,
};
use handle_tests::process::until;
use handle_tests::upstream_server::UpstreamServer;
use handle_tests::vectors::VectorSource;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// `301:0.NA/TST`, which has every right.
const ADMINISTRATOR: &str = "Authorization: Basic MzAxJTNBMC5OQS9UU1Q6b3BlbiBzZXNhbWUgb3Blbg==\r\n";

/// A gateway over the set that its administration service publishes.
struct PublishedPair {
    gateway: GatewayServer,
    admin: AdminServer,
    _directory: TempDir,
}

impl PublishedPair {
    fn start(change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let set = directory.path().join("set");
        std::fs::create_dir(&set).unwrap();
        let admin = administer_with("root", |config| {
            config.administrators.server.push("301:0.NA/TST".to_owned());
            config.publish.directory = Some(set.clone());
            config.local.socket = Some(directory.path().join("admin.socket"));
        });
        until("a set is published", || set.join("MANIFEST").exists());
        let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
            config.snapshot = Some(set);
            config.admin.address = Some(admin.address());
            config.admin.socket = Some(directory.path().join("admin.socket"));
            config.admin.visible_ms = 10_000;
            use_tls(config, directory.path());
            change(config);
        });
        Self { gateway, admin, _directory: directory }
    }

    fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    fn not_visible(&self) -> u64 {
        self.gateway.gateway.state().counters.changes_not_visible.get()
    }

    fn put(&self, name: &str, target: &str) -> HttpAnswer {
        ask(self.address(), "PUT", name, &body_of(target))
    }

    /// The URL of a record, as anybody reads it.
    fn url(&self, name: &str) -> Option<String> {
        let answer = get(self.address(), &format!("/api/handles/TST/{name}?index=1"), "");
        answer.json()["values"][0]["data"]["value"].as_str().map(str::to_owned)
    }

    /// Has the publisher stop.
    fn hold(&self) {
        let publisher = self.admin.server().shared().publisher.as_ref().unwrap();
        publisher.command("hold test".parse().unwrap()).unwrap();
    }
}

fn body_of(target: &str) -> String {
    let administrator = json!({ "handle": "0.NA/TST", "index": 301, "permissions": "111111111111" });
    json!([
        { "index": 1, "type": "URL", "data": target },
        { "index": 100, "type": "HS_ADMIN", "data": { "format": "admin", "value": administrator } },
    ])
    .to_string()
}

fn ask(address: SocketAddr, method: &str, name: &str, body: &str) -> HttpAnswer {
    let request = format!(
        "{method} /api/handles/TST/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{ADMINISTRATOR}\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    HttpAnswer::split(&exchange_over_tls(address, request.as_bytes()), false).unwrap().0
}

#[test]
fn a_change_that_is_answered_is_read_at_once() {
    let pair = PublishedPair::start(|_| ());
    for at in 0..200 {
        let (name, target) = (format!("seen-{}", at / 4), format!("https://example.org/{at}"));
        match at % 4 {
            3 => {
                let answer = ask(pair.address(), "DELETE", &name, "");
                assert_eq!(answer.status, 200, "{at}: {}", answer.text());
                assert_eq!(get(pair.address(), &format!("/api/handles/TST/{name}"), "").status, 404, "{at}");
            }
            changed => {
                let answer = pair.put(&name, &target);
                assert_eq!(answer.status, if changed == 0 { 201 } else { 200 }, "{at}: {}", answer.text());
                assert_eq!(pair.url(&name), Some(target), "{at}");
            }
        }
    }
    assert_eq!(pair.not_visible(), 0);
    let answer = ask(pair.address(), "PUT", "minted-?mintNewSuffix=true", &body_of("https://example.org/"));
    let minted = answer.json()["handle"].as_str().unwrap().to_owned();
    assert_eq!(get(pair.address(), &format!("/api/handles/{minted}"), "").status, 200, "{minted}");
}

#[test]
fn the_answer_to_a_batch_ends_when_its_changes_are_visible() {
    let pair = PublishedPair::start(|_| ());
    for round in 0..20 {
        let line = |at: usize| {
            json!({ "handle": format!("TST/batch-{round}-{at}"), "values": [{ "index": 1, "type": "URL",
                "data": "https://example.org/" }] })
            .to_string()
                + "\n"
        };
        let body: String = (0..50).map(line).collect();
        let request = format!(
            "POST /api/batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{ADMINISTRATOR}\
             Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let bytes = exchange_over_tls(pair.address(), request.as_bytes());
        let answer = HttpAnswer::split(&bytes, false).unwrap().0;
        assert_eq!(answer.text().matches("\"responseCode\":1,").count(), 50, "{}", answer.text());
        for at in [0, 49] {
            assert!(pair.url(&format!("batch-{round}-{at}")).is_some(), "{round}: {at}");
        }
    }
    assert_eq!(pair.not_visible(), 0);
}

#[test]
fn homing_a_prefix_is_visible_when_it_is_answered() {
    let pair = PublishedPair::start(|_| ());
    let home = |method: &str| {
        let request = format!(
            "{method} /api/prefixes?prefix=0.NA/10.777 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             {ADMINISTRATOR}Content-Length: 0\r\n\r\n"
        );
        HttpAnswer::split(&exchange_over_tls(pair.address(), request.as_bytes()), false).unwrap().0.status
    };
    for _ in 0..5 {
        assert_eq!(home("POST"), 200);
        assert_eq!(get(pair.address(), "/api/handles/10.777/x", "").json()["responseCode"], 100);
        assert_eq!(home("DELETE"), 200);
        assert_eq!(get(pair.address(), "/api/handles/10.777/x", "").json()["responseCode"], 301);
    }
}

#[test]
fn a_change_is_answered_after_the_time_although_no_set_has_it() {
    let pair = PublishedPair::start(|config| config.admin.visible_ms = 300);
    pair.hold();
    let began = Instant::now();
    assert_eq!(pair.put("late", "https://example.org/").status, 201);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(300) && waited < Duration::from_secs(5), "{waited:?}");
    assert_eq!((pair.url("late"), pair.not_visible()), (None, 1));
    // Other requests do not wait: the one worker serves them meanwhile.
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| pair.put("late-too", "https://example.org/"));
        let began = Instant::now();
        let count = (0..).take_while(|_| began.elapsed() < Duration::from_millis(200)).filter(|_| {
            assert_eq!(get(pair.address(), "/api/handles/TST/late", "").status, 404);
            true
        });
        assert!(count.count() > 3);
        assert_eq!(changing.join().unwrap().status, 201);
    });
}

#[test]
fn changes_do_not_wait_if_that_is_off() {
    let pair = PublishedPair::start(|config| config.admin.visible_ms = 0);
    pair.hold();
    let began = Instant::now();
    assert_eq!(pair.put("now", "https://example.org/").status, 201);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(pair.not_visible(), 0);
}

#[test]
fn as_many_answers_wait_as_allowed_and_the_next_change_is_answered_at_once() {
    // Four answers of one source may wait for each request at a time.
    let pair = PublishedPair::start(|config| config.admin.requests = 1);
    pair.hold();
    std::thread::scope(|scope| {
        let waits = || pair.gateway.gateway.state().writing.admin.as_ref().unwrap().visible_waits().count();
        let waiting = [1, 2, 3, 4].map(|count| {
            let pair = &pair;
            let answer =
                scope.spawn(move || pair.put(&format!("waits-{count}"), "https://example.org/").status);
            until("it waits", || waits() == count);
            answer
        });
        let began = Instant::now();
        assert_eq!(pair.put("next", "https://example.org/").status, 201);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!((pair.not_visible(), waits()), (1, 4));
        for answer in waiting {
            assert_eq!(answer.join().unwrap(), 201);
        }
    });
}

#[test]
fn a_changed_record_leaves_the_cache_of_other_services() {
    let directory = tempfile::tempdir().unwrap();
    let admin = administer_with("root", |_| ());
    let server = UpstreamServer::start();
    let (mut config, site) = (handle_tests::gateway_server::config(), server.site(directory.path()));
    config.upstream.resolver_site = Some(site);
    config.admin.address = Some(admin.address());
    config.admin.visible_ms = 300;
    use_tls(&mut config, directory.path());
    let gateway = handle_gateway::Gateway::start(&config).unwrap();
    let address = gateway.addresses()[0];
    let shown = || get(address, "/api/handles/TST/kept", "").json()["values"][0]["data"]["value"].clone();
    let url = |target: &'static str| Value::new(1, b"URL", target.as_bytes());
    server.set("TST/kept", &[url("https://one.example/")]);
    assert_eq!(shown(), "https://one.example/");
    assert_eq!(ask(address, "PUT", "kept", &body_of("https://two.example/")).status, 201);
    assert_eq!(shown(), "https://one.example/", "the other service does not have it yet");
    server.set("TST/kept", &[url("https://two.example/")]);
    // The old answer is cached once more, but not for long.
    until("the cache forgets the old answer", || shown() == "https://two.example/");
    server.set("TST/kept", &[url("https://three.example/")]);
    assert_eq!(shown(), "https://two.example/", "from the cache");
    assert_eq!(ask(address, "PUT", "kept", &body_of("https://three.example/")).status, 200);
    assert_eq!(shown(), "https://three.example/", "at once");
}
