//! A directory that gets its sets from another publisher.
//!
//! The files are copied by the caller. A set is published here with the MANIFEST of the other
//! publisher, unchanged and with its signature, once all its layers are verified.

use super::publisher::{HEARTBEAT_TMP, SetPublisher};
use super::storage::{self, DiskStorage, FILE_MODE, Storage as _};
use crate::map::{AccessPattern, LoadMode, MappedFile};
use crate::names::NameRule;
use crate::reader::Layer;
use crate::set::manifest::{LayerEntry, MANIFEST, Manifest};
use crate::set::statement::{HEARTBEAT, SignedStatement};
use crate::set::{SetError, SetErrorKind, check_alike, open_layer};
use crate::verify;
use core::ops::ControlFlow;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// What is checked in a copied layer, besides its header and the homed prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerChecks {
    /// Check every record and the index, as publishing does. The checksums of sections are left
    /// out, because each record and each bucket of the index has its own.
    pub records: bool,
    /// Check what the disk holds, not what is in the page cache. The whole file is then read from
    /// the disk, and cached in huge pages, so that lookups are faster.
    pub reads_back: bool,
}

impl SetPublisher<DiskStorage> {
    /// Locks an existing directory, to publish sets of another publisher there. The set in it need
    /// not be complete.
    ///
    /// # Errors
    /// When another process has the lock, or the directory is not writable.
    pub fn open_replica(dir: &Path) -> Result<Self, SetError> {
        match DiskStorage::lock(dir) {
            Ok(Some(disk)) => Ok(Self::unread(disk)),
            Ok(None) => Err(SetError::new(dir, SetErrorKind::Locked)),
            Err(error) => Err(SetError::io(dir, "lock", error)),
        }
    }

    /// Whether the directory has the layer of `entry`: a file of this name, length and header.
    pub fn has_layer(&self, entry: &LayerEntry) -> bool {
        self.map(&entry.file, entry).is_ok()
    }

    /// Makes the complete file `part` of the directory the layer of `entry`. The caller has
    /// compared its content with the digest.
    ///
    /// # Errors
    /// When the file is not that layer, it is damaged, or a system call fails. The file then stays.
    pub fn take_layer(&self, part: &str, entry: &LayerEntry, checks: LayerChecks) -> Result<(), SetError> {
        let (path, disk) = (self.stager.path(part), &*self.stager.storage);
        let io = |doing| {
            let path = &path;
            move |error| SetError::io(path, doing, error)
        };
        let file = File::options().read(true).write(true).open(&path).map_err(io("open"))?;
        file.set_permissions(Permissions::from_mode(FILE_MODE)).map_err(io("change the mode of"))?;
        let check = || self.check_part(part, entry, checks.records);
        if checks.reads_back {
            disk.sync(&file).map_err(io("sync"))?;
            check()?;
        } else {
            let (synced, checked) = std::thread::scope(|scope| {
                let synced = scope.spawn(|| file.sync_all());
                let checked = check();
                (synced.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), checked)
            });
            synced.map_err(io("sync"))?;
            checked?;
        }
        disk.rename(part, &entry.file).map_err(io("rename"))
    }

    /// Checks that a file is the layer of `entry`, and if asked to, all records and the index.
    fn check_part(&self, part: &str, entry: &LayerEntry, checks_records: bool) -> Result<(), SetError> {
        let layer = self.map(part, entry)?;
        let fault = |fault| SetError::new(self.stager.path(part), SetErrorKind::Fault(fault));
        verify::homed_sum(&layer).map_err(fault)?;
        if checks_records {
            layer.bytes().expect(AccessPattern::Sequential);
            let passed = |range| {
                self.stager.storage.forget(layer.bytes(), range);
                ControlFlow::Continue(())
            };
            verify::content_in_halves(&layer, passed).map_err(fault)?;
        }
        Ok(())
    }

    fn map(&self, file: &str, entry: &LayerEntry) -> Result<Layer<MappedFile>, SetError> {
        let path = self.stager.path(file);
        let bytes = MappedFile::open(&path, LoadMode::Map);
        let bytes = bytes.map_err(|error| SetError::io(&path, "map", error))?;
        open_layer(bytes, entry).map_err(|why| SetError::new(path, why))
    }

    /// Publishes the set of another publisher, all of whose layers are in the directory.
    ///
    /// # Errors
    /// When a layer is missing or does not belong to the set, or a system call fails. The published
    /// set then stays.
    pub fn adopt(&mut self, manifest: &Manifest) -> Result<(), SetError> {
        let layers = self.stager.open_layers(&manifest.layers)?;
        check_alike(self.dir(), manifest, &layers)?;
        drop(layers);
        // The names of the layers must be on disk before that of the MANIFEST.
        let disk = &*self.stager.storage;
        disk.sync_dir().map_err(|error| SetError::io(disk.dir(), "sync", error))?;
        self.retire_all_but(manifest);
        self.stager.replace(MANIFEST, &manifest.encode())?;
        self.refresh()
    }

    /// Writes a statement of another publisher about the published set to the file HEARTBEAT.
    ///
    /// # Errors
    /// When a system call fails.
    pub fn adopt_statement(&self, statement: &SignedStatement) -> Result<(), SetError> {
        self.stager.write_small(HEARTBEAT_TMP, HEARTBEAT, &statement.encode(), false)
    }
}

