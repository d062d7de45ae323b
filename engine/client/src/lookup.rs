//! One question, from the global service down: the records to ask for, the servers to ask, and the
//! handling of answers. RFC 3651 section 5.1, RFC 3652 section 3.4.
//!
//! A lookup is a stack. The question is at the bottom; above it are the parts that must be known
//! first: services that are searched for (`find.rs`), and records that are queried for them
//! (`ask.rs`). At most one request is under way, and a second one where IPv6 and IPv4 race. Every
//! path is bounded in requests, indirections, depth and time.

mod ask;
mod error;
mod find;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod world;

pub use error::LookupError;

use crate::administration::ClientIdentity;
use crate::allowances::Allowances;
use crate::bootstrap::{KnownRoot, Overrides, Root};
use crate::cache::{Cache, CacheLimits};
use crate::exchange::{AnswerTimeouts, AttemptError, Exchange, ReceivedAnswer, Transmit};
use crate::flight::Flights;
use crate::names::NameCache;
use crate::plan::{Preferences, ServerTarget};
use crate::refresh::Renewal;
use crate::service::SharedSite;
use crate::session::SessionPool;
use crate::times::ServerTimes;
use crate::trace::{LookupEvent, LookupStep, QuestionReason};
use crate::{ClockReading, LookupAnswer, Question, RandomSource};
use ask::RecordQuery;
use find::ServiceSearch;
use handle_proto::data::kind;
use handle_proto::limit::{CLIENT_INDIRECTION_MAX, SERVICE_NESTING_MAX};
use handle_proto::{Handle, ResponseCode, ValueBuf};
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
    pub patience: AnswerTimeouts,
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
            patience: AnswerTimeouts::default(),
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
    pub patience_ms: u64,
}

impl Default for LookupLimits {
    fn default() -> Self {
        Self {
            requests_max: 256,
            indirections_max: CLIENT_INDIRECTION_MAX.into(),
            nesting_max: SERVICE_NESTING_MAX,
            patience_ms: 120_000,
        }
    }
}

/// Options for one question.
#[derive(Clone, Debug)]
pub struct LookupOptions {
    /// Whether cached answers may be used.
    pub use_cache: bool,
    /// The servers to ask, instead of searching. Their referrals are not followed.
    pub target: LookupTarget,
    /// The identity, for servers that require authentication.
    pub identity: Option<Arc<ClientIdentity>>,
    /// Idle seconds after which a session with a server that required authentication ends. With
    /// `None`, every request is challenged. Deployed clients set up a session with the first
    /// challenge, which costs two more requests, and saves one on each later request.
    pub session_timeout_s: Option<i32>,
    /// Number of servers that the question has passed through. If it is not 0, the asked servers
    /// are told not to ask others.
    pub recursion_count: u8,
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
            target: LookupTarget::Responsible,
            identity: None,
            session_timeout_s: None,
            recursion_count: 0,
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
    Ask(Box<RecordQuery>),
    Find(Box<ServiceSearch>),
}

/// The event or result that a part receives.
#[derive(Debug)]
enum PartSignal {
    Begin,
    Answer(LookupAnswer),
    Sites(Vec<SharedSite>),
    Failed(LookupError),
}

/// How a part continues.
enum PartStep {
    /// It waits for a request.
    Wait(LookupFrame),
    /// It waits for another part.
    After(LookupFrame, LookupFrame),
    /// It is done.
    Done(PartSignal),
}

/// A lookup of the addresses of a name.
struct NameLookup {
    number: u64,
    name: String,
    to_tell: bool,
    deadline_ms: u64,
}

