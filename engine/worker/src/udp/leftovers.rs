//! Datagrams that a batch could not answer, copied out of its buffers.

use handle_net::Peer;
use std::ops::Range;

/// Copies of datagrams with their peers. The memory is reused, and bounded by the size of a batch.
#[derive(Debug, Default)]
pub(crate) struct LeftoverDatagrams {
    datagrams: Vec<(Peer, Range<usize>)>,
    bytes: Vec<u8>,
}

impl LeftoverDatagrams {
    pub(crate) fn clear(&mut self) {
        self.datagrams.clear();
        self.bytes.clear();
    }

    pub(crate) fn push(&mut self, peer: Peer, datagram: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(datagram);
        self.datagrams.push((peer, start..self.bytes.len()));
    }

    /// All datagrams, in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Peer, &[u8])> {
        self.datagrams.iter().map(|(peer, range)| (*peer, &self.bytes[range.clone()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_added_until_it_is_cleared() {
        let peers = [1, 2].map(|port| Peer::to(([127, 0, 0, 1], port).into()));
        let mut leftovers = LeftoverDatagrams::default();
        for _ in 0..2 {
            leftovers.push(peers[0], b"ab");
            leftovers.push(peers[1], b"");
            leftovers.push(peers[0], b"c");
            let all: Vec<_> = leftovers.iter().collect();
            assert_eq!(all, [(peers[0], &b"ab"[..]), (peers[1], b""), (peers[0], b"c")]);
            leftovers.clear();
            assert_eq!(leftovers.iter().count(), 0);
        }
    }
}
