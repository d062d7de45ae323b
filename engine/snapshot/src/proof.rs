//! Proofs that a record is, or is not, in a set.
//!
//! A proof has the path from the root of the [tree](crate::tree) to the position of the key, and
//! the signed statement of the publisher that names the root. It is verified with the public key of
//! the publisher, without the set. A proof reveals the public values of the record. Of private
//! values it reveals only a blinded digest, from which they cannot be guessed.
//!
//! A path is about a key, and whoever asks has a name. The statement says how names become keys
//! ([`NameRule`](crate::NameRule)), and a proof is only valid for the one key of a name: under
//! another spelling, every record is absent from the tree.
//!
//! ```text
//! handle record proof 2
//! key 31302e313034352f4a554c5939352d41524d53
//! sibling ...            one line for each step from the root
//! present 1 ...          or `absent`, or `other KEY RECORD`
//! private ...
//! handle snapshot statement 2
//! ...
//! signature ...
//! ```
//!
//! `docs/snapshot-format.md` specifies the form.

use crate::format::{KEY_LEN_MAX, Sha256Sum, VALUES_COUNT_MAX, VALUES_LEN_MAX, hash_key};
use crate::lines::{LineReader, hex_text, parse_decimal, parse_hex};
use crate::reader::CorruptRecord;
use crate::records::RecordSet;
use crate::set::statement::{STATEMENT_LEN_MAX, STATEMENT_VERSION, SignedStatement};
use crate::tree::{
    EMPTY, NodeKind, RecordHasher, RecordTree, TreeEntry, TreeSource, goes_right, halves, join, key_digest,
    kind, leaf, public_digest, record_digest, subtree,
};
use core::fmt;
use core::fmt::Write as _;
use std::borrow::ToOwned as _;
use std::string::String;
use std::vec::Vec;

/// First line of a proof; the number is the version of the format.
pub const PROOF_FIRST_LINE: &str = "handle record proof 2";
/// The version of the format. In version 1, the statement does not say how names become keys.
const VERSION: u64 = 2;
/// Most steps of a path: one for each bit of a digest.
pub const STEPS_MAX: usize = 256;
/// Most bytes of a proof.
pub const PROOF_LEN_MAX: usize =
    2 * (KEY_LEN_MAX + VALUES_LEN_MAX) + STEPS_MAX * 73 + STATEMENT_LEN_MAX + 1024;

/// The end of the path to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathEnd {
    /// The record of the key.
    Present {
        /// Number of public values.
        public_count: usize,
        /// The public values in wire form, in stored order.
        public: Vec<u8>,
        /// Digest of the private values; zero if there are none.
        private: Sha256Sum,
    },
    /// A subtree without records.
    Absent,
    /// A subtree whose only record has another key.
    Other {
        /// Digest of that key.
        key: Sha256Sum,
        /// Digest of that record.
        record: Sha256Sum,
    },
}

/// The path from the root of a tree to the position of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofPath {
    /// The key.
    pub key: Vec<u8>,
    /// The digest of the subtree beside each step of the path, from the root on.
    pub siblings: Vec<Sha256Sum>,
    /// The end of the path.
    pub end: PathEnd,
}

/// A path, and the statement of a publisher about the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordProof {
    /// The path.
    pub path: ProofPath,
    /// The statement.
    pub signed: SignedStatement,
}

/// Why a proof is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProofError {
    /// The text does not have the form of a proof.
    Form,
    /// The text is a proof in this other version of the format.
    Version(u64),
    /// The statement in the proof has this later version of the format.
    Statement(u64),
    /// No name has the key under the rule of the statement.
    Key,
    /// The path does not lead from the key to the root of the statement.
    Path,
    /// The statement is not signed with the given key.
    Signature,
}

impl fmt::Display for ProofError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "this is not a proof, or it is damaged",
            Self::Version(..VERSION) => return write!(f, "made before format {VERSION}: make it again"),
            Self::Version(version) => {
                return write!(
                    f,
                    "made in format {version}, and this program reads format {VERSION}: update it"
                );
            }
            Self::Statement(version) => {
                return write!(
                    f,
                    "its statement is made in format {version}, and this program reads format {STATEMENT_VERSION}: \
                     update it"
                );
            }
            Self::Key => "it is about a key that no name has in this set",
            Self::Path => "the path does not lead to the root that the publisher signed",
            Self::Signature => "the statement is not signed with the key of the publisher",
        })
    }
}

impl core::error::Error for ProofError {}

impl ProofPath {
    /// Whether the path ends at the record of the key.
    #[must_use]
    pub const fn is_present(&self) -> bool {
        matches!(self.end, PathEnd::Present { .. })
    }

