//! Restarts of `handle-admin` by takeover: no change is refused, lost or made twice, and if the new
//! process fails, the old one continues.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway_batch::{ADMINISTRATOR, administered, batch, codes, creations, gateway_at, stored};
use handle_client::Allowances;
use handle_client::administration::{Administrator, ClientIdentity, IdentityKey};
use handle_proto::wire::Request;
use handle_proto::wire::admin::HandleValues;
use handle_proto::{OpFlags, ResponseCode, Value, Values};
use handle_store::Store;
use handle_tests::admin_server::AdminServer;
use handle_tests::daemon::{Successor, ask, free_address};
use handle_tests::gateway_server::{GatewayServer, exchange_over_tls};
use handle_tests::process::{RunningProcess, hdl, program, run, succeed, until};
use handle_tests::several_admins::SeveralAdmins;
use serde_json::Value as Json;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time in which a new process serves after the old one was killed.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that connections get when a process stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time for an answer, in milliseconds: on a machine without other work, 2 seconds.
const WAIT_MAX_MS: u64 = 10_000;

/// A `handle-admin` as a process, and a gateway before it.
struct RestartedService {
    admin: AdminServer,
    address: SocketAddr,
    gateway: GatewayServer,
    /// The first process.
    first: RunningProcess,
    /// The last process that has taken over.
    successor: Option<Successor>,
}

impl RestartedService {
    fn start() -> Self {
        let address = free_address();
        let mut admin = administered(|config| {
            config.control = Some(config.store.file.with_file_name("control.sock"));
        });
        admin.stop();
        admin.config.listen = vec![address];
        let path = admin.directory.path().join("admin.toml");
        std::fs::write(&path, toml::to_string(&admin.config).unwrap()).unwrap();
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.arg("--config").arg(path).arg("--allow-root").stdin(Stdio::null());
        let first = RunningProcess::start(command);
        let socket = admin.config.local.socket.clone().unwrap();
        let gateway = gateway_at(socket, |config| config.admin.address = Some(address));
        let service = Self { admin, address, gateway, first, successor: None };
        until("handle-admin serves", || service.status()["pid"] == service.first.0.id());
        service
    }

    fn control(&self) -> PathBuf {
        self.admin.config.control.clone().unwrap()
    }

    fn status(&self) -> Json {
        ask(&self.control(), "status")
    }

    fn restart_command(&self) -> Command {
        let mut command = hdl(["control", "restart", "--json", "--socket"]);
        command.arg(self.control());
        command
    }

    /// Restarts, and waits until the new process has the control socket.
    fn restart(&mut self) {
        let answer: Json = serde_json::from_str(&succeed(self.restart_command())).unwrap();
        let next = Successor { pid: answer["pid"].clone() };
        until("the new process has the control socket", || self.status()["pid"] == next.pid);
        // The one before has exited.
        self.successor = Some(next);
    }

    /// Writes a configuration for the next process.
    fn configure(&self, change: impl FnOnce(&mut handle_admin::config::Config)) {
        let mut config = self.admin.config.clone();
        change(&mut config);
        let path = self.admin.directory.path().join("admin.toml");
        std::fs::write(path, toml::to_string(&config).unwrap()).unwrap();
    }

    /// Stops the process, and opens the store in this one.
    fn stop(&mut self) {
        assert_eq!(ask(&self.control(), "drain")["ok"], true);
        self.open_store();
    }

    /// Opens the store in this process, when no other one answers any more.
    fn open_store(&mut self) {
        until("no process answers", || UnixStream::connect(self.control()).is_err());
        until("the store is closed", || Store::is_free(&self.admin.config.store));
        self.admin.config.listen = vec![([127, 0, 0, 1], 0).into()];
        self.admin.restart();
    }
}

/// What writers have done.
#[derive(Default)]
struct WriterCounts {
    stop: AtomicBool,
    next: AtomicU64,
    created: Mutex<Vec<String>>,
    failed: Mutex<Vec<String>>,
    /// The longest time for an answer, in milliseconds.
    waited_ms: AtomicU64,
}

impl WriterCounts {
    /// Creates records until the end. `create` returns an error if a record is not created.
    fn write(&self, mut create: impl FnMut(&str) -> Result<(), String>) {
        while !self.stop.load(Ordering::Relaxed) {
            let handle = format!("TST/TAKEOVER-{}", self.next.fetch_add(1, Ordering::Relaxed));
            let since = Instant::now();
            match create(&handle) {
                Ok(()) => self.created.lock().unwrap().push(handle),
                Err(error) => self.failed.lock().unwrap().push(format!("{handle}: {error}")),
            }
            let waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap();
            self.waited_ms.fetch_max(waited_ms, Ordering::Relaxed);
        }
    }

