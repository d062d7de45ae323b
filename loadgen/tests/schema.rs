//! `docs/report-schema.md` names every schema and every member that is written.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::process::Command;
use std::thread;

use serde_json::Value as Json;

const DOCUMENT: &str = include_str!("../../docs/report-schema.md");

/// Everything between backquotes, one by one where several stand together.
fn documented() -> BTreeSet<&'static str> {
    DOCUMENT.split('`').skip(1).step_by(2).collect()
}

fn names_in<'a>(json: &'a Json, names: &mut BTreeSet<&'a str>) {
    match json {
        Json::Object(members) => members.iter().for_each(|(name, value)| {
            names.insert(name);
            names_in(value, names);
        }),
        Json::Array(items) => items.iter().for_each(|item| names_in(item, names)),
        _ => {}
    }
}

fn is_documented(json: &Json) {
    let (documented, mut names) = (documented(), BTreeSet::new());
    names_in(json, &mut names);
    let missing: Vec<_> = names.iter().filter(|name| !documented.contains(*name)).collect();
    let schema = json["schema"].as_str().unwrap();
    assert!(missing.is_empty(), "docs/report-schema.md does not name {missing:?} of {schema}");
    assert!(documented.contains(schema), "docs/report-schema.md does not have {schema}");
}

#[test]
fn every_member_of_every_report_is_documented() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = server.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let mut room = [0; 600];
        while let Ok((len, from)) = server.recv_from(&mut room) {
            room[27] = 100;
            let _ = server.send_to(&room[..len], from);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let records = path("records.jsonl");
    let record = r#"{"handle":"10.1/a","values":[{"index":1,"type":"URL","data":{"format":"string","value":"x"},"ttl":1}]}"#;
    std::fs::write(&records, record).unwrap();
    let report = |name: &str, args: &[&str]| {
        let file = path(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"));
        let output = command.args(args).args(["--json", &file, "-q"]).output().unwrap();
        let text =
            std::fs::read(&file).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        let json = serde_json::from_slice(&text).unwrap();
        is_documented(&json);
        json
    };
    let limit = path("limit");
    report("limit", &["limit", "--duration", "100ms", "--window", "16"]);
    let run = ["run", "--target", &target, "--records", &records, "--handles", &records, "--rate", "100"];
    let rest = ["--duration", "3200ms", "--assert", "p99<30s", "--share-of", &limit];
    let json = report("run", &[&run[..], &rest].concat());
    // It was wrong, so that there are mismatches, and had promises and a limit.
    for pointer in
        ["/assertions/0/holds", "/verification/mismatches/0/answer_hex", "/share/share", "/seconds/0/sent"]
    {
        assert!(json.pointer(pointer).is_some(), "{pointer}");
    }
    let streams =
        ["--transport", "tcp", "--template", "10.1/a", "--max", "--duration", "50ms", "--timeout", "50ms"];
    let json = report("streams", &[&run[..3], &streams].concat());
    assert!(json["connections"].is_object() && json["setting"]["streams"].is_object());
    let max =
        ["--template", "10.1/a", "--from", "50", "--to", "100", "--trial", "100ms", "--confirm", "100ms"];
    report("max", &[&["find-max"][..], &run[1..3], &max[..], &["--repeat", "1", "--warm-up", "0s"]].concat());
    report(
        "hostile",
        &["hostile", "--target", &target, "--probe", "10.1/a", "--cases", "20", "--rate", "1000"],
    );
    let compared = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"))
        .args(["compare", &path("run"), &path("run"), "--json", "-"])
        .output()
        .unwrap();
    is_documented(&serde_json::from_slice(&compared.stdout).unwrap());
}
