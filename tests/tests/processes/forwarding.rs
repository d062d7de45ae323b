//! Requests that `handled` forwards to `handle-admin`: listings, reads by identities of other
//! services, answers to challenges of either process, and resolution for clients that do not
//! understand referrals.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_daemon::site::SiteRecord;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Message, Reply, Request, Response};
use handle_proto::{OpFlags, Permissions, ResponseCode as Code, Value, ValueBuf, Values, Version};
use handle_session::numbers::is_of_admin;
use handle_tests::admin_server::AdminServer;
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::forwarding::{BothProcesses, answer_to, code, exchange_all, listed_names, message};
use handle_tests::services::{ServicesPlan, admin, group, secret};
use handle_tests::session::{ClientSession, SessionExchange};
use handle_tests::test_server::server_key;
use std::net::SocketAddr;

const SECRET: &[u8] = b"a secret of this service";
const OTHER_SECRET: &[u8] = b"a secret that only the other service knows";
const ADMIN: Reference<'_> = Reference { handle: b"10.1/who", index: 301 };
const OTHER: Reference<'_> = Reference { handle: b"20.2/who", index: 301 };
const PRIVATE: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 & !OpFlags::PUBLIC_ONLY.0);

fn hidden(at: i32) -> ValueBuf {
    let value = Value::new(at, b"NOTE", b"not for all");
    ValueBuf::from(&Value { permissions: Permissions::ADMIN_READ, ..value })
}

/// Plans of two services. Identities of both, directly and through a group, administer records of
/// `10.1`.
fn plans() -> (ServicesPlan, ServicesPlan) {
    let here = ServicesPlan::new(
        "server",
        &["10.1"],
        vec![
            ("0.NA/10.1", vec![admin(100, 301, "10.1/who"), secret(302, SECRET)]),
            ("10.1/who", vec![secret(301, SECRET)]),
            ("10.1/mine", vec![hidden(1), admin(100, 301, "10.1/who")]),
            ("10.1/theirs", vec![hidden(1), admin(100, 301, "20.2/who")]),
            ("10.1/group", vec![hidden(1), admin(100, 1, "20.2/group")]),
            ("10.1/prefix", vec![hidden(1), admin(100, 302, "0.NA/10.1")]),
        ],
    );
    let there = ServicesPlan::new(
        "mirror",
        &["20.2"],
        vec![
            ("20.2/group", vec![group(1, &[(301, "20.2/who"), (301, "10.1/who")])]),
            ("20.2/who", vec![secret(301, OTHER_SECRET)]),
        ],
    );
    (here, there)
}

fn start() -> (BothProcesses, AdminServer) {
    let (here, there) = plans();
    (BothProcesses::start(&here, &there, |_| (), |_| ()), there.start(&here, |_| ()))
}

fn list(prefix: &str) -> Vec<u8> {
    let body = HandleBody { handle: prefix.as_bytes() };
    message(Version::CURRENT, 11, OpFlags::PLAIN_REQUEST, &Request::ListHandles(body))
}

fn query(handle: &str) -> Request<'_> {
    let (indexes, types) = (Indexes::EMPTY, Strings::EMPTY);
    Request::Resolution(Query { handle: handle.as_bytes(), indexes, types })
}

fn read(handle: &str) -> Vec<u8> {
    message(Version::CURRENT, 12, PRIVATE, &query(handle))
}

fn session_of(challenge: &[u8]) -> i32 {
    Envelope::split(challenge).unwrap().0.session_id
}

/// The code for reading `handle` as `identity`, with all messages sent by `ask` to `server`.
fn read_as(
    ask: SessionExchange,
    server: SocketAddr,
    handle: &str,
    identity: Reference<'_>,
    secret: &[u8],
) -> Code {
    let challenge = ask(server, &read(handle)).unwrap();
    assert_eq!(code(&challenge), Code::AUTHENTICATION_NEEDED, "{handle}");
    code(&ask(server, &answer_to(&challenge, identity, secret)).unwrap())
}

