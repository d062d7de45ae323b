//! Processor time used by strangers: it is limited, shared by source, and does not delay others.
//! Sessions of versions without protection are refused.
//!
//! Costs are counted: a unit is a round of PBKDF2. `handled` counts the time of the processor where
//! that is more, as in builds without optimisation, so costs are compared with that of known work.
//! Each test prints its counts.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::agreement::{self, Group, KeyPair};
use handle_auth::cost;
use handle_auth::digest::mac;
use handle_auth::kdf::pbkdf2_sha1;
use handle_proto::code::DigestAlgorithm;
use handle_proto::data::key::Number;
use handle_proto::wire::auth::{SecretAnswer, VerificationRequest};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Request};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};
use handle_tests::admin_server::{administer, administer_with};
use handle_tests::client::{TestClient, exchange, exchange_over_tcp};
use handle_tests::process::until;
use handle_tests::session::{ClientSession, NOBODY, pair, set_up_request, set_up_request_as};
use handle_tests::source_addresses::{ask_over, next_answer, tcp_from};
use handle_tests::test_server::{serve, serve_with, server_key};
use handle_worker::config::Datapath;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const KEEPS: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 | OpFlags::KEEP_CONNECTION.0);
const CERTIFIED: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 | OpFlags::CERTIFY.0);
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 66, 6, 6);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 1, 2, 3);

const SALT: &[u8; 16] = b"0123456789abcdef";
/// What the answers to be verified cover: a nonce and a digest.
const COVERED: [&[u8]; 2] = [&[1; 16], &[2; 32]];

/// A request to verify an answer that is wrong and needs this much work.
fn verification(iterations: u32, key_bits: u32, index: i32) -> Vec<u8> {
    verification_of(iterations, key_bits, index, &[0; 20])
}

/// A request to verify an answer that is right and needs this much work.
fn right_verification(iterations: u32) -> Vec<u8> {
    let key = pbkdf2_sha1(b"open sesame open", SALT, iterations, 20);
    let mac = mac(DigestAlgorithm::HMAC_SHA1, &key, &COVERED).unwrap();
    verification_of(iterations, 160, 301, &mac)
}

fn verification_of(iterations: u32, key_bits: u32, index: i32, mac: &[u8]) -> Vec<u8> {
    let mut response = vec![];
    SecretAnswer::Pbkdf2 { salt: SALT, iterations, key_bits, mac }.encode(&mut response);
    let identity = Reference { handle: b"0.NA/TST", index };
    let digest = RequestDigest { algorithm: DigestAlgorithm::OLD_MD5, digest: COVERED[1] };
    let body = VerificationRequest { identity, nonce: COVERED[0], digest, signed_response: &response };
    let header = Header::request(OpCode::RESERVED, KEEPS, 0);
    let request = Request::VerifyChallenge(body);
    MessageBuf::request(&Envelope::request(9), &header, &request).unsigned().unwrap()
}

