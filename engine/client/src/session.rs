//! Sessions that lookups share: those in which a challenge was answered.

use crate::exchange::{AnswerTimeouts, Exchange, RequestHead, request_id};
use crate::identity::ClientIdentity;
use crate::open_session::OpenSession;
use crate::plan::ServerTarget;
use crate::{ClockReading, RandomSource};
use handle_proto::data::site::InterfaceProtocol;
use handle_proto::name::BLANK;
use handle_proto::wire::Request;
use handle_proto::wire::admin::HandleBody;
use handle_proto::{OpCode, OpFlags};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Sessions in which a challenge was answered, by server and identity; a bounded number.
///
/// Identities are distinguished by their address in memory, not by their name: a client with the
/// same name and another key is another server.
#[derive(Debug)]
pub struct SessionPool {
    sessions_max: usize,
    entries: Mutex<Vec<SessionEntry>>,
}

#[derive(Debug)]
struct SessionEntry {
    /// The server, at the interface at which it was asked.
    target: ServerTarget,
    identity: Weak<ClientIdentity>,
    state: EntryState,
}

#[derive(Debug)]
enum EntryState {
    /// The session exists.
    Kept(Arc<OpenSession>),
    /// A caller is setting it up, until the claim is dropped.
    Claimed(Weak<SetupClaim>),
    /// It could not be set up, and is not tried again until then.
    Refused { until_ms: u64 },
}

/// How long a server that refused a session for an identity is not asked again.
const REFUSED_MS: u64 = 600_000;

/// Held while a session is set up, so that no other caller does the same.
#[derive(Debug)]
pub(crate) struct SetupClaim;

impl SessionEntry {
    /// A server has its sessions at all its interfaces.
    fn is_of(&self, target: &ServerTarget, identity: &Arc<ClientIdentity>) -> bool {
        self.target.address.ip() == target.address.ip()
            && self.target.public_key == target.public_key
            && std::ptr::eq(self.identity.as_ptr(), Arc::as_ptr(identity))
    }

    fn session(&self) -> Option<&Arc<OpenSession>> {
        match &self.state {
            EntryState::Kept(session) => Some(session),
            EntryState::Claimed(_) | EntryState::Refused { .. } => None,
        }
    }

    fn is_alive(&self, now: ClockReading) -> bool {
        let is_wanted = match &self.state {
            EntryState::Kept(_) => true,
            EntryState::Claimed(claim) => claim.strong_count() > 0,
            EntryState::Refused { until_ms } => now.ms < *until_ms,
        };
        // The sessions of dropped identities are no longer needed.
        is_wanted && self.identity.strong_count() > 0
    }
}

impl SessionPool {
    /// Keeps at most `sessions_max`; the oldest is dropped.
    #[must_use]
    pub const fn new(sessions_max: usize) -> Self {
        Self { sessions_max, entries: Mutex::new(vec![]) }
    }

    fn lock_entries(&self) -> MutexGuard<'_, Vec<SessionEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(
        &self,
        known: &mut Vec<SessionEntry>,
        target: &ServerTarget,
        identity: &Arc<ClientIdentity>,
        state: EntryState,
        now: ClockReading,
    ) {
        known.retain(|known| known.is_alive(now) && !known.is_of(target, identity));
        while known.len() >= self.sessions_max.max(1) {
            known.remove(0);
        }
        known.push(SessionEntry { target: target.clone(), identity: Arc::downgrade(identity), state });
    }

    /// The session of `identity` with a server.
    pub(crate) fn get(
        &self,
        target: &ServerTarget,
        identity: &Arc<ClientIdentity>,
    ) -> Option<Arc<OpenSession>> {
        let known = self.lock_entries();
        known.iter().find(|known| known.is_of(target, identity))?.session().cloned()
    }

    /// Claims the right to set up a session. `None` if there is one, another caller is setting it
    /// up, or it failed recently.
    pub(crate) fn claim(
        &self,
        target: &ServerTarget,
        identity: &Arc<ClientIdentity>,
        now: ClockReading,
    ) -> Option<Arc<SetupClaim>> {
        let mut known = self.lock_entries();
        if known.iter().any(|known| known.is_of(target, identity) && known.is_alive(now)) {
            return None;
        }
        let claim = Arc::new(SetupClaim);
        self.put(&mut known, target, identity, EntryState::Claimed(Arc::downgrade(&claim)), now);
        Some(claim)
    }

    /// Records that no session could be set up.
    pub(crate) fn refuse(&self, target: &ServerTarget, identity: &Arc<ClientIdentity>, now: ClockReading) {
        let until_ms = now.ms.saturating_add(REFUSED_MS);
        self.put(&mut self.lock_entries(), target, identity, EntryState::Refused { until_ms }, now);
    }

    /// Keeps a session in which a challenge was answered.
    pub(crate) fn keep(
        &self,
        target: &ServerTarget,
        identity: &Arc<ClientIdentity>,
        session: &Arc<OpenSession>,
        now: ClockReading,
    ) {
        self.put(&mut self.lock_entries(), target, identity, EntryState::Kept(Arc::clone(session)), now);
    }

    /// Drops a session that the server no longer knows.
    pub(crate) fn forget(&self, session: &Arc<OpenSession>) {
        self.lock_entries().retain(|known| !known.session().is_some_and(|known| Arc::ptr_eq(known, session)));
    }

    /// Drops all sessions, and returns the exchanges that notify their servers, once each, because
    /// servers otherwise keep them until they expire. Over HTTPS this would take several messages,
    /// so it is not done there.
    pub(crate) fn end(&self, random: &mut RandomSource, now: ClockReading) -> Vec<Exchange> {
        let kept: Vec<SessionEntry> =
            self.lock_entries().extract_if(.., |known| known.session().is_some()).collect();
        let with_connections = kept.iter().filter(|known| known.target.protocol != InterfaceProtocol::HTTPS);
        with_connections.filter_map(|known| ending(&known.target, known.session()?, random, now)).collect()
    }

    /// Number of sessions.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock_entries().iter().filter(|known| known.session().is_some()).count()
    }
}

