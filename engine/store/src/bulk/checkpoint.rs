//! The progress of an import, which changes with each of its commits, so that an interrupted import
//! can go on behind the last record that it has written.

use super::super::tables::{StoreTable, number_in};
use super::super::transaction::Transaction;
use super::super::{Store, StoreError};

/// The key of the row: a store has at most one unfinished import.
const KEY: &[u8] = b"";

/// An import that was interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedImport {
    /// Identifies the input: a hash of its records in their order.
    pub(super) input: u64,
    /// The timestamp of values that had none, in Unix seconds.
    pub dated_unix_s: u32,
    /// Records of the input that were written or kept.
    pub records: u64,
    /// The name of the last of them; empty before the first.
    pub(super) last: Vec<u8>,
}

impl UnfinishedImport {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.input.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.records.to_be_bytes());
        bytes.extend_from_slice(&self.dated_unix_s.to_be_bytes());
        bytes.extend_from_slice(&self.last);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        const DAMAGED: StoreError = StoreError::Damaged("the progress of an import does not decode");
        let (numbers, rest) = bytes.split_at_checked(16).ok_or(DAMAGED)?;
        let (dated, last) = rest.split_first_chunk().ok_or(DAMAGED)?;
        Ok(Self {
            input: number_in(numbers),
            records: number_in(&numbers[8..]),
            dated_unix_s: u32::from_be_bytes(*dated),
            last: last.to_vec(),
        })
    }
}

impl Transaction<'_> {
    pub(super) fn unfinished_import(&self) -> Result<Option<UnfinishedImport>, StoreError> {
        let row = self.tables.get(StoreTable::Imports, KEY)?;
        row.map(|row| UnfinishedImport::decode(&row)).transpose()
    }

    pub(super) fn put_unfinished_import(&mut self, import: &UnfinishedImport) -> Result<(), StoreError> {
        self.writes_count += 1;
        self.tables.insert(StoreTable::Imports, KEY, &import.encode())
    }

    pub(super) fn end_import(&mut self) -> Result<(), StoreError> {
        self.writes_count += 1;
        self.tables.remove(StoreTable::Imports, KEY).map(drop)
    }
}

impl Store {
    /// The import that was interrupted in this store, if there is one.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn unfinished_import(&self) -> Result<Option<UnfinishedImport>, StoreError> {
        self.change(|transaction| transaction.unfinished_import())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_round_trips() {
        for last in [&b""[..], b"10.1/A"] {
            let import = UnfinishedImport { input: 7, dated_unix_s: 8, records: 9, last: last.to_vec() };
            assert_eq!(UnfinishedImport::decode(&import.encode()).unwrap(), import);
        }
        assert!(UnfinishedImport::decode(&[0; 19]).is_err());
    }
}
