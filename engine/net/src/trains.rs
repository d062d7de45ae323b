//! Decides which datagrams of an outbox leave together, as a train that the kernel cuts.
//!
//! A train goes to one peer. Its segments have the same length; only the last may be shorter.
//! Datagrams are therefore grouped by (peer, length) over the whole outbox, independent of their
//! order. A datagram whose length is unique becomes the shorter end of a longer train to the same
//! peer, so that answers of different lengths leave at least in pairs.
//!
//! If the kernel refuses a train but accepts its datagrams one by one, trains are suspended for a
//! while, longer each time, and then tried again, because only one of several devices may lack
//! support.

use crate::flush_report::FlushReport;
use crate::outbox::{Outbox, OutboxSlot};

/// Most datagrams of one train: `UDP_MAX_SEGMENTS` of Linux up to 6.8. More would save little for
/// each.
pub(crate) const SEGMENTS_MAX: u32 = 64;

/// Most bytes of one train. The kernel accepts 65,507, but devices accept only 65,536 with all
/// headers (their `gso_max_size`), and a longer train is cut before it reaches them. With this
/// length, IPv6 with two VLAN tags fits.
pub(crate) const TRAIN_LEN_MAX: u32 = 65_440;

/// Number of flushes without trains after a refused train: at first, and at most.
const REST_MIN: u32 = 16;
const REST_MAX: u32 = 1 << 16;

const NONE: u32 = u32::MAX;

/// One or more datagrams that leave together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Train {
    /// Number of the destination.
    pub(crate) to: u32,
    /// Bytes of each datagram; the last may be shorter.
    pub(crate) segment_len: u32,
    pub(crate) count: u32,
    len: u32,
    /// The first and last datagram. Those in between are linked by `TrainPlan::next`.
    first: u32,
    last: u32,
    /// Its position in `TrainPlan::table`.
    table_at: u32,
}

impl Train {
    fn takes(&self, len: u32) -> bool {
        self.count < SEGMENTS_MAX && self.len + len <= TRAIN_LEN_MAX
    }

    /// The segment length in its control message, if it needs one.
    pub(crate) fn segment_len(&self) -> Option<u16> {
        (self.count > 1).then(|| u16::try_from(self.segment_len).unwrap_or(u16::MAX))
    }
}

/// The plan for sending an outbox.
pub(crate) struct TrainPlan {
    trains: Vec<Train>,
    /// For each datagram of the outbox, the next one of its train.
    next: Vec<u32>,
    /// Hash table with open addressing, by (destination, length): the train that takes further
    /// datagrams, or `NONE`.
    table: Box<[u32]>,
    /// Trains in the order in which they may become the end of another train.
    order: Vec<u64>,
    /// Trains of the current peer that can take an end.
    ends: Vec<u32>,
    /// Trains that were refused; their datagrams are to be sent one by one.
    refused: Vec<Train>,
    enabled: bool,
    /// Whether this is the second attempt, for refused trains.
    retrying: bool,
    /// Number of flushes left without trains, and the number after the next refusal.
    rest: u32,
    rest_next: u32,
}

impl TrainPlan {
    /// A plan for an outbox of at most `datagrams_max` datagrams.
    pub(crate) fn new(datagrams_max: usize, enabled: bool) -> Self {
        let table_len = if enabled { (2 * datagrams_max).next_power_of_two() } else { 1 };
        Self {
            trains: Vec::with_capacity(datagrams_max),
            next: Vec::with_capacity(datagrams_max),
            table: vec![NONE; table_len].into_boxed_slice(),
            order: Vec::with_capacity(datagrams_max),
            ends: Vec::with_capacity(datagrams_max),
            refused: Vec::with_capacity(datagrams_max),
            enabled,
            retrying: false,
            rest: 0,
            rest_next: REST_MIN,
        }
    }

    /// Whether trains are sent at all.
    pub(crate) fn sends_trains(&self) -> bool {
        self.enabled
    }

    /// Makes the plan for `outbox`.
    pub(crate) fn make(&mut self, outbox: &Outbox) {
        self.trains.clear();
        self.refused.clear();
        self.retrying = false;
        self.next.clear();
        self.next.resize(outbox.len(), NONE);
        let resting = self.rest > 0;
        self.rest = self.rest.saturating_sub(1);
        if !self.enabled || resting || outbox.is_scattered() {
            for (i, slot) in outbox.slots().iter().enumerate() {
                self.push(i, slot);
            }
            return;
        }
        for (i, slot) in outbox.slots().iter().enumerate() {
            self.add(i, slot);
        }
        for train in &self.trains {
            self.table[train.table_at as usize] = NONE;
        }
        if self.trains.len() > 1 {
            self.join_ends();
        }
    }

