//! `handle-admin` tells `handle-fetch` of each set; without a connection, sets are found at
//! intervals.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::config::Config;
use handle_admin::publish::StorePublisher;
use handle_daemon::notice::listener::{NoticeReceiver, listen};
use handle_daemon::notice::{ChangedHandles, NoticeKey, PublicationNotice};
use handle_daemon::shutdown::Shutdown;
use handle_fetch::Fetcher;
use handle_fetch::config::NotifyConfig;
use handle_proto::{Value, Values};
use handle_snapshot::set::read_manifest;
use handle_store::Transaction;
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::daemon::free_address;
use handle_tests::fleet::{TestFleet, verified, write_secret};
use handle_tests::http;
use handle_tests::process::until;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Intervals that no test waits for.
const NEVER_MS: u64 = 3_600_000;

/// A `handle-admin` that ships to the store of the fleet and tells machines at this address.
fn start(fleet: &TestFleet, listen: SocketAddr) -> AdminServer {
    write_secret(&fleet.path("notice-key"), &"k".repeat(64));
    administer_with("wide_open", |config: &mut Config| {
        let publish = &mut config.publish;
        publish.directory = Some(fleet.path("published"));
        publish.ship.url = fleet.url();
        publish.ship.storage = fleet.storage();
        publish.notify.listen = Some(listen);
        publish.notify.key_file = Some(fleet.path("notice-key"));
        publish.notify.repeat_ms = 50;
        (publish.notify.unproven, publish.notify.proof_ms) = (4, 300);
        config.observe.http = Some(([127, 0, 0, 1], 0).into());
    })
}

/// A machine that looks for sets at this interval, and waits for notices at this address.
fn fetch(fleet: &TestFleet, interval_ms: u64, address: SocketAddr, key: &str) -> Fetcher {
    let notify = NotifyConfig {
        address: address.to_string(),
        key_file: Some(fleet.path(key)),
        silence_ms: 500,
        retry_ms: 20,
        retry_ms_max: 100,
        ..NotifyConfig::default()
    };
    let config = handle_fetch::Config {
        url: fleet.url(),
        directory: fleet.path("set"),
        interval_ms,
        notify,
        storage: fleet.storage(),
        ..handle_fetch::Config::default()
    };
    Fetcher::start(&config).unwrap()
}

fn is_connected(fetcher: &Fetcher) -> bool {
    fetcher.state().notices().unwrap().connected
}

/// Changes a record, and waits until the change is published.
fn change(admin: &AdminServer, data: &str) {
    let shared = admin.server().shared();
    let (store, text) = (&shared.service.store, data.to_owned());
    let put = store.change(move |transaction| {
        let value = Value::new(1, b"URL", text.as_bytes());
        transaction.put(b"10.5555/told", Values::build([value], &mut Vec::new()))
    });
    put.unwrap();
    let publisher: &StorePublisher = shared.publisher.as_ref().unwrap();
    assert!(publisher.wait_for(store.last_id(), Duration::from_secs(20)), "{data} is published");
}

/// Whether the machine has the published set.
fn is_current(fleet: &TestFleet) -> bool {
    let generation = |name: &str| read_manifest(&fleet.path(name)).ok().map(|set| set.generation);
    generation("set").is_some() && generation("set") == generation("published")
}

#[test]
fn a_machine_is_notified_of_each_set_at_once() {
    let fleet = TestFleet::over_s3();
    let admin = start(&fleet, free_address());
    let fetcher = fetch(&fleet, NEVER_MS, admin.server().notify_address().unwrap(), "notice-key");
    until("a connection", || is_connected(&fetcher));
    let sent = &admin.server().shared().notices.counters.notices;
    until("the first notice is counted", || sent.get() > 0);
    let mut times: Vec<Duration> = (0..20)
        .map(|at| {
            change(&admin, &format!("change {at}"));
            let started = Instant::now();
            while !is_current(&fleet) {
                assert!(started.elapsed() < Duration::from_secs(20), "change {at} does not arrive");
                std::thread::sleep(Duration::from_millis(1));
            }
            started.elapsed()
        })
        .collect();
    times.sort();
    println!("median {:?}, longest {:?}", times[10], times[19]);
    // Far above what it takes, and far below the interval.
    assert!(times[10] < Duration::from_secs(2), "{times:?}");
    assert_eq!(verified(&fleet.path("set")), read_manifest(&fleet.path("published")).ok());
    assert!(fetcher.state().counters.notices.get() >= 20);
    let metrics = http::get(admin.server().http_address().unwrap(), "/metrics").unwrap().body;
    assert!(metrics.contains("handle_admin_notify_machines 1\n"), "{metrics}");
    let state = fetcher.state().clone();
    assert!(fetcher.stop().is_ok());
    assert!(state.shutdown.is_stopped());
    until("the connection has ended", || admin.server().shared().notices.machines() == 0);
}

#[test]
fn a_machine_connects_again_after_handle_admin_was_started_again() {
    let fleet = TestFleet::over_s3();
    let mut admin = start(&fleet, free_address());
    let fetcher = fetch(&fleet, NEVER_MS, admin.server().notify_address().unwrap(), "notice-key");
    change(&admin, "first");
    until("the first set", || is_current(&fleet));
    admin.stop();
    until("the connection is lost", || !is_connected(&fetcher));
    assert!(fetcher.state().notices().unwrap().last_error.is_some());
    admin.restart();
    change(&admin, "second");
    until("the second set", || is_current(&fleet) && is_connected(&fetcher));
}

