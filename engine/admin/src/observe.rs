//! Observability: `/metrics`, `/healthz` and `/readyz` on a separate HTTP address.
//!
//! The names of all metrics: `docs/operations/admin-metrics.md`.

use crate::costly::CostlyWork;
use crate::disk::DiskRoom;
use crate::publish;
use crate::referral::{ReferralCounts, ReferralResolver};
use crate::remote::{RemoteCounts, RemoteServices};
use crate::state::AdminState;
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
            patience: Duration::from_millis(observe.http_patience_ms.into()),
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
pub fn metrics(shared: &AdminState) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let (service, counters) = (&shared.service, &shared.service.counters);
    let mut registry = Registry::with_prefix("handle_admin");
    registry.register("requests", "Requests, by operation and code of the answer", counters.requests.clone());
    let simple = [
        ("connections", "Connections that were accepted", &counters.connections),
        ("connections_refused", "Connections over the bounds", &counters.connections_refused),
        (
            "connections_evicted",
            "Connections whose place or room was given to another",
            &counters.connections_evicted,
        ),
        (
            "connections_timed_out",
            "Connections that were silent for too long",
            &counters.connections_timed_out,
        ),
        ("store_errors", "Requests that the store failed", &counters.store_errors),
        ("forwarded", "Requests that handled has forwarded", &counters.forwarded),
        (
            "forwarded_refused",
            "Connections of handled that were refused or not understood",
            &counters.forwarded_refused,
        ),
        ("bugs", "Requests that met a bug", &counters.bugs),
    ];
    for (name, help, counter) in simple {
        registry.register(name, help, counter.clone());
    }
    let (commits, changes) = service.store.commits();
    let counts = service.challenges().counts();
    let (units, refused, costly_waiting) = service.costly().map(CostlyWork::counts).unwrap_or_default();
    let numbers = [
        ("store_commits", "Durable commits", commits),
        ("store_changes", "Changes that were made durable", changes),
        ("challenges_issued", "Challenges that were given", counts.issued),
        ("challenges_answered", "Challenges that were answered", counts.taken),
        ("challenges_expired", "Challenges that were forgotten unanswered", counts.expired),
        ("challenges_displaced", "Challenges that made room for newer ones", counts.displaced),
        ("costly_units", "Rounds of PBKDF2, and what takes as long, that were done for others", units),
        ("costly_refused", "Requests for which there was no place for such work", refused),
    ];
    for (name, help, number) in numbers {
        registry.register(name, help, ConstCounter::new(number));
    }
    if let Some(sessions) = service.sessions() {
        let events = EventCounts(sessions.own().counts().by_name().to_vec());
        registry.register("sessions", "What happened to sessions of this process itself", events);
        let events = EventCounts(sessions.counts().by_name().to_vec());
        registry.register("session_messages", "What came of set-ups and of messages in sessions", events);
    }
    let RemoteCounts { asked, unanswered, refused, rested, cached } =
        service.remote().map(RemoteServices::counts).unwrap_or_default();
    let events = vec![
        ("asked", asked),
        ("unanswered", unanswered),
        ("refused", refused),
        ("rested", rested),
        ("cached", cached),
    ];
    registry.register("elsewhere", "Questions to other services about identities", EventCounts(events));
    let lines = EventCounts(service.audit.counts().to_vec());
    registry.register("audit_lines", "Lines of the audit log", lines);
    let rooms = shared.disks.look(&shared.config());
    registry.register("disk_free_bytes", "Free bytes of a disk", DiskGauges::new(&rooms, |it| it.free_bytes));
    let low = DiskGauges::new(&rooms, |it| Some(it.is_low.into()));
    registry.register("disk_low", "1 while a disk is nearly full", low);
    let ReferralCounts { resolved, unresolved, refused } =
        service.referrals().map(ReferralResolver::counts).unwrap_or_default();
    let events = vec![("resolved", resolved), ("unresolved", unresolved), ("refused", refused)];
    registry.register(
        "referrals",
        "Referrals resolved for clients that do not know them",
        EventCounts(events),
    );
    let stats = service.store.stats()?;
    let gauges = [
        ("connections_open", "Connections now", shared.connections.count() as u64),
        (
            "connections_input_bytes",
            "Bytes of requests that are not whole, without the first 4096 of each",
            shared.connections.input_len() as u64,
        ),
        (
            "requests_working",
            "Requests that are worked on",
            shared.connections.working() as u64,
        ),
        ("store_waiting", "Changes that wait for the writer", service.store.waiting() as u64),
        ("store_records", "Records", stats.records),
        ("store_values", "Values in them", stats.values),
        ("store_bytes", "Bytes of names and values", stats.bytes),
        ("store_homed_prefixes", "Homed prefixes", stats.homed_prefixes),
        ("store_last_transaction", "The last transaction", stats.last_transaction),
        ("store_log_transactions", "Transactions in the log", stats.log_transactions),
        (
            "store_failed",
            "1 once nothing can be written any more",
            u64::from(service.store.failure().is_some()),
        ),
        ("costly_waiting", "Requests that wait for key exchanges or derived keys", costly_waiting as u64),
        ("challenges_waiting", "Challenges that wait for an answer", service.challenges().len() as u64),
        (
            "sessions_open",
            "Sessions of this process itself",
            service.sessions().map_or(0, |all| all.own().len() as u64),
        ),
        (
            "elsewhere_asking",
            "Requests on whose behalf other services are asked",
            service.remote().map_or(0, RemoteServices::asking) as u64,
        ),
        ("start_time_seconds", "When it was started, Unix seconds", shared.started_unix_ms() / 1000),
    ];
    for (name, help, number) in gauges {
        registry.register(name, help, ConstGauge::new(number));
    }
    if let Some(publishing) = &shared.publisher {
        publish::register(&mut registry, &publishing.status());
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// One number for each disk, labelled by what is written there.
#[derive(Debug)]
struct DiskGauges(Vec<(&'static str, u64)>);

impl DiskGauges {
    fn new(rooms: &[DiskRoom], number: impl Fn(&DiskRoom) -> Option<u64>) -> Self {
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
struct EventCounts(Vec<(&'static str, u64)>);

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
