//! The frame of messages: envelope, header, and the whole message.

use handle_proto::json::{message_to_json, text};
use handle_proto::limit::{MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX, UDP_MESSAGE_LEN_MAX};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::fragment::{cut, within};
use handle_proto::wire::stream::{StreamFront, split};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf};
use handle_proto::{DecodeError, ResponseCode, Version};

/// 20 bytes are an envelope and 24 a header, and encode to the same bytes except for three unused
/// bits. The datagrams planned for a message carry each of its bytes once, in order, and no more.
///
/// Input: an envelope, then a header; either may be incomplete, and more bytes may follow.
pub fn envelope(bytes: &[u8]) {
    let split = Envelope::split(bytes);
    let Some((fixed, rest)) = bytes.split_first_chunk::<{ Envelope::LEN }>() else {
        assert!(split.is_err());
        return;
    };
    let envelope = Envelope::from_bytes(fixed);
    let mut masked = *fixed;
    masked[2] &= 0xe3;
    assert_eq!(envelope.to_bytes(), masked);
    assert_eq!(Envelope::from_bytes(&masked), envelope);
    assert_eq!(split.is_ok(), envelope.message_len <= MESSAGE_LEN_MAX);
    let answer = envelope.answer_version();
    assert!(answer <= Version::CURRENT && answer <= envelope.effective_suggested());
    if split.is_ok() {
        assert_eq!(split, Ok((envelope, rest)));
        plan(&envelope);
    }
    if let Some((fixed, _)) = rest.split_first_chunk::<{ Header::LEN }>() {
        assert_eq!(Header::from_bytes(fixed).to_bytes(), *fixed);
    }
}

fn plan(envelope: &Envelope) {
    let message_len = envelope.message_len as usize;
    let fragments = cut(envelope);
    let count = fragments.len();
    let mut end = 0;
    for (number, fragment) in fragments.enumerate() {
        let head = Envelope::from_bytes(&fragment.envelope);
        assert_eq!((fragment.range.start, head.sequence as usize), (end, number));
        assert_eq!(head.flags.has(EnvelopeFlags::TRUNCATED), count > 1);
        assert_eq!(head.message_len, envelope.message_len);
        assert!(number + 1 == count || fragment.range.len() == UDP_DATA_LEN_MAX);
        end = fragment.range.end;
    }
    assert_eq!((end, count), (message_len, message_len.div_ceil(UDP_DATA_LEN_MAX).max(1)));
}

/// A message that decodes is encoded to a message with the same fields, body and credential, whose
/// encoding is the same bytes again. Every decoded part lies inside the message.
///
/// Input: a message in its stream form. It is used as it is, and with corrected lengths.
pub fn message(bytes: &[u8]) {
    check_message(bytes);
    check_message(&with_lengths(bytes));
}

/// Returns the bytes with corrected lengths in envelope and header, and an empty credential if
/// there is none.
pub(crate) fn with_lengths(bytes: &[u8]) -> Vec<u8> {
    const BODY_AT: usize = Envelope::LEN + Header::LEN;
    let mut bytes = bytes.to_vec();
    if bytes.len() < BODY_AT {
        return bytes;
    }
    let body_len_of =
        |bytes: &[u8]| u32::from_be_bytes([bytes[40], bytes[41], bytes[42], bytes[43]]) as usize;
    if body_len_of(&bytes) > bytes.len() - BODY_AT {
        let body_len = u32::try_from(bytes.len() - BODY_AT).unwrap_or(u32::MAX);
        bytes[40..44].copy_from_slice(&body_len.to_be_bytes());
        bytes.extend([0; 4]);
    }
    let message_len = u32::try_from(bytes.len() - Envelope::LEN).unwrap_or(u32::MAX);
    bytes[16..20].copy_from_slice(&message_len.to_be_bytes());
    bytes
}

