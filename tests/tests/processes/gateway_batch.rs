//! `POST /api/batch` of `handle-gateway`: many changes in one request, from outside.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::Config;
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::gateway_server::{
    GatewayServer, HttpAnswer, connect_over_tls, described, exchange_over_tls, get, post, post_request,
    serve_over_http, use_tls,
};
use handle_tests::process::{hdl, succeed, until};
use handle_tests::vectors::VectorSource;
use serde_json::{Value as Json, json};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// `301:0.NA/TST`, which has every right.
pub(crate) const ADMINISTRATOR: &str = "Basic MzAxJTNBMC5OQS9UU1Q6b3BlbiBzZXNhbWUgb3Blbg==";
/// The same with another secret.
const WRONG: &str = "Basic MzAxJTNBMC5OQS9UU1Q6d3Jvbmc=";
/// `305:0.NA/TST`, which may only read.
const READER: &str = "Basic MzA1JTNBMC5OQS9UU1Q6cmVhZCBvbmx5IGFkbWlu";

struct BatchService {
    admin: AdminServer,
    gateway: GatewayServer,
}

pub(crate) fn administered(change: impl FnOnce(&mut handle_admin::config::Config)) -> AdminServer {
    administer_with("root", |config| {
        config.local.socket = Some(config.store.file.with_file_name("admin.socket"));
        change(config);
    })
}

/// A gateway that hands changes over at `socket`.
pub(crate) fn gateway_at(socket: PathBuf, change: impl FnOnce(&mut Config)) -> GatewayServer {
    let files = tempfile::tempdir().unwrap();
    let (gateway, _) = serve_over_http(VectorSource::Own, "root", |config| {
        config.admin.address = Some(([127, 0, 0, 1], 1).into());
        config.admin.socket = Some(socket);
        use_tls(config, files.path());
        change(config);
    });
    gateway
}

impl BatchService {
    fn start() -> Self {
        Self::start_with(|_| (), |_| ())
    }

    fn start_with(
        change_admin: impl FnOnce(&mut handle_admin::config::Config),
        change_gateway: impl FnOnce(&mut Config),
    ) -> Self {
        let admin = administered(change_admin);
        let socket = admin.config.local.socket.clone().unwrap();
        Self { gateway: gateway_at(socket, change_gateway), admin }
    }

    fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    fn batch(&self, caller: &str, further: &str, body: &str) -> HttpAnswer {
        batch(self.address(), caller, further, body)
    }

    /// The values of a record in the store.
    fn stored(&self, handle: &str) -> Option<usize> {
        stored(&self.admin, handle)
    }
}

pub(crate) fn stored(admin: &AdminServer, handle: &str) -> Option<usize> {
    use handle_store::{StoreRecords as _, key};
    let snapshot = admin.server().shared().service.store.snapshot().unwrap();
    let record = snapshot.record(&key(handle.as_bytes(), true)).unwrap();
    record.map(|record| record.view().values.len())
}

pub(crate) fn request(caller: &str, further: &str, body: &str) -> Vec<u8> {
    let headers = format!("Content-Type: application/x-ndjson\r\nAuthorization: {caller}\r\n{further}");
    post_request("/api/batch", &headers, body.as_bytes())
}

pub(crate) fn batch(address: SocketAddr, caller: &str, further: &str, body: &str) -> HttpAnswer {
    let bytes = exchange_over_tls(address, &request(caller, further, body));
    described("POST", "/api/batch", &bytes)
}

fn lines(answer: &HttpAnswer) -> Vec<Json> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Line numbers and response codes.
pub(crate) fn codes(answer: &HttpAnswer) -> Vec<(i64, i64)> {
    let of = |line: &Json| (line["line"].as_i64().unwrap(), line["responseCode"].as_i64().unwrap());
    lines(answer).iter().map(of).collect()
}

pub(crate) fn creation(name: &str) -> String {
    let url = json!({ "index": 1, "type": "URL", "data": "https://example.org/" });
    json!({ "handle": name, "values": [url] }).to_string() + "\n"
}

pub(crate) fn creations(prefix: &str, count: usize) -> String {
    (0..count).map(|at| creation(&format!("TST/{prefix}-{at}"))).collect()
}

