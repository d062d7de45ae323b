//! A permit of so many, given back when it is dropped.
//!
//! Whatever counts only a total uses this. What is also bounded for each source counts with
//! [`SourceCounts`](crate::source_counts::SourceCounts).

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A permit that was taken from a counter of taken permits.
#[derive(Debug)]
pub struct CountedPermit<C: Deref<Target = AtomicUsize>>(C);

impl<C: Deref<Target = AtomicUsize>> CountedPermit<C> {
    /// Takes a permit; `None` if `permits_max` are taken.
    #[must_use]
    pub fn take(taken: C, permits_max: usize) -> Option<Self> {
        let add = |count: usize| (count < permits_max).then_some(count + 1);
        let has_acquired = taken.fetch_update(Ordering::Acquire, Ordering::Relaxed, add).is_ok();
        has_acquired.then(|| Self(taken))
    }
}

impl<C: Deref<Target = AtomicUsize>> Drop for CountedPermit<C> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_taken_up_to_their_limit_and_given_back() {
        let count = AtomicUsize::new(0);
        let first = CountedPermit::take(&count, 2);
        let second = CountedPermit::take(&count, 2);
        assert!(first.is_some() && second.is_some() && CountedPermit::take(&count, 2).is_none());
        drop(first);
        assert!(CountedPermit::take(&count, 2).is_some());
    }
}
