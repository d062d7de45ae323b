//! Queries one record: from the servers of its service in turn, which is searched for first if it
//! is unknown.

use super::find::ServiceSearch;
use super::{
    Lookup, LookupError, LookupFrame, LookupTarget, PartSignal, PartStep, is_global, is_passed_over,
};
use crate::administration::ClientIdentity;
use crate::exchange::{AttemptError, Exchange, ReceivedAnswer, RequestHead, request_id};
use crate::plan::{InterfacePurpose, ServerTarget, plan};
use crate::service::SharedSite;
use crate::session::{OpenSession, Proposal, SetupClaim};
use crate::trace::{AnswerOrigin, LookupStep, QuestionReason};
use crate::{ClockReading, LookupAnswer, Question};
use handle_auth::PublicKey;
use handle_auth::agreement::PRIVATE_LEN;
use handle_auth::challenge::check_request_digest;
use handle_proto::data::site::InterfaceKind;
use handle_proto::limit::PBKDF2_SALT_LEN;
use handle_proto::wire::auth::{Challenge, ChallengeAnswer};
use handle_proto::wire::referral::Referral;
use handle_proto::wire::{Header, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, ValueBuf, Values, Version};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Most challenges that are answered for one request. A second one is the repetition for an older
/// server.
const CHALLENGES_MAX: usize = 2;

/// A query for one record.
#[derive(Debug)]
pub(super) struct RecordQuery {
    question: Question,
    reason: QuestionReason,
    recursion_count: u8,
    /// Servers still to ask, in order.
    plan: VecDeque<ServerTarget>,
    /// The server whose addresses are being looked up.
    named_server: Option<ServerTarget>,
    attempts: usize,
    challenges: usize,
    /// Header and body of the request that was challenged first.
    challenged: Option<Vec<u8>>,
    /// The last server that failed.
    last: Option<(SocketAddr, AttemptError)>,
    /// Where the sites of the search come from.
    origin: AnswerOrigin,
    /// The session being set up.
    setup: Option<Box<PendingSetup>>,
    /// Held while this query alone may set up a session.
    claim: Option<Arc<SetupClaim>>,
    /// Number of sessions set up or tried with this server.
    setups: usize,
    /// Whether a server was asked again because its answer in a session was invalid.
    has_lost_session: bool,
}

/// A session being set up, and its server.
#[derive(Debug)]
struct PendingSetup {
    proposal: Proposal,
    target: ServerTarget,
}

/// Most sessions that are set up with one server for one request. The second is for a server that
/// dropped the first.
const SETUPS_MAX: usize = 2;

impl RecordQuery {
    pub(super) const fn new(question: Question, why: QuestionReason, recursion_count: u8) -> Self {
        Self {
            question,
            reason: why,
            recursion_count,
            plan: VecDeque::new(),
            named_server: None,
            attempts: 0,
            challenges: 0,
            challenged: None,
            last: None,
            origin: AnswerOrigin::Prefix,
            setup: None,
            claim: None,
            setups: 0,
            has_lost_session: false,
        }
    }

    pub(super) fn handle(&self) -> &[u8] {
        &self.question.handle
    }

    pub(super) fn depth(&self) -> usize {
        self.recursion_count.into()
    }

    pub(super) const fn failed_at(&mut self, server: SocketAddr, error: AttemptError) {
        self.last = Some((server, error));
    }

    pub(super) fn step(
        self: Box<Self>,
        lookup: &mut Lookup,
        now: ClockReading,
        signal: PartSignal,
    ) -> PartStep {
        match signal {
            PartSignal::Begin => self.begin(lookup, now),
            PartSignal::Sites(sites) => {
                let origin = self.origin;
                self.ask_sites(lookup, now, &sites, origin)
            }
            done @ (PartSignal::Failed(_) | PartSignal::Answer(_)) => PartStep::Done(done),
        }
    }

