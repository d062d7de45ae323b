//! Tests of sessions, against a small server that has them.

use super::tests::{ReceivedRequest, serve};
use super::*;
use handle_auth::agreement::respond;
use handle_auth::message::{mac_message, sign_message, verify_mac_message};
use handle_auth::session::SessionKey;
use handle_auth::{PrivateKey, generate};
use handle_proto::code::{Cipher, DigestAlgorithm, KeyExchangeMode};
use handle_proto::wire::Credential;
use handle_proto::wire::admin::{CreatedHandle, HandleBody, HandleValues};
use handle_proto::wire::auth::Challenge;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::message::encrypted;
use handle_proto::wire::session::{self, KeyExchange, SessionAnswer};
use handle_proto::wire::{Body, Header, MessageBuf};
use handle_proto::{Permissions, Value, Values, Version};
use std::io;
use std::sync::{Mutex, OnceLock};
use zeroize::Zeroizing;

const TIMEOUT: Duration = Duration::from_secs(20);
const DELETE: Request<'_> = Request::DeleteHandle(HandleBody { handle: b"10/a" });

/// The events of a server, in order.
type ServerLog = Arc<Mutex<Vec<&'static str>>>;

/// A server with one session at a time.
struct SessionServer {
    key: Arc<PrivateKey>,
    session: Option<SessionKey>,
    /// Each session has a new id.
    sessions: i32,
    is_authenticated: bool,
    /// Header and body of the challenged request, and its digest.
    challenged: Vec<u8>,
    counter: i32,
    log: ServerLog,
    /// Whether it answers with the counter of the previous answer.
    repeats_itself: bool,
    /// The code with which it refuses the next request in a session, without a MAC.
    refuses: Option<ResponseCode>,
    /// Number of the connection of the last request.
    connection: usize,
    /// The version in which it answers requests for a session.
    version: Version,
    /// The code with which it answers requests for sessions, and whether that is signed.
    refuses_setup: Option<(ResponseCode, bool)>,
}

impl SessionServer {
    fn note(&self, what: &'static str) {
        self.log.lock().unwrap().push(what);
    }

    fn answer(&mut self, got: &ReceivedRequest) -> Vec<u8> {
        self.connection = got.connection;
        let mut bytes = got.bytes.clone();
        let is_encrypted = got.envelope.flags.has(EnvelopeFlags::ENCRYPTED);
        if is_encrypted {
            let plain =
                self.session.as_ref().unwrap().decrypt(Version::CURRENT, &bytes[Envelope::LEN..]).unwrap();
            bytes.truncate(Envelope::LEN);
            bytes.extend_from_slice(&plain);
            self.note("encrypted");
        }
        let message = Message::decode(&bytes[Envelope::LEN..]).unwrap();
        let Ok(Body::Request(request)) = message.decode_body(Version::CURRENT) else { panic!("a request") };
        match request {
            Request::SessionSetup(_) if self.refuses_setup.is_some() => {
                let (code, is_signed) = self.refuses_setup.expect("checked in the guard");
                let refusal = Response::Failure(Failure { message: b"too many" });
                self.note("no session");
                match is_signed {
                    true => self.reply(got, &message, code, refusal, false),
                    false => got.reply(code, refusal),
                }
            }
            Request::SessionSetup(setup) => self.set_up(got, &message, &setup),
            Request::SessionTerminate(_) if got.envelope.session_id == self.sessions => {
                let key = self.session.take().expect("a session");
                verify_mac_message(&got.envelope, &message, key.as_bytes()).unwrap();
                self.note("ended");
                got.reply(ResponseCode::SUCCESS, Response::Done)
            }
            Request::AnswerChallenge(_) => {
                assert!(message.credential.is_empty(), "an answer proves itself");
                self.is_authenticated = true;
                self.note("answered");
                let original = self.challenged.clone();
                self.reply_to(
                    got,
                    &original,
                    ResponseCode::SUCCESS,
                    Response::Done,
                    OpCode::DELETE_HANDLE,
                    false,
                )
            }
            request => self.answer_in_session(got, &message, &request, is_encrypted),
        }
    }

