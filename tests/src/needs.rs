//! What tests need that cargo does not build, and what becomes of a test that lacks it.
//!
//! A test calls [`has`] with what it needs and whether that is there, and returns if the answer is
//! no. [`has`] prints `NOT TESTED` with the name of the test, past the harness, which hides what
//! passing tests print. It also appends the line to the file in `HANDLE_NOT_TESTED`, so that a run
//! of many programs ends with the list. With `HANDLE_TESTS=required`, as in `.ci/run`, the test
//! fails instead, unless its row of `ROWS` is exempt.
//!
//! Tests of single crates include this file by its path, so it uses the standard library only.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Something that a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestNeed {
    /// The programs of a server of PostgreSQL.
    Postgres,
    /// An authority for certificates, `pebble`, and its server of names.
    Pebble,
    /// `python3`.
    Python,
    /// `curl` and `openssl`.
    Curl,
    /// `strace`.
    Strace,
    /// `node`, which runs scripts of pages.
    Node,
    /// A browser without a screen.
    Chromium,
    /// `promtool` of Prometheus.
    Promtool,
    /// `moto_server`, an S3 that somebody else wrote.
    Moto,
    /// pyhandle, in the Python of `PYHANDLE_PYTHON`.
    Pyhandle,
    /// The reference implementation in the folder `REFERENCE`, and Java.
    Reference,
    /// The user of the test is root.
    Root,
    /// A mount namespace of one's own.
    MountNamespace,
    /// Namespaces of network, mounts and processes of one's own, and `ip` and `ss`.
    Namespaces,
    /// `bird`, which speaks BGP.
    Bird,
    /// `nginx` and `haproxy`.
    Proxies,
    /// io_uring.
    IoUring,
    /// Trains of datagrams, sent and received.
    Trains,
    /// `valgrind`, which counts instructions.
    Valgrind,
    /// The right to trace processes of one's own, on x86-64.
    Trace,
}

/// What is known about a need.
struct NeedRow {
    need: TestNeed,
    name: &'static str,
    /// What gives it to a machine that lacks it.
    remedy: &'static str,
    /// Why `HANDLE_TESTS=required` does not require it.
    exemption: Option<&'static str>,
}

/// All needs. Everything without an exemption is installed by `.ci/run`.
const ROWS: [NeedRow; 20] = [
    required(TestNeed::Postgres, "PostgreSQL", "apt-get install postgresql"),
    required(TestNeed::Pebble, "pebble", "apt-get install pebble"),
    required(TestNeed::Python, "python3", "apt-get install python3"),
    required(TestNeed::Curl, "curl and openssl", "apt-get install curl openssl"),
    required(TestNeed::Strace, "strace", "apt-get install strace"),
    required(TestNeed::Node, "node", "apt-get install nodejs"),
    required(TestNeed::Chromium, "Chromium", "apt-get install chromium-headless-shell"),
    required(TestNeed::Promtool, "promtool", "apt-get install prometheus"),
    required(TestNeed::Valgrind, "valgrind", "apt-get install valgrind"),
    required(TestNeed::Root, "root", "run the tests as root"),
    exempt(TestNeed::Moto, "moto_server", "pip install 'moto[server]'", "Debian has no package of it"),
    exempt(TestNeed::Pyhandle, "pyhandle", "pip install pyhandle==1.5.0", "Debian has no package of it"),
    exempt(
        TestNeed::Reference,
        "reference implementation",
        "set REFERENCE to its folder",
        "it is not free to distribute",
    ),
    required(TestNeed::Bird, "bird", "apt-get install bird2"),
    required(TestNeed::Proxies, "nginx and haproxy", "apt-get install nginx-light haproxy"),
    exempt(TestNeed::Namespaces, "unshare --net --mount --pid", "leave the container", CONTAINER),
    exempt(TestNeed::MountNamespace, "unshare --mount", "leave the container", CONTAINER),
    exempt(TestNeed::IoUring, "io_uring", "leave the container", CONTAINER),
    exempt(TestNeed::Trace, "ptrace on x86-64", "leave the container", CONTAINER),
    exempt(TestNeed::Trains, "UDP_SEGMENT and UDP_GRO", "Linux 5.0 or later", "the kernel is given"),
];

/// The usual container forbids these system calls, and nothing in it can allow them.
const CONTAINER: &str = "a container may forbid the system calls";

const fn required(need: TestNeed, name: &'static str, remedy: &'static str) -> NeedRow {
    NeedRow { need, name, remedy, exemption: None }
}

const fn exempt(
    need: TestNeed,
    name: &'static str,
    remedy: &'static str,
    exemption: &'static str,
) -> NeedRow {
    NeedRow { need, name, remedy, exemption: Some(exemption) }
}

/// Returns `is_there`. If it is false, reports that the test of this thread is left out.
///
/// # Panics
/// If it is false, `HANDLE_TESTS=required` is in the environment, and the need is not exempt.
#[must_use]
pub fn has(need: TestNeed, is_there: bool) -> bool {
    if is_there {
        return true;
    }
    let row = ROWS.iter().find(|row| row.need == need).expect("every need has a row");
    let is_required = std::env::var("HANDLE_TESTS").is_ok_and(|text| text == "required");
    let thread = std::thread::current();
    let test = format!("{}::{}", program_name(), thread.name().unwrap_or("?"));
    assert!(
        row.exemption.is_some() || !is_required,
        "{test} needs {}: {}, or run without HANDLE_TESTS=required",
        row.name,
        row.remedy
    );
    let reason = row.exemption.map_or(String::new(), |exemption| format!("; exempt: {exemption}"));
    let line = format!("NOT TESTED: {test}: no {} ({}{reason})\n", row.name, row.remedy);
    // Not by `eprintln!`, which the harness captures. The test goes on if nobody reads.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os("HANDLE_NOT_TESTED") {
        let file = OpenOptions::new().create(true).append(true).open(file);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list HANDLE_NOT_TESTED");
    }
    false
}

/// The name of the test program, as `processes`, without the hash that cargo appends.
fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    name.rsplit_once('-').map_or(name.clone(), |(name, _)| name.to_owned())
}
