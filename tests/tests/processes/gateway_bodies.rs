//! Answers of `handle-gateway` that do not need the body of their request: they reach clients that
//! send it late, and the connection goes on or says that it ends.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use h2::client::handshake;
use handle_gateway::Config;
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, connect_over_tls, serve_over_http, tls_client, use_tls,
};
use handle_tests::vectors::VectorSource;
use http::Request;
use rustls::pki_types::ServerName;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

/// Time between the head of a request and its body, as in clients that send both apart.
const PAUSE: Duration = Duration::from_millis(30);
const NEXT: &str = "GET /api/handles/10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\n\r\n";

fn gateway(change: impl FnOnce(&mut Config)) -> (GatewayServer, TempDir) {
    let files = tempfile::tempdir().unwrap();
    let served = serve_over_http(VectorSource::Own, "root", |config| {
        use_tls(config, files.path());
        change(config);
    });
    (served.0, files)
}

/// Requests with bodies: method, target, headers, and the status of the answer over TLS.
const EARLY: [(&str, &str, &str, u16); 11] = [
    ("PUT", "/api/handles/10.5072/NEW", "Content-Type: application/json\r\n", 401),
    ("PUT", "/api/handles/10.5072/NEW", "Authorization: Basic ***\r\n", 401),
    ("DELETE", "/api/handles/10.5072/NEW", "", 401),
    ("POST", "/api/batch", "Content-Type: application/x-ndjson\r\n", 401),
    ("POST", "/api/resolve", "Content-Type: text/plain\r\n", 400),
    ("POST", "/api/resolve?callback=1", "Content-Type: application/json\r\n", 400),
    ("POST", "/api/nowhere", "", 404),
    ("PUT", "/10.5072/URL-ONE", "", 405),
    ("PATCH", "/api/handles/10.5072/URL-ONE", "", 501),
    ("GET", "/10.5072/URL-ONE", "", 302),
    ("OPTIONS", "/api/batch", "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n", 200),
];

/// Reads the answer to one request.
fn read_answer(stream: &mut impl Read, bytes: &mut Vec<u8>) -> HttpAnswer {
    loop {
        if let Some((answer, rest)) = HttpAnswer::split(bytes, false) {
            *bytes = rest.to_vec();
            return answer;
        }
        let mut buffer = [0; 4096];
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "the connection has ended: {}", String::from_utf8_lossy(bytes));
        bytes.extend_from_slice(&buffer[..len]);
    }
}

/// A body in the two framings of HTTP/1.1: the header, and the bytes.
fn framed(len: usize) -> [(String, Vec<u8>); 2] {
    let body = vec![b' '; len];
    let chunk = [format!("{len:x}\r\n").as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    [(format!("Content-Length: {len}\r\n"), body), ("Transfer-Encoding: chunked\r\n".to_owned(), chunk)]
}

/// Sends a head and, after a pause, the body, and then another request on the connection.
fn check_kept(mut stream: impl Read + Write, request: (&str, &str, &str), status: Option<u16>, len: usize) {
    let (method, target, headers) = request;
    let mut bytes = Vec::new();
    for (framing, body) in framed(len) {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: x\r\n{headers}{framing}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        std::thread::sleep(PAUSE);
        stream.write_all(&body).unwrap();
        let answer = read_answer(&mut stream, &mut bytes);
        assert_eq!(answer.header("connection"), None, "{head}");
        if let Some(status) = status {
            assert_eq!(answer.status, status, "{head}: {}", answer.text());
        }
        stream.write_all(NEXT.as_bytes()).unwrap();
        assert_eq!(read_answer(&mut stream, &mut bytes).status, 200, "after {head}");
    }
    assert!(bytes.is_empty());
}

#[test]
fn a_connection_goes_on_after_an_answer_that_did_not_wait_for_the_body() {
    let (served, _files) = gateway(|config| config.limits.body_bytes = 1024);
    let address = served.address();
    for (method, target, headers, status) in EARLY {
        for len in [10, 300_000] {
            let request = (method, target, headers);
            check_kept(connect_over_tls(address), request, Some(status), len);
            check_kept(TcpStream::connect(address).unwrap(), request, None, len);
        }
    }
    let long = ("POST", "/api/resolve", "Content-Type: application/json\r\n");
    check_kept(connect_over_tls(address), long, Some(413), 300_000);
    assert_eq!(served.gateway.state().counters.bugs.get(), 0);
}

#[test]
fn a_refusal_for_the_rate_of_requests_keeps_the_connection() {
    let (served, _files) = gateway(|config| {
        config.request_rate.requests_per_s = 1;
        config.request_rate.burst = 1;
    });
    let mut stream = TcpStream::connect(served.address()).unwrap();
    let (mut bytes, mut statuses) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        stream.write_all(b"PUT /10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n").unwrap();
        std::thread::sleep(PAUSE);
        stream.write_all(b"abcd").unwrap();
        statuses.push(read_answer(&mut stream, &mut bytes).status);
    }
    assert_eq!(statuses, [405, 429, 429, 429]);
}

