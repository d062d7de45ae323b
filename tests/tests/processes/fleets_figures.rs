//! The figures of docs/fleets.md: from the acknowledgement of a change to the answer of `handled`
//! on a machine, and the memory of `handle-fetch`. Programs built before are measured with a
//! million records for a minute; without `HANDLE_PROGRAMS`, the test is a short run of the programs
//! of this build, whose figures mean nothing:
//!
//! ```sh
//! cargo build --release -p handle-admin -p handle-server -p handle-fetch
//! HANDLE_PROGRAMS=target/release cargo test -p handle-tests --test processes fleets_figures \
//!     -- --nocapture
//! ```
//!
//! `HANDLE_RECORDS`, `HANDLE_SECONDS`, `HANDLE_RATE` and `HANDLE_NOTICES=no` change what is
//! measured.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::fleets_steps::records_len;
use handle_proto::wire::admin::HandleValues;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Value, Values};
use handle_store::{Store, StoreConfig};
use handle_tests::client::{TestClient, exchange_over_tcp};
use handle_tests::daemon::{ask, free_address};
use handle_tests::fleet::{TestFleet, write_secret};
use handle_tests::process::{RunningProcess, program};
use handle_tests::vectors;
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// One of these changes is looked for on the machine.
const SAMPLED: u64 = 10;
/// Threads that make changes.
const WRITERS: u64 = 4;
/// Records of one transaction while the store is filled.
const FILL_LEN: u64 = 10_000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// The value of each new record.
const URL: &str = "https://example.org/";

/// The handle that this writer creates after so many others.
fn name(writer: u64, nth: u64) -> String {
    format!("10.5555/new-{writer}-{nth}")
}

/// A change, and when it was acknowledged.
struct AcknowledgedChange(String, Instant);

/// The processes, and where they are.
struct MeasuredFleet {
    fleet: TestFleet,
    programs: PathBuf,
    admin: SocketAddr,
    notices: SocketAddr,
    handled: SocketAddr,
}

