//! Tests of the contract of datapaths. Every test runs on both datapaths, if the kernel supports
//! both.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

#[macro_use]
mod common;

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::{LOOPBACK, LOOPBACK_V6, SOON, copy, path, receive};
use handle_net::{
    Datapath, DatapathChoice, DatapathKind, OutboxFull, Peer, SocketOptions, bind, leave_port, open, open_on,
    pin_to_core,
};

on_both_paths!(
    reports_its_kind,
    echoes_over_ipv4,
    echoes_over_ipv6,
    wildcard_answers_from_the_address_asked,
    dual_stack_answers_from_the_ipv4_address_asked,
    takes_more_than_a_batch,
    takes_more_than_there_are_buffers,
    sends_more_than_a_system_call_takes,
    empty_datagrams_are_datagrams,
    large_datagrams_are_truncated_and_marked,
    a_full_outbox_refuses,
    trains_arrive_as_datagrams,
    refused_datagrams_are_counted_and_harm_no_other,
    a_closed_peer_does_not_disturb_the_path,
    an_empty_flush_sends_nothing,
    timeouts_have_bounds,
    a_waker_ends_a_wait,
    received_bytes_stay_until_the_next_wait,
    reuse_port_shares,
    a_dropped_path_leaves_its_port_at_once,
    two_paths_on_one_socket_hand_over_without_loss,
    leaving_the_port_keeps_queued_datagrams,
    kernel_drops_are_counted,
    drops_in_the_middle_of_traffic,
);

fn client(to: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind(if to.is_ipv4() { LOOPBACK } else { LOOPBACK_V6 }).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.connect(to).unwrap();
    client
}

/// Echoes `count` datagrams.
fn echo(path: &mut dyn Datapath, count: usize) {
    let end = Instant::now() + SOON;
    let mut answered = 0;
    while answered < count {
        assert!(Instant::now() < end, "answered {answered} of {count}");
        let batch = path.wait(Duration::from_millis(100)).unwrap();
        for datagram in batch.inbox.iter() {
            answered += 1;
            let len = datagram.bytes.len();
            batch.outbox.push(datagram.peer, len, |buffer| copy(buffer, datagram.bytes)).unwrap();
        }
        let len = batch.outbox.len();
        let flushed = path.flush().unwrap();
        assert_eq!(flushed.sent as usize, len, "{flushed:?}");
    }
}

fn reports_its_kind(choice: DatapathChoice) {
    let opened = open(choice, &SocketOptions::new(LOOPBACK)).unwrap();
    let kind = opened.path.kind();
    assert_eq!(
        kind,
        if choice == DatapathChoice::Uring { DatapathKind::Uring } else { DatapathKind::Portable }
    );
    assert!(opened.reason.starts_with(&kind.to_string()), "{}", opened.reason);
    let address = opened.path.local_addr().unwrap();
    assert_eq!(address.ip(), LOOPBACK.ip());
    assert_ne!(address.port(), 0);
}

fn echoes(choice: DatapathChoice, address: SocketAddr) {
    let mut path = path(choice, &SocketOptions::new(address));
    let client = client(path.local_addr().unwrap());
    for question in [&b"one"[..], b"two", b"three"] {
        client.send(question).unwrap();
        let batch = path.wait(SOON).unwrap();
        let datagram = batch.inbox.get(0);
        assert_eq!((datagram.bytes, datagram.truncated), (question, false));
        assert_eq!(datagram.peer.remote(), client.local_addr().unwrap());
        assert_eq!(datagram.peer.local(), None, "bound to one address");
        batch.outbox.push(datagram.peer, 99, |buffer| copy(buffer, question)).unwrap();
        let flushed = path.flush().unwrap();
        assert_eq!((flushed.sent, flushed.failed, flushed.would_block), (1, 0, 0));
        assert!(path.outbox().is_empty());
        let mut answer = [0; 99];
        let len = client.recv(&mut answer).unwrap();
        assert_eq!(&answer[..len], question);
    }
}

fn echoes_over_ipv4(choice: DatapathChoice) {
    echoes(choice, LOOPBACK);
}

fn echoes_over_ipv6(choice: DatapathChoice) {
    echoes(choice, LOOPBACK_V6);
}

