//! The busiest source networks: prefixes of source addresses, from a sample of datagrams, in a
//! table of fixed size.
//!
//! A worker notes a sample of its datagrams with the space-saving algorithm of Metwally, Agrawal
//! and El Abbadi: a prefix that is not in the table replaces the one with the lowest count and
//! inherits that count. So a prefix whose share exceeds one slot's share of the table is always in
//! it, and counts are too high by at most the lowest count. Counts are halved every minute, so that
//! they reflect the last minutes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Interval at which counts are halved, in seconds.
const HALF_LIFE_S: u64 = 60;
/// Maximum attempts of a reader while the worker writes at the same time.
const READS_MAX: usize = 64;

/// Number of address bits that form a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixBits {
    /// For IPv4 addresses, at most 32.
    pub ipv4: u8,
    /// For IPv6 addresses, at most 64.
    pub ipv6: u8,
}

/// A network: the first bits of an address.
///
/// IPv6 networks are the upper half of the address. IPv4 networks are prefixed with `ffff:ffff`,
/// which would be a multicast address in IPv6, and no datagram has a multicast source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourcePrefix(u64);

const IPV4_MARK: u64 = 0xffff_ffff_0000_0000;

impl SourcePrefix {
    /// The network of `ip`. IPv4-mapped IPv6 addresses count as IPv4.
    #[must_use]
    pub fn of(ip: IpAddr, bits: PrefixBits) -> Self {
        let mask = |bits: u8| u64::MAX.checked_shl(64 - u32::from(bits)).unwrap_or(0);
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self(IPV4_MARK | u64::from(ip.to_bits()) & (mask(bits.ipv4) >> 32)),
            IpAddr::V6(ip) => Self((ip.to_bits() >> 64) as u64 & mask(bits.ipv6)),
        }
    }

    /// The network in text form, with its prefix length.
    #[must_use]
    pub fn show(self, bits: PrefixBits) -> String {
        match self.0 & IPV4_MARK == IPV4_MARK {
            #[expect(clippy::cast_possible_truncation, reason = "the lower half is the address")]
            true => format!("{}/{}", Ipv4Addr::from_bits(self.0 as u32), bits.ipv4),
            false => format!("{}/{}", Ipv6Addr::from_bits(u128::from(self.0) << 64), bits.ipv6),
        }
    }
}

/// The table of one worker. The worker writes and other threads read; neither blocks.
#[derive(Debug)]
pub struct Sources {
    /// Odd while the worker writes.
    version: AtomicU64,
    slots: Box<[SourceSlot]>,
    /// Number of all noted datagrams, halved together with the counts.
    total: AtomicU64,
}

/// A slot of the table; free when its count is 0.
#[derive(Debug, Default)]
struct SourceSlot {
    prefix: AtomicU64,
    count: AtomicU64,
}

impl Sources {
    /// A table of `slots_count` slots.
    #[must_use]
    pub fn new(slots_count: usize) -> Self {
        let slots = (0..slots_count).map(|_| SourceSlot::default()).collect();
        Self { version: AtomicU64::new(0), slots, total: AtomicU64::new(0) }
    }

    /// Changes the table. Readers that see a partial change start again. Only the owner may call
    /// this.
    fn write(&self, change: impl FnOnce(&[SourceSlot], &AtomicU64)) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change(&self.slots, &self.total);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Counts a datagram. Only the owner may call this.
    fn note(&self, prefix: SourcePrefix) {
        self.write(|slots, total| {
            add(total, 1);
            let mut rarest: Option<(&SourceSlot, u64)> = None;
            for slot in slots {
                let count = slot.count.load(Ordering::Relaxed);
                if count > 0 && slot.prefix.load(Ordering::Relaxed) == prefix.0 {
                    return add(&slot.count, 1);
                }
                if rarest.is_none_or(|(_, least)| count < least) {
                    rarest = Some((slot, count));
                }
            }
            if let Some((slot, _)) = rarest {
                slot.prefix.store(prefix.0, Ordering::Relaxed);
                add(&slot.count, 1);
            }
        });
    }

    /// Halves every count `times` times. Only the owner may call this.
    fn halve(&self, times: u32) {
        let halved = |number: &AtomicU64| {
            let count = number.load(Ordering::Relaxed).checked_shr(times).unwrap_or(0);
            number.store(count, Ordering::Relaxed);
        };
        self.write(|slots, total| {
            slots.iter().for_each(|slot| halved(&slot.count));
            halved(total);
        });
    }

    /// The prefixes in the table with their counts, and the total count.
    fn read(&self) -> (Vec<(SourcePrefix, u64)>, u64) {
        let mut read = (Vec::with_capacity(self.slots.len()), 0);
        for _ in 0..READS_MAX {
            let version = self.version.load(Ordering::Acquire);
            read.0.clear();
            for slot in &self.slots {
                let (prefix, count) =
                    (slot.prefix.load(Ordering::Relaxed), slot.count.load(Ordering::Relaxed));
                if count > 0 {
                    read.0.push((SourcePrefix(prefix), count));
                }
            }
            read.1 = self.total.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                break;
            }
            std::hint::spin_loop();
        }
        // After this many attempts, the result may mix two moments, so that one prefix has the
        // count of another.
        read
    }
}

