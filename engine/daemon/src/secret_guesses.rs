//! Limits on wrong secret keys, by source, and by source and identity.
//!
//! The process that gives the verdict on a secret counts, whatever the form in which the secret
//! came: `handled` and `handle-admin` for answers to challenges and for questions of other servers,
//! `handle-gateway` for its clients.
//!
//! No limit is by identity alone: strangers could then keep an identity out. A request is counted
//! when its key has proved wrong, so right keys are never refused on their own account, and
//! requests of a source that are under way at the same time may exceed the limit by their number.

use crate::source_rates::{RetryAfter, SourceRate, SourceRates};
use handle_auth::source::Network;
use handle_proto::fold;
use std::net::IpAddr;
use std::time::Instant;

/// Limits on wrong secret keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuessLimits {
    /// Average per minute from a source; 0 for no limit.
    pub per_minute: u32,
    /// From a source at once.
    pub burst: u32,
    /// Average per minute from a source for the keys of one handle; 0 for no limit.
    pub per_minute_of_identity: u32,
    /// From a source at once for the keys of one handle.
    pub burst_of_identity: u32,
}

impl GuessLimits {
    /// 60 each minute from a source, of these 6 for one handle: a person who has forgotten a secret
    /// does not notice, and a list of words takes years.
    pub const DEFAULT: Self =
        Self { per_minute: 60, burst: 100, per_minute_of_identity: 6, burst_of_identity: 20 };
}

/// Number of sources in the tables of processes that have no setting for it.
pub const ENTRIES: usize = 1 << 16;

/// A proof with a secret key: who sends it, and for which handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretAttempt {
    network: Network,
    /// The folded handle of the identity; empty if it is none.
    handle: Vec<u8>,
}

impl SecretAttempt {
    /// A proof of `network` for a key of `handle`.
    #[must_use]
    pub fn new(network: Network, handle: &[u8]) -> Self {
        Self { network, handle: fold::folded(handle) }
    }

    /// A proof of the source that `address` belongs to: an IPv4 address, or a /64 of IPv6.
    #[must_use]
    pub fn of_source(address: IpAddr, handle: &[u8]) -> Self {
        let address = address.to_canonical();
        Self::new(Network::new(address, if address.is_ipv4() { 32 } else { 64 }), handle)
    }
}

/// The wrong secret keys of all sources.
#[derive(Debug)]
pub struct SecretGuesses {
    by_source: SourceRates,
    by_identity: SourceRates,
}

const MINUTE_NS: u64 = 60_000_000_000;

impl SecretGuesses {
    /// Tables with this number of entries.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self { by_source: SourceRates::new(entries), by_identity: SourceRates::new(entries) }
    }

    /// Whether a proof may be checked.
    ///
    /// # Errors
    /// When its source has sent too many wrong keys.
    pub fn check(
        &self,
        attempt: &SecretAttempt,
        now: Instant,
        limits: &GuessLimits,
    ) -> Result<(), RetryAfter> {
        let check = |rates: &SourceRates, key, rate: Option<SourceRate>| {
            rate.map_or(Ok(()), |rate| rates.check_key(key, now, rate))
        };
        let of_source = rate(limits.per_minute, limits.burst);
        let of_identity = rate(limits.per_minute_of_identity, limits.burst_of_identity);
        check(&self.by_source, (attempt.network, &b""[..]), of_source)?;
        check(&self.by_identity, (attempt.network, &attempt.handle[..]), of_identity)
    }

    /// Counts a proof that is wrong.
    pub fn count(&self, attempt: &SecretAttempt, now: Instant, limits: &GuessLimits) {
        if let Some(rate) = rate(limits.per_minute, limits.burst) {
            // A request that was under way when the limit was reached is not counted.
            let _ = self.by_source.admit_key((attempt.network, &b""[..]), now, rate);
        }
        if let Some(rate) = rate(limits.per_minute_of_identity, limits.burst_of_identity) {
            let _ = self.by_identity.admit_key((attempt.network, &attempt.handle[..]), now, rate);
        }
    }
}

/// The rate of a limit; `None` if there is none.
fn rate(per_minute: u32, burst: u32) -> Option<SourceRate> {
    let interval_ns = MINUTE_NS.checked_div(per_minute.into())?;
    Some(SourceRate { interval_ns, burst, ipv4_bits: 32, ipv6_bits: 128 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn attempt(last: u8, handle: &[u8]) -> SecretAttempt {
        SecretAttempt::of_source([192, 0, 2, last].into(), handle)
    }

    /// Guesses that are counted before one is refused, and the wait.
    fn admitted(
        guesses: &SecretGuesses,
        attempt: &SecretAttempt,
        now: Instant,
        limits: &GuessLimits,
    ) -> (usize, Option<RetryAfter>) {
        for count in 0..1000 {
            if let Err(retry_after) = guesses.check(attempt, now, limits) {
                return (count, Some(retry_after));
            }
            guesses.count(attempt, now, limits);
        }
        (1000, None)
    }

    #[test]
    fn a_source_has_a_limit_for_each_handle_and_one_for_all() {
        let (guesses, limits, now) = (SecretGuesses::new(1024), GuessLimits::DEFAULT, Instant::now());
        let one = attempt(1, b"0.NA/TST");
        assert_eq!(admitted(&guesses, &one, now, &limits), (20, Some(RetryAfter { seconds: 10 })));
        assert_eq!(admitted(&guesses, &attempt(1, b"0.na/tst"), now, &limits).0, 0, "the same handle");
        let elsewhere = attempt(2, b"0.NA/TST");
        assert_eq!(admitted(&guesses, &elsewhere, now, &limits).0, 20, "it is not locked for others");
        let all: usize = (0..9).map(|n| admitted(&guesses, &attempt(1, &[b'0' + n]), now, &limits).0).sum();
        assert_eq!(all, 80, "100 of a source in all");
        let later = now + Duration::from_secs(10);
        assert_eq!(admitted(&guesses, &one, later, &limits).0, 1, "6 per minute for a handle");
    }

    /// A host of IPv6 has 2^64 addresses.
    #[test]
    fn the_addresses_of_a_host_of_ipv6_share_a_limit_and_ipv4_is_one_address_in_both_forms() {
        let (guesses, limits, now) = (SecretGuesses::new(1024), GuessLimits::DEFAULT, Instant::now());
        let of = |address: &str| SecretAttempt::of_source(address.parse().unwrap(), b"0.NA/TST");
        for (first, again, other) in [
            ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::1"),
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
        ] {
            assert_eq!(admitted(&guesses, &of(first), now, &limits).0, 20, "{first}");
            assert_eq!(admitted(&guesses, &of(again), now, &limits).0, 0, "{again}");
            assert_eq!(admitted(&guesses, &of(other), now, &limits).0, 20, "{other}");
        }
    }

    #[test]
    fn a_right_key_is_not_counted_and_zero_is_no_limit() {
        let (guesses, limits, now) = (SecretGuesses::new(1024), GuessLimits::DEFAULT, Instant::now());
        let attempt = attempt(1, b"0.NA/TST");
        assert!((0..1000).all(|_| guesses.check(&attempt, now, &limits).is_ok()));
        let none = GuessLimits { per_minute: 0, per_minute_of_identity: 0, ..limits };
        assert_eq!(admitted(&guesses, &attempt, now, &none), (1000, None));
    }
}
