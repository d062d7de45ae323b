//! The reader of plain requests in front of hyper: the same bytes as from hyper, and the limits of
//! a connection.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::Config;
use handle_gateway::connections::plain::head::{PlainHead, UnreadHead};
use handle_gateway::request_log::RequestLogFormat;
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, connect_over_tls, exchange, serve_over_http, use_tls,
};
use handle_tests::vectors::VectorSource;
use proptest::prelude::*;
use proptest::sample::select;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);
/// A path that redirects.
const PATH: &str = "/10.5072/URL-ONE";
/// A request that ends the connection.
const LAST: &str = "GET /robots.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

fn gateway(change: impl FnOnce(&mut Config)) -> GatewayServer {
    serve_over_http(VectorSource::Own, "root", change).0
}

/// A gateway whose clients are proxies that may name others in headers, so that hyper reads all
/// requests.
fn gateway_without_reader() -> GatewayServer {
    gateway(|config| config.proxies.trusted = vec!["127.0.0.1".to_owned()])
}

/// A gateway as in production: behind a proxy that uses the PROXY protocol, with a log and a limit
/// of 1 request per second and 8 at once.
fn production_gateway() -> GatewayServer {
    gateway(|config| {
        config.request_log.path = config.snapshot.as_ref().map(|set| set.with_file_name("requests"));
        config.request_log.format = RequestLogFormat::Combined;
        config.request_log.whole_addresses = true;
        (config.request_rate.requests_per_s, config.request_rate.burst) = (1, 8);
        config.proxies.trusted = vec!["127.0.0.1".to_owned()];
        config.proxies.proxy_protocol = true;
    })
}

#[test]
fn plain_requests_are_logged_and_limited_like_others() {
    let served = production_gateway();
    let log = served.directory.path().join("requests");
    let ask = |client: &str, path: &str, headers: &str, count: usize| {
        let agent = "User-Agent: a \"b\"/1\r\nReferer: https://a.example/?secret\r\n";
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{agent}{headers}\r\n");
        assert_eq!(PlainHead::read(request.as_bytes()).is_ok(), headers.is_empty(), "{request}");
        let proxied = format!("PROXY TCP4 {client} 127.0.0.1 40000 80\r\n{}{LAST}", request.repeat(count));
        let bytes = exchange(served.address(), proxied.as_bytes());
        let (mut statuses, mut rest) = (Vec::new(), &bytes[..]);
        while let Some((answer, after)) = HttpAnswer::split(rest, false) {
            statuses.push(answer.status);
            rest = after;
        }
        statuses
    };
    let paths = [(PATH, 302), ("/api/handles/10.5072/URL-ONE", 200)];
    for (path, status) in paths {
        assert_eq!(ask("192.0.2.1", path, "", 1), [status, 200]);
        assert_eq!(ask("192.0.2.1", path, "Unknown: x\r\n", 1), [status, 200]);
    }
    let limited = [vec![302; 8], vec![429; 4]].concat();
    assert_eq!(ask("192.0.2.2", PATH, "", 11), limited);
    assert_eq!(ask("192.0.2.3", PATH, "Unknown: x\r\n", 11), limited);
    assert_eq!(served.gateway.state().counters.requests_limited.get(), 8);
    let begun = Instant::now();
    let lines = loop {
        let lines = std::fs::read_to_string(&log).unwrap();
        if lines.lines().count() == 32 {
            break lines;
        }
        assert!(begun.elapsed() < TIMEOUT, "{lines}");
        std::thread::sleep(Duration::from_millis(10));
    };
    let of = |client: &str| {
        let of_client = lines.lines().filter_map(move |line| line.strip_prefix(client));
        let timeless = of_client.map(|line| line.split_once("] ").unwrap().1.to_owned());
        timeless.collect::<Vec<String>>()
    };
    let start = "\"GET /10.5072/URL-ONE HTTP/1.1\" 302 0 \"https://a.example/\" \"a \\\"b\\\"/1\"";
    let first = of("192.0.2.1 ");
    assert_eq!(first[0], start);
    for pairs in first.chunks(4) {
        assert_eq!(pairs[..2], pairs[2..], "the same lines from both");
    }
    assert_eq!(of("192.0.2.2 "), of("192.0.2.3 "));
}

