//! Bytes that signatures, MACs and answers to challenges cover, and their encoding. MACs and
//! request digests are also computed; `credentials.rs` verifies signatures.

use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::auth::{self, Challenge, ChallengeAnswer, SecretAnswer, SignedAnswer};
use handle_proto::wire::credential::{CoveredPrefix, Credential, Mac};
use handle_proto::wire::{Body, Envelope, Message, Reply, Request, Response};
use handle_tests::fields::{message_fields, to_message};
use handle_tests::vectors::{check_lines, hex, load, require};
use md5::{Digest, Md5};
use serde_json::Value as Json;
use sha1::Sha1;
use sha2::Sha256;

fn lines(kind: &str) -> Vec<(String, Json)> {
    let lines: Vec<_> = load("credentials.jsonl").into_iter().filter(|line| line["kind"] == kind).collect();
    require(lines.len(), 1, kind);
    lines.into_iter().map(|line| (line["name"].to_string(), line)).collect()
}

/// Envelope, message and credential of a signed message.
fn signed(bytes: &[u8]) -> (Envelope, Message<'_>, Credential<'_>) {
    let (envelope, rest) = Envelope::split(bytes).expect("an envelope");
    let message = Message::decode(rest).expect("a message");
    let credential = message.decode_credential().expect("a credential").expect("signed");
    (envelope, message, credential)
}

#[test]
fn vectors_signatures_cover_the_stated_bytes() {
    check_lines(lines("signed_message"), |name, line| {
        let Some(expected) = line.get("signed_bytes_hex") else { return };
        let bytes = hex(&line["hex"]);
        let (envelope, message, credential) = signed(&bytes);
        let prefix = CoveredPrefix::of_signature(&envelope, credential.counter);
        assert_eq!([prefix.as_bytes(), message.covered].concat(), hex(expected), "{name}");
        if let Some(counter) = line.get("session_counter") {
            assert!(credential.is_signed(), "{name}");
            assert_eq!(credential.counter, *counter, "{name}");
        }
        if line["verifies"] == false && line.get("tampered").is_none() {
            let is_usable = credential.is_signed() && credential.digest_algorithm().is_some();
            assert!(!is_usable, "{name}: {:?}", credential);
            return;
        }
        let stated = line["signature_algorithm"].as_str().expect("a name");
        let (digest, _) = stated.split_once("with").expect("a digest with a key");
        let algorithm = DigestAlgorithm::from_identifier(digest.as_bytes());
        assert_eq!(credential.digest_algorithm(), algorithm, "{name}");
    });
}

#[test]
fn vectors_macs_are_right_over_what_they_cover() {
    check_lines(lines("mac_message"), |name, line| {
        let bytes = hex(&line["hex"]);
        let (envelope, message, credential) = signed(&bytes);
        let key = hex(&line["session_key_hex"]);
        let mac = Mac::of(&envelope, credential.counter);
        let parts = |algorithm| mac.parts(algorithm, &key, message.covered).collect::<Vec<_>>().concat();
        if let Some(expected) = line.get("maced_bytes_hex") {
            assert_eq!(parts(DigestAlgorithm::HMAC_SHA256), hex(expected), "{name}");
        }
        if line.get("fields").is_some() {
            assert_eq!(credential.algorithm, Mac::identifier(envelope.version), "{name}");
            assert_eq!(credential.counter, line["session_counter"], "{name}");
        }
        let verifies = credential.is_mac()
            && credential.digest_algorithm().is_some_and(|algorithm| {
                digest(algorithm, &key, &parts(algorithm)).as_deref() == Some(credential.signature)
            });
        assert_eq!(verifies, line["verifies"], "{name}");
    });
}

/// The digest, or the HMAC with `key`, of `bytes`; `None` for other algorithms.
fn digest(algorithm: DigestAlgorithm, key: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    Some(match algorithm {
        DigestAlgorithm::MD5 | DigestAlgorithm::OLD_MD5 => Md5::digest(bytes).to_vec(),
        DigestAlgorithm::SHA1 => Sha1::digest(bytes).to_vec(),
        DigestAlgorithm::SHA256 => Sha256::digest(bytes).to_vec(),
        DigestAlgorithm::HMAC_SHA1 => hmac::<Sha1>(key, bytes),
        DigestAlgorithm::HMAC_SHA256 => hmac::<Sha256>(key, bytes),
        _ => return None,
    })
}

