//! Tests of answers over a small set of records.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::limit::{
    FRAGMENTS_MAX, MESSAGE_LEN_MAX, QUERY_COMPARISONS_MAX, UDP_DATA_LEN_MAX, UDP_MESSAGE_LEN_MAX,
};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Reply as Answered, Request, Response};
use handle_proto::{HashOption, OpCode, OpFlags, Permissions, ResponseCode, Value, Version};
use handle_resolver::batch::Scratch;
use handle_resolver::slow::SlowReason;
use handle_resolver::{
    AnswerContext, AnswerOutcome, DropReason, InBatch, RefusalReason, ServiceFacts, SortingBuffer,
    WireReply as _, answer, answer_batch, answer_message, too_long,
};
use handle_snapshot::builder::Builder;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_snapshot::{Layer, RecordSet};
use proptest::prelude::*;
use std::io::Cursor;
use std::sync::OnceLock;

const NOW: u32 = 1_700_000_000;
const PRIVATE: Permissions = Permissions(0x0c);
const UNREADABLE: Permissions = Permissions(0x04);

/// A handle and its values: index, type, data, permissions.
type TestRecord = (&'static str, &'static [(i32, &'static str, &'static str, Permissions)]);

const PUBLIC: Permissions = Permissions::DEFAULT;
/// Two of these take more than one datagram.
const LONG: &str = concat!(
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
);
const RECORDS: &[TestRecord] = &[
    (
        "10.1/mixed",
        &[
            (1, "URL", "https://a.example/", PUBLIC),
            (2, "URL.ALT", "https://b.example/", PUBLIC),
            (3, "HS_SECKEY", "open sesame", PRIVATE),
            (4, "EMAIL", "a@a.example", PUBLIC),
            (5, "NOTE", "nobody reads this", UNREADABLE),
        ],
    ),
    ("10.1/private", &[(1, "HS_SECKEY", "open sesame", PRIVATE)]),
    ("10.1/public", &[(1, "URL", "https://c.example/", PUBLIC)]),
    ("10.1/long", &[(1, "DESC", LONG, PUBLIC), (2, "DESC", LONG, PUBLIC)]),
    ("10.1/empty", &[]),
    ("10.1/Ünicode", &[(1, "DESC", "Ü is not folded", PUBLIC)]),
    ("99.9/elsewhere", &[(1, "URL", "https://d.example/", PUBLIC)]),
    ("0.NA/10.1", &[(1, "HS_SITE.PREFIX", "site", PUBLIC), (2, "HS_SERV.PREFIX", "0.SERV/x", PUBLIC)]),
    ("0.NA/10.1.2", &[(1, "HS_SITE", "site", PUBLIC)]),
    ("0.NA/10.2", &[(1, "HS_NA_DELEGATE", "hidden", PRIVATE)]),
];

fn build(homed: &[&str], folds: bool) -> Layer<Vec<u8>> {
    let mut prefixes = HomedPrefixes::default();
    homed.iter().for_each(|prefix| assert!(prefixes.add(prefix.as_bytes())));
    let options = LayerOptions { seed: 7, folds, created_unix_ms: 1 };
    let mut builder = Builder::new(&std::env::temp_dir(), options).homed(prefixes);
    for (at, (handle, values)) in RECORDS.iter().enumerate() {
        let values = values.iter().map(|&(index, kind, data, permissions)| Value {
            permissions,
            ..Value::new(index, kind.as_bytes(), data.as_bytes())
        });
        builder.add(at as u64, handle.as_bytes(), values).unwrap();
    }
    let (file, _) = builder.finish(Cursor::new(Vec::new())).unwrap();
    Layer::open(file.into_inner()).unwrap()
}

fn layer() -> &'static [Layer<Vec<u8>>] {
    static LAYER: OnceLock<Layer<Vec<u8>>> = OnceLock::new();
    std::slice::from_ref(LAYER.get_or_init(|| build(&["10.1", "0.NA"], true)))
}

fn context<'a>(layers: &'a [Layer<Vec<u8>>], service: ServiceFacts<'a>) -> AnswerContext<'a, Vec<u8>> {
    AnswerContext::new(RecordSet::new(layers).unwrap(), service, NOW)
}

/// A request as a datagram.
struct RequestSpec {
    handle: Vec<u8>,
    indexes: Vec<[u8; 4]>,
    types: Vec<Vec<u8>>,
    flags: OpFlags,
    version: Version,
    suggested: Version,
    session_id: i32,
}

