//! What is to be sent.

use core::fmt;
use core::ops::Range;

use crate::batch::Peer;

/// Datagrams to send, one after the other in a single buffer. Both sizes are fixed when it is made.
pub struct Outbox {
    bytes: Box<[u8]>,
    bytes_used: usize,
    slots: Vec<Slot>,
    slots_max: usize,
}

struct Slot {
    peer: Peer,
    bytes: Range<usize>,
}

/// No slot or no room is left: flush first, or drop the datagram and count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the outbox is full")
    }
}

impl core::error::Error for Full {}

impl Outbox {
    /// An outbox for at most `datagrams_max` datagrams and `len_max` bytes together.
    pub fn new(datagrams_max: usize, len_max: usize) -> Self {
        Self {
            bytes: vec![0; len_max].into_boxed_slice(),
            bytes_used: 0,
            slots: Vec::with_capacity(datagrams_max),
            slots_max: datagrams_max,
        }
    }

    /// Adds a datagram: `write` gets room for `len_max` bytes and returns how many it wrote.
    ///
    /// What the room holds before is unspecified; what `write` leaves unused is not lost.
    ///
    /// # Errors
    ///
    /// `Full`, without a call of `write`, when no slot or less than `len_max` bytes are left.
    ///
    /// # Panics
    ///
    /// If `write` claims to have written more than `len_max`.
    #[inline]
    pub fn push(
        &mut self,
        peer: Peer,
        len_max: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), Full> {
        if self.slots.len() >= self.slots_max {
            return Err(Full);
        }
        let bytes = self.write(len_max, write)?;
        self.slots.push(Slot { peer, bytes });
        Ok(())
    }

    /// Adds a train: datagrams of `segment_len` bytes, the last may be shorter, all to one peer.
    ///
    /// A train of no bytes is one empty datagram.
    ///
    /// # Errors
    ///
    /// `Full`, without a call of `write`, when less than `len_max` bytes or fewer slots than so many
    /// bytes would need are left. Part of a train is never sent alone for want of room.
    ///
    /// # Panics
    ///
    /// If `segment_len` is 0, or `write` claims to have written more than `len_max`.
    pub fn push_train(
        &mut self,
        peer: Peer,
        segment_len: usize,
        len_max: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), Full> {
        assert!(segment_len > 0, "a train of empty segments has no length");
        if self.slots_max - self.slots.len() < len_max.div_ceil(segment_len).max(1) {
            return Err(Full);
        }
        let Range { mut start, end } = self.write(len_max, write)?;
        loop {
            let segment_end = end.min(start + segment_len);
            self.slots.push(Slot { peer, bytes: start..segment_end });
            start = segment_end;
            if start == end {
                return Ok(());
            }
        }
    }

    /// How many datagrams will be sent; each segment of a train is one.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The datagram at `i`, in the order they were added.
    ///
    /// # Panics
    ///
    /// Unless `i` is less than [`len`](Self::len).
    #[inline]
    pub fn get(&self, i: usize) -> (Peer, &[u8]) {
        let Slot { peer, bytes } = &self.slots[i];
        (*peer, &self.bytes[bytes.clone()])
    }

    /// Forgets all, unsent.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.bytes_used = 0;
    }

    fn write(
        &mut self,
        len_max: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Range<usize>, Full> {
        let room = self.bytes[self.bytes_used..].get_mut(..len_max).ok_or(Full)?;
        let len = write(room);
        assert!(len <= len_max, "wrote {len} bytes into room for {len_max}");
        let start = self.bytes_used;
        self.bytes_used += len;
        Ok(start..self.bytes_used)
    }
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
        move |room| {
            room[..len].fill(b'x');
            len
        }
    }

    #[test]
    fn refuses_when_slots_or_bytes_run_out() {
        let mut outbox = Outbox::new(2, 100);
        outbox.push(peer(), 60, fill(10)).unwrap();
        assert_eq!(outbox.push(peer(), 91, |_| unreachable!()), Err(Full), "10 of 100 are used");
        outbox.push(peer(), 90, fill(0)).unwrap();
        assert_eq!(outbox.push(peer(), 1, |_| unreachable!()), Err(Full), "both slots are used");
        assert_eq!((outbox.get(0).1.len(), outbox.get(1).1.len()), (10, 0));
        outbox.clear();
        outbox.push(peer(), 100, fill(100)).unwrap();
    }

    #[test]
    fn a_train_is_its_segments_or_nothing() {
        let mut outbox = Outbox::new(4, 100);
        assert_eq!(outbox.push_train(peer(), 10, 41, |_| unreachable!()), Err(Full), "needs 5 slots");
        outbox.push_train(peer(), 10, 40, fill(25)).unwrap();
        outbox.push_train(peer(), 10, 10, fill(0)).unwrap();
        let lens: Vec<_> = (0..outbox.len()).map(|i| outbox.get(i).1.len()).collect();
        assert_eq!(lens, [10, 10, 5, 0]);
    }

    #[test]
    #[should_panic(expected = "into room for 4")]
    fn a_writer_that_lies_is_a_bug() {
        let _ = Outbox::new(1, 100).push(peer(), 4, |_| 5);
    }
}
