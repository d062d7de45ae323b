//! Common faults in operation: damaged or missing files, ports in use, full disks.
//!
//! Each error is one sentence that names the file or the address. No program panics, and no
//! acknowledged change is lost.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::process::{RunningProcess, fail, succeed, until};
use handle_tests::service_directory::InitialisedService;
use std::io::Read as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Damage to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Gone,
    Empty,
    /// Truncated after the middle.
    Half,
    /// Other bytes of the same number.
    Noise,
    /// One flipped bit in the middle.
    Flipped,
    /// Replaced by a directory.
    Directory,
}

impl Damage {
    const ALL: [Self; 6] = [Self::Gone, Self::Empty, Self::Half, Self::Noise, Self::Flipped, Self::Directory];

    /// Damages a file, and returns a function that restores it.
    fn apply(self, path: &Path) -> impl FnOnce() + use<> {
        let (path, kept) = (path.to_owned(), path.with_extension("kept"));
        std::fs::rename(&path, &kept).unwrap();
        let mut bytes = std::fs::read(&kept).unwrap();
        let middle = bytes.len() / 2;
        match self {
            Self::Gone | Self::Directory => bytes.clear(),
            Self::Empty => bytes.clear(),
            Self::Half => {
                // Cut within a string: at other places the remaining text may be valid.
                let quotes = |end: usize| bytes[..end].iter().filter(|&&byte| byte == b'"').count();
                let begins = |&at: &usize| bytes[at] == b'"' && quotes(at + 1) % 2 == 1;
                let cut = (middle..bytes.len()).find(begins).map_or(middle, |at| at + 1);
                bytes.truncate(cut);
            }
            // Bytes that are no text and not the beginning of any of the formats.
            Self::Noise => bytes
                .iter_mut()
                .zip(0_u32..)
                .for_each(|(byte, at)| *byte = (at * 151 + 0x99).to_le_bytes()[0]),
            Self::Flipped => bytes[middle] ^= 1,
        }
        match self {
            Self::Gone => {}
            Self::Directory => std::fs::create_dir(&path).unwrap(),
            _ => {
                std::fs::write(&path, bytes).unwrap();
                std::fs::set_permissions(&path, kept.metadata().unwrap().permissions()).unwrap();
            }
        }
        move || {
            // Also removes what the process has created in its place.
            let _ = std::fs::remove_dir(&path);
            std::fs::rename(kept, path).unwrap();
        }
    }
}

/// Runs a process that exits by itself; returns its exit code and standard error.
fn run_to_end(mut command: Command) -> (Option<i32>, String) {
    let mut running = RunningProcess::start({
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    });
    let mut error = running.0.stderr.take().unwrap();
    let code = running.wait();
    let mut text = String::new();
    error.read_to_string(&mut text).unwrap();
    (code, text)
}

/// The only layer of the set that `hdl init` publishes.
fn layer(service: &InitialisedService) -> PathBuf {
    let files = std::fs::read_dir(service.path("site/snapshot")).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|end| end == "layer")).unwrap()
}

/// A command that cannot write files of more than `kib` KiB, like on a full disk.
fn with_file_limit(command: &Command, kib: u64) -> Command {
    let mut limited = Command::new("bash");
    limited.args(["-c", "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\"", &kib.to_string()]);
    limited.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    limited
}

