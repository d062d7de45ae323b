//! How many of something each holder has.

use std::collections::HashMap;
use std::hash::Hash;

/// How many of something each holder has. Holders without any take no memory.
#[derive(Clone, Debug)]
pub struct HolderCounts<H>(HashMap<H, usize>);

impl<H> Default for HolderCounts<H> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<H: Eq + Hash> HolderCounts<H> {
    /// How many `holder` has.
    #[must_use]
    pub fn count(&self, holder: &H) -> usize {
        self.0.get(holder).copied().unwrap_or(0)
    }

    /// Whether nothing is counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts `number` more of `holder`.
    pub fn add(&mut self, holder: H, number: usize) {
        if number > 0 {
            *self.0.entry(holder).or_default() += number;
        }
    }

    /// Counts `number` less of `holder`, which were counted before.
    pub fn remove(&mut self, holder: &H, number: usize) {
        if let Some(count) = self.0.get_mut(holder) {
            *count = count.saturating_sub(number);
            if *count == 0 {
                self.0.remove(holder);
            }
        }
    }
}
