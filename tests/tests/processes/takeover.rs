//! Restarts by take-over: no answer is lost, and a failing new process leaves the old one serving.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_loadgen::{LoadPattern, NameOptions, ReferenceData, RunOptions, RunReport, Verify};
use handle_proto::ResponseCode;
use handle_proto::wire::{Envelope, Message};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::{TestClient, request};
use handle_tests::daemon::{self, Daemon, Successor, free_address, handled};
use handle_tests::process::{RunningProcess, fail, hdl, run, until};
use handle_tests::records;
use serde_json::Value as Json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Whether a request over its own connection, as deployed clients send it, is answered.
fn is_answered_over_tcp(address: SocketAddr, datagram: &[u8]) -> bool {
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.write_all(datagram)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    match ask() {
        Ok(answer) if answer.is_empty() => {
            eprintln!("closed without an answer");
            false
        }
        Ok(answer) => {
            let (envelope, message) = Envelope::split(&answer).expect("an envelope");
            let code = Message::decode(message).expect("a message").header.response_code;
            envelope.request_id == 7 && code == ResponseCode::SUCCESS
        }
        Err(error) => {
            eprintln!("not answered: {error}");
            false
        }
    }
}

/// Requests per second: enough that some are in flight at any moment of a take-over.
const RATE: NonZeroU64 = NonZeroU64::new(4_000).unwrap();

/// A published set and the address at which consecutive processes serve it.
struct TakeoverSetup {
    directory: TempDir,
    address: SocketAddr,
}

impl TakeoverSetup {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let set = directory.path().join("set");
        std::fs::create_dir(&set).unwrap();
        records::publish(&mut SetPublisher::open(&set).unwrap(), &records::load(), 1);
        Self { directory, address: free_address() }
    }

    fn set(&self) -> PathBuf {
        self.directory.path().join("set")
    }

    fn control(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    fn command(&self, datapath: &str, workers: usize) -> Command {
        let mut command = handled();
        command.arg("--snapshot").arg(self.set()).arg("--control").arg(self.control());
        command.args(["--listen", &self.address.to_string(), "--log", "warn", "--datapath", datapath]);
        command.args(["--workers", &workers.to_string(), "--take-over"]);
        command
    }

    /// Starts a process, which takes over from a running one.
    fn serve(&self, datapath: &str, workers: usize) -> Daemon {
        Daemon::start(self.command(datapath, workers), &self.control())
    }

    fn code(&self) -> ResponseCode {
        let handle = &records::load()[0].handle;
        TestClient::new(self.address).resolve(handle.as_bytes()).expect("an answer").code
    }

    /// Sends and verifies requests while `meanwhile` runs, and shortly before and after.
    fn load<T>(&self, meanwhile: impl FnOnce() -> T) -> (RunReport, T) {
        let mut options = RunOptions::new(self.address, NameOptions::Snapshot(self.set()));
        options.load = LoadPattern::Open { rate: RATE };
        options.duration = Duration::from_secs(600);
        // Longer than any answer takes.
        options.timeout = Duration::from_secs(10);
        // Enough that each of the server's sockets gets some.
        options.threads = 8;
        options.verify = Some(Verify {
            staleness_max: Duration::ZERO,
            ..Verify::with(ReferenceData::Snapshot(self.set()))
        });
        let (started, enough) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let each_second = |_: &_| {
                    started.store(true, Ordering::Relaxed);
                    if enough.load(Ordering::Relaxed) {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                };
                handle_loadgen::run(&options, each_second).unwrap()
            });
            until("the load runs", || started.load(Ordering::Relaxed) || load.is_finished());
            let done = meanwhile();
            enough.store(true, Ordering::Relaxed);
            (load.join().unwrap(), done)
        })
    }
}