impl RequestSpec {
    fn new(handle: &str) -> Self {
        Self {
            handle: handle.as_bytes().to_vec(),
            indexes: vec![],
            types: vec![],
            flags: OpFlags::PLAIN_REQUEST,
            version: Version::CURRENT,
            suggested: Version::CURRENT,
            session_id: 0,
        }
    }

    fn index(mut self, index: i32) -> Self {
        self.indexes.push(index.to_be_bytes());
        self
    }

    fn kind(mut self, kind: &str) -> Self {
        self.types.push(kind.as_bytes().to_vec());
        self
    }

    fn not_public_only(mut self) -> Self {
        self.flags = self.flags.without(OpFlags::PUBLIC_ONLY);
        self
    }

    fn datagram(&self) -> Vec<u8> {
        let mut types = Vec::new();
        let types = Strings::build(self.types.iter().map(Vec::as_slice), &mut types);
        let query = Query { handle: &self.handle, indexes: Indexes::new(&self.indexes), types };
        self.frame(&Request::Resolution(query))
    }

    fn frame(&self, request: &Request<'_>) -> Vec<u8> {
        let envelope = Envelope {
            version: self.version,
            flags: EnvelopeFlags::default(),
            suggested: self.suggested,
            session_id: self.session_id,
            request_id: 4711,
            sequence: 0,
            message_len: 0,
        };
        let header = Header {
            op_code: OpCode::RESOLUTION,
            response_code: ResponseCode::RESERVED,
            flags: self.flags,
            site_serial: -1,
            recursion_count: 3,
            reserved: 0,
            expiration: NOW,
            body_len: 0,
        };
        MessageBuf::request(&envelope, &header, request).unsigned().unwrap()
    }
}

/// Writes the reply and reassembles its datagrams: its envelope, and the bytes that follow.
fn write_and_reassemble(outcome: &AnswerOutcome<'_>) -> Option<(Envelope, Vec<u8>)> {
    let AnswerOutcome::Reply(reply) = outcome else { return None };
    let mut out = vec![0xaa; reply.datagrams_len()];
    reply.write_datagrams(&mut out);
    let mut message = Vec::new();
    for (sequence, datagram) in out.chunks(512).enumerate() {
        let (envelope, data) = Envelope::split(datagram).unwrap();
        assert_eq!(envelope.sequence as usize, sequence);
        assert_eq!(envelope.message_len as usize, reply.message_len());
        assert_eq!(envelope.flags.has(EnvelopeFlags::TRUNCATED), reply.datagrams_count() > 1);
        message.extend_from_slice(data);
    }
    assert_eq!(message.len(), reply.message_len());
    let mut stream = vec![0xaa; Envelope::LEN + reply.message_len()];
    reply.write_stream(&mut stream);
    assert_eq!(stream[Envelope::LEN..], message, "the same message over both transports");
    Some((Envelope::split(&out).unwrap().0, message))
}

/// The code of the answer, and the indexes of its values.
fn ask_with(context: &AnswerContext<'_, Vec<u8>>, spec: &RequestSpec) -> (ResponseCode, Vec<i32>) {
    let datagram = spec.datagram();
    let (envelope, message) = write_and_reassemble(&answer(context, &datagram)).unwrap();
    assert_eq!(envelope.request_id, 4711);
    let message = Message::decode(&message).unwrap();
    assert_eq!(message.header.recursion_count, 3);
    let Body::Reply(Answered { code, response, .. }) = message.decode_body(envelope.version).unwrap() else {
        panic!("an answer")
    };
    let indexes = match response {
        Response::Answer(answer) => {
            assert_eq!(answer.handle, spec.handle, "as the client spelt it");
            answer.values.iter().map(|value| value.index).collect()
        }
        Response::Referral(referral) => {
            assert!(referral.handle.is_empty());
            referral.values.unwrap().iter().map(|value| value.index).collect()
        }
        _ => vec![],
    };
    (code, indexes)
}

fn ask(spec: &RequestSpec) -> (ResponseCode, Vec<i32>) {
    ask_with(&context(layer(), ServiceFacts::ALONE), spec)
}

