//! Publishes changes in the store as sets that resolvers serve.
//!
//! - Every acknowledged change is published: some milliseconds later a new layer contains all
//!   changed records, and the MANIFEST names it (`planner.rs`).
//! - Layers are merged in the background (`tiers.rs`, `jobs.rs`), so that there are few of them,
//!   and a byte is rewritten a bounded number of times. No long task delays a change.
//! - The MANIFEST records the store and the transaction that the set shows. After a restart,
//!   publishing continues from there alone, so no change is lost and no record goes back in time.
//! - Of several processes over one database, one publishes (`lease.rs`). The others follow the set,
//!   and take over when that one does not renew its lease.
//! - After a failure the published set stays, the changes wait in the store, and `status` reports
//!   the reason.

mod check;
mod command;
mod delta;
mod directory;
mod error;
mod jobs;
mod metrics;
mod notices;
mod planner;
mod recent_changes;
pub(crate) mod settings;
mod shipping;
mod signer;
mod status;
#[cfg(test)]
mod tests;
mod tiers;

pub use crate::lease::LeaseStatus;
pub use check::CheckError;
pub use command::{Command, NoCommand};
pub use directory::{check_set, explain_set};
pub use error::PublishError;
pub use metrics::publisher_metrics;
pub(crate) use notices::serve as serve_notices;
pub use notices::{NoticeCounters, NoticeState, SetNotices, notice_metrics};
pub use settings::{CheckConfig, NoticeServerConfig, PublishConfig, ShipConfig};
pub use shipping::{ShipCounts, ShipStatus, ship_metrics};
pub use status::{JobStatus, KeptStatus, PublishCounts, PublishStatus, SetStatus};

