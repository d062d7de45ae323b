//! The authoritative records: one writer at a time, and readers that never wait for it.
//!
//! - Every acknowledged change is durable: a change returns after its transaction has been synced.
//!   Changes that wait at the same time share one transaction.
//! - A [`StoreSnapshot`] is the state of the store at one moment; it does not change while it is
//!   kept.
//! - Every change is in the log, under a number that grows by one; mirrors and the publisher follow
//!   it.
//! - The records are in a file of redb (`embedded`), which one process at a time can open, or in a
//!   database of PostgreSQL (`postgres`), whose transactions follow each other, of all processes.
//!
//! The caller folds names as the service folds them: see [`key`].
//!
//! # Decisions
//!
//! - **An engine is ordered tables of bytes with transactions.** Numbers, log, dates, keys of
//!   requests and positions of mirrors are written once, above the engines, and so are nearly all
//!   tests. The price is that a database shows keys and values, and no columns to query.
//! - **Engines are an enum.** There are few, a call costs a comparison, and records of a file are
//!   read without a copy or an allocation for each.
//! - **A thread drives the connections that it uses.** The store blocks, and its callers have
//!   threads for it. Each connection has a runtime that runs while a caller waits for an answer, so
//!   no other thread has to be woken for one. The pools of other crates are for tasks, and these
//!   connections belong to no runtime of tasks: the pool is one file here.
//! - **Upgrades of tables are a list of statements.** The number of the schema is one of the
//!   numbers that every store has, and is checked in the same way for a file.
//!
//! ```
//! use handle_proto::{Value, Values};
//! use handle_store::{Store, StoreConfig, StoreRecords as _, key};
//!
//! let store = Store::in_memory(&StoreConfig::default(), true)?;
//! let name = key(b"10.1045/july95-arms", store.folds());
//! let before = store.snapshot()?;
//! let stored = name.clone();
//! store.change(move |transaction| {
//!     let mut buffer = Vec::new();
//!     let values = Values::build([Value::new(1, b"URL", b"https://www.dlib.org/")], &mut buffer);
//!     transaction.put(&stored, values)
//! })?;
//! assert_eq!(store.last_id(), 1);
//! assert!(before.record(&name)?.is_none(), "a snapshot does not change");
//! assert!(store.snapshot()?.record(&name)?.is_some());
//! # Ok::<(), handle_store::StoreError>(())
//! ```
#![forbid(unsafe_code)]

mod bulk;
mod bulk_keys;
mod check;
mod embedded;
mod error;
mod feed;
mod filling;
mod index;
mod lease;
mod log;
mod mirror;
mod postgres;
mod pulled;
mod record;
mod relocate;
mod removal_keys;
mod removals;
mod shared;
mod snapshot;
mod sorter;
mod store_records;
mod tables;
#[cfg(test)]
mod tests;
mod transaction;
mod writer;

pub use bulk::{Bulk, BulkCounts, UnfinishedImport, UnfitRecord, check_record};
pub use bulk_keys::{BulkKeyBounds, BulkKeyState, BulkScope};
pub use check::{StoreFinding, StoreStats};
pub use error::StoreError;
pub use filling::filling_order;
pub use index::{
    BadPattern, FoundHandles, INDEX_TYPE_LEN_MAX, IndexProgress, IndexState, PATTERN_LEN_MAX,
    PATTERN_STARS_MAX, SearchBounds, SearchCondition, SearchError, StoreSearch, ValuePattern, is_index_type,
};
pub use lease::{LeaseHolder, LeaseTurn, MIRROR_LEASE, PUBLISH_LEASE, StoreLease};
pub use log::{LogAction, LogBounds, LogEntry, LogStart};
pub use mirror::{DumpScope, DumpedRecord, NamedKind, OlderRecords};
pub use postgres::{
    DATABASE_URL, Database, DatabaseConnection, DatabaseParameter, DatabaseTransaction, PostgresConfig,
    ServerError, client_trusting, trusted_roots,
};
pub use pulled::PulledChange;
pub use record::{RecordBuf, StoreRecord};
pub use relocate::{MoveSummary, StoreMove};
pub use removal_keys::{LastChange, RemovalKind};
pub use shared::{SharedChallenges, StoredSession, StoredSessions};
pub use snapshot::{ChangedRecord, StoreChanges, StoreSnapshot, StoredRecord};
pub use sorter::Sorter;
pub use store_records::{StoreRecords, is_record_of_homed_prefix, is_responsible};
pub use transaction::Transaction;
pub use writer::{BegunChange, CommitCounts};

