//! `handle-admin` over the network: permitted and refused changes, and the records afterwards.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::config::Config;
use handle_auth::challenge::{answer_with_key, answer_with_secret};
use handle_auth::{PrivateKey, random};
use handle_proto::data::vlist::Vlist;
use handle_proto::data::{Admin, AdminPermissions};
use handle_proto::limit::{HANDLE_LEN_MAX, MESSAGE_LEN_MAX, REFERENCES_COUNT_MAX};
use handle_proto::wire::admin::{HandleBody, HandleIndexes, HandleValues};
use handle_proto::wire::auth::{self, ChallengeAnswer, SecretAnswer};
use handle_proto::wire::list::{Indexes, Reference, References, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
use handle_proto::{OpCode, OpFlags, Permissions, ResponseCode as Code, Value, Values, Version};
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::client::exchange_over_tcp;
use handle_tests::daemon::{ask as ask_control, free_address};
use handle_tests::http;
use handle_tests::process::{RunningProcess, fail, program, succeed, until};
use handle_tests::vectors::{fixture, hex};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

/// An administrator of the server and of the prefix.
pub(crate) const ADMIN: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };
pub(crate) const SECRET: &[u8] = b"open sesame open";
pub(crate) const CHANGE: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 & !OpFlags::PUBLIC_ONLY.0);

pub(crate) fn root(change: impl FnOnce(&mut Config)) -> AdminServer {
    administer_with("root", |config| {
        config.administrators.server = vec!["301:0.NA/TST".to_owned()];
        change(config);
    })
}

pub(crate) fn message(envelope: Envelope, flags: OpFlags, request: &Request<'_>) -> Vec<u8> {
    let header = Header::request(OpCode::RESERVED, flags, 0);
    MessageBuf::request(&envelope, &header, request).unsigned().unwrap()
}

/// The parts of a challenge that a client needs.
#[derive(Clone, Debug)]
pub(crate) struct Challenge {
    pub(crate) id: i32,
    pub(crate) version: Version,
    pub(crate) suggested: Version,
    pub(crate) nonce: Vec<u8>,
    pub(crate) digest: Vec<u8>,
}

/// Summary of a reply.
#[derive(Clone, Debug)]
pub(crate) struct AdminReply {
    pub(crate) code: Code,
    pub(crate) text: String,
    pub(crate) indexes: Vec<i32>,
    pub(crate) created: Vec<u8>,
    pub(crate) challenge: Option<Challenge>,
}

pub(crate) fn summarize(bytes: &[u8]) -> AdminReply {
    let (envelope, rest) = Envelope::split(bytes).unwrap();
    let Body::Reply(reply) = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap() else {
        panic!("a reply");
    };
    let mut summary = AdminReply {
        code: reply.code,
        text: String::new(),
        indexes: vec![],
        created: vec![],
        challenge: None,
    };
    match reply.response {
        Response::Challenge(challenge) => {
            let digest = reply.digest.unwrap().digest.to_vec();
            let Envelope { session_id: id, version, suggested, .. } = envelope;
            summary.challenge =
                Some(Challenge { id, version, suggested, nonce: challenge.nonce.to_vec(), digest });
        }
        Response::Answer(answer) => summary.indexes = answer.values.iter().map(|value| value.index).collect(),
        Response::Failure(failure) => summary.text = String::from_utf8(failure.message.to_vec()).unwrap(),
        Response::Created(created) => summary.created = created.handle.unwrap().to_vec(),
        _ => {}
    }
    summary
}

pub(crate) fn ask(address: SocketAddr, flags: OpFlags, request: &Request<'_>) -> AdminReply {
    let bytes = message(Envelope::request(1), flags, request);
    summarize(&exchange_over_tcp(address, &bytes).expect("an answer"))
}

pub(crate) fn answer_bytes(
    id: i32,
    identity: Reference<'_>,
    auth_type: &[u8],
    signed_response: &[u8],
) -> Vec<u8> {
    let body = ChallengeAnswer { auth_type, identity, signed_response };
    let envelope = Envelope { session_id: id, ..Envelope::request(2) };
    message(envelope, CHANGE, &Request::AnswerChallenge(body))
}

pub(crate) fn respond(challenge: &Challenge, secret: &[u8]) -> Vec<u8> {
    let covered: [&[u8]; 2] = [&challenge.nonce, &challenge.digest];
    answer_with_secret(challenge.version, challenge.suggested, &covered, secret, &random())
}

