//! Attacks on administration: guessing hidden values, filling the audit log, and names with control
//! characters.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_admin::config::Config;
use handle_auth::challenge::answer_with_secret;
use handle_auth::random;
use handle_proto::data::{Admin, AdminPermissions};
use handle_proto::wire::admin::{HandleBody, HandleIndexes, HandleValues};
use handle_proto::wire::auth::{self, ChallengeAnswer};
use handle_proto::wire::list::{Indexes, Reference};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
use handle_proto::{OpCode, OpFlags, Permissions, ResponseCode as Code, Value, Values};
use handle_tests::admin_server::{AdminServer, administer_with};
use handle_tests::client::exchange_over_tcp;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// An administrator of the server.
const ADMIN: Reference<'_> = Reference { handle: b"0.NA/TST", index: 301 };
const SECRET: &[u8] = b"open sesame open";
/// An identity with a key and without rights.
const SPY: Reference<'_> = Reference { handle: b"TST/hostile-spy", index: 1 };
/// An identity that may only add values to the target record.
const ADDER: Reference<'_> = Reference { handle: b"TST/hostile-spy", index: 2 };
/// An identity that may only read the target record.
const READER: Reference<'_> = Reference { handle: b"TST/hostile-spy", index: 3 };
const TARGET: &[u8] = b"TST/hostile-target";
const CHANGE: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 & !OpFlags::PUBLIC_ONLY.0);
const OVERWRITE: OpFlags = OpFlags(CHANGE.0 | OpFlags::OVERWRITE.0);

fn value<'v>(index: i32, kind: &'v [u8], data: &'v [u8], permissions: u8) -> Value<'v> {
    Value { permissions: Permissions(permissions), ..Value::new(index, kind, data) }
}

fn open(index: i32, data: &[u8]) -> Value<'_> {
    value(index, b"DESC", data, 0x0e)
}

fn hidden(index: i32, data: &[u8]) -> Value<'_> {
    value(index, b"DESC", data, 0x0c)
}

/// A request, with its values or indexes in encoded form.
#[derive(Clone, Debug)]
struct Operation {
    op_code: OpCode,
    flags: OpFlags,
    handle: Vec<u8>,
    count: usize,
    buffer: Vec<u8>,
}