#[test]
fn every_operation_is_carried_out_in_the_order_of_the_lines() {
    let service = BatchService::start();
    let value = |index: i32| json!({ "index": index, "type": "URL", "data": "https://example.org/" });
    let admin = json!({ "index": 100, "type": "HS_ADMIN", "data": { "format": "admin",
        "value": { "handle": "0.NA/TST", "index": 301, "permissions": "111111111111" } } });
    let change = |operation: &str, values: Json| {
        json!({ "operation": operation, "handle": "TST/batch", "values": values }).to_string()
    };
    let body = [
        change("create", json!([value(1), admin])),
        change("create", json!([value(1)])),
        change("replace", json!([value(1), value(2), admin])),
        String::new(),
        change("add", json!([value(3)])),
        change("add", json!([value(3)])),
        change("modify", json!([value(2)])),
        change("modify", json!([value(9)])),
        json!({ "operation": "remove", "handle": "TST/batch", "indexes": [1, 2] }).to_string(),
        json!({ "operation": "remove", "handle": "TST/batch", "indexes": [1] }).to_string(),
        json!({ "operation": "delete", "handle": "TST/NONE" }).to_string(),
        creation("99.9999/foreign").trim().to_owned(),
        change("create", json!([value(1), value(1)])),
        json!({ "handle": "TST/other", "values": [admin] }).to_string(),
        json!({ "operation": "delete", "handle": "TST/other" }).to_string(),
    ];
    let answer = service.batch(ADMINISTRATOR, "", &body.join("\n"));
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson;charset=utf-8"));
    let expected = [
        (1, 1),
        (2, 101),
        (3, 1),
        (5, 1),
        (6, 201),
        (7, 1),
        (8, 200),
        (9, 1),
        (10, 200),
        (11, 100),
        (12, 301),
        (13, 201),
        (14, 1),
        (15, 1),
    ];
    assert_eq!(codes(&answer), expected, "{}", answer.text());
    let handles: Vec<_> = lines(&answer).iter().map(|line| line["handle"].clone()).collect();
    assert_eq!((&handles[0], &handles[9]), (&json!("TST/batch"), &json!("TST/NONE")));
    assert_eq!((service.stored("TST/batch"), service.stored("TST/other")), (Some(2), None));
    let audit = std::fs::read_to_string(service.admin.config.audit.as_ref().unwrap()).unwrap();
    let changed = audit.lines().filter(|line| line.contains("301:0.NA/TST") || line.contains("TST/batch"));
    assert!(changed.count() >= 8, "changes are in the audit log: {audit}");
    assert_eq!(service.gateway.gateway.state().counters.bulk_records.get(), 14);
}

#[test]
fn a_bad_line_says_where_it_is_bad_and_harms_no_other() {
    let service = BatchService::start();
    let long = format!("{{\"handle\":\"TST/{}\"}}\n", "a".repeat(2 << 20));
    let body = [&creation("TST/good-1")[..], "{\"handle\": \"TST/x\", oops}\n", "[]\n", &long];
    let body = body.concat() + creation("TST/good-2").trim();
    let answer = service.batch(ADMINISTRATOR, "", &body);
    assert_eq!(codes(&answer), [(1, 1), (2, 4), (3, 4), (4, 4), (5, 1)]);
    let lines = lines(&answer);
    let message = lines[1]["message"].as_str().unwrap();
    assert!(message.starts_with("Invalid JSON in line 2, column 21: "), "{message}");
    assert_eq!(lines[3]["message"], "Line too long: the maximum is 2097152 bytes");
    assert!(service.stored("TST/good-1").is_some() && service.stored("TST/good-2").is_some());
}

#[test]
fn callers_are_proven_and_each_line_needs_the_right() {
    let service = BatchService::start();
    let body = creation("TST/denied");
    let wrong = service.batch(WRONG, "", &body);
    assert_eq!((wrong.status, wrong.header("www-authenticate").is_some()), (401, true));
    let unknown = service.batch("Bearer abc", "", &body);
    assert_eq!(unknown.status, 401);
    let headers = "Content-Type: application/x-ndjson\r\n";
    let anonymous =
        exchange_over_tls(service.address(), &post_request("/api/batch", headers, body.as_bytes()));
    let anonymous = HttpAnswer::split(&anonymous, false).unwrap().0;
    assert_eq!((anonymous.status, anonymous.json()["responseCode"].as_i64()), (401, Some(402)));
    let plain = format!("{headers}Authorization: {ADMINISTRATOR}\r\n");
    let plain = post(service.address(), "/api/batch", &plain, body.as_bytes());
    assert_eq!((plain.status, plain.json()["responseCode"].as_i64()), (403, Some(402)), "over plain HTTP");
    let reader = service.batch(READER, "", &(body.clone() + &creation("TST/denied-2")));
    assert_eq!(codes(&reader), [(1, 400), (2, 400)]);
    assert_eq!(service.stored("TST/denied"), None);
    let media = post_request(
        "/api/batch",
        &format!("Content-Type: text/plain\r\nAuthorization: {ADMINISTRATOR}\r\n"),
        b"{}",
    );
    let media = HttpAnswer::split(&exchange_over_tls(service.address(), &media), false).unwrap().0;
    assert_eq!((media.status, media.json()["responseCode"].as_i64()), (415, Some(4)));
    assert_eq!(get(service.address(), "/api/batch", "").status, 405);
}

