//! Replies on a connection: into the buffer of the round in which they are made.

use crate::counters::{Counters, Transport};
use crate::dispatch::{DispatchResult, ReplySink, dispatch};
use crate::query_log::QueryLogTap;
use crate::sessions::sealer::SessionSealer;
use handle_net::StreamId;
use handle_resolver::{AnswerContext, DropReason, InBatch, ReplyParts, WireReply};
use std::net::IpAddr;

/// The parts of a worker through which replies on one connection are sent.
pub(super) struct TcpReplies<'r> {
    pub(super) id: StreamId,
    /// The address of the client.
    pub(super) address: IpAddr,
    pub(super) out: &'r mut [u8],
    pub(super) used: &'r mut usize,
    /// The number of requests answered on the slow path.
    pub(super) deferred: &'r mut u32,
    pub(super) defer: &'r mut dyn FnMut(StreamId, IpAddr, &[u8]) -> bool,
    pub(super) tap: Option<&'r mut QueryLogTap>,
    pub(super) counters: &'r Counters,
}

impl<'m> ReplySink<'m> for TcpReplies<'_> {
    type Request = &'m [u8];

    fn message(request: &'m [u8]) -> &'m [u8] {
        request
    }

    fn source(&self, _: &'m [u8]) -> IpAddr {
        self.address
    }

    fn has_capacity(&self, _: usize, len: usize) -> bool {
        len <= self.out.len() - *self.used
    }

    fn send(&mut self, request: &'m [u8], reply: &impl WireReply) -> bool {
        if !put(reply, self.out, self.used, self.counters) {
            return false;
        }
        self.counters.tcp_requests_answered.add(1);
        if let Some(tap) = &mut self.tap {
            tap.record(Transport::Tcp, self.address, request, reply.response_code(), self.counters);
        }
        true
    }

    /// A connection proves the address, so replies over it are not limited.
    fn send_proven(&mut self, request: &'m [u8], reply: &impl WireReply) -> bool {
        self.send(request, reply)
    }

    fn defer(&mut self, request: &'m [u8], busy: &ReplyParts<'_>) -> bool {
        if (self.defer)(self.id, self.address, request) {
            *self.deferred += 1;
            return true;
        }
        self.send(request, busy)
    }

    fn count_drop(&self, reason: DropReason) {
        let counter = match reason {
            DropReason::ErrorReply => &self.counters.tcp_dropped_error_reply,
            _ => &self.counters.tcp_dropped_bug,
        };
        counter.add(1);
    }
}

impl TcpReplies<'_> {
    /// Dispatches the `outcome` of `message`. Returns false when there is no capacity for its
    /// reply.
    pub(super) fn finish<'m, B: AsRef<[u8]>>(
        &mut self,
        message: &[u8],
        outcome: &InBatch<'m>,
        context: &AnswerContext<'m, B>,
        sealer: Option<&mut SessionSealer>,
    ) -> bool {
        match dispatch(outcome, message, context, sealer, self) {
            DispatchResult::Done => true,
            DispatchResult::NoCapacity => false,
            // Cannot happen: complete messages are not fragments.
            DispatchResult::Fragment => {
                self.counters.tcp_dropped_bug.add(1);
                true
            }
        }
    }
}

/// Writes a reply to `out` and counts it. Returns false when there is no capacity.
pub(super) fn put(reply: &impl WireReply, out: &mut [u8], used: &mut usize, counters: &Counters) -> bool {
    let len = reply.stream_len();
    let Some(buffer) = out.get_mut(*used..*used + len) else { return false };
    reply.write_stream(buffer);
    *used += len;
    counters.count_reply(Transport::Tcp, reply.response_code(), reply.refused());
    if reply.has_mac() {
        counters.answers_with_mac.add(1);
    }
    true
}
