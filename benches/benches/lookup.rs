//! Finding records among many, one at a time and in stages: one element is one lookup, with its hash,
//! and every line of the record read.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use handle_benches::{lookups, sets};

/// So many keys that a whole round of them does not stay in any cache.
const KEYS_COUNT: usize = 1 << 21;

fn lookup(c: &mut Criterion) {
    for size in sets::sizes() {
        let set = sets::open(size).expect("a set can be built");
        sets::warm(&set);
        let keys_count = if sets::is_test() { 1_000 } else { KEYS_COUNT };
        let mut keys = lookups::Keys::new(size, keys_count, 1).expect("the vectors are there");
        let records = set.records();
        let mut group = c.benchmark_group(format!("lookup/{}", sets::size_name(size)));
        group.throughput(Throughput::Elements(1));
        group.bench_function("one", |b| b.iter(|| lookups::one(&records, &mut keys)));
        group.throughput(Throughput::Elements(lookups::BATCH_LEN as u64));
        group.bench_function("batch_32", |b| b.iter(|| lookups::batch(&records, &mut keys)));
    }
}

criterion_group!(benches, lookup);
criterion_main!(benches);