#[test]
fn handles_are_listed_at_the_interface_for_queries_over_tcp() {
    let (processes, _there) = start();
    let server = processes.queries();
    for prefix in ["0.NA/10.1", "10.1"] {
        let challenge = exchange_over_tcp(server, &list(prefix)).unwrap();
        assert_eq!(code(&challenge), Code::AUTHENTICATION_NEEDED);
        assert!(is_of_admin(session_of(&challenge)));
        let answer = answer_to(&challenge, ADMIN, SECRET);
        let names = listed_names(&exchange_all(server, &answer));
        assert_eq!(names.len(), 5, "{names:?}");
        let again = exchange_over_tcp(server, &answer).unwrap();
        assert_eq!(code(&again), Code::AUTHENTICATION_TIMEOUT, "a challenge is answered once");
    }
    let challenge = exchange_over_tcp(server, &list("10.1")).unwrap();
    let wrong = answer_to(&challenge, ADMIN, b"something else");
    assert_eq!(code(&exchange_over_tcp(server, &wrong).unwrap()), Code::AUTHENTICATION_FAILED);
    // No identity is configured for homed prefixes.
    let homed = Request::ListHomedNas(HandleBody { handle: b"/" });
    let homed = message(Version::CURRENT, 13, OpFlags::PLAIN_REQUEST, &homed);
    let challenge = exchange_over_tcp(server, &homed).unwrap();
    let answer = answer_to(&challenge, ADMIN, SECRET);
    assert_eq!(code(&exchange_over_tcp(server, &answer).unwrap()), Code::INVALID_ADMIN);
    // The source address of UDP may be forged, so listing is refused.
    assert_eq!(code(&exchange_over_udp_unreadable(server, &list("10.1"))), Code::PROTOCOL_ERROR);
}

/// The answer over UDP to a request that is refused as unreadable: it has no request id.
fn exchange_over_udp_unreadable(server: SocketAddr, message: &[u8]) -> Vec<u8> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    socket.send_to(message, server).unwrap();
    let mut buffer = [0; 2048];
    let len = socket.recv(&mut buffer).unwrap();
    buffer[..len].to_vec()
}

#[test]
fn handles_are_listed_in_a_session_with_either_process() {
    let (processes, _there) = start();
    let mut session = ClientSession::open(exchange, processes.queries(), ADMIN, &server_key("root"));
    for hides in [false, true, true] {
        let body = HandleBody { handle: b"0.NA/10.1" };
        let request = session.request(14, OpFlags::PLAIN_REQUEST, &Request::ListHandles(body));
        let request = session.seal(request);
        let request = if hides { session.encrypt(&request) } else { request };
        let mut answers = exchange_all(processes.queries(), &request);
        if code(&session.read(&answers[0]).0) == Code::AUTHENTICATION_NEEDED {
            let (challenge, _) = session.read(&answers[0]);
            assert_eq!(session_of(&challenge), session.id);
            answers = exchange_all(processes.queries(), &answer_to(&challenge, ADMIN, SECRET));
        }
        let pages: Vec<_> = answers.iter().map(|answer| session.read(answer).0).collect();
        assert_eq!(listed_names(&pages).len(), 5, "encrypted: {hides}");
        let copy = exchange_over_tcp(processes.queries(), &request).unwrap();
        assert_eq!(code(&session.read(&copy).0), Code::SESSION_MESSAGE_REJECTED, "encrypted: {hides}");
    }
    assert_eq!(
        processes.admin.server().shared().service.proof.challenges().counts().issued,
        1,
        "proven once"
    );
}

#[test]
fn administration_that_is_not_forwarded_is_refused_also_in_encrypted_messages() {
    let (processes, _there) = start();
    let mut session = ClientSession::open(exchange, processes.queries(), ADMIN, &server_key("root"));
    let create = |session: &mut ClientSession| {
        let body = HandleValues { handle: b"10.1/new", values: Values::EMPTY };
        let request = session.request(15, OpFlags::PLAIN_REQUEST, &Request::CreateHandle(body));
        session.seal(request)
    };
    let bare = HandleBody { handle: b"10.1/a" };
    let bare = session.request(16, OpFlags::PLAIN_REQUEST, &Request::DeleteHandle(bare));
    let over_tcp = |server, message: &[u8]| exchange_over_tcp(server, message).unwrap();
    for ask in [exchange_over_udp_unreadable as fn(SocketAddr, &[u8]) -> Vec<u8>, over_tcp] {
        let right = create(&mut session);
        let mut wrong = create(&mut session);
        *wrong.last_mut().unwrap() ^= 1;
        for (case, request, expected) in [
            ("correct", &right, Code::PROTOCOL_ERROR),
            ("a replay", &right, Code::SESSION_FAILED),
            ("a wrong MAC", &wrong, Code::SESSION_FAILED),
            ("no MAC", &bare, Code::SESSION_FAILED),
        ] {
            assert_eq!(code(&ask(processes.queries(), &session.encrypt(request))), expected, "{case}");
        }
        assert_eq!(code(&ask(processes.queries(), &right)), Code::PROTOCOL_ERROR, "in the clear");
    }
}

