//! Machines fetch little more than the records that have changed: what new layers have of older
//! ones is built on the machine. Whatever is wrong with the steps for it, the same set is
//! downloaded.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use handle_admin::publish::{Command, StorePublisher};
use handle_daemon::clock::now_unix_ms;
use handle_fleet::store::PutCondition;
use handle_fleet::{FetchLimits, FetchOutcome, SetFetcher, ShipError};
use handle_proto::{Value, Values};
use handle_snapshot::format::HEADER_LEN;
use handle_snapshot::set::manifest::Manifest;
use handle_snapshot::set::read_manifest;
use handle_snapshot::set::steps::{STEPS_HEAD_LEN, STEPS_SUFFIX, object_name};
use handle_snapshot::set::storage::create_directory;
use handle_snapshot::{Builder, Layer, LayerOptions};
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::fleet::{TestFleet, TestPublisher, verified};
use handle_tests::process::until;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const RUNS: &dyn Fn() -> bool = &|| false;
const STEPS_LEN: usize = 64 << 10;

/// A machine of the fleet that keeps its set in the directory `name`.
fn machine(fleet: &TestFleet, name: &str) -> SetFetcher {
    create_directory(&fleet.path(name)).unwrap();
    SetFetcher::open(fleet.store(), &fleet.path(name), None, FetchLimits::default()).unwrap()
}

/// Bytes of layers and of steps that a machine has fetched.
fn fetched(machine: &SetFetcher) -> (u64, u64) {
    (machine.counters().layer_bytes.get(), machine.counters().step_bytes.get())
}

/// A `handle-admin` that ships to the store of the fleet.
struct ShippingServer<'f> {
    fleet: &'f TestFleet,
    admin: AdminServer,
}

impl<'f> ShippingServer<'f> {
    fn start(fleet: &'f TestFleet) -> Self {
        let admin = administer_with("wide_open", |config| {
            config.publish.directory = Some(fleet.path("published"));
            config.publish.ship.url = fleet.url();
            config.publish.ship.storage = fleet.storage();
        });
        Self { fleet, admin }
    }

    fn publisher(&self) -> &StorePublisher {
        self.admin.server().shared().publisher.as_ref().unwrap()
    }

    /// Changes so many records, from this one on, waits until the change is shipped, and returns
    /// the bytes of the records in a layer.
    fn change(&self, from: usize, count: usize, text: &str) -> u64 {
        let store = Arc::clone(&self.admin.server().shared().service.store);
        let records = move |text: &str| -> Vec<(String, String)> {
            (from..from + count)
                .map(|at| (format!("10.5555/{at}"), format!("https://example.org/{at}/{text}")))
                .collect()
        };
        let changed = records(text);
        let put = store.change(move |transaction| {
            changed.iter().try_for_each(|(handle, data)| {
                let mut storage = Vec::new();
                let values = Values::build([Value::new(1, b"URL", data.as_bytes())], &mut storage);
                transaction.put(handle.as_bytes(), values)
            })
        });
        put.unwrap();
        let last = store.last_id();
        assert!(self.publisher().wait_for(last, Duration::from_secs(60)), "{text} is published");
        self.until_shipped();
        records_len(&records(text))
    }

    fn until_shipped(&self) {
        until("the published set is shipped", || {
            let status = self.publisher().status();
            let generation = status.set.map(|set| set.generation);
            status.running.is_empty()
                && generation == self.publisher().ship_status().map(|ship| ship.generation)
        });
    }

    /// Merges all layers into one.
    fn merge(&self) {
        self.publisher().command(Command::Merge).unwrap();
        until("the layers are merged", || {
            self.publisher().status().set.is_some_and(|set| set.layers.len() == 1)
        });
        self.until_shipped();
    }

    fn check(&self, machine: &str) {
        let published = read_manifest(&self.fleet.path("published")).unwrap();
        assert_eq!(verified(&self.fleet.path(machine)), Some(published), "{machine}");
    }
}

/// Bytes of these records, handle and URL, as they are in a layer.
pub(crate) fn records_len(records: &[(String, String)]) -> u64 {
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let mut builder = Builder::new(&std::env::temp_dir(), options);
    for (handle, data) in records {
        builder.add(0, handle.as_bytes(), [Value::new(1, b"URL", data.as_bytes())]).unwrap();
    }
    let (layer, _) = builder.finish(Cursor::new(Vec::new())).unwrap();
    let layer = Layer::open(layer.into_inner()).unwrap();
    layer.records().map(|record| record.unwrap().as_bytes().len() as u64).sum()
}

#[test]
fn a_machine_fetches_little_more_than_changed_records_from_a_directory() {
    fetch_changes(&TestFleet::new());
}

