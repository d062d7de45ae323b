//! Databases whose records are copied into the store: the tables of a reference server, and queries
//! with and without changes.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use super::sources_tables::{TABLES, TestDatabase, data_of, resolve};
use handle_admin::pull::status::PullStatus;
use handle_proto::ResponseCode as Code;
use handle_source::{PullConfig, SourceConfig, SourceKind};
use handle_tests::forwarding::BothProcesses;
use handle_tests::process::until;

/// Tables with items and a log of their changes, which a trigger writes.
const ITEMS: &str = "
    CREATE TABLE items (id TEXT PRIMARY KEY, target TEXT);
    CREATE TABLE changes (number BIGSERIAL PRIMARY KEY, id TEXT);
    CREATE FUNCTION note_change() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO changes (id) VALUES (coalesce(NEW.id, OLD.id)); RETURN NULL; END $$;
    CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION note_change();
    INSERT INTO items SELECT 'item' || at, 'https://first.example/' FROM generate_series(100, 299) AS at;";
const QUERY: &str =
    "SELECT 1 AS idx, 'URL' AS type, target AS data FROM items WHERE upper('10.3/' || id) = $1";
const CHANGES: &str =
    "SELECT '10.3/' || id AS handle, number AS cursor FROM changes WHERE number > $1 ORDER BY number";
const CURSOR: &str = "SELECT coalesce(max(number), 0) FROM changes";

fn copied(database: &TestDatabase, kind: SourceKind, pull: PullConfig) -> SourceConfig {
    let pull = Some(PullConfig { poll_ms: 10, ..pull });
    SourceConfig { prefixes: vec!["10.3".to_owned()], pull, ..database.source(kind) }
}

fn status(processes: &BothProcesses) -> PullStatus {
    processes.admin.server().shared().pulls.status().remove(0)
}

/// Compares, and waits for the end.
fn compare(processes: &BothProcesses) {
    let compares = status(processes).counts.compares;
    processes.admin.server().shared().pulls.state("database").unwrap().request();
    until("all records are compared", || status(processes).counts.compares > compares);
}

fn until_resolved(processes: &BothProcesses, handle: &str, data: Result<&[&str], Code>) {
    until(&format!("{handle} becomes {data:?}"), || match (resolve(processes, handle), data) {
        (Ok(values), Ok(data)) => data_of(&values) == data,
        (found, expected) => found.err() == expected.err(),
    });
}

#[test]
fn the_tables_of_a_reference_server_are_copied() {
    let Some(database) = TestDatabase::new(TABLES) else { return };
    database.psql(
        "INSERT INTO handles SELECT convert_to('10.3/ITEM' || at, 'UTF8'), idx, 'URL',
            convert_to('https://first.example/' || idx, 'UTF8'), 0, 60, 7, '', true, true, true, false
            FROM generate_series(100, 299) AS at, generate_series(1, 2) AS idx;
         INSERT INTO handles VALUES ('10.9/OTHER', 1, 'URL', 'x', 0, 60, 0, '', true, true, true, false)",
    );
    let processes = database.start(copied(&database, SourceKind::Tables, PullConfig::default()));
    let first = ["https://first.example/1", "https://first.example/2"];
    until_resolved(&processes, "10.3/item250", Ok(&first));
    until("all are here", || status(&processes).records == 200);
    let counts = status(&processes).counts;
    assert!(counts.rejected.is_empty(), "other prefixes are passed over: {counts:?}");
    database.psql(
        "DELETE FROM handles WHERE handle = '10.3/ITEM100';
         UPDATE handles SET data = 'https://second.example/' WHERE handle = '10.3/ITEM101' AND idx = 1;
         UPDATE handles SET refs = 'nonsense' WHERE handle = '10.3/ITEM102' AND idx = 2",
    );
    compare(&processes);
    until_resolved(&processes, "10.3/item100", Err(Code::HANDLE_NOT_FOUND));
    until_resolved(&processes, "10.3/item101", Ok(&["https://second.example/", first[1]]));
    let counts = status(&processes).counts;
    assert_eq!((counts.created, counts.replaced, counts.deleted), (200, 1, 1), "{counts:?}");
    assert_eq!(counts.rejected.values().sum::<u64>(), 1);
    until_resolved(&processes, "10.3/item102", Ok(&first));
    assert_eq!(status(&processes).cursor, None);
}

#[test]
fn changes_of_a_query_are_followed_and_others_are_compared() {
    let with_values = "SELECT '10.3/' || id AS handle, 1 AS idx, 'URL' AS type, target AS data FROM items";
    let handles = "SELECT '10.3/' || id AS handle FROM items";
    for (list_query, follows) in [(with_values, true), (handles, true), (with_values, false)] {
        let Some(database) = TestDatabase::new(ITEMS) else { return };
        let queries = if follows { [CHANGES, CURSOR] } else { [""; 2] };
        let [changes_query, cursor_query] = queries.map(str::to_owned);
        let pull = PullConfig {
            list_query: list_query.to_owned(),
            changes_query,
            cursor_query,
            ..PullConfig::default()
        };
        let source = copied(&database, SourceKind::Sql, pull);
        let processes = database.start(SourceConfig { query: QUERY.to_owned(), ..source });
        until_resolved(&processes, "10.3/item299", Ok(&["https://first.example/"]));
        until("all are here", || status(&processes).records == 200);
        // Several pages of changes.
        database.psql(
            "UPDATE items SET target = 'https://second.example/' FROM generate_series(1, 3);
             INSERT INTO changes (id) SELECT 'item100' FROM generate_series(1, 2500);
             DELETE FROM items WHERE id = 'item111'; INSERT INTO items VALUES ('new', 'https://new.example/')",
        );
        if !follows {
            compare(&processes);
        }
        until_resolved(&processes, "10.3/new", Ok(&["https://new.example/"]));
        until_resolved(&processes, "10.3/item111", Err(Code::HANDLE_NOT_FOUND));
        until_resolved(&processes, "10.3/item299", Ok(&["https://second.example/"]));
        let (status, last) = (status(&processes), database.psql("SELECT max(number) FROM changes"));
        assert_eq!(
            (status.counts.compares, status.cursor),
            if follows { (1, Some(last)) } else { (2, None) }
        );
    }
}

#[test]
fn a_query_without_the_columns_of_a_listing_is_an_error_that_names_them() {
    let Some(database) = TestDatabase::new(ITEMS) else { return };
    for (list_query, expected) in [
        ("SELECT id FROM items", "no column `handle`"),
        ("SELECT id AS handle, 1 AS idx FROM items", "no column `type`"),
        ("SELECT nonsense", "nonsense"),
    ] {
        let pull = PullConfig { list_query: list_query.to_owned(), ..PullConfig::default() };
        let source = copied(&database, SourceKind::Sql, pull);
        let processes = database.start(SourceConfig { query: QUERY.to_owned(), ..source });
        until("it has failed", || status(&processes).failures > 0);
        let error = status(&processes).last_error.unwrap();
        assert!(error.contains(expected), "{error}");
    }
}
