//! `handle-admin` applies the settings of a new configuration that it can change while serving, and
//! names the others.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::config::Config;
use handle_admin::server::Server;
use handle_admin::settings::AdminHooks;
use handle_client::administration::{Administrator, ClientIdentity, IdentityKey};
use handle_daemon::log::LogError;
use handle_proto::wire::Request;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::{OpFlags, ResponseCode as Code, Value, Values};
use handle_tests::admin_server::administer_with;
use handle_tests::daemon::{ask, free_address};
use handle_tests::process::{RunningProcess, program, until};
use serde_json::{Value as Json, json};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use zeroize::Zeroizing;

/// Bytes of a value of [`AdminReloadSetup::create`].
const VALUE_LEN: usize = Value::LEN_MIN + "URL".len() + TARGET.len();
const TARGET: &str = "https://example.org/";

/// A running process with its configuration file.
struct AdminReloadSetup {
    process: RunningProcess,
    config: Config,
    file: PathBuf,
    control: PathBuf,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl AdminReloadSetup {
    fn start() -> Self {
        let mut administered = administer_with("root", |config| config.administrators.server.clear());
        administered.stop();
        let (mut config, address) = (administered.config.clone(), free_address());
        let directory = std::mem::replace(&mut administered.directory, tempfile::tempdir().unwrap());
        let file = directory.path().join("handle-admin.toml");
        let control = directory.path().join("control.sock");
        config.listen = vec![address];
        config.control = Some(control.clone());
        config.publish.directory = Some(directory.path().join("set"));
        config.allow_root = true;
        std::fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.arg("--config").arg(&file);
        let process = RunningProcess::start(command);
        until("the server answers", || control.exists() && TcpStream::connect(address).is_ok());
        Self { process, config, file, control, address, directory }
    }

    fn write(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
        std::fs::write(&self.file, toml::to_string(&self.config).unwrap()).unwrap();
    }

    fn client(&self) -> Administrator {
        let mut client = Administrator::new(self.address, Duration::from_secs(60));
        let key = IdentityKey::Secret(Zeroizing::new(b"open sesame open".to_vec()));
        client.identify(Some(Arc::new(ClientIdentity { handle: b"0.NA/TST".to_vec(), index: 301, key })));
        client
    }

    fn home(&self, prefix: &str) -> Code {
        let body = HandleBody { handle: prefix.as_bytes() };
        self.client().ask(&Request::HomeNa(body), OpFlags::PLAIN_REQUEST).unwrap().code()
    }

    fn create(&self, handle: &str, count: i32) -> Code {
        let mut buffer = Vec::new();
        let values = (1..=count).map(|index| Value::new(index, b"URL", TARGET.as_bytes()));
        let body = HandleValues { handle: handle.as_bytes(), values: Values::build(values, &mut buffer) };
        self.client().ask(&Request::CreateHandle(body), OpFlags::PLAIN_REQUEST).unwrap().code()
    }
}

#[test]
fn live_settings_are_applied_and_others_named() {
    let mut setup = AdminReloadSetup::start();
    assert_eq!(setup.home("0.NA/10.1"), Code::INVALID_ADMIN);
    let audit = setup.directory.path().join("other.jsonl");
    setup.write(|config| {
        config.administrators.server = vec!["301:0.NA/TST".to_owned()];
        config.limits.record_bytes = 2 * VALUE_LEN;
        config.tcp.connections_per_source = 8;
        config.publish.interval_ms = 7;
        config.audit = Some("other.jsonl".into());
        config.threads = 7;
        config.store.cache_bytes = 7 << 20;
    });
    let reply = ask(&setup.control, "reload");
    assert_eq!(reply["ok"], true, "{reply}");
    let names = |member: &str| -> Vec<String> { serde_json::from_value(reply[member].clone()).unwrap() };
    assert_eq!(
        names("settings_changed"),
        [
            "administrators.server",
            "audit",
            "limits.record_bytes",
            "publish.interval_ms",
            "tcp.connections_per_source"
        ]
    );
    assert_eq!(names("settings_not_changed"), ["store.cache_bytes", "threads"]);
    assert!(reply["hint"].as_str().unwrap().contains("restart"), "{reply}");
    assert_eq!(setup.home("0.NA/10.1"), Code::SUCCESS, "an administrator of the server now");
    assert_eq!(setup.create("TST/two", 2), Code::SUCCESS);
    assert_eq!(setup.create("TST/three", 3), Code::INVALID_VALUE);
    let lines = std::fs::read_to_string(audit).unwrap();
    assert!(lines.contains("10.1") && lines.contains("TST/two"), "{lines}");
    // The next connection of this source beyond the limit is closed without an answer.
    let mut held: Vec<TcpStream> = Vec::new();
    until("the limit of connections is reached", || {
        held.push(TcpStream::connect(setup.address).unwrap());
        let mut client = Administrator::new(setup.address, Duration::from_secs(60));
        let body = HandleBody { handle: b"/" };
        client.ask(&Request::GetSiteInfo(body), OpFlags::PLAIN_REQUEST).is_err()
    });
    assert!(held.len() < 100, "{} open connections", held.len());
}

#[test]
fn a_wrong_configuration_changes_nothing_and_a_signal_reloads() {
    let mut setup = AdminReloadSetup::start();
    setup.write(|config| {
        config.administrators.server = vec!["301:0.NA/TST".to_owned()];
        config.limits.record_bytes = 1 << 20;
    });
    let reply = ask(&setup.control, "reload");
    assert_eq!(reply["ok"], false, "{reply}");
    assert!(reply["error"].as_str().unwrap().contains("limits.record_bytes"), "{reply}");
    setup.write(|config| {
        config.limits.record_bytes = 2048;
        config.audit = Some("nowhere/audit.jsonl".into());
    });
    assert_eq!(ask(&setup.control, "reload")["ok"], Json::Bool(false));
    std::fs::write(&setup.file, "listen = 7").unwrap();
    assert_eq!(ask(&setup.control, "reload")["ok"], json!(false));
    assert_eq!(setup.home("0.NA/10.1"), Code::INVALID_ADMIN, "the configuration is unchanged");
    setup.write(|config| config.audit = Some("audit.jsonl".into()));
    setup.process.signal("HUP");
    until("the configuration is reloaded", || setup.home("0.NA/10.1") == Code::SUCCESS);
    setup.process.signal("TERM");
    assert_eq!(setup.process.wait(), Some(0));
}

/// A server in this process; each reload reads its configuration with `read`.
fn with_hooks(
    change: impl FnOnce(&mut Config),
    read: impl Fn(&Config) -> Config + Send + Sync + 'static,
    set_log: impl Fn(&str) -> Result<(), LogError> + Send + Sync + 'static,
) -> (Server, tempfile::TempDir) {
    let mut administered = administer_with("root", change);
    administered.stop();
    let started = administered.config.clone();
    let hooks = AdminHooks {
        read_config: Some(Arc::new(Box::new(move || Ok(read(&started))))),
        set_log: Some(Arc::new(Box::new(set_log))),
        ..AdminHooks::default()
    };
    let server = Server::start_with(&administered.config, hooks).unwrap();
    (server, std::mem::replace(&mut administered.directory, tempfile::tempdir().unwrap()))
}

/// With one bad setting among new and good ones, none is applied.
#[test]
fn one_bad_setting_keeps_all_others_back() {
    type ConfigFault = fn(&mut Config);
    let bad: [(&str, ConfigFault); 9] = [
        ("administrators.server", |config| {
            config.administrators.server = vec!["99999999999:0.NA/TST".to_owned()]
        }),
        ("limits.challenges", |config| config.limits.challenges = 0),
        ("tcp.connections", |config| config.tcp.connections = 0),
        ("publish.interval_ms", |config| config.publish.interval_ms = 60_001),
        ("index.results", |config| config.index.results = 0),
        ("remote.cache_s", |config| config.remote.cache_s = u32::MAX),
        ("log", |config| config.log = "what=is=this".to_owned()),
        ("nowhere", |config| config.audit = Some("/nowhere/audit.jsonl".into())),
        ("no such log", |config| config.log = "refused=debug".to_owned()),
    ];
    let at = Arc::new(AtomicUsize::new(0));
    let logged = Arc::new(Mutex::new(Vec::new()));
    let new = |config: &Config| {
        let mut new = config.clone();
        new.administrators.server = vec!["301:0.NA/TST".to_owned()];
        new.administrators.server_full_access = true;
        new.limits.pbkdf2_iterations += 1;
        new.limits.challenges = 1;
        new.tcp.connections_per_source = 1;
        new.publish.interval_ms += 1;
        new.list_handles = !new.list_handles;
        new.log = "debug".to_owned();
        new.audit = config.audit.as_ref().map(|path| path.with_file_name("other.jsonl"));
        new
    };
    let (server, directory) = with_hooks(
        |config| config.administrators.server.clear(),
        {
            let at = Arc::clone(&at);
            move |started| {
                let mut read = new(started);
                if let Some((_, spoil)) = bad.get(at.load(Ordering::Relaxed)) {
                    spoil(&mut read);
                }
                read
            }
        },
        {
            let logged = Arc::clone(&logged);
            move |filter| {
                if filter == "refused=debug" {
                    return Err(LogError::Filter("no such log".to_owned()));
                }
                logged.lock().unwrap().push(filter.to_owned());
                Ok(())
            }
        },
    );
    let shared = server.shared();
    let service = &shared.service;
    let (before, in_force) = (shared.config(), service.decision.in_force());
    for (part, _) in bad {
        let reply = shared.reload();
        assert_eq!(reply["ok"], false, "{part}: {reply}");
        let error = reply["error"].as_str().unwrap();
        assert!(error.contains(part) && error.contains("nothing has changed"), "{part}: {error}");
        assert!(Arc::ptr_eq(&shared.config(), &before), "{part}");
        assert!(Arc::ptr_eq(&service.decision.in_force(), &in_force), "{part}");
        at.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(*logged.lock().unwrap(), [""; 0], "the log filter is unchanged");
    // Limits of connections and challenges, and the audit file, are unchanged.
    let address = server.addresses()[0];
    let held = TcpStream::connect(address).unwrap();
    let ask = |handle: &str| {
        let mut client = Administrator::new(address, Duration::from_secs(60));
        let key = IdentityKey::Secret(Zeroizing::new(b"open sesame open".to_vec()));
        client.identify(Some(Arc::new(ClientIdentity { handle: b"0.NA/TST".to_vec(), index: 301, key })));
        let body = HandleBody { handle: handle.as_bytes() };
        client.ask(&Request::HomeNa(body), OpFlags::PLAIN_REQUEST).unwrap().code()
    };
    assert_eq!(ask("0.NA/10.1"), Code::INVALID_ADMIN);
    let lines = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    assert!(lines("audit.jsonl").contains("10.1"));
    assert_eq!(lines("other.jsonl"), "");
    // Without a bad setting, all are applied.
    let reply = shared.reload();
    assert_eq!((&reply["ok"], &reply["settings_not_changed"]), (&json!(true), &Json::Null), "{reply}");
    assert_eq!(*logged.lock().unwrap(), ["debug"]);
    drop(held);
    until("no connection is open", || shared.connections.count() == 0);
    assert_eq!(ask("0.NA/10.1"), Code::SUCCESS);
    assert!(lines("other.jsonl").contains("10.1"));
    server.stop();
}

#[test]
fn of_concurrent_reloads_the_last_configuration_read_is_applied() {
    let reads = Arc::new(AtomicUsize::new(0));
    let (is_reading, reading) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let (server, _directory) = with_hooks(
        |_| (),
        {
            let reads = Arc::clone(&reads);
            move |started| {
                let read = reads.fetch_add(1, Ordering::SeqCst);
                if read == 0 {
                    // The configuration read here is outdated when this reload continues.
                    is_reading.send(()).unwrap();
                    may_go_on.lock().unwrap().recv().unwrap();
                }
                let mut config = started.clone();
                config.limits.pbkdf2_iterations = 100 + u32::try_from(read).unwrap();
                config
            }
        },
        |_| Ok(()),
    );
    let shared = server.shared();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| shared.reload());
        reading.recv().unwrap();
        let second = scope.spawn(|| shared.reload());
        // Time in which the second reload would overtake the first if it could.
        std::thread::sleep(Duration::from_millis(100));
        go_on.send(()).unwrap();
        for reload in [first, second] {
            assert_eq!(reload.join().unwrap()["ok"], true);
        }
    });
    assert_eq!(reads.load(Ordering::SeqCst), 2);
    assert_eq!(shared.config().limits.pbkdf2_iterations, 101);
    assert_eq!(shared.service.decision.in_force().effort.pbkdf2.iterations_max, 101);
    server.stop();
}
