//! A published set: a MANIFEST and the layers that it names, newest first.
//!
//! A directory holds one set. Publishing adds files under new names and then replaces the MANIFEST
//! in one step, so a reader sees either the old set or the new one, complete, also after a power
//! failure.

#[cfg(feature = "build")]
mod building;
pub mod freshness;
pub mod last_served;
pub mod manifest;
pub mod statement;

#[cfg(feature = "build")]
pub use building::{LayerChecks, SetTree, publisher, stager, steady_file, steps, storage};

use crate::format::{OpenError, Sha256Sum};
use crate::map::{AccessPattern, LoadMode, MappedFile};
use crate::names::NameRule;
use crate::reader::{Layer, Trust};
use crate::records::RecordSet;
use crate::verify::{self, LayerFault, VerifyReport, layer_digest};
#[cfg(feature = "build")]
use crate::writer::BuildError;
use core::fmt;
use manifest::{LayerEntry, MANIFEST, MANIFEST_LEN_MAX, Manifest, ManifestError};
use statement::STATEMENT_VERSION;
use std::boxed::Box;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec::Vec;

/// How often opening starts again because the set was replaced in the meantime.
const OPEN_ATTEMPTS_MAX: usize = 5;

/// Why a set cannot be opened or published.
#[derive(Debug)]
pub struct SetError {
    /// The file, or the directory.
    pub path: PathBuf,
    /// What is wrong.
    pub kind: SetErrorKind,
}

/// Why a set cannot be opened or published.
#[derive(Debug)]
#[non_exhaustive]
pub enum SetErrorKind {
    /// There is no MANIFEST.
    NotPublished,
    /// Another process holds the lock of the directory.
    Locked,
    /// A system call failed.
    Io {
        /// The action that failed, as in "cannot read".
        doing: &'static str,
        /// The error of the system.
        error: io::Error,
    },
    /// The MANIFEST is not valid.
    Manifest(ManifestError),
    /// A layer does not open.
    Open(OpenError),
    /// A layer is not the file that the MANIFEST names.
    OtherFile {
        /// The property that differs.
        what: &'static str,
    },
    /// A layer has another seed or case rule than the newest.
    Mixed,
    /// A layer is damaged.
    Fault(LayerFault),
    /// The new layer was not built.
    #[cfg(feature = "build")]
    Build(BuildError),
    /// The new layer does not fit the set.
    Refused(&'static str),
    /// The MANIFEST is not signed, and a signature is required.
    Unsigned,
    /// The MANIFEST is not signed by an accepted publisher.
    Foreign,
    /// The MANIFEST is older than that of the set in service.
    Older {
        /// Its generation.
        found: u64,
        /// The generation in service.
        served: u64,
    },
    /// The MANIFEST is older than that of a set which was served before the restart.
    OlderThanStored {
        /// Its epoch and generation.
        found: (u64, u64),
        /// Those of the set that was served.
        stored: (u64, u64),
        /// The file that says so.
        file: PathBuf,
    },
    /// The statement about the set is further ahead of the clock of this machine than a clock that
    /// is right can be, by these milliseconds.
    Ahead(u64),
    /// A file that should have a statement about a set has something else.
    NotAStatement,
    /// The statement in such a file has this later version of the format.
    LaterStatement(u64),
    /// The statement about the set was not signed.
    Sign(String),
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.kind {
            SetErrorKind::NotPublished => {
                write!(
                    f,
                    "{path}: no set is published here (there is no {MANIFEST}); publish one with `hdl snapshot publish`"
                )
            }
            SetErrorKind::Locked => write!(
                f,
                "{path}: another process holds the lock for publishing; stop it, or wait until it is done"
            ),
            SetErrorKind::Io { doing, error } => write!(f, "cannot {doing} {path}: {error}"),
            SetErrorKind::Manifest(error) => write!(f, "{path}: {error}"),
            SetErrorKind::Open(error) => write!(f, "{path}: {error}"),
            SetErrorKind::OtherFile { what } => {
                write!(
                    f,
                    "{path}: not the file that {MANIFEST} names: its {what} differs; publish the set again"
                )
            }
            SetErrorKind::Mixed => {
                write!(f, "{path}: the layer has another seed or case rule than the newest layer")
            }
            SetErrorKind::Fault(fault) => write!(f, "{path}: {fault}"),
            #[cfg(feature = "build")]
            SetErrorKind::Build(error) => write!(f, "{path}: {error}"),
            SetErrorKind::Refused(why) => write!(f, "{path}: {why}"),
            SetErrorKind::Unsigned => {
                write!(f, "{path}: the set is not signed, and only signed sets are accepted")
            }
            SetErrorKind::Foreign => {
                write!(f, "{path}: the set is not signed with the key of an accepted publisher")
            }
            SetErrorKind::Older { found, served } => {
                write!(f, "{path}: generation {found} is older than generation {served}, which is served")
            }
            SetErrorKind::OlderThanStored { found, stored, file } => write!(
                f,
                "{path}: generation {} of epoch {} is older than generation {} of epoch {}, which was served before \
                 the restart; to serve it on purpose, remove {}",
                found.1,
                found.0,
                stored.1,
                stored.0,
                file.display()
            ),
            SetErrorKind::Ahead(ahead_ms) => write!(
                f,
                "{path}: its publisher has signed it {} s ahead of the clock of this machine: one of both clocks is \
                 wrong (compare them: date -u; chronyc tracking)",
                ahead_ms / 1000
            ),
            SetErrorKind::NotAStatement => write!(
                f,
                "{path}: not a statement about the set that was served last; remove the file to serve any set of an \
                 accepted publisher"
            ),
            SetErrorKind::LaterStatement(version) => write!(
                f,
                "{path}: the statement about the set that was served last has format {version}, and this program reads \
                 formats 1 and {STATEMENT_VERSION}: update this program, or remove the file to serve any set of an \
                 accepted publisher"
            ),
            SetErrorKind::Sign(error) => write!(f, "{path}: cannot sign the set: {error}"),
        }
    }
}

