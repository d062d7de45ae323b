//! Challenges that wait for an answer: bounded in number, in bytes and by source, taken once, forgotten after
//! a while. Pure: time and random numbers come in as arguments.

use crate::challenge::Covered;
use crate::digest::Digest;
use crate::source;
use handle_proto::Version;
use handle_proto::limit::NONCE_LEN;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use zeroize::Zeroizing;

/// Bounds of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeLimits {
    /// Most challenges that wait.
    pub challenges_max: usize,
    /// Most bytes of the requests that were challenged.
    pub bytes_max: usize,
    /// Most challenges to one source: an IPv4 address, or a /64 of IPv6.
    pub per_source_max: usize,
    /// How long a challenge can be answered, in milliseconds.
    pub age_ms_max: u64,
}

/// A challenge that was taken from the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The version it was written in.
    pub version: Version,
    /// The version that it suggested: the lower of the two says how a secret answers.
    pub suggested: Version,
    /// The nonce that was sent.
    pub nonce: [u8; NONCE_LEN],
    /// The digest that was sent with it.
    pub digest: Digest,
    /// The request that was challenged, envelope first, in the clear; erased when it is dropped.
    pub request: Zeroizing<Box<[u8]>>,
}

impl Challenge {
    /// What an answer to it covers.
    #[must_use]
    pub fn covered(&self) -> Covered<'_> {
        [&self.nonce, &self.digest]
    }
}

/// What waits in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The nonce to send.
    pub nonce: [u8; NONCE_LEN],
    /// The version to suggest.
    pub suggested: Version,
}

/// Why a request gets no challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The source has as many as it may.
    TooManyOfSource,
    /// The request alone is longer than all together may be.
    TooLong,
    /// Every number that was tried names a challenge already: the random numbers are none.
    NoNumber,
}

/// What happened to challenges, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChallengeCounts {
    /// Given.
    pub issued: u64,
    /// Taken by an answer.
    pub taken: u64,
    /// Forgotten unanswered, when their time was over.
    pub expired: u64,
    /// Forgotten early, because newer ones needed the room.
    pub displaced: u64,
    /// Requests that got none because their source had as many as it may.
    pub refused_of_source: u64,
}

/// Numbers that are tried before it is given up that one is free.
const TRIES: usize = 8;

/// The challenges of a server; those that wait are `issued - taken - expired - displaced`.
///
/// When the table is full the oldest challenge makes room: whoever means it answers within a round trip, and
/// whoever floods the table must not keep others out of it.
#[derive(Debug)]
pub struct Challenges {
    limits: ChallengeLimits,
    waiting: HashMap<i32, Waiting>,
    /// Numbers in the order they were given, with what tells a number from the same one given again later.
    order: VecDeque<(i32, u64)>,
    of_source: HashMap<IpAddr, usize>,
    bytes: usize,
    counts: ChallengeCounts,
    gone: Gone,
}

/// Numbers of challenges that wait no more, the oldest first: as many as may wait.
#[derive(Debug, Default)]
struct Gone {
    order: VecDeque<i32>,
    numbers: HashSet<i32>,
}

impl Gone {
    fn add(&mut self, id: i32, max: usize) {
        if !self.numbers.insert(id) {
            return;
        }
        self.order.push_back(id);
        while self.order.len() > max
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
    }
}

#[derive(Debug)]
struct Waiting {
    challenge: Challenge,
    source: IpAddr,
    expires_ms: u64,
    /// How many were issued before.
    serial: u64,
}

impl Challenges {
    /// An empty table.
    #[must_use]
    pub fn new(limits: ChallengeLimits) -> Self {
        Self {
            limits,
            waiting: HashMap::new(),
            order: VecDeque::new(),
            of_source: HashMap::new(),
            bytes: 0,
            counts: ChallengeCounts::default(),
            gone: Gone::default(),
        }
    }

    /// From now on so many are kept. What is kept already makes room for new ones, or is answered in its time.
    pub const fn set_limits(&mut self, limits: ChallengeLimits) {
        self.limits = limits;
    }

