//! Ships each published set to a directory or object storage, in a thread of its own.
//!
//! Publishing does not wait for it: a set that is replaced before it is shipped is skipped. A
//! failed attempt is repeated after a pause that grows. If another publisher has taken over,
//! shipping stops until the process is started again; publishing here goes on.

use super::PublishError;
use super::settings::ShipConfig;
use crate::lease::LeaseState;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::notice::PublicationNotice;
use handle_daemon::threads;
use handle_fleet::follow::{LOOK_INTERVAL, ShipTurn};
use handle_fleet::{FleetUrl, ShipError, ShipFollower, ShipOutcome, ShipRoute, location};
use serde::Serialize;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most time for shipping the last set when the process stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Most time for what is being shipped when another process continues, whose clients wait. That
/// process ships it again.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of shipping, as `status` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShipStatus {
    /// Where sets are shipped.
    pub url: String,
    /// Epoch of the shipped set; 0 before the first.
    pub epoch: u64,
    /// Generation of the shipped set; 0 before the first.
    pub generation: u64,
    /// Time for which a published set has not been shipped; 0 if all are.
    pub behind_ms: u64,
    /// The error of the last attempt, if it failed.
    pub last_error: Option<String>,
    /// When this error first occurred.
    pub last_error_unix_ms: Option<u64>,
    /// Whether shipping has stopped because of this error.
    pub stopped: bool,
    /// Counts since the start of the process.
    pub counts: ShipCounts,
}

/// What shipping has done since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShipCounts {
    /// Sets that were shipped.
    pub sets: u64,
    /// Bytes of the layers that were uploaded.
    pub bytes: u64,
    /// Statements that were shipped.
    pub statements: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Objects that were removed.
    pub removed: u64,
}

handle_daemon::metrics! {
    /// Metrics of shipping, read from its status.
    pub fn ship_metrics<'s>(ShipStatus), "handle_admin_ship_" {
        /// Epoch of the shipped set; 0 before the first.
        gauge epoch = |status| status.epoch;
        /// Generation of the shipped set; 0 before the first.
        gauge generation = |status| status.generation;
        /// Time for which a published set has not been shipped, in seconds; 0 if all are.
        gauge behind_seconds = |status| status.behind_ms as f64 / 1000.0;
        /// 1 while the last attempt to ship has failed.
        gauge failing = |status| status.last_error.is_some();
        /// 1 after shipping has stopped: another publisher has taken over, or the store ignores
        /// preconditions.
        gauge stopped = |status| status.stopped;
        /// Sets that were shipped.
        counter sets = |status| status.counts.sets;
        /// Bytes of the layers that were uploaded.
        counter bytes = |status| status.counts.bytes;
        /// Signed statements that were shipped.
        counter statements = |status| status.counts.statements;
        /// Attempts that failed.
        counter failures = |status| status.counts.failures;
        /// Objects that were removed after their grace time.
        counter removed = |status| status.counts.removed;
    }
}

/// What the thread shares with others.
#[derive(Debug)]
struct ShippingInner {
    status: ShipStatus,
    config: ShipConfig,
    /// Generation of the published set.
    published: u64,
    /// Since when a published set has not been shipped.
    behind_since: Option<Instant>,
    is_woken: bool,
    stops: bool,
    /// Whether another process continues, so that nothing more is shipped.
    leaves: bool,
    has_ended: bool,
}

/// The state of shipping, and how its thread is woken.
#[derive(Debug)]
pub(super) struct ShippingState {
    inner: Mutex<ShippingInner>,
    wake: Condvar,
}

impl ShippingState {
    fn lock(&self) -> MutexGuard<'_, ShippingInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of shipping.
    pub(super) fn status(&self) -> ShipStatus {
        let inner = self.lock();
        let behind = inner.behind_since.map_or(Duration::ZERO, |since| since.elapsed());
        ShipStatus {
            behind_ms: u64::try_from(behind.as_millis()).unwrap_or(u64::MAX),
            ..inner.status.clone()
        }
    }

