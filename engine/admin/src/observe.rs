//! Observability: `/metrics`, `/healthz` and `/readyz` on a separate HTTP address.
//!
//! The names of all metrics: `docs/operations/admin-metrics.md`.

use crate::costly::CostlyWork;
use crate::counters::AdminCounters;
use crate::disk::DiskRoom;
use crate::publish;
use crate::referral::{ReferralCounts, ReferralResolver};
use crate::remote::{RemoteCounts, RemoteServices};
use crate::service::AdminService;
use crate::state::AdminState;
use crate::store::{StoreError, StoreStats};
use handle_auth::challenges::ChallengeCounts;
use handle_daemon::scrape::{ScrapeLimits, ScrapeSource};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::time::Duration;

impl ScrapeSource for AdminState {
    fn limits(&self) -> ScrapeLimits {
        let observe = &self.config().observe;
        ScrapeLimits {
            connections: observe.http_connections,
            header_len_max: observe.http_header_bytes,
            patience: Duration::from_millis(observe.http_timeout_ms.into()),
        }
    }

    fn metrics(&self) -> Result<String, String> {
        metrics(self).map_err(|_| "the store cannot be read".to_owned())
    }

    fn liveness(&self) -> Result<String, String> {
        self.service.store.failure().map_or_else(|| Ok("alive".to_owned()), Err)
    }

    fn readiness(&self) -> Result<String, String> {
        if self.is_draining() {
            return Err("draining".to_owned());
        }
        let took = self.health.look(&self.service.store)?;
        let low = self.disks.look(&self.config()).into_iter().filter(|room| room.is_low);
        let low: String = low.map(|room| format!("; the disk of {} is nearly full", room.of)).collect();
        Ok(format!("ready: written and read back in {took:?}{low}"))
    }
}

/// All metrics as text.
///
/// # Errors
/// When the store cannot be read.
pub fn metrics(state: &AdminState) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let reading = MetricsReading::take(state)?;
    let mut registry = Registry::with_prefix("handle_admin");
    let requests = state.service.counters.requests.clone();
    registry.register("requests", "Requests, by operation and code of the answer", requests);
    for &(name, help, source) in METRICS {
        match source {
            MetricSource::Counter(read) => {
                registry.register(name, help, ConstCounter::new(read(&reading)));
            }
            MetricSource::Gauge(read) => registry.register(name, help, ConstGauge::new(read(&reading))),
            MetricSource::Disks(read) => registry.register(name, help, DiskGauges::new(&reading.disks, read)),
            MetricSource::Events(read) => {
                if let Some(counts) = read(&reading) {
                    registry.register(name, help, EventCounts(counts));
                }
            }
        }
    }
    if let Some(publisher) = &state.publisher {
        publish::register(&mut registry, &publisher.status());
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// The source of all metrics. Numbers that take a lock or a transaction are read once.
struct MetricsReading<'s> {
    state: &'s AdminState,
    service: &'s AdminService,
    counters: &'s AdminCounters,
    store: StoreStats,
    /// Durable commits, and changes in them.
    commits: (u64, u64),
    challenges: ChallengeCounts,
    /// Units of costly work done, requests refused, and requests waiting.
    costly: (u64, u64, usize),
    disks: Vec<DiskRoom>,
}

impl<'s> MetricsReading<'s> {
    fn take(state: &'s AdminState) -> Result<Self, StoreError> {
        let service = &*state.service;
        Ok(Self {
            state,
            service,
            counters: &service.counters,
            store: service.store.stats()?,
            commits: service.store.commits(),
            challenges: service.challenges().counts(),
            costly: service.costly().map(CostlyWork::counts).unwrap_or_default(),
            disks: state.disks.look(&state.config()),
        })
    }
}