impl MeasuredFleet {
    fn new(records: u64, programs: Option<&str>) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let built = || {
            let names = ["handle-fetch", "handle-admin"].map(|name| program(name, name));
            let handled = program("handle-server", "handled");
            assert!(names.iter().all(|path| path.parent() == handled.parent()));
            handled.parent().unwrap().to_owned()
        };
        let this = Self {
            fleet: TestFleet::over_s3(),
            programs: programs.map_or_else(built, |programs| root.join(programs)),
            admin: free_address(),
            notices: free_address(),
            handled: free_address(),
        };
        let store = Store::create(&StoreConfig::at(&this.fleet.path("store.redb")), true).unwrap();
        store.home(b"10.5555").unwrap();
        for from in (0..records).step_by(usize::try_from(FILL_LEN).unwrap()) {
            let to = records.min(from + FILL_LEN);
            let put = store.change(move |transaction| {
                (from..to).try_for_each(|at| {
                    let (handle, data) = (format!("10.5555/{at}"), format!("https://example.org/{at}"));
                    let mut storage = Vec::new();
                    let values = Values::build([Value::new(1, b"URL", data.as_bytes())], &mut storage);
                    transaction.put(handle.as_bytes(), values)
                })
            });
            put.unwrap();
        }
        this
    }

    fn start(&self, name: &str, config: &str, args: &[&str]) -> RunningProcess {
        let file = self.fleet.path(&format!("{name}.toml"));
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(self.programs.join(name));
        command.arg("--config").arg(file).args(args).args(["--allow-root", "--log", "warn"]);
        RunningProcess::start({
            command.stdin(Stdio::null());
            command
        })
    }

    fn start_admin(&self) -> RunningProcess {
        let server = &vectors::fixture("servers.json")["servers"]["wide_open"];
        let site = match &server["site"] {
            Json::String(text) => text.clone(),
            object => object.to_string(),
        };
        std::fs::write(self.fleet.path("siteinfo.json"), site).unwrap();
        write_secret(&self.fleet.path("notice-key"), &"k".repeat(64));
        let config = format!(
            "site = \"siteinfo.json\"\nserver_id = {}\nlisten = [\"{}\"]\ncontrol = \"admin.control\"\n\
             anonymous_full_access = true\naudit = \"audit\"\n[store]\nfile = \"store.redb\"\n\
             [publish]\ndirectory = \"published\"\n\
             [publish.ship]\nurl = \"{}\"\n[publish.ship.storage]\ncredentials_file = \"credentials\"\n\
             [publish.notify]\nlisten = \"{}\"\nkey_file = \"notice-key\"\n",
            server["this_server_id"],
            self.admin,
            self.fleet.url(),
            self.notices
        );
        self.start("handle-admin", &config, &[])
    }

    fn start_fetch(&self, has_notices: bool) -> RunningProcess {
        let notify = match has_notices {
            true => {
                format!("[notify]\naddress = \"{}\"\nkey_file = \"notice-key\"\n", self.notices)
            }
            false => String::new(),
        };
        let config = format!(
            "url = \"{}\"\ndirectory = \"set\"\ncontrol = \"fetch.control\"\n{notify}\
             [storage]\ncredentials_file = \"credentials\"\n",
            self.fleet.url()
        );
        self.start("handle-fetch", &config, &[])
    }

    fn start_handled(&self) -> RunningProcess {
        let config = format!("snapshot = \"set\"\nlisten = [\"{}\"]\nworkers = 1\n", self.handled);
        self.start("handled", &config, &[])
    }

    fn has_set(&self, wanted: &Json) -> bool {
        ask(&self.fleet.path("fetch.control"), "status")["set"]["generation"] == *wanted
    }

    /// Creates records at a steady rate, and hands some of them over when they are acknowledged.
    fn write(&self, writer: u64, rate: u64, end: Instant, sampled: &Sender<AcknowledgedChange>) -> u64 {
        let pause = Duration::from_secs_f64(WRITERS as f64 / rate as f64);
        let mut due = Instant::now() + pause.mul_f64(writer as f64 / WRITERS as f64);
        for count in 0.. {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due += pause;
            if Instant::now() >= end {
                return count;
            }
            let handle = name(writer, count);
            let mut storage = Vec::new();
            let values = Values::build([Value::new(1, b"URL", URL.as_bytes())], &mut storage);
            let request = Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values });
            let header = Header::request(OpCode::RESERVED, OpFlags::PLAIN_REQUEST, 0);
            let message = MessageBuf::request(&Envelope::request(1), &header, &request).unsigned().unwrap();
            let answer = exchange_over_tcp(self.admin, &message).unwrap();
            let at = Instant::now();
            let (envelope, message) = Envelope::split(&answer).unwrap();
            let message = Message::decode(message).unwrap();
            let Body::Reply(reply) = message.decode_body(envelope.version).unwrap() else {
                panic!("a request")
            };
            assert_eq!(reply.code, ResponseCode::SUCCESS, "{handle}");
            if count % SAMPLED == 0 {
                sampled.send(AcknowledgedChange(handle, at)).unwrap();
            }
        }
        unreachable!()
    }

    /// Asks `handled` for the changes until all are visible, and returns the times.
    fn look(&self, changes: &Receiver<AcknowledgedChange>) -> Vec<Duration> {
        let mut client = TestClient::new(self.handled);
        let (mut waiting, mut times) = (Vec::new(), Vec::new());
        let mut is_over = false;
        while !is_over || !waiting.is_empty() {
            loop {
                match changes.try_recv() {
                    Ok(change) => waiting.push(change),
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                        is_over = true;
                        break;
                    }
                }
            }
            waiting.retain(|AcknowledgedChange(handle, at): &AcknowledgedChange| {
                let is_visible = client.resolve(handle.as_bytes()).unwrap().code == ResponseCode::SUCCESS;
                if is_visible {
                    times.push(at.elapsed());
                }
                assert!(at.elapsed() < Duration::from_secs(60), "{handle} does not become visible");
                !is_visible
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        times
    }
}

/// A line of the status of a process, as `VmHWM`.
fn memory(process: &RunningProcess, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

#[test]
fn a_change_is_visible_on_machines() {
    let programs = std::env::var("HANDLE_PROGRAMS").ok();
    let (records, rate, seconds) = if programs.is_some() { (1_000_000, 300, 60) } else { (1_000, 100, 1) };
    let (records, rate) = (number("HANDLE_RECORDS", records), number("HANDLE_RATE", rate));
    let has_notices = std::env::var("HANDLE_NOTICES").map_or(true, |text| text != "no");
    let this = MeasuredFleet::new(records, programs.as_deref());
    let _admin = this.start_admin();
    let fetch = this.start_fetch(has_notices);
    let deadline = Instant::now() + Duration::from_secs(200);
    let until = |what: &str, condition: &dyn Fn() -> bool| {
        while !condition() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let admin_status = || ask(&this.fleet.path("admin.control"), "status");
    until("everything is published and shipped", &|| {
        let status = admin_status();
        let generation = &status["publish"]["set"]["generation"];
        status["publish"]["pending"] == 0
            && generation.is_u64()
            && status["ship"]["generation"] == *generation
    });
    until("the machine has the set", &|| this.has_set(&admin_status()["ship"]["generation"]));
    let status = ask(&this.fleet.path("fetch.control"), "status");
    let memory_of = |when: &str| {
        let [peak, anonymous, file] = ["VmHWM", "RssAnon", "RssFile"].map(|name| memory(&fetch, name));
        println!("handle-fetch {when}: peak {peak}, now {anonymous} of its own and {file} of files");
    };
    println!("{records} records, {} bytes of layers", status["set"]["bytes"]);
    memory_of("after the first download");
    let _handled = this.start_handled();
    until("handled answers", &|| {
        let mut client = TestClient::new(this.handled);
        client.resolve(b"10.5555/0").is_some_and(|reply| reply.code == ResponseCode::SUCCESS)
    });
    let before = ask(&this.fleet.path("fetch.control"), "stats");
    let counts_before = admin_status()["publish"]["counts"].clone();
    let end = Instant::now() + Duration::from_secs(number("HANDLE_SECONDS", seconds));
    let (sender, receiver) = channel();
    let (records, mut times) = std::thread::scope(|scope| {
        let this = &this;
        let looking = scope.spawn(move || this.look(&receiver));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let sender = sender.clone();
                scope.spawn(move || this.write(writer, rate, end, &sender))
            })
            .collect();
        drop(sender);
        let counts = (0..).zip(writers).map(|(writer, thread)| (writer, thread.join().unwrap()));
        let names = counts.flat_map(|(writer, count)| (0..count).map(move |nth| name(writer, nth)));
        let records: Vec<_> = names.map(|name| (name, URL.to_owned())).collect();
        (records, looking.join().unwrap())
    });
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{} changes, notices: {has_notices}: median {:?}, 99th percentile {:?}, longest {:?} of {}",
        records.len(),
        at(50),
        at(99),
        at(100),
        times.len()
    );
    memory_of("after the changes");
    let after = ask(&this.fleet.path("fetch.control"), "stats");
    let moved = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    println!(
        "fetched: {} sets, {} bytes of layers, {} of steps, {} of manifests; {} layers built, {} not; \
         published: {} -> {}",
        moved("sets"),
        moved("layer_bytes"),
        moved("step_bytes"),
        moved("manifest_bytes"),
        moved("layers_rebuilt"),
        moved("rebuilds_failed"),
        counts_before,
        admin_status()["publish"]["counts"]
    );
    let records_len = records_len(&records);
    let times = |len: u64| len as f64 / records_len as f64;
    let len = moved("layer_bytes") + moved("step_bytes");
    println!(
        "{records_len} bytes of changed records: {:.3} times with layers and steps, {:.3} with manifests too",
        times(len),
        times(len + moved("manifest_bytes"))
    );
}
