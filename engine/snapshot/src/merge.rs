//! Merges several sorted inputs: runs of a builder, or layers of a set.

use crate::format::hash_key;
use crate::reader::{CorruptRecord, Layer, LayerRecords};
use crate::record::EncodedRecord;
use crate::writer::{BuildError, HomedPrefixes, LayerWriter};
use core::cmp::Ordering;
use core::ops::ControlFlow;
use std::io::{Seek, Write};
use std::vec::Vec;

/// A source of records in the order of (hash, key).
pub(crate) trait Source {
    /// The error of reading the next record.
    type Error;
    /// The next record; `None` at the end.
    fn head(&self) -> Option<Head<'_>>;
    /// Moves to the record after it.
    fn advance(&mut self) -> Result<(), Self::Error>;
}

/// The next record of a source.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub hash: u64,
    pub origin: u64,
    pub record: EncodedRecord<'a>,
}

/// A binary heap of sources. Of equal records, that of the earlier source comes first.
pub(crate) struct Merge<S> {
    sources: Vec<S>,
    heap: Vec<HeapEntry>,
}

/// A source that has a next record.
#[derive(Clone, Copy)]
struct HeapEntry {
    /// The hash of the record, which alone nearly always decides the order.
    hash: u64,
    source: usize,
}

impl<S: Source> Merge<S> {
    pub(crate) fn new(sources: Vec<S>) -> Self {
        let entry = |(source, it): (usize, &S)| Some(HeapEntry { hash: it.head()?.hash, source });
        let heap = sources.iter().enumerate().filter_map(entry).collect();
        let mut merge = Self { sources, heap };
        for at in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(at);
        }
        merge
    }

    pub(crate) fn head(&self) -> Option<Head<'_>> {
        self.sources[self.heap.first()?.source].head()
    }

    pub(crate) fn advance(&mut self) -> Result<(), S::Error> {
        if let Some(first) = self.heap.first_mut() {
            let source = &mut self.sources[first.source];
            source.advance()?;
            match source.head().map(|head| head.hash) {
                Some(hash) => first.hash = hash,
                None => drop(self.heap.swap_remove(0)),
            }
            self.sift_down(0);
        }
        Ok(())
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let mut first = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.is_before(self.heap[child], self.heap[first]) {
                    first = child;
                }
            }
            if first == at {
                return;
            }
            self.heap.swap(at, first);
            at = first;
        }
    }

    fn is_before(&self, a: HeapEntry, b: HeapEntry) -> bool {
        let key = |entry: HeapEntry| self.sources[entry.source].head().map(|head| head.record.key());
        let order = a.hash.cmp(&b.hash).then_with(|| key(a).cmp(&key(b)));
        order.then(a.source.cmp(&b.source)) == Ordering::Less
    }
}

/// Records between two calls of the progress function of a merge.
const PROGRESS_EVERY: u64 = 1 << 12;

/// Progress of a merge.
pub struct MergeProgress<'a> {
    records_count: u64,
    written_len: u64,
    sources: &'a [LayerSource<'a>],
}

impl MergeProgress<'_> {
    /// Records read.
    #[must_use]
    pub const fn records_count(&self) -> u64 {
        self.records_count
    }

    /// Bytes written.
    #[must_use]
    pub const fn written_len(&self) -> u64 {
        self.written_len
    }

    /// For each layer, the offset in its file of the first record that was not read yet.
    pub(crate) fn read_to(&self) -> impl Iterator<Item = u64> {
        self.sources.iter().map(LayerSource::read_to)
    }
}

impl core::fmt::Debug for MergeProgress<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Merging").field("records_count", &self.records_count).finish_non_exhaustive()
    }
}

/// The records of a layer, or of a part of one, as a source of a merge.
pub(crate) struct LayerSource<'a> {
    records: LayerRecords<'a>,
    seed: u64,
    head: Option<Head<'a>>,
}

impl<'a> LayerSource<'a> {
    /// The next record.
    pub(crate) const fn head_record(&self) -> Option<Head<'a>> {
        self.head
    }

    /// Offset of the first record that was not read yet.
    pub(crate) fn read_to(&self) -> u64 {
        // The record at the head is a view of the bytes before the next one.
        let head_len = self.head.map_or(0, |head| head.record.as_bytes().len());
        self.records.at() - head_len as u64
    }
}

