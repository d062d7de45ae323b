//! Requests over a fixed set of records, answered one at a time and in batches.

use crate::container::datagrams;
use crate::fixture::{FIXTURES, Fixture};
use crate::frame::with_lengths;
use arbitrary::{Arbitrary, Unstructured};
use handle_proto::limit::{HANDLE_LEN_MAX, MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::name::SITE_STATUS;
use handle_proto::value::type_matches;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::reassembly::{Reassembly, ReassemblyLimits, ReassemblyOutcome};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
use handle_proto::{Handle, OpCode, OpFlags, Permissions, ResponseCode, Value, ValueBuf, Version, fold};
use handle_resolver::batch::Scratch;
use handle_resolver::slow::{FirstEvaluation, SlowReason};
use handle_resolver::{
    AnswerContext, AnswerOutcome, DropReason, InBatch, RefusalReason, ReplyParts, SlowPathRequest,
    WireReply as _, answer, answer_batch, answer_message,
};

/// Types whose values delegate derived prefixes.
const DELEGATION: [&[u8]; 3] = [b"HS_SITE.PREFIX", b"HS_NA_DELEGATE", b"HS_SERV.PREFIX"];
/// Maximum length of a request digest: SHA-256 and its code.
const DIGEST_LEN_MAX: usize = 33;
/// Maximum number of ancestors of a prefix that are checked.
const ANCESTORS_MAX: usize = 16;

/// The answer to every request is a message: its lengths are right, it decodes, it has the id of
/// the request if that was readable, its datagrams equal its stream form, and all of its values are
/// public. A valid question gets the values that a plain search finds. Two servers never answer
/// each other endlessly. A server that signs and makes challenges gives the same answer, or leaves
/// it to its slow path, which gives the same answer unless it depends on the identity.
///
/// Input: a datagram. It is used as it is, and with corrected lengths.
pub fn resolver(bytes: &[u8]) {
    for fixture in &*FIXTURES {
        check_datagram(fixture, bytes);
        check_datagram(fixture, &with_lengths(bytes));
    }
}

fn check_datagram(fixture: &Fixture, datagram: &[u8]) {
    let context = fixture.context();
    let outcome = answer(&context, datagram);
    check(fixture, datagram, &outcome);
    let Ok((envelope, rest)) = Envelope::split(datagram) else { return };
    let whole = answer_message(&context, envelope, rest);
    if !matches!(outcome, AnswerOutcome::Fragment(_)) && datagram.len() <= UDP_MESSAGE_LEN_MAX {
        assert_eq!(written(&whole), written(&outcome));
    }
    check(fixture, datagram, &whole);
    let context = fixture.slow_context();
    if let AnswerOutcome::Slow(slow) = answer_message(&context, envelope, rest) {
        check_slow(&context, &slow, &whole);
    } else {
        assert_eq!(written(&answer_message(&context, envelope, rest)), written(&whole));
    }
    check_in_session(fixture, envelope, rest);
}

/// A server with sessions gives the same answer inside a session as outside, before it checks
/// whether the session exists; everything except a question for public values goes to its slow
/// path.
fn check_in_session(fixture: &Fixture, envelope: Envelope, rest: &[u8]) {
    let context = fixture.session_context();
    let plain = |envelope| written(&answer_message(&fixture.context(), envelope, rest));
    match answer_message(&context, envelope, rest) {
        AnswerOutcome::InSession(reply) => {
            assert!(envelope.session_id > 0);
            let DatagramOutcome::Datagrams(expected) = plain(Envelope { session_id: 0, ..envelope }) else {
                panic!("an answer in a session, but none outside it")
            };
            let DatagramOutcome::Datagrams(mut datagrams) = written(&AnswerOutcome::Reply(reply)) else {
                unreachable!()
            };
            for datagram in datagrams.chunks_mut(UDP_MESSAGE_LEN_MAX) {
                datagram[4..8].fill(0);
            }
            assert_eq!(datagrams, expected);
        }
        AnswerOutcome::Encrypted => {
            assert!(envelope.flags.has(EnvelopeFlags::ENCRYPTED) && envelope.session_id > 0);
        }
        AnswerOutcome::Slow(slow) => match slow.reason() {
            SlowReason::Session => assert!(envelope.session_id > 0),
            SlowReason::SessionSetup => assert_eq!(slow.op_code(), OpCode::SESSION_SETUP),
            _ => assert!(envelope.session_id <= 0),
        },
        other => assert_eq!(written(&other), plain(envelope)),
    }
}

/// Compares the answer of the slow path before authentication with that of a server without a slow
/// path.
fn check_slow(context: &AnswerContext<'_, Vec<u8>>, slow: &SlowPathRequest<'_>, plain: &AnswerOutcome<'_>) {
    let AnswerOutcome::Reply(plain) = plain else { panic!("{plain:?} for a request for the slow path") };
    match slow.reason() {
        SlowReason::Certify => assert!(slow.certifies()),
        SlowReason::Identity => assert_eq!(plain.refused(), Some(RefusalReason::NotPublic)),
        SlowReason::Template => assert!(slow.handle().contains(&b'@')),
        SlowReason::ChallengeAnswer
        | SlowReason::Verification
        | SlowReason::SessionSetup
        | SlowReason::Session => return,
    }
    match slow.evaluate(context) {
        FirstEvaluation::Reply(reply) => {
            assert_eq!(slow.reason(), SlowReason::Certify);
            assert_eq!(written(&AnswerOutcome::Reply(reply)), written(&AnswerOutcome::Reply(*plain)));
        }
        FirstEvaluation::Template => {
            let reply = slow.not_computed(context);
            assert_eq!(written(&AnswerOutcome::Reply(reply)), written(&AnswerOutcome::Reply(*plain)));
            check_computed(context, slow);
        }
        FirstEvaluation::Uncached => panic!("there is no cache"),
        FirstEvaluation::Identity => {
            assert_eq!(plain.refused(), Some(RefusalReason::NotPublic));
            let reply = slow.challenge(context, 7, &[0; 16]);
            assert_eq!(reply.response_code(), ResponseCode::AUTHENTICATION_NEEDED);
            assert!(matches!(slow.digest().as_bytes().len(), 16 | 20 | 32));
        }
    }
}

/// Asserts that only public and requested ones of the computed values are sent.
fn check_computed(context: &AnswerContext<'_, Vec<u8>>, slow: &SlowPathRequest<'_>) {
    let values = [
        Value::new(1, b"URL", b"public"),
        Value { permissions: Permissions::ADMIN_READ, ..Value::new(2, b"URL", b"withheld") },
        Value::new(100, b"EMAIL", b"public"),
    ];
    let mut bytes = Vec::new();
    values.iter().for_each(|value| value.encode(&mut bytes));
    let reply = slow.computed(context, &mut bytes, values.len());
    let DatagramOutcome::Datagrams(datagrams) = written(&AnswerOutcome::Reply(reply)) else {
        panic!("the reply is not written")
    };
    assert!(!datagrams.windows(8).any(|bytes| bytes == b"withheld"));
    let codes =
        [ResponseCode::SUCCESS, ResponseCode::VALUES_NOT_FOUND, ResponseCode::OPERATION_NOT_SUPPORTED];
    assert!(codes.contains(&reply.response_code()), "{:?}", reply.response_code());
}

/// The outcome of a datagram, in bytes.
#[derive(Debug, PartialEq, Eq)]
enum DatagramOutcome {
    Datagrams(Vec<u8>),
    Dropped(DropReason),
    Fragment(Envelope),
}

fn written(outcome: &AnswerOutcome<'_>) -> DatagramOutcome {
    match outcome {
        AnswerOutcome::Reply(reply) => {
            let mut datagrams = vec![0xaa; reply.datagrams_len()];
            reply.write_datagrams(&mut datagrams);
            DatagramOutcome::Datagrams(datagrams)
        }
        AnswerOutcome::Drop(reason) => DatagramOutcome::Dropped(*reason),
        AnswerOutcome::Fragment(envelope) => DatagramOutcome::Fragment(*envelope),
        AnswerOutcome::Slow(_) => panic!("a server without a slow path leaves nothing to it"),
        AnswerOutcome::InSession(_) | AnswerOutcome::Encrypted => {
            panic!("a server without sessions answers in one")
        }
        AnswerOutcome::Listing | AnswerOutcome::Administration => {
            panic!("a server that forwards nothing does not answer")
        }
    }
}

fn check(fixture: &Fixture, request_bytes: &[u8], outcome: &AnswerOutcome<'_>) {
    match outcome {
        AnswerOutcome::Reply(reply) => check_reply(fixture, request_bytes, reply),
        AnswerOutcome::Fragment(envelope) => {
            assert!(envelope.flags.has(EnvelopeFlags::TRUNCATED));
            assert_eq!(Envelope::split(request_bytes).map(|(envelope, _)| envelope), Ok(*envelope));
        }
        // Only an answer without an addressee is ignored.
        AnswerOutcome::Drop(DropReason::ErrorReply) => {
            let (envelope, rest) = Envelope::split(request_bytes).expect("the request could be read");
            let header = Header::split(rest).expect("the request could be read").0;
            assert_ne!(header.response_code, ResponseCode::RESERVED);
            assert_eq!(envelope.request_id, ReplyParts::UNREADABLE_REQUEST_ID);
        }
        AnswerOutcome::Drop(DropReason::TooShort) => assert!(request_bytes.len() < Envelope::LEN),
        AnswerOutcome::Drop(reason) => panic!("unexpected reason {reason:?}"),
        AnswerOutcome::Slow(_) => panic!("a server without a slow path leaves nothing to it"),
        AnswerOutcome::InSession(_) | AnswerOutcome::Encrypted => {
            panic!("a server without sessions answers in one")
        }
        AnswerOutcome::Listing | AnswerOutcome::Administration => {
            panic!("a server that forwards nothing does not answer")
        }
    }
}

fn check_reply(fixture: &Fixture, request_bytes: &[u8], reply: &ReplyParts<'_>) {
    let mut stream = vec![0xaa; Envelope::LEN + reply.message_len()];
    reply.write_stream(&mut stream);
    assert_eq!(reassembled(reply), stream);
    let (envelope, rest) = Envelope::split(&stream).expect("an envelope was written");
    assert_eq!((envelope.message_len as usize, rest.len()), (reply.message_len(), reply.message_len()));
    assert!(envelope.version <= Version::CURRENT);
    let message = Message::decode(rest).expect("a message was written");
    assert_eq!((message.covered.len() + 4, message.credential), (rest.len(), &[][..]));
    assert_eq!(message.header.response_code, reply.response_code());
    assert_eq!(message.header.op_code, reply.op_code());
    assert!(reply.datagrams_count() <= fixture.service.answer_datagrams_max);
    if let Some(refused) = reply.refused() {
        assert_eq!(refused.code().for_version(envelope.version), reply.response_code());
        assert_ne!(refused, RefusalReason::DamagedRecord, "the records are intact");
    }
    let body = message.decode_body(envelope.version).expect("a body was written");
    let Body::Reply(body) = body else { panic!("a request was written: {body:?}") };
    let request = Envelope::split(request_bytes).ok().map(|(envelope, _)| envelope);
    echoes_end(fixture, &stream);
    if envelope.request_id != ReplyParts::UNREADABLE_REQUEST_ID || envelope.version != Version::COMPATIBLE {
        assert_eq!(request.map(|request| request.request_id), Some(envelope.request_id));
        assert_eq!(request.map(|request| request.session_id), Some(envelope.session_id));
    }
    match body.response {
        Response::Answer(answer) => assert!(answer.values.iter().all(|value| value.is_public())),
        Response::Referral(referral) => {
            assert!(referral.values.expect("a referral has values").iter().all(|value| value.is_public()));
        }
        Response::SiteInfo(site) => assert_eq!(site, fixture.service.site),
        Response::Failure(_) => {}
        other => panic!("unexpected response: {other:?}"),
    }
    compare(fixture, request_bytes, reply, body.code, &body.response);
}

/// Reassembles the datagrams of a reply.
fn reassembled(reply: &ReplyParts<'_>) -> Vec<u8> {
    let DatagramOutcome::Datagrams(datagrams) = written(&AnswerOutcome::Reply(*reply)) else {
        unreachable!()
    };
    let count = datagrams.chunks(UDP_MESSAGE_LEN_MAX).count();
    assert_eq!(count, reply.datagrams_count());
    let mut table = Reassembly::new(ReassemblyLimits {
        messages_max: 1,
        messages_per_sender_max: 1,
        bytes_max: MESSAGE_LEN_MAX as usize,
        age_ms_max: 1,
    });
    for (n, datagram) in datagrams.chunks(UDP_MESSAGE_LEN_MAX).enumerate() {
        match table.accept((), datagram, 0).expect("the fragments fit") {
            ReassemblyOutcome::Whole(bytes) => {
                assert_eq!(count, 1);
                return bytes.to_vec();
            }
            ReassemblyOutcome::Complete(bytes) => {
                assert_eq!(n + 1, count);
                return bytes;
            }
            ReassemblyOutcome::Incomplete => {}
        }
    }
    panic!("{count} datagrams are not a message");
}

/// An answer that is sent to a server as a request gets at most one answer; that one, sent back, is
/// dropped.
fn echoes_end(fixture: &Fixture, stream: &[u8]) {
    let context = fixture.context();
    let mut stream = stream.to_vec();
    for _ in 0..2 {
        let (envelope, rest) = Envelope::split(&stream).expect("an envelope was written");
        let reply = match answer_message(&context, envelope, rest) {
            AnswerOutcome::Drop(DropReason::ErrorReply) => return,
            AnswerOutcome::Reply(reply) => reply,
            other => panic!("{other:?} to an answer"),
        };
        let mut echo = vec![0; Envelope::LEN + reply.message_len()];
        reply.write_stream(&mut echo);
        stream = echo;
    }
    panic!("an answer to an answer is answered");
}

/// Asserts that the answer to a valid question is that of a plain search.
fn compare(
    fixture: &Fixture,
    request_bytes: &[u8],
    reply: &ReplyParts<'_>,
    code: ResponseCode,
    response: &Response<'_>,
) {
    let Ok((_, rest)) = Envelope::split(request_bytes) else { return };
    let Ok(message) = Message::decode(rest) else { return };
    if message.header.op_code != OpCode::RESOLUTION || message.header.response_code != ResponseCode::RESERVED
    {
        return;
    }
    let Ok(query) = Query::decode(message.body) else { return };
    let values = model_values(fixture, query.handle).map(|values| selected(values, &query));
    let public = |values: &[Value<'_>]| values.iter().filter(|value| value.is_public()).count();
    if matches!(reply.refused(), Some(RefusalReason::AnswerTooLong | RefusalReason::TooManyDatagrams)) {
        let found = values.clone().or_else(|| delegation(fixture, query.handle)).expect("a record");
        let values_len =
            found.iter().filter(|value| value.is_public()).map(Value::encoded_len).sum::<usize>();
        let answer_len = Header::LEN + DIGEST_LEN_MAX + 12 + query.handle.len() + values_len;
        assert!(answer_len > fixture.service.answer_datagrams_max * UDP_DATA_LEN_MAX);
    }
    match code {
        ResponseCode::SUCCESS => {
            let Response::Answer(answer) = response else { panic!("no answer: {response:?}") };
            let expected: Vec<_> =
                values.expect("a record").into_iter().filter(|value| value.is_public()).collect();
            assert_eq!((answer.handle, answer.values.iter().collect::<Vec<_>>()), (query.handle, expected));
            assert!(!answer.values.is_empty());
        }
        ResponseCode::VALUES_NOT_FOUND => {
            assert!(fold::eq(query.handle, SITE_STATUS) || public(&values.expect("a record")) == 0);
        }
        ResponseCode::HANDLE_NOT_FOUND => {
            assert_eq!(values, None);
            let refers = !message.header.flags.has(OpFlags::DO_NOT_REFER);
            assert!(!refers || delegation(fixture, query.handle).is_none());
        }
        // The meaning of the code of a referral in old versions.
        ResponseCode::SERVER_READ_ONLY => {
            assert_eq!((values, reply.response_code()), (None, ResponseCode::PREFIX_REFERRAL));
            assert!(delegation(fixture, query.handle).is_some());
        }
        ResponseCode::PREFIX_REFERRAL => {
            assert_eq!(values, None);
            let Response::Referral(referral) = response else { panic!("no referral: {response:?}") };
            let expected = delegation(fixture, query.handle);
            assert_eq!(referral.values.map(|values| values.iter().collect()), expected);
        }
        ResponseCode::INSUFFICIENT_PERMISSIONS => {
            let values = values.expect("a record");
            assert!(public(&values) < values.len());
            assert!(!message.header.flags.has(OpFlags::PUBLIC_ONLY));
        }
        ResponseCode::SERVER_NOT_RESPONSIBLE => {
            let handle = Handle(query.handle);
            let is_homed = fixture.homed.contains(&fold::folded(handle.naming_authority()));
            assert!(!is_homed || !fixture.service.has(handle));
        }
        // Sessions, authentication, encryption, and unreadable requests.
        _ => {}
    }
}

/// The key of the record of a handle.
fn key(fixture: &Fixture, handle: &[u8]) -> Vec<u8> {
    let mut key = Handle(handle).looked_up();
    if fixture.folds {
        fold::fold(&mut key);
    }
    key
}

/// The public delegation values of the nearest ancestor of a derived prefix.
fn delegation<'f>(fixture: &'f Fixture, handle: &[u8]) -> Option<Vec<Value<'f>>> {
    let key = key(fixture, handle);
    let mut name = Handle(&key);
    for _ in 0..ANCESTORS_MAX {
        name = name.parent_prefix_record()?;
        let values = fixture.model.get(name.0).into_iter().flatten().map(ValueBuf::view);
        let delegates = |value: &Value<'_>| DELEGATION.iter().any(|kind| fold::eq(kind, value.kind));
        let found: Vec<_> = values.filter(|value| value.is_public() && delegates(value)).collect();
        if !found.is_empty() {
            return Some(found);
        }
    }
    None
}

