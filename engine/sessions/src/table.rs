//! The sessions of a server: bounded in number, by source and in time. Time and random numbers are arguments.
//!
//! The table is cut into shards. A shard is a map that is never changed, but replaced by a changed copy: whoever looks
//! a session up takes what is there, without a lock, and a set-up pays for the copy of a few hundred pointers, which
//! is little beside its key exchange.

use crate::session::{NewSession, Session};
use crate::traffic::Live as _;
use arc_swap::ArcSwap;
use handle_auth::source;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Random numbers that are tried before a set-up is given up.
const TRIES: usize = 8;
/// Sessions in a shard when the table is full, on average.
const SHARD_SESSIONS: usize = 256;
/// Most shards.
const SHARDS_MAX: usize = 1024;

/// Bounds of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Most sessions.
    pub sessions_max: usize,
    /// Most sessions of one source: an IPv4 address, or a /64 of IPv6.
    pub per_source_max: usize,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The source has as many as it may.
    TooManyOfSource,
    /// All places are taken, and none by a session that may go.
    Full,
    /// Every number that was tried names something already: the random numbers are none.
    NoNumber,
}

/// What happened to sessions, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Set up.
    pub opened: u64,
    /// Ended by their client.
    pub ended: u64,
    /// Forgotten when their time was over.
    pub expired: u64,
    /// Forgotten early, because newer ones needed the room.
    pub displaced: u64,
    /// Not set up because all places were taken.
    pub refused_full: u64,
    /// Not set up because their source had as many as it may.
    pub refused_of_source: u64,
}

impl SessionCounts {
    /// Each with its name.
    #[must_use]
    pub const fn by_name(&self) -> [(&'static str, u64); 6] {
        [
            ("opened", self.opened),
            ("ended", self.ended),
            ("expired", self.expired),
            ("displaced", self.displaced),
            ("refused_full", self.refused_full),
            ("refused_of_source", self.refused_of_source),
        ]
    }
}

/// A map that is replaced, never changed.
type Map = FxHashMap<i32, Arc<Session>>;

#[derive(Debug, Default)]
struct Shard {
    map: ArcSwap<Map>,
    /// Held by whoever makes the next map.
    writing: Mutex<()>,
}

impl Shard {
    /// Replaces the map by one that `change` has changed.
    fn change<T>(&self, change: impl FnOnce(&mut Map) -> T) -> T {
        let _writing = lock(&self.writing);
        let mut map = Map::clone(&self.map.load());
        let result = change(&mut map);
        self.map.store(Arc::new(map));
        result
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The table.
///
/// When it is full, the session that has been idle for longest among those of its shard whose client has not proven
/// who it is makes room: whoever floods the table must not end the sessions of administrators.
#[derive(Debug)]
pub struct Sessions {
    limits: SessionLimits,
    shards: Box<[Shard]>,
    /// Places that are taken, or about to be.
    count: AtomicUsize,
    of_source: Mutex<HashMap<IpAddr, usize>>,
    opened: AtomicU64,
    ended: AtomicU64,
    expired: AtomicU64,
    displaced: AtomicU64,
    refused_full: AtomicU64,
    refused_of_source: AtomicU64,
}

impl Sessions {
    /// An empty table.
    #[must_use]
    pub fn new(limits: SessionLimits) -> Self {
        let shards_count = limits.sessions_max.div_ceil(SHARD_SESSIONS).clamp(1, SHARDS_MAX);
        Self {
            limits,
            shards: (0..shards_count).map(|_| Shard::default()).collect(),
            count: AtomicUsize::new(0),
            of_source: Mutex::default(),
            opened: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            refused_full: AtomicU64::new(0),
            refused_of_source: AtomicU64::new(0),
        }
    }

    /// The session `id`; `None` when there is none, or its time is over. Takes no lock and allocates nothing.
    #[must_use]
    pub fn find(&self, id: i32, now_s: u32) -> Option<Arc<Session>> {
        let map = self.shard(id)?.map.load();
        map.get(&id).filter(|session| !session.is_over(now_s)).cloned()
    }

    fn shard(&self, id: i32) -> Option<&Shard> {
        let id = usize::try_from(id).ok()?;
        self.shards.get(id % self.shards.len())
    }

    /// Keeps a new session under one of `numbers`, made positive, that is not taken: neither by another session nor,
    /// as `is_taken` says, by something else that is numbered alike.
    ///
    /// # Errors
    /// When the source has too many, or there is no place.
    pub fn open(
        &self,
        new: NewSession,
        mut numbers: impl FnMut() -> u32,
        is_taken: impl Fn(i32) -> bool,
        now_s: u32,
    ) -> Result<Arc<Session>, Refusal> {
        let source = source::of(new.source);
        let is_free = |id: &i32| {
            let shard = self.shard(*id).filter(|_| *id > 0);
            shard.is_some_and(|shard| !shard.map.load().contains_key(id)) && !is_taken(*id)
        };
        let id = (0..TRIES).map(|_| (numbers() & 0x7fff_ffff).cast_signed()).find(is_free);
        let (id, shard) = id.and_then(|id| Some((id, self.shard(id)?))).ok_or(Refusal::NoNumber)?;
        if !self.take_of_source(source) {
            self.refused_of_source.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::TooManyOfSource);
        }
        let max = self.limits.sessions_max;
        let reserve = |count| (count < max).then_some(count + 1);
        let has_room = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).is_ok();
        let session = Arc::new(Session::new(id, NewSession { source, ..new }, now_s));
        let opened = shard.change(|map| {
            // Somebody may have been given the number meanwhile.
            if map.contains_key(&id) {
                return Err(Refusal::NoNumber);
            }
            if !has_room {
                let displaced = longest_idle(map, now_s).ok_or(Refusal::Full)?;
                self.displace(map, displaced, now_s);
            }
            map.insert(id, Arc::clone(&session));
            Ok(())
        });
        match opened {
            Ok(()) => {
                self.opened.fetch_add(1, Ordering::Relaxed);
                Ok(session)
            }
            Err(refusal) => {
                if has_room {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                if refusal == Refusal::Full {
                    self.refused_full.fetch_add(1, Ordering::Relaxed);
                }
                self.give_back_of_source(source);
                Err(refusal)
            }
        }
    }

    /// Takes a session out of `map`, whose place another one takes at once.
    fn displace(&self, map: &mut Map, id: i32, now_s: u32) {
        if let Some(session) = map.remove(&id) {
            let counter = if session.is_over(now_s) { &self.expired } else { &self.displaced };
            counter.fetch_add(1, Ordering::Relaxed);
            self.give_back_of_source(session.source);
        }
    }

    /// Ends a session. Whether there was one.
    pub fn end(&self, id: i32) -> bool {
        let Some(shard) = self.shard(id) else { return false };
        let Some(session) = shard.change(|map| map.remove(&id)) else { return false };
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.gone(&session);
        true
    }

    /// Forgets the sessions whose time is over.
    pub fn expire(&self, now_s: u32) {
        for shard in &self.shards {
            if !shard.map.load().values().any(|session| session.is_over(now_s)) {
                continue;
            }
            let mut over = Vec::new();
            shard.change(|map| over.extend(map.extract_if(|_, session| session.is_over(now_s))));
            self.expired.fetch_add(over.len() as u64, Ordering::Relaxed);
            over.iter().for_each(|(_, session)| self.gone(session));
        }
    }

    fn gone(&self, session: &Session) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.give_back_of_source(session.source);
    }