/// The answer on a connection that ends after it.
fn last_answer(address: SocketAddr, request: &str) -> HttpAnswer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let answer = read_answer(&mut stream, &mut bytes);
    // A client that has been told closes its side.
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0, "the connection ends");
    answer
}

#[test]
fn an_answer_after_which_the_connection_ends_says_so() {
    const DISCARDED_LEN_MAX: usize = 16 << 20;
    let (served, _files) = gateway(|_| ());
    let head = "PUT /10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\n";
    let len = DISCARDED_LEN_MAX + 1;
    let chunk = format!("{len:x}\r\n{}\r\n", " ".repeat(len));
    for (rest, what) in [
        (format!("Content-Length: {len}\r\n\r\n"), "more than is discarded"),
        (format!("Transfer-Encoding: chunked\r\n\r\n{chunk}"), "more than is discarded, in chunks"),
        ("Content-Length: 4\r\n\r\nab".to_owned(), "a body that does not arrive in time"),
        ("Content-Length: 4\r\nExpect: 100-continue\r\n\r\n".to_owned(), "a client that waits"),
        ("Content-Length: 4\r\nConnection: close\r\n\r\nabcd".to_owned(), "the last request"),
        ("Transfer-Encoding: chunked\r\n\r\nxyz\r\n".to_owned(), "a broken body"),
    ] {
        let begun = Instant::now();
        let answer = last_answer(served.address(), &format!("{head}{rest}"));
        assert_eq!((answer.status, answer.header("connection")), (405, Some("close")), "{what}");
        assert!(begun.elapsed() < Duration::from_secs(6), "{what}: {:?}", begun.elapsed());
    }
}

#[test]
fn an_answer_over_http2_reaches_a_client_before_its_stream_ends() {
    let (served, _files) = gateway(|config| config.limits.body_bytes = 1024);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(served.address()).await.unwrap();
        let connector = TlsConnector::from(Arc::new(tls_client(&[b"h2"])));
        let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
        let (requests, connection) = handshake(stream).await.unwrap();
        tokio::spawn(connection);
        for (method, target, headers, status) in EARLY {
            for len in [10, 1000, 1_000_000] {
                let mut request = Request::builder().method(method).uri(format!("https://localhost{target}"));
                for (name, value) in headers.lines().filter_map(|line| line.split_once(": ")) {
                    request = request.header(name, value);
                }
                let mut requests = requests.clone().ready().await.unwrap();
                let (answer, mut body) = requests.send_request(request.body(()).unwrap(), false).unwrap();
                let answer = tokio::spawn(answer);
                tokio::time::sleep(PAUSE / 10).await;
                let mut left = len;
                while left > 0 {
                    body.reserve_capacity(left);
                    let capacity = std::future::poll_fn(|context| body.poll_capacity(context)).await;
                    let capacity = capacity.expect("the stream is open").expect("it is not reset");
                    left -= capacity.min(left);
                    body.send_data(vec![b' '; capacity].into(), left == 0).expect("it is not reset");
                }
                let answer = answer.await.unwrap().expect("the answer is not lost");
                assert_eq!(answer.status().as_u16(), status, "{method} {target} {len}");
                let mut answered = answer.into_body();
                while let Some(data) = answered.data().await {
                    data.expect("it is not reset");
                }
            }
        }
    });
}