use crate::lease::{LeaseState, ProcessLease, this_process};
use handle_daemon::clock::now_unix_ms;
use handle_daemon::notice::PublicationNotice;
use handle_daemon::threads;
use handle_snapshot::SetPublisher;
use handle_snapshot::set::storage::{Storage, create_directory};
use handle_store::Store;
use jobs::JobOutput;
use planner::PublisherPlan;
use recent_changes::RecentChanges;
use shipping::{SetShipping, ShippingState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// Time between two attempts to publish changes that cannot be published yet, as during a dump of a
/// primary, and between two looks at what another process publishes of them.
const PENDING_INTERVAL: Duration = Duration::from_millis(20);
/// Time between two looks at the set of another process while no change is pending, and between two
/// of the status while publishing is held.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of queued commands.
const COMMANDS_MAX: usize = 16;
/// Minimum interval between two searches for files to remove.
const PRUNE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Checks the published set, and what publishing reads of other files: the key that signs sets, and
/// the credentials of the location to which they are shipped.
///
/// # Errors
/// When one of them cannot be used.
pub(crate) fn check_files(config: &PublishConfig) -> anyhow::Result<()> {
    let Some(directory) = &config.directory else { return Ok(()) };
    check_set(directory)?;
    signer::open(config)?;
    if !config.ship.url.is_empty() {
        shipping::open_route(directory, &config.ship)?;
    }
    Ok(())
}

/// A message to the publisher thread.
enum PublisherCommand {
    /// A command, and the channel for its result.
    Obey(Command, SyncSender<Result<String, PublishError>>),
    /// Other settings.
    Settings(Arc<PublishConfig>),
}

/// The publisher, in threads of its own. When dropped, it publishes the remaining changes and ends.
#[derive(Debug)]
pub struct StorePublisher {
    requests: SyncSender<PublisherCommand>,
    events: Arc<PublisherEvents>,
    shared: Arc<PublisherState>,
    thread: Mutex<Option<JoinHandle<()>>>,
    shipping: Option<SetShipping>,
    /// Dropped last, when nothing is published any more.
    lease: Option<ProcessLease>,
}

#[derive(Debug, Default)]
struct PublisherState {
    status: Mutex<PublishStatus>,
    status_changed: Condvar,
    stop: AtomicBool,
    /// Whether another process continues to publish.
    leaves: Arc<AtomicBool>,
    shipping: Option<Arc<ShippingState>>,
    /// The set that machines can fetch.
    notices: Arc<watch::Sender<PublicationNotice>>,
    changes: Arc<RecentChanges>,
}

impl StorePublisher {
    /// Locks the directory, and publishes there the records of `store` and all later changes. If
    /// other processes may use the store, the directory is shared with them, and published to while
    /// this process has the lease.
    ///
    /// # Errors
    /// When no directory is configured, it cannot be used, or another process publishes there.
    pub fn start(store: Arc<Store>, config: &PublishConfig) -> Result<Self, PublishError> {
        let dir = config.directory.as_deref();
        let dir = dir.ok_or(PublishError::Refused("`publish.directory` is not set"))?;
        create_directory(dir)?;
        let lease = config.lease().and_then(|length| {
            let holder = this_process();
            let host = holder.host.clone();
            Some((store.publish_lease(holder, length)?, host, length))
        });
        let mut publisher =
            if lease.is_some() { SetPublisher::open_shared(dir)? } else { SetPublisher::open(dir)? };
        if let Some(signer) = signer::open(config)? {
            publisher.sign_with(signer);
        }
        if lease.is_none() {
            check::clean(dir)?;
        }
        let config = Arc::new(config.clone());
        let changes = Arc::default();
        let leaves = Arc::<AtomicBool>::default();
        let engine = PublisherPlan::new(store.clone(), publisher, config.clone())?
            .noting(Arc::clone(&changes))
            .until(Arc::clone(&leaves));
        let (requests, inbox) = sync_channel(COMMANDS_MAX);
        let notices = Arc::new(watch::Sender::default());
        let machines = Arc::clone(&notices);
        let events = Arc::new(PublisherEvents::new(Arc::clone(&store)));
        let lease = lease
            .map(|(lease, host, length)| {
                let events = Arc::clone(&events);
                ProcessLease::start("publish", lease, host, length, move || events.raise())
            })
            .transpose()?;
        let lease_state = lease.as_ref().map(|lease| Arc::clone(&lease.state));
        let notify = move |notice| notify_machines(&machines, notice);
        let shipping = SetShipping::start(dir, &config.ship, lease_state.clone(), notify)?;
        let state = shipping.as_ref().map(|shipping| Arc::clone(&shipping.state));
        let shared = Arc::new(PublisherState {
            shipping: state,
            notices,
            changes,
            leaves,
            ..PublisherState::default()
        });
        shared.put(engine.status());
        let mut driver = PublisherThread::new(engine, store, config, inbox, shared.clone());
        driver.lease = lease_state;
        driver.events = Arc::clone(&events);
        let thread = threads::spawn("publish", || driver.run())?;
        Ok(Self { requests, events, shared, thread: Mutex::new(Some(thread)), shipping, lease })
    }

    /// Whether this process publishes, and not another one over the same database.
    #[must_use]
    pub fn has_lease(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.state.epoch().is_some())
    }

    /// The set that machines can fetch: the shipped one or, without shipping, the published one.
    #[must_use]
    pub fn notices(&self) -> SetNotices {
        SetNotices { newest: self.shared.notices.subscribe(), changes: Arc::clone(&self.shared.changes) }
    }

    /// The current state of shipping; `None` if no location for it is configured.
    #[must_use]
    pub fn ship_status(&self) -> Option<ShipStatus> {
        self.shipping.as_ref().map(|shipping| shipping.state.status())
    }

    /// The current state of the publisher.
    #[must_use]
    pub fn status(&self) -> PublishStatus {
        self.shared.lock().clone()
    }

    /// Handles a command of an operator, and returns a description of what was done.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn command(&self, command: Command) -> Result<String, PublishError> {
        let (sender, receiver) = sync_channel(1);
        self.send(PublisherCommand::Obey(command, sender))?;
        receiver.recv().unwrap_or(Err(PublishError::Stopped))
    }

    /// Puts other settings in force; jobs in progress keep the old ones.
    ///
    /// # Errors
    /// When the publisher thread has ended.
    pub fn reconfigure(&self, config: &PublishConfig) -> Result<(), PublishError> {
        self.send(PublisherCommand::Settings(Arc::new(config.clone())))?;
        if let Some(shipping) = &self.shipping {
            shipping.state.reconfigure(&config.ship);
        }
        Ok(())
    }

    fn send(&self, request: PublisherCommand) -> Result<(), PublishError> {
        self.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => PublishError::Refused("too many commands wait already"),
            TrySendError::Disconnected(_) => PublishError::Stopped,
        })?;
        self.events.raise();
        Ok(())
    }

    /// Whether the publisher has ended, which without [`stop`](Self::stop) is a bug.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends as soon as possible, without a last publication, check or shipment: the process that
    /// continues publishes the remaining changes from the store.
    pub fn leave(&self) {
        self.shared.leaves.store(true, Ordering::Relaxed);
        self.shipping.iter().for_each(|shipping| shipping.state.leave());
        self.stop();
    }

    /// Publishes the remaining changes, ships the last set, releases the lease, and ends.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.events.raise();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread has already been logged where it happened.
            let _ = thread.join();
        }
        if let Some(shipping) = &self.shipping {
            shipping.stop();
        }
        if let Some(lease) = &self.lease {
            lease.stop();
        }
    }

    /// Waits until a transaction is visible in the published set, for at most `timeout`; returns
    /// whether it is.
    #[must_use]
    pub fn wait_for(&self, transaction: u64, timeout: Duration) -> bool {
        let lacks_it = |status: &mut PublishStatus| {
            let shown = status.set.as_ref().and_then(|set| set.transaction);
            shown.is_none_or(|shown| shown < transaction)
        };
        let waited = self.shared.status_changed.wait_timeout_while(self.shared.lock(), timeout, lacks_it);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for StorePublisher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl PublisherState {
    fn lock(&self) -> std::sync::MutexGuard<'_, PublishStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the status, and notifies shipping or, without it, machines of a new set.
    fn put(&self, status: PublishStatus) {
        let notice_of = |status: &PublishStatus| {
            let set = status.set.as_ref()?;
            Some(PublicationNotice { epoch: set.epoch, generation: set.generation })
        };
        let (before, after) = {
            let mut known = self.lock();
            let before = notice_of(&known);
            *known = status;
            self.status_changed.notify_all();
            (before, notice_of(&known))
        };
        match (&self.shipping, after.filter(|_| before != after)) {
            (Some(shipping), Some(notice)) => shipping.published(notice.generation),
            (None, Some(notice)) => notify_machines(&self.notices, notice),
            (_, None) => {}
        }
    }
}

/// Notifies machines of a set, unless they know it.
fn notify_machines(notices: &watch::Sender<PublicationNotice>, notice: PublicationNotice) {
    notices.send_if_modified(|known| std::mem::replace(known, notice) != notice);
}

/// What wakes the publisher thread besides commits: a command, the end of a job, a change of the
/// lease, the stop.
#[derive(Debug)]
struct PublisherEvents {
    store: Arc<Store>,
    has_event: AtomicBool,
}

impl PublisherEvents {
    const fn new(store: Arc<Store>) -> Self {
        Self { store, has_event: AtomicBool::new(false) }
    }

    fn raise(&self) {
        self.has_event.store(true, Ordering::Release);
        self.store.wake();
    }

    /// Waits for an event or a commit after transaction `past`, until `deadline`.
    fn wait(&self, past: u64, deadline: Instant) {
        let timeout = deadline.saturating_duration_since(Instant::now());
        self.store.wait_past_or(past, || self.has_event.load(Ordering::Acquire), timeout);
    }
}

/// Notifies the publisher thread of the end of a job, also by a panic.
struct JobEnd(Arc<PublisherEvents>, Arc<AtomicBool>);

impl Drop for JobEnd {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Release);
        self.0.raise();
    }
}

