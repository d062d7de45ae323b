//! Callers over HTTP: verifies the proofs that `handle-gateway` forwards, and starts sessions.

use super::AdminService;
use super::candidates::KeyCandidate;
use super::case::ChallengeClaim;
use super::decide::{NoKeys, keys_with_sources};
use super::prove::wrong_key;
use super::response::PreparedResponse;
use crate::audit::AuditLine;
use crate::caller_sessions::{CallerSessionLimits, ProvenKey};
use crate::operation::OperationRefusal;
use crate::remote::{RemoteFailure, RemoteInquiry};
use handle_auth::challenge_proof::ChallengeProof;
use handle_auth::source::RequestOrigin;
use handle_auth::{VerifyError, cost};
use handle_daemon::source_rates::SourceRate;
use handle_local::callers::{CallerProof, CallerRefusal, CallerReply, CallerRequest, CallerSessionId};
use handle_proto::code::DigestAlgorithm;
use handle_proto::data::PublicKey;
use handle_proto::name::BLANK;
use handle_proto::wire::auth::{self, VerificationRequest};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::list::Reference;
use handle_proto::{OpCode, ResponseCode, Version};
use handle_store::StoreError;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use zeroize::Zeroizing;

/// Signatures of nonces for one source: 50 per second and 200 at once. A signature with 2048 bits
/// takes 0.85 ms, so a source gets a twentieth of a core, and many clients behind one address can
/// still begin their sessions together.
const SIGNATURE_RATE: SourceRate =
    SourceRate { interval_ns: 20_000_000, burst: 200, ipv4_bits: 32, ipv6_bits: 64 };

const NOT_CHECKED: OperationRefusal = OperationRefusal::new(
    ResponseCode::AUTHENTICATION_ERROR,
    "The key of the session could not be checked: the service of its identity did not answer.",
);

impl AdminService {
    /// Answers `handle-gateway`. May block on other services.
    #[must_use]
    pub fn answer_gateway(&self, request: CallerRequest<'_>, limits: &CallerSessionLimits) -> CallerReply {
        match request {
            CallerRequest::NonceStart => {
                let start = handle_auth::random();
                self.proof.caller_sessions().start_nonces(start, limits, self.proof.now_ms());
                let valid_ms = u32::try_from(limits.nonce_ms).unwrap_or(u32::MAX);
                CallerReply::NonceStart { start, valid_ms }
            }
            CallerRequest::Prove(proof) => {
                let reply = self.prove_caller(&proof, limits);
                self.record_caller(proof.source, Some(proof.identity), &reply);
                reply
            }
            CallerRequest::ProveByCertificate(proof) => self.prove_by_certificate(&proof, limits),
            CallerRequest::Sign { nonce, client_nonce, source } => {
                self.sign_nonces(nonce, client_nonce, source)
            }
            CallerRequest::End(id) => {
                self.proof.caller_sessions().end(id);
                CallerReply::Ended
            }
        }
    }

