//! How many of something each source has: of addresses that many share, and of networks that one
//! party has.

use crate::permits::{networks_around, times};
use handle_auth::holder_counts::HolderCounts;
use handle_auth::source::Network;
use std::net::IpAddr;

/// How many of something each source has.
///
/// A source is an IPv4 address or a /64 of IPv6, or as many bits of them as are set. Providers give
/// a customer a /56 and an organisation a /48 of IPv6, so these count as well: a network that is 8
/// bits shorter may have twice as many as a source, and one that is 16 bits shorter four times as
/// many.
#[derive(Clone, Debug)]
pub struct SourceCounts {
    prefix_v4: u8,
    prefix_v6: u8,
    counts: HolderCounts<Network>,
}

impl Default for SourceCounts {
    fn default() -> Self {
        Self::new(32, 64)
    }
}

impl SourceCounts {
    /// No counts, of sources with so many bits of IPv4 and of IPv6.
    #[must_use]
    pub fn new(prefix_v4: u32, prefix_v6: u32) -> Self {
        // Longer prefixes than an address has bits stand for all of them.
        let [prefix_v4, prefix_v6] = [prefix_v4, prefix_v6].map(|bits| u8::try_from(bits).unwrap_or(u8::MAX));
        Self { prefix_v4: prefix_v4.min(32), prefix_v6: prefix_v6.min(128), counts: HolderCounts::default() }
    }

    fn networks(&self, address: IpAddr) -> impl Iterator<Item = Network> + use<> {
        networks_around(address, self.prefix_v4, self.prefix_v6)
    }

    /// Whether the source of `address`, which may have `most`, and the networks around it may have
    /// one more.
    #[must_use]
    pub fn has_capacity(&self, address: IpAddr, most: usize) -> bool {
        self.has_capacity_for(address, 1, most)
    }

    /// Whether the source of `address`, which may have `most`, and the networks around it may have
    /// `number` more.
    #[must_use]
    pub fn has_capacity_for(&self, address: IpAddr, number: usize, most: usize) -> bool {
        self.networks(address)
            .enumerate()
            .all(|(at, network)| self.counts.count(&network).saturating_add(number) <= times(at, most))
    }

    /// Counts one more of `address`.
    pub fn add(&mut self, address: IpAddr) {
        self.add_number(address, 1);
    }

    /// Counts `number` more of `address`.
    pub fn add_number(&mut self, address: IpAddr, number: usize) {
        for network in self.networks(address) {
            self.counts.add(network, number);
        }
    }

    /// Counts one less of `address`, which was counted before.
    pub fn remove(&mut self, address: IpAddr) {
        self.remove_number(address, 1);
    }

    /// Counts `number` less of `address`, which were counted before.
    pub fn remove_number(&mut self, address: IpAddr, number: usize) {
        for network in self.networks(address) {
            self.counts.remove(&network, number);
        }
    }

    /// How many the source of `address` has.
    #[must_use]
    pub fn count(&self, address: IpAddr) -> usize {
        self.networks(address).next().map_or(0, |source| self.counts.count(&source))
    }

    /// Whether nothing is counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_networks_around_a_source_of_ipv6_are_bounded_too() {
        let v6 = |a: u16, b: u16| IpAddr::from([0x2001, 0xdb8, a, b, 0, 0, 0, 1]);
        let mut counts = SourceCounts::default();
        let mut admitted = 0;
        // A /48 has 65,536 sources; 300 of one /56, then those of another.
        for source in 0..600 {
            while counts.has_capacity(v6(1, source), 10) {
                counts.add(v6(1, source));
                admitted += 1;
            }
            if source == 255 {
                assert_eq!(admitted, 20, "a /56 has twice as many as a source");
            }
        }
        assert_eq!(admitted, 40, "and a /48 four times as many");
        assert_eq!(counts.count(v6(1, 0)), 10);
        assert!(counts.has_capacity(v6(2, 0), 10), "another /48");
        for (source, count) in [(0, 10), (1, 10), (256, 10), (257, 10)] {
            (0..count).for_each(|_| counts.remove(v6(1, source)));
        }
        assert!(counts.is_empty(), "counted out as they were counted in");
    }

    #[test]
    fn ipv4_addresses_count_alone_and_prefixes_may_be_set() {
        let v4 = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut counts = SourceCounts::default();
        counts.add(v4(1));
        assert!(!counts.has_capacity(v4(1), 1) && counts.has_capacity(v4(2), 1));
        let mut all = SourceCounts::new(0, 0);
        all.add(v4(1));
        assert!(!all.has_capacity(IpAddr::from([198, 51, 100, 1]), 1), "a prefix of nothing is everybody");
        assert!(all.has_capacity(IpAddr::from([0; 16]), 1), "of one protocol");
        let mut one = SourceCounts::new(32, 128);
        let v6 = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        one.add(v6(1));
        assert!(!one.has_capacity(v6(1), 1) && one.has_capacity(v6(2), 1));
        one.add(v6(2));
        assert!(!one.has_capacity(v6(3), 1), "twice as many of 120 bits");
    }
}
