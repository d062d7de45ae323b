//! Compares records value by value, and all records of two tables.
//!
//! Of two tables, the records of each are read in order and looked up in the other. No digests are
//! needed: the records themselves are compared. Memory does not depend on their number.

use super::table::{ListingScope, ReconcileTable};
use crate::progress;
use anyhow::Context as _;
use crossbeam_channel::{Sender, bounded};
use handle_proto::{Handle, Value};
use handle_snapshot::comparison::ComparisonScope;
use handle_snapshot::{EncodedRecord, HomedTable, hash_key};
use std::cmp::Ordering;

/// Findings that wait to be shown.
const QUEUE: usize = 256;

/// How a record differs.
pub(super) enum Difference {
    /// It is wanted and not there.
    Missing,
    /// Values with these indexes are missing, different or extra.
    Different(Vec<i32>),
    /// It is there and not wanted.
    Extra,
    /// It is not known whether it differs, for this reason.
    Unanswered(String),
    /// The server does not home the prefix of its record: it is left out.
    NotHomed,
}

/// A record that differs.
pub(super) struct Finding {
    pub(super) handle: Vec<u8>,
    pub(super) difference: Difference,
    /// The wanted values in wire form, unless only its name is known.
    pub(super) wanted: Option<WantedValues>,
    /// Whether there may be values that could not be read, on either side. A repair would lose
    /// them.
    pub(super) is_partial: bool,
}

/// Values in wire form.
#[derive(Clone)]
pub(super) struct WantedValues {
    pub(super) count: usize,
    pub(super) encoded: Vec<u8>,
}

impl WantedValues {
    pub(super) fn of(record: &EncodedRecord<'_>) -> anyhow::Result<Self> {
        let mut encoded = Vec::new();
        Ok(Self { count: record.encode_values(&mut encoded)?, encoded })
    }
}

/// The indexes of values that are not the same in both records, in ascending order.
pub(super) fn differing_indexes<'a>(
    wanted: impl IntoIterator<Item = Value<'a>>,
    found: impl IntoIterator<Item = Value<'a>>,
    has_timestamps: bool,
) -> Vec<i32> {
    let compared = |value: Value<'a>| Value {
        timestamp: if has_timestamps { value.timestamp } else { 0 },
        permissions: value.permissions.known(),
        ..value
    };
    let mut wanted: Vec<_> = wanted.into_iter().map(compared).collect();
    let mut found: Vec<_> = found.into_iter().map(compared).collect();
    wanted.sort_by_key(|value| value.index);
    found.sort_by_key(|value| value.index);
    let (mut wanted, mut found) = (wanted.as_slice(), found.as_slice());
    let mut differing = Vec::new();
    while let Some(value) = wanted.first().into_iter().chain(found.first()).min_by_key(|value| value.index) {
        let index = value.index;
        let [ours, theirs] = [&mut wanted, &mut found].map(|values| {
            let count = values.partition_point(|value| value.index.cmp(&index) == Ordering::Equal);
            let (these, rest) = values.split_at(count);
            *values = rest;
            these
        });
        if ours != theirs {
            differing.push(index);
        }
    }
    differing
}

/// The part of records that is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompareOptions {
    pub(super) scope: ComparisonScope,
    /// Whether one side does not show all values.
    pub(super) public_only: bool,
}

/// Records that are not compared with what a server answers, because their prefix is not homed: the
/// record of a prefix is at the registry, and a copy in the set is not served. If the server listed
/// some prefixes only, those of all others.
#[derive(Default)]
pub(super) struct LeftOutRecords {
    pub(super) count: u64,
    /// The first of them.
    pub(super) first: Vec<Vec<u8>>,
}

impl LeftOutRecords {
    /// Number of names that are kept.
    const FIRST_MAX: usize = 3;

    pub(super) fn add(&mut self, key: &[u8]) {
        self.count += 1;
        if self.first.len() < Self::FIRST_MAX {
            self.first.push(key.to_vec());
        }
    }

    /// Whether the record is compared; counts it if not.
    pub(super) fn lets_through(
        &mut self,
        homed: Option<HomedTable<'_>>,
        key: &[u8],
        is_folded: bool,
    ) -> bool {
        self.lets_through_if(homed.is_none_or(|homed| homed.has_record(key, is_folded)), key)
    }

    /// The same, by what is known about the record.
    pub(super) fn lets_through_if(&mut self, is_homed: bool, key: &[u8]) -> bool {
        if !is_homed {
            self.add(key);
        }
        is_homed
    }
}

/// Number of handles compared, and those left out.
#[derive(Default)]
pub(super) struct ComparedRecords {
    pub(super) count: u64,
    pub(super) left_out: LeftOutRecords,
}

impl CompareOptions {
    /// Compares the record of a handle on both sides; `None` if it is the same.
    fn judge(
        self,
        record: &EncodedRecord<'_>,
        other: Option<EncodedRecord<'_>>,
    ) -> anyhow::Result<Option<Difference>> {
        let Some(other) = other else { return Ok(Some(Difference::Missing)) };
        if self.scope == ComparisonScope::Names || is_same(record, &other) {
            return Ok(None);
        }
        let wanted = record.values_in_order().collect::<Result<Vec<_>, _>>()?;
        let found = other.values_in_order().collect::<Result<Vec<_>, _>>()?;
        let is_compared = |value: &&Value<'_>| !self.public_only || value.is_public();
        let [wanted, found] = [&wanted, &found].map(|values| values.iter().filter(is_compared).copied());
        let has_timestamps = self.scope == ComparisonScope::ValuesAndTimestamps;
        let indexes = differing_indexes(wanted, found, has_timestamps);
        Ok((!indexes.is_empty()).then_some(Difference::Different(indexes)))
    }
}

