//! The sessions of callers of `handle-gateway`: the nonces that callers sign, and the secrets that
//! authenticate their requests afterwards. Time and random bytes are arguments.
//!
//! A nonce begins with random bytes of this process, so no proof is older than these, and each
//! nonce is accepted once. Only verified proofs add state.

mod continuation;

use crate::operation::CandidateKey;
use handle_auth::Digest;
use handle_auth::challenge::{CoveredBytes, verify_in_session};
use handle_auth::digest::digest;
use handle_local::callers::{CallerSessionId, CallerSessionSecret, NONCE_LEN, NONCE_START_LEN};
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::list::Reference;
use handle_store::key;
use std::collections::{HashMap, HashSet, VecDeque};

/// Maximum number of valid starts of nonces. `handle-gateway` requests new ones regularly.
const STARTS_MAX: usize = 64;

/// Bounds of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerSessionLimits {
    /// Milliseconds for which a nonce is valid.
    pub nonce_ms: u64,
    /// Maximum number of sessions.
    pub sessions: usize,
    /// Maximum number of sessions of one identity. A new one displaces its oldest.
    pub per_identity: usize,
    /// Milliseconds without use after which a session ends.
    pub idle_ms: u64,
    /// Milliseconds after which a session ends in any case.
    pub age_ms: u64,
    /// Milliseconds after which the key of an identity of another service is looked up again.
    pub recheck_ms: u64,
}

/// The key with which an identity was proven. The session ends when the identity no longer has it.
#[derive(Clone, Debug)]
pub struct ProvenKey {
    /// The type of its value.
    pub kind: &'static [u8],
    /// The index of its value.
    pub index: i32,
    digest: Option<Digest>,
}

impl ProvenKey {
    /// The key in the value `key` of type `kind`.
    #[must_use]
    pub fn new(kind: &'static [u8], key: &CandidateKey) -> Self {
        Self { kind, index: key.index, digest: digest_of(key) }
    }

    /// Whether `key` is this one.
    #[must_use]
    pub fn is(&self, key: &CandidateKey) -> bool {
        self.index == key.index && self.digest.is_some() && self.digest == digest_of(key)
    }
}

fn digest_of(key: &CandidateKey) -> Option<Digest> {
    digest(DigestAlgorithm::SHA256, [&key.data[..]])
}

#[derive(Debug)]
struct NonceStart {
    bytes: [u8; NONCE_START_LEN],
    issued_ms: u64,
    valid_ms: u64,
    /// The ends of used nonces.
    used: HashSet<[u8; NONCE_START_LEN]>,
}

/// An identity: the name under which the store would keep its record, and the index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CallerIdentity(Vec<u8>, i32);

/// A session.
#[derive(Debug)]
struct CallerSession {
    identity: CallerIdentity,
    secret: CallerSessionSecret,
    /// `None` if only another service knows the key, which is secret.
    key: Option<ProvenKey>,
    /// When another service was last asked about the key.
    asked_ms: u64,
    recheck_ms: u64,
    started_ms: u64,
    used_ms: u64,
    idle_ms: u64,
    age_ms: u64,
}

impl CallerSession {
    fn is_over(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.used_ms) >= self.idle_ms
            || now_ms.saturating_sub(self.started_ms) >= self.age_ms
    }
}

/// The sessions of callers, and the nonces that count.
#[derive(Debug)]
pub struct CallerSessions {
    starts: VecDeque<NonceStart>,
    sessions: HashMap<CallerSessionId, CallerSession>,
    folds: bool,
}

impl CallerSessions {
    /// No sessions yet. `folds` tells whether the service folds local names.
    #[must_use]
    pub fn new(folds: bool) -> Self {
        Self { starts: VecDeque::new(), sessions: HashMap::new(), folds }
    }

    fn identity(&self, reference: Reference<'_>) -> CallerIdentity {
        CallerIdentity(key(reference.handle, self.folds), reference.index)
    }

