//! Attacks on `handled` through forwarded requests, by strangers and by a `handle-admin` that hangs
//! or is down.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::PrivateKey;
use handle_auth::challenge::answer_with_key;
use handle_daemon::settings;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode as Code, Version};
use handle_tests::client::{TestClient, exchange, exchange_over_tcp};
use handle_tests::daemon::ask;
use handle_tests::forwarding::{code, exchange_all, listed_names, message};
use handle_tests::process::{succeed, until};
use handle_tests::service_directory::InitialisedService;
use handle_worker::Server;
use handle_worker::config::Config;
use serde_json::Value as Json;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const CERTIFIED: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 | OpFlags::CERTIFY.0);

fn list() -> Vec<u8> {
    let body = HandleBody { handle: b"0.NA/10.1045" };
    message(Version::CURRENT, 31, OpFlags::PLAIN_REQUEST, &Request::ListHandles(body))
}

fn certified(handle: &str) -> Vec<u8> {
    let query = Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY };
    message(Version::CURRENT, 32, CERTIFIED, &Request::Resolution(query))
}

/// The administrator's answer to the challenge in a message.
fn answer(service: &InitialisedService, challenge: &[u8]) -> Vec<u8> {
    let file = std::fs::read(service.path("site/admin-private.bin")).unwrap();
    // The key follows a number that says that it is not encrypted.
    let key = PrivateKey::from_record(&file[4..]).unwrap();
    let (envelope, rest) = Envelope::split(challenge).unwrap();
    let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
    let Body::Reply(Reply { response: Response::Challenge(contents), digest, .. }) = body else {
        panic!("no challenge: {:?}", code(challenge))
    };
    let covered = [contents.nonce, digest.unwrap().digest];
    let signed_response = &answer_with_key(envelope.version, &covered, &key).unwrap();
    let identity = Reference { handle: b"10.1045/ADMIN", index: 300 };
    let answer = ChallengeAnswer { auth_type: auth::PUBLIC_KEY, identity, signed_response };
    let envelope = Envelope { session_id: envelope.session_id, ..Envelope::request(33) };
    let header = Header::request(OpCode::RESERVED, OpFlags::PLAIN_REQUEST, 0);
    MessageBuf::request(&envelope, &header, &Request::AnswerChallenge(answer)).unsigned().unwrap()
}

/// Starts a `handled` in this process, with the configuration of the service and other constants of
/// forwarding.
fn start_handled(service: &InitialisedService, change: impl FnOnce(&mut Config)) -> Server {
    let mut config: Config = settings::file::read(&service.path("site/handled.toml")).unwrap();
    config.workers = 1;
    config.allow_root = true;
    change(&mut config);
    Server::start(&config).unwrap()
}

fn stats(service: &InitialisedService) -> Json {
    ask(&service.path("site/run/handled.sock"), "stats")
}

fn event(service: &InitialisedService, name: &str) -> u64 {
    let stats = stats(service);
    stats["slow"]["forward"][name].as_u64().unwrap_or_else(|| panic!("{name} in {stats}"))
}

/// Sends plain and certified queries, all of which are answered.
fn resolve_many(service: &InitialisedService) {
    resolve_plain(service);
    (0..5).for_each(|_| assert_eq!(certified_code(service), Code::SUCCESS));
}

/// Sends plain queries over UDP, all of which are answered.
fn resolve_plain(service: &InitialisedService) {
    let mut client = TestClient::new(service.queries);
    for _ in 0..200 {
        assert_eq!(client.resolve(b"10.1045/ADMIN").unwrap().code, Code::SUCCESS);
    }
}

/// The code of the answer to a certified query.
fn certified_code(service: &InitialisedService) -> Code {
    // Code 2 sends a client with many pending requests over UDP to TCP.
    let request = certified("10.1045/ADMIN");
    match code(&exchange(service.queries, &request).unwrap()) {
        Code::ERROR => code(&exchange_over_tcp(service.queries, &request).unwrap()),
        code => code,
    }
}

