//! What `handle-gateway` does with connections and requests before it looks at handles: malformed
//! requests, and limits.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::Config;
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, described, exchange, get, serve_over_http};
use handle_tests::vectors::VectorSource;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
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

#[test]
fn an_answer_that_does_not_need_the_body_reaches_a_client_that_still_sends_it() {
    let served = gateway(|_| ());
    let len = 512 << 10;
    let head = format!(
        "PUT /api/handles/10.5072/NEW HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n"
    );
    for _ in 0..5 {
        let mut stream = TcpStream::connect(served.address()).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        // The gateway has answered, and has closed its side.
        std::thread::sleep(Duration::from_millis(50));
        for part in vec![b' '; len].chunks(64 << 10) {
            stream.write_all(part).unwrap();
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = described("PUT", "/api/handles/10.5072/NEW", &answer);
        assert_eq!((answer.status, answer.json()["responseCode"].as_i64()), (403, Some(402)));
    }
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
        let longest = begin(&served, head(HEAD_LEN_MAX).as_bytes());
        assert!(longest.status < 400, "{path}: {}", longest.status);
        check_form(&begin(&served, head(HEAD_LEN_MAX + 1).as_bytes()), path, 431);
    }
    let form = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    check_form(&begin(&served, format!("{form}Content-Length: 1025\r\n\r\n").as_bytes()), "/", 413);
    let idle = exchange(served.address(), format!("GET {HANDLE} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    assert_eq!(answers(&idle).len(), 1, "a connection that waits for a request ends silently");
}

#[test]
fn the_refusal_of_a_long_body_reaches_a_client_that_is_still_sending() {
    let served = gateway(|config| config.limits.body_bytes = 1024);
    let len = 4 << 20;
    let head = format!(
        "POST /api/resolve HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n"
    );
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(&[head.as_bytes(), &vec![b' '; len]].concat()).expect("the connection is not reset");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the connection is not reset");
    check_form(&HttpAnswer::split(&answer, false).unwrap().0, "/api/resolve", 413);
    // Who neither reads nor sends does not keep the connection.
    let mut silent = TcpStream::connect(served.address()).unwrap();
    silent.write_all(head.as_bytes()).unwrap();
    silent.write_all(b" ").unwrap();
    let state = served.gateway.state();
    assert!(comes_true(|| state.connections.count() == 0));
}

#[test]
fn what_a_refused_client_still_sends_is_discarded_within_bounds_of_bytes_and_time() {
    let served = gateway(|config| config.limits.body_bytes = 1024);
    let head = "POST /api/resolve HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                Content-Type: application/json\r\nContent-Length: 100000000\r\n\r\n";
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut body = (0..1000).map(|_| stream.write_all(&[b' '; 100_000]));
    assert!(body.any(|written| written.is_err()), "far more than is discarded");
    let state = served.gateway.state();
    assert!(comes_true(|| state.connections.count() == 0));
    let mut slow = TcpStream::connect(served.address()).unwrap();
    slow.write_all(head.as_bytes()).unwrap();
    let begun = Instant::now();
    // Fewer bytes than are discarded, and for longer.
    while slow.write_all(b" ").is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the connection goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(begun.elapsed() >= Duration::from_millis(1900), "{:?}", begun.elapsed());
}

#[test]
fn browsers_find_an_icon_and_crawlers_what_they_may_read() {
    let served = gateway(|_| ());
    let icon = get(served.address(), "/favicon.ico", "");
    assert_eq!((icon.status, icon.header("content-type")), (200, Some("image/svg+xml")));
    let robots = get(served.address(), "/robots.txt", "");
    assert_eq!((robots.status, robots.text().as_str()), (200, "User-agent: *\nDisallow: /api/\n"));
}

/// A frame of HTTP/2. RFC 9113 section 4.1.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
/// Most bytes of the head of a request.
const HEAD_LEN_MAX: usize = 32 << 10;
/// Time for which clients of these tests may leave an answer.
const WRITE: Duration = Duration::from_millis(500);

/// Begins a connection whose client allows no byte of any answer.
pub(crate) fn begin_without_window(address: SocketAddr) -> TcpStream {
    without_window(TcpStream::connect(address).unwrap())
}

/// The same on a connection that is open.
pub(crate) fn without_window(mut stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let no_window = [0, 4, 0, 0, 0, 0];
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &no_window)).unwrap();
    stream
}

/// The fields of a request: indexes of the static table, and literals. RFC 7541.
pub(crate) fn fields(method: u8, path: &str) -> Vec<u8> {
    let path_len = u8::try_from(path.len()).unwrap();
    [&[method, 0x86, 0x01, 1, b'x', 0x04, path_len], path.as_bytes()].concat()
}

fn get_over_http2(stream: u32) -> Vec<u8> {
    get_path_over_http2(stream, HANDLE)
}

pub(crate) fn get_path_over_http2(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields(0x82, path))
}

/// A name of [`resolve_over_http2`], and their number.
const NAME: (&str, usize) = ("\"10.5072/URL-ONE\"\n", 900);

