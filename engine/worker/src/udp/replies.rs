//! Replies over UDP: within the limits of their recipients into the outbox.

use super::requests::UdpRequest;
use crate::counters::{Counters, Transport};
use crate::dispatch::ReplySink;
use crate::rate_limit::{AnswerSize, LimitVerdict, RateLimit, SLIP_LEN, SlowRequest};
use crate::slow::queue::JobRoute;
use crate::slow::shard::SlowShard;
use crate::telemetry::WorkerTelemetry;
use handle_net::{Outbox, Peer};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_resolver::{DropReason, ReplyParts, WireReply};
use std::net::IpAddr;
use std::time::Instant;

/// The parts of a worker through which replies to datagrams are sent.
pub(super) struct UdpReplies<'w> {
    pub(super) outbox: &'w mut Outbox,
    pub(super) slow: &'w mut SlowShard,
    pub(super) rate_limit: &'w mut Option<Box<RateLimit>>,
    pub(super) telemetry: &'w mut WorkerTelemetry,
    pub(super) counters: &'w Counters,
    pub(super) now: Instant,
}

impl<'r> ReplySink<'r> for UdpReplies<'_> {
    type Request = UdpRequest<'r>;

    fn message(request: UdpRequest<'r>) -> &'r [u8] {
        request.message()
    }

    fn source(&self, request: UdpRequest<'r>) -> IpAddr {
        request.peer().remote().ip()
    }

    fn has_capacity(&self, datagrams_count: usize, len: usize) -> bool {
        self.outbox.has_capacity(datagrams_count, len)
    }

    #[inline]
    fn send(&mut self, request: UdpRequest<'r>, reply: &impl WireReply) -> bool {
        let peer = request.peer();
        let is_exempt = match self.rate_limit {
            None => return self.push(peer, request, reply),
            Some(rate_limit) => rate_limit.exempts(peer),
        };
        if !is_exempt {
            return self.send_limited(peer, request, reply);
        }
        let pushed = self.push(peer, request, reply);
        self.counters.rate_limit_exempt.add(pushed.into());
        pushed
    }

    fn send_proven(&mut self, request: UdpRequest<'r>, reply: &impl WireReply) -> bool {
        self.push(request.peer(), request, reply)
    }

    #[cold]
    fn defer(&mut self, request: UdpRequest<'r>, busy: &ReplyParts<'_>) -> bool {
        if !self.outbox.has_capacity(busy.datagrams_count(), busy.datagrams_len().max(SLIP_LEN)) {
            return false;
        }
        let (peer, message, len) = (request.peer(), request.message(), request.shortest_len());
        let verdict = match self.rate_limit {
            Some(rate_limit) => rate_limit.verdict_slow(peer, SlowRequest::of(message), len, self.counters),
            None => LimitVerdict::Send,
        };
        let route = JobRoute::Udp(peer);
        match verdict {
            LimitVerdict::Send if self.slow.defer(route, message, self.now, self.counters) => true,
            LimitVerdict::Send => self.push(peer, request, &busy.refusing(self.slow.when_full())),
            LimitVerdict::Slip => self.push(peer, request, &busy.limited()),
            LimitVerdict::Drop => true,
        }
    }

    fn count_drop(&self, reason: DropReason) {
        let counter = match reason {
            DropReason::ErrorReply => &self.counters.dropped_error_reply,
            DropReason::TooShort => &self.counters.dropped_too_short,
            _ => &self.counters.dropped_bug,
        };
        counter.add(1);
    }
}

impl UdpReplies<'_> {
    /// Sends `reply` to a peer to which limits apply.
    fn send_limited(&mut self, peer: Peer, request: UdpRequest<'_>, reply: &impl WireReply) -> bool {
        let mut size = AnswerSize {
            len: reply.datagrams_len(),
            datagrams: reply.datagrams_count(),
            identity: reply.identity(),
        };
        // A reply without capacity is tried again later; it counts against the limit when it is
        // sent.
        if !self.outbox.has_capacity(size.datagrams, size.len.max(SLIP_LEN)) {
            return false;
        }
        let verdict = match self.rate_limit {
            Some(rate_limit) => {
                if rate_limit.identifies_by_request() {
                    size.identity = SlowRequest::of(request.message()).identity();
                }
                rate_limit.verdict(peer, size, request.shortest_len(), self.counters)
            }
            None => LimitVerdict::Send,
        };
        match verdict {
            LimitVerdict::Send => self.push(peer, request, reply),
            LimitVerdict::Slip => self.push(peer, request, &reply.limited()),
            LimitVerdict::Drop => true,
        }
    }

    /// Puts `reply` into the outbox. Returns false when there is no capacity.
    #[inline]
    fn push(&mut self, peer: Peer, request: UdpRequest<'_>, reply: &impl WireReply) -> bool {
        let len = reply.datagrams_len();
        let write = |buffer: &mut [u8]| {
            reply.write_datagrams(buffer);
            len
        };
        let pushed = match reply.datagrams_count() {
            1 => self.outbox.push(peer, len, write),
            _ => self.outbox.push_train(peer, UDP_MESSAGE_LEN_MAX, len, write),
        };
        if pushed.is_err() {
            return false;
        }
        let code = reply.response_code();
        self.counters.requests_answered.add(1);
        self.counters.bytes_sent.add(len as u64);
        self.counters.count_reply(Transport::Udp, code, reply.refused());
        if reply.has_mac() {
            self.counters.answers_with_mac.add(1);
        }
        self.telemetry.answered(peer, || request.message(), code, self.counters);
        true
    }
}