/// A certified query.
fn certified() -> Vec<u8> {
    let query = Query { handle: b"TST/TARGET", indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let header = Header::request(OpCode::RESOLUTION, CERTIFIED, 0);
    MessageBuf::request(&Envelope::request(10), &header, &Request::Resolution(query)).unsigned().unwrap()
}

fn code(answer: &[u8]) -> ResponseCode {
    Message::decode(&answer[Envelope::LEN..]).unwrap().header.response_code
}

/// Whether the answer of a verification says that the answer to be verified is right.
fn is_valid(answer: &[u8]) -> bool {
    // The verdict is followed by the length of a credential.
    match answer.last_chunk() {
        Some([verdict @ (0 | 1), 0, 0, 0, 0]) => *verdict == 1,
        end => panic!("{end:?} is no verdict"),
    }
}

/// Largest number of rounds for one request by default.
const WORK_MAX: u64 = 160_000;

/// Sends requests for excessive work; each is answered as a wrong one is by deployed servers.
fn request_excessive_work(address: SocketAddr, work_done: &dyn Fn() -> u64) {
    let mut stream = tcp_from(ATTACKER, address);
    for (iterations, key_bits) in
        [(100_000, 512), (100_000, 256), (100_001, 160), (u32::MAX, 160), (10_000, 128), (10_000, u32::MAX)]
    {
        for index in [301, 0] {
            let before = work_done();
            let answer = ask_over(&mut stream, &verification(iterations, key_bits, index));
            assert_eq!(code(&answer), ResponseCode::SUCCESS, "{iterations} rounds, {key_bits} bits");
            assert!(!is_valid(&answer), "{iterations} rounds, {key_bits} bits");
            // Parsing and answering count by their time; the rounds of the least would be 10,000.
            let units = work_done() - before;
            assert!(
                units < 5_000,
                "{iterations} rounds, {key_bits} bits: {units} units, not refused at once"
            );
        }
    }
    println!("excessive requests: {} units", work_done());
    let mut units = |iterations, key_bits, index| {
        let before = work_done();
        let answer = ask_over(&mut stream, &verification(iterations, key_bits, index));
        assert_eq!(code(&answer), ResponseCode::SUCCESS);
        work_done() - before
    };
    let (quarter, most) = (units(40_000, 160, 301), units(80_000, 256, 301));
    println!("a quarter of the most work: {quarter} units, the most work: {most}");
    assert!(most >= WORK_MAX && most < 6 * quarter, "{most} units, {quarter} for a quarter of the rounds");
    let any = units(100_000, 160, 0);
    assert!(any < 4 * quarter, "{any} units: independent of the number of keys");
}

#[test]
fn excessive_work_is_refused_at_once_by_handled() {
    let served = serve("root", Datapath::Portable);
    let done = || served.server.shared().stats()["slow"]["work_units"].as_u64().unwrap();
    request_excessive_work(served.address(), &done);
}

#[test]
fn excessive_work_is_refused_at_once_by_handle_admin() {
    let administered = administer("root");
    let service = &administered.server().shared().service;
    request_excessive_work(administered.address(), &|| service.proof.costly().unwrap().counts().units);
}

/// An attacker sends expensive requests while `ask` sends five for others. Returns how many of the
/// attacker's were done before those five, how many in all, and how many were refused.
fn compete_with_attacker(address: SocketAddr, ask: impl Fn() -> ResponseCode) -> (usize, usize, usize) {
    const CONNECTIONS: usize = 40;
    let (done, busy) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Wrong answers would be refused without work after a few.
    let message = right_verification(20_000);
    let mut before = 0;
    std::thread::scope(|scope| {
        let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| tcp_from(ATTACKER, address)).collect();
        // The attacker's requests are under way before the others are sent.
        streams.iter_mut().for_each(|stream| stream.write_all(&message).unwrap());
        for mut stream in streams {
            let (done, busy) = (&done, &busy);
            scope.spawn(move || {
                let answer = next_answer(&mut stream);
                let was_busy = code(&answer) == ResponseCode::SERVER_BUSY;
                assert!(was_busy || is_valid(&answer));
                if was_busy { busy } else { done }.fetch_add(1, Ordering::Relaxed);
            });
        }
        for _ in 0..5 {
            assert_eq!(ask(), ResponseCode::SUCCESS);
        }
        before = done.load(Ordering::Relaxed);
    });
    (before, done.into_inner(), busy.into_inner())
}

#[test]
fn expensive_requests_to_handled_do_not_delay_others() {
    let served = serve_with("root", Datapath::Portable, |config| {
        // Threads of idle priority would get no time beside other tests.
        (config.slow.idle, config.slow.nice) = (false, 0);
    });
    let plain = || {
        let mut client = TestClient::new(served.address());
        client.resolve(b"TST/TARGET").expect("an answer").code
    };
    let (before, done, busy) = compete_with_attacker(served.address(), || {
        assert_eq!(plain(), ResponseCode::SUCCESS);
        code(&ask_over(&mut tcp_from(OTHER, served.address()), &certified()))
    });
    println!("handled: {done} done, {busy} refused, {before} before five others");
    assert!(done > 20, "{done}: the attacker's requests are served in turn");
    assert!(before <= 25, "{before} of {done} before five certified answers to another source");
}

#[test]
fn expensive_requests_to_handle_admin_do_not_delay_others() {
    let administered = administer("root");
    let (pair, key) = (pair(), server_key("root"));
    let set_up = set_up_request(&pair, NOBODY, 0);
    let (before, done, busy) = compete_with_attacker(administered.address(), || {
        let answer = ask_over(&mut tcp_from(OTHER, administered.address()), &set_up);
        let _ = ClientSession::from_answer(&pair, &answer, Some(&key));
        code(&answer)
    });
    println!("handle-admin: {done} done, {busy} refused, {before} before five others");
    assert!(busy >= 20, "{busy} refused at once: a source has 16 places of 64");
    assert!(before <= 14, "{before} of {done} before five sessions of another source");
    assert_eq!(done + busy, 40);
}