fn model_values<'f>(fixture: &'f Fixture, handle: &[u8]) -> Option<Vec<Value<'f>>> {
    let key = key(fixture, handle);
    if key.len() > HANDLE_LEN_MAX {
        return None;
    }
    let values = fixture.model.get(&key)?;
    Some(values.iter().map(ValueBuf::view).collect())
}

fn selected<'f>(mut values: Vec<Value<'f>>, query: &Query<'_>) -> Vec<Value<'f>> {
    let takes_all = query.indexes.is_empty() && query.types.is_empty();
    values.retain(|value| {
        takes_all
            || query.indexes.iter().any(|index| index == value.index)
            || query.types.iter().any(|kind| type_matches(kind, value.kind))
    });
    values
}

/// A well-formed question, most often about an existing record.
#[derive(Arbitrary, Debug)]
struct QuestionSpec {
    name: u8,
    spelling: Spelling,
    tail: Vec<u8>,
    indexes: Vec<i8>,
    types: Vec<(u8, bool)>,
    flags: u16,
    version: (u8, u8),
    suggested: (u8, u8),
    session_id: i8,
    request_id: i32,
}

#[derive(Arbitrary, Debug)]
enum Spelling {
    Stored,
    Upper,
    Lower,
    /// Prepends `0.NA/`.
    PrefixRecord,
    /// Removes what follows the first slash.
    Prefix,
    /// Removes everything.
    None,
}

