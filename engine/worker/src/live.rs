//! The served set, replaced between batches.
//!
//! Workers read it without a lock. If a newly published set does not open, the old one stays in
//! service; the error stays visible in `status` until a set opens again.

use crate::templates::{MissingHandles, SetTemplates, SourcePrefixes, TemplatesConfig};
use crate::verification::{LayerState, RecordChecks, VerificationLedger};
use crate::wakers::WorkerWakers;
use arc_swap::{ArcSwap, Cache};
use handle_daemon::clock::now_unix_ms;
use handle_daemon::publication::{PublishedDirectory, ReloadOutcome};
use handle_snapshot::Trust;
use handle_snapshot::map::LoadMode;
use handle_snapshot::set::freshness::SetFreshness;
use handle_snapshot::set::manifest::LayerEntry;
use handle_snapshot::set::{PublishedSet, SetError};
use serde_json::{Value, json};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A published set together with the data derived from it once for all requests.
#[derive(Debug)]
pub struct LiveSet {
    set: Arc<PublishedSet>,
    missing: MissingHandles,
}

impl LiveSet {
    /// Builds the live set, with each layer trusted according to the ledger.
    fn new(
        set: &PublishedSet,
        checks: RecordChecks,
        ledger: &VerificationLedger,
        templates: Option<&TemplatesConfig>,
        sources: &Arc<SourcePrefixes>,
        refuses: bool,
    ) -> Self {
        let trust = |entry: &LayerEntry| match refuses {
            true => Trust::Stale,
            false => ledger.trust(entry, checks, set.has_private_values()),
        };
        let set = Arc::new(set.with_trust(trust));
        let templates = templates.and_then(|config| SetTemplates::of(&set.records(), config));
        Self { set, missing: MissingHandles { templates, sources: Arc::clone(sources) } }
    }

    /// The templates that compute values for handles that are not stored, if there are any.
    #[must_use]
    pub const fn templates(&self) -> Option<&SetTemplates> {
        self.missing.templates.as_ref()
    }

    /// What is known about handles that are not stored.
    #[must_use]
    pub const fn missing(&self) -> &MissingHandles {
        &self.missing
    }
}

impl Deref for LiveSet {
    type Target = PublishedSet;

    fn deref(&self) -> &PublishedSet {
        &self.set
    }
}

/// The set that is being served, and the state needed to load the next one.
#[derive(Debug)]
pub struct ServedSet {
    directory: PathBuf,
    verify_new_layers: AtomicBool,
    set: Arc<ArcSwap<LiveSet>>,
    /// Workers sleep until there is work, and release a retired set when they wake.
    wakers: WorkerWakers,
    reloads: AtomicU64,
    /// The rules for the publisher and the age of sets.
    freshness: SetFreshness,
    /// Verification state of the layers of the set.
    pub(crate) ledger: VerificationLedger,
    /// Held while a set is opened, so that two reloads do not overtake each other.
    opening: Mutex<SetOpener>,
}

/// Parameters for opening sets, and the last failure.
#[derive(Debug)]
struct SetOpener {
    templates: Option<TemplatesConfig>,
    sources: Arc<SourcePrefixes>,
    checks: RecordChecks,
    failure: Option<ReloadFailure>,
}

/// The reason why the newest set is not served.
#[derive(Clone, Debug)]
struct ReloadFailure {
    at_unix_ms: u64,
    error: String,
}

/// A worker's cached reader of the current set.
pub type SetReader = Cache<Arc<ArcSwap<LiveSet>>, Arc<LiveSet>>;

impl ServedSet {
    /// Opens the set in `directory`. With `verify_new_layers`, layers published later are verified
    /// before they are served. `checks` controls the comparison of records with their checksums.
    /// With `templates`, the templates of each set are loaded. Sets are served as far as
    /// `freshness` allows.
    ///
    /// # Errors
    /// When there is no set, it is damaged, or its publisher is not accepted.
    pub fn open(
        directory: &Path,
        how: LoadMode,
        verify_new_layers: bool,
        checks: RecordChecks,
        templates: Option<TemplatesConfig>,
        freshness: SetFreshness,
    ) -> Result<Arc<Self>, SetError> {
        let set = PublishedSet::open_checked(directory, how)?;
        freshness.check(&set, None, now_unix_ms())?;
        freshness.store_served(&set)?;
        let ledger = VerificationLedger::default();
        ledger.begin(&set.manifest().layers, |_| false);
        let refuses = freshness.refuses(now_unix_ms());
        let sources = Arc::default();
        let live = LiveSet::new(&set, checks, &ledger, templates.as_ref(), &sources, refuses);
        Ok(Arc::new(Self {
            directory: directory.to_owned(),
            verify_new_layers: AtomicBool::new(verify_new_layers),
            set: Arc::new(ArcSwap::from_pointee(live)),
            wakers: WorkerWakers::default(),
            reloads: AtomicU64::new(0),
            freshness,
            ledger,
            opening: Mutex::new(SetOpener { templates, sources, checks, failure: None }),
        }))
    }

