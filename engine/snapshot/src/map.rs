//! The bytes of a published file: mapped, or copied into private memory.
#![expect(unsafe_code, reason = "a mapped file must not change, and advice takes a raw address")]

#[cfg(feature = "build")]
use core::ops::Range;
#[cfg(feature = "build")]
use memmap2::UncheckedAdvice;
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Binary logarithm of the size of huge pages that a system most likely has reserved, if any: two
/// mebibytes.
const HUGE_PAGE_BITS: u8 = 21;
/// Bytes of a huge page.
const HUGE_PAGE_LEN: usize = 1 << HUGE_PAGE_BITS;

/// Ranges whose memory is given back are cut to multiples of this, the largest page size of
/// supported systems.
const PAGE_LEN: usize = 64 << 10;

/// Bytes of all files that this process has mapped or copied.
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// How the bytes of a file get into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Mapped: bytes are read when they are needed, and the page cache is shared. If another
    /// process truncates the file, this process stops with SIGBUS.
    #[default]
    Map,
    /// Copied into private memory that is then read-only, in huge pages where the system has them.
    /// Later changes of the file have no effect.
    CopyToMemory,
}

/// Asks the system for huge pages in `memory` that nothing has been written to yet, because random
/// reads then seldom wait for page tables. The system may refuse without harm.
pub fn prefer_huge_pages<T>(memory: &[T]) {
    use rustix::mm::{Advice, madvise};
    let (start, len) = (memory.as_ptr() as usize, size_of_val(memory));
    let first = start.next_multiple_of(PAGE_LEN);
    let len = (start + len).saturating_sub(first) / PAGE_LEN * PAGE_LEN;
    if len >= HUGE_PAGE_LEN {
        // SAFETY: The advice changes how the system provides the memory, not what is in it, and the
        // range is within `memory`.
        let _ = unsafe {
            madvise(
                memory.as_ptr().wrapping_byte_add(first - start).cast_mut().cast(),
                len,
                Advice::LinuxHugepage,
            )
        };
    }
}

/// The bytes of a file, in memory until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct MappedFile(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    map: Mmap,
    len: usize,
    #[cfg(feature = "build")]
    load_mode: LoadMode,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.len as u64, Ordering::Relaxed);
    }
}

/// Bytes of all files that this process has mapped or copied, including retired ones.
#[must_use]
pub fn mapped_bytes_now() -> u64 {
    MAPPED_BYTES.load(Ordering::Relaxed)
}

impl MappedFile {
    /// Maps or copies a file.
    ///
    /// # Errors
    /// When the path is not a file, it cannot be read, or memory is short.
    pub fn open(path: &Path, how: LoadMode) -> io::Result<Self> {
        // Checked before opening, because opening a pipe would wait for its other end.
        if !path.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
        }
        let file = File::open(path)?;
        let file_len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let map = match how {
            LoadMode::Map => map(&file)?,
            LoadMode::CopyToMemory => copy(&file, file_len)?,
        };
        // The length of a copy is a multiple of a page; the file may have been truncated since its
        // length was read.
        let len = file_len.min(map.len());
        MAPPED_BYTES.fetch_add(len as u64, Ordering::Relaxed);
        let mapped = Self(Arc::new(Mapping {
            map,
            len,
            #[cfg(feature = "build")]
            load_mode: how,
        }));
        mapped.expect(AccessPattern::Random);
        Ok(mapped)
    }

    /// Tells the system how the bytes will be read, so that it reads ahead or not.
    pub(crate) fn expect(&self, access: AccessPattern) {
        // The system may refuse the advice without harm.
        let _ = match access {
            // Where the file system caches files in large folios (ext4 since Linux 6.16), one page
            // table entry then covers two mebibytes, and a lookup among 10 M records takes a third
            // less time.
            AccessPattern::Random => self.0.map.advise(Advice::HugePage),
            AccessPattern::Sequential => self.0.map.advise(Advice::Sequential),
        };
    }
}

/// How bytes will be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessPattern {
    /// At random offsets, by lookups.
    Random,
    /// From start to end, by checks and merges.
    Sequential,
}