/// What the publisher thread waits for if there is no event.
struct IdleWait {
    /// A commit after this transaction.
    past: u64,
    deadline: Instant,
}

/// A running job.
struct JobWorker {
    number: u64,
    has_ended: Arc<AtomicBool>,
    thread: JoinHandle<Result<JobOutput, PublishError>>,
}

/// The last error of one kind of work, until that work succeeds again.
#[derive(Default)]
struct LastError(Option<(String, u64)>);

/// Drives the plan: waits for changes, and hands jobs to threads.
struct PublisherThread<S: Storage> {
    engine: PublisherPlan<S>,
    store: Arc<Store>,
    config: Arc<PublishConfig>,
    inbox: Receiver<PublisherCommand>,
    shared: Arc<PublisherState>,
    events: Arc<PublisherEvents>,
    workers: Vec<JobWorker>,
    published_at: Option<Instant>,
    delta_trouble: LastError,
    job_trouble: LastError,
    /// After a failure, no attempt is made before this time.
    retry_at: Option<Instant>,
    prune_at: Instant,
    /// The time of the newest statement about the set.
    stated_at: Option<Instant>,
    statement_trouble: LastError,
    /// `None` if no other process can publish to the directory.
    lease: Option<Arc<LeaseState>>,
    /// The epoch with which this process has taken over.
    led_epoch: Option<u64>,
}

