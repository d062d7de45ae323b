//! The sessions of callers over HTTP: bounded, each with a nonce to sign and, once that is done, with
//! an identity.
//!
//! Anybody can open a session, so one without an identity is kept for a short time and displaces only
//! others without one: the oldest of its source first. Time and random bytes are arguments.

use crate::callers::CallerNonce;
use data_encoding::BASE64URL_NOPAD;
use handle_auth::source;
use handle_client::administration::ClientIdentity;
use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

settings! {
    /// Sessions of the JSON API and of the administration pages ([gateway.md](../gateway.md#sessions)).
    pub struct SessionsConfig {
        /// Sessions with an identity. A further one gets status 503.
        live sessions: usize = 16_384, 1..=1 << 20;
        /// Time after which such a session ends if it is not used.
        live idle_ms: u32 = 1_800_000, 1000..=DAY_MS;
        /// Time after which it ends in any case.
        live session_ms: u32 = DAY_MS, 1000..=DAY_MS;
        /// Sessions without an identity. A further one displaces the oldest.
        live unproven: usize = 65_536, 1..=1 << 20;
        /// Of these, from one source: an IPv4 address, or a /64 of IPv6. A further one displaces the
        /// oldest of its source.
        live unproven_per_source <= unproven: usize = 256, 1..=1 << 20;
        /// Time in which a session has to get its identity.
        live unproven_ms: u32 = 300_000, 1000..=3_600_000;
        /// Accept proofs made with MD5, which old clients make with secret keys.
        live md5: bool = false;
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

    /// The text, for the caller that the session belongs to and for nobody else.
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

#[derive(Debug)]
struct KeptSession {
    nonce: CallerNonce,
    identity: Option<Arc<ClientIdentity>>,
    source: IpAddr,
    started: Instant,
    used: Instant,
}

impl KeptSession {
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
    sessions: HashMap<SessionId, KeptSession>,
    /// Those without an identity by source, the oldest first.
    unproven: HashMap<IpAddr, VecDeque<SessionId>>,
    /// All of these, the oldest first; ids of sessions that are gone are skipped.
    oldest: VecDeque<SessionId>,
    unproven_count: usize,
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
        table.make_room(source, limits, now);
        let kept = KeptSession { nonce, identity: None, source, started: now, used: now };
        table.sessions.insert(id, kept);
        table.unproven.entry(source).or_default().push_back(id);
        table.oldest.push_back(id);
        table.unproven_count += 1;
        HttpSession { id, nonce, identity: None }
    }

    /// The session `id`, which counts as used.
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

    /// Gives a session another nonce.
    pub fn renew(&self, id: SessionId, nonce: CallerNonce) {
        if let Some(session) = self.table().sessions.get_mut(&id) {
            session.nonce = nonce;
        }
    }

    /// Gives a new session, or the one with this id, an identity. Returns false if there are as many
    /// as allowed.
    #[must_use]
    pub fn authenticate(
        &self,
        id: SessionId,
        nonce: CallerNonce,
        identity: Arc<ClientIdentity>,
        limits: &SessionsConfig,
        now: Instant,
    ) -> bool {
        let mut table = self.table();
        if table.sessions.len() - table.unproven_count >= limits.sessions {
            let is_over = |session: &KeptSession| session.identity.is_some() && session.is_over(limits, now);
            table.sessions.retain(|_, session| !is_over(session));
        }
        let is_proven = |session: &KeptSession| session.identity.is_some();
        let was_proven = table.sessions.get(&id).is_some_and(is_proven);
        if !was_proven && table.sessions.len() - table.unproven_count >= limits.sessions {
            return false;
        }
        let source = table.sessions.get(&id).map_or(IpAddr::from([0; 4]), |session| session.source);
        table.remove(id);
        let kept = KeptSession { nonce, identity: Some(identity), source, started: now, used: now };
        table.sessions.insert(id, kept);
        true
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
    fn remove(&mut self, id: SessionId) -> Option<KeptSession> {
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
        Some(session)
    }

    /// Removes what is over, and what has to go for another session without an identity.
    fn make_room(&mut self, source: IpAddr, limits: &SessionsConfig, now: Instant) {
        while let Some(own) = self.unproven.get(&source)
            && own.len() >= limits.unproven_per_source
            && let Some(&id) = own.front()
        {
            self.remove(id);
        }
        while let Some(&id) = self.oldest.front() {
            let keeps =
                self.sessions.get(&id).is_some_and(|it| it.identity.is_none() && !it.is_over(limits, now));
            if keeps && self.unproven_count < limits.unproven {
                break;
            }
            self.oldest.pop_front();
            if self.sessions.get(&id).is_some_and(|it| it.identity.is_none()) {
                self.remove(id);
            }
        }
        if self.oldest.len() > 2 * limits.unproven {
            let sessions = &self.sessions;
            self.oldest.retain(|id| sessions.get(id).is_some_and(|it| it.identity.is_none()));
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

    fn identity() -> Arc<ClientIdentity> {
        let key = IdentityKey::Secret(Zeroizing::new(b"secret".to_vec()));
        Arc::new(ClientIdentity { handle: b"0.NA/20.500.1".to_vec(), index: 300, key })
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
        assert!(table.authenticate(id(9), [0; 32], identity(), &limits, now));
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
        assert!(table.authenticate(id(2), [1; 32], identity(), &limits, start));
        for ms in [999, 1998, 2997] {
            assert!(table.find(id(2), &limits, at(ms)).is_some_and(|session| session.nonce == [1; 32]));
        }
        assert!(table.find(id(2), &limits, at(3000)).is_none(), "too old");
        assert!(table.authenticate(id(3), [0; 32], identity(), &limits, start));
        assert!(table.find(id(3), &limits, at(1000)).is_none(), "idle");
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn there_is_a_number_of_sessions_with_an_identity() {
        let (table, limits, now) = (HttpSessions::default(), limits(), Instant::now());
        let authenticate = |number, now| table.authenticate(id(number), [0; 32], identity(), &limits, now);
        assert!(authenticate(1, now) && authenticate(2, now));
        assert!(!authenticate(3, now));
        assert!(authenticate(2, now), "again");
        assert!(table.end(id(1)).is_some() && table.end(id(1)).is_none());
        assert!(authenticate(3, now));
        assert!(authenticate(4, now + Duration::from_secs(1)), "the others are over");
    }
}
