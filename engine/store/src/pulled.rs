//! The store of a process that copies records from sources: how far each source has been copied,
//! which changes in the same transactions as the records.

use super::tables::{ALL_KEYS, StoreTable};
use super::transaction::Transaction;
use super::{RecordBuf, StoreError, StoreRecords as _};
use std::ops::ControlFlow;

/// What storing a copied record has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PulledChange {
    /// It was there already.
    Same,
    /// There was no record of this name.
    Created,
    /// It replaced another one.
    Replaced,
}

impl Transaction<'_> {
    /// How far `source` has been copied, as it was last set.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn pull_position(&self, source: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.tables.get(StoreTable::Pulls, source.as_bytes())
    }

    /// Sets how far `source` has been copied.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_pull_position(&mut self, source: &str, position: &[u8]) -> Result<(), StoreError> {
        self.writes_count += 1;
        self.tables.insert(StoreTable::Pulls, source.as_bytes(), position)
    }

    /// Forgets how far all sources have been copied but those of these names.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep_pull_positions(&mut self, sources: &[String]) -> Result<(), StoreError> {
        let mut dropped = Vec::new();
        self.tables.each(StoreTable::Pulls, ALL_KEYS, &mut |name, _| {
            if !sources.iter().any(|source| source.as_bytes() == name) {
                dropped.push(name.to_vec());
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for name in dropped {
            self.writes_count += 1;
            self.tables.remove(StoreTable::Pulls, &name)?;
        }
        Ok(())
    }

    /// Reads the records of these keys at once, if each of them would cost an exchange with a
    /// server.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn prefetch_records<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Result<(), StoreError> {
        self.tables.prefetch(StoreTable::Records, keys)
    }

    /// Stores the record that a source has under `key`, unless it is here already.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_pulled(&mut self, key: &[u8], record: &RecordBuf) -> Result<PulledChange, StoreError> {
        let (before, values) = (self.record(key)?, record.view().values);
        let change = match &before {
            Some(before) if before.view().values == values => return Ok(PulledChange::Same),
            Some(_) => PulledChange::Replaced,
            None => PulledChange::Created,
        };
        self.put_at(key, values, before.as_ref(), None)?;
        Ok(change)
    }
}