impl<S: storage::Storage> SetPublisher<S> {
    /// Publishes the same set again with a higher epoch, so that it and all later sets of this
    /// publisher count as newer than those of any publisher with a lower epoch.
    ///
    /// # Errors
    /// When there is no set, its epoch is not lower, or a system call fails. The published set then
    /// stays.
    pub fn raise_epoch(&mut self, epoch: u64, now_unix_ms: u64) -> Result<&Manifest, SetError> {
        self.refresh()?;
        let refused = |kind| SetError::new(self.dir(), kind);
        let manifest = self.manifest().ok_or_else(|| refused(SetErrorKind::NotPublished))?.clone();
        if manifest.epoch >= epoch {
            return Err(refused(SetErrorKind::Refused("its epoch is not lower than the new one")));
        }
        let generation = manifest.generation + 1;
        // The published manifest may be one without the rule.
        let names = self.records().map(|records| NameRule::of(records.folds()));
        self.replace(Manifest { epoch, generation, created_unix_ms: now_unix_ms, names, ..manifest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::LayerHeader;
    use crate::{BuildError, Builder, HomedPrefixes, LayerOptions};
    use handle_proto::Value;
    use std::vec::Vec;

    fn write(
        file: File,
        dir: &Path,
        options: LayerOptions,
        handles: &[&str],
    ) -> Result<(File, LayerHeader), BuildError> {
        let mut homed = HomedPrefixes::default();
        homed.add(b"10.1");
        let mut builder = Builder::new(dir, options).homed(homed);
        for handle in handles {
            builder.add(1, handle.as_bytes(), [Value::new(1, b"URL", b"https://a.example/")])?;
        }
        builder.finish(file)
    }

    fn publish(dir: &Path, handles: &[&str]) -> Manifest {
        let mut publisher = SetPublisher::open(dir).unwrap();
        let options = LayerOptions { seed: 7, folds: true, created_unix_ms: 1 };
        publisher.publish_base(1, |file, dir| write(file, dir, options, handles)).unwrap().clone()
    }

    #[test]
    fn a_set_is_adopted_when_all_its_layers_are_there_and_verified() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let manifest = publish(from.path(), &["10.1/a", "10.1/b"]);
        let entry = &manifest.layers[0];
        let bytes = std::fs::read(from.path().join(&entry.file)).unwrap();
        let mut replica = SetPublisher::open_replica(to.path()).unwrap();
        let missing = replica.adopt(&manifest).unwrap_err();
        assert!(missing.is_not_found() && missing.path.ends_with(&entry.file), "{missing}");
        assert!(!replica.has_layer(entry));
        let part = |bytes: &[u8]| std::fs::write(to.path().join("part"), bytes).unwrap();
        for reads_back in [false, true] {
            let checks = LayerChecks { records: true, reads_back };
            for at in [0, 150, 330, bytes.len() - 1] {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                part(&damaged);
                let damaged = replica.take_layer("part", entry, checks).unwrap_err();
                let is_damage = |kind: &SetErrorKind| {
                    matches!(
                        kind,
                        SetErrorKind::Open(_) | SetErrorKind::OtherFile { .. } | SetErrorKind::Fault(_)
                    )
                };
                assert!(is_damage(&damaged.kind), "byte {at}: {damaged}");
                assert!(!replica.has_layer(entry));
            }
            part(&bytes);
            replica.take_layer("part", entry, checks).unwrap();
            assert!(replica.has_layer(entry));
            replica.adopt(&manifest).unwrap();
            std::fs::remove_file(to.path().join(&entry.file)).unwrap();
        }
        part(&bytes);
        replica.take_layer("part", entry, LayerChecks { records: false, reads_back: false }).unwrap();
        replica.adopt(&manifest).unwrap();
        assert_eq!(crate::set::read_manifest(to.path()).unwrap(), manifest);
        assert!(matches!(
            SetPublisher::open_replica(to.path()).map(drop).unwrap_err().kind,
            SetErrorKind::Locked
        ));
    }

    #[test]
    fn a_higher_epoch_makes_a_newer_set_of_the_same_records() {
        let dir = tempfile::tempdir().unwrap();
        let first = publish(dir.path(), &["10.1/a"]);
        let mut publisher = SetPublisher::open(dir.path()).unwrap();
        let refused = publisher.raise_epoch(1, 5).unwrap_err();
        assert!(matches!(refused.kind, SetErrorKind::Refused(_)), "{refused}");
        let raised = publisher.raise_epoch(4, 5).unwrap().clone();
        assert_eq!((raised.epoch, raised.generation, raised.root), (4, first.generation + 1, first.root));
        let options = publisher.options(6).unwrap();
        let next = publisher.publish_delta(6, |file, dir| write(file, dir, options, &["10.1/b"]));
        assert_eq!(next.unwrap().epoch, 4, "later sets keep the epoch");
    }

    #[test]
    fn names_of_layers_tell_their_content() {
        let names: Vec<_> = [&["10.1/a"][..], &["10.1/a"], &["10.1/b"]]
            .iter()
            .map(|handles| {
                let dir = tempfile::tempdir().unwrap();
                publish(dir.path(), handles).layers[0].clone()
            })
            .collect();
        assert_eq!(names[0], names[1]);
        assert_ne!(names[0].file, names[2].file);
        let digest = std::format!("{}", names[0].digest);
        assert_eq!(names[0].file, std::format!("0000000001-{}.layer", &digest[..32]));
    }
}
