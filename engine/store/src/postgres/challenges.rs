//! Rows that are taken once, by whichever process: challenges that wait for an answer.
//!
//! The table is not logged by the server: after a crash of the database it is empty, and clients
//! are challenged again.

use super::super::StoreError;
use super::pool::ConnectionPool;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::types::ToSql;

const PUT: &str = "INSERT INTO handle_challenges (id, value, until) \
     SELECT id, value, now() + $3::FLOAT8 * INTERVAL '1 millisecond' \
     FROM unnest($1::INT4[], $2::BYTEA[]) AS new (id, value) \
     ON CONFLICT (id) DO UPDATE SET value = excluded.value, until = excluded.until";
const TAKE: &str = "DELETE FROM handle_challenges WHERE id = $1 RETURNING value, until > now()";
const REMOVE: &str = "DELETE FROM handle_challenges WHERE id = ANY($1::INT4[])";
const EXPIRE: &str = "DELETE FROM handle_challenges WHERE until < now()";

/// The table, over the connections for reading.
#[derive(Debug)]
pub(crate) struct PostgresChallenges(pub(super) Arc<ConnectionPool>);

impl PostgresChallenges {
    pub(crate) fn put(&self, ids: &[i32], values: &[Vec<u8>], lasts: Duration) -> Result<(), StoreError> {
        let lasts_ms = lasts.as_secs_f64() * 1000.0;
        self.execute(PUT, &[&ids, &values, &lasts_ms]).map(drop)
    }

    pub(crate) fn take(&self, id: i32) -> Result<Option<Vec<u8>>, StoreError> {
        let (connection, statement) = self.0.take(|connection| connection.statement(TAKE))?;
        let connection = connection.get();
        let taken = connection.run("take from", connection.client().query_opt(&statement, &[&id]))?;
        Ok(taken.filter(|row| row.get(1)).map(|row| row.get(0)))
    }

    pub(crate) fn remove(&self, ids: &[i32]) -> Result<(), StoreError> {
        self.execute(REMOVE, &[&ids]).map(drop)
    }

    pub(crate) fn expire(&self) -> Result<u64, StoreError> {
        self.execute(EXPIRE, &[])
    }

    fn execute(&self, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64, StoreError> {
        let (connection, statement) = self.0.take(|connection| connection.statement(text))?;
        let connection = connection.get();
        connection.run("write to", connection.client().execute(&statement, parameters))
    }
}
