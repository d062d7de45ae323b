//! Fetches the sets of a publisher into a directory from which they are served.
//!
//! Nothing in the directory changes before everything new is there and verified. The MANIFEST is
//! renamed last, so whenever the process is killed, the directory has a complete set.

use crate::download::{PART_SUFFIX, download, part_name};
use crate::error::{FetchError, RefusalReason};
use crate::store::{FleetStore, FleetStoreError, FleetStoreErrorKind, ObjectTag};
use handle_daemon::clock::now_unix_ms;
use handle_daemon::metrics::EventCounter;
use handle_snapshot::SetPublisher;
use handle_snapshot::set::manifest::{LayerEntry, MANIFEST, MANIFEST_LEN_MAX, Manifest};
use handle_snapshot::set::statement::{
    AcceptedPublishers, HEARTBEAT, STATEMENT_LEN_MAX, SignedStatement, ahead_ms, newest_statement,
};
use handle_snapshot::set::steps::SetId;
use handle_snapshot::set::storage::DiskStorage;
use handle_snapshot::set::{LayerChecks, SetError, SetErrorKind, read_manifest};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Least time between two searches for files to remove.
const PRUNE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Bounds of fetching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimits {
    /// Chunks of layers that are requested at a time.
    pub requests: usize,
    /// Bytes of a chunk.
    pub chunk_len: u64,
    /// Whether every record of a new layer is checked, besides its digest.
    pub checks_records: bool,
    /// Time for which a layer is kept after the last set that names it.
    pub grace: Duration,
    /// Whether layers are built from those of the set in the directory, where the publisher has
    /// shipped what has changed.
    pub rebuilds_layers: bool,
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self {
            requests: 4,
            chunk_len: 2 << 20,
            checks_records: true,
            grace: Duration::from_secs(60),
            rebuilds_layers: true,
        }
    }
}

handle_daemon::event_counters! {
    /// Counters of fetching.
    pub struct FetchCounters of EventCounter, "handle_fetch_" {
        /// Attempts to find out whether there is a new set.
        polls,
        /// Attempts that failed, for whatever reason.
        polls_failed,
        /// Attempts that failed because the source did not answer, answered with an error, or had
        /// nothing published.
        source_errors,
        /// Sets that were published in the directory.
        sets,
        /// Statements of the publisher that were written to `HEARTBEAT`.
        statements,
        /// Statements refused: damaged, of no accepted publisher, or signed more than 60 seconds
        /// ahead of this machine's clock.
        statements_refused,
        /// Layers that were downloaded and verified.
        layers,
        /// Bytes of layers that were downloaded.
        layer_bytes,
        /// Layers that were built from those of the set before and the steps of the publisher.
        layers_rebuilt,
        /// Layers that were downloaded because building them gave another digest, or failed.
        rebuilds_failed,
        /// Bytes of steps that were downloaded.
        step_bytes,
        /// Bytes of layers that an earlier attempt had downloaded, and that were used.
        resumed_bytes,
        /// Bytes of manifests and statements that were downloaded.
        manifest_bytes,
        /// Downloaded layers that were refused: not what the manifest names, or damaged.
        layers_refused,
        /// Manifests that were refused because they were damaged.
        refused_damaged,
        /// Manifests that were refused because they were not signed.
        refused_unsigned,
        /// Manifests refused because no accepted publisher had signed them.
        refused_foreign,
        /// Manifests refused because they were signed more than 60 seconds ahead of this machine's
        /// clock.
        refused_ahead,
        /// Manifests refused because the directory had a later set, by epoch and generation.
        refused_older,
        /// Manifests refused because the directory had another set of this epoch and generation.
        refused_conflicting,
        /// Notices of new sets.
        notices,
        /// Connections for notices that could not be made, or were lost.
        notify_failures,
        /// Layers that were removed from the directory.
        layers_removed,
    }
}

impl FetchCounters {
    fn count_refusal(&self, reason: RefusalReason) {
        match reason {
            RefusalReason::Damaged => self.refused_damaged.add(),
            RefusalReason::Unsigned => self.refused_unsigned.add(),
            RefusalReason::Foreign => self.refused_foreign.add(),
            RefusalReason::Ahead => self.refused_ahead.add(),
            RefusalReason::Older => self.refused_older.add(),
            RefusalReason::Conflicting => self.refused_conflicting.add(),
        }
    }
}

