//! Limits on requests per second, by source.

use handle_daemon::settings;
use handle_daemon::settings::NETWORKS;
use handle_daemon::source_rates::{RetryAfter, SourceRate, SourceRates};
use std::net::IpAddr;
use std::time::Instant;

settings! {
    /// Limit on the requests of each source. Further ones get 429 with `Retry-After`.
    pub struct RequestRateConfig {
        /// Set this when no source may take more than its share: average requests per second of a
        /// source; 0 for no limit.
        live requests_per_s: u32 = 0, 0..=1_000_000;
        /// Set this when clients are refused that ask for many handles at once and then rest:
        /// requests at once.
        live burst: u32 = 200, 1..=1_000_000;
        /// Set this when some clients, such as your own, need no limit: their addresses and
        /// networks.
        live exempt: Vec<String> = Vec::new(), NETWORKS;
    } constants {
        /// Length of the prefix of an IPv4 address that identifies a source, in bits: a whole
        /// address, because neighbours have nothing to do with each other.
        ipv4_bits: u8 = 32;
        /// Length of the prefix of an IPv6 address that identifies a source, in bits: what a
        /// provider gives to one network.
        ipv6_bits: u8 = 64;
        /// Number of sources in the table: more than ask within the time of a burst.
        sources: usize = 1 << 16;
    }
}

impl RequestRateConfig {
    /// The limit; `None` if there is none.
    #[must_use]
    pub fn source_rate(&self) -> Option<SourceRate> {
        let interval_ns = SECOND_NS.checked_div(self.requests_per_s.into())?;
        let &Self { burst, ipv4_bits, ipv6_bits, .. } = self;
        Some(SourceRate { interval_ns, burst, ipv4_bits, ipv6_bits })
    }

    /// Counts a request of `address` at `now` in `rates`.
    ///
    /// # Errors
    /// When it exceeds the limit; it is then not counted.
    pub fn admit(&self, rates: &SourceRates, address: IpAddr, now: Instant) -> Result<(), RetryAfter> {
        self.source_rate().map_or(Ok(()), |rate| rates.admit_at_rate(address, now, rate))
    }
}

const SECOND_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_no_limit() {
        let rates = SourceRates::new(1024);
        let (config, address) = (RequestRateConfig::default(), IpAddr::from([192, 0, 2, 1]));
        let now = Instant::now();
        assert!((0..300).all(|_| config.admit(&rates, address, now).is_ok()));
        let limited = RequestRateConfig { requests_per_s: 1, burst: 2, ..config };
        assert_eq!((0..9).filter(|_| limited.admit(&rates, address, now).is_ok()).count(), 2);
    }
}