/// `bytes`, with the same dates everywhere.
fn without_dates(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split("\r\n").map(|line| match line.split_once(": ") {
        Some((name @ ("date" | "expires"), value)) => {
            assert!(value.len() == 29 && value.ends_with(" GMT"), "{line}");
            format!("{name}: DATE")
        }
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\r\n")
}

/// The bytes of the answer to a request with these further header lines, on a connection that stays
/// open for another one.
fn answer_bytes(served: &GatewayServer, method: &str, path: &str, headers: &str) -> String {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    let reading = PlainHead::read(head.as_bytes());
    assert_eq!(reading.err(), headers.contains("Unknown").then_some(UnreadHead::NotPlain), "{head}");
    let bytes = exchange(served.address(), format!("{head}{LAST}").as_bytes());
    let (_, rest) = HttpAnswer::split(&bytes, method == "HEAD").unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 "), "{head}: {}", String::from_utf8_lossy(&bytes));
    without_dates(&bytes[..bytes.len() - rest.len()])
}

#[test]
fn plain_answers_have_the_bytes_that_hyper_sends() {
    let served = gateway(|_| ());
    let counters = &served.gateway.state().counters;
    let (mut redirects, mut bodies) = (0, 0);
    for path in [PATH, "/api/handles/10.5072/URL-ONE", "/api/handles/0.NA/TST", "/10.5072/NONE"] {
        for headers in [
            "",
            "Connection: keep-alive\r\nUser-Agent: x/1\r\n",
            "Accept: */*\r\nOrigin: https://a.example\r\nAccept-Encoding: gzip, br\r\n",
            "Accept: text/html\r\nAccept-Encoding: zstd\r\n",
        ] {
            for method in ["GET", "HEAD"] {
                let before = (counters.proxy_requests.get(), counters.api_requests.get());
                let plain = answer_bytes(&served, method, path, headers);
                let between = (counters.proxy_requests.get(), counters.api_requests.get());
                let general = answer_bytes(&served, method, path, &format!("{headers}Unknown: x\r\n"));
                let after = (counters.proxy_requests.get(), counters.api_requests.get());
                // Pages show how long they took.
                if !plain.contains("text/html") {
                    assert_eq!(plain, general, "{method} {path} {headers:?}");
                }
                let counted = (between.0 - before.0, between.1 - before.1);
                assert_eq!(counted, (after.0 - between.0, after.1 - between.1), "{path}");
                redirects += u32::from(plain.starts_with("HTTP/1.1 302 Found\r\nlocation: "));
                bodies += u32::from(plain.ends_with('}') && plain.contains("\"handle\":"));
            }
        }
    }
    assert!(redirects >= 6 && bodies >= 2, "{redirects} redirects, {bodies} bodies");
}

/// Parts of requests, of which about half are plain.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let method = select(vec!["GET", "GET", "GET", "HEAD", "POST", "get"]);
    let path = select(vec![
        PATH,
        PATH,
        "/10.5072/url-one",
        // Pages show how long they took.
        "/api/handles/10.5072/NONE",
        "/api/handles/10.5072/URL-ONE",
        "/10.5072/URL-ONE?urlappend=/x",
        "/robots.txt",
        "//10.5072/URL-ONE",
        "http://x/10.5072/URL-ONE",
    ]);
    let version = select(vec!["1.1", "1.1", "1.1", "1.1", "1.0", "2.0"]);
    let line = select(vec![
        "User-Agent: x\r\n",
        "Accept: */*\r\n",
        "accept-encoding: gzip\r\n",
        "Accept-Language: de\r\n",
        "ORIGIN: https://a.example\r\n",
        "Connection: keep-alive\r\n",
        "DNT:1\r\n",
        "Connection: close\r\n",
        "Host: y\r\n",
        "Unknown: x\r\n",
        "If-None-Match: *\r\n",
        "Content-Length: 0\r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Accept: */*\n",
        "Accept : */*\r\n",
        " folded\r\n",
        "Accept: \t*/*  \r\n",
        "\r",
        "User-Agent: \u{e9}\r\n",
        "User-Agent: \0\r\n",
    ]);
    // Few odd lines, so that some requests follow each other.
    let lines = proptest::collection::vec((line, 0..3_usize), 0..4);
    let lines = lines.prop_map(|lines| lines.into_iter().filter(|(_, odd)| *odd > 0).map(|(line, _)| line));
    let end = select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "", "\r\nhello"]);
    (method, path, version, lines, end).prop_map(|(method, path, version, lines, end)| {
        let lines: String = lines.collect();
        format!("{method} {path} HTTP/{version}\r\nHost: x\r\n{lines}{end}").into_bytes()
    })
}

