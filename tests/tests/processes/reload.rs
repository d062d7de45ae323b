//! Reloading the configuration: live settings are applied, others named, and a wrong file changes
//! nothing.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{ResponseCode, Value};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::{TestClient, request};
use handle_tests::daemon::{Daemon, ask, free_address, handled};
use handle_tests::process::{hdl, run, until};
use handle_tests::records::publish_values;
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
    publish_values(publisher, &[(b"10.1/long", Value::new(1, b"TEXT", text))]);
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

    /// Starts with `more` in the configuration.
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
        let setup = Self { directory, address, daemon, manager };
        setup.wait_for_notification("READY=1");
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits for a notification to the service manager.
    fn wait_for_notification(&self, text: &str) {
        let mut buffer = [0; 1000];
        loop {
            let len = self.manager.recv(&mut buffer).unwrap_or_else(|error| panic!("{text}: {error}"));
            if String::from_utf8_lossy(&buffer[..len]).contains(text) {
                return;
            }
        }
    }

    fn configure(&self, more: &str) {
        std::fs::write(self.path("handled.toml"), text(self.address, more)).unwrap();
    }

    /// Reloads; returns exit code and output.
    fn reload(&self) -> (Option<i32>, Json) {
        let mut command = hdl(["control", "reload", "--json", "--socket"]);
        command.arg(&self.daemon.control);
        let output = run(command);
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Reloads with `more`, which only changes live settings.
    fn change(&self, more: &str) {
        self.configure(more);
        let (code, reply) = self.reload();
        assert!(code == Some(0) && reply["settings_not_changed"].is_null(), "{more}: {reply}");
        assert!(!reply["settings_changed"].as_array().unwrap().is_empty(), "{more}: {reply}");
    }

    /// Reloads with `more`, in which only the settings `names` change, which need a restart.
    fn assert_needs_restart(&self, more: &str, names: &[&str]) {
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

    /// A counter, summed over the workers.
    fn total(&self, name: &str) -> u64 {
        self.daemon.ask("stats")["total"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// Sends a request without waiting for the answer, each time from another port, so that the
    /// kernel distributes the requests among the workers.
    fn send_request(&self) {
        // From an address to which limits apply.
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
fn a_reload_applies_live_settings_and_names_the_others() {
    let setup = ReloadSetup::new();
    assert_eq!(setup.code(), ResponseCode::SUCCESS);
    setup.configure(
        "datapath = \"portable\"\nlimits.answer_datagrams = 2\nlimits.socket_receive_bytes = 8192",
    );
    let (code, reply) = setup.reload();
    assert_eq!((code, &reply["ok"], &reply["generation"]), (Some(0), &json!(true), &json!(1)), "{reply}");
    assert_eq!(reply["settings_changed"], json!(["limits.answer_datagrams"]));
    assert_eq!(reply["settings_not_changed"], json!(["datapath", "limits.socket_receive_bytes"]));
    let hint = reply["hint"].as_str().unwrap();
    assert!(
        hint.contains("datapath, limits.socket_receive_bytes; take over instead: hdl control restart"),
        "{hint}"
    );
    setup.wait_for_notification("RELOADING=1");
    setup.wait_for_notification("READY=1");
    // Both workers apply the limit soon, also without other requests.
    for _ in 0..8 {
        until("the limit is in force", || setup.code() != ResponseCode::SUCCESS);
    }
    // The previous configuration is restored by a signal.
    setup.configure("");
    setup.daemon.process.signal("HUP");
    until("the old limit is in force", || setup.code() == ResponseCode::SUCCESS);
}

#[test]
fn a_wrong_file_changes_nothing_and_the_error_names_the_setting() {
    let setup = ReloadSetup::new();
    for (wrong, why) in [
        ("limits.answer_datagrams = 0", "limits.answer_datagrams"),
        ("limits.answer_datagrams = 2\nlissten = []", "lissten"),
        ("limits.answer_datagrams = 2\nsite = \"nowhere.json\"", "nowhere.json"),
        ("limits.answer_datagrams = 2\nuser = 7", "user"),
        ("limits.answer_datagrams = ", "handled.toml"),
        ("limits.answer_datagrams = 2\ntcp.idle_ms = 9", "tcp.idle_ms"),
        ("limits.answer_datagrams = 2\nrate_limit.exempt = [\"192.0.2.1/24\"]", "192.0.2.1/24"),
        ("limits.answer_datagrams = 2\nquery_log.sample_every = 0", "query_log.sample_every"),
        ("limits.answer_datagrams = 2\nobserve.sources_shown = 65", "observe.sources_shown"),
        ("limits.answer_datagrams = 2\ntemplates.namespace = \"<namespace\"", "templates.namespace"),
    ] {
        setup.configure(wrong);
        let (code, reply) = setup.reload();
        let error = reply["error"].as_str().unwrap();
        assert!(code == Some(6) && error.contains(why) && error.contains("nothing has changed"), "{reply}");
        setup.wait_for_notification("READY=1");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(setup.code(), ResponseCode::SUCCESS, "{wrong}");
    }
    std::fs::remove_file(setup.path("handled.toml")).unwrap();
    assert!(setup.reload().1["error"].as_str().unwrap().contains("cannot read the configuration"));
    assert_eq!(setup.code(), ResponseCode::SUCCESS);
}

#[test]
fn the_log_filter_and_the_site_record_change_while_serving() {
    let setup = ReloadSetup::new();
    let log = || std::fs::read_to_string(setup.path("log")).unwrap();
    assert!(!log().contains("configuration reloaded"));
    let with_log = |level: &str| {
        let text = text(setup.address, "site = \"site.json\"").replace("\"warn\"", &format!("{level:?}"));
        std::fs::write(setup.path("handled.toml"), text).unwrap();
    };
    let servers = handle_tests::vectors::fixture("servers.json");
    let mut site = servers["servers"]["multi_all"]["site"].clone();
    site["servers"].as_array_mut().unwrap().truncate(1);
    site["serialNumber"] = json!(7);
    std::fs::write(setup.path("site.json"), site.to_string()).unwrap();
    with_log("info");
    let (_, reply) = setup.reload();
    assert_eq!(reply["settings_changed"], json!(["log", "site"]), "{reply}");
    until("the reload is logged", || log().contains("configuration reloaded"));
    assert_eq!(setup.daemon.ask("status")["site"]["serial"], 7);
    // The file name is the same, and its content has changed.
    site["serialNumber"] = json!(8);
    std::fs::write(setup.path("site.json"), site.to_string()).unwrap();
    assert_eq!(setup.reload().1["settings_changed"], json!([]));
    assert_eq!(setup.daemon.ask("status")["site"]["serial"], 8);
    with_log("loud=loud");
    let (code, reply) = setup.reload();
    assert!(code == Some(6) && reply["error"].as_str().unwrap().contains("`log`"), "{reply}");
}

#[test]
fn the_rate_limit_is_enabled_changed_and_disabled_while_serving() {
    let setup = ReloadSetup::new();
    assert_eq!(setup.code(), ResponseCode::SUCCESS);
    let strict = "[rate_limit]\nenabled = true\naddress_per_s = 1";
    setup.change(strict);
    until("a source with too many requests is limited", || {
        setup.send_request();
        setup.total("rate_limit_slipped") > 0
    });
    setup.change(&format!("{strict}\nexempt = [\"127.0.0.0/8\"]"));
    until("an exempt source is not limited", || {
        setup.send_request();
        setup.total("rate_limit_exempt") > 0
    });
    setup.change(&format!("{strict}\ndry_run = true"));
    until("a dry run only counts", || {
        setup.send_request();
        setup.total("rate_limit_dry_run") > 0
    });
    assert_eq!(setup.code(), ResponseCode::SUCCESS, "a dry run refuses no request");
    setup.change("[rate_limit]\nenabled = false");
    let limited =
        || ["rate_limit_slipped", "rate_limit_dry_run", "rate_limit_exempt"].map(|name| setup.total(name));
    until("without limits the counters stay", || {
        let before = limited();
        (0..16).for_each(|_| setup.send_request());
        // These answers prove that the workers have processed the requests before.
        (0..8).for_each(|_| assert_eq!(setup.code(), ResponseCode::SUCCESS));
        limited() == before
    });
}

/// All bytes received until the connection ends, possibly by a reset.
fn until_end(mut stream: &TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the connection ends");
    }
    bytes
}

#[test]
fn limits_apply_to_open_and_new_connections() {
    let setup = ReloadSetup::new();
    let idle = TcpStream::connect(setup.address).unwrap();
    until("the connection is accepted", || setup.total("tcp_connections") == 1);
    setup.change("tcp.idle_ms = 50");
    assert!(!until_end(&idle).is_empty(), "no notice of the idle time");
    assert_eq!(setup.total("tcp_closed_idle"), 1);
    setup.change("tcp.connections_per_source = 1");
    let connect = || TcpStream::connect(setup.address).unwrap();
    let mut connected = Vec::new();
    until("a second connection of a source is refused", || {
        connected.push(connect());
        setup.total("tcp_refused_source") > 0
    });
    setup.change("tcp.connections = 1");
    until("a connection is closed for a new one", || {
        connected.push(connect());
        setup.total("tcp_closed_evicted") > 0
    });
    setup.assert_needs_restart("tcp.connections = 1\ntcp.enabled = false", &["tcp.enabled"]);
}

#[test]
fn a_lower_limit_closes_idle_connections_and_keeps_busy_ones() {
    // Idle connections do not time out during the test.
    let patient = "tcp.idle_ms = 86400000";
    let setup = ReloadSetup::with(patient);
    let connect = || TcpStream::connect(setup.address).unwrap();
    let whole = request(b"10.1/long", 7);
    let mut busy = connect();
    busy.write_all(&whole[..30]).unwrap();
    until("a partial request is received", || setup.total("tcp_input_bytes") == 30);
    let idle: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
    until("all are connected", || setup.total("tcp_connections") == 9);
    setup.change(&format!("{patient}\ntcp.connections = 1"));
    // Each of the two workers applies the limit when a connection arrives.
    let mut new = Vec::new();
    until("each worker has one connection, and one of them is busy", || {
        new.push(connect());
        setup.total("tcp_connections") == 2 && setup.total("tcp_refused_full") > 0
    });
    assert!(idle.iter().all(|stream| until_end(stream).is_empty()), "idle connections are closed");
    assert!(setup.total("tcp_closed_evicted") >= 8);
    busy.write_all(&whole[30..]).unwrap();
    assert!(!until_end(&busy).is_empty(), "no answer on the busy connection");
}

#[test]
fn format_sampling_and_address_length_of_the_query_log_change() {
    let setup = ReloadSetup::with("query_log.path = \"query.log\"");
    let lines = || -> Vec<String> {
        std::fs::read_to_string(setup.path("query.log")).unwrap().lines().map(str::to_owned).collect()
    };
    assert_eq!(setup.code(), ResponseCode::SUCCESS);
    until("the first line is written", || lines().len() == 1);
    assert!(lines()[0].starts_with("127.0.0.0 UDP:HDL("), "{:?}", lines());
    setup.change(
        "query_log.path = \"query.log\"\nquery_log.format = \"json\"\nquery_log.whole_addresses = true",
    );
    let is_new =
        |line: &String| serde_json::from_str::<Json>(line).is_ok_and(|line| line["ip"] == "127.0.0.2");
    until("the log is JSON with whole addresses", || {
        setup.send_request();
        lines().iter().any(is_new)
    });
    setup.change("query_log.path = \"query.log\"\nquery_log.sample_every = 1000000");
    until("nearly no request is logged", || {
        let before = setup.total("query_log_queued");
        (0..16).for_each(|_| setup.send_request());
        (0..8).for_each(|_| assert_eq!(setup.code(), ResponseCode::SUCCESS));
        setup.total("query_log_queued") == before
    });
    setup.assert_needs_restart(
        "query_log.path = \"other.log\"\nquery_log.sample_every = 1000000",
        &["query_log.path"],
    );
    assert!(!setup.path("other.log").exists());
}

#[test]
fn templates_apply_to_the_set_that_is_served() {
    let setup = ReloadSetup::new();
    let reply = || TestClient::new(setup.address).resolve(b"10.1/long@x").expect("an answer");
    assert_eq!(reply().code, ResponseCode::HANDLE_NOT_FOUND);
    let namespace = |data: &str| {
        format!(
            "[templates]\nnamespace = \"<namespace><template delimiter='@'><value type='T' data='{data}'/></template></namespace>\""
        )
    };
    for data in ["first", "second"] {
        setup.change(&namespace(data));
        let found = |answer: &[u8]| answer.windows(data.len()).any(|window| window == data.as_bytes());
        until("the values are computed", || found(&reply().values));
    }
    setup.change(&format!("{}\nenabled = false", namespace("second")));
    until("templates are disabled", || reply().code == ResponseCode::HANDLE_NOT_FOUND);
}

#[test]
fn shown_sources_change_while_serving() {
    let http = free_address();
    let with = |more: &str| format!("observe.http = \"{http}\"\n{more}");
    let setup = ReloadSetup::with(&with(""));
    let top = || setup.daemon.ask("stats")["top_sources"][0]["prefix"].as_str().map(str::to_owned);
    let show = || {
        // One in 64 datagrams is sampled.
        (0..64).for_each(|_| setup.send_request());
        top()
    };
    until("the network is shown", || show().as_deref() == Some("127.0.0.0/24"));
    setup.change(&with("observe.sources_shown = 0"));
    assert_eq!(show(), None);
    setup.change(&with("observe.sources_shown = 1"));
    until("the network is shown again", || show().is_some());
    setup.assert_needs_restart("observe.sources_shown = 1", &["observe.http"]);
}

#[test]
fn concurrent_reloads_are_serialized_while_sets_are_published() {
    const ROUNDS: usize = 12;
    const ASKERS: usize = 4;
    let setup = ReloadSetup::new();
    let (set, control) = (setup.path("set"), setup.daemon.control.clone());
    // Replaces the file atomically, so that nobody reads a part of it.
    let configure = |name: &str, more: &str| {
        std::fs::write(setup.path(name), text(setup.address, more)).unwrap();
        std::fs::rename(setup.path(name), setup.path("handled.toml")).unwrap();
    };
    let is_over = AtomicBool::new(false);
    setup.manager.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (answers, reply, last, notifications) = std::thread::scope(|scope| {
        // Reads all notifications; handled would wait for a manager that does not read.
        let managing = scope.spawn(|| {
            let (mut texts, mut buffer) = (Vec::<String>::new(), [0; 1000]);
            // A reload by a signal may be the last to end.
            let is_ready = |texts: &[String]| {
                texts
                    .iter()
                    .rfind(|text| text.contains("RELOADING=1") || text.contains("READY=1"))
                    .is_none_or(|text| text.contains("READY=1"))
            };
            loop {
                match setup.manager.recv(&mut buffer) {
                    Ok(len) => texts.push(String::from_utf8_lossy(&buffer[..len]).into_owned()),
                    Err(_) if is_over.load(Ordering::Relaxed) && is_ready(&texts) => return texts,
                    Err(_) => {}
                }
            }
        });
        let asking = scope.spawn(|| {
            let mut client = TestClient::new(setup.address);
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
            .map(|number| {
                let (configure, control) = (&configure, &control);
                let setup = &setup;
                scope.spawn(move || {
                    let mut generation = 0;
                    for round in 0..ROUNDS {
                        let limit = 10 + (number * ROUNDS + round) % 50;
                        configure(&format!("new-{number}"), &format!("limits.answer_datagrams = {limit}"));
                        if round % 3 == 0 {
                            setup.daemon.process.signal("HUP");
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
        // The last reload reads the current file, whatever concurrent reloads have read.
        let outcome = std::panic::catch_unwind(|| {
            configure("last", "limits.answer_datagrams = 9");
            ask(&control, "reload")
        });
        // All threads end, also after a panic.
        is_over.store(true, Ordering::Relaxed);
        let reply = outcome.unwrap();
        reloaded.into_iter().for_each(Result::unwrap);
        (asking.join(), reply, publishing.join().unwrap(), managing.join().unwrap())
    });
    assert_eq!(reply["ok"], true, "{reply}");
    assert!(answers.unwrap() > 0);
    until("the last set is live", || setup.daemon.ask("status")["set"]["generation"] == last);
    let status = hdl(["control", "reload", "--json", "--socket", control.to_str().unwrap()]);
    let final_reply: Json = serde_json::from_slice(&run(status).stdout).unwrap();
    assert_eq!(
        (&final_reply["settings_changed"], &final_reply["generation"]),
        (&json!([]), &json!(last)),
        "{final_reply}"
    );
    // The manager is notified of the end of each reload before the next one begins.
    let mut is_reloading = false;
    for text in notifications {
        let (begins, ends) = (text.contains("RELOADING=1"), text.contains("READY=1"));
        assert!(!begins || !is_reloading, "{text}");
        assert!(!ends || is_reloading, "{text}");
        is_reloading = begins || is_reloading && !ends;
    }
    assert!(!is_reloading);
}
