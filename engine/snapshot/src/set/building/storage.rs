//! The few file operations that publishing needs, as a trait, so that tests can stop after each.

use super::fence::PublisherFence;
use crate::map::{AccessPattern, LoadMode, MappedFile};
use crate::set::read_small;
use core::ops::Range;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::string::String;
use std::time::SystemTime;
use std::vec::Vec;

/// Length of a file from which on reading it back pays off: a few huge pages.
const LARGE_LEN: u64 = 16 << 20;

/// End of the names of files that are renamed to replace others.
const TMP_SUFFIX: &str = ".tmp";

/// Name of the file that a publisher locks.
pub const LOCK: &str = "LOCK";

/// Mode of a directory of sets. Layers hold values that are not public, so only the owner and the
/// group, which is that of the resolver, may read it.
const DIRECTORY_MODE: u32 = 0o750;
/// Mode of layers and manifests.
pub(super) const FILE_MODE: u32 = 0o640;
/// Mode of [`LOCK`]. Every user who can open it could hold the lock and block the publisher.
const LOCK_MODE: u32 = 0o600;
/// Mode of files until they get their final mode.
const NEW_MODE: u32 = 0o600;
/// Mode bit of a directory that gives its group to new files.
const SET_GROUP_ID: u32 = 0o2000;

/// Creates a directory for sets with mode 0750, whatever the umask. An existing directory is not
/// changed.
///
/// A set-group-ID bit inherited from the parent directory stays.
///
/// # Errors
/// The error of the system.
pub fn create_directory(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        std::fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            let set_group_id = std::fs::metadata(dir)?.permissions().mode() & SET_GROUP_ID;
            std::fs::set_permissions(dir, Permissions::from_mode(DIRECTORY_MODE | set_group_id))
        }
    }
}

/// One directory. Names are plain file names in it.
pub trait Storage: Send + Sync + 'static {
    /// A file being written.
    type File: Write + Seek + Send + 'static;
    /// The bytes of a finished file.
    type Bytes: AsRef<[u8]> + Sync;

    /// Creates a file that does not exist yet.
    ///
    /// # Errors
    /// `AlreadyExists` if it exists; otherwise the error of the system.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Waits until the written bytes would survive a power failure.
    ///
    /// # Errors
    /// The error of the system.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Waits until added and removed names would survive a power failure.
    ///
    /// # Errors
    /// The error of the system.
    fn sync_dir(&self) -> io::Result<()>;
    /// Renames a file in one step, replacing a file that has the new name.
    ///
    /// # Errors
    /// The error of the system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a name.
    ///
    /// # Errors
    /// The error of the system.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Lists every file with its length and the time of its last write.
    ///
    /// # Errors
    /// The error of the system.
    fn list(&self) -> io::Result<Vec<(String, u64, SystemTime)>>;
    /// Reads a small file, at most one byte more than `len_max`.
    ///
    /// # Errors
    /// The error of the system.
    fn read(&self, name: &str, len_max: usize) -> io::Result<Vec<u8>>;
    /// The bytes of a finished file.
    ///
    /// # Errors
    /// The error of the system.
    fn open(&self, name: &str) -> io::Result<Self::Bytes>;
    /// Lets only this process, and only with this epoch, replace files from now on. False if
    /// another one has a higher epoch already. Storage with one publisher does nothing.
    ///
    /// # Errors
    /// The error of the system.
    fn take_over(&self, epoch: u64) -> io::Result<bool> {
        let _ = epoch;
        Ok(true)
    }
    /// Advises that these bytes will not be read again soon, and need not stay in memory.
    fn forget(&self, bytes: &Self::Bytes, range: Range<u64>) {
        let _ = (bytes, range);
    }
    /// The path of the directory; for messages, and for nameless temporary files.
    fn dir(&self) -> &Path;
}

/// A directory of the file system, locked against other publishers, or shared with those that take
/// turns (see the module `fence`).
#[derive(Debug)]
pub struct DiskStorage {
    dir: PathBuf,
    /// Held open: the lock ends with the descriptor, however the process ends.
    _lock: File,
    /// `None` if the directory has one publisher.
    fence: Option<PublisherFence>,
}

impl DiskStorage {
    /// Locks a directory; `None` if another process holds the lock.
    ///
    /// # Errors
    /// When the directory does not exist or is not writable.
    pub fn lock(dir: &Path) -> io::Result<Option<Self>> {
        let lock = open_lock(dir)?;
        Ok(is_locked(lock.try_lock())?.then(|| Self { dir: dir.into(), _lock: lock, fence: None }))
    }

