//! Messages reassembled from datagrams, in any order and within limits. RFC 3652 section 2.3.

use super::envelope::{Envelope, EnvelopeFlags};
use super::fragment::{count_of, range_of};
use crate::error::DecodeError;
use crate::limit::FRAGMENTS_MAX;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// The limits of a [`Reassembly`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReassemblyLimits {
    /// Most incomplete messages.
    pub messages_max: usize,
    /// Most incomplete messages of one sender.
    pub messages_per_sender_max: usize,
    /// Most bytes of all incomplete messages, by their announced lengths.
    pub bytes_max: usize,
    /// Most milliseconds from the first fragment of a message to its last.
    pub age_ms_max: u64,
}

/// Why a fragment was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentRefusal {
    /// It has no envelope, or announces a message that is too long.
    Unreadable(DecodeError),
    /// Its number or its length is impossible.
    Misfit,
    /// Its envelope contradicts that of earlier fragments.
    Contradiction,
    /// Reassembly is disabled, or the message has more bytes than all incomplete messages may have.
    NoCapacity,
}

/// Counters of fragments since the table was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReassemblyCounts {
    /// Messages that were completed.
    pub completed: u64,
    /// Messages dropped because fragments did not arrive in time.
    pub expired: u64,
    /// Messages dropped early, to make room for newer ones.
    pub displaced: u64,
    /// Repeated fragments, which are harmless.
    pub repeated: u64,
    /// Fragments refused as unreadable, impossible or contradictory.
    pub refused_malformed: u64,
    /// Fragments refused because of a limit.
    pub refused_full: u64,
}

/// The result of one datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReassemblyOutcome<'a> {
    /// The datagram is a whole message: not cut, or cut into one fragment.
    Whole(&'a [u8]),
    /// It was the last missing fragment: the message in its stream form.
    Complete(Vec<u8>),
    /// More fragments are needed.
    Incomplete,
}

/// Reassembles fragments, within limits.
///
/// The sender of a first fragment may have forged its address, so incomplete messages must not keep
/// others out: a sender at its limit loses its own oldest message, and if there is no capacity the
/// oldest of all is dropped. The fragments of an honest message arrive together.
///
/// `S` identifies the sender in a form that the caller chooses; deployed servers use the address
/// without the port. Messages of one sender are distinguished by their request ids.
#[derive(Debug)]
pub struct Reassembly<S> {
    limits: ReassemblyLimits,
    pending: BTreeMap<(S, i32), PendingMessage>,
    /// Messages in the order of their first fragments.
    order: BTreeMap<u64, (S, i32)>,
    begun: u64,
    bytes: usize,
    // No message expires before this, so a full table is not searched for each datagram.
    earliest_expiry_ms: u64,
    counts: ReassemblyCounts,
}

#[derive(Debug)]
struct PendingMessage {
    // The envelope of the whole message.
    envelope: Envelope,
    // The stream form, with zeros in place of missing fragments.
    message: Vec<u8>,
    seen: [u64; FRAGMENTS_MAX.div_ceil(64)],
    missing_count: usize,
    expires_ms: u64,
    /// Number of messages that began before.
    number: u64,
}

impl<S: Ord + Copy> Reassembly<S> {
    /// An empty table.
    #[must_use]
    pub const fn new(limits: ReassemblyLimits) -> Self {
        let counts = ReassemblyCounts {
            completed: 0,
            expired: 0,
            displaced: 0,
            repeated: 0,
            refused_malformed: 0,
            refused_full: 0,
        };
        Self {
            limits,
            pending: BTreeMap::new(),
            order: BTreeMap::new(),
            begun: 0,
            bytes: 0,
            earliest_expiry_ms: u64::MAX,
            counts,
        }
    }

    /// Changes the limits. Existing messages stay, even if they exceed the new limits.
    pub const fn set_limits(&mut self, limits: ReassemblyLimits) {
        self.limits = limits;
    }

