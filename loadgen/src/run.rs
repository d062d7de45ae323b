//! One run: names in, threads out, a report back.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use handle_net::{Kind, Options, Peer, open, pin_to_core};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;

use crate::clock::Clock;
use crate::counts::Counts;
use crate::drive::{TICK_NS, drive};
use crate::error::Error;
use crate::latency::{self, Latency};
use crate::options::{Load, Names, RunOptions};
use crate::published::{self, Followed, Follower};
use crate::random::Random;
use crate::report::{Report, Second, Seen};
use crate::schedule::Schedule;
use crate::verify::{MISMATCHES_MAX, Mismatch, Verifier, Watch};
use crate::worker::{BURST_MAX, Interval, Outcome, Plan, Worker};
use crate::workload::{Sampler, Workload, read_handles};

/// What is due at the end of a run, but not sent so much later, is not sent at all.
const OVERTIME_MAX: Duration = Duration::from_millis(10);

/// Between the last thread's being ready and the first request.
const HEAD_START: Duration = Duration::from_millis(20);

/// Datagrams taken at once. More than are sent at once, for answers in several pieces.
const RECEIVE_BATCH_LEN: usize = 256;

/// Bytes of a receive buffer. Servers send at most 512; what is larger is counted as malformed.
const RECEIVE_LEN: usize = 2048;

/// Does a run, and calls `progress` once a second; when that breaks, the run ends early and counts what
/// was not sent.
///
/// # Errors
///
/// When the run cannot start, or a datapath fails. That a server answers badly or not at all is no
/// error: the report says so.
///
/// # Panics
///
/// When the accounts do not add up, which would be a bug of this crate.
pub fn run(
    options: &RunOptions,
    mut progress: impl FnMut(&Second) -> ControlFlow<()>,
) -> Result<Report, Error> {
    options.check()?;
    let workload = load_names(options)?;
    let set = options.verify.as_ref().map(|verify| published::open(&verify.snapshot)).transpose()?;
    let local = local_address(options.target).map_err(Error::Open)?;
    let (messages_in, messages) = channel();
    let (stop, verified) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        // Also when `progress` or a thread panics: a scope waits for all of its threads.
        let _stop_all = (SetOnDrop(&stop), SetOnDrop(&verified));
        let mut starts = Vec::new();
        let mut threads = Vec::new();
        for number in 0..options.threads {
            let (start_in, start) = channel();
            starts.push(start_in);
            let messages = messages_in.clone();
            let thread = Thread { number, options, workload: &workload, local, stop: &stop };
            threads.push(scope.spawn(move || {
                thread.run(&start, &messages).inspect_err(|_| {
                    // What the others would measure alone is not what was asked for.
                    thread.stop.store(true, Ordering::Relaxed);
                    let _ = messages.send(Message::Failed);
                })
            }));
        }
        drop(messages_in);
        let kind = match all_ready(&messages, options.threads) {
            Some(kind) => kind,
            // A thread that ends before it was ready says why. The others end when nobody starts them.
            None => {
                drop(starts);
                let mut results = threads.into_iter().map(|thread| thread.join().unwrap_or_else(resume));
                return Err(results.find_map(Result::err).expect("a thread did not start"));
            }
        };
        let clock = Clock::new(Instant::now() + HEAD_START);
        let follower = set.map(|set| Follower::new(set, clock, keep_ns(options)));
        let watch = follower.as_ref().map(Follower::watch);
        let following = follower.map(|follower| scope.spawn(|| follower.follow(&verified)));
        for start in starts {
            // A thread that is gone says why when it is joined.
            let _ = start.send(Start { clock, watch: watch.clone() });
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
        let total = sum(outcomes, options.verify.is_some());
        let stopped = stop.load(Ordering::Relaxed);
        Ok(Report::new(options, &workload, &total, &Seen { kind, clock, followed, stopped, seconds }))
    })
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Goes on with the panic of a thread.
fn resume<T>(panic: Box<dyn std::any::Any + Send>) -> T {
    std::panic::resume_unwind(panic)
}

