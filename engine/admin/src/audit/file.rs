//! The file of the audit log. Lines are appended; the file is rotated when it reaches its maximum
//! size.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Maximum size of the file, and the number of older files to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBounds {
    /// Bytes at which the file is rotated.
    pub bytes_max: u64,
    /// Number of older files to keep, from `PATH.1`, the newest, to `PATH.N`.
    pub files_max: u32,
}

/// An open audit log. Its older files are `PATH.1`, `PATH.2` and so on.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    file: File,
    len: u64,
    bounds: FileBounds,
}

impl AuditFile {
    /// Opens the file at `path` for appending, readable only by its owner.
    pub(super) fn open(path: &Path, bounds: FileBounds) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, len, bounds })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line in one write, so that lines of two writers do not mix. If the write fails,
    /// nothing of the line stays.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.len > 0 && self.len.saturating_add(line.len() as u64) > self.bounds.bytes_max {
            // A file above its maximum size is a smaller loss than lines that are not written.
            if let Err(error) = self.rotate() {
                tracing::error!(%error, file = %self.path.display(), "cannot rotate the audit log");
            }
        }
        match self.file.write_all(line) {
            Ok(()) => {
                self.len += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                // A partial line would corrupt the next one. Truncating needs no disk space.
                let _ = self.file.set_len(self.len);
                Err(error)
            }
        }
    }

    /// Renames the file and the older files, removes those beyond the limit, and starts a new file.
    fn rotate(&mut self) -> io::Result<()> {
        let is_moved = match std::fs::metadata(&self.path) {
            Ok(there) => there.ino() != self.file.metadata()?.ino(),
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(error),
        };
        // Another program may rotate the file too, and may have renamed it already.
        if !is_moved {
            let numbered = |number: u32| {
                let mut name = self.path.clone().into_os_string();
                name.push(format!(".{number}"));
                PathBuf::from(name)
            };
            let mut surplus = self.bounds.files_max + 1;
            while std::fs::remove_file(numbered(surplus)).is_ok() {
                surplus += 1;
            }
            for number in (1..self.bounds.files_max).rev() {
                match std::fs::rename(numbered(number), numbered(number + 1)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            std::fs::rename(&self.path, numbered(1))?;
        }
        *self = Self::open(&self.path, self.bounds)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"123456789\n";

    #[test]
    fn length_and_number_of_files_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let read = |name: &str| std::fs::read(directory.path().join(name)).map(|bytes| bytes.len()).ok();
        let mut file = AuditFile::open(&path, FileBounds { bytes_max: 30, files_max: 2 }).unwrap();
        for _ in 0..3 {
            file.append(LINE).unwrap();
        }
        assert_eq!((read("audit"), read("audit.1")), (Some(30), None), "full to the byte");
        for _ in 0..8 {
            file.append(LINE).unwrap();
        }
        let all = ["audit", "audit.1", "audit.2", "audit.3"].map(read);
        assert_eq!(all, [Some(20), Some(30), Some(30), None]);
        // A reopened file continues; with a lower limit, surplus older files are removed.
        let mut file = AuditFile::open(&path, FileBounds { bytes_max: 30, files_max: 1 }).unwrap();
        file.append(LINE).unwrap();
        file.append(LINE).unwrap();
        let all = ["audit", "audit.1", "audit.2"].map(read);
        assert_eq!(all, [Some(10), Some(30), None]);
        // A line longer than the maximum size gets a file of its own.
        file.append(&[b'x'; 100]).unwrap();
        assert_eq!((read("audit"), read("audit.1")), (Some(100), Some(10)));
    }

    #[test]
    fn a_file_that_another_program_renamed_is_not_renamed_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let mut file = AuditFile::open(&path, FileBounds { bytes_max: 10, files_max: 3 }).unwrap();
        file.append(LINE).unwrap();
        std::fs::rename(&path, directory.path().join("elsewhere")).unwrap();
        file.append(LINE).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), LINE);
        assert!(!directory.path().join("audit.1").exists());
    }
}
