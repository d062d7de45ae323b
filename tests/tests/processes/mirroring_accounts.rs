//! A mirror in the directory that `hdl init --systemd` makes, whose `handle-admin` has a user that
//! may not write to that directory: it is promoted all the same, also if it is killed meanwhile.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_tests::daemon::{ask, free_address};
use handle_tests::mirror_pair::RecordAdministrator;
use handle_tests::needs::{TestNeed, has};
use handle_tests::process::{RunningProcess, fail, hdl, program, run, succeed, until};
use handle_tests::service_directory::InitialisedService;
use handle_tests::strace::{has_strace, traced};
use serde_json::Value as Json;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Users and groups as the packages make them.
const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nhandled:x:64001:64001::/:/usr/sbin/nologin\n\
    handle-admin:x:64002:64002::/:/usr/sbin/nologin\nhandle-gateway:x:64003:64003::/:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nhandle-sets:x:64009:handled,handle-admin,handle-gateway\n";
/// The user and the group of the unit of `handle-admin`.
const ADMIN: (u32, u32) = (64_002, 64_009);
/// Changes the host for one command: its users, its `/run`, and where the program is, to which the
/// user may have no access.
const HOST: &str = "mount --bind passwd /etc/passwd; mount --bind group /etc/group; mount --bind run /run; \
    mount --bind \"$1\" handle-admin; shift; exec \"$@\"";

/// A mirror in a directory that belongs to root, and its primary.
struct SystemdMirror {
    /// Ends before its directory is removed.
    admin: Option<RunningProcess>,
    primary: InitialisedService,
    address: SocketAddr,
    directory: TempDir,
}