#[test]
fn public_values_with_a_listed_index_or_type_are_selected() {
    let cases: [(RequestSpec, &[i32]); 9] = [
        (RequestSpec::new("10.1/mixed"), &[1, 2, 4]),
        (RequestSpec::new("10.1/MIXED"), &[1, 2, 4]),
        (RequestSpec::new("10.1/mixed").index(4), &[4]),
        (RequestSpec::new("10.1/mixed").index(3).index(4), &[4]),
        (RequestSpec::new("10.1/mixed").kind("url"), &[1]),
        (RequestSpec::new("10.1/mixed").kind("URL."), &[1, 2]),
        (RequestSpec::new("10.1/mixed").kind("email").index(2), &[2, 4]),
        (RequestSpec::new("10.1/mixed").kind("EMAIL").kind("URL").index(1).index(1), &[1, 4]),
        (RequestSpec::new("10.1/Ünicode"), &[1]),
    ];
    for (spec, indexes) in cases {
        assert_eq!(ask(&spec), (ResponseCode::SUCCESS, indexes.to_vec()), "{:?}", spec.types);
    }
}

#[test]
fn missing_handles_missing_values_and_other_prefixes_have_different_codes() {
    assert_eq!(ask(&RequestSpec::new("10.1/none")).0, ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(ask(&RequestSpec::new("10.1/ünicode")).0, ResponseCode::HANDLE_NOT_FOUND);
    assert_eq!(ask(&RequestSpec::new("10.1/empty")).0, ResponseCode::VALUES_NOT_FOUND);
    assert_eq!(ask(&RequestSpec::new("10.1/private")).0, ResponseCode::VALUES_NOT_FOUND);
    assert_eq!(ask(&RequestSpec::new("10.1/public").index(9)).0, ResponseCode::VALUES_NOT_FOUND);
    assert_eq!(ask(&RequestSpec::new("10.1/public").kind("")).0, ResponseCode::VALUES_NOT_FOUND);
    assert_eq!(ask(&RequestSpec::new("99.9/elsewhere")).0, ResponseCode::SERVER_NOT_RESPONSIBLE);
    assert_eq!(ask(&RequestSpec::new("")).0, ResponseCode::HANDLE_NOT_FOUND, "0.NA/ with 0.NA homed");
    assert_eq!(ask(&RequestSpec::new("0.site/STATUS")).0, ResponseCode::VALUES_NOT_FOUND);
}

#[test]
fn without_public_only_the_first_value_that_is_not_public_decides() {
    let refused = ResponseCode::OPERATION_NOT_SUPPORTED;
    assert_eq!(ask(&RequestSpec::new("10.1/mixed").not_public_only()).0, refused);
    assert_eq!(
        ask(&RequestSpec::new("10.1/mixed").index(1).not_public_only()),
        (ResponseCode::SUCCESS, vec![1])
    );
    let unreadable = RequestSpec::new("10.1/mixed").index(5).not_public_only();
    assert_eq!(ask(&unreadable).0, ResponseCode::INSUFFICIENT_PERMISSIONS);
    let in_session = RequestSpec { session_id: -1, ..RequestSpec::new("10.1/public").not_public_only() };
    assert_eq!(ask(&in_session).0, refused, "in a session the identity always matters");
    assert_eq!(
        ask(&RequestSpec { session_id: 9, ..RequestSpec::new("10.1/public") }).0,
        ResponseCode::SESSION_TIMEOUT
    );
}

#[test]
fn referrals_are_to_the_service_of_the_nearest_delegating_ancestor() {
    assert_eq!(ask(&RequestSpec::new("0.NA/10.1.7")), (ResponseCode::PREFIX_REFERRAL, vec![1, 2]));
    assert_eq!(
        ask(&RequestSpec::new("10.1.7")),
        (ResponseCode::PREFIX_REFERRAL, vec![1, 2]),
        "a bare prefix"
    );
    assert_eq!(ask(&RequestSpec::new("0.na/10.1.2.3")), (ResponseCode::PREFIX_REFERRAL, vec![1, 2]));
    assert_eq!(
        ask(&RequestSpec::new("0.NA/10.1.2")),
        (ResponseCode::SUCCESS, vec![1]),
        "a stored record is no referral"
    );
    assert_eq!(ask(&RequestSpec::new("0.NA/10.2.1")).0, ResponseCode::HANDLE_NOT_FOUND, "not public");
    let alone = RequestSpec {
        flags: OpFlags::PLAIN_REQUEST.with(OpFlags::DO_NOT_REFER),
        ..RequestSpec::new("0.NA/10.1.7")
    };
    assert_eq!(ask(&alone).0, ResponseCode::HANDLE_NOT_FOUND);
    // Older clients read the code as another one, but never as "no such prefix".
    let old = RequestSpec { suggested: Version::new(2, 4), ..RequestSpec::new("0.NA/10.1.7") };
    assert_eq!(ask(&old).0, ResponseCode::SERVER_READ_ONLY);
    // A name with more ancestors than are tried is not found, and costs no more than those that are
    // tried.
    let deep = format!("0.NA/10.1{}", ".x".repeat(200));
    assert_eq!(ask(&RequestSpec::new(&deep)).0, ResponseCode::HANDLE_NOT_FOUND);
}

#[test]
fn marks_of_homed_records_change_no_answer() {
    let marked = build(&["10.1", "0.NA", "99.9"], true);
    let unmarked = build(&["10.1", "0.NA", "99.9"], true);
    // A newer layer with the same table makes the layer below it lose its own table.
    let table_only = {
        let mut prefixes = HomedPrefixes::default();
        ["10.1", "0.NA", "99.9"].iter().for_each(|prefix| assert!(prefixes.add(prefix.as_bytes())));
        let options = LayerOptions { seed: 7, folds: true, created_unix_ms: 1 };
        let builder = Builder::new(&std::env::temp_dir(), options).homed(prefixes);
        Layer::open(builder.finish(Cursor::new(Vec::new())).unwrap().0.into_inner()).unwrap()
    };
    assert!(marked.is_within());
    let (one, two) = ([marked], [table_only, unmarked]);
    let handles =
        RECORDS.iter().map(|record| record.0).chain(["10.1/none", "10.7/x", "0.NA/10.1.3", "nothing"]);
    for handle in handles {
        let datagram = RequestSpec::new(handle).datagram();
        let reply = |layers| write_and_reassemble(&answer(&context(layers, ServiceFacts::ALONE), &datagram));
        assert_eq!(reply(&one), reply(&two), "{handle}");
    }
}

#[test]
fn derived_prefixes_are_answered_if_only_they_are_homed() {
    let layers = [build(&["0.NA/10.1"], true)];
    let context = context(&layers, ServiceFacts::ALONE);
    let code = |handle| ask_with(&context, &RequestSpec::new(handle)).0;
    assert_eq!(code("0.NA/10.1.2"), ResponseCode::SUCCESS);
    assert_eq!(code("0.na/10.1.2.3"), ResponseCode::PREFIX_REFERRAL);
    assert_eq!(code("10.1.2"), ResponseCode::SUCCESS);
    assert_eq!(code("0.NA/10.1"), ResponseCode::SERVER_NOT_RESPONSIBLE);
    assert_eq!(code("10.1/public"), ResponseCode::SERVER_NOT_RESPONSIBLE);
}

#[test]
fn local_names_fold_only_on_a_folding_service() {
    let layers = [build(&["10.1"], false)];
    let context = context(&layers, ServiceFacts::ALONE);
    assert_eq!(ask_with(&context, &RequestSpec::new("10.1/public")).0, ResponseCode::SUCCESS);
    assert_eq!(ask_with(&context, &RequestSpec::new("10.1/PUBLIC")).0, ResponseCode::HANDLE_NOT_FOUND);
}

#[test]
fn only_the_server_that_a_handle_hashes_to_answers() {
    for option in [HashOption::Prefix, HashOption::Suffix, HashOption::Handle] {
        let codes = [0, 1, 2].map(|server_at| {
            let service =
                ServiceFacts { hash_option: option, servers_count: 3, server_at, ..ServiceFacts::ALONE };
            ask_with(&context(layer(), service), &RequestSpec::new("10.1/public")).0
        });
        let answered = codes.iter().filter(|&&code| code == ResponseCode::SUCCESS).count();
        let refused = codes.iter().filter(|&&code| code == ResponseCode::SERVER_NOT_RESPONSIBLE).count();
        assert_eq!((answered, refused), (1, 2), "{option:?}");
    }
}

#[test]
fn a_requested_digest_is_correct_in_the_form_of_the_version() {
    use sha2::Digest as _;
    for (version, len) in [(Version::CURRENT, 33), (Version::new(2, 6), 21), (Version::new(2, 0), 0)] {
        let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::REQUEST_DIGEST);
        let spec = RequestSpec { suggested: version, flags, ..RequestSpec::new("10.1/public") };
        let datagram = spec.datagram();
        let covered = Message::decode(&datagram[Envelope::LEN..]).unwrap().covered.to_vec();
        let (_, message) =
            write_and_reassemble(&answer(&context(layer(), ServiceFacts::ALONE), &datagram)).unwrap();
        let message = Message::decode(&message).unwrap();
        assert_eq!(message.header.flags.has(OpFlags::REQUEST_DIGEST), len > 0);
        match len {
            33 => assert_eq!(message.body[1..33], sha2::Sha256::digest(&covered)[..]),
            21 => assert_eq!(message.body[1..21], sha1::Sha1::digest(&covered)[..]),
            _ => {}
        }
    }
}

