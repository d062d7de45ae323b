//! The client of administrators: asks one server, over TCP, and proves who asks when it is challenged.
//! RFC 3652 sections 3.5 and 3.6.
//!
//! Blocking, one request at a time; who wants more at once takes more of them. A challenge is answered only if the
//! server repeats the digest of what was asked, and on the connection on which it came. In a session, which is set up
//! only with a server whose key is known, one challenge serves for all requests.

mod connection;

use crate::session::{Proposal, Session};
use connection::Connection;
use handle_auth::challenge::{answer_with_key, answer_with_secret, check_request_digest};
use handle_auth::message::verify_message;
use handle_auth::{PrivateKey, PublicKey, SignError, VerifyError, random};
use handle_proto::limit::{LIST_COUNT_MAX, PBKDF2_SALT_LEN};
use handle_proto::name::BLANK;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::auth::{ChallengeAnswer, PUBLIC_KEY, SECRET_KEY};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::Reference;
use handle_proto::wire::message::{Body, MessageTooLong};
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{DecodeError, OpCode, OpFlags, ResponseCode, Value, Version};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, io};
use zeroize::Zeroizing;

/// How often a challenge is answered before the server is believed not to want to be convinced.
const CHALLENGES_MAX: usize = 2;
/// How long servers may take, all together, to hear that sessions are over.
const PARTING: Duration = Duration::from_millis(300);
/// What servers say that do not know the session or cannot read what is said in it, and have done nothing; anything else
/// about a session may come of a request that came before, like "seen before" does.
const NOTHING_DONE: [ResponseCode; 3] =
    [ResponseCode::SESSION_TIMEOUT, ResponseCode::SESSION_FAILED, ResponseCode::INVALID_SESSION_KEY];
/// Request id of replies to what a server could not read.
const NO_REQUEST: i32 = -1;

/// What proves an identity.
pub enum Key {
    /// The data of a value HS_SECKEY.
    Secret(Zeroizing<Vec<u8>>),
    /// The private half of a value HS_PUBKEY.
    Private(Box<PrivateKey>),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(_) => f.write_str("a secret"),
            Self::Private(key) => key.fmt(f),
        }
    }
}

/// Who asks: the value that holds the key, and the key.
#[derive(Debug)]
pub struct Identity {
    /// The handle of the value.
    pub handle: Vec<u8>,
    /// Its index; 0 for any key of the handle.
    pub index: i32,
    /// What proves it.
    pub key: Key,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Reference { handle: &self.handle, index: self.index })
    }
}

/// Why there is no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum AskError {
    /// No connection comes about.
    Connect(io::Error),
    /// The connection was lost while the request was on its way or its answer was waited for.
    Lost(io::Error),
    /// No answer within the patience of the client.
    Late,
    /// What came is no message.
    Undecodable(DecodeError),
    /// What came is no answer to this request.
    Another(&'static str),
    /// The session is over or has seen the request before, as somebody says who need not be the server.
    Rejected(ResponseCode),
    /// The challenge is one to another request, or the answer is not signed by the key of the server.
    Unproven(VerifyError),
    /// The challenge could not be answered.
    Unsigned(SignError),
    /// The server asks who asks, and there is no identity.
    WhoAsks,
    /// The request is longer than a message may be.
    TooLong(MessageTooLong),
}

impl AskError {
    /// Whether the server may have done what was asked all the same.
    #[must_use]
    pub const fn is_in_doubt(&self) -> bool {
        matches!(
            self,
            Self::Lost(_) | Self::Late | Self::Undecodable(_) | Self::Another(_) | Self::Rejected(_)
        )
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::Lost(error) => write!(f, "the connection was lost before the answer came: {error}"),
            Self::Late => f.write_str("no answer in time"),
            Self::Undecodable(error) => write!(f, "the answer does not decode: {error}"),
            Self::Another(what) => write!(f, "the answer is not one to this request: {what}"),
            Self::Rejected(code) => write!(f, "the server may have done it all the same: {} {code}", code.0),
            Self::Unproven(error) => write!(f, "the server cannot be trusted: {error}"),
            Self::Unsigned(error) => write!(f, "the challenge cannot be answered: {error}"),
            Self::WhoAsks => f.write_str("the server wants to know who asks, and no identity was given"),
            Self::TooLong(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AskError {}

impl From<DecodeError> for AskError {
    fn from(error: DecodeError) -> Self {
        Self::Undecodable(error)
    }
}

/// An answer, checked to be one to what was asked.
#[derive(Debug)]
pub struct Answer {
    bytes: Vec<u8>,
    was_repeated: bool,
}

impl Answer {
    const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, was_repeated: false }
    }

    /// What the answer says.
    ///
    /// # Panics
    /// Never: it has been decoded before.
    #[must_use]
    pub fn reply(&self) -> Reply<'_> {
        taken_apart(&self.bytes).expect("decoded when it came").2
    }

