//! Registration of a prefix from `hdl init` of a new service to a handle that is resolved there,
//! with all processes, of which some are killed.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::{PrivateKey, open_key_file};
use handle_gateway::Config;
use handle_tests::daemon::{Daemon, Successor, ask, free_address, handled};
use handle_tests::gateway_server::{get, use_tls};
use handle_tests::process::{RunningProcess, fail, program, succeed, until};
use handle_tests::registrar::{RegistrationPages, SignedInUser};
use handle_tests::service_directory::InitialisedService;
use serde_json::json;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

const PARENT: &str = "10.1045";
const PREFIX: &str = "10.1045.7";

/// A registry for prefixes derived from 10.1045: all three processes.
struct Registry {
    service: InitialisedService,
    pages: RegistrationPages,
    gateway: Option<RunningProcess>,
}

impl Registry {
    fn start() -> Self {
        let mut service = InitialisedService::make();
        service.start_admin();
        service.start_handled();
        succeed(service.hdl_as_admin(["handle", "home", &format!("0.NA/0.NA/{PARENT}")]));
        let address = free_address();
        let path = |name: &str| Some(service.path("site").join(name));
        let mut config = Config {
            listen: vec![address],
            workers: 1,
            snapshot: path("snapshot"),
            site: path("siteinfo.json"),
            ..Config::default()
        };
        config.admin.address = Some(service.administration);
        config.admin.socket = path("run/admin.socket");
        config.control = path("run/gateway");
        config.registration.directory = path("requests");
        config.registration.reviewers = vec![format!("300:{PARENT}/ADMIN")];
        use_tls(&mut config, &service.path("site"));
        fs::write(service.path("gateway.toml"), toml::to_string(&config).unwrap()).unwrap();
        let mut registry = Self { service, pages: RegistrationPages { address }, gateway: None };
        registry.start_gateway();
        registry
    }

    fn start_gateway(&mut self) {
        let mut command = Command::new(program("handle-gateway", "handle-gateway"));
        command.arg("--config").arg(self.service.path("gateway.toml")).arg("--allow-root");
        command.stderr(Stdio::null());
        self.gateway = Some(RunningProcess::start(command));
        until("the gateway answers", || TcpStream::connect(self.pages.address).is_ok());
    }

    /// Restarts the gateway by take-over, and waits for the new one.
    fn restart_gateway(&mut self) -> Successor {
        let control = self.service.path("site/run/gateway");
        let answer = ask(&control, "restart");
        assert_eq!(answer["ok"], true, "{answer}");
        let successor = Successor { pid: answer["pid"].clone() };
        until("the new gateway serves", || ask(&control, "status")["pid"] == successor.pid);
        assert_eq!(self.gateway.take().unwrap().wait(), Some(0));
        successor
    }

    /// Kills the gateway and starts it again.
    fn kill_gateway(&mut self) {
        self.gateway.take().unwrap().signal("KILL");
        self.start_gateway();
    }

    fn reviewer(&self) -> SignedInUser {
        let key = open_key_file(&self.service.path("site/admin-private.bin"), None).unwrap();
        let key = PrivateKey::new(&key.view()).unwrap();
        self.pages.sign_in(&format!("300:{PARENT}/ADMIN"), &key)
    }

    /// `hdl init` of another service, in the directory `name`.
    fn init(&self, name: &str, prefix: &str) -> (SocketAddr, SocketAddr) {
        let (queries, administration) = (free_address(), free_address());
        let (port, admin_port) = (queries.port().to_string(), administration.port().to_string());
        let init = ["init", name, "--prefix", prefix, "--address", "127.0.0.1", "--bind", "127.0.0.1"];
        let ports = ["--port", &port, "--admin-port", &admin_port, "--plain", "--no-metrics"];
        let contact = ["--organization", "A new service", "--contact-email", "new@example.org"];
        succeed(self.service.hdl(init.into_iter().chain(ports).chain(contact)));
        (queries, administration)
    }

    /// Waits until the gateway answers with the record of a prefix, and returns it.
    fn published(&self, prefix: &str) -> serde_json::Value {
        let target = format!("/api/handles/0.NA/{prefix}");
        until("the prefix record is published", || get(self.pages.address, &target, "").status == 200);
        get(self.pages.address, &target, "").json()
    }
}

