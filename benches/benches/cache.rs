//! What a hit in the client's cache costs, with a million handles in it: by one thread, and by two at a time.
//! One element is one question that is answered.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use handle_client::cache::{Cache, CacheLimits};
use handle_client::{Answer, Now, Question};
use handle_proto::{ResponseCode, Value};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Handles in the cache.
const HANDLES: usize = 1_000_000;
const NOW: Now = Now { ms: 1_000, unix_s: 1_700_000_000 };

fn handle(number: usize) -> String {
    format!("10.1016/j.cache.{number:07}")
}

fn filled() -> Cache {
    let cache = Cache::new(CacheLimits { bytes_max: 2 << 30, ..CacheLimits::default() });
    for number in 0..HANDLES {
        let value = Value::new(1, b"URL", b"https://elsevier-bv.example/10.1016/j.cache");
        let answer = Answer::new(handle(number), ResponseCode::SUCCESS, [value]);
        cache.put(&Question::all(handle(number)), &answer, NOW);
    }
    cache
}

/// Asks so many questions, far apart from each other, and gives how many were answered. As with a question that has
/// just come, the handle is in one place and close.
fn ask(cache: &Cache, begin: usize, count: u64) -> u64 {
    const STEP: usize = 617_731;
    let mut question = Question::all(handle(0));
    let digits_at = question.handle.len() - 7;
    let mut at = begin % HANDLES;
    (0..count)
        .filter(|_| {
            at = (at + STEP) % HANDLES;
            let mut rest = at;
            for digit in question.handle[digits_at..].iter_mut().rev() {
                *digit = b"0123456789"[rest % 10];
                rest /= 10;
            }
            black_box(cache.get(&question, NOW)).is_some()
        })
        .count() as u64
}

fn hits(criterion: &mut Criterion) {
    let cache = filled();
    assert_eq!(cache.stats().handles, HANDLES as u64, "all of them fit");
    let mut group = criterion.benchmark_group("cache");
    group.throughput(Throughput::Elements(1));
    for threads in [1, 2] {
        group.bench_function(format!("hits/{threads} threads"), |bencher| {
            bencher.iter_custom(|count| {
                let began = Instant::now();
                let answered: u64 = std::thread::scope(|scope| {
                    let asking: Vec<_> = (0..threads)
                        .map(|number| {
                            let cache = &cache;
                            let share =
                                count / threads as u64 + u64::from(number == 0) * (count % threads as u64);
                            scope.spawn(move || ask(cache, number * 500_009, share))
                        })
                        .collect();
                    asking.into_iter().map(|asked| asked.join().expect("nobody panics")).sum()
                });
                assert_eq!(answered, count, "every question is answered");
                began.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3));
    targets = hits
}
criterion_main!(benches);