#[test]
fn damaged_files_are_named_and_nothing_is_lost() {
    let mut service = InitialisedService::make();
    let layer = layer(&service);
    let site = |name: &str| service.path("site").join(name);
    let [manifest, record, key] = ["snapshot/MANIFEST", "siteinfo.json", "server-private.bin"].map(site);
    let read_by_handled = [
        site("handled.toml"),
        site("service.toml"),
        record.clone(),
        key.clone(),
        manifest.clone(),
        layer.clone(),
    ];
    let read_by_admin = [
        site("handle-admin.toml"),
        site("service.toml"),
        record,
        key,
        site("store.redb"),
        manifest.clone(),
        layer.clone(),
    ];
    for (is_admin, files) in [(false, &read_by_handled[..]), (true, &read_by_admin)] {
        let command = || if is_admin { service.admin_command() } else { service.handled_command() };
        for (file, damage) in files.iter().flat_map(|file| Damage::ALL.map(|damage| (file, damage))) {
            let name = file.file_name().unwrap().to_string_lossy();
            let is_text = name.ends_with(".toml") || name.ends_with(".json");
            match damage {
                // The remaining content may be valid.
                Damage::Flipped if is_text || name.ends_with(".redb") => continue,
                Damage::Empty if name.ends_with(".toml") => continue,
                Damage::Half if name == "service.toml" => continue,
                // A missing manifest is built again from the store.
                Damage::Gone if is_admin && *file == manifest => continue,
                _ => {}
            }
            let restore = damage.apply(file);
            let mut runs = vec![{
                let mut command = command();
                command.arg("--check-config");
                command
            }];
            // A start only reads headers of layers, and handle-admin checks layers when it merges
            // them.
            match damage {
                Damage::Flipped if *file == layer && is_admin => runs.clear(),
                // handled waits for a missing set.
                Damage::Gone if *file == manifest => {}
                Damage::Flipped if *file == layer => {}
                _ => runs.push(command()),
            }
            for run in runs {
                let case = format!("{run:?} with {name} {damage:?}");
                let (code, error) = run_to_end(run);
                // Without its manifest a set is not published yet, which is a warning.
                let is_accepted = !is_admin && *file == manifest && matches!(damage, Damage::Gone);
                let is_right = if is_accepted { code == Some(0) } else { matches!(code, Some(1 | 2)) };
                assert!(is_right, "{case}: {code:?} {error}");
                assert!(!is_accepted || error.contains(": warning: "), "{case}: {error}");
                assert!(error.contains(&*name) && !error.contains("panicked"), "{case}: {error}");
                // Errors in text files show the line.
                assert!(is_text || error.lines().count() == 1, "{case}: {error}");
                let cause = error.trim_end().rsplit(": ").next().unwrap();
                assert_eq!(error.matches(cause).count(), 1, "{case}: repeated cause: {error}");
            }
            restore();
        }
    }
    service.start_admin();
    service.start_handled();
    assert_eq!(service.resolve("10.1045/ADMIN")["responseCode"], 1);
    succeed(service.hdl_as_admin(["handle", "create", "10.1045/after", "1:URL=whole"]));
    service.until_resolved("10.1045/after", 1, "whole");
}