/// Compares all records, and returns the number of different handles. Records that are not homed
/// are left out if the other side is the listing of a server.
pub(super) fn tables(
    wanted: &ReconcileTable,
    found: &ReconcileTable,
    options: CompareOptions,
    take: &mut dyn FnMut(Finding) -> anyhow::Result<()>,
) -> anyhow::Result<ComparedRecords> {
    let bar = progress::bar("comparing", Some(wanted.count() + found.count()));
    let (send, findings) = bounded(QUEUE);
    let compared = std::thread::scope(|scope| {
        let (first, bar_of_first) = (send.clone(), bar.clone());
        let both = scope.spawn(move || {
            let pass = TablePass { from: wanted, to: found, bar: bar_of_first, send: first };
            pass.run(|record, other| {
                let Some(difference) = options.judge(&record, other)? else { return Ok(None) };
                let values = (!wanted.has_names_only()).then(|| WantedValues::of(&record)).transpose()?;
                Ok(Some(finding(&record, difference, values, options.public_only)))
            })
        });
        let bar_of_extra = bar.clone();
        let extra = scope.spawn(move || {
            let pass = TablePass { from: found, to: wanted, bar: bar_of_extra, send };
            let mut count = 0;
            pass.run(|record, other| {
                let is_extra = other.is_none();
                count += u64::from(is_extra);
                Ok(is_extra.then(|| finding(&record, Difference::Extra, None, false)))
            })
            .map(|all| ComparedRecords { count, ..all })
        });
        let taken = findings.iter().try_for_each(&mut *take);
        // Ends both passes if the rest is not wanted.
        drop(findings);
        let [both, extra] =
            [both, extra].map(|pass| pass.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        taken?;
        let (both, extra) = (both?, extra?);
        let left_out = if wanted.listing().is_some() { extra.left_out } else { both.left_out };
        anyhow::Ok(ComparedRecords { count: both.count + extra.count, left_out })
    });
    bar.finish_and_clear();
    compared
}

fn finding(
    record: &EncodedRecord<'_>,
    difference: Difference,
    wanted: Option<WantedValues>,
    is_partial: bool,
) -> Finding {
    Finding { handle: record.key().to_vec(), difference, wanted, is_partial }
}

/// Whether two records have the same bytes. Records with other bytes may still have the same
/// values.
fn is_same(one: &EncodedRecord<'_>, other: &EncodedRecord<'_>) -> bool {
    one.public_bytes() == other.public_bytes() && one.private().rest() == other.private().rest()
}

/// Looks up the records of one table in another.
struct TablePass<'a> {
    from: &'a ReconcileTable,
    to: &'a ReconcileTable,
    bar: indicatif::ProgressBar,
    send: Sender<Finding>,
}

impl TablePass<'_> {
    /// Passes each record to `judge`, with that of the same handle in the other table, and sends
    /// what it finds. Returns the number of records.
    fn run(
        &self,
        mut judge: impl FnMut(EncodedRecord<'_>, Option<EncodedRecord<'_>>) -> anyhow::Result<Option<Finding>>,
    ) -> anyhow::Result<ComparedRecords> {
        const STEP: u64 = 1 << 14;
        let to = self.to.records()?;
        let homed = match self.to.listing() {
            // A file without homed prefixes is compared with what the server has listed.
            Some(ListingScope::Homed) => self.from.homed()?.or(self.to.homed()?),
            Some(ListingScope::Prefixes) => self.to.homed()?,
            None => None,
        };
        let folds = to.folds();
        let (mut count, mut left_out) = (0, LeftOutRecords::default());
        self.from.each(|record| {
            let key = record.key();
            if !left_out.lets_through(homed, key, folds) {
                return Ok(());
            }
            let other = to.find(hash_key(to.seed(), key), key).with_context(|| Handle(key).to_string())?;
            if let Some(finding) = judge(record, other)? {
                self.send.send(finding).ok().context("the comparison was stopped")?;
            }
            count += 1;
            if count % STEP == 0 {
                self.bar.inc(STEP);
            }
            Ok(())
        })?;
        Ok(ComparedRecords { count, left_out })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Permissions;
    use handle_proto::value::Ttl;

    #[test]
    fn values_differ_by_index_whatever_their_order() {
        let (url, mail) = (Value::new(1, b"URL", b"a"), Value::new(2, b"EMAIL", b"b"));
        let later = Value { timestamp: 7, ..url };
        let differing = |wanted: &[Value<'static>], found: &[Value<'static>], has_timestamps| {
            differing_indexes(wanted.iter().copied(), found.iter().copied(), has_timestamps)
        };
        let none: [i32; 0] = [];
        assert_eq!(differing(&[url, mail], &[mail, url], true), none);
        assert_eq!(differing(&[url], &[later], false), none);
        assert_eq!(differing(&[url], &[later], true), [1]);
        assert_eq!(differing(&[url], &[mail], true), [1, 2]);
        assert_eq!(differing(&[url, mail], &[], false), [1, 2]);
        assert_eq!(differing(&[], &[], false), none);
        // Bits without a meaning are not stored by deployed software.
        let unknown = Value { permissions: Permissions(url.permissions.0 | 0x30), ..url };
        assert_eq!(differing(&[url], &[unknown], false), none);
        for other in [
            Value { permissions: Permissions(0x0c), ..url },
            Value { ttl: Ttl::absolute(5), ..url },
            Value { data: b"A", ..url },
            Value { kind: b"url", ..url },
        ] {
            assert_eq!(differing(&[url], &[other], false), [1], "{other:?}");
        }
    }
}