#[test]
fn replies_to_unreadable_messages_are_dropped() {
    let context = context(layer(), ServiceFacts::ALONE);
    let first = answer(&context, b"bytes that are no request");
    let AnswerOutcome::Reply(reply) = first else { panic!("a reply") };
    let mut datagram = vec![0; reply.datagrams_len()];
    reply.write_datagrams(&mut datagram);
    assert!(matches!(answer(&context, &datagram), AnswerOutcome::Drop(DropReason::ErrorReply)));
}

#[test]
fn datagrams_shorter_than_an_envelope_get_no_answer() {
    let datagram = RequestSpec::new("10.1/public").datagram();
    for len in 0..Envelope::LEN {
        let outcome = answer(&context(layer(), ServiceFacts::ALONE), &datagram[..len]);
        assert!(matches!(outcome, AnswerOutcome::Drop(DropReason::TooShort)), "{len}");
    }
}

#[test]
fn every_truncation_of_a_request_is_answered() {
    let context = context(layer(), ServiceFacts::ALONE);
    let datagram = RequestSpec::new("10.1/mixed").index(1).kind("URL").datagram();
    for len in Envelope::LEN..datagram.len() {
        let (_, message) = write_and_reassemble(&answer(&context, &datagram[..len])).unwrap();
        let code = Message::decode(&message).unwrap().header.response_code;
        // A request without the length of its credential is whole, and unsigned.
        let whole = len >= datagram.len() - 4;
        assert_eq!(code == ResponseCode::SUCCESS, whole, "cut to {len}: {code}");
    }
}

