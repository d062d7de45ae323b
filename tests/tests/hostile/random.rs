//! Random and mutated datagrams and streams: the server keeps serving, and counts each of them
//! once.
//!
//! `HANDLE_HOSTILE_DATAGRAMS` and `HANDLE_HOSTILE_STREAMS` set their numbers. `docs/fuzzing.md`
//! tells how to send millions to a server that watches its memory.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_server::Server;
use handle_server::config::Datapath;
use handle_server::counters::Counters;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::{TestClient, request};
use handle_tests::process::until;
use handle_tests::records::Record;
use handle_tests::vectors::VectorSource;
use handle_tests::{records, test_server, vectors};
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
    for _ in 0..random.random_range(0..4) {
        if datagram.is_empty() {
            break;
        }
        let at = random.random_range(0..datagram.len());
        match random.random_range(0..5) {
            0 => datagram[at] = random.random(),
            1 => datagram[at] ^= 1 << random.random_range(0..8),
            2 => datagram.truncate(at),
            3 => datagram.insert(at, random.random()),
            // Extreme lengths and counts.
            _ => {
                let edge: u32 = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff][random.random_range(0..5)];
                let end = (at + 4).min(datagram.len());
                datagram[at..end].copy_from_slice(&edge.to_be_bytes()[..end - at]);
            }
        }
    }
    datagram
}

/// A server, its records, and valid requests.
struct HostileTarget {
    server: Server,
    records: Vec<Record>,
    good: Vec<Vec<u8>>,
    _directory: TempDir,
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
    HostileTarget { server, records, good, _directory: directory }
}

fn check_datagrams(datapath: Datapath) {
    let mut random = StdRng::seed_from_u64(seed());
    let HostileTarget { server, records, good, _directory } = serve(datapath);
    let address = server.addresses()[0];
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    let mut client = TestClient::new(address);
    let mut answers_count = 0;
    let (count, started) = (count_of("HANDLE_HOSTILE_DATAGRAMS", 100_000), Instant::now());
    let shards = server.shared().shards.clone();
    let sum = |counter: fn(&Counters) -> &handle_server::counters::Counter| shards.sum(counter);
    let all = || sum(|c| &c.datagrams_received) + sum(|c| &c.dropped_by_kernel);
    for sent in 0..count {
        // Drops by the kernel are reported late, so this wait is bounded.
        let deadline = Instant::now() + Duration::from_secs(10);
        while sent + answers_count > all() + UNDER_WAY_MAX && Instant::now() < deadline {
            std::thread::yield_now();
        }
        socket.send(&hostile_datagram(&mut random, &good)).unwrap();
        if sent.is_multiple_of(10_000) {
            let answer = client.resolve(records[0].handle.as_bytes()).expect("an answer");
            assert_eq!((answer.code, &answer.values), (ResponseCode::SUCCESS, &records[0].values));
            answers_count += 1;
        }
    }
    // The server reads what the kernel still holds, and the number of drops when it is idle.
    let deadline = Instant::now() + Duration::from_secs(10);
    while all() < count + answers_count && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    // After the stop, all counters are complete.
    server.stop().unwrap();
    assert_eq!(all(), count + answers_count, "every datagram was received, or dropped by the kernel");
    let accounted = sum(|c| &c.requests_answered)
        + sum(|c| &c.requests_under_way)
        + sum(|c| &c.fragments_kept)
        + sum(|c| &c.dropped_error_reply)
        + sum(|c| &c.dropped_too_short)
        + sum(|c| &c.dropped_fragment_invalid)
        + sum(|c| &c.dropped_fragment_too_long)
        + sum(|c| &c.dropped_fragment_no_room)
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

fn check_streams(datapath: Datapath) {
    let seed = seed();
    let HostileTarget { server, records, good, _directory } = serve(datapath);
    let address = server.addresses()[0];
    let (count, started) = (count_of("HANDLE_HOSTILE_STREAMS", 4_000), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..STREAMS_MAX {
            let (good, records) = (&good, &records);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed + thread);
                let mut client = TestClient::new(address);
                for sent in (thread..count).step_by(usize::try_from(STREAMS_MAX).unwrap()) {
                    send_hostile_stream(address, &mut random, good);
                    if sent % 1_000 == thread {
                        let answer = client.resolve(records[0].handle.as_bytes()).expect("an answer");
                        assert_eq!(answer.values, records[0].values);
                    }
                }
            });
        }
    });
    let shards = server.shared().shards.clone();
    let sum = |counter: fn(&Counters) -> &handle_server::counters::Counter| shards.sum(counter);
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
            + sum(|c| &c.tcp_closed_no_room)
            + sum(|c| &c.tcp_closed_drained)
    };
    until("all connections are accepted and closed", || closed() == count);
    server.stop().unwrap();
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
    check_datagrams(Datapath::Portable);
}

#[test]
fn survives_hostile_datagrams_on_the_datapath_of_this_machine() {
    check_datagrams(Datapath::Auto);
}

#[test]
fn survives_hostile_streams_on_the_portable_datapath() {
    check_streams(Datapath::Portable);
}

#[test]
fn survives_hostile_streams_on_the_datapath_of_this_machine() {
    check_streams(Datapath::Auto);
}
