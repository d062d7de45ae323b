//! The decisions of publishing, step by step, without threads and without blocking.
//!
//! The MANIFEST alone determines where publishing continues: it names the store and the last
//! transaction that the set shows. After any failure or restart, the next step therefore starts
//! from the set that readers see.

use super::delta::{DeltaLayer, homed_prefixes};
use super::error::PublishError;
use super::jobs::{JobControl, JobInput, JobOutput, PublishJob};
use super::recent_changes::RecentChanges;
use super::settings::PublishConfig;
use super::status::{JobStatus, KeptStatus, PublishCounts, PublishStatus, SetStatus};
use super::{check, tiers};
use handle_snapshot::set::manifest::{LAYERS_MAX, LayerEntry, Manifest, SetOrigin};
use handle_snapshot::set::stager::NewLayer;
use handle_snapshot::set::storage::Storage;
use handle_snapshot::set::{SetError, SetErrorKind};
use handle_snapshot::{HomedPrefixes, LayerOptions, SetPublisher};
use handle_store::{ChangedRecord, Store, StoreChanges};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// Merges of up to this many bytes are small. One small and one large job may run at the same time,
/// so that deltas do not pile up while a base is merged, which takes minutes.
const SMALL_LEN_MAX: u64 = 64 << 20;
/// From this many layers on, merges ignore their rate limit.
const LAYERS_HURRY: usize = LAYERS_MAX / 2;
/// Maximum changes in one of the layers that go live together with a rebuilt base.
const CATCH_UP_CHANGES: usize = 100_000;

/// The state of publishing the records of a store.
pub(super) struct PublisherPlan<S: Storage> {
    store: Arc<Store>,
    publisher: SetPublisher<S>,
    config: Arc<PublishConfig>,
    running_jobs: Vec<RunningJob>,
    jobs_count: u64,
    /// Why no delta can be published until the set is rebuilt.
    unfit: Option<&'static str>,
    /// Whether an operator has requested a rebuild.
    rebuild_wanted: bool,
    /// Whether an operator has requested that all layers be merged into one.
    merge_wanted: bool,
    hold_reason: Option<String>,
    kept_manifests: Vec<Manifest>,
    counts: PublishCounts,
    changes: Arc<RecentChanges>,
    /// Whether another process continues, so that checks end.
    leaves: Arc<AtomicBool>,
}

/// A job in progress.
struct RunningJob {
    number: u64,
    takes: Vec<LayerEntry>,
    is_rebuild: bool,
    is_large: bool,
    /// Whether the job does not keep to the rate of writing.
    is_urgent: bool,
    started_unix_ms: u64,
    control: Arc<JobControl>,
}

impl<S: Storage> PublisherPlan<S> {
    pub(super) fn new(
        store: Arc<Store>,
        publisher: SetPublisher<S>,
        config: Arc<PublishConfig>,
    ) -> Result<Self, PublishError> {
        let (held, kept) = (publisher.hold_reason()?, publisher.kept_manifests()?);
        let mut engine = Self {
            store,
            publisher,
            config,
            running_jobs: Vec::new(),
            jobs_count: 0,
            unfit: None,
            rebuild_wanted: false,
            merge_wanted: false,
            hold_reason: held,
            kept_manifests: kept,
            counts: PublishCounts::default(),
            changes: Arc::default(),
            leaves: Arc::default(),
        };
        // After the sets were read: another process may have published what it has just changed.
        engine.store.catch_up()?;
        // Checked before any change is acknowledged: the transactions of an older copy of the store
        // would soon exceed the number in the set.
        let published = engine.published();
        engine.part_from_what_is_ahead()?;
        if let Err(why) = published.and(engine.published()) {
            engine.wait_for_rebuild(why);
        }
        Ok(engine)
    }

    /// Notes in `changes` what each set changes.
    pub(super) fn noting(self, changes: Arc<RecentChanges>) -> Self {
        Self { changes, ..self }
    }

    /// Ends checks when `leaves` becomes true.
    pub(super) fn until(self, leaves: Arc<AtomicBool>) -> Self {
        Self { leaves, ..self }
    }