const TYPES: [&[u8]; 12] = [
    b"URL",
    b"url",
    b"URL.",
    b"HS_SITE",
    b"HS_SITE.",
    b"HS_ADMIN",
    b"HS_SECKEY",
    b"EMAIL",
    b"HS_",
    b".",
    b"",
    b"HS_VLIST",
];

/// A well-formed question is answered as [`resolver`] describes. For a homed prefix there is always
/// an answer: values, or the reason for their absence.
///
/// Input: any bytes, parsed as a question by the crate `arbitrary`.
pub fn question(bytes: &[u8]) {
    let Ok(spec) = QuestionSpec::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    for fixture in &*FIXTURES {
        let stream = spec.message(fixture);
        let context = fixture.context();
        let (envelope, rest) = Envelope::split(&stream).expect("a message was written");
        let outcome = answer_message(&context, envelope, rest);
        check(fixture, &stream, &outcome);
        if stream.len() <= UDP_MESSAGE_LEN_MAX {
            assert_eq!(written(&answer(&context, &stream)), written(&outcome));
        }
        let AnswerOutcome::Reply(reply) = outcome else { panic!("no reply to a question: {outcome:?}") };
        let is_plain = spec.session_id == 0 && spec.flags & 1 == 1;
        if is_plain && let Some(refused) = reply.refused() {
            assert!(matches!(
                refused,
                RefusalReason::OtherServer
                    | RefusalReason::NotHomed
                    | RefusalReason::QueryTooLong
                    | RefusalReason::AnswerTooLong
                    | RefusalReason::TooManyDatagrams
            ));
        }
    }
}

