//! What authenticates requesters: open challenges, sessions of both kinds, and the limits on the
//! work that proofs cause.

use super::shared_challenges::ChallengeSharing;
use crate::caller_sessions::CallerSessions;
use crate::costly::CostlyWork;
use handle_auth::challenges::Challenges;
use handle_auth::clock::MonotonicClock;
use handle_auth::cost::Units;
use handle_auth::source::RequestOrigin;
use handle_daemon::secret_guesses::{self, SecretGuesses};
use handle_daemon::source_rates::SourceRates;
use handle_session::SessionEndpoint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State of all proofs of identities.
#[derive(Debug)]
pub struct Authenticator {
    challenges: Mutex<Challenges>,
    /// Shares challenges with other processes over the same database.
    sharing: Option<ChallengeSharing>,
    sessions: Option<SessionEndpoint>,
    /// The sessions of callers of `handle-gateway`.
    caller_sessions: Mutex<CallerSessions>,
    /// The wrong secret keys of all sources.
    pub(super) secret_guesses: SecretGuesses,
    /// The signatures of nonces that sources have asked for.
    pub(super) nonce_signatures: SourceRates,
    /// The threads for costly work; without them, the thread of the request does the work.
    costly: Option<Arc<CostlyWork>>,
    clock: MonotonicClock,
}

impl Authenticator {
    /// No proof has been made yet. Names of identities are compared as `folds` says, which is a
    /// property of the store.
    #[must_use]
    pub fn new(
        challenges: Challenges,
        sharing: Option<ChallengeSharing>,
        sessions: Option<SessionEndpoint>,
        costly: Option<Arc<CostlyWork>>,
        folds: bool,
    ) -> Self {
        Self {
            challenges: Mutex::new(challenges),
            sharing,
            sessions,
            caller_sessions: Mutex::new(CallerSessions::new(folds)),
            secret_guesses: SecretGuesses::new(secret_guesses::ENTRIES),
            nonce_signatures: SourceRates::new(secret_guesses::ENTRIES),
            costly,
            clock: MonotonicClock::start(),
        }
    }

    /// The open challenges.
    pub fn challenges(&self) -> MutexGuard<'_, Challenges> {
        self.challenges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares challenges with other processes, if they can be over the same database.
    #[must_use]
    pub const fn sharing(&self) -> Option<&ChallengeSharing> {
        self.sharing.as_ref()
    }

    /// The session endpoint, if sessions are enabled.
    #[must_use]
    pub const fn sessions(&self) -> Option<&SessionEndpoint> {
        self.sessions.as_ref()
    }

    /// The sessions of callers of `handle-gateway`.
    pub fn caller_sessions(&self) -> MutexGuard<'_, CallerSessions> {
        self.caller_sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The threads for costly work.
    #[must_use]
    pub fn costly(&self) -> Option<&CostlyWork> {
        self.costly.as_deref()
    }

    /// Has `work`, which costs `cost`, done on behalf of `origin` by the threads for costly work;
    /// `None` if their queue is full.
    pub(super) fn run_costly<T: Send + 'static>(
        &self,
        origin: RequestOrigin,
        cost: Units,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        match &self.costly {
            Some(costly) => costly.run(origin, cost, work),
            None => Some(work()),
        }
    }

    /// The time since the start, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }
}
