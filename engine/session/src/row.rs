//! Rows by which several processes over one database share sessions: what is in them, and what a
//! process knows of them.

use crate::facts::{IdentityClaim, NewSession, SessionIdentity};
use crate::fields::{key, number, put_key};
use crate::session::Session;
use crate::traffic::LiveSession as _;
use crate::window::CounterWindow;
use handle_auth::session::SessionKey;
use handle_auth::source::RequestOrigin;
use handle_proto::Version;
use handle_proto::limit::HANDLE_LEN_MAX;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use zeroize::Zeroizing;

/// Length of the counters of a row in bytes.
pub const COUNTERS_LEN: usize = 1 + 4 + CounterWindow::LEN;
/// Capacity for the facts of a row without an identity. They should not have to grow, because that
/// leaves a copy of the key in freed memory.
const FACTS_LEN: usize = 160;

/// A row.
#[derive(Clone)]
pub struct SessionRow {
    /// Raised with each change. A change is made only if nobody has made another one since the row
    /// was read.
    pub version: i64,
    /// The facts about the session, with its key.
    pub facts: Zeroizing<Vec<u8>>,
    /// The counters of its messages.
    pub counters: [u8; COUNTERS_LEN],
}

impl fmt::Debug for SessionRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionRow").field("version", &self.version).finish_non_exhaustive()
    }
}

/// A change of a row.
#[derive(Clone, Copy)]
pub struct RowChange<'a> {
    /// The version that is changed; the row then has the next one.
    pub version: i64,
    /// Other facts, if they change.
    pub facts: Option<&'a [u8]>,
    /// The counters.
    pub counters: &'a [u8; COUNTERS_LEN],
    /// Seconds for which the row lasts from now on, if that changes.
    pub lasts_s: Option<u32>,
}

impl fmt::Debug for RowChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowChange").field("version", &self.version).finish_non_exhaustive()
    }
}

/// The rows cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsUnavailable;

impl fmt::Display for RowsUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the database with the sessions does not answer")
    }
}

impl std::error::Error for RowsUnavailable {}

/// The rows of a database, which several processes use. A row is gone when its time is over.
pub trait SessionRows: fmt::Debug + Send + Sync {
    /// Adds a row for some seconds; false if the number is in use.
    ///
    /// # Errors
    /// When the database does not do it.
    fn insert(&self, id: i32, row: &SessionRow, lasts_s: u32) -> Result<bool, RowsUnavailable>;

    /// Reads a row.
    ///
    /// # Errors
    /// When the database does not do it.
    fn read(&self, id: i32) -> Result<Option<SessionRow>, RowsUnavailable>;

    /// Changes a row; false if it is gone or has another version.
    ///
    /// # Errors
    /// When the database does not do it, or it is unknown whether it has.
    fn change(&self, id: i32, change: RowChange<'_>) -> Result<bool, RowsUnavailable>;

    /// Removes rows; returns how many of them there were.
    ///
    /// # Errors
    /// When the database does not do it.
    fn remove(&self, ids: &[i32]) -> Result<u64, RowsUnavailable>;

    /// Removes the rows whose time is over.
    ///
    /// # Errors
    /// When the database does not do it.
    fn expire(&self) -> Result<(), RowsUnavailable>;
}

/// What a process knows of a row.
#[derive(Debug)]
pub(crate) struct RowState {
    /// The version of the row when this process last read or changed it.
    pub(crate) version: i64,
    /// The counters in that version.
    pub(crate) counters: SharedCounters,
    /// Counters of outgoing messages that no other process uses.
    pub(crate) reserved: Range<u32>,
}

impl RowState {
    /// The state after `row` was read.
    pub(crate) fn of(row: &SessionRow) -> Self {
        Self { version: row.version, counters: SharedCounters::from_bytes(&row.counters), reserved: 0..0 }
    }
}

/// The counters of the messages in a session.
#[derive(Debug, Default)]
pub(crate) struct SharedCounters {
    /// Whether a message with a valid MAC has arrived.
    pub(crate) is_proven: bool,
    /// The last counter of outgoing messages that a process has reserved.
    pub(crate) sent: u32,
    /// The counters of the messages that were accepted.
    pub(crate) seen: CounterWindow,
}

impl SharedCounters {
    /// The bytes of the counters in a row.
    pub(crate) fn to_bytes(&self) -> [u8; COUNTERS_LEN] {
        let mut bytes = [0; COUNTERS_LEN];
        bytes[0] = u8::from(self.is_proven);
        bytes[1..5].copy_from_slice(&self.sent.to_be_bytes());
        bytes[5..].copy_from_slice(&self.seen.to_bytes());
        bytes
    }

