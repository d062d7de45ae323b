//! Who is connected, from where, and what each connection waits for since when.
//!
//! A connection is in one list for what it waits for. All of a list may wait equally long, so the first of it
//! is the one whose time is up next, and nothing is ever searched.

use super::settings::TcpSettings;
use handle_net::StreamId;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A request.
    Idle,
    /// The rest of one.
    Reading,
    /// That answers are read.
    Sending,
    /// An answer that is made elsewhere.
    Slow,
    /// The end of the other side; ours has been sent.
    Closing,
    /// That the last answers are read, and then the end of the other side.
    Ending,
}

impl Wait {
    pub(super) const ALL: [Self; 6] =
        [Self::Idle, Self::Reading, Self::Sending, Self::Slow, Self::Closing, Self::Ending];

    /// Given up already: only the end is awaited.
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Closing | Self::Ending)
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    id: StreamId,
    /// Of who is connected; IPv4 in its mapped form.
    address: Ipv6Addr,
    pub(super) wait: Wait,
    since_ms: u64,
    before: u32,
    after: u32,
    /// A request that has begun, or requests that wait until answers have been read.
    pub(super) input: Vec<u8>,
    /// Answers that are made elsewhere.
    pub(super) slow_count: u32,
    /// A byte has come.
    pub(super) has_sent: bool,
    /// A request was whole since `wait` was last told.
    pub(super) has_progressed: bool,
    /// Answers wait to be read.
    pub(super) is_kept: bool,
    /// Nothing is read from it for now.
    pub(super) is_paused: bool,
    /// The last request has come: nothing more is taken.
    pub(super) is_last: bool,
    /// The other side has ended its sending.
    pub(super) has_ended: bool,
}

/// No place.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    count: usize,
    /// How long one may be in it.
    limit_ms: u64,
}

/// All connections of a worker.
#[derive(Debug)]
pub(super) struct Table {
    places: Vec<Option<Connection>>,
    lists: [List; Wait::ALL.len()],
    count: usize,
    sources: HashMap<u128, usize>,
    per_source_max: usize,
    prefix_v4: u32,
    prefix_v6: u32,
}

impl Table {
    pub(super) fn new(settings: &TcpSettings) -> Self {
        let mut table = Self {
            places: Vec::new(),
            lists: [List { first: NONE, last: NONE, count: 0, limit_ms: 0 }; Wait::ALL.len()],
            count: 0,
            sources: HashMap::new(),
            per_source_max: 0,
            prefix_v4: 0,
            prefix_v6: 0,
        };
        table.set(settings);
        table
    }

