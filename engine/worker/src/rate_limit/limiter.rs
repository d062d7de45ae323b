//! The decision of rate limiting: a table of times, and the slots in it that belong to a source
//! address.

use std::net::IpAddr;

/// Lengths of the limited IPv4 prefixes, in bits.
pub const IPV4_PREFIXES: [u32; 2] = [32, 24];
/// Lengths of the limited IPv6 prefixes, in bits.
pub const IPV6_PREFIXES: [u32; 4] = [128, 64, 56, 48];

/// The rates of prefixes. Each is the time that one datagram or byte uses up of its prefix, in
/// nanoseconds; 0 for no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// In the order of [`IPV4_PREFIXES`].
    pub ipv4: [u64; IPV4_PREFIXES.len()],
    /// In the order of [`IPV6_PREFIXES`].
    pub ipv6: [u64; IPV6_PREFIXES.len()],
    /// How far ahead of the present a prefix may use up its rate, in nanoseconds; a single datagram
    /// is always allowed.
    pub burst_ns: u64,
}

/// The secret that chooses slots, so that clients cannot search for addresses that share a slot.
#[derive(Clone, Copy)]
pub struct HashSeed(pub [u64; 7]);

impl std::fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// Decaying counters of datagrams, by prefix of the source address.
///
/// A counter is the time until which its prefix has used up its rate: each datagram adds its share
/// of a second, and the passing of time removes it again. A counter takes one word, and no sweeping
/// is needed.
///
/// A prefix has one slot of the table. Slots are shared, not taken over: a flood from forged
/// addresses can make other prefixes wait that share a slot with a busy one, but can never make the
/// limiter forget, so **no prefix gets more than its limit**, whatever else is in the table. The
/// answer that exceeds the limit is still sent completely, and later answers wait until the debt is
/// worked off. So an answer of many datagrams can be sent at all, at the same rate of datagrams.
///
/// The slot is the upper bits of the product of the prefix and a secret odd number, with a
/// different number for each prefix length. For any two prefixes chosen without knowing it, the
/// probability of sharing a slot is at most two divided by the number of slots (Dietzfelbinger and
/// others, 1997: multiply-shift hashing).
#[derive(Debug)]
pub struct Limiter {
    slots: Box<[u64]>,
    /// Bits of a hash that are discarded.
    shift: u32,
    ipv4: [PrefixLevel; IPV4_PREFIXES.len()],
    ipv6: [PrefixLevel; IPV6_PREFIXES.len()],
    /// The factor for the bits of a /128 below its /64.
    host_factor: u64,
}

/// The state for one prefix length.
#[derive(Clone, Copy, Debug)]
struct PrefixLevel {
    factor: u64,
    datagram_ns: u64,
    /// How far ahead of the present a counter may be for another datagram to be sent.
    ahead_ns_max: u64,
}

impl PrefixLevel {
    const fn new(factor: u64, datagram_ns: u64, burst_ns: u64) -> Self {
        let ahead_ns_max = if datagram_ns == 0 { u64::MAX } else { burst_ns.saturating_sub(datagram_ns) };
        Self { factor: factor | 1, datagram_ns, ahead_ns_max }
    }
}

impl Limiter {
    /// Creates a limiter in `table_bytes` of memory, rounded up to a power of two.
    #[must_use]
    pub fn new(limits: &RateLimits, table_bytes: usize, seed: HashSeed) -> Self {
        let slots_count = table_bytes.div_ceil(size_of::<u64>()).next_power_of_two().max(2);
        let HashSeed([a, b, c, d, e, f, g]) = seed;
        let level = |factor, datagram_ns| PrefixLevel::new(factor, datagram_ns, limits.burst_ns);
        let ([host, network], [host6, site64, site56, site48]) = (limits.ipv4, limits.ipv6);
        Self {
            slots: vec![0; slots_count].into_boxed_slice(),
            shift: u64::BITS - slots_count.trailing_zeros(),
            ipv4: [level(a, host), level(b, network)],
            ipv6: [level(c, host6), level(d, site64), level(e, site56), level(f, site48)],
            host_factor: g | 1,
        }
    }