#[test]
fn signatures_of_handle_admin_are_counted_and_bounded_by_source() {
    let administered = administer("root");
    let service = &administered.server().shared().service;
    let counts = || service.proof.costly().unwrap().counts();
    let ask = |source| code(&ask_over(&mut tcp_from(source, administered.address()), &certified()));
    let before = counts().units;
    assert_eq!(ask(OTHER), ResponseCode::SUCCESS);
    assert_eq!(counts().units - before, cost::SIGNATURE, "the work of one signature");
    // Long work takes all permits of one source; a further request of it is refused.
    let slow = verification(80_000, 256, 301);
    let mut streams: Vec<_> = (0..40).map(|_| tcp_from(ATTACKER, administered.address())).collect();
    streams.iter_mut().for_each(|stream| stream.write_all(&slow).unwrap());
    until("the places of the source are taken", || counts().refused > 0);
    assert_eq!(ask(ATTACKER), ResponseCode::SERVER_BUSY);
    assert_eq!(ask(OTHER), ResponseCode::SUCCESS, "another source has places of its own");
}

#[test]
fn a_source_gets_signed_answers_over_tcp_at_a_rate() {
    let served = serve_with("root", Datapath::Portable, |config| {
        (config.slow.idle, config.slow.nice) = (false, 0);
    });
    let keeps = |flags: OpFlags| {
        let query = Query { handle: b"TST/TARGET", indexes: Indexes::EMPTY, types: Strings::EMPTY };
        let header = Header::request(OpCode::RESOLUTION, flags.with(OpFlags::KEEP_CONNECTION), 0);
        let request = Request::Resolution(query);
        MessageBuf::request(&Envelope::request(10), &header, &request).unsigned().unwrap()
    };
    let certified = keeps(CERTIFIED);
    let ask = |source: Ipv4Addr, count: usize| {
        let mut stream = tcp_from(source, served.address());
        let answers: Vec<_> = (0..count).map(|_| ask_over(&mut stream, &certified)).collect();
        let refused = answers.iter().filter(|answer| code(answer) == ResponseCode::SERVER_BUSY);
        // A refusal with a signature would cost as much as the answer: the credential is empty.
        assert!(refused.clone().all(|answer| answer.ends_with(&[0; 4])));
        assert!(
            answers.iter().all(|it| [ResponseCode::SUCCESS, ResponseCode::SERVER_BUSY].contains(&code(it)))
        );
        count - refused.count()
    };
    let since = Instant::now();
    let signed = ask(ATTACKER, 600);
    let elapsed_ms = usize::try_from(since.elapsed().as_millis()).unwrap();
    assert!((200..=201 + elapsed_ms / 20).contains(&signed), "{signed} in {elapsed_ms} ms");
    println!("signed {signed} of 600 in {elapsed_ms} ms");
    let plain = ask_over(&mut tcp_from(ATTACKER, served.address()), &keeps(OpFlags::PLAIN_REQUEST));
    assert_eq!(code(&plain), ResponseCode::SUCCESS, "what costs no signature is answered");
    let pair = KeyPair::new(Group::modp_14(), &[3; 64]);
    let set_up = ask_over(&mut tcp_from(ATTACKER, served.address()), &set_up_request(&pair, NOBODY, 0));
    assert_eq!(code(&set_up), ResponseCode::SUCCESS, "in a session nothing is signed");
    assert!(!set_up.ends_with(&[0; 4]), "the set-up itself is signed");
    assert_eq!(ask(OTHER, 5), 5, "another source");
    assert_eq!(ask(Ipv4Addr::LOCALHOST, 300), 300, "no other sender has the address of this host");
    let reasons = served.server.shared().stats();
    assert!(reasons.to_string().contains("too_many_signatures"), "{reasons}");
}

