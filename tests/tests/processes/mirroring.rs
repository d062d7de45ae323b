//! A mirror of our own primary, as two processes: what arrives and when, what it refuses,
//! interrupted streams, dumps, and its promotion.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{ResponseCode, Value, Values};
use handle_snapshot::set::read_manifest;
use handle_store::{Store, StoreConfig};
use handle_tests::daemon::{ask, free_address};
use handle_tests::mirror_pair::{MirroredService, RecordAdministrator, published_root};
use handle_tests::process::{fail, program, run, succeed, until};
use handle_tests::service_directory::InitialisedService;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time in which a change of the primary is visible at the mirror.
const VISIBLE_WITHIN: Duration = Duration::from_millis(1500);
const DONE: Option<(ResponseCode, String)> = Some((ResponseCode::SUCCESS, String::new()));

fn equal(service: &MirroredService) {
    until("the sets are equal", || service.is_equal());
}

fn control(service: &InitialisedService) -> std::path::PathBuf {
    service.path("site/run/handle-admin.sock")
}

#[test]
fn changes_arrive_within_a_second_and_a_half() {
    let mut service = MirroredService::make("", "");
    service.start();
    equal(&service);
    service.mirror.start_handled();
    let mut administrator = service.administrator();
    let mut slowest = Duration::ZERO;
    for n in 0..5 {
        let handle = format!("10.1045/n{n}");
        assert_eq!(administrator.put(&handle, "first"), DONE);
        let started = Instant::now();
        service.mirror.until_resolved(&handle, 1, "first");
        slowest = slowest.max(started.elapsed());
    }
    println!("the slowest of 5 changes was visible after {slowest:?}");
    assert!(slowest < VISIBLE_WITHIN, "{slowest:?}");
    assert_eq!(administrator.put("10.1045/n1", "second"), DONE);
    assert_eq!(administrator.delete("10.1045/n2"), DONE);
    assert_eq!(administrator.home("0.NA/10.77"), DONE);
    assert_eq!(administrator.put("10.77/x", "other"), DONE);
    service.mirror.until_resolved("10.77/x", 1, "other");
    service.mirror.until_resolved("10.1045/n1", 1, "second");
    service.mirror.until_resolved("10.1045/n2", 100, "");
    equal(&service);
    assert_eq!(service.primary.published(), service.mirror.published(), "with private values");
    assert_eq!(administrator.unhome("0.NA/10.77"), DONE);
    until("the prefix is released", || service.mirror.resolve("10.77/x")["responseCode"] == 301);
}

#[test]
fn changes_that_follow_others_arrive_sooner() {
    let mut service = MirroredService::make("", "interval_ms = 5000");
    service.start();
    equal(&service);
    service.mirror.start_handled();
    let mut administrator = service.administrator();
    assert_eq!(administrator.put("10.1045/first", "x"), DONE);
    service.mirror.until_resolved("10.1045/first", 1, "x");
    for n in 0..3 {
        let handle = format!("10.1045/n{n}");
        assert_eq!(administrator.put(&handle, "x"), DONE);
        let started = Instant::now();
        service.mirror.until_resolved(&handle, 1, "x");
        assert!(started.elapsed() < VISIBLE_WITHIN, "{n}: {:?}", started.elapsed());
    }
}

/// Adds `text` to the configuration of `handle-admin`.
fn configure(service: &InitialisedService, text: &str) {
    let config = service.path("site/handle-admin.toml");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, before + text).unwrap();
}

/// Lets the mirror wait for notices of its primary; each has a key of these bytes.
fn notify(service: &MirroredService, [primary, mirror]: [u8; 2]) {
    let (address, keys) = (free_address(), [(&service.primary, primary), (&service.mirror, mirror)]);
    let [of_primary, of_mirror] = keys.map(|(service, byte)| {
        let path = service.path("notice-key");
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        file.write_all(&[byte; 32]).unwrap();
        path.display().to_string()
    });
    let text = format!("\n[publish.notify]\nlisten = \"{address}\"\nkey_file = \"{of_primary}\"\n");
    configure(&service.primary, &text);
    let text = format!("notify_address = \"{address}\"\nnotify_key_file = \"{of_mirror}\"\n");
    configure(&service.mirror, &text);
}

