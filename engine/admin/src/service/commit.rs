//! Step 4: the change that was decided, made durable by the writer of the store.

use super::case::RequestCase;
use super::open::open;
use super::{AdminService, hidden};
use crate::operation::{OperationAnswer, OperationDecision, OperationRefusal, Requester, StoreWrite};
use crate::permission::view::RemoteFacts;
use crate::sourced::{
    ChangeDestination, NO_EMPTY_RECORDS, NOT_GATHERED, READ_ONLY_SOURCE, SourceFacts, SourcedRecords,
    source_refusal,
};
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, ResponseCode, Values};
use handle_source::{GuardedSource, SourceChange};
use handle_store::{RecordBuf, StoreError, Transaction};
use std::sync::Arc;

impl AdminService {
    /// Makes the change that was decided on, where its record is.
    pub(super) fn make_change(
        &self,
        case: &RequestCase<'_>,
        requester: Requester<'_>,
        writes: &[StoreWrite],
        facts: RemoteFacts,
        source_facts: SourceFacts,
    ) -> Result<OperationAnswer, StoreError> {
        let [StoreWrite::Put(key, ..) | StoreWrite::Delete(key)] = writes else {
            return self.commit(case, requester, facts, source_facts);
        };
        match source_facts.destination_of_change(key) {
            ChangeDestination::Store => self.commit(case, requester, facts, source_facts),
            ChangeDestination::Nowhere => Ok(OperationAnswer::Refused(READ_ONLY_SOURCE)),
            ChangeDestination::Source(source) => {
                self.commit_at_source(source, key, case, requester, &facts, &source_facts)
            }
        }
    }

    /// Has `source` make the change of the record of `key`, decided again on a state that
    /// does not change meanwhile. Blocks until it is durable.
    fn commit_at_source(
        &self,
        source: &GuardedSource,
        key: &[u8],
        case: &RequestCase<'_>,
        requester: Requester<'_>,
        facts: &RemoteFacts,
        source_facts: &SourceFacts,
    ) -> Result<OperationAnswer, StoreError> {
        let (in_force, snapshot) = (self.decision.in_force(), self.store.snapshot()?);
        let request = case.operation_request();
        let mut decided = Ok(OperationAnswer::Refused(CHANGED_MEANWHILE));
        let made = source.change(key, &mut |record| {
            let facts_now = source_facts.with(key, record);
            let records = SourcedRecords::new(&snapshot, &facts_now);
            let decision = self.decision.decide(&records, &in_force.rules, &request, requester, facts);
            let (change, answer) = match decision {
                Ok(_) if facts_now.take_incomplete() => {
                    (SourceChange::Keep, Ok(OperationAnswer::Refused(NOT_GATHERED)))
                }
                Ok(OperationDecision::Change(writes, answer)) => source_change(writes, answer),
                Ok(OperationDecision::Answer(answer)) => (SourceChange::Keep, Ok(answer)),
                Ok(_) => (SourceChange::Keep, Ok(OperationAnswer::Refused(CHANGED_MEANWHILE))),
                Err(error) => (SourceChange::Keep, Err(error)),
            };
            decided = answer;
            change
        });
        match made {
            Ok(()) => decided,
            Err(error) => {
                tracing::warn!(source = source.name(), %error, "a source of records has not made a change");
                Ok(OperationAnswer::Refused(source_refusal(&error)))
            }
        }
    }

    /// Has the writer decide again, on the state of the store at that time and under the rules in
    /// force, and make the changes. Blocks until they are durable.
    pub(super) fn commit(
        &self,
        case: &RequestCase<'_>,
        requester: Requester<'_>,
        facts: RemoteFacts,
        source_facts: SourceFacts,
    ) -> Result<OperationAnswer, StoreError> {
        let (context, message) = (Arc::clone(&self.decision), hidden(case.message));
        let in_force = context.in_force();
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
            let decision = context.decide(&records, &in_force.rules, &request, requester, &facts)?;
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
                _ => OperationAnswer::Refused(CHANGED_MEANWHILE),
            })
        })
    }
}

/// The refusal if a decision would need more than the requester has shown.
const CHANGED_MEANWHILE: OperationRefusal =
    OperationRefusal::new(ResponseCode::SERVER_BUSY, "The handle was changed meanwhile; ask again.");

/// What `writes` are for a source, and the answer that goes with them.
fn source_change(
    writes: Vec<StoreWrite>,
    answer: OperationAnswer,
) -> (SourceChange, Result<OperationAnswer, StoreError>) {
    match writes.into_iter().next() {
        Some(StoreWrite::Put(_, 0, _)) => {
            (SourceChange::Keep, Ok(OperationAnswer::Refused(NO_EMPTY_RECORDS)))
        }
        Some(StoreWrite::Put(_, count, bytes)) => match Values::from_encoded(count, &bytes) {
            Ok(values) => (SourceChange::Put(RecordBuf::unlogged(values)), Ok(answer)),
            Err(_) => (SourceChange::Keep, Err(StoreError::Damaged("values that were encoded before"))),
        },
        Some(StoreWrite::Delete(_)) => (SourceChange::Delete, Ok(answer)),
        Some(StoreWrite::Home(_) | StoreWrite::Unhome(_)) | None => (SourceChange::Keep, Ok(answer)),
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
        StoreWrite::Home(record) => transaction.home(Handle(&record).homed_prefix()).map(|_| ()),
        StoreWrite::Unhome(record) => transaction.unhome(Handle(&record).homed_prefix()).map(|_| ()),
    }
}
