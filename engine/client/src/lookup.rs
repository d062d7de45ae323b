//! One question, from the global service down: the records to ask for, the servers to ask, and the
//! handling of answers. RFC 3651 section 5.1, RFC 3652 section 3.4.
//!
//! A lookup is a stack. The question is at the bottom; above it are the parts that must be known
//! first: services that are searched for (`search.rs`), and records that are queried for them
//! (`query.rs`). At most one request is under way, and a second one where IPv6 and IPv4 race. Every
//! path is bounded in requests, indirections, depth and time.

mod context;
mod error;
mod query;
mod search;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod world;

pub use error::LookupError;

use crate::allowances::Allowances;
use crate::bootstrap::{KnownRoot, Overrides, Root};
use crate::cache::{Cache, CacheLimits};
use crate::exchange::{AnswerTimeouts, AttemptError, Exchange, ReceivedAnswer, Transmit};
use crate::flight::Flights;
use crate::identity::ClientIdentity;
use crate::names::NameCache;
use crate::plan::{Preferences, ServerTarget};
use crate::renewal::Renewal;
use crate::service::SharedSite;
use crate::session::SessionPool;
use crate::times::ServerTimes;
use crate::trace::{AnswerOrigin, LookupEvent, LookupStep, QuestionReason};
use crate::{ClockReading, LookupAnswer, Question, RandomSource};
use context::{LookupContext, PartSignal, PartStep};
use handle_proto::ValueBuf;
use handle_proto::data::kind;
use handle_proto::limit::{CLIENT_INDIRECTION_MAX, SERVICE_NESTING_MAX};
use query::RecordQuery;
use search::{NeededRecord, ServiceSearch};
use std::net::IpAddr;
use std::sync::Arc;

/// The state that all lookups share: known services, caches and limits.
#[derive(Debug)]
pub struct Client {
    /// The global service.
    pub root: KnownRoot,
    /// When the records of the global service are renewed.
    pub renewal: Renewal,
    /// Configured services.
    pub overrides: Overrides,
    /// The preferences among servers.
    pub preferences: Preferences,
    /// The timeouts for answers.
    pub timeout: AnswerTimeouts,
    /// The limits of one lookup.
    pub limits: LookupLimits,
    /// Cached answers.
    pub cache: Cache,
    /// Response times of servers.
    pub times: ServerTimes,
    /// Addresses of servers that are known by name.
    pub names: NameCache,
    /// Questions in flight.
    pub flights: Flights,
    /// Sessions with servers that required authentication.
    pub sessions: SessionPool,
}

/// Most sessions.
const SESSIONS_MAX: usize = 256;
/// Most servers whose response times are kept.
const TIMES_MAX: usize = 16_384;
/// Most names whose addresses are kept.
const NAMES_MAX: usize = 4_096;

impl Client {
    /// A client of this global service, with the settings of deployed clients.
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self {
            root: KnownRoot::new(root),
            renewal: Renewal::default(),
            overrides: Overrides::default(),
            preferences: Preferences::default(),
            timeout: AnswerTimeouts::default(),
            limits: LookupLimits::default(),
            cache: Cache::new(CacheLimits::default()),
            times: ServerTimes::new(TIMES_MAX),
            names: NameCache::new(NAMES_MAX),
            flights: Flights::default(),
            sessions: SessionPool::new(SESSIONS_MAX),
        }
    }
}

/// The limits of one lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupLimits {
    /// Requests to any servers. Repetitions do not count.
    pub requests_max: usize,
    /// Records needed to find services, referrals, and aliases.
    pub indirections_max: usize,
    /// Depth of services that are needed to find services.
    pub nesting_max: usize,
    /// Total time in milliseconds.
    pub timeout_ms: u64,
}

impl Default for LookupLimits {
    fn default() -> Self {
        Self {
            requests_max: 256,
            indirections_max: CLIENT_INDIRECTION_MAX.into(),
            nesting_max: SERVICE_NESTING_MAX,
            timeout_ms: 120_000,
        }
    }
}

