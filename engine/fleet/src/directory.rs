//! A store that is a directory, as on a disk that several machines mount.
//!
//! Objects are written under another name, synced and renamed. Conditions hold among all processes
//! that lock the file `.lock` of the directory.

use crate::store::{
    FleetStore, FleetStoreError, FleetStoreErrorKind, ObjectRow, ObjectTag, PutCondition, StoredObject,
};
use bytes::Bytes;
use handle_snapshot::Sha256Sum;
use handle_snapshot::set::storage::{LOCK, create_directory};
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The file that is locked while conditions are checked.
const LOCK_FILE: &str = ".lock";
/// Start of the names of files that are being written.
const TMP_PREFIX: &str = ".tmp-";
/// Mode of objects: layers hold values that are not public.
const FILE_MODE: u32 = 0o640;

/// Number of files that this process has written, for the names of temporary files.
static FILES_WRITTEN: AtomicU64 = AtomicU64::new(0);

/// A directory as a store.
#[derive(Debug)]
pub struct DirectoryStore {
    dir: PathBuf,
}

impl DirectoryStore {
    /// Uses the directory, which need not exist yet.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates the directory for writing. A directory in which sets are published is refused: its
    /// publisher would remove files.
    fn create(&self, name: &str) -> Result<(), FleetStoreError> {
        create_directory(&self.dir)
            .map_err(|error| FleetStoreError::failed(name, "create the directory of", error))?;
        if self.path(LOCK).exists() {
            let why = "sets are published in this directory; ship to another one";
            return Err(FleetStoreError::failed(name, "write", why));
        }
        Ok(())
    }

    /// Writes a new file that is not visible as an object, and returns its path.
    fn write_hidden(
        &self,
        name: &str,
        fill: impl FnOnce(&mut File) -> io::Result<u64>,
    ) -> io::Result<PathBuf> {
        let number = FILES_WRITTEN.fetch_add(1, Ordering::Relaxed);
        let path = self.path(&format!("{TMP_PREFIX}{}-{number}-{name}", std::process::id()));
        let mut options = OpenOptions::new();
        // A file of the same name was left by a process that had the same number.
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let done = fill(&mut file)
            .and_then(|_| file.set_permissions(Permissions::from_mode(FILE_MODE)))
            .and_then(|()| file.sync_all());
        if let Err(error) = done {
            // What stays is removed by a later collection.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(path)
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    /// Locks the directory against other writers with conditions.
    fn lock(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // Not waiting for the reader of a pipe of this name.
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(self.path(LOCK_FILE))?;
        file.lock()?;
        Ok(file)
    }
}

/// Opens an object. Anything but a plain file is refused: opening a pipe would wait for its writer,
/// reading a device might never end.
fn open_object(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a plain file")),
    }
}

/// The tag of small objects is the digest of their content.
fn tag_of(bytes: &[u8]) -> ObjectTag {
    ObjectTag { e_tag: Some(Sha256Sum(Sha256::digest(bytes).into()).to_string()), version: None }
}

fn error_of(name: &str, doing: &'static str) -> impl Fn(io::Error) -> FleetStoreError {
    move |error| match error.kind() {
        ErrorKind::NotFound => FleetStoreError::new(name, FleetStoreErrorKind::NotFound),
        ErrorKind::UnexpectedEof => FleetStoreError::new(name, FleetStoreErrorKind::OtherLength),
        _ => FleetStoreError::failed(name, doing, error),
    }
}

impl FleetStore for DirectoryStore {
    fn read(
        &self,
        name: &str,
        len_max: usize,
        known: Option<&ObjectTag>,
    ) -> Result<StoredObject, FleetStoreError> {
        let mut bytes = Vec::new();
        let read = open_object(&self.path(name))
            .and_then(|file| file.take(len_max as u64 + 1).read_to_end(&mut bytes));
        read.map_err(error_of(name, "read"))?;
        if bytes.len() > len_max {
            return Err(FleetStoreError::new(name, FleetStoreErrorKind::TooLong));
        }
        let tag = tag_of(&bytes);
        if known == Some(&tag) {
            return Err(FleetStoreError::new(name, FleetStoreErrorKind::NotModified));
        }
        Ok(StoredObject { bytes: bytes.into(), tag })
    }

