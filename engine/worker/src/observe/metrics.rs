//! `/metrics`: all metrics as OpenMetrics text.
//!
//! Metrics of the workers come from [`Counters::TABLE`] and those of slow threads from
//! [`SlowCounters`], so a new counter needs no code here.

use super::ObserverState;
use super::health::{liveness, readiness};
use super::process::ProcessFigures;
use crate::counters::{AnswerPath, Counters, Transport};
use crate::forward::ForwardStats;
use crate::latency::AnswerTimes;
use crate::live::LiveSet;
use crate::slow::SlowPath;
use crate::slow::stats::SlowCounters;
use crate::state::ServerState;
use handle_auth::challenges::ChallengeCounts;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::http::HttpStatus;
use handle_daemon::line_log::LineCounts;
use handle_daemon::metrics::{MetricGroup, MetricNumber, MetricSeries, MetricsText, rows};
use handle_daemon::{log, threads};
use handle_session::SessionTable;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// What the metrics of one scrape are read from. Numbers that take a lock or a system call are read
/// once.
struct MetricsReading<'s> {
    state: &'s ObserverState,
    shared: &'s ServerState,
    set: Arc<LiveSet>,
    now: Instant,
    uptime: Duration,
    process: ProcessFigures,
}

impl<'s> MetricsReading<'s> {
    fn take(state: &'s ObserverState) -> Self {
        let shared = &*state.shared;
        Self {
            state,
            shared,
            set: shared.live.current(),
            now: Instant::now(),
            uptime: SystemTime::now().duration_since(shared.started).unwrap_or_default(),
            process: ProcessFigures::now(),
        }
    }

    /// The lines of the query log.
    fn query_log(&self) -> LineCounts {
        self.shared.query_log.as_ref().map_or_else(LineCounts::default, |log| log.counts())
    }
}

/// The slow path, if it is enabled.
struct SlowReading<'s> {
    slow: &'s SlowPath,
    challenges: ChallengeCounts,
    challenges_waiting: usize,
    challenges_len: usize,
    forward: Option<ForwardStats>,
    sessions: Option<&'s SessionTable>,
}

impl<'s> SlowReading<'s> {
    fn take(slow: &'s SlowPath) -> Self {
        let (challenges, challenges_waiting, challenges_len) = slow.challenges_now();
        let forward = slow.forward.as_ref().map(|forward| forward.stats());
        let sessions = slow.sessions.as_ref().map(|sessions| &sessions.table);
        Self { slow, challenges, challenges_waiting, challenges_len, forward, sessions }
    }
}

/// All metrics as text.
pub(super) fn metrics(state: &ObserverState) -> Result<String, String> {
    let reading = MetricsReading::take(state);
    let mut text = MetricsText::default();
    for (row, series) in reading.shared.shards.metrics() {
        text.add(row, series);
    }
    text.add_table(request_metrics(), &reading);
    if let Some(slow) = &reading.shared.slow {
        text.add_all(SlowCounters::rows(), slow.sums());
        text.add_table(slow_metrics(), &SlowReading::take(slow));
    }
    if let Some(extension) = &reading.shared.hooks.extension {
        extension.add_metrics(&mut text);
    }
    text.add_table(set_metrics(), &reading);
    text.add_table(health_metrics(), &reading);
    text.add_table(process_metrics(), &reading);
    text.finish()
}

/// The metrics of `handled`, by the tables of `docs/operations/metrics.md`.
#[must_use]
pub fn metric_groups() -> Vec<MetricGroup> {
    let counters = Counters::metric_rows().into_iter().map(|(row, _)| row);
    let slow = SlowCounters::rows();
    let groups = [
        ("requests", counters.chain(rows(request_metrics())).collect()),
        ("slow path", [slow, rows(slow_metrics())].concat()),
        ("set", rows(set_metrics())),
        ("health", rows(health_metrics())),
        ("process", rows(process_metrics())),
    ];
    groups.into_iter().map(|(name, rows)| MetricGroup { name, rows }).collect()
}

handle_daemon::metrics! {
    /// Requests and their answers. Kinds of replies that have not occurred are included, so that
    /// the first occurrence shows as an increase.
    fn request_metrics<'s>(MetricsReading<'s>), "handled_" {
        /// Replies by response code.
        counter replies [transport, code] = |reading| replies(reading.shared);
        /// Error replies, by what is wrong with the request.
        counter refused [reason] = |reading| {
            let refused = reading.shared.shards.refused();
            MetricSeries::by_label(refused.map(|(reason, count)| (reason.name(), count)))
        };
        /// Time from receiving a batch until its answers are with the kernel, for measured answers;
        /// `way` is `worker`, or `slow` for the slow path.
        histogram answer_seconds [transport, way, shard] = |reading| answer_times(reading.shared);
        /// Share of the networks that send most, among the sampled datagrams of the last minutes.
        gauge top_source_share [prefix] = |reading| top_sources(reading.shared);
        /// Lines of the query log written to the file.
        counter query_log_written = |reading| reading.query_log().written;
        /// Lines of the query log lost because the file could not be written.
        counter query_log_write_failed = |reading| reading.query_log().lost;
    }
}

