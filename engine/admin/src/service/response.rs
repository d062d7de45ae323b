//! A response before it is encoded.

use crate::operation::{Lister, OperationAnswer, OperationRefusal};
use crate::replication::stream::ReplicationStream;
use handle_auth::challenges::SessionChallenge;
use handle_proto::code::KeyExchangeMode;
use handle_proto::wire::list::Reference;
use handle_store::StoreSnapshot;
use std::sync::Arc;

/// A response that has not been encoded yet.
pub(super) enum PreparedResponse {
    Answer(OperationAnswer),
    List(Lister, Arc<StoreSnapshot>),
    /// A message that announces a stream, and the stream.
    Stream(Box<ReplicationStream>),
    /// A challenge: its number and its content.
    Challenge(i32, SessionChallenge),
    /// A new session: its number, and the data that its client gets.
    Session(i32, KeyExchangeMode, Vec<u8>),
    /// The message cannot be parsed; the answer does not tell which request it belongs to.
    Unreadable(OperationRefusal),
}

impl From<OperationAnswer> for PreparedResponse {
    fn from(answer: OperationAnswer) -> Self {
        Self::Answer(answer)
    }
}

impl From<OperationRefusal> for PreparedResponse {
    fn from(refused: OperationRefusal) -> Self {
        Self::Answer(OperationAnswer::Refused(refused))
    }
}

/// The identity behind a request.
#[derive(Clone, Copy)]
pub(super) enum RequestIdentity<'a> {
    /// No identity was given.
    Unidentified,
    /// The identity that the session has authenticated.
    Known(Reference<'a>),
    /// The identity that an answer to a challenge claims; the result shows whether it was proven.
    Claimed(Reference<'a>),
}