    fn begin(mut self: Box<Self>, lookup: &mut Lookup, now: ClockReading) -> PartStep {
        let (handle, why) = (self.question.handle.clone(), self.reason);
        lookup.note_at(self.depth(), now, || LookupStep::Question { handle, reason: why });
        let is_for_service = self.reason == QuestionReason::Asked && lookup.options.service_only;
        if lookup.options.use_cache
            && !is_for_service
            && self.is_of_the_service(lookup)
            && let Some(answer) = lookup.client.cache.get(&self.question, now)
        {
            lookup.note_at(self.depth(), now, || LookupStep::Cached { code: answer.code });
            // The handle is spelt as in this question.
            let mut answer = answer.into_answer();
            answer.handle = self.question.handle;
            return PartStep::Done(PartSignal::Answer(answer));
        }
        if self.reason == QuestionReason::Asked {
            match lookup.options.target.clone() {
                LookupTarget::Responsible => {}
                LookupTarget::Sites(sites) => {
                    return self.ask_sites(lookup, now, &sites, AnswerOrigin::Caller);
                }
                LookupTarget::Servers(servers) => {
                    self.plan = servers.into();
                    return self.ask_next(lookup, now);
                }
                LookupTarget::Referral(values) => {
                    let mut storage = Vec::new();
                    let values = Values::build(values.iter().map(ValueBuf::view), &mut storage);
                    let referral = Referral { handle: b"", values: Some(values) };
                    return self.refer(lookup, ResponseCode::PREFIX_REFERRAL, &referral);
                }
            }
        }
        let handle = self.question.handle();
        let is_public = self.question.wants.public_only && !self.question.wants.authoritative;
        if let Some(sites) = lookup.client.overrides.sites_for(handle, is_public) {
            let sites = sites.to_vec();
            return self.ask_sites(lookup, now, &sites, AnswerOrigin::Override);
        }
        if is_global(handle) {
            let sites = lookup.client.root.get().sites.clone();
            if sites.is_empty() {
                return PartStep::Done(PartSignal::Failed(LookupError::NoRoot));
            }
            return self.ask_sites(lookup, now, &sites, AnswerOrigin::Root);
        }
        let record = handle.prefix_record();
        if lookup.is_finding(&record) {
            return PartStep::Done(PartSignal::Failed(LookupError::Circle { record }));
        }
        let find = ServiceSearch::of_prefix(record, self.question.wants, self.recursion_count);
        self.origin = AnswerOrigin::Prefix;
        PartStep::After(LookupFrame::Ask(self), LookupFrame::Find(Box::new(find)))
    }

    /// Whether the answer is the responsible service's public answer. Answers from servers that the
    /// caller named, or for one identity, are not shared, and such callers want no shared answer.
    fn is_of_the_service(&self, lookup: &Lookup) -> bool {
        let options = &lookup.options;
        let is_found = matches!(options.target, LookupTarget::Responsible | LookupTarget::Referral(_));
        self.reason != QuestionReason::Asked || (is_found && options.identity.is_none())
    }

    fn ask_sites(
        mut self: Box<Self>,
        lookup: &mut Lookup,
        now: ClockReading,
        sites: &[SharedSite],
        from: AnswerOrigin,
    ) -> PartStep {
        lookup.note_at(self.depth(), now, || LookupStep::Sites { from, sites: sites.to_vec() });
        self.origin = from;
        if self.reason == QuestionReason::Asked {
            sites.clone_into(&mut lookup.service);
            let may_be_referred = self.question.handle().is_prefix_record();
            if lookup.options.service_only && !may_be_referred {
                return PartStep::Done(PartSignal::Answer(LookupAnswer::new(
                    self.handle(),
                    ResponseCode::SUCCESS,
                    [],
                )));
            }
        }
        let purpose =
            InterfacePurpose { kind: InterfaceKind::QUERY, primary_only: self.question.wants.authoritative };
        let client = &lookup.client;
        let handle = self.question.handle();
        self.plan = plan(sites, handle, purpose, &client.preferences, &client.times, now, &mut lookup.random);
        (self.attempts, self.last) = (0, None);
        self.ask_next(lookup, now)
    }

