//! Tests of a server with a cache of a few records, whose misses a test settles.

use super::*;
use crate::Server;
use crate::config::{Config, Datapath};
use crate::extension::ProcessExtension;
use crate::state::ServerHooks;
use anyhow::Result;
use handle_daemon::control::CommandHelp;
use handle_daemon::metrics::MetricsText;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Value as HandleValue};
use handle_resolver::{CachedLookup, RefusalReason};
use handle_snapshot::EncodedRecord;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct TestCache {
    known: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    missing: Mutex<Vec<MissingRecord>>,
}

impl TestCache {
    /// Waits until so many requests miss their record, and takes them.
    fn missing(&self, count: usize) -> Vec<MissingRecord> {
        let until = Instant::now() + Duration::from_secs(20);
        while self.missing.lock().unwrap().len() < count {
            assert!(Instant::now() < until, "{} of {count}", self.missing.lock().unwrap().len());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::take(&mut *self.missing.lock().unwrap())
    }
}

impl ServerCache for TestCache {
    fn prefetch(&self, lookups: &mut [StagedCacheLookup<'_>]) {
        lookups.iter_mut().for_each(|lookup| lookup.slot = 9);
    }

    fn find<'c, 'r: 'c>(
        &self,
        lookups: &mut [StagedCacheLookup<'c>],
        now_unix_s: u32,
        buffer: &CopyBuffer<'r>,
    ) {
        let known = self.known.lock().unwrap();
        for lookup in lookups.iter_mut().filter(|lookup| lookup.is_wanted) {
            assert!(lookup.slot == 9 && now_unix_s > 1_700_000_000);
            let Some(values) = known.get(lookup.handle.0) else { continue };
            let copy = buffer.take(values.len()).expect("room for short records");
            copy.copy_from_slice(values);
            lookup.known = CachedLookup::Record(EncodedRecord::of_public_values(copy, 1));
        }
    }

    fn resolve(&self, missing: MissingRecord) {
        self.missing.lock().unwrap().push(missing);
    }
}

impl ProcessExtension for TestCache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn start(&self) -> Result<Vec<JoinHandle<()>>> {
        Ok(vec![std::thread::spawn(|| {})])
    }

    fn stop(&self) {
        self.missing.lock().unwrap().clear();
    }

    fn commands(&self) -> Vec<CommandHelp> {
        vec![("cache", "the cache")]
    }

    fn run(&self, command: &str) -> Option<Value> {
        (command == "cache").then(|| "here".into())
    }

    fn reload(&self, _report: &mut Value) {}

    fn status(&self) -> Value {
        "here".into()
    }

    fn stats(&self) -> Value {
        self.known.lock().unwrap().len().into()
    }

    fn add_metrics(&self, _text: &mut MetricsText) {}
}

fn values(data: &[u8]) -> Vec<u8> {
    let mut values = Vec::new();
    HandleValue::new(1, b"URL", data).encode(&mut values);
    values
}

fn resolution(data: &[u8]) -> Resolution {
    Resolution::Record { values: values(data).into(), count: 1 }
}

fn serve(change: impl FnOnce(&mut Config)) -> (Server, Arc<TestCache>) {
    let cache = Arc::new(TestCache::default());
    cache.known.lock().unwrap().insert(b"20.1/a".to_vec(), values(b"https://a.example/"));
    let mut config = Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 1,
        pin: false,
        datapath: Datapath::Portable,
        ..Config::default()
    };
    config.slow.exempt_sources = vec!["127.0.0.0/8".to_owned()];
    change(&mut config);
    let hooks = ServerHooks {
        name: Some("test-cache"),
        cache: Some(Arc::clone(&cache) as _),
        extension: Some(Arc::clone(&cache) as _),
        is_without_set: true,
        ..ServerHooks::default()
    };
    (Server::start_with(&config, hooks).unwrap(), cache)
}

fn request(handle: &str, id: i32, flags: OpFlags) -> Vec<u8> {
    let header = Header::request(OpCode::RESOLUTION, flags, 0);
    let query = Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY };
    MessageBuf::request(&Envelope::request(id), &header, &Request::Resolution(query)).unsigned().unwrap()
}

fn socket(server: &Server) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server.addresses()[0]).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// The next answer: its id, code and flags, and all of it.
fn receive(socket: &UdpSocket) -> (i32, ResponseCode, OpFlags, Vec<u8>) {
    let mut buffer = [0; 600];
    let len = socket.recv(&mut buffer).unwrap();
    let (envelope, rest) = Envelope::split(&buffer[..len]).unwrap();
    let (header, _) = Header::split(rest).unwrap();
    (envelope.request_id, header.response_code, header.flags, buffer[..len].to_vec())
}

fn deferred(server: &Server) -> u64 {
    server.shared().shards.sum(|counters| &counters.requests_deferred)
}

fn shows(answer: &[u8], text: &[u8]) -> bool {
    answer.windows(text.len()).any(|window| window == text)
}

#[test]
fn the_buffer_is_given_once_and_no_more_than_there_is() {
    let mut bytes = [0; 8];
    let buffer = CopyBuffer::new(&mut bytes);
    let first = buffer.take(5).unwrap();
    assert!(buffer.take(4).is_none());
    let second = buffer.take(3).unwrap();
    first.fill(1);
    second.fill(2);
    assert_eq!(buffer.take(0).map(|none| none.len()), Some(0));
    assert!(buffer.take(1).is_none());
    assert_eq!(bytes, [1, 1, 1, 1, 1, 2, 2, 2]);
}

