//! Sessions for a process that handles one message at a time and may block on another process. The
//! endpoint opens incoming messages and seals answers.

use crate::config::SessionsConfig;
use crate::facts::SessionRefusal;
use crate::facts::{IdentityClaim, NewSession, PROTECTED_SINCE, SessionIdentity};
use crate::holder::TakenChallenge;
use crate::link::{AnySession, JointSessions};
use crate::numbers;
use crate::row::{RowsUnavailable, SessionRows};
use crate::setup::{AgreedSession, SetupError, SetupTerms, agree};
use crate::shared::SharedRefusal;
use crate::table::SessionTable;
use crate::traffic::{MessageRejection, check, decrypt, encrypt, seal};
use handle_auth::SignError;
use handle_auth::cost::{self, Units};
use handle_auth::source::RequestOrigin;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::Reference;
use handle_proto::wire::session::{ANONYMOUS_INDEX, KeyExchange, SessionSetup};
use handle_proto::wire::{Envelope, Message};
use handle_proto::{OpCode, ResponseCode, Version};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use zeroize::Zeroizing;

/// Opens and seals messages in the sessions of a process.
#[derive(Debug)]
pub struct SessionEndpoint {
    joint: JointSessions,
    terms: Arc<SetupTerms>,
    started: Instant,
    counts: EndpointCounters,
}

/// Counters of the outcomes of set-ups and messages.
#[derive(Debug, Default)]
struct EndpointCounters {
    set_up: AtomicU64,
    disagreed: AtomicU64,
    refused: AtomicU64,
    with_mac: AtomicU64,
    decrypted: AtomicU64,
    wrong_mac: AtomicU64,
    replayed: AtomicU64,
    undecryptable: AtomicU64,
}

/// Outcomes of set-ups and messages in this process, whichever process holds the sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Sessions that were set up.
    pub set_up: u64,
    /// Set-ups without an agreement on a key.
    pub disagreed: u64,
    /// Set-ups that were refused because the table or the queue of key exchanges was full.
    pub refused: u64,
    /// Messages whose MAC was right and new.
    pub with_mac: u64,
    /// Encrypted messages that were accepted.
    pub decrypted: u64,
    /// Messages whose MAC was wrong.
    pub wrong_mac: u64,
    /// Messages that were replays, or old enough that they could be.
    pub replayed: u64,
    /// Encrypted messages that were not accepted.
    pub undecryptable: u64,
}

impl EndpointCounts {
    /// Each count with its name.
    #[must_use]
    pub const fn by_name(&self) -> [(&'static str, u64); 8] {
        [
            ("set_up", self.set_up),
            ("disagreed", self.disagreed),
            ("refused", self.refused),
            ("with_mac", self.with_mac),
            ("decrypted", self.decrypted),
            ("wrong_mac", self.wrong_mac),
            ("replayed", self.replayed),
            ("undecryptable", self.undecryptable),
        ]
    }
}

/// A received message, decrypted.
#[derive(Debug)]
pub struct IncomingMessage<'m> {
    message: MessageText<'m>,
    session: Option<AnySession>,
    /// Whether the message has a valid MAC of the session, or why its MAC is rejected.
    proof: Result<bool, MessageRejection>,
}

/// The bytes of a message.
#[derive(Debug)]
enum MessageText<'m> {
    /// The message as it was received.
    Plain(&'m [u8]),
    /// A decrypted message; its bytes are erased on drop.
    Hidden(Zeroizing<Vec<u8>>),
}

/// Why an encrypted message cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecryptionFailure {
    /// The message cannot be decrypted, or its sender cannot be verified. The two cases are not
    /// distinguished, so that an attacker cannot learn which one applies.
    Undecryptable,
    /// The session cannot be looked up.
    Unavailable,
}

impl fmt::Display for DecryptionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Undecryptable => {
                "the message cannot be decrypted with the key of the session, or has no MAC made with it"
            }
            Self::Unavailable => "the database with the sessions does not answer",
        })
    }
}

impl std::error::Error for DecryptionFailure {}

/// Reason why a set-up failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSession {
    /// No key was agreed on.
    Disagreed(SetupError),
    /// The session table refused the session.
    Refused(SessionRefusal),
    /// Too many key exchanges are waiting.
    Busy,
    /// The database in which processes share sessions does not answer.
    Unavailable,
}

