//! Sets on their way to other machines: through a store, verified, and from one publisher only.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use handle_daemon::clock::now_unix_ms;
use handle_fetch::Fetcher;
use handle_fleet::store::{ObjectRow, ObjectTag, PutCondition, StoredObject};
use handle_fleet::{
    FetchError, FetchOutcome, FleetStore, FleetStoreError, RefusalReason, SetShipper, ShipError, ShipLimits,
    ShipOutcome,
};
use handle_snapshot::set::read_manifest;
use handle_tests::fleet::{TestFleet, TestSigner, verified};
use handle_tests::process::{fail, hdl, program, succeed, until};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const RUNS: &dyn Fn() -> bool = &|| false;

#[test]
fn a_machine_gets_what_is_new_and_nothing_else() {
    ship_and_fetch(&TestFleet::new());
}

/// Ships a set, a change and a statement through the store of the fleet, and fetches each.
pub(crate) fn ship_and_fetch(fleet: &TestFleet) {
    let signer = TestSigner::generate();
    let mut publisher = fleet.publisher("published", Some(&signer));
    let base = publisher.publish(0..3000, "first", true);
    let (mut shipper, mut fetcher) = (fleet.shipper("published"), fleet.fetcher(Some(signer.accepted())));
    assert!(matches!(fetcher.fetch(RUNS), Err(FetchError::NothingPublished)));
    assert_eq!(shipper.ship().unwrap(), ShipOutcome::Shipped(base.layers[0].len));
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
    assert_eq!(verified(&fleet.path("set")), Some(base.clone()));
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Unchanged);
    assert_eq!(shipper.ship().unwrap(), ShipOutcome::Unchanged);

    let delta = publisher.publish(10..500, "second", false);
    assert_eq!(shipper.ship().unwrap(), ShipOutcome::Shipped(delta.layers[0].len));
    let before = fetcher.counters().layer_bytes.get() + fetcher.counters().manifest_bytes.get();
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
    let after = fetcher.counters().layer_bytes.get() + fetcher.counters().manifest_bytes.get();
    assert_eq!(verified(&fleet.path("set")), Some(delta.clone()));
    let (moved, changed) = (after - before, delta.layers[0].len);
    assert!(moved * 10 <= changed * 13, "{moved} bytes for a layer of {changed}");

    // The publisher states that its set is still current.
    publisher.publisher().renew_statement(now_unix_ms() + 1000).unwrap();
    assert!(shipper.ship_statement().unwrap() && !shipper.ship_statement().unwrap());
    let signed = fetcher.statement().unwrap().statement.signed_unix_ms;
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Renewed);
    assert!(fetcher.statement().unwrap().statement.signed_unix_ms > signed);
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Unchanged);
    assert_eq!(fetcher.counters().polls_failed.get(), 1, "the one before anything was shipped");
}

/// The set in the directory stays, and the refusal is counted once.
#[track_caller]
fn refused(fleet: &TestFleet, fetcher: &mut handle_fleet::SetFetcher, expected: RefusalReason) {
    let before = read_manifest(&fleet.path("set")).unwrap();
    let counts = |fetcher: &handle_fleet::SetFetcher| {
        let counters = fetcher.counters();
        [
            counters.refused_damaged.get(),
            counters.refused_unsigned.get(),
            counters.refused_foreign.get(),
            counters.refused_ahead.get(),
            counters.refused_older.get(),
            counters.refused_conflicting.get(),
        ]
    };
    let mut wanted = counts(fetcher);
    let reasons = [
        RefusalReason::Damaged,
        RefusalReason::Unsigned,
        RefusalReason::Foreign,
        RefusalReason::Ahead,
        RefusalReason::Older,
        RefusalReason::Conflicting,
    ];
    wanted[reasons.iter().position(|reason| *reason == expected).unwrap()] += 1;
    match fetcher.fetch(RUNS) {
        Err(FetchError::Refused(reason, _)) => assert_eq!(reason, expected),
        other => panic!("{other:?}"),
    }
    assert_eq!(counts(fetcher), wanted);
    assert_eq!(verified(&fleet.path("set")), Some(before));
}

