//! Limits on what clients occupy, in total and by source: connections, questions to other services,
//! requests to the administration service, and bytes of bodies and of answers.

use handle_daemon::source_counts::SourceCounts;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits on permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitLimits {
    /// Maximum number of permits.
    pub permits: usize,
    /// Of these, those of one source: an IPv4 address, or a /64 of IPv6.
    pub per_source: usize,
}

/// The taken permits, by source.
#[derive(Debug, Default)]
pub struct SourcePermits {
    taken: Mutex<TakenPermits>,
}

#[derive(Debug, Default)]
struct TakenPermits {
    sources: SourceCounts,
    count: usize,
    refused: u64,
}

/// A taken permit, which is freed when this is dropped.
#[derive(Debug)]
pub struct SourcePermit {
    permits: Arc<SourcePermits>,
    address: IpAddr,
}

impl SourcePermits {
    fn taken(&self) -> MutexGuard<'_, TakenPermits> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit for `address`; `None` when all permits, or all permits of its source, are
    /// taken.
    #[must_use]
    pub fn take(self: &Arc<Self>, address: IpAddr, limits: PermitLimits) -> Option<SourcePermit> {
        let mut taken = self.taken();
        if taken.count >= limits.permits || !taken.sources.has_capacity(address, limits.per_source) {
            return None;
        }
        taken.sources.add(address);
        taken.count += 1;
        Some(SourcePermit { permits: Arc::clone(self), address })
    }

    /// Number of taken permits.
    #[must_use]
    pub fn count(&self) -> usize {
        self.taken().count
    }
}

impl Drop for SourcePermit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken();
        taken.sources.remove(self.address);
        taken.count -= 1;
    }
}

/// Bytes over all connections, of one kind: those of the bodies of requests that are being received
/// or answered, or those of answers that their clients have not taken.
#[derive(Clone, Debug, Default)]
pub struct BodyBytes(Arc<Mutex<TakenPermits>>);

/// How many bytes there are for bodies, or for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// Bytes of all bodies.
    pub bytes: usize,
    /// Of these, those of one source: an IPv4 address, or a /64 of IPv6.
    pub per_source: usize,
}

/// The bytes of one body or answer, which are released when this is dropped.
#[derive(Debug)]
pub struct BodyReservation {
    all: BodyBytes,
    source: IpAddr,
    len: usize,
}

impl BodyBytes {
    /// Number of bytes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.taken().count
    }

    /// Notes that something was refused for lack of capacity.
    pub fn note_refusal(&self) {
        self.taken().refused += 1;
    }

    /// Whether there is capacity for `len` more bytes of `source`. What is longer than all that a
    /// source may have counts as that.
    #[must_use]
    pub fn has_capacity(&self, source: IpAddr, len: usize, limits: BodyLimits) -> bool {
        let (taken, len) = (self.taken(), len.min(limits.per_source));
        taken.count.saturating_add(len) <= limits.bytes
            && taken.sources.has_capacity_for(source, len, limits.per_source)
    }

    /// How often something was refused for lack of capacity.
    #[must_use]
    pub fn refused_count(&self) -> u64 {
        self.taken().refused
    }

    /// A reservation for a body that is about to arrive from `source`.
    #[must_use]
    pub fn reservation(&self, source: IpAddr) -> BodyReservation {
        BodyReservation { all: self.clone(), source, len: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, TakenPermits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BodyReservation {
    /// Adds `len` bytes that have arrived. Returns false, and adds nothing, when all bodies
    /// together, or those of the source, would have more than allowed.
    #[must_use]
    pub fn grow(&mut self, len: usize, limits: BodyLimits) -> bool {
        let mut taken = self.all.taken();
        let fits = taken.count.saturating_add(len) <= limits.bytes
            && taken.sources.has_capacity_for(self.source, len, limits.per_source);
        if fits {
            taken.sources.add_number(self.source, len);
            taken.count += len;
            self.len += len;
        }
        fits
    }

    /// Notes that there is no capacity for what this is for.
    pub fn note_refusal(&self) {
        self.all.note_refusal();
    }

    /// Makes this the reservation of `len` bytes: releases some, or adds some like
    /// [`grow`](Self::grow).
    #[must_use]
    pub fn resize(&mut self, len: usize, limits: BodyLimits) -> bool {
        let Some(released) = self.len.checked_sub(len) else { return self.grow(len - self.len, limits) };
        if released > 0 {
            let mut taken = self.all.taken();
            taken.sources.remove_number(self.source, released);
            taken.count -= released;
            self.len = len;
        }
        true
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        let mut taken = self.all.taken();
        taken.sources.remove_number(self.source, self.len);
        taken.count -= self.len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_as_many_permits_as_allowed_and_all_together_too() {
        let permits = Arc::new(SourcePermits::default());
        let [one, other] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let limits = PermitLimits { permits: 3, per_source: 2 };
        let taken: Vec<_> = (0..2).map(|_| permits.take(one, limits)).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(permits.take(one, limits).is_none());
        let third = permits.take(other, limits);
        assert!(third.is_some() && permits.take(other, limits).is_none(), "3 in all");
        assert_eq!(permits.count(), 3);
        drop((taken, third));
        assert!(permits.take(one, limits).is_some());
        assert_eq!(permits.count(), 0);
    }

    #[test]
    fn bodies_have_as_many_bytes_together_and_of_one_source_as_allowed() {
        let (all, limits) = (BodyBytes::default(), BodyLimits { bytes: 100, per_source: 60 });
        let [one, other] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(|address| all.reservation(address.into()));
        let (mut one, mut other) = (one, other);
        assert!(one.grow(30, limits) && other.grow(40, limits));
        let mut same = all.reservation([192, 0, 2, 1].into());
        assert!(!same.grow(31, limits), "61 of one source");
        assert!(same.grow(30, limits), "60 of one source, 100 in all");
        assert!(!other.grow(1, limits), "101 in all");
        drop((one, same));
        assert!(other.grow(20, limits));
        assert!(!other.grow(1, limits), "61 of the other source");
        assert!(all.reservation([192, 0, 2, 1].into()).grow(40, limits));
        assert!(other.resize(10, limits) && all.count() == 10, "{}", all.count());
        assert!(!other.resize(61, limits) && all.count() == 10, "61 of one source");
        assert!(other.resize(60, limits) && all.count() == 60);
        drop(other);
        assert!(all.count() == 0 && all.taken().sources.is_empty());
    }
}
