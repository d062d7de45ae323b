//! Decides which request is served next, and how many of each source wait, so that sources share
//! the work fairly.
//!
//! What counts is the work that was done for a source and its networks, in [units](crate::cost),
//! not the number of its requests. It fades, so that only the last seconds count. Connections and
//! datagrams get half of the work each if both have requests, because datagrams may have forged
//! senders. Within these the widest networks share equally, then the networks in them, then the
//! sources. Time comes in as an argument.
//!
//! All accounts fade at the same rate, so their order changes only when work is done. Accounts are
//! therefore kept as if all work had been done at one point in time: older work counts less, by a
//! factor of its age, and no account changes by itself.

mod order;

use crate::cost::{self, Units};
use crate::holder_counts::HolderCounts;
use crate::source::{RequestOrigin, SourceList, networks_of};
use order::{FlowOrder, LEVELS};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Milliseconds in which half of the work done for a source is forgotten.
const HALF_LIFE_MS: f64 = 4000.0;
/// Half-lives after which accounts are scaled to a later point in time, so that they stay within
/// the range of their numbers.
const SCALED_HALF_LIVES: f64 = 256.0;
/// Most accounts of networks. If there are more, the half with less work is dropped.
const ACCOUNTS_MAX: usize = 8192;

/// Waiting items, in the order in which they are to be served.
#[derive(Debug)]
pub struct FairQueue<T> {
    flows: HashMap<SourceFlow, VecDeque<(u64, T)>>,
    order: FlowOrder,
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
        Self {
            flows: HashMap::new(),
            order: FlowOrder::default(),
            ledger: SourceLedger::default(),
            len: 0,
            added: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// Adds an item for `origin`.
    pub fn push(&mut self, origin: RequestOrigin, item: T) {
        let flow = SourceFlow::of(origin);
        let items = self.flows.entry(flow).or_default();
        items.push_back((self.added, item));
        let is_first = items.len() == 1;
        self.added += 1;
        self.len += 1;
        if is_first {
            self.update(&flow);
        }
    }

    /// Takes the item to serve next. It is charged as a [request](cost::REQUEST); the caller
    /// charges the rest of its cost with [`charge`](Self::charge).
    pub fn pop(&mut self, now_ms: u64) -> Option<T> {
        let flow = self.order.first()?;
        let items = self.flows.get_mut(&flow)?;
        let item = items.pop_front().map(|(_, item)| item);
        if items.is_empty() {
            self.flows.remove(&flow);
        }
        self.len -= usize::from(item.is_some());
        self.charge_flow(&flow, cost::REQUEST, now_ms);
        item
    }

    /// Records that `units` of work were done for `origin`.
    pub fn charge(&mut self, origin: RequestOrigin, units: Units, now_ms: u64) {
        self.charge_flow(&SourceFlow::of(origin), units, now_ms);
    }

    fn charge_flow(&mut self, flow: &SourceFlow, units: Units, now_ms: u64) {
        if self.ledger.charge(flow, units, now_ms) {
            return self.order_again();
        }
        // Both kinds have the same accounts of networks.
        self.update(flow);
        self.update(&SourceFlow { is_connected: !flow.is_connected, ..*flow });
    }

    /// Puts a flow at its position in the order.
    fn update(&mut self, flow: &SourceFlow) {
        let first = self.flows.get(flow).and_then(|items| items.front()).map(|(number, _)| *number);
        self.order.update(flow, first, self.ledger.spent_by(flow));
    }

    /// Puts all flows in their places, after a change of many accounts or flows.
    fn order_again(&mut self) {
        self.order.clear();
        for (flow, items) in &self.flows {
            let first = items.front().map(|(number, _)| *number);
            self.order.update(flow, first, self.ledger.spent_by(flow));
        }
    }

    /// Drops the waiting items for which `is_kept` returns false.
    pub fn retain(&mut self, is_kept: impl Fn(&T) -> bool) {
        self.flows.retain(|_, items| {
            items.retain(|(_, item)| is_kept(item));
            !items.is_empty()
        });
        self.len = self.flows.values().map(VecDeque::len).sum();
        self.order_again();
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
        self.order.clear();
        self.len = 0;
    }
}

/// The work done for datagrams, for connections, and for networks: the units, each times two to the
/// power of the half-lives between `epoch_ms` and its time.
#[derive(Debug, Default)]
struct SourceLedger {
    epoch_ms: u64,
    kinds: [f64; 2],
    /// Accounts by position in [`networks_of`] and network.
    networks: HashMap<(u8, IpAddr), f64>,
}

impl SourceLedger {
    /// The scaled work done for the kind of `flow` and for its networks, the widest first.
    fn spent_by(&self, flow: &SourceFlow) -> [f64; LEVELS] {
        let [wide, middle, source] = [0, 1, 2].map(|level: u8| {
            self.networks.get(&(level, flow.networks[usize::from(level)])).copied().unwrap_or(0.0)
        });
        [self.kinds[usize::from(flow.is_connected)], wide, middle, source]
    }

