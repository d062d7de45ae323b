//! A worker thread: waits for a batch, answers it and flushes the answers.

use crate::cache::{BatchCache, WorkerCache};
use crate::clock::WorkerClock;
use crate::config::Config;
use crate::live::{LiveSet, SetReader};
use crate::rate_limit::RateLimit;
use crate::sessions::sealer::SessionSealer;
use crate::settings::ActiveSettings;
use crate::slow::queue::JobRoute;
use crate::slow::shard::{ListingReader, SlowShard};
use crate::sockets::net_options;
use crate::state::ServerState;
use crate::tcp::worker::TcpWorker;
use crate::telemetry::WorkerTelemetry;
use crate::udp::{self, UdpWorker};
use crate::worker_info::WorkerInfo;
use crate::worker_parts::{WorkerParts, flush};
use anyhow::Context as _;
use handle_daemon::takeover::SocketKind;
use handle_net::Datapath;
use handle_resolver::{AnswerContext, MayCompute, ServiceFacts};
use handle_snapshot::map::MappedFile;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// Longest sleep of a worker. Requests, a new set, changed settings and a stop wake it earlier.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Delay between the last request and the periodic work before a worker sleeps, so that kernel
/// drops are counted promptly.
const TIMEOUT_SETTLING: Duration = Duration::from_millis(20);
/// Sleep of a worker while requests are on the slow path. The parts of a long listing become ready
/// without a wake-up.
const TIMEOUT_SLOW: Duration = Duration::from_millis(1);
/// While draining, a worker stops once no datagram has arrived for this long.
const DRAIN_QUIET: Duration = Duration::from_millis(20);
/// While draining, the time after which a worker stops receiving although datagrams still arrive.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// Number of batches between two rounds of periodic work under load, which is some milliseconds.
const BATCHES_UNTIL_LOOK: u32 = 256;

/// State of one worker thread, which answers on one socket.
pub(crate) struct Worker {
    shared: Arc<ServerState>,
    at: usize,
    path: Box<dyn Datapath>,
    udp: UdpWorker,
    /// Connections; `None` without TCP.
    tcp: Option<TcpWorker>,
    parts: WorkerParts,
    live: SetReader,
    /// The records of other services; `None` unless this is a caching server.
    cache: Option<WorkerCache>,
    /// Batches until the next round of periodic work.
    batches_until_look: u32,
    /// The settings in force and their generation.
    in_force: Arc<ActiveSettings>,
    settings_generation: u64,
    /// Whether nothing has arrived since the last periodic work.
    has_settled: bool,
}

impl Worker {
    /// Opens the datapath on `socket`. Must be called on the thread that will run the worker.
    pub(crate) fn open(
        config: &Config,
        shared: &Arc<ServerState>,
        at: usize,
        socket: UdpSocket,
        listeners: Vec<TcpListener>,
        core: Option<usize>,
    ) -> anyhow::Result<(Self, WorkerInfo)> {
        if let Some(core) = core {
            handle_net::pin_to_core(core).with_context(|| {
                format!("cannot run on core {core} (which are allowed: taskset -p {})", std::process::id())
            })?;
        }
        let address = socket.local_addr()?;
        let mut opened = handle_net::open_on(socket, config.datapath.into(), &net_options(config, address))
            .with_context(|| format!("cannot open the datapath on {address}"))?;
        let tcp = (!listeners.is_empty())
            .then(|| TcpWorker::open(config, &mut *opened.path, listeners))
            .transpose()
            .with_context(|| format!("cannot accept connections on {address}"))?;
        let (kind, trains) = (opened.path.kind(), opened.path.trains());
        let info = WorkerInfo { at, address, core, kind, reason: opened.reason, trains };
        let slow = SlowShard::open(shared.slow.clone(), at, opened.path.waker());
        shared.live.wakers().add(opened.path.waker());
        let sessions = shared.slow.as_ref().and_then(|path| path.sessions.as_ref());
        let mut parts = WorkerParts {
            slow,
            sealer: sessions.map(SessionSealer::new),
            rate_limit: RateLimit::open(&config.rate_limit, shared.running.len()),
            telemetry: WorkerTelemetry::new(config, shared, at),
            clock: WorkerClock::new(),
        };
        parts.identify_answers(shared.hooks.cache.is_some());
        let worker = Self {
            shared: Arc::clone(shared),
            at,
            path: opened.path,
            udp: UdpWorker::new(config),
            tcp,
            parts,
            live: shared.live.reader(),
            cache: shared
                .hooks
                .cache
                .as_ref()
                .map(|cache| WorkerCache::new(cache, config.limits.outbox_bytes)),
            batches_until_look: BATCHES_UNTIL_LOOK,
            in_force: shared.settings.current(),
            settings_generation: shared.settings.generation(),
            has_settled: false,
        };
        Ok((worker, info))
    }

