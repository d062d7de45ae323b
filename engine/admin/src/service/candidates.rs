//! The candidates for verifying an answer to a challenge: keys in the store, and keys or the
//! verdict of the service of the claimed identity.

use super::ChallengeEffort;
use super::case::ChallengeClaim;
use super::decide::{Decider, TOO_MANY_INQUIRIES};
use crate::operation::{CandidateKey, OperationRefusal};
use crate::remote::{RemoteFailure, RemoteVerdict};
use handle_auth::Pbkdf2Limits;
use handle_auth::challenge_proof::ChallengeProof;
use handle_auth::challenges::IssuedChallenge;
use handle_client::LookupAnswer;
use handle_proto::code::DigestAlgorithm;
use handle_proto::data::kind::HS_PUBKEY;
use handle_proto::wire::auth::{self, SecretAnswer, VerificationRequest};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, ResponseCode, Version, fold};
use zeroize::Zeroizing;

/// One means of verifying an answer to a challenge.
pub(super) enum KeyCandidate {
    /// A key.
    Key(CandidateKey),
    /// The verdict of the service that has the secret.
    Remote(RemoteVerdict),
}

/// Maximum length of an answer, made with a secret, that is shown to another service. Deployed
/// clients need 53 bytes.
const ANSWER_LEN_MAX: usize = 1024;

/// The answer to a challenge has a form that no key produces.
pub(super) const UNREADABLE_ANSWER: OperationRefusal =
    OperationRefusal::new(ResponseCode::AUTHENTICATION_ERROR, "The answer to the challenge cannot be read.");
const ONLY_OWN_IDENTITIES: OperationRefusal = OperationRefusal::new(
    ResponseCode::AUTHENTICATION_FAILED,
    "This server can only check identities whose handles it has.",
);

impl KeyCandidate {
    /// The index of the value with the key, if it is known.
    pub(super) const fn index(&self, claimed: Reference<'_>) -> i32 {
        match self {
            Self::Key(key) => key.index,
            Self::Remote(_) => claimed.index,
        }
    }

    /// The version to suggest to the client that has answered the challenge, so that the server
    /// with the secret understands the next answer. `None` if that server understood this answer,
    /// or if an answer in a form it knows has already been requested. RFC 3652 section 3.5.3, with
    /// the deployed way from new clients to old servers.
    pub(super) fn older_form(&self, claim: &ChallengeClaim<'_>) -> Option<Version> {
        let Self::Remote(RemoteVerdict { is_right: false, verifier }) = *self else { return None };
        let requested = claim.challenge.version.min(claim.challenge.suggested);
        let answer = SecretAnswer::decode(claim.answer.signed_response).ok()?;
        let steps_down = requested >= SecretAnswer::DERIVED_SINCE && answer.is_too_new_for(verifier);
        // Below the lowest version, no code identifies the form.
        steps_down.then(|| verifier.max(Version::LOWEST))
    }
}

impl Decider<'_, '_> {
    /// The means of verifying an identity whose handle is at another service: public keys, or the
    /// verdict of its service on a secret. An answer is not shown to another service if no client
    /// makes such an answer or if it would take more work than the limits here allow.
    ///
    /// # Errors
    /// Why the identity cannot be verified.
    pub(super) fn remote_candidates(
        &mut self,
        claim: &ChallengeClaim<'_>,
    ) -> Result<Vec<KeyCandidate>, OperationRefusal> {
        let effort = self.effort();
        let Some(inquiry) = &mut self.inquiry else { return Err(ONLY_OWN_IDENTITIES) };
        let ChallengeClaim { challenge, answer } = claim;
        let identity = answer.identity;
        let candidates = match answer.auth_type {
            auth::PUBLIC_KEY => {
                inquiry.public_keys(identity).map(|values| public_keys(&values, identity, effort.keys_tried))
            }
            _ if is_unreadable(challenge, answer.signed_response) => return Err(UNREADABLE_ANSWER),
            // Its service would verify the answer under the version of the verification request and
            // would reject a right answer.
            _ if challenge.version < Version::LOWEST => return Err(ONLY_OWN_IDENTITIES),
            _ if !is_worth_showing(answer.signed_response, &effort) => return Ok(Vec::new()),
            _ => {
                let [nonce, digest] = challenge.covered();
                // Framed as deployed servers do, whatever the algorithm.
                let digest = RequestDigest { algorithm: DigestAlgorithm::OLD_MD5, digest };
                let signed_response = answer.signed_response;
                let verification = VerificationRequest { identity, nonce, digest, signed_response };
                inquiry.verdict(&verification).map(|verdict| vec![KeyCandidate::Remote(verdict)])
            }
        };
        candidates.map_err(|failure| match failure {
            RemoteFailure::Busy => TOO_MANY_INQUIRIES,
            failure => {
                let name = Handle(identity.handle);
                tracing::debug!(identity = %name, why = %failure, "not checked elsewhere");
                let why = if failure.was_heard() { "did not say" } else { "did not answer" };
                let text = format!("{}:{name} could not be checked: its service {why}.", identity.index);
                OperationRefusal { code: ResponseCode::AUTHENTICATION_ERROR, text: text.into() }
            }
        })
    }
}

