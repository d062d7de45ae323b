//! Keys under which requests with many changes may be repeated, and the results of these requests.
//!
//! The results of changes are written in the transaction that makes the changes. A repeated request
//! gets the results of what was carried out before, and only the rest is carried out, also after a
//! crash.

use super::tables::{ALL_KEYS, KeyRange, StoreTable, WriteTables, names, number_in};
use super::{StoreError, Transaction, key};
use handle_proto::wire::bulk::{BulkKey, BulkResult};
use handle_proto::wire::list::Reference;
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};

/// Maximum number of keys that are dropped when a key is added, so that other changes do not wait
/// for long.
const DROPPED_MAX: usize = 16;
/// Keys or rows of results dropped at most when results are added.
const EVICTED_MAX: usize = 1024;
/// Most bytes of the text of a result that are kept.
const KEPT_TEXT_LEN_MAX: usize = 128;
/// Bytes of an encoded state.
const STATE_LEN: usize = 32 + 8 + 8 + 4 + 4;

/// The identity and name of a key. Each identity has its own keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkScope(Vec<u8>);

impl BulkScope {
    /// The scope of the key called `name` of `identity`; `folds` tells whether the service folds
    /// local names.
    #[must_use]
    pub fn new(identity: Reference<'_>, name: &[u8], folds: bool) -> Self {
        let handle = key(identity.handle, folds);
        let len = u32::try_from(handle.len()).unwrap_or(u32::MAX);
        let bytes = [&identity.index.to_be_bytes()[..], &len.to_be_bytes(), &handle, name].concat();
        Self(bytes)
    }

    /// The bytes of the scope, for another process over the same store.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The scope with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// The part of a scope that stands for the identity.
    fn owner(scope: &[u8]) -> Result<&[u8], StoreError> {
        let identity = || {
            let (len, _) = scope.get(4..)?.split_first_chunk()?;
            scope.get(..(u32::from_be_bytes(*len) as usize).checked_add(8)?)
        };
        identity().ok_or(StoreError::Damaged("the scope of a bulk key does not decode"))
    }
}

/// How many keys and results are kept, and for how long. The oldest keys are dropped first: those
/// of the same identity beyond its own bounds, and those of all beyond the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkKeyBounds {
    /// Keys.
    pub keys: usize,
    /// Keys of one identity.
    pub keys_per_identity: usize,
    /// Results of all keys.
    pub results: usize,
    /// Results of all keys of one identity.
    pub results_per_identity: usize,
    /// Milliseconds since the first request with a key.
    pub age_ms: u64,
}

/// The outcome of looking up a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkKeyState {
    /// The key belongs to a request with this body, under this number.
    SameBody(u64),
    /// The key belongs to a request with another body.
    OtherBody,
}

#[derive(Clone, Copy)]
struct KeyRecord {
    digest: [u8; 32],
    number: u64,
    unix_ms: u64,
    /// Highest number of a change that was carried out.
    last_change: u32,
    /// Results that are kept.
    count: u32,
}