#[test]
fn a_machine_fetches_little_more_than_changed_records_from_object_storage() {
    fetch_changes(&TestFleet::over_s3());
}

/// Ships changes and merges, and fetches each set with one machine and every tenth with another.
fn fetch_changes(fleet: &TestFleet) {
    let server = ShippingServer::start(fleet);
    server.change(0, 3000, "first");
    let (mut each, mut tenth) = (machine(fleet, "each"), machine(fleet, "tenth"));
    for machine in [&mut each, &mut tenth] {
        machine.fetch(RUNS).unwrap();
        assert_eq!(machine.counters().step_bytes.get(), 0, "there is no earlier set");
    }
    let base = [fetched(&each).0, fetched(&tenth).0];
    let mut changed_len = 0;
    for turn in 0..20 {
        changed_len += server.change(turn * 37 % 3100, 20, &format!("turn {turn}"));
        assert_eq!(each.fetch(RUNS).unwrap(), FetchOutcome::Published);
        server.check("each");
        if turn % 10 == 9 {
            assert_eq!(tenth.fetch(RUNS).unwrap(), FetchOutcome::Published);
            server.check("tenth");
        }
    }
    for (name, machine, base) in [("each", &each, base[0]), ("tenth", &tenth, base[1])] {
        let (layers_len, steps_len) = fetched(machine);
        let moved = layers_len - base + steps_len;
        assert!(moved * 10 <= changed_len * 13, "{name}: {moved} bytes for {changed_len} of records");
        assert!(machine.counters().layers_rebuilt.get() > 0, "{name}");
        assert_eq!(machine.counters().rebuilds_failed.get(), 0, "{name}");
    }
    // A merge of all layers has no records of its own.
    let before = [fetched(&each), fetched(&tenth)];
    server.merge();
    for (name, machine, before) in [("each", &mut each, before[0]), ("tenth", &mut tenth, before[1])] {
        assert_eq!(machine.fetch(RUNS).unwrap(), FetchOutcome::Published);
        let after = fetched(machine);
        assert_eq!(after.0, before.0, "{name}: bytes of layers");
        assert!(after.1 - before.1 < 400, "{name}: {} bytes of steps", after.1 - before.1);
        server.check(name);
    }
}

/// A fleet whose machine `set` has a set, and whose store has the next one, of which a machine can
/// build the newest layer.
struct SteppedFleet {
    fleet: TestFleet,
    publisher: TestPublisher,
    old: Manifest,
    new: Manifest,
}

impl SteppedFleet {
    fn start() -> Self {
        let fleet = TestFleet::new();
        let mut publisher = fleet.publisher("published", None);
        let mut shipper = fleet.shipper_with_steps("published", STEPS_LEN);
        publisher.publish(0..200, "first", true);
        shipper.ship().unwrap();
        let old = publisher.publish(0..40, "second", false);
        shipper.ship().unwrap();
        let new = publisher.publish(0..210, "first", true);
        shipper.ship().unwrap();
        let stepped = Self { fleet, publisher, old, new };
        stepped.reset();
        stepped
    }

    /// A machine in the directory `set` that has the old set.
    fn reset(&self) -> SetFetcher {
        let dir = self.fleet.path("set");
        let _ = std::fs::remove_dir_all(&dir);
        create_directory(&dir).unwrap();
        for entry in &self.old.layers {
            std::fs::copy(self.publisher.dir.join(&entry.file), dir.join(&entry.file)).unwrap();
        }
        std::fs::write(dir.join("MANIFEST"), self.old.encode()).unwrap();
        self.fleet.fetcher(None)
    }

    fn object(&self) -> Vec<u8> {
        std::fs::read(self.fleet.store_dir().join(object_name(&self.new))).unwrap()
    }

    /// Where the first step ends, which is the one that the machine needs.
    fn step_end(&self) -> usize {
        let end = u32::from_le_bytes(self.object()[24..28].try_into().unwrap());
        usize::try_from(end).unwrap()
    }

    fn put(&self, object: &[u8]) {
        let name = object_name(&self.new);
        self.fleet.store().put(&name, Bytes::copy_from_slice(object), &PutCondition::Always).unwrap();
    }

    /// Fetches with this object in the place of the steps; returns how many layers were built, and
    /// how many failed.
    #[track_caller]
    fn fetch_with(&self, object: &[u8]) -> (u64, u64) {
        self.put(object);
        let mut fetcher = self.reset();
        assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
        assert_eq!(verified(&self.fleet.path("set")).as_ref(), Some(&self.new));
        let strays = std::fs::read_dir(self.fleet.path("set")).unwrap();
        let strays =
            strays.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|it| it == "part"));
        assert_eq!(strays.count(), 0, "no partial file stays");
        let counters = fetcher.counters();
        (counters.layers_rebuilt.get(), counters.rebuilds_failed.get())
    }
}

