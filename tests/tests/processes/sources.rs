//! Handles that a source of records has: asked for by `handle-admin`, also for clients of
//! `handled`, under the rules of stored records.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_gateway::Gateway;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Message, Reply, Request, Response};
use handle_proto::{OpFlags, Permissions, ResponseCode as Code, Value, ValueBuf, Values, Version};
use handle_source::{GuardedSource, SourceConfig, SourceKind};
use handle_tests::client::{TestClient, exchange_over_tcp};
use handle_tests::daemon::free_address;
use handle_tests::forwarding::{BothProcesses, answer_to, code, message};
use handle_tests::needs::{TestNeed, has};
use handle_tests::process::until;
use handle_tests::record_backend::{BackendBehaviour, RecordBackend};
use handle_tests::services::{ServicesPlan, admin, secret};
use handle_tests::session::ClientSession;
use handle_tests::{gateway_server, http, json_schema};
use serde_json::Value as Json;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SECRET: &[u8] = b"a secret of this service";
const SOURCE_SECRET: &[u8] = b"a secret that the source has";
const ADMIN: Reference<'_> = Reference { handle: b"10.1/who", index: 301 };
const SOURCE_ADMIN: Reference<'_> = Reference { handle: b"10.1/at-source", index: 301 };
const PRIVATE: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 & !OpFlags::PUBLIC_ONLY.0);

fn plan() -> ServicesPlan {
    ServicesPlan::new(
        "server",
        &["10.1"],
        vec![
            ("0.NA/10.1", vec![admin(100, 301, "10.1/who")]),
            ("10.1/who", vec![secret(301, SECRET)]),
            ("10.1/stored", vec![url(1, "https://stored.example/")]),
        ],
    )
}

fn url(index: i32, target: &str) -> ValueBuf {
    ValueBuf::from(&Value::new(index, b"URL", target.as_bytes()))
}

fn hidden(index: i32) -> ValueBuf {
    let value = Value::new(index, b"NOTE", b"not for all");
    ValueBuf::from(&Value { permissions: Permissions::ADMIN_READ, ..value })
}

fn records() -> Vec<(&'static str, Vec<ValueBuf>)> {
    let administered = vec![
        url(1, "https://source.example/"),
        hidden(2),
        admin(100, 301, "10.1/who"),
        admin(101, 301, "10.1/at-source"),
    ];
    vec![
        ("10.1/item", administered),
        ("10.1/stored", vec![url(1, "https://hidden-by-the-store.example/")]),
        ("10.1/at-source", vec![secret(301, SOURCE_SECRET)]),
    ]
}

/// Both processes, with a source of kind `http` for `10.1`.
fn start(backend: &RecordBackend, change: impl FnOnce(&mut SourceConfig)) -> BothProcesses {
    let mut source = SourceConfig {
        name: "backend".to_owned(),
        prefixes: vec!["10.1".to_owned()],
        url: backend.url(),
        cache_s: 0,
        ..SourceConfig::default()
    };
    change(&mut source);
    start_with(source)
}

fn start_with(source: SourceConfig) -> BothProcesses {
    let there = ServicesPlan::new("mirror", &["20.2"], vec![]);
    let change_handled =
        |config: &mut handle_worker::config::Config| config.forward.sources = vec!["10.1".to_owned()];
    BothProcesses::start(&plan(), &there, change_handled, |config| config.sources = vec![source])
}

fn source(processes: &BothProcesses) -> &GuardedSource {
    processes.admin.server().shared().service.decision.sources().unwrap().iter().next().unwrap()
}

fn query(handle: &str) -> Request<'_> {
    let (indexes, types) = (Indexes::EMPTY, Strings::EMPTY);
    Request::Resolution(Query { handle: handle.as_bytes(), indexes, types })
}

fn ask(server: SocketAddr, flags: OpFlags, request: &Request<'_>) -> Vec<u8> {
    exchange_over_tcp(server, &message(Version::CURRENT, 12, flags, request)).unwrap()
}