    /// A set without records, which no directory has: that of a caching server.
    #[must_use]
    pub fn empty() -> Arc<Self> {
        let ledger = VerificationLedger::default();
        let checks = RecordChecks::default();
        let live = LiveSet::new(&PublishedSet::empty(), checks, &ledger, None, &Arc::default(), false);
        Arc::new(Self {
            directory: PathBuf::new(),
            verify_new_layers: AtomicBool::new(false),
            set: Arc::new(ArcSwap::from_pointee(live)),
            wakers: WorkerWakers::default(),
            reloads: AtomicU64::new(0),
            freshness: SetFreshness::default(),
            ledger,
            opening: Mutex::new(SetOpener {
                templates: None,
                sources: Arc::default(),
                checks,
                failure: None,
            }),
        })
    }

    /// Sets whether layers published later are verified before they are served.
    pub(crate) fn set_verify_new_layers(&self, verify: bool) {
        self.verify_new_layers.store(verify, Ordering::Relaxed);
    }

    /// Replaces the templates, for the live set as well.
    pub(crate) fn set_templates(&self, templates: Option<TemplatesConfig>) {
        let mut opening = self.opening();
        if opening.templates != templates {
            opening.templates = templates;
            self.renew(&opening);
        }
    }

    /// Sets which handles a source of records may have, for the live set as well.
    pub(crate) fn set_sources(&self, sources: SourcePrefixes) {
        let mut opening = self.opening();
        if *opening.sources != sources {
            opening.sources = Arc::new(sources);
            self.renew(&opening);
        }
    }

    /// Sets when records are compared with their checksums.
    pub(crate) fn set_checks(&self, checks: RecordChecks) {
        let mut opening = self.opening();
        if opening.checks != checks {
            opening.checks = checks;
            self.renew(&opening);
        }
    }

    /// Records the result of verifying a layer. A damaged layer takes effect on answers at once.
    pub(crate) fn conclude(&self, entry: &LayerEntry, state: LayerState) {
        let opening = self.opening();
        let is_damaged = matches!(state, LayerState::Damaged(_));
        if self.ledger.conclude(entry, state) && is_damaged {
            self.renew(&opening);
        }
    }

    /// Replaces the live set by one built from the current verification state.
    fn renew(&self, opening: &SetOpener) {
        let set = self.set.load();
        self.replace(self.live_set(&set.set, opening));
    }

    fn live_set(&self, set: &PublishedSet, opening: &SetOpener) -> LiveSet {
        let refuses = self.freshness.refuses(now_unix_ms());
        let templates = opening.templates.as_ref();
        LiveSet::new(set, opening.checks, &self.ledger, templates, &opening.sources, refuses)
    }

    fn replace(&self, set: LiveSet) {
        self.set.store(Arc::new(set));
        self.wakers.wake();
    }

    /// The wakers of the workers.
    pub(crate) const fn wakers(&self) -> &WorkerWakers {
        &self.wakers
    }

    fn opening(&self) -> MutexGuard<'_, SetOpener> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The set that is live now.
    #[must_use]
    pub fn current(&self) -> Arc<LiveSet> {
        self.set.load_full()
    }

    /// A reader of the current set; a read costs one comparison when nothing has changed.
    #[must_use]
    pub fn reader(&self) -> SetReader {
        Cache::new(Arc::clone(&self.set))
    }

    /// Loads the published set if it differs from the live one.
    ///
    /// # Errors
    /// When it does not open; the old set stays live.
    pub fn reload(&self) -> Result<ReloadOutcome, SetError> {
        self.take(&[])
    }

    /// Like [`reload`](Self::reload), but also reopens files that were found damaged, because an
    /// operator may have replaced them.
    ///
    /// # Errors
    /// When the set does not open, or such a file is still damaged; the old set stays live.
    pub fn reload_damaged(&self) -> Result<ReloadOutcome, SetError> {
        self.take(&self.ledger.damaged())
    }

    /// The rules for the publisher and the age of sets.
    #[must_use]
    pub const fn freshness(&self) -> &SetFreshness {
        &self.freshness
    }

