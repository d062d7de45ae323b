//! Runs over connections, against a small local server that speaks the handle protocol over TCP,
//! the same in HTTP, and the JSON API: one request per connection, pooled, pipelined, and with a
//! misbehaving server.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use handle_loadgen::load::question::GeneratedQuestion;
use handle_loadgen::{
    LoadPattern, NameOptions, Protocol, ReferenceData, RunOptions, RunReport, StreamTransport, Streams,
    Verify, run,
};
use handle_proto::json::{record_to_json, text};
use handle_proto::wire::list::Values;
use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Envelope, Header, Message};
use handle_proto::{OpFlags, ResponseCode, Value};

const HANDLES: usize = 30;

/// How a server treats its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionManner {
    /// It keeps them if the client asks for it.
    Keeps,
    /// It closes them after each answer, as deployed servers do.
    ClosesAlways,
    /// It closes every tenth after half an answer.
    BreaksOff,
    /// Before the first answer of every tenth it waits longer than the timeout.
    IsLate,
}

/// Long enough for a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Answers connections, each on its own thread, until it is dropped.
struct StreamServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    /// Source addresses of the connections.
    peers: Arc<Mutex<BTreeSet<IpAddr>>>,
    /// Hosts requested over HTTP.
    hosts: Arc<Mutex<BTreeSet<String>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl StreamServer {
    fn start(manner: ConnectionManner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&accepted));
        let peers = Arc::<Mutex<BTreeSet<_>>>::default();
        let noted = Arc::clone(&peers);
        let hosts = Arc::<Mutex<BTreeSet<_>>>::default();
        let shared_hosts = Arc::clone(&hosts);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let number = counted.fetch_add(1, Ordering::Relaxed);
                let stream = stream.unwrap();
                noted.lock().unwrap().extend(stream.peer_addr().map(|peer| peer.ip()));
                let shared_hosts = Arc::clone(&shared_hosts);
                // A client that closes the connection early is not an error here.
                thread::spawn(move || drop(serve(&stream, manner, number, &shared_hosts)));
            }
        });
        Self { address, stop, accepted, peers, hosts, thread: Some(thread) }
    }
}

impl Drop for StreamServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().unwrap().join();
    }
}

fn serve(
    stream: &TcpStream,
    manner: ConnectionManner,
    number: usize,
    hosts: &Mutex<BTreeSet<String>>,
) -> std::io::Result<()> {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let first = match reader.fill_buf()?.first() {
            None => return Ok(()),
            Some(first) => *first,
        };
        let (bytes, keeps) = match first {
            b'G' | b'P' => answer_http(&mut reader, hosts)?,
            _ => answer_native(&mut reader)?,
        };
        if manner == ConnectionManner::IsLate && number % 10 == 9 {
            thread::sleep(TIMEOUT * 3 / 2);
        }
        if manner == ConnectionManner::BreaksOff && number % 10 == 9 {
            return writer.write_all(&bytes[..bytes.len() / 2]);
        }
        writer.write_all(&bytes)?;
        if !keeps || manner == ConnectionManner::ClosesAlways {
            return Ok(());
        }
    }
}

fn answer_native(reader: &mut impl std::io::Read) -> std::io::Result<(Vec<u8>, bool)> {
    let mut head = [0; Envelope::LEN];
    reader.read_exact(&mut head)?;
    let mut message = vec![0; Envelope::from_bytes(&head).message_len as usize];
    reader.read_exact(&mut message)?;
    let request = [&head[..], &message].concat();
    let keeps = GeneratedQuestion::of_message(&request).unwrap().flags.has(OpFlags::KEEP_CONNECTION);
    Ok((answer(&request), keeps))
}

