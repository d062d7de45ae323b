//! New layers: written, synced and checked under names of their own, until a publisher takes them.

use super::manifest::{LAYER_SUFFIX, LayerEntry, MANIFEST, MANIFEST_LEN_MAX, Manifest, SetOrigin};
use super::storage::Storage;
use super::{SetError, SetErrorKind, open_layer, parse_manifest};
use crate::format::LayerHeader;
use crate::merge::{self, MergeProgress};
use crate::reader::Layer;
use crate::verify;
use crate::writer::{BuildError, LayerOptions, LayerWriter, header_sum};
use core::ops::{ControlFlow, Range};
use std::collections::BTreeSet;
use std::format;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// What becomes the new MANIFEST, or one that is kept.
const MANIFEST_TMP: &str = "MANIFEST.tmp";
/// Most files of one generation, left by attempts that failed, before we ask for help.
const NAMES_MAX: u32 = 10_000;
/// Bytes of a [`SteadyFile`] file that wait to be synced.
const UNSYNCED_LEN_MAX: usize = 8 << 20;

/// What [`Builder::finish`](crate::Builder::finish) and [`LayerWriter::finish`] return.
pub(super) type BuiltLayer<S> = Result<(<S as Storage>::File, LayerHeader), BuildError>;

/// Where a new layer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerPlace {
    /// Below everything: the set is this layer alone.
    Base,
    /// Above everything.
    Delta,
    /// Above everything, in place of these, the newest layers of the set: it repeats what they say, and
    /// changes it.
    Absorbing(Vec<LayerEntry>),
    /// In place of these layers, neighbours in the set, which it repeats.
    InsteadOf(Vec<LayerEntry>),
}

/// A layer that is written, synced and verified, and not yet in a set.
///
/// Dropped without being published, its file stays until it is pruned.
#[derive(Debug)]
#[must_use = "a layer is in no set before it is published"]
pub struct NewLayer {
    pub(super) entry: LayerEntry,
    pub(super) header: LayerHeader,
    pub(super) place: LayerPlace,
    pub(super) source: Option<SetOrigin>,
    _pending: PendingFile,
}

impl NewLayer {
    /// What its header says.
    #[must_use]
    pub const fn header(&self) -> &LayerHeader {
        &self.header
    }

    /// Its file, as a manifest names it.
    #[must_use]
    pub const fn entry(&self) -> &LayerEntry {
        &self.entry
    }

    /// Says what a set shows once this layer is in it; a merge shows what was shown before.
    pub fn showing(mut self, source: SetOrigin) -> Self {
        self.source = Some(source);
        self
    }
}

/// The name of a file that is being written, or waits to be published, and must not be pruned.
#[derive(Debug)]
struct PendingFile {
    name: String,
    names: PendingNames,
}

/// All of them, of a publisher and its stagers.
type PendingNames = Arc<Mutex<BTreeSet<String>>>;

impl PendingFile {
    /// Reserves a name; `None` when it is reserved.
    fn new(name: String, names: &PendingNames) -> Option<Self> {
        let is_free = lock(names).insert(name.clone());
        is_free.then(|| Self { name, names: names.clone() })
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        lock(&self.names).remove(&self.name);
    }
}

