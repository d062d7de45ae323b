//! Tests of the contract for connections. Every test runs on both datapaths, if the kernel supports
//! both.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

#[path = "../../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod needs;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use handle_net::{
    ConnectionGone, Datapath, DatapathChoice, SocketOptions, StreamEvent, StreamId, StreamOptions,
    bind_listener, open,
};

const SOON: Duration = Duration::from_secs(10);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Runs each test for each datapath that opens on this system.
macro_rules! on_both_paths {
    ($($promise:ident),* $(,)?) => {
        mod portable {
            $(#[test] fn $promise() { super::$promise(handle_net::DatapathChoice::Portable) })*
        }
        mod uring {
            $(#[test] fn $promise() {
                match handle_net::open(handle_net::DatapathChoice::Uring, &handle_net::SocketOptions::new(super::LOOPBACK)) {
                    Ok(_) => super::$promise(handle_net::DatapathChoice::Uring),
                    Err(_) => assert!(!super::needs::has(super::needs::TestNeed::IoUring, false)),
                }
            })*
        }
    };
}

on_both_paths!(
    echoes_while_datagrams_come,
    bytes_for_a_slow_reader_are_kept_and_delivered,
    a_close_loses_nothing_although_input_is_unread,
    an_end_is_reported_and_the_other_direction_stays_open,
    a_reset_is_reported_once,
    an_abort_ends_at_once,
    connections_beyond_the_limit_are_refused,
    an_unread_connection_waits,
    more_arrives_than_there_are_buffers,
    many_connections_open_and_close,
    a_dropped_path_closes_all_and_leaves_its_port,
    no_connection_is_accepted_after_the_end_of_listening,
    connections_go_on_when_datagrams_do_not,
    a_path_without_connections_refuses_listeners,
    an_id_names_one_connection_only,
);

/// A path with a listener, and the events of its connections.
struct TestEndpoint {
    path: Box<dyn Datapath>,
    address: SocketAddr,
    log: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Opened(StreamId, SocketAddr),
    Refused,
    Received(StreamId, Vec<u8>),
    Ended(StreamId),
    Sent(StreamId),
    Closed(StreamId),
}

impl TestEndpoint {
    fn open(choice: DatapathChoice, options: StreamOptions) -> Self {
        let options = SocketOptions { streams: Some(options), ..SocketOptions::new(LOOPBACK) };
        let mut path = open(choice, &options).unwrap().path;
        let listener = bind_listener(LOOPBACK, true, false, 128).unwrap();
        let address = listener.local_addr().unwrap();
        path.listen(listener).unwrap();
        Self { path, address, log: Vec::new() }
    }

    fn turn(&mut self, timeout: Duration) {
        self.path.wait(timeout).unwrap();
        for event in self.path.streams().unwrap().inbox.iter() {
            let event = match event {
                StreamEvent::Opened { id, peer } => Event::Opened(id, peer),
                StreamEvent::Refused => Event::Refused,
                StreamEvent::Received { id, bytes } => Event::Received(id, bytes.to_vec()),
                StreamEvent::Ended { id } => Event::Ended(id),
                StreamEvent::Sent { id } => Event::Sent(id),
                StreamEvent::Closed { id } => Event::Closed(id),
            };
            self.log.push(event);
        }
    }

    fn until(&mut self, event: &str, mut has_happened: impl FnMut(&[Event]) -> bool) {
        let end = Instant::now() + SOON;
        while !has_happened(&self.log) {
            assert!(Instant::now() < end, "not {event}: {:?}", self.log);
            self.turn(Duration::from_millis(20));
        }
    }

    fn connect(&mut self) -> (TcpStream, StreamId) {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let address = stream.local_addr().unwrap();
        let is_opened = |event: &Event| matches!(event, Event::Opened(_, peer) if *peer == address);
        self.until("opened", |log| log.iter().any(is_opened));
        let Some(Event::Opened(id, _)) = self.log.iter().find(|event| is_opened(event)) else {
            unreachable!()
        };
        (stream, *id)
    }

