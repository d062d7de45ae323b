//! Permits for so many of something at a time, given back when they are dropped.
//!
//! - [`CountedPermit`]: one of a total.
//! - [`Permits`]: of a total, of which each holder has a part. A holder is a source with the
//!   networks around it, or an identity.

use handle_auth::holder_counts::HolderCounts;
use handle_auth::source::Network;
use std::fmt::Debug;
use std::hash::Hash;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Who takes permits.
pub trait PermitHolder: Clone + Debug {
    /// Whatever has a limit.
    type Key: Eq + Hash + Debug;
    /// How many permits a holder may have.
    type Limit: Copy;

    /// Everything for which the permits of this holder count: itself, and what it is a part of.
    fn keys(&self) -> impl Iterator<Item = Self::Key>;

    /// How many permits the key at position `at` may have.
    fn limit_of(at: usize, limit: Self::Limit) -> usize;
}

/// A source: an IPv4 address, or a /64 of IPv6 with the /56 and the /48 around it
/// ([`SourceCounts`](crate::source_counts::SourceCounts)).
impl PermitHolder for IpAddr {
    type Key = Network;
    type Limit = usize;

    fn keys(&self) -> impl Iterator<Item = Network> {
        networks_around(*self, 32, 64)
    }

    fn limit_of(at: usize, limit: usize) -> usize {
        times(at, limit)
    }
}

/// The source of `address`, with so many bits of IPv4 and of IPv6, and for IPv6 the networks around
/// it that have 8 and 16 bits less.
pub(crate) fn networks_around(address: IpAddr, bits_v4: u8, bits_v6: u8) -> impl Iterator<Item = Network> {
    let address = address.to_canonical();
    let (bits, count) = if address.is_ipv4() { (bits_v4, 1) } else { (bits_v6, 3) };
    (0..count).filter_map(move |level| Some(Network::new(address, bits.checked_sub(8 * level)?)))
}

/// How many of something the network at position `at` of [`networks_around`] may have.
pub(crate) const fn times(at: usize, of_source: usize) -> usize {
    of_source.saturating_mul(1 << at)
}

/// An identity.
impl PermitHolder for String {
    type Key = Self;
    type Limit = usize;

    fn keys(&self) -> impl Iterator<Item = Self> {
        std::iter::once(self.clone())
    }

    fn limit_of(_at: usize, limit: usize) -> usize {
        limit
    }
}

/// Limits on permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitLimits<L = usize> {
    /// Maximum number of permits.
    pub all: usize,
    /// Of these, those of one holder.
    pub per_holder: L,
}

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPermit {
    /// All permits are taken.
    Full,
    /// The holder, or what it is a part of, has reached its limit.
    OfHolder,
}

/// Permits of one kind. What is permitted may also be bytes. Clones share the permits.
#[derive(Debug)]
pub struct Permits<H: PermitHolder>(Arc<Mutex<TakenPermits<H::Key>>>);

/// Permits by source.
pub type SourcePermits = Permits<IpAddr>;

#[derive(Debug)]
struct TakenPermits<K> {
    of_holder: HolderCounts<K>,
    count: usize,
    refused: u64,
}

/// Permits of one holder, which are given back when this is dropped.
#[derive(Debug)]
pub struct HeldPermits<H: PermitHolder> {
    permits: Permits<H>,
    holder: H,
    number: usize,
}

/// Permits of one source.
pub type SourcePermit = HeldPermits<IpAddr>;

impl<H: PermitHolder> Default for Permits<H> {
    fn default() -> Self {
        let taken = TakenPermits { of_holder: HolderCounts::default(), count: 0, refused: 0 };
        Self(Arc::new(Mutex::new(taken)))
    }
}

impl<H: PermitHolder> Clone for Permits<H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H: PermitHolder> Permits<H> {
    fn taken(&self) -> MutexGuard<'_, TakenPermits<H::Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit for `holder`.
    ///
    /// # Errors
    /// When all permits, or all permits of the holder, are taken.
    pub fn take(&self, holder: H, limits: PermitLimits<H::Limit>) -> Result<HeldPermits<H>, NoPermit> {
        let mut held = self.reservation(holder);
        held.add(1, limits)?;
        Ok(held)
    }

    /// What `holder` takes permits with; none yet.
    #[must_use]
    pub fn reservation(&self, holder: H) -> HeldPermits<H> {
        HeldPermits { permits: self.clone(), holder, number: 0 }
    }

    /// Number of taken permits.
    #[must_use]
    pub fn count(&self) -> usize {
        self.taken().count
    }

    /// Notes that something was refused for lack of permits.
    pub fn note_refusal(&self) {
        self.taken().refused += 1;
    }

    /// How often something was refused for lack of permits.
    #[must_use]
    pub fn refused_count(&self) -> u64 {
        self.taken().refused
    }
}

impl SourcePermits {
    /// Whether there are `number` more for `source`. What is more than all that a source may have
    /// counts as that.
    #[must_use]
    pub fn has_capacity(&self, source: IpAddr, number: usize, limits: PermitLimits) -> bool {
        self.taken().check(&source, number.min(limits.per_holder), limits).is_ok()
    }
}

