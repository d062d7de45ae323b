//! Sessions in the data process: the slow path sets them up, and the workers use them.
//!
//! The workers answer requests for public values in a session, with a MAC where the request asks
//! for one. That costs a lookup in the table and one or two HMACs. Requests that need an identity
//! or encryption go to the slow path.

pub mod sealer;

use handle_session::config::SessionsConfig;
use handle_session::{SessionLimits, SessionTable, SetupTerms};
use serde_json::{Map, Value};
use std::time::Instant;

/// The sessions of this process, and the terms on which sessions are set up.
#[derive(Debug)]
pub struct ServerSessions {
    /// The table of sessions.
    pub table: SessionTable,
    pub(crate) terms: SetupTerms,
    started: Instant,
}

impl ServerSessions {
    /// Creates an empty table; `None` when sessions are disabled. `has_tcp` says whether clients
    /// can use TCP.
    #[must_use]
    pub fn new(config: &SessionsConfig, has_tcp: bool) -> Option<Self> {
        let limits = config.limits();
        let datagrams_per_source_max = limits.datagrams_per_source_max.filter(|_| has_tcp);
        config.are_enabled().then(|| Self {
            table: SessionTable::new(SessionLimits { datagrams_per_source_max, ..limits }),
            terms: config.terms(),
            started: Instant::now(),
        })
    }

    /// The current time of the clock of the table, in seconds.
    pub(crate) fn now_s(&self) -> u32 {
        self.second_at(Instant::now())
    }

    /// The time `at` by the clock of the table, in seconds.
    pub(crate) fn second_at(&self, at: Instant) -> u32 {
        u32::try_from(at.saturating_duration_since(self.started).as_secs()).unwrap_or(u32::MAX)
    }

    /// The counters of sessions and their current number, as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let counts = self.table.counts().by_name();
        let mut all: Map<String, Value> =
            counts.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
        all.insert("open".into(), self.table.len().into());
        all.into()
    }
}