#[test]
fn a_challenge_of_one_process_is_answered_at_the_other_and_once() {
    let (processes, _there) = start();
    let (queries, administration) = (processes.queries(), processes.administration());
    // Challenged by handled over UDP, answered to handle-admin over TCP.
    let challenge = exchange(queries, &read("10.1/mine")).unwrap();
    assert!(!is_of_admin(session_of(&challenge)));
    let answer = answer_to(&challenge, ADMIN, SECRET);
    assert_eq!(code(&exchange_over_tcp(administration, &answer).unwrap()), Code::SUCCESS);
    for (ask, server) in [(exchange_over_tcp as SessionExchange, administration), (exchange, queries)] {
        assert_eq!(code(&ask(server, &answer).unwrap()), Code::AUTHENTICATION_TIMEOUT, "{server}");
    }
    // Challenged by handle-admin, answered to handled.
    for ask in [exchange as SessionExchange, exchange_over_tcp] {
        let challenge = exchange_over_tcp(administration, &read("10.1/mine")).unwrap();
        assert!(is_of_admin(session_of(&challenge)));
        let answer = answer_to(&challenge, ADMIN, SECRET);
        assert_eq!(code(&ask(queries, &answer).unwrap()), Code::SUCCESS);
        assert_eq!(code(&ask(queries, &answer).unwrap()), Code::AUTHENTICATION_TIMEOUT);
        let again = exchange_over_tcp(administration, &answer).unwrap();
        assert_eq!(code(&again), Code::AUTHENTICATION_TIMEOUT);
    }
    // The same for the challenge of a change.
    let body = HandleValues { handle: b"10.1/new", values: Values::EMPTY };
    let create = message(Version::CURRENT, 17, OpFlags::PLAIN_REQUEST, &Request::CreateHandle(body));
    let challenge = exchange_over_tcp(administration, &create).unwrap();
    let answer = answer_to(&challenge, ADMIN, SECRET);
    let created = exchange(queries, &answer).unwrap();
    assert!(matches!(code(&created), Code::SUCCESS | Code::INVALID_HANDLE), "{:?}", code(&created));
    assert_eq!(code(&exchange(queries, &answer).unwrap()), Code::AUTHENTICATION_TIMEOUT);
    // In a session, the challenge has its number.
    let mut session = ClientSession::open(exchange, queries, ADMIN, &server_key("root"));
    for (first, then) in [(queries, administration), (administration, queries)] {
        let request = session.request(18, PRIVATE, &query("10.1/theirs"));
        let request = session.seal(request);
        let (challenge, _) = session.read(&exchange_over_tcp(first, &request).unwrap());
        let answer = answer_to(&challenge, OTHER, OTHER_SECRET);
        let (plain, _) = session.read(&exchange_over_tcp(then, &answer).unwrap());
        assert_eq!(code(&plain), Code::SUCCESS, "asked at {first}, answered at {then}");
    }
    // Session numbers that were never assigned.
    for id in [0x1234_5670, 0x1234_5671] {
        let mut unassigned = answer.clone();
        unassigned[4..8].copy_from_slice(&i32::to_be_bytes(id));
        for (ask, server) in [(exchange as SessionExchange, queries), (exchange_over_tcp, administration)] {
            assert_eq!(code(&ask(server, &unassigned).unwrap()), Code::SESSION_TIMEOUT, "{id} at {server}");
        }
    }
}

