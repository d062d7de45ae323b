//! An idle `handled` sleeps, and wakes up immediately for requests and new sets.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::TestClient;
use handle_tests::daemon::{Daemon, ask, free_address, handled};
use handle_tests::http;
use handle_tests::process::{RunningProcess, program, succeed, until};
use handle_tests::records::{self, Record};
use handle_tests::service_directory::InitialisedService;
use handle_tests::several_admins::SeveralAdmins;
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct IdleSetup {
    daemon: Daemon,
    address: SocketAddr,
    http: SocketAddr,
    publisher: SetPublisher,
    directory: TempDir,
}

impl IdleSetup {
    /// A server with everything that could wake it: workers, control socket, metrics, shared
    /// sessions, query log.
    fn start(datapath: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (address, http) = (free_address(), free_address());
        let mut publisher = SetPublisher::open(directory.path()).unwrap();
        records::publish(&mut publisher, &[record("https://example.org/0")], 1);
        let text = format!(
            "snapshot = \".\"\nlisten = [\"{address}\"]\nworkers = 2\nlog = \"warn\"\ndatapath = \"{datapath}\"\n\
             control = \"control.sock\"\nobserve.http = \"{http}\"\nsessions.socket = \"sessions.sock\"\n\
             query_log.path = \"queries.log\"\n"
        );
        std::fs::write(directory.path().join("handled.toml"), text).unwrap();
        let mut command = handled();
        command.arg("--config").arg(directory.path().join("handled.toml"));
        let daemon = Daemon::start(command, &directory.path().join("control.sock"));
        Self { daemon, address, http, publisher, directory }
    }
}

/// Number of times that threads of a process have gone to sleep, by the name of the thread.
fn sleeps(process: &RunningProcess) -> BTreeMap<String, u64> {
    let tasks = format!("/proc/{}/task", process.0.id());
    let mut counts = BTreeMap::new();
    for thread in std::fs::read_dir(tasks).unwrap().flatten() {
        let Ok(status) = read_to_string(thread.path().join("status")) else { continue };
        let name = status.lines().find_map(|line| line.strip_prefix("Name:")).unwrap().trim().to_owned();
        *counts.entry(name).or_default() += field(&status, "voluntary_ctxt_switches:");
    }
    counts
}

/// Checks that idle processes wake up rarely; returns a text with the figures.
fn check_sleep(processes: &[(&str, &RunningProcess)]) -> String {
    let before: Vec<_> = processes.iter().map(|(_, process)| sleeps(process)).collect();
    let since = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    let seconds = since.elapsed().as_secs() + 1;
    let mut texts = Vec::new();
    for ((name, process), before) in processes.iter().zip(before) {
        let mut counts = sleeps(process);
        for (thread, count) in &mut counts {
            *count = count.saturating_sub(before.get(thread).copied().unwrap_or(0));
        }
        // It looks for transactions of other processes 20 times a second: databases that speak
        // PostgreSQL's protocol have no notifications in common.
        counts.remove("store-feed");
        // It asks for the lease eight times in the length of a lease, with some packets each.
        counts.remove("lease");
        let count: u64 = counts.values().sum();
        assert!(count <= seconds * WAKE_UPS_MAX, "{name}: {count} wake-ups in {seconds} s: {counts:?}");
        texts.push(format!("{name}: {count} wake-ups in {seconds} s"));
    }
    texts.join(", ")
}

fn record(url: &str) -> Record {
    let mut values = vec![];
    handle_proto::Value::new(1, b"URL", url.as_bytes()).encode(&mut values);
    Record { handle: "10.1/a".to_owned(), values, values_count: 1 }
}

fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    value.trim().parse().unwrap()
}

/// Permitted wake-ups per second. The watcher checks the directory once, the query log its queue
/// three times; the publisher signs a statement once.
const WAKE_UPS_MAX: u64 = 10;

