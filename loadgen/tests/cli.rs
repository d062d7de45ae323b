//! The program from outside: exit codes, JSON reports, help.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::io::{BufRead as _, BufReader, Write};
use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

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
    // Names that are records as well.
    let record = r#"{"handle":"10.5072/a","values":[{"index":1,"type":"URL","data":"x"}]}"#;
    writeln!(names, "{record}").unwrap();
    let names = names.path().to_str().unwrap();
    let run = ["run", "--target", &target, "--duration", "50ms", "--timeout", "50ms"];
    for (args, code, part) in [
        (&["--handles", names, "--rate", "100"][..], 3, "no answer from"),
        (&["--handles", names][..], 2, "--rate"),
        (&["--handles", names, "--rate", "0"][..], 2, "must be greater than 0"),
        (&["--handles", names, "--max", "--window", "0"][..], 2, "--window must be 1 to"),
        (&["--handles", "/nonexistent", "--max"][..], 3, "cannot read /nonexistent: No such file"),
        (&["--snapshot", "/nonexistent", "--max"][..], 3, "no set is published here"),
        (&["--handles", names, "--max", "--cores", "900"][..], 3, "cannot run on core 900"),
        (&["--handles", names, "--max", "--share-of", names][..], 2, "is not a report of"),
        (&["--handles", "/dev/zero", "--max"][..], 3, "cannot read /dev/zero: line 1 is too long"),
        (&["--replay", "/dev/zero", "--max"][..], 3, "cannot read /dev/zero: line 1 is too long"),
        (&["--handles", names, "--max", "--records", "/dev/zero"][..], 3, "line 1 is too long"),
        (
            &[
                "--handles",
                names,
                "--max",
                "--mix",
                "certify",
                "--records",
                names,
                "--server-key",
                "/dev/zero",
            ][..],
            3,
            "too long: the maximum is 65536",
        ),
    ] {
        let output = loadgen(&[&run, args].concat());
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
        assert!(out.contains(part) || err.contains(part), "{args:?} does not say {part}: {out}{err}");
        assert!(err.matches("(os error").count() <= 1, "the error of the system is repeated: {err}");
    }
    let schedule = ["--handles", names, "--schedule", "/dev/zero"];
    let output = loadgen(&[&["run", "--target", &target], &schedule[..]].concat());
    let part = "handle-loadgen: cannot read /dev/zero: too long: the maximum is 16777216 bytes\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(3), part));
    for (target, code, part) in [
        ("127.0.0.1", 2, "expected HOST:PORT, as 127.0.0.1:2641"),
        ("127.0.0.1:x", 2, "expected HOST:PORT"),
        ("127.0.0.1:99999", 2, "expected HOST:PORT"),
        ("0.0.0.0:2641", 2, "address to listen on"),
        ("nobody.invalid:2641", 3, "cannot resolve the address of nobody.invalid:2641"),
    ] {
        let output = loadgen(&["run", "--target", target, "--handles", names, "--rate", "1"]);
        assert_eq!(output.status.code(), Some(code), "{target}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{target}: {}", text(&output.stderr));
    }
}

/// An echo server in a separate process until it is dropped, and its address.
struct Echo(Child, String);

