//! Callers with certificates: verifies the TLS handshakes that they have signed, which
//! `handle-gateway` forwards, and starts sessions.
//!
//! Nothing is taken from the gateway but the bytes that the caller has signed: the nonce, the
//! identity and the key are in them.

use super::AdminService;
use super::candidates::KeyCandidate;
use crate::caller_sessions::{CallerSessionLimits, ProvenKey};
use handle_auth::certificate::CallerCertificate;
use handle_auth::handshake::{HandshakeProof, SignedHandshake};
use handle_auth::source::RequestOrigin;
use handle_auth::{PublicKey, cost};
use handle_local::callers::{CallerRefusal, CallerReply, CertificateProof};
use handle_proto::data;
use handle_proto::wire::auth;
use handle_proto::wire::list::Reference;

impl AdminService {
    /// Verifies the handshake of a caller with a certificate, and starts a session for the identity
    /// in it.
    pub(super) fn prove_by_certificate(
        &self,
        proof: &CertificateProof<'_>,
        limits: &CallerSessionLimits,
    ) -> CallerReply {
        let messages = proof.handshake.messages;
        let handshake = SignedHandshake::parse(messages).map_err(|error| error.to_string());
        let read = handshake.and_then(|handshake| {
            let certificate = CallerCertificate::parse(handshake.certificate);
            Ok((handshake, certificate.map_err(|error| error.to_string())?))
        });
        let (handshake, certificate) = match read {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, source = %proof.source, "a handshake proves nobody");
                let reply = CallerReply::Refused(CallerRefusal::Wrong);
                self.record_caller(proof.source, None, &reply);
                return reply;
            }
        };
        let proven = self.proven_key(proof, handshake, &certificate);
        let reply = match proven {
            Ok(key) => {
                let identity = Reference { index: key.index, ..certificate.identity };
                self.begin_caller_session(handshake.server_random, identity, Some(key), limits)
            }
            Err(refusal) => CallerReply::Refused(refusal),
        };
        self.record_caller(proof.source, Some(certificate.identity), &reply);
        reply
    }

    /// The key of the identity in `certificate`, if it is that of the certificate and has signed
    /// the handshake. The service of the identity is asked after the signature has been verified.
    fn proven_key(
        &self,
        proof: &CertificateProof<'_>,
        handshake: SignedHandshake<'_>,
        certificate: &CallerCertificate<'_>,
    ) -> Result<ProvenKey, CallerRefusal> {
        if !self.proof.caller_sessions().is_open(handshake.server_random, self.proof.now_ms()) {
            return Err(CallerRefusal::Stale);
        }
        // The key of the server proves no caller in other ways either.
        if self.is_server_key(&certificate.key) || !self.has_signed_handshake(proof, &certificate.key)? {
            return Err(CallerRefusal::Wrong);
        }
        let (kind, identity) = (auth::PUBLIC_KEY, certificate.identity);
        let most = self.decision.in_force().effort.keys_tried;
        let candidates = self.caller_candidates(identity, proof.source, kind, most, |inquiry| {
            let values = inquiry.public_keys(identity)?;
            Ok(super::candidates::public_keys(&values, identity, most))
        })?;
        let is_same =
            |data: &[u8]| match (data::PublicKey::decode(data), data::PublicKey::decode(&certificate.key)) {
                (Ok(key), Ok(shown)) => key == shown,
                _ => false,
            };
        let found = candidates.iter().find_map(|candidate| match candidate {
            KeyCandidate::Key(key) if is_same(&key.data) => Some(ProvenKey::new(kind, key)),
            _ => None,
        });
        found.ok_or(CallerRefusal::Wrong)
    }

    /// Whether the handshake was signed with the key in this record.
    fn has_signed_handshake(&self, proof: &CertificateProof<'_>, key: &[u8]) -> Result<bool, CallerRefusal> {
        let Ok(key) = PublicKey::from_record(key) else { return Ok(false) };
        let HandshakeProof { messages, scheme, signature } = proof.handshake;
        let (messages, signature) = (messages.to_vec(), signature.to_vec());
        let origin = RequestOrigin::connection(proof.source);
        let is_signed = self.proof.run_costly(origin, cost::SIGNATURE_CHECK, move || {
            HandshakeProof { messages: &messages, scheme, signature: &signature }.is_made_with(&key)
        });
        is_signed.ok_or(CallerRefusal::Busy)
    }
}
