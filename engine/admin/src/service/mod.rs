//! Answers messages. Every request passes [`AdminService::answer`] once, in five steps, each of
//! which is a module:
//!
//! 1. `open`: the message is decrypted, checked for replay and parsed; a request about sessions is
//!    answered, and the answer to a challenge is joined with the request that was challenged.
//! 2. `decide`: a function of records, rules and requester says what happens to the request, or
//!    what has to be proven first.
//! 3. `prove`: the requester is challenged, or the answer to a challenge is verified. What was
//!    decided for the claimed identity is carried out for the proven one, unless it depends on
//!    hidden values or conditions: then it is decided here.
//! 4. `commit`: the writer decides again and makes the change durable.
//! 5. `seal`: the answer becomes a message, with digest, signature and the protection of its
//!    session.
//!
//! A decision never blocks. The thread of a request may block on other services, and until a change
//! is durable, so it has to be a thread that may block.

mod authenticator;
mod bulk;
mod caller_certificates;
mod callers;
mod candidates;
mod case;
mod challenges;
mod commit;
mod decide;
mod decision_context;
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

pub use authenticator::Authenticator;
pub use bulk::{BulkCaller, BulkRefusal};
pub use decision_context::{ActiveRules, ChallengeEffort, DecisionContext};
pub use open::ReceivedMessage;
pub use pages::{ListPages, ReplyMessages};
pub use search::{FoundPage, HandleSearch};
pub use shared_challenges::ChallengeSharing;
pub use shared_sessions::SharedSessionRows;

use crate::audit::Audit;
use crate::counters::AdminCounters;
use crate::operation::{OperationDecision, OperationRefusal, Requester};
use crate::replication::Replication;
use case::{ChallengeClaim, RequestCase};
use handle_auth::challenges::IssuedChallenge;
use handle_daemon::clock::now_unix_s;
use handle_proto::ResponseCode;
use handle_proto::wire::Request;
use handle_session::{IncomingMessage, TakenChallenge};
use handle_store::{Store, StoreError};
use prove::ProofOutcome;
use reply::{ReplySealer, ReplyTarget};
use response::{PreparedResponse, RequestIdentity};
use std::sync::Arc;
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
    /// What authenticates requesters.
    pub proof: Authenticator,
    /// What decisions depend on besides the records.
    pub decision: Arc<DecisionContext>,
    /// Makes streams for mirrors; `None` if they are disabled.
    pub replication: Option<Arc<Replication>>,
    /// The requests of `handle-gateway` with a key that are in progress.
    bulk_requests: bulk::RequestsInProgress,
}

/// A copy that is erased when dropped, since its content may have been sent encrypted.
fn hidden(message: &[u8]) -> Zeroizing<Box<[u8]>> {
    Zeroizing::new(message.into())
}

impl AdminService {
    /// A service over `store`.
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        sealer: ReplySealer,
        audit: Audit,
        proof: Authenticator,
        decision: DecisionContext,
        replication: Option<Arc<Replication>>,
    ) -> Self {
        Self {
            store,
            sealer,
            audit,
            counters: AdminCounters::default(),
            proof,
            decision: Arc::new(decision),
            replication,
            bulk_requests: bulk::RequestsInProgress::default(),
        }
    }
}

/// The path of a request.
impl AdminService {
    /// Answers a message. Blocks until the changes it makes are durable.
    #[must_use]
    pub fn answer(self: &Arc<Self>, received: ReceivedMessage<'_>) -> ReplyMessages {
        let now_unix_s = now_unix_s();
        let ReceivedMessage { message, source, form, challenge, reply_limits } = received;
        let incoming = match open::decrypt(self.proof.sessions(), message, form) {
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
    ) -> (ReplyTarget, PreparedResponse) {
        if let Some(response) = self.proof.session_response(&received) {
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
            None => self.proof.take_challenge(received.opened.session_id, received.incoming.is_in_session()),
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
                ProofOutcome::Proven(identity, of_claimed) => {
                    (requester, decision) = (Requester::Is(identity), of_claimed);
                }
                ProofOutcome::Response(response) => return Ok(response),
            }
            if matches!(decision, OperationDecision::Prove) {
                decision = decider.decide(requester)?;
            }
        }
        match decision {
            OperationDecision::Challenge | OperationDecision::Prove => {
                let requires_sessions = decider.effort().requires_sessions;
                Ok(self.proof.challenge(case, requires_sessions))
            }
            OperationDecision::Change(writes, _) => {
                let (facts, source_facts) = decider.into_facts();
                let made = self.make_change(case, requester, &writes, facts, source_facts);
                made.map(PreparedResponse::from)
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
