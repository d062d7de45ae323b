//! Sessions shared by both processes: a client sets one up with `handled` and uses it with
//! `handle-admin`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::challenge::answer_with_secret;
use handle_auth::message::verify_message;
use handle_daemon::socket::OwnedSocket;
use handle_proto::data::{Admin, AdminPermissions};
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::session::{ExchangedKey, KeyExchange, SessionSetup};
use handle_proto::wire::{Body, Envelope, Message, Reply, Request, Response};
use handle_proto::{OpFlags, Permissions, ResponseCode, Value, ValueBuf, Values, Version};
use handle_session::config::CipherName;
use handle_session::holder::{self, SharedTable};
use handle_session::{SessionTable, SessionsConfig};
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::session::{ClientSession, Protection, pair, set_up_request_as};
use handle_tests::test_server::{TestServer, serve_with, server_key};
use handle_worker::config::Datapath;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tempfile::TempDir;

const CERTIFIED: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 | OpFlags::CERTIFY.0);
const PRIVATE: OpFlags = OpFlags(CERTIFIED.0 & !OpFlags::PUBLIC_ONLY.0);
const ADMINISTRATOR: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };
const SECRET: &[u8] = b"open sesame open";
const MAC: Protection = Protection { mac: true, encrypted: false };
const ALL: Protection = Protection { mac: true, encrypted: true };

/// Both processes and the directory with their socket.
struct ProcessPair {
    served: Option<TestServer>,
    administered: AdminServer,
    directory: TempDir,
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("sessions")
}

fn serve(directory: &Path) -> TestServer {
    serve_with("root", Datapath::Portable, |config| config.sessions.socket = Some(socket(directory)))
}

impl ProcessPair {
    fn start() -> Self {
        Self::start_with(&SessionsConfig::default())
    }

    fn start_with(sessions: &SessionsConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let shared = SessionsConfig { socket: Some(socket(directory.path())), ..sessions.clone() };
        let here = shared.clone();
        let served = Some(serve_with("root", Datapath::Portable, |config| config.sessions = here));
        let administered = administer_with("root", |config| {
            config.sessions = shared;
            // Those of a database are not those of `handled`.
            config.store.postgres.sessions = false;
        });
        Self { served, administered, directory }
    }

    /// Opens a session with `handled` over UDP, as deployed clients do.
    fn session(&self) -> ClientSession {
        let address = self.served.as_ref().unwrap().address();
        ClientSession::open(exchange, address, ADMINISTRATOR, &server_key("root"))
    }

    /// Sends `message` to `handle-admin` in the session.
    fn administer(&self, session: &mut ClientSession, message: &[u8]) -> (ResponseCode, Protection, Vec<u8>) {
        let answer = exchange_over_tcp(self.administered.address(), message).unwrap();
        let (plain, protection) = session.read(&answer);
        (code(&plain), protection, plain)
    }

    /// Creates a handle in the session; returns whether it was challenged for that.
    fn create(&self, session: &mut ClientSession, handle: &str) -> bool {
        let message = create(session, handle);
        let message = session.seal(message);
        let (code, protection, plain) = self.administer(session, &message);
        if code != ResponseCode::AUTHENTICATION_NEEDED {
            assert_eq!((code, protection), (ResponseCode::SUCCESS, MAC), "{handle}");
            return false;
        }
        let message = answer(session, &plain);
        let (code, protection, _) = self.administer(session, &message);
        assert_eq!((code, protection), (ResponseCode::SUCCESS, MAC), "{handle}");
        true
    }
}

fn code(message: &[u8]) -> ResponseCode {
    Message::decode(&message[Envelope::LEN..]).unwrap().header.response_code
}

fn create(session: &ClientSession, handle: &str) -> Vec<u8> {
    create_as(session, handle, CERTIFIED)
}

fn create_as(session: &ClientSession, handle: &str, flags: OpFlags) -> Vec<u8> {
    let values = [
        ValueBuf::from(&Value::new(1, b"URL", b"https://example.org/")),
        ValueBuf::from(&Value {
            permissions: Permissions::ADMIN_READ,
            ..Value::new(2, b"NOTE", b"not for all")
        }),
    ];
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.as_bytes().to_vec()).collect();
    let values = Values::from_encoded(values.len(), &bytes).unwrap();
    let body = HandleValues { handle: handle.as_bytes(), values };
    session.request(11, flags, &Request::CreateHandle(body))
}