/// Options for one question.
#[derive(Clone, Debug)]
pub struct LookupOptions {
    /// Whether cached answers may be used.
    pub use_cache: bool,
    /// Whether the answer itself is kept in the cache, and taken from there. Otherwise only the
    /// records are that lead to the service: for callers with a cache of their own.
    pub keeps_answer: bool,
    /// The servers to ask, instead of searching. Their referrals are not followed.
    pub target: LookupTarget,
    /// The identity, for servers that require authentication.
    pub identity: Option<Arc<ClientIdentity>>,
    /// Idle seconds after which a session with a server that required authentication ends. With
    /// `None`, every request is challenged. Deployed clients set up a session with the first
    /// challenge, which costs two more requests, and saves one on each later request.
    pub session_timeout_s: Option<i32>,
    /// Number of servers that the question has passed through.
    pub recursion_count: u8,
    /// Whether the asked servers may ask others.
    pub allows_recursion: bool,
    /// Concessions to old servers.
    pub allowances: Allowances,
    /// Most aliases that are followed. Deployed clients follow none.
    pub aliases_max: u8,
    /// Whether steps are recorded.
    pub trace: bool,
    /// Whether it is enough to find the sites of the service. They are then not asked, unless the
    /// handle is the record of a prefix, about which they may know better.
    pub service_only: bool,
}

impl Default for LookupOptions {
    fn default() -> Self {
        Self {
            use_cache: true,
            keeps_answer: true,
            target: LookupTarget::Responsible,
            identity: None,
            session_timeout_s: None,
            recursion_count: 0,
            allows_recursion: true,
            allowances: Allowances::default(),
            aliases_max: 0,
            trace: false,
            service_only: false,
        }
    }
}

/// The servers to ask.
#[derive(Clone, Debug)]
pub enum LookupTarget {
    /// The responsible service.
    Responsible,
    /// The responsible server of each of these sites.
    Sites(Vec<SharedSite>),
    /// These servers, in this order.
    Servers(Vec<ServerTarget>),
    /// The service that a prefix referral with these values names, as if its server had sent it.
    Referral(Vec<ValueBuf>),
}

/// A part of the work, above the part that needs it.
#[derive(Debug)]
enum LookupFrame {
    Query(Box<RecordQuery>),
    Search(Box<ServiceSearch>),
}

/// A lookup of one question.
pub struct Lookup {
    context: LookupContext,
    question: Question,
    stack: Vec<LookupFrame>,
    indirections_count: usize,
    aliases_count: u8,
    outcome: Option<Result<LookupAnswer, LookupError>>,
}

impl Lookup {
    /// Starts the lookup of `question`.
    #[must_use]
    pub fn new(
        client: Arc<Client>,
        question: Question,
        options: LookupOptions,
        random: RandomSource,
        now: ClockReading,
    ) -> Self {
        let recursion_count = options.recursion_count;
        let mut lookup = Self {
            context: LookupContext::new(client, options, random, now),
            question: question.clone(),
            stack: vec![],
            indirections_count: 0,
            aliases_count: 0,
            outcome: None,
        };
        lookup.push_question(question, recursion_count);
        lookup.run(now, PartSignal::Begin);
        lookup
    }

    /// Puts the query of a question, or of an alias of it, at the bottom of the stack.
    fn push_question(&mut self, mut question: Question, recursion_count: u8) {
        if self.context.options.aliases_max > 0 && !question.is_for_all() {
            question.types.push(kind::HS_ALIAS.to_vec());
        }
        let query = RecordQuery::new(question, QuestionReason::Asked, recursion_count);
        self.stack.push(LookupFrame::Query(Box::new(query)));
    }

    /// Bytes to send now, and the number of their exchange. Each exchange has its own socket. The
    /// socket of a finished exchange ([`is_under_way`](Self::is_under_way)) may be closed, and
    /// later bytes from it are ignored.
    pub fn poll_transmit(&mut self, now: ClockReading) -> Option<(u64, Transmit)> {
        let mut exchanges = self.context.under_way.iter_mut();
        let (number, transmit) =
            exchanges.find_map(|(number, exchange)| Some((*number, exchange.poll_transmit(now)?)))?;
        let (target, try_number) = (transmit.target.clone(), transmit.try_number);
        if try_number > 0 {
            self.note(now, || LookupStep::Asked { target, try_number });
        }
        Some((number, transmit))
    }

