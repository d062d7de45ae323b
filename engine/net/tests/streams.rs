//! Tests of the contract for connections. Every test runs on both datapaths, if the kernel supports
//! both.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

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
                    Err(error) => eprintln!("not tested: {error}"),
                }
            })*
        }
    };
}

on_both_paths!(
    echoes_while_datagrams_come,
    what_a_slow_reader_leaves_is_kept_and_comes_whole,
    a_close_loses_nothing_although_input_is_unread,
    an_end_is_told_and_the_other_way_stays_open,
    a_reset_is_told_once,
    an_abort_ends_at_once,
    who_comes_when_all_places_are_taken_is_turned_away,
    who_is_not_read_waits,
    more_arrives_than_there_are_buffers,
    many_come_and_go,
    a_dropped_path_closes_all_and_leaves_its_port,
    nobody_is_accepted_after_the_end_of_listening,
    connections_go_on_when_datagrams_do_not,
    a_path_without_room_says_so,
    an_id_means_one_connection_only,
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

    fn turn(&mut self, patience: Duration) {
        self.path.wait(patience).unwrap();
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

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&[Event]) -> bool) {
        let end = Instant::now() + SOON;
        while !is_so(&self.log) {
            assert!(Instant::now() < end, "{what}: {:?}", self.log);
            self.turn(Duration::from_millis(20));
        }
    }

    fn connect(&mut self) -> (TcpStream, StreamId) {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let me = stream.local_addr().unwrap();
        let is_me = |event: &Event| matches!(event, Event::Opened(_, peer) if *peer == me);
        self.until("opened", |log| log.iter().any(is_me));
        let Some(Event::Opened(id, _)) = self.log.iter().find(|event| is_me(event)) else { unreachable!() };
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

fn side(choice: DatapathChoice) -> TestEndpoint {
    TestEndpoint::open(choice, StreamOptions::default())
}

/// Bytes of which each piece shows its position.
fn pattern(len: usize) -> Vec<u8> {
    // A length that no buffer is a multiple of.
    let piece: Vec<u8> = (0..997u32).map(|i| (i % 251) as u8).collect();
    let mut all = piece.repeat(len / piece.len() + 1);
    all.truncate(len);
    all
}

fn echoes_while_datagrams_come(choice: DatapathChoice) {
    let mut side = side(choice);
    let udp = UdpSocket::bind(LOOPBACK).unwrap();
    udp.connect(side.path.local_addr().unwrap()).unwrap();
    let (mut stream, id) = side.connect();
    for question in [&b"one"[..], b"two", b"three"] {
        // More than two batches of datagrams, so that connections must be polled in between.
        for _ in 0..200 {
            udp.send(b"?").unwrap();
        }
        side.log.clear();
        stream.write_all(question).unwrap();
        side.until("received", |log| !log.is_empty());
        assert_eq!(side.log, [Event::Received(id, question.to_vec())]);
        assert_eq!(side.send(id, question), Ok(0));
        let mut answer = vec![0; question.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, question);
    }
}

fn what_a_slow_reader_leaves_is_kept_and_comes_whole(choice: DatapathChoice) {
    let mut side = side(choice);
    let (mut stream, id) = side.connect();
    let all = pattern(40 << 20);
    let mut kept = 0;
    for piece in all.chunks(1 << 20) {
        kept = side.send(id, piece).unwrap();
    }
    assert!(kept > 0, "no kernel takes 40 MiB");
    let connections = side.path.streams().unwrap().connections;
    assert_eq!((connections.kept_len(id), connections.kept_len_all()), (kept, kept));
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; 40 << 20];
        stream.read_exact(&mut got).unwrap();
        (stream, got)
    });
    side.until("all is sent", |log| log.contains(&Event::Sent(id)));
    let (mut stream, got) = reader.join().unwrap();
    assert!(got == all, "in order, nothing twice");
    assert_eq!(side.path.streams().unwrap().connections.kept_len_all(), 0);
    // The connection works as before.
    assert_eq!(side.send(id, b"more"), Ok(0));
    stream.read_exact(&mut [0; 4]).unwrap();
    stream.write_all(b"x").unwrap();
    side.until("received", |log| log.contains(&Event::Received(id, b"x".to_vec())));
}

fn a_close_loses_nothing_although_input_is_unread(choice: DatapathChoice) {
    let mut side = side(choice);
    for len in [1000, 20 << 20] {
        let (mut stream, id) = side.connect();
        let all = pattern(len);
        side.send(id, &all).unwrap();
        stream.write_all(&[1; 1000]).unwrap();
        assert!(!side.close(id), "the other side has not ended");
        assert!(!side.close(id), "and again is as once");
        assert_eq!(side.send(id, b"too late"), Err(ConnectionGone));
        let reader = std::thread::spawn(move || {
            stream.write_all(&[2; 1000]).unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            got
        });
        side.until("closed", |log| log.contains(&Event::Closed(id)));
        assert!(reader.join().unwrap() == all);
        assert_eq!(side.received(id), [], "what comes after is nobody's");
        assert!(side.path.streams().unwrap().connections.is_empty());
    }
}

