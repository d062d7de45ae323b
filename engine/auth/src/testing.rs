//! Keys for the tests: those of the golden vectors.

use crate::key::{PrivateKey, PublicKey};
use data_encoding::HEXLOWER;
use handle_proto::Version;
use handle_proto::wire::Envelope;
use serde_json::Value as Json;

/// The line of kind `key` with this id.
fn key(id: &str) -> Json {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/credentials.jsonl");
    let text = std::fs::read_to_string(path).expect("the golden vectors");
    let line = text.lines().find(|line| line.contains(&format!("\"key_id\": \"{id}\"")));
    let line = line.or_else(|| text.lines().find(|line| line.contains(&format!("\"key_id\":\"{id}\""))));
    let line: Json = serde_json::from_str(line.expect("a key")).expect("JSON");
    assert_eq!(line["kind"], "key", "{id}");
    line
}

fn member(id: &str, name: &str) -> Vec<u8> {
    HEXLOWER.decode(key(id)[name].as_str().expect("text").as_bytes()).expect("hexadecimal")
}

/// A text member of the key's line.
pub(crate) fn text(id: &str, name: &str) -> String {
    key(id)[name].as_str().expect("text").to_owned()
}

pub(crate) fn private_record(id: &str) -> Vec<u8> {
    member(id, "handle_private_hex")
}

pub(crate) fn public_record(id: &str) -> Vec<u8> {
    member(id, "handle_public_hex")
}

pub(crate) fn private_key(id: &str) -> PrivateKey {
    PrivateKey::from_record(&private_record(id)).expect("a key that signs")
}

pub(crate) fn public_key(id: &str) -> PublicKey {
    PublicKey::from_record(&public_record(id)).expect("a key that verifies")
}

/// A line of `handshakes.jsonl`.
pub(crate) struct Handshake {
    pub(crate) name: String,
    pub(crate) key_id: String,
    /// `None` if the certificate has none.
    pub(crate) identity: Option<String>,
    pub(crate) scheme: u16,
    pub(crate) messages: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

pub(crate) fn handshakes() -> Vec<Handshake> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/handshakes.jsonl");
    let text = std::fs::read_to_string(path).expect("the golden vectors");
    let read = |line| {
        let line: Json = serde_json::from_str(line).expect("JSON");
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let hex = |name: &str| HEXLOWER.decode(text(name).expect("text").as_bytes()).expect("hexadecimal");
        Handshake {
            name: text("name").expect("a name"),
            key_id: text("key_id").expect("a key"),
            identity: text("identity"),
            scheme: line["scheme"].as_u64().and_then(|code| code.try_into().ok()).expect("a code"),
            messages: hex("messages_hex"),
            signature: hex("signature_hex"),
        }
    };
    let lines: Vec<_> = text.lines().map(read).collect();
    assert_eq!(lines.len(), 7);
    lines
}

/// The envelope of a message of version 2.`minor` in session 5.
pub(crate) fn envelope(minor: u8) -> Envelope {
    Envelope { version: Version::new(2, minor), session_id: 5, ..Envelope::request(0x0102_0304) }
}