impl KeyRecord {
    fn encode(&self) -> [u8; STATE_LEN] {
        let mut bytes = [0; STATE_LEN];
        bytes[..32].copy_from_slice(&self.digest);
        bytes[32..40].copy_from_slice(&self.number.to_be_bytes());
        bytes[40..48].copy_from_slice(&self.unix_ms.to_be_bytes());
        bytes[48..52].copy_from_slice(&self.last_change.to_be_bytes());
        bytes[52..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let decoded = || {
            let (&digest, rest) = bytes.split_first_chunk()?;
            let (&number, rest) = rest.split_first_chunk()?;
            let (&unix_ms, rest) = rest.split_first_chunk()?;
            let (&last_change, rest) = rest.split_first_chunk()?;
            Some(Self {
                digest,
                number: u64::from_be_bytes(number),
                unix_ms: u64::from_be_bytes(unix_ms),
                last_change: u32::from_be_bytes(last_change),
                count: u32::from_be_bytes(rest.try_into().ok()?),
            })
        };
        decoded().ok_or(StoreError::Damaged("the state of a bulk key does not decode"))
    }
}

impl Transaction<'_> {
    /// Looks `key` of `scope` up, and adds it if it is not there. Drops keys beyond `bounds`, but
    /// of the requests `in_use` only those of the same identity.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open_bulk_key(
        &mut self,
        scope: &BulkScope,
        key: &BulkKey<'_>,
        bounds: &BulkKeyBounds,
        in_use: &HashSet<u64>,
        now_unix_ms: u64,
    ) -> Result<BulkKeyState, StoreError> {
        self.drop_old_keys(bounds, in_use, now_unix_ms)?;
        if let Some(known) = self.bulk_key(scope)? {
            return Ok(match known.digest == key.digest {
                true => BulkKeyState::SameBody(known.number),
                false => BulkKeyState::OtherBody,
            });
        }
        self.with_bulk_tables(|tables, all| {
            let owner = BulkScope::owner(&scope.0)?;
            for _ in 0..DROPPED_MAX {
                let (keys, results) = tables.owned_by(owner)?;
                let has_capacity = keys < bounds.keys_per_identity as u64;
                if has_capacity && results <= bounds.results_per_identity as u64 {
                    break;
                }
                let Some(oldest) = tables.oldest_of(owner)? else { break };
                *all = all.saturating_sub(tables.drop_key(oldest)?);
            }
            Ok(())
        })?;
        let number = self.number(names::BULK_LAST)? + 1;
        self.put_number(names::BULK_LAST, number)?;
        self.with_bulk_tables(|tables, _| {
            let record =
                KeyRecord { digest: key.digest, number, unix_ms: now_unix_ms, last_change: 0, count: 0 };
            tables.put_key(&scope.0, &record)?;
            tables.tables.insert(StoreTable::BulkNumbers, &number.to_be_bytes(), &scope.0)?;
            let owner = BulkScope::owner(&scope.0)?;
            tables.tables.insert(StoreTable::BulkOwned, &owned_key(owner, number), &[])?;
            let (keys, results) = tables.owned_by(owner)?;
            tables.put_owner(owner, keys + 1, results)
        })?;
        self.writes_count += 1;
        Ok(BulkKeyState::SameBody(number))
    }

    /// Highest number of a change that was carried out for the request `number`; `None` if its key
    /// was dropped.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn bulk_done(&self, scope: &BulkScope, number: u64) -> Result<Option<u32>, StoreError> {
        let record = self.bulk_key(scope)?.filter(|record| record.number == number);
        Ok(record.map(|record| record.last_change))
    }

    /// The kept results of the changes from `first` to `last` of the request `number`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn bulk_results(&self, number: u64, first: u32, last: u32) -> Result<Vec<BulkResult>, StoreError> {
        let (key, last_key) = (result_key(number, first), result_key(number, last));
        // The row that has the first result may begin with an earlier one.
        let before = (Bound::Included(&result_key(number, 0)[..]), Bound::Included(&key[..]));
        let start = self.tables.last(StoreTable::BulkResults, before)?.unwrap_or_else(|| key.to_vec());
        let range = (Bound::Included(&*start), Bound::Included(&last_key[..]));
        let mut results = Vec::new();
        self.tables.each(StoreTable::BulkResults, range, &mut |_, row| {
            let decoded = BulkResult::decode_all(row);
            results.extend(decoded.ok_or(StoreError::Damaged("bulk results do not decode"))?);
            Ok(ControlFlow::Continue(()))
        })?;
        results.retain(|result| (first..=last).contains(&result.number));
        Ok(results)
    }

    /// Keeps results of the request `number`, in ascending order, with shortened texts. If its
    /// identity has more than `per_identity` results then, its oldest ones are dropped.
    ///
    /// # Errors
    /// When the file cannot be written, or the key was dropped.
    pub fn keep_bulk_results(
        &mut self,
        scope: &BulkScope,
        number: u64,
        results: &[BulkResult],
        per_identity: usize,
    ) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (results.first(), results.last()) else { return Ok(()) };
        let known = self.bulk_key(scope)?.filter(|record| record.number == number);
        let mut record = known.ok_or(StoreError::Damaged("the key of a request was dropped meanwhile"))?;
        let count = u32::try_from(results.len()).unwrap_or(u32::MAX);
        (record.last_change, record.count) =
            (record.last_change.max(last.number), record.count.saturating_add(count));
        let mut bytes = Vec::new();
        for result in results {
            let text = shortened(&result.text).to_owned();
            BulkResult { text, ..*result }.encode(&mut bytes);
        }
        self.with_bulk_tables(|tables, all| {
            tables.tables.insert(StoreTable::BulkResults, &result_key(number, first.number), &bytes)?;
            tables.put_key(&scope.0, &record)?;
            *all += u64::from(count);
            let owner = BulkScope::owner(&scope.0)?;
            let (keys, results) = tables.owned_by(owner)?;
            tables.put_owner(owner, keys, results + u64::from(count))?;
            for _ in 0..EVICTED_MAX {
                if tables.owned_by(owner)?.1 <= per_identity as u64 {
                    break;
                }
                *all = all.saturating_sub(match tables.oldest_of(owner)? {
                    Some(oldest) if oldest != number => tables.drop_key(oldest)?,
                    _ => tables.drop_row(number, scope)?,
                });
            }
            Ok(())
        })
    }

    fn bulk_key(&self, scope: &BulkScope) -> Result<Option<KeyRecord>, StoreError> {
        let state = self.tables.get(StoreTable::BulkKeys, &scope.0)?;
        state.map(|state| KeyRecord::decode(&state)).transpose()
    }

    /// Drops the oldest keys while there are too many keys or results, or they are too old. Those
    /// in use stay.
    fn drop_old_keys(
        &mut self,
        bounds: &BulkKeyBounds,
        in_use: &HashSet<u64>,
        now_unix_ms: u64,
    ) -> Result<(), StoreError> {
        self.with_bulk_tables(|tables, all| {
            for _ in 0..DROPPED_MAX {
                let Some((number, record)) = tables.oldest_but(in_use)? else { break };
                let is_old = now_unix_ms.saturating_sub(record.unix_ms) > bounds.age_ms;
                let is_too_much = *all > bounds.results as u64
                    || tables.tables.len(StoreTable::BulkKeys)? >= bounds.keys as u64;
                if !is_old && !is_too_much {
                    break;
                }
                *all = all.saturating_sub(tables.drop_key(number)?);
            }
            Ok(())
        })
    }

    /// Runs `work` on the tables about keys and on the number of all results.
    fn with_bulk_tables(
        &mut self,
        work: impl FnOnce(&mut BulkTables<'_, '_>, &mut u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let before = self.number(names::BULK_RESULTS_COUNT)?;
        let (mut tables, mut all) = (BulkTables { tables: &mut self.tables, writes_count: 0 }, before);
        work(&mut tables, &mut all)?;
        self.writes_count += tables.writes_count;
        if all != before {
            self.put_number(names::BULK_RESULTS_COUNT, all)?;
            self.writes_count += 1;
        }
        Ok(())
    }
}

