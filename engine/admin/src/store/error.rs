//! Why the store does not do something.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Why the store does not do something.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such file.
    Missing(PathBuf),
    /// There is a file already.
    Exists(PathBuf),
    /// Another process has it open.
    Locked(PathBuf),
    /// The file may not be read and written, or the disk does not do it.
    Unopened {
        /// The file.
        file: PathBuf,
        /// Why.
        error: Box<redb::Error>,
    },
    /// The file is not whole, or no store.
    Broken {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It was made by newer software.
    Newer {
        /// What the file has.
        found: u64,
        /// What we know.
        known: u64,
    },
    /// It is no store of ours, or what is stored contradicts itself.
    Damaged(&'static str),
    /// The thread that writes cannot be started.
    NoThread(io::Error),
    /// As many changes as may wait do so.
    Busy,
    /// The writer has failed before; nothing is changed until the store is opened again.
    Failed,
    /// The file could not be read or written.
    Database(Box<redb::Error>),
}

impl StoreError {
    /// Whether nothing can be read or written any more.
    pub(super) const fn is_fatal(&self) -> bool {
        matches!(self, Self::Database(_) | Self::Broken { .. } | Self::Failed)
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
            Self::Exists(path) => write!(f, "there is a file {} already; it stays as it is", path.display()),
            Self::Locked(path) => write!(
                f,
                "another process has the store {} open: is handle-admin running? `fuser {}` tells",
                path.display(),
                path.display()
            ),
            Self::Unopened { file, error } => {
                let file = file.display();
                write!(f, "cannot open the store {file} (who may: ls -l {file}): {error}")
            }
            Self::Broken { file, what } => write!(
                f,
                "the store {} is damaged ({what}): if `hdl store check` says so as well, move it away, and make it again \
                 from a backup or from the published set (hdl export, hdl import --create)",
                file.display()
            ),
            Self::Newer { found, known } => {
                write!(f, "the store has schema {found}, and this program knows {known}: use a newer one")
            }
            Self::Damaged(what) => write!(f, "the store is damaged: {what}; `hdl store check` tells more"),
            Self::NoThread(error) => {
                write!(f, "no thread for the store can be started (may there be more: ulimit -u): {error}")
            }
            Self::Busy => f.write_str("too many changes wait to be written"),
            Self::Failed => {
                f.write_str("a change could not be written before, so the store has to be opened again")
            }
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
