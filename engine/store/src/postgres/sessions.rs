//! Rows of sessions that several processes use.
//!
//! The table is not logged by the server: after a crash of the database it is empty, and clients
//! set up sessions again. No column that changes has an index, so that a change of a row needs no
//! other page.

use super::super::StoreError;
use super::super::shared::StoredSession;
use super::pool::ConnectionPool;
use std::sync::Arc;
use tokio_postgres::types::ToSql;

const INSERT: &str = "INSERT INTO handle_sessions (id, version, facts, counters, until) \
     VALUES ($1, $2, $3, $4, now() + $5::FLOAT8 * INTERVAL '1 second') ON CONFLICT (id) DO NOTHING";
const READ: &str = "SELECT version, facts, counters FROM handle_sessions WHERE id = $1 AND until > now()";
/// Without facts or a time, these stay.
const CHANGE: &str = "UPDATE handle_sessions SET version = version + 1, counters = $3, \
     facts = COALESCE($4, facts), \
     until = COALESCE(now() + $5::FLOAT8 * INTERVAL '1 second', until) \
     WHERE id = $1 AND version = $2 AND until > now()";
const REMOVE: &str = "DELETE FROM handle_sessions WHERE id = ANY($1::INT4[])";
const EXPIRE: &str = "DELETE FROM handle_sessions WHERE until < now()";

/// The table, over the connections for reading.
#[derive(Debug)]
pub(crate) struct PostgresSessions(pub(super) Arc<ConnectionPool>);

impl PostgresSessions {
    pub(crate) fn insert(&self, id: i32, row: &StoredSession, lasts_s: u32) -> Result<bool, StoreError> {
        let StoredSession { version, facts, counters } = row;
        self.execute(INSERT, &[&id, version, facts, counters, &f64::from(lasts_s)]).map(|count| count > 0)
    }

    pub(crate) fn read(&self, id: i32) -> Result<Option<StoredSession>, StoreError> {
        let (pooled, statement) = self.0.take(|connection| connection.statement(READ))?;
        let connection = pooled.get();
        let row = connection.run("read", connection.client().query_opt(&statement, &[&id]))?;
        pooled.give_back_at_once();
        Ok(row.map(|row| StoredSession { version: row.get(0), facts: row.get(1), counters: row.get(2) }))
    }

    pub(crate) fn change(
        &self,
        id: i32,
        version: i64,
        counters: &[u8],
        facts: Option<&[u8]>,
        lasts_s: Option<u32>,
    ) -> Result<bool, StoreError> {
        let lasts_s = lasts_s.map(f64::from);
        self.execute(CHANGE, &[&id, &version, &counters, &facts, &lasts_s]).map(|count| count > 0)
    }

    pub(crate) fn remove(&self, ids: &[i32]) -> Result<u64, StoreError> {
        self.execute(REMOVE, &[&ids])
    }

    pub(crate) fn expire(&self) -> Result<u64, StoreError> {
        self.execute(EXPIRE, &[])
    }

    fn execute(&self, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64, StoreError> {
        let (pooled, statement) = self.0.take(|connection| connection.statement(text))?;
        let connection = pooled.get();
        let count = connection.run("write to", connection.client().execute(&statement, parameters))?;
        // One statement is a transaction of its own.
        pooled.give_back_at_once();
        Ok(count)
    }
}