use embedded::EmbeddedStore;
use feed::StoreFeed;
use handle_daemon::settings;
use handle_daemon::settings::PATH;
use handle_proto::Handle;
use handle_proto::fold;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::admin::StorePosition;
use snapshot::RenumberedRange;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tables::{StoreEngine, StoreTable, names, number_in};
use writer::{CommitQueue, StoreWriter};

settings! {
    /// The store of the records ([store.md](../store.md)).
    pub struct StoreConfig {
        /// Set this when the store is elsewhere: its file.
        restart file: PathBuf = PathBuf::from("/var/lib/handle-admin/store.redb"), PATH;
        /// Set this when memory is short, or a large store should be read from memory: memory for
        /// its pages.
        restart cache_bytes: usize = 256 << 20, 1 << 20..=1 << 40;
        /// Set this when the disk syncs slowly, and opening after a crash may take longer: with
        /// `false`, a commit takes one sync instead of two, and opening after a crash reads the
        /// whole file. Otherwise each commit is synced with the map of free pages, so that the
        /// store opens at once.
        restart quick_repair: bool = true;
        /// Set this when a start takes too long because of the length of the file: `false` opens it
        /// without reading it and comparing checksums. Disk damage is then found only when a
        /// damaged page is read, if at all. Without `quick_repair`, nothing is compared after a
        /// crash.
        restart verify_at_start: bool = true;
        /// Set this when mirrors may be away for longer, or the disk is small: time for which the
        /// log of transactions is kept; 0 for no limit. It has at most ten million.
        restart log_days: u32 = 30, 0..=36_500;
        section postgres: PostgresConfig;
    } constants {
        /// Length from which on a file gets the map of free pages only when it is closed, because
        /// the map has 150 KiB for each GiB of the file. Opening such a file after a crash reads
        /// all of it.
        quick_repair_bytes: u64 = 1 << 30;
        /// Changes waiting for the writer: two commits of them. One more gets RC 3.
        queue_changes: usize = 1024;
        /// Changes that share one commit, so that many clients share the syncs of the disk, and
        /// none waits much longer for the changes of others.
        commit_changes: usize = 512;
        /// Transactions that the log keeps; 0 for no limit. One takes about 100 bytes, so all of
        /// them about 1 GB.
        log_transactions: usize = 10_000_000;
        /// Deleted handles and released prefixes whose last changes are kept for mirrors; the
        /// oldest are dropped. One takes about as much as a transaction of the log.
        gone_names: usize = 1_000_000;
    }
}

impl StoreConfig {
    /// The defaults, for the file at `path`, or for the database whose URL `path` is.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        match path.to_str().filter(|text| is_database(text)) {
            Some(url) => {
                let postgres = PostgresConfig { url: url.to_owned(), ..PostgresConfig::default() };
                Self { postgres, ..Self::default() }
            }
            None => Self { file: path.to_owned(), ..Self::default() },
        }
    }

    /// The file, or the URL of the database.
    #[must_use]
    pub fn location(&self) -> &str {
        match self.postgres.url.is_empty() {
            true => self.file.to_str().unwrap_or("a file"),
            false => &self.postgres.url,
        }
    }

    /// Whether the store is in a database and not in a file.
    #[must_use]
    pub const fn is_in_database(&self) -> bool {
        !self.postgres.url.is_empty()
    }
}

/// The name under which the record of `handle` is stored; `folds` tells whether the service folds
/// local names.
///
/// A name without a slash is a prefix, and stands for the record of that prefix.
#[must_use]
pub fn key(handle: &[u8], folds: bool) -> Vec<u8> {
    match Handle(handle).slash_at() {
        None => [PREFIX_RECORDS, &fold::folded(handle)].concat(),
        Some(_) if folds => fold::folded(handle),
        Some(_) => handle.to_vec(),
    }
}