#[test]
fn notices_bring_changes_between_two_requests() {
    // Without notices, the second change would arrive after ten minutes.
    let mut service = MirroredService::make("", "interval_ms = 600000");
    notify(&service, [b'k', b'k']);
    service.start();
    equal(&service);
    service.mirror.start_handled();
    until("notices arrive", || service.progress()["is_notified"] == true);
    let mut administrator = service.administrator();
    for data in ["first", "second", "third"] {
        assert_eq!(administrator.put("10.1045/n", data), DONE);
        service.mirror.until_resolved("10.1045/n", 1, data);
    }
    assert!(service.progress()["counts"]["notices"].as_u64() >= Some(3), "{}", service.progress());
    // A primary that was away tells again.
    service.primary.admin = None;
    until("the connection is lost", || service.progress()["is_notified"] == false);
    service.primary.start_admin();
    until("notices arrive again", || service.progress()["is_notified"] == true);
    let mut administrator = service.administrator();
    assert_eq!(administrator.put("10.1045/n", "fourth"), DONE);
    service.mirror.until_resolved("10.1045/n", 1, "fourth");
}

#[test]
fn notices_with_another_key_are_not_taken_and_requests_go_on() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    notify(&service, [b'k', b'l']);
    let http = free_address();
    configure(&service.primary, &format!("\n[observe]\nhttp = \"{http}\"\n"));
    service.start();
    let is_refused = |line: &str| {
        line.strip_prefix("handle_admin_notify_refused_key_total ").is_some_and(|count| count != "0")
    };
    until("the key is refused", || metrics(http).lines().any(is_refused));
    assert_eq!(service.administrator().put("10.1045/n", "first"), DONE);
    equal(&service);
    let progress = service.progress();
    assert_eq!((&progress["is_notified"], &progress["counts"]["notices"]), (&false.into(), &0.into()));
}

#[test]
fn a_mirror_names_the_primary_when_it_refuses_a_change() {
    let mut service = MirroredService::make("", "");
    service.start();
    equal(&service);
    let mut client = RecordAdministrator::new(&service.primary, service.mirror.administration);
    let (code, text) = client.put("10.1045/x", "no").unwrap();
    assert_eq!(code, ResponseCode::SERVER_NOT_RESPONSIBLE);
    assert_eq!(text, format!("Not a primary server; the primary is {}", service.primary.administration));
    let config = service.mirror.path("site/handle-admin.toml");
    let site = service.mirror.path("site/siteinfo.json");
    service.mirror.admin = None;
    let text = fs::read_to_string(&site).unwrap().replace("\"primarySite\":false", "\"primarySite\":true");
    fs::write(&site, text).unwrap();
    let (_, refused) = fail(service.mirror.admin_command());
    assert!(refused.contains("primarySite"), "{refused} {}", config.display());
}

/// The metrics at this address.
fn metrics(http: SocketAddr) -> String {
    let mut stream = TcpStream::connect(http).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn status_and_metrics_show_the_lag() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    let config = service.mirror.path("site/handle-admin.toml");
    let http = free_address();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\n[observe]\nhttp = \"{http}\"\n")).unwrap();
    service.start();
    equal(&service);
    until("the primary is followed", || service.progress()["activity"] == "following");
    let socket = control(&service.mirror).display().to_string();
    let shown = succeed(service.mirror.hdl(["mirror", "status", "--socket", &socket]));
    assert!(shown.contains("main at") && shown.contains("following"), "{shown}");
    let text = metrics(http);
    for line in ["mirror_dumps_total{primary=\"main\"} 1", "mirror_dumping{primary=\"main\"} 0"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    service.primary.admin = None;
    until("the failure is counted", || service.progress()["failures"].as_u64() >= Some(2));
    let output = run(service.mirror.hdl(["mirror", "status", "--socket", &socket, "--json"]));
    assert_eq!(output.status.code(), Some(1));
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown[0]["activity"], "failing");
    assert!(shown[0]["last_error"].as_str().unwrap().contains("cannot connect"), "{shown}");
    let text = metrics(http);
    assert!(!text.contains("mirror_errors_total{primary=\"main\",kind=\"connection\"} 0"), "{text}");
    let of_primary = control(&service.primary).display().to_string();
    service.primary.start_admin();
    until("the primary is followed again", || service.progress()["activity"] == "following");
    let (_, none) = fail(service.mirror.hdl(["mirror", "status", "--socket", &of_primary]));
    assert!(none.contains("not a mirror"), "{none}");
}

