//! Step 2: the decision on a request. A decision that misses facts about other services is repeated
//! once the facts are there: the thread of the request, which may block, asks for them in between.

use super::case::RequestCase;
use super::{ActiveRules, AdminService, ChallengeEffort, DecisionContext};
use crate::operation::{
    CandidateKey, KeysRefusal, OperationAnswer, OperationDecision, OperationRefusal, OperationRequest,
    OperationRules, Requester, keys,
};
use crate::permission::view::{RemoteFacts, WantedFact};
use crate::remote::{RemoteFailure, RemoteInquiry};
use crate::sourced::{SourceFacts, SourcedRecords, source_refusal};
use handle_daemon::clock::now_unix_s;
use handle_proto::name::BLANK;
use handle_proto::wire::Request;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::guard::ChangeGuard;
use handle_proto::wire::list::Reference;
use handle_proto::{OpFlags, ResponseCode, ValueBuf, Version};
use handle_store::{StoreError, StoreSnapshot};
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

/// Decides one request, on one snapshot of the store and under one set of rules.
pub(super) struct Decider<'s, 'a> {
    pub(super) request: OperationRequest<'a>,
    pub(super) snapshot: Arc<StoreSnapshot>,
    context: &'s DecisionContext,
    in_force: Arc<ActiveRules>,
    /// The facts about other services that the request has gathered.
    facts: RemoteFacts,
    /// The records of sources that the request has needed.
    pub(super) source_facts: SourceFacts,
    /// The means to ask for more facts; `None` if other services are not asked.
    pub(super) inquiry: Option<RemoteInquiry<'s>>,
    /// Why the first missing fact could not be found out.
    first_failure: Option<RemoteFailure>,
}

/// The refusal if too many requests are asking other services.
pub(super) const TOO_MANY_INQUIRIES: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "Too many identities of other services are being looked up; ask again later.",
);

impl AdminService {
    /// The decider of a request, which has not asked other services yet.
    pub(super) fn decider<'a>(&self, case: &RequestCase<'a>) -> Result<Decider<'_, 'a>, StoreError> {
        self.decider_of(case.operation_request(), case.guess_source(&self.decision.in_force().exempt))
    }

    /// A decider for what a caller asks for in another way than by a request of the protocol, such
    /// as a search: it finds keys, and decides about other requests.
    pub(super) fn decider_without_request(&self, source: IpAddr) -> Result<Decider<'_, 'static>, StoreError> {
        let request = OperationRequest {
            request: Request::GetSiteInfo(HandleBody { handle: BLANK }),
            flags: OpFlags::PLAIN_REQUEST,
            guard: ChangeGuard::default(),
            version: Version::CURRENT,
            in_session: false,
            random: [0; 16],
            now_unix_s: now_unix_s(),
        };
        self.decider_of(request, source)
    }

    /// The decider of `request` from `source`, which has not asked other services yet.
    pub(super) fn decider_of<'a>(
        &self,
        request: OperationRequest<'a>,
        source: IpAddr,
    ) -> Result<Decider<'_, 'a>, StoreError> {
        Ok(Decider {
            request,
            snapshot: Arc::new(self.store.snapshot()?),
            context: &self.decision,
            in_force: self.decision.in_force(),
            facts: RemoteFacts::default(),
            source_facts: self.decision.source_facts(),
            inquiry: self.decision.remote().map(|remote| remote.begin_inquiry(source)),
            first_failure: None,
        })
    }
}

impl Decider<'_, '_> {
    /// The rules of the decisions.
    pub(super) fn rules(&self) -> &OperationRules {
        &self.in_force.rules
    }

    /// The limits on verifying answers to challenges.
    pub(super) fn effort(&self) -> ChallengeEffort {
        self.in_force.effort
    }

    /// The gathered facts. The permit for asking other services is released, so that the next
    /// request need not wait while the facts are used.
    pub(super) fn into_facts(self) -> (RemoteFacts, SourceFacts) {
        (self.facts, self.source_facts)
    }

    /// The snapshot of the store.
    pub(super) fn into_snapshot(self) -> Arc<StoreSnapshot> {
        self.snapshot
    }

