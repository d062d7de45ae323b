//! Limits on requests per second, by source.

use handle_daemon::settings;
use handle_daemon::settings::NETWORKS;
use handle_daemon::source_rates::{RetryAfter, SourceRate, SourceRates};
use std::net::IpAddr;
use std::time::Instant;

settings! {
    /// Limit on requests per second of each source. Further requests get 429 with `Retry-After`.
    pub struct RequestRateConfig {
        /// Average requests per second of a source; 0 for no limit.
        live requests_per_s: u32 = 0, 0..=1_000_000;
        /// Requests that a source may make at once.
        live burst: u32 = 200, 1..=1_000_000;
        /// Length of the prefix of an IPv4 address that identifies a source, in bits.
        live ipv4_bits: u8 = 32, 0..=32;
        /// Length of the prefix of an IPv6 address that identifies a source, in bits.
        live ipv6_bits: u8 = 64, 0..=128;
        /// Addresses and networks that are not limited.
        live exempt: Vec<String> = Vec::new(), NETWORKS;
        /// Number of sources in the table.
        restart sources: usize = 1 << 16, 1024..=1 << 24;
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
