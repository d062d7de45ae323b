//! The index of a shard: where the entry with a hash is.

use super::ring::POSITION_MASK;
use handle_snapshot::map::prefer_huge_pages;
use handle_snapshot::prefetch::prefetch_line;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Slots of a bucket, which with their uses fill a cache line.
pub(super) const BUCKET_SLOTS: usize = 7;
/// Slot numbers of a bucket: a power of two, so that no division is needed. The last one is unused.
const BUCKET_NUMBERS: usize = BUCKET_SLOTS + 1;
/// Bytes of a bucket.
pub(super) const BUCKET_LEN: usize = size_of::<Bucket>();
const _: () = assert!(BUCKET_LEN == 64, "one line");

/// The value of a slot without an entry.
const FREE: u64 = 0;
/// The bit of a slot that is set for entries in the main ring.
const MAIN_BIT: u64 = POSITION_MASK + 1;
/// The bits of a slot that are taken from the hash. The lowest is always set, so that no slot with
/// an entry is [`FREE`].
const TAG_MASK: u64 = !(POSITION_MASK | MAIN_BIT);
const TAG_SET: u64 = MAIN_BIT << 1;
/// Uses are counted up to this number.
const USES_MAX: u8 = 3;

/// A cache line of the index.
#[derive(Debug)]
#[repr(C, align(64))]
struct Bucket {
    slots: [AtomicU64; BUCKET_SLOTS],
    uses: [AtomicU8; BUCKET_NUMBERS],
}

impl Bucket {
    /// A bit for each slot with `tag`, so that the search has no branch for each.
    #[inline]
    fn matches(&self, tag: u64) -> u32 {
        self.slots.iter().enumerate().fold(0, |bits, (at, word)| {
            bits | u32::from(word.load(Ordering::Relaxed) & TAG_MASK == tag) << at
        })
    }
}

/// The buckets. An entry is in the bucket that its hash names, or in its neighbour.
#[derive(Debug)]
pub(super) struct Index {
    buckets: Box<[Bucket]>,
}

/// One of the two rings of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingName {
    /// The ring of new entries.
    Small,
    /// The ring of entries that were used again.
    Main,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryPointer {
    pub(super) ring: RingName,
    /// The position in the ring, modulo [`POSITION_MASK`] + 1.
    pub(super) position: u64,
}

impl EntryPointer {
    /// The pointer in the word of a slot.
    const fn of_word(word: u64) -> Self {
        let ring = if word & MAIN_BIT == 0 { RingName::Small } else { RingName::Main };
        Self { ring, position: word & POSITION_MASK }
    }
}

/// Stands for the number of a slot where there is none.
pub const NO_SLOT: usize = usize::MAX;

/// A slot of the index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<'i> {
    word: &'i AtomicU64,
    uses: &'i AtomicU8,
}

const fn tag(hash: u64) -> u64 {
    // The lower bits choose the bucket, the highest the shard.
    (hash << 6) & TAG_MASK | TAG_SET
}

impl<'i> Slot<'i> {
    /// The pointer of the entry; `None` if the slot is free.
    fn pointer(self) -> Option<EntryPointer> {
        let word = self.word.load(Ordering::Acquire);
        (word != FREE).then(|| EntryPointer::of_word(word))
    }

    /// The pointer of the entry, if it has this tag.
    #[inline]
    fn pointer_of(self, tag: u64) -> Option<EntryPointer> {
        let word = self.word.load(Ordering::Acquire);
        (word & TAG_MASK == tag).then(|| EntryPointer::of_word(word))
    }

    /// Puts an entry into the slot, and sets its number of uses.
    pub(super) fn set(self, hash: u64, pointer: EntryPointer, uses: u8) {
        self.uses.store(uses, Ordering::Relaxed);
        let main = if pointer.ring == RingName::Main { MAIN_BIT } else { 0 };
        self.word.store(tag(hash) | main | (pointer.position & POSITION_MASK), Ordering::Release);
    }

    /// Makes the slot free.
    pub(super) fn clear(self) {
        self.word.store(FREE, Ordering::Release);
    }

    /// Counts a use, and returns the number of those before. Uses that are counted at the same time
    /// may count as one.
    #[inline]
    pub(super) fn count_use(self) -> u8 {
        let uses = self.uses.load(Ordering::Relaxed);
        if uses < USES_MAX {
            self.uses.store(uses + 1, Ordering::Relaxed);
        }
        uses
    }