    /// Handles one datagram from `sender`, envelope first. Time must not go backwards.
    ///
    /// Fragments may arrive in any order and more than once. A datagram that is not marked as a
    /// fragment is returned unchanged.
    ///
    /// # Errors
    /// When the datagram cannot be a fragment, or there is no capacity for its message. It is
    /// counted, and nothing else changes.
    pub fn accept<'a>(
        &mut self,
        sender: S,
        datagram: &'a [u8],
        now_ms: u64,
    ) -> Result<ReassemblyOutcome<'a>, FragmentRefusal> {
        let result = self.add_fragment(sender, datagram, now_ms);
        match result {
            Ok(_) => {}
            Err(
                FragmentRefusal::Unreadable(_) | FragmentRefusal::Misfit | FragmentRefusal::Contradiction,
            ) => {
                self.counts.refused_malformed += 1;
            }
            Err(FragmentRefusal::NoCapacity) => self.counts.refused_full += 1,
        }
        result
    }

    fn add_fragment<'a>(
        &mut self,
        sender: S,
        datagram: &'a [u8],
        now_ms: u64,
    ) -> Result<ReassemblyOutcome<'a>, FragmentRefusal> {
        let (envelope, data) = Envelope::split(datagram).map_err(FragmentRefusal::Unreadable)?;
        if !envelope.flags.has(EnvelopeFlags::TRUNCATED) {
            return Ok(ReassemblyOutcome::Whole(datagram));
        }
        let message_len = envelope.message_len as usize;
        let (number, count) = (envelope.sequence as usize, count_of(message_len));
        if number >= count {
            return Err(FragmentRefusal::Misfit);
        }
        let range = range_of(number, message_len);
        if data.len() != range.len() {
            return Err(FragmentRefusal::Misfit);
        }
        if count == 1 {
            return Ok(ReassemblyOutcome::Whole(datagram));
        }
        self.expire(now_ms);
        let key = (sender, envelope.request_id);
        if !self.pending.contains_key(&key) {
            self.evict_until_fits(sender, message_len)?;
            let expires_ms = now_ms.saturating_add(self.limits.age_ms_max);
            let pending = PendingMessage::new(&envelope, count, expires_ms, self.begun);
            self.order.insert(self.begun, key);
            self.begun += 1;
            self.earliest_expiry_ms = self.earliest_expiry_ms.min(pending.expires_ms);
            self.bytes += message_len;
            self.pending.insert(key, pending);
        }
        let pending = self.pending.get_mut(&key).expect("the message was just inserted");
        if pending.envelope != uncut(&envelope) {
            return Err(FragmentRefusal::Contradiction);
        }
        if !pending.put(number, range, data) {
            self.counts.repeated += 1;
        }
        if pending.missing_count > 0 {
            return Ok(ReassemblyOutcome::Incomplete);
        }
        self.counts.completed += 1;
        let message = self.remove(sender, envelope.request_id).map(|pending| pending.message);
        Ok(ReassemblyOutcome::Complete(message.expect("the message was just completed")))
    }

    /// Drops older messages until there is capacity for one of `message_len` bytes of `sender`.
    fn evict_until_fits(&mut self, sender: S, message_len: usize) -> Result<(), FragmentRefusal> {
        let ReassemblyLimits { messages_max, messages_per_sender_max, bytes_max, .. } = self.limits;
        // The announced length counts, not the received one, because that much memory is allocated.
        if messages_max == 0 || messages_per_sender_max == 0 || message_len > bytes_max {
            return Err(FragmentRefusal::NoCapacity);
        }
        loop {
            let of_sender = self.pending.range((sender, i32::MIN)..=(sender, i32::MAX));
            let (count, oldest) = of_sender.fold((0, None), |(count, oldest), (key, pending)| {
                let older = oldest.filter(|(number, _)| *number < pending.number);
                (count + 1, Some(older.unwrap_or((pending.number, *key))))
            });
            let displaced = if count >= messages_per_sender_max {
                oldest.map(|(_, key)| key)
            } else if self.pending.len() >= messages_max || self.bytes + message_len > bytes_max {
                self.order.first_key_value().map(|(_, key)| *key)
            } else {
                None
            };
            let Some(displaced) = displaced else { return Ok(()) };
            self.remove(displaced.0, displaced.1);
            self.counts.displaced += 1;
        }
    }

    fn remove(&mut self, sender: S, request_id: i32) -> Option<PendingMessage> {
        let pending = self.pending.remove(&(sender, request_id))?;
        self.order.remove(&pending.number);
        self.bytes -= pending.envelope.message_len as usize;
        Some(pending)
    }

    /// Drops expired messages. [`accept`](Self::accept) does it too; this is for times without
    /// datagrams.
    pub fn expire(&mut self, now_ms: u64) {
        if now_ms < self.earliest_expiry_ms {
            return;
        }
        let count = self.pending.len();
        self.pending.retain(|_, pending| pending.expires_ms > now_ms);
        self.order.retain(|_, key| self.pending.contains_key(key));
        self.counts.expired += (count - self.pending.len()) as u64;
        let left = || self.pending.values();
        self.bytes = left().map(|pending| pending.envelope.message_len as usize).sum();
        self.earliest_expiry_ms = left().map(|pending| pending.expires_ms).min().unwrap_or(u64::MAX);
    }

    /// The earliest time at which [`expire`](Self::expire) may drop a message.
    #[must_use]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        (!self.pending.is_empty()).then_some(self.earliest_expiry_ms)
    }

    /// Number of incomplete messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether no message is incomplete.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The counters so far.
    #[must_use]
    pub const fn counts(&self) -> ReassemblyCounts {
        self.counts
    }
}