/// Loads records into the store of a stopped service. The log begins anew, so mirrors have to dump.
fn load(service: &InitialisedService, count: usize, data: &str) {
    let store = Store::open(&StoreConfig::at(&service.path("site/store.redb"))).unwrap();
    let temp_dir = service.path("site");
    let (mut bulk, mut buffer) = (store.bulk(&temp_dir, 16 << 20), Vec::new());
    for n in 0..count {
        let values = Values::build([Value::new(1, b"URL", data.as_bytes())], &mut buffer);
        bulk.add(format!("10.1045/load{n}").as_bytes(), values).unwrap();
    }
    bulk.finish(|_| ()).unwrap();
}

#[test]
fn a_mirror_that_is_behind_the_log_dumps_and_drops_what_is_gone() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    load(&service.primary, 500, "first");
    service.start();
    equal(&service);
    service.mirror.start_handled();
    service.mirror.until_resolved("10.1045/load7", 1, "first");
    service.primary.admin = None;
    // A store with other records takes the place of the one before.
    let store = service.primary.path("site/store.redb");
    let homed = ["export", "site/store.redb", "site/backup.jsonl"];
    succeed(service.primary.hdl(homed));
    let text = fs::read_to_string(service.primary.path("site/backup.jsonl")).unwrap();
    let kept: String = text
        .lines()
        .filter(|line| !line.contains("10.1045/LOAD7"))
        .fold(String::new(), |all, line| all + line + "\n");
    fs::write(service.primary.path("site/backup.jsonl"), kept).unwrap();
    fs::remove_file(&store).unwrap();
    succeed(service.primary.hdl(["import", "--create", "site/store.redb", "site/backup.jsonl"]));
    load(&service.primary, 5, "second");
    // A store that happens to have as many transactions as the one before cannot be determined from
    // it.
    load(&service.primary, 5, "second");
    service.primary.start_admin();
    service.mirror.until_resolved("10.1045/load7", 100, "");
    service.mirror.until_resolved("10.1045/load4", 1, "second");
    equal(&service);
    assert_eq!(service.progress()["counts"]["dumps"], 2, "{}", service.progress());
}

/// Relays connections to a server. `spoil` may change or cut each part that the server sends; it
/// gets the number of the connection and the position of the part.
fn spoiler(
    server: SocketAddr,
    spoil: impl Fn(usize, usize, &mut Vec<u8>) -> bool + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (spoil, count) = (Arc::new(spoil), AtomicUsize::new(0));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (number, spoil) = (count.fetch_add(1, Ordering::Relaxed), Arc::clone(&spoil));
            std::thread::spawn(move || drop(relay(client, server, |at, part| spoil(number, at, part))));
        }
    });
    address
}

fn relay(
    mut client: TcpStream,
    server: SocketAddr,
    spoil: impl Fn(usize, &mut Vec<u8>) -> bool,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(server)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let (mut buffer, mut at) = (vec![0; 4096], 0);
    loop {
        let len = server.read(&mut buffer)?;
        if len == 0 {
            return client.shutdown(Shutdown::Both);
        }
        let mut part = buffer[..len].to_vec();
        let goes_on = spoil(at, &mut part);
        client.write_all(&part)?;
        if !goes_on {
            let _ = server.shutdown(Shutdown::Both);
            return client.shutdown(Shutdown::Both);
        }
        at += len;
    }
}

/// Lets a mirror follow its primary through `relay`.
fn follow_through(service: &MirroredService, relay: SocketAddr) {
    let config = service.mirror.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}addresses = [\"{relay}\"]\n")).unwrap();
}

