//! Requests to `handle-gateway` about many handles, from outside.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway::site_of;
use handle_client::Question;
use handle_gateway::record::HttpQuestion;
use handle_gateway::selection::SELECTION_LEN_MAX;
use handle_gateway::{Config, Gateway};
use handle_proto::Value;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::gateway_server::{GatewayServer, HttpAnswer, config, get, post, serve_over_http};
use handle_tests::records::publish_records;
use handle_tests::source_addresses::tcp_from;
use handle_tests::test_server::serve;
use handle_tests::vectors::VectorSource;
use handle_worker::config::Datapath;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value as Json, json};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LINES: &str = "Content-Type: application/x-ndjson\r\nAccept: application/x-ndjson\r\n";
const DOCUMENT: &str = "Content-Type: application/json\r\n";

fn gateway(change: impl FnOnce(&mut Config)) -> GatewayServer {
    serve_over_http(VectorSource::Own, "root", change).0
}

/// The documents on the lines of a body.
fn lines(answer: &HttpAnswer) -> Vec<Json> {
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What a single request answers, with its status in front.
fn single(address: SocketAddr, handle: &str) -> Json {
    let answer = get(address, &format!("/api/handles/{handle}"), "");
    let Json::Object(body) = answer.json() else { panic!("{handle}: {}", answer.text()) };
    let mut members = serde_json::Map::from_iter([("status".to_owned(), answer.status.into())]);
    members.extend(body);
    Json::Object(members)
}

#[test]
fn many_names_are_answered_in_order_as_each_of_them_alone() {
    let served = gateway(|_| ());
    let address = served.address();
    let names = ["10.5072/URL-ONE", "10.5072/NONE", "10.5072/multi", "99.9999/foreign", "10.5072/url-one"];
    let singles: Vec<Json> = names.iter().map(|name| single(address, name)).collect();
    let body = json!({ "handles": names }).to_string();
    let document = post(address, "/api/resolve", DOCUMENT, body.as_bytes());
    assert_eq!(document.status, 200, "{}", document.text());
    assert_eq!(document.header("content-type"), Some("application/json;charset=utf-8"));
    assert_eq!(document.json(), Json::from(singles.clone()));
    let body = format!("\"{}\"\n\n{{\"handle\":\"{}\"}}\r\n\"{}\"", names[0], names[1], names[2]);
    let answer = post(address, "/api/resolve", LINES, body.as_bytes());
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson;charset=utf-8"));
    assert_eq!(lines(&answer), singles[..3]);
    assert_eq!(served.gateway.state().counters.bulk_names.get(), 8);
}

#[test]
fn types_and_indexes_choose_values_of_every_name() {
    let served = gateway(|_| ());
    let address = served.address();
    let whole = single(address, "10.5072/multi");
    let first = &whole["values"][0];
    for (query, filter) in [
        ("", json!({ "index": first["index"] })),
        ("", json!({ "type": [first["type"]], "index": [] })),
        (&format!("?index={}", first["index"])[..], json!({})),
    ] {
        let mut body = json!({ "handles": ["10.5072/multi"] });
        body.as_object_mut().unwrap().extend(filter.as_object().unwrap().clone());
        let answer =
            post(address, &format!("/api/resolve{query}"), DOCUMENT, body.to_string().as_bytes()).json();
        let values = answer[0]["values"].as_array().unwrap();
        assert!(values.contains(first) && values.len() < whole["values"].as_array().unwrap().len(), "{body}");
    }
}

#[test]
fn a_bad_name_fails_alone_and_a_bad_document_as_a_whole() {
    let served = gateway(|_| ());
    let address = served.address();
    let long = "10.5072/".to_owned() + &"a".repeat(2048);
    let body =
        format!("\"10.5072/URL-ONE\"\n{{\"handle\": oops}}\n17\n\"\"\n\"{long}\"\n\"10.5072/URL-ONE\"\n");
    let answers = lines(&post(address, "/api/resolve", LINES, body.as_bytes()));
    let codes: Vec<_> = answers.iter().map(|it| (it["status"].clone(), it["responseCode"].clone())).collect();
    let expected = [(200, 1), (400, 4), (400, 4), (400, 102), (400, 102), (200, 1)];
    assert_eq!(codes, expected.map(|(status, code)| (Json::from(status), Json::from(code))));
    assert_eq!(answers[1]["message"], "Invalid JSON in line 2, column 12");
    assert!(answers[2]["message"].as_str().unwrap().starts_with("Line 3 is neither"));
    let answers = post(address, "/api/resolve", DOCUMENT, br#"{"handles":[17,"10.5072/URL-ONE"]}"#).json();
    assert_eq!((&answers[0]["status"], &answers[1]["status"]), (&400.into(), &200.into()));
    assert_eq!(answers[0]["message"], "handles[0] is not a string");
    for (headers, body) in [
        (DOCUMENT, &b"{"[..]),
        (DOCUMENT, b"{}"),
        (DOCUMENT, b"[]"),
        (DOCUMENT, br#"{"handles":[],"index":"x"}"#),
        (DOCUMENT, br#"{"handles":[],"type":1}"#),
        ("Content-Type: text/plain\r\n", br#"{"handles":[]}"#),
        ("", br#"{"handles":[]}"#),
    ] {
        let answer = post(address, "/api/resolve", headers, body);
        let text = String::from_utf8_lossy(body);
        assert_eq!((answer.status, answer.json()["responseCode"].as_i64()), (400, Some(4)), "{text}");
    }
    let none = post(address, "/api/resolve", DOCUMENT, br#"{"handles":[]}"#);
    assert_eq!((none.status, none.text().as_str()), (200, "[]"));
    let get = get(address, "/api/resolve", "");
    assert_eq!((get.status, get.header("allow")), (405, Some("POST, OPTIONS")));
}

/// A gateway with a record of many values, a long one and a short one.
struct CostlyRecords {
    gateway: Gateway,
    _directory: TempDir,
}

/// Names in a request.
const NAMES: usize = 1000;
/// Values of the record of [`spelling`].
const VALUES: usize = 2000;
/// Bytes of the value of `10.1/long`.
const LONG_LEN: usize = 200_000;

/// One of 1024 spellings of a handle, which are more than [`NAMES`].
fn spelling(number: usize) -> String {
    let letter = |at: usize| if number >> at & 1 == 1 { 'A' } else { 'a' };
    format!("10.1/{}", (0..10).map(letter).collect::<String>())
}

impl CostlyRecords {
    fn serve(change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let set = directory.path().join("set");
        std::fs::create_dir(&set).unwrap();
        let text = "x".repeat(LONG_LEN);
        let value = |index: usize| Value::new(i32::try_from(index).unwrap(), b"DESC", b"x");
        let many = spelling(0);
        let records: [(&[u8], Vec<Value<'_>>); 3] = [
            (b"10.1/long", vec![Value::new(1, b"DESC", text.as_bytes())]),
            (b"10.1/url", vec![Value::new(1, b"URL", b"https://one.example/")]),
            (many.as_bytes(), (1..=VALUES).map(value).collect()),
        ];
        publish_records(&mut SetPublisher::open(&set).unwrap(), &records);
        let mut config = config();
        config.snapshot = Some(set);
        change(&mut config);
        Self { gateway: Gateway::start(&config).unwrap(), _directory: directory }
    }

    fn address(&self) -> SocketAddr {
        self.gateway.addresses()[0]
    }

    /// The statuses of the answers about these names, and the answers.
    fn resolve(&self, names: &[String], filter: &Json) -> (Vec<u64>, Vec<Json>) {
        let mut body = json!({ "handles": names });
        body.as_object_mut().unwrap().extend(filter.as_object().unwrap().clone());
        let answer = post(self.address(), "/api/resolve", DOCUMENT, body.to_string().as_bytes());
        let answers = answer.json().as_array().unwrap().clone();
        (answers.iter().map(|answer| answer["status"].as_u64().unwrap()).collect(), answers)
    }
}

/// Types of which no value has one, as many as a request may name.
fn many_types() -> Vec<String> {
    (0..120).map(|number| format!("{number:04}")).collect()
}

#[test]
fn what_a_request_costs_has_a_budget() {
    let served = CostlyRecords::serve(|_| ());
    let names: Vec<String> = (0..NAMES).map(spelling).collect();
    // 1024 values and 16 KiB for each name that is allowed, together.
    let (statuses, answers) = served.resolve(&names, &json!({ "index": [7] }));
    let answered = (NAMES * 1024).div_ceil(VALUES);
    assert_eq!(statuses, [vec![200; answered], vec![503; NAMES - answered]].concat());
    for (name, answer) in names.iter().zip(&answers) {
        assert_eq!(&answer["handle"], name, "in order");
    }
    assert_eq!(answers[0]["values"].as_array().unwrap().len(), 1);
    assert_eq!(answers[answered]["responseCode"], 3);
    assert!(answers[answered]["message"].as_str().unwrap().contains("in another request"));
    let names = |count: usize| [vec!["10.1/long".to_owned(); count], vec!["10.1/url".to_owned()]].concat();
    let answered = (NAMES * 16 * 1024).div_ceil(LONG_LEN);
    let (statuses, _) = served.resolve(&names(answered + 3), &json!({}));
    assert_eq!(statuses, [vec![200; answered], vec![503; 4]].concat(), "long answers");
    let (statuses, _) = served.resolve(&names(2), &json!({}));
    assert_eq!(statuses, [200; 3], "another request");
}

#[test]
fn names_that_are_repeated_cost_what_one_costs() {
    let served = CostlyRecords::serve(|_| ());
    let (statuses, answers) = served.resolve(&vec![spelling(1); NAMES], &json!({ "index": [7, 7, 9, 7] }));
    assert_eq!(statuses, [200; NAMES]);
    assert!(answers.iter().all(|answer| answer == &answers[0]));
    let indexes: Vec<_> = answers[0]["values"].as_array().unwrap().iter().map(|it| &it["index"]).collect();
    assert_eq!(indexes, [7, 9]);
}

/// Processor time that the answer about a name takes, as this thread makes it.
fn time_of_a_name(served: &CostlyRecords) -> Duration {
    const NAMES: u32 = 20;
    let types = many_types();
    let types: Vec<&[u8]> = types.iter().map(|kind| kind.as_bytes()).collect();
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let since = now();
    for number in 0..NAMES {
        let question = Question::of_types(spelling(number as usize), &types);
        let question = HttpQuestion::new(question, [127, 0, 0, 1].into());
        let selected = served.gateway.state().answer_here(&question, |it| it.selected(&question).count());
        assert_eq!(selected, Some(0));
    }
    (now() - since) / NAMES
}

#[test]
fn the_requests_of_one_source_take_a_fifth_of_a_core() {
    let served = CostlyRecords::serve(|_| ());
    let filter = json!({ "type": many_types() });
    let name = time_of_a_name(&served);
    let state = served.gateway.state();
    // The first requests have used what a source may take at once.
    let names: Vec<String> = (0..500).map(spelling).collect();
    let body = json!({ "handles": names, "type": many_types() }).to_string();
    let request = format!(
        "POST /api/resolve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut streams: Vec<TcpStream> = (0..4).map(|_| tcp_from([127, 0, 0, 2], served.address())).collect();
    for stream in &mut streams {
        stream.write_all(request.as_bytes()).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    let (before, since) = (state.counters.bulk_names.get(), Instant::now());
    // Another source is served meanwhile.
    let (statuses, _) = served.resolve(&names[..2], &filter);
    assert_eq!(statuses, [200; 2]);
    std::thread::sleep(Duration::from_secs(3));
    let resolved = u32::try_from(state.counters.bulk_names.get() - before).unwrap();
    let took = since.elapsed();
    eprintln!("{resolved} names of {name:?} in {took:?}");
    // A busy machine makes names take longer than they cost, and then there are fewer of them.
    assert!(name * resolved < took / 4, "{resolved} names of {name:?} in {took:?}");
    assert!(resolved > 0, "they go on");
    drop(streams);
}

/// What reads of one record with many types take, of all time, while one source asks for nothing
/// else.
#[test]
fn reads_with_many_types_take_a_fifth_of_a_core() {
    let served = CostlyRecords::serve(|_| ());
    let types: Vec<String> = many_types().iter().map(|kind| format!("type={kind}")).collect();
    let request = format!("GET /api/handles/{}?{} HTTP/1.1\r\nHost: x\r\n\r\n", spelling(0), types.join("&"));
    let (name, is_over, since) = (time_of_a_name(&served), AtomicBool::new(false), Instant::now());
    let asked = std::thread::scope(|scope| {
        let asking = || {
            let mut stream = tcp_from([127, 0, 0, 2], served.address());
            let (mut count, mut buffer) = (0_u32, [0; 1 << 16]);
            while !is_over.load(Ordering::Relaxed) {
                stream.write_all(request.as_bytes()).unwrap();
                let len = stream.read(&mut buffer).unwrap();
                assert!(
                    buffer[..len].starts_with(b"HTTP/1.1 "),
                    "{}",
                    String::from_utf8_lossy(&buffer[..len])
                );
                count += 1;
            }
            count
        };
        let askers: Vec<_> = (0..4).map(|_| scope.spawn(asking)).collect();
        // A plain read of this source is answered meanwhile.
        std::thread::sleep(Duration::from_secs(1));
        let mut plain = tcp_from([127, 0, 0, 2], served.address());
        let begun = Instant::now();
        plain.write_all(b"GET /api/handles/0.NA/NONE HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(plain.read(&mut [0; 1 << 10]).unwrap() > 0);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        std::thread::sleep(Duration::from_secs(2));
        is_over.store(true, Ordering::Relaxed);
        askers.into_iter().map(|asker| asker.join().unwrap()).sum::<u32>()
    });
    let took = since.elapsed();
    eprintln!("{asked} reads of {name:?} in {took:?}");
    // 100 ms at once. A busy machine makes reads take longer than they cost, so there are fewer.
    assert!(name * asked < took / 4 + Duration::from_millis(100), "{asked} reads of {name:?} in {took:?}");
    assert!(asked > 10, "they go on");
}

#[test]
fn the_work_for_a_client_that_has_left_ends() {
    let served = CostlyRecords::serve(|_| ());
    let names: Vec<String> = (0..500).map(spelling).collect();
    let body = json!({ "handles": names, "type": many_types() }).to_string();
    let head = "POST /api/resolve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let mut stream = TcpStream::connect(served.address()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let state = served.gateway.state();
    while state.counters.bulk_names.get() == 0 {
        std::thread::yield_now();
    }
    drop(stream);
    let since = Instant::now();
    while state.answers.count() > 0 {
        assert!(since.elapsed() < Duration::from_secs(10), "{} bytes are kept", state.answers.count());
        std::thread::sleep(Duration::from_millis(1));
    }
    let count = state.counters.bulk_names.get();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(state.counters.bulk_names.get(), count);
    assert!(count < 400, "{count} names were resolved");
}

#[test]
fn a_request_has_as_many_names_as_allowed() {
    let served = gateway(|_| ());
    let address = served.address();
    for (count, status) in [(NAMES, 200), (NAMES + 1, 413)] {
        let names = vec!["10.5072/URL-ONE"; count];
        let body = json!({ "handles": names }).to_string();
        assert_eq!(post(address, "/api/resolve", DOCUMENT, body.as_bytes()).status, status, "{count}");
        let body = "\"10.5072/URL-ONE\"\n".repeat(count);
        assert_eq!(post(address, "/api/resolve", LINES, body.as_bytes()).status, status, "{count}");
    }
}

#[test]
fn a_request_names_indexes_and_types_up_to_a_length() {
    let served = gateway(|_| ());
    let address = served.address();
    for (len, status) in [(SELECTION_LEN_MAX - 4, 200), (SELECTION_LEN_MAX - 3, 400)] {
        let kind = "a".repeat(len);
        let one = get(address, &format!("/api/handles/10.5072/multi?type={kind}"), "");
        let query = post(address, &format!("/api/resolve?type={kind}"), DOCUMENT, br#"{"handles":[]}"#);
        let body = json!({ "handles": ["10.5072/multi"], "type": kind }).to_string();
        let many = post(address, "/api/resolve", DOCUMENT, body.as_bytes());
        for answer in [one, query, many] {
            assert_eq!(answer.status, status, "{len}: {}", answer.text());
            assert!(
                status == 200 || answer.text().contains("Too many indexes and types"),
                "{}",
                answer.text()
            );
        }
        // The proxy ignores what it cannot use: this is the same as no type.
        let page = get(address, &format!("/10.5072/multi?noredirect&type={kind}"), "Accept: text/html\r\n");
        assert_eq!(page.status, if status == 200 { 404 } else { 200 }, "{len}: {}", page.text());
    }
}

#[test]
fn names_of_other_services_are_asked_for_together_and_answered_in_order() {
    let resolver = serve("main", Datapath::Portable);
    let directory = tempfile::tempdir().unwrap();
    let mut config = config();
    config.upstream.resolver_site = Some(site_of(resolver.address(), directory.path()));
    config.upstream.timeout_ms = 2000;
    config.upstream.questions = 128;
    let gateway = Gateway::start(&config).unwrap();
    let address = gateway.addresses()[0];
    let names: Vec<String> = (0..50)
        .map(|at| match at % 5 {
            0 => "10.5072/URL-ONE".to_owned(),
            _ => format!("10.5072/none-{at}"),
        })
        .collect();
    let body = json!({ "handles": names }).to_string();
    let answer = post(address, "/api/resolve", DOCUMENT, body.as_bytes());
    let answers = answer.json();
    let found: Vec<_> = answers.as_array().unwrap().iter().map(|it| it["handle"].clone()).collect();
    assert_eq!(Json::from(found), Json::from(names.clone()));
    assert!(
        answers
            .as_array()
            .unwrap()
            .iter()
            .enumerate()
            .all(|(at, it)| it["status"] == if at % 5 == 0 { 200 } else { 404 })
    );
    drop(resolver);
    let body = json!({ "handles": ["10.5072/URL-ONE", "10.5072/multi", "10.5072/none-1"] }).to_string();
    let answers = post(address, "/api/resolve", DOCUMENT, body.as_bytes()).json();
    assert_eq!((&answers[0]["status"], &answers[2]["status"]), (&200.into(), &404.into()), "cached");
    assert!(matches!(answers[1]["status"].as_i64(), Some(502 | 504)), "{answers}");
}
