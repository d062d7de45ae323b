//! The sessions of a server: bounded in number, by source and in time. Time and random numbers are
//! arguments.
//!
//! The table is cut into shards. A shard is an immutable map; a change replaces it with a changed
//! copy. A lookup loads the current map without a lock. A set-up copies a few hundred pointers,
//! which is cheap compared with its key exchange.
//!
//! A session is *unproven* until a message with a valid MAC of that session arrives. Until then,
//! the client may have spoofed its address. Unproven sessions live for a minute at most and make
//! capacity for newer ones, first those of the same source. An unproven session never displaces a
//! proven one. When there are too many proven sessions, a newly proven one displaces the one that
//! has been idle the longest.

use crate::facts::{NewSession, SessionRefusal};
use crate::session::Session;
use crate::traffic::LiveSession as _;
use arc_swap::ArcSwap;
use handle_auth::source::{self, RequestOrigin, SourceList};
use handle_daemon::threads::lock;
use rustc_hash::FxHashMap;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Random numbers that a set-up tries before it fails.
const TRIES: usize = 8;
/// Average number of sessions in a shard when the table is full.
const SHARD_SESSIONS: usize = 256;
/// Maximum number of shards.
const SHARDS_MAX: usize = 1024;

/// Bounds of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Maximum number of sessions.
    pub sessions_max: usize,
    /// Maximum number of proven sessions of one source: an IPv4 address, or a /64 of IPv6. One more
    /// displaces the session of that source that has been idle the longest.
    pub per_source_max: usize,
    /// Maximum number of unproven sessions of one source. One more displaces the oldest of them.
    pub unproven_per_source_max: usize,
    /// Maximum number of these that were set up over UDP. Beyond this limit, or when such sessions
    /// fill a quarter of the table, clients are asked to use TCP. `None` where clients cannot use
    /// TCP.
    pub datagrams_per_source_max: Option<usize>,
    /// Lifetime of an unproven session, in seconds.
    pub unproven_s: u32,
    /// Sources that are exempt from the limits per source.
    pub exempt: SourceList,
}

/// Counts of session events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Sessions set up.
    pub opened: u64,
    /// Sessions ended by their client.
    pub ended: u64,
    /// Sessions removed because their time was over.
    pub expired: u64,
    /// Sessions removed early to make room for newer ones.
    pub displaced: u64,
    /// Set-ups refused because the table was full.
    pub refused_full: u64,
    /// Set-ups refused because the client was asked to use TCP.
    pub sent_to_tcp: u64,
    /// Sessions set up at another process, in which a message has arrived here.
    pub adopted: u64,
}

impl SessionCounts {
    /// Each count with its name, but those about sessions that processes share.
    #[must_use]
    pub const fn by_name(&self) -> [(&'static str, u64); 6] {
        [
            ("opened", self.opened),
            ("ended", self.ended),
            ("expired", self.expired),
            ("displaced", self.displaced),
            ("refused_full", self.refused_full),
            ("sent_to_tcp", self.sent_to_tcp),
        ]
    }
}

/// The map of a shard: replaced, never modified.
type SessionMap = FxHashMap<i32, Arc<Session>>;

#[derive(Debug, Default)]
struct SessionShard {
    map: ArcSwap<SessionMap>,
    /// Held while the next map is made.
    writing: Mutex<()>,
}

impl SessionShard {
    /// Replaces the map by a copy to which `change` has been applied.
    fn change<T>(&self, change: impl FnOnce(&mut SessionMap) -> T) -> T {
        let _writing = lock(&self.writing);
        let mut map = SessionMap::clone(&self.map.load());
        let result = change(&mut map);
        self.map.store(Arc::new(map));
        result
    }
}

/// The session table of a server.
#[derive(Debug)]
pub struct SessionTable {
    limits: SessionLimits,
    shards: Box<[SessionShard]>,
    count: AtomicUsize,
    /// Held while a session is set up. Lock order: this lock before the lock of any shard.
    index: Mutex<SessionIndex>,
    opened: AtomicU64,
    ended: AtomicU64,
    expired: AtomicU64,
    displaced: AtomicU64,
    refused_full: AtomicU64,
    sent_to_tcp: AtomicU64,
    adopted: AtomicU64,
    /// The sessions with a row that were displaced, until they are taken to remove the rows.
    displaced_rows: Mutex<Vec<i32>>,
}

/// Sessions in the order of their set-up, and by source. Workers prove and end sessions without
/// updating this index, so an entry may refer to a session that has ended or become proven. This is
/// checked when the entry is used.
#[derive(Debug, Default)]
struct SessionIndex {
    unproven: VecDeque<Weak<Session>>,
    /// Number of `unproven` sessions that were set up over UDP.
    datagrams_count: usize,
    /// When stale entries were last dropped to correct `datagrams_count`.
    sorted_s: Option<u32>,
    of_source: HashMap<IpAddr, SourceSessions>,
}

/// The sessions of one source, oldest first.
#[derive(Debug, Default)]
struct SourceSessions {
    unproven: VecDeque<Weak<Session>>,
    proven: Vec<Weak<Session>>,
    /// Length of `unproven` at which stale entries are dropped next.
    sort_at: usize,
}

impl SessionIndex {
    /// Drops the entries of sessions that have ended or become proven.
    fn sort_out(&mut self) {
        self.unproven.retain(|entry| unproven(entry).is_some());
        let datagrams = self.unproven.iter().filter_map(unproven).filter(|session| !session.is_connected());
        self.datagrams_count = datagrams.count();
    }