fn resolve(session: &ClientSession, handle: &str, flags: OpFlags) -> Vec<u8> {
    let query = Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY };
    session.request(12, flags, &Request::Resolution(query))
}

/// The answer to the challenge in `plain`.
fn answer(session: &ClientSession, plain: &[u8]) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(plain).unwrap();
    let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
    let Body::Reply(Reply { response: Response::Challenge(challenge), digest, .. }) = body else {
        panic!("a challenge")
    };
    assert_eq!(envelope.session_id, session.id, "the challenge has the number of the session");
    let covered = [challenge.nonce, digest.unwrap().digest];
    let (version, suggested) = (session.version, session.version);
    let signed_response = answer_with_secret(version, suggested, &covered, SECRET, &[7; 16]);
    let body = ChallengeAnswer {
        auth_type: auth::SECRET_KEY,
        identity: ADMINISTRATOR,
        signed_response: &signed_response,
    };
    session.request(13, CERTIFIED, &Request::AnswerChallenge(body))
}

#[test]
fn handle_admin_accepts_sessions_that_were_set_up_with_handled() {
    let processes = ProcessPair::start();
    let mut session = processes.session();
    assert!(processes.create(&mut session, "TST/SESSION-1"), "no identity has been authenticated yet");
    assert!(!processes.create(&mut session, "TST/SESSION-2"), "the identity is authenticated");
    let audit = std::fs::read_to_string(processes.administered.directory.path().join("audit.jsonl")).unwrap();
    assert_eq!(
        audit.matches(r#""identity":"301:0.NA/TST""#).count(),
        2,
        "with and without challenge: {audit}"
    );
    // Both processes check the counters of the session.
    let message = create(&session, "TST/SESSION-3");
    let message = session.seal(message);
    assert_eq!(processes.administer(&mut session, &message).0, ResponseCode::SUCCESS);
    assert_eq!(
        processes.administer(&mut session, &message).0,
        ResponseCode::SESSION_MESSAGE_REJECTED,
        "a replay"
    );
    let handled = processes.served.as_ref().unwrap().address();
    let question = resolve(&session, "TST/HALF", PRIVATE);
    let question = session.seal(question);
    let (plain, protection) = session.read(&exchange(handled, &question).unwrap());
    assert_eq!((code(&plain), protection), (ResponseCode::SUCCESS, ALL), "handled knows the identity");
    assert_eq!(
        processes.administer(&mut session, &question).0,
        ResponseCode::SESSION_MESSAGE_REJECTED,
        "a replay from the other process"
    );
    // Values that are not public are encrypted, also in requests if the client wants it.
    let question = resolve(&session, "TST/HALF", PRIVATE);
    let question = session.seal(question);
    let encrypted = session.encrypt(&question);
    let (code_now, protection, _) = processes.administer(&mut session, &encrypted);
    assert_eq!((code_now, protection), (ResponseCode::SUCCESS, ALL));
    // A request without a MAC or with a wrong one is refused.
    let bare = create(&session, "TST/SESSION-4");
    assert_eq!(processes.administer(&mut session, &bare).0, ResponseCode::INVALID_CREDENTIAL);
    let mut forged = session.seal(bare);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(processes.administer(&mut session, &forged).0, ResponseCode::INVALID_SESSION_KEY);
    let end = session.request(14, CERTIFIED, &Request::SessionTerminate(HandleBody { handle: b"/" }));
    let end = session.seal(end);
    assert_eq!(processes.administer(&mut session, &end).0, ResponseCode::SUCCESS);
    let late = resolve(&session, "TST/TARGET", OpFlags::PLAIN_REQUEST);
    assert_eq!(
        code(&exchange(handled, &late).unwrap()),
        ResponseCode::SESSION_TIMEOUT,
        "the session ended for both"
    );
}

#[test]
fn a_challenged_change_is_decided_three_times_and_one_in_a_session_twice() {
    let processes = ProcessPair::start();
    let decision = Arc::clone(&processes.administered.server().shared().service.decision);
    let mut counted = decision.made_count();
    let mut decisions = |act: &mut dyn FnMut()| {
        act();
        let before = std::mem::replace(&mut counted, decision.made_count());
        counted - before
    };
    let address = processes.administered.address();
    let change = |request: &Request<'_>| {
        let reply = crate::admin::ask_as(address, ADMINISTRATOR, SECRET, OpFlags::PLAIN_REQUEST, request);
        assert_eq!(reply.code, ResponseCode::SUCCESS, "{}", reply.text);
    };
    let hidden = Value { permissions: Permissions::ADMIN_READ, ..Value::new(2, b"NOTE", b"not for all") };
    let mut owner = Vec::new();
    Admin::new(AdminPermissions::ALL, ADMINISTRATOR.handle, ADMINISTRATOR.index).encode(&mut owner);
    // Without an identity, for the claimed one, and in the writer for the proven one.
    let created = decisions(&mut || {
        crate::admin::with_values(&[Value::new(100, b"HS_ADMIN", &owner)], |values| {
            change(&Request::CreateHandle(HandleValues { handle: b"TST/DECIDED", values }));
        });
    });
    assert_eq!(created, 3, "a challenged create");
    let added = decisions(&mut || {
        crate::admin::with_values(&[hidden], |values| {
            change(&Request::AddValue(HandleValues { handle: b"TST/DECIDED", values }));
        });
    });
    // Whether there is such a value is decided for the proven identity only, before the writer.
    assert_eq!(added, 4, "a change that depends on hidden values");
    let mut session = processes.session();
    let first = decisions(&mut || assert!(processes.create(&mut session, "TST/DECIDED-1"), "challenged"));
    assert_eq!(first, 3, "a challenged create in a session");
    let second = decisions(&mut || assert!(!processes.create(&mut session, "TST/DECIDED-2"), "known"));
    assert_eq!(second, 2, "a create in a session that knows the identity");
}

