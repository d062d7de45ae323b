//! One answer in one allocation, with the fields that the cache needs in front.

use crate::{ClockReading, LookupAnswer};
use handle_proto::ResponseCode;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// An answer with shared ownership: the cache, everyone who got it from there, and everyone who
/// waited for it.
#[derive(Clone, Debug)]
pub struct SharedAnswer(Arc<CacheEntry>);

/// The name of a handle: a hash with a secret key of the cache. Without the key, two handles with
/// the same name cannot be found, and chance makes none among a million handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheKey(pub [u64; 2]);

/// The answer to one choice of values of a handle.
///
/// With a million handles, the time of a hit is the number of cache lines that it touches. So all
/// the fields that a hit reads and writes are in front, in this order: the counts of the `Arc`, the
/// name, and the two or three fields after it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CacheEntry {
    pub name: CacheKey,
    expires_ms: u64,
    /// Number of times it will still be passed over when capacity is needed.
    rounds_left: AtomicU8,
    /// Whether all values were asked for. Then `values_key`, which is in another cache line, is
    /// empty.
    is_for_all: bool,
    /// The end of the first value with an absolute time to live, in Unix seconds.
    ends_unix_s: u32,
    answer: LookupAnswer,
    values_key: Box<[u8]>,
    /// Sequence number in its shard; older answers have lower ones.
    pub number: u64,
}

/// Bytes of the counts of an `Arc`, which precede its content.
pub(super) const COUNTS_BYTES: usize = 2 * size_of::<usize>();
const _: () =
    assert!(COUNTS_BYTES + std::mem::offset_of!(CacheEntry, answer) <= 48, "most of the time one line");

/// Number of times that a new answer is passed over, and a used one, which is older and was wanted
/// again.
const ROUNDS_NEW: u8 = 1;
const ROUNDS_USED: u8 = 2;

/// The lifetime of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EntryLifetime {
    /// Its end on the monotonic clock.
    pub expires_ms: u64,
    /// The end of the first value with an absolute time to live, in Unix seconds. After it, the
    /// answer is not even served as a stale one.
    pub ends_unix_s: u32,
}

/// Bytes that the allocator takes for an allocation of `len` bytes: its own eight, rounded up to
/// sixteen, as glibc does. The cache is bounded in memory, and for short answers the difference is
/// a tenth.
const fn allocated(len: usize) -> usize {
    match len {
        0 => 0,
        1..=24 => 32,
        _ => (len + 8).next_multiple_of(16),
    }
}

impl CacheEntry {
    pub(super) fn new(
        name: CacheKey,
        values_key: Box<[u8]>,
        answer: LookupAnswer,
        lifetime: EntryLifetime,
    ) -> Self {
        Self {
            name,
            expires_ms: lifetime.expires_ms,
            rounds_left: AtomicU8::new(ROUNDS_NEW),
            is_for_all: values_key.is_empty(),
            ends_unix_s: lifetime.ends_unix_s,
            answer,
            values_key,
            number: 0,
        }
    }

    /// Bytes that the entry occupies, including the counts of its `Arc` and the overhead of the
    /// allocator.
    pub(super) fn memory(&self) -> usize {
        let own = allocated(size_of::<Self>() + COUNTS_BYTES);
        let beside = self.answer.allocations().into_iter().chain([self.values_key.len()]);
        own + beside.map(allocated).sum::<usize>()
    }

    /// Whether it belongs to this handle.
    pub(super) fn is_of(kept: &Arc<Self>, name: CacheKey) -> bool {
        // Allocations are aligned to 16 bytes, so the counts may be in the cache line before the
        // name. Reading them here loads both lines at once; incrementing the count would wait for
        // all earlier reads.
        let is_there = Arc::strong_count(kept) != 0;
        is_there & (kept.name == name)
    }

    /// Whether it is the answer to exactly this choice of values.
    pub(super) fn is_to(&self, values_key: &[u8]) -> bool {
        match values_key {
            [] => self.is_for_all,
            _ => !self.is_for_all && *self.values_key == *values_key,
        }
    }