fn add(number: &AtomicU64, count: u64) {
    number.store(number.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// The `count_max` prefixes with the most datagrams in all tables, each with its share of all
/// datagrams.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "shares for people")]
pub fn top<'s>(tables: impl IntoIterator<Item = &'s Sources>, count_max: usize) -> Vec<(SourcePrefix, f64)> {
    let (mut sums, mut all) = (HashMap::<SourcePrefix, u64>::new(), 0);
    for table in tables {
        let (counts, total) = table.read();
        all += total;
        for (prefix, count) in counts {
            *sums.entry(prefix).or_default() += count;
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(prefix, count)| (std::cmp::Reverse(count), prefix));
    sums.truncate(count_max);
    sums.into_iter().map(|(prefix, count)| (prefix, (count as f64 / all.max(1) as f64).min(1.0))).collect()
}

/// Selects the datagrams that a worker notes.
#[derive(Clone, Debug)]
pub struct SourceSampler {
    every: u32,
    bits: PrefixBits,
    /// Datagrams until the next one that is noted.
    gap: u32,
    random: u64,
    /// Time at which counts were last halved, in seconds since 1970.
    halved_s: u64,
}

impl SourceSampler {
    /// Notes one of `every` datagrams on average, or none if `every` is 0. The gaps are random,
    /// derived from `seed`, so that a sender cannot avoid the sample by timing its datagrams.
    #[must_use]
    pub const fn new(every: u32, bits: PrefixBits, seed: u64) -> Self {
        Self { every, bits, gap: 0, random: seed, halved_s: 0 }
    }

    /// Applies other parameters. Clears `sources` if its networks have another length or if its
    /// counts would no longer be halved.
    pub fn set(&mut self, sources: &Sources, every: u32, bits: PrefixBits) {
        if every == 0 || bits != self.bits {
            sources.halve(u32::MAX);
        }
        (self.every, self.bits, self.gap) = (every, bits, 0);
    }

    /// Notes a sample of `count` datagrams; `source` returns the source address of the datagram at
    /// a position.
    #[inline]
    pub fn sample(
        &mut self,
        sources: &Sources,
        now_unix_s: u64,
        count: usize,
        source: impl Fn(usize) -> IpAddr,
    ) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if self.every == 0 || self.gap >= count {
            self.gap = self.gap.saturating_sub(count);
            return;
        }
        self.note(sources, now_unix_s, count, source);
    }

    #[cold]
    fn note(&mut self, sources: &Sources, now_unix_s: u64, count: u32, source: impl Fn(usize) -> IpAddr) {
        let half_lives = now_unix_s.abs_diff(self.halved_s) / HALF_LIFE_S;
        if half_lives > 0 {
            self.halved_s = now_unix_s;
            sources.halve(u32::try_from(half_lives).unwrap_or(u32::MAX));
        }
        while self.gap < count {
            sources.note(SourcePrefix::of(source(self.gap as usize), self.bits));
            // The gap is between 1 and 2 * every - 1.
            self.gap = self.gap.saturating_add(1 + self.next() % (2 * self.every - 1));
        }
        self.gap -= count;
    }

    /// SplitMix64.
    fn next(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: PrefixBits = PrefixBits { ipv4: 24, ipv6: 48 };

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes_keep_as_many_bits_as_configured() {
        let show = |text, ipv4, ipv6| {
            let bits = PrefixBits { ipv4, ipv6 };
            SourcePrefix::of(ip(text), bits).show(bits)
        };
        assert_eq!(show("192.0.2.77", 24, 48), "192.0.2.0/24");
        assert_eq!(show("::ffff:192.0.2.77", 24, 48), "192.0.2.0/24");
        assert_eq!(show("192.0.2.77", 32, 48), "192.0.2.77/32");
        assert_eq!(show("192.0.2.77", 0, 48), "0.0.0.0/0");
        assert_eq!(show("2001:db8:1:2:3:4:5:6", 24, 48), "2001:db8:1::/48");
        assert_eq!(show("2001:db8:1:2:3:4:5:6", 24, 64), "2001:db8:1:2::/64");
        assert_eq!(show("2001:db8::", 24, 0), "::/0");
        assert_eq!(show("::1", 24, 48), "::/48");
        assert_ne!(SourcePrefix::of(ip("::1"), BITS), SourcePrefix::of(ip("0.0.0.0"), BITS));
    }

    fn all(sampler: &mut SourceSampler, sources: &Sources, now_s: u64, ips: &[IpAddr]) {
        for ips in ips.chunks(64) {
            sampler.sample(sources, now_s, ips.len(), |at| ips[at]);
        }
    }

    #[test]
    fn heavy_prefixes_are_found_among_many_light_ones() {
        let sources = Sources::new(32);
        let mut sampler = SourceSampler::new(4, BITS, 1);
        // A fifth of the datagrams is from one network, a tenth from another, the rest from twenty
        // thousand.
        let ips: Vec<IpAddr> = (0..100_000u32)
            .map(|i| match i % 10 {
                0 | 5 => IpAddr::from([192, 0, 2, (i % 250) as u8]),
                3 => ip("2001:db8:7::1"),
                _ => IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + (i % 20_000) * 256)),
            })
            .collect();
        all(&mut sampler, &sources, 5, &ips);
        let top = top([&sources], 2);
        let shown: Vec<_> = top.iter().map(|(prefix, _)| prefix.show(BITS)).collect();
        assert_eq!(shown, ["192.0.2.0/24", "2001:db8:7::/48"]);
        // Counts are too high by at most the lowest count, which is less than one slot's share of
        // the table.
        assert!((0.19..0.24).contains(&top[0].1) && (0.09..0.14).contains(&top[1].1), "{top:?}");
    }

    #[test]
    fn one_of_some_is_noted_in_the_mean() {
        for every in [1, 7, 64] {
            let (sources, mut sampler) = (Sources::new(4), SourceSampler::new(every, BITS, 7));
            all(&mut sampler, &sources, 5, &vec![ip("192.0.2.1"); 64_000]);
            let noted = sources.read().1;
            let expected = 64_000 / u64::from(every);
            assert!(noted.abs_diff(expected) <= expected / 10, "{noted} of {expected}");
        }
        let (sources, mut sampler) = (Sources::new(4), SourceSampler::new(0, BITS, 7));
        all(&mut sampler, &sources, 5, &[ip("192.0.2.1"); 1000]);
        assert_eq!(sources.read(), (vec![], 0), "none where none is wanted");
    }

    #[test]
    fn other_networks_begin_anew() {
        let (sources, mut sampler) = (Sources::new(4), SourceSampler::new(1, BITS, 7));
        let ips = [ip("192.0.2.1"), ip("192.0.2.2")];
        let shown =
            |bits| top([&sources], 4).into_iter().map(|(prefix, _)| prefix.show(bits)).collect::<Vec<_>>();
        all(&mut sampler, &sources, 5, &ips);
        sampler.set(&sources, 1, BITS);
        assert_eq!(shown(BITS), ["192.0.2.0/24"], "the same go on");
        let longer = PrefixBits { ipv4: 32, ..BITS };
        sampler.set(&sources, 1, longer);
        assert!(shown(longer).is_empty());
        all(&mut sampler, &sources, 5, &ips);
        assert_eq!(shown(longer), ["192.0.2.1/32", "192.0.2.2/32"]);
        sampler.set(&sources, 0, longer);
        all(&mut sampler, &sources, 5, &ips);
        assert!(shown(longer).is_empty(), "every entry is removed");
    }

    #[test]
    fn what_was_long_ago_fades() {
        let (sources, mut sampler) = (Sources::new(4), SourceSampler::new(1, BITS, 7));
        all(&mut sampler, &sources, 1000, &[ip("192.0.2.1"); 1000]);
        all(&mut sampler, &sources, 1000 + HALF_LIFE_S, &[ip("198.51.100.1"); 500]);
        let shares: Vec<f64> = top([&sources], 4).iter().map(|(_, share)| *share).collect();
        assert_eq!(shares, [0.5, 0.5]);
        all(&mut sampler, &sources, 100_000, &[ip("203.0.113.1")]);
        assert_eq!(top([&sources], 4).len(), 1, "nothing is left of the others");
        assert!(top([&Sources::new(4)], 4).is_empty());
    }

    #[test]
    fn tables_add_up_and_readers_never_see_half_a_change() {
        let tables = [Sources::new(2), Sources::new(2)];
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (at, table) in tables.iter().enumerate() {
                let stop = &stop;
                scope.spawn(move || {
                    let mut sampler = SourceSampler::new(1, BITS, at as u64);
                    let ips = [ip("192.0.2.1"), ip("2001:db8::1"), ip("198.51.100.1")];
                    // At least one round, however late the thread starts.
                    loop {
                        all(&mut sampler, table, 5, &ips);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            for _ in 0..2000 {
                for table in &tables {
                    let (counts, total) = table.read();
                    let sum: u64 = counts.iter().map(|(_, count)| count).sum();
                    // A share of the noted datagrams has left the table, but the table never holds
                    // more than was noted.
                    assert!(sum <= total, "{sum} of {total}");
                    assert!(counts.len() < 2 || counts[0].0 != counts[1].0, "each once: {counts:?}");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(top(&tables, 1).len() == 1 && top(&tables, 0).is_empty());
    }
}
