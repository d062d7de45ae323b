//! However a set is published, its root is that of the plain definition, and its proofs verify.
#![cfg(feature = "std")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::{Permissions, Value};
use handle_snapshot::proof::{PathEnd, ProofError, ProofPath, RecordProof};
use handle_snapshot::set::manifest::{MANIFEST, Manifest, ManifestSeal};
use handle_snapshot::set::statement::{AcceptedPublishers, HEARTBEAT, SignedStatement, StatementSigner};
use handle_snapshot::set::{PublishedSet, SetErrorKind, SetTree, read_manifest};
use handle_snapshot::tree::{self, EMPTY};
use handle_snapshot::{
    Builder, HomedPrefixes, LayerOptions, LoadMode, NameRule, SetPublisher, Sha256Sum, fold_key,
};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// A test key, whose signatures are digests of a secret and the message.
#[derive(Debug)]
struct TestKey(u8);

impl TestKey {
    fn mac(&self, message: &[u8]) -> Vec<u8> {
        Sha256::digest([&[self.0; 32][..], message].concat()).to_vec()
    }

    fn accepted(self) -> AcceptedPublishers {
        AcceptedPublishers::new(Box::new(move |signer, message, signature| {
            *signer == self.signer() && self.mac(message) == signature
        }))
    }
}

impl StatementSigner for TestKey {
    fn signer(&self) -> Sha256Sum {
        Sha256Sum([self.0; 32])
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        Ok(self.mac(message))
    }
}

/// The values of a record, made from a number. An odd number adds a private value.
fn values(data: &[u8; 4]) -> Vec<Value<'_>> {
    let private = Value { permissions: Permissions(0x0c), ..Value::new(300, b"HS_SECKEY", data) };
    let all = [Value::new(1, b"URL", data), private];
    all[..1 + usize::from(data[0] % 2)].to_vec()
}

fn handle(n: u16) -> String {
    format!("10.1/record-{n}")
}

/// The records of a set: handles and the numbers of their values.
type Content = BTreeMap<u16, u32>;

const OPTIONS: LayerOptions = LayerOptions { seed: 7, folds: true, created_unix_ms: 1 };

fn publish(publisher: &mut SetPublisher, changes: &BTreeMap<u16, Option<u32>>, is_base: bool, now: u64) {
    let build = |file, temp_dir: &Path| {
        let mut builder = Builder::new(temp_dir, OPTIONS);
        if is_base {
            let mut homed = HomedPrefixes::default();
            homed.add(b"10.1");
            builder = builder.homed(homed);
        }
        for (&n, value) in changes {
            match value {
                Some(value) => builder.add(n.into(), handle(n).as_bytes(), values(&value.to_le_bytes()))?,
                None => builder.delete(n.into(), handle(n).as_bytes())?,
            }
        }
        builder.finish(file)
    };
    if is_base {
        publisher.publish_base(now, build).unwrap();
    } else {
        publisher.publish_delta(now, build).unwrap();
    }
}

/// The root by its definition, from the entries that proofs show.
fn plain_root(entries: &[(Sha256Sum, Sha256Sum)], depth: usize) -> Sha256Sum {
    match entries {
        [] => EMPTY,
        [(key, record)] => tree::leaf(key, record),
        _ => {
            let is_right = |key: &Sha256Sum| key.0[depth / 8] >> (7 - depth % 8) & 1 == 1;
            let (right, left): (Vec<_>, Vec<_>) = entries.iter().partition(|(key, _)| is_right(key));
            tree::join(&plain_root(&left, depth + 1), &plain_root(&right, depth + 1))
        }
    }
}

