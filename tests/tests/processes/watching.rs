//! Observation of a running server: query log and metrics.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request, fragment};
use handle_proto::{OpCode, OpFlags};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::{TestClient, exchange, exchange_over_tcp, request};
use handle_tests::daemon::free_address;
use handle_tests::http::{get, is_ok};
use handle_tests::process::{RunningProcess, hdl, program, succeed, until};
use handle_tests::test_server::serve_with;
use handle_tests::{records, test_server};
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use handle_worker::query_log::QueryLogFormat;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A server of real records with a query log, one of their handles, and the path of the log.
fn start(change: impl FnOnce(&mut Config)) -> (Server, String, PathBuf, TempDir) {
    let (directory, records) = (tempfile::tempdir().unwrap(), records::load());
    let set = directory.path().join("set");
    std::fs::create_dir(&set).unwrap();
    records::publish(&mut SetPublisher::open(&set).unwrap(), &records, 1);
    let mut config = test_server::config(&set, Datapath::Auto);
    let log = directory.path().join("query.log");
    config.query_log.path = Some(log.clone());
    change(&mut config);
    (Server::start(&config).unwrap(), records[0].handle.clone(), log, directory)
}

fn lines(log: &Path) -> Vec<String> {
    std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// A counter of `stats`, summed over the workers.
fn total(server: &Server, name: &str) -> u64 {
    server.shared().stats()["total"][name].as_u64().unwrap()
}

#[test]
fn every_answer_is_logged_in_the_format_of_deployed_servers() {
    let (server, handle, log, _directory) = start(|_| {});
    let mut client = TestClient::new(server.addresses()[0]);
    client.resolve(handle.as_bytes()).unwrap();
    client.resolve(b"10.1016/no such?thing").unwrap();
    // A request in two fragments.
    let long = format!("10.1016/{}", "x".repeat(600));
    let whole = request(long.as_bytes(), 77);
    let (envelope, message) = Envelope::split(&whole).unwrap();
    let envelope = Envelope { flags: EnvelopeFlags::default(), ..envelope };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    for fragment in fragment::cut(&envelope) {
        let datagram = [&fragment.envelope[..], &message[fragment.range]].concat();
        socket.send_to(&datagram, server.addresses()[0]).unwrap();
    }
    socket.recv(&mut [0; 512]).expect("an answer");
    until("the lines are written", || lines(&log).len() == 3);
    server.stop().unwrap();
    let expected = [
        (1, handle.as_str()),
        (100, "10.1016/no%20such%3Fthing"),
        // The log has at most 512 bytes of a handle.
        (100, &long[..512]),
    ];
    for (line, (code, handle)) in lines(&log).iter().zip(expected) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [ip, interface, date, time, op, found, took, admin, name] = fields[..] else {
            panic!("{line} has {} fields", fields.len());
        };
        assert_eq!((ip, interface, op, admin), ("127.0.0.0", "UDP:HDL(2.11)", "1", ""), "{line}");
        assert_eq!((found, name), (code.to_string().as_str(), handle), "{line}");
        assert_eq!((date.len(), time.len()), (11, 14), "{line}");
        assert!(date.starts_with("\"20") && time.ends_with("Z\"") && took.ends_with("ms"), "{line}");
    }
}