/// The data of the values in an answer.
fn data(message: &[u8]) -> Vec<String> {
    let (envelope, rest) = Envelope::split(message).unwrap();
    let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
    let Body::Reply(Reply { response: Response::Answer(answer), .. }) = body else {
        panic!("no values: {:?}", code(message))
    };
    answer.values.iter().map(|value| String::from_utf8_lossy(value.data).into_owned()).collect()
}

#[test]
fn public_values_of_a_source_are_answered_at_both_processes() {
    let backend = RecordBackend::start(&records());
    let processes = start(&backend, |_| ());
    let mut client = TestClient::new(processes.queries());
    let answered = client.resolve(b"10.1/Item").unwrap();
    assert_eq!(
        (answered.code, &answered.handle[..], answered.values_count),
        (Code::SUCCESS, &b"10.1/Item"[..], 3)
    );
    for server in [processes.queries(), processes.administration()] {
        let answer = ask(server, OpFlags::PLAIN_REQUEST, &query("10.1/item"));
        assert_eq!(data(&answer)[0], "https://source.example/");
        assert!(!data(&answer).contains(&"not for all".to_owned()));
        let answer = ask(server, OpFlags::PLAIN_REQUEST, &query("10.1/stored"));
        assert_eq!(data(&answer), ["https://stored.example/"], "the store comes first");
        let answer = ask(server, OpFlags::PLAIN_REQUEST, &query("10.1/nobody"));
        assert_eq!(code(&answer), Code::HANDLE_NOT_FOUND);
    }
    assert_eq!(client.resolve(b"10.1/nobody").unwrap().code, Code::HANDLE_NOT_FOUND);
    assert_eq!(client.resolve(b"10.1/stored").unwrap().code, Code::SUCCESS);
    let requests = backend.requests();
    assert_eq!(client.resolve(b"10.9/item").unwrap().code, Code::SERVER_NOT_RESPONSIBLE);
    assert_eq!(client.resolve(b"10.1/stored").unwrap().code, Code::SUCCESS);
    assert_eq!(backend.requests(), requests, "neither is a question for the source");
    let counts = source(&processes).counts();
    assert_eq!((counts.of("found"), counts.of("absent")), (3, 3));
}

#[test]
fn private_values_of_a_source_are_for_administrators() {
    let backend = RecordBackend::start(&records());
    let processes = start(&backend, |_| ());
    for server in [processes.queries(), processes.administration()] {
        // Both the identity in the store and the one whose key the source has.
        for (identity, secret) in [(ADMIN, SECRET), (SOURCE_ADMIN, SOURCE_SECRET)] {
            let challenge = ask(server, PRIVATE, &query("10.1/item"));
            assert_eq!(code(&challenge), Code::AUTHENTICATION_NEEDED);
            let answer = exchange_over_tcp(server, &answer_to(&challenge, identity, secret)).unwrap();
            assert!(data(&answer).contains(&"not for all".to_owned()));
        }
        let challenge = ask(server, PRIVATE, &query("10.1/item"));
        let wrong = exchange_over_tcp(server, &answer_to(&challenge, SOURCE_ADMIN, SECRET)).unwrap();
        assert_eq!(code(&wrong), Code::AUTHENTICATION_FAILED);
        let challenge = ask(server, PRIVATE, &query("10.1/item"));
        let stranger = Reference { index: 300, ..ADMIN };
        let stranger = exchange_over_tcp(server, &answer_to(&challenge, stranger, SECRET)).unwrap();
        assert_eq!(code(&stranger), Code::INVALID_ADMIN);
        // A key is not even for administrators.
        let answer = ask(server, OpFlags::PLAIN_REQUEST, &query("10.1/at-source"));
        assert_eq!(code(&answer), Code::VALUES_NOT_FOUND);
    }
}

