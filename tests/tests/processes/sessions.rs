//! Sessions over the network: authentication of their messages, ownership, and limits.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::PrivateKey;
use handle_auth::agreement::{Group, KeyPair};
use handle_auth::challenge::{answer_with_key, answer_with_secret};
use handle_auth::message::verify_message;
use handle_proto::code::Cipher;
use handle_proto::limit::FRAGMENTS_MAX;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::fragment::cut;
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::session::ExchangedKey;
use handle_proto::wire::{Body, Envelope, Message, Reply, Request, Response};
use handle_proto::{OpFlags, ResponseCode, Version};
use handle_session::config::CipherName;
use handle_session::{JointSessions, SessionTable, SessionsConfig};
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::session::{ClientSession, NOBODY, Protection, SessionExchange, pair, set_up_request};
use handle_tests::test_server::{TestServer, serve_with, server_key};
use handle_tests::vectors::{fixture, hex};
use handle_worker::config::{Config, Datapath};
use std::time::{Duration, Instant};

const CERTIFIED: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 | OpFlags::CERTIFY.0);
const PRIVATE: OpFlags = OpFlags(CERTIFIED.0 & !OpFlags::PUBLIC_ONLY.0);
const SECRET: &[u8] = b"open sesame open";
const ADMINISTRATOR: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };
const OTHER: Reference<'_> = Reference { handle: b"0.NA/TST", index: 300 };
const MAC: Protection = Protection { mac: true, encrypted: false };
const NONE: Protection = Protection { mac: false, encrypted: false };
const ALL: Protection = Protection { mac: true, encrypted: true };

fn root(change: impl FnOnce(&mut Config)) -> TestServer {
    serve_with("root", Datapath::Portable, change)
}

fn open(served: &TestServer, identity: Reference<'_>) -> ClientSession {
    ClientSession::open(exchange, served.address(), identity, &server_key("root"))
}

fn question(session: &ClientSession, handle: &str, flags: OpFlags) -> Vec<u8> {
    let query = Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY };
    session.request(i32::from(handle_auth::random::<1>()[0]) + 1, flags, &Request::Resolution(query))
}

/// Code, indexes of the values, and the challenge of a decrypted answer.
type PlainReply = (ResponseCode, Vec<i32>, Option<(Vec<u8>, Vec<u8>)>);

fn plain_reply(bytes: &[u8]) -> PlainReply {
    let (envelope, rest) = Envelope::split(bytes).unwrap();
    let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
    let Body::Reply(Reply { code, digest, response }) = body else { panic!("a reply") };
    match response {
        Response::Answer(answer) => (code, answer.values.iter().map(|value| value.index).collect(), None),
        Response::Challenge(challenge) => {
            (code, vec![], Some((challenge.nonce.to_vec(), digest.unwrap().digest.to_vec())))
        }
        _ => (code, vec![], None),
    }
}

/// Sends `message` and reads the answer in the session.
fn ask(served: &TestServer, session: &mut ClientSession, message: &[u8]) -> (PlainReply, Protection) {
    let answer = exchange(served.address(), message).expect("an answer");
    let (plain, protection) = session.read(&answer);
    (plain_reply(&plain), protection)
}

fn code(served: &TestServer, message: &[u8]) -> ResponseCode {
    let answer = exchange(served.address(), message).expect("an answer");
    Message::decode(&answer[Envelope::LEN..]).unwrap().header.response_code
}

/// Answers a challenge in the session as `identity`, with its secret or key.
fn answer(
    served: &TestServer,
    session: &mut ClientSession,
    identity: Reference<'_>,
    (nonce, digest): &(Vec<u8>, Vec<u8>),
) -> (PlainReply, Protection) {
    let covered = [&nonce[..], digest];
    let (auth_type, signed_response) = if identity == OTHER {
        let key = hex(&fixture("servers.json")["keys"]["admin_rsa"]["handle_private_hex"]);
        let key = PrivateKey::from_record(&key).unwrap();
        (auth::PUBLIC_KEY, answer_with_key(session.version, &covered, &key).unwrap())
    } else {
        (auth::SECRET_KEY, answer_with_secret(session.version, session.version, &covered, SECRET, &[7; 16]))
    };
    let body = ChallengeAnswer { auth_type, identity, signed_response: &signed_response };
    let message = session.request(77, PRIVATE, &Request::AnswerChallenge(body));
    ask(served, session, &message)
}

