//! Datagrams to send.

use core::fmt;
use core::ops::Range;

use crate::batch::Peer;

/// Datagrams to send, one after the other in a single buffer. The number of slots and the bytes are
/// fixed when it is made.
pub struct Outbox {
    bytes: Box<[u8]>,
    bytes_used: usize,
    slots: Vec<OutboxSlot>,
    slots_max: usize,
    destinations: Destinations,
}

/// The range and the destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutboxSlot {
    pub(crate) start: u32,
    pub(crate) len: u32,
    /// Number of the destination.
    pub(crate) to: u32,
}

/// No slot or no capacity is left. Flush first, or drop the datagram and count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxFull;

impl fmt::Display for OutboxFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the outbox is full")
    }
}

impl core::error::Error for OutboxFull {}

impl Outbox {
    /// An outbox for at most `datagrams_max` datagrams and `len_max` bytes together.
    ///
    /// # Panics
    ///
    /// If `len_max` is 4 GiB or more.
    pub fn new(datagrams_max: usize, len_max: usize) -> Self {
        assert!(u32::try_from(len_max).is_ok(), "an outbox cannot have {len_max} bytes");
        Self {
            bytes: vec![0; len_max].into_boxed_slice(),
            bytes_used: 0,
            slots: Vec::with_capacity(datagrams_max),
            slots_max: datagrams_max,
            destinations: Destinations::new(datagrams_max),
        }
    }

    /// Adds a datagram: `write` gets capacity for `len_max` bytes and returns how many it wrote.
    ///
    /// The buffer has unspecified content at first. Capacity that `write` does not use stays
    /// available.
    ///
    /// # Errors
    ///
    /// `OutboxFull`, without a call of `write`, if no slot or fewer than `len_max` bytes are left.
    ///
    /// # Panics
    ///
    /// If `write` returns more than `len_max`.
    #[inline]
    pub fn push(
        &mut self,
        peer: Peer,
        len_max: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), OutboxFull> {
        if self.slots.len() >= self.slots_max {
            return Err(OutboxFull);
        }
        let Range { start, end } = self.write(len_max, write)?;
        let to = self.destinations.number(peer);
        self.slots.push(OutboxSlot { start, len: end - start, to });
        Ok(())
    }

    /// Adds a train: datagrams of `segment_len` bytes, the last may be shorter, all to one peer.
    ///
    /// A train of no bytes is one empty datagram.
    ///
    /// # Errors
    ///
    /// `OutboxFull`, without a call of `write`, if fewer than `len_max` bytes are left, or fewer
    /// slots than that many bytes would need. A train is never added in part.
    ///
    /// # Panics
    ///
    /// If `segment_len` is 0, or `write` returns more than `len_max`.
    pub fn push_train(
        &mut self,
        peer: Peer,
        segment_len: usize,
        len_max: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), OutboxFull> {
        assert!(segment_len > 0, "segments of a train cannot be empty");
        if self.slots_max - self.slots.len() < len_max.div_ceil(segment_len).max(1) {
            return Err(OutboxFull);
        }
        let Range { mut start, end } = self.write(len_max, write)?;
        let to = self.destinations.number(peer);
        let segment_len = u32::try_from(segment_len).unwrap_or(u32::MAX);
        loop {
            let len = segment_len.min(end - start);
            self.slots.push(OutboxSlot { start, len, to });
            start += len;
            if start == end {
                return Ok(());
            }
        }
    }

    /// Whether there is capacity for `datagrams` more, with `len` bytes together.
    pub fn has_capacity(&self, datagrams: usize, len: usize) -> bool {
        datagrams <= self.slots_max - self.slots.len() && len <= self.bytes.len() - self.bytes_used
    }

    /// Number of datagrams to send; each segment of a train is one.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no datagrams to send.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The datagram at `i`, in the order of adding.
    ///
    /// # Panics
    ///
    /// Unless `i` is less than [`len`](Self::len).
    #[inline]
    pub fn get(&self, i: usize) -> (Peer, &[u8]) {
        let slot = self.slots[i];
        (*self.peer(slot.to), self.slot_bytes(slot))
    }

    pub(crate) fn slots(&self) -> &[OutboxSlot] {
        &self.slots
    }

    #[inline]
    pub(crate) fn slot_bytes(&self, slot: OutboxSlot) -> &[u8] {
        &self.bytes[slot.start as usize..][..slot.len as usize]
    }

    /// The destination with this number.
    #[inline]
    pub(crate) fn peer(&self, to: u32) -> &Peer {
        &self.destinations.peers[to as usize]
    }

    /// Whether each datagram goes to another peer.
    pub(crate) fn is_scattered(&self) -> bool {
        self.destinations.peers.len() == self.slots.len()
    }

    /// Drops all datagrams unsent.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.bytes_used = 0;
        self.destinations.clear();
    }

    #[inline]
    fn write(
        &mut self,
        len_max: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Range<u32>, OutboxFull> {
        let buffer = self.bytes[self.bytes_used..].get_mut(..len_max).ok_or(OutboxFull)?;
        let len = write(buffer);
        assert!(len <= len_max, "wrote {len} bytes into room for {len_max}");
        let start = self.bytes_used;
        self.bytes_used += len;
        #[expect(clippy::cast_possible_truncation, reason = "an outbox has at most 4 GiB, see `new`")]
        Ok(start as u32..self.bytes_used as u32)
    }
}