/// The key of a row of results.
fn result_key(number: u64, first: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&first.to_be_bytes());
    key
}

/// The key of a request of an identity. No identity is the beginning of another one.
fn owned_key(owner: &[u8], number: u64) -> Vec<u8> {
    [owner, &number.to_be_bytes()].concat()
}

/// The beginning of `text` that is kept.
fn shortened(text: &str) -> &str {
    let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
    &text[..ends.take_while(|&end| end <= KEPT_TEXT_LEN_MAX).last().unwrap_or(0)]
}

/// The tables about keys.
struct BulkTables<'a, 't> {
    tables: &'a mut WriteTables<'t>,
    writes_count: u64,
}

impl BulkTables<'_, '_> {
    /// Keys and results of an identity.
    fn owned_by(&self, owner: &[u8]) -> Result<(u64, u64), StoreError> {
        let counts = self.tables.get(StoreTable::BulkOwners, owner)?;
        Ok(counts
            .map_or((0, 0), |counts| (number_in(&counts), number_in(counts.get(8..).unwrap_or_default()))))
    }

    fn put_owner(&mut self, owner: &[u8], keys: u64, results: u64) -> Result<(), StoreError> {
        let counts = [keys.to_be_bytes(), results.to_be_bytes()].concat();
        self.tables.insert(StoreTable::BulkOwners, owner, &counts)
    }

    fn put_key(&mut self, scope: &[u8], record: &KeyRecord) -> Result<(), StoreError> {
        self.tables.insert(StoreTable::BulkKeys, scope, &record.encode())
    }