#[test]
fn identities_of_other_services_read_over_udp_and_tcp() {
    let (processes, _there) = start();
    let server = processes.queries();
    for ask in [exchange as SessionExchange, exchange_over_tcp] {
        assert_eq!(read_as(ask, server, "10.1/theirs", OTHER, OTHER_SECRET), Code::SUCCESS);
        assert_eq!(read_as(ask, server, "10.1/theirs", OTHER, b"wrong"), Code::AUTHENTICATION_FAILED);
        assert_eq!(
            read_as(ask, server, "10.1/group", OTHER, OTHER_SECRET),
            Code::SUCCESS,
            "through a group of the other service"
        );
        assert_eq!(
            read_as(ask, server, "10.1/group", ADMIN, SECRET),
            Code::SUCCESS,
            "an identity of this service, through it"
        );
        let nobody = Reference { handle: b"20.2/nobody", index: 301 };
        assert_eq!(read_as(ask, server, "10.1/theirs", nobody, b"any"), Code::INVALID_ADMIN);
        // Reads that handled can decide itself are not forwarded.
        let before = processes.forward_count("accepted");
        assert_eq!(read_as(ask, server, "10.1/mine", ADMIN, SECRET), Code::SUCCESS);
        assert_eq!(read_as(ask, server, "10.1/mine", OTHER, OTHER_SECRET), Code::INVALID_ADMIN);
        assert_eq!(processes.forward_count("accepted"), before);
    }
    // In a session, the identity is authenticated once.
    let mut session = ClientSession::open(exchange, server, OTHER, &server_key("root"));
    for handle in ["10.1/group", "10.1/group", "10.1/theirs"] {
        let request = session.request(19, PRIVATE, &query(handle));
        let request = session.seal(request);
        let (mut plain, _) = session.read(&exchange(server, &request).unwrap());
        if code(&plain) == Code::AUTHENTICATION_NEEDED {
            plain = session.read(&exchange(server, &answer_to(&plain, OTHER, OTHER_SECRET)).unwrap()).0;
        }
        assert_eq!(code(&plain), Code::SUCCESS, "{handle}");
    }
    assert_eq!(processes.forward_count("timed_out") + processes.forward_count("failed"), 0);
}

#[test]
fn keys_in_a_prefix_record_are_read_from_the_published_set() {
    let (processes, _there) = start();
    let prefix = Reference { handle: b"0.NA/10.1", index: 302 };
    let before = processes.forward_count("accepted");
    assert_eq!(read_as(exchange, processes.queries(), "10.1/prefix", prefix, SECRET), Code::SUCCESS);
    assert_eq!(
        read_as(exchange, processes.queries(), "10.1/prefix", prefix, b"wrong"),
        Code::AUTHENTICATION_FAILED
    );
    assert_eq!(processes.forward_count("accepted"), before, "the prefix record is in the published set");
    let administration = processes.administration();
    assert_eq!(read_as(exchange_over_tcp, administration, "10.1/prefix", prefix, SECRET), Code::SUCCESS);
}

#[test]
fn forwarding_can_be_disabled() {
    let (here, there) = plans();
    let off = |config: &mut handle_worker::Config| {
        (config.forward.listing, config.forward.identities) = (false, false);
    };
    let processes = BothProcesses::start(&here, &there, off, |_| ());
    let _there = there.start(&here, |_| ());
    let server = processes.queries();
    let refused = exchange_over_tcp(server, &list("10.1")).unwrap();
    assert_eq!(code(&refused), Code::PROTOCOL_ERROR);
    assert_eq!(read_as(exchange, server, "10.1/theirs", OTHER, OTHER_SECRET), Code::AUTHENTICATION_FAILED);
    assert_eq!(read_as(exchange, server, "10.1/group", OTHER, OTHER_SECRET), Code::INVALID_ADMIN);
    assert_eq!(processes.forward_count("accepted"), 0);
}

/// A registry that delegates prefixes derived from `10.5` to the service of `there`.
fn delegating(there: &AdminServer) -> ServicesPlan {
    let site = SiteRecord::read(&there.config.site, None).unwrap();
    let delegation = ValueBuf::from(&Value::new(1, b"HS_SITE.PREFIX", site.as_bytes()));
    ServicesPlan::new("server", &["0.NA"], vec![("0.NA/10.5", vec![delegation])])
}

/// The code of an answer, and the data of its first value.
fn shown(answer: &[u8]) -> (Code, Vec<u8>) {
    let (envelope, rest) = Envelope::split(answer).unwrap();
    let body = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap();
    let Body::Reply(Reply { code, response, .. }) = body else { panic!("a request") };
    let data = match response {
        Response::Answer(answer) => answer.values.iter().next().map(|value| value.data.to_vec()),
        _ => None,
    };
    (code, data.unwrap_or_default())
}