/// Requests private values in the session.
fn ask_private(served: &TestServer, session: &mut ClientSession) -> (PlainReply, Protection) {
    let message = question(session, "TST/HALF", PRIVATE);
    let message = session.seal(message);
    ask(served, session, &message)
}

fn counter(served: &TestServer, name: &str) -> i64 {
    served.server.shared().stats()["total"][name].as_i64().unwrap()
}

fn slow_requests(served: &TestServer) -> i64 {
    served.server.shared().stats()["slow"]["requests"].as_i64().unwrap()
}

fn certified_answers(datapath: Datapath, exchange: SessionExchange) {
    let served = serve_with("root", datapath, |config| config.limits.answer_datagrams = FRAGMENTS_MAX);
    let mut session = ClientSession::open(exchange, served.address(), NOBODY, &server_key("root"));
    let slow_before = slow_requests(&served);
    let ask = |session: &mut ClientSession, message: &[u8]| {
        let answer = exchange(served.address(), message).expect("an answer");
        let (plain, protection) = session.read(&answer);
        (plain_reply(&plain).0, protection)
    };
    for (handle, expected) in [
        ("TST/TARGET", ResponseCode::SUCCESS),
        ("TST/MANY-30", ResponseCode::SUCCESS),
        ("TST/BIG-20000", ResponseCode::SUCCESS),
        ("TST/NO-SUCH", ResponseCode::HANDLE_NOT_FOUND),
        ("FAR/AWAY", ResponseCode::SERVER_NOT_RESPONSIBLE),
    ] {
        let message = question(&session, handle, CERTIFIED);
        assert_eq!(ask(&mut session, &message), (expected, MAC), "{handle}, request without a MAC");
        let message = session.seal(message);
        assert_eq!(ask(&mut session, &message), (expected, MAC), "{handle}");
        let message = question(&session, handle, OpFlags::PLAIN_REQUEST);
        let message = session.seal(message);
        assert_eq!(ask(&mut session, &message), (expected, NONE), "{handle}, not certified");
    }
    assert_eq!(counter(&served, "answers_with_mac"), 10, "the worker adds the MAC");
    assert_eq!(slow_requests(&served), slow_before, "the slow path is not used");
}

#[test]
fn certified_answers_have_the_mac_of_the_session_without_the_slow_path_over_udp() {
    certified_answers(Datapath::Portable, exchange);
}

#[test]
fn certified_answers_have_the_mac_of_the_session_on_the_datapath_of_this_machine() {
    certified_answers(Datapath::Auto, exchange);
    certified_answers(Datapath::Auto, exchange_over_tcp);
}

#[test]
fn certified_answers_have_the_mac_of_the_session_over_tcp() {
    certified_answers(Datapath::Portable, exchange_over_tcp);
}

#[test]
fn replayed_and_forged_messages_are_refused_and_reordered_ones_accepted() {
    let served = root(|_| ());
    let mut own = open(&served, NOBODY);
    let message = question(&own, "TST/TARGET", CERTIFIED);
    let numbered = |counter| own.add_mac(message.clone(), counter);
    let code = |message: &[u8]| code(&served, message);
    assert_eq!(code(&numbered(3)), ResponseCode::SUCCESS);
    assert_eq!(code(&numbered(3)), ResponseCode::SESSION_MESSAGE_REJECTED, "a replay");
    assert_eq!(code(&numbered(1)), ResponseCode::SUCCESS, "late and new");
    assert_eq!(code(&numbered(300)), ResponseCode::SUCCESS);
    assert_eq!(code(&numbered(100)), ResponseCode::SUCCESS, "200 below the highest");
    assert_eq!(code(&numbered(99)), ResponseCode::SESSION_MESSAGE_REJECTED, "below the window");
    assert_eq!(code(&numbered(0)), ResponseCode::SESSION_MESSAGE_REJECTED, "0 is no counter");
    let mut forged = numbered(301);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(code(&forged), ResponseCode::INVALID_SESSION_KEY);
    let mut altered = numbered(301);
    let at = altered.windows(6).position(|window| window == b"TARGET").unwrap();
    altered[at] ^= 0x20;
    assert_eq!(code(&altered), ResponseCode::INVALID_SESSION_KEY, "another question under the same MAC");
    assert_eq!(code(&numbered(301)), ResponseCode::SUCCESS, "refused messages do not use the counter");
    // A MAC is only valid in its session.
    let other = open(&served, NOBODY);
    let mut moved = numbered(302);
    moved[4..8].copy_from_slice(&other.id.to_be_bytes());
    assert_eq!(code(&moved), ResponseCode::INVALID_SESSION_KEY);
    own.id = other.id;
    let foreign = own.add_mac(question(&own, "TST/TARGET", CERTIFIED), 1);
    assert_eq!(code(&foreign), ResponseCode::INVALID_SESSION_KEY, "the key of another session");
}

