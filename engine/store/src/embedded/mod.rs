//! The embedded engine: one file of redb, which one process at a time has open.

mod guard;
mod open;
mod overlay;
mod rows;
pub(crate) mod schema;
mod tables;

pub(crate) use tables::{EmbeddedRecord, EmbeddedSnapshot, EmbeddedTables};

use super::{StoreConfig, StoreError};
use guard::guarded;
use redb::{Database, Durability, ReadableDatabase as _, WriteTransaction};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// An open file.
#[derive(Debug)]
pub(crate) struct EmbeddedStore {
    /// `Some` until dropped.
    database: Option<Database>,
    file: PathBuf,
    quick_repair: bool,
    quick_repair_bytes: u64,
}

impl EmbeddedStore {
    /// Makes a new file with empty tables.
    ///
    /// It gets its name once it is a store, so that a process that is killed meanwhile leaves
    /// nothing that a later attempt refuses; except on file systems without unnamed files.
    pub(crate) fn create(
        config: &StoreConfig,
        folds: bool,
        mark: Option<(&'static str, u64)>,
    ) -> Result<Self, StoreError> {
        if config.file.symlink_metadata().is_ok() {
            return Err(StoreError::Exists(config.file.clone()));
        }
        // The file contains values that only administrators may read.
        let mode = Mode::RUSR | Mode::WUSR;
        let unnamed = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let database = match rustix::fs::open(directory_of(&config.file), unnamed, mode) {
            Ok(descriptor) => {
                let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
                let database = builder(config).create_file(descriptor.into())?;
                schema::begin(&database, folds, mark)?;
                // A link does not replace what another process has made meanwhile.
                match linkat(CWD, link, CWD, &config.file, AtFlags::SYMLINK_FOLLOW) {
                    Ok(()) => Some(database),
                    Err(Errno::EXIST) => return Err(StoreError::Exists(config.file.clone())),
                    Err(_) => None,
                }
            }
            Err(_) => None,
        };
        let database = database.map_or_else(|| Self::create_at_once(config, folds, mark), Ok)?;
        sync_directory(&config.file)?;
        Ok(Self::new(database, config))
    }

    /// Makes a file that has its name from the beginning.
    fn create_at_once(
        config: &StoreConfig,
        folds: bool,
        mark: Option<(&'static str, u64)>,
    ) -> Result<Database, StoreError> {
        let mut options = OpenOptions::new();
        let made = options.read(true).write(true).create_new(true).mode(0o600).open(&config.file);
        let file = made.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => StoreError::Exists(config.file.clone()),
            _ => error.into(),
        })?;
        let database = builder(config).create_file(file)?;
        schema::begin(&database, folds, mark)?;
        Ok(database)
    }

    /// Makes empty tables in memory.
    pub(crate) fn in_memory(config: &StoreConfig, folds: bool) -> Result<Self, StoreError> {
        let database = builder(config).create_with_backend(redb::backends::InMemoryBackend::new())?;
        schema::begin(&database, folds, None)?;
        Ok(Self::new(database, config))
    }

