//! Targets of requests as people and fronts write them, to `handle-gateway`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, connect_over_tls, exchange, get, serve_over_http, use_tls,
};
use handle_tests::vectors::VectorSource;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tempfile::TempDir;

/// Names as people paste them, with every character that clients should have encoded.
const NAMES: [&str; 3] = [
    "10.5072/1521-3951(200209)233:1<10::aid-pssb10>3.0.co;2-v",
    "10.5072/a`b\"c{d|e\\f^g}h",
    "10.5072/\u{65e5}\u{672c}<\u{e9}>",
];

fn gateway() -> (GatewayServer, TempDir) {
    let files = tempfile::tempdir().unwrap();
    let served = serve_over_http(VectorSource::Own, "root", |config| use_tls(config, files.path()));
    (served.0, files)
}

/// Sends requests, all at once or one after the other, and checks that each is about its name.
fn check_names(mut stream: impl Read + Write, at_once: bool) {
    let body = "{}<";
    let requests = NAMES.iter().flat_map(|name| {
        let target = format!("/api/handles/{name}?callback=f&x=<\">");
        let headers =
            format!("HTTP/1.1\r\nHost: x\r\nContent-Type: text/<\r\nContent-Length: {}", body.len());
        [
            format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"),
            format!("POST {target} {headers}\r\n\r\n{body}"),
        ]
    });
    let requests: Vec<String> = requests.collect();
    let mut bytes = Vec::new();
    if at_once {
        stream.write_all(requests.concat().as_bytes()).unwrap();
    }
    for (at, request) in requests.iter().enumerate() {
        if !at_once {
            stream.write_all(request.as_bytes()).unwrap();
        }
        let answer = loop {
            if let Some((answer, rest)) = HttpAnswer::split(&bytes, false) {
                bytes = rest.to_vec();
                break answer;
            }
            let mut buffer = [0; 4096];
            let len = stream.read(&mut buffer).unwrap();
            assert!(len > 0, "{request}: {}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&buffer[..len]);
        };
        let name = serde_json::Value::from(NAMES[at / 2]);
        let expected = format!("f({{\"responseCode\":100,\"handle\":{name}}});");
        assert_eq!((answer.status, answer.text()), (404, expected), "{request}");
    }
}

#[test]
fn names_are_read_as_people_paste_them() {
    let (served, _files) = gateway();
    for at_once in [false, true] {
        check_names(TcpStream::connect(served.address()).unwrap(), at_once);
        check_names(connect_over_tls(served.address()), at_once);
    }
    // A page, and bytes that are not UTF-8.
    assert_eq!(get(served.address(), "/10.5072/a<b>", "").status, 404);
    let broken = b"GET /api/handles/10.5072/a\xff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answer = HttpAnswer::split(&exchange(served.address(), broken), false).unwrap().0;
    assert_eq!((answer.status, answer.json()["responseCode"].as_i64()), (400, Some(102)));
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[test]
fn names_are_read_over_http2_as_curl_writes_them() {
    let (served, _files) = gateway();
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(4, 0, 0, b"")).unwrap();
    for (at, name) in (0..).zip(NAMES) {
        let path = format!("/api/handles/{name}");
        // GET, http, a literal path that is not added to the table, and the host.
        let mut fields = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
        fields.extend_from_slice(path.as_bytes());
        fields.extend_from_slice(&[0x01, 1, b'x']);
        let headers = frame(1, 5, 2 * at + 1, &fields);
        for part in headers.chunks(20) {
            stream.write_all(part).unwrap();
        }
        let body = loop {
            let mut header = [0; 9];
            stream.read_exact(&mut header).unwrap();
            let mut payload = vec![0; usize::from(header[1]) << 8 | usize::from(header[2])];
            stream.read_exact(&mut payload).unwrap();
            match header[3] {
                0 => break String::from_utf8(payload).unwrap(),
                3 | 7 => panic!("{name} is reset: {payload:?}"),
                _ => {}
            }
        };
        let expected = format!("{{\"responseCode\":100,\"handle\":{}}}", serde_json::Value::from(name));
        assert_eq!(body, expected);
    }
}

#[test]
fn targets_of_fronts_and_of_deployed_clients_are_read() {
    let (served, _files) = gateway();
    let url = "https://example.org/one";
    for target in ["/https:/doi.org/10.5072/URL-ONE", "/http:/hdl.handle.net/10.5072/URL-ONE"] {
        let answer = get(served.address(), target, "");
        assert_eq!((answer.status, answer.header("location")), (302, Some(url)), "{target}");
    }
    assert_eq!(get(served.address(), "/https:/example.org/10.5072/URL-ONE", "").status, 400);
    let expected = get(served.address(), "/api/handles/10.5072/URL-ONE", "").body;
    for start in ["/API/handles/", "/Api/handles/"] {
        // The OpenAPI document has the usual spelling only.
        let request = format!("GET {start}10.5072/URL-ONE HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = exchange(served.address(), request.as_bytes());
        let answer = HttpAnswer::split(&answer, false).unwrap().0;
        assert_eq!((answer.status, answer.body), (200, expected.clone()), "{start}");
    }
    let preflight = "OPTIONS /api/batch HTTP/1.1\r\nHost: x\r\nConnection: close\r\nOrigin: https://a.example\r\n\
                     Access-Control-Request-Method: POST\r\n\
                     Access-Control-Request-Headers: authorization,idempotency-key\r\n\r\n";
    let answer = HttpAnswer::split(&exchange(served.address(), preflight.as_bytes()), false).unwrap().0;
    let allowed = answer.list("access-control-allow-headers");
    for name in ["Authorization", "Content-Type", "If-Match", "If-None-Match", "Idempotency-Key"] {
        assert!(allowed.split(',').any(|it| it.trim() == name), "{name}: {allowed}");
    }
}
