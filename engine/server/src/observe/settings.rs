//! `[observe]` in the configuration.

use crate::sources::PrefixBits;
use anyhow::ensure;
use handle_daemon::scrape::ScrapeLimits;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Settings of the scrape endpoint and of measurements, with bounds on their cost.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveParameters {
    /// TCP address of `/metrics`, `/healthz` and `/readyz`; none when empty. The endpoint has
    /// neither encryption nor authentication, so it belongs on loopback or a private network.
    pub http: Option<SocketAddr>,
    /// Maximum concurrent HTTP connections; further ones wait in the kernel.
    pub http_connections: usize,
    /// Maximum bytes of the head of an HTTP request.
    pub http_header_bytes: usize,
    /// Longest duration of one HTTP connection, in milliseconds.
    pub http_patience_ms: u32,
    /// Measure the answer time of one batch of this many; 0 for none.
    pub latency_every: u32,
    /// Note the source of one datagram of this many, on average; 0 for none.
    pub sources_every: u32,
    /// Number of source networks that each worker keeps.
    pub sources_kept: usize,
    /// Number of source networks that are shown, busiest first.
    pub sources_shown: usize,
    /// Prefix length of an IPv4 source network.
    pub sources_ipv4_bits: u8,
    /// Prefix length of an IPv6 source network; at most 64.
    pub sources_ipv6_bits: u8,
    /// Time without a due turn after which a worker counts as hanging, in milliseconds.
    pub stalled_after_ms: u32,
}

impl Default for ObserveParameters {
    fn default() -> Self {
        Self {
            http: None,
            http_connections: 16,
            http_header_bytes: 4096,
            http_patience_ms: 5000,
            stalled_after_ms: 5000,
            latency_every: 16,
            sources_every: 64,
            sources_kept: 64,
            sources_shown: 10,
            sources_ipv4_bits: 24,
            sources_ipv6_bits: 48,
        }
    }
}

impl ObserveParameters {
    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting and its allowed values.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=1024).contains(&self.http_connections),
            "`observe.http_connections` is {}: it must be from 1 to 1024",
            self.http_connections
        );
        ensure!(
            (128..=1 << 16).contains(&self.http_header_bytes),
            "`observe.http_header_bytes` is {}: it must be from 128 to 65536",
            self.http_header_bytes
        );
        ensure!(
            (10..=600_000).contains(&self.http_patience_ms),
            "`observe.http_patience_ms` is {}: it must be from 10 to 600000",
            self.http_patience_ms
        );
        ensure!(
            (200..=600_000).contains(&self.stalled_after_ms),
            "`observe.stalled_after_ms` is {}: it must be from 200 to 600000, because workers report 50 times a second",
            self.stalled_after_ms
        );
        ensure!(
            self.sources_every <= 1 << 30,
            "`observe.sources_every` is {}: at most 1073741824",
            self.sources_every
        );
        ensure!(
            (1..=4096).contains(&self.sources_kept),
            "`observe.sources_kept` is {}: it must be from 1 to 4096",
            self.sources_kept
        );
        ensure!(
            self.sources_shown <= 1000,
            "`observe.sources_shown` is {}: each is a series, and 1000 are the most",
            self.sources_shown
        );
        ensure!(
            self.sources_ipv4_bits <= 32 && self.sources_ipv6_bits <= 64,
            "`observe.sources_ipv4_bits` is {} and `observe.sources_ipv6_bits` {}: at most 32 and 64",
            self.sources_ipv4_bits,
            self.sources_ipv6_bits
        );
        Ok(())
    }

    /// Bounds of the HTTP endpoint.
    #[must_use]
    pub fn scrape_limits(&self) -> ScrapeLimits {
        ScrapeLimits {
            connections: self.http_connections,
            header_len_max: self.http_header_bytes,
            patience: Duration::from_millis(self.http_patience_ms.into()),
        }
    }

    /// The prefix lengths of source networks.
    #[must_use]
    pub const fn sources_bits(&self) -> PrefixBits {
        PrefixBits { ipv4: self.sources_ipv4_bits, ipv6: self.sources_ipv6_bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_their_edges() {
        let with = |change: fn(&mut ObserveParameters)| {
            let mut observe = ObserveParameters::default();
            change(&mut observe);
            observe.check().is_ok()
        };
        assert!(with(|_| {}));
        assert!(with(|o| o.http_connections = 1) && with(|o| o.http_connections = 1024));
        assert!(!with(|o| o.http_connections = 0) && !with(|o| o.http_connections = 1025));
        assert!(with(|o| o.http_header_bytes = 128) && with(|o| o.http_header_bytes = 1 << 16));
        assert!(!with(|o| o.http_header_bytes = 127) && !with(|o| o.http_header_bytes = (1 << 16) + 1));
        assert!(with(|o| o.http_patience_ms = 10) && with(|o| o.http_patience_ms = 600_000));
        assert!(!with(|o| o.http_patience_ms = 9) && !with(|o| o.http_patience_ms = 600_001));
        assert!(with(|o| o.stalled_after_ms = 200) && with(|o| o.stalled_after_ms = 600_000));
        assert!(
            with(|o| (o.latency_every, o.sources_every) = (0, 0)) && with(|o| o.latency_every = u32::MAX)
        );
        assert!(with(|o| o.sources_every = 1 << 30) && !with(|o| o.sources_every = (1 << 30) + 1));
        assert!(with(|o| o.sources_kept = 1) && with(|o| o.sources_kept = 4096));
        assert!(!with(|o| o.sources_kept = 0) && !with(|o| o.sources_kept = 4097));
        assert!(with(|o| o.sources_shown = 0) && with(|o| o.sources_shown = 1000));
        assert!(!with(|o| o.sources_shown = 1001));
        assert!(with(|o| (o.sources_ipv4_bits, o.sources_ipv6_bits) = (32, 64)));
        assert!(!with(|o| o.sources_ipv4_bits = 33) && !with(|o| o.sources_ipv6_bits = 65));
        assert!(!with(|o| o.stalled_after_ms = 199) && !with(|o| o.stalled_after_ms = 600_001));
    }
}
