//! `hdl import`: refused lines are reported and the rest is imported, and an interrupted import
//! goes on.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::postgres_server::PostgresServer;
use handle_tests::process::{RunningProcess, fail, hdl, succeed};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A line with a record of one URL.
fn line(handle: &str, url: &str) -> String {
    json!({ "handle": handle, "values": [{ "index": 1, "type": "URL", "data": url }] }).to_string() + "\n"
}

fn import(store: &Path, arguments: &[&str]) -> Command {
    let mut command = hdl(["import", "--into"]);
    command.arg(store).args(arguments);
    command
}

fn summary(text: &str) -> Json {
    serde_json::from_str(text).unwrap()
}

/// All records of a store, as `hdl export` writes them.
fn exported(store: &Path) -> String {
    let mut command = hdl(["export"]);
    command.arg(store).arg("-");
    succeed(command)
}

/// A new database, or the path of a new file.
fn store_in(directory: &Path, is_database: bool) -> Option<PathBuf> {
    match is_database {
        true => Some(PostgresServer::shared()?.new_database().into()),
        false => Some(directory.join("store.redb")),
    }
}

#[test]
fn refused_lines_are_reported_and_the_others_are_imported() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut input = line("10.1/a", "http://a").into_bytes();
    input.extend_from_slice(b"not json\n");
    input.extend_from_slice(line(&format!("10.1/{}", "x".repeat(3000)), "http://b").as_bytes());
    input.extend_from_slice(b"\xff\n");
    input.extend_from_slice(b"{\"handle\":\"10.1/c\",\"values\":7}\n");
    input.extend_from_slice(b"{\"handle\":\"10.1/d\",\"deleted\":true}\n");
    input.extend_from_slice(b"\n");
    input.extend_from_slice(&[b'y'; 17 << 20]);
    input.extend_from_slice(b"\n");
    input.extend_from_slice(line("10.1/e", "http://e").as_bytes());
    std::fs::write(path("records.jsonl"), input).unwrap();
    let (records, report) = (path("records.jsonl"), path("refused.jsonl"));
    let (records, report) = (records.to_str().unwrap(), report.to_str().unwrap());
    let store = path("store.redb");
    let (code, text) = fail(import(&store, &[records, "--create"]));
    assert!(code == 1 && text.contains("records.jsonl:2: "), "{text}");
    assert_eq!(exported(&store), "", "nothing was written");
    let skips = [records, "--skip-refused", "--report", report, "--json"];
    let done = import(&store, &skips).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "something was refused");
    let shown = summary(&String::from_utf8(done.stdout).unwrap());
    assert_eq!((&shown["read"], &shown["written"], &shown["passed_over"]), (&json!(8), &json!(2), &json!(6)));
    assert_eq!(String::from_utf8(done.stderr).unwrap(), "", "the report has it all");
    assert_eq!(exported(&store).lines().count(), 2);
    let lines = std::fs::read_to_string(report).unwrap();
    let refused: Vec<Json> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = [
        (2, None, "expected"),
        (3, Some("10.1/xxx"), "more than 2048 bytes"),
        (4, None, "not UTF-8"),
        (5, Some("10.1/c"), "values"),
        (6, Some("10.1/d"), "a deletion is not a record"),
        (8, None, "line too long"),
    ];
    assert_eq!(refused.len(), expected.len(), "{lines:.2000}");
    for (line, (number, handle, reason)) in refused.iter().zip(expected) {
        assert_eq!((&line["file"], &line["line"]), (&json!(records), &json!(number)));
        let named = line["handle"].as_str();
        assert!(named.unwrap_or_default().starts_with(handle.unwrap_or_default()), "{line}");
        assert_eq!(named.is_some(), handle.is_some(), "{line}");
        assert!(line["reason"].as_str().unwrap().contains(reason), "{line}");
    }
    let (code, text) = fail(import(&store, &skips));
    assert!(code == 1 && text.contains("cannot create") && text.contains("refused.jsonl"), "{text}");
    let (code, text) = fail(import(&store, &[records, "--report", report]));
    assert!(code == 2 && text.contains("--keep-going"), "{text}");
    std::fs::write(path("array.json"), json!([{ "handle": "10.1/f", "values": 1 }]).to_string()).unwrap();
    let array = path("array.json");
    let (code, text) = fail(import(&store, &[array.to_str().unwrap(), "--keep-going"]));
    assert!(code == 1 && text.contains("array.json: record 1: 10.1/f: "), "{text}");
    let (code, text) = fail(import(&store, &[]));
    assert!(code == 2 && text.contains("no input"), "{text}");
    let (code, text) = fail(import(&store, &[records, "--server", "127.0.0.1"]));
    assert!(code == 2 && text.contains("not both"), "{text}");
}

#[test]
fn an_import_that_is_killed_at_any_moment_goes_on_to_the_same_records() {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records.jsonl");
    let url = format!("http://example.org/{}", "x".repeat(200));
    let input: String =
        (0..25_000).map(|number| line(&format!("10.1/{}", number * 7919 % 25_000), &url)).collect();
    std::fs::write(&records, input).unwrap();
    let records = records.to_str().unwrap();
    let whole = directory.path().join("whole.redb");
    succeed(import(&whole, &[records, "--create", "--home"]));
    let untimed = |text: &str| {
        let mut lines: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let values = |line: &mut Json| line["values"].as_array_mut().cloned();
        let times: Vec<Json> = lines
            .iter_mut()
            .filter_map(|line| values(line).and_then(|values| values.first()?.get("timestamp").cloned()))
            .collect();
        for line in &mut lines {
            if let Some(value) = line.pointer_mut("/values/0/timestamp") {
                *value = Json::Null;
            }
        }
        (lines, times)
    };
    let expected = untimed(&exported(&whole)).0;
    for is_database in [false, true] {
        let Some(store) = store_in(directory.path(), is_database) else { return };
        let mut create = hdl(["store", "create"]);
        create.arg(&store);
        succeed(create);
        let (mut kills, mut resumed) = (0, 0);
        loop {
            let arguments = [records, "--home", "--resume", "--commit", "1", "--json"];
            let mut command = import(&store, &arguments);
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            let mut process = RunningProcess::start(command);
            // Each time a little later, so that it ends.
            let moment = Duration::from_millis(20 + 60 * kills + rand::random::<u64>() % 60);
            std::thread::sleep(moment);
            if process.0.try_wait().unwrap().is_none() {
                process.signal("KILL");
                process.wait();
                kills += 1;
                continue;
            }
            let mut text = String::new();
            std::io::Read::read_to_string(&mut process.0.stdout.take().unwrap(), &mut text).unwrap();
            let shown = summary(&text);
            resumed += shown["resumed"].as_u64().unwrap();
            assert_eq!(shown["written"].as_u64().unwrap() + shown["resumed"].as_u64().unwrap(), 25_000);
            break;
        }
        let (found, times) = untimed(&exported(&store));
        assert_eq!(found.len(), expected.len());
        assert!(found == expected, "the same records");
        assert!(times.windows(2).all(|pair| pair[0] == pair[1]), "the timestamp of the first import");
        let mut check = hdl(["store", "check"]);
        check.arg(&store);
        succeed(check);
        assert!(kills > 0, "it was never killed");
        println!("{kills} kills, {resumed} records before the last");
    }
}