    /// Notifies the thread that a set was published.
    pub(super) fn published(&self, generation: u64) {
        let mut inner = self.lock();
        inner.published = generation;
        if inner.status.generation != generation {
            inner.behind_since.get_or_insert_with(Instant::now);
        }
        inner.is_woken = true;
        self.wake.notify_all();
    }

    /// Ships nothing more, because another process continues.
    pub(super) fn leave(&self) {
        self.lock().leaves = true;
    }

    /// Puts other settings in force.
    pub(super) fn reconfigure(&self, config: &ShipConfig) {
        self.lock().config = config.clone();
        self.wake.notify_all();
    }

    /// Waits until `timeout` is over, shipping is to stop or, with `wakes_for_sets`, a set is
    /// published.
    fn wait(&self, timeout: Duration, wakes_for_sets: bool) {
        let wakes = |inner: &mut ShippingInner| !(inner.stops || wakes_for_sets && inner.is_woken);
        let (mut inner, _) =
            self.wake.wait_timeout_while(self.lock(), timeout, wakes).unwrap_or_else(PoisonError::into_inner);
        inner.is_woken = false;
    }

    fn note_turn(&self, turn: ShipTurn, shipped: Option<PublicationNotice>) {
        let mut inner = self.lock();
        if inner.status.last_error.take().is_some() {
            tracing::info!("shipping works again");
        }
        inner.status.last_error_unix_ms = None;
        let counts = &mut inner.status.counts;
        if let Some(ShipOutcome::Shipped(bytes)) = turn.outcome {
            counts.sets += 1;
            counts.bytes += bytes;
        }
        counts.statements += u64::from(turn.has_stated);
        counts.removed += turn.removed as u64;
        let Some(PublicationNotice { epoch, generation }) = shipped else { return };
        (inner.status.epoch, inner.status.generation) = (epoch, generation);
        if generation >= inner.published {
            inner.behind_since = None;
        } else if turn.outcome.is_some() {
            // The next set was published meanwhile.
            inner.behind_since = Some(Instant::now());
        }
    }

    fn note_error(&self, error: &ShipError) {
        let (text, mut inner) = (error.to_string(), self.lock());
        inner.status.counts.failures += 1;
        inner.status.stopped = error.is_final();
        // Logged once, not for each attempt.
        if inner.status.last_error.as_ref() != Some(&text) {
            tracing::error!(%error, stopped = error.is_final(), "cannot ship the published set");
            inner.status.last_error_unix_ms = Some(now_unix_ms());
            inner.status.last_error = Some(text);
        }
    }
}

/// The thread that ships. When dropped, it ships the last set and ends.
#[derive(Debug)]
pub(super) struct SetShipping {
    pub(super) state: Arc<ShippingState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SetShipping {
    /// Ships the sets of `dir`; `None` if no location is configured. No request is made here.
    ///
    /// # Errors
    /// When the location or its credentials cannot be used.
    pub(super) fn start(
        dir: &Path,
        config: &ShipConfig,
        lease: Option<Arc<LeaseState>>,
        notify: impl Fn(PublicationNotice) + Send + 'static,
    ) -> Result<Option<Self>, PublishError> {
        if config.url.is_empty() {
            return Ok(None);
        }
        let route = open_route(dir, config)?;
        let inner = ShippingInner {
            status: ShipStatus { url: config.url.clone(), ..ShipStatus::default() },
            config: config.clone(),
            published: 0,
            behind_since: None,
            is_woken: false,
            stops: false,
            leaves: false,
            has_ended: false,
        };
        let state = Arc::new(ShippingState { inner: Mutex::new(inner), wake: Condvar::new() });
        let turns = ShippingTurns { route, lease };
        let shared = Arc::clone(&state);
        let thread = threads::spawn("ship", move || {
            turns.run(&shared, &notify);
            shared.lock().has_ended = true;
            shared.wake.notify_all();
        })?;
        Ok(Some(Self { state, thread: Mutex::new(Some(thread)) }))
    }

    /// Ships the last set, unless shipping fails at the moment, and ends.
    pub(super) fn stop(&self) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let mut inner = self.state.lock();
        inner.stops = true;
        self.state.wake.notify_all();
        let timeout = if inner.leaves { LEAVE_TIMEOUT } else { STOP_TIMEOUT };
        let waits = |inner: &mut ShippingInner| !inner.has_ended && !thread.is_finished();
        let (inner, _) =
            self.state.wake.wait_timeout_while(inner, timeout, waits).unwrap_or_else(PoisonError::into_inner);
        let has_ended = inner.has_ended;
        drop(inner);
        if has_ended || thread.is_finished() {
            // A panic of the thread has already been logged where it happened.
            let _ = thread.join();
        } else {
            tracing::warn!("the last set is not shipped: the store does not answer");
        }
    }
}