fn answer_http(
    reader: &mut impl std::io::BufRead,
    hosts: &Mutex<BTreeSet<String>>,
) -> std::io::Result<(Vec<u8>, bool)> {
    let (mut line, mut len, mut keeps) = (String::new(), 0, true);
    reader.read_line(&mut line)?;
    let target = line.split(' ').nth(1).unwrap().to_owned();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let header = line.trim_end().to_ascii_lowercase();
        match header.split_once(": ") {
            None => break,
            Some(("content-length", value)) => len = value.parse().unwrap(),
            Some(("connection", value)) => keeps = value != "close",
            Some(("host", value)) => drop(hosts.lock().unwrap().insert(value.to_owned())),
            Some(_) => {}
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body)?;
    let (status, kind, body) = if len > 0 {
        ("200 OK", "application/x-hdl-message", answer(&body))
    } else {
        let name = target.strip_prefix("/api/handles/").unwrap();
        let name = percent_encoding::percent_decode_str(name).decode_utf8().unwrap().into_owned();
        match url(name.as_bytes()) {
            None => {
                let json = format!(r#"{{"responseCode":100,"handle":{}}}"#, serde_json::json!(name));
                ("404 Not Found", "application/json", json.into_bytes())
            }
            Some(url) => {
                let mut json = record_to_json(name.as_bytes(), [Value::new(1, b"URL", &url)]);
                json["responseCode"] = 1.into();
                ("200 OK", "application/json", text(&json).into_bytes())
            }
        }
    };
    // Even lengths in one piece, others in chunks.
    let mut out = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n").into_bytes();
    if body.len().is_multiple_of(2) {
        write!(out, "Content-Length: {}\r\n\r\n", body.len())?;
        out.extend(body);
    } else {
        write!(out, "Transfer-Encoding: chunked\r\n\r\n1\r\n")?;
        out.extend(&body[..1]);
        write!(out, "\r\n{:x}\r\n", body.len() - 1)?;
        out.extend(&body[1..]);
        out.extend(b"\r\n0\r\n\r\n");
    }
    Ok((out, keeps))
}

/// Names, some of which need a request that is too long for a datagram.
fn name(number: usize) -> Vec<u8> {
    let middle = if number % 10 == 3 { "x".repeat(1500) + "/" } else { String::new() };
    format!("10.5072/{middle}{number}").into_bytes()
}

/// The text of the only value of a handle; the last ones are long, some longer than 64 KiB, and
/// others do not exist.
fn url(handle: &[u8]) -> Option<Vec<u8>> {
    let number: usize = String::from_utf8_lossy(handle).rsplit('/').next()?.parse().ok()?;
    let times = match HANDLES.checked_sub(number)? {
        1 => 5000,
        2..5 => 500,
        _ => 1,
    };
    (number < HANDLES).then(|| format!("https://example.org/{number}").repeat(times).into_bytes())
}

fn answer(request: &[u8]) -> Vec<u8> {
    let (mut envelope, message) = Envelope::split(request).unwrap();
    let header = Message::decode(message).unwrap().header;
    let handle = GeneratedQuestion::of_message(request).unwrap().handle;
    let mut body = Vec::new();
    let response_code = match url(handle) {
        None => ResponseCode::HANDLE_NOT_FOUND,
        Some(url) => {
            let mut buffer = Vec::new();
            let values = Values::build([Value::new(1, b"URL", &url)], &mut buffer);
            QueryAnswer { handle, values }.encode(&mut body);
            ResponseCode::SUCCESS
        }
    };
    let header = Header { response_code, body_len: u32::try_from(body.len()).unwrap(), ..header };
    let message = [&header.to_bytes()[..], &body, &[0; 4]].concat();
    envelope.message_len = u32::try_from(message.len()).unwrap();
    [&envelope.to_bytes()[..], &message].concat()
}

fn records() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<_> = (0..HANDLES)
        .map(|i| {
            let handle = name(i);
            text(&record_to_json(&handle, [Value::new(1, b"URL", &url(&handle).unwrap())]))
        })
        .collect();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    file
}

fn run_plain(server: &StreamServer, streams: Streams) -> RunReport {
    run_with(server, streams, |options| options)
}

