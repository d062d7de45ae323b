//! Building a layer file from records, on one core. Generating the records is also measured alone,
//! so that it can be subtracted.

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group};
use handle_benches::records::{RecordBuffer, RecordGenerator};
use handle_benches::sets;

fn build(c: &mut Criterion) {
    let generator = RecordGenerator::new().expect("the vectors can be read");
    let mut group = c.benchmark_group("build");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    let sizes = if sets::is_test() { vec![2_000] } else { vec![100_000, 1_000_000] };
    for size in sizes {
        let name = sets::size_name(size);
        group.throughput(Throughput::Elements(size));
        group.bench_function(BenchmarkId::new("layer", &name), |b| {
            let temp_dir = tempfile::tempdir().expect("a temporary directory");
            b.iter(|| {
                let mut builder = sets::builder(&generator, temp_dir.path());
                sets::add_all(&mut builder, &generator, size).expect("the records can be stored");
                let file = tempfile::tempfile_in(temp_dir.path()).expect("a temporary file");
                builder.finish(file).expect("the layer can be built").1
            });
        });
        group.bench_function(BenchmarkId::new("records_alone", &name), |b| {
            let mut buffer = RecordBuffer::default();
            b.iter(|| (0..size).map(|n| generator.record(n, &mut buffer).handle.len()).sum::<usize>());
        });
    }
}

criterion_group!(benches, build);
