//! Roots and proofs of sets have the bytes that a second implementation computes.

use handle_proto::{Permissions, Value};
use handle_snapshot::proof::RecordProof;
use handle_snapshot::set::SetTree;
use handle_snapshot::set::statement::{SetStatement, SignedStatement};
use handle_snapshot::tree::{key_digest, leaf, public_digest, record_digest};
use handle_snapshot::{
    Builder, HomedPrefixes, LayerOptions, LoadMode, NameRule, PublishedSet, SetPublisher, Sha256Sum,
};
use handle_tests::needs::{self, TestNeed};
use handle_tests::vectors::hex;
use serde_json::Value as Json;
use std::path::Path;
use std::process::Command;

const VECTORS: &str = include_str!("../../vectors/proofs.json");

fn text<'j>(json: &'j Json, name: &str) -> &'j str {
    json[name].as_str().expect("a text")
}

/// Publishes the records of a tree in two layers, so that the root does not depend on them.
fn publish(dir: &Path, tree: &Json) -> PublishedSet {
    let mut publisher = SetPublisher::open(dir).expect("a directory");
    let seed = u64::from_str_radix(text(tree, "seed"), 16).expect("a seed");
    let records = tree["records"].as_array().expect("records");
    let (older, newer) = records.split_at(records.len() / 2);
    for (now, records) in [(1, older), (2, newer)] {
        let options = LayerOptions { seed, folds: text(tree, "names") == "folded", created_unix_ms: now };
        let write = |file, dir: &Path| {
            let mut builder = Builder::new(dir, options);
            if now == 1 {
                let mut homed = HomedPrefixes::default();
                homed.add(b"10.1");
                builder = builder.homed(homed);
            }
            for record in records {
                let handle = text(record, "handle");
                let (data, secret) = (format!("https://example.org/{handle}"), format!("secret of {handle}"));
                let url = Value::new(1, b"URL", data.as_bytes());
                let secret = Value::new(300, b"HS_SECKEY", secret.as_bytes());
                let values = [url, Value { permissions: Permissions(0x0c), ..secret }];
                let count = if text(record, "private").is_empty() { 1 } else { 2 };
                builder.add(1, handle.as_bytes(), values[..count].iter().copied())?;
            }
            builder.finish(file)
        };
        let published =
            if now == 1 { publisher.publish_base(now, write) } else { publisher.publish_delta(now, write) };
        published.expect("a set");
    }
    PublishedSet::open(dir, LoadMode::Map).expect("the set")
}

/// A statement of nobody, behind which the text of a path is that of a whole proof.
fn unsigned(root: Sha256Sum) -> SignedStatement {
    let statement = SetStatement {
        epoch: 1,
        generation: 1,
        created_unix_ms: 1,
        handles_count: 1,
        names: Some(NameRule::Folded),
        root,
        set: Sha256Sum([3; 32]),
        signed_unix_ms: 1,
        signer: Sha256Sum([4; 32]),
    };
    SignedStatement { statement, signature: vec![5; 4] }
}

#[test]
fn roots_and_proofs_have_the_bytes_of_the_second_implementation() {
    let trees: Vec<Json> = serde_json::from_str(VECTORS).expect("JSON");
    let mut ends = [0; 3];
    for tree in &trees {
        let dir = tempfile::tempdir().expect("a directory");
        let set = publish(dir.path(), tree);
        let root = set.manifest().root.to_string();
        assert_eq!(root, text(tree, "root"), "{} records", tree["records"].as_array().map_or(0, Vec::len));
        let made = SetTree::of(&set).expect("the root of its records");
        for expected in tree["proofs"].as_array().expect("proofs") {
            let path = made.path(text(expected, "key").as_bytes()).expect("intact records");
            let signed = unsigned(set.manifest().root);
            let proof = RecordProof { path, signed: signed.clone() };
            assert_eq!(proof.encode(), text(expected, "text").to_owned() + &signed.encode());
            // What the second implementation has made verifies too.
            let foreign = text(expected, "text").to_owned() + &signed.encode();
            let foreign = RecordProof::parse(foreign.as_bytes()).expect("a proof");
            assert_eq!(foreign.verify(|_| true), Ok(()));
            let end = text(expected, "text").lines().find_map(|line| {
                ["present ", "absent ", "other "].iter().position(|end| line.starts_with(end))
            });
            ends[end.expect("an end")] += 1;
        }
    }
    assert!(ends.iter().all(|&count| count > 3), "{ends:?}");
}

#[test]
fn leaves_have_the_bytes_of_the_second_implementation() {
    let trees: Vec<Json> = serde_json::from_str(VECTORS).expect("JSON");
    let records = trees.iter().flat_map(|tree| tree["records"].as_array().expect("records"));
    let mut count = 0;
    for record in records.filter(|record| text(record, "private").is_empty()) {
        let place = key_digest(text(record, "handle").to_uppercase().as_bytes());
        let digest = record_digest(&public_digest(&hex(&record["public"])), &Sha256Sum([0; 32]));
        assert_eq!(leaf(&place, &digest).to_string(), text(record, "leaf"));
        count += 1;
    }
    assert!(count > 3);
}

/// The file is what the script beside it prints.
#[test]
fn the_vectors_of_proofs_are_those_of_their_script() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/proofs.py");
    let checked = Command::new("python3").arg(script).arg("--check").output();
    if needs::has(TestNeed::Python, checked.is_ok()) {
        let output = checked.expect("it is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
