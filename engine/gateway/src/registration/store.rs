//! The directory of requests: one file for each, written so that a crash leaves the old or the new
//! one.
//!
//! All requests are in memory as well, so pages are made without waiting for a disk. Everything that
//! writes blocks, and belongs on a thread that may.

use super::RegistrationConfig;
use super::request::{RegistrationRequest, RequestId, RequestState, RequestToken};
use anyhow::Context as _;
use handle_daemon::metrics::EventCounter;
use handle_daemon::source_counts::SourceCounts;
use handle_proto::printable::Printable;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The end of the names of files of requests.
const FILE_END: &str = ".json";
/// The end of the names of files that are being written.
const UNFINISHED_END: &str = ".new";
/// The file that one process locks.
const LOCK: &str = "lock";
/// Files longer than this are not read.
const FILE_LEN_MAX: u64 = 1 << 24;

/// Why a request is not stored.
#[derive(Debug)]
pub enum AddError {
    /// There are as many requests, or as many bytes, as allowed.
    Full,
    /// The source has as many undecided requests as allowed.
    FullForSource,
    /// The file cannot be written.
    File(io::Error),
}

/// The requests of a directory.
#[derive(Debug)]
pub struct RegistrationStore {
    directory: PathBuf,
    requests: Mutex<RequestTable>,
    /// Held while a file is written.
    writing: Mutex<()>,
    counts: RegistrationCounts,
    /// Locked for as long as this process uses the directory.
    _lock: File,
}

/// What happened since the start.
#[derive(Debug, Default)]
pub struct RegistrationCounts {
    /// Requests that were stored.
    pub received: EventCounter,
    /// Requests that were accepted.
    pub accepted: EventCounter,
    /// Requests that were refused.
    pub refused: EventCounter,
    /// Requests that were deleted.
    pub deleted: EventCounter,
}

#[derive(Debug, Default)]
struct RequestTable {
    by_id: BTreeMap<RequestId, StoredRequest>,
    /// Bytes of all files.
    bytes: u64,
    /// Undecided requests by source.
    pending: SourceCounts,
    /// Requests that a reviewer is deciding at the moment.
    claimed: BTreeSet<RequestId>,
}

#[derive(Debug)]
struct StoredRequest {
    request: Arc<RegistrationRequest>,
    file_len: u64,
}

/// The right to decide a request, which nobody else has until this is dropped.
#[derive(Debug)]
pub struct DecisionClaim {
    store: Arc<RegistrationStore>,
    id: RequestId,
}

impl RequestTable {
    fn put(&mut self, request: RegistrationRequest, file_len: u64) {
        self.remove(request.id());
        if !request.state.is_decided() {
            self.pending.add(request.source);
        }
        self.bytes += file_len;
        self.by_id.insert(request.id(), StoredRequest { request: Arc::new(request), file_len });
    }

    fn remove(&mut self, id: RequestId) {
        let Some(StoredRequest { request, file_len }) = self.by_id.remove(&id) else { return };
        if !request.state.is_decided() {
            self.pending.remove(request.source);
        }
        self.bytes -= file_len;
    }
}

impl RegistrationStore {
    /// Opens a directory, creates it if it is missing, and reads its requests.
    ///
    /// # Errors
    /// When it cannot be created or read, or another process uses it.
    pub fn open(directory: &Path) -> anyhow::Result<Self> {
        let shown = directory.display();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.with_context(|| format!("cannot create `registration.directory` {shown}"))?;
        let lock = new_file(&directory.join(LOCK));
        let lock = lock.with_context(|| format!("cannot write to `registration.directory` {shown}"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                anyhow::bail!("another process uses `registration.directory` {shown}")
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {shown}/{LOCK}"));
            }
        }
        let requests = read_all(directory).with_context(|| format!("cannot read {shown}"))?;
        let requests = Mutex::new(requests);
        let (directory, counts) = (directory.to_owned(), RegistrationCounts::default());
        Ok(Self { directory, requests, writing: Mutex::new(()), counts, _lock: lock })
    }