#[test]
fn peers_of_every_version_administer_in_a_session_with_both() {
    let ciphers = vec![CipherName::Aes, CipherName::Des];
    let old_versions = true;
    let processes =
        ProcessPair::start_with(&SessionsConfig { ciphers, old_versions, ..SessionsConfig::default() });
    let handled = processes.served.as_ref().unwrap().address();
    for minor in 1..=11 {
        for hides in [false, true] {
            let version = Version::new(2, minor);
            let case = format!("{version}, encrypted: {hides}");
            let pair = pair();
            let set_up = exchange(handled, &set_up_request_as(version, &pair, ADMINISTRATOR, 0)).unwrap();
            let mut session = ClientSession::from_answer(&pair, &set_up, Some(&server_key("root")));
            assert_eq!(session.version, version);
            let seal = |message: Vec<u8>, session: &mut ClientSession| {
                let sealed = session.seal(message);
                if hides { session.encrypt(&sealed) } else { sealed }
            };
            let flags = if hides { OpFlags(CERTIFIED.0 | OpFlags::ENCRYPT.0) } else { CERTIFIED };
            // The identity is authenticated once for both processes.
            let name = |number: u8| format!("TST/VERSION-{minor}-{hides}-{number}");
            let message = seal(create_as(&session, &name(1), flags), &mut session);
            let (challenged, _, plain) = processes.administer(&mut session, &message);
            assert_eq!(challenged, ResponseCode::AUTHENTICATION_NEEDED, "{case}");
            let proof = answer(&session, &plain);
            let proof = if hides { session.encrypt(&proof) } else { proof };
            let (done, protection, _) = processes.administer(&mut session, &proof);
            assert_eq!(
                (done, protection),
                (ResponseCode::SUCCESS, Protection { mac: true, encrypted: hides }),
                "{case}"
            );
            let message = seal(create_as(&session, &name(2), flags), &mut session);
            assert_eq!(processes.administer(&mut session, &message).0, ResponseCode::SUCCESS, "{case}");
            let again = processes.administer(&mut session, &message).0;
            let counts = minor >= 5;
            let refused = if counts {
                ResponseCode::SESSION_MESSAGE_REJECTED
            } else {
                ResponseCode::HANDLE_ALREADY_EXISTS
            };
            assert_eq!(again, refused, "{case}: a replay");
            let private = OpFlags(flags.0 & !OpFlags::PUBLIC_ONLY.0);
            let question = seal(resolve(&session, "TST/HALF", private), &mut session);
            let (plain, protection) = session.read(&exchange(handled, &question).unwrap());
            let expected = Protection { mac: true, encrypted: hides || minor >= 8 };
            assert_eq!((code(&plain), protection), (ResponseCode::SUCCESS, expected), "{case}");
            let end = session.request(14, CERTIFIED, &Request::SessionTerminate(HandleBody { handle: b"/" }));
            let end = seal(end, &mut session);
            assert_eq!(processes.administer(&mut session, &end).0, ResponseCode::SUCCESS, "{case}");
            let late = resolve(&session, "TST/TARGET", OpFlags::PLAIN_REQUEST);
            assert_eq!(code(&exchange(handled, &late).unwrap()), ResponseCode::SESSION_TIMEOUT, "{case}");
        }
    }
}

