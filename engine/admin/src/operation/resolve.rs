//! Resolution from the store, without the delay of publishing. RFC 3652 section 3.2.

use super::{
    DecisionCase, DecisionResult, NO_VALUES, NOT_FOUND, OperationAnswer, OperationDecision, OperationRefusal,
};
use crate::permission::{OperatorDuty, PermissionNeed, RecordAction};
use handle_proto::limit::{QUERY_COMPARISONS_MAX, VALUES_LEN_MAX};
use handle_proto::name::SITE_STATUS;
use handle_proto::wire::query::{Query, SortedQuery};
use handle_proto::{Handle, OpFlags, Permissions, ResponseCode, Value, fold};
use handle_store::StoreRecords;

const UNREADABLE: OperationRefusal = OperationRefusal::new(ResponseCode::INSUFFICIENT_PERMISSIONS, "");

impl<R: StoreRecords> DecisionCase<'_, R> {
    pub(super) fn resolve(&self, query: &Query<'_>) -> DecisionResult {
        let public_only = self.request.flags.has(OpFlags::PUBLIC_ONLY);
        if fold::eq(query.handle, SITE_STATUS) {
            if public_only {
                return Err(NO_VALUES.into());
            }
            self.hold(OperatorDuty::Status)?;
            return Ok(OperationDecision::Status);
        }
        let key = self.homed_key(query.handle)?;
        let Some(record) = self.records.record(&key)? else { return Err(NOT_FOUND.into()) };
        let record = record.view();
        let is_long = query.comparisons(record.values.len()) > QUERY_COMPARISONS_MAX;
        let sorted = is_long.then(|| SortedQuery::new(query));
        let selects = |value: &Value<'_>| match &sorted {
            Some(sorted) => sorted.selects(value),
            None => query.indexes.is_empty() && query.types.is_empty() || query.lists(value),
        };
        let selected = || record.values.iter().filter(selects);
        if !public_only {
            let hidden = selected().find(|value| !value.is_public());
            if hidden.is_some_and(|value| !value.permissions.has(Permissions::ADMIN_READ)) {
                return Err(UNREADABLE.into());
            }
            // In a session, the identity always matters.
            if hidden.is_some() || (self.request.in_session && selected().next().is_some()) {
                self.permit(
                    &PermissionNeed::of([RecordAction::Read], Handle(&key), self.records.folds()).into(),
                )?;
            }
        }
        let may_show = |value: &Value<'_>| {
            value.is_public() || (!public_only && value.permissions.has(Permissions::ADMIN_READ))
        };
        let (count, bytes) = super::encoded(selected().filter(may_show));
        if count == 0 {
            let nothing = public_only || selected().next().is_none();
            return Err(if nothing { NO_VALUES } else { UNREADABLE }.into());
        }
        if bytes.len() > VALUES_LEN_MAX {
            let text = "The values do not fit into an answer; ask by index or type.";
            return Err(OperationRefusal::new(ResponseCode::PROTOCOL_ERROR, text).into());
        }
        Ok(OperationDecision::Answer(OperationAnswer::Values(query.handle.to_vec(), count, bytes)))
    }
}
