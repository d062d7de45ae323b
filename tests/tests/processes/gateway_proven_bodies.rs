//! Long bodies: who sends one is proven by the head of the request, and JSON is read within bounds.

use data_encoding::BASE64;
use handle_tests::gateway_server::{
    AdministeredGateway, HttpAnswer, ask_over_tls, connect_over_tls, get, post,
};
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

const RIGHT: &str = "open sesame open";

fn basic(secret: &str) -> String {
    format!("Authorization: Basic {}\r\n", BASE64.encode(format!("301%3A0.NA/TST:{secret}").as_bytes()))
}

/// A record of more than 64 kB.
fn long_record() -> String {
    let value = |index: usize| format!(r#"{{"index":{index},"type":"DESC","data":"{}"}}"#, "x".repeat(1000));
    let values: Vec<String> = (1..=150).map(value).collect();
    format!("{{\"values\":[{}]}}", values.join(","))
}

#[test]
fn a_long_body_is_not_read_before_its_caller_is_proven() {
    let served = AdministeredGateway::start(|_| (), |_| ());
    let address = served.gateway.address();
    for framing in ["Content-Length: 4000000\r\n", "Transfer-Encoding: chunked\r\n"] {
        let mut stream = connect_over_tls(address);
        let begun = Instant::now();
        let head = format!(
            "PUT /api/handles/TST/LONG HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{}{framing}\r\n",
            basic("wrong")
        );
        // None of the body follows.
        stream.write_all(head.as_bytes()).unwrap();
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        let answer = loop {
            let len = stream.read(&mut buffer).unwrap();
            assert!(len > 0, "{framing}: no answer");
            bytes.extend_from_slice(&buffer[..len]);
            if let Some((answer, _)) = HttpAnswer::split(&bytes, false) {
                break answer;
            }
        };
        assert_eq!(answer.status, 401, "{framing}: {}", answer.text());
        assert!(begun.elapsed() < Duration::from_secs(5), "{framing}: {:?}", begun.elapsed());
        assert_eq!(served.gateway.gateway.state().bodies.count(), 0);
    }
    // The proof serves for the change as well.
    let headers = format!("Content-Type: application/json\r\n{}", basic(RIGHT));
    let put = ask_over_tls(address, "PUT", "/api/handles/TST/LONG", &headers, &long_record());
    assert_eq!(put.status, 201, "{}", put.text());
    assert_eq!(served.gateway.gateway.state().counters.bugs.get(), 0);
}

#[test]
fn a_body_of_many_items_is_refused_where_they_begin() {
    let served = AdministeredGateway::start(|_| (), |_| ());
    let address = served.gateway.address();
    // Not even JSON behind the bounds.
    let items = |start: &str| format!("{start}{}oops", "1,".repeat(1_900_000));
    let headers = format!("Content-Type: application/json\r\n{}", basic(RIGHT));
    for (start, message) in [
        ("[", "values[0]: "),
        ("{\"values\":[", "values[0]: "),
        ("[{\"index\":1,\"data\":[", "Invalid JSON: it has too many items"),
    ] {
        let put = ask_over_tls(address, "PUT", "/api/handles/TST/LONG", &headers, &items(start));
        let json = put.json();
        assert_eq!((put.status, json["responseCode"].as_i64()), (400, Some(4)), "{start}");
        assert!(json["message"].as_str().unwrap().starts_with(message), "{start}: {json}");
    }
    let json = "Content-Type: application/json\r\n";
    let asked = post(address, "/api/resolve", json, items("{\"handles\":[").as_bytes());
    assert_eq!(asked.status, 400, "{}", asked.text());
    assert!(asked.text().contains("too many items"), "{}", asked.text());
    assert_eq!(get(address, "/api/handles/10.5072/URL-ONE", "").status, 200);
}
