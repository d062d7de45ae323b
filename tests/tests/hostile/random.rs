//! Random and mutated datagrams and streams: the server keeps serving, and counts each of them
//! once. A cache gets mutated answers as well, and believes none that says something else.
//!
//! `HANDLE_HOSTILE_DATAGRAMS`, `HANDLE_HOSTILE_STREAMS` and `HANDLE_HOSTILE_ANSWERS` set their
//! numbers. `docs/fuzzing.md` tells how to send millions to a server that watches its memory.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_cache::entry::{AnswerTtl, set_ttl};
use handle_proto::wire::{Body, Envelope, Message, Reply, Response};
use handle_proto::{ResponseCode, Value, fold};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::cache_server::TestCache;
use handle_tests::client::{TestClient, request};
use handle_tests::mutator::{MutatorServer, mutate};
use handle_tests::process::until;
use handle_tests::records::Record;
use handle_tests::vectors::VectorSource;
use handle_tests::{records, test_server, vectors};
use handle_worker::Server;
use handle_worker::config::Datapath;
use handle_worker::counters::Counters;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Most datagrams under way. The queue of the socket holds more, so that the kernel drops few.
const UNDER_WAY_MAX: u64 = 2_000;

/// Streams at a time.
const STREAMS_MAX: u64 = 4;

/// The number in an environment variable, or `else_count`.
fn count_of(variable: &str, else_count: u64) -> u64 {
    std::env::var(variable).map_or(else_count, |count| count.parse().expect("the variable is a number"))
}

fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(4711);
    println!("SEED={seed}");
    seed
}

/// A random or mutated datagram.
fn hostile_datagram(random: &mut StdRng, good: &[Vec<u8>]) -> Vec<u8> {
    if random.random_ratio(1, 4) {
        let len = random.random_range(0..600);
        return (0..len).map(|_| random.random()).collect();
    }
    let mut datagram = good[random.random_range(0..good.len())].clone();
    mutate(random, &mut datagram);
    datagram
}

/// A server, its records, and valid requests.
struct HostileTarget {
    server: Server,
    records: Vec<Record>,
    good: Vec<Vec<u8>>,
    /// The server that is asked, if `server` is a cache.
    _origin: Option<Server>,
    _directory: TempDir,
}

/// The server in question.
#[derive(Clone, Copy, Debug)]
enum ServerKind {
    Handled,
    Cache,
}

impl HostileTarget {
    fn start(kind: ServerKind, datapath: Datapath) -> Self {
        let mut target = serve(datapath);
        if matches!(kind, ServerKind::Cache) {
            let origin = target.server;
            let cache = TestCache::of(origin.addresses()[0], |config| {
                config.datapath = datapath;
                (config.upstream.timeout_ms, config.upstream.failures_per_prefix) = (1000, 1000);
            });
            (target.server, target._origin) = (cache.server, Some(origin));
        }
        target
    }

    /// Checks that the server answers with its first record.
    fn check(&self, client: &mut TestClient) {
        let answer = client.resolve(self.records[0].handle.as_bytes()).expect("an answer");
        let mut values = [answer.values, self.records[0].values.clone()];
        // A cache counts them down.
        values.iter_mut().for_each(|values| set_ttl(values, AnswerTtl::Stale(0)));
        assert_eq!((answer.code, &values[0]), (ResponseCode::SUCCESS, &values[1]));
    }
}

fn serve(datapath: Datapath) -> HostileTarget {
    let records = records::load();
    let directory = tempfile::tempdir().unwrap();
    records::publish(&mut SetPublisher::open(directory.path()).unwrap(), &records, 1);
    let server = Server::start(&test_server::config(directory.path(), datapath)).unwrap();
    let mut good: Vec<Vec<u8>> =
        records.iter().take(100).map(|record| request(record.handle.as_bytes(), 7)).collect();
    for line in VectorSource::Own.lines("conversations.jsonl") {
        good.extend(line["request_hex"].as_array().into_iter().flatten().map(vectors::hex));
    }
    HostileTarget { server, records, good, _origin: None, _directory: directory }
}

