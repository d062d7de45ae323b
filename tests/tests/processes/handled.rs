//! `handled` and `hdl` as operators use them, with good and faulty input.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Reply, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, Value, Values};
use handle_tests::client::{TestClient, request};
use handle_tests::daemon::free_address;
use handle_tests::process::{RunningProcess, fail, handle_lab, hdl, program, succeed, until};
use md5::Md5;
use serde_json::Value as Json;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const RECORD: &str = r#"{"handle":"10.1/a","values":[{"index":1,"type":"URL","data":"https://a.example/"}]}"#;
const OTHER: &str = r#"{"handle":"10.1/b","values":[{"index":1,"type":"URL","data":"https://b.example/"}]}"#;

/// A directory with a published set.
struct PublishedDirectory(TempDir);

impl PublishedDirectory {
    fn new(records: &[&str]) -> Self {
        let directory = Self(tempfile::tempdir().unwrap());
        directory.publish(&[], records);
        directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn set(&self) -> PathBuf {
        self.path("set")
    }

    /// A file of records.
    fn records(&self, records: &[&str]) -> PathBuf {
        let file = self.path("records.jsonl");
        std::fs::write(&file, records.join("\n")).unwrap();
        file
    }

    fn publish(&self, options: &[&str], records: &[&str]) -> Json {
        let file = self.records(records);
        let mut command = hdl(["snapshot", "publish", "--json"]);
        command.arg(self.set()).arg(file).args(options);
        serde_json::from_str(&succeed(command)).unwrap()
    }

    fn serve(&self) -> RunningServer {
        RunningServer::start(&self.set(), &self.path("control.sock"), |_| {})
    }
}

/// A running `handled`.
struct RunningServer {
    process: RunningProcess,
    address: SocketAddr,
    control: PathBuf,
}

impl RunningServer {
    fn start(set: &Path, control: &Path, change: impl FnOnce(&mut Command)) -> Self {
        let address = free_address();
        let mut command = handled();
        command.arg("--snapshot").arg(set).arg("--control").arg(control);
        command.args(["--listen", &address.to_string(), "--workers", "1", "--log", "warn"]);
        change(&mut command);
        let mut serving =
            Self { process: RunningProcess::start(command), address, control: control.to_owned() };
        until("handled serves", || {
            let ended = serving.process.0.try_wait().unwrap();
            assert_eq!(ended, None, "handled still runs");
            control.exists() && serving.status()["state"] == "serving"
        });
        serving
    }

    fn control(&self, command: &str) -> Json {
        let mut command = hdl(["control", command, "--json", "--socket"]);
        command.arg(&self.control);
        let output = command.output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Json::Null)
    }

    fn status(&self) -> Json {
        self.control("status")
    }

    fn code(&self, handle: &str) -> ResponseCode {
        TestClient::new(self.address).resolve(handle.as_bytes()).expect("an answer").code
    }
}

fn handled() -> Command {
    let mut command = Command::new(program("handle-server", "handled"));
    command.stdin(Stdio::null()).env("HANDLED_ALLOW_ROOT", "true");
    command
}

