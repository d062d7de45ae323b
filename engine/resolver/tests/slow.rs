//! Tests of requests that need a signature or an identity, over a small set of records.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::data::admin::{Admin, AdminPermissions};
use handle_proto::data::vlist::Vlist;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::auth::ChallengeAnswer;
use handle_proto::wire::list::{Indexes, Reference, References, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::session::{KeyExchange, SessionSetup};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
use handle_proto::{OpCode, OpFlags, Permissions, ResponseCode, Value, ValueBuf, Version};
use handle_resolver::authority::{AuthorityOutcome, ServerAdministrators, entitles};
use handle_resolver::batch::Scratch;
use handle_resolver::slow::{FirstEvaluation, SlowReason, keys};
use handle_resolver::{
    AnswerContext, AnswerOutcome, InBatch, MayCompute, NotLocal, RefusalReason, ReplyParts, ServiceFacts,
    SlowPathRequest, WireReply as _, answer, answer_batch, answer_message, refuse_listing,
};
use handle_snapshot::builder::Builder;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_snapshot::{Layer, RecordSet};
use std::io::Cursor;

const NOW: u32 = 1_700_000_000;
const PRIVATE: Permissions = Permissions(0x0c);
const UNREADABLE: Permissions = Permissions(0x04);
const PUBLIC: Permissions = Permissions::DEFAULT;
const READ: AdminPermissions = AdminPermissions::READ_VALUE;
const SERVICE: ServiceFacts<'static> =
    ServiceFacts { signs: true, authenticates: true, ..ServiceFacts::ALONE };

/// The records of a test: handles and their values.
#[derive(Default)]
struct TestSet(Vec<(String, Vec<ValueBuf>)>);

impl TestSet {
    fn handle(mut self, handle: &str) -> Self {
        self.0.push((handle.to_owned(), vec![]));
        self
    }

    fn value(mut self, index: i32, kind: &str, data: &[u8], permissions: Permissions) -> Self {
        let value = Value { permissions, ..Value::new(index, kind.as_bytes(), data) };
        self.0.last_mut().unwrap().1.push(ValueBuf::from(&value));
        self
    }

    fn admin(self, index: i32, permissions: AdminPermissions, admin: (i32, &str)) -> Self {
        let mut data = vec![];
        Admin::new(permissions, admin.1.as_bytes(), admin.0).encode(&mut data);
        self.value(index, "HS_ADMIN", &data, PUBLIC)
    }

    fn group(self, index: i32, members: &[(i32, &str)]) -> Self {
        let (mut storage, mut data) = (vec![], vec![]);
        let members = members.iter().map(|&(index, handle)| Reference { handle: handle.as_bytes(), index });
        Vlist(References::build(members, &mut storage)).encode(&mut data);
        self.value(index, "HS_VLIST", &data, PRIVATE)
    }

    fn layer(&self, folds: bool) -> [Layer<Vec<u8>>; 1] {
        self.layer_homing(folds, &[b"10.1", b"0.NA"])
    }

    fn layer_homing(&self, folds: bool, prefixes: &[&[u8]]) -> [Layer<Vec<u8>>; 1] {
        let mut homed = HomedPrefixes::default();
        assert!(prefixes.iter().all(|prefix| homed.add(prefix)));
        let options = LayerOptions { seed: 7, folds, created_unix_ms: 1 };
        let mut builder = Builder::new(&std::env::temp_dir(), options).homed(homed);
        for (at, (handle, values)) in (0..).zip(&self.0) {
            builder.add(at, handle.as_bytes(), values.iter().map(ValueBuf::view)).unwrap();
        }
        let (file, _) = builder.finish(Cursor::new(Vec::new())).unwrap();
        [Layer::open(file.into_inner()).unwrap()]
    }
}

fn context(layers: &[Layer<Vec<u8>>]) -> AnswerContext<'_, Vec<u8>> {
    AnswerContext::new(RecordSet::new(layers).unwrap(), SERVICE, NOW)
}

fn identity(index: i32, handle: &str) -> Reference<'_> {
    Reference { handle: handle.as_bytes(), index }
}

const FLAGS: OpFlags = OpFlags(OpFlags::PLAIN_REQUEST.0 & !OpFlags::PUBLIC_ONLY.0);

fn message(envelope: Envelope, flags: OpFlags, request: &Request<'_>) -> Vec<u8> {
    let header = Header::request(OpCode::RESERVED, flags, NOW);
    MessageBuf::request(&envelope, &header, request).unsigned().unwrap()
}

fn query_of(handle: &str, indexes: &[i32], flags: OpFlags) -> Vec<u8> {
    let mut storage = vec![];
    let indexes = Indexes::build(indexes.iter().copied(), &mut storage);
    let query = Query { handle: handle.as_bytes(), indexes, types: Strings::EMPTY };
    message(Envelope::request(1), flags, &Request::Resolution(query))
}

/// An answer to challenge 9, with an arbitrary identity.
fn challenge_answer() -> Vec<u8> {
    let answer = ChallengeAnswer {
        auth_type: b"HS_SECKEY",
        identity: identity(1, "10.1/admin"),
        signed_response: b"",
    };
    let envelope = Envelope { session_id: 9, ..Envelope::request(2) };
    message(envelope, FLAGS, &Request::AnswerChallenge(answer))
}

fn slow<'a>(context: &AnswerContext<'a, Vec<u8>>, datagram: &'a [u8]) -> SlowPathRequest<'a> {
    match answer(context, datagram) {
        AnswerOutcome::Slow(slow) => slow,
        other => panic!("{other:?}"),
    }
}

