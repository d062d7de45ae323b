//! Echo over loopback, with the sizes of requests and answers: what each datapath carries. The server is
//! on core 0 and the client on core 1, where there are two.

use criterion::{Criterion, Throughput, criterion_group};
use handle_benches::flood::{Flood, Shape, WINDOW, is_success};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::{serve, sets};
use handle_net::DatapathKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Bytes of an echo: about those of a usual answer.
const ANSWER_LEN: usize = 280;

fn datapath(c: &mut Criterion) {
    let requests = Requests::new(1_000, 1_000, RequestKind::Plain, 1).expect("the vectors are there");
    let two_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let mut group = c.benchmark_group("datapath");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for kind in [DatapathKind::Uring, DatapathKind::Portable] {
        if let Err(error) = serve::open_loopback(kind) {
            eprintln!("datapath/{kind}: not available: {error}");
            continue;
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (started, starting) = mpsc::channel();
            let stop = &stop;
            scope.spawn(move || {
                serve::pin(two_cores.then_some(0));
                let mut path = serve::open_loopback(kind).expect("it opened before");
                started.send(path.local_addr().expect("an address")).expect("the bench is there");
                let mut echo = serve::EchoServer::of_len(ANSWER_LEN);
                while !stop.load(Ordering::Relaxed) {
                    echo.turn(&mut *path).expect("the path works");
                }
            });
            let server = starting.recv().expect("the server starts");
            serve::pin(two_cores.then_some(1));
            let window = if sets::is_test() { 1 } else { WINDOW };
            let mut flood = Flood::open(&requests, Shape::single(window), is_success).expect("a socket");
            group.bench_function(format!("echo/{kind}"), |b| {
                b.iter_custom(|answers| {
                    let got = flood.run_for_answers(server, answers).expect("the path works");
                    // Whole batches come back, and not exactly as many as were asked for.
                    Duration::from_secs_f64(got.seconds * answers as f64 / got.answers.max(1) as f64)
                });
            });
            stop.store(true, Ordering::Relaxed);
        });
    }
}

criterion_group!(benches, datapath);
