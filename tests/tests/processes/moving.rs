//! `hdl store move`: a store moves while it changes, and no acknowledged change is lost whenever a
//! process is killed.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::admin::{ADMIN, CHANGE, SECRET, answer_bytes, message, respond, root, summarize};
use handle_admin::config::Config;
use handle_proto::wire::admin::HandleValues;
use handle_proto::wire::{Envelope, Request};
use handle_proto::{ResponseCode as Code, Value, Values};
use handle_store::{Store, StoreConfig, StoreRecords as _, key};
use handle_tests::client::exchange_on;
use handle_tests::daemon::{ask as ask_control, free_address};
use handle_tests::postgres_server::PostgresServer;
use handle_tests::process::{RunningProcess, fail, hdl, program, run, succeed, until};
use serde_json::Value as Json;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A stopped service, with some records, and its configuration.
struct MovedService {
    config: Config,
    path: PathBuf,
    address: SocketAddr,
    directory: TempDir,
}

impl MovedService {
    fn new() -> Self {
        let mut administered = root(|_| ());
        administered.stop();
        let mut config = administered.config.clone();
        let directory = std::mem::replace(&mut administered.directory, tempfile::tempdir().unwrap());
        let address = free_address();
        config.listen = vec![address];
        config.control = Some(directory.path().join("control.sock"));
        config.allow_root = true;
        let store = Store::open(&config.store).unwrap();
        let mut bulk = store.bulk(directory.path(), 1 << 20);
        let (mut storage, data) = (Vec::new(), "x".repeat(5000));
        for number in 0..8000 {
            let values = Values::build([Value::new(1, b"DESC", data.as_bytes())], &mut storage);
            bulk.add(format!("TST/LARGE-{number}").as_bytes(), values).unwrap();
        }
        bulk.finish(|_| ()).unwrap();
        drop(store);
        let service = Self { config, path: directory.path().join("moved.toml"), address, directory };
        service.write();
        service
    }

    fn write(&self) {
        std::fs::write(&self.path, toml::to_string(&self.config).unwrap()).unwrap();
    }

    fn control(&self) -> &Path {
        self.config.control.as_deref().unwrap()
    }

    /// Starts handle-admin; `None` if it does not start.
    fn start(&self) -> Option<RunningProcess> {
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.arg("--config").arg(&self.path).stderr(Stdio::null());
        let mut process = RunningProcess::start(command);
        let mut is_over = false;
        until("it serves or ends", || {
            is_over = process.0.try_wait().unwrap().is_some();
            is_over
                || TcpStream::connect(self.address).is_ok()
                    && !ask_control(self.control(), "status").is_null()
        });
        (!is_over).then_some(process)
    }

    fn relocate(&self, to: &Path, arguments: &[&str]) -> Command {
        let mut command = hdl(["store", "move", "--socket"]);
        command.arg(self.control()).arg(to).args(arguments);
        command
    }
}

/// Creates a handle; `None` if there was no answer.
fn create(address: SocketAddr, handle: &str) -> Option<Code> {
    let mut storage = Vec::new();
    let values = Values::build([Value::new(1, b"URL", b"https://example.org/")], &mut storage);
    let request = Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values });
    let bytes = message(Envelope::request(1), CHANGE, &request);
    let reply = summarize(&exchange_on(TcpStream::connect(address).ok()?, &bytes)?);
    let Some(challenge) = reply.challenge else { return Some(reply.code) };
    let answer =
        answer_bytes(challenge.id, ADMIN, handle_proto::wire::auth::SECRET_KEY, &respond(&challenge, SECRET));
    Some(summarize(&exchange_on(TcpStream::connect(address).ok()?, &answer)?).code)
}

/// Starts handle-admin on the new store, and checks that it has all of these handles.
fn check_moved(mut service: MovedService, to: &Path, handles: &[String]) {
    let old = service.config.store.file.clone();
    service.config.store =
        StoreConfig { cache_bytes: service.config.store.cache_bytes, ..StoreConfig::at(to) };
    service.write();
    let process = service.start().expect("it starts on the new store");
    assert_eq!(create(service.address, "TST/AFTER"), Some(Code::SUCCESS));
    process.signal("TERM");
    drop(process);
    let mut check = hdl(["store", "check"]);
    check.arg(to);
    succeed(check);
    let store = Store::open_to_read(&StoreConfig::at(to)).unwrap();
    let snapshot = store.snapshot().unwrap();
    for handle in handles {
        assert!(snapshot.record(&key(handle.as_bytes(), true)).unwrap().is_some(), "{handle} is lost");
    }
    assert!(snapshot.records_count().unwrap() > 8000);
    let mut import = hdl(["import", "--into"]);
    import.arg(&old).args(["--homed", "10.9"]);
    let (code, text) = fail(import);
    assert!(code == 1 && text.contains("the store was moved"), "{text}");
    drop(service.directory);
}

