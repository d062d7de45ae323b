//! Observability: `/metrics`, `/healthz` and `/readyz` on a separate HTTP address.

use crate::counters::GatewayCounters;
use crate::set::MappedSet;
use crate::state::GatewayState;
use crate::upstream::Upstream;
use handle_console::registration::store::RegistrationStore;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::metrics::{MetricGroup, MetricsText, rows};
use handle_daemon::publication::PublishedDirectory as _;
use handle_daemon::scrape::{ScrapeLimits, ScrapeSource};
use handle_daemon::{log, threads};

impl ScrapeSource for GatewayState {
    fn limits(&self) -> ScrapeLimits {
        self.settings.current().observe.scrape_limits
    }

    fn is_handed_over(&self) -> bool {
        self.is_handed_over()
    }

    fn metrics(&self) -> Result<String, String> {
        let mut text = MetricsText::default();
        text.add_all(GatewayCounters::rows(), self.counters.values());
        text.add_table(process_metrics(), self);
        if let Some(set) = &self.reading.set {
            text.add_table(set_metrics(), set);
        }
        if let Some(upstream) = &self.reading.upstream {
            text.add_table(upstream_metrics(), upstream);
        }
        if let Some(registrations) = &self.writing.registrations {
            text.add_table(registration_metrics(), &*registrations.store);
        }
        text.finish()
    }

    fn liveness(&self) -> Result<String, String> {
        match self.running() {
            _ if self.is_draining() => Ok("alive".to_owned()),
            running if running == self.process.workers_count => {
                threads::problem().map_or_else(|| Ok("alive".to_owned()), Err)
            }
            running => Err(format!("{running} of {} workers are running", self.process.workers_count)),
        }
    }

    fn readiness(&self) -> Result<String, String> {
        // After a handover, a health check that reached this process was meant for the service,
        // which the new process has.
        if self.is_draining() && !self.is_handed_over() {
            return Err("draining".to_owned());
        }
        self.liveness()?;
        let stale = self.reading.set.as_ref().filter(|set| set.freshness().is_stale(now_unix_ms()));
        if let Some(age_ms) = stale.and_then(|set| set.freshness().age_ms(now_unix_ms())) {
            return Err(format!("the set is stale: its publisher was last heard {} s ago", age_ms / 1000));
        }
        let behind = self.reading.set.as_ref().and_then(|set| set.last_error());
        Ok(behind.map_or_else(|| "ready".to_owned(), |error| format!("ready, with an old set: {error}")))
    }
}

handle_daemon::metrics! {
    /// The process.
    fn process_metrics<'s>(GatewayState), "handle_gateway_" {
        /// Open connections.
        gauge connections_open = |state| state.connections.count();
        /// Bytes of bodies of requests that are being received or answered.
        gauge bodies_bytes = |state| state.bodies.count();
        /// Bytes of answers that their clients have not taken, and of requests under way.
        gauge answers_bytes = |state| state.answers.count() + state.writing.results.count();
        /// Answers that were refused or cut, because too many bytes of answers wait for clients.
        counter answers_refused = |state| state.answers.refused_count();
        /// Sessions of callers with an identity.
        gauge sessions = |state| state.writing.sessions.counts().0;
        /// Sessions of callers without an identity.
        gauge sessions_unproven = |state| state.writing.sessions.counts().1;
        /// Workers that are running.
        gauge workers_running = |state| state.running();
        /// Expiry of the TLS certificate in use, in seconds since 1970; 0 without a certificate.
        gauge tls_certificate_expiry_seconds = |state| state.certificate_expires_unix_s();
        /// Lines of the log that could not be written to standard error.
        counter log_lines_lost = |_it| log::lines_lost();
        /// Threads and tasks that have ended by a bug; health checks fail, and `status` names them.
        gauge threads_ended = |_it| threads::ended().len();
        /// Start time of the process, in seconds since 1970.
        gauge start_time_seconds = |state| state.started_unix_ms() / 1000;
        /// Lines written to the log of requests.
        counter request_log_lines = |state| state.request_log.counts().written;
        /// Lines of the log of requests that were lost: the queue was full, or writing failed.
        counter request_log_lost = |state| state.request_log.counts().lost;
    }
}

