//! The handles that a listing has named: 64 bits of a hash for each.

use std::hash::{BuildHasher, RandomState};

/// Hashes of names. The hash is keyed, so names that share one cannot be chosen; of a million
/// handles that are gone, one stays with probability 10^-5 if ten million are listed, and the next
/// comparison has another key.
#[derive(Debug, Default)]
pub struct NamedHandles {
    key: RandomState,
    hashes: Vec<u64>,
}

impl NamedHandles {
    /// Notes a name.
    pub fn add(&mut self, name: &[u8]) {
        self.hashes.push(self.key.hash_one(name));
    }

    /// The number of noted names, repeated ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether no name was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Sorts them, to look names up.
    #[must_use]
    pub fn sorted(mut self) -> SortedHandles {
        self.hashes.sort_unstable();
        self.hashes.dedup();
        SortedHandles(self)
    }
}

/// Noted names that can be looked up.
#[derive(Debug)]
pub struct SortedHandles(NamedHandles);

impl SortedHandles {
    /// Whether a name was noted.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.hashes.binary_search(&self.0.key.hash_one(name)).is_ok()
    }

    /// The number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_whatever_their_order_and_number() {
        let mut named = NamedHandles::default();
        let name = |at: u32| format!("10.1/{}", at * 7919 % 1000).into_bytes();
        (0..1000).for_each(|at| named.add(&name(at)));
        named.add(&name(1));
        assert_eq!(named.len(), 1001);
        let sorted = named.sorted();
        assert_eq!(sorted.len(), 1000);
        assert!((0..1000).all(|at| sorted.has(&name(at))));
        assert!(!sorted.has(b"10.1/1000") && !sorted.has(b""));
    }
}
