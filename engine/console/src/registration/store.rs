//! The directory of requests: one file for each, written so that a crash leaves the old or the new
//! one.
//!
//! All requests are in memory as well, so pages are made without waiting for a disk. Everything
//! that writes blocks, and belongs on a thread that may.
//!
//! One process at a time writes to the directory: the one that has locked it. When another process
//! takes over, this one gives the lock up, and the other one reads the directory again.

use super::config::RegistrationConfig;
use super::request::{RegistrationRequest, RequestFileError, RequestId, RequestState, RequestToken};
use anyhow::{Context as _, ensure};
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
    /// Another process writes to the directory.
    NotLocked,
    /// The file cannot be written.
    File(io::Error),
}

/// The requests of a directory.
#[derive(Debug)]
pub struct RegistrationStore {
    directory: PathBuf,
    requests: Mutex<RequestTable>,
    /// The locked file, for as long as this process may write. The mutex is held while it writes.
    lock: Mutex<Option<File>>,
    counts: RegistrationCounts,
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
    /// Whether reviewers may decide: this process has the lock, and is not giving it up.
    may_claim: bool,
}

#[derive(Debug)]
struct StoredRequest {
    request: Arc<RegistrationRequest>,
    file_len: u64,
}

/// The right to decide a request, exclusive until this is dropped.
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
    /// Opens a directory, creates it if it is missing, locks it and reads its requests.
    ///
    /// # Errors
    /// When it cannot be created or read, or another process uses it.
    pub fn open(directory: &Path) -> anyhow::Result<Self> {
        let store = Self::open_unlocked(directory)?;
        let is_locked = store.lock()?;
        ensure!(is_locked, "another process uses `registration.directory` {}", directory.display());
        Ok(store)
    }

    /// Like [`open`](Self::open), but without the lock, which another process may have. Until
    /// [`lock`](Self::lock) has succeeded, nothing is written.
    ///
    /// # Errors
    /// When the directory cannot be created or read.
    pub fn open_unlocked(directory: &Path) -> anyhow::Result<Self> {
        let shown = directory.display();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.with_context(|| format!("cannot create `registration.directory` {shown}"))?;
        new_file(&directory.join(LOCK))
            .with_context(|| format!("cannot write to `registration.directory` {shown}"))?;
        let requests = read_all(directory, false).with_context(|| format!("cannot read {shown}"))?;
        let (requests, lock) = (Mutex::new(requests), Mutex::default());
        Ok(Self { directory: directory.to_owned(), requests, lock, counts: RegistrationCounts::default() })
    }

    /// Locks the directory and reads its requests again. Returns false while another process has
    /// the lock.
    ///
    /// # Errors
    /// When the directory cannot be locked or read.
    pub fn lock(&self) -> anyhow::Result<bool> {
        let shown = self.directory.display();
        let cannot_lock = || format!("cannot lock {shown}/{LOCK}");
        let file = new_file(&self.directory.join(LOCK)).with_context(cannot_lock)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error).with_context(cannot_lock),
        }
        let requests = read_all(&self.directory, true).with_context(|| format!("cannot read {shown}"))?;
        *self.writing() = Some(file);
        *self.table() = RequestTable { may_claim: true, ..requests };
        Ok(true)
    }

    /// Gives up the lock, because another process takes over: at once, or when the reviewers who
    /// are deciding have done so.
    pub fn unlock(&self) {
        self.table().may_claim = false;
        self.unlock_if_unclaimed();
    }

    fn unlock_if_unclaimed(&self) {
        let ends = {
            let table = self.table();
            !table.may_claim && table.claimed.is_empty()
        };
        if ends {
            *self.writing() = None;
        }
    }

    fn writing(&self) -> MutexGuard<'_, Option<File>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
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
        let lock = self.writing();
        if lock.is_none() {
            return Err(AddError::NotLocked);
        }
        let bytes = request.encode();
        {
            let table = self.table();
            let has_capacity = table.by_id.len() < limits.requests
                && table.bytes.saturating_add(bytes.len() as u64) <= limits.store_bytes;
            if !has_capacity {
                return Err(AddError::Full);
            }
            if !table.pending.has_capacity(request.source, limits.pending_per_source()) {
                return Err(AddError::FullForSource);
            }
        }
        if let Err(error) = self.write(request.id(), &bytes) {
            // The applicant is told that there is no request.
            let _ = fs::remove_file(self.path(request.id(), FILE_END));
            return Err(AddError::File(error));
        }
        let (source, prefix) = (request.source, &request.details.prefix);
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

    /// Claims the decision about a request; `None` while another reviewer has it, or another
    /// process has the lock.
    #[must_use]
    pub fn claim(self: &Arc<Self>, id: RequestId) -> Option<DecisionClaim> {
        let mut table = self.table();
        let is_free = table.may_claim && table.claimed.insert(id);
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
        let _writing = self.store.writing();
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
        let _writing = self.store.writing();
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
        self.store.unlock_if_unclaimed();
    }
}

/// An empty file that only its owner can read: it may have the contact of a person.
fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Reads all requests. Files that are not intact are left alone and named in the log; if this
/// process has the lock, what was being written in a crash is removed.
fn read_all(directory: &Path, is_locked: bool) -> io::Result<RequestTable> {
    let mut table = RequestTable::default();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        if name.strip_suffix(UNFINISHED_END).is_some_and(|id| RequestId::parse(id).is_some()) {
            if is_locked {
                fs::remove_file(&path)?;
            }
            continue;
        }
        let Some(id) = name.strip_suffix(FILE_END).and_then(RequestId::parse) else { continue };
        let read = entry.metadata().and_then(|found| match found.len() {
            len @ 0..=FILE_LEN_MAX => Ok((len, fs::read(&path)?)),
            len => Ok((len, Vec::new())),
        });
        let (file_len, bytes) = match read {
            // The process that has the lock has deleted it.
            Err(error) if !is_locked && error.kind() == io::ErrorKind::NotFound => continue,
            read => read?,
        };
        let request = RegistrationRequest::decode(&bytes);
        match request.and_then(|it| if it.id() == id { Ok(it) } else { Err(RequestFileError::Damaged) }) {
            Ok(request) => table.put(request, file_len),
            Err(error) => tracing::error!(
                path = %path.display(), %error, "the file of a request for a prefix is left alone"
            ),
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