    /// Removes the oldest unproven session from the index and returns it.
    fn pop_oldest(&mut self) -> Option<Arc<Session>> {
        while let Some(entry) = self.unproven.pop_front() {
            self.datagrams_count = self.datagrams_count.min(self.unproven.len());
            if let Some(session) = unproven(&entry) {
                return Some(session);
            }
        }
        None
    }
}

impl SourceSessions {
    /// Moves the entries of sessions that have become proven to `proven`, and drops the entries of
    /// sessions that have ended.
    fn sort_out(&mut self) {
        let Self { unproven, proven, sort_at } = self;
        unproven.retain(|entry| match entry.upgrade() {
            Some(session) if session.is_proven() => {
                proven.push(Arc::downgrade(&session));
                false
            }
            session => session.is_some(),
        });
        *sort_at = 2 * unproven.len() + 64;
    }
}

/// The session of an entry, if it still exists and is unproven.
fn unproven(entry: &Weak<Session>) -> Option<Arc<Session>> {
    entry.upgrade().filter(|session| !session.is_proven())
}

impl SessionTable {
    /// An empty table.
    #[must_use]
    pub fn new(limits: SessionLimits) -> Self {
        let shards_count = limits.sessions_max.div_ceil(SHARD_SESSIONS).clamp(1, SHARDS_MAX);
        Self {
            limits,
            shards: (0..shards_count).map(|_| SessionShard::default()).collect(),
            count: AtomicUsize::new(0),
            index: Mutex::default(),
            opened: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            refused_full: AtomicU64::new(0),
            sent_to_tcp: AtomicU64::new(0),
            adopted: AtomicU64::new(0),
            displaced_rows: Mutex::default(),
        }
    }

    /// Finds the session `id`. `None` when it does not exist or its time is over. Takes no lock and
    /// does not allocate.
    #[must_use]
    pub fn find(&self, id: i32, now_s: u32) -> Option<Arc<Session>> {
        let map = self.shard(id)?.map.load();
        map.get(&id).filter(|session| !session.is_over(now_s)).cloned()
    }

    fn shard(&self, id: i32) -> Option<&SessionShard> {
        let id = usize::try_from(id).ok()?;
        self.shards.get(id % self.shards.len())
    }

    /// Checks whether a client at `origin` may set up a session. Call this before the key exchange,
    /// which is expensive; [`open`](Self::open) checks again.
    ///
    /// # Errors
    /// [`SessionRefusal::OverTcp`] when the client has to use TCP.
    pub fn admit(&self, origin: RequestOrigin, now_s: u32) -> Result<(), SessionRefusal> {
        match self.wants_tcp(&mut lock(&self.index), origin, now_s) {
            true => {
                self.sent_to_tcp.fetch_add(1, Ordering::Relaxed);
                Err(SessionRefusal::OverTcp)
            }
            false => Ok(()),
        }
    }

