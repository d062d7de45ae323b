//! Notifications for the watchdog of a service manager, sent only while every worker makes progress.

use crate::observe::health::{Heartbeat, look};
use crate::server::ServerState;
use std::time::{Duration, Instant};

/// When to tell the service manager that all is well.
#[derive(Debug)]
pub struct Watchdog {
    heartbeat: Heartbeat,
    patience: Duration,
    told: Instant,
}

impl Watchdog {
    /// For a manager that gives us up when it has not heard for `patience`.
    #[must_use]
    pub fn new(shared: &ServerState, patience: Duration, now: Instant) -> Self {
        Self { heartbeat: Heartbeat::new(&shared.shards), patience, told: now }
    }

    /// How long until the next question whether a sign is due.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.patience / 8
    }

    /// Whether a sign is due, and may be given: no worker has owed a turn for half the patience. To be asked
    /// several times within the patience: see [`interval`](Self::interval).
    ///
    /// Workers that drain end as they should; how long that may take is bounded elsewhere.
    pub fn is_due(&mut self, shared: &ServerState, now: Instant) -> bool {
        look(&mut self.heartbeat, shared, now);
        if now.saturating_duration_since(self.told) < self.patience / 4 {
            return false;
        }
        let turns = || self.heartbeat.ages(now).all(|age| age < self.patience / 2);
        let may = shared.is_draining() || !shared.is_degraded() && turns();
        if may {
            self.told = now;
        }
        may
    }
}