#[test]
fn manifests_that_lie_are_refused_and_counted() {
    let fleet = TestFleet::new();
    let (signer, other) = (TestSigner::generate(), TestSigner::generate());
    let mut publisher = fleet.publisher("published", Some(&signer));
    let first = publisher.publish(0..100, "first", true);
    let (mut shipper, mut fetcher) = (fleet.shipper("published"), fleet.fetcher(Some(signer.accepted())));
    shipper.ship().unwrap();
    fetcher.fetch(RUNS).unwrap();
    let second = publisher.publish(0..100, "second", true);
    shipper.ship().unwrap();
    fetcher.fetch(RUNS).unwrap();

    let put = |text: &str| {
        fleet.store().put("MANIFEST", Bytes::from(text.to_owned()), &PutCondition::Always).unwrap();
    };
    let good = second.encode();
    for len in [0, 1, good.len() / 2, good.len() - 1] {
        put(&good[..len]);
        refused(&fleet, &mut fetcher, RefusalReason::Damaged);
    }
    for at in [5, 60, good.len() - 3] {
        let mut bytes = good.clone().into_bytes();
        bytes[at] ^= 1;
        put(&String::from_utf8_lossy(&bytes));
        refused(&fleet, &mut fetcher, RefusalReason::Damaged);
    }
    put(&"x".repeat(100_000));
    refused(&fleet, &mut fetcher, RefusalReason::Damaged);
    put(&first.encode());
    refused(&fleet, &mut fetcher, RefusalReason::Older);
    // A seal that was made for another set.
    let mut moved = second.clone();
    moved.generation += 5;
    put(&moved.encode());
    refused(&fleet, &mut fetcher, RefusalReason::Foreign);
    for (signer, expected) in [(None, RefusalReason::Unsigned), (Some(&other), RefusalReason::Foreign)] {
        let mut foreign = fleet.publisher("foreign", signer);
        for _ in 0..5 {
            foreign.publish(0..5, "foreign", true);
        }
        put(&read_manifest(&foreign.dir).unwrap().encode());
        refused(&fleet, &mut fetcher, expected);
        drop(foreign);
        std::fs::remove_dir_all(fleet.path("foreign")).unwrap();
    }
    // A publisher whose clock is a day ahead.
    const DAY_MS: u64 = 86_400_000;
    let mut ahead = fleet.publisher("ahead", Some(&signer));
    (0..5).for_each(|_| _ = ahead.publish_at(now_unix_ms() + DAY_MS, 0..5, "ahead", true));
    put(&read_manifest(&ahead.dir).unwrap().encode());
    refused(&fleet, &mut fetcher, RefusalReason::Ahead);
    // The same key in the hands of two publishers: the same generation, and other records.
    let mut twin = fleet.publisher("twin", Some(&signer));
    twin.publish(0..5, "first", true);
    let conflicting = twin.publish(0..5, "twin", true);
    put(&conflicting.encode());
    refused(&fleet, &mut fetcher, RefusalReason::Conflicting);
    put(&good);
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Unchanged);

    // A statement from tomorrow is not carried over, and the next one from now is.
    publisher.publisher().renew_statement(now_unix_ms() + DAY_MS).unwrap();
    assert!(shipper.ship_statement().unwrap());
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Unchanged);
    assert_eq!(fetcher.counters().statements_refused.get(), 1);
    publisher.publisher().renew_statement(now_unix_ms()).unwrap();
    assert!(shipper.ship_statement().unwrap());
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Renewed);

    // A statement of another publisher is not carried over.
    publisher.publisher().renew_statement(now_unix_ms() + 5000).unwrap();
    let statement = std::fs::read_to_string(publisher.dir.join("HEARTBEAT")).unwrap();
    let put_statement = |text: String| {
        fleet.store().put("HEARTBEAT", Bytes::from(text), &PutCondition::Always).unwrap();
    };
    put_statement(statement.replace("signed_unix_ms 1", "signed_unix_ms 2"));
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Unchanged);
    assert_eq!(fetcher.counters().statements_refused.get(), 2);
    put_statement(statement);
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Renewed);
}

