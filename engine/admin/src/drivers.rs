//! The drivers that ask other services, one for each request that may ask at the same time.
//!
//! The owner of a handle at another service decides when that service answers, and any client may
//! name such a handle. So one source has a share of the drivers, and strangers with slow services
//! do not take those of others.

use crossbeam_channel::{Receiver, Sender, bounded};
use handle_auth::fair::Shares;
use handle_auth::source::{RequestOrigin, SourceList};
use handle_client::BlockingDriver;
use handle_client::lookup::Client;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Drivers that are free, and how many each source has.
#[derive(Debug)]
pub(crate) struct FreeDrivers {
    free: (Sender<BlockingDriver>, Receiver<BlockingDriver>),
    count: usize,
    shares: Mutex<Shares>,
}

/// A driver in use, which becomes free when this is dropped.
#[derive(Debug)]
pub(crate) struct TakenDriver<'d> {
    drivers: &'d FreeDrivers,
    origin: RequestOrigin,
    /// Always there, until this is dropped.
    driver: Option<BlockingDriver>,
}

impl FreeDrivers {
    /// So many drivers for `client`. Sources in `exempt` may use all of them.
    pub(crate) fn new(client: &Arc<Client>, count: usize, exempt: SourceList) -> Self {
        let free = bounded(count);
        for _ in 0..count {
            // The channel has capacity for every driver, and both ends exist.
            let _ = free.0.send(BlockingDriver::new(Arc::clone(client)));
        }
        Self { free, count, shares: Mutex::new(Shares::new(count, exempt)) }
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the sources that may use all drivers.
    pub(crate) fn set_exempt(&self, exempt: SourceList) {
        self.shares().set_exempt(exempt);
    }

    /// A driver for a request from `source`; `None` if all of them, or the share of the source, are
    /// in use.
    pub(crate) fn take(&self, source: IpAddr) -> Option<TakenDriver<'_>> {
        let origin = RequestOrigin::connection(source);
        if !self.shares().enter(origin) {
            return None;
        }
        // Dropped without a driver, it returns its share.
        let mut taken = TakenDriver { drivers: self, origin, driver: None };
        taken.driver = Some(self.free.1.try_recv().ok()?);
        Some(taken)
    }

    /// Number of drivers in use.
    pub(crate) fn used(&self) -> usize {
        self.count.saturating_sub(self.free.1.len())
    }
}

impl Deref for TakenDriver<'_> {
    type Target = BlockingDriver;

    fn deref(&self) -> &BlockingDriver {
        self.driver.as_ref().expect("it is there until this is dropped")
    }
}

impl DerefMut for TakenDriver<'_> {
    fn deref_mut(&mut self) -> &mut BlockingDriver {
        self.driver.as_mut().expect("it is there until this is dropped")
    }
}

impl Drop for TakenDriver<'_> {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.take() {
            // The driver returns to the channel it came from, which has capacity.
            let _ = self.drivers.free.0.try_send(driver);
        }
        self.drivers.shares().leave(self.origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_client::bootstrap::Root;

    #[test]
    fn a_source_has_a_quarter_of_the_drivers() {
        let source = |last: u8| IpAddr::from([192, 0, 2, last]);
        let exempt = SourceList::parse(&["198.51.100.1".to_owned()]).unwrap();
        let drivers = FreeDrivers::new(&Arc::new(Client::new(Root::default())), 16, exempt);
        let of_one: Vec<_> = (0..4).map(|_| drivers.take(source(1)).unwrap()).collect();
        assert!(drivers.take(source(1)).is_none(), "its share");
        let of_other: Vec<_> = (0..4).map(|_| drivers.take(source(2)).unwrap()).collect();
        assert!(drivers.take(source(3)).is_none(), "the half of their network");
        let rest: Vec<_> = (0..8).map(|_| drivers.take([198, 51, 100, 1].into()).unwrap()).collect();
        assert!(drivers.take([203, 0, 113, 1].into()).is_none(), "all are in use");
        assert_eq!(drivers.used(), 16);
        drop((of_one, rest));
        assert_eq!(drivers.used(), 4);
        assert!(drivers.take(source(1)).is_some(), "also after a refusal for want of drivers");
        drop(of_other);
        assert_eq!(drivers.used(), 0);
    }
}
