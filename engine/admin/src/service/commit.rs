//! Step 4: the change that was decided, made durable by the writer of the store.

use super::case::RequestCase;
use super::open::open;
use super::{AdminService, hidden};
use crate::operation::{OperationAnswer, OperationDecision, OperationRefusal, Requester, StoreWrite, decide};
use crate::permission::view::RemoteFacts;
use crate::sourced::{NOT_GATHERED, SourceFacts, SourcedRecords};
use handle_proto::wire::list::Reference;
use handle_proto::{ResponseCode, Values};
use handle_store::{StoreError, Transaction};

impl AdminService {
    /// Has the writer decide again, on the state of the store at that time and under the rules in
    /// force, and make the changes. Blocks until they are durable.
    pub(super) fn commit(
        &self,
        case: &RequestCase<'_>,
        requester: Requester<'_>,
        (facts, source_facts): (RemoteFacts, SourceFacts),
    ) -> Result<OperationAnswer, StoreError> {
        let (in_force, message) = (self.in_force(), hidden(case.message));
        let (random, now_unix_s, version) = (case.random, case.now_unix_s, case.to.version());
        let identity = match requester {
            Requester::Is(identity) => Some((identity.index, identity.handle.to_vec())),
            Requester::Unidentified | Requester::FullAccess | Requester::Claimed(_) => None,
        };
        let is_anyone = matches!(requester, Requester::FullAccess);
        self.store.change(move |transaction| {
            let opened = open(&message).map_err(|_| StoreError::Damaged("a request that was read before"))?;
            let request = opened.operation_request(version, random, now_unix_s);
            let requester = match &identity {
                Some((index, handle)) => Requester::Is(Reference { handle, index: *index }),
                None if is_anyone => Requester::FullAccess,
                None => Requester::Unidentified,
            };
            let records = SourcedRecords::new(&*transaction, &source_facts);
            let decision = decide(&records, &in_force.rules, &request, requester, &facts)?;
            if source_facts.take_incomplete() {
                return Ok(OperationAnswer::Refused(NOT_GATHERED));
            }
            Ok(match decision {
                OperationDecision::Change(writes, answer) => {
                    writes.into_iter().try_for_each(|write| apply(transaction, write))?;
                    answer
                }
                OperationDecision::Answer(answer) => answer,
                // Values that were public have become hidden since, and the requester was never
                // authenticated.
                _ => {
                    let text = "The handle was changed meanwhile; ask again.";
                    OperationAnswer::Refused(OperationRefusal::new(ResponseCode::SERVER_BUSY, text))
                }
            })
        })
    }
}

/// Carries out one write of a decision within `transaction`.
///
/// # Errors
/// When the store refuses it.
pub(super) fn apply(transaction: &mut Transaction<'_>, write: StoreWrite) -> Result<(), StoreError> {
    match write {
        StoreWrite::Put(key, count, bytes) => {
            let values = Values::from_encoded(count, &bytes);
            transaction.put(&key, values.map_err(|_| StoreError::Damaged("values that were encoded before"))?)
        }
        StoreWrite::Delete(key) => transaction.delete(&key).map(|_| ()),
        StoreWrite::Home(prefix) => transaction.home(&prefix).map(|_| ()),
        StoreWrite::Unhome(prefix) => transaction.unhome(&prefix).map(|_| ()),
    }
}
