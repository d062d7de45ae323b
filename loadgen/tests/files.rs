//! The program from outside: the files that it writes and reads, comparisons, and assertions.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use handle_loadgen::load::workload::{RequestChoice, RequestSampler};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handle-loadgen"));
    command.args(args);
    command
}

fn loadgen(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// The same; a run that reports a late generator is repeated.
fn steady(args: &[&str]) -> Output {
    let is_late = |output: &Output| {
        let out = text(&output.stdout);
        out.contains("requests not sent") || out.contains("behind schedule\n")
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

fn json(path: &str) -> Json {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A server that answers "handle not found" for every handle; its address. It runs until the
/// process ends.
fn server() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let mut buffer = [0; 600];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            buffer[27] = 100;
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    address
}

struct FilesDirectory(tempfile::TempDir);

impl FilesDirectory {
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

fn temp_dir() -> FilesDirectory {
    FilesDirectory(tempfile::tempdir().unwrap())
}

#[test]
fn a_run_writes_the_requested_files_and_meets_its_assertions() {
    let (directory, server) = (temp_dir(), server());
    let [report, page, csv, log] =
        ["report.json", "page.html", "series.csv", "times.hlog"].map(|name| directory.path(name));
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
    assert_same_seconds(&std::fs::read_to_string(&csv).unwrap(), &json);
    assert_same_times(&std::fs::read(&log).unwrap(), &json);
    // The page of the JSON is the page of the run.
    let again = loadgen(&["html", &report]);
    assert!(text(&again.stdout) == std::fs::read_to_string(&page).unwrap(), "{report} gives another page");
    let broken = steady(&[&run[..], &["--assert", "answered>1M", "-q"]].concat());
    assert_eq!(broken.status.code(), Some(1), "{}", text(&broken.stdout));
    assert!(
        text(&broken.stdout).contains("answered>1M does not hold: measured 300/s"),
        "{}",
        text(&broken.stdout)
    );
}

/// Asserts that the CSV has the seconds of the report, rounded.
fn assert_same_seconds(csv: &str, report: &Json) {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().unwrap();
    let seconds = report["seconds"].as_array().unwrap();
    let rows: Vec<_> = lines.collect();
    assert_eq!(rows.len(), seconds.len());
    for (row, second) in rows.iter().zip(seconds) {
        assert_eq!(row.len(), second.as_object().unwrap().len());
        for (name, cell) in names.iter().zip(row) {
            let (value, rounded) = (second[name].as_f64().unwrap(), cell.parse::<f64>().unwrap());
            assert!((value - rounded).abs() <= 0.05, "{name} is {value}, not {cell}");
        }
    }
    let sum = |name: &str| seconds.iter().map(|second| second[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("sent"), sum("answered")), (450, 450));
}

/// Asserts that the log has all answers, each in the second in which it arrived.
fn assert_same_times(log: &[u8], report: &Json) {
    let mut ends_s = Vec::new();
    let mut sum = Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
    for entry in IntervalLogIterator::new(log) {
        let LogEntry::Interval(interval) = entry.unwrap() else { continue };
        let bytes = data_encoding::BASE64.decode(interval.encoded_histogram().as_bytes()).unwrap();
        sum.add(Deserializer::new().deserialize::<u64, _>(&mut &bytes[..]).unwrap()).unwrap();
        ends_s.push((interval.start_timestamp() + interval.duration()).as_secs_f64());
    }
    assert_eq!(sum.len(), report["response_ns"]["count"].as_u64().unwrap());
    // These have two digits, those three.
    let (max, report_max) = (sum.max() as f64, report["response_ns"]["max"].as_f64().unwrap());
    assert!((max / report_max - 1.0).abs() < 0.02, "{max} is not {report_max}");
    for (end_s, second) in ends_s.iter().zip(report["seconds"].as_array().unwrap()) {
        let elapsed_s = second["elapsed_s"].as_f64().unwrap();
        assert!((end_s - elapsed_s).abs() < 0.003, "{end_s} is not {elapsed_s}");
    }
    assert_eq!(ends_s.len(), report["seconds"].as_array().unwrap().len());
}

#[test]
fn one_file_may_be_standard_output_and_all_must_be_writable_at_the_start() {
    let (directory, server) = (temp_dir(), server());
    let run = ["run", "--target", &server, "--template", "10.1/a", "--rate", "100", "--duration"];
    let output = steady(&[&run[..], &["100ms", "--csv", "-"]].concat());
    assert!(text(&output.stdout).starts_with("elapsed_s,sent,"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("response time"), "{}", text(&output.stderr));
    let output = steady(&[&run[..], &["100ms", "--histogram-log", "-"]].concat());
    assert!(text(&output.stdout).starts_with("#handle-loadgen"), "{}", text(&output.stdout));
    let (there, file) = (directory.path("there.json"), directory.path("new.json"));
    std::fs::write(&there, "what was there").unwrap();
    let missing = directory.path("missing/report");
    // A mistake is reported before the run of an hour.
    for (files, code, part) in [
        (["--json", "-", "--csv", "-"], 2, "- is used for two outputs"),
        (["--json", &file, "--html", &file], 2, "is used for two outputs"),
        (["--json", &there, "--html", &missing], 3, "cannot write"),
        (["--json", &file, "--csv", directory.0.path().to_str().unwrap()], 3, "Is a directory"),
    ] {
        let output = loadgen(&[&run[..], &["1h"], &files].concat());
        assert_eq!(output.status.code(), Some(code), "{files:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{files:?}: {}", text(&output.stderr));
    }
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "what was there");
    assert!(!Path::new(&file).exists(), "the check has left a file behind");
}

#[test]
fn a_stopped_command_reports_its_results() {
    let (directory, server) = (temp_dir(), server());
    let [max, hostile, limit] = ["max.json", "hostile.json", "limit.json"].map(|name| directory.path(name));
    let names = ["--target", &server, "--template", "10.1/{1..9}"];
    let short = [
        "--from",
        "100",
        "--trial",
        "200ms",
        "--confirm",
        "1h",
        "--warm-up",
        "0s",
        "--to",
        "200",
        "--p99",
        "10s",
    ];
    let search = [&["find-max"][..], &names, &short, &["--loss", "50%", "--json", &max]].concat();
    let attack =
        ["hostile", "--target", &server, "--probe", "10.1/a", "--duration", "1h", "--findings", "1000000"];
    let measure = ["limit", "--duration", "1h", "--window", "4", "--json", &limit];
    for (args, part) in [
        (&search[..], "bound by    nothing: stopped early"),
        (&[&attack[..], &["--json", &hostile]].concat(), "STOPPED early"),
        (&measure, "stopped by the user"),
    ] {
        let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The first line of output shows that it is running.
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut output = String::new();
        out.read_line(&mut output).unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        out.read_to_string(&mut output).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut output).unwrap();
        let code = child.wait().unwrap().code();
        assert!(output.contains(part), "{args:?}: {output}");
        // A server that answers noise with noise may have been detected by then.
        let is_found = args[0] == "hostile" && output.contains("FOUND");
        assert_eq!(code, Some(if is_found { 1 } else { 3 }), "{args:?}: {output}");
    }
    let max = json(&max);
    assert_eq!((&max["rate"], &max["bound"]), (&Json::Null, &"stopped".into()));
    assert!(!max["trials"].as_array().unwrap().is_empty());
    assert_eq!(json(&hostile)["is_stopped"], true);
    assert!(!Path::new(&limit).exists(), "a stopped measurement has written a limit");
}

#[test]
fn a_stop_while_names_are_read_is_reported() {
    let server = server();
    let names = ["--handles", "/dev/stdin", "--handles-max", "5"];
    let recorded = ["--replay", "/dev/stdin", "--speed", "x1"];
    for (how, from) in [
        (&["run", "--rate", "1", "--duration", "1h"][..], &names[..]),
        (&["find-max"], &names),
        (&["run", "--max", "--quiet"], &names),
        (&["run"], &recorded),
    ] {
        let mut child = command(&[how, &["--target", &server], from].concat())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // More than the capacity of a pipe: once it is written, a part of it has been read.
        let lines = b"10.1/abcdefghijklmnopqrstuvwxyz\n".repeat(4096);
        stdin.write_all(&lines).unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        // No more names and no end of input follow.
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(output.status.code(), Some(3), "{how:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "handle-loadgen: stopped by the user\n", "{how:?}");
    }
}

#[test]
fn a_silent_server_ends_the_first_pass() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let names = ["--target", &address, "--template", "10.1/{1..100000}", "--timeout", "50ms"];
    for command in [
        &["run", "--first-pass", "--rate", "1"][..],
        &["find-max", "--from", "64", "--trial", "50ms", "--warm-up", "0s"],
    ] {
        let output = loadgen(&[command, &names].concat());
        assert_eq!(output.status.code(), Some(3), "{}{}", text(&output.stdout), text(&output.stderr));
        assert!(text(&output.stderr).contains("no answer from"), "{}", text(&output.stderr));
    }
}

/// A capture from a raw device: a request to port 2641, and another packet.
fn capture() -> Vec<u8> {
    let mut sampler = RequestSampler::new(1, 1);
    sampler.offer(b"10.1/a");
    let mut buffer = [0; 512];
    let len = sampler.finish(0).unwrap().write_request(RequestChoice::default(), 77, &mut buffer);
    let half = |number: usize| u16::try_from(number).unwrap().to_be_bytes();
    let udp = [&half(12345)[..], &half(2641), &half(len + 8), &[0, 0], &buffer[..len]].concat();
    let head = [
        &[0x45, 0][..],
        &half(20 + udp.len()),
        &[0, 0, 0x40, 0, 64, 17, 0, 0],
        &[127, 0, 0, 1],
        &[127, 0, 0, 1],
    ];
    let packet = [&head.concat()[..], &udp].concat();
    let word = |number: u32| number.to_le_bytes();
    let mut file = [word(0xa1b2_c3d4), word(0x0004_0002), word(0), word(0), word(65_535), word(101)].concat();
    for packet in [&packet[..], b"noise", &packet] {
        let len = word(u32::try_from(packet.len()).unwrap());
        file.extend([word(1_700_000_000), word(0), len, len].concat());
        file.extend(packet);
    }
    file
}

#[test]
fn a_capture_is_sent_as_it_was_to_another_port() {
    let (directory, server) = (temp_dir(), server());
    let [file, report] = ["requests.pcap", "report.json"].map(|name| directory.path(name));
    std::fs::write(&file, capture()).unwrap();
    let run = ["run", "--target", &server, "--replay", &file];
    let output = loadgen(&[&run[..], &["--speed", "max"]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("--replay-port"), "{}", text(&output.stderr));
    let run = [&run[..], &["--replay-port", "2641", "--json", &report, "-q"]].concat();
    let output = loadgen(&[&run[..], &["--speed", "max"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 packet or line skipped"), "{}", text(&output.stdout));
    let json = json(&report);
    assert_eq!((&json["accounts"]["answered"], &json["setting"]["skipped"]), (&2.into(), &1.into()));
    assert_eq!(
        (&json["setting"]["forms"][0], &json["setting"]["pattern"]),
        (&"recorded".into(), &"recorded".into())
    );
    // Two answers are not a rate of tens of thousands: the rate includes their response times.
    let (rate, slowest_ns) =
        (json["answered_per_s"].as_f64().unwrap(), json["response_ns"]["max"].as_f64().unwrap());
    assert!(rate <= 2.05 / (slowest_ns / 1e9), "{rate}/s, of which one took {slowest_ns} ns");
    let output = loadgen(&[&run[..], &["--rate", "10", "--mix", "miss"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--mix cannot be used with a capture"), "{}", text(&output.stderr));
}

#[test]
fn reports_are_compared() {
    let (directory, server) = (temp_dir(), server());
    let [slow, fast] = ["slow.json", "fast.json"].map(|name| directory.path(name));
    for (rate, file) in [("100", &slow), ("200", &fast)] {
        let run = ["run", "--target", &server, "--template", "10.1/{1..9}", "--rate", rate];
        let output = steady(&[&run[..], &["--duration", "4200ms", "--json", file, "-q"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    }
    let output = loadgen(&["compare", &slow, &fast, "--json", "-"]);
    let comparison = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{comparison}");
    assert!(comparison.contains("answered/s") && comparison.contains("B is higher"), "{comparison}");
    assert!(comparison.contains("CAUTION     setting rate differs: 100 and 200"), "{comparison}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "handle-loadgen/compare/1");
    assert_eq!(loadgen(&["compare", &slow, "/nonexistent"]).status.code(), Some(3));
}

#[test]
fn the_highest_rate_is_found_below_the_upper_limit() {
    let (directory, server) = (temp_dir(), server());
    let report = directory.path("max.json");
    let search =
        ["find-max", "--target", &server, "--template", "10.1/{1..9}", "--from", "100", "--to", "400"];
    let short =
        ["--trial", "200ms", "--confirm", "300ms", "--repeat", "2", "--warm-up", "100ms", "--p99", "10s"];
    let output = loadgen(&[&search[..], &short, &["--loss", "5%", "--json", &report]].concat());
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let json = json(&report);
    // The generator may be the limit on a loaded machine.
    let (rate, bound) = (json["rate"].as_u64().unwrap(), json["bound"].as_str().unwrap());
    assert!((rate, bound) == (400, "search") || (rate < 400 && bound == "generator"), "{json}");
    assert_eq!(json["confirmations"].as_array().unwrap().len(), 2);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let nobody = ["find-max", "--target", &address, "--template", "10.1/a", "--from", "1", "--to", "1"];
    let output = loadgen(&[&nobody[..], &short, &["--timeout", "20ms"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    // There are answers, but none in time.
    let slow =
        ["find-max", "--target", &server, "--template", "10.1/a", "--from", "9", "--to", "9", "--p99", "1us"];
    let output = loadgen(&[&slow[..], &["--trial", "200ms", "--warm-up", "0s", "-q"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn an_access_log_is_replayed_at_its_times() {
    let (directory, server) = (temp_dir(), server());
    let [log, report] = ["access.log", "report.json"].map(|name| directory.path(name));
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
    let (directory, server) = (temp_dir(), server());
    let [records, wrong] = ["records.jsonl", "wrong.jsonl"].map(|name| directory.path(name));
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
    assert!(text(&output.stdout).contains("wrong answers: 10 of 20"), "{}", text(&output.stdout));
    let again = loadgen(&["replay", &wrong, "--target", &server, "--json", "-"]);
    assert_eq!(again.status.code(), Some(1));
    assert_eq!(text(&again.stderr).matches("same wrong answer").count(), 3, "{}", text(&again.stderr));
    assert!(text(&again.stdout).contains("\"outcome\": \"same-again\""));
}

#[test]
fn prometheus_scrapes_while_it_runs() {
    let server = server();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let run = ["run", "--target", &server, "--template", "10.1/{1..9}", "--rate", "100", "--duration", "60s"];
    let mut child =
        command(&[&run[..], &["--prometheus", &port]].concat()).stdout(Stdio::piped()).spawn().unwrap();
    // Once the first second is shown, it can be scraped.
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
fn hostile_reports_its_findings() {
    let (directory, server) = (temp_dir(), server());
    let [verdict, xml] = ["verdict.json", "verdict.xml"].map(|name| directory.path(name));
    let args = ["hostile", "--target", &server, "--probe", "10.1/a", "--cases", "200", "--findings", "1"];
    let output = loadgen(&[&args[..], &["--json", &verdict, "--junit", &xml]].concat());
    // This server answers noise with noise.
    assert_eq!(output.status.code(), Some(1), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("FOUND case"), "{}", text(&output.stdout));
    assert_eq!(json(&verdict)["schema"], "handle-loadgen/hostile/1");
    assert!(std::fs::read_to_string(&xml).unwrap().contains("message=\"the answer cannot be decoded"));
    let refused = loadgen(&["hostile", "--target", "192.0.2.1:2641", "--probe", "10.1/a"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--i-am-allowed-to"), "{}", text(&refused.stderr));
}
