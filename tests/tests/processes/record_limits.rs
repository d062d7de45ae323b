//! What can be stored can be published and answered; whatever else is refused on its way in, with
//! the limit.

use handle_proto::Value;
use handle_proto::limit::{HANDLE_LEN_MAX, REFERENCES_COUNT_MAX, VALUES_COUNT_MAX, VALUES_LEN_MAX};
use handle_tests::daemon::{ask, free_address};
use handle_tests::gateway_server::get;
use handle_tests::process::{RunningProcess, fail, program, succeed, until};
use handle_tests::service_directory::InitialisedService;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value as Json, json};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// The bytes of a value in wire form besides its type and data.
const VALUE_LEN: usize = Value::LEN_MIN;

fn value(index: usize, kind: &str, data_len: usize) -> Json {
    json!({ "index": index, "type": kind, "data": { "format": "string", "value": "x".repeat(data_len) } })
}

fn with_references(count: usize) -> Json {
    let references = vec![json!({ "index": 1, "handle": "10.1045/x" }); count];
    json!({ "index": 1, "type": "URL", "references": references, "data": { "format": "string", "value": "x" } })
}

/// Records at a limit, and beyond it by one: the name, the values, and what a refusal says.
fn records(beyond: usize) -> Vec<(String, Vec<Json>, &'static str)> {
    let data_len = VALUES_LEN_MAX - VALUE_LEN - "T".len() + beyond;
    let kind = "T".repeat(VALUES_LEN_MAX - VALUE_LEN + beyond);
    let many = (1..=VALUES_COUNT_MAX + beyond).map(|index| value(index, "T", 1));
    let name = |start: &str| format!("10.1045/{start}");
    let long = name(&"n".repeat(HANDLE_LEN_MAX - name("").len() + beyond));
    let len = "258048";
    vec![
        (name("data"), vec![value(1, "T", data_len)], len),
        (name("type"), vec![value(1, &kind, 0)], len),
        (
            name("two"),
            vec![value(1, "T", data_len / 2), value(2, "T", data_len.div_ceil(2) - VALUE_LEN - 1)],
            len,
        ),
        (name("values"), many.collect(), "2048"),
        (name("references"), vec![with_references(REFERENCES_COUNT_MAX + beyond)], "1024"),
        (long, vec![value(1, "T", 1)], "2048"),
    ]
}

/// The lines of JSON of records.
fn lines(records: &[(String, Vec<Json>, &str)]) -> String {
    let line =
        |(handle, values, _): &(String, Vec<Json>, &str)| json!({ "handle": handle, "values": values });
    records.iter().map(|record| line(record).to_string() + "\n").collect()
}

/// A gateway before the service, which hands changes over to its `handle-admin`.
fn start_gateway(service: &InitialisedService) -> (RunningProcess, SocketAddr) {
    let address = free_address();
    let mut command = Command::new(program("handle-gateway", "handle-gateway"));
    command.arg("--config").arg(service.path("site/handle-gateway.toml")).args([
        "--allow-root",
        "--log",
        "warn",
    ]);
    command.args(["--listen", &address.to_string()]).stdin(Stdio::null());
    let gateway = RunningProcess::start(command);
    let control = service.path("site/run/handle-gateway.sock");
    until("the gateway serves", || ask(&control, "status")["pid"].is_u64());
    (gateway, address)
}

/// How a handle is answered over UDP and TCP, to its administrator, and over HTTP: the number of
/// its values.
fn answered(service: &InitialisedService, gateway: SocketAddr, handle: &str) -> [usize; 4] {
    let count = |answer: &Json| answer["values"].as_array().map_or(0, Vec::len);
    let resolved = |more: &[&str]| {
        let queries = service.queries.to_string();
        let mut command = service.hdl(["resolve", handle, "--server", &queries, "--json"]);
        command.args(more);
        count(&serde_json::from_str(&succeed(command)).expect("JSON"))
    };
    let own = succeed(service.hdl_as_admin(["handle", "get", handle, "--json"]));
    let path = format!("/api/handles/{}", utf8_percent_encode(handle, NON_ALPHANUMERIC));
    let http = get(gateway, &path, "");
    assert_eq!(http.status, 200, "{handle:.40}: {:.200}", http.text());
    [
        resolved(&[]),
        resolved(&["--tcp"]),
        count(&serde_json::from_str(&own).expect("JSON")),
        count(&http.json()),
    ]
}

#[test]
fn records_at_a_limit_are_answered_and_beyond_it_refused_on_every_way_in() {
    let mut service = InitialisedService::make();
    let (fitting, unfit) = (records(0), records(1));
    std::fs::write(service.path("fitting.jsonl"), lines(&fitting)).expect("a file");
    std::fs::write(service.path("unfit.jsonl"), lines(&unfit) + &lines(&fitting)).expect("a file");
    let (code, error) = fail(service.hdl(["import", "site/store.redb", "unfit.jsonl"]));
    assert!(code == 1 && error.contains("258048"), "{error}");
    let (code, error) = fail(service.hdl([
        "import",
        "site/store.redb",
        "unfit.jsonl",
        "--keep-going",
        "--report",
        "refused.jsonl",
    ]));
    assert_eq!((code, error.trim()), (1, ""));
    let refused = std::fs::read_to_string(service.path("refused.jsonl")).expect("the report");
    assert_eq!(refused.lines().count(), unfit.len(), "{refused:.2000}");
    for (line, (.., limit)) in refused.lines().zip(&unfit) {
        let line: Json = serde_json::from_str(line).expect("JSON");
        assert!(line["reason"].as_str().expect("a text").contains(limit), "{}", line["reason"]);
    }
    succeed(service.hdl(["store", "check", "site/store.redb"]));
    service.start_admin();
    service.start_handled();
    // The same of a change of an administrator.
    let data_len = VALUES_LEN_MAX - VALUE_LEN - "T".len();
    for (beyond, is_refused) in [(1, true), (0, false)] {
        std::fs::write(service.path("data"), "x".repeat(data_len + beyond)).expect("a file");
        let create = service.hdl_as_admin(["handle", "create", "10.1045/new", "1:T=@data"]);
        match is_refused {
            true => assert!(fail(create).1.contains("258049 bytes; at most 258048 fit")),
            false => drop(succeed(create)),
        }
    }
    let add = service.hdl_as_admin(["handle", "update", "10.1045/new", "2:T=x"]);
    assert!(fail(add).1.contains("at most 258048 fit"));
    let (_gateway, gateway) = start_gateway(&service);
    for (handle, values, _) in &fitting {
        assert_eq!(answered(&service, gateway, handle), [values.len(); 4], "{handle:.40}");
    }
}
