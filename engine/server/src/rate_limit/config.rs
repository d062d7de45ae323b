//! The section `[rate_limit]` of the configuration.

use super::limiter::Limits;
use super::prefix::Prefix;
use anyhow::ensure;
use serde::{Deserialize, Serialize};

/// How many datagrams go to whom. A rate is of a prefix of source addresses and of the whole server; 0 is
/// no limit.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimitConfig {
    /// Limit answers over UDP.
    pub enabled: bool,
    /// Only count what would be limited, and send it.
    pub dry_run: bool,
    /// Datagrams a second to one IPv4 address.
    pub ipv4_32_per_s: u32,
    /// Datagrams a second to a /24 of IPv4.
    pub ipv4_24_per_s: u32,
    /// Datagrams a second to one IPv6 address.
    pub ipv6_128_per_s: u32,
    /// Datagrams a second to a /64 of IPv6.
    pub ipv6_64_per_s: u32,
    /// Datagrams a second to a /56 of IPv6.
    pub ipv6_56_per_s: u32,
    /// Datagrams a second to a /48 of IPv6.
    pub ipv6_48_per_s: u32,
    /// How long a prefix saves up what it does not use, in milliseconds: so much goes out at once.
    pub burst_ms: u32,
    /// Of so many limited answers one goes out as a short error, upon which clients come by TCP. 0: none.
    pub slip: u32,
    /// Addresses and prefixes without a limit.
    pub exempt: Vec<Prefix>,
    /// Memory of the counters of each worker, in bytes.
    pub table_bytes: usize,
}

impl Default for RateLimitConfig {
    fn default() -> Self {
        Self {
            // The busiest clients of a resolver are a few large proxies, and cutting them off unasked would be
            // worse than what it prevents: it is for the operator to list them first.
            enabled: false,
            dry_run: false,
            ipv4_32_per_s: 1_000,
            ipv4_24_per_s: 4_000,
            ipv6_128_per_s: 1_000,
            ipv6_64_per_s: 1_000,
            ipv6_56_per_s: 2_000,
            ipv6_48_per_s: 4_000,
            burst_ms: 1_000,
            slip: 2,
            exempt: Vec::new(),
            table_bytes: 1 << 20,
        }
    }
}

/// Most prefixes without a limit.
const EXEMPT_MAX: usize = 1024;

impl RateLimitConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// Names the setting, and what it should be.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=60_000).contains(&self.burst_ms),
            "`rate_limit.burst_ms` is {}: it must be from 1 to 60000",
            self.burst_ms
        );
        ensure!(
            self.exempt.len() <= EXEMPT_MAX,
            "`rate_limit.exempt` has {} prefixes: at most {EXEMPT_MAX}",
            self.exempt.len()
        );
        ensure!(
            (1 << 12..=1 << 30).contains(&self.table_bytes),
            "`rate_limit.table_bytes` is {}: it must be from 4096 to 1 GiB",
            self.table_bytes
        );
        Ok(())
    }

    /// What one of `workers_count` workers allows.
    #[must_use]
    pub fn limits(&self, workers_count: usize) -> Limits {
        // Rounded up, so that all together do not allow more than is configured.
        let share = |per_s: u32| match per_s {
            0 => 0,
            per_s => (1_000_000_000 * workers_count.max(1) as u64).div_ceil(per_s.into()),
        };
        Limits {
            ipv4: [self.ipv4_32_per_s, self.ipv4_24_per_s].map(share),
            ipv6: [self.ipv6_128_per_s, self.ipv6_64_per_s, self.ipv6_56_per_s, self.ipv6_48_per_s]
                .map(share),
            burst_ns: u64::from(self.burst_ms) * 1_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_their_edges() {
        let with = |change: fn(&mut RateLimitConfig)| {
            let mut config = RateLimitConfig::default();
            change(&mut config);
            config.check().is_ok()
        };
        assert!(with(|_| {}));
        assert!(!with(|config| config.burst_ms = 0));
        assert!(with(|config| config.burst_ms = 60_000));
        assert!(!with(|config| config.burst_ms = 60_001));
        assert!(with(|config| config.exempt = vec!["::1".parse().unwrap(); EXEMPT_MAX]));
        assert!(!with(|config| config.exempt = vec!["::1".parse().unwrap(); EXEMPT_MAX + 1]));
        assert!(with(|config| config.table_bytes = 4096));
        assert!(!with(|config| config.table_bytes = 4095));
        assert!(with(|config| config.table_bytes = 1 << 30));
        assert!(!with(|config| config.table_bytes = (1 << 30) + 1));
    }

    #[test]
    fn reads_toml_and_says_what_is_wrong_with_it() {
        let text = "enabled = true\nexempt = [\"192.0.2.0/24\", \"::1\"]\nipv4_24_per_s = 0";
        let config: RateLimitConfig = toml::from_str(text).unwrap();
        assert_eq!((config.exempt.len(), config.ipv4_24_per_s, config.slip), (2, 0, 2));
        let again: RateLimitConfig = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again.exempt, config.exempt);
        let error = toml::from_str::<RateLimitConfig>("exempt = [\"192.0.2.1/24\"]").unwrap_err();
        assert!(error.to_string().contains("192.0.2.1/24"), "{error}");
    }

    #[test]
    fn workers_share_what_is_configured() {
        let config = RateLimitConfig { ipv4_32_per_s: 3, ipv4_24_per_s: 0, ..Default::default() };
        assert_eq!(config.limits(1).ipv4, [333_333_334, 0]);
        assert_eq!(config.limits(4).ipv4, [1_333_333_334, 0]);
        assert_eq!(config.limits(2).ipv6, [2_000_000, 2_000_000, 1_000_000, 500_000]);
    }
}
