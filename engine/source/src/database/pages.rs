//! Pages of rows: all records of a query or of the tables of a reference server, and changes.
//!
//! A listing is read from a cursor of the database, in one transaction, a few rows at a time.

use super::DatabaseSource;
use crate::RecordSource as _;
use crate::config::{PullConfig, SourceConfig, SourceKind};
use crate::error::SourceError;
use crate::listing::{
    ListedSource, PageEnd, PageItem, SingleItem, SourcePage, UnfitItem, checked_cursor, listed_record,
};
use crate::rows::{handle_column, listing_query, read_value};
use handle_proto::limit::VALUES_COUNT_MAX;
use handle_store::{Database, DatabaseTransaction, key};
use std::collections::VecDeque;
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type};

/// Rows that are received at a time, each with at most `answer_bytes`.
const FETCH_ROWS: usize = 64;
/// Changes in one page.
const CHANGES_MAX: usize = 1000;

/// A database that lists its records.
#[derive(Debug)]
pub(crate) struct DatabasePages {
    /// Answers for single handles.
    records: DatabaseSource,
    database: Database,
    list: String,
    /// The query for changes, and that for the present cursor.
    changes: Option<(String, String)>,
    bytes_max: usize,
    folds: bool,
}

impl DatabasePages {
    /// The database of `config`. Nothing is connected yet.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub(crate) fn open(config: &SourceConfig, pull: &PullConfig, folds: bool) -> Result<Self, String> {
        let patient = SourceConfig { timeout_ms: config.step_ms(), outstanding: 2, ..config.clone() };
        let list = match config.kind {
            SourceKind::Tables => super::TABLE_LIST.to_owned(),
            _ => pull.list_query.clone(),
        };
        let changes =
            (!pull.changes_query.is_empty()).then(|| (pull.changes_query.clone(), pull.cursor_query.clone()));
        Ok(Self {
            records: DatabaseSource::open(&patient)?,
            // Between two rows, records are written to the store.
            database: super::database(&patient, pull.listing())?,
            list,
            changes,
            bytes_max: config.answer_bytes,
            folds,
        })
    }

    /// What the query for one handle yields, as an item.
    fn ask(&self, handle: Vec<u8>) -> Result<PageItem, SourceError> {
        match self.records.record(&key(&handle, self.folds)) {
            Ok(Some(record)) => Ok(PageItem::Record(handle, record)),
            Ok(None) => Ok(PageItem::Absent(handle)),
            Err(error @ (SourceError::Invalid(_) | SourceError::TooLong)) => {
                Ok(PageItem::Unfit(UnfitItem { handle: Some(handle), why: error.to_string() }))
            }
            Err(error) => Err(error),
        }
    }

    /// The present cursor among the changes.
    fn present(&self, query: &str) -> Result<PageEnd, SourceError> {
        let query = format!("SELECT place::TEXT FROM ({query}) AS found (place) LIMIT 1");
        let rows = self.database.read(|connection| connection.query(&query, &[]))?;
        let row_cursor = rows.first().map(|row| text_at(row, 0)).transpose()?.flatten();
        let none = || SourceError::Refused("`pull.cursor_query` yields no place".to_owned());
        let cursor = checked_cursor(Some(row_cursor.ok_or_else(none)?))?;
        Ok(PageEnd { cursor, has_more: false })
    }

    /// A page of the changes since a cursor.
    fn changes_since(&self, query: &str, since: &str) -> Result<ChangesPage<'_>, SourceError> {
        let rows = self.database.read(|connection| {
            let columns = connection.columns(query)?;
            let handle = match handle_column(&columns) {
                Ok(handle) if columns.iter().any(|(name, _)| name == "cursor") => handle,
                _ => return Ok(Err(())),
            };
            let query = format!(
                "SELECT {handle} AS \"handle\", found.\"cursor\"::TEXT FROM ({query}) AS found LIMIT {CHANGES_MAX}"
            );
            connection.query(&query, &[&CursorParameter(since)]).map(Ok)
        })?;
        let missing = "`pull.changes_query` has no columns `handle` and `cursor`";
        let rows = rows.map_err(|()| SourceError::Refused(missing.to_owned()))?;
        let cursor = rows.last().map(|row| text_at(row, 1)).transpose()?.flatten();
        let end = PageEnd {
            cursor: checked_cursor(Some(cursor.unwrap_or_else(|| since.to_owned())))?,
            has_more: rows.len() == CHANGES_MAX,
        };
        Ok(ChangesPage { source: self, rows: rows.into(), end })
    }
}

fn text_at(row: &Row, at: usize) -> Result<Option<String>, SourceError> {
    row.try_get(at).map_err(|error| SourceError::Invalid(error.to_string()))
}