    fn send(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, ConnectionGone> {
        self.path.streams().unwrap().connections.send(id, bytes)
    }

    fn close(&mut self, id: StreamId) -> bool {
        self.path.streams().unwrap().connections.close(id)
    }

    fn received(&self, of: StreamId) -> Vec<u8> {
        let bytes = self.log.iter().filter_map(|event| match event {
            Event::Received(id, bytes) if *id == of => Some(bytes.as_slice()),
            _ => None,
        });
        bytes.collect::<Vec<_>>().concat()
    }
}

fn endpoint(choice: DatapathChoice) -> TestEndpoint {
    TestEndpoint::open(choice, StreamOptions::default())
}

/// Makes bytes whose pieces show their position.
fn pattern(len: usize) -> Vec<u8> {
    // No buffer length is a multiple of the length of the pattern.
    let piece: Vec<u8> = (0..997u32).map(|i| (i % 251) as u8).collect();
    let mut all = piece.repeat(len / piece.len() + 1);
    all.truncate(len);
    all
}

fn echoes_while_datagrams_come(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    let udp = UdpSocket::bind(LOOPBACK).unwrap();
    udp.connect(endpoint.path.local_addr().unwrap()).unwrap();
    let (mut stream, id) = endpoint.connect();
    for question in [&b"one"[..], b"two", b"three"] {
        // More than two batches of datagrams, so that connections must be polled in between.
        for _ in 0..200 {
            udp.send(b"?").unwrap();
        }
        endpoint.log.clear();
        stream.write_all(question).unwrap();
        endpoint.until("received", |log| !log.is_empty());
        assert_eq!(endpoint.log, [Event::Received(id, question.to_vec())]);
        assert_eq!(endpoint.send(id, question), Ok(0));
        let mut answer = vec![0; question.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, question);
    }
}

fn bytes_for_a_slow_reader_are_kept_and_delivered(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    let (mut stream, id) = endpoint.connect();
    let all = pattern(40 << 20);
    let mut kept = 0;
    for piece in all.chunks(1 << 20) {
        kept = endpoint.send(id, piece).unwrap();
    }
    assert!(kept > 0, "the kernel accepted all 40 MiB");
    let connections = endpoint.path.streams().unwrap().connections;
    assert_eq!((connections.kept_len(id), connections.kept_len_all()), (kept, kept));
    let reader = std::thread::spawn(move || {
        let mut received = vec![0; 40 << 20];
        stream.read_exact(&mut received).unwrap();
        (stream, received)
    });
    endpoint.until("sent", |log| log.contains(&Event::Sent(id)));
    let (mut stream, received) = reader.join().unwrap();
    assert!(received == all, "bytes are lost, repeated or out of order");
    assert_eq!(endpoint.path.streams().unwrap().connections.kept_len_all(), 0);
    // The connection works as before.
    assert_eq!(endpoint.send(id, b"more"), Ok(0));
    stream.read_exact(&mut [0; 4]).unwrap();
    stream.write_all(b"x").unwrap();
    endpoint.until("received", |log| log.contains(&Event::Received(id, b"x".to_vec())));
}

fn a_close_loses_nothing_although_input_is_unread(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    for len in [1000, 20 << 20] {
        let (mut stream, id) = endpoint.connect();
        let all = pattern(len);
        endpoint.send(id, &all).unwrap();
        stream.write_all(&[1; 1000]).unwrap();
        assert!(!endpoint.close(id), "the other side has not ended");
        assert!(!endpoint.close(id), "a second close has no effect");
        assert_eq!(endpoint.send(id, b"too late"), Err(ConnectionGone));
        let reader = std::thread::spawn(move || {
            stream.write_all(&[2; 1000]).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        endpoint.until("closed", |log| log.contains(&Event::Closed(id)));
        assert!(reader.join().unwrap() == all);
        assert_eq!(endpoint.received(id), [], "bytes after the close are discarded");
        assert!(endpoint.path.streams().unwrap().connections.is_empty());
    }
}

fn an_end_is_reported_and_the_other_direction_stays_open(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    let (mut stream, id) = endpoint.connect();
    stream.write_all(b"last words").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    endpoint.until("ended", |log| log.contains(&Event::Ended(id)));
    assert_eq!(endpoint.received(id), b"last words");
    endpoint.turn(Duration::from_millis(20));
    assert_eq!(endpoint.log.iter().filter(|event| **event == Event::Ended(id)).count(), 1);
    endpoint.send(id, b"answer").unwrap();
    assert!(endpoint.close(id), "both have ended");
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"answer");
    assert_eq!(endpoint.send(id, b"x"), Err(ConnectionGone));
}

fn a_reset_is_reported_once(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    for is_read in [true, false] {
        let (stream, id) = endpoint.connect();
        endpoint.path.streams().unwrap().connections.set_reading(id, is_read);
        endpoint.turn(Duration::from_millis(5));
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        if is_read {
            endpoint.until("reset", |log| log.contains(&Event::Closed(id)));
            endpoint.turn(Duration::from_millis(20));
            assert_eq!(endpoint.log.iter().filter(|event| **event == Event::Closed(id)).count(), 1);
        }
        // A connection that is not read is found to be broken at the latest when something is sent.
        let end = Instant::now() + SOON;
        while endpoint.send(id, b"x") != Err(ConnectionGone) {
            assert!(Instant::now() < end);
            endpoint.turn(Duration::from_millis(5));
        }
    }
    endpoint.turn(Duration::from_millis(5));
    assert!(endpoint.path.streams().unwrap().connections.is_empty());
}

fn an_abort_ends_at_once(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    let (mut stream, id) = endpoint.connect();
    endpoint.send(id, &pattern(20 << 20)).unwrap();
    endpoint.path.streams().unwrap().connections.abort(id);
    assert_eq!(endpoint.path.streams().unwrap().connections.kept_len_all(), 0);
    assert_eq!(endpoint.send(id, b"x"), Err(ConnectionGone));
    endpoint.turn(Duration::from_millis(20));
    assert!(endpoint.path.streams().unwrap().connections.is_empty());
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    assert!(received.len() < 20 << 20);
    assert!(!endpoint.log.contains(&Event::Closed(id)), "an abort is not reported to the caller");
}

fn connections_beyond_the_limit_are_refused(choice: DatapathChoice) {
    let mut endpoint =
        TestEndpoint::open(choice, StreamOptions { connections_max: 2, ..StreamOptions::default() });
    let (first, first_id) = endpoint.connect();
    let (_second, _) = endpoint.connect();
    let mut third = TcpStream::connect(endpoint.address).unwrap();
    endpoint.until("refused", |log| log.contains(&Event::Refused));
    third.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(third.read(&mut [0; 9]).unwrap(), 0);
    drop(first);
    endpoint.until("ended", |log| log.contains(&Event::Ended(first_id)));
    assert!(endpoint.close(first_id));
    endpoint.turn(Duration::from_millis(20));
    let (_first, _) = endpoint.connect();
    // Raises the limit.
    endpoint.path.streams().unwrap().connections.set_max(3);
    let (_third, _) = endpoint.connect();
    let refused = |log: &[Event]| log.iter().filter(|event| **event == Event::Refused).count();
    let before = refused(&endpoint.log);
    let _fourth = TcpStream::connect(endpoint.address).unwrap();
    endpoint.until("refused", |log| refused(log) > before);
}

fn an_unread_connection_waits(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    let (mut stream, id) = endpoint.connect();
    let set_reading = |endpoint: &mut TestEndpoint, reading| {
        endpoint.path.streams().unwrap().connections.set_reading(id, reading)
    };
    for round in 0..5 {
        set_reading(&mut endpoint, false);
        endpoint.turn(Duration::from_millis(1));
        endpoint.turn(Duration::from_millis(1));
        endpoint.log.clear();
        stream.write_all(&[round; 100]).unwrap();
        for _ in 0..5 {
            endpoint.turn(Duration::from_millis(5));
        }
        assert_eq!(endpoint.log, [], "round {round}");
        set_reading(&mut endpoint, true);
        // Starts reading again on the way.
        if round % 2 == 1 {
            set_reading(&mut endpoint, false);
            set_reading(&mut endpoint, true);
        }
        endpoint.until("received", |log| !log.is_empty());
        assert_eq!(endpoint.received(id), [round; 100]);
    }
    // The buffer of the kernel is bounded, so the other side of an unread connection cannot send
    // forever.
    set_reading(&mut endpoint, false);
    endpoint.turn(Duration::from_millis(1));
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        endpoint.turn(Duration::ZERO);
        match stream.write(&[0; 1 << 16]) {
            Ok(len) => sent += len,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(sent < 1 << 30, "the sender of an unread connection is not slowed down");
    }
}

fn more_arrives_than_there_are_buffers(choice: DatapathChoice) {
    let options = StreamOptions { receive_len: 1000, receive_buffers: 4, ..StreamOptions::default() };
    let mut endpoint = TestEndpoint::open(choice, options);
    let ids: Vec<_> = (0..8)
        .map(|_| {
            let (mut stream, id) = endpoint.connect();
            stream.write_all(&pattern(50_000)).unwrap();
            (stream, id)
        })
        .collect();
    endpoint.until("received", |log| {
        let lens =
            log.iter().map(|event| if let Event::Received(_, bytes) = event { bytes.len() } else { 0 });
        lens.sum::<usize>() == 8 * 50_000
    });
    for (_, id) in ids {
        assert!(endpoint.received(id) == pattern(50_000));
    }
}

fn many_connections_open_and_close(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    let address = endpoint.address;
    let clients = std::thread::spawn(move || {
        for round in 0..10u8 {
            let streams: Vec<_> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
            for (i, mut stream) in streams.into_iter().enumerate() {
                stream.set_read_timeout(Some(SOON)).unwrap();
                stream.write_all(&[round]).unwrap();
                // Some clients do not wait for the answer.
                if i % 5 != 0 {
                    let mut received = Vec::new();
                    stream.read_to_end(&mut received).unwrap();
                    assert_eq!(received, [round]);
                }
            }
        }
    });
    let end = Instant::now() + SOON;
    let mut closed = 0;
    while closed < 500 {
        assert!(Instant::now() < end, "{closed} of 500");
        endpoint.turn(Duration::from_millis(20));
        for event in std::mem::take(&mut endpoint.log) {
            match event {
                Event::Received(id, bytes) => {
                    closed += usize::from(endpoint.send(id, &bytes).is_err() || endpoint.close(id));
                }
                Event::Closed(_) => closed += 1,
                Event::Ended(id) => assert_ne!(endpoint.close(id), endpoint.send(id, b"").is_ok()),
                _ => {}
            }
        }
    }
    clients.join().unwrap();
    endpoint.turn(Duration::ZERO);
    assert!(endpoint.path.streams().unwrap().connections.is_empty());
}

fn a_dropped_path_closes_all_and_leaves_its_port(choice: DatapathChoice) {
    for _ in 0..10 {
        let mut endpoint = endpoint(choice);
        let (mut stream, id) = endpoint.connect();
        let (mut full, full_id) = endpoint.connect();
        endpoint.send(full_id, &pattern(20 << 20)).unwrap();
        stream.write_all(b"unread").unwrap();
        endpoint.send(id, b"x").unwrap();
        let _waits = TcpStream::connect(endpoint.address).unwrap();
        let address = endpoint.address;
        drop(endpoint);
        let listener = bind_listener(address, false, false, 1);
        assert!(listener.is_ok(), "{listener:?}");
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        let _ = full.read_to_end(&mut received);
    }
}

fn no_connection_is_accepted_after_the_end_of_listening(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    let (mut stream, id) = endpoint.connect();
    endpoint.path.stop_listening();
    endpoint.turn(Duration::from_millis(5));
    assert_eq!(TcpStream::connect(endpoint.address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    stream.write_all(b"x").unwrap();
    endpoint.until("received", |log| log.contains(&Event::Received(id, b"x".to_vec())));
}

fn connections_go_on_when_datagrams_do_not(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    let (mut stream, id) = endpoint.connect();
    endpoint.path.stop_receiving().unwrap();
    for _ in 0..3 {
        stream.write_all(b"x").unwrap();
        endpoint.log.clear();
        endpoint.until("received", |log| log == [Event::Received(id, b"x".to_vec())]);
        let start = Instant::now();
        endpoint.turn(Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(20), "the wait ended early");
    }
    endpoint.connect();
}

fn a_path_without_connections_refuses_listeners(choice: DatapathChoice) {
    let mut path = open(choice, &SocketOptions::new(LOOPBACK)).unwrap().path;
    assert!(path.streams().is_none());
    let error = path.listen(bind_listener(LOOPBACK, false, false, 1).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    path.stop_listening();
    let options = SocketOptions {
        streams: Some(StreamOptions { receive_len: 0, ..StreamOptions::default() }),
        ..SocketOptions::new(LOOPBACK)
    };
    let error = open(choice, &options).unwrap_err().to_string();
    assert!(error.contains("streams.receive_len is 0"), "{error}");
}

fn an_id_names_one_connection_only(choice: DatapathChoice) {
    let mut endpoint = endpoint(choice);
    let mut ids = Vec::new();
    for _ in 0..5 {
        let (stream, id) = endpoint.connect();
        drop(stream);
        endpoint.until("ended", |log| log.contains(&Event::Ended(id)));
        assert!(endpoint.close(id));
        endpoint.turn(Duration::from_millis(5));
        assert!(!ids.contains(&id), "{id:?} again");
        ids.push(id);
    }
    let (mut stream, _) = endpoint.connect();
    for id in ids {
        assert_eq!(endpoint.send(id, b"for another one"), Err(ConnectionGone));
        endpoint.path.streams().unwrap().connections.abort(id);
        endpoint.close(id);
    }
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
