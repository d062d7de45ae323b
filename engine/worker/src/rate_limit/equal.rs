//! Equal answers: how many bytes of one answer a network may draw.

use super::limiter::HashSeed;
use std::net::IpAddr;

/// Bits of an IPv4 address that identify a network here, as in BIND and NSD.
const IPV4_BITS: u32 = 24;
/// Bits of an IPv6 address that identify a network here.
const IPV6_BITS: u32 = 56;

/// Decaying counters of bytes, by network and answer.
///
/// A counter is the time until which its pair has used up its bytes, as in
/// [`Limiter`](super::Limiter), and slots are shared in the same way: no pair gets more than the
/// limit, whatever else is in the table. The requests of a cache for many different names spread
/// over all slots, and each slot drains: a table of 2^17 slots at 16 KiB/s lets 2 GiB/s of
/// different answers pass.
#[derive(Debug)]
pub struct EqualAnswers {
    slots: Box<[u64]>,
    /// Bits of a hash that are discarded.
    shift: u32,
    network_factor: u64,
    answer_factor: u64,
    /// The time that one byte uses up of its pair, in nanoseconds; 0 for no limit.
    byte_ns: u64,
    /// How far ahead of the present a counter may be for another answer to be sent.
    ahead_ns_max: u64,
}

/// The hash of a network. The caller keeps it while it answers the same peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkHash(u64);

impl EqualAnswers {
    /// Creates a table in `table_bytes` of memory, rounded up to a power of two. A byte costs its
    /// pair `byte_ns`, and `burst_ns` may be used up in advance.
    #[must_use]
    pub fn new(byte_ns: u64, burst_ns: u64, table_bytes: usize, seed: HashSeed) -> Self {
        let slots_count = table_bytes.div_ceil(size_of::<u64>()).next_power_of_two().max(2);
        let HashSeed([network_factor, answer_factor, ..]) = seed;
        let mut this = Self {
            slots: vec![0; slots_count].into_boxed_slice(),
            shift: u64::BITS - slots_count.trailing_zeros(),
            network_factor: network_factor | 1,
            answer_factor: answer_factor | 1,
            byte_ns: 0,
            ahead_ns_max: 0,
        };
        this.set(byte_ns, burst_ns);
        this
    }

    /// Applies a new limit from now on. Pairs keep what they have used up.
    pub fn set(&mut self, byte_ns: u64, burst_ns: u64) {
        self.byte_ns = byte_ns;
        self.ahead_ns_max = if byte_ns == 0 { u64::MAX } else { burst_ns.saturating_sub(byte_ns) };
    }

    /// The network of `address`, for the other methods.
    #[inline]
    #[must_use]
    pub fn network(&self, address: IpAddr) -> NetworkHash {
        let bits = match address {
            // The marker is above the bits of any IPv6 network.
            IpAddr::V4(address) => u64::from(address.to_bits() >> (32 - IPV4_BITS)) | 1 << 63,
            IpAddr::V6(address) => (address.to_bits() >> (128 - IPV6_BITS)) as u64,
        };
        NetworkHash(bits.wrapping_mul(self.network_factor))
    }

    /// Whether `bytes` of `answer` may be sent to `network` at `now_ns`. Allowed bytes are counted.
    /// An answer that exceeds the limit is sent completely, and later ones wait until the debt is
    /// worked off.
    #[inline]
    pub fn allows(&mut self, network: NetworkHash, answer: u64, bytes: u32, now_ns: u64) -> bool {
        let (byte_ns, ahead_ns_max) = (self.byte_ns, self.ahead_ns_max);
        let slot = self.slot(network, answer);
        let used_until_ns = (*slot).max(now_ns);
        if used_until_ns - now_ns > ahead_ns_max {
            return false;
        }
        *slot = used_until_ns.saturating_add(byte_ns.saturating_mul(bytes.into()));
        true
    }

    /// Whether the limit forbids sending `answer` to `network` at `now_ns`.
    pub fn is_over(&mut self, network: NetworkHash, answer: u64, now_ns: u64) -> bool {
        let ahead_ns_max = self.ahead_ns_max;
        self.slot(network, answer).saturating_sub(now_ns) > ahead_ns_max
    }

