//! Finds handles by the public values of their records.

use super::super::record::StoreRecord;
use super::super::tables::StoreTable;
use super::super::{StoreError, StoreSnapshot};
use super::{
    IndexState, ValuePattern, after_prefix, exact_start, handle_in, key_of, prefix_start, range_under,
};
use handle_proto::{Handle, Value, fold};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Records that are read at once.
const RECORDS_AT_ONCE: usize = 64;

/// What a record has to have: a public value of a type that matches a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchCondition {
    /// The type, in any case.
    pub kind: Vec<u8>,
    /// The pattern.
    pub pattern: ValuePattern,
}

/// What to find: handles whose records meet all conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSearch {
    /// The conditions. The type of at least one has to have an index.
    pub conditions: Vec<SearchCondition>,
    /// Only handles with this prefix, as `10.1045`.
    pub prefix: Option<Vec<u8>>,
}

/// Bounds of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchBounds {
    /// Most handles.
    pub handles: usize,
    /// Most bytes of handles; one handle may go beyond.
    pub bytes: usize,
    /// Most rows of the index that are looked at.
    pub rows: usize,
}

/// A part of the handles that are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundHandles {
    /// The handles, each once over all parts. Those of equal values are in ascending order.
    pub handles: Vec<Vec<u8>>,
    /// Where the next part begins; `None` if there is no other.
    pub next: Option<Vec<u8>>,
}

/// Why nothing is found.
#[derive(Debug)]
pub enum SearchError {
    /// There is no condition.
    NoCondition,
    /// The types of the conditions have no index.
    NoIndex(Vec<u8>),
    /// The index of this type is incomplete.
    Building(Vec<u8>),
    /// The position to go on at is not one of this search.
    OtherSearch,
    /// The store cannot be read.
    Store(StoreError),
}

impl From<StoreError> for SearchError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCondition => f.write_str("the search names no type and value"),
            Self::NoIndex(kind) => {
                write!(f, "values of type {} are not indexed (`index.types`)", Handle(kind))
            }
            Self::Building(kind) => write!(
                f,
                "the index of type {} is being built; search again later (`hdl control status` shows the progress)",
                Handle(kind)
            ),
            Self::OtherSearch => f.write_str("the place to go on at is not one of this search"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SearchError {}

impl StoreSearch {
    /// Whether the record of `handle` meets all conditions, and `key` is the first of its keys
    /// that do under the condition at `driver`.
    fn is_met(&self, driver: usize, key: &[u8], handle: &[u8], stored: &[u8]) -> bool {
        let Ok(record) = StoreRecord::decode(stored) else { return false };
        let matching = |condition: &SearchCondition, value: &Value<'_>| {
            value.is_public()
                && fold::eq(&condition.kind, value.kind)
                && condition.pattern.matches(value.data)
        };
        let is_met = |condition| record.values.iter().any(|value| matching(condition, &value));
        let Some(leading) = self.conditions.get(driver) else { return false };
        let kind = fold::folded(&leading.kind);
        let keys = record.values.iter().filter(|value| matching(leading, value));
        let first = keys.map(|value| key_of(&kind, &value, handle)).min();
        self.conditions.iter().all(is_met) && first.as_deref() == Some(key)
    }

    fn has_prefix(&self, handle: &[u8]) -> bool {
        let prefix = Handle(handle).naming_authority();
        self.prefix.as_ref().is_none_or(|wanted| fold::eq(wanted, prefix))
    }
}

impl StoreSnapshot {
    /// Finds handles of which `is_shown` is true, after the position `after` of an earlier part.
    ///
    /// # Errors
    /// When the index cannot answer, the store cannot be read, or `is_shown` fails.
    pub fn search(
        &self,
        search: &StoreSearch,
        after: Option<&[u8]>,
        bounds: SearchBounds,
        mut is_shown: impl FnMut(&[u8]) -> Result<bool, StoreError>,
    ) -> Result<FoundHandles, SearchError> {
        let driver = self.driver(search)?;
        let leading = &search.conditions[driver];
        let kind = fold::folded(&leading.kind);
        let start = match leading.pattern.is_exact() {
            true => exact_start(&kind, leading.pattern.literal_start()),
            false => prefix_start(&kind, leading.pattern.literal_start()),
        };
        if after.is_some_and(|after| !after.starts_with(&start)) {
            return Err(SearchError::OtherSearch);
        }
        let end = after_prefix(&start);
        let range = range_under(&start, end.as_deref(), after);
        let mut rows = self.tables.rows(StoreTable::Index, range, |key, _| Ok(key.to_vec()))?;
        let (mut found, mut looked_at, mut bytes) = (FoundHandles::default(), 0, 0);
        loop {
            let most = RECORDS_AT_ONCE.min(bounds.rows - looked_at).min(bounds.handles - found.handles.len());
            if most == 0 || bytes >= bounds.bytes {
                return Ok(found);
            }
            let keys = rows.by_ref().take(most).collect::<Result<Vec<_>, _>>()?;
            let is_over = keys.len() < most;
            looked_at += keys.len();
            found.next = keys.last().cloned().filter(|_| !is_over);
            for handle in self.met(search, driver, &keys, &mut is_shown)? {
                bytes += handle.len();
                found.handles.push(handle);
            }
            if is_over {
                return Ok(found);
            }
        }
    }

    /// The handles of those of `keys` that meet the conditions.
    fn met(
        &self,
        search: &StoreSearch,
        driver: usize,
        keys: &[Vec<u8>],
        is_shown: &mut impl FnMut(&[u8]) -> Result<bool, StoreError>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut candidates = Vec::new();
        for key in keys {
            let Some(handle) = handle_in(key) else { continue };
            if search.has_prefix(handle) && is_shown(handle)? {
                candidates.push((key, handle.to_vec()));
            }
        }
        // Once for a handle with several values.
        let handles: BTreeSet<&Vec<u8>> = candidates.iter().map(|(_, handle)| handle).collect();
        let handles: Vec<Vec<u8>> = handles.into_iter().cloned().collect();
        let records = self.tables.get_all(StoreTable::Records, &handles)?;
        let records: BTreeMap<Vec<u8>, Option<Vec<u8>>> = handles.into_iter().zip(records).collect();
        candidates.retain(|(key, handle)| {
            let record = records.get(handle).and_then(Option::as_ref);
            record.is_some_and(|record| search.is_met(driver, key, handle, record))
        });
        Ok(candidates.into_iter().map(|(_, handle)| handle).collect())
    }

    /// The condition whose index leaves the fewest rows to look at: an exact value, or else the one
    /// with the longest start.
    fn driver(&self, search: &StoreSearch) -> Result<usize, SearchError> {
        let types = self.indexed_types()?;
        let first = search.conditions.first().ok_or(SearchError::NoCondition)?;
        let state = |condition: &SearchCondition| {
            let indexed = types.iter().find(|it| fold::eq(&it.kind, &condition.kind));
            indexed.map(|it| it.state).filter(|state| state.is_kept())
        };
        let conditions = search.conditions.iter().enumerate();
        let best =
            conditions.filter(|(_, condition)| state(condition) == Some(IndexState::Complete)).max_by_key(
                |(_, condition)| (condition.pattern.is_exact(), condition.pattern.literal_start().len()),
            );
        if let Some((at, _)) = best {
            return Ok(at);
        }
        let building = search.conditions.iter().find(|condition| state(condition).is_some());
        Err(match building {
            Some(condition) => SearchError::Building(condition.kind.clone()),
            None => SearchError::NoIndex(first.kind.clone()),
        })
    }
}