fn an_end_is_told_and_the_other_way_stays_open(choice: DatapathChoice) {
    let mut side = side(choice);
    let (mut stream, id) = side.connect();
    stream.write_all(b"last words").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    side.until("ended", |log| log.contains(&Event::Ended(id)));
    assert_eq!(side.received(id), b"last words");
    side.turn(Duration::from_millis(20));
    assert_eq!(side.log.iter().filter(|event| **event == Event::Ended(id)).count(), 1);
    side.send(id, b"answer").unwrap();
    assert!(side.close(id), "both have ended");
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"answer");
    assert_eq!(side.send(id, b"x"), Err(ConnectionGone));
}

fn a_reset_is_told_once(choice: DatapathChoice) {
    let mut side = side(choice);
    for is_read in [true, false] {
        let (stream, id) = side.connect();
        side.path.streams().unwrap().connections.set_reading(id, is_read);
        side.turn(Duration::from_millis(5));
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        if is_read {
            side.until("reset", |log| log.contains(&Event::Closed(id)));
            side.turn(Duration::from_millis(20));
            assert_eq!(side.log.iter().filter(|event| **event == Event::Closed(id)).count(), 1);
        }
        // A connection that is not read is found to be broken at the latest when something is sent.
        let end = Instant::now() + SOON;
        while side.send(id, b"x") != Err(ConnectionGone) {
            assert!(Instant::now() < end);
            side.turn(Duration::from_millis(5));
        }
    }
    side.turn(Duration::from_millis(5));
    assert!(side.path.streams().unwrap().connections.is_empty());
}

fn an_abort_ends_at_once(choice: DatapathChoice) {
    let mut side = side(choice);
    let (mut stream, id) = side.connect();
    side.send(id, &pattern(20 << 20)).unwrap();
    side.path.streams().unwrap().connections.abort(id);
    assert_eq!(side.path.streams().unwrap().connections.kept_len_all(), 0);
    assert_eq!(side.send(id, b"x"), Err(ConnectionGone));
    side.turn(Duration::from_millis(20));
    assert!(side.path.streams().unwrap().connections.is_empty());
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(got.len() < 20 << 20);
    assert!(!side.log.contains(&Event::Closed(id)), "who did it knows");
}

fn who_comes_when_all_places_are_taken_is_turned_away(choice: DatapathChoice) {
    let mut side =
        TestEndpoint::open(choice, StreamOptions { connections_max: 2, ..StreamOptions::default() });
    let (first, first_id) = side.connect();
    let (_second, _) = side.connect();
    let mut third = TcpStream::connect(side.address).unwrap();
    side.until("refused", |log| log.contains(&Event::Refused));
    third.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(third.read(&mut [0; 9]).unwrap(), 0);
    drop(first);
    side.until("ended", |log| log.contains(&Event::Ended(first_id)));
    assert!(side.close(first_id));
    side.turn(Duration::from_millis(20));
    let (_first, _) = side.connect();
    // Raises the limit.
    side.path.streams().unwrap().connections.set_max(3);
    let (_third, _) = side.connect();
    let refused = |log: &[Event]| log.iter().filter(|event| **event == Event::Refused).count();
    let before = refused(&side.log);
    let _fourth = TcpStream::connect(side.address).unwrap();
    side.until("refused once more", |log| refused(log) > before);
}

fn who_is_not_read_waits(choice: DatapathChoice) {
    let mut side = side(choice);
    let (mut stream, id) = side.connect();
    let set_reading =
        |side: &mut TestEndpoint, reading| side.path.streams().unwrap().connections.set_reading(id, reading);
    for round in 0..5 {
        set_reading(&mut side, false);
        side.turn(Duration::from_millis(1));
        side.turn(Duration::from_millis(1));
        side.log.clear();
        stream.write_all(&[round; 100]).unwrap();
        for _ in 0..5 {
            side.turn(Duration::from_millis(5));
        }
        assert_eq!(side.log, [], "round {round}");
        set_reading(&mut side, true);
        // Starts reading again on the way.
        if round % 2 == 1 {
            set_reading(&mut side, false);
            set_reading(&mut side, true);
        }
        side.until("received", |log| !log.is_empty());
        assert_eq!(side.received(id), [round; 100]);
    }
    // The room of the kernel is bounded, so the other side of an unread connection cannot send for
    // ever.
    set_reading(&mut side, false);
    side.turn(Duration::from_millis(1));
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        side.turn(Duration::ZERO);
        match stream.write(&[0; 1 << 16]) {
            Ok(len) => sent += len,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(sent < 1 << 30, "nothing holds it back");
    }
}