    /// Sets up a session.
    fn set_up(
        &mut self,
        got: &ReceivedRequest,
        message: &Message<'_>,
        setup: &session::SessionSetup<'_>,
    ) -> Vec<u8> {
        let KeyExchange::DiffieHellman(theirs) = setup.exchange else { panic!("Diffie-Hellman") };
        let (ours, secret) = respond(theirs, &(1024..=4096), &random()).unwrap();
        self.session = SessionKey::derive(Cipher::AES, &secret);
        (self.sessions, self.is_authenticated) = (self.sessions + 1, false);
        let mut data = Vec::new();
        let key = session::SessionKey { cipher: Cipher::AES, key: &ours };
        key.encode(self.version, session::SessionKey::DIFFIE_HELLMAN_SINCE, &mut data);
        self.note("set up");
        let answer = SessionAnswer { mode: KeyExchangeMode::DIFFIE_HELLMAN, data: &data };
        self.reply(got, message, ResponseCode::SUCCESS, Response::Session(answer), false)
    }

    /// Answers a request in the session, whose client is challenged first.
    fn answer_in_session(
        &mut self,
        got: &ReceivedRequest,
        message: &Message<'_>,
        request: &Request<'_>,
        is_encrypted: bool,
    ) -> Vec<u8> {
        let Some(key) = self.session.as_ref().filter(|_| got.envelope.session_id == self.sessions) else {
            self.note("unknown");
            let nothing = Response::Failure(Failure { message: b"" });
            return got.reply(ResponseCode::SESSION_TIMEOUT, nothing);
        };
        verify_mac_message(&got.envelope, message, key.as_bytes()).unwrap();
        if let Some(code) = self.refuses.take() {
            self.note("refused");
            return got.reply(code, Response::Failure(Failure { message: b"" }));
        }
        if !self.is_authenticated {
            self.challenged = message.covered.to_vec();
            self.note("challenged");
            return got.challenge_as(message.covered, self.sessions);
        }
        self.note("done");
        let response = match request {
            Request::CreateHandle(body) => Response::Created(CreatedHandle { handle: Some(body.handle) }),
            _ => Response::Done,
        };
        self.reply(got, message, ResponseCode::SUCCESS, response, is_encrypted)
    }

    fn reply(
        &mut self,
        got: &ReceivedRequest,
        message: &Message<'_>,
        code: ResponseCode,
        response: Response<'_>,
        encrypts: bool,
    ) -> Vec<u8> {
        self.reply_to(got, message.covered, code, response, message.header.op_code, encrypts)
    }

    /// A reply with the digest of `covered`: signed if it sets up a session, with a MAC if it is in
    /// one.
    fn reply_to(
        &mut self,
        got: &ReceivedRequest,
        covered: &[u8],
        code: ResponseCode,
        response: Response<'_>,
        op_code: OpCode,
        encrypts: bool,
    ) -> Vec<u8> {
        let version = if op_code == OpCode::SESSION_SETUP { self.version } else { Version::CURRENT };
        let envelope =
            Envelope { session_id: self.sessions, version, ..Envelope::request(got.envelope.request_id) };
        let made = handle_auth::challenge::request_digest(version, covered);
        let algorithm = DigestAlgorithm::for_response(version);
        let digest = Some(RequestDigest { algorithm, digest: &made });
        let header = Header { op_code, ..Header::request(op_code, OpFlags::KEEP_CONNECTION, 0) };
        let message = MessageBuf::reply(&envelope, &header, &Reply { code, digest, response });
        self.counter += i32::from(!self.repeats_itself || self.counter == 0);
        let key = self.session.clone();
        let credential = match &key {
            Some(key) if op_code != OpCode::SESSION_SETUP => {
                mac_message(&envelope, self.counter, message.covered(), key.as_bytes())
            }
            _ => sign_message(&envelope, 0, message.covered(), &self.key).unwrap(),
        };
        let sealed = message.signed(&Credential::decode(&credential).unwrap()).unwrap();
        let (true, Some(key)) = (encrypts, key) else { return sealed };
        encrypted(&envelope, &[&key.encrypt(Version::CURRENT, &random(), &sealed[Envelope::LEN..])]).unwrap()
    }
}

