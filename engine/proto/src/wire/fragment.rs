//! Messages cut into datagrams. RFC 3652 section 2.3; [`reassembly`](super::reassembly) reverses
//! it.
//!
//! As in deployed software, every fragment has the fragment flag and the length of the whole
//! message, and all but the last carry [`UDP_DATA_LEN_MAX`] bytes.

use super::envelope::{Envelope, EnvelopeFlags};
use crate::limit::{MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX};
use core::ops::Range;

/// One datagram of a message: its envelope, and the range of bytes after the envelope that it
/// carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The envelope of the datagram.
    pub envelope: [u8; Envelope::LEN],
    /// Bytes of the message, counted from the end of its envelope.
    pub range: Range<usize>,
}

/// The datagrams of a message, in order. There is at least one, also for an empty message.
#[derive(Clone, Debug)]
pub struct Fragments {
    envelope: Envelope,
    next: usize,
    count: usize,
}

/// Plans the datagrams of the message behind `envelope`, which has the length of the message.
///
/// Nothing is copied. A message that fits into one datagram is not marked as cut.
///
/// # Panics
/// When the message is longer than [`MESSAGE_LEN_MAX`].
#[must_use]
pub fn cut(envelope: &Envelope) -> Fragments {
    assert!(envelope.message_len <= MESSAGE_LEN_MAX, "a message that no peer accepts");
    let count = count_of(envelope.message_len as usize);
    let truncated = if count > 1 { EnvelopeFlags::TRUNCATED.0 } else { 0 };
    let flags = EnvelopeFlags(envelope.flags.0 & !EnvelopeFlags::TRUNCATED.0 | truncated);
    Fragments { envelope: Envelope { flags, ..*envelope }, next: 0, count }
}

/// Number of datagrams of a message of `message_len` bytes.
pub(super) fn count_of(message_len: usize) -> usize {
    message_len.div_ceil(UDP_DATA_LEN_MAX).max(1)
}

/// The range of bytes that fragment `number` carries of a message of `message_len` bytes.
pub(super) fn range_of(number: usize, message_len: usize) -> Range<usize> {
    let start = number * UDP_DATA_LEN_MAX;
    start..message_len.min(start + UDP_DATA_LEN_MAX)
}

impl Iterator for Fragments {
    type Item = Fragment;

    fn next(&mut self) -> Option<Fragment> {
        if self.next == self.count {
            return None;
        }
        let sequence = u32::try_from(self.next).expect("there are at most FRAGMENTS_MAX fragments");
        let range = range_of(self.next, self.envelope.message_len as usize);
        self.next += 1;
        Some(Fragment { envelope: Envelope { sequence, ..self.envelope }.to_bytes(), range })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count - self.next, Some(self.count - self.next))
    }
}

impl ExactSizeIterator for Fragments {}

/// The pieces of the concatenation of `parts` that lie in `range`: for messages made of parts.
pub fn within<'a>(parts: &'a [&'a [u8]], range: Range<usize>) -> impl Iterator<Item = &'a [u8]> {
    let mut part_at = 0;
    parts.iter().filter_map(move |part| {
        let (start, end) = (range.start.saturating_sub(part_at), range.end.saturating_sub(part_at));
        part_at += part.len();
        part.get(start..end.min(part.len())).filter(|piece| !piece.is_empty())
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::code::Version;
    use crate::limit::FRAGMENTS_MAX;
    use alloc::vec::Vec;

    pub(in super::super) fn envelope(request_id: i32, message_len: usize) -> Envelope {
        Envelope {
            version: Version::CURRENT,
            flags: EnvelopeFlags(0),
            suggested: Version::CURRENT,
            session_id: 0,
            request_id,
            sequence: 0,
            message_len: u32::try_from(message_len).unwrap(),
        }
    }

    #[test]
    fn cuts_at_the_edge_and_not_before() {
        let lens = |message_len| cut(&envelope(1, message_len)).map(|it| it.range.len()).collect::<Vec<_>>();
        assert_eq!(lens(0), [0]);
        assert_eq!(lens(UDP_DATA_LEN_MAX), [492]);
        assert_eq!(lens(UDP_DATA_LEN_MAX + 1), [492, 1]);
        assert_eq!(lens(2 * UDP_DATA_LEN_MAX), [492, 492]);
        assert_eq!(lens(MESSAGE_LEN_MAX as usize).len(), FRAGMENTS_MAX);
    }

    #[test]
    fn every_fragment_has_the_flag_and_a_whole_message_does_not() {
        let marked = Envelope { flags: EnvelopeFlags::TRUNCATED, ..envelope(1, 492) };
        let flags = |message_len| {
            let envelope = Envelope { message_len, ..marked };
            cut(&envelope).map(|it| Envelope::from_bytes(&it.envelope).flags.0).collect::<Vec<_>>()
        };
        assert_eq!(flags(492), [0]);
        assert_eq!(flags(493), [EnvelopeFlags::TRUNCATED.0; 2]);
    }

    #[test]
    fn parts_are_cut_where_the_message_is() {
        let parts: [&[u8]; 5] = [b"abc", b"", b"defg", b"h", b"ij"];
        for start in 0..=10 {
            for end in start..=10 {
                let pieces: Vec<_> = within(&parts, start..end).collect();
                assert!(pieces.iter().all(|piece| !piece.is_empty()));
                assert_eq!(pieces.concat(), b"abcdefghij"[start..end], "{start}..{end}");
            }
        }
    }
}
