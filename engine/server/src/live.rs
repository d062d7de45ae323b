//! The current set, replaced between batches.
//!
//! Workers read it without a lock. A set that does not open keeps the old one serving; the error stays
//! visible in `status` until a set opens again.

use crate::templates::{SetTemplates, TemplatesConfig};
use crate::verification::{LayerState, RecordChecks, VerificationLedger};
use crate::wakers::WorkerWakers;
use arc_swap::{ArcSwap, Cache};
use handle_daemon::shutdown::Shutdown;
use handle_snapshot::map::LoadMode;
use handle_snapshot::set::manifest::{LayerEntry, MANIFEST};
use handle_snapshot::set::{PublishedSet, SetError, SetErrorKind};
use handle_snapshot::{Trust, verify};
use inotify::{EventMask, Inotify, WatchMask};
use serde_json::{Value, json};
use std::ops::Deref;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A published set, with what is made of it once for all requests.
#[derive(Debug)]
pub struct LiveSet {
    set: Arc<PublishedSet>,
    templates: Option<SetTemplates>,
}

impl LiveSet {
    /// The set with layers trusted as far as is known of them.
    fn new(
        set: &PublishedSet,
        checks: RecordChecks,
        ledger: &VerificationLedger,
        templates: Option<&TemplatesConfig>,
    ) -> Self {
        let set = Arc::new(set.with_trust(|entry| ledger.trust(entry, checks, set.has_private_values())));
        let templates = templates.and_then(|config| SetTemplates::of(&set.records(), config));
        Self { set, templates }
    }

    /// What computes values for handles that are not stored, if anything does.
    #[must_use]
    pub const fn templates(&self) -> Option<&SetTemplates> {
        self.templates.as_ref()
    }
}

impl Deref for LiveSet {
    type Target = PublishedSet;

    fn deref(&self) -> &PublishedSet {
        &self.set
    }
}

/// The set that is being served, and how to get the next.
#[derive(Debug)]
pub struct ServedSet {
    directory: PathBuf,
    verify_new_layers: AtomicBool,
    set: Arc<ArcSwap<LiveSet>>,
    /// Workers sleep until there is something to answer, and let go of a set when they wake.
    wakers: WorkerWakers,
    reloads: AtomicU64,
    /// What is known of the layers of the set.
    pub(crate) ledger: VerificationLedger,
    /// Held while a set is opened, so that two reloads cannot overtake each other.
    opening: Mutex<SetOpener>,
}

/// What sets are opened with, and what came of it.
#[derive(Debug)]
struct SetOpener {
    templates: Option<TemplatesConfig>,
    checks: RecordChecks,
    failure: Option<ReloadFailure>,
}

/// Why the newest set is not served.
#[derive(Clone, Debug)]
struct ReloadFailure {
    at: SystemTime,
    error: String,
}

/// A worker's way to the current set.
pub type SetReader = Cache<Arc<ArcSwap<LiveSet>>, Arc<LiveSet>>;

/// What a reload did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// A new generation is live.
    Changed(u64),
    /// The published set is the one that is live.
    Unchanged(u64),
}

