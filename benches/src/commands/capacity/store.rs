//! A store of short records.

use super::records::{PREFIX, ShortRecord};
use super::{Figures, PrivateMemory};
use anyhow::ensure;
use handle_admin::publish::{PublishConfig, StorePublisher};
use handle_benches::records::BenchRandom;
use handle_proto::{Value, Values};
use handle_store::{Store, StoreConfig, StoreRecords as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory for sorting the imported records.
const SORT_LEN: usize = 256 << 20;
/// Records that are read one by one.
const READ: u64 = 100_000;
/// Records that are created one by one, each durable before the next.
const CREATED: u64 = 500;
/// Time for the set to be published.
const TIMEOUT: Duration = Duration::from_secs(3600);

pub(super) fn measure(dir: &Path, records: u64) -> anyhow::Result<Figures> {
    let (mut figures, memory) = (Figures::default(), PrivateMemory::watch());
    let config = StoreConfig::at(&dir.join("store"));
    let store = Store::create(&config, true)?;
    let started = Instant::now();
    import(&store, dir, records)?;
    figures.add("import, records/s", records as f64 / started.elapsed().as_secs_f64());
    figures.add("memory of the import, MiB", memory.take_mib());
    figures.add("store, bytes a handle", std::fs::metadata(&config.file)?.len() as f64 / records as f64);
    let mut random = BenchRandom(3);
    figures.add("reading a record, µs", read(&store, records, &mut random)? / 1e3);
    figures.add("durable creation by one client, µs", create(&store, records)? / 1e3);
    memory.take_mib();
    let store = Arc::new(store);
    let publish = PublishConfig { directory: Some(dir.join("set")), ..PublishConfig::default() };
    let started = Instant::now();
    let publisher = StorePublisher::start(store.clone(), &publish)?;
    ensure!(publisher.wait_for(store.last_id(), TIMEOUT), "not published: {:?}", publisher.status());
    figures.add("first set from the store, records/s", records as f64 / started.elapsed().as_secs_f64());
    figures.add("memory meanwhile, MiB", memory.take_mib());
    Ok(figures)
}

fn import(store: &Store, dir: &Path, records: u64) -> anyhow::Result<()> {
    let mut bulk = store.bulk(dir, SORT_LEN);
    bulk.home(PREFIX);
    let (mut record, mut encoded) = (ShortRecord::default(), Vec::new());
    for n in 0..records {
        record.make(n);
        encoded.clear();
        bulk.add(&record.handle, Values::build([Value::new(1, b"URL", &record.url)], &mut encoded))?;
    }
    bulk.finish(|_| {})?;
    Ok(())
}

/// Reads records in random order; nanoseconds for each.
fn read(store: &Store, records: u64, random: &mut BenchRandom) -> anyhow::Result<f64> {
    let (snapshot, mut record, started) = (store.snapshot()?, ShortRecord::default(), Instant::now());
    for _ in 0..READ {
        record.make(random.below(records));
        ensure!(snapshot.record(&record.handle)?.is_some(), "an imported record is missing");
    }
    Ok(started.elapsed().as_secs_f64() * 1e9 / READ as f64)
}

/// Creates further records; nanoseconds for each.
fn create(store: &Store, records: u64) -> anyhow::Result<f64> {
    let (mut record, started) = (ShortRecord::default(), Instant::now());
    for n in records..records + CREATED {
        record.make(n);
        let key = record.handle.clone();
        let url = record.url.clone();
        store.change(move |transaction| {
            transaction.put(&key, Values::build([Value::new(1, b"URL", &url)], &mut Vec::new()))
        })?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e9 / CREATED as f64)
}