/// Sends requests to two addresses of `path`. A connected socket receives only from the address
/// that it sent to.
fn answers_from(path: &mut dyn Datapath, addresses: &[SocketAddr]) {
    for &address in addresses {
        let client = client(address);
        client.send(b"?").unwrap();
        receive(path, 1, |datagram| {
            assert_eq!(datagram.peer.local(), Some(address.ip()));
            assert_eq!(datagram.peer.remote(), client.local_addr().unwrap());
        });
        client.send(b"?").unwrap();
        echo(path, 1);
        assert_eq!(client.recv(&mut [0; 9]).unwrap(), 1, "{address}");
    }
}

fn wildcard_answers_from_the_address_asked(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions::new((Ipv4Addr::UNSPECIFIED, 0).into()));
    let port = path.local_addr().unwrap().port();
    answers_from(&mut *path, &[([127, 0, 0, 2], port).into(), ([127, 0, 0, 1], port).into()]);
}

fn dual_stack_answers_from_the_ipv4_address_asked(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions::new((Ipv6Addr::UNSPECIFIED, 0).into()));
    let port = path.local_addr().unwrap().port();
    answers_from(&mut *path, &[([127, 0, 0, 2], port).into(), (Ipv6Addr::LOCALHOST, port).into()]);
}

fn takes_more_than_a_batch(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions { batch_len: 8, ..SocketOptions::new(LOOPBACK) });
    let client = client(path.local_addr().unwrap());
    for i in 0..100u8 {
        client.send(&[i]).unwrap();
    }
    let mut received = Vec::new();
    while received.len() < 100 {
        let batch = path.wait(SOON).unwrap();
        assert!((1..=8).contains(&batch.inbox.len()), "{}", batch.inbox.len());
        received.extend(batch.inbox.iter().map(|datagram| datagram.bytes[0]));
    }
    assert_eq!(received, (0..100).collect::<Vec<_>>(), "in order, none twice");
}

/// Only for the portable path: it receives as many trains as a batch may have, but fewer single
/// datagrams.
#[test]
fn a_portable_batch_has_more_trains_than_single_datagrams() {
    const SINGLES: usize = 64;
    let options = SocketOptions { batch_len: 256, ..SocketOptions::new(LOOPBACK) };
    let mut path = path(DatapathChoice::Portable, &options);
    let mut from = self::path(DatapathChoice::Portable, &SocketOptions::new(LOOPBACK));
    let peer = Peer::to(path.local_addr().unwrap());
    let mut first_batch_of = |count: u8, train_len: usize| {
        for i in 0..count {
            from.outbox()
                .push_train(peer, 4, train_len, |buffer| {
                    buffer.fill(i);
                    buffer.len()
                })
                .unwrap();
            from.flush().unwrap();
        }
        let (mut lens, mut seen) = (vec![], vec![]);
        while seen.len() < usize::from(count) {
            let batch = path.wait(SOON).unwrap();
            lens.push(batch.inbox.len());
            seen.extend(batch.inbox.iter().map(|datagram| datagram.bytes[0]));
        }
        assert_eq!(seen, (0..count).collect::<Vec<_>>(), "in order, none twice");
        lens[0]
    };
    assert_eq!(first_batch_of(200, 4), SINGLES);
    let trains = first_batch_of(200, 8);
    assert!(trains == 200 || !from.trains().sent, "{trains}");
}

fn takes_more_than_there_are_buffers(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions { batch_len: 1, ..SocketOptions::new(LOOPBACK) });
    let client = client(path.local_addr().unwrap());
    for round in 0..5 {
        for _ in 0..200 {
            client.send(&[round]).unwrap();
        }
        receive(&mut *path, 200, |datagram| assert_eq!(datagram.bytes, [round]));
    }
    assert!(path.wait(Duration::ZERO).unwrap().inbox.is_empty());
}

fn sends_more_than_a_system_call_takes(choice: DatapathChoice) {
    let options = SocketOptions { outbox_datagrams: 2000, ..SocketOptions::new(LOOPBACK).one_at_a_time() };
    let (mut from, mut to) = (path(choice, &options), path(choice, &options));
    let peer = Peer::to(to.local_addr().unwrap());
    for i in 0..2000u32 {
        from.outbox().push(peer, 4, |buffer| copy(buffer, &i.to_be_bytes())).unwrap();
    }
    assert_eq!(from.flush().unwrap().sent, 2000);
    let mut next = 0u32;
    receive(&mut *to, 2000, |datagram| {
        assert_eq!(datagram.bytes, next.to_be_bytes());
        next += 1;
    });
}

