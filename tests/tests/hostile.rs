//! Random and mutated datagrams: the server goes on, and every one of them is accounted for.
//!
//! `HANDLE_HOSTILE_DATAGRAMS` says how many; `docs/fuzzing.md` how to send millions to a server that watches its
//! memory.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_server::Server;
use handle_server::config::Datapath;
use handle_server::counters::Counters;
use handle_snapshot::set::publisher::Publisher;
use handle_tests::client::{Client, request};
use handle_tests::{records, served, vectors};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Datagrams that may be under way: the queue of the socket holds more, so that none is dropped unread.
const UNDER_WAY_MAX: u64 = 2_000;

/// How many datagrams are sent.
fn datagrams_count() -> u64 {
    let count = std::env::var("HANDLE_HOSTILE_DATAGRAMS").ok();
    count.map_or(100_000, |count| count.parse().expect("HANDLE_HOSTILE_DATAGRAMS is a number"))
}

/// A datagram that somebody might send who means no good.
fn hostile(random: &mut StdRng, good: &[Vec<u8>]) -> Vec<u8> {
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
            // Lengths and counts at their edges.
            _ => {
                let edge: u32 = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff][random.random_range(0..5)];
                let end = (at + 4).min(datagram.len());
                datagram[at..end].copy_from_slice(&edge.to_be_bytes()[..end - at]);
            }
        }
    }
    datagram
}

fn survive_on(datapath: Datapath) {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(4711);
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let records = records::load();
    let directory = tempfile::tempdir().unwrap();
    records::publish(&mut Publisher::open(directory.path()).unwrap(), &records, 1);
    let server = Server::start(&served::config(directory.path(), datapath)).unwrap();
    let address = server.addresses()[0];
    let mut good: Vec<Vec<u8>> =
        records.iter().take(100).map(|record| request(record.handle.as_bytes(), 7)).collect();
    for line in vectors::load("conversations.jsonl") {
        good.extend(line["request_hex"].as_array().into_iter().flatten().map(vectors::hex));
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    let mut client = Client::new(address);
    let mut asked = 0;
    let (count, started) = (datagrams_count(), Instant::now());
    let shards = server.shared().shards.clone();
    let sum = |counter: fn(&Counters) -> &handle_server::counters::Counter| shards.sum(counter);
    let all = || sum(|c| &c.datagrams_received) + sum(|c| &c.dropped_by_kernel);
    for sent in 0..count {
        // Dropped datagrams are told late, so this does not wait for ever.
        let deadline = Instant::now() + Duration::from_secs(10);
        while sent + asked > all() + UNDER_WAY_MAX && Instant::now() < deadline {
            std::thread::yield_now();
        }
        socket.send(&hostile(&mut random, &good)).unwrap();
        if sent.is_multiple_of(10_000) {
            let answer = client.resolve(records[0].handle.as_bytes()).expect("it still answers");
            assert_eq!((answer.code, &answer.values), (ResponseCode::SUCCESS, &records[0].values));
            asked += 1;
        }
    }
    // What the kernel still holds is received soon; what it dropped is told when it is quiet.
    let deadline = Instant::now() + Duration::from_secs(10);
    while all() < count + asked && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Stopped, so that no batch is half counted.
    server.stop().unwrap();
    assert_eq!(all(), count + asked, "every datagram was received, or dropped by the kernel");
    let accounted = sum(|c| &c.requests_answered)
        + sum(|c| &c.requests_under_way)
        + sum(|c| &c.fragments_kept)
        + sum(|c| &c.dropped_error_reply)
        + sum(|c| &c.dropped_fragment_invalid)
        + sum(|c| &c.dropped_fragment_too_long)
        + sum(|c| &c.dropped_fragment_no_room)
        + sum(|c| &c.dropped_fragment_repeated)
        + sum(|c| &c.dropped_rate_limited)
        + sum(|c| &c.dropped_bug);
    assert_eq!(accounted, sum(|c| &c.datagrams_received), "and every one received is in one account");
    assert_eq!(sum(|c| &c.dropped_bug), 0, "none met a bug");
    println!(
        "{count} datagrams in {:.0} s: {} received, {} dropped by the kernel, {} answered",
        started.elapsed().as_secs_f64(),
        sum(|c| &c.datagrams_received),
        sum(|c| &c.dropped_by_kernel),
        sum(|c| &c.requests_answered),
    );
}

#[test]
fn survives_hostile_datagrams_on_the_portable_datapath() {
    survive_on(Datapath::Portable);
}

#[test]
fn survives_hostile_datagrams_on_the_datapath_of_this_machine() {
    survive_on(Datapath::Auto);
}
