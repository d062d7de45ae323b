//! `handle-gateway` and the services that it asks: what it keeps, for how long, and what happens
//! when they are dead, slow or lying.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::{Config, Gateway};
use handle_proto::value::Ttl;
use handle_proto::{ResponseCode, Value};
use handle_tests::gateway_server::{HttpAnswer, config, get, serve_over_http};
use handle_tests::process::until;
use handle_tests::upstream_server::{AnswerManner, UpstreamServer};
use handle_tests::vectors::VectorSource;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// A gateway without a set, in front of a server.
pub(crate) struct GatewayFront {
    gateway: Gateway,
    pub(crate) server: UpstreamServer,
    _directory: TempDir,
}

impl GatewayFront {
    pub(crate) fn start(change: impl FnOnce(&mut Config)) -> Self {
        Self::of(UpstreamServer::start(), change)
    }

    fn of(server: UpstreamServer, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        server.set("10.1/x", &[url("https://one.example/")]);
        let mut config = config();
        config.upstream.resolver_site = Some(server.site(directory.path()));
        config.upstream.timeout_ms = 1000;
        change(&mut config);
        let gateway = Gateway::start(&config).unwrap();
        Self { gateway, server, _directory: directory }
    }

    fn address(&self) -> SocketAddr {
        self.gateway.addresses()[0]
    }

    pub(crate) fn get(&self, target: &str) -> HttpAnswer {
        get(self.address(), target, "")
    }

    /// The location of a redirect.
    fn location(&self, target: &str) -> Option<String> {
        self.get(target).header("location").map(str::to_owned)
    }
}

