//! Challenges that wait for an answer: bounded in number, in bytes and by source, taken once,
//! dropped after a while. Time and random numbers come in as arguments.
//!
//! An unauthenticated sender makes the server keep a challenge, and over UDP its address may be
//! forged. So a challenge is kept for a short time, a source at its limit loses its own oldest
//! challenge, and a full table loses the oldest of all. Only part of a source's challenges may be
//! for datagrams. Beyond that, the sender is asked to use TCP, where addresses cannot be forged,
//! and nothing is kept.

use crate::challenge::CoveredBytes;
use crate::digest::Digest;
use crate::source::{self, RequestOrigin, SourceList};
use handle_proto::Version;
use handle_proto::limit::NONCE_LEN;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use zeroize::Zeroizing;

/// Bounds of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChallengeLimits {
    /// Most challenges that wait for an answer.
    pub challenges_max: usize,
    /// Most bytes of the challenged requests.
    pub bytes_max: usize,
    /// Most challenges to one source: an IPv4 address, or a /64 of IPv6. A further one displaces
    /// its oldest.
    pub per_source_max: usize,
    /// Most of these for datagrams. Beyond it, and beyond half of the table, senders are asked to
    /// use TCP. `None` if they cannot.
    pub datagrams_per_source_max: Option<usize>,
    /// Milliseconds for which a challenge can be answered.
    pub age_ms_max: u64,
    /// Sources that are exempt from the limits by source.
    pub exempt: SourceList,
}

/// A challenge taken from the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedChallenge {
    /// The version of the challenge.
    pub version: Version,
    /// The version that it suggested. The lower of the two decides how a secret answers.
    pub suggested: Version,
    /// The nonce that was sent.
    pub nonce: [u8; NONCE_LEN],
    /// The digest that was sent with it.
    pub digest: Digest,
    /// The challenged request, decrypted, envelope first; erased when it is dropped.
    pub request: Zeroizing<Box<[u8]>>,
}

impl IssuedChallenge {
    /// The bytes that an answer to this challenge covers.
    #[must_use]
    pub fn covered(&self) -> CoveredBytes<'_> {
        [&self.nonce, &self.digest]
    }

    /// Appends the form in which processes hand challenges to each other: the versions, the nonce,
    /// the digest with its length, and the request.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Self { version, suggested, nonce, digest, request } = self;
        out.extend_from_slice(&[version.major, version.minor, suggested.major, suggested.minor]);
        out.extend_from_slice(nonce);
        out.push(u8::try_from(digest.len()).expect("no digest has more than 32 bytes"));
        out.extend_from_slice(digest);
        out.extend_from_slice(request);
    }

    /// Decodes a challenge that takes up all of `bytes`; `None` when they are invalid.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[major, minor, suggested_major, suggested_minor], rest) = bytes.split_first_chunk()?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>()?;
        let (&len, rest) = rest.split_first()?;
        let (digest, request) = rest.split_at_checked(len.into())?;
        Some(Self {
            version: Version::new(major, minor),
            suggested: Version::new(suggested_major, suggested_minor),
            nonce: *nonce,
            digest: (digest.len() <= 32).then(|| Digest::from_bytes(digest))?,
            request: Zeroizing::new(request.into()),
        })
    }
}

/// A challenge that waits in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionChallenge {
    /// The nonce to send.
    pub nonce: [u8; NONCE_LEN],
    /// The version to suggest.
    pub suggested: Version,
}

/// Why a request is not challenged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeRefusal {
    /// Too many challenges for datagrams wait: the sender is asked to use TCP.
    OverTcp,
    /// The request alone exceeds the limit of bytes.
    TooLong,
    /// Every tried number is taken, so the random numbers are not random.
    NoNumber,
}

/// Counters of challenges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChallengeCounts {
    /// Challenges issued.
    pub issued: u64,
    /// Challenges answered.
    pub taken: u64,
    /// Challenges that expired unanswered.
    pub expired: u64,
    /// Challenges dropped early, to make room for newer ones.
    pub displaced: u64,
    /// Requests in datagrams whose senders were asked to use TCP.
    pub sent_to_tcp: u64,
}

