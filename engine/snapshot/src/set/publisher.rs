//! The one writer of a directory.
//!
//! In this order, so that at every moment, also after a loss of power, the directory is the old set or
//! the new one:
//!
//! 1. the new layer under a new name, its bytes synced, its name synced, all of it verified;
//! 2. `MANIFEST.tmp`, synced;
//! 3. `MANIFEST.tmp` renamed over `MANIFEST`, the name synced;
//! 4. later, what no set names any more is removed.

use super::manifest::{
    LAYER_SUFFIX, LAYERS_MAX, LayerEntry, MANIFEST, MANIFEST_LEN_MAX, Manifest, is_layer_file,
};
use super::storage::{Disk, Storage};
use super::{SetError, Why, check_alike, open_layer, parse_manifest};
use crate::format::{FLAG_HOMED, Header};
use crate::merge;
use crate::reader::Layer;
use crate::records::Records;
use crate::verify;
use crate::writer::{BuildError, LayerOptions, LayerWriter, header_sum};
use std::collections::BTreeSet;
use std::format;
use std::io::{self, Write as _};
use std::path::Path;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use std::vec::Vec;

/// What becomes the new MANIFEST.
const MANIFEST_TMP: &str = "MANIFEST.tmp";
/// Most files of one generation, left by attempts that failed, before we ask for help.
const NAMES_MAX: u32 = 10_000;

/// What [`Builder::finish`](crate::Builder::finish) and [`LayerWriter::finish`] return.
type Built<S> = Result<(<S as Storage>::File, Header), BuildError>;

/// Publishes sets into one directory.
pub struct Publisher<S: Storage = Disk> {
    stager: Stager<S>,
    current: Option<Current<S>>,
}

struct Current<S: Storage> {
    manifest: Manifest,
    layers: Vec<Layer<S::Bytes>>,
}

/// Where a new layer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Below everything: the set is this layer alone.
    Base,
    /// Above everything.
    Delta,
    /// In place of these layers, neighbours in the set, which it repeats.
    InsteadOf(Vec<LayerEntry>),
}

/// A layer that is written, synced and verified, and not yet in a set.
///
/// Dropped without being published, its file stays until it is pruned.
#[derive(Debug)]
#[must_use = "a layer is in no set before it is published"]
pub struct NewLayer {
    entry: LayerEntry,
    header: Header,
    place: Place,
    _pending: Pending,
}

impl NewLayer {
    /// What its header says.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }
}

/// The name of a file that is being written, or waits to be published, and must not be pruned.
#[derive(Debug)]
struct Pending {
    name: String,
    names: Names,
}

/// All of them, of a publisher and its stagers.
type Names = Arc<Mutex<BTreeSet<String>>>;

impl Pending {
    /// Reserves a name; `None` when it is reserved.
    fn new(name: String, names: &Names) -> Option<Self> {
        let is_free = lock(names).insert(name.clone());
        is_free.then(|| Self { name, names: names.clone() })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        lock(&self.names).remove(&self.name);
    }
}

fn lock(names: &Names) -> MutexGuard<'_, BTreeSet<String>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`Publisher::prune`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Files.
    pub files_count: usize,
    /// Their bytes.
    pub len: u64,
}

impl Publisher<Disk> {
    /// Takes the lock of a directory that exists, and reads what is published there.
    ///
    /// # Errors
    /// When another process has the lock, or what is published is not whole.
    pub fn open(dir: &Path) -> Result<Self, SetError> {
        match Disk::lock(dir) {
            Ok(Some(disk)) => Self::with_storage(disk),
            Ok(None) => Err(SetError::new(dir, Why::Locked)),
            Err(error) => Err(SetError::io(dir, "lock it", error)),
        }
    }
}

impl<S: Storage> Publisher<S> {
    /// Publishes to anything that behaves like a directory, and nobody else writes to.
    ///
    /// # Errors
    /// When what is published is not whole.
    pub fn with_storage(storage: S) -> Result<Self, SetError> {
        let stager = Stager { storage: Arc::new(storage), pending: Arc::default() };
        let mut publisher = Self { stager, current: None };
        publisher.refresh()?;
        Ok(publisher)
    }

