//! A session with a server: once it is set up, every request is authenticated by a MAC instead of a
//! challenge. RFC 3652 section 3.8.

use crate::allowances::Allowances;
use crate::identity::ClientIdentity;
use handle_auth::agreement::{Group, KeyPair, PRIVATE_LEN};
use handle_auth::message::MacKey;
use handle_auth::session::SessionKey;
use handle_auth::{VerifyError, random};
use handle_proto::limit::{MESSAGE_LEN_MAX, SESSION_COUNTER_WINDOW};
use handle_proto::wire::counter::SeenCounters;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::Reference;
use handle_proto::wire::message::{MessageTooLong, encrypted};
use handle_proto::wire::session::{self, ANONYMOUS_INDEX, KeyExchange, SessionSetup};
use handle_proto::wire::{Envelope, Message, Reply, Request, Response};
use handle_proto::{ResponseCode, Version};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// First version in which the MAC of a message covers its version and its counter in the session.
const PROTECTED_SINCE: Version = Version::new(2, 7);

/// The key of a session, and its message counters.
#[derive(Debug)]
pub(crate) struct OpenSession {
    pub(crate) id: i32,
    /// The version of its messages: that of the answer that set it up.
    pub(crate) version: Version,
    key: MacKey,
    counters: Mutex<MessageCounters>,
    /// Notified when a request has been answered.
    answered: Condvar,
}

#[derive(Debug, Default)]
struct MessageCounters {
    /// The counter of the last sent message.
    sent: i32,
    /// The counters of requests without an answer.
    open: BTreeSet<i32>,
    /// The counters of received messages.
    seen: SeenCounters,
}

/// Most requests that are sent in a session after one that has no answer yet. Either side refuses a
/// message that comes after [`SESSION_COUNTER_WINDOW`](handle_proto::limit::SESSION_COUNTER_WINDOW)
/// later ones, and connections that share a session are not equally fast.
const AHEAD_MAX: u16 = 150;
const _: () = assert!((AHEAD_MAX as usize) < SESSION_COUNTER_WINDOW, "no message is out of the window");

/// A request in a session that has no answer yet, until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    session: Arc<OpenSession>,
    counter: i32,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.session.counters().open.remove(&self.counter);
        self.session.answered.notify_all();
    }
}

impl MessageCounters {
    fn next(&mut self) -> i32 {
        self.sent = self.sent.checked_add(1).unwrap_or(1);
        self.sent
    }
}

/// A session that several clients of one server use, each on a connection of its own. It is set up
/// once, by the first of them, for the identity that it has then.
#[derive(Clone, Debug, Default)]
pub struct CommonSession(Arc<Mutex<Option<PooledSession>>>);

/// The session of a pool, and who it belongs to.
#[derive(Debug)]
pub(crate) struct PooledSession {
    pub(crate) identity: Option<Arc<ClientIdentity>>,
    pub(crate) session: Arc<OpenSession>,
    /// Whether a challenge in it has been answered.
    pub(crate) is_proven: bool,
}

impl CommonSession {
    /// The session, to look at or to set up; others wait meanwhile.
    pub(crate) fn pooled(&self) -> MutexGuard<'_, Option<PooledSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a session back; `None` if other clients still have it.
    pub(crate) fn forget(&self, session: Arc<OpenSession>) -> Option<Arc<OpenSession>> {
        let mut pooled = self.pooled();
        let is_it = |pooled: &PooledSession| Arc::ptr_eq(&pooled.session, &session);
        let in_pool = usize::from(pooled.as_ref().is_some_and(is_it));
        if Arc::strong_count(&session) > 1 + in_pool {
            // Other requests still use the session.
            drop(session);
            return None;
        }
        if in_pool == 1 {
            *pooled = None;
        }
        Some(session)
    }
}

/// A session being set up.
#[derive(Debug)]
pub(crate) struct Proposal {
    pair: KeyPair,
    record: Vec<u8>,
}