fn handle_at(row: &Row, at: usize) -> Result<Vec<u8>, SourceError> {
    let handle: Option<&[u8]> = row.try_get(at).map_err(|error| SourceError::Invalid(error.to_string()))?;
    handle.map(<[u8]>::to_vec).ok_or_else(|| SourceError::Invalid("a row without a handle".to_owned()))
}

impl ListedSource for DatabasePages {
    fn list<'s>(&'s mut self, _after: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        let transaction = self.database.begin()?;
        let connection = transaction.connection();
        let query = listing_query(&self.list, &connection.columns(&self.list)?, self.bytes_max)?;
        connection.execute(&format!("DECLARE listed_records NO SCROLL CURSOR FOR {}", query.text), &[])?;
        Ok(Box::new(RowsPage {
            source: self,
            transaction,
            rows: VecDeque::new(),
            is_received: false,
            handle_at: query.handle_at,
            last_handle: None,
        }))
    }

    fn changes<'s>(&'s mut self, since: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        match (&self.changes, since) {
            (None, _) => Ok(Box::new(SingleItem(PageItem::NoChanges))),
            (Some((_, cursor_query)), None) => {
                Ok(Box::new(SingleItem(PageItem::End(self.present(cursor_query)?))))
            }
            (Some((query, _)), Some(since)) => Ok(Box::new(self.changes_since(query, since)?)),
        }
    }
}

/// All records of a query, from its rows in the order of handles.
#[derive(Debug)]
struct RowsPage<'s> {
    source: &'s DatabasePages,
    transaction: DatabaseTransaction,
    rows: VecDeque<Row>,
    is_received: bool,
    /// The column of the handle: behind the columns of a value, or the only one.
    handle_at: usize,
    /// The last handle of a listing of handles.
    last_handle: Option<Vec<u8>>,
}

impl RowsPage<'_> {
    /// The next row, without taking it.
    fn peek(&mut self) -> Result<Option<&Row>, SourceError> {
        if self.rows.is_empty() && !self.is_received {
            let fetch = format!("FETCH FORWARD {FETCH_ROWS} FROM listed_records");
            self.rows = self.transaction.connection().query(&fetch, &[])?.into();
            self.is_received = self.rows.len() < FETCH_ROWS;
        }
        Ok(self.rows.front())
    }

    /// The record whose rows begin with the next one.
    fn take_record(&mut self, handle: Vec<u8>) -> Result<PageItem, SourceError> {
        let (mut values, mut bytes, mut why) = (Vec::new(), 0, None);
        let (at, bytes_max) = (self.handle_at, self.source.bytes_max);
        while let Some(row) = self.peek()? {
            if handle_at(row, at)? != handle {
                break;
            }
            match read_value(row, bytes_max) {
                Ok(value) => {
                    bytes += value.1.len();
                    values.push(value);
                }
                Err(error) => why = Some(error),
            }
            self.rows.pop_front();
            if bytes > bytes_max || values.len() > VALUES_COUNT_MAX {
                (why, values, bytes) = (Some(SourceError::TooLong), Vec::new(), 0);
            }
        }
        if let Some(why) = why {
            return Ok(PageItem::Unfit(UnfitItem { handle: Some(handle), why: why.to_string() }));
        }
        values.sort_by_key(|(index, _)| *index);
        let encoded: Vec<u8> = values.iter().flat_map(|(_, encoded)| encoded.iter().copied()).collect();
        Ok(listed_record(handle, values.len(), &encoded))
    }
}

impl SourcePage for RowsPage<'_> {
    fn next_item(&mut self) -> Result<PageItem, SourceError> {
        loop {
            let at = self.handle_at;
            let Some(row) = self.peek()? else {
                return Ok(PageItem::End(PageEnd { cursor: None, has_more: false }));
            };
            let handle = handle_at(row, at)?;
            if at > 0 {
                return self.take_record(handle);
            }
            self.rows.pop_front();
            if self.last_handle.as_ref() != Some(&handle) {
                self.last_handle = Some(handle.clone());
                return self.source.ask(handle);
            }
        }
    }
}

/// Changed handles, which are asked for one by one.
#[derive(Debug)]
struct ChangesPage<'s> {
    source: &'s DatabasePages,
    rows: VecDeque<Row>,
    end: PageEnd,
}

impl SourcePage for ChangesPage<'_> {
    fn next_item(&mut self) -> Result<PageItem, SourceError> {
        let Some(row) = self.rows.pop_front() else { return Ok(PageItem::End(self.end.clone())) };
        self.source.ask(handle_at(&row, 0)?)
    }
}

/// A cursor in the type that the query has for it, which the database reads from text.
#[derive(Debug)]
struct CursorParameter<'c>(&'c str);

impl ToSql for CursorParameter<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    fn to_sql_checked(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.to_sql(kind, out)
    }
}