    fn read_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, FleetStoreError> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let read = || {
            let mut file = open_object(&self.path(name))?;
            file.seek(SeekFrom::Start(range.start))?;
            let mut bytes = Vec::with_capacity(len);
            match file.take(len as u64).read_to_end(&mut bytes)? {
                read if read == len => Ok(bytes.into()),
                _ => Err(ErrorKind::UnexpectedEof.into()),
            }
        };
        read().map_err(error_of(name, "read"))
    }

    fn len(&self, name: &str) -> Result<Option<u64>, FleetStoreError> {
        match std::fs::metadata(self.path(name)) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FleetStoreError::failed(name, "look at", error)),
        }
    }

    fn put(&self, name: &str, bytes: Bytes, condition: &PutCondition) -> Result<ObjectTag, FleetStoreError> {
        self.create(name)?;
        let write = |file: &mut File| file.write_all(&bytes).map(|()| bytes.len() as u64);
        let hidden = self.write_hidden(name, write).map_err(error_of(name, "write"))?;
        let path = self.path(name);
        let put = || {
            let _locked = self.lock()?;
            let mut stored = Vec::new();
            let now = match open_object(&path).and_then(|mut file| file.read_to_end(&mut stored)) {
                Ok(_) => Some(tag_of(&stored)),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let is_met = match condition {
                PutCondition::Always => true,
                PutCondition::Absent => now.is_none(),
                PutCondition::Unchanged(tag) => now.as_ref() == Some(tag),
            };
            if is_met {
                std::fs::rename(&hidden, &path)?;
                self.sync()?;
            } else {
                std::fs::remove_file(&hidden)?;
            }
            Ok(is_met)
        };
        match put().map_err(error_of(name, "write"))? {
            true => Ok(tag_of(&bytes)),
            false => Err(FleetStoreError::new(name, FleetStoreErrorKind::Condition)),
        }
    }

    fn put_file(&self, name: &str, file: &Path, len: u64) -> Result<(), FleetStoreError> {
        self.create(name)?;
        let mut from = File::open(file).map_err(|error| FleetStoreError::failed(name, "read", error))?;
        let mut put = || {
            let hidden = self.write_hidden(name, |to| match io::copy(&mut from, to)? {
                copied if copied == len => Ok(len),
                _ => Err(ErrorKind::UnexpectedEof.into()),
            })?;
            std::fs::rename(hidden, self.path(name))?;
            self.sync()
        };
        put().map_err(error_of(name, "write"))
    }

    fn list(&self) -> Result<Vec<ObjectRow>, FleetStoreError> {
        let list = || {
            let mut rows = Vec::new();
            for entry in std::fs::read_dir(&self.dir)? {
                let entry = entry?;
                let metadata = match entry.metadata() {
                    // Renamed or removed since it was listed.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    metadata => metadata?,
                };
                let (Ok(name), true) = (entry.file_name().into_string(), metadata.is_file()) else {
                    continue;
                };
                if name == LOCK_FILE {
                    continue;
                }
                let written = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let written_unix_ms = u64::try_from(written.as_millis()).unwrap_or(u64::MAX);
                rows.push(ObjectRow { name, len: metadata.len(), written_unix_ms });
            }
            Ok(rows)
        };
        list().map_err(error_of("the directory", "list"))
    }

    fn remove(&self, name: &str) -> Result<(), FleetStoreError> {
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(FleetStoreError::failed(name, "remove", error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    /// Opening a pipe blocks until it has a writer, and no signal ends the wait.
    #[test]
    fn a_pipe_in_place_of_an_object_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = DirectoryStore::new(directory.path());
        let path = directory.path().join("MANIFEST");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let refused = |error: FleetStoreError| assert!(error.to_string().contains("plain file"), "{error}");
        refused(store.read("MANIFEST", 100, None).unwrap_err());
        refused(store.read_range("MANIFEST", 0..1).unwrap_err());
        refused(store.put("MANIFEST", Bytes::from_static(b"x"), &PutCondition::Absent).unwrap_err());
    }
}