/// Whether the name of a store is the URL of a database.
fn is_database(name: &str) -> bool {
    ["postgresql://", "postgres://"].iter().any(|start| name.starts_with(start))
}

/// An open store.
///
/// The writer is a separate thread. When the store is dropped, the writer ends after writing all
/// queued changes.
#[derive(Debug)]
pub struct Store {
    inner: Arc<Inner>,
    writer: StoreWriter,
    /// Follows the transactions of other processes; `None` if there cannot be any.
    _feed: Option<StoreFeed>,
}

/// State shared by the writer and the readers.
#[derive(Debug)]
struct Inner {
    engine: StoreEngine,
    config: StoreConfig,
    folds: bool,
    identity: AtomicU64,
    /// The last promotion.
    renumbered: Mutex<RenumberedRange>,
    commits: CommitQueue,
    /// Whether changes are refused because the store is being moved.
    is_held: AtomicBool,
}

impl Store {
    /// Creates an empty store. `folds` determines permanently whether the service folds local
    /// names.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
    pub fn create(config: &StoreConfig, folds: bool) -> Result<Self, StoreError> {
        Self::start(StoreEngine::create(config, folds, None)?, config, false)
    }

    /// Creates an empty store in memory, which is lost when dropped.
    ///
    /// # Errors
    /// When memory is exhausted.
    pub fn in_memory(config: &StoreConfig, folds: bool) -> Result<Self, StoreError> {
        Self::start(StoreEngine::Embedded(EmbeddedStore::in_memory(config, folds)?), config, false)
    }

