//! Answers requests as a worker of the server does, without a socket.

use crate::requests::Requests;
use handle_net::{Outbox, Peer};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_resolver::batch::Scratch;
use handle_resolver::{AnswerContext, AnswerOutcome, InBatch, ServiceFacts, WireReply, answer, answer_batch};
use handle_server::cache::{BatchCache, ServerCache};
use handle_snapshot::{MappedFile, PublishedSet};
use std::net::SocketAddr;

/// Requests answered together.
pub const BATCH_LEN: usize = 32;
/// Time of all answers from a set; none of them depends on it.
const NOW_UNIX_S: u32 = 1_700_000_000;
/// Bytes for the copies of a batch.
const COPY_ROOM: usize = 1 << 20;

/// State of a worker that answers requests.
pub struct Answerer<'a> {
    set: &'a PublishedSet,
    /// The cache, if it is one of `handle-cache`, and the room for its copies.
    cache: Option<(&'a dyn ServerCache, Box<[u8]>)>,
    now_unix_s: u32,
    scratch: Box<Scratch>,
    outbox: Outbox,
    peer: Peer,
}

impl<'a> Answerer<'a> {
    /// Creates a worker that answers from `set`.
    #[must_use]
    pub fn new(set: &'a PublishedSet) -> Self {
        Self {
            set,
            cache: None,
            now_unix_s: NOW_UNIX_S,
            scratch: Box::new(Scratch::new()),
            outbox: Outbox::new(1024, 1 << 20),
            peer: Peer::to(SocketAddr::from(([127, 0, 0, 1], 9))),
        }
    }

    /// Answers from `cache` what the set does not have, at the time `now_unix_s`.
    #[must_use]
    pub fn caching(mut self, cache: &'a dyn ServerCache, now_unix_s: u32) -> Self {
        self.now_unix_s = now_unix_s;
        self.cache = Some((cache, vec![0; COPY_ROOM].into_boxed_slice()));
        self
    }

    /// Answers the [`BATCH_LEN`] requests from `first` on in stages; returns the bytes written.
    pub fn batch(&mut self, requests: &'a Requests, first: usize) -> usize {
        self.outbox.clear();
        let datagrams = (first..first + BATCH_LEN).map(|at| requests.get(at));
        let (mut len, outbox, peer) = (0, &mut self.outbox, self.peer);
        let cached = self.cache.as_mut().map(|(cache, room)| BatchCache::new(*cache, room, self.now_unix_s));
        let context = context(self.set).caching(cached.as_ref().map(|cached| cached as _));
        answer_batch(&context, &mut self.scratch, datagrams, |_, outcome| {
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
        match answer(&context(self.set), requests.get(at)) {
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
