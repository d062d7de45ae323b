//! The client for administration: sends requests to one server over TCP, and authenticates when it
//! is challenged. RFC 3652 sections 3.5 and 3.6.
//!
//! - The client blocks and handles one request at a time. For concurrent requests, use several
//!   clients.
//! - A challenge is answered only if it has the digest of the request.
//! - In a session, which is set up only with a server whose key is known, one challenge serves for
//!   all requests. If a session is required and cannot be set up, nothing is sent.
//! - Secrets and values that are not public are sent in an encrypted session only; [`Allowances`]
//!   has the exceptions.
//! - If the server refuses a request that changes nothing, the client repeats it at the server's
//!   interface for queries.

mod answer;
mod connection;
mod error;
mod outgoing;
pub mod record_change;

pub use crate::identity::{ClientIdentity, IdentityKey, SessionKey};
pub use crate::open_session::{CommonSession, SessionFailure};
pub use answer::AdministrationAnswer;
pub use error::AskError;

use crate::allowances::Allowances;
use crate::open_session::{OpenSession, PooledSession, Proposal};
#[cfg(feature = "tls")]
use crate::replication::connection::StreamConnection;
use answer::decode_reply;
use connection::ServerConnection;
use handle_auth::challenge::check_request_digest;
use handle_auth::message::verify_message;
use handle_auth::{PublicKey, VerifyError, random};
use handle_proto::data::site::{InterfaceKind, InterfaceProtocol, Server, Site};
use handle_proto::limit::LIST_COUNT_MAX;
use handle_proto::name::BLANK;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::auth::ChallengeAnswer;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::guard::OwnedGuard;
use handle_proto::wire::{Envelope, Message, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};
use outgoing::{OutgoingRequest, Repetition, RequestExtra, changes_records, changes_values, has_secrets};
use std::net::{IpAddr, SocketAddr};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most challenges that are answered for one request. After that the server is taken to reject
/// every proof.
const CHALLENGES_MAX: usize = 2;
/// Codes that say that an identity is not proven.
const PROOF_REFUSED: RangeInclusive<i32> =
    ResponseCode::AUTHENTICATION_NEEDED.0..=ResponseCode::AUTHENTICATION_NEEDED.0 + 4;

/// Time for all servers together to receive that sessions have ended.
const PARTING: Duration = Duration::from_millis(300);
/// Response codes that say that the server does not know the session or cannot decrypt the request,
/// and has not carried it out. Other codes about sessions, such as "seen before", may follow a
/// request that was carried out.
const NOTHING_DONE: [ResponseCode; 3] =
    [ResponseCode::SESSION_TIMEOUT, ResponseCode::SESSION_FAILED, ResponseCode::INVALID_SESSION_KEY];
/// Request id of replies to messages that the server could not read.
const NO_REQUEST: i32 = -1;

/// Sends requests to one server, with one identity or none.
#[derive(Debug)]
pub struct Administrator {
    /// The connection in use.
    connection: ServerConnection,
    /// The connection to the interface for queries, if the server refuses queries at the given one.
    /// During a query the two connections are exchanged.
    query_connection: Option<ServerConnection>,
    /// Where the site record by which the server was found has its interface for queries.
    query_server: Option<SocketAddr>,
    identity: Option<Arc<ClientIdentity>>,
    server_key: Option<PublicKey>,
    /// Idle seconds after which sessions end; `None` if sessions are not used.
    session_timeout_s: Option<i32>,
    session: Option<Arc<OpenSession>>,
    /// The session that is shared with other clients, if one is.
    shared: Option<CommonSession>,
    /// Whether the last challenge was answered to the satisfaction of the server.
    has_proven: bool,
    allowances: Allowances,
    /// The version of requests outside sessions.
    version: Version,
    /// The conditions on changes.
    guard: OwnedGuard,
    /// The client whose proofs are passed on.
    client: Option<IpAddr>,
}

/// The answer to a request for a stream.
#[cfg(feature = "tls")]
#[derive(Debug)]
pub enum StreamAnswer {
    /// The stream follows on this connection.
    Begins(Box<StreamConnection>),
    /// The server refuses the request, or refers it.
    Refused(AdministrationAnswer),
}

