//! The test service of `handle-lab serve`, used by curl, by pyhandle, and by a client of the
//! reference implementation with a key file. `tests/tests/pages` runs the commands of its page.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod needs;

use needs::{TestNeed, has};
use serde_json::Value as Json;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PREFIX: &str = "20.500.12345";

/// A running test service.
struct RunningService {
    child: Child,
    report: Json,
}

impl RunningService {
    fn start(args: &[&str], directory: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handle-lab"));
        command.args(["serve", "--prefix", PREFIX, "--json"]).args(args).current_dir(directory);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let report = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        Self { child, report }
    }

    fn text(&self, name: &str) -> &str {
        self.report[name].as_str().unwrap_or_else(|| panic!("{name}: {}", self.report))
    }

    /// Ends it as a supervisor does, and waits.
    fn stop(mut self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        Command::new("kill").arg(pid.to_string()).status().unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// The answer to a read over plain HTTP, once it has this code.
    fn read_until(&self, handle: &str, code: i64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let url = format!("{}/api/handles/{handle}", self.text("http_url"));
            let output = Command::new("curl").args(["-s", &url]).output().unwrap();
            let json: Json = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if json["responseCode"] == code {
                return;
            }
            assert!(Instant::now() < deadline, "{handle}: {json}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for RunningService {
    fn drop(&mut self) {
        // The end of its input ends it, with its processes.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn has_curl() -> bool {
    has(TestNeed::Curl, Command::new("curl").arg("--version").output().is_ok())
}

fn succeed(output: &Output, what: &str) -> String {
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {text}");
    text
}

/// Runs a line as a shell does.
fn shell(line: &str, directory: &Path) -> String {
    let mut command = Command::new("sh");
    let output = command.args(["-euc", line]).current_dir(directory).stdin(Stdio::null()).output();
    succeed(&output.unwrap(), line)
}

/// Creates and reads a handle by the variables of `--env-file`.
const CREATE_FIRST: &str = r#"
set -a; . ./handle.env; set +a
curl -sS --cacert "$HANDLE_CERTIFICATE" --user "$(printf %s "$HANDLE_USERNAME" | sed 's/:/%3A/'):$HANDLE_PASSWORD" \
    -X PUT -H 'Content-Type: application/json' -d '{"index":1,"type":"URL","data":"https://example.org/"}' \
    "$HANDLE_URL/api/handles/$HANDLE_PREFIX/first"
until curl -sSf "$HANDLE_HTTP_URL/api/handles/$HANDLE_PREFIX/first"; do sleep 0.1; done
"#;

#[test]
fn the_variables_are_enough_to_create_and_read_a_handle_and_nothing_stays() {
    if !has_curl() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let service = RunningService::start(&["--env-file", "handle.env"], directory.path());
    let mode = std::fs::metadata(directory.path().join("handle.env")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the file has the secret");
    let answers = shell(CREATE_FIRST, directory.path());
    assert!(answers.contains("\"responseCode\":1") && answers.contains("https://example.org/"), "{answers}");
    let root = service.text("root").to_owned();
    assert!(Path::new(&root).exists());
    service.stop();
    assert!(!Path::new(&root).exists(), "{root} stayed without --directory");
}

#[test]
fn with_a_directory_the_next_start_goes_on_with_the_same_records() {
    if !has_curl() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let first = RunningService::start(&["--directory", "kept", "--env-file", "env"], directory.path());
    let report = first.report.clone();
    shell(&CREATE_FIRST.replace("handle.env", "env"), directory.path());
    first.stop();
    let second = RunningService::start(&["--directory", "kept"], directory.path());
    for name in ["url", "queries", "administration", "root"] {
        assert_eq!(second.report[name], report[name], "{name}");
    }
    second.read_until(&format!("{PREFIX}/first"), 1);
    let mut other = Command::new(env!("CARGO_BIN_EXE_handle-lab"));
    let other = other.args(["serve", "--prefix", "20.500.9", "--directory", "kept"]);
    let output = other.current_dir(directory.path()).stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("has the prefix 20.500.12345"), "{error}");
}

#[test]
fn pyhandle_registers_changes_and_deletes_a_handle() {
    let imports = |python: &str| {
        let output = Command::new(python).args(["-c", "import pyhandle"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let python = std::env::var("PYHANDLE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !has(TestNeed::Pyhandle, imports(&python)) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let service = RunningService::start(&[], directory.path());
    let secret = std::fs::read_to_string(service.text("secret_file")).unwrap();
    let credentials = serde_json::json!({
        "client": "rest", "handle_server_url": service.text("url"), "username": service.text("username"),
        "password": secret, "prefix": PREFIX, "handleowner": service.text("handleowner"),
        "HTTPS_verify": service.text("certificate"),
    });
    std::fs::write(directory.path().join("credentials.json"), credentials.to_string()).unwrap();
    let program = "
from pyhandle.clientcredentials import PIDClientCredentials
from pyhandle.handleclient import PyHandleClient
import time
client = PyHandleClient('rest').instantiate_with_credentials(PIDClientCredentials.load_from_JSON('credentials.json'))
def wait(handle, url):
    end = time.time() + 20
    while client.get_value_from_handle(handle, 'URL') != url:
        assert time.time() < end, client.retrieve_handle_record_json(handle)
        time.sleep(0.05)
handle = client.register_handle('20.500.12345/py', 'https://example.org/1')
wait(handle, 'https://example.org/1')
client.modify_handle_value(handle, URL='https://example.org/2')
wait(handle, 'https://example.org/2')
client.delete_handle(handle)
print('done')
";
    let mut command = Command::new(python);
    let output = command.args(["-c", program]).current_dir(directory.path()).output().unwrap();
    let text = succeed(&output, "pyhandle");
    assert!(text.ends_with("done\n") || text.contains("done"), "{text}");
}

#[test]
fn the_library_that_dataverse_uses_creates_a_handle_with_the_key_file() {
    let reference = std::env::var("REFERENCE").unwrap_or_default();
    let batch_tool = Path::new(&reference).join("bin/hdl-genericbatch");
    if !has(TestNeed::Reference, batch_tool.exists()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let service = RunningService::start(&[], directory.path());
    // What the printed line for Dataverse does in the home of its user.
    std::fs::copy(service.text("root"), directory.path().join("bootstrap_handles")).unwrap();
    // The key is not encrypted, so the passphrase is not used.
    let batch = format!(
        "AUTHENTICATE PUBKEY:{}\n{}|none\n\nCREATE {PREFIX}/dataverse\n1 URL 86400 1110 UTF8 https://example.org/d\n\
         100 HS_ADMIN 86400 1110 ADMIN 300:110011111110:{PREFIX}/ADMIN\n",
        service.text("identity"),
        service.text("key")
    );
    std::fs::write(directory.path().join("batch"), batch).unwrap();
    let options = format!("-Xmx300m -XX:+UseSerialGC -Dnet.handle.configDir={}", directory.path().display());
    let run = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(Path::new(&reference).join("bin/hdl")).args(arguments).current_dir(directory.path());
        command.env("JAVA_TOOL_OPTIONS", &options).env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        succeed(&command.output().unwrap(), &arguments.join(" "))
    };
    let created = run(&["genericbatch", "batch"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    // The client finds the service from the global one down, by the registry.
    loop {
        let resolved = run(&["qresolver", &format!("{PREFIX}/dataverse")]);
        if resolved.contains("https://example.org/d") {
            break;
        }
        assert!(Instant::now() < deadline, "{created}\n{resolved}");
    }
}
