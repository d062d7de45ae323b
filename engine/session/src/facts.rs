//! The facts about a session: of its set-up, its identity and its keys, and why there is none.

use handle_auth::message::MacKey;
use handle_auth::session::SessionKey;
use handle_auth::source::RequestOrigin;
use handle_proto::Version;
use handle_proto::wire::list::Reference;
use sha2::{Digest as _, Sha256};

/// First version whose messages have a counter.
pub const COUNTERS_SINCE: Version = Version::new(2, 5);

/// First version whose messages are protected against replay and downgrade. In older versions the
/// MAC does not cover the counter, or there is no counter, so replays are accepted; nor does the
/// MAC cover the version requested for the answer.
pub const PROTECTED_SINCE: Version = Version::new(2, 7);

/// The properties of a new session.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// The key that was agreed on.
    pub key: SessionKey,
    /// The version of the answer to the set-up; messages in the session are written in it.
    pub version: Version,
    /// The identity that the client claims; `None` for an anonymous session.
    pub claim: Option<IdentityClaim>,
    /// Seconds without a message after which the session ends.
    pub timeout_s: u32,
    /// The origin of the set-up request.
    pub origin: RequestOrigin,
}

/// A digest of the identity that a client claims. The identity itself is not stored, because its
/// handle can be long and it has not been authenticated yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityClaim(pub [u8; 32]);

impl IdentityClaim {
    /// The claim of `identity`: covers handle and index, byte for byte.
    #[must_use]
    pub fn of(identity: Reference<'_>) -> Self {
        let digest = Sha256::new().chain_update(identity.index.to_be_bytes()).chain_update(identity.handle);
        Self(digest.finalize().into())
    }
}

/// The authenticated identity of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionIdentity {
    /// The index of the value with the key that authenticated the client.
    pub index: i32,
    /// The handle of the identity.
    pub handle: Box<[u8]>,
}

impl SessionIdentity {
    /// A borrowed view of the identity.
    #[must_use]
    pub fn as_reference(&self) -> Reference<'_> {
        Reference { handle: &self.handle, index: self.index }
    }
}

/// The keys and parameters to check and seal the messages of a session.
#[derive(Debug)]
pub struct SessionKeys {
    /// The number of the session.
    pub id: i32,
    /// The protocol version of the session.
    pub version: Version,
    /// The session key, prepared for MACs.
    pub mac: MacKey,
}

/// Reason why a session was not set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRefusal {
    /// Too many unproven sessions were set up over UDP: the client has to use TCP.
    OverTcp,
    /// The table is full, and no session in it may be displaced.
    Full,
    /// Every random number that was tried is already in use, so the random source is faulty.
    NoNumber,
}