impl<S: Storage + 'static> PublisherThread<S> {
    fn new(
        engine: PublisherPlan<S>,
        store: Arc<Store>,
        config: Arc<PublishConfig>,
        inbox: Receiver<PublisherCommand>,
        shared: Arc<PublisherState>,
    ) -> Self {
        // Readers that opened a MANIFEST before this start get the grace time too.
        let prune_at = Instant::now() + config.grace();
        Self {
            engine,
            events: Arc::new(PublisherEvents::new(Arc::clone(&store))),
            store,
            config,
            inbox,
            shared,
            workers: Vec::new(),
            published_at: None,
            delta_trouble: LastError::default(),
            job_trouble: LastError::default(),
            retry_at: None,
            prune_at,
            stated_at: None,
            statement_trouble: LastError::default(),
            lease: None,
            led_epoch: None,
        }
    }

    fn run(mut self) {
        loop {
            // Reset before everything that it announces is read.
            self.events.has_event.swap(false, Ordering::AcqRel);
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            let idle = self.turn();
            self.events.wait(idle.past, idle.deadline);
        }
        self.engine.stop();
        for worker in std::mem::take(&mut self.workers) {
            self.finish(worker);
        }
        while !self.shared.leaves.load(Ordering::Relaxed) && self.leads() && self.publish() {}
    }

    /// Whether this process may publish now. If it may from now on, it takes over first.
    fn leads(&mut self) -> bool {
        let Some(lease) = self.lease.clone() else { return true };
        let epoch = lease.epoch();
        if epoch.is_some() && epoch == self.led_epoch {
            return true;
        }
        if let Some(led) = self.led_epoch.take() {
            tracing::warn!(epoch = led, "the lease of the publisher is over; another process may take over");
            self.engine.stop();
            (self.delta_trouble, self.job_trouble) = Default::default();
            self.retry_at = None;
        }
        // Jobs of the last turn end first.
        let Some(epoch) = epoch.filter(|_| self.workers.is_empty()) else {
            self.follow(&lease);
            return false;
        };
        let is_begun = self.engine.take_over(epoch, now_unix_ms());
        match self.note(is_begun, true) {
            Some(true) => {
                tracing::info!(epoch, "this process publishes from now on");
                (self.led_epoch, self.retry_at, self.stated_at) = (Some(epoch), None, None);
                true
            }
            Some(false) => {
                self.follow(&lease);
                lease.give_up();
                false
            }
            // Another process may be able to.
            None => {
                lease.give_up();
                false
            }
        }
    }

    /// Reads which set another process has published.
    fn follow(&mut self, lease: &LeaseState) {
        match self.engine.follow() {
            Ok(epoch) => lease.note_used(epoch),
            // It is reported once this process has to publish.
            Err(error) => tracing::debug!(%error, "cannot read the published set"),
        }
    }

    /// Does what is due now; returns what to wait for.
    fn turn(&mut self) -> IdleWait {
        self.handle_commands();
        while let Some(at) = self.workers.iter().position(|worker| worker.has_ended.load(Ordering::Acquire)) {
            let worker = self.workers.swap_remove(at);
            self.finish(worker);
            self.notify();
        }
        if let Some(deadline) = self.retry_at.filter(|at| Instant::now() < *at) {
            return IdleWait { past: u64::MAX, deadline };
        }
        self.retry_at = None;
        let last = self.store.last_id();
        if !self.leads() {
            self.notify();
            let (past, interval) = match self.is_pending() {
                // Not sooner after each of many commits.
                true => (u64::MAX, PENDING_INTERVAL),
                false => (last, FOLLOW_INTERVAL),
            };
            return IdleWait { past, deadline: Instant::now() + interval };
        }
        self.start_jobs();
        if Instant::now() >= self.prune_at {
            self.prune_at = Instant::now() + (self.config.grace() / 4).max(PRUNE_INTERVAL_MIN);
            let pruned = self.engine.prune(SystemTime::now());
            self.note(pruned, false);
        }
        let mut idle = self.publish_when_due(last);
        // After publishing: at a start, the published set may lack changes of days.
        self.renew_statement();
        self.notify();
        let statement_at =
            self.config.heartbeat().filter(|_| self.delta_trouble.0.is_none()).zip(self.stated_at);
        let statement_at = statement_at.map(|(interval, at)| at + interval);
        let lease_end = self.lease.as_ref().and_then(|lease| lease.ends_at());
        for other in [Some(self.prune_at), statement_at, lease_end, self.retry_at].into_iter().flatten() {
            idle.deadline = idle.deadline.min(other);
        }
        idle
    }

    fn handle_commands(&mut self) {
        while let Ok(request) = self.inbox.try_recv() {
            let (command, notify) = match request {
                PublisherCommand::Obey(command, notify) => (command, notify),
                PublisherCommand::Settings(config) => {
                    self.engine.reconfigure(Arc::clone(&config));
                    self.config = config;
                    continue;
                }
            };
            let done = match self.leads() {
                true => self.handle_command(command),
                false => Err(PublishError::Refused(
                    "another process publishes, as `lease` in the status says: give the command there",
                )),
            };
            // The status is updated first, for the next reader.
            self.notify();
            // The receiver is gone if the caller no longer waits.
            let _ = notify.send(done);
        }
    }

    fn start_jobs(&mut self) {
        while let Some(job) = self.engine.due(now_unix_ms()) {
            let (number, has_ended) = (job.number, Arc::default());
            let end = JobEnd(Arc::clone(&self.events), Arc::clone(&has_ended));
            let run = move || {
                let _end = end;
                job.run()
            };
            match std::thread::Builder::new().name("merge".to_owned()).spawn(run) {
                Ok(thread) => self.workers.push(JobWorker { number, has_ended, thread }),
                Err(error) => {
                    let finished = self.engine.finish(number, Err(error.into()), now_unix_ms());
                    self.note(finished, false);
                    break;
                }
            }
        }
    }

    /// Whether changes wait that should be in the published set.
    fn is_pending(&self) -> bool {
        let status = self.shared.lock();
        status.held.is_none() && (status.pending > 0 || status.rebuild.is_some())
    }

    /// Makes a new statement about the set, if it is due and publishing has not failed.
    fn renew_statement(&mut self) {
        let Some(interval) = self.config.heartbeat() else { return };
        let is_due = self.stated_at.is_none_or(|at| at.elapsed() >= interval);
        if is_due && self.delta_trouble.0.is_none() {
            self.stated_at = Some(Instant::now());
            let Err(error) = self.engine.renew_statement(now_unix_ms()) else {
                self.statement_trouble.0 = None;
                return;
            };
            let text = error.to_string();
            // Logged once, not for each attempt.
            if self.statement_trouble.0.as_ref().is_none_or(|(known, _)| *known != text) {
                tracing::error!(%error, "cannot state that the published set is current");
                self.statement_trouble.0 = Some((text, now_unix_ms()));
            }
            self.engine.count_failure(&error);
        }
    }

    /// Publishes the changes up to `last` and those since, unless others may follow shortly.
    /// Returns what to wait for.
    fn publish_when_due(&mut self, last: u64) -> IdleWait {
        let position = self.engine.position();
        if let Some(published) = position {
            let since = self.published_at.map_or(Duration::MAX, |at| at.elapsed());
            let left = self.config.interval().saturating_sub(since);
            if last <= published {
                // A rebuild may wait for the end of a dump, which no commit announces.
                let is_waiting = self.is_pending() && self.workers.is_empty();
                let deadline = if is_waiting { Instant::now() + PENDING_INTERVAL } else { self.prune_at };
                return IdleWait { past: published, deadline };
            }
            if last - published < self.config.changes_max && !left.is_zero() {
                // One commit before the one that makes so many changes.
                let past = published + self.config.changes_max - 1;
                return IdleWait { past, deadline: Instant::now() + left };
            }
        }
        // Without a position, the attempt finds out whether the set fits the store.
        if self.publish() {
            // A merge may be due.
            return IdleWait { past: last, deadline: Instant::now() };
        }
        // While publishing is held, only the status follows the store.
        let interval = if self.is_pending() { PENDING_INTERVAL } else { FOLLOW_INTERVAL };
        IdleWait { past: u64::MAX, deadline: Instant::now() + interval }
    }

    /// Publishes the changes; returns whether there were any.
    fn publish(&mut self) -> bool {
        let published = self.engine.publish(now_unix_ms());
        if matches!(published, Err(PublishError::Stopped)) {
            // Another process continues.
            return false;
        }
        let is_published = self.note(published, true) == Some(true);
        if is_published {
            self.published_at = Some(Instant::now());
        }
        self.notify();
        is_published
    }

    fn finish(&mut self, worker: JobWorker) {
        let made = match worker.thread.join() {
            Ok(made) => made,
            // A bug, already logged where it happened; it stops this thread too.
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // What another process publishes now needs no layers of this one.
        let is_over = self.lease.is_some() && self.led_epoch.is_none();
        let made = if is_over { Err(PublishError::Stopped) } else { made };
        let finished = self.engine.finish(worker.number, made, now_unix_ms());
        if !matches!(finished, Err(PublishError::Stopped)) {
            self.note(finished, false);
        }
    }

    fn handle_command(&mut self, command: Command) -> Result<String, PublishError> {
        self.retry_at = None;
        match command {
            Command::Hold(why) => self.engine.hold(&why).map(|()| "held".to_owned()),
            Command::Resume => self.engine.resume().map(|()| "going on".to_owned()),
            Command::RollBack(to) => self
                .engine
                .roll_back(to, now_unix_ms())
                .map(|to| format!("rolled back to generation {to}, and held")),
            Command::Rebuild => {
                self.engine.rebuild();
                Ok("rebuilding".to_owned())
            }
            Command::Merge => {
                self.engine.merge();
                Ok("merging".to_owned())
            }
            Command::Keep => self.engine.keep(now_unix_ms()).map(|()| "kept".to_owned()),
        }
    }

    /// Records a failure, and delays the next attempt.
    fn note<T>(&mut self, result: Result<T, PublishError>, is_delta: bool) -> Option<T> {
        let trouble = if is_delta { &mut self.delta_trouble } else { &mut self.job_trouble };
        match result {
            Ok(value) => {
                trouble.0 = None;
                Some(value)
            }
            Err(error) => {
                let text = error.to_string();
                // Logged once, not for each attempt.
                if trouble.0.as_ref().is_none_or(|(known, _)| *known != text) {
                    tracing::error!(%error, "publishing failed; the published set stays");
                    trouble.0 = Some((text, now_unix_ms()));
                }
                self.engine.count_failure(&error);
                self.retry_at = Some(Instant::now() + self.config.retry());
                None
            }
        }
    }

    fn notify(&self) {
        let mut status = self.engine.status();
        status.lease = self.lease.as_ref().map(|lease| lease.status());
        if let Some((error, at)) = self
            .delta_trouble
            .0
            .as_ref()
            .or(self.job_trouble.0.as_ref())
            .or(self.statement_trouble.0.as_ref())
        {
            status.last_error = Some(error.clone());
            status.last_error_unix_ms = Some(*at);
        }
        self.shared.put(status);
    }
}