#[test]
fn missing_bytes_of_the_operation_count_as_zero() {
    let context = context(layer(), ServiceFacts::ALONE);
    let datagram = RequestSpec::new("10.1/mixed").datagram();
    for len in Envelope::LEN..Envelope::LEN + Header::LEN {
        let expected =
            if len < Envelope::LEN + 4 { RefusalReason::NoOperation } else { RefusalReason::Short };
        assert_eq!(refused(&answer(&context, &datagram[..len])), Some(expected), "cut to {len}");
    }
    let mut short = datagram[..Envelope::LEN].to_vec();
    short[19] = 23;
    assert_eq!(refused(&answer(&context, &short)), Some(RefusalReason::Short), "no header is announced");
}

#[test]
fn bytes_after_a_message_are_ignored_and_messages_longer_than_a_datagram_refused() {
    let context = context(layer(), ServiceFacts::ALONE);
    let mut datagram = RequestSpec::new("10.1/mixed").datagram();
    datagram.resize(UDP_MESSAGE_LEN_MAX + 100, 0xee);
    assert_eq!(refused(&answer(&context, &datagram)), None, "bytes after the message are ignored");
    let mut longest = RequestSpec::new("10.1/mixed");
    longest.types = vec![vec![b'x'; 100]; 4];
    let len = longest.datagram().len();
    longest.types.push(vec![b'x'; UDP_MESSAGE_LEN_MAX - len - 4]);
    assert_eq!(longest.datagram().len(), UDP_MESSAGE_LEN_MAX);
    let refused_of = |spec: &RequestSpec| refused(&answer(&context, &spec.datagram()));
    assert_eq!(refused_of(&longest), None);
    longest.types[0].push(b'x');
    assert_eq!(refused_of(&longest), Some(RefusalReason::Oversized));
}

