//! Cost of certified answers and authenticated reads: signatures, MACs, answers to challenges, key
//! agreements. One element is one operation. The name of a group ends with the library in use,
//! which the feature `aws-lc` changes. The benches measure processor time, which depends less on
//! other processes than elapsed time.

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput, criterion_group};
use handle_auth::agreement::{BITS, Group, KeyPair, respond};
use handle_auth::message::MacKey;
use handle_auth::session::SessionKey;
use handle_auth::{BACKEND, Pbkdf2Limits, PrivateKey, challenge, digest, message};
use handle_benches::usage::thread_time;
use handle_proto::Version;
use handle_proto::code::{Cipher, DigestAlgorithm};
use handle_proto::data::key::Number;
use handle_proto::wire::Envelope;
use handle_proto::wire::auth::SecretAnswer;
use std::hint::black_box;
use std::time::Duration;

/// Processor time of the thread.
struct ProcessorTime;

impl Measurement for ProcessorTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        thread_time()
    }

    fn end(&self, start: Duration) -> Duration {
        thread_time() - start
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Header and body of an answer with three values, as long as in the benches of the resolver.
const COVERED: &[u8] = &[0x61; 230];
const COVERED_BY_ANSWER: [&[u8]; 2] = [&[0x11; 16], &[0x22; 32]];

/// Returns the record of a private key in the golden vectors.
fn record(id: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/credentials.jsonl");
    let text = std::fs::read_to_string(path).expect("the vectors can be read");
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let line = lines.into_iter().find(|line| line["kind"] == "key" && line["key_id"] == id).expect("a key");
    let hex = line["handle_private_hex"].as_str().expect("hexadecimal");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Measures making a signature with its credential, as the server does, and verifying one.
fn signatures(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group(format!("signature/{BACKEND}"));
    group.throughput(Throughput::Elements(1));
    for (name, id, version) in [
        ("rsa2048_sha256", "server", Version::CURRENT),
        ("rsa2048_sha1", "server", Version::new(2, 6)),
        ("dsa1024_sha1", "admin_dsa", Version::new(2, 6)),
        ("dsa2048_sha256", "admin_dsa2048", Version::CURRENT),
    ] {
        let key = PrivateKey::from_record(&record(id)).expect("the key can sign");
        let envelope = Envelope { version, ..Envelope::request(7) };
        group.bench_function(format!("sign_{name}"), |b| {
            b.iter(|| message::sign_message(&envelope, 0, black_box(COVERED), &key));
        });
        let algorithm = key.digest_for(version);
        let signature = key.sign(algorithm, &[COVERED]).expect("a signature");
        group.bench_function(format!("verify_{name}"), |b| {
            b.iter(|| key.public().verify(algorithm, &[black_box(COVERED)], &signature));
        });
    }
    for (name, id) in [("rsa2048", "server"), ("dsa1024", "admin_dsa"), ("dsa2048", "admin_dsa2048")] {
        let record = record(id);
        group.bench_function(format!("load_{name}"), |b| {
            b.iter(|| PrivateKey::from_record(black_box(&record)).is_ok());
        });
    }
}

/// Measures MACs, which replace signatures in a session.
fn macs(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group(format!("mac/{BACKEND}"));
    group.throughput(Throughput::Elements(1));
    for minor in [4, 6, 11] {
        let envelope = Envelope { version: Version::new(2, minor), ..Envelope::request(7) };
        group.bench_function(format!("message_2.{minor}"), |b| {
            b.iter(|| message::mac_message(&envelope, 1, black_box(COVERED), &[0x5a; 32]));
        });
    }
    let key = SessionKey::new(Cipher::AES, vec![0x5a; 32]).expect("the key has a valid length");
    let (key, envelope) = (MacKey::new(key), Envelope::request(7));
    let unsealed = [&envelope.to_bytes()[..], &[0; 20], &210_u32.to_be_bytes(), &[0x61; 214]].concat();
    let mut message = Vec::with_capacity(512);
    group.bench_function("seal_2.11", |b| {
        b.iter(|| {
            message.clear();
            message.extend_from_slice(black_box(&unsealed));
            key.seal(&mut message, 1)
        });
    });
    for algorithm in [DigestAlgorithm::SHA1, DigestAlgorithm::SHA256] {
        group.bench_function(format!("request_digest_{algorithm}"), |b| {
            b.iter(|| digest::digest(algorithm, [black_box(COVERED)]));
        });
    }
}

/// Measures verifying a challenge proof with a secret key; its sender chooses the number of rounds.
fn answers(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group(format!("answer/{BACKEND}"));
    group.throughput(Throughput::Elements(1));
    for minor in [6, 11] {
        let version = Version::new(2, minor);
        let bytes = challenge::answer_with_secret(version, version, &COVERED_BY_ANSWER, b"secret", &[9; 16]);
        let answer = SecretAnswer::decode(&bytes).expect("an answer");
        let limits = Pbkdf2Limits::DEFAULT;
        group.bench_function(format!("verify_secret_2.{minor}"), |b| {
            b.iter(|| {
                challenge::verify_secret(version, &COVERED_BY_ANSWER, black_box(&answer), b"secret", &limits)
            });
        });
    }
}

/// Measures the server's side of a session setup, without the signature.
fn agreements(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group("agreement");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for (bits, dh) in [(1024, Group::oakley_2()), (2048, Group::modp_14()), (8192, largest())] {
        let client = KeyPair::new(dh, &[1; 64]).public_record();
        group.bench_function(format!("respond_{bits}"), |b| {
            b.iter(|| respond(black_box(&client), &BITS, &[2; 64]).map(|(record, _)| record.len()));
        });
    }
}

/// Returns a group with a modulus of the largest accepted length. It is not prime, which does not
/// change the time.
fn largest() -> Group {
    let p = [0xff; 1024];
    Group::new(Number::new(&p), Number::new(&[2]), &BITS).expect("odd and not too large")
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ProcessorTime);
    targets = signatures, macs, answers, agreements
}
