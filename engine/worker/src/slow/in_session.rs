//! Requests in sessions on the slow path: set-up and end of sessions, authentication, and encrypted
//! answers. RFC 3652 section 3.8.

use super::job_context::{AnswerBuffers, JobContext, not_challenged};
use super::session_proof::SessionProof;
use handle_auth::agreement::PRIVATE_LEN;
use handle_auth::challenges::SessionChallenge;
use handle_auth::cost;
use handle_proto::OpCode;
use handle_proto::code::KeyExchangeMode;
use handle_proto::limit::NONCE_LEN;
use handle_proto::wire::session::{KeyExchange, SessionAnswer, SessionSetup};
use handle_proto::wire::{Envelope, Message};
use handle_resolver::slow::{FirstEvaluation, SlowPathRequest};
use handle_resolver::{AnswerContext, RefusalReason, ReplyParts};
use handle_session::facts::{IdentityClaim, NewSession};
use handle_session::numbers::of_handled;
use handle_session::traffic::{self, LiveSession as _};
use handle_session::{MessageRejection, Session, SessionRefusal, SetupError, agree};
use handle_snapshot::map::MappedFile;
use zeroize::Zeroizing;

/// Decrypts a complete request; `None` when that fails.
pub(crate) fn decrypt(session: &Session, request: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (mut envelope, rest) = Envelope::split(request).ok()?;
    let rest = &rest[..rest.len().min(envelope.message_len as usize)];
    let text = traffic::decrypt(session, &mut envelope, rest)?;
    let mut message = Zeroizing::new(Vec::with_capacity(Envelope::LEN + text.len()));
    message.extend_from_slice(&envelope.to_bytes());
    message.extend_from_slice(&text);
    Some(message)
}

