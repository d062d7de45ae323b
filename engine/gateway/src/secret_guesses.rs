//! The limits on wrong secret keys ([`handle_daemon::secret_guesses`]) for clients over HTTP,
//! whatever the form of their secret: `Basic`, the scheme `Handle` and `/api/verifications` with a
//! MAC of it, the forms of pages, and messages of the handle protocol.

pub mod config;

use crate::api::basic::basic;
use crate::state::GatewayState;
use handle_auth::source::Network;
use handle_daemon::secret_guesses::{GuessLimits, SecretAttempt};
use handle_daemon::source_rates::RetryAfter;
use handle_proto::fold;
use hyper::header::{self, HeaderMap};
use std::net::IpAddr;
use std::time::Instant;

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

    fn attempt(&self, state: &GatewayState) -> (SecretAttempt, GuessLimits) {
        let settings = state.settings.current();
        let sources = &settings.request_rate;
        let bits = if self.source.is_ipv4() { sources.ipv4_bits } else { sources.ipv6_bits };
        let attempt = SecretAttempt::new(Network::new(self.source, bits), &self.handle);
        (attempt, settings.secret_guesses.limits())
    }

    /// Whether the request may be answered.
    ///
    /// # Errors
    /// When its source has sent too many wrong keys.
    pub fn check(&self, state: &GatewayState) -> Result<(), RetryAfter> {
        let (attempt, limits) = self.attempt(state);
        let checked = state.secret_guesses.check(&attempt, Instant::now(), &limits);
        if checked.is_err() {
            state.counters.secret_guesses_refused.add();
        }
        checked
    }

    /// Counts the request: its key was wrong.
    pub fn count(&self, state: &GatewayState) {
        state.counters.secret_guesses.add();
        let (attempt, limits) = self.attempt(state);
        state.secret_guesses.count(&attempt, Instant::now(), &limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn v4(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
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