fn replies(shared: &ServerState) -> MetricSeries {
    let name = |transport: Transport| transport.name().to_owned();
    MetricSeries::by_labels(Transport::ALL.into_iter().flat_map(|transport| {
        let replies = shared.shards.replies(transport);
        replies.map(move |(code, count)| ([name(transport), code.0.to_string()], count))
    }))
}

fn answer_times(shared: &ServerState) -> MetricSeries {
    let ways = Transport::ALL.into_iter().flat_map(|transport| AnswerPath::ALL.map(|path| (transport, path)));
    MetricSeries::by_labels(ways.flat_map(|(transport, way)| {
        shared.shards.iter().enumerate().map(move |(shard, counters)| {
            let times = AnswerTimes::of([counters.answer_times(transport, way)]);
            let labels = [transport.name().to_owned(), way.name().to_owned(), shard.to_string()];
            let (sum_s, count, buckets) = (times.sum_s(), times.count(), times.by_octave());
            (labels, MetricNumber::Durations { sum_s, count, buckets })
        })
    }))
}

fn top_sources(shared: &ServerState) -> MetricSeries {
    let bits = shared.settings.current().config.observe.sources_bits();
    let sources = shared.top_sources().into_iter();
    MetricSeries::by_label(sources.map(|(prefix, share)| (prefix.show(bits), share)))
}

handle_daemon::metrics! {
    /// The slow path, forwarding and sessions.
    fn slow_metrics<'s>(SlowReading<'s>), "handled_" {
        /// Challenges `issued`, `answered`, `expired`, `displaced` by newer ones, or refused
        /// because a source has too many (`sent_to_tcp`).
        counter slow_challenges [event] = |reading| {
            let ChallengeCounts { issued, taken, expired, displaced, sent_to_tcp, .. } = reading.challenges;
            MetricSeries::by_label([
                ("issued", issued),
                ("answered", taken),
                ("expired", expired),
                ("displaced", displaced),
                ("sent_to_tcp", sent_to_tcp),
            ])
        };
        /// Requests waiting for a thread of the slow path.
        gauge slow_requests_waiting = |reading| reading.slow.waiting();
        /// Challenges waiting for an answer.
        gauge slow_challenges_waiting = |reading| reading.challenges_waiting;
        /// Bytes of the requests of waiting challenges.
        gauge slow_challenges_bytes = |reading| reading.challenges_len;
        /// Requests for `handle-admin`: `accepted` into the queue; `answered` (a listing at its
        /// end); refused because of the queue (`refused_full`), their source (`refused_of_source`)
        /// or too many listings (`refused_listing`); not sent, as it did not answer recently
        /// (`backed_off`); `timed_out`; `failed` to connect; listings whose client disconnected
        /// (`abandoned`).
        counter forwarded [event] = |reading| {
            reading.forward.as_ref().map(|stats| MetricSeries::by_label(stats.events.iter().copied()))
        };
        /// Requests that are forwarded or waiting.
        gauge forward_waiting = |reading| reading.forward.as_ref().map(|stats| stats.waiting);
        /// Listings in progress.
        gauge forward_listings = |reading| reading.forward.as_ref().map(|stats| stats.listings);
        /// 1 while requests are held back because `handle-admin` did not answer in time.
        gauge forward_backing_off = |reading| reading.forward.as_ref().map(|stats| stats.is_open);
        /// Sessions `opened`, `ended` by their client, `expired`, `displaced` by newer ones,
        /// refused by a full table (`refused_full`), or sent to TCP as too many unproven ones came
        /// over UDP (`sent_to_tcp`).
        counter sessions [event] = |reading| {
            reading.sessions.map(|table| MetricSeries::by_label(table.counts().by_name()))
        };
        /// Open sessions.
        gauge sessions_open = |reading| reading.sessions.map(SessionTable::len);
    }
}