/// A client of a server with sessions, the events of the server, and the server itself.
fn begin() -> (Administrator, Arc<Mutex<SessionServer>>, ServerLog) {
    // Generating a key takes longer than any of these tests.
    static KEY: OnceLock<Arc<PrivateKey>> = OnceLock::new();
    let make = || Arc::new(PrivateKey::new(&generate::rsa(2048).unwrap().view()).unwrap());
    let key = Arc::clone(KEY.get_or_init(make));
    let log = Arc::new(Mutex::new(Vec::new()));
    let server = Arc::new(Mutex::new(SessionServer {
        key: Arc::clone(&key),
        session: None,
        sessions: 0,
        is_authenticated: false,
        challenged: Vec::new(),
        counter: 0,
        log: Arc::clone(&log),
        repeats_itself: false,
        refuses: None,
        connection: 0,
        version: Version::CURRENT,
        refuses_setup: None,
    }));
    let served = Arc::clone(&server);
    let (address, _) = serve(move |got| Some((served.lock().unwrap().answer(got), true)));
    let mut client = Administrator::new(address, TIMEOUT);
    client.require_signatures(key.public().clone());
    client.use_sessions(Some(60));
    let secret = IdentityKey::Secret(Zeroizing::new(b"secret".to_vec()));
    client.identify(Some(Arc::new(ClientIdentity { handle: b"10/ADMIN".to_vec(), index: 300, key: secret })));
    (client, server, log)
}

#[test]
fn one_challenge_serves_for_all_requests_of_a_session() {
    let (mut client, server, log) = begin();
    for _ in 0..3 {
        assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), ResponseCode::SUCCESS);
    }
    let seen = std::mem::take(&mut *log.lock().unwrap());
    assert_eq!(seen, ["set up", "challenged", "answered", "done", "done"]);
    // A session that the server has dropped is set up again, and the request repeated.
    server.lock().unwrap().session = None;
    assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), ResponseCode::SUCCESS);
    let seen = std::mem::take(&mut *log.lock().unwrap());
    assert_eq!(seen, ["unknown", "set up", "challenged", "answered"]);
    // Another identity gets a session of its own, and the server is notified that the last one
    // ended.
    let identity = client.identity.clone();
    client.identify(identity);
    client.ask(&DELETE, OpFlags(0)).unwrap();
    drop(client);
    // The notification was sent; it may not have been read yet.
    let deadline = Instant::now() + TIMEOUT;
    while log.lock().unwrap().len() < 5 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(*log.lock().unwrap(), ["ended", "set up", "challenged", "answered", "ended"]);
}

