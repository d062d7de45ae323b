//! Notifications for the watchdog of a service manager, sent only while all workers make progress.

use crate::observe::health::{Heartbeat, look};
use crate::state::ServerState;
use std::time::{Duration, Instant};

/// Decides when to notify the service manager.
#[derive(Debug)]
pub struct Watchdog {
    heartbeat: Heartbeat,
    timeout: Duration,
    last_notification: Instant,
}

impl Watchdog {
    /// For a service manager that expects a notification within `timeout`.
    #[must_use]
    pub fn new(shared: &ServerState, timeout: Duration, now: Instant) -> Self {
        Self { heartbeat: Heartbeat::new(&shared.shards), timeout, last_notification: now }
    }

    /// Interval at which [`is_due`](Self::is_due) must be called.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.timeout / 8
    }

    /// Whether a notification is due and may be sent: no worker has owed a turn for half the
    /// timeout. Must be called several times within the timeout: see
    /// [`interval`](Self::interval).
    ///
    /// Draining workers end as they should; the duration of a drain is bounded elsewhere.
    pub fn is_due(&mut self, shared: &ServerState, now: Instant) -> bool {
        look(&mut self.heartbeat, shared, now);
        if now.saturating_duration_since(self.last_notification) < self.timeout / 4 {
            return false;
        }
        let turns = || self.heartbeat.ages(now).all(|age| age < self.timeout / 2);
        let may = shared.is_draining() || !shared.is_degraded() && turns();
        if may {
            self.last_notification = now;
        }
        may
    }
}
