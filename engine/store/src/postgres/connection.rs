//! A connection, driven by the thread that uses it.
//!
//! Each connection has a runtime of one thread, which runs while a caller waits in
//! [`Connection::run`] and not otherwise. So an answer wakes the caller itself and no other thread,
//! and there is no task that outlives the connection.

use super::super::StoreError;
use super::config::DatabaseAddress;
use super::error::ServerError;
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, Error, Statement};

/// A connection to a database.
pub(super) struct Connection {
    client: Client,
    /// Prepared statements by their texts.
    statements: RefCell<HashMap<String, Statement>>,
    address: Arc<DatabaseAddress>,
    /// Whether the server has closed it, or an answer may still come.
    is_lost: std::cell::Cell<bool>,
    // Dropped last: the task of the connection is in it.
    runtime: Runtime,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

impl Connection {
    /// Connects, and runs `setup`.
    pub(super) fn open(address: &Arc<DatabaseAddress>, setup: &str) -> Result<Self, StoreError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(StoreError::from)?;
        let connect = async {
            let (client, connection) = address.config.connect(address.tls.clone()).await?;
            // Its end is seen by the next request.
            tokio::spawn(connection);
            client.batch_execute(setup).await?;
            Ok(client)
        };
        let client = wait(&runtime, address, "connect to", connect)?;
        let (address, is_lost) = (Arc::clone(address), std::cell::Cell::new(false));
        Ok(Self { client, statements: RefCell::default(), address, is_lost, runtime })
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get() || self.client.is_closed()
    }

    /// Waits for `work`. `doing` is a verb for its error, with the words up to the name of the
    /// database.
    pub(super) fn run<T>(
        &self,
        doing: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        let done = wait(&self.runtime, &self.address, doing, work);
        if let Err(StoreError::Server(error)) = &done
            && error.is_lost()
        {
            self.is_lost.set(true);
        }
        done
    }

    /// The statement of this text.
    pub(super) fn statement(&self, text: &str) -> Result<Statement, StoreError> {
        if let Some(statement) = self.statements.borrow().get(text) {
            return Ok(statement.clone());
        }
        let statement = self.run("prepare a statement of", self.client.prepare(text))?;
        self.statements.borrow_mut().insert(text.to_owned(), statement.clone());
        Ok(statement)
    }
}

fn wait<T>(
    runtime: &Runtime,
    address: &DatabaseAddress,
    doing: &str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, StoreError> {
    let server = || Arc::clone(&address.server);
    let error = match runtime.block_on(async { tokio::time::timeout(address.timeout, work).await }) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => ServerError::of(server(), doing, &error),
        Err(_) => ServerError::timeout(server(), doing),
    };
    Err(StoreError::Server(Box::new(error)))
}