    /// Whether the exchange with this number is under way.
    #[must_use]
    pub fn is_under_way(&self, number: u64) -> bool {
        self.context.under_way.iter().any(|(known, _)| *known == number)
    }

    /// A name whose addresses are needed, returned once, and the number to report them with.
    /// Nothing else is under way meanwhile.
    pub fn poll_name(&mut self) -> Option<(u64, String)> {
        let naming = self.context.naming.as_mut().filter(|naming| naming.is_new)?;
        naming.is_new = false;
        Some((naming.number, naming.name.clone()))
    }

    /// The time at which to call [`handle_timeout`](Self::handle_timeout), in milliseconds of the
    /// caller's clock; `None` when there is an outcome.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let exchanges = self.context.under_way.iter().map(|(_, exchange)| exchange.poll_timeout());
        let naming = self.context.naming.iter().map(|naming| naming.deadline_ms);
        let first = exchanges.chain(naming).min()?;
        Some(first.min(self.context.fallback_at_ms.unwrap_or(u64::MAX)).min(self.deadline_ms()))
    }

    fn deadline_ms(&self) -> u64 {
        self.context.began_ms.saturating_add(self.context.client.limits.timeout_ms)
    }

    /// Takes the outcome, once.
    pub fn take_outcome(&mut self) -> Option<Result<LookupAnswer, LookupError>> {
        self.outcome.take()
    }

    /// The steps so far, if they are recorded.
    #[must_use]
    pub fn events(&self) -> &[LookupEvent] {
        &self.context.events
    }

    /// The responsible sites, once they are known.
    #[must_use]
    pub fn service(&self) -> &[SharedSite] {
        &self.context.service
    }

    /// Where these sites come from.
    #[must_use]
    pub const fn service_origin(&self) -> AnswerOrigin {
        self.context.service_origin
    }

    /// Number of requests so far.
    #[must_use]
    pub const fn requests_count(&self) -> usize {
        self.context.requests_count
    }

    /// Handles a timeout.
    pub fn handle_timeout(&mut self, now: ClockReading) {
        let is_busy = self.context.naming.is_some() || !self.context.under_way.is_empty();
        if is_busy && now.ms >= self.deadline_ms() {
            let handle = self.waiting_handle();
            self.stack.clear();
            self.context.under_way.clear();
            (self.context.naming, self.context.fallback_at_ms) = (None, None);
            return self.run(now, PartSignal::Failed(LookupError::TooSlow { handle }));
        }
        let unnamed = self.context.naming.as_ref().filter(|naming| now.ms >= naming.deadline_ms);
        if let Some(number) = unnamed.map(|naming| naming.number) {
            return self.handle_addresses(now, number, &[]);
        }
        if self.context.fallback_at_ms.is_some_and(|at_ms| now.ms >= at_ms) {
            self.context.fallback_at_ms = None;
            self.race(now);
        }
        let late =
            |(number, exchange): &mut (u64, Exchange)| Some((*number, exchange.handle_timeout(now).err()?));
        while let Some((number, error)) = self.context.under_way.iter_mut().find_map(late) {
            self.end_exchange(now, number, Err(error));
        }
    }

    /// Asks a server of the other address family in addition to the current one.
    fn race(&mut self, now: ClockReading) {
        if let (Some(LookupFrame::Query(query)), [(_, exchange)]) =
            (self.stack.last_mut(), self.context.under_way.as_slice())
        {
            let target = exchange.target().clone();
            query.race(&mut self.context, now, &target);
        }
    }

    /// Handles a datagram of an exchange.
    pub fn handle_datagram(&mut self, now: ClockReading, number: u64, datagram: &[u8]) {
        self.handle_bytes(now, number, |exchange| exchange.handle_datagram(now, datagram));
    }

    /// Handles bytes from the connection of an exchange.
    pub fn handle_stream(&mut self, now: ClockReading, number: u64, bytes: &[u8]) {
        self.handle_bytes(now, number, |exchange| exchange.handle_stream(now, bytes));
    }

    fn handle_bytes(
        &mut self,
        now: ClockReading,
        number: u64,
        take: impl FnOnce(&mut Exchange) -> Result<Option<ReceivedAnswer>, AttemptError>,
    ) {
        let exchange = self.context.under_way.iter_mut().find(|(known, _)| *known == number);
        match exchange.map(|(_, exchange)| take(exchange)) {
            Some(Ok(Some(received))) => self.end_exchange(now, number, Ok(received)),
            Some(Err(error)) => self.end_exchange(now, number, Err(error)),
            Some(Ok(None)) | None => {}
        }
    }

    /// Handles that the connection of an exchange is established. The exchange that races with it
    /// is dropped, so that no request is carried out twice.
    pub fn handle_connected(&mut self, number: u64) {
        let Some(LookupFrame::Query(query)) = self.stack.last_mut() else { return };
        if self.context.under_way.iter().any(|(known, _)| *known == number) {
            self.context.fallback_at_ms = None;
            for (_, loser) in self.context.under_way.extract_if(.., |(known, _)| *known != number) {
                query.put_back(loser.target().clone());
            }
        }
    }

    /// Handles that the bytes of an exchange could not be moved.
    pub fn handle_failure(&mut self, now: ClockReading, number: u64, error: AttemptError) {
        self.end_exchange(now, number, Err(error));
    }

    /// Handles the addresses of a name; none if it has none, or they could not be found.
    pub fn handle_addresses(&mut self, now: ClockReading, number: u64, addresses: &[IpAddr]) {
        let Some(naming) = self.context.naming.take_if(|naming| naming.number == number) else { return };
        let name = naming.name;
        self.context.client.names.note(&name, addresses, now);
        let Some(LookupFrame::Query(query)) = self.stack.last_mut() else {
            unreachable!("only a query needs a name")
        };
        let addresses_found = || LookupStep::Named { name, addresses: addresses.to_vec() };
        self.context.note(query.depth(), now, addresses_found);
        query.put_addresses(&self.context, addresses);
        let step = query.ask_next(&mut self.context, now).map(LookupFrame::Search);
        self.go_on(now, step);
    }

    /// Passes the outcome of an exchange to the part that waits for it.
    fn end_exchange(
        &mut self,
        now: ClockReading,
        number: u64,
        outcome: Result<ReceivedAnswer, AttemptError>,
    ) {
        let Self { context, stack, .. } = self;
        let Some(at) = context.under_way.iter().position(|(known, _)| *known == number) else { return };
        let Some(LookupFrame::Query(query)) = stack.last_mut() else { return };
        let (_, exchange) = context.under_way.remove(at);
        let step = match outcome {
            Ok(received) => {
                context.client.times.note(exchange.target().address, received.took_ms, now);
                context.fallback_at_ms = None;
                for (_, loser) in context.under_way.drain(..) {
                    // Its full response time is unknown, but it was slower by at least its head
                    // start.
                    let ahead_ms = context.client.preferences.fallback_ms.unwrap_or_default();
                    let took_ms = loser.waited_ms(now).saturating_add(ahead_ms);
                    context.client.times.note(loser.target().address, took_ms, now);
                    query.put_back(loser.target().clone());
                }
                query.handle_answer(context, now, &exchange, &received)
            }
            Err(error) => {
                // The time that a connection might have been waited for.
                context.client.times.note(exchange.target().address, context.client.timeout.tcp_ms, now);
                let (target, took_ms) = (exchange.target().clone(), exchange.waited_ms(now));
                query.failed_at(target.address, error);
                context.note(query.depth(), now, || LookupStep::Failed { target, error, took_ms });
                if error.may_be_of_another_session() {
                    query.lose_session(context, &exchange);
                }
                if !context.under_way.is_empty() {
                    // The other one may still answer.
                    return;
                }
                query.ask_next(context, now)
            }
        };
        self.go_on(now, step.map(LookupFrame::Search));
    }

    /// Continues until a request is under way or there is an outcome.
    fn run(&mut self, now: ClockReading, mut signal: PartSignal) {
        loop {
            let step = match self.stack.last_mut() {
                None => match self.conclude(now, signal) {
                    Some(begin) => {
                        signal = begin;
                        continue;
                    }
                    None => return,
                },
                Some(LookupFrame::Query(query)) => {
                    query.step(&mut self.context, now, signal).map(LookupFrame::Search)
                }
                Some(LookupFrame::Search(search)) => search.step(&self.context, signal).map(
                    |NeededRecord { question, reason, recursion_count }| {
                        LookupFrame::Query(Box::new(RecordQuery::new(question, reason, recursion_count)))
                    },
                ),
            };
            match self.follow(step) {
                Some(following) => signal = following,
                None => return,
            }
        }
    }

    /// Continues after a step of the part on top of the stack.
    fn go_on(&mut self, now: ClockReading, step: PartStep<LookupFrame>) {
        if let Some(signal) = self.follow(step) {
            self.run(now, signal);
        }
    }

    /// Updates the stack after a step of the part on top of it. Returns the signal for the new top,
    /// unless that waits.
    fn follow(&mut self, step: PartStep<LookupFrame>) -> Option<PartSignal> {
        match step {
            PartStep::Wait => None,
            PartStep::After(needed) => {
                if let LookupFrame::Search(search) = &needed
                    && self.is_searching(search.record())
                {
                    let record = search.record().to_vec();
                    self.stack.pop();
                    return Some(PartSignal::Failed(LookupError::Circle { record }));
                }
                self.indirections_count += 1;
                let handle = needed.handle().to_vec();
                let limits = &self.context.client.limits;
                if self.indirections_count > limits.indirections_max
                    || self.stack.len() > 2 * limits.nesting_max
                {
                    return Some(PartSignal::Failed(LookupError::TooManyIndirections { handle }));
                }
                self.stack.push(needed);
                Some(PartSignal::Begin)
            }
            PartStep::Done(signal) => {
                self.stack.pop();
                Some(signal)
            }
        }
    }

    /// Reports the outcome, unless it is an alias to follow.
    fn conclude(&mut self, now: ClockReading, signal: PartSignal) -> Option<PartSignal> {
        let answer = match signal {
            PartSignal::Answer(answer) => answer,
            PartSignal::Failed(error) => {
                self.outcome = Some(Err(error));
                return None;
            }
            PartSignal::Begin | PartSignal::Sites(_) => {
                unreachable!("the question at the bottom gets an answer or fails")
            }
        };
        let is_alias =
            |value: &handle_proto::Value<'_>| value.kind == kind::HS_ALIAS && !value.data.is_empty();
        let alias = match self.context.options.aliases_max {
            0 => None,
            _ => answer.values().iter().find(is_alias).map(|value| value.data.to_vec()),
        };
        let Some(handle) = alias else {
            // Values that were queried only to detect an alias are removed.
            let mut answer =
                if self.context.options.aliases_max > 0 { answer.selected(&self.question) } else { answer };
            answer.aliases_count = self.aliases_count;
            self.outcome = Some(Ok(answer));
            return None;
        };
        if self.aliases_count >= self.context.options.aliases_max {
            self.outcome = Some(Err(LookupError::TooManyIndirections { handle }));
            return None;
        }
        self.aliases_count += 1;
        self.note(now, || LookupStep::Alias { handle: handle.clone() });
        let question = Question { handle, ..self.question.clone() };
        self.push_question(question, 0);
        Some(PartSignal::Begin)
    }

    fn waiting_handle(&self) -> Vec<u8> {
        self.stack.last().map(LookupFrame::handle).unwrap_or_default().to_vec()
    }

    /// Whether the service of the same prefix is already being searched for.
    fn is_searching(&self, record: &[u8]) -> bool {
        self.stack.iter().any(|frame| matches!(frame, LookupFrame::Search(search) if search.is_for(record)))
    }

    fn note(&mut self, now: ClockReading, step: impl FnOnce() -> LookupStep) {
        let depth = match self.stack.last() {
            Some(LookupFrame::Query(query)) => query.depth(),
            _ => 0,
        };
        self.context.note(depth, now, step);
    }
}

impl LookupFrame {
    /// The handle that the part is about.
    fn handle(&self) -> &[u8] {
        match self {
            Self::Query(query) => query.handle(),
            Self::Search(search) => search.record(),
        }
    }
}