    /// Keeps `challenge` to `source` and gives the number it is answered under: one of `numbers`, made positive.
    ///
    /// # Errors
    /// When the source has too many, or the challenge cannot be kept at all.
    pub fn issue(
        &mut self,
        source: IpAddr,
        challenge: Challenge,
        mut numbers: impl FnMut() -> u32,
        now_ms: u64,
    ) -> Result<i32, Refusal> {
        self.expire(now_ms);
        self.admit(source, challenge.request.len())?;
        let is_free = |id: &i32| *id > 0 && !self.waiting.contains_key(id);
        let id = (0..TRIES).map(|_| (numbers() & 0x7fff_ffff).cast_signed()).find(is_free);
        let id = id.ok_or(Refusal::NoNumber)?;
        self.keep(id, source, challenge, now_ms);
        Ok(id)
    }

    /// Keeps `challenge` to `source` under `id`, the number of a session. Who sends a request once more, with the same
    /// number and content, is sent once more what waits; any other takes the place of it.
    ///
    /// # Errors
    /// When the source has too many, or the challenge cannot be kept at all.
    pub fn issue_in_session(
        &mut self,
        id: i32,
        source: IpAddr,
        challenge: Challenge,
        now_ms: u64,
    ) -> Result<Pending, Refusal> {
        self.expire(now_ms);
        if let Some(waiting) = self.waiting.get(&id) {
            let known = &waiting.challenge;
            if request_id(known) == request_id(&challenge) && known.digest == challenge.digest {
                return Ok(Pending { nonce: known.nonce, suggested: known.suggested });
            }
            self.remove(id);
            self.counts.displaced += 1;
        }
        self.admit(source, challenge.request.len())?;
        let (nonce, suggested) = (challenge.nonce, challenge.suggested);
        self.keep(id, source, challenge, now_ms);
        Ok(Pending { nonce, suggested })
    }

    /// Whether a challenge waits under this number.
    #[must_use]
    pub fn has(&self, id: i32) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Whether a request of `len` bytes of `source` may be challenged.
    fn admit(&mut self, source: IpAddr, len: usize) -> Result<(), Refusal> {
        if len > self.limits.bytes_max || self.limits.challenges_max == 0 {
            return Err(Refusal::TooLong);
        }
        let of_source = self.of_source.get(&source::of(source)).copied().unwrap_or(0);
        if of_source >= self.limits.per_source_max {
            self.counts.refused_of_source += 1;
            return Err(Refusal::TooManyOfSource);
        }
        Ok(())
    }

    /// Keeps a challenge under a number that is free; the oldest make room for it.
    fn keep(&mut self, id: i32, source: IpAddr, challenge: Challenge, now_ms: u64) {
        let (source, len) = (source::of(source), challenge.request.len());
        while self.waiting.len() >= self.limits.challenges_max || self.bytes + len > self.limits.bytes_max {
            self.displace();
        }
        let serial = self.counts.issued;
        let expires_ms = now_ms.saturating_add(self.limits.age_ms_max);
        self.waiting.insert(id, Waiting { challenge, source, expires_ms, serial });
        self.order.push_back((id, serial));
        *self.of_source.entry(source).or_default() += 1;
        self.bytes += len;
        self.counts.issued += 1;
        self.tidy();
    }

    /// Takes the challenge `id`; nobody gets it again. `None` when there is none, or not any more.
    pub fn take(&mut self, id: i32, now_ms: u64) -> Option<Challenge> {
        self.expire(now_ms);
        let waiting = self.remove(id)?;
        self.counts.taken += 1;
        Some(waiting.challenge)
    }

    /// Whether a challenge had this number not long ago: it was answered, or has had its time.
    #[must_use]
    pub fn had(&self, id: i32) -> bool {
        self.gone.numbers.contains(&id)
    }

    /// Forgets what is too old.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some(&(id, serial)) = self.order.front() {
            match self.waiting.get(&id) {
                Some(waiting) if waiting.serial == serial => {
                    if waiting.expires_ms > now_ms {
                        return;
                    }
                    self.remove(id);
                    self.counts.expired += 1;
                }
                // It was taken.
                _ => {}
            }
            self.order.pop_front();
        }
    }

    /// Forgets the oldest.
    fn displace(&mut self) {
        while let Some((id, serial)) = self.order.pop_front() {
            if self.waiting.get(&id).is_some_and(|waiting| waiting.serial == serial) {
                self.remove(id);
                self.counts.displaced += 1;
                return;
            }
        }
    }

    fn remove(&mut self, id: i32) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        self.gone.add(id, self.limits.challenges_max);
        self.bytes -= waiting.challenge.request.len();
        if let Entry::Occupied(mut count) = self.of_source.entry(waiting.source) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(waiting)
    }

    /// Drops the places of challenges that were taken when they are more than half.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.waiting.len() + 64 {
            let waiting = &self.waiting;
            self.order.retain(|(id, serial)| waiting.get(id).is_some_and(|one| one.serial == *serial));
        }
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes of the requests that were challenged.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What happened so far.
    #[must_use]
    pub const fn counts(&self) -> ChallengeCounts {
        self.counts
    }
}

