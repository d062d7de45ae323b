//! Queries one record: from the servers of its service in turn, which is searched for first if it
//! is unknown.

mod authentication;

use super::context::{LookupContext, PartSignal, PartStep};
use super::search::ServiceSearch;
use super::{LookupError, LookupTarget};
use crate::bootstrap::is_global;
use crate::exchange::{AttemptError, Exchange, ReceivedAnswer, RequestHead, request_id};
use crate::open_session::OpenSession;
use crate::plan::{InterfacePurpose, ServerTarget, plan};
use crate::service::SharedSite;
use crate::session::SetupClaim;
use crate::trace::{AnswerOrigin, LookupStep, QuestionReason};
use crate::{ClockReading, LookupAnswer, Question};
use authentication::PendingSetup;
use handle_proto::data::site::InterfaceKind;
use handle_proto::wire::referral::Referral;
use handle_proto::wire::{Header, Reply, Request, Response};
use handle_proto::{OpFlags, ResponseCode, ValueBuf, Values, Version};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

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

impl RecordQuery {
    pub(super) const fn new(question: Question, reason: QuestionReason, recursion_count: u8) -> Self {
        Self {
            question,
            reason,
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

    /// Notes a failed attempt. A refusal says more than that the same server did not answer over
    /// another protocol.
    pub(super) fn failed_at(&mut self, server: SocketAddr, error: AttemptError) {
        use AttemptError::{Ended, Refused, Silence, Unreachable};
        let has_refused = matches!(self.last, Some((last, Refused(_))) if last == server);
        if has_refused && matches!(error, Silence | Unreachable | Ended) {
            return;
        }
        self.last = Some((server, error));
    }

    pub(super) fn step(
        &mut self,
        lookup: &mut LookupContext,
        now: ClockReading,
        signal: PartSignal,
    ) -> PartStep<Box<ServiceSearch>> {
        match signal {
            PartSignal::Begin => self.begin(lookup, now),
            PartSignal::Sites(sites) => {
                let origin = self.origin;
                self.ask_sites(lookup, now, &sites, origin)
            }
            done @ (PartSignal::Failed(_) | PartSignal::Answer(_)) => PartStep::Done(done),
        }
    }

    fn begin(&mut self, lookup: &mut LookupContext, now: ClockReading) -> PartStep<Box<ServiceSearch>> {
        let (handle, reason) = (self.question.handle.clone(), self.reason);
        lookup.note(self.depth(), now, || LookupStep::Question { handle, reason });
        let is_for_service = self.reason == QuestionReason::Asked && lookup.options.service_only;
        if lookup.options.use_cache
            && !is_for_service
            && self.is_of_the_service(lookup)
            && let Some(answer) = lookup.client.cache.get(&self.question, now)
        {
            lookup.note(self.depth(), now, || LookupStep::Cached { code: answer.code });
            // The handle is spelt as in this question.
            let mut answer = answer.into_answer();
            answer.handle.clone_from(&self.question.handle);
            return PartStep::Done(PartSignal::Answer(answer));
        }
        if self.reason == QuestionReason::Asked {
            match lookup.options.target.clone() {
                LookupTarget::Responsible => {}
                LookupTarget::Sites(sites) => {
                    return self.ask_sites(lookup, now, &sites, AnswerOrigin::Caller);
                }
                LookupTarget::Servers(servers) => {
                    (self.plan, self.origin) = (servers.into(), AnswerOrigin::Caller);
                    return self.ask_next(lookup, now);
                }
                LookupTarget::Referral(values) => {
                    let mut storage = Vec::new();
                    let values = Values::build(values.iter().map(ValueBuf::view), &mut storage);
                    let referral = Referral { handle: b"", values: Some(values) };
                    return self.refer(ResponseCode::PREFIX_REFERRAL, &referral);
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
                return PartStep::failed(LookupError::NoRoot);
            }
            return self.ask_sites(lookup, now, &sites, AnswerOrigin::Root);
        }
        let record = handle.prefix_record();
        let search = ServiceSearch::of_prefix(record, self.question.wants, self.recursion_count);
        self.origin = AnswerOrigin::Prefix;
        PartStep::After(Box::new(search))
    }

    /// Whether the answer is the responsible service's public answer. Answers from servers that the
    /// caller named, or for one identity, are not shared, and such callers want no shared answer.
    fn is_of_the_service(&self, lookup: &LookupContext) -> bool {
        let options = &lookup.options;
        let is_found = matches!(options.target, LookupTarget::Responsible | LookupTarget::Referral(_));
        self.reason != QuestionReason::Asked
            || (is_found && options.identity.is_none() && options.keeps_answer)
    }

    fn ask_sites(
        &mut self,
        lookup: &mut LookupContext,
        now: ClockReading,
        sites: &[SharedSite],
        origin: AnswerOrigin,
    ) -> PartStep<Box<ServiceSearch>> {
        lookup.note(self.depth(), now, || LookupStep::Sites { from: origin, sites: sites.to_vec() });
        self.origin = origin;
        if self.reason == QuestionReason::Asked {
            sites.clone_into(&mut lookup.service);
            lookup.service_origin = origin;
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
        let preferences = client.preferences.of_origin(origin);
        self.plan = plan(sites, handle, purpose, &preferences, &client.times, now, &mut lookup.random);
        (self.attempts, self.last) = (0, None);
        self.ask_next(lookup, now)
    }

    /// Asks the next server, or gives up.
    pub(super) fn ask_next(
        &mut self,
        lookup: &mut LookupContext,
        now: ClockReading,
    ) -> PartStep<Box<ServiceSearch>> {
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
                return PartStep::failed(self.give_up_error());
            };
            if let Some(name) = target.unresolved() {
                let known = lookup.client.names.get(name, now);
                if known.is_none() {
                    lookup.look_up_name(name.to_owned(), now);
                }
                self.named_server = Some(target);
                match known {
                    Some(addresses) => self.put_addresses(lookup, &addresses),
                    None => return PartStep::Wait,
                }
                continue;
            }
            if !lookup.may_request() {
                return PartStep::failed(LookupError::TooManyRequests);
            }
            if self.start(lookup, now, target.clone()) {
                let wait_ms =
                    lookup.client.preferences.fallback_ms.filter(|_| self.rival_of(&target).is_some());
                lookup.fallback_at_ms = wait_ms.map(|wait_ms| now.ms.saturating_add(wait_ms.into()));
                return PartStep::Wait;
            }
        }
    }

    /// Starts a request to one server, in its session if there is one. Returns whether there is a
    /// request to send.
    fn start(&mut self, lookup: &mut LookupContext, now: ClockReading, target: ServerTarget) -> bool {
        let session = self
            .authenticating_identity(lookup)
            .and_then(|identity| lookup.client.sessions.get(&target, identity));
        self.start_in(lookup, now, target, session)
    }

    fn start_in(
        &mut self,
        lookup: &mut LookupContext,
        now: ClockReading,
        mut target: ServerTarget,
        session: Option<Arc<OpenSession>>,
    ) -> bool {
        if !lookup.may_request() {
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
        let timeout = &lookup.client.timeout;
        let exchange = self
            .question
            .with_query(|query| Exchange::new(target, head, &Request::Resolution(query), timeout, now));
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
    fn flags(&self, lookup: &LookupContext) -> OpFlags {
        let flags = self.question.flags();
        if lookup.options.allows_recursion { flags } else { flags.without(OpFlags::RECURSIVE) }
    }

    /// Asks the next server of the other address family, if there is one and requests are left.
    pub(super) fn race(&mut self, lookup: &mut LookupContext, now: ClockReading, target: &ServerTarget) {
        if lookup.may_request()
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

    /// Puts the server whose name was looked up into the plan, at these addresses.
    pub(super) fn put_addresses(&mut self, lookup: &LookupContext, addresses: &[IpAddr]) {
        let Some(target) = self.named_server.take() else { return };
        let targets = target.at_each(addresses, &lookup.client.preferences.of_origin(self.origin));
        if targets.is_empty() {
            self.attempts += 1;
            self.failed_at(target.address, AttemptError::NoAddress);
        }
        targets.into_iter().rev().for_each(|target| self.plan.push_front(target));
    }

    fn give_up_error(&self) -> LookupError {
        let handle = self.question.handle.clone();
        match self.last {
            None => LookupError::NoServer { handle },
            Some((server, last)) => LookupError::AllFailed { handle, attempts: self.attempts, server, last },
        }
    }

    /// Handles an answer that passed all checks.
    pub(super) fn handle_answer(
        &mut self,
        lookup: &mut LookupContext,
        now: ClockReading,
        exchange: &Exchange,
        received: &ReceivedAnswer,
    ) -> PartStep<Box<ServiceSearch>> {
        if let Some(setup) = self.setup.take() {
            return self.begin_session(lookup, now, *setup, received);
        }
        let (header, reply) = received.reply();
        let version = received.envelope().version;
        let code = reply.code.read_in(version);
        let address = exchange.target().address;
        self.note_serial(lookup, code, exchange.target(), header.site_serial);
        self.note_answer(lookup, now, exchange, received, &reply);
        if self.question.wants.authoritative {
            lookup.client.times.note_primary(address, now);
        }
        self.keep_session(lookup, now, exchange, code);
        // The last server's answer is better than none.
        if is_passed_over(code) && !self.plan.is_empty() {
            self.failed_at(address, AttemptError::Refused(code));
            return self.ask_next(lookup, now);
        }
        if self.changes_session(lookup, now, exchange, code) {
            return PartStep::Wait;
        }
        match &reply.response {
            Response::Challenge(challenge)
                if lookup.options.identity.is_some() && self.reason == QuestionReason::Asked =>
            {
                self.answer_challenge(lookup, now, exchange, received, &reply, challenge)
            }
            Response::Referral(referral) if self.follows(lookup, code, version) => self.refer(code, referral),
            response => {
                let mut answer = match response {
                    Response::Answer(answer) => LookupAnswer::new(self.handle(), code, answer.values.iter()),
                    _ => LookupAnswer::new(self.handle(), code, []),
                };
                if let Response::Failure(failure) = response {
                    answer.text = String::from_utf8_lossy(failure.message).into_owned();
                }
                (answer.from, answer.certified) = (Some(address), received.certified);
                if self.is_of_the_service(lookup) {
                    lookup.client.cache.put(&self.question, &answer, now);
                }
                PartStep::Done(PartSignal::Answer(answer))
            }
        }
    }

    fn note_answer(
        &self,
        lookup: &mut LookupContext,
        now: ClockReading,
        exchange: &Exchange,
        received: &ReceivedAnswer,
        reply: &Reply<'_>,
    ) {
        lookup.note(self.depth(), now, || LookupStep::Answered {
            target: exchange.target().clone(),
            code: reply.code.read_in(received.envelope().version),
            kinds: match &reply.response {
                Response::Answer(answer) => answer.values.iter().map(|value| value.kind.to_vec()).collect(),
                _ => vec![],
            },
            took_ms: received.took_ms,
            certified: received.certified,
        });
    }

    /// Whether the site record in use is older than the one that the server has. For the global
    /// service a renewal is then due; for another service its cached prefix record is not used
    /// again.
    fn note_serial(&self, lookup: &LookupContext, code: ResponseCode, server: &ServerTarget, serial: i16) {
        const NONE: i16 = Header::NO_SITE_SERIAL;
        let is_newer = server.site_serial != NONE && serial != NONE && serial > server.site_serial;
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
    fn follows(&self, lookup: &LookupContext, code: ResponseCode, version: Version) -> bool {
        let handle = self.question.handle();
        let target = &lookup.options.target;
        let is_found = self.reason != QuestionReason::Asked
            || matches!(target, LookupTarget::Responsible | LookupTarget::Referral(_));
        let counts = code == ResponseCode::SERVICE_REFERRAL
            || handle.is_prefix_record()
            || handle.slash_at().is_none();
        is_found && counts && code.is_referral(version)
    }

    fn refer(&mut self, code: ResponseCode, referral: &Referral<'_>) -> PartStep<Box<ServiceSearch>> {
        // Saturates at one byte; the limit of indirections is reached long before.
        self.recursion_count = self.recursion_count.saturating_add(1);
        self.origin = AnswerOrigin::Referral;
        let search = ServiceSearch::of_referral(&self.question, code, referral, self.recursion_count);
        PartStep::After(Box::new(search))
    }
}

/// Whether a server with this answer is passed over for the next one.
const fn is_passed_over(code: ResponseCode) -> bool {
    matches!(
        code,
        ResponseCode::ERROR
            | ResponseCode::SERVER_BUSY
            | ResponseCode::SERVER_NOT_RESPONSIBLE
            | ResponseCode::OUT_OF_DATE_SITE_INFO
            | ResponseCode::PROTOCOL_ERROR
    )
}
