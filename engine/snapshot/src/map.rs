//! The bytes of a published file: mapped, or copied into memory that nobody can change.
#![expect(unsafe_code, reason = "mapping a file needs the promise that it does not change")]

use memmap2::{Advice, Mmap, MmapMut};
use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Large pages that a system most likely has set aside, if any.
const HUGE_PAGE_LEN: usize = 2 << 20;

/// Bytes of all files that are mapped or copied in this process.
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// How the bytes of a file come into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum How {
    /// Mapped: nothing is read before it is needed, and the page cache is shared. A file cut short by
    /// someone else stops the process with SIGBUS.
    #[default]
    Map,
    /// Copied into sealed memory, in huge pages where the system has some: the file may then change.
    CopyToMemory,
}

/// The bytes of a file, until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Mapped(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    map: Mmap,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.len as u64, Ordering::Relaxed);
    }
}

/// Bytes of all files that this process has mapped or copied now, retired ones among them.
#[must_use]
pub fn mapped_bytes_now() -> u64 {
    MAPPED_BYTES.load(Ordering::Relaxed)
}

impl Mapped {
    /// Maps or copies a file.
    ///
    /// # Errors
    /// When it is not a file, cannot be read, or memory is short.
    pub fn open(path: &Path, how: How) -> io::Result<Self> {
        // Asked before opening, which would wait for the other end of a pipe.
        let len = path.metadata()?;
        if !len.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
        }
        let file = File::open(path)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let map = match how {
            How::Map => map(&file)?,
            How::CopyToMemory => copy(&file, len, true).or_else(|_| copy(&file, len, false))?,
        };
        MAPPED_BYTES.fetch_add(len as u64, Ordering::Relaxed);
        Ok(Self(Arc::new(Mapping { map, len })))
    }
}

impl AsRef<[u8]> for Mapped {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // A copy is as long as its pages; both are at least `len`.
        &self.0.map[..self.0.len]
    }
}

fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: The requirement is that nobody changes the file while it is mapped. The publisher creates
    // layers under new names, without write permission, holds a lock against a second publisher, and
    // never opens one again to write; it removes names, which leaves mapped files whole. Operators who
    // cannot keep others out of the directory choose `CopyToMemory`.
    let map = unsafe { Mmap::map(file) }?;
    // Neighbours of a record are not looked up with it, so reading ahead would only cost memory.
    // Advice may be refused without harm.
    let _ = map.advise(Advice::Random);
    Ok(map)
}

fn copy(mut file: &File, len: usize, huge: bool) -> io::Result<Mmap> {
    use io::Seek as _;
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut pages_len = len.max(1);
    if huge {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        pages_len = pages_len.next_multiple_of(HUGE_PAGE_LEN);
    }
    let memory = File::from(rustix::fs::memfd_create("handled layer", flags)?);
    memory.set_len(pages_len as u64)?;
    // SAFETY: The file is anonymous and its only descriptor is `memory`, which has not left this
    // function: nobody else can change it while the map exists.
    let mut map = unsafe { MmapMut::map_mut(&memory) }?;
    if !huge {
        let _ = map.advise(Advice::HugePage);
    }
    file.rewind()?;
    file.read_exact(&mut map[..len])?;
    drop(map);
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, seals)?;
    Mmap::map_if_safe(&memory).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::vec;

    #[test]
    fn both_ways_give_the_bytes() {
        for len in [0, 1, 4095, 4096, 5000, 3 << 20] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            let bytes: vec::Vec<u8> = (0..=255).cycle().take(len).collect();
            file.write_all(&bytes).unwrap();
            for how in [How::Map, How::CopyToMemory] {
                assert_eq!(Mapped::open(file.path(), how).unwrap().as_ref(), bytes, "{len} {how:?}");
            }
        }
    }

    #[test]
    fn a_copy_does_not_follow_the_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let copy = Mapped::open(file.path(), How::CopyToMemory).unwrap();
        file.as_file().set_len(0).unwrap();
        assert_eq!(copy.as_ref(), [7; 10_000]);
    }

    #[test]
    fn refuses_what_is_not_a_file() {
        assert!(Mapped::open(&std::env::temp_dir(), How::Map).is_err());
    }
}