    /// What is published.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.current.as_ref().map(|current| &current.manifest)
    }

    /// What new layers must have in common with those that are published; `None` before the first.
    pub fn options(&self, created_unix_ms: u64) -> Option<LayerOptions> {
        let first = self.current.as_ref()?.layers.first()?;
        Some(LayerOptions { seed: first.seed(), folds: first.folds(), created_unix_ms })
    }

    /// The layers that are published, as one.
    pub fn records(&self) -> Option<Records<'_, S::Bytes>> {
        self.current.as_ref().map(|current| Records::new_alike(&current.layers))
    }

    /// What writes new layers, also in another thread and while others are published.
    pub fn stager(&self) -> Stager<S> {
        Stager { storage: self.stager.storage.clone(), pending: self.stager.pending.clone() }
    }

    /// Builds a layer and publishes it as the whole set. See [`Stager::stage`] for `write`.
    ///
    /// # Errors
    /// When the layer cannot be built or published; what was published stays.
    pub fn publish_base(
        &mut self,
        now_unix_ms: u64,
        write: impl FnOnce(S::File, &Path) -> Built<S>,
    ) -> Result<&Manifest, SetError> {
        let layer = self.stager.stage(Place::Base, write)?;
        self.publish(layer, now_unix_ms)
    }

    /// Builds a layer and publishes it above the others. See [`Stager::stage`] for `write`.
    ///
    /// # Errors
    /// When the layer cannot be built or published; what was published stays.
    pub fn publish_delta(
        &mut self,
        now_unix_ms: u64,
        write: impl FnOnce(S::File, &Path) -> Built<S>,
    ) -> Result<&Manifest, SetError> {
        let layer = self.stager.stage(Place::Delta, write)?;
        self.publish(layer, now_unix_ms)
    }

    /// Publishes a staged layer.
    ///
    /// # Errors
    /// When it does not fit what is published, or the system refuses; what was published stays.
    pub fn publish(&mut self, layer: NewLayer, now_unix_ms: u64) -> Result<&Manifest, SetError> {
        self.refresh()?;
        let manifest = self
            .plan(&layer, now_unix_ms)
            .map_err(|why| SetError::new(self.stager.path(&layer.entry.file), why))?;
        self.stager.replace_manifest(&manifest)?;
        self.refresh()?;
        Ok(&self.current.as_ref().expect("a set was just published").manifest)
    }

    /// The manifest with `layer` in it.
    fn plan(&self, layer: &NewLayer, created_unix_ms: u64) -> Result<Manifest, Why> {
        let old = self.current.as_ref();
        let generation = old.map_or(0, |old| old.manifest.generation) + 1;
        let header = &layer.header;
        let mut layers = old.map_or(Vec::new(), |old| old.manifest.layers.clone());
        let handles_count = match &layer.place {
            Place::Base => {
                layers = std::vec![layer.entry.clone()];
                header.handles_count
            }
            Place::Delta => {
                let old = old.ok_or(Why::Refused("a delta needs a set below it, and none is published"))?;
                layers.insert(0, layer.entry.clone());
                self.handles_with(layer, old)?
            }
            Place::InsteadOf(gone) => {
                let at = layers.windows(gone.len().max(1)).position(|some| some == gone);
                let at = at.ok_or(Why::Refused("the layers it replaces are not in the set any more"))?;
                layers.splice(at..at + gone.len(), [layer.entry.clone()]);
                let is_all = layers.len() == 1;
                old.filter(|_| !is_all).map_or(header.handles_count, |old| old.manifest.handles_count)
            }
        };
        if let (Some(first), true) = (self.options(0), layers.len() > 1)
            && (first.seed, first.folds) != (header.seed, header.flags & crate::format::FLAG_FOLDS != 0)
        {
            return Err(Why::Mixed);
        }
        if layers.last() == Some(&layer.entry) && header.flags & FLAG_HOMED == 0 {
            return Err(Why::Refused("the oldest layer must carry the table of homed prefixes"));
        }
        if layers.len() > LAYERS_MAX {
            return Err(Why::Refused("the set has as many layers as are allowed; merge some first"));
        }
        Ok(Manifest { generation, created_unix_ms, handles_count, layers })
    }

    /// Handles that are found once `layer` is above `old`.
    fn handles_with(&self, layer: &NewLayer, old: &Current<S>) -> Result<u64, Why> {
        let io = |error| Why::Io { doing: "open it", error };
        let bytes = self.stager.storage.open(&layer.entry.file).map_err(io)?;
        let new = open_layer(bytes, &layer.entry)?;
        let below = Records::new(&old.layers).map_err(|_| Why::Mixed)?;
        if (new.seed(), new.folds()) != (below.seed(), below.folds()) {
            return Err(Why::Mixed);
        }
        let mut count = old.manifest.handles_count;
        for record in new.records() {
            let corrupt = |error| Why::Build(BuildError::Corrupt(error));
            let record = record.map_err(corrupt)?;
            let hash = crate::format::hash_key(below.seed(), record.key());
            let was_there = below.find(hash, record.key()).map_err(corrupt)?.is_some();
            match (was_there, record.is_tombstone()) {
                (false, false) => count += 1,
                (true, true) => count = count.saturating_sub(1),
                _ => {}
            }
        }
        Ok(count)
    }

    /// Reads what is published, which after a failed attempt may not be what we remember.
    fn refresh(&mut self) -> Result<(), SetError> {
        let storage = &*self.stager.storage;
        let manifest = parse_manifest(storage.dir(), storage.read(MANIFEST, MANIFEST_LEN_MAX))?;
        let Some(manifest) = manifest else {
            self.current = None;
            return Ok(());
        };
        if self.manifest() != Some(&manifest) {
            let layers = self.stager.open_layers(&manifest.layers)?;
            check_alike(storage.dir(), &manifest, &layers)?;
            self.current = Some(Current { manifest, layers });
        }
        Ok(())
    }

    /// Removes layers that are in no set and were last written more than `grace` before `now`.
    ///
    /// `grace` covers readers that have read a MANIFEST and not yet opened its files, some seconds.
    /// Layers staged by this publisher and not yet published stay.
    ///
    /// # Errors
    /// When the system refuses; what could be removed is gone.
    pub fn prune(&mut self, now: SystemTime, grace: Duration) -> Result<Pruned, SetError> {
        let storage = &*self.stager.storage;
        // The MANIFEST that a loss of power would bring back must not name what we remove.
        storage.sync_dir().map_err(|error| SetError::io(storage.dir(), "sync it", error))?;
        self.refresh()?;
        let storage = &*self.stager.storage;
        let files = storage.list().map_err(|error| SetError::io(storage.dir(), "list it", error))?;
        let mut pruned = Pruned::default();
        for (name, len, written) in files {
            let is_named =
                self.manifest().is_some_and(|set| set.layers.iter().any(|layer| layer.file == name));
            let is_pending = lock(&self.stager.pending).contains(&name);
            let is_old = now.duration_since(written).is_ok_and(|age| age >= grace);
            if is_layer_file(&name) && !is_named && !is_pending && is_old {
                let path = self.stager.path(&name);
                storage.remove(&name).map_err(|error| SetError::io(path, "remove it", error))?;
                pruned.files_count += 1;
                pruned.len += len;
            }
        }
        Ok(pruned)
    }
}