fn plain_request() -> impl Strategy<Value = Vec<u8>> {
    let path = select(vec![PATH, "/10.5072/url-one", "/api/handles/10.5072/URL-ONE"]);
    let lines = select(vec!["", "Accept: */*\r\n", "Origin: https://a.example\r\nPragma: x\r\n"]);
    (path, lines)
        .prop_map(|(path, lines)| format!("GET {path} HTTP/1.1\r\nhost: x\r\n{lines}\r\n").into_bytes())
}

/// All answers to `pieces`, which are sent one after the other. The last request ends the
/// connection.
fn answers(served: &GatewayServer, pieces: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    for piece in pieces {
        // A server that refuses a request may close before it has read all of it.
        if stream.write_all(piece).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("no end: {error}"),
        _ => without_dates(&bytes),
    }
}

#[test]
fn random_requests_get_the_same_answers_with_and_without_the_reader() {
    let (served, general) = (gateway(|_| ()), gateway_without_reader());
    let requests = || {
        let plain = proptest::collection::vec(plain_request(), 0..4);
        (plain, proptest::collection::vec(request(), 1..4)).prop_map(|(plain, any)| [plain, any].concat())
    };
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(requests in requests(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4))| {
        // hyper reports an incomplete head at once or never, depending on how it arrived.
        let bytes = [requests.concat(), LAST.as_bytes().to_vec()].concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        // Whether a redirect is sent before its request turns out to have a malformed body depends
        // on how the body arrived.
        let text = String::from_utf8_lossy(&bytes);
        if text.contains("Content-Length: 5") || text.contains("chunked") {
            cuts.clear();
        }
        cuts.sort_unstable();
        let (mut pieces, mut rest) = (Vec::new(), &bytes[..]);
        for cut in cuts.into_iter().rev() {
            let (before, piece) = rest.split_at(cut);
            pieces.push(piece);
            rest = before;
        }
        pieces.push(rest);
        pieces.reverse();
        prop_assert_eq!(
            answers(&served, &pieces),
            answers(&general, &pieces),
            "{}",
            text
        );
    });
    let plain = served.gateway.state().counters.answers_3xx.get();
    assert!(plain > 100, "{plain} redirects");
}

/// Reads the answer to one request.
fn read_answer(stream: &mut impl Read, bytes: &mut Vec<u8>) -> HttpAnswer {
    loop {
        if let Some((answer, rest)) = HttpAnswer::split(bytes, false) {
            *bytes = rest.to_vec();
            return answer;
        }
        let mut buffer = [0; 4096];
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "{}", String::from_utf8_lossy(bytes));
        bytes.extend_from_slice(&buffer[..len]);
    }
}