#[test]
fn ending_a_lost_session_takes_little_time() {
    // A notified server that does not react is not waited for.
    let (mut client, server, _) = begin();
    client.ask(&DELETE, OpFlags(0)).unwrap();
    let silent = server.lock().unwrap();
    let began = Instant::now();
    drop(client);
    assert!(began.elapsed() < TIMEOUT / 2);
    drop(silent);
    // No connection is opened for a notification either.
    let (mut client, ..) = begin();
    client.ask(&DELETE, OpFlags(0)).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    client.connection = ServerConnection::new(listener.local_addr().unwrap(), TIMEOUT);
    drop(client);
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_session_ends_when_its_settings_change() {
    let (mut client, _, log) = begin();
    client.ask(&DELETE, OpFlags(0)).unwrap();
    for (timeout_s, seen) in [(Some(60), &["done"][..]), (Some(61), &["ended", "set up"]), (None, &["ended"])]
    {
        log.lock().unwrap().clear();
        client.use_sessions(timeout_s);
        // Without an identity, the session of the last one is no longer used.
        let _ = client.ask(&DELETE, OpFlags(0));
        assert!(log.lock().unwrap().starts_with(seen), "{timeout_s:?}: {:?}", log.lock().unwrap());
    }
    assert!(client.session.is_none());
}

#[test]
fn changes_in_doubt_are_not_repeated() {
    let (mut client, server, log) = begin();
    assert!(!client.ask(&DELETE, OpFlags(0)).unwrap().was_repeated());
    for (code, is_repeated) in [
        (ResponseCode::SESSION_TIMEOUT, true),
        (ResponseCode::SESSION_FAILED, true),
        (ResponseCode::INVALID_SESSION_KEY, true),
        (ResponseCode::SESSION_MESSAGE_REJECTED, false),
    ] {
        server.lock().unwrap().refuses = Some(code);
        log.lock().unwrap().clear();
        let answer = client.ask(&DELETE, OpFlags(0));
        assert_eq!(log.lock().unwrap().len() > 1, is_repeated, "{code}");
        match answer {
            Ok(answer) => assert!(is_repeated && answer.was_repeated(), "{code}"),
            Err(error) => assert!(!is_repeated && error.is_in_doubt(), "{code}: {error}"),
        }
    }
    // The next request gets a new session. Reading twice is harmless.
    server.lock().unwrap().refuses = None;
    client.ask(&DELETE, OpFlags(0)).unwrap();
    server.lock().unwrap().refuses = Some(ResponseCode::SESSION_MESSAGE_REJECTED);
    let listing = Request::ListHandles(HandleBody { handle: b"0.NA/10" });
    log.lock().unwrap().clear();
    // This server answers every challenged request with a deletion.
    let _ = client.ask(&listing, OpFlags(0));
    assert_eq!(*log.lock().unwrap(), ["refused", "set up", "challenged", "answered"]);
}

#[test]
fn a_new_session_is_set_up_on_another_connection() {
    let (mut client, server, _) = begin();
    client.ask(&DELETE, OpFlags(0)).unwrap();
    let before = server.lock().unwrap().connection;
    server.lock().unwrap().session = None;
    assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), ResponseCode::SUCCESS);
    assert_eq!(server.lock().unwrap().connection, before + 1);
}

#[test]
fn private_values_are_sent_encrypted() {
    let (mut client, _, log) = begin();
    client.ask(&DELETE, OpFlags(0)).unwrap();
    let mut storage = Vec::new();
    for (kind, permissions, is_secret) in [
        (&b"NOTE"[..], Permissions(0x0c), true),
        (b"NOTE", Permissions::DEFAULT, false),
        (b"HS_SECKEY", Permissions::DEFAULT, true),
        (b"hs_seckey.old", Permissions::DEFAULT, true),
    ] {
        let mut value = Value::new(301, kind, b"hunter2");
        value.permissions = permissions;
        let values = Values::build([Value::new(1, b"URL", b"x"), value], &mut storage);
        log.lock().unwrap().clear();
        let body = HandleValues { handle: b"10/b", values };
        let answer = client.ask(&Request::CreateHandle(body), OpFlags(0)).unwrap();
        assert_eq!(answer.reply().response, Response::Created(CreatedHandle { handle: Some(b"10/b") }));
        assert_eq!(log.lock().unwrap().contains(&"encrypted"), is_secret);
    }
}

#[test]
fn repeated_and_foreign_answers_are_refused() {
    let (mut client, server, _) = begin();
    client.ask(&DELETE, OpFlags(0)).unwrap();
    server.lock().unwrap().repeats_itself = true;
    let error = client.ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::Another(_)), "{error}");
    // The server may have another session with that number, so the next request sets up a new one.
    server.lock().unwrap().repeats_itself = false;
    assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), ResponseCode::SUCCESS);
    assert_eq!(server.lock().unwrap().sessions, 2);

    let (mut client, server, _) = begin();
    let other = generate::rsa(2048).unwrap();
    server.lock().unwrap().key = Arc::new(PrivateKey::new(&other.view()).unwrap());
    let error = client.ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::Unproven(VerifyError::Wrong)), "{error}");
}

