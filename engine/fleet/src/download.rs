//! Downloads layers in chunks, several at a time, into files that survive a restart.

use crate::error::FetchError;
use crate::fetch::{FetchCounters, FetchLimits};
use crate::store::{FleetStore, FleetStoreError};
use bytes::Bytes;
use handle_snapshot::Sha256Sum;
use handle_snapshot::format::{HEADER_LEN, LayerHeader};
use handle_snapshot::set::manifest::LayerEntry;
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::{Scope, ScopedJoinHandle};

/// Suffix of the name of a file that is being downloaded.
pub const PART_SUFFIX: &str = ".part";
/// Bytes that are read at a time from a partial file.
const READ_LEN: usize = 256 << 10;
/// Bytes of one write. Linux takes three times as long to write a file of ext4 in pieces of 512 KiB
/// and more; with pieces of 64 KiB, fetching took an eighth to a quarter longer.
const WRITE_LEN: usize = 16 << 10;

/// Name of the file into which a layer is downloaded.
#[must_use]
pub fn part_name(entry: &LayerEntry) -> String {
    format!("{}{PART_SUFFIX}", entry.file)
}

/// A layer that is partly there. Its bytes are written and hashed in order.
#[derive(Debug)]
struct PartialLayer<'e> {
    entry: &'e LayerEntry,
    path: PathBuf,
    file: File,
    len: u64,
    digest: PartialDigest,
}

/// The digest of the first bytes of a layer.
#[derive(Debug, Default)]
struct PartialDigest {
    /// The header, or its start.
    header: Vec<u8>,
    /// The hash of everything behind the header.
    hasher: Sha256,
    /// What the header says this hash is.
    content: Option<Sha256Sum>,
}

/// The fault of bytes that do not belong to the layer.
type ContentFault = &'static str;

impl PartialDigest {
    /// Hashes the next bytes, and checks the header as soon as it is there.
    fn absorb(&mut self, entry: &LayerEntry, mut bytes: &[u8]) -> Result<(), ContentFault> {
        let wanted = HEADER_LEN - self.header.len();
        if wanted > 0 {
            let (header, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.header.extend_from_slice(header);
            bytes = rest;
            if self.header.len() == HEADER_LEN {
                if Sha256Sum(Sha256::digest(&self.header).into()) != entry.digest {
                    return Err("its header does not match the digest in the manifest");
                }
                let header = LayerHeader::decode(&self.header, entry.len);
                let header = header.map_err(|_| "its header is not that of a layer of this length")?;
                self.content = Some(header.content_digest);
            }
        }
        self.hasher.update(bytes);
        Ok(())
    }
}

impl<'e> PartialLayer<'e> {
    /// Opens the file, and hashes what is there. Bytes that cannot be right are discarded.
    fn open(dir: &Path, entry: &'e LayerEntry) -> Result<Self, FetchError> {
        let path = dir.join(part_name(entry));
        let mut options = OpenOptions::new();
        let opened = options.read(true).append(true).create(true).mode(0o600).open(&path);
        let file = opened.map_err(|error| FetchError::File(path.clone(), error))?;
        let mut part = Self { entry, path, file, len: 0, digest: PartialDigest::default() };
        match part.read_back() {
            Ok(true) => Ok(part),
            Ok(false) => part.restart(),
            Err(error) => Err(FetchError::File(part.path, error)),
        }
    }

    fn restart(mut self) -> Result<Self, FetchError> {
        self.file.set_len(0).map_err(|error| FetchError::File(self.path.clone(), error))?;
        (self.len, self.digest) = (0, PartialDigest::default());
        Ok(self)
    }

    /// Returns whether what is there can be the start of the layer.
    fn read_back(&mut self) -> io::Result<bool> {
        if self.file.metadata()?.len() > self.entry.len {
            return Ok(false);
        }
        let mut buffer = vec![0; READ_LEN];
        loop {
            match self.file.read(&mut buffer)? {
                0 => return Ok(true),
                read if self.digest.absorb(self.entry, &buffer[..read]).is_err() => return Ok(false),
                read => self.len += read as u64,
            }
        }
    }

