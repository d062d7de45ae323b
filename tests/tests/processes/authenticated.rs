//! Authorization of reads over the network: challenges, all kinds of answers, and limits of pending
//! challenges.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::challenge::{answer_with_key, answer_with_secret};
use handle_auth::digest::mac;
use handle_auth::message::verify_message;
use handle_auth::{PrivateKey, PublicKey};
use handle_proto::code::DigestAlgorithm;
use handle_proto::limit::PBKDF2_SALT_LEN;
use handle_proto::wire::auth::{self, ChallengeAnswer, SecretAnswer};
use handle_proto::wire::list::{Indexes, Reference, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};
use handle_snapshot::Builder;
use handle_snapshot::set::manifest::SetOrigin;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::set::stager::LayerPosition;
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::test_server::{TestServer, serve_with};
use handle_tests::vectors::{fixture, hex};
use handle_worker::config::{Config, Datapath};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

const READ: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 & !OpFlags::PUBLIC_ONLY.0);
const SECRET: &[u8] = b"open sesame open";
const SALT: [u8; PBKDF2_SALT_LEN] = [7; PBKDF2_SALT_LEN];
const CHALLENGED: ResponseCode = ResponseCode::AUTHENTICATION_NEEDED;

fn root(change: impl FnOnce(&mut Config)) -> TestServer {
    serve_with("root", Datapath::Portable, change)
}

fn identity(index: i32, handle: &str) -> Reference<'_> {
    Reference { handle: handle.as_bytes(), index }
}

fn message(envelope: Envelope, flags: OpFlags, request: &Request<'_>) -> Vec<u8> {
    let header = Header::request(OpCode::RESERVED, flags, 0);
    MessageBuf::request(&envelope, &header, request).unsigned().unwrap()
}

fn question(handle: &str, indexes: &[i32], flags: OpFlags, request_id: i32) -> Vec<u8> {
    let mut storage = vec![];
    let indexes = Indexes::build(indexes.iter().copied(), &mut storage);
    let query = Query { handle: handle.as_bytes(), indexes, types: Strings::EMPTY };
    message(Envelope::request(request_id), flags, &Request::Resolution(query))
}

/// The parts of a challenge that a client needs.
#[derive(Clone, Debug)]
struct Challenge {
    id: i32,
    version: Version,
    suggested: Version,
    nonce: Vec<u8>,
    digest: Vec<u8>,
}

impl Challenge {
    fn covered(&self) -> [&[u8]; 2] {
        [&self.nonce, &self.digest]
    }
}

/// Code, indexes of the values, and challenge of an answer.
fn read(bytes: &[u8]) -> (ResponseCode, Vec<i32>, Option<Challenge>) {
    let (envelope, rest) = Envelope::split(bytes).unwrap();
    let Body::Reply(reply) = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap() else {
        panic!("a reply");
    };
    match reply.response {
        Response::Challenge(challenge) => {
            let digest = reply.digest.unwrap().digest.to_vec();
            let Envelope { session_id: id, version, suggested, .. } = envelope;
            let nonce = challenge.nonce.to_vec();
            (reply.code, vec![], Some(Challenge { id, version, suggested, nonce, digest }))
        }
        Response::Answer(answer) => {
            (reply.code, answer.values.iter().map(|value| value.index).collect(), None)
        }
        _ => (reply.code, vec![], None),
    }
}

fn challenge(served: &TestServer, handle: &str, indexes: &[i32]) -> Challenge {
    let answer = exchange(served.address(), &question(handle, indexes, READ, 1)).unwrap();
    let (code, _, challenge) = read(&answer);
    assert_eq!(code, CHALLENGED, "{handle}");
    challenge.unwrap()
}

fn answer(
    served: &TestServer,
    id: i32,
    auth_type: &[u8],
    identity: Reference<'_>,
    signed_response: &[u8],
) -> (ResponseCode, Vec<i32>) {
    let body = ChallengeAnswer { auth_type, identity, signed_response };
    let envelope = Envelope { session_id: id, ..Envelope::request(2) };
    let answer =
        exchange(served.address(), &message(envelope, READ, &Request::AnswerChallenge(body))).unwrap();
    let (code, values, _) = read(&answer);
    (code, values)
}

