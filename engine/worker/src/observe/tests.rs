//! Tests of the scrape endpoint of a running server: its responses and its bounds.

use super::health::{self, Heartbeat};
use crate::config::{Config, Datapath};
use crate::server::Server;
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts a server with one record; returns it with the address of its endpoint and its directory.
fn start(change: impl FnOnce(&mut Config)) -> (Server, SocketAddr, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let mut publisher = SetPublisher::open(directory.path()).unwrap();
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        builder.add(0, b"10.1/a", [handle_proto::Value::new(1, b"URL", b"https://a.example/")])?;
        builder.finish(file)
    });
    published.unwrap();
    let mut config = Config {
        snapshot: directory.path().to_owned(),
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 2,
        pin: false,
        datapath: Datapath::Portable,
        ..Config::default()
    };
    config.observe.http = Some(([127, 0, 0, 1], 0).into());
    change(&mut config);
    let server = Server::start(&config).unwrap();
    let address = server.http_address().unwrap();
    (server, address, directory)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends `bytes` and returns the response, read until the server closes.
fn talk(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    let mut response = Vec::new();
    // A client that sends too much may see a reset after the response.
    let _ = stream.read_to_end(&mut response);
    String::from_utf8(response).unwrap()
}

/// Returns status and body.
fn get(address: SocketAddr, path: &str) -> (String, String) {
    let response = talk(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    assert_eq!(length.parse::<usize>().unwrap(), body.len());
    (head["HTTP/1.1 ".len()..][..3].to_owned(), body.to_owned())
}

/// Returns the series of the metrics with their values.
fn metrics(address: SocketAddr) -> BTreeMap<String, f64> {
    let (status, body) = get(address, "/metrics");
    assert_eq!(status, "200");
    assert!(body.ends_with("# EOF\n"), "it is whole");
    let mut series = BTreeMap::new();
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(series.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{name} comes once");
    }
    series
}

/// Sends a request for the record and waits for the answer.
fn ask(server: &Server) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.send_to(&health::request(b"10.1/a").unwrap(), server.addresses()[0]).unwrap();
    socket.recv(&mut [0; 512]).expect("an answer");
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn metrics_have_the_numbers_of_the_statistics() {
    let (server, address, _directory) = start(|_| {});
    server.shared().shards.shard(1).dropped_bug.add(7);
    let series = metrics(address);
    assert_eq!(series["handled_datagrams_dropped_total{reason=\"bug\",shard=\"1\"}"], 7.0);
    assert_eq!(series["handled_datagrams_dropped_total{reason=\"bug\",shard=\"0\"}"], 0.0);
    assert_eq!(series["handled_snapshot_generation"], 1.0);
    assert_eq!(series["handled_snapshot_layers"], 1.0);
    assert_eq!(series["handled_ready"], 1.0);
    assert!(series["handled_snapshot_bytes"] > 100.0 && series["process_open_fds"] > 3.0);
    assert_eq!(series["handled_replies_total{transport=\"udp\",code=\"1\"}"], 0.0, "also what never was");
    let again = metrics(address);
    assert_eq!(
        again["handled_http_requests_total{status=\"200\"}"],
        series["handled_http_requests_total{status=\"200\"}"] + 1.0
    );
    server.stop().unwrap();
}

#[test]
fn says_what_is_wrong_with_a_request() {
    let (server, address, _directory) = start(|config| config.observe.scrape_limits.header_len_max = 256);
    let status = |bytes: &[u8]| talk(address, bytes).get(9..12).unwrap_or_default().to_owned();
    assert_eq!(status(b"GET /nothing HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(status(b"GET /../etc/passwd HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(status(b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), "405");
    assert_eq!(status(b"\x16\x03\x01 this is TLS"), "400");
    assert_eq!(status(b"GET / HTTP/1.1\r\nbad header\r\n\r\n"), "400");
    // Tests a head of exactly the maximum length, and one that is a byte longer.
    let head = |len: usize| {
        let frame = "GET /healthz HTTP/1.1\r\nA: \r\n\r\n";
        frame.replace("A: ", &format!("A: {}", "x".repeat(len - frame.len()))).into_bytes()
    };
    assert_eq!(status(&head(256)), "200");
    assert_eq!(status(&head(257)), "431");
    assert_eq!(status(&vec![b'a'; 300_000]), "431", "and what follows is thrown away");
    let response = talk(address, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("\r\n\r\n"), "{response}");
    server.stop().unwrap();
}

#[test]
fn slow_clients_are_given_up_and_keep_nobody_waiting() {
    let (server, address, _directory) = start(|config| {
        let limits = &mut config.observe.scrape_limits;
        (limits.connections, limits.timeout) = (2, Duration::from_millis(400));
    });
    let mut silent = connect(address);
    let mut slow = connect(address);
    slow.write_all(b"GET /heal").unwrap();
    let started = Instant::now();
    // Both slots are in use; the third connection waits in the kernel until one is closed.
    let (status, _) = get(address, "/healthz");
    assert_eq!(status, "200");
    assert!(started.elapsed() >= Duration::from_millis(300), "there was no place before");
    let mut rest = Vec::new();
    assert_eq!(silent.read_to_end(&mut rest).unwrap_or(0) + slow.read_to_end(&mut rest).unwrap_or(0), 0);
    let series = metrics(address);
    assert_eq!(series["handled_http_abandoned_total"], 2.0);
    // A client that requests a lot and reads nothing is disconnected as well.
    let mut greedy = connect(address);
    greedy.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(get(address, "/healthz").0, "200");
    server.stop().unwrap();
}

#[test]
fn bears_many_scrapes_at_once() {
    let (server, address, _directory) = start(|config| config.observe.scrape_limits.connections = 4);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10).for_each(|_| drop(metrics(address))));
        }
    });
    let series = metrics(address);
    assert_eq!(
        series["handled_http_requests_total{status=\"200\"}"], 80.0,
        "and the one that asks is not over yet"
    );
    server.stop().unwrap();
}