    /// Loads the published set, and refuses or serves the live one by its age.
    fn take(&self, stale: &[LayerEntry]) -> Result<ReloadOutcome, SetError> {
        let taken = self.take_published(stale);
        let opening = self.opening();
        let is_refusing = self.current().records().is_stale();
        if is_refusing != self.freshness.refuses(now_unix_ms()) {
            match is_refusing {
                true => tracing::info!("the set is no longer stale, and is served again"),
                false => tracing::error!("the set is stale: requests are answered with RC 3"),
            }
            self.renew(&opening);
        }
        if let Err(error) = self.freshness.store_served(&self.current()) {
            tracing::error!(%error, "cannot store which set is served; an older one may be served after a restart");
        }
        taken
    }

    /// Loads the published set; the files of `stale` layers are opened again.
    fn take_published(&self, stale: &[LayerEntry]) -> Result<ReloadOutcome, SetError> {
        let mut opening = self.opening();
        let old = self.set.load_full();
        if self.directory.as_os_str().is_empty() {
            return Ok(ReloadOutcome::Unchanged(old.generation()));
        }
        let is_stale = |entry: &LayerEntry| stale.contains(entry);
        let opened = PublishedSet::reopen_checked(&old, is_stale, self.verifies_new());
        let accepted =
            opened.and_then(|set| self.freshness.check(&set, Some(&old), now_unix_ms()).map(|()| set));
        match accepted {
            Ok(set) => {
                opening.failure = None;
                let generation = set.generation();
                let layers = &set.manifest().layers;
                // Comparing generations is not enough: a recreated directory starts again at
                // generation 1.
                if set.manifest() == old.manifest() && !layers.iter().any(is_stale) {
                    return Ok(ReloadOutcome::Unchanged(generation));
                }
                let is_new = |entry: &LayerEntry| !old.manifest().layers.contains(entry);
                let verified = |entry: &LayerEntry| is_stale(entry) || self.verifies_new() && is_new(entry);
                self.ledger.begin(layers, verified);
                self.replace(self.live_set(&set, &opening));
                self.reloads.fetch_add(1, Ordering::Relaxed);
                Ok(ReloadOutcome::Changed(generation))
            }
            // The damage is already in the ledger. A failure recorded here would be cleared by the
            // watcher's next reload.
            Err(error) if !stale.is_empty() => Err(error),
            Err(error) => {
                let text = error.to_string();
                // Keep the time at which this error was first seen.
                if opening.failure.as_ref().is_none_or(|known| known.error != text) {
                    opening.failure = Some(ReloadFailure { at_unix_ms: now_unix_ms(), error: text });
                }
                Err(error)
            }
        }
    }

    fn verifies_new(&self) -> bool {
        self.verify_new_layers.load(Ordering::Relaxed)
    }

    /// The description of the set in `status`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let set = self.current();
        let failure = self.opening().failure.clone();
        let now_ms = now_unix_ms();
        let layers: Vec<Value> = set
            .manifest()
            .layers
            .iter()
            .zip(set.layers())
            .map(|(entry, layer)| {
                let state = self.ledger.state(entry);
                json!({
                    "file": entry.file,
                    "bytes": entry.len,
                    "handles": layer.handles_count(),
                    "tombstones": layer.tombstones_count(),
                    "private_values": layer.private_count(),
                    "verification": state.name(),
                    "fault": state.fault(),
                    "records_checked": layer.trust() != Trust::Plain,
                })
            })
            .collect();
        json!({
            "directory": self.directory,
            "generation": set.generation(),
            "created_unix_ms": set.created_unix_ms(),
            "age_s": now_ms.saturating_sub(set.created_unix_ms()) / 1000,
            "root": set.manifest().root.to_string(),
            "signed_unix_ms": self.freshness.signed_unix_ms(),
            "statement_ahead_s": self.freshness.statement_ahead_ms() / 1000,
            "is_stale": self.freshness.is_stale(now_ms),
            "handles": set.handles_count(),
            "layers": layers,
            "bytes_mapped": set.bytes_mapped(),
            "bytes_mapped_by_process": handle_snapshot::map::mapped_bytes_now(),
            "folds": set.records().folds(),
            "reloads": self.reloads.load(Ordering::Relaxed),
            "last_error": failure.as_ref().map(|failure| &failure.error),
            "last_error_unix_ms": failure.as_ref().map(|failure| failure.at_unix_ms),
        })
    }

    /// Number of sets loaded after the first.
    #[must_use]
    pub fn reloads_count(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// Whether the newest published set could not be opened.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.opening().failure.is_some()
    }
}

impl PublishedDirectory for ServedSet {
    type Error = SetError;

    fn directory(&self) -> &Path {
        &self.directory
    }

    fn reload(&self) -> Result<ReloadOutcome, SetError> {
        self.reload()
    }

    fn is_failing(&self) -> bool {
        self.is_failing()
    }
}