/// Without a source, because the text includes it already.
impl core::error::Error for SetError {}

impl SetError {
    fn new(path: impl Into<PathBuf>, why: SetErrorKind) -> Self {
        Self { path: path.into(), kind: why }
    }

    fn io(path: impl Into<PathBuf>, doing: &'static str, error: io::Error) -> Self {
        Self::new(path, SetErrorKind::Io { doing, error })
    }

    /// Whether the MANIFEST has a version that this program does not read.
    #[must_use]
    pub fn is_of_another_version(&self) -> bool {
        matches!(&self.kind, SetErrorKind::Manifest(error) if error.version.is_some())
    }

    fn is_not_found(&self) -> bool {
        matches!(&self.kind, SetErrorKind::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

/// An opened set. It does not change when another set is published.
#[derive(Clone, Debug)]
pub struct PublishedSet {
    dir: PathBuf,
    load_mode: LoadMode,
    manifest: Manifest,
    layers: Box<[Layer<MappedFile>]>,
}

impl PublishedSet {
    /// A set without layers, which is not published anywhere.
    #[must_use]
    pub fn empty() -> Self {
        let manifest = Manifest {
            epoch: 0,
            generation: 0,
            created_unix_ms: 0,
            handles_count: 0,
            names: None,
            root: Sha256Sum::default(),
            source: None,
            layers: Vec::new(),
            seal: None,
        };
        Self { dir: PathBuf::new(), load_mode: LoadMode::Map, manifest, layers: Box::default() }
    }

    /// Opens the set that is published in `dir`.
    ///
    /// # Errors
    /// When no set is published, or the set is not complete.
    pub fn open(dir: &Path, how: LoadMode) -> Result<Self, SetError> {
        Self::open_from(dir, how, &|_| None)
    }

    /// Opens the set that is now published in the directory of `previous`, sharing the layers that
    /// are open already.
    ///
    /// # Errors
    /// When no set is published, or the set is not complete.
    pub fn reopen(previous: &Self) -> Result<Self, SetError> {
        Self::open_from(&previous.dir, previous.load_mode, &|entry| previous.layer(entry))
    }

    /// As [`reopen`](Self::reopen), except that the layers for which `is_stale` returns true are
    /// opened again, because their files may have been replaced.
    ///
    /// # Errors
    /// When no set is published, or the set is not complete.
    pub fn reopen_stale(previous: &Self, is_stale: impl Fn(&LayerEntry) -> bool) -> Result<Self, SetError> {
        let shared = |entry: &LayerEntry| previous.layer(entry).filter(|_| !is_stale(entry));
        Self::open_from(&previous.dir, previous.load_mode, &shared)
    }

    /// As [`open`](Self::open), and compares the tables of homed prefixes with their checksums.
    ///
    /// # Errors
    /// When no set is published, the set is not complete, or a table is damaged.
    pub fn open_checked(dir: &Path, how: LoadMode) -> Result<Self, SetError> {
        let set = Self::open(dir, how)?;
        set.check_homed(|_| false)?;
        Ok(set)
    }

    /// As [`reopen_stale`](Self::reopen_stale), and checks the layers that `previous` does not
    /// have: their tables of homed prefixes, and with `verify_new` every byte. The publisher has
    /// verified them, but they may have been damaged on the way. Stale layers are verified in full.
    ///
    /// # Errors
    /// When no set is published, the set is not complete, or a checked layer is damaged.
    pub fn reopen_checked(
        previous: &Self,
        is_stale: impl Fn(&LayerEntry) -> bool,
        verify_new: bool,
    ) -> Result<Self, SetError> {
        let set = Self::reopen_stale(previous, &is_stale)?;
        let is_known = |entry: &LayerEntry| previous.layer(entry).is_some() && !is_stale(entry);
        for (entry, layer) in set.manifest.layers.iter().zip(&set.layers) {
            if is_stale(entry) || verify_new && !is_known(entry) {
                let check = verify::layer(layer);
                check
                    .map_err(|fault| SetError::new(set.dir.join(&entry.file), SetErrorKind::Fault(fault)))?;
            }
        }
        set.check_homed(is_known)?;
        Ok(set)
    }

    /// Compares the tables of homed prefixes with their checksums, except for layers that are
    /// already known. The tables are short, and they decide for every answer whether a server is
    /// responsible.
    fn check_homed(&self, is_known: impl Fn(&LayerEntry) -> bool) -> Result<(), SetError> {
        for (entry, layer) in self.manifest.layers.iter().zip(&self.layers) {
            if !is_known(entry) {
                let check = verify::homed_sum(layer);
                check
                    .map_err(|fault| SetError::new(self.dir.join(&entry.file), SetErrorKind::Fault(fault)))?;
            }
        }
        Ok(())
    }

    fn open_from<'p>(
        dir: &Path,
        how: LoadMode,
        shared: &impl Fn(&LayerEntry) -> Option<&'p Layer<MappedFile>>,
    ) -> Result<Self, SetError> {
        let mut manifest = read_manifest(dir)?;
        for _ in 1..OPEN_ATTEMPTS_MAX {
            match Self::open_layers(dir, how, &manifest, shared) {
                // A missing layer may have been replaced and removed after the manifest was read.
                Err(error) if error.is_not_found() => {
                    let now = read_manifest(dir)?;
                    if now == manifest {
                        return Err(error);
                    }
                    manifest = now;
                }
                layers => return Ok(Self { dir: dir.into(), load_mode: how, layers: layers?, manifest }),
            }
        }
        let layers = Self::open_layers(dir, how, &manifest, shared)?;
        Ok(Self { dir: dir.into(), load_mode: how, manifest, layers })
    }

    fn open_layers<'p>(
        dir: &Path,
        how: LoadMode,
        manifest: &Manifest,
        shared: &impl Fn(&LayerEntry) -> Option<&'p Layer<MappedFile>>,
    ) -> Result<Box<[Layer<MappedFile>]>, SetError> {
        let layers = manifest.layers.iter().map(|entry| {
            if let Some(layer) = shared(entry) {
                return Ok(layer.clone());
            }
            let path = dir.join(&entry.file);
            let bytes = MappedFile::open(&path, how).map_err(|error| SetError::io(&path, "map", error))?;
            open_layer(bytes, entry).map_err(|why| SetError::new(&path, why))
        });
        let layers: Box<[_]> = layers.collect::<Result<_, _>>()?;
        check_alike(dir, manifest, &layers)?;
        // A damaged disk may move bytes of one layer into another.
        let trust =
            if layers.iter().any(|layer| layer.private_count() > 0) { Trust::Checked } else { Trust::Plain };
        Ok(layers.into_iter().map(|layer| layer.with_trust(trust)).collect())
    }

    /// The same set, with the trust that `trust` gives to each layer.
    #[must_use]
    pub fn with_trust(&self, trust: impl Fn(&LayerEntry) -> Trust) -> Self {
        let layers = self.manifest.layers.iter().zip(&self.layers);
        let layers = layers.map(|(entry, layer)| layer.clone().with_trust(trust(entry))).collect();
        Self { layers, ..self.clone() }
    }

    /// Whether some record has a value that is not public.
    #[must_use]
    pub fn has_private_values(&self) -> bool {
        self.layers.iter().any(|layer| layer.private_count() > 0)
    }

    fn layer(&self, entry: &LayerEntry) -> Option<&Layer<MappedFile>> {
        let at = self.manifest.layers.iter().position(|ours| ours == entry)?;
        self.layers.get(at)
    }

    /// The generation.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.manifest.generation
    }

