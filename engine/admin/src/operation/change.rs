//! Adding, removing and replacing values. RFC 3652 section 3.6.

use super::create::{conflict, duplicate};
use super::{
    DecisionCase, DecisionEnd, DecisionResult, NO_VALUES, NOT_FOUND, OperationAnswer, OperationDecision,
    OperationRefusal, Requester, StoreWrite, WriteEffect,
};
use crate::permission::{ActionRequirement, PermissionNeed, RecordAction, is_admin};
use handle_proto::wire::list::Indexes;
use handle_proto::{Handle, OpFlags, Permissions, ResponseCode, Value, Values};
use handle_store::{RecordBuf, StoreRecords};
use std::collections::{BTreeMap, BTreeSet};

impl<R: StoreRecords> DecisionCase<'_, R> {
    pub(super) fn add(&self, handle: &[u8], values: Values<'_>) -> DecisionResult {
        let key = self.homed_key(handle)?;
        if values.is_empty() {
            return Err(OperationRefusal::new(ResponseCode::INVALID_VALUE, "Value list was empty").into());
        }
        self.check_new(&values)?;
        self.challenge_strangers()?;
        let record = self.existing(&key)?;
        let stored = record.view().values;
        let there = by_index(&stored);
        // Only differences from the stored values count as changes; all other stored values stay
        // untouched.
        let new = by_index(&values);
        let (mut buffer, mut open_buffer) = (Vec::new(), Vec::new());
        let touched = stored.iter().filter(|value| new.contains_key(&value.index));
        let touched = Values::build(touched, &mut buffer);
        let open = Values::build(touched.iter().filter(is_open), &mut open_buffer);
        let mut reads_hidden = true;
        if open.len() < values.len() {
            let actions = ValueDifference::compare(&open, &values, true).actions;
            reads_hidden = self.hidden_values(&key, &self.requirement(&key, actions))?;
        }
        let overwrites = self.request.flags.has(OpFlags::OVERWRITE);
        let taken = values.iter().find(|value| !overwrites && there.contains_key(&value.index));
        if let Some(value) = taken {
            return Err(conflict(ResponseCode::VALUE_ALREADY_EXISTS, value.index).into());
        }
        let difference = ValueDifference::compare(&touched, &values, reads_hidden);
        self.permit(&self.requirement(&key, difference.actions))?;
        let effect = WriteEffect { changed: difference.is_any, replaced: !touched.is_empty() };
        if !difference.is_any {
            return Ok(OperationDecision::Answer(OperationAnswer::Done(effect)));
        }
        let mut merged = merge(stored, values, self.request.now_unix_s, |_| true);
        merged.sort_by_key(|value| value.index);
        self.put(key, &merged, effect)
    }

    pub(super) fn remove(&self, handle: &[u8], indexes: Indexes<'_>) -> DecisionResult {
        let key = self.homed_key(handle)?;
        self.challenge_strangers()?;
        let record = self.existing(&key)?;
        let stored = record.view().values;
        // The list may name the same value tens of thousands of times.
        let (named, there): (BTreeSet<i32>, _) = (indexes.iter().collect(), by_index(&stored));
        let open = |index: &i32| there.get(index).filter(|value| is_open(value));
        if !named.iter().all(|index| open(index).is_some()) {
            let action = |index| open(index).map_or(RecordAction::RemoveValue, |value| removing(value.kind));
            self.hidden_values(&key, &self.requirement(&key, named.iter().map(action).collect()))?;
        }
        if named.iter().any(|index| !there.contains_key(index)) {
            return Err(NO_VALUES.into());
        }
        let (gone, kept): (Vec<_>, Vec<_>) = stored.iter().partition(|value| named.contains(&value.index));
        // Removing nothing still requires the right to remove values.
        let mut actions: Vec<RecordAction> = gone.iter().map(|value| removing(value.kind)).collect();
        if actions.is_empty() {
            actions.push(RecordAction::RemoveValue);
        }
        self.permit_actions(&key, actions)?;
        if gone.is_empty() {
            return Ok(OperationDecision::Answer(OperationAnswer::Done(WriteEffect::NONE)));
        }
        self.put(key, &kept, WriteEffect::CHANGED)
    }

    pub(super) fn modify(&self, handle: &[u8], values: Values<'_>) -> DecisionResult {
        let key = self.homed_key(handle)?;
        let record = self.existing(&key)?;
        let stored = record.view().values;
        let there = by_index(&stored);
        let (mut actions, mut is_checked) = (Vec::new(), false);
        for value in values.iter() {
            let before = there.get(&value.index);
            if !is_checked && !before.is_some_and(is_open) {
                self.hidden_values(&key, &self.requirement(&key, open_modifications(&there, &values)))?;
                is_checked = true;
            }
            let Some(before) = before else {
                return Err(NO_VALUES.into());
            };
            if !before.permissions.has(Permissions::ADMIN_WRITE) {
                let code = ResponseCode::INSUFFICIENT_PERMISSIONS;
                return Err(OperationRefusal::new(code, "Value is read-only").into());
            }
            if !may_everybody_write(before, value.kind) {
                // Checked value by value, as deployed servers do, so that an anonymous client
                // learns nothing about the values that follow.
                self.challenge_strangers()?;
                actions.push(RecordAction::modifying(before, value.kind));
            }
        }
        if let Some(index) = duplicate(&values) {
            return Err(conflict(ResponseCode::INVALID_VALUE, index).into());
        }
        if values.is_empty() {
            // Modifying nothing still requires the right to modify: without it, anybody could fill
            // the audit log.
            self.permit_actions(&key, vec![RecordAction::ModifyValue])?;
            return Ok(OperationDecision::Answer(OperationAnswer::Done(WriteEffect::NONE)));
        }
        if !actions.is_empty() {
            self.permit_actions(&key, actions)?;
        }
        self.put(key, &merge_all(stored, values, self.request.now_unix_s), WriteEffect::CHANGED)
    }

    /// Checks that the requester may learn about hidden values of the record: whether they exist,
    /// and whether they equal a guess. Returns true if the requester may read them, and false if
    /// the requester only has the right to write them, as `requirement` states.
    ///
    /// `requirement` must depend on nothing but the request and the open values, so that a refusal
    /// reveals nothing about hidden values. A claimed identity has to be proven first, because
    /// later refusals may reveal something.
    pub(super) fn hidden_values(
        &self,
        key: &[u8],
        requirement: &ActionRequirement,
    ) -> Result<bool, DecisionEnd> {
        let read = PermissionNeed::of([RecordAction::Read], Handle(key), self.records.folds());
        let may_read = match self.permit(&read.into()) {
            Ok(()) => true,
            Err(DecisionEnd::Refuse(_)) => false,
            Err(stop) => return Err(stop),
        };
        if !may_read {
            self.permit(requirement)?;
        }
        if matches!(self.requester, Requester::Claimed(_)) {
            return Err(DecisionEnd::Prove);
        }
        Ok(may_read)
    }

    /// The rights required for all of `actions`; if there are none, a proven identity is enough.
    fn requirement(&self, key: &[u8], actions: Vec<RecordAction>) -> ActionRequirement {
        match actions.is_empty() {
            true => ActionRequirement::identity(),
            false => PermissionNeed::of(actions, Handle(key), self.records.folds()).into(),
        }
    }

    fn existing(&self, key: &[u8]) -> Result<RecordBuf, DecisionEnd> {
        self.records.record(key)?.ok_or_else(|| NOT_FOUND.into())
    }

    fn challenge_strangers(&self) -> Result<(), DecisionEnd> {
        if matches!(self.requester, Requester::Unidentified) { Err(DecisionEnd::Challenge) } else { Ok(()) }
    }

    fn permit_actions(&self, key: &[u8], actions: Vec<RecordAction>) -> Result<(), DecisionEnd> {
        self.permit(&PermissionNeed::of(actions, Handle(key), self.records.folds()).into())
    }

    fn put(&self, key: Vec<u8>, values: &[Value<'_>], effect: WriteEffect) -> DecisionResult {
        let (count, bytes) = self.fitting(values)?;
        Ok(OperationDecision::Change(vec![StoreWrite::Put(key, count, bytes)], OperationAnswer::Done(effect)))
    }
}

