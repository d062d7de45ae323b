//! Recorded exchanges of clients of the reference, adapted to our challenges.

use crate::vectors::{hex, load};
use handle_auth::PrivateKey;
use handle_proto::OpCode;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::auth::{ChallengeAnswer, SecretAnswer, SignedAnswer};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::{Body, Envelope, Message, MessageBuf, Request};
use serde_json::Value as Json;
use std::collections::HashMap;

/// The lines of this kind in `credentials.jsonl`.
///
/// # Panics
/// If the vectors cannot be read.
#[must_use]
pub fn lines(kind: &str) -> Vec<Json> {
    load("credentials.jsonl").into_iter().filter(|line| line["kind"] == kind).collect()
}

/// The operation of the first request of a line; 0 if the line has none.
#[must_use]
pub fn first_op_code(line: &Json) -> OpCode {
    let first = &line["steps"][0]["send_hex"];
    let bytes = if first.is_string() { hex(first) } else { Vec::new() };
    Envelope::split(&bytes)
        .ok()
        .and_then(|(_, rest)| Message::decode(rest).ok())
        .map_or(OpCode(0), |message| message.header.op_code)
}

/// The private keys of the vectors, by id.
///
/// # Panics
/// If the vectors cannot be read.
#[must_use]
pub fn private_keys() -> HashMap<String, PrivateKey> {
    let key = |line: &Json| {
        let record = hex(&line["handle_private_hex"]);
        Some((line["key_id"].as_str()?.to_owned(), PrivateKey::from_record(&record).ok()?))
    };
    lines("key").iter().filter_map(key).collect()
}

/// The response to a challenge, in the form of the one in `recorded`.
fn signed_response(
    line: &Json,
    keys: &HashMap<String, PrivateKey>,
    recorded: &[u8],
    covered: [&[u8]; 2],
) -> Vec<u8> {
    let (identity, mut out) = (&line["identity"], vec![]);
    if let Some(id) = identity["key_id"].as_str() {
        let SignedAnswer { algorithm, .. } = SignedAnswer::decode(recorded).expect("as recorded");
        let digest = DigestAlgorithm::from_identifier(algorithm).expect("as recorded");
        let signature = keys[id].sign(digest, &covered).expect("as recorded");
        SignedAnswer { algorithm, signature: &signature }.encode(&mut out);
        return out;
    }
    let secret = hex(&identity["secret_hex"]);
    let mac =
        |algorithm, key: &[u8]| handle_auth::digest::mac(algorithm, key, &covered).expect("as recorded");
    match SecretAnswer::decode(recorded).expect("as recorded") {
        SecretAnswer::BareMd5(_) => {
            let mac = mac(DigestAlgorithm::MD5, &secret);
            SecretAnswer::BareMd5(mac.first_chunk().expect("as recorded")).encode(&mut out);
        }
        SecretAnswer::Mac { algorithm, .. } => {
            SecretAnswer::Mac { algorithm, mac: &mac(algorithm, &secret) }.encode(&mut out);
        }
        SecretAnswer::Pbkdf2 { salt, iterations, key_bits, .. } => {
            let key = handle_auth::kdf::pbkdf2_sha1(&secret, salt, iterations, key_bits as usize / 8);
            let mac = &mac(DigestAlgorithm::HMAC_SHA1, &key);
            SecretAnswer::Pbkdf2 { salt, iterations, key_bits, mac }.encode(&mut out);
        }
    }
    out
}

/// The recorded answer to a challenge, adapted to another challenge with its number, nonce and
/// digest.
///
/// # Panics
/// If the line is invalid.
#[must_use]
pub fn answer_to(
    line: &Json,
    keys: &HashMap<String, PrivateKey>,
    recorded: &[u8],
    (id, nonce, digest): &(i32, Vec<u8>, Vec<u8>),
) -> Vec<u8> {
    let (envelope, rest) = Envelope::split(recorded).expect("as recorded");
    let message = Message::decode(rest).expect("as recorded");
    let Body::Request(Request::AnswerChallenge(answer)) =
        message.decode_body(envelope.version).expect("as recorded")
    else {
        panic!("{}: an answer to a challenge", line["name"]);
    };
    let response = signed_response(line, keys, answer.signed_response, [nonce, digest]);
    let answer = Request::AnswerChallenge(ChallengeAnswer { signed_response: &response, ..answer });
    let envelope = Envelope { session_id: *id, ..envelope };
    MessageBuf::request(&envelope, &message.header, &answer).unsigned().expect("as recorded")
}

/// The first message of a step on one `side`.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn raw(step: &Json, side: &str) -> Vec<u8> {
    first(&step[format!("{side}_hex")])
}

/// The same message decrypted, with its envelope; `None` if the vectors do not have the plaintext.
///
/// # Panics
/// If there is no message.
#[must_use]
pub fn plain(step: &Json, side: &str) -> Option<Vec<u8>> {
    let bytes = raw(step, side);
    match &step[format!("{side}_plaintext_message_hex")] {
        Json::Null => (!is_encrypted(&bytes)).then_some(bytes),
        message => Some([&bytes[..Envelope::LEN], &first(message)].concat()),
    }
}

/// Whether a message is encrypted.
///
/// # Panics
/// If the message has no envelope.
#[must_use]
pub fn is_encrypted(message: &[u8]) -> bool {
    let (envelope, _) = Envelope::split(message).expect("an envelope");
    envelope.flags.has(EnvelopeFlags::ENCRYPTED)
}

fn first(value: &Json) -> Vec<u8> {
    hex(if value.is_array() { &value[0] } else { value })
}