    fn take_of_source(&self, source: IpAddr) -> bool {
        let mut of_source = lock(&self.of_source);
        let count = of_source.get(&source).copied().unwrap_or(0);
        let has_room = count < self.limits.per_source_max;
        if has_room {
            of_source.insert(source, count + 1);
        }
        has_room
    }

    fn give_back_of_source(&self, source: IpAddr) {
        let mut of_source = lock(&self.of_source);
        if let Some(count) = of_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                of_source.remove(&source);
            }
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> SessionCounts {
        let [opened, ended, expired, displaced, refused_full, refused_of_source] = [
            &self.opened,
            &self.ended,
            &self.expired,
            &self.displaced,
            &self.refused_full,
            &self.refused_of_source,
        ]
        .map(|count| count.load(Ordering::Relaxed));
        SessionCounts { opened, ended, expired, displaced, refused_full, refused_of_source }
    }
}

/// The session that may go for another one: one that is over, or else the longest idle of unproven identity.
fn longest_idle(map: &Map, now_s: u32) -> Option<i32> {
    let may_go = map.values().filter(|session| session.proven().is_none() || session.is_over(now_s));
    let idle = |session: &&Arc<Session>| (!session.is_over(now_s), session.used_s.load(Ordering::Relaxed));
    Some(may_go.min_by_key(idle)?.keys().id)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::session::Claim;
    use handle_auth::session::SessionKey;
    use handle_proto::Version;
    use handle_proto::code::Cipher;
    use handle_proto::wire::list::Reference;

    const WHO: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };
    const LIMITS: SessionLimits = SessionLimits { sessions_max: 4, per_source_max: 3 };