fn code(outcome: &AnswerOutcome<'_>) -> ResponseCode {
    let AnswerOutcome::Reply(reply) = outcome else { panic!("{outcome:?}") };
    reply.response_code()
}

fn stream(reply: &ReplyParts<'_>) -> Vec<u8> {
    let mut bytes = vec![0; Envelope::LEN + reply.message_len()];
    reply.write_stream(&mut bytes);
    bytes
}

/// Code and indexes of a reply.
fn code_and_indexes(reply: &ReplyParts<'_>) -> (ResponseCode, Vec<i32>) {
    let bytes = stream(reply);
    let (envelope, rest) = Envelope::split(&bytes).unwrap();
    let Body::Reply(reply) = Message::decode(rest).unwrap().decode_body(envelope.version).unwrap() else {
        panic!("a reply")
    };
    let Response::Answer(answer) = reply.response else { return (reply.code, vec![]) };
    (reply.code, answer.values.iter().map(|value| value.index).collect())
}

fn records() -> TestSet {
    TestSet::default()
        .handle("10.1/half")
        .value(3, "URL", b"https://a.example/", PUBLIC)
        .value(1, "NOTE", b"for administrators", PRIVATE)
        .value(2, "NOTE", b"for nobody", UNREADABLE)
        .admin(100, READ, (300, "10.1/admin"))
        .handle("10.1/public")
        .value(1, "URL", b"https://b.example/", PUBLIC)
        .handle("10.1/unreadable")
        .value(1, "NOTE", b"for nobody", UNREADABLE)
        .value(2, "NOTE", b"for administrators", PRIVATE)
        .admin(100, READ, (300, "10.1/admin"))
        .handle("10.1/admin")
        .value(300, "HS_SECKEY", b"secret", PRIVATE)
}

#[test]
fn signatures_and_identities_need_the_slow_path() {
    let layers = records().layer(true);
    let (context, plain) =
        (context(&layers), AnswerContext::new(RecordSet::new(&layers).unwrap(), ServiceFacts::ALONE, NOW));
    let certify = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY);
    for (handle, flags, reason) in [
        ("10.1/public", OpFlags::PLAIN_REQUEST, None),
        ("10.1/half", OpFlags::PLAIN_REQUEST, None),
        ("10.1/public", FLAGS, None),
        ("10.1/missing", FLAGS, None),
        ("10.1/half", FLAGS, Some(SlowReason::Identity)),
        ("0.site/status", FLAGS, Some(SlowReason::Identity)),
        ("10.1/public", certify, Some(SlowReason::Certify)),
        ("99.9/elsewhere", certify, Some(SlowReason::Certify)),
    ] {
        let request = query_of(handle, &[], flags);
        let outcome = answer(&context, &request);
        match (reason, &outcome) {
            (None, AnswerOutcome::Reply(_)) => {}
            (Some(reason), AnswerOutcome::Slow(slow)) => assert_eq!(slow.reason(), reason, "{handle}"),
            _ => panic!("{handle}: {outcome:?}"),
        }
        assert!(matches!(answer(&plain, &request), AnswerOutcome::Reply(_)), "no slow path");
    }
    let unreadable = query_of("10.1/unreadable", &[], FLAGS);
    assert_eq!(code(&answer(&context, &unreadable)), ResponseCode::INSUFFICIENT_PERMISSIONS);
    let site = message(Envelope::request(1), certify, &Request::GetSiteInfo(HandleBody { handle: b"/" }));
    assert_eq!(slow(&context, &site).reason(), SlowReason::Certify);
    let challenge_answer = challenge_answer();
    assert_eq!(slow(&context, &challenge_answer).reason(), SlowReason::ChallengeAnswer);
    assert_eq!(code(&answer(&plain, &challenge_answer)), ResponseCode::SESSION_TIMEOUT);
    let session = Envelope { session_id: -5, ..Envelope::request(1) };
    let query = Query { handle: b"10.1/public", indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let in_session = message(session, FLAGS, &Request::Resolution(query));
    assert_eq!(
        slow(&context, &in_session).reason(),
        SlowReason::Identity,
        "in a session identity always matters"
    );
}

#[test]
fn certified_requests_are_evaluated_like_others() {
    let layers = records().layer(true);
    let context = context(&layers);
    for (handle, flags) in [("10.1/public", OpFlags::PLAIN_REQUEST), ("10.1/none", OpFlags::PLAIN_REQUEST)] {
        let (request, plain) =
            (query_of(handle, &[], flags.with(OpFlags::CERTIFY)), query_of(handle, &[], flags));
        let FirstEvaluation::Reply(reply) = slow(&context, &request).evaluate(&context) else {
            panic!("{handle}")
        };
        assert_eq!(reply.response_code(), code(&answer(&context, &plain)));
    }
    let request = query_of("10.1/half", &[], FLAGS.with(OpFlags::CERTIFY));
    assert!(matches!(slow(&context, &request).evaluate(&context), FirstEvaluation::Identity));
}