impl PendingMessage {
    fn new(envelope: &Envelope, fragments_count: usize, expires_ms: u64, number: u64) -> Self {
        let envelope = uncut(envelope);
        let mut message = vec![0; Envelope::LEN + envelope.message_len as usize];
        message[..Envelope::LEN].copy_from_slice(&envelope.to_bytes());
        let seen = [0; FRAGMENTS_MAX.div_ceil(64)];
        Self { envelope, message, seen, missing_count: fragments_count, expires_ms, number }
    }

    /// Stores a fragment. Returns whether it is new; only the first copy counts.
    fn put(&mut self, number: usize, range: Range<usize>, data: &[u8]) -> bool {
        let (word, bit) = (&mut self.seen[number / 64], 1 << (number % 64));
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.message[Envelope::LEN..][range].copy_from_slice(data);
        self.missing_count -= 1;
        true
    }
}

/// Returns the envelope of the whole message.
const fn uncut(envelope: &Envelope) -> Envelope {
    let flags = EnvelopeFlags(envelope.flags.0 & !EnvelopeFlags::TRUNCATED.0);
    Envelope { flags, sequence: 0, ..*envelope }
}

#[cfg(test)]
mod tests {
    use super::super::fragment::cut;
    use super::super::fragment::tests::envelope;
    use super::*;
    use crate::limit::MESSAGE_LEN_MAX;
    use proptest::prelude::*;

    const LIMITS: ReassemblyLimits =
        ReassemblyLimits { messages_max: 4, messages_per_sender_max: 3, bytes_max: 4096, age_ms_max: 5_000 };

    fn message(request_id: i32, message_len: usize) -> Vec<u8> {
        let mut bytes = envelope(request_id, message_len).to_bytes().to_vec();
        bytes.extend((0..=250).cycle().take(message_len));
        bytes
    }

    fn datagrams(message: &[u8]) -> Vec<Vec<u8>> {
        let (envelope, rest) = Envelope::split(message).unwrap();
        cut(&envelope).map(|fragment| [&fragment.envelope[..], &rest[fragment.range]].concat()).collect()
    }

    proptest! {
        #[test]
        fn any_order_with_duplicates_gives_the_message(
            message_len in 0_usize..4000,
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            seed in any::<prop::sample::Index>(),
        ) {
            let message = message(7, message_len);
            let datagrams = datagrams(&message);
            let mut table = Reassembly::new(LIMITS);
            // Some fragments at random, then all that may be missing, from a random position on.
            let first = seed.index(datagrams.len());
            let all = (0..datagrams.len()).map(|at| (first + at) % datagrams.len());
            let mut whole = None;
            for at in order.iter().map(|index| index.index(datagrams.len())).chain(all) {
                match table.accept(1, &datagrams[at], 0).unwrap() {
                    ReassemblyOutcome::Whole(bytes) => whole = Some(bytes.to_vec()),
                    ReassemblyOutcome::Complete(bytes) => whole = Some(bytes),
                    ReassemblyOutcome::Incomplete => continue,
                }
                break;
            }
            prop_assert_eq!(whole, Some(message));
            prop_assert!(table.is_empty());
            prop_assert_eq!((table.bytes, table.order.len()), (0, 0));
        }
    }

