//! The program from outside: what it writes, reads back, compares and promises.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"));
    command.args(args);
    command
}

fn loadgen(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// The same, again while the machine was too busy to send on time.
fn steady(args: &[&str]) -> Output {
    let is_late = |output: &Output| {
        let out = text(&output.stdout);
        out.contains("were not sent") || out.contains("behind schedule\n")
    };
    let mut tries = (0..5).map(|_| loadgen(args));
    let mut output = tries.next().unwrap();
    while is_late(&output) {
        output = tries.next().expect("five runs were late");
    }
    output
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A server that says of every handle that it is not there; its address. It answers until the process ends.
fn server() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let mut room = [0; 600];
        while let Ok((len, from)) = socket.recv_from(&mut room) {
            room[27] = 100;
            let _ = socket.send_to(&room[..len], from);
        }
    });
    address
}

struct Place(tempfile::TempDir);

impl Place {
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

fn place() -> Place {
    Place(tempfile::tempdir().unwrap())
}

#[test]
fn a_run_writes_what_it_was_asked_for_and_keeps_its_promises() {
    let (place, server) = (place(), server());
    let [report, page, csv, log] =
        ["report.json", "page.html", "series.csv", "times.hlog"].map(|name| place.path(name));
    let run = ["run", "--target", &server, "--generate", "500", "--rate", "300", "--duration", "1500ms"];
    let files =
        ["--json", &report, "--html", &page, "--csv", &csv, "--histogram-log", &log, "--pattern", "zipf:0.9"];
    let promises = ["--assert", "loss<=0%", "--assert", "p99<30s", "--assert", "answered>=299"];
    let output = steady(&[&run[..], &files, &promises].concat());
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let json = json(&report);
    assert_eq!(json["accounts"]["answered"], 450);
    assert_eq!(json["setting"]["pattern"], "zipf:0.9");
    assert_eq!(json["pacing"]["window_ms"], 100);
    assert!(std::fs::read_to_string(&page).unwrap().contains("<h2>Environment</h2>"));
    assert!(std::fs::read_to_string(&csv).unwrap().lines().count() >= 3);
    assert!(std::fs::read_to_string(&log).unwrap().contains("HISTFAAA"), "a compressed histogram in base64");
    // The page of the JSON is the page of the run.
    let again = loadgen(&["html", &report]);
    assert!(text(&again.stdout) == std::fs::read_to_string(&page).unwrap(), "{report} makes another page");
    let broken = steady(&[&run[..], &["--assert", "answered>1M", "-q"]].concat());
    assert_eq!(broken.status.code(), Some(1), "{}", text(&broken.stdout));
    assert!(
        text(&broken.stdout).contains("answered>1M does not hold: it is 300/s"),
        "{}",
        text(&broken.stdout)
    );
}

#[test]
fn reports_are_compared() {
    let (place, server) = (place(), server());
    let [slow, fast] = ["slow.json", "fast.json"].map(|name| place.path(name));
    for (rate, file) in [("100", &slow), ("200", &fast)] {
        let run = ["run", "--target", &server, "--template", "10.1/{1..9}", "--rate", rate];
        let output = steady(&[&run[..], &["--duration", "4200ms", "--json", file, "-q"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    }
    let output = loadgen(&["compare", &slow, &fast, "--json", "-"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("answered/s") && said.contains("B is higher"), "{said}");
    assert!(said.contains("CAUTION     setting rate is 100 and 200"), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "handle-loadgen/compare/2");
    assert_eq!(loadgen(&["compare", &slow, "/nonexistent"]).status.code(), Some(3));
}

#[test]
fn the_highest_rate_is_found_below_what_was_allowed() {
    let (place, server) = (place(), server());
    let report = place.path("max.json");
    let search =
        ["find-max", "--target", &server, "--template", "10.1/{1..9}", "--from", "100", "--to", "400"];
    let short =
        ["--trial", "200ms", "--confirm", "300ms", "--repeat", "2", "--warm-up", "100ms", "--p99", "10s"];
    let output = loadgen(&[&search[..], &short, &["--loss", "5%", "--json", &report]].concat());
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let json = json(&report);
    // On a busy machine the generator may be what cannot do more.
    let (rate, bound) = (json["rate"].as_u64().unwrap(), json["bound"].as_str().unwrap());
    assert!((rate, bound) == (400, "search") || (rate < 400 && bound == "generator"), "{json}");
    assert_eq!(json["confirmations"].as_array().unwrap().len(), 2);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let nobody = ["find-max", "--target", &address, "--template", "10.1/a", "--from", "1", "--to", "1"];
    let output = loadgen(&[&nobody[..], &short, &["--timeout", "20ms"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
}

#[test]
fn an_access_log_is_replayed_at_its_times() {
    let (place, server) = (place(), server());
    let [log, report] = ["access.log", "report.json"].map(|name| place.path(name));
    let line = |ms: usize| {
        format!(
            "127.0.0.1 UDP:HDL(2.11) \"2026-11-20 08:31:0{}.{:03}Z\" 1 1 1ms  10.1/{ms}\n",
            ms / 1000,
            ms % 1000
        )
    };
    std::fs::write(&log, (0..60).map(|i| line(i * 20)).collect::<String>()).unwrap();
    for (speed, seconds, model) in [("x2", 0.59, "open loop"), ("max", 10.0, "closed loop")] {
        let run = ["run", "--target", &server, "--replay", &log, "--speed", speed, "--json", &report, "-q"];
        let output = steady(&run);
        assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
        let json = json(&report);
        assert_eq!((&json["accounts"]["answered"], &json["setting"]["model"]), (&60.into(), &model.into()));
        let duration_s = json["setting"]["duration_s"].as_f64().unwrap();
        assert!((duration_s - seconds).abs() < 0.01, "{duration_s}");
    }
}

#[test]
fn wrong_answers_are_kept_and_sent_again() {
    let (place, server) = (place(), server());
    let [records, wrong] = ["records.jsonl", "wrong.jsonl"].map(|name| place.path(name));
    let record = r#"{"handle":"10.1/1","values":[{"index":1,"type":"URL","data":"x"}]}"#;
    std::fs::write(&records, record).unwrap();
    let run =
        ["run", "--target", &server, "--template", "10.1/{1..2}", "--records", &records, "--rate", "100"];
    let rest = [
        "--duration",
        "200ms",
        "--mismatches",
        &wrong,
        "--keep-mismatches",
        "3",
        "-q",
        "--pattern",
        "sequential",
    ];
    let output = loadgen(&[&run[..], &rest].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("10 of 20 answers are wrong"), "{}", text(&output.stdout));
    let again = loadgen(&["replay", &wrong, "--target", &server, "--json", "-"]);
    assert_eq!(again.status.code(), Some(1));
    assert_eq!(text(&again.stderr).matches("wrong again, as before").count(), 3, "{}", text(&again.stderr));
    assert!(text(&again.stdout).contains("\"outcome\": \"same-again\""));
}

#[test]
fn prometheus_scrapes_while_it_runs() {
    let server = server();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let run = ["run", "--target", &server, "--template", "10.1/{1..9}", "--rate", "100", "--duration", "60s"];
    let mut child =
        command(&[&run[..], &["--prometheus", &port]].concat()).stdout(Stdio::piped()).spawn().unwrap();
    // Once the first second is shown, it is there to be scraped.
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut stream = TcpStream::connect(&port).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answer.contains("handle_loadgen_sent_total "), "{answer}");
    assert!(answer.contains("handle_loadgen_responses_total{code=\"100\""), "{answer}");
}

#[test]
fn hostile_says_what_it_found() {
    let (place, server) = (place(), server());
    let [verdict, xml] = ["verdict.json", "verdict.xml"].map(|name| place.path(name));
    let args = ["hostile", "--target", &server, "--probe", "10.1/a", "--cases", "200", "--findings", "1"];
    let output = loadgen(&[&args[..], &["--json", &verdict, "--junit", &xml]].concat());
    // This server answers noise with noise.
    assert_eq!(output.status.code(), Some(1), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("FOUND case"), "{}", text(&output.stdout));
    assert_eq!(json(&verdict)["schema"], "handle-loadgen/hostile/1");
    assert!(std::fs::read_to_string(&xml).unwrap().contains("message=\"the answer cannot be read"));
    let refused = loadgen(&["hostile", "--target", "192.0.2.1:2641", "--probe", "10.1/a"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--i-am-allowed-to"), "{}", text(&refused.stderr));
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let place = place();
    let dir = place.path("man");
    assert!(loadgen(&["man", &dir]).status.success());
    for name in
        ["handle-loadgen.1", "handle-loadgen-run.1", "handle-loadgen-hostile.1", "handle-loadgen-find-max.1"]
    {
        let page = std::fs::read_to_string(Path::new(&dir).join(name)).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}");
    }
}
