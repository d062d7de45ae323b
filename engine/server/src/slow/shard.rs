//! A worker's end of the slow path.

use super::SlowPath;
use super::queue::Route;
use crate::counters::{Counters, Transport};
use handle_net::{Datapath, Peer, Waker};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use std::sync::Arc;

/// Hands requests over, and sends what comes back.
#[derive(Debug)]
pub(crate) struct SlowShard {
    path: Option<Arc<SlowPath>>,
    shard: usize,
    /// Requests that have not come back.
    under_way: u64,
}

impl SlowShard {
    /// The end of worker `shard`; answers wake it by `waker`.
    pub(crate) fn open(path: Option<Arc<SlowPath>>, shard: usize, waker: Waker) -> Self {
        if let Some(path) = &path {
            path.queues.attach(shard, waker);
        }
        Self { path, shard, under_way: 0 }
    }

    /// Hands over a request, envelope first. False when everything is full; then the worker says so.
    #[cold]
    pub(crate) fn defer(&mut self, route: Route, request: &[u8], counters: &Counters) -> bool {
        let taken = self.path.as_ref().is_some_and(|path| path.queues.submit(self.shard, route, request));
        if taken {
            self.under_way += 1;
            counters.requests_deferred.add(1);
            counters.requests_under_way.set(self.under_way);
        }
        taken
    }

    /// Whether every request has come back.
    pub(crate) const fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Sends the answers that have come back.
    ///
    /// # Errors
    /// Those of the datapath, when it is of no more use.
    #[inline]
    pub(crate) fn deliver(&mut self, net: &mut dyn Datapath, counters: &Counters) -> std::io::Result<()> {
        if self.under_way == 0 {
            return Ok(());
        }
        self.deliver_all(net, counters)
    }

    #[cold]
    fn deliver_all(&mut self, net: &mut dyn Datapath, counters: &Counters) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        while let Some(job) = path.queues.answered(self.shard) {
            self.under_way -= 1;
            counters.requests_under_way.set(self.under_way);
            let sent = match job.route {
                _ if job.answer.is_empty() => false,
                Route::Udp(peer) => {
                    push(net, peer, &job.answer) || {
                        // It has room for any one answer once it is empty.
                        crate::worker::flush(net, counters)?;
                        push(net, peer, &job.answer)
                    }
                }
            };
            if sent {
                counters.requests_answered.add(1);
                counters.bytes_sent.add(job.answer.len() as u64);
                counters.count_reply(Transport::Udp, job.code, job.refused);
            } else {
                counters.dropped_bug.add(1);
            }
            path.queues.release(job);
        }
        crate::worker::flush(net, counters)
    }
}

fn push(net: &mut dyn Datapath, peer: Peer, answer: &[u8]) -> bool {
    let len = answer.len();
    let write = |room: &mut [u8]| {
        room[..len].copy_from_slice(answer);
        len
    };
    net.outbox().push_train(peer, UDP_MESSAGE_LEN_MAX, len, write).is_ok()
}