#[test]
fn a_challenge_has_digest_and_nonce_in_the_form_of_its_version() {
    let layers = records().layer(true);
    let context = context(&layers);
    for (minor, algorithm, len) in [(11, 3, 32), (6, 2, 20)] {
        let mut request = query_of("10.1/half", &[], FLAGS);
        request[3] = minor;
        let slow = slow(&context, &request);
        assert!(!slow.has_old_form());
        let bytes = stream(&slow.challenge(&context, 77, &[5; 16]));
        let (envelope, rest) = Envelope::split(&bytes).unwrap();
        assert_eq!((envelope.session_id, envelope.request_id), (77, 1));
        let message = Message::decode(rest).unwrap();
        assert!(message.header.flags.has(OpFlags::REQUEST_DIGEST), "even if not requested");
        let Body::Reply(reply) = message.decode_body(envelope.version).unwrap() else { panic!("a reply") };
        assert_eq!(reply.code, ResponseCode::AUTHENTICATION_NEEDED);
        let digest = reply.digest.unwrap();
        assert_eq!((digest.algorithm.0, digest.digest.len()), (algorithm, len));
        assert_eq!(digest.digest, slow.digest().as_bytes());
        let Response::Challenge(challenge) = reply.response else { panic!("a challenge") };
        assert_eq!(challenge.nonce, [5; 16]);
    }
    let mut request = query_of("10.1/half", &[], FLAGS);
    request[..4].copy_from_slice(&[2, 0, 0, 0]);
    let slow = slow(&context, &request);
    assert!(slow.has_old_form());
    assert_eq!((slow.version(), slow.digest().as_bytes().len()), (Version::new(2, 0), 16));
}

#[test]
fn administrators_see_all_but_unreadable_values() {
    let layers = records().layer(true);
    let context = context(&layers);
    let challenge_answer = challenge_answer();
    let slow = slow(&context, &challenge_answer);
    let mut buffer = [0; 4096];
    let cases: [(&str, &[i32], ResponseCode, &[i32]); 6] = [
        ("10.1/half", &[], ResponseCode::SUCCESS, &[3, 1, 100]),
        ("10.1/half", &[2, 1], ResponseCode::SUCCESS, &[1]),
        ("10.1/half", &[2], ResponseCode::INSUFFICIENT_PERMISSIONS, &[]),
        ("10.1/half", &[9], ResponseCode::VALUES_NOT_FOUND, &[]),
        ("10.1/public", &[], ResponseCode::SUCCESS, &[1]),
        ("10.1/unreadable", &[], ResponseCode::SUCCESS, &[2, 100]),
    ];
    for (handle, indexes, code, expected) in cases {
        let original = query_of(handle, indexes, FLAGS);
        let (envelope, rest) = Envelope::split(&original).unwrap();
        let challenged = slow.resume(&context, envelope, rest, false).unwrap();
        let reply = challenged.answer(&context, &mut buffer);
        assert_eq!(code_and_indexes(&reply), (code, expected.to_vec()), "{handle} {indexes:?}");
        let (envelope, _) = Envelope::split(&stream(&reply)).map(|(envelope, _)| (envelope, ())).unwrap();
        assert_eq!((envelope.session_id, envelope.request_id), (0, 2), "the reply is to the answer");
        assert_eq!(reply.op_code(), OpCode::RESOLUTION);
    }
    let original = query_of("10.1/half", &[], FLAGS);
    let (envelope, rest) = Envelope::split(&original).unwrap();
    let challenged = slow.resume(&context, envelope, rest, false).unwrap();
    let reply = challenged.answer(&context, &mut buffer[..60]);
    assert_eq!(reply.refused(), Some(RefusalReason::AnswerTooLong), "the answer exceeds the room");
    for (handle, code) in
        [("10.1/gone", ResponseCode::HANDLE_NOT_FOUND), ("99.9/moved", ResponseCode::SERVER_NOT_RESPONSIBLE)]
    {
        let original = query_of(handle, &[], FLAGS);
        let (envelope, rest) = Envelope::split(&original).unwrap();
        assert_eq!(
            slow.resume(&context, envelope, rest, false).unwrap_err().response_code(),
            code,
            "{handle}"
        );
    }
}

#[test]
fn one_administrator_value_must_grant_the_permission_to_read() {
    let others = AdminPermissions(AdminPermissions::ALL.0 & !READ.0);
    let layers = TestSet::default()
        .handle("10.1/x")
        .value(1, "NOTE", b"for administrators", PRIVATE)
        .admin(100, others, (300, "10.1/most"))
        .admin(101, READ, (300, "10.1/read"))
        .value(102, "hs_admin", &[4, 0, 0, 0, 0, 1, b'a', 0, 0, 0, 1], PRIVATE)
        .value(103, "HS_ADMIN.x", &[4, 0, 0, 0, 0, 1, b'b', 0, 0, 0, 1], PUBLIC)
        .value(104, "HS_ADMIN", b"not one", PUBLIC)
        .layer(true);
    let context = context(&layers);
    let (challenge_answer, original) = (challenge_answer(), query_of("10.1/x", &[1], FLAGS));
    let (envelope, rest) = Envelope::split(&original).unwrap();
    let challenged = slow(&context, &challenge_answer).resume(&context, envelope, rest, false).unwrap();
    let server = [identity(1, "10.1/root")];
    let mut administrators =
        ServerAdministrators { server: &server, server_reads_all: true, status: &[], lookups_max: 10 };
    let permits = |administrators: &ServerAdministrators<'_>, index, handle| {
        challenged.permits(&context, identity(index, handle), administrators)
    };
    assert_eq!(permits(&administrators, 300, "10.1/most"), AuthorityOutcome::No);
    assert_eq!(permits(&administrators, 300, "10.1/read"), AuthorityOutcome::Yes);
    assert_eq!(permits(&administrators, 301, "10.1/read"), AuthorityOutcome::No);
    assert_eq!(
        permits(&administrators, 1, "a"),
        AuthorityOutcome::Yes,
        "types in any case, with any permissions"
    );
    assert_eq!(permits(&administrators, 1, "b"), AuthorityOutcome::No, "sub-types do not count");
    assert_eq!(
        permits(&administrators, 1, "10.1/root"),
        AuthorityOutcome::Yes,
        "an administrator of the server"
    );
    administrators.server_reads_all = false;
    assert_eq!(permits(&administrators, 1, "10.1/root"), AuthorityOutcome::No);

    let original = query_of("0.site/STATUS", &[], FLAGS);
    let (envelope, rest) = Envelope::split(&original).unwrap();
    let status = slow(&context, &challenge_answer).resume(&context, envelope, rest, false).unwrap();
    assert!(status.is_status() && !challenged.is_status());
    let watchers = [identity(5, "10.1/watch")];
    administrators.status = &watchers;
    assert_eq!(status.permits(&context, identity(5, "10.1/watch"), &administrators), AuthorityOutcome::Yes);
    assert_eq!(status.permits(&context, identity(1, "10.1/root"), &administrators), AuthorityOutcome::Yes);
    assert_eq!(status.permits(&context, identity(300, "10.1/read"), &administrators), AuthorityOutcome::No);
    let values = ValueBuf::from(&Value::new(1, b"CNRI.SERVER_STATUS", b"requests=1;"));
    let reply = status.status(&context, values.as_bytes(), 1);
    assert_eq!(code_and_indexes(&reply), (ResponseCode::SUCCESS, vec![1]));
    assert_eq!(status.answer(&context, &mut []).refused(), Some(RefusalReason::NotPublic));
}