fn empty_datagrams_are_datagrams(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions::new(LOOPBACK));
    let client = client(path.local_addr().unwrap());
    for bytes in [&b""[..], b"", b"full", b""] {
        client.send(bytes).unwrap();
    }
    let mut lens = Vec::new();
    receive(&mut *path, 4, |datagram| lens.extend(datagram.segments().map(<[u8]>::len)));
    assert_eq!(lens, [0, 0, 4, 0]);
    client.send(b"").unwrap();
    echo(&mut *path, 1);
    assert_eq!(client.recv(&mut [0; 9]).unwrap(), 0);
}

fn large_datagrams_are_truncated_and_marked(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions { receive_len: 100, ..SocketOptions::new(LOOPBACK) });
    let client = client(path.local_addr().unwrap());
    for len in [99, 100, 101, 5000, 10] {
        client.send(&vec![7; len]).unwrap();
        receive(&mut *path, 1, |datagram| {
            assert_eq!(datagram.bytes, vec![7; len.min(100)]);
            assert_eq!(datagram.truncated, len > 100, "{len}");
        });
    }
}

fn a_full_outbox_refuses(choice: DatapathChoice) {
    let options = SocketOptions { outbox_datagrams: 3, outbox_len: 100, ..SocketOptions::new(LOOPBACK) };
    let mut path = path(choice, &options);
    let client = client(path.local_addr().unwrap());
    let peer = Peer::to(client.local_addr().unwrap());
    for _ in 0..3 {
        let outbox = path.outbox();
        assert_eq!(outbox.push(peer, 101, |_| unreachable!()), Err(OutboxFull));
        outbox.push_train(peer, 10, 20, |buffer| buffer.len()).unwrap();
        outbox.push(peer, 10, |buffer| buffer.len()).unwrap();
        assert_eq!(outbox.push(peer, 0, |_| unreachable!()), Err(OutboxFull));
        assert_eq!(outbox.len(), 3);
        assert_eq!(path.flush().unwrap().sent, 3, "a flush makes room");
    }
}

fn trains_arrive_as_datagrams(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions::new(LOOPBACK));
    let client = client(path.local_addr().unwrap());
    let peer = Peer::to(client.local_addr().unwrap());
    path.outbox().push_train(peer, 4, 99, |buffer| copy(buffer, b"aaaabbbbcc")).unwrap();
    assert_eq!(path.outbox().len(), 3);
    assert_eq!(path.flush().unwrap().sent, 3);
    for segment in [&b"aaaa"[..], b"bbbb", b"cc"] {
        let mut bytes = [0; 99];
        let len = client.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], segment);
    }
}

fn refused_datagrams_are_counted_and_harm_no_other(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions::new(LOOPBACK));
    let client = client(path.local_addr().unwrap());
    let good = Peer::to(client.local_addr().unwrap());
    // Port 0, the wrong family, and more bytes than fit into a datagram. The kernel refuses more
    // than 65,535 at once; a little less it refuses only where the device sends it, or loses it
    // there.
    let bad = [(Peer::to(LOOPBACK), 1), (Peer::to("[::1]:9".parse().unwrap()), 1), (good, 65_536)];
    let outbox = path.outbox();
    for (peer, len) in bad.into_iter().chain([(good, 5)]).chain(bad).chain([(good, 6)]) {
        outbox.push(peer, len, |buffer| buffer.len()).unwrap();
    }
    let flushed = path.flush().unwrap();
    assert_eq!((flushed.sent, flushed.failed, flushed.would_block), (2, 6, 0));
    assert!(flushed.os_error.is_some());
    let mut bytes = [0; 99];
    // They were a train, which begins with the longer datagram.
    assert_eq!((client.recv(&mut bytes).unwrap(), client.recv(&mut bytes).unwrap()), (6, 5));
}

