//! Where the replies of a worker go over UDP, and what is asked and counted on the way.

use crate::counters::{Counters, Transport};
use crate::rate_limit::{RateLimit, SLIP_LEN, Verdict};
use crate::sessions::sealer::{Sealed, Sealer, each_datagram_part};
use crate::slow::queue::Route;
use crate::slow::shard::SlowShard;
use crate::watch::Watch;
use crate::worker::count_drop;
use handle_net::{Outbox, Peer};
use handle_proto::ResponseCode;
use handle_proto::limit::{UDP_DATA_LEN_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::wire::Envelope;
use handle_resolver::{Context, Outcome, Refused, Reply, Usual, refuse_stream};
use handle_snapshot::map::Mapped;

/// An answer that can be sent in datagrams.
pub(crate) trait Answer {
    fn datagrams_count(&self) -> usize;
    fn datagrams_len(&self) -> usize;
    fn write_datagrams(&self, out: &mut [u8]);
    fn response_code(&self) -> ResponseCode;
    fn refused(&self) -> Option<Refused>;
    /// What goes out in its place to who has had its answers.
    fn limited(&self) -> Reply<'_>;
}

impl Answer for Reply<'_> {
    #[inline]
    fn datagrams_count(&self) -> usize {
        Reply::datagrams_count(self)
    }

    #[inline]
    fn datagrams_len(&self) -> usize {
        Reply::datagrams_len(self)
    }

    #[inline]
    fn write_datagrams(&self, out: &mut [u8]) {
        Reply::write_datagrams(self, out);
    }

    #[inline]
    fn response_code(&self) -> ResponseCode {
        Reply::response_code(self)
    }

    #[inline]
    fn refused(&self) -> Option<Refused> {
        Reply::refused(self)
    }

    fn limited(&self) -> Reply<'_> {
        Reply::limited(self)
    }
}

impl Answer for Usual<'_> {
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
        Usual::response_code(self)
    }

    #[inline]
    fn refused(&self) -> Option<Refused> {
        None
    }

    fn limited(&self) -> Reply<'_> {
        Usual::limited(self)
    }
}

/// What one batch, or one datagram alone, is answered through.
pub(crate) struct Replies<'w> {
    pub(crate) outbox: &'w mut Outbox,
    pub(crate) slow: &'w mut SlowShard,
    pub(crate) sealer: &'w mut Option<Sealer>,
    pub(crate) rate_limit: &'w mut Option<Box<RateLimit>>,
    pub(crate) watch: &'w mut Watch,
    pub(crate) counters: &'w Counters,
}

