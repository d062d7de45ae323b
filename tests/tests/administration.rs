//! A service from nothing: `hdl init`, `handle-admin` and `handled`, and everything that `docs/administration.md` does
//! with them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::batches::{batch, operations};
use handle_tests::daemon::{Daemon, ask, free_address, handled};
use handle_tests::process::{Running, fail, hdl, program, run, succeed, until};
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A directory made by `hdl init`, and what runs in it.
struct Service {
    directory: TempDir,
    queries: SocketAddr,
    administration: SocketAddr,
    admin: Option<Running>,
    handled: Option<Daemon>,
}

impl Service {
    /// Makes the directory and starts both processes.
    fn start() -> Self {
        let (queries, administration) = (free_address(), free_address());
        let mut service = Self {
            directory: tempfile::tempdir().unwrap(),
            queries,
            administration,
            admin: None,
            handled: None,
        };
        let (port, admin_port) = (queries.port().to_string(), administration.port().to_string());
        succeed(service.hdl([
            "init",
            "site",
            "--prefix",
            "10.1045",
            "--address",
            "127.0.0.1",
            "--bind",
            "127.0.0.1",
            "--port",
            &port,
            "--admin-port",
            &admin_port,
            "--plain",
        ]));
        service.start_admin();
        let mut command = handled();
        command.arg("--config").arg(service.path("site/handled.toml")).args([
            "--workers",
            "1",
            "--log",
            "warn",
        ]);
        service.handled = Some(Daemon::start(command, &service.path("site/run/handled.sock")));
        service
    }

    fn start_admin(&mut self) {
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.stdin(Stdio::null()).env("HANDLE_ADMIN_ALLOW_ROOT", "true");
        command.arg("--config").arg(self.path("site/handle-admin.toml")).args(["--log", "warn"]);
        let process = Running::start(command);
        let control = self.path("site/run/handle-admin.sock");
        until("handle-admin serves", || {
            let status = ask(&control, "status");
            status["pid"] == process.0.id() && status["health"]["ok"] == true
        });
        self.admin = Some(process);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn hdl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = hdl(args);
        command.current_dir(self.directory.path());
        command
    }

    /// `hdl` as the administrator, who proves it with the key that `hdl init` has made.
    fn asks<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        self.asks_as(args, "300:10.1045/ADMIN", "site/admin-private.bin")
    }

    fn asks_as<'a>(&self, args: impl IntoIterator<Item = &'a str>, who: &str, key: &str) -> Command {
        let mut command = self.hdl(args);
        command.args(["--server", &self.administration.to_string(), "--auth", who, "--key", key]);
        command
    }

    /// What `handled` answers.
    fn resolve(&self, handle: &str) -> Json {
        let output = run(self.hdl(["resolve", handle, "--server", &self.queries.to_string(), "--json"]));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until `handled` answers with the code, and for code 1 with this data of its first value.
    fn until_resolved(&self, handle: &str, code: i32, data: &str) {
        until(&format!("{handle} becomes {code} {data}"), || {
            let answer = self.resolve(handle);
            let found = answer["values"][0]["data"]["value"].as_str().unwrap_or_default().to_owned();
            answer["responseCode"] == code && found == data
        });
    }

    /// All records of the set that is published, in order.
    fn published(&self) -> Vec<String> {
        sorted(&succeed(self.hdl(["export", "site/snapshot", "-"])))
    }
}