impl ServedSet {
    /// Opens the set in `directory`. With `verify_new_layers`, layers that come later are verified first;
    /// `checks` says whether records are compared with their checksums; with `templates`, those of each set are read.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn open(
        directory: &Path,
        how: LoadMode,
        verify_new_layers: bool,
        checks: RecordChecks,
        templates: Option<TemplatesConfig>,
    ) -> Result<Arc<Self>, SetError> {
        let set = PublishedSet::open(directory, how)?;
        check_homed(&set, |_| false)?;
        let ledger = VerificationLedger::default();
        ledger.begin(&set.manifest().layers, |_| false);
        let live = LiveSet::new(&set, checks, &ledger, templates.as_ref());
        Ok(Arc::new(Self {
            directory: directory.to_owned(),
            verify_new_layers: AtomicBool::new(verify_new_layers),
            set: Arc::new(ArcSwap::from_pointee(live)),
            wakers: WorkerWakers::default(),
            reloads: AtomicU64::new(0),
            ledger,
            opening: Mutex::new(SetOpener { templates, checks, failure: None }),
        }))
    }

    /// Says whether layers that come later are checked first.
    pub(crate) fn set_verify_new_layers(&self, verify: bool) {
        self.verify_new_layers.store(verify, Ordering::Relaxed);
    }

    /// Applies other templates from now on, to the set that is live, too.
    pub(crate) fn set_templates(&self, templates: Option<TemplatesConfig>) {
        let mut opening = self.opening();
        if opening.templates != templates {
            opening.templates = templates;
            self.renew(&opening);
        }
    }

    /// Compares records with their checksums as `checks` says from now on.
    pub(crate) fn set_checks(&self, checks: RecordChecks) {
        let mut opening = self.opening();
        if opening.checks != checks {
            opening.checks = checks;
            self.renew(&opening);
        }
    }

    /// Notes what became of the verification of a layer, and answers accordingly from now on.
    pub(crate) fn conclude(&self, entry: &LayerEntry, state: LayerState) {
        let opening = self.opening();
        let is_damaged = matches!(state, LayerState::Damaged(_));
        if self.ledger.conclude(entry, state) && is_damaged {
            self.renew(&opening);
        }
    }

    /// Serves the live set as is known of it now.
    fn renew(&self, opening: &SetOpener) {
        let set = self.set.load();
        self.replace(self.live_set(&set.set, opening));
    }

    fn live_set(&self, set: &PublishedSet, opening: &SetOpener) -> LiveSet {
        LiveSet::new(set, opening.checks, &self.ledger, opening.templates.as_ref())
    }

    fn replace(&self, set: LiveSet) {
        self.set.store(Arc::new(set));
        self.wakers.wake();
    }

    /// What wakes the workers.
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

    /// A way to the current set that costs one comparison where nothing has changed.
    #[must_use]
    pub fn reader(&self) -> SetReader {
        Cache::new(Arc::clone(&self.set))
    }

    /// Takes the published set, if it is another than the live one.
    ///
    /// # Errors
    /// When it does not open; then the old one stays.
    pub fn reload(&self) -> Result<ReloadOutcome, SetError> {
        self.take(&[])
    }

    /// The same, and opens files again that were found damaged: an operator may have replaced them.
    ///
    /// # Errors
    /// When the set does not open, or such a file is still damaged; then the old one stays.
    pub fn reload_damaged(&self) -> Result<ReloadOutcome, SetError> {
        self.take(&self.ledger.damaged())
    }

    /// Takes the published set; the files of `stale` layers are opened again.
    fn take(&self, stale: &[LayerEntry]) -> Result<ReloadOutcome, SetError> {
        let mut opening = self.opening();
        let old = self.set.load_full();
        let is_stale = |entry: &LayerEntry| stale.contains(entry);
        match self.open_next(&old, &is_stale) {
            Ok(set) => {
                opening.failure = None;
                let generation = set.generation();
                let layers = &set.manifest().layers;
                // Not the generation alone: a directory that was made anew begins with the first again.
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
            // What is still damaged is known to be, and the next look at the directory would call it whole.
            Err(error) if !stale.is_empty() => Err(error),
            Err(error) => {
                let text = error.to_string();
                // The time is when it was first seen.
                if opening.failure.as_ref().is_none_or(|known| known.error != text) {
                    opening.failure = Some(ReloadFailure { at: SystemTime::now(), error: text });
                }
                Err(error)
            }
        }
    }

    fn verifies_new(&self) -> bool {
        self.verify_new_layers.load(Ordering::Relaxed)
    }

    /// What is published now. Layers that `old` does not have are checked, every byte of them: their
    /// publisher has done so, but they may have come a long way since.
    fn open_next(
        &self,
        old: &PublishedSet,
        is_stale: &impl Fn(&LayerEntry) -> bool,
    ) -> Result<PublishedSet, SetError> {
        let set = PublishedSet::reopen_stale(old, is_stale)?;
        let is_known = |entry: &LayerEntry| old.manifest().layers.contains(entry) && !is_stale(entry);
        for (entry, layer) in set.manifest().layers.iter().zip(set.layers()) {
            if is_stale(entry) || self.verifies_new() && !is_known(entry) {
                let path = self.directory.join(&entry.file);
                verify::layer(layer).map_err(|fault| SetError { path, kind: SetErrorKind::Fault(fault) })?;
            }
        }
        check_homed(&set, is_known)?;
        Ok(set)
    }

    /// What `status` says about the set.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let set = self.current();
        let failure = self.opening().failure.clone();
        let unix_ms = |at: SystemTime| {
            u64::try_from(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis())
                .unwrap_or(u64::MAX)
        };
        let now_ms = unix_ms(SystemTime::now());
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
            "handles": set.handles_count(),
            "layers": layers,
            "bytes_mapped": set.bytes_mapped(),
            "bytes_mapped_by_process": handle_snapshot::map::mapped_bytes_now(),
            "folds": set.records().folds(),
            "reloads": self.reloads.load(Ordering::Relaxed),
            "last_error": failure.as_ref().map(|failure| &failure.error),
            "last_error_unix_ms": failure.as_ref().map(|failure| unix_ms(failure.at)),
        })
    }

    /// How many sets were taken after the first.
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

