//! Reassembly of answers in several datagrams, in a fixed number of buffers of fixed size.

use handle_proto::limit::{FRAGMENTS_MAX, MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX};
use handle_proto::wire::Envelope;

/// Maximum number of incomplete answers. A further one replaces the oldest, preferably one to a
/// request that has been given up.
pub const INCOMPLETE_MAX: usize = 64;

const SEEN_WORDS: usize = FRAGMENTS_MAX.div_ceil(64);

/// Answers being reassembled. The default has no capacity for any.
#[derive(Debug, Default)]
pub struct FragmentTable {
    pieces: Vec<Assembly>,
    /// Incomplete answers to pending requests that were discarded to make room.
    dropped: u64,
    /// Fragments that had been received before.
    duplicates: u64,
}

#[derive(Debug)]
struct Assembly {
    request_id: i32,
    len: usize,
    missing: usize,
    seen: [u64; SEEN_WORDS],
    /// Zeroed memory, which the system provides when fragments fill it.
    bytes: Box<[u8]>,
    sent_ns: u64,
}

/// The result of adding a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum FragmentOutcome {
    /// More fragments are missing.
    Incomplete,
    /// This fragment had been received before.
    Repeated,
    /// Its number or its length cannot belong to a message.
    Malformed,
    /// It was the last missing one; see [`FragmentTable::complete`].
    Complete(usize),
}

impl FragmentTable {
    /// Creates a table with capacity for [`INCOMPLETE_MAX`] answers.
    #[must_use]
    pub fn new() -> Self {
        let assembly = || Assembly {
            request_id: 0,
            len: 0,
            missing: 0,
            seen: [0; SEEN_WORDS],
            bytes: vec![0; MESSAGE_LEN_MAX as usize].into_boxed_slice(),
            sent_ns: 0,
        };
        Self { pieces: (0..INCOMPLETE_MAX).map(|_| assembly()).collect(), dropped: 0, duplicates: 0 }
    }

    /// Adds the fragment `data` of a message that is longer than one datagram.
    ///
    /// `sent_ns` is the time of its request. Requests sent before `given_up_ns` have been given up.
    pub fn put(
        &mut self,
        envelope: &Envelope,
        data: &[u8],
        sent_ns: u64,
        given_up_ns: u64,
    ) -> FragmentOutcome {
        let (len, number) = (envelope.message_len as usize, envelope.sequence as usize);
        let at = number.saturating_mul(UDP_DATA_LEN_MAX);
        if len > MESSAGE_LEN_MAX as usize || at >= len || data.len() != UDP_DATA_LEN_MAX.min(len - at) {
            return FragmentOutcome::Malformed;
        }
        let i = self.assembly_of(envelope.request_id, len, sent_ns, given_up_ns);
        let assembly = &mut self.pieces[i];
        if assembly.len != len {
            return FragmentOutcome::Malformed;
        }
        let (word, bit) = (number / 64, 1 << (number % 64));
        if assembly.seen[word] & bit != 0 {
            self.duplicates += 1;
            return FragmentOutcome::Repeated;
        }
        assembly.seen[word] |= bit;
        assembly.bytes[at..at + data.len()].copy_from_slice(data);
        assembly.missing -= 1;
        if assembly.missing > 0 { FragmentOutcome::Incomplete } else { FragmentOutcome::Complete(i) }
    }

    /// The message of [`FragmentOutcome::Complete`]; its buffer is free afterwards.
    pub fn complete(&mut self, i: usize) -> &[u8] {
        let assembly = &mut self.pieces[i];
        assembly.request_id = 0;
        &assembly.bytes[..assembly.len]
    }

    /// Discards the fragments of the answer to a request.
    pub fn forget(&mut self, request_id: i32) {
        for assembly in self.pieces.iter_mut().filter(|assembly| assembly.request_id == request_id) {
            assembly.request_id = 0;
        }
    }

    /// Incomplete answers to pending requests that were discarded to make room.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Fragments of incomplete answers that had been received before.
    #[must_use]
    pub const fn duplicates(&self) -> u64 {
        self.duplicates
    }

