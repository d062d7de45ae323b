//! Why a set is not shipped or fetched.

use crate::store::FleetStoreError;
use handle_snapshot::set::SetError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a fetched manifest is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// It is not a manifest, or is damaged.
    Damaged,
    /// It is not signed, and a signature is required.
    Unsigned,
    /// It is not signed by an accepted publisher.
    Foreign,
    /// It is signed too far ahead of the clock of this machine.
    Ahead,
    /// It is older than the set in the directory, by epoch and generation.
    Older,
    /// It has the epoch and generation of the set in the directory, and another content.
    Conflicting,
}

/// Why a set is not fetched. The set in the directory stays.
#[derive(Debug)]
pub enum FetchError {
    /// Nothing is published at the source.
    NothingPublished,
    /// The source fails.
    Store(FleetStoreError),
    /// The manifest is refused: the reason, and the whole sentence.
    Refused(RefusalReason, String),
    /// A downloaded layer is not the one that the manifest names, or is damaged: its file, and the
    /// fault.
    Layer(String, String),
    /// The directory cannot be written.
    Set(SetError),
    /// A file in the directory cannot be written.
    File(PathBuf, io::Error),
    /// The process is to stop.
    Stopped,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingPublished => f.write_str(
                "nothing is published at the source: it has no MANIFEST (ship a set there: hdl ship SET URL)",
            ),
            Self::Store(error) => error.fmt(f),
            Self::Refused(_, why) => write!(f, "the manifest at the source is refused: {why}"),
            Self::Layer(file, fault) => write!(f, "the layer {file} at the source is refused: {fault}"),
            Self::Set(error) => error.fmt(f),
            Self::File(path, error) => write!(f, "cannot write {}: {error}", path.display()),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

/// Without a source, because the text includes it already.
impl std::error::Error for FetchError {}

impl From<FleetStoreError> for FetchError {
    fn from(error: FleetStoreError) -> Self {
        Self::Store(error)
    }
}

impl From<SetError> for FetchError {
    fn from(error: SetError) -> Self {
        Self::Set(error)
    }
}

/// Why a set is not shipped.
#[derive(Debug)]
pub enum ShipError {
    /// The store fails.
    Store(FleetStoreError),
    /// The store ignores the conditions of writes: how it does.
    NoConditions(&'static str),
    /// Another publisher has published in the store.
    Fenced {
        /// Epoch of its set.
        epoch: u64,
        /// Generation of its set.
        generation: u64,
        /// Epoch of the set that was to be shipped.
        ours: u64,
    },
    /// The store has a later set of this publisher.
    Older {
        /// Generation of the set in the store.
        shipped: u64,
        /// Generation of the set that was to be shipped.
        found: u64,
    },
    /// The MANIFEST in the store is damaged: its fault.
    Damaged(String),
    /// The set cannot be read.
    Set(SetError),
    /// The record of what was shipped cannot be read or written.
    Record(PathBuf, io::Error),
}

impl fmt::Display for ShipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::NoConditions(how) => write!(
                f,
                "the store ignores preconditions of writes ({how}), so two publishers could overwrite \
                 each other's sets; use a store that supports If-Match and If-None-Match"
            ),
            Self::Fenced { epoch, generation, ours } => write!(
                f,
                "another publisher has shipped generation {generation} of epoch {epoch}; the set here has \
                 epoch {ours}. Shipping stops. If this publisher is to take over, stop the other one and \
                 raise the epoch: `hdl ship --take-over`"
            ),
            Self::Older { shipped, found } => write!(
                f,
                "the store has generation {shipped} of this publisher, and the set here is generation \
                 {found}: was it restored from a backup? `hdl ship --take-over` ships it as a new epoch"
            ),
            Self::Damaged(fault) => write!(
                f,
                "the MANIFEST in the store is damaged ({fault}); remove it, or ship to another place"
            ),
            Self::Set(error) => error.fmt(f),
            Self::Record(path, error) => {
                write!(f, "cannot use the record of what was shipped, {}: {error}", path.display())
            }
        }
    }
}

/// Without a source, because the text includes it already.
impl std::error::Error for ShipError {}

impl ShipError {
    /// Whether no later attempt can succeed without an operator.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::NoConditions(_) | Self::Fenced { .. } | Self::Older { .. })
    }
}

impl From<FleetStoreError> for ShipError {
    fn from(error: FleetStoreError) -> Self {
        Self::Store(error)
    }
}

impl From<SetError> for ShipError {
    fn from(error: SetError) -> Self {
        Self::Set(error)
    }
}
