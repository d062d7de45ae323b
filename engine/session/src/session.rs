//! One session: its key, its identity, and the counters of its messages.

use crate::facts::{
    COUNTERS_SINCE, IdentityClaim, NewSession, PROTECTED_SINCE, SessionIdentity, SessionKeys,
};
use crate::row::RowState;
use crate::traffic::{LiveSession, MessageRejection};
use crate::window::CounterWindow;
use ctutils::CtEq as _;
use handle_auth::message::MacKey;
use handle_auth::source::RequestOrigin;
use handle_proto::wire::list::Reference;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

/// A session in the table of this process.
#[derive(Debug)]
pub struct Session {
    keys: SessionKeys,
    claim: Option<IdentityClaim>,
    identity: OnceLock<SessionIdentity>,
    seen: CounterWindow,
    sent: AtomicU32,
    /// Time of the set-up, and later of the last message that is not a replay.
    used_s: AtomicU32,
    /// Whether a message with a valid MAC has arrived.
    is_proven: AtomicBool,
    timeout_s: u32,
    unproven_s: u32,
    origin: RequestOrigin,
    /// What this process knows of the row by which other processes share the session. It counts
    /// instead of `seen` and `sent`.
    row: OnceLock<Box<Mutex<RowState>>>,
}

impl Session {
    /// A session that ends after `unproven_s` seconds if no message arrives in it.
    pub(crate) fn new(id: i32, new: NewSession, unproven_s: u32, now_s: u32) -> Self {
        Self {
            keys: SessionKeys { id, version: new.version, mac: MacKey::new(new.key) },
            claim: new.claim,
            identity: OnceLock::new(),
            seen: CounterWindow::new(),
            sent: AtomicU32::new(0),
            used_s: AtomicU32::new(now_s),
            is_proven: AtomicBool::new(false),
            timeout_s: new.timeout_s,
            unproven_s,
            origin: new.origin,
            row: OnceLock::new(),
        }
    }

    /// The row by which other processes share the session, if they do.
    pub(crate) fn row(&self) -> Option<&Mutex<RowState>> {
        self.row.get().map(|row| &**row)
    }

    /// Shares the session by a row.
    pub(crate) fn set_row(&self, row: RowState) {
        let _ = self.row.set(Box::new(Mutex::new(row)));
    }

    /// The origin of the set-up, with the source in place of the address.
    pub(crate) const fn origin(&self) -> RequestOrigin {
        self.origin
    }

    /// Seconds for which the session lasts if no message arrives in it.
    pub(crate) fn lasts_s(&self) -> u32 {
        self.timeout_s.min(self.unproven_s)
    }

    /// Seconds without a message after which the session ends, once it is proven.
    pub(crate) const fn timeout_s(&self) -> u32 {
        self.timeout_s
    }

    /// Records the authenticated identity, if none is recorded yet.
    pub(crate) fn set_identity(&self, identity: SessionIdentity) {
        self.identity.get_or_init(|| identity);
    }

    /// Whether `identity` is the one that the session was set up for.
    pub(crate) fn claims(&self, identity: Reference<'_>) -> bool {
        self.claim.is_some_and(|claim| claim.0.ct_eq(&IdentityClaim::of(identity).0).to_bool())
    }

    /// Whether the session has ended: its time is over, or it has no more counters for messages.
    pub(crate) fn is_over(&self, now_s: u32) -> bool {
        let idle_s = now_s.saturating_sub(self.used_s());
        let idle_s_max = if self.is_proven() { self.timeout_s } else { self.lasts_s() };
        idle_s > idle_s_max || self.sent.load(Ordering::Relaxed) >= i32::MAX.cast_unsigned()
    }

    /// Whether the client is anonymous.
    #[must_use]
    pub const fn is_anonymous(&self) -> bool {
        self.claim.is_none()
    }

    /// The source of the set-up: an IPv4 address, or a /64 of IPv6.
    #[must_use]
    pub fn source(&self) -> std::net::IpAddr {
        handle_auth::source::of(self.origin.ip)
    }

    /// The identity that the client claims.
    #[must_use]
    pub const fn claim(&self) -> Option<IdentityClaim> {
        self.claim
    }

    /// The authenticated identity of the client.
    #[must_use]
    pub fn proven_identity(&self) -> Option<&SessionIdentity> {
        self.identity.get()
    }

    /// Whether a message with a valid MAC has arrived, which shows that the client receives what is
    /// sent to its address.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }

    /// Whether the session was set up over a connection.
    pub(crate) const fn is_connected(&self) -> bool {
        self.origin.is_connected
    }

    /// Time of the last use.
    pub(crate) fn used_s(&self) -> u32 {
        self.used_s.load(Ordering::Relaxed)
    }

