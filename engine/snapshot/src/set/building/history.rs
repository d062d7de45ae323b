//! Earlier generations that are kept, so that a publisher can roll back to them.
//!
//! A kept generation is a copy of its MANIFEST under a name with its number. Its layers belong to
//! the published set or to another kept generation, so keeping one costs only the layers that were
//! replaced since.

use super::publisher::SetPublisher;
use super::storage::Storage;
use crate::map::LoadMode;
use crate::names::NameRule;
use crate::set::manifest::{MANIFEST, MANIFEST_LEN_MAX, Manifest};
use crate::set::{
    PublishedSet, SetError, SetErrorKind, check_alike, parse_manifest, read_manifest, read_small,
};
use std::format;
use std::io;
use std::path::Path;
use std::string::String;
use std::vec::Vec;

/// Name of the file that holds the reason why publishing is on hold.
const HELD: &str = "HELD";
/// Most bytes of that file.
const HELD_LEN_MAX: usize = 1024;

/// Why a generation cannot be used.
const NOT_KEPT: SetErrorKind = SetErrorKind::Refused("this generation is not kept");

fn name_of(generation: u64) -> String {
    format!("{MANIFEST}-{generation:010}")
}

/// The generation that a file of this name keeps, if the name has that form.
pub(super) fn generation_of(name: &str) -> Option<u64> {
    let generation = name.strip_prefix(MANIFEST)?.strip_prefix('-')?.parse().ok()?;
    (name_of(generation) == name).then_some(generation)
}

/// The manifest of a generation that is kept in `dir`.
pub(super) fn read_kept(dir: &Path, generation: u64) -> Result<Manifest, SetError> {
    let path = dir.join(name_of(generation));
    let manifest = parse_manifest(dir, read_small(&path, MANIFEST_LEN_MAX))?;
    let manifest = manifest.filter(|manifest| manifest.generation == generation);
    manifest.ok_or_else(|| SetError::new(path, NOT_KEPT))
}

impl<S: Storage> SetPublisher<S> {
    /// Keeps the published set until it is [forgotten](Self::forget). Does nothing if there is no
    /// set or it is kept already.
    ///
    /// # Errors
    /// When a system call fails.
    pub fn keep(&mut self) -> Result<(), SetError> {
        self.refresh()?;
        let Some(manifest) = self.manifest().cloned() else { return Ok(()) };
        if self.kept_manifests()?.contains(&manifest) {
            return Ok(());
        }
        self.stager.replace(&name_of(manifest.generation), &manifest.encode())
    }

    /// The kept generations, oldest first. Unreadable ones are left out.
    ///
    /// # Errors
    /// When a system call fails.
    pub fn kept_manifests(&self) -> Result<Vec<Manifest>, SetError> {
        let storage = &*self.stager.storage;
        let files = storage.list().map_err(|error| SetError::io(storage.dir(), "list", error))?;
        let mut kept = Vec::new();
        for (name, ..) in files {
            let Some(generation) = generation_of(&name) else { continue };
            match parse_manifest(storage.dir(), storage.read(&name, MANIFEST_LEN_MAX)) {
                Ok(Some(manifest)) if manifest.generation == generation => kept.push(manifest),
                Ok(_) | Err(SetError { kind: SetErrorKind::Manifest(_), .. }) => {}
                Err(error) => return Err(error),
            }
        }
        kept.sort_by_key(|manifest| manifest.generation);
        Ok(kept)
    }

    /// Stops keeping a generation. Its layers are removed by the first pruning after their grace
    /// time.
    ///
    /// # Errors
    /// When the generation is not kept, or a system call fails.
    pub fn forget(&mut self, generation: u64, now_unix_ms: u64) -> Result<(), SetError> {
        let manifest = self.find_kept(generation)?;
        let name = name_of(generation);
        let removed = self.stager.storage.remove(&name);
        removed.map_err(|error| SetError::io(self.stager.path(&name), "remove", error))?;
        self.retire(manifest.layers.into_iter().map(|layer| layer.file), now_unix_ms);
        Ok(())
    }

    /// Publishes the content of a kept generation as a new generation. It shows the same state of
    /// the store as the kept one.
    ///
    /// # Errors
    /// When the generation is not kept or no longer complete, or a system call fails. The published
    /// set then stays.
    pub fn roll_back(&mut self, generation: u64, now_unix_ms: u64) -> Result<&Manifest, SetError> {
        self.refresh()?;
        let kept = self.find_kept(generation)?;
        let layers = self.stager.open_layers(&kept.layers)?;
        check_alike(self.stager.storage.dir(), &kept, &layers)?;
        // The kept manifest may be one without the rule.
        let names = layers.first().map(|layer| NameRule::of(layer.folds()));
        drop(layers);
        let last = self.manifest().map_or(0, |manifest| manifest.generation);
        let epoch = self.manifest().map_or(kept.epoch, |manifest| manifest.epoch);
        self.replace(Manifest { epoch, generation: last + 1, created_unix_ms: now_unix_ms, names, ..kept })
    }

    /// The reason why publishing is on hold, if it is. [`publish`](Self::publish) does not check
    /// this; its caller does.
    ///
    /// # Errors
    /// When a system call fails.
    pub fn hold_reason(&self) -> Result<Option<String>, SetError> {
        let storage = &*self.stager.storage;
        match storage.read(HELD, HELD_LEN_MAX) {
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text).trim_end().into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SetError::io(self.stager.path(HELD), "read", error)),
        }
    }

    /// Puts publishing on hold for the reason `why`, across restarts, until
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    /// When a system call fails.
    pub fn hold(&mut self, why: &str) -> Result<(), SetError> {
        self.stager.replace(HELD, &format!("{why}\n"))
    }

    /// Ends a [`hold`](Self::hold), if there is one.
    ///
    /// # Errors
    /// When a system call fails.
    pub fn resume(&mut self) -> Result<(), SetError> {
        let storage = &*self.stager.storage;
        match storage.remove(HELD) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SetError::io(self.stager.path(HELD), "remove", error))
            }
            _ => storage.sync_dir().map_err(|error| SetError::io(storage.dir(), "sync", error)),
        }
    }

    fn find_kept(&self, generation: u64) -> Result<Manifest, SetError> {
        let kept = self.kept_manifests()?.into_iter().find(|manifest| manifest.generation == generation);
        kept.ok_or_else(|| SetError::new(self.stager.path(&name_of(generation)), NOT_KEPT))
    }
}

impl PublishedSet {
    /// Opens a generation that is [kept](SetPublisher::keep) in `dir`, or the published one if
    /// it has this number.
    ///
    /// # Errors
    /// When the generation is not kept, or the set is not complete.
    pub fn open_generation(dir: &Path, how: LoadMode, generation: u64) -> Result<Self, SetError> {
        let published = read_manifest(dir)?;
        let manifest = match published.generation == generation {
            true => published,
            false => read_kept(dir, generation)?,
        };
        let layers = Self::open_layers(dir, how, &manifest, &|_| None)?;
        Ok(Self { dir: dir.into(), load_mode: how, manifest, layers })
    }
}
