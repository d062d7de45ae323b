//! The section `[observe]` of the configuration.

use crate::sources::PrefixBits;
use handle_daemon::scrape::ScrapeLimits;
use handle_daemon::settings;
use std::net::SocketAddr;

settings! {
    /// Scrape endpoint and measurements.
    pub struct ObserveParameters {
        /// Set this when the process is monitored: TCP address of `/metrics`, `/healthz` and
        /// `/readyz`; none if not set. It has neither encryption nor authentication, so it belongs
        /// on loopback or a private network.
        restart http: Option<SocketAddr> = None;
        /// Set this when more or fewer source networks should be shown, busiest first, each a
        /// series of a metric; 0 when the networks of clients must not be measured.
        live sources_shown: usize = 10, 0..=SOURCES_KEPT;
    } constants {
        /// The endpoint serves a few scrapers and probes, whatever the process does.
        scrape_limits: ScrapeLimits = ScrapeLimits::default();
        /// One batch in this many is measured for the answer time, which costs two readings of the
        /// clock; 0 for none.
        latency_every: u32 = 16;
        /// The source of one datagram in this many is counted: a network with one in ten of all is
        /// seen within a few hundred datagrams. 0 for none.
        sources_every: u32 = 64;
        /// Source networks that each worker keeps, so that the busiest are among them.
        sources_kept: usize = SOURCES_KEPT;
        /// Prefix length of a source network, IPv4: what limits of rates count as one network, and
        /// too short to name a person.
        sources_ipv4_bits: u8 = 24;
        /// Prefix length of a source network, IPv6: what one site has.
        sources_ipv6_bits: u8 = 48;
        /// Time without progress after which a worker counts as stalled. Workers report 50 times a
        /// second, so this is 250 reports.
        stalled_after_ms: u32 = 5000;
    }
}

/// Source networks that each worker keeps.
const SOURCES_KEPT: usize = 64;

impl ObserveParameters {
    /// How many datagrams there are for each whose source is counted; 0 for none.
    #[must_use]
    pub const fn sample_sources_every(&self) -> u32 {
        if self.sources_shown == 0 { 0 } else { self.sources_every }
    }

    /// The prefix lengths of source networks.
    #[must_use]
    pub const fn sources_bits(&self) -> PrefixBits {
        PrefixBits { ipv4: self.sources_ipv4_bits, ipv6: self.sources_ipv6_bits }
    }
}