#[test]
fn serves_reloads_and_stops_on_a_signal() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let mut serving = directory.serve();
    assert_eq!(serving.code("10.1/A"), ResponseCode::SUCCESS);
    assert_eq!(serving.code("10.1/b"), ResponseCode::HANDLE_NOT_FOUND);
    let published = directory.publish(&["--delta"], &[OTHER, r#"{"handle":"10.1/a","deleted":true}"#]);
    assert_eq!(published["generation"], 2);
    until("the change is live", || serving.status()["set"]["generation"] == 2);
    assert_eq!(serving.code("10.1/a"), ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(serving.code("10.1/b"), ResponseCode::SUCCESS);
    let reloaded = serving.control("reload");
    assert_eq!((&reloaded["ok"], &reloaded["changed"]), (&Json::Bool(true), &Json::Bool(false)));
    let stats = serving.control("stats");
    assert_eq!(stats["total"]["datagrams_received"], 4);
    assert_eq!(stats["total"]["replies"]["1"], 2);
    assert_eq!(stats["total"]["replies"]["100"], 2);
    let status = serving.status();
    assert_eq!(status["set"]["handles"], 1);
    assert_eq!(status["set"]["layers"].as_array().unwrap().len(), 2);
    assert!(
        status["workers"][0]["reason"].as_str().unwrap().len() > 10,
        "the reason for the datapath is shown"
    );
    serving.process.signal("TERM");
    assert_eq!(serving.process.wait(), Some(0));
    assert!(!serving.control.exists(), "the control socket is gone");
}

#[test]
fn a_delta_brings_its_new_prefixes_and_keeps_the_old_ones() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let serving = directory.serve();
    let live = |generation: u64| {
        until("the change is live", || serving.status()["set"]["generation"] == generation);
    };
    directory.publish(&["--delta"], &[r#"{"handle":"10.2/a","values":[{"index":1,"type":"N","data":"1"}]}"#]);
    live(2);
    assert_eq!(serving.code("10.2/A"), ResponseCode::SUCCESS);
    assert_eq!(serving.code("10.1/a"), ResponseCode::SUCCESS, "the old prefix is still homed");
    // Prefixes named with --homed are added to the set.
    directory.publish(&["--delta", "--homed", "10.3"], &[OTHER]);
    live(3);
    assert_eq!(serving.code("10.3/none"), ResponseCode::HANDLE_NOT_FOUND);
    for handle in ["10.1/a", "10.1/b", "10.2/a"] {
        assert_eq!(serving.code(handle), ResponseCode::SUCCESS, "{handle}");
    }
    // A delta that was built before adds its prefixes, unless the set has changed since.
    let layer = directory.path("delta.layer");
    let build = || {
        let file =
            directory.records(&[r#"{"handle":"10.4/a","values":[{"index":1,"type":"N","data":"1"}]}"#]);
        let mut command = hdl(["snapshot", "build"]);
        command.arg(&layer).arg(&file).arg("--delta-for").arg(directory.set());
        succeed(command);
    };
    build();
    directory.publish(&["--delta"], &[r#"{"handle":"10.5/a","values":[{"index":1,"type":"N","data":"1"}]}"#]);
    live(4);
    let publish = || {
        let mut command = hdl(["snapshot", "publish", "--delta"]);
        command.arg(directory.set()).arg("--layer").arg(&layer);
        command
    };
    let (code, error) = fail(publish());
    assert!(code == 1 && error.contains("10.5") && error.contains("build the delta again"), "{error}");
    build();
    succeed(publish());
    live(5);
    for handle in ["10.1/a", "10.2/a", "10.4/a", "10.5/a"] {
        assert_eq!(serving.code(handle), ResponseCode::SUCCESS, "{handle}");
    }
}

#[test]
fn records_outside_the_homed_prefixes_are_warned_about() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let mut command = hdl(["snapshot", "publish", "--homed", "10.1"]);
    let outside = r#"{"handle":"10.2/x","values":[{"index":1,"type":"N","data":"1"}]}"#;
    command.arg(directory.set()).arg(directory.records(&[RECORD, outside]));
    let (code, error) = fail(command);
    assert_eq!(code, 0);
    assert!(error.contains("warning: 1 record ") && error.contains("10.2/x"), "{error}");
}

#[test]
fn case_sensitive_services_keep_the_case_of_all_names() {
    let directory = PublishedDirectory(tempfile::tempdir().unwrap());
    let record =
        |handle: &str| format!(r#"{{"handle":"{handle}","values":[{{"index":1,"type":"N","data":"1"}}]}}"#);
    let records = ["0.na/x", "0.TYPE/foo", "10.1/a", "10.1/A"].map(record);
    directory.publish(&["--case-sensitive"], &records.each_ref().map(String::as_str));
    let mut command = hdl(["snapshot", "verify"]);
    command.arg(directory.set());
    assert!(succeed(command).contains("4 handles"));
    let serving = directory.serve();
    assert_eq!(serving.code("10.1/A"), ResponseCode::SUCCESS);
    assert_eq!(serving.code("0.TYPE/foo"), ResponseCode::SUCCESS);
    assert_eq!(serving.code("0.TYPE/FOO"), ResponseCode::HANDLE_NOT_FOUND);
    let (code, _) = fail({
        let mut command = hdl(["snapshot", "publish", "--delta", "--case-sensitive"]);
        command.arg(directory.set()).arg(directory.records(&[RECORD]));
        command
    });
    assert_eq!(code, 2, "case sensitivity is a property of the set");
}

#[test]
fn drains_on_command_and_can_be_started_again() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let mut serving = directory.serve();
    assert_eq!(serving.control("drain")["ok"], true);
    assert_eq!(serving.process.wait(), Some(0));
    // After a kill, the socket file is left behind and is replaced.
    let mut serving = directory.serve();
    serving.process.signal("KILL");
    assert_eq!(serving.process.wait(), None);
    assert!(serving.control.exists());
    let serving = directory.serve();
    assert_eq!(serving.code("10.1/a"), ResponseCode::SUCCESS);
}

#[test]
fn stops_in_order_also_while_requests_keep_coming() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let mut serving = directory.serve();
    let (stop, address) = (AtomicBool::new(false), serving.address);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let datagram = request(b"10.1/a", 1);
            while !stop.load(Ordering::Relaxed) {
                // Sending fails once the server has stopped.
                let _ = socket.send_to(&datagram, address);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        serving.process.signal("TERM");
        let code = serving.process.wait();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(code, Some(0));
    });
}

#[test]
fn notifies_the_service_manager() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let path = directory.path("notify.sock");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut serving = RunningServer::start(&directory.set(), &directory.path("control.sock"), |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    });
    let notification = || {
        let mut buffer = [0; 1000];
        let len = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    assert!(notification().contains("READY=1"));
    assert_eq!(notification().trim_end(), "WATCHDOG=1", "the first watchdog notification");
    assert_eq!(notification().trim_end(), "WATCHDOG=1", "the second watchdog notification");
    serving.process.signal("INT");
    let last = std::iter::repeat_with(notification).find(|text| text.trim_end() != "WATCHDOG=1").unwrap();
    assert!(last.contains("STOPPING=1"), "{last}");
    assert_eq!(serving.process.wait(), Some(0));
}

#[test]
fn a_damaged_set_is_reported_and_the_old_one_stays_in_service() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let serving = directory.serve();
    let manifest = directory.set().join("MANIFEST");
    let good = std::fs::read(&manifest).unwrap();
    let replace = |bytes: &[u8]| {
        let new = directory.path("new");
        std::fs::write(&new, bytes).unwrap();
        std::fs::rename(&new, &manifest).unwrap();
    };
    replace(b"not a manifest\n");
    until("the damage is seen", || serving.status()["set"]["last_error"].is_string());
    assert!(serving.status()["set"]["last_error"].as_str().unwrap().contains("MANIFEST"));
    assert_eq!(serving.code("10.1/a"), ResponseCode::SUCCESS);
    let mut command = hdl(["control", "reload", "--socket"]);
    command.arg(&serving.control);
    assert_eq!(fail(command).0, 6, "exit code of the failed reload");
    let mut command = hdl(["snapshot", "verify"]);
    command.arg(directory.set());
    let (code, error) = fail(command);
    assert_eq!(code, 1);
    assert!(error.contains("MANIFEST"), "{error}");
    let (code, error) = fail({
        let mut command = handled();
        command.arg("--snapshot").arg(directory.set()).args(["--listen", "127.0.0.1:0"]);
        command
    });
    assert_eq!(code, 1);
    assert!(error.contains("MANIFEST") && error.contains("hdl snapshot verify"), "{error}");
    replace(&good);
    until("the set is readable again", || serving.status()["set"]["last_error"].is_null());
    // The next set becomes live.
    let published = directory.publish(&[], &[OTHER]);
    until("the next set is live", || serving.status()["set"]["generation"] == published["generation"]);
}

#[test]
fn verify_finds_a_single_flipped_bit() {
    let directory = PublishedDirectory::new(&[RECORD, OTHER]);
    let set = std::fs::read_dir(directory.set()).unwrap().map(|entry| entry.unwrap().path());
    let layer = set.into_iter().find(|path| path.extension().is_some_and(|end| end == "layer")).unwrap();
    let mut bytes = std::fs::read(&layer).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::remove_file(&layer).unwrap();
    std::fs::write(&layer, bytes).unwrap();
    let mut command = hdl(["snapshot", "verify"]);
    command.arg(directory.set());
    let (code, error) = fail(command);
    assert_eq!(code, 1);
    assert!(error.contains(".layer"), "{error}");
    let mut command = hdl(["snapshot", "verify", "--json"]);
    command.arg(directory.set());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let json: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["error"].as_str().unwrap().contains(".layer"), "{json}");
}

#[test]
fn start_up_errors_name_the_cause_and_what_to_check() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let with = |name: &str, value: &str| {
        let mut command = handled();
        command.arg("--snapshot").arg(directory.set()).arg(name).arg(value);
        fail(command)
    };
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, error) = with("--listen", &address);
    assert_eq!(code, 1);
    assert!(error.contains("another process uses the port") && error.contains("ss -ltunp"), "{error}");
    let (code, error) = with("--listen", "192.0.2.1:2641");
    assert_eq!(code, 1);
    assert!(error.contains("does not have the address"), "{error}");
    let (code, error) = with("--site", "/nonexistent/siteinfo.json");
    assert_eq!(code, 1);
    assert!(error.contains("siteinfo.json"), "{error}");
    let (code, error) = with("--config", "/nonexistent/handled.toml");
    assert_eq!(code, 2);
    assert!(error.contains("handled.toml"), "{error}");
    let config = directory.path("handled.toml");
    std::fs::write(&config, "snapshot = \"set\"\nlimits.answer_datagrams = 0\n").unwrap();
    let (code, error) = fail({
        let mut command = handled();
        command.arg("--config").arg(&config);
        command
    });
    assert_eq!(code, 2);
    assert!(error.contains("limits.answer_datagrams"), "{error}");
    let serving = directory.serve();
    let (code, error) = fail({
        let mut command = handled();
        command.arg("--snapshot").arg(directory.set()).arg("--control").arg(&serving.control);
        command.args(["--listen", "127.0.0.1:0"]);
        command
    });
    assert_eq!(code, 1);
    assert!(error.contains("is handled running already"), "{error}");
}

