//! Proofs that a record is, or is not, in a published set.

use crate::snapshot::layer_examples;
use handle_snapshot::format::KEY_LEN_MAX;
use handle_snapshot::proof::{ProofError, ProofPath, RecordProof};
use handle_snapshot::set::statement::{SignedStatement, StatementSigner};
use handle_snapshot::set::{PublishedSet, SetTree};
use handle_snapshot::{Layer, LoadMode, NameRule, SetPublisher, Sha256Sum, hash_key};
use std::io::Write as _;
use std::sync::{Arc, OnceLock};

/// Only the output of `encode` is accepted as a proof or a statement, to the byte. A proof verifies
/// for at most one root, only with its signature, and for no other key. What verifies with the
/// statement about a set is true of the set, for every name that the proof is about.
///
/// Input: a proof, a signed statement, or a name.
pub fn proof(bytes: &[u8]) {
    if let Some(signed) = SignedStatement::parse(bytes) {
        assert_eq!(signed.encode().as_bytes(), bytes);
    }
    let Ok(proof) = RecordProof::parse(bytes) else {
        return check_name(bytes);
    };
    assert_eq!(proof.encode().as_bytes(), bytes);
    proven_sets().iter().for_each(|set| set.check_path(proof.path.clone()));
    check_name(&proof.path.key);
    check_root(proof);
}

fn check_root(mut proof: RecordProof) {
    let key = proof.path.key.as_slice();
    if !proof.signed.statement.names.is_some_and(|rule| rule.is_key(key)) {
        assert!(!proof.is_about(key));
        assert_eq!(proof.verify(|_| true), Err(ProofError::Key));
        return;
    }
    let Some(root) = proof.path.root() else {
        assert_eq!(proof.verify(|_| true), Err(ProofError::Path));
        return;
    };
    proof.signed.statement.root = root;
    assert_eq!(proof.verify(|_| true), Ok(()));
    assert_eq!(proof.verify(|_| false), Err(ProofError::Signature));
    proof.signed.statement.root.0[0] ^= 1;
    assert_eq!(proof.verify(|_| true), Err(ProofError::Path));
    if let Some(sibling) = proof.path.siblings.last_mut() {
        sibling.0[5] ^= 1;
        assert_ne!(proof.path.root(), Some(root), "another sibling");
        proof.path.siblings.pop();
        assert_ne!(proof.path.root(), Some(root), "a shorter path");
    }
}

/// True paths to every spelling of a name, as one makes who has the set and lies about the key.
fn check_name(name: &[u8]) {
    if name.len() > KEY_LEN_MAX {
        return;
    }
    for set in proven_sets() {
        for key in spellings(name) {
            let path = set.tree.path_to(key).expect("intact records");
            assert_eq!(path.root(), Some(set.tree.root()));
            set.check_path(path);
        }
    }
}

fn spellings(name: &[u8]) -> [Vec<u8>; 4] {
    let record = [b"0.NA/", name].concat();
    [name.to_vec(), name.to_ascii_uppercase(), name.to_ascii_lowercase(), record]
}

/// A set, and what its publisher has signed.
struct ProvenSet {
    set: &'static PublishedSet,
    tree: SetTree<'static>,
    signed: SignedStatement,
}

impl ProvenSet {
    /// Publishes a layer as a set.
    fn publish(layer: &[u8]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut publisher = SetPublisher::open(directory.path()).expect("no other publisher");
        publisher.sign_with(Arc::new(ExampleSigner));
        let header = *Layer::open(layer).expect("a layer").header();
        let published = publisher.publish_base(5, |mut file, _| {
            file.write_all(layer)?;
            Ok((file, header))
        });
        published.expect("an intact layer");
        let set = PublishedSet::open(directory.path(), LoadMode::CopyToMemory).expect("it was published");
        let set: &PublishedSet = Box::leak(Box::new(set));
        let signed = set.manifest().statement().expect("it is signed");
        Self { set, tree: SetTree::of(set).expect("the root of its records"), signed }
    }

    /// If the path verifies with the true statement, it says what a lookup finds, for every name
    /// that the proof is about.
    fn check_path(&self, path: ProofPath) {
        let proof = RecordProof { path, signed: self.signed.clone() };
        if proof.verify(|signed| *signed == self.signed).is_err() {
            return;
        }
        assert!(proof.is_about(&proof.path.key), "{}", proof.path.key.escape_ascii());
        let records = self.set.records();
        for name in spellings(&proof.path.key) {
            let key = NameRule::of(records.folds()).key_of(&name);
            let found = records.find(hash_key(records.seed(), &key), &key).expect("an intact record");
            if proof.is_about(&name) {
                assert_eq!(proof.path.is_present(), found.is_some(), "{}", name.escape_ascii());
            }
        }
    }
}

/// A set that folds names, and one that does not.
fn proven_sets() -> &'static [ProvenSet] {
    static SETS: OnceLock<Vec<ProvenSet>> = OnceLock::new();
    SETS.get_or_init(|| {
        let layers = layer_examples();
        let with = |folds| {
            let mut layers = layers.iter().rev();
            let is_base = |bytes: &&Vec<u8>| {
                let layer = Layer::open(bytes.as_slice()).expect("a layer");
                layer.folds() == folds && layer.has_homed()
            };
            ProvenSet::publish(layers.find(is_base).expect("a base"))
        };
        vec![with(true), with(false)]
    })
}

/// A signer of examples, whose signatures verify nowhere.
#[derive(Debug)]
struct ExampleSigner;

impl StatementSigner for ExampleSigner {
    fn signer(&self) -> Sha256Sum {
        Sha256Sum([8; 32])
    }

    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, String> {
        Ok(vec![9; 256])
    }
}

/// Makes statements and proofs of a few records, present and absent, as seeds.
///
/// # Panics
/// If a set cannot be published.
#[must_use]
pub fn proof_examples() -> Vec<Vec<u8>> {
    let mut examples = Vec::new();
    for set in proven_sets() {
        examples.push(set.signed.encode().into_bytes());
        let many = (30..44).map(|number| format!("10.{}/{number}", number % 7));
        let few = ["10.1/a", "10.1/A", "10.1/b", "0.na/x", "x"].map(str::to_owned);
        for name in many.chain(few) {
            let path = set.tree.path(name.as_bytes()).expect("intact records");
            examples.push(RecordProof { path, signed: set.signed.clone() }.encode().into_bytes());
            examples.push(name.into_bytes());
        }
    }
    examples
}