    /// Charges a flow. Returns whether other accounts have changed as well.
    fn charge(&mut self, flow: &SourceFlow, units: Units, now_ms: u64) -> bool {
        let is_scaled = self.scale(now_ms);
        let is_full = self.networks.len() + 3 > ACCOUNTS_MAX;
        if is_full {
            self.drop_half();
        }
        #[expect(clippy::cast_precision_loss, reason = "amounts of work")]
        let units = units as f64 * self.half_lives_until(now_ms).exp2();
        self.kinds[usize::from(flow.is_connected)] += units;
        for (level, network) in (0..).zip(flow.networks) {
            *self.networks.entry((level, network)).or_default() += units;
        }
        is_scaled || is_full
    }

    /// The faded work done for the widest network of `flow`, in units.
    fn spent_lately(&self, flow: &SourceFlow, now_ms: u64) -> f64 {
        self.spent_by(flow)[1] * (-self.half_lives_until(now_ms)).exp2()
    }

    fn half_lives_until(&self, now_ms: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since the start")]
        let age_ms = now_ms.saturating_sub(self.epoch_ms) as f64;
        age_ms / HALF_LIFE_MS
    }

    /// Scales all accounts to `now_ms` if it is long after their point in time.
    fn scale(&mut self, now_ms: u64) -> bool {
        let half_lives = self.half_lives_until(now_ms);
        if half_lives < SCALED_HALF_LIVES {
            return false;
        }
        let factor = (-half_lives).exp2();
        self.kinds.iter_mut().chain(self.networks.values_mut()).for_each(|account| *account *= factor);
        self.networks.retain(|_, account| *account > 0.0);
        self.epoch_ms = now_ms;
        true
    }

    /// Drops the accounts that do not have more work than the median.
    fn drop_half(&mut self) {
        let mut all: Vec<f64> = self.networks.values().copied().collect();
        let middle = all.len() / 2;
        let (_, median, _) = all.select_nth_unstable_by(middle, f64::total_cmp);
        let median = *median;
        self.networks.retain(|_, account| *account > median);
    }
}

/// Counts the permits of a bounded resource by source. With 8 permits or more, a source gets at
/// most a quarter, its widest network half, and datagrams three quarters, so that no sender takes
/// all of them.
#[derive(Debug)]
pub struct Shares {
    permits: usize,
    taken: usize,
    datagrams: usize,
    of_network: HolderCounts<(bool, IpAddr)>,
    exempt: SourceList,
    /// The work done for datagrams.
    spent: SourceLedger,
}

/// Work that was done for the datagrams of a network in the last seconds, above which it gets few
/// permits: half a second of a processor.
const SPENT_MAX: f64 = 2_000_000.0;
/// Part of the permits that such a network gets.
const SPENT_PART: usize = 256;

impl Shares {
    /// A resource of `permits` permits. Sources in `exempt` may take all of them.
    #[must_use]
    pub fn new(permits: usize, exempt: SourceList) -> Self {
        let spent = SourceLedger::default();
        Self { permits, taken: 0, datagrams: 0, of_network: HolderCounts::default(), exempt, spent }
    }