#[test]
fn a_lower_epoch_is_refused_whatever_its_generation() {
    let fleet = TestFleet::new();
    let mut publisher = fleet.publisher("published", None);
    publisher.publish(0..10, "first", true);
    publisher.publisher().raise_epoch(3, now_unix_ms()).unwrap();
    let (mut shipper, mut fetcher) = (fleet.shipper("published"), fleet.fetcher(None));
    shipper.ship().unwrap();
    fetcher.fetch(RUNS).unwrap();
    let mut old = fleet.publisher("old", None);
    for _ in 0..9 {
        old.publish(0..10, "old", true);
    }
    let manifest = read_manifest(&old.dir).unwrap().encode();
    fleet.store().put("MANIFEST", Bytes::from(manifest), &PutCondition::Always).unwrap();
    refused(&fleet, &mut fetcher, RefusalReason::Older);
}

#[test]
fn damaged_layers_are_refused_and_the_rest_is_used_again() {
    let fleet = TestFleet::new();
    let mut publisher = fleet.publisher("published", None);
    let first = publisher.publish(0..100, "first", true);
    let (mut shipper, mut fetcher) = (fleet.shipper("published"), fleet.fetcher(None));
    shipper.ship().unwrap();
    fetcher.fetch(RUNS).unwrap();
    let second = publisher.publish(0..6000, "second", true);
    shipper.ship().unwrap();
    let stored = fleet.path("store").join(&second.layers[0].file);
    let good = std::fs::read(&stored).unwrap();
    let last = good.len() - 1;
    for at in [0, 170, 319, 320, 70_000, last] {
        let mut damaged = good.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&stored, damaged).unwrap();
        let before = fetcher.counters().layers_refused.get();
        assert!(matches!(fetcher.fetch(RUNS), Err(FetchError::Layer(..))), "byte {at}");
        assert_eq!(fetcher.counters().layers_refused.get(), before + 1, "byte {at}");
        assert_eq!(verified(&fleet.path("set")), Some(first.clone()), "byte {at}");
    }
    for len in [0, 100, good.len() / 2, last] {
        std::fs::write(&stored, &good[..len]).unwrap();
        assert!(matches!(fetcher.fetch(RUNS), Err(FetchError::Store(_))), "cut to {len}");
        assert_eq!(verified(&fleet.path("set")), Some(first.clone()), "cut to {len}");
    }
    std::fs::remove_file(&stored).unwrap();
    assert!(matches!(fetcher.fetch(RUNS), Err(FetchError::Store(error)) if error.is_not_found()));
    let kept = fetcher.counters().layer_bytes.get();
    std::fs::remove_file(fleet.path("set").join(format!("{}.part", second.layers[0].file))).unwrap();
    std::fs::write(&stored, &good).unwrap();
    // An attempt that is stopped, and one in a new process, share what is there.
    let chunks = AtomicUsize::new(0);
    let stopped = fetcher.fetch(&|| chunks.fetch_add(1, Ordering::Relaxed) >= 2);
    assert!(matches!(stopped, Err(FetchError::Stopped)));
    let kept_now = fetcher.counters().layer_bytes.get();
    drop(fetcher);
    let mut fetcher = fleet.fetcher(None);
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
    assert_eq!(verified(&fleet.path("set")), Some(second));
    let (resumed, rest) = (fetcher.counters().resumed_bytes.get(), fetcher.counters().layer_bytes.get());
    assert!(resumed >= 3 * (64 << 10), "{resumed}");
    assert_eq!(resumed + rest, good.len() as u64);
    assert!(kept_now > kept, "a part was downloaded before");
}

#[test]
fn a_layer_that_stays_damaged_is_not_downloaded_all_the_time() {
    let fleet = TestFleet::new();
    let published = fleet.publisher("published", None).publish(0..100, "first", true);
    fleet.shipper("published").ship().unwrap();
    let stored = fleet.path("store").join(&published.layers[0].file);
    let mut damaged = std::fs::read(&stored).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(stored, damaged).unwrap();
    let config = handle_fetch::Config {
        url: fleet.path("store").to_str().unwrap().to_owned(),
        directory: fleet.path("set"),
        interval_ms: 10,
        ..handle_fetch::Config::default()
    };
    let fetcher = Fetcher::start(&config).unwrap();
    let refused = || fetcher.state().counters.layers_refused.get();
    until("attempts are repeated", || refused() >= 3);
    std::thread::sleep(Duration::from_millis(600));
    // Six attempts, the last of them after 630 ms; 60 without pauses that double.
    assert!(refused() < 10, "{}", refused());
    assert!(fetcher.stop().is_ok());
}