#[test]
fn a_forged_answer_in_a_session_is_refused_and_the_right_one_still_counts() {
    let processes = ProcessPair::start();
    let mut session = processes.session();
    let message = create(&session, "TST/SESSION-1");
    let message = session.seal(message);
    let (_, _, challenge) = processes.administer(&mut session, &message);
    let bare = answer(&session, &challenge);
    let mut forged = session.seal(bare.clone());
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(processes.administer(&mut session, &forged).0, ResponseCode::INVALID_SESSION_KEY);
    assert_eq!(processes.administer(&mut session, &bare).0, ResponseCode::SUCCESS);
}

#[test]
fn set_ups_of_sessions_are_answered_outside_the_current_session() {
    let processes = ProcessPair::start();
    let mut session = processes.session();
    let refused = SessionSetup { exchange: KeyExchange::ServerKey, timeout_s: 0, identity: ADMINISTRATOR };
    let flags = CERTIFIED.with(OpFlags::ENCRYPT);
    for request in [
        Request::SessionSetup(refused),
        Request::SessionExchangeKey(ExchangedKey { encrypted_key: b"a key" }),
    ] {
        let message = session.request(14, flags, &request);
        let message = session.seal(message);
        let answer = exchange_over_tcp(processes.administered.address(), &message).unwrap();
        let (envelope, rest) = Envelope::split(&answer).unwrap();
        assert!(!envelope.flags.has(EnvelopeFlags::ENCRYPTED), "{request:?}");
        let message = Message::decode(rest).unwrap();
        assert_eq!(message.header.response_code, ResponseCode::SESSION_FAILED, "{request:?}");
        verify_message(&envelope, &message, &server_key("root")).expect("the signature of the server");
    }
}

/// Holds the sessions of another process, with session numbers that the test chooses.
struct NumberingHolder {
    sessions: SessionTable,
    number: AtomicU32,
    stopped: AtomicBool,
}

impl SharedTable for NumberingHolder {
    fn sessions(&self) -> Option<&SessionTable> {
        Some(&self.sessions)
    }

    fn now_s(&self) -> u32 {
        0
    }