handle_daemon::metrics! {
    /// The published set.
    fn set_metrics<'s>(MappedSet), "handle_gateway_snapshot_" {
        /// Generation of the set.
        gauge generation = |set| set.current().generation();
        /// When the set was published, in seconds since 1970.
        gauge created_seconds = |set| set.current().created_unix_ms() / 1000;
        /// Time since the newest statement of the publisher about the set; 0 without keys of
        /// publishers.
        gauge statement_age_seconds = |set| {
            set.freshness().age_ms(now_unix_ms()).unwrap_or_default() as f64 / 1000.0
        };
        /// Seconds by which the newest statement of the publisher is ahead of this machine's clock,
        /// if refused for that; otherwise 0.
        gauge statement_ahead_seconds = |set| set.freshness().statement_ahead_ms() as f64 / 1000.0;
        /// 1 while the set is stale; `/readyz` answers 503.
        gauge stale = |set| set.freshness().is_stale(now_unix_ms());
        /// Handles in the set; an upper bound if layers overlap.
        gauge handles = |set| set.current().handles_count();
        /// Bytes of the layers of the set.
        gauge bytes = |set| set.current().bytes_mapped();
        /// 1 while the newest published set cannot be opened, and the previous one is served.
        gauge failing = |set| set.is_failing();
        /// Sets that were loaded after the first.
        counter reloads = |set| set.reloads_count();
    }
}

handle_daemon::metrics! {
    /// The Handle System, and the cache of its answers.
    fn upstream_metrics<'s>(Upstream), "handle_gateway_" {
        /// Handles with a cached answer.
        gauge cache_handles = |upstream| upstream.client().cache.stats().handles;
        /// Bytes of cached answers.
        gauge cache_bytes = |upstream| upstream.client().cache.stats().bytes;
        /// Questions that the cache answered.
        counter cache_hits = |upstream| upstream.client().cache.stats().hits;
        /// Questions that the cache did not answer.
        counter cache_misses = |upstream| upstream.client().cache.stats().misses;
        /// Cached answers evicted to make room for others.
        counter cache_evicted = |upstream| upstream.client().cache.stats().evicted;
        /// Expired answers that were served.
        counter cache_stale = |upstream| upstream.stale_count();
        /// Questions that were not sent because of a recent failure.
        counter upstream_refused = |upstream| upstream.refused_count();
        /// Free permits for questions to the Handle System.
        gauge upstream_permits = |upstream| upstream.permits_left();
    }
}

handle_daemon::metrics! {
    /// Requests for prefixes.
    fn registration_metrics<'s>(RegistrationStore), "handle_gateway_registrations_" {
        /// Stored requests that wait for a reviewer.
        gauge pending = |store| store.count(false);
        /// Stored requests that were accepted or refused.
        gauge decided = |store| store.count(true);
        /// Bytes of stored requests.
        gauge bytes = |store| store.bytes();
        /// Requests that were stored.
        counter received = |store| store.counts().received.get();
        /// Requests that were accepted: their prefix is registered.
        counter accepted = |store| store.counts().accepted.get();
        /// Requests that were refused.
        counter refused = |store| store.counts().refused.get();
        /// Requests that were deleted.
        counter deleted = |store| store.counts().deleted.get();
    }
}

/// The metrics of `handle-gateway`, by the tables of `docs/operations/gateway-metrics.md`.
#[must_use]
pub fn metric_groups() -> Vec<MetricGroup> {
    let process = [GatewayCounters::rows(), rows(process_metrics())].concat();
    let groups = [
        ("process", process),
        ("set", rows(set_metrics())),
        ("upstream", rows(upstream_metrics())),
        ("registrations", rows(registration_metrics())),
    ];
    groups.into_iter().map(|(name, rows)| MetricGroup { name, rows }).collect()
}

#[cfg(test)]
mod tests;
