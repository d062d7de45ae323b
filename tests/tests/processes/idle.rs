//! An idle `handled` sleeps, and wakes up immediately for requests and new sets.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::TestClient;
use handle_tests::daemon::{Daemon, free_address, handled};
use handle_tests::http;
use handle_tests::process::until;
use handle_tests::records::{self, Record};
use std::fs::read_to_string;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
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

    /// Number of times that threads of the process have gone to sleep.
    fn sleeps(&self) -> u64 {
        let tasks = format!("/proc/{}/task", self.daemon.process.0.id());
        let threads = std::fs::read_dir(tasks).unwrap().flatten();
        let status = threads.filter_map(|thread| read_to_string(thread.path().join("status")).ok());
        status.map(|status| field(&status, "voluntary_ctxt_switches:")).sum()
    }
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
/// three times.
const WAKE_UPS_MAX: u64 = 10;

fn check_sleep_and_wake_up(datapath: &str) {
    let mut setup = IdleSetup::start(datapath);
    let mut client = TestClient::new(setup.address);
    assert_eq!(client.resolve(b"10.1/a").unwrap().code, ResponseCode::SUCCESS);
    // After the last request, workers poll once more, and the query log extends its intervals.
    std::thread::sleep(Duration::from_millis(700));
    let (before, since) = (setup.sleeps(), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let (sleeps, seconds) = (setup.sleeps() - before, since.elapsed().as_secs() + 1);
    assert!(sleeps <= seconds * WAKE_UPS_MAX, "{datapath}: {sleeps} wake-ups in {seconds} s");

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
    println!("{datapath}: {sleeps} wake-ups in {seconds} s; new sets after {delays:?}");
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
