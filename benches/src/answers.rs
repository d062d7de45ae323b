//! Answers requests as a worker of the server does, without a socket.

use crate::requests::Requests;
pub use handle_fixtures::replies::{BATCH_LEN, context, push};
use handle_fixtures::replies::{NOW_UNIX_S, ReplyBuffer};
use handle_snapshot::PublishedSet;
use handle_worker::cache::{BatchCache, ServerCache};

/// Bytes for the copies of a batch.
const COPY_LEN: usize = 1 << 20;

/// State of a worker that answers requests.
pub struct Answerer<'a> {
    set: &'a PublishedSet,
    /// The cache, if it is one of `handle-cache`, and the buffer for its copies.
    cache: Option<(&'a dyn ServerCache, Box<[u8]>)>,
    now_unix_s: u32,
    buffer: ReplyBuffer,
}

impl<'a> Answerer<'a> {
    /// Creates a worker that answers from `set`.
    #[must_use]
    pub fn new(set: &'a PublishedSet) -> Self {
        Self { set, cache: None, now_unix_s: NOW_UNIX_S, buffer: ReplyBuffer::default() }
    }

    /// Answers from `cache` what the set does not have, at the time `now_unix_s`.
    #[must_use]
    pub fn caching(mut self, cache: &'a dyn ServerCache, now_unix_s: u32) -> Self {
        self.now_unix_s = now_unix_s;
        self.cache = Some((cache, vec![0; COPY_LEN].into_boxed_slice()));
        self
    }

    /// Answers the [`BATCH_LEN`] requests from `first` on in stages; returns the bytes written.
    pub fn batch(&mut self, requests: &'a Requests, first: usize) -> usize {
        let cached =
            self.cache.as_mut().map(|(cache, buffer)| BatchCache::new(*cache, buffer, self.now_unix_s));
        let context = context(self.set).caching(cached.as_ref().map(|cached| cached as _));
        self.buffer.answer_batch(&context, requests, first)
    }

    /// Answers the request at `at` by itself; returns the bytes written.
    pub fn one(&mut self, requests: &'a Requests, at: usize) -> usize {
        self.buffer.answer_one(&context(self.set), requests, at)
    }

    /// Returns datagram number `at` of the last answers.
    #[must_use]
    pub fn datagram(&self, at: usize) -> &[u8] {
        self.buffer.datagram(at)
    }
}
