//! The index of the public values of chosen types, by which handles are found.
//!
//! A row of the index is a key only: the folded type and a zero byte, the value, and the handle.
//! Each change of a record changes its rows in the same transaction. The index of a type that is
//! chosen later is built in steps, and does not answer until it is complete.

mod build;
mod check;
mod pattern;
mod search;

pub use build::{IndexProgress, IndexState};
pub(super) use check::IndexCheck;
pub use pattern::{BadPattern, PATTERN_LEN_MAX, PATTERN_STARS_MAX, ValuePattern};
pub use search::{FoundHandles, SearchBounds, SearchCondition, SearchError, StoreSearch};

use super::StoreError;
use super::record::StoreRecord;
use super::tables::{KeyRange, StoreTable, WriteTables, names, number_in};
use handle_auth::digest::digest;
use handle_proto::code::DigestAlgorithm;
use handle_proto::{Value, fold};
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

/// Most bytes of the name of an indexed type.
pub const INDEX_TYPE_LEN_MAX: usize = 64;
/// Bytes of a value in a key. With a type, a digest and the longest handle, a key has less than the
/// 2,704 bytes that an index of PostgreSQL can have.
const VALUE_LEN: usize = 256;
/// Bytes of the digest of a value that is longer.
const DIGEST_LEN: usize = 16;
/// After a zero byte: the value has a zero byte here.
const ZERO: u8 = 0xFF;
/// After a zero byte: the value ends here.
const END: u8 = 1;
/// After a zero byte: the value goes on, and its digest follows.
const LONG: u8 = 2;
/// Before the type, the key of the row with the last record that an unfinished build has read. No
/// key of a value begins with it.
const POSITION: u8 = 0;

/// The index of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexedType {
    /// The type, folded.
    pub(super) kind: Vec<u8>,
    pub(super) state: IndexState,
}

/// Whether a type can be indexed: 1 to [`INDEX_TYPE_LEN_MAX`] visible characters of ASCII.
#[must_use]
pub fn is_index_type(kind: &str) -> bool {
    (1..=INDEX_TYPE_LEN_MAX).contains(&kind.len()) && kind.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The name in `Meta` of the state of a type.
fn state_name(kind: &[u8]) -> Vec<u8> {
    [names::INDEX_STATE.as_bytes(), kind].concat()
}

/// The types with an index, in ascending order.
pub(super) fn indexed_types(tables: &WriteTables<'_>) -> Result<Vec<IndexedType>, StoreError> {
    let mut types = Vec::new();
    let after = after_prefix(names::INDEX_STATE.as_bytes());
    let range = (Bound::Included(names::INDEX_STATE.as_bytes()), end_of(after.as_deref()));
    tables.each(StoreTable::Meta, range, &mut |name, number| {
        types.extend(IndexedType::decode(name, number));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(types)
}

impl IndexedType {
    fn decode(name: &[u8], number: &[u8]) -> Option<Self> {
        let kind = name.strip_prefix(names::INDEX_STATE.as_bytes())?.to_vec();
        Some(Self { kind, state: IndexState::from_number(number_in(number))? })
    }
}

/// The end of the keys that begin with `start`; `None` if there is none.
fn after_prefix(start: &[u8]) -> Option<Vec<u8>> {
    let last = start.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut end = start[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// The upper bound of a range that ends before `end`.
fn end_of(end: Option<&[u8]>) -> Bound<&[u8]> {
    end.map_or(Bound::Unbounded, Bound::Excluded)
}

/// The keys that begin with `start`, which end before `end`, after `after`.
fn range_under<'a>(start: &'a [u8], end: Option<&'a [u8]>, after: Option<&'a [u8]>) -> KeyRange<'a> {
    (after.map_or(Bound::Included(start), Bound::Excluded), end_of(end))
}

/// Begins a key of `kind`, which is folded.
fn begin_key(kind: &[u8]) -> Vec<u8> {
    [kind, &[0]].concat()
}

/// Appends `value` up to its bound; whether it is whole.
fn put_value(key: &mut Vec<u8>, value: &[u8]) -> bool {
    let end = key.len() + VALUE_LEN;
    for &byte in value {
        let needed = if byte == 0 { 2 } else { 1 };
        if key.len() + needed > end {
            return false;
        }
        key.push(byte);
        if byte == 0 {
            key.push(ZERO);
        }
    }
    true
}

/// What the keys of values of type `kind` that are equal to `value` begin with.
fn exact_start(kind: &[u8], value: &[u8]) -> Vec<u8> {
    let mut key = begin_key(kind);
    if put_value(&mut key, value) {
        key.extend_from_slice(&[0, END]);
    } else {
        key.extend_from_slice(&[0, LONG]);
        let digest = digest(DigestAlgorithm::SHA256, [value]).expect("a plain digest");
        key.extend_from_slice(&digest[..DIGEST_LEN]);
    }
    key
}

/// What the keys of values of type `kind` that begin with `start` begin with.
fn prefix_start(kind: &[u8], start: &[u8]) -> Vec<u8> {
    let mut key = begin_key(kind);
    if !put_value(&mut key, start) {
        key.extend_from_slice(&[0, LONG]);
    }
    key
}

/// The handle in a key; `None` if the key is not that of a value.
fn handle_in(key: &[u8]) -> Option<&[u8]> {
    let kind_len = key.iter().position(|&byte| byte == 0).filter(|&len| len > 0)?;
    let mut rest = &key[kind_len + 1..];
    loop {
        let zero = rest.iter().position(|&byte| byte == 0)?;
        let (&after, behind) = rest[zero + 1..].split_first()?;
        match after {
            ZERO => rest = behind,
            END => return Some(behind),
            LONG => return behind.get(DIGEST_LEN..),
            _ => return None,
        }
    }
}

/// The key of a value of `handle`, whose type folds to `kind`.
fn key_of(kind: &[u8], value: &Value<'_>, handle: &[u8]) -> Vec<u8> {
    let mut key = exact_start(kind, value.data);
    key.extend_from_slice(handle);
    key
}

/// The keys of a stored record, for the types whose rows are kept.
pub(super) fn keys_of(types: &[IndexedType], handle: &[u8], stored: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut keys = BTreeSet::new();
    if types.is_empty() {
        return keys;
    }
    // A damaged record has no values that could be found.
    let Ok(record) = StoreRecord::decode(stored) else { return keys };
    for value in record.values.iter().filter(Value::is_public) {
        let indexed = types.iter().find(|it| it.state.is_kept() && fold::eq(&it.kind, value.kind));
        keys.extend(indexed.map(|it| key_of(&it.kind, &value, handle)));
    }
    keys
}
