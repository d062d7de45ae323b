//! Publication while serving: no answer is lost, wrong or from a retired set, and no set stays
//! mapped.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_daemon::clock::now_unix_ms;
use handle_loadgen::{LoadPattern, NameOptions, ReferenceData, RunOptions, Verify};
use handle_proto::Value;
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::records::{self, Record};
use handle_tests::test_server;
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Workers that answer.
const WORKERS: usize = 2;
/// Sets published per second.
const PUBLISHED_PER_S: u32 = 10;
/// Layers that a set may have before they are merged.
const LAYERS_MAX: usize = 6;
/// Requests per second: enough that some are in flight whenever a set is replaced.
const RATE: NonZeroU64 = NonZeroU64::new(5_000).unwrap();

/// Publishes a delta: some records changed, one deleted, and the one deleted before restored.
fn publish_changes(publisher: &mut SetPublisher, records: &[Record], round: usize) {
    let options = publisher.options(now_unix_ms()).unwrap();
    let published = publisher.publish_delta(now_unix_ms(), |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options);
        let (deleted, restored) = (round % records.len(), (round + records.len() - 1) % records.len());
        builder.delete(0, records[deleted].handle.as_bytes())?;
        for offset in 0..20 {
            let at = (restored + 31 * offset) % records.len();
            if at != deleted {
                let url = format!("https://changed.example/{round}");
                builder.add(1, records[at].handle.as_bytes(), [Value::new(1, b"URL", url.as_bytes())])?;
            }
        }
        builder.finish(file)
    });
    published.unwrap();
    let manifest = publisher.manifest().unwrap().clone();
    if manifest.layers.len() > LAYERS_MAX {
        // Merges the deltas, and every fifth time all layers.
        let count = manifest.layers.len() - usize::from(!round.is_multiple_of(5));
        let merged = publisher
            .stager()
            .stage_merge(&manifest, 0..count, now_unix_ms(), |_| ControlFlow::Continue(()))
            .unwrap();
        publisher.publish(merged, now_unix_ms()).unwrap();
        publisher.prune(SystemTime::now(), Duration::from_secs(2)).unwrap();
    }
}

/// Names of the files in `directory` that this process has mapped, including deleted ones. The
/// server's count of mapped bytes includes the sets of other tests.
fn mapped_files(directory: &Path) -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let below = format!("{}/", directory.display());
    let names = maps.lines().filter_map(|line| Some(line.split_once(&below)?.1.to_owned()));
    names.collect()
}

/// Seconds of load, set by `HANDLE_SOAK_SECONDS`.
fn seconds() -> u64 {
    std::env::var("HANDLE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(30)
}

#[test]
fn ten_sets_per_second_lose_no_answer_and_leave_no_mapping() {
    let records = records::load();
    let directory = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(directory.path()).unwrap();
    records::publish(&mut publisher, &records, now_unix_ms());
    let config = Config { workers: WORKERS, ..test_server::config(directory.path(), Datapath::Auto) };
    let server = Server::start(&config).unwrap();
    let mut options =
        RunOptions::new(server.addresses()[0], NameOptions::Snapshot(directory.path().to_owned()));
    options.load = LoadPattern::Open { rate: RATE };
    options.duration = Duration::from_secs(seconds());
    // The kernel gives each socket to one of the workers: all to the same one once in 2^31 runs.
    options.threads = 32;
    options.verify = Some(Verify::with(ReferenceData::Snapshot(directory.path().to_owned())));
    let report = std::thread::scope(|scope| {
        let load = scope.spawn(|| handle_loadgen::run(&options, |_| ControlFlow::Continue(())).unwrap());
        let started = Instant::now();
        for round in 0.. {
            if load.is_finished() {
                break;
            }
            publish_changes(&mut publisher, &records, round);
            std::thread::sleep(
                (started + (u32::try_from(round).unwrap() + 1) * Duration::from_secs(1) / PUBLISHED_PER_S)
                    .saturating_duration_since(Instant::now()),
            );
        }
        load.join().unwrap()
    });
    let verified = report.verification.as_ref().unwrap();
    println!(
        "{} sent, {} generations, oldest answer {:.1} ms after the end of its set",
        report.accounts.sent, verified.generations, verified.staleness_max_ms
    );
    assert_eq!(verified.mismatched, 0, "{:?}", verified.mismatches);
    assert_eq!(verified.undecided, 0);
    assert_eq!(verified.verified, report.accounts.answered, "every answer was compared");
    assert_eq!(report.accounts.lost + report.accounts.late, 0, "{:?}", report.accounts);
    assert_eq!(report.accounts.malformed, 0);
    // On a busy machine fewer are published than are due.
    assert!(verified.generations > u64::from(PUBLISHED_PER_S) * seconds() / 10, "sets were really replaced");
    for worker in 0..WORKERS {
        let answered = server.shared().shards.shard(worker).requests_answered.get();
        assert!(answered > 0, "worker {worker} took part");
    }
    // The last set becomes live.
    let manifest = publisher.manifest().unwrap().clone();
    drop(publisher);
    let live = &server.shared().live;
    let deadline = Instant::now() + Duration::from_secs(5);
    let layers: BTreeSet<String> = manifest.layers.iter().map(|layer| layer.file.clone()).collect();
    while (live.current().generation() != manifest.generation || mapped_files(directory.path()) != layers)
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(live.current().generation(), manifest.generation);
    assert_eq!(mapped_files(directory.path()), layers, "retired sets are still mapped");
    server.stop().unwrap();
    assert_eq!(mapped_files(directory.path()), BTreeSet::new());
}
