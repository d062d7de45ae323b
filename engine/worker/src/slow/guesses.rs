//! The limits on wrong secret keys, where the verdict on a key is made.

use super::SlowPath;
use handle_auth::source::RequestOrigin;
use handle_daemon::secret_guesses::{GuessLimits, SecretAttempt, SecretGuesses};
use handle_proto::wire::auth;
use handle_resolver::RefusalReason;
use std::time::Instant;

const LIMITS: GuessLimits = GuessLimits::DEFAULT;

/// A proof that is being checked.
#[must_use = "a wrong key has to be counted"]
pub(super) struct CheckedProof<'s> {
    guesses: &'s SecretGuesses,
    /// `None` for proofs that are not limited: those of public keys, and of exempt sources.
    attempt: Option<SecretAttempt>,
}

impl SlowPath {
    /// Begins to check a proof of `origin` with a key of type `kind` of `handle`.
    ///
    /// # Errors
    /// When the source has sent too many wrong keys. A datagram is then sent to TCP, where its
    /// sender proves its address.
    pub(super) fn begin_check(
        &self,
        kind: &[u8],
        handle: &[u8],
        origin: RequestOrigin,
    ) -> Result<CheckedProof<'_>, RefusalReason> {
        let (guesses, refusal) = match origin.is_connected {
            true => (&self.secret_guesses, RefusalReason::TooManySecrets),
            false => (&self.unproven_guesses, RefusalReason::OverTcp),
        };
        let is_limited = kind != auth::PUBLIC_KEY && !self.exempt.contains(origin.ip);
        let attempt = is_limited.then(|| SecretAttempt::of_source(origin.ip, handle));
        match &attempt {
            Some(attempt) if guesses.check(attempt, Instant::now(), &LIMITS).is_err() => Err(refusal),
            _ => Ok(CheckedProof { guesses, attempt }),
        }
    }
}

impl CheckedProof<'_> {
    /// The key was wrong, or there is no such key.
    pub(super) fn was_wrong(self) {
        if let Some(attempt) = &self.attempt {
            self.guesses.count(attempt, Instant::now(), &LIMITS);
        }
    }
}
