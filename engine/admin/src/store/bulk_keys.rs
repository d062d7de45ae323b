//! Keys under which requests with many changes may be repeated, and the results of these requests.
//!
//! The results of changes are written in the transaction that makes the changes. A repeated request
//! gets the results of what was carried out before, and only the rest is carried out, also after a
//! crash.

use super::guard::guarded;
use super::schema;
use super::{StoreError, Transaction, key};
use handle_daemon::bulk::{BulkKey, BulkResult};
use handle_proto::wire::list::Reference;
use redb::{ReadableTable as _, ReadableTableMetadata as _};

/// Keys dropped at most when another one is added, so that other changes do not wait for long.
const DROPPED_MAX: usize = 16;
/// Bytes of an encoded state.
const STATE_LEN: usize = 32 + 8 + 8 + 4 + 4;

/// Whose key it is: each identity has its own.
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
}

/// How many keys and results are kept, and for how long. The oldest keys are dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkKeyBounds {
    /// Keys.
    pub keys: usize,
    /// Results of all keys.
    pub results: usize,
    /// Milliseconds since the first request with a key.
    pub age_ms: u64,
}

/// What a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkKeyState {
    /// A request with this body, under this number.
    SameBody(u64),
    /// A request with another body.
    OtherBody,
}

#[derive(Clone, Copy)]
struct KeyRecord {
    digest: [u8; 32],
    number: u64,
    unix_ms: u64,
    /// The largest number of a change that was carried out.
    done: u32,
    /// Results that are kept.
    count: u32,
}

