//! Why a source cannot be copied now.

use handle_source::SourceError;
use handle_store::StoreError;
use std::fmt;

/// Why a source cannot be copied now.
#[derive(Debug)]
pub enum PullError {
    /// The source does not say.
    Source(SourceError),
    /// The store cannot be read or written.
    Store(StoreError),
    /// Another process has copied meanwhile.
    Superseded,
    /// The listing is longer than `pull.records`.
    TooManyRecords(usize),
    /// The listing has taken longer than six hours.
    SlowListing,
    /// A line was too long to find its handle, so it is not known what the source does not have.
    UnnamedRecords(u64),
    /// A page names no other cursor than the one before.
    NoProgress,
    /// The source did not say up to where the changes go.
    NoCursor,
}

impl PullError {
    /// The kinds, for metrics.
    pub const KINDS: [&'static str; 4] = ["source", "store", "superseded", "listing"];

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Source(_) | Self::NoProgress | Self::NoCursor => "source",
            Self::Store(_) => "store",
            Self::Superseded => "superseded",
            Self::TooManyRecords(_) | Self::SlowListing | Self::UnnamedRecords(_) => "listing",
        }
    }

    /// Whether waiting was ended because the process stops.
    #[must_use]
    pub const fn is_stop(&self) -> bool {
        matches!(self, Self::Source(SourceError::Stopped))
    }
}

impl fmt::Display for PullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Superseded => f.write_str("another process has copied the source meanwhile"),
            Self::TooManyRecords(most) => {
                write!(f, "the listing has more than {most} records (`pull.records`); nothing is deleted")
            }
            Self::SlowListing => f.write_str("the listing takes longer than six hours; nothing is deleted"),
            Self::UnnamedRecords(count) => write!(
                f,
                "the listing has {count} lines longer than 1 MiB that do not begin with their handle; \
                 nothing is deleted"
            ),
            Self::NoProgress => f.write_str("a page says that more follows, and names no new place"),
            Self::NoCursor => f.write_str("a page of changes names no place at its end"),
        }
    }
}

impl std::error::Error for PullError {}

impl From<SourceError> for PullError {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl From<StoreError> for PullError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