impl Echo {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(args: &[&str]) -> Self {
        let mut echo = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"))
            .args(["echo", "--listen", "127.0.0.1:0", "--answer-len", "100", "--datapath", "portable"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(echo.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
        let address = address.unwrap_or_else(|| panic!("no address in {line}"));
        Self(echo, address.trim_end_matches([',', ';', '.']).to_owned())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_echo_server_runs_on_its_core() {
    let allowed = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        line.trim().to_owned()
    };
    let all = allowed(std::process::id());
    let last = all.rsplit([',', '-']).next().unwrap();
    let free = Echo::start();
    assert_eq!(allowed(free.0.id()), all, "without the option");
    let pinned = Echo::start_with(&["--core", last]);
    assert_eq!(allowed(pinned.0.id()), last);
    let output = loadgen(&["echo", "--listen", "127.0.0.1:0", "--core", "100000"]);
    assert!(text(&output.stderr).contains("core 100000"), "{}", text(&output.stderr));
}

/// Runs until the exit code is `code`, and returns the output. A run that reports a late generator
/// is repeated.
fn ends_with(code: i32, args: &[&str]) -> String {
    for _ in 0..10 {
        let output = loadgen(args);
        let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
        if output.status.code() == Some(code) {
            return shown;
        }
        let is_held_up = shown.lines().any(|line| line.starts_with("INVALID") && !line.contains("no answer"));
        assert!(output.status.code() == Some(3) && is_held_up, "not {code}: {shown}");
    }
    panic!("the machine is too busy for a run of a few requests")
}

#[test]
fn assertions_of_a_quick_run_hold_or_are_named() {
    let echo = Echo::start();
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let run = [
        "run",
        "--target",
        &echo.1,
        "--template",
        "10.1/{1..9}",
        "--steps",
        "50,200",
        "--quick",
        "-q",
        "--json",
    ];
    let promises =
        ["--assert", "loss<=0.1%", "--assert", "schedule-error.p50<10ms", "--assert", "answered>100"];
    let started = Instant::now();
    let shown = ends_with(0, &[&run[..], &[json.to_str().unwrap()], &promises].concat());
    let elapsed = started.elapsed();
    assert!(elapsed > Duration::from_secs(4), "{elapsed:?} is less than four seconds of load");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(
        (&report["setting"]["duration_s"], &report["setting"]["timeout_ms"]),
        (&4.0.into(), &400.0.into())
    );
    assert_eq!(report["accounts"]["sent"], 500);
    // Each step separately, and the lag of its requests.
    let steps = report["steps"].as_array().unwrap();
    let sent: Vec<_> = steps.iter().map(|step| step["sent"].as_u64().unwrap()).collect();
    assert_eq!(sent, [100, 400], "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("step ")).count(), 2, "{shown}");
    let late = report["schedule_error_histogram"].as_array().unwrap();
    assert_eq!(late.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum::<u64>(), 500);

    let run = [
        "run",
        "--target",
        &echo.1,
        "--template",
        "10.1/a",
        "--rate",
        "100",
        "--duration",
        "100ms",
        "--pacing",
        "sleep",
    ];
    let shown = ends_with(1, &[&run[..], &["--assert", "answered>1M", "--assert", "loss<=1%"]].concat());
    assert!(shown.contains("answered>1M does not hold"), "{shown}");
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
    assert_eq!(report["schema"], "handle-loadgen/run/1");
    assert_eq!(report["accounts"]["sent"], 20);
    assert_eq!(report["setting"]["model"], "open loop");
    assert_eq!(report["share"]["share"], 0.0);
    assert!(report["environment"]["command"].as_array().unwrap().len() > 10);
}

#[test]
fn standard_output_has_the_json_if_requested() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = silent.local_addr().unwrap().to_string();
    let run = ["run", "--target", &target, "--template", "10.1/a", "--rate", "1k", "--duration", "20ms"];
    let output = loadgen(&[&run[..], &["--timeout", "20ms", "--json", "-"]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["accounts"]["sent"], 20);
    assert!(text(&output.stderr).contains("no answer from"), "{}", text(&output.stderr));
}

#[test]
fn neither_a_closed_pipe_nor_a_full_disk_loses_the_results() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = silent.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"));
    command.args(["run", "--target", &target, "--template", "10.1/a", "--rate", "1k", "--duration", "20ms"]);
    command.args(["--timeout", "20ms", "--histogram-log", "/dev/full", "--json"]).arg(&report);
    let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("cannot write the histogram log"), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["accounts"]["sent"], 20);
}

#[test]
fn help_has_examples_and_completions_are_printed() {
    let help = loadgen(&["run", "--help"]);
    for part in ["Examples:", "Exit codes:", "open loop", "closed loop"] {
        assert!(text(&help.stdout).contains(part), "{part}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let output = loadgen(&["completions", shell]);
        assert!(output.status.success() && output.stdout.len() > 1000, "{shell}");
    }
}