/// Compares the tables of homed prefixes with their checksums, those of layers that are known already excepted. They
/// decide for every answer whether it is this server's to give, and are short.
fn check_homed(set: &PublishedSet, is_known: impl Fn(&LayerEntry) -> bool) -> Result<(), SetError> {
    for (entry, layer) in set.manifest().layers.iter().zip(set.layers()) {
        if !is_known(entry) {
            let path = set.dir().join(&entry.file);
            verify::homed_sum(layer).map_err(|fault| SetError { path, kind: SetErrorKind::Fault(fault) })?;
        }
    }
    Ok(())
}

/// How often the watcher looks at the directory by itself: watches can be lost, and some file systems have none.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Reloads whenever a new set is published, until `shutdown`.
pub fn watch(live: &ServedSet, shutdown: &Shutdown) {
    let mut inotify = watch_directory(&live.directory);
    if let Err(error) = &inotify {
        tracing::warn!(
            directory = %live.directory.display(), %error,
            "cannot watch the snapshot directory, looking once a second instead; \
             is fs.inotify.max_user_instances exhausted? (sysctl fs.inotify)"
        );
    }
    let mut events = [0; 4096];
    // What was published before the watch began is looked for at once.
    let mut look_at = Instant::now();
    while !shutdown.is_stopped() {
        let patience = look_at.saturating_duration_since(Instant::now());
        let seen = match &mut inotify {
            Ok(inotify) => wait_for_events(inotify, &mut events, (shutdown, patience)),
            Err(_) => {
                shutdown.poll(&mut [], Some(patience));
                DirectoryChange::Nothing
            }
        };
        if seen == DirectoryChange::Gone {
            // The directory was replaced by another of its name.
            inotify = watch_directory(&live.directory);
        }
        let published = seen == DirectoryChange::Published;
        if !published && Instant::now() < look_at {
            continue;
        }
        if inotify.is_err() {
            inotify = watch_directory(&live.directory);
        }
        look_at = Instant::now() + LOOK_INTERVAL;
        let was_failing = live.is_failing();
        match live.reload() {
            Ok(ReloadOutcome::Changed(generation)) => tracing::info!(generation, "serving a new set"),
            Ok(ReloadOutcome::Unchanged(generation)) if was_failing => {
                tracing::info!(generation, "the published set is whole again");
            }
            Ok(ReloadOutcome::Unchanged(_)) => {}
            // Once for each publication, not once a second.
            Err(error) if published || !was_failing => {
                tracing::error!(%error, "the published set does not open; the old one stays live");
            }
            Err(_) => {}
        }
    }
}

fn watch_directory(directory: &Path) -> std::io::Result<Inotify> {
    let inotify = Inotify::init()?;
    let changes = WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE | WatchMask::MOVE_SELF;
    inotify.watches().add(directory, changes)?;
    Ok(inotify)
}

/// What the watcher saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryChange {
    Nothing,
    /// A manifest was put there.
    Published,
    /// The directory is not there any more.
    Gone,
}

/// What happens until the server ends, or the patience of the watcher is over.
fn wait_for_events(
    inotify: &mut Inotify,
    events: &mut [u8],
    (shutdown, patience): (&Shutdown, Duration),
) -> DirectoryChange {
    if !shutdown.wait_for(inotify.as_fd(), Some(patience)) {
        return DirectoryChange::Nothing;
    }
    let Ok(events) = inotify.read_events(events) else { return DirectoryChange::Published };
    let mut seen = DirectoryChange::Nothing;
    for event in events {
        if event.mask.intersects(EventMask::IGNORED | EventMask::MOVE_SELF) {
            return DirectoryChange::Gone;
        }
        // When too much happened to be told, something may have been published.
        if event.name.is_some_and(|name| name == MANIFEST) || event.mask.contains(EventMask::Q_OVERFLOW) {
            seen = DirectoryChange::Published;
        }
    }
    seen
}