#[test]
fn a_request_has_as_many_records_as_allowed() {
    const RECORDS_MAX: usize = 100_000;
    const KEYED_LEN_MAX: usize = 64 << 20;
    let service = BatchService::start();
    // Entries that change nothing, after three that do.
    let most = creations("first", 3) + &"{}\n".repeat(RECORDS_MAX - 3);
    let over = most.clone() + &creation("TST/over");
    let answer = service.batch(ADMINISTRATOR, "", &over);
    let codes = codes(&answer);
    assert_eq!((&codes[..4], codes.len()), (&[(1, 1), (2, 1), (3, 1), (4, 4)][..], RECORDS_MAX + 1));
    let last = answer.text().lines().last().map(str::to_owned).unwrap();
    assert!(last.contains("A request has at most 100000 records"), "{last}");
    assert_eq!(service.stored("TST/over"), None);
    let over = over.replace("TST/first", "TST/keyed");
    assert_eq!(service.batch(ADMINISTRATOR, "Idempotency-Key: k\r\n", &over).status, 413);
    assert_eq!(service.stored("TST/keyed-0"), None, "with a key, nothing is carried out");
    let keyed = |len: usize| {
        let head = format!(
            "POST /api/batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/x-ndjson\r\nAuthorization: {ADMINISTRATOR}\r\n\
             Idempotency-Key: a\r\nExpect: 100-continue\r\nContent-Length: {len}\r\n\r\n"
        );
        let mut stream = connect_over_tls(service.address());
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert_eq!(keyed(KEYED_LEN_MAX), "HTTP/1.1 100", "the body is asked for");
    assert_eq!(keyed(KEYED_LEN_MAX + 1), "HTTP/1.1 413");
    for bad in [
        "Idempotency-Key: \r\n",
        "Idempotency-Key: a\r\nIdempotency-Key: a\r\n",
        "Idempotency-Key: \u{e9}\r\n",
    ] {
        assert_eq!(service.batch(ADMINISTRATOR, bad, "").status, 400, "{bad}");
    }
    let key = |len: usize| format!("Idempotency-Key: {}\r\n", "k".repeat(len));
    assert_eq!(service.batch(ADMINISTRATOR, &key(255), "").status, 200);
    assert_eq!(service.batch(ADMINISTRATOR, &key(256), "").status, 400);
}

#[test]
fn a_repeated_request_gets_the_same_results_and_changes_nothing() {
    // One identity has a quarter of these results, and four of the 15 keys that go with them.
    let service = BatchService::start_with(|config| config.bulk.results = 4 * 703, |_| ());
    let key = |name: &str| format!("Idempotency-Key: {name}\r\n");
    let body = creations("once", 700) + "oops\n" + &creation("TST/once-0");
    let first = service.batch(ADMINISTRATOR, &key("one"), &body);
    assert_eq!(codes(&first)[699..], [(700, 1), (701, 4), (702, 101)]);
    let changes = service.admin.server().shared().service.store.last_id();
    let again = service.batch(ADMINISTRATOR, &key("one"), &body);
    assert_eq!(again.text(), first.text());
    assert_eq!(service.admin.server().shared().service.store.last_id(), changes, "nothing was changed");
    let other = service.batch(ADMINISTRATOR, &key("one"), &creation("TST/other"));
    assert_eq!((other.status, other.json()["responseCode"].as_i64()), (422, Some(4)), "{}", other.text());
    assert_eq!(service.stored("TST/other"), None);
    let of_reader = service.batch(READER, &key("one"), &creation("TST/other"));
    assert_eq!(codes(&of_reader), [(1, 400)], "each identity has keys of its own");
    // The oldest of five keys is dropped.
    for name in ["two", "three", "four", "five"] {
        assert_eq!(service.batch(ADMINISTRATOR, &key(name), "").status, 200, "{name}");
    }
    let dropped = service.batch(ADMINISTRATOR, &key("one"), &body);
    assert_eq!(codes(&dropped)[..2], [(1, 101), (2, 101)]);
    let plain = service.batch(ADMINISTRATOR, "", &creation("TST/once-0"));
    assert_eq!(codes(&plain), [(1, 101)]);
}

/// What `hdl batch` reads is read in a body as well.
#[test]
fn bodies_of_every_form_are_read() {
    let service = BatchService::start();
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path();
    let send = |media: &str, further: &str, body: &[u8]| {
        let headers = format!("Content-Type: {media}\r\nAuthorization: {ADMINISTRATOR}\r\n{further}");
        let bytes = exchange_over_tls(service.address(), &post_request("/api/batch", &headers, body));
        codes(&described("POST", "/api/batch", &bytes))
    };
    let csv = |name: &str| {
        format!(
            "\u{feff}sep=;\r\nhandle;index;type;data\r\nTST/{name};1;URL;\"x; y\"\r\nTST/{name};2;EMAIL;z\r\n"
        )
    };
    let pretty = |name: &str| {
        let record = json!({ "responseCode": 1, "handle": format!("TST/{name}"), "values": [
            { "index": 1, "type": "URL", "data": { "format": "string", "value": "x" } },
            { "index": 2, "type": "EMAIL", "data": { "format": "string", "value": "y" } } ] });
        serde_json::to_string_pretty(&record).unwrap()
    };
    // A homed prefix is refused in its place.
    let export = |name: &str| {
        let record: Json = serde_json::from_str(&pretty(name)).unwrap();
        json!({ "homedPrefixes": ["0.NA/TST"], "handleRecords": { format!("TST/{name}"): record } })
            .to_string()
    };
    let exported = |name: &str| {
        let [store, records] = ["store.redb", "records"].map(|file| files.join(file));
        std::fs::write(&records, export(name)).unwrap();
        let places = [&store, &records].map(|path| path.to_str().unwrap());
        succeed(hdl(["import", places[0], places[1], "--create", "--homed", "TST"]));
        let text = succeed(hdl(["export", places[0], "-"]));
        std::fs::remove_file(store).unwrap();
        text
    };
    let batch = |name: &str| {
        format!(
            "# operations\nCREATE TST/{name}\n1 URL 86400 1110 UTF8 x\n2 URL 86400 1110 UTF8 y\n\nDELETE TST/none\n"
        )
    };
    let packed = |text: String| zstd::encode_all(text.as_bytes(), 3).unwrap();
    let any = "application/octet-stream";
    for (at, (media, body, expected)) in [
        ("text/csv", csv("form-0").into_bytes(), &[(3, 1)][..]),
        (any, csv("form-1").replace(';', "\t").into_bytes(), &[(3, 1)]),
        ("application/json", pretty("form-2").into_bytes(), &[(1, 1)]),
        (any, format!("[{}]", pretty("form-3")).into_bytes(), &[(1, 1)]),
        (any, batch("form-4").into_bytes(), &[(2, 1), (6, 100)]),
        ("application/zstd", packed(csv("form-5")), &[(3, 1)]),
        ("application/x-ndjson", packed(pretty("form-6")), &[(1, 1)]),
        ("application/json", export("form-7").into_bytes(), &[(0, 4), (1, 1)]),
        (any, export("form-8").into_bytes(), &[(0, 4), (1, 1)]),
        (any, exported("form-9").into_bytes(), &[(1, 4), (2, 1)]),
    ]
    .into_iter()
    .enumerate()
    {
        let key = if at % 2 == 0 { "" } else { "Idempotency-Key: forms\r\n" };
        let key = key.replace("forms", &format!("form-{at}"));
        assert_eq!(send(media, &key, &body), expected, "{at}");
        assert_eq!(service.stored(&format!("TST/form-{at}")), Some(2), "{at}");
    }
    // Who makes the changes is said by the request, and files of the server are not read.
    let foreign = "AUTHENTICATE SECKEY:300:0.NA/TST\nsecret\nDELETE TST/none\nCREATE TST/file\n1 URL 86400 1110 FILE x\n";
    assert_eq!(send(any, "", foreign.as_bytes()), [(1, 4), (3, 100), (4, 4)]);
    for (body, what) in
        [("TST/form-0\n", "list of names"), ("INSERT INTO nas VALUES ('0.NA/X');\n", "SQL dump")]
    {
        for further in ["", "Idempotency-Key: form\r\n"] {
            let headers = format!("Content-Type: {any}\r\nAuthorization: {ADMINISTRATOR}\r\n{further}");
            let request = post_request("/api/batch", &headers, body.as_bytes());
            let answer = described("POST", "/api/batch", &exchange_over_tls(service.address(), &request));
            let text = answer.text();
            assert!(
                answer.status == 415 && text.contains(what) && text.contains("Send lines of JSON"),
                "{text}"
            );
        }
    }
    // What unpacks without end ends.
    assert_eq!(send(any, "", &packed("\n".repeat(16 << 20))), [(1, 4)]);
}

/// Bodies that pause take no threads from other sources, nor permits at `handle-admin`.
#[test]
fn a_source_has_as_many_bodies_under_way_as_allowed() {
    let service = BatchService::start();
    let mut open = Vec::new();
    for _ in 0..32 {
        let mut stream = connect_over_tls(service.address());
        stream.write_all((head(ADMINISTRATOR, "") + &chunk("\n")).as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        open.push(stream);
    }
    let refused = service.batch(ADMINISTRATOR, "", &creation("TST/refused"));
    assert_eq!((refused.status, refused.json()["responseCode"].as_i64()), (503, Some(3)));
    open.pop();
    let since = Instant::now();
    while service.batch(ADMINISTRATOR, "", &creation("TST/taken")).status != 200 {
        assert!(since.elapsed() < Duration::from_secs(10), "the thread of a client that left ends");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn results_arrive_while_lines_are_still_being_sent() {
    let service = BatchService::start();
    let mut stream = connect_over_tls(service.address());
    let head = format!(
        "POST /api/batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
         Content-Type: application/x-ndjson\r\nAuthorization: {ADMINISTRATOR}\r\n\r\n"
    );
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    stream.write_all((head + &chunk(&creation("TST/streamed-1"))).as_bytes()).unwrap();
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    let mut read_until = |stream: &mut dyn std::io::Read, wanted: &str| {
        while !seen.contains(wanted) {
            let len = stream.read(&mut buffer).unwrap();
            assert!(len > 0, "{wanted}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..len]));
        }
    };
    read_until(&mut stream, "{\"line\":1,\"responseCode\":1,\"handle\":\"TST/streamed-1\"}");
    assert!(service.stored("TST/streamed-1").is_some(), "durable before it is acknowledged");
    stream.write_all((chunk(&creation("TST/streamed-2")) + "0\r\n\r\n").as_bytes()).unwrap();
    read_until(&mut stream, "{\"line\":2,\"responseCode\":1,\"handle\":\"TST/streamed-2\"}");
}

/// The head of a request whose body comes in chunks.
fn head(caller: &str, further: &str) -> String {
    format!(
        "POST /api/batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Transfer-Encoding: chunked\r\nContent-Type: application/x-ndjson\r\n\
         Authorization: {caller}\r\n{further}\r\n"
    )
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

#[test]
fn requests_that_wait_for_their_clients_take_no_permit() {
    let service = BatchService::start_with(
        |_| (),
        |config| {
            // Two of them for one source.
            config.admin.requests = 8;
        },
    );
    let begin = |caller: &str, further: &str, first: String| {
        let mut stream = connect_over_tls(service.address());
        stream.write_all((head(caller, further) + &first).as_bytes()).unwrap();
        stream
    };
    // Of strangers: each is refused by its head, with an endless body or not.
    for number in 0..6 {
        let key = format!("Idempotency-Key: {number}\r\n");
        let mut stream = begin(WRONG, if number % 2 == 0 { &key } else { "" }, chunk("{"));
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 401");
    }
    // Of administrators who pause: within a body that is read whole, after a line, and within one.
    let keyed: Vec<_> =
        (0..3).map(|at| begin(ADMINISTRATOR, &format!("Idempotency-Key: w{at}\r\n"), chunk("\n"))).collect();
    let mut paused = Vec::new();
    for at in 0..4 {
        let first = creation(&format!("TST/paused-{at}"));
        let begun = if at % 2 == 0 { first } else { first + "{\"handle\"" };
        paused.push(begin(ADMINISTRATOR, "", chunk(&begun)));
        // There are two permits; each is free again after a moment, for another request of the same
        // source.
        let since = Instant::now();
        let other = loop {
            let answer = service.batch(ADMINISTRATOR, "", &creations(&format!("other-{at}"), 2));
            if answer.status == 200 || since.elapsed() > Duration::from_secs(10) {
                break answer;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert_eq!(codes(&other), [(1, 1), (2, 1)], "with {} that pause", at + 1);
    }
    for (at, mut stream) in paused.into_iter().enumerate() {
        let second = creation(&format!("TST/second-{at}"));
        let rest = if at % 2 == 0 { second } else { second.replacen("{\"handle\"", "", 1) };
        let rest = format!("{}0\r\n\r\n", chunk(&rest));
        stream.write_all(rest.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = described("POST", "/api/batch", &answer);
        assert_eq!(codes(&answer), [(1, 1), (2, 1)], "{at}: {}", answer.text());
        assert!(service.stored(&format!("TST/second-{at}")).is_some());
    }
    drop(keyed);
}

#[test]
fn changes_in_progress_have_their_results_when_the_administration_stops() {
    let mut service = BatchService::start();
    let (address, state) = (service.address(), Arc::clone(service.admin.server().shared()));
    let store = &state.service.store;
    // All other changes wait for this one.
    let (begin, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let held = store.begin_change(move |_| {
        begin.send(()).unwrap();
        let _ = released.recv();
        Ok(())
    });
    let held = held.unwrap();
    begun.recv().unwrap();
    let before = store.waiting();
    let changing = std::thread::spawn(move || batch(address, ADMINISTRATOR, "", &creation("TST/STOPPED")));
    until("the change waits", || store.waiting() > before);
    let stopping = std::thread::spawn(move || service.admin.stop());
    // For longer than connections without a request need to end.
    std::thread::sleep(Duration::from_millis(300));
    assert!(state.is_draining() && !stopping.is_finished(), "it waits for the change");
    drop(release);
    held.wait().unwrap();
    assert_eq!(codes(&changing.join().unwrap()), [(1, 1)]);
    stopping.join().unwrap();
}

#[test]
fn requests_beyond_the_connections_of_the_administration_wait_for_their_turn() {
    let service = BatchService::start_with(|config| config.local.bulk_connections = 1, |_| ());
    let address = service.address();
    let requests: Vec<_> = (0..8)
        .map(|number| {
            let body = creation(&format!("TST/TURN-{number}"));
            std::thread::spawn(move || batch(address, ADMINISTRATOR, "", &body))
        })
        .collect();
    for request in requests {
        assert_eq!(codes(&request.join().unwrap()), [(1, 1)]);
    }
    assert_eq!(service.admin.server().shared().service.counters.local_refused.get(), 0);
}

#[test]
fn requests_that_the_administration_does_not_let_wait_are_told_that_it_is_busy() {
    let no_connections = |config: &mut handle_admin::config::Config| {
        (config.local.bulk_connections, config.local.waiting_connections) = (0, 0);
    };
    let service = BatchService::start_with(no_connections, |_| ());
    let refused = service.batch(ADMINISTRATOR, "", &creation("TST/BUSY"));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.header("retry-after").is_some() && refused.text().contains("Too many requests"));
}

#[test]
fn a_body_that_breaks_off_has_an_answer_that_does_not_look_whole() {
    let service = BatchService::start_with(|_| (), |config| config.limits.transfer_ms = 300);
    let text = request(ADMINISTRATOR, "", &creations("cut", 20));
    let answer = exchange_over_tls(service.address(), &text[..text.len() - 10]);
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("\"line\":19,\"responseCode\":1"), "{text}");
    assert!(HttpAnswer::split(&answer, false).is_none(), "the last chunk is missing: {text}");
}

#[test]
fn processes_of_other_users_and_false_frames_are_refused() {
    let service = BatchService::start();
    let socket = service.admin.config.local.socket.clone().unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    for frame in [
        &b"\x01\x02\0\0\0\x01\x09"[..],
        b"\x01\x02\xff\xff\xff\xff",
        b"\x01\x02\0\0\0\0",
        b"\x01\x02\0\0\0\x01\x03",
        b"\0\x02\0\0\0\x01\x09",
        b"\x01\0\0\0\0\x01\x09",
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(frame).unwrap();
        // A frame that names a caller is challenged before it is read; nothing answers the proof.
        let _ = stream.write_all(frame);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 6 + 1 + 16, "{answer:?}");
    }
    assert_eq!(codes(&service.batch(ADMINISTRATOR, "", &creation("TST/after"))), [(1, 1)]);
    assert_eq!(service.admin.server().shared().service.counters.bugs.get(), 0);
}
