//! Programs whose log cannot be written, and whose threads die.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::daemon::{ask, free_address};
use handle_tests::http;
use handle_tests::needs::{self, TestNeed};
use handle_tests::process::{RunningProcess, hdl, program, run, succeed, until};
use handle_tests::service_directory::InitialisedService;
use serde_json::Value as Json;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Streams to which nothing can be written.
const STREAMS: [&str; 3] = ["a pipe without a reader", "a pipe that nobody reads", "a full disk"];

/// A standard error to which nothing can be written, and what keeps it so.
fn unwritable(stream: &str) -> (Stdio, Option<std::io::PipeReader>) {
    if stream == "a full disk" {
        return (File::options().write(true).open("/dev/full").unwrap().into(), None);
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    if stream == "a pipe without a reader" {
        return (writer.into(), None);
    }
    // Pipes have 64 KiB of capacity.
    std::io::Write::write_all(&mut writer, &[b'x'; 64 << 10]).unwrap();
    (writer.into(), Some(reader))
}

/// Ends a thread of another process, as a bug could.
fn killer(process: &RunningProcess, thread: &str) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/kill_thread.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(process.0.id().to_string()).arg(thread);
    command
}

/// Whether this test may trace processes.
fn can_trace() -> bool {
    let mut sleeping = Command::new("sleep");
    sleeping.arg("60");
    let sleeping = RunningProcess::start(sleeping);
    until("sleep runs", || {
        std::fs::read_to_string(format!("/proc/{}/comm", sleeping.0.id())).is_ok_and(|name| name == "sleep\n")
    });
    cfg!(target_arch = "x86_64")
        && killer(&sleeping, "sleep").stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The configuration of all five programs over one directory of `hdl init`.
struct AllPrograms {
    service: InitialisedService,
    http: SocketAddr,
}

impl AllPrograms {
    fn new() -> Self {
        let this = Self { service: InitialisedService::make(), http: free_address() };
        let cache = format!(
            "listen = [\"{}\"]\ncontrol = \"run/handle-cache.sock\"\nworkers = 1\n[upstream]\nservers = [\"{}\"]\n",
            free_address(),
            this.service.queries
        );
        let fetch = format!(
            "url = \"file://{}\"\ndirectory = \"fetched\"\ncontrol = \"run/handle-fetch.sock\"\n",
            this.service.path("site/shipped").display()
        );
        std::fs::write(this.service.path("site/handle-cache.toml"), cache).unwrap();
        std::fs::write(this.service.path("site/handle-fetch.toml"), fetch).unwrap();
        let gateway = this.service.path("site/handle-gateway.toml");
        let text = std::fs::read_to_string(&gateway).unwrap();
        std::fs::write(&gateway, text.replace("127.0.0.1:8000", &free_address().to_string())).unwrap();
        for name in ["handled", "handle-admin", "handle-gateway", "handle-cache", "handle-fetch"] {
            let path = this.service.path(&format!("site/{name}.toml"));
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, format!("{text}\n[observe]\nhttp = \"{}\"\n", this.http)).unwrap();
        }
        this
    }

    fn command(&self, name: &str) -> Command {
        let package = if name == "handled" { "handle-server" } else { name };
        let mut command = Command::new(program(package, name));
        command.arg("--config").arg(self.service.path(&format!("site/{name}.toml")));
        command.args(["--allow-root", "--log", "debug"]).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn control(&self, name: &str) -> PathBuf {
        self.service.path(&format!("site/run/{name}.sock"))
    }

    fn start(&self, name: &str, command: Command) -> RunningProcess {
        let process = RunningProcess::start(command);
        until(&format!("{name} serves"), || status(&self.control(name))["pid"] == process.0.id());
        until("a set is published", || self.service.path("site/snapshot/MANIFEST").exists());
        process
    }
}

fn status(control: &Path) -> Json {
    ask(control, "status")
}

/// Changes are acknowledged and served, and commands answered, as if the log could be written.
#[test]
fn work_goes_on_where_the_log_cannot_be_written() {
    for stream in STREAMS {
        let all = AllPrograms::new();
        let start = |name: &str| {
            let (stderr, reader) = unwritable(stream);
            let mut command = all.command(name);
            command.stderr(stderr);
            // One port for all, so only `handle-admin` shows metrics.
            if name != "handle-admin" {
                let config = all.service.path(&format!("site/{name}.toml"));
                let text = std::fs::read_to_string(&config).unwrap();
                std::fs::write(&config, text.replace(&all.http.to_string(), &free_address().to_string()))
                    .unwrap();
            }
            (all.start(name, command), reader)
        };
        let _admin = start("handle-admin");
        let _others = ["handled", "handle-gateway", "handle-cache", "handle-fetch"].map(start);
        for n in 0..3 {
            let name = format!("10.1045/{n}");
            succeed(all.service.hdl_as_admin(["handle", "create", &name, "1:URL=https://example.org/"]));
            all.service.until_resolved(&name, 1, "https://example.org/");
        }
        for name in ["handled", "handle-admin", "handle-gateway", "handle-cache", "handle-fetch"] {
            let control = all.control(name);
            assert!(ask(&control, "reload").is_object(), "{name}, {stream}: a reload is answered");
            let status = status(&control);
            assert_eq!(
                status["threads_ended"].as_array().map(Vec::len),
                Some(0),
                "{name}, {stream}: {status}"
            );
            assert!(status["log_lines_lost"].as_u64().unwrap() > 0, "{name}, {stream}: {status}");
        }
        assert_eq!(http::get(all.http, "/healthz").unwrap().status, 200, "{stream}");
        let metrics = http::get(all.http, "/metrics").unwrap().body;
        let lost = metrics.lines().find_map(|line| line.strip_prefix("handle_admin_log_lines_lost_total "));
        assert!(lost.unwrap().parse::<f64>().unwrap() > 0.0, "{stream}: {lost:?}");
    }
}

/// The exit code says the outcome, whatever becomes of the text.
#[test]
fn exit_codes_do_not_depend_on_standard_error() {
    let all = AllPrograms::new();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let code = |mut command: Command| {
        command.stdin(Stdio::null()).stderr(full());
        run(command).status.code()
    };
    for name in ["handled", "handle-admin", "handle-gateway", "handle-cache", "handle-fetch"] {
        let program = all.command(name).get_program().to_owned();
        let mut missing = Command::new(&program);
        missing.args(["--config", "/no/such/file"]);
        assert_eq!(code(missing), Some(2), "{name}");
        let mut unknown = Command::new(&program);
        unknown.arg("--no-such-option");
        assert_eq!(code(unknown), Some(2), "{name}");
        let mut printing = all.command(name);
        printing.arg("--print-config").stdout(full());
        assert_eq!(code(printing), Some(1), "{name}: the configuration is not printed");
    }
    assert_eq!(code(hdl(["resolve", "10.1/x", "--server", "127.0.0.1:1"])), Some(7));
    let loadgen = || Command::new(program("handle-loadgen", "handle-loadgen"));
    let mut unknown = loadgen();
    unknown.arg("--no-such-option");
    assert_eq!(code(unknown), Some(2));
    let mut completions = loadgen();
    completions.args(["completions", "bash"]).stdout(full());
    assert_eq!(code(completions), Some(3));
}

/// A process of which a thread has died may still answer, but health and status say so.
#[test]
fn the_death_of_a_thread_is_a_failure_in_health() {
    if !needs::has(TestNeed::Python, Path::new("/usr/bin/python3").exists())
        || !needs::has(TestNeed::Trace, can_trace())
    {
        return;
    }
    let all = AllPrograms::new();
    // The others find a set, and `handle-cache` a server.
    let admin = all.start("handle-admin", all.command("handle-admin"));
    drop(admin);
    for (name, thread) in [
        ("handle-admin", "publish"),
        ("handle-admin", "costly-0"),
        ("handled", "watcher"),
        ("handled", "slow-0"),
        ("handle-gateway", "watcher"),
        ("handle-gateway", "request-log"),
        ("handle-cache", "questions"),
        ("handle-fetch", "fetch"),
    ] {
        let process = all.start(name, all.command(name));
        let health = || http::get(all.http, "/healthz").unwrap();
        until("healthy", || health().status == 200);
        assert_eq!(status(&all.control(name))["threads_ended"], serde_json::json!([]), "{name}");
        succeed(killer(&process, thread));
        until(&format!("the death of {thread} of {name} shows"), || health().status == 503);
        assert!(health().body.contains(thread), "{name}: {}", health().body);
        assert_eq!(status(&all.control(name))["threads_ended"], serde_json::json!([thread]), "{name}");
        assert_eq!(http::get(all.http, "/readyz").unwrap().status, 503, "{name}");
    }
}
