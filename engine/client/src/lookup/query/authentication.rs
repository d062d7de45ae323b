//! Authentication of a query: sessions with servers, and answers to challenges.

use super::RecordQuery;
use crate::ClockReading;
use crate::exchange::{Exchange, ReceivedAnswer, RequestHead, request_id};
use crate::identity::ClientIdentity;
use crate::lookup::LookupError;
use crate::lookup::context::{LookupContext, PartStep};
use crate::lookup::search::ServiceSearch;
use crate::open_session::Proposal;
use crate::plan::ServerTarget;
use crate::trace::{LookupStep, QuestionReason};
use handle_auth::PublicKey;
use handle_auth::agreement::PRIVATE_LEN;
use handle_auth::challenge::check_request_digest;
use handle_proto::limit::PBKDF2_SALT_LEN;
use handle_proto::wire::auth::{Challenge, ChallengeAnswer};
use handle_proto::wire::{Reply, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Most challenges that are answered for one request. A second one is the repetition for an older
/// server.
const CHALLENGES_MAX: usize = 2;

/// A session being set up, and its server.
#[derive(Debug)]
pub(super) struct PendingSetup {
    pub(super) proposal: Proposal,
    pub(super) target: ServerTarget,
}

/// Most sessions that are set up with one server for one request. The second is for a server that
/// dropped the first.
const SETUPS_MAX: usize = 2;

impl RecordQuery {
    /// The identity, if more than public values are wanted and sessions are enabled.
    pub(super) fn authenticating_identity<'l>(
        &self,
        lookup: &'l LookupContext,
    ) -> Option<&'l Arc<ClientIdentity>> {
        let is_private = self.reason == QuestionReason::Asked && !self.question.wants.public_only;
        let options = &lookup.options;
        options.identity.as_ref().filter(|_| is_private && options.session_timeout_s.is_some())
    }

    /// Requests a session from the server of `exchange`, if that is sensible. Returns whether it
    /// did.
    fn set_up(&mut self, lookup: &mut LookupContext, now: ClockReading, exchange: &Exchange) -> bool {
        let target = exchange.target().clone();
        // A server whose key is not known may be an impostor.
        let is_known = PublicKey::from_record(&target.public_key).is_ok();
        let (Some(identity), Some(timeout_s)) =
            (self.authenticating_identity(lookup), lookup.options.session_timeout_s)
        else {
            return false;
        };
        let may_ask = lookup.may_request();
        if !is_known || !may_ask || self.setups >= SETUPS_MAX {
            return false;
        }
        // Its own claim is released first, so that a failed claim can be made again.
        self.claim = None;
        self.claim = lookup.client.sessions.claim(&target, identity, now);
        if self.claim.is_none() {
            return false;
        }
        let identity = Arc::clone(identity);
        let mut random = Zeroizing::new([0; PRIVATE_LEN]);
        random.chunks_mut(4).for_each(|part| part.copy_from_slice(&(lookup.random)().to_be_bytes()));
        let proposal = Proposal::new(&random);
        let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY).with(OpFlags::REQUEST_DIGEST);
        let head = RequestHead {
            recursion_count: self.recursion_count,
            answered_as: OpCode::SESSION_SETUP,
            ..RequestHead::resolution(flags, request_id((lookup.random)()))
        };
        let request = proposal.request(Some(&identity), timeout_s);
        let Ok(exchange) = Exchange::new(target.clone(), head, &request, &lookup.client.timeout, now) else {
            return false;
        };
        self.setups += 1;
        self.setup = Some(Box::new(PendingSetup { proposal, target }));
        lookup.begin(exchange);
        true
    }

    /// Records the outcome of setting up a session. After a failure no session is requested for a
    /// while.
    pub(super) fn note_session(
        &mut self,
        lookup: &mut LookupContext,
        now: ClockReading,
        target: &ServerTarget,
        is_agreed: bool,
    ) {
        lookup.note(self.depth(), now, || LookupStep::Session { is_agreed });
        if !is_agreed {
            self.setups = SETUPS_MAX;
            if let Some(identity) = self.authenticating_identity(lookup) {
                lookup.client.sessions.refuse(target, identity, now);
            }
        }
    }

    /// Handles the server's answer about a session: the question is asked again, in the session or
    /// without one.
    pub(super) fn begin_session(
        &mut self,
        lookup: &mut LookupContext,
        now: ClockReading,
        setup: PendingSetup,
        received: &ReceivedAnswer,
    ) -> PartStep<Box<ServiceSearch>> {
        let PendingSetup { proposal, target } = setup;
        let allowances = lookup.options.allowances;
        let session = proposal.agree(received.envelope(), &received.reply().1, allowances).ok().map(Arc::new);
        self.note_session(lookup, now, &target, session.is_some());
        (self.challenges, self.challenged) = (0, None);
        if self.start_in(lookup, now, target, session) {
            return PartStep::Wait;
        }
        match lookup.may_request() {
            true => self.ask_next(lookup, now),
            false => PartStep::failed(LookupError::TooManyRequests),
        }
    }

    /// Keeps the session of an answered challenge for later requests.
    pub(super) fn keep_session(
        &self,
        lookup: &LookupContext,
        now: ClockReading,
        exchange: &Exchange,
        code: ResponseCode,
    ) {
        // Whether the proof was accepted or not, the next request is not to set up another session.
        let is_decided = code != ResponseCode::AUTHENTICATION_NEEDED && !is_session_error(code);
        if let Some(session) = exchange.session().filter(|_| self.challenges > 0 && is_decided)
            && let Some(identity) = self.authenticating_identity(lookup)
        {
            lookup.client.sessions.keep(exchange.target(), identity, session, now);
        }
    }

    /// Asks the same server again in a new session, or without one, if the answer requires that.
    /// Returns whether it did.
    pub(super) fn changes_session(
        &mut self,
        lookup: &mut LookupContext,
        now: ClockReading,
        exchange: &Exchange,
        code: ResponseCode,
    ) -> bool {
        match exchange.session() {
            // The server may know again in a new session what it no longer knows.
            Some(session) if is_session_error(code) => {
                lookup.client.sessions.forget(session);
                self.set_up(lookup, now, exchange) || {
                    (self.challenges, self.challenged) = (0, None);
                    self.start_in(lookup, now, exchange.target().clone(), None)
                }
            }
            None if code == ResponseCode::AUTHENTICATION_NEEDED && self.challenges == 0 => {
                self.set_up(lookup, now, exchange)
            }
            _ => false,
        }
    }

    /// Handles an answer that belongs to another session, as from a restarted server that reused
    /// the number: the session is dropped, and the server is asked once more without it.
    pub(in crate::lookup) fn lose_session(&mut self, lookup: &LookupContext, exchange: &Exchange) {
        let Some(session) = exchange.session() else { return };
        lookup.client.sessions.forget(session);
        if !std::mem::replace(&mut self.has_lost_session, true) {
            self.put_back(exchange.target().clone());
        }
    }

    /// Answers a challenge, at the same interface.
    pub(super) fn answer_challenge(
        &mut self,
        lookup: &mut LookupContext,
        now: ClockReading,
        exchange: &Exchange,
        received: &ReceivedAnswer,
        reply: &Reply<'_>,
        challenge: &Challenge<'_>,
    ) -> PartStep<Box<ServiceSearch>> {
        let Some(identity) = lookup.options.identity.clone() else { unreachable!("asked before") };
        let failed = |what| PartStep::failed(LookupError::Challenge(what));
        self.challenges += 1;
        if self.challenges > CHALLENGES_MAX {
            if exchange.session().is_some() {
                lookup.client.sessions.refuse(exchange.target(), &identity, now);
            }
            return failed("it repeats its challenge");
        }
        let Some(digest) = &reply.digest else { return failed("its challenge has no digest of the request") };
        // Otherwise the signature could authorise another client's request. A second challenge is
        // about the same request as the first.
        let challenged = self.challenged.get_or_insert_with(|| exchange.covered().to_vec());
        if check_request_digest(digest, challenged).is_err() {
            return failed("its challenge is for another request");
        }
        let envelope = received.envelope();
        let mut salt = [0; PBKDF2_SALT_LEN];
        salt.chunks_mut(4).for_each(|part| part.copy_from_slice(&(lookup.random)().to_be_bytes()));
        let (version, suggested) = (envelope.version, envelope.effective_suggested());
        if identity.gives_old_proof(version, suggested) && !lookup.options.allowances.old_proofs {
            return PartStep::failed(LookupError::OldProof(version.min(suggested)));
        }
        let covered = challenge.covered(digest);
        let Ok(signed) = identity.answer(version, suggested, &covered, &salt) else {
            return failed("the key cannot sign");
        };
        let body = ChallengeAnswer {
            auth_type: identity.auth_type(),
            identity: identity.reference(),
            signed_response: &signed,
        };
        let head = RequestHead {
            flags: self.question.flags(),
            recursion_count: self.recursion_count,
            session_id: envelope.session_id,
            request_id: request_id((lookup.random)()),
            answered_as: OpCode::RESOLUTION,
        };
        let version = envelope.version.min(Version::CURRENT);
        let target = ServerTarget { version, ..exchange.target().clone() };
        let request = Request::AnswerChallenge(body);
        match Exchange::new(target, head, &request, &lookup.client.timeout, now) {
            Ok(proof) => {
                lookup.note(self.depth(), now, || LookupStep::Proved);
                let challenged = self.challenged.as_deref().unwrap_or_default();
                let mut proof = proof.answering(self.handle(), challenged);
                if let Some(session) = exchange.session() {
                    proof = match proof.in_session(Arc::clone(session)) {
                        Ok(proof) => proof,
                        Err(_) => return failed("the answer to it is too long"),
                    };
                }
                lookup.begin(proof);
                PartStep::Wait
            }
            Err(_) => failed("the answer to it is too long"),
        }
    }
}

/// Whether the server has answered that it does not accept the session.
fn is_session_error(code: ResponseCode) -> bool {
    (500..600).contains(&code.0)
}