    /// Time when the set was published, Unix milliseconds.
    #[must_use]
    pub const fn created_unix_ms(&self) -> u64 {
        self.manifest.created_unix_ms
    }

    /// Number of handles that a lookup finds in all layers together, without deleted ones.
    ///
    /// The publisher counted them; this is its number.
    #[must_use]
    pub const fn handles_count(&self) -> u64 {
        self.manifest.handles_count
    }

    /// The MANIFEST.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The layers, newest first.
    #[must_use]
    pub const fn layers(&self) -> &[Layer<MappedFile>] {
        &self.layers
    }

    /// The layers as one, for a resolver.
    #[inline]
    #[must_use]
    pub fn records(&self) -> RecordSet<'_, MappedFile> {
        RecordSet::new_alike(&self.layers)
    }

    /// Bytes of all layers.
    #[must_use]
    pub fn bytes_mapped(&self) -> u64 {
        self.manifest.layers.iter().map(|layer| layer.len).sum()
    }

    /// Checks every layer in full, newest first.
    ///
    /// # Errors
    /// The first fault, with its file.
    pub fn verify(&self) -> Result<Vec<VerifyReport>, SetError> {
        let check = |(entry, layer): (&LayerEntry, &Layer<MappedFile>)| {
            let fault = |fault| SetError::new(self.dir.join(&entry.file), SetErrorKind::Fault(fault));
            layer.bytes().expect(AccessPattern::Sequential);
            let report = verify::layer(layer).map_err(fault);
            layer.bytes().expect(AccessPattern::Random);
            report
        };
        self.manifest.layers.iter().zip(&self.layers).map(check).collect()
    }
}

