//! `handle-gateway` and services with faults: what clients get meanwhile and afterwards; and what
//! caches between it and its clients must know to keep its answers.

use crate::gateway_upstream::{GatewayFront, is_failure};
use handle_gateway::Gateway;
use handle_proto::{ResponseCode, Value};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::gateway_server::{HttpAnswer, config, connect_over_tls, get, use_tls};
use handle_tests::liar::{ForgedAnswer, LiarServer, site_at};
use handle_tests::records::publish_values;
use handle_tests::test_server::serve;
use handle_tests::upstream_server::AnswerManner;
use handle_worker::config::Datapath;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

#[test]
fn a_service_with_faults_is_asked_again_when_it_has_recovered() {
    let manners = [
        AnswerManner::Silent,
        AnswerManner::Slow(Duration::from_millis(900)),
        AnswerManner::Garbage,
        AnswerManner::Truncated,
        AnswerManner::OtherHandle,
        AnswerManner::OtherId,
        AnswerManner::Code(ResponseCode::ERROR),
    ];
    // At the same time: each waits until the failure is forgotten.
    std::thread::scope(|scope| {
        for manner in manners {
            scope.spawn(move || recovers_from(manner));
        }
    });
}

fn recovers_from(manner: AnswerManner) {
    let front = GatewayFront::start(|config| config.upstream.timeout_ms = 400);
    front.server.behave(manner);
    for target in ["/api/handles/10.1/x", "/10.1/x", "/10.1/x?noredirect"] {
        let since = Instant::now();
        is_failure(&front.get(target), &[502, 504]);
        assert!(since.elapsed() < Duration::from_secs(3), "{manner:?}: {:?}", since.elapsed());
    }
    front.server.behave(AnswerManner::Honest);
    // Answers that are late arrive now, and are those to other questions.
    let deadline = Instant::now() + Duration::from_secs(20);
    let recovered = loop {
        let answer = front.get("/api/handles/10.1/x");
        if answer.status == 200 || Instant::now() > deadline {
            break answer;
        }
        is_failure(&answer, &[502, 504]);
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(recovered.json()["values"][0]["data"]["value"], "https://one.example/", "{manner:?}");
    assert_eq!(front.get("/10.1/x").header("location"), Some("https://one.example/"), "{manner:?}");
    assert_eq!(front.get("/10.1/none").status, 404, "{manner:?}");
}

#[test]
fn no_code_of_a_service_but_one_means_that_a_handle_does_not_exist() {
    for code in [2, 3, 4, 5, 6, 7, 101, 102, 201, 300, 301, 400, 402, 403, 500, 505, 999] {
        let front = GatewayFront::start(|config| config.upstream.timeout_ms = 400);
        front.server.behave(AnswerManner::Code(ResponseCode(code)));
        let answer = front.get("/api/handles/10.1/x");
        assert!(answer.status >= 400 && answer.status != 404, "{code}: {} {}", answer.status, answer.text());
        assert_ne!(answer.json()["responseCode"], 100, "{code}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{code}: {}", answer.text());
        let is_private = (400..=406).contains(&code);
        let page = front.get("/10.1/x");
        assert!(page.status >= 400 && (page.status != 404 || is_private), "{code}: {}", page.status);
        if page.status >= 502 {
            is_failure(&page, &[502, 503, 504]);
        }
        if answer.status >= 502 {
            is_failure(&answer, &[502, 503, 504]);
        }
    }
}

#[test]
fn answers_without_a_genuine_signature_are_no_answers_to_cert() {
    let truth = serve("main", Datapath::Portable);
    let key = truth.directory.path().join("privkey.bin");
    let gateway_before = |address: SocketAddr| {
        let mut config = config();
        config.upstream.resolver_site = Some(site_at(truth.directory.path(), address));
        config.upstream.timeout_ms = 1000;
        Gateway::start(&config).unwrap()
    };
    let honest = gateway_before(truth.address());
    let record = get(honest.addresses()[0], "/api/handles/10.5072/URL-ONE?cert", "");
    assert_eq!(record.status, 200, "{}", record.text());
    for lie in [
        ForgedAnswer::Changed,
        ForgedAnswer::Unsigned,
        ForgedAnswer::WrongDigest,
        ForgedAnswer::Expired,
        ForgedAnswer::OtherHandle,
        ForgedAnswer::OtherOperation,
        ForgedAnswer::OtherRequest,
        ForgedAnswer::Request,
        ForgedAnswer::Garbage,
        ForgedAnswer::Silent,
    ] {
        let liar = LiarServer::start(truth.address(), &key, lie);
        let gateway = gateway_before(liar.address);
        for target in ["/api/handles/10.5072/URL-ONE?cert", "/10.5072/URL-ONE?cert"] {
            let answer = get(gateway.addresses()[0], target, "");
            assert!(
                matches!(answer.status, 502 | 504),
                "{lie:?} {target}: {} {}",
                answer.status,
                answer.text()
            );
            is_failure(&answer, &[502, 504]);
        }
    }
}

/// Headers of requests on which answers may depend, and values of them.
const HEADERS: [(&str, &[&str]); 8] = [
    ("Accept", &["text/html", "application/json", "text/turtle", "*/*", "application/x-ndjson"]),
    ("Accept-Encoding", &["gzip", "br", "zstd", "identity"]),
    ("Accept-Language", &["de", "fr;q=0.5, en", "zz"]),
    ("Origin", &["https://a.example", "null"]),
    ("Cookie", &["a=b"]),
    ("User-Agent", &["Mozilla/5.0", "curl/8"]),
    ("Range", &["bytes=0-3"]),
    ("X-Forwarded-For", &["192.0.2.1", "198.51.100.1"]),
];

/// Targets of all kinds.
const TARGETS: [&str; 18] = [
    "/",
    "/10.1/url",
    "/10.1/alias",
    "/10.1/long",
    "/10.1/conneg",
    "/10.1/near",
    "/10.1/none",
    "/11.1/none",
    "/10.1/url?noredirect",
    "/10.1/conneg?action=showurls",
    "/10.1/url?action=api",
    "/api/handles/10.1/url",
    "/api/handles/10.1/long",
    "/api/handles/10.1/long?pretty",
    "/api/handles/10.1/none",
    "/api/handles/11.1/none",
    "/api/nope",
    "/robots.txt",
];

/// The parts of an answer that a client uses. The short page with a redirect is not one of them.
fn essence(answer: &HttpAnswer) -> (u16, Option<String>, Vec<u8>, Option<String>) {
    let location = answer.header("location").map(str::to_owned);
    let body = if location.is_some() { Vec::new() } else { answer.body.clone() };
    let origin = answer.header("access-control-allow-origin").map(str::to_owned);
    // The page of a record says how long it took.
    let is_timed = String::from_utf8_lossy(&body).contains("<dt>Time</dt>");
    let language = answer.header("content-language").map(str::to_owned).filter(|_| is_timed);
    let body = if is_timed { language.unwrap_or_default().into_bytes() } else { body };
    (answer.status, location, body, origin)
}

/// Whether a shared cache may keep an answer.
fn is_kept(answer: &HttpAnswer) -> bool {
    let control = answer.header("cache-control").unwrap_or_default();
    !["no-store", "private", "max-age=0"].iter().any(|word| control.contains(word)) && !control.is_empty()
}

#[test]
fn what_changes_an_answer_is_in_its_vary_or_keeps_it_out_of_caches() {
    let directory = tempfile::tempdir().unwrap();
    let set = directory.path().join("set");
    std::fs::create_dir(&set).unwrap();
    let conneg = b"<locations><location href=\"https://people.example/\"/>\
        <location href=\"https://machines.example/\" http_role=\"conneg\" weight=\"0\"/></locations>";
    let near = b"<locations chooseby=\"address\"><location href=\"https://near.example/\" weight=\"0\" addresses=\"192.0.2.0/24\"/>\
        <location href=\"https://far.example/\" addresses=\"198.51.100.0/24\"/></locations>";
    let long = "words ".repeat(500);
    let records: [(&[u8], Value<'_>); 5] = [
        (b"10.1/url", Value::new(1, b"URL", b"https://one.example/")),
        (b"10.1/alias", Value::new(1, b"HS_ALIAS", b"10.1/url")),
        (b"10.1/long", Value::new(1, b"DESC", long.as_bytes())),
        (b"10.1/conneg", Value::new(1, b"10320/loc", conneg)),
        (b"10.1/near", Value::new(1, b"10320/loc", near)),
    ];
    publish_values(&mut SetPublisher::open(&set).unwrap(), &records);
    let mut config = config();
    config.snapshot = Some(set);
    config.proxies.trusted = vec!["127.0.0.1".parse().unwrap()];
    use_tls(&mut config, directory.path());
    let gateway = Gateway::start(&config).unwrap();
    let address = gateway.addresses()[0];
    let mut depending = BTreeSet::new();
    for target in TARGETS {
        let plain = get(address, target, "");
        for (name, values) in HEADERS {
            for value in values {
                let other = get(address, target, &format!("{name}: {value}\r\n"));
                if essence(&other) == essence(&plain) {
                    continue;
                }
                depending.insert(name);
                for answer in [&plain, &other] {
                    let vary = answer.list("vary").to_ascii_lowercase();
                    let is_named = vary.split(", ").any(|listed| listed == name.to_ascii_lowercase());
                    assert!(
                        is_named || !is_kept(answer),
                        "{target} with {name}: {value}: {:?}",
                        answer.headers
                    );
                }
            }
        }
        // A query is part of the key of every cache, also in another order.
        let tagged = get(address, &format!("{target}{}x", if target.contains('?') { '&' } else { '?' }), "");
        assert_eq!(tagged.status, plain.status, "{target}");
    }
    let expected = ["Accept", "Accept-Encoding", "Accept-Language", "Origin", "X-Forwarded-For"];
    assert_eq!(depending, BTreeSet::from(expected), "the targets show every dependence");
    // Over TLS, credentials change answers, and no cache keeps such answers.
    let over_tls = |headers: &str| {
        let mut stream = connect_over_tls(address);
        let request = format!(
            "GET /api/handles/10.1/url HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        HttpAnswer::split(&bytes, false).unwrap().0
    };
    let public = over_tls("");
    for credentials in ["Basic MzAxJTNBMC5OQS9UU1Q6eA==", "Basic ???", "Handle sessionId=\"x\"", "Bearer x"] {
        let answer = over_tls(&format!("Authorization: {credentials}\r\n"));
        assert!(
            essence(&answer) == essence(&public) || !is_kept(&answer),
            "{credentials}: {}",
            answer.status
        );
    }
}
