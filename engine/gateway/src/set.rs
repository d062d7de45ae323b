//! The published set that is mapped in this process, replaced when another one is published.
//!
//! If a newly published set does not open, the old one stays in service; the error stays visible in
//! `status` until a set opens again.

use anyhow::Error;
use arc_swap::{ArcSwap, Guard};
use handle_daemon::clock::now_unix_ms;
use handle_daemon::publication::{PublishedDirectory, ReloadOutcome};
use handle_daemon::publisher_keys::{self, PublishersConfig};
use handle_proto::wire::admin::StorePosition;
use handle_snapshot::Trust;
use handle_snapshot::map::LoadMode;
use handle_snapshot::set::freshness::SetFreshness;
use handle_snapshot::set::last_served::LastServedFile;
use handle_snapshot::set::statement::AcceptedPublishers;
use handle_snapshot::set::{PublishedSet, SetError, SetErrorKind};
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// The set in service, and what is needed to load the next one.
#[derive(Debug)]
pub struct MappedSet {
    directory: PathBuf,
    verify_new: AtomicBool,
    set: ArcSwap<MappedGeneration>,
    reloads: AtomicU64,
    /// Notifies those who wait for a set that another one is live.
    loaded: watch::Sender<()>,
    /// The rules for the publisher and the age of sets.
    freshness: SetFreshness,
    /// Held while a set is opened, so that two reloads do not overtake each other.
    failure: Mutex<Option<LoadFailure>>,
}

/// One generation of the set.
#[derive(Debug)]
pub struct MappedGeneration {
    set: PublishedSet,
    homes_prefix_records: bool,
}

impl MappedGeneration {
    fn new(set: PublishedSet) -> Self {
        let homes_prefix_records = set.records().homed(PREFIX_OF_PREFIX_RECORDS);
        Self { set, homes_prefix_records }
    }

    /// Whether records of prefixes are homed. Otherwise the set answers for none of them.
    #[must_use]
    pub const fn homes_prefix_records(&self) -> bool {
        self.homes_prefix_records
    }
}

impl Deref for MappedGeneration {
    type Target = PublishedSet;

    fn deref(&self) -> &PublishedSet {
        &self.set
    }
}

/// The prefix of the names of prefix records.
const PREFIX_OF_PREFIX_RECORDS: &[u8] = b"0.NA";

/// Why the newest set is not served.
#[derive(Clone, Debug)]
struct LoadFailure {
    at_unix_ms: u64,
    error: String,
}

impl MappedSet {
    /// Opens the set in `directory`. With `verify_new`, layers published later are verified before
    /// they are served. Sets are served as far as `publishers` allows.
    ///
    /// # Errors
    /// One sentence with the likely cause: there is no set, it is damaged, or its publisher is not
    /// accepted.
    pub fn open(directory: &Path, verify_new: bool, publishers: &PublishersConfig) -> anyhow::Result<Self> {
        let last_served = publishers.last_set_file.as_deref().map(LastServedFile::open).transpose()?;
        let freshness = SetFreshness::new(accepted_publishers(&publishers.keys)?).remembering(last_served);
        freshness.set_limits(publishers.age_max_s, publishers.refuse_stale);
        let set = PublishedSet::open_checked(directory, LoadMode::Map)
            .and_then(|set| freshness.check(&set, None, now_unix_ms()).map(|()| set))
            .and_then(|set| freshness.store_served(&set).map(|()| set))
            .map_err(|error| explain(directory, error))?;
        Ok(Self {
            directory: directory.to_owned(),
            verify_new: AtomicBool::new(verify_new),
            set: ArcSwap::from_pointee(in_service(&set, &freshness)),
            reloads: AtomicU64::new(0),
            loaded: watch::Sender::new(()),
            freshness,
            failure: Mutex::new(None),
        })
    }

    /// The set that is live now, for the answer to one request.
    #[must_use]
    pub fn current(&self) -> Guard<Arc<MappedGeneration>> {
        self.set.load()
    }

    /// Whether the live set includes the state of the store at `position`; `None` if the set was
    /// not made from this store.
    #[must_use]
    pub fn shows(&self, position: StorePosition) -> Option<bool> {
        let origin = self.current().manifest().source.filter(|origin| origin.store == position.store);
        origin.map(|origin| origin.transaction >= position.transaction)
    }

    /// Completes when the live set includes the state of the store at `position`, or at `deadline`.
    /// Returns whether it does, or was not made from this store.
    pub async fn wait_for(&self, position: StorePosition, deadline: Instant) -> bool {
        let mut loaded = self.loaded.subscribe();
        while self.shows(position) == Some(false) {
            if !matches!(tokio::time::timeout_at(deadline.into(), loaded.changed()).await, Ok(Ok(()))) {
                return self.shows(position) != Some(false);
            }
        }
        true
    }

    /// Sets whether layers published later are verified before they are served.
    pub fn set_verify_new(&self, verify: bool) {
        self.verify_new.store(verify, Ordering::Relaxed);
    }

    /// The rules for the publisher and the age of sets.
    #[must_use]
    pub const fn freshness(&self) -> &SetFreshness {
        &self.freshness
    }