impl Operation {
    fn with_values(op_code: OpCode, flags: OpFlags, handle: &[u8], values: &[Value<'_>]) -> Self {
        let mut buffer = Vec::new();
        values.iter().for_each(|value| value.encode(&mut buffer));
        Self { op_code, flags, handle: handle.to_vec(), count: values.len(), buffer }
    }

    fn remove(handle: &[u8], indexes: &[i32]) -> Self {
        let buffer = indexes.iter().flat_map(|index| index.to_be_bytes()).collect();
        let op_code = OpCode::REMOVE_VALUE;
        Self { op_code, flags: CHANGE, handle: handle.to_vec(), count: indexes.len(), buffer }
    }

    fn delete(handle: &[u8]) -> Self {
        let op_code = OpCode::DELETE_HANDLE;
        Self { op_code, flags: OVERWRITE, handle: handle.to_vec(), count: 0, buffer: Vec::new() }
    }

    fn message(&self) -> Vec<u8> {
        let handle = self.handle.as_slice();
        let mut storage = Vec::new();
        let body =
            || HandleValues { handle, values: Values::from_encoded(self.count, &self.buffer).unwrap() };
        let request = match self.op_code {
            OpCode::CREATE_HANDLE => Request::CreateHandle(body()),
            OpCode::ADD_VALUE => Request::AddValue(body()),
            OpCode::MODIFY_VALUE => Request::ModifyValue(body()),
            OpCode::REMOVE_VALUE => {
                let indexes =
                    self.buffer.chunks_exact(4).map(|index| i32::from_be_bytes(index.try_into().unwrap()));
                let indexes = Indexes::build(indexes, &mut storage);
                Request::RemoveValue(HandleIndexes { handle, indexes })
            }
            _ => Request::DeleteHandle(HandleBody { handle }),
        };
        let header = Header::request(OpCode::RESERVED, self.flags, 0);
        MessageBuf::request(&Envelope::request(1), &header, &request).unsigned().unwrap()
    }
}

/// An answer as an attacker sees it.
#[derive(Clone, Debug)]
struct Reply {
    code: Code,
    flags: OpFlags,
    text: String,
    /// The whole answer with the expiration and the session number cleared.
    bytes: Vec<u8>,
    /// Session number, nonce and request digest.
    challenge: Option<(i32, Vec<u8>, Vec<u8>)>,
}

fn decode_reply(answer: &[u8]) -> Reply {
    let (envelope, rest) = Envelope::split(answer).unwrap();
    let message = Message::decode(rest).unwrap();
    let flags = message.header.flags;
    let Body::Reply(reply) = message.decode_body(envelope.version).unwrap() else { panic!("a reply") };
    let mut bytes = answer.to_vec();
    bytes[4..8].fill(0);
    bytes[36..40].fill(0);
    let (mut text, mut challenge) = (String::new(), None);
    match reply.response {
        Response::Challenge(body) => {
            let digest = reply.digest.unwrap().digest.to_vec();
            // The nonce and the digest of the request follow.
            bytes.truncate(44);
            challenge = Some((envelope.session_id, body.nonce.to_vec(), digest));
        }
        Response::Failure(failure) => text = String::from_utf8(failure.message.to_vec()).unwrap(),
        _ => {}
    }
    Reply { code: reply.code, flags, text, bytes, challenge }
}

fn ask(address: SocketAddr, operation: &Operation) -> Reply {
    decode_reply(&exchange_over_tcp(address, &operation.message()).expect("an answer"))
}

/// Sends a request and answers the challenge as `identity`.
fn ask_as(address: SocketAddr, operation: &Operation, identity: Reference<'_>, secret: &[u8]) -> Reply {
    let first = ask(address, operation);
    let Some((id, nonce, digest)) = &first.challenge else { return first };
    let version = handle_proto::Version::CURRENT;
    let signed_response = &answer_with_secret(version, version, &[nonce, digest], secret, &random());
    let body = ChallengeAnswer { auth_type: auth::SECRET_KEY, identity, signed_response };
    let envelope = Envelope { session_id: *id, ..Envelope::request(2) };
    let header = Header::request(OpCode::RESERVED, CHANGE, 0);
    let answer = MessageBuf::request(&envelope, &header, &Request::AnswerChallenge(body)).unsigned().unwrap();
    decode_reply(&exchange_over_tcp(address, &answer).expect("an answer"))
}

fn change_as_admin(administered: &AdminServer, operation: &Operation) -> Reply {
    let reply = ask_as(administered.address(), operation, ADMIN, SECRET);
    assert_eq!(reply.code, Code::SUCCESS, "{}", reply.text);
    reply
}

/// A server with a record that has hidden values, and with the identities of attackers.
fn server(change: impl FnOnce(&mut Config)) -> AdminServer {
    let administered = administer_with("root", |config| {
        config.administrators.server = vec!["301:0.NA/TST".to_owned()];
        change(config);
    });
    let secrets = [
        value(1, b"HS_SECKEY", b"spy", 0x0c),
        value(2, b"HS_SECKEY", b"adder", 0x0c),
        value(3, b"HS_SECKEY", b"reader", 0x0c),
    ];
    change_as_admin(
        &administered,
        &Operation::with_values(OpCode::CREATE_HANDLE, CHANGE, b"TST/hostile-spy", &secrets),
    );
    change_as_admin(
        &administered,
        &Operation::with_values(OpCode::CREATE_HANDLE, CHANGE, TARGET, &target(b"right")),
    );
    administered
}

static ADMIN_VALUES: std::sync::LazyLock<[Vec<u8>; 2]> = std::sync::LazyLock::new(|| {
    let admin = |bits, index| {
        let mut buffer = Vec::new();
        Admin::new(bits, b"TST/hostile-spy", index).encode(&mut buffer);
        buffer
    };
    [admin(AdminPermissions::ADD_VALUE, 2), admin(AdminPermissions::READ_VALUE, 3)]
});

/// The target record: 3 and 7 are hidden, and 7 is read-only.
fn target(guess: &[u8]) -> [Value<'_>; 5] {
    [
        open(1, b"open"),
        hidden(3, guess),
        value(7, b"DESC", b"nobody changes this", 0x08),
        value(101, b"HS_ADMIN", &ADMIN_VALUES[0], 0x0e),
        value(102, b"HS_ADMIN", &ADMIN_VALUES[1], 0x0e),
    ]
}

/// Groups of requests whose answers must be equal for an attacker. Index 4 does not exist.
fn guesses() -> Vec<(&'static str, Vec<Operation>)> {
    let one = |op_code, flags, value: Value<'_>| Operation::with_values(op_code, flags, TARGET, &[value]);
    let whole =
        |values: &[Value<'_>]| Operation::with_values(OpCode::CREATE_HANDLE, OVERWRITE, TARGET, values);
    let (right, wrong) = (target(b"right"), target(b"wrong"));
    let mut other_index = right;
    other_index[1].index = 4;
    let open_ones = [right[0], right[3], right[4]];
    let modify = |value| one(OpCode::MODIFY_VALUE, CHANGE, value);
    let add = |flags, value| one(OpCode::ADD_VALUE, flags, value);
    vec![
        ("modify", vec![modify(hidden(3, b"x")), modify(hidden(4, b"x")), modify(hidden(7, b"x"))]),
        ("remove", [3, 4, 7].map(|index| Operation::remove(TARGET, &[1, index])).to_vec()),
        ("add", vec![add(CHANGE, hidden(3, b"x")), add(CHANGE, hidden(4, b"x")), add(CHANGE, right[1])]),
        ("overwrite", vec![add(OVERWRITE, right[1]), add(OVERWRITE, wrong[1]), add(OVERWRITE, right[2])]),
        ("overwrite or add", vec![add(OVERWRITE, right[1]), add(OVERWRITE, other_index[1])]),
        ("replace", vec![whole(&right), whole(&wrong), whole(&other_index)]),
    ]
    .into_iter()
    .chain([("replace by the open values", vec![whole(&open_ones), whole(&open_ones)])])
    .collect()
}

#[test]
fn guesses_of_hidden_values_and_indexes_are_answered_alike() {
    // Claimed identity, and the secret used for its authentication.
    type Claim<'c> = Option<(Reference<'c>, &'c [u8])>;
    let attackers: [(&str, Claim<'_>); 6] = [
        ("no identity", None),
        ("an administrator, with a wrong key", Some((ADMIN, b"wrong"))),
        ("an identity that does not exist", Some((Reference { handle: b"TST/none", index: 1 }, b"x"))),
        ("an identity without rights", Some((SPY, b"spy"))),
        ("an identity that may add, with a wrong key", Some((ADDER, b"wrong"))),
        ("an identity that may read, with a wrong key", Some((READER, b"wrong"))),
    ];
    for (attacker, identity) in attackers {
        // A server for each, because the wrong keys that it answers a source are limited.
        let administered = server(|_| ());
        let address = administered.address();
        for (kind, operations) in guesses() {
            let answers: Vec<Reply> = operations
                .iter()
                .map(|operation| match identity {
                    None => ask(address, operation),
                    Some((identity, secret)) => ask_as(address, operation, identity, secret),
                })
                .collect();
            assert_ne!(answers[0].code, Code::SUCCESS, "{attacker}: {kind}");
            assert_ne!(answers[0].code, Code::SERVER_BUSY, "{attacker}: {kind}: too many wrong keys");
            let different: BTreeSet<&[u8]> = answers.iter().map(|reply| &*reply.bytes).collect();
            let replies: Vec<_> = answers.iter().map(|reply| (reply.code, &reply.text)).collect();
            assert_eq!(different.len(), 1, "{attacker}: {kind}: {replies:?}");
        }
    }
    // Answers do not show whether a record has hidden values.
    let administered = server(|_| ());
    let address = administered.address();
    let plain = [open(1, b"open")];
    change_as_admin(
        &administered,
        &Operation::with_values(OpCode::CREATE_HANDLE, CHANGE, b"TST/hostile-p1", &plain),
    );
    change_as_admin(
        &administered,
        &Operation::with_values(OpCode::CREATE_HANDLE, CHANGE, b"TST/hostile-h1", &plain),
    );
    change_as_admin(
        &administered,
        &Operation::with_values(OpCode::ADD_VALUE, CHANGE, b"TST/hostile-h1", &[hidden(2, b"x")]),
    );
    let [one, other] = [&b"TST/hostile-p1"[..], b"TST/hostile-h1"].map(|handle| {
        let replace = Operation::with_values(OpCode::CREATE_HANDLE, OVERWRITE, handle, &plain);
        let reply = ask_as(address, &replace, SPY, b"spy");
        (reply.code, reply.text.replace("HOSTILE-P1", "HOSTILE-H1"))
    });
    assert_eq!(one, other);
    assert_eq!(one.0, Code::INVALID_ADMIN);
}

#[test]
fn identities_with_rights_to_hidden_values_learn_about_them() {
    let administered = server(|_| ());
    let address = administered.address();
    let add = |flags, value: Value<'_>| Operation::with_values(OpCode::ADD_VALUE, flags, TARGET, &[value]);
    let modify = |value: Value<'_>| Operation::with_values(OpCode::MODIFY_VALUE, CHANGE, TARGET, &[value]);
    let (right, wrong) = (hidden(3, b"right"), hidden(3, b"wrong"));
    for (operation, code) in [
        (Operation::remove(TARGET, &[4]), Code::VALUES_NOT_FOUND),
        (modify(hidden(4, b"x")), Code::VALUES_NOT_FOUND),
        (modify(hidden(7, b"x")), Code::INSUFFICIENT_PERMISSIONS),
        (add(CHANGE, right), Code::VALUE_ALREADY_EXISTS),
        (add(OVERWRITE, right), Code::SUCCESS),
    ] {
        assert_eq!(ask_as(address, &operation, ADMIN, SECRET).code, code, "{operation:?}");
    }
    // An identity that may add learns that an index is used, but not its value.
    assert_eq!(ask_as(address, &add(CHANGE, right), ADDER, b"adder").code, Code::VALUE_ALREADY_EXISTS);
    let [one, other] = [right, wrong].map(|guess| ask_as(address, &add(OVERWRITE, guess), ADDER, b"adder"));
    assert_eq!((one.code, one.bytes), (Code::INVALID_ADMIN, other.bytes), "{}", other.text);
    // An identity that may read knows the value, so an overwrite without change needs no other
    // right.
    assert_eq!(ask_as(address, &add(OVERWRITE, right), READER, b"reader").code, Code::SUCCESS);
    assert_eq!(ask_as(address, &add(OVERWRITE, wrong), READER, b"reader").code, Code::INVALID_ADMIN);
    assert_eq!(ask_as(address, &add(CHANGE, hidden(4, b"new")), ADDER, b"adder").code, Code::SUCCESS);
}

/// The results are those of the reference, version 9.3.1, with the flag OVERWRITE in each request.
#[test]
fn answers_have_the_overwrite_flag_only_if_values_were_replaced() {
    let administered = server(|_| ());
    let handle = b"TST/flags";
    let operation =
        |op_code, values: &[Value<'_>]| Operation::with_values(op_code, OVERWRITE, handle, values);
    let remove = Operation { flags: OVERWRITE, ..Operation::remove(handle, &[2, 3, 4]) };
    for (case, operation, replaced) in [
        ("a new handle", operation(OpCode::CREATE_HANDLE, &[open(1, b"a")]), false),
        ("the same again", operation(OpCode::CREATE_HANDLE, &[open(1, b"a")]), true),
        ("another record", operation(OpCode::CREATE_HANDLE, &[open(1, b"b")]), true),
        ("a new value", operation(OpCode::ADD_VALUE, &[open(2, b"a")]), false),
        ("the same value", operation(OpCode::ADD_VALUE, &[open(2, b"a")]), true),
        ("another value", operation(OpCode::ADD_VALUE, &[open(2, b"b")]), true),
        ("a new one and another", operation(OpCode::ADD_VALUE, &[open(3, b"a"), open(2, b"c")]), true),
        ("two new ones", operation(OpCode::ADD_VALUE, &[open(4, b"a"), open(5, b"c")]), false),
        ("a modified one", operation(OpCode::MODIFY_VALUE, &[open(2, b"d")]), false),
        ("removed ones", remove, false),
        ("a deleted handle", Operation::delete(handle), false),
    ] {
        assert_eq!(
            change_as_admin(&administered, &operation).flags.has(OpFlags::OVERWRITE),
            replaced,
            "{case}"
        );
    }
    let refused = operation(OpCode::ADD_VALUE, &[open(2, b"a")]);
    let reply = ask_as(administered.address(), &refused, ADMIN, SECRET);
    assert_eq!((reply.code, reply.flags.has(OpFlags::OVERWRITE)), (Code::HANDLE_NOT_FOUND, false));
}

#[test]
fn names_with_control_characters_are_created_only_where_the_setting_allows() {
    let names = [
        "TST/line\nbreak",
        "TST/escape\u{1b}[2J",
        "TST/delete\u{7f}",
        "TST/c1\u{9b}2J",
        "TST/bidi\u{202e}gpj.exe",
        "TST/isolate\u{2066}",
        "TST/line\u{2028}separator",
    ];
    let refusing = server(|_| ());
    let allowing = server(|config| config.allow_control_characters = true);
    for name in names {
        let create = Operation::with_values(OpCode::CREATE_HANDLE, CHANGE, name.as_bytes(), &[open(1, b"a")]);
        let reply = ask_as(refusing.address(), &create, ADMIN, SECRET);
        assert_eq!(reply.code, Code::INVALID_HANDLE, "{name:?}");
        assert!(reply.text.contains("control character"), "{}", reply.text);
        change_as_admin(&allowing, &create);
        change_as_admin(&allowing, &Operation::delete(name.as_bytes()));
    }
    for name in ["TST/plain ~ name", "TST/ünïcödé", "TST/名前"] {
        change_as_admin(
            &refusing,
            &Operation::with_values(OpCode::CREATE_HANDLE, CHANGE, name.as_bytes(), &[]),
        );
    }
}

/// The lines of the audit log as JSON.
fn audit(administered: &AdminServer) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(administered.directory.path().join("audit.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn requests_without_effect_or_identity_cannot_fill_the_audit_log() {
    let mut administered = server(|config| {
        // A fifth of them is for one source.
        config.limits.audit_refusals_per_s = 25;
    });
    let address = administered.address();
    let before = audit(&administered).len();
    for operation in [
        Operation::with_values(OpCode::MODIFY_VALUE, CHANGE, TARGET, &[]),
        Operation::remove(TARGET, &[]),
        Operation::with_values(OpCode::ADD_VALUE, OVERWRITE, TARGET, &[open(1, b"open")]),
        Operation::with_values(OpCode::CREATE_HANDLE, OVERWRITE, TARGET, &target(b"right")),
    ] {
        assert_eq!(ask(address, &operation).code, Code::AUTHENTICATION_NEEDED, "{operation:?}");
    }
    assert_eq!(audit(&administered).len(), before, "requests without effect are not logged");
    let empty = Operation::with_values(OpCode::MODIFY_VALUE, CHANGE, TARGET, &[]);
    assert_eq!(ask_as(address, &empty, SPY, b"spy").code, Code::INVALID_ADMIN);
    change_as_admin(&administered, &empty);

    // Changes of values with public write are logged up to the limit as well.
    let everybody = value(9, b"DESC", b"0", 0x0f);
    change_as_admin(&administered, &Operation::with_values(OpCode::ADD_VALUE, CHANGE, TARGET, &[everybody]));
    let before = audit(&administered).len();
    const COUNT: usize = 200;
    let anonymous = Operation::with_values(OpCode::MODIFY_VALUE, CHANGE, TARGET, &[everybody]);
    let unchanged = Operation::with_values(OpCode::ADD_VALUE, OVERWRITE, TARGET, &[open(1, b"open")]);
    let begun = std::time::Instant::now();
    for _ in 0..COUNT {
        assert_eq!(ask(address, &anonymous).code, Code::SUCCESS);
    }
    for _ in 0..20 {
        assert_eq!(ask_as(address, &unchanged, SPY, b"spy").code, Code::SUCCESS);
    }
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap() + 2;
    administered.stop();
    let lines = audit(&administered).split_off(before);
    let (summaries, lines): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| line.get("left_out").is_some());
    assert!(lines.len() <= 5 * seconds, "{} lines in {seconds} seconds", lines.len());
    let left_out: u64 = summaries.iter().map(|summary| summary["left_out"].as_u64().unwrap()).sum();
    assert_eq!(lines.len() + usize::try_from(left_out).unwrap(), COUNT + 20, "written or counted");
    assert!(summaries.iter().any(|summary| summary["anonymous"].as_u64() > Some(0)), "{summaries:?}");
}

#[test]
fn the_audit_log_is_rotated_at_its_maximum_size() {
    let administered = server(|config| {
        config.limits.audit_file_bytes = 64 << 10;
    });
    let add = Operation::with_values(OpCode::ADD_VALUE, OVERWRITE, TARGET, &[open(1, b"x")]);
    let handle = vec![b'x'; 1900];
    let path = |name: &str| administered.directory.path().join(name);
    let long = [b"TST/", &*handle].concat();
    for count in 0..140 {
        let text = count.to_string();
        let values = [open(1, text.as_bytes())];
        change_as_admin(
            &administered,
            &Operation::with_values(OpCode::CREATE_HANDLE, OVERWRITE, &long, &values),
        );
    }
    for name in ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"] {
        let text = std::fs::read_to_string(path(name)).unwrap();
        assert!(text.len() <= 64 << 10, "{name}: {}", text.len());
        assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{name}");
    }
    change_as_admin(&administered, &add);
}
