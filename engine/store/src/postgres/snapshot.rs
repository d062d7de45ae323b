//! The tables at one moment: a transaction that only reads, on a connection of its own.

use super::super::StoreError;
use super::super::tables::{KeyRange, RowIterator, StoreTable, number_in};
use super::connection::Connection;
use super::pool::{ConnectionPool, PooledConnection};
use super::query::{KeySpan, PageReader, get, get_all};
use super::schema;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_postgres::Row;

/// Most keys in one request.
const KEYS_MAX: usize = 4096;

/// Numbers by name.
pub(super) type MetaRows = HashMap<Vec<u8>, Vec<u8>>;

/// The tables at one moment. The connection returns to the pool when the snapshot and its iterators
/// are dropped.
#[derive(Debug)]
pub(crate) struct PostgresSnapshot {
    connection: Arc<Mutex<PooledConnection>>,
    meta: MetaRows,
}

/// A record and its name.
#[derive(Debug)]
pub(crate) struct PostgresRecord(Row);

impl PostgresRecord {
    pub(crate) fn key(&self) -> &[u8] {
        self.0.get(0)
    }

    pub(crate) fn record(&self) -> &[u8] {
        self.0.get(1)
    }
}

impl PostgresSnapshot {
    pub(super) fn begin(pool: &Arc<ConnectionPool>) -> Result<Self, StoreError> {
        let (connection, meta) =
            pool.take(|connection| read_meta(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)), meta })
    }

    pub(crate) fn get(&self, table: StoreTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match table {
            StoreTable::Meta => Ok(self.meta.get(key).cloned()),
            table => with_connection(&self.connection, |connection| get(connection, table, key)),
        }
    }

    pub(crate) fn get_all(
        &self,
        table: StoreTable,
        keys: &[Vec<u8>],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut found = HashMap::new();
        for keys in keys.chunks(KEYS_MAX) {
            let rows = with_connection(&self.connection, |connection| get_all(connection, table, keys))?;
            found.extend(rows.into_iter().map(|row| (row.get::<_, Vec<u8>>(0), row.get(1))));
        }
        Ok(keys.iter().map(|key| found.remove(key)).collect())
    }

    pub(crate) fn len(&self, table: StoreTable) -> u64 {
        let name = schema::count_of(table).expect("only counted tables are asked for");
        self.meta.get(name.as_bytes()).map_or(0, |number| number_in(number))
    }

    pub(crate) fn records(
        &self,
        range: KeyRange<'_>,
    ) -> impl Iterator<Item = Result<PostgresRecord, StoreError>> + use<> {
        self.read(StoreTable::Records, range).map(|row| row.map(PostgresRecord))
    }

    pub(crate) fn rows<T: 'static>(
        &self,
        table: StoreTable,
        range: KeyRange<'_>,
        mut read: impl FnMut(&[u8], &[u8]) -> Result<T, StoreError> + Send + 'static,
    ) -> RowIterator<T> {
        if table == StoreTable::Meta {
            let span = KeySpan::of(range);
            let named = self.meta.iter().filter(|(name, _)| span.contains(name));
            let mut rows: Vec<_> = named.map(|(name, number)| (name.clone(), number.clone())).collect();
            rows.sort_unstable();
            return Box::new(rows.into_iter().map(move |(name, number)| read(&name, &number)));
        }
        Box::new(self.read(table, range).map(move |row| row.and_then(|row| read(row.get(0), row.get(1)))))
    }

    fn read(
        &self,
        table: StoreTable,
        range: KeyRange<'_>,
    ) -> impl Iterator<Item = Result<Row, StoreError>> + use<> {
        let (connection, mut pages) = (Arc::clone(&self.connection), PageReader::new(table, range));
        let (mut page, mut is_over) = (Vec::new().into_iter(), false);
        std::iter::from_fn(move || {
            if is_over {
                return None;
            }
            if let Some(row) = page.next() {
                return Some(Ok(row));
            }
            match with_connection(&connection, |connection| pages.next(connection)) {
                Ok(rows) => page = rows.into_iter(),
                Err(error) => {
                    is_over = true;
                    return Some(Err(error));
                }
            }
            let row = page.next();
            is_over = row.is_none();
            row.map(Ok)
        })
    }
}

fn with_connection<T>(
    connection: &Mutex<PooledConnection>,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    work(connection.lock().unwrap_or_else(PoisonError::into_inner).get())
}

/// Begins a transaction by `begin` and reads all numbers, in one exchange with the server.
pub(super) fn read_meta(connection: &Connection, begin: &str) -> Result<MetaRows, StoreError> {
    let statement = connection.statement("SELECT key, value FROM handle_meta")?;
    let work = async {
        // Both are sent before the first is answered.
        let (begun, rows) = tokio::join!(
            connection.client().batch_execute(begin),
            connection.client().query(&statement, &[])
        );
        begun?;
        rows
    };
    let rows = connection.run("begin a transaction in", work)?;
    Ok(rows.into_iter().map(|row| (row.get(0), row.get(1))).collect())
}