#[test]
fn an_unknown_session_gets_a_signed_error() {
    let served = root(|_| ());
    let mut session = open(&served, NOBODY);
    session.id ^= 1;
    let answer = exchange(served.address(), &question(&session, "TST/TARGET", CERTIFIED)).unwrap();
    let (envelope, rest) = Envelope::split(&answer).unwrap();
    let message = Message::decode(rest).unwrap();
    assert_eq!(message.header.response_code, ResponseCode::SESSION_TIMEOUT);
    verify_message(&envelope, &message, &server_key("root")).unwrap();
    for flags in [OpFlags::PLAIN_REQUEST, PRIVATE] {
        assert_eq!(code(&served, &question(&session, "TST/TARGET", flags)), ResponseCode::SESSION_TIMEOUT);
    }
    let encrypted = session.encrypt(&question(&session, "TST/TARGET", CERTIFIED));
    let answer = exchange_as_is(&served, &encrypted);
    let refused = Message::decode(&answer[Envelope::LEN..]).unwrap().header.response_code;
    assert_eq!(refused, ResponseCode::SESSION_TIMEOUT, "encrypted");
}

#[test]
fn an_authenticated_identity_is_not_challenged_again() {
    let served = root(|_| ());
    let mut session = open(&served, ADMINISTRATOR);
    let ((code, _, challenge), protection) = ask_private(&served, &mut session);
    assert_eq!((code, protection), (ResponseCode::AUTHENTICATION_NEEDED, MAC));
    // A request without a MAC does not belong to the session.
    let bare = question(&session, "TST/HALF", PRIVATE);
    assert_eq!(ask(&served, &mut session, &bare).0.0, ResponseCode::INVALID_CREDENTIAL);
    let ((code, values, _), protection) = answer(&served, &mut session, ADMINISTRATOR, &challenge.unwrap());
    assert_eq!((code, protection), (ResponseCode::SUCCESS, ALL), "private values are encrypted");
    assert!(!values.is_empty());
    for _ in 0..3 {
        let ((code, again, _), protection) = ask_private(&served, &mut session);
        assert_eq!((code, &again, protection), (ResponseCode::SUCCESS, &values, ALL));
    }
    // The authenticated identity is refused where it has no right.
    let message = question(&session, "TST/HSTYPES", PRIVATE);
    let message = session.seal(message);
    assert_eq!(ask(&served, &mut session, &message).0.0, ResponseCode::INVALID_ADMIN);
    let message = question(&session, "TST/HALF", PRIVATE);
    assert_eq!(ask(&served, &mut session, &message).0.0, ResponseCode::INVALID_CREDENTIAL, "no MAC");
    let mut stolen = open(&served, NOBODY);
    stolen.id = session.id;
    let message = question(&stolen, "TST/HALF", PRIVATE);
    let message = stolen.add_mac(message, 99);
    let answer = exchange(served.address(), &message).unwrap();
    let (plain, _) = session.read(&answer);
    assert_eq!(
        plain_reply(&plain).0,
        ResponseCode::INVALID_SESSION_KEY,
        "a request with the session number and another key"
    );
}

