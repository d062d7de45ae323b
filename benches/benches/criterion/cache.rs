//! Cost of a hit in the client's cache with a million handles, for one thread and for two threads.
//! Questions are chosen uniformly, so that entries are seldom in a processor cache, or by Zipf's
//! law. One element is one answered question.

use criterion::{Criterion, Throughput, criterion_group};
use handle_client::cache::{Cache, CacheLimits};
use handle_client::{ClockReading, LookupAnswer, Question};
use handle_loadgen::AccessOrder;
use handle_loadgen::load::pattern::Chooser;
use handle_loadgen::random::RandomGenerator;
use handle_proto::{ResponseCode, Value};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Handles in the cache.
const HANDLES: u32 = 1_000_000;
const NOW: ClockReading = ClockReading { ms: 1_000, unix_s: 1_700_000_000 };

fn handle(number: u32) -> String {
    format!("10.1016/j.cache.{number:07}")
}

fn filled() -> Cache {
    let cache = Cache::new(CacheLimits { bytes_max: 2 << 30, ..CacheLimits::default() });
    for number in 0..HANDLES {
        let value = Value::new(1, b"URL", b"https://elsevier-bv.example/10.1016/j.cache");
        let answer = LookupAnswer::new(handle(number), ResponseCode::SUCCESS, [value]);
        cache.put(&Question::all(handle(number)), &answer, NOW);
    }
    cache
}

/// Asks `count` questions and returns how many were answered. The handle is written into one
/// buffer, which stays in the processor cache like a request just received.
fn ask(cache: &Cache, numbers: &[u32], begin: usize, count: usize) -> usize {
    let mut question = Question::all(handle(0));
    let digits_at = question.handle.len() - 7;
    let (before, after) = numbers.split_at(begin % numbers.len());
    let numbers = after.iter().chain(before).cycle().take(count);
    numbers
        .filter(|&&number| {
            let mut rest = number;
            for digit in question.handle[digits_at..].iter_mut().rev() {
                *digit = b'0' + u8::try_from(rest % 10).expect("a digit");
                rest /= 10;
            }
            black_box(cache.get(&question, NOW)).is_some()
        })
        .count()
}

/// Numbers of the handles that a thread asks for, in order.
fn chosen(pattern: AccessOrder, thread: u64) -> Vec<u32> {
    let mut chooser = Chooser::new(pattern, HANDLES, thread, 2);
    let mut random = RandomGenerator::new(7, thread);
    (0..HANDLES).map(|_| chooser.choose(&mut random)).collect()
}

fn hits(criterion: &mut Criterion) {
    let cache = &filled();
    assert_eq!(cache.stats().handles, u64::from(HANDLES), "all handles fit into the cache");
    let mut group = criterion.benchmark_group("cache");
    group.throughput(Throughput::Elements(1));
    for pattern in [AccessOrder::Uniform, AccessOrder::Zipf { exponent: 1.0 }] {
        let numbers: Vec<_> = (0..2).map(|thread| chosen(pattern, thread)).collect();
        // Each measurement continues where the last one ended, so that all handles are asked for.
        let mut begin = 0;
        for threads in [1, 2] {
            group.bench_function(format!("hits/{pattern}/{threads} threads"), |bencher| {
                bencher.iter_custom(|count| {
                    let share =
                        usize::try_from(count).expect("the count fits into a usize").div_ceil(threads);
                    let began = Instant::now();
                    let answered: usize = std::thread::scope(|scope| {
                        let threads = numbers[..threads].iter();
                        let asking: Vec<_> = threads
                            .map(|numbers| scope.spawn(|| ask(cache, numbers, begin, share)))
                            .collect();
                        asking.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
                    });
                    assert_eq!(answered, share * threads, "not every question is answered");
                    begin += share;
                    began.elapsed()
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3));
    targets = hits
}
