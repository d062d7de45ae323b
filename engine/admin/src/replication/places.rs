//! How many streams are sent at a time, to all receivers and to each identity.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The streams that are being sent, by the identity of their receivers.
#[derive(Debug)]
pub(super) struct StreamPlaces {
    streams_max: usize,
    per_identity_max: usize,
    taken: Mutex<BTreeMap<String, usize>>,
}

/// The place of a stream; released when dropped.
#[derive(Debug)]
pub(super) struct StreamPlace {
    places: Arc<StreamPlaces>,
    identity: String,
}

impl StreamPlaces {
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

    /// Takes a place; `None` if all places, or those of the identity, are taken.
    pub(super) fn take(self: &Arc<Self>, identity: &str) -> Option<StreamPlace> {
        let mut taken = self.taken();
        let of_identity = taken.get(identity).copied().unwrap_or(0);
        if of_identity >= self.per_identity_max || taken.values().sum::<usize>() >= self.streams_max {
            return None;
        }
        taken.insert(identity.to_owned(), of_identity + 1);
        Some(StreamPlace { places: Arc::clone(self), identity: identity.to_owned() })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
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
    fn places_are_bounded_in_all_and_for_each_identity() {
        let places = Arc::new(StreamPlaces::new(3, 2));
        let of_a: Vec<_> = (0..2).map(|_| places.take("300:10.1/a").unwrap()).collect();
        assert!(places.take("300:10.1/a").is_none(), "a third of one identity");
        let of_b = places.take("300:10.1/b").unwrap();
        assert!(places.take("300:10.1/c").is_none(), "a fourth");
        assert_eq!(places.count(), 3);
        drop(of_a);
        assert_eq!(places.count(), 1);
        assert!(places.take("300:10.1/a").is_some());
        drop(of_b);
        assert_eq!((places.count(), places.taken().len()), (0, 0));
    }
}
