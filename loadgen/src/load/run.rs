//! A run: prepares the questions, starts the threads, and returns the report.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use handle_net::{Datapath, DatapathChoice, Peer, SocketOptions, open, pin_to_core};

use crate::clock::Clock;
use crate::error::Error;
use crate::judge::counts::Codes;
use crate::judge::expected_records::{ExpectedRecords, LearnedAnswers};
use crate::judge::followed_set::{self, FollowReport, Follower};
use crate::judge::verify::{AnswerForm, AnswerVerifier, ContentSource, SharedTimeline, VerifyRules};
use crate::load::drive::{drive, wake_on_time};
use crate::load::idle::TICK_NS;
use crate::load::job::RunJob;
use crate::load::options::{LoadPattern, NameOptions, ReferenceData, RunOptions, Verify};
use crate::load::pattern::{AccessOrder, Chooser};
use crate::load::server_key;
use crate::load::stream::tls::TlsContext;
use crate::load::stream::{self, ConnectionContext, Pool, StreamObservations};
use crate::load::total::RunTotal;
use crate::load::transport::{Protocol, StreamTransport, Streams};
use crate::load::worker::{BURST_MAX, Interval, LoadWorker, WorkerOutcome, WorkerPlan};
use crate::random::RandomGenerator;
use crate::show::latency;
use crate::show::report::{RunObservations, RunReport, SecondCounts};

/// Requests still unsent this long after the end of a run are not sent at all.
const OVERTIME_MAX: Duration = Duration::from_millis(10);

/// Time between the moment at which all threads are ready and the first request.
const HEAD_START: Duration = Duration::from_millis(20);

/// Datagrams received at once in a closed loop: more than are sent at once, because answers may
/// have several fragments.
const RECEIVE_BATCH_LEN: usize = 256;

/// The same in an open loop. While these are handled, a fraction of a microsecond each, no request
/// is sent.
const RECEIVE_BATCH_LEN_ON_TIME: usize = 32;

/// Length of a receive buffer. Servers send at most 512 bytes; longer datagrams count as malformed.
const RECEIVE_LEN: usize = 2048;

/// Does a run, and calls `progress` once a second and at the end of the last, partial second. If
/// `progress` breaks, the run ends early, and unsent requests are counted. During preparation
/// `progress` is called with seconds that are not to be shown.
///
/// # Errors
///
/// If the run cannot start, is stopped before it starts, or a datapath fails. Bad or missing
/// answers are not an error; they are in the report.
///
/// # Panics
///
/// If the accounts are inconsistent, which is a bug of this crate.
pub fn run(
    options: &RunOptions,
    mut progress: impl FnMut(&SecondCounts) -> ControlFlow<()>,
) -> Result<RunReport, Error> {
    options.check()?;
    let job = RunJob::prepare(options, || progress(&SecondCounts::none()))?;
    let judge = match &options.verify {
        Some(verify) => Some(Judge::prepare(options, &job, verify, &mut progress)?),
        None => None,
    };
    let mut done = pass(options, &job, judge.as_ref(), None, &mut progress)?;
    let is_verified = judge.is_some();
    let total = sum(std::mem::take(&mut done.outcomes), is_verified, options);
    Ok(RunReport::new(options, &job, &total, &done.seen))
}

/// The reference data that answers are judged by.
struct Judge {
    truth: AnswerSource,
    rules: VerifyRules,
}

enum AnswerSource {
    /// A set that may be replaced during the run.
    Published(Box<handle_snapshot::PublishedSet>),
    /// Reference data that does not change.
    Fixed(Arc<dyn ContentSource>),
}

impl Judge {
    fn prepare(
        options: &RunOptions,
        job: &RunJob,
        verify: &Verify,
        progress: &mut dyn FnMut(&SecondCounts) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let truth = match &verify.truth {
            ReferenceData::Snapshot(dir) => AnswerSource::Published(Box::new(followed_set::open(dir)?)),
            ReferenceData::Records(path) => {
                let records = ExpectedRecords::read(path, || progress(&SecondCounts::none()))?;
                AnswerSource::Fixed(Arc::new(records))
            }
            ReferenceData::FirstPass => AnswerSource::Fixed(Arc::new(first_pass(options, job, progress)?)),
        };
        let key = verify.key.as_ref().map(|source| server_key::read(source, options));
        let rules = VerifyRules {
            staleness_ns: i64::try_from(verify.staleness_max.as_nanos()).unwrap_or(i64::MAX),
            every: verify.every,
            keep: verify.keep,
            key: key.transpose()?.map(Arc::new),
            form: answer_form(options, &verify.truth),
        };
        Ok(Self { truth, rules })
    }
}