    /// The version it is written in: the highest that the server speaks, up to our own.
    ///
    /// # Panics
    /// Never: it has been decoded before.
    #[must_use]
    pub fn version(&self) -> Version {
        taken_apart(&self.bytes).expect("decoded when it came").0.version
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> ResponseCode {
        self.reply().code
    }

    /// Whether the session was over, as somebody said who need not be the server, and the request was sent again in a
    /// new one. A refusal may then come from the success of the first.
    #[must_use]
    pub const fn was_repeated(&self) -> bool {
        self.was_repeated
    }

    /// What a server that refuses says about it; may be empty.
    #[must_use]
    pub fn text(&self) -> String {
        match self.reply().response {
            Response::Failure(failure) => String::from_utf8_lossy(failure.message).into_owned(),
            _ => String::new(),
        }
    }
}

/// Asks one server, as one identity or none.
#[derive(Debug)]
pub struct Administrator {
    connection: Connection,
    identity: Option<Arc<Identity>>,
    server_key: Option<PublicKey>,
    /// Idle seconds after which sessions end; `None` when none is wanted.
    session_timeout_s: Option<i32>,
    session: Option<Session>,
}

impl Administrator {
    /// Asks `server`, and waits for at most `patience` for a connection and for each answer.
    #[must_use]
    pub const fn new(server: SocketAddr, patience: Duration) -> Self {
        let connection = Connection::new(server, patience);
        Self { connection, identity: None, server_key: None, session_timeout_s: None, session: None }
    }

    /// From now on, `identity` asks.
    pub fn identify(&mut self, identity: Option<Arc<Identity>>) {
        // A session belongs to whoever it was set up for.
        Self::end_sessions([&mut *self]);
        self.identity = identity;
    }

    /// Ends the sessions of all of these, and tells the servers, for these would keep them until they expire.
    ///
    /// All together may take 300 ms. Nobody is connected to for it, and nothing is sent twice: who does not hear it lets
    /// the session expire.
    pub fn end_sessions<'a>(clients: impl IntoIterator<Item = &'a mut Self>) {
        let deadline = Instant::now() + PARTING;
        let told: Vec<&mut Self> = clients.into_iter().filter_map(Self::take_leave).collect();
        for client in told {
            // Who leaves at once may tear the connection down before the server has read anything.
            let _ = client.connection.receive_until(deadline);
            client.connection.close();
        }
    }

    /// Says that the session is over, if there is one and somebody to say it to; does not wait.
    fn take_leave(&mut self) -> Option<&mut Self> {
        let session = self.session.take()?;
        let request = Request::SessionTerminate(HandleBody { handle: BLANK });
        let asked = Asked::new(Some(&session), &request, OpFlags::PLAIN_REQUEST).ok()?;
        self.connection.send_now(&asked.message).then_some(self)
    }

    /// From now on, only answers count that are made with the private half of `key`, or in a session that was set up
    /// so. Challenges need not be.
    pub fn require_signatures(&mut self, key: PublicKey) {
        self.server_key = Some(key);
    }

    /// From now on, requests of an identity go through a session that ends after `timeout_s` idle seconds; zero leaves
    /// that to the server, and `None` ends the use of sessions. One that was set up otherwise is ended.
    ///
    /// Without [`require_signatures`](Self::require_signatures) there is none all the same: it could be with anybody. Nor
    /// is there one when the server does not want it.
    pub fn use_sessions(&mut self, timeout_s: Option<i32>) {
        if timeout_s != self.session_timeout_s {
            Self::end_sessions([&mut *self]);
        }
        self.session_timeout_s = timeout_s;
    }