#[test]
fn a_hanging_handle_admin_only_delays_forwarded_requests() {
    let mut service = InitialisedService::make();
    service.start_admin();
    let _handled = start_handled(&service, |Config { forward, .. }| {
        (forward.timeout_ms, forward.backoff_ms, forward.requests_per_source) = (1000, 2000, 4);
    });
    assert_eq!(code(&exchange_over_tcp(service.queries, &list()).unwrap()), Code::AUTHENTICATION_NEEDED);
    service.admin.as_ref().unwrap().signal("STOP");
    let queries = service.queries;
    std::thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..12).map(|_| scope.spawn(move || exchange_over_tcp(queries, &list()).unwrap())).collect();
        resolve_many(&service);
        for waiting in waiting {
            assert_eq!(code(&waiting.join().unwrap()), Code::SERVER_BUSY);
        }
    });
    assert!(event(&service, "refused_of_source") >= 1, "12 requests at a time exceed the limit of 4");
    assert!((1..=8).contains(&event(&service, "timed_out")), "{}", event(&service, "timed_out"));
    // Now one request at a time is tried and others are refused immediately. No permit is lost.
    let (before, began) = (event(&service, "backed_off"), Instant::now());
    for _ in 0..20 {
        assert_eq!(code(&exchange_over_tcp(queries, &list()).unwrap()), Code::SERVER_BUSY);
    }
    assert!(event(&service, "backed_off") > before);
    assert!(began.elapsed() < Duration::from_secs(20), "requests are not waited for");
    resolve_many(&service);
    assert_eq!(event(&service, "waiting"), 0);
    service.admin.as_ref().unwrap().signal("CONT");
    until("requests are forwarded again", || {
        code(&exchange_over_tcp(queries, &list()).unwrap()) == Code::AUTHENTICATION_NEEDED
    });
    // handle-admin is stopped and started again.
    service.admin = None;
    assert_eq!(code(&exchange_over_tcp(queries, &list()).unwrap()), Code::SERVER_BUSY);
    resolve_many(&service);
    service.start_admin();
    assert_eq!(code(&exchange_over_tcp(queries, &list()).unwrap()), Code::AUTHENTICATION_NEEDED);
}

#[test]
fn forged_answers_to_challenges_only_use_their_own_permits() {
    let mut service = InitialisedService::make();
    service.start_admin();
    let _handled = start_handled(&service, |Config { forward, .. }| {
        (forward.requests_per_source, forward.datagrams) = (2, 1);
    });
    let challenge = exchange_over_tcp(service.queries, &list()).unwrap();
    let correct = answer(&service, &challenge);
    // Challenge numbers that handle-admin may have assigned, over UDP, without waiting for answers.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for n in 0..500 {
        let mut forged = correct.clone();
        forged[4..8].copy_from_slice(&(2 * n + 1_i32).to_be_bytes());
        for part in handle_proto::wire::fragment::cut(&Envelope::split(&forged).unwrap().0) {
            let rest = &forged[Envelope::LEN..][part.range];
            socket.send_to(&[&part.envelope[..], rest].concat(), service.queries).unwrap();
        }
    }
    resolve_plain(&service);
    // The forged answers come from the same address, and may use all of its permits for a moment.
    until("certified queries are answered", || certified_code(&service) == Code::SUCCESS);
    until("all requests are finished", || {
        let stats = stats(&service);
        stats["slow"]["requests_waiting"] == 0 && stats["slow"]["forward"]["waiting"] == 0
    });
    resolve_many(&service);
    // The challenge itself is still answered, once.
    let names = listed_names(&exchange_all(service.queries, &correct));
    assert_eq!(names, ["10.1045/ADMIN"]);
    assert_eq!(code(&exchange_over_tcp(service.queries, &correct).unwrap()), Code::AUTHENTICATION_TIMEOUT);
}

