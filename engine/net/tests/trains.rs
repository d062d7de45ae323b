//! Tests of the contract for trains of datagrams. Every test runs on both datapaths, if the kernel
//! supports both.

#![expect(clippy::unwrap_used, reason = "these are tests, also where they share a helper")]

#[macro_use]
mod common;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use common::{LOOPBACK, LOOPBACK_V6, SOON, TestNeed, copy, has, path, receive};
use handle_net::{Datapath, DatapathChoice, Peer, SocketOptions};

on_both_paths!(
    trains_are_received_whole,
    trains_go_both_ways_over_ipv4,
    trains_go_both_ways_over_ipv6,
    trains_are_answered_from_the_address_asked,
    answers_leave_in_as_few_trains_as_their_lengths_allow,
    trains_end_at_the_limits_of_the_kernel,
    trains_are_used_only_if_enabled,
    a_train_that_is_too_long_is_truncated_and_marked,
    batches_are_bounded_in_segments,
);

type TwoPaths = (Box<dyn Datapath>, Box<dyn Datapath>, Peer);

/// Two paths that support trains, and the second as a peer of the first. `None` if the kernel lacks
/// support.
fn two_paths(choice: DatapathChoice, options: &SocketOptions) -> Option<TwoPaths> {
    let (from, to) = (path(choice, options), path(choice, options));
    let peer = Peer::to(to.local_addr().unwrap());
    let knows = from.trains().sent && to.trains().received;
    has(TestNeed::Trains, knows).then_some((from, to, peer))
}

/// Receives `count` datagrams; returns the lengths of the segments of each train or single
/// datagram.
fn receive_lens(path: &mut dyn Datapath, count: usize) -> Vec<Vec<usize>> {
    let mut lens = Vec::new();
    receive(path, count, |datagram| {
        assert!(!datagram.truncated);
        assert_eq!(datagram.segments_count(), datagram.segments().count());
        lens.push(datagram.segments().map(<[u8]>::len).collect());
    });
    lens
}

fn trains_are_received_whole(choice: DatapathChoice) {
    let Some((mut from, mut to, peer)) = two_paths(choice, &SocketOptions::new(LOOPBACK)) else { return };
    let sender = from.local_addr().unwrap();
    from.outbox().push_train(peer, 4, 99, |buffer| copy(buffer, b"aaaabbbbcc")).unwrap();
    from.outbox().push(peer, 99, |buffer| copy(buffer, b"dddddd")).unwrap();
    let flushed = from.flush().unwrap();
    assert_eq!((flushed.sent, flushed.trains), (4, 1));
    let mut received: Vec<Vec<Vec<u8>>> = Vec::new();
    receive(&mut *to, 4, |datagram| {
        assert_eq!(datagram.peer.remote(), sender);
        received.push(datagram.segments().map(<[u8]>::to_vec).collect());
    });
    // The single datagram of its length could not end a train of shorter ones.
    assert_eq!(received, [vec![&b"aaaa"[..], b"bbbb", b"cc"], vec![&b"dddddd"[..]]]);
}