#[test]
fn steps_that_lie_cost_one_attempt_and_the_layer_is_downloaded() {
    let stepped = SteppedFleet::start();
    let (good, end) = (stepped.object(), stepped.step_end());
    assert_eq!(stepped.fetch_with(&good), (1, 0));
    let mut failed = 0;
    // Every field of the head and of the step, and some bytes of the records.
    let all = (0..STEPS_HEAD_LEN + 40).chain((STEPS_HEAD_LEN + 40..end).step_by(211));
    for at in all {
        let mut object = good.clone();
        object[at] ^= 1 << (at % 8);
        let (rebuilt, failures) = stepped.fetch_with(&object);
        assert!(rebuilt == 0 || failures == 0, "byte {at}");
        failed += failures;
    }
    assert!(failed > 20, "{failed} attempts gave other layers");
    for len in [0, STEPS_HEAD_LEN - 1, STEPS_HEAD_LEN, STEPS_HEAD_LEN + 1, end - 1] {
        assert_eq!(stepped.fetch_with(&good[..len]), (0, 0), "cut to {len}");
    }
    // The steps of another set, also with the right names of the sets.
    let other = SteppedFleet::start();
    let mut object = other.object();
    assert_eq!(stepped.fetch_with(&object), (0, 0), "of another set");
    object[8..24].copy_from_slice(&good[8..24]);
    assert_eq!(stepped.fetch_with(&object).0, 0, "with forged names");
    assert_eq!(stepped.fetch_with(&good), (1, 0));
}

#[test]
fn an_attempt_with_steps_that_lie_is_not_repeated() {
    let stepped = SteppedFleet::start();
    let mut object = stepped.object();
    object[stepped.step_end() - 1] ^= 1;
    stepped.put(&object);
    let mut fetcher = stepped.reset();
    let layer = stepped.fleet.store_dir().join(&stepped.new.layers[0].file);
    let hidden = layer.with_extension("hidden");
    std::fs::rename(&layer, &hidden).unwrap();
    for _ in 0..3 {
        assert!(fetcher.fetch(RUNS).is_err());
    }
    assert_eq!(fetcher.counters().rebuilds_failed.get(), 1);
    std::fs::rename(&hidden, &layer).unwrap();
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
    assert_eq!(verified(&stepped.fleet.path("set")), Some(stepped.new));
}

#[test]
fn a_machine_without_the_setting_or_the_set_before_downloads() {
    let stepped = SteppedFleet::start();
    let mut fetcher = stepped.reset();
    fetcher.set_limits(FetchLimits { rebuilds_layers: false, ..FetchLimits::default() });
    fetcher.fetch(RUNS).unwrap();
    assert_eq!((fetched(&fetcher).1, fetcher.counters().layers.get()), (0, 1));
    // A layer of the set in the directory is damaged, so what is built from it is not the new
    // layer.
    let damaged = || {
        let fetcher = stepped.reset();
        let file = stepped.fleet.path("set").join(&stepped.old.layers[0].file);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[HEADER_LEN + 40] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        fetcher
    };
    let mut fetcher = damaged();
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
    assert_eq!(verified(&stepped.fleet.path("set")).as_ref(), Some(&stepped.new));
    // A machine that is behind the window.
    let mut fetcher = stepped.reset();
    stepped.fleet.store().remove(&object_name(&stepped.new)).unwrap();
    fetcher.fetch(RUNS).unwrap();
    assert_eq!((fetched(&fetcher).1, fetcher.counters().layers.get()), (0, 1));
    assert_eq!(verified(&stepped.fleet.path("set")).as_ref(), Some(&stepped.new));
}