impl Proposal {
    /// A proposal in a group of 2048 bits, with a private value made from `random`.
    pub(crate) fn new(random: &[u8; PRIVATE_LEN]) -> Self {
        let pair = KeyPair::new(Group::modp_14(), random);
        Self { record: pair.public_record(), pair }
    }

    /// The request that sets up the session, with `identity` or without one.
    pub(crate) fn request<'a>(&'a self, identity: Option<&'a ClientIdentity>, timeout_s: i32) -> Request<'a> {
        let nobody = Reference { handle: b"", index: ANONYMOUS_INDEX };
        let identity = identity.map_or(nobody, ClientIdentity::reference);
        let exchange = KeyExchange::DiffieHellman(&self.record);
        Request::SessionSetup(SessionSetup { exchange, timeout_s, identity })
    }

    /// Makes the session from the server's signed answer.
    ///
    /// # Errors
    /// When the server refuses; or when the version is below 2.7 and such sessions are not allowed:
    /// the version that a request suggests is not protected, so an attacker on the network path can
    /// choose it.
    pub(crate) fn agree(
        &self,
        envelope: &Envelope,
        reply: &Reply<'_>,
        allowances: Allowances,
    ) -> Result<OpenSession, SessionFailure> {
        let version = envelope.version.min(Version::CURRENT);
        if version < PROTECTED_SINCE && !allowances.old_sessions {
            return Err(SessionFailure::OldVersion(version));
        }
        self.agreed(version, envelope.session_id, reply).ok_or(SessionFailure::KeyExchange)
    }

    fn agreed(&self, version: Version, id: i32, reply: &Reply<'_>) -> Option<OpenSession> {
        let Response::Session(agreed) = reply.response else { return None };
        let since = session::SessionKey::DIFFIE_HELLMAN_SINCE;
        let theirs = session::SessionKey::decode(agreed.data, version, since).ok()?;
        let secret = self.pair.agree(theirs.key).ok()?;
        let key = MacKey::new(SessionKey::derive(theirs.cipher, &secret)?);
        (id > 0).then(|| OpenSession {
            id,
            version,
            key,
            counters: Mutex::default(),
            answered: Condvar::new(),
        })
    }
}

impl OpenSession {
    /// A session with an invented key.
    #[cfg(test)]
    pub(crate) fn example(id: i32) -> Self {
        let key = SessionKey::new(handle_proto::code::Cipher::AES, vec![7; 32]).expect("a key of AES");
        let (key, counters) = (MacKey::new(key), Mutex::default());
        Self { id, version: Version::CURRENT, key, counters, answered: Condvar::new() }
    }

    fn counters(&self) -> MutexGuard<'_, MessageCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message with a MAC and a new counter. Seal a message again to send it again.
    ///
    /// # Errors
    /// When the sealed message is too long.
    pub(crate) fn sealed(&self, message: Vec<u8>) -> Result<Vec<u8>, MessageTooLong> {
        let counter = self.counters().next();
        self.sealed_as(counter, message)
    }

    /// The same for a request of one of several connections that share the session. Waits while an
    /// earlier request would come too late after this one.
    ///
    /// # Errors
    /// When the sealed message is too long.
    pub(crate) fn sealed_request(
        self: &Arc<Self>,
        message: Vec<u8>,
    ) -> Result<(Vec<u8>, OpenRequest), MessageTooLong> {
        let counter = {
            let is_ahead = |counters: &mut MessageCounters| {
                counters
                    .open
                    .first()
                    .is_some_and(|first| counters.sent.saturating_sub(*first) >= AHEAD_MAX.into())
            };
            let waited = self.answered.wait_while(self.counters(), is_ahead);
            let mut counters = waited.unwrap_or_else(PoisonError::into_inner);
            let counter = counters.next();
            counters.open.insert(counter);
            counter
        };
        let open = OpenRequest { session: Arc::clone(self), counter };
        self.sealed_as(counter, message).map(|message| (message, open))
    }

