//! Rate of each datapath: an echo over loopback with the sizes of usual requests and answers. The
//! server runs on core 0 and the client on core 1, if there are two cores.

use criterion::{Criterion, Throughput, criterion_group};
use handle_benches::flood::{Flood, Shape, WINDOW, is_success};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::{serve, sets};
use handle_net::DatapathKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Length of an echo, about that of a usual answer.
const ANSWER_LEN: usize = 280;

fn datapath(c: &mut Criterion) {
    let requests = Requests::new(1_000, 1_000, RequestKind::Plain, 1).expect("the vectors can be read");
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
                let mut path = serve::open_loopback(kind).expect("the datapath opened before");
                started
                    .send(path.local_addr().expect("an address"))
                    .expect("the bench waits for the address");
                let mut echo = serve::EchoServer::of_len(ANSWER_LEN);
                while !stop.load(Ordering::Relaxed) {
                    echo.turn(&mut *path).expect("the datapath works");
                }
            });
            let server = starting.recv().expect("the server starts");
            serve::pin(two_cores.then_some(1));
            let window = if sets::is_test() { 1 } else { WINDOW };
            let mut flood =
                Flood::open(&requests, Shape::single(window), is_success).expect("a socket can be opened");
            group.bench_function(format!("echo/{kind}"), |b| {
                b.iter_custom(|answers| {
                    let totals = flood.run_for_answers(server, answers).expect("the datapath works");
                    // The run ends after a whole batch, so it may receive more answers than
                    // requested.
                    Duration::from_secs_f64(totals.seconds * answers as f64 / totals.answers.max(1) as f64)
                });
            });
            stop.store(true, Ordering::Relaxed);
        });
    }
}

criterion_group!(benches, datapath);
