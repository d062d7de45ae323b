//! The program from outside: exit codes, reports as JSON, help.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::io::Write;
use std::net::UdpSocket;
use std::process::{Command, Output};

fn loadgen(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_handle-loadgen")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn exit_codes_say_what_went_wrong() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = silent.local_addr().unwrap().to_string();
    let mut names = tempfile::NamedTempFile::new().unwrap();
    writeln!(names, "10.5072/a").unwrap();
    let names = names.path().to_str().unwrap();
    let run = ["run", "--target", &target, "--duration", "50ms", "--timeout", "50ms"];
    for (args, code, says) in [
        (&["--handles", names, "--rate", "100"][..], 3, "there was no answer at all"),
        (&["--handles", names][..], 2, "--rate"),
        (&["--handles", names, "--rate", "0"][..], 2, "must be above 0"),
        (&["--handles", names, "--max", "--window", "0"][..], 2, "--window must be 1 to"),
        (&["--handles", "/nonexistent", "--max"][..], 3, "cannot read /nonexistent: No such file"),
        (&["--snapshot", "/nonexistent", "--max"][..], 3, "no set has been published here"),
        (&["--handles", names, "--max", "--cores", "900"][..], 3, "cannot run on core 900"),
        (&["--handles", names, "--max", "--share-of", names][..], 2, "is not a report of"),
    ] {
        let output = loadgen(&[&run, args].concat());
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
        assert!(out.contains(says) || err.contains(says), "{args:?} does not say {says}: {out}{err}");
    }
}

#[test]
fn a_limit_is_read_back_and_the_report_is_json() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (limit, report, names) = (path("limit.json"), path("report.json"), path("names"));
    std::fs::write(&names, "10.5072/a\n").unwrap();
    let output = loadgen(&["limit", "--duration", "100ms", "--window", "16", "-q", "--json", &limit]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));

    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = silent.local_addr().unwrap().to_string();
    let run = ["run", "--target", &target, "--handles", &names, "--rate", "1k", "--duration", "20ms"];
    let rest = ["--timeout", "20ms", "--share-of", &limit, "--json", &report];
    assert_eq!(loadgen(&[&run[..], &rest[..]].concat()).status.code(), Some(3));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["schema"], "handle-loadgen/run/2");
    assert_eq!(report["accounts"]["sent"], 20);
    assert_eq!(report["setting"]["model"], "open loop");
    assert_eq!(report["share"]["share"], 0.0);
    assert!(report["environment"]["command"].as_array().unwrap().len() > 10);
}

#[test]
fn standard_output_is_the_json_when_it_is_asked_for() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = silent.local_addr().unwrap().to_string();
    let run = ["run", "--target", &target, "--template", "10.1/a", "--rate", "1k", "--duration", "20ms"];
    let output = loadgen(&[&run[..], &["--timeout", "20ms", "--json", "-"]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["accounts"]["sent"], 20);
    assert!(text(&output.stderr).contains("there was no answer at all"), "{}", text(&output.stderr));
}

#[test]
fn neither_a_closed_pipe_nor_a_full_disk_costs_the_results() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = silent.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"));
    command.args(["run", "--target", &target, "--template", "10.1/a", "--rate", "1k", "--duration", "20ms"]);
    command.args(["--timeout", "20ms", "--histogram-log", "/dev/full", "--json"]).arg(&report);
    let output = command.stdout(writer).stderr(std::process::Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("cannot write the histogram log"), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["accounts"]["sent"], 20);
}

#[test]
fn help_teaches_and_completions_complete() {
    let help = loadgen(&["run", "--help"]);
    for part in ["Examples:", "Exit codes:", "open loop", "closed loop"] {
        assert!(text(&help.stdout).contains(part), "{part}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let output = loadgen(&["completions", shell]);
        assert!(output.status.success() && output.stdout.len() > 1000, "{shell}");
    }
}