#[test]
fn the_socket_is_private_and_accepts_only_valid_frames() {
    let service = InitialisedService::start();
    let path = service.path("site/run/admin.socket");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for frame in [
        &[0xff; 6][..],
        &[1, 1, 0xff, 0xff, 0xff, 0xff],
        &[1, 1, 0, 0, 0, 1, 99],
        &[1, 1, 0, 0, 0, 0],
        &[1, 1, 0, 0, 0, 3, 1, 0, 0],
        &[1, 99, 0, 0, 0, 0],
        &[2, 1, 0, 0, 0, 0],
    ] {
        let mut socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.write_all(frame).unwrap();
        let mut refusal = Vec::new();
        socket.read_to_end(&mut refusal).unwrap_or_else(|error| panic!("{frame:?}: {error}"));
        // A refusal, which is of kind 0, or nothing.
        assert!(refusal.is_empty() || (refusal.len(), refusal[1]) == (6, 0), "{frame:?}: {refusal:?}");
    }
    // Silent connections use permits until they end, and further ones are refused.
    let silent: Vec<_> = (0..70).map(|_| UnixStream::connect(&path).unwrap()).collect();
    drop(silent);
    until("requests are forwarded again", || {
        code(&exchange_over_tcp(service.queries, &list()).unwrap()) == Code::AUTHENTICATION_NEEDED
    });
}

#[test]
fn long_listings_are_complete_and_slow_readers_delay_nobody() {
    // More bytes than the kernel buffers for a connection that is not read.
    const COUNT: usize = 8_000;
    let long = "N".repeat(1500);
    let mut service = InitialisedService::make();
    let mut lines = String::new();
    for n in 0..COUNT {
        let value = r#"{"index":1,"type":"URL","data":{"format":"string","value":"https://example.org/"}}"#;
        writeln!(lines, r#"{{"handle":"10.1045/{n:08}-{long}","values":[{value}]}}"#).unwrap();
    }
    std::fs::write(service.path("records.jsonl"), lines).unwrap();
    succeed(service.hdl(["import", "site/store.redb", "records.jsonl"]));
    service.start_admin();
    let _handled = start_handled(&service, |config| config.forward.listings = 1);
    let challenge = exchange_over_tcp(service.queries, &list()).unwrap();
    let mut slow = TcpStream::connect(service.queries).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    slow.write_all(&answer(&service, &challenge)).unwrap();
    until("the listing has begun", || event(&service, "listings") == 1);
    // Other requests are answered meanwhile, except for a second listing, because the limit is one.
    resolve_many(&service);
    let challenge = exchange_over_tcp(service.queries, &list()).unwrap();
    let refused = exchange_all(service.queries, &answer(&service, &challenge));
    assert_eq!((refused.len(), code(&refused[0])), (1, Code::SERVER_BUSY));
    assert_eq!(event(&service, "refused_listing"), 1);
    let mut bytes = Vec::new();
    slow.read_to_end(&mut bytes).unwrap();
    let (mut messages, mut rest) = (Vec::new(), &bytes[..]);
    while let Ok((envelope, _)) = Envelope::split(rest) {
        let (one, after) = rest.split_at(Envelope::LEN + envelope.message_len as usize);
        messages.push(one.to_vec());
        rest = after;
    }
    let names = listed_names(&messages);
    assert_eq!(names.len(), COUNT + 1);
    assert!(names.is_sorted() && messages.len() == names.len().div_ceil(50));
    // `hdl handle list` shows the same.
    let server = service.queries.to_string();
    let args = ["handle", "list", "10.1045", "--server", &server, "--auth", "300:10.1045/ADMIN"];
    let key = ["--key", "site/admin-private.bin"];
    let shown = succeed(service.hdl(args.into_iter().chain(key)));
    assert_eq!(shown.lines().filter(|line| line.contains("-NNN")).count(), COUNT);
    // A client that disconnects ends its listing.
    let challenge = exchange_over_tcp(service.queries, &list()).unwrap();
    let mut gone = TcpStream::connect(service.queries).unwrap();
    gone.write_all(&answer(&service, &challenge)).unwrap();
    until("the listing has begun", || event(&service, "listings") == 1);
    drop(gone);
    until("the listing has ended", || event(&service, "listings") == 0 && event(&service, "waiting") == 0);
    assert_eq!(event(&service, "abandoned"), 1);
    resolve_many(&service);
}