fn start_service(directory: &Path, administration: SocketAddr) -> (RunningProcess, Daemon) {
    let mut admin = Command::new(program("handle-admin", "handle-admin"));
    admin.stdin(Stdio::null()).env("HANDLE_ADMIN_ALLOW_ROOT", "true");
    admin.arg("--config").arg(directory.join("handle-admin.toml")).args(["--log", "warn"]);
    let admin = RunningProcess::start(admin);
    until("handle-admin of the new service answers", || TcpStream::connect(administration).is_ok());
    let mut queries = handled();
    queries.arg("--config").arg(directory.join("handled.toml")).args(["--workers", "1", "--log", "warn"]);
    (admin, Daemon::start(queries, &directory.join("run/handled.sock")))
}

/// The file of a global service that is the registry.
fn write_root(registry: &Registry, path: &Path) {
    let site: serde_json::Value =
        serde_json::from_slice(&fs::read(registry.service.path("site/siteinfo.json")).unwrap()).unwrap();
    let value = json!({ "index": 1, "type": "HS_SITE", "data": { "format": "site", "value": site } });
    let record = json!({ "handle": "0.NA/0.NA", "values": [value] });
    fs::write(path, json!({ "handles": { "0.NA/0.NA": record } }).to_string()).unwrap();
}

#[test]
fn a_new_service_is_registered_and_found_although_the_gateway_is_killed() {
    let mut registry = Registry::start();
    let (_, administration) = registry.init("second", PREFIX);
    let bundle = fs::read(registry.service.path("second/sitebndl.zip")).unwrap();
    let application = registry.pages.stored(&[("prefix", PREFIX)], &bundle);
    registry.kill_gateway();
    assert_eq!(registry.pages.state(&application).json()["state"], "pending");
    let who = registry.reviewer();
    let review = registry.pages.review(&who, &application).text();
    for text in ["A new service", "new@example.org", PREFIX, "cannot be reached from the internet: 127.0.0.1"]
    {
        assert!(review.contains(text), "{text}: {review}");
    }
    let fields = [("action", "accept"), ("prefix", PREFIX)];
    let accepted = registry.pages.decide(&who, &application, &fields);
    assert_eq!(accepted.status, 303, "{}", accepted.text());
    registry.kill_gateway();
    assert_eq!(registry.pages.state(&application).json()["state"], "accepted");
    // The record of the prefix, from the gateway.
    let record = registry.published(PREFIX);
    let values = record["values"].as_array().unwrap();
    let kinds: Vec<_> = values.iter().map(|value| (&value["index"], &value["type"])).collect();
    let expected = [(1, "HS_SITE"), (2, "EMAIL"), (100, "HS_ADMIN"), (300, "HS_PUBKEY")];
    let expected = expected.map(|(index, kind)| (json!(index), json!(kind)));
    assert_eq!(kinds, expected.iter().map(|(index, kind)| (index, kind)).collect::<Vec<_>>());
    assert_eq!(values[0]["data"]["value"]["servers"][0]["interfaces"][1]["port"], administration.port());
    // A handle of the new service, found by way of that record.
    let service = &registry.service;
    let _processes = start_service(&service.path("second"), administration);
    let create = ["handle", "create", "10.1045.7/first", "1:URL=https://example.org/first"];
    let server = administration.to_string();
    let auth = ["--server", &server, "--auth", "300:10.1045.7/ADMIN", "--key", "second/admin-private.bin"];
    succeed(service.hdl(create.into_iter().chain(auth)));
    write_root(&registry, &service.path("root.json"));
    until("the handle is found", || {
        let found = service.hdl(["resolve", "10.1045.7/first", "--url", "--root", "root.json"]).output();
        String::from_utf8_lossy(&found.unwrap().stdout).contains("https://example.org/first")
    });
    // The administrator of the new service administers the record at the registry.
    let update = ["handle", "update", "0.NA/10.1045.7", "3:DESC=changed"];
    let key = "second/admin-private.bin";
    succeed(service.hdl_as(update, "300:0.NA/10.1045.7", key));
    let (exit, _) = fail(service.hdl_as(
        ["handle", "update", "0.NA/10.1045", "3:DESC=changed"],
        "300:0.NA/10.1045.7",
        key,
    ));
    assert_eq!(exit, 5, "but no other record");
}

