//! The sessions of callers over HTTP. Each has a nonce to sign and, after a valid signature, an
//! identity.
//!
//! The table is bounded. Anybody can open a session, so sessions without an identity are kept for a
//! short time and displace only each other, the oldest of the same source first. Time and random
//! bytes are arguments.

pub mod config;

use crate::api::scheme::OldDigests;
use crate::callers::CallerNonce;
use config::SessionsConfig;
use data_encoding::BASE64URL_NOPAD;
use handle_auth::source;
use handle_client::administration::ClientIdentity;
use handle_proto::fold;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

impl SessionsConfig {
    /// The old digests that are accepted in proofs.
    #[must_use]
    pub const fn old_digests(&self) -> OldDigests {
        OldDigests { md5: self.md5, sha1: self.sha1 }
    }
}

/// The id of a session: a secret of 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// The id with these bytes.
    #[must_use]
    pub const fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// Parses the text of an id.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }

    /// The text, for the caller of the session only.
    #[must_use]
    pub fn secret_text(&self) -> String {
        BASE64URL_NOPAD.encode(&self.0)
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a session id")
    }
}

/// A session, as a request finds it.
#[derive(Clone, Debug)]
pub struct HttpSession {
    /// Its id.
    pub id: SessionId,
    /// The nonce to sign.
    pub nonce: CallerNonce,
    /// The identity, once it is proven.
    pub identity: Option<Arc<ClientIdentity>>,
}

/// Why a session does not get an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthenticateError {
    /// There are as many sessions with an identity as allowed.
    Full,
    /// The session has ended, or got another nonce, since it was found.
    Changed,
}

/// The identities of sessions that were displaced, whose sessions at `handle-admin` are to end.
pub type DisplacedIdentities = Vec<Arc<ClientIdentity>>;

/// An identity: its handle with its case folded, and its index.
type IdentityName = (Vec<u8>, i32);

fn name_of(identity: &ClientIdentity) -> IdentityName {
    (fold::folded(&identity.handle), identity.index)
}

#[derive(Debug)]
struct StoredSession {
    nonce: CallerNonce,
    identity: Option<Arc<ClientIdentity>>,
    source: IpAddr,
    started: Instant,
    used: Instant,
}