fn private_key(id: &str) -> PrivateKey {
    PrivateKey::from_record(&hex(&fixture("servers.json")["keys"][id]["handle_private_hex"])).unwrap()
}

#[test]
fn every_form_of_answer_with_the_right_secret_is_accepted() {
    let served = root(|_| ());
    let identity = identity(301, "0.NA/TST");
    let codes = [
        DigestAlgorithm::MD5,
        DigestAlgorithm::SHA1,
        DigestAlgorithm::SHA256,
        DigestAlgorithm::HMAC_SHA1,
        DigestAlgorithm::HMAC_SHA256,
    ];
    for secret in [SECRET, b"open sesame"] {
        let expected = match secret == SECRET {
            true => (ResponseCode::SUCCESS, vec![1, 2]),
            false => (ResponseCode::AUTHENTICATION_FAILED, vec![]),
        };
        for algorithm in codes {
            let challenge = challenge(&served, "TST/HALF", &[1, 2]);
            let mut response = vec![];
            let mac = mac(algorithm, secret, &challenge.covered()).unwrap();
            SecretAnswer::Mac { algorithm, mac: &mac }.encode(&mut response);
            let outcome = answer(&served, challenge.id, auth::SECRET_KEY, identity, &response);
            assert_eq!(outcome, expected, "{algorithm}");
        }
        let challenge = challenge(&served, "TST/HALF", &[1, 2]);
        let (version, suggested) = (challenge.version, challenge.suggested);
        let response = answer_with_secret(version, suggested, &challenge.covered(), secret, &SALT);
        assert_eq!(response[0], 0x22, "PBKDF2");
        assert_eq!(answer(&served, challenge.id, auth::SECRET_KEY, identity, &response), expected);
    }
}

#[test]
fn every_kind_of_private_key_answers() {
    let served = root(|_| ());
    for (index, key) in [(300, "admin_rsa"), (302, "admin_dsa"), (303, "admin_dsa2048")] {
        for (signer, code) in [(key, ResponseCode::SUCCESS), ("server", ResponseCode::AUTHENTICATION_FAILED)]
        {
            let challenge = challenge(&served, "TST/HALF", &[2]);
            let response =
                answer_with_key(challenge.version, &challenge.covered(), &private_key(signer)).unwrap();
            let outcome =
                answer(&served, challenge.id, auth::PUBLIC_KEY, identity(index, "0.NA/TST"), &response);
            assert_eq!(outcome.0, code, "{key} signed by {signer}");
        }
    }
}

#[test]
fn a_challenge_can_be_answered_once_and_in_time() {
    let served = root(|config| config.slow.challenge_ms = 300);
    let identity = identity(301, "0.NA/TST");
    let response = |challenge: &Challenge, secret: &[u8]| {
        answer_with_secret(challenge.version, challenge.suggested, &challenge.covered(), secret, &SALT)
    };
    let too_late = (ResponseCode::AUTHENTICATION_TIMEOUT, vec![]);
    let first = challenge(&served, "TST/HALF", &[2]);
    let right = response(&first, SECRET);
    assert_eq!(answer(&served, first.id, auth::SECRET_KEY, identity, &right).0, ResponseCode::SUCCESS);
    assert_eq!(answer(&served, first.id, auth::SECRET_KEY, identity, &right), too_late, "a replay");
    let second = challenge(&served, "TST/HALF", &[2]);
    assert_ne!((second.id, &second.nonce), (first.id, &first.nonce));
    let code = answer(&served, second.id, auth::SECRET_KEY, identity, &right).0;
    assert_eq!(code, ResponseCode::AUTHENTICATION_FAILED, "an answer to another challenge");
    assert_eq!(answer(&served, second.id, auth::SECRET_KEY, identity, &response(&second, SECRET)), too_late);
    let third = challenge(&served, "TST/HALF", &[2]);
    let right = response(&third, SECRET);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(answer(&served, third.id, auth::SECRET_KEY, identity, &right), too_late);
    for id in [0, -1] {
        assert_eq!(answer(&served, id, auth::SECRET_KEY, identity, &right), too_late, "challenge {id}");
    }
    let unknown = (ResponseCode::SESSION_TIMEOUT, vec![]);
    for id in [1, i32::MAX] {
        assert_eq!(answer(&served, id, auth::SECRET_KEY, identity, &right), unknown, "challenge {id}");
    }
}