    pub(crate) fn new_session() -> NewSession {
        NewSession {
            key: SessionKey::new(Cipher::AES, vec![7; 32]).unwrap(),
            version: Version::CURRENT,
            claim: None,
            timeout_s: 60,
            source: [192, 0, 2, 1].into(),
        }
    }

    fn of(n: u8) -> NewSession {
        NewSession { source: [192, 0, 2, n].into(), claim: Some(Claim::of(WHO)), ..new_session() }
    }

    /// Opens a session under `number`.
    fn open(table: &Sessions, new: NewSession, number: u32, now_s: u32) -> Result<i32, Refusal> {
        table.open(new, || number, |_| false, now_s).map(|session| session.keys().id)
    }

    #[test]
    fn a_session_is_found_until_it_ends_or_expires() {
        let table = Sessions::new(LIMITS);
        assert_eq!(open(&table, of(1), 7, 0), Ok(7));
        assert_eq!(open(&table, of(1), 0x8000_0009, 0), Ok(9), "made positive");
        assert!(table.find(7, 60).is_some() && table.find(7, 61).is_none());
        assert!(table.find(8, 0).is_none() && table.find(-7, 0).is_none() && table.find(0, 0).is_none());
        assert!(table.end(9) && !table.end(9) && !table.end(-9));
        table.expire(60);
        assert_eq!(table.len(), 1, "nothing is over yet");
        table.expire(61);
        assert!(table.is_empty() && lock(&table.of_source).is_empty());
        let counts = SessionCounts { opened: 2, ended: 1, expired: 1, ..SessionCounts::default() };
        assert_eq!(table.counts(), counts);
    }

    #[test]
    fn numbers_are_positive_and_free() {
        let table = Sessions::new(LIMITS);
        assert_eq!(open(&table, of(1), 0, 0), Err(Refusal::NoNumber));
        assert_eq!(open(&table, of(1), 5, 0), Ok(5));
        assert_eq!(open(&table, of(1), 5, 0), Err(Refusal::NoNumber));
        let mut numbers = [5, 6, 8].into_iter();
        let session = table.open(of(1), || numbers.next().unwrap(), |id| id == 6, 0);
        assert_eq!(session.unwrap().keys().id, 8, "6 is that of a challenge");
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_source_has_so_many_and_no_more() {
        let table = Sessions::new(LIMITS);
        for number in 1..=3 {
            open(&table, of(1), number, 0).unwrap();
        }
        assert_eq!(open(&table, of(1), 4, 0), Err(Refusal::TooManyOfSource));
        assert_eq!(open(&table, of(2), 4, 0), Ok(4));
        table.end(1);
        assert_eq!(open(&table, of(1), 5, 0), Ok(5));
        assert_eq!((table.counts().refused_of_source, table.len()), (1, 4));
    }

    #[test]
    fn the_longest_idle_of_those_that_have_proven_nothing_makes_room() {
        let table = Sessions::new(LIMITS);
        for number in 1..=4_u8 {
            open(&table, of(number), number.into(), number.into()).unwrap();
        }
        let prove = |id| assert!(table.find(id, 4).unwrap().authenticate(WHO, 301, 1), "{id}");
        prove(1);
        assert!(table.find(2, 4).unwrap().accept(1, 50), "and this one is in use");
        assert_eq!(open(&table, of(5), 5, 50), Ok(5));
        assert!(table.find(3, 4).is_none(), "the longest idle");
        assert_eq!((table.len(), table.counts().displaced), (4, 1));
        for id in [2, 4, 5] {
            prove(id);
        }
        assert_eq!(open(&table, of(6), 6, 50), Err(Refusal::Full));
        assert_eq!((table.len(), table.counts().refused_full), (4, 1));
        assert_eq!(open(&table, of(6), 6, 70), Ok(6), "the time of some is over");
        assert_eq!((table.len(), table.counts().expired), (4, 1));
    }

    #[test]
    fn threads_share_it_and_it_never_has_more_than_it_may() {
        let table = Sessions::new(SessionLimits { sessions_max: 500, per_source_max: 10_000 });
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
        assert_eq!(lock(&table.of_source).values().sum::<usize>(), there);
    }

    /// Bytes of this process that are in memory.
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
        pages * rustix::param::page_size()
    }

    #[test]
    fn a_hundred_thousand_sessions_take_less_than_a_kilobyte_each() {
        let count = 100_000_u32;
        let table =
            Sessions::new(SessionLimits { sessions_max: count as usize, per_source_max: count as usize });
        let before = resident();
        // Numbers all over the range, as random ones are.
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