fn lock(names: &PendingNames) -> MutexGuard<'_, BTreeSet<String>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes new layers, which a [`SetPublisher`](super::publisher::SetPublisher) then takes.
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

    /// Whether a file is being written or waits to be published.
    pub(super) fn is_pending(&self, name: &str) -> bool {
        lock(&self.pending).contains(name)
    }

    /// Writes, syncs and verifies a layer.
    ///
    /// # Errors
    /// When it cannot be built, or the system refuses.
    pub fn stage(
        &self,
        place: LayerPlace,
        write: impl FnOnce(S::File, &Path) -> BuiltLayer<S>,
    ) -> Result<NewLayer, SetError> {
        let (file, pending) = self.create()?;
        let staged = self.stage_in(file, &pending.name, write);
        let (entry, header) = staged.inspect_err(|_| {
            // Only to save space: what no set names is pruned in any case.
            let _ = self.storage.remove(&pending.name);
        })?;
        Ok(NewLayer { entry, header, place, source: None, _pending: pending })
    }

    fn stage_in(
        &self,
        file: S::File,
        name: &str,
        write: impl FnOnce(S::File, &Path) -> BuiltLayer<S>,
    ) -> Result<(LayerEntry, LayerHeader), SetError> {
        let (path, dir) = (self.path(name), self.storage.dir());
        let (file, header) =
            write(file, dir).map_err(|error| SetError::new(&path, SetErrorKind::Build(error)))?;
        self.storage.sync(&file).map_err(|error| SetError::io(&path, "sync it", error))?;
        drop(file);
        self.storage.sync_dir().map_err(|error| SetError::io(dir, "sync it", error))?;
        let entry = LayerEntry { file: name.into(), len: header.file_len, header_sum: header_sum(&header) };
        let layers = self.open_layers(core::slice::from_ref(&entry))?;
        let passed = |range| {
            self.storage.forget(layers[0].bytes(), range);
            ControlFlow::Continue(())
        };
        verify::layer_in_steps(&layers[0], passed)
            .map_err(|fault| SetError::new(path, SetErrorKind::Fault(fault)))?;
        Ok((entry, header))
    }

    /// Merges neighbours in `set`, by their positions from the newest, into one layer that will stand
    /// instead of them.
    ///
    /// Deletions are forgotten only when nothing is below. `progress` is told how far it is every few
    /// thousand records; it may wait, to leave the disk to others, or stop the merge.
    ///
    /// # Errors
    /// When a layer is damaged, the system refuses, or `progress` stopped it.
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
        self.stage(LayerPlace::InsteadOf(gone.into()), |file, temp_dir: &Path| {
            let out = LayerWriter::new(self.steady(file), temp_dir, options)?;
            let (out, header) = merge::merge(&layers, keep_tombstones, out, progress)?;
            Ok((out.into_inner(), header))
        })
    }

    /// The same file, synced while it is written.
    pub fn steady(&self, file: S::File) -> SteadyFile<'_, S> {
        SteadyFile { storage: &self.storage, file, unsynced_len: 0 }
    }

    pub(super) fn open_layers(&self, entries: &[LayerEntry]) -> Result<Vec<Layer<S::Bytes>>, SetError> {
        let open = |entry: &LayerEntry| {
            let path = self.path(&entry.file);
            let bytes = self.storage.open(&entry.file);
            let bytes = bytes.map_err(|error| SetError::io(&path, "open it", error))?;
            open_layer(bytes, entry).map_err(|why| SetError::new(path, why))
        };
        entries.iter().map(open).collect()
    }

    /// A new file. Names that are taken were left by an attempt that failed, or are being written.
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
                Err(error) => return Err(SetError::io(self.path(&pending.name), "create it", error)),
            }
        }
        let error = io::ErrorKind::AlreadyExists.into();
        Err(SetError::io(storage.dir(), "find a free name for a layer in it", error))
    }

    /// Puts a small file under `name`, in one step and for good.
    pub(super) fn replace(&self, name: &str, text: &str) -> Result<(), SetError> {
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
            file.write_all(text.as_bytes())?;
            file.flush()?;
            storage.sync(&file)
        };
        write().map_err(|error| SetError::io(&path, "write it", error))?;
        let renamed = storage.rename(MANIFEST_TMP, name);
        renamed.map_err(|error| SetError::io(path, "rename it", error))?;
        storage.sync_dir().map_err(|error| SetError::io(storage.dir(), "sync it", error))
    }
}

/// A large file that is synced while it is written, so that others who sync meanwhile never wait for more
/// than a few mebibytes of it, and that little is left to be done at its end.
pub struct SteadyFile<'a, S: Storage> {
    storage: &'a S,
    file: S::File,
    unsynced_len: usize,
}

impl<S: Storage> SteadyFile<'_, S> {
    /// The file.
    pub fn into_inner(self) -> S::File {
        self.file
    }
}

impl<S: Storage> Write for SteadyFile<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.file.write(bytes)?;
        self.unsynced_len += len;
        if self.unsynced_len >= UNSYNCED_LEN_MAX {
            self.file.flush()?;
            self.storage.sync(&self.file)?;
            self.unsynced_len = 0;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<S: Storage> Seek for SteadyFile<'_, S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