/// What answers are compared by. A first pass learns redirects as they are.
fn answer_form(options: &RunOptions, truth: &ReferenceData) -> AnswerForm {
    match (&options.transport, truth) {
        (_, ReferenceData::FirstPass) => AnswerForm::Record,
        (StreamTransport::Stream(Streams { protocol: Protocol::Redirect, .. }), _) => AnswerForm::Redirect,
        _ => AnswerForm::Record,
    }
}

/// Asks for each handle once, and again for those without an answer. Its seconds are reported to
/// `progress` as not to be shown.
///
/// # Errors
///
/// Errors of a pass; and if the user stops it, or there is no answer at all, which would take hours
/// for many handles.
fn first_pass(
    options: &RunOptions,
    job: &RunJob,
    progress: &mut dyn FnMut(&SecondCounts) -> ControlFlow<()>,
) -> Result<LearnedAnswers, Error> {
    /// Pending requests: few, so that none is lost.
    const WINDOW: usize = 32;
    const ROUNDS: usize = 3;
    let workload = job.plain(options)?;
    let mut learned = LearnedAnswers::default();
    (0..).zip(0..workload.len()).for_each(|(number, _)| learned.expect(workload.handle(number)));
    let (mut is_stopped, mut answers) = (false, 0);
    for _ in 0..ROUNDS {
        if learned.counts().1 == 0 {
            break;
        }
        let options = RunOptions {
            load: LoadPattern::Closed { window: WINDOW },
            pattern: AccessOrder::Sequential,
            verify: None,
            ..options.clone()
        };
        let requests = workload.len() as u64;
        let job = RunJob { workload: workload.clone(), schedule: None, requests, skipped: None };
        let done = pass(&options, &job, None, Some(&learned), &mut |second| {
            answers += second.answered + second.late;
            is_stopped |= progress(&SecondCounts::none()).is_break();
            let is_silent = answers == 0 && second.lost_so_far > 0;
            if is_stopped || is_silent { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if is_stopped {
            return Err(Error::Stopped);
        }
        if answers == 0 {
            let (target, transport) = (options.target.to_string(), options.transport.to_string());
            return Err(Error::NoAnswer { target, transport });
        }
        for outcome in done.outcomes {
            learned.add(outcome.worker.learned.unwrap_or_default());
        }
    }
    Ok(learned)
}

/// The results of a pass.
struct PassOutcome {
    outcomes: Vec<ThreadOutcome>,
    seen: RunObservations,
}

/// Does a pass: starts the threads and collects their results.
fn pass(
    options: &RunOptions,
    job: &RunJob,
    judge: Option<&Judge>,
    learn: Option<&LearnedAnswers>,
    progress: &mut dyn FnMut(&SecondCounts) -> ControlFlow<()>,
) -> Result<PassOutcome, Error> {
    let local = local_address(options.target).map_err(Error::Open)?;
    let (messages_in, messages) = channel();
    let (stop, verified) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        // Also if `progress` or a thread panics, because a scope waits for all of its threads.
        let _stop_all = (SetOnDrop(&stop), SetOnDrop(&verified));
        let mut starts = Vec::new();
        let mut threads = Vec::new();
        for number in 0..options.threads {
            let (start_in, start) = channel();
            starts.push(start_in);
            let messages = messages_in.clone();
            let rules = judge.map(|judge| &judge.rules);
            let thread = Thread { number, options, job, local, rules, learn, stop: &stop };
            threads.push(scope.spawn(move || {
                thread.run(&start, &messages).inspect_err(|_| {
                    // The remaining threads alone would not produce the requested load.
                    thread.stop.store(true, Ordering::Relaxed);
                    let _ = messages.send(ThreadMessage::Failed);
                })
            }));
        }
        drop(messages_in);
        let path = match all_ready(&messages, options.threads) {
            Some(path) => path,
            // A thread that ends before it is ready returns the reason. The others end if they are
            // not started.
            None => {
                drop(starts);
                let mut results = threads.into_iter().map(|thread| thread.join().unwrap_or_else(resume));
                return Err(results.find_map(Result::err).expect("a thread did not start"));
            }
        };
        let clock = Clock::new(Instant::now() + HEAD_START);
        let follower = judge.and_then(|judge| match &judge.truth {
            AnswerSource::Published(set) => Some(Follower::new((**set).clone(), clock, keep_ns(options))),
            AnswerSource::Fixed(_) => None,
        });
        let watch = match judge.map(|judge| &judge.truth) {
            Some(AnswerSource::Fixed(source)) => Some(Arc::new(SharedTimeline::fixed(Arc::clone(source)))),
            _ => follower.as_ref().map(Follower::watch),
        };
        let following = follower.map(|follower| scope.spawn(|| follower.follow(&verified)));
        for start in starts {
            // A thread that is gone returns the reason when it is joined.
            let _ = start.send(RunStart { clock, shared_timeline: watch.clone() });
        }
        let seconds = collect(&messages, options.threads, |second| {
            if progress(second).is_break() {
                stop.store(true, Ordering::Relaxed);
            }
        });
        let results: Vec<_> =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(resume)).collect();
        verified.store(true, Ordering::Relaxed);
        let followed = following.map(|thread| thread.join().unwrap_or_else(resume));
        let outcomes = results.into_iter().flat_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
        let stopped = stop.load(Ordering::Relaxed);
        Ok(PassOutcome { outcomes, seen: RunObservations { path, clock, followed, stopped, seconds } })
    })
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Resumes the panic of a thread.
fn resume<T>(panic: Box<dyn std::any::Any + Send>) -> T {
    std::panic::resume_unwind(panic)
}

/// How long a set is kept after its end: as long as a pending answer may come from it.
fn keep_ns(options: &RunOptions) -> i64 {
    let staleness = options.verify.as_ref().map_or(Duration::ZERO, |verify| verify.staleness_max);
    let keep = 2 * options.timeout + staleness + Duration::from_secs(2);
    i64::try_from(keep.as_nanos()).unwrap_or(i64::MAX)
}

/// The local address on the route to `target`. A socket that is bound to it saves the kernel a
/// control message about the address with each datagram.
fn local_address(target: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    Ok(socket.local_addr()?.ip())
}

/// A message of a running thread.
enum ThreadMessage {
    Ready(String),
    /// It has ended; the reason is available when it is joined.
    Failed,
    Tick {
        thread: usize,
        second: u64,
        now_ns: u64,
        interval: Box<Interval>,
    },
    /// Its last tick has been sent; no other follows.
    Done {
        thread: usize,
    },
}

/// What a thread needs to start.
struct RunStart {
    clock: Clock,
    shared_timeline: Option<Arc<SharedTimeline>>,
}

struct Thread<'a> {
    number: usize,
    options: &'a RunOptions,
    job: &'a RunJob,
    local: IpAddr,
    rules: Option<&'a VerifyRules>,
    learn: Option<&'a LearnedAnswers>,
    stop: &'a AtomicBool,
}

