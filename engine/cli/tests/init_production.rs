//! What `hdl init` writes for a service in production: units, owners, metrics, scrape jobs, alerts.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod needs;

use needs::{TestNeed, has};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// An account without an entry in `/etc/passwd`.
const ACCOUNT: (u32, u32) = (64_321, 64_322);

fn init(directory: &Path, further: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hdl"));
    command.args(["init", "site", "--prefix", "10.1045", "--address", "127.0.0.1", "--plain"]);
    command.args(further).current_dir(directory).stdin(Stdio::null()).output().unwrap()
}

fn succeed(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn units_run_the_processes_in_the_directory_and_may_write_what_they_need() {
    let directory = tempfile::tempdir().unwrap();
    if !has(TestNeed::Root, directory.path().metadata().unwrap().uid() == 0) {
        return;
    }
    let account = format!("{}:{}", ACCOUNT.0, ACCOUNT.1);
    let further = ["--systemd=units", "--user", &account, "--gateway-port", "443"];
    let printed = succeed(&init(directory.path(), &further));
    let here = directory.path().canonicalize().unwrap().join("site");
    let here = here.display();
    assert!(printed.contains("systemctl enable --now handle-admin handled handle-gateway"), "{printed}");
    for (name, written) in [("handled", "/run"), ("handle-admin", ""), ("handle-gateway", "/run")] {
        let units = directory.path().join("units");
        let drop_in = read(&units.join(format!("{name}.service.d/service.conf")));
        for line in [
            "ExecStart=".to_owned(),
            format!("ExecStart=/usr/bin/{name} --config \"{here}/{name}.toml\""),
            format!("ReadWritePaths=\"{here}{written}\""),
        ] {
            assert!(drop_in.lines().any(|one| one == line), "{name}: {line} in {drop_in}");
        }
        let reload = format!("ExecReload=/usr/bin/hdl control reload --socket \"{here}/run/{name}.sock\"");
        assert!(drop_in.lines().any(|one| one == reload), "{name}: {drop_in}");
        // Only the gateway has a port that needs the capability.
        let capability =
            "AmbientCapabilities=CAP_NET_BIND_SERVICE\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\n";
        assert_eq!(drop_in.ends_with(capability), name == "handle-gateway", "{name}: {drop_in}");
        let unit = read(&units.join(format!("{name}.service")));
        // In a user namespace, the capability would count for nothing.
        assert!(unit.contains(&format!("\nUser={name}\n")) && unit.contains("\nPrivateUsers=no\n"), "{unit}");
    }
    let log = directory.path().join("site/log").metadata().unwrap();
    assert_eq!(log.mode() & 0o777, 0o750);
    let admin = read(&directory.path().join("site/handle-admin.toml"));
    assert!(admin.contains("\naudit = \"log/audit.log\"\n"), "{admin}");
}

/// Users and groups as the packages make them.
const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nhandled:x:64001:64001::/:/usr/sbin/nologin\n\
    handle-admin:x:64002:64002::/:/usr/sbin/nologin\nhandle-gateway:x:64003:64003::/:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nhandle-sets:x:64009:handled,handle-admin,handle-gateway\n";

/// `hdl init` on a host with these users.
fn init_with_users(directory: &Path, passwd: &str, further: &[&str]) -> Output {
    std::fs::write(directory.join("passwd"), passwd).unwrap();
    std::fs::write(directory.join("group"), GROUP).unwrap();
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-ec",
        "mount --bind passwd /etc/passwd; mount --bind group /etc/group; exec \"$@\"",
        "sh",
    ]);
    command.arg(env!("CARGO_BIN_EXE_hdl"));
    command.args([
        "init",
        "site",
        "--prefix",
        "10.1045",
        "--address",
        "127.0.0.1",
        "--plain",
        "--systemd=units",
    ]);
    command.args(further).current_dir(directory).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn each_process_gets_its_own_files_and_all_may_read_the_set() {
    let directory = tempfile::tempdir().unwrap();
    let may_mount = Command::new("unshare").args(["--mount", "true"]).output();
    if !has(TestNeed::MountNamespace, may_mount.is_ok_and(|output| output.status.success())) {
        return;
    }
    let refused = init_with_users(directory.path(), "root:x:0:0::/root:/bin/sh\n", &[]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("cannot use the account handled") && error.contains("--user"), "{error}");
    assert!(!refused.status.success() && !directory.path().join("site").exists(), "{error}");
    let printed = succeed(&init_with_users(directory.path(), PASSWD, &[]));
    assert!(!printed.contains("chown"), "{printed}");
    let (handled, admin, gateway, sets) = (64_001, 64_002, 64_003, 64_009);
    let site = directory.path().join("site");
    for (name, owner, group, mode) in [
        ("", 0, sets, 0o750),
        ("handled.toml", 0, sets, 0o640),
        // A promoted mirror replaces it, for which `handle-admin` needs the directory.
        ("site", admin, sets, 0o750),
        ("site/siteinfo.json", admin, sets, 0o640),
        ("siteinfo.json", admin, sets, 0o640),
        ("certificate.pem", 0, sets, 0o640),
        ("admin-private.bin", 0, 0, 0o600),
        ("server-private.bin", admin, sets, 0o600),
        ("server-private-handled.bin", handled, sets, 0o600),
        ("certificate-key.pem", gateway, sets, 0o600),
        ("store.redb", admin, sets, 0o600),
        ("log", admin, sets, 0o750),
        ("snapshot", admin, sets, 0o2750),
        ("snapshot/MANIFEST", admin, sets, 0o640),
        ("snapshot/LOCK", admin, sets, 0o600),
    ] {
        let found = site.join(name).metadata().unwrap();
        let expected = (owner, group, mode);
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), expected, "{name}: {:o}", found.mode());
    }
    assert!(!site.join("run").exists(), "sockets are in the directories of the units");
    let keys = ["server-private.bin", "server-private-handled.bin"];
    let [one, other] = keys.map(|name| std::fs::read(site.join(name)).unwrap());
    assert_eq!(one, other);
    let config = read(&site.join("handle-admin.toml"));
    let local = "socket = \"/run/handle-admin/admin.socket\"\nhandled_users = [\"handled\"]\n\
        gateway_users = [\"handle-gateway\"]\n";
    assert!(config.contains(local), "{config}");
    for name in ["handled", "handle-gateway"] {
        let drop_in = read(&directory.path().join(format!("units/{name}.service.d/service.conf")));
        for line in ["User", "ReadWritePaths", "ExecReload", "AmbientCapabilities"] {
            assert!(!drop_in.contains(line), "that of the unit: {drop_in}");
        }
    }
}

