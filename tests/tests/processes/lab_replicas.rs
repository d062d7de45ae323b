//! The lab with a mirror and a fleet: what is broken on purpose shows, and is whole again
//! afterwards.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::process::{RunningProcess, fail, handle_lab, hdl, program, run, succeed, until};
use serde_json::Value as Json;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

/// A running lab. It ends with its standard input, and its processes with it.
struct ReplicasProcess {
    directory: tempfile::TempDir,
    _process: RunningProcess,
}

impl ReplicasProcess {
    fn start() -> Self {
        for (package, name) in [
            ("handle-admin", "handle-admin"),
            ("handle-server", "handled"),
            ("handle-fetch", "handle-fetch"),
            ("handle-cli", "hdl"),
        ] {
            drop(program(package, name));
        }
        let directory = tempfile::tempdir().unwrap();
        let mut command = handle_lab(["replicas", "--json", "--dir"]);
        command.arg(directory.path().join("lab")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = RunningProcess::start(command);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let report: Json = serde_json::from_str(&line).expect("the report of the lab");
        assert_eq!(report["processes"].as_array().unwrap().len(), 9, "{report}");
        Self { directory, _process: process }
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = handle_lab(args);
        command.arg("--dir").arg(self.directory.path().join("lab"));
        command
    }

    fn lab(&self, args: &[&str]) -> String {
        succeed(self.command(args))
    }

    /// What is seen of a process.
    fn seen(&self, name: &str) -> Json {
        let output = run(self.command(&["look", "--json"]));
        let json: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(i32::from(json["agree"] != true)), "{json}");
        json["processes"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone()
    }

    fn until_text(&self, server: &str, text: &str) {
        until(&format!("{server} gives {text}"), || self.seen(server)["text"] == text);
    }

    fn until_all(&self, text: &str) {
        for server in ["primary-server", "mirror-server", "server-1", "server-2"] {
            self.until_text(server, text);
        }
    }
}

#[test]
fn what_is_stopped_is_seen_and_catches_up() {
    let lab = ReplicasProcess::start();
    lab.until_all("first");
    lab.lab(&["change", "second"]);
    lab.until_all("second");
    // The mirror is killed, and follows again where it was.
    lab.lab(&["stop", "mirror"]);
    lab.lab(&["change", "third"]);
    lab.until_text("server-1", "third");
    assert_eq!(lab.seen("mirror")["pid"], Json::Null);
    assert_eq!(lab.seen("mirror-server")["text"], "second", "still served");
    lab.lab(&["start", "mirror"]);
    lab.until_all("third");
    // Without the primary, everything is served, and the mirror says what is wrong.
    lab.lab(&["stop", "primary"]);
    until("the mirror cannot connect", || {
        // The first error is that of the connection that was open.
        let mirror = lab.seen("mirror");
        mirror["activity"] == "failing" && mirror["error"].as_str().unwrap().contains("cannot connect")
    });
    lab.until_all("third");
    lab.lab(&["start", "primary"]);
    until("the mirror follows", || lab.seen("mirror")["activity"] == "following");
    let mirror = lab.directory.path().join("lab/mirror/run/handle-admin.sock");
    let shown = succeed(hdl(["mirror", "compare", "--socket", mirror.to_str().unwrap()]));
    assert!(shown.contains("the mirror has what the primary has"), "{shown}");
    // A process that is killed by its id is started again.
    let pid = lab.seen("server-1")["pid"].clone();
    assert!(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    until("another process serves", || {
        let seen = lab.seen("server-1");
        seen["pid"].is_number() && seen["pid"] != pid && seen["text"] == "third"
    });
    let shown = run(lab.command(&["look"]));
    assert!(String::from_utf8_lossy(&shown.stdout).contains("all servers give the same text"));
    let (code, error) = fail(lab.command(&["stop", "nobody"]));
    assert!(code == 1 && error.contains("there is no process"), "{error}");
}

#[test]
fn a_damaged_layer_is_refused_until_it_is_repaired() {
    let lab = ReplicasProcess::start();
    lab.until_all("first");
    lab.lab(&["stop", "fetch-1"]);
    lab.lab(&["change", "second"]);
    lab.until_text("server-2", "second");
    lab.lab(&["damage"]);
    lab.lab(&["start", "fetch-1"]);
    until("the layer is refused", || lab.seen("fetch-1")["error"].is_string());
    assert_eq!(lab.seen("server-1")["text"], "first", "the old set is served");
    assert_eq!(lab.seen("server-2")["text"], "second");
    lab.lab(&["repair"]);
    lab.until_all("second");
    until("nothing is wrong", || lab.seen("fetch-1")["error"] == Json::Null);
}