#[test]
fn handles_of_a_source_are_read_in_sessions() {
    let backend = RecordBackend::start(&records());
    let processes = start(&backend, |_| ());
    let server = processes.queries();
    let server_key = handle_tests::test_server::server_key("root");
    let mut session = ClientSession::open(exchange_over_tcp, server, ADMIN, &server_key);
    let request = session.request(13, OpFlags::PLAIN_REQUEST, &query("10.1/item"));
    let request = session.seal(request);
    let (public, _) = session.read(&exchange_over_tcp(server, &request).unwrap());
    assert_eq!(data(&public)[0], "https://source.example/");
    for hides in [false, true] {
        let request = session.request(14, PRIVATE, &query("10.1/item"));
        let request = session.seal(request);
        let request = if hides { session.encrypt(&request) } else { request };
        let (mut answer, _) = session.read(&exchange_over_tcp(server, &request).unwrap());
        if code(&answer) == Code::AUTHENTICATION_NEEDED {
            let proof = answer_to(&answer, ADMIN, SECRET);
            answer = session.read(&exchange_over_tcp(server, &proof).unwrap()).0;
        }
        assert!(data(&answer).contains(&"not for all".to_owned()), "encrypted: {hides}");
    }
    let mut wrong = session.seal(session.request(15, PRIVATE, &query("10.1/item")));
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(code(&exchange_over_tcp(server, &wrong).unwrap()), Code::INVALID_SESSION_KEY);
}

#[test]
fn records_of_a_source_over_http_are_not_changed_here() {
    let backend = RecordBackend::start(&records());
    let processes = start(&backend, |_| ());
    let server = processes.administration();
    let mut buffer = Vec::new();
    let new = url(7, "https://new.example/");
    let values = Values::build([new.view()], &mut buffer);
    let change = |handle: &'static str, request: &Request<'_>| {
        let challenge = ask(server, OpFlags::PLAIN_REQUEST, request);
        assert_eq!(code(&challenge), Code::AUTHENTICATION_NEEDED, "{handle}");
        exchange_over_tcp(server, &answer_to(&challenge, ADMIN, SECRET)).unwrap()
    };
    let add = Request::AddValue(HandleValues { handle: b"10.1/item", values });
    assert_eq!(code(&change("10.1/item", &add)), Code::OPERATION_NOT_SUPPORTED);
    let delete = Request::DeleteHandle(HandleBody { handle: b"10.1/item" });
    assert_eq!(code(&change("10.1/item", &delete)), Code::OPERATION_NOT_SUPPORTED);
    let create = Request::CreateHandle(HandleValues { handle: b"10.1/item", values });
    let exists = ask(server, OpFlags::PLAIN_REQUEST, &create);
    assert_eq!(code(&exists), Code::HANDLE_ALREADY_EXISTS);
    // What the source does not have is created in the store.
    let create = Request::CreateHandle(HandleValues { handle: b"10.1/new", values });
    assert_eq!(code(&change("10.1/new", &create)), Code::SUCCESS);
    let mut client = TestClient::new(processes.queries());
    until("the new handle is published", || client.resolve(b"10.1/new").unwrap().code == Code::SUCCESS);
    backend.behave(BackendBehaviour::Hanging);
    assert_eq!(client.resolve(b"10.1/new").unwrap().code, Code::SUCCESS);
}

#[test]
fn a_bad_back_end_gets_its_clients_an_error_and_nobody_else() {
    for (behaviour, result, expected) in [
        (BackendBehaviour::Hanging, "late", Code::SERVER_BUSY),
        (BackendBehaviour::Closing, "unreachable", Code::SERVER_BUSY),
        (BackendBehaviour::Lying, "invalid", Code::ERROR),
        (BackendBehaviour::Flooding, "too_long", Code::ERROR),
        (BackendBehaviour::Failing, "refused", Code::ERROR),
    ] {
        let backend = RecordBackend::start(&records());
        let processes = start(&backend, |source| {
            source.timeout_ms = if behaviour == BackendBehaviour::Hanging { 100 } else { 20_000 };
        });
        let mut client = TestClient::new(processes.queries());
        assert_eq!(client.resolve(b"10.1/item").unwrap().code, Code::SUCCESS);
        backend.behave(behaviour);
        for _ in 0..5 {
            assert_eq!(client.resolve(b"10.1/item").unwrap().code, expected, "{behaviour:?}");
            assert_eq!(client.resolve(b"10.1/stored").unwrap().code, Code::SUCCESS, "{behaviour:?}");
        }
        assert_eq!(source(&processes).counts().of(result), 5, "{behaviour:?}");
        assert_eq!(source(&processes).is_paused(), expected == Code::SERVER_BUSY, "{behaviour:?}");
        backend.behave(BackendBehaviour::Honest);
        until("the source is asked again", || client.resolve(b"10.1/item").unwrap().code == Code::SUCCESS);
        assert!(!source(&processes).is_paused());
    }
}

