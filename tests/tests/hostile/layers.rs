//! Damaged and missing sets, and configurations that differ from the site record.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{Permissions, ResponseCode, Value};
use handle_snapshot::Layer;
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_tests::client::{ReceivedReply, TestClient};
use handle_tests::daemon::{Daemon, ask, free_address, handled};
use handle_tests::http::{HttpReply, get, is_ok};
use handle_tests::process::{RunningProcess, fail, run, until};
use handle_tests::service_directory::InitialisedService;
use handle_tests::test_server;
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use handle_worker::verification::RecordChecks;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A private value in every record.
const SECRET: &[u8] = b"this-is-the-secret-of-a-record";
const HANDLES: usize = 24;

fn handle(n: usize) -> String {
    format!("10.1/RECORD-{n}")
}

/// A set of two layers with a private value in each record of the older one.
fn publish(set: &Path) {
    let mut publisher = SetPublisher::open(set).unwrap();
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 7, folds: true, created_unix_ms: 1 };
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for n in 0..HANDLES {
            let url = format!("https://example.org/{n}");
            let secret = Value { permissions: Permissions(0x0c), ..Value::new(300, b"HS_SECKEY", SECRET) };
            let values = [Value::new(1, b"URL", url.as_bytes()), secret, Value::new(2, b"DESC", b"words")];
            builder.add(n as u64, handle(n).as_bytes(), values)?;
        }
        builder.finish(file)
    });
    published.unwrap();
    let published = publisher.publish_delta(2, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options);
        builder.add(0, handle(0).as_bytes(), [Value::new(1, b"URL", b"https://example.org/moved")])?;
        builder.delete(1, handle(1).as_bytes())?;
        builder.finish(file)
    });
    published.unwrap();
}

fn layers(set: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(set).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "layer"));
    files.sort();
    files
}

/// The requested handles: all of the set, and one that does not exist.
fn names() -> impl Iterator<Item = String> {
    (0..HANDLES).map(handle).chain(["10.1/NONE".to_owned()])
}

/// The answers to requests for [`names`].
fn answers(address: SocketAddr) -> Vec<ReceivedReply> {
    let mut client = TestClient::new(address);
    names().map(|name| client.resolve(name.as_bytes()).expect("an answer")).collect()
}

/// The answer to one request, or `None` if it does not decode.
fn try_answer(address: SocketAddr, name: &str) -> Option<ReceivedReply> {
    std::panic::catch_unwind(|| TestClient::new(address).resolve(name.as_bytes())).ok()?
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn config(set: &Path, checks: RecordChecks) -> Config {
    let mut config = test_server::config(set, Datapath::Portable);
    // The answers before the verification reaches a record are tested here.
    (config.check_records, config.verify_bytes_per_s) = (checks, 0);
    config.slow.threads = 0;
    config
}

/// Results with sets of which one bit was flipped.
#[derive(Debug, Default)]
struct DamageOutcome {
    refused_at_start: usize,
    answers_right: usize,
    answers_error: usize,
    answers_wrong: Vec<String>,
}

/// Serves sets with one flipped bit each, and requests all handles.
fn serve_damaged(checks: RecordChecks, flips: usize) -> DamageOutcome {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole");
    std::fs::create_dir(&whole).unwrap();
    publish(&whole);
    let expected = answers(Server::start(&config(&whole, checks)).unwrap().addresses()[0]);
    assert_eq!(expected[1].code, ResponseCode::HANDLE_NOT_FOUND, "deleted");
    let files = layers(&whole);
    let lens: Vec<usize> = files.iter().map(|file| std::fs::read(file).unwrap().len()).collect();
    let bits = lens.iter().sum::<usize>() * 8;
    let mut outcome = DamageOutcome::default();
    for flip in 0..flips {
        let set = directory.path().join(format!("set-{flip}"));
        std::fs::create_dir(&set).unwrap();
        for file in std::fs::read_dir(&whole).unwrap().map(|entry| entry.unwrap().path()) {
            std::fs::copy(&file, set.join(file.file_name().unwrap())).unwrap();
        }
        // Evenly over both files, with another bit of the byte each time.
        let mut bit = flip * (bits / flips) + flip % 8;
        let at = lens
            .iter()
            .position(|len| {
                bit < len * 8 || {
                    bit -= len * 8;
                    false
                }
            })
            .unwrap();
        let damaged = set.join(files[at].file_name().unwrap());
        let mut bytes = std::fs::read(&damaged).unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&damaged, bytes).unwrap();
        let Ok(server) = Server::start(&config(&set, checks)) else {
            outcome.refused_at_start += 1;
            continue;
        };
        for (name, expected) in names().zip(&expected) {
            let found = try_answer(server.addresses()[0], &name);
            let is_error = found.as_ref().is_some_and(|found| {
                found.code != ResponseCode::SUCCESS && found.code != ResponseCode::HANDLE_NOT_FOUND
            });
            match found {
                Some(found) if found == *expected => outcome.answers_right += 1,
                _ if is_error => outcome.answers_error += 1,
                found => {
                    let has_secret = found.is_some_and(|found| contains(&found.values, SECRET));
                    let content = if has_secret { "a private value" } else { "something else" };
                    outcome.answers_wrong.push(format!("bit {bit} of file {at}, {name}: {content}"));
                }
            }
        }
    }
    println!(
        "{checks:?}: {flips} flips: {} refused at the start; {} right answers, {} errors, {} wrong answers",
        outcome.refused_at_start,
        outcome.answers_right,
        outcome.answers_error,
        outcome.answers_wrong.len()
    );
    outcome
}