/// The request that ends a session; `None` if it is too long.
fn ending(
    target: &ServerTarget,
    session: &Arc<OpenSession>,
    random: &mut RandomSource,
    now: ClockReading,
) -> Option<Exchange> {
    let head = RequestHead {
        session_id: session.id,
        answered_as: OpCode::SESSION_TERMINATE,
        ..RequestHead::resolution(OpFlags::PLAIN_REQUEST, request_id(random()))
    };
    let target = ServerTarget { version: session.version, ..target.clone() };
    let request = Request::SessionTerminate(HandleBody { handle: BLANK });
    let exchange = Exchange::new(target, head, &request, &AnswerTimeouts::default(), now).ok()?;
    exchange.in_session(Arc::clone(session)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IdentityKey;

    const NOW: ClockReading = ClockReading { ms: 0, unix_s: 0 };

    fn session(id: i32) -> Arc<OpenSession> {
        Arc::new(OpenSession::example(id))
    }

    fn identity() -> Arc<ClientIdentity> {
        let key = IdentityKey::Secret(b"secret".to_vec().into());
        Arc::new(ClientIdentity { handle: b"10.a/adm".to_vec(), index: 300, key })
    }

    fn target(last: u8, key: &[u8]) -> ServerTarget {
        let at = ServerTarget::at(([192, 0, 2, last], 2641).into(), InterfaceProtocol::TCP);
        ServerTarget { public_key: key.to_vec(), ..at }
    }

    #[test]
    fn a_session_belongs_to_one_server_key_and_identity() {
        let (sessions, one, other) = (SessionPool::new(8), identity(), identity());
        let (at, kept) = (target(1, b"key"), session(1));
        sessions.keep(&at, &one, &kept, NOW);
        sessions.keep(&at, &one, &kept, NOW);
        assert_eq!(sessions.count(), 1);
        let udp = ServerTarget { protocol: InterfaceProtocol::UDP, ..at.clone() };
        assert_eq!(sessions.get(&udp, &one).unwrap().id, 1, "at every interface");
        assert!(sessions.get(&at, &other).is_none(), "the same name with an unknown key");
        assert!(sessions.get(&target(1, b"other"), &one).is_none());
        assert!(sessions.get(&target(2, b"key"), &one).is_none());
        // A newer one replaces it.
        sessions.keep(&at, &one, &session(2), NOW);
        assert_eq!((sessions.count(), sessions.get(&at, &one).unwrap().id), (1, 2));
        sessions.forget(&kept);
        assert_eq!(sessions.count(), 1, "it was forgotten before");
        sessions.forget(&sessions.get(&at, &one).unwrap());
        assert_eq!(sessions.count(), 0);
    }

    #[test]
    fn one_query_at_a_time_sets_up_a_session() {
        let (sessions, one, other) = (SessionPool::new(8), identity(), identity());
        let at = target(1, b"key");
        let claim = sessions.claim(&at, &one, NOW).unwrap();
        assert!(sessions.claim(&at, &one, NOW).is_none());
        assert!(
            sessions.claim(&at, &other, NOW).is_some()
                && sessions.claim(&target(2, b"key"), &one, NOW).is_some()
        );
        assert!(sessions.get(&at, &one).is_none() && sessions.count() == 0);
        drop(claim);
        let claim = sessions.claim(&at, &one, NOW).expect("the first claim was dropped");
        sessions.keep(&at, &one, &session(1), NOW);
        drop(claim);
        assert!(sessions.claim(&at, &one, NOW).is_none(), "there is one");
        sessions.forget(&sessions.get(&at, &one).unwrap());
        drop(sessions.claim(&at, &one, NOW).unwrap());
        // A refused session is not requested again for a while.
        sessions.refuse(&at, &one, NOW);
        let late = |ms| ClockReading { ms, ..NOW };
        assert!(sessions.claim(&at, &one, late(REFUSED_MS - 1)).is_none());
        assert!(sessions.claim(&at, &other, NOW).is_some(), "another identity may claim it");
        assert!(sessions.claim(&at, &one, late(REFUSED_MS)).is_some());
    }

    #[test]
    fn the_number_of_sessions_is_bounded_and_dropped_ones_are_removed() {
        let (sessions, mine) = (SessionPool::new(2), identity());
        for number in 1..=3 {
            sessions.keep(&target(number, b"key"), &mine, &session(number.into()), NOW);
        }
        let known = [1, 2, 3].map(|number| sessions.get(&target(number, b"key"), &mine).is_some());
        assert_eq!(known, [false, true, true]);
        drop(mine);
        let mine = identity();
        sessions.keep(&target(4, b"key"), &mine, &session(4), NOW);
        assert_eq!(sessions.count(), 1);
    }
}