#[test]
fn every_program_reports_a_damaged_store_and_leaves_it_unchanged() {
    const OFFSETS: usize = 24;
    let mut service = InitialisedService::make();
    let store = service.path("site/store.redb");
    let lines = (0..400).map(|number| {
        let value =
            serde_json::json!({ "index": 1, "type": "URL", "data": format!("http://a/{}", "x".repeat(number)) });
        serde_json::json!({ "handle": format!("10.1045/{number}"), "values": [value] }).to_string() + "\n"
    });
    std::fs::write(service.path("records.jsonl"), lines.collect::<String>()).unwrap();
    succeed(service.hdl(["import", "site/store.redb", "records.jsonl"]));
    let expected = succeed(service.hdl(["export", "site/store.redb", "-"]));
    let whole = std::fs::read(&store).unwrap();
    let mut refused = Vec::new();
    // Flags and slots of the header, and the beginning and other places of pages.
    let offsets = [9, 80, 250].into_iter().chain((0..OFFSETS).map(|number| {
        let page = number * (whole.len() / 4096) / OFFSETS * 4096;
        page + if number % 2 == 0 { 2 } else { number * 997 % 4096 }
    }));
    for at in offsets {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        let tries: [&[&str]; 4] = [
            &["store", "check", "site/store.redb"],
            &["store", "stats", "site/store.redb"],
            &["import", "site/store.redb", "records.jsonl"],
            &["export", "site/store.redb", "-"],
        ];
        let tries = tries.map(|args| service.hdl(args.iter().copied()));
        let mut start = service.admin_command();
        start.arg("--check-config");
        let mut codes = Vec::new();
        for mut command in tries.into_iter().chain([start]) {
            std::fs::write(&store, &bytes).unwrap();
            let output = command.output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            let case = format!("byte {at}, {command:?}: {error}");
            assert!(!error.contains("panicked"), "{case}");
            codes.push(output.status.success());
            if output.status.success() {
                let is_export = command.get_args().next().is_some_and(|first| first == "export");
                assert!(!is_export || output.stdout == expected.as_bytes(), "{case}");
                continue;
            }
            assert!(error.contains("store.redb is damaged") && error.contains("from a backup"), "{case}");
            assert_eq!((error.lines().count(), output.stdout.len()), (1, 0), "{case}");
            assert_eq!(std::fs::read(&store).unwrap(), bytes, "{case}");
        }
        assert!(codes.iter().all(|code| *code == codes[0]), "byte {at}: programs disagree: {codes:?}");
        if !codes[0] {
            refused.push(at);
        }
    }
    // About a third of the file is in use.
    assert!(refused.len() > OFFSETS / 4, "{refused:?}");
    // handle-admin does not start, and the backup is restored as the error suggests.
    let mut bytes = whole;
    bytes[refused[refused.len() / 2]] ^= 0x41;
    std::fs::write(&store, &bytes).unwrap();
    let (code, error) = run_to_end(service.admin_command());
    assert!(code == Some(1) && error.contains("hdl import --create"), "{code:?} {error}");
    std::fs::rename(&store, service.path("site/store.redb.broken")).unwrap();
    std::fs::write(service.path("backup.jsonl"), &expected).unwrap();
    succeed(service.hdl(["import", "site/store.redb", "backup.jsonl", "--create"]));
    service.start_admin();
    assert_eq!(fail(service.hdl(["export", "site/store.redb", "-"])).0, 1, "the store is in use");
    service.admin = None;
    assert_eq!(succeed(service.hdl(["export", "site/store.redb", "-"])), expected);
}

#[test]
fn a_damaged_set_is_built_again_from_the_store() {
    let mut service = InitialisedService::make();
    std::fs::write(service.path("site/snapshot/MANIFEST"), "no manifest\n").unwrap();
    let (code, error) = run_to_end(service.admin_command());
    assert!(code == Some(1) && error.contains("MANIFEST") && error.contains("move that away"), "{error}");
    std::fs::remove_file(service.path("site/snapshot/MANIFEST")).unwrap();
    service.start_admin();
    until("the set is published again", || service.path("site/snapshot/MANIFEST").exists());
    service.start_handled();
    assert_eq!(service.resolve("10.1045/ADMIN")["responseCode"], 1);
}

