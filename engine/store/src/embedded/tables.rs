//! The tables of the file, in a transaction and in a snapshot.

use super::super::StoreError;
use super::super::tables::{KeyRange, RowVisitor, StoreTable};
use super::guard::{guarded, guarded_items};
use super::rows::RowPart;
use super::schema;
use redb::{
    AccessGuard, Key, ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata as _, Table,
    TableDefinition, WriteTransaction,
};
use std::ops::Bound;
use std::path::{Path, PathBuf};

type Bytes = &'static [u8];

/// The tables in a transaction. Those that nearly every change needs are open.
pub(crate) struct EmbeddedTables<'t> {
    begun: &'t WriteTransaction,
    records: Table<'t, Bytes, Bytes>,
    homed: Table<'t, Bytes, ()>,
    log: Table<'t, u64, Bytes>,
    removals: Table<'t, Bytes, (u64, u64, u32)>,
    meta: Table<'t, &'static str, u64>,
    /// The path of the file, for errors.
    file: &'t Path,
}

/// Runs `$work` with the table `$table` of `$tables` as `$name`.
macro_rules! with_table {
    ($tables:expr, $table:expr, |$name:ident| $work:expr) => {
        match $table {
            StoreTable::Records => with_table!(@open &mut $tables.records, $name, $work),
            StoreTable::Homed => with_table!(@open &mut $tables.homed, $name, $work),
            StoreTable::Log => with_table!(@open &mut $tables.log, $name, $work),
            StoreTable::Removals => with_table!(@open &mut $tables.removals, $name, $work),
            StoreTable::Meta => with_table!(@open &mut $tables.meta, $name, $work),
            table => with_table!(@other $tables, table, |$name| $work),
        }
    };
    ($tables:expr, read $table:expr, |$name:ident| $work:expr) => {
        match $table {
            StoreTable::Records => with_table!(@open &$tables.records, $name, $work),
            StoreTable::Homed => with_table!(@open &$tables.homed, $name, $work),
            StoreTable::Log => with_table!(@open &$tables.log, $name, $work),
            StoreTable::Removals => with_table!(@open &$tables.removals, $name, $work),
            StoreTable::Meta => with_table!(@open &$tables.meta, $name, $work),
            table => with_table!(@other $tables, table, |$name| $work),
        }
    };
    (@open $open:expr, $name:ident, $work:expr) => {{
        let $name = $open;
        $work
    }};
    (@other $tables:expr, $table:expr, |$name:ident| $work:expr) => {
        match $table {
            StoreTable::RemovalIds => with_table!(@begun $tables, schema::REMOVAL_IDS, $name, $work),
            StoreTable::HomedDates => with_table!(@begun $tables, schema::HOMED_DATES, $name, $work),
            StoreTable::Mirrors => with_table!(@begun $tables, schema::MIRRORS, $name, $work),
            StoreTable::MirrorNamed => with_table!(@begun $tables, schema::MIRROR_NAMED, $name, $work),
            StoreTable::BulkKeys => with_table!(@begun $tables, schema::BULK_KEYS, $name, $work),
            StoreTable::BulkNumbers => with_table!(@begun $tables, schema::BULK_NUMBERS, $name, $work),
            StoreTable::BulkResults => with_table!(@begun $tables, schema::BULK_RESULTS, $name, $work),
            StoreTable::BulkOwned => with_table!(@begun $tables, schema::BULK_OWNED, $name, $work),
            StoreTable::BulkOwners => with_table!(@begun $tables, schema::BULK_OWNERS, $name, $work),
            StoreTable::Imports => with_table!(@begun $tables, schema::IMPORTS, $name, $work),
            StoreTable::Pulls => with_table!(@begun $tables, schema::PULLS, $name, $work),
            _ => with_table!(@begun $tables, schema::INDEX, $name, $work),
        }
    };
    (@begun $tables:expr, $definition:expr, $name:ident, $work:expr) => {{
        #[allow(unused_mut, reason = "tables are changed by some")]
        let mut table = $tables.begun.open_table($definition)?;
        let $name = &mut table;
        $work
    }};
}

impl<'t> EmbeddedTables<'t> {
    pub(super) fn open(begun: &'t WriteTransaction, file: &'t Path) -> Result<Self, StoreError> {
        guarded(file, || {
            Ok(Self {
                begun,
                records: begun.open_table(schema::RECORDS)?,
                homed: begun.open_table(schema::HOMED)?,
                log: begun.open_table(schema::LOG)?,
                removals: begun.open_table(schema::REMOVALS)?,
                meta: begun.open_table(schema::META)?,
                file,
            })
        })
    }