impl QuestionSpec {
    fn message(&self, fixture: &Fixture) -> Vec<u8> {
        let stored = &fixture.handles[usize::from(self.name) % fixture.handles.len()];
        let mut handle = match self.spelling {
            Spelling::Stored => stored.clone(),
            Spelling::Upper => stored.to_ascii_uppercase(),
            Spelling::Lower => stored.to_ascii_lowercase(),
            Spelling::PrefixRecord => Handle(stored).prefix_record(),
            Spelling::Prefix => Handle(stored).naming_authority().to_vec(),
            Spelling::None => Vec::new(),
        };
        handle.extend_from_slice(&self.tail);
        let types = self.types.iter().map(|&(kind, _)| TYPES[usize::from(kind) % TYPES.len()]);
        let (mut indexes, mut types_encoded) = (Vec::new(), Vec::new());
        let query = Query {
            handle: &handle,
            indexes: Indexes::build(self.indexes.iter().map(|&index| index.into()), &mut indexes),
            types: Strings::build(types, &mut types_encoded),
        };
        let version = |(major, minor): (u8, u8)| Version::new(major & 3, minor & 15);
        let envelope = Envelope {
            version: version(self.version),
            flags: EnvelopeFlags::default(),
            suggested: version(self.suggested),
            session_id: self.session_id.into(),
            request_id: self.request_id,
            sequence: 0,
            message_len: 0,
        };
        // The lowest random bit selects public-only, so that it is found easily.
        let public_only = if self.flags & 1 == 1 { OpFlags::PUBLIC_ONLY } else { OpFlags(0) };
        let header = Header {
            flags: OpFlags(u32::from(self.flags) << 16).without(OpFlags::PUBLIC_ONLY).with(public_only),
            ..Header::from_bytes(&[0; Header::LEN])
        };
        let message = MessageBuf::request(&envelope, &header, &Request::Resolution(query));
        message.unsigned().expect("an input is shorter than a message may be")
    }
}

