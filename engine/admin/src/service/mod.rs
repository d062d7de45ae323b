//! Answers messages. Every request passes [`AdminService::answer`] once, in five steps, each of
//! which is a module:
//!
//! 1. `open`: the message is decrypted, checked for replay and parsed; a request about sessions is
//!    answered, and the answer to a challenge is joined with the request that was challenged.
//! 2. `decide`: a function of records, rules and requester says what happens to the request.
//! 3. `prove`: the requester is challenged, or the answer to a challenge is verified.
//! 4. `commit`: the writer decides again and makes the change durable.
//! 5. `seal`: the answer becomes a message, with digest, signature and the protection of its
//!    session.
//!
//! A decision never blocks. The thread of a request may block on other services, and until a change
//! is durable, so it has to be a thread that may block.

mod bulk;
mod caller_certificates;
mod callers;
mod candidates;
mod case;
mod challenges;
mod commit;
mod decide;
mod forwarded;
mod guesses;
mod open;
mod pages;
mod prove;
mod record;
mod replicate;
pub mod reply;
mod response;
mod row_cipher;
mod seal;
mod search;
mod sessions;
mod shared_challenges;
mod shared_sessions;
mod status;
mod verify;

pub use bulk::{BulkCaller, BulkRefusal};
pub use open::ReceivedMessage;
pub use pages::{ListPages, ReplyMessages};
pub use search::{FoundPage, HandleSearch};
pub use shared_challenges::ChallengeSharing;
pub use shared_sessions::SharedSessionRows;

use crate::audit::Audit;
use crate::caller_sessions::CallerSessions;
use crate::costly::CostlyWork;
use crate::counters::AdminCounters;
use crate::operation::{OperationDecision, OperationRefusal, OperationRules, Requester};
use crate::referral::ReferralResolver;
use crate::remote::RemoteServices;
use crate::replication::Replication;
use crate::sourced::SourceFacts;
use case::{ChallengeClaim, RequestCase};
use handle_auth::challenges::{Challenges, IssuedChallenge};
use handle_auth::kdf::Pbkdf2Limits;
use handle_auth::source::SourceList;
use handle_daemon::clock::now_unix_s;
use handle_daemon::secret_guesses::{self, SecretGuesses};
use handle_daemon::sessions::{IncomingMessage, SessionEndpoint, TakenChallenge};
use handle_daemon::site::SiteRecord;
use handle_daemon::source_rates::SourceRates;
use handle_proto::ResponseCode;
use handle_proto::wire::Request;
use handle_source::RecordSources;
use handle_store::{Store, StoreError};
use prove::ProofOutcome;
use reply::{ReplySealer, ReplyTo};
use response::{PreparedResponse, RequestIdentity};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;
use zeroize::Zeroizing;

/// Everything that answering requests needs.
#[derive(Debug)]
pub struct AdminService {
    /// The records.
    pub store: Arc<Store>,
    /// Turns answers into messages.
    pub sealer: ReplySealer,
    /// The audit log.
    pub audit: Audit,
    /// Counters of the service.
    pub counters: AdminCounters,
    challenges: Mutex<Challenges>,
    /// Shares challenges with other processes over the same database.
    sharing: Option<ChallengeSharing>,
    sessions: Option<SessionEndpoint>,
    remote: Option<RemoteServices>,
    /// Sources of records that the store does not have.
    sources: Option<Arc<RecordSources>>,
    /// Resolves referrals for clients that do not understand them.
    referrals: Option<ReferralResolver>,
    /// The sessions of callers of `handle-gateway`.
    caller_sessions: Mutex<CallerSessions>,
    /// The requests of `handle-gateway` with a key that are in progress.
    bulk_requests: bulk::RequestsInProgress,
    /// The wrong secret keys of all sources.
    secret_guesses: SecretGuesses,
    /// The signatures of nonces that sources have asked for.
    nonce_signatures: SourceRates,
    /// The threads for costly work; without them, the thread of the request does the work.
    costly: Option<Arc<CostlyWork>>,
    /// Makes streams for mirrors.
    replication: Option<Arc<Replication>>,
    in_force: RwLock<Arc<ActiveRules>>,
    started: Instant,
}

