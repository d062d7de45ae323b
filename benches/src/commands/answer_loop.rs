//! Answers requests in a loop, without a socket, for profilers: `perf record`, `callgrind`.
//!
//! `docs/performance.md` says how to get instructions per answer from it.

use anyhow::ensure;
use clap::ValueEnum;
use handle_benches::answers::{Answerer, BATCH_LEN};
use handle_benches::records::{RecordBuffer, RecordGenerator};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::sets;
use handle_cache::CacheService;
use handle_cache::entry::{RECORD, stamp, with_key};
use handle_cache::saved::SavedEntry;
use handle_proto::Handle;
use handle_snapshot::{PublishedSet, Trust};
use std::hint::black_box;
use std::time::{Instant, SystemTime};

/// Bytes of the cache for each record: enough that none has to go.
const CACHE_BYTES_EACH: usize = 640;
/// Seconds that records have been in the cache.
const AGE_S: u32 = 60;

/// Answers requests in a loop, without a socket.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Records in the set.
    #[arg(long, default_value_t = 100_000)]
    records: u64,
    /// Number of answers.
    #[arg(long, default_value_t = 10_000_000)]
    answers: usize,
    /// Kind of the requests.
    #[arg(long, value_enum, default_value_t = LoopRequest::Plain)]
    ask: LoopRequest,
    /// Compare each record with its checksum, as in sets with private values.
    #[arg(long)]
    checked: bool,
    /// Answer one request at a time instead of in stages.
    #[arg(long)]
    one: bool,
    /// Answer from the cache of `handle-cache`, to which the records are copied before.
    #[arg(long, conflicts_with_all = ["one", "checked"])]
    cached: bool,
    /// Different requests, answered in a cycle.
    #[arg(long, default_value_t = 65_536)]
    requests: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum LoopRequest {
    Plain,
    Selected,
    Missing,
    Digest,
    Long,
}

impl From<LoopRequest> for RequestKind {
    fn from(request: LoopRequest) -> Self {
        match request {
            LoopRequest::Plain => Self::Plain,
            LoopRequest::Selected => Self::Selected,
            LoopRequest::Missing => Self::Missing,
            LoopRequest::Digest => Self::Digest,
            LoopRequest::Long => Self::Long,
        }
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut set = sets::open(args.records)?;
    sets::warm(&set);
    if args.checked {
        set = set.with_trust(|_| Trust::Checked);
    }
    let requests = Requests::new(args.records, args.requests, args.ask.into(), 1)?;
    let (empty, now_unix_s) = (PublishedSet::empty(), now_unix_s()?);
    let cache = args.cached.then(|| filled_cache(args.records, now_unix_s)).transpose()?;
    let mut answerer = match &cache {
        Some(cache) => Answerer::new(&empty).caching(cache, now_unix_s + AGE_S),
        None => Answerer::new(&set),
    };
    // Not the clock of the thread, which does not work under valgrind.
    let start = Instant::now();
    let (answers, len) = answer_all(&mut answerer, &requests, &args);
    let each = start.elapsed().as_secs_f64() / answers as f64;
    println!("{answers} answers, {} bytes each, {:.1} ns each", len / answers, each * 1e9);
    Ok(())
}

fn now_unix_s() -> anyhow::Result<u32> {
    Ok(u32::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs())?)
}

/// A cache with the first `records` generated records.
fn filled_cache(records: u64, now_unix_s: u32) -> anyhow::Result<CacheService> {
    let mut config = handle_cache::Config::default();
    // The cache takes entries of an earlier process only if it has a file.
    config.cache.file = Some("unused".into());
    // Never asked.
    config.upstream.servers = vec!["127.0.0.1:9".to_owned()];
    config.cache.bytes = usize::try_from(records)? * CACHE_BYTES_EACH + (64 << 20);
    let cache = CacheService::open(&config)?;
    let (generator, mut buffer, mut values) = (RecordGenerator::new()?, RecordBuffer::default(), Vec::new());
    for number in 0..records {
        let record = generator.record(number, &mut buffer);
        values.clear();
        record.values.iter().for_each(|value| value.encode(&mut values));
        let stamp = stamp(RECORD, record.values.iter().copied(), &config.cache.ttl_limits(), now_unix_s);
        let is_kept =
            with_key(Handle(record.handle), |key| cache.restore(&SavedEntry { key, stamp, values: &values }));
        ensure!(is_kept, "record {number} is not kept");
    }
    Ok(cache)
}

/// The function to profile, found by its name.
#[inline(never)]
fn answer_all<'a>(answerer: &mut Answerer<'a>, requests: &'a Requests, args: &Args) -> (usize, usize) {
    let (mut answers, mut len) = (0, 0);
    while answers < args.answers {
        if args.one {
            len += black_box(answerer.one(requests, answers));
            answers += 1;
        } else {
            len += black_box(answerer.batch(requests, answers));
            answers += BATCH_LEN;
        }
    }
    (answers, len)
}
