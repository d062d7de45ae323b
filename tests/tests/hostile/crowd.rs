//! Ten thousand idle and a thousand slow connections during queries over UDP. `handled` is a
//! separate process, because both ends of the connections are more files than one process may have.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{ResponseCode, Value};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::{TestClient, request};
use handle_tests::process::{RunningProcess, program, until};
use handle_tests::records::publish_values;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value as Json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const IDLE: usize = 10_000;
const SLOW: usize = 1_000;
/// Files of this process besides the connections, including those of other tests.
const OTHER_FILES: u64 = 500;

struct CrowdServer {
    _process: RunningProcess,
    control: PathBuf,
    address: SocketAddr,
}

impl CrowdServer {
    fn start(directory: &Path, datapath: &str) -> Self {
        std::fs::create_dir(directory.join("set")).unwrap();
        let mut publisher = SetPublisher::open(&directory.join("set")).unwrap();
        publish_values(&mut publisher, &[(b"10.1/a", Value::new(1, b"URL", b"https://a.example/"))]);
        let config = directory.join("handled.toml");
        let text = format!(
            "snapshot = 'set'\ncontrol = 'control.sock'\nlisten = ['127.0.0.1:0']\nworkers = 1\npin = false\n\
             datapath = '{datapath}'\n[tcp]\nconnections = 20000\nconnections_per_source = 20000\n"
        );
        std::fs::write(&config, text).unwrap();
        let control = directory.join("control.sock");
        let mut command = Command::new(program("handle-server", "handled"));
        command.env("HANDLED_ALLOW_ROOT", "true");
        command.args(["--log", "warn", "--config"]).arg(config);
        let process = RunningProcess::start(command);
        until("handled serves", || UnixStream::connect(&control).is_ok());
        let mut handled = Self { _process: process, control, address: ([0; 4], 0).into() };
        until("the workers run", || handled.ask("status")["state"] == "serving");
        handled.address = handled.ask("status")["workers"][0]["address"].as_str().unwrap().parse().unwrap();
        handled
    }

    fn ask(&self, command: &str) -> Json {
        let mut stream = UnixStream::connect(&self.control).unwrap();
        writeln!(stream, "{command}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn count(&self, name: &str) -> u64 {
        self.ask("stats")["total"][name].as_u64().expect(name)
    }
}

fn check_queries_during_crowd(datapath: &str) {
    let _one_at_a_time = crate::lock_many_files();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    // As many as the limit of open files permits.
    let files = usize::try_from(limit.maximum.unwrap_or(u64::MAX).saturating_sub(OTHER_FILES)).unwrap();
    let slow_count = SLOW.min(files / 11);
    let idle_count = IDLE.min(files - slow_count);
    let directory = tempfile::tempdir().unwrap();
    let handled = CrowdServer::start(directory.path(), datapath);
    let connect = |count: usize| -> Vec<_> {
        (0..count).map(|_| TcpStream::connect(handled.address).unwrap()).collect()
    };
    let idle = connect(idle_count);
    let mut slow = connect(slow_count);
    let all = (idle_count + slow_count) as u64;
    until("all connections are accepted", || handled.count("tcp_connections") == all);
    let mut client = TestClient::new(handled.address);
    let bytes = request(b"10.1/a", 1);
    let (started, mut answers_count) = (Instant::now(), 0);
    // Each slow connection sends a byte, with queries over UDP in between.
    for byte in &bytes[..3] {
        for (i, stream) in slow.iter_mut().enumerate() {
            stream.write_all(&[*byte]).unwrap();
            if i % 3 == 0 {
                assert_eq!(client.resolve(b"10.1/a").expect("an answer").code, ResponseCode::SUCCESS);
                answers_count += 1;
            }
        }
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(20), "{answers_count} answers in {took:?}");
    until("all bytes are received", || handled.count("tcp_input_bytes") == 3 * slow_count as u64);
    assert_eq!(handled.count("requests_answered"), answers_count);
    assert_eq!(handled.count("tcp_connections"), all, "no connection is closed");
    // The connections are still answered.
    for (stream, sent) in [(&idle[0], 0), (&idle[idle_count - 1], 0), (&slow[0], 3)] {
        let mut stream = stream;
        stream.write_all(&bytes[sent..]).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer[24..28], ResponseCode::SUCCESS.0.to_be_bytes());
    }
    drop((idle, slow));
    until("all connections are closed", || handled.count("tcp_connections") == 0);
}

#[test]
fn many_connections_do_not_delay_datagrams_over_the_portable_datapath() {
    check_queries_during_crowd("portable");
}

#[test]
fn many_connections_do_not_delay_datagrams_over_the_datapath_of_this_machine() {
    check_queries_during_crowd("auto");
}
