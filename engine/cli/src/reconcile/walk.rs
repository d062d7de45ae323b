//! Compares the records here with those of another machine, by walking both trees from the roots to
//! the records that differ.

use super::compare::{ComparedRecords, Difference, Finding, LeftOutRecords, WantedValues, differing_indexes};
use super::peer::ReconcilePeer;
use super::table::{ListingScope, ReconcileTable};
use crate::progress;
use anyhow::Context as _;
use handle_proto::Handle;
use handle_proto::wire::list::Values;
use handle_snapshot::comparison::{BucketRecord, ComparisonRules, ComparisonScope, ComparisonTree};
use handle_snapshot::map::MappedFile;
use handle_snapshot::writer::HomedPrefixes;
use handle_snapshot::{Sha256Sum, hash_key};
use std::collections::BTreeMap;

/// Buckets that are compared at a time.
const BUCKETS: usize = 512;
/// Records whose values are compared at a time.
const RECORDS: usize = 256;

/// The side with the expected records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WantedSide {
    Here,
    There,
}

/// A record in a differing bucket, by its digests on both sides.
struct DifferingRecord {
    key: Vec<u8>,
    is_here: bool,
    is_there: bool,
}

/// A comparison under way.
pub(super) struct TreeWalk<'a> {
    pub(super) table: &'a ReconcileTable,
    pub(super) peer: &'a mut ReconcilePeer,
    pub(super) wanted: WantedSide,
    pub(super) scope: ComparisonScope,
}

