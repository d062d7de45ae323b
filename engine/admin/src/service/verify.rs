//! Verifying answers to challenges, for this server and for others.

use super::case::RequestCase;
use super::decide::{Decider, NoKeys};
use super::open::UNREADABLE;
use super::response::PreparedResponse;
use super::{AdminService, Authenticator};
use crate::operation::{CandidateKey, OperationAnswer, OperationRefusal};
use handle_auth::challenge_proof::ChallengeProof;
use handle_auth::source::RequestOrigin;
use handle_auth::{VerifyError, cost};
use handle_proto::ResponseCode;
use handle_proto::wire::Request;
use handle_proto::wire::auth::{self, VerificationRequest};
use handle_store::StoreError;

/// Costly work has its own threads; this is the refusal when their queue is full.
pub(super) const TOO_MUCH_WAITS: OperationRefusal = OperationRefusal::new(
    ResponseCode::SERVER_BUSY,
    "Too many key exchanges and answers wait to be checked; ask again later.",
);

impl AdminService {
    /// Handles a request of another server to verify the answer to its challenge. RFC 3652 section
    /// 3.5.3.
    pub(super) fn verify(
        &self,
        decider: &mut Decider<'_, '_>,
        case: &RequestCase<'_>,
    ) -> Result<PreparedResponse, StoreError> {
        let Request::VerifyChallenge(VerificationRequest { identity, nonce, digest, signed_response }) =
            decider.request.request
        else {
            return Ok(OperationAnswer::Verdict(false).into());
        };
        let (kind, effort) = (auth::SECRET_KEY, decider.effort());
        let keys_tried = cost::keys_max(kind, signed_response, &effort.pbkdf2, effort.keys_tried);
        let keys = match decider.keys(identity, kind, keys_tried) {
            Ok(keys) => keys,
            Err(NoKeys::Remote) => Vec::new(),
            Err(NoKeys::Source(refused)) => return Ok(refused.into()),
            Err(NoKeys::Store(error)) => return Err(error),
        };
        let proof = ChallengeProof {
            version: decider.request.version,
            covered: [nonce, digest.digest],
            signed_response,
            limits: effort.pbkdf2,
        };
        let checked = match self.begin_check_in(kind, identity.handle, case) {
            Ok(checked) => checked,
            Err(refused) => return Ok(refused.into()),
        };
        let mut is_readable = true;
        for key in &keys {
            match self.proof.check_proof(&proof, kind, key, case.origin()) {
                None => return Ok(TOO_MUCH_WAITS.into()),
                Some(Ok(())) => return Ok(OperationAnswer::Verdict(true).into()),
                Some(Err(error)) => is_readable &= !error.is_unreadable(),
            }
        }
        checked.was_wrong();
        // As deployed servers do: see `verify_auth_secret_md5_old` of the vectors.
        Ok(match is_readable {
            true => OperationAnswer::Verdict(false).into(),
            false => PreparedResponse::Unreadable(UNREADABLE),
        })
    }
}

impl Authenticator {
    /// Verifies an answer to a challenge with `key`, of type `kind`; `None` if the queue for costly
    /// work is full.
    pub(super) fn check_proof(
        &self,
        proof: &ChallengeProof<'_>,
        kind: &[u8],
        key: &CandidateKey,
        origin: RequestOrigin,
    ) -> Option<Result<(), VerifyError>> {
        let ChallengeProof { version, covered, signed_response, limits } = *proof;
        let cost = cost::check(kind, signed_response, &limits);
        let kind = if kind == auth::PUBLIC_KEY { auth::PUBLIC_KEY } else { auth::SECRET_KEY };
        let (covered, signed_response) = (covered.map(<[u8]>::to_vec), signed_response.to_vec());
        let key = key.data.clone();
        self.run_costly(origin, cost, move || {
            let covered = [&covered[0][..], &covered[1]];
            ChallengeProof { version, covered, signed_response: &signed_response, limits }.check(kind, &key)
        })
    }
}
