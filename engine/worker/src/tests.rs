//! Tests of panics in a worker, injected for certain handles.

use crate::Server;
use crate::config::{ANSWER_LEN_MAX, Config, Datapath};
use crate::watchdog::Watchdog;
use handle_proto::limit::FRAGMENTS_MAX;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, Permissions, ResponseCode, Value};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// A datagram with this handle causes a panic while it is read.
const BUG_IN_READING: &str = "10.1/bug-in-reading";
/// A datagram with this handle causes a panic while it is answered.
const BUG_IN_ANSWERING: &str = "10.1/bug-in-answering";
/// A request with this handle causes a panic on the slow path.
const BUG_ON_THE_SLOW_PATH: &str = "10.1/bug-on-the-slow-path";
/// A datagram with this handle delays its worker, so that others queue behind it.
const STALL: &str = "10.1/stall";
/// A record whose answer fills more than half of the smallest outbox.
const LONG: &str = "10.1/long";

fn names(datagram: &[u8], handle: &str) -> bool {
    datagram.windows(handle.len()).any(|window| window == handle.as_bytes())
}

/// Called before a datagram is read.
pub(crate) fn before_reading(datagram: &[u8]) {
    assert!(!names(datagram, BUG_IN_READING), "a bug, on purpose");
    if names(datagram, STALL) {
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Called before a datagram is answered.
pub(crate) fn before_answering(datagram: &[u8]) {
    assert!(!names(datagram, BUG_IN_ANSWERING), "a bug, on purpose");
}

/// Called before a request is answered on the slow path.
pub(crate) fn before_slow_answer(request: &[u8]) {
    assert!(!names(request, BUG_ON_THE_SLOW_PATH), "a bug, on purpose");
}

fn request(handle: &str, request_id: i32) -> Vec<u8> {
    request_with(OpFlags::PLAIN_REQUEST, handle, request_id)
}

fn request_with(flags: OpFlags, handle: &str, request_id: i32) -> Vec<u8> {
    let envelope = Envelope::request(request_id);
    let header = Header::request(OpCode::RESOLUTION, flags, 0);
    let query = Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY };
    MessageBuf::request(&envelope, &header, &Request::Resolution(query)).unsigned().unwrap()
}

/// Starts a server of one worker with one record; returns it with the directory of its set.
fn serve(datapath: Datapath) -> (Server, tempfile::TempDir) {
    serve_with(datapath, |_| {})
}

fn serve_with(datapath: Datapath, change: impl FnOnce(&mut Config)) -> (Server, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let mut publisher = SetPublisher::open(directory.path()).unwrap();
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        builder.add(0, b"10.1/a", [Value::new(1, b"URL", b"https://a.example/")])?;
        let private = Value { permissions: Permissions::ADMIN_READ, ..Value::new(1, b"NOTE", b"private") };
        builder.add(1, b"10.1/private", [private])?;
        builder.add(2, BUG_ON_THE_SLOW_PATH.as_bytes(), [private])?;
        let long = [b'x'; 50_000];
        builder.add(3, LONG.as_bytes(), [1, 2, 3].map(|index| Value::new(index, b"TEXT", &long)))?;
        builder.finish(file)
    });
    published.unwrap();
    let mut config = Config {
        snapshot: directory.path().to_owned(),
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 1,
        pin: false,
        datapath,
        ..Config::default()
    };
    change(&mut config);
    (Server::start(&config).unwrap(), directory)
}

/// Sends requests behind a stall, so that they form one batch. Returns the number of answers to
/// each.
fn ask(server: &Server, handles: &[&str]) -> BTreeMap<i32, u32> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server.addresses()[0]).unwrap();
    socket.send(&request(STALL, -2)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    for (at, handle) in handles.iter().enumerate() {
        socket.send(&request(handle, i32::try_from(at).unwrap())).unwrap();
    }
    let is_good = |handle: &&&str| ![BUG_IN_READING, BUG_IN_ANSWERING].contains(*handle);
    let (mut left, mut buffer, mut answers) =
        (handles.iter().filter(is_good).count() + 1, [0; 600], BTreeMap::new());
    loop {
        // Logging a panic may take a second. After the last expected answer, any further one is an
        // error.
        let timeout = Duration::from_millis(if left > 0 { 20_000 } else { 100 });
        socket.set_read_timeout(Some(timeout)).unwrap();
        let Ok(len) = socket.recv(&mut buffer) else { break };
        left = left.saturating_sub(1);
        let (envelope, _) = Envelope::split(&buffer[..len]).unwrap();
        *answers.entry(envelope.request_id).or_default() += 1;
    }
    assert_eq!(answers.remove(&-2), Some(1), "the stall is over");
    answers
}

