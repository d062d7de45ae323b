//! The hashes of entries that left the small ring without a use.

/// Remembers hashes for as long as about as many others came later as the main ring has entries.
#[derive(Debug)]
pub(super) struct Ghost {
    /// A hash is in one of the slots of its set. A later hash replaces the oldest of the set.
    sets: Box<[[GhostSlot; SET_SLOTS]]>,
    /// Number of hashes remembered so far.
    count: u32,
}

/// Slots of a set: with fewer, sets would overflow while others have capacity.
const SET_SLOTS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct GhostSlot {
    /// A part of the hash; 0 if the slot is empty.
    print: u32,
    /// The number of the hash.
    number: u32,
}

/// Bytes of a slot.
pub(super) const SLOT_LEN: usize = size_of::<GhostSlot>();

#[expect(clippy::cast_possible_truncation, reason = "a part of the hash")]
const fn print_of(hash: u64) -> u32 {
    (hash >> 26) as u32 | 1
}

impl Ghost {
    pub(super) fn new(slots_count: usize) -> Self {
        let sets = vec![[GhostSlot::default(); SET_SLOTS]; (slots_count / SET_SLOTS).max(1)];
        Self { sets: sets.into_boxed_slice(), count: 0 }
    }

    const fn at(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * self.sets.len() as u64) >> 32) as usize
    }

    /// Remembers `hash`.
    pub(super) fn insert(&mut self, hash: u64) {
        self.count = self.count.wrapping_add(1);
        let (at, count) = (self.at(hash), self.count);
        let age = |slot: &&mut GhostSlot| (slot.print == 0, count.wrapping_sub(slot.number));
        if let Some(oldest) = self.sets[at].iter_mut().max_by_key(age) {
            *oldest = GhostSlot { print: print_of(hash), number: count };
        }
    }

    /// Whether `hash` was remembered, and at most `age_max` others since. Forgets it.
    pub(super) fn take(&mut self, hash: u64, age_max: u32) -> bool {
        let (at, count) = (self.at(hash), self.count);
        let slot = self.sets[at].iter_mut().find(|slot| slot.print == print_of(hash));
        let slot = slot.filter(|slot| count.wrapping_sub(slot.number) <= age_max);
        slot.map(std::mem::take).is_some()
    }
}
