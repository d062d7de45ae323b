//! Reloading the configuration: what can change does, what cannot is named, and what is wrong
//! changes nothing.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{ResponseCode, Value};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_tests::client::{TestClient, request};
use handle_tests::daemon::{Daemon, ask, free_address, handled};
use handle_tests::process::{hdl, run, until};
use serde_json::{Value as Json, json};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// Publishes a record whose answer takes several datagrams.
fn publish(set: &Path) {
    std::fs::create_dir(set).unwrap();
    publish_with(&mut SetPublisher::open(set).unwrap(), &[b'x'; 1_500]);
}

fn publish_with(publisher: &mut SetPublisher, text: &[u8]) {
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        builder.add(0, b"10.1/long", [Value::new(1, b"TEXT", text)])?;
        builder.finish(file)
    });
    published.unwrap();
}

/// A process with a configuration file.
struct ReloadSetup {
    directory: TempDir,
    address: SocketAddr,
    daemon: Daemon,
    manager: UnixDatagram,
}

impl ReloadSetup {
    fn new() -> Self {
        Self::with("")
    }

    /// With `more` in the configuration from the start.
    fn with(more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        publish(&directory.path().join("set"));
        let address = free_address();
        let config = directory.path().join("handled.toml");
        std::fs::write(&config, text(address, more)).unwrap();
        let manager = UnixDatagram::bind(directory.path().join("notify.sock")).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut command = handled();
        command.arg("--config").arg(&config).env("NOTIFY_SOCKET", directory.path().join("notify.sock"));
        command.stderr(std::fs::File::create(directory.path().join("log")).unwrap());
        let daemon = Daemon::start(command, &directory.path().join("control.sock"));
        let place = Self { directory, address, daemon, manager };
        place.told("READY=1");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until the service manager is told.
    fn told(&self, what: &str) {
        let mut room = [0; 1000];
        loop {
            let len = self.manager.recv(&mut room).unwrap_or_else(|error| panic!("{what}: {error}"));
            if String::from_utf8_lossy(&room[..len]).contains(what) {
                return;
            }
        }
    }

    fn configure(&self, more: &str) {
        std::fs::write(self.path("handled.toml"), text(self.address, more)).unwrap();
    }

    /// Reloads, and returns the exit code and what was said.
    fn reload(&self) -> (Option<i32>, Json) {
        let mut command = hdl(["control", "reload", "--json", "--socket"]);
        command.arg(&self.daemon.control);
        let output = run(command);
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Reloads with `more`, of which all can change.
    fn change(&self, more: &str) {
        self.configure(more);
        let (code, reply) = self.reload();
        assert!(code == Some(0) && reply["settings_not_changed"].is_null(), "{more}: {reply}");
        assert!(!reply["settings_changed"].as_array().unwrap().is_empty(), "{more}: {reply}");
    }

    /// Reloads with `more`, of which nothing can change but what is there already.
    fn refused(&self, more: &str, names: &[&str]) {
        self.configure(more);
        let (code, reply) = self.reload();
        assert_eq!((code, &reply["settings_changed"]), (Some(0), &json!([])), "{more}: {reply}");
        assert_eq!(reply["settings_not_changed"], json!(names), "{more}");
        let hint = reply["hint"].as_str().unwrap();
        assert!(
            names.iter().all(|name| hint.contains(name)) && hint.contains("hdl control restart"),
            "{hint}"
        );
    }

    /// One counter, of both workers.
    fn total(&self, name: &str) -> u64 {
        self.daemon.ask("stats")["total"][name].as_u64().unwrap_or_else(|| panic!("{name} is counted"))
    }

    /// Sends a request that nobody waits for the answer of; from another port each time, so that
    /// the kernel chooses among the workers.
    fn poke(&self) {
        // From an address of this host that has limits.
        UdpSocket::bind("127.0.0.2:0").unwrap().send_to(&request(b"10.1/long", 1), self.address).unwrap();
    }

    fn code(&self) -> ResponseCode {
        TestClient::new(self.address).resolve(b"10.1/long").expect("an answer").code
    }
}

fn text(address: SocketAddr, more: &str) -> String {
    format!(
        "snapshot = \"set\"\ncontrol = \"control.sock\"\nlisten = [\"{address}\"]\nworkers = 2\nlog = \"warn\"\n{more}\n"
    )
}

#[test]
fn a_reload_changes_what_it_can_and_names_the_rest() {
    let place = ReloadSetup::new();
    assert_eq!(place.code(), ResponseCode::SUCCESS);
    place.configure("datapath = \"portable\"\nlimits.answer_datagrams = 2\nlimits.batch_datagrams = 8");
    let (code, reply) = place.reload();
    assert_eq!((code, &reply["ok"], &reply["generation"]), (Some(0), &json!(true), &json!(1)), "{reply}");
    assert_eq!(reply["settings_changed"], json!(["limits.answer_datagrams"]));
    assert_eq!(reply["settings_not_changed"], json!(["datapath", "limits.batch_datagrams"]));
    let hint = reply["hint"].as_str().unwrap();
    assert!(
        hint.contains("datapath, limits.batch_datagrams; take over instead: hdl control restart"),
        "{hint}"
    );
    place.told("RELOADING=1");
    place.told("READY=1");
    // Both workers see it within a moment, also when nothing else comes.
    for _ in 0..8 {
        until("the limit is in force", || place.code() != ResponseCode::SUCCESS);
    }
    // Back again, by signal.
    place.configure("");
    place.daemon.process.signal("HUP");
    until("the old limit is in force", || place.code() == ResponseCode::SUCCESS);
}

#[test]
fn a_wrong_file_changes_nothing_and_says_why() {
    let place = ReloadSetup::new();
    for (wrong, why) in [
        ("limits.answer_datagrams = 0", "limits.answer_datagrams"),
        ("limits.answer_datagrams = 2\nlissten = []", "lissten"),
        ("limits.answer_datagrams = 2\nsite = \"nowhere.json\"", "nowhere.json"),
        ("limits.answer_datagrams = 2\nuser = 7", "user"),
        ("limits.answer_datagrams = ", "handled.toml"),
        ("limits.answer_datagrams = 2\ntcp.idle_ms = 9", "tcp.idle_ms"),
        ("limits.answer_datagrams = 2\nrate_limit.exempt = [\"192.0.2.1/24\"]", "192.0.2.1/24"),
        ("limits.answer_datagrams = 2\nquery_log.sample_every = 0", "query_log.sample_every"),
        ("limits.answer_datagrams = 2\nobserve.sources_shown = 1001", "observe.sources_shown"),
        ("limits.answer_datagrams = 2\ntemplates.namespace = \"<namespace\"", "templates.namespace"),
    ] {
        place.configure(wrong);
        let (code, reply) = place.reload();
        let error = reply["error"].as_str().unwrap();
        assert!(code == Some(6) && error.contains(why) && error.contains("nothing has changed"), "{reply}");
        place.told("READY=1");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(place.code(), ResponseCode::SUCCESS, "{wrong}");
    }
    std::fs::remove_file(place.path("handled.toml")).unwrap();
    assert!(place.reload().1["error"].as_str().unwrap().contains("cannot read the configuration"));
    assert_eq!(place.code(), ResponseCode::SUCCESS);
}

#[test]
fn what_is_logged_and_who_this_is_change_while_serving() {
    let place = ReloadSetup::new();
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    assert!(!log().contains("configuration reloaded"));
    let with_log = |level: &str| {
        let text = text(place.address, "site = \"site.json\"").replace("\"warn\"", &format!("{level:?}"));
        std::fs::write(place.path("handled.toml"), text).unwrap();
    };
    let servers = handle_tests::vectors::fixture("servers.json");
    let mut site = servers["servers"]["multi_all"]["site"].clone();
    site["servers"].as_array_mut().unwrap().truncate(1);
    site["serialNumber"] = json!(7);
    std::fs::write(place.path("site.json"), site.to_string()).unwrap();
    with_log("info");
    let (_, reply) = place.reload();
    assert_eq!(reply["settings_changed"], json!(["log", "site"]), "{reply}");
    until("it is logged", || log().contains("configuration reloaded"));
    assert_eq!(place.daemon.ask("status")["site"]["serial"], 7);
    // The name is the same and the record is not.
    site["serialNumber"] = json!(8);
    std::fs::write(place.path("site.json"), site.to_string()).unwrap();
    assert_eq!(place.reload().1["settings_changed"], json!([]));
    assert_eq!(place.daemon.ask("status")["site"]["serial"], 8);
    with_log("loud=loud");
    let (code, reply) = place.reload();
    assert!(code == Some(6) && reply["error"].as_str().unwrap().contains("`log`"), "{reply}");
}

#[test]
fn the_rate_limit_comes_changes_and_goes_while_serving() {
    let place = ReloadSetup::new();
    assert_eq!(place.code(), ResponseCode::SUCCESS);
    let strict = "[rate_limit]\nenabled = true\nslip = 0\nburst_ms = 60000\nipv4_32_per_s = 1";
    place.change(strict);
    until("who asks too often is limited", || {
        place.poke();
        place.total("dropped_rate_limited") > 0
    });
    place.change(&format!("{strict}\nexempt = [\"127.0.0.0/8\"]"));
    until("who is exempt is not", || {
        place.poke();
        place.total("rate_limit_exempt") > 0
    });
    place.change(&format!("{strict}\ndry_run = true"));
    until("a dry run only counts", || {
        place.poke();
        place.total("rate_limit_dry_run") > 0
    });
    assert_eq!(
        place.code(),
        ResponseCode::SUCCESS,
        "what was used up is still counted, and nobody is refused"
    );
    place.refused(&format!("{strict}\ndry_run = true\ntable_bytes = 8192"), &["rate_limit.table_bytes"]);
    place.change("[rate_limit]\nenabled = false");
    let limited =
        || ["dropped_rate_limited", "rate_limit_dry_run", "rate_limit_exempt"].map(|it| place.total(it));
    until("without limits nothing is counted by them", || {
        let before = limited();
        (0..16).for_each(|_| place.poke());
        // The workers have dealt with those when they have with this.
        (0..8).for_each(|_| assert_eq!(place.code(), ResponseCode::SUCCESS));
        limited() == before
    });
}

/// What comes over a connection until its end; it may be broken off.
fn until_end(mut stream: &TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the connection ends");
    }
    bytes
}

#[test]
fn limits_of_connections_change_for_who_is_connected_and_who_comes() {
    let place = ReloadSetup::new();
    let idle = TcpStream::connect(place.address).unwrap();
    until("it is accepted", || place.total("tcp_connections") == 1);
    place.change("tcp.idle_ms = 50");
    assert!(!until_end(&idle).is_empty(), "it is told that it was idle for too long");
    assert_eq!(place.total("tcp_closed_idle"), 1);
    place.change("tcp.connections_per_source = 1");
    let connect = || TcpStream::connect(place.address).unwrap();
    let mut connected = Vec::new();
    until("the second of a source is refused", || {
        connected.push(connect());
        place.total("tcp_refused_source") > 0
    });
    place.change("tcp.connections_per_source = 1\ntcp.source_prefix_v4 = 0");
    let before = place.total("tcp_refused_source");
    until("all are one source", || {
        connected.push(connect());
        place.total("tcp_refused_source") > before
    });
    place.change("tcp.connections = 1");
    until("one has to go for another", || {
        connected.push(connect());
        place.total("tcp_closed_evicted") > 0
    });
    place.refused(
        "tcp.connections = 1\ntcp.backlog = 7\ntcp.receive_buffers = 8\ntcp.receive_buffer_bytes = 600\ntcp.enabled = false",
        &["tcp.backlog", "tcp.enabled", "tcp.receive_buffer_bytes", "tcp.receive_buffers"],
    );
}

#[test]
fn with_fewer_places_who_is_idle_goes_and_who_is_served_stays() {
    // Half a request and those who ask nothing stay for as long as this takes.
    let patient = "tcp.idle_ms = 86400000\ntcp.read_ms = 86400000";
    let place = ReloadSetup::with(patient);
    let connect = || TcpStream::connect(place.address).unwrap();
    let whole = request(b"10.1/long", 7);
    let mut busy = connect();
    busy.write_all(&whole[..30]).unwrap();
    until("half a request is there", || place.total("tcp_input_bytes") == 30);
    let idle: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
    until("all are connected", || place.total("tcp_connections") == 9);
    place.change(&format!("{patient}\ntcp.connections = 1"));
    // Each of the two workers makes its places as somebody comes.
    let mut new = Vec::new();
    until("each worker has one left, and one cannot let it go", || {
        new.push(connect());
        place.total("tcp_connections") == 2 && place.total("tcp_refused_full") > 0
    });
    assert!(idle.iter().all(|stream| until_end(stream).is_empty()), "they are cut off");
    assert!(place.total("tcp_closed_evicted") >= 8);
    busy.write_all(&whole[30..]).unwrap();
    assert!(!until_end(&busy).is_empty(), "it is answered");
}

#[test]
fn the_query_log_changes_its_form_its_share_and_its_privacy() {
    let place = ReloadSetup::with("query_log.path = \"query.log\"");
    let lines = || -> Vec<String> {
        std::fs::read_to_string(place.path("query.log")).unwrap().lines().map(str::to_owned).collect()
    };
    assert_eq!(place.code(), ResponseCode::SUCCESS);
    until("a line", || lines().len() == 1);
    assert!(lines()[0].starts_with("127.0.0.0 UDP:HDL("), "{:?}", lines());
    place.change(
        "query_log.path = \"query.log\"\nquery_log.format = \"json\"\nquery_log.whole_addresses = true",
    );
    let is_new =
        |line: &String| serde_json::from_str::<Json>(line).is_ok_and(|line| line["ip"] == "127.0.0.2");
    until("JSON with whole addresses", || {
        place.poke();
        lines().iter().any(is_new)
    });
    place.change("query_log.path = \"query.log\"\nquery_log.sample_every = 1000000");
    until("nearly none is logged", || {
        let before = place.total("query_log_queued");
        (0..16).for_each(|_| place.poke());
        (0..8).for_each(|_| assert_eq!(place.code(), ResponseCode::SUCCESS));
        place.total("query_log_queued") == before
    });
    place.refused(
        "query_log.path = \"other.log\"\nquery_log.sample_every = 1000000\nquery_log.queue_lines = 9",
        &["query_log.path", "query_log.queue_lines"],
    );
    assert!(!place.path("other.log").exists());
}

#[test]
fn templates_apply_to_the_set_that_is_served() {
    let place = ReloadSetup::new();
    let reply = || TestClient::new(place.address).resolve(b"10.1/long@x").expect("an answer");
    assert_eq!(reply().code, ResponseCode::HANDLE_NOT_FOUND);
    let namespace = |data: &str| {
        format!(
            "[templates]\nnamespace = \"<namespace><template delimiter='@'><value type='T' data='{data}'/></template></namespace>\""
        )
    };
    for data in ["first", "second"] {
        place.change(&namespace(data));
        let found = |answer: &[u8]| answer.windows(data.len()).any(|window| window == data.as_bytes());
        until("the values are computed", || found(&reply().values));
    }
    place.change(&format!("{}\nenabled = false", namespace("second")));
    until("nothing is computed any more", || reply().code == ResponseCode::HANDLE_NOT_FOUND);
}

#[test]
fn what_is_watched_changes_while_serving() {
    let http = free_address();
    let place = ReloadSetup::with(&format!("observe.http = \"{http}\"\nobserve.sources_every = 1"));
    let top = || place.daemon.ask("stats")["top_sources"][0]["prefix"].as_str().map(str::to_owned);
    until("the network is seen", || {
        place.poke();
        top().as_deref() == Some("127.0.0.0/24")
    });
    let with = |more: &str| format!("observe.http = \"{http}\"\nobserve.sources_every = 1\n{more}");
    place.change(&with("observe.sources_ipv4_bits = 32"));
    until("the address is seen", || {
        place.poke();
        top().as_deref() == Some("127.0.0.2/32")
    });
    place.change(&with("observe.sources_shown = 0\nobserve.latency_every = 0"));
    assert_eq!(top(), None);
    let measured =
        || place.daemon.ask("stats")["total"]["answer_times"]["udp"]["worker"]["answers_measured"].as_u64();
    until("nothing is measured", || {
        let before = measured();
        (0..8).for_each(|_| assert_eq!(place.code(), ResponseCode::SUCCESS));
        measured() == before
    });
    place.refused(
        "observe.sources_every = 1\nobserve.sources_shown = 0\nobserve.latency_every = 0\nobserve.sources_kept = 9",
        &["observe.http", "observe.sources_kept"],
    );
}

#[test]
fn reloads_of_many_at_once_are_one_after_the_other_while_sets_come() {
    const ROUNDS: usize = 12;
    const ASKERS: usize = 4;
    let place = ReloadSetup::new();
    let (set, control) = (place.path("set"), place.daemon.control.clone());
    // As editors and packages do it, so that nobody reads half of it.
    let configure = |name: &str, more: &str| {
        std::fs::write(place.path(name), text(place.address, more)).unwrap();
        std::fs::rename(place.path(name), place.path("handled.toml")).unwrap();
    };
    let is_over = AtomicBool::new(false);
    place.manager.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (answers, reply, last, notifications) = std::thread::scope(|scope| {
        // A manager that does not read holds everything up.
        let managing = scope.spawn(|| {
            let (mut texts, mut room) = (Vec::<String>::new(), [0; 1000]);
            // A reload that a signal asked for may be the last to end.
            let is_ready = |texts: &[String]| {
                texts
                    .iter()
                    .rfind(|text| text.contains("RELOADING=1") || text.contains("READY=1"))
                    .is_none_or(|text| text.contains("READY=1"))
            };
            loop {
                match place.manager.recv(&mut room) {
                    Ok(len) => texts.push(String::from_utf8_lossy(&room[..len]).into_owned()),
                    Err(_) if is_over.load(Ordering::Relaxed) && is_ready(&texts) => return texts,
                    Err(_) => {}
                }
            }
        });
        let asking = scope.spawn(|| {
            let mut client = TestClient::new(place.address);
            let mut answers = 0;
            while !is_over.load(Ordering::Relaxed) {
                let answer = client.resolve(b"10.1/long").expect("no request is lost");
                assert!(answer.code == ResponseCode::SUCCESS, "{:?}", answer.code);
                answers += 1;
            }
            answers
        });
        let publishing = scope.spawn(|| {
            let mut publisher = SetPublisher::open(&set).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                publish_with(&mut publisher, &[b'y'; 1_000]);
                std::thread::sleep(Duration::from_millis(40));
            }
            publisher.manifest().unwrap().generation
        });
        let reloading: Vec<_> = (0..ASKERS)
            .map(|nth| {
                let (configure, control) = (&configure, &control);
                let place = &place;
                scope.spawn(move || {
                    let mut generation = 0;
                    for round in 0..ROUNDS {
                        let limit = 10 + (nth * ROUNDS + round) % 50;
                        configure(&format!("new-{nth}"), &format!("limits.answer_datagrams = {limit}"));
                        if round % 3 == 0 {
                            place.daemon.process.signal("HUP");
                        }
                        let reply = ask(control, "reload");
                        assert_eq!(reply["ok"], true, "{reply}");
                        let now = reply["generation"].as_u64().unwrap();
                        assert!(now >= generation, "{now} after {generation}");
                        generation = now;
                    }
                })
            })
            .collect();
        let reloaded: Vec<_> = reloading.into_iter().map(ScopedJoinHandle::join).collect();
        // Whoever comes last reads what is there then, whatever others have read before.
        let outcome = std::panic::catch_unwind(|| {
            configure("last", "limits.answer_datagrams = 9");
            ask(&control, "reload")
        });
        // Now everybody ends, whatever came of it.
        is_over.store(true, Ordering::Relaxed);
        let reply = outcome.unwrap();
        reloaded.into_iter().for_each(Result::unwrap);
        (asking.join(), reply, publishing.join().unwrap(), managing.join().unwrap())
    });
    assert_eq!(reply["ok"], true, "{reply}");
    assert!(answers.unwrap() > 0);
    until("the last set is live", || place.daemon.ask("status")["set"]["generation"] == last);
    let status = hdl(["control", "reload", "--json", "--socket", control.to_str().unwrap()]);
    let final_reply: Json = serde_json::from_slice(&run(status).stdout).unwrap();
    assert_eq!(
        (&final_reply["settings_changed"], &final_reply["generation"]),
        (&json!([]), &json!(last)),
        "{final_reply}"
    );
    // To the manager each has an end before the next one begins.
    let mut is_reloading = false;
    for text in notifications {
        let (begins, ends) = (text.contains("RELOADING=1"), text.contains("READY=1"));
        assert!(!begins || !is_reloading, "{text}");
        assert!(!ends || is_reloading, "{text}");
        is_reloading = begins || is_reloading && !ends;
    }
    assert!(!is_reloading);
}
