//! The guard of a change: conditions on the record, and the administrators that it keeps. Decided
//! like the change itself, so that in the writer no other change of the record comes in between.

use super::{
    DecisionCase, DecisionEnd, DecisionResult, OperationAnswer, OperationDecision, OperationRefusal,
    Requester, StoreWrite,
};
use crate::permission::is_admin;
use handle_daemon::record_tag::record_tag;
use handle_proto::{ResponseCode, Value, Values};
use handle_store::{StoreError, StoreRecords, key};
use std::collections::BTreeSet;

const EXISTS: OperationRefusal = OperationRefusal::new(
    ResponseCode::CONDITION_FAILED,
    "The handle exists, and the request is conditional on its absence",
);
const IS_OTHER: OperationRefusal = OperationRefusal::new(
    ResponseCode::CONDITION_FAILED,
    "The record is not in a state that the conditions of the request name",
);
const ORPHAN: OperationRefusal = OperationRefusal::new(
    ResponseCode::INVALID_VALUE,
    "The change would remove the last HS_ADMIN value; with allow_orphans it is made all the same",
);

impl<R: StoreRecords> DecisionCase<'_, R> {
    /// Refuses what has been decided if the guard of the request does not admit it. The refusal of
    /// a requester without the right comes first, and so does the proof of a claimed identity: the
    /// writer checks the guard of its changes.
    pub(super) fn check_guard(&self, decision: OperationDecision) -> DecisionResult {
        let guard = &self.request.guard;
        if guard.is_none() {
            return Ok(decision);
        }
        if matches!(self.requester, Requester::Claimed(_)) {
            let succeeds = matches!(&decision, OperationDecision::Answer(answer) if !answer.is_refusal());
            return if succeeds { Err(DecisionEnd::Prove) } else { Ok(decision) };
        }
        let name = match &decision {
            OperationDecision::Change(writes, _) => match &writes[..] {
                [StoreWrite::Put(key, ..) | StoreWrite::Delete(key)] => key.clone(),
                _ => return Ok(decision),
            },
            OperationDecision::Answer(OperationAnswer::Created(handle, _)) => {
                key(handle, self.records.folds())
            }
            OperationDecision::Answer(OperationAnswer::Done(_)) => {
                key(self.request.request.handle().unwrap_or_default(), self.records.folds())
            }
            _ => return Ok(decision),
        };
        let record = self.records.record(&name)?;
        let before = record.as_ref().map_or(Values::EMPTY, |record| record.view().values);
        if guard.has_conditions() {
            let tag = record.as_ref().map(|_| record_tag(before.iter()));
            if !guard.admits(tag.as_ref()) {
                let forbids_it = guard.if_match.is_none() && record.is_some();
                return Err(if forbids_it { EXISTS } else { IS_OTHER }.into());
            }
        }
        if let (true, OperationDecision::Change(writes, _)) = (guard.keeps_admins, &decision)
            && let [StoreWrite::Put(_, count, bytes)] = &writes[..]
        {
            let after = Values::from_encoded(*count, bytes);
            let after = after.map_err(|_| StoreError::Damaged("values that were encoded before"))?;
            if has_admin(&before) && !has_admin(&after) {
                return Err(ORPHAN.into());
            }
        }
        Ok(decision)
    }

    /// The indexes of the HS_ADMIN values of a record that stay when `after` replaces its values:
    /// if the guard keeps administrators, those at indexes that `after` does not use, unless it
    /// has HS_ADMIN values of its own.
    pub(super) fn kept_admins(&self, before: &Values<'_>, after: &Values<'_>) -> BTreeSet<i32> {
        if !self.request.guard.keeps_admins || has_admin(after) {
            return BTreeSet::new();
        }
        let used: BTreeSet<i32> = after.iter().map(|value| value.index).collect();
        let kept = before.iter().filter(|value| is_admin(value.kind) && !used.contains(&value.index));
        kept.map(|value| value.index).collect()
    }
}

fn has_admin(values: &Values<'_>) -> bool {
    values.iter().any(|value: Value<'_>| is_admin(value.kind))
}