handle_daemon::metrics! {
    /// The published set.
    fn set_metrics<'s>(MetricsReading<'s>), "handled_" {
        /// Generation of the set that is served.
        gauge snapshot_generation = |reading| reading.set.generation();
        /// Time since the set was published; 0 without a set.
        gauge snapshot_age_seconds = |reading| match reading.set.created_unix_ms() {
            0 => 0.0,
            created => now_unix_ms().saturating_sub(created) as f64 / 1000.0,
        };
        /// Time since the newest statement of the publisher about the set; 0 without keys of
        /// publishers.
        gauge snapshot_statement_age_seconds = |reading| {
            reading.shared.live.freshness().age_ms(now_unix_ms()).unwrap_or_default() as f64 / 1000.0
        };
        /// Seconds by which the newest statement of the publisher is ahead of this machine's clock,
        /// if refused for that; otherwise 0.
        gauge snapshot_statement_ahead_seconds = |reading| {
            reading.shared.live.freshness().statement_ahead_ms() as f64 / 1000.0
        };
        /// 1 while the set is stale; `/readyz` answers 503.
        gauge snapshot_stale = |reading| reading.shared.live.freshness().is_stale(now_unix_ms());
        /// Layers of the set.
        gauge snapshot_layers = |reading| reading.set.layers().len();
        /// Handles in the set; an upper bound if layers overlap.
        gauge snapshot_handles = |reading| reading.set.handles_count();
        /// Bytes of the layers of the set.
        gauge snapshot_bytes = |reading| reading.set.bytes_mapped();
        /// Bytes of all layers that are mapped or copied, including retired ones.
        gauge mapped_bytes = |_it| handle_snapshot::map::mapped_bytes_now();
        /// Layers whose every byte has been verified, since the start or before they went live.
        gauge snapshot_layers_verified = |reading| reading.shared.live.ledger.whole_count();
        /// Damaged layers; damaged records are answered with an error, and `/readyz` answers 503.
        gauge snapshot_layers_damaged = |reading| reading.shared.live.ledger.damaged().len();
        /// 1 while the newest published set cannot be opened, and the previous one is served.
        gauge snapshot_failing = |reading| reading.shared.live.is_failing();
        /// New sets taken while serving.
        counter snapshot_reloads = |reading| reading.shared.live.reloads_count();
    }
}

handle_daemon::metrics! {
    /// The workers, the health checks and this endpoint.
    fn health_metrics<'s>(MetricsReading<'s>), "handled_" {
        /// 1 while the worker runs.
        gauge worker_running [shard, address, datapath] = |reading| {
            MetricSeries::by_labels(reading.shared.workers.get().into_iter().flatten().map(|worker| {
                let is_running = reading.shared.running[worker.at].load(Ordering::Relaxed);
                ([worker.at.to_string(), worker.address.to_string(), worker.kind.to_string()], is_running)
            }))
        };
        /// Time for which a woken worker has made no turn, sampled several times a second.
        gauge worker_idle_seconds [shard] = |reading| {
            let ages: Vec<_> = reading.state.heartbeat().ages(reading.now).collect();
            MetricSeries::by_label(ages.iter().map(Duration::as_secs_f64).enumerate())
        };
        /// 1 if `/healthz` answers 200.
        gauge healthy = |reading| {
            let (heartbeat, stalled_after) = (reading.state.heartbeat(), reading.state.stalled_after());
            liveness(reading.shared, &heartbeat, reading.now, stalled_after).is_empty()
        };
        /// 1 if `/readyz` answers 200.
        gauge ready = |reading| {
            let (heartbeat, stalled_after) = (reading.state.heartbeat(), reading.state.stalled_after());
            readiness(reading.shared, &heartbeat, reading.now, stalled_after).is_empty()
        };
        /// 1 if the server is about to stop.
        gauge draining = |reading| reading.shared.is_draining();
        /// Requests to this endpoint that were answered.
        counter http_requests [status] = |reading| {
            let count = |status| reading.state.http_requests[status as usize].load(Ordering::Relaxed);
            MetricSeries::by_label(HttpStatus::ALL.map(|status| (status.code(), count(status))))
        };
        /// HTTP connections that ended without an answer: time-out, or closed by the client.
        counter http_abandoned = |reading| reading.state.http_abandoned.load(Ordering::Relaxed);
    }
}

handle_daemon::metrics! {
    /// The process; the names without `handled` are those that Prometheus clients use everywhere.
    fn process_metrics<'s>(MetricsReading<'s>), "" {
        /// The program that runs.
        info handled_build [version, architecture, profile] = |_it| {
            let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
            let labels = [env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, profile];
            MetricSeries::by_labels([(labels.map(str::to_owned), MetricNumber::Labels)])
        };
        /// Time since serving started.
        gauge handled_uptime_seconds = |reading| reading.uptime.as_secs_f64();
        /// When serving started, in seconds since 1970.
        gauge process_start_time_seconds = |reading| {
            reading.shared.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
        };
        /// Lines of the log that could not be written to standard error.
        counter handled_log_lines_lost = |_it| log::lines_lost();
        /// Threads and tasks that have ended by a bug; health checks fail, and `status` names them.
        gauge handled_threads_ended = |_it| threads::ended().len();
        /// Processor time of all threads, user and system.
        counter process_cpu_seconds = |reading| reading.process.cpu_s;
        /// Resident memory, including mapped files.
        gauge process_resident_memory_bytes = |reading| reading.process.resident_bytes;
        /// Open file descriptors.
        gauge process_open_fds = |reading| reading.process.open_fds;
        /// Most file descriptors that may be open.
        gauge process_max_fds = |reading| reading.process.max_fds;
    }
}