fn refused(outcome: &AnswerOutcome<'_>) -> Option<RefusalReason> {
    match outcome {
        AnswerOutcome::Reply(reply) => reply.refused(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unreadable_body_is_reported_before_other_errors() {
    let context = context(layer(), ServiceFacts { site: b"a site record", ..ServiceFacts::ALONE });
    for op_code in OpCode::KNOWN.iter().filter(|op_code| op_code.is_deployed()) {
        for (session_id, body) in [(0, &b""[..]), (9, b""), (0, &[0, 0, 0, 9, b'/'])] {
            let spec = RequestSpec { session_id, ..RequestSpec::new("") };
            let datagram = spec.frame(&Request::Unknown(*op_code, body));
            let outcome = answer(&context, &datagram);
            assert_eq!(refused(&outcome), Some(RefusalReason::Malformed), "{op_code:?} {body:?}");
            let (envelope, _) = write_and_reassemble(&outcome).unwrap();
            assert_eq!((envelope.version, envelope.request_id), (Version::COMPATIBLE, -1));
        }
    }
}

#[test]
fn unsupported_operations_are_refused_with_their_codes() {
    use handle_proto::wire::admin::HandleBody;
    use handle_proto::wire::auth::VerificationRequest;
    use handle_proto::wire::digest::RequestDigest;
    use handle_proto::wire::list::Reference;
    use handle_proto::wire::session::{KeyExchange, SessionSetup};
    let context = context(layer(), ServiceFacts::ALONE);
    let handle = HandleBody { handle: b"/" };
    let identity = Reference { handle: b"10.1/admin", index: 300 };
    let digest = RequestDigest { algorithm: handle_proto::code::DigestAlgorithm::SHA1, digest: &[0; 20] };
    let verification = VerificationRequest { identity, nonce: &[0; 16], digest, signed_response: b"" };
    let setup = SessionSetup { exchange: KeyExchange::ServerKey, timeout_s: 0, identity };
    let cases = [
        (Request::GetSiteInfo(handle), ResponseCode::OPERATION_NOT_SUPPORTED),
        (Request::ListHandles(handle), ResponseCode::PROTOCOL_ERROR),
        (Request::SessionTerminate(handle), ResponseCode::SESSION_TIMEOUT),
        (Request::Unknown(OpCode(999), b""), ResponseCode::ERROR),
        (Request::Unknown(OpCode::LIST_NA, b""), ResponseCode::ERROR),
        (Request::VerifyChallenge(verification), ResponseCode::OPERATION_NOT_SUPPORTED),
        (Request::SessionSetup(setup), ResponseCode::SESSION_FAILED),
    ];
    for (request, code) in cases {
        let datagram = RequestSpec::new("").frame(&request);
        let (_, message) = write_and_reassemble(&answer(&context, &datagram)).unwrap();
        assert_eq!(Message::decode(&message).unwrap().header.response_code, code, "{request:?}");
    }
}

#[test]
fn the_site_record_is_sent() {
    use handle_proto::wire::admin::HandleBody;
    let service = ServiceFacts { site: b"a site record", ..ServiceFacts::ALONE };
    let datagram = RequestSpec::new("").frame(&Request::GetSiteInfo(HandleBody { handle: b"/" }));
    let (_, message) = write_and_reassemble(&answer(&context(layer(), service), &datagram)).unwrap();
    let message = Message::decode(&message).unwrap();
    assert_eq!((message.header.response_code, message.body), (ResponseCode::SUCCESS, &b"a site record"[..]));
}

/// A record of `count` values.
fn layer_of_one(count: i32) -> [Layer<Vec<u8>>; 1] {
    let mut homed = HomedPrefixes::default();
    assert!(homed.add(b"10.1"));
    let options = LayerOptions { seed: 7, folds: true, created_unix_ms: 1 };
    let mut builder = Builder::new(&std::env::temp_dir(), options).homed(homed);
    builder.add(0, b"10.1/many", (1..=count).map(|index| Value::new(index, b"T", b""))).unwrap();
    let (file, _) = builder.finish(Cursor::new(Vec::new())).unwrap();
    [Layer::open(file.into_inner()).unwrap()]
}

#[test]
fn lists_too_long_for_a_worker_are_sorted_on_the_slow_path() {
    const VALUES: i32 = 256;
    let layers = layer_of_one(VALUES);
    let alone = ServiceFacts::ALONE;
    let with_slow_path = ServiceFacts { authenticates: true, ..alone };
    let most = QUERY_COMPARISONS_MAX / usize::try_from(VALUES).unwrap();
    let longest = (MESSAGE_LEN_MAX as usize - 100) / 4;
    for flags in [OpFlags::PLAIN_REQUEST, OpFlags::PLAIN_REQUEST.without(OpFlags::PUBLIC_ONLY)] {
        let datagram = |count: usize| {
            let indexes = (1u32..).take(count).map(u32::to_be_bytes).collect();
            RequestSpec { flags, indexes, ..RequestSpec::new("10.1/many") }.datagram()
        };
        for (count, is_long) in [(most, false), (most + 1, true), (longest, true)] {
            let datagram = datagram(count);
            let (envelope, bytes) = Envelope::split(&datagram).unwrap();
            let refused_alone = refused(&answer_message(&context(&layers, alone), envelope, bytes));
            assert_eq!(refused_alone, is_long.then_some(RefusalReason::QueryTooLong), "without a slow path");
            let outcome = answer_message(&context(&layers, with_slow_path), envelope, bytes);
            let reason = match outcome {
                AnswerOutcome::Slow(slow) => Some(slow.reason()),
                _ => None,
            };
            assert_eq!(reason, is_long.then_some(SlowReason::Template));
            let buffer = SortingBuffer::new();
            let context = context(&layers, with_slow_path).sorting_in(&buffer);
            let (_, message) = write_and_reassemble(&answer_message(&context, envelope, bytes)).unwrap();
            let expected = plain_answer(&layers, count.min(256));
            assert_eq!(Message::decode(&message).unwrap().body, expected, "{count}");
        }
    }
}

/// The body of the answer with the first `count` values of `10.1/many`.
fn plain_answer(layers: &[Layer<Vec<u8>>], count: usize) -> Vec<u8> {
    let all = RequestSpec::new("10.1/many").datagram();
    let (_, message) = write_and_reassemble(&answer(&context(layers, ServiceFacts::ALONE), &all)).unwrap();
    let body = Message::decode(&message).unwrap().body.to_vec();
    let values_at = 4 + "10.1/many".len() + 4;
    let len = (body.len() - values_at) / 256 * count;
    let mut body = body[..values_at + len].to_vec();
    body[values_at - 4..values_at].copy_from_slice(&u32::try_from(count).unwrap().to_be_bytes());
    body
}

#[test]
fn answers_of_too_many_datagrams_and_those_too_long_for_a_message_are_refused() {
    let ask_in = |datagrams| {
        let service = ServiceFacts { answer_datagrams_max: datagrams, ..ServiceFacts::ALONE };
        let datagram = RequestSpec::new("10.1/long").datagram();
        let AnswerOutcome::Reply(reply) = answer(&context(layer(), service), &datagram) else {
            panic!("a reply")
        };
        (reply.response_code(), reply.refused())
    };
    assert_eq!(ask_in(1), (ResponseCode::ERROR, Some(RefusalReason::TooManyDatagrams)));
    assert_eq!(ask_in(2), (ResponseCode::SUCCESS, None));
    // With its signature, an answer can be longer than a message may be.
    let longest = MESSAGE_LEN_MAX as usize;
    assert_eq!(too_long(2 * UDP_DATA_LEN_MAX, 2), None);
    assert_eq!(too_long(2 * UDP_DATA_LEN_MAX + 1, 2), Some(RefusalReason::TooManyDatagrams));
    assert_eq!(too_long(longest, FRAGMENTS_MAX), None);
    assert_eq!(too_long(longest + 1, FRAGMENTS_MAX), Some(RefusalReason::AnswerTooLong));
}

#[test]
fn every_reason_has_its_own_name_and_number() {
    for (at, &refused) in RefusalReason::ALL.iter().enumerate() {
        assert_eq!(refused as usize, at);
        assert!(RefusalReason::ALL.iter().filter(|other| other.name() == refused.name()).count() == 1);
        assert!(refused.code() != ResponseCode::SUCCESS);
    }
}

/// Requests of all kinds, some of them mutated.
fn datagrams() -> impl Strategy<Value = Vec<u8>> {
    let handle = prop_oneof![
        4 => prop::sample::select(RECORDS).prop_map(|(handle, _)| handle.to_owned()),
        2 => "(0\\.NA|10\\.1|99\\.9)[./][a-zA-Z0-9./]{0,12}",
        1 => "\\PC{0,40}",
        1 => "[a-z]{400}",
    ];
    let spec_parts = (
        handle,
        prop::collection::vec(0..8i32, 0..3),
        prop::collection::vec(prop::sample::select(vec!["URL", "url.", "EMAIL", "", ".", "HS_SECKEY"]), 0..3),
        any::<u32>(),
        (0..13u8, 0..13u8, -1..2i32),
    );
    let good = spec_parts.prop_map(|(handle, indexes, types, flags, (minor, suggested, session_id))| {
        let mut spec = RequestSpec::new(&handle);
        indexes.into_iter().for_each(|index| spec.indexes.push(index.to_be_bytes()));
        types.into_iter().for_each(|kind| spec.types.push(kind.as_bytes().to_vec()));
        spec.flags = OpFlags(flags);
        spec.version = Version::new(2, minor);
        spec.suggested = Version::new(2, suggested);
        spec.session_id = session_id;
        spec.datagram()
    });
    let mutated = (good.clone(), any::<prop::sample::Index>(), any::<u8>(), 0..600usize).prop_map(
        |(mut datagram, at, byte, len)| {
            let at = at.index(datagram.len());
            datagram[at] = byte;
            datagram.truncate(len.max(1));
            datagram
        },
    );
    prop_oneof![3 => good, 2 => mutated, 1 => prop::collection::vec(any::<u8>(), 0..600)]
}

/// Answers `datagrams` as a batch, checks each outcome against that of [`answer`], and counts the
/// fast answers.
fn check_against_single(layers: &[Layer<Vec<u8>>], datagrams: &[Vec<u8>]) -> usize {
    let context = context(layers, ServiceFacts::ALONE);
    let mut scratch = Scratch::new();
    let mut batch = vec![None; datagrams.len()];
    answer_batch(&context, &mut scratch, datagrams.iter().map(Vec::as_slice), |at, outcome| {
        assert!(batch[at].is_none(), "two outcomes of one request");
        batch[at] = Some(*outcome);
    });
    let mut fast_count = 0;
    for (datagram, batch) in datagrams.iter().zip(batch) {
        let alone = answer(&context, datagram);
        match batch.expect("an outcome") {
            InBatch::Other(outcome) => {
                assert_eq!(format!("{outcome:?}"), format!("{alone:?}"));
                assert_eq!(write_and_reassemble(&outcome), write_and_reassemble(&alone));
            }
            InBatch::Fast(fast) => {
                let AnswerOutcome::Reply(reply) = alone else { panic!("{alone:?}") };
                let (mut bytes, mut expected) =
                    (vec![0xaa; fast.datagrams_len()], vec![0x55; reply.datagrams_len()]);
                fast.write_datagrams(&mut bytes);
                reply.write_datagrams(&mut expected);
                assert_eq!(bytes, expected);
                assert_eq!((fast.response_code(), reply.refused()), (reply.response_code(), None));
                assert_eq!(format!("{:?}", fast.limited()), format!("{:?}", reply.limited()));
                fast_count += 1;
            }
        }
    }
    fast_count
}

#[test]
fn variants_of_a_fast_request_get_the_same_answer_in_a_batch() {
    // All prefixes are homed, so all records of the layer are marked as homed.
    let layers = [build(&["10.1", "0.NA", "99.9"], true)];
    let check = |datagrams: &[Vec<u8>]| check_against_single(&layers, datagrams);
    let request = RequestSpec::new("10.1/public").datagram();
    assert_eq!(check(std::slice::from_ref(&request)), 1);
    let changed: Vec<Vec<u8>> = (0..request.len() * 8)
        .map(|bit| {
            let mut changed = request.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            changed
        })
        .collect();
    assert!((100..changed.len()).contains(&check(&changed)));
    let cut: Vec<Vec<u8>> = (0..request.len()).map(|len| request[..len].to_vec()).collect();
    assert_eq!(check(&cut), 0);
    let longer: Vec<Vec<u8>> = (1..20).map(|more| [request.clone(), vec![0; more]].concat()).collect();
    check(&longer);
}

proptest! {
    #[test]
    fn batched_and_single_answers_are_equal(
        datagrams in prop::collection::vec(datagrams(), 0..80)
    ) {
        check_against_single(layer(), &datagrams);
        check_against_single(&[build(&["10.1", "0.NA", "99.9"], true)], &datagrams);
    }

    #[test]
    fn replies_contain_only_public_values(datagram in datagrams()) {
        let context = context(layer(), ServiceFacts::ALONE);
        if let Some((_, message)) = write_and_reassemble(&answer(&context, &datagram)) {
            for secret in [&b"open sesame"[..], b"nobody reads this", b"hidden"] {
                // A secret that the client sent as part of a name may be repeated.
                let echoed = datagram.windows(secret.len()).any(|window| window == secret);
                let leaked = message.windows(secret.len()).any(|window| window == secret);
                prop_assert!(!leaked || echoed);
            }
        }
    }
}
