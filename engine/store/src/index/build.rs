//! Builds and drops the index of a type, in steps that can be interrupted.

use super::super::tables::{StoreTable, keys_after, names, number_in};
use super::super::transaction::Transaction;
use super::super::{Store, StoreError, StoreSnapshot};
use super::{
    IndexedType, POSITION, after_prefix, begin_key, indexed_types, keys_of, range_under, state_name,
};
use handle_proto::fold;
use serde::Serialize;
use std::ops::ControlFlow;

/// Most bytes of records that a step reads.
const STEP_BYTES: usize = 16 << 20;

/// The state of the index of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexState {
    /// Rows of older records are missing.
    Building = 1,
    /// Every record has its rows.
    Complete = 2,
    /// Rows are being removed.
    Dropping = 3,
}

impl IndexState {
    pub(super) const fn from_number(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Building),
            2 => Some(Self::Complete),
            3 => Some(Self::Dropping),
            _ => None,
        }
    }

    /// Whether changes of records keep the rows.
    pub(super) const fn is_kept(self) -> bool {
        !matches!(self, Self::Dropping)
    }
}

/// The progress of the index of a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IndexProgress {
    /// The type, folded.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its state.
    pub state: IndexState,
    /// The records that the build has read.
    pub records: u64,
}

/// The key of the row with the last record that the build of a type has read.
fn position_key(kind: &[u8]) -> Vec<u8> {
    [&[POSITION], kind].concat()
}

fn count_name(kind: &[u8]) -> Vec<u8> {
    [names::INDEX_RECORDS.as_bytes(), kind].concat()
}

impl Store {
    /// Brings the index closer to the types `kinds`: looks at up to `most` records, or removes up
    /// to `most` rows of a type that is not among them. False if nothing is left to do.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn index_step(&self, kinds: &[String], most: usize) -> Result<bool, StoreError> {
        let kinds: Vec<Vec<u8>> = kinds.iter().map(|kind| fold::folded(kind.as_bytes())).collect();
        // A commit without a change would still cost a sync.
        let is_done = |found: &[IndexedType]| {
            found.iter().all(|it| it.state == IndexState::Complete && kinds.contains(&it.kind))
                && kinds.iter().all(|kind| found.iter().any(|it| it.kind == *kind))
        };
        if is_done(&self.snapshot()?.indexed_types()?) {
            return Ok(false);
        }
        self.change(move |transaction| transaction.index_step(&kinds, most).map(|()| true))
    }

    /// The index of each type.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn index_progress(&self) -> Result<Vec<IndexProgress>, StoreError> {
        self.snapshot()?.index_progress()
    }
}

impl StoreSnapshot {
    /// The types with an index.
    pub(in super::super) fn indexed_types(&self) -> Result<Vec<IndexedType>, StoreError> {
        let start = names::INDEX_STATE.as_bytes();
        let end = after_prefix(start);
        let range = range_under(start, end.as_deref(), None);
        let types = self
            .tables
            .rows(StoreTable::Meta, range, |name, number| Ok(IndexedType::decode(name, number)))?;
        types.filter_map(Result::transpose).collect()
    }

    /// The index of each type.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn index_progress(&self) -> Result<Vec<IndexProgress>, StoreError> {
        let types = self.indexed_types()?.into_iter();
        let progress = types.map(|IndexedType { kind, state }| {
            let number = self.tables.get(StoreTable::Meta, &count_name(&kind))?;
            let kind = String::from_utf8_lossy(&kind).into_owned();
            Ok(IndexProgress { kind, state, records: number.map_or(0, |number| number_in(&number)) })
        });
        progress.collect()
    }
}

