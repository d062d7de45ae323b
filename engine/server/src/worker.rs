//! A worker thread: waits for a batch, answers it and flushes the answers.

use crate::config::{ANSWER_LEN_MAX, Config};
use crate::counters::Counters;
use crate::leftovers::LeftoverDatagrams;
use crate::live::{LiveSet, SetReader};
use crate::rate_limit::{RateLimit, shortest_len};
use crate::replies::ReplySender;
use crate::server::{ServerState, net_options};
use crate::sessions::sealer::SessionSealer;
use crate::settings::ActiveSettings;
use crate::slow;
use crate::slow::queue::JobRoute;
use crate::slow::shard::{ListingReader, SlowShard};
use crate::takeover;
use crate::tcp::worker::TcpWorker;
use crate::telemetry::WorkerTelemetry;
use anyhow::Context as _;
use handle_daemon::clock::{now_unix, now_unix_s, wire_s};
use handle_net::{Datagram, Datapath, DatapathKind, Inbox, Peer, TrainSupport};
use handle_proto::limit::FRAGMENTS_MAX;
use handle_proto::wire::Envelope;
use handle_proto::wire::reassembly::{FragmentRefusal, Reassembly, ReassemblyLimits, ReassemblyOutcome};
use handle_resolver::batch::Scratch;
use handle_resolver::{
    AnswerContext, AnswerOutcome, DropReason, InBatch, MayCompute, RefusalReason, ServiceFacts, answer,
    answer_batch, answer_message, refuse_stream,
};
use handle_snapshot::map::MappedFile;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep of a worker. Requests, a new set, changed settings and a stop wake it earlier.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);
/// Delay between the last request and the periodic work before a worker sleeps, so that kernel
/// drops are counted promptly.
const PATIENCE_SETTLING: Duration = Duration::from_millis(20);
/// Sleep of a worker while requests are on the slow path. The parts of a long listing become ready
/// without a wake-up.
const PATIENCE_SLOW: Duration = Duration::from_millis(1);
/// While draining, a worker stops once no datagram has arrived for this long.
const DRAIN_QUIET: Duration = Duration::from_millis(20);
/// While draining, the time after which a worker stops receiving although datagrams still arrive.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// Number of batches between two rounds of periodic work under load, which is some milliseconds.
const BATCHES_UNTIL_LOOK: u32 = 256;

/// The description of a worker in `status`.
#[derive(Clone, Debug)]
pub struct WorkerInfo {
    /// Number of the worker.
    pub at: usize,
    /// Address on which the worker answers.
    pub address: SocketAddr,
    /// Core to which the worker is pinned.
    pub core: Option<usize>,
    /// Datapath in use.
    pub kind: DatapathKind,
    /// Reason for the choice of datapath.
    pub reason: String,
    /// Whether the datapath receives and sends trains.
    pub trains: TrainSupport,
}

/// State of one worker thread, which answers on one socket.
pub(crate) struct Worker {
    shared: Arc<ServerState>,
    at: usize,
    path: Box<dyn Datapath>,
    /// Connections; `None` without TCP.
    tcp: Option<TcpWorker>,
    live: SetReader,
    scratch: Scratch,
    /// Reassembly of fragmented requests, keyed by the sender's address as in deployed servers.
    fragments: Reassembly<IpAddr>,
    /// Rate limits; `None` when disabled.
    rate_limit: Option<Box<RateLimit>>,
    /// For each datagram of the batch, including those in trains, its place in the inbox.
    places: Vec<u16>,
    /// For each datagram of the batch, whether it has been handled.
    done: Vec<bool>,
    slow: SlowShard,
    /// Seals answers in sessions; `None` without sessions.
    sealer: Option<SessionSealer>,
    /// Datagrams that the batch could not answer.
    leftovers: LeftoverDatagrams,
    /// Batches until the next round of periodic work.
    batches_until_look: u32,
    /// The settings in force and their generation.
    in_force: Arc<ActiveSettings>,
    settings_generation: u64,
    started: Instant,
    telemetry: WorkerTelemetry,
    /// Whether nothing has arrived since the last periodic work.
    has_settled: bool,
}

