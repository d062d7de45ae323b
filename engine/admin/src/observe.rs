//! Observability: `/metrics`, `/healthz` and `/readyz` on a separate HTTP address.
//!
//! The page of metrics: `docs/operations/admin-metrics.md`.

use crate::costly::{CostlyCounts, CostlyWork};
use crate::counters::AdminCounters;
use crate::disk::DiskSpace;
use crate::mirror::status::mirror_metrics;
use crate::publish::{NoticeCounters, notice_metrics, publisher_metrics, ship_metrics};
use crate::pull::status::pull_metrics;
use crate::referral::{ReferralCounts, ReferralResolver};
use crate::remote::{RemoteCounts, RemoteServices};
use crate::replication::receivers::ReceiverProgress;
use crate::service::AdminService;
use crate::state::AdminState;
use handle_auth::challenges::ChallengeCounts;
use handle_daemon::metrics::{MetricGroup, MetricNumber, MetricSeries, MetricsText, rows};
use handle_daemon::scrape::{ScrapeLimits, ScrapeSource};
use handle_daemon::{log, threads};
use handle_proto::printable::Printable;
use handle_session::SessionEndpoint;
use handle_source::{GuardedSource, RecordSources};
use handle_store::{CommitCounts, StoreError, StoreStats};
use std::time::Duration;

impl ScrapeSource for AdminState {
    fn limits(&self) -> ScrapeLimits {
        let observe = &self.config().observe;
        ScrapeLimits {
            connections: observe.http_connections,
            header_len_max: observe.http_header_bytes,
            timeout: Duration::from_millis(observe.http_timeout_ms.into()),
        }
    }

    fn metrics(&self) -> Result<String, String> {
        metrics(self).map_err(|_| "the store cannot be read".to_owned())
    }

    fn liveness(&self) -> Result<String, String> {
        let ended = || threads::problem().filter(|_| !self.is_draining());
        self.service.store.failure().or_else(ended).map_or_else(|| Ok("alive".to_owned()), Err)
    }

    fn readiness(&self) -> Result<String, String> {
        if self.is_draining() {
            return Err("draining".to_owned());
        }
        self.liveness()?;
        let took = self.health.look(&self.service.store)?;
        let low = self.disks.look(&self.config()).into_iter().filter(|space| space.is_low);
        let low: String = low.map(|space| format!("; the disk of {} is nearly full", space.of)).collect();
        Ok(format!("ready: written and read back in {took:?}{low}"))
    }
}

/// All metrics as text.
///
/// # Errors
/// When the store cannot be read.
pub fn metrics(state: &AdminState) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let reading = MetricsReading::take(state)?;
    let mut text = MetricsText::default();
    text.add_all(AdminCounters::rows(), reading.counters.values());
    text.add_table(process_metrics(), &reading);
    text.add_table(client_metrics(), &reading);
    if let Some(sources) = reading.service.decision.sources() {
        text.add_table(source_metrics(), sources);
    }
    let pulls = state.pulls.status();
    if !pulls.is_empty() {
        text.add_table(pull_metrics(), &pulls);
    }
    if let Some(publisher) = &state.publisher {
        text.add_table(publisher_metrics(), &publisher.status());
        if let Some(status) = publisher.ship_status() {
            text.add_table(ship_metrics(), &status);
        }
        if state.config().publish.notify.listen.is_some() {
            text.add_all(NoticeCounters::rows(), state.notices.counters.values());
            text.add_table(notice_metrics(), &state.notices);
        }
    }
    if let Some(mirror) = &state.mirror {
        text.add_table(mirror_metrics(), &mirror.status());
    }
    Ok(text.finish()?)
}

/// The metrics of `handle-admin`, by the tables of `docs/operations/admin-metrics.md`.
#[must_use]
pub fn metric_groups() -> Vec<MetricGroup> {
    let process = [AdminCounters::rows(), rows(process_metrics()), rows(client_metrics())].concat();
    let notices = [NoticeCounters::rows(), rows(notice_metrics())].concat();
    let groups = [
        ("process", process),
        ("sources", rows(source_metrics())),
        ("pulls", rows(pull_metrics())),
        ("publisher", rows(publisher_metrics())),
        ("ship", rows(ship_metrics())),
        ("notices", notices),
        ("mirror", rows(mirror_metrics())),
    ];
    groups.into_iter().map(|(name, rows)| MetricGroup { name, rows }).collect()
}

/// The source of all metrics. Numbers that take a lock or a transaction are read once.
struct MetricsReading<'s> {
    state: &'s AdminState,
    service: &'s AdminService,
    counters: &'s AdminCounters,
    store: StoreStats,
    commits: CommitCounts,
    challenges: ChallengeCounts,
    costly: CostlyCounts,
    disks: Vec<DiskSpace>,
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
            challenges: service.proof.challenges().counts(),
            costly: service.proof.costly().map(CostlyWork::counts).unwrap_or_default(),
            disks: state.disks.look(&state.config()),
        })
    }

    /// A number of each disk where it is known, labelled by the directory on it.
    fn disks<N: Into<MetricNumber>>(&self, number: fn(&DiskSpace) -> Option<N>) -> MetricSeries {
        MetricSeries::by_label(self.disks.iter().filter_map(|space| Some((space.of, number(space)?))))
    }
}