fn check_sleep_and_wake_up(datapath: &str) {
    let mut setup = IdleSetup::start(datapath);
    let mut client = TestClient::new(setup.address);
    assert_eq!(client.resolve(b"10.1/a").unwrap().code, ResponseCode::SUCCESS);
    // After the last request, workers poll once more, and the query log extends its intervals.
    std::thread::sleep(Duration::from_millis(700));
    let slept = check_sleep(&[(datapath, &setup.daemon.process)]);

    // The health check succeeds although no worker has woken up.
    for _ in 0..3 {
        assert!(http::is_ok(setup.http, "/healthz"), "{:?}", http::get(setup.http, "/healthz"));
    }
    assert_eq!(setup.daemon.ask("status")["state"], "serving");

    let mut delays: Vec<_> = (1..=7)
        .map(|at| {
            // Long before the next check of the directory by polling.
            std::thread::sleep(Duration::from_millis(300));
            let url = format!("https://example.org/{at}");
            records::publish(&mut setup.publisher, &[record(&url)], at + 1);
            let since = Instant::now();
            let is_new =
                |client: &mut TestClient| client.resolve(b"10.1/a").unwrap().values == record(&url).values;
            until("the new set is served", || is_new(&mut client));
            since.elapsed()
        })
        .collect();
    delays.sort();
    println!("{slept}; new sets after {delays:?}");
    assert!(delays[0] < Duration::from_millis(100), "{datapath}: a new set is served after {delays:?}");
    assert!(delays[3] < Duration::from_millis(500), "{datapath}: {delays:?}");

    let log = setup.directory.path().join("queries.log");
    until("the query log is written", || lines(&log) >= 8);
    let since = Instant::now();
    setup.daemon.process.signal("TERM");
    assert_eq!(setup.daemon.process.wait(), Some(0));
    assert!(since.elapsed() < Duration::from_secs(10), "a sleeping server stops on a signal");
}

fn lines(path: &Path) -> usize {
    read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn an_idle_server_sleeps_and_takes_new_sets_at_once_with_io_uring() {
    check_sleep_and_wake_up("auto");
}

#[test]
fn an_idle_server_sleeps_and_takes_new_sets_at_once_with_the_portable_datapath() {
    check_sleep_and_wake_up("portable");
}

#[test]
fn an_idle_handle_admin_sleeps_and_publishes_at_once() {
    let service = InitialisedService::start();
    let mut command = Command::new(program("handle-gateway", "handle-gateway"));
    command.env("HANDLE_GATEWAY_ALLOW_ROOT", "true").stdin(Stdio::null());
    command.arg("--config").arg(service.path("site/handle-gateway.toml")).args(["--log", "warn"]);
    let (gateway, control) = (RunningProcess::start(command), service.path("site/run/handle-gateway.sock"));
    until("the gateway serves", || ask(&control, "status")["pid"] == gateway.0.id());
    let (admin, handled) = (service.admin.as_ref().unwrap(), &service.handled.as_ref().unwrap().process);
    // After the start, the files of earlier runs are removed.
    std::thread::sleep(Duration::from_secs(2));
    println!(
        "{}",
        check_sleep(&[("handle-admin", admin), ("handled", handled), ("handle-gateway", &gateway)])
    );
    for at in 1..=3 {
        // Long before anything would have been looked at by time.
        std::thread::sleep(Duration::from_millis(300));
        let (handle, value) = (format!("10.1045/idle-{at}"), "1:URL=https://example.org/");
        succeed(service.hdl_as_admin(["handle", "create", &handle, value, "100:HS_ADMIN=300:10.1045/ADMIN"]));
        let since = Instant::now();
        service.until_resolved(&handle, 1, "https://example.org/");
        assert!(since.elapsed() < Duration::from_secs(1), "published after {:?}", since.elapsed());
    }
    let since = Instant::now();
    let hold = ask(&service.path("site/run/handle-admin.sock"), "hold a test");
    assert_eq!(hold["ok"], true, "{hold}");
    assert!(since.elapsed() < Duration::from_millis(500), "a command waits for {:?}", since.elapsed());
    println!("{}", check_sleep(&[("handle-admin that holds", admin)]));
}

#[test]
fn two_idle_handle_admins_over_one_database_sleep() {
    let Some(mut several) = SeveralAdmins::make("lease_ms = 3000") else { return };
    (0..2).for_each(|at| several.start(at));
    until("one has the lease", || several.publishes(0) || several.publishes(1));
    std::thread::sleep(Duration::from_secs(2));
    let [a, b] = several.processes.each_ref().map(|process| process.as_ref().unwrap());
    println!("{}", check_sleep(&[("a", a), ("b", b)]));
}

#[test]
fn a_sleeping_server_closes_idle_connections_in_time() {
    let setup = IdleSetup::start("auto");
    let config = setup.directory.path().join("handled.toml");
    let text = read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}tcp.idle_ms = 300\n")).unwrap();
    assert_eq!(setup.daemon.ask("reload")["ok"], true);
    // Workers apply the new settings when they are woken up for them.
    std::thread::sleep(Duration::from_millis(100));
    let mut stream = TcpStream::connect(setup.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let since = Instant::now();
    let mut rest = vec![];
    stream.read_to_end(&mut rest).unwrap();
    assert!(since.elapsed() >= Duration::from_millis(250), "{:?}", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}