#[test]
fn check_config_checks_everything_and_serves_nothing() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let config = directory.path("handled.toml");
    std::fs::write(&config, "snapshot = \"set\"\nlisten = [\"127.0.0.1:0\"]\n").unwrap();
    let mut command = handled();
    command.arg("--config").arg(&config).arg("--check-config");
    assert!(succeed(command).contains("configuration is good: generation 1"));
    // Before the first set is published, a start waits for it unless it must not.
    std::fs::write(&config, "snapshot = \"elsewhere\"\n").unwrap();
    let mut command = handled();
    command.arg("--config").arg(&config).arg("--check-config");
    let checked = succeed(command);
    assert!(checked.contains("waits for the first set in ") && checked.contains("elsewhere"), "{checked}");
    std::fs::write(&config, "snapshot = \"elsewhere\"\nwait_for_set = false\n").unwrap();
    let mut command = handled();
    command.arg("--config").arg(&config).arg("--check-config");
    let (code, error) = fail(command);
    assert_eq!(code, 2);
    assert!(error.contains("elsewhere"), "{error}");
    // Errors that a start would report as well.
    for (line, expected) in [
        ("user = \"nobody-of-that-name\"", "/etc/passwd has no \"nobody-of-that-name\""),
        ("cores = [1000]", "`cores`: cannot run on core 1000"),
        ("listen = [\"127.0.0.1:26\", \"127.0.0.1:26\"]", "`listen` names 127.0.0.1:26 twice"),
        ("tcp.conections = 1", "line 2: unknown setting `tcp.conections`: did you mean `tcp.connections`?"),
        ("queue_lines = 1", "unknown field `queue_lines`"),
        ("idle_ms = 1", "unknown setting `idle_ms`: did you mean `tcp.idle_ms`?"),
        ("log = \"loud\"", "`log` is \"loud\": write error, warn, info"),
    ] {
        std::fs::write(&config, format!("snapshot = \"set\"\n{line}\n")).unwrap();
        let mut command = handled();
        command.arg("--config").arg(&config).arg("--check-config");
        let (code, error) = fail(command);
        assert!(code == 2 && error.contains(expected), "{line}: {error}");
    }
    let mut command = handled();
    command.args(["--print-config", "--snapshot", "x"]);
    let printed = succeed(command);
    std::fs::write(&config, &printed).unwrap();
    let mut command = handled();
    command.arg("--config").arg(&config).arg("--print-config");
    assert!(succeed(command).contains("answer_datagrams"), "the printed configuration is valid");
}

