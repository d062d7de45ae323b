//! Dropping root privileges: the process keeps none, and everything continues to work.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::admin_server::administer_with;
use handle_tests::client::TestClient;
use handle_tests::daemon::{Daemon, Successor, ask, handled};
use handle_tests::needs::{TestNeed, has};
use handle_tests::process::{fail, until};
use handle_tests::records::{self, Record};
use serde_json::Value as Json;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const NOBODY: u32 = 65534;

/// Whether the tests can run. If not, they are reported as left out.
fn is_root() -> bool {
    has(TestNeed::Root, rustix::process::geteuid().is_root())
}

/// A set that everybody may read, and a directory for the control socket owned by nobody.
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
        // A port that needs a privilege, where the system has such ports.
        let is_free = |port: &u16| UdpSocket::bind(("127.0.0.1", *port)).is_ok();
        let port = (900..1000).find(is_free).expect("a port below 1024 is free");
        let setup = Self { directory, records: records::load(), address: ([127, 0, 0, 1], port).into() };
        setup.publish();
        setup
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

/// Asserts that no thread of a process has any privilege of root.
fn assert_is_nobody(pid: &Json) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut count = 0;
    for thread in threads {
        // Threads for requests on the control socket may have ended.
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
    assert!(count > 3, "workers and other threads are checked");
}

#[test]
fn handled_drops_root_privileges_and_keeps_serving() {
    if !is_root() {
        return;
    }
    let setup = PrivilegesSetup::new();
    // The user can use io_uring as well, unless the system restricts it.
    let is_restricted =
        std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|value| value.trim() != "0");
    for datapath in ["portable", if is_restricted { "auto" } else { "uring" }] {
        let mut serving = Daemon::start(setup.command(datapath), &setup.control());
        assert_is_nobody(&serving.ask("status")["pid"]);
        let handle = setup.records[0].handle.as_bytes();
        let code = || TestClient::new(setup.address).resolve(handle).expect("an answer").code;
        assert_eq!(code(), ResponseCode::SUCCESS);
        // Sets that are published later are mapped.
        let generation = serving.ask("status")["set"]["generation"].as_u64().unwrap();
        setup.publish();
        until("the next set is live", || serving.ask("status")["set"]["generation"] == generation + 1);
        assert_eq!(code(), ResponseCode::SUCCESS);
        // The user cannot bind this port, so the successor gets the socket.
        let reply = serving.ask("restart");
        assert_eq!(reply["ok"], true, "{reply}");
        let _successor = Successor { pid: reply["pid"].clone() };
        assert_eq!(serving.process.wait(), Some(0));
        until("the successor answers", || ask(&setup.control(), "status")["pid"] == reply["pid"]);
        assert_is_nobody(&reply["pid"]);
        assert_eq!(code(), ResponseCode::SUCCESS);
        // Root takes over from the user, and drops its privileges.
        let mut command = setup.command(datapath);
        command.arg("--take-over");
        let mut serving = Daemon::start(command, &setup.control());
        assert_is_nobody(&serving.ask("status")["pid"]);
        assert_eq!(code(), ResponseCode::SUCCESS);
        serving.process.signal("TERM");
        assert_eq!(serving.process.wait(), Some(0));
    }
}

#[test]
fn start_up_errors_name_what_would_fail_without_root() {
    if !is_root() {
        return;
    }
    let setup = PrivilegesSetup { address: ([127, 0, 0, 1], 0).into(), ..PrivilegesSetup::new() };
    let mut command = handled();
    command.env_remove("HANDLED_ALLOW_ROOT").arg("--snapshot").arg(setup.set());
    let (code, error) = fail(command);
    assert!(code == 2 && error.contains("refusing to run as root") && error.contains("--user"), "{error}");
    let mut command = handled();
    command.arg("--snapshot").arg(setup.set());
    command.args(["--listen", "127.0.0.1:0", "--user", "no-such-user-here"]);
    let (code, error) = fail(command);
    assert!(code == 1 && error.contains("useradd --system no-such-user-here"), "{error}");
    // Root can read this layer, and the user could not read the next one.
    let is_layer = |path: &PathBuf| path.extension().is_some_and(|end| end == "layer");
    let layer =
        std::fs::read_dir(setup.set()).unwrap().map(|entry| entry.unwrap().path()).find(is_layer).unwrap();
    allow(&layer, 0o600);
    let (code, error) = fail(setup.command("auto"));
    assert!(code == 1 && error.contains("cannot read the set") && error.contains(".layer"), "{error}");
}

/// Another user connects to the socket for relayed messages: only users in `socket_uids` may.
#[test]
fn users_in_socket_uids_may_relay_messages_and_others_may_not() {
    if !is_root() {
        return;
    }
    const ANOTHER: u32 = 12_345;
    // If there are no other users, the file of the socket lets in nobody else.
    for (uids, expected, refused) in [(vec![], 3, 0), (vec![ANOTHER], 0, 1), (vec![NOBODY], 2, 0)] {
        let directory = tempfile::tempdir().unwrap();
        allow(directory.path(), 0o755);
        let socket = directory.path().join("relay.sock");
        let administration = administer_with("root", |config| {
            config.replication.socket = Some(socket.clone());
            config.replication.socket_uids.clone_from(&uids);
        });
        let mut peer = Command::new("python3");
        let code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(1)\n\
                    try: s.connect(sys.argv[1])\nexcept PermissionError: sys.exit(3)\n\
                    try: sys.exit(0 if s.recv(1) == b'' else 1)\nexcept TimeoutError: sys.exit(2)";
        let status = peer.arg("-c").arg(code).arg(&socket).uid(NOBODY).status();
        if !has(TestNeed::Python, status.is_ok()) {
            return;
        }
        // A refused connection is closed at once; an accepted one waits for a message.
        assert_eq!(status.unwrap().code(), Some(expected), "{uids:?}");
        let counters = &administration.server().shared().service.counters;
        assert_eq!(counters.relayed_refused.get(), refused, "{uids:?}");
    }
}
