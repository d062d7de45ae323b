//! `handle-fetch` is killed at random moments while sets are published: the directory always has a
//! complete set of the publisher, and in the end the last one.

use handle_tests::fleet::{TestFleet, TestSigner, verified};
use handle_tests::process::{RunningProcess, program, until};
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn a_killed_fetcher_leaves_a_complete_set_and_catches_up() {
    let kills: usize = std::env::var("HANDLE_KILLS").map_or(30, |count| count.parse().unwrap());
    let seed = std::env::var("HANDLE_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("seed {seed}, {kills} kills");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let fleet = TestFleet::new();
    let signer = TestSigner::generate();
    let mut publisher = fleet.publisher("published", Some(&signer));
    let mut roots = BTreeSet::from([publisher.publish(0..2000, "start", true).root.to_string()]);
    let mut shipper = fleet.shipper_with_steps("published", 64 << 10);
    shipper.ship().unwrap();
    let start = || {
        let mut fetch = Command::new(program("handle-fetch", "handle-fetch"));
        fetch.arg(format!("file://{}", fleet.path("store").display())).arg(fleet.path("set"));
        fetch.env("HANDLE_FETCH_ALLOW_ROOT", "true").args(["--log", "off"]).stdin(Stdio::null());
        let config = fleet.path("fetch.toml");
        std::fs::write(&config, "interval_ms = 10\ngrace_s = 1\n").unwrap();
        RunningProcess::start({
            fetch.arg("--config").arg(config);
            fetch
        })
    };
    // Built before the first kill.
    drop(start());
    let is_over = AtomicBool::new(false);
    let (sender, receiver) = std::sync::mpsc::channel();
    let last = std::thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            let mut at = 0;
            while !is_over.load(Ordering::Relaxed) {
                at += 1;
                let is_base = at % 5 == 0;
                let records = if is_base { 0..2000 + at } else { 0..20 };
                let manifest = publisher.publish(records, &format!("turn {at}"), is_base);
                sender.send(manifest.root.to_string()).unwrap();
                shipper.ship().unwrap();
                shipper.collect(handle_daemon::clock::now_unix_ms()).unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
            publisher.publish(0..1, "the end", false)
        });
        for kill in 0..kills {
            let mut process = start();
            std::thread::sleep(Duration::from_millis(random.random_range(0..150)));
            process.signal("KILL");
            process.wait();
            roots.extend(receiver.try_iter());
            if let Some(manifest) = verified(&fleet.path("set")) {
                assert!(roots.contains(&manifest.root.to_string()), "kill {kill}: a set of the publisher");
            }
        }
        is_over.store(true, Ordering::Relaxed);
        publishing.join().unwrap()
    });
    shipper.ship().unwrap();
    let _process = start();
    until("the last set is there", || verified(&fleet.path("set")).is_some_and(|set| set.root == last.root));
    assert_eq!(verified(&fleet.path("set")), Some(last));
}
