//! The few file operations that publishing needs, so that tests can stop after each.

use crate::map::{Access, How, Mapped};
use core::ops::Range;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::string::String;
use std::time::SystemTime;
use std::vec::Vec;

/// Bytes of a file from which on it pays to read it back: some huge pages.
const LARGE_LEN: u64 = 16 << 20;

/// Name of the file that a publisher locks.
pub const LOCK: &str = "LOCK";

/// One directory. Names are plain file names in it.
pub trait Storage: Send + Sync {
    /// A file being written.
    type File: Write + Seek;
    /// The bytes of a finished file.
    type Bytes: AsRef<[u8]>;

    /// Creates a file that does not exist.
    ///
    /// # Errors
    /// `AlreadyExists` when it does; what the system says.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Waits until what was written would survive a loss of power.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Waits until names, new and gone, would survive a loss of power.
    ///
    /// # Errors
    /// What the system says.
    fn sync_dir(&self) -> io::Result<()>;
    /// Renames, replacing what has the new name, in one step.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a name.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Every file, its length, and when it was last written.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self) -> io::Result<Vec<(String, u64, SystemTime)>>;
    /// Reads a small file, one byte more than `len_max` at most.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, name: &str, len_max: usize) -> io::Result<Vec<u8>>;
    /// The bytes of a finished file.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, name: &str) -> io::Result<Self::Bytes>;
    /// These bytes will not be read again soon, and need not stay in memory for us.
    fn forget(&self, bytes: &Self::Bytes, range: Range<u64>) {
        let _ = (bytes, range);
    }
    /// Where the directory is; for messages, and for nameless temporary files.
    fn dir(&self) -> &Path;
}

/// A directory of the file system, locked against other publishers.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    /// Held open: the lock goes with it, however the process ends.
    _lock: File,
}

impl Disk {
    /// Locks a directory; `None` when another process has locked it.
    ///
    /// # Errors
    /// When the directory is not there or may not be written.
    pub fn lock(dir: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { dir: dir.into(), _lock: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Reads a small file, one byte more than `len_max` at most.
pub(crate) fn read_small(path: &Path, len_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(len_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Storage for Disk {
    type File = File;
    type Bytes = Mapped;

    fn create(&self, name: &str) -> io::Result<File> {
        // Readable by all, writable by nobody who opens it later.
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o444).open(self.dir.join(name))
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()?;
        if file.metadata()?.len() >= LARGE_LEN {
            // Pages that were written are cached one by one; read back, as the check before publishing does,
            // they come in huge pages: 208 and 126 ns for a lookup among 10 M records. What is checked is then
            // also what the disk holds. A system that does not want to forget them may go on.
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        }
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(name))
    }

    fn list(&self) -> io::Result<Vec<(String, u64, SystemTime)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if let (Ok(name), true) = (entry.file_name().into_string(), metadata.is_file()) {
                files.push((name, metadata.len(), metadata.modified()?));
            }
        }
        Ok(files)
    }

    fn read(&self, name: &str, len_max: usize) -> io::Result<Vec<u8>> {
        read_small(&self.dir.join(name), len_max)
    }

    fn open(&self, name: &str) -> io::Result<Mapped> {
        let mapped = Mapped::open(&self.dir.join(name), How::Map)?;
        // A publisher verifies and merges far more than it looks up.
        mapped.expect(Access::Sequential);
        Ok(mapped)
    }

    fn forget(&self, bytes: &Mapped, range: Range<u64>) {
        bytes.forget(range);
    }

    fn dir(&self) -> &Path {
        &self.dir
    }
}
