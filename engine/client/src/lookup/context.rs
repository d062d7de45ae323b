//! The state that the parts of a lookup share: its client and options, the request under way, and
//! the record of its steps.

use super::{Client, LookupError, LookupOptions};
use crate::exchange::Exchange;
use crate::service::SharedSite;
use crate::trace::{AnswerOrigin, LookupEvent, LookupStep};
use crate::{ClockReading, LookupAnswer, RandomSource};
use std::sync::Arc;

/// The state that the parts of a lookup share.
pub(super) struct LookupContext {
    pub(super) client: Arc<Client>,
    pub(super) options: LookupOptions,
    /// The requests under way, each with its number: one, or two that race.
    pub(super) under_way: Vec<(u64, Exchange)>,
    /// The name whose addresses are needed before the next request.
    pub(super) naming: Option<NameLookup>,
    /// The time to ask a server of the other address family too.
    pub(super) fallback_at_ms: Option<u64>,
    /// The number of the last request or name.
    number: u64,
    pub(super) requests_count: usize,
    /// The responsible sites, once they are known.
    pub(super) service: Vec<SharedSite>,
    /// Where they come from.
    pub(super) service_origin: AnswerOrigin,
    pub(super) began_ms: u64,
    pub(super) events: Vec<LookupEvent>,
    pub(super) random: RandomSource,
}

/// A lookup of the addresses of a name.
pub(super) struct NameLookup {
    pub(super) number: u64,
    pub(super) name: String,
    /// Whether the caller has not been asked for the addresses yet.
    pub(super) is_new: bool,
    pub(super) deadline_ms: u64,
}

/// The event or result that a part receives.
#[derive(Debug)]
pub(super) enum PartSignal {
    Begin,
    Answer(LookupAnswer),
    Sites(Vec<SharedSite>),
    Failed(LookupError),
}

/// The result of one step of a part. `N` is the kind of part that it may need.
pub(super) enum PartStep<N> {
    /// The part waits for a request.
    Wait,
    /// The part waits for another part.
    After(N),
    /// The part is done.
    Done(PartSignal),
}

impl<N> PartStep<N> {
    /// The part ends with this error.
    pub(super) const fn failed(error: LookupError) -> Self {
        Self::Done(PartSignal::Failed(error))
    }

    pub(super) fn map<M>(self, part: impl FnOnce(N) -> M) -> PartStep<M> {
        match self {
            Self::Wait => PartStep::Wait,
            Self::After(needed) => PartStep::After(part(needed)),
            Self::Done(signal) => PartStep::Done(signal),
        }
    }
}

impl LookupContext {
    pub(super) fn new(
        client: Arc<Client>,
        options: LookupOptions,
        random: RandomSource,
        now: ClockReading,
    ) -> Self {
        Self {
            client,
            options,
            under_way: vec![],
            naming: None,
            fallback_at_ms: None,
            number: 0,
            requests_count: 0,
            service: vec![],
            service_origin: AnswerOrigin::Prefix,
            began_ms: now.ms,
            events: vec![],
            random,
        }
    }

    /// Whether another request may be made.
    pub(super) fn may_request(&self) -> bool {
        self.requests_count < self.client.limits.requests_max
    }

    /// Starts a request.
    pub(super) fn begin(&mut self, exchange: Exchange) {
        self.requests_count += 1;
        self.number += 1;
        self.under_way.push((self.number, exchange));
    }

    /// Starts the lookup of a name that is needed first.
    pub(super) fn look_up_name(&mut self, name: String, now: ClockReading) {
        self.number += 1;
        let deadline_ms = now.ms.saturating_add(self.client.timeout.name_ms.into());
        self.naming = Some(NameLookup { number: self.number, name, is_new: true, deadline_ms });
    }

    /// Records a step of a part at this depth, if steps are recorded.
    pub(super) fn note(&mut self, depth: usize, now: ClockReading, step: impl FnOnce() -> LookupStep) {
        if self.options.trace {
            let at_ms = now.ms.saturating_sub(self.began_ms);
            self.events.push(LookupEvent { at_ms, depth, step: step() });
        }
    }
}
