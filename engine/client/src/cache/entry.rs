//! One answer in one place of memory, with what the cache has to know of it in front.

use crate::{ClockReading, LookupAnswer};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// An answer that many may have at once: the cache, everybody who got it from there, and everybody who waited for it.
#[derive(Clone, Debug)]
pub struct SharedAnswer(Arc<CacheEntry>);

/// What a handle is known by: a hash with a secret key of the cache. Who does not know the key cannot look for two handles
/// that have the same, and of a million handles that are there by chance none has that of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheKey(pub [u64; 2]);

/// The answer to one choice of values of a handle.
///
/// With a million handles, a hit takes as long as the lines of memory that it touches. So all that it reads and writes
/// stands in front, in this order: the counts of the `Arc`, the name, and the two or three fields after it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CacheEntry {
    pub name: CacheKey,
    expires_ms: u64,
    /// How many times it is still passed by when room is needed.
    rounds_left: AtomicU8,
    /// Whether all values were asked for: then `values_key`, which is further away, is empty.
    is_for_all: bool,
    answer: LookupAnswer,
    values_key: Box<[u8]>,
    /// Which one it was in its part of the cache: an older one has less.
    pub number: u64,
}

/// The counts of an `Arc`, in front of what it has.
pub(super) const COUNTS_BYTES: usize = 2 * size_of::<usize>();
const _: () =
    assert!(COUNTS_BYTES + std::mem::offset_of!(CacheEntry, answer) <= 48, "most of the time one line");

/// How many times what is new is passed by, and what was used: it is older and was wanted again.
const ROUNDS_NEW: u8 = 1;
const ROUNDS_USED: u8 = 2;

impl CacheEntry {
    pub(super) fn new(name: CacheKey, values_key: Box<[u8]>, answer: LookupAnswer, expires_ms: u64) -> Self {
        Self {
            name,
            expires_ms,
            rounds_left: AtomicU8::new(ROUNDS_NEW),
            is_for_all: values_key.is_empty(),
            answer,
            values_key,
            number: 0,
        }
    }

    /// Bytes that it takes, with the counts of its `Arc`.
    pub(super) fn memory(&self) -> usize {
        let beside = size_of::<Self>() - size_of::<LookupAnswer>() + COUNTS_BYTES;
        beside + self.values_key.len() + self.answer.memory()
    }

    /// Whether it is of this handle.
    pub(super) fn is_of(kept: &Arc<Self>, name: CacheKey) -> bool {
        // Allocations begin at 16 bytes, so that the counts may be in the line before that of the name. Read here, both
        // lines come at once; to count one more waits until all that is read before is there.
        let is_there = Arc::strong_count(kept) != 0;
        is_there & (kept.name == name)
    }

    /// Whether it is the answer to just this choice of values.
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
        now.ms < self.expires_ms
    }

    pub(super) fn note_used(&self) {
        self.rounds_left.store(ROUNDS_USED, Ordering::Relaxed);
    }

    /// Whether it stays for one more round; it has one less, then. Under the lock of its part, as [`Self::note_used`].
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

    /// The answer by itself; a copy where others have it, too.
    #[must_use]
    pub fn into_answer(self) -> LookupAnswer {
        match Arc::try_unwrap(self.0) {
            Ok(kept) => kept.answer,
            Err(kept) => kept.answer.clone(),
        }
    }

    /// The same, with the handle as `handle` spells it.
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
        Self(Arc::new(CacheEntry::new(CacheKey::default(), Box::default(), answer, 0)))
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
    use handle_proto::ResponseCode;

    #[test]
    fn a_shared_answer_is_spelt_for_one_asker_alone() {
        let shared = SharedAnswer::from(LookupAnswer::new(b"a/b", ResponseCode::SUCCESS, []));
        let same = shared.clone().spelt(b"a/b");
        assert!(Arc::ptr_eq(&shared.0, &same.0), "nothing is copied");
        let other = shared.clone().spelt(b"A/b");
        assert_eq!((&*other.handle, &*shared.handle), (&b"A/b"[..], &b"a/b"[..]));
        assert_ne!(other, shared);
        assert_eq!(same.into_answer(), shared.into_answer());
    }

    #[test]
    fn what_was_used_is_passed_by_twice_and_what_has_expired_never() {
        let now = |ms| ClockReading { ms, unix_s: 0 };
        let kept = CacheEntry::new(
            CacheKey::default(),
            Box::default(),
            LookupAnswer::new(b"a/b", ResponseCode::SUCCESS, []),
            10,
        );
        let passed = |ms| (0..4).take_while(|_| kept.is_passed_by(now(ms))).count();
        assert_eq!(passed(9), 1, "new");
        kept.note_used();
        assert_eq!(passed(9), 2, "used");
        kept.note_used();
        assert_eq!(passed(10), 0, "expired");
    }
}
