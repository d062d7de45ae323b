//! The tables of the database, and upgrades from older schemas.

use super::super::tables::{MetaNumber, StoreTable, names};

/// All tables.
pub(super) const TABLES: [StoreTable; 17] = [
    StoreTable::Records,
    StoreTable::Homed,
    StoreTable::Log,
    StoreTable::Removals,
    StoreTable::RemovalIds,
    StoreTable::HomedDates,
    StoreTable::Meta,
    StoreTable::Mirrors,
    StoreTable::MirrorNamed,
    StoreTable::BulkKeys,
    StoreTable::BulkNumbers,
    StoreTable::BulkResults,
    StoreTable::BulkOwned,
    StoreTable::BulkOwners,
    StoreTable::Index,
    StoreTable::Imports,
    StoreTable::Pulls,
];

/// The name of a table.
pub(super) const fn name(table: StoreTable) -> &'static str {
    match table {
        StoreTable::Records => "handle_records",
        StoreTable::Homed => "handle_homed",
        StoreTable::Log => "handle_log",
        StoreTable::Removals => "handle_gone",
        StoreTable::RemovalIds => "handle_gone_ids",
        StoreTable::HomedDates => "handle_homed_dates",
        StoreTable::Meta => "handle_meta",
        StoreTable::Mirrors => "handle_mirrors",
        StoreTable::MirrorNamed => "handle_mirror_named",
        StoreTable::BulkKeys => "handle_bulk_keys",
        StoreTable::BulkNumbers => "handle_bulk_numbers",
        StoreTable::BulkResults => "handle_bulk_results",
        StoreTable::BulkOwned => "handle_bulk_owned",
        StoreTable::BulkOwners => "handle_bulk_owners",
        StoreTable::Index => "handle_index",
        StoreTable::Imports => "handle_imports",
        StoreTable::Pulls => "handle_pulls",
    }
}

/// The number in `Meta` that counts the rows of a table, if they are counted.
pub(super) const fn count_of(table: StoreTable) -> Option<&'static str> {
    match table {
        StoreTable::Records => Some("rows_records"),
        StoreTable::Log => Some("rows_log"),
        StoreTable::Removals => Some("rows_gone"),
        StoreTable::BulkKeys => Some("rows_bulk_keys"),
        _ => None,
    }
}

/// The row of `handle_meta` that a transaction locks before it reads: transactions follow each
/// other.
pub(super) const LOCK: &str = "lock";

/// The schema of new tables. The first upgrade is from 1 to 2.
pub(super) const CURRENT: u64 = UPGRADES.len() as u64 + 1;
/// The statements of the upgrades from schema 1 to 2, from 2 to 3 and so on.
pub(super) const UPGRADES: &[&str] = &[SCHEMA_2, SCHEMA_3, SCHEMA_4];

/// The index of values, the progress of imports, and what several processes share. The row of the
/// lease is made with its table, so that holding the lease is always an update. Challenges are lost
/// if the database crashes.
const SCHEMA_2: &str = "CREATE TABLE handle_index (key BYTEA PRIMARY KEY, value BYTEA NOT NULL);\n\
     CREATE TABLE handle_imports (key BYTEA PRIMARY KEY, value BYTEA NOT NULL);\n\
     CREATE TABLE handle_leases (name TEXT PRIMARY KEY, holder BIGINT NOT NULL, \
     host TEXT NOT NULL, epoch BIGINT NOT NULL, until TIMESTAMPTZ NOT NULL);\n\
     INSERT INTO handle_leases VALUES ('publish', 0, '', 0, '1970-01-01 00:00:00+00');\n\
     CREATE UNLOGGED TABLE handle_challenges (id INT4 PRIMARY KEY, value BYTEA NOT NULL, \
     until TIMESTAMPTZ NOT NULL);\n\
     CREATE INDEX handle_challenges_until ON handle_challenges (until);\n";

/// How far sources of records have been copied.
const SCHEMA_3: &str = "CREATE TABLE handle_pulls (key BYTEA PRIMARY KEY, value BYTEA NOT NULL);\n";

/// Sessions that several processes share, which are lost if the database crashes, with capacity for
/// changed rows in the page of each; and the lease of the process that follows the primaries of a
/// mirror.
const SCHEMA_4: &str = "CREATE UNLOGGED TABLE handle_sessions (id INT4 PRIMARY KEY, version BIGINT NOT NULL, \
     facts BYTEA NOT NULL, counters BYTEA NOT NULL, until TIMESTAMPTZ NOT NULL) WITH (fillfactor = 50);\n\
     INSERT INTO handle_leases VALUES ('mirror', 0, '', 0, '1970-01-01 00:00:00+00');\n";

/// Whether an upgrade makes the table.
const fn is_of_upgrade(table: StoreTable) -> bool {
    matches!(table, StoreTable::Index | StoreTable::Imports | StoreTable::Pulls)
}

/// The statements that make the tables of a new store, which has `mark` at once.
pub(super) fn creation(folds: bool, identity: u64, mark: Option<MetaNumber>) -> String {
    let mut sql = String::new();
    for table in TABLES.into_iter().filter(|&table| !is_of_upgrade(table)) {
        let name = name(table);
        sql += &format!("CREATE TABLE {name} (key BYTEA PRIMARY KEY, value BYTEA NOT NULL);\n");
    }
    sql += "CREATE TABLE handle_writers (key BYTEA PRIMARY KEY, value BYTEA NOT NULL);\n";
    sql += &UPGRADES.concat();
    let numbers =
        [(names::SCHEMA, CURRENT), (names::FOLDS, u64::from(folds)), (names::IDENTITY, identity), (LOCK, 0)];
    for (name, number) in numbers.into_iter().chain(mark) {
        let name = data_encoding::HEXLOWER.encode(name.as_bytes());
        sql += &format!("INSERT INTO handle_meta VALUES ('\\x{name}', '\\x{number:016x}');\n");
    }
    sql
}