/// What an attempt changed in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// A new set was published.
    Published,
    /// A new statement about the same set was written.
    Renewed,
    /// Nothing.
    Unchanged,
}

/// Fetches sets from a store into a directory.
#[derive(Debug)]
pub struct SetFetcher {
    pub(crate) source: Arc<dyn FleetStore>,
    dir: PathBuf,
    pub(crate) publisher: ReplicaDirectory,
    accepted: Option<AcceptedPublishers>,
    pub(crate) limits: FetchLimits,
    pub(crate) counters: Arc<FetchCounters>,
    /// The set in the directory, complete or not; later sets must be newer.
    current: Option<Manifest>,
    /// Whether the set in the directory is complete.
    is_complete: bool,
    /// The set whose steps were read last.
    pub(crate) stepped_to: Option<SetId>,
    manifest_tag: Option<ObjectTag>,
    statement_tag: Option<ObjectTag>,
    prune_at: Instant,
}

/// The directory, without the details of its publisher in debug texts.
pub(crate) struct ReplicaDirectory(pub(crate) SetPublisher<DiskStorage>);

impl std::fmt::Debug for ReplicaDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplicaDirectory")
    }
}

impl SetFetcher {
    /// Locks an existing directory. With `accepted`, only sets signed by these publishers are
    /// fetched.
    ///
    /// # Errors
    /// When another process publishes there, or it cannot be written.
    pub fn open(
        source: Arc<dyn FleetStore>,
        dir: &Path,
        accepted: Option<AcceptedPublishers>,
        limits: FetchLimits,
    ) -> Result<Self, SetError> {
        let mut publisher = SetPublisher::open_replica(dir)?;
        let current = match read_manifest(dir) {
            Ok(manifest) => Some(manifest),
            Err(SetError { kind: SetErrorKind::NotPublished, .. }) => None,
            // Not damaged, but of a later program: an older set must not take its place.
            Err(error) if error.is_of_another_version() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the set in the directory is damaged, and is fetched again");
                None
            }
        };
        // What is missing is fetched again.
        let is_complete = publisher.refresh().is_ok() && publisher.manifest().is_some();
        Ok(Self {
            source,
            dir: dir.to_owned(),
            publisher: ReplicaDirectory(publisher),
            accepted,
            limits,
            counters: Arc::default(),
            current,
            is_complete,
            stepped_to: None,
            manifest_tag: None,
            statement_tag: None,
            prune_at: Instant::now() + limits.grace,
        })
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &Arc<FetchCounters> {
        &self.counters
    }

    /// The manifest of the complete set in the directory.
    #[must_use]
    pub fn manifest(&self) -> Option<&Manifest> {
        self.current.as_ref().filter(|_| self.is_complete)
    }

    /// The newest statement about the set in the directory, if it is signed.
    #[must_use]
    pub fn statement(&self) -> Option<SignedStatement> {
        newest_statement(&self.dir, self.manifest()?)
    }

    /// Puts other limits in force.
    pub const fn set_limits(&mut self, limits: FetchLimits) {
        self.limits = limits;
    }

    /// Fetches the newest set, if it is not there yet, and the newest statement about it.
    ///
    /// # Errors
    /// When the source fails or something from it is refused; the set in the directory stays. What
    /// was downloaded is used by the next attempt.
    pub fn fetch(&mut self, is_stopped: &dyn Fn() -> bool) -> Result<FetchOutcome, FetchError> {
        self.counters.polls.add();
        let fetched = self.try_fetch(is_stopped);
        match &fetched {
            Ok(_) => {}
            Err(FetchError::Stopped) => {}
            Err(error) => {
                self.counters.polls_failed.add();
                match error {
                    FetchError::Refused(reason, _) => self.counters.count_refusal(*reason),
                    FetchError::Store(_) | FetchError::NothingPublished => self.counters.source_errors.add(),
                    _ => {}
                }
            }
        }
        fetched
    }

    fn try_fetch(&mut self, is_stopped: &dyn Fn() -> bool) -> Result<FetchOutcome, FetchError> {
        let is_published = self.fetch_set(is_stopped)?;
        let is_renewed = self.fetch_statement()?;
        self.prune()?;
        Ok(match (is_published, is_renewed) {
            (true, _) => FetchOutcome::Published,
            (false, true) => FetchOutcome::Renewed,
            (false, false) => FetchOutcome::Unchanged,
        })
    }