impl TreeWalk<'_> {
    /// Passes each difference to `take`, and returns the number of different handles, and those
    /// left out because a server does not list them.
    ///
    /// # Errors
    /// When a record here is damaged, the other machine does not answer, or `take` fails.
    pub(super) fn run(
        mut self,
        take: &mut dyn FnMut(Finding) -> anyhow::Result<()>,
    ) -> anyhow::Result<ComparedRecords> {
        let theirs_homed = self.homed_there()?;
        let bits = ComparisonRules::bits_for(self.table.count().max(self.peer.hello().records_count));
        let rules = ComparisonRules { nonce: rand::random(), scope: self.scope, bits };
        // Both sides make their trees at the same time.
        self.peer.begin(&rules)?;
        let bar = progress::bar("hashing", Some(self.table.count()));
        let table = self.table;
        let tree = ComparisonTree::of(table.layers(), rules, &|count| bar.inc(count))
            .context("cannot read the records here (check them with: hdl snapshot verify)")?;
        bar.finish_and_clear();
        let (root, _) = self.peer.begun()?;
        let (mut count, mut left_out) = (tree.records_count(), LeftOutRecords::default());
        let buckets = self.differing_buckets(&tree, root, bits)?;
        let bar = progress::bar("comparing", Some(buckets.len() as u64));
        let (mut left, mut differing) = (buckets.as_slice(), Vec::new());
        while !left.is_empty() {
            let theirs = self.peer.buckets(&left[..left.len().min(BUCKETS)])?;
            let (these, rest) = left.split_at(theirs.len());
            for (bucket, theirs) in these.iter().zip(&theirs) {
                let found = differing_records(&tree.bucket(*bucket)?, theirs);
                differing.extend(found.into_iter().filter(|record| {
                    let is_homed = theirs_homed.as_ref().is_none_or(|homed| homed.has_record(&record.key));
                    left_out.lets_through_if(record.is_here || is_homed, &record.key)
                }));
            }
            bar.inc(these.len() as u64);
            left = rest;
            while differing.len() >= RECORDS || left.is_empty() && !differing.is_empty() {
                let rest = differing.split_off(differing.len().min(RECORDS));
                count += differing.iter().filter(|record| !record.is_here).count() as u64;
                self.judge(std::mem::replace(&mut differing, rest), take)?;
            }
        }
        bar.finish_and_clear();
        Ok(ComparedRecords { count, left_out })
    }

    /// The homed prefixes, if the records here are those that a server lists: it lists no others.
    fn homed_there(&self) -> anyhow::Result<Option<HomedPrefixes>> {
        let Some(listing) = self.table.listing() else { return Ok(None) };
        if listing == ListingScope::Homed
            && let Some(homed) = self.peer.homed()?
        {
            return Ok(Some(homed));
        }
        // A file without homed prefixes is compared with what the server has listed.
        let mut homed = HomedPrefixes::default();
        self.table.homed()?.into_iter().flatten().for_each(|prefix| {
            homed.add(prefix);
        });
        Ok(Some(homed))
    }

    /// The buckets below all nodes that differ, level by level.
    fn differing_buckets(
        &mut self,
        tree: &ComparisonTree<'_, MappedFile>,
        root: Sha256Sum,
        bits: u32,
    ) -> anyhow::Result<Vec<u32>> {
        let mut level = if tree.root() == root { Vec::new() } else { vec![1] };
        for _ in 0..bits {
            let halves: Vec<usize> = level.iter().flat_map(|at| [2 * at, 2 * at + 1]).collect();
            let theirs = self.peer.nodes(&halves)?;
            level = halves
                .into_iter()
                .zip(theirs)
                .filter(|&(at, node)| tree.node(at) != Some(node))
                .map(|(at, _)| at)
                .collect();
        }
        level.into_iter().map(|at| Ok(u32::try_from(at - (1 << bits))?)).collect()
    }

    /// Compares the values of records that differ.
    fn judge(
        &mut self,
        records: Vec<DifferingRecord>,
        take: &mut dyn FnMut(Finding) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let needs_theirs = |record: &&DifferingRecord| {
            let is_needed = record.is_here || self.wanted == WantedSide::There;
            record.is_there && is_needed && self.scope != ComparisonScope::Names
        };
        let keys: Vec<Vec<u8>> = records.iter().filter(needs_theirs).map(|it| it.key.clone()).collect();
        let mut theirs: BTreeMap<_, _> = keys.iter().cloned().zip(self.peer.records(&keys)?).collect();
        for record in records {
            let mut there = None;
            if keys.contains(&record.key) {
                let found = theirs.remove(&record.key).flatten();
                there = Some(found.with_context(|| {
                    format!("{}: {} is no longer there", self.peer.shown(), Handle(&record.key))
                })?);
            }
            let here = if record.is_here { self.values_here(&record.key)? } else { None };
            if let Some(finding) = self.finding(record, here, there)? {
                take(finding)?;
            }
        }
        Ok(())
    }

    fn values_here(&self, key: &[u8]) -> anyhow::Result<Option<WantedValues>> {
        if self.table.has_names_only() {
            return Ok(None);
        }
        let records = self.table.records()?;
        let found = records.find(hash_key(records.seed(), key), key)?;
        found.map(|record| WantedValues::of(&record)).transpose()
    }

    fn finding(
        &self,
        record: DifferingRecord,
        here: Option<WantedValues>,
        there: Option<WantedValues>,
    ) -> anyhow::Result<Option<Finding>> {
        let (wanted, found) = match self.wanted {
            WantedSide::Here => ((record.is_here, here), (record.is_there, there)),
            WantedSide::There => ((record.is_there, there), (record.is_here, here)),
        };
        let difference = match (&wanted, &found) {
            ((true, _), (false, _)) => Difference::Missing,
            ((false, _), _) => Difference::Extra,
            ((true, Some(wanted)), (true, Some(found))) => {
                let has_timestamps = self.scope == ComparisonScope::ValuesAndTimestamps;
                let [wanted, found] = [wanted, found].map(|it| Values::from_encoded(it.count, &it.encoded));
                let indexes = differing_indexes(wanted?.iter(), found?.iter(), has_timestamps);
                if indexes.is_empty() {
                    return Ok(None);
                }
                Difference::Different(indexes)
            }
            _ => return Ok(None),
        };
        let wanted = wanted.1.filter(|_| !matches!(difference, Difference::Extra));
        Ok(Some(Finding { handle: record.key, difference, wanted, is_partial: false }))
    }
}

/// The records of a bucket whose digests differ, or that only one side has.
fn differing_records(here: &[BucketRecord], there: &[BucketRecord]) -> Vec<DifferingRecord> {
    let mut all: BTreeMap<&[u8], [Option<Sha256Sum>; 2]> = BTreeMap::new();
    for (side, records) in [here, there].into_iter().enumerate() {
        for record in records {
            all.entry(&record.key).or_default()[side] = Some(record.digest);
        }
    }
    let differing = all.into_iter().filter(|(_, [here, there])| here != there);
    differing
        .map(|(key, [here, there])| DifferingRecord {
            key: key.to_vec(),
            is_here: here.is_some(),
            is_there: there.is_some(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_bucket_differ_by_digest_or_presence() {
        let record = |key: &str, digest| BucketRecord { key: key.into(), digest: Sha256Sum([digest; 32]) };
        let here = [record("a", 1), record("b", 1), record("c", 1)];
        let there = [record("d", 1), record("b", 2), record("a", 1)];
        let found = differing_records(&here, &there);
        let found: Vec<_> = found
            .iter()
            .map(|it| (String::from_utf8_lossy(&it.key).into_owned(), it.is_here, it.is_there))
            .collect();
        let expected = [("b", true, true), ("c", true, false), ("d", false, true)];
        assert_eq!(found, expected.map(|(key, here, there)| (key.to_owned(), here, there)));
        assert!(differing_records(&here, &here).is_empty());
    }
}
