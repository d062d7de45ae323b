//! The tree of a published set, made from its layers, to check the root and to prove records.

use crate::format::Sha256Sum;
use crate::map::MappedFile;
use crate::names::NameRule;
use crate::proof::{ProofPath, TreePath};
use crate::reader::CorruptRecord;
use crate::set::manifest::MANIFEST;
use crate::set::{PublishedSet, SetError, SetErrorKind};
use crate::tree::{IndexedLayer, KeyIndex, RecordHasher, RecordTree, TreeSource};
use crate::writer::BuildError;
use std::vec::Vec;

/// The tree of a [`PublishedSet`].
#[derive(Debug)]
pub struct SetTree<'s> {
    set: &'s PublishedSet,
    keys: Vec<KeyIndex>,
    tree: RecordTree,
    hasher: RecordHasher,
}

impl<'s> SetTree<'s> {
    /// Reads all records of the set.
    ///
    /// # Errors
    /// When a record is damaged, or the root is not that of the MANIFEST.
    pub fn of(set: &'s PublishedSet) -> Result<Self, SetError> {
        let corrupt = |error| SetError::new(&set.dir, SetErrorKind::Build(BuildError::Corrupt(error)));
        let keys: Result<Vec<_>, CorruptRecord> = set.layers.iter().map(KeyIndex::of).collect();
        let keys = keys.map_err(corrupt)?;
        let hasher = RecordHasher::new(set.records().seed());
        let tree = RecordTree::of(&source(set, &keys, &hasher)).map_err(corrupt)?;
        if tree.root() != set.manifest.root {
            let what = SetErrorKind::OtherFile { what: "root" };
            return Err(SetError::new(set.dir.join(MANIFEST), what));
        }
        Ok(Self { set, keys, tree, hasher })
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> Sha256Sum {
        self.tree.root()
    }

    /// The path that proves whether there is a record of `handle`, whatever its letter case if the
    /// set folds.
    ///
    /// # Errors
    /// When a record is damaged.
    pub fn path(&self, handle: &[u8]) -> Result<ProofPath, CorruptRecord> {
        self.path_to(NameRule::of(self.set.records().folds()).key_of(handle))
    }

    /// The path to a key, which need not be that of any name. A record is only found under its own
    /// key, so such a path says nothing about a name that has another one.
    ///
    /// # Errors
    /// When a record is damaged.
    pub fn path_to(&self, key: Vec<u8>) -> Result<ProofPath, CorruptRecord> {
        let source = source(self.set, &self.keys, &self.hasher);
        TreePath { tree: &self.tree, source: &source, hasher: &self.hasher }.to(key, &self.set.records())
    }
}

fn source<'a>(
    set: &'a PublishedSet,
    keys: &'a [KeyIndex],
    hasher: &'a RecordHasher,
) -> TreeSource<'a, MappedFile> {
    let layers = set.layers.iter().zip(keys).map(|(layer, keys)| IndexedLayer { layer, keys });
    TreeSource { layers: layers.collect(), hasher }
}
