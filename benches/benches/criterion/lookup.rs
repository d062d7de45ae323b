//! Lookups in large sets, one at a time and in stages. One element is one lookup: hashing the key,
//! finding the record, and reading all its cache lines.

use criterion::{Criterion, Throughput, criterion_group};
use handle_benches::{lookups, sets};
use handle_snapshot::{Layer, RecordSet, Trust};

/// More keys than fit into any processor cache.
const KEYS_COUNT: usize = 1 << 21;

fn lookup(c: &mut Criterion) {
    for size in sets::sizes() {
        let set = sets::open(size).expect("a set can be built");
        sets::warm(&set);
        let keys_count = if sets::is_test() { 1_000 } else { KEYS_COUNT };
        let mut keys = lookups::LookupKeys::new(size, keys_count, 1).expect("the vectors can be read");
        let records = set.records();
        let mut group = c.benchmark_group(format!("lookup/{}", sets::size_name(size)));
        group.throughput(Throughput::Elements(1));
        group.bench_function("one", |b| b.iter(|| lookups::one(&records, &mut keys)));
        group.throughput(Throughput::Elements(lookups::BATCH_LEN as u64));
        group.bench_function("batch_32", |b| b.iter(|| lookups::batch(&records, &mut keys)));
        let checked = set.with_trust(|_| Trust::Checked);
        let records = checked.records();
        group.bench_function("batch_32_checked", |b| b.iter(|| lookups::batch(&records, &mut keys)));
    }
}

/// Records of each delta above the layer that has the records of the lookups.
const DELTA_LEN: u64 = 2_000;

fn below_deltas(c: &mut Criterion) {
    let size = if sets::is_test() { 2_000 } else { 1_000_000 };
    let set = sets::open(size).expect("a set can be built");
    sets::warm(&set);
    let keys_count = if sets::is_test() { 1_000 } else { KEYS_COUNT };
    let mut keys = lookups::LookupKeys::new(size, keys_count, 1).expect("the vectors can be read");
    let mut group = c.benchmark_group(format!("lookup/{}/below_deltas", sets::size_name(size)));
    group.throughput(Throughput::Elements(lookups::BATCH_LEN as u64));
    let deltas: Vec<_> =
        (0..5).map(|number| sets::delta(DELTA_LEN, number).expect("a layer can be built")).collect();
    for count in 0..=deltas.len() {
        let files = deltas[..count].iter().map(Vec::as_slice);
        let files = files.chain(set.layers().iter().map(Layer::as_bytes));
        let layers: Vec<_> = files.map(|file| Layer::open(file).expect("the layer opens")).collect();
        group.bench_function(count.to_string(), |b| {
            b.iter(|| {
                // The server makes a record set for each batch as well.
                let records = RecordSet::new(&layers).expect("the layers make a set");
                lookups::batch(&records, &mut keys)
            });
        });
    }
}

criterion_group!(benches, lookup, below_deltas);