    fn assembly_of(&mut self, request_id: i32, len: usize, sent_ns: u64, given_up_ns: u64) -> usize {
        if let Some(i) = self.pieces.iter().position(|assembly| assembly.request_id == request_id) {
            return i;
        }
        let free_or_oldest = |assembly: &Assembly| (assembly.request_id != 0, assembly.sent_ns);
        let (i, assembly) = self
            .pieces
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, assembly)| free_or_oldest(assembly))
            .expect("the table has places");
        self.dropped += u64::from(assembly.request_id != 0 && assembly.sent_ns >= given_up_ns);
        *assembly = Assembly {
            request_id,
            len,
            missing: len.div_ceil(UDP_DATA_LEN_MAX),
            seen: [0; SEEN_WORDS],
            bytes: std::mem::take(&mut assembly.bytes),
            sent_ns,
        };
        i
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Version;
    use handle_proto::wire::envelope::EnvelopeFlags;

    fn envelope(request_id: i32, sequence: u32, len: usize) -> Envelope {
        Envelope {
            version: Version::CURRENT,
            flags: EnvelopeFlags::TRUNCATED,
            suggested: Version::CURRENT,
            session_id: 0,
            request_id,
            sequence,
            message_len: u32::try_from(len).unwrap(),
        }
    }

    fn pieces(message: &[u8]) -> Vec<(u32, &[u8])> {
        (0..).zip(message.chunks(UDP_DATA_LEN_MAX)).collect()
    }

    #[test]
    fn fragments_are_reassembled_in_any_order_and_repeated() {
        for len in [493, 984, 985, 5000, MESSAGE_LEN_MAX as usize] {
            let message: Vec<u8> = (0..=250).cycle().take(len).collect();
            let mut fragments = FragmentTable::new();
            let mut order = pieces(&message);
            order.reverse();
            let (last, front) = order.split_last().unwrap();
            for put in [FragmentOutcome::Incomplete, FragmentOutcome::Repeated] {
                for &(sequence, data) in front {
                    assert_eq!(fragments.put(&envelope(9, sequence, len), data, 0, 0), put);
                }
            }
            assert_eq!(fragments.duplicates(), front.len() as u64);
            let FragmentOutcome::Complete(i) = fragments.put(&envelope(9, last.0, len), last.1, 0, 0) else {
                panic!("all {len} bytes have arrived")
            };
            assert_eq!(fragments.complete(i), message);
        }
    }

    /// The number after the last leaves no bytes for its fragment, so an empty one has the length
    /// that is left.
    #[test]
    fn a_fragment_that_just_does_not_fit_is_refused() {
        for len in [493, 983, 984, 985, MESSAGE_LEN_MAX as usize] {
            let message = vec![7; len];
            let &(last, data) = pieces(&message).last().unwrap();
            let longer = [data, &[0]].concat();
            for (number, data) in
                [(last, &longer[..]), (last, &data[1..]), (last + 1, &[]), (last + 1, &[0]), (last + 1, data)]
            {
                let put = FragmentTable::new().put(&envelope(9, number, len), data, 0, 0);
                assert_eq!(put, FragmentOutcome::Malformed, "{len}: {} bytes of {number}", data.len());
            }
        }
    }

    #[test]
    fn refuses_inconsistent_numbers_and_lengths() {
        let mut fragments = FragmentTable::new();
        let data = [0; 500];
        for (sequence, len, data_len) in [
            (2, 984, 492),
            (u32::MAX, 984, 492),
            (0, 984, 491),
            (0, 984, 493),
            (1, 985, 492 + 1),
            (2, 985, 2),
            (0, 262_145, 492),
        ] {
            let put = fragments.put(&envelope(1, sequence, len), &data[..data_len], 0, 0);
            assert_eq!(put, FragmentOutcome::Malformed, "{sequence} of {len} with {data_len}");
        }
        assert_eq!(fragments.put(&envelope(1, 0, 984), &data[..492], 0, 0), FragmentOutcome::Incomplete);
        let put = fragments.put(&envelope(1, 1, 985), &data[..492], 0, 0);
        assert_eq!(put, FragmentOutcome::Malformed, "another length than before");
    }

    #[test]
    fn the_oldest_answer_makes_room() {
        let mut fragments = FragmentTable::new();
        for (id, sent_ns) in (1..).zip(0..=INCOMPLETE_MAX as u64) {
            fragments.put(&envelope(id, 0, 984), &[0; 492], sent_ns, 0);
        }
        assert_eq!(fragments.dropped(), 1);
        let put = fragments.put(&envelope(2, 1, 984), &[0; 492], 99, 99);
        assert!(matches!(put, FragmentOutcome::Complete(_)), "only the oldest answer was dropped");
        assert_eq!(fragments.put(&envelope(1, 1, 984), &[0; 492], 99, 99), FragmentOutcome::Incomplete);
        assert_eq!(fragments.put(&envelope(99, 1, 984), &[0; 492], 99, 99), FragmentOutcome::Incomplete);
        assert_eq!(fragments.dropped(), 1, "the second dropped answer was to a request given up");
    }
}