#[test]
fn references_authorise_directly_and_through_groups() {
    let layers = TestSet::default()
        .handle("10.1/Groups")
        .group(1, &[(300, "10.1/a"), (2, "10.1/Groups"), (5, "99.9/elsewhere"), (0, "10.1/every")])
        .group(2, &[(3, "10.1/Groups"), (1, "10.1/Groups")])
        .group(3, &[(300, "10.1/deep")])
        .value(4, "HS_VLIST.x", &[0, 0, 0, 1, 0, 0, 0, 1, b'q', 0, 0, 0, 1], PUBLIC)
        .value(5, "HS_VLIST", b"not one", PUBLIC)
        .handle("0.NA/10.1")
        .group(1, &[(1, "10.1/prefix")])
        .layer(true);
    let context = context(&layers);
    let may = |from: (i32, &str), index, handle| {
        entitles(&context, [identity(from.0, from.1)].into_iter(), identity(index, handle), 100)
    };
    let is = |from, index, handle| may(from, index, handle) == AuthorityOutcome::Yes;
    // Named directly. Prefixes are folded; local names are not, even where the service folds.
    assert!(is((300, "10.1/a"), 300, "10.1/a"));
    assert!(is((300, "abc/a"), 300, "ABC/a") && !is((300, "10.1/a"), 300, "10.1/A"));
    assert!(is((300, "0.NA/abc"), 300, "0.na/ABC"), "all of a global name folds");
    assert!(!is((300, "10.1/a"), 301, "10.1/a"));
    // Index 0 in a reference matches every index; in an identity it matches only itself.
    assert!(is((0, "10.1/a"), 7, "10.1/a") && is((0, "10.1/a"), 0, "10.1/a"));
    assert!(!is((300, "10.1/a"), 0, "10.1/a"));
    // Named through groups and groups in groups, in any case that is stored. Circles end.
    let groups = (1, "10.1/GROUPS");
    assert!(is(groups, 300, "10.1/a") && is(groups, 300, "10.1/deep") && is(groups, 9, "10.1/every"));
    assert_eq!(
        may(groups, 300, "10.1/nobody"),
        AuthorityOutcome::Remote,
        "one of them is at another service"
    );
    assert_eq!(may((3, "10.1/Groups"), 300, "10.1/nobody"), AuthorityOutcome::No);
    assert!(!is((3, "10.1/Groups"), 300, "10.1/a"), "groups are not opened backwards");
    assert!(!is((0, "10.1/Groups"), 300, "10.1/a"), "index 0 names no group");
    // So it is not looked for: it takes no lookup, and nothing depends on another service.
    assert_eq!(may((0, "99.9/elsewhere"), 300, "10.1/a"), AuthorityOutcome::No);
    let with_zero = [identity(0, "10.1/Groups"), identity(3, "10.1/Groups")];
    let one_lookup = entitles(&context, with_zero.into_iter(), identity(300, "10.1/deep"), 1);
    assert_eq!(one_lookup, AuthorityOutcome::Yes);
    assert!(!is((4, "10.1/Groups"), 1, "q"), "sub-types are no groups");
    assert_eq!(may((5, "10.1/Groups"), 300, "10.1/a"), AuthorityOutcome::No, "damaged groups are skipped");
    assert_eq!(may((9, "10.1/Groups"), 300, "10.1/a"), AuthorityOutcome::No);
    assert_eq!(may((5, "99.9/elsewhere"), 300, "10.1/a"), AuthorityOutcome::Remote);
    assert!(is((300, "99.9/elsewhere"), 300, "99.9/elsewhere"), "a direct reference needs no record");
    assert!(is((1, "10.1"), 1, "10.1/prefix"), "a bare prefix stands for its record");
}

#[test]
fn lookups_of_groups_are_bounded() {
    let mut set = TestSet::default().handle("10.1/chain");
    for index in 1..=20 {
        set = set.group(index, &[(index + 1, "10.1/chain")]);
    }
    let layers = set.group(21, &[(300, "10.1/last")]).layer(true);
    let context = context(&layers);
    let may = |lookups_max| {
        entitles(&context, [identity(1, "10.1/chain")].into_iter(), identity(300, "10.1/last"), lookups_max)
    };
    assert_eq!(
        (may(21), may(20), may(0)),
        (AuthorityOutcome::Yes, AuthorityOutcome::GaveUp, AuthorityOutcome::GaveUp)
    );
}

