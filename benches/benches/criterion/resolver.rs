//! From request datagrams to written replies, without a socket: the user time of an answer except
//! for the datapath.

use criterion::{Criterion, Throughput, criterion_group};
use handle_benches::answers::{Answerer, BATCH_LEN};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::sets;

const REQUESTS_COUNT: usize = 1 << 20;

fn resolver(c: &mut Criterion) {
    for size in sets::sizes() {
        let set = sets::open(size).expect("a set can be built");
        sets::warm(&set);
        for (ask, name) in RequestKind::ALL {
            let count = match ask {
                _ if sets::is_test() => 1_024,
                RequestKind::Plain => REQUESTS_COUNT,
                // Shows the computation; `plain` shows the access to memory.
                _ => REQUESTS_COUNT / 16,
            };
            let requests = Requests::new(size, count, ask, 1).expect("the vectors can be read");
            let mut answerer = Answerer::new(&set);
            let mut group = c.benchmark_group(format!("resolver/{}/{name}", sets::size_name(size)));
            let mut at = 0;
            let mut next = |len: usize| {
                at = (at + len) % count;
                at
            };
            group.throughput(Throughput::Elements(1));
            group.bench_function("one", |b| b.iter(|| answerer.one(&requests, next(1))));
            group.throughput(Throughput::Elements(BATCH_LEN as u64));
            group.bench_function("batch_32", |b| b.iter(|| answerer.batch(&requests, next(BATCH_LEN))));
        }
    }
}

criterion_group!(benches, resolver);
