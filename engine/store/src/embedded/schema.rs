//! The tables of the file, and upgrades from older schemas.

use super::super::StoreError;
use super::super::tables::names::{FOLDS, IDENTITY, SCHEMA};
use redb::{Database, ReadableDatabase as _, TableDefinition, TableError, WriteTransaction};

/// Records by the name they are stored under.
pub(crate) const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
/// Homed prefixes, folded, without the `0.NA/` of their records.
pub(crate) const HOMED: TableDefinition<'_, &[u8], ()> = TableDefinition::new("homed");
/// Transactions by number.
pub(crate) const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// Requests with changes of many records that may be repeated: the scope of the key, and the state.
pub(crate) const BULK_KEYS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("bulk_keys");
/// Scopes by the number of the request, so from the oldest on.
pub(crate) const BULK_NUMBERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("bulk_numbers");
/// Results by the number of the request and that of the first change.
pub(crate) const BULK_RESULTS: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("bulk_results");
/// Numbers of requests by identity, so for each identity from the oldest on.
pub(crate) const BULK_OWNED: TableDefinition<'_, (&[u8], u64), ()> = TableDefinition::new("bulk_owned");
/// Keys and results of each identity.
pub(crate) const BULK_OWNERS: TableDefinition<'_, &[u8], (u64, u64)> = TableDefinition::new("bulk_owners");
/// Last changes of deleted handles and released prefixes: a byte for the kind and the stored name;
/// number of the transaction, time, and priority of the site that made the change.
pub(crate) const REMOVALS: TableDefinition<'_, &[u8], (u64, u64, u32)> = TableDefinition::new("gone");
/// The keys of `REMOVALS` by the number of the transaction: the oldest is first.
pub(crate) const REMOVAL_IDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("gone_ids");
/// Last changes of homed prefixes, as in `REMOVALS`.
pub(crate) const HOMED_DATES: TableDefinition<'_, &[u8], (u64, u64, u32)> =
    TableDefinition::new("homed_dates");
/// The positions of a mirror in the streams of its primaries, by their names; and whether a dump is
/// in progress.
pub(crate) const MIRRORS: TableDefinition<'_, &str, (bool, &[u8])> = TableDefinition::new("mirrors");
/// Names that a dump in progress has named without a change: see `mirror.rs`.
pub(crate) const MIRROR_NAMED: TableDefinition<'_, &[u8], ()> = TableDefinition::new("mirror_named");
/// The index of values: see `index/mod.rs`.
pub(crate) const INDEX: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("index");
/// The progress of an unfinished import: see `bulk/checkpoint.rs`.
pub(crate) const IMPORTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("imports");
/// How far sources of records have been copied, by their names: see `pulled.rs`.
pub(crate) const PULLS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pulls");
/// Numbers by name: see `tables.rs`.
pub(crate) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// An upgrade from one schema to the next.
pub(crate) type SchemaUpgrade = fn(&WriteTransaction) -> Result<(), StoreError>;

/// The upgrades from schema 1 to 2, from 2 to 3 and so on.
pub(crate) const UPGRADES: &[SchemaUpgrade] = &[|transaction| {
    // Snapshots open it.
    transaction.open_table(INDEX)?;
    Ok(())
}];

/// Creates the tables of a new file, which has `mark` at once.
pub(crate) fn begin(
    database: &Database,
    folds: bool,
    mark: Option<(&'static str, u64)>,
) -> Result<(), StoreError> {
    let transaction = database.begin_write()?;
    transaction.open_table(RECORDS)?;
    transaction.open_table(HOMED)?;
    transaction.open_table(LOG)?;
    transaction.open_table(REMOVALS)?;
    transaction.open_table(REMOVAL_IDS)?;
    transaction.open_table(HOMED_DATES)?;
    transaction.open_table(INDEX)?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert(SCHEMA, current(UPGRADES))?;
        meta.insert(FOLDS, u64::from(folds))?;
        meta.insert(IDENTITY, rand::random::<u64>())?;
        if let Some((name, number)) = mark {
            meta.insert(name, number)?;
        }
    }
    Ok(transaction.commit()?)
}