    /// Connects, unless there is a connection that the server has not left.
    ///
    /// # Errors
    /// When no connection comes about.
    pub fn connect(&mut self) -> Result<(), AskError> {
        self.connection.open()
    }

    /// Asks, answers up to two challenges, and gives the answer: a success, a referral or a refusal.
    ///
    /// Of a listing it is the first message; see [`list`](Self::list). When the server has forgotten the session, the
    /// request is repeated once in a new one; see [`Answer::was_repeated`].
    ///
    /// # Errors
    /// When no answer comes, or none that can be believed. See [`AskError::is_in_doubt`].
    pub fn ask(&mut self, request: &Request<'_>, flags: OpFlags) -> Result<Answer, AskError> {
        self.ask_covering(request, flags).map(|(answer, _)| answer)
    }

    /// Asks; gives header and body of the request as well, whose digest all its answers have.
    fn ask_covering(&mut self, request: &Request<'_>, flags: OpFlags) -> Result<(Answer, Vec<u8>), AskError> {
        let was_there = self.session.is_some();
        self.open_session()?;
        let asked = self.ask_decided(request, flags)?;
        if !(was_there && is_about_sessions(asked.0.code())) {
            return Ok(asked);
        }
        self.leave_session();
        self.open_session()?;
        let (mut answer, covered) = self.ask_decided(request, flags)?;
        answer.was_repeated = true;
        Ok((answer, covered))
    }

    /// Asks; an error where something is to be changed and may have been, though the answer is about the session.
    fn ask_decided(&mut self, request: &Request<'_>, flags: OpFlags) -> Result<(Answer, Vec<u8>), AskError> {
        let asked = self.ask_once(request, flags)?;
        let code = asked.0.code();
        let is_in_session = self.session.is_some() && is_about_sessions(code);
        if is_in_session && changes_records(request) && !NOTHING_DONE.contains(&code) {
            self.leave_session();
            return Err(AskError::Rejected(code));
        }
        Ok(asked)
    }

    /// Forgets a session that is over, and the connection.
    fn leave_session(&mut self) {
        self.session = None;
        // Who could not decrypt a request does not know that the connection is to be kept either, and may be closing it.
        self.connection.close();
    }

    /// Sets up a session, if one is wanted and there is none.
    fn open_session(&mut self) -> Result<(), AskError> {
        let (Some(timeout_s), Some(_), Some(identity), None) =
            (self.session_timeout_s, &self.server_key, self.identity.clone(), &self.session)
        else {
            return Ok(());
        };
        let proposal = Proposal::new(&random());
        let (answer, _) =
            self.ask_once(&proposal.request(Some(&identity), timeout_s), OpFlags::PLAIN_REQUEST)?;
        let (envelope, _, reply) = taken_apart(&answer.bytes)?;
        self.session = proposal.agree(&envelope, &reply);
        if self.session.is_none() {
            // Then every request proves itself, which takes longer and is as good.
            self.session_timeout_s = None;
        }
        Ok(())
    }

    fn ask_once(&mut self, request: &Request<'_>, flags: OpFlags) -> Result<(Answer, Vec<u8>), AskError> {
        let mut flags = flags.with(OpFlags::KEEP_CONNECTION);
        if self.server_key.is_some() {
            flags = flags.with(OpFlags::CERTIFY).with(OpFlags::REQUEST_DIGEST);
        }
        let asked = Asked::new(self.session.as_ref(), request, flags)?;
        self.connection.send(&asked.message)?;
        let mut answer = self.receive(request.op_code(), asked.request_id, &asked.covered)?;
        for _ in 0..CHALLENGES_MAX {
            if answer.code() != ResponseCode::AUTHENTICATION_NEEDED {
                break;
            }
            let proof = self.prove(&answer, &asked, flags)?;
            self.connection.send(&proof.message)?;
            answer = self.receive(request.op_code(), proof.request_id, &asked.covered)?;
        }
        Ok((answer, asked.covered))
    }