    pub(crate) fn get(&self, table: StoreTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        guarded(self.file, || with_table!(self, read table, |table| get(table, key)))
    }

    pub(crate) fn len(&self, table: StoreTable) -> Result<u64, StoreError> {
        guarded(self.file, || with_table!(self, read table, |table| Ok(table.len()?)))
    }

    pub(crate) fn insert(&mut self, table: StoreTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        guarded(self.file, || with_table!(self, table, |table| insert(table, key, value).map(drop)))
    }

    pub(crate) fn replace<T>(
        &mut self,
        table: StoreTable,
        key: &[u8],
        value: &[u8],
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, StoreError> {
        guarded(self.file, || with_table!(self, table, |table| replace(table, key, value, read)))
    }

    pub(crate) fn remove(&mut self, table: StoreTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        guarded(self.file, || with_table!(self, table, |table| remove(table, key)))
    }

    pub(crate) fn remove_range(&mut self, table: StoreTable, range: KeyRange<'_>) -> Result<u64, StoreError> {
        guarded(self.file, || with_table!(self, table, |table| remove_range(table, range)))
    }

    pub(crate) fn each(
        &self,
        table: StoreTable,
        range: KeyRange<'_>,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), StoreError> {
        guarded(self.file, || with_table!(self, read table, |table| each(table, range, visit)))
    }

    pub(crate) fn last(&self, table: StoreTable, range: KeyRange<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        guarded(self.file, || with_table!(self, read table, |table| last(table, range)))
    }
}

fn get<K: Key + RowPart, V: RowPart>(
    table: &impl ReadableTable<K, V>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(table.get(K::read(key))?.map(|value| V::with_bytes(value.value(), <[u8]>::to_vec)))
}

fn insert<K: Key + RowPart, V: RowPart>(
    table: &mut Table<'_, K, V>,
    key: &[u8],
    value: &[u8],
) -> Result<(), StoreError> {
    table.insert(K::read(key), V::read(value))?;
    Ok(())
}

fn replace<K: Key + RowPart, V: RowPart, T>(
    table: &mut Table<'_, K, V>,
    key: &[u8],
    value: &[u8],
    read: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>, StoreError> {
    let replaced = table.insert(K::read(key), V::read(value))?;
    Ok(replaced.map(|value| V::with_bytes(value.value(), read)))
}

fn remove<K: Key + RowPart, V: RowPart>(
    table: &mut Table<'_, K, V>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(table.remove(K::read(key))?.map(|value| V::with_bytes(value.value(), <[u8]>::to_vec)))
}

/// The range with keys of the file.
fn range_of<'a, K: Key + RowPart>(range: KeyRange<'a>) -> (Bound<K::SelfType<'a>>, Bound<K::SelfType<'a>>) {
    (range.0.map(K::read), range.1.map(K::read))
}

fn remove_range<K: Key + RowPart, V: RowPart>(
    table: &mut Table<'_, K, V>,
    range: KeyRange<'_>,
) -> Result<u64, StoreError> {
    let mut count = 0;
    table.retain_in::<K::SelfType<'_>, _>(range_of::<K>(range), |_, _| {
        count += 1;
        false
    })?;
    Ok(count)
}

fn each<K: Key + RowPart, V: RowPart>(
    table: &impl ReadableTable<K, V>,
    range: KeyRange<'_>,
    visit: &mut RowVisitor<'_>,
) -> Result<(), StoreError> {
    for row in table.range::<K::SelfType<'_>>(range_of::<K>(range))? {
        let (key, value) = row?;
        let visited =
            K::with_bytes(key.value(), |key| V::with_bytes(value.value(), |value| visit(key, value)));
        if visited?.is_break() {
            break;
        }
    }
    Ok(())
}

fn last<K: Key + RowPart, V: RowPart>(
    table: &impl ReadableTable<K, V>,
    range: KeyRange<'_>,
) -> Result<Option<Vec<u8>>, StoreError> {
    let row = table.range::<K::SelfType<'_>>(range_of::<K>(range))?.next_back().transpose()?;
    Ok(row.map(|(key, _)| K::with_bytes(key.value(), <[u8]>::to_vec)))
}

