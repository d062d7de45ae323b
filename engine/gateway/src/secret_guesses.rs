//! Limits on wrong secret keys, by source, and by source and identity.
//!
//! No limit is by identity alone: strangers could then keep an identity out. A request is counted
//! when its key has proved wrong, so right keys are never refused on their own account, and
//! requests of a source that are under way at the same time may exceed the limit by their number.

use crate::api::caller::basic;
use crate::rate_limit::{RequestRateConfig, RequestRates, RetryAfter, SourceRate};
use crate::server::GatewayState;
use handle_auth::source::Network;
use handle_daemon::settings;
use handle_proto::fold;
use hyper::header::{self, HeaderMap};
use std::net::IpAddr;
use std::time::Instant;

settings! {
    /// Limits on wrong secret keys, sent with `Basic` or in the form of the administration pages.
    /// Further requests with a secret key get 429 with `Retry-After`. Sources are as in
    /// `[request_rate]`, but none is exempt.
    pub struct SecretGuessesConfig {
        /// Average wrong secret keys per minute from a source; 0 for no limit.
        live per_minute: u32 = 60, 0..=1_000_000;
        /// Wrong secret keys that a source may send at once.
        live burst: u32 = 100, 1..=1_000_000;
        /// Average wrong secret keys per minute from a source for the keys of one handle; 0 for no
        /// limit.
        live per_minute_of_identity: u32 = 6, 0..=1_000_000;
        /// Wrong secret keys that a source may send at once for the keys of one handle.
        live burst_of_identity: u32 = 20, 1..=1_000_000;
        /// Number of sources in the table, and of sources with a handle.
        restart entries: usize = 1 << 16, 1024..=1 << 24;
    }
}

const MINUTE_NS: u64 = 60_000_000_000;

/// The wrong secret keys of all sources.
#[derive(Debug)]
pub struct SecretGuesses {
    by_source: RequestRates,
    by_identity: RequestRates,
}

/// A request with a secret key.
#[derive(Debug)]
pub struct SecretGuess {
    source: IpAddr,
    /// The folded handle of the identity; empty if it is none.
    handle: Vec<u8>,
}

impl SecretGuess {
    /// The secret key for an identity with the handle `handle`.
    #[must_use]
    pub fn of(source: IpAddr, handle: &[u8]) -> Self {
        Self { source, handle: fold::folded(handle) }
    }

    /// The secret key in the headers of a request.
    #[must_use]
    pub fn of_headers(source: IpAddr, headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let is_basic = text.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("Basic "));
        is_basic.then(|| Self::of(source, &basic(text).map_or_else(Vec::new, |identity| identity.handle)))
    }

    /// Whether the request may be answered.
    ///
    /// # Errors
    /// When its source has sent too many wrong keys.
    pub fn check(&self, state: &GatewayState) -> Result<(), RetryAfter> {
        let settings = state.settings.current();
        let checked = state.secret_guesses.check(
            self,
            Instant::now(),
            &settings.secret_guesses,
            &settings.request_rate,
        );
        if checked.is_err() {
            state.counters.secret_guesses_refused.add();
        }
        checked
    }

    /// Counts the request: its key was wrong.
    pub fn count(&self, state: &GatewayState) {
        state.counters.secret_guesses.add();
        let settings = state.settings.current();
        state.secret_guesses.count(self, Instant::now(), &settings.secret_guesses, &settings.request_rate);
    }
}

