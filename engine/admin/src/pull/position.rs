//! How far a source has been copied. It is in the store, and changes in the commits that change the
//! records.

use handle_store::{Store, StoreError, Transaction};
use serde::{Deserialize, Serialize};

/// How far a source has been copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullPosition {
    /// Which records are copied from where.
    pub scope: String,
    /// Raised by each commit of a process that copies.
    pub turn: u64,
    /// The cursor among the changes up to which they are here; `None` if all records have to be
    /// compared first, or the source does not report changes.
    pub cursor: Option<String>,
    /// When all records were compared last, in milliseconds since 1970.
    pub compared_unix_ms: Option<u64>,
    /// When the source was last known to be here, in milliseconds since 1970, as of the last
    /// commit.
    pub pulled_unix_ms: Option<u64>,
    /// The last transaction of the store before the first comparison that was not completed.
    /// Handles that were created since do not count as records of which a share may be deleted.
    pub begun_id: Option<u64>,
    /// Records that the source has listed in the last complete comparison.
    pub records: u64,
    /// Handles that the last comparison has not deleted, because there were too many.
    pub refused: Option<RefusedDeletions>,
    /// Deletions that an operator has accepted for the next comparison.
    pub accepted: Option<u64>,
}

/// Handles that a comparison has not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedDeletions {
    /// Handles that the source did not list.
    pub deletions: u64,
    /// Handles that were in the store before the comparison.
    pub records: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
}

impl PullPosition {
    /// The position before anything has been copied.
    #[must_use]
    pub fn new(scope: &str) -> Self {
        Self { scope: scope.to_owned(), ..Self::default() }
    }

    /// Reads the position of `source`.
    ///
    /// # Errors
    /// When the store cannot be read, or is damaged.
    pub fn read(transaction: &Transaction<'_>, source: &str) -> Result<Option<Self>, StoreError> {
        transaction.pull_position(source)?.map(|stored| Self::decode(&stored)).transpose()
    }

    /// Reads the position of `source`, behind all changes that are waiting.
    ///
    /// # Errors
    /// When the store cannot be read, or is damaged.
    pub fn of(store: &Store, source: &str) -> Result<Option<Self>, StoreError> {
        let source = source.to_owned();
        store.change(move |transaction| Self::read(transaction, &source))
    }

    /// Decodes the stored form.
    ///
    /// # Errors
    /// When it does not decode.
    pub fn decode(stored: &[u8]) -> Result<Self, StoreError> {
        serde_json::from_slice(stored)
            .map_err(|_| StoreError::Damaged("the position of a source does not decode"))
    }

    /// Writes the position of `source`.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn write(&self, transaction: &mut Transaction<'_>, source: &str) -> Result<(), StoreError> {
        let stored = serde_json::to_vec(self);
        let stored = stored.map_err(|_| StoreError::Damaged("the position of a source does not encode"))?;
        transaction.set_pull_position(source, &stored)
    }
}

/// Whether `deletions` of `records` handles are at most `percent` of them.
#[must_use]
pub fn may_delete(deletions: u64, records: u64, percent: u32) -> bool {
    u128::from(deletions) * 100 <= u128::from(records) * u128::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_round_trip_and_damage_is_an_error() {
        let refused = RefusedDeletions { deletions: 7, records: 9, unix_ms: u64::MAX };
        for refused in [None, Some(refused)] {
            let position = PullPosition {
                turn: 3,
                cursor: Some("a\"ü".to_owned()),
                begun_id: Some(5),
                refused,
                accepted: refused.map(|refused| refused.deletions),
                ..PullPosition::new("http")
            };
            let stored = serde_json::to_vec(&position).unwrap();
            assert_eq!(PullPosition::decode(&stored).unwrap(), position);
            assert!((0..stored.len()).all(|len| PullPosition::decode(&stored[..len]).is_err()));
        }
    }

    #[test]
    fn the_share_of_deletions_has_an_edge() {
        for (deletions, records, percent, expected) in [
            (0, 0, 0, true),
            (1, 0, 100, false),
            (1, 10, 10, true),
            (2, 10, 10, false),
            (10, 100, 10, true),
            (11, 100, 10, false),
            (100, 100, 100, true),
            (1, 100, 0, false),
            (u64::MAX, u64::MAX, 99, false),
        ] {
            let name = format!("{deletions} of {records}, {percent} %");
            assert_eq!(may_delete(deletions, records, percent), expected, "{name}");
        }
    }
}
