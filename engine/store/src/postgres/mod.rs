//! The engine over PostgreSQL, and over databases that speak its protocol and dialect.
//!
//! Every table of the store is a table of keys and values. Only statements of the common dialect
//! are used: no notifications, no replication slots, no numbers of the server's transactions.

mod challenges;
mod config;
mod connection;
mod copy;
mod database;
mod error;
mod lease;
mod pool;
mod query;
mod schema;
mod sessions;
mod snapshot;
mod write;

pub(crate) use challenges::PostgresChallenges;
pub use config::{DATABASE_URL, PostgresConfig, client_trusting, trusted_roots};
pub use database::{Database, DatabaseConnection, DatabaseParameter, DatabaseTransaction};
pub use error::ServerError;
pub(crate) use lease::PostgresLease;
pub(crate) use sessions::PostgresSessions;
pub(crate) use snapshot::{PostgresRecord, PostgresSnapshot};
pub(crate) use write::{PostgresTables, PostgresWrite};

use super::lease::LeaseHolder;
use super::tables::{MetaNumber, names, number_in};
use super::{StoreConfig, StoreError};
use config::DatabaseAddress;
use connection::Connection;
use pool::ConnectionPool;
use snapshot::read_meta;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time between two tries to find out whether a transaction was committed.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Longest time for which the server waits within a transaction for the next statement of a
/// process. A process that is stopped there, or whose machine has crashed, holds up the changes of
/// all others for so long; one that is slower than that has to make its changes again.
const IDLE_TRANSACTION_MAX: Duration = Duration::from_secs(2);

/// An open store.
#[derive(Debug)]
pub(crate) struct PostgresStore {
    address: Arc<DatabaseAddress>,
    pool: Arc<ConnectionPool>,
    /// The connection for transactions, if it is not in use.
    writer: Mutex<Option<Connection>>,
    /// A random number of this process in `handle_writers`.
    writer_id: u64,
    /// Transactions of this process.
    sequence: AtomicU64,
    reads_only: bool,
}

impl PostgresStore {
    /// Makes the tables in a database that has none of them.
    pub(crate) fn create(
        config: &StoreConfig,
        folds: bool,
        mark: Option<MetaNumber>,
    ) -> Result<Self, StoreError> {
        let store = Self::new(config, false)?;
        let connection = store.connect_writer()?;
        let client = connection.client();
        let there =
            connection.run("look into", client.query_opt("SELECT to_regclass('handle_meta')::TEXT", &[]))?;
        if there.is_some_and(|row| row.get::<_, Option<String>>(0).is_some()) {
            return Err(StoreError::Exists(config.location().into()));
        }
        let creation = format!("BEGIN;\n{}COMMIT;", schema::creation(folds, rand::random(), mark));
        connection.run("make tables in", client.batch_execute(&creation))?;
        store.keep_writer(Some(connection));
        Ok(store)
    }

    /// Opens the store, and upgrades it from an older schema.
    pub(crate) fn open(config: &StoreConfig, reads_only: bool) -> Result<Self, StoreError> {
        let store = Self::new(config, reads_only)?;
        let connection = store.connect_writer()?;
        let client = connection.client();
        let there =
            connection.run("look into", client.query_opt("SELECT to_regclass('handle_meta')::TEXT", &[]))?;
        if there.is_none_or(|row| row.get::<_, Option<String>>(0).is_none()) {
            return Err(StoreError::Missing(config.location().into()));
        }
        let meta = read_meta(&connection, "BEGIN; SELECT 1 FROM handle_meta WHERE key = 'lock' FOR UPDATE")?;
        let found = meta.get(names::SCHEMA.as_bytes()).map_or(0, |number| number_in(number));
        let upgrades = usize::try_from(found).ok().and_then(|at| schema::UPGRADES.get(at.checked_sub(1)?..));
        let Some(upgrades) = upgrades else {
            return Err(StoreError::Newer { found, known: schema::CURRENT });
        };
        let mut upgrade = upgrades.concat();
        if !upgrades.is_empty() {
            let (name, current) = (data_encoding::HEXLOWER.encode(names::SCHEMA.as_bytes()), schema::CURRENT);
            upgrade +=
                &format!("UPDATE handle_meta SET value = '\\x{current:016x}' WHERE key = '\\x{name}';");
        }
        connection.run("upgrade", client.batch_execute(&format!("{upgrade} COMMIT")))?;
        if !reads_only {
            store.warn_about_durability(&connection);
        }
        store.keep_writer(Some(connection));
        Ok(store)
    }