/// The peers of an outbox, each once. Finding the number of a peer takes a hash and usually one
/// comparison; where answers to one peer are adjacent, not even the hash.
struct Destinations {
    peers: Vec<Peer>,
    /// The number that was found last.
    last: u32,
    /// Hash table with open addressing: the number of a peer, or `NONE`. At most half of it is
    /// used.
    table: Box<[u32]>,
    /// The position in `table` of each of `peers`, so that emptying it need not go over all of it.
    slots: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl Destinations {
    fn new(peers_max: usize) -> Self {
        Self {
            peers: Vec::with_capacity(peers_max),
            last: 0,
            table: vec![NONE; (2 * peers_max).next_power_of_two()].into_boxed_slice(),
            slots: Vec::with_capacity(peers_max),
        }
    }

    #[inline]
    fn number(&mut self, peer: Peer) -> u32 {
        if self.peers.get(self.last as usize) == Some(&peer) {
            return self.last;
        }
        self.last = self.find_or_add(peer);
        self.last
    }

    fn find_or_add(&mut self, peer: Peer) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "no more than slots")]
        let count = self.peers.len() as u32;
        let mask = self.table.len() - 1;
        // The upper bits of the hash are well mixed.
        let mut at = (hash(&peer) >> 32) as usize & mask;
        loop {
            match self.table[at] {
                NONE => break,
                number if self.peers[number as usize] == peer => return number,
                _ => at = (at + 1) & mask,
            }
        }
        self.table[at] = count;
        #[expect(clippy::cast_possible_truncation, reason = "at most 131072 places")]
        self.slots.push(at as u32);
        self.peers.push(peer);
        count
    }

    fn clear(&mut self) {
        for slot in self.slots.drain(..) {
            self.table[slot as usize] = NONE;
        }
        self.peers.clear();
    }
}

/// Spreads peers over a table. A sender that chooses colliding addresses makes a batch some
/// microseconds longer.
fn hash(peer: &Peer) -> u64 {
    let remote = u128::from(peer.remote);
    let local = u128::from(peer.local);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let [low, high] =
        [remote as u64 ^ local as u64, (remote >> 64) as u64 ^ (local >> 64) as u64 ^ u64::from(peer.port)];
    // Two products that do not depend on each other.
    low.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ high.rotate_left(32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outbox({} datagrams, {} bytes)", self.slots.len(), self.bytes_used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        Peer::to(([127, 0, 0, 1], 9).into())
    }

    fn fill(len: usize) -> impl FnOnce(&mut [u8]) -> usize {
        move |buffer| {
            buffer[..len].fill(b'x');
            len
        }
    }

    #[test]
    fn refuses_when_slots_or_bytes_run_out() {
        let mut outbox = Outbox::new(2, 100);
        outbox.push(peer(), 60, fill(10)).unwrap();
        assert_eq!(outbox.push(peer(), 91, |_| unreachable!()), Err(OutboxFull), "10 of 100 are used");
        outbox.push(peer(), 90, fill(0)).unwrap();
        assert_eq!(outbox.push(peer(), 1, |_| unreachable!()), Err(OutboxFull), "both slots are used");
        assert_eq!((outbox.get(0).1.len(), outbox.get(1).1.len()), (10, 0));
        outbox.clear();
        outbox.push(peer(), 100, fill(100)).unwrap();
    }

    #[test]
    fn a_train_is_its_segments_or_nothing() {
        let mut outbox = Outbox::new(4, 100);
        assert_eq!(outbox.push_train(peer(), 10, 41, |_| unreachable!()), Err(OutboxFull), "needs 5 slots");
        outbox.push_train(peer(), 10, 40, fill(25)).unwrap();
        outbox.push_train(peer(), 10, 10, fill(0)).unwrap();
        let lens: Vec<_> = (0..outbox.len()).map(|i| outbox.get(i).1.len()).collect();
        assert_eq!(lens, [10, 10, 5, 0]);
    }

    #[test]
    fn has_capacity_until_it_refuses() {
        let mut outbox = Outbox::new(2, 100);
        assert!(outbox.has_capacity(2, 100) && !outbox.has_capacity(3, 1) && !outbox.has_capacity(1, 101));
        outbox.push(peer(), 60, fill(60)).unwrap();
        assert!(outbox.has_capacity(1, 40) && !outbox.has_capacity(2, 40) && !outbox.has_capacity(1, 41));
    }

    #[test]
    fn peers_keep_their_datagrams() {
        let peers: Vec<_> =
            (1..=200u16).map(|port| Peer::to(([127, 0, 0, 1], port % 50 + 1).into())).collect();
        let mut outbox = Outbox::new(200, 1000);
        for round in 0..3 {
            for (i, &peer) in peers.iter().enumerate() {
                outbox
                    .push(peer, 1, |buffer| {
                        buffer[0] = u8::try_from(i).unwrap();
                        1
                    })
                    .unwrap();
            }
            assert!(!outbox.is_scattered());
            for (i, &peer) in peers.iter().enumerate() {
                assert_eq!(outbox.get(i), (peer, &[u8::try_from(i).unwrap()][..]), "round {round}");
            }
            outbox.clear();
        }
        for &peer in &peers[..50] {
            outbox.push(peer, 1, |_| 1).unwrap();
        }
        assert!(outbox.is_scattered());
    }

    #[test]
    #[should_panic(expected = "into room for 4")]
    fn a_writer_that_exceeds_its_buffer_panics() {
        let _ = Outbox::new(1, 100).push(peer(), 4, |_| 5);
    }
}
