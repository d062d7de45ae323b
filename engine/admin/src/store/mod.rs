//! The authoritative records: one file, one writer, and readers that never wait for it.
//!
//! - Every acknowledged change is durable: a change returns after its transaction has been synced.
//!   Changes that wait at the same time share one transaction.
//! - A [`StoreSnapshot`] is the state of the store at one moment; it does not change while it is kept.
//! - Every change is in the log, under a number that grows by one; mirrors and the publisher follow it.
//! - Only one process at a time can open the store; the file is locked.
//!
//! Names are folded as the service folds them before they get here: see [`key`].

mod bulk;
mod check;
mod error;
mod guard;
mod log;
mod open;
mod overlay;
mod record;
mod schema;
mod snapshot;
mod sorter;
#[cfg(test)]
mod tests;
mod transaction;
mod writer;

pub use bulk::{Bulk, BulkCounts, UnfitRecord, check_record};
pub use check::{StoreFinding, StoreStats};
pub use error::StoreError;
pub use log::{LogAction, LogEntry};
pub use record::{RecordBuf, StoreRecord};
pub use snapshot::{
    ChangedRecord, StoreChanges, StoreRecords, StoreSnapshot, StoredRecord, is_record_of_homed_prefix,
    is_responsible,
};
pub use transaction::Transaction;

use handle_proto::Handle;
use handle_proto::fold;
use handle_proto::name::PREFIX_RECORDS;
use redb::{Database, Durability, ReadableDatabase as _, WriteTransaction};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use writer::{CommitQueue, StoreWriter};

/// How the store is kept.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// The file of the store.
    pub file: PathBuf,
    /// Memory for pages of the file, in bytes.
    pub cache_bytes: usize,
    /// Write what is free with each commit, so that the store opens at once after a crash. Without it the whole file is
    /// read then, and commits take one sync instead of two.
    pub quick_repair: bool,
    /// Read the whole file before it is opened, and compare its checksums. Without it damage of the disk is found where
    /// it shows, if it does.
    pub verify_at_start: bool,
    /// Changes that wait for the writer. Who comes then is told that the server is too busy.
    pub queue_changes: usize,
    /// Most changes that share one commit.
    pub commit_changes: usize,
    /// Days for which the log of transactions is kept; 0 for ever.
    pub log_days: u32,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            file: PathBuf::from("/var/lib/handle-admin/store.redb"),
            cache_bytes: 256 << 20,
            quick_repair: true,
            verify_at_start: true,
            queue_changes: 1024,
            commit_changes: 512,
            log_days: 0,
        }
    }
}

impl StoreConfig {
    /// The defaults, for the file at `path`.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { file: path.to_owned(), ..Self::default() }
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting, and what it should be.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.file.as_os_str().is_empty(),
            "`store.file` is not said: name the file of the store"
        );
        let bounds = [
            ("cache_bytes", self.cache_bytes, 1 << 20, 1 << 40),
            ("queue_changes", self.queue_changes, 1, 1 << 20),
            ("commit_changes", self.commit_changes, 1, 1 << 16),
            ("log_days", self.log_days as usize, 0, 36_500),
        ];
        for (name, value, least, most) in bounds {
            anyhow::ensure!(
                (least..=most).contains(&value),
                "`store.{name}` is {value}: it must be from {least} to {most}"
            );
        }
        Ok(())
    }
}

/// The name under which the record of `handle` is stored, by a service that does or does not fold local names.
///
/// A name without a slash is that of a prefix, and stands for its record.
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
/// The writer is a thread of its own; it ends when the store is dropped, once what waits has been written.
#[derive(Debug)]
pub struct Store {
    inner: Arc<Inner>,
    writer: StoreWriter,
}

/// What the writer and readers share.
#[derive(Debug)]
struct Inner {
    /// There until it is dropped.
    database: Option<Database>,
    config: StoreConfig,
    folds: bool,
    identity: AtomicU64,
    commits: CommitQueue,
}

impl Inner {
    /// A transaction that is durable once it is committed.
    fn begin_write(&self) -> Result<WriteTransaction, StoreError> {
        self.guarded(|| {
            let mut transaction = self.database()?.begin_write()?;
            transaction.set_durability(Durability::Immediate).map_err(redb::Error::from)?;
            transaction.set_quick_repair(self.config.quick_repair);
            Ok(transaction)
        })
    }

