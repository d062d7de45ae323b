//! What `hdl init` prints is run as it is printed, by a shell: from the empty directory to a handle
//! that is created with a secret.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::daemon::{ask, free_address};
use handle_tests::needs::{TestNeed, has};
use handle_tests::process::{RunningProcess, fail, hdl, program, run, succeed, until};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const SECRET: &str = "a secret of the library";

/// A directory in which `hdl init` was run, and what it printed.
struct NewService {
    directory: tempfile::TempDir,
    printed: String,
    processes: Vec<RunningProcess>,
}

impl NewService {
    fn init(secret: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = [free_address(), free_address(), free_address()].map(|it| it.port().to_string());
        let mut init = hdl(["init", "new service", "--prefix", "20.500.7", "--address", "127.0.0.1"]);
        init.args(["--bind", "127.0.0.1", "--port", &ports[0], "--admin-port", &ports[1]]);
        init.args(["--gateway-port", &ports[2], "--plain", "--no-metrics"]).current_dir(directory.path());
        if let Some(secret) = secret {
            write_secret(&directory.path().join("secret"), secret);
            init.args(["--secret-file", "secret"]);
        }
        let printed = succeed(init);
        Self { directory, printed, processes: Vec::new() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("new service").join(name)
    }

    fn start(&mut self) {
        for (package, name) in [
            ("handle-admin", "handle-admin"),
            ("handle-server", "handled"),
            ("handle-gateway", "handle-gateway"),
        ] {
            let mut command = Command::new(program(package, name));
            command.arg("--config").arg(self.path(&format!("{name}.toml"))).args([
                "--allow-root",
                "--log",
                "warn",
            ]);
            command.stdin(Stdio::null());
            self.processes.push(RunningProcess::start(command));
            let control = self.path(&format!("run/{name}.sock"));
            until(&format!("{name} serves"), || ask(&control, "status")["pid"].is_u64());
        }
    }

    /// The printed command that begins with these words, with its continuation lines.
    fn command(&self, start: &str) -> String {
        let begin =
            self.printed.find(&format!("  {start}")).unwrap_or_else(|| panic!("{start}: {}", self.printed));
        let lines = self.printed[begin..].lines();
        let last = lines.clone().take_while(|line| line.ends_with('\\')).count();
        lines.take(last + 1).collect::<Vec<_>>().join("\n")
    }

    /// Runs it as a shell does, with the programs in the path.
    fn run(&self, start: &str) -> (bool, String) {
        let mut shell = Command::new("sh");
        shell.args(["-c", &self.command(start)]).current_dir(self.directory.path()).stdin(Stdio::null());
        let path = std::env::var("PATH").unwrap();
        let programs = program("handle-cli", "hdl").parent().unwrap().display().to_string();
        let output = run({
            shell.env("PATH", format!("{programs}:{path}"));
            shell
        });
        (
            output.status.success(),
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
        )
    }

    fn gateway(&self) -> SocketAddr {
        let url = self.printed.split("curl http://").nth(1).unwrap();
        url.split('/').next().unwrap().parse().unwrap()
    }
}

fn write_secret(path: &Path, secret: &str) {
    std::fs::write(path, secret).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

#[test]
fn the_printed_commands_create_handles_with_the_key_and_with_the_secret() {
    if !has(TestNeed::Curl, Command::new("curl").arg("--version").output().is_ok()) {
        return;
    }
    let mut service = NewService::init(Some(&format!("{SECRET}\n")));
    assert!(
        !service.printed.contains("\\n") && !service.printed.contains("--allow-root"),
        "{}",
        service.printed
    );
    service.start();
    let (is_done, text) = service.run("hdl handle create 20.500.7/first");
    assert!(is_done, "{text}");
    let until_published = |name: &str| {
        until(&format!("{name} is published"), || {
            let answer = handle_tests::gateway_server::get(
                service.gateway(),
                &format!("/api/handles/20.500.7/{name}"),
                "",
            );
            answer.status == 200
        });
    };
    until_published("first");
    let (is_done, text) = service.run("curl http://");
    assert!(is_done && text.contains("https://example.org/"), "{text}");
    let (is_done, text) = service.run("curl --cacert");
    assert!(is_done && text.contains("\"responseCode\":1"), "{text}");
    until_published("second");

    // pyhandle refuses credentials that do not name its client.
    let credentials =
        service.printed.lines().find(|line| line.trim_start().starts_with("{\"client\"")).unwrap();
    let credentials: serde_json::Value = serde_json::from_str(credentials).unwrap();
    assert_eq!(credentials["client"], "rest");

    // The owner that pyhandle gives to new records is a group that both identities are in.
    let curl = service
        .command("curl --cacert")
        .replace("-X PUT", "-X DELETE")
        .replace("second", "second -o deleted");
    let mut shell = Command::new("sh");
    shell.args(["-c", &curl]).current_dir(service.directory.path());
    succeed(shell);
    let deleted = std::fs::read_to_string(service.directory.path().join("deleted")).unwrap();
    assert!(deleted.contains("\"responseCode\":1"), "{deleted}");
}

#[test]
fn a_secret_from_a_file_has_no_line_end_wherever_it_is_read() {
    let mut service = NewService::init(None);
    assert!(service.printed.contains("docs/administration.md"), "{}", service.printed);
    let written = |file: &str| {
        let args = ["handle", "create", "20.500.7/x", &format!("301:HS_SECKEY=@{file}")].map(str::to_owned);
        args.to_vec()
    };
    service.start();
    let admin = service.command("hdl handle create");
    let (server, key) = (
        admin.split("--server ").nth(1).unwrap().split(' ').next().unwrap().to_owned(),
        service.path("admin-private.bin"),
    );
    write_secret(&service.directory.path().join("secret"), &format!("{SECRET}\r\n"));
    let mut create = hdl(written("secret"));
    create.args(["100:HS_ADMIN=300:20.500.7/ADMIN", "--server", &server, "--auth", "300:20.500.7/ADMIN"]);
    create.arg("--key").arg(&key).current_dir(service.directory.path());
    // A secret goes through an encrypted session only, for which the key of the server is needed.
    create.arg("--server-key").arg(service.path("server-public.bin"));
    succeed(create);
    let mut get = hdl(["handle", "get", "20.500.7/x", "--json", "--server", &server]);
    get.args(["--auth", "300:20.500.7/ADMIN", "--key"]).arg(&key);
    get.arg("--server-key").arg(service.path("server-public.bin"));
    let text = succeed(get);
    assert!(text.contains(SECRET) && !text.contains(&format!("{SECRET}\\")), "{text}");
    // A file with a line end alone has no secret.
    write_secret(&service.directory.path().join("empty"), "\n");
    let mut empty = hdl(["init", "other", "--prefix", "20.500.8", "--address", "127.0.0.1", "--plain"]);
    empty.args(["--secret-file", "empty"]).current_dir(service.directory.path());
    let (code, error) = fail(empty);
    assert!(code == 1 && error.contains("empty"), "{code}: {error}");
}

#[test]
fn two_commands_give_the_server_a_new_key_also_after_an_interruption() {
    let mut service = handle_tests::service_directory::InitialisedService::make();
    let directory = service.path("site");
    let read = |name: &str| std::fs::read(directory.join(name)).unwrap();
    let site = || serde_json::from_slice::<serde_json::Value>(&read("siteinfo.json")).unwrap();
    let before = [read("server-private.bin"), read("server-public.bin")];
    let serial = site()["serialNumber"].as_i64().unwrap();
    let (code, error) = fail(service.hdl(["key", "rotate", "server", "site", "--finish"]));
    assert!(code == 1 && error.contains("server-private-next.bin is not there"), "{code}: {error}");
    succeed(service.hdl(["key", "rotate", "server", "site"]));
    let next = read("server-private-next.bin");
    assert_eq!([read("server-private.bin"), read("server-public.bin")], before, "the old key stays");
    assert_eq!(site()["serialNumber"].as_i64(), Some(serial));
    let sent: serde_json::Value = serde_json::from_slice(&read("siteinfo-next.json")).unwrap();
    assert_eq!(sent["serialNumber"].as_i64(), Some(serial + 1));
    succeed(service.hdl(["key", "rotate", "server", "site"]));
    assert_eq!(read("server-private-next.bin"), next, "the same key");
    // Processes start with the old key meanwhile.
    service.start_admin();
    service.admin = None;
    succeed(service.hdl(["key", "rotate", "server", "site", "--finish"]));
    assert_eq!(site(), sent, "what the registry has");
    assert_eq!(read("server-private.bin"), next);
    let after = [read("server-private.bin"), read("server-public.bin")];
    assert!(before[0] != after[0] && before[1] != after[1]);
    assert_eq!(
        (read("server-private-old.bin"), site()["serialNumber"].as_i64()),
        (before[0].clone(), Some(serial + 1))
    );
    // As after a kill between the site record and the keys.
    std::fs::rename(service.path("site/server-private.bin"), service.path("site/server-private-next.bin"))
        .unwrap();
    write_secret_bytes(&service.path("site/server-private.bin"), &before[0]);
    std::fs::write(service.path("site/server-public.bin"), &before[1]).unwrap();
    succeed(service.hdl(["key", "rotate", "server", "site", "--finish"]));
    assert_eq!([read("server-private.bin"), read("server-public.bin")], after);
    assert_eq!(site()["serialNumber"].as_i64(), Some(serial + 1), "the site had the key already");
    // A process whose key is not that of its site record does not start.
    service.start_admin();
    service.start_handled();
    // What the registry has was made from another site record.
    succeed(service.hdl(["key", "rotate", "server", "site"]));
    let mut changed = site();
    changed["serialNumber"] = (serial + 2).into();
    std::fs::write(directory.join("siteinfo.json"), changed.to_string()).unwrap();
    let (code, error) = fail(service.hdl(["key", "rotate", "server", "site", "--finish"]));
    assert!(code == 1 && error.contains("sitebndl-next.zip to the registry"), "{code}: {error}");
    assert_eq!(read("server-private.bin"), after[0]);
    let queries = service.queries.to_string();
    let mut get = service.hdl(["handle", "get", "10.1045/ADMIN", "--server", &queries]);
    get.args(["--server-key", "site/server-public.bin"]);
    succeed(get);
}

fn write_secret_bytes(path: &Path, secret: &[u8]) {
    std::fs::write(path, secret).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}