handle_daemon::metrics! {
    /// Requests, connections and the store.
    fn process_metrics<'s>(MetricsReading<'s>), "handle_admin_" {
        /// Requests answered.
        counter requests [operation, code] = |reading| {
            MetricSeries::by_labels(reading.counters.requests.by_operation())
        };
        /// Bytes of incomplete requests, without the first 4096 of each; at most `tcp.input_bytes`.
        gauge connections_input_bytes = |reading| reading.state.connections.input_len();
        /// Bytes of answers that their clients have not read.
        gauge connections_unread_bytes = |reading| reading.state.connections.unread_len();
        /// Open connections.
        gauge connections_open = |reading| reading.state.connections.count();
        /// Requests in progress, at most `tcp.requests`.
        gauge requests_working = |reading| reading.state.connections.working();
        /// Commits synced to disk.
        counter store_commits = |reading| reading.commits.commits;
        /// Changes in these commits.
        counter store_changes = |reading| reading.commits.changes;
        /// Changes waiting for the writer, at most 1024.
        gauge store_waiting = |reading| reading.service.store.waiting();
        /// 1 after a write to the store has failed; the process then exits.
        gauge store_failed = |reading| reading.service.store.failure().is_some();
        /// Records in the store.
        gauge store_records = |reading| reading.store.records;
        /// Values of these records.
        gauge store_values = |reading| reading.store.values;
        /// Bytes of names and values.
        gauge store_bytes = |reading| reading.store.bytes;
        /// Homed prefixes.
        gauge store_homed_prefixes = |reading| reading.store.homed_prefixes;
        /// Number of the last transaction.
        gauge store_last_transaction = |reading| reading.store.last_transaction;
        /// Transactions in the log.
        gauge store_log_transactions = |reading| reading.store.log_transactions;
        /// Lines of the audit log: `written`, `left_out` because of limits, or `lost` to the log of
        /// the process, as the file could not be written.
        counter audit_lines [event] = |reading| MetricSeries::by_label(reading.service.audit.counts());
        /// Free bytes on the file systems of `store`, `publish` and `audit`.
        gauge disk_free_bytes [of] = |reading| reading.disks(|disk| disk.free_bytes);
        /// 1 while fewer than `limits.disk_free_bytes` are free.
        gauge disk_low [of] = |reading| reading.disks(|disk| Some(disk.is_low));
        /// Lines of the log that could not be written to standard error.
        counter log_lines_lost = |_it| log::lines_lost();
        /// Threads and tasks that have ended by a bug; health checks fail, and `status` names them.
        gauge threads_ended = |_it| threads::ended().len();
        /// Start time of the process, in seconds since 1970.
        gauge start_time_seconds = |reading| reading.state.started_unix_ms() / 1000;
    }
}

handle_daemon::metrics! {
    /// Sources of records.
    fn source_metrics<'s>(RecordSources), "handle_admin_source_" {
        /// Requests for records of a source: `found`, `absent`, or `cached`; without an answer
        /// `busy` because of `outstanding`, `paused` after five failures, `late` after
        /// `timeout_ms`, `unreachable`, `refused` by the source, `too_long`, or `invalid` by the
        /// contract.
        counter requests [source, result] = |sources| {
            MetricSeries::by_labels(sources.iter().flat_map(|source| {
                let name = source.name();
                source.counts().by_result().map(|(result, count)| ([name.to_owned(), result.to_owned()], count))
            }))
        };
        /// Requests in progress, at most `outstanding`.
        gauge outstanding [source] = |sources| by_source(sources, GuardedSource::outstanding);
        /// 1 while the source is paused, because it has not answered repeatedly.
        gauge paused [source] = |sources| by_source(sources, GuardedSource::is_paused);
        /// Bytes of cached answers, at most `cache_bytes`.
        gauge cache_bytes [source] = |sources| by_source(sources, GuardedSource::cache_bytes);
    }
}

fn by_source<N: Into<MetricNumber>>(
    sources: &RecordSources,
    number: fn(&GuardedSource) -> N,
) -> MetricSeries {
    MetricSeries::by_label(sources.iter().map(|source| (source.name(), number(source))))
}

