//! A set of short records.

use super::records::{PREFIX, ShortRecord};
use super::{Figures, PrivateMemory};
use anyhow::Context as _;
use handle_benches::lookups::{self, BATCH_LEN, LookupKeys};
use handle_benches::records::BenchRandom;
use handle_benches::sets::{OPTIONS, warm};
use handle_benches::spread::Spread;
use handle_benches::usage::{self, Usage};
use handle_proto::Value;
use handle_snapshot::{BuildError, Builder, HomedPrefixes, LoadMode, PublishedSet, SetPublisher};
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Keys that are looked up: more than fit into any processor cache.
const KEYS_COUNT: usize = 1 << 21;
/// Measurements of lookups and of opening.
const ROUNDS: usize = 5;
/// Records of a publication.
const CHANGES: u64 = 1_000;
/// Distance between the numbers of the records of a publication.
const STRIDE: u64 = 7_919;
/// Publications.
const PUBLICATIONS: u64 = 100;
/// New layers that are merged into one before the next publication.
const MERGED_LAYERS: usize = 8;
/// Memory for sorting the records of a build.
const SORT_LEN: usize = 256 << 20;

pub(super) fn measure(dir: &Path, records: u64) -> anyhow::Result<Figures> {
    let (mut figures, memory) = (Figures::default(), PrivateMemory::watch());
    let dir = dir.join("set");
    std::fs::create_dir(&dir)?;
    build(&dir, records, &mut figures)?;
    figures.add("memory of the build, MiB", memory.take_mib());
    sizes(&dir, &mut figures)?;
    lookups(&dir, records, &mut figures)?;
    let mut publisher = SetPublisher::open(&dir)?;
    memory.take_mib();
    publish(&mut publisher, records, &mut figures)?;
    figures.add("memory of publishing, MiB", memory.take_mib());
    merge(&mut publisher, records, &mut figures)?;
    figures.add("memory of merging all, MiB", memory.take_mib());
    Ok(figures)
}

/// Adds one record to a layer.
fn add(builder: &mut Builder<'_>, record: &mut ShortRecord, n: u64) -> Result<(), BuildError> {
    record.make(n);
    builder.add(n, &record.handle, [Value::new(1, b"URL", &record.url)])
}

fn build(dir: &Path, records: u64, figures: &mut Figures) -> anyhow::Result<()> {
    let mut publisher = SetPublisher::open(dir)?;
    let (started, used) = (Instant::now(), Usage::of(std::process::id())?);
    publisher.publish_base(OPTIONS.created_unix_ms, |file, temp_dir| {
        let mut homed = HomedPrefixes::default();
        homed.add(PREFIX);
        let mut builder = Builder::new(temp_dir, OPTIONS).memory_len_max(SORT_LEN).homed(homed);
        let mut record = ShortRecord::default();
        for n in 0..records {
            add(&mut builder, &mut record, n)?;
        }
        builder.finish(file)
    })?;
    let (elapsed, used) = (started.elapsed(), Usage::of(std::process::id())? - used);
    figures.add("build, records/s", records as f64 / elapsed.as_secs_f64());
    figures.add("build by processor time, records/s", records as f64 / used.total().as_secs_f64());
    Ok(())
}

fn sizes(dir: &Path, figures: &mut Figures) -> anyhow::Result<()> {
    let mut opening = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        drop(PublishedSet::open(dir, LoadMode::Map)?);
        opening.push(started.elapsed().as_secs_f64() * 1e3);
    }
    figures.add("opening, ms", Spread::of(opening).median);
    let set = PublishedSet::open(dir, LoadMode::Map)?;
    let header = set.layers().first().context("a layer")?.header();
    let handles = header.handles_count as f64;
    figures.add("index, bytes a handle", header.index_len as f64 / handles);
    figures.add("set, bytes a handle", set.bytes_mapped() as f64 / handles);
    Ok(())
}

fn lookups(dir: &Path, records: u64, figures: &mut Figures) -> anyhow::Result<()> {
    let set = PublishedSet::open(dir, LoadMode::Map)?;
    warm(&set);
    let (mut random, mut record) = (BenchRandom(1), ShortRecord::default());
    let mut keys = LookupKeys::of(KEYS_COUNT, |out| {
        record.make(random.below(records));
        out.extend_from_slice(&record.handle);
    });
    let records = set.records();
    let (mut one, mut batch) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let started = usage::thread_time();
        for _ in 0..KEYS_COUNT {
            black_box(lookups::one(&records, &mut keys));
        }
        one.push((usage::thread_time() - started).as_secs_f64() * 1e9 / KEYS_COUNT as f64);
        let started = usage::thread_time();
        for _ in 0..KEYS_COUNT / BATCH_LEN {
            black_box(lookups::batch(&records, &mut keys));
        }
        batch.push((usage::thread_time() - started).as_secs_f64() * 1e9 / KEYS_COUNT as f64);
    }
    figures.add("lookup, ns", Spread::of(one).median);
    figures.add("lookup in batches of 32, ns", Spread::of(batch).median);
    Ok(())
}

/// Publishes changes of existing records. Their layers are merged in between, as `handle-admin`
/// does beside publishing.
fn publish(publisher: &mut SetPublisher, records: u64, figures: &mut Figures) -> anyhow::Result<()> {
    let (mut random, mut record, mut times) = (BenchRandom(2), ShortRecord::default(), Vec::new());
    let mut publish = |publisher: &mut SetPublisher| -> anyhow::Result<f64> {
        let started = Instant::now();
        publisher.publish_delta(OPTIONS.created_unix_ms, |file, temp_dir| {
            let mut builder = Builder::new(temp_dir, OPTIONS);
            let first = random.below(records);
            for change in 0..CHANGES {
                add(&mut builder, &mut record, (first + change * STRIDE) % records)?;
            }
            builder.finish(file)
        })?;
        Ok(started.elapsed().as_secs_f64())
    };
    // The first one reads the tree over all records, as a publisher does when it starts.
    figures.add("first publication after a start, s", publish(publisher)?);
    let mut unmerged = 1;
    for _ in 0..PUBLICATIONS {
        times.push(publish(publisher)? * 1e3);
        unmerged += 1;
        if unmerged == MERGED_LAYERS {
            merge_newest(publisher, MERGED_LAYERS)?;
            unmerged = 0;
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |per_cent: usize| times[(times.len() - 1) * per_cent / 100];
    figures.add("publishing 1,000 changes, median, ms", at(50));
    figures.add("publishing 1,000 changes, p99, ms", at(99));
    Ok(())
}

fn merge_newest(publisher: &mut SetPublisher, count: usize) -> anyhow::Result<()> {
    let set = publisher.manifest().context("a published set")?.clone();
    let now = OPTIONS.created_unix_ms;
    let layer = publisher.stager().stage_merge(&set, 0..count, now, |_| ControlFlow::Continue(()))?;
    publisher.publish(layer, now)?;
    Ok(())
}

fn merge(publisher: &mut SetPublisher, records: u64, figures: &mut Figures) -> anyhow::Result<()> {
    let layers_count = publisher.manifest().context("a published set")?.layers.len();
    let started = Instant::now();
    merge_newest(publisher, layers_count)?;
    figures.add("merging all layers, records/s", records as f64 / started.elapsed().as_secs_f64());
    Ok(())
}
