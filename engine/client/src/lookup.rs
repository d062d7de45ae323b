//! One question, from the global service down: which records to ask for, whom to ask, and what to make of the
//! answers. RFC 3651 section 5.1, RFC 3652 section 3.4.
//!
//! A lookup is a stack. At its bottom is the question that was asked; above it what has to be known first: the
//! services that are being found (`find.rs`), and the records that are asked for on their behalf (`ask.rs`). At most one
//! request is under way. Every way through it is bounded: requests, indirections, depth and time.

mod ask;
mod error;
mod find;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use error::LookupError;

use crate::administration::Identity;
use crate::bootstrap::{Overrides, Root};
use crate::cache::{Cache, CacheLimits};
use crate::exchange::{Answered, AttemptError, Exchange, Patience, Transmit};
use crate::flight::Flights;
use crate::plan::{Preferences, Target};
use crate::service::SharedSite;
use crate::times::Times;
use crate::trace::{Event, Step, Why};
use crate::{Answer, Now, Question, Random};
use ask::Ask;
use find::Find;
use handle_proto::data::kind;
use handle_proto::limit::{CLIENT_INDIRECTION_MAX, SERVICE_NESTING_MAX};
use handle_proto::{Handle, ResponseCode};
use std::sync::Arc;

/// What all lookups share: what is known, what is remembered, and what is allowed.
#[derive(Debug)]
pub struct Client {
    /// The global service.
    pub root: Root,
    /// Services that are known beforehand.
    pub overrides: Overrides,
    /// Who is asked first.
    pub preferences: Preferences,
    /// How long is waited.
    pub patience: Patience,
    /// What one lookup may do.
    pub limits: Limits,
    /// Answers from before.
    pub cache: Cache,
    /// How fast servers were.
    pub times: Times,
    /// Questions that are being asked.
    pub flights: Flights,
}

/// Servers whose response times are remembered.
const TIMES_MAX: usize = 16_384;

impl Client {
    /// A client of this global service, with everything else as deployed.
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self {
            root,
            overrides: Overrides::default(),
            preferences: Preferences::default(),
            patience: Patience::default(),
            limits: Limits::default(),
            cache: Cache::new(CacheLimits::default()),
            times: Times::new(TIMES_MAX),
            flights: Flights::default(),
        }
    }
}

/// What one lookup may do before it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests, to whatever server; those sent again do not count.
    pub requests_max: usize,
    /// Records that have to be known on behalf of others, referrals, and aliases.
    pub indirections_max: usize,
    /// How deep services may lie behind services.
    pub nesting_max: usize,
    /// Milliseconds.
    pub patience_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_max: 256,
            indirections_max: CLIENT_INDIRECTION_MAX.into(),
            nesting_max: SERVICE_NESTING_MAX,
            patience_ms: 120_000,
        }
    }
}

/// How one question is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether answers from before count.
    pub use_cache: bool,
    /// Whom to ask, instead of finding out. Their referrals are not followed.
    pub whom: Whom,
    /// Who asks, where a server wants to know.
    pub identity: Option<Arc<Identity>>,
    /// How many aliases are followed. Deployed clients follow none.
    pub aliases_max: u8,
    /// Whether steps are written down.
    pub trace: bool,
    /// Whether it is enough to know whose sites are to be asked: then nobody of these is, unless the handle is the
    /// record of a prefix, for they may know better.
    pub service_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            use_cache: true,
            whom: Whom::Responsible,
            identity: None,
            aliases_max: 0,
            trace: false,
            service_only: false,
        }
    }
}

/// Whom to ask.
#[derive(Clone, Debug)]
pub enum Whom {
    /// The service that is responsible.
    Responsible,
    /// The responsible server of these sites.
    Sites(Vec<SharedSite>),
    /// These servers, in this order.
    Servers(Vec<Target>),
}

/// A part of the work, above what it is done for.
#[derive(Debug)]
enum Frame {
    Ask(Box<Ask>),
    Find(Box<Find>),
}

/// What a part hears from the one above it, or came to.
#[derive(Debug)]
enum Signal {
    Begin,
    Answer(Answer),
    Sites(Vec<SharedSite>),
    Failed(LookupError),
}

/// How a part goes on.
enum Next {
    /// A request is under way.
    Wait(Frame),
    /// Something else has to be known first.
    After(Frame, Frame),
    /// Done.
    Done(Signal),
}

