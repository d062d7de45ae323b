//! Reloading the configuration: what can change does, what cannot is named, and what is wrong changes nothing.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{ResponseCode, Value};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::Publisher;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_tests::client::Client;
use handle_tests::daemon::{Daemon, free_address, handled};
use handle_tests::process::{hdl, run, until};
use serde_json::{Value as Json, json};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Publishes a record whose answer takes several datagrams.
fn publish(set: &Path) {
    std::fs::create_dir(set).unwrap();
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let mut publisher = Publisher::open(set).unwrap();
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        builder.add(0, b"10.1/long", [Value::new(1, b"TEXT", &[b'x'; 2_000])])?;
        builder.finish(file)
    });
    published.unwrap();
}

/// A process with a configuration file.
struct Place {
    directory: TempDir,
    address: SocketAddr,
    daemon: Daemon,
    manager: UnixDatagram,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        publish(&directory.path().join("set"));
        let address = free_address();
        let config = directory.path().join("handled.toml");
        std::fs::write(&config, text(address, "")).unwrap();
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

    fn code(&self) -> ResponseCode {
        Client::new(self.address).resolve(b"10.1/long").expect("an answer").code
    }
}

fn text(address: SocketAddr, more: &str) -> String {
    format!(
        "snapshot = \"set\"\ncontrol = \"control.sock\"\nlisten = [\"{address}\"]\nworkers = 2\nlog = \"warn\"\n{more}\n"
    )
}

#[test]
fn a_reload_changes_what_it_can_and_names_the_rest() {
    let place = Place::new();
    assert_eq!(place.code(), ResponseCode::SUCCESS);
    place.configure("datapath = \"portable\"\nlimits.answer_datagrams = 2\nlimits.batch_datagrams = 8");
    let (code, said) = place.reload();
    assert_eq!((code, &said["ok"], &said["generation"]), (Some(0), &json!(true), &json!(1)), "{said}");
    assert_eq!(said["settings_changed"], json!(["limits.answer_datagrams"]));
    assert_eq!(said["settings_not_changed"], json!(["datapath", "limits.batch_datagrams"]));
    let hint = said["hint"].as_str().unwrap();
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
    let place = Place::new();
    for (wrong, why) in [
        ("limits.answer_datagrams = 0", "limits.answer_datagrams"),
        ("limits.answer_datagrams = 2\nlissten = []", "lissten"),
        ("limits.answer_datagrams = 2\nsite = \"nowhere.json\"", "nowhere.json"),
        ("limits.answer_datagrams = 2\nuser = 7", "user"),
        ("limits.answer_datagrams = ", "handled.toml"),
    ] {
        place.configure(wrong);
        let (code, said) = place.reload();
        let error = said["error"].as_str().unwrap();
        assert!(code == Some(6) && error.contains(why) && error.contains("nothing has changed"), "{said}");
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
    let place = Place::new();
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    assert!(!log().contains("configuration reloaded"));
    let with_log = |level: &str| {
        let text = text(place.address, "site = \"site.json\"").replace("\"warn\"", &format!("{level:?}"));
        std::fs::write(place.path("handled.toml"), text).unwrap();
    };
    let servers = handle_tests::vectors::document("servers.json");
    let mut site = servers["servers"]["multi_all"]["site"].clone();
    site["servers"].as_array_mut().unwrap().truncate(1);
    site["serialNumber"] = json!(7);
    std::fs::write(place.path("site.json"), site.to_string()).unwrap();
    with_log("info");
    let (_, said) = place.reload();
    assert_eq!(said["settings_changed"], json!(["log", "site"]), "{said}");
    until("it is logged", || log().contains("configuration reloaded"));
    assert_eq!(place.daemon.ask("status")["site"]["serial"], 7);
    // The name is the same and the record is not.
    site["serialNumber"] = json!(8);
    std::fs::write(place.path("site.json"), site.to_string()).unwrap();
    assert_eq!(place.reload().1["settings_changed"], json!([]));
    assert_eq!(place.daemon.ask("status")["site"]["serial"], 8);
    with_log("loud=loud");
    let (code, said) = place.reload();
    assert!(code == Some(6) && said["error"].as_str().unwrap().contains("`log`"), "{said}");
}
