//! Cost of the rate limit for one answer, with several populations of clients.

use criterion::{Criterion, Throughput, criterion_group};
use handle_net::Peer;
use handle_worker::counters::Counters;
use handle_worker::rate_limit::{AnswerSize, LimitVerdict, RateLimit, RateLimitConfig};
use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

const ADDRESSES_COUNT: usize = 1 << 20;
/// Answers between two readings of the clock, as in a full batch.
const BATCH_LEN: usize = 64;

fn mixed(at: usize) -> u64 {
    let mixed = (at as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn v4(bits: u64) -> IpAddr {
    let [a, b, c, d, ..] = bits.to_be_bytes();
    IpAddr::from([a, b, c, d])
}

fn v6(bits: u64) -> IpAddr {
    IpAddr::V6((u128::from(bits) << 64 | u128::from(bits.rotate_left(17))).into())
}

/// Inputs: 4,096 clients with equal rates, one source, a forged source for each request, and this
/// host, which has no limit.
fn inputs() -> [(&'static str, Vec<Peer>); 7] {
    let each = |address: fn(usize) -> IpAddr| {
        (0..ADDRESSES_COUNT).map(|at| Peer::to((address(at), 2641).into())).collect()
    };
    [
        ("exempt", each(|_| IpAddr::from([127, 0, 0, 1]))),
        ("ipv4/uniform", each(|at| v4(mixed(at.wrapping_mul(31) % 4096)))),
        ("ipv4/one_source", each(|_| v4(mixed(0)))),
        ("ipv4/spoofed", each(|at| v4(mixed(at)))),
        ("ipv6/uniform", each(|at| v6(mixed(at.wrapping_mul(31) % 4096)))),
        ("ipv6/one_source", each(|_| v6(mixed(0)))),
        ("ipv6/spoofed", each(|at| v6(mixed(at)))),
    ]
}

/// Measures the verdict for answers that all differ, as a cache asks for them.
fn rate_limit(c: &mut Criterion) {
    let config = RateLimitConfig::default();
    let counters = Counters::default();
    let mut group = c.benchmark_group("rate_limit");
    group.throughput(Throughput::Elements(BATCH_LEN as u64));
    for (name, peers) in inputs() {
        let mut rate_limit = RateLimit::open(&config, 1).expect("the limit is on");
        let mut at = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                rate_limit.set_time(Instant::now());
                let batch = &peers[at..at + BATCH_LEN];
                let mut sent = 0;
                for (offset, peer) in batch.iter().enumerate() {
                    let identity = mixed(at + offset) >> 20;
                    let answer = AnswerSize { len: 287, datagrams: 1, identity };
                    let verdict = rate_limit.verdict(*black_box(peer), answer, 85, &counters);
                    sent += usize::from(verdict == LimitVerdict::Send);
                }
                at = (at + BATCH_LEN) % ADDRESSES_COUNT;
                sent
            });
        });
    }
}

criterion_group!(benches, rate_limit);