#[test]
fn of_two_publishers_only_one_ships() {
    let rounds = std::env::var("HANDLE_RACES").map_or(60, |count| count.parse().unwrap());
    race(&TestFleet::new(), rounds);
}

/// Two publishers ship to the store of the fleet at the same time, so many times.
pub(crate) fn race(fleet: &TestFleet, rounds: u64) {
    let mut publishers = ["a", "b"].map(|name| fleet.publisher(name, None));
    for publisher in &mut publishers {
        let (name, dir) = (publisher.dir.clone(), publisher.dir.to_string_lossy().into_owned());
        publisher.publish(0..3, &dir, true);
        assert!(name.exists());
    }
    let mut winners = Vec::new();
    for round in 0..rounds {
        let remote = fleet.shipper("a").remote_epoch().unwrap();
        assert_eq!(remote, round, "one epoch in each round");
        for publisher in &mut publishers {
            // The first round is about who is first of all.
            if remote > 0 {
                publisher.publisher().raise_epoch(remote + 1, now_unix_ms()).unwrap();
            }
        }
        let race = |name: &'static str| fleet.shipper(name).ship();
        let [a, b] = std::thread::scope(|scope| {
            ["a", "b"].map(|name| scope.spawn(move || race(name))).map(|thread| thread.join().unwrap())
        });
        let (winner, error) = match (a, b) {
            (Ok(ShipOutcome::Shipped(_)), Err(error)) => ("a", error),
            (Err(error), Ok(ShipOutcome::Shipped(_))) => ("b", error),
            other => panic!("round {round}: {other:?}"),
        };
        assert!(matches!(error, ShipError::Fenced { .. }), "round {round}: {error}");
        let stored = read_manifest(&fleet.store_dir()).unwrap();
        assert_eq!(stored, read_manifest(&fleet.path(winner)).unwrap(), "round {round}");
        winners.push((stored.epoch, stored.generation));
        // The other one stays fenced, and the winner goes on.
        let other = if winner == "a" { "b" } else { "a" };
        assert!(matches!(fleet.shipper(other).ship(), Err(ShipError::Fenced { .. })), "round {round}");
        assert_eq!(fleet.shipper(winner).ship().unwrap(), ShipOutcome::Unchanged, "round {round}");
    }
    let count = winners.len();
    winners.dedup();
    assert_eq!(winners.len(), count, "no generation was shipped twice");
}

#[test]
fn a_publisher_that_was_replaced_stops_with_its_statements() {
    let fleet = TestFleet::new();
    let signer = TestSigner::generate();
    let (mut old, mut new) = (fleet.publisher("old", Some(&signer)), fleet.publisher("new", Some(&signer)));
    old.publish(0..5, "old", true);
    new.publish(0..5, "new", true);
    let (mut ships_old, mut ships_new) = (fleet.shipper("old"), fleet.shipper("new"));
    ships_old.ship().unwrap();
    let error = ships_new.ship().unwrap_err();
    assert!(error.is_final() && error.to_string().contains("--take-over"), "{error}");
    new.publisher().raise_epoch(ships_new.remote_epoch().unwrap() + 1, now_unix_ms()).unwrap();
    ships_new.ship().unwrap();
    old.publisher().renew_statement(now_unix_ms()).unwrap();
    assert!(matches!(ships_old.ship_statement(), Err(ShipError::Fenced { epoch: 2, ours: 1, .. })));
    old.publish(0..5, "later", true);
    assert!(matches!(ships_old.ship(), Err(ShipError::Fenced { .. })));
    assert!(matches!(ships_old.collect(now_unix_ms()), Err(ShipError::Fenced { .. }) | Ok(0)));
    assert_eq!(read_manifest(&fleet.path("store")).unwrap().epoch, 2);
}