/// Whether the answer has a form that no secret key produces. The same check applies if the secret
/// is here.
fn is_unreadable(challenge: &IssuedChallenge, signed_response: &[u8]) -> bool {
    // Only the form is checked; no key is derived.
    let limits = Pbkdf2Limits { iterations_max: 0, ..Pbkdf2Limits::DEFAULT };
    let (version, covered) = (challenge.version, challenge.covered());
    let proof = ChallengeProof { version, covered, signed_response, limits };
    proof.check(auth::SECRET_KEY, b"any").is_err_and(|error| error.is_unreadable())
}

/// Whether the answer may be right: its form is known, and its work is within the limits.
fn is_worth_showing(signed_response: &[u8], effort: &ChallengeEffort) -> bool {
    signed_response.len() <= ANSWER_LEN_MAX
        && SecretAnswer::decode(signed_response).is_ok_and(|answer| effort.pbkdf2.admit(&answer))
}

/// The public keys among the values of another service, in ascending order of index.
pub(super) fn public_keys(values: &LookupAnswer, identity: Reference<'_>, most: usize) -> Vec<KeyCandidate> {
    let mut keys: Vec<CandidateKey> = values
        .values()
        .iter()
        .filter(|value| {
            (identity.index == 0 || value.index == identity.index) && fold::eq(value.kind, HS_PUBKEY)
        })
        .map(|value| CandidateKey { index: value.index, data: Zeroizing::new(value.data.to_vec()) })
        .collect();
    keys.sort_by_key(|key| key.index);
    keys.truncate(most);
    keys.into_iter().map(KeyCandidate::Key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_auth::Digest;
    use handle_proto::wire::auth::ChallengeAnswer;

    const EFFORT: ChallengeEffort =
        ChallengeEffort { pbkdf2: Pbkdf2Limits::DEFAULT, keys_tried: 8, requires_sessions: false };

    fn derived(iterations: u32, key_bits: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        SecretAnswer::Pbkdf2 { salt: b"salt", iterations, key_bits, mac: b"mac" }.encode(&mut bytes);
        bytes
    }

    #[test]
    fn an_older_form_is_requested_once_and_only_after_a_newer_form() {
        let minor = |minor| Version::new(2, minor);
        let (derived, plain) = (derived(10_000, 160), b"\x02mac".to_vec());
        for (version, suggested, verifier, signed_response, expected) in [
            (11, 11, minor(6), &derived, Some(minor(6))),
            (7, 11, minor(1), &derived, Some(minor(1))),
            (11, 11, Version::new(1, 0), &derived, Some(Version::LOWEST)),
            (11, 11, minor(7), &derived, None),
            (11, 11, minor(6), &plain, None),
            // The client has already been told the version of the other server.
            (11, 6, minor(6), &derived, None),
            (6, 11, minor(6), &derived, None),
        ] {
            let (version, suggested) = (minor(version), minor(suggested));
            let digest = Digest::from_bytes(&[2; 20]);
            let request = Zeroizing::new(Box::default());
            let challenge = IssuedChallenge { version, suggested, nonce: [1; 16], digest, request };
            let identity = Reference { handle: b"20.2/identity", index: 301 };
            let answer = ChallengeAnswer { auth_type: auth::SECRET_KEY, identity, signed_response };
            let verdict = |is_right| KeyCandidate::Remote(RemoteVerdict { is_right, verifier });
            assert_eq!(
                verdict(false).older_form(&ChallengeClaim { challenge: &challenge, answer }),
                expected,
                "{version} {suggested} {verifier}"
            );
            let claim = ChallengeClaim { challenge: &challenge, answer };
            assert_eq!(verdict(true).older_form(&claim), None);
        }
    }

    #[test]
    fn unreadable_answers_differ_from_answers_that_take_too_much_work() {
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
    fn answers_that_no_client_makes_are_not_shown_to_other_services() {
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
