//! Hit ratios of the record table of `handle-cache` and of other caches, for the same requests.

mod optimum;
mod policies;

use anyhow::ensure;
use comfy_table::Table;
use handle_loadgen::AccessOrder;
use handle_loadgen::load::pattern::Chooser;
use handle_loadgen::random::RandomGenerator;
use policies::{CachePolicy, Lru, MokaCache, OwnTable, QuickCache};
use serde_json::json;
use std::time::Instant;

/// Measures the share of requests that the record table of `handle-cache` answers, beside
/// quick_cache, moka, LRU and the optimum that knows the future, all with the same memory.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests.
    #[arg(long, default_value_t = 100_000_000)]
    requests: u32,
    /// Names. Each has a record of 100 to 500 bytes.
    #[arg(long, default_value_t = 10_000_000)]
    names: u32,
    /// Order of the names: zipf, zipf:EXPONENT or uniform.
    #[arg(long, default_value = "zipf")]
    order: AccessOrder,
    /// Memory of each cache in percent of the bytes of all records.
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 10.0])]
    percent: Vec<f64>,
    /// Requests of each hundred that ask for the next name of a walk through names that nobody else
    /// asks for.
    #[arg(long, default_value_t = 0)]
    scan: u32,
    /// Leave out the optimum, which takes eight bytes of memory for each request.
    #[arg(long)]
    no_optimum: bool,
    /// Measure the table of `handle-cache` only.
    #[arg(long)]
    only_own: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Bytes that an entry is assumed to take beside its record in caches that cannot say it.
const OVERHEAD: u32 = 64;

/// The requests, as an iterator that can be repeated.
#[derive(Clone)]
struct Trace {
    chooser: Chooser,
    random: RandomGenerator,
    left: u32,
    scan: u32,
    next_scanned: u32,
}

impl Trace {
    fn new(args: &Args) -> Self {
        Self {
            chooser: Chooser::new(args.order, args.names, 0, 1),
            random: RandomGenerator::new(2026, 0),
            left: args.requests,
            scan: args.scan,
            next_scanned: args.names,
        }
    }
}

impl Iterator for Trace {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        if self.left % 100 < self.scan {
            self.next_scanned += 1;
            return Some(self.next_scanned);
        }
        Some(self.chooser.choose(&mut self.random))
    }
}

/// Bytes of the record of `name`: 100 to 500, without a relation to how often it is asked for.
const fn record_len(name: u32) -> u32 {
    100 + (name.wrapping_mul(0x9e37_79b1) >> 16) % 401
}

struct TraceResult {
    policy: &'static str,
    percent: f64,
    hit_ratio: f64,
    /// Nanoseconds for each request, including the insertion after a miss.
    time_ns: Option<f64>,
    entries: Option<usize>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    ensure!(args.requests > 0 && args.names > 0 && args.scan <= 100, "there is nothing to request");
    let payload: u64 = (0..args.names).map(|name| u64::from(record_len(name))).sum();
    let mut results = Vec::new();
    for &percent in &args.percent {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of memory")]
        let bytes = (payload as f64 * percent / 100.0) as usize;
        results.push(replay(&args, percent, &mut OwnTable::new(bytes)));
        if args.only_own {
            continue;
        }
        results.push(replay(&args, percent, &mut QuickCache::new(bytes)));
        results.push(replay(&args, percent, &mut MokaCache::new(bytes)));
        results.push(replay(
            &args,
            percent,
            &mut Lru::new(bytes, args.names + args.requests / 100 * args.scan),
        ));
        if !args.no_optimum {
            let hit_ratio = optimum::hit_ratio(Trace::new(&args), bytes as u64);
            results.push(TraceResult { policy: "optimum", percent, hit_ratio, time_ns: None, entries: None });
        }
    }
    print(&args, &results);
    Ok(())
}

fn replay(args: &Args, percent: f64, cache: &mut impl CachePolicy) -> TraceResult {
    let (begun, mut hits) = (Instant::now(), 0_u64);
    for name in Trace::new(args) {
        hits += u64::from(cache.request(name));
    }
    let time_ns = begun.elapsed().as_nanos() as f64 / f64::from(args.requests);
    let hit_ratio = hits as f64 / f64::from(args.requests);
    TraceResult {
        policy: cache.name(),
        percent,
        hit_ratio,
        time_ns: Some(time_ns),
        entries: Some(cache.entries()),
    }
}

fn print(args: &Args, results: &[TraceResult]) {
    if args.json {
        let rows: Vec<_> = results
            .iter()
            .map(|result| {
                json!({ "cache": result.policy, "percent": result.percent, "hit_ratio": result.hit_ratio,
                    "ns_per_request": result.time_ns, "entries": result.entries })
            })
            .collect();
        println!("{}", json!({ "requests": args.requests, "names": args.names, "results": rows }));
        return;
    }
    let mut table = Table::new();
    table.set_header(["cache", "memory", "hit ratio", "ns per request", "entries"]);
    for result in results {
        let shown = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            result.policy.to_owned(),
            format!("{} %", result.percent),
            format!("{:.4}", result.hit_ratio),
            shown(result.time_ns.map(|time| format!("{time:.0}"))),
            shown(result.entries.map(|count| count.to_string())),
        ]);
    }
    println!("{} requests, {} names, {}\n{table}", args.requests, args.names, args.order);
}