    /// Asks for a listing and hands over every name in it, until no more is wanted; gives the last answer.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); what has been handed over is then not all.
    pub fn list(
        &mut self,
        request: &Request<'_>,
        mut take: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<Answer, AskError> {
        let (mut answer, covered) = self.ask_covering(request, OpFlags::PLAIN_REQUEST)?;
        let mut left = LIST_COUNT_MAX;
        loop {
            let (envelope, message, reply) = taken_apart(&answer.bytes)?;
            let Response::Listing(listing) = reply.response else { return Ok(answer) };
            if listing.handles.iter().try_for_each(&mut take).is_break() {
                // With what still comes.
                self.connection.close();
                return Ok(answer);
            }
            if !message.header.flags.has(OpFlags::CONTINUOUS) {
                return Ok(answer);
            }
            // An endless listing is no listing.
            left = left.checked_sub(1).ok_or(AskError::Another("it does not end"))?;
            answer = self.receive(request.op_code(), envelope.request_id, &covered)?;
        }
    }

    /// The answer to a challenge.
    fn prove(&self, answer: &Answer, asked: &Asked, flags: OpFlags) -> Result<Asked, AskError> {
        let identity = self.identity.as_ref().ok_or(AskError::WhoAsks)?;
        let (envelope, _, reply) = taken_apart(&answer.bytes)?;
        let (Response::Challenge(challenge), Some(digest)) = (reply.response, reply.digest) else {
            return Err(AskError::Another("a challenge without the digest of the request"));
        };
        // Signing the challenge to another request would be doing what somebody else asks.
        check_request_digest(&digest, &asked.covered).map_err(AskError::Unproven)?;
        let covered = challenge.covered(&digest);
        let (auth_type, signed_response) = match &identity.key {
            Key::Secret(secret) => {
                let (version, suggested) = (envelope.version, envelope.effective_suggested());
                let salt = random::<PBKDF2_SALT_LEN>();
                (SECRET_KEY, answer_with_secret(version, suggested, &covered, secret, &salt))
            }
            Key::Private(key) => {
                let signed = answer_with_key(envelope.version, &covered, key);
                (PUBLIC_KEY, signed.map_err(AskError::Unsigned)?)
            }
        };
        let answer = ChallengeAnswer {
            auth_type,
            identity: Reference { handle: &identity.handle, index: identity.index },
            signed_response: &signed_response,
        };
        Asked::answer(&envelope, &Request::AnswerChallenge(answer), flags)
    }

    /// The answer to `request_id`; where answers are signed, one with the digest of `covered`.
    fn receive(&mut self, op_code: OpCode, request_id: i32, covered: &[u8]) -> Result<Answer, AskError> {
        let received = self.connection.receive().and_then(|message| {
            let answer = self.opened(message)?;
            self.check(&answer, op_code, request_id, covered)?;
            Ok(answer)
        });
        if let Err(error) = &received {
            // What comes next on this connection would belong to what was asked before.
            self.connection.close();
            if !matches!(error, AskError::Lost(_) | AskError::Late) {
                // Perhaps a server that was started anew has given the number of the session to somebody else.
                self.session = None;
            }
        }
        received
    }

    /// A message out of its encryption, if it has one.
    fn opened(&self, message: Vec<u8>) -> Result<Answer, AskError> {
        let is_encrypted = Envelope::split(&message)?.0.flags.has(EnvelopeFlags::ENCRYPTED);
        match (is_encrypted, &self.session) {
            (false, _) => Ok(Answer::new(message)),
            (true, Some(session)) => {
                let plain = session.decrypted(&message);
                plain.map(Answer::new).ok_or(AskError::Another("it cannot be decrypted"))
            }
            (true, None) => Err(AskError::Another("it is encrypted outside a session")),
        }
    }

    fn check(
        &mut self,
        answer: &Answer,
        op_code: OpCode,
        request_id: i32,
        covered: &[u8],
    ) -> Result<(), AskError> {
        let (envelope, message, reply) = taken_apart(&answer.bytes)?;
        let id = envelope.request_id;
        if id != request_id && id != NO_REQUEST {
            return Err(AskError::Another("it is to another request"));
        }
        let is_success = reply.code == ResponseCode::SUCCESS;
        if is_success && (message.header.op_code != op_code || id == NO_REQUEST) {
            return Err(AskError::Another("it is to another operation"));
        }
        let Some(key) = &self.server_key else { return Ok(()) };
        if reply.code == ResponseCode::AUTHENTICATION_NEEDED || is_about_sessions(reply.code) {
            return Ok(());
        }
        let is_mac = message.decode_credential()?.is_some_and(|credential| credential.is_mac());
        match &self.session {
            Some(session) if is_mac => {
                if !session.is_new(&envelope, &message).map_err(AskError::Unproven)? {
                    return Err(AskError::Another("it has come before"));
                }
            }
            _ => drop(verify_message(&envelope, &message, key).map_err(AskError::Unproven)?),
        }
        let digest = reply.digest.ok_or(AskError::Another("the digest of the request is missing"))?;
        check_request_digest(&digest, covered).map_err(AskError::Unproven)
    }
}

impl Drop for Administrator {
    fn drop(&mut self) {
        Self::end_sessions([self]);
    }
}

/// A request on its way.
struct Asked {
    request_id: i32,
    message: Vec<u8>,
    covered: Vec<u8>,
}

impl Asked {
    /// A request, in a session if there is one.
    fn new(session: Option<&Session>, request: &Request<'_>, flags: OpFlags) -> Result<Self, AskError> {
        let (session_id, version) =
            session.map_or((0, Version::CURRENT), |session| (session.id, session.version));
        let (envelope, message) = Self::begin(session_id, version, request, flags);
        let covered = message.covered().to_vec();
        let message = message.unsigned().map_err(AskError::TooLong)?;
        let message = match session {
            Some(session) => session.sealed(message).and_then(|sealed| match has_secrets(request) {
                true => session.encrypted(&sealed),
                false => Ok(sealed),
            }),
            None => Ok(message),
        };
        let message = message.map_err(AskError::TooLong)?;
        Ok(Self { request_id: envelope.request_id, message, covered })
    }