/// Proves every handle of the content and some other handles, verifies the proofs, and compares the
/// root.
fn check(dir: &Path, content: &Content) {
    let set = PublishedSet::open(dir, LoadMode::Map).unwrap();
    let tree = SetTree::of(&set).unwrap();
    assert_eq!(tree.root(), set.manifest().root);
    let accepted = TestKey(1).accepted();
    let mut entries = Vec::new();
    for n in (0..600).step_by(1) {
        let name = handle(n).to_uppercase();
        let path = tree.path(handle(n).as_bytes()).unwrap();
        assert_eq!(path.key, name.as_bytes());
        if let PathEnd::Present { public, private, public_count } = &path.end {
            let data = content[&n].to_le_bytes();
            let expected = values(&data);
            assert_eq!((*public_count, *private == EMPTY), (1, expected.len() == 1), "{name}");
            let record = tree::record_digest(&tree::public_digest(public), private);
            entries.push((tree::key_digest(name.as_bytes()), record));
        } else {
            assert!(!content.contains_key(&n), "{name}");
        }
        let proof = RecordProof { path, signed: set.manifest().statement().unwrap() };
        let again = RecordProof::parse(proof.encode().as_bytes()).unwrap();
        assert_eq!(again, proof);
        assert_eq!(again.verify(|signed| accepted.has_made(signed)), Ok(()), "{name}");
        let other = TestKey(2).accepted();
        assert_eq!(again.verify(|signed| other.has_made(signed)), Err(ProofError::Signature));
    }
    assert_eq!(entries.len(), content.len());
    assert_eq!(plain_root(&entries, 0), tree.root());
}

fn signing(dir: &Path) -> SetPublisher {
    let mut publisher = SetPublisher::open(dir).unwrap();
    publisher.sign_with(Arc::new(TestKey(1)));
    publisher
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_set_has_the_root_of_its_records_and_proves_them(
        steps in prop::collection::vec(
            (0..8_u8, prop::collection::btree_map(0..500_u16, prop::option::of(0..4_u32), 0..200)), 1..8),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut content = Content::new();
        let mut publisher = signing(dir.path());
        for (now, (kind, changes)) in (1..).zip(steps) {
            let is_base = publisher.manifest().is_none() || kind == 0;
            let mut changes = changes;
            if is_base {
                changes.retain(|_, value| value.is_some());
                content.clear();
            }
            publish(&mut publisher, &changes, is_base, now);
            for (n, value) in changes {
                match value {
                    Some(value) => content.insert(n, value),
                    None => content.remove(&n),
                };
            }
            let manifest = publisher.manifest().unwrap().clone();
            prop_assert_eq!(manifest.handles_count, content.len() as u64);
            if kind == 1 && manifest.layers.len() > 1 {
                let merged = publisher.stager().stage_merge(&manifest, 0..2, now, |_| ControlFlow::Continue(()));
                publisher.publish(merged.unwrap(), now).unwrap();
                prop_assert_eq!(publisher.manifest().unwrap().root, manifest.root, "a merge changes no record");
            }
            if kind == 2 {
                drop(publisher);
                publisher = signing(dir.path());
            }
        }
        check(dir.path(), &content);
    }
}

#[test]
fn sets_of_any_size_grow_by_deltas_to_the_same_root() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = signing(dir.path());
    publish(&mut publisher, &BTreeMap::new(), true, 1);
    check(dir.path(), &Content::new());
    let mut content = Content::new();
    for (now, count) in (2..).zip([1_u16, 1, 3, 40, 500]) {
        let from = u16::try_from(content.len()).unwrap();
        let changes: BTreeMap<_, _> =
            (from..(from + count).min(590)).map(|n| (n, Some(u32::from(n)))).collect();
        publish(&mut publisher, &changes, false, now);
        content.extend(changes.into_iter().map(|(n, value)| (n, value.unwrap())));
        check(dir.path(), &content);
    }
}

