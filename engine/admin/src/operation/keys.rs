//! Candidate keys of an identity.

use super::OperationRules;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, fold};
use handle_store::{StoreError, StoreRecords, is_record_of_homed_prefix, is_responsible, key};
use zeroize::Zeroizing;

/// The data of a value that may hold a key; not yet parsed.
#[derive(Clone)]
pub struct CandidateKey {
    /// The index of the value.
    pub index: i32,
    /// The data of the value.
    pub data: Zeroizing<Vec<u8>>,
}

/// Why no keys can be returned.
#[derive(Debug)]
pub enum KeysRefusal {
    /// Another server or another service has the handle.
    Remote,
    /// The store cannot be read.
    Store(StoreError),
}

impl From<StoreError> for KeysRefusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The values of type `kind` that may hold the key of `identity`, at most `most`, in ascending
/// order of index: the value with the index of `identity`, or all values if that index is 0. Read
/// permissions are ignored. For a prefix that is homed here, the keys in a stored copy of its
/// record count too.
///
/// # Errors
/// When this server does not have the handle, or the store cannot be read.
pub fn keys(
    records: &impl StoreRecords,
    rules: &OperationRules,
    identity: Reference<'_>,
    kind: &[u8],
    most: usize,
) -> Result<Vec<CandidateKey>, KeysRefusal> {
    let key = key(identity.handle, records.folds());
    let is_here = rules.site.has(Handle(identity.handle)) && is_responsible(records, &key)?;
    if !is_here && !is_record_of_homed_prefix(records, &key)? {
        return Err(KeysRefusal::Remote);
    }
    let Some(record) = records.record(&key)? else {
        return if is_here { Ok(Vec::new()) } else { Err(KeysRefusal::Remote) };
    };
    let record = record.view();
    let mut keys: Vec<CandidateKey> = record
        .values
        .iter()
        .filter(|value| (identity.index == 0 || value.index == identity.index) && fold::eq(value.kind, kind))
        .map(|value| CandidateKey { index: value.index, data: Zeroizing::new(value.data.to_vec()) })
        .collect();
    if keys.is_empty() && !is_here {
        return Err(KeysRefusal::Remote);
    }
    keys.sort_by_key(|key| key.index);
    keys.truncate(most);
    Ok(keys)
}