    /// Returns whether a set was published.
    fn fetch_set(&mut self, is_stopped: &dyn Fn() -> bool) -> Result<bool, FetchError> {
        let known = self.manifest_tag.as_ref().filter(|_| self.is_complete);
        let found = match self.source.read(MANIFEST, MANIFEST_LEN_MAX, known) {
            Ok(found) => found,
            Err(error) if error.is_not_modified() => return Ok(false),
            Err(error) if error.is_not_found() => return Err(FetchError::NothingPublished),
            Err(FleetStoreError { kind: FleetStoreErrorKind::TooLong, .. }) => {
                let why = "it is longer than any manifest".to_owned();
                return Err(FetchError::Refused(RefusalReason::Damaged, why));
            }
            Err(error) => return Err(error.into()),
        };
        self.counters.manifest_bytes.add_many(found.bytes.len() as u64);
        let manifest = Manifest::parse(&found.bytes);
        let manifest =
            manifest.map_err(|error| FetchError::Refused(RefusalReason::Damaged, error.to_string()))?;
        self.check(&manifest)?;
        let is_new = !self.is_complete || self.current.as_ref() != Some(&manifest);
        if is_new {
            self.fetch_layers(&manifest, is_stopped)?;
            self.publisher.0.adopt(&manifest)?;
            (self.current, self.is_complete) = (Some(manifest), true);
            self.counters.sets.add();
            // The statement, if there is one, is about the new set.
            self.statement_tag = None;
        }
        self.manifest_tag = Some(found.tag);
        Ok(is_new)
    }

    /// Checks that the set may follow the one in the directory.
    fn check(&self, manifest: &Manifest) -> Result<(), FetchError> {
        let refused = |reason, error: SetError| FetchError::Refused(reason, error.to_string());
        if let Some(accepted) = &self.accepted
            && let Err(error) = accepted.check(&self.dir, manifest, None, now_unix_ms())
        {
            return Err(match error.kind {
                SetErrorKind::Unsigned => refused(RefusalReason::Unsigned, error),
                SetErrorKind::Ahead(_) => refused(RefusalReason::Ahead, error),
                _ => refused(RefusalReason::Foreign, error),
            });
        }
        let Some(current) = &self.current else { return Ok(()) };
        let order = |manifest: &Manifest| (manifest.epoch, manifest.generation);
        let (found, ours) = (order(manifest), order(current));
        if found < ours {
            let why = format!(
                "generation {} of epoch {} is older than generation {} of epoch {} in the directory",
                found.1, found.0, ours.1, ours.0
            );
            return Err(FetchError::Refused(RefusalReason::Older, why));
        }
        if found == ours && manifest != current {
            let why = format!(
                "it is another set of generation {} and epoch {} than the one in the directory: two \
                 publishers have the same epoch",
                found.1, found.0
            );
            return Err(FetchError::Refused(RefusalReason::Conflicting, why));
        }
        Ok(())
    }

    /// Builds or downloads the layers that are not in the directory, and verifies them.
    fn fetch_layers(&mut self, manifest: &Manifest, is_stopped: &dyn Fn() -> bool) -> Result<(), FetchError> {
        self.remove_parts(&manifest.layers)?;
        let mut missing: Vec<&LayerEntry> = manifest.layers.iter().collect();
        missing.retain(|entry| !self.publisher.0.has_layer(entry));
        self.rebuild_layers(manifest, &missing, is_stopped)?;
        missing.retain(|entry| !self.publisher.0.has_layer(entry));
        let checks = self.checks(manifest);
        let mut take = |entry: &LayerEntry| self.take_layer(entry, checks);
        let (limits, counters) = (&self.limits, &*self.counters);
        download(&*self.source, &self.dir, &missing, limits, counters, is_stopped, &mut take)
    }

    /// How the layers of `manifest` are checked.
    fn checks(&self, manifest: &Manifest) -> LayerChecks {
        let handles = |manifest: &Manifest| manifest.handles_count;
        LayerChecks {
            records: self.limits.checks_records,
            reads_back: !is_urgent(self.manifest().map_or(0, handles), handles(manifest)),
        }
    }