#[test]
fn logs_into_a_pipe_have_no_colours() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let mut command = handled();
    command.arg("--snapshot").arg(directory.set()).args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut log, mut logged) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    while !logged.contains(" serving ") {
        assert_ne!(log.read_line(&mut logged).unwrap(), 0, "handled has exited: {logged}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!logged.contains('\u{1b}'), "{logged}");
}

#[test]
fn bad_records_name_file_line_and_handle_and_nothing_is_published() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let bad = [
        (vec![OTHER, "{not json"], ":2", "not JSON"),
        (vec![RECORD, OTHER, RECORD], ":3", ":1"),
        (vec![RECORD, r#"{"handle":"10.1/A","values":[]}"#], ":2", "10.1/A"),
        (vec![r#"{"handle":"10.1/x","values":[{"index":0,"type":"URL","data":"x"}]}"#], ":1", "10.1/x"),
        (vec![r#"{"handle":"10.1/x","values":[{"index":1,"type":"URL"}]}"#], ":1", "10.1/x"),
        (vec![r#"{"handle":"10.1/x","deleted":true}"#], ":1", "delta"),
    ];
    for (records, line, reason) in bad {
        let file = directory.records(&records);
        let mut command = hdl(["snapshot", "publish"]);
        command.arg(directory.set()).arg(&file);
        let (code, error) = fail(command);
        assert_eq!(code, 1, "{records:?}");
        assert!(error.contains(&format!("records.jsonl{line}")) && error.contains(reason), "{error}");
        let mut command = hdl(["snapshot", "build"]);
        let out = directory.path("out.layer");
        command.arg(&out).arg(&file);
        assert_eq!(fail(command).0, 1);
        assert!(!out.exists(), "a failed build leaves no file");
    }
    let mut command = hdl(["snapshot", "inspect", "--json"]);
    command.arg(directory.set());
    let inspected: Json = serde_json::from_str(&succeed(command)).unwrap();
    assert_eq!(inspected["generation"], 1, "the published set is unchanged");
}

#[test]
fn errors_in_arrays_name_the_position_and_arrays_may_delete() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let published =
        directory.publish(&["--delta"], &[&format!(r#"[{OTHER},{{"handle":"10.1/a","deleted":true}}]"#)]);
    assert_eq!(published["handles"], 1);
    for (bad, why) in [(RECORD, "duplicate handle"), (r#"{"handle":"10.1/x","values":7}"#, "10.1/x")] {
        let file = directory.records(&[&format!("[{RECORD},\n\n{bad}]")]);
        let mut command = hdl(["snapshot", "publish"]);
        command.arg(directory.set()).arg(&file);
        let (code, error) = fail(command);
        assert_eq!(code, 1);
        assert!(error.contains("records.jsonl: record 2: ") && error.contains(why), "{error}");
    }
}

#[test]
fn options_that_make_no_sense_are_usage_errors() {
    for options in [
        vec!["--memory", "0"],
        vec!["--memory", "15"],
        vec!["--memory", "16385"],
        vec!["--memory", "18446744073709551615"],
        vec!["--layer", "x.layer", "--memory", "64"],
        vec!["--delta", "--case-sensitive"],
    ] {
        let (code, error) = fail(hdl(["snapshot", "publish", "no-such-set"].iter().chain(&options)));
        assert_eq!(code, 2, "{options:?}: {error}");
    }
}

#[test]
fn layers_are_built_published_merged_and_looked_into() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let layer = directory.path("new.layer");
    let mut command = hdl(["snapshot", "build"]);
    command.arg(&layer).arg(directory.records(&[OTHER])).args(["--homed", "10.1", "--homed", "0.NA/10.2"]);
    succeed(command);
    let mut command = hdl(["snapshot", "publish"]);
    command.arg(directory.set()).arg("--layer").arg(&layer);
    succeed(command);
    for number in 0..12 {
        let record =
            format!(r#"{{"handle":"10.1/{number}","values":[{{"index":1,"type":"N","data":"{number}"}}]}}"#);
        directory.publish(&["--delta"], &[&record]);
    }
    let mut command = hdl(["snapshot", "merge", "--json"]);
    command.arg(directory.set());
    let merged: Json = serde_json::from_str(&succeed(command)).unwrap();
    assert_eq!((&merged["handles"], merged["layers"].as_array().unwrap().len()), (&Json::from(13), 1));
    let mut command = hdl(["snapshot", "inspect", "--json", "--handles", "100"]);
    command.arg(directory.set());
    let inspected: Json = serde_json::from_str(&succeed(command)).unwrap();
    assert_eq!(inspected["homed"], serde_json::json!(["10.1", "10.2"]));
    assert_eq!(inspected["handles"].as_array().unwrap().len(), 13);
    let mut command = hdl(["snapshot", "get", "--json"]);
    command.arg(directory.set()).arg("10.1/11");
    let record = succeed(command);
    assert!(record.contains("\"value\":\"11\""), "{record}");
    let mut command = hdl(["snapshot", "get"]);
    command.arg(directory.set()).arg("10.1/a");
    assert_eq!(fail(command).0, 3);
    let mut command = hdl(["snapshot", "verify"]);
    command.arg(directory.set());
    assert!(succeed(command).contains("13 handles"));
}

/// After `kill -9` at any moment of a publication, readers find the old set or the new one.
#[test]
fn a_publisher_killed_at_any_moment_leaves_a_whole_set() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let records: Vec<String> = (0..3_000)
        .map(|number| {
            format!(r#"{{"handle":"10.1/{number}","values":[{{"index":1,"type":"N","data":"{number}"}}]}}"#)
        })
        .collect();
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    let file = directory.records(&records);
    let publish = || {
        let mut command = hdl(["snapshot", "publish"]);
        command.arg(directory.set()).arg(&file).stdout(Stdio::null());
        command
    };
    let generation = || {
        let mut command = hdl(["snapshot", "verify"]);
        command.arg(directory.set());
        succeed(command);
        let mut command = hdl(["snapshot", "inspect", "--json"]);
        command.arg(directory.set());
        let inspected: Json = serde_json::from_str(&succeed(command)).unwrap();
        inspected["generation"].as_u64().unwrap()
    };
    let started = std::time::Instant::now();
    succeed(publish());
    let took = started.elapsed();
    let mut before = generation();
    for step in 0..16 {
        let mut process = RunningProcess::start(publish());
        std::thread::sleep(took * step / 12);
        // The publisher may have exited already.
        let _ = process.0.kill();
        let done = process.wait() == Some(0);
        let after = generation();
        assert!(after == before || after == before + 1, "from {before} to {after}");
        assert!(!done || after == before + 1, "a completed publication is readable");
        before = after;
    }
    succeed(publish());
    assert_eq!(generation(), before + 1, "the next publication succeeds");
}

#[test]
fn exit_codes_of_resolve_show_the_outcome() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let serving = directory.serve();
    let address = serving.address.to_string();
    let resolve = |handle: &str, more: &[&str]| {
        let mut command = hdl(["resolve", handle, "--server", &address]);
        command.args(more);
        command
    };
    let shown = succeed(resolve("10.1/A", &["--digest"]));
    assert!(shown.contains("10.1/A  1 value") && shown.contains("https://a.example/"), "{shown}");
    let json: Json = serde_json::from_str(&succeed(resolve("10.1/a", &["--json"]))).unwrap();
    assert_eq!(json["values"][0]["data"]["value"], "https://a.example/");
    assert_eq!(fail(resolve("10.1/none", &[])).0, 3);
    assert_eq!(fail(resolve("10.1/a", &["--type", "EMAIL"])).0, 4);
    assert_eq!(fail(resolve("10.9/a", &[])).0, 5);
    let shown = succeed(resolve("10.1/A", &["--digest", "--tcp"]));
    assert!(shown.contains("10.1/A  1 value") && shown.contains("over TCP"), "{shown}");
    assert_eq!(fail(resolve("10.1/none", &["--tcp"])).0, 3);
    drop(serving);
    let (code, error) = fail(resolve("10.1/a", &["--tcp"]));
    assert!(code == 7 && error.contains("is the server running"), "{error}");
    let (code, error) = fail(resolve("10.1/a", &[]));
    assert_eq!(code, 7);
    assert!(error.contains("connection refused"), "{error}");
    // A server that does not answer.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (code, error) = fail(hdl(["resolve", "10.1/a", "--server", &address]));
    assert_eq!(code, 7);
    assert!(error.contains("no answer"), "{error}");
    assert_eq!(fail(hdl(["resolve"])).0, 2);
    assert_eq!(fail(hdl(["resolve", "10.1/a", "--server", "no such host:1:2"])).0, 1);
}

/// Starts a responder that answers one request with the result of `lie`; returns its address.
fn responder(lie: impl Fn(&Message<'_>, Envelope) -> Vec<u8> + Send + 'static) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        let (len, peer) = socket.recv_from(&mut buffer).unwrap();
        let (envelope, message) = Envelope::split(&buffer[..len]).unwrap();
        socket.send_to(&lie(&Message::decode(message).unwrap(), envelope), peer).unwrap();
    });
    address
}

#[test]
fn resolve_only_accepts_answers_to_its_question() {
    const ASKED: &[u8] = b"10.1/a";
    struct ForgedAnswer {
        digest: Option<(DigestAlgorithm, Vec<u8>)>,
        op_code: OpCode,
        handle: &'static [u8],
    }
    let ask = |options: &[&str], lie: fn(&Message<'_>) -> ForgedAnswer| {
        let address = responder(move |message, envelope| {
            let ForgedAnswer { digest, op_code, handle } = lie(message);
            let digest =
                digest.as_ref().map(|(algorithm, digest)| RequestDigest { algorithm: *algorithm, digest });
            let values = [Value::new(1, b"N", b"1")];
            let mut encoded = Vec::new();
            values.iter().for_each(|value| value.encode(&mut encoded));
            let values = Values::from_encoded(1, &encoded).unwrap();
            let response = Response::Answer(QueryAnswer { handle, values });
            let reply = Reply { code: ResponseCode::SUCCESS, digest, response };
            let header = Header { op_code, ..message.header };
            MessageBuf::reply(&envelope, &header, &reply).unsigned().unwrap()
        });
        let mut command = hdl(["resolve", "10.1/a", "--json", "--server", &address]);
        let output = command.args(options).output().unwrap();
        let json: Json = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), json["error"].as_str().unwrap_or_default().to_owned())
    };
    let honest = |_: &Message<'_>| ForgedAnswer { digest: None, op_code: OpCode::RESOLUTION, handle: ASKED };
    assert_eq!(ask(&[], honest), (Some(0), String::new()));
    let refused = |options: &[&str], lie: fn(&Message<'_>) -> ForgedAnswer, why: &str| {
        let (code, error) = ask(options, lie);
        assert!(code == Some(1) && error.contains(why), "{code:?} {error}");
    };
    refused(&["--digest"], honest, "has no request digest");
    refused(
        &[],
        |_| ForgedAnswer { digest: None, op_code: OpCode::RESOLUTION, handle: b"10.1/b" },
        "another handle",
    );
    refused(
        &[],
        |_| ForgedAnswer { digest: None, op_code: OpCode::GET_SITE_INFO, handle: ASKED },
        "operation",
    );
    fn with_digest(algorithm: DigestAlgorithm, digest: Vec<u8>) -> ForgedAnswer {
        ForgedAnswer { digest: Some((algorithm, digest)), op_code: OpCode::RESOLUTION, handle: ASKED }
    }
    let good: [fn(&Message<'_>) -> ForgedAnswer; 4] = [
        |message| with_digest(DigestAlgorithm::SHA256, Sha256::digest(message.covered).to_vec()),
        |message| with_digest(DigestAlgorithm::SHA1, Sha1::digest(message.covered).to_vec()),
        |message| with_digest(DigestAlgorithm::MD5, Md5::digest(message.covered).to_vec()),
        |message| with_digest(DigestAlgorithm::OLD_MD5, Md5::digest(message.covered).to_vec()),
    ];
    for good in good {
        assert_eq!(ask(&["--digest"], good), (Some(0), String::new()));
    }
    let body_only =
        |message: &Message<'_>| with_digest(DigestAlgorithm::SHA256, Sha256::digest(message.body).to_vec());
    refused(&["--digest"], body_only, "wrong request digest");
    // An answer without request number says nothing about the handle.
    for (response_code, exit_code) in [(ResponseCode::HANDLE_NOT_FOUND, 1), (ResponseCode::PROTOCOL_ERROR, 6)]
    {
        let address = responder(move |message, envelope| {
            let envelope = Envelope { request_id: -1, ..envelope };
            let flags = message.header.flags.without(OpFlags::REQUEST_DIGEST);
            let header = Header { response_code, flags, ..message.header };
            MessageBuf::new(&envelope, &header, |_| {}).unsigned().unwrap()
        });
        let (code, error) = fail(hdl(["resolve", "10.1/a", "--digest", "--server", &address]));
        assert_eq!(code, exit_code, "{error}");
    }
}

#[test]
fn message_decode_shows_the_fields() {
    let hex = "020b020b0000000001020304000000000000003b0000000100000000190000\
               00ffff0000670000000000001f0000001331302e313034352f6a756c7939352d61726d73000000000000000000000000";
    let text = succeed(hdl(["message", "decode", hex]));
    for part in ["speaks up to 2.11", "1 resolution", "10.1045/july95-arms", "public_only", "not signed"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let json: Json = serde_json::from_str(&succeed(hdl(["message", "decode", "--json", hex]))).unwrap();
    assert_eq!(json["body"]["handle"], "10.1045/july95-arms");
    assert_eq!(json["header"]["opcode"], 1);
    // Two messages as in a stream, the second truncated.
    let (code, error) = fail(hdl(["message", "decode", hex, &hex[..hex.len() - 8]]));
    assert_eq!((code, error.contains("expected 59 bytes, found 55")), (1, true), "{error}");
    assert_eq!(fail(hdl(["message", "decode", "0203"])).0, 1);
    assert_eq!(fail(hdl(["message", "decode", "no hex at all"])).0, 1);
}

#[test]
fn completions_and_help_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(succeed(hdl(["completions", shell])).contains("snapshot"), "{shell}");
    }
    assert!(succeed(hdl(["--help"])).contains("handle-lab demo"));
    for command in [vec!["resolve"], vec!["snapshot", "publish"], vec!["message", "decode"], vec!["control"]]
    {
        let help = succeed(hdl(command.iter().chain(&["--help"])));
        assert!(help.contains("Usage"), "{command:?}");
    }
}

#[test]
fn a_closed_pipe_is_no_failure_and_a_full_disk_is_one() {
    let directory = PublishedDirectory::new(&[RECORD]);
    let mut command = hdl(["snapshot", "inspect", "--handles", "1"]);
    let mut child =
        command.arg(directory.set()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    let mut command = hdl(["snapshot", "inspect"]);
    command.arg(directory.set()).stdout(std::fs::File::create("/dev/full").unwrap());
    let (code, error) = fail(command);
    assert!(code == 1 && error.contains("No space left") && error.lines().count() == 1, "{code} {error}");
}

#[test]
fn the_demo_runs_and_verifies_all_answers() {
    let shown = succeed(handle_lab(["demo", "--json", "--seconds", "1", "--rate", "2000"]));
    let json: Json = serde_json::from_str(&shown).unwrap();
    assert_eq!(json["good"], true, "{json:#}");
    assert_eq!(json["handles"], 1251);
    assert!(json["changes_published"].as_u64().unwrap() > 3);
    assert_eq!(json["fixed_rate"]["accounts"]["lost"], 0);
    assert_eq!(json["fixed_rate"]["accounts"]["answered"], 2000);
    let redirects = &json["redirects"];
    assert!(redirects["accounts"]["answered"].as_u64().unwrap() > 100, "{redirects:#}");
    assert_eq!(redirects["statuses"][0]["status"], 302, "{redirects:#}");
}