/// A store that writes in any case.
#[derive(Debug)]
struct CarelessStore {
    store: Arc<dyn FleetStore>,
    ignores_absent: bool,
}

impl FleetStore for CarelessStore {
    fn read(
        &self,
        name: &str,
        len_max: usize,
        known: Option<&ObjectTag>,
    ) -> Result<StoredObject, FleetStoreError> {
        self.store.read(name, len_max, known)
    }

    fn read_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, FleetStoreError> {
        self.store.read_range(name, range)
    }

    fn len(&self, name: &str) -> Result<Option<u64>, FleetStoreError> {
        self.store.len(name)
    }

    fn put(&self, name: &str, bytes: Bytes, condition: &PutCondition) -> Result<ObjectTag, FleetStoreError> {
        let condition = match condition {
            PutCondition::Absent if !self.ignores_absent => &PutCondition::Absent,
            _ => &PutCondition::Always,
        };
        self.store.put(name, bytes, condition)
    }

    fn put_file(&self, name: &str, file: &Path, len: u64) -> Result<(), FleetStoreError> {
        self.store.put_file(name, file, len)
    }

    fn list(&self) -> Result<Vec<ObjectRow>, FleetStoreError> {
        self.store.list()
    }

    fn remove(&self, name: &str) -> Result<(), FleetStoreError> {
        self.store.remove(name)
    }
}