#[test]
fn an_acceptance_that_was_interrupted_is_completed() {
    let mut registry = Registry::start();
    registry.init("second", PREFIX);
    let bundle = fs::read(registry.service.path("second/sitebndl.zip")).unwrap();
    let [application, other] =
        [PREFIX, "10.1045.8"].map(|prefix| registry.pages.stored(&[("prefix", prefix)], &bundle));
    let who = registry.reviewer();
    for (name, path) in [("siteinfo.json", "siteinfo.json"), ("admin-public.bin", "admin-public.bin")] {
        let target = format!("/admin/registration/{path}?id={}", application.id);
        fs::write(registry.service.path(name), registry.pages.get(&who, &target).body).unwrap();
    }
    // handle-admin does not answer: it is killed.
    registry.service.admin.take().unwrap().signal("KILL");
    for (application, prefix) in [(&application, PREFIX), (&other, "10.1045.8")] {
        let decided = registry.pages.decide(&who, application, &[("action", "accept"), ("prefix", prefix)]);
        assert_eq!(decided.status, 502, "{}", decided.text());
    }
    registry.service.start_admin();
    registry.kill_gateway();
    assert_eq!(ask(&registry.service.path("site/run/handle-admin.sock"), "status")["health"]["ok"], true);
    // One record was created before the answer was lost; the command of the page creates the same.
    let who = registry.reviewer();
    let page = registry.pages.review(&who, &application).text();
    assert!(page.contains("it is not known whether its record was created"), "{page}");
    let command = page.split("hdl handle create ").nth(1).unwrap().split('<').next().unwrap();
    let words: Vec<&str> = command.split(' ').collect();
    let at = words.iter().position(|word| word.starts_with("0.NA/")).unwrap();
    succeed(registry.service.hdl_as_admin(["handle", "create"].into_iter().chain(words[at..].to_vec())));
    for (application, prefix) in [(&application, PREFIX), (&other, "10.1045.8")] {
        // Another prefix than the one that was begun is not taken.
        let fields = [("action", "accept"), ("prefix", "10.1045.9")];
        assert_eq!(registry.pages.decide(&who, application, &fields).status, 303);
        assert_eq!(registry.pages.state(application).json()["prefix"], prefix);
        registry.published(prefix);
    }
    assert_eq!(get(registry.pages.address, "/api/handles/0.NA/10.1045.9", "").status, 404);
    // A record of others is not taken for that of the request.
    let third = registry.pages.stored(&[("prefix", PREFIX)], &bundle);
    let decided = registry.pages.decide(&who, &third, &[("action", "accept"), ("prefix", PREFIX)]);
    assert_eq!(decided.status, 409, "{}", decided.text());
    for prefix in ["10.1046", "99"] {
        let fields = [("action", "accept"), ("prefix", prefix)];
        let decided = registry.pages.decide(&who, &third, &fields);
        assert!(decided.text().contains("does not keep the record of that prefix"), "{}", decided.text());
    }
}

#[test]
fn requests_for_prefixes_move_to_the_gateway_that_takes_over() {
    let mut registry = Registry::start();
    registry.init("second", PREFIX);
    let bundle = fs::read(registry.service.path("second/sitebndl.zip")).unwrap();
    let before = registry.pages.stored(&[("prefix", PREFIX)], &bundle);
    let _gateway = registry.restart_gateway();
    let after = registry.pages.stored(&[("prefix", "10.1045.8")], &bundle);
    for application in [&before, &after] {
        assert_eq!(registry.pages.state(application).json()["state"], "pending");
    }
    // Sessions are those of a process, so the reviewer signs in again.
    let who = registry.reviewer();
    let fields = [("action", "refuse"), ("reason", "a test")];
    assert_eq!(registry.pages.decide(&who, &before, &fields).status, 303);
    assert_eq!(registry.pages.state(&before).json()["state"], "refused");
}
