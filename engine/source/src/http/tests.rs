use super::*;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use tokio::runtime::Runtime;

/// The heads of the requests that a server received, and the number of its connections.
pub(super) struct ServedRequests {
    pub(super) heads: Receiver<Vec<String>>,
    connections: Arc<AtomicUsize>,
}

/// A server that gives each request to `answer`, with the connection.
pub(super) fn serve(answer: fn(&str, &mut TcpStream)) -> (SocketAddr, ServedRequests) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ((sender, heads), connections) = (channel(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&connections);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            counted.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                loop {
                    let head: Vec<String> =
                        lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                    let Some(path) = head.first().and_then(|line| line.split(' ').nth(1)) else { break };
                    answer(path, &mut stream);
                    if sender.send(head.clone()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, ServedRequests { heads, connections })
}

pub(super) fn reply(stream: &mut TcpStream, head: &str, body: &str) {
    let _ = write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
}

fn config(address: SocketAddr) -> SourceConfig {
    SourceConfig { url: format!("http://{address}/records/"), answer_bytes: 1024, ..SourceConfig::default() }
}

fn open(config: &SourceConfig) -> (HttpSource, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    (HttpSource::open(config, true, runtime.handle().clone()).unwrap(), runtime)
}

/// A record of `len` bytes.
fn body(len: usize) -> String {
    let body = r#"{"handle":"10.1/A","values":[{"index":1,"type":"URL","data":"_"}]}"#;
    body.replace('_', &"x".repeat(len + 1 - body.len()))
}

#[test]
fn statuses_and_bodies_are_read_within_the_limit() {
    let (address, _served) = serve(|path, stream| match path.rsplit_once("%2F").unwrap().1 {
        "FOUND" => reply(stream, "200 OK", &body(100)),
        "LONGEST" => reply(stream, "200 OK", &body(1024)),
        "TOOLONG" => reply(stream, "200 OK", &body(1025)),
        "OTHER" => reply(stream, "200 OK", &body(100).replace("10.1/A", "10.1/B")),
        "NONE" => reply(stream, "404 Not Found", ""),
        "GONE" => reply(stream, "410 Gone", "<html>"),
        "MOVED" => reply(stream, "302 Found\r\nLocation: /records/10.1%2FFOUND", ""),
        "BROKEN" => reply(stream, "500 Internal Server Error", "{}"),
        "NOISE" => drop(write!(stream, "SSH-2.0-x\r\n\r\n")),
        // Gigabytes, of which only the first are sent.
        "ANNOUNCED" => drop(write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")),
        "CHUNKED" => {
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            while write!(stream, "400\r\n{}\r\n", " ".repeat(1024)).is_ok() {}
        }
        _ => {}
    });
    let (source, _runtime) = open(&config(address));
    let ask = |name: &str| {
        let asked = source.record(format!("10.1/{name}").as_bytes());
        asked.map(|record| record.map(|record| record.view().values.len()))
    };
    // The server says the same name for every handle.
    assert_eq!(ask("NONE"), Ok(None));
    assert_eq!(ask("GONE"), Ok(None));
    for name in ["FOUND", "LONGEST", "OTHER"] {
        assert!(
            matches!(ask(name), Err(SourceError::Invalid(why)) if why.contains("another handle")),
            "{name}"
        );
    }
    for name in ["TOOLONG", "ANNOUNCED", "CHUNKED"] {
        assert_eq!(ask(name), Err(SourceError::TooLong), "{name}");
    }
    for (name, status) in [("MOVED", "302"), ("BROKEN", "500")] {
        assert!(matches!(ask(name), Err(SourceError::Refused(why)) if why.contains(status)), "{name}");
    }
    assert!(matches!(ask("NOISE"), Err(SourceError::Unreachable(_))));
}

#[test]
fn a_handle_is_one_segment_and_connections_are_kept() {
    let (address, served) = serve(|_, stream| reply(stream, "404 Not Found", ""));
    let (source, _runtime) = open(&config(address));
    for (key, segment) in [
        ("10.1/A", "10.1%2FA"),
        ("10.1/../../ETC?A=B#C", "10.1%2F..%2F..%2FETC%3FA%3DB%23C"),
        ("10.1/%2E ü", "10.1%2F%252E%20%C3%BC"),
    ] {
        assert_eq!(source.record(key.as_bytes()), Ok(None));
        let head = served.heads.recv().unwrap();
        assert_eq!(head[0], format!("GET /records/{segment} HTTP/1.1"));
        assert!(head.iter().any(|line| line.eq_ignore_ascii_case("accept: application/json")), "{head:?}");
    }
    for _ in 0..20 {
        assert_eq!(source.record(b"10.1/A"), Ok(None));
    }
    // A connection may not be free yet when the next request begins.
    let connections = served.connections.load(Ordering::Relaxed);
    assert!(connections < 10, "{connections} connections for 23 requests");
}

#[test]
fn a_token_is_sent_and_its_file_is_private() {
    let (address, served) = serve(|_, stream| reply(stream, "404 Not Found", ""));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    fs::write(&path, "a secret\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let config = SourceConfig { token_file: Some(path.clone()), ..config(address) };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused = HttpSource::open(&config, true, runtime.handle().clone()).unwrap_err();
    assert!(refused.contains("`token_file`") && refused.contains("permissions"), "{refused}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let (source, _runtime) = open(&config);
    assert_eq!(source.record(b"10.1/A"), Ok(None));
    let head = served.heads.recv().unwrap();
    assert!(head.iter().any(|line| line.eq_ignore_ascii_case("authorization: bearer a secret")), "{head:?}");
    assert!(!format!("{source:?}").contains("a secret"));
}

#[test]
fn servers_that_hang_or_are_away_are_noticed() {
    let (address, _heads) =
        serve(|_, stream| drop(write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")));
    let (source, _runtime) = open(&SourceConfig { timeout_ms: 50, ..config(address) });
    assert_eq!(source.record(b"10.1/A"), Err(SourceError::Late));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (source, _runtime) = open(&config(closed));
    assert!(matches!(source.record(b"10.1/A"), Err(SourceError::Unreachable(_))));
}