impl Transaction<'_> {
    fn index_step(&mut self, kinds: &[Vec<u8>], most: usize) -> Result<(), StoreError> {
        let dropped = self.indexed.iter().find(|it| it.state == IndexState::Dropping);
        if let Some(kind) = dropped.map(|it| it.kind.clone()) {
            return self.drop_index(&kind, most);
        }
        let unwanted = self.indexed.iter().filter(|it| !kinds.contains(&it.kind));
        let unwanted: Vec<Vec<u8>> = unwanted.map(|it| it.kind.clone()).collect();
        for kind in &unwanted {
            self.put_index_state(kind, IndexState::Dropping)?;
        }
        let is_new = |kind: &&Vec<u8>| !self.indexed.iter().any(|it| it.kind == **kind);
        let added: Vec<Vec<u8>> = kinds.iter().filter(is_new).cloned().collect();
        for kind in &added {
            self.put_index_state(kind, IndexState::Building)?;
        }
        self.indexed = indexed_types(&self.tables)?;
        self.build_index(most)
    }

    /// Reads further records for the types whose build is as far as that of the first.
    fn build_index(&mut self, most: usize) -> Result<(), StoreError> {
        let mut building = Vec::new();
        for indexed in self.indexed.iter().filter(|it| it.state == IndexState::Building) {
            building
                .push((indexed.clone(), self.tables.get(StoreTable::Index, &position_key(&indexed.kind))?));
        }
        let Some((_, from)) = building.first().cloned() else { return Ok(()) };
        let types: Vec<IndexedType> =
            building.into_iter().filter(|(_, at)| *at == from).map(|(indexed, _)| indexed).collect();
        let (mut last, mut keys, mut count, mut bytes) = (None, Vec::new(), 0, 0);
        let mut has_more = false;
        self.tables.each(StoreTable::Records, keys_after(from.as_deref()), &mut |handle, stored| {
            if count == most || bytes >= STEP_BYTES {
                has_more = true;
                return Ok(ControlFlow::Break(()));
            }
            keys.extend(keys_of(&types, handle, stored));
            count += 1;
            bytes += stored.len();
            last = Some(handle.to_vec());
            Ok(ControlFlow::Continue(()))
        })?;
        for key in &keys {
            self.tables.insert(StoreTable::Index, key, &[])?;
        }
        for IndexedType { kind, .. } in &types {
            let read = self.number_of(&count_name(kind))? + count as u64;
            self.tables.insert(StoreTable::Meta, &count_name(kind), &read.to_be_bytes())?;
            match last.as_ref().filter(|_| has_more) {
                Some(last) => self.tables.insert(StoreTable::Index, &position_key(kind), last)?,
                None => self.put_index_state(kind, IndexState::Complete)?,
            }
        }
        self.indexed = indexed_types(&self.tables)?;
        self.writes_count += 1;
        Ok(())
    }

    /// Removes up to `most` rows of a type, and forgets the type with the last one.
    fn drop_index(&mut self, kind: &[u8], most: usize) -> Result<(), StoreError> {
        let start = begin_key(kind);
        let end = after_prefix(&start);
        let (mut keys, mut has_more) = (Vec::new(), false);
        self.tables.each(StoreTable::Index, range_under(&start, end.as_deref(), None), &mut |key, _| {
            if keys.len() == most {
                has_more = true;
                return Ok(ControlFlow::Break(()));
            }
            keys.push(key.to_vec());
            Ok(ControlFlow::Continue(()))
        })?;
        for key in &keys {
            self.tables.discard(StoreTable::Index, key)?;
        }
        if !has_more {
            self.tables.remove(StoreTable::Meta, &state_name(kind))?;
            self.tables.remove(StoreTable::Meta, &count_name(kind))?;
            self.indexed = indexed_types(&self.tables)?;
        }
        self.writes_count += 1;
        Ok(())
    }

    /// Sets the state of the index of a type. Only a type that is being built has a position.
    fn put_index_state(&mut self, kind: &[u8], state: IndexState) -> Result<(), StoreError> {
        self.tables.discard(StoreTable::Index, &position_key(kind))?;
        self.tables.insert(StoreTable::Meta, &state_name(kind), &(state as u64).to_be_bytes())?;
        self.writes_count += 1;
        Ok(())
    }

    fn number_of(&self, name: &[u8]) -> Result<u64, StoreError> {
        Ok(self.tables.get(StoreTable::Meta, name)?.map_or(0, |number| number_in(&number)))
    }
}
