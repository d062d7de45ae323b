//! A transaction that changes the tables.
//!
//! Transactions of all processes follow each other: the first statement locks one row, and the next
//! ones see what was committed before. So numbers are given in the order of the commits, and
//! nothing has to be tried again. Changes are kept here until the commit, or until a range is read,
//! and then go to the server together; what was read stays valid for the transaction.

use super::super::StoreError;
use super::super::tables::{KeyRange, RowVisitor, StoreTable, number_in};
use super::PostgresStore;
use super::connection::Connection;
use super::copy::{COPY_ROWS_MIN, copy_rows};
use super::query::{KeySpan, PageReader, get, get_all};
use super::schema;
use super::snapshot::read_meta;
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use tokio_postgres::{Error, Statement};

/// Notes how far this process has got, for [`PostgresStore::was_committed`].
const WRITER_ROW: &str = "INSERT INTO handle_writers (key, value) VALUES ($1, $2) \
                          ON CONFLICT (key) DO UPDATE SET value = excluded.value";

/// The rows of a table that are known.
type KnownRows = HashMap<Vec<u8>, KnownRow>;

/// A row as this transaction sees it; the value is `None` if there is no such row.
#[derive(Debug)]
struct KnownRow {
    value: Option<Vec<u8>>,
    /// Whether the server does not know it.
    is_changed: bool,
    /// Whether the server has no row with this key.
    is_new: bool,
}

/// A transaction that has begun.
pub(crate) struct PostgresWrite<'s> {
    store: &'s PostgresStore,
    connection: Option<Connection>,
    /// By the number of the table.
    known: RefCell<[KnownRows; schema::TABLES.len()]>,
    /// The number of this transaction among those of the process.
    sequence: u64,
}

/// Keys or values.
type KeyList = Vec<Vec<u8>>;

/// Statements that set and remove rows, with the keys and values.
struct RowChanges {
    set: Option<(Statement, KeyList, KeyList)>,
    remove: Option<(Statement, KeyList)>,
}

impl<'s> PostgresWrite<'s> {
    /// Waits for the transactions before, and begins one on `connection`.
    pub(super) fn begin(
        store: &'s PostgresStore,
        connection: Connection,
        sequence: u64,
    ) -> Result<Self, StoreError> {
        let begin =
            "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT 1 FROM handle_meta WHERE key = 'lock' FOR UPDATE";
        let meta = read_meta(&connection, begin)?;
        let known = RefCell::<[KnownRows; schema::TABLES.len()]>::default();
        let rows = meta
            .into_iter()
            .map(|(key, value)| (key, KnownRow { value: Some(value), is_changed: false, is_new: false }));
        known.borrow_mut()[StoreTable::Meta as usize] = rows.collect();
        Ok(Self { store, connection: Some(connection), known, sequence })
    }

    pub(crate) const fn tables(&self) -> PostgresTables<'_> {
        PostgresTables(self)
    }

    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("present until the end of the transaction")
    }

    /// Sends changes to the server; with the statement for the row of this process, it also
    /// commits.
    fn flush(&self, doing: &str, writer_row: Option<&Statement>) -> Result<(), StoreError> {
        type RequestFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;
        let connection = self.connection();
        self.copy_new_rows()?;
        let mut changes = Vec::new();
        for table in schema::TABLES {
            changes.extend(row_changes(connection, table, &mut self.known.borrow_mut()[table as usize])?);
        }
        if changes.is_empty() && writer_row.is_none() {
            return Ok(());
        }
        let client = connection.client();
        let (key, sequence) = (&self.store.writer_key()[..], &self.sequence.to_be_bytes()[..]);
        let mut sent: Vec<RequestFuture<'_>> = Vec::new();
        for RowChanges { set, remove } in &changes {
            if let Some((statement, keys, values)) = set {
                sent.push(Box::pin(
                    async move { client.execute(statement, &[keys, values]).await.map(drop) },
                ));
            }
            if let Some((statement, keys)) = remove {
                sent.push(Box::pin(async move { client.execute(statement, &[keys]).await.map(drop) }));
            }
        }
        if let Some(statement) = writer_row {
            let (key, sequence) = (&key, &sequence);
            sent.push(Box::pin(async move { client.execute(statement, &[key, sequence]).await.map(drop) }));
            sent.push(Box::pin(client.batch_execute("COMMIT")));
        }
        connection.run(doing, send_all(sent))
    }

    /// Copies the new rows of each table to which many were added.
    fn copy_new_rows(&self) -> Result<(), StoreError> {
        for table in schema::TABLES {
            let rows = new_rows(&mut self.known.borrow_mut()[table as usize]);
            if !rows.is_empty() {
                copy_rows(self.connection(), schema::name(table), rows)?;
            }
        }
        Ok(())
    }

    /// Makes the changes durable. If the connection is lost meanwhile, another one tells whether
    /// they were.
    pub(crate) fn commit(mut self) -> Result<(), StoreError> {
        let writer_row = self.connection().statement(WRITER_ROW)?;
        let committed = self.flush("commit changes to", Some(&writer_row));
        let connection = self.connection.take();
        let Err(StoreError::Server(error)) = committed else {
            self.store.keep_writer(connection);
            return committed;
        };
        // Closed first, so that the server ends what is in progress.
        drop(connection);
        if error.is_lost() && self.store.was_committed(self.sequence)? {
            return Ok(());
        }
        Err(StoreError::Server(error))
    }

    pub(crate) fn abort(mut self) -> Result<(), StoreError> {
        let connection = self.connection.take().filter(|connection| {
            let end = connection.client().batch_execute("ROLLBACK");
            !connection.is_lost() && connection.run("end a transaction in", end).is_ok()
        });
        self.store.keep_writer(connection);
        Ok(())
    }
}

