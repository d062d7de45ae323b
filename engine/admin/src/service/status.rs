//! The state of the server, as an answer of the handle protocol.

use super::AdminService;
use super::decide::Decider;
use crate::operation::OperationAnswer;
use handle_proto::{Permissions, Value};
use handle_store::StoreError;

impl AdminService {
    /// Reports the state of the server.
    pub(super) fn status(&self, decider: &Decider<'_, '_>) -> Result<OperationAnswer, StoreError> {
        let (requests, ms) = (self.counters.requests.sum(), self.proof.now_ms());
        let server = format!("runtime={ms}; numreqs={requests}");
        let replication = format!("{{\"latestTxnId\":{}}}", decider.snapshot.last_id()?);
        let texts: [(i32, &[u8], &str); 2] =
            [(1, b"CNRI.SERVER_STATUS", &server), (3, b"CNRI.REPLICATION_STATUS", &replication)];
        let mut bytes = Vec::new();
        for (index, kind, text) in texts {
            let value = Value::new(index, kind, text.as_bytes());
            Value { permissions: Permissions::ADMIN_READ, ..value }.encode(&mut bytes);
        }
        let handle = decider.request.request.handle().unwrap_or_default().to_vec();
        Ok(OperationAnswer::Values(handle, texts.len(), bytes))
    }
}
