//! Keys and the framing of private key files: the lines `key` and `private_key_file` of
//! `credentials.jsonl`. `credentials.rs` tests ciphers and signatures.

use handle_proto::data::keyfile::Scheme;
use handle_proto::data::{KeyFile, PrivateKey, PublicKey};
use handle_tests::vectors::{check_kind, hex};
use serde_json::Value;

fn check_each(kind: &str, check: impl Fn(&Value)) {
    check_kind("credentials.jsonl", kind, |_, line| check(line));
}

#[test]
fn vectors_read_and_write_keys() {
    check_each("key", |line| {
        let (public, private) = (hex(&line["handle_public_hex"]), hex(&line["handle_private_hex"]));
        let key = PublicKey::decode(&public).unwrap();
        assert_eq!(key.to_bytes(), public, "{line}");
        assert_eq!(line["algorithm"], key.algorithm(), "{line}");
        let bits = line["bits"].as_u64().or_else(|| line["bits"].as_str()?.parse().ok()).unwrap();
        assert_eq!(key.bits() as u64, bits, "{line}");
        let secret = PrivateKey::decode(&private).unwrap();
        assert_eq!(**secret.to_bytes(), private, "{line}");
        if let Some(half) = secret.public() {
            assert_eq!(half, key, "{line}");
        }
    });
}

#[test]
fn vectors_read_and_write_key_files() {
    check_each("private_key_file", |line| {
        let bytes = hex(&line["file_hex"]);
        if line["decrypted_hex"].is_null() {
            assert!(KeyFile::decode(&bytes).is_err(), "{line}");
            return;
        }
        let file = KeyFile::decode(&bytes).unwrap();
        assert_eq!(**file.to_bytes(), bytes, "{line}");
        assert_eq!(Some(u64::from(file.scheme().0)), line["encryption_type"].as_u64(), "{line}");
        assert_eq!(line["requires_passphrase"], file.is_encrypted(), "{line}");
        match file {
            KeyFile::Plain { key } => {
                assert_eq!(key, hex(&line["decrypted_hex"]), "{line}");
                assert!(PrivateKey::decode(key).is_ok(), "{line}");
            }
            KeyFile::Pbkdf2(pbkdf2) if pbkdf2.scheme == Scheme::PBKDF2_AES => {
                assert_eq!((pbkdf2.key_bits, pbkdf2.iv.len()), (128, 16), "{line}");
            }
            KeyFile::Pbkdf2(pbkdf2) => assert_eq!((pbkdf2.key_bits, pbkdf2.iv.len()), (192, 8), "{line}"),
            _ => {}
        }
    });
}