fn url(target: &'static str) -> Value<'static> {
    Value::new(1, b"URL", target.as_bytes())
}

/// Fails unless the answer says in bounded time that another server failed, and when to ask again.
pub(crate) fn is_failure(answer: &HttpAnswer, statuses: &[u16]) {
    assert!(statuses.contains(&answer.status), "{}: {}", answer.status, answer.text());
    assert_eq!(answer.header("retry-after"), Some("5"), "{}", answer.text());
    assert_eq!(answer.header("cache-control"), Some("no-store"));
}

#[test]
fn a_hundred_simultaneous_questions_for_one_name_are_one_question() {
    let front = GatewayFront::start(|_| ());
    // So long that all requests have come before the answer, and shorter than the first repetition.
    front.server.behave(AnswerManner::Slow(Duration::from_millis(400)));
    let mut clients: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(front.address()).unwrap()).collect();
    let request = b"GET /api/handles/10.1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    clients.iter_mut().for_each(|client| client.write_all(request).unwrap());
    for mut client in clients {
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(front.server.asked(), 1);
}

/// The seconds in `max-age`.
fn max_age(answer: &HttpAnswer) -> u32 {
    let value = answer.header("cache-control").unwrap();
    value
        .strip_prefix("max-age=")
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn what_was_in_the_cache_may_be_cached_for_the_rest_of_its_time() {
    let front = GatewayFront::start(|_| ());
    let targets = ["/api/handles/10.1/x", "/10.1/x", "/10.1/x?noredirect"];
    assert_eq!(max_age(&front.get(targets[0])), 86_400, "just arrived");
    let since = Instant::now();
    std::thread::sleep(Duration::from_millis(2100));
    for target in targets {
        let answer = front.get(target);
        let rest = 86_400 - max_age(&answer);
        let most = u32::try_from(since.elapsed().as_secs()).unwrap() + 1;
        assert!((3..=most.max(3)).contains(&rest), "{target}: {rest} s of {most}");
        assert_eq!(answer.header("age"), None, "max-age is what is left");
    }
    assert_eq!(max_age(&front.get("/api/handles/10.1/x?auth")), 86_400, "asked for again");
    assert_eq!(max_age(&front.get("/api/handles/10.1/none")), 30);
    std::thread::sleep(Duration::from_millis(1100));
    assert!((20..=28).contains(&max_age(&front.get("/api/handles/10.1/none"))));
    assert!((20..=28).contains(&max_age(&front.get("/10.1/none"))));
    assert_eq!(
        front.server.asked(),
        4,
        "the record twice, that of its prefix, and the one that is not there"
    );
}

#[test]
fn expired_answers_are_served_while_they_are_asked_for_again() {
    let front = GatewayFront::start(|config| config.upstream.cache_s = 1);
    assert_eq!(front.location("/10.1/x").as_deref(), Some("https://one.example/"));
    front.server.set("10.1/x", &[url("https://two.example/")]);
    assert_eq!(front.location("/10.1/x").as_deref(), Some("https://one.example/"), "from the cache");
    std::thread::sleep(Duration::from_millis(1100));
    let stale = front.get("/10.1/x");
    assert_eq!(stale.header("location"), Some("https://one.example/"), "without waiting");
    assert_eq!(stale.header("cache-control"), Some("max-age=0"), "nobody else keeps it");
    until("the answer is renewed", || front.location("/10.1/x").as_deref() == Some("https://two.example/"));
}

#[test]
fn expired_answers_are_served_when_nobody_answers_and_no_longer_than_allowed() {
    let front = GatewayFront::start(|config| {
        config.upstream.cache_s = 1;
        config.upstream.stale_if_error_s = 3;
        config.upstream.timeout_ms = 300;
    });
    assert_eq!(front.get("/api/handles/10.1/x").status, 200);
    assert_eq!(front.get("/api/handles/10.1/none").status, 404);
    let since = Instant::now();
    std::thread::sleep(Duration::from_millis(1100));
    front.server.behave(AnswerManner::Silent);
    let stale = front.get("/api/handles/10.1/x");
    assert_eq!((stale.status, stale.header("cache-control")), (200, Some("max-age=0")));
    assert_eq!(front.location("/10.1/x").as_deref(), Some("https://one.example/"));
    front.server.behave(AnswerManner::Code(ResponseCode::ERROR));
    assert_eq!(front.get("/api/handles/10.1/x").status, 200, "also when the server says that it fails");
    assert!(since.elapsed() < Duration::from_secs(4), "the machine is too slow for this test");
    std::thread::sleep(Duration::from_millis(4200).saturating_sub(since.elapsed()));
    front.server.behave(AnswerManner::Silent);
    let state = front.gateway.state();
    let stale_count = state.reading.upstream.as_ref().unwrap().stale_count();
    is_failure(&front.get("/api/handles/10.1/x"), &[502, 504]);
    assert_eq!(state.reading.upstream.as_ref().unwrap().stale_count(), stale_count);
}

#[test]
fn failures_are_remembered_for_a_short_time() {
    let front = GatewayFront::start(|config| config.upstream.timeout_ms = 400);
    front.server.set("10.2/x", &[url("https://other.example/")]);
    assert_eq!(front.get("/api/handles/10.1/x").status, 200);
    front.server.behave(AnswerManner::Silent);
    let took = |target: &str| {
        let since = Instant::now();
        is_failure(&front.get(target), &[502, 504]);
        since.elapsed()
    };
    let quick = Duration::from_millis(200);
    assert!(took("/api/handles/10.1/a") > quick);
    assert!(took("/api/handles/10.1/a") < quick, "the same question");
    assert!(took("/10.1/b") > quick, "one failure is not one of the prefix");
    assert!(took("/10.1/c") > quick);
    let asked = front.server.asked();
    assert!((0..20).all(|number| took(&format!("/10.1/{number}")) < quick), "three in a row are");
    assert_eq!(front.server.asked(), asked);
    assert_eq!(front.get("/api/handles/10.1/x").status, 200, "what is cached is served");
    front.server.behave(AnswerManner::Honest);
    assert_eq!(front.get("/api/handles/10.2/x").status, 200, "another prefix");
    assert_eq!(front.get("/api/handles/10.1/a?auth").status, 404, "an authoritative question is asked");
    assert_eq!(front.get("/api/handles/10.1/b2").status, 404, "and its answer ends the refusal");
}

#[test]
fn authoritative_questions_bypass_the_cache_and_refresh_it() {
    let front = GatewayFront::start(|_| ());
    let values = |target: &str| front.get(target).json()["values"][0]["data"]["value"].clone();
    assert_eq!(values("/api/handles/10.1/x"), "https://one.example/");
    front.server.set("10.1/x", &[url("https://two.example/")]);
    assert_eq!(values("/api/handles/10.1/x"), "https://one.example/");
    assert_eq!(values("/api/handles/10.1/x?auth"), "https://two.example/");
    let asked = front.server.asked();
    assert_eq!(values("/api/handles/10.1/x"), "https://two.example/");
    assert_eq!(values("/api/handles/10.1/x?type=URL"), "https://two.example/");
    assert_eq!(front.server.asked(), asked);
}

#[test]
fn signed_answers_are_never_taken_from_unsigned_ones() {
    let front = GatewayFront::start(|config| config.upstream.cache_s = 1);
    assert_eq!(front.get("/api/handles/10.1/x").status, 200);
    is_failure(&front.get("/api/handles/10.1/x?cert"), &[502]);
    std::thread::sleep(Duration::from_millis(1100));
    is_failure(&front.get("/10.1/x?cert"), &[502]);
    assert_eq!(front.get("/api/handles/10.1/x").status, 200);
}

#[test]
fn values_with_an_absolute_time_end_at_their_instant() {
    let front = GatewayFront::start(|_| ());
    let now_unix_s = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let ends = now_unix_s() + 2;
    let ttl = Ttl::absolute(i32::try_from(ends).unwrap());
    front.server.set("10.1/end", &[Value { ttl, ..url("https://end.example/") }]);
    assert_eq!(front.get("/api/handles/10.1/end").status, 200);
    let asked = front.server.asked();
    front.server.behave(AnswerManner::Code(ResponseCode::ERROR));
    while now_unix_s() < ends {
        let answer = front.get("/api/handles/10.1/end");
        assert!(answer.status == 200 && front.server.asked() == asked || now_unix_s() >= ends);
        std::thread::sleep(Duration::from_millis(5));
    }
    is_failure(&front.get("/api/handles/10.1/end"), &[502]);
}

#[test]
fn a_cache_changes_no_answer() {
    let values =
        [url("https://one.example/"), Value::new(2, b"URL.x", b"x"), Value::new(3, b"EMAIL", b"a@b.example")];
    let (cached, plain) =
        (GatewayFront::start(|_| ()), GatewayFront::start(|config| config.upstream.cache_bytes = 0));
    for front in [&cached, &plain] {
        ["10.1/x", "10.1/X", "10.2/x"].iter().for_each(|handle| front.server.set(handle, &values));
        front.server.set("10.2/x", &values[..1]);
    }
    let options =
        ["", "type=URL", "type=URL.", "type=url", "type=EMAIL", "index=1", "index=3&type=URL", "index=9"];
    let more = ["", "&publicOnly=true", "&auth", "&doNotRefer", "&pretty"];
    let handles = ["10.1/x", "10.1/X", "10.2/x", "10.2/y"];
    let targets: Vec<String> = handles
        .iter()
        .flat_map(|handle| options.iter().map(move |option| (handle, option)))
        .flat_map(|(handle, option)| more.iter().map(move |more| format!("{handle}?{option}{more}")))
        .collect();
    // The second round, in another order, meets a cache that has everything.
    for target in targets.iter().chain(targets.iter().rev()) {
        for path in ["/api/handles/", "/"] {
            let (one, other) =
                (cached.get(&format!("{path}{target}")), plain.get(&format!("{path}{target}")));
            assert_eq!(one.status, other.status, "{path}{target}");
            assert_eq!(one.header("location"), other.header("location"), "{path}{target}");
            assert_eq!(one.json(), other.json(), "{path}{target}");
        }
    }
    assert!(cached.server.asked() < plain.server.asked() / 2);
}

#[test]
fn answers_that_are_lies_are_not_believed() {
    for (manner, statuses) in [
        (AnswerManner::Garbage, [502, 504]),
        (AnswerManner::OtherHandle, [502, 504]),
        (AnswerManner::OtherId, [504, 504]),
        (AnswerManner::OtherPort, [504, 504]),
        (AnswerManner::Silent, [504, 504]),
    ] {
        let front = GatewayFront::start(|_| ());
        front.server.behave(manner);
        let since = Instant::now();
        is_failure(&front.get("/api/handles/10.1/x"), &statuses);
        is_failure(&front.get("/10.1/x"), &statuses);
        assert!(since.elapsed() < Duration::from_secs(5), "{manner:?}: {:?}", since.elapsed());
        assert!(front.server.asked() > 0, "{manner:?}");
    }
}

#[test]
fn a_server_that_fails_or_is_busy_is_not_taken_for_the_absence_of_a_handle() {
    for (code, statuses) in [(ResponseCode::ERROR, [502]), (ResponseCode::SERVER_BUSY, [503])] {
        let front = GatewayFront::start(|_| ());
        front.server.behave(AnswerManner::Code(code));
        is_failure(&front.get("/api/handles/10.1/x"), &statuses);
        is_failure(&front.get("/10.1/x"), &statuses);
    }
}

#[test]
fn services_that_do_not_answer_slow_nobody_else() {
    let server = UpstreamServer::start();
    server.behave(AnswerManner::Silent);
    let directory = tempfile::tempdir().unwrap();
    let site = server.site(directory.path());
    let (served, _) = serve_over_http(VectorSource::Own, "root", |config| {
        config.upstream.resolver_site = Some(site);
        config.upstream.timeout_ms = 3000;
        // 64 of them for one source.
        config.upstream.questions = 256;
    });
    let waiting: Vec<TcpStream> = (0..80)
        .map(|number| {
            let mut client = TcpStream::connect(served.address()).unwrap();
            let request = format!("GET /10.{number}/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            client.write_all(request.as_bytes()).unwrap();
            client
        })
        .collect();
    until("all places are taken", || server.asked() >= 64);
    let since = Instant::now();
    let mut longest = Duration::ZERO;
    while since.elapsed() < Duration::from_secs(1) {
        let since = Instant::now();
        assert_eq!(get(served.address(), "/10.5072/URL-ONE", "").status, 302);
        longest = longest.max(since.elapsed());
    }
    assert!(longest < Duration::from_millis(500), "{longest:?}");
    let mut statuses = Vec::new();
    for mut client in waiting {
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).unwrap();
        let (answer, _) = HttpAnswer::split(&bytes, false).unwrap();
        is_failure(&answer, &[503, 504]);
        statuses.push(answer.status);
    }
    assert!(since.elapsed() < Duration::from_secs(10));
    assert_eq!(statuses.iter().filter(|&&status| status == 503).count(), 16, "beyond the places of a source");
}
