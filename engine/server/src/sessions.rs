//! Sessions in the data process: set up on the slow path, used on the hot one.
//!
//! Requests for public values in a session are answered by the workers, with a MAC where that is asked for: a look at
//! the table and one or two HMACs. What needs an identity or encryption goes the slow way.

pub mod sealer;

use handle_daemon::sessions::config::SessionsConfig;
use handle_daemon::sessions::{SessionLimits, SessionTable, SetupTerms};
use serde_json::{Map, Value};
use std::time::Instant;

/// The sessions of this process, and what is agreed to.
#[derive(Debug)]
pub struct ServerSessions {
    /// The table.
    pub table: SessionTable,
    pub(crate) terms: SetupTerms,
    started: Instant,
}

impl ServerSessions {
    /// No sessions yet; `None` where there are to be none. `has_tcp` says whether clients can come over TCP.
    #[must_use]
    pub fn new(config: &SessionsConfig, has_tcp: bool) -> Option<Self> {
        let limits = config.limits();
        let datagrams_per_source_max = limits.datagrams_per_source_max.filter(|_| has_tcp);
        config.enabled.then(|| Self {
            table: SessionTable::new(SessionLimits { datagrams_per_source_max, ..limits }),
            terms: config.terms(),
            started: Instant::now(),
        })
    }

    /// Seconds by the clock of the table.
    pub(crate) fn now_s(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// What happened to sessions, and how many there are.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let counts = self.table.counts().by_name();
        let mut all: Map<String, Value> =
            counts.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
        all.insert("open".into(), self.table.len().into());
        all.into()
    }
}