/// The rules in force; replaced when the configuration is reloaded.
#[derive(Debug)]
pub struct ActiveRules {
    /// The rules by which requests are decided.
    pub rules: OperationRules,
    /// Limits on the work of verifying answers to challenges.
    pub effort: ChallengeEffort,
    /// Sources whose wrong secret keys are not limited.
    pub exempt: SourceList,
}

/// Limits on the work of verifying an answer to a challenge.
#[derive(Clone, Copy, Debug)]
pub struct ChallengeEffort {
    /// Limits on the parameters of PBKDF2.
    pub pbkdf2: Pbkdf2Limits,
    /// Maximum keys of one identity that are tried if the answer names none.
    pub keys_tried: usize,
    /// Whether clients are challenged only inside sessions.
    pub requires_sessions: bool,
}

/// A copy that is erased when dropped, since its content may have been sent encrypted.
fn hidden(message: &[u8]) -> Zeroizing<Box<[u8]>> {
    Zeroizing::new(message.into())
}

/// The path of a request.
impl AdminService {
    /// Answers a message. Blocks until the changes it makes are durable.
    #[must_use]
    pub fn answer(self: &Arc<Self>, received: ReceivedMessage<'_>) -> ReplyMessages {
        let now_unix_s = now_unix_s();
        let ReceivedMessage { message, source, form, challenge, reply_limits } = received;
        let incoming = match open::decrypt(self.sessions.as_ref(), message, form) {
            Ok(incoming) => incoming,
            Err(failure) => return self.seal_failure(failure, now_unix_s),
        };
        let opened = match open::parse(&incoming) {
            Ok(opened) => opened,
            Err(failure) => return self.seal_failure(failure, now_unix_s),
        };
        let mut case = RequestCase::new(&incoming, opened, source, now_unix_s);
        case.stream_route = reply_limits.stream_route;
        let (to, response) = self.respond(case, challenge);
        self.seal(&opened, to, response, reply_limits, now_unix_s)
    }

    /// The response to an opened request, and how to send it. An answer to a challenge gets the
    /// response to the request that was challenged. `challenge` is the challenge that the request
    /// answers, if it has been taken from its table already.
    fn respond(
        &self,
        received: RequestCase<'_>,
        challenge: Option<IssuedChallenge>,
    ) -> (ReplyTo, PreparedResponse) {
        if let Some(response) = self.session_response(&received) {
            self.record(&received, received.identity(), &response);
            return (received.to, response);
        }
        let Request::AnswerChallenge(answer) = received.opened.request else {
            let response = self.process(&received);
            self.record(&received, received.identity(), &response);
            return (received.to, response);
        };
        // A challenge can be answered only once, whatever the outcome.
        let taken = match challenge {
            Some(challenge) => TakenChallenge::Waiting(challenge),
            None => self.take_challenge(received.opened.session_id, received.incoming.is_in_session()),
        };
        let claim = ChallengeClaim::new(&taken, answer);
        let Some((claim, original)) = claim.and_then(|claim| Some((claim, claim.original()?))) else {
            let is_unknown = matches!(taken, TakenChallenge::Unknown);
            let (identity, response) = received.without_challenge(is_unknown);
            self.record(&received, identity, &response);
            return (received.to, response);
        };
        // The number of a plain challenge may also be the number of another client's session, which
        // proves nothing here.
        let outside = IncomingMessage::outside(received.incoming.message());
        let is_same_session = original.session_id == received.opened.session_id;
        let incoming = if is_same_session { received.incoming } else { &outside };
        let case = received.challenged(incoming, original, claim);
        let response = self.process(&case);
        self.record(&case, RequestIdentity::Claimed(answer.identity), &response);
        (case.to, response)
    }

