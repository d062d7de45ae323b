//! Several layers as one. The newest layer that has a handle decides.

use crate::index::Candidate;
use crate::reader::{CorruptRecord, Layer, LayerView, Trust};
use crate::record::EncodedRecord;
use core::fmt;

/// The layers of a set, newest first, as a resolver uses them.
#[derive(Debug)]
pub struct RecordSet<'a, B> {
    layers: &'a [Layer<B>],
    /// Views of the newest layers.
    at_hand: [LayerView<'a>; AT_HAND],
    seed: u64,
    /// Position of the layer that vouches for its records; an invalid position if no layer does.
    vouching: u32,
}

/// Number of layers with a view. A base and the usual deltas above it fit.
const AT_HAND: usize = 4;

impl<B> Clone for RecordSet<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for RecordSet<'_, B> {}

/// Two layers of a set differ in seed or case rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixedLayers {
    /// Position of the layer that differs from the first.
    pub layer: usize,
}

impl fmt::Display for MixedLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} was built with another seed or another case rule than layer 0", self.layer)
    }
}

impl core::error::Error for MixedLayers {}

/// A lookup between its steps: small, and without allocation, so that a batch can keep an array of
/// them.
// Small enough to be returned in registers. A value that is written to memory in parts and then
// copied as a whole makes the processor wait for all earlier memory accesses, including the loads
// of records.
#[derive(Clone, Copy, Debug, Default)]
pub struct StagedLookup {
    /// Offset of the candidate.
    at: u64,
    slots_seen: u32,
    /// Position of its layer.
    layer: u32,
}
const _: () = assert!(size_of::<StagedLookup>() <= 16, "two registers");

impl StagedLookup {
    #[inline]
    const fn new(Candidate { at, slots_seen }: Candidate, layer: u32) -> Self {
        Self { at, slots_seen, layer }
    }

    #[inline]
    const fn candidate(self) -> Candidate {
        Candidate { at: self.at, slots_seen: self.slots_seen }
    }
}

impl<'a, B: AsRef<[u8]>> RecordSet<'a, B> {
    /// Makes a set of layers, newest first.
    ///
    /// # Errors
    /// When their seeds or case rules differ.
    pub fn new(layers: &'a [Layer<B>]) -> Result<Self, MixedLayers> {
        let differs = |layer: &Layer<B>| {
            layers.first().is_some_and(|first| layer.seed() != first.seed() || layer.folds() != first.folds())
        };
        match layers.iter().position(differs) {
            Some(layer) => Err(MixedLayers { layer }),
            None => Ok(Self::new_alike(layers)),
        }
    }

    /// As [`new`](Self::new), for layers that are known to have the same seed and case rule.
    pub(crate) fn new_alike(layers: &'a [Layer<B>]) -> Self {
        // The newest table of homed prefixes is the one that counts.
        let table = (0..).zip(layers).find(|(_, layer)| layer.has_homed());
        let vouching = table.and_then(|(n, layer)| layer.is_within().then_some(n)).unwrap_or(u32::MAX);
        let mut at_hand = [LayerView::default(); AT_HAND];
        for (n, (view, layer)) in (0..).zip(at_hand.iter_mut().zip(layers)) {
            *view = layer.view(vouching == n);
        }
        Self { layers, at_hand, seed: layers.first().map_or(0, Layer::seed), vouching }
    }