#[test]
fn a_set_with_a_flipped_bit_gives_only_right_answers_and_errors() {
    let outcome = serve_damaged(RecordChecks::Auto, 48);
    assert_eq!(outcome.answers_wrong, [""; 0]);
    assert!(outcome.refused_at_start > 0 && outcome.answers_error > 0, "{outcome:?}");
    assert!(
        outcome.answers_right > 5 * outcome.answers_error,
        "errors are limited to damaged records: {outcome:?}"
    );
}

#[test]
fn a_prefix_whose_entry_is_damaged_is_not_said_to_be_elsewhere() {
    use std::os::unix::fs::FileExt as _;
    let directory = tempfile::tempdir().unwrap();
    let set = directory.path();
    // Whether records are checked makes no difference to the table of homed prefixes.
    publish(set);
    let server = Server::start(&config(set, RecordChecks::Off)).unwrap();
    let mut client = TestClient::new(server.addresses()[0]);
    let mut code = |name: &str| client.resolve(name.as_bytes()).expect("an answer").code;
    assert_eq!(code("10.1/NONE"), ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(code("10.2/NONE"), ResponseCode::SERVER_NOT_RESPONSIBLE);
    let base = layers(set)
        .into_iter()
        .find(|path| Layer::open(std::fs::read(path).unwrap()).unwrap().has_homed())
        .unwrap();
    let bytes = std::fs::read(&base).unwrap();
    let header = *Layer::open(bytes.as_slice()).unwrap().header();
    let section = usize::try_from(header.homed_at).unwrap()..usize::try_from(header.index_at).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&base).unwrap();
    // Each bit of the table in place, as a bad disk or controller changes it under the mapping.
    let mut errors = 0;
    for bit in section.start * 8..section.end * 8 {
        let byte = bytes[bit / 8] ^ (1 << (bit % 8));
        file.write_all_at(&[byte], (bit / 8) as u64).unwrap();
        let found = code("10.1/NONE");
        assert!(
            found == ResponseCode::HANDLE_NOT_FOUND || found == ResponseCode::ERROR,
            "bit {bit}: {found}"
        );
        errors += usize::from(found == ResponseCode::ERROR);
        assert_ne!(code("10.2/NONE"), ResponseCode::HANDLE_NOT_FOUND, "bit {bit}");
        file.write_all_at(&bytes[bit / 8..=bit / 8], (bit / 8) as u64).unwrap();
    }
    assert!(errors > 100, "{errors} requests met the damage");
}