fn more_arrives_than_there_are_buffers(choice: DatapathChoice) {
    let options = StreamOptions { receive_len: 1000, receive_buffers: 4, ..StreamOptions::default() };
    let mut side = TestEndpoint::open(choice, options);
    let ids: Vec<_> = (0..8)
        .map(|_| {
            let (mut stream, id) = side.connect();
            stream.write_all(&pattern(50_000)).unwrap();
            (stream, id)
        })
        .collect();
    side.until("all", |log| {
        let lens =
            log.iter().map(|event| if let Event::Received(_, bytes) = event { bytes.len() } else { 0 });
        lens.sum::<usize>() == 8 * 50_000
    });
    for (_, id) in ids {
        assert!(side.received(id) == pattern(50_000));
    }
}

fn many_come_and_go(choice: DatapathChoice) {
    let mut side = side(choice);
    let address = side.address;
    let clients = std::thread::spawn(move || {
        for round in 0..10u8 {
            let streams: Vec<_> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
            for (i, mut stream) in streams.into_iter().enumerate() {
                stream.set_read_timeout(Some(SOON)).unwrap();
                stream.write_all(&[round]).unwrap();
                // Some clients do not wait for the answer.
                if i % 5 != 0 {
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).unwrap();
                    assert_eq!(got, [round]);
                }
            }
        }
    });
    let end = Instant::now() + SOON;
    let mut closed = 0;
    while closed < 500 {
        assert!(Instant::now() < end, "{closed} of 500");
        side.turn(Duration::from_millis(20));
        for event in std::mem::take(&mut side.log) {
            match event {
                Event::Received(id, bytes) => {
                    closed += usize::from(side.send(id, &bytes).is_err() || side.close(id));
                }
                Event::Closed(_) => closed += 1,
                Event::Ended(id) => assert_ne!(side.close(id), side.send(id, b"").is_ok()),
                _ => {}
            }
        }
    }
    clients.join().unwrap();
    side.turn(Duration::ZERO);
    assert!(side.path.streams().unwrap().connections.is_empty());
}

fn a_dropped_path_closes_all_and_leaves_its_port(choice: DatapathChoice) {
    for _ in 0..10 {
        let mut side = side(choice);
        let (mut stream, id) = side.connect();
        let (mut full, full_id) = side.connect();
        side.send(full_id, &pattern(20 << 20)).unwrap();
        stream.write_all(b"unread").unwrap();
        side.send(id, b"x").unwrap();
        let _waits = TcpStream::connect(side.address).unwrap();
        let address = side.address;
        drop(side);
        let listener = bind_listener(address, false, false, 1);
        assert!(listener.is_ok(), "{listener:?}");
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        let _ = full.read_to_end(&mut got);
    }
}

fn nobody_is_accepted_after_the_end_of_listening(choice: DatapathChoice) {
    let mut side = side(choice);
    let (mut stream, id) = side.connect();
    side.path.stop_listening();
    side.turn(Duration::from_millis(5));
    assert_eq!(TcpStream::connect(side.address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    stream.write_all(b"x").unwrap();
    side.until("who is there stays", |log| log.contains(&Event::Received(id, b"x".to_vec())));
}

fn connections_go_on_when_datagrams_do_not(choice: DatapathChoice) {
    let mut side = side(choice);
    let (mut stream, id) = side.connect();
    side.path.stop_receiving().unwrap();
    for _ in 0..3 {
        stream.write_all(b"x").unwrap();
        side.log.clear();
        side.until("received", |log| log == [Event::Received(id, b"x".to_vec())]);
        let start = Instant::now();
        side.turn(Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(20), "it waits");
    }
    side.connect();
}

fn a_path_without_room_says_so(choice: DatapathChoice) {
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

fn an_id_means_one_connection_only(choice: DatapathChoice) {
    let mut side = side(choice);
    let mut ids = Vec::new();
    for _ in 0..5 {
        let (stream, id) = side.connect();
        drop(stream);
        side.until("ended", |log| log.contains(&Event::Ended(id)));
        assert!(side.close(id));
        side.turn(Duration::from_millis(5));
        assert!(!ids.contains(&id), "{id:?} again");
        ids.push(id);
    }
    let (mut stream, _) = side.connect();
    for id in ids {
        assert_eq!(side.send(id, b"for somebody else"), Err(ConnectionGone));
        side.path.streams().unwrap().connections.abort(id);
        side.close(id);
    }
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
