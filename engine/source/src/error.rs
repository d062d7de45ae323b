//! Why a source does not answer.

use std::fmt;

/// Why a source does not say what it knows about a handle. Texts are for operators: clients get the
/// kind only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceError {
    /// As many requests are in progress as are allowed.
    Busy,
    /// The source has failed repeatedly and is not asked for a while.
    Paused,
    /// There was no answer within the time limit.
    Late,
    /// The source cannot be reached, or the connection broke.
    Unreachable(String),
    /// The source answered that it cannot answer.
    Refused(String),
    /// Another transaction has changed the same record.
    Conflict,
    /// The answer exceeds a limit.
    TooLong,
    /// The answer breaks the contract: it is no record, or that of another handle.
    Invalid(String),
    /// This process stops.
    Stopped,
}

impl SourceError {
    /// Whether the source did not answer at all. Enough of these in a row pause it. An answer that
    /// breaks the contract does not count: whoever asks for one broken record could pause the
    /// source for all.
    #[must_use]
    pub const fn is_silence(&self) -> bool {
        matches!(self, Self::Late | Self::Unreachable(_))
    }

    /// Whether the same request may succeed soon.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Busy | Self::Paused | Self::Late | Self::Unreachable(_) | Self::Conflict | Self::Stopped
        )
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("as many requests are in progress as `outstanding` allows"),
            Self::Paused => f.write_str("it has failed repeatedly and is paused"),
            Self::Late => f.write_str("no answer within `timeout_ms`"),
            Self::Unreachable(why) => write!(f, "cannot be reached: {why}"),
            Self::Refused(why) => write!(f, "refused to answer: {why}"),
            Self::Conflict => f.write_str("another transaction has changed the same record"),
            Self::TooLong => f.write_str("the answer is longer than 1 MiB, or no record can be so long"),
            Self::Invalid(why) => write!(f, "the answer breaks the contract: {why}"),
            Self::Stopped => f.write_str("this process stops"),
        }
    }
}

impl std::error::Error for SourceError {}