/// A challenge that waits, as another process continues with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingChallenge {
    /// Its number.
    pub id: i32,
    /// Who was challenged.
    pub origin: RequestOrigin,
    /// Whether its number is that of a session.
    pub is_in_session: bool,
    /// The challenge.
    pub challenge: IssuedChallenge,
}

/// Random numbers that are tried before giving up.
const TRIES: usize = 8;

/// The challenges of a server, of which `issued - taken - expired - displaced` wait.
///
/// When the table is full the oldest challenge is dropped: an honest client answers within a round
/// trip, and a flood must not keep others out of the table. Challenges in sessions, whose senders
/// have proved the key of the session, are dropped last.
#[derive(Debug)]
pub struct Challenges {
    limits: ChallengeLimits,
    waiting: HashMap<i32, ChallengeEntry>,
    /// Challenges outside sessions, in the order of issue.
    outside: IssueOrder,
    /// Challenges in sessions, in the order of issue.
    in_sessions: IssueOrder,
    /// Challenges outside sessions, by source.
    of_source: HashMap<IpAddr, SourceChallenges>,
    /// Number and bytes of the challenges for datagrams.
    datagrams: (usize, usize),
    bytes: usize,
    counts: ChallengeCounts,
    gone: RetiredNumbers,
}

/// Numbers in the order of issue, each with a serial that distinguishes it from the same number
/// issued again. Numbers of answered challenges stay until they reach the front, or are more than
/// half.
type IssueOrder = VecDeque<(i32, u64)>;

/// The challenges to one source.
#[derive(Debug, Default)]
struct SourceChallenges {
    order: IssueOrder,
    count: usize,
    datagrams_count: usize,
}

/// Numbers of challenges that no longer wait, oldest first; at most as many as may wait.
#[derive(Debug, Default)]
struct RetiredNumbers {
    order: VecDeque<i32>,
    numbers: HashSet<i32>,
}

impl RetiredNumbers {
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
struct ChallengeEntry {
    challenge: IssuedChallenge,
    origin: RequestOrigin,
    /// Whether its number is that of a session.
    is_in_session: bool,
    expires_ms: u64,
    /// Number of challenges issued before.
    serial: u64,
}

impl Challenges {
    /// An empty table.
    #[must_use]
    pub fn new(limits: ChallengeLimits) -> Self {
        Self {
            limits,
            waiting: HashMap::new(),
            outside: VecDeque::new(),
            in_sessions: VecDeque::new(),
            of_source: HashMap::new(),
            datagrams: (0, 0),
            bytes: 0,
            counts: ChallengeCounts::default(),
            gone: RetiredNumbers::default(),
        }
    }

    /// Changes the limits. Existing challenges make room for new ones, or are answered in time.
    pub fn set_limits(&mut self, limits: ChallengeLimits) {
        self.limits = limits;
    }

    /// Keeps `challenge` for `origin` and returns its number: one of `numbers`, made positive.
    ///
    /// # Errors
    /// When the sender has to use TCP, or the challenge cannot be kept at all.
    pub fn issue(
        &mut self,
        origin: RequestOrigin,
        challenge: IssuedChallenge,
        mut numbers: impl FnMut() -> u32,
        now_ms: u64,
    ) -> Result<i32, ChallengeRefusal> {
        self.expire(now_ms);
        self.admit(challenge.request.len())?;
        if !origin.is_connected && self.wants_tcp(origin.ip) {
            self.counts.sent_to_tcp += 1;
            return Err(ChallengeRefusal::OverTcp);
        }
        let is_free = |id: &i32| *id > 0 && !self.waiting.contains_key(id);
        let id = (0..TRIES).map(|_| (numbers() & 0x7fff_ffff).cast_signed()).find(is_free);
        let id = id.ok_or(ChallengeRefusal::NoNumber)?;
        self.evict_of_source(origin.ip);
        self.keep(id, origin, challenge, false, now_ms);
        Ok(id)
    }