#[test]
fn without_checks_damaged_records_are_answered() {
    // Shows that the checks make the difference in the test above.
    let outcome = serve_damaged(RecordChecks::Off, 48);
    assert!(!outcome.answers_wrong.is_empty(), "{outcome:?}");
}

/// A directory with a set and a configuration of `handled`.
struct LayersSetup {
    directory: TempDir,
    address: SocketAddr,
    http: SocketAddr,
}

impl LayersSetup {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let setup = Self { directory, address: free_address(), http: free_address() };
        let config = format!(
            "snapshot = \"set\"\nlisten = [\"{}\"]\ncontrol = \"control\"\nworkers = 1\npin = false\n\
             [observe]\nhttp = \"{}\"\n",
            setup.address, setup.http
        );
        std::fs::write(setup.path("config"), config).unwrap();
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = handled();
        command.arg("--config").arg(self.path("config")).args(["--log", "info"]);
        command
    }

    /// Starts `handled` with its log in a file.
    fn start(&self) -> RunningProcess {
        let log = std::fs::File::create(self.path("log")).unwrap();
        let mut command = self.command();
        command.stdout(Stdio::from(log.try_clone().unwrap())).stderr(log);
        RunningProcess::start(command)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    fn is_ready(&self) -> bool {
        is_ok(self.http, "/readyz")
    }
}

#[test]
fn damage_is_found_in_the_background_reported_and_repaired_by_a_reload() {
    let setup = LayersSetup::new();
    std::fs::create_dir(setup.path("set")).unwrap();
    publish(&setup.path("set"));
    let base = layers(&setup.path("set")).remove(0);
    let whole = std::fs::read(&base).unwrap();
    let mut damaged = whole.clone();
    let secret_at = whole.windows(SECRET.len()).position(|window| window == SECRET).unwrap();
    damaged[secret_at] ^= 0x20;
    std::fs::write(&base, &damaged).unwrap();
    let _handled = setup.start();
    let status = || ask(&setup.path("control"), "status");
    let state = |at: usize| status()["set"]["layers"][at]["verification"].clone();
    until("the damage is found", || state(1) == "damaged" && state(0) == "whole");
    assert_eq!(status()["set"]["layers"][1]["records_checked"], true);
    let HttpReply { status, body: why } = get(setup.http, "/readyz").unwrap();
    let name = base.file_name().unwrap().to_string_lossy().into_owned();
    assert!(status == 503 && why.contains(&name) && why.contains("is damaged"), "{status} {why}");
    assert_eq!(get(setup.http, "/healthz").unwrap().status, 200, "a restart would not help");
    let metrics = get(setup.http, "/metrics").unwrap().body;
    assert!(metrics.contains("handled_snapshot_layers_damaged 1\n"), "{metrics}");
    assert!(metrics.contains("handled_snapshot_layers_verified 1\n"), "{metrics}");
    let log = setup.log();
    assert!(log.contains(&name) && log.contains("a layer of the set is damaged"), "{log}");
    // One record is damaged; the others are answered.
    let codes = |answers: Vec<ReceivedReply>| {
        let count = |code| answers.iter().filter(|answer| answer.code == code).count();
        (count(ResponseCode::SUCCESS), count(ResponseCode::HANDLE_NOT_FOUND), count(ResponseCode::ERROR))
    };
    let (found, missing, errors) = codes(answers(setup.address));
    assert_eq!((found + errors, missing), (HANDLES - 1, 2));
    assert!(errors <= 1, "{errors} errors");
    // A reload finds the same file again.
    let answer = ask(&setup.path("control"), "reload");
    assert!(answer["ok"] == false && answer["error"].as_str().unwrap().contains(&name), "{answer}");
    // The operator restores the file.
    std::fs::write(setup.path("copy"), &whole).unwrap();
    std::fs::rename(setup.path("copy"), &base).unwrap();
    let answer = ask(&setup.path("control"), "reload");
    assert_eq!((&answer["ok"], &answer["changed"]), (&true.into(), &true.into()), "{answer}");
    assert_eq!((state(0), state(1)), ("whole".into(), "whole".into()));
    assert!(setup.is_ready());
    assert_eq!(codes(answers(setup.address)), (HANDLES - 1, 2, 0));
}

