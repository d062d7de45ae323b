//! Files of a later format are refused by each program that reads them: with a sentence that has
//! both versions and what to do, and an exit code. What is there stays.

use crate::corpus::{VersionFiles, copy_all};
use handle_snapshot::format::checksum;
use handle_tests::daemon::handled;
use handle_tests::process::{RunningProcess, hdl, program, until};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The files of the newest version, to be changed.
struct LaterFiles(TempDir, VersionFiles);

impl LaterFiles {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap(), VersionFiles::all().pop().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A copy of a file or directory of the version under `to`.
    fn copy(&self, name: &str, to: &str) -> PathBuf {
        copy_all(&self.1.path(name), &self.path(to));
        self.path(to)
    }

    /// A copy of a text file with another text in place of one.
    fn edited(&self, name: &str, from: &str, to: &str) -> PathBuf {
        let text = fs::read_to_string(self.1.path(name)).unwrap();
        assert!(text.contains(from), "{name} has {from:?}");
        let path = self.path(Path::new(name).file_name().unwrap().to_str().unwrap());
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        path
    }

    /// A set whose MANIFEST has a later version.
    fn set_with_manifest(&self) -> PathBuf {
        let set = self.copy("sets/exact", "later-manifest");
        let text = fs::read_to_string(set.join("MANIFEST")).unwrap();
        let text = text.replacen("handle snapshot set 2", "handle snapshot set 3", 1);
        let text = &text[..text.rfind("end ").unwrap()];
        let sum = checksum(text.as_bytes());
        fs::write(set.join("MANIFEST"), format!("{text}end {sum:016x}\n")).unwrap();
        set
    }

    /// A set with layers of a later version.
    fn set_with_layers(&self) -> PathBuf {
        let set = self.copy("sets/exact", "later-layers");
        for entry in fs::read_dir(&set).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "layer") {
                let mut bytes = fs::read(&path).unwrap();
                bytes[8..12].copy_from_slice(&2_u32.to_le_bytes());
                fs::write(&path, bytes).unwrap();
            }
        }
        set
    }

    /// A configuration of `handle-admin`, which publishes to `directory`.
    fn admin_config(&self, store: &Path, directory: &Path) -> PathBuf {
        let path = self.path("handle-admin.toml");
        let text = format!(
            "site = {:?}\nlisten = [\"127.0.0.1:0\"]\n[store]\nfile = {store:?}\n[publish]\ndirectory = {directory:?}\n",
            self.path("siteinfo.json")
        );
        fs::write(&path, text).unwrap();
        fs::write(
            self.path("siteinfo.json"),
            r#"{"version":1,"protocolVersion":"2.11","serialNumber":1,"primarySite":true,"multiPrimary":false,
                "servers":[{"serverId":1,"address":"127.0.0.1","interfaces":[
                {"query":true,"admin":true,"protocol":"TCP","port":2641}]}]}"#,
        )
        .unwrap();
        path
    }
}

/// A program that may run as root.
fn process(package: &str, name: &str) -> Command {
    let mut command = Command::new(program(package, name));
    command.arg("--allow-root");
    command
}

/// Runs a command, which has to end with exit code `code` and these words on standard error.
fn refuses(what: &str, mut command: Command, code: i32, words: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("stderr");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&output).unwrap());
    let ended = RunningProcess::start(command).wait();
    let text = fs::read_to_string(&output).unwrap();
    assert_eq!(ended, Some(code), "{what}: {text}");
    for word in words {
        assert!(text.contains(word), "{what}, without {word:?}: {text}");
    }
}

