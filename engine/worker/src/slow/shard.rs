//! The side of a worker in the slow path.

use super::SlowPath;
use super::queue::{JobRoute, SlowJob};
use crate::counters::{Counter, Counters};
use crate::forward::queue::ForwardItem;
use handle_net::{StreamId, Waker};
use handle_resolver::RefusalReason;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Hands requests to the slow path, and returns their answers to the worker.
#[derive(Debug)]
pub(crate) struct SlowShard {
    path: Option<Arc<SlowPath>>,
    shard: usize,
    /// The number of requests without an answer yet.
    under_way: u64,
    /// Requests that are not handed over yet.
    unsent: VecDeque<Box<SlowJob>>,
    /// Listings of which a part was sent that the client has not read yet.
    #[expect(clippy::vec_box, reason = "a job moves from queue to queue")]
    listings: Vec<Box<SlowJob>>,
    /// Listings whose next part is wanted, or that are to end, and that are not handed over yet.
    unsent_listings: VecDeque<ForwardItem>,
}

/// The state of the client that reads a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListingReader {
    /// The client has read the sent part.
    Ready,
    /// The client has not read the sent part yet.
    Reading,
    /// The connection is closed.
    Gone,
}

impl SlowShard {
    /// Opens the side of worker `shard`. Answers wake the worker through `waker`.
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

    /// Hands over a request, envelope first, that was received at `now`. Returns false when the
    /// slow path is full, and the worker then refuses the request.
    #[cold]
    pub(crate) fn defer(
        &mut self,
        route: JobRoute,
        request: &[u8],
        now: Instant,
        counters: &Counters,
    ) -> bool {
        let Some(path) = &self.path else { return false };
        let Some(job) = path.queues.take(self.shard, route, request, now) else { return false };
        self.unsent.push_back(job);
        path.queues.submit(&mut self.unsent);
        self.under_way += 1;
        counters.requests_deferred.add(1);
        self.under_way_of(&route, counters).add(1);
        true
    }

    /// The refusal of a datagram for which the slow path has no capacity.
    pub(crate) fn when_full(&self) -> RefusalReason {
        self.path.as_ref().map_or(RefusalReason::Busy, |path| path.when_full)
    }

    /// Whether every request has its answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way == 0 && self.unsent_listings.is_empty()
    }

    /// The next job with an answer. It is to be [released](Self::release) once the answer is sent.
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
            self.count_return(&job, counters);
        }
        Some(job)
    }

    fn count_return(&mut self, job: &SlowJob, counters: &Counters) {
        let under_way = self.under_way_of(&job.route, counters);
        under_way.set(under_way.get() - 1);
        self.under_way -= 1;
    }

    /// Keeps a job that [has more](SlowJob::has_more) until the client has read the sent part.
    pub(crate) fn keep_listing(&mut self, mut job: Box<SlowJob>) {
        job.is_continued = true;
        self.listings.push(job);
    }

    /// Requests the next part of listings whose clients are ready, and ends listings whose
    /// connections are closed.
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
                    self.count_return(&job, counters);
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

    /// Returns a job to the free ones.
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