#[test]
fn a_proof_with_a_changed_bit_proves_nothing_false() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = signing(dir.path());
    let changes = (0..40).map(|n| (n, Some(u32::from(n)))).collect();
    publish(&mut publisher, &changes, true, 1);
    let set = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
    let tree = SetTree::of(&set).unwrap();
    let accepted = TestKey(1).accepted();
    let mut ends = [0; 3];
    for n in [0, 1, 2, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52] {
        let path = tree.path(handle(n).as_bytes()).unwrap();
        ends[match path.end {
            PathEnd::Present { .. } => 0,
            PathEnd::Absent => 1,
            PathEnd::Other { .. } => 2,
        }] += 1;
        let proof = RecordProof { path, signed: set.manifest().statement().unwrap() };
        let text = proof.encode().into_bytes();
        for len in 0..text.len() {
            assert!(RecordProof::parse(&text[..len]).is_err(), "cut to {len}");
        }
        for bit in 0..text.len() * 8 {
            let mut changed = text.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let parsed = RecordProof::parse(&changed);
            let verified = parsed.and_then(|it| it.verify(|it| accepted.has_made(it)).map(|()| it));
            if let Ok(other) = verified {
                // The same path shows that any other key at its end is missing too, which is true.
                let is_missing = !tree.path(&other.path.key).unwrap().is_present();
                let is_absence = !proof.path.is_present() && !other.path.is_present();
                let is_other_key =
                    RecordProof { path: ProofPath { key: proof.path.key.clone(), ..other.path }, ..other };
                assert!(is_missing && is_absence && is_other_key == proof, "{}: bit {bit}", handle(n));
            }
        }
    }
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

/// A present record cannot be proven absent, nor an absent one present, with parts of other proofs.
#[test]
fn a_path_with_the_end_of_another_proof_does_not_verify() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = signing(dir.path());
    publish(&mut publisher, &(0..40).map(|n| (n, Some(0))).collect(), true, 1);
    let set = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
    let tree = SetTree::of(&set).unwrap();
    let paths: Vec<_> = (0..80).map(|n| tree.path(handle(n).as_bytes()).unwrap()).collect();
    for path in &paths {
        for other in &paths {
            let mut mixed = path.clone();
            mixed.end = other.end.clone();
            if mixed != *path {
                let is_other_end = mixed.root() == Some(tree.root());
                // Records with equal values have equal ends.
                assert!(!is_other_end || mixed.is_present() == path.is_present(), "{path:?} {other:?}");
            }
            for len in 0..=path.siblings.len() {
                let cut = ProofPath {
                    siblings: path.siblings[..len].to_vec(),
                    end: PathEnd::Absent,
                    ..path.clone()
                };
                let is_path = len == path.siblings.len() && path.end == PathEnd::Absent;
                assert_eq!(cut.root() == Some(tree.root()), is_path);
            }
        }
    }
}

/// The time of the reader.
const NOW: u64 = 100;

#[test]
fn statements_that_are_more_than_a_minute_ahead_are_refused_and_keep_no_later_one_out() {
    use handle_snapshot::set::statement::NewestStatement;
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    publisher.sign_with(Arc::new(TestKey(1)));
    publish(&mut publisher, &BTreeMap::new(), true, 1000);
    let accepted = TestKey(1).accepted();
    let check = |now_unix_ms| {
        let manifest = handle_snapshot::set::read_manifest(dir.path()).unwrap();
        accepted.check(dir.path(), &manifest, None, now_unix_ms).map_err(|error| error.kind)
    };
    let newest = |signed_unix_ms, refused_ahead_ms| NewestStatement { signed_unix_ms, refused_ahead_ms };
    assert_eq!(check(1000).unwrap(), newest(1000, 0));
    // The clock of the publisher is a day ahead, and then right again.
    assert!(publisher.renew_statement(86_401_000).unwrap());
    assert_eq!(check(2000).unwrap(), newest(1000, 86_399_000), "the statement before counts");
    assert_eq!(check(86_341_000).unwrap(), newest(86_401_000, 0), "a minute ahead is accepted");
    assert_eq!(check(86_340_999).unwrap(), newest(1000, 60_001));
    assert!(publisher.renew_statement(3000).unwrap());
    assert_eq!(check(3001).unwrap(), newest(3000, 0));
    // A whole set from then, and the next one from now.
    publish(&mut publisher, &[(1, Some(1))].into(), false, 86_400_000);
    assert!(matches!(check(4000), Err(SetErrorKind::Ahead(86_396_000))));
    publish(&mut publisher, &[(2, Some(1))].into(), false, 5000);
    assert_eq!(check(5001).unwrap(), newest(5000, 0));
    // The clock of the reader was set back by a day.
    let manifest = handle_snapshot::set::read_manifest(dir.path()).unwrap();
    assert!(publisher.renew_statement(86_400_000).unwrap());
    let error = accepted.check(dir.path(), &manifest, None, 0);
    assert_eq!(error.unwrap(), newest(5000, 86_400_000));
}