impl Worker {
    /// Opens the datapath on `socket`. Must be called on the thread that will run the worker.
    pub(crate) fn open(
        config: &Config,
        shared: &Arc<ServerState>,
        at: usize,
        (socket, listeners): (UdpSocket, Vec<TcpListener>),
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
        let worker = Self {
            slow,
            sealer: sessions.map(SessionSealer::new),
            shared: Arc::clone(shared),
            at,
            path: opened.path,
            tcp,
            live: shared.live.reader(),
            scratch: Scratch::new(),
            fragments: Reassembly::new(reassembly_limits(config)),
            rate_limit: RateLimit::open(&config.rate_limit, shared.running.len()),
            places: Vec::new(),
            done: Vec::new(),
            leftovers: LeftoverDatagrams::default(),
            batches_until_look: BATCHES_UNTIL_LOOK,
            in_force: shared.settings.current(),
            settings_generation: shared.settings.generation(),
            started: Instant::now(),
            telemetry: WorkerTelemetry::new(config, shared, at),
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
            if draining && !stopped && self.shared.handover.is_taken(self.at, takeover::SocketKind::Udp) {
                stopped = self.stop_receiving();
            }
            let patience = match (draining, stopped) {
                (_, true) if !self.has_connections(Duration::ZERO) && self.slow.is_idle() => Duration::ZERO,
                (_, true) => DRAIN_QUIET,
                (true, false) => DRAIN_QUIET,
                (false, false) => self.patience(),
            };
            let received = match self.turn(patience) {
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
            let now = Instant::now();
            if received > 0 {
                quiet_since = None;
            }
            let is_quiet = now - *quiet_since.get_or_insert(now) >= DRAIN_QUIET;
            let drained_for = now - *draining_since.get_or_insert(now);
            // Requests on the slow path have arrived as well and must be answered.
            if self.slow.is_idle()
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
    fn patience(&self) -> Duration {
        if !self.slow.is_idle() {
            return PATIENCE_SLOW;
        }
        if !self.has_settled {
            return PATIENCE_SETTLING;
        }
        let connections = self.tcp.as_ref().and_then(TcpWorker::next_expiry_ms);
        match [self.fragments.next_expiry_ms(), connections].into_iter().flatten().min() {
            None => PATIENCE_MAX,
            // One millisecond is added because the wake-up uses a different clock.
            Some(at_ms) => {
                let wait_ms = at_ms.saturating_sub(elapsed_ms(self.started)).saturating_add(1);
                Duration::from_millis(wait_ms).min(PATIENCE_MAX)
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
            tcp.drain(&mut *self.path, self.shared.handover.is_taken(self.at, takeover::SocketKind::Tcp));
        } else if !has_events && self.batches_until_look != BATCHES_UNTIL_LOOK {
            // Timeouts of connections are checked only as often as the other periodic work.
            return 0;
        }
        let measured_since = if has_events { self.telemetry.begin_connections() } else { None };
        let set = self.live.load();
        let counters = self.shared.shards.shard(self.at);
        let context = context_of(set, self.in_force.site.stream_service(), now_unix_s());
        let answered_before = counters.tcp_requests_answered.get();
        let parts = (&mut self.slow, self.sealer.as_mut(), self.telemetry.tap());
        let happened = tcp.turn(&mut *self.path, &context, counters, elapsed_ms(self.started), parts);
        let answered = counters.tcp_requests_answered.get() - answered_before;
        self.telemetry.end_connections(measured_since, answered, counters);
        happened
    }

    /// Sends the answers that the slow path has completed.
    #[cold]
    fn deliver(&mut self) -> std::io::Result<()> {
        let counters = self.shared.shards.shard(self.at);
        self.telemetry.begin_log();
        if let Some(rate_limit) = &mut self.rate_limit {
            rate_limit.tick();
        }
        while let Some(job) = self.slow.answered(counters) {
            match (job.route, &mut self.tcp) {
                (JobRoute::Udp(peer), _) => {
                    let limits = (self.rate_limit.as_deref_mut(), &mut self.telemetry);
                    slow::shard::send(&mut *self.path, peer, &job, limits, counters)?;
                }
                (JobRoute::Tcp(id, _), Some(tcp)) => {
                    let set = self.live.load();
                    let service = self.in_force.site.stream_service();
                    let context = context_of(set, service, now_unix_s());
                    let now_ms = elapsed_ms(self.started);
                    let parts = (&mut self.slow, self.sealer.as_mut(), self.telemetry.tap());
                    let path = &mut *self.path;
                    let is_there = tcp.reply(path, (id, &job), &context, counters, now_ms, parts);
                    if is_there && !job.answer.is_empty() && !job.is_continued {
                        self.telemetry.sent(&job, counters);
                    }
                    if job.has_more() {
                        self.slow.keep_listing(job);
                        continue;
                    }
                }
                (JobRoute::Tcp(..), None) => counters.tcp_dropped_bug.add(1),
            }
            self.slow.release(job);
        }
        // Continue listings whose previous part the client has read, including a part sent just
        // now.
        if self.slow.has_listings() {
            let tcp = &self.tcp;
            let reader = |id| tcp.as_ref().map_or(ListingReader::Gone, |tcp| tcp.reader(id));
            self.slow.go_on_listing(reader, counters);
        }
        flush(&mut *self.path, counters)
    }

    /// Whether to wait for connections: at first for all of them to end, after [`DRAIN_MAX`] only
    /// for requests under way.
    fn has_connections(&self, drained_for: Duration) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| !tcp.is_quiet(drained_for < DRAIN_MAX))
    }

    /// Aborts the remaining connections.
    fn abort_connections(&mut self) {
        let Some(tcp) = &mut self.tcp else { return };
        let set = self.live.load();
        let context = context_of(set, self.in_force.site.stream_service(), now_unix_s());
        tcp.abort_all(&mut *self.path, &context, self.shared.shards.shard(self.at));
    }

    /// Periodic work that is not done for each batch: reads the kernel's drop counter, expires
    /// fragments and takes changed settings.
    #[cold]
    fn look_around(&mut self) {
        let counters = self.shared.shards.shard(self.at);
        counters.dropped_by_kernel.set(self.path.kernel_drops());
        self.fragments.expire(elapsed_ms(self.started));
        counters.fragmented_expired.set(self.fragments.counts().expired);
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
        self.fragments.set_limits(reassembly_limits(config));
        RateLimit::set(&mut self.rate_limit, &config.rate_limit, self.shared.running.len());
        self.telemetry.set(config, &self.shared);
        if let Some(tcp) = &mut self.tcp {
            tcp.set(&mut *self.path, &config.tcp);
        }
    }

    /// Handles one batch: waits, answers and flushes. Returns the number of datagrams.
    fn turn(&mut self, patience: Duration) -> std::io::Result<usize> {
        if !self.slow.is_idle() {
            self.deliver()?;
        }
        let counters = self.shared.shards.shard(self.at);
        counters.turns.add(1);
        let batch = self.path.wait(patience)?;
        // Loaded even when idle, so that a retired set is released.
        let set = self.live.load();
        let (inbox, outbox) = (batch.inbox, batch.outbox);
        if inbox.is_empty() {
            self.look_around();
            return Ok(0);
        }
        let now_unix = now_unix();
        self.telemetry.begin(now_unix, counters);
        let context = context_of(set, self.in_force.site.service(), wire_s(now_unix));
        let (places, done, scratch) = (&mut self.places, &mut self.done, &mut self.scratch);
        count_received(inbox, places, counters);
        let received = places.len();
        let source = |at: usize| inbox.get(usize::from(places[at])).peer.remote().ip();
        self.telemetry.sample_sources(&self.shared, now_unix, received, source);
        if let Some(rate_limit) = &mut self.rate_limit {
            rate_limit.tick();
        }
        done.clear();
        done.resize(received, false);
        let mut replies = ReplySender {
            outbox,
            slow: &mut self.slow,
            sealer: &mut self.sealer,
            rate_limit: &mut self.rate_limit,
            telemetry: &mut self.telemetry,
            counters,
        };
        // Once the outbox is full, the remaining datagrams are not looked up until there is room.
        let is_full = Cell::new(false);
        // Answering has no side effects, so a panic leaves no broken state: the remaining datagrams
        // are retried one by one.
        let answered = catch_unwind(AssertUnwindSafe(|| {
            let datagrams = inbox.iter().flat_map(|datagram| datagram.segments());
            let datagrams = datagrams.take_while(|_| !is_full.get());
            #[cfg(test)]
            let datagrams = datagrams.inspect(|datagram| crate::tests::before_reading(datagram));
            answer_batch(&context, scratch, datagrams, |at, outcome| {
                #[cfg(test)]
                crate::tests::before_answering(datagram_at(inbox, places, at));
                match outcome {
                    InBatch::Fast(_) | InBatch::Other(AnswerOutcome::Reply(_)) => {
                        let asked = inbox.get(usize::from(places[at]));
                        let (len, request) = (|| shortest_len(&asked), || datagram_at(inbox, places, at));
                        done[at] = match outcome {
                            InBatch::Fast(reply) => replies.send(asked.peer, len, request, reply),
                            InBatch::Other(AnswerOutcome::Reply(reply)) => {
                                replies.send(asked.peer, len, request, reply)
                            }
                            InBatch::Other(_) => false,
                        };
                        is_full.set(!done[at]);
                    }
                    InBatch::Other(AnswerOutcome::Drop(reason)) => {
                        count_drop(*reason, counters);
                        done[at] = true;
                    }
                    InBatch::Other(AnswerOutcome::Fragment(_)) => {}
                    InBatch::Other(AnswerOutcome::InSession(reply)) => {
                        let (asked, bytes) = asked_at(inbox, places, at);
                        let len = shortest_len(&asked);
                        done[at] = replies.send_in_session(&context, asked.peer, len, bytes, reply);
                        is_full.set(!done[at]);
                    }
                    InBatch::Other(AnswerOutcome::Encrypted) => {
                        let (asked, bytes) = asked_at(inbox, places, at);
                        let busy = refuse_stream(&context, RefusalReason::Busy, b"");
                        done[at] = replies.defer(asked.peer, shortest_len(&asked), bytes, &busy);
                    }
                    // Cannot happen: the resolver forwards no listing over UDP.
                    InBatch::Other(AnswerOutcome::Listing) => counters.dropped_bug.add(1),
                    InBatch::Other(AnswerOutcome::Slow(request)) => {
                        let (asked, bytes) = asked_at(inbox, places, at);
                        let busy = request.refuse(&context, RefusalReason::Busy);
                        done[at] = replies.defer(asked.peer, shortest_len(&asked), bytes, &busy);
                    }
                }
            });
        }));
        self.batches_until_look = self.batches_until_look.saturating_sub(1);
        if answered.is_ok() && !done.contains(&false) {
            flush(&mut *self.path, counters)?;
            self.telemetry.end(counters);
            if self.batches_until_look == 0 {
                self.look_around();
            }
            return Ok(received);
        }
        // Flushing returns the receive buffers, so unanswered datagrams are copied first.
        self.leftovers.clear();
        let datagrams =
            inbox.iter().flat_map(|datagram| datagram.segments().map(move |bytes| (datagram.peer, bytes)));
        for ((peer, datagram), _) in datagrams.zip(done.iter()).filter(|&(_, &done)| !done) {
            self.leftovers.push(peer, datagram);
        }
        flush(&mut *self.path, counters)?;
        for (peer, datagram) in self.leftovers.iter() {
            if !self.path.outbox().has_room(FRAGMENTS_MAX, ANSWER_LEN_MAX) {
                flush(&mut *self.path, counters)?;
            }
            let (outbox, now_ms) = (self.path.outbox(), elapsed_ms(self.started));
            let fragments = FragmentStore {
                table: &mut self.fragments,
                len_max: self.in_force.config.limits.fragmented_request_bytes,
                now_ms,
            };
            let mut replies = ReplySender {
                outbox,
                slow: &mut self.slow,
                sealer: &mut self.sealer,
                rate_limit: &mut self.rate_limit,
                telemetry: &mut self.telemetry,
                counters,
            };
            answer_alone(&context, fragments, &mut replies, peer, datagram);
        }
        flush(&mut *self.path, counters)?;
        self.telemetry.end(counters);
        Ok(received)
    }
}

/// Builds the context for answers from `set`.
fn context_of<'a>(
    set: &'a LiveSet,
    service: ServiceFacts<'a>,
    now_unix_s: u32,
) -> AnswerContext<'a, MappedFile> {
    let templates = set.templates().map(|templates| templates as &dyn MayCompute);
    AnswerContext::new(set.records(), service, now_unix_s).computing(templates)
}