fn check_message(bytes: &[u8]) {
    let front = split(bytes, MESSAGE_LEN_MAX);
    let Ok((envelope, rest)) = Envelope::split(bytes) else {
        assert!(matches!(front, Ok(StreamFront::Needs(_)) | Err(_)));
        return;
    };
    let message_len = envelope.message_len as usize;
    match front {
        Ok(StreamFront::Message(whole, after)) => assert_eq!([whole, after].concat(), bytes),
        Ok(StreamFront::Needs(needed)) => assert_eq!(rest.len() + needed, message_len),
        Err(error) => panic!("{error}"),
    }
    let rest = &rest[..message_len.min(rest.len())];
    let message = Message::decode(rest);
    assert_prints(&envelope, message.as_ref(), rest);
    let message = match message {
        Ok(message) => message,
        Err(error) => return assert!(error.at() <= rest.len()),
    };
    assert_eq!(message.covered, &rest[..Header::LEN + message.body.len()]);
    assert_eq!(message.body, &message.covered[Header::LEN..]);
    assert!(message.covered.len() + message.credential.len() <= rest.len());
    let parts: [&[u8]; 2] = [message.covered, &rest[message.covered.len()..]];
    for start in (0..rest.len()).step_by(UDP_MESSAGE_LEN_MAX) {
        let range = start..rest.len().min(start + UDP_MESSAGE_LEN_MAX);
        assert_eq!(within(&parts, range.clone()).collect::<Vec<_>>().concat(), &rest[range]);
    }
    let Some(written) = write(&envelope, &message) else { return };
    let (envelope_again, rest) = Envelope::split(&written).expect("an envelope was written");
    assert_eq!(envelope_again, Envelope { message_len: envelope_again.message_len, ..envelope });
    assert_eq!(envelope_again.message_len as usize, rest.len());
    let again = Message::decode(rest).expect("a message was written");
    assert_same(&envelope, &message, &again);
    assert_eq!(write(&envelope, &again).as_ref(), Some(&written));
}

/// Asserts that `rest` prints as JSON that can be read back, and that reports a message or body
/// that does not decode.
fn assert_prints(envelope: &Envelope, message: Result<&Message<'_>, &DecodeError>, rest: &[u8]) {
    let json = message_to_json(envelope, rest);
    assert_eq!(serde_json::from_str(&text(&json)).ok().as_ref(), Some(&json));
    if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
        assert!(json.get("ciphertext_hex").is_some() && json.get("body").is_none());
        return;
    }
    let Ok(message) = message else {
        return assert!(json["error"].is_string() && json.get("body").is_none());
    };
    assert_eq!(json["header"]["body_length"], message.body.len());
    if message.decode_body(envelope.version).is_err() {
        assert!(json["body"]["error"].is_string());
    }
}

/// Encodes the message again; `None` if its body or credential do not decode, or if it becomes too
/// long.
fn write(envelope: &Envelope, message: &Message<'_>) -> Option<Vec<u8>> {
    let body = message.decode_body(envelope.version);
    let credential = message.decode_credential();
    if let Err(error) = &body {
        assert!(error.at() <= message.body.len());
    }
    if let Err(error) = &credential {
        assert!(error.at() <= message.credential.len());
    }
    let (body, credential) = (body.ok()?, credential.ok()?);
    let written = match &body {
        Body::Request(request) => MessageBuf::request(envelope, &message.header, request),
        Body::Reply(reply) => MessageBuf::reply(envelope, &message.header, reply),
    };
    let written = match credential {
        None => written.unsigned(),
        Some(credential) => written.signed(&credential),
    };
    written.ok()
}

/// Asserts that `again` equals `message`, except for what old versions cannot express.
fn assert_same(envelope: &Envelope, message: &Message<'_>, again: &Message<'_>) {
    let version = envelope.version;
    let header = Header {
        response_code: again.header.response_code,
        flags: again.header.flags,
        body_len: again.header.body_len,
        ..message.header
    };
    assert_eq!(again.header, header);
    assert_eq!(again.decode_credential(), message.decode_credential());
    match (message.decode_body(version), again.decode_body(version)) {
        (Ok(Body::Request(before)), Ok(Body::Request(after))) => assert_eq!(before, after),
        (Ok(Body::Reply(before)), Ok(Body::Reply(after))) => {
            assert_eq!(before.response, after.response);
            let is_narrowed = before.code == ResponseCode::INVALID_VALUE && version < Version::new(2, 5);
            assert!(before.code == after.code || is_narrowed);
            assert!(before.digest == after.digest || version < Version::LOWEST);
        }
        (before, after) => panic!("{before:?} became {after:?}"),
    }
}
