//! The table that finds the answers of a shard by name. A lookup reads one cache line before the
//! answer, where a table with separate tags and pointers reads two, one after the other. With a
//! million handles that saves a fifth of the time of a hit.

use super::entry::{CacheEntry, CacheKey};
use std::sync::Arc;

/// Answers by name, possibly many with the same name. A slot is the position of one answer.
#[derive(Debug, Default)]
pub(super) struct CacheTable {
    buckets: Vec<CacheBucket>,
    len: usize,
}

/// As many answers as fit into a cache line with one byte of each one's name.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct CacheBucket {
    /// For each answer one byte of its name, which is never [`FREE`].
    tags: [u8; SLOTS],
    /// Number of answers that are in a later bucket because this one was full; at most [`ALWAYS`],
    /// which stays.
    passed: u8,
    kept: [Option<Arc<CacheEntry>>; SLOTS],
}

const SLOTS: usize = 7;
const _: () = assert!(size_of::<CacheBucket>() == 64, "one line");
const FREE: u8 = 0;
const ALWAYS: u8 = u8::MAX;
/// With more answers than this for each bucket, the number of buckets doubles. Up to then few
/// answers are outside their own bucket.
const FULL: usize = 5;
/// There is at most one bucket for two answers, and this many more. Tables with fewer answers are
/// so rare that the memory does not matter.
const SPARSE_MIN: usize = 16;
/// Most bytes that the table takes for each answer.
pub(super) const SLOT_BYTES: usize = size_of::<CacheBucket>() / 2;