fn check_datagrams(kind: ServerKind, datapath: Datapath, default_count: u64) {
    let mut random = StdRng::seed_from_u64(seed());
    let target = HostileTarget::start(kind, datapath);
    let address = target.server.addresses()[0];
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    let mut client = TestClient::new(address);
    let mut answers_count = 0;
    let (count, started) = (count_of("HANDLE_HOSTILE_DATAGRAMS", default_count), Instant::now());
    let shards = target.server.shared().shards.clone();
    let sum = |counter: fn(&Counters) -> &handle_worker::counters::Counter| shards.sum(counter);
    let all = || sum(|c| &c.datagrams_received) + sum(|c| &c.dropped_by_kernel);
    for sent in 0..count {
        // Drops by the kernel are reported late, so this wait is bounded.
        let deadline = Instant::now() + Duration::from_secs(10);
        while sent + answers_count > all() + UNDER_WAY_MAX && Instant::now() < deadline {
            std::thread::yield_now();
        }
        socket.send(&hostile_datagram(&mut random, &target.good)).unwrap();
        if sent.is_multiple_of(10_000) {
            target.check(&mut client);
            answers_count += 1;
        }
    }
    // The server reads what the kernel still holds, and the number of drops when it is idle.
    let deadline = Instant::now() + Duration::from_secs(10);
    while all() < count + answers_count && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    // After the stop, all counters are complete.
    target.server.stop().unwrap();
    assert_eq!(all(), count + answers_count, "every datagram was received, or dropped by the kernel");
    let accounted = sum(|c| &c.requests_answered)
        + sum(|c| &c.requests_under_way)
        + sum(|c| &c.fragments_kept)
        + sum(|c| &c.dropped_error_reply)
        + sum(|c| &c.dropped_too_short)
        + sum(|c| &c.dropped_fragment_invalid)
        + sum(|c| &c.dropped_fragment_too_long)
        + sum(|c| &c.dropped_fragment_buffer_full)
        + sum(|c| &c.dropped_fragment_repeated)
        + sum(|c| &c.dropped_rate_limited)
        + sum(|c| &c.dropped_bug);
    assert_eq!(accounted, sum(|c| &c.datagrams_received), "every received datagram is counted once");
    assert_eq!(sum(|c| &c.dropped_bug), 0, "no datagram met a bug");
    println!(
        "{count} datagrams in {:.0} s: {} received, {} dropped by the kernel, {} answered",
        started.elapsed().as_secs_f64(),
        sum(|c| &c.datagrams_received),
        sum(|c| &c.dropped_by_kernel),
        sum(|c| &c.requests_answered),
    );
}

/// Several messages, some of them hostile, which may be cut off anywhere.
fn hostile_stream(random: &mut StdRng, good: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..random.random_range(1..5) {
        match random.random_ratio(1, 2) {
            true => stream.extend(hostile_datagram(random, good)),
            false => stream.extend(&good[random.random_range(0..good.len())]),
        }
    }
    if random.random_ratio(1, 4) {
        stream.truncate(random.random_range(0..=stream.len()));
    }
    stream
}

/// Sends a hostile stream and ends it in one of several ways. The server ends its side in any case.
fn send_hostile_stream(address: SocketAddr, random: &mut StdRng, good: &[Vec<u8>]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let bytes = hostile_stream(random, good);
    let half = random.random_range(0..=bytes.len());
    // The server may close the connection after the first part, and reset it for the rest.
    let sent = stream.write_all(&bytes[..half]).and_then(|()| stream.write_all(&bytes[half..]));
    let ended = sent.and_then(|()| stream.shutdown(Shutdown::Write));
    if ended.is_ok()
        && random.random_ratio(3, 4)
        && let Err(error) = stream.read_to_end(&mut Vec::new())
    {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the server ends the connection");
    }
    // Otherwise it is closed with unread data, which resets it.
}

fn check_streams(kind: ServerKind, datapath: Datapath, default_count: u64) {
    let seed = seed();
    let target = HostileTarget::start(kind, datapath);
    let address = target.server.addresses()[0];
    let (count, started) = (count_of("HANDLE_HOSTILE_STREAMS", default_count), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..STREAMS_MAX {
            let target = &target;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed + thread);
                let mut client = TestClient::new(address);
                for sent in (thread..count).step_by(usize::try_from(STREAMS_MAX).unwrap()) {
                    send_hostile_stream(address, &mut random, &target.good);
                    if sent % 1_000 == thread {
                        target.check(&mut client);
                    }
                }
            });
        }
    });
    let shards = target.server.shared().shards.clone();
    let sum = |counter: fn(&Counters) -> &handle_worker::counters::Counter| shards.sum(counter);
    let closed = || {
        sum(|c| &c.tcp_closed_done)
            + sum(|c| &c.tcp_closed_ended)
            + sum(|c| &c.tcp_closed_cut_off)
            + sum(|c| &c.tcp_closed_broken)
            + sum(|c| &c.tcp_closed_unreadable)
            + sum(|c| &c.tcp_closed_idle)
            + sum(|c| &c.tcp_closed_half_request)
            + sum(|c| &c.tcp_closed_slow_reader)
            + sum(|c| &c.tcp_closed_evicted)
            + sum(|c| &c.tcp_closed_buffer_full)
            + sum(|c| &c.tcp_closed_drained)
    };
    until("all connections are accepted and closed", || closed() == count);
    target.server.stop().unwrap();
    assert_eq!((sum(|c| &c.tcp_accepted), closed()), (count, count), "each stream is counted once");
    let refused = sum(|c| &c.tcp_refused_full) + sum(|c| &c.tcp_refused_source);
    assert_eq!(
        (refused, sum(|c| &c.tcp_connections), sum(|c| &c.tcp_input_bytes)),
        (0, 0, 0),
        "no connection is left"
    );
    assert_eq!(sum(|c| &c.tcp_dropped_bug), 0, "no stream met a bug");
    println!(
        "{count} streams in {:.0} s: {} requests answered, {} told that they are none",
        started.elapsed().as_secs_f64(),
        sum(|c| &c.tcp_requests_answered),
        sum(|c| &c.tcp_notices),
    );
}

