//! A file to which redb may write without changing it: writes are kept in memory.
//!
//! redb writes to a file when it opens it, and when it looks for damage it repairs what it can, if
//! necessary by going back to an older state. A check of the file wants neither.

use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Size of the pieces in which written bytes are kept.
const PIECE_LEN: usize = 4096;

/// The underlying file, and the bytes written over it.
#[derive(Debug)]
pub(super) struct OverlayFile<B> {
    below: B,
    written: Mutex<OverlayContent>,
}

#[derive(Debug)]
struct OverlayContent {
    len: u64,
    /// Length of the underlying file that is still visible: the file may have been truncated and
    /// extended again.
    below_len: u64,
    pieces: BTreeMap<u64, Box<[u8; PIECE_LEN]>>,
}

impl<B: StorageBackend> OverlayFile<B> {
    pub(super) fn new(below: B) -> io::Result<Self> {
        let len = below.len()?;
        Ok(Self {
            below,
            written: Mutex::new(OverlayContent { len, below_len: len, pieces: BTreeMap::new() }),
        })
    }

    fn written(&self) -> MutexGuard<'_, OverlayContent> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the visible part of the underlying file, and zeros behind it.
    fn read_below(&self, written: &OverlayContent, at: u64, out: &mut [u8]) -> io::Result<()> {
        let there = written.below_len.saturating_sub(at);
        let there = usize::try_from(there).map_or(out.len(), |there| there.min(out.len()));
        let (there, beyond) = out.split_at_mut(there);
        beyond.fill(0);
        if there.is_empty() { Ok(()) } else { self.below.read(at, there) }
    }
}

/// Splits the `len` bytes at `at` into pieces: the start of each, its bytes, and the matching bytes
/// of the range.
fn pieces(
    at: u64,
    len: usize,
) -> impl Iterator<Item = (u64, std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = at + done as u64;
        let within = usize::try_from(at % PIECE_LEN as u64).ok()?;
        let count = (PIECE_LEN - within).min(len - done);
        done += count;
        (count > 0).then(|| (at - within as u64, within..within + count, done - count..done))
    })
}

impl<B: StorageBackend> StorageBackend for OverlayFile<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written().len)
    }

    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written();
        if at.checked_add(out.len() as u64).is_none_or(|end| end > written.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_below(&written, at, out)?;
        for (piece, within, of_out) in pieces(at, out.len()) {
            if let Some(piece) = written.pieces.get(&piece) {
                out[of_out].copy_from_slice(&piece[within]);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.written();
        // Bytes cut off read as zeros if the file is extended again.
        written.pieces.split_off(&len.next_multiple_of(PIECE_LEN as u64));
        let within = usize::try_from(len % PIECE_LEN as u64).unwrap_or_default();
        if let Some(last) = written.pieces.get_mut(&(len - within as u64)) {
            last[within..].fill(0);
        }
        written.below_len = written.below_len.min(len);
        written.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written();
        if at.checked_add(data.len() as u64).is_none_or(|end| end > written.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (piece, within, of_data) in pieces(at, data.len()) {
            if !written.pieces.contains_key(&piece) {
                let mut bytes = Box::new([0; PIECE_LEN]);
                self.read_below(&written, piece, &mut *bytes)?;
                written.pieces.insert(piece, bytes);
            }
            if let Some(bytes) = written.pieces.get_mut(&piece) {
                bytes[within].copy_from_slice(&data[of_data]);
            }
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redb::backends::InMemoryBackend;

    /// Both are asked for the same; one of them keeps what it had below.
    #[test]
    fn an_overlay_reads_as_if_it_had_been_written() {
        let below = || {
            let below = InMemoryBackend::new();
            below.set_len(20_000).unwrap();
            below.write(0, &[7; 20_000]).unwrap();
            below
        };
        let (plain, unwritten) = (below(), OverlayFile::new(below()).unwrap());
        let both: [&dyn StorageBackend; 2] = [&plain, &unwritten];
        let mut seed = 0x9e37_79b9_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for step in 0..2000 {
            let (len, what) = (plain.len().unwrap(), random(8));
            if what == 0 {
                let to = random(30_000);
                both.iter().for_each(|it| it.set_len(to).unwrap());
            } else if what < 4 && len > 0 {
                let at = random(len);
                let data =
                    vec![u8::try_from(step % 251).unwrap(); usize::try_from(random(len - at + 1)).unwrap()];
                both.iter().for_each(|it| it.write(at, &data).unwrap());
            }
            let len = usize::try_from(plain.len().unwrap()).unwrap();
            let [expected, found] = both.map(|it| {
                let mut out = vec![1; len];
                it.read(0, &mut out).unwrap();
                out
            });
            assert!(expected == found && unwritten.len().unwrap() == len as u64, "step {step}");
            assert!(unwritten.read(1, &mut vec![0; len]).is_err(), "step {step}: beyond the end");
            assert!(unwritten.write(1, &vec![0; len]).is_err(), "step {step}: beyond the end");
        }
        let mut kept = [0; 20_000];
        unwritten.below.read(0, &mut kept).unwrap();
        assert_eq!(kept, [7; 20_000]);
    }
}
