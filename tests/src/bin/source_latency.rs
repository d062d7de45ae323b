//! Measures how long stored handles take while a source of records is honest, hangs, floods, lies
//! or fails, and clients keep asking for its handles:
//! `cargo run -p handle-tests --bin source_latency`. Prints quantiles for each, and their
//! ratio to those with the honest source in the same round.

use handle_proto::{Value, ValueBuf};
use handle_source::SourceConfig;
use handle_tests::client::TestClient;
use handle_tests::forwarding::BothProcesses;
use handle_tests::record_backend::{BackendBehaviour, RecordBackend};
use handle_tests::services::ServicesPlan;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;
const QUERIES: usize = 20_000;
/// Time between two questions of a client about the source, so that those who get an answer at once
/// do not ask more than others.
const PAUSE: Duration = Duration::from_millis(2);
/// Clients that ask for handles of the source.
const SOURCE_CLIENTS: u32 = 4;

fn main() {
    let url = ValueBuf::from(&Value::new(1, b"URL", b"https://a.example/"));
    let backend = RecordBackend::start(&[("10.1/item", vec![url.clone()])]);
    let here = ServicesPlan::new("server", &["10.1"], vec![("10.1/stored", vec![url])]);
    let there = ServicesPlan::new("mirror", &["20.2"], vec![]);
    let source = SourceConfig {
        name: "backend".to_owned(),
        prefixes: vec!["10.1".to_owned()],
        url: backend.url(),
        timeout_ms: 500,
        cache_s: 0,
        ..SourceConfig::default()
    };
    let processes = BothProcesses::start(
        &here,
        &there,
        |config| config.forward.sources = vec!["10.1".to_owned()],
        |config| config.sources = vec![source],
    );
    let behaviours = [
        BackendBehaviour::Honest,
        BackendBehaviour::Hanging,
        BackendBehaviour::Flooding,
        BackendBehaviour::Lying,
        BackendBehaviour::Failing,
        BackendBehaviour::Closing,
    ];
    let mut ratios = vec![Vec::new(); behaviours.len()];
    println!("behaviour   p50 us   p99 us   p99 ratio   answers about the source");
    for _ in 0..ROUNDS {
        let mut honest = None;
        for (at, behaviour) in behaviours.into_iter().enumerate() {
            backend.behave(behaviour);
            let (p50, p99, asked) = measure(processes.queries());
            let ratio = p99 / *honest.get_or_insert(p99);
            ratios[at].push(ratio);
            println!("{:<11} {p50:>6.0}   {p99:>6.0}   {ratio:>9.2}   {asked}", format!("{behaviour:?}"));
        }
    }
    for (behaviour, ratios) in behaviours.iter().zip(&mut ratios) {
        ratios.sort_by(f64::total_cmp);
        let (least, median, most) = (ratios[0], ratios[ROUNDS / 2], ratios[ROUNDS - 1]);
        println!("{behaviour:?}: p99 ratio {median:.2} (median of {ROUNDS}; {least:.2} to {most:.2})");
    }
}

/// Quantiles of the time for a stored handle in microseconds, and the number of answers about
/// handles of the source meanwhile.
fn measure(server: SocketAddr) -> (f64, f64, u64) {
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut times = Vec::with_capacity(QUERIES);
    std::thread::scope(|scope| {
        for number in 0..SOURCE_CLIENTS {
            let (stop, asked) = (&stop, &asked);
            scope.spawn(move || {
                let mut client = TestClient::new(server);
                while !stop.load(Ordering::Relaxed) {
                    let count = asked.fetch_add(1, Ordering::Relaxed);
                    let handle = if count % 2 == 0 {
                        "10.1/item".to_owned()
                    } else {
                        format!("10.1/{number}-{count}")
                    };
                    client.resolve(handle.as_bytes()).expect("an answer, whatever the source does");
                    std::thread::sleep(PAUSE);
                }
            });
        }
        let mut client = TestClient::new(server);
        for _ in 0..QUERIES {
            let start = Instant::now();
            client.resolve(b"10.1/stored").expect("an answer");
            times.push(start.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
    });
    times.sort();
    let at = |percent: usize| times[QUERIES * percent / 100].as_secs_f64() * 1e6;
    (at(50), at(99), asked.load(Ordering::Relaxed))
}