/// How long a set is kept after its end: as long as an answer that is still waited for may be from it.
fn keep_ns(options: &RunOptions) -> i64 {
    let staleness = options.verify.as_ref().map_or(Duration::ZERO, |verify| verify.staleness_max);
    let keep = 2 * options.timeout + staleness + Duration::from_secs(2);
    i64::try_from(keep.as_nanos()).unwrap_or(i64::MAX)
}

fn load_names(options: &RunOptions) -> Result<Workload, Error> {
    let mut sampler = Sampler::new(options.handles_max, options.seed);
    let path = match &options.names {
        Names::File(path) => {
            read_handles(path, &mut sampler)?;
            path.clone()
        }
        Names::Snapshot(dir) => {
            published::read_handles(&published::open(dir)?, &mut sampler)?;
            dir.clone()
        }
        Names::List(handles) => {
            handles.iter().for_each(|handle| sampler.offer(handle));
            PathBuf::from("the list")
        }
    };
    let too_long = sampler.too_long();
    let now_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let workload = sampler.finish(u32::try_from(now_unix_s).unwrap_or(u32::MAX))?;
    if workload.is_empty() { Err(Error::NoHandles { path, too_long }) } else { Ok(workload) }
}

/// Our address on the way to `target`. A socket that is bound to it spares the kernel a note about the
/// address with each datagram.
fn local_address(target: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    Ok(socket.local_addr()?.ip())
}

/// What a thread tells while it runs.
enum Message {
    Ready(Kind),
    /// It has ended, and says why when it is joined.
    Failed,
    Tick {
        thread: usize,
        second: u64,
        now_ns: u64,
        interval: Box<Interval>,
    },
}

/// What a thread needs to begin.
struct Start {
    clock: Clock,
    watch: Option<Arc<Watch>>,
}

struct Thread<'a> {
    number: usize,
    options: &'a RunOptions,
    workload: &'a Workload,
    local: IpAddr,
    stop: &'a AtomicBool,
}

impl Thread<'_> {
    /// `None` when nobody started it.
    fn run(&self, start: &Receiver<Start>, messages: &Sender<Message>) -> Result<Option<Outcome>, Error> {
        let options = self.options;
        if !options.cores.is_empty() {
            let core = options.cores[self.number % options.cores.len()];
            pin_to_core(core).map_err(|error| Error::Core(core, error))?;
        }
        let socket = Options {
            batch_len: RECEIVE_BATCH_LEN,
            receive_len: RECEIVE_LEN,
            outbox_datagrams: BURST_MAX,
            outbox_len: BURST_MAX * UDP_MESSAGE_LEN_MAX,
            ..Options::new(SocketAddr::new(self.local, 0)).one_at_a_time()
        };
        let mut path = open(options.datapath, &socket).map_err(Error::Open)?.path;
        let mut worker = Worker::new(
            self.plan(),
            self.workload,
            Peer::to(options.target),
            duration_ns(options.timeout),
            Random::new(options.seed, self.number as u64),
            options.table_capacity(),
        );
        let _ = messages.send(Message::Ready(path.kind()));
        let Ok(Start { clock, watch }) = start.recv() else { return Ok(None) };
        if let (Some(watch), Some(verify)) = (watch, &options.verify) {
            let staleness_ns = i64::try_from(verify.staleness_max.as_nanos()).unwrap_or(i64::MAX);
            worker.verify(Verifier::new(watch, staleness_ns));
        }
        drive(&mut worker, &mut *path, clock, self.stop, |second, now_ns, interval| {
            let interval = Box::new(interval);
            let _ = messages.send(Message::Tick { thread: self.number, second, now_ns, interval });
        })
        .map_err(Error::Datapath)?;
        Ok(Some(worker.finish(path.kernel_drops())))
    }

    fn plan(&self) -> Plan {
        let duration = self.options.duration;
        match self.options.load {
            Load::Open { rate } => Plan::Open {
                share: Schedule::constant(rate, duration)
                    .share(self.number as u64, self.options.threads as u64),
                until_ns: duration_ns(duration + OVERTIME_MAX),
            },
            Load::Closed { window } => Plan::Closed { window, until_ns: duration_ns(duration) },
        }
    }
}