    /// Number of recent uses.
    pub(super) fn uses(self) -> u8 {
        self.uses.load(Ordering::Relaxed)
    }
}

impl Index {
    /// An empty index of `buckets_count` buckets, which is even and not 0.
    pub(super) fn new(buckets_count: usize) -> Self {
        let empty = || Bucket {
            slots: [const { AtomicU64::new(FREE) }; BUCKET_SLOTS],
            uses: [const { AtomicU8::new(0) }; BUCKET_NUMBERS],
        };
        let mut buckets = Vec::with_capacity(buckets_count);
        prefer_huge_pages(buckets.spare_capacity_mut());
        buckets.extend((0..buckets_count).map(|_| empty()));
        Self { buckets: buckets.into_boxed_slice() }
    }

    /// The number of the bucket for `hash`.
    #[inline]
    const fn bucket_at(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * self.buckets.len() as u64) >> 32) as usize
    }

    /// The two buckets for `hash`.
    #[inline]
    fn buckets(&self, hash: u64) -> [&Bucket; 2] {
        let at = self.bucket_at(hash);
        [&self.buckets[at], &self.buckets[at ^ 1]]
    }

    /// Starts loading the buckets for `hash`.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        self.buckets(hash).into_iter().for_each(prefetch_line);
    }

    /// The numbers of the slots that may have the entry with `hash`.
    #[inline]
    pub(super) fn candidates(&self, hash: u64) -> impl Iterator<Item = usize> {
        let (tag, mut at) = (tag(hash), self.bucket_at(hash));
        // Most entries are in the bucket that their hash names, so the other is read last.
        let (mut bits, mut neighbour) = (self.buckets[at].matches(tag), Some(at ^ 1));
        std::iter::from_fn(move || {
            while bits == 0 {
                at = neighbour.take()?;
                bits = self.buckets[at].matches(tag);
            }
            let number = at * BUCKET_NUMBERS + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            Some(number)
        })
    }

    /// A slot and the pointer of its entry, if that may be the one with `hash`.
    #[inline]
    pub(super) fn candidate(&self, number: usize, hash: u64) -> Option<(Slot<'_>, EntryPointer)> {
        let (bucket, at) = (number / BUCKET_NUMBERS, number % BUCKET_NUMBERS);
        let bucket = self.buckets.get(bucket)?;
        let slot = Slot { word: bucket.slots.get(at)?, uses: &bucket.uses[at] };
        Some((slot, slot.pointer_of(tag(hash))?))
    }

    /// The slots in which an entry with `hash` may be.
    #[inline]
    fn slots(&self, hash: u64) -> impl Iterator<Item = Slot<'_>> {
        self.buckets(hash).into_iter().flat_map(slots_of)
    }

    /// The slot of the entry with `hash` at `pointer`.
    pub(super) fn slot_of(&self, hash: u64, pointer: EntryPointer) -> Option<Slot<'_>> {
        let pointer = EntryPointer { position: pointer.position & POSITION_MASK, ..pointer };
        let mut candidates = self.candidates(hash).filter_map(|number| self.candidate(number, hash));
        candidates.find(|&(_, candidate)| candidate == pointer).map(|(slot, _)| slot)
    }

    /// A slot for a new entry with `hash`: a free one, or that of the entry with the fewest uses,
    /// which is then returned as well.
    pub(super) fn slot_for(&self, hash: u64) -> (Slot<'_>, Option<EntryPointer>) {
        let slots = self.slots(hash).map(|slot| (slot, slot.pointer()));
        let rank = |&(slot, pointer): &(Slot<'_>, Option<EntryPointer>)| (pointer.is_some(), slot.uses());
        slots.min_by_key(rank).expect("a bucket has slots")
    }

    /// All slots with an entry, and its pointer, in parts of so many buckets, which is even. An
    /// entry stays in its part.
    pub(super) fn parts(
        &self,
        buckets_count: usize,
    ) -> impl Iterator<Item = impl Iterator<Item = (Slot<'_>, EntryPointer)>> {
        self.buckets.chunks(buckets_count).map(|part| {
            let slots = part.iter().flat_map(slots_of);
            slots.filter_map(|slot| Some((slot, slot.pointer()?)))
        })
    }
}

#[inline]
fn slots_of(bucket: &Bucket) -> impl Iterator<Item = Slot<'_>> {
    bucket.slots.iter().zip(&bucket.uses).map(|(word, uses)| Slot { word, uses })
}