    fn random(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    fn is_taken(&self, _: i32) -> bool {
        false
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

#[test]
fn an_answer_to_a_plain_challenge_proves_nothing_in_a_session_with_its_number() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket(directory.path());
    let holder = OwnedSocket::bind(&path, false).unwrap().move_into_place().unwrap();
    let numbering = Arc::new(NumberingHolder {
        sessions: SessionTable::new(SessionsConfig::default().limits()),
        number: AtomicU32::new(0),
        stopped: AtomicBool::new(false),
    });
    let serving = Arc::clone(&numbering);
    let thread = std::thread::spawn(move || holder::serve(&holder, &serving, None));
    let administered = administer_with("root", |config| {
        config.sessions = SessionsConfig { socket: Some(path), ..SessionsConfig::default() };
        config.store.postgres.sessions = false;
    });
    let address = administered.address();
    let ask = |message: &[u8]| exchange_over_tcp(address, message).unwrap();
    // A session of another client has the number of the administrator's challenge.
    numbering.number.store(77, Ordering::Relaxed);
    let mut plain = ClientSession::open(exchange_over_tcp, address, ADMINISTRATOR, &server_key("root"));
    assert_eq!(plain.id, 77);
    plain.id = 0;
    let challenge = ask(&create(&plain, "TST/SESSION-1"));
    let (envelope, _) = Envelope::split(&challenge).unwrap();
    plain.id = envelope.session_id;
    numbering.number.store(plain.id.cast_unsigned(), Ordering::Relaxed);
    let mut strange = ClientSession::open(exchange_over_tcp, address, ADMINISTRATOR, &server_key("root"));
    assert_eq!(strange.id, plain.id);
    assert_eq!(code(&ask(&answer(&plain, &challenge))), ResponseCode::SUCCESS, "the correct answer");
    let message = create(&strange, "TST/SESSION-2");
    let message = strange.seal(message);
    assert_eq!(code(&ask(&message)), ResponseCode::AUTHENTICATION_NEEDED, "the session is not authenticated");
    numbering.stopped.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}

#[test]
fn each_process_continues_while_the_other_is_down() {
    let mut processes = ProcessPair::start();
    let mut session = processes.session();
    assert!(processes.create(&mut session, "TST/SESSION-1"));
    // handle-admin is restarted; sessions in handled stay authenticated.
    let handled = processes.served.as_ref().unwrap().address();
    processes.administered.restart();
    let question = resolve(&session, "TST/HALF", PRIVATE);
    let question = session.seal(question);
    assert_eq!(code(&session.read(&exchange(handled, &question).unwrap()).0), ResponseCode::SUCCESS);
    assert!(!processes.create(&mut session, "TST/SESSION-2"));
    // handled stops and its sessions end; clients set up new ones.
    processes.served = None;
    let message = create(&session, "TST/SESSION-3");
    let message = session.seal(message);
    let answer = exchange_over_tcp(processes.administered.address(), &message).unwrap();
    assert_eq!(code(&answer), ResponseCode::SESSION_TIMEOUT);
    let admin = processes.administered.address();
    let mut own = ClientSession::open(exchange_over_tcp, admin, ADMINISTRATOR, &server_key("root"));
    assert!(processes.create(&mut own, "TST/SESSION-3"));
    // After a restart of handled, either process sets up sessions with it.
    processes.served = Some(serve(processes.directory.path()));
    assert!(!processes.create(&mut own, "TST/SESSION-4"), "the session of handle-admin continues");
    let mut shared = ClientSession::open(exchange_over_tcp, admin, ADMINISTRATOR, &server_key("root"));
    let handled = processes.served.as_ref().unwrap().address();
    let question = resolve(&shared, "TST/TARGET", CERTIFIED);
    let question = shared.seal(question);
    let (plain, protection) = shared.read(&exchange(handled, &question).unwrap());
    assert_eq!((code(&plain), protection), (ResponseCode::SUCCESS, MAC), "handled holds the session");
}

#[test]
fn with_require_sessions_nobody_is_challenged_outside_a_session() {
    let administered = administer_with("root", |config| config.require_sessions = true);
    let address = administered.address();
    let key = server_key("root");
    let mut session = ClientSession::open(exchange_over_tcp, address, ADMINISTRATOR, &key);
    let mut outside = ClientSession::open(exchange_over_tcp, address, ADMINISTRATOR, &key);
    outside.id = 0;
    let refused = exchange_over_tcp(address, &create(&outside, "TST/REQUIRED")).unwrap();
    assert_eq!(code(&refused), ResponseCode::INVALID_CREDENTIAL);
    assert!(String::from_utf8_lossy(&refused).contains("This server requires a session."));
    let message = create(&session, "TST/REQUIRED");
    let message = session.seal(message);
    let challenged = session.read(&exchange_over_tcp(address, &message).unwrap()).0;
    assert_eq!(code(&challenged), ResponseCode::AUTHENTICATION_NEEDED);
    let proof = answer(&session, &challenged);
    let created = session.read(&exchange_over_tcp(address, &proof).unwrap()).0;
    assert_eq!(code(&created), ResponseCode::SUCCESS);
}