    /// Applies new limits from now on. Prefixes keep what they have used up, and the time that they
    /// have to wait for it does not change.
    pub fn set(&mut self, limits: &RateLimits) {
        let (v4, v6) = (self.ipv4.iter_mut().zip(limits.ipv4), self.ipv6.iter_mut().zip(limits.ipv6));
        for (level, datagram_ns) in v4.chain(v6) {
            *level = PrefixLevel::new(level.factor, datagram_ns, limits.burst_ns);
        }
    }

    /// Whether an answer of `datagrams` may be sent to `address` at `now_ns`. An allowed answer is
    /// counted; a refused one is not.
    ///
    /// An answer is allowed when each prefix of the address has a datagram left in its burst. When
    /// time goes backwards, prefixes wait longer.
    #[inline]
    pub fn allows(&mut self, address: IpAddr, datagrams: u32, now_ns: u64) -> bool {
        self.take(address, LimiterStep::Allow, datagrams, now_ns)
    }

    /// Whether a prefix of `address` has nothing left at `now_ns`.
    pub fn is_over(&mut self, address: IpAddr, now_ns: u64) -> bool {
        !self.take(address, LimiterStep::Look, 0, now_ns)
    }

    /// Counts datagrams that were sent to `address`, whether or not its limit allows them.
    pub fn count(&mut self, address: IpAddr, datagrams: u32, now_ns: u64) {
        self.take(address, LimiterStep::Count, datagrams, now_ns);
    }

    #[inline]
    fn take(&mut self, address: IpAddr, step: LimiterStep, datagrams: u32, now_ns: u64) -> bool {
        match address {
            IpAddr::V4(address) => {
                let [host, network] = &self.ipv4;
                let bits = u64::from(address.to_bits());
                let hashes = [bits.wrapping_mul(host.factor), (bits >> 8).wrapping_mul(network.factor)];
                decide(&mut self.slots, self.shift, hashes, &self.ipv4, step, datagrams, now_ns)
            }
            IpAddr::V6(address) => {
                let [host, site64, site56, site48] = &self.ipv6;
                let (high, low) = halves(address.to_bits());
                let hashes = [
                    high.wrapping_mul(host.factor).wrapping_add(low.wrapping_mul(self.host_factor)),
                    high.wrapping_mul(site64.factor),
                    (high >> 8).wrapping_mul(site56.factor),
                    (high >> 16).wrapping_mul(site48.factor),
                ];
                decide(&mut self.slots, self.shift, hashes, &self.ipv6, step, datagrams, now_ns)
            }
        }
    }
}