    /// Whether too many unproven sessions were set up over UDP, by this source or in total.
    fn wants_tcp(&self, index: &mut SessionIndex, origin: RequestOrigin, now_s: u32) -> bool {
        let limits = &self.limits;
        let Some(per_source_max) = limits.datagrams_per_source_max.filter(|_| !origin.is_connected) else {
            return false;
        };
        let all_max = limits.sessions_max.div_ceil(4);
        if index.datagrams_count >= all_max && index.sorted_s != Some(now_s) {
            index.sorted_s = Some(now_s);
            index.sort_out();
        }
        if limits.exempt.contains(origin.ip) {
            return false;
        }
        let of_source = index.of_source.get(&source::of(origin.ip)).map_or(0, |of_source| {
            let unproven = of_source.unproven.iter().filter_map(unproven);
            unproven.filter(|session| !session.is_connected() && !session.is_over(now_s)).count()
        });
        index.datagrams_count >= all_max || of_source >= per_source_max
    }

    /// Adds a new session. Its number is the first of `numbers`, made positive, that is in use
    /// neither by another session nor, according to `is_taken`, by a challenge.
    ///
    /// # Errors
    /// When the table is full, no number is free, or the client has to use TCP.
    pub fn open(
        &self,
        new: NewSession,
        mut numbers: impl FnMut() -> u32,
        is_taken: impl Fn(i32) -> bool,
        now_s: u32,
    ) -> Result<Arc<Session>, SessionRefusal> {
        let origin = RequestOrigin { ip: source::of(new.origin.ip), ..new.origin };
        let is_exempt = self.limits.exempt.contains(new.origin.ip);
        let is_free = |id: &i32| {
            let shard = self.shard(*id).filter(|_| *id > 0);
            shard.is_some_and(|shard| !shard.map.load().contains_key(id)) && !is_taken(*id)
        };
        let mut index = lock(&self.index);
        if self.wants_tcp(&mut index, new.origin, now_s) {
            self.sent_to_tcp.fetch_add(1, Ordering::Relaxed);
            return Err(SessionRefusal::OverTcp);
        }
        let id = (0..TRIES).map(|_| (numbers() & 0x7fff_ffff).cast_signed()).find(is_free);
        let (id, shard) = id.and_then(|id| Some((id, self.shard(id)?))).ok_or(SessionRefusal::NoNumber)?;
        if !is_exempt {
            self.evict_of_source(&mut index, origin.ip, self.limits.per_source_max, now_s);
        }
        if !self.evict_for(&mut index, origin.ip, shard, now_s) {
            self.refused_full.fetch_add(1, Ordering::Relaxed);
            return Err(SessionRefusal::Full);
        }
        let session = Arc::new(Session::new(id, NewSession { origin, ..new }, self.limits.unproven_s, now_s));
        shard.change(|map| map.insert(id, Arc::clone(&session)));
        self.count.fetch_add(1, Ordering::Relaxed);
        self.opened.fetch_add(1, Ordering::Relaxed);
        if index.unproven.len() > 2 * self.len() + 64 {
            index.sort_out();
        }
        index.unproven.push_back(Arc::downgrade(&session));
        index.datagrams_count += usize::from(!origin.is_connected);
        if !is_exempt {
            let of_source = index.of_source.entry(origin.ip).or_default();
            of_source.unproven.push_back(Arc::downgrade(&session));
        }
        Ok(session)
    }

    /// Makes room within the limits of `source`: displaces its oldest unproven session when their
    /// limit is reached, and its longest idle proven sessions when there are more than
    /// `proven_max`.
    fn evict_of_source(&self, index: &mut SessionIndex, source: IpAddr, proven_max: usize, now_s: u32) {
        let Some(of_source) = index.of_source.get_mut(&source) else { return };
        // Stale entries are dropped rarely, so that the cost per session is small, and always
        // before a session is displaced.
        if of_source.unproven.len() >= self.limits.unproven_per_source_max.min(of_source.sort_at) {
            of_source.sort_out();
        }
        while of_source.unproven.len() >= self.limits.unproven_per_source_max {
            let Some(oldest) = of_source.unproven.pop_front() else { break };
            oldest.upgrade().into_iter().for_each(|session| self.displace(&session, now_s));
        }
        if of_source.proven.len() > proven_max {
            of_source.proven.retain(|entry| entry.strong_count() > 0);
        }
        while of_source.proven.len() > proven_max {
            let used_s = |at: &usize| of_source.proven[*at].upgrade().map_or(0, |session| session.used_s());
            let Some(at) = (0..of_source.proven.len()).min_by_key(used_s) else { break };
            let idle = of_source.proven.swap_remove(at);
            idle.upgrade().into_iter().for_each(|session| self.displace(&session, now_s));
        }
    }

