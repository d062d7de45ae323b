//! Sends a worker's replies over UDP, and applies rate limits, sessions and counters to them.

use crate::counters::{Counters, Transport};
use crate::rate_limit::{AnswerSize, LimitVerdict, RateLimit, SLIP_LEN, SlowRequest};
use crate::sessions::sealer::{AnswerRecipient, SealOutcome, SessionSealer, each_datagram_part};
use crate::slow::queue::JobRoute;
use crate::slow::shard::SlowShard;
use crate::telemetry::WorkerTelemetry;
use crate::worker::count_drop;
use handle_net::{Outbox, Peer};
use handle_proto::ResponseCode;
use handle_proto::limit::{UDP_DATA_LEN_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::wire::Envelope;
use handle_resolver::{AnswerContext, AnswerOutcome, FastAnswer, RefusalReason, ReplyParts, refuse_stream};
use handle_snapshot::map::MappedFile;

/// An answer that can be sent in datagrams.
pub(crate) trait DatagramAnswer {
    fn datagrams_count(&self) -> usize;
    fn datagrams_len(&self) -> usize;
    fn write_datagrams(&self, out: &mut [u8]);
    fn response_code(&self) -> ResponseCode;
    fn refused(&self) -> Option<RefusalReason>;
    /// A number that equal answers share.
    fn identity(&self) -> u64;
    /// The reply sent instead of this one to a peer that has reached its limit.
    fn limited(&self) -> ReplyParts<'_>;

    /// The properties to which rate limits apply.
    fn size(&self) -> AnswerSize {
        AnswerSize { len: self.datagrams_len(), datagrams: self.datagrams_count(), identity: self.identity() }
    }
}

impl DatagramAnswer for ReplyParts<'_> {
    #[inline]
    fn datagrams_count(&self) -> usize {
        ReplyParts::datagrams_count(self)
    }

    #[inline]
    fn datagrams_len(&self) -> usize {
        ReplyParts::datagrams_len(self)
    }

    #[inline]
    fn write_datagrams(&self, out: &mut [u8]) {
        ReplyParts::write_datagrams(self, out);
    }

    #[inline]
    fn response_code(&self) -> ResponseCode {
        ReplyParts::response_code(self)
    }

    #[inline]
    fn refused(&self) -> Option<RefusalReason> {
        ReplyParts::refused(self)
    }

    #[inline]
    fn identity(&self) -> u64 {
        ReplyParts::identity(self)
    }

    fn limited(&self) -> ReplyParts<'_> {
        ReplyParts::limited(self)
    }
}

impl DatagramAnswer for FastAnswer<'_> {
    #[inline]
    fn datagrams_count(&self) -> usize {
        1
    }

    #[inline]
    fn datagrams_len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn write_datagrams(&self, out: &mut [u8]) {
        self.write(out);
    }

    #[inline]
    fn response_code(&self) -> ResponseCode {
        FastAnswer::response_code(self)
    }

    #[inline]
    fn refused(&self) -> Option<RefusalReason> {
        None
    }

    #[inline]
    fn identity(&self) -> u64 {
        FastAnswer::identity(self)
    }

    fn limited(&self) -> ReplyParts<'_> {
        FastAnswer::limited(self)
    }
}

/// The parts of a worker through which replies to one batch, or to a single datagram, are sent.
pub(crate) struct ReplySender<'w> {
    pub(crate) outbox: &'w mut Outbox,
    pub(crate) slow: &'w mut SlowShard,
    pub(crate) sealer: &'w mut Option<SessionSealer>,
    pub(crate) rate_limit: &'w mut Option<Box<RateLimit>>,
    pub(crate) telemetry: &'w mut WorkerTelemetry,
    pub(crate) counters: &'w Counters,
}

