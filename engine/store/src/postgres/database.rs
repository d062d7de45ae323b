//! A database that others have made, with tables of their own.

use super::super::StoreError;
use super::config::{DatabaseAddress, PostgresConfig};
use super::connection::Connection;
use super::pool::{ConnectionPool, PooledConnection};
use std::sync::Arc;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Column, Row};

/// A parameter of a statement.
pub type DatabaseParameter<'p> = &'p (dyn ToSql + Sync);

/// A database with a bounded number of connections, which are made when they are needed.
#[derive(Debug)]
pub struct Database {
    pool: Arc<ConnectionPool>,
}

impl Database {
    /// The database of `config`; each new connection runs the statements `setup`. Nothing is
    /// connected yet.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub fn new(config: &PostgresConfig, setup: &str) -> Result<Self, StoreError> {
        let address = Arc::new(DatabaseAddress::new(config)?);
        Ok(Self { pool: ConnectionPool::new(address, config.connections, setup) })
    }

    /// Reads, outside of a transaction. `read` may be called twice, because the server may have
    /// closed a connection.
    ///
    /// # Errors
    /// When the server does not do what it is asked.
    pub fn read<T>(
        &self,
        read: impl Fn(&DatabaseConnection<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (pooled, found) = self.pool.take(|connection| read(&DatabaseConnection(connection)))?;
        pooled.give_back_at_once();
        Ok(found)
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// When the server does not do what it is asked.
    pub fn begin(&self) -> Result<DatabaseTransaction, StoreError> {
        let begin = |connection: &Connection| {
            connection.run("begin a transaction in", connection.client().batch_execute("BEGIN"))
        };
        let (pooled, ()) = self.pool.take(begin)?;
        Ok(DatabaseTransaction(pooled))
    }
}

/// A transaction in progress. Dropping it rolls it back.
#[derive(Debug)]
pub struct DatabaseTransaction(PooledConnection);

impl DatabaseTransaction {
    /// Its connection.
    #[must_use]
    pub fn connection(&self) -> DatabaseConnection<'_> {
        DatabaseConnection(self.0.get())
    }

    /// Commits it.
    ///
    /// # Errors
    /// When the server does not do what it is asked. If it does not answer, it may have committed.
    pub fn commit(self) -> Result<(), StoreError> {
        let connection = self.0.get();
        connection.run("commit to", connection.client().batch_execute("COMMIT"))?;
        self.0.give_back_at_once();
        Ok(())
    }
}

/// A connection in use.
#[derive(Clone, Copy, Debug)]
pub struct DatabaseConnection<'c>(&'c Connection);

impl DatabaseConnection<'_> {
    /// The columns of a query, which is prepared once.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub fn columns(&self, text: &str) -> Result<Vec<(String, Type)>, StoreError> {
        let statement = self.0.statement(text)?;
        let column = |column: &Column| (column.name().to_owned(), column.type_().clone());
        Ok(statement.columns().iter().map(column).collect())
    }

    /// The rows of a query, which is prepared once.
    ///
    /// # Errors
    /// When the server does not do what it is asked.
    pub fn query(&self, text: &str, parameters: &[DatabaseParameter<'_>]) -> Result<Vec<Row>, StoreError> {
        let statement = self.0.statement(text)?;
        self.0.run("read", self.0.client().query(&statement, parameters))
    }

    /// Runs a statement, which is prepared once; returns the number of its rows.
    ///
    /// # Errors
    /// When the server does not do what it is asked.
    pub fn execute(&self, text: &str, parameters: &[DatabaseParameter<'_>]) -> Result<u64, StoreError> {
        let statement = self.0.statement(text)?;
        self.0.run("write", self.0.client().execute(&statement, parameters))
    }
}