fn reassembly_limits(config: &Config) -> ReassemblyLimits {
    ReassemblyLimits {
        messages_max: config.limits.fragmented_requests,
        messages_per_sender_max: config.limits.fragmented_requests_per_sender,
        bytes_max: config.limits.fragmented_bytes,
        age_ms_max: config.limits.fragmented_wait_ms.into(),
    }
}

/// Counts the received datagrams and notes the place of each one in the inbox.
fn count_received(inbox: Inbox<'_>, places: &mut Vec<u16>, counters: &Counters) {
    let (mut bytes, mut trains, mut truncated) = (0, 0, 0);
    places.clear();
    for (place, datagram) in (0u16..).zip(inbox.iter()) {
        let count = datagram.segments_count();
        bytes += datagram.bytes.len() as u64;
        trains += u64::from(count > 1);
        truncated += u64::from(datagram.truncated);
        places.resize(places.len() + count, place);
    }
    counters.batches.add(1);
    counters.datagrams_received.add(places.len() as u64);
    counters.bytes_received.add(bytes);
    counters.trains_received.add(trains);
    counters.received_truncated.add(truncated);
}

/// Returns datagram number `at` with its metadata.
fn asked_at<'a>(inbox: Inbox<'a>, places: &[u16], at: usize) -> (Datagram<'a>, &'a [u8]) {
    (inbox.get(usize::from(places[at])), datagram_at(inbox, places, at))
}

