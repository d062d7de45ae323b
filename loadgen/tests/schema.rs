//! `docs/report-schema.md` names every schema and every member that is written, and no other.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::process::Command;
use std::thread;

use serde_json::Value as Json;

const DOCUMENT: &str = include_str!("../../docs/report-schema.md");

/// The part of the document about each schema.
const PARTS: [(&str, &str); 6] = [
    ("handle-loadgen/run/1", "A run"),
    ("handle-loadgen/compare/1", "A comparison"),
    ("handle-loadgen/find-max/1", "The highest rate"),
    ("handle-loadgen/limit/1", "The limit"),
    ("handle-loadgen/hostile/1", "Hostile requests"),
    ("handle-loadgen/replay/1", "Requests sent again"),
];

/// The names between backquotes in the part with this title.
fn documented(title: &str) -> BTreeSet<String> {
    let mut parts = DOCUMENT.split("\n## ").skip(1);
    let part = parts.find(|part| part.lines().next() == Some(title)).unwrap();
    // Other text between backquotes, such as options and formulas, is not a name.
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let prose = part.split("```").step_by(2).collect::<String>();
    prose.split('`').skip(1).step_by(2).filter(|text| is_name(text)).map(str::to_owned).collect()
}

fn names_in(json: &Json, names: &mut BTreeSet<String>) {
    match json {
        Json::Object(members) => members.iter().for_each(|(name, value)| {
            names.insert(name.clone());
            names_in(value, names);
        }),
        Json::Array(items) => items.iter().for_each(|item| names_in(item, names)),
        _ => {}
    }
}

/// All names that were written, by schema.
type NamesBySchema = BTreeMap<String, BTreeSet<String>>;

fn note(json: &Json, written: &mut NamesBySchema) {
    let schema = json["schema"].as_str().unwrap().to_owned();
    assert!(DOCUMENT.contains(&format!("| `{schema}` |")), "docs/report-schema.md does not have {schema}");
    names_in(json, written.entry(schema).or_default());
}

/// The setting, the times and the machine are documented once, in the part about runs.
fn compare(written: &NamesBySchema) {
    let of_run = documented("A run");
    for (schema, title) in PARTS {
        let (written, documented) = (&written[schema], documented(title));
        let known_names: BTreeSet<_> = documented.union(&of_run).cloned().collect();
        let missing: Vec<_> = written.difference(&known_names).filter(|name| *name != "schema").collect();
        assert!(missing.is_empty(), "docs/report-schema.md does not name {missing:?} of {schema}");
        let absent: Vec<_> = documented.difference(written).filter(|name| *name != "null").collect();
        assert!(absent.is_empty(), "{schema} has no {absent:?}, which docs/report-schema.md names");
    }
    let schemas: Vec<_> = DOCUMENT.split("| `handle-loadgen/").skip(1).collect();
    assert_eq!((schemas.len(), written.len()), (PARTS.len(), PARTS.len()));
}

/// Redirects the first requests of each connection; returns its address.
fn web_server() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut buffer) = (stream.unwrap(), [0; 600]);
            let answer = b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n";
            thread::spawn(move || {
                while stream.read(&mut buffer).is_ok_and(|len| len > 0) && stream.write_all(answer).is_ok() {}
            });
        }
    });
    address
}

#[test]
fn every_member_of_every_report_is_documented_and_no_other() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = server.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let mut buffer = [0; 600];
        while let Ok((len, from)) = server.recv_from(&mut buffer) {
            buffer[27] = 100;
            let _ = server.send_to(&buffer[..len], from);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let records = path("records.jsonl");
    let record = r#"{"handle":"10.1/a","values":[{"index":1,"type":"URL","data":{"format":"string","value":"x"},"ttl":1}]}"#;
    std::fs::write(&records, record).unwrap();
    let mut written = NamesBySchema::new();
    let mut report = |name: &str, args: &[&str]| {
        let file = path(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"));
        let output = command.args(args).args(["--json", &file, "-q"]).output().unwrap();
        let text =
            std::fs::read(&file).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        let json = serde_json::from_slice(&text).unwrap();
        note(&json, &mut written);
        json
    };
    let limit = path("limit");
    report("limit", &["limit", "--duration", "100ms", "--window", "16"]);
    let run = ["run", "--target", &target, "--records", &records, "--handles", &records, "--steps", "90,110"];
    let wrong = path("wrong");
    let rest = ["--duration", "3200ms", "--assert", "p99<30s", "--share-of", &limit, "--mismatches", &wrong];
    let json = report("run", &[&run[..], &rest].concat());
    // This run was wrong, so that there are mismatches, and had assertions and a limit.
    for pointer in [
        "/assertions/0/holds",
        "/verification/mismatches/0/answer_hex",
        "/share/share",
        "/seconds/0/sent",
        "/steps/1/sent",
    ] {
        assert!(json.pointer(pointer).is_some(), "{pointer}");
    }
    let streams =
        ["--transport", "tcp", "--template", "10.1/a", "--max", "--duration", "50ms", "--timeout", "50ms"];
    let json = report("streams", &[&run[..3], &streams].concat());
    assert!(json["connections"].is_object() && json["setting"]["streams"].is_object());
    let web = web_server();
    let redirects = ["run", "--target", &web, "--transport", "http-redirect"];
    let json = report("redirects", &[&redirects[..], &streams[2..]].concat());
    assert_eq!(json["statuses"][0]["status"], 302);
    let max =
        ["--template", "10.1/a", "--from", "50", "--to", "100", "--trial", "100ms", "--confirm", "100ms"];
    report("max", &[&["find-max"][..], &run[1..3], &max[..], &["--repeat", "1", "--warm-up", "0s"]].concat());
    report(
        "hostile",
        &["hostile", "--target", &target, "--probe", "10.1/a", "--cases", "20", "--rate", "1000"],
    );
    let again = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"))
        .args(["replay", &wrong, "--target", &target, "--json", "-"])
        .output()
        .unwrap();
    note(&serde_json::from_slice(&again.stdout).unwrap(), &mut written);
    let compared = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"))
        .args(["compare", &path("run"), &path("run"), "--json", "-"])
        .output()
        .unwrap();
    note(&serde_json::from_slice(&compared.stdout).unwrap(), &mut written);
    compare(&written);
}
