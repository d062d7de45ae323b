//! Keys, signatures, MACs, challenges and sessions, computed: `credentials.jsonl`.
//!
//! Every line verifies or fails as it states, with either backend (`--features aws-lc`).

use handle_auth::{KeyError, PrivateKey, PublicKey, digest, message};
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::{Envelope, Message};
use handle_tests::vectors::{hex, load};
use serde_json::Value as Json;
use std::collections::HashMap;

fn each(kind: &str, mut check: impl FnMut(&str, &Json)) {
    let lines = load("credentials.jsonl");
    let lines: Vec<_> = lines.iter().filter(|line| line["kind"] == kind).collect();
    // Files of others may do without a kind.
    assert!(!lines.is_empty() || std::env::var_os("HANDLE_VECTORS").is_some(), "no line of kind {kind}");
    lines.into_iter().for_each(|line| check(line["name"].as_str().expect("a name"), line));
}

/// Public keys by their id.
fn public_keys() -> HashMap<String, PublicKey> {
    let mut keys = HashMap::new();
    each("key", |name, line| {
        if let Ok(key) = PublicKey::from_record(&hex(&line["handle_public_hex"])) {
            keys.insert(line["key_id"].as_str().expect(name).to_owned(), key);
        }
    });
    keys
}

/// Private keys by their id, of those that sign.
fn private_keys() -> HashMap<String, PrivateKey> {
    let mut keys = HashMap::new();
    each("key", |name, line| {
        if let Ok(key) = PrivateKey::from_record(&hex(&line["handle_private_hex"])) {
            keys.insert(line["key_id"].as_str().expect(name).to_owned(), key);
        }
    });
    keys
}

/// Envelope and message of a stream unit.
fn taken_apart(bytes: &[u8]) -> (Envelope, Message<'_>) {
    let (envelope, rest) = Envelope::split(bytes).expect("an envelope");
    (envelope, Message::decode(rest).expect("a message"))
}

#[test]
fn vectors_keys_are_used_or_refused_by_their_size() {
    each("key", |name, line| {
        let private = PrivateKey::from_record(&hex(&line["handle_private_hex"]));
        let public = PublicKey::from_record(&hex(&line["handle_public_hex"]));
        let public = public.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(public.bits() as u64, line["bits"].as_u64().expect("bits"), "{name}");
        if line["algorithm"] == "RSA" && line["bits"] == 1024 {
            let accepted = "2048, 3072 or 4096 bits";
            let error = KeyError::Size { algorithm: "RSA", bits: 1024, accepted };
            assert_eq!(private.err(), Some(error), "{name}");
            return;
        }
        let private = private.unwrap_or_else(|error| panic!("{name}: {error}"));
        let signature = private.sign(DigestAlgorithm::SHA256, &[name.as_bytes()]).expect(name);
        public.verify(DigestAlgorithm::SHA256, &[name.as_bytes()], &signature).expect(name);
    });
}

#[test]
fn vectors_signatures_verify_as_stated() {
    let keys = public_keys();
    each("signed_message", |name, line| {
        let key = &keys[line["key_id"].as_str().expect(name)];
        let bytes = hex(&line["hex"]);
        let (envelope, message) = taken_apart(&bytes);
        let verdict = message::verify_message(&envelope, &message, key);
        assert_eq!(verdict.is_ok(), line["verifies"] == true, "{name}: {verdict:?}");
    });
}

#[test]
fn vectors_signatures_are_made_again() {
    let keys = private_keys();
    let mut same = 0;
    each("signed_message", |name, line| {
        let (Some(key), Some(stated)) = (keys.get(line["key_id"].as_str().expect(name)), line.get("fields"))
        else {
            return;
        };
        let bytes = hex(&line["hex"]);
        let (envelope, message) = taken_apart(&bytes);
        let counter = i32::try_from(line["session_counter"].as_i64().expect(name)).expect(name);
        let ours = message::sign_message(&envelope, counter, message.covered, key).expect(name);
        let signed = Message { credential: &ours, ..message };
        message::verify_message(&envelope, &signed, key.public()).expect(name);
        // RSA has no choice; what we write is what the reference wrote with the digest of the version.
        let digest = stated["credential"]["digest_algorithm"].as_str().map(str::as_bytes);
        let ours_digest = key.digest_for(envelope.version);
        if digest.and_then(DigestAlgorithm::from_identifier) == Some(ours_digest)
            && line["signature_algorithm"].as_str().is_some_and(|text| text.ends_with("RSA"))
        {
            assert_eq!(ours, message.credential, "{name}");
            same += 1;
        }
    });
    assert!(same >= 7 || std::env::var_os("HANDLE_VECTORS").is_some(), "{same}");
}

#[test]
fn vectors_of_old_versions_sign_the_same_whatever_the_request_id() {
    let keys = private_keys();
    each("signed_message", |name, line| {
        let Some(key) = keys.get(line["key_id"].as_str().expect(name)) else { return };
        let Some(0) = line["session_counter"].as_i64() else { return };
        if key.algorithm() != handle_auth::Algorithm::Rsa {
            return;
        }
        let bytes = hex(&line["hex"]);
        let (envelope, message) = taken_apart(&bytes);
        let with_id = |request_id| {
            let envelope = Envelope { request_id, ..envelope };
            message::sign_message(&envelope, 0, message.covered, key).expect(name)
        };
        assert_eq!(with_id(1) != with_id(2), message::covers_request_id(envelope.version), "{name}");
        assert_eq!(message::covers_request_id(envelope.version), envelope.version >= Version::new(2, 7));
    });
}

#[test]
fn vectors_macs_of_sessions_verify_and_are_made_as_stated() {
    each("mac_message", |name, line| {
        let bytes = hex(&line["hex"]);
        let (envelope, message) = taken_apart(&bytes);
        let key = hex(&line["session_key_hex"]);
        let verdict = message::verify_mac_message(&envelope, &message, &key);
        assert_eq!(verdict.is_ok(), line["verifies"] == true, "{name}: {verdict:?}");
        if line.get("fields").is_some() {
            let counter = i32::try_from(line["session_counter"].as_i64().expect(name)).expect(name);
            assert_eq!(message::mac_message(&envelope, counter, message.covered, &key), message.credential);
        }
    });
}

#[test]
fn vectors_digests_are_those_of_the_reference() {
    each("digest", |name, line| {
        let algorithm = code(&line["code"]);
        let made = digest::digest(algorithm, [&hex(&line["data_hex"])[..]]).expect(name);
        assert_eq!(*made, hex(&line["digest_hex"]), "{name}");
    });
}

#[test]
fn vectors_macs_are_those_of_the_reference() {
    each("mac", |name, line| {
        let algorithm = match line["algorithm_name"].as_str() {
            Some(written) => DigestAlgorithm::from_identifier(written.as_bytes()),
            None => Some(code(&line["code"])),
        };
        let (key, bytes) = (hex(&line["key_hex"]), hex(&line["data_hex"]));
        let made = algorithm.and_then(|algorithm| digest::mac(algorithm, &key, &[&bytes]));
        let stated = line["mac_hex"].as_str().map(|_| hex(&line["mac_hex"]));
        assert_eq!(made.as_deref(), stated.as_deref(), "{name}");
    });
}

fn code(number: &Json) -> DigestAlgorithm {
    DigestAlgorithm(u8::try_from(number.as_u64().expect("a code")).expect("a code"))
}