/// Sends a request and answers the challenge as `identity`.
pub(crate) fn ask_as(
    address: SocketAddr,
    identity: Reference<'_>,
    secret: &[u8],
    flags: OpFlags,
    request: &Request<'_>,
) -> AdminReply {
    let reply = ask(address, flags, request);
    let Some(challenge) = &reply.challenge else { return reply };
    let bytes = answer_bytes(challenge.id, identity, auth::SECRET_KEY, &respond(challenge, secret));
    summarize(&exchange_over_tcp(address, &bytes).expect("an answer"))
}

fn as_admin(administered: &AdminServer, request: &Request<'_>) -> AdminReply {
    ask_as(administered.address(), ADMIN, SECRET, CHANGE, request)
}

/// Calls `act` with a list of `values`.
pub(crate) fn with_values<T>(values: &[Value<'_>], act: impl FnOnce(Values<'_>) -> T) -> T {
    let mut storage = Vec::new();
    act(Values::build(values.iter().copied(), &mut storage))
}

fn create(administered: &AdminServer, handle: &[u8], values: &[Value<'_>]) -> AdminReply {
    with_values(values, |values| {
        as_admin(administered, &Request::CreateHandle(HandleValues { handle, values }))
    })
}

fn add(administered: &AdminServer, handle: &[u8], values: &[Value<'_>]) -> AdminReply {
    with_values(values, |values| as_admin(administered, &Request::AddValue(HandleValues { handle, values })))
}

fn resolve(administered: &AdminServer, handle: &[u8]) -> AdminReply {
    let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    ask(administered.address(), OpFlags::PLAIN_REQUEST, &Request::Resolution(query))
}

pub(crate) const fn url(index: i32) -> Value<'static> {
    Value::new(index, b"URL", b"https://example.org/")
}

#[test]
fn acknowledged_changes_are_visible_at_once_and_after_a_restart() {
    let mut administered = root(|_| ());
    let reply = create(&administered, b"TST/new", &[url(1), url(2)]);
    assert_eq!((reply.code, reply.created.as_slice()), (Code::SUCCESS, &b"TST/new"[..]), "{}", reply.text);
    assert_eq!(add(&administered, b"TST/new", &[url(3)]).code, Code::SUCCESS);
    let mut storage = vec![];
    let indexes = Indexes::build([1], &mut storage);
    let remove = Request::RemoveValue(HandleIndexes { handle: b"TST/new", indexes });
    assert_eq!(as_admin(&administered, &remove).code, Code::SUCCESS);
    for _ in 0..2 {
        assert_eq!(resolve(&administered, b"tst/NEW").indexes, [2, 3]);
        administered.restart();
    }
    let delete = Request::DeleteHandle(HandleBody { handle: b"TST/new" });
    assert_eq!(as_admin(&administered, &delete).code, Code::SUCCESS);
    assert_eq!(resolve(&administered, b"TST/new").code, Code::HANDLE_NOT_FOUND);
    let audit = std::fs::read_to_string(administered.directory.path().join("audit.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> =
        audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let entries: Vec<_> =
        lines.iter().map(|line| (line["identity"].as_str().unwrap(), line["code"].clone())).collect();
    assert_eq!(entries, vec![("301:0.NA/TST", serde_json::Value::from(1)); 4]);
    assert!(!audit.contains("sesame"));
}

#[test]
fn an_answer_counts_once_and_for_its_request_alone() {
    let administered = root(|_| ());
    let address = administered.address();
    with_values(&[url(1)], |values| {
        let request = |handle| Request::CreateHandle(HandleValues { handle, values });
        let challenge = ask(address, CHANGE, &request(b"TST/once")).challenge.unwrap();
        let bytes = answer_bytes(challenge.id, ADMIN, auth::SECRET_KEY, &respond(&challenge, SECRET));
        assert_eq!(summarize(&exchange_over_tcp(address, &bytes).unwrap()).code, Code::SUCCESS);
        let again = summarize(&exchange_over_tcp(address, &bytes).unwrap());
        assert_eq!(again.code, Code::AUTHENTICATION_TIMEOUT, "replayed");
        // The answer to one challenge is no answer to another.
        let (one, two) = (
            ask(address, CHANGE, &request(b"TST/two")).challenge.unwrap(),
            ask(address, CHANGE, &request(b"TST/three")).challenge.unwrap(),
        );
        let crossed = answer_bytes(two.id, ADMIN, auth::SECRET_KEY, &respond(&one, SECRET));
        assert_eq!(
            summarize(&exchange_over_tcp(address, &crossed).unwrap()).code,
            Code::AUTHENTICATION_FAILED
        );
        let unknown = answer_bytes(one.id ^ 1, ADMIN, auth::SECRET_KEY, &respond(&one, SECRET));
        assert_eq!(summarize(&exchange_over_tcp(address, &unknown).unwrap()).code, Code::SESSION_TIMEOUT);
    });
    for handle in [&b"TST/two"[..], b"TST/three"] {
        assert_eq!(resolve(&administered, handle).code, Code::HANDLE_NOT_FOUND);
    }
}

#[test]
fn challenges_expire() {
    let administered = root(|config| config.limits.challenge_ms = 1);
    let request = Request::DeleteHandle(HandleBody { handle: b"TST/ITEM-001" });
    let challenge = ask(administered.address(), CHANGE, &request).challenge.unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let bytes = answer_bytes(challenge.id, ADMIN, auth::SECRET_KEY, &respond(&challenge, SECRET));
    let reply = summarize(&exchange_over_tcp(administered.address(), &bytes).unwrap());
    assert_eq!(reply.code, Code::AUTHENTICATION_TIMEOUT);
}

#[test]
fn only_administrators_learn_that_a_key_is_wrong_and_others_which_right_is_missing() {
    let administered = root(|_| ());
    let delete = Request::DeleteHandle(HandleBody { handle: b"TST/ITEM-001" });
    let delete_as = |identity, secret| ask_as(administered.address(), identity, secret, CHANGE, &delete);
    let wrong = delete_as(ADMIN, b"open sesame opem");
    assert_eq!(wrong.code, Code::AUTHENTICATION_FAILED);
    assert!(wrong.text.contains("301:0.NA/TST"), "{}", wrong.text);
    let nobody = Reference { handle: b"TST/ITEM-002", index: 300 };
    let refused = delete_as(nobody, SECRET);
    assert_eq!(refused.code, Code::INVALID_ADMIN);
    for part in ["300:TST/ITEM-002", "delete_handle", "TST/ITEM-001"] {
        assert!(refused.text.contains(part), "{}", refused.text);
    }
    assert_eq!(resolve(&administered, b"TST/ITEM-001").code, Code::SUCCESS);
}

#[test]
fn rounds_of_an_answer_are_bounded() {
    let administered = root(|config| config.limits.pbkdf2_iterations = 100);
    let delete = Request::DeleteHandle(HandleBody { handle: b"TST/ITEM-001" });
    for (iterations, code) in [
        (1_000_000_000, Code::AUTHENTICATION_FAILED),
        (101, Code::AUTHENTICATION_FAILED),
        (100, Code::SUCCESS),
    ] {
        let challenge = ask(administered.address(), CHANGE, &delete).challenge.unwrap();
        let covered: [&[u8]; 2] = [&challenge.nonce, &challenge.digest];
        // The key is derived with at most 100 rounds.
        let key = handle_auth::kdf::pbkdf2_sha1(SECRET, b"salt", iterations.min(100), 20);
        let algorithm = handle_proto::code::DigestAlgorithm::HMAC_SHA1;
        let mac = handle_auth::digest::mac(algorithm, &key, &covered).unwrap();
        let mut response = vec![];
        SecretAnswer::Pbkdf2 { salt: b"salt", iterations, key_bits: 160, mac: &mac }.encode(&mut response);
        let bytes = answer_bytes(challenge.id, ADMIN, auth::SECRET_KEY, &response);
        let reply = summarize(&exchange_over_tcp(administered.address(), &bytes).unwrap());
        assert_eq!(reply.code, code, "{iterations} rounds");
    }
}

#[test]
fn index_zero_of_a_public_key_is_the_index_of_the_key_that_fits() {
    let administered = root(|_| ());
    let keys = &fixture("servers.json")["keys"];
    let key = |id: &str| PrivateKey::from_record(&hex(&keys[id]["handle_private_hex"])).unwrap();
    let delete = |handle: &'static [u8], key: &PrivateKey, index: i32| {
        let request = Request::DeleteHandle(HandleBody { handle });
        let challenge = ask(administered.address(), CHANGE, &request).challenge.unwrap();
        let covered: [&[u8]; 2] = [&challenge.nonce, &challenge.digest];
        let response = answer_with_key(challenge.version, &covered, key).unwrap();
        let identity = Reference { handle: b"0.NA/TST", index };
        let bytes = answer_bytes(challenge.id, identity, auth::PUBLIC_KEY, &response);
        summarize(&exchange_over_tcp(administered.address(), &bytes).unwrap()).code
    };
    assert_ne!(delete(b"TST/ITEM-001", &key("mirror"), 0), Code::SUCCESS);
    assert_eq!(delete(b"TST/ITEM-001", &key("admin_rsa"), 0), Code::SUCCESS);
    assert_eq!(delete(b"TST/ITEM-002", &key("admin_rsa"), 300), Code::SUCCESS);
}

#[test]
fn records_keep_their_bounds_at_the_edge() {
    let administered = root(|config| {
        config.limits.record_bytes = 16_000;
    });
    let data = vec![b'x'; 16_000 - Value::LEN_MIN];
    assert_eq!(create(&administered, b"TST/big", &[Value::new(1, b"", &data)]).code, Code::SUCCESS);
    assert_eq!(create(&administered, b"TST/bigger", &[Value::new(1, b"x", &data)]).code, Code::INVALID_VALUE);
    assert_eq!(add(&administered, b"TST/big", &[url(2)]).code, Code::INVALID_VALUE);
    let name = |len: usize| [&b"TST/"[..], &vec![b'a'; len - 4]].concat();
    assert_eq!(create(&administered, &name(HANDLE_LEN_MAX), &[url(1)]).code, Code::SUCCESS);
    assert_eq!(create(&administered, &name(HANDLE_LEN_MAX + 1), &[url(1)]).code, Code::INVALID_HANDLE);
    let mut storage = vec![];
    let references = |count: usize, storage| {
        References::build(std::iter::repeat_n(Reference { handle: b"TST/a", index: 1 }, count), storage)
    };
    let most = Value { references: references(REFERENCES_COUNT_MAX, &mut storage), ..url(1) };
    assert_eq!(create(&administered, b"TST/most", &[most]).code, Code::SUCCESS);
    let mut storage = vec![];
    let more = Value { references: references(REFERENCES_COUNT_MAX + 1, &mut storage), ..url(1) };
    assert_eq!(create(&administered, b"TST/more", &[more]).code, Code::INVALID_VALUE);
    assert_eq!(create(&administered, b"TST/zero", &[url(0)]).code, Code::INVALID_VALUE);
    assert_eq!(create(&administered, b"TST/below", &[url(-1)]).code, Code::INVALID_VALUE);
    assert_eq!(create(&administered, b"TST/twice", &[url(1), url(1)]).code, Code::VALUE_ALREADY_EXISTS);
    assert_eq!(create(&administered, b"TST/\xff", &[url(1)]).code, Code::INVALID_HANDLE);
}

/// 2048 values are as many as clients can read.
#[test]
fn a_record_of_2048_values_can_be_read_and_2049_are_refused() {
    let administered = root(|_| ());
    let values: Vec<Value<'_>> = (1..=2049).map(|index| Value::new(index, b"", b"")).collect();
    assert_eq!(create(&administered, b"TST/2049", &values).code, Code::INVALID_VALUE);
    assert_eq!(create(&administered, b"TST/2048", &values[..2048]).code, Code::SUCCESS);
    assert_eq!(add(&administered, b"TST/2048", &[url(2049)]).code, Code::INVALID_VALUE, "one more");
    assert_eq!(resolve(&administered, b"TST/2048").indexes.len(), 2048);
}

#[test]
fn lookups_in_circular_and_very_large_groups_end() {
    let administered = root(|_| ());
    let group = |handle: &[u8], entries: &[(&[u8], i32)]| {
        let mut storage = vec![];
        let entries = entries.iter().map(|&(handle, index)| Reference { handle, index });
        let mut data = vec![];
        Vlist(References::build(entries, &mut storage)).encode(&mut data);
        let reply = create(&administered, handle, &[Value::new(1, b"HS_VLIST", &data)]);
        assert_eq!(reply.code, Code::SUCCESS, "{}", reply.text);
    };
    let owned = |handle: &[u8], owner: &[u8]| {
        let mut data = vec![];
        Admin::new(AdminPermissions::ALL, owner, 1).encode(&mut data);
        assert_eq!(create(&administered, handle, &[Value::new(100, b"HS_ADMIN", &data)]).code, Code::SUCCESS);
    };
    group(b"TST/circle", &[(b"TST/circle2", 1)]);
    group(b"TST/circle2", &[(b"TST/circle", 1)]);
    let names: Vec<Vec<u8>> = (0..10_000).map(|n| format!("TST/n{n}").into_bytes()).collect();
    group(b"TST/wide", &names.iter().map(|name| (name.as_slice(), 1)).collect::<Vec<_>>());
    owned(b"TST/round", b"TST/circle");
    owned(b"TST/broad", b"TST/wide");
    let stranger = Reference { handle: b"TST/stranger", index: 1 };
    let secret = Value { permissions: Permissions(0x0c), ..Value::new(1, b"HS_SECKEY", SECRET) };
    assert_eq!(create(&administered, b"TST/stranger", &[secret]).code, Code::SUCCESS);
    for (handle, mentions_groups) in [(&b"TST/round"[..], false), (b"TST/broad", true)] {
        let delete = Request::DeleteHandle(HandleBody { handle });
        let reply = ask_as(administered.address(), stranger, SECRET, CHANGE, &delete);
        assert_eq!(reply.code, Code::INVALID_ADMIN);
        assert_eq!(reply.text.contains("more groups"), mentions_groups, "{}", reply.text);
    }
}

#[test]
fn an_overwrite_without_change_needs_a_key_but_no_right() {
    let reader = Reference { index: 305, ..ADMIN };
    let reader_secret = b"read only admin";
    let administered = root(|_| ());
    assert_eq!(create(&administered, b"TST/same", &[url(1)]).code, Code::SUCCESS);
    let overwrite = CHANGE.with(OpFlags::OVERWRITE);
    let stranger = Reference { handle: b"TST/nobody", index: 1 };
    with_values(&[url(1)], |values| {
        let body = HandleValues { handle: b"TST/same", values };
        let (replace, add) = (Request::CreateHandle(body), Request::AddValue(body));
        // Whether a record is replaced by an equal one also depends on hidden values.
        for (identity, secret, code_of_replace, code_of_add) in [
            (stranger, SECRET, Code::INVALID_ADMIN, Code::AUTHENTICATION_FAILED),
            (ADMIN, &b"another secret"[..], Code::AUTHENTICATION_FAILED, Code::AUTHENTICATION_FAILED),
            (reader, b"another secret", Code::INVALID_ADMIN, Code::AUTHENTICATION_FAILED),
            (reader, reader_secret, Code::INVALID_ADMIN, Code::SUCCESS),
            (ADMIN, SECRET, Code::SUCCESS, Code::SUCCESS),
        ] {
            for (request, code) in [(&replace, code_of_replace), (&add, code_of_add)] {
                let reply = ask_as(administered.address(), identity, secret, overwrite, request);
                assert_eq!(reply.code, code, "{identity}: {}", reply.text);
            }
        }
    });
    // An overwrite with any change needs the right to change values.
    with_values(&[Value { data: b"other", ..url(1) }], |values| {
        let body = HandleValues { handle: b"TST/same", values };
        for request in [Request::CreateHandle(body), Request::AddValue(body)] {
            let reply = ask_as(administered.address(), reader, reader_secret, overwrite, &request);
            assert_eq!(reply.code, Code::INVALID_ADMIN, "{}", reply.text);
        }
    });
}

#[test]
fn values_with_public_write_are_changed_without_challenge_except_into_administrators() {
    let administered = root(|_| ());
    let open = Value { permissions: Permissions(0x0f), ..url(1) };
    assert_eq!(create(&administered, b"TST/open", &[open, url(2)]).code, Code::SUCCESS);
    let modify = |values: &[Value<'_>]| {
        with_values(values, |values| {
            let body = HandleValues { handle: b"TST/open", values };
            ask(administered.address(), CHANGE, &Request::ModifyValue(body)).code
        })
    };
    assert_eq!(modify(&[open]), Code::SUCCESS);
    assert_eq!(modify(&[url(2)]), Code::AUTHENTICATION_NEEDED);
    let mut data = vec![];
    Admin::new(AdminPermissions::ALL, b"TST/me", 1).encode(&mut data);
    assert_eq!(modify(&[Value::new(1, b"HS_ADMIN", &data)]), Code::AUTHENTICATION_NEEDED);
    assert_eq!(modify(&[Value::new(1, b"HS_ADMIN.x", &data)]), Code::AUTHENTICATION_NEEDED);
}

#[test]
fn connections_are_bounded_and_kept_open_on_request() {
    let administered = root(|config| {
        config.tcp.connections = 2;
        config.tcp.connections_per_source = 2;
        config.tcp.read_ms = 50;
    });
    let address = administered.address();
    let request = |flags| {
        let query = Query { handle: b"TST/ITEM-001", indexes: Indexes::EMPTY, types: Strings::EMPTY };
        message(Envelope::request(1), flags, &Request::Resolution(query))
    };
    let receive = |stream: &mut TcpStream| {
        let mut bytes = vec![0; Envelope::LEN];
        stream.read_exact(&mut bytes).unwrap();
        let len = Envelope::split(&bytes).unwrap().0.message_len as usize;
        bytes.resize(Envelope::LEN + len, 0);
        stream.read_exact(&mut bytes[Envelope::LEN..]).unwrap();
        summarize(&bytes).code
    };
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    };
    let (mut one, mut two) = (connect(), connect());
    for _ in 0..3 {
        one.write_all(&request(OpFlags::PLAIN_REQUEST.with(OpFlags::KEEP_CONNECTION))).unwrap();
        assert_eq!(receive(&mut one), Code::SUCCESS);
    }
    let cut = request(OpFlags::PLAIN_REQUEST);
    two.write_all(&cut[..30]).unwrap();
    let mut three = connect();
    assert_eq!(three.read(&mut [0; 1]).unwrap_or(0), 0, "a third connection is refused");
    assert_eq!(receive(&mut two), Code::PROTOCOL_ERROR, "a partial request times out");
    assert_eq!(two.read(&mut [0; 1]).unwrap(), 0);
    one.write_all(&request(OpFlags::PLAIN_REQUEST)).unwrap();
    assert_eq!(receive(&mut one), Code::SUCCESS);
    assert_eq!(one.read(&mut [0; 1]).unwrap(), 0, "closed without the flag for keeping it");
    drop((one, two));
    // The connections are free once the server has noticed their end.
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while administered.server().shared().connections.count() > 0 {
        assert!(std::time::Instant::now() < deadline, "connections are still counted");
        std::thread::sleep(Duration::from_millis(5));
    }
    let most = MESSAGE_LEN_MAX as usize;
    for (len, code) in [(most, Code::SUCCESS), (most + 1, Code::ERROR)] {
        let mut padded = request(OpFlags::PLAIN_REQUEST);
        padded.resize(Envelope::LEN + len, 0);
        padded[16..20].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
        let mut stream = connect();
        stream.write_all(&padded).unwrap();
        assert_eq!(receive(&mut stream), code, "{len} bytes");
        drop(stream);
        while administered.server().shared().connections.count() > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn many_create_at_once_and_share_commits() {
    const CLIENTS: usize = 8;
    const EACH: usize = 10;
    let administered = administer_with("wide_open", |_| ());
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let administered = &administered;
            scope.spawn(move || {
                for n in 0..EACH {
                    let handle = format!("TST/many-{client}-{n}").into_bytes();
                    with_values(&[url(1)], |values| {
                        let request = Request::CreateHandle(HandleValues { handle: &handle, values });
                        assert_eq!(ask(administered.address(), CHANGE, &request).code, Code::SUCCESS);
                    });
                    // Of concurrent creations of one handle, all but one are refused.
                    with_values(&[url(1)], |values| {
                        let request = Request::CreateHandle(HandleValues { handle: b"TST/the-one", values });
                        let code = ask(administered.address(), CHANGE, &request).code;
                        assert!([Code::SUCCESS, Code::HANDLE_ALREADY_EXISTS].contains(&code), "{code:?}");
                    });
                }
            });
        }
    });
    let store = &administered.server().shared().service.store;
    let log = store.snapshot().unwrap();
    let created = log.log_after(log.log_base().unwrap()).unwrap().count();
    assert_eq!(created, CLIENTS * EACH + 1, "the shared handle is created once");
    let mut findings = vec![];
    store.check(|finding| findings.extend(finding.is_damage().then_some(finding))).unwrap();
    assert_eq!(findings, vec![]);
}