/// Counts with the names of their events.
type CountsByEvent = Vec<(&'static str, u64)>;

/// How the value of a metric is read.
#[derive(Clone, Copy)]
enum MetricSource {
    /// A number that grows.
    Counter(fn(&MetricsReading<'_>) -> u64),
    /// A number that goes up and down.
    Gauge(fn(&MetricsReading<'_>) -> u64),
    /// A gauge for each disk, where it is known.
    Disks(fn(&DiskRoom) -> Option<u64>),
    /// A counter for each event; `None` if the part of the process is not in use.
    Events(fn(&MetricsReading<'_>) -> Option<CountsByEvent>),
}

/// All metrics but `requests` and those of the publisher: name, help and source.
#[rustfmt::skip]
const METRICS: &[(&str, &str, MetricSource)] = {
    use MetricSource::{Counter, Disks, Events, Gauge};
    &[
        ("connections", "Connections that were accepted", Counter(|it| it.counters.connections.get())),
        ("connections_refused", "Connections over the bounds", Counter(|it| it.counters.connections_refused.get())),
        ("connections_evicted", "Connections whose place or room was given to another", Counter(|it| it.counters.connections_evicted.get())),
        ("connections_timed_out", "Connections that were silent for too long", Counter(|it| it.counters.connections_timed_out.get())),
        ("store_errors", "Requests that the store failed", Counter(|it| it.counters.store_errors.get())),
        ("forwarded", "Requests that handled has forwarded", Counter(|it| it.counters.forwarded.get())),
        ("forwarded_refused", "Connections of handled that were refused or not understood", Counter(|it| it.counters.forwarded_refused.get())),
        ("bugs", "Requests that met a bug", Counter(|it| it.counters.bugs.get())),
        ("store_commits", "Durable commits", Counter(|it| it.commits.0)),
        ("store_changes", "Changes that were made durable", Counter(|it| it.commits.1)),
        ("challenges_issued", "Challenges that were given", Counter(|it| it.challenges.issued)),
        ("challenges_answered", "Challenges that were answered", Counter(|it| it.challenges.taken)),
        ("challenges_expired", "Challenges that were forgotten unanswered", Counter(|it| it.challenges.expired)),
        ("challenges_displaced", "Challenges that made room for newer ones", Counter(|it| it.challenges.displaced)),
        ("costly_units", "Rounds of PBKDF2, and what takes as long, that were done for others", Counter(|it| it.costly.0)),
        ("costly_refused", "Requests for which there was no place for such work", Counter(|it| it.costly.1)),
        ("sessions", "What happened to sessions of this process itself", Events(|it| Some(it.service.sessions()?.own().counts().by_name().to_vec()))),
        ("session_messages", "What came of set-ups and of messages in sessions", Events(|it| Some(it.service.sessions()?.counts().by_name().to_vec()))),
        ("remote", "Questions to other services about identities", Events(|it| Some(remote_events(it.service)))),
        ("audit_lines", "Lines of the audit log", Events(|it| Some(it.service.audit.counts().to_vec()))),
        ("disk_free_bytes", "Free bytes of a disk", Disks(|disk| disk.free_bytes)),
        ("disk_low", "1 while a disk is nearly full", Disks(|disk| Some(disk.is_low.into()))),
        ("referrals", "Referrals resolved for clients that do not know them", Events(|it| Some(referral_events(it.service)))),
        ("connections_open", "Connections now", Gauge(|it| it.state.connections.count() as u64)),
        ("connections_input_bytes", "Bytes of requests that are not whole, without the first 4096 of each", Gauge(|it| it.state.connections.input_len() as u64)),
        ("requests_working", "Requests that are worked on", Gauge(|it| it.state.connections.working() as u64)),
        ("store_waiting", "Changes that wait for the writer", Gauge(|it| it.service.store.waiting() as u64)),
        ("store_records", "Records", Gauge(|it| it.store.records)),
        ("store_values", "Values in them", Gauge(|it| it.store.values)),
        ("store_bytes", "Bytes of names and values", Gauge(|it| it.store.bytes)),
        ("store_homed_prefixes", "Homed prefixes", Gauge(|it| it.store.homed_prefixes)),
        ("store_last_transaction", "The last transaction", Gauge(|it| it.store.last_transaction)),
        ("store_log_transactions", "Transactions in the log", Gauge(|it| it.store.log_transactions)),
        ("store_failed", "1 once nothing can be written any more", Gauge(|it| it.service.store.failure().is_some().into())),
        ("costly_waiting", "Requests that wait for key exchanges or derived keys", Gauge(|it| it.costly.2 as u64)),
        ("challenges_waiting", "Challenges that wait for an answer", Gauge(|it| it.service.challenges().len() as u64)),
        ("sessions_open", "Sessions of this process itself", Gauge(|it| it.service.sessions().map_or(0, |all| all.own().len() as u64))),
        ("remote_waiting", "Requests on whose behalf other services are asked", Gauge(|it| it.service.remote().map_or(0, RemoteServices::asking) as u64)),
        ("start_time_seconds", "When it was started, Unix seconds", Gauge(|it| it.state.started_unix_ms() / 1000)),
    ]
};

fn remote_events(service: &AdminService) -> CountsByEvent {
    let RemoteCounts { questions, unanswered, refused, recently_silent, cached } =
        service.remote().map(RemoteServices::counts).unwrap_or_default();
    vec![
        ("sent", questions),
        ("unanswered", unanswered),
        ("refused", refused),
        ("recently_silent", recently_silent),
        ("cached", cached),
    ]
}

fn referral_events(service: &AdminService) -> CountsByEvent {
    let ReferralCounts { resolved, unresolved, refused } =
        service.referrals().map(ReferralResolver::counts).unwrap_or_default();
    vec![("resolved", resolved), ("unresolved", unresolved), ("refused", refused)]
}

/// One number for each disk, labelled by what is written there.
#[derive(Debug)]
struct DiskGauges(Vec<(&'static str, u64)>);

impl DiskGauges {
    fn new(rooms: &[DiskRoom], number: fn(&DiskRoom) -> Option<u64>) -> Self {
        Self(rooms.iter().filter_map(|room| Some((room.of, number(room)?))).collect())
    }
}

impl EncodeMetric for DiskGauges {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        for (of, number) in &self.0 {
            ConstGauge::new(*number).encode(encoder.encode_family(&[("of", *of)])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// The counts of one metric, by event.
#[derive(Debug)]
struct EventCounts(CountsByEvent);

impl EncodeMetric for EventCounts {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        for (event, count) in &self.0 {
            ConstCounter::new(*count).encode(encoder.encode_family(&[("event", *event)])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
