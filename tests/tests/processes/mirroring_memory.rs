//! A mirror that is far behind catches up in bounded memory, at both processes.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{Value, Values};
use handle_store::{Store, StoreConfig};
use handle_tests::mirror_pair::MirroredService;
use handle_tests::process::until;
use handle_tests::service_directory::InitialisedService;
use std::fs;
use std::time::{Duration, Instant};

/// Transactions that the mirror lacks, many times as many as share a commit.
const TRANSACTIONS: u64 = 300_000;
/// Transactions in one commit of the primary, which is not running.
const COMMITTED_TOGETHER: u64 = 20_000;
/// Length of a value.
const DATA_LEN: usize = 100;
/// Most bytes that a process may need for the stream, next to its page cache of 4 MiB.
const GROWTH_MAX: u64 = 20 << 20;
/// Longest time for the stream.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Leaves little memory for pages of the store. Nothing is published, so that only the stream needs
/// memory.
fn configure(service: &InitialisedService) {
    let config = service.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains("[store]\n") && text.contains("directory = \"snapshot\"\n"), "{text}");
    let text = text.replace("directory = \"snapshot\"\n", "");
    fs::write(&config, text.replace("[store]\n", "[store]\ncache_bytes = 4194304\n")).unwrap();
}

/// Makes the transactions in the store of a stopped primary.
fn change_many(service: &InitialisedService) {
    let store = Store::open(&StoreConfig::at(&service.path("site/store.redb"))).unwrap();
    for first in (0..TRANSACTIONS).step_by(usize::try_from(COMMITTED_TOGETHER).unwrap()) {
        let changed = store.change(move |transaction| {
            let (mut buffer, data) = (Vec::new(), [b'x'; DATA_LEN]);
            let values = Values::build([Value::new(1, b"URL", &data)], &mut buffer);
            (first..first + COMMITTED_TOGETHER)
                .try_for_each(|n| transaction.put(format!("10.1045/N{n:06}").as_bytes(), values))
        });
        changed.unwrap();
    }
}

/// A line of `/proc/<pid>/status` in bytes.
fn memory(service: &InitialisedService, line: &str) -> u64 {
    let pid = service.admin.as_ref().unwrap().0.id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix(line)).unwrap();
    line.trim_matches([':', '\t', ' ', 'k', 'B']).parse::<u64>().unwrap() * 1024
}

#[test]
fn a_mirror_that_is_far_behind_catches_up_in_bounded_memory() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    configure(&service.primary);
    configure(&service.mirror);
    service.start();
    until("the mirror follows", || service.progress()["activity"] == "following");
    let mirror_before = memory(&service.mirror, "VmRSS");
    (service.primary.admin, service.mirror.admin) = (None, None);
    change_many(&service.primary);
    service.primary.start_admin();
    let primary_before = memory(&service.primary, "VmRSS");
    service.mirror.start_admin();
    let (started, mut progress) = (Instant::now(), service.progress());
    while progress["last_transaction"].as_u64() < Some(TRANSACTIONS) || progress["is_partial"] == true {
        assert!(started.elapsed() < TIMEOUT, "{progress}");
        std::thread::sleep(Duration::from_millis(50));
        progress = service.progress();
    }
    let counts = &progress["counts"];
    assert_eq!((&counts["dumps"], &counts["items"]), (&0.into(), &TRANSACTIONS.into()), "{progress}");
    let bytes = counts["bytes"].as_u64().unwrap();
    let growth = [(&service.primary, primary_before), (&service.mirror, mirror_before)]
        .map(|(process, before)| memory(process, "VmHWM").saturating_sub(before));
    println!("{bytes} bytes in {:?}: primary and mirror grow by {growth:?} bytes", started.elapsed());
    assert!(bytes > 2 * GROWTH_MAX, "a stream of {bytes} bytes");
    assert!(growth.iter().all(|&growth| growth < GROWTH_MAX), "{growth:?} bytes");
}