    /// Counts `bytes` of `answer` that were sent to `network`, whether or not its limit allows
    /// them.
    pub fn count(&mut self, network: NetworkHash, answer: u64, bytes: u32, now_ns: u64) {
        let used_ns = self.byte_ns.saturating_mul(bytes.into());
        let slot = self.slot(network, answer);
        *slot = (*slot).max(now_ns).saturating_add(used_ns);
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "no more bits than a position in memory has")]
    fn slot(&mut self, network: NetworkHash, answer: u64) -> &mut u64 {
        let hash = network.0.wrapping_add(answer.wrapping_mul(self.answer_factor));
        &mut self.slots[(hash >> self.shift) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const SEED: HashSeed = HashSeed([0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0, 0, 0, 0, 0]);
    const MS: u64 = 1_000_000;

    /// 1,000 bytes a second, and a burst of 1,000.
    fn equal_answers(table_bytes: usize) -> EqualAnswers {
        EqualAnswers::new(MS, 1000 * MS, table_bytes, SEED)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_answer_to_one_network_draws_its_burst_and_then_its_rate() {
        let mut table = equal_answers(1 << 20);
        let one = table.network(address("192.0.2.1"));
        let drawn = |table: &mut EqualAnswers, now_ns| {
            (0..1000).filter(|_| table.allows(one, 0x7f00_1000, 100, now_ns)).count()
        };
        assert_eq!(drawn(&mut table, MS), 10, "the burst");
        assert_eq!(drawn(&mut table, 101 * MS), 1, "the next");
        assert_eq!(drawn(&mut table, 9_000 * MS), 10, "no more is saved up than the burst");
    }

    #[test]
    fn a_network_is_one_and_its_neighbour_another() {
        for (one, same, beside) in [
            ("192.0.2.1", "192.0.2.255", "192.0.3.1"),
            ("2001:db8::1", "2001:db8:0:ff::1", "2001:db8:0:100::1"),
        ] {
            let table = equal_answers(1 << 20);
            let [one, same, beside] = [one, same, beside].map(|text| table.network(address(text)));
            assert_eq!(one, same);
            assert_ne!(one, beside);
        }
    }

    #[test]
    fn a_million_different_answers_to_one_network_are_not_limited() {
        let mut table = EqualAnswers::new(1_000_000_000 / (16 << 10), 1000 * MS, 1 << 20, SEED);
        let one = table.network(address("192.0.2.1"));
        // Records of 272 bytes one after another, half a million answers a second.
        let answers = (0..1_000_000_u64).map(|at| (0x7f12_3456_7000 + at * 272, at * 2_000));
        assert_eq!(answers.filter(|&(answer, now_ns)| !table.allows(one, answer, 200, now_ns)).count(), 0);
    }

    proptest! {
        #[test]
        fn no_pair_gets_more_than_its_limit_where_slots_are_shared(
            requests in prop::collection::vec((0..4_u8, 0..4_u64, 0..600_u32, 0..50 * MS), 1..300),
            seed in any::<[u64; 7]>(),
            slots in 1..64_usize,
        ) {
            let mut table = EqualAnswers::new(MS, 1000 * MS, slots * 8, HashSeed(seed));
            let mut used_until_ns: HashMap<(u8, u64), u64> = HashMap::new();
            let mut now_ns = MS;
            for (network, answer, bytes, later_ns) in requests {
                now_ns += later_ns;
                let hash = table.network(IpAddr::from([198, 51, network, 1]));
                let model = used_until_ns.entry((network, answer)).or_default();
                *model = (*model).max(now_ns);
                let is_over = table.is_over(hash, answer, now_ns);
                let is_allowed = table.allows(hash, answer, bytes, now_ns);
                prop_assert_eq!(is_allowed, !is_over);
                if is_allowed {
                    prop_assert!(*model - now_ns <= 999 * MS, "{network} {answer} at {now_ns}");
                    *model += u64::from(bytes) * MS;
                }
            }
        }
    }
}