    /// Asks the next server, or gives up.
    pub(super) fn ask_next(mut self: Box<Self>, lookup: &mut Lookup, now: ClockReading) -> PartStep {
        // Challenges of the next server are about the next request.
        (self.challenges, self.challenged, self.setups) = (0, None, 0);
        lookup.fallback_at_ms = None;
        if let Some(setup) = self.setup.take() {
            // The server may have no sessions, but answer without one.
            self.note_session(lookup, now, &setup.target, false);
            self.plan.push_front(setup.target);
        }
        loop {
            let Some(target) = self.plan.pop_front() else {
                return PartStep::Done(PartSignal::Failed(self.gave_up()));
            };
            if let Some(name) = target.unresolved() {
                let known = lookup.client.names.get(name, now);
                if known.is_none() {
                    lookup.look_up_name(name.to_owned(), now);
                }
                self.named_server = Some(target);
                match known {
                    Some(addresses) => self.put_at(lookup, &addresses),
                    None => return PartStep::Wait(LookupFrame::Ask(self)),
                }
                continue;
            }
            if lookup.requests_count >= lookup.client.limits.requests_max {
                return PartStep::Done(PartSignal::Failed(LookupError::TooManyRequests));
            }
            if self.start(lookup, now, target.clone()) {
                let wait_ms =
                    lookup.client.preferences.fallback_ms.filter(|_| self.rival_of(&target).is_some());
                lookup.fallback_at_ms = wait_ms.map(|wait_ms| now.ms.saturating_add(wait_ms.into()));
                return PartStep::Wait(LookupFrame::Ask(self));
            }
        }
    }

    /// Starts a request to one server, in its session if there is one. Returns whether there is a
    /// request to send.
    fn start(&mut self, lookup: &mut Lookup, now: ClockReading, target: ServerTarget) -> bool {
        let session =
            self.who_asks(lookup).and_then(|identity| lookup.client.sessions.get(&target, identity));
        self.start_in(lookup, now, target, session)
    }

    fn start_in(
        &mut self,
        lookup: &mut Lookup,
        now: ClockReading,
        mut target: ServerTarget,
        session: Option<Arc<OpenSession>>,
    ) -> bool {
        if lookup.requests_count >= lookup.client.limits.requests_max {
            return false;
        }
        let mut head = RequestHead {
            recursion_count: self.recursion_count,
            ..RequestHead::resolution(self.flags(lookup), request_id((lookup.random)()))
        };
        if let Some(session) = &session {
            (head.session_id, target.version) = (session.id, session.version);
        }
        let address = target.address;
        let patience = &lookup.client.patience;
        let exchange = self
            .question
            .with_query(|query| Exchange::new(target, head, &Request::Resolution(query), patience, now));
        let exchange = match session {
            Some(session) => exchange.and_then(|exchange| exchange.in_session(session)),
            None => exchange,
        };
        self.attempts += 1;
        match exchange {
            Ok(exchange) => {
                lookup.begin(exchange);
                true
            }
            Err(error) => {
                self.failed_at(address, error);
                false
            }
        }
    }

    /// The flags of its requests. Queries on behalf of another question request no more than they
    /// need.
    fn flags(&self, lookup: &Lookup) -> OpFlags {
        let flags = self.question.flags();
        if lookup.options.recursion_count > 0 { flags.without(OpFlags::RECURSIVE) } else { flags }
    }