#[test]
fn a_new_key_of_the_server_has_the_owners_and_the_modes_of_the_old_one() {
    let may_mount = Command::new("unshare").args(["--mount", "true"]).output();
    if !has(TestNeed::MountNamespace, may_mount.is_ok_and(|output| output.status.success())) {
        return;
    }
    let (separate, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    succeed(&init_with_users(separate.path(), PASSWD, &[]));
    succeed(&init(shared.path(), &["--user", &format!("{}:{}", ACCOUNT.0, ACCOUNT.1)]));
    for directory in [&separate, &shared] {
        let site = directory.path().join("site");
        let facts = |name: &str| {
            let found = site.join(name).metadata().unwrap();
            (found.uid(), found.gid(), found.mode() & 0o7777)
        };
        let names =
            || site.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let before: Vec<_> = names().map(|name| (facts(&name), name)).collect();
        let old = std::fs::read(site.join("server-private.bin")).unwrap();
        for (further, beside) in [(&[][..], "-next"), (&["--finish"], "-old")] {
            let mut rotate = Command::new(env!("CARGO_BIN_EXE_hdl"));
            rotate.args(["key", "rotate", "server", "site"]).args(further).current_dir(directory.path());
            let printed = succeed(&rotate.output().unwrap());
            assert!(printed.contains("next:"), "{printed}");
            for (facts_before, name) in &before {
                assert_eq!(facts(name), *facts_before, "{name} {further:?}");
            }
            assert_eq!(facts(&format!("server-private{beside}.bin")), facts("server-private.bin"));
        }
        // The site record stays where `handle-admin` may replace it, and nothing is left beside it.
        let is_separate = directory.path() == separate.path();
        assert_eq!(site.join("siteinfo.json").is_symlink(), is_separate);
        assert!(!is_separate || site.join("site").read_dir().unwrap().count() == 1);
        assert!(read(&site.join("siteinfo.json")).contains("\"serialNumber\": 2"));
        // The key of each process is the new one, and only the old file has the old one.
        let new = std::fs::read(site.join("server-private.bin")).unwrap();
        let keys = names().filter(|name| name.starts_with("server-private"));
        let keys: Vec<_> = keys.map(|name| std::fs::read(site.join(name)).unwrap()).collect();
        assert_ne!(new, old);
        assert_eq!(keys.iter().filter(|key| **key == old).count(), 1);
        assert_eq!(keys.iter().filter(|key| **key == new).count(), keys.len() - 1);
        assert_eq!(keys.len(), if is_separate { 3 } else { 2 });
    }
}

#[test]
fn all_processes_serve_metrics_that_prometheus_is_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let printed = succeed(&init(directory.path(), &["--metrics-port", "9700"]));
    let site = directory.path().join("site");
    assert!(printed.contains("prometheus.yml"), "{printed}");
    let scrape = read(&site.join("prometheus.yml"));
    for (process, port) in [("handled", 9700), ("handle-admin", 9701), ("handle-gateway", 9702)] {
        let config = read(&site.join(format!("{process}.toml")));
        assert!(
            config.ends_with(&format!("\n[observe]\nhttp = \"127.0.0.1:{port}\"\n")),
            "{process}: {config}"
        );
        let job =
            format!("  - job_name: {process}\n    static_configs: [{{ targets: [\"127.0.0.1:{port}\"] }}]\n");
        assert!(scrape.contains(&job), "{process}: {scrape}");
    }
    if has(TestNeed::Promtool, Command::new("promtool").arg("--version").output().is_ok()) {
        let mut check = Command::new("promtool");
        succeed(&check.args(["check", "config", "prometheus.yml"]).current_dir(&site).output().unwrap());
    }
    let none = tempfile::tempdir().unwrap();
    succeed(&init(none.path(), &["--no-metrics"]));
    assert!(!none.path().join("site/prometheus.yml").exists());
    assert!(!read(&none.path().join("site/handled.toml")).contains("observe"));
}