#[test]
fn without_a_connection_sets_are_found_at_intervals() {
    let fleet = TestFleet::over_s3();
    let admin = start(&fleet, free_address());
    // A listener that says nothing, one that does not exist, and one for another key.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    write_secret(&fleet.path("other-key"), &"o".repeat(64));
    let with_key = admin.server().notify_address().unwrap();
    let cases = [
        (silent.local_addr().unwrap(), "notice-key", ""),
        (free_address(), "notice-key", "refused"),
        (with_key, "other-key", "another key"),
    ];
    for (at, (address, key, error)) in cases.into_iter().enumerate() {
        let fetcher = fetch(&fleet, 50, address, key);
        change(&admin, &format!("change {at}"));
        until("the set arrives", || is_current(&fleet));
        until("the reason is known", || {
            error.is_empty()
                || fetcher.state().notices().unwrap().last_error.is_some_and(|it| it.contains(error))
        });
        assert!(!is_connected(&fetcher), "{address}");
    }
}

#[test]
fn strangers_do_not_keep_machines_out() {
    let fleet = TestFleet::over_s3();
    let admin = start(&fleet, free_address());
    let address = admin.server().notify_address().unwrap();
    let counters = &admin.server().shared().notices.counters;
    let strangers: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    until("most are refused", || counters.refused_full.get() >= 10);
    let fetcher = fetch(&fleet, NEVER_MS, address, "notice-key");
    until("the others end without a proof", || counters.refused_key.get() >= 4);
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The end of the connection, or its reset.
        assert!(matches!(stranger.read(&mut [0; 1]), Ok(0) | Err(_)));
    }
    change(&admin, "first");
    until("the machine is told", || is_current(&fleet));
    assert!(is_connected(&fetcher));
}

/// Stops what waits for notices, also if the test fails.
struct StopOnDrop<'s>(&'s Shutdown);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A machine that asks for names, and what it was told: a generation, and the names.
struct NamesReceiver {
    config: NotifyConfig,
    shutdown: Arc<Shutdown>,
    notices: Mutex<Vec<(u64, Option<Vec<String>>)>>,
}

impl NoticeReceiver for NamesReceiver {
    fn config(&self) -> NotifyConfig {
        self.config.clone()
    }

    fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    fn note_connected(&self) {}

    fn note_failure(&self, error: &str) {
        panic!("{error}");
    }

    fn wants_names(&self) -> bool {
        true
    }

    fn take(&self, notice: PublicationNotice, changed: Option<&ChangedHandles>) {
        let names = |changed: &ChangedHandles| {
            changed.names().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
        };
        self.notices.lock().unwrap().push((notice.generation, changed.map(names)));
    }
}

#[test]
fn a_machine_that_asks_is_notified_which_handles_have_changed() {
    let fleet = TestFleet::over_s3();
    write_secret(&fleet.path("notice-key"), &"k".repeat(64));
    let admin = administer_with("wide_open", |config: &mut Config| {
        let publish = &mut config.publish;
        publish.directory = Some(fleet.path("published"));
        publish.notify.listen = Some(free_address());
        publish.notify.key_file = Some(fleet.path("notice-key"));
    });
    change(&admin, "before");
    let address = admin.server().notify_address().unwrap().to_string();
    let receiver = NamesReceiver {
        config: NotifyConfig { address, ..NotifyConfig::default() },
        shutdown: Arc::new(Shutdown::new().unwrap()),
        notices: Mutex::default(),
    };
    let key = NoticeKey::read(&fleet.path("notice-key")).unwrap();
    std::thread::scope(|scope| {
        let _stops = StopOnDrop(&receiver.shutdown);
        scope.spawn(|| listen(&receiver, &key));
        let last = || receiver.notices.lock().unwrap().last().cloned();
        let shown = || read_manifest(&fleet.path("published")).unwrap().generation;
        until("a notice", || last().is_some_and(|(generation, _)| generation == shown()));
        assert_eq!(last().unwrap().1, None, "nothing is known about the time before");
        let expect = |names: Option<&[&str]>| {
            until("the notice", || last().is_some_and(|(generation, _)| generation == shown()));
            // Merges are sets too, and change no handle.
            let mut notices = std::mem::take(&mut *receiver.notices.lock().unwrap());
            notices.retain(|(_, names)| names.as_ref().is_none_or(|names| !names.is_empty()));
            let notices: Vec<_> = notices.into_iter().map(|(_, names)| names).collect();
            let names = names.map(|names| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
            assert_eq!(notices, [names]);
        };
        receiver.notices.lock().unwrap().clear();
        change(&admin, "after");
        expect(Some(&["10.5555/told"]));
        let shared = admin.server().shared();
        let many = |transaction: &mut Transaction<'_>| {
            let value = Value::new(1, b"URL", b"x");
            // More bytes than are kept.
            let names = (0..150).map(|nth| format!("10.5555/{nth:01900}"));
            names.into_iter().try_for_each(|name| {
                transaction.put(name.as_bytes(), Values::build([value], &mut Vec::new())).map(|_| ())
            })
        };
        let publisher: &StorePublisher = shared.publisher.as_ref().unwrap();
        for make in [many, |transaction: &mut Transaction<'_>| transaction.home(b"10.777").map(|_| ())] {
            shared.service.store.change(make).unwrap();
            assert!(publisher.wait_for(shared.service.store.last_id(), Duration::from_secs(20)));
            expect(None);
        }
        change(&admin, "later");
        expect(Some(&["10.5555/told"]));
    });
}