    fn table(&self) -> MutexGuard<'_, RequestTable> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, id: RequestId, end: &str) -> PathBuf {
        self.directory.join(format!("{id}{end}"))
    }

    /// Stores a new request. Blocks until it is on disk.
    ///
    /// # Errors
    /// When it exceeds a limit, or cannot be written.
    pub fn add(&self, request: RegistrationRequest, limits: &RegistrationConfig) -> Result<(), AddError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = request.encode();
        {
            let table = self.table();
            let has_room = table.by_id.len() < limits.requests
                && table.bytes.saturating_add(bytes.len() as u64) <= limits.store_bytes;
            if !has_room {
                return Err(AddError::Full);
            }
            if !table.pending.has_room(request.source, limits.pending_per_source) {
                return Err(AddError::FullForSource);
            }
        }
        if let Err(error) = self.write(request.id(), &bytes) {
            // The applicant is told that there is no request.
            let _ = fs::remove_file(self.path(request.id(), FILE_END));
            return Err(AddError::File(error));
        }
        let RegistrationRequest { source, prefix, .. } = &request;
        tracing::info!(request = %request.id(), %source, prefix, "a prefix is requested");
        self.counts.received.add();
        self.table().put(request, bytes.len() as u64);
        Ok(())
    }

    /// Replaces the file of a request, which is the old or the new one after a crash.
    fn write(&self, id: RequestId, bytes: &[u8]) -> io::Result<()> {
        let unfinished = self.path(id, UNFINISHED_END);
        let written = (|| {
            let mut file = new_file(&unfinished)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&unfinished, self.path(id, FILE_END))?;
            self.sync_directory()
        })();
        if written.is_err() {
            // Also removed at the next start.
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    /// The request with this number.
    #[must_use]
    pub fn find(&self, id: RequestId) -> Option<Arc<RegistrationRequest>> {
        self.table().by_id.get(&id).map(|stored| Arc::clone(&stored.request))
    }

    /// The request of the applicant with this token.
    #[must_use]
    pub fn of_applicant(&self, token: RequestToken) -> Option<Arc<RegistrationRequest>> {
        let digest = token.digest();
        self.find(digest.id()).filter(|request| request.token == digest)
    }

    /// All requests: undecided ones first, and then those that arrived last.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<RegistrationRequest>> {
        let mut all: Vec<_> = self.table().by_id.values().map(|stored| Arc::clone(&stored.request)).collect();
        all.sort_by_key(|request| (request.state.is_decided(), u64::MAX - request.submitted_unix_s));
        all
    }

    /// Number of decided or undecided requests.
    #[must_use]
    pub fn count(&self, is_decided: bool) -> usize {
        let table = self.table();
        table.by_id.values().filter(|stored| stored.request.state.is_decided() == is_decided).count()
    }

    /// What happened since the start.
    #[must_use]
    pub const fn counts(&self) -> &RegistrationCounts {
        &self.counts
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.table().bytes
    }

    /// Counts and logs the new state of a request.
    fn note(&self, request: &RegistrationRequest) {
        let id = request.id();
        match &request.state {
            RequestState::Pending => tracing::info!(request = %id, "the prefix is not created"),
            RequestState::Accepting { prefix, by } => {
                tracing::info!(request = %id, prefix, by = %Printable(by), "a prefix is being created");
            }
            RequestState::Accepted { prefix, by, .. } => {
                self.counts.accepted.add();
                tracing::info!(request = %id, prefix, by = %Printable(by), "the prefix is registered");
            }
            RequestState::Refused { by, .. } => {
                self.counts.refused.add();
                tracing::info!(request = %id, by = %Printable(by), "the request for a prefix is refused");
            }
        }
    }

    /// Claims the decision about a request; `None` while somebody else has it.
    #[must_use]
    pub fn claim(self: &Arc<Self>, id: RequestId) -> Option<DecisionClaim> {
        let is_free = self.table().claimed.insert(id);
        is_free.then(|| DecisionClaim { store: Arc::clone(self), id })
    }
}

impl DecisionClaim {
    /// The request, as it is now.
    #[must_use]
    pub fn request(&self) -> Option<Arc<RegistrationRequest>> {
        self.store.find(self.id)
    }

    /// Changes the state of the request. Blocks until it is on disk.
    ///
    /// # Errors
    /// When the file cannot be written; the state is then as before, in memory at least.
    pub fn set(&self, state: RequestState) -> io::Result<()> {
        let _writing = self.store.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let request = self.request().ok_or(io::ErrorKind::NotFound)?;
        let request = RegistrationRequest { state, ..(*request).clone() };
        let bytes = request.encode();
        self.store.write(self.id, &bytes)?;
        self.store.note(&request);
        self.store.table().put(request, bytes.len() as u64);
        Ok(())
    }

    /// Deletes the request for the reviewer `by`. Blocks until it is gone from the disk.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn delete(&self, by: &str) -> io::Result<()> {
        let _writing = self.store.writing.lock().unwrap_or_else(PoisonError::into_inner);
        fs::remove_file(self.store.path(self.id, FILE_END))?;
        self.store.table().remove(self.id);
        self.store.counts.deleted.add();
        tracing::info!(request = %self.id, by = %Printable(by), "the request for a prefix is deleted");
        self.store.sync_directory()
    }
}

impl Drop for DecisionClaim {
    fn drop(&mut self) {
        self.store.table().claimed.remove(&self.id);
    }
}

/// An empty file that only its owner can read: it may have the contact of a person.
fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Reads all requests. Files that are not intact are left alone and named in the log; what was being
/// written in a crash is removed.
fn read_all(directory: &Path) -> io::Result<RequestTable> {
    let mut table = RequestTable::default();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        if name.strip_suffix(UNFINISHED_END).is_some_and(|id| RequestId::parse(id).is_some()) {
            fs::remove_file(&path)?;
            continue;
        }
        let Some(id) = name.strip_suffix(FILE_END).and_then(RequestId::parse) else { continue };
        let file_len = entry.metadata()?.len();
        let bytes = if file_len <= FILE_LEN_MAX { fs::read(&path)? } else { Vec::new() };
        match RegistrationRequest::decode(&bytes).filter(|request| request.id() == id) {
            Some(request) => table.put(request, file_len),
            None => tracing::error!(path = %path.display(), "the file of a request for a prefix is damaged"),
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