    #[test]
    fn the_longest_message_is_reassembled() {
        let message = message(7, MESSAGE_LEN_MAX as usize);
        let mut table = Reassembly::new(ReassemblyLimits { bytes_max: MESSAGE_LEN_MAX as usize, ..LIMITS });
        let datagrams = datagrams(&message);
        let (last, others) = datagrams.split_first().unwrap();
        for datagram in others.iter().rev() {
            assert_eq!(table.accept(1, datagram, 0), Ok(ReassemblyOutcome::Incomplete));
        }
        assert_eq!(table.accept(1, last, 0), Ok(ReassemblyOutcome::Complete(message)));
        assert_eq!(table.counts().completed, 1);
    }

    #[test]
    fn one_fragment_is_a_whole_message() {
        let mut datagram = message(7, 40);
        datagram[2] |= EnvelopeFlags::TRUNCATED.0;
        let mut table = Reassembly::new(ReassemblyLimits { messages_max: 0, ..LIMITS });
        assert_eq!(table.accept(1, &datagram, 0), Ok(ReassemblyOutcome::Whole(&datagram[..])));
        for len in 0..datagram.len() {
            assert!(table.accept(1, &datagram[..len], 0).is_err(), "cut to {len}");
        }
        assert_eq!(table.counts().refused_malformed, datagram.len() as u64);
    }

    #[test]
    fn fragments_that_cannot_be_are_refused() {
        let datagrams = datagrams(&message(7, 1000));
        let mut table = Reassembly::new(LIMITS);
        let mut refused = |edit: fn(&mut Vec<u8>)| {
            let mut datagram = datagrams[1].clone();
            edit(&mut datagram);
            table.accept(1, &datagram, 0).unwrap_err()
        };
        assert_eq!(refused(|it| it.push(0)), FragmentRefusal::Misfit);
        assert_eq!(refused(|it| it.truncate(511)), FragmentRefusal::Misfit);
        assert_eq!(refused(|it| it[15] = 2), FragmentRefusal::Misfit, "492 bytes are not the last");
        assert_eq!(refused(|it| it[15] = 3), FragmentRefusal::Misfit, "there is no such fragment");
        assert_eq!(refused(|it| it[12] = 0xff), FragmentRefusal::Misfit);
        assert!(matches!(refused(|it| it[16] = 0x80), FragmentRefusal::Unreadable(_)));
        assert!(matches!(refused(|it| it.truncate(19)), FragmentRefusal::Unreadable(_)));
        assert!(table.is_empty());
    }

    /// The number after the last leaves no bytes for its fragment, so an empty one has the length
    /// that is left.
    #[test]
    fn a_fragment_that_just_does_not_fit_is_refused() {
        for message_len in [493, 983, 984, 985, 1000] {
            let datagrams = datagrams(&message(7, message_len));
            let (last_number, last) = (datagrams.len() - 1, datagrams.last().unwrap());
            let mut table = Reassembly::new(LIMITS);
            let mut refused = |number: usize, data: &[u8]| {
                let mut datagram = last[..Envelope::LEN].to_vec();
                datagram[12..16].copy_from_slice(&u32::try_from(number).unwrap().to_be_bytes());
                datagram.extend_from_slice(data);
                assert_eq!(
                    table.accept(1, &datagram, 0),
                    Err(FragmentRefusal::Misfit),
                    "{message_len}: {} bytes of {number}",
                    data.len()
                );
            };
            let data = &last[Envelope::LEN..];
            let longer = [data, &[0]].concat();
            refused(last_number, &longer);
            refused(last_number, &data[1..]);
            refused(last_number + 1, &[]);
            refused(last_number + 1, &[0]);
            refused(last_number + 1, data);
            assert!(table.is_empty());
        }
    }