#[test]
fn nothing_is_sent_without_a_required_session() {
    let refusals = [
        (ResponseCode::SESSION_FAILED, false),
        (ResponseCode::INVALID_SESSION_KEY, true),
        (ResponseCode::SERVER_BUSY, false),
        (ResponseCode::SERVER_BUSY, true),
        (ResponseCode::OPERATION_NOT_SUPPORTED, true),
    ];
    for refusal in refusals {
        let (mut client, server, log) = begin();
        server.lock().unwrap().refuses_setup = Some(refusal);
        for _ in 0..2 {
            let error = client.ask(&DELETE, OpFlags(0)).unwrap_err();
            let AskError::NoSession {
                why: SessionFailure::Refused { code, is_proven, .. },
                has_secrets: false,
            } = &error
            else {
                panic!("{refusal:?}: {error}")
            };
            assert_eq!((*code, *is_proven), refusal);
            assert!(!error.is_in_doubt() && error.to_string().contains("too many"), "{error}");
        }
        assert_eq!(*log.lock().unwrap(), ["no session"; 2], "nothing else went out");
    }
    // With a server whose key is not known, the other side of the session would be unknown.
    let (mut client, _, log) = begin();
    client.server_key = None;
    let error = client.ask(&DELETE, OpFlags(0)).unwrap_err();
    let AskError::NoSession { why: SessionFailure::ServerKeyUnknown, .. } = error else { panic!("{error}") };
    assert!(log.lock().unwrap().is_empty());
}

/// Every kind of request that has a value in it.
fn requests_with<'a>(values: Values<'a>) -> [Request<'a>; 3] {
    let body = HandleValues { handle: b"10/b", values };
    [Request::CreateHandle(body), Request::AddValue(body), Request::ModifyValue(body)]
}

#[test]
fn secrets_are_sent_outside_a_session_only_where_that_is_allowed() {
    let received = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&received);
    let (server, _) = serve(move |got| {
        seen.lock().unwrap().extend_from_slice(&got.bytes);
        Some((got.reply(ResponseCode::SUCCESS, Response::Done), false))
    });
    let has_arrived =
        |received: &Mutex<Vec<u8>>| received.lock().unwrap().windows(7).any(|window| window == b"hunter2");
    let mut storage = Vec::new();
    let private = Value { permissions: Permissions::ADMIN_READ, ..Value::new(1, b"NOTE", b"hunter2") };
    for value in [private, Value::new(301, b"HS_SECKEY", b"hunter2")] {
        let values = Values::build([value], &mut storage);
        for request in requests_with(values) {
            for is_allowed in [false, true] {
                let mut client = Administrator::new(server, TIMEOUT);
                client.allow(Allowances { cleartext_secrets: is_allowed, ..Allowances::default() });
                received.lock().unwrap().clear();
                let outcome = client.ask(&request, OpFlags(0));
                assert_eq!(has_arrived(&received), is_allowed);
                if let Err(error) = outcome {
                    assert!(matches!(error, AskError::NoSession { has_secrets: true, .. }), "{error}");
                }
            }
        }
    }
    // Requests without an identity get a session too, if they have secrets.
    let (mut client, _, log) = begin();
    client.identity = None;
    let values = Values::build([private], &mut storage);
    let _ = client.ask(&requests_with(values)[0], OpFlags(0));
    assert_eq!(log.lock().unwrap()[..2], ["set up", "encrypted"]);
    // With the key of the server, but without sessions.
    let (mut client, _, log) = begin();
    client.use_sessions(None);
    let error = client.ask(&requests_with(values)[0], OpFlags(0)).unwrap_err();
    let AskError::NoSession { why: SessionFailure::NotUsed, has_secrets: true } = error else {
        panic!("{error}")
    };
    assert!(log.lock().unwrap().is_empty());
}

#[test]
fn sessions_of_old_versions_are_refused_unless_allowed() {
    for minor in [1, 4, 5, 6, 7, 11] {
        let version = Version::new(2, minor);
        for is_allowed in [false, true] {
            let (mut client, server, log) = begin();
            server.lock().unwrap().version = version;
            client.allow(Allowances { old_sessions: is_allowed, ..Allowances::default() });
            let opened = client.open_session(&DELETE);
            assert_eq!(client.session.is_some(), is_allowed || minor >= 7, "2.{minor}");
            if let Err(error) = opened {
                let AskError::NoSession { why: SessionFailure::OldVersion(chosen), .. } = error else {
                    panic!("{error}")
                };
                assert_eq!(chosen, version);
            }
            client.session = None;
            assert_eq!(*log.lock().unwrap(), ["set up"]);
        }
    }
}