    /// Makes room for one more session of `source`. Returns false when no session may be displaced.
    ///
    /// When at least an eighth of a full table is unproven sessions, the oldest of them is
    /// displaced. Otherwise it is the longest idle of the proven sessions without an authenticated
    /// identity. A session with an authenticated identity is displaced only by a session of the
    /// same source.
    fn evict_for(&self, index: &mut SessionIndex, source: IpAddr, shard: &SessionShard, now_s: u32) -> bool {
        while self.len() >= self.limits.sessions_max {
            let few = (self.limits.sessions_max / 8).max(1);
            let map = shard.map.load();
            let mut gone = map.values().find(|session| session.is_over(now_s)).cloned();
            if index.unproven.len() >= few {
                gone = gone.or_else(|| index.pop_oldest());
            }
            let others = || self.shards.iter().find_map(|shard| longest_idle(&shard.map.load(), now_s));
            gone = gone.or_else(|| longest_idle(&map, now_s)).or_else(others);
            gone = gone.or_else(|| index.pop_oldest());
            gone = gone.or_else(|| {
                let of_source = index.of_source.get(&source)?;
                of_source.proven.iter().filter_map(Weak::upgrade).min_by_key(|session| session.used_s())
            });
            let Some(gone) = gone else { return false };
            self.displace(&gone, now_s);
        }
        true
    }

    /// Removes a session from the table before its time is over.
    fn displace(&self, session: &Arc<Session>, now_s: u32) {
        let id = session.keys().id;
        let Some(shard) = self.shard(id) else { return };
        let is_it = |map: &SessionMap| map.get(&id).is_some_and(|there| Arc::ptr_eq(there, session));
        if is_it(&shard.map.load()) && shard.change(|map| is_it(map) && map.remove(&id).is_some()) {
            let counter = if session.is_over(now_s) { &self.expired } else { &self.displaced };
            counter.fetch_add(1, Ordering::Relaxed);
            self.count.fetch_sub(1, Ordering::Relaxed);
            // A row whose time is over here may have been used elsewhere since.
            if session.row().is_some() && !session.is_over(now_s) {
                lock(&self.displaced_rows).push(id);
            }
        }
    }

    /// Takes the numbers of the sessions with a row that have been displaced.
    pub(crate) fn take_displaced(&self) -> Vec<i32> {
        std::mem::take(&mut *lock(&self.displaced_rows))
    }

    /// A session that was set up elsewhere, which is not in the table.
    pub(crate) fn session(&self, id: i32, new: NewSession, now_s: u32) -> Session {
        Session::new(id, new, self.limits.unproven_s, now_s)
    }

    /// Adds a proven session that was set up elsewhere, unless there is one with its number.
    /// Returns false when there is no capacity for it.
    pub(crate) fn adopt(&self, session: &Arc<Session>, now_s: u32) -> bool {
        let (id, source) = (session.keys().id, session.source());
        let Some(shard) = self.shard(id) else { return false };
        if self.find(id, now_s).is_some() {
            return true;
        }
        let mut index = lock(&self.index);
        // The table may have it from before it was used elsewhere.
        let over = shard.change(|map| map.extract_if(|_, old| old.is_over(now_s)).count());
        self.expired.fetch_add(over as u64, Ordering::Relaxed);
        self.count.fetch_sub(over, Ordering::Relaxed);
        if self.find(id, now_s).is_some() {
            return true;
        }
        let is_exempt = self.limits.exempt.contains(source);
        if !is_exempt {
            self.evict_of_source(&mut index, source, self.limits.per_source_max - 1, now_s);
        }
        if !self.evict_for(&mut index, source, shard, now_s) {
            return false;
        }
        shard.change(|map| map.insert(id, Arc::clone(session)));
        self.count.fetch_add(1, Ordering::Relaxed);
        self.adopted.fetch_add(1, Ordering::Relaxed);
        if !is_exempt {
            index.of_source.entry(source).or_default().proven.push(Arc::downgrade(session));
        }
        true
    }