#[test]
fn keys_are_in_ascending_order_of_index() {
    let layers = TestSet::default()
        .handle("10.1/Keys")
        .value(7, "HS_SECKEY", b"seven", PRIVATE)
        .value(3, "hs_seckey", b"three", UNREADABLE)
        .value(5, "HS_PUBKEY", b"five", PUBLIC)
        .value(4, "HS_SECKEY.x", b"four", PRIVATE)
        .value(9, "URL", b"nine", PUBLIC)
        .layer(true);
    let context = context(&layers);
    let of = |index, kind: &str| {
        let keys = keys(&context, identity(index, "10.1/KEYS"), kind.as_bytes()).unwrap();
        keys.map(|value| String::from_utf8(value.data.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of(0, "HS_SECKEY"), ["three", "seven"]);
    assert_eq!(of(7, "HS_SECKEY"), ["seven"]);
    assert_eq!(of(5, "HS_SECKEY"), [""; 0], "another type");
    assert_eq!(of(9, "HS_SECKEY"), [""; 0], "a URL is no key");
    assert_eq!(of(0, "HS_PUBKEY"), ["five"]);
    assert_eq!(keys(&context, identity(0, "10.1/none"), b"HS_PUBKEY").unwrap().count(), 0);
    assert_eq!(keys(&context, identity(0, "99.9/x"), b"HS_PUBKEY").unwrap_err(), NotLocal::Remote);
}

#[test]
fn verdicts_for_other_servers_have_one_byte() {
    use handle_proto::wire::auth::VerificationRequest;
    use handle_proto::wire::digest::RequestDigest;
    let layers = records().layer(true);
    let context = context(&layers);
    let digest = RequestDigest { algorithm: handle_proto::code::DigestAlgorithm::SHA1, digest: &[0; 20] };
    let verification = VerificationRequest {
        identity: identity(300, "10.1/admin"),
        nonce: &[0; 16],
        digest,
        signed_response: b"\x02",
    };
    let request = message(Envelope::request(1), FLAGS, &Request::VerifyChallenge(verification));
    let (envelope, rest) = Envelope::split(&request).unwrap();
    let AnswerOutcome::Slow(slow) = answer_message(&context, envelope, rest) else {
        panic!("a request for the slow path")
    };
    assert_eq!(slow.reason(), SlowReason::Verification);
    for is_valid in [false, true] {
        let bytes = stream(&slow.verdict(&context, is_valid));
        assert_eq!(Message::decode(&bytes[Envelope::LEN..]).unwrap().body, [u8::from(is_valid)]);
    }
}

#[test]
fn answers_are_verified_only_with_keys_of_this_server() {
    let layers = TestSet::default()
        .handle("0.NA/10.1")
        .value(1, "HS_SERV.PREFIX", b"0.SERV/x", PUBLIC)
        .handle("10.1/a")
        .layer(true);
    let (alone, second) = (context(&layers), ServiceFacts { servers_count: 2, server_at: 1, ..SERVICE });
    let request = challenge_answer();
    let check = |context: &AnswerContext<'_, _>, handle: &str| {
        let reply = slow(context, &request).check_responsibility(context, handle.as_bytes()).err();
        reply.map(|reply| (reply.response_code(), reply.refused()))
    };
    for handle in ["10.1/a", "10.1/none", "0.NA/10.1", "0.NA/10.2", &format!("10.1/{}", "x".repeat(3000))] {
        assert_eq!(check(&alone, handle), None, "{handle}");
    }
    let not_responsible = |refused| Some((ResponseCode::SERVER_NOT_RESPONSIBLE, Some(refused)));
    assert_eq!(check(&alone, "99.9/a"), not_responsible(RefusalReason::NotHomed));
    assert_eq!(check(&alone, "0.NA/10.1.2"), Some((ResponseCode::PREFIX_REFERRAL, None)));
    let second = AnswerContext::new(RecordSet::new(&layers).unwrap(), second, NOW);
    let elsewhere = ["10.1/a", "10.1/b", "10.1/c", "10.1/d", "10.1/e", "10.1/f"];
    let (here, there): (Vec<_>, Vec<_>) =
        elsewhere.iter().map(|handle| check(&second, handle)).partition(Option::is_none);
    assert!(!here.is_empty() && !there.is_empty());
    assert!(there.iter().all(|check| *check == not_responsible(RefusalReason::OtherServer)));
}

/// A handle with an @ is computed from the handle before the @.
#[derive(Debug)]
struct ExtendedNames;

impl MayCompute for ExtendedNames {
    fn base_of<'h>(&self, handle: &'h [u8]) -> Option<&'h [u8]> {
        Some(&handle[..handle.iter().position(|&byte| byte == b'@')?])
    }
}

