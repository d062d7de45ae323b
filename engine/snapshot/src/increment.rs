//! What a layer has beyond layers of an earlier set, found by comparing their records.
//!
//! How the layer was made plays no role: whatever is found, merging it with its sources gives the
//! bytes of the layer. A comparison that fails to find short increments costs transfer and nothing
//! else.

use crate::format::hash_key;
use crate::homed::HomedTable;
use crate::map::MappedFile;
use crate::merge::{Head, LayerSource, Merge};
use crate::reader::{CorruptRecord, Layer};
use crate::record::EncodedRecord;
use crate::writer::HomedPrefixes;
use std::vec::Vec;

/// Records of a candidate that have to be in the layer, before both are compared in full.
const SAMPLE_COUNT: usize = 16;
/// How often a comparison starts again without a candidate that has other records.
const RESTARTS_MAX: usize = 3;
/// Records between two releases of the pages that were read.
const FORGET_EVERY: u64 = 1 << 12;

/// What has to be merged with layers of an earlier set, the sources, to get a new layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerIncrement {
    /// When the new layer was built, Unix milliseconds.
    pub created_unix_ms: u64,
    /// Whether the new layer has none of the tombstones of its sources.
    pub drops_tombstones: bool,
    /// The homed prefixes of the new layer, if they are not those of the first source that has
    /// some.
    pub homed: Option<HomedPrefixes>,
    /// Positions of the sources among the old layers, ascending.
    pub sources: Vec<usize>,
    /// The records of the new layer that the sources do not have, as they are in the layer.
    pub records: Vec<u8>,
}

/// What comparing a layer with sources found.
enum Comparison {
    /// The records that the sources lack.
    Lacking(Vec<u8>),
    /// The source at this position has a record that the layer does not have.
    Beyond(usize),
    /// The sources lack more than is allowed.
    TooMuch,
}

/// Compares a new layer with layers of an earlier set that the new set does not name, newest first.
///
/// `is_oldest`: whether the new layer is the oldest of its set. Returns `None` if the increment
/// would be longer than `len_max` bytes, or not shorter than the layer.
///
/// # Errors
/// When a layer is damaged.
pub fn increment(
    new: &Layer<MappedFile>,
    is_oldest: bool,
    old: &[&Layer<MappedFile>],
    len_max: usize,
) -> Result<Option<LayerIncrement>, CorruptRecord> {
    let len_max = len_max.min(usize::try_from(new.header().file_len).unwrap_or(usize::MAX));
    let drops_tombstones = is_oldest && new.tombstones_count() == 0;
    let mut sources = Vec::new();
    for (at, layer) in old.iter().enumerate() {
        if seems_included(layer, new, drops_tombstones)? {
            sources.push(at);
        }
    }
    let mut restarts = 0;
    let records = loop {
        let layers: Vec<_> = sources.iter().map(|&at| old[at]).collect();
        match compare(new, &layers, drops_tombstones, len_max)? {
            Comparison::Lacking(records) => break records,
            Comparison::Beyond(at) if restarts < RESTARTS_MAX => {
                sources.remove(at);
                restarts += 1;
            }
            Comparison::Beyond(_) | Comparison::TooMuch => return Ok(None),
        }
    };
    let inherited = sources.iter().find_map(|&at| old[at].homed());
    let homed = match (new.homed(), inherited) {
        // A merge with these sources would have a table.
        (None, Some(_)) => return Ok(None),
        (None, None) => None,
        (Some(homed), Some(inherited)) if are_equal(&homed, &inherited) => None,
        (Some(homed), _) => Some(HomedPrefixes::of(homed)),
    };
    let homed_len = homed.as_ref().map_or(0, HomedPrefixes::list_len);
    let created_unix_ms = new.created_unix_ms();
    Ok((records.len() + homed_len <= len_max).then_some(LayerIncrement {
        created_unix_ms,
        drops_tombstones,
        homed,
        sources,
        records,
    }))
}

fn are_equal(one: &HomedTable<'_>, other: &HomedTable<'_>) -> bool {
    one.len() == other.len() && one.iter().eq(other.iter())
}