    /// Keeps `challenge` for `origin` under `id`, the number of a session whose key the sender has
    /// proved. If the sender repeats a request with the same id and content, it gets the waiting
    /// challenge again; any other request replaces that challenge.
    ///
    /// # Errors
    /// When the challenge cannot be kept at all.
    pub fn issue_in_session(
        &mut self,
        id: i32,
        origin: RequestOrigin,
        challenge: IssuedChallenge,
        now_ms: u64,
    ) -> Result<SessionChallenge, ChallengeRefusal> {
        self.expire(now_ms);
        if let Some(waiting) = self.waiting.get(&id) {
            let known = &waiting.challenge;
            if request_id(known) == request_id(&challenge) && known.digest == challenge.digest {
                return Ok(SessionChallenge { nonce: known.nonce, suggested: known.suggested });
            }
            self.remove(id);
            self.counts.displaced += 1;
        }
        self.admit(challenge.request.len())?;
        let (nonce, suggested) = (challenge.nonce, challenge.suggested);
        self.keep(id, origin, challenge, true, now_ms);
        Ok(SessionChallenge { nonce, suggested })
    }

    /// The challenge that waits under this number.
    #[must_use]
    pub fn get(&self, id: i32) -> Option<&IssuedChallenge> {
        self.waiting.get(&id).map(|waiting| &waiting.challenge)
    }

    /// Whether a challenge waits under this number.
    #[must_use]
    pub fn has(&self, id: i32) -> bool {
        self.waiting.contains_key(&id)
    }

    /// The challenges that wait, oldest first.
    #[must_use]
    pub fn all_waiting(&self) -> Vec<WaitingChallenge> {
        let mut all: Vec<_> = self.waiting.iter().collect();
        all.sort_unstable_by_key(|(_, entry)| entry.serial);
        let waiting = |(&id, entry): (&i32, &ChallengeEntry)| {
            let ChallengeEntry { challenge, origin, is_in_session, .. } = entry;
            WaitingChallenge {
                id,
                origin: *origin,
                is_in_session: *is_in_session,
                challenge: challenge.clone(),
            }
        };
        all.into_iter().map(waiting).collect()
    }

    /// Keeps a challenge that another process has issued, for as long as one of this process. One
    /// whose number is taken, or that is too long, is dropped.
    pub fn continue_with(&mut self, waiting: WaitingChallenge, now_ms: u64) {
        let WaitingChallenge { id, origin, is_in_session, challenge } = waiting;
        if self.admit(challenge.request.len()).is_ok() && !self.has(id) {
            self.keep(id, origin, challenge, is_in_session, now_ms);
        }
    }

    /// Whether a request of `len` bytes may be challenged.
    const fn admit(&self, len: usize) -> Result<(), ChallengeRefusal> {
        match len > self.limits.bytes_max || self.limits.challenges_max == 0 {
            true => Err(ChallengeRefusal::TooLong),
            false => Ok(()),
        }
    }

    /// Whether the sender of a datagram from `ip` has to use TCP to be challenged.
    fn wants_tcp(&self, ip: IpAddr) -> bool {
        let Some(per_source_max) = self.limits.datagrams_per_source_max else { return false };
        let (count, bytes) = self.datagrams;
        let is_full = count >= self.limits.challenges_max.div_ceil(2) || bytes >= self.limits.bytes_max / 2;
        let of_source =
            self.of_source.get(&source::of(ip)).map_or(0, |challenges| challenges.datagrams_count);
        is_full || of_source >= per_source_max && !self.limits.exempt.contains(ip)
    }

    /// Drops the oldest challenge to the source of `ip` if the source is at its limit.
    fn evict_of_source(&mut self, ip: IpAddr) {
        let source = source::of(ip);
        while let Some(of_source) = self.of_source.get_mut(&source)
            && of_source.count >= self.limits.per_source_max
            && !self.limits.exempt.contains(ip)
            && let Some((id, serial)) = of_source.order.pop_front()
        {
            self.displace(id, serial);
        }
    }