/// A subtree with one record has the digest of its leaf at whatever depth, so a path could go on
/// with that leaf beside an empty subtree, and show that a record which is there is not.
#[test]
fn a_path_that_is_longer_than_the_tree_does_not_verify() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = signing(dir.path());
    for (now, count) in [(1, 1), (2, 2), (3, 40)] {
        publish(&mut publisher, &(0..count).map(|n| (n, Some(u32::from(n)))).collect(), true, now);
        let set = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
        let tree = SetTree::of(&set).unwrap();
        for n in 0..60 {
            let path = tree.path(handle(n).as_bytes()).unwrap();
            let key = tree::key_digest(&path.key);
            let node = match &path.end {
                PathEnd::Present { public, private, .. } => {
                    tree::leaf(&key, &tree::record_digest(&tree::public_digest(public), private))
                }
                PathEnd::Other { key, record } => tree::leaf(key, record),
                PathEnd::Absent => EMPTY,
            };
            for (end, sibling) in [(PathEnd::Absent, node), (path.end.clone(), EMPTY)] {
                let mut longer = ProofPath { end, ..path.clone() };
                while longer.siblings.len() < 256 {
                    let sibling = if longer.siblings.len() == path.siblings.len() { sibling } else { EMPTY };
                    longer.siblings.push(sibling);
                    assert_eq!(longer.root(), None, "{n}: {} steps", longer.siblings.len());
                }
            }
        }
    }
}

#[test]
fn only_sets_of_accepted_publishers_that_are_not_older_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = SetPublisher::open(dir.path()).unwrap();
    publish(&mut publisher, &BTreeMap::new(), true, 1);
    let accepted = TestKey(1).accepted();
    let check = |previous: Option<&_>| {
        let manifest = handle_snapshot::set::read_manifest(dir.path()).unwrap();
        let newest = accepted.check(dir.path(), &manifest, previous, NOW);
        newest.map(|newest| newest.signed_unix_ms).map_err(|error| error.kind)
    };
    assert!(matches!(check(None), Err(SetErrorKind::Unsigned)));
    assert!(!publisher.renew_statement(5).unwrap(), "there is no key");
    publisher.sign_with(Arc::new(TestKey(2)));
    publish(&mut publisher, &BTreeMap::new(), false, 10);
    assert!(matches!(check(None), Err(SetErrorKind::Foreign)));
    publisher.sign_with(Arc::new(TestKey(1)));
    publish(&mut publisher, &BTreeMap::new(), false, 20);
    assert_eq!(check(None).unwrap(), 20);
    let first = publisher.manifest().unwrap().clone();
    assert!(publisher.renew_statement(25).unwrap());
    assert_eq!(check(Some(&first)).unwrap(), 25, "the heartbeat counts");
    let heartbeat = std::fs::read(dir.path().join(HEARTBEAT)).unwrap();
    assert_eq!(SignedStatement::parse(&heartbeat).unwrap().encode().as_bytes(), heartbeat);
    publish(&mut publisher, &[(1, Some(1))].into(), false, 30);
    assert_eq!(check(Some(&first)).unwrap(), 30, "a heartbeat of an earlier set does not count");
    std::fs::write(dir.path().join(HEARTBEAT), b"damaged").unwrap();
    assert_eq!(check(None).unwrap(), 30);
    publisher.sign_with(Arc::new(TestKey(2)));
    publisher.renew_statement(99).unwrap();
    assert_eq!(check(None).unwrap(), 30, "another publisher renews nothing");
    let last = publisher.manifest().unwrap().clone();
    let older = |manifest: handle_snapshot::set::manifest::Manifest| {
        let kind = accepted.check(dir.path(), &first, Some(&manifest), NOW).map_err(|error| error.kind);
        matches!(kind, Err(SetErrorKind::Older { .. }))
    };
    assert!(older(last.clone()));
    let next_epoch = handle_snapshot::set::manifest::Manifest { epoch: 2, generation: 1, ..last };
    assert!(older(next_epoch), "the epoch comes first");
}