/// Returns the bytes of datagram number `at`, located by `places`.
fn datagram_at<'a>(inbox: Inbox<'a>, places: &[u16], at: usize) -> &'a [u8] {
    let place = places[at];
    let first = places.partition_point(|&other| other < place);
    inbox.get(usize::from(place)).segments().nth(at - first).unwrap_or_default()
}

/// Answers what a batch could not: fragments, datagrams for which the outbox had no room, and
/// datagrams after one that caused a panic.
#[cold]
fn answer_alone(
    context: &AnswerContext<'_, MappedFile>,
    fragments: FragmentStore<'_>,
    replies: &mut ReplySender<'_>,
    peer: Peer,
    datagram: &[u8],
) {
    let counters = replies.counters;
    let answered = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(test)]
        crate::tests::before_reading(datagram);
        #[cfg(test)]
        crate::tests::before_answering(datagram);
        match answer(context, datagram) {
            AnswerOutcome::Fragment(envelope) => {
                if let Some(message) = fragments.put_together(peer, &envelope, datagram, counters)
                    && let Ok((envelope, bytes)) = Envelope::split(&message)
                {
                    let outcome = answer_message(context, envelope, bytes);
                    replies.finish(context, outcome, peer, datagram.len(), &message);
                }
            }
            outcome => replies.finish(context, outcome, peer, datagram.len(), datagram),
        }
    }));
    if answered.is_err() {
        counters.dropped_bug.add(1);
    }
}