    /// Lets connections wait as long, and sources have as many, as `settings` say.
    pub(super) fn set(&mut self, settings: &TcpSettings) {
        for wait in Wait::ALL {
            self.lists[wait as usize].limit_ms = match wait {
                Wait::Idle | Wait::Slow => settings.idle_ms,
                Wait::Reading => settings.read_ms,
                Wait::Sending | Wait::Ending => settings.write_ms,
                Wait::Closing => settings.linger_ms,
            }
            .into();
        }
        self.per_source_max = settings.connections_per_source;
        let prefixes = (settings.source_prefix_v4, settings.source_prefix_v6);
        if prefixes != (self.prefix_v4, self.prefix_v6) {
            (self.prefix_v4, self.prefix_v6) = prefixes;
            self.sources.clear();
            for connection in self.places.iter().flatten() {
                let source = source(connection.address, prefixes);
                *self.sources.entry(source).or_default() += 1;
            }
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// How many wait for this.
    pub(super) const fn count(&self, wait: Wait) -> usize {
        self.lists[wait as usize].count
    }

    pub(super) fn get(&self, id: StreamId) -> Option<&Connection> {
        self.places.get(id.at())?.as_ref().filter(|connection| connection.id == id)
    }

    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Connection> {
        self.places.get_mut(id.at())?.as_mut().filter(|connection| connection.id == id)
    }

    /// Who has waited longest.
    pub(super) fn first(&self, wait: Wait) -> Option<StreamId> {
        let first = self.lists[wait as usize].first;
        self.places.get(first as usize)?.as_ref().map(|connection| connection.id)
    }

    /// Who has waited longest, if that is too long at `now_ms`.
    pub(super) fn expired(&self, wait: Wait, now_ms: u64) -> Option<StreamId> {
        let List { first, limit_ms, .. } = self.lists[wait as usize];
        let connection = self.places.get(first as usize)?.as_ref()?;
        (now_ms.saturating_sub(connection.since_ms) >= limit_ms).then_some(connection.id)
    }

    /// Whether nothing has come from a connection, and it is there for less than `ms`.
    pub(super) fn is_new(&self, id: StreamId, now_ms: u64, ms: u64) -> bool {
        self.get(id).is_some_and(|it| !it.has_sent && now_ms.saturating_sub(it.since_ms) < ms)
    }

    /// Whether one more from where `peer` is may come.
    pub(super) fn has_room_for(&self, peer: SocketAddr) -> bool {
        let source = source(address(peer), (self.prefix_v4, self.prefix_v6));
        self.sources.get(&source).is_none_or(|&count| count < self.per_source_max)
    }

    /// Takes a connection, which waits for its first request.
    pub(super) fn insert(&mut self, id: StreamId, peer: SocketAddr, now_ms: u64) {
        // Whatever was in its place is gone, or it would not be a place.
        if let Some(Some(old)) = self.places.get(id.at()) {
            self.remove(old.id);
        }
        let address = address(peer);
        let source = source(address, (self.prefix_v4, self.prefix_v6));
        *self.sources.entry(source).or_default() += 1;
        if self.places.len() <= id.at() {
            self.places.resize_with(id.at() + 1, || None);
        }
        self.places[id.at()] = Some(Connection {
            id,
            address,
            wait: Wait::Idle,
            since_ms: now_ms,
            before: NONE,
            after: NONE,
            input: Vec::new(),
            slow_count: 0,
            has_sent: false,
            has_progressed: false,
            is_kept: false,
            is_paused: false,
            is_last: false,
            has_ended: false,
        });
        self.count += 1;
        self.link(id.at(), Wait::Idle, now_ms);
    }

    /// Lets a connection wait for something from now on.
    pub(super) fn wait_for(&mut self, id: StreamId, wait: Wait, now_ms: u64) {
        if self.get(id).is_some() {
            self.unlink(id.at());
            self.link(id.at(), wait, now_ms);
        }
    }

    pub(super) fn remove(&mut self, id: StreamId) {
        if self.get(id).is_none() {
            return;
        }
        self.unlink(id.at());
        let Some(connection) = self.places[id.at()].take() else { return };
        self.count -= 1;
        let source = source(connection.address, (self.prefix_v4, self.prefix_v6));
        if let Some(count) = self.sources.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&source);
            }
        }
    }

    fn link(&mut self, at: usize, wait: Wait, now_ms: u64) {
        let list = &mut self.lists[wait as usize];
        let Some(Some(connection)) = self.places.get_mut(at) else { return };
        (connection.wait, connection.since_ms) = (wait, now_ms);
        (connection.before, connection.after) = (list.last, NONE);
        // Places are counted in 32 bits, as in the id.
        let place = u32::try_from(at).unwrap_or(NONE);
        let last = std::mem::replace(&mut list.last, place);
        list.count += 1;
        match self.places.get_mut(last as usize) {
            Some(Some(last)) => last.after = place,
            _ => list.first = place,
        }
    }

    fn unlink(&mut self, at: usize) {
        let Some(Some(connection)) = self.places.get(at) else { return };
        let (wait, before, after) = (connection.wait, connection.before, connection.after);
        let list = &mut self.lists[wait as usize];
        list.count -= 1;
        match self.places.get_mut(before as usize) {
            Some(Some(connection)) => connection.after = after,
            _ => list.first = after,
        }
        match self.places.get_mut(after as usize) {
            Some(Some(connection)) => connection.before = before,
            _ => list.last = before,
        }
    }

    /// The address of who is connected.
    pub(super) fn address_of(&self, id: StreamId) -> IpAddr {
        self.get(id).map_or(Ipv6Addr::UNSPECIFIED, |connection| connection.address).to_canonical()
    }
}

