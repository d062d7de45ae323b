//! From root to nobody: what is left, and that everything works on.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::TestClient;
use handle_tests::daemon::{Daemon, Successor, ask, handled};
use handle_tests::process::{fail, until};
use handle_tests::records::{self, Record};
use serde_json::Value as Json;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const NOBODY: u32 = 65534;

/// Whether these tests can be made; says so where not.
fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let is_root = status.lines().any(|line| line.split_whitespace().take(3).eq(["Uid:", "0", "0"]));
    if !is_root {
        eprintln!("not tested: needs root");
    }
    is_root
}

/// A set that everybody may read, and a directory for the control socket of nobody.
struct PrivilegesSetup {
    directory: TempDir,
    records: Vec<Record>,
    address: SocketAddr,
}

impl PrivilegesSetup {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        allow(directory.path(), 0o755);
        let (set, run) = (directory.path().join("set"), directory.path().join("run"));
        std::fs::create_dir(&set).unwrap();
        allow(&set, 0o755);
        std::fs::create_dir(&run).unwrap();
        chown(&run, Some(NOBODY), Some(NOBODY)).unwrap();
        // A port that needs a privilege, where there are such.
        let is_free = |port: &u16| UdpSocket::bind(("127.0.0.1", *port)).is_ok();
        let port = (900..1000).find(is_free).expect("a port below 1024 is free");
        let place = Self { directory, records: records::load(), address: ([127, 0, 0, 1], port).into() };
        place.publish();
        place
    }

    fn set(&self) -> PathBuf {
        self.directory.path().join("set")
    }

    fn control(&self) -> PathBuf {
        self.directory.path().join("run/control.sock")
    }

    fn publish(&self) {
        records::publish(&mut SetPublisher::open(&self.set()).unwrap(), &self.records, 1);
        for entry in std::fs::read_dir(self.set()).unwrap() {
            allow(&entry.unwrap().path(), 0o644);
        }
    }

    fn command(&self, datapath: &str) -> Command {
        let mut command = handled();
        command.env_remove("HANDLED_ALLOW_ROOT");
        command.arg("--snapshot").arg(self.set()).arg("--control").arg(self.control());
        command.args(["--listen", &self.address.to_string(), "--datapath", datapath, "--log", "warn"]);
        command.args(["--workers", "2", "--user", &format!("{NOBODY}:{NOBODY}")]);
        command
    }
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Asserts that no thread of a process has anything of root.
fn assert_is_nobody(pid: &Json) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut count = 0;
    for thread in threads {
        // Some last for one question on the control socket.
        let Ok(status) = std::fs::read_to_string(thread.unwrap().path().join("status")) else { continue };
        let field = |name: &str| -> Vec<&str> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap().split_whitespace().collect()
        };
        let nobody = NOBODY.to_string();
        assert_eq!(field("Uid"), [&nobody; 4], "{status}");
        assert_eq!(field("Gid"), [&nobody; 4], "{status}");
        assert_eq!(field("Groups"), [&nobody], "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let [bits] = field(set).try_into().unwrap();
            assert_eq!(u64::from_str_radix(bits, 16), Ok(0), "{set} in {status}");
        }
        assert_eq!(field("NoNewPrivs"), ["1"], "{status}");
        count += 1;
    }
    assert!(count > 3, "workers and helpers are among them");
}

#[test]
fn root_becomes_nobody_and_serves_on() {
    if !is_root() {
        return;
    }
    let place = PrivilegesSetup::new();
    // What root may have, nobody has as well, unless the system keeps it from users.
    let is_kept =
        std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|it| it.trim() != "0");
    for datapath in ["portable", if is_kept { "auto" } else { "uring" }] {
        let mut serving = Daemon::start(place.command(datapath), &place.control());
        assert_is_nobody(&serving.ask("status")["pid"]);
        let handle = place.records[0].handle.as_bytes();
        let code = || TestClient::new(place.address).resolve(handle).expect("an answer").code;
        assert_eq!(code(), ResponseCode::SUCCESS);
        // What is published later is seen and mapped.
        let generation = serving.ask("status")["set"]["generation"].as_u64().unwrap();
        place.publish();
        until("the next set is live", || serving.ask("status")["set"]["generation"] == generation + 1);
        assert_eq!(code(), ResponseCode::SUCCESS);
        // Nobody cannot bind this port, and has it handed over.
        let reply = serving.ask("restart");
        assert_eq!(reply["ok"], true, "{reply}");
        let _successor = Successor { pid: reply["pid"].clone() };
        assert_eq!(serving.process.wait(), Some(0));
        until("the successor answers", || ask(&place.control(), "status")["pid"] == reply["pid"]);
        assert_is_nobody(&reply["pid"]);
        assert_eq!(code(), ResponseCode::SUCCESS);
        // Root may take over from nobody, and becomes nobody.
        let mut command = place.command(datapath);
        command.arg("--take-over");
        let mut serving = Daemon::start(command, &place.control());
        assert_is_nobody(&serving.ask("status")["pid"]);
        assert_eq!(code(), ResponseCode::SUCCESS);
        serving.process.signal("TERM");
        assert_eq!(serving.process.wait(), Some(0));
    }
}

#[test]
fn what_would_not_work_without_root_is_said_at_the_start() {
    if !is_root() {
        return;
    }
    let place = PrivilegesSetup { address: ([127, 0, 0, 1], 0).into(), ..PrivilegesSetup::new() };
    let mut command = handled();
    command.env_remove("HANDLED_ALLOW_ROOT").arg("--snapshot").arg(place.set());
    let (code, error) = fail(command);
    assert!(code == 2 && error.contains("refusing to run as root") && error.contains("--user"), "{error}");
    let mut command = handled();
    command.arg("--snapshot").arg(place.set());
    command.args(["--listen", "127.0.0.1:0", "--user", "no-such-user-here"]);
    let (code, error) = fail(command);
    assert!(code == 1 && error.contains("useradd --system no-such-user-here"), "{error}");
    // Root can read it, and the user could not read the next one.
    let is_layer = |path: &PathBuf| path.extension().is_some_and(|end| end == "layer");
    let layer = std::fs::read_dir(place.set()).unwrap().map(|it| it.unwrap().path()).find(is_layer).unwrap();
    allow(&layer, 0o600);
    let (code, error) = fail(place.command("auto"));
    assert!(code == 1 && error.contains("cannot read the set") && error.contains(".layer"), "{error}");
}
