//! A ring of words that holds entries in the order of their arrival.

use super::entry::{EntryHead, HEAD_WORDS};
use handle_snapshot::map::prefer_huge_pages;
use handle_snapshot::prefetch::prefetch_line;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use zerocopy::FromZeros as _;

/// Positions in the index are taken modulo this.
pub(super) const POSITION_MASK: u64 = (1 << 40) - 1;

/// A ring of words. A position counts the words before it since the start, so positions only grow.
/// Only the holder of the lock of the shard writes.
#[derive(Debug)]
pub(super) struct Ring {
    words: Box<[AtomicU64]>,
    /// The oldest valid position.
    tail: AtomicU64,
    /// The position after the newest entry.
    head: AtomicU64,
}

/// The oldest entry of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct OldestEntry {
    pub(super) position: u64,
    pub(super) head: EntryHead,
}

impl Ring {
    /// A ring of `len` words, all of them unused.
    pub(super) fn new(len: usize) -> Self {
        // Zeroed memory is provided by the system when it is first used. Without memory the
        // process ends, as with any other allocation.
        let words = <[AtomicU64]>::new_box_zeroed_with_elems(len)
            .unwrap_or_else(|_| (0..len).map(|_| AtomicU64::new(0)).collect());
        prefer_huge_pages(&words);
        Self { words, tail: AtomicU64::new(0), head: AtomicU64::new(0) }
    }

    /// Number of words.
    pub(super) const fn len(&self) -> usize {
        self.words.len()
    }

    #[expect(clippy::cast_possible_truncation, reason = "less than the number of words")]
    const fn offset(&self, position: u64) -> usize {
        (position % self.len() as u64) as usize
    }

    /// The words from a position in the index to the end of the lap; `None` when the position is no
    /// longer valid. What they contain counts only if [`is_valid`](Self::is_valid) holds
    /// afterwards.
    #[inline]
    pub(super) fn words_at(&self, position: u64) -> Option<&[AtomicU64]> {
        let tail = self.tail.load(Ordering::Relaxed);
        let ahead = position.wrapping_sub(tail) & POSITION_MASK;
        (ahead < self.len() as u64).then(|| &self.words[self.offset(tail + ahead)..])
    }

    /// Whether nothing at or after a position in the index has been overwritten. To be called after
    /// the words were read.
    #[inline]
    pub(super) fn is_valid(&self, position: u64) -> bool {
        // Pairs with the fence in `push`: whoever has read a word written after that fence sees the
        // tail that was stored before it.
        fence(Ordering::Acquire);
        let ahead = position.wrapping_sub(self.tail.load(Ordering::Relaxed)) & POSITION_MASK;
        ahead < self.len() as u64
    }

    /// Starts loading the first `lines_count` lines of the entry at a position in the index.
    #[inline]
    pub(super) fn prefetch(&self, position: u64, lines_count: usize) {
        const LINE_WORDS: usize = 64 / size_of::<u64>();
        let Some(words) = self.words_at(position) else { return };
        words.iter().step_by(LINE_WORDS).take(lines_count).for_each(prefetch_line);
    }

    /// Words that must be free for an entry of `len` words: it does not continue at the start of
    /// the ring.
    fn needed(&self, len: usize) -> usize {
        let left = self.len() - self.offset(self.head.load(Ordering::Relaxed));
        if left < len { left + len } else { len }
    }

    /// Whether there is capacity for an entry of `len` words.
    pub(super) fn has_capacity(&self, len: usize) -> bool {
        let used = self.head.load(Ordering::Relaxed) - self.tail.load(Ordering::Relaxed);
        used + self.needed(len) as u64 <= self.len() as u64
    }

    /// The oldest entry; `None` when the ring is empty.
    pub(super) fn oldest(&self) -> Option<OldestEntry> {
        loop {
            let position = self.tail.load(Ordering::Relaxed);
            if position == self.head.load(Ordering::Relaxed) {
                return None;
            }
            let offset = self.offset(position);
            let words = &self.words[offset..];
            match EntryHead::decode(words).filter(|head| head.hash != 0 && head.words() <= words.len()) {
                Some(head) => return Some(OldestEntry { position, head }),
                // The rest of the lap is unused.
                None => self.tail.store(position + (self.len() - offset) as u64, Ordering::Relaxed),
            }
        }
    }

    /// Removes the [oldest](Self::oldest) entry.
    pub(super) fn pop(&self, oldest: &OldestEntry) {
        self.tail.store(oldest.position + oldest.head.words() as u64, Ordering::Relaxed);
    }

    /// Copies the words of the entry at `position` to `to`, which is cleared before.
    pub(super) fn copy(&self, oldest: &OldestEntry, to: &mut Vec<u64>) {
        let words = &self.words[self.offset(oldest.position)..][..oldest.head.words()];
        to.clear();
        to.extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
    }

    /// Writes an entry, for which there [is capacity](Self::has_capacity). Returns its position.
    pub(super) fn push(&self, entry: &[u64]) -> u64 {
        debug_assert!(entry.len() >= HEAD_WORDS && self.has_capacity(entry.len()), "no room");
        // Before anything is overwritten, readers must be able to see that the tail has moved.
        fence(Ordering::Release);
        let mut position = self.head.load(Ordering::Relaxed);
        let left = self.len() - self.offset(position);
        if left < entry.len() {
            self.words[self.offset(position)].store(0, Ordering::Relaxed);
            position += left as u64;
        }
        let words = &self.words[self.offset(position)..];
        for (word, &value) in words.iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
        self.head.store(position + entry.len() as u64, Ordering::Relaxed);
        position
    }

    /// The head of the entry at a position in the index, if it is one with this hash.
    #[inline]
    pub(super) fn head_at(&self, position: u64, hash: u64) -> Option<(EntryHead, &[AtomicU64])> {
        let words = self.words_at(position)?;
        let head = EntryHead::decode(words).filter(|head| head.hash == hash)?;
        Some((head, words.get(HEAD_WORDS..head.words())?))
    }
}