    /// Verifies an answer to a challenge that was made in the session of a caller.
    ///
    /// # Errors
    /// The response if the claim is not proven.
    pub(super) fn prove_in_session(
        &self,
        claim: &ChallengeClaim<'_>,
        source: IpAddr,
    ) -> Result<(), PreparedResponse> {
        let (identity, now_ms) = (claim.answer.identity, self.proof.now_ms());
        let (covered, answer) = (claim.challenge.covered(), claim.answer.signed_response);
        let wrong = || Err(wrong_key(identity));
        let is_right = self.proof.caller_sessions().verify(identity, &covered, answer, now_ms);
        let Some((id, _)) = answer.split_first_chunk().filter(|_| is_right) else { return wrong() };
        match self.still_has_key(identity, *id, source) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.proof.caller_sessions().end(*id);
                wrong()
            }
            Err(refused) => Err(refused.into()),
        }
    }

    /// Whether `identity` still has the key with which its session `id` was started. Without an
    /// answer of the service of the identity no caller is proven, as outside sessions.
    fn still_has_key(
        &self,
        identity: Reference<'_>,
        id: CallerSessionId,
        source: IpAddr,
    ) -> Result<bool, OperationRefusal> {
        let now_ms = self.proof.now_ms();
        let Some((proven, is_due)) = self.proof.caller_sessions().proven_key(id, now_ms) else {
            return Ok(true);
        };
        let identity = Reference { index: proven.index, ..identity };
        let snapshot = self.store.snapshot().map_err(|error| self.store_refusal(&error))?;
        let (in_force, most) = (self.decision.in_force(), self.decision.in_force().effort.keys_tried);
        match keys_with_sources(
            &snapshot,
            &mut self.decision.source_facts(),
            &in_force.rules,
            identity,
            proven.kind,
            most,
        ) {
            Ok(keys) => return Ok(keys.iter().any(|key| proven.is(key))),
            Err(NoKeys::Store(error)) => return Err(self.store_refusal(&error)),
            Err(NoKeys::Source(refused)) => return Err(refused),
            Err(NoKeys::Remote) if !is_due => return Ok(true),
            Err(NoKeys::Remote) => {}
        }
        let Some(remote) = self.decision.remote() else { return Ok(false) };
        let values = remote.begin_inquiry(source).public_keys(identity).map_err(|_| NOT_CHECKED)?;
        let found = super::candidates::public_keys(&values, identity, most);
        let has_key = found.iter().any(|it| matches!(it, KeyCandidate::Key(key) if proven.is(key)));
        if has_key {
            self.proof.caller_sessions().confirm(id, now_ms);
        }
        Ok(has_key)
    }

    fn prove_caller(&self, proof: &CallerProof<'_>, limits: &CallerSessionLimits) -> CallerReply {
        if !self.proof.caller_sessions().is_open(proof.nonce, self.proof.now_ms()) {
            return CallerReply::Refused(CallerRefusal::Stale);
        }
        let (index, key) = match self.proven_index(proof) {
            Ok(proven) => proven,
            Err(refusal) => return CallerReply::Refused(refusal),
        };
        self.begin_caller_session(proof.nonce, Reference { index, ..proof.identity }, key, limits)
    }

    /// Starts a session for `identity`, which was proven with `nonce` and `key`, unless the nonce
    /// has been used meanwhile.
    pub(super) fn begin_caller_session(
        &self,
        nonce: &[u8],
        identity: Reference<'_>,
        key: Option<ProvenKey>,
        limits: &CallerSessionLimits,
    ) -> CallerReply {
        let (id, secret) = (handle_auth::random(), Zeroizing::new(handle_auth::random()));
        let (mut sessions, now_ms) = (self.proof.caller_sessions(), self.proof.now_ms());
        if !sessions.take(nonce, limits, now_ms) {
            return CallerReply::Refused(CallerRefusal::Stale);
        }
        sessions.begin(id, secret.clone(), identity, key, limits, now_ms);
        CallerReply::Proven { id, secret, index: identity.index }
    }

    /// The index of the identity for which `proof` is right, and the key. With index 0 it is that
    /// of a public key that matches, and stays 0 for secret keys, as in deployed servers.
    fn proven_index(&self, proof: &CallerProof<'_>) -> Result<(i32, Option<ProvenKey>), CallerRefusal> {
        let kind = match proof.auth_type {
            auth::PUBLIC_KEY => auth::PUBLIC_KEY,
            auth::SECRET_KEY => auth::SECRET_KEY,
            _ => return Err(CallerRefusal::Wrong),
        };
        let effort = self.decision.in_force().effort;
        let origin = RequestOrigin::connection(proof.source);
        let checked = ChallengeProof {
            version: Version::CURRENT,
            covered: [proof.nonce, proof.client_nonce],
            signed_response: proof.signed_response,
            limits: effort.pbkdf2,
        };
        let most = cost::keys_max(kind, proof.signed_response, &effort.pbkdf2, effort.keys_tried);
        let attempt = self.begin_check(kind, proof.identity.handle, proof.source);
        let attempt = attempt.map_err(|_| CallerRefusal::Busy)?;
        let ask = |inquiry: &mut RemoteInquiry<'_>| remote_candidates(inquiry, proof, kind, most);
        for candidate in self.caller_candidates(proof.identity, proof.source, kind, most, ask)? {
            let outcome = match &candidate {
                // This server signs nonces for everybody who asks.
                KeyCandidate::Key(key) if self.is_server_key(&key.data) => continue,
                KeyCandidate::Key(key) => {
                    self.proof.check_proof(&checked, kind, key, origin).ok_or(CallerRefusal::Busy)?
                }
                KeyCandidate::Remote(verdict) => verdict.is_right.then_some(()).ok_or(VerifyError::Wrong),
            };
            if outcome.is_ok() {
                let is_public = kind == auth::PUBLIC_KEY;
                let index = if is_public { candidate.index(proof.identity) } else { proof.identity.index };
                let key = match &candidate {
                    KeyCandidate::Key(key) => Some(ProvenKey::new(kind, key)),
                    KeyCandidate::Remote(_) => None,
                };
                return Ok((index, key));
            }
        }
        attempt.was_wrong();
        Err(CallerRefusal::Wrong)
    }

    /// Whether `data` is the public key of this server, in whatever form.
    pub(super) fn is_server_key(&self, data: &[u8]) -> bool {
        let site = self.decision.site();
        let Some(server) = site.server() else { return false };
        match (PublicKey::decode(server.public_key), PublicKey::decode(data)) {
            // Another exponent may verify the same signatures.
            (Ok(PublicKey::Rsa { n: own, .. }), Ok(PublicKey::Rsa { n, .. })) => own == n,
            (Ok(PublicKey::Dsa { y: own, .. }), Ok(PublicKey::Dsa { y, .. })) => own == y,
            _ => false,
        }
    }

    /// The first keys of an identity that a client at a source claims, of a kind and at most so
    /// many of them, or what `ask` finds out from its service.
    pub(super) fn caller_candidates(
        &self,
        identity: Reference<'_>,
        source: IpAddr,
        kind: &'static [u8],
        most: usize,
        ask: impl FnOnce(&mut RemoteInquiry<'_>) -> Result<Vec<KeyCandidate>, RemoteFailure>,
    ) -> Result<Vec<KeyCandidate>, CallerRefusal> {
        let failed = |error: StoreError| {
            tracing::error!(%error, "cannot read the keys of a caller");
            CallerRefusal::Busy
        };
        let (in_force, snapshot) = (self.decision.in_force(), self.store.snapshot().map_err(failed)?);
        match keys_with_sources(
            &snapshot,
            &mut self.decision.source_facts(),
            &in_force.rules,
            identity,
            kind,
            most,
        ) {
            Ok(keys) => Ok(keys.into_iter().map(KeyCandidate::Key).collect()),
            Err(NoKeys::Store(error)) => Err(failed(error)),
            Err(NoKeys::Source(_)) => Err(CallerRefusal::Unanswered),
            Err(NoKeys::Remote) => {
                let Some(remote) = self.decision.remote() else { return Err(CallerRefusal::Wrong) };
                ask(&mut remote.begin_inquiry(source)).map_err(|failure| match failure {
                    RemoteFailure::Busy => CallerRefusal::Busy,
                    _ => CallerRefusal::Unanswered,
                })
            }
        }
    }

    /// Signs both nonces with the key of the server. The signature is never valid for a message:
    /// the signed bytes begin with random bytes of this process, where a message has its codes.
    fn sign_nonces(&self, nonce: &[u8], client_nonce: &[u8], source: IpAddr) -> CallerReply {
        if !self.proof.caller_sessions().is_open(nonce, self.proof.now_ms()) {
            return CallerReply::Refused(CallerRefusal::Stale);
        }
        let Some(key) = self.sealer.shared_key() else {
            return CallerReply::Refused(CallerRefusal::Unsupported);
        };
        let source = source.to_canonical();
        let is_limited = !self.decision.in_force().exempt.contains(source);
        if is_limited
            && self.proof.nonce_signatures.admit_at_rate(source, Instant::now(), SIGNATURE_RATE).is_err()
        {
            self.counters.nonce_signatures_refused.add();
            return CallerReply::Refused(CallerRefusal::Busy);
        }
        let algorithm = key.digest_for(Version::CURRENT);
        let (nonce, client_nonce) = (nonce.to_vec(), client_nonce.to_vec());
        let sign = move || key.sign(algorithm, &[&nonce, &client_nonce]);
        let signed = self.proof.run_costly(RequestOrigin::connection(source), cost::SIGNATURE, sign);
        let name: &[u8] = if algorithm == DigestAlgorithm::SHA256 { b"SHA-256" } else { b"SHA-1" };
        match signed {
            Some(Ok(signature)) => CallerReply::Signed { algorithm: name.to_vec(), signature },
            Some(Err(_)) => CallerReply::Refused(CallerRefusal::Unsupported),
            None => CallerReply::Refused(CallerRefusal::Busy),
        }
    }

    /// Writes the outcome of a proof to the audit log.
    pub(super) fn record_caller(&self, source: IpAddr, identity: Option<Reference<'_>>, reply: &CallerReply) {
        let (code, text) = match reply {
            CallerReply::Refused(CallerRefusal::Stale) => {
                (ResponseCode::AUTHENTICATION_TIMEOUT, "stale nonce")
            }
            CallerReply::Refused(CallerRefusal::Busy) => (ResponseCode::SERVER_BUSY, "busy"),
            CallerReply::Refused(_) => (ResponseCode::AUTHENTICATION_FAILED, "wrong proof"),
            _ => (ResponseCode::SUCCESS, ""),
        };
        let (source, op_code) = (SocketAddr::new(source, 0), OpCode::SESSION_SETUP);
        self.audit.write(&AuditLine { source, identity, op_code, handle: BLANK, code, text, changed: false });
    }
}

/// The public keys of an identity at another service, or the verdict of that service on a secret.
fn remote_candidates(
    inquiry: &mut RemoteInquiry<'_>,
    proof: &CallerProof<'_>,
    kind: &[u8],
    most: usize,
) -> Result<Vec<KeyCandidate>, RemoteFailure> {
    let CallerProof { identity, nonce, client_nonce, signed_response, .. } = *proof;
    if kind == auth::PUBLIC_KEY {
        let values = inquiry.public_keys(identity)?;
        return Ok(super::candidates::public_keys(&values, identity, most));
    }
    let digest = RequestDigest { algorithm: DigestAlgorithm::OLD_MD5, digest: client_nonce };
    let verification = VerificationRequest { identity, nonce, digest, signed_response };
    Ok(vec![KeyCandidate::Remote(inquiry.verdict(&verification)?)])
}