/// The results of one thread.
struct ThreadOutcome {
    worker: WorkerOutcome,
    streams: Option<StreamObservations>,
}

enum SendPath {
    Datagrams(Box<dyn Datapath>),
    Streams(Box<Pool>),
}

impl Thread<'_> {
    /// `None` if it was not started.
    fn run(
        &self,
        start: &Receiver<RunStart>,
        messages: &Sender<ThreadMessage>,
    ) -> Result<Option<ThreadOutcome>, Error> {
        let options = self.options;
        if !options.cores.is_empty() {
            let core = options.cores[self.number % options.cores.len()];
            pin_to_core(core).map_err(|error| Error::Core(core, error))?;
        }
        // If the kernel does not support this, the schedule error shows it.
        let _ = wake_on_time();
        let mut path = self.open()?;
        let mut worker = self.worker();
        let sources = options.sources_of(self.number);
        if matches!(path, SendPath::Datagrams(_)) && sources.len() > 1 {
            worker.leave_from(&sources);
        }
        let name = match &path {
            SendPath::Datagrams(path) => path.kind().to_string(),
            SendPath::Streams(_) => "epoll".to_owned(),
        };
        let _ = messages.send(ThreadMessage::Ready(name));
        let Ok(RunStart { clock, shared_timeline: watch }) = start.recv() else { return Ok(None) };
        if let (Some(watch), Some(rules)) = (watch, self.rules) {
            worker.verify(AnswerVerifier::new(watch, rules.clone()));
        }
        if let Some(learned) = self.learn {
            worker.learn(learned.expected());
        }
        let tick = |second, now_ns, interval| {
            let interval = Box::new(interval);
            let _ = messages.send(ThreadMessage::Tick { thread: self.number, second, now_ns, interval });
        };
        let (driven, kernel_drops, streams) = match &mut path {
            SendPath::Datagrams(path) => {
                let driven = drive(&mut worker, &mut **path, clock, options.idle, self.stop, tick);
                (driven, path.kernel_drops(), None)
            }
            SendPath::Streams(pool) => {
                let timeout_ns = duration_ns(options.timeout);
                let driven =
                    stream::drive(&mut worker, pool, timeout_ns, clock, options.idle, self.stop, tick);
                (driven, 0, Some(pool.observations()))
            }
        };
        driven.map_err(Error::Datapath)?;
        let _ = messages.send(ThreadMessage::Done { thread: self.number });
        Ok(Some(ThreadOutcome { worker: worker.finish(kernel_drops), streams }))
    }

    fn open(&self) -> Result<SendPath, Error> {
        let options = self.options;
        let sources = options.sources_of(self.number);
        let request_len_max = self.job.workload.request_len_max();
        let trains = match options.transport {
            StreamTransport::Stream(streams) => {
                let host = options.host.clone().unwrap_or_else(|| options.target.to_string());
                let tls = options.tls.as_ref().map(|trust| TlsContext::new(trust, &host, streams.version));
                let context = ConnectionContext {
                    streams,
                    tls: tls.transpose()?,
                    host,
                    with_values: self.rules.is_some() || self.learn.is_some(),
                };
                let pool = Pool::open(options.target, sources, context, request_len_max);
                return Ok(SendPath::Streams(Box::new(pool.map_err(Error::Open)?)));
            }
            StreamTransport::Udp { trains } => trains,
        };
        let bound = match sources[..] {
            [] => self.local,
            [source] => source,
            // Each datagram carries its source address.
            [..] => Ipv4Addr::UNSPECIFIED.into(),
        };
        let socket = SocketOptions {
            batch_len: if self.job.schedule.is_some() {
                RECEIVE_BATCH_LEN_ON_TIME
            } else {
                RECEIVE_BATCH_LEN
            },
            outbox_datagrams: BURST_MAX,
            outbox_len: BURST_MAX * request_len_max,
            ..SocketOptions::new(SocketAddr::new(bound, 0))
        };
        let socket = if trains {
            socket
        } else {
            SocketOptions { receive_len: RECEIVE_LEN, ..socket.one_at_a_time() }
        };
        let choice = match options.datapath {
            // Polling io_uring without a wait enters the scheduler, which was measured to quadruple
            // the median of the schedule error when other processes run.
            DatapathChoice::Auto if self.job.schedule.is_some() => DatapathChoice::Portable,
            choice => choice,
        };
        Ok(SendPath::Datagrams(open(choice, &socket).map_err(Error::Open)?.path))
    }

    fn worker(&self) -> LoadWorker<'_> {
        let (options, job) = (self.options, self.job);
        let (number, threads) = (self.number as u64, options.threads as u64);
        let len = u32::try_from(job.workload.len()).unwrap_or(u32::MAX);
        // A recording has as many requests as times.
        let is_recorded = matches!(options.names, NameOptions::Recording { .. });
        let pattern = if is_recorded { AccessOrder::Sequential } else { options.pattern };
        let rate_max = job.schedule.as_ref().map(|schedule| schedule.rate_max());
        LoadWorker::new(
            self.plan(),
            &job.workload,
            Chooser::new(pattern, len, number, threads),
            Peer::to(options.target),
            duration_ns(options.timeout),
            RandomGenerator::new(options.seed, number),
            options.table_capacity(rate_max),
        )
    }

    fn plan(&self) -> WorkerPlan<'_> {
        let (number, threads) = (self.number as u64, self.options.threads as u64);
        let until_ns = duration_ns(self.options.duration);
        match (&self.job.schedule, &self.options.load) {
            (Some(schedule), _) => WorkerPlan::Open {
                share: schedule.share(number, threads),
                until_ns: schedule.end_ns().saturating_add(duration_ns(OVERTIME_MAX)),
            },
            (None, load) => {
                // A recording at full speed has no window of its own.
                let window =
                    if let LoadPattern::Closed { window } = load { *window } else { RunOptions::WINDOW };
                // Each thread gets its share of a limited number of requests; sending them ends the
                // run.
                match self.job.requests {
                    u64::MAX => WorkerPlan::Closed { window, left: u64::MAX, until_ns },
                    requests => {
                        let left = requests.saturating_sub(number).div_ceil(threads);
                        WorkerPlan::Closed { window, left, until_ns: u64::MAX }
                    }
                }
            }
        }
    }
}