#[test]
fn groups_above_2048_bits_are_refused() {
    let mut p = [0xff; 512];
    p[511] = 0xfd;
    let group = Group::new(Number::new(&p), Number::new(&[2]), &agreement::BITS).unwrap();
    let large = set_up_request(&KeyPair::new(group, &[3; 64]), NOBODY, 0);
    let served = serve("root", Datapath::Portable);
    assert_eq!(code(&exchange(served.address(), &large).unwrap()), ResponseCode::SESSION_FAILED);
    let work = served.server.shared().stats()["slow"]["work_units"].as_u64().unwrap();
    assert!(work < 5000, "{work} units, with the signature");
    let administered = administer("root");
    let refused = exchange_over_tcp(administered.address(), &large).unwrap();
    assert_eq!(code(&refused), ResponseCode::SESSION_FAILED);
    let usual = KeyPair::new(Group::modp_14(), &[3; 64]);
    let usual = exchange(served.address(), &set_up_request(&usual, NOBODY, 0)).unwrap();
    assert_eq!(code(&usual), ResponseCode::SUCCESS, "2048 bits");
}

#[test]
fn sessions_of_versions_without_protection_are_refused_unless_allowed() {
    let strict = (serve("root", Datapath::Portable), administer("root"));
    let lax = (
        serve_with("root", Datapath::Portable, |config| config.sessions.old_versions = true),
        administer_with("root", |config| config.sessions.old_versions = true),
    );
    for minor in 4..=11 {
        let set_up = set_up_request_as(Version::new(2, minor), &pair(), NOBODY, 0);
        let codes =
            |servers: &(handle_tests::test_server::TestServer, handle_tests::admin_server::AdminServer)| {
                let served = code(&exchange(servers.0.address(), &set_up).unwrap());
                (served, code(&exchange_over_tcp(servers.1.address(), &set_up).unwrap()))
            };
        let refused = (ResponseCode::SESSION_FAILED, ResponseCode::SESSION_FAILED);
        let agreed = (ResponseCode::SUCCESS, ResponseCode::SUCCESS);
        assert_eq!(codes(&strict), if minor < 7 { refused } else { agreed }, "2.{minor}");
        assert_eq!(codes(&lax), agreed, "2.{minor}, allowed");
    }
}

/// A message in a session with a changed suggested version gets no answer with less protection.
#[test]
fn a_message_that_suggests_less_than_its_session_protects_is_refused() {
    let served = serve("root", Datapath::Portable);
    let (pair, key) = (pair(), server_key("root"));
    let answer = exchange(served.address(), &set_up_request(&pair, NOBODY, 0)).unwrap();
    let mut session = ClientSession::from_answer(&pair, &answer, Some(&key));
    let query = Query { handle: b"TST/TARGET", indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let question = session.request(5, CERTIFIED, &Request::Resolution(query));
    for minor in [4, 6] {
        let mut changed = question.clone();
        changed[3] = minor;
        let answer = exchange(served.address(), &changed).unwrap();
        assert_eq!(code(&answer), ResponseCode::INVALID_SESSION_KEY, "2.{minor}");
        let (envelope, rest) = Envelope::split(&answer).unwrap();
        let credential = Message::decode(rest).unwrap().decode_credential().unwrap();
        let has_mac = credential.is_some_and(|credential| credential.is_mac());
        assert!(!has_mac, "{}: no MAC of a form that covers neither version nor counter", envelope.version);
    }
    let sealed = session.seal(question);
    let (plain, protection) = session.read(&exchange(served.address(), &sealed).unwrap());
    assert_eq!((code(&plain), protection.mac), (ResponseCode::SUCCESS, true));
}

/// A captured message does not keep a session alive in any version.
#[test]
fn replayed_messages_do_not_keep_a_session_alive() {
    let served = serve_with("root", Datapath::Portable, |config| config.sessions.old_versions = true);
    for minor in [4, 6, 11] {
        let pair = pair();
        let version = Version::new(2, minor);
        let answer = exchange(served.address(), &set_up_request_as(version, &pair, NOBODY, 2)).unwrap();
        let mut session = ClientSession::from_answer(&pair, &answer, None);
        let query = Query { handle: b"TST/TARGET", indexes: Indexes::EMPTY, types: Strings::EMPTY };
        let message = session.request(5, OpFlags::PLAIN_REQUEST, &Request::Resolution(query));
        let captured = session.seal(message);
        let begun = Instant::now();
        while code(&exchange(served.address(), &captured).unwrap()) != ResponseCode::SESSION_TIMEOUT {
            assert!(begun.elapsed() < Duration::from_secs(30), "2.{minor}: the session has not expired");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