    /// The counters of these bytes.
    pub(crate) fn from_bytes(bytes: &[u8; COUNTERS_LEN]) -> Self {
        let mut counters = Self { is_proven: bytes[0] != 0, ..Self::default() };
        if let Some((sent, rest)) = bytes[1..].split_first_chunk::<4>() {
            counters.sent = u32::from_be_bytes(*sent);
            counters.seen = rest.try_into().map(CounterWindow::from_bytes).unwrap_or_default();
        }
        counters
    }
}

/// The facts about a session in its row.
#[derive(Debug)]
pub(crate) struct RowFacts {
    pub(crate) new: NewSession,
    pub(crate) identity: Option<SessionIdentity>,
}

impl RowFacts {
    /// The bytes of the facts about `session`, with this identity.
    pub(crate) fn encode(session: &Session, identity: Option<&SessionIdentity>) -> Zeroizing<Vec<u8>> {
        let (keys, origin) = (session.keys(), session.origin());
        let capacity = FACTS_LEN + identity.map_or(0, |identity| identity.handle.len());
        let mut out = Zeroizing::new(Vec::with_capacity(capacity));
        put_key(&mut out, keys.mac.key(), keys.version);
        out.extend_from_slice(&session.timeout_s().to_be_bytes());
        let source = match origin.ip {
            IpAddr::V4(source) => source.to_ipv6_mapped(),
            IpAddr::V6(source) => source,
        };
        out.extend_from_slice(&source.octets());
        out.extend_from_slice(&[u8::from(origin.is_connected), u8::from(!session.is_anonymous())]);
        out.extend(session.claim().iter().flat_map(|claim| claim.0));
        if let Some(identity) = identity {
            out.extend_from_slice(&identity.index.to_be_bytes());
            out.extend_from_slice(&identity.handle);
        }
        out
    }

    /// The facts of these bytes; `None` if they are invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let (key, version): (SessionKey, Version) = key(&mut rest)?;
        let timeout_s = number(&mut rest)?.cast_unsigned();
        let (source, after) = rest.split_first_chunk::<16>()?;
        let (&[is_connected, has_claim], mut rest) = after.split_first_chunk()?;
        let mut claim = None;
        if has_claim != 0 {
            let (digest, after) = rest.split_first_chunk::<32>()?;
            (claim, rest) = (Some(IdentityClaim(*digest)), after);
        }
        let identity = match rest {
            [] => None,
            mut identity => {
                let index = number(&mut identity)?;
                (identity.len() <= HANDLE_LEN_MAX).then_some(())?;
                Some(SessionIdentity { index, handle: identity.into() })
            }
        };
        let ip = IpAddr::V6(Ipv6Addr::from(*source)).to_canonical();
        let origin = RequestOrigin { ip, is_connected: is_connected != 0 };
        Some(Self { new: NewSession { key, version, claim, timeout_s, origin }, identity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::new_session;

    fn sessions() -> [(Session, Option<SessionIdentity>); 3] {
        let identity = SessionIdentity { index: 301, handle: b"0.NA/TST"[..].into() };
        let claim = Some(IdentityClaim([9; 32]));
        let v6 = RequestOrigin::datagram([1_u16; 8].into());
        let session = |new| Session::new(7, new, 60, 0);
        [
            (session(new_session()), None),
            (session(NewSession { claim, origin: v6, ..new_session() }), None),
            (session(NewSession { claim, timeout_s: 9, ..new_session() }), Some(identity)),
        ]
    }

    #[test]
    fn facts_decode_to_what_was_encoded_and_cut_ones_to_nothing_or_a_shorter_identity() {
        for (session, identity) in sessions() {
            let bytes = RowFacts::encode(&session, identity.as_ref());
            let facts = RowFacts::decode(&bytes).unwrap();
            assert_eq!(facts.identity, identity);
            assert_eq!(facts.new.key, *session.keys().mac.key());
            assert_eq!(facts.new.origin, session.origin());
            let again = Session::new(7, facts.new, 60, 0);
            assert_eq!(RowFacts::encode(&again, identity.as_ref()), bytes);
            let without = RowFacts::encode(&session, None).len();
            for len in 0..bytes.len() {
                let decoded = RowFacts::decode(&bytes[..len]).is_some();
                assert_eq!(decoded, len == without || len >= without + 4, "cut to {len} of {}", bytes.len());
            }
        }
    }

    #[test]
    fn counters_come_back_from_their_bytes() {
        let counters = SharedCounters { is_proven: true, sent: 77, ..SharedCounters::default() };
        assert!(counters.seen.accept(5) && counters.seen.accept(9));
        let again = SharedCounters::from_bytes(&counters.to_bytes());
        assert!(again.is_proven && again.sent == 77);
        assert!(!again.seen.accept(5) && again.seen.accept(7) && !again.seen.accept(9));
        assert_eq!(SharedCounters::from_bytes(&[0; COUNTERS_LEN]).to_bytes(), [0; COUNTERS_LEN]);
    }

    #[test]
    fn debug_output_has_no_key() {
        let (session, _) = &sessions()[0];
        let facts = RowFacts::encode(session, None);
        let row = SessionRow { version: 3, facts, counters: [0; COUNTERS_LEN] };
        assert_eq!(format!("{row:?}"), "SessionRow { version: 3, .. }");
    }
}