    /// Has a request decided, its requester proven if the decision depends on that, and the
    /// decision carried out.
    fn process(&self, case: &RequestCase<'_>) -> PreparedResponse {
        match self.decide_prove_commit(case) {
            // The answer must not reveal whether a forged message can be parsed.
            Ok(PreparedResponse::Unreadable(_)) if case.incoming.may_be_a_guess() => {
                PreparedResponse::Unreadable(open::UNDECRYPTABLE)
            }
            Ok(response) => response,
            Err(error) => self.store_refusal(&error).into(),
        }
    }

    fn decide_prove_commit(&self, case: &RequestCase<'_>) -> Result<PreparedResponse, StoreError> {
        if let Some(Err(refused)) = case.claim.map(|claim| claim.kind()) {
            return Ok(refused.into());
        }
        let mut decider = self.decider(case)?;
        let mut requester = case.requester(decider.rules());
        let mut decision = decider.decide(requester)?;
        if let Some(claim) = &case.claim {
            match self.prove(case, claim, &mut decider, decision)? {
                ProofOutcome::Proven(identity) => requester = Requester::Is(identity),
                ProofOutcome::Response(response) => return Ok(response),
            }
            decision = decider.decide(requester)?;
        }
        match decision {
            OperationDecision::Challenge | OperationDecision::Prove => Ok(self.challenge(case)),
            OperationDecision::Change(writes, _) => {
                self.make_change(case, requester, &writes, decider.into_facts()).map(PreparedResponse::from)
            }
            OperationDecision::Answer(answer) => Ok(answer.into()),
            OperationDecision::List(lister) => Ok(PreparedResponse::List(lister, decider.into_snapshot())),
            OperationDecision::Replicate => self.begin_stream(case, requester),
            OperationDecision::Status => self.status(&decider).map(PreparedResponse::from),
            OperationDecision::Verify => self.verify(&mut decider, case),
        }
    }

    /// The refusal for an error of the store.
    fn store_refusal(&self, error: &StoreError) -> OperationRefusal {
        match error {
            StoreError::Busy => OperationRefusal::new(
                ResponseCode::SERVER_BUSY,
                "Too many changes wait to be written; ask again later.",
            ),
            StoreError::Server(_) => {
                self.counters.store_errors.add();
                tracing::error!(%error, "cannot answer a request");
                OperationRefusal::new(
                    ResponseCode::SERVER_BUSY,
                    "The records cannot be reached at the moment; ask again later.",
                )
            }
            StoreError::Failed | StoreError::Moved => OperationRefusal::new(
                ResponseCode::SERVER_READ_ONLY,
                "This server cannot write at the moment.",
            ),
            error => {
                self.counters.store_errors.add();
                tracing::error!(%error, "cannot answer a request");
                OperationRefusal::new(ResponseCode::ERROR, "Server error processing request, see server logs")
            }
        }
    }
}

