//! What a publisher remembers of the sets that it has shipped: a file beside the set.
//!
//! A set is noted before its MANIFEST is put into the store. A publisher thereby recognises its own
//! set in the store, also after it was killed while it shipped.

use crate::error::ShipError;
use handle_snapshot::Sha256Sum;
use handle_snapshot::set::manifest::Manifest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Start of the name of the file; the start of the digest of the URL follows.
const FILE_PREFIX: &str = "SHIPPED-";
/// Digits of the digest in the name.
const NAME_DIGITS: usize = 16;

/// A set that was shipped, or that was about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedSet {
    /// Its epoch.
    pub epoch: u64,
    /// Its generation.
    pub generation: u64,
    /// SHA-256 of its MANIFEST.
    pub manifest: String,
    /// The files of its layers.
    pub layers: Vec<String>,
}

impl ShippedSet {
    /// The set of a manifest.
    #[must_use]
    pub fn of(manifest: &Manifest) -> Self {
        let digest = Sha256Sum(Sha256::digest(manifest.encode()).into());
        Self {
            epoch: manifest.epoch,
            generation: manifest.generation,
            manifest: digest.to_string(),
            layers: manifest.layers.iter().map(|layer| layer.file.clone()).collect(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct RecordFile {
    url: String,
    sets: Vec<ShippedSet>,
    /// When objects in the store were first found to be without use, Unix milliseconds.
    #[serde(default)]
    unneeded: BTreeMap<String, u64>,
}

/// The sets that were shipped to one store, oldest first.
#[derive(Debug)]
pub struct ShippedRecord {
    path: PathBuf,
    file: RecordFile,
}

impl ShippedRecord {
    /// Reads the record of the sets in `dir` that were shipped to `url`.
    ///
    /// # Errors
    /// When there is a record that cannot be read.
    pub fn open(dir: &Path, url: &str) -> Result<Self, ShipError> {
        let digest = Sha256Sum(Sha256::digest(url).into()).to_string();
        let path = dir.join(format!("{FILE_PREFIX}{}", &digest[..NAME_DIGITS]));
        let mut record = Self { path, file: RecordFile { url: url.to_owned(), ..RecordFile::default() } };
        record.reread()?;
        Ok(record)
    }

    /// Reads the file again, which another process may have written.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn reread(&mut self) -> Result<(), ShipError> {
        let read = match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        match read {
            Ok(Some(file)) => self.file = file,
            Ok(None) => {}
            Err(error) => return Err(ShipError::Record(self.path.clone(), error)),
        }
        Ok(())
    }

    /// Whether the set is one of this publisher.
    #[must_use]
    pub fn has(&self, manifest: &Manifest) -> bool {
        let set = ShippedSet::of(manifest);
        self.file.sets.contains(&set)
    }

    /// The sets, oldest first.
    #[must_use]
    pub fn sets(&self) -> &[ShippedSet] {
        &self.file.sets
    }

    /// Notes a set that is about to be shipped, durably, and keeps the last `count` sets.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note(&mut self, manifest: &Manifest, count: usize) -> Result<(), ShipError> {
        let set = ShippedSet::of(manifest);
        self.file.sets.retain(|known| *known != set);
        self.file.sets.push(set);
        let excess = self.file.sets.len().saturating_sub(count);
        self.file.sets.drain(..excess);
        self.write().map_err(|error| ShipError::Record(self.path.clone(), error))
    }

    /// Notes the objects in the store that are without use now, and returns since when each is.
    /// Other processes that ship from this directory, later ones too, continue from there.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn note_unneeded(
        &mut self,
        names: &BTreeSet<&str>,
        now_unix_ms: u64,
    ) -> Result<&BTreeMap<String, u64>, ShipError> {
        self.reread()?;
        let known = &self.file.unneeded;
        let since = |name: &str| known.get(name).copied().unwrap_or(now_unix_ms).min(now_unix_ms);
        let unneeded: BTreeMap<_, _> = names.iter().map(|name| ((*name).to_owned(), since(name))).collect();
        if unneeded != self.file.unneeded {
            self.file.unneeded = unneeded;
            self.write().map_err(|error| ShipError::Record(self.path.clone(), error))?;
        }
        Ok(&self.file.unneeded)
    }

    fn write(&self) -> io::Result<()> {
        let tmp = self.path.with_extension("tmp");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o640).open(&tmp)?;
        file.write_all(&serde_json::to_vec(&self.file)?)?;
        file.sync_all()?;
        std::fs::rename(&tmp, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}
