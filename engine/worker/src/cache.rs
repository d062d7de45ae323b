//! What a caching server adds to a server: records of other services, and a way to fetch
//! missing ones. `handled` has neither.
//!
//! A worker answers from the cache in the batch, after its set and as fast as from it. A request
//! for a record that is not in the cache goes to the slow path, which hands it to the cache as a
//! [`MissingRecord`] and goes on with it when its [`Resolution`] is there. No thread waits
//! meanwhile.

pub use crate::slow::missing_record::MissingRecord;
pub use crate::slow::resolution::Resolution;
use handle_resolver::{RecordCache, StagedCacheLookup};
use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// The cache of a caching server.
pub trait ServerCache: fmt::Debug + Send + Sync {
    /// As [`RecordCache::prefetch`].
    fn prefetch(&self, lookups: &mut [StagedCacheLookup<'_>]);

    /// As [`RecordCache::find`], at the time `now_unix_s`. The values are copied to `buffer`;
    /// without enough bytes, nothing is known about the handle.
    fn find<'c, 'r: 'c>(
        &self,
        lookups: &mut [StagedCacheLookup<'c>],
        now_unix_s: u32,
        buffer: &CopyBuffer<'r>,
    );

    /// Asks other services for a record, and [settles](MissingRecord::settle) the request later.
    /// Must not block.
    fn resolve(&self, missing: MissingRecord);
}

/// What a cache knows about requests that only the responsible service can decide. A cache with it
/// [resolves](ServerCache::resolve) such requests, by handing them to that service.
pub trait RequestRelay: fmt::Debug + Send + Sync {
    /// Whether the challenge with this number was made by a service to which a request of `source`
    /// was handed.
    fn has_challenge(&self, source: IpAddr, number: i32) -> bool;
}

/// A buffer for copies of records that are used together: those of a batch, or of a part of one.
pub struct CopyBuffer<'r>(Cell<&'r mut [u8]>);

impl<'r> CopyBuffer<'r> {
    /// All of `buffer`.
    #[must_use]
    pub const fn new(buffer: &'r mut [u8]) -> Self {
        Self(Cell::new(buffer))
    }

    /// Takes `len` bytes, if there are so many left.
    #[inline]
    pub fn take(&self, len: usize) -> Option<&'r mut [u8]> {
        let left = self.0.take();
        if len > left.len() {
            self.0.set(left);
            return None;
        }
        let (taken, left) = left.split_at_mut(len);
        self.0.set(left);
        Some(taken)
    }
}

impl fmt::Debug for CopyBuffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyBuffer").finish_non_exhaustive()
    }
}

/// The cache as the resolver sees it, for one batch.
#[derive(Debug)]
pub struct BatchCache<'b> {
    cache: &'b dyn ServerCache,
    buffer: CopyBuffer<'b>,
    now_unix_s: u32,
}

impl<'b> BatchCache<'b> {
    /// The cache at the time `now_unix_s`, with `buffer` for the copies of the batch.
    pub const fn new(cache: &'b dyn ServerCache, buffer: &'b mut [u8], now_unix_s: u32) -> Self {
        Self { cache, buffer: CopyBuffer::new(buffer), now_unix_s }
    }
}

impl RecordCache for BatchCache<'_> {
    fn prefetch(&self, lookups: &mut [StagedCacheLookup<'_>]) {
        self.cache.prefetch(lookups);
    }

    fn find<'c>(&'c self, lookups: &mut [StagedCacheLookup<'c>]) {
        self.cache.find(lookups, self.now_unix_s, &self.buffer);
    }
}

/// The cache as a worker has it: with the buffer of its batches.
#[derive(Debug)]
pub(crate) struct WorkerCache {
    cache: Arc<dyn ServerCache>,
    buffer: Box<[u8]>,
}

impl WorkerCache {
    /// With `buffer_len` bytes for the copies of a batch: an answer takes more bytes in the outbox
    /// than its record does here, unless it has only some of the values.
    pub(crate) fn new(cache: &Arc<dyn ServerCache>, buffer_len: usize) -> Self {
        Self { cache: Arc::clone(cache), buffer: vec![0; buffer_len].into_boxed_slice() }
    }

    /// The cache for the next batch, or part of one.
    pub(crate) fn of_batch(&mut self, now_unix_s: u32) -> BatchCache<'_> {
        BatchCache::new(&*self.cache, &mut self.buffer, now_unix_s)
    }
}

#[cfg(test)]
mod tests;