    /// Decides; if a fact about another service is missing, asks for it and decides again.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn decide(&mut self, requester: Requester<'_>) -> Result<OperationDecision, StoreError> {
        self.decide_other(self.request.request, requester)
    }

    /// Like [`decide`](Self::decide), about another request with the same circumstances.
    pub(super) fn decide_other(
        &mut self,
        request: Request<'_>,
        requester: Requester<'_>,
    ) -> Result<OperationDecision, StoreError> {
        let request = OperationRequest { request, ..self.request };
        loop {
            let rules = &self.in_force.rules;
            let records = SourcedRecords::new(&*self.snapshot, &self.source_facts);
            let decision = self.context.decide(&records, rules, &request, requester, &self.facts)?;
            match self.source_facts.fetch_missing() {
                Ok(false) => {}
                Ok(true) => {
                    self.facts.take_missing();
                    continue;
                }
                Err(error) => {
                    return Ok(OperationDecision::Answer(OperationAnswer::Refused(source_refusal(&error))));
                }
            }
            let missing = self.facts.take_missing().into_iter().next();
            let (Some(inquiry), Some(wanted), true) =
                (&mut self.inquiry, missing, decision.is_not_permitted())
            else {
                return Ok(self.with_failure(decision));
            };
            let answer = match &wanted {
                WantedFact::Group { handle, index } => inquiry.value(Reference { handle, index: *index }),
                WantedFact::Administrators(record) => inquiry.administrators(record),
            };
            let values = match answer {
                Ok(answer) => answer.values().iter().map(|value| ValueBuf::from(&value)).collect(),
                Err(RemoteFailure::Busy) => {
                    return Ok(OperationDecision::Answer(OperationAnswer::Refused(TOO_MANY_INQUIRIES)));
                }
                // No more facts can be found out, and a decision may lack a thousand of them: each
                // attempt repeats all the work.
                Err(RemoteFailure::Enough) => {
                    self.first_failure.get_or_insert(RemoteFailure::Enough);
                    return Ok(self.with_failure(decision));
                }
                Err(failure) => {
                    tracing::debug!(record = %wanted.handle(), why = %failure, "not asked elsewhere");
                    self.first_failure.get_or_insert(failure);
                    Vec::new()
                }
            };
            self.facts.learn(wanted, values);
        }
    }

    /// The keys of `identity` here, as [`keys`] finds them.
    ///
    /// # Errors
    /// When this server does not have the handle, the store cannot be read, or a source does not
    /// say.
    pub(super) fn keys(
        &mut self,
        identity: Reference<'_>,
        kind: &[u8],
        most: usize,
    ) -> Result<Vec<CandidateKey>, NoKeys> {
        let rules = &self.in_force.rules;
        keys_with_sources(&self.snapshot, &mut self.source_facts, rules, identity, kind, most)
    }

    /// A refusal which says that not all facts could be found out. The name of the record concerned
    /// goes to the log only: the requester may have no right to know whom a record names.
    fn with_failure(&self, decision: OperationDecision) -> OperationDecision {
        match (decision, &self.first_failure) {
            (
                OperationDecision::Answer(OperationAnswer::Refused(OperationRefusal { code, text })),
                Some(failure),
            ) if code == ResponseCode::INVALID_ADMIN => {
                let but = match failure {
                    RemoteFailure::Enough => "there is more to look up than is looked up",
                    failure if failure.was_heard() => "one does not say",
                    _ => "one does not answer",
                };
                let text = format!("{text}, as far as is known of other services: {but}");
                OperationDecision::Answer(OperationAnswer::Refused(OperationRefusal {
                    code,
                    text: Cow::Owned(text),
                }))
            }
            (decision, _) => decision,
        }
    }

    /// Whether asking for the keys of the requester may help although index 0 has no permission:
    /// the records name another value of the same handle.
    pub(super) fn may_promote_remote_key(&self) -> bool {
        self.inquiry.is_some() && self.facts.names_identity()
    }
}

/// Why keys of an identity are not known.
pub(super) enum NoKeys {
    /// Another server or another service has the handle.
    Remote,
    /// A source does not say.
    Source(OperationRefusal),
    /// The store cannot be read.
    Store(StoreError),
}

/// The keys of `identity` in `snapshot` or at a source, as [`keys`] finds them, of one kind and at
/// most so many.
pub(super) fn keys_with_sources(
    snapshot: &StoreSnapshot,
    source_facts: &mut SourceFacts,
    rules: &OperationRules,
    identity: Reference<'_>,
    kind: &[u8],
    most: usize,
) -> Result<Vec<CandidateKey>, NoKeys> {
    loop {
        let found = keys(&SourcedRecords::new(snapshot, source_facts), rules, identity, kind, most);
        match source_facts.fetch_missing() {
            Ok(true) => {}
            Ok(false) => {
                return found.map_err(|error| match error {
                    KeysRefusal::Remote => NoKeys::Remote,
                    KeysRefusal::Store(error) => NoKeys::Store(error),
                });
            }
            Err(error) => return Err(NoKeys::Source(source_refusal(&error))),
        }
    }
}