/// The number that its sender gave the request that was challenged.
fn request_id(challenge: &Challenge) -> Option<&[u8]> {
    challenge.request.get(8..12)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ChallengeLimits =
        ChallengeLimits { challenges_max: 4, bytes_max: 100, per_source_max: 2, age_ms_max: 1000 };

    fn source(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    /// A table that numbers from 1 on, and tells which.
    struct Numbered(Challenges, u32);

    impl Numbered {
        fn issue(&mut self, source: IpAddr, len: usize, now_ms: u64) -> Result<i32, Refusal> {
            let digest = digest();
            let challenge = Challenge {
                version: Version::CURRENT,
                suggested: Version::CURRENT,
                nonce: [1; NONCE_LEN],
                digest,
                request: Zeroizing::new(vec![7; len].into()),
            };
            let next = &mut self.1;
            let numbers = || {
                *next += 1;
                *next
            };
            self.0.issue(source, challenge, numbers, now_ms)
        }
    }

    fn digest() -> Digest {
        Digest::from_bytes(&[2; 20])
    }

    #[test]
    fn a_challenge_is_taken_once_and_in_time() {
        let mut table = Numbered(Challenges::new(LIMITS), 0);
        let id = table.issue(source(1), 10, 0).unwrap();
        assert_eq!(table.0.take(id + 1, 0), None);
        assert_eq!(table.0.take(id, 999).unwrap().request.len(), 10);
        assert_eq!(table.0.take(id, 999), None, "a second time");
        let id = table.issue(source(1), 10, 1000).unwrap();
        assert_eq!(table.0.take(id, 2000), None, "its time is over");
        let counts = ChallengeCounts { issued: 2, taken: 1, expired: 1, ..ChallengeCounts::default() };
        assert_eq!((table.0.counts(), table.0.bytes(), table.0.len()), (counts, 0, 0));
    }

    #[test]
    fn numbers_are_remembered_for_a_while_and_no_more_of_them_than_may_wait() {
        let mut table = Numbered(Challenges::new(LIMITS), 0);
        let ids: Vec<i32> = (0..7).map(|n| table.issue(source(n), 10, 0).unwrap()).collect();
        let had = |table: &Numbered| ids.iter().map(|&id| table.0.had(id)).collect::<Vec<_>>();
        assert_eq!(had(&table), [true, true, true, false, false, false, false], "three made room");
        table.0.take(ids[4], 0).unwrap();
        table.0.expire(1000);
        assert_eq!(had(&table), [false, false, false, true, true, true, true], "four may wait");
        assert!(!table.0.had(0) && !table.0.had(100));
    }

    #[test]
    fn a_source_has_so_many_and_no_more() {
        let mut table = Numbered(Challenges::new(LIMITS), 0);
        let first = table.issue(source(1), 1, 0).unwrap();
        table.issue(source(1), 1, 0).unwrap();
        assert_eq!(table.issue(source(1), 1, 0), Err(Refusal::TooManyOfSource));
        table.issue(source(2), 1, 0).unwrap();
        table.0.take(first, 0).unwrap();
        table.issue(source(1), 1, 0).unwrap();
        assert_eq!(table.issue(source(1), 1, 999), Err(Refusal::TooManyOfSource));
        table.issue(source(1), 1, 1000).unwrap();
        assert_eq!(table.0.counts().refused_of_source, 2);
        // An address of IPv6 is one of many; an IPv4 address is the same however it is written.
        let v6 = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, n]);
        table.issue(v6(1), 1, 5000).unwrap();
        table.issue(v6(2), 1, 5000).unwrap();
        assert_eq!(table.issue(v6(3), 1, 5000), Err(Refusal::TooManyOfSource));
        let mapped = |n| IpAddr::V6(std::net::Ipv4Addr::new(192, 0, 2, n).to_ipv6_mapped());
        table.issue(mapped(9), 1, 5000).unwrap();
        table.issue(mapped(9), 1, 5000).unwrap();
        assert_eq!(table.issue(source(9), 1, 5000), Err(Refusal::TooManyOfSource));
    }

    #[test]
    fn in_a_session_one_challenge_waits_and_copies_get_the_same() {
        let mut table = Numbered(Challenges::new(LIMITS), 0);
        let mut ask = |request_id: u8, digest: u8, nonce: u8, from: u8, now_ms| {
            let request = [[0; 11].as_slice(), &[request_id]].concat().into_boxed_slice().into();
            let digest = Digest::from_bytes(&[digest; 20]);
            let (version, suggested) = (Version::CURRENT, Version::new(2, nonce));
            let challenge = Challenge { version, suggested, nonce: [nonce; NONCE_LEN], digest, request };
            table.0.issue_in_session(7, source(from), challenge, now_ms).map(|pending| {
                assert_eq!(pending.suggested.minor, pending.nonce[0], "both of the same challenge");
                pending.nonce[0]
            })
        };
        assert_eq!(ask(1, 1, 10, 1, 0), Ok(10));
        assert_eq!(ask(1, 1, 11, 1, 0), Ok(10), "a copy");
        assert_eq!(ask(1, 2, 12, 1, 0), Ok(12), "the number again, but another request");
        assert_eq!(ask(2, 2, 13, 1, 0), Ok(13), "another number");
        assert_eq!(ask(2, 2, 14, 1, 1000), Ok(14), "the first one is too old");
        assert!(table.0.has(7) && !table.0.has(8));
        assert_eq!(table.0.take(7, 1000).unwrap().nonce, [14; NONCE_LEN]);
        assert_eq!((table.0.take(7, 1000), table.0.len(), table.0.bytes()), (None, 0, 0));
        let counts = ChallengeCounts { issued: 4, taken: 1, expired: 1, displaced: 2, refused_of_source: 0 };
        assert_eq!(table.0.counts(), counts);
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut table = Numbered(Challenges::new(LIMITS), 0);
        let ids: Vec<i32> = (0..5).map(|n| table.issue(source(n), 10, 0).unwrap()).collect();
        assert_eq!((table.0.len(), table.0.take(ids[0], 0)), (4, None));
        table.issue(source(9), 70, 0).unwrap();
        assert_eq!(
            (table.0.len(), table.0.bytes()),
            (4, 100),
            "one for its bytes would do, one for its place"
        );
        table.issue(source(8), 100, 0).unwrap();
        assert_eq!((table.0.len(), table.0.bytes()), (1, 100));
        assert_eq!(table.issue(source(7), 101, 0), Err(Refusal::TooLong));
        assert_eq!(table.0.counts().displaced, 6);
    }

    #[test]
    fn numbers_are_positive_and_free() {
        let mut table = Challenges::new(LIMITS);
        let version = Version::CURRENT;
        let challenge = Challenge {
            version,
            suggested: version,
            nonce: [0; NONCE_LEN],
            digest: digest(),
            request: Zeroizing::new(Box::new([])),
        };
        let mut from = |numbers: &[u32]| {
            let mut numbers = numbers.iter().copied().chain(std::iter::repeat(0));
            table.issue(source(1), challenge.clone(), || numbers.next().unwrap(), 0)
        };
        assert_eq!(from(&[0, 0x8000_0000, 0xffff_fffe]), Ok(0x7fff_fffe));
        assert_eq!(from(&[0x7fff_fffe, 5]), Ok(5));
        let mut table = Challenges::new(LIMITS);
        assert_eq!(table.issue(source(1), challenge, || 0, 0), Err(Refusal::NoNumber));
    }

    #[test]
    fn what_was_taken_leaves_no_trace() {
        let limits = ChallengeLimits { challenges_max: 1000, per_source_max: 1000, ..LIMITS };
        let mut table = Numbered(Challenges::new(limits), 0);
        for _ in 0..10_000 {
            let id = table.issue(source(1), 1, 0).unwrap();
            table.0.take(id, 0).unwrap();
        }
        assert!(table.0.order.len() <= 66, "{} places", table.0.order.len());
        assert!(table.0.of_source.is_empty());
    }
}
