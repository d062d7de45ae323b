//! Trees over the records of two sets, to find the records that differ without sending all of them.
//!
//! The shape is that of the [tree](crate::tree) of a set. The digests are others: they cover what
//! is to be compared, in an order that does not depend on the layer, and begin with a nonce that
//! both sides know. Sets with different seeds or layers, and files that were never published, are
//! therefore comparable, and two records with the same digest cannot be prepared.

use crate::format::Sha256Sum;
use crate::reader::{CorruptRecord, Layer};
use crate::record::{CorruptValues, EncodedRecord};
use crate::tree::{BITS_MAX, KeyIndex, TreeEntry, bits_for, join, key_digest, subtree};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::vec::Vec;

impl EncodedRecord<'_> {
    /// Appends all values in wire form, in stored order, and returns their number.
    ///
    /// # Errors
    /// When the record is damaged.
    pub fn encode_values(&self, out: &mut Vec<u8>) -> Result<usize, CorruptValues> {
        let mut count = 0;
        for value in self.values_in_order() {
            value?.encode(out);
            count += 1;
        }
        Ok(count)
    }
}

/// The part of records that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonScope {
    /// Only whether there is a record of the name.
    Names,
    /// All values, without their timestamps.
    Values,
    /// All values.
    ValuesAndTimestamps,
}

impl ComparisonScope {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Names, "names"), (Self::Values, "values"), (Self::ValuesAndTimestamps, "timestamps")];

    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(scope, _)| *scope == self).map_or("", |(_, name)| name)
    }

    /// The scope with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(scope, _)| *scope)
    }
}

/// The properties that both trees must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparisonRules {
    /// A random number, new for each comparison.
    pub nonce: [u8; 16],
    /// The part of records that is compared.
    pub scope: ComparisonScope,
    /// Number of levels above the buckets.
    pub bits: u32,
}

impl ComparisonRules {
    /// The number of levels for two sides, of which the larger one has this many records.
    #[must_use]
    pub fn bits_for(records_count: u64) -> u32 {
        bits_for(records_count)
    }

    /// The digest of a record.
    fn digest(&self, record: &EncodedRecord<'_>, buffer: &mut Vec<u8>) -> Option<Sha256Sum> {
        buffer.clear();
        buffer.extend_from_slice(&self.nonce);
        if self.scope != ComparisonScope::Names {
            let mut values = record.values_in_order().collect::<Result<Vec<_>, _>>().ok()?;
            // Stable, so that values with the same index keep their order.
            values.sort_by_key(|value| value.index);
            for mut value in values {
                value.permissions = value.permissions.known();
                if self.scope == ComparisonScope::Values {
                    value.timestamp = 0;
                }
                value.encode(buffer);
            }
        }
        Some(Sha256Sum(Sha256::digest(buffer).into()))
    }
}

/// A record in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketRecord {
    /// Its key: the handle, folded if the set folds.
    pub key: Vec<u8>,
    /// The digest of the part of it that is compared.
    pub digest: Sha256Sum,
}

/// The tree of one side.
#[derive(Debug)]
pub struct ComparisonTree<'s, B> {
    layers: &'s [Layer<B>],
    keys: Vec<KeyIndex>,
    rules: ComparisonRules,
    /// The root is at 1; the halves of the subtree at *n* are at 2*n* and 2*n* + 1.
    nodes: Vec<Sha256Sum>,
    records_count: u64,
}