#[test]
fn restarts_under_load_lose_no_answer() {
    let setup = TakeoverSetup::new();
    let mut serving = setup.serve("portable", 2);
    // Both datapaths take over from both, with the same number of sockets, fewer, more, and one.
    let successors = [
        ("portable", 2),
        ("auto", 2),
        ("auto", 1),
        ("portable", 3),
        ("auto", 1),
        ("auto", 4),
        ("portable", 1),
    ];
    let datagram = request(records::load()[0].handle.as_bytes(), 7);
    let (done, connections_count, lost) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let ask_over_tcp = || {
        while !done.load(Ordering::Relaxed) {
            let is_answered = is_answered_over_tcp(setup.address, &datagram);
            lost.fetch_add(u64::from(!is_answered), Ordering::Relaxed);
            connections_count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let (report, answered) = setup.load(|| {
        std::thread::scope(|scope| {
            (0..4).for_each(|_| _ = scope.spawn(ask_over_tcp));
            let mut answered = Vec::new();
            for (datapath, workers) in successors {
                let mut old = std::mem::replace(&mut serving, setup.serve(datapath, workers));
                assert_eq!(old.process.wait(), Some(0), "exit code of the old process");
                assert!(serving.control.exists(), "the control socket belongs to the new process");
                assert_eq!(serving.ask("status")["workers"].as_array().unwrap().len(), workers);
                std::thread::sleep(Duration::from_millis(500));
                answered.push(serving.ask("stats")["total"]["requests_answered"].as_u64().unwrap());
            }
            done.store(true, Ordering::Relaxed);
            answered
        })
    });
    println!("{connections_count:?} connections, {lost:?} not answered");
    assert_eq!(lost.into_inner(), 0, "of {connections_count:?} connections");
    let accounts = &report.accounts;
    println!("{} sent in {} take-overs: {accounts:?}", accounts.sent, successors.len());
    assert_eq!((accounts.lost, accounts.late, accounts.refused), (0, 0, 0), "{accounts:?}");
    assert_eq!((accounts.duplicates, accounts.malformed), (0, 0), "each request is answered once");
    assert_eq!(report.verification.unwrap().mismatched, 0);
    assert!(answered.iter().all(|&answered| answered > RATE.get() / 10), "each process served: {answered:?}");
}

#[test]
fn a_new_process_that_fails_or_is_killed_leaves_the_old_one_serving() {
    let setup = TakeoverSetup::new();
    let mut old = setup.serve("auto", 2);
    // The new process gets the sockets and then fails, because an address is not local.
    let (report, ()) = setup.load(|| {
        let mut command = setup.command("auto", 2);
        command.args(["--listen", "192.0.2.1:2641"]);
        let (code, error) = fail(command);
        assert!(code == 1 && error.contains("does not have the address"), "{error}");
        let mut command = setup.command("auto", 2);
        command.args(["--snapshot", "/nonexistent"]);
        assert_ne!(fail(command).0, 0);
        // A client that gets the sockets, sends nothing, and disconnects.
        let mut silent = BufReader::new(UnixStream::connect(&old.control).unwrap());
        silent.get_mut().write_all(b"take-over\n").unwrap();
        let mut offer = String::new();
        silent.read_line(&mut offer).unwrap();
        let offer: Json = serde_json::from_str(&offer).unwrap();
        assert_eq!(offer["sockets"].as_array().unwrap().len(), 4, "two of each worker: {offer}");
        let refused = daemon::ask(&old.control, "take-over");
        assert!(refused["error"].as_str().unwrap().contains("another process is taking over"), "{refused}");
        drop(silent);
        until("the take-over is cancelled", || {
            old.ask("status")["state"] == "serving" && old.ask("take-over")["sockets"].is_array()
        });
    });
    let accounts = &report.accounts;
    assert_eq!((accounts.lost, accounts.late, accounts.duplicates), (0, 0, 0), "{accounts:?}");
    // `kill -9` at moments from before the take-over to after it.
    let mut survived = 0;
    for step in 0..20 {
        let mut new = RunningProcess::start(setup.command("auto", 2));
        std::thread::sleep(Duration::from_millis(2) * step);
        new.0.kill().unwrap();
        assert_eq!(new.wait(), None);
        std::thread::sleep(Duration::from_millis(20));
        if old.process.0.try_wait().unwrap().is_none() && old.ask("status")["state"] == "serving" {
            survived += 1;
            assert_eq!(setup.code(), ResponseCode::SUCCESS);
        } else {
            // The new process had announced that it serves, and was killed afterwards.
            assert_eq!(old.process.wait(), Some(0));
            old = setup.serve("auto", 2);
        }
    }
    assert!(survived > 0, "no process was killed before it served");
    assert_eq!(setup.code(), ResponseCode::SUCCESS);
}

#[test]
fn a_restart_on_command_keeps_serving_and_notifies_the_service_manager() {
    let setup = TakeoverSetup::new();
    let path = setup.directory.path().join("notify.sock");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let until_notified = |text: &str| {
        let mut buffer = [0; 1000];
        loop {
            let len = manager.recv(&mut buffer).unwrap_or_else(|error| panic!("{text}: {error}"));
            let notification = String::from_utf8_lossy(&buffer[..len]).into_owned();
            assert!(!notification.contains("STOPPING"), "the service does not stop: {notification}");
            if notification.contains(text) {
                return;
            }
        }
    };
    let config = setup.directory.path().join("handled.toml");
    let http = free_address();
    let text = format!(
        "snapshot = \"set\"\ncontrol = \"control.sock\"\nlisten = [\"{}\"]\nworkers = 1\n\
         observe.http = \"{http}\"\n",
        setup.address
    );
    std::fs::write(&config, &text).unwrap();
    let mut command = handled();
    command.arg("--config").arg(&config).env("NOTIFY_SOCKET", &path);
    let mut old = Daemon::start(command, &setup.control());
    until_notified("READY=1");
    let restart = || {
        let mut command = hdl(["control", "restart", "--json", "--socket"]);
        command.arg(setup.control());
        let output = run(command);
        let answer: Json = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), answer)
    };
    // A configuration that does not work changes nothing.
    std::fs::write(&config, format!("{text}limits.answer_datagrams = 0\n")).unwrap();
    let (code, answer) = restart();
    assert!(
        code == Some(6) && answer["error"].as_str().unwrap().contains("this process continues"),
        "{answer}"
    );
    assert_eq!(old.ask("status")["state"], "serving");
    std::fs::write(&config, format!("{text}limits.socket_receive_bytes = 8192\n")).unwrap();
    let is_ready = || {
        let reply = handle_tests::http::get(http, "/readyz").unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
    };
    let done = AtomicBool::new(false);
    let (report, successor) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                is_ready();
            }
        });
        let served = restart_twice(&setup, &mut old, &restart, &until_notified);
        done.store(true, Ordering::Relaxed);
        served
    });
    let accounts = &report.accounts;
    assert_eq!((accounts.lost, accounts.late, accounts.duplicates), (0, 0, 0), "{accounts:?}");
    until("the new process has the control socket", || {
        daemon::ask(&setup.control(), "status")["pid"] == successor.pid
    });
}

/// Restarts twice under load, the second time by the successor.
fn restart_twice(
    setup: &TakeoverSetup,
    old: &mut Daemon,
    restart: &dyn Fn() -> (Option<i32>, Json),
    until_notified: &dyn Fn(&str),
) -> (RunReport, Successor) {
    setup.load(|| {
        let (code, answer) = restart();
        assert_eq!(code, Some(0), "{answer}");
        assert_eq!(old.process.wait(), Some(0));
        until_notified(&format!("MAINPID={}", answer["pid"]));
        until_notified("READY=1");
        let (code, answer) = restart();
        assert_eq!(code, Some(0), "{answer}");
        until_notified(&format!("MAINPID={}", answer["pid"]));
        Successor { pid: answer["pid"].clone() }
    })
}
