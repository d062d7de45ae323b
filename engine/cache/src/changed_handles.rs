//! When the publisher last said that a handle has changed: one time for all handles whose hashes
//! have the same slot in a table of fixed size. So no change is ever forgotten, and a handle that
//! shares its slot with another one expires with it, which costs a question.

use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the cache for which there is one slot, which has four.
const CACHE_BYTES_PER_SLOT: usize = 512;
/// Most slots.
const SLOTS_MAX: usize = 1 << 24;

/// Times in seconds since 1970, up to which what was stored has expired.
#[derive(Debug, Default)]
pub(crate) struct ChangeTimes(Box<[AtomicU32]>);

impl ChangeTimes {
    /// Times for a cache of so many bytes.
    pub(crate) fn new(cache_bytes: usize) -> Self {
        let slots = (cache_bytes / CACHE_BYTES_PER_SLOT).clamp(1, SLOTS_MAX).next_power_of_two();
        Self((0..slots).map(|_| AtomicU32::new(0)).collect())
    }

    /// The time for `hash`; `None` if there are no times.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "taken modulo the number of places")]
    pub(crate) fn of(&self, hash: u64) -> Option<&AtomicU32> {
        self.0.get(hash as usize & self.0.len().wrapping_sub(1))
    }

    /// Sets the time for `hash`.
    pub(crate) fn set(&self, hash: u64, until_s: u32) {
        if let Some(time) = self.of(hash) {
            time.store(until_s, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hash_has_a_slot_and_shares_it_with_some_others() {
        let times = ChangeTimes::new(1 << 20);
        let of = |hash| times.of(hash).map(|time| time.load(Ordering::Acquire));
        times.set(5, 100);
        times.set(u64::MAX, 200);
        assert_eq!((of(5), of(5 + (1 << 11)), of(6)), (Some(100), Some(100), Some(0)));
        assert_eq!(of((1 << 11) - 1), Some(200));
        assert_eq!(ChangeTimes::new(0).of(7).map(|time| time.load(Ordering::Relaxed)), Some(0));
        assert_eq!(ChangeTimes::new(usize::MAX).0.len(), SLOTS_MAX);
        assert!(ChangeTimes::default().of(7).is_none());
    }
}
