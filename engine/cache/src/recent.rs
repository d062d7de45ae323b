//! Names that were seen a short time ago: a table of fixed size that threads share without a lock.
//! A name may displace another one, and be forgotten early.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of slots; a power of two.
const SLOTS_COUNT: usize = 1 << 12;

/// Hashes of names, each with a time.
#[derive(Debug)]
pub struct RecentNames(Box<[AtomicU64]>);

impl Default for RecentNames {
    fn default() -> Self {
        Self((0..SLOTS_COUNT).map(|_| AtomicU64::new(0)).collect())
    }
}

/// The upper half of a hash, above the time.
const fn tag(hash: u64) -> u64 {
    hash & !(u32::MAX as u64)
}

impl RecentNames {
    #[expect(clippy::cast_possible_truncation, reason = "taken modulo the number of places")]
    fn slot(&self, hash: u64) -> &AtomicU64 {
        &self.0[hash as usize & (SLOTS_COUNT - 1)]
    }

    /// The time noted for `hash`, if it is there.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    pub fn noted_at(&self, hash: u64) -> Option<u32> {
        let noted = self.slot(hash).load(Ordering::Relaxed);
        (noted != 0 && tag(noted) == tag(hash)).then_some(noted as u32)
    }

    /// Notes `hash` at the time `now_unix_s`.
    pub fn note(&self, hash: u64, now_unix_s: u32) {
        self.slot(hash).store(tag(hash) | u64::from(now_unix_s), Ordering::Relaxed);
    }

    /// Notes `hash` unless it was noted less than `pause_s` seconds ago. Of several threads, one is
    /// told that it has noted it.
    pub fn note_once(&self, hash: u64, now_unix_s: u32, pause_s: u32) -> bool {
        let slot = self.slot(hash);
        let noted = slot.load(Ordering::Relaxed);
        if self.noted_at(hash).is_some_and(|at| now_unix_s.wrapping_sub(at) < pause_s) {
            return false;
        }
        let new = tag(hash) | u64::from(now_unix_s);
        slot.compare_exchange(noted, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Forgets `hash`.
    pub fn forget(&self, hash: u64) {
        let slot = self.slot(hash);
        let noted = slot.load(Ordering::Relaxed);
        if tag(noted) == tag(hash) {
            // If another name has come here meanwhile, that one stays.
            let _ = slot.compare_exchange(noted, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: u64 = 0x1234_5678_9abc_def0;

    #[test]
    fn a_name_is_noted_once_in_a_while_and_can_be_forgotten() {
        let names = RecentNames::default();
        assert_eq!(names.noted_at(HASH), None);
        assert!(names.note_once(HASH, 100, 2));
        assert!(!names.note_once(HASH, 101, 2));
        assert!(names.note_once(HASH, 102, 2));
        assert_eq!(names.noted_at(HASH), Some(102));
        names.forget(HASH ^ 1 << 60);
        assert_eq!(names.noted_at(HASH), Some(102), "another name");
        names.forget(HASH);
        assert!(names.noted_at(HASH).is_none() && names.note_once(HASH, 102, 2));
    }

    #[test]
    fn a_name_may_displace_another_one_of_its_slot() {
        let (names, other) = (RecentNames::default(), HASH ^ 1 << 60);
        names.note(HASH, 100);
        names.note(other, 101);
        assert_eq!((names.noted_at(HASH), names.noted_at(other)), (None, Some(101)));
    }
}