#[test]
fn any_worker_takes_an_answer_to_the_challenge_of_another() {
    let served = root(|config| config.workers = 2);
    let identity = identity(301, "0.NA/TST");
    // Each exchange uses its own port, so both workers get challenges and answers.
    for _ in 0..20 {
        let challenge = challenge(&served, "TST/HALF", &[1, 2]);
        let response =
            answer_with_secret(challenge.version, challenge.suggested, &challenge.covered(), SECRET, &SALT);
        let outcome = answer(&served, challenge.id, auth::SECRET_KEY, identity, &response);
        assert_eq!(outcome, (ResponseCode::SUCCESS, vec![1, 2]));
    }
}

#[test]
fn an_identity_that_may_not_read_is_refused_with_any_key() {
    let served = root(|_| ());
    let code = |handle, kind: &[u8], identity, response: &[u8]| {
        let challenge = challenge(&served, handle, &[]);
        answer(&served, challenge.id, kind, identity, response).0
    };
    let wrong = b"\x02wrong";
    assert_eq!(
        code("TST/HALF", auth::SECRET_KEY, identity(305, "0.NA/TST"), wrong),
        ResponseCode::INVALID_ADMIN
    );
    assert_eq!(
        code("TST/HALF", auth::SECRET_KEY, identity(0, "0.NA/TST"), wrong),
        ResponseCode::INVALID_ADMIN
    );
    assert_eq!(
        code("TST/HALF", auth::SECRET_KEY, identity(301, "99.9/x"), wrong),
        ResponseCode::INVALID_ADMIN
    );
    assert_eq!(
        code("TST/HALF", b"HS_KERBEROS", identity(301, "0.NA/TST"), wrong),
        ResponseCode::INVALID_CREDENTIAL
    );
    // An unreadable answer from an authorized identity with a key.
    for unreadable in [&b""[..], b"\x77what", b"\x22\0\0\0\x04"] {
        let code = code("TST/HALF", auth::SECRET_KEY, identity(301, "0.NA/TST"), unreadable);
        assert_eq!(code, ResponseCode::AUTHENTICATION_ERROR, "{unreadable:?}");
    }
    // An administrator without a key.
    let keyless = code("TST/HSTYPES", auth::SECRET_KEY, identity(7, "TST/X"), wrong);
    assert_eq!(keyless, ResponseCode::AUTHENTICATION_FAILED);
    let garbage = message(
        Envelope { session_id: 1, ..Envelope::request(3) },
        READ,
        &Request::Unknown(OpCode::RESPONSE_TO_CHALLENGE, b"\0\0"),
    );
    // The answer to an unreadable request does not name a request.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(served.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.send(&garbage).unwrap();
    let mut buffer = [0; 600];
    let len = socket.recv(&mut buffer).unwrap();
    assert_eq!(read(&buffer[..len]).0, ResponseCode::ERROR);
}

#[test]
fn administrators_with_keys_on_other_servers_are_refused() {
    let served = root(|config| config.administrators.server = vec!["300:99.9/elsewhere".into()]);
    let challenge = challenge(&served, "TST/HALF", &[2]);
    let outcome = answer(&served, challenge.id, auth::SECRET_KEY, identity(300, "99.9/elsewhere"), b"\x02");
    assert_eq!(outcome.0, ResponseCode::AUTHENTICATION_FAILED);
    let refused = &served.server.shared().shards.to_json()["total"]["refused"];
    assert_eq!(refused["identity_elsewhere"], 1);
}