fn duration_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits until all threads are ready; `None` if one has ended instead.
fn all_ready(messages: &Receiver<ThreadMessage>, threads: usize) -> Option<String> {
    let mut paths = Vec::new();
    while paths.len() < threads {
        match messages.recv() {
            Ok(ThreadMessage::Ready(path)) => paths.push(path),
            Ok(ThreadMessage::Tick { .. } | ThreadMessage::Done { .. }) => {}
            Ok(ThreadMessage::Failed) | Err(_) => return None,
        }
    }
    // The same options open the same path in all threads. Otherwise the slower kind is reported,
    // which is also last in the alphabet.
    paths.into_iter().max()
}

/// Adds up the ticks of all threads, and reports each second once all threads have reported it.
fn collect(
    messages: &Receiver<ThreadMessage>,
    threads: usize,
    mut each: impl FnMut(&SecondCounts),
) -> Vec<SecondCounts> {
    let mut open = BTreeMap::<u64, (u64, Interval)>::new();
    let mut reported_ticks = vec![0; threads];
    let mut codes = vec![Codes::default(); threads];
    let mut seconds = Vec::new();
    let mut totals = SecondCounts::default();
    let mut close = |open: &mut BTreeMap<u64, (u64, Interval)>, codes: &[Codes], before: u64| {
        while let Some(first) = open.first_entry().filter(|first| *first.key() < before) {
            let (number, (end_ns, interval)) = first.remove_entry();
            totals = SecondCounts::after(&totals, number * TICK_NS, end_ns, interval, codes);
            each(&totals);
            // The histogram is for live output only; all of them together may be large.
            seconds.push(SecondCounts { histogram: None, codes: Vec::new(), ..totals.clone() });
        }
    };
    while let Ok(message) = messages.recv() {
        match message {
            ThreadMessage::Tick { thread, second, now_ns, interval } => {
                let (end_ns, sum) = open.entry(second).or_default();
                *end_ns = now_ns.max(*end_ns);
                sum.add(&interval);
                reported_ticks[thread] = now_ns / TICK_NS;
                codes[thread] = interval.codes;
            }
            ThreadMessage::Done { thread } => reported_ticks[thread] = u64::MAX,
            ThreadMessage::Ready(_) | ThreadMessage::Failed => {}
        }
        close(&mut open, &codes, reported_ticks.iter().copied().min().unwrap_or(0));
    }
    close(&mut open, &codes, u64::MAX);
    seconds
}

