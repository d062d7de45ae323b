//! Trains of datagrams.

use handle_net::{Datagram, Inbox, Outbox, Peer};

/// A train is split into the datagrams of a plain model, and these form the same train again.
///
/// Input: the length of a segment in two bytes, big-endian, and the bytes of the train.
pub fn train(input: &[u8]) {
    let Some((len, bytes)) = input.split_first_chunk() else { return };
    let segment_len = usize::from(u16::from_be_bytes(*len));
    let peer = Peer::to(([127, 0, 0, 1], 9).into());
    let train = Datagram { bytes, peer, segment_len, truncated: false };
    let plain = split_plainly(bytes, segment_len);
    assert!(train.segments().eq(plain.iter().copied()));
    assert_eq!(train.segments_count(), plain.len());
    assert_eq!(Inbox::new(&[train, train]).datagrams_count(), 2 * plain.len());
    // The outbox gets the train, and then the single datagrams.
    let mut outbox = Outbox::new(2 * plain.len(), 2 * bytes.len());
    let copy = |bytes: &[u8], buffer: &mut [u8]| {
        buffer[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    };
    outbox
        .push_train(peer, segment_len.max(1), bytes.len(), |buffer| copy(bytes, buffer))
        .expect("the outbox has room");
    for segment in &plain {
        outbox.push(peer, segment.len(), |buffer| copy(segment, buffer)).expect("the outbox has room");
    }
    assert_eq!(outbox.len(), 2 * plain.len());
    for (i, segment) in plain.iter().chain(&plain).enumerate() {
        assert_eq!(outbox.get(i), (peer, *segment));
    }
}

/// Splits a train byte by byte. An empty train is one empty datagram, and segments have at least
/// one byte.
fn split_plainly(bytes: &[u8], segment_len: usize) -> Vec<&[u8]> {
    let (mut segments, mut start) = (Vec::new(), 0);
    for end in 1..=bytes.len() {
        if end - start == segment_len.max(1) || end == bytes.len() {
            segments.push(&bytes[start..end]);
            start = end;
        }
    }
    if segments.is_empty() { vec![bytes] } else { segments }
}
