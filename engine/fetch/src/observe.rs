//! Observability: `/metrics`, `/healthz` and `/readyz` on a separate HTTP address.
//!
//! The page of metrics: `docs/operations/fetch-metrics.md`.

use crate::state::{FetchState, FetchStatus, FetchedSet};
use handle_daemon::clock::now_unix_ms;
use handle_daemon::metrics::{MetricGroup, MetricsText, rows};
use handle_daemon::scrape::{ScrapeLimits, ScrapeSource};
use handle_daemon::{log, threads};
use handle_fleet::FetchCounters;

impl ScrapeSource for FetchState {
    fn limits(&self) -> ScrapeLimits {
        self.config().observe.scrape_limits
    }

    fn metrics(&self) -> Result<String, String> {
        let mut text = MetricsText::default();
        text.add_all(FetchCounters::rows(), self.counters.values());
        text.add_table(process_metrics(), self);
        text.add_table(set_metrics(), &self.status());
        text.finish()
    }

    fn liveness(&self) -> Result<String, String> {
        let ended = threads::problem().filter(|_| !self.shutdown.is_draining());
        ended.map_or_else(|| Ok("alive".to_owned()), Err)
    }

    fn readiness(&self) -> Result<String, String> {
        if self.shutdown.is_draining() {
            return Err("draining".to_owned());
        }
        self.liveness()?;
        let (status, now) = (self.status(), now_unix_ms());
        let Some(set) = &status.set else {
            let why = status.last_error.unwrap_or_else(|| "the first attempt is under way".to_owned());
            return Err(format!("no set: {why}"));
        };
        if let Some(age_s) = self.stale_age_s(now) {
            return Err(format!("the set is stale: its publisher was last heard {age_s} s ago"));
        }
        let since = status.succeeded_unix_ms.unwrap_or(self.started_unix_ms);
        match status.last_error {
            Some(error) if now.saturating_sub(since) > self.config().failing_s.saturating_mul(1000) => {
                Err(format!("failing: {error}"))
            }
            Some(error) => Ok(format!("ready, with an old set: {error}")),
            None => Ok(format!("ready: generation {} of epoch {}", set.generation, set.epoch)),
        }
    }
}

/// The metrics of `handle-fetch`, by the tables of `docs/operations/fetch-metrics.md`.
#[must_use]
pub fn metric_groups() -> Vec<MetricGroup> {
    let process = [FetchCounters::rows(), rows(process_metrics())].concat();
    let groups = [("process", process), ("set", rows(set_metrics()))];
    groups.into_iter().map(|(name, rows)| MetricGroup { name, rows }).collect()
}

handle_daemon::metrics! {
    /// The process.
    fn process_metrics<'s>(FetchState), "handle_fetch_" {
        /// Lines of the log that could not be written to standard error.
        counter log_lines_lost = |_it| log::lines_lost();
        /// Threads and tasks that have ended by a bug; health checks fail, and `status` names them.
        gauge threads_ended = |_it| threads::ended().len();
        /// Start time of the process, in seconds since 1970.
        gauge start_time_seconds = |state| state.started_unix_ms / 1000;
        /// 1 while the newest statement about the set is older than `publishers.age_max_s`.
        gauge stale = |state| state.stale_age_s(now_unix_ms()).is_some();
        /// With `notify.address`: 1 while there is a connection for notices.
        gauge notify_connected = |state| state.notices().map(|notices| notices.connected);
    }
}

/// The set in the directory.
fn set_of(status: &FetchStatus) -> Option<&FetchedSet> {
    status.set.as_ref()
}

handle_daemon::metrics! {
    /// The set in the directory, and the last attempt.
    fn set_metrics<'s>(FetchStatus), "handle_fetch_" {
        /// 1 if the last attempt failed; `status` has the reason.
        gauge failing = |status| status.last_error.is_some();
        /// End of the last successful attempt, in seconds since 1970.
        gauge succeeded_seconds = |status| status.succeeded_unix_ms.map(|at| at / 1000);
        /// Epoch of the set in the directory.
        gauge set_epoch = |status| set_of(status).map(|set| set.epoch);
        /// Generation of the set in the directory.
        gauge set_generation = |status| set_of(status).map(|set| set.generation);
        /// When this set was published, in seconds since 1970.
        gauge set_created_seconds = |status| set_of(status).map(|set| set.created_unix_ms / 1000);
        /// Time of the newest statement about this set, in seconds since 1970, if it is signed.
        gauge set_signed_seconds = |status| {
            set_of(status).and_then(|set| set.signed_unix_ms).map(|at| at / 1000)
        };
        /// Handles in this set.
        gauge set_handles = |status| set_of(status).map(|set| set.handles_count);
        /// Layers of this set.
        gauge set_layers = |status| set_of(status).map(|set| set.layers_count);
        /// Bytes of these layers.
        gauge set_bytes = |status| set_of(status).map(|set| set.len);
    }
}