#[test]
fn an_answer_whose_mac_does_not_cover_its_number_is_refused_in_a_newer_session() {
    let (mut client, ..) = begin();
    client.open_session(&DELETE).unwrap();
    let session = client.session.take().unwrap();
    for (minor, is_taken) in [(11, true), (7, true), (6, false), (5, false), (1, false)] {
        let envelope =
            Envelope { session_id: session.id, version: Version::new(2, minor), ..Envelope::request(1) };
        let header = Header::request(OpCode::DELETE_HANDLE, OpFlags(0), 0);
        let reply = Reply { code: ResponseCode::SUCCESS, digest: None, response: Response::Done };
        let message = MessageBuf::reply(&envelope, &header, &reply).unsigned().unwrap();
        let sealed = session.sealed(message).unwrap();
        let message = Message::decode(&sealed[Envelope::LEN..]).unwrap();
        assert_eq!(session.is_new(&envelope, &message).is_ok(), is_taken, "2.{minor}");
    }
}

#[test]
fn a_lost_change_in_a_session_is_repeated_as_the_same_message() {
    let (mut client, server, log) = begin();
    // A proxy between the two that can lose messages.
    let lose = Arc::new(Mutex::new(0));
    let (losing, seen) = (Arc::clone(&lose), Arc::new(Mutex::new(Vec::new())));
    let (received, served) = (Arc::clone(&seen), Arc::clone(&server));
    let (address, _) = serve(move |got| {
        received.lock().unwrap().push(got.bytes.clone());
        let mut left = losing.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return Some((Vec::new(), false));
        }
        Some((served.lock().unwrap().answer(got), true))
    });
    client.connection = ServerConnection::new(address, TIMEOUT);
    client.ask(&DELETE, OpFlags(0)).unwrap();
    // The server did not read it: it is repeated.
    *lose.lock().unwrap() = 1;
    log.lock().unwrap().clear();
    seen.lock().unwrap().clear();
    assert_eq!(client.ask(&DELETE, OpFlags(0)).unwrap().code(), ResponseCode::SUCCESS);
    assert_eq!(*log.lock().unwrap(), ["done"]);
    let sent = std::mem::take(&mut *seen.lock().unwrap());
    assert!(sent.len() == 2 && sent[0] == sent[1]);
    // The server has read it: it knows the message, but the client cannot know whether it was
    // carried out.
    client.ask(&DELETE, OpFlags(0)).unwrap();
    *lose.lock().unwrap() = 1;
    server.lock().unwrap().refuses = Some(ResponseCode::SESSION_MESSAGE_REJECTED);
    let error = client.ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::Rejected(ResponseCode::SESSION_MESSAGE_REJECTED)), "{error}");
    // It is sent at most twice.
    client.ask(&DELETE, OpFlags(0)).unwrap();
    *lose.lock().unwrap() = 2;
    let error = client.ask(&DELETE, OpFlags(0)).unwrap_err();
    assert!(matches!(error, AskError::Lost(_)) && error.is_in_doubt(), "{error}");
}

/// The challenge in a session has its id.
impl ReceivedRequest {
    fn challenge_as(&self, covered: &[u8], session_id: i32) -> Vec<u8> {
        let made = handle_auth::challenge::request_digest(Version::CURRENT, covered);
        let digest =
            Some(RequestDigest { algorithm: DigestAlgorithm::for_response(Version::CURRENT), digest: &made });
        let response = Response::Challenge(Challenge { nonce: &[9; 16] });
        let envelope = Envelope { session_id, ..Envelope::request(self.envelope.request_id) };
        let header = Header::request(OpCode::DELETE_HANDLE, OpFlags::KEEP_CONNECTION, 0);
        let reply = Reply { code: ResponseCode::AUTHENTICATION_NEEDED, digest, response };
        MessageBuf::reply(&envelope, &header, &reply).unsigned().unwrap()
    }
}