/// A key exchange, to be run by a thread that has capacity for its cost.
pub type KeyExchangeWork = Box<dyn FnOnce() -> Result<AgreedSession, SetupError> + Send>;

impl NoSession {
    /// The response code for this reason.
    #[must_use]
    pub const fn code(&self) -> ResponseCode {
        match self {
            Self::Disagreed(_) => ResponseCode::SESSION_FAILED,
            Self::Refused(_) | Self::Busy | Self::Unavailable => ResponseCode::SERVER_BUSY,
        }
    }
}

impl fmt::Display for NoSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disagreed(error) => error.fmt(f),
            Self::Refused(_) => f.write_str("Too many sessions; ask again later."),
            Self::Busy => f.write_str("Too many sessions are being set up; ask again later."),
            Self::Unavailable => f.write_str("Sessions cannot be set up at the moment; ask again later."),
        }
    }
}

impl std::error::Error for NoSession {}

impl SessionEndpoint {
    /// Creates the endpoint that `config` describes. It shares the sessions of the process that
    /// listens on the configured socket. `None` when sessions are disabled.
    #[must_use]
    pub fn new(config: &SessionsConfig) -> Option<Self> {
        config.are_enabled().then(|| Self {
            joint: JointSessions::new(SessionTable::new(config.limits()), config.socket.as_deref()),
            terms: Arc::new(config.terms()),
            started: Instant::now(),
            counts: EndpointCounters::default(),
        })
    }

    /// Keeps the sessions that are set up at this process in `rows`, which other processes use.
    /// Those of the process that listens on the configured socket stay there.
    #[must_use]
    pub fn sharing(self, rows: Option<Arc<dyn SessionRows>>) -> Self {
        match rows {
            Some(rows) => Self { joint: self.joint.sharing(rows), ..self },
            None => self,
        }
    }

    fn now_s(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// The session table of this process.
    #[must_use]
    pub fn own(&self) -> &SessionTable {
        self.joint.here()
    }

    /// The outcomes of set-ups and messages so far.
    #[must_use]
    pub fn counts(&self) -> EndpointCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let EndpointCounters {
            set_up,
            disagreed,
            refused,
            with_mac,
            decrypted,
            wrong_mac,
            replayed,
            undecryptable,
        } = &self.counts;
        EndpointCounts {
            set_up: of(set_up),
            disagreed: of(disagreed),
            refused: of(refused),
            with_mac: of(with_mac),
            decrypted: of(decrypted),
            wrong_mac: of(wrong_mac),
            replayed: of(replayed),
            undecryptable: of(undecryptable),
        }
    }

    /// Removes the sessions whose time is over, also from the database. Call this about once a
    /// minute, on a thread that may block.
    pub fn expire(&self) {
        self.joint.here().expire(self.now_s());
        if let Some(shared) = self.joint.shared() {
            shared.expire();
        }
    }