    /// Answers until the server drains, then answers what has already arrived. The worker ends once
    /// no datagram arrives for [`DRAIN_QUIET`]; after [`DRAIN_MAX`] it stops receiving in any case.
    pub(crate) fn run(&mut self) {
        let (mut draining_since, mut quiet_since) = (None, None);
        // Whether receiving has stopped; what has been received is still answered.
        let mut stopped = false;
        loop {
            let draining = self.shared.is_draining();
            if draining && !stopped && self.shared.handover.is_taken(self.at, SocketKind::Udp) {
                stopped = self.stop_receiving();
            }
            let timeout = match (draining, stopped) {
                (_, true) if !self.has_connections(Duration::ZERO) && self.parts.slow.is_idle() => {
                    Duration::ZERO
                }
                (_, true) => DRAIN_QUIET,
                (true, false) => DRAIN_QUIET,
                (false, false) => self.timeout(),
            };
            let received = match self.turn(timeout) {
                Ok(received) => received + self.serve_connections(draining),
                Err(error) => {
                    tracing::error!(worker = self.at, %error, "the datapath failed; the worker stops");
                    return;
                }
            };
            self.has_settled = received == 0;
            if !draining {
                continue;
            }
            let now = self.parts.clock.now();
            if received > 0 {
                quiet_since = None;
            }
            let is_quiet = now - *quiet_since.get_or_insert(now) >= DRAIN_QUIET;
            let drained_for = now - *draining_since.get_or_insert(now);
            // Requests on the slow path have arrived as well and must be answered.
            if self.parts.slow.is_idle()
                && !self.has_connections(drained_for)
                && (is_quiet || stopped && received == 0)
            {
                self.abort_connections();
                return;
            }
            if drained_for >= DRAIN_MAX && !stopped {
                stopped = self.stop_receiving();
            }
            if drained_for >= 2 * DRAIN_MAX {
                self.abort_connections();
                return;
            }
        }
    }

    /// Longest time to wait for the next batch.
    fn timeout(&mut self) -> Duration {
        if !self.parts.slow.is_idle() {
            return TIMEOUT_SLOW;
        }
        if !self.has_settled {
            return TIMEOUT_SETTLING;
        }
        let connections = self.tcp.as_ref().and_then(TcpWorker::next_expiry_ms);
        match [self.udp.next_expiry_ms(), connections].into_iter().flatten().min() {
            None => TIMEOUT_MAX,
            // One millisecond is added because the wake-up uses a different clock.
            Some(at_ms) => {
                self.parts.clock.read();
                let wait_ms = at_ms.saturating_sub(self.parts.clock.now_ms()).saturating_add(1);
                Duration::from_millis(wait_ms).min(TIMEOUT_MAX)
            }
        }
    }

    /// Stops receiving. Returns true even on failure, because the datapath is unusable then.
    fn stop_receiving(&mut self) -> bool {
        if let Err(error) = self.path.stop_receiving() {
            tracing::error!(worker = self.at, %error, "the datapath failed while stopping");
        }
        true
    }

    /// Handles events on connections. Returns the number of events.
    fn serve_connections(&mut self, draining: bool) -> usize {
        let Some(tcp) = &mut self.tcp else { return 0 };
        let has_events = TcpWorker::has_events(&mut *self.path);
        if draining {
            tcp.drain(&mut *self.path, self.shared.handover.is_taken(self.at, SocketKind::Tcp));
        } else if !has_events && self.batches_until_look != BATCHES_UNTIL_LOOK {
            // Timeouts of connections are checked only as often as the other periodic work.
            return 0;
        }
        let Self { parts, live, cache, in_force, shared, at, .. } = self;
        let counters = shared.shards.shard(*at);
        let measured_since =
            if has_events { parts.telemetry.begin_connections(parts.clock.now()) } else { None };
        let cached = cached_of(cache, &parts.clock);
        let context = context_of(live.load(), in_force.site.stream_service(), &parts.clock);
        let context = context.caching(cached.as_ref().map(|cached| cached as _));
        let answered_before = counters.tcp_requests_answered.get();
        let events_count = tcp.turn(&mut *self.path, &context, parts, counters);
        let answered = counters.tcp_requests_answered.get() - answered_before;
        parts.telemetry.end_connections(measured_since, answered, counters);
        events_count
    }

