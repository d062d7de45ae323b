//! Bounds on how many requests each source may have forwarded at a time. No thread waits for a
//! permit.

use super::config::ForwardConfig;
use handle_auth::source::networks_of;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The permits of requests that are being forwarded or wait to be. Only threads of the slow path
/// lock this table.
#[derive(Debug)]
pub(crate) struct ForwardPermits {
    all_max: usize,
    per_source_max: usize,
    per_network_max: usize,
    datagrams_max: usize,
    listings_max: usize,
    taken: Mutex<TakenPermits>,
}

#[derive(Debug, Default)]
struct TakenPermits {
    all: usize,
    datagrams: usize,
    listings: usize,
    of_source: HashMap<IpAddr, usize>,
    of_network: HashMap<IpAddr, usize>,
}

/// The permit of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForwardPermit {
    source: IpAddr,
    network: IpAddr,
    is_datagram: bool,
    is_listing: bool,
}

/// Why no permit is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPermit {
    /// All permits are taken, or all permits for datagrams.
    Full,
    /// The source or its network has reached its limit.
    OfSource,
}

impl ForwardPermits {
    /// Creates as many permits as `config` says, but never more than half of the `jobs_count` jobs
    /// of the slow path.
    pub(crate) fn new(config: &ForwardConfig, jobs_count: usize) -> Self {
        let all_max = config.queue_requests.min(jobs_count.div_ceil(2));
        Self {
            all_max,
            per_source_max: config.requests_per_source,
            per_network_max: config.requests_per_source.max(all_max / 4),
            datagrams_max: config.datagrams,
            listings_max: config.listings,
            taken: Mutex::default(),
        }
    }

    /// Takes a permit for a request from `ip`.
    ///
    /// # Errors
    /// When no permit is available.
    pub(crate) fn enter(&self, ip: IpAddr, is_datagram: bool) -> Result<ForwardPermit, NoPermit> {
        let [network, _, source] = networks_of(ip);
        let mut taken = self.lock_taken();
        if taken.all >= self.all_max || is_datagram && taken.datagrams >= self.datagrams_max {
            return Err(NoPermit::Full);
        }
        let has = |map: &HashMap<IpAddr, usize>, key| map.get(&key).copied().unwrap_or(0);
        if has(&taken.of_source, source) >= self.per_source_max
            || has(&taken.of_network, network) >= self.per_network_max
        {
            return Err(NoPermit::OfSource);
        }
        taken.all += 1;
        taken.datagrams += usize::from(is_datagram);
        *taken.of_source.entry(source).or_default() += 1;
        *taken.of_network.entry(network).or_default() += 1;
        Ok(ForwardPermit { source, network, is_datagram, is_listing: false })
    }

    /// Notes that the request of `permit` has become a listing. Returns false when the limit of
    /// listings is reached.
    pub(crate) fn begin_listing(&self, permit: &mut ForwardPermit) -> bool {
        let mut taken = self.lock_taken();
        if permit.is_listing {
            return true;
        }
        permit.is_listing = taken.listings < self.listings_max;
        taken.listings += usize::from(permit.is_listing);
        permit.is_listing
    }

    /// Frees a permit.
    pub(crate) fn leave(&self, permit: ForwardPermit) {
        let mut taken = self.lock_taken();
        let taken = &mut *taken;
        taken.all -= 1;
        taken.datagrams -= usize::from(permit.is_datagram);
        taken.listings -= usize::from(permit.is_listing);
        for (map, key) in [(&mut taken.of_source, permit.source), (&mut taken.of_network, permit.network)] {
            if let Some(count) = map.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    map.remove(&key);
                }
            }
        }
    }

    /// The number of taken permits, and how many of these are taken by listings.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let taken = self.lock_taken();
        (taken.all, taken.listings)
    }

    fn lock_taken(&self) -> MutexGuard<'_, TakenPermits> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits() -> ForwardPermits {
        let config = ForwardConfig {
            queue_requests: 16,
            requests_per_source: 2,
            datagrams: 6,
            listings: 1,
            ..ForwardConfig::default()
        };
        ForwardPermits::new(&config, 1000)
    }

    fn v6(network: u16, subnet: u16, host: u16) -> IpAddr {
        [0x2001, 0xdb8, network, subnet, 0, 0, 0, host].into()
    }

    #[test]
    fn a_source_and_its_network_have_so_many_and_others_still_get_in() {
        let permits = permits();
        let first = permits.enter(v6(1, 1, 1), false).unwrap();
        permits.enter(v6(1, 1, 2), false).unwrap();
        assert_eq!(permits.enter(v6(1, 1, 3), false), Err(NoPermit::OfSource), "a /64 is one source");
        permits.enter(v6(1, 2, 1), false).unwrap();
        permits.enter(v6(1, 3, 1), false).unwrap();
        assert_eq!(permits.enter(v6(1, 4, 1), false), Err(NoPermit::OfSource), "a fourth for a /48");
        permits.enter(v6(2, 4, 1), false).unwrap();
        permits.enter([192, 0, 2, 1].into(), false).unwrap();
        permits.leave(first);
        permits.enter(v6(1, 1, 3), false).unwrap();
        assert_eq!(permits.counts(), (6, 0));
    }

    #[test]
    fn datagrams_take_only_their_part() {
        let permits = permits();
        let enter = |n: u8, is_datagram| permits.enter([192, 0, n, 1].into(), is_datagram);
        for n in 0..6 {
            enter(n, true).unwrap();
        }
        assert_eq!(enter(6, true), Err(NoPermit::Full));
        let connected: Vec<_> = (0..10).map(|n| enter(100 + n, false).unwrap()).collect();
        assert_eq!(enter(200, false), Err(NoPermit::Full));
        connected.into_iter().for_each(|permit| permits.leave(permit));
        assert_eq!(permits.counts(), (6, 0));
        assert_eq!(enter(6, true), Err(NoPermit::Full), "those of connections are not theirs");
    }

    #[test]
    fn listings_are_so_many_and_end_with_their_requests() {
        let permits = permits();
        let permit = |n: u8| permits.enter([192, 0, n, 1].into(), false).unwrap();
        let (mut first, mut second) = (permit(1), permit(2));
        assert!(permits.begin_listing(&mut first) && permits.begin_listing(&mut first));
        assert!(!permits.begin_listing(&mut second));
        permits.leave(first);
        assert!(permits.begin_listing(&mut second));
        permits.leave(second);
        assert_eq!(permits.counts(), (0, 0));
        assert!(permits.lock_taken().of_source.is_empty() && permits.lock_taken().of_network.is_empty());
    }

    #[test]
    fn the_slow_path_keeps_half_of_its_jobs() {
        let permits = ForwardPermits::new(&ForwardConfig::default(), 4);
        permits.enter([192, 0, 2, 1].into(), false).unwrap();
        permits.enter([198, 51, 100, 1].into(), false).unwrap();
        assert_eq!(permits.enter([203, 0, 113, 1].into(), false), Err(NoPermit::Full));
    }
}
