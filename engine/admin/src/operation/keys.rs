//! The values that may hold the key of an identity.

use super::OperationRules;
use crate::store::{StoreError, StoreRecords, is_record_of_homed_prefix, is_responsible, key};
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, fold};
use zeroize::Zeroizing;

/// A key, or what should be one.
#[derive(Clone)]
pub struct CandidateKey {
    /// The index of its value.
    pub index: i32,
    /// The data of the value.
    pub data: Zeroizing<Vec<u8>>,
}

/// Why there are no keys.
#[derive(Debug)]
pub enum NotHere {
    /// Another server, or another service, has the handle.
    Remote,
    /// The store cannot be read.
    Store(StoreError),
}

impl From<StoreError> for NotHere {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The values of type `kind` that may hold the key of `identity`, at most `most`, in ascending order of their index: the
/// one with its index, or all where that is 0. Read permissions do not matter. Of a prefix that is homed here, a copy of its
/// record counts as far as it goes.
///
/// # Errors
/// When the handle is not here, or cannot be read.
pub fn keys(
    records: &impl StoreRecords,
    rules: &OperationRules,
    identity: Reference<'_>,
    kind: &[u8],
    most: usize,
) -> Result<Vec<CandidateKey>, NotHere> {
    let key = key(identity.handle, records.folds());
    let is_here = rules.site.has(Handle(identity.handle)) && is_responsible(records, &key)?;
    if !is_here && !is_record_of_homed_prefix(records, &key)? {
        return Err(NotHere::Remote);
    }
    let Some(record) = records.record(&key)? else {
        return if is_here { Ok(Vec::new()) } else { Err(NotHere::Remote) };
    };
    let record = record.view();
    let mut keys: Vec<CandidateKey> = record
        .values
        .iter()
        .filter(|value| (identity.index == 0 || value.index == identity.index) && fold::eq(value.kind, kind))
        .map(|value| CandidateKey { index: value.index, data: Zeroizing::new(value.data.to_vec()) })
        .collect();
    if keys.is_empty() && !is_here {
        return Err(NotHere::Remote);
    }
    keys.sort_by_key(|key| key.index);
    keys.truncate(most);
    Ok(keys)
}