    fn take_layer(&self, entry: &LayerEntry, checks: LayerChecks) -> Result<(), FetchError> {
        let part = part_name(entry);
        match self.publisher.0.take_layer(&part, entry, checks) {
            Ok(()) => {
                self.counters.layers.add();
                Ok(())
            }
            Err(error @ SetError { kind: SetErrorKind::Io { .. }, .. }) => Err(error.into()),
            Err(error) => {
                self.counters.layers_refused.add();
                // Its content is what the publisher names, so another download would not help; the
                // next set may have another layer.
                let _ = std::fs::remove_file(self.dir.join(part));
                Err(FetchError::Layer(entry.file.clone(), error.to_string()))
            }
        }
    }

    /// Removes partial files that do not belong to one of `layers`.
    fn remove_parts(&self, layers: &[LayerEntry]) -> Result<(), FetchError> {
        let wanted: Vec<String> = layers.iter().map(part_name).collect();
        let io = |error| FetchError::File(self.dir.clone(), error);
        for entry in std::fs::read_dir(&self.dir).map_err(io)? {
            let entry = entry.map_err(io)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.ends_with(PART_SUFFIX) && !wanted.contains(&name) {
                std::fs::remove_file(entry.path()).map_err(|error| FetchError::File(entry.path(), error))?;
            }
        }
        Ok(())
    }

    /// Carries the newest statement over; returns whether there was one.
    fn fetch_statement(&mut self) -> Result<bool, FetchError> {
        let Some(manifest) = self.manifest() else { return Ok(false) };
        if manifest.seal.is_none() {
            return Ok(false);
        }
        let found = match self.source.read(HEARTBEAT, STATEMENT_LEN_MAX, self.statement_tag.as_ref()) {
            Ok(found) => found,
            Err(error) if error.is_not_modified() || error.is_not_found() => return Ok(false),
            Err(FleetStoreError { kind: FleetStoreErrorKind::TooLong, .. }) => {
                self.counters.statements_refused.add();
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        self.counters.manifest_bytes.add_many(found.bytes.len() as u64);
        let statement = SignedStatement::parse(&found.bytes);
        let now_unix_ms = now_unix_ms();
        let is_ahead = |it: &SignedStatement| ahead_ms(it.statement.signed_unix_ms, now_unix_ms) > 0;
        let is_valid =
            |it: &SignedStatement| !is_ahead(it) && self.accepted.as_ref().is_none_or(|all| all.has_made(it));
        let Some(statement) = statement.filter(is_valid) else {
            self.counters.statements_refused.add();
            return Ok(false);
        };
        let known = newest_statement(&self.dir, manifest);
        self.statement_tag = Some(found.tag);
        let is_newer = known.is_some_and(|known| {
            // One that is ahead of the clock says nothing, so it does not keep others out.
            let was_ahead = is_ahead(&known);
            let (known, new) = (known.statement, statement.statement);
            (new.set, new.epoch, new.generation) == (known.set, known.epoch, known.generation)
                && (new.signed_unix_ms > known.signed_unix_ms || was_ahead)
        });
        if is_newer {
            self.publisher.0.adopt_statement(&statement)?;
            self.counters.statements.add();
        }
        Ok(is_newer)
    }

    /// Removes layers that are no longer needed, now and then, and what is left of other downloads.
    fn prune(&mut self) -> Result<(), FetchError> {
        if Instant::now() >= self.prune_at {
            self.prune_at = Instant::now() + (self.limits.grace / 4).max(PRUNE_INTERVAL_MIN);
            self.remove_parts(&[])?;
            let pruned = self.publisher.0.prune(SystemTime::now(), self.limits.grace)?;
            self.counters.layers_removed.add_many(pruned.files_count as u64);
        }
        Ok(())
    }
}

/// Whether a set with so many handles is needed at once: the one in the directory has less than
/// half of them. Otherwise there is time to read back what the disk holds.
const fn is_urgent(handles_there: u64, handles_new: u64) -> bool {
    handles_there < handles_new.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::is_urgent;

    #[test]
    fn a_set_is_urgent_while_less_than_half_of_its_handles_are_there() {
        for (there, new, expected) in [
            (0, 0, false),
            (0, 1, true),
            (1, 1, false),
            (1, 2, false),
            (1, 3, true),
            (2, 3, false),
            (3, 10_000_000, true),
            (4_999_999, 10_000_000, true),
            (5_000_000, 10_000_000, false),
            (0, u64::MAX, true),
            (u64::MAX, 1, false),
        ] {
            assert_eq!(is_urgent(there, new), expected, "{there} of {new}");
        }
    }
}