#[test]
fn a_store_moves_from_a_file_to_a_database_while_it_is_changed() {
    let Some(server) = PostgresServer::shared() else { return };
    let (service, to) = (MovedService::new(), PathBuf::from(server.new_database()));
    let process = service.start().unwrap();
    assert_eq!(create(service.address, "TST/BEFORE"), Some(Code::SUCCESS));
    let prepared = succeed(service.relocate(&to, &["--prepare", "--json"]));
    let prepared: Json = serde_json::from_str(&prepared).unwrap();
    assert_eq!(create(service.address, "TST/BETWEEN"), Some(Code::SUCCESS));
    let moved: Json = serde_json::from_str(&succeed(service.relocate(&to, &["--json"]))).unwrap();
    let number = |json: &Json, name: &str| json[name].as_u64().unwrap();
    assert_eq!(number(&moved, "records"), number(&prepared, "records") + 1);
    assert_eq!(number(&moved, "last_transaction"), number(&prepared, "last_transaction") + 1);
    assert_eq!(create(service.address, "TST/LATE"), Some(Code::SERVER_READ_ONLY));
    let (code, text) = fail(service.relocate(&to, &[]));
    assert!(code == 6 && text.contains("exists already"), "{text}");
    process.signal("TERM");
    drop(process);
    check_moved(service, &to, &["TST/BEFORE".to_owned(), "TST/BETWEEN".to_owned()]);
}

#[test]
fn no_change_is_lost_when_processes_are_killed_during_a_move() {
    let service = MovedService::new();
    let to = service.directory.path().join("moved.redb");
    let (acknowledged, stop, kills) = (Mutex::new(Vec::new()), AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let handle = format!("TST/DURING-{number}");
                match create(service.address, &handle) {
                    Some(Code::SUCCESS) => acknowledged.lock().unwrap().push(handle),
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        for round in 0.. {
            let Some(process) = service.start() else {
                // Both stores are complete; only the mark of the copy is left.
                let mut finish = hdl(["store", "move"]);
                finish.arg(&service.config.store.file).arg(&to);
                let finished = run(finish);
                let text = String::from_utf8_lossy(&finished.stderr);
                assert!(finished.status.success() || text.contains("was moved"), "{text}");
                break;
            };
            let mut mover = service.relocate(&to, &[]);
            mover.stdout(Stdio::null()).stderr(Stdio::null());
            let mut mover = RunningProcess::start(mover);
            // Later each time, so that the move ends.
            let moment = Duration::from_millis(40 + 150 * round + rand::random::<u64>() % 150);
            std::thread::sleep(moment);
            let has_moved = mover.0.try_wait().unwrap().is_some_and(|status| status.success());
            process.signal("KILL");
            if has_moved {
                break;
            }
            kills.fetch_add(1, Ordering::SeqCst);
        }
        stop.store(true, Ordering::SeqCst);
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    println!("{kills:?} kills, {} changes", acknowledged.len());
    assert!(kills.into_inner() > 0 && !acknowledged.is_empty(), "nothing was changed during the move");
    check_moved(service, &to, &acknowledged);
}

#[test]
fn a_stopped_store_moves_without_a_server() {
    let service = MovedService::new();
    let (from, to) = (&service.config.store.file, service.directory.path().join("other.redb"));
    let relocate = |arguments: &[&str]| {
        let mut command = hdl(["store", "move"]);
        command.arg(from).arg(&to).args(arguments);
        command
    };
    assert!(succeed(relocate(&["--prepare"])).starts_with("copied "));
    let mut check = hdl(["store", "check"]);
    check.arg(&to);
    let (code, text) = fail(check);
    assert!(code == 1 && text.contains("not finished"), "{text}");
    assert!(succeed(relocate(&[])).starts_with("moved "));
    let (code, text) = fail(relocate(&[]));
    assert!(code == 1 && text.contains("was moved"), "{text}");
    let mut few = hdl(["store", "move"]);
    few.arg(&to);
    let (code, text) = fail(few);
    assert!(code == 2 && text.contains("--socket"), "{text}");
    check_moved(service, &to.clone(), &[]);
}
