//! The tables of a store, and what an engine does with them.
//!
//! An engine keeps ordered tables of bytes and changes them in transactions; numbers, log, dates,
//! keys of requests and positions of mirrors are written once, above it. Numbers in keys are
//! big-endian, so that the order of the bytes is that of the numbers.

use super::embedded::{EmbeddedRecord, EmbeddedSnapshot, EmbeddedStore, EmbeddedTables, EmbeddedWrite};
use super::postgres::{PostgresRecord, PostgresSnapshot, PostgresStore, PostgresTables, PostgresWrite};
use super::{StoreConfig, StoreError};
use std::ops::{Bound, ControlFlow};

/// A table of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreTable {
    /// Records by the name they are stored under.
    Records,
    /// Homed prefixes, folded, without the `0.NA/` of their records; empty values.
    Homed,
    /// Transactions by number.
    Log,
    /// Last changes of deleted handles and released prefixes, by a byte for the kind and the stored
    /// name.
    Removals,
    /// The keys of `Removals` by the number of the transaction: the oldest is first.
    RemovalIds,
    /// Last changes of homed prefixes.
    HomedDates,
    /// Numbers by name: see [`names`].
    Meta,
    /// The positions of a mirror in the streams of its primaries, by their names; behind a byte
    /// that is 1 while a dump is in progress.
    Mirrors,
    /// Names that a dump in progress has named without a change; empty values.
    MirrorNamed,
    /// Requests with changes of many records that may be repeated, by the scope of the key.
    BulkKeys,
    /// Scopes by the number of the request, so from the oldest on.
    BulkNumbers,
    /// Results by the number of the request and that of the first change.
    BulkResults,
    /// Identity and number of the request, so for each identity from the oldest on; empty values.
    BulkOwned,
    /// Numbers of keys and results of each identity.
    BulkOwners,
    /// The index of values (`index/mod.rs`): type, value and handle; empty values.
    Index,
    /// The progress of an unfinished import, under an empty key (`bulk/checkpoint.rs`).
    Imports,
    /// How far sources of records have been copied, by their names (`pulled.rs`).
    Pulls,
}

/// The names of numbers in [`StoreTable::Meta`].
pub(crate) mod names {
    /// The schema of the store.
    pub(crate) const SCHEMA: &str = "schema";
    /// 1 if local names are folded, otherwise 0.
    pub(crate) const FOLDS: &str = "folds";
    /// A random number that identifies the store. A copy of the store has the same number until it
    /// is recognised as a copy.
    pub(crate) const IDENTITY: &str = "identity";
    /// The number of the last transaction, also when the log is empty.
    pub(crate) const LAST_ID: &str = "last_id";
    /// The time of the last transaction.
    pub(crate) const LAST_MS: &str = "last_unix_ms";
    /// Transactions up to this one are not in the log.
    pub(crate) const LOG_BASE: &str = "log_base";
    /// The time of the last transaction that is not in the log any more.
    pub(crate) const LOG_BASE_MS: &str = "log_base_unix_ms";
    /// The number that was used up when the log began anew.
    pub(crate) const LOG_ANEW: &str = "log_anew";
    /// Number of values in all records.
    pub(crate) const VALUES: &str = "values";
    /// Number of bytes in the names and values of all records.
    pub(crate) const BYTES: &str = "bytes";
    /// The last number in `BulkNumbers`.
    pub(crate) const BULK_LAST: &str = "bulk_last";
    /// Number of results in `BulkResults`.
    pub(crate) const BULK_RESULTS_COUNT: &str = "bulk_results";
    /// Number of dumps in progress.
    pub(crate) const MIRROR_DUMPS: &str = "mirror_dumps";
    /// The last transaction before a promotion, after which the numbers went on at `RENUMBERED_TO`
    /// without a change of any record.
    pub(crate) const RENUMBERED_FROM: &str = "renumbered_from";
    /// The last transaction right after a promotion.
    pub(crate) const RENUMBERED_TO: &str = "renumbered_to";
    /// Begins the names of the states of indexed types; the type follows.
    pub(crate) const INDEX_STATE: &str = "index:";
    /// Begins the names of how many records the build of an index has read; the type follows.
    pub(crate) const INDEX_RECORDS: &str = "index_records:";
    /// How far the copy of a store is that is being moved here: see `relocate.rs`.
    pub(crate) const COPY_STATE: &str = "copy_state";
    /// 1 if the store was moved elsewhere.
    pub(crate) const MOVED: &str = "moved";
    /// The number that health checks write and read back.
    pub(crate) const PROBE: &str = "probe";
}

/// A range of keys.
pub(crate) type KeyRange<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// All keys.
pub(crate) const ALL_KEYS: KeyRange<'static> = (Bound::Unbounded, Bound::Unbounded);

/// What [`each`](WriteTables::each) calls with each key and value.
pub(crate) type RowVisitor<'v> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StoreError> + 'v;

