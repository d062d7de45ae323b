//! Requests on their way from the workers to the slow threads, and their answers on the way back.
//!
//! There are so many jobs, made at the start. A worker takes a free one, and finds none when everything is
//! full; a job that is on its way always has a place in the next queue, so no answer can be lost for want of
//! room.

use crate::counters::Transport;
use crossbeam_channel::{Receiver, Sender, bounded};
use handle_net::{Peer, StreamId, Waker};
use handle_proto::ResponseCode;
use handle_resolver::Refused;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Instant;

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Datagrams to a peer.
    Udp(Peer),
    /// A connection, and who has it.
    Tcp(StreamId, IpAddr),
}

impl Route {
    /// Whether the answer is cut into datagrams.
    pub(crate) const fn is_datagram(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    /// How the request came.
    pub(crate) const fn transport(&self) -> Transport {
        match self {
            Self::Udp(_) => Transport::Udp,
            Self::Tcp(..) => Transport::Tcp,
        }
    }

    /// Who asks.
    pub(crate) fn source(&self) -> IpAddr {
        match self {
            Self::Udp(peer) => peer.remote().ip(),
            Self::Tcp(_, source) => *source,
        }
    }
}

/// A request, and then its answer. Its buffers are used again.
#[derive(Debug)]
pub(crate) struct Job {
    /// The worker that has it from the network.
    pub(crate) shard: usize,
    /// Where the answer goes.
    pub(crate) route: Route,
    /// When it was handed over.
    pub(crate) since: Instant,
    /// The request, envelope first.
    pub(crate) request: Vec<u8>,
    /// The answer, as it goes to the network; empty when there is none because of a bug.
    pub(crate) answer: Vec<u8>,
    /// The code of the answer.
    pub(crate) code: ResponseCode,
    /// Why it is an error, if it is one.
    pub(crate) refused: Option<Refused>,
}

/// Bytes that a buffer may keep between two jobs.
const KEPT_LEN: usize = 16 << 10;
/// Bytes that a buffer has from the start: a request in one datagram, and an answer in a few.
const REQUEST_LEN: usize = 512;
const ANSWER_LEN: usize = 2048;

impl Job {
    fn new() -> Self {
        let nobody = ([0, 0, 0, 0], 0).into();
        Self {
            shard: 0,
            route: Route::Udp(Peer::to(nobody)),
            since: Instant::now(),
            request: Vec::with_capacity(REQUEST_LEN),
            answer: Vec::with_capacity(ANSWER_LEN),
            code: ResponseCode::RESERVED,
            refused: None,
        }
    }

    fn clear(&mut self) {
        for buffer in [&mut self.request, &mut self.answer] {
            buffer.clear();
            if buffer.capacity() > KEPT_LEN {
                buffer.shrink_to(REQUEST_LEN);
            }
        }
    }
}

/// Both ways, and the jobs that are free.
#[derive(Debug)]
pub(crate) struct Queues {
    free: (Sender<Box<Job>>, Receiver<Box<Job>>),
    asked: (Sender<Box<Job>>, Receiver<Box<Job>>),
    answered: Box<[Back]>,
}

/// The way back to one worker.
#[derive(Debug)]
struct Back {
    jobs: (Sender<Box<Job>>, Receiver<Box<Job>>),
    /// Set when the worker has opened its path.
    waker: OnceLock<Waker>,
}

impl Queues {
    /// Queues for `workers_count` workers and `jobs_count` jobs.
    pub(crate) fn new(workers_count: usize, jobs_count: usize) -> Self {
        let back = || Back { jobs: bounded(jobs_count), waker: OnceLock::new() };
        let queues = Self {
            free: bounded(jobs_count),
            asked: bounded(jobs_count),
            answered: (0..workers_count).map(|_| back()).collect(),
        };
        (0..jobs_count).for_each(|_| queues.release(Box::new(Job::new())));
        queues
    }