impl StoredSession {
    fn is_over(&self, limits: &SessionsConfig, now: Instant) -> bool {
        let (age, idle) = (now.duration_since(self.started), now.duration_since(self.used));
        let after = |ms: u32| Duration::from_millis(ms.into());
        match self.identity {
            Some(_) => age >= after(limits.session_ms) || idle >= after(limits.idle_ms),
            None => age >= after(limits.unproven_ms),
        }
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub struct HttpSessions(Mutex<SessionTable>);

#[derive(Debug, Default)]
struct SessionTable {
    sessions: HashMap<SessionId, StoredSession>,
    /// Sessions without an identity by source, the oldest first.
    unproven: HashMap<IpAddr, VecDeque<SessionId>>,
    /// All sessions without an identity, the oldest first; ids of ended sessions are skipped.
    oldest: VecDeque<SessionId>,
    unproven_count: usize,
    /// Those with an identity, the oldest first.
    proven: HashMap<IdentityName, VecDeque<SessionId>>,
}

impl HttpSessions {
    fn table(&self) -> MutexGuard<'_, SessionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session without an identity for a caller at `address`.
    pub fn open(
        &self,
        id: SessionId,
        nonce: CallerNonce,
        address: IpAddr,
        limits: &SessionsConfig,
        now: Instant,
    ) -> HttpSession {
        let (mut table, source) = (self.table(), source::of(address));
        table.evict_for(source, limits, now);
        let stored = StoredSession { nonce, identity: None, source, started: now, used: now };
        table.sessions.insert(id, stored);
        table.unproven.entry(source).or_default().push_back(id);
        table.oldest.push_back(id);
        table.unproven_count += 1;
        HttpSession { id, nonce, identity: None }
    }

    /// Finds the session `id`, and records its use.
    #[must_use]
    pub fn find(&self, id: SessionId, limits: &SessionsConfig, now: Instant) -> Option<HttpSession> {
        let mut table = self.table();
        let session = table.sessions.get_mut(&id)?;
        if session.is_over(limits, now) {
            table.remove(id);
            return None;
        }
        session.used = now;
        Some(HttpSession { id, nonce: session.nonce, identity: session.identity.clone() })
    }

    /// Replaces the nonce of a session.
    pub fn renew(&self, id: SessionId, nonce: CallerNonce) {
        if let Some(session) = self.table().sessions.get_mut(&id) {
            session.nonce = nonce;
        }
    }

    /// Adds a session with the id and nonce of `session` and an identity.
    ///
    /// # Errors
    /// When there are as many as allowed.
    pub fn add(
        &self,
        session: HttpSession,
        identity: Arc<ClientIdentity>,
        limits: &SessionsConfig,
        now: Instant,
    ) -> Result<DisplacedIdentities, AuthenticateError> {
        self.table().prove(session, identity, limits, now)
    }

    /// Gives `session`, as it was found when the proof began, an identity and the nonce `next`.
    ///
    /// # Errors
    /// When the session has ended or changed in the meantime, or there are as many as allowed.
    pub fn authenticate(
        &self,
        session: &HttpSession,
        next: CallerNonce,
        identity: Arc<ClientIdentity>,
        limits: &SessionsConfig,
        now: Instant,
    ) -> Result<DisplacedIdentities, AuthenticateError> {
        let mut table = self.table();
        let is_unchanged = |kept: &StoredSession| {
            kept.nonce == session.nonce
                && kept.identity.as_ref().is_none_or(|known| fold::eq(&known.handle, &identity.handle))
        };
        if !table.sessions.get(&session.id).is_some_and(is_unchanged) {
            return Err(AuthenticateError::Changed);
        }
        table.prove(HttpSession { id: session.id, nonce: next, identity: None }, identity, limits, now)
    }

    /// Ends a session, and returns the identity that it had.
    pub fn end(&self, id: SessionId) -> Option<Arc<ClientIdentity>> {
        self.table().remove(id).and_then(|session| session.identity)
    }

    /// Number of sessions with and without an identity.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let table = self.table();
        (table.sessions.len() - table.unproven_count, table.unproven_count)
    }
}

impl SessionTable {
    fn remove(&mut self, id: SessionId) -> Option<StoredSession> {
        let session = self.sessions.remove(&id)?;
        if session.identity.is_none() {
            self.unproven_count -= 1;
            if let Some(own) = self.unproven.get_mut(&session.source) {
                own.retain(|other| *other != id);
                if own.is_empty() {
                    self.unproven.remove(&session.source);
                }
            }
        }
        if let Some(name) = session.identity.as_deref().map(name_of)
            && let Some(own) = self.proven.get_mut(&name)
        {
            own.retain(|other| *other != id);
            if own.is_empty() {
                self.proven.remove(&name);
            }
        }
        Some(session)
    }

    /// Adds a session with an identity, which may be there without one, and returns the identities
    /// of those that it displaces.
    fn prove(
        &mut self,
        session: HttpSession,
        identity: Arc<ClientIdentity>,
        limits: &SessionsConfig,
        now: Instant,
    ) -> Result<DisplacedIdentities, AuthenticateError> {
        let HttpSession { id, nonce, .. } = session;
        let (name, mut displaced) = (name_of(&identity), Vec::new());
        let is_own = |table: &Self| table.sessions.get(&id).is_some_and(|it| it.identity.is_some());
        if !is_own(self) {
            while let Some(own) = self.proven.get(&name)
                && own.len() >= limits.per_identity
                && let Some(&oldest) = own.front()
            {
                displaced.extend(self.remove(oldest).and_then(|session| session.identity));
            }
            if self.is_full(limits) {
                let is_over = |it: &StoredSession| it.identity.is_some() && it.is_over(limits, now);
                let over = self.sessions.iter().filter(|(_, it)| is_over(it)).map(|(id, _)| *id);
                for id in over.collect::<Vec<_>>() {
                    self.remove(id);
                }
            }
            if self.is_full(limits) {
                return Err(AuthenticateError::Full);
            }
        }
        let before = self.remove(id);
        let source = before.map_or(IpAddr::from([0; 4]), |session| session.source);
        let kept = StoredSession { nonce, identity: Some(identity), source, started: now, used: now };
        self.sessions.insert(id, kept);
        self.proven.entry(name).or_default().push_back(id);
        Ok(displaced)
    }

