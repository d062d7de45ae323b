//! `/metrics`: all metrics as OpenMetrics text.
//!
//! Metrics of the workers come from [`Counters::TABLE`], so a new counter needs no code here.

use super::ObserverState;
use super::health::{liveness, readiness};
use super::process::ProcessFigures;
use crate::counters::{AnswerPath, CounterKind, Counters, Transport};
use crate::latency::AnswerTimes;
use crate::slow::stats::SlowCounters;
use handle_daemon::http::HttpStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder};
use prometheus_client::metrics::MetricType;
use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// Reads all values when it is asked to encode them.
#[derive(Debug)]
pub(super) struct Metrics(pub(super) Arc<ObserverState>);

/// Labels of one series.
type MetricLabels<'l> = Vec<(&'l str, String)>;

fn labels<const N: usize>(labels: [(&str, impl ToString); N]) -> MetricLabels<'_> {
    labels.into_iter().map(|(name, value)| (name, value.to_string())).collect()
}

/// Encodes one metric, series by series.
struct MetricFamily<'e>(MetricEncoder<'e>);

impl MetricFamily<'_> {
    fn counter(&mut self, labels: &MetricLabels<'_>, value: impl EncodeCounterValue) -> Result<(), Error> {
        match labels.is_empty() {
            true => self.0.encode_counter::<MetricLabels<'_>, _, f64>(&value, None),
            false => self.0.encode_family(labels)?.encode_counter::<MetricLabels<'_>, _, f64>(&value, None),
        }
    }

    fn histogram(&mut self, labels: &MetricLabels<'_>, times: &AnswerTimes) -> Result<(), Error> {
        let (sum_s, count, buckets) = (times.sum_s(), times.count(), times.by_octave());
        self.0.encode_family(labels)?.encode_histogram::<MetricLabels<'_>>(sum_s, count, &buckets, None)
    }

    fn gauge(&mut self, labels: &MetricLabels<'_>, value: impl EncodeGaugeValue) -> Result<(), Error> {
        match labels.is_empty() {
            true => self.0.encode_gauge(&value),
            false => self.0.encode_family(labels)?.encode_gauge(&value),
        }
    }
}

/// Encodes metrics one after the other.
struct MetricWriter<'e>(DescriptorEncoder<'e>);

impl MetricWriter<'_> {
    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        write: impl FnOnce(MetricFamily<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        write(MetricFamily(self.0.encode_descriptor(name, help, None, kind)?))
    }

    /// A metric of one series without labels.
    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> Result<(), Error> {
        self.family(name, help, MetricType::Gauge, |mut family| family.gauge(&MetricLabels::new(), value))
    }
}

/// A count of things as the value of a gauge.
fn gauge(count: usize) -> u64 {
    count as u64
}

/// Seconds since 1970, with their fraction.
fn unix_s(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut out = MetricWriter(encoder);
        self.counters(&mut out)?;
        self.replies(&mut out)?;
        self.slow(&mut out)?;
        self.times(&mut out)?;
        self.sources(&mut out)?;
        self.query_log(&mut out)?;
        self.set(&mut out)?;
        self.workers(&mut out)?;
        self.health(&mut out)?;
        self.process(&mut out)
    }
}