#[test]
fn another_identity_in_a_session_is_authenticated_for_one_request() {
    let served = root(|_| ());
    for identity in [ADMINISTRATOR, NOBODY] {
        let mut session = open(&served, identity);
        for _ in 0..2 {
            let ((code, _, challenge), _) = ask_private(&served, &mut session);
            assert_eq!(code, ResponseCode::AUTHENTICATION_NEEDED, "{identity:?}: challenged each time");
            let ((code, values, _), _) = answer(&served, &mut session, OTHER, &challenge.unwrap());
            assert_eq!((code, values.is_empty()), (ResponseCode::SUCCESS, false), "{identity:?}");
        }
    }
    // The answer to the challenge of one session is invalid in another.
    let (mut one, mut two) = (open(&served, ADMINISTRATOR), open(&served, ADMINISTRATOR));
    let ((_, _, challenge), _) = ask_private(&served, &mut one);
    let ((refused, _, _), _) = answer(&served, &mut two, ADMINISTRATOR, &challenge.unwrap());
    assert_eq!(refused, ResponseCode::AUTHENTICATION_TIMEOUT);
}

#[test]
fn a_repeated_request_gets_the_same_challenge_and_another_request_a_new_one() {
    let served = root(|_| ());
    let mut session = open(&served, ADMINISTRATOR);
    let same = question(&session, "TST/HALF", PRIVATE);
    let other = session.request(
        1000,
        PRIVATE,
        &Request::Resolution(Query { handle: b"TST/HALF", indexes: Indexes::EMPTY, types: Strings::EMPTY }),
    );
    let mut challenge = |message: &[u8]| {
        let message = session.seal(message.to_vec());
        ask(&served, &mut session, &message).0.2.unwrap()
    };
    let first = challenge(&same);
    assert_eq!(challenge(&same), first, "the request with another counter");
    let second = challenge(&other);
    assert_ne!(second, first);
    let ((refused, _, _), _) = answer(&served, &mut session, ADMINISTRATOR, &first);
    assert_eq!(refused, ResponseCode::AUTHENTICATION_FAILED, "the first challenge was replaced");
}

#[test]
fn encrypted_requests_are_answered_and_forged_ones_refused_alike() {
    let served = root(|config| config.sessions.ciphers = vec![CipherName::Des3]);
    let mut session = open(&served, ADMINISTRATOR);
    assert_eq!(session.key.cipher(), Cipher::DESEDE);
    // In one datagram, and in several.
    for handle in ["TST/TARGET", &"x".repeat(1500)] {
        let message = question(&session, handle, CERTIFIED.with(OpFlags::ENCRYPT));
        let message = session.seal(message);
        let encrypted = session.encrypt(&message);
        let ((code, _, _), protection) = ask(&served, &mut session, &encrypted);
        assert_ne!(code, ResponseCode::ERROR, "{handle}");
        assert_eq!(protection, ALL, "{handle}");
        assert_eq!(
            ask(&served, &mut session, &encrypted).0.0,
            ResponseCode::SESSION_MESSAGE_REJECTED,
            "{handle}: a replay"
        );
    }
    let in_the_clear = question(&session, "TST/TARGET", CERTIFIED.with(OpFlags::ENCRYPT));
    assert_eq!(ask(&served, &mut session, &in_the_clear).1, ALL, "the request asks for an encrypted answer");
    // The refusal does not tell what was wrong with an encrypted message.
    let message = question(&session, "TST/TARGET", CERTIFIED);
    let mut wrong = session.seal(message.clone());
    *wrong.last_mut().unwrap() ^= 1;
    let good = session.encrypt(&session.add_mac(message.clone(), 1000));
    let mut cut_off = good.clone();
    cut_off.truncate(good.len() - 8);
    let len = u32::try_from(cut_off.len() - Envelope::LEN).unwrap();
    cut_off[16..20].copy_from_slice(&len.to_be_bytes());
    let mut answers = vec![];
    let body = ChallengeAnswer { auth_type: auth::SECRET_KEY, identity: ADMINISTRATOR, signed_response: b"" };
    let to_nothing = session.request(1, PRIVATE, &Request::AnswerChallenge(body));
    // In the form of an answer to an unreadable request, which gets no answer if it is not
    // encrypted.
    let mut response = message.clone();
    response[8..12].fill(0xff);
    response[Envelope::LEN + 7] = 2;
    let encrypted = [&wrong, &message, &to_nothing, &response].map(|message| session.encrypt(message));
    for bad in encrypted.into_iter().chain([cut_off]) {
        let mut answer = exchange_as_is(&served, &bad);
        answer[36..40].fill(0);
        answers.push(answer);
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]));
    let refused = Message::decode(&answers[0][Envelope::LEN..]).unwrap().header.response_code;
    assert_eq!(refused, ResponseCode::SESSION_FAILED);
}