    /// Keeps a challenge under a free number; the oldest ones make room for it.
    fn keep(
        &mut self,
        id: i32,
        origin: RequestOrigin,
        challenge: IssuedChallenge,
        is_in_session: bool,
        now_ms: u64,
    ) {
        let len = challenge.request.len();
        while self.waiting.len() >= self.limits.challenges_max || self.bytes + len > self.limits.bytes_max {
            self.displace_oldest();
        }
        let serial = self.counts.issued;
        let expires_ms = now_ms.saturating_add(self.limits.age_ms_max);
        self.waiting.insert(id, ChallengeEntry { challenge, origin, is_in_session, expires_ms, serial });
        if is_in_session {
            self.in_sessions.push_back((id, serial));
        } else {
            self.outside.push_back((id, serial));
            let of_source = self.of_source.entry(source::of(origin.ip)).or_default();
            of_source.order.push_back((id, serial));
            of_source.count += 1;
            if !origin.is_connected {
                of_source.datagrams_count += 1;
                self.datagrams = (self.datagrams.0 + 1, self.datagrams.1 + len);
            }
            tidy(&mut of_source.order, of_source.count, &self.waiting);
        }
        self.bytes += len;
        self.counts.issued += 1;
        tidy(&mut self.outside, self.waiting.len(), &self.waiting);
        tidy(&mut self.in_sessions, self.waiting.len(), &self.waiting);
    }

    /// Takes the challenge `id`, so that it cannot be taken again; `None` if none waits under this
    /// number.
    pub fn take(&mut self, id: i32, now_ms: u64) -> Option<IssuedChallenge> {
        self.expire(now_ms);
        let waiting = self.remove(id)?;
        self.counts.taken += 1;
        Some(waiting.challenge)
    }

    /// Whether a challenge with this number was recently answered, displaced or expired.
    #[must_use]
    pub fn was_retired(&self, id: i32) -> bool {
        self.gone.numbers.contains(&id)
    }

    /// Drops expired challenges.
    pub fn expire(&mut self, now_ms: u64) {
        let is_over = |waiting: &ChallengeEntry| waiting.expires_ms <= now_ms;
        for in_sessions in [false, true] {
            loop {
                let order = if in_sessions { &mut self.in_sessions } else { &mut self.outside };
                let Some(&(id, serial)) = order.front() else { break };
                let waiting = self.waiting.get(&id).filter(|waiting| waiting.serial == serial);
                if waiting.is_some_and(|waiting| !is_over(waiting)) {
                    break;
                }
                order.pop_front();
                if waiting.is_some() {
                    self.remove(id);
                    self.counts.expired += 1;
                }
            }
        }
    }

    /// Drops the oldest challenge, of those outside sessions as long as there are any.
    fn displace_oldest(&mut self) {
        while let Some((id, serial)) = self.outside.pop_front().or_else(|| self.in_sessions.pop_front()) {
            if self.displace(id, serial) {
                return;
            }
        }
    }

    /// Drops a challenge, if it still waits.
    fn displace(&mut self, id: i32, serial: u64) -> bool {
        let is_waiting = self.waiting.get(&id).is_some_and(|waiting| waiting.serial == serial);
        if is_waiting {
            self.remove(id);
            self.counts.displaced += 1;
        }
        is_waiting
    }

    fn remove(&mut self, id: i32) -> Option<ChallengeEntry> {
        let waiting = self.waiting.remove(&id)?;
        self.gone.add(id, self.limits.challenges_max);
        let len = waiting.challenge.request.len();
        self.bytes -= len;
        if waiting.is_in_session {
            return Some(waiting);
        }
        let is_datagram = !waiting.origin.is_connected;
        if is_datagram {
            self.datagrams = (self.datagrams.0 - 1, self.datagrams.1 - len);
        }
        if let Entry::Occupied(mut of_source) = self.of_source.entry(source::of(waiting.origin.ip)) {
            of_source.get_mut().count -= 1;
            of_source.get_mut().datagrams_count -= usize::from(is_datagram);
            if of_source.get().count == 0 {
                of_source.remove();
            }
        }
        Some(waiting)
    }