impl ReplySender<'_> {
    /// Handles the outcome of a request of `asked_len` bytes that is answered outside a batch.
    /// `request` is the whole message, starting with its envelope.
    pub(crate) fn finish(
        &mut self,
        context: &AnswerContext<'_, MappedFile>,
        outcome: AnswerOutcome<'_>,
        peer: Peer,
        asked_len: usize,
        request: &[u8],
    ) {
        let is_done = match outcome {
            AnswerOutcome::Reply(reply) => self.send(peer, || asked_len, || request, &reply),
            AnswerOutcome::Drop(reason) => return count_drop(reason, self.counters),
            AnswerOutcome::Fragment(_) => return,
            // The resolver forwards no listing over UDP.
            AnswerOutcome::Listing => false,
            AnswerOutcome::InSession(reply) => {
                self.send_in_session(context, peer, asked_len, request, &reply)
            }
            AnswerOutcome::Encrypted => {
                self.defer(peer, asked_len, request, &refuse_stream(context, RefusalReason::Busy, b""))
            }
            AnswerOutcome::Slow(slow) => {
                self.defer(peer, asked_len, request, &slow.refuse(context, RefusalReason::Busy))
            }
        };
        // The caller ensured that there is room for the longest answer.
        if !is_done {
            self.counters.dropped_bug.add(1);
        }
    }

    /// Puts the reply to `request`, a message with its envelope, into the outbox, unless the peer
    /// has reached its limit. Returns false when there is no room. The closures for the request's
    /// length and bytes are only called if answers are limited or logged.
    #[inline]
    pub(crate) fn send<'r>(
        &mut self,
        peer: Peer,
        asked_len: impl FnOnce() -> usize,
        request: impl FnOnce() -> &'r [u8],
        reply: &impl DatagramAnswer,
    ) -> bool {
        let is_exempt = match self.rate_limit {
            None => return self.push(peer, request, reply),
            Some(rate_limit) => rate_limit.exempts(peer),
        };
        if !is_exempt {
            return self.send_limited(peer, asked_len(), request, reply);
        }
        let pushed = self.push(peer, request, reply);
        self.counters.rate_limit_exempt.add(pushed.into());
        pushed
    }

    /// Like [`send`](Self::send), for a peer to which limits apply.
    fn send_limited<'r>(
        &mut self,
        peer: Peer,
        asked_len: usize,
        request: impl FnOnce() -> &'r [u8],
        reply: &impl DatagramAnswer,
    ) -> bool {
        let size = reply.size();
        // A reply without room is tried again later; it counts against the limit when it is sent.
        if !self.outbox.has_room(size.datagrams, size.len.max(SLIP_LEN)) {
            return false;
        }
        match self.verdict(peer, size, asked_len) {
            LimitVerdict::Send => self.push(peer, request, reply),
            LimitVerdict::Slip => self.push(peer, request, &reply.limited()),
            LimitVerdict::Drop => true,
        }
    }

    fn verdict(&mut self, peer: Peer, size: AnswerSize, asked_len: usize) -> LimitVerdict {
        match self.rate_limit {
            Some(rate_limit) => rate_limit.verdict(peer, size, asked_len, self.counters),
            None => LimitVerdict::Send,
        }
    }

    /// Hands `request` to the slow path, unless its sender has reached its limit. If the slow path
    /// is full, the answer is `busy`. Returns false when the outbox has no room.
    #[cold]
    pub(crate) fn defer(
        &mut self,
        peer: Peer,
        asked_len: usize,
        request: &[u8],
        busy: &ReplyParts<'_>,
    ) -> bool {
        if !self.outbox.has_room(busy.datagrams_count(), busy.datagrams_len().max(SLIP_LEN)) {
            return false;
        }
        let verdict = match self.rate_limit {
            Some(limit) => limit.verdict_slow(peer, SlowRequest::of(request), asked_len, self.counters),
            None => LimitVerdict::Send,
        };
        match verdict {
            LimitVerdict::Send if self.slow.defer(JobRoute::Udp(peer), request, self.counters) => true,
            LimitVerdict::Send => self.push(peer, || request, &busy.refusing(self.slow.when_full())),
            LimitVerdict::Slip => self.push(peer, || request, &busy.limited()),
            LimitVerdict::Drop => true,
        }
    }

    /// Answers `request` for public values in a session with `reply`, if the session accepts the
    /// request. Returns false when the outbox has no room.
    pub(crate) fn send_in_session<'r>(
        &mut self,
        context: &AnswerContext<'_, MappedFile>,
        peer: Peer,
        asked_len: usize,
        request: &'r [u8],
        reply: &ReplyParts<'r>,
    ) -> bool {
        let (len, datagrams_count) = SessionSealer::room_for(reply);
        if !self.outbox.has_room(datagrams_count, len) {
            return false;
        }
        let ReplySender { outbox, sealer: Some(sealer), rate_limit, telemetry: watch, counters, .. } = self
        else {
            return self.send(peer, || asked_len, || request, &reply.refusing(RefusalReason::UnknownSession));
        };
        let sealed = sealer.answer((request, peer.remote().ip()), reply, context.service());
        let (reply, message, sender) = match sealed {
            SealOutcome::Plain(reply, sender) => (reply, None, sender),
            SealOutcome::Mac(reply, message, sender) => (reply, Some(message), sender),
            SealOutcome::SlowPath => {
                return self.defer(peer, asked_len, request, &reply.refusing(RefusalReason::Busy));
            }
        };
        let verdict = match rate_limit {
            Some(rate_limit) if sender == AnswerRecipient::Unproven => {
                let mut size = reply.size();
                size.len = message.map_or(size.len, <[u8]>::len);
                rate_limit.verdict(peer, size, asked_len, counters)
            }
            _ => LimitVerdict::Send,
        };
        let mut code = reply.response_code();
        let pushed = match (verdict, message) {
            (LimitVerdict::Send, None) => push(outbox, peer, &reply, counters),
            (LimitVerdict::Send, Some(message)) => {
                let pushed = push_message(outbox, peer, message, counters);
                if pushed {
                    counters.answers_with_mac.add(1);
                    counters.count_reply(Transport::Udp, reply.response_code(), reply.refused());
                }
                pushed
            }
            (LimitVerdict::Slip, _) => {
                let limited = reply.limited();
                code = limited.response_code();
                push(outbox, peer, &limited, counters)
            }
            (LimitVerdict::Drop, _) => return true,
        };
        if pushed {
            watch.answered(Transport::Udp, peer, || request, code, counters);
        }
        pushed
    }

    #[inline]
    fn push<'r>(
        &mut self,
        peer: Peer,
        request: impl FnOnce() -> &'r [u8],
        reply: &impl DatagramAnswer,
    ) -> bool {
        let pushed = push(self.outbox, peer, reply, self.counters);
        if pushed {
            self.telemetry.answered(Transport::Udp, peer, request, reply.response_code(), self.counters);
        }
        pushed
    }
}