    fn sealed_as(&self, counter: i32, mut message: Vec<u8>) -> Result<Vec<u8>, MessageTooLong> {
        self.key.seal(&mut message, counter).expect("a message of ours, and an algorithm of ours");
        let len = message.len() - Envelope::LEN;
        if len > MESSAGE_LEN_MAX as usize { Err(MessageTooLong { len }) } else { Ok(message) }
    }

    /// The message with everything after its envelope encrypted.
    ///
    /// # Errors
    /// When the encrypted message is too long.
    pub(crate) fn encrypted(&self, message: &[u8]) -> Result<Vec<u8>, MessageTooLong> {
        let (envelope, plain) = Envelope::split(message).expect("a message of ours");
        encrypted(&envelope, &[&self.key.key().encrypt(envelope.version, &random(), plain)])
    }

    /// The message decrypted, if it belongs to this session.
    pub(crate) fn decrypted(&self, message: &[u8]) -> Option<Vec<u8>> {
        let (envelope, text) = Envelope::split(message).ok()?;
        if envelope.session_id != self.id {
            return None;
        }
        let plain = self.key.key().decrypt(envelope.version, text)?;
        let flags = EnvelopeFlags(envelope.flags.0 & !EnvelopeFlags::ENCRYPTED.0);
        let message_len = u32::try_from(plain.len()).ok()?;
        Some([&Envelope { flags, message_len, ..envelope }.to_bytes()[..], &plain].concat())
    }

    /// Whether the MAC of a message covers its counter, so that a server refuses a copy.
    pub(crate) fn counters_are_protected(&self) -> bool {
        self.version >= PROTECTED_SINCE
    }

    /// Whether a message with a valid MAC is new and no replay.
    ///
    /// # Errors
    /// When its MAC is wrong, or of a form that does not cover the counter in a session whose
    /// version does.
    pub(crate) fn is_new(&self, envelope: &Envelope, message: &Message<'_>) -> Result<bool, VerifyError> {
        if self.counters_are_protected() && envelope.version < PROTECTED_SINCE {
            return Err(VerifyError::Digest);
        }
        let credential = self.key.verify(envelope, message)?;
        Ok(self.counters().seen.accept(credential.counter))
    }
}

/// Why there is no session with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionFailure {
    /// The key of the server is not known, so the other side of the session would be unknown.
    ServerKeyUnknown,
    /// Sessions are disabled.
    NotUsed,
    /// The server refuses the session.
    Refused {
        /// The code of the refusal.
        code: ResponseCode,
        /// Its text; may be empty.
        text: String,
        /// Whether the server signed the refusal. Otherwise it may have been forged on the network
        /// path.
        is_proven: bool,
    },
    /// The server, or an attacker on the network path, chose a version below 2.7, in which messages
    /// are not well protected.
    OldVersion(Version),
    /// The answer of the server does not complete the key exchange.
    KeyExchange,
}

impl fmt::Display for SessionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerKeyUnknown => {
                f.write_str("the key of the server is not known, so the server cannot be authenticated")
            }
            Self::NotUsed => f.write_str("sessions are disabled"),
            Self::Refused { code, text, is_proven } => {
                f.write_str("the server refuses it with ")?;
                write_refusal(f, *code, text, *is_proven)
            }
            Self::OldVersion(version) => write!(
                f,
                "the version {version} was chosen for it, below 2.7, where versions and copies of messages are not \
                 protected"
            ),
            Self::KeyExchange => f.write_str("the key exchange failed"),
        }
    }
}

impl std::error::Error for SessionFailure {}

/// Writes the code and text of a refusal.
pub(crate) fn write_refusal(
    f: &mut fmt::Formatter<'_>,
    code: ResponseCode,
    text: &str,
    is_proven: bool,
) -> fmt::Result {
    let colon = if text.is_empty() { "" } else { ": " };
    let mark = if is_proven { "" } else { " (unproven: not signed, and maybe forged on the network path)" };
    write!(f, "{} {code}{colon}{text}{mark}", code.0)
}