/// The way to the configured location. No request is made here.
///
/// # Errors
/// When the location or its credentials cannot be used.
pub(super) fn open_route(dir: &Path, config: &ShipConfig) -> Result<ShipRoute, PublishError> {
    let open = || {
        let url: FleetUrl = config.url.parse()?;
        let store = location::open(&url, &config.storage)?;
        Ok(ShipRoute { dir: dir.to_owned(), store, url: url.to_string() })
    };
    open().map_err(PublishError::Location)
}

impl Drop for SetShipping {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What ships, while this process has the lease, if there is one.
struct ShippingTurns {
    route: ShipRoute,
    lease: Option<Arc<LeaseState>>,
}

impl ShippingTurns {
    /// The epoch of this process, while it may ship; 0 without a lease.
    fn epoch(&self) -> Option<u64> {
        self.lease.as_ref().map_or(Some(0), |lease| lease.epoch())
    }

    /// Ships until the process stops.
    fn run(self, state: &ShippingState, notify: &dyn Fn(PublicationNotice)) {
        loop {
            match self.epoch() {
                Some(epoch) => self.ship(epoch, state, notify),
                None => state.wait(LOOK_INTERVAL, false),
            }
            if state.lock().stops {
                return;
            }
        }
    }

    /// Ships until the process stops, or its lease is over.
    fn ship(&self, epoch: u64, state: &ShippingState, notify: &dyn Fn(PublicationNotice)) {
        // Another process may have shipped meanwhile, so nothing is known of the location.
        let limits = state.lock().config.limits();
        let mut follower = ShipFollower::new(self.route.clone(), limits);
        let mut failures = 0_u32;
        state.lock().status.stopped = false;
        while self.epoch() == Some(epoch) {
            let (stops, leaves, config) = {
                let inner = state.lock();
                (inner.stops, inner.leaves, inner.config.clone())
            };
            if leaves || stops && failures > 0 {
                return;
            }
            follower.set_limits(config.limits());
            match follower.turn() {
                Ok(turn) => {
                    failures = 0;
                    let shipped = follower.shipped();
                    let shipped =
                        shipped.map(|set| PublicationNotice { epoch: set.epoch, generation: set.generation });
                    state.note_turn(turn, shipped);
                    if let (Some(shipped), Some(_)) = (shipped, turn.outcome) {
                        notify(shipped);
                    } else if !stops {
                        state.wait(LOOK_INTERVAL, true);
                    }
                }
                Err(error) => {
                    state.note_error(&error);
                    failures = failures.saturating_add(1);
                    self.pause(epoch, &error, config.pause(failures), state);
                }
            }
            if stops {
                return;
            }
        }
    }

    /// Waits after a failed attempt. If another publisher has taken over, nothing is shipped any
    /// more with this epoch.
    fn pause(&self, epoch: u64, error: &ShipError, pause: Duration, state: &ShippingState) {
        if !error.is_final() {
            state.wait(pause, false);
        } else if self.lease.is_none() {
            state.wait(Duration::MAX, false);
        }
        while error.is_final() && self.epoch() == Some(epoch) && !state.lock().stops {
            state.wait(LOOK_INTERVAL, false);
        }
    }
}
