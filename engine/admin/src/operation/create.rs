//! Creating and deleting handles. RFC 3652 section 3.6.

use super::change::{ValueDifference, by_index, is_open, merge};
use super::{
    DecisionCase, DecisionEnd, DecisionResult, NOT_FOUND, OperationAnswer, OperationDecision,
    OperationRefusal, StoreWrite, WriteEffect,
};
use crate::permission::{ActionRequirement, PermissionNeed, RecordAction};
use handle_proto::name::is_control;
use handle_proto::{Handle, OpFlags, ResponseCode, Value, Values};
use handle_store::StoreRecords;
use std::collections::BTreeSet;

impl<R: StoreRecords> DecisionCase<'_, R> {
    pub(super) fn create(&self, handle: &[u8], values: Values<'_>) -> DecisionResult {
        let minted;
        let handle = match self.request.flags.has(OpFlags::MINT_SUFFIX) {
            true => {
                minted = [handle, uuid(self.request.random).as_bytes()].concat();
                &minted
            }
            false => handle,
        };
        let key = self.homed_key(handle)?;
        self.check_name(handle)?;
        self.check_new(&values)?;
        let name = Handle(&key);
        let create = PermissionNeed::of([RecordAction::creating(name)], name, self.records.folds());
        let stored = self.records.record(&key)?;
        // The values that stay whatever the request names, and all others.
        let (mut kept, mut replaced, mut buffer) = (BTreeSet::new(), Values::EMPTY, Vec::new());
        let before = match &stored {
            None => {
                self.permit(&create.into())?;
                Values::EMPTY
            }
            Some(_) if !self.request.flags.has(OpFlags::OVERWRITE) => {
                return Err(OperationRefusal::new(ResponseCode::HANDLE_ALREADY_EXISTS, "").into());
            }
            Some(record) => {
                let before = record.view().values;
                kept = self.kept_admins(&before, &values);
                replaced = Values::build(before.iter().filter(|it| !kept.contains(&it.index)), &mut buffer);
                self.permit_overwriting(name, &replaced, &values, &create)?;
                before
            }
        };
        let changes = stored.is_none() || ValueDifference::compare(&replaced, &values, true).is_any;
        let effect = WriteEffect { changed: changes, replaced: stored.is_some() };
        let answer = OperationAnswer::Created(handle.to_vec(), effect);
        if !changes {
            // Nothing is written, so mirrors and resolvers have nothing to learn.
            return Ok(OperationDecision::Answer(answer));
        }
        let new = by_index(&values);
        let merged = merge(before, values, self.request.now_unix_s, |index| {
            kept.contains(&index) || new.contains_key(&index)
        });
        let (count, bytes) = self.fitting(&merged)?;
        Ok(OperationDecision::Change(vec![StoreWrite::Put(key, count, bytes)], answer))
    }

    pub(super) fn delete(&self, handle: &[u8]) -> DecisionResult {
        // Deleting also works after the prefix has been released, for cleaning up.
        let key = self.key(handle)?;
        self.refer(&key)?;
        if matches!(self.requester, super::Requester::Unidentified) {
            return Err(DecisionEnd::Challenge);
        }
        if self.records.record(&key)?.is_none() {
            return Err(NOT_FOUND.into());
        }
        self.permit(&PermissionNeed::of([RecordAction::Delete], Handle(&key), self.records.folds()).into())?;
        Ok(OperationDecision::Change(
            vec![StoreWrite::Delete(key)],
            OperationAnswer::Done(WriteEffect::CHANGED),
        ))
    }

    /// Refuses the request unless the requester may replace all values of a handle.
    ///
    /// The outcome must not reveal the existence or content of hidden values to a requester who may
    /// neither read nor write them. The request is therefore first judged by the open values alone,
    /// as if it changed something.
    fn permit_overwriting(
        &self,
        name: Handle<'_>,
        before: &Values<'_>,
        after: &Values<'_>,
        create: &PermissionNeed,
    ) -> Result<(), DecisionEnd> {
        let mut buffer = Vec::new();
        let open = Values::build(before.iter().filter(is_open), &mut buffer);
        let mut actions = ValueDifference::compare(&open, after, true).actions;
        if actions.is_empty() {
            actions.push(RecordAction::ModifyValue);
        }
        let may_read = self.hidden_values(name.0, &self.overwriting(name, &actions, create))?;
        let actions = ValueDifference::compare(before, after, may_read).actions;
        self.permit(&self.overwriting(name, &actions, create))
    }

    /// What replacing all values requires: the rights for each difference; or the right to add
    /// administrators, which could grant these rights; or the rights to delete and to create the
    /// handle. If no difference requires a right, a proven identity is enough.
    fn overwriting(
        &self,
        name: Handle<'_>,
        actions: &[RecordAction],
        create: &PermissionNeed,
    ) -> ActionRequirement {
        if actions.is_empty() {
            return ActionRequirement::identity();
        }
        let need = |actions: &[RecordAction]| {
            PermissionNeed::of(actions.iter().copied(), name, self.records.folds())
        };
        let mut alternatives =
            vec![vec![need(&[RecordAction::AddAdmin])], vec![need(&[RecordAction::Delete]), create.clone()]];
        if !actions.iter().any(|action| action.row().bits.has(RecordAction::AddAdmin.row().bits)) {
            alternatives.insert(0, vec![need(actions)]);
        }
        ActionRequirement(alternatives)
    }

    /// Checks that a new name is UTF-8, not too long, and free of control characters unless these
    /// are allowed.
    pub(super) fn check_name(&self, handle: &[u8]) -> Result<(), DecisionEnd> {
        let refuse = |text| Err(OperationRefusal::new(ResponseCode::INVALID_HANDLE, text).into());
        let Ok(name) = std::str::from_utf8(handle) else {
            return refuse("Invalid UTF8 encoding");
        };
        if !self.rules.bounds.control_characters && name.chars().any(is_control) {
            return refuse("The handle has a control character.");
        }
        self.check_handle_len(handle)
    }

    /// Checks that new values have positive, distinct indexes.
    pub(super) fn check_new(&self, values: &Values<'_>) -> Result<(), DecisionEnd> {
        if values.iter().any(|value| value.index < 1) {
            return Err(
                OperationRefusal::new(ResponseCode::INVALID_VALUE, "Value indexes must be positive").into()
            );
        }
        match duplicate(values) {
            Some(index) => Err(conflict(ResponseCode::VALUE_ALREADY_EXISTS, index).into()),
            None => Ok(()),
        }
    }

    /// The encodings of `values`, if they fit the bounds of the store.
    pub(super) fn fitting(&self, values: &[Value<'_>]) -> Result<(usize, Vec<u8>), DecisionEnd> {
        let bounds = &self.rules.bounds;
        let refuse = |text: String| {
            Err(OperationRefusal { code: ResponseCode::INVALID_VALUE, text: text.into() }.into())
        };
        if values.len() > bounds.values {
            return refuse(format!("A record has at most {} values.", bounds.values));
        }
        if let Some(value) = values.iter().find(|value| value.references.len() > bounds.references) {
            return refuse(format!("Value {} has more than {} references.", value.index, bounds.references));
        }
        let len: usize = values.iter().map(Value::encoded_len).sum();
        if len > bounds.record_bytes {
            return refuse(format!(
                "The record would have {len} bytes; at most {} fit into an answer.",
                bounds.record_bytes
            ));
        }
        Ok(super::encoded(values.iter().copied()))
    }
}

/// The first index that occurs twice.
pub(super) fn duplicate(values: &Values<'_>) -> Option<i32> {
    let mut seen = std::collections::HashSet::new();
    values.iter().map(|value| value.index).find(|&index| !seen.insert(index))
}

pub(super) fn conflict(code: ResponseCode, index: i32) -> OperationRefusal {
    OperationRefusal { code, text: format!("Index conflict for {index}").into() }
}

/// A random UUID, version 4, in lower case.
fn uuid(random: [u8; 16]) -> String {
    let mut bytes = random;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minted_names_are_random_uuids() {
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
