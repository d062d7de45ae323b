//! Telemetry of a worker: answer times, source networks and the query log.

use crate::clock::WorkerClock;
use crate::config::Config;
use crate::counters::{AnswerPath, Counters, Transport};
use crate::latency::Stopwatch;
use crate::query_log::QueryLogTap;
use crate::slow::queue::SlowJob;
use crate::sources::SourceSampler;
use crate::state::ServerState;
use handle_net::Peer;
use handle_proto::ResponseCode;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Telemetry of one worker.
#[derive(Debug)]
pub(crate) struct WorkerTelemetry {
    shared: Arc<ServerState>,
    at: usize,
    /// Selects the batches that are measured.
    stopwatch: Stopwatch,
    /// Start of the batch and the number of answers before it, if the batch is measured.
    measured_since: Option<(Instant, u64)>,
    /// Selects the turns of connections that are measured.
    connections_stopwatch: Stopwatch,
    /// Whether answers of the slow path are measured.
    measures: bool,
    /// Selects the datagrams whose source is noted.
    sampler: SourceSampler,
    /// The query log; `None` when disabled.
    tap: Option<QueryLogTap>,
}

impl WorkerTelemetry {
    pub(crate) fn new(config: &Config, shared: &Arc<ServerState>, at: usize) -> Self {
        let observe = &config.observe;
        Self {
            shared: Arc::clone(shared),
            at,
            stopwatch: Stopwatch::new(observe.latency_every),
            measured_since: None,
            connections_stopwatch: Stopwatch::new(observe.latency_every),
            measures: observe.latency_every > 0,
            sampler: SourceSampler::new(observe.sample_sources_every(), observe.sources_bits(), at as u64),
            tap: shared.query_log.clone().map(|log| QueryLogTap::new(log, &config.query_log)),
        }
    }

    /// Applies other settings.
    pub(crate) fn set(&mut self, config: &Config) {
        let observe = &config.observe;
        self.stopwatch = Stopwatch::new(observe.latency_every);
        self.connections_stopwatch = self.stopwatch;
        self.measures = observe.latency_every > 0;
        self.sampler.set(
            &self.shared.sources[self.at],
            observe.sample_sources_every(),
            observe.sources_bits(),
        );
        if let Some(tap) = &mut self.tap {
            tap.set(&config.query_log);
        }
    }

    /// Sets the current time.
    #[inline]
    pub(crate) fn set_time(&mut self, clock: &WorkerClock) {
        if let Some(tap) = &mut self.tap {
            tap.set_time(clock.now(), clock.now_unix());
        }
    }

    /// Called when a batch that is not empty has been received, at `now`.
    #[inline]
    pub(crate) fn begin(&mut self, now: Instant, counters: &Counters) {
        let is_measured = self.stopwatch.measures_next();
        self.measured_since = is_measured.then(|| (now, counters.requests_answered.get()));
    }

    /// Notes the sources of a sample of `count` datagrams; `source` returns the source address of
    /// the datagram at a position.
    #[inline]
    pub(crate) fn sample_sources(
        &mut self,
        clock: &WorkerClock,
        count: usize,
        source: impl Fn(usize) -> IpAddr,
    ) {
        self.sampler.sample(&self.shared.sources[self.at], clock.now_unix().as_secs(), count, source);
    }

    /// Called when an answer with `code` to `request`, a message with its envelope, is in the
    /// outbox.
    #[inline]
    pub(crate) fn answered<'r>(
        &mut self,
        peer: Peer,
        request: impl FnOnce() -> &'r [u8],
        code: ResponseCode,
        counters: &Counters,
    ) {
        if let Some(tap) = &mut self.tap {
            tap.record(Transport::Udp, peer.remote().ip(), request(), code, counters);
        }
    }

    /// Called when the answers to a batch have been handed to the kernel.
    #[inline]
    pub(crate) fn end(&mut self, counters: &Counters) {
        if let Some((since, answered_before)) = self.measured_since.take() {
            let answered = counters.requests_answered.get() - answered_before;
            counters.answer_times(Transport::Udp, AnswerPath::Worker).add(since.elapsed(), answered);
        }
    }

    /// Called when data has arrived on connections, at `now`. Returns that time if the answers are
    /// measured.
    pub(crate) fn begin_connections(&mut self, now: Instant) -> Option<Instant> {
        self.connections_stopwatch.measures_next().then_some(now)
    }

    /// Called when `answered` answers to data that arrived at `since` have been sent.
    pub(crate) fn end_connections(&self, since: Option<Instant>, answered: u64, counters: &Counters) {
        if let Some(since) = since.filter(|_| answered > 0) {
            counters.answer_times(Transport::Tcp, AnswerPath::Worker).add(since.elapsed(), answered);
        }
    }

    /// The query log for answers over connections; `None` when disabled.
    pub(crate) const fn tap(&mut self) -> Option<&mut QueryLogTap> {
        self.tap.as_mut()
    }

    /// Called when the answer of a job has been sent.
    pub(crate) fn sent(&mut self, job: &SlowJob, counters: &Counters) {
        let transport = job.route.transport();
        if self.measures {
            counters.answer_times(transport, AnswerPath::Slow).add(job.since.elapsed(), 1);
        }
        if let Some(tap) = &mut self.tap {
            tap.record_since(job.since, transport, job.route.origin().ip, &job.request, job.code, counters);
        }
    }
}
