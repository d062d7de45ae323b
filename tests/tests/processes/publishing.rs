//! Publication, from a request to `handle-admin` to an answer of `handled`, and its control by
//! operators.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::wire::admin::HandleValues;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Value, Values};
use handle_store::{Store, StoreConfig};
use handle_tests::client::{TestClient, exchange_over_tcp};
use handle_tests::daemon::{ask, free_address};
use handle_tests::http;
use handle_tests::process::{RunningProcess, fail, hdl, program, succeed, until};
use handle_tests::{test_server, vectors};
use handle_worker::Server;
use handle_worker::config::Datapath;
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A service of both processes in one directory.
struct ServiceSetup {
    dir: tempfile::TempDir,
    admin: SocketAddr,
    http: SocketAddr,
}

impl ServiceSetup {
    fn new() -> Self {
        let setup = Self { dir: tempfile::tempdir().unwrap(), admin: free_address(), http: free_address() };
        let store = Store::create(&StoreConfig::at(&setup.path("store")), true).unwrap();
        store.home(b"10.5555").unwrap();
        let server = &vectors::fixture("servers.json")["servers"]["wide_open"];
        let site = match &server["site"] {
            Json::String(text) => text.clone(),
            object => object.to_string(),
        };
        std::fs::write(setup.path("siteinfo.json"), site).unwrap();
        let config = format!(
            "site = \"siteinfo.json\"\nserver_id = {}\nlisten = [\"{}\"]\ncontrol = \"control\"\n\
             anonymous_full_access = true\n[store]\nfile = \"store\"\n[publish]\ndirectory = \"set\"\n\
             [observe]\nhttp = \"{}\"\n",
            server["this_server_id"], setup.admin, setup.http
        );
        std::fs::write(setup.path("config"), config).unwrap();
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn status(&self) -> Json {
        ask(&self.path("control"), "status")
    }

    /// Starts `handle-admin` and waits until all records are published.
    fn start(&self) -> RunningProcess {
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.env("HANDLE_ADMIN_ALLOW_ROOT", "true").arg("--config").arg(self.path("config"));
        let running = RunningProcess::start(command);
        until("everything is published", || {
            let status = self.status();
            status["pid"] == running.0.id()
                && status["publish"]["pending"] == 0
                && !status["publish"]["set"].is_null()
        });
        running
    }

    /// Creates a handle over the network.
    fn create(&self, handle: &str) {
        let mut storage = Vec::new();
        let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut storage);
        let request = Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values });
        let header = Header::request(OpCode::RESERVED, OpFlags::PLAIN_REQUEST, 0);
        let message = MessageBuf::request(&Envelope::request(1), &header, &request).unsigned().unwrap();
        let answer = exchange_over_tcp(self.admin, &message).unwrap();
        let (envelope, message) = Envelope::split(&answer).unwrap();
        let message = Message::decode(message).unwrap();
        let Body::Reply(reply) = message.decode_body(envelope.version).unwrap() else { panic!("a request") };
        assert_eq!(reply.code, ResponseCode::SUCCESS, "{handle}");
    }

    /// `hdl control` with these arguments.
    fn control(&self, words: &[&str]) -> Command {
        let mut command = hdl(["control"]);
        command.args(words).arg("--json").arg("--socket").arg(self.path("control"));
        command
    }
}

fn serve(set: &Path) -> (Server, TestClient) {
    let server = Server::start(&test_server::config(set, Datapath::Auto)).unwrap();
    let client = TestClient::new(server.addresses()[0]);
    (server, client)
}

fn exists(client: &mut TestClient, handle: &str) -> bool {
    let code = client.resolve(handle.as_bytes()).unwrap().code;
    assert!([ResponseCode::SUCCESS, ResponseCode::HANDLE_NOT_FOUND].contains(&code), "{handle}: {code}");
    code == ResponseCode::SUCCESS
}

/// The metrics of `handle-admin` that `text` names.
fn metrics_in(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("handle_admin_")).collect()
}

