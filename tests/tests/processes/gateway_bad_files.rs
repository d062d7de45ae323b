//! Files that are missing or wrong, at the start of `handle-gateway` and at a reload: one sentence
//! with the setting and the file, and what was served before is still served.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_tests::country_file::country_file;
use handle_tests::daemon::{ask, free_address};
use handle_tests::gateway_server::{ask_over_tls, get, write_tls};
use handle_tests::process::{RunningProcess, fail, hdl, program, succeed, until};
use serde_json::Value as Json;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A directory with all files that a gateway reads.
struct GatewayFiles {
    directory: TempDir,
    address: SocketAddr,
}

impl GatewayFiles {
    fn make() -> Self {
        let files = Self { directory: tempfile::tempdir().unwrap(), address: free_address() };
        let record = r#"{"handle":"10.1/a","values":[{"index":1,"type":"URL","data":"https://a.example/"}]}"#;
        std::fs::write(files.path("records"), record).unwrap();
        let mut publish = hdl(["snapshot", "publish", "set", "records"]);
        publish.current_dir(files.path(""));
        succeed(publish);
        write_tls(&files.path(""), 0);
        let countries = country_file(&[(Ipv4Addr::new(127, 0, 0, 0), 8, "DE")]);
        std::fs::write(files.path("countries.mmdb"), countries).unwrap();
        files.configure("");
        files
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration, with further lines at its start.
    fn configure(&self, further: &str) {
        let text = format!(
            "{further}\nsnapshot = \"set\"\nlisten = [\"{}\"]\ncontrol = \"control.sock\"\n\
             country_database = \"countries.mmdb\"\n[tls]\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\n",
            self.address
        );
        std::fs::write(self.path("gateway.toml"), text).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(program("handle-gateway", "handle-gateway"));
        command.env("HANDLE_GATEWAY_ALLOW_ROOT", "true").stdin(Stdio::null());
        command.arg("--config").arg(self.path("gateway.toml")).args(["--log", "warn"]);
        command
    }
}

/// What breaks a file, and what the message must name.
struct BrokenFile {
    name: &'static str,
    act: fn(&GatewayFiles),
    named: &'static [&'static str],
}

fn remove(files: &GatewayFiles, name: &str) {
    std::fs::remove_file(files.path(name)).unwrap();
}

fn damage(path: &Path) {
    std::fs::write(path, b"something else").unwrap();
}

const BROKEN: [BrokenFile; 9] = [
    BrokenFile {
        name: "no certificate",
        act: |files| remove(files, "certificate.pem"),
        named: &["`tls.certificate`", "certificate.pem", "No such file"],
    },
    BrokenFile {
        name: "a damaged certificate",
        act: |files| damage(&files.path("certificate.pem")),
        named: &["`tls.certificate`", "certificate.pem"],
    },
    BrokenFile {
        name: "no key",
        act: |files| remove(files, "key.pem"),
        named: &["`tls.key`", "key.pem", "No such file"],
    },
    BrokenFile {
        name: "a damaged key",
        act: |files| damage(&files.path("key.pem")),
        named: &["`tls.key`", "key.pem"],
    },
    BrokenFile {
        name: "no file of countries",
        act: |files| remove(files, "countries.mmdb"),
        named: &["`country_database`", "countries.mmdb", "No such file"],
    },
    BrokenFile {
        name: "a damaged file of countries",
        act: |files| damage(&files.path("countries.mmdb")),
        named: &["`country_database`", "countries.mmdb"],
    },
    BrokenFile {
        name: "no set",
        act: |files| std::fs::remove_dir_all(files.path("set")).unwrap(),
        named: &["set: no set is published here", "hdl snapshot publish"],
    },
    BrokenFile {
        name: "an unknown setting",
        act: |files| files.configure("snapshoot = \"set\""),
        named: &["snapshoot", "gateway.toml"],
    },
    BrokenFile {
        name: "no configuration",
        act: |files| remove(files, "gateway.toml"),
        named: &["gateway.toml", "No such file"],
    },
];

/// Requires one sentence that names everything. The line of a configuration that cannot be parsed
/// is shown beside it.
fn require_named(broken: &BrokenFile, when: &str, message: &str) {
    let name = broken.name;
    let is_parse_error = message.contains("TOML parse error at line");
    let lines_count = message.trim_end().lines().count();
    assert!(lines_count == 1 || is_parse_error, "{name} {when}: one sentence: {message}");
    for part in broken.named {
        assert!(message.contains(part), "{name} {when}: {part} is not in: {message}");
    }
}

#[test]
fn a_broken_file_is_named_at_the_start() {
    for broken in &BROKEN {
        let files = GatewayFiles::make();
        (broken.act)(&files);
        let (code, message) = fail(files.command());
        assert_ne!(code, 0, "{}", broken.name);
        require_named(broken, "at the start", &message);
    }
}

#[test]
fn a_broken_file_is_named_at_a_reload_and_the_previous_one_stays_in_use() {
    for broken in &BROKEN {
        let files = GatewayFiles::make();
        let process = RunningProcess::start(files.command());
        let control = files.path("control.sock");
        until("the gateway serves", || ask(&control, "status")["pid"] == process.0.id());
        assert_eq!(ask(&control, "reload")["ok"], true, "{}: all files are right", broken.name);
        (broken.act)(&files);
        let report = ask(&control, "reload");
        assert_eq!(report["ok"], false, "{}: {report}", broken.name);
        let message = report["error"].as_str().unwrap_or_else(|| panic!("no message: {report}"));
        require_named(broken, "at a reload", message);
        let plain = get(files.address, "/10.1/a", "");
        assert_eq!((plain.status, plain.header("location")), (302, Some("https://a.example/")));
        let secure: Json = ask_over_tls(files.address, "GET", "/api/handles/10.1/a", "", "").json();
        assert_eq!(secure["responseCode"], 1, "{}: {secure}", broken.name);
    }
}