    fn new(config: &StoreConfig, reads_only: bool) -> Result<Self, StoreError> {
        let address = Arc::new(DatabaseAddress::new(&config.postgres)?);
        Ok(Self {
            pool: ConnectionPool::new(Arc::clone(&address), config.postgres.connections, ""),
            address,
            writer: Mutex::new(None),
            writer_id: rand::random(),
            sequence: AtomicU64::new(0),
            reads_only,
        })
    }

    /// Connects for transactions. A process that stops in one does not hold up the others for
    /// longer than the server waits for it.
    fn connect_writer(&self) -> Result<Connection, StoreError> {
        let timeout_ms = self.address.timeout.min(IDLE_TRANSACTION_MAX).as_millis();
        let setup = format!("SET idle_in_transaction_session_timeout = {timeout_ms}");
        Connection::open(&self.address, &setup)
    }

    fn warn_about_durability(&self, connection: &Connection) {
        for setting in ["fsync", "synchronous_commit"] {
            // Other databases do not have these settings.
            let shown =
                connection.run("look into", connection.client().query_one(&format!("SHOW {setting}"), &[]));
            if shown.is_ok_and(|row| row.try_get::<_, &str>(0).is_ok_and(|value| value == "off")) {
                tracing::warn!(
                    server = %self.address.server,
                    "the database has {setting} off: it loses acknowledged changes when its machine crashes"
                );
            }
        }
    }

    /// Where the store is, for messages.
    pub(crate) fn location(&self) -> &str {
        &self.address.server
    }

    pub(crate) fn snapshot(&self) -> Result<PostgresSnapshot, StoreError> {
        PostgresSnapshot::begin(&self.pool)
    }

    /// Begins a transaction, after those of all processes that have begun before.
    pub(crate) fn begin_write(&self) -> Result<PostgresWrite<'_>, StoreError> {
        if self.reads_only {
            let why = "the store was opened for reading".to_owned();
            let error = ServerError::new(Arc::clone(&self.address.server), "change", why);
            return Err(StoreError::Server(Box::new(error)));
        }
        let kept = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(connection) = kept.filter(|connection| !connection.is_lost()) {
            match PostgresWrite::begin(self, connection, sequence) {
                // The server has closed the connection since the last transaction.
                Err(StoreError::Server(error)) if error.is_lost() => {}
                begun => return begun,
            }
        }
        PostgresWrite::begin(self, self.connect_writer()?, sequence)
    }

    /// Keeps a connection for the next transaction.
    fn keep_writer(&self, connection: Option<Connection>) {
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    fn writer_key(&self) -> [u8; 8] {
        self.writer_id.to_be_bytes()
    }

    /// Whether the transaction `sequence` of this process was committed. The lock makes sure that
    /// the server does not work on it any more.
    fn was_committed(&self, sequence: u64) -> Result<bool, StoreError> {
        let until = Instant::now() + self.address.timeout;
        loop {
            let looked = self.connect_writer().and_then(|connection| {
                read_meta(&connection, "BEGIN; SELECT 1 FROM handle_meta WHERE key = 'lock' FOR UPDATE")?;
                let statement = connection.statement("SELECT value FROM handle_writers WHERE key = $1")?;
                let key = self.writer_key();
                let row = connection.run("read", connection.client().query_opt(&statement, &[&&key[..]]))?;
                connection.run("end a transaction in", connection.client().batch_execute("ROLLBACK"))?;
                self.keep_writer(Some(connection));
                Ok(row.is_some_and(|row| number_in(row.get(0)) == sequence))
            });
            match looked {
                Err(_) if Instant::now() < until => sleep(RETRY_INTERVAL),
                looked => return looked,
            }
        }
    }

    /// The challenges that processes share.
    pub(crate) fn challenges(&self) -> PostgresChallenges {
        PostgresChallenges(Arc::clone(&self.pool))
    }

    /// The sessions that processes share.
    pub(crate) fn sessions(&self) -> PostgresSessions {
        PostgresSessions(Arc::clone(&self.pool))
    }

    /// The lease with this name.
    pub(crate) fn lease(&self, name: &'static str, holder: LeaseHolder, length: Duration) -> PostgresLease {
        PostgresLease::new(&self.address, name, holder, length)
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        let connection = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(connection) = connection.filter(|connection| !connection.is_lost()) {
            let key = data_encoding::HEXLOWER.encode(&self.writer_key());
            let forget = format!("DELETE FROM handle_writers WHERE key = '\\x{key}'");
            // A row that stays does no harm.
            let _ = connection.run("leave", connection.client().batch_execute(&forget));
        }
    }
}