fn sum(outcomes: Vec<ThreadOutcome>, verify: bool, options: &RunOptions) -> RunTotal {
    let mut total = RunTotal::default();
    for ThreadOutcome { worker: outcome, streams } in outcomes {
        total.counts.add(&outcome.counts);
        total.latency.add(&outcome.latency);
        total.pacing.add(&outcome.pacing);
        total.steps.add(&outcome.steps);
        total.mismatches.extend(outcome.mismatches);
        total.staleness_max_ns = total.staleness_max_ns.max(outcome.staleness_max_ns);
        total.sending_ns = total.sending_ns.max(outcome.end_ns);
        if let Some(streams) = streams {
            total.streams.get_or_insert_default().add(streams);
        }
    }
    total.mismatches.sort_by_key(|mismatch| mismatch.sent_ns);
    total.mismatches.truncate(options.verify.as_ref().map_or(0, |verify| verify.keep));
    if let Err(sum) = total.counts.check(verify) {
        panic!("{sum}: {:?}", total.counts);
    }
    total
}

impl Interval {
    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.lost += other.lost;
        self.late += other.late;
        self.mismatched += other.mismatched;
        latency::add(&mut self.response, &other.response);
        self.lag_max_ns = self.lag_max_ns.max(other.lag_max_ns);
    }
}

