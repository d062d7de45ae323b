//! Object storage that is slow, ends connections, fails or lies, and processes that are killed.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_fleet::{FetchError, FetchOutcome, RefusalReason, SetFetcher, ShipError, ShipOutcome};
use handle_snapshot::set::manifest::Manifest;
use handle_snapshot::set::read_manifest;
use handle_tests::bucket_server::BucketFault::{
    self, AnswerLost, CutAfter, Delay, Nothing, ShortBy, Status, Trickle, WrongBit,
};
use handle_tests::bucket_server::{BucketRequest, SECRET, options};
use handle_tests::fleet::{TestFleet, TestPublisher, TestSigner, verified, write_secret};
use handle_tests::process::{RunningProcess, hdl, program, until};
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const RUNS: &dyn Fn() -> bool = &|| false;

/// More than the time of a request.
const LONG: Duration = Duration::from_secs(5);

#[test]
fn a_download_continues_where_connections_were_cut() {
    let fleet = TestFleet::over_s3();
    let published = fleet.publisher("published", None).publish(0..6000, &"text ".repeat(20), true);
    fleet.shipper("published").ship().unwrap();
    let len = published.layers[0].len;
    let chunks = len.div_ceil(64 << 10);
    assert!(chunks >= 10, "{chunks} chunks");
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    // Of each attempt, the reads after the third are cut, and so are their repetitions.
    fleet.bucket().set_faults(move |request: &BucketRequest| match request.reads(".layer") {
        true if counted.fetch_add(1, Ordering::Relaxed) >= 3 => CutAfter(1000),
        _ => Nothing,
    });
    let (mut attempts, mut received) = (0, 0);
    let mut resumed = 0;
    loop {
        // Each attempt is one of a new process.
        requests.store(0, Ordering::Relaxed);
        let mut fetcher = fleet.fetcher(None);
        let fetched = fetcher.fetch(RUNS);
        received += fetcher.counters().layer_bytes.get();
        resumed = resumed.max(fetcher.counters().resumed_bytes.get());
        attempts += 1;
        match fetched {
            Ok(FetchOutcome::Published) => break,
            // An attempt whose first chunk is cut, one of four, keeps nothing.
            Err(FetchError::Store(_)) => assert!(attempts < chunks * 10, "{received} of {len} bytes"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(verified(&fleet.path("set")), Some(published));
    assert!(attempts > 1 && resumed > 0, "{attempts} attempts, {resumed} bytes used again");
    assert_eq!(received, len, "no byte is used twice");
}

/// A fleet whose machine has a set, and whose store has a later one.
struct FaultyFleet {
    fleet: TestFleet,
    publisher: TestPublisher,
    fetcher: SetFetcher,
    old: Manifest,
    new: Manifest,
}

impl FaultyFleet {
    fn start() -> Self {
        let fleet = TestFleet::over_s3();
        let signer = TestSigner::generate();
        let mut publisher = fleet.publisher("published", Some(&signer));
        let old = publisher.publish(0..100, "old", true);
        let (mut shipper, mut fetcher) = (fleet.shipper("published"), fleet.fetcher(Some(signer.accepted())));
        shipper.ship().unwrap();
        fetcher.fetch(RUNS).unwrap();
        let new = publisher.publish(0..3000, "new", true);
        shipper.ship().unwrap();
        Self { fleet, publisher, fetcher, old, new }
    }

    /// An attempt to fetch with this fault of the objects whose names end so; it takes little more
    /// than the time of a request, and the old set stays.
    #[track_caller]
    fn attempt(&mut self, suffix: &'static str, fault: BucketFault) -> FetchError {
        let decide = move |request: &BucketRequest| if request.reads(suffix) { fault } else { Nothing };
        self.fleet.bucket().set_faults(decide);
        let started = Instant::now();
        let error = self.fetcher.fetch(RUNS).unwrap_err();
        assert!(started.elapsed() < LONG, "{suffix} {fault:?}: {:?}", started.elapsed());
        assert_eq!(verified(&self.fleet.path("set")).as_ref(), Some(&self.old), "{suffix} {fault:?}");
        self.fleet.bucket().clear_faults();
        error
    }
}

#[test]
fn a_store_that_fails_or_lies_leaves_the_old_set() {
    let mut faulty = FaultyFleet::start();
    let failing = [
        Status(500),
        Status(503),
        Status(429),
        Status(403),
        CutAfter(10),
        AnswerLost,
        Delay(LONG),
        Trickle(20),
    ];
    for suffix in ["/MANIFEST", ".layer"] {
        for fault in failing {
            let error = faulty.attempt(suffix, fault);
            assert!(matches!(error, FetchError::Store(_)), "{suffix} {fault:?}: {error}");
        }
    }
    let error = faulty.attempt("/MANIFEST", Status(404));
    assert!(matches!(error, FetchError::NothingPublished), "{error}");
    let error = faulty.attempt(".layer", Status(404));
    assert!(matches!(error, FetchError::Store(_)), "{error}");
    // Less than the answer promises is a fault of the manifest; a chunk that is short, of the
    // store.
    for fault in [ShortBy(5), WrongBit(3), WrongBit(200)] {
        let error = faulty.attempt("/MANIFEST", fault);
        assert!(matches!(error, FetchError::Refused(RefusalReason::Damaged, _)), "{fault:?}: {error}");
    }
    let error = faulty.attempt(".layer", ShortBy(5));
    assert!(matches!(error, FetchError::Store(_)), "{error}");
    for at in [0, 100, 5000] {
        let error = faulty.attempt(".layer", WrongBit(at));
        assert!(matches!(error, FetchError::Layer(..)), "byte {at}: {error}");
    }
    assert_eq!(faulty.fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
    assert_eq!(verified(&faulty.fleet.path("set")), Some(faulty.new));
}

#[test]
fn a_statement_that_cannot_be_read_does_not_delay_a_set() {
    let mut faulty = FaultyFleet::start();
    faulty.publisher.publisher().renew_statement(handle_daemon::clock::now_unix_ms() + 1000).unwrap();
    let mut shipper = faulty.fleet.shipper("published");
    shipper.ship().unwrap();
    assert!(shipper.ship_statement().unwrap());
    faulty.fleet.bucket().set_faults(|request| match request.reads("/HEARTBEAT") {
        true => Status(500),
        false => Nothing,
    });
    assert!(matches!(faulty.fetcher.fetch(RUNS), Err(FetchError::Store(_))));
    assert_eq!(verified(&faulty.fleet.path("set")).as_ref(), Some(&faulty.new));
    faulty.fleet.bucket().clear_faults();
    assert_eq!(faulty.fetcher.fetch(RUNS).unwrap(), FetchOutcome::Renewed);
}

#[test]
fn a_publisher_survives_a_store_that_fails_while_it_writes() {
    let fleet = TestFleet::over_s3();
    let mut publisher = fleet.publisher("published", None);
    publisher.publish(0..10, "first", true);
    let mut shipper = fleet.shipper("published");
    shipper.ship().unwrap();
    for suffix in ["/MANIFEST", ".layer"] {
        for fault in [Status(500), Status(503), Status(403), Delay(LONG), AnswerLost] {
            let published = publisher.publish(0..10, &format!("{suffix} {fault:?}"), true);
            let decide = move |request: &BucketRequest| match request.writes(suffix) {
                true => fault,
                false => Nothing,
            };
            fleet.bucket().set_faults(decide);
            let started = Instant::now();
            let error = shipper.ship().unwrap_err();
            assert!(matches!(error, ShipError::Store(_)), "{suffix} {fault:?}: {error}");
            assert!(!error.is_final() && started.elapsed() < LONG, "{suffix} {fault:?}: {error}");
            fleet.bucket().clear_faults();
            // What the store has done, though its answer was lost, is recognised.
            let outcome = shipper.ship().unwrap();
            let was_written = suffix == "/MANIFEST" && fault == AnswerLost;
            assert_eq!(outcome == ShipOutcome::Unchanged, was_written, "{suffix} {fault:?}: {outcome:?}");
            assert_eq!(read_manifest(&fleet.store_dir()).unwrap(), published);
        }
    }
}

/// A port on which no process listens at this moment.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn publisher_machine_and_store_are_killed_and_the_last_set_arrives() {
    let kills: usize = std::env::var("HANDLE_KILLS").map_or(12, |count| count.parse().unwrap());
    let seed = std::env::var("HANDLE_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("seed {seed}, {kills} kills");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let fleet = TestFleet::new();
    let mut publisher = fleet.publisher("published", None);
    let address = ([127, 0, 0, 1], free_port()).into();
    let lines = options(address, SECRET);
    write_secret(&fleet.path("credentials"), &lines);
    let quiet = |mut command: Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let start_store = || {
        let mut store = Command::new(program("handle-tests", "bucket_server"));
        store.arg(fleet.path("buckets")).arg(address.to_string());
        RunningProcess::start(quiet(store))
    };
    let start_ship = || {
        let mut ship = hdl(["ship"]);
        ship.arg(fleet.path("published")).args(["s3://sets/mine", "--follow", "--grace", "0"]);
        ship.args(["--sets-kept", "2", "--credentials-file"]).arg(fleet.path("credentials"));
        RunningProcess::start(quiet(ship))
    };
    let config = fleet.path("fetch.toml");
    let storage = "[storage]\ntimeout_ms = 2000\ncredentials_file";
    let file = fleet.path("credentials");
    std::fs::write(&config, format!("interval_ms = 10\n{storage} = {file:?}\n")).unwrap();
    let start_fetch = || {
        let mut fetch = Command::new(program("handle-fetch", "handle-fetch"));
        fetch.arg("s3://sets/mine").arg(fleet.path("set")).arg("--config").arg(&config);
        fetch.env("HANDLE_FETCH_ALLOW_ROOT", "true");
        RunningProcess::start(quiet(fetch))
    };
    let mut roots = BTreeSet::from([publisher.publish(0..2000, "start", true).root.to_string()]);
    let (mut store, mut ship, mut fetch) = (start_store(), start_ship(), start_fetch());
    for kill in 0..kills {
        let records = if kill % 4 == 3 { 0..2000 + kill } else { 0..20 };
        let manifest = publisher.publish(records, &format!("turn {kill}"), kill % 4 == 3);
        roots.insert(manifest.root.to_string());
        std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
        let (process, start): (_, &dyn Fn() -> RunningProcess) = match random.random_range(0..3) {
            0 => (&mut store, &start_store),
            1 => (&mut ship, &start_ship),
            _ => (&mut fetch, &start_fetch),
        };
        process.signal("KILL");
        process.wait();
        if let Some(manifest) = verified(&fleet.path("set")) {
            assert!(roots.contains(&manifest.root.to_string()), "kill {kill}: a set of the publisher");
        }
        *process = start();
    }
    let last = publisher.publish(0..1, "the end", false);
    // `hdl ship` ends if the store does not answer when it starts.
    until("the last set is there", || {
        if ship.0.try_wait().unwrap().is_some() {
            ship = start_ship();
            std::thread::sleep(Duration::from_millis(200));
        }
        verified(&fleet.path("set")).is_some_and(|set| set.root == last.root)
    });
    assert_eq!(verified(&fleet.path("set")), Some(last));
}
