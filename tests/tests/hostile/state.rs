//! State caused by strangers: forged senders fill tables, and those whose addresses they use are
//! still served.
//!
//! Each test prints its counts; `docs/security.md` has the figures. A second socket with the
//! victim's address forges it.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::challenge::answer_with_secret;
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode};
use handle_tests::admin_server::administer;
use handle_tests::process::until;
use handle_tests::session::{ClientSession, NOBODY, pair, set_up_request};
use handle_tests::source_addresses::{ask, ask_over, send, tcp_from, udp_from};
use handle_tests::test_server::{TestServer, serve, serve_with, server_key};
use handle_worker::config::Datapath;
use std::net::Ipv4Addr;
use std::time::Instant;

const READ: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 & !OpFlags::PUBLIC_ONLY.0);
const KEEPS: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 | OpFlags::CERTIFY.0 | OpFlags::KEEP_CONNECTION.0);
const SECRET: &[u8] = b"open sesame open";
const VICTIM: Ipv4Addr = Ipv4Addr::new(127, 7, 7, 7);

fn message(envelope: Envelope, flags: OpFlags, request: &Request<'_>) -> Vec<u8> {
    let header = Header::request(OpCode::RESERVED, flags, 0);
    MessageBuf::request(&envelope, &header, request).unsigned().unwrap()
}

fn question(handle: &[u8], flags: OpFlags, request_id: i32) -> Vec<u8> {
    let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    message(Envelope::request(request_id), flags, &Request::Resolution(query))
}

/// The code of an answer or of its first datagram.
fn code(answer: &[u8]) -> ResponseCode {
    Header::split(&answer[Envelope::LEN..]).unwrap().0.response_code
}

/// Session number and nonce of a challenge, and the digest of the request.
fn challenge(answer: &[u8]) -> Option<(i32, Vec<u8>, Vec<u8>)> {
    let (envelope, rest) = Envelope::split(answer).unwrap();
    let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
    let Body::Reply(reply) = body else { panic!("a reply") };
    let Response::Challenge(challenge) = reply.response else { return None };
    Some((envelope.session_id, challenge.nonce.to_vec(), reply.digest?.digest.to_vec()))
}

/// Waits until the slow path has answered or refused `count` requests.
fn until_answered(served: &TestServer, count: u64) {
    let stats = || served.server.shared().stats();
    until("the slow path has answered", || {
        let stats = stats();
        let busy = stats["total"]["requests_under_way"] == 0;
        busy && stats["slow"]["requests"].as_u64().unwrap() + refused(&stats) >= count
    });
}

/// Requests that the slow path refused.
fn refused(stats: &serde_json::Value) -> u64 {
    let over_tcp = stats["total"]["refused"]["over_tcp"].as_u64().unwrap_or(0);
    let busy = stats["total"]["refused"]["busy"].as_u64().unwrap_or(0);
    over_tcp + busy
}