#[test]
fn survives_hostile_datagrams_on_the_portable_datapath() {
    check_datagrams(ServerKind::Handled, Datapath::Portable, 100_000);
}

#[test]
fn survives_hostile_datagrams_on_the_datapath_of_this_machine() {
    check_datagrams(ServerKind::Handled, Datapath::Auto, 100_000);
}

#[test]
fn survives_hostile_streams_on_the_portable_datapath() {
    check_streams(ServerKind::Handled, Datapath::Portable, 4_000);
}

#[test]
fn survives_hostile_streams_on_the_datapath_of_this_machine() {
    check_streams(ServerKind::Handled, Datapath::Auto, 4_000);
}

#[test]
fn a_cache_survives_hostile_datagrams() {
    check_datagrams(ServerKind::Cache, Datapath::Auto, 20_000);
}

#[test]
fn a_cache_survives_hostile_streams() {
    check_streams(ServerKind::Cache, Datapath::Auto, 1_000);
}

/// The data of the public values that an answer about `handle` says it has, if it is one that may
/// be believed: a whole message that decodes. Without values, it is one that says that there are
/// none.
fn believable(answer: &[u8], handle: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (envelope, rest) = Envelope::split(answer).ok()?;
    let message = Message::decode(rest).ok()?;
    let none = [ResponseCode::HANDLE_NOT_FOUND, ResponseCode::VALUES_NOT_FOUND];
    match message.decode_body(envelope.version).ok()? {
        Body::Reply(Reply { response: Response::Answer(answer), .. }) if fold::eq(answer.handle, handle) => {
            Some(answer.values.iter().filter(Value::is_public).map(|value| value.data.to_vec()).collect())
        }
        Body::Reply(_) if none.contains(&message.header.response_code) => Some(vec![]),
        _ => None,
    }
}

#[test]
fn mutated_answers_enter_the_cache_only_as_what_they_say() {
    const THREADS: u64 = 16;
    let (count, started) = (count_of("HANDLE_HOSTILE_ANSWERS", 2_000), Instant::now());
    let upstream = MutatorServer::start(seed());
    let cache = TestCache::of(upstream.address, |config| {
        (config.upstream.timeout_ms, config.upstream.failure_ms) = (300, 0);
        config.cache.bytes = 64 << 20;
    });
    let name = |n: u64| format!("10.1/{n}");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, upstream) = (&cache, &upstream);
            scope.spawn(move || {
                let mut client = TestClient::new(cache.address());
                for n in (thread..count).step_by(usize::try_from(THREADS).unwrap()) {
                    let (handle, answer) = (name(n), client.resolve(name(n).as_bytes()).expect("an answer"));
                    if answer.code == ResponseCode::SUCCESS {
                        assert_eq!(answer.handle, handle.as_bytes());
                    }
                    let known = cache.run(&format!("cache-get {handle}"));
                    for entry in known["entries"].as_array().unwrap() {
                        let shown = |data: &Vec<u8>| String::from_utf8_lossy(data).into_owned();
                        let data: Vec<String> = entry["values"]
                            .as_array()
                            .unwrap()
                            .iter()
                            .map(|value| value["data"].as_str().unwrap().to_owned())
                            .collect();
                        let answers = upstream.answers(handle.as_bytes());
                        let mut said =
                            answers.iter().filter_map(|answer| believable(answer, handle.as_bytes()));
                        let is_said = said.any(|said| said.iter().map(shown).collect::<Vec<_>>() == data);
                        assert!(is_said, "{entry} of {answers:02x?}");
                    }
                }
            });
        }
    });
    let entries = cache.count("entries");
    println!("{} mutated answers in {:?}: {entries} entries", upstream.count(), started.elapsed());
    assert!(entries > count / 10 && entries < count, "{entries}");
    let dropped = cache.server.shared().shards.sum(|counters| &counters.dropped_bug);
    assert_eq!((dropped, upstream.count() >= count), (0, true));
}
