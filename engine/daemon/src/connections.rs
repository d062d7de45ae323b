//! The connections of a server: their peers, what each one waits for, and since when. Both server
//! processes use this table.
//!
//! Each connection is in the list for its kind of wait. All connections of a list have the same
//! timeout, so the first one expires next and no search is needed.
//!
//! When the table is full, [`ConnectionTable::evictable`] names the connection that a new one
//! replaces. So a client that fills the table with idle connections and incomplete requests does
//! not lock out others.

use crate::source_counts::SourceCounts;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::{Deref, DerefMut};

/// Time for which a connection with an incomplete request is not evicted, in milliseconds.
pub const READING_GRACE_MS: u64 = 1000;

/// Limits on the connections of a source, and timeouts of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// Maximum number of connections of one source.
    pub per_source_max: usize,
    /// Bits of an IPv4 address that make a source.
    pub source_prefix_v4: u32,
    /// Bits of an IPv6 address that make a source.
    pub source_prefix_v6: u32,
    /// Timeout for a request, or for an answer that another thread or process makes.
    pub idle_ms: u32,
    /// Timeout for the rest of a request.
    pub read_ms: u32,
    /// Timeout for the client to read answers.
    pub write_ms: u32,
    /// Timeout for the client to close its side.
    pub linger_ms: u32,
}

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionWait {
    /// The next request.
    Idle,
    /// The rest of a request.
    Reading,
    /// The client to read answers.
    Sending,
    /// An answer that another thread or process makes.
    Slow,
    /// The client to close its side; the server has closed its own.
    Closing,
    /// The client to read the last answers, and then to close its side.
    Ending,
}

impl ConnectionWait {
    /// All kinds of wait.
    pub const ALL: [Self; 6] =
        [Self::Idle, Self::Reading, Self::Sending, Self::Slow, Self::Closing, Self::Ending];

    /// Whether the connection is over, and only waits for the client to close it.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Closing | Self::Ending)
    }
}

/// One connection and the data that its server keeps for it.
#[derive(Debug)]
pub struct TableConnection<I, P> {
    id: I,
    /// Address of the peer; IPv4 in its mapped form.
    address: Ipv6Addr,
    /// The event that the connection waits for.
    pub wait: ConnectionWait,
    since_ms: u64,
    before: u32,
    after: u32,
    /// Whether the client has sent a byte.
    pub has_sent: bool,
    /// Bytes of answers that are kept until the client reads them.
    unread_len: usize,
    payload: P,
}

impl<I, P> Deref for TableConnection<I, P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.payload
    }
}

impl<I, P> DerefMut for TableConnection<I, P> {
    fn deref_mut(&mut self) -> &mut P {
        &mut self.payload
    }
}

/// Marks the absence of a slot.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct ConnectionList {
    first: u32,
    last: u32,
    count: usize,
    /// Time that a connection may be in this list.
    limit_ms: u64,
}

/// All connections, by ids that convert to small numbers. No two connections have the same number
/// at the same time.
#[derive(Debug)]
pub struct ConnectionTable<I, P> {
    slots: Vec<Option<TableConnection<I, P>>>,
    lists: [ConnectionList; ConnectionWait::ALL.len()],
    count: usize,
    sources: SourceCounts,
    /// Bytes of answers that are kept for clients, by source and in total.
    unread: SourceCounts,
    unread_len: usize,
    limits: TableLimits,
}

impl<I: Copy + PartialEq + Into<usize>, P> ConnectionTable<I, P> {
    /// An empty table.
    #[must_use]
    pub fn new(limits: TableLimits) -> Self {
        let mut table = Self {
            slots: Vec::new(),
            lists: [ConnectionList { first: NONE, last: NONE, count: 0, limit_ms: 0 };
                ConnectionWait::ALL.len()],
            count: 0,
            sources: SourceCounts::new(limits.source_prefix_v4, limits.source_prefix_v6),
            unread: SourceCounts::new(limits.source_prefix_v4, limits.source_prefix_v6),
            unread_len: 0,
            limits,
        };
        table.set(limits);
        table
    }

