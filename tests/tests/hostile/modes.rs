//! Modes of files and sockets: other users of the host cannot use those of a service.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::daemon::ask;
use handle_tests::needs::{TestNeed, has};
use handle_tests::process::{RunningProcess, hdl, succeed, until};
use handle_tests::service_directory::InitialisedService;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A umask that leaves all permissions, and one that removes all of group and others.
const UMASKS: [&str; 2] = ["000", "077"];

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o777
}

/// The same command with another umask.
fn with_umask(umask: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "umask \"$0\" && exec \"$@\"", umask])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    shell
}

/// Asserts the modes of all files in a directory of sets.
fn assert_closed(set: &Path) {
    assert_eq!(mode(set), 0o750, "{}", set.display());
    let mut layers = 0;
    for entry in std::fs::read_dir(set).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let expected = if name == "LOCK" { 0o600 } else { 0o640 };
        assert_eq!(mode(&path), expected, "{}", path.display());
        layers += usize::from(name.to_string_lossy().ends_with(".layer"));
    }
    assert!(layers > 0);
}

#[test]
fn a_published_set_is_for_its_owner_and_group_under_any_umask() {
    for umask in UMASKS {
        let directory = tempfile::tempdir().unwrap();
        let record = r#"{"handle":"10.1/A","values":[{"index":1,"type":"URL","data":{"format":"string","value":"u"}}]}"#;
        std::fs::write(directory.path().join("records.jsonl"), format!("{record}\n")).unwrap();
        let set = directory.path().join("sets/one");
        for more in [&["--homed", "10.1"][..], &["--delta"][..]] {
            let mut publish = hdl(["snapshot", "publish", "sets/one", "records.jsonl"]);
            publish.args(more).current_dir(directory.path());
            succeed(with_umask(umask, &publish));
        }
        assert_closed(&set);
    }
}

#[test]
fn another_user_cannot_hold_the_lock_and_keep_a_publisher_from_publishing() {
    let directory = tempfile::tempdir().unwrap();
    // Also if everybody may read the directory.
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(directory.path().join("records.jsonl"), "").unwrap();
    let set = directory.path().join("set");
    std::fs::create_dir(&set).unwrap();
    std::fs::set_permissions(&set, std::fs::Permissions::from_mode(0o755)).unwrap();
    let publish = || {
        let mut publish = hdl(["snapshot", "publish", "set", "records.jsonl", "--homed", "10.1"]);
        publish.current_dir(directory.path());
        succeed(publish)
    };
    publish();
    assert_eq!(mode(&set.join("LOCK")), 0o600);
    if !has(TestNeed::Root, rustix::process::geteuid().is_root()) {
        return;
    }
    let mut holder = Command::new("sh");
    holder.args(["-c", "exec 9<\"$0\" && exec flock 9 sleep 60"]).arg(set.join("LOCK"));
    let mut holder = RunningProcess::start({
        holder.uid(65534).gid(65534);
        holder
    });
    assert!(holder.wait().is_some_and(|code| code != 0), "the lock is open to other users");
    publish();
}

/// The modes that sockets had when they first appeared in a directory.
struct SocketModes {
    first_modes: Arc<Mutex<BTreeMap<PathBuf, u32>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SocketModes {
    /// Reads the directory continuously.
    fn start(directory: &Path) -> Self {
        let (first_modes, stop) = (Arc::new(Mutex::new(BTreeMap::new())), Arc::new(AtomicBool::new(false)));
        let (directory, all, stops) = (directory.to_owned(), Arc::clone(&first_modes), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                for entry in std::fs::read_dir(&directory).unwrap().flatten() {
                    // A file that is being renamed appears under its other name.
                    let Ok(metadata) = entry.path().symlink_metadata() else { continue };
                    all.lock().unwrap().entry(entry.path()).or_insert(metadata.permissions().mode() & 0o777);
                }
            }
        });
        Self { first_modes, stop, thread: Some(thread) }
    }

    fn modes(mut self) -> BTreeMap<PathBuf, u32> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.first_modes.lock().unwrap().clone()
    }
}

#[test]
fn sockets_are_for_their_owner_from_the_start_under_any_umask() {
    for umask in UMASKS {
        let mut service = InitialisedService::make();
        let run = service.path("site/run");
        let watched = SocketModes::start(&run);
        let admin = with_umask(umask, &service.admin_command());
        service.start_admin_as(admin);
        let handled = RunningProcess::start(with_umask(umask, &service.handled_command()));
        let control = service.path("site/run/handled.sock");
        until("handled serves", || ask(&control, "status")["state"] == "serving");
        until("the socket of sessions exists", || run.join("sessions").exists());
        for (path, mode) in watched.modes() {
            assert_eq!(mode, 0o600, "{} with umask {umask}", path.display());
        }
        for name in ["handled.sock", "handle-admin.sock", "sessions"] {
            assert_eq!(mode(&run.join(name)), 0o600, "{name} with umask {umask}");
        }
        drop(handled);
        assert_closed(&service.path("site/snapshot"));
    }
}

#[test]
fn a_restart_by_take_over_keeps_sockets_private() {
    let mut service = InitialisedService::make();
    let command = with_umask("000", &service.handled_command());
    let control = service.path("site/run/handled.sock");
    service.handled = Some(handle_tests::daemon::Daemon::start(command, &control));
    let answer = ask(&control, "restart");
    assert_eq!(answer["ok"], true, "{answer}");
    let _successor = handle_tests::daemon::Successor { pid: answer["pid"].clone() };
    until("the successor has the control socket", || ask(&control, "status")["pid"] == answer["pid"]);
    until("the successor has the socket of sessions", || {
        run_names(&service.path("site/run")).iter().all(|name| !name.starts_with('.'))
    });
    for name in run_names(&service.path("site/run")) {
        assert_eq!(mode(&service.path("site/run").join(&name)), 0o600, "{name}");
    }
}

fn run_names(run: &Path) -> Vec<String> {
    std::fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn units_write_no_core_dumps_and_limit_memory() {
    for name in ["handled", "handle-admin"] {
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/operations/{name}.service"));
        let text = std::fs::read_to_string(unit).unwrap();
        let setting = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        assert_eq!(setting("LimitCORE"), Some("0"), "{name}");
        assert!(setting("MemoryMax").is_some_and(|bound| bound != "infinity"), "{name}");
        assert_eq!(setting("UMask"), Some("0077"), "{name}");
    }
}