/// The tables at one moment.
#[derive(Debug)]
pub(crate) struct EmbeddedSnapshot {
    records: ReadOnlyTable<Bytes, Bytes>,
    homed: ReadOnlyTable<Bytes, ()>,
    log: ReadOnlyTable<u64, Bytes>,
    removals: ReadOnlyTable<Bytes, (u64, u64, u32)>,
    homed_dates: ReadOnlyTable<Bytes, (u64, u64, u32)>,
    meta: ReadOnlyTable<&'static str, u64>,
    index: ReadOnlyTable<Bytes, Bytes>,
    /// The path of the file, for errors.
    file: PathBuf,
}

/// A record and its name, borrowed from the file.
pub(crate) struct EmbeddedRecord {
    pub(crate) key: AccessGuard<'static, Bytes>,
    pub(crate) record: AccessGuard<'static, Bytes>,
}

/// Runs `$work` with the table `$table` of the snapshot `$tables` as `$name`. Snapshots have no
/// other tables.
macro_rules! with_snapshot_table {
    ($tables:expr, $table:expr, |$name:ident| $work:expr) => {
        match $table {
            StoreTable::Records => with_table!(@open &$tables.records, $name, $work),
            StoreTable::Homed => with_table!(@open &$tables.homed, $name, $work),
            StoreTable::Log => with_table!(@open &$tables.log, $name, $work),
            StoreTable::Removals => with_table!(@open &$tables.removals, $name, $work),
            StoreTable::HomedDates => with_table!(@open &$tables.homed_dates, $name, $work),
            StoreTable::Meta => with_table!(@open &$tables.meta, $name, $work),
            StoreTable::Index => with_table!(@open &$tables.index, $name, $work),
            table => unreachable!("snapshots do not have {table:?}"),
        }
    };
}

impl EmbeddedSnapshot {
    pub(super) fn new(transaction: &ReadTransaction, file: &Path) -> Result<Self, StoreError> {
        fn open<K: Key, V: redb::Value>(
            transaction: &ReadTransaction,
            table: TableDefinition<'static, K, V>,
        ) -> Result<ReadOnlyTable<K, V>, StoreError> {
            Ok(transaction.open_table(table)?)
        }
        Ok(Self {
            records: open(transaction, schema::RECORDS)?,
            homed: open(transaction, schema::HOMED)?,
            log: open(transaction, schema::LOG)?,
            removals: open(transaction, schema::REMOVALS)?,
            homed_dates: open(transaction, schema::HOMED_DATES)?,
            meta: open(transaction, schema::META)?,
            index: open(transaction, schema::INDEX)?,
            file: file.to_owned(),
        })
    }

    pub(crate) fn get(&self, table: StoreTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        guarded(&self.file, || with_snapshot_table!(self, table, |table| get(table, key)))
    }

    pub(crate) fn len(&self, table: StoreTable) -> Result<u64, StoreError> {
        guarded(&self.file, || with_snapshot_table!(self, table, |table| Ok(table.len()?)))
    }

    pub(crate) fn records(
        &self,
        range: KeyRange<'_>,
    ) -> Result<impl Iterator<Item = Result<EmbeddedRecord, StoreError>> + use<>, StoreError> {
        let range = guarded(&self.file, || Ok(self.records.range::<&[u8]>(range)?))?;
        Ok(guarded_items(&self.file, range, |entry| {
            let (key, record) = entry?;
            // Reading them here makes a damaged entry fail inside the guard, not at the caller.
            let _ = (key.value(), record.value());
            Ok(EmbeddedRecord { key, record })
        }))
    }

    pub(crate) fn rows<T: 'static>(
        &self,
        table: StoreTable,
        range: KeyRange<'_>,
        read: impl FnMut(&[u8], &[u8]) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Box<dyn Iterator<Item = Result<T, StoreError>> + Send>, StoreError> {
        with_snapshot_table!(self, table, |table| rows(&self.file, table, range, read))
    }
}

fn rows<K: Key + RowPart, V: RowPart, T: 'static>(
    file: &Path,
    table: &ReadOnlyTable<K, V>,
    range: KeyRange<'_>,
    mut read: impl FnMut(&[u8], &[u8]) -> Result<T, StoreError> + Send + 'static,
) -> Result<Box<dyn Iterator<Item = Result<T, StoreError>> + Send>, StoreError> {
    let range = guarded(file, || Ok(table.range::<K::SelfType<'_>>(range_of::<K>(range))?))?;
    Ok(Box::new(guarded_items(file, range, move |entry| {
        let (key, value) = entry?;
        K::with_bytes(key.value(), |key| V::with_bytes(value.value(), |value| read(key, value)))
    })))
}