    /// Applies new limits, also to connections that are already in the table.
    pub fn set(&mut self, limits: TableLimits) {
        for wait in ConnectionWait::ALL {
            self.lists[wait as usize].limit_ms = match wait {
                ConnectionWait::Idle | ConnectionWait::Slow => limits.idle_ms,
                ConnectionWait::Reading => limits.read_ms,
                ConnectionWait::Sending | ConnectionWait::Ending => limits.write_ms,
                ConnectionWait::Closing => limits.linger_ms,
            }
            .into();
        }
        let prefixes = |limits: &TableLimits| (limits.source_prefix_v4, limits.source_prefix_v6);
        if prefixes(&limits) != prefixes(&self.limits) {
            self.sources = SourceCounts::new(limits.source_prefix_v4, limits.source_prefix_v6);
            self.unread = self.sources.clone();
            for connection in self.slots.iter().flatten() {
                self.sources.add(connection.address.into());
                self.unread.add_number(connection.address.into(), connection.unread_len);
            }
        }
        self.limits = limits;
    }

    /// Number of connections.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether the table is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of connections with this kind of wait.
    #[must_use]
    pub const fn count(&self, wait: ConnectionWait) -> usize {
        self.lists[wait as usize].count
    }

    /// The connection `id`, if it is in the table.
    #[must_use]
    pub fn get(&self, id: I) -> Option<&TableConnection<I, P>> {
        self.slots.get(id.into())?.as_ref().filter(|connection| connection.id == id)
    }

    /// The connection `id`, if it is in the table.
    pub fn get_mut(&mut self, id: I) -> Option<&mut TableConnection<I, P>> {
        self.slots.get_mut(id.into())?.as_mut().filter(|connection| connection.id == id)
    }

    /// The connection that has waited longest.
    #[must_use]
    pub fn first(&self, wait: ConnectionWait) -> Option<I> {
        let first = self.lists[wait as usize].first;
        self.slots.get(first as usize)?.as_ref().map(|connection| connection.id)
    }

    /// The connection that has waited longest, if its timeout has passed at `now_ms`.
    #[must_use]
    pub fn expired(&self, wait: ConnectionWait, now_ms: u64) -> Option<I> {
        let ConnectionList { first, limit_ms, .. } = self.lists[wait as usize];
        let connection = self.slots.get(first as usize)?.as_ref()?;
        (now_ms.saturating_sub(connection.since_ms) >= limit_ms).then_some(connection.id)
    }

    /// Time at which the first connection with this kind of wait times out.
    #[must_use]
    pub fn next_expiry_ms(&self, wait: ConnectionWait) -> Option<u64> {
        let ConnectionList { first, limit_ms, .. } = self.lists[wait as usize];
        let connection = self.slots.get(first as usize)?.as_ref()?;
        Some(connection.since_ms.saturating_add(limit_ms))
    }

    /// The connection to replace by a new one: one that only waits to be closed, else the longest
    /// idle one, else the one that has waited longest for the rest of its request, if that is more
    /// than [`READING_GRACE_MS`].
    #[must_use]
    pub fn evictable(&self, now_ms: u64) -> Option<I> {
        let reading = || {
            let first = self.get(self.first(ConnectionWait::Reading)?)?;
            (now_ms.saturating_sub(first.since_ms) >= READING_GRACE_MS).then_some(first.id)
        };
        self.first(ConnectionWait::Closing).or_else(|| self.first(ConnectionWait::Idle)).or_else(reading)
    }

    /// The connection that has waited longest of those that `chosen` accepts. Iterates over all
    /// that have waited longer.
    #[must_use]
    pub fn oldest(&self, wait: ConnectionWait, chosen: impl Fn(&P) -> bool) -> Option<I> {
        let mut at = self.lists[wait as usize].first;
        while let Some(Some(connection)) = self.slots.get(at as usize) {
            if chosen(&connection.payload) {
                return Some(connection.id);
            }
            at = connection.after;
        }
        None
    }