fn run_with(
    server: &StreamServer,
    streams: Streams,
    change: impl FnOnce(RunOptions) -> RunOptions,
) -> RunReport {
    let records = records();
    let names = (0..HANDLES).map(name).collect();
    let options = RunOptions {
        transport: StreamTransport::Stream(streams),
        load: LoadPattern::Open { rate: NonZeroU64::new(500).unwrap() },
        duration: Duration::from_millis(600),
        timeout: Duration::from_secs(2),
        forms: vec!["9=plain".parse().unwrap(), "1=miss".parse().unwrap()],
        verify: Some(Verify::with(ReferenceData::Records(records.path().to_owned()))),
        threads: 2,
        ..RunOptions::new(server.address, NameOptions::List(names))
    };
    let report = run(&change(options), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.setting.handles, HANDLES, "no handle is too long for a connection");
    report
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Http, Protocol::Json];

#[test]
fn pooled_connections_are_few_and_all_is_verified() {
    for protocol in PROTOCOLS {
        let server = StreamServer::start(ConnectionManner::Keeps);
        let streams = Streams { connections: 4, ..Streams::pooled(protocol) };
        let report = run_plain(&server, streams);
        let verification = report.verification.as_ref().unwrap();
        assert_eq!((report.accounts.answered, verification.verified), (300, 300), "{protocol:?}: {report}");
        let connections = report.connections.unwrap();
        assert!(connections.begun <= 8 && connections.failed == 0, "{protocol:?}: {connections:?}");
        assert_eq!(connections.begun, server.accepted.load(Ordering::Relaxed) as u64);
        let codes: Vec<_> = report.accounts.codes.iter().map(|code| code.code).collect();
        assert_eq!(codes, [1, 100], "{protocol:?}");
    }
}

#[test]
fn pipelined_requests_share_a_connection() {
    for protocol in PROTOCOLS {
        let server = StreamServer::start(ConnectionManner::Keeps);
        let streams = Streams { connections: 1, pipeline: 16, ..Streams::pooled(protocol) };
        let report = run_plain(&server, streams);
        assert_eq!(report.verification.as_ref().unwrap().verified, 300, "{protocol:?}: {report}");
        assert_eq!(report.connections.unwrap().begun, 2, "{protocol:?}: {report}");
    }
}

#[test]
fn one_request_a_connection_is_one_connection_a_request() {
    for protocol in PROTOCOLS {
        let server = StreamServer::start(ConnectionManner::Keeps);
        let streams = Streams { connections: 64, requests: 1, ..Streams::pooled(protocol) };
        let report = run_plain(&server, streams);
        assert_eq!(report.verification.as_ref().unwrap().verified, 300, "{protocol:?}: {report}");
        assert_eq!(report.connections.unwrap().begun, 300, "{protocol:?}: {report}");
    }
}

#[test]
fn a_server_that_closes_is_asked_anew() {
    for protocol in PROTOCOLS {
        let server = StreamServer::start(ConnectionManner::ClosesAlways);
        let report = run_plain(&server, Streams { connections: 64, ..Streams::pooled(protocol) });
        let accounts = &report.accounts;
        // A request may coincide with the end of its connection: it is lost and reported.
        assert_eq!(accounts.answered + accounts.lost, 300, "{protocol:?}: {report}");
        assert_eq!(report.connections.unwrap().closed_early, accounts.lost, "{protocol:?}: {report}");
        let report_text = report.to_string();
        assert!(
            report_text.contains("\nconnections ") && report_text.contains(" established"),
            "{report_text}"
        );
        let is_often = report.connections.unwrap().established > 2 * 2 * 64;
        assert_eq!(
            report_text.contains("--per-connection 1"),
            accounts.lost > 0 && is_often,
            "{report_text}"
        );
        assert_eq!(report.verification.as_ref().unwrap().mismatched, 0, "{protocol:?}: {report}");
    }
}