/// Sends requests one after the other, and then all at once.
fn check_answers(mut stream: impl Read + Write, requests: &[&str], statuses: &[u16]) {
    let mut bytes = Vec::new();
    for (request, status) in requests.iter().zip(statuses) {
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut stream, &mut bytes);
        assert_eq!(answer.status, *status, "{request}: {}", answer.text());
    }
    assert!(bytes.is_empty());
    stream.write_all(requests.concat().as_bytes()).unwrap();
    for status in statuses {
        assert_eq!(read_answer(&mut stream, &mut bytes).status, *status);
    }
}

#[test]
fn plain_and_other_requests_follow_each_other_on_one_connection_also_over_tls() {
    let files = tempfile::tempdir().unwrap();
    let served = gateway(|config| use_tls(config, files.path()));
    let redirect = format!("GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n");
    let body = "{\"handles\":[\"10.5072/URL-ONE\"]}";
    let len = body.len();
    let form = format!(
        "POST /api/resolve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {len}\r\n\r\n{body}"
    );
    let requests = [&redirect[..], &redirect, &form, &redirect];
    check_answers(TcpStream::connect(served.address()).unwrap(), &requests, &[302, 302, 200, 302]);
    check_answers(connect_over_tls(served.address()), &requests, &[302, 302, 200, 302]);
    check_answers(connect_over_tls(served.address()), &[&redirect[..]; 9], &[302; 9]);
}

#[test]
fn a_client_that_sends_many_requests_before_it_reads_gets_all_answers() {
    const COUNT: usize = 40_000;
    let served = gateway(|_| ());
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut sender = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let requests = format!("GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n").repeat(COUNT);
        sender.write_all(requests.as_bytes()).unwrap();
    });
    // The answers fill the buffers of the kernel, and then wait.
    std::thread::sleep(Duration::from_millis(300));
    let mut bytes = Vec::new();
    let (mut count, mut buffer) = (0, [0; 64 << 10]);
    while count < COUNT {
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "{count} answers");
        bytes.extend_from_slice(&buffer[..len]);
        let mut rest = &bytes[..];
        while let Some((answer, after)) = HttpAnswer::split(rest, false) {
            assert_eq!(answer.status, 302);
            (count, rest) = (count + 1, after);
        }
        bytes = rest.to_vec();
    }
    sending.join().unwrap();
    assert_eq!((count, bytes.len()), (COUNT, 0));
    assert_eq!(served.gateway.state().counters.answers_3xx.get(), COUNT as u64);
}

#[test]
fn a_client_that_does_not_read_its_answers_loses_the_connection() {
    let served = gateway(|config| config.limits.transfer_ms = 300);
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let requests = format!("GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n").repeat(1000);
    // The server stops reading when it cannot write, and resets the connection later.
    let begun = Instant::now();
    while stream.write_all(requests.as_bytes()).is_ok() {
        assert!(begun.elapsed() < TIMEOUT, "the connection stays open");
    }
    assert!(begun.elapsed() >= Duration::from_millis(300));
    while served.gateway.state().counters.connections_failed.get() == 0 {
        assert!(begun.elapsed() < TIMEOUT, "a failure is counted");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_time_for_a_head_begins_with_the_last_answer() {
    const HEADER_MS: u32 = 1500;
    let served = gateway(|config| config.limits.header_ms = HEADER_MS);
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (request, mut bytes) = (format!("GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n"), Vec::new());
    let begun = Instant::now();
    // Requests one after the other keep the connection open beyond the time for one.
    while begun.elapsed() < Duration::from_millis(u64::from(HEADER_MS) * 3 / 2) {
        stream.write_all(request.as_bytes()).unwrap();
        assert_eq!(read_answer(&mut stream, &mut bytes).status, 302);
        std::thread::sleep(Duration::from_millis(20));
    }
    let idle = Instant::now();
    stream.write_all(&request.as_bytes()[..20]).unwrap();
    assert_eq!(read_answer(&mut stream, &mut bytes).status, 408);
    assert!(idle.elapsed() >= Duration::from_millis(u64::from(HEADER_MS) - 100), "{:?}", idle.elapsed());
    // Without the start of a request, the connection ends without an answer.
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream, &mut bytes).status, 302);
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
}