impl CacheTable {
    /// Number of answers.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Number of slots, with and without an answer.
    pub(super) const fn slots_count(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    /// The answer at `slot`.
    pub(super) fn at(&self, slot: usize) -> Option<&Arc<CacheEntry>> {
        self.buckets.get(slot / SLOTS)?.kept[slot % SLOTS].as_ref()
    }

    /// The answer with this name for which `is_it` returns true.
    #[inline]
    pub(super) fn find(
        &self,
        name: CacheKey,
        is_it: impl Fn(&CacheEntry) -> bool,
    ) -> Option<&Arc<CacheEntry>> {
        self.of(name).map(|(_, kept)| kept).find(|kept| is_it(kept))
    }

    /// The answers with this name, and their slots.
    #[inline]
    pub(super) fn of(&self, name: CacheKey) -> impl Iterator<Item = (usize, &Arc<CacheEntry>)> {
        let tag = tag(name);
        self.buckets_of(name).flat_map(move |at| {
            let bucket = &self.buckets[at];
            let kept = bucket.slots_with(tag).filter_map(move |slot| {
                let kept = bucket.kept.get(slot)?.as_ref()?;
                Some((at * SLOTS + slot, kept))
            });
            kept.filter(move |(_, kept)| CacheEntry::is_of(kept, name))
        })
    }

    pub(super) fn insert(&mut self, kept: Arc<CacheEntry>) {
        if self.len >= self.buckets.len() * FULL {
            self.resize(self.buckets.len() * 2);
        }
        self.slot(kept);
    }

    /// Removes the answer at `slot`.
    pub(super) fn remove(&mut self, slot: usize) -> Option<Arc<CacheEntry>> {
        let (at, slot) = (slot / SLOTS, slot % SLOTS);
        let bucket = self.buckets.get_mut(at)?;
        let kept = bucket.kept[slot].take()?;
        bucket.tags[slot] = FREE;
        self.len -= 1;
        let mut passed = self.home(kept.name);
        while passed != at {
            let bucket = &mut self.buckets[passed];
            bucket.passed -= u8::from(bucket.passed != ALWAYS);
            passed = self.next(passed);
        }
        Some(kept)
    }

    /// Frees the memory of removed answers, because few long ones may have replaced many short
    /// ones. This changes slots, as adding an answer does.
    pub(super) fn pack(&mut self) {
        if self.buckets.len() > self.len / 2 + SPARSE_MIN {
            self.resize(self.len * 2 / FULL);
        }
    }

    /// Bytes that it takes, and how many it may take: [`SLOT_BYTES`] for each answer, and
    /// [`SPARSE_MIN`] buckets.
    #[cfg(test)]
    pub(super) const fn memory(&self) -> (usize, usize) {
        let bucket = size_of::<CacheBucket>();
        (self.buckets.capacity() * bucket, self.len * SLOT_BYTES + SPARSE_MIN * bucket)
    }

    /// The bucket of a name. Buckets are in the order of names, however many there are.
    fn home(&self, name: CacheKey) -> usize {
        let share = u128::from(name.0[0]) * self.buckets.len() as u128;
        usize::try_from(share >> u64::BITS).unwrap_or_default()
    }

    const fn next(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// The buckets where answers with this name may be.
    #[inline]
    fn buckets_of(&self, name: CacheKey) -> impl Iterator<Item = usize> {
        let mut following = (!self.buckets.is_empty()).then(|| self.home(name));
        (0..self.buckets.len()).map_while(move |_| {
            let at = following?;
            following = (self.buckets[at].passed > 0).then(|| self.next(at));
            Some(at)
        })
    }

    fn slot(&mut self, kept: Arc<CacheEntry>) {
        let mut at = self.home(kept.name);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(slot) = bucket.tags.iter().position(|&tag| tag == FREE) {
                bucket.tags[slot] = tag(kept.name);
                bucket.kept[slot] = Some(kept);
                self.len += 1;
                return;
            }
            bucket.passed = bucket.passed.saturating_add(1);
            at = self.next(at);
        }
    }

    fn resize(&mut self, count: usize) {
        let mut buckets = Vec::new();
        buckets.resize_with(count.max(1), CacheBucket::default);
        let before = std::mem::replace(self, Self { buckets, len: 0 });
        before.buckets.into_iter().flat_map(|bucket| bucket.kept).flatten().for_each(|kept| self.slot(kept));
    }
}

impl CacheBucket {
    /// The slots with this tag, and rarely others. All are compared at once, because which one
    /// matches is unpredictable.
    #[inline]
    fn slots_with(&self, tag: u8) -> impl Iterator<Item = usize> {
        const ONES: u64 = 0x0101_0101_0101_0101;
        let [a, b, c, d, e, f, g] = self.tags;
        let differing = u64::from_le_bytes([a, b, c, d, e, f, g, !tag]) ^ (ONES * u64::from(tag));
        // The highest bit of each byte that is zero, and possibly of bytes above such a byte.
        let mut same = differing.wrapping_sub(ONES) & !differing & (ONES << 7);
        std::iter::from_fn(move || {
            let slot = same.trailing_zeros() / 8;
            same &= same.wrapping_sub(1);
            usize::try_from(slot).ok().filter(|slot| *slot < SLOTS)
        })
    }
}

/// Excludes the byte that chooses the shard, and those that choose the bucket.
const fn tag(name: CacheKey) -> u8 {
    match name.0[1].to_be_bytes()[7] {
        FREE => 1,
        tag => tag,
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::EntryLifetime;
    use super::*;
    use crate::LookupAnswer;
    use handle_proto::ResponseCode;
    use proptest::prelude::*;

    fn kept(name: CacheKey) -> Arc<CacheEntry> {
        Arc::new(CacheEntry::new(
            name,
            Box::default(),
            LookupAnswer::new(b"a/b", ResponseCode::SUCCESS, []),
            EntryLifetime { expires_ms: 10, ends_unix_s: u32::MAX },
        ))
    }

    fn is_well(table: &CacheTable, expected: &[Arc<CacheEntry>]) {
        assert_eq!(table.len(), expected.len());
        let there = (0..table.slots_count()).filter(|&slot| table.at(slot).is_some()).count();
        assert_eq!(there, expected.len());
        for kept in expected {
            let found = table.of(kept.name).filter(|(slot, found)| {
                assert!(Arc::ptr_eq(table.at(*slot).unwrap(), found));
                Arc::ptr_eq(found, kept)
            });
            assert_eq!(found.count(), 1, "{:?}", kept.name);
        }
        let passed = table.buckets.iter().filter(|bucket| bucket.passed < ALWAYS);
        assert!(!expected.is_empty() || passed.map(|bucket| u32::from(bucket.passed)).sum::<u32>() == 0);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(CacheKey),
        Remove(usize),
        Pack,
    }

    /// A few names that are close together and near the end, so that many are the same and overflow
    /// into later buckets, also around the end.
    fn name() -> impl Strategy<Value = CacheKey> {
        let first = prop_oneof![0_u64..3, (u64::MAX - 2)..=u64::MAX, any::<u64>()];
        (first, 0_u64..3).prop_map(|(first, other)| CacheKey([first, other]))
    }

    proptest! {
        #[test]
        fn entries_stay_until_they_are_removed(steps in prop::collection::vec(prop_oneof![
            6 => name().prop_map(Step::Insert),
            4 => any::<usize>().prop_map(Step::Remove),
            1 => Just(Step::Pack),
        ], 0..400)) {
            let (mut table, mut expected) = (CacheTable::default(), Vec::new());
            for step in steps {
                match step {
                    Step::Insert(name) => {
                        let kept = kept(name);
                        expected.push(Arc::clone(&kept));
                        table.insert(kept);
                    }
                    Step::Remove(which) if !expected.is_empty() => {
                        let kept: Arc<CacheEntry> = expected.swap_remove(which % expected.len());
                        let (slot, _) = table.of(kept.name).find(|(_, found)| Arc::ptr_eq(found, &kept)).unwrap();
                        prop_assert!(Arc::ptr_eq(&table.remove(slot).unwrap(), &kept));
                        prop_assert!(table.remove(slot).is_none());
                    }
                    Step::Remove(slot) => prop_assert!(table.remove(slot).is_none()),
                    Step::Pack => table.pack(),
                }
            }
            is_well(&table, &expected);
        }
    }

    #[test]
    fn hundreds_of_equal_hashes_are_found_and_removed() {
        let (mut table, name) = (CacheTable::default(), CacheKey([u64::MAX, 0]));
        let many: Vec<_> = (0..600).map(|_| kept(name)).collect();
        many.iter().for_each(|kept| table.insert(Arc::clone(kept)));
        is_well(&table, &many);
        let slots: Vec<usize> = table.of(name).map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| drop(table.remove(slot)));
        is_well(&table, &[]);
        assert!(table.find(name, |_| true).is_none(), "it ends though all buckets were passed by");
        table.insert(Arc::clone(&many[0]));
        is_well(&table, &many[..1]);
    }

    #[test]
    fn the_size_is_at_most_half_a_bucket_per_answer() {
        let mut table = CacheTable::default();
        assert_eq!((table.slots_count(), table.find(CacheKey::default(), |_| true).is_some()), (0, false));
        let names =
            (0_u64..4_000).map(|number| CacheKey([number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number]));
        for name in names {
            table.insert(kept(name));
            assert!(table.memory().0 <= table.memory().1, "{:?}", table.memory());
        }
        let all = table.buckets.len();
        for slot in 0..table.slots_count() {
            table.remove(slot);
            if table.len() == 100 {
                break;
            }
        }
        assert_eq!(table.buckets.len(), all, "places stay");
        table.pack();
        assert!(table.memory().0 <= table.memory().1, "{:?}", table.memory());
        assert_eq!((0..table.slots_count()).filter(|&slot| table.at(slot).is_some()).count(), 100);
    }
}
