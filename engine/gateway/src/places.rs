//! Places for what clients occupy, of which one source may have a part: connections, questions to
//! other services, requests to the administration service, and bytes of bodies.

use handle_daemon::source_counts::SourceCounts;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceLimits {
    /// Places in all.
    pub places: usize,
    /// Of these, for one source: an IPv4 address, or a /64 of IPv6.
    pub per_source: usize,
}

/// The places that are taken, by source.
#[derive(Debug, Default)]
pub struct SourcePlaces {
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    sources: SourceCounts,
    count: usize,
}

/// A place, given back when it is dropped.
#[derive(Debug)]
pub struct SourcePlace {
    places: Arc<SourcePlaces>,
    address: IpAddr,
}

impl SourcePlaces {
    fn taken(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for `address`; `None` when all places, or those of its source, are taken.
    #[must_use]
    pub fn take(self: &Arc<Self>, address: IpAddr, limits: PlaceLimits) -> Option<SourcePlace> {
        let mut taken = self.taken();
        if taken.count >= limits.places || !taken.sources.has_room(address, limits.per_source) {
            return None;
        }
        taken.sources.add(address);
        taken.count += 1;
        Some(SourcePlace { places: Arc::clone(self), address })
    }

    /// Number of places that are taken.
    #[must_use]
    pub fn count(&self) -> usize {
        self.taken().count
    }
}

impl Drop for SourcePlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.sources.remove(self.address);
        taken.count -= 1;
    }
}

/// Bytes of the bodies of requests that are being received or answered, over all connections.
#[derive(Debug, Default)]
pub struct BodyBytes(Arc<AtomicUsize>);

/// The bytes of one body, given back when it is dropped.
#[derive(Debug)]
pub struct BodyRoom {
    all: Arc<AtomicUsize>,
    len: usize,
}

impl BodyBytes {
    /// Number of bytes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Room for a body that is about to arrive.
    #[must_use]
    pub fn room(&self) -> BodyRoom {
        BodyRoom { all: Arc::clone(&self.0), len: 0 }
    }
}

impl BodyRoom {
    /// Adds `len` bytes that have arrived. Returns false when all bodies together have more than
    /// `most`.
    #[must_use]
    pub fn grow(&mut self, len: usize, most: usize) -> bool {
        self.len += len;
        self.all.fetch_add(len, Ordering::Relaxed) + len <= most
    }
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        self.all.fetch_sub(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_as_many_places_as_allowed_and_all_together_too() {
        let places = Arc::new(SourcePlaces::default());
        let [one, other] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let limits = PlaceLimits { places: 3, per_source: 2 };
        let taken: Vec<_> = (0..2).map(|_| places.take(one, limits)).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(places.take(one, limits).is_none());
        let third = places.take(other, limits);
        assert!(third.is_some() && places.take(other, limits).is_none(), "3 in all");
        assert_eq!(places.count(), 3);
        drop((taken, third));
        assert!(places.take(one, limits).is_some());
        assert_eq!(places.count(), 0);
    }

    #[test]
    fn bodies_have_as_many_bytes_together_as_allowed() {
        let all = BodyBytes::default();
        let (mut one, mut other) = (all.room(), all.room());
        assert!(one.grow(60, 100) && other.grow(40, 100));
        assert!(!other.grow(1, 100));
        drop(other);
        assert!(one.grow(40, 100));
        drop(one);
        assert_eq!(all.count(), 0);
        assert!(all.room().grow(100, 100));
    }
}