/// The parts of the service.
impl AdminService {
    /// A service over `store`.
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        in_force: ActiveRules,
        sealer: ReplySealer,
        challenges: Challenges,
        audit: Audit,
    ) -> Self {
        let caller_sessions = Mutex::new(CallerSessions::new(store.folds()));
        Self {
            store,
            sealer,
            audit,
            counters: AdminCounters::default(),
            challenges: Mutex::new(challenges),
            sharing: None,
            sessions: None,
            remote: None,
            sources: None,
            referrals: None,
            caller_sessions,
            bulk_requests: bulk::RequestsInProgress::default(),
            secret_guesses: SecretGuesses::new(secret_guesses::ENTRIES),
            nonce_signatures: SourceRates::new(secret_guesses::ENTRIES),
            costly: None,
            replication: None,
            in_force: RwLock::new(Arc::new(in_force)),
            started: Instant::now(),
        }
    }

    /// The rules in force.
    #[must_use]
    pub fn in_force(&self) -> Arc<ActiveRules> {
        Arc::clone(&self.in_force.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The site record of this server.
    #[must_use]
    pub fn site(&self) -> Arc<SiteRecord> {
        Arc::clone(&self.in_force().rules.site)
    }

    /// Lets this server be one of the primary site that `site` describes: it makes changes from now
    /// on.
    pub fn become_primary(&self, site: SiteRecord) {
        let before = self.in_force();
        let rules = OperationRules { site: Arc::new(site), primaries: None, ..before.rules.clone() };
        self.put_in_force(ActiveRules { rules, effort: before.effort, exempt: before.exempt.clone() });
    }

    /// Puts other rules in force for all requests from now on.
    pub fn put_in_force(&self, in_force: ActiveRules) {
        *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(in_force);
    }

    /// The remote services, if other services are asked.
    #[must_use]
    pub const fn remote(&self) -> Option<&RemoteServices> {
        self.remote.as_ref()
    }

    /// Sets the remote services that are asked about identities.
    #[must_use]
    pub fn with_remote(self, remote: Option<RemoteServices>) -> Self {
        Self { remote, ..self }
    }

    /// The sources of records, if there are any.
    #[must_use]
    pub fn sources(&self) -> Option<&RecordSources> {
        self.sources.as_deref()
    }

    /// Sets the sources of records.
    #[must_use]
    pub fn with_sources(self, sources: Option<RecordSources>) -> Self {
        Self { sources: sources.map(Arc::new), ..self }
    }

    /// What sources have said for a request, which is nothing at its beginning.
    fn source_facts(&self) -> SourceFacts {
        SourceFacts::new(self.sources.clone())
    }

    /// The resolver for clients that do not understand referrals, if there is one.
    #[must_use]
    pub const fn referrals(&self) -> Option<&ReferralResolver> {
        self.referrals.as_ref()
    }

    /// Sets the resolver for clients that do not understand referrals.
    #[must_use]
    pub fn with_referrals(self, referrals: Option<ReferralResolver>) -> Self {
        Self { referrals, ..self }
    }

    /// The threads for costly work.
    #[must_use]
    pub fn costly(&self) -> Option<&CostlyWork> {
        self.costly.as_deref()
    }

    /// Sets the threads for costly work.
    #[must_use]
    pub fn with_costly(self, costly: Arc<CostlyWork>) -> Self {
        let sealer = self.sealer.with_costly(Arc::clone(&costly));
        Self { costly: Some(costly), sealer, ..self }
    }

    /// Makes streams for mirrors; `None` if they are disabled.
    #[must_use]
    pub const fn replication(&self) -> Option<&Arc<Replication>> {
        self.replication.as_ref()
    }

    /// Sets what makes streams for mirrors.
    #[must_use]
    pub fn with_replication(self, replication: Option<Arc<Replication>>) -> Self {
        Self { replication, ..self }
    }

    /// Shares challenges with other processes, if they can be over the same database.
    #[must_use]
    pub const fn sharing(&self) -> Option<&ChallengeSharing> {
        self.sharing.as_ref()
    }

    /// Sets what shares challenges with other processes.
    #[must_use]
    pub fn with_sharing(self, sharing: Option<ChallengeSharing>) -> Self {
        Self { sharing, ..self }
    }

    /// The session endpoint, if sessions are enabled.
    #[must_use]
    pub const fn sessions(&self) -> Option<&SessionEndpoint> {
        self.sessions.as_ref()
    }

    /// Sets the session endpoint.
    #[must_use]
    pub fn with_sessions(self, sessions: Option<SessionEndpoint>) -> Self {
        Self { sessions, ..self }
    }

    /// The sessions of callers of `handle-gateway`.
    pub fn caller_sessions(&self) -> MutexGuard<'_, CallerSessions> {
        self.caller_sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open challenges.
    pub fn challenges(&self) -> MutexGuard<'_, Challenges> {
        self.challenges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the start, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
