//! The authoritative records: one file, one writer, and readers that never wait for it.
//!
//! - Every acknowledged change is durable: a change returns after its transaction has been synced.
//!   Changes that wait at the same time share one transaction.
//! - A [`StoreSnapshot`] is the state of the store at one moment; it does not change while it is kept.
//! - Every change is in the log, under a number that grows by one; mirrors and the publisher follow it.
//! - Only one process at a time can open the store; the file is locked.
//!
//! The caller folds names as the service folds them: see [`key`].

mod bulk;
mod bulk_keys;
mod check;
mod error;
mod guard;
mod log;
mod open;
mod overlay;
mod record;
mod removals;
mod schema;
mod snapshot;
mod sorter;
#[cfg(test)]
mod tests;
mod transaction;
mod writer;

pub use bulk::{Bulk, BulkCounts, UnfitRecord, check_record};
pub use bulk_keys::{BulkKeyBounds, BulkKeyState, BulkScope};
pub use check::{StoreFinding, StoreStats};
pub use error::StoreError;
pub use log::{LogAction, LogBounds, LogEntry, LogStart};
pub use record::{RecordBuf, StoreRecord};
pub use removals::{LastChange, RemovalKind};
pub use snapshot::{
    ChangedRecord, StoreChanges, StoreRecords, StoreSnapshot, StoredRecord, is_record_of_homed_prefix,
    is_responsible,
};
pub use transaction::Transaction;

use handle_daemon::settings;
use handle_daemon::settings::{PATH, or_zero};
use handle_proto::Handle;
use handle_proto::fold;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::admin::StorePosition;
use redb::{Database, Durability, ReadableDatabase as _, WriteTransaction};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use writer::{CommitQueue, StoreWriter};

settings! {
    /// The store of the records ([store.md](../store.md)).
    pub struct StoreConfig {
        /// File of the store.
        restart file: PathBuf = PathBuf::from("/var/lib/handle-admin/store.redb"), PATH;
        /// Memory for pages of the store.
        restart cache_bytes: usize = 256 << 20, 1 << 20..=1 << 40;
        /// Write the allocator state with each commit, so that the store opens at once after a
        /// crash. Without it, opening after a crash reads the whole file, but commits take one sync
        /// instead of two.
        restart quick_repair: bool = true;
        /// Read the whole file and compare its checksums before opening it; without `quick_repair`,
        /// not after a crash. Otherwise disk damage is found only when a damaged page is read, if
        /// at all.
        restart verify_at_start: bool = true;
        /// Changes waiting for the writer. One more gets RC 3.
        restart queue_changes: usize = 1024, 1..=1 << 20;
        /// Changes that share one commit.
        restart commit_changes: usize = 512, 1..=1 << 16;
        /// Time for which the log of transactions is kept; 0 for no limit.
        restart log_days: u32 = 30, 0..=36_500;
        /// Transactions that the log keeps; 0 for no limit. One takes about 100 bytes.
        restart log_transactions: usize = 10_000_000, or_zero(1000..=1 << 40);
        /// Deleted handles and released prefixes whose last changes are kept for mirrors; the oldest
        /// are dropped.
        restart gone_names: usize = 1_000_000, 0..=1 << 32;
    }
}

impl StoreConfig {
    /// The defaults, for the file at `path`.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { file: path.to_owned(), ..Self::default() }
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

/// An open store.
///
/// The writer is a separate thread. When the store is dropped, the writer ends after writing all
/// queued changes.
#[derive(Debug)]
pub struct Store {
    inner: Arc<Inner>,
    writer: StoreWriter,
}

/// State shared by the writer and the readers.
#[derive(Debug)]
struct Inner {
    /// `Some` until dropped.
    database: Option<Database>,
    config: StoreConfig,
    folds: bool,
    identity: AtomicU64,
    commits: CommitQueue,
}

impl Inner {
    /// Begins a transaction that is durable once it is committed.
    fn begin_write(&self) -> Result<WriteTransaction, StoreError> {
        self.guarded(|| {
            let mut transaction = self.database()?.begin_write()?;
            transaction.set_durability(Durability::Immediate).map_err(redb::Error::from)?;
            transaction.set_quick_repair(self.config.quick_repair);
            Ok(transaction)
        })
    }

    /// Makes the changes in `transaction` durable.
    fn commit(&self, transaction: WriteTransaction) -> Result<(), StoreError> {
        self.guarded(|| Ok(transaction.commit()?))
    }

    fn snapshot(&self) -> Result<StoreSnapshot, StoreError> {
        self.guarded(|| StoreSnapshot::new(&self.database()?.begin_read()?, self.folds, &self.config.file))
    }