/// How a decision changes the counters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LimiterStep {
    /// Changes nothing.
    Look,
    /// Counts if the limit allows it.
    Allow,
    /// Counts in any case.
    Count,
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "no more bits than a position in memory has")]
fn decide<const N: usize>(
    slots: &mut [u64],
    shift: u32,
    hashes: [u64; N],
    levels: &[PrefixLevel; N],
    step: LimiterStep,
    datagrams: u32,
    now_ns: u64,
) -> bool {
    let mut used_until_ns = [0; N];
    let mut is_over = false;
    for ((hash, level), used_until_ns) in hashes.iter().zip(levels).zip(&mut used_until_ns) {
        *used_until_ns = slots[(hash >> shift) as usize].max(now_ns);
        is_over |= *used_until_ns - now_ns > level.ahead_ns_max;
    }
    if step == LimiterStep::Look || step == LimiterStep::Allow && is_over {
        return !is_over;
    }
    for ((hash, level), used_until_ns) in hashes.iter().zip(levels).zip(used_until_ns) {
        let used_ns = level.datagram_ns.saturating_mul(datagrams.into());
        let slot = &mut slots[(hash >> shift) as usize];
        // Two prefixes of one address may share a slot.
        *slot = (*slot).max(used_until_ns.saturating_add(used_ns));
    }
    true
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
const fn halves(bits: u128) -> (u64, u64) {
    ((bits >> 64) as u64, bits as u64)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::model::LimiterModel;
    use super::*;
    use proptest::prelude::*;

    pub(in crate::rate_limit) const SEED: HashSeed = HashSeed([
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
        0xd6e8_feb8_6659_fd93,
        0xa076_1d64_78bd_642f,
        0xe703_7ed1_a0b4_28db,
        0x8ebc_6af0_9c88_c6e3,
    ]);
    const MS: u64 = 1_000_000;

    /// 100 datagrams a second, 10 at once, to each /32 and /128; 250 and 25 to the next wider.
    fn limits() -> RateLimits {
        RateLimits { ipv4: [10 * MS, 4 * MS], ipv6: [10 * MS, 4 * MS, 2 * MS, MS], burst_ns: 100 * MS }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// How many answers of one datagram are sent under continuous requests.
    fn drawn(limiter: &mut Limiter, addresses: impl Iterator<Item = IpAddr>, now_ns: u64) -> usize {
        addresses.filter(|&address| limiter.allows(address, 1, now_ns)).count()
    }

    #[test]
    fn one_address_draws_its_burst_and_then_its_rate() {
        for one in ["192.0.2.1", "2001:db8::1"] {
            let mut limiter = Limiter::new(&limits(), 1 << 20, SEED);
            let many = || std::iter::repeat_n(address(one), 1000);
            assert_eq!(drawn(&mut limiter, many(), MS), 10, "{one}: the burst");
            assert_eq!(drawn(&mut limiter, many(), 11 * MS - 1), 0, "{one}: just before the next");
            assert_eq!(drawn(&mut limiter, many(), 11 * MS), 1, "{one}: the next");
            assert_eq!(
                drawn(&mut limiter, many(), 1_011 * MS),
                10,
                "{one}: no more is saved up than the burst"
            );
        }
    }

    #[test]
    fn each_wider_prefix_has_a_limit_of_its_own() {
        let v6 = |network: u16, host: u16| IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]);
        for (name, expected, addresses) in [
            ("/24", 25, (0..=255).map(|host| IpAddr::from([192, 0, 2, host])).collect::<Vec<_>>()),
            ("/64", 25, (0..1000).map(|host| v6(0, host)).collect()),
            ("/56", 50, (0..1000).map(|host| v6(host % 256, host)).collect()),
            ("/48", 100, (0..1000).map(|host| v6(host * 64, host)).collect()),
        ] {
            let mut limiter = Limiter::new(&limits(), 1 << 24, SEED);
            assert_eq!(drawn(&mut limiter, addresses.into_iter(), MS), expected, "{name}");
        }
    }

    #[test]
    fn the_neighbour_outside_the_prefix_is_answered() {
        for (flooding, beside) in [
            ("192.0.2.1", "192.0.2.2"),
            ("192.0.2.1", "192.0.3.1"),
            ("2001:db8::1", "2001:db8::2"),
            ("2001:db8::1", "2001:db8:0:1::1"),
        ] {
            let mut limiter = Limiter::new(&limits(), 1 << 20, SEED);
            drawn(&mut limiter, std::iter::repeat_n(address(flooding), 1000), MS);
            assert!(!limiter.allows(address(flooding), 1, MS));
            assert!(limiter.allows(address(beside), 1, MS), "{beside}");
        }
    }

    #[test]
    fn an_answer_costs_what_it_has_datagrams_and_is_not_cut() {
        let mut limiter = Limiter::new(&limits(), 1 << 20, SEED);
        let one = address("192.0.2.1");
        assert!(limiter.allows(one, 128, MS), "longer than the burst, but nothing was used");
        // 128 datagrams at 100 a second, less the burst except for the next datagram.
        let free_ns = MS + 1_280 * MS - 90 * MS;
        assert!(!limiter.allows(one, 1, free_ns - 1));
        assert!(limiter.allows(one, 1, free_ns));
    }

    #[test]
    fn what_is_counted_without_asking_is_waited_for_and_looking_costs_nothing() {
        let mut limiter = Limiter::new(&limits(), 1 << 20, SEED);
        let one = address("192.0.2.1");
        assert!(!limiter.is_over(one, MS));
        for _ in 0..3 {
            limiter.count(one, 100, MS);
        }
        // 300 datagrams at 100 a second, less the burst except for the next datagram.
        let free_ns = MS + 3_000 * MS - 90 * MS;
        assert!(limiter.is_over(one, free_ns - 1));
        assert!(!limiter.is_over(one, free_ns) && !limiter.is_over(one, free_ns));
        assert!(limiter.is_over(address("192.0.2.2"), MS), "the network counts too");
    }

    #[test]
    fn time_that_goes_backwards_frees_nothing() {
        let mut limiter = Limiter::new(&limits(), 1 << 20, SEED);
        let one = address("192.0.2.1");
        assert_eq!(drawn(&mut limiter, std::iter::repeat_n(one, 20), 1000 * MS), 10);
        assert_eq!(drawn(&mut limiter, std::iter::repeat_n(one, 20), 0), 0);
        assert!(limiter.allows(one, u32::MAX, u64::MAX), "and its end is not passed");
        assert!(limiter.allows(one, 1, u64::MAX));
    }

    #[test]
    fn without_limits_everything_goes_out() {
        let mut limiter = Limiter::new(&RateLimits { burst_ns: 1, ..RateLimits::default() }, 4096, SEED);
        assert_eq!(drawn(&mut limiter, std::iter::repeat_n(address("::1"), 1000), 0), 1000);
    }

    /// With many busy prefixes, few other prefixes wait without need.
    #[test]
    fn few_innocent_addresses_share_the_slot_of_busy_ones() {
        let limits = RateLimits { ipv4: [10 * MS, 0], ..limits() };
        let mut limiter = Limiter::new(&limits, 1 << 20, SEED);
        for host in 0..2_000_u32 {
            let busy = IpAddr::from((0x0a00_0000 + host * 977).to_be_bytes());
            drawn(&mut limiter, std::iter::repeat_n(busy, 20), MS);
        }
        let requests_count = 100_000_u32;
        let others = (0..requests_count).map(|host| IpAddr::from((0xc000_0000 + host * 31).to_be_bytes()));
        let waiting = requests_count as usize - drawn(&mut limiter, others, MS);
        // 2,000 of 131,072 slots are 1.5 %; collisions among the others add less than that.
        assert!(waiting < requests_count as usize / 50, "{waiting} of {requests_count} wait");
    }

    fn requests() -> impl Strategy<Value = Vec<(bool, u8, u8, u32, u64)>> {
        let times = prop_oneof![0..3 * MS, Just(0), 50 * MS..200 * MS];
        let datagrams = prop_oneof![Just(1_u32), 1..10_u32, Just(534)];
        prop::collection::vec((any::<bool>(), 0..6_u8, 0..6_u8, datagrams, times), 1..300)
    }

    fn address_of(is_ipv4: bool, network: u8, host: u8) -> IpAddr {
        match is_ipv4 {
            true => IpAddr::from([198, 51, network, host]),
            false => {
                let network = [0_u16, 1, 0x100, 0x101, 0xffff, 2][usize::from(network) % 6];
                IpAddr::from([0x2001, 0xdb8, u16::from(host) % 2, network, 0, 0, 0, host.into()])
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_its_definition_where_no_slots_are_shared(requests in requests()) {
            // Large enough that the few prefixes of this test have slots of their own with this
            // seed.
            let mut limiter = Limiter::new(&limits(), 1 << 24, SEED);
            let (mut model, mut now_ns) = (LimiterModel::new(&limits()), MS);
            for (is_ipv4, network, host, datagrams, later_ns) in requests {
                now_ns += later_ns;
                let address = address_of(is_ipv4, network, host);
                let expected = model.would_allow(address, now_ns);
                prop_assert_eq!(limiter.allows(address, datagrams, now_ns), expected, "{} at {}", address, now_ns);
                if expected {
                    model.count(address, datagrams, now_ns);
                }
            }
        }

        #[test]
        fn no_prefix_gets_more_than_its_limit_where_slots_are_shared(
            requests in requests(), seed in any::<[u64; 7]>()
        ) {
            let mut limiter = Limiter::new(&limits(), 64, HashSeed(seed));
            let (mut model, mut now_ns) = (LimiterModel::new(&limits()), MS);
            for (is_ipv4, network, host, datagrams, later_ns) in requests {
                now_ns += later_ns;
                let address = address_of(is_ipv4, network, host);
                if limiter.allows(address, datagrams, now_ns) {
                    prop_assert!(model.would_allow(address, now_ns), "{} at {}", address, now_ns);
                    model.count(address, datagrams, now_ns);
                }
            }
        }
    }
}
