//! Dropping root privileges: the process keeps none, and everything continues to work.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_local::kind::LocalKind;
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

/// Connects to the socket of sessions: prints whether it may, and is answered or hung up on.
const SHARE: &str = "
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(1)
try:
    peer.connect(sys.argv[1])
    print('closed' if peer.recv(1) == b'' else 'talks')
except PermissionError: print('denied')
except TimeoutError: print('open')
";

#[test]
fn sessions_are_shared_with_the_user_of_handle_admin_only() {
    if !is_root() {
        return;
    }
    const HANDLED: u32 = 12_345;
    const ADMIN: u32 = 12_346;
    const SETS: u32 = 12_340;
    let setup = PrivilegesSetup { address: ([127, 0, 0, 1], 0).into(), ..PrivilegesSetup::new() };
    let place = |name: &str, owner| {
        let path = setup.directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        chown(&path, Some(owner), Some(SETS)).unwrap();
        allow(&path, 0o750);
        path
    };
    let (own, administration) = (place("handled", HANDLED), place("handle-admin", ADMIN));
    let (sessions, control) = (own.join("sessions"), own.join("control.sock"));
    let config = setup.directory.path().join("handled.toml");
    let settings = serde_json::json!({
        "snapshot": setup.set(), "listen": ["127.0.0.1:0"], "control": control, "user": format!("{HANDLED}:{SETS}"),
    });
    let settings = settings.as_object().unwrap().iter().map(|(name, value)| format!("{name} = {value}\n"));
    let settings: String = settings.collect();
    let tables = format!(
        "[sessions]\nsocket = {:?}\n[forward]\nsocket = {:?}\n",
        sessions,
        administration.join("admin.socket")
    );
    std::fs::write(&config, settings + &tables).unwrap();
    let mut command = handled();
    command.env_remove("HANDLED_ALLOW_ROOT").arg("--config").arg(&config).args(["--workers", "1"]);
    let _serving = Daemon::start(command, &control);
    until("the socket of sessions exists", || sessions.exists());
    let connect = |user: u32, group: u32| {
        let mut peer = Command::new("python3");
        peer.arg("-c").arg(SHARE).arg(&sessions).uid(user).gid(group).output()
    };
    if !has(TestNeed::Python, connect(0, 0).is_ok()) {
        return;
    }
    for (user, group, expected) in
        [(HANDLED, SETS, "open"), (ADMIN, SETS, "open"), (12_347, SETS, "closed"), (12_348, 12_348, "denied")]
    {
        let output = connect(user, group).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{user}: {output:?}");
    }
}

/// Connects for each kind. Refused connections are closed, and others wait for the rest of the
/// frame: waits until so many are closed as the argument says, and prints the kinds of the others.
const CONNECT: &str = "
import select, socket, sys, time
path, refused, kinds = sys.argv[1], int(sys.argv[2]), [1, 2, 3, 4, 5]
sockets = {}
for kind in kinds:
    sockets[kind] = socket.socket(socket.AF_UNIX)
    try: sockets[kind].connect(path)
    except PermissionError: sys.exit(3)
    try: sockets[kind].sendall(bytes([1, kind, 0, 0, 0, 9]))
    except (BrokenPipeError, ConnectionResetError): pass  # It may be closed by then.
deadline, closed = time.monotonic() + 30, []
while len(closed) < refused and time.monotonic() < deadline:
    closed = select.select(sockets.values(), [], [], 0.01)[0]
time.sleep(0.1)
closed = select.select(sockets.values(), [], [], 0)[0]
print([kind for kind in kinds if sockets[kind] not in closed])
";

/// Processes of each user connect for each kind: those that a list names may for its kinds.
#[test]
fn each_user_may_use_the_local_socket_for_the_kinds_of_its_list_only() {
    if !is_root() {
        return;
    }
    const HANDLED: u32 = 12_345;
    const GATEWAY: u32 = 12_346;
    const FOLLOWER: u32 = 12_347;
    let directory = tempfile::tempdir().unwrap();
    allow(directory.path(), 0o755);
    let socket = directory.path().join("admin.socket");
    let start = |names_users: bool| {
        administer_with("root", |config| {
            config.local.socket = Some(socket.clone());
            if names_users {
                config.local.handled_users = vec![HANDLED.to_string()];
                config.local.gateway_users = vec![GATEWAY.to_string(), "nobody".to_owned()];
                config.local.changes_users = vec![FOLLOWER.to_string()];
            }
        })
    };
    let connect = |user: u32, refused: usize| {
        let mut peer = Command::new("python3");
        peer.arg("-c").arg(CONNECT).arg(&socket).arg(refused.to_string()).uid(user).output()
    };
    let administration = start(true);
    if !has(TestNeed::Python, connect(0, 0).is_ok()) {
        return;
    }
    let mut all_refused = 0;
    for (user, kinds) in [
        (0, &LocalKind::ALL[..]),
        (HANDLED, &[LocalKind::Forward]),
        (GATEWAY, &[LocalKind::Bulk, LocalKind::Callers, LocalKind::Relay]),
        (NOBODY, &[LocalKind::Bulk, LocalKind::Callers, LocalKind::Relay]),
        (FOLLOWER, &[LocalKind::Changes]),
        (12_348, &[]),
    ] {
        let refused = LocalKind::ALL.len() - kinds.len();
        let output = connect(user, refused).unwrap();
        let kinds: Vec<u8> = kinds.iter().map(|&kind| kind as u8).collect();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            format!("{kinds:?}"),
            "{user}: {output:?}"
        );
        all_refused += refused as u64;
    }
    let counters = &administration.server().shared().service.counters;
    assert_eq!(counters.local_refused.get(), all_refused);
    // If there are no other users, the file of the socket lets in nobody else.
    drop(administration);
    let _administration = start(false);
    assert_eq!(connect(HANDLED, 5).unwrap().status.code(), Some(3));
}
