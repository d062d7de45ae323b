//! Decoding of requests, encoding of answers, values, sites and records, without lookups and I/O.

use criterion::{BatchSize, Criterion, Throughput, criterion_group};
use handle_benches::records::{RecordBuffer, RecordGenerator};
use handle_benches::requests::{RequestKind, request};
use handle_proto::data::site::Site;
use handle_proto::json::{Json, RecordLine, site_from_json};
use handle_proto::wire::query::{Query, QueryAnswer};
use handle_proto::wire::{Envelope, Header, Message};
use handle_proto::{Value, Values};
use std::hint::black_box;

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode");
    let mut handle = Vec::new();
    RecordGenerator::new().expect("the vectors can be read").handle(1, &mut handle);
    let datagram = request(&handle, RequestKind::Selected, 1);
    let (_, message) = Envelope::split(&datagram).expect("an envelope");
    let body = Message::decode(message).expect("a message").body;
    group.bench_function("envelope", |b| b.iter(|| Envelope::split(black_box(&datagram)).map(|(e, _)| e)));
    group.bench_function("header", |b| b.iter(|| Header::split(black_box(message)).map(|(h, _)| h)));
    group.bench_function("query", |b| b.iter(|| Query::decode(black_box(body)).map(|q| q.indexes.len())));
    group.bench_function("request", |b| {
        b.iter(|| {
            let (envelope, rest) = Envelope::split(black_box(&datagram))?;
            let query = Query::decode(Message::decode(rest)?.body)?;
            Ok::<_, handle_proto::DecodeError>((envelope.request_id, query.handle.len(), query.types.len()))
        });
    });
}

fn values(c: &mut Criterion) {
    let mut group = c.benchmark_group("values");
    let (generator, mut buffer) =
        (RecordGenerator::new().expect("the vectors can be read"), RecordBuffer::default());
    let record = generator.record(1, &mut buffer);
    let mut encoded = Vec::new();
    record.values.iter().for_each(|value| value.encode(&mut encoded));
    group.throughput(Throughput::Elements(record.values.len() as u64));
    group.bench_function("encode", |b| {
        let mut out = Vec::with_capacity(encoded.len());
        b.iter(|| {
            out.clear();
            black_box(&record.values).iter().for_each(|value| value.encode(&mut out));
            out.len()
        });
    });
    group.bench_function("decode", |b| {
        b.iter(|| {
            let mut rest = black_box(&*encoded);
            let mut len = 0;
            while let Ok((value, after)) = Value::split(rest) {
                len += value.data.len();
                rest = after;
            }
            len
        });
    });
    group.throughput(Throughput::Elements(1));
    let values = Values::from_encoded(record.values.len(), &encoded).expect("values");
    group.bench_function("encode_answer", |b| {
        let mut out = Vec::with_capacity(512);
        b.iter(|| {
            out.clear();
            QueryAnswer { handle: black_box(record.handle), values }.encode(&mut out);
            out.len()
        });
    });
}

fn site(c: &mut Criterion) {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/servers.json"))
        .expect("the vectors can be read");
    let servers: Json = serde_json::from_str(&text).expect("JSON");
    let bytes = site_from_json(&servers["servers"]["main"]["site"]).expect("a site").into_bytes();
    let mut group = c.benchmark_group("site");
    group.bench_function("decode", |b| {
        b.iter(|| Site::decode(black_box(&bytes)).map(|site| site.servers.len()))
    });
    group.bench_function("encode", |b| {
        let site = Site::decode(&bytes).expect("a site");
        b.iter_batched_ref(Vec::new, |out| black_box(&site).encode(out), BatchSize::SmallInput);
    });
}

fn json(c: &mut Criterion) {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/dois.jsonl"))
        .expect("the vectors can be read");
    let lines: Vec<&str> = text.lines().collect();
    let mut group = c.benchmark_group("json");
    group.throughput(Throughput::Elements(1));
    group.bench_function("record_line", |b| {
        let (mut values, mut lines) = (Vec::new(), lines.iter().cycle());
        b.iter(|| {
            values.clear();
            lines.next().and_then(|line| RecordLine::parse(line, &mut values).ok()).map(|r| r.values_count)
        });
    });
}

criterion_group!(benches, decode, values, site, json);