    fn write_over_http(&self, gateway: SocketAddr) {
        self.write(|handle| put(gateway, handle));
    }

    /// Creates records over native connections: one that is kept, or a new one for each.
    fn write_natively(&self, server: SocketAddr, keeps: bool) {
        let mut client = native_client(server);
        self.write(|handle| {
            if !keeps {
                client = native_client(server);
            }
            create(&mut client, handle)
        });
    }

    fn created_count(&self) -> usize {
        self.created.lock().unwrap().len()
    }

    /// Waits until further records have been created.
    fn until_more(&self, count: usize) {
        let before = self.created_count();
        until("writers go on", || self.created_count() >= before + count);
    }
}

/// Ends writers, also if the test fails.
struct StopWriters<'a>(&'a WriterCounts);

impl Drop for StopWriters<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

fn put(gateway: SocketAddr, handle: &str) -> Result<(), String> {
    let body = r#"[{"index":1,"type":"URL","data":"https://example.org/"}]"#;
    let request = format!(
        "PUT /api/handles/{handle}?overwrite=false HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: {ADMINISTRATOR}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange_over_tls(gateway, request.as_bytes());
    match answer.starts_with(b"HTTP/1.1 201 ") {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&answer).into_owned()),
    }
}

fn native_client(server: SocketAddr) -> Administrator {
    let mut client = Administrator::new(server, Duration::from_secs(20));
    client.allow(Allowances { cleartext_secrets: true, ..Allowances::NONE });
    let key = IdentityKey::Secret(b"open sesame open".to_vec().into());
    client.identify(Some(Arc::new(ClientIdentity { handle: b"0.NA/TST".to_vec(), index: 301, key })));
    client
}

