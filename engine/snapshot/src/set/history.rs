//! Earlier generations that are kept, so that one can go back to them.
//!
//! A generation is kept as a copy of its MANIFEST under a name with its number. Its layers are those of
//! the published set or of another that is kept, so keeping costs only what was replaced since.

use super::manifest::{MANIFEST, MANIFEST_LEN_MAX, Manifest};
use super::publisher::SetPublisher;
use super::storage::Storage;
use super::{SetError, SetErrorKind, check_alike, parse_manifest};
use std::format;
use std::io;
use std::string::String;
use std::vec::Vec;

/// Name of the file that says why nothing is to be published.
const HELD: &str = "HELD";
/// Most bytes of it.
const HELD_LEN_MAX: usize = 1024;

fn name_of(generation: u64) -> String {
    format!("{MANIFEST}-{generation:010}")
}

/// The generation that a file of this name keeps, if it is such a name.
pub(super) fn generation_of(name: &str) -> Option<u64> {
    let generation = name.strip_prefix(MANIFEST)?.strip_prefix('-')?.parse().ok()?;
    (name_of(generation) == name).then_some(generation)
}

impl<S: Storage> SetPublisher<S> {
    /// Keeps what is published, until it is [forgotten](Self::forget). Without a set, or when it is kept
    /// already, this does nothing.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn keep(&mut self) -> Result<(), SetError> {
        self.refresh()?;
        let Some(manifest) = self.manifest().cloned() else { return Ok(()) };
        if self.kept_manifests()?.contains(&manifest) {
            return Ok(());
        }
        self.stager.replace(&name_of(manifest.generation), &manifest.encode())
    }

    /// The generations that are kept, oldest first. What does not read is none.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kept_manifests(&self) -> Result<Vec<Manifest>, SetError> {
        let storage = &*self.stager.storage;
        let files = storage.list().map_err(|error| SetError::io(storage.dir(), "list it", error))?;
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

    /// Keeps a generation no longer. Its layers go with the next pruning after their grace time.
    ///
    /// # Errors
    /// When it is not kept, or the system refuses.
    pub fn forget(&mut self, generation: u64, now_unix_ms: u64) -> Result<(), SetError> {
        let manifest = self.find_kept(generation)?;
        let name = name_of(generation);
        let removed = self.stager.storage.remove(&name);
        removed.map_err(|error| SetError::io(self.stager.path(&name), "remove it", error))?;
        self.retire(manifest.layers.into_iter().map(|layer| layer.file), now_unix_ms);
        Ok(())
    }

    /// Publishes what a kept generation was, as a new generation; it shows the state of the store that
    /// it showed then.
    ///
    /// # Errors
    /// When it is not kept or not whole any more, or the system refuses; what was published stays.
    pub fn roll_back(&mut self, generation: u64, now_unix_ms: u64) -> Result<&Manifest, SetError> {
        self.refresh()?;
        let kept = self.find_kept(generation)?;
        let layers = self.stager.open_layers(&kept.layers)?;
        check_alike(self.stager.storage.dir(), &kept, &layers)?;
        drop(layers);
        let last = self.manifest().map_or(0, |manifest| manifest.generation);
        self.replace(&Manifest { generation: last + 1, created_unix_ms: now_unix_ms, ..kept })
    }

    /// Why nothing is to be published, if so. It is for the one who calls [`publish`](Self::publish) to ask.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn hold_reason(&self) -> Result<Option<String>, SetError> {
        let storage = &*self.stager.storage;
        match storage.read(HELD, HELD_LEN_MAX) {
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text).trim_end().into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SetError::io(self.stager.path(HELD), "read it", error)),
        }
    }

    /// Says that nothing is to be published, and why; across restarts, until [`resume`](Self::resume).
    ///
    /// # Errors
    /// When the system refuses.
    pub fn hold(&mut self, why: &str) -> Result<(), SetError> {
        self.stager.replace(HELD, &format!("{why}\n"))
    }

    /// Ends a [`hold`](Self::hold), if there is one.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn resume(&mut self) -> Result<(), SetError> {
        let storage = &*self.stager.storage;
        match storage.remove(HELD) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SetError::io(self.stager.path(HELD), "remove it", error))
            }
            _ => storage.sync_dir().map_err(|error| SetError::io(storage.dir(), "sync it", error)),
        }
    }

    fn find_kept(&self, generation: u64) -> Result<Manifest, SetError> {
        let kept = self.kept_manifests()?.into_iter().find(|manifest| manifest.generation == generation);
        let refused = SetErrorKind::Refused("this generation is not kept");
        kept.ok_or_else(|| SetError::new(self.stager.path(&name_of(generation)), refused))
    }
}