impl JobContext<'_> {
    /// Checks the MAC of the request, if it has one, with the key of `session`.
    pub(crate) fn proof(&self, session: &Session) -> Result<SessionProof, MessageRejection> {
        let proof = self.check_proof(session)?;
        self.has_mac.set(proof == SessionProof::Mac);
        Ok(proof)
    }

    fn check_proof(&self, session: &Session) -> Result<SessionProof, MessageRejection> {
        if let Some(resumed) = self.resumed {
            return Ok(resumed.proof());
        }
        let (envelope, rest) = Envelope::split(self.request).map_err(|_| MessageRejection::WrongMac)?;
        let message = Message::decode(rest).map_err(|_| MessageRejection::WrongMac)?;
        let has_mac = traffic::check(session, &envelope, &message, self.now_s())?;
        Ok(if has_mac { SessionProof::Mac } else { SessionProof::None })
    }

    /// The answer to a request in `session` whose MAC, if any, is correct.
    pub(crate) fn in_session<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        session: &Session,
        proof: SessionProof,
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        match slow.op_code() {
            OpCode::RESPONSE_TO_CHALLENGE => self.challenge_answer(context, slow, buffers),
            OpCode::VERIFY_CHALLENGE => self.verification(context, slow),
            OpCode::SESSION_SETUP => self.set_up(context, slow, buffers),
            OpCode::SESSION_TERMINATE if proof == SessionProof::None => {
                slow.refuse(context, RefusalReason::WrongMac)
            }
            OpCode::SESSION_TERMINATE => {
                if let Some(sessions) = self.sessions() {
                    sessions.table.end(slow.session_id());
                }
                slow.done(context)
            }
            _ => match slow.evaluate(context) {
                FirstEvaluation::Reply(reply) => self.or_resolved(context, slow, reply),
                FirstEvaluation::Template => self.compute(context, slow, buffers, |buffers| {
                    self.answer_by_identity(context, slow, session, proof, buffers)
                }),
                FirstEvaluation::Uncached => self.await_record(context, slow),
                FirstEvaluation::Identity => self.answer_by_identity(context, slow, session, proof, buffers),
            },
        }
    }

    /// The answer that depends on the identity of the session. The request has to prove that it
    /// comes from the session.
    fn answer_by_identity<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        session: &Session,
        proof: SessionProof,
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        if proof == SessionProof::None {
            return slow.refuse(context, RefusalReason::NoMac);
        }
        let Some(identity) = session.proven_identity() else {
            return self.challenge_in_session(context, slow, buffers);
        };
        let identified = slow.evaluate_identified(context);
        match self.with_computed(context, identified, &mut buffers.computed) {
            Ok(request) if !self.permits(context, &request, identity.as_reference()) => {
                if self.depends_on_remote.get() {
                    self.forward_read(&request, None);
                }
                request.refuse(context, RefusalReason::NotPermitted)
            }
            Ok(request) if request.is_status() => self.status(context, &request, &mut buffers.body),
            Ok(request) => request.answer(context, &mut buffers.values),
            Err(reply) => reply,
        }
    }

    /// Challenges the sender of a request in a session. A session has one challenge at a time: a
    /// copy of the request gets the same challenge, and another request gets a new one.
    fn challenge_in_session<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        let mut nonce = [0; NONCE_LEN];
        if !(self.path.random)(&mut nonce) {
            self.counters.without_random.add(1);
            return slow.refuse(context, RefusalReason::TooManyChallenges);
        }
        let (id, challenge) = (slow.session_id(), self.new_challenge(slow, nonce));
        let pending =
            self.path.challenges().issue_in_session(id, self.origin, challenge, self.path.clock.now_ms());
        match pending {
            Ok(SessionChallenge { nonce, .. }) => self.put_challenge(context, slow, id, &nonce, buffers),
            Err(refusal) => slow.refuse(context, not_challenged(refusal)),
        }
    }

    /// Sets a session up. RFC 3652 section 3.8.1.
    pub(crate) fn set_up<'a>(
        &self,
        context: &AnswerContext<'a, MappedFile>,
        slow: &SlowPathRequest<'a>,
        buffers: &'a mut AnswerBuffers,
    ) -> ReplyParts<'a> {
        let Ok(setup) = SessionSetup::decode(slow.body()) else {
            return slow.refuse(context, RefusalReason::Malformed);
        };
        let Some(sessions) = self.sessions() else { return slow.refuse(context, RefusalReason::NoSessions) };
        if sessions.table.admit(self.origin, sessions.now_s()).is_err() {
            return slow.refuse(context, RefusalReason::OverTcp);
        }
        let (mut private, mut numbers) = (Zeroizing::new([0; PRIVATE_LEN]), [0; 4 * 8]);
        if !(self.path.random)(&mut *private) || !(self.path.random)(&mut numbers) {
            self.counters.without_random.add(1);
            return slow.refuse(context, RefusalReason::TooManySessions);
        }
        if let KeyExchange::DiffieHellman(record) = setup.exchange {
            self.spend(cost::agreement(record, &sessions.terms.modulus_bits));
        }
        let agreed = match agree(&sessions.terms, &setup, slow.version(), &private) {
            Ok(agreed) => agreed,
            Err(error) => return slow.refuse(context, refused(error)),
        };
        let new = NewSession {
            key: agreed.key,
            version: slow.version(),
            claim: (!setup.is_anonymous()).then(|| IdentityClaim::of(setup.identity)),
            timeout_s: agreed.timeout_s,
            origin: self.origin,
        };
        let mut numbers = numbers.as_chunks().0.iter().copied().map(u32::from_be_bytes);
        let number = || of_handled(numbers.next().unwrap_or(0));
        let is_taken = |number| self.path.challenges().has(number);
        let opened = sessions.table.open(new, number, is_taken, sessions.now_s());
        match opened {
            Ok(session) => {
                let answer = SessionAnswer { mode: setup.exchange.mode(), data: &agreed.data };
                buffers.body.clear();
                answer.encode(&mut buffers.body);
                slow.session(context, session.keys().id, &buffers.body)
            }
            Err(SessionRefusal::OverTcp) => slow.refuse(context, RefusalReason::OverTcp),
            Err(SessionRefusal::Full | SessionRefusal::NoNumber) => {
                slow.refuse(context, RefusalReason::TooManySessions)
            }
        }
    }
}

/// The refusal for a client with which no key agreement is possible.
fn refused(error: SetupError) -> RefusalReason {
    use handle_auth::agreement::AgreementError;
    match error {
        SetupError::Mode(KeyExchangeMode::CLIENT_KEY) => RefusalReason::ClientKeyExchange,
        SetupError::Mode(KeyExchangeMode::HANDLE_KEY) => RefusalReason::HandleKeyExchange,
        SetupError::Key(AgreementError::Undecodable(_) | AgreementError::Kind) => RefusalReason::SessionKey,
        SetupError::Key(_) => RefusalReason::SessionGroup,
        SetupError::Version => RefusalReason::SessionVersion,
        SetupError::Cipher => RefusalReason::SessionCipher,
        _ => RefusalReason::KeyExchange,
    }
}