    /// Sends the answers that the slow path has completed.
    #[cold]
    fn deliver(&mut self) -> io::Result<()> {
        let Self { parts, path, tcp, live, cache, in_force, .. } = self;
        let counters = self.shared.shards.shard(self.at);
        parts.read_clock();
        while let Some(job) = parts.slow.answered(counters) {
            match (job.route, &mut *tcp) {
                (JobRoute::Udp(peer), _) => udp::reply(&mut **path, peer, &job, parts, counters)?,
                (JobRoute::Tcp(id, _), Some(tcp)) => {
                    // Requests behind this one on the connection are answered now as well.
                    let cached = cached_of(cache, &parts.clock);
                    let context = context_of(live.load(), in_force.site.stream_service(), &parts.clock);
                    let context = context.caching(cached.as_ref().map(|cached| cached as _));
                    let is_there = tcp.reply(&mut **path, id, &job, &context, parts, counters);
                    if is_there && !job.answer.is_empty() && !job.is_continued {
                        parts.telemetry.sent(&job, counters);
                    }
                    if job.has_more() {
                        parts.slow.keep_listing(job);
                        continue;
                    }
                }
                (JobRoute::Tcp(..), None) => counters.tcp_dropped_bug.add(1),
            }
            parts.slow.release(job);
        }
        // Continue listings whose previous part the client has read, including a part sent just
        // now.
        if parts.slow.has_listings() {
            let reader = |id| tcp.as_ref().map_or(ListingReader::Gone, |tcp| tcp.reader(id));
            parts.slow.go_on_listing(reader, counters);
        }
        flush(&mut **path, counters)
    }

    /// Whether to wait for connections: at first for all of them to end, after [`DRAIN_MAX`] only
    /// for requests under way.
    fn has_connections(&self, drained_for: Duration) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| !tcp.is_quiet(drained_for < DRAIN_MAX))
    }

    /// Aborts the remaining connections.
    fn abort_connections(&mut self) {
        let Some(tcp) = &mut self.tcp else { return };
        let service = self.in_force.site.stream_service();
        let context = context_of(self.live.load(), service, &self.parts.clock);
        tcp.abort_all(&mut *self.path, &context, self.shared.shards.shard(self.at));
    }

    /// Periodic work that is not done for each batch: reads the kernel's drop counter, expires
    /// fragments and takes changed settings.
    #[cold]
    fn look_around(&mut self) {
        let counters = self.shared.shards.shard(self.at);
        counters.dropped_by_kernel.set(self.path.kernel_drops());
        self.udp.expire(self.parts.clock.now_ms(), counters);
        self.batches_until_look = BATCHES_UNTIL_LOOK;
        let generation = self.shared.settings.generation();
        if generation != self.settings_generation {
            self.settings_generation = generation;
            self.take_settings();
        }
    }

    /// Applies the settings now in force. Called between two batches, when no answer is being
    /// built.
    #[cold]
    fn take_settings(&mut self) {
        self.in_force = self.shared.settings.current();
        let config = &self.in_force.config;
        self.udp.set(config);
        RateLimit::set(&mut self.parts.rate_limit, &config.rate_limit, self.shared.running.len());
        self.parts.identify_answers(self.cache.is_some());
        self.parts.telemetry.set(config);
        if let Some(tcp) = &mut self.tcp {
            tcp.set(&mut *self.path, &config.tcp);
        }
    }

    /// Handles one batch: waits, answers and flushes. Returns the number of datagrams.
    fn turn(&mut self, timeout: Duration) -> io::Result<usize> {
        if !self.parts.slow.is_idle() {
            self.deliver()?;
        }
        let counters = self.shared.shards.shard(self.at);
        counters.turns.add(1);
        let batch = self.path.wait(timeout)?;
        self.parts.read_clock();
        // Loaded even when idle, so that a retired set is released.
        let set = self.live.load();
        if batch.inbox.is_empty() {
            self.look_around();
            return Ok(0);
        }
        let parts = &mut self.parts;
        parts.telemetry.begin(parts.clock.now(), counters);
        let context = context_of(set, self.in_force.site.service(), &parts.clock);
        let received = self.udp.receive(batch.inbox, counters);
        let is_done = self.udp.answer(batch, &context, self.cache.as_mut(), parts, counters);
        flush(&mut *self.path, counters)?;
        if !is_done {
            let cached = cached_of(&mut self.cache, &parts.clock);
            let context = context.caching(cached.as_ref().map(|cached| cached as _));
            self.udp.answer_leftovers(&mut *self.path, &context, parts, counters)?;
        }
        parts.telemetry.end(counters);
        self.batches_until_look = self.batches_until_look.saturating_sub(1);
        if self.batches_until_look == 0 {
            self.look_around();
        }
        Ok(received)
    }
}

/// The records of other services for the next batch.
fn cached_of<'c>(cache: &'c mut Option<WorkerCache>, clock: &WorkerClock) -> Option<BatchCache<'c>> {
    cache.as_mut().map(|cache| cache.of_batch(clock.now_unix_s()))
}

/// Builds the context for answers from `set`.
fn context_of<'a>(
    set: &'a LiveSet,
    service: ServiceFacts<'a>,
    clock: &WorkerClock,
) -> AnswerContext<'a, MappedFile> {
    let missing: &dyn MayCompute = set.missing();
    AnswerContext::new(set.records(), service, clock.now_unix_s()).computing(Some(missing))
}