impl<'a> Merge<LayerSource<'a>> {
    /// The records of `parts`, newest first, all of which are in the order of hashes with `seed`.
    pub(crate) fn of_records(seed: u64, parts: Vec<LayerRecords<'a>>) -> Result<Self, CorruptRecord> {
        let mut sources = Vec::with_capacity(parts.len());
        for records in parts {
            let mut source = LayerSource { records, seed, head: None };
            source.advance()?;
            sources.push(source);
        }
        Ok(Self::new(sources))
    }

    /// The source whose record comes next.
    pub(crate) fn head_source(&self) -> Option<usize> {
        self.heap.first().map(|entry| entry.source)
    }

    /// The sources.
    pub(crate) fn sources(&self) -> &[LayerSource<'a>] {
        &self.sources
    }
}

impl Source for LayerSource<'_> {
    type Error = CorruptRecord;

    fn head(&self) -> Option<Head<'_>> {
        self.head
    }

    fn advance(&mut self) -> Result<(), CorruptRecord> {
        let at = self.records.at();
        let record = self.records.next().transpose()?;
        // A damaged record must not be copied into a new layer.
        if record.is_some_and(|record| !record.is_whole()) {
            return Err(CorruptRecord { at });
        }
        self.head = record.map(|record| Head { hash: hash_key(self.seed, record.key()), origin: 0, record });
        Ok(())
    }
}

/// Merges `layers`, newest first, into one layer with the same content.
///
/// With `keep_tombstones`, for layers that have others below them, deletions stay; without it, for
/// all layers of a set, they are dropped. `progress` is called from time to time, and may stop the
/// merge.
///
/// # Errors
/// When a layer is damaged, the output cannot be written, or `progress` stopped the merge.
///
/// # Panics
/// When the seed or case rule of a layer is not that of `out`.
pub fn merge<W: Write + Seek, B: AsRef<[u8]>>(
    layers: &[Layer<B>],
    keep_tombstones: bool,
    out: LayerWriter<W>,
    progress: impl FnMut(&MergeProgress<'_>) -> ControlFlow<()>,
) -> Result<(W, crate::format::LayerHeader), BuildError> {
    let options = out.options();
    for layer in layers {
        assert!(
            layer.seed() == options.seed && layer.folds() == options.folds,
            "layers that are merged hash alike"
        );
    }
    let homed = layers.iter().find_map(Layer::homed).map(HomedPrefixes::of);
    let parts = layers.iter().map(Layer::records).collect();
    merge_parts(parts, homed.as_ref(), keep_tombstones, out, progress)
}

/// Merges records of several sources, newest first, into one layer with this table of homed
/// prefixes. The bytes of the layer depend on nothing else but the options of `out`.
///
/// # Errors
/// As [`merge`], and when the records of a source are not in ascending order of (hash, key).
pub(crate) fn merge_parts<W: Write + Seek>(
    parts: Vec<LayerRecords<'_>>,
    homed: Option<&HomedPrefixes>,
    keep_tombstones: bool,
    mut out: LayerWriter<W>,
    mut progress: impl FnMut(&MergeProgress<'_>) -> ControlFlow<()>,
) -> Result<(W, crate::format::LayerHeader), BuildError> {
    let mut merge = Merge::of_records(out.options().seed, parts)?;
    let mut last: Option<(u64, Vec<u8>)> = None;
    let mut records_count = 0_u64;
    while let Some(Head { hash, record, .. }) = merge.head() {
        // Of records with the same key the newest comes first, and hides those after it.
        let is_hidden = last.as_ref().is_some_and(|last| last.0 == hash && last.1 == record.key());
        if !is_hidden {
            let key = last.get_or_insert_default();
            key.0 = hash;
            key.1.clear();
            key.1.extend_from_slice(record.key());
            if keep_tombstones || !record.is_tombstone() {
                out.push_hashed(hash, &record)?;
            }
        }
        merge.advance()?;
        records_count += 1;
        let is_last = merge.head().is_none();
        if records_count.is_multiple_of(PROGRESS_EVERY) || is_last {
            let merging = MergeProgress { records_count, written_len: out.len(), sources: &merge.sources };
            if progress(&merging).is_break() {
                return Err(BuildError::Stopped);
            }
        }
    }
    out.finish(homed)
}
