//! The hashes of entries that left the small ring without a use.

/// Remembers hashes for as long as about as many others came later as the main ring has entries.
#[derive(Debug)]
pub(super) struct Ghost {
    /// A hash is in one of the places of its set. A later hash replaces the oldest of the set.
    sets: Box<[[GhostPlace; SET_PLACES]]>,
    /// Number of hashes remembered so far.
    count: u32,
}

/// Places of a set: with fewer, sets would overflow while others have room.
const SET_PLACES: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct GhostPlace {
    /// A part of the hash; 0 if the place is empty.
    print: u32,
    /// The number of the hash.
    number: u32,
}

/// Bytes of a place.
pub(super) const PLACE_LEN: usize = size_of::<GhostPlace>();

#[expect(clippy::cast_possible_truncation, reason = "a part of the hash")]
const fn print_of(hash: u64) -> u32 {
    (hash >> 26) as u32 | 1
}

impl Ghost {
    pub(super) fn new(places_count: usize) -> Self {
        let sets = vec![[GhostPlace::default(); SET_PLACES]; (places_count / SET_PLACES).max(1)];
        Self { sets: sets.into_boxed_slice(), count: 0 }
    }

    const fn at(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * self.sets.len() as u64) >> 32) as usize
    }

    /// Remembers `hash`.
    pub(super) fn insert(&mut self, hash: u64) {
        self.count = self.count.wrapping_add(1);
        let (at, count) = (self.at(hash), self.count);
        let age = |place: &&mut GhostPlace| (place.print == 0, count.wrapping_sub(place.number));
        if let Some(oldest) = self.sets[at].iter_mut().max_by_key(age) {
            *oldest = GhostPlace { print: print_of(hash), number: count };
        }
    }

    /// Whether `hash` was remembered, and at most `age_max` others since. Forgets it.
    pub(super) fn take(&mut self, hash: u64, age_max: u32) -> bool {
        let (at, count) = (self.at(hash), self.count);
        let place = self.sets[at].iter_mut().find(|place| place.print == print_of(hash));
        let place = place.filter(|place| count.wrapping_sub(place.number) <= age_max);
        place.map(std::mem::take).is_some()
    }
}