#[test]
fn metrics_and_health_are_served_over_http() {
    let administered = root(|config| config.observe.http = Some(([127, 0, 0, 1], 0).into()));
    let get = |path: &str| http::get(administered.server().http_address().unwrap(), path).unwrap();
    assert_eq!(resolve(&administered, b"TST/ITEM-001").code, Code::SUCCESS);
    assert_eq!(get("/healthz").status, 200);
    let before = administered.server().shared().service.store.commits().commits;
    assert!(get("/readyz").body.contains("written and read back"));
    assert!(
        administered.server().shared().service.store.commits().commits > before,
        "the check writes to the store"
    );
    assert_eq!(get("/").status, 404);
    let metrics = get("/metrics").body;
    assert!(
        metrics.contains("handle_admin_requests_total{operation=\"resolution\",code=\"1\"} 1"),
        "{metrics}"
    );
}

#[test]
fn a_second_process_cannot_open_the_store_and_the_control_socket_shows_its_state() {
    let administered = root(|config| config.control = Some(config.store.file.with_file_name("control.sock")));
    let error = handle_admin::server::Server::start(&Config { control: None, ..administered.config.clone() });
    assert!(format!("{:#}", error.unwrap_err()).contains("another process"));
    let path = administered.config.control.as_ref().unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    stream.write_all(b"status\nstats\nnonsense\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["health"]["ok"], true, "{text}");
    assert!(lines[0]["store"]["content"]["records"].as_u64().unwrap() > 0);
    assert_eq!(lines[1]["bugs"], 0);
    assert!(lines[2]["error"].as_str().unwrap().contains("status, stats"));
}

#[test]
fn the_program_reports_errors_serves_and_stops_on_a_signal() {
    // A stopped server leaves a directory with everything that the program needs.
    let mut administered = root(|_| ());
    administered.stop();
    let (mut config, directory) = (administered.config.clone(), &administered.directory);
    let path = directory.path().join("handle-admin.toml");
    let address = free_address();
    config.listen = vec![address];
    let control = directory.path().join("control.sock");
    config.control = Some(control.clone());
    config.allow_root = true;
    std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.arg("--config").arg(&path).args(arguments);
        command
    };
    assert!(succeed(command(&["--check-config"])).contains("configuration is good"));
    assert!(succeed(command(&["--print-config"])).contains("challenges = 65536"));
    let (code, text) = fail(command(&["--check-config", "--store", "/nowhere/store"]));
    assert!(code == 2 && text.contains("/nowhere/store") && text.contains("hdl store create"), "{text}");
    let no_root = directory.path().join("no-root.toml");
    let mut wrong = config.clone();
    wrong.remote.enabled = true;
    wrong.remote.root = Some("nowhere.json".into());
    std::fs::write(&no_root, toml::to_string(&wrong).unwrap()).unwrap();
    let mut check = Command::new(program("handle-admin", "handle-admin"));
    check.arg("--config").arg(&no_root).arg("--check-config");
    let (code, text) = fail(check);
    assert!(code == 2 && text.contains("nowhere.json"), "{text}");
    for log in ["handle_admin=loud", "loud"] {
        let (code, text) = fail(command(&["--log", log]));
        assert!(code == 2 && text.contains("`log`"), "{text}");
    }
    let (code, text) = fail(command(&["--check-config", "--user", "nobody-of-that-name"]));
    assert!(code == 2 && text.contains("has no \"nobody-of-that-name\""), "{text}");
    let mut running = RunningProcess::start(command(&[]));
    // Between `bind` and `listen`, the file of the socket exists and refuses connections.
    until("the server answers", || {
        TcpStream::connect(address).is_ok() && !ask_control(&control, "status").is_null()
    });
    assert_eq!(ask_control(&control, "status")["health"]["ok"], true);
    let query = Query { handle: b"TST/ITEM-001", indexes: Indexes::EMPTY, types: Strings::EMPTY };
    assert_eq!(ask(address, OpFlags::PLAIN_REQUEST, &Request::Resolution(query)).code, Code::SUCCESS);
    running.signal("TERM");
    assert_eq!(running.wait(), Some(0));
    assert!(!control.exists(), "the process removes its socket");
}

