//! Several layers as one: the newest that knows a handle decides.

use crate::reader::{Corrupt, Layer, Probe};
use crate::record::Record;
use core::fmt;

/// Layers of one set, newest first: what a resolver takes.
#[derive(Debug)]
pub struct Records<'a, B>(&'a [Layer<B>]);

impl<B> Clone for Records<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Records<'_, B> {}

/// Two layers of a set do not hash or fold alike.
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

/// A lookup between its steps; 32 bytes, without allocation, for an array beside each batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Staged {
    hash: u64,
    layer: usize,
    probe: Probe,
}
const _: () = assert!(size_of::<Staged>() <= 32, "two in a line of the cache");

impl<'a, B: AsRef<[u8]>> Records<'a, B> {
    /// Takes layers, newest first.
    ///
    /// # Errors
    /// When their seeds or case rules differ.
    pub fn new(layers: &'a [Layer<B>]) -> Result<Self, MixedLayers> {
        let differs = |layer: &Layer<B>| {
            layers.first().is_some_and(|first| layer.seed() != first.seed() || layer.folds() != first.folds())
        };
        match layers.iter().position(differs) {
            Some(layer) => Err(MixedLayers { layer }),
            None => Ok(Self(layers)),
        }
    }

    /// As [`new`](Self::new), for layers already known to be alike.
    #[cfg(feature = "std")]
    pub(crate) const fn new_alike(layers: &'a [Layer<B>]) -> Self {
        Self(layers)
    }

    /// The layers, newest first.
    #[must_use]
    pub const fn layers(&self) -> &'a [Layer<B>] {
        self.0
    }

    /// Seed of [`hash_key`](crate::hash_key).
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.first().map_or(0, Layer::seed)
    }

    /// Whether local names fold. See [`fold_key`](crate::fold_key).
    #[must_use]
    pub fn folds(&self) -> bool {
        self.0.first().is_none_or(Layer::folds)
    }

    /// The record of a key in the newest layer that has one; `None` also when that is a tombstone.
    ///
    /// # Errors
    /// When an index leads to something that is not a record.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8]) -> Result<Option<Record<'a>>, Corrupt> {
        find(self.0, hash, key)
    }

    /// Whether the prefix, in any case, is homed: what the newest layer with a table says.
    #[must_use]
    pub fn homed(&self, prefix: &[u8]) -> bool {
        self.homed_table().is_some_and(|homed| homed.has(prefix))
    }

    /// The table of homed prefixes that counts.
    #[must_use]
    pub fn homed_table(&self) -> Option<crate::Homed<'a>> {
        self.0.iter().find_map(Layer::homed)
    }

    /// First step of a lookup: starts loading the buckets of all layers.
    #[inline]
    pub fn prefetch_index(&self, hash: u64) {
        for layer in self.0 {
            layer.prefetch_index(hash);
        }
    }

    /// Second step: reads buckets, newest first, up to the first that has the fingerprint.
    #[inline]
    #[must_use]
    pub fn probe(&self, hash: u64) -> Staged {
        for (n, layer) in self.0.iter().enumerate() {
            let probe = layer.probe(hash);
            if !probe.is_miss() {
                return Staged { hash, layer: n, probe };
            }
        }
        Staged { hash, layer: self.0.len(), probe: Probe::default() }
    }

    /// Third step: starts loading the record.
    #[inline]
    pub fn prefetch_record(&self, staged: &Staged) {
        if let Some(layer) = self.0.get(staged.layer) {
            layer.prefetch_record(&staged.probe);
        }
    }

    /// Last step, which gives what [`find`](Self::find) gives for the same hash and key.
    ///
    /// # Errors
    /// When an index leads to something that is not a record.
    #[inline]
    pub fn resolve(&self, staged: &Staged, key: &[u8]) -> Result<Option<Record<'a>>, Corrupt> {
        let Some((layer, older)) = self.0.get(staged.layer..).and_then(<[_]>::split_first) else {
            return Ok(None);
        };
        match layer.resolve(&staged.probe, staged.hash, key)? {
            Some(record) => Ok(Some(record).filter(|record| !record.is_tombstone())),
            // Only the fingerprint was the same, which happens once in a million lookups.
            None => find(older, staged.hash, key),
        }
    }
}

#[inline]
fn find<'a, B: AsRef<[u8]>>(
    layers: &'a [Layer<B>],
    hash: u64,
    key: &[u8],
) -> Result<Option<Record<'a>>, Corrupt> {
    for layer in layers {
        if let Some(record) = layer.find(hash, key)? {
            return Ok(Some(record).filter(|record| !record.is_tombstone()));
        }
    }
    Ok(None)
}