#[test]
fn a_publisher_that_starts_again_begins_a_new_window() {
    let fleet = TestFleet::new();
    let mut publisher = fleet.publisher("published", None);
    publisher.publish(0..200, "first", true);
    let mut shipper = fleet.shipper_with_steps("published", STEPS_LEN);
    shipper.ship().unwrap();
    let (mut each, mut behind) = (machine(&fleet, "each"), machine(&fleet, "behind"));
    each.fetch(RUNS).unwrap();
    behind.fetch(RUNS).unwrap();
    publisher.publish(0..50, "second", false);
    shipper.ship().unwrap();
    each.fetch(RUNS).unwrap();
    let mut shipper = fleet.shipper_with_steps("published", STEPS_LEN);
    let last = publisher.publish(20..70, "third", false);
    shipper.ship().unwrap();
    let before = [fetched(&each).0, fetched(&behind).0];
    each.fetch(RUNS).unwrap();
    behind.fetch(RUNS).unwrap();
    assert_eq!(fetched(&each).0, before[0], "the step from the set before is there");
    assert!(fetched(&behind).0 > before[1], "the steps before it are not");
    assert_eq!(verified(&fleet.path("each")).as_ref(), Some(&last));
    assert_eq!(verified(&fleet.path("behind")).as_ref(), Some(&last));
    // Both steps are there for a machine that is one set behind later.
    let last = publisher.publish(60..90, "fourth", false);
    shipper.ship().unwrap();
    publisher.publish(60..90, "fifth", false);
    let (fourth, fifth) = (last, publisher.publish(0..3, "sixth", false));
    shipper.ship().unwrap();
    let before = fetched(&each).0;
    each.fetch(RUNS).unwrap();
    assert_eq!(fetched(&each).0, before, "from the third set over {}", fourth.generation);
    assert_eq!(verified(&fleet.path("each")).as_ref(), Some(&fifth));
}

#[test]
fn after_a_take_over_layers_are_downloaded_and_then_built_again() {
    let fleet = TestFleet::new();
    let (mut old, mut new) = (fleet.publisher("old", None), fleet.publisher("new", None));
    let mut ships_old = fleet.shipper_with_steps("old", STEPS_LEN);
    old.publish(0..100, "old", true);
    ships_old.ship().unwrap();
    let mut fetcher = machine(&fleet, "set");
    fetcher.fetch(RUNS).unwrap();
    new.publish(0..100, "new", true);
    new.publisher().raise_epoch(2, now_unix_ms()).unwrap();
    let mut ships_new = fleet.shipper_with_steps("new", STEPS_LEN);
    ships_new.ship().unwrap();
    // The fenced publisher ships the steps of its next set, which no machine looks for.
    old.publish(0..60, "later", false);
    assert!(matches!(ships_old.ship(), Err(ShipError::Fenced { .. })));
    fetcher.fetch(RUNS).unwrap();
    assert_eq!((fetcher.counters().layers.get(), fetcher.counters().layers_rebuilt.get()), (2, 0));
    let last = new.publish(50..99, "last", false);
    ships_new.ship().unwrap();
    fetcher.fetch(RUNS).unwrap();
    assert_eq!((fetcher.counters().layers.get(), fetcher.counters().layers_rebuilt.get()), (2, 1));
    assert_eq!(verified(&fleet.path("set")), Some(last));
}

fn stored_steps(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<_> = files.filter(|name| name.ends_with(STEPS_SUFFIX)).collect();
    steps.sort();
    steps
}

#[test]
fn the_steps_of_the_last_sets_stay_in_the_store() {
    let fleet = TestFleet::new();
    let mut publisher = fleet.publisher("published", None);
    publisher.publish(0..100, "first", true);
    let mut shipper = fleet.shipper_with_steps("published", STEPS_LEN);
    shipper.ship().unwrap();
    assert!(stored_steps(&fleet.store_dir()).is_empty());
    let sets: Vec<_> = (0..40)
        .map(|at| {
            // A base, so that the set has few layers.
            let set = publisher.publish(0..100, &format!("set {at}"), true);
            shipper.ship().unwrap();
            set
        })
        .collect();
    let names: Vec<_> = sets.iter().map(object_name).collect();
    assert_eq!(stored_steps(&fleet.store_dir()), names[names.len() - 32..]);
    // Those of a publisher that was killed are without use, as are layers; sixteen are removed at a
    // time.
    let mut shipper = fleet.shipper_with_steps("published", STEPS_LEN);
    shipper.ship().unwrap();
    let mut removed = vec![shipper.collect(now_unix_ms() + 2000).unwrap()];
    while removed.last() != Some(&0) {
        removed.push(shipper.remove_unused().unwrap());
    }
    assert_eq!(removed.iter().sum::<usize>(), 31 + 39, "the last set, and the layers of two sets, stay");
    assert!(removed.iter().all(|count| *count <= 16), "{removed:?}");
    assert_eq!(stored_steps(&fleet.store_dir()), names[names.len() - 1..]);
}

#[test]
fn steps_stay_below_their_longest_length() {
    for (steps_len, has_steps) in [(0, false), (1000, false), (STEPS_LEN, true)] {
        let fleet = TestFleet::new();
        let mut publisher = fleet.publisher("published", None);
        publisher.publish(0..100, "first", true);
        let mut shipper = fleet.shipper_with_steps("published", steps_len);
        shipper.ship().unwrap();
        publisher.publish(0..100, "second", false);
        shipper.ship().unwrap();
        assert_eq!(stored_steps(&fleet.store_dir()).len(), usize::from(has_steps), "{steps_len}");
    }
}