    /// Whether there are as many sessions with an identity as allowed.
    fn is_full(&self, limits: &SessionsConfig) -> bool {
        self.sessions.len() - self.unproven_count >= limits.sessions
    }

    /// Removes what is over, and what has to go for another session without an identity.
    fn evict_for(&mut self, source: IpAddr, limits: &SessionsConfig, now: Instant) {
        while let Some(own) = self.unproven.get(&source)
            && own.len() >= limits.unproven_per_source
            && let Some(&id) = own.front()
        {
            self.remove(id);
        }
        while let Some(&id) = self.oldest.front() {
            let is_kept = self
                .sessions
                .get(&id)
                .is_some_and(|session| session.identity.is_none() && !session.is_over(limits, now));
            if is_kept && self.unproven_count < limits.unproven {
                break;
            }
            self.oldest.pop_front();
            if self.sessions.get(&id).is_some_and(|session| session.identity.is_none()) {
                self.remove(id);
            }
        }
        if self.oldest.len() > 2 * limits.unproven {
            let sessions = &self.sessions;
            self.oldest.retain(|id| sessions.get(id).is_some_and(|session| session.identity.is_none()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_client::administration::IdentityKey;
    use zeroize::Zeroizing;

    fn limits() -> SessionsConfig {
        SessionsConfig {
            sessions: 2,
            per_identity: 2,
            idle_ms: 1000,
            session_ms: 3000,
            unproven: 4,
            unproven_per_source: 2,
            unproven_ms: 2000,
            ..SessionsConfig::default()
        }
    }

    fn id(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    fn identity(index: i32) -> Arc<ClientIdentity> {
        let key = IdentityKey::Secret(Zeroizing::new(b"secret".to_vec()));
        Arc::new(ClientIdentity { handle: b"0.NA/20.500.1".to_vec(), index, key })
    }

    /// Gives a new session, or the one with this number, an identity of its own.
    fn prove(table: &HttpSessions, number: u8, nonce: u8, now: Instant) -> bool {
        prove_as(table, number, nonce, i32::from(number), now).is_ok()
    }

    fn prove_as(
        table: &HttpSessions,
        number: u8,
        nonce: u8,
        index: i32,
        now: Instant,
    ) -> Result<DisplacedIdentities, AuthenticateError> {
        let session = HttpSession { id: id(number), nonce: [nonce; 32], identity: None };
        table.add(session, identity(index), &limits(), now)
    }

    #[test]
    fn ids_are_text_for_headers_and_cookies() {
        let text = id(200).secret_text();
        assert_eq!((text.len(), SessionId::parse(&text)), (22, Some(id(200))));
        for bad in ["", "nope", "AAAA", &"A".repeat(23), "????"] {
            assert_eq!(SessionId::parse(bad), None, "{bad}");
        }
        assert!(!format!("{:?}", id(200)).contains("200"));
    }

    #[test]
    fn sessions_of_strangers_displace_only_each_other() {
        let (table, limits, now) = (HttpSessions::default(), limits(), Instant::now());
        let [one, other] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let found = |number| table.find(id(number), &limits, now).is_some();
        assert!(prove(&table, 9, 0, now));
        for number in 1..=3 {
            table.open(id(number), [0; 32], one, &limits, now);
        }
        assert!(!found(1) && found(2) && found(3), "two for each source");
        table.open(id(4), [0; 32], other, &limits, now);
        table.open(id(5), [0; 32], other, &limits, now);
        assert_eq!(table.counts(), (1, 4));
        table.open(id(6), [0; 32], IpAddr::from([192, 0, 2, 3]), &limits, now);
        assert!(!found(2) && found(3) && found(6) && found(9), "four in all");
        for number in 10..=250 {
            table.open(id(number), [0; 32], one, &limits, now);
        }
        assert!(table.counts() == (1, 4) && found(9));
        assert!(table.table().oldest.len() <= 2 * limits.unproven + 1);
        assert!(table.table().unproven.len() <= 4);
    }

    #[test]
    fn sessions_end_by_age_and_idleness() {
        let (table, limits, start) = (HttpSessions::default(), limits(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let source = IpAddr::from([192, 0, 2, 1]);
        table.open(id(1), [0; 32], source, &limits, start);
        assert!(table.find(id(1), &limits, at(1999)).is_some());
        assert!(table.find(id(1), &limits, at(2000)).is_none(), "without an identity");
        table.open(id(2), [0; 32], source, &limits, start);
        assert!(prove(&table, 2, 1, start));
        for ms in [999, 1998, 2997] {
            assert!(table.find(id(2), &limits, at(ms)).is_some_and(|session| session.nonce == [1; 32]));
        }
        assert!(table.find(id(2), &limits, at(3000)).is_none(), "too old");
        assert!(prove(&table, 3, 0, start));
        assert!(table.find(id(3), &limits, at(1000)).is_none(), "idle");
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn there_is_a_number_of_sessions_with_an_identity() {
        let (table, now) = (HttpSessions::default(), Instant::now());
        let authenticate = |number, now| prove(&table, number, 0, now);
        assert!(authenticate(1, now) && authenticate(2, now));
        assert!(!authenticate(3, now));
        assert!(authenticate(2, now), "again");
        assert!(table.end(id(1)).is_some() && table.end(id(1)).is_none());
        assert!(authenticate(3, now));
        assert!(authenticate(4, now + Duration::from_secs(1)), "the others are over");
    }

    #[test]
    fn an_identity_displaces_only_its_own_oldest_session_above_its_number() {
        let (table, now) = (HttpSessions::default(), Instant::now());
        let limits = SessionsConfig { sessions: 4, ..limits() };
        let add = |number: u8, handle: &[u8], index| {
            let session = HttpSession { id: id(number), nonce: [0; 32], identity: None };
            let key = IdentityKey::Secret(Zeroizing::new(vec![number]));
            let identity = Arc::new(ClientIdentity { handle: handle.to_vec(), index, key });
            table.add(session, identity, &limits, now).map(|displaced| displaced.len())
        };
        let found = |number| table.find(id(number), &limits, now).is_some();
        assert_eq!([add(1, b"0.NA/1", 300), add(2, b"0.na/1", 300), add(3, b"0.NA/1", 301)], [Ok(0); 3]);
        assert_eq!(add(4, b"0.NA/1", 300), Ok(1), "one above its two, whatever the case");
        assert!(!found(1) && found(2) && found(3) && found(4));
        assert_eq!(add(4, b"0.NA/1", 300), Ok(0), "again");
        assert_eq!(add(5, b"0.NA/2", 300), Ok(0));
        assert_eq!(add(6, b"0.NA/3", 300), Err(AuthenticateError::Full));
        assert_eq!(add(6, b"0.NA/1", 300), Ok(1), "its own place");
        assert!(!found(2) && found(4) && found(5) && found(6));
        for number in 3..=6 {
            table.end(id(number));
        }
        assert!(table.table().proven.is_empty() && table.counts() == (0, 0));
    }

    #[test]
    fn a_proof_counts_only_for_the_session_as_it_was_found() {
        let (table, limits, now) = (HttpSessions::default(), limits(), Instant::now());
        let open = || table.open(id(1), [1; 32], IpAddr::from([192, 0, 2, 1]), &limits, now);
        let ended = open();
        table.end(id(1));
        let proven = |session: &HttpSession, next: u8, identity| {
            table.authenticate(session, [next; 32], identity, &limits, now)
        };
        assert_eq!(proven(&ended, 2, identity(300)).err(), Some(AuthenticateError::Changed), "ended");
        assert!(table.find(id(1), &limits, now).is_none(), "and stays so");
        let session = open();
        assert!(proven(&session, 2, identity(300)).is_ok());
        assert_eq!(proven(&session, 3, identity(301)).err(), Some(AuthenticateError::Changed), "overtaken");
        let session = table.find(id(1), &limits, now).unwrap();
        assert_eq!(session.identity.as_ref().map(|it| it.index), Some(300));
        let key = IdentityKey::Secret(Zeroizing::new(b"secret".to_vec()));
        let other = Arc::new(ClientIdentity { handle: b"0.NA/20.500.2".to_vec(), index: 300, key });
        assert_eq!(proven(&session, 3, other).err(), Some(AuthenticateError::Changed), "another identity");
        assert!(proven(&session, 3, identity(300)).is_ok());
        assert_eq!(table.counts(), (1, 0));
    }
}
