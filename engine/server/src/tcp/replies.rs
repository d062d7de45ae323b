//! The answers of one round on a connection: the destination of each outcome, and its counters.

use super::ConnectionTurn;
use crate::counters::{Counters, Transport};
use crate::sessions::sealer::{SealOutcome, SessionSealer};
use handle_net::StreamId;
use handle_proto::ResponseCode;
use handle_proto::wire::Envelope;
use handle_resolver::{
    AnswerContext, AnswerOutcome, DropReason, InBatch, RefusalReason, ReplyParts, refuse_listing,
    refuse_stream,
};
use std::net::IpAddr;

/// The buffer for the answers, and the context in which they are made.
pub(super) struct ReplyRound<'r, 't, 'a, B, W> {
    /// The connection, and the address of its client.
    pub(super) asker: (StreamId, IpAddr),
    pub(super) out: &'r mut [u8],
    pub(super) used: &'r mut usize,
    /// The number of requests answered on the slow path.
    pub(super) deferred: &'r mut u32,
    pub(super) turn: &'r mut ConnectionTurn<'t, 'a, B, W>,
}

impl<'a, B: AsRef<[u8]>, W> ReplyRound<'_, '_, 'a, B, W> {
    /// Handles the outcome of `message` in a batch. Returns false when there is no room for its
    /// answer.
    pub(super) fn finish_in_batch<'m>(&mut self, message: &[u8], outcome: &InBatch<'m>) -> bool
    where
        'a: 'm,
    {
        let usual = match outcome {
            InBatch::Fast(usual) => usual,
            InBatch::Other(outcome) => return self.finish(message, outcome),
        };
        let Some(room) = self.out.get_mut(*self.used..*self.used + usual.len()) else { return false };
        usual.write(room);
        *self.used += usual.len();
        self.turn.counters.count_reply(Transport::Tcp, usual.response_code(), None);
        self.turn.counters.tcp_requests_answered.add(1);
        self.log(message, usual.response_code());
        true
    }

    /// Logs the answer to `message`, if the query log is enabled.
    fn log(&mut self, message: &[u8], code: ResponseCode) {
        if let Some(tap) = &mut self.turn.tap {
            tap.record(Transport::Tcp, self.asker.1, message, code, self.turn.counters);
        }
    }

    /// Handles the outcome of `message`. Returns false when there is no room for its answer.
    pub(super) fn finish<'m>(&mut self, message: &[u8], outcome: &AnswerOutcome<'m>) -> bool
    where
        'a: 'm,
    {
        let context: &AnswerContext<'m, B> = self.turn.context;
        let is_put = match outcome {
            AnswerOutcome::Reply(reply) => self.put(message, reply),
            AnswerOutcome::InSession(reply) => match self.put_in_session(message, reply) {
                Some(is_put) => is_put,
                None if self.defer(message) => return true,
                None => self.put(message, &reply.refusing(RefusalReason::Busy)),
            },
            AnswerOutcome::Slow(_) | AnswerOutcome::Encrypted | AnswerOutcome::Listing
                if self.defer(message) =>
            {
                return true;
            }
            AnswerOutcome::Slow(slow) => self.put(message, &slow.refuse(context, RefusalReason::Busy)),
            AnswerOutcome::Encrypted => self.put(message, &refuse_stream(context, RefusalReason::Busy, b"")),
            AnswerOutcome::Listing => {
                let busy = match Envelope::split(message) {
                    Ok((envelope, rest)) => refuse_listing(context, envelope, rest, RefusalReason::Busy),
                    Err(_) => refuse_stream(context, RefusalReason::Busy, b""),
                };
                self.put(message, &busy)
            }
            AnswerOutcome::Drop(DropReason::ErrorReply) => {
                self.turn.counters.tcp_dropped_error_reply.add(1);
                return true;
            }
            // Complete messages are not fragments.
            AnswerOutcome::Drop(_) | AnswerOutcome::Fragment(_) => {
                self.turn.counters.tcp_dropped_bug.add(1);
                return true;
            }
        };
        self.turn.counters.tcp_requests_answered.add(is_put.into());
        is_put
    }

    fn defer(&mut self, message: &[u8]) -> bool {
        let (id, source) = self.asker;
        let taken = (self.turn.defer)(id, source, message);
        *self.deferred += u32::from(taken);
        taken
    }

    /// Answers a request for public values in a session. Returns `None` when the slow path is to
    /// answer.
    fn put_in_session(&mut self, message: &[u8], reply: &ReplyParts<'_>) -> Option<bool> {
        let (len, _) = SessionSealer::room_for(reply);
        if self.out.len() - *self.used < len {
            return Some(false);
        }
        let service = self.turn.context.service();
        let Some(sealer) = &mut self.turn.sealer else {
            return Some(self.put(message, &reply.refusing(RefusalReason::UnknownSession)));
        };
        let (out, used, counters) = (&mut *self.out, &mut *self.used, self.turn.counters);
        let (is_put, code) = match sealer.answer((message, self.asker.1), reply, service) {
            SealOutcome::Plain(reply, _) => (put(&reply, out, used, counters), reply.response_code()),
            SealOutcome::Mac(reply, sealed, _) => {
                let room = out.get_mut(*used..*used + sealed.len());
                let is_put = room.map(|room| room.copy_from_slice(sealed)).is_some();
                if is_put {
                    *used += sealed.len();
                    counters.answers_with_mac.add(1);
                    counters.count_reply(Transport::Tcp, reply.response_code(), reply.refused());
                }
                (is_put, reply.response_code())
            }
            SealOutcome::SlowPath => return None,
        };
        if is_put {
            self.log(message, code);
        }
        Some(is_put)
    }

    fn put(&mut self, message: &[u8], reply: &ReplyParts<'_>) -> bool {
        let is_put = put(reply, self.out, self.used, self.turn.counters);
        if is_put {
            self.log(message, reply.response_code());
        }
        is_put
    }
}

/// Writes a reply to `out` and counts it. Returns false when there is no room.
pub(super) fn put(reply: &ReplyParts<'_>, out: &mut [u8], used: &mut usize, counters: &Counters) -> bool {
    let len = Envelope::LEN + reply.message_len();
    let Some(room) = out.get_mut(*used..*used + len) else { return false };
    reply.write_stream(room);
    *used += len;
    counters.count_reply(Transport::Tcp, reply.response_code(), reply.refused());
    true
}