#[test]
fn only_values_of_missing_handles_are_computed() {
    let layers = TestSet::default().handle("10.1/a@b").value(1, "URL", b"u", PUBLIC).layer(true);
    let plain = context(&layers);
    let computing = plain.computing(Some(&ExtendedNames));
    let (public, certify) = (OpFlags::PLAIN_REQUEST, OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY));
    assert_eq!(code(&answer(&computing, &query_of("10.1/a@b", &[], public))), ResponseCode::SUCCESS);
    assert_eq!(
        code(&answer(&computing, &query_of("10.1/none", &[], public))),
        ResponseCode::HANDLE_NOT_FOUND
    );
    assert_eq!(code(&answer(&plain, &query_of("10.1/a@c", &[], public))), ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(
        code(&answer(&computing, &query_of("99.9/a@c", &[], public))),
        ResponseCode::SERVER_NOT_RESPONSIBLE
    );
    for (flags, reason) in
        [(public, SlowReason::Template), (FLAGS, SlowReason::Template), (certify, SlowReason::Certify)]
    {
        let request = query_of("10.1/a@c", &[], flags);
        let slow = slow(&computing, &request);
        assert_eq!((slow.reason(), slow.handle()), (reason, &b"10.1/a@c"[..]));
        assert!(matches!(slow.evaluate(&computing), FirstEvaluation::Template));
        assert_eq!(slow.not_computed(&computing).response_code(), ResponseCode::HANDLE_NOT_FOUND);
    }
}

#[test]
fn computed_values_are_selected_like_stored_ones() {
    let layers = TestSet::default().handle("10.1/a").layer(true);
    let context = context(&layers).computing(Some(&ExtendedNames));
    let value = |index, permissions| Value { permissions, ..Value::new(index, b"URL", b"u") };
    let values = [value(1, PUBLIC), value(2, PRIVATE), value(3, UNREADABLE), value(4, PUBLIC)];
    let mut encoded = vec![];
    values.iter().for_each(|value| value.encode(&mut encoded));
    let public = OpFlags::PLAIN_REQUEST;
    for (flags, indexes, expected) in [
        (public, &[][..], (ResponseCode::SUCCESS, vec![1, 4])),
        (public, &[4, 2], (ResponseCode::SUCCESS, vec![4])),
        (public, &[2], (ResponseCode::VALUES_NOT_FOUND, vec![])),
        (public, &[9], (ResponseCode::VALUES_NOT_FOUND, vec![])),
        (FLAGS, &[1, 4], (ResponseCode::SUCCESS, vec![1, 4])),
    ] {
        let request = query_of("10.1/a@b", indexes, flags);
        let mut values = encoded.clone();
        let slow = slow(&context, &request);
        assert_eq!(slow.reason_to_withhold(&context, &values, 4), None);
        let reply = slow.computed(&context, &mut values, 4);
        assert_eq!(code_and_indexes(&reply), expected, "{indexes:?}");
    }
    for (session_id, indexes, withheld) in [
        (0, &[][..], Some(RefusalReason::NotPublic)),
        (0, &[3, 2], Some(RefusalReason::NotPublic)),
        (0, &[3], Some(RefusalReason::Unreadable)),
        (-1, &[1], Some(RefusalReason::NotPublic)),
        (-1, &[9], None),
    ] {
        let mut request = query_of("10.1/a@b", indexes, FLAGS);
        request[4..8].copy_from_slice(&i32::to_be_bytes(session_id));
        assert_eq!(
            slow(&context, &request).reason_to_withhold(&context, &encoded, 4),
            withheld,
            "{indexes:?}"
        );
    }
    let request = query_of("10.1/a@b", &[], public);
    let (mut values, all) = (encoded.clone(), encoded.len());
    let reply = slow(&context, &request).computed(&context, &mut values[..all - 1], 4);
    assert_eq!(reply.refused(), Some(RefusalReason::TemplateFailed), "undecodable values are not sent");
}

#[test]
fn administrators_of_the_base_and_of_the_server_read_computed_values() {
    let layers = TestSet::default().handle("10.1/a").admin(100, READ, (300, "10.1/read")).layer(true);
    let context = context(&layers).computing(Some(&ExtendedNames));
    let (challenge_answer, original) = (challenge_answer(), query_of("10.1/a@b", &[], FLAGS));
    let (envelope, rest) = Envelope::split(&original).unwrap();
    let challenged = slow(&context, &challenge_answer).resume(&context, envelope, rest, false).unwrap();
    assert_eq!(challenged.to_compute(), Some(&b"10.1/a@b"[..]));
    assert_eq!(challenged.not_computed(&context).response_code(), ResponseCode::HANDLE_NOT_FOUND);
    let mut data = vec![];
    Admin::new(READ, b"10.1/forger", 300).encode(&mut data);
    let value = |index, kind, data, permissions| Value { permissions, ..Value::new(index, kind, data) };
    let values = [
        value(1, b"URL", b"u", PRIVATE),
        value(2, b"URL", b"u", UNREADABLE),
        value(100, b"HS_ADMIN", &data, PUBLIC),
    ];
    let mut encoded = vec![];
    values.iter().for_each(|value| value.encode(&mut encoded));
    let challenged = challenged.with_computed(&encoded);
    let server = [identity(1, "10.1/root")];
    let administrators =
        ServerAdministrators { server: &server, server_reads_all: true, status: &[], lookups_max: 10 };
    let permits = |index, handle| challenged.permits(&context, identity(index, handle), &administrators);
    assert_eq!(permits(300, "10.1/read"), AuthorityOutcome::Yes);
    assert_eq!(permits(1, "10.1/root"), AuthorityOutcome::Yes);
    assert_eq!(permits(300, "10.1/forger"), AuthorityOutcome::No, "computed values give no rights");
    let mut buffer = [0; 4096];
    let reply = challenged.answer(&context, &mut buffer);
    assert_eq!(code_and_indexes(&reply), (ResponseCode::SUCCESS, vec![1, 100]));
}

