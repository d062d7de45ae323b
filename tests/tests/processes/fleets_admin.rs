//! `handle-admin` ships its sets by itself: to machines, past a store that fails, and until another
//! publisher takes over.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::config::Config;
use handle_admin::publish::{PublishStatus, ShipStatus, StorePublisher};
use handle_daemon::clock::now_unix_ms;
use handle_fleet::FetchOutcome;
use handle_proto::{Value, Values};
use handle_snapshot::set::read_manifest;
use handle_store::Store;
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::bucket_server::BucketFault;
use handle_tests::fleet::{TestFleet, verified};
use handle_tests::http;
use handle_tests::process::until;
use std::sync::Arc;

const RUNS: &dyn Fn() -> bool = &|| false;

/// A `handle-admin` that ships to the store of the fleet.
fn start(fleet: &TestFleet) -> AdminServer {
    administer_with("wide_open", |config: &mut Config| {
        let publish = &mut config.publish;
        publish.directory = Some(fleet.path("published"));
        publish.ship.url = fleet.url();
        publish.ship.storage = fleet.storage();
        config.observe.http = Some(([127, 0, 0, 1], 0).into());
    })
}

fn publisher(admin: &AdminServer) -> &StorePublisher {
    admin.server().shared().publisher.as_ref().unwrap()
}

fn published(admin: &AdminServer) -> PublishStatus {
    publisher(admin).status()
}

fn shipped(admin: &AdminServer) -> ShipStatus {
    publisher(admin).ship_status().unwrap()
}

/// Changes a record, and waits until the change is published.
fn change(admin: &AdminServer, data: &str) {
    let store: &Arc<Store> = &admin.server().shared().service.store;
    let text = data.to_owned();
    let put = store.change(move |transaction| {
        let value = Value::new(1, b"URL", text.as_bytes());
        transaction.put(b"10.5555/shipped", Values::build([value], &mut Vec::new()))
    });
    put.unwrap();
    let last = store.last_id();
    assert!(publisher(admin).wait_for(last, std::time::Duration::from_secs(20)), "{data} is published");
}

/// A number among the metrics.
fn metric(admin: &AdminServer, name: &str) -> f64 {
    let text = http::get(admin.server().http_address().unwrap(), "/metrics").unwrap().body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
}

/// Waits until the store has the published set, and that is noted.
fn until_shipped(fleet: &TestFleet, admin: &AdminServer) {
    until("the published set is shipped", || {
        let generation = published(admin).set.map(|set| set.generation);
        let stored = read_manifest(&fleet.store_dir()).ok().map(|set| set.generation);
        let status = shipped(admin);
        generation.is_some() && generation == stored && generation == Some(status.generation)
    });
    assert_eq!(shipped(admin).behind_ms, 0);
}

#[test]
fn each_published_set_is_shipped() {
    let fleet = TestFleet::over_s3();
    let admin = start(&fleet);
    let mut fetcher = fleet.fetcher(None);
    for at in 0..5 {
        change(&admin, &format!("change {at}"));
        until_shipped(&fleet, &admin);
        assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
        assert_eq!(verified(&fleet.path("set")), read_manifest(&fleet.path("published")).ok());
    }
    assert!(metric(&admin, "handle_admin_ship_sets_total") >= 5.0);
    assert!(metric(&admin, "handle_admin_ship_bytes_total") > 1000.0);
    assert!(metric(&admin, "handle_admin_ship_behind_seconds") < 0.001);
    assert!(metric(&admin, "handle_admin_ship_failing") < 0.5);
}

#[test]
fn a_store_that_fails_delays_neither_changes_nor_publishing() {
    let fleet = TestFleet::over_s3();
    // Also when the process starts.
    fleet.bucket().set_faults(|_| BucketFault::Status(503));
    let admin = start(&fleet);
    for at in 0..5 {
        change(&admin, &format!("change {at}"));
    }
    until("it is noted", || shipped(&admin).last_error.is_some());
    let status = shipped(&admin);
    assert!(!status.stopped && status.behind_ms > 0 && status.generation == 0, "{status:?}");
    assert!(metric(&admin, "handle_admin_ship_behind_seconds") > 0.0);
    assert!(metric(&admin, "handle_admin_ship_failing") > 0.5);
    until("attempts are repeated", || shipped(&admin).counts.failures >= 3);
    fleet.bucket().clear_faults();
    until_shipped(&fleet, &admin);
    assert_eq!(shipped(&admin).last_error, None);

    fleet.bucket().set_faults(|_| BucketFault::Delay(std::time::Duration::from_secs(60)));
    for at in 5..10 {
        let started = std::time::Instant::now();
        change(&admin, &format!("change {at}"));
        assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    }
    fleet.bucket().clear_faults();
    until_shipped(&fleet, &admin);
    let mut fetcher = fleet.fetcher(None);
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
    assert_eq!(verified(&fleet.path("set")), read_manifest(&fleet.path("published")).ok());
}

#[test]
fn shipping_stops_when_another_publisher_has_taken_over() {
    let fleet = TestFleet::over_s3();
    let admin = start(&fleet);
    change(&admin, "first");
    until_shipped(&fleet, &admin);
    let mut other = fleet.publisher("other", None);
    other.publish(0..5, "other", true);
    let mut ships_other = fleet.shipper("other");
    other.publisher().raise_epoch(ships_other.remote_epoch().unwrap() + 1, now_unix_ms()).unwrap();
    ships_other.ship().unwrap();
    change(&admin, "second");
    until("shipping has stopped", || shipped(&admin).stopped);
    let status = shipped(&admin);
    assert!(status.last_error.unwrap().contains("another publisher has shipped"));
    assert!(metric(&admin, "handle_admin_ship_stopped") > 0.5);
    // Publishing goes on.
    change(&admin, "third");
    assert_eq!(read_manifest(&fleet.store_dir()).unwrap().epoch, 2);
}

#[test]
fn the_last_set_is_shipped_when_the_process_stops() {
    let fleet = TestFleet::over_s3();
    let mut admin = start(&fleet);
    change(&admin, "first");
    until_shipped(&fleet, &admin);
    // The store is slow: sets wait while the process is asked to stop.
    fleet.bucket().set_faults(|_| BucketFault::Delay(std::time::Duration::from_millis(100)));
    for at in 0..10 {
        change(&admin, &format!("change {at}"));
    }
    admin.stop();
    assert_eq!(read_manifest(&fleet.store_dir()).unwrap(), read_manifest(&fleet.path("published")).unwrap());
    // The next process continues.
    fleet.bucket().clear_faults();
    admin.restart();
    change(&admin, "after the start");
    until_shipped(&fleet, &admin);
}