/// The differences between the values of a record and the values that are to replace them.
#[derive(Debug)]
pub(super) struct ValueDifference {
    /// The actions that turn the old values into the new ones, as far as they require a right.
    pub(super) actions: Vec<RecordAction>,
    /// Whether anything other than timestamps differs.
    pub(super) is_any: bool,
}

impl ValueDifference {
    /// Compares two records. Without `reads_hidden`, a hidden value requires the right to modify it
    /// even if it stays the same, so that its content cannot be found out by guessing.
    pub(super) fn compare(before: &Values<'_>, after: &Values<'_>, reads_hidden: bool) -> Self {
        let (old, new) = (by_index(before), by_index(after));
        let (mut actions, mut is_any) = (Vec::new(), false);
        for value in old.values().filter(|value| !new.contains_key(&value.index)) {
            is_any = true;
            actions.push(removing(value.kind));
        }
        for value in new.values() {
            let Some(before) = old.get(&value.index) else {
                is_any = true;
                actions.push(adding(value.kind));
                continue;
            };
            let is_same = is_unchanged(before, value);
            is_any |= !is_same;
            let needs_none = is_same && (reads_hidden || is_open(before));
            if !needs_none && !may_everybody_write(before, value.kind) {
                actions.push(RecordAction::modifying(before, value.kind));
            }
        }
        Self { actions, is_any }
    }
}

/// The actions of modifying `values`, judged only by the open values of the record. Any other value
/// counts as one that is not an administrator.
fn open_modifications(there: &BTreeMap<i32, Value<'_>>, values: &Values<'_>) -> Vec<RecordAction> {
    let action = |value: Value<'_>| match there.get(&value.index).filter(|before| is_open(before)) {
        Some(before) if may_everybody_write(before, value.kind) => None,
        Some(before) => Some(RecordAction::modifying(before, value.kind)),
        None if is_admin(value.kind) => Some(RecordAction::ValueToAdmin),
        None => Some(RecordAction::ModifyValue),
    };
    values.iter().filter_map(action).collect()
}