#[test]
fn in_sessions_all_but_unencrypted_public_values_needs_the_slow_path() {
    let layers = records().layer(true);
    let with = |service| AnswerContext::new(RecordSet::new(&layers).unwrap(), service, NOW);
    let (context, without) = (with(ServiceFacts { sessions: true, ..SERVICE }), with(SERVICE));
    let envelope = Envelope { session_id: 9, ..Envelope::request(1) };
    let query_of = |handle: &str, flags| {
        let query = Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY };
        message(envelope, flags, &Request::Resolution(query))
    };
    let certified = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY);
    let public = [
        query_of("10.1/public", OpFlags::PLAIN_REQUEST),
        query_of("10.1/public", certified),
        query_of("10.1/gone", certified),
        query_of("99.9/moved", OpFlags::PLAIN_REQUEST),
    ];
    for request in &public {
        let AnswerOutcome::InSession(reply) = answer(&context, request) else { panic!("{request:?}") };
        assert_eq!(reply.session_id(), 9);
        let refused = reply.refusing(RefusalReason::WrongMac);
        let (envelope, _) = Envelope::split(&stream(&refused)).map(|(envelope, _)| (envelope, ())).unwrap();
        assert_eq!((envelope.session_id, envelope.request_id), (9, 1), "the same frame");
        let mut outside = request.clone();
        outside[4..8].fill(0);
        let alone = without.service().signs && reply.certifies();
        if !alone {
            let AnswerOutcome::Reply(plain) = answer(&without, &outside) else { panic!("{outside:?}") };
            assert_eq!(code_and_indexes(&reply), code_and_indexes(&plain));
        }
    }
    let mut batched = 0;
    answer_batch(&context, &mut Scratch::new(), public.iter().map(Vec::as_slice), |at, outcome| {
        let (InBatch::Other(AnswerOutcome::InSession(reply)), AnswerOutcome::InSession(alone)) =
            (outcome, answer(&context, &public[at]))
        else {
            panic!("{outcome:?}")
        };
        assert_eq!(stream(reply), stream(&alone));
        batched += 1;
    });
    assert_eq!(batched, public.len());
    let site = Request::GetSiteInfo(HandleBody { handle: b"/" });
    for (request, reason) in [
        (query_of("10.1/public", FLAGS), SlowReason::Session),
        (query_of("10.1/public", certified.with(OpFlags::ENCRYPT)), SlowReason::Session),
        (message(envelope, certified, &site), SlowReason::Session),
        (
            message(envelope, FLAGS, &Request::SessionTerminate(HandleBody { handle: b"/" })),
            SlowReason::Session,
        ),
        (challenge_answer(), SlowReason::Session),
    ] {
        assert_eq!(slow(&context, &request).reason(), reason);
    }
    let exchange = KeyExchange::ServerKey;
    let setup = SessionSetup { exchange, timeout_s: 0, identity: identity(1, "10.1/admin") };
    let setup = message(Envelope::request(1), FLAGS, &Request::SessionSetup(setup));
    assert_eq!(slow(&context, &setup).reason(), SlowReason::SessionSetup);
    assert_eq!(code(&answer(&without, &setup)), ResponseCode::SESSION_FAILED);
    // An encrypted message has to be decrypted first; without sessions it is refused.
    let mut encrypted = query_of("10.1/public", certified);
    encrypted[2] |= 0x40;
    assert!(matches!(answer(&context, &encrypted), AnswerOutcome::Encrypted));
    assert_eq!(code(&answer(&without, &encrypted)), ResponseCode::SESSION_TIMEOUT);
    encrypted[4..8].fill(0);
    assert_eq!(code(&answer(&context, &encrypted)), ResponseCode::SESSION_FAILED, "outside sessions");
}

#[test]
fn confidentiality_follows_from_flags_version_and_values() {
    let layers = records().layer(true);
    let context =
        AnswerContext::new(RecordSet::new(&layers).unwrap(), ServiceFacts { sessions: true, ..SERVICE }, NOW);
    let mut buffer = vec![0; 4096];
    for (minor, index, flags, is_confidential) in [
        (11, 1, FLAGS, true),
        (8, 1, FLAGS, true),
        (7, 1, FLAGS, false),
        (11, 3, FLAGS, false),
        (7, 3, FLAGS.with(OpFlags::ENCRYPT), true),
    ] {
        let version = Version::new(2, minor);
        let envelope = Envelope { version, suggested: version, session_id: 9, ..Envelope::request(1) };
        let mut storage = vec![];
        let indexes = Indexes::build([index], &mut storage);
        let query = Query { handle: b"10.1/half", indexes, types: Strings::EMPTY };
        let request = message(envelope, flags, &Request::Resolution(query));
        let known = slow(&context, &request).evaluate_identified(&context).unwrap();
        let reply = known.answer(&context, &mut buffer);
        assert_eq!(code_and_indexes(&reply), (ResponseCode::SUCCESS, vec![index]));
        assert_eq!(reply.is_confidential(), is_confidential, "2.{minor}, index {index}");
    }
}