#[test]
fn a_full_disk_loses_no_change_and_a_batch_resumes() {
    const COUNT: usize = 300;
    let mut service = InitialisedService::make();
    let text = (0..COUNT)
        .map(|at| format!("CREATE 10.1045/{at}\n1 URL 86400 1110 UTF8 {at}-{}\n\n", "x".repeat(8000)));
    std::fs::write(service.path("batch.txt"), text.collect::<String>()).unwrap();
    let mut command = with_file_limit(&service.admin_command(), 2048);
    let log = std::fs::File::create(service.path("stderr")).unwrap();
    command.stderr(log);
    service.start_admin_as(command);
    let batch = |more: &[&'static str]| {
        service
            .hdl_as_admin(["batch", "batch.txt", "--parallel", "4"].into_iter().chain(more.iter().copied()))
    };
    let (code, error) = fail(batch(&[]));
    assert!(code == 1 && error.contains("continue with --resume"), "{code} {error}");
    assert_eq!(
        service.admin.take().unwrap().wait(),
        Some(1),
        "handle-admin exits, so that the store is opened again"
    );
    let log = std::fs::read_to_string(service.path("stderr")).unwrap();
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("handle-admin: ") && last.contains("is there room"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    // The disk has space again.
    service.start_admin();
    let batch = service.hdl_as_admin(["batch", "batch.txt", "--parallel", "4", "--resume", "--json"]);
    let counts: serde_json::Value = serde_json::from_str(&succeed(batch)).unwrap();
    let count = |name: &str| counts[name].as_u64().unwrap();
    assert!(count("doneBefore") > 0 && count("doneBefore") + count("done") == COUNT as u64, "{counts}");
    service.admin = None;
    let lines = succeed(service.hdl(["export", "site/store.redb", "-"]));
    let stored = lines.lines().filter(|line| line.contains("-xxx")).count();
    assert_eq!(stored, COUNT, "every record once");
    succeed(service.hdl(["store", "check", "site/store.redb"]));
}

#[test]
fn failed_writes_leave_existing_files_unchanged() {
    let service = InitialisedService::make();
    let line = |at: usize| {
        format!(
            "{{\"handle\":\"10.1045/{at}\",\"values\":[{{\"index\":1,\"type\":\"URL\",\"data\":\"{}\"}}]}}\n",
            "x".repeat(4000)
        )
    };
    std::fs::write(service.path("records.jsonl"), (0..500).map(line).collect::<String>()).unwrap();
    let (before, layers) =
        (service.published(), std::fs::read_dir(service.path("site/snapshot")).unwrap().count());
    for args in [
        &["snapshot", "publish", "site/snapshot", "records.jsonl"][..],
        &["snapshot", "build", "new.layer", "records.jsonl"],
        &["import", "site/store.redb", "records.jsonl"],
        &["import", "new.redb", "records.jsonl", "--create"],
    ] {
        let (code, error) = fail(with_file_limit(&service.hdl(args.iter().copied()), 1100));
        assert!(
            code == 1 && error.contains("File too large") && !error.contains("panicked"),
            "{args:?}: {error}"
        );
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
    }
    assert_eq!(service.published(), before);
    assert_eq!(
        std::fs::read_dir(service.path("site/snapshot")).unwrap().count(),
        layers,
        "a temporary file is left"
    );
    assert!(!service.path("new.layer").exists(), "a partial layer is left");
    succeed(service.hdl(["store", "check", "site/store.redb"]));
    succeed(service.hdl(["snapshot", "publish", "site/snapshot", "records.jsonl"]));
    succeed(service.hdl(["export", "site/snapshot", "whole.jsonl"]));
    let (code, error) = fail(with_file_limit(&service.hdl(["export", "site/snapshot", "part.jsonl"]), 1100));
    assert!(code == 1 && error.contains("File too large"), "{error}");
    assert!(!service.path("part.jsonl").exists(), "a partial backup is left");
}

#[test]
fn handle_admin_names_used_ports_and_unwritable_files() {
    let service = InitialisedService::make();
    let refused = |args: &[&str], texts: &[&str]| {
        let mut command = service.admin_command();
        command.args(args);
        let (code, error) = run_to_end(command);
        assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
        texts.iter().for_each(|text| assert!(error.contains(text), "{text}: {error}"));
    };
    let taken = TcpListener::bind(service.administration).unwrap();
    refused(&[], &["another process uses the port", &service.administration.to_string()]);
    drop(taken);
    refused(&["--listen", "192.0.2.1:2642"], &["does not have the address"]);
    let control = service.path("site/siteinfo.json");
    refused(&["--control", &control.to_string_lossy()], &["siteinfo.json", "is not a socket"]);
    refused(&["--control", "/nowhere/x"], &["/nowhere/x", "ls -ld"]);
    refused(&["--store", "/nowhere/x.redb"], &["/nowhere/x.redb", "hdl store create"]);
    // --check-config, which also precedes a reload, accepts a store that is in use.
    let mut service = service;
    service.start_admin();
    let mut command = service.admin_command();
    command.arg("--check-config");
    assert!(succeed(command).contains("is in use"));
    let (code, error) = fail(service.hdl(["store", "stats", "site/store.redb"]));
    assert!(code == 1 && error.contains("is handle-admin running?"), "{error}");
}