/// The reassembly of fragmented requests, with the current time.
struct FragmentStore<'w> {
    table: &'w mut Reassembly<IpAddr>,
    len_max: u32,
    now_ms: u64,
}

impl FragmentStore<'_> {
    /// Stores a fragment. Returns the whole message once it is complete.
    fn put_together(
        self,
        peer: Peer,
        envelope: &Envelope,
        datagram: &[u8],
        counters: &Counters,
    ) -> Option<Vec<u8>> {
        if envelope.message_len > self.len_max {
            counters.dropped_fragment_too_long.add(1);
            return None;
        }
        let repeated = self.table.counts().repeated;
        let counter = match self.table.accept(peer.remote().ip(), datagram, self.now_ms) {
            Ok(ReassemblyOutcome::Complete(message)) => return Some(message),
            Ok(ReassemblyOutcome::Incomplete) if self.table.counts().repeated > repeated => {
                &counters.dropped_fragment_repeated
            }
            Ok(ReassemblyOutcome::Incomplete) => &counters.fragments_kept,
            // Deployed servers do not answer a message in a single fragment: `conversations.jsonl`,
            // `truncated_flag_single_packet`.
            Ok(ReassemblyOutcome::Whole(_))
            | Err(
                FragmentRefusal::Unreadable(_) | FragmentRefusal::Misfit | FragmentRefusal::Contradiction,
            ) => &counters.dropped_fragment_invalid,
            Err(FragmentRefusal::NoRoom) => &counters.dropped_fragment_no_room,
        };
        counter.add(1);
        None
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn flush(path: &mut dyn Datapath, counters: &Counters) -> std::io::Result<()> {
    let flushed = path.flush()?;
    counters.datagrams_sent.add(flushed.sent.into());
    counters.trains_sent.add(flushed.trains.into());
    if flushed.trains_refused > 0 {
        if counters.trains_refused.get() == 0 {
            tracing::warn!("the kernel or a device refuses answers in trains; they are sent one by one");
        }
        counters.trains_refused.add(flushed.trains_refused.into());
    }
    if flushed.failed > 0 || flushed.would_block > 0 {
        counters.dropped_send_refused.add(flushed.failed.into());
        counters.dropped_send_full.add(flushed.would_block.into());
    }
    Ok(())
}

pub(crate) fn count_drop(reason: DropReason, counters: &Counters) {
    match reason {
        DropReason::ErrorReply => counters.dropped_error_reply.add(1),
        DropReason::TooShort => counters.dropped_too_short.add(1),
        _ => counters.dropped_bug.add(1),
    }
}