impl SecretGuesses {
    /// Tables with this number of entries.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self { by_source: RequestRates::new(entries), by_identity: RequestRates::new(entries) }
    }

    fn check(
        &self,
        guess: &SecretGuess,
        now: Instant,
        config: &SecretGuessesConfig,
        sources: &RequestRateConfig,
    ) -> Result<(), RetryAfter> {
        let network = network(guess.source, sources);
        let of_source = rate(config.per_minute, config.burst);
        let of_identity = rate(config.per_minute_of_identity, config.burst_of_identity);
        let check = |rates: &RequestRates, key, rate: Option<SourceRate>| {
            rate.map_or(Ok(()), |rate| rates.check_key(key, now, rate))
        };
        let by_source = check(&self.by_source, (network, &b""[..]), of_source);
        by_source.and(check(&self.by_identity, (network, &guess.handle[..]), of_identity))
    }

    fn count(
        &self,
        guess: &SecretGuess,
        now: Instant,
        config: &SecretGuessesConfig,
        sources: &RequestRateConfig,
    ) {
        let network = network(guess.source, sources);
        if let Some(rate) = rate(config.per_minute, config.burst) {
            // A request that was under way when the limit was reached is not counted.
            let _ = self.by_source.admit_key((network, &b""[..]), now, rate);
        }
        if let Some(rate) = rate(config.per_minute_of_identity, config.burst_of_identity) {
            let _ = self.by_identity.admit_key((network, &guess.handle[..]), now, rate);
        }
    }
}

fn network(source: IpAddr, sources: &RequestRateConfig) -> Network {
    Network::new(source, if source.is_ipv4() { sources.ipv4_bits } else { sources.ipv6_bits })
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

    fn v4(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// Guesses that are counted before one is refused, and the wait.
    fn admitted(
        guesses: &SecretGuesses,
        guess: &SecretGuess,
        now: Instant,
        config: &SecretGuessesConfig,
    ) -> (usize, Option<RetryAfter>) {
        let sources = RequestRateConfig::default();
        for count in 0..1000 {
            if let Err(retry_after) = guesses.check(guess, now, config, &sources) {
                return (count, Some(retry_after));
            }
            guesses.count(guess, now, config, &sources);
        }
        (1000, None)
    }

    #[test]
    fn a_source_has_a_limit_for_each_handle_and_one_for_all() {
        let (guesses, config, now) =
            (SecretGuesses::new(1024), SecretGuessesConfig::default(), Instant::now());
        let one = SecretGuess::of(v4(1), b"0.NA/TST");
        assert_eq!(admitted(&guesses, &one, now, &config), (20, Some(RetryAfter { seconds: 10 })));
        let folded = SecretGuess::of(v4(1), b"0.na/tst");
        assert_eq!(admitted(&guesses, &folded, now, &config).0, 0, "the same handle");
        let elsewhere = SecretGuess::of(v4(2), b"0.NA/TST");
        assert_eq!(admitted(&guesses, &elsewhere, now, &config).0, 20, "the handle is not locked for others");
        let all: usize =
            (0..9).map(|n| admitted(&guesses, &SecretGuess::of(v4(1), &[b'0' + n]), now, &config).0).sum();
        assert_eq!(all, 80, "100 of a source in all");
        let later = now + Duration::from_secs(10);
        assert_eq!(admitted(&guesses, &one, later, &config).0, 1, "6 per minute for a handle");
    }

    #[test]
    fn a_right_key_is_not_counted_and_zero_is_no_limit() {
        let guesses = SecretGuesses::new(1024);
        let (config, sources, now) =
            (SecretGuessesConfig::default(), RequestRateConfig::default(), Instant::now());
        let guess = SecretGuess::of(v4(1), b"0.NA/TST");
        assert!((0..1000).all(|_| guesses.check(&guess, now, &config, &sources).is_ok()));
        let none = SecretGuessesConfig { per_minute: 0, per_minute_of_identity: 0, ..config };
        assert_eq!(admitted(&guesses, &guess, now, &none), (1000, None));
    }

    #[test]
    fn only_basic_credentials_have_a_secret() {
        let of = |text: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, text.parse().ok()?)]);
            Some(SecretGuess::of_headers(v4(1), &headers)?.handle)
        };
        assert_eq!(of("Basic MzAxJTNBMC5OQS9UU1Q6d3Jvbmc="), Some(fold::folded(b"0.NA/TST")));
        assert_eq!(of("basic ***"), Some(Vec::new()), "counted for the source");
        assert_eq!(of("Handle sessionId=\"x\""), None);
    }
}
