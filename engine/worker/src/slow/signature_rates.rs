//! The signatures that sources get over connections.
//!
//! Over UDP, the rate limit counts the bytes of certified answers. Over TCP, turns bound a source
//! only while others ask as well.

use handle_auth::source::{RequestOrigin, SourceList};
use handle_daemon::source_rates::{SourceRate, SourceRates};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

/// Signatures for one source: 50 per second and 200 at once. A signature with 2048 bits takes 0.85
/// ms, so a source gets a twentieth of a core. A client that asks for more sets up a session, in
/// which answers are certified without signatures.
const RATE: SourceRate = SourceRate { interval_ns: 20_000_000, burst: 200, ipv4_bits: 32, ipv6_bits: 64 };
/// Sources that are known at a time, in 16 bytes each. A new one replaces the one that has used
/// least.
const SOURCES: usize = 16_384;

/// The signatures that sources have got over connections.
#[derive(Debug)]
pub(super) struct SignatureRates(SourceRates);

impl SignatureRates {
    pub(super) fn new() -> Self {
        Self(SourceRates::new(SOURCES))
    }

    /// Whether a signature may be made for `origin`, and counts it. Datagrams are limited
    /// elsewhere, and this host and `exempt` are not.
    pub(super) fn admits(&self, origin: RequestOrigin, exempt: &SourceList) -> bool {
        let source = origin.ip.to_canonical();
        // As by the rate limit: no other sender has these addresses of the loopback network.
        let is_here = source == Ipv4Addr::LOCALHOST || source == Ipv6Addr::LOCALHOST;
        if !origin.is_connected || is_here || exempt.contains(source) {
            return true;
        }
        self.0.admit_at_rate(source, Instant::now(), RATE).is_ok()
    }
}