/// Clients that send trains, and an echo that answers in trains.
fn trains_go_both_ways(choice: DatapathChoice, address: SocketAddr) {
    let options = SocketOptions::new(address);
    let mut server = path(choice, &options);
    let peer = Peer::to(server.local_addr().unwrap());
    let mut clients: Vec<_> = (0..4).map(|_| path(choice, &options)).collect();
    if !has(TestNeed::Trains, server.trains().received) {
        return;
    }
    let lens = |n: usize| (0..50).map(move |i| 10 + (i * (n + 1)) % 7 * 100);
    for (n, client) in clients.iter_mut().enumerate() {
        for (i, len) in lens(n).enumerate() {
            let fill = |buffer: &mut [u8]| {
                buffer.fill(u8::try_from(n * 50 + i).unwrap());
                len
            };
            client.outbox().push(peer, len, fill).unwrap();
        }
        let flushed = client.flush().unwrap();
        assert_eq!((flushed.sent, flushed.trains), (50, 7));
    }
    let (mut answered, mut trains_in, mut trains_out) = (0, 0, 0);
    while answered < 200 {
        let batch = server.wait(SOON).unwrap();
        assert!(!batch.inbox.is_empty(), "answered {answered}");
        for datagram in batch.inbox.iter() {
            trains_in += 1;
            answered += datagram.segments_count();
            for bytes in datagram.segments() {
                batch.outbox.push(datagram.peer, bytes.len(), |buffer| copy(buffer, bytes)).unwrap();
            }
        }
        let len = batch.outbox.len();
        let flushed = server.flush().unwrap();
        assert_eq!(flushed.sent as usize, len, "{flushed:?}");
        trains_out += flushed.trains;
    }
    assert_eq!((trains_in, answered), (28, 200));
    assert!((28..=200).contains(&trains_out), "{trains_out}");
    for (n, client) in clients.iter_mut().enumerate() {
        let mut answers = Vec::new();
        receive(&mut **client, 50, |datagram| {
            answers.extend(datagram.segments().map(|bytes| (bytes[0], bytes.to_vec())));
        });
        answers.sort();
        for ((i, len), (fill, bytes)) in lens(n).enumerate().zip(answers) {
            assert_eq!(usize::from(fill), n * 50 + i);
            assert_eq!(bytes, vec![fill; len]);
        }
    }
}

fn trains_go_both_ways_over_ipv4(choice: DatapathChoice) {
    trains_go_both_ways(choice, LOOPBACK);
}

fn trains_go_both_ways_over_ipv6(choice: DatapathChoice) {
    trains_go_both_ways(choice, LOOPBACK_V6);
}

fn trains_are_answered_from_the_address_asked(choice: DatapathChoice) {
    for wildcard in [SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), (Ipv6Addr::UNSPECIFIED, 0).into()] {
        let mut server = path(choice, &SocketOptions::new(wildcard));
        let destination: SocketAddr = ([127, 0, 0, 3], server.local_addr().unwrap().port()).into();
        let mut client = path(choice, &SocketOptions::new(LOOPBACK));
        for _ in 0..10 {
            client.outbox().push(Peer::to(destination), 7, |buffer| buffer.len()).unwrap();
        }
        assert_eq!(client.flush().unwrap().sent, 10);
        let mut answered = 0;
        while answered < 10 {
            let batch = server.wait(SOON).unwrap();
            assert!(!batch.inbox.is_empty(), "answered {answered}");
            for datagram in batch.inbox.iter() {
                assert_eq!(datagram.peer.local(), Some(destination.ip()));
                for bytes in datagram.segments() {
                    answered += 1;
                    batch.outbox.push(datagram.peer, 9, |buffer| copy(buffer, bytes)).unwrap();
                }
            }
            server.flush().unwrap();
        }
        receive(&mut *client, 10, |datagram| assert_eq!(datagram.peer.remote(), destination));
    }
}

fn answers_leave_in_as_few_trains_as_their_lengths_allow(choice: DatapathChoice) {
    let Some((mut from, mut to, peer)) = two_paths(choice, &SocketOptions::new(LOOPBACK)) else { return };
    for len in [30, 20, 30, 25, 20, 30, 10] {
        from.outbox().push(peer, len, |buffer| buffer.len()).unwrap();
    }
    let flushed = from.flush().unwrap();
    assert_eq!((flushed.sent, flushed.trains), (7, 2));
    let mut lens = receive_lens(&mut *to, 7);
    lens.sort();
    assert_eq!(lens, [vec![20, 20, 10], vec![30, 30, 30, 25]]);
}