#[test]
fn a_store_that_ignores_preconditions_is_refused() {
    let fleet = TestFleet::new();
    for ignores_absent in [true, false] {
        let store = Arc::new(CarelessStore { store: fleet.store(), ignores_absent });
        let opened = SetShipper::open(store, "store", &fleet.path("set"), ShipLimits::default());
        let error = opened.unwrap_err();
        assert!(matches!(error, ShipError::NoConditions(_)) && error.is_final(), "{error}");
    }
    let left = fleet.store().list().unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_store_keeps_the_layers_of_the_last_sets_and_gets_lost_ones_back() {
    let fleet = TestFleet::new();
    let mut publisher = fleet.publisher("published", None);
    let mut shipper = fleet.shipper("published");
    let sets: Vec<_> = (0..4)
        .map(|at| {
            let manifest = publisher.publish(0..50, &format!("set {at}"), true);
            shipper.ship().unwrap();
            manifest
        })
        .collect();
    let has = |at: usize| fleet.path("store").join(&sets[at].layers[0].file).exists();
    assert!((0..4).all(has));
    let soon = now_unix_ms() + 1000;
    assert_eq!(shipper.collect(soon).unwrap(), 2, "the last two sets are kept");
    assert_eq!([0, 1, 2, 3].map(has), [false, false, true, true]);
    std::fs::remove_file(fleet.path("store").join(&sets[3].layers[0].file)).unwrap();
    assert_eq!(shipper.collect(soon).unwrap(), 0);
    assert!(has(3));
    let mut fetcher = fleet.fetcher(None);
    fetcher.fetch(RUNS).unwrap();
    assert_eq!(verified(&fleet.path("set")).as_ref(), sets.last());
    // Young files may belong to a publisher that is about to replace the MANIFEST.
    let young = fleet.path("store").join("0000000009-00.layer");
    std::fs::write(&young, "x").unwrap();
    let limits = ShipLimits { sets_kept: 2, grace: std::time::Duration::from_secs(60), ..Default::default() };
    shipper.set_limits(limits);
    assert_eq!(shipper.collect(now_unix_ms()).unwrap(), 0);
    assert!(young.exists());
}

#[test]
fn the_grace_time_of_layers_goes_on_in_later_processes() {
    let fleet = TestFleet::new();
    let mut publisher = fleet.publisher("published", None);
    let ship = || {
        let limits = ShipLimits { sets_kept: 1, grace: Duration::from_secs(100), ..Default::default() };
        SetShipper::open(fleet.store(), "store", &fleet.path("published"), limits).unwrap()
    };
    let now = now_unix_ms();
    let first = publisher.publish(0..50, "first", true);
    ship().ship().unwrap();
    publisher.publish(0..50, "second", true);
    let has_first = || fleet.store_dir().join(&first.layers[0].file).exists();
    for (seconds, is_kept) in [(1000, true), (1099, true), (1100, false)] {
        let mut shipper = ship();
        shipper.ship().unwrap();
        shipper.collect(now + seconds * 1000).unwrap();
        assert_eq!(has_first(), is_kept, "{seconds} s");
    }
}

#[test]
fn the_programs_ship_and_fetch_with_one_command_each() {
    let fleet = TestFleet::new();
    let mut publisher = fleet.publisher("published", None);
    publisher.publish(0..50, "first", true);
    let url = format!("file://{}", fleet.path("store").display());
    let ship = |options: &[&str]| {
        let mut ship = hdl(["ship"]);
        ship.arg(fleet.path("published")).arg(&url).args(options);
        ship
    };
    let fetch = |options: &[&str]| {
        let mut fetch = Command::new(program("handle-fetch", "handle-fetch"));
        fetch.arg(&url).arg(fleet.path("set")).args(["--once", "--allow-root"]).args(options);
        fetch
    };
    let (code, error) = fail(fetch(&[]));
    assert!(code == 1 && error.contains("nothing is published"), "{code}: {error}");
    let shipped = succeed(ship(&[]));
    assert!(shipped.starts_with("generation 1 of epoch 1 shipped to file://"), "{shipped}");
    let again = succeed(ship(&["--json"]));
    assert!(again.contains("\"is_new\": false") || again.contains("\"is_new\":false"), "{again}");
    succeed(fetch(&[]));
    let first = verified(&fleet.path("set")).unwrap();
    assert_eq!(first, read_manifest(&fleet.path("published")).unwrap());

    let mut other = fleet.publisher("other", None);
    other.publish(0..50, "other", true);
    drop(other);
    let take_over = |options: &[&str]| {
        let mut ship = hdl(["ship"]);
        ship.arg(fleet.path("other")).arg(&url).args(options);
        ship
    };
    let (code, error) = fail(take_over(&[]));
    assert!(code == 1 && error.contains("another publisher has shipped generation 1"), "{code}: {error}");
    let shipped = succeed(take_over(&["--take-over"]));
    assert!(shipped.starts_with("generation 2 of epoch 2"), "{shipped}");
    succeed(fetch(&[]));
    assert_eq!(verified(&fleet.path("set")).unwrap().epoch, 2);
    let (code, error) = fail(ship(&[]));
    assert!(code == 1 && error.contains("another publisher has shipped generation 2"), "{code}: {error}");
    let (code, error) = fail(fetch(&["--key", "/no/such/key"]));
    assert!(code == 1 && error.contains("/no/such/key"), "{code}: {error}");
    let mut check = Command::new(program("handle-fetch", "handle-fetch"));
    check.args(["--check-config", "s3://user:secret@bucket/x"]).arg(fleet.path("set"));
    let (code, error) = fail(check);
    assert!(
        code == 2 && error.contains("credentials belong") && !error.contains("secret@"),
        "{code}: {error}"
    );
}

/// The directory of the publisher was restored from a copy of before.
#[test]
fn an_older_set_of_the_same_publisher_and_a_damaged_manifest_are_refused_by_name() {
    let fleet = TestFleet::new();
    let mut publisher = fleet.publisher("published", None);
    let (published, shipped) = (fleet.path("published").join("MANIFEST"), fleet.store_dir().join("MANIFEST"));
    let first = publisher.publish(0..50, "first", true);
    let older = std::fs::read(&published).unwrap();
    fleet.shipper("published").ship().unwrap();
    let second = publisher.publish(0..50, "second", true);
    fleet.shipper("published").ship().unwrap();
    let newest = std::fs::read(&shipped).unwrap();
    std::fs::write(&published, older).unwrap();
    let error = fleet.shipper("published").ship().unwrap_err();
    let is_named = matches!(error, ShipError::Older { shipped, found }
        if (shipped, found) == (second.generation, first.generation));
    assert!(is_named, "{error}");
    assert_eq!(std::fs::read(&shipped).unwrap(), newest, "the newer set stays");
    std::fs::write(&shipped, b"no manifest").unwrap();
    let error = fleet.shipper("published").ship().unwrap_err();
    assert!(matches!(error, ShipError::Damaged(_)), "{error}");
}