#[test]
fn half_an_answer_is_no_answer() {
    for protocol in PROTOCOLS {
        let server = StreamServer::start(ConnectionManner::BreaksOff);
        let streams = Streams { connections: 64, requests: 1, ..Streams::pooled(protocol) };
        let report = run_plain(&server, streams);
        let accounts = &report.accounts;
        let read = accounts.codes.iter().map(|code| code.count).sum::<u64>();
        assert_eq!(read, 270, "{protocol:?}: {report}");
        assert_eq!(accounts.truncated + accounts.malformed + accounts.lost, 30, "{protocol:?}: {report}");
    }
}

#[test]
fn late_answers_are_late_and_not_lost() {
    // In parallel, because each of them waits.
    thread::scope(|scope| {
        for protocol in PROTOCOLS {
            scope.spawn(move || {
                let server = StreamServer::start(ConnectionManner::IsLate);
                let streams = Streams { connections: 64, requests: 1, ..Streams::pooled(protocol) };
                let report = run_with(&server, streams, |options| RunOptions { timeout: TIMEOUT, ..options });
                let accounts = &report.accounts;
                assert_eq!(
                    (accounts.answered, accounts.late, accounts.lost),
                    (270, 30, 0),
                    "{protocol:?}: {report}"
                );
                assert_eq!(report.verification.as_ref().unwrap().verified, 300, "{protocol:?}: {report}");
            });
        }
    });
}

#[test]
fn connections_begin_from_all_addresses() {
    let server = StreamServer::start(ConnectionManner::Keeps);
    let streams = Streams { connections: 64, requests: 1, ..Streams::pooled(Protocol::Tcp) };
    let report = run_with(&server, streams, |options| RunOptions { sources: 7, ..options });
    assert_eq!(report.verification.as_ref().unwrap().verified, 300, "{report}");
    let expected: BTreeSet<IpAddr> = (2..9u8).map(|last| [127, 0, 0, last].into()).collect();
    assert_eq!(*server.peers.lock().unwrap(), expected);
}

#[test]
fn requests_over_http_name_the_host() {
    for protocol in [Protocol::Http, Protocol::Json] {
        let server = StreamServer::start(ConnectionManner::Keeps);
        run_plain(&server, Streams::pooled(protocol));
        let host = Some("handles.example.org:8000".to_owned());
        run_with(&server, Streams::pooled(protocol), |options| RunOptions { host, ..options });
        let expected = BTreeSet::from([server.address.to_string(), "handles.example.org:8000".to_owned()]);
        assert_eq!(*server.hosts.lock().unwrap(), expected, "{protocol:?}");
    }
}

#[test]
fn a_name_too_long_for_a_datagram_is_left_out() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let options = RunOptions {
        load: LoadPattern::Open { rate: NonZeroU64::new(100).unwrap() },
        duration: Duration::from_millis(20),
        timeout: Duration::from_millis(20),
        ..RunOptions::new(silent.local_addr().unwrap(), NameOptions::List((0..HANDLES).map(name).collect()))
    };
    let report = run(&options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.setting.handles, report.setting.handles_too_long), (27, 3), "{report}");
}

#[test]
fn a_missing_server_is_counted_as_failed_connections() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = RunOptions {
        transport: StreamTransport::Stream(Streams::pooled(Protocol::Tcp)),
        load: LoadPattern::Open { rate: NonZeroU64::new(100).unwrap() },
        duration: Duration::from_millis(100),
        timeout: Duration::from_millis(100),
        ..RunOptions::new(address, NameOptions::List(vec![b"10.1/a".to_vec()]))
    };
    let report = run(&options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.accounts.scheduled, report.accounts.answered), (10, 0), "{report}");
    let connections = report.connections.unwrap();
    assert!(connections.failed > 0 && connections.established == 0, "{connections:?}");
    assert!(
        report.invalid.iter().any(|reason| reason.contains("listens there") && reason.contains("tcp")),
        "{report}"
    );
}