fn trains_end_at_the_limits_of_the_kernel(choice: DatapathChoice) {
    for address in [LOOPBACK, LOOPBACK_V6] {
        let Some((mut from, mut to, peer)) = two_paths(choice, &SocketOptions::new(address)) else { return };
        // 10 times 6544 are 65,440: no device takes such a train apart.
        for (len, count, expected) in
            [(100, 64, vec![64]), (100, 65, vec![64, 1]), (6544, 10, vec![10]), (6544, 11, vec![10, 1])]
        {
            for _ in 0..count {
                from.outbox().push(peer, len, |buffer| buffer.len()).unwrap();
            }
            let flushed = from.flush().unwrap();
            assert_eq!(
                (flushed.sent, flushed.trains, flushed.trains_refused),
                (count, 1, 0),
                "{count} of {len}"
            );
            let lens = receive_lens(&mut *to, count as usize);
            assert_eq!(lens.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            assert!(lens.iter().flatten().all(|&received| received == len));
        }
    }
}

fn trains_are_used_only_if_enabled(choice: DatapathChoice) {
    let (with, without) = (SocketOptions::new(LOOPBACK), SocketOptions::new(LOOPBACK).one_at_a_time());
    for (sends, receives) in [(&with, &without), (&without, &with)] {
        let (mut from, mut to) = (path(choice, sends), path(choice, receives));
        let peer = Peer::to(to.local_addr().unwrap());
        assert!(!(from.trains().sent && to.trains().received));
        for len in [30, 30, 10, 30, 20] {
            from.outbox().push(peer, len, |buffer| buffer.len()).unwrap();
        }
        assert_eq!(from.flush().unwrap().sent, 5);
        let mut lens = receive_lens(&mut *to, 5);
        if !sends.send_trains {
            assert_eq!(lens.concat(), [30, 30, 10, 30, 20], "in their order");
        }
        lens.sort();
        assert_eq!(lens, [[10], [20], [30], [30], [30]]);
    }
}

fn a_train_that_is_too_long_is_truncated_and_marked(choice: DatapathChoice) {
    let options = SocketOptions { receive_len: 100, ..SocketOptions::new(LOOPBACK) };
    let Some((mut from, mut to, peer)) = two_paths(choice, &options) else { return };
    for (len, count, expected) in
        [(25, 4, vec![25; 4]), (30, 4, vec![30, 30, 30, 10]), (50, 4, vec![50, 50]), (101, 2, vec![100])]
    {
        from.outbox().push_train(peer, len, len * count, |buffer| buffer.len()).unwrap();
        from.flush().unwrap();
        let batch = to.wait(SOON).unwrap();
        let train = batch.inbox.get(0);
        assert_eq!(train.segments().map(<[u8]>::len).collect::<Vec<_>>(), expected);
        assert_eq!(train.truncated, len * count > 100, "{count} of {len}");
    }
}

fn batches_are_bounded_in_segments(choice: DatapathChoice) {
    let options = SocketOptions { batch_segments: 20, ..SocketOptions::new(LOOPBACK) };
    let Some((mut from, mut to, peer)) = two_paths(choice, &options) else { return };
    let counts = [10u8, 10, 10, 30, 1, 19, 1];
    for (i, &count) in (0u8..).zip(&counts) {
        for _ in 0..count {
            from.outbox().push(peer, 9, |buffer| copy(buffer, &[i, 1, 2])).unwrap();
        }
        from.flush().unwrap();
    }
    let (mut batches, mut received) = (Vec::new(), Vec::new());
    while received.len() < 81 {
        let inbox = to.wait(SOON).unwrap().inbox;
        assert!(!inbox.is_empty(), "received {}", received.len());
        batches.push(inbox.datagrams_count());
        received.extend(inbox.iter().flat_map(|datagram| datagram.segments()).map(|bytes| bytes[0]));
    }
    assert!(batches.iter().all(|&len| len <= 20 || len == 30), "{batches:?}");
    let sent: Vec<u8> = (0u8..).zip(counts).flat_map(|(i, count)| vec![i; count.into()]).collect();
    assert_eq!(received, sent, "in order, none twice");
}
