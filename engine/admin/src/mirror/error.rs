//! Errors of following a primary.

use handle_client::administration::AskError;
use handle_client::replication::StreamError;
use handle_client::replication::connection::ReceiveError;
use handle_store::StoreError;
use std::fmt;

/// An error of following a primary.
#[derive(Debug)]
pub enum MirrorError {
    /// The primary does not answer, or its answer is not proven to be its own.
    Ask(AskError),
    /// The primary refuses the request, with this code and text.
    Refused(i32, String),
    /// The stream ended early, is damaged, or its sender has another key.
    Receive(ReceiveError),
    /// Items of the stream are in an order in which no primary sends them.
    Order(&'static str),
    /// The dump is older than what was received before, by its number and by its time.
    Replayed {
        /// The last transaction of the dump.
        txn_id: u64,
        /// The last transaction that has been applied.
        last_id: u64,
    },
    /// The stream is signed and not encrypted, so that items may have been left out.
    SignedStream,
    /// The mirror has been promoted, or the process stops.
    Stopped,
    /// Another process over the same database follows.
    Superseded,
    /// The store cannot be read or written.
    Store(StoreError),
}

impl MirrorError {
    /// All kinds, as in metrics.
    pub const KINDS: [&'static str; 7] =
        ["connection", "unproven", "refused", "damaged", "order", "replayed", "store"];

    /// The kind of the error, as in metrics; `None` if the end was requested.
    #[must_use]
    pub const fn kind(&self) -> Option<&'static str> {
        Some(match self {
            Self::Ask(AskError::Connect(_) | AskError::Lost(_) | AskError::Late) => "connection",
            Self::Receive(ReceiveError::Connection(_)) => "connection",
            Self::Ask(_)
            | Self::SignedStream
            | Self::Receive(ReceiveError::Tls | ReceiveError::Unencrypted) => "unproven",
            Self::Receive(ReceiveError::Stream(StreamError::Unprotected | StreamError::NoKey)) => "unproven",
            Self::Refused(..) => "refused",
            Self::Receive(ReceiveError::Stream(_)) => "damaged",
            Self::Order(_) => "order",
            Self::Replayed { .. } => "replayed",
            Self::Store(_) => "store",
            Self::Stopped | Self::Superseded => return None,
        })
    }
}

impl fmt::Display for MirrorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(error) => error.fmt(f),
            Self::Refused(code, text) => {
                let colon = if text.is_empty() { "" } else { ": " };
                write!(f, "the primary refuses the request with {code}{colon}{text}")
            }
            Self::Receive(error) => error.fmt(f),
            Self::Order(what) => write!(f, "the stream is out of order: {what}"),
            Self::Replayed { txn_id, last_id } => write!(
                f,
                "the dump has the transactions up to {txn_id}, but those up to {last_id} have been applied, and it is \
                 from before the last of them: it is a replay, or the primary has an older copy of its store and its \
                 clock was set back (to take this dump, give the entry in `mirror.primary` another `name`)"
            ),
            Self::SignedStream => f.write_str(
                "the stream is signed and not encrypted: an attacker on the network path could omit items (set \
                 `allow_signed_streams` to accept it)",
            ),
            Self::Stopped => f.write_str("stopped"),
            Self::Superseded => f.write_str("another process follows the primary"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MirrorError {}

impl From<StoreError> for MirrorError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<AskError> for MirrorError {
    fn from(error: AskError) -> Self {
        Self::Ask(error)
    }
}

impl From<ReceiveError> for MirrorError {
    fn from(error: ReceiveError) -> Self {
        Self::Receive(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_without_the_protection_that_is_asked_for_are_unproven() {
        for error in [
            MirrorError::SignedStream,
            MirrorError::Receive(ReceiveError::Unencrypted),
            MirrorError::Receive(ReceiveError::Tls),
            MirrorError::Receive(ReceiveError::Stream(StreamError::Unprotected)),
        ] {
            assert_eq!(error.kind(), Some("unproven"), "{error}");
        }
        assert!(MirrorError::SignedStream.to_string().contains("allow_signed_streams"));
    }
}
