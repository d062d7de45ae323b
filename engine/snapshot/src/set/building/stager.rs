//! New layers: written, synced and verified under names of their own, until a publisher publishes
//! them.

use super::steady_file::SteadyFile;
use super::storage::Storage;
use crate::format::{LayerHeader, Sha256Sum};
use crate::merge::{self, MergeProgress};
use crate::reader::Layer;
use crate::set::manifest::{LAYER_SUFFIX, LayerEntry, MANIFEST, MANIFEST_LEN_MAX, Manifest, SetOrigin};
use crate::set::{SetError, SetErrorKind, open_layer, parse_manifest};
use crate::tree::{IndexedLayer, KeyIndex, RecordHasher, RecordTree, TreeSource};
use crate::verify::{self, LayerFault, layer_digest};
use crate::writer::{BuildError, LayerOptions, LayerWriter};
use core::ops::{ControlFlow, Range};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::format;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// The file that is renamed to the MANIFEST, or to a kept one.
const MANIFEST_TMP: &str = "MANIFEST.tmp";
/// Most files of one generation, left by failed attempts, before staging reports an error.
const NAMES_MAX: u32 = 10_000;
/// Hexadecimal digits of the digest of a layer in the name of its file.
const NAME_DIGITS: usize = 32;

/// The result of [`Builder::finish`](crate::Builder::finish) and [`LayerWriter::finish`].
pub(super) type BuiltLayer<S> = Result<(<S as Storage>::File, LayerHeader), BuildError>;

/// The position of a new layer in the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerPosition {
    /// As the whole set: the other layers leave it.
    Base,
    /// Above all other layers.
    Delta,
    /// Above all other layers, in place of these newest layers of the set: the new layer includes
    /// their content, with changes.
    Absorbing(Vec<LayerEntry>),
    /// In place of these adjacent layers of the set, whose content it has.
    InsteadOf(Vec<LayerEntry>),
}

/// A layer that is written, synced and verified, and not yet in a set.
///
/// If it is dropped without being published, its file stays until it is pruned.
#[derive(Debug)]
#[must_use = "a layer is in no set before it is published"]
pub struct NewLayer {
    pub(super) entry: LayerEntry,
    pub(super) header: LayerHeader,
    pub(super) position: LayerPosition,
    pub(super) source: Option<SetOrigin>,
    pub(super) keys: Arc<KeyIndex>,
    /// The tree of the set, if the layer is the whole set.
    pub(super) tree: Option<Arc<RecordTree>>,
    _pending: PendingFile,
}

impl NewLayer {
    /// Its header.
    #[must_use]
    pub const fn header(&self) -> &LayerHeader {
        &self.header
    }

    /// Its file, as a manifest names it.
    #[must_use]
    pub const fn entry(&self) -> &LayerEntry {
        &self.entry
    }

    /// Root of the tree over its records, if the layer is to be the whole set.
    #[must_use]
    pub fn root(&self) -> Option<Sha256Sum> {
        self.tree.as_ref().map(|tree| tree.root())
    }

    /// Sets the state of the store that the set shows once this layer is in it. Without a call, as
    /// for merges, it stays the same.
    pub fn showing(mut self, source: SetOrigin) -> Self {
        self.source = Some(source);
        self
    }
}

/// The name of a file that is being written or waits to be published, and so must not be pruned.
#[derive(Debug)]
struct PendingFile {
    name: String,
    names: PendingNames,
}

/// The pending names of a publisher and its stagers, with the number of their users.
type PendingNames = Arc<Mutex<BTreeMap<String, usize>>>;

impl PendingFile {
    /// Reserves a name; `None` if it is reserved already.
    fn new(name: String, names: &PendingNames) -> Option<Self> {
        match lock(names).entry(name.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(1);
                Some(Self { name, names: names.clone() })
            }
        }
    }

    /// Reserves a name that others may have reserved, because files of this name are equal.
    fn share(name: String, names: &PendingNames) -> Self {
        *lock(names).entry(name.clone()).or_default() += 1;
        Self { name, names: names.clone() }
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        let mut names = lock(&self.names);
        if let Entry::Occupied(mut users) = names.entry(core::mem::take(&mut self.name)) {
            *users.get_mut() -= 1;
            if *users.get() == 0 {
                users.remove();
            }
        }
    }
}

fn lock(names: &PendingNames) -> MutexGuard<'_, BTreeMap<String, usize>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes new layers, which a [`SetPublisher`](super::publisher::SetPublisher) then publishes.
pub struct Stager<S: Storage> {
    pub(super) storage: Arc<S>,
    pending: PendingNames,
}

impl<S: Storage> Clone for Stager<S> {
    fn clone(&self) -> Self {
        Self { storage: self.storage.clone(), pending: self.pending.clone() }
    }
}