    pub(super) fn values_key(&self) -> &[u8] {
        &self.values_key
    }

    pub(super) const fn is_for_all(&self) -> bool {
        self.is_for_all
    }

    pub(super) const fn is_alive(&self, now: ClockReading) -> bool {
        now.ms < self.expires_ms && now.unix_s < self.ends_unix_s
    }

    /// Milliseconds since it expired, if it may still be served as a stale answer: a positive
    /// answer, at most `stale_ms` after it expired and not after the end of a value.
    pub(super) fn stale_ms(&self, now: ClockReading, stale_ms: u64) -> Option<u64> {
        let since_ms = now.ms.checked_sub(self.expires_ms)?;
        let is_usable = self.answer.code == ResponseCode::SUCCESS && now.unix_s < self.ends_unix_s;
        (is_usable && since_ms < stale_ms).then_some(since_ms)
    }

    pub(super) fn note_used(&self) {
        self.rounds_left.store(ROUNDS_USED, Ordering::Relaxed);
    }

    /// Whether it stays for one more round, of which it then has one fewer. Called under the lock
    /// of its shard, as [`Self::note_used`].
    pub(super) fn is_passed_by(&self, now: ClockReading) -> bool {
        let left = self.rounds_left.load(Ordering::Relaxed);
        self.rounds_left.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0 && self.is_alive(now)
    }
}

impl SharedAnswer {
    pub(super) const fn of(kept: Arc<CacheEntry>) -> Self {
        Self(kept)
    }

    /// The answer by itself; a copy if it is shared.
    #[must_use]
    pub fn into_answer(self) -> LookupAnswer {
        match Arc::try_unwrap(self.0) {
            Ok(kept) => kept.answer,
            Err(kept) => kept.answer.clone(),
        }
    }

    /// The same answer, with the handle spelt as `handle`.
    #[must_use]
    pub fn spelt(self, handle: &[u8]) -> Self {
        if self.handle == handle {
            return self;
        }
        let mut answer = self.into_answer();
        answer.handle = handle.to_vec();
        answer.into()
    }
}

impl From<LookupAnswer> for SharedAnswer {
    fn from(answer: LookupAnswer) -> Self {
        Self(Arc::new(CacheEntry::new(CacheKey::default(), Box::default(), answer, EntryLifetime::default())))
    }
}

impl Deref for SharedAnswer {
    type Target = LookupAnswer;

    fn deref(&self) -> &LookupAnswer {
        &self.0.answer
    }
}

impl PartialEq for SharedAnswer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SharedAnswer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_answer_keeps_the_spelling_of_each_question() {
        let shared = SharedAnswer::from(LookupAnswer::new(b"a/b", ResponseCode::SUCCESS, []));
        let same = shared.clone().spelt(b"a/b");
        assert!(Arc::ptr_eq(&shared.0, &same.0), "nothing is copied");
        let other = shared.clone().spelt(b"A/b");
        assert_eq!((&*other.handle, &*shared.handle), (&b"A/b"[..], &b"a/b"[..]));
        assert_ne!(other, shared);
        assert_eq!(same.into_answer(), shared.into_answer());
    }

    #[test]
    fn used_answers_survive_two_sweeps_and_expired_answers_none() {
        let now = |ms| ClockReading { ms, unix_s: 0 };
        let kept = CacheEntry::new(
            CacheKey::default(),
            Box::default(),
            LookupAnswer::new(b"a/b", ResponseCode::SUCCESS, []),
            EntryLifetime { expires_ms: 10, ends_unix_s: u32::MAX },
        );
        let passed = |ms| (0..4).take_while(|_| kept.is_passed_by(now(ms))).count();
        assert_eq!(passed(9), 1, "new");
        kept.note_used();
        assert_eq!(passed(9), 2, "used");
        kept.note_used();
        assert_eq!(passed(10), 0, "expired");
    }
}
