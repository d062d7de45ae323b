//! The queues that carry requests from the workers to the slow threads, and answers back.
//!
//! The number of jobs is fixed at the start. A worker takes a free job; when there is none, the
//! slow path is full. A job under way always has a slot in the next queue, so no answer is lost
//! for lack of capacity.
//!
//! The next request is chosen by the work already done for each source ([`handle_auth::fair`]), and
//! no source can take all jobs.
//!
//! A slow thread has a lower priority than the workers, so it can be descheduled anywhere, also
//! while it holds a lock. A worker that waited for that lock (or spun, as lock-free queues do while
//! another thread is halfway through an update) would keep the slow thread from running. So a
//! worker only tries the locks that slow threads take, and tries again later when one is taken.

use super::resolution::MissingState;
use crate::counters::Transport;
use crate::forward::state::ForwardState;
use crate::sessions::sealer::each_datagram_part;
use crossbeam_utils::CachePadded;
use handle_auth::clock::MonotonicClock;
use handle_auth::cost::Units;
use handle_auth::fair::{FairQueue, Shares};
use handle_auth::source::{RequestOrigin, SourceList};
use handle_daemon::threads::lock;
use handle_net::{Peer, StreamId, Waker};
use handle_proto::ResponseCode;
use handle_resolver::RefusalReason;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Instant;

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobRoute {
    /// Datagrams to a peer.
    Udp(Peer),
    /// A connection, and the address of its client.
    Tcp(StreamId, IpAddr),
}

impl JobRoute {
    /// Whether the answer is cut into datagrams.
    pub(crate) const fn is_datagram(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    /// The transport over which the request arrived.
    pub(crate) const fn transport(&self) -> Transport {
        match self {
            Self::Udp(_) => Transport::Udp,
            Self::Tcp(..) => Transport::Tcp,
        }
    }

    /// The origin of the request, for limits by source.
    pub(crate) fn origin(&self) -> RequestOrigin {
        match self {
            Self::Udp(peer) => RequestOrigin::datagram(peer.remote().ip()),
            Self::Tcp(_, source) => RequestOrigin::connection(*source),
        }
    }
}

/// A request and later its answer. The buffers are reused.
#[derive(Debug)]
pub(crate) struct SlowJob {
    /// The worker that received the request from the network.
    pub(crate) shard: usize,
    /// Where the answer goes.
    pub(crate) route: JobRoute,
    /// When the request was received.
    pub(crate) since: Instant,
    /// The request, envelope first.
    pub(crate) request: Vec<u8>,
    /// The answer in the form that is sent to the network; empty when a bug prevented one.
    pub(crate) answer: Vec<u8>,
    /// Whether the request proves the address of its sender, so that the answer is exempt from rate
    /// limits.
    pub(crate) is_proven: bool,
    /// The code of the answer.
    pub(crate) code: ResponseCode,
    /// Why the answer is an error, if it is one.
    pub(crate) refused: Option<RefusalReason>,
    /// The state of forwarding while another process answers the request.
    pub(crate) forwarding: Option<Box<ForwardState>>,
    /// The state of the request while its record is not in the cache of a caching server.
    pub(crate) missing: Option<Box<MissingState>>,
    /// Whether a part of the answer was sent already.
    pub(crate) is_continued: bool,
    /// The work that was done for the request.
    pub(crate) cost: Units,
}

/// Bytes of capacity that a buffer keeps between two jobs.
const KEPT_LEN: usize = 16 << 10;
/// Initial capacity of the buffers in bytes: a request in one datagram, and an answer in a few.
const REQUEST_LEN: usize = 512;
const ANSWER_LEN: usize = 2048;

impl SlowJob {
    fn new() -> Self {
        let unspecified = ([0, 0, 0, 0], 0).into();
        Self {
            shard: 0,
            route: JobRoute::Udp(Peer::to(unspecified)),
            since: Instant::now(),
            request: Vec::with_capacity(REQUEST_LEN),
            answer: Vec::with_capacity(ANSWER_LEN),
            is_proven: false,
            code: ResponseCode::RESERVED,
            refused: None,
            forwarding: None,
            missing: None,
            is_continued: false,
            cost: 0,
        }
    }

