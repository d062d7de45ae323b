//! The one writer of a directory.
//!
//! Publishing keeps this order, so that at every moment, also after a power failure, the directory
//! holds either the old set or the new one:
//!
//! 1. The new layer is written under a new name; its bytes are synced, all of it is verified, and
//!    it is renamed to a name with its digest, which is synced.
//! 2. `MANIFEST.tmp` is written and synced.
//! 3. `MANIFEST.tmp` is renamed to `MANIFEST`, and the name is synced.
//! 4. Later, files that no set names any more are removed.
//!
//! The publisher also maintains the tree over the records ([`tree`](crate::tree)). For the first
//! delta it reads all keys and records of the set; for later deltas, only the buckets of changed
//! records.

use super::history;
use super::stager::{BuiltLayer, LayerPosition, NewLayer, Stager};
use super::storage::{DiskStorage, Storage};
use crate::format::{FLAG_FOLDS, FLAG_HOMED, Sha256Sum};
use crate::names::NameRule;
use crate::reader::{CorruptRecord, Layer};
use crate::records::RecordSet;
use crate::set::manifest::{
    LAYERS_MAX, LayerEntry, MANIFEST, MANIFEST_LEN_MAX, Manifest, ManifestSeal, is_layer_file,
};
use crate::set::statement::{HEARTBEAT, StatementSigner};
use crate::set::{SetError, SetErrorKind, check_alike, open_layer, parse_manifest};
use crate::tree::{
    ChangedNodes, EMPTY, IndexedLayer, KeyIndex, RecordHasher, RecordTree, TreeSource, key_digest, prefix,
};
use crate::writer::{BuildError, LayerOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::string::String;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::vec::Vec;

/// Publishes sets into one directory.
pub struct SetPublisher<S: Storage = DiskStorage> {
    pub(super) stager: Stager<S>,
    current: Option<CurrentSet<S>>,
    /// Time when files of this publisher left the last set that named them, Unix milliseconds.
    retired: BTreeMap<String, u64>,
    /// The tree of the published set, loaded when it is first needed.
    tree: Option<Arc<RecordTree>>,
    /// The keys of its layers, by the digest of the layer.
    keys: BTreeMap<Sha256Sum, Arc<KeyIndex>>,
    /// Kept, because what it hides private values with takes milliseconds to make.
    hasher: Arc<RecordHasher>,
    signer: Option<Arc<dyn StatementSigner>>,
    /// Least epoch of sets that are published.
    epoch_min: u64,
}

/// The file that is renamed to the HEARTBEAT.
pub(super) const HEARTBEAT_TMP: &str = "HEARTBEAT.tmp";

/// A planned set, and its tree: `base` with changed nodes.
struct PlannedSet {
    manifest: Manifest,
    base: Arc<RecordTree>,
    changed: ChangedNodes,
}

/// A manifest with a new layer, and the leading bits of the keys of all records that differ.
struct PlannedLayer {
    manifest: Manifest,
    changed_keys: Vec<u32>,
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

impl SetPublisher<DiskStorage> {
    /// Opens a directory in which several publishers take turns, and reads the set that is
    /// published there. Nothing can be published before [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// When a process has the lock that does not share it, or the published set is not complete.
    pub fn open_shared(dir: &Path) -> Result<Self, SetError> {
        match DiskStorage::share(dir) {
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
        let mut publisher = Self::unread(storage);
        publisher.refresh()?;
        Ok(publisher)
    }

    /// A publisher that has not read the published set.
    pub(super) fn unread(storage: S) -> Self {
        Self {
            stager: Stager::new(storage),
            current: None,
            retired: BTreeMap::new(),
            tree: None,
            keys: BTreeMap::new(),
            hasher: Arc::new(RecordHasher::new(0)),
            signer: None,
            epoch_min: 1,
        }
    }

    /// Begins the turn of this publisher: no publisher with a lower epoch publishes from now on,
    /// and sets published here have at least this epoch. The set that was published last gets it
    /// at once, so that it counts as newer than what a former publisher ships elsewhere. False if a
    /// publisher or the published set has a higher epoch.
    ///
    /// # Errors
    /// When the published set is not complete, or a system call fails.
    pub fn take_over(&mut self, epoch: u64, now_unix_ms: u64) -> Result<bool, SetError> {
        let storage = &*self.stager.storage;
        let begun = storage.take_over(epoch);
        if !begun.map_err(|error| SetError::io(storage.dir(), "take over", error))? {
            return Ok(false);
        }
        self.refresh()?;
        self.epoch_min = epoch;
        match self.manifest().map(|set| set.epoch) {
            Some(published) if published > epoch => Ok(false),
            Some(published) if published < epoch => self.raise_epoch(epoch, now_unix_ms).map(|_| true),
            _ => Ok(true),
        }
    }

    /// Signs the sets that are published from now on.
    pub fn sign_with(&mut self, signer: Arc<dyn StatementSigner>) {
        self.signer = Some(signer);
    }

    /// Writes a new statement about the published set to the file HEARTBEAT; returns false if there
    /// is no set or no key.
    ///
    /// # Errors
    /// When the key does not sign, or a system call fails.
    pub fn renew_statement(&self, now_unix_ms: u64) -> Result<bool, SetError> {
        let (Some(signer), Some(manifest)) = (&self.signer, self.manifest()) else { return Ok(false) };
        let signed = manifest.state(now_unix_ms, signer.signer()).sign(&**signer);
        let signed =
            signed.map_err(|why| SetError::new(self.stager.path(HEARTBEAT), SetErrorKind::Sign(why)))?;
        self.stager.write_small(HEARTBEAT_TMP, HEARTBEAT, &signed.encode(), false)?;
        Ok(true)
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
        let layer = self.stager.stage(LayerPosition::Base, write)?;
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
        let layer = self.stager.stage(LayerPosition::Delta, write)?;
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
        let PlannedSet { manifest, base, changed } = self.plan_together(&layers, now_unix_ms)?;
        self.keys.extend(layers.iter().map(|layer| (layer.entry.digest, layer.keys.clone())));
        self.tree = None;
        let replaced = self.replace(manifest).map(|_| ());
        // A name in the set is not pending any more. Its tree, if it is a base, then has no other
        // owner.
        drop(layers);
        let mut tree = base;
        if replaced.is_ok() && !changed.is_empty() {
            Arc::make_mut(&mut tree).apply(&changed);
        }
        self.tree = Some(tree);
        replaced?;
        self.published()
    }

    /// The set that [`publish_together`](Self::publish_together) would publish, for callers that
    /// inspect it first. It is not signed.
    ///
    /// # Errors
    /// When the layers do not fit the published set, or there are none.
    pub fn candidate(&mut self, layers: &[NewLayer], now_unix_ms: u64) -> Result<Manifest, SetError> {
        self.plan_together(layers, now_unix_ms).map(|planned| planned.manifest)
    }

    fn plan_together(&mut self, layers: &[NewLayer], now_unix_ms: u64) -> Result<PlannedSet, SetError> {
        let generation = self.manifest().map_or(0, |manifest| manifest.generation) + 1;
        let (first, rest) = layers.split_first().ok_or_else(|| {
            SetError::new(self.stager.storage.dir(), SetErrorKind::Refused("there is no new layer"))
        })?;
        if first.tree.is_none() {
            self.load_tree()?;
        }
        let base = first.tree.clone().or_else(|| self.tree.clone());
        let base = base.ok_or_else(|| self.unfit(first, BELOW_MISSING))?;
        let hasher = self.hasher(first.header.seed);
        let mut changed = ChangedNodes::new();
        let planned = self.plan(self.current.as_ref(), first, now_unix_ms)?;
        self.renew_tree(&base, &hasher, self.current.as_ref(), layers, &planned, &mut changed)?;
        let mut manifest = planned.manifest;
        for layer in rest {
            let opened = self.stager.open_layers(&manifest.layers)?;
            let below = CurrentSet { manifest, layers: opened };
            let planned = self.plan(Some(&below), layer, now_unix_ms)?;
            self.renew_tree(&base, &hasher, Some(&below), layers, &planned, &mut changed)?;
            manifest = planned.manifest;
        }
        let root = base.renew_paths(&mut changed);
        Ok(PlannedSet { manifest: Manifest { generation, root, ..manifest }, base, changed })
    }

    /// Computes the digests of the buckets of changed records again, from the layers of the planned
    /// set.
    fn renew_tree(
        &self,
        base: &RecordTree,
        hasher: &RecordHasher,
        below: Option<&CurrentSet<S>>,
        new: &[NewLayer],
        planned: &PlannedLayer,
        changed: &mut ChangedNodes,
    ) -> Result<(), SetError> {
        if planned.changed_keys.is_empty() {
            return Ok(());
        }
        let known = |entry: &LayerEntry| {
            let below = below?;
            let at = below.manifest.layers.iter().position(|known| known == entry)?;
            below.layers.get(at)
        };
        let mut opened = Vec::new();
        for entry in planned.manifest.layers.iter().filter(|entry| known(entry).is_none()) {
            opened.extend(self.stager.open_layers(core::slice::from_ref(entry))?);
        }
        let mut opened = opened.iter();
        let mut layers = Vec::with_capacity(planned.manifest.layers.len());
        for entry in &planned.manifest.layers {
            let staged = || new.iter().find(|new| new.entry == *entry).map(|new| &*new.keys);
            let keys = self.keys.get(&entry.digest).map(|keys| &**keys).or_else(staged);
            let layer = known(entry).or_else(|| opened.next());
            let (Some(layer), Some(keys)) = (layer, keys) else {
                return Err(SetError::new(self.stager.path(&entry.file), SetErrorKind::NotPublished));
            };
            layers.push(IndexedLayer { layer, keys });
        }
        let source = TreeSource { layers, hasher };
        base.renew_buckets(&planned.changed_keys, &source, changed).map_err(|error| self.corrupt(error))?;
        self.forget_pages(source.layers.iter().map(|it| it.layer));
        Ok(())
    }

    /// Reads the keys of the published layers and makes the tree of the published set, unless both
    /// are in memory.
    fn load_tree(&mut self) -> Result<(), SetError> {
        let seed = self.records().map_or(0, |records| records.seed());
        let hasher = self.hasher(seed);
        let Some(current) = &self.current else {
            self.tree = None;
            return Ok(());
        };
        self.keys.retain(|digest, _| current.manifest.layers.iter().any(|layer| layer.digest == *digest));
        for (entry, layer) in current.manifest.layers.iter().zip(&current.layers) {
            if !self.keys.contains_key(&entry.digest) {
                let keys = KeyIndex::of(layer).map_err(|error| self.corrupt(error))?;
                self.keys.insert(entry.digest, Arc::new(keys));
            }
        }
        let layers = current.manifest.layers.iter().zip(&current.layers);
        let layers = layers.filter_map(|(entry, layer)| {
            self.keys.get(&entry.digest).map(|keys| IndexedLayer { layer, keys })
        });
        let source = TreeSource { layers: layers.collect(), hasher: &hasher };
        let root = current.manifest.root;
        let is_usable = |tree: &RecordTree| tree.root() == root && !tree.is_small(&source);
        if self.tree.as_ref().is_some_and(|tree| is_usable(tree)) {
            return Ok(());
        }
        let tree = RecordTree::of(&source).map_err(|error| self.corrupt(error))?;
        if tree.root() != root {
            let what = SetErrorKind::OtherFile { what: "root" };
            return Err(SetError::new(self.stager.path(MANIFEST), what));
        }
        self.forget_pages(&current.layers);
        self.tree = Some(Arc::new(tree));
        Ok(())
    }

    /// The hasher of sets with this seed.
    fn hasher(&mut self, seed: u64) -> Arc<RecordHasher> {
        if self.hasher.seed() != seed {
            self.hasher = Arc::new(RecordHasher::new(seed));
        }
        Arc::clone(&self.hasher)
    }

    /// Releases mapped pages of layers: scattered lookups map many pages that are not needed again
    /// soon.
    fn forget_pages<'l>(&self, layers: impl IntoIterator<Item = &'l Layer<S::Bytes>>)
    where
        S::Bytes: 'l,
    {
        for layer in layers {
            self.stager.storage.forget(layer.bytes(), 0..layer.bytes().as_ref().len() as u64);
        }
    }

    fn corrupt(&self, error: CorruptRecord) -> SetError {
        SetError::new(self.dir(), SetErrorKind::Build(BuildError::Corrupt(error)))
    }

    fn unfit(&self, layer: &NewLayer, why: &'static str) -> SetError {
        SetError::new(self.stager.path(&layer.entry.file), SetErrorKind::Refused(why))
    }

    /// Publishes `manifest`, with a signature if there is a key.
    pub(super) fn replace(&mut self, manifest: Manifest) -> Result<&Manifest, SetError> {
        let manifest = self.sealed(manifest)?;
        // Noted before the rename, because an error may come when readers already see the new set.
        self.retire_all_but(&manifest);
        self.stager.replace(MANIFEST, &manifest.encode())?;
        self.refresh()?;
        self.published()
    }

    /// Notes that layers of the published set that `next` does not name leave it.
    pub(super) fn retire_all_but(&mut self, next: &Manifest) {
        let gone = self.manifest().map_or(Vec::new(), |old| old.layers.clone());
        let gone = gone.into_iter().filter(|layer| !next.layers.contains(layer));
        self.retire(gone.map(|layer| layer.file), next.created_unix_ms);
    }

    fn published(&self) -> Result<&Manifest, SetError> {
        // Another process may have removed it in the meantime.
        let missing = || SetError::new(self.dir(), SetErrorKind::NotPublished);
        self.manifest().ok_or_else(missing)
    }

    fn sealed(&self, manifest: Manifest) -> Result<Manifest, SetError> {
        let Some(signer) = &self.signer else { return Ok(Manifest { seal: None, ..manifest }) };
        let signed_unix_ms = manifest.created_unix_ms;
        let signed = manifest.state(signed_unix_ms, signer.signer()).sign(&**signer);
        let signed =
            signed.map_err(|why| SetError::new(self.stager.path(MANIFEST), SetErrorKind::Sign(why)))?;
        let seal = ManifestSeal { signed_unix_ms, signer: signer.signer(), signature: signed.signature };
        Ok(Manifest { seal: Some(seal), ..manifest })
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
    ) -> Result<PlannedLayer, SetError> {
        let planned = self.try_plan(old, layer, created_unix_ms);
        planned.map_err(|why| SetError::new(self.stager.path(&layer.entry.file), why))
    }

    fn try_plan(
        &self,
        old: Option<&CurrentSet<S>>,
        layer: &NewLayer,
        created_unix_ms: u64,
    ) -> Result<PlannedLayer, SetErrorKind> {
        let generation = old.map_or(0, |old| old.manifest.generation) + 1;
        let header = &layer.header;
        let mut source = layer.source;
        let mut changed_keys = Vec::new();
        let mut layers = old.map_or(Vec::new(), |old| old.manifest.layers.clone());
        let handles_count = match &layer.position {
            LayerPosition::Base => {
                layers = std::vec![layer.entry.clone()];
                header.handles_count
            }
            LayerPosition::Delta | LayerPosition::Absorbing(_) => {
                let old = old.ok_or(SetErrorKind::Refused(BELOW_MISSING))?;
                let gone =
                    if let LayerPosition::Absorbing(gone) = &layer.position { gone.as_slice() } else { &[] };
                if !layers.starts_with(gone) {
                    return Err(SetErrorKind::Refused(
                        "the layers that the new layer absorbs are no longer the newest of the set",
                    ));
                }
                layers.splice(..gone.len(), [layer.entry.clone()]);
                self.handles_with(layer, old, &mut changed_keys)?
            }
            LayerPosition::InsteadOf(gone) => {
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
            && (first.seed(), first.folds()) != (header.seed, header.flags & FLAG_FOLDS != 0)
        {
            return Err(SetErrorKind::Mixed);
        }
        if layers.last() == Some(&layer.entry) && header.flags & FLAG_HOMED == 0 {
            return Err(SetErrorKind::Refused("the oldest layer must carry the table of homed prefixes"));
        }
        if layers.len() > LAYERS_MAX {
            return Err(SetErrorKind::Refused("the set has the maximum number of layers; merge some first"));
        }
        let (epoch, root) =
            old.map_or((self.epoch_min, EMPTY), |old| (old.manifest.epoch, old.manifest.root));
        let manifest = Manifest {
            epoch,
            generation,
            created_unix_ms,
            handles_count,
            names: Some(NameRule::of(header.flags & FLAG_FOLDS != 0)),
            root,
            source,
            layers,
            seal: None,
        };
        Ok(PlannedLayer { manifest, changed_keys })
    }

    /// Number of handles that are found when `layer` is above `old`. Adds the leading bits of the
    /// keys of changed records.
    fn handles_with(
        &self,
        layer: &NewLayer,
        old: &CurrentSet<S>,
        changed_keys: &mut Vec<u32>,
    ) -> Result<u64, SetErrorKind> {
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
            let found = below.find(hash, record.key()).map_err(corrupt)?;
            let is_same = found.map_or(record.is_tombstone(), |it| it.as_bytes() == record.as_bytes());
            if !is_same {
                changed_keys.push(prefix(&key_digest(record.key())));
            }
            match (found.is_some(), record.is_tombstone()) {
                (false, false) => count += 1,
                (true, true) => count = count.saturating_sub(1),
                _ => {}
            }
        }
        self.forget_pages(&old.layers);
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

const BELOW_MISSING: &str = "a delta needs a published set below it; publish a base first";

/// Files in use, and the kept generations that are complete.
struct FilesInUse {
    layers: BTreeSet<String>,
    generations: BTreeSet<u64>,
}

#[cfg(test)]
mod tests;