    /// The trains to send; after [`retry`](Self::retry) those of the second attempt.
    pub(crate) fn trains(&self) -> &[Train] {
        &self.trains
    }

    /// The datagrams of `train`, as numbers of slots in the outbox.
    pub(crate) fn slots(&self, train: &Train) -> impl Iterator<Item = usize> + use<'_> {
        let first = (train.count > 0).then_some(train.first);
        let next = |&i: &u32| Some(self.next[i as usize]).filter(|&next| next != NONE);
        core::iter::successors(first, next).map(|i| i as usize)
    }

    /// Counts train number `i` as sent.
    #[inline]
    pub(crate) fn sent(&mut self, i: usize, flushed: &mut FlushReport) {
        let train = &self.trains[i];
        flushed.sent += train.count;
        if train.count > 1 {
            flushed.trains += 1;
            self.rest_next = REST_MIN;
        } else if self.retrying {
            // The datagram alone was accepted, so the train was refused and not its content.
            self.rest = self.rest_next;
        }
    }

    /// Counts train number `i` as dropped because the queue stayed full.
    pub(crate) fn blocked(&self, i: usize, flushed: &mut FlushReport) {
        flushed.would_block += self.trains[i].count;
    }

    /// Records that the kernel refused train number `i` with `error`: counts a single datagram,
    /// keeps a train for the second attempt.
    #[cold]
    pub(crate) fn refused(&mut self, i: usize, error: i32, flushed: &mut FlushReport) {
        let train = self.trains[i];
        if train.count > 1 && may_be_about_trains(error) {
            flushed.trains_refused += 1;
            self.refused.push(train);
        } else {
            flushed.refuse(train.count, error);
        }
    }

    /// Makes the plan of a second attempt: the datagrams of refused trains, one by one. Returns
    /// false if there is nothing to send again.
    pub(crate) fn retry(&mut self, outbox: &Outbox) -> bool {
        if self.retrying && self.rest > 0 {
            self.rest_next = (self.rest_next * 2).min(REST_MAX);
        }
        if self.retrying || self.refused.is_empty() {
            return false;
        }
        self.retrying = true;
        self.trains.clear();
        for at in 0..self.refused.len() {
            let mut slot = self.refused[at].first;
            while slot != NONE {
                let next = core::mem::replace(&mut self.next[slot as usize], NONE);
                self.push(slot as usize, &outbox.slots()[slot as usize]);
                slot = next;
            }
        }
        true
    }

    /// Adds a train for datagram number `i`.
    #[inline]
    fn push(&mut self, i: usize, slot: &OutboxSlot) {
        #[expect(clippy::cast_possible_truncation, reason = "an outbox has at most 65536 slots")]
        let i = i as u32;
        let OutboxSlot { len, to, .. } = *slot;
        self.trains.push(Train { to, segment_len: len, count: 1, len, first: i, last: i, table_at: 0 });
    }

    /// Adds datagram number `i` to the train of its destination and length.
    #[inline]
    fn add(&mut self, i: usize, slot: &OutboxSlot) {
        let mask = self.table.len() - 1;
        let key = (u64::from(slot.to) << 32) | u64::from(slot.len);
        // The upper bits are well mixed.
        let mut table_at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & mask;
        loop {
            let number = self.table[table_at];
            let Some(train) = self.trains.get_mut(number as usize) else { break };
            if (train.to, train.segment_len) == (slot.to, slot.len) {
                // An empty datagram cannot be part of a train, because the kernel counts segments
                // by bytes.
                if !train.takes(slot.len) || slot.len == 0 {
                    break;
                }
                train.count += 1;
                train.len += slot.len;
                #[expect(clippy::cast_possible_truncation, reason = "an outbox has at most 65536 slots")]
                let i = i as u32;
                self.next[train.last as usize] = i;
                train.last = i;
                return;
            }
            table_at = (table_at + 1) & mask;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most 131072 places, no more trains than slots"
        )]
        {
            // A new train takes the place of the full one.
            self.table[table_at] = self.trains.len() as u32;
            self.push(i, slot);
            self.trains[self.table[table_at] as usize].table_at = table_at as u32;
        }
    }

    /// Makes single datagrams the shorter end of longer trains to the same peer.
    fn join_ends(&mut self) {
        self.order.clear();
        for (i, train) in self.trains.iter().enumerate() {
            // By peer, then longest segments first. The numbers of destinations and trains have at
            // most 16 bits.
            let shortness = u64::from(u32::MAX - train.segment_len) << 16;
            self.order.push((u64::from(train.to) << 48) | shortness | i as u64);
        }
        self.order.sort_unstable();
        self.ends.clear();
        let mut peer = NONE;
        for at in 0..self.order.len() {
            let i = (self.order[at] & 0xffff) as usize;
            let end = self.trains[i];
            if end.to != peer {
                peer = end.to;
                self.ends.clear();
            }
            if end.count == 1
                && end.len > 0
                && let Some(&longer) = self.ends.last()
                && self.trains[longer as usize].takes(end.len)
            {
                self.ends.pop();
                let longer = &mut self.trains[longer as usize];
                longer.count += 1;
                longer.len += end.len;
                self.next[longer.last as usize] = end.first;
                longer.last = end.first;
                self.trains[i].count = 0;
            } else if end.takes(1) && end.len > 0 {
                #[expect(clippy::cast_possible_truncation, reason = "16 bits, see above")]
                self.ends.push(i as u32);
            }
        }
        self.trains.retain(|train| train.count > 0);
    }
}

