//! Output of `hdl` for the lab: the examples of `docs/resolution.md`, steps while they happen,
//! colours, and no control sequences for terminals.
//!
//! `HANDLE_BLESS=1 cargo test -p handle-tests --test processes lab_shown` updates the document.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::lab::LabProcess;
use handle_tests::process::{RunningProcess, fail, handle_lab, hdl, run, succeed, until};
use serde_json::Value as Json;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

fn lab() -> &'static LabProcess {
    static LAB: OnceLock<LabProcess> = OnceLock::new();
    LAB.get_or_init(LabProcess::up)
}

/// The first port of the servers in the document.
const FIRST_PORT: u16 = 29_009;

/// The output of a command, with the ports and the home directory of the document.
fn normalized_output(lab: &LabProcess, home: &Path, command: &str) -> String {
    let servers = lab.report["servers"].as_array().unwrap();
    let actual_ports =
        servers.iter().map(|server| server["address"].as_str().unwrap().split_once(':').unwrap().1);
    let ports: Vec<(u16, &str)> = (FIRST_PORT..).zip(actual_ports).collect();
    let mut command = command.replace('~', home.to_str().unwrap());
    for (port, actual_port) in &ports {
        command = command.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{actual_port}"));
    }
    let mut command = lab.hdl(&command.split(' ').skip(1).collect::<Vec<_>>());
    command.env("HOME", home).env("HANDLE_CACHE_CONTROL", lab.control("cache"));
    let mut shown = String::from_utf8(run(command).stdout).unwrap();
    for (port, actual_port) in &ports {
        for mark in [':', '/'] {
            shown = shown.replace(&format!("{mark}{actual_port}"), &format!("{mark}{port}"));
        }
    }
    shown.replace(home.to_str().unwrap(), "/home/me")
}

/// The output without parts that vary: times, what is left of a TTL, and the blanks between
/// columns.
fn without_times(shown: &str, is_check: bool) -> Vec<String> {
    let mut lines = vec![];
    for line in shown.lines() {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        // The last column of a check is the time used.
        if is_check && words.last().is_some_and(|last| last.parse::<u32>().is_ok() || *last == "-") {
            words.pop();
        }
        for at in 1..words.len() {
            let is_unit = matches!(words[at].trim_end_matches(','), "ms" | "s");
            if is_unit && words[at - 1].parse::<f64>().is_ok() {
                words[at - 1] = "N";
            }
        }
        lines.push(words.join(" "));
    }
    lines
}

#[test]
fn the_document_shows_the_actual_output() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/resolution.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".handle")).unwrap();
    let is_blessed = std::env::var_os("HANDLE_BLESS").is_some();
    let (mut written, mut count) = (String::new(), 0);
    let mut lines = document.lines().peekable();
    let mut is_console = false;
    while let Some(line) = lines.next() {
        written.push_str(line);
        written.push('\n');
        match line {
            "```console" => is_console = true,
            "```" => is_console = false,
            _ => {}
        }
        let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) else { continue };
        if !command.starts_with("hdl ") {
            continue;
        }
        let mut expected = String::new();
        while let Some(line) = lines.next_if(|line| *line != "```" && !line.starts_with("$ ")) {
            expected.push_str(line);
            expected.push('\n');
        }
        let shown = normalized_output(lab(), home.path(), command);
        count += 1;
        if !is_blessed {
            let is_check = command.starts_with("hdl check");
            assert_eq!(without_times(&shown, is_check), without_times(&expected, is_check), "{command}");
        }
        written.push_str(if is_blessed { &shown } else { &expected });
    }
    assert!(count >= 4, "{count} commands");
    if is_blessed {
        std::fs::write(&path, written).unwrap();
    }
}

#[test]
fn a_step_is_shown_before_the_next_one_is_done() {
    // Without an answer, only the steps are printed.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let lab = lab();
    let root = lab.directory.path().join("bootstrap_silent");
    let mut file: Json = serde_json::from_slice(&std::fs::read(&lab.root).unwrap()).unwrap();
    let interfaces =
        &mut file["handles"]["0.NA/0.NA"]["values"][0]["data"]["value"]["servers"][0]["interfaces"];
    for interface in interfaces.as_array_mut().unwrap() {
        interface["port"] = silent.local_addr().unwrap().port().into();
    }
    std::fs::write(&root, file.to_string()).unwrap();
    let mut command = hdl(["resolve", "20.500.LAB/hello", "--trace", "--lookup-timeout", "3600", "--root"]);
    command.arg(&root).stdout(Stdio::piped());
    let mut process = RunningProcess::start(command);
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    for step in ["the question", "to find the service", "the global service: 1 site", "ask 127.0.0.1"] {
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains(step), "{line}");
    }
    assert_eq!(process.0.try_wait().unwrap(), None, "hdl still waits for the answer");
}