#[test]
fn requests_of_clients_without_referrals_are_resolved_recursively() {
    let url = ValueBuf::from(&Value::new(1, b"URL", b"https://example.org/"));
    let there = ServicesPlan::new("mirror", &["0.NA/10.5"], vec![("0.NA/10.5.7", vec![url, hidden(2)])]);
    let unknown = ServicesPlan::new("server", &["10.9"], vec![]);
    let mut admin = there.start(&unknown, |_| ());
    let here = delegating(&admin);
    let processes = BothProcesses::start(&here, &there, |_| (), |_| ());
    let old = |minor, handle: &str, flags| message(Version::new(2, minor), 21, flags, &query(handle));
    let plain = OpFlags::PLAIN_REQUEST;
    for ask in [exchange as SessionExchange, exchange_over_tcp] {
        let reply =
            |minor, handle, flags| shown(&ask(processes.queries(), &old(minor, handle, flags)).unwrap());
        for minor in [1, 4, 5, 9] {
            assert_eq!(
                reply(minor, "0.NA/10.5.7", plain),
                (Code::SUCCESS, b"https://example.org/".to_vec()),
                "{minor}"
            );
        }
        for minor in [10, 11] {
            assert_eq!(reply(minor, "0.NA/10.5.7", plain).0, Code::PREFIX_REFERRAL, "{minor}");
        }
        assert_eq!(
            reply(9, "0.NA/10.5.8", plain).0,
            Code::HANDLE_NOT_FOUND,
            "the answer of the other service"
        );
        let signed = plain.with(OpFlags::CERTIFY);
        assert_eq!(reply(9, "0.NA/10.5.7", signed).0, Code::SUCCESS);
        assert_eq!(reply(9, "0.NA/10.5.7", plain.with(OpFlags::DO_NOT_REFER)).0, Code::HANDLE_NOT_FOUND);
        assert_eq!(reply(9, "0.NA/10.5.7", plain.without(OpFlags::RECURSIVE)).0, Code::PREFIX_REFERRAL);
        assert_eq!(reply(9, "0.NA/10.6.7", plain).0, Code::HANDLE_NOT_FOUND, "no service has the prefix");
    }
    // The request has passed through too many servers.
    let mut deep = old(9, "0.NA/10.5.7", plain);
    deep[34] = 10;
    assert_eq!(shown(&exchange(processes.queries(), &deep).unwrap()).0, Code::RECURSION_COUNT_TOO_HIGH);
    let referrals = processes.admin.server().shared().service.decision.referrals().unwrap().counts();
    assert!(referrals.resolved > 8 && referrals.unresolved == 0, "{referrals:?}");
    // The other service is down: the client gets the referral.
    admin.stop();
    let (answer_code, _) = shown(&exchange(processes.queries(), &old(9, "0.NA/10.5.9", plain)).unwrap());
    assert_eq!(answer_code, Code::PREFIX_REFERRAL);
    assert_eq!(
        shown(&exchange(processes.queries(), &old(9, "0.NA/10.5.7", plain)).unwrap()).0,
        Code::SUCCESS,
        "cached"
    );
}

#[test]
fn recursive_resolution_for_old_clients_can_be_disabled() {
    let there = ServicesPlan::new("mirror", &["0.NA/10.5"], vec![]);
    let unknown = ServicesPlan::new("server", &["10.9"], vec![]);
    let admin = there.start(&unknown, |_| ());
    let here = delegating(&admin);
    for (in_handled, in_admin) in [(false, true), (true, false)] {
        let here = ServicesPlan { address: handle_tests::daemon::free_address(), ..delegating(&admin) };
        let processes = BothProcesses::start(
            &here,
            &there,
            |config| config.forward.old_clients = in_handled,
            |config| config.forward.resolve_for_old = in_admin,
        );
        let old = message(Version::new(2, 9), 22, OpFlags::PLAIN_REQUEST, &query("0.NA/10.5.7"));
        assert_eq!(shown(&exchange(processes.queries(), &old).unwrap()).0, Code::PREFIX_REFERRAL);
        assert_eq!(processes.forward_count("accepted"), u64::from(in_handled));
    }
    drop(here);
}