#[test]
fn a_proof_is_about_the_names_that_have_its_key_under_the_signed_rule() {
    for (folds, rule) in [(true, NameRule::Folded), (false, NameRule::Exact)] {
        let dir = tempfile::tempdir().unwrap();
        let mut publisher = signing(dir.path());
        publisher
            .publish_base(1, |file, dir| {
                let mut homed = HomedPrefixes::default();
                homed.add(b"10.1");
                let mut builder = Builder::new(dir, LayerOptions { folds, ..OPTIONS }).homed(homed);
                for n in 0..40_u16 {
                    builder.add(n.into(), handle(n).as_bytes(), values(&[2; 4]))?;
                }
                builder.finish(file)
            })
            .unwrap();
        let set = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
        assert_eq!(set.manifest().names, Some(rule));
        let tree = SetTree::of(&set).unwrap();
        let accepted = TestKey(1).accepted();
        for n in 0..50 {
            let spellings = [handle(n), handle(n).to_uppercase(), handle(n).replace("rec", "REC")];
            for (key, asked) in
                spellings.iter().flat_map(|key| spellings.iter().map(move |asked| (key, asked)))
            {
                let path = tree.path_to(key.clone().into_bytes()).unwrap();
                assert_eq!(path.root(), Some(tree.root()), "the path is true");
                let proof = RecordProof { path, signed: set.manifest().statement().unwrap() };
                let verified = proof.verify(|signed| accepted.has_made(signed));
                let is_key = rule.is_key(key.as_bytes());
                assert_eq!(verified, if is_key { Ok(()) } else { Err(ProofError::Key) }, "{key}");
                let is_about = proof.is_about(asked.as_bytes());
                assert_eq!(is_about, rule.key_of(asked.as_bytes()) == key.as_bytes(), "{key} {asked}");
                let is_there = n < 40 && (folds || *asked == handle(n));
                assert!(!is_about || proof.path.is_present() == is_there, "{key} {asked}");
            }
        }
    }
}

#[test]
fn proofs_of_other_versions_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = signing(dir.path());
    publish(&mut publisher, &[(1, Some(1))].into(), true, 1);
    let set = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
    let path = SetTree::of(&set).unwrap().path(handle(1).as_bytes()).unwrap();
    let text = RecordProof { path, signed: set.manifest().statement().unwrap() }.encode();
    let without_rule = text.replace("statement 2", "statement 1").replace("names folded\n", "");
    for (text, error) in [
        (without_rule.replace("proof 2", "proof 1"), ProofError::Version(1)),
        (text.replace("proof 2", "proof 3"), ProofError::Version(3)),
        (text.replace("statement 2", "statement 3"), ProofError::Statement(3)),
        (without_rule, ProofError::Form),
        (text.replace("proof 2", "proof 02"), ProofError::Form),
        (text.replace("names folded\n", ""), ProofError::Form),
        (text.replace("names folded\n", "names Folded\n"), ProofError::Form),
    ] {
        assert_eq!(RecordProof::parse(text.as_bytes()), Err(error), "{text}");
    }
    // The signature covers the rule.
    let other = RecordProof::parse(text.replace("names folded", "names exact").as_bytes()).unwrap();
    assert_eq!(other.verify(|it| TestKey(1).accepted().has_made(it)), Err(ProofError::Signature));
    assert_eq!(ProofError::Version(1).to_string(), "made before format 2: make it again");
    let newer = ProofError::Version(3).to_string();
    assert_eq!(newer, "made in format 3, and this program reads format 2: update it");
    let newer = ProofError::Statement(3).to_string();
    assert_eq!(newer, "its statement is made in format 3, and this program reads format 2: update it");
}