impl SecondCounts {
    /// The second that began at `start_ns`, after `previous`.
    fn after(previous: &Self, start_ns: u64, end_ns: u64, interval: Interval, codes: &[Codes]) -> Self {
        let len_ns = end_ns.saturating_sub(start_ns).max(1);
        let is_rest = interval.sent == 0 && len_ns <= TICK_NS / 2;
        // A few answers in the last millisecond are not a rate of thousands.
        let span_s = if is_rest { TICK_NS } else { len_ns } as f64 / 1e9;
        let mut sum = Codes::default();
        codes.iter().for_each(|codes| sum.add(codes));
        Self {
            is_rest,
            len_s: len_ns as f64 / 1e9,
            elapsed_s: end_ns as f64 / 1e9,
            sent: interval.sent,
            answered: interval.answered,
            sent_per_s: interval.sent as f64 / span_s,
            answered_per_s: interval.answered as f64 / span_s,
            lost_so_far: previous.lost_so_far + interval.lost,
            late: interval.late,
            mismatched: interval.mismatched,
            response_p50_ns: interval.response.value_at_quantile(0.5),
            response_p99_ns: interval.response.value_at_quantile(0.99),
            response_max_ns: interval.response.max(),
            lag_max_ns: interval.lag_max_ns,
            codes: sum.iter().collect(),
            histogram: Some(Arc::new(interval.response)),
        }
    }
}

/// The observations of the directory, for the report.
impl FollowReport {
    /// Whether judging was impeded.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.missed == 0 && self.failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_after_the_last_request_are_reported() {
        let (sender, messages) = channel();
        let ticks = [(0, TICK_NS, 10, 7), (1, TICK_NS + 5_000_000, 0, 3), (3, 4 * TICK_NS, 0, 1)];
        for (second, now_ns, sent, answered) in ticks {
            let interval = Box::new(Interval { sent, answered, ..Interval::default() });
            sender.send(ThreadMessage::Tick { thread: 0, second, now_ns, interval }).unwrap();
        }
        drop(sender);
        let mut reports = Vec::new();
        let seconds = collect(&messages, 1, |second| reports.push((second.answered, second.is_rest)));
        assert_eq!(reports, [(7, false), (3, true), (1, false)]);
        let rates: Vec<_> = seconds.iter().map(|second| (second.len_s, second.answered_per_s)).collect();
        assert_eq!(
            rates,
            [(1.0, 7.0), (0.005, 3.0), (1.0, 1.0)],
            "a last interval of milliseconds has no rate"
        );
    }

    /// A finished thread must not delay the ticks of the others: a stop takes effect at a tick.
    #[test]
    fn ended_threads_do_not_delay_ticks() {
        let (sender, messages) = channel();
        let tick = |thread, second| {
            let interval = Box::new(Interval { sent: 1, ..Interval::default() });
            let now_ns = (second + 1) * TICK_NS;
            sender.send(ThreadMessage::Tick { thread, second, now_ns, interval }).unwrap();
        };
        tick(0, 0);
        sender.send(ThreadMessage::Done { thread: 0 }).unwrap();
        tick(1, 0);
        tick(1, 1);
        thread::scope(|scope| {
            let (reports_in, reports) = channel();
            scope.spawn(move || collect(&messages, 2, |second| reports_in.send(second.sent).unwrap()));
            let timeout = Duration::from_secs(60);
            assert_eq!(reports.recv_timeout(timeout), Ok(2));
            assert_eq!(reports.recv_timeout(timeout), Ok(1), "the tick waits for the second thread");
            drop(sender);
        });
    }
}