/// HMAC of RFC 2104, for digests with blocks of 64 bytes.
fn hmac<D: Digest>(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    let key = if key.len() > block.len() { D::digest(key).to_vec() } else { key.to_vec() };
    block[..key.len()].copy_from_slice(&key);
    let pad = |byte: u8| block.map(|key_byte| key_byte ^ byte);
    let inner = D::digest([&pad(0x36)[..], bytes].concat());
    D::digest([&pad(0x5c)[..], &inner].concat()).to_vec()
}

#[test]
fn vectors_signed_messages_are_encoded_from_their_fields() {
    check_lines(lines("signed_message").into_iter().chain(lines("mac_message")), |name, line| {
        let Some(fields) = line.get("fields") else { return };
        let mut fields = fields.clone();
        fields.as_object_mut().expect("an object").remove("library_decode");
        let bytes = hex(&line["hex"]);
        assert_eq!(message_fields(&bytes).expect("a message"), fields, "{name}");
        assert_eq!(to_message(&fields), bytes, "{name}");
    });
}

#[test]
fn vectors_challenges_are_answered_over_the_stated_bytes() {
    check_lines(lines("challenge"), |name, line| {
        let bytes = hex(&line["challenge_hex"]);
        let (envelope, rest) = Envelope::split(&bytes).expect("an envelope");
        let message = Message::decode(rest).expect("a message");
        let Ok(Body::Reply(Reply { digest: Some(digest), response: Response::Challenge(challenge), .. })) =
            message.decode_body(envelope.version)
        else {
            panic!("{name}: not a challenge");
        };
        if line["nonce_hex"].is_null() || line["answer_message_hex"].is_null() {
            return;
        }
        assert_eq!(challenge, Challenge { nonce: &hex(&line["nonce_hex"]) }, "{name}");
        assert_eq!(digest.algorithm.0, line["request_digest_algorithm"], "{name}");
        assert_eq!(digest.digest, hex(&line["request_digest_hex"]), "{name}");
        let request = hex(&line["request_hex"]);
        let request = Message::decode(&request[Envelope::LEN..]).expect("a message");
        let computed = self::digest(digest.algorithm, b"", request.covered);
        assert_eq!(computed.as_deref(), Some(digest.digest), "{name}");
        let covered = challenge.covered(&digest).concat();
        if let Some(expected) = line.get("signed_or_maced_bytes_hex") {
            assert_eq!(covered, hex(expected), "{name}");
        }
        let bytes = hex(&line["answer_message_hex"]);
        let (answer_envelope, rest) = Envelope::split(&bytes).expect("an envelope");
        let message = Message::decode(rest).expect("a message");
        let Ok(Body::Request(Request::AnswerChallenge(answer))) =
            message.decode_body(answer_envelope.version)
        else {
            panic!("{name}: not an answer");
        };
        assert_eq!(answer.signed_response, hex(&line["answer_hex"]), "{name}");
        let suggested = envelope.effective_suggested();
        check_answer(name, line, &answer, envelope.version, suggested);
    });
}

/// The answer has the stated fields and encodes to the same bytes.
fn check_answer(name: &str, line: &Json, answer: &ChallengeAnswer<'_>, version: Version, suggested: Version) {
    let mut again = vec![];
    if answer.auth_type == auth::SECRET_KEY {
        let secret = SecretAnswer::decode(answer.signed_response).expect("an answer");
        let code = match secret {
            SecretAnswer::BareMd5(_) => DigestAlgorithm::OLD_MD5,
            SecretAnswer::Mac { algorithm, .. } => algorithm,
            SecretAnswer::Pbkdf2 { .. } => DigestAlgorithm::PBKDF2_HMAC_SHA1,
        };
        assert_eq!(code, SecretAnswer::algorithm_for(version, suggested), "{name}");
        if let Some(stated) = line.get("mac_code").and_then(Json::as_u64) {
            assert_eq!(u64::from(code.0), stated, "{name}");
        }
        secret.encode(&mut again);
    } else {
        let signed = SignedAnswer::decode(answer.signed_response).expect("an answer");
        assert_eq!(signed.signature, hex(&line["signature_hex"]), "{name}");
        signed.encode(&mut again);
    }
    assert_eq!(again, answer.signed_response, "{name}");
}