/// Each datagram of a batch is answered exactly once, byte for byte as if it were alone.
///
/// Input: datagrams, see `docs/fuzzing.md`. The choice byte is the number of repetitions, so that
/// batches beyond the pipeline depth are found easily.
pub fn batch(bytes: &[u8]) {
    let requests: Vec<&[u8]> = datagrams(bytes)
        .into_iter()
        .flat_map(|(choice, datagram)| std::iter::repeat_n(datagram, usize::from(choice % 40) + 1))
        .take(200)
        .collect();
    let mut scratch = Scratch::new();
    for fixture in &*FIXTURES {
        let context = fixture.context();
        let mut answered: Vec<Option<DatagramOutcome>> = requests.iter().map(|_| None).collect();
        answer_batch(&context, &mut scratch, requests.iter().copied(), |at, outcome| {
            let bytes = match outcome {
                InBatch::Fast(reply) => {
                    let mut datagram = vec![0xaa; reply.datagrams_len()];
                    reply.write_datagrams(&mut datagram);
                    DatagramOutcome::Datagrams(datagram)
                }
                InBatch::Other(outcome) => written(outcome),
            };
            assert!(answered[at].replace(bytes).is_none(), "answered twice");
        });
        for (answered, datagram) in answered.iter().zip(&requests) {
            assert_eq!(answered.as_ref(), Some(&written(&answer(&context, datagram))));
        }
    }
}