    /// Makes `random` the start of further nonces.
    pub fn start_nonces(&mut self, random: [u8; NONCE_START_LEN], limits: &CallerSessionLimits, now_ms: u64) {
        self.starts.retain(|start| now_ms.saturating_sub(start.issued_ms) < start.valid_ms);
        if self.starts.len() >= STARTS_MAX {
            self.starts.pop_front();
        }
        let (issued_ms, valid_ms) = (now_ms, limits.nonce_ms);
        self.starts.push_back(NonceStart { bytes: random, issued_ms, valid_ms, used: HashSet::new() });
    }

    /// Whether `nonce` is valid and unused.
    #[must_use]
    pub fn is_open(&self, nonce: &[u8], now_ms: u64) -> bool {
        let Some((start, end)) = split(nonce) else { return false };
        let found = self.starts.iter().find(|known| known.bytes == start);
        found.is_some_and(|known| {
            now_ms.saturating_sub(known.issued_ms) < known.valid_ms && !known.used.contains(&end)
        })
    }

    /// Marks `nonce` as used. Returns false if it is not valid, or if too many nonces with this
    /// start were used.
    #[must_use]
    pub fn take(&mut self, nonce: &[u8], limits: &CallerSessionLimits, now_ms: u64) -> bool {
        if !self.is_open(nonce, now_ms) {
            return false;
        }
        let Some((start, end)) = split(nonce) else { return false };
        let found = self.starts.iter_mut().find(|known| known.bytes == start);
        found.is_some_and(|known| known.used.len() < limits.sessions && known.used.insert(end))
    }

    /// Starts a session for `identity`, which has been proven with `key`. If there is no capacity,
    /// the session that was not used for longest ends, of the identity that has most of them.
    pub fn begin(
        &mut self,
        id: CallerSessionId,
        secret: CallerSessionSecret,
        identity: Reference<'_>,
        key: Option<ProvenKey>,
        limits: &CallerSessionLimits,
        now_ms: u64,
    ) {
        let identity = self.identity(identity);
        let mut own: Vec<(u64, CallerSessionId)> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.identity == identity)
            .map(|(id, session)| (session.used_ms, *id))
            .collect();
        if own.len() >= limits.per_identity {
            own.sort_unstable();
            let surplus = own.len() + 1 - limits.per_identity;
            for (_, id) in &own[..surplus] {
                self.sessions.remove(id);
            }
        }
        if self.sessions.len() >= limits.sessions {
            self.sessions.retain(|_, session| !session.is_over(now_ms));
        }
        // More than one only after the limit was lowered.
        while self.sessions.len() >= limits.sessions {
            let Some(displaced) = self.to_displace() else { break };
            self.sessions.remove(&displaced);
        }
        let session = CallerSession {
            identity,
            secret,
            key,
            asked_ms: now_ms,
            recheck_ms: limits.recheck_ms,
            started_ms: now_ms,
            used_ms: now_ms,
            idle_ms: limits.idle_ms,
            age_ms: limits.age_ms,
        };
        self.sessions.insert(id, session);
    }

    /// The session that was not used for longest, of the identities with most sessions.
    fn to_displace(&self) -> Option<CallerSessionId> {
        let mut held: HashMap<&CallerIdentity, usize> = HashMap::new();
        for session in self.sessions.values() {
            *held.entry(&session.identity).or_default() += 1;
        }
        let most = held.values().max()?;
        let of_these = self.sessions.iter().filter(|(_, session)| held[&session.identity] == *most);
        of_these.min_by_key(|(_, session)| session.used_ms).map(|(id, _)| *id)
    }

    /// Whether `answer`, to a challenge that covers `covered`, was made in a session of `identity`.
    #[must_use]
    pub fn verify(
        &mut self,
        identity: Reference<'_>,
        covered: &CoveredBytes<'_>,
        answer: &[u8],
        now_ms: u64,
    ) -> bool {
        let Some((id, _)) = answer.split_first_chunk::<16>() else { return false };
        let identity = self.identity(identity);
        let Some(session) = self.sessions.get_mut(id) else { return false };
        if session.is_over(now_ms) {
            self.sessions.remove(id);
            return false;
        }
        let is_right =
            session.identity == identity && verify_in_session(covered, answer, &*session.secret).is_ok();
        if is_right {
            session.used_ms = now_ms;
        }
        is_right
    }

    /// The key with which the identity of a session was proven, and whether it is time to ask
    /// another service about it. `None` if there is no such session, or no key to look up.
    #[must_use]
    pub fn proven_key(&self, id: CallerSessionId, now_ms: u64) -> Option<(ProvenKey, bool)> {
        let session = self.sessions.get(&id)?;
        let is_due = now_ms.saturating_sub(session.asked_ms) >= session.recheck_ms;
        Some((session.key.clone()?, is_due))
    }

    /// Another service has confirmed the key of a session.
    pub fn confirm(&mut self, id: CallerSessionId, now_ms: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.asked_ms = now_ms;
        }
    }

    /// Ends a session.
    pub fn end(&mut self, id: CallerSessionId) {
        self.sessions.remove(&id);
    }

    /// Number of sessions, including expired ones that have not been removed yet.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sessions.len()
    }
}

