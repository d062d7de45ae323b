//! What `handle-gateway` does with connections and requests before it looks at handles: malformed
//! requests, and limits.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::Config;
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, exchange, get, serve_over_http};
use handle_tests::vectors::VectorSource;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

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

/// A request as bytes, and the statuses of the answers on its connection, which then ends.
const RAW_REQUESTS: &[(&str, &str, &[u16])] = &[
    (
        "both framings",
        "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\n\r\n",
        &[400],
    ),
    (
        "both framings, the other way round",
        "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET /10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\n\r\n",
        &[400],
    ),
    (
        "chunked is not the last encoding",
        "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        &[400],
    ),
    ("an unknown encoding", "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n", &[400]),
    ("a length with a blank", "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length : 4\r\n\r\nabcd", &[400]),
    ("a length with a sign", "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\nabcd", &[400]),
    (
        "two lengths",
        "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        &[400],
    ),
    ("two lengths in one line", "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4, 5\r\n\r\nabcd", &[400]),
    ("a folded line", "GET /x HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", &[400]),
    ("a bare carriage return", "GET /x HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", &[400]),
    ("a zero byte", "GET /x HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", &[400]),
    ("no name", "GET /x HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", &[400]),
    ("no host", "GET /x HTTP/1.1\r\n\r\n", &[400]),
    ("two hosts", "GET /x HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", &[400]),
    ("HTTP/0.9", "GET /x\r\n\r\n", &[400]),
    ("an unknown version", "GET /x HTTP/3.7\r\nHost: x\r\n\r\n", &[400]),
    ("a blank in the target", "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", &[400]),
    ("a target without a slash", "GET 10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\n\r\n", &[400]),
    (
        "a chunk with a sign",
        "POST /api/handles/10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n+4\r\nabcd\r\n0\r\n\r\n",
        &[200],
    ),
    (
        "an absolute target",
        "GET http://a.example/10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        &[302],
    ),
    (
        "a method of others",
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nConnection: close\r\n\r\n",
        &[405],
    ),
    ("an asterisk", "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", &[200]),
    ("TRACE", "TRACE /10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", &[405]),
    ("HTTP/1.0", "GET /10.5072/URL-ONE HTTP/1.0\r\n\r\nGET /10.5072/URL-ONE HTTP/1.0\r\n\r\n", &[302]),
    (
        "HTTP/1.0 that asks for more",
        "GET /10.5072/URL-ONE HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /10.5072/URL-ONE HTTP/1.0\r\n\r\n",
        &[302, 302],
    ),
    ("HTTP/1.0 with chunks", "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400]),
    (
        "an empty line before",
        "\r\nGET /10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        &[302],
    ),
    ("line feeds alone", "GET /10.5072/URL-ONE HTTP/1.1\nHost: x\nConnection: close\n\n", &[302]),
];

#[test]
fn requests_that_others_may_read_differently_are_refused_with_their_connection() {
    let served = gateway(|config| config.limits.header_ms = 3000);
    let mut wrong = Vec::new();
    for (name, request, expected) in RAW_REQUESTS {
        let answered = answers(&exchange(served.address(), request.as_bytes()));
        let statuses: Vec<u16> = answered.iter().map(|answer| answer.status).collect();
        if statuses != *expected {
            wrong.push(format!("{name}: {statuses:?} instead of {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(get(served.address(), HANDLE, "").status, 200);
    assert_eq!(served.gateway.state().counters.bugs.get(), 0);
}

/// The answer to a request that is begun, and left so.
fn begin(served: &GatewayServer, bytes: &[u8]) -> HttpAnswer {
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    HttpAnswer::split(&answer, false).unwrap().0
}

/// Checks that a refusal is JSON below `/api` and a page elsewhere.
fn check_form(answer: &HttpAnswer, path: &str, status: u16) {
    assert_eq!(answer.status, status, "{path}: {}", answer.text());
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    assert_eq!(answer.header("connection"), Some("close"), "{path}");
    match path.starts_with("/api/") {
        true => assert_eq!(answer.json()["responseCode"], 4, "{path}: {}", answer.text()),
        false => {
            assert!(answer.text().contains("<h1"), "{path}: {}", answer.text());
            assert!(answer.header("content-security-policy").is_some(), "{path}");
        }
    }
}

#[test]
fn what_is_too_slow_or_too_long_is_refused_in_the_form_of_other_answers() {
    let served = gateway(|config| {
        config.limits.header_ms = 300;
        config.limits.header_bytes = 8192;
        config.limits.body_bytes = 1024;
    });
    for path in [HANDLE, "/10.5072/URL-ONE"] {
        check_form(&begin(&served, format!("GET {path} HTTP/1.1\r\nHost:").as_bytes()), path, 408);
        let endless = format!("GET {path} HTTP/1.1\r\nHost: x\r\nA: {}", "a".repeat(200_000));
        check_form(&begin(&served, endless.as_bytes()), path, 431);
        // The second request of a connection, too.
        let kept = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        let late = answers(&exchange(served.address(), format!("{kept}GET {path}?x HT").as_bytes()));
        assert_eq!(late.len(), 2);
        check_form(&late[1], path, 408);
        let head = |len: usize| {
            let rest = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nA: \r\n\r\n").len();
            let long = "a".repeat(len - rest);
            format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nA: {long}\r\n\r\n")
        };
        let longest = begin(&served, head(8192).as_bytes());
        assert!(longest.status < 400, "{path}: {}", longest.status);
        check_form(&begin(&served, head(8193).as_bytes()), path, 431);
    }
    let form = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    check_form(&begin(&served, format!("{form}Content-Length: 1025\r\n\r\n").as_bytes()), "/", 413);
    let idle = exchange(served.address(), format!("GET {HANDLE} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    assert_eq!(answers(&idle).len(), 1, "a connection that waits for a request ends silently");
}

#[test]
fn browsers_find_an_icon_and_crawlers_what_they_may_read() {
    let served = gateway(|_| ());
    let icon = get(served.address(), "/favicon.ico", "");
    assert_eq!((icon.status, icon.header("content-type")), (200, Some("image/svg+xml")));
    let robots = get(served.address(), "/robots.txt", "");
    assert_eq!((robots.status, robots.text().as_str()), (200, "User-agent: *\nDisallow: /api/\n"));
}