impl KeyRecord {
    fn encode(&self) -> [u8; STATE_LEN] {
        let mut bytes = [0; STATE_LEN];
        bytes[..32].copy_from_slice(&self.digest);
        bytes[32..40].copy_from_slice(&self.number.to_be_bytes());
        bytes[40..48].copy_from_slice(&self.unix_ms.to_be_bytes());
        bytes[48..52].copy_from_slice(&self.done.to_be_bytes());
        bytes[52..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let decoded = || {
            let (&digest, rest) = bytes.split_first_chunk()?;
            let (&number, rest) = rest.split_first_chunk()?;
            let (&unix_ms, rest) = rest.split_first_chunk()?;
            let (&done, rest) = rest.split_first_chunk()?;
            Some(Self {
                digest,
                number: u64::from_be_bytes(number),
                unix_ms: u64::from_be_bytes(unix_ms),
                done: u32::from_be_bytes(done),
                count: u32::from_be_bytes(rest.try_into().ok()?),
            })
        };
        decoded().ok_or(StoreError::Damaged("the state of a bulk key does not decode"))
    }
}

impl Transaction<'_> {
    /// Looks `key` of `scope` up, and adds it if it is not there. Drops keys beyond `bounds`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open_bulk_key(
        &mut self,
        scope: &BulkScope,
        key: &BulkKey<'_>,
        bounds: &BulkKeyBounds,
        now_unix_ms: u64,
    ) -> Result<BulkKeyState, StoreError> {
        self.drop_old_keys(bounds, now_unix_ms)?;
        if let Some(known) = self.bulk_key(scope)? {
            return Ok(match known.digest == key.digest {
                true => BulkKeyState::SameBody(known.number),
                false => BulkKeyState::OtherBody,
            });
        }
        guarded(self.file, || {
            let number = self.meta.get(schema::BULK_LAST)?.map_or(0, |last| last.value()) + 1;
            self.meta.insert(schema::BULK_LAST, number)?;
            let record = KeyRecord { digest: key.digest, number, unix_ms: now_unix_ms, done: 0, count: 0 };
            self.begun.open_table(schema::BULK_KEYS)?.insert(&*scope.0, &record.encode()[..])?;
            self.begun.open_table(schema::BULK_NUMBERS)?.insert(number, &*scope.0)?;
            self.writes_count += 1;
            Ok(BulkKeyState::SameBody(number))
        })
    }

    /// The largest number of a change that was carried out for the request `number`; `None` if its
    /// key was dropped.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn bulk_done(&self, scope: &BulkScope, number: u64) -> Result<Option<u32>, StoreError> {
        let record = self.bulk_key(scope)?.filter(|record| record.number == number);
        Ok(record.map(|record| record.done))
    }

    /// The kept results of the changes from `first` to `last` of the request `number`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn bulk_results(&self, number: u64, first: u32, last: u32) -> Result<Vec<BulkResult>, StoreError> {
        guarded(self.file, || {
            let table = self.begun.open_table(schema::BULK_RESULTS)?;
            // The row with the first one may begin before it.
            let start = table.range((number, 0)..=(number, first))?.next_back().transpose()?;
            let start = start.map_or(first, |(key, _)| key.value().1);
            let mut results = Vec::new();
            for row in table.range((number, start)..=(number, last))? {
                let decoded = BulkResult::decode_all(row?.1.value());
                results.extend(decoded.ok_or(StoreError::Damaged("bulk results do not decode"))?);
            }
            results.retain(|result| (first..=last).contains(&result.number));
            Ok(results)
        })
    }

    /// Keeps results of the request `number`, in ascending order.
    ///
    /// # Errors
    /// When the file cannot be written, or the key was dropped.
    pub fn keep_bulk_results(
        &mut self,
        scope: &BulkScope,
        number: u64,
        results: &[BulkResult],
    ) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (results.first(), results.last()) else { return Ok(()) };
        let known = self.bulk_key(scope)?.filter(|record| record.number == number);
        let mut record = known.ok_or(StoreError::Damaged("the key of a request was dropped meanwhile"))?;
        let count = u32::try_from(results.len()).unwrap_or(u32::MAX);
        (record.done, record.count) = (record.done.max(last.number), record.count.saturating_add(count));
        let mut bytes = Vec::new();
        results.iter().for_each(|result| result.encode(&mut bytes));
        guarded(self.file, || {
            self.begun.open_table(schema::BULK_RESULTS)?.insert((number, first.number), &*bytes)?;
            self.begun.open_table(schema::BULK_KEYS)?.insert(&*scope.0, &record.encode()[..])?;
            let all = self.meta.get(schema::BULK_RESULTS_COUNT)?.map_or(0, |all| all.value());
            self.meta.insert(schema::BULK_RESULTS_COUNT, all + u64::from(count))?;
            self.writes_count += 1;
            Ok(())
        })
    }

    fn bulk_key(&self, scope: &BulkScope) -> Result<Option<KeyRecord>, StoreError> {
        guarded(self.file, || {
            let table = self.begun.open_table(schema::BULK_KEYS)?;
            table.get(&*scope.0)?.map(|state| KeyRecord::decode(state.value())).transpose()
        })
    }

    /// Drops the oldest keys while there are too many keys or results, or they are too old.
    fn drop_old_keys(&mut self, bounds: &BulkKeyBounds, now_unix_ms: u64) -> Result<(), StoreError> {
        guarded(self.file, || {
            let mut keys = self.begun.open_table(schema::BULK_KEYS)?;
            let mut numbers = self.begun.open_table(schema::BULK_NUMBERS)?;
            let mut results = self.begun.open_table(schema::BULK_RESULTS)?;
            let mut all = self.meta.get(schema::BULK_RESULTS_COUNT)?.map_or(0, |all| all.value());
            for _ in 0..DROPPED_MAX {
                let oldest = numbers.first()?.map(|(number, scope)| (number.value(), scope.value().to_vec()));
                let Some((number, scope)) = oldest else { break };
                let record = keys.get(&*scope)?.map(|state| KeyRecord::decode(state.value())).transpose()?;
                let record = record.ok_or(StoreError::Damaged("a bulk key has no state"))?;
                let is_old = now_unix_ms.saturating_sub(record.unix_ms) > bounds.age_ms;
                let is_too_much = all > bounds.results as u64 || keys.len()? >= bounds.keys as u64;
                if !is_old && !is_too_much {
                    break;
                }
                results.retain_in((number, 0)..=(number, u32::MAX), |_, _| false)?;
                keys.remove(&*scope)?;
                numbers.remove(number)?;
                all = all.saturating_sub(record.count.into());
                self.meta.insert(schema::BULK_RESULTS_COUNT, all)?;
                self.writes_count += 1;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Store, StoreConfig};
    use handle_proto::ResponseCode;

    const BOUNDS: BulkKeyBounds = BulkKeyBounds { keys: 3, results: 100, age_ms: 1000 };

    fn scope(name: &str) -> BulkScope {
        BulkScope::new(Reference { handle: b"0.NA/1", index: 300 }, name.as_bytes(), true)
    }

    fn open(store: &Store, name: &str, digest: u8, now: u64, bounds: BulkKeyBounds) -> BulkKeyState {
        let name = name.to_owned();
        let opened = store.change(move |transaction| {
            let key = BulkKey { name: name.as_bytes(), digest: [digest; 32] };
            transaction.open_bulk_key(&scope(&name), &key, &bounds, now)
        });
        opened.unwrap()
    }

    fn keep(store: &Store, name: &str, number: u64, range: std::ops::RangeInclusive<u32>) {
        let name = name.to_owned();
        let results: Vec<_> = range
            .map(|number| BulkResult { number, code: ResponseCode(number.cast_signed()), text: "t".into() })
            .collect();
        store
            .change(move |transaction| transaction.keep_bulk_results(&scope(&name), number, &results))
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

    #[test]
    fn results_are_found_again_by_number_after_the_store_is_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig::at(&directory.path().join("store"));
        let store = Store::create(&config, true).unwrap();
        let BulkKeyState::SameBody(number) = open(&store, "a", 1, 0, BOUNDS) else { panic!("a new key") };
        keep(&store, "a", number, 2..=4);
        keep(&store, "a", number, 7..=9);
        drop(store);
        let store = Store::open(&config).unwrap();
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

    #[test]
    fn the_oldest_keys_are_dropped_by_number_age_and_results() {
        let store = Store::in_memory(&StoreConfig::default(), true).unwrap();
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
}
