//! Connections for reading, of which there is a bounded number.

use super::super::StoreError;
use super::config::DatabaseAddress;
use super::connection::Connection;
use super::error::ServerError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The connections that are not in use, and the number of all.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    address: Arc<DatabaseAddress>,
    most: usize,
    /// Statements that each new connection runs.
    setup: Box<str>,
    state: Mutex<PoolState>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    idle: Vec<Connection>,
    open_count: usize,
}

impl ConnectionPool {
    pub(super) fn new(address: Arc<DatabaseAddress>, most: usize, setup: &str) -> Arc<Self> {
        let (state, returned) = (Mutex::default(), Condvar::new());
        Arc::new(Self { address, most, setup: setup.into(), state, returned })
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection, in which `begin` has been done. An idle connection that the server has closed
    /// meanwhile is replaced.
    pub(super) fn take<T>(
        self: &Arc<Self>,
        begin: impl Fn(&Connection) -> Result<T, StoreError>,
    ) -> Result<(PooledConnection, T), StoreError> {
        loop {
            let (connection, was_idle) = self.take_any()?;
            match begin(connection.get()) {
                Err(_) if was_idle && connection.get().is_lost() => {}
                begun => return Ok((connection, begun?)),
            }
        }
    }

    fn take_any(self: &Arc<Self>) -> Result<(PooledConnection, bool), StoreError> {
        let is_full = |state: &mut PoolState| state.idle.is_empty() && state.open_count >= self.most;
        let waited = self.returned.wait_timeout_while(self.state(), self.address.timeout, is_full);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && is_full(&mut state) {
            let why = format!("all {} connections are in use", self.most);
            let error = ServerError::new(Arc::clone(&self.address.server), "read", why);
            return Err(StoreError::Server(Box::new(error)));
        }
        let idle = state.idle.pop();
        state.open_count += usize::from(idle.is_none());
        drop(state);
        let was_idle = idle.is_some();
        // From here on, dropping it lowers the count.
        let mut pooled = PooledConnection { connection: idle, rolls_back: true, pool: Arc::clone(self) };
        if !was_idle {
            pooled.connection = Some(Connection::open(&self.address, &self.setup)?);
        }
        Ok((pooled, was_idle))
    }
}

/// A connection in use.
#[derive(Debug)]
pub(super) struct PooledConnection {
    connection: Option<Connection>,
    /// Whether it may be in a transaction, which is rolled back at the end.
    rolls_back: bool,
    pool: Arc<ConnectionPool>,
}

impl PooledConnection {
    pub(super) fn get(&self) -> &Connection {
        self.connection.as_ref().expect("present until dropped")
    }

    /// Ends the use of a connection that is in no transaction.
    pub(super) fn give_back_at_once(mut self) {
        self.rolls_back = false;
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let rolls_back = self.rolls_back;
        let ended = self.connection.take().filter(|connection| {
            if !rolls_back {
                return !connection.is_lost();
            }
            // Also after an error, of which the server has told.
            let end = connection.client().batch_execute("ROLLBACK");
            !connection.is_lost() && connection.run("end a transaction in", end).is_ok()
        });
        let mut state = self.pool.state();
        match ended {
            Some(connection) => state.idle.push(connection),
            None => state.open_count -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}
