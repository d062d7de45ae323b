//! Compares the index with the records, in memory that does not grow with them.

use super::super::StoreFinding;
use super::super::snapshot::{StoreSnapshot, StoredRecord};
use super::super::tables::{ALL_KEYS, StoreTable};
use super::{IndexState, IndexedType, keys_of};
use crate::StoreError;
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};

/// The rows of a type that records should have, and those that are there: their numbers, and the
/// sums of their hashes.
type RowSums = [(u64, u64); 2];

/// A comparison in progress.
pub(in super::super) struct IndexCheck {
    types: Vec<IndexedType>,
    sums: BTreeMap<Vec<u8>, RowSums>,
    hasher: RandomState,
}

impl IndexCheck {
    /// Begins with the types whose index is complete.
    pub(in super::super) fn new(snapshot: &StoreSnapshot) -> Result<Self, StoreError> {
        let mut types = snapshot.indexed_types()?;
        types.retain(|it| it.state == IndexState::Complete);
        let sums = types.iter().map(|it| (it.kind.clone(), RowSums::default())).collect();
        Ok(Self { types, sums, hasher: RandomState::new() })
    }

    pub(in super::super) fn add_record(&mut self, stored: &StoredRecord) {
        for key in keys_of(&self.types, stored.handle(), stored.as_bytes()) {
            self.add(0, &key);
        }
    }

    fn add(&mut self, side: usize, key: &[u8]) {
        let kind = key.split(|&byte| byte == 0).next().unwrap_or_default();
        let hash = self.hasher.hash_one(key);
        if let Some((count, sum)) = self.sums.get_mut(kind).and_then(|sums| sums.get_mut(side)) {
            (*count, *sum) = (*count + 1, sum.wrapping_add(hash));
        }
    }

    /// Reads the index, and reports each type that differs.
    pub(in super::super) fn finish(
        mut self,
        snapshot: &StoreSnapshot,
        found: &mut impl FnMut(StoreFinding),
    ) -> Result<(), StoreError> {
        if self.types.is_empty() {
            return Ok(());
        }
        for key in snapshot.tables.rows(StoreTable::Index, ALL_KEYS, |key, _| Ok(key.to_vec()))? {
            self.add(1, &key?);
        }
        let different = self.sums.into_iter().filter(|(_, [expected, there])| expected != there);
        different.for_each(|(kind, _)| found(StoreFinding::WrongIndex(kind)));
        Ok(())
    }
}
