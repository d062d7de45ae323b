//! The one writer of a directory.
//!
//! Publishing keeps this order, so that at every moment, also after a power failure, the directory
//! holds either the old set or the new one:
//!
//! 1. The new layer is written under a new name; its bytes are synced, its name is synced, all of
//!    it is verified.
//! 2. `MANIFEST.tmp` is written and synced.
//! 3. `MANIFEST.tmp` is renamed to `MANIFEST`, and the name is synced.
//! 4. Later, files that no set names any more are removed.

use super::manifest::{LAYERS_MAX, MANIFEST, MANIFEST_LEN_MAX, Manifest, is_layer_file};
use super::stager::{BuiltLayer, LayerPlace, NewLayer, Stager};
use super::storage::{DiskStorage, Storage};
use super::{SetError, SetErrorKind, check_alike, history, open_layer, parse_manifest};
use crate::format::FLAG_HOMED;
use crate::reader::Layer;
use crate::records::RecordSet;
use crate::writer::{BuildError, LayerOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::string::String;
use std::time::{Duration, SystemTime};
use std::vec::Vec;

/// Publishes sets into one directory.
pub struct SetPublisher<S: Storage = DiskStorage> {
    pub(super) stager: Stager<S>,
    current: Option<CurrentSet<S>>,
    /// Time when files of this publisher left the last set that named them, Unix milliseconds.
    retired: BTreeMap<String, u64>,
}

struct CurrentSet<S: Storage> {
    manifest: Manifest,
    layers: Vec<Layer<S::Bytes>>,
}

/// The files that [`SetPublisher::prune`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Number of files.
    pub files_count: usize,
    /// Bytes of the files.
    pub len: u64,
}

impl SetPublisher<DiskStorage> {
    /// Locks an existing directory, and reads the set that is published there.
    ///
    /// # Errors
    /// When another process has the lock, or the published set is not complete.
    pub fn open(dir: &Path) -> Result<Self, SetError> {
        match DiskStorage::lock(dir) {
            Ok(Some(disk)) => Self::with_storage(disk),
            Ok(None) => Err(SetError::new(dir, SetErrorKind::Locked)),
            Err(error) => Err(SetError::io(dir, "lock", error)),
        }
    }
}

impl<S: Storage> SetPublisher<S> {
    /// Publishes to any storage that behaves like a directory and has no other writer.
    ///
    /// # Errors
    /// When the published set is not complete.
    pub fn with_storage(storage: S) -> Result<Self, SetError> {
        let mut publisher = Self { stager: Stager::new(storage), current: None, retired: BTreeMap::new() };
        publisher.refresh()?;
        Ok(publisher)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        self.stager.storage.dir()
    }

