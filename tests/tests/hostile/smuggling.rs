//! Requests that another program may read differently than `handle-gateway`, so that an answer
//! could reach the wrong client behind a proxy. `tests/clients/smuggling_run.py` sends the same
//! requests through nginx and HAProxy.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::Gateway;
use handle_proto::Value;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::gateway_server::{HttpAnswer, config, exchange, get};
use handle_tests::records::publish_values;
use handle_tests::upstream_server::{AnswerManner, UpstreamServer};
use handle_tests::vectors;
use serde_json::Value as Json;
use std::net::SocketAddr;

/// Records of the prefix `10.1`: their URLs have the same name, so an answer says what it is about.
const NAMES: [&str; 3] = ["hello", "smuggled-000", "probe"];
/// The last request of each connection.
const PROBE: &[u8] = b"GET /10.1/probe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// The bytes of a request: texts, whose characters are bytes of Latin 1, and pairs of a text and
/// how often it is repeated.
fn request(line: &Json) -> Vec<u8> {
    let latin1 = |text: &Json| -> Vec<u8> {
        text.as_str().unwrap().chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
    };
    let part = |part: &Json| match part.as_array() {
        Some(pair) => latin1(&pair[0]).repeat(usize::try_from(pair[1].as_u64().unwrap()).unwrap()),
        None => latin1(part),
    };
    line["request"].as_array().unwrap().iter().flat_map(part).collect()
}

/// The status of an answer, and the record that it is about.
fn described(answer: &HttpAnswer) -> String {
    let text = answer.text();
    let place = answer.header("location").unwrap_or(&text);
    let name = NAMES.iter().find(|name| place.contains(&format!("https://{name}.example/")));
    name.map_or_else(|| answer.status.to_string(), |name| format!("{} {name}", answer.status))
}

/// The answers to a request and to the probe behind it.
fn answers(address: SocketAddr, request: &[u8]) -> Vec<String> {
    let bytes = exchange(address, &[request, PROBE].concat());
    let (mut rest, mut is_head) = (&bytes[..], request.starts_with(b"HEAD "));
    let mut described_answers = Vec::new();
    while let Some((answer, after)) = HttpAnswer::split(rest, is_head) {
        described_answers.push(described(&answer));
        (rest, is_head) = (after, false);
    }
    if !rest.is_empty() {
        described_answers.push("not HTTP/1".to_owned());
    }
    described_answers
}

#[test]
fn each_answer_belongs_to_its_request_however_requests_are_framed() {
    let directory = tempfile::tempdir().unwrap();
    let set = directory.path().join("set");
    std::fs::create_dir(&set).unwrap();
    let urls = NAMES.map(|name| (format!("10.1/{name}"), format!("https://{name}.example/")));
    let values = urls.each_ref().map(|(name, url)| (name.as_bytes(), Value::new(1, b"URL", url.as_bytes())));
    publish_values(&mut SetPublisher::open(&set).unwrap(), &values);
    let silent = UpstreamServer::start();
    silent.behave(AnswerManner::Silent);
    let mut config = config();
    config.snapshot = Some(set);
    config.upstream.resolver_site = Some(silent.site(directory.path()));
    config.upstream.timeout_ms = 300;
    config.limits.header_ms = 300;
    config.limits.transfer_ms = 300;
    let gateway = Gateway::start(&config).unwrap();
    let address = gateway.addresses()[0];
    let mut wrong = Vec::new();
    let lines = vectors::VectorSource::Own.lines("smuggling.jsonl");
    vectors::require(lines.len(), 250, "requests");
    for line in lines {
        let name = &line["name"];
        let answered = Json::from(answers(address, &request(&line)));
        if answered != line["answers"] {
            wrong.push(format!("{name}: {answered}, not {}", line["answers"]));
        }
        let other = get(address, "/10.1/probe", "");
        assert_eq!(described(&other), "302 probe", "another connection, after {name}");
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(gateway.state().counters.bugs.get(), 0);
}