    /// Makes what is in `transaction` durable.
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
        // Something is read and written once more, so what is damaged may be found out here.
        let close = || {
            drop(database);
            Ok(())
        };
        if let Err(error) = self.guarded(close) {
            tracing::error!(%error, "the store was not closed in order");
        }
    }
}

impl Store {
    /// Makes a new, empty store. `folds` says for good whether the service folds local names.
    ///
    /// # Errors
    /// When there is a file already, or it cannot be written.
    pub fn create(config: &StoreConfig, folds: bool) -> Result<Self, StoreError> {
        // Values that nobody may read but administrators are in it.
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

    /// Makes an empty store in memory, which is gone when it is dropped.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn in_memory(config: &StoreConfig, folds: bool) -> Result<Self, StoreError> {
        let database = builder(config).create_with_backend(redb::backends::InMemoryBackend::new())?;
        schema::begin(&database, folds)?;
        Self::start(database, config)
    }

    /// Opens the store, and brings one of an older schema up to date.
    ///
    /// # Errors
    /// When there is none, another process has it open, or it is of a newer schema.
    pub fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::open_as(config, open::database)
    }

    /// Opens the store to read it. The file stays as it is, and need not be one that can be written: what is changed is
    /// kept in memory, and gone when the store is dropped.
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
            // Software that does not keep the counts has written last.
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

    /// What tells this store from others; a copy of its file has the same.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.inner.identity.load(Ordering::Relaxed)
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.inner.config.file
    }

    /// The store as it is now: all that has been acknowledged, nothing that comes later.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn snapshot(&self) -> Result<StoreSnapshot, StoreError> {
        self.inner.snapshot()
    }

    /// Runs `decide` on the writer's thread, with the store as it is then and room for changes, and returns what it gives
    /// once its changes are durable. Waits for that; where it changes nothing, there is nothing to wait for.
    ///
    /// `decide` must not take long: all others wait for it. When it gives an error its changes are not made, and
    /// neither are those of others that would have shared its commit.
    ///
    /// # Errors
    /// When the queue is full, or the changes could not be made durable. Then the store has failed: none is made any
    /// more until it is opened again.
    pub fn change<T, F>(&self, decide: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.writer.change(&self.inner.commits, decide)
    }

    /// The number of the last transaction that is durable.
    #[must_use]
    pub fn last_id(&self) -> u64 {
        self.inner.commits.last_id()
    }

    /// Waits until a transaction after number `id` is durable, but not longer than `patience`: the last one.
    #[must_use]
    pub fn wait_past(&self, id: u64, patience: Duration) -> u64 {
        self.inner.commits.wait_past(id, patience)
    }

    /// Changes that wait for the writer now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.commits.waiting()
    }

    /// Commits, and the changes in them, since the store was opened.
    #[must_use]
    pub fn commits(&self) -> (u64, u64) {
        self.inner.commits.counts()
    }

    /// Why no change is made any more, if the writer has failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.inner.commits.failure()
    }

    /// Begins to take in many records at once; see [`Bulk`].
    pub fn bulk(&self, temp_dir: &Path, memory_bytes: usize) -> Bulk<'_> {
        Bulk::new(self, temp_dir, memory_bytes)
    }

    /// Homes `prefix`, as `10.1045` or `0.NA/10.1045`; false when it was homed.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn home(&self, prefix: &[u8]) -> Result<bool, StoreError> {
        let prefix = prefix.to_vec();
        self.change(move |transaction| transaction.home(&prefix))
    }

    /// Makes another store of this one, with records, log and numbers as they are: for an older copy of a store whose
    /// later states are known somewhere.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn renew_identity(&self) -> Result<(), StoreError> {
        let identity = rand::random();
        self.change(move |transaction| transaction.set_identity(identity))?;
        self.inner.identity.store(identity, Ordering::Relaxed);
        Ok(())
    }

    /// Drops what the log says of transactions before `unix_ms`, at most `most` of them: how many.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn prune_log(&self, unix_ms: u64, most: usize) -> Result<usize, StoreError> {
        self.change(move |transaction| transaction.prune_log(unix_ms, most))
    }

    /// Reads everything, and tells what does not fit together: see [`StoreFinding`]. Nothing is changed.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn check(&self, found: impl FnMut(StoreFinding)) -> Result<StoreStats, StoreError> {
        check::check(&self.snapshot()?, found)
    }

    /// Counts and sizes.
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