    /// An answer to a challenge, in its version; it proves itself.
    fn answer(challenge: &Envelope, request: &Request<'_>, flags: OpFlags) -> Result<Self, AskError> {
        let version = challenge.version.min(Version::CURRENT);
        let (envelope, message) = Self::begin(challenge.session_id, version, request, flags);
        let covered = message.covered().to_vec();
        let message = message.unsigned().map_err(AskError::TooLong)?;
        Ok(Self { request_id: envelope.request_id, message, covered })
    }

    fn begin(
        session_id: i32,
        version: Version,
        request: &Request<'_>,
        flags: OpFlags,
    ) -> (Envelope, MessageBuf) {
        // Positive, as deployed clients choose it, and hard to guess.
        let request_id = (i32::from_be_bytes(random()) & i32::MAX).max(1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_unix_s = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        let header = Header::request(request.op_code(), flags, now_unix_s);
        let envelope = Envelope { session_id, version, ..Envelope::request(request_id) };
        (envelope, MessageBuf::request(&envelope, &header, request))
    }
}

const fn changes_records(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::CreateHandle(_)
            | Request::DeleteHandle(_)
            | Request::AddValue(_)
            | Request::RemoveValue(_)
            | Request::ModifyValue(_)
            | Request::HomeNa(_)
            | Request::UnhomeNa(_)
    )
}

/// Whether the request has values that not everybody may read. In a session, those are encrypted.
fn has_secrets(request: &Request<'_>) -> bool {
    match request {
        Request::CreateHandle(body) | Request::AddValue(body) | Request::ModifyValue(body) => {
            !body.values.iter().all(|value: Value<'_>| value.is_public())
        }
        _ => false,
    }
}

/// Whether the code says that something is wrong with the session.
const fn is_about_sessions(code: ResponseCode) -> bool {
    500 <= code.0 && code.0 < 600
}

fn taken_apart(bytes: &[u8]) -> Result<(Envelope, Message<'_>, Reply<'_>), AskError> {
    let (envelope, rest) = Envelope::split(bytes)?;
    let message = Message::decode(rest)?;
    match message.decode_body(envelope.version)? {
        Body::Reply(reply) => Ok((envelope, message, reply)),
        Body::Request(_) => Err(AskError::Another("it is a request itself")),
    }
}

#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