/// Sends `message` `count` times, each with another number, slowly enough for the socket of the
/// server.
fn flood(server: &TestServer, from: Ipv4Addr, message: &[u8], count: i32) {
    let socket = udp_from(from, server.address());
    for number in 0..count {
        let mut message = message.to_vec();
        message[8..12].copy_from_slice(&(1000 + number).to_be_bytes());
        send(&socket, &message);
        if number % 50 == 49 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn forged_set_ups_do_not_prevent_sessions() {
    let served = serve_with("root", Datapath::Portable, |config| config.rate_limit.enabled = false);
    let (key, pair) = (server_key("root"), pair());
    // A session that is in use before the attack.
    let mut stream = tcp_from(VICTIM, served.address());
    let set_up = set_up_request(&pair, NOBODY, 0);
    let mut before = ClientSession::from_answer(&pair, &ask_over(&mut stream, &set_up), Some(&key));
    let query = Query { handle: b"TST/TARGET", indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let use_once = |session: &mut ClientSession| {
        let message = session.request(5, KEEPS, &Request::Resolution(query));
        let message = session.seal(message);
        let mut stream = tcp_from(VICTIM, served.address());
        let (plain, protection) = session.read(&ask_over(&mut stream, &message));
        (code(&plain), protection.mac)
    };
    assert_eq!(use_once(&mut before), (ResponseCode::SUCCESS, true));
    flood(&served, VICTIM, &set_up, 300);
    until_answered(&served, 300);
    // Deployed clients start over UDP, and use TCP after code 2.
    let reply = ask(&udp_from(VICTIM, served.address()), &set_up);
    let reply = match code(&reply) {
        ResponseCode::ERROR => ask_over(&mut tcp_from(VICTIM, served.address()), &set_up),
        _ => reply,
    };
    let mut session = ClientSession::from_answer(&pair, &reply, Some(&key));
    assert_eq!(use_once(&mut session), (ResponseCode::SUCCESS, true), "a new session");
    assert_eq!(use_once(&mut before), (ResponseCode::SUCCESS, true), "the old session");
    let stats = served.server.shared().stats();
    println!("300 forged set-ups: {}, work {}", stats["sessions"], stats["slow"]["work_units"]);
    assert!(stats["sessions"]["open"].as_u64().unwrap() <= 20, "{}", stats["sessions"]);
    // A key exchange costs about 4000 units.
    assert!(stats["slow"]["work_units"].as_u64().unwrap() < 150_000, "forged set-ups cost too much");
    let other = ask(&udp_from(Ipv4Addr::new(127, 8, 8, 8), served.address()), &set_up);
    assert_eq!(code(&other), ResponseCode::SUCCESS, "other addresses are served over UDP");
}

#[test]
fn forged_queries_do_not_prevent_challenges() {
    let served = serve("root", Datapath::Portable);
    flood(&served, VICTIM, &question(b"TST/PRIVATE", READ, 1), 200);
    until_answered(&served, 200);
    let question = question(b"TST/PRIVATE", READ, 7);
    let reply = ask(&udp_from(VICTIM, served.address()), &question);
    let reply = match code(&reply) {
        ResponseCode::ERROR => ask_over(&mut tcp_from(VICTIM, served.address()), &question),
        _ => reply,
    };
    let (id, nonce, digest) = challenge(&reply).expect("a challenge");
    let (version, covered) = (handle_proto::Version::CURRENT, [&nonce[..], &digest]);
    let response = answer_with_secret(version, version, &covered, SECRET, &[7; 16]);
    let identity = Reference { handle: b"0.NA/TST", index: 301 };
    let body = ChallengeAnswer { auth_type: auth::SECRET_KEY, identity, signed_response: &response };
    let envelope = Envelope { session_id: id, ..Envelope::request(8) };
    let answer = message(envelope, READ, &Request::AnswerChallenge(body));
    let code = code(&ask_over(&mut tcp_from(VICTIM, served.address()), &answer));
    // The identity may have no right to read; only the existence of the challenge matters.
    assert_ne!(code, ResponseCode::AUTHENTICATION_TIMEOUT);
    let waiting = served.server.shared().stats()["slow"]["challenges"].clone();
    println!("200 forged questions: {waiting}");
    assert!(waiting["waiting"].as_u64().unwrap() <= 64);
}

#[test]
fn forged_first_fragments_do_not_prevent_fragmented_requests() {
    let served = serve("root", Datapath::Portable);
    let handle = [b"TST/".as_slice(), &[b'x'; 1000]].concat();
    let question = question(&handle, OpFlags::PLAIN_REQUEST, 1);
    let first = |request_id: i32| {
        let (envelope, rest) = Envelope::split(&question).unwrap();
        let datagram = cut(&Envelope { request_id, ..envelope }).next().unwrap();
        assert!(Envelope::split(&datagram.envelope).unwrap().0.flags.has(EnvelopeFlags::TRUNCATED));
        [&datagram.envelope[..], &rest[datagram.range]].concat()
    };
    for host in 0..100_u8 {
        let socket = udp_from(Ipv4Addr::new(127, 9, host, 1), served.address());
        for number in 0..16 {
            socket.send(&first(number)).unwrap();
        }
    }
    let victim = udp_from(VICTIM, served.address());
    for number in 100..200 {
        victim.send(&first(number)).unwrap();
    }
    let begun = Instant::now();
    let answer = ask(&victim, &question);
    println!("1,700 forged first fragments: answered after {:?}", begun.elapsed());
    assert_eq!(code(&answer), ResponseCode::HANDLE_NOT_FOUND);
    assert!(begun.elapsed().as_millis() < 4000, "answered before the forged messages expire");
    let stats = served.server.shared().stats();
    assert!(stats["total"]["fragments_kept"].as_u64().unwrap() > 1000, "{stats}");
}

/// Programs of the reference do not end their sessions; here are 300 runs from one address.
#[test]
fn programs_that_never_end_their_sessions_do_not_exhaust_the_table() {
    let administered = administer("root");
    let (key, pair) = (server_key("root"), pair());
    let set_up = set_up_request(&pair, NOBODY, 0);
    let mut sessions = Vec::new();
    for _ in 0..300 {
        let mut stream = tcp_from(VICTIM, administered.address());
        let mut session = ClientSession::from_answer(&pair, &ask_over(&mut stream, &set_up), Some(&key));
        let query = Query { handle: b"TST/TARGET", indexes: Indexes::EMPTY, types: Strings::EMPTY };
        let message = session.request(5, KEEPS, &Request::Resolution(query));
        let message = session.seal(message);
        let mut stream = tcp_from(VICTIM, administered.address());
        let (plain, _) = session.read(&ask_over(&mut stream, &message));
        assert_eq!(code(&plain), ResponseCode::SUCCESS);
        sessions.push(session);
    }
    let own = administered.server().shared().service.proof.sessions().unwrap().own();
    println!("300 program runs: {:?}", own.counts());
    assert_eq!((own.counts().opened, own.counts().displaced), (300, 0), "no session is displaced");
}

/// Unused sessions expire after a minute; before that, a source displaces its own oldest ones.
#[test]
fn unused_sessions_only_displace_unused_ones_of_the_same_source() {
    let administered = administer("root");
    let (key, pair) = (server_key("root"), pair());
    let set_up = set_up_request(&pair, NOBODY, 0);
    let open = |from| {
        let mut stream = tcp_from(from, administered.address());
        ClientSession::from_answer(&pair, &ask_over(&mut stream, &set_up), Some(&key))
    };
    let use_once = |from, session: &mut ClientSession| {
        let query = Query { handle: b"TST/TARGET", indexes: Indexes::EMPTY, types: Strings::EMPTY };
        let message = session.request(5, KEEPS, &Request::Resolution(query));
        let message = session.seal(message);
        code(&ask_over(&mut tcp_from(from, administered.address()), &message))
    };
    let other = Ipv4Addr::new(127, 8, 8, 8);
    let (mut used, mut unused, mut of_other) = (open(VICTIM), open(VICTIM), open(other));
    assert_eq!(use_once(VICTIM, &mut used), ResponseCode::SUCCESS);
    let mut last = open(VICTIM);
    for _ in 1..70 {
        last = open(VICTIM);
    }
    assert_eq!(
        use_once(VICTIM, &mut unused),
        ResponseCode::SESSION_TIMEOUT,
        "the oldest unused session of the source"
    );
    for (from, session) in [(VICTIM, &mut used), (VICTIM, &mut last), (other, &mut of_other)] {
        assert_eq!(use_once(from, session), ResponseCode::SUCCESS);
    }
    let own = administered.server().shared().service.proof.sessions().unwrap().own();
    println!("70 set-ups: {:?}", own.counts());
    assert_eq!(own.counts().displaced, 7, "64 of 71 unused sessions remain");
}