    /// Whether more parts of the answer follow.
    pub(crate) fn has_more(&self) -> bool {
        self.forwarding.as_ref().is_some_and(|forwarding| forwarding.has_more())
    }

    /// Stores `messages` as the answer, in the form that is sent to the network.
    pub(crate) fn put_answer(&mut self, messages: &[u8]) {
        match self.route.is_datagram() {
            true => each_datagram_part(messages, |part| self.answer.extend_from_slice(part)),
            false => self.answer.extend_from_slice(messages),
        }
    }

    fn clear(&mut self) {
        (self.forwarding, self.missing) = (None, None);
        (self.is_continued, self.is_proven) = (false, false);
        for buffer in [&mut self.request, &mut self.answer] {
            buffer.clear();
            if buffer.capacity() > KEPT_LEN {
                buffer.shrink_to(REQUEST_LEN);
            }
        }
    }
}

/// The queues in both directions, and the free jobs.
#[derive(Debug)]
pub(crate) struct JobQueues {
    /// Only workers take this lock, except for a job whose worker does not exist.
    free: Mutex<FreeJobs>,
    clock: MonotonicClock,
    queued: Mutex<JobQueue>,
    /// Signals that a request was queued, or that the queue was closed.
    more: Condvar,
    /// The number of jobs in `queued`.
    waiting: AtomicUsize,
    returns: Box<[CachePadded<ReturnQueue>]>,
}

#[derive(Debug)]
struct FreeJobs {
    #[expect(clippy::vec_box, reason = "a job moves from queue to queue")]
    jobs: Vec<Box<SlowJob>>,
    /// How many of the jobs in use each source has.
    shares: Shares,
}

#[derive(Debug, Default)]
struct JobQueue {
    jobs: FairQueue<Box<SlowJob>>,
    /// The number of slow threads that wait for a job.
    idle: usize,
    closed: bool,
}

/// The queue of answers for one worker.
#[derive(Debug)]
struct ReturnQueue {
    jobs: Mutex<VecDeque<Box<SlowJob>>>,
    /// Set once the worker has opened its datapath.
    waker: OnceLock<Waker>,
}

impl JobQueues {
    /// Creates queues for `workers_count` workers and `jobs_count` jobs. The sources in `exempt`
    /// may use all jobs.
    pub(crate) fn new(workers_count: usize, jobs_count: usize, exempt: SourceList) -> Self {
        let jobs = || VecDeque::with_capacity(jobs_count);
        let back = || CachePadded::new(ReturnQueue { jobs: Mutex::new(jobs()), waker: OnceLock::new() });
        Self {
            free: Mutex::new(FreeJobs {
                jobs: (0..jobs_count).map(|_| Box::new(SlowJob::new())).collect(),
                shares: Shares::new(jobs_count, exempt),
            }),
            clock: MonotonicClock::start(),
            queued: Mutex::default(),
            more: Condvar::new(),
            waiting: AtomicUsize::new(0),
            returns: (0..workers_count).map(|_| back()).collect(),
        }
    }

    /// Registers `waker`, which wakes worker `shard` when there is an answer for it.
    pub(crate) fn attach(&self, shard: usize, waker: Waker) {
        // A worker opens its datapath once.
        let _ = self.returns[shard].waker.set(waker);
    }

    /// Takes a free job for a request received at `now`, to be [submitted](Self::submit). Returns
    /// `None` when all jobs are in use, or the source has its share of them.
    pub(crate) fn take(
        &self,
        shard: usize,
        route: JobRoute,
        request: &[u8],
        now: Instant,
    ) -> Option<Box<SlowJob>> {
        let mut free = lock(&self.free);
        if !free.shares.enter_charged(route.origin(), self.clock.ms_at(now)) {
            return None;
        }
        let mut job = free.jobs.pop()?;
        drop(free);
        (job.shard, job.route, job.since, job.cost) = (shard, route, now, 0);
        job.request.extend_from_slice(request);
        Some(job)
    }