/// Splits a nonce of the right length into start and end.
fn split(nonce: &[u8]) -> Option<([u8; NONCE_START_LEN], [u8; NONCE_START_LEN])> {
    let nonce: &[u8; NONCE_LEN] = nonce.try_into().ok()?;
    let (start, end) = nonce.split_at(NONCE_START_LEN);
    Some((start.try_into().ok()?, end.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_auth::challenge::answer_in_session;
    use zeroize::Zeroizing;

    const LIMITS: CallerSessionLimits = CallerSessionLimits {
        nonce_ms: 1000,
        sessions: 3,
        per_identity: 2,
        idle_ms: 100,
        age_ms: 250,
        recheck_ms: 50,
    };
    const COVERED: CoveredBytes<'_> = [b"nonce", b"digest"];

    fn identity(index: i32) -> Reference<'static> {
        Reference { handle: b"0.NA/20.500.1", index }
    }

    fn begin(table: &mut CallerSessions, id: u8, index: i32, now_ms: u64) {
        table.begin([id; 16], Zeroizing::new([id; 32]), identity(index), None, &LIMITS, now_ms);
    }

    fn verify(table: &mut CallerSessions, id: u8, index: i32, now_ms: u64) -> bool {
        let answer = answer_in_session(&COVERED, &[id; 16], &[id; 32]);
        table.verify(identity(index), &COVERED, &answer, now_ms)
    }

    #[test]
    fn a_nonce_counts_once_while_it_is_young_and_only_from_here() {
        let mut table = CallerSessions::new(true);
        table.start_nonces([1; 16], &LIMITS, 0);
        let nonce = |start: u8, end: u8| [[start; 16], [end; 16]].concat();
        assert!(table.is_open(&nonce(1, 5), 999) && table.take(&nonce(1, 5), &LIMITS, 999));
        assert!(!table.take(&nonce(1, 5), &LIMITS, 999), "used");
        assert!(!table.is_open(&nonce(1, 6), 1000), "old");
        assert!(!table.is_open(&nonce(2, 6), 0), "not from here");
        assert!(!table.is_open(&nonce(1, 6)[..31], 0) && !table.is_open(b"", 0));
        for end in 6..8 {
            assert!(table.take(&nonce(1, end), &LIMITS, 0));
        }
        assert!(!table.take(&nonce(1, 9), &LIMITS, 0), "as many as there may be sessions");
        for start in 0..=STARTS_MAX {
            table.start_nonces([u8::try_from(start).unwrap(); 16], &LIMITS, 1);
        }
        assert_eq!(table.starts.len(), STARTS_MAX);
    }

    #[test]
    fn a_session_authenticates_its_identity_until_it_ends() {
        let mut table = CallerSessions::new(true);
        begin(&mut table, 1, 300, 0);
        assert!(verify(&mut table, 1, 300, 99));
        assert!(!verify(&mut table, 1, 301, 99), "another identity");
        assert!(!verify(&mut table, 2, 300, 99), "no such session");
        let forged = answer_in_session(&COVERED, &[1; 16], &[2; 32]);
        assert!(!table.verify(identity(300), &COVERED, &forged, 99), "another secret");
        assert!(verify(&mut table, 1, 300, 198), "used at 99");
        assert!(!verify(&mut table, 1, 300, 250), "too old");
        begin(&mut table, 1, 300, 300);
        assert!(!verify(&mut table, 1, 300, 400), "idle");
        begin(&mut table, 1, 300, 400);
        table.end([1; 16]);
        assert!(!verify(&mut table, 1, 300, 400));
    }

    #[test]
    fn a_key_is_that_of_its_index_and_content_and_another_service_is_asked_now_and_then() {
        let value = |index, data: &[u8]| CandidateKey { index, data: Zeroizing::new(data.to_vec()) };
        let key = ProvenKey::new(b"HS_PUBKEY", &value(300, b"key"));
        assert!(key.is(&value(300, b"key")));
        assert!(!key.is(&value(300, b"other")) && !key.is(&value(301, b"key")));
        let mut table = CallerSessions::new(true);
        table.begin([1; 16], Zeroizing::new([1; 32]), identity(300), Some(key), &LIMITS, 0);
        let is_due = |table: &CallerSessions, now_ms| table.proven_key([1; 16], now_ms).unwrap().1;
        assert!(!is_due(&table, 49) && is_due(&table, 50));
        table.confirm([1; 16], 50);
        assert!(!is_due(&table, 99) && is_due(&table, 100));
        assert!(table.proven_key([2; 16], 0).is_none());
    }

    #[test]
    fn names_are_compared_as_the_store_compares_them() {
        for folds in [true, false] {
            let mut table = CallerSessions::new(folds);
            let reference = |handle: &'static [u8]| Reference { handle, index: 1 };
            table.begin([1; 16], Zeroizing::new([1; 32]), reference(b"10.1/a"), None, &LIMITS, 0);
            let answer = answer_in_session(&COVERED, &[1; 16], &[1; 32]);
            assert!(table.verify(reference(b"10.1/a"), &COVERED, &answer, 0));
            assert_eq!(table.verify(reference(b"10.1/A"), &COVERED, &answer, 0), folds);
        }
    }

    #[test]
    fn sessions_are_bounded_in_all_and_by_identity() {
        let mut table = CallerSessions::new(true);
        begin(&mut table, 1, 300, 0);
        begin(&mut table, 2, 300, 1);
        begin(&mut table, 3, 300, 2);
        assert!(!verify(&mut table, 1, 300, 2) && verify(&mut table, 2, 300, 3), "the oldest is displaced");
        begin(&mut table, 4, 301, 4);
        assert_eq!(table.count(), 3);
        begin(&mut table, 5, 302, 4);
        assert!(!verify(&mut table, 3, 300, 4), "the oldest of the identity with most, used at 2");
        let others = [(2, 300), (4, 301), (5, 302)];
        assert!(others.into_iter().all(|(id, index)| verify(&mut table, id, index, 5 + u64::from(id))));
        begin(&mut table, 6, 303, 20);
        assert!(!verify(&mut table, 2, 300, 20), "the oldest of all, where each has one");
        assert!(verify(&mut table, 6, 303, 20) && verify(&mut table, 4, 301, 20));
        begin(&mut table, 7, 304, 200);
        assert_eq!(table.count(), 1, "the others are over");
        let lowered = CallerSessionLimits { sessions: 1, ..LIMITS };
        begin(&mut table, 8, 305, 200);
        table.begin([9; 16], Zeroizing::new([9; 32]), identity(306), None, &lowered, 200);
        assert_eq!(table.count(), 1);
    }
}