    /// Notes the handles that the newest set has changed.
    fn note_changes(&self, handles: &[ChangedRecord]) {
        let notify = &self.config.notify;
        let generation = self.publisher.manifest().map(|set| set.generation);
        if let Some(generation) = generation.filter(|_| notify.listen.is_some()) {
            let names = handles.iter().map(|changed| &changed.handle[..]);
            self.changes.note(generation, names, notify.names_len);
        }
    }

    /// Gives the store a new identity if a set shows a later state of it. The store is then an
    /// older copy, and its next transactions differ from those with the same numbers in the kept
    /// sets. Whichever of these sets an operator rolls back to, no delta is put on top of it.
    fn part_from_what_is_ahead(&self) -> Result<(), PublishError> {
        let (identity, last_id) = (self.store.identity(), self.store.last_id());
        let is_ahead = |set: &Manifest| {
            set.source.is_some_and(|source| source.store == identity && source.transaction > last_id)
        };
        if self.kept_manifests.iter().chain(self.publisher.manifest()).any(is_ahead) {
            self.store.renew_identity()?;
        }
        Ok(())
    }

    /// Begins the turn of this process, which has the lease with this epoch, with the set that is
    /// published now. False if a higher epoch has been published.
    pub(super) fn take_over(&mut self, epoch: u64, now_unix_ms: u64) -> Result<bool, PublishError> {
        if !self.publisher.take_over(epoch, now_unix_ms)? {
            return Ok(false);
        }
        check::clean(self.publisher.dir())?;
        (self.hold_reason, self.kept_manifests) =
            (self.publisher.hold_reason()?, self.publisher.kept_manifests()?);
        // After the set was read, which shows what another process has just changed.
        self.store.catch_up()?;
        let published = self.published();
        self.part_from_what_is_ahead()?;
        self.unfit = None;
        if let Err(why) = published.and(self.published()) {
            self.wait_for_rebuild(why);
        }
        Ok(true)
    }

    /// Reads which set another process has published; returns its epoch.
    pub(super) fn follow(&mut self) -> Result<u64, PublishError> {
        self.publisher.refresh()?;
        self.hold_reason = self.publisher.hold_reason()?;
        Ok(self.publisher.manifest().map_or(0, |set| set.epoch))
    }