#[test]
fn challenges_of_a_source_over_udp_are_bounded_and_clients_switch_to_tcp() {
    let served = root(|config| {
        (config.slow.challenges_per_source, config.slow.challenges_per_source_udp) = (4, 3);
    });
    let ask = |at| read(&exchange(served.address(), &question("TST/PRIVATE", &[], READ, at)).unwrap());
    let challenges: Vec<_> = (0..3).map(|at| ask(at).2.unwrap()).collect();
    assert_eq!(ask(3).0, ResponseCode::ERROR, "the code after which clients use TCP");
    // An answer, right or wrong, frees a permit for a challenge.
    answer(&served, challenges[1].id, auth::SECRET_KEY, identity(301, "0.NA/TST"), b"\x02");
    assert_eq!((ask(4).0, ask(5).0), (CHALLENGED, ResponseCode::ERROR));
    let over_tcp = |at| {
        let question = question("TST/PRIVATE", &[], READ, at);
        read(&exchange_over_tcp(served.address(), &question).unwrap())
    };
    let latest: Vec<_> = (6..10).map(|at| over_tcp(at).2.unwrap()).collect();
    let waiting = &served.server.shared().stats()["slow"]["challenges"];
    assert_eq!((&waiting["sent_to_tcp"], &waiting["waiting"]), (&2.into(), &4.into()));
    let code = |id| answer(&served, id, auth::SECRET_KEY, identity(305, "0.NA/TST"), b"\x02").0;
    assert_eq!(
        code(challenges[0].id),
        ResponseCode::AUTHENTICATION_TIMEOUT,
        "the oldest challenge of the source is dropped"
    );
    assert_eq!(code(latest[0].id), ResponseCode::INVALID_ADMIN);
}