impl Replies<'_> {
    /// Deals with the outcome of a request of `asked_len` bytes that is answered alone. `request` is the whole
    /// message, its envelope first.
    pub(crate) fn finish(
        &mut self,
        context: &Context<'_, Mapped>,
        outcome: Outcome<'_>,
        peer: Peer,
        asked_len: usize,
        request: &[u8],
    ) {
        let is_done = match outcome {
            Outcome::Reply(reply) => self.send(peer, || asked_len, || request, &reply),
            Outcome::Drop(reason) => return count_drop(reason, self.counters),
            Outcome::Fragment(_) => return,
            Outcome::InSession(reply) => self.send_in_session(context, peer, asked_len, request, &reply),
            Outcome::Encrypted => {
                self.defer(peer, asked_len, request, &refuse_stream(context, Refused::Busy, b""))
            }
            Outcome::Slow(slow) => self.defer(peer, asked_len, request, &slow.refuse(context, Refused::Busy)),
        };
        // The caller made sure that the longest answer has room.
        if !is_done {
            self.counters.dropped_bug.add(1);
        }
    }

    /// Puts the reply to `request`, a message with its envelope, into the outbox, unless its receiver has had
    /// its answers. False when there is no room. Length and bytes of what was asked are only looked for where
    /// answers are limited or logged.
    #[inline]
    pub(crate) fn send<'r>(
        &mut self,
        peer: Peer,
        asked_len: impl FnOnce() -> usize,
        request: impl FnOnce() -> &'r [u8],
        reply: &impl Answer,
    ) -> bool {
        if let Some(rate_limit) = self.rate_limit {
            // What has to wait for room is tried again; it counts when it goes out.
            if !self.outbox.has_room(reply.datagrams_count(), reply.datagrams_len().max(SLIP_LEN)) {
                return false;
            }
            match rate_limit.verdict(peer, reply.datagrams_count(), asked_len(), self.counters) {
                Verdict::Send => {}
                Verdict::Slip => return self.push(peer, request, &reply.limited()),
                Verdict::Drop => return true,
            }
        }
        self.push(peer, request, reply)
    }

    /// Hands `request` to the slow path, unless its sender has had its answers; where there is no place, the
    /// answer is `busy`. False when the outbox has no room.
    #[cold]
    pub(crate) fn defer(&mut self, peer: Peer, asked_len: usize, request: &[u8], busy: &Reply<'_>) -> bool {
        if !self.outbox.has_room(busy.datagrams_count(), busy.datagrams_len().max(SLIP_LEN)) {
            return false;
        }
        match self.verdict(peer, asked_len, busy) {
            Verdict::Send if self.slow.defer(Route::Udp(peer), request, self.counters) => true,
            Verdict::Send => self.push(peer, || request, busy),
            Verdict::Slip => self.push(peer, || request, &busy.limited()),
            Verdict::Drop => true,
        }
    }

    fn verdict(&mut self, peer: Peer, asked_len: usize, reply: &Reply<'_>) -> Verdict {
        match self.rate_limit {
            Some(rate_limit) => rate_limit.verdict(peer, reply.datagrams_count(), asked_len, self.counters),
            None => Verdict::Send,
        }
    }

    /// Answers `request` for public values in a session with `reply`, if it is in order. False when the outbox has no
    /// room.
    pub(crate) fn send_in_session<'r>(
        &mut self,
        context: &Context<'_, Mapped>,
        peer: Peer,
        asked_len: usize,
        request: &'r [u8],
        reply: &Reply<'r>,
    ) -> bool {
        let (len, datagrams_count) = Sealer::room_for(reply);
        if !self.outbox.has_room(datagrams_count, len) {
            return false;
        }
        match self.verdict(peer, asked_len, reply) {
            Verdict::Send => {}
            Verdict::Slip => return self.push(peer, || request, &reply.limited()),
            Verdict::Drop => return true,
        }
        let Replies { outbox, slow, sealer: Some(sealer), watch, counters, .. } = self else {
            return self.push(peer, || request, &reply.refusing(Refused::UnknownSession));
        };
        let service = context.service();
        match sealer.answer(request, reply, service.signs, service.answer_datagrams_max) {
            Sealed::Plain(reply) => {
                let pushed = push(outbox, peer, &reply, counters);
                if pushed {
                    watch.answered(Transport::Udp, peer, || request, reply.response_code(), counters);
                }
                pushed
            }
            Sealed::Mac(reply, message) => {
                let pushed = push_message(outbox, peer, message, counters);
                if pushed {
                    counters.answers_with_mac.add(1);
                    counters.count_reply(Transport::Udp, reply.response_code(), reply.refused());
                    watch.answered(Transport::Udp, peer, || request, reply.response_code(), counters);
                }
                pushed
            }
            Sealed::Elsewhere => {
                slow.defer(Route::Udp(peer), request, counters)
                    || self.push(peer, || request, &reply.refusing(Refused::Busy))
            }
        }
    }

    #[inline]
    fn push<'r>(&mut self, peer: Peer, request: impl FnOnce() -> &'r [u8], reply: &impl Answer) -> bool {
        let pushed = push(self.outbox, peer, reply, self.counters);
        if pushed {
            self.watch.answered(Transport::Udp, peer, request, reply.response_code(), self.counters);
        }
        pushed
    }
}

/// Puts a reply into the outbox. False when there is no room.
#[inline]
fn push(outbox: &mut Outbox, peer: Peer, reply: &impl Answer, counters: &Counters) -> bool {
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

/// Puts a message, envelope first, into the outbox. False when there is no room.
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
