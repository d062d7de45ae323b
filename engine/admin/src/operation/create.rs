//! Creating and deleting handles. RFC 3652 section 3.6.

use super::change::{Difference, by_index, merge};
use super::{Answer, Case, Decided, Decision, NOT_FOUND, Refused, Stop, Write};
use crate::permission::{Deed, Need, Requirement};
use crate::store::Records;
use handle_proto::{Handle, OpFlags, ResponseCode, Value, Values};

impl<R: Records> Case<'_, R> {
    pub(super) fn create(&self, handle: &[u8], values: Values<'_>) -> Decided {
        let minted;
        let handle = match self.asked.flags.has(OpFlags::MINT_SUFFIX) {
            true => {
                minted = [handle, uuid(self.asked.random).as_bytes()].concat();
                &minted
            }
            false => handle,
        };
        let key = self.homed_key(handle)?;
        self.check_name(handle)?;
        self.check_new(&values)?;
        let name = Handle(&key);
        let create = Need::of([Deed::creating(name)], name, self.records.folds());
        let stored = self.records.record(&key)?;
        let (requirement, stored) = match &stored {
            Some(_) if !self.asked.flags.has(OpFlags::OVERWRITE) => {
                return Err(Refused::new(ResponseCode::HANDLE_ALREADY_EXISTS, "").into());
            }
            Some(record) => {
                (self.overwriting(name, &record.view().values, &values, create), Some(record.view()))
            }
            None => (create.into(), None),
        };
        self.permit(&requirement)?;
        let answer = Answer::Created(handle.to_vec());
        let before = stored.map_or(Values::EMPTY, |record| record.values);
        let new = by_index(&values);
        let merged = merge(before, values, self.asked.now_unix_s, |index| new.contains_key(&index));
        if stored.is_some() && !Difference::between(&before, &values).is_any {
            // Nothing to write, and nothing for mirrors and resolvers to learn.
            return Ok(Decision::Answer(answer));
        }
        let (count, bytes) = self.fitting(&merged)?;
        Ok(Decision::Change(vec![Write::Put(key, count, bytes)], answer))
    }

    pub(super) fn delete(&self, handle: &[u8]) -> Decided {
        // Also where the prefix is not homed any more, for cleaning up.
        let key = self.key(handle)?;
        self.refer(&key)?;
        if matches!(self.who, super::Who::Nobody) {
            return Err(Stop::Challenge);
        }
        if self.records.record(&key)?.is_none() {
            return Err(NOT_FOUND.into());
        }
        self.permit(&Need::of([Deed::Delete], Handle(&key), self.records.folds()).into())?;
        Ok(Decision::Change(vec![Write::Delete(key)], Answer::Done))
    }

    /// What it takes to replace all values: the rights for each difference, or that to add administrators, who could
    /// get them; or those to delete the handle and to create it. Where no difference takes a right, nothing but to be
    /// somebody.
    fn overwriting(
        &self,
        name: Handle<'_>,
        before: &Values<'_>,
        after: &Values<'_>,
        create: Need,
    ) -> Requirement {
        let folds = self.records.folds();
        let difference = Difference::between(before, after);
        let need = |deeds: &[Deed]| Need::of(deeds.iter().copied(), name, folds);
        let mut alternatives = vec![vec![need(&[Deed::AddAdmin])], vec![need(&[Deed::Delete]), create]];
        let adds_admin = difference.deeds.iter().any(|deed| deed.row().bits.has(Deed::AddAdmin.row().bits));
        if !adds_admin {
            if difference.deeds.is_empty() {
                return Requirement::identity();
            }
            alternatives.insert(0, vec![need(&difference.deeds)]);
        }
        Requirement(alternatives)
    }

    /// Names that come into being are UTF-8, and not too long.
    fn check_name(&self, handle: &[u8]) -> Result<(), Stop> {
        if std::str::from_utf8(handle).is_err() {
            return Err(Refused::new(ResponseCode::INVALID_HANDLE, "Invalid UTF8 encoding").into());
        }
        self.check_handle_len(handle)
    }

    /// New values have positive indexes, each its own.
    pub(super) fn check_new(&self, values: &Values<'_>) -> Result<(), Stop> {
        if values.iter().any(|value| value.index < 1) {
            return Err(Refused::new(ResponseCode::INVALID_VALUE, "Value indexes must be positive").into());
        }
        match duplicate(values) {
            Some(index) => Err(conflict(ResponseCode::VALUE_ALREADY_EXISTS, index).into()),
            None => Ok(()),
        }
    }

    /// The encodings of `values`, if they can be stored.
    pub(super) fn fitting(&self, values: &[Value<'_>]) -> Result<(usize, Vec<u8>), Stop> {
        let bounds = &self.rules.bounds;
        let refuse =
            |text: String| Err(Refused { code: ResponseCode::INVALID_VALUE, text: text.into() }.into());
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

/// The first index that is there twice.
pub(super) fn duplicate(values: &Values<'_>) -> Option<i32> {
    let mut seen = std::collections::HashSet::new();
    values.iter().map(|value| value.index).find(|&index| !seen.insert(index))
}

pub(super) fn conflict(code: ResponseCode, index: i32) -> Refused {
    Refused { code, text: format!("Index conflict for {index}").into() }
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