/// A request to resolve many names, whose answer has some 180 KB.
fn resolve_over_http2(stream: u32) -> Vec<u8> {
    let media = b"application/x-ndjson";
    let content_type = [&[0x0f, 16, u8::try_from(media.len()).unwrap()], &media[..]].concat();
    let head = [fields(0x83, "/api/resolve"), content_type].concat();
    let names = NAME.0.repeat(NAME.1);
    [frame(HEADERS, END_HEADERS, stream, &head), frame(DATA, END_STREAM, stream, names.as_bytes())].concat()
}

/// Reads until the connection ends, and calls `meanwhile` every 10 ms. Returns the bytes read and
/// the time that it took.
pub(crate) fn read_to_end(
    stream: &mut TcpStream,
    mut meanwhile: impl FnMut(&mut TcpStream),
) -> (Vec<u8>, Duration) {
    let (since, mut read, mut buffer) = (Instant::now(), Vec::new(), [0; 4096]);
    while since.elapsed() < Duration::from_secs(10) {
        match stream.read(&mut buffer) {
            Ok(0) => return (read, since.elapsed()),
            Ok(len) => read.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => meanwhile(stream),
            Err(_) => return (read, since.elapsed()),
        }
    }
    panic!("the connection does not end");
}

/// Number of frames of one kind in `bytes`.
pub(crate) fn count(mut bytes: &[u8], kind: u8) -> usize {
    let mut count = 0;
    while let [a, b, c, of_frame, ..] = *bytes {
        count += usize::from(of_frame == kind);
        bytes = bytes.get(9 + u32::from_be_bytes([0, a, b, c]) as usize..).unwrap_or_default();
    }
    count
}

/// Whether `check` becomes true within seconds.
pub(crate) fn comes_true(check: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    while !check() && since.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    check()
}

#[test]
fn a_client_that_leaves_one_answer_loses_its_connection() {
    let served = gateway(|config| config.limits.transfer_ms = WRITE.as_millis().try_into().unwrap());
    let state = served.gateway.state();
    for (request, buffer) in [(get_over_http2(1), 0), (resolve_over_http2(1), NAME.0.len() * NAME.1)] {
        let mut stream = begin_without_window(served.address());
        stream.write_all(&request).unwrap();
        let mut most = 0;
        let (read, took) = read_to_end(&mut stream, |_| most = most.max(state.bodies.count()));
        assert_eq!(most, buffer, "the body of a request counts until it is answered");
        assert_eq!((count(&read, HEADERS), count(&read, DATA)), (1, 0), "an answer without its body");
        assert!(took > WRITE - Duration::from_millis(100) && took < 3 * WRITE, "{took:?}");
        assert!(comes_true(|| state.connections.count() == 0 && state.bodies.count() == 0));
    }
    assert_eq!(state.counters.connections_failed.get(), 2);
    assert_eq!(state.counters.bugs.get(), 0);
}

#[test]
fn other_answers_of_the_connection_do_not_help_one_that_is_left() {
    let served = gateway(|config| config.limits.transfer_ms = WRITE.as_millis().try_into().unwrap());
    let mut stream = begin_without_window(served.address());
    let mut next = 1;
    let (read, took) = read_to_end(&mut stream, |stream| {
        if next < 401 {
            // All answers but the first are taken at once.
            let window = frame(WINDOW_UPDATE, 0, next, &(1_u32 << 16).to_be_bytes());
            let window = if next == 1 { Vec::new() } else { window };
            let _ = stream.write_all(&[get_over_http2(next), window].concat());
            next += 2;
        }
    });
    assert!(count(&read, DATA) > 10, "the others are answered");
    assert!(took > WRITE - Duration::from_millis(100) && took < 3 * WRITE, "{took:?}");
}

#[test]
fn an_answer_may_be_taken_slowly_but_not_too_slowly() {
    let served = gateway(|config| {
        config.limits.transfer_ms = WRITE.as_millis().try_into().unwrap();
        config.limits.header_ms = 1000;
    });
    // Bytes each 150 ms; at least 1 in each millisecond are enough.
    for (len, is_enough) in [(300_u32, true), (60, false)] {
        let mut stream = begin_without_window(served.address());
        stream.write_all(&resolve_over_http2(1)).unwrap();
        stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 20).to_be_bytes())).unwrap();
        let (mut times, since) = (0, Instant::now());
        let (read, took) = read_to_end(&mut stream, |stream| {
            if times < 20 && since.elapsed() > times * Duration::from_millis(150) {
                times += 1;
                let _ = stream.write_all(&frame(WINDOW_UPDATE, 0, 1, &len.to_be_bytes()));
            }
        });
        let slow = 20 * Duration::from_millis(150);
        assert_eq!(count(&read, DATA) >= 20, is_enough, "{len}: {}", count(&read, DATA));
        assert_eq!(took > slow, is_enough, "{len}: {took:?}");
        assert!(took < slow + 3 * WRITE, "{len}: {took:?}");
    }
}