    /// Whether a connection has sent nothing yet and is younger than `ms`.
    #[must_use]
    pub fn is_new(&self, id: I, now_ms: u64, ms: u64) -> bool {
        self.get(id).is_some_and(|it| !it.has_sent && now_ms.saturating_sub(it.since_ms) < ms)
    }

    /// Whether the source of `peer` may have one more connection.
    #[must_use]
    pub fn has_capacity_for(&self, peer: SocketAddr) -> bool {
        self.sources.has_capacity(peer.ip(), self.limits.per_source_max)
    }

    /// Records how many bytes of answers are kept until the client of a connection reads them.
    #[inline]
    pub fn set_unread(&mut self, id: I, len: usize) {
        let Some(connection) = self.get_mut(id) else { return };
        // Most answers are accepted by the kernel at once.
        if connection.unread_len != len {
            let (address, before) = (connection.address.into(), connection.unread_len);
            connection.unread_len = len;
            self.unread.remove_number(address, before);
            self.unread.add_number(address, len);
            self.unread_len = self.unread_len - before + len;
        }
    }

    /// Bytes of answers that are kept for all connections.
    #[must_use]
    pub const fn unread_len(&self) -> usize {
        self.unread_len
    }

    /// Whether at most `most` bytes of answers are kept for the source of a connection, and no more
    /// for the networks around it than these may have.
    #[must_use]
    pub fn is_unread_within(&self, id: I, most: usize) -> bool {
        self.get(id).is_none_or(|connection| self.unread.has_capacity_for(connection.address.into(), 0, most))
    }

    /// Adds a connection, which waits for its first request.
    pub fn insert(&mut self, id: I, peer: SocketAddr, now_ms: u64, payload: P) {
        let slot = id.into();
        // A previous connection at this slot is closed, or its slot would not have been reused.
        if let Some(Some(old)) = self.slots.get(slot) {
            self.remove(old.id);
        }
        let address = match peer.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.sources.add(address.into());
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(TableConnection {
            id,
            address,
            wait: ConnectionWait::Idle,
            since_ms: now_ms,
            before: NONE,
            after: NONE,
            has_sent: false,
            unread_len: 0,
            payload,
        });
        self.count += 1;
        self.link(slot, ConnectionWait::Idle, now_ms);
    }

    /// Changes what a connection waits for, from `now_ms` on.
    pub fn wait_for(&mut self, id: I, wait: ConnectionWait, now_ms: u64) {
        if self.get(id).is_some() {
            self.unlink(id.into());
            self.link(id.into(), wait, now_ms);
        }
    }

    /// Removes a connection. Returns the data kept for it, if it was in the table.
    pub fn remove(&mut self, id: I) -> Option<P> {
        self.set_unread(id, 0);
        self.get(id)?;
        self.unlink(id.into());
        let connection = self.slots[id.into()].take()?;
        self.count -= 1;
        self.sources.remove(connection.address.into());
        Some(connection.payload)
    }

    fn link(&mut self, at: usize, wait: ConnectionWait, now_ms: u64) {
        let list = &mut self.lists[wait as usize];
        let Some(Some(connection)) = self.slots.get_mut(at) else { return };
        (connection.wait, connection.since_ms) = (wait, now_ms);
        (connection.before, connection.after) = (list.last, NONE);
        // Slots have 32 bits, as in the id.
        let slot = u32::try_from(at).unwrap_or(NONE);
        let last = std::mem::replace(&mut list.last, slot);
        list.count += 1;
        match self.slots.get_mut(last as usize) {
            Some(Some(last)) => last.after = slot,
            _ => list.first = slot,
        }
    }

    fn unlink(&mut self, at: usize) {
        let Some(Some(connection)) = self.slots.get(at) else { return };
        let (wait, before, after) = (connection.wait, connection.before, connection.after);
        let list = &mut self.lists[wait as usize];
        list.count -= 1;
        match self.slots.get_mut(before as usize) {
            Some(Some(connection)) => connection.after = after,
            _ => list.first = after,
        }
        match self.slots.get_mut(after as usize) {
            Some(Some(connection)) => connection.before = before,
            _ => list.last = before,
        }
    }

