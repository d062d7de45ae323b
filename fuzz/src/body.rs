//! Bodies of requests and responses, and credentials.
//!
//! Most targets assert that what decodes encodes to the same bytes, and that bytes after them are
//! ignored. This shows that no field is lost, moved or read twice.

use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::admin::{CreatedHandle, HandleBody, HandleIndexes, HandleValues, Listing};
use handle_proto::wire::auth::{
    Challenge, ChallengeAnswer, SecretAnswer, SignedAnswer, VerificationAnswer, VerificationRequest,
};
use handle_proto::wire::credential::{CoveredPrefix, Mac};
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::query::{Query, QueryAnswer};
use handle_proto::wire::referral::Referral;
use handle_proto::wire::replication::{
    DumpHandles, NextTransaction, RetrieveTransactions, TransactionsFollow,
};
use handle_proto::wire::session::{ExchangedKey, SessionAnswer, SessionKey, SessionSetup};
use handle_proto::wire::{Credential, Envelope, Header, Reply, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, Version};

/// Length of the padding after a session setup and its answer, which is written and never read.
const PADDING_LEN: usize = 2;

/// Decodes, encodes, and decodes again; returns the encoding, if there is one.
macro_rules! round_trip {
    ($decode:expr, $bytes:expr) => {
        round_trip!($decode, |read, out| read.encode(out), $bytes)
    };
    ($decode:expr, |$read:ident, $out:ident| $encode:expr, $bytes:expr) => {{
        let bytes: &[u8] = $bytes;
        match $decode(bytes) {
            Ok($read) => {
                let mut encoded = Vec::new();
                {
                    let $out = &mut encoded;
                    $encode;
                }
                match $decode(&encoded) {
                    Ok(again) => assert_eq!(again, $read),
                    Err(error) => panic!("{error}: {:?}", $read),
                }
                Some(encoded)
            }
            Err(error) => {
                assert!(error.at() <= bytes.len(), "{error}");
                None
            }
        }
    }};
}

/// Asserts that `bytes` begin with `encoded`.
fn assert_prefix(encoded: Option<Vec<u8>>, bytes: &[u8]) {
    if let Some(encoded) = encoded {
        assert!(bytes.starts_with(&encoded), "the input does not begin with the encoding {encoded:02x?}");
    }
}

/// The same for an encoding with padding at its end.
fn assert_padded_prefix(encoded: Option<Vec<u8>>, bytes: &[u8]) {
    let Some(mut encoded) = encoded else { return };
    assert_eq!(encoded.split_off(encoded.len() - PADDING_LEN), [0; PADDING_LEN]);
    assert_prefix(Some(encoded), bytes);
}

/// Splits off four bytes as a number.
fn number(bytes: &[u8]) -> Option<(i32, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (i32::from_be_bytes(*number), rest))
}

/// The body of a request, for every operation and version: encodes to the bytes it was read from.
///
/// Input: operation code in four bytes, version in two, and the body.
pub fn request_body(bytes: &[u8]) {
    let Some((op_code, rest)) = number(bytes) else { return };
    let Some((&[major, minor], body)) = rest.split_first_chunk() else { return };
    let (op_code, version) = (OpCode(op_code), Version::new(major, minor));
    let decoded = Request::decode(op_code, version, body);
    if let Ok(request) = &decoded {
        assert_eq!(request.op_code(), op_code);
        assert!(request.handle().is_none_or(|handle| handle.len() <= body.len()));
        assert_eq!(matches!(request, Request::Unknown(..)), !op_code.is_deployed());
    }
    let encoded = round_trip!(
        |bytes| Request::decode(op_code, version, bytes),
        |request, out| request.encode(version, out),
        body
    );
    match decoded {
        Ok(Request::SessionSetup(_)) => assert_padded_prefix(encoded, body),
        _ => assert_prefix(encoded, body),
    }
}