/// Every program that reads sets, over the set in `set`.
fn set_readers(files: &LaterFiles, set: &Path) -> Vec<(&'static str, Command)> {
    let mut server = handled();
    server.args(["--listen", "127.0.0.1:0", "--snapshot"]).arg(set);
    let mut gateway = process("handle-gateway", "handle-gateway");
    gateway.args(["--listen", "127.0.0.1:0", "--snapshot"]).arg(set);
    let mut cache = process("handle-cache", "handle-cache");
    let config = files.path("handle-cache.toml");
    let text =
        format!("listen = [\"127.0.0.1:0\"]\nsnapshot = {set:?}\n[upstream]\nservers = [\"127.0.0.1:9\"]\n");
    fs::write(&config, text).unwrap();
    cache.arg("--config").arg(config);
    let (_directory, store) = files.1.unpacked("store.redb");
    fs::copy(store, files.path("store.redb")).unwrap();
    let mut admin = process("handle-admin", "handle-admin");
    admin.arg("--config").arg(files.admin_config(&files.path("store.redb"), set));
    let mut verify = hdl(["snapshot", "verify"]);
    verify.arg(set);
    let mut prove = hdl(["prove"]);
    prove.arg(set).arg("10.5072/url");
    let mut loadgen = Command::new(program("handle-loadgen", "handle-loadgen"));
    loadgen.args(["run", "--target", "127.0.0.1:9", "--max", "--duration", "1s", "--snapshot"]).arg(set);
    vec![
        ("handled", server),
        ("handle-gateway", gateway),
        ("handle-cache", cache),
        ("handle-admin", admin),
        ("hdl snapshot verify", verify),
        ("hdl prove", prove),
        ("handle-loadgen", loadgen),
    ]
}

fn code_of(program: &str) -> i32 {
    // `handle-loadgen` has an exit code for a run that did not take place.
    if program == "handle-loadgen" { 3 } else { 1 }
}

#[test]
fn sets_of_a_later_format_are_refused_by_every_program() {
    let files = LaterFiles::new();
    let set = files.set_with_manifest();
    for (program, command) in set_readers(&files, &set) {
        let words = ["unsupported version 3", "reads versions 1 and 2", "update this one"];
        refuses(program, command, code_of(program), &words);
    }
    let set = files.set_with_layers();
    for (program, command) in set_readers(&files, &set) {
        let words = ["the layout is version 2", "reads version 1", "update it"];
        refuses(program, command, code_of(program), &words);
    }
}

/// `handle-fetch` refuses both a set that it is sent and one that a later program has put into its
/// directory, in whose place an older one could come otherwise.
#[test]
fn sets_of_a_later_format_are_not_fetched_and_not_replaced() {
    let files = LaterFiles::new();
    let fetch = |from: &Path, to: &Path| {
        let mut fetch = process("handle-fetch", "handle-fetch");
        fetch.arg(format!("file://{}", from.display())).arg(to).arg("--once");
        fetch
    };
    let (later, known) = (files.set_with_manifest(), files.copy("sets/exact", "known"));
    let words = ["unsupported version 3", "reads versions 1 and 2", "update this one"];
    refuses("handle-fetch from", fetch(&later, &files.path("empty")), 1, &words);
    let before = fs::read(later.join("MANIFEST")).unwrap();
    refuses("handle-fetch to", fetch(&known, &later), 1, &words);
    assert_eq!(fs::read(later.join("MANIFEST")).unwrap(), before, "it stays");
}

#[test]
fn statements_and_proofs_of_a_later_format_are_refused() {
    let files = LaterFiles::new();
    let set = files.copy("sets/signed", "signed");
    let last = files.edited("last-set", "handle snapshot statement 2", "handle snapshot statement 3");
    let key = files.1.path("publisher.bin");
    for (package, name) in [("handle-server", "handled"), ("handle-gateway", "handle-gateway")] {
        let config = files.path(&format!("{name}.toml"));
        let text = format!(
            "snapshot = {set:?}\nlisten = [\"127.0.0.1:0\"]\n[publishers]\nkeys = [{key:?}]\nlast_set_file = {last:?}\n"
        );
        fs::write(&config, text).unwrap();
        let mut command = process(package, name);
        command.arg("--config").arg(config);
        refuses(name, command, 1, &["has format 3", "reads formats 1 and 2", "update this program"]);
    }
    for (from, to, words) in [
        ("record proof 2", "record proof 3", ["made in format 3", "reads format 2"]),
        ("statement 2", "statement 3", ["statement is made in format 3", "reads format 2"]),
    ] {
        let mut verify = hdl(["verify-proof", "--handle", "10.5072/url", "--key"]);
        verify.arg(&key).arg(files.edited("present.proof", from, to));
        refuses("hdl verify-proof", verify, 1, &[words[0], words[1], "update it"]);
    }
}

