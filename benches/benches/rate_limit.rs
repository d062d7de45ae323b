//! What limiting costs for an answer: the decision, for peers as a worker has them.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use handle_server::rate_limit::{Limiter, RateLimitConfig, Seed};
use std::hint::black_box;
use std::net::IpAddr;

const ADDRESSES_COUNT: usize = 1 << 20;
/// Answers between two looks at the clock, as in a full batch.
const BATCH_LEN: usize = 64;
/// One answer in 2.5 us, as from a core that answers one datagram at a time.
const ANSWER_NS: u64 = 2_500;

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

/// Inputs: 4,096 clients alike, one source that floods, and a source invented for each request.
fn inputs() -> [(&'static str, Vec<IpAddr>); 6] {
    let each = |address: fn(usize) -> IpAddr| (0..ADDRESSES_COUNT).map(address).collect();
    [
        ("ipv4/uniform", each(|at| v4(mixed(at.wrapping_mul(31) % 4096)))),
        ("ipv4/one_source", each(|_| v4(mixed(0)))),
        ("ipv4/spoofed", each(|at| v4(mixed(at)))),
        ("ipv6/uniform", each(|at| v6(mixed(at.wrapping_mul(31) % 4096)))),
        ("ipv6/one_source", each(|_| v6(mixed(0)))),
        ("ipv6/spoofed", each(|at| v6(mixed(at)))),
    ]
}

fn rate_limit(c: &mut Criterion) {
    let config = RateLimitConfig { enabled: true, ..Default::default() };
    let mut group = c.benchmark_group("rate_limit");
    group.throughput(Throughput::Elements(BATCH_LEN as u64));
    for (name, addresses) in inputs() {
        let seed = Seed(std::array::from_fn(mixed));
        let mut limiter = Limiter::new(&config.limits(1), config.table_bytes, seed);
        let (mut at, mut now_ns) = (0, 0);
        group.bench_function(name, |b| {
            b.iter(|| {
                now_ns += ANSWER_NS * BATCH_LEN as u64;
                let batch = &addresses[at..at + BATCH_LEN];
                at = (at + BATCH_LEN) % ADDRESSES_COUNT;
                batch.iter().filter(|address| limiter.allows(**black_box(address), 1, now_ns)).count()
            });
        });
    }
}

criterion_group!(benches, rate_limit);
criterion_main!(benches);