    /// The root to which the path leads; `None` if no tree has such a path.
    #[must_use]
    pub fn root(&self) -> Option<Sha256Sum> {
        let key = key_digest(&self.key);
        let steps = self.siblings.len();
        let end = match &self.end {
            PathEnd::Present { public, private, .. } => {
                leaf(&key, &record_digest(&public_digest(public), private))
            }
            PathEnd::Absent => EMPTY,
            PathEnd::Other { key: other, record } => {
                let is_on_path = (0..steps).all(|depth| goes_right(&key, depth) == goes_right(other, depth));
                if *other == key || !is_on_path {
                    return None;
                }
                leaf(other, record)
            }
        };
        if steps > STEPS_MAX {
            return None;
        }
        (0..steps).rev().try_fold(end, |node, depth| {
            let sibling = &self.siblings[depth];
            let (left, right) = if goes_right(&key, depth) { (sibling, &node) } else { (&node, sibling) };
            let joined = join(left, right);
            // A subtree with less than two records has no halves.
            (kind(&joined) == NodeKind::Inner).then_some(joined)
        })
    }
}

impl RecordProof {
    /// Whether the proof is about this name: its key is the one that the set has for the name.
    #[must_use]
    pub fn is_about(&self, name: &[u8]) -> bool {
        self.signed.statement.names.is_some_and(|rule| rule.key_of(name) == self.path.key)
    }

    /// Checks that the key is one under the rule of the statement, that the path leads from it to
    /// the root of the statement, and that `verify` accepts the signature over the text that it
    /// gets.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn verify(&self, verify: impl FnOnce(&SignedStatement) -> bool) -> Result<(), ProofError> {
        if !self.is_about(&self.path.key) {
            return Err(ProofError::Key);
        }
        if self.path.root() != Some(self.signed.statement.root) {
            return Err(ProofError::Path);
        }
        if verify(&self.signed) { Ok(()) } else { Err(ProofError::Signature) }
    }

    /// The text of the proof.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("writing to a string does not fail");
        text + &self.signed.encode()
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "{PROOF_FIRST_LINE}")?;
        writeln!(text, "key {}", hex_text(&self.path.key))?;
        for sibling in &self.path.siblings {
            writeln!(text, "sibling {sibling}")?;
        }
        match &self.path.end {
            PathEnd::Present { public_count, public, private } => {
                writeln!(text, "present {public_count} {}", hex_text(public))?;
                writeln!(text, "private {private}")
            }
            PathEnd::Absent => writeln!(text, "absent -"),
            PathEnd::Other { key, record } => writeln!(text, "other {key} {record}"),
        }
    }

    /// Parses a proof. Only the exact bytes that [`encode`](Self::encode) writes are accepted.
    ///
    /// # Errors
    /// When the bytes are not a proof, or one of another version.
    pub fn parse(bytes: &[u8]) -> Result<Self, ProofError> {
        if bytes.len() > PROOF_LEN_MAX {
            return Err(ProofError::Form);
        }
        let mut lines = LineReader::new(bytes).ok_or(ProofError::Form)?;
        match lines.decimal("handle record proof") {
            Some(VERSION) => Self::read(lines).ok_or_else(|| match later_statement(bytes) {
                Some(version) => ProofError::Statement(version),
                None => ProofError::Form,
            }),
            Some(version) => Err(ProofError::Version(version)),
            None => Err(ProofError::Form),
        }
    }

    fn read(mut lines: LineReader<'_>) -> Option<Self> {
        let key = parse_hex(lines.field("key")?).filter(|key| key.len() <= KEY_LEN_MAX)?;
        let mut siblings = Vec::new();
        while let Some(sibling) = lines.field_if("sibling") {
            siblings.push(Sha256Sum::parse(sibling)?);
            if siblings.len() > STEPS_MAX {
                return None;
            }
        }
        let end = Self::read_end(&mut lines)?;
        let signed = SignedStatement::read(&mut lines).filter(|it| it.statement.names.is_some())?;
        lines.is_at_end().then_some(Self { path: ProofPath { key, siblings, end }, signed })
    }

    fn read_end(lines: &mut LineReader<'_>) -> Option<PathEnd> {
        if let Some(text) = lines.field_if("present") {
            let (count, public) = text.split_once(' ')?;
            let count = usize::try_from(parse_decimal(count)?).ok()?;
            let public = if public.is_empty() { Vec::new() } else { parse_hex(public)? };
            if count > VALUES_COUNT_MAX || public.len() > VALUES_LEN_MAX {
                return None;
            }
            // The digest does not cover the number, so the number has to match the values.
            handle_proto::Values::from_encoded(count, &public).ok()?;
            return Some(PathEnd::Present { public_count: count, public, private: lines.digest("private")? });
        }
        if let Some(text) = lines.field_if("absent") {
            return (text == "-").then_some(PathEnd::Absent);
        }
        let (key, record) = lines.field("other")?.split_once(' ')?;
        Some(PathEnd::Other { key: Sha256Sum::parse(key)?, record: Sha256Sum::parse(record)? })
    }
}

