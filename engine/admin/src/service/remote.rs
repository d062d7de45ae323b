//! Decisions that depend on other services. The thread of the request, which may block, asks these
//! services between one attempt at the decision and the next.

use super::{AdminService, ChallengeEffort, UNREADABLE_ANSWER};
use crate::operation::{
    CandidateKey, OperationAnswer, OperationDecision, OperationRefusal, OperationRequest, OperationRules,
    Requester, decide,
};
use crate::permission::view::{RemoteFacts, WantedFact};
use crate::remote::{RemoteFailure, RemoteInquiry, RemoteVerdict};
use crate::store::{StoreError, StoreRecords};
use handle_auth::challenge_proof::ChallengeProof;
use handle_auth::challenges::IssuedChallenge;
use handle_auth::source::RequestOrigin;
use handle_auth::{Pbkdf2Limits, VerifyError};
use handle_client::LookupAnswer as Told;
use handle_proto::code::DigestAlgorithm;
use handle_proto::data::kind::HS_PUBKEY;
use handle_proto::wire::auth::{self, ChallengeAnswer, SecretAnswer, VerificationRequest};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, ResponseCode, ValueBuf, Version, fold};
use std::borrow::Cow;
use zeroize::Zeroizing;

/// The facts about other services that one request has gathered, and how to ask for more.
pub(super) struct RemoteContext<'s> {
    pub(super) facts: RemoteFacts,
    /// `None` if other services are not asked.
    inquiry: Option<RemoteInquiry<'s>>,
    /// Why the first missing fact could not be found out.
    unanswered: Option<RemoteFailure>,
    /// The source on whose behalf the work is done.
    pub(super) origin: RequestOrigin,
}

/// The means of verifying an answer to a challenge.
pub(super) enum IdentityProof {
    /// A key.
    Key(CandidateKey),
    /// The verdict of the service that has the secret.
    Told(RemoteVerdict),
}

/// Maximum length of an answer, made with a secret, that is shown to another service. Deployed
/// clients need 53 bytes.
const ANSWER_LEN_MAX: usize = 1024;

impl IdentityProof {
    /// The index of the value with the key, if it is known.
    pub(super) const fn index(&self, claim: Reference<'_>) -> i32 {
        match self {
            Self::Key(key) => key.index,
            Self::Told(_) => claim.index,
        }
    }

    /// Whether the answer is right, or why that cannot be decided.
    pub(super) fn check(&self, answered: &ChallengeProof<'_>, kind: &[u8]) -> Result<(), VerifyError> {
        match self {
            Self::Key(key) => answered.check(kind, &key.data),
            Self::Told(verdict) if verdict.is_right => Ok(()),
            Self::Told(_) => Err(VerifyError::Wrong),
        }
    }

    /// The version to suggest to the client that answered `challenge`, so that the server with the
    /// secret understands the next answer. `None` if that server understood this answer, or if an
    /// answer in a form it knows has already been requested. RFC 3652 section 3.5.3, with the
    /// deployed way from new clients to old servers.
    pub(super) fn older_form(
        &self,
        challenge: &IssuedChallenge,
        answer: &ChallengeAnswer<'_>,
    ) -> Option<Version> {
        let Self::Told(RemoteVerdict { is_right: false, verifier }) = *self else { return None };
        let asked_for = challenge.version.min(challenge.suggested);
        let answer = SecretAnswer::decode(answer.signed_response).ok()?;
        let steps_down = asked_for >= SecretAnswer::DERIVED_SINCE && answer.is_too_new_for(verifier);
        // Below the lowest version, no code identifies the form.
        steps_down.then(|| verifier.max(Version::LOWEST))
    }
}