#[test]
fn no_sign_of_life_is_given_while_a_worker_does_not_turn() {
    let (server, _directory) = serve(Datapath::Portable);
    let shared = server.shared();
    let timeout = Duration::from_millis(200);
    let mut watchdog = Watchdog::new(shared, timeout, Instant::now());
    assert!(!watchdog.is_due(shared, Instant::now()), "not so soon");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut signs = |duration: Duration| {
        let (since, mut signs) = (Instant::now(), Vec::new());
        while since.elapsed() < duration {
            signs.extend(watchdog.is_due(shared, Instant::now()).then(|| since.elapsed()));
            std::thread::sleep(Duration::from_millis(5));
        }
        signs
    };
    assert!(signs(timeout).len() >= 2, "while it turns");
    let stall = |id| _ = socket.send_to(&request(STALL, id), server.addresses()[0]).unwrap();
    stall(0);
    std::thread::sleep(Duration::from_millis(50));
    // These queue behind it and form a batch of 600 ms.
    (1..4).for_each(stall);
    signs(Duration::from_millis(300));
    let stalled = signs(Duration::from_millis(300));
    assert!(stalled.is_empty(), "{stalled:?}");
    std::thread::sleep(Duration::from_millis(500));
    assert!(signs(timeout).len() >= 2, "and again once it does");
    server.stop().unwrap();
}

/// An answer without capacity in the outbox is retried; the rate limit is applied when there is
/// capacity.
#[test]
fn an_answer_that_waits_for_capacity_counts_once_with_the_rate_limiter() {
    for datapath in [Datapath::Portable, Datapath::Auto] {
        let (server, _directory) = serve_with(datapath, |config| {
            (config.limits.outbox_datagrams, config.limits.outbox_bytes) = (FRAGMENTS_MAX, ANSWER_LEN_MAX);
            config.limits.answer_datagrams = FRAGMENTS_MAX;
            config.rate_limit.enabled = true;
            config.rate_limit.exempt = vec!["127.0.0.0/8".parse().unwrap()];
        });
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server.addresses()[0]).unwrap();
        socket.send(&request(STALL, 0)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        (1..4).for_each(|id| _ = socket.send(&request(LONG, id)).unwrap());
        let counters = server.shared().shards.shard(0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while counters.requests_answered.get() < 4 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((counters.requests_answered.get(), counters.rate_limit_exempt.get()), (4, 4));
        assert!(counters.batches.get() <= 2, "the long ones came together");
        server.stop().unwrap();
    }
}

fn loses_what_meets_a_bug_alone(datapath: Datapath) {
    for bug in [BUG_IN_READING, BUG_IN_ANSWERING] {
        let (server, _directory) = serve(datapath);
        let mut handles = ["10.1/a"; 50];
        // Two panics in one batch, on both sides of the end of the first stage.
        (handles[7], handles[40]) = (bug, bug);
        let answers = ask(&server, &handles);
        for (at, handle) in handles.iter().enumerate() {
            let expected = if *handle == bug { None } else { Some(&1) };
            assert_eq!(answers.get(&i32::try_from(at).unwrap()), expected, "{bug}: request {at}");
        }
        assert!(!server.shared().is_degraded(), "the worker goes on");
        assert_eq!(ask(&server, &["10.1/a"]), BTreeMap::from([(0, 1)]), "and answers as before");
        let shards = server.shared().shards.clone();
        server.stop().unwrap();
        let counters = shards.shard(0);
        assert_eq!(counters.dropped_bug.get(), 2, "{bug}: each is counted");
        assert_eq!(counters.datagrams_received.get(), 50 + 3);
        assert_eq!(counters.requests_answered.get(), 48 + 3, "{bug}: and no other is lost");
        assert_eq!(counters.datagrams_sent.get(), 48 + 3, "{bug}: or answered twice");
        assert!(counters.batches.get() <= 6, "they came together");
    }
}

#[test]
fn a_bug_loses_one_datagram_on_the_portable_datapath() {
    loses_what_meets_a_bug_alone(Datapath::Portable);
}

#[test]
fn a_bug_loses_one_datagram_on_the_datapath_of_this_machine() {
    loses_what_meets_a_bug_alone(Datapath::Auto);
}

#[test]
fn a_bug_on_the_slow_path_loses_one_request() {
    let (server, _directory) = serve(Datapath::Portable);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server.addresses()[0]).unwrap();
    let flags = OpFlags::PLAIN_REQUEST.without(OpFlags::PUBLIC_ONLY);
    for (at, handle) in (0..).zip(["10.1/private", BUG_ON_THE_SLOW_PATH, "10.1/private"]) {
        socket.send(&request_with(flags, handle, at)).unwrap();
    }
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let (mut buffer, mut answers) = ([0; 600], vec![]);
    while let Ok(len) = socket.recv(&mut buffer) {
        let (envelope, rest) = Envelope::split(&buffer[..len]).unwrap();
        let header = Message::decode(rest).unwrap().header;
        assert_eq!(header.response_code, ResponseCode::AUTHENTICATION_NEEDED);
        answers.push(envelope.request_id);
    }
    answers.sort_unstable();
    assert_eq!(answers, [0, 2]);
    let shared = std::sync::Arc::clone(server.shared());
    server.stop().unwrap();
    let counters = shared.shards.shard(0);
    assert_eq!((counters.requests_deferred.get(), counters.requests_under_way.get()), (3, 0));
    assert_eq!((counters.requests_answered.get(), counters.dropped_bug.get()), (2, 1));
    assert_eq!(shared.slow.as_ref().unwrap().to_json()["bugs"], 1);
}