fn a_closed_peer_does_not_disturb_the_path(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions::new(LOOPBACK));
    let closed = UdpSocket::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let client = client(path.local_addr().unwrap());
    for _ in 0..3 {
        path.outbox().push(Peer::to(closed), 1, |buffer| buffer.len()).unwrap();
        path.flush().unwrap();
        client.send(b"?").unwrap();
        echo(&mut *path, 1);
        assert_eq!(client.recv(&mut [0; 9]).unwrap(), 1);
    }
}

fn an_empty_flush_sends_nothing(choice: DatapathChoice) {
    assert_eq!(path(choice, &SocketOptions::new(LOOPBACK)).flush().unwrap(), Default::default());
}

fn timeouts_have_bounds(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions::new(LOOPBACK));
    for timeout_ms in [0, 1, 30] {
        let (start, timeout) = (Instant::now(), Duration::from_millis(timeout_ms));
        assert!(path.wait(timeout).unwrap().inbox.is_empty());
        assert!(start.elapsed() >= timeout, "{timeout_ms} ms: {:?}", start.elapsed());
        assert!(start.elapsed() < timeout + Duration::from_millis(500), "{:?}", start.elapsed());
    }
    // None of the waits keeps the path from receiving later datagrams.
    let client = client(path.local_addr().unwrap());
    client.send(b"?").unwrap();
    let batch = path.wait(Duration::MAX).unwrap();
    assert_eq!(batch.inbox.len(), 1);
}

fn a_waker_ends_a_wait(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions::new(LOOPBACK));
    let client = client(path.local_addr().unwrap());
    let timeout = Duration::from_millis(300);
    for round in 0..3 {
        let waker = path.waker();
        let (start, thread) = (
            Instant::now(),
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                waker.wake();
            }),
        );
        assert!(path.wait(SOON).unwrap().inbox.is_empty());
        assert!(start.elapsed() >= Duration::from_millis(20), "round {round}: {:?}", start.elapsed());
        assert!(start.elapsed() < SOON / 2, "round {round}: {:?}", start.elapsed());
        thread.join().unwrap();
        // A wake before the wait is not lost, not even if there is a flush in between.
        path.waker().wake();
        path.waker().wake();
        path.outbox().push(Peer::to(client.local_addr().unwrap()), 1, |buffer| buffer.len()).unwrap();
        path.flush().unwrap();
        let start = Instant::now();
        assert!(path.wait(SOON).unwrap().inbox.is_empty());
        assert!(start.elapsed() < SOON / 2, "round {round}: {:?}", start.elapsed());
        // The wake ends one wait only.
        path.wait(Duration::ZERO).unwrap();
        let start = Instant::now();
        assert!(path.wait(timeout).unwrap().inbox.is_empty());
        assert!(start.elapsed() >= timeout, "round {round}: {:?}", start.elapsed());
        // A wake keeps no datagram back.
        path.waker().wake();
        client.send(b"?").unwrap();
        receive(&mut *path, 1, |_| {});
        path.wait(Duration::from_millis(1)).unwrap();
    }
    // A waker may outlive its path.
    let waker = path.waker();
    drop(path);
    waker.wake();
}

fn received_bytes_stay_until_the_next_wait(choice: DatapathChoice) {
    let mut path = path(choice, &SocketOptions { batch_len: 4, ..SocketOptions::new(LOOPBACK) });
    let client = client(path.local_addr().unwrap());
    for i in 0..4u8 {
        client.send(&[i; 1000]).unwrap();
    }
    let mut next = 0;
    while next < 4 {
        let batch = path.wait(SOON).unwrap();
        // Datagrams must go to the other socket from now on.
        for _ in 0..50 {
            client.send(&[99; 1000]).unwrap();
        }
        for datagram in batch.inbox.iter().take(usize::from(4 - next)) {
            assert_eq!(datagram.bytes, [next; 1000]);
            next += 1;
        }
    }
}

