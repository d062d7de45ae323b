//! Response-rate limiting: floods from addresses that may be forged, and service for other clients.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_proto::wire::{Envelope, Header};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::request;
use handle_tests::{records, test_server};
use handle_worker::Server;
use handle_worker::config::Datapath;
use handle_worker::counters::{Counter, Counters};
use handle_worker::rate_limit::{RateLimitConfig, SLIP_LEN};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct RateLimitedServer {
    server: Server,
    handle: Vec<u8>,
    _directory: TempDir,
}

impl RateLimitedServer {
    /// Serves the records of the vectors.
    fn start(rate_limit: RateLimitConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let records = records::load();
        records::publish(&mut SetPublisher::open(directory.path()).unwrap(), &records, 1);
        let mut config = test_server::config(directory.path(), Datapath::Auto);
        config.rate_limit = rate_limit;
        let handle = records[0].handle.as_bytes().to_vec();
        Self { server: Server::start(&config).unwrap(), handle, _directory: directory }
    }

    fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    fn sum(&self, counter: fn(&Counters) -> &Counter) -> u64 {
        self.server.shared().shards.sum(counter)
    }

    /// Waits until the server has received `sent` datagrams, except for those that the kernel
    /// dropped.
    fn settle(&self, sent: u64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let all = || self.sum(|c| &c.datagrams_received) + self.sum(|c| &c.dropped_by_kernel);
        while all() < sent && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(all(), sent, "every datagram arrived, or was dropped by the kernel");
    }
}

/// A client with its own address on loopback.
struct FloodSource(UdpSocket);

impl FloodSource {
    fn new(address: [u8; 4], server: SocketAddr) -> Self {
        let socket = UdpSocket::bind(SocketAddr::from((address, 0))).unwrap();
        socket.connect(server).unwrap();
        Self(socket)
    }

    fn ask(&self, datagram: &[u8]) -> u64 {
        self.0.send(datagram).unwrap();
        datagram.len() as u64
    }

    /// All datagrams received until there is none for a while.
    fn received(&self) -> Vec<Vec<u8>> {
        self.0.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut buffer = [0; 2048];
        std::iter::from_fn(|| self.0.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())).collect()
    }
}

fn code_of(datagram: &[u8]) -> ResponseCode {
    Header::split(Envelope::split(datagram).unwrap().1).unwrap().0.response_code
}

/// 20 datagrams per second to an address and 40 to a /24, with twice as many in a burst.
fn strict_limits() -> RateLimitConfig {
    RateLimitConfig {
        enabled: true,
        address_per_s: 20,
        network_per_s: 40,
        burst_ms: 2000,
        slip: 2,
        ..RateLimitConfig::default()
    }
}

#[test]
fn a_flood_from_one_address_is_limited_and_others_are_answered() {
    let limited = RateLimitedServer::start(strict_limits());
    let (flooding, other) = (
        FloodSource::new([127, 1, 1, 1], limited.address()),
        FloodSource::new([127, 1, 1, 2], limited.address()),
    );
    let datagram = request(&limited.handle, 7);
    let started = Instant::now();
    // In portions that fit into the socket buffers.
    let (mut answers, mut sent) = (Vec::new(), 0);
    for _ in 0..10 {
        for _ in 0..40 {
            flooding.ask(&datagram);
        }
        other.ask(&datagram);
        sent += 41;
        limited.settle(sent);
        answers.extend(flooding.received());
    }
    let seconds = started.elapsed().as_secs_f64();
    let (good, slipped): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| code_of(answer) == ResponseCode::SUCCESS);
    let most = 40.0 + 20.0 * seconds + 1.0;
    assert!(good.len() >= 40 && good.len() as f64 <= most, "{} answers in {seconds} s", good.len());
    assert_eq!(slipped.len(), (400 - good.len()) / 2, "every second limited answer slips");
    for datagram in slipped {
        assert_eq!((code_of(datagram), datagram.len()), (ResponseCode::ERROR, SLIP_LEN));
        assert_eq!(Envelope::split(datagram).unwrap().0.request_id, 7);
    }
    let others = other.received();
    assert_eq!(others.len(), 10, "the other address is answered");
    assert!(others.iter().all(|answer| code_of(answer) == ResponseCode::SUCCESS));
    assert_eq!(limited.sum(|c| &c.requests_answered), (answers.len() + others.len()) as u64);
    assert_eq!(limited.sum(|c| &c.requests_answered) + limited.sum(|c| &c.dropped_rate_limited), sent);
    assert_eq!(limited.sum(|c| &c.rate_limit_slipped), (400 - good.len()) as u64 / 2);
}

