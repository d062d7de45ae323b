//! A worker's end of the slow path.

use super::SlowPath;
use super::queue::{JobRoute, SlowJob};
use crate::counters::{Counter, Counters, Transport};
use crate::forward::queue::ForwardItem;
use crate::rate_limit::{RateLimit, SlowRequest};
use crate::telemetry::WorkerTelemetry;
use handle_net::{Datapath, Peer, StreamId, Waker};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_resolver::RefusalReason;
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
    unsent: VecDeque<Box<SlowJob>>,
    /// Listings of which a part was sent, until that has been read.
    #[expect(clippy::vec_box, reason = "a job moves from queue to queue")]
    listings: Vec<Box<SlowJob>>,
    /// Listings whose next part is wanted, or that are to end, and are not handed over yet.
    unsent_listings: VecDeque<ForwardItem>,
}

/// What the reader of a listing does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListingReader {
    /// It has read what was sent.
    Ready,
    /// It has not.
    Reading,
    /// It has gone.
    Gone,
}

impl SlowShard {
    /// The end of worker `shard`; answers wake it by `waker`.
    pub(crate) fn open(path: Option<Arc<SlowPath>>, shard: usize, waker: Waker) -> Self {
        if let Some(path) = &path {
            path.queues.attach(shard, waker);
        }
        Self {
            path,
            shard,
            under_way: 0,
            unsent: VecDeque::new(),
            listings: Vec::new(),
            unsent_listings: VecDeque::new(),
        }
    }

    /// Hands over a request, envelope first. False when everything is full; then the worker says so.
    #[cold]
    pub(crate) fn defer(&mut self, route: JobRoute, request: &[u8], counters: &Counters) -> bool {
        let Some(path) = &self.path else { return false };
        let Some(job) = path.queues.take(self.shard, route, request) else { return false };
        self.unsent.push_back(job);
        path.queues.submit(&mut self.unsent);
        self.under_way += 1;
        counters.requests_deferred.add(1);
        self.under_way_of(&route, counters).add(1);
        true
    }

    /// What is said to a datagram for which there is no place.
    pub(crate) fn when_full(&self) -> RefusalReason {
        self.path.as_ref().map_or(RefusalReason::Busy, |path| path.when_full)
    }

    /// Whether every request has come back.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way == 0 && self.unsent_listings.is_empty()
    }

    /// The next request that has come back. It is to be [released](Self::release) once it is sent.
    #[inline]
    pub(crate) fn answered(&mut self, counters: &Counters) -> Option<Box<SlowJob>> {
        if self.is_idle() {
            return None;
        }
        let queues = &self.path.as_ref()?.queues;
        if !self.unsent.is_empty() {
            queues.submit(&mut self.unsent);
        }
        let job = queues.answered(self.shard)?;
        if !job.has_more() {
            self.came_back(&job, counters);
        }
        Some(job)
    }

    fn came_back(&mut self, job: &SlowJob, counters: &Counters) {
        let under_way = self.under_way_of(&job.route, counters);
        under_way.set(under_way.get() - 1);
        self.under_way -= 1;
    }

    /// Keeps a job that [has more](SlowJob::has_more) until what was sent of it has been read.
    pub(crate) fn keep_listing(&mut self, mut job: Box<SlowJob>) {
        job.is_continued = true;
        self.listings.push(job);
    }

    /// Goes on with listings whose readers are `ready` for more, and ends those whose readers have gone.
    #[cold]
    pub(crate) fn go_on_listing(&mut self, reader: impl Fn(StreamId) -> ListingReader, counters: &Counters) {
        let state = |job: &SlowJob| match job.route {
            JobRoute::Tcp(id, _) => reader(id),
            JobRoute::Udp(_) => ListingReader::Gone,
        };
        let mut at = 0;
        while at < self.listings.len() {
            match state(&self.listings[at]) {
                ListingReader::Reading => at += 1,
                ListingReader::Ready => {
                    self.unsent_listings.push_back(ForwardItem::Job(self.listings.swap_remove(at)))
                }
                ListingReader::Gone => {
                    let mut job = self.listings.swap_remove(at);
                    self.unsent_listings.extend(job.forwarding.take().map(ForwardItem::End));
                    self.came_back(&job, counters);
                    self.release(job);
                }
            }
        }
        let forward = self.path.as_ref().and_then(|path| path.forward.as_ref());
        if let Some(forward) = forward.filter(|_| !self.unsent_listings.is_empty()) {
            forward.queue.try_submit(&mut self.unsent_listings);
        }
    }

    /// Whether [`go_on_listing`](Self::go_on_listing) has something to do.
    #[inline]
    pub(crate) fn has_listings(&self) -> bool {
        !self.listings.is_empty() || !self.unsent_listings.is_empty()
    }

    /// Lets a job be used again.
    pub(crate) fn release(&self, job: Box<SlowJob>) {
        if let Some(path) = &self.path {
            path.queues.release(job);
        }
    }

    fn under_way_of<'c>(&self, route: &JobRoute, counters: &'c Counters) -> &'c Counter {
        match route {
            JobRoute::Udp(_) => &counters.requests_under_way,
            JobRoute::Tcp(..) => &counters.tcp_requests_under_way,
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
    job: &SlowJob,
    (rate_limit, watch): (Option<&mut RateLimit>, &mut WorkerTelemetry),
    counters: &Counters,
) -> std::io::Result<()> {
    let is_sent = !job.answer.is_empty()
        && (push(net, peer, &job.answer) || {
            // It has room for any one answer once it is empty.
            crate::worker::flush(net, counters)?;
            push(net, peer, &job.answer)
        });
    if is_sent {
        if let Some(rate_limit) = rate_limit.filter(|_| !job.is_proven) {
            let answer = (job.answer.len(), job.answer.len().div_ceil(UDP_MESSAGE_LEN_MAX));
            rate_limit.count_slow(peer, SlowRequest::of(&job.request), job.request.len(), answer);
        }
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