fn reuse_port_shares(choice: DatapathChoice) {
    let options = SocketOptions { reuse_port: true, ..SocketOptions::new(LOOPBACK) };
    let first = path(choice, &options);
    let address = first.local_addr().unwrap();
    let second = path(choice, &SocketOptions { address, ..options });
    let clients: Vec<_> = (0..64).map(|_| client(address)).collect();
    clients.iter().for_each(|client| assert_eq!(client.send(b"?").unwrap(), 1));
    let mut counts = [0; 2];
    let end = Instant::now() + SOON;
    let mut paths = [first, second];
    while counts[0] + counts[1] < 64 && Instant::now() < end {
        for (path, count) in paths.iter_mut().zip(&mut counts) {
            *count += path.wait(Duration::from_millis(1)).unwrap().inbox.len();
        }
    }
    assert_eq!(counts[0] + counts[1], 64);
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

/// Otherwise datagrams for the other sockets of the port would be lost.
fn a_dropped_path_leaves_its_port_at_once(choice: DatapathChoice) {
    for _ in 0..50 {
        let mut path = path(choice, &SocketOptions::new(LOOPBACK));
        let address = path.local_addr().unwrap();
        echo(&mut *path, 0);
        path.wait(Duration::ZERO).unwrap();
        drop(path);
        bind(&SocketOptions::new(address)).unwrap();
    }
}

fn two_paths_on_one_socket_hand_over_without_loss(choice: DatapathChoice) {
    for other in [choice, DatapathChoice::Portable] {
        let options = SocketOptions::new(LOOPBACK);
        let socket = bind(&options).unwrap();
        let mut old = open_on(socket.try_clone().unwrap(), choice, &options).unwrap().path;
        let mut new = open_on(socket, other, &options).unwrap().path;
        let client = client(old.local_addr().unwrap());
        let (mut seen, mut sent) = (vec![0; 300], 0..300u32);
        let mut take = |path: &mut dyn Datapath| {
            let batch = path.wait(Duration::from_millis(1)).unwrap();
            for datagram in batch.inbox.iter().flat_map(|datagram| datagram.segments()) {
                seen[u32::from_be_bytes(datagram.try_into().unwrap()) as usize] += 1;
            }
            batch.inbox.len()
        };
        let mut send = || client.send(&sent.next().unwrap().to_be_bytes()).unwrap();
        for _ in 0..10 {
            (0..10).for_each(|_| _ = send());
            take(&mut *old);
            take(&mut *new);
        }
        // Some are in the socket and some in the old path, whichever it is.
        (0..100).for_each(|_| _ = send());
        old.stop_receiving().unwrap();
        (0..100).for_each(|_| _ = send());
        while take(&mut *old) > 0 {}
        let waker = old.waker();
        waker.wake();
        let started = Instant::now();
        assert_eq!(old.wait(SOON).unwrap().inbox.len(), 0);
        assert!(started.elapsed() < SOON, "the waker does not work");
        drop(old);
        while take(&mut *new) > 0 {}
        assert_eq!(seen, [1; 300], "each datagram is received once");
    }
}

fn leaving_the_port_keeps_queued_datagrams(choice: DatapathChoice) {
    let any = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 0);
    for (bound, destination) in [
        (LOOPBACK, "127.0.0.1"),
        (LOOPBACK_V6, "::1"),
        (any("0.0.0.0"), "127.0.0.2"),
        (any("::"), "127.0.0.2"),
        (any("::"), "::1"),
    ] {
        let mut options = SocketOptions { reuse_port: true, ..SocketOptions::new(bound) };
        let leaving = bind(&options).unwrap();
        options.address = leaving.local_addr().unwrap();
        let duplicate = leaving.try_clone().unwrap();
        let mut leaving = open_on(leaving, choice, &options).unwrap().path;
        let mut staying = path(choice, &options);
        let to = SocketAddr::new(destination.parse().unwrap(), options.address.port());
        let clients: Vec<_> = (0..32).map(|_| client(to)).collect();
        clients.iter().for_each(|client| assert_eq!(client.send(b"before").unwrap(), 6));
        leave_port(&duplicate).unwrap();
        clients.iter().for_each(|client| assert_eq!(client.send(b"after").unwrap(), 5));
        let mut answered = [0, 0];
        for (path, answered) in [&mut leaving, &mut staying].into_iter().zip(&mut answered) {
            loop {
                let batch = path.wait(Duration::from_millis(20)).unwrap();
                if batch.inbox.is_empty() {
                    break;
                }
                for datagram in batch.inbox.iter() {
                    *answered += usize::from(datagram.bytes == b"after");
                    batch.outbox.push(datagram.peer, 6, |buffer| copy(buffer, datagram.bytes)).unwrap();
                }
                assert_eq!(path.flush().unwrap().failed, 0);
            }
        }
        assert_eq!(answered, [0, 32], "{bound} {destination}: later datagrams go to the other socket");
        for client in clients {
            let mut buffer = [0; 10];
            // In any order, because two sockets answered.
            let lens = [client.recv(&mut buffer).unwrap(), client.recv(&mut buffer).unwrap()];
            assert_eq!(
                lens.iter().sum::<usize>(),
                11,
                "{bound} {destination}: both are answered from the requested address"
            );
        }
    }
}