    /// The last published transaction, if changes can be put on top of it; otherwise the reason why
    /// they cannot.
    fn published(&self) -> Result<u64, &'static str> {
        let set = self.publisher.manifest().ok_or("nothing is published yet")?;
        let ours = set.source.filter(|source| source.store == self.store.identity());
        let source = ours.ok_or("the published set was not made from this store")?;
        if source.transaction > self.store.last_id() {
            return Err("the published set is ahead of the store, which is an older copy");
        }
        Ok(self.store.renumbered(source.transaction))
    }

    /// The last published transaction, if deltas can be published now.
    pub(super) fn position(&self) -> Option<u64> {
        let can = self.hold_reason.is_none() && self.unfit.is_none();
        self.published().ok().filter(|_| can)
    }

    /// Publishes the changes, if there are any and publishing is possible; returns whether it did.
    pub(super) fn publish(&mut self, now_unix_ms: u64) -> Result<bool, PublishError> {
        self.publisher.refresh()?;
        if self.hold_reason.is_some() || self.unfit.is_some() {
            return Ok(false);
        }
        let last = self.store.last_id();
        let after = match self.published() {
            Ok(after) if last.saturating_sub(after) <= self.config.rebuild_changes => after,
            Ok(_) => return Ok(self.wait_for_rebuild("more has changed than deltas should carry")),
            Err(why) => return Ok(self.wait_for_rebuild(why)),
        };
        if last <= after {
            return Ok(false);
        }
        let is_full = self.layers().len() >= LAYERS_MAX;
        if is_full && self.free() == 0 {
            // A merge is in progress; no delta is built while the set has no capacity for it.
            return Ok(false);
        }
        let snapshot = self.store.snapshot()?;
        if snapshot.is_dumping()? {
            // The set stays as it is until the dump of the primary is complete.
            return Ok(false);
        }
        let most = usize::try_from(self.config.changes_max).unwrap_or(usize::MAX);
        let StoreChanges::These { to, homed, handles, .. } = snapshot.changes_after(after, most)? else {
            return Ok(self.wait_for_rebuild("the log of the store does not reach back to the published set"));
        };
        let options =
            self.publisher.options(now_unix_ms).ok_or(PublishError::Refused("nothing is published"))?;
        let homed = homed.then(|| homed_prefixes(&snapshot)).transpose()?;
        let is_homed_anew = homed.is_some();
        let delta = self.build(options, &handles, homed)?;
        let gone = self.absorbs(delta.len());
        if gone == 0 && is_full {
            return Ok(false);
        }
        let layer = self.stage(&delta, gone)?.showing(self.source(to));
        self.check(std::slice::from_ref(&layer), now_unix_ms)?;
        self.keep_when_due(now_unix_ms)?;
        let written = layer.header().file_len;
        self.publisher.publish(layer, now_unix_ms)?;
        // A homed prefix changes the answers about all of its handles.
        if !is_homed_anew {
            self.note_changes(&handles);
        }
        self.counts.deltas += 1;
        self.counts.changes += handles.len() as u64;
        self.counts.changed_bytes += delta.len();
        self.counts.delta_bytes += written;
        Ok(true)
    }

    /// Runs the check command on the set with the new deltas, if deltas are to be checked.
    fn check(&mut self, layers: &[NewLayer], now_unix_ms: u64) -> Result<(), PublishError> {
        if self.config.check.deltas && !self.config.check.command.is_empty() {
            let candidate = self.publisher.candidate(layers, now_unix_ms)?;
            check::ask(&self.config.check, self.publisher.dir(), &candidate, &self.leaves)?;
        }
        Ok(())
    }

    fn wait_for_rebuild(&mut self, why: &'static str) -> bool {
        tracing::info!(why, "the published set will be built from all records");
        self.unfit = Some(why);
        false
    }

    fn source(&self, transaction: u64) -> SetOrigin {
        SetOrigin { store: self.store.identity(), transaction }
    }

    fn layers(&self) -> &[LayerEntry] {
        self.publisher.manifest().map_or(&[], |set| &set.layers)
    }

    /// The number of newest layers that no job is using.
    fn free(&self) -> usize {
        let is_taken = |layer: &LayerEntry| self.running_jobs.iter().any(|job| job.takes.contains(layer));
        self.layers().iter().position(is_taken).unwrap_or(self.layers().len())
    }

    /// The number of newest layers that are rewritten together with a delta of `len` bytes. The
    /// oldest layer is never included.
    fn absorbs(&self, len: u64) -> usize {
        let free = self.free().min(self.layers().len().saturating_sub(1));
        let lens: Vec<u64> = self.layers()[..free].iter().map(|layer| layer.len).collect();
        tiers::absorbed(&lens, len, self.config.absorb_len)
    }

    fn build(
        &mut self,
        options: LayerOptions,
        changed: &[ChangedRecord],
        homed: Option<HomedPrefixes>,
    ) -> Result<DeltaLayer, PublishError> {
        let dir = self.publisher.dir();
        let delta = DeltaLayer::build(dir, options, changed, homed)
            .map_err(|error| SetError { path: dir.to_owned(), kind: SetErrorKind::Build(error) })?;
        self.counts.left_out += delta.left_out;
        Ok(delta)
    }

    fn stage(&self, delta: &DeltaLayer, gone: usize) -> Result<NewLayer, SetError> {
        let stager = self.publisher.stager();
        match self.publisher.records() {
            Some(records) if gone > 0 => {
                delta.stage_absorbing(&stager, &self.layers()[..gone], &records.layers()[..gone])
            }
            _ => delta.stage(&stager),
        }
    }

    /// Keeps the published set if the last kept one is old enough, and drops the oldest kept sets.
    fn keep_when_due(&mut self, now_unix_ms: u64) -> Result<(), PublishError> {
        let last = self.kept_manifests.last().map(|set| set.created_unix_ms);
        let created = self.publisher.manifest().map(|set| set.created_unix_ms);
        let every_ms = self.config.keep_every_s.saturating_mul(1000);
        let is_due = last.is_none_or(|last| created.is_some_and(|at| at.saturating_sub(last) >= every_ms));
        if is_due { self.keep(now_unix_ms) } else { Ok(()) }
    }

    /// Keeps the published set.
    pub(super) fn keep(&mut self, now_unix_ms: u64) -> Result<(), PublishError> {
        if self.config.keep_count == 0 {
            return Ok(());
        }
        self.publisher.keep()?;
        self.forget_oldest(now_unix_ms)
    }

    fn forget_oldest(&mut self, now_unix_ms: u64) -> Result<(), PublishError> {
        self.kept_manifests = self.publisher.kept_manifests()?;
        let too_many = self.kept_manifests.len().saturating_sub(self.config.keep_count);
        for set in self.kept_manifests.drain(..too_many) {
            self.publisher.forget(set.generation, now_unix_ms)?;
        }
        Ok(())
    }

    /// The next merge or rebuild, if one is due and no other job is in its way.
    pub(super) fn due(&mut self, now_unix_ms: u64) -> Option<PublishJob<S>> {
        let (free, layers_count) = (self.free(), self.layers().len());
        for job in &self.running_jobs {
            job.control.hurry.store(job.is_urgent || layers_count >= LAYERS_HURRY, Ordering::Relaxed);
        }
        if self.hold_reason.is_some() {
            return None;
        }
        let is_busy = |large| self.running_jobs.iter().any(|job| job.is_large == large);
        if (self.unfit.is_some() || self.rebuild_wanted) && !is_busy(true) && !self.is_dumping() {
            return Some(self.start(JobInput::Rebuild, true, now_unix_ms));
        }
        if self.merge_wanted && free == layers_count && !is_busy(true) {
            self.merge_wanted = false;
            if layers_count > 1 {
                let set = self.publisher.manifest()?.clone();
                return Some(self.start(JobInput::Merge(set, 0..layers_count), true, now_unix_ms));
            }
        }
        let mut lens: Vec<u64> = self.layers()[..free].iter().map(|layer| layer.len).collect();
        if let Some(oldest) = lens.last_mut().filter(|_| free == layers_count) {
            // A small base is not merged again for every few changes.
            *oldest = (*oldest).max(self.config.absorb_len.saturating_mul(self.config.merge_ratio));
        }
        let len_max = if is_busy(true) { SMALL_LEN_MAX } else { u64::MAX };
        let count = tiers::due(&lens, self.config.merge_ratio, len_max)?;
        let is_large = lens[..count].iter().sum::<u64>() > SMALL_LEN_MAX;
        if is_busy(is_large) {
            return None;
        }
        let set = self.publisher.manifest()?.clone();
        Some(self.start(JobInput::Merge(set, 0..count), is_large, now_unix_ms))
    }

    /// Whether the store is being filled by a dump. If that cannot be determined, it is left to the
    /// next step to report the error of the store.
    fn is_dumping(&self) -> bool {
        self.store.snapshot().and_then(|snapshot| snapshot.is_dumping()).unwrap_or(false)
    }

    /// Whether the published set lacks most records of the store, as after the first dump of a
    /// mirror or an import. Answers that say that handles do not exist are worse than slow ones.
    fn lacks_most(&self) -> bool {
        let records = self.store.snapshot().and_then(|snapshot| snapshot.records_count()).unwrap_or(0);
        self.publisher.manifest().map_or(0, |set| set.handles_count) < records / 2
    }

    fn start(&mut self, what: JobInput, is_large: bool, started_unix_ms: u64) -> PublishJob<S> {
        self.jobs_count += 1;
        let watch = Arc::new(JobControl::default());
        let is_rebuild = matches!(what, JobInput::Rebuild);
        let is_urgent = is_rebuild && self.lacks_most();
        watch.hurry.store(is_urgent, Ordering::Relaxed);
        let job = PublishJob {
            number: self.jobs_count,
            input: what,
            stager: self.publisher.stager(),
            store: self.store.clone(),
            config: self.config.clone(),
            control: watch.clone(),
        };
        self.running_jobs.push(RunningJob {
            number: job.number,
            takes: job.takes().to_vec(),
            is_rebuild,
            is_large,
            is_urgent,
            started_unix_ms,
            control: watch,
        });
        job
    }

    /// Publishes the layer that a job has made.
    pub(super) fn finish(
        &mut self,
        number: u64,
        made: Result<JobOutput, PublishError>,
        now_unix_ms: u64,
    ) -> Result<(), PublishError> {
        let at = self.running_jobs.iter().position(|job| job.number == number);
        let job = self.running_jobs.swap_remove(at.expect("each job is finished once"));
        let made = made?;
        self.publisher.refresh()?;
        if self.hold_reason.is_some() {
            return Ok(());
        }
        if job.is_rebuild {
            return self.finish_rebuild(made, now_unix_ms);
        }
        let len = made.layer.header().file_len;
        match self.publisher.publish(made.layer, now_unix_ms) {
            Ok(_) => {
                self.note_changes(&[]);
                self.counts.merges += 1;
                self.counts.merged_bytes += len;
                Ok(())
            }
            // A rebuild or a roll back has removed the layers of this merge.
            Err(SetError { kind: SetErrorKind::Refused(_), .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Publishes a new base together with all changes since, so that every change that was visible
    /// stays visible.
    fn finish_rebuild(&mut self, made: JobOutput, now_unix_ms: u64) -> Result<(), PublishError> {
        let mut shown = made.source.map_or(0, |source| source.transaction);
        let header = *made.layer.header();
        let folds = self.store.folds();
        let options = LayerOptions { seed: header.seed, folds, created_unix_ms: now_unix_ms };
        let snapshot = self.store.snapshot()?;
        if snapshot.is_dumping()? {
            // A rebuild that starts after the dump has all records.
            return Ok(());
        }
        let mut layers = vec![made.layer];
        while shown < snapshot.last_id()? {
            let StoreChanges::These { to, homed, handles, .. } =
                snapshot.changes_after(shown, CATCH_UP_CHANGES)?
            else {
                // The log was pruned meanwhile; a rebuild that starts now does not need the missing
                // part.
                return Ok(());
            };
            let homed = homed.then(|| homed_prefixes(&snapshot)).transpose()?;
            let delta = self.build(options, &handles, homed)?;
            layers.push(delta.stage(&self.publisher.stager())?.showing(self.source(to)));
            shown = to;
        }
        if layers.len() > 1 {
            self.check(&layers, now_unix_ms)?;
        }
        self.keep(now_unix_ms)?;
        self.publisher.publish_together(layers, now_unix_ms)?;
        self.unfit = None;
        self.rebuild_wanted = false;
        self.counts.rebuilds += 1;
        self.counts.rebuilt_bytes += header.file_len;
        self.counts.left_out += made.left_out;
        Ok(())
    }

    /// Puts `config` in force; running jobs keep their settings.
    pub(super) fn reconfigure(&mut self, config: Arc<PublishConfig>) {
        self.config = config;
    }

    /// Requests a rebuild of the set from all records.
    pub(super) const fn rebuild(&mut self) {
        self.rebuild_wanted = true;
    }

    /// Requests that all layers be merged into one.
    pub(super) const fn merge(&mut self) {
        self.merge_wanted = true;
    }

    /// Stops publishing until [`resume`](Self::resume), also after a restart.
    pub(super) fn hold(&mut self, why: &str) -> Result<(), PublishError> {
        self.publisher.hold(why)?;
        self.hold_reason = self.publisher.hold_reason()?;
        Ok(())
    }

    /// Resumes publishing after a hold, with all changes since.
    pub(super) fn resume(&mut self) -> Result<(), PublishError> {
        self.publisher.resume()?;
        self.hold_reason = None;
        Ok(())
    }

    /// Publishes a kept generation again, or the newest other one if none is named, and holds
    /// there; returns its number. The set published until now is kept.
    pub(super) fn roll_back(&mut self, to: Option<u64>, now_unix_ms: u64) -> Result<u64, PublishError> {
        self.publisher.refresh()?;
        self.kept_manifests = self.publisher.kept_manifests()?;
        let from = self.publisher.manifest().ok_or(PublishError::Refused("nothing is published"))?.clone();
        let is_other = |set: &&Manifest| to.map_or(set.layers != from.layers, |to| set.generation == to);
        let earlier = self.kept_manifests.iter().rev().find(is_other).map(|set| set.generation);
        let to = earlier
            .ok_or(PublishError::Refused("no such generation is kept; `status` lists those that are"))?;
        // The hold comes first: after a crash between the two steps, the set that was rolled back
        // must not be published again.
        let was_held = self.hold_reason.clone();
        self.hold(&format!("rolled back from generation {} to {to}", from.generation))?;
        let rolled_back =
            self.publisher.keep().and_then(|()| self.publisher.roll_back(to, now_unix_ms).map(|_| ()));
        if let Err(error) = rolled_back {
            match was_held {
                Some(why) => self.hold(&why)?,
                None => self.resume()?,
            }
            return Err(error.into());
        }
        // A roll back does not make an unfit set fit.
        self.unfit = self.unfit.or(self.published().err());
        self.forget_oldest(now_unix_ms)?;
        Ok(to)
    }

    /// Makes a new statement about the published set, if sets are signed. None is made while a set
    /// that lacks changes waits for a rebuild. A hold is the decision of an operator, who wants the
    /// set to be served.
    pub(super) fn renew_statement(&mut self, now_unix_ms: u64) -> Result<(), PublishError> {
        if self.unfit.is_some() && self.hold_reason.is_none() {
            return Ok(());
        }
        self.counts.statements += u64::from(self.publisher.renew_statement(now_unix_ms)?);
        Ok(())
    }

    /// Removes files that no set has named for the grace time.
    pub(super) fn prune(&mut self, now: SystemTime) -> Result<(), PublishError> {
        let pruned = self.publisher.prune(now, self.config.grace())?;
        self.counts.files_removed += pruned.files_count as u64;
        Ok(())
    }

    pub(super) const fn count_failure(&mut self, error: &PublishError) {
        self.counts.failures += 1;
        if matches!(error, PublishError::Check(_)) {
            self.counts.refused += 1;
        }
    }

    /// The current state of publishing. The caller adds errors.
    pub(super) fn status(&self) -> PublishStatus {
        let store_transaction = self.store.last_id();
        let set = self.publisher.manifest();
        PublishStatus {
            set: set.map(SetStatus::from),
            store_transaction,
            pending: self.published().map_or(store_transaction, |at| store_transaction.saturating_sub(at)),
            held: self.hold_reason.clone(),
            rebuild: self.unfit.or(self.rebuild_wanted.then_some("wanted")).map(str::to_owned),
            running: self.running_jobs.iter().map(RunningJob::status).collect(),
            kept: self.kept_manifests.iter().map(KeptStatus::from).collect(),
            lease: None,
            last_error: None,
            last_error_unix_ms: None,
            counts: self.counts,
        }
    }

    /// Asks all jobs to end early.
    pub(super) fn stop(&self) {
        self.running_jobs.iter().for_each(|job| job.control.stop.store(true, Ordering::Relaxed));
    }
}

impl RunningJob {
    fn status(&self) -> JobStatus {
        JobStatus {
            what: if self.is_rebuild { "rebuild" } else { "merge" },
            layers: self.takes.len(),
            bytes: self.takes.iter().map(|layer| layer.len).sum(),
            records: self.control.records.load(Ordering::Relaxed),
            started_unix_ms: self.started_unix_ms,
        }
    }
}