    /// Opens the store, and upgrades it from an older schema.
    ///
    /// # Errors
    /// When the file does not exist, another process has it open, or it has a newer schema.
    pub fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::open_as(config, false)
    }

    /// Whether the file of the store is open nowhere. A store in a database never is in the way.
    #[must_use]
    pub fn is_free(config: &StoreConfig) -> bool {
        config.is_in_database()
            || std::fs::File::options()
                .write(true)
                .open(&config.file)
                .is_ok_and(|file| file.try_lock().is_ok())
    }

    /// Opens the store for reading. A file is not changed, and need not be writable: changes are
    /// kept in memory and lost when the store is dropped. In a database, changes are refused.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_to_read(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::open_as(config, true)
    }

    fn open_as(config: &StoreConfig, reads_only: bool) -> Result<Self, StoreError> {
        let engine = StoreEngine::open(config, reads_only);
        engine.and_then(|engine| Self::start(engine, config, reads_only)).map_err(|error| match error {
            StoreError::Damaged(what) => {
                StoreError::Broken { file: config.location().into(), what: what.to_owned() }
            }
            error => error,
        })
    }

    fn start(engine: StoreEngine, config: &StoreConfig, reads_only: bool) -> Result<Self, StoreError> {
        let tables = engine.snapshot()?;
        let number = |name: &str| {
            let number = tables.get(StoreTable::Meta, name.as_bytes())?;
            Ok::<_, StoreError>(number.map_or(0, |number| number_in(&number)))
        };
        let (folds, identity) = (number(names::FOLDS)? != 0, number(names::IDENTITY)?.into());
        if number(names::COPY_STATE)? != 0 {
            return Err(StoreError::UnfinishedCopy(config.location().into()));
        }
        if number(names::MOVED)? != 0 && !reads_only {
            return Err(StoreError::Moved);
        }
        let snapshot = StoreSnapshot::new(tables, folds);
        let last_id = snapshot.last_id()?;
        let renumbered = Mutex::new(snapshot.renumbering()?);
        drop(snapshot);
        let commits = CommitQueue::new(last_id);
        let is_held = AtomicBool::new(false);
        let config = config.clone();
        let inner = Arc::new(Inner { engine, config, folds, identity, renumbered, commits, is_held });
        let _feed = match &inner.engine {
            StoreEngine::Embedded(_) => None,
            StoreEngine::Postgres(_) => Some(StoreFeed::start(&inner)?),
        };
        Ok(Self { writer: StoreWriter::start(&inner)?, inner, _feed })
    }

    /// Whether the service folds local names.
    #[must_use]
    pub fn folds(&self) -> bool {
        self.inner.folds
    }

    /// The identity of this store, which distinguishes it from other stores; a copy of the file has
    /// the same one.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.inner.identity.load(Ordering::Relaxed)
    }

    /// The path of the file, or database and server.
    #[must_use]
    pub fn location(&self) -> String {
        match &self.inner.engine {
            StoreEngine::Embedded(_) => self.inner.config.file.display().to_string(),
            StoreEngine::Postgres(store) => store.location().to_owned(),
        }
    }

    /// A snapshot of the store: all acknowledged changes, and no later ones.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn snapshot(&self) -> Result<StoreSnapshot, StoreError> {
        Ok(StoreSnapshot::new(self.inner.engine.snapshot()?, self.inner.folds))
    }

    /// Runs `decide` on the writer's thread, on the current state of the store, and returns its
    /// result once its changes are durable. Blocks until then; if `decide` changes nothing, there
    /// is no commit to wait for.
    ///
    /// `decide` must be quick, since all other changes wait for it. If it fails, its changes are
    /// not made, and neither are those of others that would have shared its commit.
    ///
    /// # Errors
    /// When the queue is full, or the changes could not be made durable. In the latter case the
    /// store has failed: it accepts no change until it is opened again.
    pub fn change<T, F>(&self, decide: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.begin_change(decide)?.wait()
    }

    /// As [`change`](Self::change), without waiting for the result. Changes are made in the order
    /// in which they begin.
    ///
    /// # Errors
    /// When the queue is full, or the store accepts no change.
    pub fn begin_change<T, F>(&self, decide: F) -> Result<BegunChange<T>, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        if self.inner.is_held.load(Ordering::SeqCst) {
            return Err(StoreError::Moved);
        }
        self.writer.begin(&self.inner.commits, decide)
    }

    /// Holds changes back, until the result is dropped.
    fn hold(&self) -> HeldStore<'_> {
        self.inner.is_held.store(true, Ordering::SeqCst);
        HeldStore { store: self, is_kept: false }
    }

    /// Reads what other processes have done since: they may have made transactions, or given the
    /// store a new identity. Without a call, this is known a moment later
    /// (`PostgresConfig::poll_ms`).
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn catch_up(&self) -> Result<(), StoreError> {
        feed::look(&self.inner)
    }

    /// The lease of the process that publishes, which lasts for `length` after each renewal. `None`
    /// if no other process can have the store open.
    #[must_use]
    pub fn publish_lease(&self, holder: LeaseHolder, length: Duration) -> Option<StoreLease> {
        self.lease(PUBLISH_LEASE, holder, length)
    }

    /// The same of the process that follows the primaries of a mirror.
    #[must_use]
    pub fn mirror_lease(&self, holder: LeaseHolder, length: Duration) -> Option<StoreLease> {
        self.lease(MIRROR_LEASE, holder, length)
    }

    fn lease(&self, name: &'static str, holder: LeaseHolder, length: Duration) -> Option<StoreLease> {
        match &self.inner.engine {
            StoreEngine::Embedded(_) => None,
            StoreEngine::Postgres(store) => Some(StoreLease(store.lease(name, holder, length))),
        }
    }

    /// The challenges that processes over one database share; `None` if no other process can have
    /// the store open.
    #[must_use]
    pub fn shared_challenges(&self) -> Option<SharedChallenges> {
        match &self.inner.engine {
            StoreEngine::Embedded(_) => None,
            StoreEngine::Postgres(store) => Some(SharedChallenges(store.challenges())),
        }
    }

    /// The sessions that processes over one database share; `None` if no other process can have the
    /// store open.
    #[must_use]
    pub fn stored_sessions(&self) -> Option<StoredSessions> {
        match &self.inner.engine {
            StoreEngine::Embedded(_) => None,
            StoreEngine::Postgres(store) => Some(StoredSessions(store.sessions())),
        }
    }

    /// The number of the last durable transaction.
    #[must_use]
    pub fn last_id(&self) -> u64 {
        self.inner.commits.last_id()
    }

    /// The identity of the store, and the number of the last durable transaction.
    #[must_use]
    pub fn position(&self) -> StorePosition {
        StorePosition { store: self.identity(), transaction: self.last_id() }
    }

    /// Waits until a transaction after number `id` is durable, for at most `timeout`; returns the
    /// number of the last durable one.
    #[must_use]
    pub fn wait_past(&self, id: u64, timeout: Duration) -> u64 {
        self.inner.commits.wait_past(id, timeout)
    }

    /// Waits until a transaction after number `id` is durable or `ends` returns true, for at most
    /// `timeout`. `ends` is called again after each commit and each call of [`wake`](Self::wake).
    pub fn wait_past_or(&self, id: u64, ends: impl Fn() -> bool, timeout: Duration) {
        self.inner.commits.wait_past_or(id, ends, timeout);
    }

    /// Wakes the threads in [`wait_past_or`](Self::wait_past_or), after what they wait for may have
    /// come true.
    pub fn wake(&self) {
        self.inner.commits.wake();
    }

    /// The number of changes waiting for the writer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.commits.waiting()
    }

    /// What was written since the store was opened.
    #[must_use]
    pub fn commits(&self) -> CommitCounts {
        self.inner.commits.counts()
    }

    /// Why the store accepts no changes, if the writer has failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.inner.commits.failure()
    }

    /// Begins to load many records at once; see [`Bulk`].
    pub fn bulk(&self, temp_dir: &Path, memory_bytes: usize) -> Bulk<'_> {
        Bulk::new(self, temp_dir, memory_bytes)
    }

    /// Homes `prefix`, as in [`Transaction::home`]; false if it was homed already.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn home(&self, prefix: &[u8]) -> Result<bool, StoreError> {
        let prefix = prefix.to_vec();
        self.change(move |transaction| transaction.home(&prefix))
    }

    /// Gives the store a new identity, with records, log and numbers unchanged: for an older copy
    /// of a store whose later states are known elsewhere.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn renew_identity(&self) -> Result<(), StoreError> {
        let identity = rand::random();
        self.change(move |transaction| transaction.set_identity(identity))?;
        self.inner.identity.store(identity, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the numbers of transactions go on above `above`, and their times after
    /// `not_before_ms`, after `decide` has made its changes: this store belonged to a mirror, which
    /// is the primary from now on. Returns the number of the last transaction.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn promote<F>(&self, above: u64, not_before_ms: u64, decide: F) -> Result<u64, StoreError>
    where
        F: FnOnce(&mut Transaction<'_>) -> Result<(), StoreError> + Send + 'static,
    {
        let renumbered = self.change(move |transaction| {
            decide(transaction)?;
            transaction.renumber(above, not_before_ms)
        })?;
        *self.inner.renumbered.lock().unwrap_or_else(PoisonError::into_inner) = renumbered;
        Ok(renumbered.to)
    }

    /// The present number of the state after transaction `id`: promoting a mirror gives its last
    /// transaction another number.
    #[must_use]
    pub fn renumbered(&self, id: u64) -> u64 {
        self.inner.renumbered.lock().unwrap_or_else(PoisonError::into_inner).of(id)
    }

    /// Drops up to `most` transactions that are out of `bounds` from the log; returns their number.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn prune_log(&self, bounds: LogBounds, most: usize) -> Result<usize, StoreError> {
        self.change(move |transaction| transaction.prune_log(bounds, most))
    }

    /// Drops up to `most` of the oldest removals of handles and prefixes, so that at most `kept`
    /// remain; returns their number.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn prune_removals(&self, kept: u64, most: usize) -> Result<usize, StoreError> {
        self.change(move |transaction| transaction.prune_removals(kept, most))
    }

    /// Reads the whole store and reports inconsistencies: see [`StoreFinding`]. Changes nothing.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn check(&self, found: impl FnMut(StoreFinding)) -> Result<StoreStats, StoreError> {
        check::check(&self.snapshot()?, found)
    }

    /// Counts and sizes of the store.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        check::stats(&self.snapshot()?)
    }
}

/// A store whose changes are held back, except those made here.
struct HeldStore<'s> {
    store: &'s Store,
    is_kept: bool,
}

impl HeldStore<'_> {
    fn change<T, F>(&self, decide: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.store.writer.change(&self.store.inner.commits, decide)
    }

    /// Keeps changes back for good.
    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for HeldStore<'_> {
    fn drop(&mut self) {
        self.store.inner.is_held.store(self.is_kept, Ordering::SeqCst);
    }
}
