//! What programs write to disk, in which order: their system calls on real files, as strace shows
//! them. A file has its content on disk before it gets its name, a name is on disk before anything
//! depends on it, and both are before the program says that it is done.

use handle_fleet::FleetUrl;
use handle_tests::daemon::{ask, free_address, handled};
use handle_tests::gateway_server::use_tls;
use handle_tests::mirror_pair::MirroredService;
use handle_tests::process::{RunningProcess, hdl, program, run, succeed, until};
use handle_tests::registrar::RegistrationPages;
use handle_tests::service_directory::InitialisedService;
use handle_tests::strace::{self, complete_log, has_strace};
use handle_tests::test_server;
use handle_worker::config::Datapath;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const CALLS: &str = "trace=openat,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,sendfile,copy_file_range,\
                     rename,renameat,renameat2,link,linkat,fsync,fdatasync";

/// The command under strace, which writes these calls to the file `log`.
fn traced(command: &Command, log: &Path) -> Command {
    strace::traced(command, &["-y", "-s", "0", "-e", CALLS], log)
}

/// Whether a file of this name has to outlive a power failure. A HEARTBEAT is out of date a second
/// later.
fn is_durable(name: &str) -> bool {
    const ENDS: [&str; 8] = [".layer", ".steps", ".bin", ".pem", ".json", ".jsonl", ".zip", "last-set"];
    let is_kept = ENDS.iter().any(|end| name.ends_with(end));
    is_kept || name == "MANIFEST" || name.starts_with("MANIFEST-") || name.starts_with("SHIPPED-")
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What a program has written and not synced.
#[derive(Default)]
struct UnsyncedState {
    /// Files with content that is not on disk.
    files: BTreeSet<PathBuf>,
    /// Names that are not on disk, by directory.
    names: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Calls of threads that have not returned.
    begun: BTreeMap<String, String>,
    /// Durable files that have got their names.
    placed: Vec<String>,
}

impl UnsyncedState {
    /// Follows a line of strace: the number of the thread, and a call, or its begin, or its end.
    fn follow(&mut self, line: &str) {
        let Some((thread, rest)) = line.split_once(' ') else { return };
        let call = rest.trim_start();
        if call.starts_with("<...") {
            if let Some(call) = self.begun.remove(thread) {
                self.end(&call, call_succeeded(rest));
            }
            return;
        }
        self.begin(call);
        match call.contains("<unfinished") {
            true => drop(self.begun.insert(thread.to_owned(), call.to_owned())),
            false => self.end(call, call_succeeded(call)),
        }
    }

    /// A write counts from its begin.
    fn begin(&mut self, call: &str) {
        let is_write = ["write", "pwrite", "ftruncate", "sendfile"].iter().any(|it| call.starts_with(it));
        let written = match call.split_once(">, ") {
            _ if is_write => described(call),
            // The first descriptor is that of the source.
            Some((copy, rest)) if copy.starts_with("copy_file_range") => described(rest),
            _ => None,
        };
        self.files.extend(written);
    }

    /// A sync counts from its end.
    fn end(&mut self, call: &str, is_good: bool) {
        if !is_good {
            return;
        }
        if call.starts_with("fsync") || call.starts_with("fdatasync") {
            if let Some(path) = described(call) {
                self.files.remove(&path);
                self.names.remove(&path);
            }
            return;
        }
        let quoted: Vec<PathBuf> = call.split('"').skip(1).step_by(2).map(PathBuf::from).collect();
        if call.starts_with("rename") || call.starts_with("link") {
            if let [from, to] = quoted.as_slice() {
                self.location(from, to);
            }
        } else if call.contains("O_CREAT")
            && let [path] = quoted.as_slice()
        {
            self.add_name(path);
        }
    }

    fn add_name(&mut self, path: &Path) {
        if is_durable(&name_of(path)) {
            let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
            self.names.entry(directory).or_default().insert(name_of(path));
        }
    }

    fn location(&mut self, from: &Path, to: &Path) {
        let name = name_of(to);
        let is_unsynced = self.files.remove(from);
        if !is_durable(&name) {
            return;
        }
        assert!(!is_unsynced, "{} has got its name before its content was synced", to.display());
        if name == "MANIFEST" {
            let missing = self.names.get(to.parent().expect("a directory"));
            let missing = missing.into_iter().flatten().find(|name| name.ends_with(".layer"));
            assert_eq!(missing, None, "{} is replaced before the name of a layer was synced", to.display());
        }
        self.add_name(to);
        self.placed.push(name);
    }

    /// Follows a log, and checks that nothing durable is left unsynced at its end.
    fn check(log: &str) -> Vec<String> {
        let mut state = Self::default();
        log.lines().for_each(|line| state.follow(line));
        let files: Vec<_> = state.files.iter().filter(|path| is_durable(&name_of(path))).collect();
        assert!(files.is_empty(), "content that was not synced: {files:?}");
        assert!(state.names.is_empty(), "names that were not synced: {:?}", state.names);
        state.placed
    }
}

fn call_succeeded(text: &str) -> bool {
    text.rsplit_once(" = ").is_some_and(|(_, result)| !result.starts_with('-'))
}

/// The path of the first file descriptor of a call, as `fsync(5</path>)`.
fn described(call: &str) -> Option<PathBuf> {
    let (_, rest) = call.split_once('<')?;
    let (path, _) = rest.split_once('>')?;
    path.starts_with('/').then(|| path.into())
}

/// Runs a command to its end, and returns which durable files it has put in place.
fn placed_by(command: &Command, directory: &TempDir) -> Vec<String> {
    let log = directory.path().join("calls.log");
    let output = run(traced(command, &log));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    UnsyncedState::check(&complete_log(&log))
}

#[test]
fn a_set_and_its_copies_are_on_disk_before_they_are_named() {
    if !has_strace() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let mut generate = hdl(["key", "generate", "--plain"]);
    generate.arg(path("private.bin")).arg(path("public.bin"));
    placed_by(&generate, &directory);
    let location = format!("file://{}", path("place").display());
    let _: FleetUrl = location.parse().expect("a place");
    for round in 0..2 {
        let line = format!(
            r#"{{"handle":"10.1/{round}","values":[{{"index":1,"type":"URL","data":"https://a.example/"}}]}}"#
        );
        std::fs::write(path("records.jsonl"), line).expect("a file");
        let mut publish = hdl(["snapshot", "publish"]);
        publish.arg(path("set")).arg(path("records.jsonl")).arg("--key").arg(path("private.bin"));
        let placed = placed_by(&publish, &directory);
        assert!(placed.iter().any(|name| name.ends_with(".layer")), "{placed:?}");
        assert_eq!(placed.last().map(String::as_str), Some("MANIFEST"));

        let mut ship = hdl(["ship"]);
        ship.arg(path("set")).arg(&location);
        let placed = placed_by(&ship, &directory);
        for is_there in [
            |name: &str| name.ends_with(".layer"),
            |name: &str| name == "MANIFEST",
            |name: &str| name.starts_with("SHIPPED-"),
        ] {
            assert!(placed.iter().any(|name| is_there(name)), "{placed:?}");
        }

        let mut fetch = Command::new(program("handle-fetch", "handle-fetch"));
        fetch.args([&location, "--once", "--allow-root"]).arg(path("replica"));
        let placed = placed_by(&fetch, &directory);
        assert!(placed.iter().any(|name| name.ends_with(".layer")), "{placed:?}");
        assert_eq!(placed.last().map(String::as_str), Some("MANIFEST"));
    }
}

#[test]
fn what_handle_admin_publishes_is_on_disk_before_it_is_named() {
    if !has_strace() {
        return;
    }
    let mut service = InitialisedService::make();
    let log = service.path("calls.log");
    service.start_admin_as(traced(&service.admin_command(), &log));
    for n in 0..3 {
        let handle = format!("10.1045/durable-{n}");
        let created = run(service.hdl_as_admin(["handle", "create", &handle, "1:URL=https://a.example/"]));
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        until("it is published", || {
            service.published().iter().any(|line| line.to_uppercase().contains(&handle.to_uppercase()))
        });
    }
    let admin = service.admin.take().expect("it runs");
    admin.signal("TERM");
    let calls = complete_log(&log);
    drop(admin);
    let placed = UnsyncedState::check(&calls);
    let count = |is_it: &dyn Fn(&str) -> bool| placed.iter().filter(|name| is_it(name)).count();
    assert!(
        count(&|name| name.ends_with(".layer")) >= 3 && count(&|name| name == "MANIFEST") >= 3,
        "{placed:?}"
    );
}

#[test]
fn keys_site_records_layers_and_exports_are_on_disk_before_they_are_named() {
    if !has_strace() {
        return;
    }
    let (mut service, directory) = (InitialisedService::make(), tempfile::tempdir().expect("a directory"));
    service.start_admin();
    service.admin = None;
    for (arguments, expected) in [
        ("key convert --plain /site/admin-private.bin /admin.pem", &[][..]),
        ("key convert /site/admin-public.bin /public.pem", &[]),
        ("key rotate server /site", &["server-private-next.bin", "siteinfo-next.json"]),
        ("key rotate server /site --finish", &["server-private.bin", "siteinfo.json"]),
        ("export /site/store.redb /records.jsonl", &["records.jsonl"]),
        ("snapshot build /records.layer /records.jsonl", &["records.layer"]),
    ] {
        let mut command = hdl::<&str>([]);
        for argument in arguments.split(' ') {
            match argument.strip_prefix('/') {
                Some(name) => command.arg(service.path(name)),
                None => command.arg(argument),
            };
        }
        let placed = placed_by(&command, &directory);
        let is_there = |name: &&str| placed.iter().any(|placed| placed == name);
        assert!(expected.iter().all(is_there), "{arguments}: {placed:?}");
    }

    let mut mirrored = MirroredService::make("", "interval_ms = 50");
    mirrored.start();
    until("the sets are equal", || mirrored.is_equal());
    mirrored.mirror.admin = None;
    assert_eq!(placed_by(&mirrored.mirror.promotion_command(), &directory), ["siteinfo.json"]);
}

/// Starts a program under strace, lets a test use it, and ends it; returns which durable files it
/// has put in place.
fn placed_while(command: &Command, control: &Path, use_it: impl FnOnce()) -> Vec<String> {
    let log = control.with_extension("calls.log");
    let process = RunningProcess::start(traced(command, &log));
    until("it serves", || ask(control, "status")["pid"] == process.0.id());
    use_it();
    process.signal("TERM");
    let calls = complete_log(&log);
    UnsyncedState::check(&calls)
}

#[test]
fn what_handled_and_handle_gateway_remember_is_on_disk_before_it_is_named() {
    if !has_strace() {
        return;
    }
    let service = InitialisedService::make();
    let path = |name: &str| service.path("site").join(name);
    fs::write(path("one.jsonl"), r#"{"handle":"10.1/a","values":[]}"#).expect("a file");
    let (set, records, key) = ("site/set", "site/one.jsonl", "site/server-private.bin");
    succeed(service.hdl(["snapshot", "publish", set, records, "--key", key]));
    let mut config = test_server::config(&path("set"), Datapath::Auto);
    config.listen = vec![free_address()];
    config.control = Some(path("run/handled"));
    config.publishers.keys = vec![path("server-public.bin")];
    config.publishers.last_set_file = Some(path("last-set"));
    fs::write(path("handled-2.toml"), toml::to_string(&config).expect("TOML")).expect("a file");
    let mut command = handled();
    command.arg("--config").arg(path("handled-2.toml"));
    let placed = placed_while(&command, &path("run/handled"), || {
        until("the set is remembered", || path("last-set").exists());
    });
    assert_eq!(placed, ["last-set"]);

    let mut config = handle_gateway::Config {
        listen: vec![free_address()],
        workers: 1,
        snapshot: Some(path("set")),
        control: Some(path("run/gateway")),
        ..handle_gateway::Config::default()
    };
    config.site = Some(path("siteinfo.json"));
    config.admin.address = Some(service.administration);
    config.admin.socket = Some(path("run/admin.socket"));
    config.registration.directory = Some(path("requests"));
    config.registration.reviewers = vec!["300:10.1045/ADMIN".to_owned()];
    use_tls(&mut config, &path(""));
    fs::write(path("gateway.toml"), toml::to_string(&config).expect("TOML")).expect("a file");
    let mut command = Command::new(program("handle-gateway", "handle-gateway"));
    command.arg("--config").arg(path("gateway.toml")).arg("--allow-root");
    let pages = RegistrationPages { address: config.listen[0] };
    let applicant = ["init", "applicant", "--prefix", "10.1045.7", "--address", "127.0.0.1", "--plain"];
    succeed(service.hdl(applicant.into_iter().chain(["--contact-email", "library@example.org"])));
    let bundle = fs::read(service.path("applicant").join("sitebndl.zip")).expect("an archive");
    let placed = placed_while(&command, &path("run/gateway"), || {
        drop(pages.stored(&[("prefix", "10.1045.7")], &bundle));
    });
    assert!(placed.iter().any(|name| name.ends_with(".json")), "{placed:?}");
}

/// The checks above see each fault: a line left out of a good order.
#[test]
fn an_order_with_a_sync_left_out_is_noticed() {
    const GOOD: [&str; 8] = [
        r#"7 openat(AT_FDCWD</>, "/d/l.tmp", O_WRONLY|O_CREAT, 0640) = 3</d/l.tmp>"#,
        r#"7 write(3</d/l.tmp>, ""..., 9) = 9"#,
        r#"8 fsync(3</d/l.tmp>) = 0"#,
        r#"7 rename("/d/l.tmp", "/d/1.layer") = 0"#,
        r#"7 fsync(4</d>) = 0"#,
        r#"7 write(5</d/MANIFEST.tmp>, ""..., 9) = 9"#,
        r#"7 fsync(5</d/MANIFEST.tmp>) = 0"#,
        r#"7 rename("/d/MANIFEST.tmp", "/d/MANIFEST") = 0"#,
    ];
    const LAST: &str = "7 fsync(4</d>) = 0";
    let check = |lines: &[&str]| std::panic::catch_unwind(|| UnsyncedState::check(&lines.join("\n")));
    let all = [&GOOD[..], &[LAST]].concat();
    assert_eq!(check(&all).expect("good"), ["1.layer", "MANIFEST"]);
    for at in [2, 4, 6, 8] {
        let mut lines = all.clone();
        lines.remove(at);
        assert!(check(&lines).is_err(), "without {}", all[at]);
    }
    // What is copied from is not written.
    let mut lines = all.clone();
    lines[1] = r#"7 copy_file_range(6</e/1.layer>, NULL, 3</d/l.tmp>, NULL, 9, 0) = 9"#;
    check(&lines).expect("good");
    lines.remove(2);
    assert!(check(&lines).is_err(), "without a sync of the copy");
    // A sync that has begun and not returned, or failed, is none.
    for unfinished in ["8 fsync(3</d/l.tmp> <unfinished ...>", "8 fsync(3</d/l.tmp>) = -1 EIO (error)"] {
        let mut lines = all.clone();
        lines[2] = unfinished;
        assert!(check(&lines).is_err(), "{unfinished}");
        lines.insert(3, "8 <... fsync resumed>) = 0");
        assert_eq!(check(&lines).is_ok(), unfinished.contains("unfinished"));
    }
}