/// Writes new layers, which a [`Publisher`] then takes.
pub struct Stager<S: Storage = Disk> {
    storage: Arc<S>,
    pending: Names,
}

impl<S: Storage> Stager<S> {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.storage.dir().join(name)
    }

    /// Writes, syncs and verifies a layer.
    ///
    /// # Errors
    /// When it cannot be built, or the system refuses.
    pub fn stage(
        &self,
        place: Place,
        write: impl FnOnce(S::File, &Path) -> Built<S>,
    ) -> Result<NewLayer, SetError> {
        let (file, pending) = self.create()?;
        let staged = self.stage_in(file, &pending.name, write);
        let (entry, header) = staged.inspect_err(|_| {
            // Only to save space: what no set names is pruned in any case.
            let _ = self.storage.remove(&pending.name);
        })?;
        Ok(NewLayer { entry, header, place, _pending: pending })
    }

    fn stage_in(
        &self,
        file: S::File,
        name: &str,
        write: impl FnOnce(S::File, &Path) -> Built<S>,
    ) -> Result<(LayerEntry, Header), SetError> {
        let (path, dir) = (self.path(name), self.storage.dir());
        let (file, header) = write(file, dir).map_err(|error| SetError::new(&path, Why::Build(error)))?;
        self.storage.sync(&file).map_err(|error| SetError::io(&path, "sync it", error))?;
        drop(file);
        self.storage.sync_dir().map_err(|error| SetError::io(dir, "sync it", error))?;
        let entry = LayerEntry { file: name.into(), len: header.file_len, header_sum: header_sum(&header) };
        let layers = self.open_layers(core::slice::from_ref(&entry))?;
        verify::layer(&layers[0]).map_err(|fault| SetError::new(path, Why::Fault(fault)))?;
        Ok((entry, header))
    }

    /// Merges the newest `count` layers of `set` into one that will stand instead of them.
    ///
    /// Deletions are forgotten only when nothing is below. `progress` is told how many records were read.
    ///
    /// # Errors
    /// When a layer is damaged, or the system refuses.
    pub fn stage_merge(
        &self,
        set: &Manifest,
        count: usize,
        created_unix_ms: u64,
        progress: impl FnMut(u64),
    ) -> Result<NewLayer, SetError> {
        let count = count.clamp(1, set.layers.len());
        let gone = &set.layers[..count];
        let layers = self.open_layers(gone)?;
        let first = &layers[0];
        let options = LayerOptions { seed: first.seed(), folds: first.folds(), created_unix_ms };
        let keep_tombstones = count < set.layers.len();
        self.stage(Place::InsteadOf(gone.into()), |file, temp_dir: &Path| {
            merge(&layers, keep_tombstones, LayerWriter::new(file, temp_dir, options)?, progress)
        })
    }

    fn open_layers(&self, entries: &[LayerEntry]) -> Result<Vec<Layer<S::Bytes>>, SetError> {
        let open = |entry: &LayerEntry| {
            let path = self.path(&entry.file);
            let bytes = self.storage.open(&entry.file);
            let bytes = bytes.map_err(|error| SetError::io(&path, "open it", error))?;
            open_layer(bytes, entry).map_err(|why| SetError::new(path, why))
        };
        entries.iter().map(open).collect()
    }

    /// A new file. Names that are taken were left by an attempt that failed, or are being written.
    fn create(&self) -> Result<(S::File, Pending), SetError> {
        let storage = &*self.storage;
        let manifest = parse_manifest(storage.dir(), storage.read(MANIFEST, MANIFEST_LEN_MAX))?;
        let generation = manifest.map_or(0, |manifest| manifest.generation) + 1;
        for n in 0..NAMES_MAX {
            let name = format!("{generation:010}-{n}{LAYER_SUFFIX}");
            let Some(pending) = Pending::new(name, &self.pending) else { continue };
            match storage.create(&pending.name) {
                Ok(file) => return Ok((file, pending)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(SetError::io(self.path(&pending.name), "create it", error)),
            }
        }
        let error = io::ErrorKind::AlreadyExists.into();
        Err(SetError::io(storage.dir(), "find a free name for a layer in it", error))
    }

    fn replace_manifest(&self, manifest: &Manifest) -> Result<(), SetError> {
        let storage = &*self.storage;
        let path = self.path(MANIFEST_TMP);
        match storage.remove(MANIFEST_TMP) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(SetError::io(path, "remove it", error));
            }
            _ => {}
        }
        let write = || {
            let mut file = storage.create(MANIFEST_TMP)?;
            file.write_all(manifest.encode().as_bytes())?;
            file.flush()?;
            storage.sync(&file)
        };
        write().map_err(|error| SetError::io(&path, "write it", error))?;
        let renamed = storage.rename(MANIFEST_TMP, MANIFEST);
        renamed.map_err(|error| SetError::io(path, "rename it", error))?;
        storage.sync_dir().map_err(|error| SetError::io(storage.dir(), "sync it", error))
    }
}