    /// The number of the oldest key of an identity.
    fn oldest_of(&self, owner: &[u8]) -> Result<Option<u64>, StoreError> {
        let (start, end) = (owned_key(owner, 0), owned_key(owner, u64::MAX));
        let mut oldest = None;
        let range = (Bound::Included(&*start), Bound::Included(&*end));
        self.tables.each(StoreTable::BulkOwned, range, &mut |key, _| {
            oldest = key.get(owner.len()..).map(number_in);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(oldest)
    }

    /// The oldest key that is not in use.
    fn oldest_but(&self, in_use: &HashSet<u64>) -> Result<Option<(u64, KeyRecord)>, StoreError> {
        let mut oldest = None;
        self.tables.each(StoreTable::BulkNumbers, ALL_KEYS, &mut |number, scope| {
            let number = number_in(number);
            if in_use.contains(&number) {
                return Ok(ControlFlow::Continue(()));
            }
            oldest = Some((number, scope.to_vec()));
            Ok(ControlFlow::Break(()))
        })?;
        oldest.map(|(number, scope)| Ok((number, self.record(&scope)?))).transpose()
    }

    fn record(&self, scope: &[u8]) -> Result<KeyRecord, StoreError> {
        let state = self.tables.get(StoreTable::BulkKeys, scope)?;
        KeyRecord::decode(&state.ok_or(StoreError::Damaged("a bulk key has no state"))?)
    }

    /// Drops the key of the request `number`; returns how many results went with it.
    fn drop_key(&mut self, number: u64) -> Result<u64, StoreError> {
        let scope = self.tables.remove(StoreTable::BulkNumbers, &number.to_be_bytes())?;
        let scope = scope.ok_or(StoreError::Damaged("a bulk key has no number"))?;
        let count = u64::from(self.record(&scope)?.count);
        self.tables.remove(StoreTable::BulkKeys, &scope)?;
        let (start, end) = (result_key(number, 0), result_key(number, u32::MAX));
        let range: KeyRange<'_> = (Bound::Included(&start), Bound::Included(&end));
        self.tables.remove_range(StoreTable::BulkResults, range)?;
        let owner = BulkScope::owner(&scope)?;
        self.tables.remove(StoreTable::BulkOwned, &owned_key(owner, number))?;
        match self.owned_by(owner)? {
            (..=1, _) => _ = self.tables.remove(StoreTable::BulkOwners, owner)?,
            (keys, results) => self.put_owner(owner, keys - 1, results.saturating_sub(count))?,
        }
        self.writes_count += 1;
        Ok(count)
    }

    /// Drops the oldest row of results of the request `number`; returns how many these are.
    fn drop_row(&mut self, number: u64, scope: &BulkScope) -> Result<u64, StoreError> {
        let (start, end) = (result_key(number, 0), result_key(number, u32::MAX));
        let mut oldest = None;
        let range = (Bound::Included(&start[..]), Bound::Included(&end[..]));
        self.tables.each(StoreTable::BulkResults, range, &mut |key, row| {
            oldest = Some((key.to_vec(), row.to_vec()));
            Ok(ControlFlow::Break(()))
        })?;
        let Some((key, row)) = oldest else { return Ok(0) };
        let decoded =
            BulkResult::decode_all(&row).ok_or(StoreError::Damaged("bulk results do not decode"))?;
        self.tables.remove(StoreTable::BulkResults, &key)?;
        let mut record = self.record(&scope.0)?;
        let count = u32::try_from(decoded.len()).unwrap_or(u32::MAX);
        record.count = record.count.saturating_sub(count);
        self.put_key(&scope.0, &record)?;
        let owner = BulkScope::owner(&scope.0)?;
        let (keys, results) = self.owned_by(owner)?;
        self.put_owner(owner, keys, results.saturating_sub(count.into()))?;
        self.writes_count += 1;
        Ok(count.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::tests::{TestEngine, new_store, over_engines};
    use handle_proto::ResponseCode;

    const BOUNDS: BulkKeyBounds = BulkKeyBounds {
        keys: 3,
        keys_per_identity: 100,
        results: 100,
        results_per_identity: 1000,
        age_ms: 1000,
    };

    over_engines! {
        results_are_found_again_by_number_after_the_store_is_opened_again,
        the_oldest_keys_are_dropped_by_number_age_and_results,
        an_identity_drops_its_own_keys_and_nobody_elses,
        an_identity_has_so_many_results,
        requests_in_progress_are_not_dropped_for_others,
    }

    fn scope(name: &str) -> BulkScope {
        BulkScope::new(Reference { handle: b"0.NA/1", index: 300 }, name.as_bytes(), true)
    }

    /// Opens the key `name` of an identity of its own, while the requests `in_use` are in progress.
    fn open_as(
        store: &Store,
        index: i32,
        name: &str,
        bounds: BulkKeyBounds,
        in_use: &[u64],
    ) -> (BulkScope, u64) {
        let scope = BulkScope::new(Reference { handle: b"0.NA/1", index }, name.as_bytes(), true);
        let (own, name, in_use) = (scope.clone(), name.to_owned(), in_use.iter().copied().collect());
        let opened = store.change(move |transaction| {
            let key = BulkKey { name: name.as_bytes(), digest: [1; 32] };
            transaction.open_bulk_key(&own, &key, &bounds, &in_use, 0)
        });
        let BulkKeyState::SameBody(number) = opened.unwrap() else { panic!("one body") };
        (scope, number)
    }

    fn is_kept(store: &Store, (scope, number): &(BulkScope, u64)) -> bool {
        let (scope, number) = (scope.clone(), *number);
        store.change(move |transaction| transaction.bulk_done(&scope, number)).unwrap().is_some()
    }

    fn open(store: &Store, name: &str, digest: u8, now: u64, bounds: BulkKeyBounds) -> BulkKeyState {
        let name = name.to_owned();
        let opened = store.change(move |transaction| {
            let key = BulkKey { name: name.as_bytes(), digest: [digest; 32] };
            transaction.open_bulk_key(&scope(&name), &key, &bounds, &HashSet::new(), now)
        });
        opened.unwrap()
    }

    fn keep(store: &Store, name: &str, number: u64, range: std::ops::RangeInclusive<u32>) {
        let name = name.to_owned();
        let results: Vec<_> = range
            .map(|number| BulkResult { number, code: ResponseCode(number.cast_signed()), text: "t".into() })
            .collect();
        store
            .change(move |transaction| transaction.keep_bulk_results(&scope(&name), number, &results, 1000))
            .unwrap();
    }

    fn done(store: &Store, name: &str, number: u64) -> Option<u32> {
        let name = name.to_owned();
        store.change(move |transaction| transaction.bulk_done(&scope(&name), number)).unwrap()
    }

    fn kept(store: &Store, number: u64, first: u32, last: u32) -> Vec<u32> {
        let results = store.change(move |transaction| transaction.bulk_results(number, first, last)).unwrap();
        results.iter().map(|result| result.number).collect()
    }

    fn results_are_found_again_by_number_after_the_store_is_opened_again(engine: TestEngine) {
        let Some((location, store)) = new_store(engine) else { return };
        let BulkKeyState::SameBody(number) = open(&store, "a", 1, 0, BOUNDS) else { panic!("a new key") };
        keep(&store, "a", number, 2..=4);
        keep(&store, "a", number, 7..=9);
        drop(store);
        let store = Store::open(&location.config).unwrap();
        assert_eq!(open(&store, "a", 1, 0, BOUNDS), BulkKeyState::SameBody(number));
        assert_eq!(open(&store, "a", 2, 0, BOUNDS), BulkKeyState::OtherBody);
        assert_eq!(done(&store, "a", number), Some(9));
        assert_eq!(done(&store, "a", number + 1), None);
        assert_eq!(kept(&store, number, 3, 8), [3, 4, 7, 8]);
        assert_eq!(kept(&store, number, 1, 2), [2]);
        assert_eq!(kept(&store, number, 10, 20), [0; 0]);
        assert_eq!(kept(&store, number + 1, 1, 20), [0; 0]);
    }

    #[test]
    fn keys_belong_to_the_names_that_the_store_distinguishes() {
        let scope = |handle, folds| BulkScope::new(Reference { handle, index: 1 }, b"k", folds);
        assert_eq!(scope(b"10.1/a", true), scope(b"10.1/A", true));
        assert_ne!(scope(b"10.1/a", false), scope(b"10.1/A", false));
    }

    #[test]
    fn no_bytes_of_a_handle_are_taken_for_the_name_of_a_key() {
        let scope = |handle, name| BulkScope::new(Reference { handle, index: 1 }, name, true);
        assert_ne!(scope(b"10.1/A", b"B\0C"), scope(b"10.1/A\0B", b"C"));
        assert_ne!(scope(b"10.1/A", b"BC"), scope(b"10.1/AB", b"C"));
    }

    fn the_oldest_keys_are_dropped_by_number_age_and_results(engine: TestEngine) {
        let Some((_directory, store)) = new_store(engine) else { return };
        let numbers: Vec<u64> = ["a", "b", "c", "d"]
            .iter()
            .map(|name| match open(&store, name, 1, 100, BOUNDS) {
                BulkKeyState::SameBody(number) => number,
                BulkKeyState::OtherBody => panic!("a new key"),
            })
            .collect();
        let held = |store: &Store| -> Vec<bool> {
            let names = ["a", "b", "c", "d"];
            names.iter().zip(&numbers).map(|(name, &number)| done(store, name, number).is_some()).collect()
        };
        assert_eq!(held(&store), [false, true, true, true], "3 keys");
        keep(&store, "b", numbers[1], 1..=101);
        open(&store, "c", 1, 100, BulkKeyBounds { keys: 9, ..BOUNDS });
        assert_eq!(held(&store), [false, false, true, true], "100 results");
        assert_eq!(kept(&store, numbers[1], 0, 200), [0; 0]);
        open(&store, "d", 1, 1100, BulkKeyBounds { keys: 9, ..BOUNDS });
        assert_eq!(held(&store), [false, false, true, true], "1000 ms");
        assert_eq!(
            open(&store, "d", 2, 1101, BulkKeyBounds { keys: 9, ..BOUNDS }),
            BulkKeyState::SameBody(5)
        );
        assert_eq!(held(&store), [false; 4], "more than 1000 ms");
    }

    fn an_identity_drops_its_own_keys_and_nobody_elses(engine: TestEngine) {
        let Some((_directory, store)) = new_store(engine) else { return };
        let bounds = BulkKeyBounds { keys: 8, keys_per_identity: 2, ..BOUNDS };
        let other = open_as(&store, 1, "other", bounds, &[]);
        let own = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| open_as(&store, 2, name, bounds, &[]));
        assert!(is_kept(&store, &other));
        assert_eq!(
            own.map(|key| is_kept(&store, &key)),
            [false, false, false, false, false, false, true, true]
        );
        // What was dropped does not count any more.
        let again = open_as(&store, 2, "i", bounds, &[]);
        assert!(is_kept(&store, &again) && is_kept(&store, &other));
    }

    fn an_identity_has_so_many_results(engine: TestEngine) {
        let Some((_directory, store)) = new_store(engine) else { return };
        let keep = |(scope, number): &(BulkScope, u64), range: std::ops::RangeInclusive<u32>| {
            let (scope, number, text) = (scope.clone(), *number, "t".to_owned());
            let code = ResponseCode::SUCCESS;
            let results: Vec<_> =
                range.map(|number| BulkResult { number, code, text: text.clone() }).collect();
            store
                .change(move |transaction| transaction.keep_bulk_results(&scope, number, &results, 10))
                .unwrap();
        };
        let other = open_as(&store, 1, "other", BOUNDS, &[]);
        keep(&other, 1..=10);
        let (first, second) = (open_as(&store, 2, "a", BOUNDS, &[]), open_as(&store, 2, "b", BOUNDS, &[]));
        keep(&first, 1..=4);
        keep(&second, 1..=6);
        assert!(is_kept(&store, &first), "ten results");
        keep(&second, 7..=7);
        assert!(!is_kept(&store, &first) && is_kept(&store, &second), "its own oldest key");
        keep(&second, 8..=11);
        assert_eq!(kept(&store, second.1, 1, 20), [7, 8, 9, 10, 11], "its own oldest results");
        assert_eq!(kept(&store, other.1, 1, 20).len(), 10);
        let all = store.change(|transaction| transaction.number(names::BULK_RESULTS_COUNT));
        assert_eq!(all.unwrap(), 15);
    }

    fn requests_in_progress_are_not_dropped_for_others(engine: TestEngine) {
        let Some((_directory, store)) = new_store(engine) else { return };
        let (used, unused) = (open_as(&store, 1, "a", BOUNDS, &[]), open_as(&store, 2, "b", BOUNDS, &[]));
        for index in 3..9 {
            open_as(&store, index, "c", BOUNDS, &[used.1]);
        }
        assert!(is_kept(&store, &used) && !is_kept(&store, &unused));
        open_as(&store, 9, "c", BOUNDS, &[]);
        assert!(!is_kept(&store, &used), "over");
    }

    #[test]
    fn texts_are_kept_in_part() {
        for (len, expected) in [(0, 0), (127, 127), (128, 128), (129, 128), (512, 128)] {
            assert_eq!(shortened(&"t".repeat(len)).len(), expected);
        }
        assert_eq!(shortened(&"é".repeat(100)).len(), 128);
        assert_eq!(shortened(&["t", &"é".repeat(100)].concat()).len(), 127);
    }
}