    #[test]
    fn a_contradiction_leaves_the_message_as_it_was() {
        let original = message(7, 1000);
        let datagrams = datagrams(&original);
        let mut table = Reassembly::new(LIMITS);
        table.accept(1, &datagrams[0], 0).unwrap();
        let mut other = datagrams[1].clone();
        other[7] = 1;
        assert_eq!(table.accept(1, &other, 0), Err(FragmentRefusal::Contradiction), "another session");
        let other = &self::datagrams(&message(7, 1001))[1];
        assert_eq!(table.accept(1, other, 0), Err(FragmentRefusal::Contradiction), "another length");
        table.accept(1, &datagrams[1], 0).unwrap();
        assert_eq!(table.accept(1, &datagrams[2], 0), Ok(ReassemblyOutcome::Complete(original)));
    }

    #[test]
    fn senders_and_requests_are_kept_apart() {
        let (one, two) = (message(7, 600), message(8, 600));
        let mut table = Reassembly::new(LIMITS);
        table.accept(1, &datagrams(&one)[0], 0).unwrap();
        assert_eq!(table.accept(1, &datagrams(&two)[1], 0), Ok(ReassemblyOutcome::Incomplete));
        assert_eq!(table.accept(2, &datagrams(&one)[1], 0), Ok(ReassemblyOutcome::Incomplete));
        assert_eq!(table.accept(1, &datagrams(&one)[1], 0), Ok(ReassemblyOutcome::Complete(one)));
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn the_oldest_makes_room_at_every_limit_and_is_counted() {
        let first = |request_id, len| datagrams(&message(request_id, len)).swap_remove(0);
        let has = |table: &Reassembly<u8>, key| table.pending.contains_key(&key);
        let mut table = Reassembly::new(LIMITS);
        table.accept(9, &first(0, 500), 0).unwrap();
        for request_id in 0..3 {
            table.accept(1, &first(request_id, 1000), 0).unwrap();
        }
        table.accept(1, &first(3, 1000), 0).unwrap();
        assert!(!has(&table, (1, 0)) && has(&table, (9, 0)), "the oldest message of the sender makes room");
        table.accept(2, &first(3, 596), 0).unwrap();
        assert!(!has(&table, (9, 0)), "the oldest message of all makes room for a fifth");
        assert_eq!((table.len(), table.bytes), (4, 3596));
        table.accept(2, &first(4, 1500), 0).unwrap();
        assert!(!has(&table, (1, 1)), "the oldest message of all makes room for bytes");
        assert_eq!((table.len(), table.bytes, table.counts().displaced), (4, 4096, 3));
        // Messages that are in the table are still completed.
        assert_eq!(table.accept(1, &datagrams(&message(3, 1000))[1], 0), Ok(ReassemblyOutcome::Incomplete));
        assert_eq!(
            table.accept(2, &first(5, 4097), 0),
            Err(FragmentRefusal::NoCapacity),
            "the message exceeds the limit alone"
        );
        for limits in [
            ReassemblyLimits { messages_max: 0, ..LIMITS },
            ReassemblyLimits { messages_per_sender_max: 0, ..LIMITS },
        ] {
            let mut none = Reassembly::new(limits);
            assert_eq!(none.accept(1, &first(0, 1000), 0), Err(FragmentRefusal::NoCapacity));
            assert_eq!(none.counts().refused_full, 1);
        }
        table.expire(u64::MAX);
        assert!(table.order.is_empty() && table.is_empty());
    }

    #[test]
    fn incomplete_messages_expire() {
        let original = message(7, 600);
        let datagrams = datagrams(&original);
        let mut table = Reassembly::new(ReassemblyLimits { messages_max: 1, ..LIMITS });
        table.accept(1, &datagrams[0], 100).unwrap();
        assert_eq!(table.next_expiry_ms(), Some(5_100));
        table.expire(5_099);
        assert_eq!(table.len(), 1);
        // When it has expired, the first message makes room, and its late fragment begins another.
        assert_eq!(table.accept(1, &datagrams[1], 5_100), Ok(ReassemblyOutcome::Incomplete));
        assert_eq!((table.len(), table.counts().expired), (1, 1));
        assert_eq!(table.accept(1, &datagrams[1], 5_101), Ok(ReassemblyOutcome::Incomplete));
        assert_eq!(table.counts().repeated, 1);
        table.expire(10_100);
        assert_eq!((table.len(), table.bytes, table.next_expiry_ms()), (0, 0, None));
    }
}
