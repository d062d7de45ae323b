//! Errors of the store.

use super::postgres::ServerError;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Why the store cannot do something.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The file does not exist.
    Missing(PathBuf),
    /// The file exists already.
    Exists(PathBuf),
    /// Another process has the file open.
    Locked(PathBuf),
    /// The file may not be read and written, or the disk reports an error.
    Unopened {
        /// The file.
        file: PathBuf,
        /// The error of the database.
        error: Box<redb::Error>,
    },
    /// The file is damaged or not a store.
    Broken {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file was made by newer software.
    Newer {
        /// The schema version of the file.
        found: u64,
        /// The newest schema version that this software knows.
        known: u64,
    },
    /// The file has a version of the format of redb that this software does not read.
    NewerFile {
        /// The file.
        file: PathBuf,
        /// The version of the file.
        found: u8,
        /// The version that this software reads.
        known: u8,
    },
    /// The file is not a store of this software, or its content is inconsistent.
    Damaged(&'static str),
    /// The writer thread cannot be started.
    NoThread(io::Error),
    /// The queue of changes is full.
    Busy,
    /// The store was moved, or is being moved: it takes no changes.
    Moved,
    /// The store is the copy of a move that is not finished.
    UnfinishedCopy(PathBuf),
    /// The copy of a move is that of another store.
    OtherCopy,
    /// The copy of a move has other rows than the store.
    CopyDiffers,
    /// The import that was interrupted had other records.
    OtherImport,
    /// The writer has failed; no change is possible until the store is opened again.
    Failed,
    /// The file could not be read or written.
    Database(Box<redb::Error>),
    /// A database server did not do what it was asked.
    Server(Box<ServerError>),
}

impl StoreError {
    /// Whether the error prevents all further reads and writes.
    pub(super) const fn is_fatal(&self) -> bool {
        matches!(self, Self::Database(_) | Self::Broken { .. } | Self::Failed | Self::Server(_))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => {
                write!(
                    f,
                    "there is no store {}: `hdl store create` makes an empty one, `hdl import --create` one from a backup",
                    path.display()
                )
            }
            Self::Exists(path) => {
                write!(f, "the store {} exists already and was not changed", path.display())
            }
            Self::Locked(path) => write!(
                f,
                "another process has the store {} open: is handle-admin running? (`fuser {}` shows which)",
                path.display(),
                path.display()
            ),
            Self::Unopened { file, error } => {
                let file = file.display();
                write!(f, "cannot open the store {file}: {error} (`ls -l {file}` shows who has access)")
            }
            Self::Broken { file, what } => write!(
                f,
                "the store {} is damaged ({what}): if `hdl store check` says so as well, move it away, and make it again \
                 from a backup or from the published set (hdl export, hdl import --create)",
                file.display()
            ),
            Self::Newer { found, known } => {
                write!(
                    f,
                    "the store has schema {found}, and this program supports {known}: use a newer program"
                )
            }
            Self::Damaged(what) => {
                write!(f, "the store is damaged: {what} (`hdl store check` lists all damage)")
            }
            Self::NoThread(error) => {
                write!(f, "cannot start a thread for the store: {error} (`ulimit -u` shows the limit)")
            }
            Self::Busy => f.write_str("too many changes wait to be written"),
            Self::Failed => {
                f.write_str("an earlier change could not be written, so the store has to be reopened")
            }
            Self::Server(error) => error.fmt(f),
            Self::Database(error) => {
                write!(f, "the store cannot be read or written: {error}")?;
                let is_full = |error: &io::Error| {
                    matches!(
                        error.kind(),
                        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
                    )
                };
                match &**error {
                    redb::Error::Io(error) if is_full(error) => {
                        f.write_str(" (is there room: df -h; ulimit -f)")
                    }
                    _ => Ok(()),
                }
            }
            Self::NewerFile { .. }
            | Self::Moved
            | Self::UnfinishedCopy(_)
            | Self::OtherCopy
            | Self::CopyDiffers
            | Self::OtherImport => self.fmt_work(f),
        }
    }
}

impl StoreError {
    /// Writes the errors of imports, moves and other versions.
    fn fmt_work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewerFile { file, found, known } => write!(
                f,
                "the file of the store {} has format {found}, and this program reads format {known}: use the program that \
                 wrote it, or a newer one",
                file.display()
            ),
            Self::Moved => f.write_str(
                "the store was moved and takes no changes: set `store` to the new place and restart handle-admin \
                 (`hdl store move` finishes a move that was interrupted at its end)",
            ),
            Self::UnfinishedCopy(path) => write!(
                f,
                "the store {} is the copy of a move that is not finished: `hdl store move` goes on with it",
                path.display()
            ),
            Self::OtherCopy => {
                f.write_str("the place has the unfinished copy of another store: remove it, or choose another place")
            }
            Self::CopyDiffers => f.write_str(
                "the copy differs from the store: remove it and move again (is something else writing to it?)",
            ),
            Self::OtherImport => f.write_str(
                "the import that was interrupted in this store had other records, or the same in another order: give the \
                 same input, or import without resuming",
            ),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::from(redb::Error::Io(error))
    }
}

macro_rules! from_database {
    ($($error:ty),*) => {
        $(impl From<$error> for StoreError {
            fn from(error: $error) -> Self {
                match error.into() {
                    redb::Error::PreviousIo => Self::Failed,
                    error => Self::Database(Box::new(error)),
                }
            }
        })*
    };
}

from_database!(
    redb::Error,
    redb::DatabaseError,
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError
);