#[test]
fn a_full_table_forgets_the_oldest_challenge() {
    let served = root(|config| {
        (config.slow.challenges, config.slow.challenges_per_source) = (2, 2);
        config.slow.challenges_per_source_udp = 2;
        config.tcp.enabled = false;
    });
    let socket_of = |host: u8| {
        let socket = UdpSocket::bind(SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
        socket.connect(served.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    };
    let mut buffer = [0; 600];
    let ids: Vec<i32> = (2..5)
        .map(|host| {
            let socket = socket_of(host);
            socket.send(&question("TST/PRIVATE", &[], READ, host.into())).unwrap();
            let len = socket.recv(&mut buffer).unwrap();
            read(&buffer[..len]).2.unwrap().id
        })
        .collect();
    let code = |id| answer(&served, id, auth::SECRET_KEY, identity(305, "0.NA/TST"), b"\x02").0;
    assert_eq!(code(ids[0]), ResponseCode::AUTHENTICATION_TIMEOUT);
    assert_eq!((code(ids[1]), code(ids[2])), (ResponseCode::INVALID_ADMIN, ResponseCode::INVALID_ADMIN));
}

/// The slow path is busy with one request for some tens of milliseconds, and one more can wait.
#[test]
fn a_full_slow_path_answers_busy_and_all_requests_are_counted() {
    let served = root(|config| {
        config.slow.queue_requests = 1;
        (config.slow.pbkdf2_key_bits_max, config.slow.pbkdf2_iterations) = (512, 250_000);
        config.tcp.enabled = false;
    });
    let challenge = challenge(&served, "TST/HALF", &[2]);
    let mut response = vec![];
    SecretAnswer::Pbkdf2 { salt: &SALT, iterations: 100_000, key_bits: 512, mac: &[0; 20] }
        .encode(&mut response);
    let body = ChallengeAnswer {
        auth_type: auth::SECRET_KEY,
        identity: identity(301, "0.NA/TST"),
        signed_response: &response,
    };
    let envelope = Envelope { session_id: challenge.id, ..Envelope::request(100) };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(served.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.send(&message(envelope, READ, &Request::AnswerChallenge(body))).unwrap();
    for at in 0..3 {
        socket.send(&question("TST/HALF", &[2], READ, at)).unwrap();
    }
    let plain = question("TST/HALF", &[1], OpFlags::PLAIN_REQUEST, 50);
    socket.send(&plain).unwrap();
    let mut buffer = [0; 600];
    let mut codes = std::collections::BTreeMap::new();
    for _ in 0..5 {
        let len = socket.recv(&mut buffer).unwrap();
        let (envelope, _) = Envelope::split(&buffer[..len]).unwrap();
        codes.insert(envelope.request_id, read(&buffer[..len]).0);
    }
    assert_eq!(codes[&100], ResponseCode::AUTHENTICATION_FAILED);
    assert_eq!(codes[&50], ResponseCode::SUCCESS, "plain requests do not wait");
    for at in 0..3 {
        assert_eq!(codes[&at], ResponseCode::SERVER_BUSY, "{at}");
    }
    let TestServer { server, .. } = served;
    let shards = server.shared().shards.clone();
    server.stop().unwrap();
    assert_eq!(shards.sum(|counters| &counters.requests_deferred), 2);
    assert_eq!(shards.sum(|counters| &counters.requests_under_way), 0);
    assert_eq!(
        shards.sum(|counters| &counters.requests_answered),
        shards.sum(|counters| &counters.datagrams_received)
    );
}

#[test]
fn a_bound_on_rounds_is_kept() {
    let served = root(|config| config.slow.pbkdf2_iterations = 10_000);
    for (iterations, code) in [(10_000, ResponseCode::SUCCESS), (10_001, ResponseCode::AUTHENTICATION_FAILED)]
    {
        let challenge = challenge(&served, "TST/HALF", &[2]);
        let key = handle_auth::kdf::pbkdf2_sha1(SECRET, &SALT, iterations, 20);
        let mac = mac(DigestAlgorithm::HMAC_SHA1, &key, &challenge.covered()).unwrap();
        let mut response = vec![];
        SecretAnswer::Pbkdf2 { salt: &SALT, iterations, key_bits: 160, mac: &mac }.encode(&mut response);
        let outcome = answer(&served, challenge.id, auth::SECRET_KEY, identity(301, "0.NA/TST"), &response);
        assert_eq!(outcome.0, code, "{iterations} rounds");
    }
}

#[test]
fn malformed_answers_have_their_own_code_for_identities_that_may_read() {
    let served = root(|_| ());
    let ask = |auth_type, identity, signed_response: &[u8]| {
        let challenge = challenge(&served, "TST/HALF", &[2]);
        answer(&served, challenge.id, auth_type, identity, signed_response).0
    };
    let unreadable = ResponseCode::AUTHENTICATION_ERROR;
    for response in [&b""[..], b"\x7f01234567890123456789", b"\x22\0\0\0\x09salt", &[0; 16]] {
        assert_eq!(ask(auth::SECRET_KEY, identity(301, "0.NA/TST"), response), unreadable, "{response:?}");
        assert_eq!(ask(auth::SECRET_KEY, identity(305, "0.NA/TST"), response), ResponseCode::INVALID_ADMIN);
    }
    for response in [&b""[..], b"\0\0\0\x04SHA1", b"\0\0\0\x03MD4\0\0\0\0"] {
        assert_eq!(ask(auth::PUBLIC_KEY, identity(300, "0.NA/TST"), response), unreadable, "{response:?}");
    }
    let wrong = ResponseCode::AUTHENTICATION_FAILED;
    assert_eq!(ask(auth::SECRET_KEY, identity(301, "0.NA/TST"), b"\x02"), wrong, "no MAC is a wrong one");
    assert_eq!(ask(auth::PUBLIC_KEY, identity(300, "0.NA/TST"), b"\0\0\0\x04SHA1\0\0\0\0"), wrong);
}

#[test]
fn computed_values_have_the_permissions_of_their_base() {
    let copies = "<namespace><template delimiter='@'><foreach><value/></foreach></template></namespace>";
    let served = root(|config| config.templates.namespace = Some(copies.to_owned()));
    let read_as = |identity, secret: &[u8], indexes: &[i32]| {
        let challenge = challenge(&served, "TST/HALF@x", indexes);
        let response =
            answer_with_secret(challenge.version, challenge.suggested, &challenge.covered(), secret, &SALT);
        answer(&served, challenge.id, auth::SECRET_KEY, identity, &response)
    };
    let request = question("TST/HALF@x", &[3], READ, 1);
    let stored = {
        let challenge = challenge(&served, "TST/HALF", &[]);
        let response =
            answer_with_secret(challenge.version, challenge.suggested, &challenge.covered(), SECRET, &SALT);
        answer(&served, challenge.id, auth::SECRET_KEY, identity(301, "0.NA/TST"), &response)
    };
    assert_eq!(
        read(&exchange(served.address(), &request).unwrap()).0,
        ResponseCode::INSUFFICIENT_PERMISSIONS
    );
    assert!(stored.1.contains(&2) && !stored.1.contains(&3));
    assert_eq!(read_as(identity(301, "0.NA/TST"), SECRET, &[]), stored, "the values of the base");
    assert_eq!(read_as(identity(301, "0.NA/TST"), SECRET, &[2]), (ResponseCode::SUCCESS, vec![2]));
    assert_eq!(read_as(identity(301, "0.NA/TST"), b"wrong", &[2]).0, ResponseCode::AUTHENTICATION_FAILED);
    assert_eq!(read_as(identity(305, "0.NA/TST"), b"read only admin", &[2]).0, ResponseCode::INVALID_ADMIN);
}

#[test]
fn the_status_record_is_for_administrators() {
    let served = root(|config| config.administrators.status = vec!["301:0.NA/TST".into()]);
    let read_as = |identity, secret: &[u8]| {
        let challenge = challenge(&served, "0.site/Status", &[]);
        let response =
            answer_with_secret(challenge.version, challenge.suggested, &challenge.covered(), secret, &SALT);
        answer(&served, challenge.id, auth::SECRET_KEY, identity, &response)
    };
    let shown = |indexes: &[i32]| (ResponseCode::SUCCESS, indexes.to_vec());
    assert_eq!(read_as(identity(301, "0.NA/TST"), SECRET), shown(&[1]), "the set has no store");
    let mut publisher = SetPublisher::open(&served.directory.path().join("set")).unwrap();
    let options = publisher.options(2).unwrap();
    let nothing = publisher
        .stager()
        .stage(LayerPosition::Delta, |file, temp_dir| Builder::new(temp_dir, options).finish(file))
        .unwrap();
    publisher.publish(nothing.showing(SetOrigin { store: 1, transaction: 77 }), 2).unwrap();
    served.server.shared().live.reload().unwrap();
    assert_eq!(read_as(identity(301, "0.NA/TST"), SECRET), shown(&[1, 3]), "the last change is shown");
    assert_eq!(read_as(identity(301, "0.NA/TST"), b"wrong").0, ResponseCode::AUTHENTICATION_FAILED);
    assert_eq!(read_as(identity(305, "0.NA/TST"), b"read only admin").0, ResponseCode::INVALID_ADMIN);
}

#[test]
fn old_peers_get_the_same_signature_again_and_new_ones_never() {
    let served = root(|_| ());
    let key = PublicKey::from_record(&hex(&fixture("servers.json")["keys"]["server"]["handle_public_hex"]))
        .unwrap();
    let signed = |minor, request_id| {
        let mut request =
            question("10.5072/URL-ONE", &[], OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY), request_id);
        request[..4].copy_from_slice(&[2, minor, 2, minor]);
        let answer = exchange(served.address(), &request).unwrap();
        let (envelope, rest) = Envelope::split(&answer).unwrap();
        assert_eq!((envelope.version, envelope.request_id), (Version::new(2, minor), request_id));
        verify_message(&envelope, &Message::decode(rest).unwrap(), &key).unwrap().signature.to_vec()
    };
    let slow = served.server.shared().slow.clone().unwrap();
    for (minor, is_same) in [(3, true), (5, true), (6, true), (7, false), (11, false)] {
        let before = slow.to_json()["signed_before"].as_u64().unwrap();
        // The timestamp may advance between two requests, but not twice within three.
        let signatures = [1, 2, 3].map(|request_id| signed(minor, request_id));
        let again = signatures[0] == signatures[1] || signatures[1] == signatures[2];
        assert_eq!(again, is_same, "2.{minor}");
        assert_eq!(slow.to_json()["signed_before"].as_u64().unwrap() > before, is_same, "2.{minor}");
    }
    assert_eq!(slow.to_json()["signing_failed"], 0);
}

#[test]
fn secrets_do_not_appear_in_output() {
    let served = root(|_| ());
    let waiting = challenge(&served, "TST/HALF", &[2]);
    let response = answer_with_secret(waiting.version, waiting.suggested, &waiting.covered(), SECRET, &SALT);
    let outcome = answer(&served, waiting.id, auth::SECRET_KEY, identity(301, "0.NA/TST"), &response);
    assert_eq!(outcome.0, ResponseCode::SUCCESS);
    let key = hex(&fixture("servers.json")["keys"]["server"]["handle_private_hex"]);
    let shared = served.server.shared();
    let shown = format!("{shared:?} {} {}", shared.stats(), shared.status());
    assert!(!shown.contains("open sesame"));
    // Neither as bytes in `Debug` output nor in hexadecimal.
    let part = &key[300..308];
    assert!(!shown.contains(&format!("{part:?}")[1..20]));
    assert!(!shown.contains(&data_encoding::HEXLOWER.encode(part)));
}

#[test]
fn a_server_key_that_is_not_in_the_site_record_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let error = |change: fn(&mut Config)| {
        let served = root(|_| ());
        let mut config =
            handle_tests::test_server::config(&served.directory.path().join("set"), Datapath::Portable);
        config.site = Some(served.directory.path().join("siteinfo.json"));
        config.server_key = Some(handle_worker::slow::config::ServerKeyConfig {
            file: served.directory.path().join("privkey.bin"),
            ..Default::default()
        });
        change(&mut config);
        match handle_worker::Server::start(&config) {
            Ok(_) => String::new(),
            Err(error) => format!("{error:#}"),
        }
    };
    assert_eq!(error(|_| ()), "");
    let error_text = error(|config| {
        let file = config.server_key.clone().unwrap().file;
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o640)).unwrap();
    });
    assert!(error_text.contains("chmod 600"), "{error_text}");
    let error_text = error(|config| {
        let file = config.server_key.clone().unwrap().file;
        std::fs::remove_file(&file).unwrap();
        handle_tests::test_server::write_key_file(&file, &fixture("servers.json")["keys"]["mirror"]);
    });
    assert!(error_text.contains("is not the one of this server in the site record"), "{error_text}");
    let error_text =
        error(|config| std::fs::write(config.server_key.clone().unwrap().file, b"\0\0\0\x01key").unwrap());
    assert!(error_text.contains("privkey.bin"), "{error_text}");
    let error_text = error(|config| {
        let unset = handle_daemon::server_key::PassphraseSource::Environment("HANDLED_NO_SUCH".into());
        config.server_key.as_mut().unwrap().passphrase = Some(unset);
    });
    assert!(error_text.contains("HANDLED_NO_SUCH"), "{error_text}");
}