/// Whether `new` hashes like `layer` and has its first records, or later forms of them.
fn seems_included(
    layer: &Layer<MappedFile>,
    new: &Layer<MappedFile>,
    drops_tombstones: bool,
) -> Result<bool, CorruptRecord> {
    if (layer.seed(), layer.folds()) != (new.seed(), new.folds()) {
        return Ok(false);
    }
    for record in layer.records().take(SAMPLE_COUNT) {
        let record = record?;
        let is_there = new.find(hash_key(new.seed(), record.key()), record.key())?.is_some();
        if !(is_there || drops_tombstones && record.is_tombstone()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Walks through the layer and a merge of the sources side by side.
fn compare(
    new: &Layer<MappedFile>,
    sources: &[&Layer<MappedFile>],
    drops_tombstones: bool,
    len_max: usize,
) -> Result<Comparison, CorruptRecord> {
    let parts = sources.iter().map(|layer| layer.records()).collect();
    let mut merge = Merge::of_records(new.seed(), parts)?;
    let mut pages = ReadPages { new, sources, forgotten: std::vec![0; sources.len() + 1] };
    let mut lacking = Vec::new();
    let is_dropped = |head: &Head<'_>| drops_tombstones && head.record.is_tombstone();
    let mut records = new.records();
    let mut records_count = 0_u64;
    while let Some(record) = records.next().transpose()? {
        let hash = hash_key(new.seed(), record.key());
        while let Some((at, head)) = merge.head_of().filter(|(_, head)| is_before(head, hash, &record)) {
            if !is_dropped(&head) {
                return Ok(Comparison::Beyond(at));
            }
            merge.pass(&head)?;
        }
        let found = merge.head_of().map(|(_, head)| head).filter(|head| has_key(head, hash, &record));
        if let Some(head) = &found {
            merge.pass(head)?;
        }
        if found.is_none_or(|head| head.record.as_bytes() != record.as_bytes()) {
            lacking.extend_from_slice(record.as_bytes());
            if lacking.len() > len_max {
                return Ok(Comparison::TooMuch);
            }
        }
        records_count += 1;
        if records_count.is_multiple_of(FORGET_EVERY) {
            pages.forget(records.at(), &merge);
        }
    }
    while let Some((at, head)) = merge.head_of() {
        if !is_dropped(&head) {
            return Ok(Comparison::Beyond(at));
        }
        merge.pass(&head)?;
    }
    Ok(Comparison::Lacking(lacking))
}

fn is_before(head: &Head<'_>, hash: u64, record: &EncodedRecord<'_>) -> bool {
    (head.hash, head.record.key()) < (hash, record.key())
}

fn has_key(head: &Head<'_>, hash: u64, record: &EncodedRecord<'_>) -> bool {
    (head.hash, head.record.key()) == (hash, record.key())
}

impl<'a> Merge<LayerSource<'a>> {
    /// The next record, and the position of its source.
    fn head_of(&self) -> Option<(usize, Head<'a>)> {
        let at = self.head_source()?;
        Some((at, self.sources()[at].head_record()?))
    }

    /// Moves past all records with the key of this one.
    fn pass(&mut self, passed: &Head<'_>) -> Result<(), CorruptRecord> {
        while self.head_of().is_some_and(|(_, head)| has_key(&head, passed.hash, &passed.record)) {
            self.advance()?;
        }
        Ok(())
    }
}

/// Releases pages of layers that are read from start to end.
struct ReadPages<'l> {
    new: &'l Layer<MappedFile>,
    sources: &'l [&'l Layer<MappedFile>],
    /// Up to where pages were released: of the new layer first, then of the sources.
    forgotten: Vec<u64>,
}

impl ReadPages<'_> {
    fn forget(&mut self, read_to: u64, merge: &Merge<LayerSource<'_>>) {
        let layers = core::iter::once(self.new).chain(self.sources.iter().copied());
        let ends = core::iter::once(read_to).chain(merge.sources().iter().map(LayerSource::read_to));
        for ((layer, from), to) in layers.zip(&mut self.forgotten).zip(ends) {
            if to - *from >= crate::verify::PASS_LEN as u64 {
                layer.bytes().forget(*from..to);
                *from = to;
            }
        }
    }
}
