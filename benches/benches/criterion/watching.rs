//! Cost of telemetry for a worker, per datagram of full batches. For comparison, an answer costs
//! microseconds.

use criterion::{Criterion, Throughput, criterion_group};
use handle_benches::requests::{RequestKind, request};
use handle_proto::ResponseCode;
use handle_worker::counters::{Counters, Transport};
use handle_worker::latency::{Histogram, Stopwatch};
use handle_worker::query_log::{QueryLog, QueryLogSettings, QueryLogTap};
use handle_worker::sources::{PrefixBits, SourceSampler, Sources};
use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const BATCH_LEN: usize = 64;
const BITS: PrefixBits = PrefixBits { ipv4: 24, ipv6: 48 };

fn watching(c: &mut Criterion) {
    // Addresses of ten thousand networks, so that most samples search the whole table.
    let sources: Vec<IpAddr> = (0..65_536u32)
        .map(|i| IpAddr::from((0x0a00_0000 + (i.wrapping_mul(2_654_435_761) % 10_000) * 256).to_be_bytes()))
        .collect();
    let mut group = c.benchmark_group("watching");
    group.throughput(Throughput::Elements(BATCH_LEN as u64));
    for (name, latency_every, sources_every) in
        [("off", 0, 0), ("default", 16, 64), ("every_batch_and_datagram", 1, 1)]
    {
        group.bench_function(name, |b| {
            let (histogram, table) = (Histogram::default(), Sources::new(64));
            let (mut stopwatch, mut sampler) =
                (Stopwatch::new(latency_every), SourceSampler::new(sources_every, BITS, 1));
            let mut at = 0;
            b.iter(|| {
                at = (at + BATCH_LEN) % sources.len();
                let since = stopwatch.measures_next().then(Instant::now);
                sampler.sample(&table, 5, BATCH_LEN, |i| sources[at + i]);
                if let Some(since) = since {
                    histogram.add(since.elapsed(), BATCH_LEN as u64);
                }
            });
        });
    }
    group.finish();
}

fn query_log(c: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a directory for the log");
    let (datagram, counters) =
        (request(b"10.1016/j.rcae.2013.04.001", RequestKind::Plain, 1), Counters::default());
    let ip = IpAddr::from([192, 0, 2, 1]);
    let mut group = c.benchmark_group("query_log");
    group.throughput(Throughput::Elements(BATCH_LEN as u64));
    // Nothing empties the queue, so only the worker's part is measured: making an entry for a full
    // queue, and none when the lines of this second are used up.
    for (name, lines_per_second, queue_lines, step_s) in
        [("logged", 1_000_000, 1, 1), ("second_is_full", 1, 1, 0)]
    {
        group.bench_function(name, |b| {
            let path = Some(directory.path().join(name));
            let settings =
                QueryLogSettings { path, lines_per_second, queue_lines, ..QueryLogSettings::default() };
            let (log, _writer) = QueryLog::open(&settings).expect("a file").expect("a log");
            let (mut tap, mut now) = (Some(QueryLogTap::new(log, &settings)), Instant::now());
            b.iter(|| {
                if let Some(tap) = black_box(&mut tap) {
                    now += Duration::from_secs(step_s);
                    tap.set_time(now, Duration::from_secs(1_800_000_000));
                    for _ in 0..BATCH_LEN {
                        tap.record(Transport::Udp, ip, &datagram, ResponseCode::SUCCESS, &counters);
                    }
                }
            });
        });
    }
    group.bench_function("off", |b| {
        let mut tap = black_box(None::<QueryLogTap>);
        b.iter(|| {
            for _ in 0..BATCH_LEN {
                if let Some(tap) = black_box(&mut tap) {
                    tap.record(Transport::Udp, ip, &datagram, ResponseCode::SUCCESS, &counters);
                }
            }
        });
    });
    group.finish();
}

criterion_group!(benches, watching, query_log);
