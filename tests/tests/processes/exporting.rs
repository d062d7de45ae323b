//! `hdl export` of records that JSON cannot represent, `hdl snapshot publish` of a set that lacks
//! most handles, and imports that are interrupted.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_formats::exact;
use handle_proto::Value;
use handle_proto::value::{Permissions, Ttl};
use handle_proto::wire::list::{Reference, References};
use handle_tests::process::{fail, hdl, program, run, succeed};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn hdl_in(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = hdl(arguments);
    command.current_dir(directory.path());
    command
}

/// An administrator with undefined bits of permissions.
const ODD_ADMIN: &[u8] = b"\xff\xff\0\0\0\x0410/A\0\0\x01\x2c";

/// Lines with records of which each has something odd.
fn odd_lines() -> Vec<String> {
    let url = |index| Value { timestamp: 5, ..Value::new(index, b"URL", b"x") };
    let mut storage = Vec::new();
    let references = References::build([Reference { handle: b"10/\xff", index: 7 }], &mut storage);
    let odd = [
        ("TYPE", Value { kind: b"\xffT", ..url(1) }),
        ("REFS", Value { references, ..url(1) }),
        ("BITS", Value { permissions: Permissions(0xfe), ..url(1) }),
        ("TTL", Value { ttl: Ttl { kind: 7, seconds: 9 }, ..url(1) }),
        ("ADMIN", Value { kind: b"HS_ADMIN", data: ODD_ADMIN, ..url(100) }),
        ("SITE", Value { kind: b"HS_SITE", data: b"no site", ..url(1) }),
        ("ZERO", Value { timestamp: 0, ..url(1) }),
    ];
    let mut lines: Vec<String> = odd
        .iter()
        .map(|(name, value)| {
            exact::record_to_json(format!("10/{name}").as_bytes(), [url(9), *value]).to_string()
        })
        .collect();
    lines.push(exact::record_to_json(b"10/\xff\0", [url(1)]).to_string());
    lines.push(exact::homed_to_json(b"0.NA/\xfe").to_string());
    lines
}

#[test]
fn an_export_has_every_record_and_reads_back_as_the_same_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("odd.jsonl"), odd_lines().join("\n")).unwrap();
    succeed(hdl_in(&directory, &["import", "store.redb", "odd.jsonl", "--create", "--homed", "10"]));
    succeed(hdl_in(&directory, &["export", "store.redb", "all.jsonl"]));
    let all = std::fs::read_to_string(path("all.jsonl")).unwrap();
    let is_exact = |line: &str| line.contains("\"exact\"");
    // An administrator with odd bits and a site that is none are data in base64.
    assert_eq!((all.lines().count(), all.lines().filter(|line| is_exact(line)).count()), (10, 6), "{all}");
    succeed(hdl_in(&directory, &["import", "again.redb", "all.jsonl", "--create"]));
    assert_eq!(succeed(hdl_in(&directory, &["export", "again.redb", "-"])), all);
    succeed(hdl_in(&directory, &["reconcile", "again.redb", "store.redb", "--timestamps"]));
    // A published set has them as well.
    succeed(hdl_in(&directory, &["snapshot", "publish", "set", "odd.jsonl", "--homed", "10"]));
    let published = succeed(hdl_in(&directory, &["export", "set", "-"]));
    assert_eq!(published.lines().filter(|line| is_exact(line)).count(), 6, "{published}");
    let record = succeed(hdl_in(&directory, &["snapshot", "get", "set", "10/TYPE", "--json"]));
    assert!(is_exact(&record), "{record}");
}

#[test]
fn the_form_of_the_reference_has_what_it_can_and_lists_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    std::fs::write(path("odd.jsonl"), odd_lines().join("\n")).unwrap();
    succeed(hdl_in(&directory, &["import", "store.redb", "odd.jsonl", "--create", "--homed", "10"]));
    let export = ["export", "store.redb", "export.json", "--format", "reference"];
    let (code, error) = fail(hdl_in(&directory, &export));
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("6 records that the form of a reference server cannot carry were left out"),
        "{error}"
    );
    assert!(error.contains("export.json.left-out.jsonl"), "{error}");
    let json: Json = serde_json::from_str(&read("export.json")).unwrap();
    let names: Vec<_> = json["handleRecords"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["10/ADMIN", "10/SITE", "10/ZERO"]);
    assert_eq!(json["homedPrefixes"], json!(["0.NA/10"]));
    let admin = &json["handleRecords"]["10/ADMIN"]["values"];
    let admin = admin.as_array().unwrap().iter().find(|value| value["type"] == "HS_ADMIN").unwrap();
    assert_eq!(admin["data"]["format"], "base64");
    let left_out = read("export.json.left-out.jsonl");
    assert_eq!(left_out.lines().count(), 6, "{left_out}");
    // Both together are the store.
    for file in ["export.json", "export.json.left-out.jsonl"] {
        succeed(hdl_in(&directory, &["import", "again.redb", file, "--create"]));
    }
    succeed(hdl_in(&directory, &["reconcile", "again.redb", "store.redb"]));
    let (code, error) = fail(hdl_in(&directory, &export));
    assert!(code == 1 && error.contains("already exists"), "{error}");
    let output = run(hdl_in(&directory, &["export", "store.redb", "-", "--format", "reference"]));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && error.contains("10/TYPE: left out"), "{error}");
}