    fn database(&self) -> Result<&Database, StoreError> {
        self.database.as_ref().ok_or(StoreError::Failed)
    }

    fn guarded<T>(&self, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        guard::guarded(&self.config.file, work)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let database = self.database.take();
        // Closing reads and writes the file once more, so it may reveal damage.
        let close = || {
            drop(database);
            Ok(())
        };
        if let Err(error) = self.guarded(close) {
            tracing::error!(%error, "cannot close the store cleanly");
        }
    }
}

impl Store {
    /// Creates an empty store. `folds` determines permanently whether the service folds local
    /// names.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
    pub fn create(config: &StoreConfig, folds: bool) -> Result<Self, StoreError> {
        // The file contains values that only administrators may read.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&config.file);
        made.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => StoreError::Exists(config.file.clone()),
            _ => error.into(),
        })?;
        let database = builder(config).create(&config.file)?;
        schema::begin(&database, folds)?;
        sync_directory(&config.file)?;
        Self::start(database, config)
    }

    /// Creates an empty store in memory, which is lost when dropped.
    ///
    /// # Errors
    /// When memory is exhausted.
    pub fn in_memory(config: &StoreConfig, folds: bool) -> Result<Self, StoreError> {
        let database = builder(config).create_with_backend(redb::backends::InMemoryBackend::new())?;
        schema::begin(&database, folds)?;
        Self::start(database, config)
    }

    /// Opens the store, and upgrades it from an older schema.
    ///
    /// # Errors
    /// When the file does not exist, another process has it open, or it has a newer schema.
    pub fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::open_as(config, open::database)
    }

    /// Opens the store for reading. The file is not changed, and need not be writable: changes are
    /// kept in memory and lost when the store is dropped.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_to_read(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::open_as(config, open::unwritten)
    }

    fn open_as(
        config: &StoreConfig,
        open: impl FnOnce(&StoreConfig) -> Result<Database, StoreError>,
    ) -> Result<Self, StoreError> {
        let opened = guard::guarded(&config.file, || {
            let database = open(config)?;
            schema::upgrade(&database, schema::UPGRADES)?;
            Self::start(database, config)
        });
        opened.map_err(|error| match error {
            StoreError::Damaged(what) => {
                StoreError::Broken { file: config.file.clone(), what: what.to_owned() }
            }
            error => error,
        })
    }

    fn start(database: Database, config: &StoreConfig) -> Result<Self, StoreError> {
        let (folds, identity) = (schema::folds(&database)?, schema::identity(&database)?.into());
        let snapshot = StoreSnapshot::new(&database.begin_read()?, folds, &config.file)?;
        let (last_id, is_counted) = (snapshot.last_id()?, snapshot.content()?.is_some());
        let content = if is_counted { None } else { Some(check::count(&snapshot)?) };
        drop(snapshot);
        let commits = CommitQueue::new(last_id);
        let inner =
            Arc::new(Inner { database: Some(database), config: config.clone(), folds, identity, commits });
        if let Some(content) = content {
            // The last writer was software that does not keep the counts.
            let begun = inner.begin_write()?;
            Transaction::new(&begun, folds, &config.file)?.set_content(content)?;
            inner.commit(begun)?;
        }
        Ok(Self { writer: StoreWriter::start(&inner)?, inner })
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

    /// The path of the file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.inner.config.file
    }

    /// A snapshot of the store: all acknowledged changes, and no later ones.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn snapshot(&self) -> Result<StoreSnapshot, StoreError> {
        self.inner.snapshot()
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
        self.writer.change(&self.inner.commits, decide)
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

    /// Waits until a transaction after number `id` is durable, for at most `patience`; returns the
    /// number of the last durable one.
    #[must_use]
    pub fn wait_past(&self, id: u64, patience: Duration) -> u64 {
        self.inner.commits.wait_past(id, patience)
    }

    /// The number of changes waiting for the writer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.commits.waiting()
    }

    /// The numbers of commits and of the changes in them since the store was opened.
    #[must_use]
    pub fn commits(&self) -> (u64, u64) {
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

    /// Homes `prefix`, as `10.1045` or `0.NA/10.1045`; false if it was homed already.
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

fn builder(config: &StoreConfig) -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(config.cache_bytes);
    builder
}

/// Makes the name of a new file durable.
fn sync_directory(file: &Path) -> Result<(), StoreError> {
    let directory = file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(directory).and_then(|it| it.sync_all()).map_err(StoreError::from)
}