impl RemoteContext<'_> {
    /// The gathered facts. The place for asking other services is released, so that the next
    /// request need not wait while the facts are used.
    pub(super) fn into_known(self) -> RemoteFacts {
        self.facts
    }

    /// Decides; if a fact about another service is missing, asks for it and decides again.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn decide(
        &mut self,
        records: &impl StoreRecords,
        rules: &OperationRules,
        asked: &OperationRequest<'_>,
        who: Requester<'_>,
    ) -> Result<OperationDecision, StoreError> {
        loop {
            let decision = decide(records, rules, asked, who, &self.facts)?;
            let missing = self.facts.take_missing().into_iter().next();
            let (Some(inquiry), Some(wanted), true) =
                (&mut self.inquiry, missing, decision.is_not_permitted())
            else {
                return Ok(self.told_why(decision));
            };
            let told = match &wanted {
                WantedFact::Group { handle, index } => inquiry.value(Reference { handle, index: *index }),
                WantedFact::Administrators(record) => inquiry.administrators(record),
            };
            let values = match told {
                Ok(answer) => answer.values().iter().map(|value| ValueBuf::from(&value)).collect(),
                Err(RemoteFailure::Busy) => {
                    return Ok(OperationDecision::Answer(OperationAnswer::Refused(BUSY)));
                }
                // No more facts can be found out, and a decision may lack a thousand of them: each
                // attempt repeats all the work.
                Err(RemoteFailure::Enough) => {
                    self.unanswered.get_or_insert(RemoteFailure::Enough);
                    return Ok(self.told_why(decision));
                }
                Err(unanswered) => {
                    tracing::debug!(record = %wanted.handle(), why = %unanswered, "not asked elsewhere");
                    self.unanswered.get_or_insert(unanswered);
                    Vec::new()
                }
            };
            self.facts.learn(wanted, values);
        }
    }

    /// A refusal which says that not all facts could be found out. The name of the record concerned
    /// goes to the log only: the requester may have no right to know whom a record names.
    fn told_why(&self, decision: OperationDecision) -> OperationDecision {
        match (decision, &self.unanswered) {
            (
                OperationDecision::Answer(OperationAnswer::Refused(OperationRefusal { code, text })),
                Some(unanswered),
            ) if code == ResponseCode::INVALID_ADMIN => {
                let but = match unanswered {
                    RemoteFailure::Enough => "there is more to look up than is looked up",
                    heard if heard.was_heard() => "one does not say",
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
    pub(super) fn is_worth_promoting(&self) -> bool {
        self.inquiry.is_some() && self.facts.names_identity()
    }

    /// The means of verifying an identity whose handle is at another service: public keys, or the
    /// verdict of its service on a secret. An answer is not shown to another service if no client
    /// makes such an answer or if it would take more work than the limits here allow.
    ///
    /// # Errors
    /// Why the identity cannot be verified.
    pub(super) fn proofs(
        &mut self,
        challenge: &IssuedChallenge,
        answer: &ChallengeAnswer<'_>,
        effort: &ChallengeEffort,
    ) -> Result<Vec<IdentityProof>, OperationRefusal> {
        const NOT_ASKED: OperationRefusal = OperationRefusal::new(
            ResponseCode::AUTHENTICATION_FAILED,
            "This server can only check identities whose handles it has.",
        );
        let Some(inquiry) = &mut self.inquiry else { return Err(NOT_ASKED) };
        let identity = answer.identity;
        let told = match answer.auth_type {
            auth::PUBLIC_KEY => {
                inquiry.public_keys(identity).map(|told| keys_among(&told, identity, effort.keys_tried))
            }
            _ if is_unreadable(challenge, answer.signed_response) => return Err(UNREADABLE_ANSWER),
            // Its service would verify the answer under the version of the verification request and
            // would reject a right answer.
            _ if challenge.version < Version::LOWEST => return Err(NOT_ASKED),
            _ if !is_worth_showing(answer.signed_response, effort) => return Ok(Vec::new()),
            _ => {
                let [nonce, digest] = challenge.covered();
                // Framed as deployed servers do, whatever the algorithm.
                let digest = RequestDigest { algorithm: DigestAlgorithm::OLD_MD5, digest };
                let signed_response = answer.signed_response;
                let verification = VerificationRequest { identity, nonce, digest, signed_response };
                inquiry.verdict(&verification).map(|verdict| vec![IdentityProof::Told(verdict)])
            }
        };
        told.map_err(|unanswered| match unanswered {
            RemoteFailure::Busy => BUSY,
            unanswered => {
                let name = Handle(identity.handle);
                tracing::debug!(identity = %name, why = %unanswered, "not checked elsewhere");
                let why = if unanswered.was_heard() { "did not say" } else { "did not answer" };
                let text = format!("{}:{name} could not be checked: its service {why}.", identity.index);
                OperationRefusal { code: ResponseCode::AUTHENTICATION_ERROR, text: text.into() }
            }
        })
    }
}

const BUSY: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "Too many identities of other services are being looked up; ask again later.",
);

/// Whether the answer has a form that no secret key produces. The same check applies if the secret
/// is here.
fn is_unreadable(challenge: &IssuedChallenge, signed_response: &[u8]) -> bool {
    // Only the form is checked; no key is derived.
    let limits = Pbkdf2Limits { iterations_max: 0, ..Pbkdf2Limits::DEFAULT };
    let (version, covered) = (challenge.version, challenge.covered());
    let answered = ChallengeProof { version, covered, signed_response, limits };
    answered.check(auth::SECRET_KEY, b"any").is_err_and(|error| error.is_unreadable())
}

/// Whether the answer may be right: its form is known, and its work is within the limits.
fn is_worth_showing(signed_response: &[u8], effort: &ChallengeEffort) -> bool {
    signed_response.len() <= ANSWER_LEN_MAX
        && SecretAnswer::decode(signed_response).is_ok_and(|answer| effort.pbkdf2.admit(&answer))
}

/// The public keys among the values received, in ascending order of index.
fn keys_among(told: &Told, identity: Reference<'_>, most: usize) -> Vec<IdentityProof> {
    let values = told.values().iter();
    let mut keys: Vec<CandidateKey> = values
        .filter(|value| {
            (identity.index == 0 || value.index == identity.index) && fold::eq(value.kind, HS_PUBKEY)
        })
        .map(|value| CandidateKey { index: value.index, data: Zeroizing::new(value.data.to_vec()) })
        .collect();
    keys.sort_by_key(|key| key.index);
    keys.truncate(most);
    keys.into_iter().map(IdentityProof::Key).collect()
}

impl AdminService {
    /// The context of a request that has not asked other services yet.
    pub(super) fn remote_context(&self, origin: RequestOrigin) -> RemoteContext<'_> {
        let inquiry = self.remote.as_ref().map(|remote| remote.begin_inquiry());
        RemoteContext { facts: RemoteFacts::default(), inquiry, unanswered: None, origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_auth::Digest;

    const EFFORT: ChallengeEffort =
        ChallengeEffort { pbkdf2: Pbkdf2Limits::DEFAULT, keys_tried: 8, requires_sessions: false };

    fn derived(iterations: u32, key_bits: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        SecretAnswer::Pbkdf2 { salt: b"salt", iterations, key_bits, mac: b"mac" }.encode(&mut bytes);
        bytes
    }

    #[test]
    fn an_older_form_is_asked_for_once_and_only_of_who_used_a_newer_one() {
        let minor = |minor| Version::new(2, minor);
        let (derived, plain) = (derived(10_000, 160), b"\x02mac".to_vec());
        for (version, suggested, verifier, signed_response, expected) in [
            (11, 11, minor(6), &derived, Some(minor(6))),
            (7, 11, minor(1), &derived, Some(minor(1))),
            (11, 11, Version::new(1, 0), &derived, Some(Version::LOWEST)),
            (11, 11, minor(7), &derived, None),
            (11, 11, minor(6), &plain, None),
            // It was told before what the other server knows.
            (11, 6, minor(6), &derived, None),
            (6, 11, minor(6), &derived, None),
        ] {
            let (version, suggested) = (minor(version), minor(suggested));
            let digest = Digest::from_bytes(&[2; 20]);
            let request = Zeroizing::new(Box::default());
            let challenge = IssuedChallenge { version, suggested, nonce: [1; 16], digest, request };
            let identity = Reference { handle: b"20.2/who", index: 301 };
            let answer = ChallengeAnswer { auth_type: auth::SECRET_KEY, identity, signed_response };
            let told = |is_right| IdentityProof::Told(RemoteVerdict { is_right, verifier });
            assert_eq!(
                told(false).older_form(&challenge, &answer),
                expected,
                "{version} {suggested} {verifier}"
            );
            assert_eq!(told(true).older_form(&challenge, &answer), None);
        }
    }

    #[test]
    fn what_no_secret_can_have_made_is_told_from_what_is_too_much_work() {
        let digest = Digest::from_bytes(&[2; 20]);
        let (version, suggested) = (Version::CURRENT, Version::CURRENT);
        let request = Zeroizing::new(Box::default());
        let challenge = IssuedChallenge { version, suggested, nonce: [1; 16], digest, request };
        for (answer, expected) in [
            (derived(10_000, 160), false),
            (derived(u32::MAX, 160), false),
            (derived(10_000, 0), false),
            (b"\x01mac".to_vec(), false),
            (b"\x02mac".to_vec(), false),
            (b"\x03mac".to_vec(), false),
            (Vec::new(), true),
            (b"\x22\0\0\0\x04".to_vec(), true),
            (b"\x7fmac".to_vec(), true),
            // Without a code: of version 2.0 and before.
            (vec![2; 16], true),
        ] {
            assert_eq!(is_unreadable(&challenge, &answer), expected, "{answer:02x?}");
        }
    }

    #[test]
    fn nobody_is_shown_what_no_client_makes() {
        let long = |len: usize| [&[2][..], &vec![0; len - 1]].concat();
        for (answer, is_worth_it) in [
            (derived(1_000_000, 512), true),
            (derived(1_000_001, 512), false),
            (derived(u32::MAX, 160), false),
            (derived(10_000, 0), false),
            (long(ANSWER_LEN_MAX), true),
            (long(ANSWER_LEN_MAX + 1), false),
            (Vec::new(), false),
            (b"\x22\0\0\0\x04".to_vec(), false),
        ] {
            assert_eq!(is_worth_showing(&answer, &EFFORT), is_worth_it, "{} bytes", answer.len());
        }
    }
}