fn kernel_drops_are_counted(choice: DatapathChoice) {
    let options =
        SocketOptions { batch_len: 1, socket_receive_buffer_len: 1, ..SocketOptions::new(LOOPBACK) };
    let mut path = path(choice, &options);
    assert_eq!(path.kernel_drops(), 0);
    let client = client(path.local_addr().unwrap());
    for _ in 0..500 {
        client.send(&[0; 1000]).unwrap();
    }
    let mut received = 0;
    loop {
        match path.wait(Duration::from_millis(10)).unwrap().inbox.len() {
            0 => break,
            len => received += len as u64,
        }
    }
    assert!(received > 0);
    assert!(path.kernel_drops() > 0);
    assert_eq!(received + path.kernel_drops(), 500);
}

fn drops_in_the_middle_of_traffic(choice: DatapathChoice) {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let socket = bind(&SocketOptions { reuse_port: true, ..SocketOptions::new(LOOPBACK) }).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = UdpSocket::bind(LOOPBACK).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = client.send_to(&[7; 500], address);
            }
        });
        for round in 0..20 {
            let options = SocketOptions { batch_len: 16, ..SocketOptions::default() };
            let mut path = open_on(socket.try_clone().unwrap(), choice, &options).unwrap().path;
            for _ in 0..round % 4 {
                let batch = path.wait(SOON).unwrap();
                for datagram in batch.inbox.iter() {
                    assert_eq!(datagram.bytes, [7; 500]);
                    batch.outbox.push(datagram.peer, 1, |buffer| buffer.len()).unwrap();
                }
                // In every other round, drops the path with its outbox full.
                if round % 2 == 0 {
                    path.flush().unwrap();
                }
            }
            drop(path);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn auto_chooses_a_working_path_and_gives_the_reason() {
    let opened = open(DatapathChoice::Auto, &SocketOptions::new(LOOPBACK)).unwrap();
    let uring = open(DatapathChoice::Uring, &SocketOptions::new(LOOPBACK));
    assert_eq!(opened.path.kind() == DatapathKind::Uring, uring.is_ok(), "{}", opened.reason);
    if let Err(error) = uring {
        assert!(opened.reason.contains(&error.to_string()), "{} / {error}", opened.reason);
    }
}

#[test]
fn a_port_in_use_is_reported_as_such() {
    let socket = bind(&SocketOptions::new(LOOPBACK)).unwrap();
    let error = bind(&SocketOptions::new(socket.local_addr().unwrap())).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    let error = open(DatapathChoice::Auto, &SocketOptions::new("192.0.2.1:0".parse().unwrap())).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrNotAvailable);
}

#[test]
fn a_port_that_the_kernel_chooses_is_nobody_elses_and_can_be_shared() {
    let options = SocketOptions { reuse_port: true, ..SocketOptions::new(LOOPBACK) };
    let sockets: Vec<_> = (0..600).map(|_| bind(&options).unwrap()).collect();
    let ports: HashSet<_> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    assert_eq!(ports.len(), sockets.len());
    let address = sockets[0].local_addr().unwrap();
    assert_eq!(bind(&SocketOptions { address, ..options }).unwrap().local_addr().unwrap(), address);
}

#[test]
fn invalid_sizes_are_refused_by_name() {
    let error =
        open(DatapathChoice::Portable, &SocketOptions { batch_len: 0, ..SocketOptions::new(LOOPBACK) })
            .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("batch_len"), "{error}");
}

#[test]
fn pins_to_cores_that_exist() {
    std::thread::spawn(|| {
        for core in [1023, 1024, usize::MAX] {
            assert_eq!(pin_to_core(core).unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "{core}");
        }
        let some = (0..1024).find(|&core| pin_to_core(core).is_ok());
        assert!(some.is_some());
    })
    .join()
    .unwrap();
}