#[test]
fn more_requests_than_a_source_takes_are_busy_while_others_are_answered() {
    let backend = RecordBackend::start(&records());
    let processes = start(&backend, |source| (source.outstanding, source.timeout_ms) = (2, 20_000));
    backend.behave(BackendBehaviour::Hanging);
    let server = processes.queries();
    std::thread::scope(|scope| {
        for at in 0..2 {
            scope.spawn(move || {
                let handle = format!("10.1/hangs-{at}");
                assert_eq!(code(&ask(server, OpFlags::PLAIN_REQUEST, &query(&handle))), Code::SERVER_BUSY);
            });
        }
        until("both places are taken", || source(&processes).outstanding() == 2);
        let mut client = TestClient::new(server);
        assert_eq!(client.resolve(b"10.1/item").unwrap().code, Code::SERVER_BUSY);
        assert_eq!(source(&processes).counts().of("busy"), 1);
        assert_eq!(client.resolve(b"10.1/stored").unwrap().code, Code::SUCCESS);
        // Ends the two that hang.
        backend.behave(BackendBehaviour::Closing);
    });
}

#[test]
fn a_program_is_a_source() {
    let script = r#"exec sed -u 's/^{"id":\([0-9]*\),"handle":"\([^"]*\)"}$/{"id":\1,"handle":"\2","values":[{"index":1,"type":"URL","data":"https:\/\/a.example\/\2"}]}/'"#;
    let processes = start_with(SourceConfig {
        name: "script".to_owned(),
        prefixes: vec!["10.1".to_owned()],
        kind: SourceKind::Program,
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        timeout_ms: 20_000,
        ..SourceConfig::default()
    });
    let answer = ask(processes.queries(), OpFlags::PLAIN_REQUEST, &query("10.1/any"));
    assert_eq!(data(&answer), ["https://a.example/10.1/ANY"]);
}

/// The blocks of Python in the document, which are a back end over HTTP and a program.
fn documented_scripts() -> Vec<&'static str> {
    let after_marks = include_str!("../../../docs/sources.md").split("```python\n").skip(1);
    after_marks.map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn documented_scripts_are_sources() {
    if !has(TestNeed::Python, Path::new("/usr/bin/python3").exists()) {
        return;
    }
    let [back_end, program] = documented_scripts()[..] else { panic!("two scripts") };
    let directory = tempfile::tempdir().unwrap();
    let (script, port) = (directory.path().join("records.py"), free_address().port());
    std::fs::write(&script, back_end.replace("8080", &port.to_string())).unwrap();
    let _running =
        KilledAtEnd(Command::new("/usr/bin/python3").arg(&script).stderr(Stdio::null()).spawn().unwrap());
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    until("the back end is up", || TcpStream::connect(address).is_ok());
    let template = SourceConfig {
        name: "documented".to_owned(),
        prefixes: vec!["10.1".to_owned()],
        timeout_ms: 20_000,
        ..SourceConfig::default()
    };
    let url = format!("http://{address}/records");
    let processes = start_with(SourceConfig { url, ..template.clone() });
    let answer = ask(processes.queries(), OpFlags::PLAIN_REQUEST, &query("10.1/any"));
    assert_eq!(data(&answer), ["https://repository.example/items/ANY"]);
    drop(processes);
    let body = http::get(address, "/records/10.1%2FANY").unwrap().body;
    require_contract(&serde_json::from_str(&body).unwrap());

    std::fs::write(&script, program).unwrap();
    let command = vec!["/usr/bin/python3".to_owned(), script.to_str().unwrap().to_owned()];
    let processes = start_with(SourceConfig { kind: SourceKind::Program, command, ..template });
    let answer = ask(processes.queries(), OpFlags::PLAIN_REQUEST, &query("10.1/any"));
    assert_eq!(data(&answer), ["https://repository.example/10.1/ANY"]);
}