fn lines(path: &Path, range: std::ops::Range<usize>) {
    let line = |number| {
        json!({ "handle": format!("10.1/{number}"), "values": [{ "index": 1, "type": "URL", "data": "x" }] })
            .to_string()
            + "\n"
    };
    std::fs::write(path, range.map(line).collect::<String>()).unwrap();
}

#[test]
fn a_set_that_lacks_most_handles_is_not_published_by_mistake() {
    let directory = tempfile::tempdir().unwrap();
    for (name, range) in
        [("all", 0..1251), ("one", 0..1), ("few", 0..1151), ("many", 0..1120), ("other", 2000..3251)]
    {
        lines(&directory.path().join(name), range);
    }
    let publish = |more: &[&str]| hdl_in(&directory, &[&["snapshot", "publish", "set"], more].concat());
    succeed(publish(&["all"]));
    for (file, gone) in [("one", "1,250"), ("many", "131"), ("other", "1,251")] {
        let (code, error) = fail(publish(&[file]));
        assert!(code == 1 && error.contains(&format!("{gone} of the 1,251 handles")), "{file}: {error}");
        assert!(error.contains("--allow-removal") && error.contains("--delta"), "{error}");
        assert!(succeed(hdl_in(&directory, &["snapshot", "inspect", "set"])).contains("1,251 handles"));
    }
    succeed(hdl_in(&directory, &["snapshot", "build", "one.layer", "one"]));
    assert_eq!(fail(publish(&["--layer", "one.layer"])).0, 1);
    // No more than a hundred are few.
    succeed(publish(&["few"]));
    // Adding one is no removal, and whoever wants one may have it.
    succeed(publish(&["other", "--delta"]));
    succeed(publish(&["one", "--allow-removal"]));
    assert!(succeed(hdl_in(&directory, &["snapshot", "inspect", "set"])).contains("1 handle,"));
    succeed(publish(&["all"]));
    // On a terminal it is asked.
    for (answer, is_published) in [("n", false), ("", false), ("y", true)] {
        let program = program("handle-cli", "hdl");
        let mut script = Command::new("script");
        let command = format!("'{}' snapshot publish set one", program.display());
        script.current_dir(directory.path()).args(["-qec", &command, "/dev/null"]);
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, format!("{answer}\n").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(shown.contains("Publish it? [y/N]"), "{shown}");
        assert_eq!(output.status.success(), is_published, "{answer}: {shown}");
    }
}

#[test]
fn an_interrupted_import_says_what_was_written_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    lines(&directory.path().join("records"), 0..60_000);
    succeed(hdl_in(&directory, &["store", "create", "store.redb"]));
    // A limit for the size of files stands for a full disk; sorted runs are smaller than the store.
    let program = program("handle-cli", "hdl");
    let limited = |kib: u32, more: &str| {
        let mut bash = Command::new("bash");
        let command = format!(
            "trap '' XFSZ; ulimit -f {kib}; exec '{}' import store.redb records --commit 1 {more}",
            program.display()
        );
        bash.current_dir(directory.path()).args(["-c", &command]);
        bash
    };
    let (code, error) = fail(limited(6_000, ""));
    assert!(code == 1 && error.contains("of 60,000 records") && error.contains("--resume"), "{code} {error}");
    let imported = run(hdl_in(&directory, &["import", "store.redb", "records", "--resume", "--json"]));
    let summary: Json = serde_json::from_slice(&imported.stdout).unwrap();
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert_eq!(count("written") + count("resumed"), 60_000, "{summary}");
    // Input that cannot be read to its end is not written at all.
    std::fs::write(directory.path().join("cut"), "{\"handle\":\"10.1/new\",\"values\":[]}\n{\"handle\":\"10")
        .unwrap();
    let (code, error) = fail(hdl_in(&directory, &["import", "store.redb", "cut"]));
    assert!(code == 1 && error.contains("nothing was written") && error.contains("cut:2: "), "{error}");
    assert!(!succeed(hdl_in(&directory, &["export", "store.redb", "-"])).contains("10.1/NEW"));
}