    /// Shares a directory with publishers that take turns; `None` if a process holds the lock that
    /// does not share it. Nothing can be published before [`take_over`](Storage::take_over).
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn share(dir: &Path) -> io::Result<Option<Self>> {
        let lock = open_lock(dir)?;
        let fence = Some(PublisherFence::new(dir));
        Ok(is_locked(lock.try_lock_shared())?.then(|| Self { dir: dir.into(), _lock: lock, fence }))
    }

    /// The path of a file. Those that replace others are in a directory of the publisher that has
    /// its turn.
    fn path(&self, name: &str) -> io::Result<PathBuf> {
        match &self.fence {
            Some(fence) if name.ends_with(TMP_SUFFIX) => fence.path(name),
            _ => Ok(self.dir.join(name)),
        }
    }
}

/// Opens the file to lock.
fn open_lock(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(LOCK_MODE);
    let file = options.open(dir.join(LOCK))?;
    if file.metadata()?.permissions().mode() & 0o777 != LOCK_MODE {
        // Only the owner can change the mode. A publisher that runs as another user can still
        // use the file.
        let _ = file.set_permissions(Permissions::from_mode(LOCK_MODE));
    }
    Ok(file)
}

fn is_locked(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

impl Storage for DiskStorage {
    type File = File;
    type Bytes = MappedFile;

    fn create(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(NEW_MODE).open(self.path(name)?)?;
        // The mode that `open` sets is reduced by the umask.
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
        Ok(file)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()?;
        if file.metadata()?.len() >= LARGE_LEN {
            // Written pages are cached one by one. Pages that are read back, as the check before
            // publishing does, are cached as huge pages: a lookup among 10 M records takes 126
            // instead of 208 ns. The check then also covers what the disk holds. The system may
            // ignore the advice.
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        }
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from)?, self.dir.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if let Some(fence) = &self.fence {
            fence.check()?;
        }
        let path = self.path(name)?;
        let is_large = path.metadata().is_ok_and(|file| file.is_file() && file.len() >= LARGE_LEN);
        let large = is_large.then(|| File::open(&path).ok()).flatten();
        std::fs::remove_file(path)?;
        if let Some(file) = large {
            // The space is freed when the last descriptor is closed: 0.7 s for 2.6 GB on ext4, for
            // which publishing would wait. Without a thread, it is closed here.
            let thread = std::thread::Builder::new().name(String::from("free"));
            let _ = thread.spawn(move || drop(file));
        }
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<(String, u64, SystemTime)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                // Another publisher of a shared directory has renamed or removed it since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if let (Ok(name), true) = (entry.file_name().into_string(), metadata.is_file()) {
                files.push((name, metadata.len(), metadata.modified()?));
            }
        }
        Ok(files)
    }

    fn read(&self, name: &str, len_max: usize) -> io::Result<Vec<u8>> {
        read_small(&self.dir.join(name), len_max)
    }

    fn open(&self, name: &str) -> io::Result<MappedFile> {
        let mapped = MappedFile::open(&self.dir.join(name), LoadMode::Map)?;
        // A publisher verifies and merges far more than it looks up.
        mapped.expect(AccessPattern::Sequential);
        Ok(mapped)
    }

    fn forget(&self, bytes: &MappedFile, range: Range<u64>) {
        bytes.forget(range);
    }

    fn take_over(&self, epoch: u64) -> io::Result<bool> {
        self.fence.as_ref().map_or(Ok(true), |fence| fence.take_over(epoch))
    }

    fn dir(&self) -> &Path {
        &self.dir
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_file_has_no_name_and_stays_readable_where_it_is_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskStorage::lock(dir.path()).unwrap().unwrap();
        for len in [1, LARGE_LEN - 1, LARGE_LEN, LARGE_LEN + 1] {
            let mut file = disk.create("file").unwrap();
            file.seek(io::SeekFrom::Start(len - 1)).unwrap();
            file.write_all(b"x").unwrap();
            disk.sync(&file).unwrap();
            let mapped = disk.open("file").unwrap();
            disk.remove("file").unwrap();
            assert_eq!(disk.remove("file").unwrap_err().kind(), io::ErrorKind::NotFound);
            assert!(disk.list().unwrap().iter().all(|(name, ..)| name != "file"), "{len}");
            assert_eq!(mapped.as_ref().last(), Some(&b'x'));
        }
    }
}
