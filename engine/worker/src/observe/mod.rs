//! Observability: `/metrics`, `/healthz` and `/readyz` on a separate HTTP address.
//!
//! - Workers are not interrupted: the endpoint reads their counters, and detects a worker that
//!   makes no turn after a wake-up by its count of turns.
//! - [`health`] decides liveness and readiness, `metrics` writes the text; the endpoint is
//!   [`handle_daemon::scrape`].
//!
//! All metrics are listed in `docs/operations/metrics.md`.

pub mod health;
mod metrics;
mod process;
pub mod settings;

pub use metrics::metric_groups;

use crate::state::ServerState;
use handle_daemon::http::HttpStatus;
use handle_daemon::scrape::{ScrapeEndpoint, ScrapeLimits, ScrapeSource};
use health::{HealthProblems, Heartbeat};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// State from which responses are made.
#[derive(Debug)]
struct ObserverState {
    shared: Arc<ServerState>,
    heartbeat: Mutex<Heartbeat>,
    /// Number of requests, by status in the order of [`HttpStatus::ALL`].
    http_requests: [AtomicU64; HttpStatus::ALL.len()],
    http_abandoned: AtomicU64,
}

/// Serves scrapers until the server stops.
pub(crate) fn serve(endpoint: ScrapeEndpoint, shared: &Arc<ServerState>) {
    let state = ObserverState {
        shared: Arc::clone(shared),
        heartbeat: Mutex::new(Heartbeat::new(&shared.shards)),
        http_requests: std::array::from_fn(|_| AtomicU64::new(0)),
        http_abandoned: AtomicU64::new(0),
    };
    endpoint.serve(&shared.shutdown, &Arc::new(state));
}

impl ObserverState {
    fn heartbeat(&self) -> MutexGuard<'_, Heartbeat> {
        self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time without a due turn after which a worker counts as hanging.
    fn stalled_after(&self) -> Duration {
        Duration::from_millis(self.shared.settings.current().config.observe.stalled_after_ms.into())
    }

    /// Checks the workers now.
    fn look(&self) {
        health::look(&mut self.heartbeat(), &self.shared, Instant::now());
    }

    /// The response to a health check.
    fn check(
        &self,
        check: fn(&ServerState, &Heartbeat, Instant, Duration) -> HealthProblems,
    ) -> Result<String, String> {
        self.look();
        let problems = check(&self.shared, &self.heartbeat(), Instant::now(), self.stalled_after());
        if problems.is_empty() { Ok("ok".to_owned()) } else { Err(problems.join("\n")) }
    }
}

impl ScrapeSource for ObserverState {
    fn limits(&self) -> ScrapeLimits {
        self.shared.settings.current().config.observe.scrape_limits
    }

    fn metrics(&self) -> Result<String, String> {
        self.look();
        metrics::metrics(self)
    }

    fn liveness(&self) -> Result<String, String> {
        self.check(health::liveness)
    }

    fn readiness(&self) -> Result<String, String> {
        self.check(health::readiness)
    }

    fn count_response(&self, status: HttpStatus) {
        self.http_requests[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn count_abandoned(&self) {
        self.http_abandoned.fetch_add(1, Ordering::Relaxed);
    }

    fn is_handed_over(&self) -> bool {
        self.shared.is_handed_over()
    }
}

#[cfg(test)]
mod tests;
