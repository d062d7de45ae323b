//! Bounds on how many requests each source may have forwarded at a time. No thread waits for a
//! permit.

use super::config::ForwardConfig;
use handle_auth::source::Network;
use handle_daemon::permits::{CountedPermit, HeldPermits, NoPermit, PermitHolder, PermitLimits, Permits};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The permits of requests that are being forwarded or wait to be. No worker locks this table: the
/// threads of the slow path do, and those that make metrics and the status, to count the permits.
#[derive(Debug)]
pub(crate) struct ForwardPermits {
    all: Permits<ForwardSource>,
    limits: PermitLimits<SourceLimits>,
    datagrams: Arc<AtomicUsize>,
    datagrams_max: usize,
    listings: Arc<AtomicUsize>,
    listings_max: usize,
}

/// The permit of one request, which is free when this is dropped.
#[derive(Debug)]
pub(crate) struct ForwardPermit {
    _of_source: HeldPermits<ForwardSource>,
    _of_datagram: Option<CountedPermit<Arc<AtomicUsize>>>,
    of_listing: Option<CountedPermit<Arc<AtomicUsize>>>,
}

/// A source with the /24 of IPv4 or the /48 of IPv6 around it.
#[derive(Clone, Copy, Debug)]
struct ForwardSource(IpAddr);

/// How many permits a source may have.
#[derive(Clone, Copy, Debug)]
struct SourceLimits {
    of_source: usize,
    of_network: usize,
}

impl PermitHolder for ForwardSource {
    type Key = Network;
    type Limit = SourceLimits;

    fn keys(&self) -> impl Iterator<Item = Network> {
        let address = self.0.to_canonical();
        let bits = if address.is_ipv4() { [32, 24] } else { [64, 48] };
        bits.into_iter().map(move |bits| Network::new(address, bits))
    }

    fn limit_of(at: usize, limit: SourceLimits) -> usize {
        if at == 0 { limit.of_source } else { limit.of_network }
    }
}

impl ForwardPermits {
    /// Creates as many permits as `config` says, but never more than half of the `jobs_count` jobs
    /// of the slow path.
    pub(crate) fn new(config: &ForwardConfig, jobs_count: usize) -> Self {
        let (all, of_source) =
            (config.queue_requests.min(jobs_count.div_ceil(2)), config.requests_per_source);
        let per_holder = SourceLimits { of_source, of_network: of_source.max(all / 4) };
        Self {
            all: Permits::default(),
            limits: PermitLimits { all, per_holder },
            datagrams: Arc::default(),
            datagrams_max: config.datagrams,
            listings: Arc::default(),
            listings_max: config.listings,
        }
    }

    /// Takes a permit for a request from `ip`.
    ///
    /// # Errors
    /// When no permit is available.
    pub(crate) fn enter(&self, ip: IpAddr, is_datagram: bool) -> Result<ForwardPermit, NoPermit> {
        let of_datagram =
            || CountedPermit::take(Arc::clone(&self.datagrams), self.datagrams_max).ok_or(NoPermit::Full);
        let of_datagram = is_datagram.then(of_datagram).transpose()?;
        let of_source = self.all.take(ForwardSource(ip), self.limits)?;
        Ok(ForwardPermit { _of_source: of_source, _of_datagram: of_datagram, of_listing: None })
    }

    /// Notes that the request of `permit` has become a listing. Returns false when the limit of
    /// listings is reached.
    pub(crate) fn begin_listing(&self, permit: &mut ForwardPermit) -> bool {
        if permit.of_listing.is_none() {
            permit.of_listing = CountedPermit::take(Arc::clone(&self.listings), self.listings_max);
        }
        permit.of_listing.is_some()
    }

    /// The number of taken permits.
    pub(crate) fn count(&self) -> usize {
        self.all.count()
    }

    /// How many of these are taken by listings.
    pub(crate) fn listings_count(&self) -> usize {
        self.listings.load(Ordering::Relaxed)
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
        let mut taken = Vec::new();
        let mut enter = |ip| permits.enter(ip, false).map(|permit| taken.push(permit));
        assert_eq!([v6(1, 1, 1), v6(1, 1, 2)].map(&mut enter), [Ok(()); 2]);
        assert_eq!(enter(v6(1, 1, 3)), Err(NoPermit::OfHolder), "a /64 is one source");
        assert_eq!([v6(1, 2, 1), v6(1, 3, 1)].map(&mut enter), [Ok(()); 2]);
        assert_eq!(enter(v6(1, 4, 1)), Err(NoPermit::OfHolder), "a fifth for a /48");
        assert_eq!([v6(2, 4, 1), [192, 0, 2, 1].into()].map(&mut enter), [Ok(()); 2]);
        drop(taken.swap_remove(0));
        let last = permits.enter(v6(1, 1, 3), false);
        assert!(last.is_ok() && permits.count() == 6);
        taken.clear();
        let of_network: Vec<_> = (1..=5).map(|n| permits.enter([192, 0, 2, n].into(), false)).collect();
        assert!(of_network[..4].iter().all(Result::is_ok));
        assert_eq!(of_network[4].as_ref().err(), Some(&NoPermit::OfHolder), "a fifth for a /24");
    }

    #[test]
    fn datagrams_take_only_their_part() {
        let permits = permits();
        let enter = |n: u8, is_datagram| permits.enter([192, 0, n, 1].into(), is_datagram);
        let _datagrams: Vec<_> = (0..6).map(|n| enter(n, true).unwrap()).collect();
        assert_eq!(enter(6, true).err(), Some(NoPermit::Full));
        let connected: Vec<_> = (0..10).map(|n| enter(100 + n, false).unwrap()).collect();
        assert_eq!(enter(200, false).err(), Some(NoPermit::Full));
        drop(connected);
        assert_eq!(permits.count(), 6);
        assert_eq!(enter(6, true).err(), Some(NoPermit::Full), "those of connections are not theirs");
    }

    #[test]
    fn listings_are_so_many_and_end_with_their_requests() {
        let permits = permits();
        let permit = |n: u8| permits.enter([192, 0, n, 1].into(), false).unwrap();
        let (mut first, mut second) = (permit(1), permit(2));
        assert!(permits.begin_listing(&mut first) && permits.begin_listing(&mut first));
        assert!(!permits.begin_listing(&mut second));
        drop(first);
        assert!(permits.begin_listing(&mut second));
        assert_eq!((permits.count(), permits.listings_count()), (1, 1));
        drop(second);
        assert_eq!(permits.count(), 0);
    }

    #[test]
    fn the_slow_path_keeps_half_of_its_jobs() {
        let permits = ForwardPermits::new(&ForwardConfig::default(), 4);
        let enter = |ip: [u8; 4]| permits.enter(ip.into(), false);
        let _taken = (enter([192, 0, 2, 1]).unwrap(), enter([198, 51, 100, 1]).unwrap());
        assert_eq!(enter([203, 0, 113, 1]).err(), Some(NoPermit::Full));
    }
}