#[test]
fn keys_and_groups_come_from_copies_of_records_of_homed_prefixes() {
    let layers = TestSet::default()
        .handle("0.NA/10.1")
        .value(300, "HS_SECKEY", b"secret", PRIVATE)
        .group(1, &[(300, "10.1/a")])
        .handle("0.NA/10.2")
        .value(300, "HS_SECKEY", b"secret", PRIVATE)
        .layer_homing(true, &[b"10.1"]);
    let context = context(&layers);
    let found =
        |index, handle| keys(&context, identity(index, handle), b"HS_SECKEY").map(|keys| keys.count());
    assert_eq!(found(300, "0.NA/10.1"), Ok(1));
    assert_eq!(found(300, "0.na/10.1"), Ok(1));
    assert_eq!(found(0, "0.NA/10.1"), Ok(1));
    assert_eq!(found(301, "0.NA/10.1"), Err(NotLocal::Remote), "the registry may have the value");
    assert_eq!(found(300, "0.NA/10.2"), Err(NotLocal::Remote), "a prefix that is not homed here");
    assert_eq!(found(300, "0.NA/10.3"), Err(NotLocal::Remote));
    let may = |index, handle| {
        entitles(&context, [identity(index, handle)].into_iter(), identity(300, "10.1/a"), 100)
    };
    assert_eq!(may(1, "0.NA/10.1"), AuthorityOutcome::Yes);
    assert_eq!(may(2, "0.NA/10.1"), AuthorityOutcome::Remote);
    assert_eq!(may(300, "0.NA/10.1"), AuthorityOutcome::No, "the value is no group");
}

#[test]
fn listing_is_left_to_another_process_if_configured() {
    let layers = TestSet::default().handle("10.1/a").value(1, "URL", b"x", PUBLIC).layer(true);
    let records = RecordSet::new(&layers).unwrap();
    let with = ServiceFacts { forwards_listing: true, ..SERVICE };
    let (with, without) = (AnswerContext::new(records, with, NOW), context(&layers));
    let handle = HandleBody { handle: b"0.NA/10.1" };
    for (request, is_listing) in [
        (Request::ListHandles(handle), true),
        (Request::ListHomedNas(handle), true),
        (Request::DeleteHandle(handle), false),
    ] {
        let encoded_request = message(Envelope::request(5), FLAGS, &request);
        assert_eq!(
            matches!(answer(&with, &encoded_request), AnswerOutcome::Listing),
            is_listing,
            "{request:?}"
        );
        let refused = |outcome: AnswerOutcome<'_>| matches!(outcome, AnswerOutcome::Reply(reply) if reply.refused() == Some(RefusalReason::Administration));
        assert_ne!(refused(answer(&with, &encoded_request)), is_listing, "{request:?}");
        assert!(refused(answer(&without, &encoded_request)), "{request:?}");
        // The refusal of a listing has the id of its request.
        let (envelope, rest) = Envelope::split(&encoded_request).unwrap();
        let busy = refuse_listing(&with, envelope, rest, RefusalReason::Busy);
        let mut bytes = vec![0; Envelope::LEN + busy.message_len()];
        busy.write_stream(&mut bytes);
        assert_eq!(Envelope::split(&bytes).unwrap().0.request_id, 5);
    }
    let cut = message(Envelope::request(5), FLAGS, &Request::ListHandles(handle));
    let (envelope, rest) = Envelope::split(&cut).unwrap();
    let busy = refuse_listing(&with, envelope, &rest[..10], RefusalReason::Busy);
    assert_eq!(busy.refused(), Some(RefusalReason::Busy), "even if bytes are missing");
}

#[test]
fn delegated_prefixes_of_old_clients_are_left_to_the_slow_path_if_configured() {
    let layers = TestSet::default()
        .handle("0.NA/10.5")
        .value(1, "HS_SITE.PREFIX", b"a site", PUBLIC)
        .handle("0.NA/10.6")
        .value(1, "URL", b"x", PUBLIC)
        .layer(true);
    let records = RecordSet::new(&layers).unwrap();
    let with = AnswerContext::new(records, ServiceFacts { resolves_for_old: true, ..SERVICE }, NOW);
    let without = context(&layers);
    let request_of = |minor, handle: &str, flags| {
        let (version, suggested) = (Version::new(2, minor), Version::new(2, minor));
        let mut request = query_of(handle, &[], flags);
        let (envelope, _) = Envelope::split(&request).unwrap();
        request[..Envelope::LEN].copy_from_slice(&Envelope { version, suggested, ..envelope }.to_bytes());
        request
    };
    let plain = OpFlags::PLAIN_REQUEST;
    for (minor, handle, flags, is_left) in [
        (9, "0.NA/10.5.7", plain, true),
        (1, "0.NA/10.5.7.8", plain, true),
        (10, "0.NA/10.5.7", plain, false),
        (9, "0.NA/10.6.7", plain, false),
        (9, "0.NA/10.5", plain, false),
        (9, "0.NA/10.5.7", plain.with(OpFlags::DO_NOT_REFER), false),
        (9, "0.NA/10.5.7", plain.without(OpFlags::RECURSIVE), false),
    ] {
        let request = request_of(minor, handle, flags);
        let case = format!("2.{minor} {handle}");
        match answer(&with, &request) {
            AnswerOutcome::Slow(slow) => {
                assert!(is_left && slow.wants_no_referral(&with), "{case}");
                let FirstEvaluation::Reply(reply) = slow.evaluate(&with) else { panic!("{case}") };
                assert_eq!(reply.response_code(), ResponseCode::PREFIX_REFERRAL, "{case}");
            }
            outcome => assert!(!is_left && matches!(outcome, AnswerOutcome::Reply(_)), "{case}"),
        }
        let mut in_batch = None;
        answer_batch(&with, &mut Scratch::new(), [&request[..]], |_, outcome| {
            in_batch = Some(matches!(outcome, InBatch::Other(AnswerOutcome::Slow(_))));
        });
        assert_eq!(in_batch, Some(is_left), "{case} in a batch");
        assert!(matches!(answer(&without, &request), AnswerOutcome::Reply(_)), "{case}");
    }
}