#[test]
fn is_ready_until_it_drains_and_alive_until_the_end() {
    let (server, address, _directory) = start(|_| {});
    assert_eq!(get(address, "/readyz").0, "200");
    assert_eq!(get(address, "/healthz?verbose"), ("200".to_owned(), "ok\n".to_owned()));
    server.shared().drain();
    assert_eq!(get(address, "/readyz"), ("503".to_owned(), "draining\n".to_owned()));
    until("the workers end", || server.is_finished());
    assert_eq!(get(address, "/readyz").0, "503");
    assert_eq!(get(address, "/healthz").0, "200", "it does as it was told");
    server.stop().unwrap();
}

#[test]
fn is_neither_ready_nor_alive_with_a_dead_worker() {
    let (server, address, _directory) = start(|_| {});
    // Simulates a worker that has ended by itself.
    server.shared().running[1].store(false, Ordering::Relaxed);
    for path in ["/readyz", "/healthz"] {
        let (status, body) = get(address, path);
        assert_eq!((status.as_str(), body.as_str()), ("503", "worker 1 has ended\n"), "{path}");
    }
    assert_eq!(metrics(address)["handled_ready"], 0.0);
    server.stop().unwrap();
}

#[test]
fn is_neither_ready_nor_alive_with_a_worker_that_hangs() {
    let (server, address, _directory) = start(|config| config.observe.stalled_after_ms = 200);
    // The workers are asleep, and nothing wakes them.
    std::thread::sleep(Duration::from_millis(200));
    let mut heartbeat = Heartbeat::new(&server.shared().shards);
    while !heartbeat.look(&server.shared().shards, Instant::now()) {}
    let ills = |later| {
        let (shared, now) = (server.shared(), Instant::now() + Duration::from_secs(later));
        health::liveness(shared, &heartbeat, now, Duration::from_secs(5))
    };
    // Since that check, they owe a turn.
    assert!(ills(4).is_empty());
    assert_eq!(ills(6), ["worker 0 has not turned for 6 s", "worker 1 has not turned for 6 s"]);
    // A health check wakes the workers, so they make turns however long they have slept.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(get(address, "/healthz").0, "200");
    let series = metrics(address);
    assert!(series["handled_worker_idle_seconds{shard=\"0\"}"] < 5.0);
    server.shared().drain();
    assert!(ills(6).is_empty(), "a server that drains does not turn for ever");
    server.stop().unwrap();
}

#[test]
fn whatever_is_sent_there_is_one_response_or_none() {
    let (server, address, _directory) = start(|config| {
        let limits = &mut config.observe.scrape_limits;
        (limits.connections, limits.timeout) = (64, Duration::from_millis(300));
    });
    let good = b"GET /healthz HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(4711u64);
    println!("SEED={seed}");
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                let mut random = seed + thread;
                let mut next = |below: usize| {
                    // A linear congruential generator; its upper bits are good enough.
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    (random >> 33) as usize % below
                };
                for _ in 0..50 {
                    let mut bytes = good.to_vec();
                    for _ in 0..next(4) {
                        let at = next(bytes.len());
                        match next(3) {
                            0 => bytes[at] = u8::try_from(next(256)).unwrap(),
                            1 => bytes.truncate(at.max(1)),
                            _ => bytes.insert(at, u8::try_from(next(256)).unwrap()),
                        }
                    }
                    let response = talk(address, &bytes);
                    assert!(
                        response.is_empty() || response.matches("HTTP/1.1 ").count() == 1,
                        "{}",
                        bytes.escape_ascii()
                    );
                }
            });
        }
    });
    assert_eq!(get(address, "/healthz").0, "200");
    server.stop().unwrap();
}

