//! `handle-gateway` from outside: connections, caching, limits, upstream, and messages that it
//! forwards.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::{Config, Gateway};
use handle_tests::admin_server::administer;
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, config, exchange, get, serve_over_http};
use handle_tests::test_server::{TestServer, serve};
use handle_tests::vectors::{VectorSource, hex, load};
use handle_worker::config::Datapath;
use serde_json::Value as Json;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

const HANDLE: &str = "/api/handles/10.5072/URL-ONE";

fn gateway(change: impl FnOnce(&mut Config)) -> GatewayServer {
    serve_over_http(VectorSource::Own, "root", change).0
}

/// The answers in `bytes`, one after the other.
fn answers(mut bytes: &[u8]) -> Vec<HttpAnswer> {
    std::iter::from_fn(|| {
        let (answer, rest) = HttpAnswer::split(bytes, false)?;
        bytes = rest;
        Some(answer)
    })
    .collect()
}

#[test]
fn requests_on_one_connection_are_answered_in_order() {
    let served = gateway(|_| ());
    let kept = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
    let requests = [
        kept(HANDLE),
        kept("/api/handles/10.5072/NONE"),
        kept("/10.5072/URL-ONE"),
        format!("GET {HANDLE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
    ];
    let answers = answers(&exchange(served.address(), requests.concat().as_bytes()));
    assert_eq!(answers.iter().map(|it| it.status).collect::<Vec<_>>(), [200, 404, 302, 200]);
    assert_eq!(answers[0].json(), answers[3].json());
    assert_eq!(answers[2].header("location"), Some("https://example.org/one"));
}

#[test]
fn answers_say_how_long_they_are_fresh_and_are_not_sent_twice() {
    let served = gateway(|_| ());
    let first = get(served.address(), HANDLE, "");
    assert_eq!(first.header("cache-control"), Some("max-age=86400"));
    let tag = first.header("etag").unwrap().to_owned();
    let again = get(served.address(), HANDLE, &format!("If-None-Match: \"x\", {tag}\r\n"));
    assert_eq!((again.status, again.body.len()), (304, 0));
    let other = get(served.address(), &format!("{HANDLE}?pretty"), &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(other.status, 200, "another representation");
    let missing = get(served.address(), "/api/handles/10.5072/NONE", "");
    assert_eq!(missing.header("cache-control"), Some("max-age=30"));
    let hidden = get(served.address(), "/api/handles/TST/HALF?publicOnly=false", "");
    assert_eq!((hidden.status, hidden.header("cache-control")), (403, Some("no-store")));
}

#[test]
fn long_answers_are_compressed_for_those_who_ask() {
    let served = gateway(|_| ());
    let long = "/api/handles/0.NA/TST";
    let plain = get(served.address(), long, "");
    let small = get(served.address(), long, "Accept-Encoding: gzip\r\n");
    assert_eq!(small.header("content-encoding"), Some("gzip"));
    assert!(small.body.starts_with(&[0x1f, 0x8b]) && small.body.len() < plain.body.len() / 2);
    assert_ne!(small.header("etag"), plain.header("etag"));
    assert!(get(served.address(), HANDLE, "Accept-Encoding: gzip\r\n").header("content-encoding").is_none());
}

#[test]
fn scripts_of_other_origins_may_read_every_answer() {
    let served = gateway(|_| ());
    for target in [HANDLE, "/api/handles/10.5072/NONE", "/api/nope", "/10.5072/URL-ONE", "/10.5072/NONE", "/"]
    {
        let answer = get(served.address(), target, "Origin: https://a.example\r\n");
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://a.example"), "{target}");
        assert!(answer.list("vary").contains("Origin"), "{target}");
        assert!(answer.header("access-control-allow-credentials").is_none(), "{target}");
    }
}

#[test]
fn bad_requests_are_refused_and_harm_nothing() {
    let served = gateway(|config| config.limits.body_bytes = 1024);
    let address = served.address();
    let status = |request: &[u8]| answers(&exchange(address, request)).first().map(|answer| answer.status);
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(40_000));
    assert!(matches!(status(long.as_bytes()), Some(400 | 414 | 431)));
    let header = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "a".repeat(40_000));
    assert!(matches!(status(header.as_bytes()), Some(400 | 431)));
    assert_eq!(status(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"), Some(400), "no host");
    assert_eq!(status(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n"), Some(400));
    for both in [
        &b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"[..],
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
    ] {
        let answer = status(both);
        assert!(answer.is_none_or(|status| status >= 400), "{answer:?}: {}", String::from_utf8_lossy(both));
    }
    let message = "Content-Type: application/x-hdl-message\r\nAccept: application/x-hdl-message\r\n";
    let body =
        format!("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{message}Content-Length: 2000\r\n\r\n");
    assert_eq!(status(body.as_bytes()), Some(413));
    let handle = format!("/api/handles/10.5072/{}", "a".repeat(2100));
    let answer = get(address, &handle, "");
    assert_eq!((answer.status, answer.json()["responseCode"].as_i64()), (400, Some(102)));
    assert_eq!(get(address, HANDLE, "").status, 200);
    assert_eq!(served.gateway.state().counters.bugs.get(), 0);
}

#[test]
fn bodies_that_do_not_end_take_bounded_memory_for_each_source() {
    let served = gateway(|config| {
        config.limits.body_bytes = 1 << 20;
        config.limits.bodies_bytes = 4 << 20;
    });
    let address = served.address();
    let message = "Content-Type: application/x-hdl-message\r\nAccept: application/x-hdl-message\r\n";
    let head =
        format!("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{message}Content-Length: 262000\r\n\r\n");
    let begin = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // A refused connection may be closed while the body is still being sent.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&[0; 261_000]));
        stream
    };
    let refused_count = || served.gateway.state().counters.bodies_refused.get();
    let open: Vec<_> = (0..5).map(|_| begin()).collect();
    let deadline = Instant::now() + Duration::from_secs(10);
    while refused_count() == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(refused_count(), 1, "four of 261,000 bytes fit in the 1 MiB of a source");
    drop(open);
    assert_eq!(get(address, HANDLE, "").status, 200);
}

#[test]
fn slow_clients_and_those_with_many_connections_do_not_keep_others_out() {
    let served = gateway(|config| {
        config.limits.header_ms = 300;
        config.limits.transfer_ms = 300;
        config.limits.connections_per_source = 4;
    });
    let address = served.address();
    let ended = |begin: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(begin.as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (since, mut answer) = (Instant::now(), Vec::new());
        stream.read_to_end(&mut answer).unwrap();
        (since.elapsed(), String::from_utf8_lossy(&answer).into_owned())
    };
    let (took, _) = ended("GET / HTTP/1.1\r\nHost:");
    assert!(took > Duration::from_millis(200) && took < Duration::from_secs(5), "{took:?}");
    let message = "Content-Type: application/x-hdl-message\r\nAccept: application/x-hdl-message\r\n";
    let slow =
        format!("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{message}Content-Length: 60\r\n\r\nab");
    let (_, answer) = ended(&slow);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let idle: Vec<_> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    let deadline = Instant::now() + Duration::from_secs(5);
    while served.gateway.state().connections.count() < 4 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut fifth = TcpStream::connect(address).unwrap();
    fifth.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(matches!(fifth.read(&mut [0; 1]), Ok(0) | Err(_)), "one more than the source may have");
    drop(idle);
    while served.gateway.state().connections.count() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(get(address, HANDLE, "").status, 200);
}

/// A site record that names a server, as a file.
pub(crate) fn site_of(server: SocketAddr, directory: &Path) -> std::path::PathBuf {
    let interface = |protocol| serde_json::json!({ "query": true, "admin": false, "protocol": protocol, "port": server.port() });
    let site = serde_json::json!({
        "version": 1, "protocolVersion": "2.11", "serialNumber": 1, "primarySite": true, "multiPrimary": false,
        "attributes": [], "servers": [{ "serverId": 1, "address": server.ip().to_string(),
            "interfaces": [interface("UDP"), interface("TCP")] }],
    });
    let path = directory.join("resolver_site.json");
    std::fs::write(&path, site.to_string()).unwrap();
    path
}

/// A gateway without a set that asks `server` about every handle.
pub(crate) fn front_of(server: SocketAddr, directory: &Path) -> Gateway {
    let mut config = config();
    config.upstream.resolver_site = Some(site_of(server, directory));
    config.upstream.timeout_ms = 2000;
    Gateway::start(&config).unwrap()
}

#[test]
fn handles_of_other_services_are_asked_for_and_cached() {
    let resolver: TestServer = serve("main", Datapath::Portable);
    let directory = tempfile::tempdir().unwrap();
    let gateway = front_of(resolver.address(), directory.path());
    let address = gateway.addresses()[0];
    let cached = || gateway.state().reading.upstream.as_ref().unwrap().client().cache.stats().hits;
    let first = get(address, HANDLE, "");
    assert_eq!((first.status, cached()), (200, 0), "{}", first.text());
    let second = get(address, HANDLE, "");
    assert_eq!((second.json(), cached()), (first.json(), 1));
    let missing = get(address, "/api/handles/10.5072/NONE", "");
    assert_eq!(
        (missing.status, missing.text().as_str()),
        (404, "{\"responseCode\":100,\"handle\":\"10.5072/NONE\"}")
    );
    assert_eq!(get(address, "/api/handles/10.5072/NONE", "").status, 404);
    assert_eq!(cached(), 2, "negative answers too");
    assert_eq!(get(address, &format!("{HANDLE}?auth"), "").status, 200);
    assert_eq!(cached(), 2, "an authoritative question bypasses the cache");
    assert_eq!(get(address, "/10.5072/URL-ONE", "").header("location"), Some("https://example.org/one"));
    drop(resolver);
    assert_eq!(get(address, HANDLE, "").status, 200, "cached answers outlive the server");
    let failed = get(address, "/api/handles/10.5072/multi", "");
    assert!(matches!(failed.status, 502 | 504), "{}", failed.text());
    assert_eq!(failed.header("retry-after"), Some("5"));
    assert_eq!(failed.json()["responseCode"], 2);
    let failed = get(address, "/10.5072/multi", "");
    assert!(
        matches!(failed.status, 502 | 504) && failed.header("retry-after").is_some(),
        "{}",
        failed.text()
    );
}

#[test]
fn simultaneous_questions_for_one_name_are_one_question() {
    let resolver: TestServer = serve("main", Datapath::Portable);
    let directory = tempfile::tempdir().unwrap();
    let gateway = front_of(resolver.address(), directory.path());
    let address = gateway.addresses()[0];
    let mut clients: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    let request = format!("GET {HANDLE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    clients.iter_mut().for_each(|client| client.write_all(request.as_bytes()).unwrap());
    for mut client in clients {
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
    }
    let shards = &resolver.server.shared().shards;
    let count = shards.sum(|it| &it.requests_answered) + shards.sum(|it| &it.tcp_requests_answered);
    assert!(count <= 3, "{count} questions");
}

#[test]
fn messages_that_the_set_cannot_answer_are_forwarded_to_handle_admin() {
    let administered = administer("root");
    let served = gateway(|config| config.admin.address = Some(administered.address()));
    let send = |line: &Json| {
        let message = hex(&line["request_body"]["hex"]);
        let media = "application/x-hdl-message";
        let head = format!(
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {media}\r\nAccept: {media}\r\n\
             Content-Length: {}\r\n\r\n",
            message.len()
        );
        answers(&exchange(served.address(), &[head.as_bytes(), &message].concat())).remove(0)
    };
    let named = |name: &str| load("http.jsonl").into_iter().find(|line| line["name"] == name).unwrap();
    let code = |body: &[u8]| body.get(24..28).map(<[u8]>::to_vec);
    for name in ["native/root/challenges/create", "native/root/challenges/create_existing"] {
        let line = named(name);
        let answer = send(&line);
        assert_eq!(answer.status, 200, "{name}");
        assert_eq!(code(&answer.body), code(&hex(&line["body"]["hex"])), "{name}");
    }
    assert_eq!(served.gateway.state().counters.forwarded.get(), 2);
    drop(administered);
    let answer = send(&named("native/root/challenges/create"));
    assert_eq!((answer.status, answer.header("retry-after")), (502, Some("5")));
}

#[test]
fn a_gateway_that_drains_answers_requests_under_way_and_ends() {
    // The signal may arrive at any moment of the first answer, so once is not enough.
    for _ in 0..10 {
        let served = gateway(|_| ());
        let mut idle = TcpStream::connect(served.address()).unwrap();
        idle.write_all(format!("GET {HANDLE} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut start = [0; 12];
        idle.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        let since = Instant::now();
        served.gateway.stop().unwrap();
        assert!(since.elapsed() < Duration::from_secs(3), "idle connections do not keep it");
        let mut rest = Vec::new();
        idle.read_to_end(&mut rest).unwrap();
        assert!(rest.ends_with(b"}"), "the answer was complete, and the connection is closed");
    }
}