    /// Removes a session that has ended elsewhere, if it is in the table.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        let id = session.keys().id;
        let Some(shard) = self.shard(id) else { return };
        let is_it = |map: &SessionMap| map.get(&id).is_some_and(|there| Arc::ptr_eq(there, session));
        if is_it(&shard.map.load()) && shard.change(|map| is_it(map) && map.remove(&id).is_some()) {
            self.ended.fetch_add(1, Ordering::Relaxed);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends a session. Returns whether it existed.
    pub fn end(&self, id: i32) -> bool {
        let Some(shard) = self.shard(id) else { return false };
        if shard.change(|map| map.remove(&id)).is_none() {
            return false;
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Removes the sessions whose time is over.
    pub fn expire(&self, now_s: u32) {
        for shard in &self.shards {
            if !shard.map.load().values().any(|session| session.is_over(now_s)) {
                continue;
            }
            let over = shard.change(|map| map.extract_if(|_, session| session.is_over(now_s)).count());
            self.expired.fetch_add(over as u64, Ordering::Relaxed);
            self.count.fetch_sub(over, Ordering::Relaxed);
        }
        let mut index = lock(&self.index);
        index.sort_out();
        index.of_source.retain(|_, of_source| {
            of_source.sort_out();
            of_source.proven.retain(|entry| entry.strong_count() > 0);
            !of_source.unproven.is_empty() || !of_source.proven.is_empty()
        });
    }

    /// Number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counts of session events so far.
    #[must_use]
    pub fn counts(&self) -> SessionCounts {
        let [opened, ended, expired, displaced, refused_full, sent_to_tcp, adopted] = [
            &self.opened,
            &self.ended,
            &self.expired,
            &self.displaced,
            &self.refused_full,
            &self.sent_to_tcp,
            &self.adopted,
        ]
        .map(|count| count.load(Ordering::Relaxed));
        SessionCounts { opened, ended, expired, displaced, refused_full, sent_to_tcp, adopted }
    }
}

/// The session that may be displaced by another proven one: one whose time is over, or else the
/// longest idle proven session without an authenticated identity.
fn longest_idle(map: &SessionMap, now_s: u32) -> Option<Arc<Session>> {
    let may_go = |session: &&Arc<Session>| {
        session.is_over(now_s) || session.is_proven() && session.proven_identity().is_none()
    };
    let idle = |session: &&Arc<Session>| (!session.is_over(now_s), session.used_s());
    map.values().filter(may_go).min_by_key(idle).cloned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::facts::IdentityClaim;
    use handle_auth::session::SessionKey;
    use handle_proto::Version;
    use handle_proto::code::Cipher;
    use handle_proto::wire::list::Reference;

    const WHO: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };

    pub(crate) fn limits() -> SessionLimits {
        SessionLimits {
            sessions_max: 4,
            per_source_max: 3,
            unproven_per_source_max: 3,
            datagrams_per_source_max: None,
            unproven_s: 60,
            exempt: SourceList::default(),
        }
    }

    pub(crate) fn new_session() -> NewSession {
        NewSession {
            key: SessionKey::new(Cipher::AES, vec![7; 32]).unwrap(),
            version: Version::CURRENT,
            claim: None,
            timeout_s: 60,
            origin: RequestOrigin::connection([192, 0, 2, 1].into()),
        }
    }

    fn of(n: u8) -> NewSession {
        NewSession {
            origin: RequestOrigin::connection([192, 0, 2, n].into()),
            claim: Some(IdentityClaim::of(WHO)),
            ..new_session()
        }
    }

    /// Opens a session under `number`.
    fn open(table: &SessionTable, new: NewSession, number: u32, now_s: u32) -> Result<i32, SessionRefusal> {
        table.open(new, || number, |_| false, now_s).map(|session| session.keys().id)
    }

    #[test]
    fn a_session_is_found_until_it_ends_or_expires() {
        let table = SessionTable::new(limits());
        assert_eq!(open(&table, of(1), 7, 0), Ok(7));
        assert_eq!(open(&table, of(1), 0x8000_0009, 0), Ok(9), "made positive");
        assert!(table.find(7, 60).is_some() && table.find(7, 61).is_none());
        assert!(table.find(8, 0).is_none() && table.find(-7, 0).is_none() && table.find(0, 0).is_none());
        assert!(table.end(9) && !table.end(9) && !table.end(-9));
        table.expire(60);
        assert_eq!(table.len(), 1, "nothing is over yet");
        table.expire(61);
        let index = lock(&table.index);
        assert!(table.is_empty() && index.of_source.is_empty() && index.unproven.is_empty());
        let counts = SessionCounts { opened: 2, ended: 1, expired: 1, ..SessionCounts::default() };
        assert_eq!(table.counts(), counts);
    }

    #[test]
    fn numbers_are_positive_and_free() {
        let table = SessionTable::new(limits());
        assert_eq!(open(&table, of(1), 0, 0), Err(SessionRefusal::NoNumber));
        assert_eq!(open(&table, of(1), 5, 0), Ok(5));
        assert_eq!(open(&table, of(1), 5, 0), Err(SessionRefusal::NoNumber));
        let mut numbers = [5, 6, 8].into_iter();
        let session = table.open(of(1), || numbers.next().unwrap(), |id| id == 6, 0);
        assert_eq!(session.unwrap().keys().id, 8, "6 is that of a challenge");
        assert_eq!(table.len(), 2);
    }

    /// Accepts a message in the session `id`, which makes it proven.
    fn prove(table: &SessionTable, id: i32, now_s: u32) {
        assert!(table.find(id, now_s).unwrap().accept(1, now_s).is_ok(), "{id}");
    }

    fn found(table: &SessionTable, ids: impl IntoIterator<Item = i32>, now_s: u32) -> Vec<i32> {
        ids.into_iter().filter(|&id| table.find(id, now_s).is_some()).collect()
    }

    #[test]
    fn a_source_loses_its_own_oldest_unproven_session_and_no_other_does() {
        let table = SessionTable::new(SessionLimits { sessions_max: 100, ..limits() });
        for number in 1..=3 {
            open(&table, of(1), number, 0).unwrap();
        }
        prove(&table, 1, 0);
        open(&table, of(2), 9, 0).unwrap();
        for number in 4..=6 {
            open(&table, of(1), number, 0).unwrap();
        }
        assert_eq!(found(&table, 1..=9, 0), [1, 4, 5, 6, 9], "the proven one stays");
        assert_eq!((table.len(), table.counts().displaced), (5, 2));
    }

    #[test]
    fn proven_sessions_of_a_source_displace_the_one_that_is_idle_for_longest() {
        let table = SessionTable::new(SessionLimits { sessions_max: 100, ..limits() });
        for number in 1..=20_u8 {
            let now_s = u32::from(number);
            let id = open(&table, of(1), now_s, now_s).unwrap();
            prove(&table, id, now_s);
            assert!(
                table.find(1, now_s).unwrap().accept(i32::from(number) + 1, now_s).is_ok(),
                "in use all day"
            );
        }
        open(&table, of(1), 21, 20).unwrap();
        // Sessions that became proven after the last clean-up do not count against the limit yet.
        assert_eq!(found(&table, 1..=21, 20), [1, 18, 19, 20, 21]);
        assert_eq!(table.counts().displaced, 16);
    }

    #[test]
    fn nothing_unproven_takes_the_place_of_a_proven_session() {
        let table = SessionTable::new(SessionLimits { sessions_max: 16, per_source_max: 8, ..limits() });
        for number in 1..=12 {
            open(&table, of(u8::try_from(number).unwrap()), number, 0).unwrap();
            prove(&table, i32::try_from(number).unwrap(), 0);
        }
        for number in 13..1000 {
            open(&table, of(u8::try_from(number % 200).unwrap()), number, 0).unwrap();
        }
        assert_eq!(found(&table, 1..=12, 0).len(), 12);
        assert_eq!(found(&table, 996..=999, 0).len(), 4, "the newest");
        assert_eq!(table.len(), 16);
    }

    #[test]
    fn where_all_are_proven_the_longest_idle_goes_and_proven_identities_stay() {
        let table = SessionTable::new(limits());
        for number in 1..=4_u8 {
            open(&table, of(number), number.into(), number.into()).unwrap();
            prove(&table, number.into(), number.into());
        }
        let authenticate = |id| assert!(table.find(id, 4).unwrap().authenticate(WHO, 301, 1), "{id}");
        authenticate(1);
        assert!(table.find(2, 4).unwrap().accept(2, 50).is_ok(), "and this one is in use");
        assert_eq!(open(&table, of(5), 5, 50), Ok(5));
        assert!(table.find(3, 4).is_none(), "the longest idle");
        assert_eq!((table.len(), table.counts().displaced), (4, 1));
        for id in [2, 4, 5] {
            authenticate(id);
        }
        assert_eq!(open(&table, of(6), 6, 50), Err(SessionRefusal::Full));
        assert_eq!((table.len(), table.counts().refused_full), (4, 1));
        assert_eq!(open(&table, of(4), 7, 50), Ok(7), "for one of the same source");
        assert!(table.find(4, 50).is_none());
        assert_eq!(open(&table, of(6), 6, 70), Ok(6), "the time of some is over");
        assert_eq!((table.len(), table.counts().expired), (4, 1));
    }

    #[test]
    fn clients_are_sent_to_tcp_where_many_datagrams_set_up_what_nobody_uses() {
        let limits = SessionLimits { sessions_max: 16, datagrams_per_source_max: Some(2), ..limits() };
        let table = SessionTable::new(limits);
        let datagram = |n| NewSession { origin: RequestOrigin::datagram([192, 0, 2, n].into()), ..of(n) };
        for number in 1..=2 {
            open(&table, datagram(1), number, 0).unwrap();
        }
        assert_eq!(open(&table, datagram(1), 3, 0), Err(SessionRefusal::OverTcp));
        assert_eq!(table.admit(datagram(1).origin, 0), Err(SessionRefusal::OverTcp));
        assert_eq!(table.admit(of(1).origin, 0), Ok(()));
        prove(&table, 1, 0);
        assert_eq!(open(&table, datagram(1), 3, 0), Ok(3), "what is used does not count");
        for number in 4..=5 {
            open(&table, datagram(2), number, 0).unwrap();
        }
        assert_eq!(
            table.admit(datagram(3).origin, 0),
            Err(SessionRefusal::OverTcp),
            "a quarter of the table"
        );
        assert_eq!(open(&table, of(3), 6, 0), Ok(6));
        prove(&table, 2, 1);
        assert_eq!(table.admit(datagram(3).origin, 1), Ok(()), "some of which is used by now");
        assert_eq!(table.admit(datagram(1).origin, 61), Ok(()), "after a minute");
        assert_eq!(table.counts().sent_to_tcp, 3);
    }

    #[test]
    fn listed_sources_have_no_limits_of_their_own() {
        let exempt = SourceList::parse(&["192.0.2.1".to_owned()]).unwrap();
        let limits =
            SessionLimits { sessions_max: 100, datagrams_per_source_max: Some(0), exempt, ..limits() };
        let table = SessionTable::new(limits);
        for number in 1..=20 {
            let new = NewSession { origin: RequestOrigin::datagram([192, 0, 2, 1].into()), ..of(1) };
            open(&table, new, number, 0).unwrap();
        }
        assert_eq!((table.len(), table.counts().displaced), (20, 0));
    }

    #[test]
    fn threads_share_it_and_it_never_has_more_than_it_may() {
        let table = SessionTable::new(SessionLimits {
            sessions_max: 500,
            unproven_per_source_max: 10_000,
            ..limits()
        });
        let numbers = std::sync::atomic::AtomicU32::new(1);
        std::thread::scope(|scope| {
            for n in 0..4_u8 {
                let (table, numbers) = (&table, &numbers);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let number = numbers.fetch_add(1, Ordering::Relaxed);
                        let opened = open(table, of(n), number, 0).unwrap();
                        assert!(table.len() <= 500);
                        if number % 3 == 0 {
                            table.end(opened);
                        }
                    }
                });
            }
        });
        let there: usize = table.shards.iter().map(|shard| shard.map.load().len()).sum();
        let counts = table.counts();
        assert_eq!(there, table.len());
        assert_eq!(counts.opened, counts.ended + counts.displaced + there as u64);
        table.expire(0);
        let entries: usize = lock(&table.index).of_source.values().map(|it| it.unproven.len()).sum();
        assert_eq!(entries, there);
    }

    /// Resident memory of this process, in bytes.
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
        pages * rustix::param::page_size()
    }

    #[test]
    fn a_hundred_thousand_sessions_take_less_than_a_kilobyte_each() {
        let count = 100_000_u32;
        let all = count as usize;
        let table =
            SessionTable::new(SessionLimits { sessions_max: all, unproven_per_source_max: all, ..limits() });
        let before = resident();
        // Numbers spread over the whole range, like random ones.
        for n in 1..=count {
            open(&table, of(1), n.wrapping_mul(0x9e37_79b1), 0).ok();
        }
        let len = table.len();
        assert!(len > 99_000, "{len}: hardly any number came twice");
        let each = resident().saturating_sub(before) / len;
        assert!(each < 1024, "{each} bytes each");
        for n in count + 1..count + 1000 {
            open(&table, of(1), n.wrapping_mul(0x9e37_79b1), 1).ok();
        }
        assert!(table.len() <= count as usize);
    }
}