/// The version of the statement in a proof, if it is later than those that are read.
fn later_statement(proof: &[u8]) -> Option<u64> {
    proof.split(|&byte| byte == b'\n').find_map(SignedStatement::later_version)
}

/// Finds paths in a tree.
pub(crate) struct TreePath<'a, B> {
    pub tree: &'a RecordTree,
    pub source: &'a TreeSource<'a, B>,
    pub hasher: &'a RecordHasher,
}

impl<B: AsRef<[u8]>> TreePath<'_, B> {
    pub(crate) fn to(&self, key: Vec<u8>, records: &RecordSet<'_, B>) -> Result<ProofPath, CorruptRecord> {
        let digest = key_digest(&key);
        let (bits, mut at, mut siblings) = (self.tree.bits() as usize, 1, Vec::new());
        while siblings.len() < bits && kind(&self.tree.node(at)) == NodeKind::Inner {
            let right = usize::from(goes_right(&digest, siblings.len()));
            siblings.push(self.tree.node(2 * at + 1 - right));
            at = 2 * at + right;
        }
        let entries = self.entries_below(at, siblings.len(), bits)?;
        let mut entries = entries.as_slice();
        while entries.len() > 1 {
            let (left, right) = halves(entries, siblings.len());
            let (mine, other) =
                if goes_right(&digest, siblings.len()) { (right, left) } else { (left, right) };
            siblings.push(subtree(other, siblings.len() + 1));
            entries = mine;
        }
        let end = match entries {
            [one] if one.key == digest => self.present(&key, records)?,
            [one] => PathEnd::Other { key: one.key, record: one.record },
            _ => PathEnd::Absent,
        };
        Ok(ProofPath { key, siblings, end })
    }

    /// The entries of a subtree that is a bucket, or has at most one record.
    fn entries_below(
        &self,
        mut at: usize,
        mut depth: usize,
        bits: usize,
    ) -> Result<Vec<TreeEntry>, CorruptRecord> {
        if kind(&self.tree.node(at)) == NodeKind::Empty {
            return Ok(Vec::new());
        }
        // A subtree with one record has the digest of the half that has it.
        while depth < bits {
            at = if kind(&self.tree.node(2 * at)) == NodeKind::Empty { 2 * at + 1 } else { 2 * at };
            depth += 1;
        }
        let bucket = u32::try_from(at - (1 << bits)).unwrap_or(u32::MAX);
        self.source.entries(bucket, self.tree.bits())
    }

    fn present(&self, key: &[u8], records: &RecordSet<'_, B>) -> Result<PathEnd, CorruptRecord> {
        let record = records.find(hash_key(records.seed(), key), key)?.ok_or(CorruptRecord { at: 0 })?;
        Ok(PathEnd::Present {
            public_count: record.public_count(),
            public: record.public_bytes().to_owned(),
            private: self.hasher.private_digest(&record),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"10.1/A";

    fn root(siblings_count: usize, end: PathEnd) -> Option<Sha256Sum> {
        let siblings = std::vec![Sha256Sum([2; 32]); siblings_count];
        ProofPath { key: KEY.to_vec(), siblings, end }.root()
    }

    #[test]
    fn another_record_is_on_the_path_of_the_key_and_is_not_that_of_the_key() {
        let own = key_digest(KEY);
        let other = |bit: usize| {
            let mut key = own;
            key.0[bit / 8] ^= 0x80 >> (bit % 8);
            PathEnd::Other { key, record: Sha256Sum([3; 32]) }
        };
        for steps in [0, 1, 7, 8, 9, 100] {
            assert!(root(steps, other(steps)).is_some(), "{steps} steps, then they part");
            let parts_before = steps.checked_sub(1).and_then(|bit| root(steps, other(bit)));
            assert_eq!(parts_before, None, "{steps} steps, of which the last is not on its path");
            let itself = PathEnd::Other { key: own, record: Sha256Sum([3; 32]) };
            assert_eq!(root(steps, itself), None, "{steps} steps");
        }
    }

    #[test]
    fn a_path_has_no_more_steps_than_a_key_has_bits() {
        assert!(root(STEPS_MAX, PathEnd::Absent).is_some());
        assert_eq!(root(STEPS_MAX + 1, PathEnd::Absent), None);
    }
}