fn sorted(lines: &str) -> Vec<String> {
    let mut lines: Vec<_> = lines.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn records_are_administered_over_the_network_and_answered_by_handled() {
    let service = Service::start();
    let create =
        ["handle", "create", "10.1045/first", "1:URL=https://a.example/", "100:HS_ADMIN=300:10.1045/ADMIN"];
    succeed(service.asks(create));
    service.until_resolved("10.1045/first", 1, "https://a.example/");
    assert_eq!(fail(service.asks(create)).0, 6, "it is there");
    succeed(service.asks([
        "handle",
        "update",
        "10.1045/first",
        "1:URL=https://b.example/",
        "2:EMAIL=a@b.example",
    ]));
    service.until_resolved("10.1045/first", 1, "https://b.example/");
    assert_eq!(fail(service.asks(["handle", "update", "10.1045/first", "2:EMAIL=x", "--add"])).0, 6);
    assert_eq!(fail(service.asks(["handle", "update", "10.1045/first", "3:EMAIL=x", "--modify"])).0, 4);
    succeed(service.asks(["handle", "update", "10.1045/first", "--remove", "2"]));
    // Signed by the server, and in a session if it has them.
    let get = ["handle", "get", "10.1045/first", "--json", "--server-key", "site/server-public.bin"];
    let record: Json = serde_json::from_str(&succeed(service.asks(get))).unwrap();
    let indexes: Vec<_> =
        record["values"].as_array().unwrap().iter().map(|value| value["index"].as_i64()).collect();
    assert_eq!(indexes, [Some(1), Some(100)]);
    let minted = succeed(service.asks(["handle", "create", "10.1045/", "--mint", "1:URL=x", "--json"]));
    let minted: Json = serde_json::from_str(&minted).unwrap();
    assert!(minted["handle"].as_str().unwrap().len() > 40, "{minted}");
    let listed = succeed(service.asks(["handle", "list", "10.1045"]));
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert_eq!(succeed(service.asks(["handle", "list", "--homed"])).trim(), "0.NA/10.1045");
    succeed(service.asks(["handle", "delete", "10.1045/first"]));
    service.until_resolved("10.1045/first", 100, "");
    assert_eq!(fail(service.asks(["handle", "delete", "10.1045/first"])).0, 3);

    // Somebody else's key proves nothing, and nobody proves nothing either.
    let server_key = service.asks_as(create, "300:10.1045/ADMIN", "site/server-private.bin");
    assert_eq!(fail(server_key).0, 6);
    let anonymous = service.hdl(create.into_iter().chain(["--server", &service.administration.to_string()]));
    assert!(fail(anonymous).1.contains("who asks"));
    // Other prefixes are other servers' business.
    assert_eq!(fail(service.asks(["handle", "create", "10.9/a", "1:URL=x"])).0, 5);
}

#[test]
fn a_batch_backup_and_another_server_give_the_same_records() {
    let mut service = Service::start();
    let mut batch = String::from("AUTHENTICATE PUBKEY:300:10.1045/ADMIN\nsite/admin-private.bin\n\n");
    for at in 0..60 {
        let data =
            format!("1 URL 86400 1110 UTF8 https://example.org/{at}\n2 HS_SECKEY 60 1100 UTF8 secret {at}\n");
        let admin = "100 HS_ADMIN 86400 1110 ADMIN 300:111111111111:10.1045/ADMIN\n";
        batch += &format!("CREATE 10.1045/{at}\n{data}{admin}\n");
    }
    batch += "DELETE 10.1045/7\nREMOVE 2:10.1045/8\n";
    std::fs::write(service.path("batch.txt"), batch).unwrap();
    let server = service.administration.to_string();
    let args = [
        "batch",
        "batch.txt",
        "--server",
        &server,
        "--parallel",
        "4",
        "--server-key",
        "site/server-public.bin",
    ];
    succeed(service.hdl(args));
    service.until_resolved("10.1045/7", 100, "");
    until("all of it is published", || service.published().len() == 62);
    let published = service.published();

    // From the running server, by listing and resolving: everything but the prefix record, which it does not list there.
    let remote = ["import", "copy.redb", "--create", "--prefix", "10.1045"];
    succeed(service.asks(remote));
    let copied = sorted(&succeed(service.hdl(["export", "copy.redb", "-"])));
    let listed: Vec<_> =
        published.iter().filter(|line| !line.contains("{\"handle\":\"0.NA/")).cloned().collect();
    assert_eq!(copied, listed);

    // From the set, while it is served; back into an empty store, and served again.
    succeed(service.hdl(["export", "site/snapshot", "backup.jsonl"]));
    service.admin = None;
    std::fs::rename(service.path("site/store.redb"), service.path("broken.redb")).unwrap();
    succeed(service.hdl(["import", "site/store.redb", "backup.jsonl", "--create"]));
    succeed(service.hdl(["store", "check", "site/store.redb"]));
    assert_eq!(sorted(&succeed(service.hdl(["export", "site/store.redb", "-"]))), published);
    service.start_admin();
    succeed(service.asks(["handle", "create", "10.1045/after", "1:URL=restored"]));
    service.until_resolved("10.1045/after", 1, "restored");
    service.until_resolved("10.1045/5", 1, "https://example.org/5");
}

#[test]
fn keys_are_rotated_as_it_is_written() {
    let service = Service::start();
    succeed(service.hdl(["key", "generate", "new-private.bin", "new-public.bin", "--plain"]));
    let admin = "101:HS_ADMIN=111111111111:301:10.1045/ADMIN";
    for args in [
        ["handle", "update", "10.1045/ADMIN", "301:HS_PUBKEY=@new-public.bin"],
        ["handle", "update", "0.NA/10.1045", admin],
        ["handle", "update", "10.1045/ADMIN", admin],
    ] {
        succeed(service.asks(args));
    }
    let new =
        |args: &[&'static str]| service.asks_as(args.iter().copied(), "301:10.1045/ADMIN", "new-private.bin");
    succeed(new(&["handle", "create", "10.1045/by-the-new-key", "1:URL=x"]));
    succeed(new(&["handle", "update", "10.1045/ADMIN", "--remove", "300", "--remove", "100"]));
    assert_eq!(fail(service.asks(["handle", "create", "10.1045/by-the-old-key", "1:URL=x"])).0, 6);
}

#[test]
fn a_batch_that_is_killed_ends_in_the_store_that_it_would_have_made() {
    // A tenth of what a server in memory gets: here every operation is on disk before it is acknowledged.
    let text = batch(5, operations() / 10);
    let stores = [false, true].map(|is_killed| {
        let mut service = Service::start();
        let port = service.administration.port().to_string();
        std::fs::write(service.path("batch.txt"), text.replace("PORT", &port)).unwrap();
        let command = |more: &[&'static str]| {
            service.asks(["batch", "batch.txt", "--parallel", "4"].into_iter().chain(more.iter().copied()))
        };
        let mut resume: &[&str] = &[];
        if is_killed {
            let mut running = Running::start(command(&["--rate", "200"]));
            let log = service.path("batch.txt.log");
            until("some of it is done", || {
                std::fs::read_to_string(&log).is_ok_and(|log| log.lines().count() > 40)
            });
            running.0.kill().unwrap();
            running.0.wait().unwrap();
            resume = &["--resume"];
        }
        let (code, error) = fail(command(resume));
        assert!(code == 1 && !error.contains("stopped"), "some are refused, none is left: {error}");
        service.admin = None;
        let lines = succeed(service.hdl(["export", "site/store.redb", "-"]));
        // Keys differ, and so do the times of changes.
        let lines = lines.lines().filter(|line| !line.contains("/ADMIN") && !line.contains("0.NA/10.1045\""));
        lines.map(without_times).collect::<Vec<_>>()
    });
    assert!(stores[0].len() > 20, "{} lines", stores[0].len());
    assert_eq!(stores[0], stores[1]);
}

/// A record without the times at which its values were changed.
fn without_times(line: &str) -> Json {
    let mut json: Json = serde_json::from_str(line).unwrap();
    for value in json["values"].as_array_mut().into_iter().flatten() {
        value.as_object_mut().unwrap().remove("timestamp");
    }
    json
}
