//! The administration process takes over what of a new configuration it can while it serves, and names the rest.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::config::Config;
use handle_client::administration::{Administrator, Identity, Key};
use handle_proto::wire::Request;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::{OpFlags, ResponseCode as Code, Value, Values};
use handle_tests::administered::administer_with;
use handle_tests::daemon::{ask, free_address};
use handle_tests::process::{Running, program, until};
use serde_json::{Value as Json, json};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// A process, its configuration, and where that is written.
struct Place {
    process: Running,
    config: Config,
    file: PathBuf,
    control: PathBuf,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Place {
    fn start() -> Self {
        let mut made = administer_with("root", |config| config.administrators.server.clear());
        made.stop();
        let (mut config, address) = (made.config.clone(), free_address());
        let directory = std::mem::replace(&mut made.directory, tempfile::tempdir().unwrap());
        let file = directory.path().join("handle-admin.toml");
        let control = directory.path().join("control.sock");
        config.listen = vec![address];
        config.control = Some(control.clone());
        config.publish.directory = Some(directory.path().join("set"));
        config.allow_root = true;
        std::fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.arg("--config").arg(&file);
        let process = Running::start(command);
        until("it answers", || control.exists() && TcpStream::connect(address).is_ok());
        Self { process, config, file, control, address, directory }
    }

    fn write(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
        std::fs::write(&self.file, toml::to_string(&self.config).unwrap()).unwrap();
    }

    fn client(&self) -> Administrator {
        let mut client = Administrator::new(self.address, Duration::from_secs(60));
        let key = Key::Secret(Zeroizing::new(b"open sesame open".to_vec()));
        client.identify(Some(Arc::new(Identity { handle: b"0.NA/TST".to_vec(), index: 301, key })));
        client
    }

    fn home(&self, prefix: &str) -> Code {
        let body = HandleBody { handle: prefix.as_bytes() };
        self.client().ask(&Request::HomeNa(body), OpFlags::PLAIN_REQUEST).unwrap().code()
    }

    fn create(&self, handle: &str, count: i32) -> Code {
        let mut room = Vec::new();
        let values = (1..=count).map(|index| Value::new(index, b"URL", b"https://example.org/"));
        let body = HandleValues { handle: handle.as_bytes(), values: Values::build(values, &mut room) };
        self.client().ask(&Request::CreateHandle(body), OpFlags::PLAIN_REQUEST).unwrap().code()
    }
}

#[test]
fn what_can_change_does_and_the_rest_is_named() {
    let mut place = Place::start();
    assert_eq!(place.home("0.NA/10.1"), Code::INVALID_ADMIN);
    let audit = place.directory.path().join("other.jsonl");
    place.write(|config| {
        config.administrators.server = vec!["301:0.NA/TST".to_owned()];
        config.limits.record_values = 2;
        config.tcp.connections_per_source = 8;
        config.publish.interval_ms = 7;
        config.audit = Some("other.jsonl".into());
        config.threads = 7;
        config.store.queue_changes = 7;
    });
    let said = ask(&place.control, "reload");
    assert_eq!(said["ok"], true, "{said}");
    let names = |member: &str| -> Vec<String> { serde_json::from_value(said[member].clone()).unwrap() };
    assert_eq!(
        names("settings_changed"),
        [
            "administrators.server",
            "audit",
            "limits.record_values",
            "publish.interval_ms",
            "tcp.connections_per_source"
        ]
    );
    assert_eq!(names("settings_not_changed"), ["store.queue_changes", "threads"]);
    assert!(said["hint"].as_str().unwrap().contains("restart"), "{said}");
    assert_eq!(place.home("0.NA/10.1"), Code::SUCCESS, "an administrator of the server now");
    assert_eq!(place.create("TST/two", 2), Code::SUCCESS);
    assert_eq!(place.create("TST/three", 3), Code::INVALID_VALUE);
    let lines = std::fs::read_to_string(audit).unwrap();
    assert!(lines.contains("10.1") && lines.contains("TST/two"), "{lines}");
    // As many connections of this source as may be: the next is closed without an answer.
    let mut held: Vec<TcpStream> = Vec::new();
    until("there is no place for one more", || {
        held.push(TcpStream::connect(place.address).unwrap());
        let mut client = Administrator::new(place.address, Duration::from_secs(60));
        let body = HandleBody { handle: b"/" };
        client.ask(&Request::GetSiteInfo(body), OpFlags::PLAIN_REQUEST).is_err()
    });
    assert!(held.len() < 100, "{} connections are held", held.len());
}

#[test]
fn what_is_wrong_changes_nothing_and_a_signal_does_as_the_command() {
    let mut place = Place::start();
    place.write(|config| {
        config.administrators.server = vec!["301:0.NA/TST".to_owned()];
        config.limits.record_values = 4096;
    });
    let said = ask(&place.control, "reload");
    assert_eq!(said["ok"], false, "{said}");
    assert!(said["error"].as_str().unwrap().contains("limits.record_values"), "{said}");
    place.write(|config| {
        config.limits.record_values = 2048;
        config.audit = Some("nowhere/audit.jsonl".into());
    });
    assert_eq!(ask(&place.control, "reload")["ok"], Json::Bool(false));
    std::fs::write(&place.file, "listen = 7").unwrap();
    assert_eq!(ask(&place.control, "reload")["ok"], json!(false));
    assert_eq!(place.home("0.NA/10.1"), Code::INVALID_ADMIN, "as it was");
    place.write(|config| config.audit = Some("audit.jsonl".into()));
    place.process.signal("HUP");
    until("it has reloaded", || place.home("0.NA/10.1") == Code::SUCCESS);
    place.process.signal("TERM");
    assert_eq!(place.process.wait(), Some(0));
}
