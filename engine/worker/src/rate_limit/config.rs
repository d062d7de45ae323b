//! The section `[rate_limit]` of the configuration.

use super::limiter::RateLimits;
use super::prefix::AddressPrefix;
use handle_daemon::settings;
use handle_daemon::settings::{SettingRule, SettingType};

settings! {
    /// Limits on answers over UDP ([rate-limit.md](../rate-limit.md)). A rate is that of a prefix
    /// of source addresses, over all workers; 0 is no limit. Bytes are those of answers beyond the
    /// bytes of their requests.
    pub struct RateLimitConfig {
        /// Set this when all clients are known, as in a closed network: `false` does not limit
        /// answers over UDP.
        live enabled: bool = true;
        /// Set this when other limits are to be tried first: answers beyond them are sent, and only
        /// counted.
        live dry_run: bool = false;
        /// Set this when honest clients are limited, or a flood gets too much: bytes of one answer
        /// to one IPv4 /24 or IPv6 /56. Answers of several datagrams to an IPv4 address or IPv6 /64
        /// may have eight times as many in all, certified ones twice; a /24 or /48 has four times
        /// the share of an address.
        // About 80 times a second the same plain answer, 65 answers of 2 KiB, and 40 signed ones,
        // which cost a fortieth of a core.
        live bytes_per_s: u32 = 16 << 10;
        /// Set this when single clients take too much: datagrams of any kind to one IPv4 address or
        /// IPv6 /64.
        // No limit by address: the busiest clients of a server are a few large caches, which it
        // would cut off.
        live address_per_s: u32 = 0;
        /// Set this when single networks take too much: datagrams of any kind to one IPv4 /24 or
        /// IPv6 /48.
        live network_per_s: u32 = 0;
        /// Set this when clients with many requests are known, as caching servers: addresses and
        /// prefixes without a limit, besides 127.0.0.1 and ::1.
        live exempt: Vec<AddressPrefix> = Vec::new(), EXEMPT;
    } constants {
        /// Time for which unused rate accumulates: a burst of one second, in which a page with many
        /// links is looked up.
        burst_ms: u32 = 1_000;
        /// One in this many limited answers is sent as a short error, after which clients use TCP;
        /// 0 for none. A slipped answer is never longer than its request, so dropping it instead
        /// gains nothing, and honest clients do not wait for a timeout before they use TCP.
        slip: u32 = 1;
        /// Bytes of the table of equal answers of each worker: 131,072 networks and answers. The
        /// table of each other limit has a quarter of this.
        table_bytes: usize = 1 << 20;
    }
}

/// Long answers may have this many times the bytes of equal ones.
const LONG_FACTOR: u32 = 8;
/// Certified answers may have this many times the bytes of equal ones.
const CERTIFIED_FACTOR: u32 = 2;

/// Most prefixes without a limit.
const EXEMPT_MAX: usize = 1024;

const EXEMPT: SettingRule<Vec<AddressPrefix>> = SettingRule {
    words: "at most 1024",
    check: |exempt| match exempt.len() {
        0..=EXEMPT_MAX => Ok(()),
        len => Err(format!("has {len} prefixes: at most {EXEMPT_MAX}")),
    },
};

impl SettingType for AddressPrefix {
    fn type_name() -> String {
        "address or prefix".to_owned()
    }
}

impl RateLimitConfig {
    /// The limits of datagrams for one of `workers_count` workers.
    #[must_use]
    pub fn limits(&self, workers_count: usize) -> RateLimits {
        let share = |per_s| share(per_s, workers_count);
        RateLimits {
            ipv4: [self.address_per_s, self.network_per_s].map(share),
            ipv6: [0, self.address_per_s, 0, self.network_per_s].map(share),
            burst_ns: self.burst_ns(),
        }
    }

    /// Whether datagrams are limited.
    pub(super) const fn limits_datagrams(&self) -> bool {
        self.address_per_s | self.network_per_s > 0
    }

    /// The time that one byte of an answer uses up of the rate of its network.
    pub(super) fn equal_byte_ns(&self, workers_count: usize) -> u64 {
        share(self.bytes_per_s, workers_count)
    }

    /// The limits of bytes of long answers for one of `workers_count` workers.
    pub(super) fn long_limits(&self, workers_count: usize) -> RateLimits {
        self.byte_limits(self.bytes_per_s.saturating_mul(LONG_FACTOR), workers_count)
    }

    /// The limits of bytes of certified answers for one of `workers_count` workers.
    pub(super) fn certified_limits(&self, workers_count: usize) -> RateLimits {
        self.byte_limits(self.bytes_per_s.saturating_mul(CERTIFIED_FACTOR), workers_count)
    }

    fn byte_limits(&self, per_s: u32, workers_count: usize) -> RateLimits {
        let (one, network) = (share(per_s, workers_count), share(per_s.saturating_mul(4), workers_count));
        RateLimits { ipv4: [one, network], ipv6: [0, one, 0, network], burst_ns: self.burst_ns() }
    }

    /// How far ahead of the present a rate may be used up.
    pub(super) const fn burst_ns(&self) -> u64 {
        self.burst_ms as u64 * 1_000_000
    }
}

/// The time that one of `per_s` uses up of its prefix at one of `workers_count` workers. It is
/// rounded up, so that all workers together do not allow more than is configured.
fn share(per_s: u32, workers_count: usize) -> u64 {
    match per_s {
        0 => 0,
        per_s => (1_000_000_000 * workers_count.max(1) as u64).div_ceil(per_s.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_toml_and_says_what_is_wrong_with_it() {
        let text = "enabled = true\nexempt = [\"192.0.2.0/24\", \"::1\"]\nnetwork_per_s = 0";
        let config: RateLimitConfig = toml::from_str(text).unwrap();
        assert_eq!((config.exempt.len(), config.network_per_s, config.slip), (2, 0, 1));
        let again: RateLimitConfig = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again.exempt, config.exempt);
        let error = toml::from_str::<RateLimitConfig>("exempt = [\"192.0.2.1/24\"]").unwrap_err();
        assert!(error.to_string().contains("192.0.2.1/24"), "{error}");
    }

    #[test]
    fn workers_share_what_is_configured() {
        let config = RateLimitConfig { address_per_s: 3, ..Default::default() };
        assert_eq!(config.limits(1).ipv4, [333_333_334, 0]);
        assert_eq!(config.limits(4).ipv4, [1_333_333_334, 0]);
        let config = RateLimitConfig { network_per_s: 4000, address_per_s: 0, ..Default::default() };
        assert_eq!(config.limits(2).ipv6, [0, 0, 0, 500_000]);
        let config = RateLimitConfig { bytes_per_s: 125, ..config };
        let (long, certified) = (config.long_limits(2), config.certified_limits(2));
        assert_eq!((long.ipv4, long.ipv6), ([2_000_000, 500_000], [0, 2_000_000, 0, 500_000]));
        assert_eq!(certified.ipv4, [8_000_000, 2_000_000]);
        let config = RateLimitConfig { bytes_per_s: 0, ..config };
        assert_eq!((config.equal_byte_ns(2), config.long_limits(2).ipv4), (0, [0, 0]));
        assert!(config.limits_datagrams() && !RateLimitConfig::default().limits_datagrams());
    }
}