/// A lookup of one question.
pub struct Lookup {
    client: Arc<Client>,
    options: LookupOptions,
    question: Question,
    stack: Vec<LookupFrame>,
    /// The requests under way, each with its number: one, or two that race.
    under_way: Vec<(u64, Exchange)>,
    /// The name whose addresses are needed before the next request.
    naming: Option<NameLookup>,
    /// The time to ask a server of the other address family too.
    fallback_at_ms: Option<u64>,
    /// The number of the last request or name.
    number: u64,
    requests_count: usize,
    indirections_count: usize,
    aliases_count: u8,
    service: Vec<SharedSite>,
    began_ms: u64,
    outcome: Option<Result<LookupAnswer, LookupError>>,
    events: Vec<LookupEvent>,
    random: RandomSource,
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
        let mut lookup = Self {
            client,
            options,
            question: question.clone(),
            stack: vec![],
            under_way: vec![],
            naming: None,
            fallback_at_ms: None,
            number: 0,
            requests_count: 0,
            indirections_count: 0,
            aliases_count: 0,
            service: vec![],
            began_ms: now.ms,
            outcome: None,
            events: vec![],
            random,
        };
        let mut asked = question;
        if lookup.options.aliases_max > 0 && !asked.is_for_all() {
            asked.types.push(kind::HS_ALIAS.to_vec());
        }
        let recursion_count = lookup.options.recursion_count;
        lookup.stack.push(LookupFrame::Ask(Box::new(RecordQuery::new(
            asked,
            QuestionReason::Asked,
            recursion_count,
        ))));
        lookup.run(now, PartSignal::Begin);
        lookup
    }

    /// Bytes to send now, and the number of their exchange. Each exchange has its own socket. The
    /// socket of a finished exchange ([`is_under_way`](Self::is_under_way)) may be closed, and
    /// later bytes from it are ignored.
    pub fn poll_transmit(&mut self, now: ClockReading) -> Option<(u64, Transmit)> {
        let mut exchanges = self.under_way.iter_mut();
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
        self.under_way.iter().any(|(known, _)| *known == number)
    }

    /// A name whose addresses are needed, returned once, and the number to report them with.
    /// Nothing else is under way meanwhile.
    pub fn poll_name(&mut self) -> Option<(u64, String)> {
        let naming = self.naming.as_mut().filter(|naming| naming.to_tell)?;
        naming.to_tell = false;
        Some((naming.number, naming.name.clone()))
    }

    /// The time at which to call [`handle_timeout`](Self::handle_timeout), in milliseconds of the
    /// caller's clock; `None` when there is an outcome.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let exchanges = self.under_way.iter().map(|(_, exchange)| exchange.poll_timeout());
        let naming = self.naming.iter().map(|naming| naming.deadline_ms);
        let first = exchanges.chain(naming).min()?;
        Some(first.min(self.fallback_at_ms.unwrap_or(u64::MAX)).min(self.deadline_ms()))
    }

    fn deadline_ms(&self) -> u64 {
        self.began_ms.saturating_add(self.client.limits.patience_ms)
    }

    /// Takes the outcome, once.
    pub fn take_outcome(&mut self) -> Option<Result<LookupAnswer, LookupError>> {
        self.outcome.take()
    }

    /// The steps so far, if they are recorded.
    #[must_use]
    pub fn events(&self) -> &[LookupEvent] {
        &self.events
    }

    /// The responsible sites, once they are known.
    #[must_use]
    pub fn service(&self) -> &[SharedSite] {
        &self.service
    }

    /// Number of requests so far.
    #[must_use]
    pub const fn requests_count(&self) -> usize {
        self.requests_count
    }

    /// Handles a timeout.
    pub fn handle_timeout(&mut self, now: ClockReading) {
        let is_busy = self.naming.is_some() || !self.under_way.is_empty();
        if is_busy && now.ms >= self.deadline_ms() {
            let handle = self.asked_handle();
            self.stack.clear();
            self.under_way.clear();
            (self.naming, self.fallback_at_ms) = (None, None);
            return self.run(now, PartSignal::Failed(LookupError::TooSlow { handle }));
        }
        let unnamed = self.naming.as_ref().filter(|naming| now.ms >= naming.deadline_ms);
        if let Some(number) = unnamed.map(|naming| naming.number) {
            return self.handle_addresses(now, number, &[]);
        }
        if self.fallback_at_ms.is_some_and(|at_ms| now.ms >= at_ms) {
            self.fallback_at_ms = None;
            self.race(now);
        }
        let late =
            |(number, exchange): &mut (u64, Exchange)| Some((*number, exchange.handle_timeout(now).err()?));
        while let Some((number, error)) = self.under_way.iter_mut().find_map(late) {
            self.end_exchange(now, number, Err(error));
        }
    }

    /// Asks a server of the other address family in addition to the current one.
    fn race(&mut self, now: ClockReading) {
        if let Some(LookupFrame::Ask(mut ask)) = self.stack.pop() {
            if let [(_, exchange)] = self.under_way.as_slice() {
                let target = exchange.target().clone();
                ask.race(self, now, &target);
            }
            self.stack.push(LookupFrame::Ask(ask));
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
        let exchange = self.under_way.iter_mut().find(|(known, _)| *known == number);
        match exchange.map(|(_, exchange)| take(exchange)) {
            Some(Ok(Some(answered))) => self.end_exchange(now, number, Ok(answered)),
            Some(Err(error)) => self.end_exchange(now, number, Err(error)),
            Some(Ok(None)) | None => {}
        }
    }

    /// Handles that the connection of an exchange is established. The exchange that races with it
    /// is dropped, so that no request is carried out twice.
    pub fn handle_connected(&mut self, number: u64) {
        let Some(LookupFrame::Ask(ask)) = self.stack.last_mut() else { return };
        if self.under_way.iter().any(|(known, _)| *known == number) {
            self.fallback_at_ms = None;
            for (_, loser) in self.under_way.extract_if(.., |(known, _)| *known != number) {
                ask.put_back(loser.target().clone());
            }
        }
    }

    /// Handles that the bytes of an exchange could not be moved.
    pub fn handle_failure(&mut self, now: ClockReading, number: u64, error: AttemptError) {
        self.end_exchange(now, number, Err(error));
    }

    /// Handles the addresses of a name; none if it has none, or they could not be found.
    pub fn handle_addresses(&mut self, now: ClockReading, number: u64, addresses: &[IpAddr]) {
        let Some(naming) = self.naming.take_if(|naming| naming.number == number) else { return };
        let name = naming.name;
        self.client.names.note(&name, addresses, now);
        let Some(LookupFrame::Ask(mut ask)) = self.stack.pop() else {
            unreachable!("who asks wants the name")
        };
        self.note_at(ask.depth(), now, || LookupStep::Named { name, addresses: addresses.to_vec() });
        ask.put_at(self, addresses);
        let next = ask.ask_next(self, now);
        if let Some(signal) = self.follow(next) {
            self.run(now, signal);
        }
    }

    /// Passes the outcome of an exchange to the part that waits for it.
    fn end_exchange(
        &mut self,
        now: ClockReading,
        number: u64,
        outcome: Result<ReceivedAnswer, AttemptError>,
    ) {
        let Some(at) = self.under_way.iter().position(|(known, _)| *known == number) else { return };
        let Some(LookupFrame::Ask(mut ask)) = self.stack.pop() else { return };
        let (_, exchange) = self.under_way.remove(at);
        let next = match outcome {
            Ok(answered) => {
                self.client.times.note(exchange.target().address, answered.took_ms, now);
                self.fallback_at_ms = None;
                for (_, loser) in self.under_way.drain(..) {
                    // Its full response time is unknown, but it was slower by at least its head
                    // start.
                    let ahead_ms = self.client.preferences.fallback_ms.unwrap_or_default();
                    let took_ms = loser.waited_ms(now).saturating_add(ahead_ms);
                    self.client.times.note(loser.target().address, took_ms, now);
                    ask.put_back(loser.target().clone());
                }
                ask.hear(self, now, &exchange, &answered)
            }
            Err(error) => {
                // The time that a connection might have been waited for.
                self.client.times.note(exchange.target().address, self.client.patience.tcp_ms, now);
                let (target, took_ms) = (exchange.target().clone(), exchange.waited_ms(now));
                ask.failed_at(target.address, error);
                self.note_at(ask.depth(), now, || LookupStep::Failed { target, error, took_ms });
                if error.may_be_of_another_session() {
                    ask.lose_session(self, &exchange);
                }
                if !self.under_way.is_empty() {
                    // The other one may still answer.
                    return self.stack.push(LookupFrame::Ask(ask));
                }
                ask.ask_next(self, now)
            }
        };
        if let Some(signal) = self.follow(next) {
            self.run(now, signal);
        }
    }

    /// Continues until a request is under way or there is an outcome.
    fn run(&mut self, now: ClockReading, mut signal: PartSignal) {
        loop {
            let next = match self.stack.pop() {
                None => match self.conclude(now, signal) {
                    Some(begin) => {
                        signal = begin;
                        continue;
                    }
                    None => return,
                },
                Some(LookupFrame::Ask(ask)) => ask.step(self, now, signal),
                Some(LookupFrame::Find(find)) => find.step(self, now, signal),
            };
            match self.follow(next) {
                Some(following) => signal = following,
                None => return,
            }
        }
    }

    /// Updates the stack. Returns the signal for its top, unless that waits.
    fn follow(&mut self, next: PartStep) -> Option<PartSignal> {
        match next {
            PartStep::Wait(frame) => {
                self.stack.push(frame);
                None
            }
            PartStep::After(below, above) => {
                self.stack.push(below);
                self.indirections_count += 1;
                let handle = above.handle().to_vec();
                if self.indirections_count > self.client.limits.indirections_max
                    || self.stack.len() > 2 * self.client.limits.nesting_max
                {
                    return Some(PartSignal::Failed(LookupError::TooManyIndirections { handle }));
                }
                self.stack.push(above);
                Some(PartSignal::Begin)
            }
            PartStep::Done(signal) => Some(signal),
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
                unreachable!("the question at the bottom comes to an answer")
            }
        };
        let is_alias =
            |value: &handle_proto::Value<'_>| value.kind == kind::HS_ALIAS && !value.data.is_empty();
        let alias = match self.options.aliases_max {
            0 => None,
            _ => answer.values().iter().find(is_alias).map(|value| value.data.to_vec()),
        };
        let Some(handle) = alias else {
            // Values that were queried only to detect an alias are removed.
            let mut answer =
                if self.options.aliases_max > 0 { answer.selected(&self.question) } else { answer };
            answer.aliases_count = self.aliases_count;
            self.outcome = Some(Ok(answer));
            return None;
        };
        if self.aliases_count >= self.options.aliases_max {
            self.outcome = Some(Err(LookupError::TooManyIndirections { handle }));
            return None;
        }
        self.aliases_count += 1;
        self.note(now, || LookupStep::Alias { handle: handle.clone() });
        let mut asked = Question { handle, ..self.question.clone() };
        if !asked.is_for_all() {
            asked.types.push(kind::HS_ALIAS.to_vec());
        }
        self.stack.push(LookupFrame::Ask(Box::new(RecordQuery::new(asked, QuestionReason::Asked, 0))));
        Some(PartSignal::Begin)
    }

    fn asked_handle(&self) -> Vec<u8> {
        self.stack.last().map(LookupFrame::handle).unwrap_or_default().to_vec()
    }

    /// Whether the service of the same prefix is already being searched for.
    fn is_finding(&self, record: &[u8]) -> bool {
        self.stack.iter().any(|frame| matches!(frame, LookupFrame::Find(find) if find.is_for(record)))
    }

    /// Starts a request.
    fn begin(&mut self, exchange: Exchange) {
        self.requests_count += 1;
        self.number += 1;
        self.under_way.push((self.number, exchange));
    }

    /// Starts the lookup of a name that is needed first.
    fn look_up_name(&mut self, name: String, now: ClockReading) {
        self.number += 1;
        let deadline_ms = now.ms.saturating_add(self.client.patience.name_ms.into());
        self.naming = Some(NameLookup { number: self.number, name, to_tell: true, deadline_ms });
    }

    fn note(&mut self, now: ClockReading, step: impl FnOnce() -> LookupStep) {
        let depth = match self.stack.last() {
            Some(LookupFrame::Ask(ask)) => ask.depth(),
            _ => 0,
        };
        self.note_at(depth, now, step);
    }

    fn note_at(&mut self, depth: usize, now: ClockReading, step: impl FnOnce() -> LookupStep) {
        if self.options.trace {
            self.events.push(LookupEvent {
                at_ms: now.ms.saturating_sub(self.began_ms),
                depth,
                step: step(),
            });
        }
    }
}

impl LookupFrame {
    /// The handle that the part is about.
    fn handle(&self) -> &[u8] {
        match self {
            Self::Ask(ask) => ask.handle(),
            Self::Find(find) => find.record(),
        }
    }
}

/// Whether the global service is responsible for `handle`: the name begins with `0.` or `0/`, or is
/// that of a prefix.
pub(crate) fn is_global(handle: Handle<'_>) -> bool {
    handle.is_global() || handle.0.starts_with(b"0/") || handle.slash_at().is_none()
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