impl SystemdMirror {
    /// Makes both, and starts them. `None` if that is not possible here.
    fn start() -> Option<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let may_mount = Command::new("unshare").args(["--mount", "true"]).output();
        let may_mount = may_mount.is_ok_and(|output| output.status.success());
        if !has(TestNeed::Root, is_root) || !has(TestNeed::MountNamespace, may_mount) {
            return None;
        }
        let mut primary = InitialisedService::make();
        primary.start_admin();
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut mirror = Self { admin: None, primary, address: free_address(), directory };
        mirror.make();
        mirror.start_admin(mirror.admin_command());
        let primary_id = ask(&mirror.primary.path("site/run/handle-admin.sock"), "status");
        let primary_id = &primary_id["store"]["content"]["last_transaction"];
        until("the mirror has all transactions", || {
            let progress = mirror.progress();
            progress["last_transaction"] == *primary_id && progress["activity"] == "following"
        });
        Some(mirror)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes the directory as an administrator does, by docs/mirrors.md.
    fn make(&self) {
        fs::write(self.path("passwd"), PASSWD).unwrap();
        fs::write(self.path("group"), GROUP).unwrap();
        fs::write(self.path("handle-admin"), "").unwrap();
        fs::create_dir_all(self.path("run/handle-admin")).unwrap();
        chown(self.path("run/handle-admin"), Some(ADMIN.0), Some(ADMIN.1)).unwrap();
        let (port, admin_port) = (free_address().port().to_string(), self.address.port().to_string());
        let mut init = self.on_host(&hdl(["init", "site", "--prefix", "10.1045", "--address", "127.0.0.1"]));
        init.args(["--bind", "127.0.0.1", "--port", &port, "--admin-port", &admin_port]);
        init.args(["--plain", "--no-metrics", "--systemd=units"]);
        succeed(init);
        let mut edit = Command::new("sed");
        edit.args(["-i", "--follow-symlinks", r#"s/"primarySite": *true/"primarySite": false/"#]);
        edit.arg(self.path("site/siteinfo.json"));
        succeed(edit);
        for (from, to) in
            [("siteinfo.json", "primary-siteinfo.json"), ("admin-private.bin", "mirror-private.bin")]
        {
            let to = self.path("site").join(to);
            fs::copy(self.primary.path("site").join(from), &to).unwrap();
            chown(to, Some(ADMIN.0), Some(ADMIN.1)).unwrap();
        }
        let config = fs::read_to_string(self.path("site/handle-admin.toml")).unwrap();
        let section = "\n[mirror]\ninterval_ms = 50\n[[mirror.primary]]\nname = \"main\"\n\
            site = \"primary-siteinfo.json\"\nidentity = \"300:10.1045/ADMIN\"\n\
            key_file = \"mirror-private.bin\"\n";
        fs::write(self.path("site/handle-admin.toml"), config + section).unwrap();
    }

    /// A command on a host with these users.
    fn on_host(&self, command: &Command) -> Command {
        let mut here = Command::new("unshare");
        here.args(["--mount", "sh", "-ec", HOST, "sh"]).arg(program("handle-admin", "handle-admin"));
        here.arg(command.get_program()).args(command.get_args()).current_dir(self.directory.path());
        here
    }

    /// `handle-admin` with the user and the group of its unit.
    fn admin_command(&self) -> Command {
        let mut admin = Command::new("setpriv");
        admin.args([format!("--reuid={}", ADMIN.0), format!("--regid={}", ADMIN.1)]);
        admin.args(["--clear-groups", "./handle-admin", "--log", "warn", "--config"]);
        admin.arg(self.path("site/handle-admin.toml"));
        self.on_host(&admin)
    }

    fn start_admin(&mut self, command: Command) {
        let process = RunningProcess::start(command);
        until("handle-admin serves", || {
            let status = ask(&self.socket(), "status");
            status["pid"] == process.0.id() && status["health"]["ok"] == true
        });
        self.admin = Some(process);
    }

    fn socket(&self) -> PathBuf {
        self.path("run/handle-admin/control.sock")
    }

    fn progress(&self) -> Json {
        ask(&self.socket(), "status")["mirror"][0].clone()
    }

    /// `hdl mirror` with this command.
    fn mirror(&self, command: &str) -> Command {
        hdl(["mirror", command, "--socket", self.socket().to_str().unwrap()])
    }

    /// Asserts that it is the primary, whose site record every process may read as before, and that
    /// it accepts changes.
    fn assert_promoted(&self) {
        // An attempt to reach the primary may still be in progress.
        until("it follows no more", || self.progress()["activity"] == "promoted");
        let site: Json = serde_json::from_slice(&fs::read(self.path("site/siteinfo.json")).unwrap()).unwrap();
        assert_eq!((&site["primarySite"], &site["serialNumber"]), (&true.into(), &2.into()));
        assert!(self.path("site/siteinfo.json").is_symlink());
        let file = self.path("site/site/siteinfo.json").symlink_metadata().unwrap();
        assert_eq!((file.uid(), file.gid(), file.mode()), (ADMIN.0, ADMIN.1, 0o100_640));
        let mut administrator = RecordAdministrator::new(&self.primary, self.address);
        let done = administrator.put("10.1045/after", "promoted").map(|(code, _)| code);
        assert_eq!(done, Some(ResponseCode::SUCCESS));
    }
}

#[test]
fn a_mirror_with_a_user_of_its_own_is_promoted_and_tells_before_if_it_would_not_be() {
    let Some(mut mirror) = SystemdMirror::start() else { return };
    let directory = mirror.path("site/site");
    chown(&directory, Some(0), None).unwrap();
    for command in ["status", "promote"] {
        let (code, error) = fail(mirror.mirror(command));
        let shown = directory.canonicalize().unwrap().display().to_string();
        assert!(code == 1 && error.contains(&format!("allowed to write to {shown}")), "{command}: {error}");
    }
    assert_eq!(mirror.progress()["activity"], "following", "nothing has changed");
    chown(&directory, Some(ADMIN.0), None).unwrap();
    succeed(mirror.mirror("status"));
    mirror.primary.admin = None;
    succeed(mirror.mirror("promote"));
    mirror.assert_promoted();
    // Also after a restart, with `[mirror]` still in the configuration.
    mirror.admin = None;
    mirror.start_admin(mirror.admin_command());
    mirror.assert_promoted();
}

#[test]
fn a_promotion_with_a_user_of_its_own_that_is_killed_is_completed_at_the_next_start() {
    if !has_strace() {
        return;
    }
    let Some(mut mirror) = SystemdMirror::start() else { return };
    (mirror.primary.admin, mirror.admin) = (None, None);
    let about = mirror.path("site/site/siteinfo.json").canonicalize().unwrap();
    let options =
        ["-P", about.to_str().unwrap(), "-e", "inject=rename,renameat,renameat2:signal=KILL:when=1"];
    mirror.start_admin(traced(&mirror.admin_command(), &options, &mirror.path("calls.log")));
    assert!(!run(mirror.mirror("promote")).status.success(), "nobody has answered");
    assert_eq!(mirror.admin.take().unwrap().wait(), None, "a signal has ended it");
    let site = fs::read_to_string(about).unwrap();
    assert!(site.contains(r#""primarySite": false"#), "{site}");
    mirror.start_admin(mirror.admin_command());
    mirror.assert_promoted();
}