impl<'s, B: AsRef<[u8]> + Sync> ComparisonTree<'s, B> {
    /// Reads all records of these layers, newest first, with as many threads as there are cores.
    /// `progress` is called with numbers of records that were read.
    ///
    /// # Errors
    /// When a record is damaged.
    ///
    /// # Panics
    /// When `rules` have more levels than [`ComparisonRules::bits_for`] returns.
    pub fn of(
        layers: &'s [Layer<B>],
        rules: ComparisonRules,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, CorruptRecord> {
        assert!(rules.bits <= BITS_MAX, "the number of levels is one of bits_for");
        let keys = layers.iter().map(KeyIndex::of).collect::<Result<Vec<_>, _>>()?;
        let mut nodes = std::vec![Sha256Sum([0; 32]); 2 << rules.bits];
        let (above, buckets) = nodes.split_at_mut(1 << rules.bits);
        let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let part = buckets.len().div_ceil(threads);
        let source = BucketSource { layers, keys: &keys, rules };
        let records_count = std::thread::scope(|scope| {
            let parts = (0..).step_by(part).zip(buckets.chunks_mut(part));
            let parts: Vec<_> =
                parts.map(|(from, nodes)| scope.spawn(move || source.fill(from, nodes, progress))).collect();
            let counts = parts
                .into_iter()
                .map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            counts.sum::<Result<u64, CorruptRecord>>()
        })?;
        for at in (1..above.len()).rev() {
            let half = |at: usize| match at.checked_sub(above.len()) {
                Some(bucket) => buckets[bucket],
                None => above[at],
            };
            above[at] = join(&half(2 * at), &half(2 * at + 1));
        }
        Ok(Self { layers, keys, rules, nodes, records_count })
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> Sha256Sum {
        self.nodes[1]
    }

    /// Number of records, without those that newer layers hide or delete.
    #[must_use]
    pub const fn records_count(&self) -> u64 {
        self.records_count
    }

    /// A node; `None` if there is no such position. The root is at 1; the halves of the subtree at
    /// *n* are at 2*n* and 2*n* + 1; buckets begin at `1 << bits`.
    #[must_use]
    pub fn node(&self, at: usize) -> Option<Sha256Sum> {
        self.nodes.get(at).copied().filter(|_| at > 0)
    }

    /// The records of a bucket, in the order of the digests of their keys.
    ///
    /// # Errors
    /// When a record is damaged.
    pub fn bucket(&self, bucket: u32) -> Result<Vec<BucketRecord>, CorruptRecord> {
        let source = BucketSource { layers: self.layers, keys: &self.keys, rules: self.rules };
        let found = source.records(bucket, &mut Vec::new(), |record| record.key().to_vec())?;
        Ok(found.into_iter().map(|(entry, key)| BucketRecord { key, digest: entry.record }).collect())
    }
}

/// Where the records of buckets are.
struct BucketSource<'a, B> {
    layers: &'a [Layer<B>],
    keys: &'a [KeyIndex],
    rules: ComparisonRules,
}

impl<B> Clone for BucketSource<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for BucketSource<'_, B> {}

impl<'a, B: AsRef<[u8]>> BucketSource<'a, B> {
    /// The entries of a bucket, in the order of the digests of their keys, with what `also`
    /// returns.
    fn records<T>(
        &self,
        bucket: u32,
        buffer: &mut Vec<u8>,
        also: impl Fn(&EncodedRecord<'a>) -> T,
    ) -> Result<Vec<(TreeEntry, T)>, CorruptRecord> {
        // The newest layer that has the key decides.
        let mut found: BTreeMap<Sha256Sum, Option<(Sha256Sum, T)>> = BTreeMap::new();
        for (layer, keys) in self.layers.iter().zip(self.keys) {
            for at in keys.bucket(bucket, self.rules.bits) {
                let record = layer.record_at(at)?;
                let key = key_digest(record.key());
                if found.contains_key(&key) {
                    continue;
                }
                let entry = match record.is_tombstone() {
                    true => None,
                    false => {
                        let digest = self.rules.digest(&record, buffer).ok_or(CorruptRecord { at })?;
                        Some((digest, also(&record)))
                    }
                };
                found.insert(key, entry);
            }
        }
        let entries = found.into_iter().filter_map(|(key, found)| found.map(|found| (key, found)));
        Ok(entries.map(|(key, (record, more))| (TreeEntry { key, record }, more)).collect())
    }

    /// Computes the nodes of adjacent buckets, and returns the number of their records.
    fn fill(
        &self,
        from: u32,
        nodes: &mut [Sha256Sum],
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<u64, CorruptRecord> {
        /// Buckets between two calls of `progress`.
        const STEP: usize = 1024;
        let (mut buffer, mut count, mut total) = (Vec::new(), 0, 0);
        for (at, (bucket, node)) in (from..).zip(nodes).enumerate() {
            let found = self.records(bucket, &mut buffer, |_| ())?;
            let entries: Vec<TreeEntry> = found.into_iter().map(|(entry, ())| entry).collect();
            count += entries.len() as u64;
            *node = subtree(&entries, self.rules.bits as usize);
            if at % STEP == STEP - 1 {
                total += count;
                progress(std::mem::take(&mut count));
            }
        }
        progress(count);
        Ok(total + count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, LayerOptions};
    use handle_proto::{Permissions, Value};
    use std::io::Cursor;

    const URL: Value<'static> = Value::new(1, b"URL", b"https://a.example/");
    const MAIL: Value<'static> = Value::new(2, b"EMAIL", b"a@example.org");

    /// A layer with these records; those without values are deletions.
    fn layer(seed: u64, records: &[(&str, &[Value<'_>])]) -> Layer<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let mut builder = Builder::new(dir.path(), LayerOptions { seed, folds: true, created_unix_ms: 1 });
        for (handle, values) in records {
            match values {
                [] => builder.delete(1, handle.as_bytes()).unwrap(),
                values => builder.add(1, handle.as_bytes(), values.iter().copied()).unwrap(),
            }
        }
        let (bytes, _) = builder.finish(Cursor::new(Vec::new())).unwrap();
        Layer::open(bytes.into_inner()).unwrap()
    }

    fn root(layers: &[Layer<Vec<u8>>], scope: ComparisonScope) -> Sha256Sum {
        let rules = ComparisonRules { nonce: [7; 16], scope, bits: 3 };
        ComparisonTree::of(layers, rules, &|_| ()).unwrap().root()
    }

    #[test]
    fn seeds_and_layers_do_not_matter_and_each_difference_in_the_scope_does() {
        use ComparisonScope::{Names, Values, ValuesAndTimestamps};
        let private = Value { permissions: Permissions(0x0c), ..MAIL };
        let one = [layer(1, &[("10.1/A", &[URL, private]), ("10.1/B", &[URL])])];
        let other = [
            layer(2, &[("10.1/B", &[URL]), ("10.1/C", &[])]),
            layer(2, &[("10.1/A", &[private, URL]), ("10.1/B", &[MAIL]), ("10.1/C", &[URL])]),
        ];
        let dated = Value { timestamp: 9, ..URL };
        let redated = [layer(3, &[("10.1/A", &[URL, private]), ("10.1/B", &[dated])])];
        let changed = [layer(1, &[("10.1/A", &[URL, MAIL]), ("10.1/B", &[URL])])];
        let fewer = [layer(1, &[("10.1/A", &[URL, private])])];
        for (against, differs) in [
            (&other[..], [false, false, false]),
            (&redated, [false, false, true]),
            (&changed, [false, true, true]),
            (&fewer, [true, true, true]),
        ] {
            for (scope, differs) in [Names, Values, ValuesAndTimestamps].into_iter().zip(differs) {
                assert_eq!(root(&one, scope) != root(against, scope), differs, "{scope:?}");
            }
        }
        for scope in [Names, Values, ValuesAndTimestamps] {
            assert_eq!(ComparisonScope::parse(scope.name()), Some(scope));
        }
        assert_eq!(ComparisonScope::parse("all"), None);
    }

    #[test]
    fn nodes_are_those_of_their_halves_and_buckets_have_every_record_once() {
        let handles: Vec<_> = (0..200).map(|at| std::format!("10.1/{at}")).collect();
        let records: Vec<(&str, &[Value<'_>])> = handles.iter().map(|it| (it.as_str(), &[URL][..])).collect();
        let layers = [layer(1, &records)];
        for bits in [0, 1, 5] {
            let rules = ComparisonRules { nonce: [7; 16], scope: ComparisonScope::Values, bits };
            let tree = ComparisonTree::of(&layers, rules, &|_| ()).unwrap();
            assert_eq!(tree.records_count(), 200);
            assert_eq!((tree.node(0), tree.node(2 << bits)), (None, None));
            for at in 1..1 << bits {
                let halves = [2 * at, 2 * at + 1].map(|half| tree.node(half).unwrap());
                assert_eq!(tree.node(at).unwrap(), join(&halves[0], &halves[1]), "{bits} {at}");
            }
            let mut found = Vec::new();
            for bucket in 0..1 << bits {
                found.extend(tree.bucket(bucket).unwrap().into_iter().map(|it| it.key));
            }
            found.sort();
            let mut expected: Vec<_> = handles.iter().map(|it| it.as_bytes().to_vec()).collect();
            expected.sort();
            assert_eq!(found, expected, "{bits}");
            assert!(tree.bucket(1 << bits).unwrap().is_empty());
            // The root of one number of levels is that of every other.
            assert_eq!(tree.root(), root(&layers, ComparisonScope::Values));
        }
    }

    #[test]
    fn damaged_records_are_reported() {
        let whole = layer(1, &[("10.1/A", &[URL]), ("10.1/B", &[URL])]);
        let mut bytes = whole.as_bytes().to_vec();
        let at = usize::try_from(whole.header().records_at).unwrap() + 40;
        bytes[at] ^= 1;
        let layers = [Layer::open(bytes).unwrap()];
        let rules = ComparisonRules { nonce: [7; 16], scope: ComparisonScope::Values, bits: 1 };
        let damaged = ComparisonTree::of(&layers, rules, &|_| ()).unwrap_err();
        assert!((at as u64 - 40..=at as u64).contains(&damaged.at), "{damaged}");
    }
}