    /// Opens a file, and upgrades it from an older schema.
    pub(crate) fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::open_as(config, open::database)
    }

    /// Opens a file without changing it: changes are kept in memory.
    pub(crate) fn open_to_read(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::open_as(config, open::unwritten)
    }

    fn open_as(
        config: &StoreConfig,
        open: impl FnOnce(&StoreConfig) -> Result<Database, StoreError>,
    ) -> Result<Self, StoreError> {
        guarded(&config.file, || {
            let database = open(config)?;
            schema::upgrade(&database, schema::UPGRADES)?;
            Ok(Self::new(database, config))
        })
    }

    pub(crate) fn new(database: Database, config: &StoreConfig) -> Self {
        let StoreConfig { quick_repair, quick_repair_bytes, .. } = *config;
        Self { database: Some(database), file: config.file.clone(), quick_repair, quick_repair_bytes }
    }

    /// Whether each commit writes the map of free pages, which grows with the file.
    fn saves_free_pages(&self) -> bool {
        self.file.metadata().map_or(0, |file| file.len()) < self.quick_repair_bytes
    }

    fn database(&self) -> Result<&Database, StoreError> {
        self.database.as_ref().ok_or(StoreError::Failed)
    }

    pub(crate) fn snapshot(&self) -> Result<EmbeddedSnapshot, StoreError> {
        guarded(&self.file, || EmbeddedSnapshot::new(&self.database()?.begin_read()?, &self.file))
    }

    /// Begins a transaction that is durable once it is committed.
    pub(crate) fn begin_write(&self) -> Result<EmbeddedWrite, StoreError> {
        guarded(&self.file, || {
            let mut transaction = self.database()?.begin_write()?;
            transaction.set_durability(Durability::Immediate).map_err(redb::Error::from)?;
            transaction.set_two_phase_commit(self.quick_repair);
            transaction.set_quick_repair(self.quick_repair && self.saves_free_pages());
            Ok(EmbeddedWrite { transaction, file: self.file.clone() })
        })
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        let database = self.database.take();
        // Closing reads and writes the file once more, so it may reveal damage.
        let close = || {
            drop(database);
            Ok(())
        };
        if let Err(error) = guarded(&self.file, close) {
            tracing::error!(%error, "cannot close the store cleanly");
        }
    }
}

/// A transaction that has begun.
pub(crate) struct EmbeddedWrite {
    transaction: WriteTransaction,
    file: PathBuf,
}

impl EmbeddedWrite {
    pub(crate) fn tables(&self) -> Result<EmbeddedTables<'_>, StoreError> {
        EmbeddedTables::open(&self.transaction, &self.file)
    }

    /// Makes the changes durable.
    pub(crate) fn commit(self) -> Result<(), StoreError> {
        guarded(&self.file, || Ok(self.transaction.commit()?))
    }

    pub(crate) fn abort(self) -> Result<(), StoreError> {
        guarded(&self.file, || Ok(self.transaction.abort()?))
    }
}

fn builder(config: &StoreConfig) -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(config.cache_bytes);
    builder
}

fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the name of a new file durable.
fn sync_directory(file: &Path) -> Result<(), StoreError> {
    std::fs::File::open(directory_of(file)).and_then(|it| it.sync_all()).map_err(StoreError::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_gets_its_name_when_it_is_a_store() {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig::at(&directory.path().join("store"));
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // What a process would leave that is killed in this moment.
            let sees = scope.spawn(|| {
                let is_there = || std::fs::read_dir(directory.path()).unwrap().next().is_some();
                while !is_there() && !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let copy = StoreConfig::at(&directory.path().with_extension("copy"));
                std::fs::copy(&config.file, &copy.file).unwrap();
                assert!(EmbeddedStore::open(&copy).is_ok());
                std::fs::remove_file(&copy.file).unwrap();
            });
            for at in 0..2 {
                let made = EmbeddedStore::create(&config, true, None);
                assert_eq!(made.is_ok(), at == 0, "{made:?}");
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            sees.join().unwrap();
        });
        let mode = config.file.metadata().unwrap().permissions().mode();
        assert_eq!((mode & 0o777, EmbeddedStore::open(&config).is_ok()), (0o600, true));
        std::fs::remove_file(&config.file).unwrap();
        drop(EmbeddedStore::create_at_once(&config, true, None).unwrap());
        assert!(EmbeddedStore::open(&config).is_ok());
        let exists = EmbeddedStore::create_at_once(&config, true, None).unwrap_err();
        assert!(matches!(exists, StoreError::Exists(_)), "{exists}");
    }

    #[test]
    fn free_pages_are_written_below_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig::at(&directory.path().join("store"));
        let mut store = EmbeddedStore::create(&config, true, None).unwrap();
        let len = config.file.metadata().unwrap().len();
        for (limit, is_written) in [(len + 1, true), (len, false), (0, false)] {
            store.quick_repair_bytes = limit;
            assert_eq!(store.saves_free_pages(), is_written, "{limit}");
        }
    }
}
