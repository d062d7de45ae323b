//! Answers requests as a worker of the server does, without a socket.

use crate::requests::Requests;
use handle_net::{Outbox, Peer};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_resolver::batch::Scratch;
use handle_resolver::{AnswerContext, AnswerOutcome, InBatch, ServiceFacts, WireReply, answer, answer_batch};
use handle_snapshot::{MappedFile, PublishedSet};
use std::net::SocketAddr;

/// Requests answered together.
pub const BATCH_LEN: usize = 32;
/// Time of all answers; no answer depends on it.
const NOW_UNIX_S: u32 = 1_700_000_000;

/// State of a worker that answers requests.
pub struct Answerer<'a> {
    context: AnswerContext<'a, MappedFile>,
    scratch: Box<Scratch>,
    outbox: Outbox,
    peer: Peer,
}

impl<'a> Answerer<'a> {
    /// Creates a worker that answers from `set`.
    #[must_use]
    pub fn new(set: &'a PublishedSet) -> Self {
        Self {
            context: context(set),
            scratch: Box::new(Scratch::new()),
            outbox: Outbox::new(1024, 1 << 20),
            peer: Peer::to(SocketAddr::from(([127, 0, 0, 1], 9))),
        }
    }

    /// Answers the [`BATCH_LEN`] requests from `first` on in stages; returns the bytes written.
    pub fn batch(&mut self, requests: &'a Requests, first: usize) -> usize {
        self.outbox.clear();
        let datagrams = (first..first + BATCH_LEN).map(|at| requests.get(at));
        let (mut len, outbox, peer) = (0, &mut self.outbox, self.peer);
        answer_batch(&self.context, &mut self.scratch, datagrams, |_, outcome| {
            len += match outcome {
                InBatch::Fast(reply) => push(outbox, peer, reply),
                InBatch::Other(AnswerOutcome::Reply(reply)) => push(outbox, peer, reply),
                _ => 0,
            };
        });
        len
    }

    /// Answers the request at `at` by itself; returns the bytes written.
    pub fn one(&mut self, requests: &'a Requests, at: usize) -> usize {
        self.outbox.clear();
        match answer(&self.context, requests.get(at)) {
            AnswerOutcome::Reply(reply) => push(&mut self.outbox, self.peer, &reply),
            _ => 0,
        }
    }

    /// Returns datagram number `at` of the last answers.
    #[must_use]
    pub fn datagram(&self, at: usize) -> &[u8] {
        self.outbox.get(at).1
    }
}

/// Returns the context of answers from `set`.
#[must_use]
pub fn context(set: &PublishedSet) -> AnswerContext<'_, MappedFile> {
    AnswerContext::new(set.records(), ServiceFacts::ALONE, NOW_UNIX_S)
}

/// Puts a reply into the outbox, as one datagram or as a train; returns its length, or 0 if there
/// is no room.
#[inline]
pub fn push(outbox: &mut Outbox, peer: Peer, reply: &impl WireReply) -> usize {
    let len = reply.datagrams_len();
    let write = |room: &mut [u8]| {
        reply.write_datagrams(room);
        len
    };
    let pushed = match reply.datagrams_count() {
        1 => outbox.push(peer, len, write),
        _ => outbox.push_train(peer, UDP_MESSAGE_LEN_MAX, len, write),
    };
    if pushed.is_ok() { len } else { 0 }
}