/// The body of a response, for every operation, response code and version: encodes to the bytes it
/// was read from, including the digest, or to the newer form of them.
///
/// Input: operation code and response code in four bytes each, version in two, a byte whose lowest
/// bit says that the body begins with a digest, and the next one that it shows a transaction, and
/// the body.
pub fn response_body(bytes: &[u8]) {
    let Some((op_code, rest)) = number(bytes) else { return };
    let Some((response_code, rest)) = number(rest) else { return };
    let Some((&[major, minor, digest], body)) = rest.split_first_chunk() else { return };
    let version = Version::new(major, minor);
    let mut header = Header::from_bytes(&[0; Header::LEN]);
    (header.op_code, header.response_code) = (OpCode(op_code), ResponseCode(response_code));
    if digest & 1 == 1 {
        header.flags = OpFlags::REQUEST_DIGEST;
    }
    if digest & 2 == 2 {
        header.flags = header.flags.with(OpFlags::SHOW_TRANSACTION);
    }
    let reply = match Reply::decode(&header, version, body) {
        Ok(reply) => reply,
        Err(error) => return assert!(error.at() <= body.len(), "{error}"),
    };
    let mut encoded = Vec::new();
    reply.encode(version, &mut encoded);
    // As written, without what old versions cannot express.
    header.response_code = reply.code.for_version(version);
    header.flags = reply.flags(header.flags, version);
    let again = Reply::decode(&header, version, &encoded).expect("a body was written");
    assert_eq!(again.response, reply.response);
    let is_written = version >= Version::LOWEST || matches!(reply.response, Response::Challenge(_));
    assert_eq!(again.digest, reply.digest.filter(|_| is_written));
    let mut twice = Vec::new();
    again.encode(version, &mut twice);
    assert_eq!(twice, encoded);
    let is_front = match reply.response {
        Response::Verdict(_) | Response::TransactionsFollow(_) | Response::Session(_) => false,
        // An empty text needs no length, but gets one.
        Response::Failure(failure) => !failure.message.is_empty(),
        _ => true,
    };
    if is_front && again.digest == reply.digest {
        assert_prefix(Some(encoded), body);
    }
}

/// The bodies of resolution, requests and answers: encode to the bytes they were read from; their
/// lists have the announced contents.
pub fn query(bytes: &[u8]) {
    assert_prefix(round_trip!(Query::decode, bytes), bytes);
    assert_prefix(round_trip!(QueryAnswer::decode, bytes), bytes);
    if let Ok(query) = Query::decode(bytes) {
        assert_eq!(query.indexes.iter().count(), query.indexes.len());
        assert_eq!(query.types.iter().count(), query.types.len());
        assert!(query.indexes.iter().all(|index| query.indexes.has(index)));
    }
    if let Ok(answer) = QueryAnswer::decode(bytes) {
        let values: Vec<_> = answer.values.iter().collect();
        assert_eq!(values.len(), answer.values.len());
        let mut storage = Vec::new();
        assert_eq!(handle_proto::Values::build(values, &mut storage), answer.values);
    }
}

/// The bodies of administration, both ways: encode to the bytes they were read from.
pub fn admin(bytes: &[u8]) {
    assert_prefix(round_trip!(HandleBody::decode, bytes), bytes);
    assert_prefix(round_trip!(HandleValues::decode, bytes), bytes);
    assert_prefix(round_trip!(HandleIndexes::decode, bytes), bytes);
    assert_prefix(round_trip!(CreatedHandle::decode, bytes), bytes);
    assert_prefix(round_trip!(Listing::decode, bytes), bytes);
}

/// The bodies of authentication, their answers, and the digest of a request: encode to the bytes
/// they were read from.
pub fn auth(bytes: &[u8]) {
    assert_prefix(round_trip!(Challenge::decode, bytes), bytes);
    let old = round_trip!(
        Challenge::decode_old,
        |it, out| {
            let (challenge, digest) = &it;
            assert_eq!(challenge.covered(digest), [challenge.nonce, digest.digest]);
            challenge.encode_old(digest.digest, out);
        },
        bytes
    );
    assert_prefix(old, bytes);
    assert_prefix(round_trip!(ChallengeAnswer::decode, bytes), bytes);
    assert_prefix(round_trip!(VerificationRequest::decode, bytes), bytes);
    assert_prefix(round_trip!(SignedAnswer::decode, bytes), bytes);
    assert_prefix(round_trip!(SecretAnswer::decode, bytes), bytes);
    assert_prefix(round_trip!(|it| RequestDigest::decode(&mut Cursor::new(it)), bytes), bytes);
    if round_trip!(VerificationAnswer::decode, bytes).is_some() {
        assert_eq!(VerificationAnswer::decode(bytes).map(|verdict| verdict.is_valid), Ok(bytes[0] == 1));
    }
    if let Ok(answer) = ChallengeAnswer::decode(bytes) {
        assert_prefix(round_trip!(SignedAnswer::decode, answer.signed_response), answer.signed_response);
        assert_prefix(round_trip!(SecretAnswer::decode, answer.signed_response), answer.signed_response);
    }
}