    /// Records that the client has used the session.
    pub(crate) fn touch(&self, now_s: u32) {
        // The flag is usually set already, and a load leaves the cache line shared.
        if !self.is_proven() {
            self.is_proven.store(true, Ordering::Relaxed);
        }
        self.used_s.fetch_max(now_s, Ordering::Relaxed);
    }
}

impl LiveSession for Session {
    fn keys(&self) -> &SessionKeys {
        &self.keys
    }

    fn accept(&self, counter: i32, now_s: u32) -> Result<(), MessageRejection> {
        if self.keys.version >= COUNTERS_SINCE && !self.seen.accept(counter) {
            return Err(MessageRejection::Replayed(counter));
        }
        if self.keys.version >= PROTECTED_SINCE || !self.is_proven() {
            // In a session of an older version this may be a replay, which must not keep the
            // session alive.
            self.touch(now_s);
        }
        Ok(())
    }

    fn next_counter(&self) -> i32 {
        // A session that has used up its counters is over. Messages sent in the meantime have the
        // last counter, which the client refuses.
        let sent = self.sent.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        sent.min(i32::MAX.cast_unsigned()).cast_signed()
    }

    fn identity(&self) -> Option<SessionIdentity> {
        self.identity.get().cloned()
    }

    fn authenticate(&self, claimed: Reference<'_>, index: i32, now_s: u32) -> bool {
        let claims = self.claims(claimed);
        if claims {
            self.set_identity(SessionIdentity { index, handle: claimed.handle.into() });
            self.touch(now_s);
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::new_session;
    use handle_proto::Version;

    const WHO: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };

    fn session() -> Session {
        Session::new(5, NewSession { claim: Some(IdentityClaim::of(WHO)), ..new_session() }, 30, 100)
    }

    #[test]
    fn it_ends_so_long_after_its_last_message() {
        let session = session();
        assert!(!session.is_over(130) && session.is_over(131), "no message has come");
        assert!(!session.is_proven() && session.accept(1, 150).is_ok() && session.is_proven());
        assert!(!session.is_over(210) && session.is_over(211));
        assert!(session.accept(1, 200).is_err(), "a copy does not keep it alive");
        assert!(session.is_over(211));
        assert!(session.accept(2, 120).is_ok(), "a clock that lags does not end it");
        assert!(!session.is_over(210));
    }

    #[test]
    fn only_the_identity_of_the_set_up_authenticates() {
        let session = session();
        for other in [
            Reference { index: 300, ..WHO },
            Reference { handle: b"0.na/tst", ..WHO },
            Reference { handle: b"", index: 0 },
        ] {
            assert!(!session.authenticate(other, other.index, 100), "{other:?}");
            assert_eq!(session.identity(), None);
        }
        assert!(session.authenticate(WHO, 301, 100));
        assert_eq!(session.proven_identity().unwrap().as_reference(), WHO);
        let anonymous = Session::new(5, new_session(), 30, 100);
        assert!(anonymous.is_anonymous() && !anonymous.authenticate(WHO, 301, 100));
    }

    #[test]
    fn its_messages_are_numbered_from_one_and_it_ends_with_the_numbers() {
        let session = session();
        assert_eq!((session.next_counter(), session.next_counter()), (1, 2));
        session.sent.store(i32::MAX.cast_unsigned() - 1, Ordering::Relaxed);
        assert!(!session.is_over(100));
        assert_eq!((session.next_counter(), session.next_counter()), (i32::MAX, i32::MAX));
        assert!(session.is_over(100));
    }

    #[test]
    fn counters_are_not_checked_before_they_existed() {
        let old = Session::new(5, NewSession { version: Version::new(2, 4), ..new_session() }, 30, 0);
        assert!(old.accept(1, 0).is_ok() && old.accept(1, 0).is_ok() && old.accept(0, 0).is_ok());
        let new = Session::new(5, NewSession { version: COUNTERS_SINCE, ..new_session() }, 30, 0);
        assert!(new.accept(1, 0).is_ok() && new.accept(1, 0).is_err() && new.accept(0, 0).is_err());
    }
    #[test]
    fn messages_of_versions_in_which_copies_are_accepted_do_not_keep_it_alive() {
        for (minor, ends_s) in [(4, 161), (5, 161), (6, 161), (7, 221)] {
            let new = NewSession { version: Version::new(2, minor), ..new_session() };
            let session = Session::new(5, new, 30, 90);
            assert!(session.accept(1, 100).is_ok() && session.accept(2, 160).is_ok(), "2.{minor}");
            assert!(!session.is_over(ends_s - 1) && session.is_over(ends_s), "2.{minor}");
        }
    }
}
