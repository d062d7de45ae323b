//! Statements about ranges of keys, which transactions and snapshots share.

use super::super::StoreError;
use super::super::tables::{KeyRange, StoreTable};
use super::connection::Connection;
use super::schema;
use std::ops::Bound;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Rows in the first page of a range, and the most in one.
pub(super) const PAGE_ROWS: (i64, i64) = (16, 512);

/// A range of keys with its start, and without its end if it has one.
#[derive(Clone, Debug)]
pub(super) struct KeySpan {
    pub(super) start: Vec<u8>,
    pub(super) end: Option<Vec<u8>>,
}

impl KeySpan {
    pub(super) fn of(range: KeyRange<'_>) -> Self {
        let start = match range.0 {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => after(key),
        };
        let end = match range.1 {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(after(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
        };
        Self { start, end }
    }

    /// Runs `statement` on the keys of the range; it goes on with `tail`.
    pub(super) fn query(
        &self,
        connection: &Connection,
        statement: &str,
        table: StoreTable,
        tail: &str,
    ) -> Result<Vec<Row>, StoreError> {
        let (text, parameters) = self.statement(statement, table, tail);
        let statement = connection.statement(&text)?;
        connection.run("read", connection.client().query(&statement, &parameters))
    }

    /// Removes the rows of the range; returns their number.
    pub(super) fn delete(&self, connection: &Connection, table: StoreTable) -> Result<u64, StoreError> {
        let (text, parameters) = self.statement("DELETE FROM", table, "");
        let statement = connection.statement(&text)?;
        connection.run("write", connection.client().execute(&statement, &parameters))
    }

    fn statement<'a>(
        &'a self,
        statement: &str,
        table: StoreTable,
        tail: &str,
    ) -> (String, Vec<&'a (dyn ToSql + Sync)>) {
        let name = schema::name(table);
        match &self.end {
            Some(end) => {
                (format!("{statement} {name} WHERE key >= $1 AND key < $2 {tail}"), vec![&self.start, end])
            }
            None => (format!("{statement} {name} WHERE key >= $1 {tail}"), vec![&self.start]),
        }
    }

    /// Whether `key` is in the range.
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        key >= &*self.start && self.end.as_ref().is_none_or(|end| key < &**end)
    }

    /// Moves the start behind `key`.
    pub(super) fn go_past(&mut self, key: &[u8]) {
        self.start = after(key);
    }
}

/// The next key.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Reads a range page by page.
#[derive(Debug)]
pub(super) struct PageReader {
    table: StoreTable,
    span: KeySpan,
    /// Rows of the next page; 0 after the last.
    rows_next: i64,
}

impl PageReader {
    pub(super) fn new(table: StoreTable, range: KeyRange<'_>) -> Self {
        Self { table, span: KeySpan::of(range), rows_next: PAGE_ROWS.0 }
    }

    /// The rows that follow; empty after the last.
    pub(super) fn next(&mut self, connection: &Connection) -> Result<Vec<Row>, StoreError> {
        if self.rows_next == 0 {
            return Ok(Vec::new());
        }
        let tail = format!("ORDER BY key LIMIT {}", self.rows_next);
        let rows = self.span.query(connection, "SELECT key, value FROM", self.table, &tail)?;
        let is_full = i64::try_from(rows.len()).is_ok_and(|count| count == self.rows_next);
        match rows.last().filter(|_| is_full) {
            Some(last) => {
                self.span.go_past(last.get(0));
                self.rows_next = (self.rows_next * 4).min(PAGE_ROWS.1);
            }
            None => self.rows_next = 0,
        }
        Ok(rows)
    }
}

/// The value of a key.
pub(super) fn get(
    connection: &Connection,
    table: StoreTable,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    let statement =
        connection.statement(&format!("SELECT value FROM {} WHERE key = $1", schema::name(table)))?;
    let row = connection.run("read", connection.client().query_opt(&statement, &[&key]))?;
    Ok(row.map(|row| row.get(0)))
}

/// The rows of these keys, in any order.
pub(super) fn get_all<K: AsRef<[u8]>>(
    connection: &Connection,
    table: StoreTable,
    keys: &[K],
) -> Result<Vec<Row>, StoreError> {
    let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
    let text = format!("SELECT key, value FROM {} WHERE key = ANY($1::BYTEA[])", schema::name(table));
    let statement = connection.statement(&text)?;
    connection.run("read", connection.client().query(&statement, &[&keys]))
}