fn address(peer: SocketAddr) -> Ipv6Addr {
    match peer.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Where `address` is, as far as it counts by `prefixes` of IPv4 and IPv6. The two do not meet.
fn source(address: Ipv6Addr, (prefix_v4, prefix_v6): (u32, u32)) -> u128 {
    match address.to_ipv4_mapped() {
        Some(ip) => {
            let mask = u32::MAX.checked_shl(32 - prefix_v4).unwrap_or(0);
            (0xffff << 32) | u128::from(ip.to_bits() & mask)
        }
        None => address.to_bits() & u128::MAX.checked_shl(128 - prefix_v6).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(change: impl FnOnce(&mut TcpSettings)) -> Table {
        let mut settings = TcpSettings::default();
        change(&mut settings);
        Table::new(&settings)
    }

    fn peer(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), 9)
    }

    fn id(at: u32) -> StreamId {
        StreamId::new(at, 7)
    }

    #[test]
    fn who_waits_longest_comes_first() {
        let mut table = table(|settings| settings.idle_ms = 100);
        for at in 0..5 {
            table.insert(id(at), peer("192.0.2.1"), at.into());
        }
        table.wait_for(id(0), Wait::Reading, 10);
        table.wait_for(id(2), Wait::Idle, 20);
        table.remove(id(1));
        table.remove(StreamId::new(3, 8));
        let mut order = Vec::new();
        while let Some(id) = table.first(Wait::Idle) {
            order.push(id.at());
            table.remove(id);
        }
        assert_eq!(order, [3, 4, 2]);
        assert_eq!((table.len(), table.count(Wait::Reading), table.count(Wait::Idle)), (1, 1, 0));
        assert_eq!(table.first(Wait::Reading), Some(id(0)));
    }

    #[test]
    fn time_is_up_at_the_limit_and_not_before() {
        let mut table = table(|settings| settings.idle_ms = 100);
        table.insert(id(0), peer("192.0.2.1"), 50);
        assert_eq!(table.expired(Wait::Idle, 149), None);
        assert_eq!(table.expired(Wait::Idle, 150), Some(id(0)));
        table.wait_for(id(0), Wait::Idle, 60);
        assert_eq!(table.expired(Wait::Idle, 159), None);
    }

    #[test]
    fn sources_are_counted_by_prefix() {
        let mut table = table(|settings| settings.connections_per_source = 2);
        table.insert(id(0), peer("192.0.2.1"), 0);
        table.insert(id(1), peer("192.0.2.1"), 0);
        assert!(!table.has_room_for(peer("192.0.2.1")));
        assert!(table.has_room_for(peer("192.0.2.2")), "IPv4 addresses count alone");
        table.insert(id(2), peer("2001:db8::1"), 0);
        table.insert(id(3), peer("2001:db8::ffff:1"), 0);
        assert!(!table.has_room_for(peer("2001:db8::2")), "one network");
        assert!(table.has_room_for(peer("2001:db8:0:1::1")), "another");
        table.remove(id(3));
        assert!(table.has_room_for(peer("2001:db8::2")));
        assert_eq!(table.sources.len(), 2);
        table.remove(id(2));
        assert_eq!(table.sources.len(), 1, "what is not needed is not kept");
    }

    #[test]
    fn other_settings_hold_for_who_is_there() {
        let mut table = table(|settings| settings.idle_ms = 100);
        for (at, ip) in (0..).zip(["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8:0:1::1"]) {
            table.insert(id(at), peer(ip), 0);
        }
        let change = |v4, v6| TcpSettings {
            idle_ms: 50,
            connections_per_source: 2,
            source_prefix_v4: v4,
            source_prefix_v6: v6,
            ..TcpSettings::default()
        };
        table.set(&change(32, 64));
        assert_eq!((table.expired(Wait::Idle, 49), table.expired(Wait::Idle, 50)), (None, Some(id(0))));
        assert!(table.has_room_for(peer("192.0.2.1")) && table.has_room_for(peer("2001:db8::1")));
        table.set(&change(24, 48));
        assert!(!table.has_room_for(peer("192.0.2.9")) && !table.has_room_for(peer("2001:db8:0:9::1")));
        assert!(table.has_room_for(peer("192.0.3.1")) && table.has_room_for(peer("2001:db8:1::1")));
        (0..4).for_each(|at| table.remove(id(at)));
        assert!(table.sources.is_empty(), "counted out as they were counted in");
    }

    #[test]
    fn a_prefix_of_nothing_is_everybody() {
        let mut table = table(|settings| {
            (settings.source_prefix_v4, settings.source_prefix_v6) = (0, 0);
            settings.connections_per_source = 1;
        });
        table.insert(id(0), peer("192.0.2.1"), 0);
        assert!(!table.has_room_for(peer("198.51.100.1")));
        table.insert(id(1), peer("2001:db8::1"), 0);
        assert!(!table.has_room_for(peer("::1")));
    }
}