#[test]
fn an_address_that_is_taken_is_an_error_at_the_start() {
    let (server, address, directory) = start(|_| {});
    let mut config = Config {
        snapshot: directory.path().to_owned(),
        listen: vec![([127, 0, 0, 1], 0).into()],
        ..Config::default()
    };
    config.observe.http = Some(address);
    let error = format!("{:#}", Server::start(&config).unwrap_err());
    assert!(error.contains("observe.http") && error.contains(&address.port().to_string()), "{error}");
    server.stop().unwrap();
}

/// Every metric that `text` names, with its label matchers.
fn named(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("handled_").chain(text.match_indices("process_")) {
        if text[..at].ends_with(|before: char| before.is_ascii_alphanumeric() || before == '_') {
            continue;
        }
        let end = text[at..]
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .map_or(text.len(), |len| at + len);
        let selector = text[end..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        found.push((text[at..end].to_owned(), selector.map_or("", |(selector, _)| selector).to_owned()));
    }
    found
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_what_is_there() {
    let (server, address, _directory) = start(|_| {});
    ask(&server);
    let series = metrics(address);
    let read = |file: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/").to_owned() + file;
        std::fs::read_to_string(path).unwrap()
    };
    let board: serde_json::Value = serde_json::from_str(&read("handled-dashboard.json")).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut texts: Vec<String> = targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    assert!(texts.len() > 25, "the dashboard has panels");
    texts.extend(
        board["templating"]["list"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|one| one["definition"].as_str())
            .map(str::to_owned),
    );
    let alerts = read("alerts.yml");
    let rules = alerts.matches("- alert:").count();
    assert_eq!(alerts.matches("severity: ").count(), rules, "every alert has a severity");
    texts.push(alerts);
    let mut count = 0;
    for (name, selector) in texts.iter().flat_map(|text| named(text)) {
        let labels: Vec<String> = selector
            .split(',')
            .filter(|label| {
                label.contains("=\"") && !label.starts_with("job=") && !label.starts_with("instance")
            })
            .map(str::to_owned)
            .collect();
        let is_there = series.keys().any(|one| {
            one.split('{').next() == Some(name.as_str())
                && labels.iter().all(|label| one.contains(label.as_str()))
        });
        assert!(is_there, "{name}{{{selector}}} is not among the metrics");
        count += 1;
    }
    assert!(count > 50, "{count} names were found");
    server.stop().unwrap();
}

#[test]
fn times_and_sources_are_the_same_in_metrics_and_statistics() {
    let (server, address, _directory) = start(|config| config.observe.latency_every = 1);
    for _ in 0..20 {
        ask(&server);
    }
    let series = metrics(address);
    let of = |end: &str, more: &str, transport: &str, way: &str| -> f64 {
        let name = |shard| {
            format!(
                "handled_answer_seconds_{end}{{{more}transport=\"{transport}\",way=\"{way}\",shard=\"{shard}\"}}"
            )
        };
        (0..2).map(|shard| series[&name(shard)]).sum()
    };
    let count = of("count", "", "udp", "worker");
    // The last answer arrives before its batch has ended.
    assert!((19.0..=20.0).contains(&count), "{count}");
    assert_eq!(of("bucket", "le=\"+Inf\",", "udp", "worker"), count);
    let others = [("udp", "slow"), ("tcp", "worker"), ("tcp", "slow")];
    assert_eq!(others.map(|(transport, way)| of("count", "", transport, way)), [0.0; 3]);
    assert_eq!(series["handled_top_source_share{prefix=\"127.0.0.0/24\"}"], 1.0, "cut to its network");
    let stats = server.shared().stats();
    assert_eq!(stats["top_sources"], serde_json::json!([{ "prefix": "127.0.0.0/24", "share": 1.0 }]));
    let times = &stats["total"]["answer_times"]["udp"]["worker"];
    assert!(times["p50_us"].as_f64().unwrap() <= times["p999_us"].as_f64().unwrap(), "{times}");
    server.stop().unwrap();
    let (server, address, _directory) = start(|config| {
        (config.observe.latency_every, config.observe.sources_every) = (0, 0);
    });
    ask(&server);
    let series = metrics(address);
    let measured = series.iter().filter(|(name, _)| name.starts_with("handled_answer_seconds_count"));
    assert_eq!(measured.map(|(_, count)| count).sum::<f64>(), 0.0);
    assert!(!series.keys().any(|name| name.starts_with("handled_top_source_share")));
    server.stop().unwrap();
}
