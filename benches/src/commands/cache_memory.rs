//! What cached answers of other services take in memory, beside what the cache counts.

use anyhow::ensure;
use handle_benches::usage;
use handle_client::cache::{Cache, CacheLimits};
use handle_client::{ClockReading, LookupAnswer, Question};
use handle_proto::{ResponseCode, Value};

/// Measures the memory of answers in the client's cache, which `handle-gateway` uses.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Answers to put into the cache.
    #[arg(long, default_value_t = 1_000_000)]
    answers: u32,
    /// Bytes that the cache may have.
    #[arg(long, default_value_t = 4 << 30)]
    cache_bytes: usize,
}

const NOW: ClockReading = ClockReading { ms: 1_000, unix_s: 1_700_000_000 };

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let before = usage::resident_len(std::process::id())?;
    let cache = Cache::new(CacheLimits { bytes_max: args.cache_bytes, ..CacheLimits::default() });
    for number in 0..args.answers {
        let handle = format!("10.1016/j.cache.{number:07}");
        let url = format!("https://elsevier-bv.example/10.1016/j.cache.{number:07}");
        // As typical records of DOIs: a URL, an administrator, and a short text.
        let values = [
            Value::new(1, b"URL", url.as_bytes()),
            Value::new(100, b"HS_ADMIN", &[0; 30]),
            Value::new(700_050, b"700050", b"20240101000000000"),
        ];
        let answer = LookupAnswer::new(handle.as_bytes(), ResponseCode::SUCCESS, values);
        cache.put(&Question::all(handle.into_bytes()), &answer, NOW);
    }
    let (stats, used) = (cache.stats(), usage::resident_len(std::process::id())? - before);
    ensure!(stats.handles > 0, "the cache has no answers");
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let (each, share) = (used as f64 / stats.handles as f64, used as f64 / stats.bytes as f64);
    println!("answers in the cache: {} of {}", stats.handles, args.answers);
    println!("counted: {} bytes of {}", stats.bytes, args.cache_bytes);
    println!("resident: {used} bytes, {each:.0} for each answer, {share:.3} of what is counted");
    println!("{}", usage::machine());
    Ok(())
}