    /// The address of the peer.
    #[must_use]
    pub fn address_of(&self, id: I) -> IpAddr {
        self.get(id).map_or(Ipv6Addr::UNSPECIFIED, |connection| connection.address).to_canonical()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TableLimits = TableLimits {
        per_source_max: 1024,
        source_prefix_v4: 32,
        source_prefix_v6: 64,
        idle_ms: 100,
        read_ms: 30_000,
        write_ms: 30_000,
        linger_ms: 1000,
    };

    /// A slot and the generation of its use.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Id(usize, u32);

    impl From<Id> for usize {
        fn from(id: Id) -> Self {
            id.0
        }
    }

    fn table(limits: TableLimits) -> ConnectionTable<Id, ()> {
        ConnectionTable::new(limits)
    }

    fn insert(table: &mut ConnectionTable<Id, ()>, at: usize, ip: &str, now_ms: u64) {
        table.insert(id(at), peer(ip), now_ms, ());
    }

    fn peer(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), 9)
    }

    fn id(at: usize) -> Id {
        Id(at, 7)
    }

    #[test]
    fn who_waits_longest_comes_first() {
        let mut table = table(LIMITS);
        for at in 0..5 {
            insert(&mut table, at, "192.0.2.1", at as u64);
        }
        table.wait_for(id(0), ConnectionWait::Reading, 10);
        table.wait_for(id(2), ConnectionWait::Idle, 20);
        table.remove(id(1));
        table.remove(Id(3, 8));
        let mut order = Vec::new();
        while let Some(id) = table.first(ConnectionWait::Idle) {
            order.push(id.0);
            table.remove(id);
        }
        assert_eq!(order, [3, 4, 2]);
        assert_eq!(
            (table.len(), table.count(ConnectionWait::Reading), table.count(ConnectionWait::Idle)),
            (1, 1, 0)
        );
        assert_eq!(table.first(ConnectionWait::Reading), Some(id(0)));
    }

    #[test]
    fn time_is_up_at_the_limit_and_not_before() {
        let mut table = table(LIMITS);
        insert(&mut table, 0, "192.0.2.1", 50);
        assert_eq!(table.expired(ConnectionWait::Idle, 149), None);
        assert_eq!(table.expired(ConnectionWait::Idle, 150), Some(id(0)));
        table.wait_for(id(0), ConnectionWait::Idle, 60);
        assert_eq!(table.expired(ConnectionWait::Idle, 159), None);
    }

    #[test]
    fn sources_are_counted_by_prefix() {
        let mut table = table(TableLimits { per_source_max: 2, ..LIMITS });
        insert(&mut table, 0, "192.0.2.1", 0);
        insert(&mut table, 1, "192.0.2.1", 0);
        assert!(!table.has_capacity_for(peer("192.0.2.1")));
        assert!(table.has_capacity_for(peer("192.0.2.2")), "IPv4 addresses count alone");
        insert(&mut table, 2, "2001:db8::1", 0);
        insert(&mut table, 3, "2001:db8::ffff:1", 0);
        assert!(!table.has_capacity_for(peer("2001:db8::2")), "one network");
        assert!(table.has_capacity_for(peer("2001:db8:0:1::1")), "another");
        table.remove(id(3));
        assert!(table.has_capacity_for(peer("2001:db8::2")));
        table.remove(id(2));
        for at in 0..2 {
            table.remove(id(at));
        }
        assert!(table.sources.is_empty(), "what is not needed is not kept");
    }

    #[test]
    fn other_settings_hold_for_who_is_there() {
        let mut table = table(LIMITS);
        for (at, ip) in (0..).zip(["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8:0:1::1"]) {
            insert(&mut table, at, ip, 0);
        }
        let change = |v4, v6| TableLimits {
            idle_ms: 50,
            per_source_max: 2,
            source_prefix_v4: v4,
            source_prefix_v6: v6,
            ..LIMITS
        };
        table.set(change(32, 64));
        assert_eq!(
            (table.expired(ConnectionWait::Idle, 49), table.expired(ConnectionWait::Idle, 50)),
            (None, Some(id(0)))
        );
        assert!(table.has_capacity_for(peer("192.0.2.1")) && table.has_capacity_for(peer("2001:db8::1")));
        table.set(change(24, 48));
        assert!(
            !table.has_capacity_for(peer("192.0.2.9")) && !table.has_capacity_for(peer("2001:db8:0:9::1"))
        );
        assert!(table.has_capacity_for(peer("192.0.3.1")) && table.has_capacity_for(peer("2001:db8:1::1")));
        for at in 0..4 {
            table.remove(id(at));
        }
        assert!(table.sources.is_empty(), "counted out as they were counted in");
    }

    #[test]
    fn unread_answers_count_for_their_source() {
        let mut table = table(LIMITS);
        for (at, ip) in (0..).zip(["192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8:0:1::1"]) {
            insert(&mut table, at, ip, 0);
            table.set_unread(id(at), 100);
        }
        table.set_unread(Id(0, 8), 1000);
        assert_eq!(table.unread_len(), 500);
        assert!(table.is_unread_within(id(0), 200) && !table.is_unread_within(id(1), 199));
        assert!(table.is_unread_within(id(2), 100) && !table.is_unread_within(id(2), 99));
        assert!(table.is_unread_within(id(3), 100), "a /56 may have twice as much");
        table.set_unread(id(0), 30);
        assert!(table.is_unread_within(id(1), 130) && !table.is_unread_within(id(1), 129));
        table.set(TableLimits { source_prefix_v4: 24, ..LIMITS });
        assert!(table.is_unread_within(id(2), 230) && !table.is_unread_within(id(2), 229));
        table.remove(id(1));
        assert!(table.is_unread_within(id(2), 130) && table.is_unread_within(id(1), 0));
        for at in 0..5 {
            table.remove(id(at));
        }
        assert!(table.unread.is_empty() && table.unread_len() == 0);
    }

    #[test]
    fn a_prefix_of_nothing_is_everybody() {
        let none = TableLimits { per_source_max: 1, source_prefix_v4: 0, source_prefix_v6: 0, ..LIMITS };
        let mut table = table(none);
        insert(&mut table, 0, "192.0.2.1", 0);
        assert!(!table.has_capacity_for(peer("198.51.100.1")));
        insert(&mut table, 1, "2001:db8::1", 0);
        assert!(!table.has_capacity_for(peer("::1")));
    }

    #[test]
    fn the_slot_of_who_does_least_with_it_is_freed() {
        let mut table = table(LIMITS);
        for at in 0..4 {
            insert(&mut table, at, "192.0.2.1", at as u64);
        }
        let waits =
            [ConnectionWait::Reading, ConnectionWait::Idle, ConnectionWait::Slow, ConnectionWait::Closing];
        for (at, wait) in waits.into_iter().enumerate() {
            table.wait_for(id(at), wait, 10);
        }
        for expected in [3, 1] {
            assert_eq!(table.evictable(10), Some(id(expected)));
            table.remove(id(expected));
        }
        assert_eq!(table.evictable(9 + READING_GRACE_MS), None, "a request may be on its way");
        assert_eq!(table.evictable(10 + READING_GRACE_MS), Some(id(0)));
        table.remove(id(0));
        assert_eq!(table.evictable(u64::MAX), None, "whose answer is being made stays");
    }

    #[test]
    fn the_oldest_of_some_is_found() {
        let mut table = ConnectionTable::new(LIMITS);
        for (at, len) in [0, 5, 0, 7].into_iter().enumerate() {
            table.insert(id(at), peer("192.0.2.1"), 0, len);
        }
        assert_eq!(table.oldest(ConnectionWait::Idle, |&len| len > 0), Some(id(1)));
        assert_eq!(table.oldest(ConnectionWait::Idle, |&len| len > 7), None);
        assert_eq!(table.oldest(ConnectionWait::Reading, |_| true), None);
    }
}