/// Whether a value is not secret: everybody may read it or replace it.
pub(super) fn is_open(value: &Value<'_>) -> bool {
    value.is_public() || may_everybody_write(value, value.kind)
}

/// Values by index. Indexes are unique within a record.
pub(super) fn by_index<'v>(values: &Values<'v>) -> BTreeMap<i32, Value<'v>> {
    values.iter().map(|value| (value.index, value)).collect()
}

/// Whether replacing `before` with a value of type `kind` requires no right.
fn may_everybody_write(before: &Value<'_>, kind: &[u8]) -> bool {
    before.permissions.has(Permissions::PUBLIC_WRITE) && !is_admin(before.kind) && !is_admin(kind)
}

fn adding(kind: &[u8]) -> RecordAction {
    if is_admin(kind) { RecordAction::AddAdmin } else { RecordAction::AddValue }
}

fn removing(kind: &[u8]) -> RecordAction {
    if is_admin(kind) { RecordAction::RemoveAdmin } else { RecordAction::RemoveValue }
}

/// Whether two values are stored identically except for their timestamps.
fn is_unchanged(before: &Value<'_>, after: &Value<'_>) -> bool {
    stored(before, 0) == stored(after, 0)
}

/// A value as it is stored at `now_unix_s`, without undefined permission bits.
const fn stored<'v>(value: &Value<'v>, now_unix_s: u32) -> Value<'v> {
    Value { timestamp: now_unix_s, permissions: value.permissions.known(), ..*value }
}

/// The values of `before` for which `keeps` is true, each replaced by the value of `after` with the
/// same index, followed by the values of `after` with new indexes. New and changed values get the
/// timestamp `now_unix_s`.
pub(super) fn merge<'v>(
    before: Values<'v>,
    after: Values<'v>,
    now_unix_s: u32,
    keeps: impl Fn(i32) -> bool,
) -> Vec<Value<'v>> {
    let mut new = by_index(&after);
    let kept = before.iter().filter(|value| keeps(value.index));
    let mut merged: Vec<Value<'v>> = kept
        .map(|value| match new.remove(&value.index) {
            Some(after) if !is_unchanged(&value, &after) => stored(&after, now_unix_s),
            _ => value,
        })
        .collect();
    let added = after.iter().filter(|value| new.contains_key(&value.index));
    merged.extend(added.map(|value| stored(&value, now_unix_s)));
    merged
}

/// The values of `before`, each replaced by the value of `after` with the same index. A replaced
/// value gets the timestamp `now_unix_s` even if it is unchanged.
fn merge_all<'v>(before: Values<'v>, after: Values<'v>, now_unix_s: u32) -> Vec<Value<'v>> {
    let new = by_index(&after);
    let replaced = |value: Value<'v>| match new.get(&value.index) {
        Some(after) => stored(after, now_unix_s),
        None => value,
    };
    before.iter().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<'v>(value: Value<'v>, buffer: &'v mut Vec<u8>) -> Values<'v> {
        Values::build([value], buffer)
    }

    #[test]
    fn undefined_permission_bits_are_neither_stored_nor_a_change() {
        let plain = Value { timestamp: 5, ..Value::new(1, b"URL", b"http://a") };
        let executable = Value { permissions: Permissions(0xfe), timestamp: 9, ..plain };
        let (mut before, mut after) = (vec![], vec![]);
        let (before, after) = (list(plain, &mut before), list(executable, &mut after));
        assert_eq!(merge(Values::EMPTY, after, 7, |_| true), [Value { timestamp: 7, ..plain }], "new");
        assert_eq!(merge_all(before, after, 7), [Value { timestamp: 7, ..plain }], "replaced");
        assert_eq!(merge(before, after, 7, |_| true), [plain], "the same");
        assert!(!ValueDifference::compare(&before, &after, true).is_any);
        let mut other = vec![];
        let other = list(Value { permissions: Permissions(0xfc), ..plain }, &mut other);
        assert!(ValueDifference::compare(&before, &other, true).is_any);
        let private = Value { permissions: Permissions(0x0c), timestamp: 7, ..plain };
        assert_eq!(merge(before, other, 7, |_| true), [private]);
    }

    #[test]
    fn a_hidden_value_that_stays_the_same_takes_a_right_from_who_may_not_read_it() {
        let of = |permissions| Value { permissions: Permissions(permissions), ..Value::new(1, b"URL", b"x") };
        let (admin_read_write, public_read, public_write) = (0x0c, 0x0e, 0x0d);
        for (permissions, reads_hidden, takes_right) in [
            (admin_read_write, false, true),
            (admin_read_write, true, false),
            (public_read, false, false),
            (public_write, false, false),
        ] {
            let (mut before, mut after) = (vec![], vec![]);
            let (before, after) = (list(of(permissions), &mut before), list(of(permissions), &mut after));
            let compared = ValueDifference::compare(&before, &after, reads_hidden);
            assert!(!compared.is_any, "{permissions:x}");
            assert_eq!(!compared.actions.is_empty(), takes_right, "{permissions:x} {reads_hidden}");
        }
    }
}