    /// Changes the sources that may take all permits.
    pub fn set_exempt(&mut self, exempt: SourceList) {
        self.exempt = exempt;
    }

    fn most(&self, quarters: usize) -> usize {
        if self.permits < 8 { self.permits } else { self.permits * quarters / 4 }
    }

    /// The widest network of `origin` and its source, each with the number of permits that it may
    /// take.
    fn networks(&self, origin: RequestOrigin) -> [((bool, IpAddr), usize); 2] {
        let [wide, _, source] = networks_of(origin.ip);
        [((true, wide), self.most(2)), ((false, source), self.most(1))]
    }

    /// Takes a permit for `origin`; false if there is none for it.
    pub fn enter(&mut self, origin: RequestOrigin) -> bool {
        let networks = self.networks(origin);
        let has_share = || {
            (origin.is_connected || self.datagrams < self.most(3))
                && networks.iter().all(|(network, most)| self.of_network.count(network) < *most)
        };
        if self.taken >= self.permits || !(self.exempt.contains(origin.ip) || has_share()) {
            return false;
        }
        self.taken += 1;
        self.datagrams += usize::from(!origin.is_connected);
        for (network, _) in networks {
            self.of_network.add(network, 1);
        }
        true
    }

    /// Like [`enter`](Self::enter), for a resource whose work is [charged](Self::charge): datagrams
    /// from a network that has had much of it get few permits, because their senders may be forged.
    /// A client at such an address gets permits by connecting.
    pub fn enter_charged(&mut self, origin: RequestOrigin, now_ms: u64) -> bool {
        let flow = SourceFlow::of(origin);
        let is_over = !origin.is_connected
            && !self.exempt.contains(origin.ip)
            && self.spent.spent_lately(&flow, now_ms) > SPENT_MAX;
        let few = (self.permits / SPENT_PART).max(1);
        !(is_over && self.of_network.count(&(true, flow.networks[0])) >= few) && self.enter(origin)
    }

    /// Records that `units` of work were done for `origin`.
    pub fn charge(&mut self, origin: RequestOrigin, units: Units, now_ms: u64) {
        if !origin.is_connected {
            self.spent.charge(&SourceFlow::of(origin), units, now_ms);
        }
    }