    fn failure(&self) -> MutexGuard<'_, Option<LoadFailure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of the newest set, if it could not be opened.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.failure().as_ref().map(|failure| failure.error.clone())
    }

    /// Number of sets loaded after the first.
    #[must_use]
    pub fn reloads_count(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// What pages call the set: the name of its directory.
    #[must_use]
    pub fn name(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// When this generation was published, in Unix seconds; `None` if it is no longer in service.
    #[must_use]
    pub fn published_unix_s(&self, generation: u64) -> Option<u32> {
        let set = self.current();
        let is_same = set.generation() == generation;
        is_same.then(|| set.created_unix_ms() / 1000).and_then(|unix_s| u32::try_from(unix_s).ok())
    }

    /// The description of the set in `status`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let (set, failure) = (self.current(), self.failure().clone());
        json!({
            "directory": self.directory,
            "generation": set.generation(),
            "created_unix_ms": set.created_unix_ms(),
            "age_s": now_unix_ms().saturating_sub(set.created_unix_ms()) / 1000,
            "root": set.manifest().root.to_string(),
            "signed_unix_ms": self.freshness.signed_unix_ms(),
            "statement_ahead_s": self.freshness.statement_ahead_ms() / 1000,
            "is_stale": self.freshness.is_stale(now_unix_ms()),
            "handles": set.handles_count(),
            "layers": set.layers().len(),
            "bytes_mapped": set.bytes_mapped(),
            "reloads": self.reloads_count(),
            "last_error": failure.as_ref().map(|failure| &failure.error),
            "last_error_unix_ms": failure.as_ref().map(|failure| failure.at_unix_ms),
        })
    }
}

impl PublishedDirectory for MappedSet {
    type Error = SetError;

    fn directory(&self) -> &Path {
        &self.directory
    }

    fn reload(&self) -> Result<ReloadOutcome, SetError> {
        let reloaded = self.reload_published();
        let _opening = self.failure();
        let set = self.current();
        if set.records().is_stale() != self.freshness.refuses(now_unix_ms()) {
            self.set.store(Arc::new(in_service(&set, &self.freshness)));
        }
        if let Err(error) = self.freshness.store_served(&set) {
            tracing::error!(%error, "cannot store which set is served; an older one may be served after a restart");
        }
        reloaded
    }

    fn is_failing(&self) -> bool {
        self.failure().is_some()
    }
}

/// The set, which answers nothing if it is too old.
fn in_service(set: &PublishedSet, freshness: &SetFreshness) -> MappedGeneration {
    let plain = if set.has_private_values() { Trust::Checked } else { Trust::Plain };
    let trust = if freshness.refuses(now_unix_ms()) { Trust::Stale } else { plain };
    MappedGeneration::new(set.with_trust(|_| trust))
}

/// The publishers with these keys; `None` without keys.
fn accepted_publishers(files: &[PathBuf]) -> anyhow::Result<Option<AcceptedPublishers>> {
    let keys = publisher_keys::read_public(files)?;
    Ok((!keys.is_empty()).then(|| {
        AcceptedPublishers::new(Box::new(move |signer, message, signature| {
            keys.iter().any(|key| key.has_signed(&signer.0, message, signature))
        }))
    }))
}

impl MappedSet {
    /// Loads the published set if it differs from the one in service.
    fn reload_published(&self) -> Result<ReloadOutcome, SetError> {
        let mut failure = self.failure();
        let old = self.set.load_full();
        let opened = PublishedSet::reopen_checked(&old, |_| false, self.verify_new.load(Ordering::Relaxed));
        let accepted =
            opened.and_then(|set| self.freshness.check(&set, Some(&old), now_unix_ms()).map(|()| set));
        match accepted {
            Ok(set) => {
                *failure = None;
                let generation = set.generation();
                // Comparing generations is not enough: a recreated directory starts again at
                // generation 1.
                if set.manifest() == old.manifest() {
                    return Ok(ReloadOutcome::Unchanged(generation));
                }
                self.set.store(Arc::new(in_service(&set, &self.freshness)));
                self.reloads.fetch_add(1, Ordering::Relaxed);
                self.loaded.send_replace(());
                Ok(ReloadOutcome::Changed(generation))
            }
            Err(error) => {
                let text = error.to_string();
                // Keep the time at which this error was first seen.
                if failure.as_ref().is_none_or(|known| known.error != text) {
                    *failure = Some(LoadFailure { at_unix_ms: now_unix_ms(), error: text });
                }
                Err(error)
            }
        }
    }
}

/// The error for a set that cannot be served, with the next thing to try.
fn explain(directory: &Path, error: SetError) -> Error {
    let shown = directory.display();
    let hint = match &error.kind {
        SetErrorKind::NotPublished => {
            format!("cannot serve {shown} (publish a set: hdl snapshot publish {shown} RECORDS)")
        }
        SetErrorKind::Io { error, .. } if error.kind() == ErrorKind::PermissionDenied => {
            format!("cannot serve {shown} (who may read it: ls -l {shown})")
        }
        _ => format!("cannot serve {shown} (check it with: hdl snapshot verify {shown})"),
    };
    Error::new(error).context(hint)
}

#[cfg(test)]
mod tests;
