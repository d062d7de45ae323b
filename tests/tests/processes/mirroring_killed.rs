//! A primary and its mirror are killed at random moments while records change: in the end, both have
//! the same records.

use handle_proto::ResponseCode;
use handle_tests::mirror_pair::MirroredService;
use handle_tests::process::until;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Kills, unless `HANDLE_KILLS` has another number.
const KILLS: usize = 30;

#[test]
fn a_killed_primary_and_a_killed_mirror_end_equal() {
    let kills = std::env::var("HANDLE_KILLS").map_or(KILLS, |count| count.parse().expect("a number"));
    let seed = std::env::var("HANDLE_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("seed {seed}, {kills} kills");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    // Small batches, so that many commits can be interrupted, also those of dumps.
    let mut service = MirroredService::make("retry_ms_max = 100\nbatch_items = 3", "interval_ms = 50");
    service.start();
    let mut administrator = service.administrator();
    let mut acknowledged = BTreeMap::new();
    for kill in 0..kills {
        let until_kill = Instant::now() + Duration::from_millis(random.random_range(0..250));
        while Instant::now() < until_kill {
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
    println!("{} records were acknowledged; the last mirror process: {counts}", acknowledged.len());
}