impl<K: Eq + Hash + Debug> TakenPermits<K> {
    /// Whether there are `number` more permits for `holder`.
    fn check<H: PermitHolder<Key = K>>(
        &self,
        holder: &H,
        number: usize,
        limits: PermitLimits<H::Limit>,
    ) -> Result<(), NoPermit> {
        if self.count.saturating_add(number) > limits.all {
            return Err(NoPermit::Full);
        }
        let fits = holder.keys().enumerate().all(|(at, key)| {
            let count = self.of_holder.count(&key).saturating_add(number);
            count <= H::limit_of(at, limits.per_holder)
        });
        if fits { Ok(()) } else { Err(NoPermit::OfHolder) }
    }
}

impl<H: PermitHolder> HeldPermits<H> {
    /// Takes `number` more, or none of them.
    ///
    /// # Errors
    /// When there are not so many, or not for this holder.
    pub fn add(&mut self, number: usize, limits: PermitLimits<H::Limit>) -> Result<(), NoPermit> {
        let mut taken = self.permits.taken();
        taken.check(&self.holder, number, limits)?;
        for key in self.holder.keys() {
            taken.of_holder.add(key, number);
        }
        taken.count += number;
        self.number += number;
        Ok(())
    }

    /// Makes this `number` permits: gives some back, or takes more like [`add`](Self::add).
    ///
    /// # Errors
    /// When there are not so many, or not for this holder.
    pub fn resize(&mut self, number: usize, limits: PermitLimits<H::Limit>) -> Result<(), NoPermit> {
        match self.number.checked_sub(number) {
            None => self.add(number - self.number, limits),
            Some(released) => {
                self.give_back(released);
                Ok(())
            }
        }
    }

    /// Notes that something was refused for lack of permits.
    pub fn note_refusal(&self) {
        self.permits.note_refusal();
    }

    fn give_back(&mut self, number: usize) {
        if number > 0 {
            let mut taken = self.permits.taken();
            for key in self.holder.keys() {
                taken.of_holder.remove(&key, number);
            }
            taken.count -= number;
            self.number -= number;
        }
    }
}

impl<H: PermitHolder> Drop for HeldPermits<H> {
    fn drop(&mut self) {
        self.give_back(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn permits_are_taken_up_to_their_limit_and_given_back() {
        let count = AtomicUsize::new(0);
        let first = CountedPermit::take(&count, 2);
        let second = CountedPermit::take(&count, 2);
        assert!(first.is_some() && second.is_some() && CountedPermit::take(&count, 2).is_none());
        drop(first);
        assert!(CountedPermit::take(&count, 2).is_some());
    }

    #[test]
    fn a_source_has_as_many_permits_as_allowed_and_all_together_too() {
        let (permits, limits) = (SourcePermits::default(), PermitLimits { all: 3, per_holder: 2 });
        let of_one = [(); 2].map(|()| permits.take(source(1), limits).unwrap());
        assert_eq!(permits.take(source(1), limits).unwrap_err(), NoPermit::OfHolder);
        let third = permits.take(source(2), limits).unwrap();
        assert_eq!(permits.take(source(2), limits).unwrap_err(), NoPermit::Full);
        assert_eq!(permits.count(), 3);
        drop((of_one, third));
        assert!(permits.take(source(1), limits).is_ok());
        assert_eq!(permits.count(), 0);
    }

    #[test]
    fn identities_have_as_many_permits_as_allowed() {
        let (permits, limits) = (Permits::default(), PermitLimits { all: 3, per_holder: 2 });
        let take = |identity: &str| permits.take(identity.to_owned(), limits);
        let of_a = [(); 2].map(|()| take("300:10.1/a").unwrap());
        assert_eq!(take("300:10.1/a").unwrap_err(), NoPermit::OfHolder, "a third of one identity");
        let of_b = take("300:10.1/b").unwrap();
        assert_eq!(take("300:10.1/c").unwrap_err(), NoPermit::Full, "a fourth");
        drop(of_a);
        assert_eq!(permits.count(), 1);
        assert!(take("300:10.1/a").is_ok());
        drop(of_b);
        assert!(permits.count() == 0 && permits.taken().of_holder.is_empty());
    }

    #[test]
    fn holders_have_as_many_bytes_together_and_alone_as_allowed() {
        let (all, limits) = (SourcePermits::default(), PermitLimits { all: 100, per_holder: 60 });
        let [mut one, mut other, mut same] = [1, 2, 1].map(|last| all.reservation(source(last)));
        assert!(one.add(30, limits).is_ok() && other.add(40, limits).is_ok());
        assert_eq!(same.add(31, limits), Err(NoPermit::Full), "101 in all");
        assert!(same.add(30, limits).is_ok(), "60 of one source, 100 in all");
        assert_eq!(other.add(1, limits), Err(NoPermit::Full), "101 in all");
        drop((one, same));
        assert!(other.add(20, limits).is_ok());
        assert_eq!(other.add(1, limits), Err(NoPermit::OfHolder), "61 of the other source");
        assert!(all.reservation(source(1)).add(40, limits).is_ok());
        assert!(other.resize(10, limits).is_ok() && all.count() == 10, "{}", all.count());
        assert!(other.resize(61, limits).is_err() && all.count() == 10, "61 of one source");
        assert!(other.resize(60, limits).is_ok() && all.count() == 60);
        assert!(!all.has_capacity(source(2), 1, limits) && all.has_capacity(source(1), 40, limits));
        drop(other);
        assert!(all.has_capacity(source(1), 1000, limits), "more than a source may have");
        assert!(all.count() == 0 && all.taken().of_holder.is_empty());
    }
}