impl Administrator {
    /// A client of `server` that waits at most `timeout` for a connection and for each answer.
    #[must_use]
    pub fn new(server: SocketAddr, timeout: Duration) -> Self {
        Self {
            connection: ServerConnection::new(server, timeout),
            query_connection: None,
            query_server: None,
            identity: None,
            server_key: None,
            session_timeout_s: None,
            session: None,
            shared: None,
            has_proven: false,
            allowances: Allowances::default(),
            version: Version::CURRENT,
            guard: OwnedGuard::default(),
            client: None,
        }
    }

    /// States the address of the client whose proofs are passed on from now on. A server that
    /// trusts this sender limits wrong keys by it.
    pub const fn pass_on_for(&mut self, client: IpAddr) {
        self.client = Some(client);
    }

    /// Sets the conditions on the changes of records that are asked for from now on. A server that
    /// does not know conditions refuses these changes.
    pub fn guard(&mut self, guard: OwnedGuard) {
        self.guard = guard;
    }

    /// Sets the version of further requests outside sessions. It is an upper limit of the version
    /// of their answers.
    pub const fn use_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Sets the identity for further requests.
    pub fn identify(&mut self, identity: Option<Arc<ClientIdentity>>) {
        // A session belongs to the identity that it was set up for.
        Self::end_sessions([&mut *self]);
        self.identity = identity;
    }

