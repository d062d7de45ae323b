//! Step 3: the identity behind a request. RFC 3652 section 3.5.

use super::AdminService;
use super::candidates::{KeyCandidate, UNREADABLE_ANSWER};
use super::case::{ChallengeClaim, RequestCase};
use super::decide::{Decider, NoKeys};
use super::response::PreparedResponse;
use super::verify::TOO_MUCH_WAITS;
use crate::operation::{OperationDecision, OperationRefusal, Requester};
use handle_auth::challenge_proof::ChallengeProof;
use handle_auth::{VerifyError, cost};
use handle_proto::wire::auth;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, ResponseCode};
use handle_store::{StoreError, StoreRecords as _, key};

/// The outcome of verifying an answer to a challenge.
pub(super) enum ProofOutcome<'a> {
    /// The claim is proven, for this identity, whose request was decided so before it was proven.
    Proven(Reference<'a>, OperationDecision),
    /// The claim is not proven; send this response.
    Response(PreparedResponse),
}

const TOO_MUCH_WORK: OperationRefusal = OperationRefusal::new(
    ResponseCode::AUTHENTICATION_FAILED,
    "The answer asks for more PBKDF2 rounds, or for a longer or shorter key, than this server accepts.",
);

impl AdminService {
    /// Verifies an answer to a challenge. `decision` is what the request gets if the claim is
    /// right. RFC 3652 section 3.5.2.
    ///
    /// As in deployed servers, permission is checked first, so that only identities with the
    /// permission learn whether their key was right. Until the key is verified, nothing but a
    /// refusal is sent. Only a key that makes its own index the identity needs a decision of its
    /// own.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn prove<'a>(
        &self,
        case: &RequestCase<'_>,
        claim: &ChallengeClaim<'a>,
        decider: &mut Decider<'_, '_>,
        decision: OperationDecision,
    ) -> Result<ProofOutcome<'a>, StoreError> {
        let (claimed, is_public_key) = (claim.answer.identity, claim.answer.auth_type == auth::PUBLIC_KEY);
        if claim.answer.auth_type == auth::GATEWAY_SESSION {
            let source = case.guess_source(&self.decision.in_force().exempt);
            return Ok(match self.prove_in_session(claim, source) {
                Ok(()) => ProofOutcome::Proven(claimed, decision),
                Err(response) => ProofOutcome::Response(response),
            });
        }
        // With index 0 and a public key, the index of the matching key counts too: in sessions as
        // in deployed servers, and here also outside sessions.
        let any_index = claimed.index == 0 && is_public_key;
        let promotes = any_index && decision.is_not_permitted();
        // Until a key has been tried, a refusal of the identity is the answer.
        let mut is_refused = decision.is_refusal();
        let candidates = match (is_refused, promotes) {
            (true, false) => Vec::new(),
            _ => match self.candidates(claim, decider, promotes)? {
                Ok(candidates) => candidates,
                Err(refused) => return Ok(ProofOutcome::Response(refused.into())),
            },
        };
        let checked = match self.begin_check_in(claim.answer.auth_type, claimed.handle, case) {
            Ok(checked) => checked,
            Err(refused) => return Ok(ProofOutcome::Response(refused.into())),
        };
        for candidate in &candidates {
            let index = candidate.index(claimed);
            let promoted = Reference { index, ..claimed };
            let of_promoted = match promotes {
                true => Some(decider.decide(Requester::Claimed(promoted))?),
                false => None,
            };
            if of_promoted.as_ref().is_some_and(OperationDecision::is_not_permitted) {
                continue;
            }
            match self.try_candidate(case, claim, candidate, decider) {
                Err(response) => return Ok(ProofOutcome::Response(response)),
                Ok(true) => {
                    if let Some(sessions) = self.proof.sessions() {
                        // The session gets the identity for which it was set up; any other identity
                        // counts for this request alone. Later requests of the session may need the
                        // index of the matching key even if this one did not.
                        let index = if any_index { index } else { claimed.index };
                        sessions.authenticate(case.incoming, claimed, index);
                    }
                    let (proven, decision) =
                        of_promoted.map_or((claimed, decision), |decision| (promoted, decision));
                    return Ok(ProofOutcome::Proven(proven, decision));
                }
                Ok(false) => is_refused = false,
            }
        }
        Ok(ProofOutcome::Response(match decision {
            OperationDecision::Answer(answer) if is_refused => answer.into(),
            _ => {
                checked.was_wrong();
                match candidates.is_empty() && self.has_no_handle(decider, claimed.handle)? {
                    true => unknown_identity(claimed).into(),
                    false => wrong_key(claimed),
                }
            }
        }))
    }

    /// Whether there is no handle with this name here or at a source.
    pub(super) fn has_no_handle(&self, decider: &Decider<'_, '_>, handle: &[u8]) -> Result<bool, StoreError> {
        let key = key(handle, decider.snapshot.folds());
        Ok(self.decision.sources().is_none() && decider.snapshot.record(&key)?.is_none())
    }

    /// The candidates for verifying the answer to a challenge: the keys in the store, or those of
    /// another service. A refusal if the identity cannot be verified.
    pub(super) fn candidates(
        &self,
        claim: &ChallengeClaim<'_>,
        decider: &mut Decider<'_, '_>,
        promotes: bool,
    ) -> Result<Result<Vec<KeyCandidate>, OperationRefusal>, StoreError> {
        let (identity, effort) = (claim.answer.identity, decider.effort());
        let kind = claim.answer.auth_type;
        let keys_tried =
            cost::keys_max(kind, claim.answer.signed_response, &effort.pbkdf2, effort.keys_tried);
        Ok(match decider.keys(identity, kind, keys_tried) {
            Ok(keys) => Ok(keys.into_iter().map(KeyCandidate::Key).collect()),
            Err(NoKeys::Store(error)) => return Err(error),
            Err(NoKeys::Source(refused)) => Err(refused),
            Err(NoKeys::Remote) if promotes && !decider.may_promote_remote_key() => Ok(Vec::new()),
            Err(NoKeys::Remote) => decider.remote_candidates(claim),
        })
    }

    /// Whether the answer to a challenge is right for `candidate`.
    ///
    /// # Errors
    /// The response if no other candidate is tried.
    fn try_candidate(
        &self,
        case: &RequestCase<'_>,
        claim: &ChallengeClaim<'_>,
        candidate: &KeyCandidate,
        decider: &Decider<'_, '_>,
    ) -> Result<bool, PreparedResponse> {
        let proof = ChallengeProof {
            version: claim.challenge.version,
            covered: claim.challenge.covered(),
            signed_response: claim.answer.signed_response,
            limits: decider.effort().pbkdf2,
        };
        let checked = match candidate {
            KeyCandidate::Key(key) => {
                let checked = self.proof.check_proof(&proof, claim.answer.auth_type, key, case.origin());
                checked.ok_or(TOO_MUCH_WAITS)?
            }
            KeyCandidate::Remote(verdict) => verdict.is_right.then_some(()).ok_or(VerifyError::Wrong),
        };
        match checked {
            Ok(()) => Ok(true),
            Err(VerifyError::Work) => Err(TOO_MUCH_WORK.into()),
            Err(error) => match candidate.older_form(claim) {
                Some(suggested) => Err(self.proof.challenge_again(case, claim.challenge, suggested)),
                None if error.is_unreadable() => Err(UNREADABLE_ANSWER.into()),
                None => Ok(false),
            },
        }
    }
}

/// The refusal of an identity whose handle does not exist, which everybody may know.
pub(super) fn unknown_identity(identity: Reference<'_>) -> OperationRefusal {
    let text =
        format!("The handle of the identity {}:{} does not exist.", identity.index, Handle(identity.handle));
    OperationRefusal { code: ResponseCode::AUTHENTICATION_FAILED, text: text.into() }
}

/// The refusal of an answer that was not made with a key of `identity`.
pub(super) fn wrong_key(identity: Reference<'_>) -> PreparedResponse {
    let text =
        format!("The answer is not made with a key of {}:{}.", identity.index, Handle(identity.handle));
    OperationRefusal { code: ResponseCode::AUTHENTICATION_FAILED, text: text.into() }.into()
}