/// Sends a message and returns the first datagram received.
fn exchange_as_is(served: &TestServer, message: &[u8]) -> Vec<u8> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for datagram in cut(&Envelope::split(message).unwrap().0) {
        let bytes = [&datagram.envelope[..], &message[Envelope::LEN..][datagram.range]].concat();
        socket.send_to(&bytes, served.address()).unwrap();
    }
    let mut buffer = [0; 2048];
    let len = socket.recv(&mut buffer).unwrap();
    buffer[..len].to_vec()
}

#[test]
fn weak_and_unknown_exchanges_are_refused() {
    let served = root(|config| config.sessions.modulus_bits_min = 2048);
    assert_eq!(code(&served, &set_up_request(&pair(), NOBODY, 0)), ResponseCode::SESSION_FAILED, "1024 bits");
    let strong = KeyPair::new(Group::modp_14(), &handle_auth::random());
    let answer = exchange(served.address(), &set_up_request(&strong, NOBODY, 0)).unwrap();
    let session = ClientSession::from_answer(&strong, &answer, Some(&server_key("root")));
    assert_eq!(session.version, Version::CURRENT);
    // Peers that only know DES, which is disabled.
    let mut old = set_up_request(&strong, NOBODY, 0);
    (old[1], old[3]) = (3, 3);
    assert_eq!(code(&served, &old), ResponseCode::SESSION_FAILED);
    let without = root(|config| config.sessions.sessions = 0);
    assert_eq!(code(&without, &set_up_request(&pair(), NOBODY, 0)), ResponseCode::SESSION_FAILED);
}

#[test]
fn sessions_expire_and_end() {
    let served = root(|_| ());
    let pair = pair();
    let answer = exchange(served.address(), &set_up_request(&pair, NOBODY, 1)).unwrap();
    let session = ClientSession::from_answer(&pair, &answer, Some(&server_key("root")));
    let message = question(&session, "TST/TARGET", OpFlags::PLAIN_REQUEST);
    let begun = Instant::now();
    while code(&served, &message) != ResponseCode::SESSION_TIMEOUT {
        assert!(begun.elapsed() < Duration::from_secs(30), "the session has not expired");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut session = open(&served, NOBODY);
    let end = |session: &ClientSession| {
        session.request(5, CERTIFIED, &Request::SessionTerminate(HandleBody { handle: b"/" }))
    };
    let bare = end(&session);
    assert_eq!(ask(&served, &mut session, &bare).0.0, ResponseCode::INVALID_SESSION_KEY, "without a MAC");
    let sealed = session.seal(bare);
    assert_eq!(ask(&served, &mut session, &sealed), ((ResponseCode::SUCCESS, vec![], None), MAC));
    assert_eq!(code(&served, &sealed), ResponseCode::SESSION_TIMEOUT, "the session has ended");
}

#[test]
fn the_number_of_sessions_is_bounded() {
    let served = root(|config| {
        config.sessions.sessions = 2;
        // With a table of this size, clients would be sent to TCP.
        config.tcp.enabled = false;
    });
    let mut sessions = [open(&served, ADMINISTRATOR), open(&served, OTHER)];
    for (session, identity) in sessions.iter_mut().zip([ADMINISTRATOR, OTHER]) {
        let challenge = ask_private(&served, session).0.2.unwrap();
        assert_eq!(answer(&served, session, identity, &challenge).0.0, ResponseCode::SUCCESS);
    }
    let third = open(&served, NOBODY);
    let message = question(&sessions[0], "TST/TARGET", CERTIFIED);
    let gone = exchange(served.address(), &message).unwrap();
    assert_eq!(
        plain_reply(&gone).0,
        ResponseCode::SESSION_TIMEOUT,
        "the longest idle session of the source is dropped"
    );
    let message = question(&sessions[1], "TST/TARGET", CERTIFIED);
    assert_eq!(ask(&served, &mut sessions[1], &message).1, MAC);
    drop(third);
    let counts = served.server.shared().stats()["sessions"].clone();
    assert_eq!((&counts["open"], &counts["displaced"]), (&2.into(), &1.into()));
}

/// Another process shares the sessions, and its use of them is visible here.
#[test]
fn a_session_is_handed_over_by_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions");
    let served = root(|config| config.sessions.socket = Some(path.clone()));
    let joint = JointSessions::new(SessionTable::new(SessionsConfig::default().limits()), Some(&path));
    let mut client = open(&served, ADMINISTRATOR);
    let there = joint.find(client.id, 0).expect("known to the other process");
    assert_eq!(there.keys().mac.key(), &client.key);
    // A message accepted by the other process is a replay here.
    let message = question(&client, "TST/TARGET", CERTIFIED);
    let message = client.seal(message);
    let (envelope, rest) = Envelope::split(&message).unwrap();
    let checked = handle_session::traffic::check(&*there, &envelope, &Message::decode(rest).unwrap(), 0);
    assert_eq!(checked, Ok(true));
    assert_eq!(ask(&served, &mut client, &message).0.0, ResponseCode::SESSION_MESSAGE_REJECTED);
    // An identity authenticated by the other process is authenticated here.
    assert_eq!(ask_private(&served, &mut client).0.0, ResponseCode::AUTHENTICATION_NEEDED);
    assert!(there.authenticate(ADMINISTRATOR, 301, 0));
    assert_eq!(ask_private(&served, &mut client).0.0, ResponseCode::SUCCESS);
    // Sessions continue without the other process.
    drop((there, joint));
    assert_eq!(ask_private(&served, &mut client).0.0, ResponseCode::SUCCESS);
    let again = open(&served, NOBODY);
    assert_ne!(again.id, client.id);
    drop(served);
    assert!(!path.exists(), "the process removes its socket");
}