/// The keys after `after`, or all.
pub(crate) fn keys_after(after: Option<&[u8]>) -> KeyRange<'_> {
    (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

/// The number in the first eight bytes; 0 if there are fewer.
pub(crate) fn number_in(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// An engine with an open store.
#[expect(clippy::large_enum_variant, reason = "there is one in a store")]
#[derive(Debug)]
pub(crate) enum StoreEngine {
    /// One file.
    Embedded(EmbeddedStore),
    /// A database of a server.
    Postgres(PostgresStore),
}

/// A number in `Meta`, with its name.
pub(crate) type MetaNumber = (&'static str, u64);

impl StoreEngine {
    /// Creates an empty store, which has `mark`, a number in its `Meta`, from the same transaction
    /// on.
    pub(crate) fn create(
        config: &StoreConfig,
        folds: bool,
        mark: Option<MetaNumber>,
    ) -> Result<Self, StoreError> {
        Ok(match config.is_in_database() {
            true => Self::Postgres(PostgresStore::create(config, folds, mark)?),
            false => Self::Embedded(EmbeddedStore::create(config, folds, mark)?),
        })
    }

    /// Opens a store, and upgrades it from an older schema.
    pub(crate) fn open(config: &StoreConfig, reads_only: bool) -> Result<Self, StoreError> {
        match (config.is_in_database(), reads_only) {
            (true, _) => PostgresStore::open(config, reads_only).map(Self::Postgres),
            (false, true) => EmbeddedStore::open_to_read(config).map(Self::Embedded),
            (false, false) => EmbeddedStore::open(config).map(Self::Embedded),
        }
    }

    /// The tables at this moment: with all committed changes, and without later ones.
    pub(crate) fn snapshot(&self) -> Result<SnapshotTables, StoreError> {
        match self {
            Self::Embedded(store) => Ok(SnapshotTables::Embedded(store.snapshot()?)),
            Self::Postgres(store) => Ok(SnapshotTables::Postgres(store.snapshot()?)),
        }
    }

    /// Begins a transaction. There is one at a time, which sees the changes of all before it.
    pub(crate) fn begin_write(&self) -> Result<BegunWrite<'_>, StoreError> {
        match self {
            Self::Embedded(store) => Ok(BegunWrite::Embedded(store.begin_write()?)),
            Self::Postgres(store) => Ok(BegunWrite::Postgres(store.begin_write()?)),
        }
    }

    /// Whether a transaction that failed is over without a trace, so that others can follow.
    pub(crate) const fn goes_on_after(&self, error: &StoreError) -> bool {
        matches!((self, error), (Self::Postgres(_), StoreError::Server(_)))
    }
}

/// A transaction that has begun.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(crate) enum BegunWrite<'s> {
    /// In a file.
    Embedded(EmbeddedWrite),
    /// In a database.
    Postgres(PostgresWrite<'s>),
}

impl BegunWrite<'_> {
    /// The tables, with the changes of this transaction.
    pub(crate) fn tables(&self) -> Result<WriteTables<'_>, StoreError> {
        match self {
            Self::Embedded(write) => Ok(WriteTables::Embedded(write.tables()?)),
            Self::Postgres(write) => Ok(WriteTables::Postgres(write.tables())),
        }
    }

    /// Makes the changes durable, all of them or none.
    pub(crate) fn commit(self) -> Result<(), StoreError> {
        match self {
            Self::Embedded(write) => write.commit(),
            Self::Postgres(write) => write.commit(),
        }
    }

    /// Drops the changes.
    pub(crate) fn abort(self) -> Result<(), StoreError> {
        match self {
            Self::Embedded(write) => write.abort(),
            Self::Postgres(write) => write.abort(),
        }
    }
}