#[test]
fn handled_waits_for_its_first_set_and_then_serves() {
    let setup = LayersSetup::new();
    // A configuration is checked before the first set exists.
    let checked = run({
        let mut command = setup.command();
        command.arg("--check-config");
        command
    });
    let warning = String::from_utf8_lossy(&checked.stderr);
    assert!(
        checked.status.success() && warning.contains("warning: no set is published in"),
        "{}: {warning}",
        checked.status
    );
    let mut process = setup.start();
    until("handled is alive", || is_ok(setup.http, "/healthz"));
    let HttpReply { status, body: why } = get(setup.http, "/readyz").unwrap();
    let set = setup.path("set");
    assert!(
        status == 503 && why.contains(&format!("waiting for the first set in {}", set.display())),
        "{why}"
    );
    assert!(setup.log().contains("hdl snapshot publish"), "{}", setup.log());
    std::fs::create_dir(&set).unwrap();
    publish(&set);
    until("handled serves", || {
        ask(&setup.path("control"), "status")["state"] == "serving" && setup.is_ready()
    });
    assert_eq!(answers(setup.address)[2].code, ResponseCode::SUCCESS);
    process.signal("TERM");
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn waiting_ends_by_a_signal_and_can_be_disabled() {
    let setup = LayersSetup::new();
    let mut process = setup.start();
    until("handled waits", || setup.log().contains("waiting for the first set"));
    process.signal("TERM");
    assert_eq!(process.wait(), Some(0));
    let text = std::fs::read_to_string(setup.path("config")).unwrap();
    std::fs::write(setup.path("config"), format!("wait_for_set = false\n{text}")).unwrap();
    let (code, error) = fail(setup.command());
    assert!(code == 1 && error.contains("no set is published here"), "{code}: {error}");
}

#[test]
fn check_config_names_unserved_interfaces_and_unannounced_ports() {
    let service = InitialisedService::make();
    let warnings = |mut command: Command| {
        command.arg("--check-config");
        let output = run(command);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        text.lines().filter(|line| line.contains(" warning: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(warnings(service.handled_command()), [""; 0], "the configuration of hdl init");
    assert_eq!(warnings(service.admin_command()), [""; 0]);
    let site = service.path("site/siteinfo.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&site).unwrap()).unwrap();
    let interfaces = json["servers"][0]["interfaces"].as_array_mut().unwrap();
    interfaces.push(serde_json::json!({ "protocol": "HTTP", "query": true, "admin": true, "port": 8000 }));
    interfaces.push(serde_json::json!({ "protocol": "TCP", "query": false, "admin": true, "port": 2649 }));
    std::fs::write(&site, json.to_string()).unwrap();
    let found = warnings(service.handled_command());
    assert!(found.len() == 1 && found[0].contains("HTTP port 8000"), "{found:?}");
    let found = warnings(service.admin_command());
    assert!(found.len() == 1 && found[0].contains("TCP port 2649"), "{found:?}");
    let mut command = service.handled_command();
    command.args(["--listen", &free_address().to_string()]);
    let found = warnings(command);
    assert!(
        found.iter().any(|line| line.contains("the site record tells no client of that port")),
        "{found:?}"
    );
    // A start writes the warnings to the log.
    let log = std::fs::File::create(service.path("log")).unwrap();
    let mut command = service.handled_command();
    command.stdout(Stdio::from(log.try_clone().unwrap())).stderr(log);
    let _daemon = Daemon::start(command, &service.path("site/run/handled.sock"));
    let log = std::fs::read_to_string(service.path("log")).unwrap();
    assert!(log.contains("HTTP port 8000"), "{log}");
}