/// Sends trains of requests of equal length, some of which cause a panic.
fn loses_one_of_a_train(datapath: Datapath) {
    for bug in [BUG_IN_READING, BUG_IN_ANSWERING] {
        let (server, _directory) = serve(datapath);
        let good = format!("10.1/{}", "x".repeat(bug.len() - 5));
        let options = handle_net::SocketOptions::new(([127, 0, 0, 1], 0).into());
        let mut client = handle_net::open(handle_net::DatapathChoice::Portable, &options).unwrap().path;
        let train: Vec<u8> =
            (0..30).flat_map(|at| request(if at % 10 == 3 { bug } else { &good }, at)).collect();
        let (peer, len) = (handle_net::Peer::to(server.addresses()[0]), train.len());
        let write = |buffer: &mut [u8]| {
            buffer[..len].copy_from_slice(&train);
            len
        };
        client.outbox().push_train(peer, len / 30, len, write).unwrap();
        client.flush().unwrap();
        let mut answers = Vec::new();
        let timeout = |answers: &[i32]| Duration::from_millis(if answers.len() < 27 { 20_000 } else { 100 });
        while let Ok(batch) = client.wait(timeout(&answers))
            && !batch.inbox.is_empty()
        {
            let datagrams = batch.inbox.iter().flat_map(|datagram| datagram.segments());
            answers.extend(datagrams.map(|datagram| Envelope::split(datagram).unwrap().0.request_id));
        }
        answers.sort_unstable();
        assert_eq!(answers, (0..30).filter(|at| at % 10 != 3).collect::<Vec<_>>(), "{bug}");
        let shards = server.shared().shards.clone();
        server.stop().unwrap();
        assert_eq!(shards.shard(0).dropped_bug.get(), 3, "{bug}: each is counted");
        assert_eq!(shards.shard(0).datagrams_received.get(), 30);
    }
}

#[test]
fn a_bug_loses_one_of_a_train_on_the_portable_datapath() {
    loses_one_of_a_train(Datapath::Portable);
}

#[test]
fn a_bug_loses_one_of_a_train_on_the_datapath_of_this_machine() {
    loses_one_of_a_train(Datapath::Auto);
}

/// Sends pipelined requests over one connection, one of which causes a panic.
#[test]
fn a_bug_loses_one_message_of_a_connection() {
    for datapath in [Datapath::Portable, Datapath::Auto] {
        for bug in [BUG_IN_READING, BUG_IN_ANSWERING] {
            let (server, _directory) = serve(datapath);
            let mut stream = TcpStream::connect(server.addresses()[0]).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::KEEP_CONNECTION);
            let requests =
                (0..40).flat_map(|at| request_with(flags, if at == 7 { bug } else { "10.1/a" }, at));
            stream.write_all(&requests.collect::<Vec<u8>>()).unwrap();
            // The last request does not ask to keep the connection open.
            stream.write_all(&request("10.1/a", 40)).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            let (mut answers, mut rest) = (Vec::new(), bytes.as_slice());
            while let Ok((envelope, behind)) = Envelope::split(rest) {
                answers.push(envelope.request_id);
                rest = &behind[envelope.message_len as usize..];
            }
            answers.sort_unstable();
            assert_eq!(answers, (0..=40).filter(|&at| at != 7).collect::<Vec<_>>(), "{bug}");
            let shards = server.shared().shards.clone();
            server.stop().unwrap();
            assert_eq!(shards.shard(0).tcp_dropped_bug.get(), 1, "{bug}: it is counted");
            assert_eq!(shards.shard(0).tcp_requests_answered.get(), 40);
        }
    }
}