/// The tables in a transaction.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(crate) enum WriteTables<'t> {
    /// In a file.
    Embedded(EmbeddedTables<'t>),
    /// In a database.
    Postgres(PostgresTables<'t>),
}

impl WriteTables<'_> {
    pub(crate) fn get(&self, table: StoreTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Embedded(tables) => tables.get(table, key),
            Self::Postgres(tables) => tables.get(table, key),
        }
    }

    /// Reads the rows of these keys at once, if each of them would cost an exchange with a server.
    pub(crate) fn prefetch<'k>(
        &self,
        table: StoreTable,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<(), StoreError> {
        match self {
            Self::Embedded(_) => Ok(()),
            Self::Postgres(tables) => tables.prefetch(table, keys),
        }
    }

    /// Takes it as known that the table has no rows with these keys.
    pub(crate) fn assume_absent<'k>(&self, table: StoreTable, keys: impl Iterator<Item = &'k [u8]>) {
        if let Self::Postgres(tables) = self {
            tables.assume_absent(table, keys);
        }
    }

    /// The number of rows; of `Records`, `Log`, `Removals` and `BulkKeys` only.
    pub(crate) fn len(&self, table: StoreTable) -> Result<u64, StoreError> {
        match self {
            Self::Embedded(tables) => tables.len(table),
            Self::Postgres(tables) => tables.len(table),
        }
    }

    /// Sets a value.
    pub(crate) fn insert(&mut self, table: StoreTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::Embedded(tables) => tables.insert(table, key, value),
            Self::Postgres(tables) => tables.insert(table, key, value),
        }
    }

    /// Sets a value, and reads the one that was there.
    pub(crate) fn replace<T>(
        &mut self,
        table: StoreTable,
        key: &[u8],
        value: &[u8],
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, StoreError> {
        match self {
            Self::Embedded(tables) => tables.replace(table, key, value, read),
            Self::Postgres(tables) => Ok(tables.replace(table, key, value)?.map(|value| read(&value))),
        }
    }

    /// Removes a row, and returns its value.
    pub(crate) fn remove(&mut self, table: StoreTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Embedded(tables) => tables.remove(table, key),
            Self::Postgres(tables) => tables.remove(table, key),
        }
    }

    /// Removes a row of `Index`, if there is one, without reading it.
    pub(crate) fn discard(&mut self, table: StoreTable, key: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::Embedded(tables) => tables.remove(table, key).map(drop),
            Self::Postgres(tables) => {
                tables.discard(table, key);
                Ok(())
            }
        }
    }

    /// Removes all rows of a range, and returns their number.
    pub(crate) fn remove_range(&mut self, table: StoreTable, range: KeyRange<'_>) -> Result<u64, StoreError> {
        match self {
            Self::Embedded(tables) => tables.remove_range(table, range),
            Self::Postgres(tables) => tables.remove_range(table, range),
        }
    }

    /// Calls `visit` with the rows of a range, in ascending order, until it breaks.
    pub(crate) fn each(
        &self,
        table: StoreTable,
        range: KeyRange<'_>,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), StoreError> {
        match self {
            Self::Embedded(tables) => tables.each(table, range, visit),
            Self::Postgres(tables) => tables.each(table, range, visit),
        }
    }

    /// The last key of a range.
    pub(crate) fn last(&self, table: StoreTable, range: KeyRange<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Embedded(tables) => tables.last(table, range),
            Self::Postgres(tables) => tables.last(table, range),
        }
    }
}

/// The tables at one moment: `Records`, `Homed`, `Log`, `Removals`, `HomedDates`, `Meta` and
/// `Index`.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
#[derive(Debug)]
pub(crate) enum SnapshotTables {
    /// In a file.
    Embedded(EmbeddedSnapshot),
    /// In a database.
    Postgres(PostgresSnapshot),
}

/// An iterator of one of the engines.
enum EngineRows<E, P> {
    Embedded(E),
    Postgres(P),
}

impl<T, E: Iterator<Item = T>, P: Iterator<Item = T>> Iterator for EngineRows<E, P> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            Self::Embedded(rows) => rows.next(),
            Self::Postgres(rows) => rows.next(),
        }
    }
}

/// Rows as the caller reads them.
pub(crate) type RowIterator<T> = Box<dyn Iterator<Item = Result<T, StoreError>> + Send>;

impl SnapshotTables {
    pub(crate) fn get(&self, table: StoreTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Embedded(tables) => tables.get(table, key),
            Self::Postgres(tables) => tables.get(table, key),
        }
    }

    /// The number of rows.
    pub(crate) fn len(&self, table: StoreTable) -> Result<u64, StoreError> {
        match self {
            Self::Embedded(tables) => tables.len(table),
            Self::Postgres(tables) => Ok(tables.len(table)),
        }
    }

    /// Records in ascending order, without a copy or an allocation for each.
    pub(crate) fn records(
        &self,
        range: KeyRange<'_>,
    ) -> Result<impl Iterator<Item = Result<RecordRow, StoreError>> + use<>, StoreError> {
        Ok(match self {
            Self::Embedded(tables) => {
                EngineRows::Embedded(tables.records(range)?.map(|row| row.map(RecordRow::Embedded)))
            }
            Self::Postgres(tables) => {
                EngineRows::Postgres(tables.records(range).map(|row| row.map(RecordRow::Postgres)))
            }
        })
    }

    /// The values of these keys.
    pub(crate) fn get_all(
        &self,
        table: StoreTable,
        keys: &[Vec<u8>],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        match self {
            Self::Embedded(tables) => keys.iter().map(|key| tables.get(table, key)).collect(),
            Self::Postgres(tables) => tables.get_all(table, keys),
        }
    }

    /// Rows of another table in ascending order, each as `read` reads it.
    pub(crate) fn rows<T: 'static>(
        &self,
        table: StoreTable,
        range: KeyRange<'_>,
        read: impl FnMut(&[u8], &[u8]) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<RowIterator<T>, StoreError> {
        match self {
            Self::Embedded(tables) => tables.rows(table, range, read),
            Self::Postgres(tables) => Ok(tables.rows(table, range, read)),
        }
    }
}

/// A record and its name.
pub(crate) enum RecordRow {
    /// In a file.
    Embedded(EmbeddedRecord),
    /// From a database.
    Postgres(PostgresRecord),
}

impl RecordRow {
    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Self::Embedded(row) => row.key.value(),
            Self::Postgres(row) => row.key(),
        }
    }

    pub(crate) fn record(&self) -> &[u8] {
        match self {
            Self::Embedded(row) => row.record.value(),
            Self::Postgres(row) => row.record(),
        }
    }
}
