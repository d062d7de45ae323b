//! The limits on wrong secret keys, where the verdict on a key is made.

use super::AdminService;
use super::case::RequestCase;
use crate::operation::OperationRefusal;
use handle_auth::source::SourceList;
use handle_daemon::secret_guesses::{GuessLimits, SecretAttempt};
use handle_proto::ResponseCode;
use handle_proto::wire::auth;
use std::net::IpAddr;
use std::time::Instant;

/// The refusal of a source that has sent too many wrong keys.
pub(super) const TOO_MANY_SECRETS: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "Too many wrong secret keys came from your network; ask again later.",
);

const LIMITS: GuessLimits = GuessLimits::DEFAULT;

/// A proof that is being checked.
#[must_use = "a wrong key has to be counted"]
pub(super) struct CheckedProof<'s> {
    service: &'s AdminService,
    /// `None` for proofs that are not limited: those of public keys, and of exempt sources.
    attempt: Option<SecretAttempt>,
}

impl AdminService {
    /// Begins to check the proof of a request with a key of type `kind` of `handle`.
    ///
    /// # Errors
    /// When its source has sent too many wrong keys.
    pub(super) fn begin_check_in(
        &self,
        kind: &[u8],
        handle: &[u8],
        case: &RequestCase<'_>,
    ) -> Result<CheckedProof<'_>, OperationRefusal> {
        let source = case.guess_source(&self.decision.in_force().exempt);
        self.begin_check(kind, handle, source)
    }

    /// Begins to check a proof of `source` with a key of type `kind` of `handle`.
    ///
    /// # Errors
    /// When the source has sent too many wrong keys.
    pub(super) fn begin_check(
        &self,
        kind: &[u8],
        handle: &[u8],
        source: IpAddr,
    ) -> Result<CheckedProof<'_>, OperationRefusal> {
        let is_secret = kind != auth::PUBLIC_KEY && kind != auth::GATEWAY_SESSION;
        let is_limited = is_secret && !self.decision.in_force().exempt.contains(source);
        let attempt = is_limited.then(|| SecretAttempt::of_source(source, handle));
        if let Some(attempt) = &attempt
            && self.proof.secret_guesses.check(attempt, Instant::now(), &LIMITS).is_err()
        {
            self.counters.secret_guesses_refused.add();
            return Err(TOO_MANY_SECRETS);
        }
        Ok(CheckedProof { service: self, attempt })
    }
}

impl CheckedProof<'_> {
    /// The key was wrong, or there is no such key.
    pub(super) fn was_wrong(self) {
        if let Some(attempt) = &self.attempt {
            self.service.counters.secret_guesses.add();
            self.service.proof.secret_guesses.count(attempt, Instant::now(), &LIMITS);
        }
    }
}

impl RequestCase<'_> {
    /// The source whose wrong keys are counted: the client that `handle-gateway` states, if it
    /// connects from this host or from an exempt source, otherwise the sender.
    pub(super) fn guess_source(&self, exempt: &SourceList) -> IpAddr {
        let sender = self.source.ip().to_canonical();
        let is_trusted = sender.is_loopback() || exempt.contains(sender);
        self.stated_client.filter(|_| is_trusted).unwrap_or(sender)
    }
}