#[test]
fn the_dashboard_and_the_alerts_use_existing_metrics_of_handle_admin() {
    let setup = ServiceSetup::new();
    let mut config = std::fs::read_to_string(setup.path("config")).unwrap();
    config.push_str("[publish.ship]\nurl = \"file:///tmp/no/such/place\"\n");
    std::fs::write(setup.path("config"), config).unwrap();
    let _admin = setup.start();
    let metrics = http::get(setup.http, "/metrics").unwrap().body;
    let metric_names: Vec<&str> = metrics.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let (board, alerts) = (
        include_str!("../../../docs/operations/handled-dashboard.json"),
        include_str!("../../../docs/operations/alerts.yml"),
    );
    // This process is not a mirror and has no sources, and has none of their metrics. A metric with
    // labels has no lines before something has happened.
    let groups = handle_admin::observe::metric_groups();
    let is_of_others = |group: &str| ["mirror", "pulls", "sources"].contains(&group);
    let may_be_absent: Vec<String> = groups
        .iter()
        .flat_map(|group| group.rows.iter().map(move |row| (group.name, row)))
        .filter(|(group, row)| is_of_others(group) || !row.labels.is_empty())
        .map(|(_, row)| format!("{}{}", row.name, row.kind.suffix()))
        .collect();
    for text in [board, alerts] {
        assert!(
            metrics_in(text).contains(&"handle_admin_publish_pending_transactions"),
            "no lag of publication"
        );
        for name in metrics_in(text) {
            let is_known = metric_names.contains(&name) || may_be_absent.iter().any(|known| known == name);
            assert!(is_known, "{name} is not among the metrics");
        }
    }
}

#[test]
fn records_created_over_the_network_are_served_by_handled() {
    let setup = ServiceSetup::new();
    let admin = setup.start();
    let (_server, mut client) = serve(&setup.path("set"));
    assert!(!exists(&mut client, "10.5555/one"));
    setup.create("10.5555/one");
    until("the new record is visible", || exists(&mut client, "10.5555/one"));

    // While publication is held, changes are acknowledged and not visible.
    succeed(setup.control(&["hold", "for a test"]));
    setup.create("10.5555/two");
    let status = setup.status();
    assert_eq!(status["publish"]["held"], "for a test");
    until("the change is pending", || setup.status()["publish"]["pending"] == 1);
    assert!(!exists(&mut client, "10.5555/two"));
    succeed(setup.control(&["resume"]));
    until("the held change is visible", || exists(&mut client, "10.5555/two"));

    // Roll-back to a kept generation, and resumption.
    succeed(setup.control(&["keep"]));
    setup.create("10.5555/three");
    until("the new record is visible", || exists(&mut client, "10.5555/three"));
    succeed(setup.control(&["roll-back"]));
    until("the record is gone", || !exists(&mut client, "10.5555/three"));
    assert!(exists(&mut client, "10.5555/two"));
    succeed(setup.control(&["resume"]));
    until("the record is visible again", || exists(&mut client, "10.5555/three"));

    for (words, count) in [(["rebuild"], "rebuilds"), (["merge"], "merges")] {
        let before = setup.status()["publish"]["counts"][count].as_u64().unwrap();
        setup.create(&format!("10.5555/before-{count}"));
        until("the change is published", || setup.status()["publish"]["pending"] == 0);
        succeed(setup.control(&words));
        until(count, || setup.status()["publish"]["counts"][count].as_u64().unwrap() > before);
        assert!(exists(&mut client, &format!("10.5555/before-{count}")));
    }
    let (code, _) = fail(setup.control(&["roll-back", "123456"]));
    assert_ne!(code, 0, "the generation does not exist");

    let metrics = http::get(setup.http, "/metrics").unwrap().body;
    for name in ["publish_generation ", "publish_pending_transactions 0", "publish_rebuilds_total "] {
        assert!(metrics.contains(&format!("handle_admin_{name}")), "{name} in {metrics}");
    }
    drop(admin);
}

#[test]
fn acknowledged_changes_are_visible_after_a_stop_or_a_kill() {
    let setup = ServiceSetup::new();
    let mut admin = setup.start();
    let (_server, mut client) = serve(&setup.path("set"));
    setup.create("10.5555/one");
    admin.signal("TERM");
    assert_eq!(admin.wait(), Some(0));
    until("the change is visible while handle-admin is stopped", || exists(&mut client, "10.5555/one"));
    let admin = setup.start();
    setup.create("10.5555/two");
    admin.signal("KILL");
    drop(admin);
    let _admin = setup.start();
    until("the change is visible after a restart", || exists(&mut client, "10.5555/two"));
    assert!(exists(&mut client, "10.5555/one"));
}