/// Wrong secrets of one source for one handle, over connections and in datagrams.
#[test]
fn a_source_with_many_wrong_secrets_waits() {
    let served = root(|_| ());
    let guess = |over: fn(SocketAddr, &[u8]) -> Option<Vec<u8>>, identity: Reference<'_>| {
        let asked = over(served.address(), &question("TST/HALF", &[1, 2], READ, 1)).unwrap();
        let challenge = read(&asked).2.unwrap();
        let mac = mac(DigestAlgorithm::HMAC_SHA256, b"wrong", &challenge.covered()).unwrap();
        let mut response = vec![];
        SecretAnswer::Mac { algorithm: DigestAlgorithm::HMAC_SHA256, mac: &mac }.encode(&mut response);
        let body = ChallengeAnswer { auth_type: auth::SECRET_KEY, identity, signed_response: &response };
        let envelope = Envelope { session_id: challenge.id, ..Envelope::request(2) };
        let message = message(envelope, READ, &Request::AnswerChallenge(body));
        read(&over(served.address(), &message).unwrap()).0
    };
    let named = identity(301, "0.NA/TST");
    for (over, refusal) in [
        (exchange_over_tcp as fn(SocketAddr, &[u8]) -> Option<Vec<u8>>, ResponseCode::SERVER_BUSY),
        // To TCP, where the sender proves its address.
        (exchange, ResponseCode::ERROR),
    ] {
        let codes: Vec<ResponseCode> = (0..21).map(|_| guess(over, named)).collect();
        assert_eq!(codes[..20], [ResponseCode::AUTHENTICATION_FAILED; 20]);
        assert_eq!(codes[20], refusal);
    }
    let exempt = root(|config| config.slow.exempt_sources = vec!["127.0.0.0/8".to_owned()]);
    for _ in 0..30 {
        let challenge = challenge(&exempt, "TST/HALF", &[1, 2]);
        let wrong = answer(&exempt, challenge.id, auth::SECRET_KEY, named, &[&[3][..], &[0; 32]].concat());
        assert_eq!(wrong.0, ResponseCode::AUTHENTICATION_FAILED);
    }
}
