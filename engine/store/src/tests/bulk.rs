//! Imports of many records: interrupted ones go on, and new rows of a database are copied.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

over_engines! {
    an_interrupted_import_goes_on_behind_its_last_record,
    an_import_is_resumed_with_the_same_records_only,
    records_that_are_there_are_replaced_or_kept_among_many_new_ones,
}

/// Bytes of a commit with about 40 of the records of these tests.
const COMMIT_BYTES: usize = 2000;

/// An import of 400 records, in an order of their own, with `data`.
fn import<'s>(store: &'s Store, location: &TestLocation, data: &str) -> Bulk<'s> {
    let mut bulk = store.bulk(location.path(), 1 << 12).commit_bytes(COMMIT_BYTES).dated(77);
    bulk.home(b"10.1");
    let mut storage = Vec::new();
    for number in (0..400).map(|number| number * 7 % 400) {
        let values = Values::build([Value::new(1, b"URL", data.as_bytes())], &mut storage);
        bulk.add(format!("10.1/{number:03}").as_bytes(), values).unwrap();
    }
    bulk
}

/// Runs an import up to the end of its commit number `commits`.
fn interrupt(bulk: Bulk<'_>, commits: usize) {
    let mut count = 0;
    let interrupted = catch_unwind(AssertUnwindSafe(|| {
        bulk.finish(|_| {
            count += 1;
            assert!(count < commits, "interrupted");
        })
    }));
    let panic = interrupted.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"interrupted"));
}

fn urls(store: &Store) -> Vec<Vec<u8>> {
    let snapshot = store.snapshot().unwrap();
    let records = snapshot.records().unwrap().map(Result::unwrap);
    records.map(|stored| stored.record().unwrap().value(1).unwrap().data.to_vec()).collect()
}

fn an_interrupted_import_goes_on_behind_its_last_record(engine: TestEngine) {
    let Some((location, store)) = new_store(engine) else { return };
    assert_eq!(store.unfinished_import().unwrap(), None);
    let base = || store.snapshot().unwrap().log_base().unwrap();
    interrupt(import(&store, &location, "new"), 3);
    let unfinished = store.unfinished_import().unwrap().unwrap();
    let written = urls(&store).len() as u64;
    assert!(written > 0 && written < 400, "{written}");
    assert_eq!((unfinished.records, unfinished.dated_unix_s), (written, 77));
    let first_base = base();
    interrupt(import(&store, &location, "new").resume(), 2);
    let further = urls(&store).len() as u64;
    assert!(further > written && further < 400, "{further}");
    let counts = import(&store, &location, "new").resume().finish(|_| ()).unwrap();
    assert_eq!(counts, BulkCounts { written: 400 - further, kept: 0, resumed: further });
    assert_eq!(urls(&store), vec![b"new"; 400]);
    assert!(base() > first_base, "readers of the log read everything again");
    assert_eq!(store.unfinished_import().unwrap(), None);
    assert_eq!(findings(&store), []);
    let again = import(&store, &location, "new").resume().finish(|_| ()).unwrap();
    assert_eq!((again.written, again.resumed), (400, 0), "a finished import is not resumed");
}

fn an_import_is_resumed_with_the_same_records_only(engine: TestEngine) {
    let Some((location, store)) = new_store(engine) else { return };
    interrupt(import(&store, &location, "old"), 2);
    let error = import(&store, &location, "other").resume().finish(|_| ()).unwrap_err();
    assert!(matches!(error, StoreError::OtherImport), "{error}");
    assert!(urls(&store).len() < 400);
    let counts = import(&store, &location, "other").finish(|_| ()).unwrap();
    assert_eq!((counts.written, counts.resumed), (400, 0), "it begins anew");
    assert_eq!(urls(&store), vec![b"other"; 400]);
    assert_eq!(findings(&store), []);
}

fn records_that_are_there_are_replaced_or_kept_among_many_new_ones(engine: TestEngine) {
    for keeps in [false, true] {
        let Some((location, store)) = new_store(engine) else { return };
        while store.index_step(&["URL".to_owned()], 100).unwrap() {}
        for number in [0, 77, 399] {
            put(&store, &format!("10.1/{number:03}"), "before");
        }
        store.change(|transaction| transaction.delete(b"10.1/077")).unwrap();
        let bulk = import(&store, &location, "after").commit_bytes(1 << 20);
        let bulk = if keeps { bulk.keep_existing() } else { bulk };
        let counts = bulk.finish(|_| ()).unwrap();
        let kept = if keeps { 2 } else { 0 };
        assert_eq!((counts.written, counts.kept), (400 - kept, kept));
        let before = urls(&store).iter().filter(|data| **data == b"before").count();
        assert_eq!(before as u64, kept);
        assert_eq!(findings(&store), [], "counts and index are right");
        assert_eq!(store.stats().unwrap().records, 400);
    }
}

#[test]
fn imported_records_fill_the_pages_of_the_file() {
    use redb::{ReadableDatabase as _, ReadableTableMetadata as _};
    let Some((location, store)) = new_store(TestEngine::Embedded) else { return };
    let mut bulk = store.bulk(location.path(), 1 << 20);
    bulk.home(b"10.1");
    let mut storage = Vec::new();
    for number in 0..20_000_usize {
        let data = vec![b'x'; 100 + number * 7919 % 200];
        let values = Values::build([Value::new(1, b"URL", &data)], &mut storage);
        bulk.add(format!("10.1/{number:06}").as_bytes(), values).unwrap();
    }
    bulk.finish(|_| ()).unwrap();
    drop(store);
    let database = redb::Database::open(location.path().join("store.redb")).unwrap();
    let records: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("records");
    let stats = database.begin_read().unwrap().open_table(records).unwrap().stats().unwrap();
    let used = stats.stored_bytes() * 100 / (stats.leaf_pages() * 4096);
    assert!(used >= 75, "{used} %: {stats:?}");
}
