//! The names that are asked for most, from a sample of the answers.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, TryLockError};

/// One answer in this many is noted.
pub const SAMPLE_EVERY: u64 = 64;
/// Most names. When there are as many, all counts are halved, and names without a count go.
const NAMES_MAX: usize = 4096;

/// Counts of names.
#[derive(Debug, Default)]
pub struct TopNames(Mutex<HashMap<Box<[u8]>, u64>>);

impl TopNames {
    /// Notes a name, unless another thread is at it.
    #[cold]
    pub fn note(&self, name: &[u8]) {
        let mut counts = match self.0.try_lock() {
            Ok(counts) => counts,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(count) = counts.get_mut(name) {
            *count += 1;
            return;
        }
        while counts.len() >= NAMES_MAX {
            counts.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
        }
        counts.insert(name.into(), 1);
    }

    /// The names with the highest counts, at most `count` of them, highest first.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<(Box<[u8]>, u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<_> = counts.iter().map(|(name, &count)| (name.clone(), count)).collect();
        drop(counts);
        names.sort_unstable_by(|(name, count), (other, more)| more.cmp(count).then_with(|| name.cmp(other)));
        names.truncate(count);
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_by_their_counts_and_rare_ones_go() {
        let names = TopNames::default();
        (0..100).for_each(|_| names.note(b"often"));
        (0..50).for_each(|_| names.note(b"sometimes"));
        (0..NAMES_MAX * 3).for_each(|n| names.note(n.to_string().as_bytes()));
        let top = names.top(2);
        assert_eq!(&*top[0].0, b"often");
        assert!(names.0.lock().unwrap().len() <= NAMES_MAX);
        assert_eq!(names.top(0), []);
    }
}