handle_daemon::metrics! {
    /// Challenges, costly work, sessions and other services.
    fn client_metrics<'s>(MetricsReading<'s>), "handle_admin_" {
        /// Challenges issued.
        counter challenges_issued = |reading| reading.challenges.issued;
        /// Challenges answered, correctly or not.
        counter challenges_answered = |reading| reading.challenges.taken;
        /// Challenges that expired without an answer.
        counter challenges_expired = |reading| reading.challenges.expired;
        /// Challenges displaced by newer ones.
        counter challenges_displaced = |reading| reading.challenges.displaced;
        /// Challenges waiting for an answer.
        gauge challenges_waiting = |reading| reading.service.proof.challenges().len();
        /// Work done for requesters, in rounds of PBKDF2 and operations of equal cost.
        counter costly_units = |reading| reading.costly.units;
        /// Requests refused because the queue for such work was full.
        counter costly_refused = |reading| reading.costly.refused;
        /// Requests waiting for key exchanges, derived keys or signatures.
        gauge costly_waiting = |reading| reading.costly.waiting;
        /// Referrals for clients that do not understand them: `resolved`, `unresolved` without an
        /// answer, `refused` as too many.
        counter referrals [event] = |reading| referral_events(reading.service);
        /// Sessions in the table of this process, for example while `handled` is down: `opened`,
        /// `adopted` from another process over the same database, `ended` by their client,
        /// `expired`, `displaced` by newer ones, refused by a full table (`refused_full`), or sent
        /// to TCP as too many unproven ones came over UDP (`sent_to_tcp`).
        counter sessions [event] = |reading| {
            reading.service.proof.sessions().map(session_events)
        };
        /// Open sessions in the table of this process.
        gauge sessions_open = |reading| reading.service.proof.sessions().map_or(0, |all| all.own().len());
        /// In sessions of either process: set-ups that succeeded (`set_up`), failed to agree on a
        /// key (`disagreed`) or found the table full (`refused`); messages with a valid and new
        /// (`with_mac`), invalid (`wrong_mac`) or repeated (`replayed`) MAC; encrypted messages
        /// `decrypted` or `undecryptable`.
        counter session_messages [event] = |reading| {
            reading.service.proof.sessions().map(|all| MetricSeries::by_label(all.counts().by_name()))
        };
        /// Streams for mirrors that are being sent, at most `replication.streams`.
        gauge streams_open = |reading| reading.service.replication.as_ref().map_or(0, |all| all.streams_count());
        /// The last transaction of each mirror, by its identity and the position of its server in
        /// its site.
        gauge receiver_transaction [identity, server] = |reading| {
            receiver_series(reading, |progress, _| progress.last_transaction)
        };
        /// Transactions that each mirror has not received yet.
        gauge receiver_lag [identity, server] = |reading| {
            receiver_series(reading, |progress, last| last.saturating_sub(progress.last_transaction))
        };
        /// Time of the last request of each mirror, in seconds since 1970.
        gauge receiver_asked_seconds [identity, server] = |reading| {
            receiver_series(reading, |progress, _| progress.asked_unix_ms / 1000)
        };
        /// With `[remote]`: queries about identities to other services (`sent`), of these answered
        /// by the cache (`cached`) or by no server (`unanswered`); not sent as too many
        /// (`refused`), or as one about the same handle recently got no answer (`recently_silent`).
        counter remote [event] = |reading| remote_events(reading.service);
        /// Requests waiting for other services, at most 16.
        gauge remote_waiting = |reading| reading.service.decision.remote().map_or(0, RemoteServices::asking);
    }
}

/// A number for each receiver of streams, made by `number` from its progress and the last
/// transaction of the store.
fn receiver_series(
    reading: &MetricsReading<'_>,
    number: impl Fn(&ReceiverProgress, u64) -> u64,
) -> MetricSeries {
    let all = reading.service.replication.as_ref().map(|it| it.receivers().all()).unwrap_or_default();
    MetricSeries::with_labels(all.into_iter().map(|(key, progress)| {
        let labels = vec![Printable(&key.identity).to_string(), key.server_at.to_string()];
        (labels, number(&progress, reading.store.last_transaction))
    }))
}

fn session_events(sessions: &SessionEndpoint) -> MetricSeries {
    let counts = sessions.own().counts();
    MetricSeries::by_label(counts.by_name().into_iter().chain([("adopted", counts.adopted)]))
}

fn remote_events(service: &AdminService) -> MetricSeries {
    let RemoteCounts { questions, unanswered, refused, recently_silent, cached } =
        service.decision.remote().map(RemoteServices::counts).unwrap_or_default();
    MetricSeries::by_label([
        ("sent", questions),
        ("unanswered", unanswered),
        ("refused", refused),
        ("recently_silent", recently_silent),
        ("cached", cached),
    ])
}

fn referral_events(service: &AdminService) -> MetricSeries {
    let ReferralCounts { resolved, unresolved, refused } =
        service.decision.referrals().map(ReferralResolver::counts).unwrap_or_default();
    MetricSeries::by_label([("resolved", resolved), ("unresolved", unresolved), ("refused", refused)])
}