/// Whether a send may have failed because it was a train: the kernel or a device lacks support, or
/// finds it too long.
///
/// Each of these errors can also concern the datagram itself; then it occurs again when the
/// datagram is sent alone.
fn may_be_about_trains(error: i32) -> bool {
    matches!(error, libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::EMSGSIZE | libc::ENOPROTOOPT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Peer;

    fn peer(port: u16) -> Peer {
        Peer::to(([127, 0, 0, 1], port).into())
    }

    fn outbox(datagrams: &[(u16, usize)]) -> Outbox {
        let mut outbox = Outbox::new(datagrams.len().max(1), 1 << 22);
        for &(port, len) in datagrams {
            outbox.push(peer(port), len, |_| len).unwrap();
        }
        outbox
    }

    /// The trains of `plan`, as (port, lengths). Asserts that each datagram is in exactly one.
    fn trains(plan: &TrainPlan, outbox: &Outbox) -> Vec<(u16, Vec<usize>)> {
        let mut seen = vec![false; outbox.len()];
        let trains = plan.trains().iter().map(|train| {
            let slots: Vec<_> = plan.slots(train).collect();
            let lens: Vec<_> = slots.iter().map(|&i| outbox.get(i).1.len()).collect();
            for i in slots {
                assert_eq!(outbox.get(i).0, *outbox.peer(train.to), "a train has datagrams of several peers");
                assert!(!std::mem::replace(&mut seen[i], true), "{i} is in two trains");
            }
            assert_eq!(lens.len(), train.count as usize);
            assert!(lens.len() <= SEGMENTS_MAX as usize);
            if lens.len() > 1 {
                assert!(lens.iter().sum::<usize>() <= TRAIN_LEN_MAX as usize, "{lens:?}");
                let (end, same) = lens.split_last().unwrap();
                assert!(same.iter().all(|&len| len == same[0]) && *end <= same[0] && *end > 0, "{lens:?}");
                assert_eq!(train.segment_len().map(usize::from), Some(same[0]));
            } else {
                assert_eq!(train.segment_len(), None);
            }
            (outbox.peer(train.to).port, lens)
        });
        let trains = trains.collect();
        assert!(seen.iter().all(|&seen| seen), "a datagram is in no train");
        trains
    }

    fn plan(datagrams: &[(u16, usize)]) -> Vec<(u16, Vec<usize>)> {
        let outbox = outbox(datagrams);
        let mut plan = TrainPlan::new(datagrams.len(), true);
        let mut first = None;
        // State that a plan leaves behind must not affect the next one.
        for _ in 0..3 {
            plan.make(&outbox);
            let trains = trains(&plan, &outbox);
            assert_eq!(*first.get_or_insert_with(|| trains.clone()), trains);
        }
        first.unwrap()
    }

    #[test]
    fn groups_by_peer_and_length_wherever_they_are() {
        let trains = plan(&[(1, 9), (2, 9), (1, 8), (1, 9), (2, 9), (1, 8), (3, 9)]);
        assert_eq!(trains, [(1, vec![9, 9]), (2, vec![9, 9]), (1, vec![8, 8]), (3, vec![9])]);
    }

    #[test]
    fn a_datagram_of_unique_length_ends_a_longer_train() {
        assert_eq!(plan(&[(1, 5), (1, 9), (1, 9)]), [(1, vec![9, 9, 5])]);
        assert_eq!(plan(&[(1, 9), (1, 9), (1, 10)]), [(1, vec![9, 9]), (1, vec![10])], "only a shorter one");
        assert_eq!(plan(&[(1, 4), (1, 3), (1, 2), (1, 1)]), [(1, vec![4, 3]), (1, vec![2, 1])]);
        assert_eq!(plan(&[(1, 9), (2, 5), (1, 9)]), [(1, vec![9, 9]), (2, vec![5])], "to the same peer");
    }

    #[test]
    fn empty_datagrams_go_alone() {
        assert_eq!(plan(&[(1, 0), (1, 9), (1, 0), (1, 9)]), [(1, vec![0]), (1, vec![9, 9]), (1, vec![0])]);
    }

    #[test]
    fn limits_hold_at_their_edges() {
        let counts = |count, len| -> Vec<usize> {
            plan(&vec![(1, len); count]).iter().map(|(_, lens)| lens.len()).collect()
        };
        assert_eq!(counts(64, 100), [64]);
        assert_eq!(counts(65, 100), [64, 1]);
        assert_eq!(counts(130, 100), [64, 64, 2]);
        // 10 times 6544 are 65,440.
        assert_eq!(counts(10, 6544), [10]);
        assert_eq!(counts(11, 6544), [10, 1]);
        assert_eq!(counts(10, 6545), [9, 1]);
        assert_eq!(counts(2, 65_508), [1, 1]);
        let mut ends = vec![(1, 6544); 9];
        ends.push((1, 6543));
        assert_eq!(plan(&ends).len(), 1, "one byte to spare");
        ends.push((1, 1));
        assert_eq!(plan(&ends).len(), 2, "one end for each train");
    }

    #[test]
    fn trains_are_made_only_if_enabled() {
        let outbox = outbox(&[(1, 9); 5]);
        let mut plan = TrainPlan::new(5, false);
        plan.make(&outbox);
        assert_eq!(trains(&plan, &outbox).len(), 5);
    }

    #[test]
    fn any_mixture_keeps_the_rules() {
        let mut state = 1u64;
        let mut random = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((u128::from(state) * u128::from(end)) >> 64).unwrap()
        };
        for round in 0..300 {
            let count = 1 + random(700);
            let (peers, lens) =
                (1 + random(40) as u64, 1 + random(if round % 2 == 0 { 30 } else { 3000 }) as u64);
            let datagrams: Vec<_> =
                (0..count).map(|_| (u16::try_from(1 + random(peers)).unwrap(), random(lens))).collect();
            let outbox = outbox(&datagrams);
            let mut plan = TrainPlan::new(count, true);
            plan.make(&outbox);
            let made = trains(&plan, &outbox);
            // The plain rule: one train for each peer, length and 64 datagrams. Ends only make them
            // fewer.
            let mut plain = std::collections::BTreeMap::new();
            datagrams.iter().for_each(|&key| *plain.entry(key).or_insert(0usize) += 1);
            let alone =
                |len: usize| 65_440usize.checked_div(len).map_or(1, |count_max| count_max.clamp(1, 64));
            let plain: usize = plain.into_iter().map(|((_, len), count)| count.div_ceil(alone(len))).sum();
            assert!(made.len() <= plain, "round {round}: {} for {plain}", made.len());
        }
    }

    #[test]
    fn refused_trains_are_sent_one_by_one_and_then_suspended() {
        let outbox = outbox(&[(1, 9), (2, 9), (1, 9), (1, 3), (2, 9)]);
        let mut plan = TrainPlan::new(5, true);
        let mut rests = Vec::new();
        for _ in 0..4 {
            let mut flushed = FlushReport::default();
            plan.make(&outbox);
            assert_eq!(plan.trains().len(), 2);
            plan.refused(0, libc::EIO, &mut flushed);
            plan.refused(1, libc::ENETUNREACH, &mut flushed);
            assert_eq!((flushed.trains_refused, flushed.failed), (1, 2), "only errors that trains may cause");
            assert!(plan.retry(&outbox));
            let again = trains_of(&plan);
            assert_eq!(again, [1, 1, 1]);
            (0..3).for_each(|i| plan.sent(i, &mut flushed));
            assert!(!plan.retry(&outbox));
            assert_eq!((flushed.sent, flushed.failed, flushed.trains), (3, 2, 0));
            let mut rest = 0;
            loop {
                plan.make(&outbox);
                if plan.trains().len() < 5 {
                    break;
                }
                rest += 1;
            }
            rests.push(rest);
        }
        assert_eq!(rests, [16, 32, 64, 128]);
        let mut flushed = FlushReport::default();
        plan.sent(0, &mut flushed);
        assert_eq!((plan.rest_next, flushed.sent, flushed.trains), (REST_MIN, 3, 1));
    }

    fn trains_of(plan: &TrainPlan) -> Vec<u32> {
        plan.trains().iter().map(|train| train.count).collect()
    }
}
