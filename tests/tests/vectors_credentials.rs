//! Keys, signatures, MACs, challenges and sessions, computed: `credentials.jsonl`.
//!
//! Every line verifies or fails as it states, with either backend (`--features aws-lc`).

use handle_auth::{KeyError, PrivateKey, PublicKey, message};
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
        if line["algorithm"] == "RSA" && line["bits"] == 1024 {
            let accepted = "2048, 3072 or 4096 bits";
            let error = KeyError::Size { algorithm: "RSA", bits: 1024, accepted };
            assert_eq!(private.err(), Some(error), "{name}");
        } else if line["algorithm"] == "RSA" {
            let private = private.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(private.public().bits() as u64, line["bits"].as_u64().expect("bits"), "{name}");
        }
    });
}

#[test]
fn vectors_signatures_verify_as_stated() {
    let keys = public_keys();
    let mut checked = 0;
    each("signed_message", |name, line| {
        let Some(key) = keys.get(line["key_id"].as_str().expect(name)) else { return };
        let bytes = hex(&line["hex"]);
        let (envelope, message) = taken_apart(&bytes);
        let verdict = message::verify_message(&envelope, &message, key);
        assert_eq!(verdict.is_ok(), line["verifies"] == true, "{name}: {verdict:?}");
        checked += 1;
    });
    assert!(checked > 0);
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
        let ours_digest = key.algorithm().digest_for(envelope.version);
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
