//! The model that the limiter is tested against: a map of prefixes without shared slots.

use super::bits_of;
use super::limiter::{IPV4_PREFIXES, IPV6_PREFIXES, RateLimits};
use std::collections::HashMap;
use std::net::IpAddr;

/// A prefix: whether it is IPv4, its length, and its bits.
type ModelPrefix = (bool, u32, u128);

/// A [`Limiter`](super::Limiter) in which no two prefixes share a slot. Its memory grows without
/// bound.
#[derive(Clone, Debug)]
pub struct LimiterModel {
    limits: RateLimits,
    used_until_ns: HashMap<ModelPrefix, u64>,
}

impl LimiterModel {
    /// Creates a limiter without history.
    #[must_use]
    pub fn new(limits: &RateLimits) -> Self {
        Self { limits: limits.clone(), used_until_ns: HashMap::new() }
    }

    /// Whether an answer may be sent to `address` at `now_ns`. Counts nothing.
    #[must_use]
    pub fn would_allow(&self, address: IpAddr, now_ns: u64) -> bool {
        self.prefixes(address).iter().all(|(prefix, datagram_ns)| {
            let used_until_ns = self.used_until_ns.get(prefix).copied().unwrap_or(0);
            let ahead_ns = used_until_ns.saturating_sub(now_ns);
            ahead_ns == 0 || ahead_ns.saturating_add(*datagram_ns) <= self.limits.burst_ns
        })
    }

    /// Counts an answer that was sent.
    pub fn count(&mut self, address: IpAddr, datagrams: u32, now_ns: u64) {
        for (prefix, datagram_ns) in self.prefixes(address) {
            let used_until_ns = self.used_until_ns.entry(prefix).or_default();
            let used_ns = datagram_ns.saturating_mul(u64::from(datagrams));
            *used_until_ns = (*used_until_ns).max(now_ns).saturating_add(used_ns);
        }
    }

    fn prefixes(&self, address: IpAddr) -> Vec<(ModelPrefix, u64)> {
        let (prefixes, limits, family_bits) = match address {
            IpAddr::V4(_) => (&IPV4_PREFIXES[..], &self.limits.ipv4[..], 32),
            IpAddr::V6(_) => (&IPV6_PREFIXES[..], &self.limits.ipv6[..], 128),
        };
        let prefix = |(&prefix_bits, &datagram_ns): (&u32, &u64)| {
            let bits = bits_of(address) >> (family_bits - prefix_bits);
            ((address.is_ipv4(), prefix_bits, bits), datagram_ns)
        };
        let limited = |(_, datagram_ns): &(ModelPrefix, u64)| *datagram_ns > 0;
        prefixes.iter().zip(limits).map(prefix).filter(limited).collect()
    }
}