#[test]
fn strangers_learn_nothing_of_values_after_the_first_that_needs_a_right() {
    let administered = root(|_| ());
    let public_write = Permissions(Permissions::DEFAULT.0 | Permissions::PUBLIC_WRITE.0);
    let values = [
        url(1),
        Value { permissions: Permissions(Permissions::DEFAULT.0 & !Permissions::ADMIN_WRITE.0), ..url(2) },
        Value { permissions: public_write, ..url(3) },
    ];
    let mut admin_value = Vec::new();
    Admin::new(AdminPermissions::ALL, ADMIN.handle, ADMIN.index).encode(&mut admin_value);
    let all = [&values[..], &[Value::new(100, b"HS_ADMIN", &admin_value)]].concat();
    assert_eq!(create(&administered, b"TST/order", &all).code, Code::SUCCESS);
    let address = administered.address();
    for (indexes, stranger_code, admin_code) in [
        (&[1, 9][..], Code::AUTHENTICATION_NEEDED, Code::VALUES_NOT_FOUND),
        (&[9, 1], Code::AUTHENTICATION_NEEDED, Code::VALUES_NOT_FOUND),
        (&[3, 9], Code::AUTHENTICATION_NEEDED, Code::VALUES_NOT_FOUND),
        (&[1, 2], Code::AUTHENTICATION_NEEDED, Code::INSUFFICIENT_PERMISSIONS),
        (&[2, 1], Code::INSUFFICIENT_PERMISSIONS, Code::INSUFFICIENT_PERMISSIONS),
        (&[3, 2, 1], Code::INSUFFICIENT_PERMISSIONS, Code::INSUFFICIENT_PERMISSIONS),
        (&[3], Code::SUCCESS, Code::SUCCESS),
        (&[3, 1], Code::AUTHENTICATION_NEEDED, Code::SUCCESS),
    ] {
        let values: Vec<Value<'_>> =
            indexes.iter().map(|&index| Value { permissions: public_write, ..url(index) }).collect();
        with_values(&values, |values| {
            let request = Request::ModifyValue(HandleValues { handle: b"TST/order", values });
            assert_eq!(ask(address, CHANGE, &request).code, stranger_code, "{indexes:?} by a stranger");
        });
        let values: Vec<Value<'_>> = indexes
            .iter()
            .map(|&index| match index {
                3 => Value { permissions: public_write, ..url(3) },
                index => url(index),
            })
            .collect();
        with_values(&values, |values| {
            let request = Request::ModifyValue(HandleValues { handle: b"TST/order", values });
            assert_eq!(as_admin(&administered, &request).code, admin_code, "{indexes:?} by an administrator");
        });
    }
}