impl<S: Storage> Stager<S> {
    pub(super) fn new(storage: S) -> Self {
        Self { storage: Arc::new(storage), pending: Arc::default() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.storage.dir().join(name)
    }

    /// Whether the file is being written or waits to be published.
    pub(super) fn is_pending(&self, name: &str) -> bool {
        lock(&self.pending).contains_key(name)
    }

    /// Writes, syncs and verifies a layer.
    ///
    /// # Errors
    /// When it cannot be built, or a system call fails.
    pub fn stage(
        &self,
        position: LayerPosition,
        write: impl FnOnce(S::File, &Path) -> BuiltLayer<S>,
    ) -> Result<NewLayer, SetError> {
        let (file, pending) = self.create()?;
        let staged = self.write_layer(file, &pending.name, write).and_then(|(entry, header)| {
            let (keys, tree) = self.check(&entry, position == LayerPosition::Base)?;
            let (entry, pending) = self.name_by_content(entry)?;
            Ok((entry, header, keys, tree, pending))
        });
        let (entry, header, keys, tree, pending) = staged.inspect_err(|_| {
            // Only saves space: files that no set names are pruned in any case.
            let _ = self.storage.remove(&pending.name);
        })?;
        Ok(NewLayer { entry, header, position, source: None, keys, tree, _pending: pending })
    }

    /// Renames a verified layer: the name gets the start of the digest. Files of several publishers
    /// then never have the same name and other content, so that each can be copied to a directory
    /// that has files of the others.
    fn name_by_content(&self, entry: LayerEntry) -> Result<(LayerEntry, PendingFile), SetError> {
        let (dir, written) = (self.storage.dir(), entry.file);
        let generation = written.split('-').next().unwrap_or_default();
        let digest = format!("{}", entry.digest);
        let file = format!("{generation}-{}{LAYER_SUFFIX}", &digest[..NAME_DIGITS]);
        let pending = PendingFile::share(file.clone(), &self.pending);
        let renamed = self.storage.rename(&written, &file);
        renamed.map_err(|error| SetError::io(self.path(&written), "rename", error))?;
        self.storage.sync_dir().map_err(|error| SetError::io(dir, "sync", error))?;
        Ok((LayerEntry { file, ..entry }, pending))
    }

    fn write_layer(
        &self,
        file: S::File,
        name: &str,
        write: impl FnOnce(S::File, &Path) -> BuiltLayer<S>,
    ) -> Result<(LayerEntry, LayerHeader), SetError> {
        let (path, dir) = (self.path(name), self.storage.dir());
        let (file, header) =
            write(file, dir).map_err(|error| SetError::new(&path, SetErrorKind::Build(error)))?;
        self.storage.sync(&file).map_err(|error| SetError::io(&path, "sync", error))?;
        drop(file);
        Ok((LayerEntry { file: name.into(), len: header.file_len, digest: layer_digest(&header) }, header))
    }

    /// Verifies a written layer, and reads its keys and, if it is a base, its tree. A base is
    /// verified and hashed by two threads: each takes seconds for millions of records.
    fn check(
        &self,
        entry: &LayerEntry,
        is_base: bool,
    ) -> Result<(Arc<KeyIndex>, Option<Arc<RecordTree>>), SetError> {
        let layers = self.open_layers(core::slice::from_ref(entry))?;
        let layer = &layers[0];
        let sums = || verify::sums(layer, &mut |range| self.pass(layer, range)).map(drop);
        let (sums, keys) = if is_base {
            std::thread::scope(|scope| {
                let keys = scope.spawn(|| self.read_keys(layer));
                (sums(), keys.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        } else {
            (sums(), self.read_keys(layer))
        };
        // A wrong checksum is reported first: then the disk is at fault, otherwise the builder.
        let keys = sums.and(keys).map_err(|fault| {
            let path = self.path(&entry.file);
            SetError::new(path, SetErrorKind::Fault(fault))
        })?;
        let tree = is_base.then(|| self.read_tree(layer, entry, &keys)).transpose()?;
        self.storage.forget(layer.bytes(), 0..entry.len);
        Ok((Arc::new(keys), tree.map(Arc::new)))
    }

    /// Gives the memory of a range back after a check has read it.
    fn pass(&self, layer: &Layer<S::Bytes>, range: Range<u64>) -> ControlFlow<()> {
        self.storage.forget(layer.bytes(), range);
        ControlFlow::Continue(())
    }

    /// Checks all records of a layer, and reads their keys.
    fn read_keys(&self, layer: &Layer<S::Bytes>) -> Result<KeyIndex, LayerFault> {
        let mut keys = KeyIndex::with_capacity(layer.handles_count() + layer.tombstones_count());
        let pass = |range| self.pass(layer, range);
        verify::content(layer, pass, |at, record| keys.push(at, record.key()))?;
        Ok(keys.sorted())
    }

    fn read_tree(
        &self,
        layer: &Layer<S::Bytes>,
        entry: &LayerEntry,
        keys: &KeyIndex,
    ) -> Result<RecordTree, SetError> {
        let hasher = RecordHasher::new(layer.seed());
        let layers = std::vec![IndexedLayer { layer, keys }];
        RecordTree::of(&TreeSource { layers, hasher: &hasher }).map_err(|error| {
            SetError::new(self.path(&entry.file), SetErrorKind::Build(BuildError::Corrupt(error)))
        })
    }

    /// Merges adjacent layers of `set`, given by position from the newest, into one layer that
    /// takes their place.
    ///
    /// Deletions are dropped only if no layer is below. `progress` is called every few thousand
    /// records; it may wait, to leave the disk to others, or stop the merge.
    ///
    /// # Errors
    /// When a layer is damaged, a system call fails, or `progress` stopped the merge.
    ///
    /// # Panics
    /// When the set has no such layers.
    pub fn stage_merge(
        &self,
        set: &Manifest,
        which: Range<usize>,
        created_unix_ms: u64,
        mut progress: impl FnMut(&MergeProgress<'_>) -> ControlFlow<()>,
    ) -> Result<NewLayer, SetError> {
        let keep_tombstones = which.end < set.layers.len();
        let gone = &set.layers[which];
        let layers = self.open_layers(gone)?;
        let first = layers.first().expect("some layers are to be merged");
        let options = LayerOptions { seed: first.seed(), folds: first.folds(), created_unix_ms };
        let mut forgotten = std::vec![0; layers.len()];
        let progress = |merging: &MergeProgress<'_>| {
            for ((layer, from), to) in layers.iter().zip(&mut forgotten).zip(merging.read_to()) {
                if to - *from >= verify::PASS_LEN as u64 {
                    self.storage.forget(layer.bytes(), *from..to);
                    *from = to;
                }
            }
            progress(merging)
        };
        self.stage(LayerPosition::InsteadOf(gone.into()), |file, temp_dir: &Path| {
            let out = LayerWriter::new(self.steady(file)?, temp_dir, options)?;
            let (out, header) = merge::merge(&layers, keep_tombstones, out, progress)?;
            Ok((out.into_inner()?, header))
        })
    }

    /// Wraps `file` so that a thread writes and syncs it meanwhile.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn steady(&self, file: S::File) -> io::Result<SteadyFile<S>> {
        SteadyFile::start(self.storage.clone(), file)
    }

    pub(super) fn open_layers(&self, entries: &[LayerEntry]) -> Result<Vec<Layer<S::Bytes>>, SetError> {
        let open = |entry: &LayerEntry| {
            let path = self.path(&entry.file);
            let bytes = self.storage.open(&entry.file);
            let bytes = bytes.map_err(|error| SetError::io(&path, "open", error))?;
            open_layer(bytes, entry).map_err(|why| SetError::new(path, why))
        };
        entries.iter().map(open).collect()
    }

    /// Creates a file under a free name. Other names were left by failed attempts, or are in use by
    /// a stager.
    fn create(&self) -> Result<(S::File, PendingFile), SetError> {
        let storage = &*self.storage;
        let manifest = parse_manifest(storage.dir(), storage.read(MANIFEST, MANIFEST_LEN_MAX))?;
        let generation = manifest.map_or(0, |manifest| manifest.generation) + 1;
        for n in 0..NAMES_MAX {
            let name = format!("{generation:010}-{n}{LAYER_SUFFIX}");
            let Some(pending) = PendingFile::new(name, &self.pending) else { continue };
            match storage.create(&pending.name) {
                Ok(file) => return Ok((file, pending)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(SetError::io(self.path(&pending.name), "create", error)),
            }
        }
        let error = io::ErrorKind::AlreadyExists.into();
        Err(SetError::io(storage.dir(), "find a free name for a layer in", error))
    }

    /// Writes a small file under `name`, in one step and durably.
    pub(super) fn replace(&self, name: &str, text: &str) -> Result<(), SetError> {
        self.write_small(MANIFEST_TMP, name, text, true)?;
        self.storage.sync_dir().map_err(|error| SetError::io(self.storage.dir(), "sync", error))
    }

    /// Writes a small file under the first name, and renames it to the second.
    pub(super) fn write_small(&self, tmp: &str, name: &str, text: &str, sync: bool) -> Result<(), SetError> {
        let storage = &*self.storage;
        let path = self.path(tmp);
        match storage.remove(tmp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(SetError::io(path, "remove", error));
            }
            _ => {}
        }
        let write = || {
            let mut file = storage.create(tmp)?;
            file.write_all(text.as_bytes())?;
            file.flush()?;
            if sync { storage.sync(&file) } else { Ok(()) }
        };
        write().map_err(|error| SetError::io(&path, "write", error))?;
        storage.rename(tmp, name).map_err(|error| SetError::io(path, "rename", error))
    }
}