    /// Lets `waker` end the waits of worker `shard` when there is an answer for it.
    pub(crate) fn attach(&self, shard: usize, waker: Waker) {
        // A worker opens its path once.
        let _ = self.answered[shard].waker.set(waker);
    }

    /// Hands a request over. False when everything is full.
    pub(crate) fn submit(&self, shard: usize, route: Route, request: &[u8]) -> bool {
        let Ok(mut job) = self.free.1.try_recv() else { return false };
        (job.shard, job.route, job.since) = (shard, route, Instant::now());
        job.request.extend_from_slice(request);
        // There is room for every job there is.
        self.asked.0.try_send(job).is_ok()
    }

    /// The next request, for a slow thread; waits for one. `None` when there will be no more.
    pub(crate) fn next(&self, stop: &Receiver<()>) -> Option<Box<Job>> {
        crossbeam_channel::select_biased! {
            recv(self.asked.1) -> job => job.ok(),
            recv(stop) -> _ => None,
        }
    }

    /// Sends an answer back to its worker.
    pub(crate) fn give_back(&self, job: Box<Job>) {
        let Some(back) = self.answered.get(job.shard) else { return self.release(job) };
        match back.jobs.0.try_send(job) {
            // To wake a worker for each answer costs a tenth of a signature, so while there is more to do it is
            // left to look for itself, see `Worker::run`.
            Ok(()) if !self.asked.1.is_empty() => {}
            Ok(()) => back.waker.get().into_iter().for_each(Waker::wake),
            Err(error) => self.release(error.into_inner()),
        }
    }

    /// The next answer for worker `shard`, if there is one. To be [released](Self::release) once it is sent.
    #[inline]
    pub(crate) fn answered(&self, shard: usize) -> Option<Box<Job>> {
        self.answered[shard].jobs.1.try_recv().ok()
    }

    /// Lets a job be used again.
    pub(crate) fn release(&self, mut job: Box<Job>) {
        job.clear();
        // There is room for every job there is.
        let _ = self.free.0.try_send(job);
    }

    /// Requests that wait for a slow thread.
    pub(crate) fn waiting(&self) -> usize {
        self.asked.1.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(port: u16) -> Route {
        Route::Udp(Peer::to(([127, 0, 0, 1], port).into()))
    }

    #[test]
    fn so_many_requests_are_on_their_way_and_no_more() {
        let queues = Queues::new(2, 3);
        let (_stop, stop) = bounded(0);
        for n in 0..3 {
            assert!(queues.submit(usize::from(n) % 2, route(n), &[1; 600]), "{n}");
        }
        assert!(!queues.submit(0, route(9), b"one too many"));
        let jobs: Vec<_> = (0..3).map(|_| queues.next(&stop).unwrap()).collect();
        assert!(!queues.submit(0, route(9), b"a request that is being answered has its place too"));
        jobs.into_iter().for_each(|job| queues.give_back(job));
        assert!(!queues.submit(0, route(9), b"and so has an answer"));
        let first = queues.answered(0).unwrap();
        assert_eq!((first.route, first.request.len()), (route(0), 600));
        queues.release(first);
        assert!(queues.submit(1, route(9), b"until it is sent"));
        assert_eq!(queues.next(&stop).unwrap().request, b"until it is sent", "nothing is left of the last");
        assert!(queues.answered(0).is_some() && queues.answered(0).is_none());
        assert!(queues.answered(1).is_some() && queues.answered(1).is_none());
    }

    #[test]
    fn large_buffers_are_not_kept() {
        let queues = Queues::new(1, 1);
        let (_stop, stop) = bounded(0);
        assert!(queues.submit(0, route(1), &[0; 1 << 20]));
        queues.release(queues.next(&stop).unwrap());
        assert!(queues.submit(0, route(1), b"x"));
        assert!(queues.next(&stop).unwrap().request.capacity() <= KEPT_LEN);
    }
}