/// Each answer over each transport has a line and is measured where it was made.
#[test]
fn connections_and_the_slow_path_are_logged_and_measured_as_well() {
    let served = serve_with("root", Datapath::Auto, |config| {
        config.query_log.path = Some(config.snapshot.with_file_name("query.log"));
        config.query_log.format = QueryLogFormat::Json;
        config.observe.latency_every = 1;
    });
    let log = served.directory.path().join("query.log");
    let handle = b"TST/HALF";
    let plain = request(handle, 1);
    let asking = |flags: OpFlags| {
        let header = Header::request(OpCode::RESOLUTION, flags, 0);
        let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
        MessageBuf::request(&Envelope::request(1), &header, &Request::Resolution(query)).unsigned().unwrap()
    };
    let certified = asking(OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY));
    let all_values = asking(OpFlags::PLAIN_REQUEST.without(OpFlags::PUBLIC_ONLY));
    for message in [&plain, &certified, &all_values] {
        exchange(served.address(), message).expect("an answer");
        exchange_over_tcp(served.address(), message).expect("an answer");
    }
    let read = || -> Vec<serde_json::Value> {
        lines(&log).iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    until("the lines are written", || read().len() == 6);
    for transport in ["udp", "tcp"] {
        let of_transport: Vec<_> = read().into_iter().filter(|line| line["transport"] == transport).collect();
        assert_eq!(of_transport.len(), 3, "{of_transport:?}");
        for line in of_transport {
            assert_eq!((&line["ip"], &line["op_code"]), (&"127.0.0.0".into(), &1.into()), "{line}");
            assert_eq!(line["handle"], "TST/HALF", "{line}");
        }
        let times = || served.server.shared().stats()["total"]["answer_times"][transport].clone();
        // A batch is measured after its answers are sent.
        until("each answer is measured", || {
            let times = times();
            let count = |way: &str| times[way]["answers_measured"].as_u64().unwrap();
            (count("worker"), count("slow")) == (1, 2)
        });
    }
    assert_eq!(total(&served.server, "requests_deferred"), 4);
}

#[test]
fn json_lines_are_json_with_whole_addresses_on_demand() {
    let (server, handle, log, _directory) = start(|config| {
        config.query_log.format = QueryLogFormat::Json;
        config.query_log.whole_addresses = true;
    });
    TestClient::new(server.addresses()[0]).resolve(handle.as_bytes()).unwrap();
    server.stop().unwrap();
    let line: serde_json::Value = serde_json::from_str(&lines(&log)[0]).unwrap();
    assert_eq!((&line["ip"], &line["ip_bits"]), (&"127.0.0.1".into(), &32.into()));
    assert_eq!((&line["handle"], &line["response_code"]), (&handle.as_str().into(), &1.into()));
    assert!(line["took_us"].as_u64() < Some(10_000_000) && line["time"].as_str().unwrap().ends_with('Z'));
}

/// Sends `count` requests in groups and waits for every answer.
fn ask_many(server: &Server, handle: &str, count: usize) {
    const AT_A_TIME: usize = 50;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server.addresses()[0]).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let datagram = request(handle.as_bytes(), 1);
    for _ in 0..count / AT_A_TIME {
        for _ in 0..AT_A_TIME {
            socket.send(&datagram).unwrap();
        }
        for _ in 0..AT_A_TIME {
            socket.recv(&mut [0; 512]).expect("an answer");
        }
    }
}

#[test]
fn under_overload_lines_are_dropped_and_counted_and_answers_are_not() {
    let (server, handle, log, _directory) = start(|config| config.query_log.lines_per_second = 7);
    let started = Instant::now();
    ask_many(&server, &handle, 20_000);
    let seconds = started.elapsed().as_secs() + 2;
    let count = |name| total(&server, name);
    let (queued, rate, full) =
        (count("query_log_queued"), count("query_log_dropped_rate"), count("query_log_dropped_full"));
    assert_eq!((queued + rate + full, full), (20_000, 0), "every answer is counted once");
    assert!((7..=7 * seconds).contains(&queued), "{queued} lines in {seconds} s");
    server.stop().unwrap();
    assert_eq!(lines(&log).len() as u64, queued, "queued lines are written");
}