    /// The identity, if more than public values are wanted and sessions are enabled.
    fn who_asks<'l>(&self, lookup: &'l Lookup) -> Option<&'l Arc<ClientIdentity>> {
        let is_private = self.reason == QuestionReason::Asked && !self.question.wants.public_only;
        let options = &lookup.options;
        options.identity.as_ref().filter(|_| is_private && options.session_timeout_s.is_some())
    }

    /// Requests a session from the server of `exchange`, if that is sensible. Returns whether it
    /// did.
    fn set_up(&mut self, lookup: &mut Lookup, now: ClockReading, exchange: &Exchange) -> bool {
        let target = exchange.target().clone();
        // A server whose key is not known may be an impostor.
        let is_known = PublicKey::from_record(&target.public_key).is_ok();
        let (Some(identity), Some(timeout_s)) = (self.who_asks(lookup), lookup.options.session_timeout_s)
        else {
            return false;
        };
        let may_ask = lookup.requests_count < lookup.client.limits.requests_max;
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
        let Ok(exchange) = Exchange::new(target.clone(), head, &request, &lookup.client.patience, now) else {
            return false;
        };
        self.setups += 1;
        self.setup = Some(Box::new(PendingSetup { proposal, target }));
        lookup.begin(exchange);
        true
    }

    /// Records the outcome of setting up a session. After a failure no session is requested for a
    /// while.
    fn note_session(
        &mut self,
        lookup: &mut Lookup,
        now: ClockReading,
        target: &ServerTarget,
        is_agreed: bool,
    ) {
        lookup.note_at(self.depth(), now, || LookupStep::Session { is_agreed });
        if !is_agreed {
            self.setups = SETUPS_MAX;
            if let Some(identity) = self.who_asks(lookup) {
                lookup.client.sessions.refuse(target, identity, now);
            }
        }
    }

    /// Handles the server's answer about a session: the question is asked again, in the session or
    /// without one.
    fn begin_session(
        mut self: Box<Self>,
        lookup: &mut Lookup,
        now: ClockReading,
        setup: PendingSetup,
        answered: &ReceivedAnswer,
    ) -> PartStep {
        let PendingSetup { proposal, target } = setup;
        let allowances = lookup.options.allowances;
        let session = proposal.agree(answered.envelope(), &answered.reply().1, allowances).ok().map(Arc::new);
        self.note_session(lookup, now, &target, session.is_some());
        (self.challenges, self.challenged) = (0, None);
        if self.start_in(lookup, now, target, session) {
            return PartStep::Wait(LookupFrame::Ask(self));
        }
        match lookup.requests_count < lookup.client.limits.requests_max {
            true => self.ask_next(lookup, now),
            false => PartStep::Done(PartSignal::Failed(LookupError::TooManyRequests)),
        }
    }

    /// Asks the next server of the other address family, if there is one and requests are left.
    pub(super) fn race(&mut self, lookup: &mut Lookup, now: ClockReading, target: &ServerTarget) {
        if lookup.requests_count < lookup.client.limits.requests_max
            && let Some(rival) = self.rival_of(target).and_then(|at| self.plan.remove(at))
        {
            self.start(lookup, now, rival);
        }
    }

    /// Position in the plan of the next server with the same protocol and the other address family.
    fn rival_of(&self, target: &ServerTarget) -> Option<usize> {
        self.plan.iter().position(|other| {
            other.protocol == target.protocol
                && other.unresolved().is_none()
                && other.address.is_ipv4() != target.address.is_ipv4()
        })
    }

    /// Puts a server that lost the race back as the next one to ask.
    pub(super) fn put_back(&mut self, target: ServerTarget) {
        self.plan.push_front(target);
    }

    /// Handles an answer that belongs to another session, as from a restarted server that reused
    /// the number: the session is dropped, and the server is asked once more without it.
    pub(super) fn lose_session(&mut self, lookup: &Lookup, exchange: &Exchange) {
        let Some(session) = exchange.session() else { return };
        lookup.client.sessions.forget(session);
        if !std::mem::replace(&mut self.has_lost_session, true) {
            self.put_back(exchange.target().clone());
        }
    }

    /// Puts the server whose name was looked up into the plan, at these addresses.
    pub(super) fn put_at(&mut self, lookup: &Lookup, addresses: &[IpAddr]) {
        let Some(target) = self.named_server.take() else { return };
        let targets = target.at_each(addresses, &lookup.client.preferences);
        if targets.is_empty() {
            self.attempts += 1;
            self.failed_at(target.address, AttemptError::NoAddress);
        }
        targets.into_iter().rev().for_each(|target| self.plan.push_front(target));
    }

    fn gave_up(self: Box<Self>) -> LookupError {
        let handle = self.question.handle;
        match self.last {
            None => LookupError::NoServer { handle },
            Some((server, last)) => LookupError::AllFailed { handle, attempts: self.attempts, server, last },
        }
    }

    /// Handles an answer that passed all checks.
    pub(super) fn hear(
        mut self: Box<Self>,
        lookup: &mut Lookup,
        now: ClockReading,
        exchange: &Exchange,
        answered: &ReceivedAnswer,
    ) -> PartStep {
        if let Some(setup) = self.setup.take() {
            return self.begin_session(lookup, now, *setup, answered);
        }
        let (header, reply) = answered.reply();
        let version = answered.envelope().version;
        let code = reply.code.read_in(version);
        let (target, took_ms, certified) = (exchange.target().clone(), answered.took_ms, answered.certified);
        let kinds = || match &reply.response {
            Response::Answer(answer) => answer.values.iter().map(|value| value.kind.to_vec()).collect(),
            _ => vec![],
        };
        let address = target.address;
        self.note_serial(lookup, code, &target, header.site_serial);
        lookup.note_at(self.depth(), now, || LookupStep::Answered {
            target,
            code,
            kinds: kinds(),
            took_ms,
            certified,
        });
        if self.question.wants.authoritative {
            lookup.client.times.note_primary(address, now);
        }
        // Whether the proof was accepted or not, the next request is not to set up another session.
        let is_decided = code != ResponseCode::AUTHENTICATION_NEEDED && !(500..600).contains(&code.0);
        if let Some(session) = exchange.session().filter(|_| self.challenges > 0 && is_decided)
            && let Some(identity) = self.who_asks(lookup)
        {
            lookup.client.sessions.keep(exchange.target(), identity, session, now);
        }
        // The last server's answer is better than none.
        if is_passed_over(code) && !self.plan.is_empty() {
            self.failed_at(address, AttemptError::Refused(code));
            return self.ask_next(lookup, now);
        }
        if let Some(session) = exchange.session() {
            // The server may know again in a new session what it no longer knows.
            if (500..600).contains(&code.0) {
                lookup.client.sessions.forget(session);
                let is_begun = self.set_up(lookup, now, exchange) || {
                    (self.challenges, self.challenged) = (0, None);
                    self.start_in(lookup, now, exchange.target().clone(), None)
                };
                if is_begun {
                    return PartStep::Wait(LookupFrame::Ask(self));
                }
            }
        } else if code == ResponseCode::AUTHENTICATION_NEEDED
            && self.challenges == 0
            && self.set_up(lookup, now, exchange)
        {
            return PartStep::Wait(LookupFrame::Ask(self));
        }
        match &reply.response {
            Response::Challenge(challenge)
                if lookup.options.identity.is_some() && self.reason == QuestionReason::Asked =>
            {
                self.prove(lookup, now, exchange, answered, &reply, challenge)
            }
            Response::Referral(referral) if self.follows(lookup, code, version) => {
                self.refer(lookup, code, referral)
            }
            response => {
                let mut answer = match response {
                    Response::Answer(answer) => LookupAnswer::new(self.handle(), code, answer.values.iter()),
                    _ => LookupAnswer::new(self.handle(), code, []),
                };
                if let Response::Failure(failure) = response {
                    answer.text = String::from_utf8_lossy(failure.message).into_owned();
                }
                (answer.from, answer.certified) = (Some(address), certified);
                if self.is_of_the_service(lookup) {
                    lookup.client.cache.put(&self.question, &answer, now);
                }
                PartStep::Done(PartSignal::Answer(answer))
            }
        }
    }

    /// Whether the site record in use is older than the one that the server has. For the global
    /// service a renewal is then due; for another service its cached prefix record is not used
    /// again.
    fn note_serial(&self, lookup: &Lookup, code: ResponseCode, asked: &ServerTarget, serial: i16) {
        const NONE: i16 = Header::NO_SITE_SERIAL;
        let is_newer = asked.site_serial != NONE && serial != NONE && serial > asked.site_serial;
        let is_stale = code == ResponseCode::OUT_OF_DATE_SITE_INFO;
        if is_stale || (is_newer && self.origin == AnswerOrigin::Root) {
            lookup.client.renewal.note_stale();
        }
        if is_stale {
            lookup.client.cache.forget(&self.question.handle().prefix_record());
        }
    }

    /// Whether a referral is followed: only from a service that was searched for, and a prefix
    /// referral only for prefix records.
    fn follows(&self, lookup: &Lookup, code: ResponseCode, version: Version) -> bool {
        let handle = self.question.handle();
        let whom = &lookup.options.target;
        let is_found = self.reason != QuestionReason::Asked
            || matches!(whom, LookupTarget::Responsible | LookupTarget::Referral(_));
        let counts = code == ResponseCode::SERVICE_REFERRAL
            || handle.is_prefix_record()
            || handle.slash_at().is_none();
        is_found && counts && code.is_referral(version)
    }

    fn refer(mut self: Box<Self>, lookup: &Lookup, code: ResponseCode, referral: &Referral<'_>) -> PartStep {
        // Saturates at one byte; the limit of indirections is reached long before.
        self.recursion_count = self.recursion_count.saturating_add(1);
        self.origin = AnswerOrigin::Referral;
        let find = ServiceSearch::of_referral(&self.question, code, referral, self.recursion_count);
        if lookup.is_finding(find.record()) {
            let record = find.record().to_vec();
            return PartStep::Done(PartSignal::Failed(LookupError::Circle { record }));
        }
        PartStep::After(LookupFrame::Ask(self), LookupFrame::Find(Box::new(find)))
    }

    /// Answers a challenge, at the same interface.
    fn prove(
        mut self: Box<Self>,
        lookup: &mut Lookup,
        now: ClockReading,
        exchange: &Exchange,
        answered: &ReceivedAnswer,
        reply: &Reply<'_>,
        challenge: &Challenge<'_>,
    ) -> PartStep {
        let Some(identity) = lookup.options.identity.clone() else { unreachable!("asked before") };
        let failed = |what| PartStep::Done(PartSignal::Failed(LookupError::Challenge(what)));
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
        let envelope = answered.envelope();
        let mut salt = [0; PBKDF2_SALT_LEN];
        salt.chunks_mut(4).for_each(|part| part.copy_from_slice(&(lookup.random)().to_be_bytes()));
        let (version, suggested) = (envelope.version, envelope.effective_suggested());
        if identity.gives_old_proof(version, suggested) && !lookup.options.allowances.old_proofs {
            return PartStep::Done(PartSignal::Failed(LookupError::OldProof(version.min(suggested))));
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
        match Exchange::new(target, head, &request, &lookup.client.patience, now) {
            Ok(proof) => {
                lookup.note_at(self.depth(), now, || LookupStep::Proved);
                let challenged = self.challenged.as_deref().unwrap_or_default();
                let mut proof = proof.answering(self.handle(), challenged);
                if let Some(session) = exchange.session() {
                    proof = match proof.in_session(Arc::clone(session)) {
                        Ok(proof) => proof,
                        Err(_) => return failed("the answer to it is too long"),
                    };
                }
                lookup.begin(proof);
                PartStep::Wait(LookupFrame::Ask(self))
            }
            Err(_) => failed("the answer to it is too long"),
        }
    }
}