impl Metrics {
    /// The table of counters: one metric for each name, with a series for each row and worker.
    fn counters(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let values: Vec<_> = self.0.shared.shards.iter().map(Counters::values).collect();
        let table = Counters::TABLE;
        for (first, row) in table.iter().enumerate() {
            if table[..first].iter().any(|earlier| earlier.metric == row.metric) {
                continue;
            }
            let rows: Vec<_> =
                table.iter().enumerate().filter(|(_, other)| other.metric == row.metric).collect();
            let help = match row.help.split_once(':') {
                Some((what, _)) if rows.len() > 1 => format!("{what}."),
                _ => row.help.to_owned(),
            };
            let kind = match row.kind {
                CounterKind::counter => MetricType::Counter,
                CounterKind::gauge => MetricType::Gauge,
            };
            out.family(&format!("handled_{}", row.metric), &help, kind, |mut family| {
                for (at, row) in &rows {
                    for (shard, values) in values.iter().enumerate() {
                        let mut series: MetricLabels<'_> =
                            row.labels.iter().map(|&(name, value)| (name, value.to_owned())).collect();
                        series.push(("shard", shard.to_string()));
                        match row.kind {
                            CounterKind::counter => family.counter(&series, values[*at])?,
                            CounterKind::gauge => family.gauge(&series, values[*at])?,
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Replies and refusals, as sums over all workers. Kinds that have not occurred are included,
    /// so that the first occurrence shows as an increase.
    fn replies(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let shards = &self.0.shared.shards;
        out.family("handled_replies", "Replies by response code.", MetricType::Counter, |mut family| {
            for transport in Transport::ALL {
                for (code, count) in shards.replies(transport) {
                    family.counter(
                        &labels([("transport", transport.name().to_owned()), ("code", code.0.to_string())]),
                        count,
                    )?;
                }
            }
            Ok(())
        })?;
        let help = "Replies that are errors, by reason.";
        out.family("handled_refused", help, MetricType::Counter, |mut family| {
            shards
                .refused()
                .try_for_each(|(refused, count)| family.counter(&labels([("reason", refused.name())]), count))
        })
    }

    /// The slow path, if it is enabled.
    fn slow(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let Some(slow) = &self.0.shared.slow else { return Ok(()) };
        for ((name, help), sum) in SlowCounters::TABLE.iter().zip(slow.sums()) {
            let name = format!("handled_slow_{name}");
            out.family(&name, help, MetricType::Counter, |mut family| {
                family.counter(&MetricLabels::new(), sum)
            })?;
        }
        let (counts, waiting, bytes) = slow.challenges_now();
        let help = "Challenges, by outcome.";
        out.family("handled_slow_challenges", help, MetricType::Counter, |mut family| {
            [
                ("issued", counts.issued),
                ("answered", counts.taken),
                ("expired", counts.expired),
                ("displaced", counts.displaced),
                ("sent_to_tcp", counts.sent_to_tcp),
            ]
            .into_iter()
            .try_for_each(|(event, count)| family.counter(&labels([("event", event)]), count))
        })?;
        out.gauge(
            "handled_slow_requests_waiting",
            "Requests that wait for a slow thread.",
            gauge(slow.waiting()),
        )?;
        out.gauge("handled_slow_challenges_waiting", "Challenges that wait for an answer.", gauge(waiting))?;
        let help = "Bytes of the requests whose challenges are not answered yet.";
        out.gauge("handled_slow_challenges_bytes", help, gauge(bytes))?;
        if let Some(forward) = &slow.forward {
            let stats = forward.stats();
            let help = "Requests to forward to handle-admin, by outcome.";
            out.family("handled_forwarded", help, MetricType::Counter, |mut family| {
                stats
                    .events
                    .iter()
                    .try_for_each(|&(event, count)| family.counter(&labels([("event", event)]), count))
            })?;
            let help = "Requests that are being forwarded to handle-admin, or wait for it.";
            out.gauge("handled_forward_waiting", help, gauge(stats.waiting))?;
            out.gauge("handled_forward_listings", "Listings under way.", gauge(stats.listings))?;
            let help = "1 while forwarding pauses because handle-admin did not answer in time.";
            out.gauge("handled_forward_backing_off", help, u32::from(stats.is_open))?;
        }
        let Some(sessions) = &slow.sessions else { return Ok(()) };
        let help = "Sessions, by outcome.";
        out.family("handled_sessions", help, MetricType::Counter, |mut family| {
            let mut counts = sessions.table.counts().by_name().into_iter();
            counts.try_for_each(|(event, count)| family.counter(&labels([("event", event)]), count))
        })?;
        out.gauge("handled_sessions_open", "Sessions that there are.", gauge(sessions.table.len()))
    }

    /// Answer times by transport, path and worker.
    fn times(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let help =
            "Time from receiving a request until its answer is with the kernel, for each measured answer.";
        out.family("handled_answer_seconds", help, MetricType::Histogram, |mut family| {
            for (transport, way) in
                Transport::ALL.into_iter().flat_map(|transport| AnswerPath::ALL.map(|path| (transport, path)))
            {
                for (shard, counters) in self.0.shared.shards.iter().enumerate() {
                    let times = AnswerTimes::of([counters.answer_times(transport, way)]);
                    let series = labels([
                        ("transport", transport.name().to_owned()),
                        ("way", way.name().to_owned()),
                        ("shard", shard.to_string()),
                    ]);
                    family.histogram(&series, &times)?;
                }
            }
            Ok(())
        })
    }

    /// The busiest source networks.
    fn sources(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let shared = &self.0.shared;
        let bits = shared.settings.current().config.observe.sources_bits();
        let help = "Share of the networks that send most, among the sampled datagrams of the last minutes.";
        out.family("handled_top_source_share", help, MetricType::Gauge, |mut family| {
            let mut top = shared.top_sources().into_iter();
            top.try_for_each(|(prefix, share)| family.gauge(&labels([("prefix", prefix.show(bits))]), share))
        })
    }

    /// Lines of the query log by outcome.
    fn query_log(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let (written, failed) = self.0.shared.query_log.as_ref().map_or((0, 0), |log| log.counts());
        let numbers = [
            ("handled_query_log_written", "Lines of the query log written.", written),
            (
                "handled_query_log_write_failed",
                "Lines of the query log lost because the file could not be written.",
                failed,
            ),
        ];
        numbers.into_iter().try_for_each(|(name, help, count)| {
            out.family(name, help, MetricType::Counter, |mut family| {
                family.counter(&MetricLabels::new(), count)
            })
        })
    }

    /// The published set.
    fn set(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let live = &self.0.shared.live;
        let set = live.current();
        let created = SystemTime::UNIX_EPOCH + Duration::from_millis(set.created_unix_ms());
        let age = SystemTime::now().duration_since(created).unwrap_or_default();
        out.gauge(
            "handled_snapshot_generation",
            "Number of the published set that is served.",
            set.generation(),
        )?;
        out.gauge("handled_snapshot_age_seconds", "Time since the set was published.", age.as_secs_f64())?;
        out.gauge("handled_snapshot_layers", "Layers of the set.", set.layers().len() as u64)?;
        out.gauge(
            "handled_snapshot_handles",
            "Handles in the set; an upper bound where layers overlap.",
            set.handles_count(),
        )?;
        out.gauge("handled_snapshot_bytes", "Bytes of the layers of the set.", set.bytes_mapped())?;
        let mapped = handle_snapshot::map::mapped_bytes_now();
        out.gauge(
            "handled_mapped_bytes",
            "Bytes of all layers mapped or copied now, retired ones among them.",
            mapped,
        )?;
        let (whole, damaged) = (live.ledger.whole_count() as u64, live.ledger.damaged().len() as u64);
        let help = "Layers of the set of which every byte has been verified.";
        out.gauge("handled_snapshot_layers_verified", help, whole)?;
        let help = "Damaged layers of the set; requests for their damaged records get an error.";
        out.gauge("handled_snapshot_layers_damaged", help, damaged)?;
        let help = "Whether the newest published set cannot be opened and the previous one is served.";
        out.gauge("handled_snapshot_failing", help, u64::from(live.is_failing()))?;
        out.family(
            "handled_snapshot_reloads",
            "New sets taken while serving.",
            MetricType::Counter,
            |mut family| family.counter(&MetricLabels::new(), live.reloads_count()),
        )
    }

    /// The workers and their datapaths.
    fn workers(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let shared = &self.0.shared;
        let help = "Whether a worker runs, with its address and its datapath.";
        out.family("handled_worker_running", help, MetricType::Gauge, |mut family| {
            for worker in shared.workers.get().into_iter().flatten() {
                let running = shared.running[worker.at].load(Ordering::Relaxed);
                let series = labels([
                    ("shard", worker.at.to_string()),
                    ("address", worker.address.to_string()),
                    ("datapath", worker.kind.to_string()),
                ]);
                family.gauge(&series, u64::from(running))?;
            }
            Ok(())
        })?;
        let help = "Time since the last turn of the worker, sampled several times a second.";
        let ages: Vec<_> = self.0.heartbeat().ages(Instant::now()).collect();
        out.family("handled_worker_idle_seconds", help, MetricType::Gauge, |mut family| {
            let mut ages = ages.iter().enumerate();
            ages.try_for_each(|(shard, age)| family.gauge(&labels([("shard", shard)]), age.as_secs_f64()))
        })
    }

    /// The results of `/healthz` and `/readyz`, and the use of this endpoint.
    fn health(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let state = &*self.0;
        let (now, stalled_after) = (Instant::now(), state.stalled_after());
        let alive = liveness(&state.shared, &state.heartbeat(), now, stalled_after).is_empty();
        let ready = readiness(&state.shared, &state.heartbeat(), now, stalled_after).is_empty();
        out.gauge("handled_healthy", "Whether /healthz says so.", u64::from(alive))?;
        out.gauge("handled_ready", "Whether /readyz says so.", u64::from(ready))?;
        out.gauge(
            "handled_draining",
            "Whether the server is about to stop.",
            u64::from(state.shared.is_draining()),
        )?;
        out.family(
            "handled_http_requests",
            "HTTP requests by status.",
            MetricType::Counter,
            |mut family| {
                HttpStatus::ALL.into_iter().try_for_each(|status| {
                    let count = state.http_requests[status as usize].load(Ordering::Relaxed);
                    family.counter(&labels([("status", status.code())]), count)
                })
            },
        )?;
        let count = state.http_abandoned.load(Ordering::Relaxed);
        let help = "HTTP connections that ended without an answer: too slow, or closed.";
        out.family("handled_http_abandoned", help, MetricType::Counter, |mut family| {
            family.counter(&MetricLabels::new(), count)
        })
    }

    /// Process metrics, under the names that Prometheus clients use everywhere.
    fn process(&self, out: &mut MetricWriter<'_>) -> Result<(), Error> {
        let build = labels([
            ("version", env!("CARGO_PKG_VERSION")),
            ("architecture", std::env::consts::ARCH),
            ("profile", if cfg!(debug_assertions) { "debug" } else { "release" }),
        ]);
        out.family("handled_build", "What is running.", MetricType::Info, |mut family| {
            family.0.encode_info(&build)
        })?;
        let (started, process) = (self.0.shared.started, ProcessFigures::now());
        let uptime = SystemTime::now().duration_since(started).unwrap_or_default();
        out.gauge("handled_uptime_seconds", "Time since serving began.", uptime.as_secs_f64())?;
        out.gauge(
            "process_start_time_seconds",
            "When serving began, in seconds since 1970.",
            unix_s(started),
        )?;
        let numbers = [
            ("process_open_fds", "Open file descriptors.", process.open_fds),
            ("process_max_fds", "Most file descriptors that may be open.", process.max_fds),
            (
                "process_resident_memory_bytes",
                "Memory in use, mapped files among it.",
                process.resident_bytes,
            ),
        ];
        for (name, help, value) in numbers {
            if let Some(value) = value {
                out.gauge(name, help, value)?;
            }
        }
        let Some(cpu_s) = process.cpu_s else { return Ok(()) };
        let help = "Processor time of all threads, user and system.";
        out.family("process_cpu_seconds", help, MetricType::Counter, |mut family| {
            family.counter(&MetricLabels::new(), cpu_s)
        })
    }
}