#[test]
fn damaged_and_cut_streams_lose_nothing() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    load(&service.primary, 2000, "dumped, and long enough that a stream has several parts");
    // Three of four connections are damaged or cut: the first ones in the dump, the others in a
    // short answer.
    let relay = spoiler(service.primary.administration, |number, at, part| {
        let place = if number < 12 { 1500 + number * 9000 } else { (number * 7919) % 6000 };
        let is_here = (at..at + part.len()).contains(&place);
        match number % 4 {
            0 if is_here => {
                part[place - at] ^= 0x40;
                true
            }
            1 | 2 if is_here => {
                part.truncate(place - at);
                false
            }
            _ => true,
        }
    });
    follow_through(&service, relay);
    service.start();
    until("the mirror has dumped", || service.progress()["counts"]["dumps"].as_u64() >= Some(1));
    let mut administrator = service.administrator();
    for n in 0..200 {
        assert_eq!(administrator.put(&format!("10.1045/n{n}"), &format!("number {n}")), DONE);
    }
    equal(&service);
    let errors = service.progress()["counts"]["errors"].clone();
    println!("errors by kind: {errors}");
    let sum: u64 = errors.as_object().unwrap().values().filter_map(serde_json::Value::as_u64).sum();
    assert!(sum > 3, "{errors}");
}

#[test]
fn a_new_mirror_answers_from_a_fetched_set_until_it_has_all_records() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    load(&service.primary, 200, "loaded");
    service.primary.start_admin();
    assert_eq!(service.administrator().put("10.1045/n", "first"), DONE);
    let is_there = |line: &String| line.contains("10.1045/N");
    until("the primary has published", || service.primary.published().iter().any(is_there));
    service.primary.admin = None;
    let sets = [&service.primary, &service.mirror].map(|service| service.path("site/snapshot"));
    let published = |set: &Path| read_manifest(set).unwrap();
    let mut fetch = Command::new(program("handle-fetch", "handle-fetch"));
    fetch.arg(format!("file://{}", sets[0].display())).arg(&sets[1]).args(["--once", "--allow-root"]);
    succeed(fetch);
    let fetched = published(&sets[1]);
    assert_eq!(fetched.root, published(&sets[0]).root);
    service.mirror.start_handled();
    // The primary does not answer yet, so the store of the mirror has other records than the set.
    service.mirror.start_admin();
    until("requests fail", || service.progress()["last_error"].is_string());
    assert!(service.progress()["lag_seconds"].is_null(), "{}", service.progress());
    service.mirror.until_resolved("10.1045/n", 1, "first");
    assert_eq!(published(&sets[1]), fetched);
    service.primary.start_admin();
    assert_eq!(service.administrator().put("10.1045/n", "second"), DONE);
    service.mirror.until_resolved("10.1045/n", 1, "second");
    equal(&service);
    let own = published(&sets[1]);
    assert!(own.generation > fetched.generation && own.source != fetched.source, "{own:?}");
}

#[test]
fn a_server_with_another_key_is_refused() {
    let (mut service, other) = (MirroredService::make("", "interval_ms = 50"), InitialisedService::make());
    let mut other = other;
    other.start_admin();
    follow_through(&service, other.administration);
    service.start();
    until("the answer is refused", || service.progress()["counts"]["errors"]["unproven"].as_u64() >= Some(1));
    assert_eq!(service.progress()["last_transaction"], 0);
    assert_eq!(service.progress()["counts"]["items"], 0);
}

#[test]
fn one_server_of_a_divided_site_has_its_share() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    load(&service.primary, 300, "x");
    let site = service.mirror.path("site/siteinfo.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&site).unwrap()).unwrap();
    let mut second = json["servers"][0].clone();
    second["serverId"] = 2.into();
    second["address"] = "192.0.2.2".into();
    json["servers"].as_array_mut().unwrap().push(second);
    fs::write(&site, json.to_string()).unwrap();
    let config = service.mirror.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("server_id = 1\n{text}")).unwrap();
    service.start();
    until("the mirror has dumped", || service.progress()["activity"] == "following");
    let record = handle_daemon::site::SiteRecord::read(&site, Some(1)).unwrap();
    let is_ours = |line: &String| {
        let json: serde_json::Value = serde_json::from_str(line).unwrap();
        let handle = json["handle"].as_str();
        handle.is_none_or(|handle| record.has(handle_proto::Handle(handle.as_bytes())))
    };
    let expected: Vec<String> = service.primary.published().into_iter().filter(is_ours).collect();
    assert!((50..250).contains(&expected.len()), "{}", expected.len());
    until("the share is published", || service.mirror.published() == expected);
}