#[test]
fn colours_are_used_where_they_are_wanted() {
    let args = ["resolve", "20.500.LAB/hello", "--trace", "--certify"];
    let plain = succeed(lab().hdl(&args));
    assert!(!plain.contains('\u{1b}'), "in a pipe: {plain}");
    let mut command = lab().hdl(&args);
    command.args(["--color", "always"]).env("NO_COLOR", "1");
    let coloured = succeed(command);
    for painted in
        ["\u{1b}[1m20.500.LAB/hello\u{1b}[0m", "\u{1b}[32m, signature good", "\u{1b}[33m", "\u{1b}[2m"]
    {
        assert!(coloured.contains(painted), "{painted:?}: {coloured:?}");
    }
    for args in [&["site", "10.1016"][..], &["check", "10.1016/lab-new"]] {
        let mut command = lab().hdl(args);
        command.args(["--color", "always"]);
        assert!(String::from_utf8(run(command).stdout).unwrap().contains("\u{1b}[32m"), "{args:?}");
        let mut command = lab().hdl(args);
        command.args(["--color", "never"]);
        assert!(!String::from_utf8(run(command).stdout).unwrap().contains('\u{1b}'), "{args:?}");
    }
    let (exit, error) = fail(hdl(["resolve", "10.1/x", "--color", "sometimes"]));
    assert!(exit == 2 && error.contains("auto"), "{error}");
}

