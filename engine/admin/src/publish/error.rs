//! Errors of publishing.

use super::check::CheckError;
use handle_daemon::server_key::ServerKeyError;
use handle_fleet::location::LocationError;
use handle_snapshot::SetError;
use handle_store::StoreError;
use std::fmt;

/// Why publishing failed. The published set stays, and changes wait in the store.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// The store cannot be read.
    Store(StoreError),
    /// The layer or the set cannot be written, or is incomplete.
    Set(SetError),
    /// The check refused the set.
    Check(CheckError),
    /// The key that signs sets cannot be used.
    Key(Box<ServerKeyError>),
    /// The location to which sets are shipped cannot be used.
    Location(LocationError),
    /// The files of the directory cannot be read.
    Io(std::io::Error),
    /// Publishing is ending.
    Stopped,
    /// The command is not possible now.
    Refused(&'static str),
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Set(error) => error.fmt(f),
            Self::Check(error) => error.fmt(f),
            Self::Key(error) => write!(f, "`publish.key_file`: {error}"),
            Self::Location(error) => write!(f, "`publish.ship`: {error}"),
            Self::Io(error) => error.fmt(f),
            Self::Stopped => f.write_str("publishing is ending"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for PublishError {}

impl From<StoreError> for PublishError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<SetError> for PublishError {
    fn from(error: SetError) -> Self {
        Self::Set(error)
    }
}

impl From<CheckError> for PublishError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Stopped => Self::Stopped,
            error => Self::Check(error),
        }
    }
}

impl From<std::io::Error> for PublishError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}