    /// The MANIFEST of the published set.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.current.as_ref().map(|current| &current.manifest)
    }

    /// The properties that new layers must share with those that are published; `None` before the
    /// first.
    pub fn options(&self, created_unix_ms: u64) -> Option<LayerOptions> {
        let first = self.current.as_ref()?.layers.first()?;
        Some(LayerOptions { seed: first.seed(), folds: first.folds(), created_unix_ms })
    }

    /// The published layers as one.
    pub fn records(&self) -> Option<RecordSet<'_, S::Bytes>> {
        self.current.as_ref().map(|current| RecordSet::new_alike(&current.layers))
    }

    /// A writer of new layers. It can be used in another thread, and while other layers are
    /// published.
    pub fn stager(&self) -> Stager<S> {
        self.stager.clone()
    }

    /// Builds a layer and publishes it as the whole set. See [`Stager::stage`] for `write`.
    ///
    /// # Errors
    /// When the layer cannot be built or published. The published set then stays.
    pub fn publish_base(
        &mut self,
        now_unix_ms: u64,
        write: impl FnOnce(S::File, &Path) -> BuiltLayer<S>,
    ) -> Result<&Manifest, SetError> {
        let layer = self.stager.stage(LayerPlace::Base, write)?;
        self.publish(layer, now_unix_ms)
    }

    /// Builds a layer and publishes it above the others. See [`Stager::stage`] for `write`.
    ///
    /// # Errors
    /// When the layer cannot be built or published. The published set then stays.
    pub fn publish_delta(
        &mut self,
        now_unix_ms: u64,
        write: impl FnOnce(S::File, &Path) -> BuiltLayer<S>,
    ) -> Result<&Manifest, SetError> {
        let layer = self.stager.stage(LayerPlace::Delta, write)?;
        self.publish(layer, now_unix_ms)
    }

    /// Publishes a staged layer.
    ///
    /// # Errors
    /// When it does not fit the published set, or a system call fails. The published set then
    /// stays.
    pub fn publish(&mut self, layer: NewLayer, now_unix_ms: u64) -> Result<&Manifest, SetError> {
        self.publish_together(std::vec![layer], now_unix_ms)
    }

    /// Publishes staged layers in one step. Each takes its place in the set that results from those
    /// before it.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), and when `layers` is empty.
    pub fn publish_together(
        &mut self,
        layers: Vec<NewLayer>,
        now_unix_ms: u64,
    ) -> Result<&Manifest, SetError> {
        self.refresh()?;
        let manifest = self.candidate(&layers, now_unix_ms)?;
        self.replace(&manifest)
    }

    /// The set that [`publish_together`](Self::publish_together) would publish, for callers that
    /// inspect it first.
    ///
    /// # Errors
    /// When the layers do not fit the published set, or there are none.
    pub fn candidate(&self, layers: &[NewLayer], now_unix_ms: u64) -> Result<Manifest, SetError> {
        let generation = self.manifest().map_or(0, |manifest| manifest.generation) + 1;
        let (last, first) = layers.split_last().ok_or_else(|| {
            SetError::new(self.stager.storage.dir(), SetErrorKind::Refused("there is no new layer"))
        })?;
        let mut between: Option<CurrentSet<S>> = None;
        for layer in first {
            let manifest = self.plan(between.as_ref().or(self.current.as_ref()), layer, now_unix_ms)?;
            let layers = self.stager.open_layers(&manifest.layers)?;
            between = Some(CurrentSet { manifest, layers });
        }
        let manifest = self.plan(between.as_ref().or(self.current.as_ref()), last, now_unix_ms)?;
        Ok(Manifest { generation, ..manifest })
    }

    /// Publishes `manifest`.
    pub(super) fn replace(&mut self, manifest: &Manifest) -> Result<&Manifest, SetError> {
        // Noted before the rename, because an error may come when readers already see the new set.
        let gone = self.manifest().map_or(Vec::new(), |old| old.layers.clone());
        let gone = gone.into_iter().filter(|layer| !manifest.layers.contains(layer));
        self.retire(gone.map(|layer| layer.file), manifest.created_unix_ms);
        self.stager.replace(MANIFEST, &manifest.encode())?;
        self.refresh()?;
        // Another process may have removed it in the meantime.
        let missing = || SetError::new(self.dir(), SetErrorKind::NotPublished);
        self.current.as_ref().map(|current| &current.manifest).ok_or_else(missing)
    }

    /// Notes the time when files left a set.
    pub(super) fn retire(&mut self, files: impl IntoIterator<Item = String>, now_unix_ms: u64) {
        self.retired.extend(files.into_iter().map(|file| (file, now_unix_ms)));
    }

    /// The manifest of `old` with `layer` in it.
    fn plan(
        &self,
        old: Option<&CurrentSet<S>>,
        layer: &NewLayer,
        created_unix_ms: u64,
    ) -> Result<Manifest, SetError> {
        let manifest = self.try_plan(old, layer, created_unix_ms);
        manifest.map_err(|why| SetError::new(self.stager.path(&layer.entry.file), why))
    }

    fn try_plan(
        &self,
        old: Option<&CurrentSet<S>>,
        layer: &NewLayer,
        created_unix_ms: u64,
    ) -> Result<Manifest, SetErrorKind> {
        let generation = old.map_or(0, |old| old.manifest.generation) + 1;
        let header = &layer.header;
        let mut source = layer.source;
        let mut layers = old.map_or(Vec::new(), |old| old.manifest.layers.clone());
        let handles_count = match &layer.place {
            LayerPlace::Base => {
                layers = std::vec![layer.entry.clone()];
                header.handles_count
            }
            LayerPlace::Delta | LayerPlace::Absorbing(_) => {
                let old = old.ok_or(SetErrorKind::Refused(
                    "a delta needs a published set below it; publish a base first",
                ))?;
                let gone = if let LayerPlace::Absorbing(gone) = &layer.place { gone.as_slice() } else { &[] };
                if !layers.starts_with(gone) {
                    return Err(SetErrorKind::Refused(
                        "the layers that the new layer absorbs are no longer the newest of the set",
                    ));
                }
                layers.splice(..gone.len(), [layer.entry.clone()]);
                self.handles_with(layer, old)?
            }
            LayerPlace::InsteadOf(gone) => {
                let at = layers.windows(gone.len().max(1)).position(|some| some == gone);
                let at = at.ok_or(SetErrorKind::Refused(
                    "the layers that the new layer replaces are no longer in the set",
                ))?;
                layers.splice(at..at + gone.len(), [layer.entry.clone()]);
                source = old.and_then(|old| old.manifest.source);
                let is_all = layers.len() == 1;
                old.filter(|_| !is_all).map_or(header.handles_count, |old| old.manifest.handles_count)
            }
        };
        if let (Some(first), true) = (old.and_then(|old| old.layers.first()), layers.len() > 1)
            && (first.seed(), first.folds()) != (header.seed, header.flags & crate::format::FLAG_FOLDS != 0)
        {
            return Err(SetErrorKind::Mixed);
        }
        if layers.last() == Some(&layer.entry) && header.flags & FLAG_HOMED == 0 {
            return Err(SetErrorKind::Refused("the oldest layer must carry the table of homed prefixes"));
        }
        if layers.len() > LAYERS_MAX {
            return Err(SetErrorKind::Refused("the set has the maximum number of layers; merge some first"));
        }
        Ok(Manifest { generation, created_unix_ms, handles_count, source, layers })
    }

    /// Number of handles that are found once `layer` is above `old`.
    fn handles_with(&self, layer: &NewLayer, old: &CurrentSet<S>) -> Result<u64, SetErrorKind> {
        let io = |error| SetErrorKind::Io { doing: "open", error };
        let bytes = self.stager.storage.open(&layer.entry.file).map_err(io)?;
        let new = open_layer(bytes, &layer.entry)?;
        let below = RecordSet::new(&old.layers).map_err(|_| SetErrorKind::Mixed)?;
        if (new.seed(), new.folds()) != (below.seed(), below.folds()) {
            return Err(SetErrorKind::Mixed);
        }
        let mut count = old.manifest.handles_count;
        for record in new.records() {
            let corrupt = |error| SetErrorKind::Build(BuildError::Corrupt(error));
            let record = record.map_err(corrupt)?;
            let hash = crate::format::hash_key(below.seed(), record.key());
            let was_there = below.find(hash, record.key()).map_err(corrupt)?.is_some();
            match (was_there, record.is_tombstone()) {
                (false, false) => count += 1,
                (true, true) => count = count.saturating_sub(1),
                _ => {}
            }
        }
        // Scattered lookups map pages by the mebibyte, and these pages are not needed again soon.
        for layer in &old.layers {
            self.stager.storage.forget(layer.bytes(), 0..layer.bytes().as_ref().len() as u64);
        }
        Ok(count)
    }

    /// Reads the published set again. After a failed attempt it may differ from the set in memory.
    ///
    /// # Errors
    /// When it is not complete.
    pub fn refresh(&mut self) -> Result<(), SetError> {
        let storage = &*self.stager.storage;
        let manifest = parse_manifest(storage.dir(), storage.read(MANIFEST, MANIFEST_LEN_MAX))?;
        let Some(manifest) = manifest else {
            self.current = None;
            return Ok(());
        };
        if self.manifest() != Some(&manifest) {
            let layers = self.reopen_layers(&manifest)?;
            check_alike(self.dir(), &manifest, &layers)?;
            self.current = Some(CurrentSet { manifest, layers });
        }
        Ok(())
    }

    /// Opens the layers of `manifest`. Layers that the set in memory has open are taken from there.
    fn reopen_layers(&mut self, manifest: &Manifest) -> Result<Vec<Layer<S::Bytes>>, SetError> {
        let known = self.current.take().map(|old| old.manifest.layers.into_iter().zip(old.layers));
        let mut known: Vec<_> = known.into_iter().flatten().collect();
        let mut layers = Vec::with_capacity(manifest.layers.len());
        for entry in &manifest.layers {
            match known.iter().position(|(known, _)| known == entry) {
                Some(at) => layers.push(known.swap_remove(at).1),
                None => layers.extend(self.stager.open_layers(core::slice::from_ref(entry))?),
            }
        }
        Ok(layers)
    }

    /// Removes layers that neither the published set nor a kept generation names, if both their
    /// last use in a set and their last write are more than `grace` before `now`.
    ///
    /// `grace` covers readers that have read a MANIFEST and not yet opened its files: some seconds.
    /// Layers that this publisher has staged and not yet published stay.
    ///
    /// # Errors
    /// When a system call fails. Files that could be removed are removed.
    pub fn prune(&mut self, now: SystemTime, grace: Duration) -> Result<PruneReport, SetError> {
        let storage = &*self.stager.storage;
        // The MANIFEST that a power failure would bring back must not name the removed files.
        storage.sync_dir().map_err(|error| SetError::io(storage.dir(), "sync", error))?;
        self.refresh()?;
        let named = self.named()?;
        let storage = &*self.stager.storage;
        let files = storage.list().map_err(|error| SetError::io(storage.dir(), "list", error))?;
        self.retired.retain(|name, _| files.iter().any(|(file, ..)| file == name));
        let mut pruned = PruneReport::default();
        for (name, len, written) in files {
            let retired = self.retired.get(&name).map_or(Duration::ZERO, |&at| Duration::from_millis(at));
            let unused_since = written.max(SystemTime::UNIX_EPOCH + retired);
            let is_old = now.duration_since(unused_since).is_ok_and(|age| age >= grace);
            let is_unused = match history::generation_of(&name) {
                // An unreadable file keeps nothing.
                Some(generation) => !named.generations.contains(&generation),
                None => {
                    is_layer_file(&name) && !named.layers.contains(&name) && !self.stager.is_pending(&name)
                }
            };
            if is_unused && is_old {
                let path = self.stager.path(&name);
                storage.remove(&name).map_err(|error| SetError::io(path, "remove", error))?;
                pruned.files_count += 1;
                pruned.len += len;
            }
        }
        Ok(pruned)
    }

    /// The files that the published set and the kept generations name.
    fn named(&self) -> Result<FilesInUse, SetError> {
        let kept = self.kept_manifests()?;
        let sets = kept.iter().chain(self.manifest());
        let layers = sets.flat_map(|set| set.layers.iter().map(|layer| layer.file.clone())).collect();
        Ok(FilesInUse { layers, generations: kept.iter().map(|set| set.generation).collect() })
    }
}

/// Files in use, and the kept generations that are complete.
struct FilesInUse {
    layers: BTreeSet<String>,
    generations: BTreeSet<u64>,
}
