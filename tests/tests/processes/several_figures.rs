//! The figures of docs/store.md about several `handle-admin` over one PostgreSQL: durable creations
//! per second, and the time from an acknowledgement to the published set. A program built before is
//! measured for 10 seconds; without `HANDLE_PROGRAMS`, the test is a short run of the program of
//! this build, whose figures mean nothing:
//!
//! ```sh
//! cargo build --release -p handle-admin
//! HANDLE_PROGRAMS=target/release cargo test -p handle-tests --test processes several_figures \
//!     -- --nocapture
//! ```
//!
//! `HANDLE_SECONDS`, `HANDLE_CLIENTS`, `HANDLE_PROCESSES` (1 or 2), and `HANDLE_RATE`, the most
//! creations per second, change what is measured.

use handle_proto::wire::admin::HandleValues;
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Value, Values};
use handle_snapshot::{LoadMode, PublishedSet, hash_key};
use handle_store::{Store, StoreConfig, key};
use handle_tests::daemon::{ask, free_address};
use handle_tests::postgres_server::PostgresServer;
use handle_tests::process::{RunningProcess, program, until};
use handle_tests::vectors;
use serde_json::Value as Json;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// One of these creations is looked for in the set.
const SAMPLED: u64 = 16;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// A handle that was created, and when that was acknowledged.
struct AcknowledgedCreation(Vec<u8>, Instant);

/// Creates handles over one connection for some time, one in each `pause`; returns how many.
fn create(
    server: SocketAddr,
    client: u64,
    (until, pause): (Instant, Duration),
    acknowledged: &Sender<AcknowledgedCreation>,
) -> u64 {
    let mut stream = TcpStream::connect(server).expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let (mut count, mut buffer, mut due) = (0, Vec::new(), Instant::now());
    while Instant::now() < until {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due += pause;
        let handle = format!("10.5555/{client}-{count}");
        let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut buffer);
        let body = HandleValues { handle: handle.as_bytes(), values };
        // The connection stays open for the next request.
        let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::KEEP_CONNECTION);
        let header = Header::request(OpCode::CREATE_HANDLE, flags, 0);
        let request = Request::CreateHandle(body);
        let message = MessageBuf::request(&Envelope::request(1), &header, &request).unsigned();
        stream.write_all(&message.expect("a short message")).expect("an open connection");
        let mut answer = vec![0; Envelope::LEN];
        stream.read_exact(&mut answer).expect("an answer");
        let (envelope, _) = Envelope::split(&answer).expect("an envelope");
        let mut rest = vec![0; envelope.message_len as usize];
        stream.read_exact(&mut rest).expect("an answer");
        let code = Message::decode(&rest).expect("a message").header.response_code;
        assert_eq!(code, ResponseCode::SUCCESS, "{handle}");
        if count % SAMPLED == 0 {
            let _ = acknowledged.send(AcknowledgedCreation(key(handle.as_bytes(), true), Instant::now()));
        }
        count += 1;
    }
    count
}

/// Waits until each of the acknowledged handles is in the published set; returns the times.
fn watch(directory: &Path, acknowledged: &Receiver<AcknowledgedCreation>) -> Vec<Duration> {
    let mut set = PublishedSet::open(directory, LoadMode::Map).expect("a set");
    let (mut times, mut waiting) = (Vec::new(), Vec::new());
    loop {
        match acknowledged.try_recv() {
            Ok(creation) => {
                waiting.push(creation);
                continue;
            }
            Err(std::sync::mpsc::TryRecvError::Disconnected) if waiting.is_empty() => return times,
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(1));
        set = PublishedSet::reopen(&set).expect("a set");
        let records = set.records();
        waiting.retain(|AcknowledgedCreation(handle, at)| {
            let found = records.find(hash_key(records.seed(), handle), handle).expect("intact records");
            times.extend(found.is_some().then(|| at.elapsed()));
            found.is_none()
        });
    }
}

/// Starts a process that allows everything to everyone.
fn start(programs: &Path, directory: &Path, url: &str, number: usize) -> (RunningProcess, SocketAddr) {
    let server = &vectors::fixture("servers.json")["servers"]["wide_open"];
    let site = match &server["site"] {
        Json::String(text) => text.clone(),
        object => object.to_string(),
    };
    std::fs::write(directory.join("siteinfo.json"), site).expect("a file");
    let address = free_address();
    let config = format!(
        "site = \"siteinfo.json\"\nserver_id = {}\nlisten = [\"{address}\"]\ncontrol = \"{number}.sock\"\n\
         anonymous_full_access = true\naudit = \"audit{number}\"\n[store.postgres]\nurl = \"{url}\"\n\
         [publish]\ndirectory = \"set\"\n",
        server["this_server_id"]
    );
    let file = directory.join(format!("{number}.toml"));
    std::fs::write(&file, config).expect("a file");
    let mut command = Command::new(programs.join("handle-admin"));
    command.arg("--config").arg(file).args(["--allow-root", "--log", "error"]).stdin(Stdio::null());
    let process = RunningProcess::start(command);
    let control = directory.join(format!("{number}.sock"));
    until("handle-admin serves", || ask(&control, "status")["health"]["ok"] == true);
    (process, address)
}

#[test]
fn creations_over_a_database_are_counted_and_looked_for() {
    let Some(database) = PostgresServer::start(true) else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (programs, default_seconds) = match std::env::var("HANDLE_PROGRAMS") {
        Ok(programs) => (root.join(programs), 10),
        Err(_) => (program("handle-admin", "handle-admin").with_file_name(""), 1),
    };
    let (url, directory) = (database.new_database(), tempfile::tempdir().expect("a directory"));
    let store = Store::create(&StoreConfig::at(Path::new(&url)), true).expect("a store");
    store.home(b"10.5555").expect("a homed prefix");
    drop(store);
    let count = usize::try_from(number("HANDLE_PROCESSES", 2)).expect("a small number");
    let processes: Vec<_> = (0..count).map(|at| start(&programs, directory.path(), &url, at)).collect();
    let set = directory.path().join("set");
    until("something is published", || PublishedSet::open(&set, LoadMode::Map).is_ok());
    let (seconds, clients) = (number("HANDLE_SECONDS", default_seconds), number("HANDLE_CLIENTS", 64));
    let pause = match number("HANDLE_RATE", 0) {
        0 => Duration::ZERO,
        rate => Duration::from_secs(clients) / u32::try_from(rate).expect("a rate"),
    };
    let (begun, (acknowledged, waiting)) = (Instant::now(), channel());
    let until = begun + Duration::from_secs(seconds);
    let (created, mut times) = std::thread::scope(|scope| {
        let directory = &set;
        let watching = scope.spawn(move || watch(directory, &waiting));
        let creating: Vec<_> = (0..clients)
            .map(|client| {
                let at = usize::try_from(client).expect("a small number") % count;
                let (server, acknowledged) = (processes[at].1, acknowledged.clone());
                scope.spawn(move || create(server, client, (until, pause), &acknowledged))
            })
            .collect();
        let created: u64 = creating.into_iter().map(|thread| thread.join().expect("creations")).sum();
        drop(acknowledged);
        (created, watching.join().expect("all are published"))
    });
    let rate = created / seconds;
    times.sort_unstable();
    let part = |of_100: usize| times[(times.len() - 1) * of_100 / 100];
    println!(
        "{count} processes, {clients} clients, {seconds} s: {rate} creations/s; acknowledged to visible: median {:?}, \
         p99 {:?}, longest {:?} of {}",
        part(50),
        part(99),
        part(100),
        times.len()
    );
    assert!(created > 0 && !times.is_empty());
}