/// Publishes the set again as a program did that knew version 1 of the MANIFEST only.
fn publish_as_version_1(dir: &Path) -> Manifest {
    let manifest = read_manifest(dir).unwrap();
    let unsigned = Manifest { names: None, seal: None, ..manifest };
    let signed = unsigned.state(7, TestKey(1).signer()).sign(&TestKey(1)).unwrap();
    let seal = ManifestSeal { signed_unix_ms: 7, signer: TestKey(1).signer(), signature: signed.signature };
    let first = Manifest { seal: Some(seal), ..unsigned };
    let text = first.encode();
    assert!(text.starts_with("handle snapshot set 1\n") && !text.contains("names"), "{text}");
    assert!(signed.statement.encode().starts_with("handle snapshot statement 1\n"));
    std::fs::write(dir.join(MANIFEST), text).unwrap();
    first
}

/// A way to publish the next set.
type PublishStep = fn(&mut SetPublisher);

#[test]
fn a_set_of_version_1_is_served_and_the_next_one_has_the_rule() {
    let accepted = TestKey(1).accepted();
    let next: [(&str, PublishStep); 4] = [
        ("a delta", |publisher| publish(publisher, &[(2, Some(2))].into(), false, 9)),
        ("a base", |publisher| publish(publisher, &[(2, Some(2))].into(), true, 9)),
        ("a higher epoch", |publisher| assert_eq!(publisher.raise_epoch(5, 9).unwrap().epoch, 5)),
        ("a roll-back", |publisher| {
            publisher.keep().unwrap();
            publish(publisher, &[(2, Some(2))].into(), false, 9);
            let kept = publisher.kept_manifests().unwrap();
            assert_eq!(kept[0].names, None);
            publisher.roll_back(kept[0].generation, 10).unwrap();
        }),
    ];
    for (what, change) in next {
        let dir = tempfile::tempdir().unwrap();
        publish(&mut signing(dir.path()), &[(1, Some(1))].into(), true, 1);
        let first = publish_as_version_1(dir.path());
        let set = PublishedSet::open(dir.path(), LoadMode::Map).unwrap();
        assert_eq!(accepted.check(dir.path(), set.manifest(), None, NOW).unwrap().signed_unix_ms, 7);
        assert_eq!(SetTree::of(&set).unwrap().root(), first.root);
        let mut publisher = signing(dir.path());
        assert!(publisher.renew_statement(8).unwrap());
        let renewed = accepted.check(dir.path(), &first, None, NOW).unwrap().signed_unix_ms;
        assert_eq!(renewed, 8, "statements about it go on");
        change(&mut publisher);
        let manifest = read_manifest(dir.path()).unwrap();
        assert_eq!(manifest.names, Some(NameRule::Folded), "{what}");
        accepted.check(dir.path(), &manifest, Some(&first), NOW).unwrap();
    }
}

#[test]
fn a_set_whose_layers_follow_another_rule_does_not_open() {
    let dir = tempfile::tempdir().unwrap();
    publish(&mut signing(dir.path()), &[(1, Some(1))].into(), true, 1);
    let manifest = Manifest { names: Some(NameRule::Exact), ..read_manifest(dir.path()).unwrap() };
    std::fs::write(dir.path().join(MANIFEST), manifest.encode()).unwrap();
    let opened = PublishedSet::open(dir.path(), LoadMode::Map);
    for error in [opened.map(drop).unwrap_err(), SetPublisher::open(dir.path()).map(drop).unwrap_err()] {
        assert!(matches!(error.kind, SetErrorKind::OtherFile { what: "rule for names" }), "{error}");
    }
}

#[test]
fn keys_fold_where_the_set_does() {
    let mut key = *b"10.1/record-1";
    fold_key(&mut key, true);
    assert_ne!(tree::key_digest(&key), tree::key_digest(b"10.1/record-1"));
}