#[test]
fn administrators_get_another_code_for_unreadable_answers_than_for_wrong_ones() {
    let administered = root(|_| ());
    let delete = Request::DeleteHandle(HandleBody { handle: b"TST/ITEM-001" });
    let nobody = Reference { handle: b"TST/ITEM-002", index: 300 };
    let key = Reference { index: 300, ..ADMIN };
    for (identity, kind, answer, code) in [
        (ADMIN, auth::SECRET_KEY, &b""[..], Code::AUTHENTICATION_ERROR),
        (ADMIN, auth::SECRET_KEY, b"\x77a form that nobody knows", Code::AUTHENTICATION_ERROR),
        (ADMIN, auth::SECRET_KEY, b"\x22\0\0\0\x04", Code::AUTHENTICATION_ERROR),
        (ADMIN, auth::SECRET_KEY, b"\x02wrong", Code::AUTHENTICATION_FAILED),
        (key, auth::PUBLIC_KEY, b"\0\0", Code::AUTHENTICATION_ERROR),
        (key, auth::PUBLIC_KEY, b"\0\0\0\x04SHA1\0\0\0\x05wrong", Code::AUTHENTICATION_FAILED),
        (nobody, auth::SECRET_KEY, b"", Code::INVALID_ADMIN),
        (Reference { index: 999, ..ADMIN }, auth::SECRET_KEY, b"", Code::INVALID_ADMIN),
    ] {
        let challenge = ask(administered.address(), CHANGE, &delete).challenge.unwrap();
        let bytes = answer_bytes(challenge.id, identity, kind, answer);
        let reply = summarize(&exchange_over_tcp(administered.address(), &bytes).unwrap());
        assert_eq!(reply.code, code, "{identity} {answer:?}: {}", reply.text);
    }
}