/// A question under way.
pub struct Lookup {
    client: Arc<Client>,
    options: Options,
    question: Question,
    stack: Vec<Frame>,
    exchange: Option<Exchange>,
    exchange_number: u64,
    requests_count: usize,
    indirections_count: usize,
    aliases_count: u8,
    service: Vec<SharedSite>,
    began_ms: u64,
    outcome: Option<Result<Answer, LookupError>>,
    events: Vec<Event>,
    random: Random,
}

impl Lookup {
    /// Begins to look for the answer to `question`.
    #[must_use]
    pub fn new(client: Arc<Client>, question: Question, options: Options, random: Random, now: Now) -> Self {
        let mut lookup = Self {
            client,
            options,
            question: question.clone(),
            stack: vec![],
            exchange: None,
            exchange_number: 0,
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
        lookup.stack.push(Frame::Ask(Box::new(Ask::new(asked, Why::Asked, 0))));
        lookup.run(now, Signal::Begin);
        lookup
    }

    /// Bytes that are to go out now, and the number of their exchange. Bytes that come are of the exchange that
    /// went out last; others are ignored.
    pub fn poll_transmit(&mut self, now: Now) -> Option<(u64, Transmit)> {
        let transmit = self.exchange.as_mut()?.poll_transmit(now)?;
        let (target, try_number) = (transmit.target.clone(), transmit.try_number);
        self.note(now, || Step::Asked { target, try_number });
        Some((self.exchange_number, transmit))
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called, in the caller's milliseconds; `None` when
    /// there is an outcome.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let exchange = self.exchange.as_ref()?;
        Some(exchange.poll_timeout().min(self.deadline_ms()))
    }

    fn deadline_ms(&self) -> u64 {
        self.began_ms.saturating_add(self.client.limits.patience_ms)
    }

    /// What came of it, once.
    pub fn take_outcome(&mut self) -> Option<Result<Answer, LookupError>> {
        self.outcome.take()
    }

    /// The steps so far, if they are written down.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The sites that are responsible, once they are known.
    #[must_use]
    pub fn service(&self) -> &[SharedSite] {
        &self.service
    }

    /// How many requests were made.
    #[must_use]
    pub const fn requests_count(&self) -> usize {
        self.requests_count
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Now) {
        if self.exchange.is_some() && now.ms >= self.deadline_ms() {
            let handle = self.asked_handle();
            self.stack.clear();
            self.exchange = None;
            self.run(now, Signal::Failed(LookupError::TooSlow { handle }));
        } else if let Some(exchange) = &mut self.exchange
            && let Err(error) = exchange.handle_timeout(now)
        {
            self.end_exchange(now, Err(error));
        }
    }

    /// A datagram of an exchange.
    pub fn handle_datagram(&mut self, now: Now, exchange_number: u64, datagram: &[u8]) {
        self.handle_bytes(now, exchange_number, |exchange| exchange.handle_datagram(now, datagram));
    }

    /// Bytes from the connection of an exchange.
    pub fn handle_stream(&mut self, now: Now, exchange_number: u64, bytes: &[u8]) {
        self.handle_bytes(now, exchange_number, |exchange| exchange.handle_stream(now, bytes));
    }

    fn handle_bytes(
        &mut self,
        now: Now,
        exchange_number: u64,
        take: impl FnOnce(&mut Exchange) -> Result<Option<Answered>, AttemptError>,
    ) {
        if exchange_number != self.exchange_number {
            return;
        }
        match self.exchange.as_mut().map(take) {
            Some(Ok(Some(answered))) => self.end_exchange(now, Ok(answered)),
            Some(Err(error)) => self.end_exchange(now, Err(error)),
            Some(Ok(None)) | None => {}
        }
    }

    /// The bytes of an exchange could not be moved.
    pub fn handle_failure(&mut self, now: Now, exchange_number: u64, error: AttemptError) {
        if exchange_number == self.exchange_number && self.exchange.is_some() {
            self.end_exchange(now, Err(error));
        }
    }

    /// Gives the outcome of the exchange to the part that wanted it.
    fn end_exchange(&mut self, now: Now, outcome: Result<Answered, AttemptError>) {
        let (Some(exchange), Some(Frame::Ask(mut ask))) = (self.exchange.take(), self.stack.pop()) else {
            return;
        };
        let next = match outcome {
            Ok(answered) => {
                self.client.times.note(exchange.target().address, answered.took_ms, now);
                ask.hear(self, now, &exchange, &answered)
            }
            Err(error) => {
                // As long as it might have been waited for a connection.
                self.client.times.note(exchange.target().address, self.client.patience.tcp_ms, now);
                let (target, took_ms) = (exchange.target().clone(), exchange.waited_ms(now));
                ask.failed_at(target.address, error);
                self.note_at(ask.depth(), now, || Step::Failed { target, error, took_ms });
                ask.ask_next(self, now)
            }
        };
        if let Some(signal) = self.follow(next) {
            self.run(now, signal);
        }
    }

    /// Goes on until a request is under way or there is an outcome.
    fn run(&mut self, now: Now, mut signal: Signal) {
        loop {
            let next = match self.stack.pop() {
                None => match self.conclude(now, signal) {
                    Some(begin) => {
                        signal = begin;
                        continue;
                    }
                    None => return,
                },
                Some(Frame::Ask(ask)) => ask.step(self, now, signal),
                Some(Frame::Find(find)) => find.step(self, now, signal),
            };
            match self.follow(next) {
                Some(following) => signal = following,
                None => return,
            }
        }
    }

    /// Puts the stack in order; what the top of it is to hear, unless it waits.
    fn follow(&mut self, next: Next) -> Option<Signal> {
        match next {
            Next::Wait(frame) => {
                self.stack.push(frame);
                None
            }
            Next::After(below, above) => {
                self.stack.push(below);
                self.indirections_count += 1;
                let handle = above.handle().to_vec();
                if self.indirections_count > self.client.limits.indirections_max
                    || self.stack.len() > 2 * self.client.limits.nesting_max
                {
                    return Some(Signal::Failed(LookupError::TooManyIndirections { handle }));
                }
                self.stack.push(above);
                Some(Signal::Begin)
            }
            Next::Done(signal) => Some(signal),
        }
    }

    /// The outcome, unless it is an alias that is followed.
    fn conclude(&mut self, now: Now, signal: Signal) -> Option<Signal> {
        let answer = match signal {
            Signal::Answer(answer) => answer,
            Signal::Failed(error) => {
                self.outcome = Some(Err(error));
                return None;
            }
            Signal::Begin | Signal::Sites(_) => unreachable!("the question at the bottom comes to an answer"),
        };
        let is_alias =
            |value: &handle_proto::Value<'_>| value.kind == kind::HS_ALIAS && !value.data.is_empty();
        let alias = match self.options.aliases_max {
            0 => None,
            _ => answer.values().iter().find(is_alias).map(|value| value.data.to_vec()),
        };
        let Some(handle) = alias else {
            // What was asked for beside it, to see whether there is an alias, goes again.
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
        self.note(now, || Step::Alias { handle: handle.clone() });
        let mut asked = Question { handle, ..self.question.clone() };
        if !asked.is_for_all() {
            asked.types.push(kind::HS_ALIAS.to_vec());
        }
        self.stack.push(Frame::Ask(Box::new(Ask::new(asked, Why::Asked, 0))));
        Some(Signal::Begin)
    }

    fn asked_handle(&self) -> Vec<u8> {
        self.stack.last().map(Frame::handle).unwrap_or_default().to_vec()
    }

    /// Whether the service of the same prefix is being looked for already.
    fn is_finding(&self, record: &[u8]) -> bool {
        self.stack.iter().any(|frame| matches!(frame, Frame::Find(find) if find.is_for(record)))
    }

    fn note(&mut self, now: Now, step: impl FnOnce() -> Step) {
        let depth = match self.stack.last() {
            Some(Frame::Ask(ask)) => ask.depth(),
            _ => 0,
        };
        self.note_at(depth, now, step);
    }

    fn note_at(&mut self, depth: usize, now: Now, step: impl FnOnce() -> Step) {
        if self.options.trace {
            self.events.push(Event { at_ms: now.ms.saturating_sub(self.began_ms), depth, step: step() });
        }
    }
}

impl Frame {
    /// The handle that it is about.
    fn handle(&self) -> &[u8] {
        match self {
            Self::Ask(ask) => ask.handle(),
            Self::Find(find) => find.record(),
        }
    }
}

/// Whether everybody asks the global service for `handle`: the name begins with `0.` or `0/`, or is that of a
/// prefix.
fn is_global(handle: Handle<'_>) -> bool {
    handle.is_global() || handle.0.starts_with(b"0/") || handle.slash_at().is_none()
}

/// Whether a server that answers so is passed over for the next.
const fn is_passed_over(code: ResponseCode) -> bool {
    matches!(
        code,
        ResponseCode::ERROR
            | ResponseCode::SERVER_BUSY
            | ResponseCode::SERVER_NOT_RESPONSIBLE
            | ResponseCode::PROTOCOL_ERROR
    )
}
