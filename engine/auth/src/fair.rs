//! Decides which request is served next, so that sources share the work fairly.
//!
//! What counts is the work that was done for a source and its networks, in [units](crate::cost),
//! not the number of its requests. It fades, so that only the last seconds count. Connections and
//! datagrams get half of the work each if both have requests, because datagrams may have forged
//! senders. Within these the widest networks share equally, then the networks in them, then the
//! sources. Time comes in as an argument.

use crate::cost::{self, Units};
use crate::source::{RequestOrigin, SourceList, networks_of};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Milliseconds in which half of the work done for a source is forgotten.
const HALF_LIFE_MS: f64 = 4000.0;
/// Most accounts of networks. If there are more, those with less work than the mean are dropped.
const ACCOUNTS_MAX: usize = 8192;

/// Waiting items, in the order in which they are to be served.
#[derive(Debug)]
pub struct FairQueue<T> {
    flows: HashMap<SourceFlow, VecDeque<(u64, T)>>,
    ledger: SourceLedger,
    len: usize,
    /// Number of items added so far. Of items with equal claims the first one added is served
    /// first.
    added: u64,
}

/// Unit of sharing: a source, by connections or by datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SourceFlow {
    is_connected: bool,
    networks: [IpAddr; 3],
}

impl SourceFlow {
    fn of(origin: RequestOrigin) -> Self {
        Self { is_connected: origin.is_connected, networks: networks_of(origin.ip) }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { flows: HashMap::new(), ledger: SourceLedger::default(), len: 0, added: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Adds an item for `origin`.
    pub fn push(&mut self, origin: RequestOrigin, item: T) {
        self.flows.entry(SourceFlow::of(origin)).or_default().push_back((self.added, item));
        self.added += 1;
        self.len += 1;
    }

    /// Takes the item to serve next. It is charged as a [request](cost::REQUEST); the caller
    /// charges the rest of its cost with [`charge`](Self::charge).
    pub fn pop(&mut self, now_ms: u64) -> Option<T> {
        let ledger = &self.ledger;
        let claim = |(flow, items): (&SourceFlow, &VecDeque<(u64, T)>)| {
            (*flow, ledger.spent_by(flow, now_ms), items.front().map(|(number, _)| *number))
        };
        let (flow, ..) =
            self.flows.iter().map(claim).min_by(|(_, spent, number), (_, other, other_number)| {
                let pairs = spent.iter().zip(other);
                let order =
                    pairs.map(|(one, other)| one.total_cmp(other)).find(|order| *order != Ordering::Equal);
                order.unwrap_or_else(|| number.cmp(other_number))
            })?;
        let items = self.flows.get_mut(&flow)?;
        let item = items.pop_front().map(|(_, item)| item);
        if items.is_empty() {
            self.flows.remove(&flow);
        }
        self.len -= usize::from(item.is_some());
        self.ledger.charge(&flow, cost::REQUEST, now_ms);
        item
    }

    /// Records that `units` of work were done for `origin`.
    pub fn charge(&mut self, origin: RequestOrigin, units: Units, now_ms: u64) {
        self.ledger.charge(&SourceFlow::of(origin), units, now_ms);
    }

    /// Number of waiting items.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no item waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops all waiting items.
    pub fn clear(&mut self) {
        self.flows.clear();
        self.len = 0;
    }
}

/// The work done for datagrams, for connections, and for networks.
#[derive(Debug, Default)]
struct SourceLedger {
    kinds: [SourceAccount; 2],
    /// Accounts by position in [`networks_of`] and network.
    networks: HashMap<(u8, IpAddr), SourceAccount>,
}

/// Units of work at a point in time.
#[derive(Clone, Copy, Debug, Default)]
struct SourceAccount {
    units: f64,
    at_ms: u64,
}

impl SourceAccount {
    fn units(&self, now_ms: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since the start")]
        let age_ms = now_ms.saturating_sub(self.at_ms) as f64;
        self.units * (-age_ms / HALF_LIFE_MS).exp2()
    }

    fn charge(&mut self, units: Units, now_ms: u64) {
        #[expect(clippy::cast_precision_loss, reason = "amounts of work")]
        let units = units as f64;
        *self = Self { units: self.units(now_ms) + units, at_ms: now_ms };
    }
}

impl SourceLedger {
    /// The work done for the kind of `flow` and for its networks, the widest first.
    fn spent_by(&self, flow: &SourceFlow, now_ms: u64) -> [f64; 4] {
        let [wide, middle, source] = [0, 1, 2].map(|level: u8| {
            let account = self.networks.get(&(level, flow.networks[usize::from(level)]));
            account.map_or(0.0, |account| account.units(now_ms))
        });
        [self.kinds[usize::from(flow.is_connected)].units(now_ms), wide, middle, source]
    }

    fn charge(&mut self, flow: &SourceFlow, units: Units, now_ms: u64) {
        self.kinds[usize::from(flow.is_connected)].charge(units, now_ms);
        if self.networks.len() + 3 > ACCOUNTS_MAX {
            let all: f64 = self.networks.values().map(|account| account.units(now_ms)).sum();
            #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
            let mean = all / self.networks.len() as f64;
            self.networks.retain(|_, account| account.units(now_ms) > mean);
        }
        for (level, network) in (0..).zip(flow.networks) {
            self.networks.entry((level, network)).or_default().charge(units, now_ms);
        }
    }
}

/// Counts the places of a bounded resource by source. With 8 places or more, a source gets at most
/// a quarter, its widest network half, and datagrams three quarters, so that no sender takes all of
/// them.
#[derive(Debug)]
pub struct Shares {
    places: usize,
    taken: usize,
    datagrams: usize,
    of_network: HashMap<(bool, IpAddr), usize>,
    exempt: SourceList,
}

impl Shares {
    /// A resource of `places` places. Sources in `exempt` may take all of them.
    #[must_use]
    pub fn new(places: usize, exempt: SourceList) -> Self {
        Self { places, taken: 0, datagrams: 0, of_network: HashMap::new(), exempt }
    }

    /// Changes the sources that may take all places.
    pub fn set_exempt(&mut self, exempt: SourceList) {
        self.exempt = exempt;
    }

    fn most(&self, quarters: usize) -> usize {
        if self.places < 8 { self.places } else { self.places * quarters / 4 }
    }

    /// The widest network of `origin` and its source, each with the number of places that it may
    /// take.
    fn networks(&self, origin: RequestOrigin) -> [((bool, IpAddr), usize); 2] {
        let [wide, _, source] = networks_of(origin.ip);
        [((true, wide), self.most(2)), ((false, source), self.most(1))]
    }

    /// Takes a place for `origin`; false if there is none for it.
    pub fn enter(&mut self, origin: RequestOrigin) -> bool {
        let networks = self.networks(origin);
        let taken = |network: &(bool, IpAddr)| self.of_network.get(network).copied().unwrap_or(0);
        let has_share = || {
            (origin.is_connected || self.datagrams < self.most(3))
                && networks.iter().all(|(network, most)| taken(network) < *most)
        };
        if self.taken >= self.places || !(self.exempt.contains(origin.ip) || has_share()) {
            return false;
        }
        self.taken += 1;
        self.datagrams += usize::from(!origin.is_connected);
        for (network, _) in networks {
            *self.of_network.entry(network).or_default() += 1;
        }
        true
    }

    /// Returns the place that `origin` took.
    pub fn leave(&mut self, origin: RequestOrigin) {
        self.taken -= 1;
        self.datagrams -= usize::from(!origin.is_connected);
        for (network, _) in self.networks(origin) {
            if let Some(count) = self.of_network.get_mut(&network) {
                *count -= 1;
                if *count == 0 {
                    self.of_network.remove(&network);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(text: &str) -> RequestOrigin {
        RequestOrigin::connection(text.parse().unwrap())
    }

    fn datagram(text: &str) -> RequestOrigin {
        RequestOrigin::datagram(text.parse().unwrap())
    }

    /// Each of `origins` sends requests without end, each for its number of units. Returns the
    /// units that each got after `count` requests.
    fn units_served(origins: &[(RequestOrigin, Units)], count: usize) -> Vec<Units> {
        let (mut queue, mut received) = (FairQueue::default(), vec![0; origins.len()]);
        for (at, (origin, _)) in origins.iter().enumerate() {
            (0..count).for_each(|_| queue.push(*origin, at));
        }
        for _ in 0..count {
            let at = queue.pop(0).unwrap();
            let (origin, units) = origins[at];
            queue.charge(origin, units, 0);
            received[at] += units;
        }
        received
    }

    #[test]
    fn requests_of_one_source_stay_in_order() {
        let mut queue = FairQueue::default();
        (0..5).for_each(|n| queue.push(connection("192.0.2.1"), n));
        assert_eq!(queue.len(), 5);
        assert_eq!((0..5).map(|_| queue.pop(0).unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert!(queue.is_empty() && queue.pop(0).is_none());
        queue.push(connection("192.0.2.1"), 6);
        queue.clear();
        assert!(queue.is_empty() && queue.pop(0).is_none());
    }

    #[test]
    fn sources_share_work_and_not_requests() {
        let units =
            units_served(&[(connection("192.0.2.1"), 100_000), (connection("198.51.100.1"), 1000)], 1000);
        assert!(units[1] >= 900_000, "{units:?}: too few cheap requests");
    }

    #[test]
    fn addresses_of_one_network_share_the_work_of_a_network() {
        let v6 = |n| (connection(&format!("2001:db8:1:{n:x}::1")), 1000);
        let mut origins: Vec<(RequestOrigin, Units)> = (0..50).map(v6).collect();
        origins.push((connection("2001:db8:2::1"), 1000));
        let units = units_served(&origins, 1000);
        assert!((400_000..=600_000).contains(&units[50]), "{}", units[50]);
        assert!(units[..50].iter().all(|&units| units <= 20_000), "{units:?}");
        let v4 = |n| (connection(&format!("192.0.2.{n}")), 1000);
        let mut origins: Vec<(RequestOrigin, Units)> = (0..50).map(v4).collect();
        origins.push((connection("198.51.100.1"), 1000));
        assert!(units_served(&origins, 1000)[50] >= 400_000);
    }

    #[test]
    fn connections_get_half_of_the_work_during_a_flood_of_datagrams() {
        let forged = |n| (datagram(&format!("10.{n}.0.1")), 1000);
        let mut origins: Vec<(RequestOrigin, Units)> = (0..100).map(forged).collect();
        origins.push((connection("10.7.0.1"), 1000));
        let units = units_served(&origins, 1000);
        assert!(units[100] >= 400_000, "{}", units[100]);
    }

    #[test]
    fn recorded_work_fades() {
        let (busy, quiet) = (connection("192.0.2.1"), connection("198.51.100.1"));
        let mut queue = FairQueue::default();
        queue.charge(busy, 1_000_000, 0);
        queue.charge(quiet, 1000, 60_000);
        queue.push(quiet, "quiet");
        queue.push(busy, "busy");
        assert_eq!(queue.pop(60_000), Some("busy"), "a million units have faded after a minute");
    }

    #[test]
    fn accounts_are_bounded() {
        let mut queue = FairQueue::<()>::default();
        queue.charge(connection("192.0.2.1"), 1_000_000, 0);
        for n in 0..20_000_u32 {
            queue.charge(RequestOrigin::datagram(std::net::Ipv4Addr::from_bits(n << 8).into()), 10, 0);
            assert!(queue.ledger.networks.len() <= ACCOUNTS_MAX);
        }
        let flow = SourceFlow::of(connection("192.0.2.1"));
        assert!(queue.ledger.spent_by(&flow, 0)[1] >= 1_000_000.0, "the account with most work is kept");
    }

    #[test]
    fn no_source_takes_all_places() {
        let exempt = SourceList::parse(&["203.0.113.0/24".to_owned()]).unwrap();
        let mut shares = Shares::new(16, exempt);
        let mut entered = |origin: RequestOrigin| (0..100).take_while(|_| shares.enter(origin)).count();
        assert_eq!(entered(datagram("192.0.2.1")), 4, "a source");
        assert_eq!([entered(datagram("192.0.2.2")), entered(datagram("192.0.2.3"))], [4, 0], "a network");
        assert_eq!([entered(datagram("10.0.0.1")), entered(datagram("10.1.0.1"))], [4, 0], "datagrams");
        assert_eq!(entered(connection("10.1.0.1")), 4);
        assert_eq!(entered(connection("203.0.113.1")), 0, "all places are taken");
        shares.leave(datagram("192.0.2.2"));
        assert!(!shares.enter(connection("10.1.0.1")) && shares.enter(connection("203.0.113.1")));
        let mut shares = Shares::new(16, SourceList::parse(&["203.0.113.1".to_owned()]).unwrap());
        assert_eq!((0..100).take_while(|_| shares.enter(datagram("203.0.113.1"))).count(), 16);
        (0..16).for_each(|_| shares.leave(datagram("203.0.113.1")));
        assert!(shares.of_network.is_empty() && shares.taken == 0 && shares.datagrams == 0);
        let mut few = Shares::new(2, SourceList::default());
        assert_eq!((0..100).take_while(|_| few.enter(datagram("192.0.2.1"))).count(), 2);
    }
}
