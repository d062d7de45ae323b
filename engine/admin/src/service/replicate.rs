//! Answers requests of mirrors for streams.

use super::AdminService;
use super::case::RequestCase;
use super::response::PreparedResponse;
use crate::operation::{OperationRefusal, Requester};
use crate::replication::{NoStream, StreamRequest};
use handle_daemon::clock::now_unix_ms;
use handle_proto::{Handle, ResponseCode};
use handle_store::StoreError;

const NOT_HERE: OperationRefusal = OperationRefusal::new(
    ResponseCode::OPERATION_NOT_SUPPORTED,
    "Transactions and records are sent over TCP at the interface for administration.",
);
const TOO_MANY_STREAMS: OperationRefusal =
    OperationRefusal::new(ResponseCode::SERVER_BUSY, "Too many mirrors are served; ask again later.");

impl AdminService {
    /// Begins the stream for an authorised request.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn begin_stream(
        &self,
        case: &RequestCase<'_>,
        requester: Requester<'_>,
    ) -> Result<PreparedResponse, StoreError> {
        let (Some(replication), Some(route)) = (&self.replication, case.stream_route) else {
            return Ok(NOT_HERE.into());
        };
        let identity = match requester {
            Requester::Is(identity) => format!("{}:{}", identity.index, Handle(identity.handle)),
            Requester::Unidentified | Requester::FullAccess | Requester::Claimed(_) => "anonymous".to_owned(),
        };
        let request = StreamRequest {
            request: case.opened.request,
            identity,
            version: case.to.version(),
            server_at: self.decision.site().server_at(),
            now_unix_ms: now_unix_ms(),
        };
        match replication.begin(&request, self.store.snapshot()?, route) {
            Ok(stream) => Ok(PreparedResponse::Stream(Box::new(stream))),
            Err(NoStream::Busy) => {
                self.counters.streams_refused.add();
                Ok(TOO_MANY_STREAMS.into())
            }
            Err(NoStream::Invalid(text)) => {
                Ok(OperationRefusal::new(ResponseCode::PROTOCOL_ERROR, text).into())
            }
            Err(NoStream::Store(error)) => Err(error),
        }
    }
}