    /// Hands over the jobs of a worker, in order. While a slow thread holds the lock of the queue,
    /// the jobs stay in `jobs`.
    pub(crate) fn submit(&self, jobs: &mut VecDeque<Box<SlowJob>>) {
        let Some(mut queue) = try_lock(&self.queued) else { return };
        let woken = queue.idle.min(jobs.len());
        self.waiting.fetch_add(jobs.len(), Ordering::Relaxed);
        jobs.drain(..).for_each(|job| queue.jobs.push(job.route.origin(), job));
        drop(queue);
        (0..woken).for_each(|_| self.more.notify_one());
    }

    /// Waits for the next request, for a slow thread. Returns `None` when the queue is closed.
    pub(crate) fn next(&self) -> Option<Box<SlowJob>> {
        let mut queue = lock(&self.queued);
        loop {
            if queue.closed {
                return None;
            }
            if let Some(job) = queue.jobs.pop(self.clock.now_ms()) {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                return Some(job);
            }
            queue.idle += 1;
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    /// Ends the slow threads after their current job. Waiting jobs are discarded: the workers have
    /// ended, so the answers would not be sent, and threads of low priority could take minutes to
    /// make them.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.queued);
        queue.closed = true;
        self.waiting.fetch_sub(queue.jobs.len(), Ordering::Relaxed);
        queue.jobs.clear();
        drop(queue);
        self.more.notify_all();
    }

    /// Hands over a job whose record has been resolved, so that a slow thread goes on with it. May
    /// block, so workers do not call it. After [`close`](Self::close) the job is discarded.
    pub(crate) fn resume(&self, job: Box<SlowJob>) {
        let mut queue = lock(&self.queued);
        if queue.closed {
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        queue.jobs.push(job.route.origin(), job);
        drop(queue);
        self.more.notify_one();
    }

    /// Returns an answer to its worker, and charges the source with the work.
    pub(crate) fn give_back(&self, job: Box<SlowJob>) {
        lock(&self.queued).jobs.charge(job.route.origin(), job.cost, self.clock.now_ms());
        let Some(back) = self.returns.get(job.shard) else { return self.release(job) };
        lock(&back.jobs).push_back(job);
        // Waking a worker for each answer costs a tenth of a signature. While more requests wait,
        // the worker is left to poll for answers, see `Worker::run`.
        if self.waiting() == 0 {
            back.waker.get().into_iter().for_each(Waker::wake);
        }
    }

    /// The next answer for worker `shard`, if there is one. The job is to be
    /// [released](Self::release) once the answer is sent.
    #[inline]
    pub(crate) fn answered(&self, shard: usize) -> Option<Box<SlowJob>> {
        try_lock(&self.returns[shard].jobs)?.pop_front()
    }

    /// Returns a job to the free ones.
    pub(crate) fn release(&self, mut job: Box<SlowJob>) {
        job.clear();
        let (origin, cost, now_ms) = (job.route.origin(), job.cost, self.clock.now_ms());
        let mut free = lock(&self.free);
        free.shares.leave(origin);
        free.shares.charge(origin, cost, now_ms);
        free.jobs.push(job);
    }

    /// The number of requests that wait for a slow thread.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Locks `mutex` if no other thread holds it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(port: u16) -> JobRoute {
        JobRoute::Udp(Peer::to(([127, 0, 0, 1], port).into()))
    }

    fn ask(queues: &JobQueues, shard: usize, port: u16, request: &[u8]) -> bool {
        let Some(job) = queues.take(shard, route(port), request, Instant::now()) else { return false };
        let mut jobs = VecDeque::from([job]);
        queues.submit(&mut jobs);
        jobs.is_empty()
    }

    #[test]
    fn so_many_requests_are_on_their_way_and_no_more() {
        let queues = JobQueues::new(2, 3, SourceList::default());
        for n in 0..3 {
            assert!(ask(&queues, usize::from(n) % 2, n, &[1; 600]), "{n}");
        }
        assert_eq!(queues.waiting(), 3);
        assert!(!ask(&queues, 0, 9, b"one too many"));
        let jobs: Vec<_> = (0..3).map(|_| queues.next().unwrap()).collect();
        assert_eq!(queues.waiting(), 0);
        assert!(!ask(&queues, 0, 9, b"a request that is being answered has its place too"));
        jobs.into_iter().for_each(|job| queues.give_back(job));
        assert!(!ask(&queues, 0, 9, b"and so has an answer"));
        let first = queues.answered(0).unwrap();
        assert_eq!((first.route, first.request.len()), (route(0), 600));
        queues.release(first);
        assert!(ask(&queues, 1, 9, b"until it is sent"));
        assert_eq!(queues.next().unwrap().request, b"until it is sent", "nothing is left of the last");
        assert!(queues.answered(0).is_some() && queues.answered(0).is_none());
        assert!(queues.answered(1).is_some() && queues.answered(1).is_none());
    }

    #[test]
    fn a_source_waits_behind_those_that_less_was_done_for_and_does_not_take_all() {
        let queues = JobQueues::new(1, 16, SourceList::default());
        let ask = |host: u8, request: &[u8]| {
            let route = JobRoute::Udp(Peer::to(([10, host, 0, 1], 1).into()));
            let job = queues.take(0, route, request, Instant::now());
            let job = job.map(|job| queues.submit(&mut VecDeque::from([job])));
            job.is_some()
        };
        assert!(ask(1, b"first"));
        let mut dear = queues.next().unwrap();
        dear.cost = 160_000;
        queues.give_back(dear);
        assert_eq!((0..9).filter(|_| ask(1, b"more")).count(), 3, "a quarter, with the one that is answered");
        assert!(ask(2, b"other") && ask(3, b"third"));
        let order: Vec<_> = (0..5).map(|_| queues.next().unwrap().request.clone()).collect();
        assert_eq!(order[..2], [&b"other"[..], b"third"]);
    }

    #[test]
    fn large_buffers_are_not_kept() {
        let queues = JobQueues::new(1, 1, SourceList::default());
        assert!(ask(&queues, 0, 1, &[0; 1 << 20]));
        queues.release(queues.next().unwrap());
        assert!(ask(&queues, 0, 1, b"x"));
        assert!(queues.next().unwrap().request.capacity() <= KEPT_LEN);
    }

    #[test]
    fn workers_do_not_wait_for_a_slow_thread_that_stands_still() {
        let queues = JobQueues::new(1, 2, SourceList::default());
        let mut jobs: VecDeque<_> =
            (0..2).filter_map(|n| queues.take(0, route(n), b"asked", Instant::now())).collect();
        {
            let _standing = lock(&queues.queued);
            queues.submit(&mut jobs);
            assert_eq!(jobs.len(), 2, "kept for later");
        }
        queues.submit(&mut jobs);
        assert!(jobs.is_empty());
        for _ in 0..2 {
            queues.give_back(queues.next().unwrap());
        }
        {
            let _standing = lock(&queues.returns[0].jobs);
            assert!(queues.answered(0).is_none(), "looked for later");
        }
        assert_eq!(queues.answered(0).unwrap().route, route(0), "in their order");
    }

    #[test]
    fn what_waits_is_let_go_at_the_end() {
        let queues = JobQueues::new(1, 3, SourceList::default());
        assert!(ask(&queues, 0, 1, b"asked") && ask(&queues, 0, 2, b"asked, too"));
        let under_way = queues.next().unwrap();
        queues.close();
        assert!(queues.next().is_none() && queues.waiting() == 0);
        queues.give_back(under_way);
        assert_eq!(queues.answered(0).unwrap().route, route(1), "what was begun is done");
        assert!(ask(&queues, 0, 3, b"too late") && queues.next().is_none());
    }

    #[test]
    fn who_waits_is_notified_of_the_end() {
        let queues = JobQueues::new(1, 1, SourceList::default());
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| std::iter::from_fn(|| queues.next()).count());
            while lock(&queues.queued).idle == 0 {
                std::thread::yield_now();
            }
            queues.close();
            assert_eq!(slow.join().unwrap(), 0);
        });
    }
}