#[test]
fn stores_of_a_later_format_are_refused_and_stay() {
    let files = LaterFiles::new();
    let (_directory, store) = files.1.unpacked("store.redb");
    let mut bytes = fs::read(&store).unwrap();
    // The version is the first byte of each of the two slots of redb.
    (bytes[64], bytes[192]) = (4, 4);
    fs::write(&store, &bytes).unwrap();
    let mut admin = process("handle-admin", "handle-admin");
    admin.arg("--config").arg(files.admin_config(&store, &files.path("published")));
    let mut check = hdl(["store", "check"]);
    check.arg(&store);
    let mut export = hdl(["export"]);
    export.arg(&store).arg(files.path("export.jsonl"));
    for (program, command) in [("handle-admin", admin), ("hdl store check", check), ("hdl export", export)] {
        refuses(program, command, 1, &["has format 4", "reads format 3", "use the program that wrote it"]);
    }
    assert!(fs::read(&store).unwrap() == bytes, "nothing was written");
}

#[test]
fn reports_and_logs_of_a_later_format_are_refused() {
    let files = LaterFiles::new();
    let run = files.edited("reports/run.json", "handle-loadgen/run/1", "handle-loadgen/run/2");
    let limit = files.edited("reports/limit.json", "handle-loadgen/limit/1", "handle-loadgen/limit/2");
    let loadgen = |args: &[&str]| {
        let mut command = Command::new(program("handle-loadgen", "handle-loadgen"));
        command.args(args);
        command
    };
    let mut html = loadgen(&["html"]);
    html.arg(&run);
    let mut compare = loadgen(&["compare"]);
    compare.arg(&run).arg(&run);
    let mut share = loadgen(&["run", "--target", "127.0.0.1:9", "--template", "a/b", "--max", "--share-of"]);
    share.arg(&limit);
    for (program, command, name) in
        [("html", html, "run"), ("compare", compare, "run"), ("run", share, "limit")]
    {
        let words = [
            &format!("handle-loadgen/{name}/2"),
            &format!("reads handle-loadgen/{name}/1"),
            "or a later one",
        ];
        refuses(program, command, 2, &words);
    }
    let log = files.edited("batch.txt.log", "\"version\":1", "\"version\":2");
    let mut resume = hdl(["batch", "--server", "127.0.0.1:9", "--allow-cleartext-secrets", "--resume"]);
    resume.arg(files.copy("batch.txt", "batch.txt")).arg("--log").arg(log);
    refuses("hdl batch", resume, 1, &["has format 2", "reads format 1", "or a later one"]);
}

/// Nothing is lost but time, so the cache starts empty, and says so.
#[test]
fn a_cache_starts_empty_beside_a_file_of_a_later_format() {
    let files = LaterFiles::new();
    let file = files.path("cache");
    fs::write(&file, "handle cache 2\nanything").unwrap();
    let (config, output) = (files.path("handle-cache.toml"), files.path("stderr"));
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[cache]\nfile = {file:?}\n[upstream]\nservers = [\"127.0.0.1:9\"]\n"
    );
    fs::write(&config, text).unwrap();
    let mut cache = process("handle-cache", "handle-cache");
    cache.arg("--config").arg(config).stdin(Stdio::null()).stderr(File::create(&output).unwrap());
    let _running = RunningProcess::start(cache);
    until("the log names both versions", || {
        let text = fs::read_to_string(&output).unwrap();
        text.contains("it has format 2, and this program reads format 1")
    });
}