#[test]
fn a_blocked_log_does_not_delay_answers() {
    let mut held = None;
    let (server, handle, ..) = start(|config| {
        let path = config.query_log.path.clone().unwrap().with_file_name("pipe");
        succeed({
            let mut command = Command::new("mkfifo");
            command.arg(&path);
            command
        });
        // A reader that never reads: once the pipe is full, writes block.
        held = Some(std::fs::File::options().read(true).write(true).open(&path).unwrap());
        config.query_log.path = Some(path);
        (config.query_log.lines_per_second, config.query_log.queue_lines) = (1_000_000, 100);
    });
    ask_many(&server, &handle, 10_000);
    let dropped = total(&server, "query_log_dropped_full");
    assert!(dropped > 1000, "the pipe holds 64 KiB and the queue 100 lines: {dropped} dropped");
    assert_eq!(total(&server, "requests_answered"), 10_000);
    drop(held);
    server.stop().unwrap();
}

fn metric(body: &str, name: &str) -> f64 {
    let lines = body.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn metrics_can_be_scraped_during_a_flood() {
    let (server, handle, ..) = start(|config| {
        config.query_log.path = None;
        config.observe.http = Some(([127, 0, 0, 1], 0).into());
    });
    let address = server.http_address().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(server.addresses()[0]).unwrap();
            let datagram = request(handle.as_bytes(), 1);
            while !stop.load(Ordering::Relaxed) {
                // The answers are not read.
                let _ = socket.send(&datagram);
            }
        });
        let mut before = 0.0;
        for _ in 0..30 {
            let body = get(address, "/metrics").expect("metrics").body;
            let received = metric(&body, "handled_datagrams_received_total");
            assert!(received >= before, "{received} after {before}");
            before = received;
            assert!(is_ok(address, "/readyz"), "a busy server is ready");
        }
        stop.store(true, Ordering::Relaxed);
    });
    server.stop().unwrap();
}

#[test]
fn a_process_serves_metrics_and_reopens_its_rotated_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let record = r#"{"handle":"10.1/a","values":[{"index":1,"type":"URL","data":"https://a.example/"}]}"#;
    std::fs::write(path("records.jsonl"), record).unwrap();
    let mut publish = hdl(["snapshot", "publish"]);
    publish.arg(path("set")).arg(path("records.jsonl"));
    succeed(publish);
    let udp = free_address();
    let http = free_address();
    let config = format!(
        "snapshot = \"set\"\nlisten = [\"{udp}\"]\nworkers = 1\ncontrol = \"control.sock\"\n\
         [observe]\nhttp = \"{http}\"\n[query_log]\npath = \"query.log\"\n"
    );
    std::fs::write(path("handled.toml"), config).unwrap();
    let mut command = Command::new(program("handle-server", "handled"));
    command.env("HANDLED_ALLOW_ROOT", "true");
    command.arg("--config").arg(path("handled.toml")).args(["--log", "warn"]).stdin(Stdio::null());
    let mut process = RunningProcess::start(command);
    until("handled is ready", || is_ok(http, "/readyz"));
    let log = path("query.log");
    let ask = || drop(TestClient::new(udp).resolve(b"10.1/a").expect("an answer"));
    ask();
    until("the first line is written", || lines(&log).len() == 1);
    std::fs::rename(&log, path("query.log.1")).unwrap();
    process.signal("HUP");
    until("a new file after SIGHUP", || log.exists());
    ask();
    until("the first line of the new file is written", || lines(&log).len() == 1);
    std::fs::rename(&log, path("query.log.2")).unwrap();
    let mut reopen = hdl(["control", "reopen-log", "--socket"]);
    reopen.arg(path("control.sock"));
    assert!(succeed(reopen).contains("ok: true"));
    until("a new file after the command", || log.exists());
    assert_eq!(lines(&path("query.log.1")).len() + lines(&path("query.log.2")).len(), 2);
    let body = get(http, "/metrics").unwrap().body;
    assert_eq!(metric(&body, "handled_query_log_written_total"), 2.0);
    assert_eq!(metric(&body, "handled_requests_answered_total"), 2.0);
    process.signal("TERM");
    assert_eq!(process.wait(), Some(0));
}