/// Reads the manifest that is published in `dir`.
///
/// # Errors
/// When there is none, or it is damaged.
pub fn read_manifest(dir: &Path) -> Result<Manifest, SetError> {
    parse_manifest(dir, read_small(&dir.join(MANIFEST), MANIFEST_LEN_MAX))?
        .ok_or_else(|| SetError::new(dir, SetErrorKind::NotPublished))
}

/// Reads a small file, at most one byte more than `len_max`.
fn read_small(path: &Path, len_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(len_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse_manifest(dir: &Path, bytes: io::Result<Vec<u8>>) -> Result<Option<Manifest>, SetError> {
    let path = dir.join(MANIFEST);
    match bytes {
        Ok(bytes) => match Manifest::parse(&bytes) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) => Err(SetError::new(path, SetErrorKind::Manifest(error))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SetError::io(path, "read", error)),
    }
}

fn open_layer<B: AsRef<[u8]>>(bytes: B, entry: &LayerEntry) -> Result<Layer<B>, SetErrorKind> {
    if bytes.as_ref().len() as u64 != entry.len {
        return Err(SetErrorKind::OtherFile { what: "length" });
    }
    let layer = Layer::open(bytes).map_err(SetErrorKind::Open)?;
    if layer_digest(layer.header()) != entry.digest {
        return Err(SetErrorKind::OtherFile { what: "digest" });
    }
    Ok(layer)
}

fn check_alike<B: AsRef<[u8]>>(dir: &Path, manifest: &Manifest, layers: &[Layer<B>]) -> Result<(), SetError> {
    let refused = |layer: usize, kind| Err(SetError::new(dir.join(&manifest.layers[layer].file), kind));
    match RecordSet::new(layers) {
        // The publisher signs the rule of the MANIFEST, and lookups follow that of the layers.
        Ok(records) => match manifest.names {
            Some(rule) if rule != NameRule::of(records.folds()) && !layers.is_empty() => {
                refused(0, SetErrorKind::OtherFile { what: "rule for names" })
            }
            _ => Ok(()),
        },
        Err(mixed) => refused(mixed.layer, SetErrorKind::Mixed),
    }
}