/// Kills a process when it is dropped.
struct KilledAtEnd(Child);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that the OpenAPI document describes a record.
fn require_contract(record: &Json) {
    assert_eq!(contract_fault("Record", record), None);
}

/// What the OpenAPI document finds wrong with a value.
fn contract_fault(schema: &str, value: &Json) -> Option<String> {
    let document: Json = serde_json::from_str(include_str!("../../../docs/source-openapi.json")).unwrap();
    let schema = &document["components"]["schemas"][schema];
    assert_eq!(json_schema::unknown_keyword(schema), None);
    json_schema::fault(&document, schema, value, "the value")
}

#[test]
fn the_contract_describes_the_lines_of_pages() {
    let long = format!(r#"{{"cursor":"{}","more":true}}"#, "x".repeat(1025));
    for (schema, line, is_described) in [
        ("PageEnd", r#"{"cursor":"7","more":true}"#, true),
        ("PageEnd", r#"{"more":false}"#, true),
        ("PageEnd", r#"{"cursor":"7"}"#, false),
        ("PageEnd", r#"{"cursor":7,"more":true}"#, false),
        ("PageEnd", &long, false),
        ("DeletedHandle", r#"{"handle":"10.1/A","responseCode":100}"#, true),
    ] {
        let value: Json = serde_json::from_str(line).unwrap();
        let fault = contract_fault(schema, &value);
        assert_eq!(fault.is_none(), is_described, "{line}: {fault:?}");
        let read = handle_source::listing::ListedLine::parse(line.as_bytes());
        assert_eq!(read.is_ok(), is_described, "{line}: {read:?}");
    }
}

#[test]
fn the_contract_describes_what_is_read() {
    let record = |handle: &str, values: &[ValueBuf]| {
        handle_proto::json::record_to_json(handle.as_bytes(), values.iter().map(ValueBuf::view))
    };
    for (handle, values) in records() {
        let record = record(handle, &values);
        require_contract(&record);
        let text = record.to_string();
        let key = handle.to_ascii_uppercase();
        assert!(
            handle_source::contract::read_record(text.as_bytes(), key.as_bytes(), true).is_ok(),
            "{text}"
        );
    }
}

#[test]
fn handles_of_a_source_are_found_over_http() {
    let backend = RecordBackend::start(&records());
    let processes = start(&backend, |_| ());
    let directory = processes.admin.directory.path();
    let mut config = gateway_server::config();
    config.snapshot = Some(directory.join("set"));
    config.upstream.resolver_site = Some(directory.join("siteinfo.json"));
    (config.upstream.sources, config.upstream.cache_s) = (vec!["10.1".to_owned()], 0);
    let gateway = Gateway::start(&config).unwrap();
    let get = |path: &str| gateway_server::get(gateway.addresses()[0], path, "");
    let shown = get("/api/handles/10.1/item");
    assert_eq!(
        (shown.status, &shown.json()["values"][0]["data"]["value"]),
        (200, &"https://source.example/".into())
    );
    assert!(!shown.text().contains("not for all"));
    assert_eq!(get("/10.1/item").header("location"), Some("https://source.example/"));
    assert_eq!(get("/api/handles/10.1/none").status, 404);
    backend.behave(BackendBehaviour::Failing);
    assert_eq!(get("/api/handles/10.1/other").status, 502);
    assert_eq!(get("/10.1/stored").header("location"), Some("https://stored.example/"));
}