fn create(client: &mut Administrator, handle: &str) -> Result<(), String> {
    let mut buffer = Vec::new();
    let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut buffer);
    let request = Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values });
    match client.ask(&request, OpFlags::PLAIN_REQUEST.with(OpFlags::KEEP_CONNECTION)) {
        Ok(answer) if answer.code() == ResponseCode::SUCCESS => Ok(()),
        Ok(answer) => Err(format!("{:?} {}", answer.code(), answer.text())),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs writers of each kind while `restart` runs.
fn with_writers(
    service: &mut RestartedService,
    restart: impl FnOnce(&mut RestartedService, &WriterCounts),
) -> WriterCounts {
    let counts = WriterCounts::default();
    let (server, gateway) = (service.address, service.gateway.address());
    std::thread::scope(|scope| {
        let _stop = StopWriters(&counts);
        for at in 0..2 {
            scope.spawn(|| counts.write_over_http(gateway));
            let counts = &counts;
            scope.spawn(move || counts.write_natively(server, at == 0));
        }
        counts.until_more(20);
        restart(service, &counts);
        counts.until_more(20);
    });
    counts
}

/// Checks that each record that was acknowledged is there.
fn check_created(counts: &WriterCounts, admin: &AdminServer) {
    for handle in counts.created.lock().unwrap().iter() {
        assert_eq!(stored(admin, handle), Some(1), "{handle}");
    }
}

#[test]
fn ten_restarts_refuse_no_change_and_make_none_twice() {
    let mut service = RestartedService::start();
    let before = service.status()["store"]["content"]["last_transaction"].clone();
    let counts = with_writers(&mut service, |service, counts| {
        for _ in 0..10 {
            service.restart();
            counts.until_more(10);
        }
    });
    let (created, waited_ms) = (counts.created_count(), counts.waited_ms.load(Ordering::Relaxed));
    println!("{created} created, at most {waited_ms} ms for one");
    assert_eq!(*counts.failed.lock().unwrap(), Vec::<String>::new(), "of {created}");
    assert!(waited_ms < WAIT_MAX_MS, "{waited_ms} ms");
    service.stop();
    check_created(&counts, &service.admin);
    let last = service.admin.server().shared().service.store.last_id();
    if let Some(before) = before.as_u64() {
        // What was created twice would be refused, or be another transaction.
        assert_eq!(last - before, created as u64);
    }
}

#[test]
fn if_the_new_process_fails_before_or_after_the_store_is_closed_the_old_one_continues() {
    let mut service = RestartedService::start();
    let pid = service.status()["pid"].clone();
    let counts = with_writers(&mut service, |service, counts| {
        let breaks: [fn(&mut handle_admin::config::Config); 2] = [
            // Noticed while the old process serves.
            |config| config.site = PathBuf::from("/nowhere/siteinfo.json"),
            // Noticed when the new process has the sockets and opens its store.
            |config| config.store.file = PathBuf::from("/nowhere/store.redb"),
        ];
        for change in breaks {
            service.configure(change);
            let refused = run(service.restart_command());
            let text = String::from_utf8_lossy(&refused.stdout).into_owned();
            assert!(!refused.status.success() && text.contains("this process continues"), "{text}");
            assert_eq!(service.status()["pid"], pid, "{text}");
            counts.until_more(20);
        }
        service.configure(|_| ());
        service.restart();
    });
    assert_ne!(service.status()["pid"], pid);
    assert_eq!(*counts.failed.lock().unwrap(), Vec::<String>::new());
    service.stop();
    check_created(&counts, &service.admin);
}

#[test]
fn a_request_that_does_not_arrive_keeps_others_waiting_for_a_second_at_most() {
    let mut service = RestartedService::start();
    // Builds `hdl`.
    service.restart();
    let mut silent = TcpStream::connect(service.address).unwrap();
    silent.write_all(&[2, 11, 0, 0]).unwrap();
    // Answered after what was sent before.
    create(&mut native_client(service.address), "TST/AFTER").unwrap();
    let since = Instant::now();
    service.restart();
    assert!(since.elapsed() < STOP_TIMEOUT, "{:?}", since.elapsed());
    // The process that has received it closes the connection.
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    service.stop();
    assert_eq!(stored(&service.admin, "TST/AFTER"), Some(1));
}

#[test]
fn whichever_process_is_killed_during_a_restart_nothing_acknowledged_is_lost() {
    for round in 0..6 {
        let mut service = RestartedService::start();
        let counts = with_writers_until_killed(&mut service, round);
        service.open_store();
        check_created(&counts, &service.admin);
    }
}

/// Kills all processes some time after a restart was asked for.
fn with_writers_until_killed(service: &mut RestartedService, round: u64) -> WriterCounts {
    let counts = WriterCounts::default();
    let server = service.address;
    std::thread::scope(|scope| {
        let _stop = StopWriters(&counts);
        scope.spawn(|| counts.write_natively(server, true));
        counts.until_more(20);
        let mut restart = service.restart_command();
        let mut asked = restart.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(15 * round));
        service.first.signal("KILL");
        service.first.wait();
        asked.wait().unwrap();
        // A new process that was ready takes over from one that is killed.
        let since = Instant::now();
        while since.elapsed() < SUCCESSOR_TIMEOUT {
            if let Some(pid) = service.status()["pid"].as_u64() {
                drop(Successor { pid: pid.into() });
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    counts
}

#[test]
fn a_process_over_a_database_hands_its_lease_over() {
    let Some(mut several) = SeveralAdmins::make("") else { return };
    several.start(0);
    assert_eq!(several.publisher(), 0);
    let mut client = several.administrator(0);
    for round in 0..3 {
        let put = client.put_public(&format!("10.1045/before{round}"), "x").expect("an answer");
        assert_eq!(put.0, ResponseCode::SUCCESS, "{put:?}");
        let pid = several.status(0)["pid"].clone();
        let answer = several.ask(0, "restart");
        assert_eq!(answer["ok"], true, "{answer}");
        let successor = Successor { pid: answer["pid"].clone() };
        until("the new process has the control socket", || several.status(0)["pid"] == successor.pid);
        assert_ne!(successor.pid, pid);
        let put = client.put_public(&format!("10.1045/after{round}"), "x").expect("an answer");
        assert_eq!(put.0, ResponseCode::SUCCESS, "{put:?}");
        until("it publishes", || several.publishes(0) && several.status(0)["publish"]["pending"] == 0);
        // The last one is killed at the end of the test.
        if round < 2 {
            std::mem::forget(successor);
        }
    }
}

#[test]
fn a_batch_in_progress_goes_on_at_the_new_process() {
    let mut service = RestartedService::start();
    let body = creations("takeover", 20_000);
    let gateway = service.gateway.address();
    let answer = std::thread::scope(|scope| {
        let answer = scope.spawn(|| batch(gateway, ADMINISTRATOR, "", &body));
        let is_begun =
            || service.status()["store"]["content"]["records"].as_u64().is_some_and(|count| count > 1000);
        until("the batch has begun", is_begun);
        service.restart();
        service.restart();
        answer.join().unwrap()
    });
    let codes = codes(&answer);
    assert_eq!(codes.len(), 20_000);
    let refused: Vec<_> = codes.iter().filter(|(_, code)| *code != 1).collect();
    assert!(refused.is_empty(), "{refused:?}");
    service.stop();
    assert_eq!(stored(&service.admin, "TST/takeover-19999"), Some(1));
}