    /// The layers, newest first.
    #[must_use]
    pub const fn layers(&self) -> &'a [Layer<B>] {
        self.layers
    }

    /// Whether the set is too old to be served. Its lookups then return [`CorruptRecord`].
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.layers.first().is_some_and(|layer| layer.trust() == Trust::Stale)
    }

    /// Seed of [`hash_key`](crate::hash_key).
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether local names are folded. See [`fold_key`](crate::fold_key).
    #[must_use]
    pub fn folds(&self) -> bool {
        self.layers.first().is_none_or(Layer::folds)
    }

    /// The record of a key in the newest layer that has one; `None` also if that is a tombstone.
    ///
    /// # Errors
    /// When an index points to something that is not a record.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8]) -> Result<Option<EncodedRecord<'a>>, CorruptRecord> {
        self.resolve(self.probe(hash), hash, key)
    }

    /// Whether the prefix, in any case, is homed according to the newest table.
    #[must_use]
    pub fn homed(&self, prefix: &[u8]) -> bool {
        self.homed_table().is_some_and(|homed| homed.has(prefix))
    }

    /// The table of homed prefixes that counts.
    #[must_use]
    pub fn homed_table(&self) -> Option<crate::HomedTable<'a>> {
        self.layers.iter().find_map(Layer::homed)
    }

    /// First step of a lookup: starts loading the buckets of all layers.
    #[inline]
    pub fn prefetch_index(&self, hash: u64) {
        let [newest, others @ ..] = &self.at_hand;
        newest.prefetch_index(hash);
        if self.layers.len() > 1 {
            self.present(others).for_each(|(_, layer)| layer.prefetch_index(hash));
            if self.layers.len() > AT_HAND {
                self.older(AT_HAND - 1).for_each(|(_, layer)| layer.prefetch_index(hash));
            }
        }
    }

    /// Second step: reads buckets, newest layer first, until one has the fingerprint.
    #[inline]
    #[must_use]
    pub fn probe(&self, hash: u64) -> StagedLookup {
        let [newest, others @ ..] = &self.at_hand;
        let candidate = newest.probe(hash);
        if !candidate.is_none() || self.layers.len() <= 1 {
            return StagedLookup::new(candidate, 0);
        }
        for (layer, view) in self.present(others) {
            let candidate = view.probe(hash);
            if !candidate.is_none() {
                return StagedLookup::new(candidate, layer);
            }
        }
        if self.layers.len() > AT_HAND { self.probe_older(hash) } else { StagedLookup::default() }
    }

    #[inline(never)]
    fn probe_older(&self, hash: u64) -> StagedLookup {
        for (layer, view) in self.older(AT_HAND - 1) {
            let candidate = view.probe(hash);
            if !candidate.is_none() {
                return StagedLookup::new(candidate, layer);
            }
        }
        StagedLookup::default()
    }

    /// Third step: starts loading the record.
    #[inline]
    pub fn prefetch_record(&self, staged: StagedLookup) {
        match (staged.layer, self.at_hand.get(staged.layer as usize)) {
            _ if staged.candidate().is_none() => {}
            (0, _) => self.at_hand[0].prefetch_record(staged.candidate()),
            (_, Some(view)) => view.prefetch_record(staged.candidate()),
            (older, None) => self.view(older).prefetch_record(staged.candidate()),
        }
    }

    /// Last step: returns what [`find`](Self::find) returns for the same hash and key.
    ///
    /// # Errors
    /// When an index points to something that is not a record.
    #[inline]
    pub fn resolve(
        &self,
        staged: StagedLookup,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<EncodedRecord<'a>>, CorruptRecord> {
        let found = match (staged.layer, self.at_hand.get(staged.layer as usize)) {
            _ if staged.candidate().is_none() => return Ok(None),
            (0, _) => self.at_hand[0].record_if(staged.candidate(), key)?,
            (_, Some(view)) => view.record_if(staged.candidate(), key)?,
            (older, None) => self.view(older).record_if(staged.candidate(), key)?,
        };
        match found {
            Some(record) => Ok((!record.is_tombstone()).then_some(record)),
            // Only the fingerprint was the same, which happens once in a million lookups.
            None => self.find_after(staged, hash, key),
        }
    }

    #[cold]
    fn find_after(
        &self,
        staged: StagedLookup,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<EncodedRecord<'a>>, CorruptRecord> {
        let mut found = self.view(staged.layer).find_after(staged.candidate(), hash, key)?;
        for (_, layer) in self.older(staged.layer as usize) {
            if found.is_some() {
                break;
            }
            found = layer.find(hash, key)?;
        }
        Ok(found.filter(|record| !record.is_tombstone()))
    }

    /// Those of the `views` after the first that there are, with their positions.
    #[inline]
    fn present<'v>(
        &self,
        others: &'v [LayerView<'a>],
    ) -> impl Iterator<Item = (u32, &'v LayerView<'a>)> + use<'a, 'v, B> {
        (1..).zip(others.iter().take(self.layers.len() - 1))
    }

    /// A layer by its position, newest first.
    #[cold]
    fn view(&self, layer: u32) -> LayerView<'a> {
        let vouches = layer == self.vouching;
        self.layers.get(layer as usize).map(|layer| layer.view(vouches)).unwrap_or_default()
    }

    /// The layers older than one, with their positions.
    fn older(&self, than: usize) -> impl Iterator<Item = (u32, LayerView<'a>)> + use<'a, B> {
        let vouching = self.vouching;
        let layers = (0..).zip(self.layers).skip(than + 1);
        layers.map(move |(n, layer)| (n, layer.view(n == vouching)))
    }
}