#[test]
fn a_flood_from_forged_addresses_gets_at_most_its_own_bytes_back() {
    let limited = RateLimitedServer::start(strict_limits());
    let datagram = request(&limited.handle, 7);
    // Eight networks of 64 addresses: each address stays below its limit, the networks do not.
    let sources: Vec<_> = (0..512_u16)
        .map(|at| {
            FloodSource::new(
                [127, 2, u8::try_from(at / 64).unwrap(), u8::try_from(at % 64).unwrap()],
                limited.address(),
            )
        })
        .collect();
    let (mut bytes_sent, mut datagrams_sent) = (0, 0);
    for _ in 0..30 {
        for source in &sources {
            bytes_sent += source.ask(&datagram);
            datagrams_sent += 1;
        }
        limited.settle(datagrams_sent);
    }
    let mut bytes_back = 0;
    for source in &sources {
        source.0.set_nonblocking(true).unwrap();
        let mut buffer = [0; 2048];
        while let Ok(len) = source.0.recv(&mut buffer) {
            bytes_back += len as u64;
        }
    }
    assert!(limited.sum(|c| &c.dropped_rate_limited) > 0, "the limit was not reached");
    assert!(bytes_back > 0 && bytes_back <= bytes_sent, "{bytes_back} bytes for {bytes_sent}");
    assert!(limited.sum(|c| &c.bytes_sent) <= limited.sum(|c| &c.bytes_received));
    // The networks have had their burst, and less than half of the flood an error.
    let most = limited.sum(|c| &c.bytes_received) / 2;
    assert!(limited.sum(|c| &c.bytes_sent) < most + 8 * 1000 * 400, "{most}");
}

#[test]
fn exempt_addresses_have_no_limit() {
    let limited = RateLimitedServer::start(RateLimitConfig {
        exempt: vec!["127.3.1.0/24".parse().unwrap()],
        ..strict_limits()
    });
    let (listed, beside) = (
        FloodSource::new([127, 3, 1, 1], limited.address()),
        FloodSource::new([127, 3, 2, 1], limited.address()),
    );
    let datagram = request(&limited.handle, 7);
    for source in [&listed, &beside] {
        for _ in 0..200 {
            source.ask(&datagram);
        }
    }
    limited.settle(400);
    assert!(listed.received().iter().all(|answer| code_of(answer) == ResponseCode::SUCCESS));
    assert_eq!(limited.sum(|c| &c.rate_limit_exempt), 200);
    assert!(limited.sum(|c| &c.dropped_rate_limited) > 0, "other addresses are limited");
}

#[test]
fn a_dry_run_answers_everything_and_counts() {
    let limited = RateLimitedServer::start(RateLimitConfig { dry_run: true, ..strict_limits() });
    let source = FloodSource::new([127, 4, 1, 1], limited.address());
    for _ in 0..200 {
        source.ask(&request(&limited.handle, 7));
    }
    limited.settle(200);
    assert_eq!(limited.sum(|c| &c.requests_answered), 200);
    let counted = limited.sum(|c| &c.rate_limit_dry_run);
    assert!((1..=160).contains(&counted), "{counted}");
    assert_eq!(limited.sum(|c| &c.dropped_rate_limited) + limited.sum(|c| &c.rate_limit_slipped), 0);
}

#[test]
fn datagrams_shorter_than_an_envelope_get_no_answer_and_count_for_no_limit() {
    let limited = RateLimitedServer::start(RateLimitConfig { slip: 1, ..strict_limits() });
    let source = FloodSource::new([127, 5, 1, 1], limited.address());
    for _ in 0..200 {
        source.ask(b"x");
    }
    limited.settle(200);
    assert_eq!(limited.sum(|c| &c.dropped_too_short), 200);
    assert_eq!(limited.sum(|c| &c.rate_limit_slipped) + limited.sum(|c| &c.requests_answered), 0);
}