    /// Opens `message`, envelope first: finds its session, decrypts it, and checks its MAC. A
    /// message in no known session is returned unchanged.
    ///
    /// # Errors
    /// When the message was encrypted in a known session and cannot be accepted.
    pub fn open<'m>(&self, message: &'m [u8]) -> Result<IncomingMessage<'m>, DecryptionFailure> {
        let incoming = self.opened(message);
        let counts = &self.counts;
        match &incoming {
            Ok(incoming) if matches!(incoming.message, MessageText::Hidden(_)) => count(&counts.decrypted),
            Ok(_) => {}
            Err(_) => count(&counts.undecryptable),
        }
        match incoming.as_ref().map(|incoming| incoming.proof) {
            Ok(Ok(true)) => count(&counts.with_mac),
            Ok(Err(MessageRejection::WrongMac)) => count(&counts.wrong_mac),
            Ok(Err(MessageRejection::Replayed(_))) => count(&counts.replayed),
            Ok(Ok(false) | Err(MessageRejection::Ended | MessageRejection::Unavailable)) | Err(_) => {}
        }
        incoming
    }

    fn opened<'m>(&self, message: &'m [u8]) -> Result<IncomingMessage<'m>, DecryptionFailure> {
        let Ok((mut envelope, rest)) = Envelope::split(message) else {
            return Ok(IncomingMessage::outside(message));
        };
        let is_encrypted = envelope.flags.has(EnvelopeFlags::ENCRYPTED);
        let Ok(session) = self.joint.look_up(envelope.session_id, self.now_s()) else {
            return match is_encrypted {
                true => Err(DecryptionFailure::Unavailable),
                false => Ok(IncomingMessage::outside(message).rejected(MessageRejection::Unavailable)),
            };
        };
        // The process that holds the session may allow older versions than this process.
        let is_allowed = |session: &AnySession| {
            self.terms.allows_old_versions || session.keys().version >= PROTECTED_SINCE
        };
        let Some(session) = session.filter(is_allowed) else { return Ok(IncomingMessage::outside(message)) };
        let rest = &rest[..rest.len().min(envelope.message_len as usize)];
        if !is_encrypted {
            let proof = Message::decode(rest)
                .map_or(Ok(false), |message| check(&*session, &envelope, &message, self.now_s()));
            if proof == Err(MessageRejection::Ended) {
                return Ok(IncomingMessage::outside(message));
            }
            return Ok(IncomingMessage {
                message: MessageText::Plain(message),
                session: Some(session),
                proof,
            }
            .or_outside());
        }
        let undecryptable = DecryptionFailure::Undecryptable;
        let text = decrypt(&*session, &mut envelope, rest).ok_or(undecryptable)?;
        let inside = Message::decode(&text).map_err(|_| undecryptable)?;
        let proof = check(&*session, &envelope, &inside, self.now_s());
        if proof == Err(MessageRejection::Ended) {
            return Ok(IncomingMessage::outside(message));
        }
        // Answers to challenges have no MAC.
        let is_answer = inside.header.op_code == OpCode::RESPONSE_TO_CHALLENGE;
        if proof == Err(MessageRejection::WrongMac) || proof == Ok(false) && !is_answer {
            return Err(undecryptable);
        }
        let message = Zeroizing::new([&envelope.to_bytes()[..], &text].concat());
        Ok(IncomingMessage { message: MessageText::Hidden(message), session: Some(session), proof }
            .or_outside())
    }

    /// A message that the process holding the sessions has already opened and checked. `message`
    /// starts with its envelope and is decrypted; the envelope names the session. `was_hidden` says
    /// whether the message was encrypted, and `has_mac` whether it had a MAC that was valid and not
    /// replayed.
    #[must_use]
    pub fn checked<'m>(&self, message: &'m [u8], was_hidden: bool, has_mac: bool) -> IncomingMessage<'m> {
        let envelope = Envelope::split(message).ok();
        let session = envelope.and_then(|(envelope, _)| self.joint.find(envelope.session_id, self.now_s()));
        // A session that has ended in the meantime proves nothing.
        let proof = Ok(has_mac && session.is_some());
        let message = match was_hidden {
            true => MessageText::Hidden(Zeroizing::new(message.to_vec())),
            false => MessageText::Plain(message),
        };
        IncomingMessage { message, session, proof }
    }

    /// Takes the challenge `id` from the process that holds the sessions. A challenge can be taken
    /// only once.
    #[must_use]
    pub fn take_challenge(&self, id: i32) -> TakenChallenge {
        self.joint.take_challenge(id)
    }

    /// Sets up a session with a client at `origin`, which is answered in `version`. Returns the
    /// number of the session and the data of the answer. `is_taken` tells which numbers are in use
    /// by challenges. `exchange` runs the key exchange: it receives the cost and the work, and
    /// returns `None` when it has no capacity for the work.
    ///
    /// # Errors
    /// When no session was set up.
    pub fn set_up(
        &self,
        setup: &SessionSetup<'_>,
        version: Version,
        origin: RequestOrigin,
        is_taken: impl Fn(i32) -> bool,
        exchange: impl FnOnce(Units, KeyExchangeWork) -> Option<Result<AgreedSession, SetupError>>,
    ) -> Result<(i32, Vec<u8>), NoSession> {
        let set_up = self.try_set_up(setup, version, origin, is_taken, exchange);
        count(match &set_up {
            Ok(_) => &self.counts.set_up,
            Err(NoSession::Disagreed(_)) => &self.counts.disagreed,
            Err(NoSession::Refused(_) | NoSession::Busy | NoSession::Unavailable) => &self.counts.refused,
        });
        set_up
    }

    fn try_set_up(
        &self,
        setup: &SessionSetup<'_>,
        version: Version,
        origin: RequestOrigin,
        is_taken: impl Fn(i32) -> bool,
        exchange: impl FnOnce(Units, KeyExchangeWork) -> Option<Result<AgreedSession, SetupError>>,
    ) -> Result<(i32, Vec<u8>), NoSession> {
        let random = Zeroizing::new(handle_auth::random());
        let agreed = match setup.exchange {
            KeyExchange::DiffieHellman(record) => {
                let (terms, record, timeout_s) = (Arc::clone(&self.terms), record.to_vec(), setup.timeout_s);
                let cost = cost::agreement(&record, &terms.modulus_bits);
                let work = Box::new(move || {
                    let exchange = KeyExchange::DiffieHellman(&record);
                    let identity = Reference { handle: b"", index: ANONYMOUS_INDEX };
                    agree(&terms, &SessionSetup { exchange, timeout_s, identity }, version, &random)
                });
                exchange(cost, work).ok_or(NoSession::Busy)?
            }
            // `agree` refuses the other forms without expensive work.
            _ => agree(&self.terms, setup, version, &random),
        };
        let agreed = agreed.map_err(NoSession::Disagreed)?;
        let AgreedSession { key, data, timeout_s } = agreed;
        let claim = (!setup.is_anonymous()).then(|| IdentityClaim::of(setup.identity));
        let new = NewSession { key, version, claim, timeout_s, origin };
        let number = || numbers::of_admin_session(u32::from_be_bytes(handle_auth::random()));
        let opened = match self.joint.shared() {
            Some(shared) => shared.open(&new, number, is_taken, self.now_s()),
            None => self.joint.open(new, number, is_taken, self.now_s()).map_err(SharedRefusal::Table),
        };
        match opened {
            Ok(id) => Ok((id, data)),
            Err(SharedRefusal::Table(refusal)) => Err(NoSession::Refused(refusal)),
            Err(SharedRefusal::Rows(RowsUnavailable)) => Err(NoSession::Unavailable),
        }
    }

    /// Whether a session has this number, of those in the tables of this and the other process.
    #[must_use]
    pub fn has(&self, id: i32) -> bool {
        self.joint.find(id, self.now_s()).is_some()
    }

    /// Ends a session. Whether there was one.
    ///
    /// # Errors
    /// When the session is in a database that does not answer; it then goes on.
    pub fn end(&self, id: i32) -> Result<bool, RowsUnavailable> {
        self.joint.end(id)
    }

    /// Records in the session of `incoming` that `claimed` has been authenticated with the key in
    /// its value `index`.
    pub fn authenticate(&self, incoming: &IncomingMessage<'_>, claimed: Reference<'_>, index: i32) {
        if let Some(session) = &incoming.session {
            session.authenticate(claimed, index, self.now_s());
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<'m> IncomingMessage<'m> {
    /// A message in no session.
    #[must_use]
    pub const fn outside(message: &'m [u8]) -> Self {
        Self { message: MessageText::Plain(message), session: None, proof: Ok(false) }
    }

    /// Without its session, if that cannot be reached: the answer has no counter in it then.
    fn or_outside(self) -> Self {
        match self.proof {
            Err(MessageRejection::Unavailable) => Self { session: None, ..self },
            _ => self,
        }
    }

    /// The message, which is not accepted.
    fn rejected(self, reason: MessageRejection) -> Self {
        Self { proof: Err(reason), ..self }
    }

    /// The message in the clear, envelope first.
    #[must_use]
    pub fn message(&self) -> &[u8] {
        match &self.message {
            MessageText::Plain(message) => message,
            MessageText::Hidden(message) => message,
        }
    }

    /// Whether the message is in a known session.
    #[must_use]
    pub const fn is_in_session(&self) -> bool {
        self.session.is_some()
    }

    /// Whether the message has a MAC of its session that is valid and not replayed.
    ///
    /// # Errors
    /// When the MAC is wrong, or the message is a replay.
    pub const fn proof(&self) -> Result<bool, MessageRejection> {
        self.proof
    }

    /// Whether the message was encrypted but has no MAC, as answers to challenges do. If such a
    /// message cannot be parsed or answers no challenge, the sender must only be told
    /// [`DecryptionFailure`].
    #[must_use]
    pub fn may_be_a_guess(&self) -> bool {
        matches!(self.message, MessageText::Hidden(_)) && self.proof == Ok(false)
    }

    /// The identity of the sender, if it has been authenticated in the session.
    #[must_use]
    pub fn identity(&self) -> Option<SessionIdentity> {
        let session = self.session.as_ref().filter(|_| self.proof == Ok(true))?;
        session.identity()
    }

    /// The sealer for answers in the session of this message; `None` when the message is in no
    /// session.
    #[must_use]
    pub fn sealing(&self) -> Option<AnswerSealer> {
        self.session.clone().map(AnswerSealer)
    }
}

/// Seals answers as messages of a session.
#[derive(Clone, Debug)]
pub struct AnswerSealer(AnySession);

impl AnswerSealer {
    /// Seals `answer`, an unsigned message with its envelope: adds a MAC if `certifies`, and
    /// encrypts if `confidential`.
    ///
    /// # Errors
    /// When `answer` is not a valid message.
    pub fn seal(&self, answer: &mut Vec<u8>, certifies: bool, confidential: bool) -> Result<(), SignError> {
        if certifies {
            seal(&*self.0, answer)?;
        }
        if confidential {
            encrypt(&*self.0, &handle_auth::random(), answer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_auth::agreement::{Group, KeyPair};
    use handle_auth::message::MacKey;
    use handle_auth::session::SessionKey;
    use handle_proto::wire::session;
    use handle_proto::wire::{Header, MessageBuf};
    use std::net::{IpAddr, Ipv4Addr};

    const WHO: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };
    const ORIGIN: RequestOrigin = RequestOrigin::connection(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));

    fn front() -> SessionEndpoint {
        SessionEndpoint::new(&SessionsConfig::default()).unwrap()
    }

    /// Sets up a session with `front`, and returns its number and the key of the client.
    fn set_up(front: &SessionEndpoint) -> (i32, MacKey) {
        let pair = KeyPair::new(Group::oakley_2(), &[1; 64]);
        let record = pair.public_record();
        let setup =
            SessionSetup { exchange: KeyExchange::DiffieHellman(&record), timeout_s: 0, identity: WHO };
        let (id, data) =
            front.set_up(&setup, Version::CURRENT, ORIGIN, |_| false, |_, work| Some(work())).unwrap();
        let since = session::SessionKey::DIFFIE_HELLMAN_SINCE;
        let agreement = session::SessionKey::decode(&data, Version::CURRENT, since).unwrap();
        let key = SessionKey::derive(agreement.cipher, &pair.agree(agreement.key).unwrap()).unwrap();
        (id, MacKey::new(key))
    }

    fn message(id: i32, op_code: OpCode) -> Vec<u8> {
        let envelope = Envelope { session_id: id, ..Envelope::request(9) };
        let header = Header::request(op_code, handle_proto::OpFlags::PLAIN_REQUEST, 0);
        MessageBuf::new(&envelope, &header, |out| out.extend_from_slice(b"body")).unsigned().unwrap()
    }

    fn hidden(key: &MacKey, message: &[u8]) -> Vec<u8> {
        let (envelope, text) = Envelope::split(message).unwrap();
        let text = key.key().encrypt(envelope.version, &[7; 16], text);
        let message_len = u32::try_from(text.len()).unwrap();
        let envelope = Envelope { flags: EnvelopeFlags::ENCRYPTED, message_len, ..envelope };
        [&envelope.to_bytes()[..], &text].concat()
    }

    #[test]
    fn what_came_in_a_session_is_opened_and_its_answer_sealed() {
        let front = front();
        let (id, key) = set_up(&front);
        let mut request = message(id, OpCode::CREATE_HANDLE);
        let without_mac = request.clone();
        let bare = front.open(&without_mac).unwrap();
        assert!(bare.is_in_session() && bare.proof() == Ok(false));
        key.seal(&mut request, 1).unwrap();
        let sent = hidden(&key, &request);
        let incoming = front.open(&sent).unwrap();
        assert_eq!(
            (incoming.message(), incoming.proof(), incoming.identity()),
            (&request[..], Ok(true), None)
        );
        front.authenticate(&incoming, Reference { index: 300, ..WHO }, 300);
        assert_eq!(incoming.identity(), None, "another identity");
        front.authenticate(&incoming, WHO, 301);
        assert_eq!(incoming.identity().unwrap().as_reference(), WHO);
        assert_eq!(bare.identity(), None, "every client with the key, and no other");
        let again = front.open(&sent).unwrap();
        assert_eq!((again.proof(), again.identity()), (Err(MessageRejection::Replayed(1)), None));
        let mut answer = message(id, OpCode::CREATE_HANDLE);
        assert_eq!(incoming.sealing().unwrap().seal(&mut answer, true, true), Ok(()));
        let (envelope, text) = Envelope::split(&answer).unwrap();
        let plain = key.key().decrypt(envelope.version, text).unwrap();
        assert!(key.verify(&envelope, &Message::decode(&plain).unwrap()).is_ok());
        let counts =
            EndpointCounts { set_up: 1, with_mac: 1, decrypted: 2, replayed: 1, ..EndpointCounts::default() };
        assert_eq!(front.counts(), counts);
        assert!(front.end(id) == Ok(true) && front.end(id) == Ok(false));
        let late = front.open(&request).unwrap();
        assert!(!late.is_in_session() && late.sealing().is_none());
    }

    #[test]
    fn what_was_encrypted_is_taken_on_or_not_and_nothing_tells_why() {
        let front = front();
        let (id, key) = set_up(&front);
        let bare = message(id, OpCode::CREATE_HANDLE);
        let mut forged = bare.clone();
        key.seal(&mut forged, 1).unwrap();
        *forged.last_mut().unwrap() ^= 1;
        let mut nonsense = bare[..Envelope::LEN].to_vec();
        nonsense.extend_from_slice(b"no message");
        let sent = hidden(&key, &bare);
        let mut cut = sent[..sent.len() - 1].to_vec();
        let len = u32::try_from(cut.len() - Envelope::LEN).unwrap();
        cut[16..20].copy_from_slice(&len.to_be_bytes());
        for wrong in [&sent, &hidden(&key, &forged), &hidden(&key, &nonsense), &cut] {
            assert_eq!(front.open(wrong).unwrap_err(), DecryptionFailure::Undecryptable);
        }
        let sent = hidden(&key, &message(id, OpCode::RESPONSE_TO_CHALLENGE));
        let answer = front.open(&sent).unwrap();
        assert_eq!((answer.proof(), answer.may_be_a_guess()), (Ok(false), true), "these have no MAC");
        assert_eq!(
            front.open(&forged).unwrap().proof(),
            Err(MessageRejection::WrongMac),
            "in the clear it is said"
        );
        let counts = EndpointCounts {
            set_up: 1,
            undecryptable: 4,
            decrypted: 1,
            wrong_mac: 1,
            ..EndpointCounts::default()
        };
        assert_eq!(front.counts(), counts);
        for elsewhere in
            [&b"short"[..], &message(0, OpCode::CREATE_HANDLE), &message(id ^ 1, OpCode::CREATE_HANDLE)]
        {
            let incoming = front.open(elsewhere).unwrap();
            assert_eq!((incoming.message(), incoming.is_in_session()), (elsewhere, false));
        }
    }

    #[test]
    fn there_is_no_session_without_agreement_and_capacity() {
        let config = SessionsConfig { sessions: 1, ..SessionsConfig::default() };
        let front = SessionEndpoint::new(&config).unwrap();
        let (id, key) = set_up(&front);
        let mut request = message(id, OpCode::CREATE_HANDLE);
        key.seal(&mut request, 1).unwrap();
        front.authenticate(&front.open(&request).unwrap(), WHO, 301);
        let other = RequestOrigin::connection(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));
        let pair = KeyPair::new(Group::oakley_2(), &[1; 64]).public_record();
        let setup = SessionSetup { exchange: KeyExchange::DiffieHellman(&pair), timeout_s: 0, identity: WHO };
        let refused = |setup: &SessionSetup<'_>| {
            front
                .set_up(setup, Version::CURRENT, other, |_| false, |_, work| Some(work()))
                .unwrap_err()
                .code()
        };
        assert_eq!(refused(&setup), ResponseCode::SERVER_BUSY);
        assert_eq!(
            refused(&SessionSetup { exchange: KeyExchange::ServerKey, ..setup }),
            ResponseCode::SESSION_FAILED
        );
        let counts =
            EndpointCounts { set_up: 1, with_mac: 1, refused: 1, disagreed: 1, ..EndpointCounts::default() };
        assert_eq!(front.counts(), counts);
        assert!(SessionEndpoint::new(&SessionsConfig { sessions: 0, ..config }).is_none());
    }
}