/// Upgrades the file to the current schema, in one transaction.
pub(crate) fn upgrade(database: &Database, upgrades: &[SchemaUpgrade]) -> Result<(), StoreError> {
    let (found, known) = (number(database, SCHEMA)?, current(upgrades));
    let Some(missing) = found.checked_sub(1).and_then(|at| upgrades.get(usize::try_from(at).ok()?..)) else {
        return Err(if found == 0 { NO_STORE } else { StoreError::Newer { found, known } });
    };
    if missing.is_empty() {
        return Ok(());
    }
    let transaction = database.begin_write()?;
    for upgrade in missing {
        upgrade(&transaction)?;
    }
    transaction.open_table(META)?.insert(SCHEMA, known)?;
    Ok(transaction.commit()?)
}

/// Whether the service of the file folds local names.
#[cfg(test)]
fn folds(database: &Database) -> Result<bool, StoreError> {
    Ok(number(database, FOLDS)? != 0)
}

const NO_STORE: StoreError = StoreError::Damaged("the file is not a store of handles");

const fn current(upgrades: &[SchemaUpgrade]) -> u64 {
    upgrades.len() as u64 + 1
}

fn number(database: &Database, name: &str) -> Result<u64, StoreError> {
    let meta = database.begin_read()?.open_table(META).map_err(|error| match error {
        TableError::TableDoesNotExist(_) => NO_STORE,
        error => error.into(),
    })?;
    meta.get(name)?.map(|number| number.value()).ok_or(NO_STORE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use redb::ReadableTable as _;

    fn database(directory: &std::path::Path) -> Database {
        Database::create(directory.join("store")).unwrap()
    }

    /// Makes the tables of schema 1.
    fn begin_first(database: &Database, folds: bool) {
        begin(database, folds, None).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.delete_table(INDEX).unwrap();
        transaction.open_table(META).unwrap().insert(SCHEMA, 1).unwrap();
        transaction.commit().unwrap();
    }

    #[test]
    fn an_older_file_is_upgraded_step_by_step_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let database = database(directory.path());
        begin_first(&database, true);
        let step: SchemaUpgrade = |transaction| {
            let mut meta = transaction.open_table(META)?;
            let steps = meta.get("steps")?.map_or(0, |steps| steps.value());
            meta.insert("steps", steps + 1)?;
            Ok(())
        };
        for (upgrades, steps) in [(&[step][..], 1), (&[step], 1), (&[step, step, step], 3)] {
            upgrade(&database, upgrades).unwrap();
            assert_eq!(number(&database, SCHEMA).unwrap(), current(upgrades));
            assert_eq!(number(&database, "steps").unwrap(), steps);
        }
        let error = upgrade(&database, UPGRADES).unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 4, known: 2 }), "{error}");
        assert!(folds(&database).unwrap());
    }

    #[test]
    fn a_file_of_the_first_schema_gets_the_tables_that_it_lacks() {
        let directory = tempfile::tempdir().unwrap();
        let database = database(directory.path());
        begin_first(&database, true);
        upgrade(&database, UPGRADES).unwrap();
        database.begin_read().unwrap().open_table(INDEX).unwrap();
        assert_eq!(number(&database, SCHEMA).unwrap(), current(UPGRADES));
    }

    #[test]
    fn an_upgrade_that_fails_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let database = database(directory.path());
        begin_first(&database, false);
        let fails: SchemaUpgrade = |transaction| {
            transaction.open_table(META)?.insert("half", 1)?;
            Err(StoreError::Failed)
        };
        assert!(matches!(upgrade(&database, &[fails]), Err(StoreError::Failed)));
        assert_eq!(number(&database, "half").ok(), None);
        assert_eq!(number(&database, SCHEMA).unwrap(), 1);
        assert!(!folds(&database).unwrap());
    }

    #[test]
    fn files_of_another_kind_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = upgrade(&database(directory.path()), UPGRADES).unwrap_err();
        assert!(matches!(error, StoreError::Damaged(_)), "{error}");
    }
}