#[test]
fn all_files_belong_to_the_account_of_the_processes() {
    let directory = tempfile::tempdir().unwrap();
    // Without root, and for an account that does not exist, nothing is written.
    let refused = init(directory.path(), &["--user", "no-such-account"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && !directory.path().join("site").exists(), "{error}");
    let is_root = directory.path().metadata().unwrap().uid() == 0;
    if !has(TestNeed::Root, is_root) {
        assert!(error.contains("needs root"), "{error}");
        return;
    }
    assert!(error.contains("useradd --system"), "{error}");
    let account = format!("{}:{}", ACCOUNT.0, ACCOUNT.1);
    let printed = succeed(&init(directory.path(), &["--user", &account, "--systemd=units"]));
    assert!(!printed.contains("chown"), "{printed}");
    let drop_in = read(&directory.path().join("units/handled.service.d/service.conf"));
    assert!(drop_in.ends_with(&format!("User={}\nGroup={}\n", ACCOUNT.0, ACCOUNT.1)), "{drop_in}");
    let mut places = vec![directory.path().join("site")];
    let mut count = 0;
    while let Some(place) = places.pop() {
        let metadata = place.symlink_metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), ACCOUNT, "{}", place.display());
        count += 1;
        if metadata.is_dir() {
            places.extend(place.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(count > 15, "{count} files");
}