/// Sends requests in their order, and then waits for all answers; returns the first error.
async fn send_all<F: Future<Output = Result<(), Error>> + Unpin>(sent: Vec<F>) -> Result<(), Error> {
    let mut waiting: Vec<_> = sent.into_iter().map(Some).collect();
    let mut failed = None;
    std::future::poll_fn(|context| {
        let mut is_over = true;
        for request in &mut waiting {
            let Some(future) = request else { continue };
            match Pin::new(future).poll(context) {
                std::task::Poll::Pending => is_over = false,
                std::task::Poll::Ready(answer) => {
                    *request = None;
                    failed = failed.take().or(answer.err());
                }
            }
        }
        if is_over { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    failed.map_or(Ok(()), Err)
}

/// Takes the new rows of a table, if there are many, which the server knows afterwards.
fn new_rows(known: &mut KnownRows) -> Vec<(Vec<u8>, Vec<u8>)> {
    let is_new = |row: &KnownRow| row.is_changed && row.is_new && row.value.is_some();
    if known.values().filter(|row| is_new(row)).count() < COPY_ROWS_MIN {
        return Vec::new();
    }
    let mut rows = Vec::new();
    for (key, row) in known.iter_mut().filter(|(_, row)| is_new(row)) {
        (row.is_changed, row.is_new) = (false, false);
        rows.push((key.clone(), row.value.clone().unwrap_or_default()));
    }
    rows
}

/// The statements for the changed rows of a table, which the server knows afterwards.
fn row_changes(
    connection: &Connection,
    table: StoreTable,
    known: &mut KnownRows,
) -> Result<Option<RowChanges>, StoreError> {
    let (mut keys, mut values, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    for (key, row) in known.iter_mut().filter(|(_, row)| row.is_changed) {
        (row.is_changed, row.is_new) = (false, false);
        match &row.value {
            Some(value) => {
                keys.push(key.clone());
                values.push(value.clone());
            }
            None => removed.push(key.clone()),
        }
    }
    if keys.is_empty() && removed.is_empty() {
        return Ok(None);
    }
    let name = schema::name(table);
    let set = format!(
        "INSERT INTO {name} (key, value) SELECT * FROM unnest($1::BYTEA[], $2::BYTEA[]) \
         ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    );
    let remove = format!("DELETE FROM {name} WHERE key = ANY($1::BYTEA[])");
    Ok(Some(RowChanges {
        set: match keys.is_empty() {
            true => None,
            false => Some((connection.statement(&set)?, keys, values)),
        },
        remove: match removed.is_empty() {
            true => None,
            false => Some((connection.statement(&remove)?, removed)),
        },
    }))
}

/// The tables in a transaction.
pub(crate) struct PostgresTables<'w>(&'w PostgresWrite<'w>);

impl PostgresTables<'_> {
    pub(crate) fn get(&self, table: StoreTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(row) = self.0.known.borrow()[table as usize].get(key) {
            return Ok(row.value.clone());
        }
        if table == StoreTable::Meta {
            return Ok(None);
        }
        let value = get(self.0.connection(), table, key)?;
        self.know(table, key, value.clone(), false);
        Ok(value)
    }

    fn know(&self, table: StoreTable, key: &[u8], value: Option<Vec<u8>>, is_changed: bool) {
        let known = &mut self.0.known.borrow_mut()[table as usize];
        match known.get_mut(key) {
            Some(row) => {
                let is_absent = row.is_new || (row.value.is_none() && !row.is_changed);
                *row = KnownRow { is_new: is_changed && is_absent && value.is_some(), value, is_changed };
            }
            None => _ = known.insert(key.to_vec(), KnownRow { value, is_changed, is_new: false }),
        }
    }

    /// Takes it as known that the table has no rows with these keys.
    pub(crate) fn assume_absent<'k>(&self, table: StoreTable, keys: impl Iterator<Item = &'k [u8]>) {
        let is_unknown = |key: &&[u8]| !self.0.known.borrow()[table as usize].contains_key(*key);
        keys.filter(is_unknown).for_each(|key| self.know(table, key, None, false));
    }

    /// Reads the rows of these keys at once.
    pub(crate) fn prefetch<'k>(
        &self,
        table: StoreTable,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<(), StoreError> {
        // What this transaction has read or changed already is not asked for again.
        let is_unknown = |key: &&[u8]| !self.0.known.borrow()[table as usize].contains_key(*key);
        let keys: Vec<&[u8]> = keys.filter(is_unknown).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let rows = get_all(self.0.connection(), table, &keys)?;
        for key in keys {
            self.know(table, key, None, false);
        }
        for row in rows {
            self.know(table, row.get(0), Some(row.get(1)), false);
        }
        Ok(())
    }

    pub(crate) fn len(&self, table: StoreTable) -> Result<u64, StoreError> {
        let name = schema::count_of(table).expect("only counted tables are asked for");
        Ok(self.get(StoreTable::Meta, name.as_bytes())?.map_or(0, |number| number_in(&number)))
    }

    fn count(&self, table: StoreTable, change: impl FnOnce(u64) -> u64) -> Result<(), StoreError> {
        if let Some(name) = schema::count_of(table) {
            let count = change(self.len(table)?).to_be_bytes().to_vec();
            self.know(StoreTable::Meta, name.as_bytes(), Some(count), true);
        }
        Ok(())
    }

    pub(crate) fn insert(&self, table: StoreTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let is_counted = schema::count_of(table).is_some();
        // Numbers of transactions are new.
        if is_counted && (table == StoreTable::Log || self.get(table, key)?.is_none()) {
            self.count(table, |count| count + 1)?;
        }
        self.know(table, key, Some(value.to_vec()), true);
        Ok(())
    }

    pub(crate) fn replace(
        &self,
        table: StoreTable,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let before = self.get(table, key)?;
        self.insert(table, key, value)?;
        Ok(before)
    }

    pub(crate) fn remove(&self, table: StoreTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let before = self.get(table, key)?;
        if before.is_some() {
            self.count(table, |count| count.saturating_sub(1))?;
            self.know(table, key, None, true);
        }
        Ok(before)
    }

    /// Removes a row of a table whose rows are not counted.
    pub(crate) fn discard(&self, table: StoreTable, key: &[u8]) {
        self.know(table, key, None, true);
    }

    pub(crate) fn remove_range(&self, table: StoreTable, range: KeyRange<'_>) -> Result<u64, StoreError> {
        self.0.flush("write", None)?;
        self.0.known.borrow_mut()[table as usize].clear();
        let removed = KeySpan::of(range).delete(self.0.connection(), table)?;
        self.count(table, |count| count.saturating_sub(removed))?;
        Ok(removed)
    }

    pub(crate) fn each(
        &self,
        table: StoreTable,
        range: KeyRange<'_>,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), StoreError> {
        if table == StoreTable::Meta {
            return self.each_number(range, visit);
        }
        self.0.flush("write", None)?;
        let mut pages = PageReader::new(table, range);
        loop {
            let rows = pages.next(self.0.connection())?;
            if rows.is_empty() {
                return Ok(());
            }
            for row in rows {
                if visit(row.get(0), row.get(1))?.is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// All numbers are known from the beginning.
    fn each_number(&self, range: KeyRange<'_>, visit: &mut RowVisitor<'_>) -> Result<(), StoreError> {
        let span = KeySpan::of(range);
        let known = self.0.known.borrow();
        let known = known[StoreTable::Meta as usize].iter();
        let mut rows: Vec<(&[u8], &[u8])> = known
            .filter(|(name, _)| span.contains(name))
            .filter_map(|(name, row)| Some((&**name, row.value.as_deref()?)))
            .collect();
        rows.sort_unstable();
        for (name, number) in rows {
            if visit(name, number)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn last(&self, table: StoreTable, range: KeyRange<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.flush("write", None)?;
        let span = KeySpan::of(range);
        let rows = span.query(self.0.connection(), "SELECT key FROM", table, "ORDER BY key DESC LIMIT 1")?;
        Ok(rows.first().map(|row| row.get(0)))
    }
}