    /// Ends the sessions of all `clients`, and notifies their servers, which would otherwise keep
    /// the sessions until they expire.
    ///
    /// All notifications together may take 300 ms. No connection is opened for them, and nothing is
    /// sent twice: a server that misses its notification lets the session expire.
    pub fn end_sessions<'a>(clients: impl IntoIterator<Item = &'a mut Self>) {
        let deadline = Instant::now() + PARTING;
        let leaving: Vec<&mut Self> = clients.into_iter().filter_map(Self::take_leave).collect();
        for client in leaving {
            // Closing the connection at once could reset it before the server has read the
            // notification.
            let _ = client.connection.receive_until(deadline);
            client.connection.close();
        }
    }

    /// Ends the session, and sends the notification if there is a session and an open connection.
    /// Does not wait.
    fn take_leave(&mut self) -> Option<&mut Self> {
        let session = self.session.take()?;
        let session = match &self.shared {
            Some(shared) => shared.forget(session)?,
            None => session,
        };
        let request = Request::SessionTerminate(HandleBody { handle: BLANK });
        let flags = OpFlags::PLAIN_REQUEST;
        let outgoing = OutgoingRequest::new(
            Some(&session),
            &request,
            RequestExtra::default(),
            flags,
            self.allowances,
            self.version,
        )
        .ok()?;
        self.connection.send_now(&outgoing.message).then_some(self)
    }

    /// Requires the server to prove its answers: from now on only those count that are signed with
    /// the private key of `key`, or are made in a session that was set up with it. Challenges need
    /// no proof.
    pub fn require_signatures(&mut self, key: PublicKey) {
        self.server_key = Some(key);
    }

    /// Sends requests with an identity or with secrets in a session from now on. The session ends
    /// after `timeout_s` idle seconds; with zero the server chooses, and with `None` sessions are
    /// no longer used. An existing session with other settings is ended.
    ///
    /// A session needs the key of the server ([`require_signatures`](Self::require_signatures));
    /// without it, the other side of the session would be unknown. If no session can be set up,
    /// requests fail with [`AskError::NoSession`].
    pub fn use_sessions(&mut self, timeout_s: Option<i32>) {
        if timeout_s != self.session_timeout_s {
            Self::end_sessions([&mut *self]);
        }
        self.session_timeout_s = timeout_s;
    }

    /// Uses one session together with all clients that get the same one, which is set up once. They
    /// have to be clients of the same server with the same key; those with another identity replace
    /// the session.
    pub fn share_session(&mut self, shared: CommonSession) {
        Self::end_sessions([&mut *self]);
        self.shared = Some(shared);
    }

    /// Sets the exceptions for further requests.
    pub const fn allow(&mut self, allowances: Allowances) {
        self.allowances = allowances;
    }

    /// Connects, unless there is a connection that the server keeps open.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn connect(&mut self) -> Result<(), AskError> {
        self.connection.open()
    }

    /// Sends a request, answers up to two challenges, and returns the answer: a success, a referral
    /// or a refusal.
    ///
    /// For a listing it returns the first message; see [`list`](Self::list). If the server no
    /// longer knows the session, the request is repeated once in a new one; see
    /// [`AdministrationAnswer::was_repeated`].
    ///
    /// # Errors
    /// When no valid answer arrives; [`AskError::NoSession`] when nothing was sent. See
    /// [`AskError::is_in_doubt`].
    pub fn ask(&mut self, request: &Request<'_>, flags: OpFlags) -> Result<AdministrationAnswer, AskError> {
        self.at_an_interface(request, |client| client.ask_covering(request, flags).map(|(answer, _)| answer))
    }

    /// Sends a request for a listing and passes every name in it to `take`, until `take` wants no
    /// more. Returns the last message.
    ///
    /// # Errors
    /// As [`ask`](Self::ask). The names passed so far are then incomplete.
    pub fn list(
        &mut self,
        request: &Request<'_>,
        mut take: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<AdministrationAnswer, AskError> {
        self.at_an_interface(request, |client| client.list_here(request, &mut take))
    }

    /// Sends a request that is answered with a stream, and answers up to two challenges. The stream
    /// is received from the returned connection, which is no longer that of this client.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    #[cfg(feature = "tls")]
    pub fn begin_stream(&mut self, request: &Request<'_>) -> Result<StreamAnswer, AskError> {
        let (answer, _) = self.ask_covering(request, OpFlags::PLAIN_REQUEST)?;
        if answer.code() != ResponseCode::SUCCESS {
            return Ok(StreamAnswer::Refused(answer));
        }
        self.connection.take_stream().map(|connection| StreamAnswer::Begins(Box::new(connection)))
    }

    /// Names the interface for queries of the server, if its site record is known already.
    pub const fn answers_queries_at(&mut self, server: SocketAddr) {
        self.query_server = Some(server);
    }

    /// Sends the request at the interface that is connected to. If the request changes nothing and
    /// is refused there, it is repeated at the interface for queries, which is then used for all
    /// such requests.
    fn at_an_interface(
        &mut self,
        request: &Request<'_>,
        mut ask: impl FnMut(&mut Self) -> Result<AdministrationAnswer, AskError>,
    ) -> Result<AdministrationAnswer, AskError> {
        if changes_records(request) {
            return ask(self);
        }
        if self.query_connection.is_none() {
            let answer = ask(self);
            let code = match &answer {
                Ok(answer) => answer.code(),
                Err(AskError::UnprovenRefusal { code, .. }) => *code,
                Err(_) => return answer,
            };
            let is_misplaced = code == ResponseCode::PROTOCOL_ERROR;
            let known = self.query_server.filter(|_| is_misplaced);
            let server = known.or_else(|| is_misplaced.then(|| self.find_query_interface()).flatten());
            let Some(server) = server else { return answer };
            self.query_connection = Some(self.connection.sibling(server));
        }
        self.swap_connections();
        let answer = ask(self);
        self.swap_connections();
        answer
    }

    fn swap_connections(&mut self) {
        if let Some(other) = &mut self.query_connection {
            std::mem::swap(&mut self.connection, other);
        }
    }

    /// The address at which the server answers queries over TCP according to its site record, if it
    /// is another port.
    fn find_query_interface(&mut self) -> Option<SocketAddr> {
        let answer = self.ask_site_info().ok()?;
        let Response::SiteInfo(bytes) = answer.reply().response else { return None };
        let site = Site::decode(bytes).ok()?;
        let here = self.connection.server();
        let is_here = |server: &Server<'_>| {
            let mut interfaces = server.interfaces.iter();
            interfaces.any(|one| one.protocol == InterfaceProtocol::TCP && one.port() == Some(here.port()))
        };
        // The site record may have another address than the one that the client reaches the server
        // at.
        let is_same = |server: &Server<'_>| is_here(server) && server.address.ip() == here.ip();
        // Behind a translation of addresses, the port may be another one too. The record of one
        // server is that of this server.
        let only = || site.servers.iter().next().filter(|_| site.servers.len() == 1);
        let server =
            site.servers.iter().find(is_same).or_else(|| site.servers.iter().find(is_here)).or_else(only)?;
        let port = server.interface(InterfaceProtocol::TCP, InterfaceKind::QUERY)?.port()?;
        (port != here.port()).then(|| SocketAddr::new(here.ip(), port))
    }

    fn ask_site_info(&mut self) -> Result<AdministrationAnswer, AskError> {
        let request = Request::GetSiteInfo(HandleBody { handle: BLANK });
        self.ask_once(&request, OpFlags::PLAIN_REQUEST).map(|(answer, _)| answer)
    }

    /// Sends a request. Also returns header and body of the request, because all its answers have
    /// their digest.
    fn ask_covering(
        &mut self,
        request: &Request<'_>,
        flags: OpFlags,
    ) -> Result<(AdministrationAnswer, Vec<u8>), AskError> {
        if self.session.is_none()
            && self.uses_session_for(request)
            && let Some(shared) = self.shared.take()
        {
            let answer = self.ask_in_unproven_session(&shared, request, flags);
            self.shared = Some(shared);
            if let Some(answer) = answer {
                return answer;
            }
        }
        self.ask_alone(request, flags)
    }

    /// Takes the shared session. If its identity has not been proven yet, sends the request as the
    /// only one: it may be challenged, and a session has one challenge at a time.
    fn ask_in_unproven_session(
        &mut self,
        shared: &CommonSession,
        request: &Request<'_>,
        flags: OpFlags,
    ) -> Option<Result<(AdministrationAnswer, Vec<u8>), AskError>> {
        let mut pooled = shared.pooled();
        let is_ours = |pooled: &&PooledSession| match (&pooled.identity, &self.identity) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let ours = pooled.as_ref().filter(is_ours);
        let (session, is_proven) =
            (ours.map(|it| Arc::clone(&it.session)), ours.is_some_and(|it| it.is_proven));
        self.session = session;
        if is_proven {
            return None;
        }
        self.has_proven = false;
        let answer = self.ask_alone(request, flags);
        let (identity, is_proven) = (self.identity.clone(), self.has_proven);
        *pooled = self.session.clone().map(|session| PooledSession { identity, session, is_proven });
        if !is_proven {
            self.session = None;
        }
        Some(answer)
    }

    fn ask_alone(
        &mut self,
        request: &Request<'_>,
        flags: OpFlags,
    ) -> Result<(AdministrationAnswer, Vec<u8>), AskError> {
        let had_session = self.session.is_some();
        self.open_session(request)?;
        let mut answer = self.ask_decided(request, flags)?;
        if had_session && is_about_sessions(answer.0.code()) {
            self.leave_session();
            self.open_session(request)?;
            answer = self.ask_decided(request, flags)?;
            answer.0.was_repeated = true;
        }
        if !answer.0.is_proven {
            let (code, text) = (answer.0.code(), answer.0.text());
            self.leave_session();
            return Err(AskError::UnprovenRefusal { code, text });
        }
        Ok(answer)
    }

    /// Sends a request. Returns an error if the request changes records and the answer concerns the
    /// session, because the change may have been made.
    fn ask_decided(
        &mut self,
        request: &Request<'_>,
        flags: OpFlags,
    ) -> Result<(AdministrationAnswer, Vec<u8>), AskError> {
        let answer = self.ask_once(request, flags)?;
        let code = answer.0.code();
        let is_in_session = self.session.is_some() && is_about_sessions(code);
        if is_in_session && changes_records(request) && !NOTHING_DONE.contains(&code) {
            self.leave_session();
            return Err(AskError::Rejected(code));
        }
        Ok(answer)
    }

    /// Drops an ended session and its connection.
    fn leave_session(&mut self) {
        self.forget_session();
        // A server that could not decrypt the request could not read its flag to keep the
        // connection either, and may be closing it.
        self.connection.close();
    }

    /// Drops a session that the server may not have any more, for all clients that share it.
    fn forget_session(&mut self) {
        if let (Some(session), Some(shared)) = (self.session.take(), &self.shared) {
            let mut pooled = shared.pooled();
            if pooled.as_ref().is_some_and(|pooled| Arc::ptr_eq(&pooled.session, &session)) {
                *pooled = None;
            }
        }
    }

    /// Sets up a session for `request`, if one is required and there is none.
    ///
    /// # Errors
    /// [`AskError::NoSession`] when none can be set up, whatever the reason: a refusal can be
    /// forged or provoked to make the client continue without a session.
    fn open_session(&mut self, request: &Request<'_>) -> Result<(), AskError> {
        let has_secrets = has_secrets(request);
        let no_session = |why| AskError::NoSession { why, has_secrets };
        if self.session.is_some() {
            return Ok(());
        }
        if has_secrets && self.server_key.is_none() && !self.allowances.cleartext_secrets {
            return Err(no_session(SessionFailure::ServerKeyUnknown));
        }
        let Some(timeout_s) = self.session_timeout_s.filter(|_| self.uses_session_for(request)) else {
            return Ok(());
        };
        if self.server_key.is_none() {
            return Err(no_session(SessionFailure::ServerKeyUnknown));
        }
        self.session = Some(Arc::new(self.set_up(timeout_s, has_secrets)?));
        Ok(())
    }

    /// Whether a request is sent in a session.
    fn uses_session_for(&self, request: &Request<'_>) -> bool {
        self.session_timeout_s.is_some() && (self.identity.is_some() || has_secrets(request))
    }

    /// Sets up a session.
    fn set_up(&mut self, timeout_s: i32, has_secrets: bool) -> Result<OpenSession, AskError> {
        let no_session = |why| AskError::NoSession { why, has_secrets };
        let (identity, proposal) = (self.identity.clone(), Proposal::new(&random()));
        let setup = proposal.request(identity.as_deref(), timeout_s);
        let (answer, _) = self.ask_once(&setup, OpFlags::PLAIN_REQUEST)?;
        let (envelope, _, reply) = decode_reply(&answer.bytes)?;
        if let Response::Failure(_) | Response::Challenge(_) = reply.response {
            let (code, text, is_proven) = (reply.code, answer.text(), answer.is_proven);
            return Err(no_session(SessionFailure::Refused { code, text, is_proven }));
        }
        proposal.agree(&envelope, &reply, self.allowances).map_err(no_session)
    }

    fn ask_once(
        &mut self,
        request: &Request<'_>,
        flags: OpFlags,
    ) -> Result<(AdministrationAnswer, Vec<u8>), AskError> {
        let mut flags = flags.with(OpFlags::KEEP_CONNECTION);
        if self.server_key.is_some() {
            flags = flags.with(OpFlags::CERTIFY).with(OpFlags::REQUEST_DIGEST);
        }
        let extra = match request {
            Request::VerifyChallenge(_) => RequestExtra { client: self.client, guard: None },
            _ => RequestExtra { client: None, guard: changes_values(request).then_some(&self.guard) },
        };
        let outgoing = OutgoingRequest::new(
            self.session.as_ref(),
            request,
            extra,
            flags,
            self.allowances,
            self.version,
        )?;
        let mut answer = self.exchange(&outgoing, request.op_code(), &outgoing.covered)?;
        for _ in 0..CHALLENGES_MAX {
            if answer.code() != ResponseCode::AUTHENTICATION_NEEDED {
                break;
            }
            let proof = self.prove(&answer, &outgoing, flags, changes_records(request))?;
            answer = self.exchange(&proof, request.op_code(), &outgoing.covered)?;
            self.has_proven = !PROOF_REFUSED.contains(&answer.code().0);
        }
        Ok((answer, outgoing.covered))
    }

    /// Sends a request and waits for its answer. If it is lost on a reused connection before any
    /// byte of its answer arrived, it is sent once more on a new connection, if carrying it out
    /// twice is harmless or impossible.
    fn exchange(
        &mut self,
        outgoing: &OutgoingRequest,
        op_code: OpCode,
        covered: &[u8],
    ) -> Result<AdministrationAnswer, AskError> {
        if outgoing.repetition == Repetition::Forbidden {
            self.prepare_connection();
        }
        self.connection.send(&outgoing.message)?;
        let received = self.receive(op_code, outgoing.request_id, covered);
        let is_lost = matches!(received, Err(AskError::Lost(_))) && self.connection.was_lost_unheard();
        if !is_lost || outgoing.repetition == Repetition::Forbidden {
            return received;
        }
        self.connection.send(&outgoing.message)?;
        let answer = self.receive(op_code, outgoing.request_id, covered)?;
        if outgoing.repetition == Repetition::Refused && is_about_sessions(answer.code()) {
            // The server may refuse the second one because it has read the first.
            let code = answer.code();
            self.leave_session();
            return Err(AskError::Rejected(code));
        }
        Ok(answer)
    }

    /// Ensures that a request that must not be lost goes out on a new connection, or on one that
    /// the server is known to keep. A server may claim to keep a connection and close it anyway; a
    /// request that changes nothing finds that out.
    fn prepare_connection(&mut self) {
        if self.connection.is_open() && !self.connection.is_trusted() {
            let tried = self.ask_site_info();
            if tried.is_err() || !self.connection.is_trusted() {
                self.connection.close();
            }
        }
    }

    fn list_here(
        &mut self,
        request: &Request<'_>,
        take: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<AdministrationAnswer, AskError> {
        let (mut answer, covered) = self.ask_covering(request, OpFlags::PLAIN_REQUEST)?;
        let mut left = LIST_COUNT_MAX;
        loop {
            let (envelope, _, reply) = decode_reply(&answer.bytes)?;
            let Response::Listing(listing) = reply.response else { return Ok(answer) };
            if listing.handles.iter().try_for_each(&mut *take).is_break() {
                // Together with the messages that are still to come.
                self.connection.close();
                return Ok(answer);
            }
            if !answer.is_continued() {
                return Ok(answer);
            }
            // Bounds listings that do not end.
            left = left.checked_sub(1).ok_or(AskError::Another("the listing does not end"))?;
            answer = self.receive(request.op_code(), envelope.request_id, &covered)?;
        }
    }

    /// Makes the answer to a challenge.
    fn prove(
        &self,
        answer: &AdministrationAnswer,
        outgoing: &OutgoingRequest,
        flags: OpFlags,
        is_change: bool,
    ) -> Result<OutgoingRequest, AskError> {
        let identity = self.identity.as_ref().ok_or(AskError::NoIdentity)?;
        let (envelope, _, reply) = decode_reply(&answer.bytes)?;
        let (Response::Challenge(challenge), Some(digest)) = (reply.response, reply.digest) else {
            return Err(AskError::Another("a challenge without the digest of the request"));
        };
        // A signature under the challenge to another request would authorise that request.
        check_request_digest(&digest, &outgoing.covered).map_err(AskError::Unproven)?;
        let (version, suggested) = (envelope.version, envelope.effective_suggested());
        if identity.gives_old_proof(version, suggested) && !self.allowances.old_proofs {
            return Err(AskError::OldProof(version.min(suggested)));
        }
        let covered = challenge.covered(&digest);
        let signed = identity.answer(version, suggested, &covered, &random());
        let signed_response = signed.map_err(AskError::Unsigned)?;
        let answer = ChallengeAnswer {
            auth_type: identity.auth_type(),
            identity: identity.reference(),
            signed_response: &signed_response,
        };
        let request = Request::AnswerChallenge(answer);
        OutgoingRequest::answer(&envelope, &request, self.client, flags, is_change, self.version)
    }

    /// Receives the answer to `request_id`. If signatures are required, the answer must have the
    /// digest of `covered`, or be an unproven refusal.
    fn receive(
        &mut self,
        op_code: OpCode,
        request_id: i32,
        covered: &[u8],
    ) -> Result<AdministrationAnswer, AskError> {
        let received = self.connection.receive().and_then(|message| {
            let mut answer = self.opened(message)?;
            answer.is_proven = self.check(&answer, op_code, request_id, covered)?;
            Ok(answer)
        });
        match &received {
            // The stream follows on the connection.
            Ok(answer) if begins_stream(op_code) && answer.code() == ResponseCode::SUCCESS => {}
            Ok(answer) if !answer.is_continued() => self.connection.note_answer(answer.keeps_connection()),
            Ok(_) => {}
            Err(error) => {
                // Further bytes on this connection would belong to the earlier request.
                self.connection.close();
                if !matches!(error, AskError::Lost(_) | AskError::Late) {
                    // The server may have restarted and given the number of the session to another
                    // client.
                    self.forget_session();
                }
            }
        }
        received
    }

    /// Decrypts a message, if it is encrypted.
    fn opened(&self, message: Vec<u8>) -> Result<AdministrationAnswer, AskError> {
        let is_encrypted = Envelope::split(&message)?.0.flags.has(EnvelopeFlags::ENCRYPTED);
        match (is_encrypted, &self.session) {
            (false, _) => Ok(AdministrationAnswer::new(message)),
            (true, Some(session)) => {
                let plain = session.decrypted(&message);
                plain.map(AdministrationAnswer::new).ok_or(AskError::Another("it cannot be decrypted"))
            }
            (true, None) => Err(AskError::Another("it is encrypted outside a session")),
        }
    }

    /// Checks that the message answers the request. Returns whether it is proven to come from the
    /// server, or no proof is required.
    ///
    /// # Errors
    /// When it does not answer the request, or is not proven. Unproven refusals are accepted,
    /// because an attacker on the network path can also prevent a request by dropping it.
    fn check(
        &self,
        answer: &AdministrationAnswer,
        op_code: OpCode,
        request_id: i32,
        covered: &[u8],
    ) -> Result<bool, AskError> {
        let (envelope, message, reply) = decode_reply(&answer.bytes)?;
        let id = envelope.request_id;
        if id != request_id && id != NO_REQUEST {
            return Err(AskError::Another("it belongs to another request"));
        }
        let is_success = reply.code == ResponseCode::SUCCESS;
        if is_success && (message.header.op_code != op_code || id == NO_REQUEST) {
            return Err(AskError::Another("it belongs to another operation"));
        }
        let Some(key) = &self.server_key else { return Ok(true) };
        match self.verify(key, &envelope, &message, &reply, covered) {
            Ok(()) => Ok(true),
            Err(_) if reply.code == ResponseCode::AUTHENTICATION_NEEDED || is_about_sessions(reply.code) => {
                Ok(false)
            }
            Err(AskError::Unproven(VerifyError::Unsigned))
                if matches!(reply.response, Response::Failure(_)) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn verify(
        &self,
        key: &PublicKey,
        envelope: &Envelope,
        message: &Message<'_>,
        reply: &Reply<'_>,
        covered: &[u8],
    ) -> Result<(), AskError> {
        let is_mac = message.decode_credential()?.is_some_and(|credential| credential.is_mac());
        match &self.session {
            Some(session) if is_mac => {
                if !session.is_new(envelope, message).map_err(AskError::Unproven)? {
                    return Err(AskError::Another("it is a replay"));
                }
            }
            _ => drop(verify_message(envelope, message, key).map_err(AskError::Unproven)?),
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

/// Whether the code reports a problem with the session.
const fn is_about_sessions(code: ResponseCode) -> bool {
    500 <= code.0 && code.0 < 600
}

/// Whether a stream follows the successful answer to this operation.
const fn begins_stream(op_code: OpCode) -> bool {
    matches!(op_code, OpCode::RETRIEVE_TXN_LOG | OpCode::DUMP_HANDLES)
}

#[cfg(test)]
mod connection_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