#[test]
fn private_computed_values_need_an_authenticated_identity() {
    let copies = "<namespace><template delimiter='@'><foreach><value/></foreach></template></namespace>";
    let served = root(|config| config.templates.namespace = Some(copies.to_owned()));
    let mut session = open(&served, ADMINISTRATOR);
    let message = question(&session, "TST/HALF@x", PRIVATE);
    assert_eq!(ask(&served, &mut session, &message).0.0, ResponseCode::INVALID_CREDENTIAL, "without a MAC");
    let message = session.seal(message);
    let ((code, _, challenge), _) = ask(&served, &mut session, &message);
    assert_eq!(code, ResponseCode::AUTHENTICATION_NEEDED);
    let (first, protection) = answer(&served, &mut session, ADMINISTRATOR, &challenge.unwrap());
    assert_eq!(
        (first.0, protection.encrypted),
        (ResponseCode::SUCCESS, true),
        "private values are encrypted"
    );
    let message = question(&session, "TST/HALF@y", PRIVATE);
    let message = session.seal(message);
    assert_eq!(ask(&served, &mut session, &message).0, first, "no second challenge");
    let message = question(&session, "TST/HALF@x", OpFlags::PLAIN_REQUEST);
    let (public, _) = ask(&served, &mut session, &message);
    assert!(public.1.len() < first.1.len(), "only public values");
}

#[test]
fn answers_about_session_keys_are_signed_by_the_server_also_within_a_session() {
    let served = root(|_| ());
    let session = open(&served, NOBODY);
    let exchange_key = Request::SessionExchangeKey(ExchangedKey { encrypted_key: b"a key" });
    let requests = [
        (exchange_key, ResponseCode::SESSION_FAILED, true),
        (Request::GetSiteInfo(HandleBody { handle: b"/" }), ResponseCode::SUCCESS, false),
    ];
    for (request, code, is_signed) in requests {
        let answer = exchange(served.address(), &session.request(5, CERTIFIED, &request)).unwrap();
        let (envelope, rest) = Envelope::split(&answer).unwrap();
        let message = Message::decode(rest).unwrap();
        assert_eq!((envelope.session_id > 0, message.header.response_code), (true, code));
        assert_eq!(verify_message(&envelope, &message, &server_key("root")).is_ok(), is_signed, "{code}");
    }
}
