//! A primary and its mirror are killed at random moments while records change: in the end, both
//! have the same records, and meanwhile the server of the mirror shows whole records, newer and
//! newer.

use handle_proto::{ResponseCode, Value};
use handle_snapshot::comparison::{ComparisonRules, ComparisonScope, ComparisonTree};
use handle_snapshot::set::PublishedSet;
use handle_snapshot::{LoadMode, Sha256Sum};
use handle_tests::client::TestClient;
use handle_tests::mirror_pair::MirroredService;
use handle_tests::process::until;
use handle_tests::service_directory::InitialisedService;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Kills, unless `HANDLE_KILLS` has another number.
const KILLS: usize = 30;

/// A record whose two values have the same number, which only grows.
const COUNTED: &str = "10.1045/COUNTED";

/// Asks a server for [`COUNTED`] until `is_over`: both values always belong together, and the
/// number never goes back. Returns how many numbers it has seen.
fn watch(server: SocketAddr, is_over: Arc<AtomicBool>) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut client = TestClient::new(server);
        let (mut last, mut seen_count) = (0, 0);
        while !is_over.load(Ordering::Relaxed) {
            let reply = client.resolve(COUNTED.as_bytes()).expect("the server of the mirror answers");
            assert_eq!(reply.code, ResponseCode::SUCCESS, "the record is never missing");
            let (first, rest) = Value::split(&reply.values).expect("a value");
            let (second, _) = Value::split(rest).expect("a second value");
            assert_eq!(first.data, second.data, "values of one transaction");
            let number: u64 = std::str::from_utf8(first.data).expect("text").parse().expect("a number");
            assert!(number >= last, "from {last} back to {number}");
            seen_count += u64::from(number > last);
            last = number;
            std::thread::sleep(Duration::from_millis(1));
        }
        seen_count
    })
}

/// The root of a tree over all values of the published set, private ones included.
fn comparison_root(service: &InitialisedService) -> Sha256Sum {
    let set = PublishedSet::open(&service.path("site/snapshot"), LoadMode::Map).expect("a complete set");
    let bits = ComparisonRules::bits_for(set.handles_count());
    let rules = ComparisonRules { nonce: [7; 16], scope: ComparisonScope::Values, bits };
    ComparisonTree::of(set.layers(), rules, &|_| ()).expect("intact records").root()
}

#[test]
fn a_killed_primary_and_a_killed_mirror_end_equal() {
    let kills = std::env::var("HANDLE_KILLS").map_or(KILLS, |count| count.parse().expect("a number"));
    let seed = std::env::var("HANDLE_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("seed {seed}, {kills} kills");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    // Small batches, so that many commits can be interrupted, also those of dumps.
    let mut service = MirroredService::make("dump_bytes = 4096", "interval_ms = 50");
    service.start();
    let mut administrator = service.administrator();
    let mut acknowledged = BTreeMap::new();
    let mut number = 1_u64;
    assert!(administrator.put_public(COUNTED, "1").is_some());
    until("the mirror has the record", || service.is_equal());
    service.mirror.start_handled();
    let is_over = Arc::new(AtomicBool::new(false));
    let watching = watch(service.mirror.queries, Arc::clone(&is_over));
    for kill in 0..kills {
        let until_kill = Instant::now() + Duration::from_millis(random.random_range(0..250));
        while Instant::now() < until_kill {
            number += 1;
            administrator.put_public(COUNTED, &number.to_string());
            let (n, data) = (random.random_range(0..200), format!("{kill} {}", random.random_range(0..1000)));
            let handle = format!("10.1045/n{n}");
            let answer = match random.random_bool(0.2) {
                true => administrator.delete(&handle).map(|(code, _)| (code, None)),
                false => administrator.put(&handle, &data).map(|(code, _)| (code, Some(data))),
            };
            if let Some((ResponseCode::SUCCESS | ResponseCode::HANDLE_NOT_FOUND, data)) = answer {
                acknowledged.insert(handle, data);
            }
        }
        let (is_primary, restarts_log) = (random.random_bool(0.5), random.random_bool(0.2));
        let killed = if is_primary { &mut service.primary } else { &mut service.mirror };
        if let Some(process) = &mut killed.admin {
            process.signal("KILL");
            process.wait();
        }
        killed.admin = None;
        if is_primary && restarts_log {
            // The log begins anew, as after an import, so that the mirror has to dump.
            let (store, directory) = (killed.path("site/store.redb"), killed.path("site"));
            let store = handle_store::Store::open(&handle_store::StoreConfig::at(&store));
            let store = store.expect("a store that opens after a kill");
            store.bulk(&directory, 1 << 20).finish(|_| ()).expect("nothing to load");
        }
        killed.start_admin();
        if is_primary {
            administrator = service.administrator();
        }
    }
    until("the sets are equal", || service.is_equal());
    until("the mirror follows", || service.progress()["activity"] == "following");
    assert_eq!(comparison_root(&service.primary), comparison_root(&service.mirror));
    is_over.store(true, Ordering::Relaxed);
    let seen_count = watching.join().expect("what the server of the mirror shows");
    assert!(seen_count > 1, "the server of the mirror shows changes");
    let published = service.mirror.published();
    for (handle, data) in &acknowledged {
        let name = format!("\"{}\"", handle.to_uppercase());
        let line = published.iter().find(|line| line.contains(&name));
        match data {
            Some(data) => assert!(line.is_some_and(|line| line.contains(data)), "{handle}: {data}, {line:?}"),
            None => assert_eq!(line, None, "{handle} was deleted"),
        }
    }
    let counts = service.progress()["counts"].clone();
    println!("{seen_count} of {number} numbers were seen at the mirror");
    println!("{} records were acknowledged; the last mirror process: {counts}", acknowledged.len());
    service.stop_and_compare();
}
