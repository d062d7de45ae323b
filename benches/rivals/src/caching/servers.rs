//! Caching servers in processes of their own, full or empty.

use anyhow::{Context as _, ensure};
use handle_benches::records::{RecordBuffer, RecordGenerator};
use handle_benches::serve::{ServePath, announce, pin, wait_for_end};
use handle_cache::Config;
use handle_cache::config::CacheConfig;
use handle_cache::entry::{RECORD, stamp, with_key};
use handle_cache::saved;
use handle_cache::table::CachedRecordTable;
use handle_proto::Handle;
use handle_worker::config::ServerLimits;
use handle_worker::extension::ProcessExtension as _;
use handle_snapshot::hash_key;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Bytes of the cache for each record: enough that none has to go.
const BYTES_EACH: usize = 640;
/// Time in which a cache reads its file.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of a cache that starts empty: enough for all that it is asked for.
const EMPTY_BYTES: usize = 1 << 30;

/// In the child: serves from a cache that has the first `records` generated records, and asks
/// `upstream` for others.
///
/// # Errors
/// When it does not start.
pub(crate) fn serve_full(
    records: u64,
    path: ServePath,
    core: usize,
    upstream: SocketAddr,
    limits: ServerLimits,
) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("cache");
    let mut config = config(path, core, upstream, limits)?;
    config.cache.bytes = usize::try_from(records)? * BYTES_EACH + (64 << 20);
    let count = write_file(records, config.cache.bytes, &file)?;
    config.cache.file = Some(file);
    // Not while it is measured.
    config.cache.save_every_s = 0;
    serve(&config, core, count)
}

/// In the child: serves from an empty cache, and asks `upstream` for everything.
///
/// # Errors
/// When it does not start.
pub(crate) fn serve_empty(path: ServePath, core: usize, upstream: SocketAddr) -> anyhow::Result<()> {
    let mut config = config(path, core, upstream, ServerLimits::default())?;
    config.cache.bytes = EMPTY_BYTES;
    serve(&config, core, 0)
}

fn config(
    path: ServePath,
    core: usize,
    upstream: SocketAddr,
    limits: ServerLimits,
) -> anyhow::Result<Config> {
    let mut config = Config {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        workers: 1,
        cores: vec![core],
        datapath: path.datapath(),
        limits,
        ..Config::default()
    };
    config.upstream.servers = vec![upstream.to_string()];
    // All load comes from one network.
    config.rate_limit.exempt = vec!["127.0.0.0/8".parse()?];
    config.waiting.exempt_sources = vec!["127.0.0.0/8".to_owned()];
    Ok(config)
}

/// Serves once the cache has read `entries` entries.
fn serve(config: &Config, core: usize, entries: usize) -> anyhow::Result<()> {
    // Threads run on the core of the thread that starts them.
    pin(Some(core));
    let (server, cache) = handle_cache::program::start(config, None)?;
    let end = Instant::now() + RESTORE_TIMEOUT;
    while cache.stats()["restored"].as_u64() < Some(entries as u64) {
        ensure!(Instant::now() < end, "the cache has not read its file: {}", cache.stats());
        std::thread::sleep(Duration::from_millis(20));
    }
    announce(*server.addresses().first().context("an address")?)?;
    wait_for_end();
    server.stop()
}

/// Writes the file of a cache that has the first `records` generated records. Returns their number.
fn write_file(records: u64, bytes: usize, path: &Path) -> anyhow::Result<usize> {
    let (generator, table) = (RecordGenerator::new()?, CachedRecordTable::new(bytes));
    let now_unix_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let (now_unix_s, limits) = (u32::try_from(now_unix_s)?, CacheConfig::default().ttl_limits());
    let (mut buffer, mut encoded) = (RecordBuffer::default(), Vec::new());
    for number in 0..records {
        let record = generator.record(number, &mut buffer);
        encoded.clear();
        record.values.iter().for_each(|value| value.encode(&mut encoded));
        let stamp = stamp(RECORD, record.values.iter().copied(), &limits, now_unix_s);
        with_key(Handle(record.handle), |key| table.insert(hash_key(1, key), key, stamp, &encoded));
    }
    Ok(saved::save(&table, path)?)
}
