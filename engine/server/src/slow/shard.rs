//! A worker's end of the slow path.

use super::SlowPath;
use super::queue::{Job, Route};
use crate::counters::{Counter, Counters, Transport};
use crate::watch::Watch;
use handle_net::{Datapath, Peer, Waker};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use std::collections::VecDeque;
use std::sync::Arc;

/// Hands requests over, and sends what comes back.
#[derive(Debug)]
pub(crate) struct SlowShard {
    path: Option<Arc<SlowPath>>,
    shard: usize,
    /// Requests that have not come back.
    under_way: u64,
    /// Those that are not handed over yet.
    unsent: VecDeque<Box<Job>>,
}

impl SlowShard {
    /// The end of worker `shard`; answers wake it by `waker`.
    pub(crate) fn open(path: Option<Arc<SlowPath>>, shard: usize, waker: Waker) -> Self {
        if let Some(path) = &path {
            path.queues.attach(shard, waker);
        }
        Self { path, shard, under_way: 0, unsent: VecDeque::new() }
    }

    /// Hands over a request, envelope first. False when everything is full; then the worker says so.
    #[cold]
    pub(crate) fn defer(&mut self, route: Route, request: &[u8], counters: &Counters) -> bool {
        let Some(path) = &self.path else { return false };
        let Some(job) = path.queues.take(self.shard, route, request) else { return false };
        self.unsent.push_back(job);
        path.queues.submit(&mut self.unsent);
        self.under_way += 1;
        counters.requests_deferred.add(1);
        self.under_way_of(&route, counters).add(1);
        true
    }

    /// Whether every request has come back.
    pub(crate) const fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// The next request that has come back. It is to be [released](Self::release) once it is sent.
    #[inline]
    pub(crate) fn answered(&mut self, counters: &Counters) -> Option<Box<Job>> {
        if self.is_idle() {
            return None;
        }
        let queues = &self.path.as_ref()?.queues;
        if !self.unsent.is_empty() {
            queues.submit(&mut self.unsent);
        }
        let job = queues.answered(self.shard)?;
        let under_way = self.under_way_of(&job.route, counters);
        under_way.set(under_way.get() - 1);
        self.under_way -= 1;
        Some(job)
    }

    /// Lets a job be used again.
    pub(crate) fn release(&self, job: Box<Job>) {
        if let Some(path) = &self.path {
            path.queues.release(job);
        }
    }

    fn under_way_of<'c>(&self, route: &Route, counters: &'c Counters) -> &'c Counter {
        match route {
            Route::Udp(_) => &counters.requests_under_way,
            Route::Tcp(..) => &counters.tcp_requests_under_way,
        }
    }
}

/// Sends an answer that has come back as datagrams to `peer`. The caller flushes.
///
/// # Errors
/// Those of the datapath, when it is of no more use.
#[cold]
pub(crate) fn send(
    net: &mut dyn Datapath,
    peer: Peer,
    job: &Job,
    watch: &mut Watch,
    counters: &Counters,
) -> std::io::Result<()> {
    let is_sent = !job.answer.is_empty()
        && (push(net, peer, &job.answer) || {
            // It has room for any one answer once it is empty.
            crate::worker::flush(net, counters)?;
            push(net, peer, &job.answer)
        });
    if is_sent {
        counters.requests_answered.add(1);
        counters.bytes_sent.add(job.answer.len() as u64);
        counters.count_reply(Transport::Udp, job.code, job.refused);
        watch.sent(job, counters);
    } else {
        counters.dropped_bug.add(1);
    }
    Ok(())
}

fn push(net: &mut dyn Datapath, peer: Peer, answer: &[u8]) -> bool {
    let len = answer.len();
    let write = |room: &mut [u8]| {
        room[..len].copy_from_slice(answer);
        len
    };
    net.outbox().push_train(peer, UDP_MESSAGE_LEN_MAX, len, write).is_ok()
}