#[test]
fn a_filter_takes_one_prefix_and_those_derived_from_it() {
    let mut service = MirroredService::make("", "interval_ms = 50\nprefixes = [\"10.77\"]");
    service.start();
    let mut administrator = service.administrator();
    for prefix in ["10.77", "10.77.1", "10.771"] {
        assert_eq!(administrator.home(&format!("0.NA/{prefix}")), DONE);
        assert_eq!(administrator.put(&format!("{prefix}/a"), "x"), DONE);
    }
    service.mirror.start_handled();
    service.mirror.until_resolved("10.77/a", 1, "x");
    service.mirror.until_resolved("10.77.1/a", 1, "x");
    until("the primary is followed", || service.progress()["lag_transactions"] == 0);
    assert_eq!(service.mirror.resolve("10.771/a")["responseCode"], 301);
    assert_eq!(service.mirror.resolve("10.1045/ADMIN")["responseCode"], 301);
}

fn site_of(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_promoted_mirror_accepts_changes_and_another_mirror_goes_on_there() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    service.primary.start_admin();
    let mut administrator = service.administrator();
    // Before the mirror begins, so that the numbers of its store are lower.
    for n in 0..20 {
        assert_eq!(administrator.put(&format!("10.1045/n{n}"), "before"), DONE);
    }
    service.mirror.start_admin();
    equal(&service);
    let primary_id =
        ask(&control(&service.primary), "status")["store"]["content"]["last_transaction"].clone();
    until("the mirror has all transactions", || service.progress()["last_transaction"] == primary_id);
    service.primary.admin = None;
    let socket = control(&service.mirror).display().to_string();
    let serial = site_of(&service.mirror.path("site/siteinfo.json"))["serialNumber"].as_i64().unwrap();
    let shown = succeed(service.mirror.hdl(["mirror", "promote", "--socket", &socket, "--json"]));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["last_transaction"], primary_id, "its numbers go on after those of the primary");
    let site = site_of(&service.mirror.path("site/siteinfo.json"));
    assert_eq!((&site["primarySite"], site["serialNumber"].as_i64()), (&true.into(), Some(serial + 1)));
    let mut client = RecordAdministrator::new(&service.primary, service.mirror.administration);
    assert_eq!(client.put("10.1045/after", "promoted"), DONE);
    service.mirror.start_handled();
    service.mirror.until_resolved("10.1045/after", 1, "promoted");
    assert_eq!(service.progress()["activity"], "promoted");
    let root = published_root(&service.mirror);
    // Also after a restart, with `[mirror]` still in the configuration.
    service.mirror.admin = None;
    service.mirror.start_admin();
    let mut client = RecordAdministrator::new(&service.primary, service.mirror.administration);
    assert_eq!(client.put("10.1045/after", "restarted"), DONE);
    service.mirror.until_resolved("10.1045/after", 1, "restarted");
    assert_ne!(published_root(&service.mirror), root);
    let (_, twice) = fail(service.mirror.hdl(["mirror", "promote", "--socket", &socket]));
    assert!(twice.contains("promoted already"), "{twice}");
}

#[test]
fn a_stopped_mirror_is_promoted_by_its_configuration() {
    let mut service = MirroredService::make("", "interval_ms = 50");
    service.start();
    equal(&service);
    let (code, running) = fail(service.mirror.promotion_command());
    assert!(
        code == 1 && running.contains("has the store") && running.contains("hdl mirror promote"),
        "{running}"
    );
    service.mirror.admin = None;
    let socket = control(&service.mirror).display().to_string();
    let (code, stopped) = fail(service.mirror.hdl(["mirror", "promote", "--socket", &socket]));
    assert!(code == 1 && stopped.contains("handle-admin promote --config"), "{stopped}");
    assert!(!site_of(&service.mirror.path("site/siteinfo.json"))["primarySite"].as_bool().unwrap());
    let shown = succeed(service.mirror.promotion_command());
    assert!(
        shown.starts_with("this is the primary now") && shown.contains("\n  put the new site"),
        "{shown}"
    );
    service.mirror.start_admin();
    let mut client = RecordAdministrator::new(&service.primary, service.mirror.administration);
    assert_eq!(client.put("10.1045/after", "promoted"), DONE);
    let config = service.mirror.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.split("\n[mirror]").next().unwrap()).unwrap();
    service.mirror.admin = None;
    service.mirror.start_admin();
    let mut client = RecordAdministrator::new(&service.primary, service.mirror.administration);
    assert_eq!(client.put("10.1045/after", "without the section"), DONE);
}