/// Puts a reply into the outbox. Returns false when there is no room.
#[inline]
fn push(outbox: &mut Outbox, peer: Peer, reply: &impl DatagramAnswer, counters: &Counters) -> bool {
    let len = reply.datagrams_len();
    let write = |room: &mut [u8]| {
        reply.write_datagrams(room);
        len
    };
    let pushed = if len <= UDP_MESSAGE_LEN_MAX {
        outbox.push(peer, len, write)
    } else {
        outbox.push_train(peer, UDP_MESSAGE_LEN_MAX, len, write)
    };
    if pushed.is_ok() {
        counters.requests_answered.add(1);
        counters.bytes_sent.add(len as u64);
        counters.count_reply(Transport::Udp, reply.response_code(), reply.refused());
    }
    pushed.is_ok()
}

/// Puts a message, starting with its envelope, into the outbox. Returns false when there is no
/// room.
fn push_message(outbox: &mut Outbox, peer: Peer, message: &[u8], counters: &Counters) -> bool {
    let datagrams_count = (message.len() - Envelope::LEN).div_ceil(UDP_DATA_LEN_MAX);
    let len = message.len() + (datagrams_count - 1) * Envelope::LEN;
    let write = |room: &mut [u8]| {
        let mut room = &mut room[..len];
        each_datagram_part(message, |part| {
            let (now, later) = std::mem::take(&mut room).split_at_mut(part.len());
            now.copy_from_slice(part);
            room = later;
        });
        len
    };
    let pushed = match datagrams_count {
        1 => outbox.push(peer, len, write),
        _ => outbox.push_train(peer, UDP_MESSAGE_LEN_MAX, len, write),
    };
    if pushed.is_ok() {
        counters.requests_answered.add(1);
        counters.bytes_sent.add(len as u64);
    }
    pushed.is_ok()
}
