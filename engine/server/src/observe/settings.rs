//! The section `[observe]` of the configuration.

use crate::sources::PrefixBits;
use handle_daemon::scrape::ScrapeLimits;
use handle_daemon::settings;
use std::net::SocketAddr;
use std::time::Duration;

settings! {
    /// Scrape endpoint and measurements, with bounds on their cost.
    pub struct ObserveParameters {
        /// TCP address of `/metrics`, `/healthz` and `/readyz`; none if not set. The endpoint has
        /// neither encryption nor authentication, so it belongs on loopback or a private network.
        restart http: Option<SocketAddr> = None;
        /// HTTP connections at a time; others wait in the kernel.
        live http_connections: usize = 16, 1..=1024;
        /// Most bytes of the head of an HTTP request.
        live http_header_bytes: usize = 4096, 128..=1 << 16;
        /// Most time for one HTTP connection.
        live http_timeout_ms: u32 = 5000, 10..=600_000;
        /// Measure the answer time of one batch in this many; 0 for none.
        live latency_every: u32 = 16;
        /// Sample the source of one datagram in this many; 0 for none.
        live sources_every: u32 = 64, 0..=1 << 30;
        /// Source networks that each worker keeps.
        restart sources_kept: usize = 64, 1..=4096;
        /// Source networks that are shown, busiest first. Each is a series of a metric.
        live sources_shown: usize = 10, 0..=1000;
        /// Prefix length of a source network, IPv4.
        live sources_ipv4_bits: u8 = 24, 0..=32;
        /// Prefix length of a source network, IPv6.
        live sources_ipv6_bits: u8 = 48, 0..=64;
        /// Time without progress after which a worker counts as stalled. Workers report 50 times a
        /// second.
        live stalled_after_ms: u32 = 5000, 200..=600_000;
    }
}

impl ObserveParameters {
    /// Bounds of the HTTP endpoint.
    #[must_use]
    pub fn scrape_limits(&self) -> ScrapeLimits {
        ScrapeLimits {
            connections: self.http_connections,
            header_len_max: self.http_header_bytes,
            patience: Duration::from_millis(self.http_timeout_ms.into()),
        }
    }

    /// The prefix lengths of source networks.
    #[must_use]
    pub const fn sources_bits(&self) -> PrefixBits {
        PrefixBits { ipv4: self.sources_ipv4_bits, ipv6: self.sources_ipv6_bits }
    }
}