    /// Writes and hashes the next bytes, at the same time if there are many: each takes a second
    /// for one to two gigabytes.
    fn append(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        let Self { entry, file, digest, .. } = self;
        let mut write = || bytes.chunks(WRITE_LEN).try_for_each(|piece| file.write_all(piece));
        let (absorbed, written) = if bytes.len() <= WRITE_LEN {
            (digest.absorb(entry, bytes), write())
        } else {
            std::thread::scope(|scope| {
                let absorbed = scope.spawn(|| digest.absorb(entry, bytes));
                let written = write();
                (absorbed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), written)
            })
        };
        absorbed.map_err(|fault| self.refuse(fault))?;
        written.map_err(|error| FetchError::File(self.path.clone(), error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Checks the whole content.
    fn finish(&self) -> Result<(), FetchError> {
        let found = Sha256Sum(self.digest.hasher.clone().finalize().into());
        match self.digest.content == Some(found) {
            true => Ok(()),
            false => Err(self.refuse("its content does not match its digest")),
        }
    }

    /// Removes the file: nothing in it can be trusted.
    fn refuse(&self, fault: ContentFault) -> FetchError {
        // A file that stays is found to be wrong again, or is replaced.
        let _ = std::fs::remove_file(&self.path);
        FetchError::Layer(self.entry.file.clone(), fault.to_owned())
    }

    /// The ranges that are missing, in chunks.
    fn chunks(&self, chunk_len: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let (from, to) = (self.len, self.entry.len);
        let step = usize::try_from(chunk_len).unwrap_or(usize::MAX);
        (from..to).step_by(step).map(move |at| at..to.min(at + chunk_len))
    }
}

/// A chunk that is being downloaded, and the position of its layer.
type RunningChunk<'s> = (usize, ScopedJoinHandle<'s, Result<Bytes, FleetStoreError>>);

/// Downloads layers into their partial files and compares them with their digests. `taken` is
/// called for each complete layer.
///
/// # Errors
/// When the store fails, a layer is not what the manifest names, or `is_stopped` returns true.
/// Partial files stay, except for those with wrong content.
pub(crate) fn download(
    store: &dyn FleetStore,
    dir: &Path,
    entries: &[&LayerEntry],
    limits: &FetchLimits,
    counters: &FetchCounters,
    is_stopped: &dyn Fn() -> bool,
    taken: &mut dyn FnMut(&LayerEntry) -> Result<(), FetchError>,
) -> Result<(), FetchError> {
    let opened = entries.iter().map(|entry| PartialLayer::open(dir, entry));
    let mut parts = opened.collect::<Result<Vec<_>, _>>()?;
    counters.resumed_bytes.add_many(parts.iter().map(|part| part.len).sum());
    // One item for each layer: lengths come from the manifest, and may be of any size.
    let chunks: Vec<_> = parts.iter().map(|part| part.chunks(limits.chunk_len)).enumerate().collect();
    let chunks = chunks.into_iter().flat_map(|(at, ranges)| ranges.map(move |range| (at, range)));
    let mut complete = |part: &PartialLayer<'_>| {
        part.finish().inspect_err(|_| counters.layers_refused.add())?;
        taken(part.entry)
    };
    for part in parts.iter().filter(|part| part.len == part.entry.len) {
        complete(part)?;
    }
    std::thread::scope(|scope| {
        let mut waiting = chunks;
        let mut running: VecDeque<RunningChunk<'_>> = VecDeque::new();
        loop {
            while running.len() < limits.requests
                && let Some((at, range)) = waiting.next()
            {
                running.push_back((at, start(scope, store, entries[at], range)?));
            }
            let Some((at, chunk)) = running.pop_front() else { return Ok(()) };
            let bytes = match chunk.join() {
                Ok(bytes) => bytes?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            counters.layer_bytes.add_many(bytes.len() as u64);
            let part = &mut parts[at];
            part.append(&bytes).inspect_err(|error| {
                if matches!(error, FetchError::Layer(..)) {
                    counters.layers_refused.add();
                }
            })?;
            if part.len == part.entry.len {
                complete(part)?;
            }
            if is_stopped() {
                return Err(FetchError::Stopped);
            }
        }
    })
}

/// Starts the request for a chunk in a thread of its own.
fn start<'s, 'e: 's>(
    scope: &'s Scope<'s, 'e>,
    store: &'e dyn FleetStore,
    entry: &'e LayerEntry,
    range: Range<u64>,
) -> Result<ScopedJoinHandle<'s, Result<Bytes, FleetStoreError>>, FetchError> {
    let started = std::thread::Builder::new()
        .name("chunk".to_owned())
        .spawn_scoped(scope, move || store.read_range(&entry.file, range));
    started.map_err(|error| FleetStoreError::failed(&entry.file, "start a thread to read", error).into())
}