    /// Returns the permit that `origin` took.
    pub fn leave(&mut self, origin: RequestOrigin) {
        self.taken -= 1;
        self.datagrams -= usize::from(!origin.is_connected);
        for (network, _) in self.networks(origin) {
            self.of_network.remove(&network, 1);
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
    fn items_that_are_not_kept_are_gone() {
        let mut queue = FairQueue::default();
        (0..6).for_each(|n| queue.push(connection(&format!("192.0.2.{}", n % 3)), n));
        queue.retain(|n| n % 3 != 1 && *n != 5);
        assert_eq!(queue.len(), 3);
        let mut left: Vec<_> = std::iter::from_fn(|| queue.pop(0)).collect();
        left.sort_unstable();
        assert_eq!((left, queue.len()), (vec![0, 2, 3], 0));
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
        assert!(queue.ledger.spent_by(&flow)[1] >= 1_000_000.0, "the account with most work is kept");
    }

    #[test]
    fn accounts_that_are_dropped_make_room_for_as_many() {
        let mut queue = FairQueue::<()>::default();
        let origin = |n: u32| RequestOrigin::datagram(std::net::Ipv4Addr::from_bits(n << 8).into());
        (0..2700).for_each(|n| queue.charge(origin(n), 1000, 0));
        // Those that come later have less than most.
        let (mut before, mut drops) = (queue.ledger.networks.len(), 0);
        for n in 2700..20_000 {
            queue.charge(origin(n), 1, 0);
            let now = queue.ledger.networks.len();
            drops += u32::from(now < before);
            before = now;
        }
        assert!(drops <= 20, "{drops} times");
    }

    #[test]
    fn order_stays_after_hours_and_when_the_clock_stands() {
        let (busy, quiet) = (connection("192.0.2.1"), connection("198.51.100.1"));
        let mut queue = FairQueue::default();
        for hour in 0..48 {
            let now_ms = hour * 3_600_000;
            queue.charge(busy, 1000, now_ms);
            queue.charge(quiet, 10, now_ms);
            queue.push(busy, "busy");
            queue.push(quiet, "quiet");
            assert_eq!(queue.pop(now_ms), Some("quiet"), "hour {hour}");
            assert_eq!(queue.pop(now_ms.saturating_sub(1)), Some("busy"), "hour {hour}");
        }
        assert!(queue.ledger.networks.values().all(|account| account.is_finite()));
    }

    /// The definition: the flow with the least work, level by level, and of equals the first one.
    #[test]
    fn the_next_item_is_that_of_the_flow_with_the_least_work() {
        let mut random = 1_u32;
        let mut next = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % below
        };
        let mut queue = FairQueue::default();
        for step in 0..5000_u64 {
            let address = std::net::Ipv4Addr::new(
                10,
                0,
                u8::try_from(next(3)).unwrap(),
                u8::try_from(next(4)).unwrap(),
            );
            let origin = RequestOrigin { ip: address.into(), is_connected: next(2) == 0 };
            match next(5) {
                0 => queue.charge(origin, next(500).into(), step * 7),
                1 | 2 => queue.push(origin, step),
                _ => {
                    let claim = |(flow, items): (&SourceFlow, &VecDeque<(u64, u64)>)| {
                        (queue.ledger.spent_by(flow), items.front().unwrap().1)
                    };
                    let expected =
                        queue.flows.iter().map(claim).min_by(|one, other| one.partial_cmp(other).unwrap());
                    assert_eq!(queue.pop(step * 7), expected.map(|(_, item)| item), "step {step}");
                }
            }
            assert_eq!(queue.len(), queue.flows.values().map(VecDeque::len).sum::<usize>());
        }
    }

    #[test]
    fn a_pop_among_thousands_of_sources_compares_few() {
        let mut queue = FairQueue::default();
        let mut sources = (0..6000_u32).cycle();
        let mut push = |queue: &mut FairQueue<()>| {
            let bits = sources.next().unwrap().wrapping_mul(2_654_435_761);
            queue.push(RequestOrigin::datagram(std::net::Ipv4Addr::from_bits(bits).into()), ());
        };
        (0..6000).for_each(|_| push(&mut queue));
        order::COMPARISONS.set(0);
        for n in 0..6000 {
            queue.pop(n).unwrap();
            push(&mut queue);
        }
        let each = order::COMPARISONS.get() / 6000;
        assert!(each < 500, "{each} comparisons for each item");
    }

    #[test]
    fn a_network_whose_datagrams_have_cost_much_gets_few_permits_for_a_while() {
        let exempt = SourceList::parse(&["203.0.113.0/24".to_owned()]).unwrap();
        let mut shares = Shares::new(1024, exempt);
        let dear = datagram("192.0.2.1");
        let entered = |shares: &mut Shares, origin, now_ms| {
            let count = (0..100).take_while(|_| shares.enter_charged(origin, now_ms)).count();
            (0..count).for_each(|_| shares.leave(origin));
            count
        };
        assert_eq!(entered(&mut shares, dear, 0), 100);
        for origin in [dear, datagram("203.0.113.1"), connection("198.51.100.1")] {
            (0..20).for_each(|_| shares.charge(origin, 50 * cost::MILLISECOND, 0));
        }
        assert_eq!(entered(&mut shares, dear, 0), 4);
        assert_eq!(entered(&mut shares, datagram("192.0.2.9"), 0), 4, "a /24 shares");
        for (origin, why) in [
            (connection("192.0.2.1"), "a connection is not forged"),
            (datagram("192.0.3.1"), "another network"),
            (datagram("203.0.113.1"), "an exempt source"),
            (datagram("198.51.100.1"), "work for connections counts for none"),
        ] {
            assert_eq!(entered(&mut shares, origin, 0), 100, "{why}");
        }
        assert_eq!(entered(&mut shares, dear, 10_000), 100, "work fades");
    }

    #[test]
    fn no_source_takes_all_permits() {
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
