//! Bounds on how many requests each source may have forwarded at a time. No thread waits for a
//! place.

use super::config::ForwardConfig;
use handle_auth::source::networks_of;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The places of requests that are being forwarded or wait to be. Only threads of the slow path
/// lock this table.
#[derive(Debug)]
pub(crate) struct ForwardPlaces {
    all_max: usize,
    per_source_max: usize,
    per_network_max: usize,
    datagrams_max: usize,
    listings_max: usize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    all: usize,
    datagrams: usize,
    listings: usize,
    of_source: HashMap<IpAddr, usize>,
    of_network: HashMap<IpAddr, usize>,
}

/// The place of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForwardPlace {
    source: IpAddr,
    network: IpAddr,
    is_datagram: bool,
    is_listing: bool,
}

/// Why no place is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All places are taken, or all places for datagrams.
    Full,
    /// The source or its network has reached its limit.
    OfSource,
}

impl ForwardPlaces {
    /// Creates as many places as `config` says, but never more than half of the `jobs_count` jobs
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

    /// Takes a place for a request from `ip`.
    ///
    /// # Errors
    /// When no place is available.
    pub(crate) fn enter(&self, ip: IpAddr, is_datagram: bool) -> Result<ForwardPlace, NoPlace> {
        let [network, _, source] = networks_of(ip);
        let mut taken = self.lock_taken();
        if taken.all >= self.all_max || is_datagram && taken.datagrams >= self.datagrams_max {
            return Err(NoPlace::Full);
        }
        let has = |map: &HashMap<IpAddr, usize>, key| map.get(&key).copied().unwrap_or(0);
        if has(&taken.of_source, source) >= self.per_source_max
            || has(&taken.of_network, network) >= self.per_network_max
        {
            return Err(NoPlace::OfSource);
        }
        taken.all += 1;
        taken.datagrams += usize::from(is_datagram);
        *taken.of_source.entry(source).or_default() += 1;
        *taken.of_network.entry(network).or_default() += 1;
        Ok(ForwardPlace { source, network, is_datagram, is_listing: false })
    }

    /// Notes that the request of `place` has become a listing. Returns false when the limit of
    /// listings is reached.
    pub(crate) fn begin_listing(&self, place: &mut ForwardPlace) -> bool {
        let mut taken = self.lock_taken();
        if place.is_listing {
            return true;
        }
        place.is_listing = taken.listings < self.listings_max;
        taken.listings += usize::from(place.is_listing);
        place.is_listing
    }

    /// Frees a place.
    pub(crate) fn leave(&self, place: ForwardPlace) {
        let mut taken = self.lock_taken();
        let taken = &mut *taken;
        taken.all -= 1;
        taken.datagrams -= usize::from(place.is_datagram);
        taken.listings -= usize::from(place.is_listing);
        for (map, key) in [(&mut taken.of_source, place.source), (&mut taken.of_network, place.network)] {
            if let Some(count) = map.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    map.remove(&key);
                }
            }
        }
    }

    /// The number of taken places, and how many of these are taken by listings.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let taken = self.lock_taken();
        (taken.all, taken.listings)
    }

    fn lock_taken(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> ForwardPlaces {
        let config = ForwardConfig {
            queue_requests: 16,
            requests_per_source: 2,
            datagrams: 6,
            listings: 1,
            ..ForwardConfig::default()
        };
        ForwardPlaces::new(&config, 1000)
    }

    fn v6(network: u16, subnet: u16, host: u16) -> IpAddr {
        [0x2001, 0xdb8, network, subnet, 0, 0, 0, host].into()
    }

    #[test]
    fn a_source_and_its_network_have_so_many_and_others_still_get_in() {
        let places = places();
        let first = places.enter(v6(1, 1, 1), false).unwrap();
        places.enter(v6(1, 1, 2), false).unwrap();
        assert_eq!(places.enter(v6(1, 1, 3), false), Err(NoPlace::OfSource), "a /64 is one source");
        places.enter(v6(1, 2, 1), false).unwrap();
        places.enter(v6(1, 3, 1), false).unwrap();
        assert_eq!(places.enter(v6(1, 4, 1), false), Err(NoPlace::OfSource), "a fourth for a /48");
        places.enter(v6(2, 4, 1), false).unwrap();
        places.enter([192, 0, 2, 1].into(), false).unwrap();
        places.leave(first);
        places.enter(v6(1, 1, 3), false).unwrap();
        assert_eq!(places.counts(), (6, 0));
    }

    #[test]
    fn datagrams_take_only_their_part() {
        let places = places();
        let enter = |n: u8, is_datagram| places.enter([192, 0, n, 1].into(), is_datagram);
        for n in 0..6 {
            enter(n, true).unwrap();
        }
        assert_eq!(enter(6, true), Err(NoPlace::Full));
        let connected: Vec<_> = (0..10).map(|n| enter(100 + n, false).unwrap()).collect();
        assert_eq!(enter(200, false), Err(NoPlace::Full));
        connected.into_iter().for_each(|place| places.leave(place));
        assert_eq!(places.counts(), (6, 0));
        assert_eq!(enter(6, true), Err(NoPlace::Full), "those of connections are not theirs");
    }

    #[test]
    fn listings_are_so_many_and_end_with_their_requests() {
        let places = places();
        let place = |n: u8| places.enter([192, 0, n, 1].into(), false).unwrap();
        let (mut first, mut second) = (place(1), place(2));
        assert!(places.begin_listing(&mut first) && places.begin_listing(&mut first));
        assert!(!places.begin_listing(&mut second));
        places.leave(first);
        assert!(places.begin_listing(&mut second));
        places.leave(second);
        assert_eq!(places.counts(), (0, 0));
        assert!(places.lock_taken().of_source.is_empty() && places.lock_taken().of_network.is_empty());
    }

    #[test]
    fn the_slow_path_keeps_half_of_its_jobs() {
        let places = ForwardPlaces::new(&ForwardConfig::default(), 4);
        places.enter([192, 0, 2, 1].into(), false).unwrap();
        places.enter([198, 51, 100, 1].into(), false).unwrap();
        assert_eq!(places.enter([203, 0, 113, 1].into(), false), Err(NoPlace::Full));
    }
}