fn duration_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits until all threads are ready; `None` when one has ended instead.
fn all_ready(messages: &Receiver<Message>, threads: usize) -> Option<Kind> {
    let mut kinds = Vec::new();
    while kinds.len() < threads {
        match messages.recv() {
            Ok(Message::Ready(kind)) => kinds.push(kind),
            Ok(Message::Tick { .. }) => {}
            Ok(Message::Failed) | Err(_) => return None,
        }
    }
    // The same options open the same path in all threads, or else the slower kind is the one to name.
    kinds.iter().copied().find(|kind| *kind == Kind::Portable).or(kinds.first().copied())
}

/// Adds up the ticks of all threads, and passes each second on once all have told of it.
fn collect(messages: &Receiver<Message>, threads: usize, mut each: impl FnMut(&Second)) -> Vec<Second> {
    let mut open = BTreeMap::<u64, (u64, Interval)>::new();
    let mut told = vec![0; threads];
    let mut seconds = Vec::new();
    let mut totals = Second::default();
    let mut close = |open: &mut BTreeMap<u64, (u64, Interval)>, before: u64| {
        while let Some(first) = open.first_entry().filter(|first| *first.key() < before) {
            let (number, (end_ns, interval)) = first.remove_entry();
            totals = Second::after(&totals, number * TICK_NS, end_ns, &interval);
            // The moment of waiting for the last answers is in the report, and no second to show.
            if interval.sent > 0 || end_ns - number * TICK_NS > TICK_NS / 2 {
                each(&totals);
            }
            seconds.push(totals.clone());
        }
    };
    while let Ok(message) = messages.recv() {
        let Message::Tick { thread, second, now_ns, interval } = message else { continue };
        let (end_ns, sum) = open.entry(second).or_default();
        *end_ns = now_ns.max(*end_ns);
        sum.add(&interval);
        told[thread] = now_ns / TICK_NS;
        close(&mut open, told.iter().copied().min().unwrap_or(0));
    }
    close(&mut open, u64::MAX);
    seconds
}

/// What all threads have to report together.
#[derive(Debug, Default)]
pub(crate) struct Total {
    pub(crate) counts: Counts,
    pub(crate) latency: Latency,
    pub(crate) mismatches: Vec<Mismatch>,
    pub(crate) staleness_max_ns: i64,
    pub(crate) sending_ns: u64,
}

fn sum(outcomes: Vec<Outcome>, verify: bool) -> Total {
    let mut total = Total::default();
    for outcome in outcomes {
        total.counts.add(&outcome.counts);
        total.latency.add(&outcome.latency);
        total.mismatches.extend(outcome.mismatches);
        total.staleness_max_ns = total.staleness_max_ns.max(outcome.staleness_max_ns);
        total.sending_ns = total.sending_ns.max(outcome.last_sent_ns);
    }
    total.mismatches.sort_by_key(|mismatch| mismatch.sent_ns);
    total.mismatches.truncate(MISMATCHES_MAX);
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

impl Second {
    /// The second that began at `start_ns`, after `previous`.
    fn after(previous: &Self, start_ns: u64, end_ns: u64, interval: &Interval) -> Self {
        let span_s = end_ns.saturating_sub(start_ns).max(1) as f64 / 1e9;
        Self {
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
        }
    }
}

/// What was seen of the directory, for the report.
impl Followed {
    /// Whether judging was hampered.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.missed == 0 && self.failed == 0
    }
}