#[cfg(feature = "build")]
impl MappedFile {
    /// Gives the memory of a mapped range back. Reading the range again loads it again. Copies keep
    /// their memory.
    pub(crate) fn forget(&self, range: Range<u64>) {
        let [start, end] = [range.start, range.end]
            .map(|at| usize::try_from(at).unwrap_or(usize::MAX).min(self.0.len) / PAGE_LEN * PAGE_LEN);
        if self.0.load_mode == LoadMode::Map && start < end {
            // SAFETY: The requirement is that the bytes are the same afterwards. The map is a
            // shared map of a file that is never written, so the pages are loaded again from that
            // file, which is not changed (see `map`).
            let advised =
                unsafe { self.0.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            // If it is refused, the only cost is memory.
            let _ = advised;
        }
    }
}

impl AsRef<[u8]> for MappedFile {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.0.map[..self.0.len]
    }
}

fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: The requirement is that the file does not change while it is mapped. The publisher
    // creates layers under new names, writable for itself alone, holds a lock against a second
    // publisher, and never opens a layer again to write. It removes names, which leaves mapped
    // files whole. Operators who cannot keep others out of the directory choose `CopyToMemory`.
    unsafe { Mmap::map(file) }
}

/// Copies a file into memory that has no name and no descriptor, so that no other process can reach
/// it.
fn copy(mut file: &File, len: usize) -> io::Result<Mmap> {
    let mut map = match anonymous_huge(len) {
        Ok(map) => map,
        Err(_) => {
            let map = MmapOptions::new().len(len.max(1)).map_anon()?;
            // The kernel may still use huge pages, which save a quarter of the time of a lookup
            // among 10 M records.
            let _ = map.advise(Advice::HugePage);
            map
        }
    };
    // A file that is truncated meanwhile gives an error here, and does no harm later.
    file.read_exact(&mut map[..len])?;
    map.make_read_only()
}

/// Memory in huge pages that the operator reserved. Its length is a multiple of theirs, as
/// unmapping requires.
fn anonymous_huge(len: usize) -> io::Result<MmapMut> {
    let len = len.max(1).next_multiple_of(HUGE_PAGE_LEN);
    MmapOptions::new().len(len).huge(Some(HUGE_PAGE_BITS)).map_anon()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::vec;

    #[test]
    fn memory_in_huge_pages_keeps_its_bytes() {
        for len in [0, 1, HUGE_PAGE_LEN - 1, 2 * HUGE_PAGE_LEN + 17] {
            let mut memory = vec![0_u8; len];
            prefer_huge_pages(&memory);
            memory.iter_mut().zip((0..=255).cycle()).for_each(|(to, byte)| *to = byte);
            prefer_huge_pages(&memory);
            assert!(memory.iter().copied().eq((0..=255).cycle().take(len)), "{len}");
        }
    }

    #[test]
    fn both_ways_give_the_bytes() {
        for len in [0, 1, 4095, 4096, 5000, 3 << 20] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            let bytes: vec::Vec<u8> = (0..=255).cycle().take(len).collect();
            file.write_all(&bytes).unwrap();
            for how in [LoadMode::Map, LoadMode::CopyToMemory] {
                assert_eq!(MappedFile::open(file.path(), how).unwrap().as_ref(), bytes, "{len} {how:?}");
            }
        }
    }

    #[test]
    fn a_copy_does_not_follow_the_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let copy = MappedFile::open(file.path(), LoadMode::CopyToMemory).unwrap();
        file.as_file().set_len(0).unwrap();
        assert_eq!(copy.as_ref(), [7; 10_000]);
    }

    #[test]
    fn what_is_forgotten_comes_back() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: vec::Vec<u8> = (0..=250).cycle().take(300_000).collect();
        file.write_all(&bytes).unwrap();
        for how in [LoadMode::Map, LoadMode::CopyToMemory] {
            let mapped = MappedFile::open(file.path(), how).unwrap();
            for range in [0..300_000, 70_000..200_000, 299_999..u64::MAX, 7..7] {
                mapped.forget(range);
                assert_eq!(mapped.as_ref(), bytes, "{how:?}");
            }
        }
    }

    #[test]
    fn refuses_what_is_not_a_file() {
        let error = MappedFile::open(&std::env::temp_dir(), LoadMode::Map).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
}