/// The bodies of sessions, and the keys inside them: encode to the bytes they were read from, and
/// two zero bytes.
pub fn session(bytes: &[u8]) {
    assert_padded_prefix(round_trip!(SessionSetup::decode, bytes), bytes);
    assert_padded_prefix(round_trip!(SessionAnswer::decode, bytes), bytes);
    assert_prefix(round_trip!(ExchangedKey::decode, bytes), bytes);
    for since in [SessionKey::DIFFIE_HELLMAN_SINCE, SessionKey::ENCRYPTED_KEY_SINCE] {
        for version in [Version::LOWEST, Version::new(2, 3), Version::CURRENT] {
            let decode = |it| SessionKey::decode(it, version, since);
            let encoded = round_trip!(decode, |it, out| it.encode(version, since, out), bytes);
            assert!(encoded.is_none_or(|encoded| encoded == bytes));
        }
    }
}

/// The bodies of referrals and of failures: encode to the bytes they were read from.
pub fn referral(bytes: &[u8]) {
    assert_prefix(round_trip!(Referral::decode, bytes), bytes);
    let failure = round_trip!(Failure::decode, bytes);
    // An empty text needs no length, but gets one.
    if bytes.is_empty() {
        assert_eq!(failure, Some(vec![0; 4]));
    } else {
        assert_prefix(failure, bytes);
    }
}

/// The bodies of replication, in old and new versions: encode to the bytes they were read from.
pub fn replication(bytes: &[u8]) {
    for version in [Version::new(2, 8), Version::new(2, 9)] {
        let encoded = round_trip!(
            |it| RetrieveTransactions::decode(it, version),
            |it, out| it.encode(version, out),
            bytes
        );
        assert_prefix(encoded, bytes);
    }
    assert_prefix(round_trip!(DumpHandles::decode, bytes), bytes);
    assert_prefix(round_trip!(NextTransaction::decode, bytes), bytes);
    if round_trip!(TransactionsFollow::decode, bytes).is_some() {
        let follow = TransactionsFollow::decode(bytes).expect("decoded before");
        assert_eq!(follow.keep_alive, bytes[0] & 1 == 1);
    }
}

/// A credential encodes to one with the same fields, and to the same bytes if none were left over.
/// A plain construction gives the bytes that a signature or MAC covers in each version.
pub fn credential(bytes: &[u8]) {
    let Ok(credential) = Credential::decode(bytes) else { return };
    let encoded = round_trip!(Credential::decode, bytes).expect("decoded before");
    assert_eq!(encoded.len(), credential.encoded_len());
    if encoded.len() == bytes.len() {
        assert_eq!(encoded, bytes);
    }
    assert!(!(credential.is_signed() && credential.is_mac()));
    let algorithm = credential.digest_algorithm().unwrap_or(DigestAlgorithm::SHA256);
    let (key, covered) = (credential.signature, credential.signer);
    let mut head = [0; Envelope::LEN];
    for (at, byte) in head.iter_mut().zip(bytes) {
        *at = *byte;
    }
    for minor in 0..=12 {
        (head[0], head[1]) = (2, minor);
        let envelope = Envelope::from_bytes(&head);
        let counter = credential.counter;
        let outside = if algorithm.is_hmac() { b"" } else { key };
        let expected = match minor {
            5 | 6 => {
                let zeros = vec![0; outside.len() + 10];
                [&outside[..outside.len().min(4)], covered, outside, &zeros].concat()
            }
            _ => [outside, &prefix(&envelope, counter), covered, outside].concat(),
        };
        let mac = Mac::of(&envelope, counter);
        let parts: Vec<_> = mac.parts(algorithm, key, covered).collect();
        assert_eq!(parts.concat(), expected);
        let signed = CoveredPrefix::of_signature(&envelope, counter);
        assert_eq!(signed.as_bytes().is_empty(), minor < 6);
        if minor != 6 {
            assert_eq!(signed.as_bytes(), prefix(&envelope, counter));
        }
    }
}

/// The signed bytes before header and body, in all versions but 2.6.
fn prefix(envelope: &Envelope, counter: i32) -> Vec<u8> {
    let (version, suggested) = (envelope.version, envelope.suggested);
    let numbers = [envelope.session_id, envelope.request_id, counter].map(i32::to_be_bytes);
    match version.minor {
        0..7 => Vec::new(),
        7 => [&[version.major, version.minor][..], numbers.as_flattened()].concat(),
        _ => {
            let versions = [version.major, version.minor, suggested.major, suggested.minor];
            [&versions[..], numbers.as_flattened()].concat()
        }
    }
}