#[test]
fn known_records_are_answered_by_the_worker_over_both_transports() {
    let (server, _cache) = serve(|_| {});
    let socket = socket(&server);
    for id in 1..=40 {
        socket.send(&request("20.1/a", id, OpFlags::PLAIN_REQUEST)).unwrap();
    }
    for _ in 1..=40 {
        let (_, code, flags, answer) = receive(&socket);
        assert_eq!(code, ResponseCode::SUCCESS);
        assert!(shows(&answer, b"https://a.example/") && flags.has(OpFlags::RECURSIVE));
    }
    let mut stream = TcpStream::connect(server.addresses()[0]).unwrap();
    let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::KEEP_CONNECTION);
    stream.write_all(&[request("20.1/a", 1, flags), request("20.1/a", 2, flags)].concat()).unwrap();
    let (mut received, mut buffer) = (vec![], [0; 600]);
    while received.windows(18).filter(|window| window == b"https://a.example/").count() < 2 {
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "the connection stays");
        received.extend_from_slice(&buffer[..len]);
    }
    assert_eq!(deferred(&server), 0, "nothing went to the slow path");
    assert_eq!(server.shared().status()["cache"], "here");
    assert_eq!(server.shared().stats()["cache"], 1);
    server.stop().unwrap();
}

#[test]
fn requests_for_missing_records_wait_without_a_thread_and_are_all_answered() {
    let (server, cache) = serve(|config| config.slow.queue_requests = 512);
    let socket = socket(&server);
    let handles = ["20.1/new", "20.1/NEW", "20.1/none"];
    for id in 0..300 {
        socket.send(&request(handles[id as usize % 3], id, OpFlags::PLAIN_REQUEST)).unwrap();
    }
    let mut missing = cache.missing(300);
    // The only slow thread answers others meanwhile.
    let certified = OpFlags::PLAIN_REQUEST.with(OpFlags::PUBLIC_ONLY);
    socket.send(&request("20.1/a", 1000, certified)).unwrap();
    assert_eq!(receive(&socket).0, 1000);
    let mut seen = [false; 300];
    // In parts that fit into the buffer of the client's socket.
    while !missing.is_empty() {
        for missing in missing.drain(..50) {
            assert_eq!(missing.source(), Some([127, 0, 0, 1].into()));
            assert!(!missing.is_authoritative());
            let answer = match missing.handle().0 {
                b"20.1/none" => Resolution::NoHandle,
                handle => resolution(handle),
            };
            missing.settle(answer);
        }
        for _ in 0..50 {
            let (id, code, _, answer) = receive(&socket);
            let at = usize::try_from(id).unwrap();
            assert!(!std::mem::replace(&mut seen[at], true), "one answer to each");
            let expected = if at % 3 == 2 { ResponseCode::HANDLE_NOT_FOUND } else { ResponseCode::SUCCESS };
            assert_eq!(code, expected);
            assert_eq!(shows(&answer, handles[at % 3].as_bytes()), at % 3 != 2, "as it was spelt");
        }
    }
    server.stop().unwrap();
}

#[test]
fn authoritative_requests_pass_the_cache_and_their_answers_do_not_claim_authority() {
    let (server, cache) = serve(|_| {});
    let socket = socket(&server);
    socket.send(&request("20.1/a", 1, OpFlags::PLAIN_REQUEST.with(OpFlags::AUTHORITATIVE))).unwrap();
    let missing = cache.missing(1).remove(0);
    assert!(missing.is_authoritative() && missing.handle().0 == b"20.1/a");
    missing.settle(resolution(b"https://newer.example/"));
    let (_, code, flags, answer) = receive(&socket);
    assert_eq!(code, ResponseCode::SUCCESS);
    assert!(shows(&answer, b"https://newer.example/") && !flags.has(OpFlags::AUTHORITATIVE));
    server.stop().unwrap();
}

#[test]
fn who_cannot_be_answered_gets_an_error() {
    let (server, cache) = serve(|config| {
        config.slow.queue_requests = 4;
        config.tcp.enabled = false;
    });
    let socket = socket(&server);
    let ask = |id, flags| {
        socket.send(&request("20.1/new", id, flags)).unwrap();
    };
    // A request that is dropped, one that fails, and one whose sender asks for itself.
    ask(1, OpFlags::PLAIN_REQUEST);
    drop(cache.missing(1));
    let (_, code, _, answer) = receive(&socket);
    assert_eq!(code, ResponseCode::SERVER_BUSY);
    assert!(shows(&answer, b"No responsible server has answered"));
    ask(2, OpFlags::PLAIN_REQUEST);
    cache.missing(1).remove(0).settle(Resolution::Failed(RefusalReason::TooManyQuestions));
    assert!(shows(&receive(&socket).3, b"Too many questions"));
    ask(3, OpFlags::PLAIN_REQUEST.without(OpFlags::RECURSIVE));
    assert_eq!(receive(&socket).1, ResponseCode::SERVER_NOT_RESPONSIBLE);
    // As many as may wait, and one more.
    (10..14).for_each(|id| ask(id, OpFlags::PLAIN_REQUEST));
    let missing = cache.missing(4);
    ask(14, OpFlags::PLAIN_REQUEST);
    let (id, code, ..) = receive(&socket);
    assert_eq!((id, code), (14, ResponseCode::SERVER_BUSY));
    drop(missing);
    let mut answered: Vec<i32> = (10..14).map(|_| receive(&socket).0).collect();
    answered.sort_unstable();
    assert_eq!(answered, [10, 11, 12, 13]);
    // Requests that still wait do not keep the server from stopping.
    ask(20, OpFlags::PLAIN_REQUEST);
    let missing = cache.missing(1);
    server.stop().unwrap();
    drop(missing);
}
