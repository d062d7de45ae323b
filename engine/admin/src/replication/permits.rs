//! How many streams are sent at a time, to all receivers and to each identity.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The streams that are being sent, by the identity of their receivers.
#[derive(Debug)]
pub(super) struct StreamPermits {
    streams_max: usize,
    per_identity_max: usize,
    taken: Mutex<BTreeMap<String, usize>>,
}

/// The permit of a stream; released when dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    permits: Arc<StreamPermits>,
    identity: String,
}

impl StreamPermits {
    pub(super) const fn new(streams_max: usize, per_identity_max: usize) -> Self {
        Self { streams_max, per_identity_max, taken: Mutex::new(BTreeMap::new()) }
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of streams that are being sent.
    pub(super) fn count(&self) -> usize {
        self.taken().values().sum()
    }

    /// Takes a permit; `None` if all permits, or those of the identity, are taken.
    pub(super) fn take(self: &Arc<Self>, identity: &str) -> Option<StreamPermit> {
        let mut taken = self.taken();
        let of_identity = taken.get(identity).copied().unwrap_or(0);
        if of_identity >= self.per_identity_max || taken.values().sum::<usize>() >= self.streams_max {
            return None;
        }
        taken.insert(identity.to_owned(), of_identity + 1);
        Some(StreamPermit { permits: Arc::clone(self), identity: identity.to_owned() })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken();
        if let Some(count) = taken.get_mut(&self.identity) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.identity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_bounded_in_all_and_for_each_identity() {
        let permits = Arc::new(StreamPermits::new(3, 2));
        let of_a: Vec<_> = (0..2).map(|_| permits.take("300:10.1/a").unwrap()).collect();
        assert!(permits.take("300:10.1/a").is_none(), "a third of one identity");
        let of_b = permits.take("300:10.1/b").unwrap();
        assert!(permits.take("300:10.1/c").is_none(), "a fourth");
        assert_eq!(permits.count(), 3);
        drop(of_a);
        assert_eq!(permits.count(), 1);
        assert!(permits.take("300:10.1/a").is_some());
        drop(of_b);
        assert_eq!((permits.count(), permits.taken().len()), (0, 0));
    }
}