#[test]
fn records_cannot_control_the_terminal() {
    // Control sequences in handle, types, data, and the attributes of a site.
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records.jsonl");
    let controls = "\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\u{2066}\u{2028}\n\r\u{8}";
    let handle = format!("10.1016/a{controls}b");
    let record = serde_json::json!({ "handle": handle, "values": [
        { "index": 1, "type": format!("URL{controls}"), "data": { "format": "string", "value": controls }, "ttl": 60 },
        { "index": 2, "type": "URL", "data": { "format": "string", "value": format!("https://x.example/{controls}") }, "ttl": 60 },
        { "index": 3, "type": "HS_ALIAS", "data": { "format": "string", "value": format!("20.500.NONE/{controls}") }, "ttl": 60 },
    ] });
    std::fs::write(&records, format!("{record}\n")).unwrap();
    let lab = LabProcess::up_with(&["--records", records.to_str().unwrap()]);
    let encoded: String = handle.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let reference = format!("hdl:{}", encoded.replace("%2F", "/"));
    let server = lab.addresses("mirror")[0].to_string();
    let list = directory.path().join("list.txt");
    std::fs::write(&list, format!("{reference}\nhdl:20.500.NONE/%1b%5b2J\n")).unwrap();
    let list = list.to_str().unwrap();
    let reference = reference.as_str();
    for args in [
        &["resolve", reference][..],
        &["resolve", reference, "--trace"],
        &["resolve", reference, "--trace", "--json"],
        &["resolve", reference, "--url"],
        &["resolve", reference, "--aliases", "2", "--trace"],
        &["resolve", reference, "--server", &server],
        &["resolve", reference, "--server", &server, "--json"],
        &["resolve", reference, "--signatures"],
        &["resolve", "--file", list],
        &["resolve", "--file", list, "--json"],
        &["check", reference],
        &["check", reference, "--json"],
        &["site", reference],
        &["site", reference, "--json"],
        &["reference", reference],
        &["reference", reference, "--json"],
    ] {
        let output = run(lab.hdl(args));
        for shown in [&output.stdout, &output.stderr] {
            let shown = str::from_utf8(shown).unwrap();
            let is_control = |c: char| {
                c != '\n' && c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            };
            // Only tabs between columns are permitted.
            let is_control = |c| is_control(c) && !(c == '\t' && args[1] == "--file");
            assert!(!shown.contains(is_control), "{args:?}: {shown:?}");
        }
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn signals_end_the_lab_with_its_servers_and_files() {
    for signal in ["INT", "TERM"] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = handle_lab(["up", "--json"]);
        command.env("TMPDIR", directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut lab = RunningProcess::start(command);
        let mut stdout = BufReader::new(lab.0.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let report: Json = serde_json::from_str(&line).unwrap();
        assert!(PathBuf::from(report["root"].as_str().unwrap()).starts_with(directory.path()));
        lab.signal(signal);
        assert_eq!(lab.wait(), Some(0), "{signal}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the lab leaves no files");
        for server in report["servers"].as_array().unwrap() {
            let process = Path::new("/proc").join(server["pid"].to_string());
            until("the server ends", || !process.exists());
        }
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "JSON is one line");
    }
}

#[test]
fn a_lab_that_cannot_write_its_report_ends_and_clears_up() {
    let directory = tempfile::tempdir().unwrap();
    let (read, closed) = std::io::pipe().unwrap();
    drop(read);
    let full = std::fs::File::create("/dev/full").unwrap();
    for (stdout, expected, text) in
        [(Stdio::from(full), 1, "cannot write to standard output: No space left"), (closed.into(), 0, "")]
    {
        let mut command = handle_lab(["up"]);
        command.env("TMPDIR", directory.path()).stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped());
        let mut lab = RunningProcess::start(command);
        assert_eq!(lab.wait(), Some(expected));
        let mut error = String::new();
        lab.0.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert!(error.contains(text) && error.lines().count() == usize::from(expected == 1), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the lab leaves no files");
    }
}

#[test]
fn the_lab_tells_people_what_to_try_and_how_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let lab_dir = directory.path().join("lab");
    let mut command = handle_lab(["up", "--dir", lab_dir.to_str().unwrap()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut lab = RunningProcess::start(command);
    let mut stdout = BufReader::new(lab.0.stdout.take().unwrap());
    let mut shown = String::new();
    while !shown.contains("stops the lab") {
        assert_ne!(stdout.read_line(&mut shown).unwrap(), 0, "{shown}");
    }
    for part in ["the lab is running in", "export HDL_ROOT=", "--trace --certify", "mirror", "^C or ^D"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // One line for each of the nine servers, and for the gateway and the cache one line and a
    // command.
    assert_eq!(shown.matches("127.0.0.1:").count(), 13, "{shown}");
    drop(lab.0.stdin.take());
    assert_eq!(lab.wait(), Some(0));
    stdout.read_to_string(&mut shown).unwrap();
    assert!(shown.contains("the lab has stopped; its files are in"), "{shown}");
    assert!(lab_dir.join("bootstrap_handles").is_file(), "--dir keeps the files");
    let (exit, error) = fail(handle_lab(["up", "--dir", lab_dir.to_str().unwrap()]));
    assert!(exit == 1 && error.contains("is not empty: choose an empty"), "{error}");
    let (exit, error) = fail(handle_lab(["up", "--records", "/does/not/exist"]));
    assert!(exit == 1 && error.contains("cannot read records from"), "{error}");
}

/// Starts a lab with its standard input closed, and waits until it is up.
fn lab_without_input(dir: &Path, more: &[&str]) -> RunningProcess {
    let mut command = handle_lab(["up", "--json", "--dir", dir.to_str().unwrap()]);
    command.args(more).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut lab = RunningProcess::start(command);
    let mut line = String::new();
    BufReader::new(lab.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("bootstrap_handles"), "{line}");
    lab
}

#[test]
fn a_lab_without_standard_input_runs_until_a_signal_or_for_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut lab = lab_without_input(&directory.path().join("one"), &[]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(lab.0.try_wait().unwrap().is_none(), "the lab still runs");
    lab.signal("TERM");
    assert_eq!(lab.wait(), Some(0));

    let mut lab = lab_without_input(&directory.path().join("two"), &["--seconds", "1"]);
    assert_eq!(lab.wait(), Some(0));
    // After the lab has stopped, errors explain an HDL_ROOT that still names its file.
    let root = directory.path().join("two/bootstrap_handles");
    let list = directory.path().join("list");
    std::fs::write(&list, "20.500.LAB/hello\n").unwrap();
    for args in [&["resolve", "20.500.LAB/hello"][..], &["resolve", "--file", list.to_str().unwrap()]] {
        let mut command = hdl(args);
        command.env("HDL_ROOT", &root);
        let (exit, error) = fail(command);
        assert_eq!(exit, 7, "{error}");
        assert!(
            error.contains("HDL_ROOT=") && error.contains("handle-lab up") && error.contains("--root"),
            "{error}"
        );
    }
}