    /// Number of challenges that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no challenge waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes of the challenged requests.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The counters.
    #[must_use]
    pub const fn counts(&self) -> ChallengeCounts {
        self.counts
    }
}

/// Removes the entries of answered challenges from `order`, in which `count` wait, if they are more
/// than half.
fn tidy(order: &mut IssueOrder, count: usize, waiting: &HashMap<i32, ChallengeEntry>) {
    if order.len() > 2 * count + 64 {
        order.retain(|(id, serial)| waiting.get(id).is_some_and(|entry| entry.serial == *serial));
    }
}

/// The request id of the challenged request.
fn request_id(challenge: &IssuedChallenge) -> Option<&[u8]> {
    challenge.request.get(8..12)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> ChallengeLimits {
        ChallengeLimits {
            challenges_max: 4,
            bytes_max: 100,
            per_source_max: 2,
            datagrams_per_source_max: None,
            age_ms_max: 1000,
            exempt: SourceList::default(),
        }
    }

    fn source(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    /// A table that assigns numbers from 1 on, and the last number.
    struct NumberedTable(Challenges, u32);

    impl NumberedTable {
        fn issue(&mut self, source: IpAddr, len: usize, now_ms: u64) -> Result<i32, ChallengeRefusal> {
            self.issue_to(RequestOrigin::datagram(source), len, now_ms)
        }

        fn issue_to(
            &mut self,
            origin: RequestOrigin,
            len: usize,
            now_ms: u64,
        ) -> Result<i32, ChallengeRefusal> {
            let digest = digest();
            let challenge = IssuedChallenge {
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
            self.0.issue(origin, challenge, numbers, now_ms)
        }
    }

    fn digest() -> Digest {
        Digest::from_bytes(&[2; 20])
    }

    #[test]
    fn a_challenge_is_taken_once_and_in_time() {
        let mut table = NumberedTable(Challenges::new(limits()), 0);
        let id = table.issue(source(1), 10, 0).unwrap();
        assert_eq!(table.0.take(id + 1, 0), None);
        assert_eq!(table.0.take(id, 999).unwrap().request.len(), 10);
        assert_eq!(table.0.take(id, 999), None, "taken twice");
        let id = table.issue(source(1), 10, 1000).unwrap();
        assert_eq!(table.0.take(id, 2000), None, "expired");
        let counts = ChallengeCounts { issued: 2, taken: 1, expired: 1, ..ChallengeCounts::default() };
        assert_eq!((table.0.counts(), table.0.bytes(), table.0.len()), (counts, 0, 0));
    }

    #[test]
    fn retired_numbers_are_remembered_up_to_the_limit_of_challenges() {
        let mut table = NumberedTable(Challenges::new(limits()), 0);
        let ids: Vec<i32> = (0..7).map(|n| table.issue(source(n), 10, 0).unwrap()).collect();
        let retired =
            |table: &NumberedTable| ids.iter().map(|&id| table.0.was_retired(id)).collect::<Vec<_>>();
        assert_eq!(retired(&table), [true, true, true, false, false, false, false], "three were displaced");
        table.0.take(ids[4], 0).unwrap();
        table.0.expire(1000);
        assert_eq!(retired(&table), [false, false, false, true, true, true, true], "four are remembered");
        assert!(!table.0.was_retired(0) && !table.0.was_retired(100));
    }

    #[test]
    fn a_source_at_its_limit_loses_its_own_oldest_challenge() {
        let mut table = NumberedTable(Challenges::new(ChallengeLimits { challenges_max: 8, ..limits() }), 0);
        let other = table.issue(source(2), 1, 0).unwrap();
        let ids: Vec<i32> = (0..5).map(|_| table.issue(source(1), 1, 0).unwrap()).collect();
        let waits = |table: &NumberedTable| ids.iter().map(|&id| table.0.has(id)).collect::<Vec<_>>();
        assert_eq!(waits(&table), [false, false, false, true, true]);
        assert!(table.0.has(other), "challenges of other sources stay");
        table.0.take(ids[4], 0).unwrap();
        table.issue(source(1), 1, 0).unwrap();
        assert!(table.0.has(ids[3]), "a taken challenge frees its place");
        assert_eq!(table.0.counts().displaced, 3);
        // IPv6 addresses of a /64 are one source; an IPv4 address is the same in every notation.
        let v6 = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, n]);
        let first = table.issue(v6(1), 1, 0).unwrap();
        table.issue(v6(2), 1, 0).unwrap();
        table.issue(v6(3), 1, 0).unwrap();
        assert!(!table.0.has(first));
        let mapped = |n| IpAddr::V6(std::net::Ipv4Addr::new(192, 0, 2, n).to_ipv6_mapped());
        table.issue(mapped(2), 1, 0).unwrap();
        table.issue(mapped(2), 1, 0).unwrap();
        assert!(!table.0.has(other));
    }

    #[test]
    fn exempt_sources_have_no_limit_by_source() {
        let exempt = SourceList::parse(&["192.0.2.1".to_owned()]).unwrap();
        let mut table = NumberedTable(Challenges::new(ChallengeLimits { exempt, ..limits() }), 0);
        for _ in 0..4 {
            table.issue(source(1), 1, 0).unwrap();
        }
        assert_eq!(table.0.len(), 4);
    }

    #[test]
    fn challenges_for_datagrams_are_limited_and_further_senders_use_tcp() {
        let limits = ChallengeLimits { per_source_max: 3, datagrams_per_source_max: Some(1), ..limits() };
        let mut table = NumberedTable(Challenges::new(limits), 0);
        let first = table.issue(source(1), 1, 0).unwrap();
        assert_eq!(table.issue(source(1), 1, 0), Err(ChallengeRefusal::OverTcp));
        let connected = RequestOrigin::connection(source(1));
        for _ in 0..2 {
            table.issue_to(connected, 1, 0).unwrap();
        }
        assert!(table.0.has(first));
        table.issue_to(connected, 1, 0).unwrap();
        assert!(!table.0.has(first), "a connection displaces the challenge for a datagram");
        table.issue(source(1), 1, 0).unwrap();
        table.issue(source(2), 1, 0).unwrap();
        assert_eq!(
            table.issue(source(3), 1, 0),
            Err(ChallengeRefusal::OverTcp),
            "half of the table is for connections"
        );
        assert_eq!(table.0.counts().sent_to_tcp, 2);
        assert!(table.issue(source(3), 1, 1000).is_ok(), "room after the others have expired");
        assert!(table.issue(source(4), 50, 1000).is_ok());
        assert_eq!(
            table.issue(source(5), 1, 1000),
            Err(ChallengeRefusal::OverTcp),
            "half of the bytes is for connections"
        );
    }

    #[test]
    fn challenges_in_sessions_are_displaced_last() {
        let mut table = NumberedTable(Challenges::new(limits()), 1000);
        let in_session = |table: &mut NumberedTable, id| {
            let (version, suggested) = (Version::CURRENT, Version::CURRENT);
            let request = Zeroizing::new(vec![7; 1].into());
            let challenge =
                IssuedChallenge { version, suggested, nonce: [1; NONCE_LEN], digest: digest(), request };
            table.0.issue_in_session(id, RequestOrigin::connection(source(9)), challenge, 0).unwrap();
        };
        (1..=3).for_each(|id| in_session(&mut table, id));
        for n in 0..9 {
            table.issue(source(n), 1, 0).unwrap();
        }
        assert!((1..=3).all(|id| table.0.has(id)), "challenges in sessions stay");
        (4..=5).for_each(|id| in_session(&mut table, id));
        assert!(!table.0.has(1) && (2..=5).all(|id| table.0.has(id)));
        assert_eq!(table.0.len(), 4);
    }

    #[test]
    fn a_session_has_one_challenge_and_repeated_requests_get_it_again() {
        let mut table = NumberedTable(Challenges::new(limits()), 0);
        let mut ask = |request_id: u8, digest: u8, nonce: u8, from: u8, now_ms| {
            let request = [[0; 11].as_slice(), &[request_id]].concat().into_boxed_slice().into();
            let digest = Digest::from_bytes(&[digest; 20]);
            let (version, suggested) = (Version::CURRENT, Version::new(2, nonce));
            let challenge =
                IssuedChallenge { version, suggested, nonce: [nonce; NONCE_LEN], digest, request };
            table.0.issue_in_session(7, RequestOrigin::datagram(source(from)), challenge, now_ms).map(
                |pending| {
                    assert_eq!(pending.suggested.minor, pending.nonce[0], "fields of different challenges");
                    pending.nonce[0]
                },
            )
        };
        assert_eq!(ask(1, 1, 10, 1, 0), Ok(10));
        assert_eq!(ask(1, 1, 11, 1, 0), Ok(10), "a repeated request");
        assert_eq!(ask(1, 2, 12, 1, 0), Ok(12), "another request with the same number");
        assert_eq!(ask(2, 2, 13, 1, 0), Ok(13), "another number");
        assert_eq!(ask(2, 2, 14, 1, 1000), Ok(14), "the first one is too old");
        assert!(table.0.has(7) && !table.0.has(8));
        assert_eq!(table.0.take(7, 1000).unwrap().nonce, [14; NONCE_LEN]);
        assert_eq!((table.0.take(7, 1000), table.0.len(), table.0.bytes()), (None, 0, 0));
        let counts = ChallengeCounts { issued: 4, taken: 1, expired: 1, displaced: 2, sent_to_tcp: 0 };
        assert_eq!(table.0.counts(), counts);
    }

    #[test]
    fn the_oldest_challenge_is_displaced() {
        let mut table = NumberedTable(Challenges::new(limits()), 0);
        let ids: Vec<i32> = (0..5).map(|n| table.issue(source(n), 10, 0).unwrap()).collect();
        assert_eq!((table.0.len(), table.0.take(ids[0], 0)), (4, None));
        table.issue(source(9), 70, 0).unwrap();
        assert_eq!(
            (table.0.len(), table.0.bytes()),
            (4, 100),
            "one is displaced for its place, and none for its bytes"
        );
        table.issue(source(8), 100, 0).unwrap();
        assert_eq!((table.0.len(), table.0.bytes()), (1, 100));
        assert_eq!(table.issue(source(7), 101, 0), Err(ChallengeRefusal::TooLong));
        assert_eq!(table.0.counts().displaced, 6);
    }

    #[test]
    fn numbers_are_positive_and_free() {
        let mut table = Challenges::new(limits());
        let version = Version::CURRENT;
        let challenge = IssuedChallenge {
            version,
            suggested: version,
            nonce: [0; NONCE_LEN],
            digest: digest(),
            request: Zeroizing::new(Box::new([])),
        };
        let mut issue = |numbers: &[u32]| {
            let mut numbers = numbers.iter().copied().chain(std::iter::repeat(0));
            table.issue(RequestOrigin::datagram(source(1)), challenge.clone(), || numbers.next().unwrap(), 0)
        };
        assert_eq!(issue(&[0, 0x8000_0000, 0xffff_fffe]), Ok(0x7fff_fffe));
        assert_eq!(issue(&[0x7fff_fffe, 5]), Ok(5));
        let mut table = Challenges::new(limits());
        assert_eq!(
            table.issue(RequestOrigin::datagram(source(1)), challenge, || 0, 0),
            Err(ChallengeRefusal::NoNumber)
        );
    }

    #[test]
    fn another_process_continues_with_the_challenges_that_wait() {
        let mut table = NumberedTable(Challenges::new(limits()), 0);
        let [first, second, taken] = [1, 2, 3].map(|at| table.issue(source(at), 10, 0).unwrap());
        table.0.take(taken, 0).unwrap();
        let waiting = table.0.all_waiting();
        assert_eq!(waiting.iter().map(|it| it.id).collect::<Vec<_>>(), [first, second], "oldest first");
        let mut next = Challenges::new(limits());
        for one in waiting.iter().chain(&waiting) {
            next.continue_with(one.clone(), 5);
        }
        assert_eq!((next.len(), next.bytes()), (2, 20), "each once");
        assert_eq!(next.take(first, 6).unwrap(), waiting[0].challenge);
        assert!(next.take(first, 6).is_none() && next.take(taken, 6).is_none());
        next.continue_with(waiting[0].clone(), 5);
        next.expire(5 + limits().age_ms_max);
        assert!(next.is_empty(), "they expire");
    }

    #[test]
    fn taken_challenges_leave_no_entries() {
        let limits = ChallengeLimits { challenges_max: 1000, per_source_max: 1000, ..limits() };
        let mut table = NumberedTable(Challenges::new(limits), 0);
        for _ in 0..10_000 {
            let id = table.issue(source(1), 1, 0).unwrap();
            table.0.take(id, 0).unwrap();
        }
        assert!(table.0.outside.len() <= 66, "{} entries", table.0.outside.len());
        assert!(table.0.of_source.is_empty());
    }
}
