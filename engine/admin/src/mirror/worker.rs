//! Follows one server of a primary: requests transactions, and all records when it is asked to.

use super::apply::{BatchLimits, StreamApplier};
use super::error::MirrorError;
use super::homed::{self, HOMED_ONLY, HomedComparison};
use super::notices::wait_for_notice;
use super::position::MirrorDumpStep;
use super::primary::{PrimaryServer, RequestLimits};
use super::status::MirrorSourceState;
use crate::lease::LeaseState;
use handle_client::replication::StreamEvent;
use handle_client::replication::connection::ReceiveError;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::event::EventDescriptor;
use handle_daemon::shutdown::Shutdown;
use handle_proto::Handle;
use handle_proto::wire::Request;
use handle_proto::wire::replication::StartingPoint;
use handle_proto::wire::replication_stream::DumpItem;
use handle_store::{Store, StoreError};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limits and times of all workers.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Limits on a batch.
    pub batch: BatchLimits,
    /// Limits on each request and its stream.
    pub request: RequestLimits,
    /// Time between two requests while transactions arrive, if it is shorter than the usual one.
    pub busy_interval: Duration,
    /// Longest pause after a failure.
    pub retry_max: Duration,
}

/// Follows one server of a primary.
#[derive(Debug)]
pub struct MirrorWorker {
    server: Arc<PrimaryServer>,
    limits: WorkerLimits,
    state: Arc<MirrorSourceState>,
    applier: StreamApplier,
    /// The address that is asked, by its position in the list.
    address_at: usize,
    /// Attempts to continue the present dump that the primary has refused.
    refused_dumps: u32,
    /// Time at which transactions last arrived.
    last_news: Option<Instant>,
    /// Which of several processes over one database follows; `None` if there is only this one.
    lease: Option<Arc<LeaseState>>,
    /// The epoch with which this process follows.
    led_epoch: Option<u64>,
    /// When this process, while it waits, last looked how far the other one is.
    looked: Option<Instant>,
    /// Wakes the worker when the primary has published changes.
    noticed: Option<Arc<EventDescriptor>>,
    homed: HomedComparison,
}

/// Pause between two looks of a process that waits for the lease.
const LEASE_PAUSE: Duration = Duration::from_millis(100);

impl MirrorWorker {
    /// Reads the position from the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) fn open(
        server: Arc<PrimaryServer>,
        store: &Arc<Store>,
        limits: WorkerLimits,
        state: Arc<MirrorSourceState>,
        lease: Option<Arc<LeaseState>>,
    ) -> Result<Self, StoreError> {
        let scope = Arc::clone(&server.scope);
        let store = Arc::clone(store);
        let applier = StreamApplier::open(store, &server.name, scope, limits.batch, Arc::clone(&state))?;
        Ok(Self {
            server,
            limits,
            state,
            applier,
            address_at: 0,
            refused_dumps: 0,
            last_news: None,
            lease,
            led_epoch: None,
            looked: None,
            noticed: None,
            homed: HomedComparison::default(),
        })
    }

    /// Lets the worker request transactions when `waker` wakes it.
    pub fn wait_for(&mut self, noticed: Arc<EventDescriptor>) {
        self.noticed = Some(noticed);
    }

    /// Whether this primary is followed: the mirror has not been promoted.
    #[must_use]
    pub const fn is_followed(&self) -> bool {
        self.applier.position().is_followed()
    }

    /// Follows the primary until the process drains or the mirror is promoted.
    pub fn run(mut self, shutdown: &Shutdown) {
        let mut failures = 0;
        while !shutdown.is_draining() {
            let (asked_unix_ms, asked) = (now_unix_ms(), Instant::now());
            let pause =
                match self.lead().and_then(|leads| if leads { self.turn().map(Some) } else { Ok(None) }) {
                    Ok(None) => LEASE_PAUSE,
                    Ok(Some(true)) => Duration::ZERO,
                    Ok(Some(false)) => {
                        if failures > 0 {
                            tracing::info!(primary = self.server.name, "the primary answers again");
                        }
                        failures = 0;
                        self.state.note_success(asked_unix_ms, asked);
                        self.pause()
                    }
                    Err(MirrorError::Stopped) => return self.state.note_promoted(),
                    Err(MirrorError::Superseded) => {
                        tracing::info!(primary = self.server.name, "another process follows the primary");
                        self.led_epoch = None;
                        LEASE_PAUSE
                    }
                    Err(error) => {
                        if self.state.note_error(&error) {
                            tracing::warn!(primary = self.server.name, %error, "cannot follow the primary");
                        }
                        let is_false = matches!(error, MirrorError::Order(_) | MirrorError::Replayed { .. });
                        let undone = if is_false { self.applier.reject() } else { self.applier.abandon() };
                        if let Err(error) = undone {
                            tracing::error!(%error, "the mirror cannot read its store");
                        }
                        self.address_at = (self.address_at + 1) % self.server.addresses.len();
                        failures += 1;
                        self.retry_pause(failures)
                    }
                };
            // A primary that fails is not asked sooner because it sends notices.
            match self.noticed.as_ref().filter(|_| failures == 0) {
                _ if pause.is_zero() => {}
                Some(noticed) => wait_for_notice(noticed, shutdown, pause, asked + self.limits.busy_interval),
                None => shutdown.poll(&mut [], Some(pause)),
            }
        }
    }

    /// Whether this process follows now. The one that begins to goes on where another one was.
    fn lead(&mut self) -> Result<bool, MirrorError> {
        let Some(lease) = &self.lease else { return Ok(true) };
        lease.note_used(self.applier.position().epoch);
        let epoch = lease.epoch();
        match epoch {
            Some(_) if epoch == self.led_epoch => {}
            Some(epoch) => {
                self.applier.take_over(epoch)?;
                self.led_epoch = Some(epoch);
                tracing::info!(primary = self.server.name, epoch, "following the primary");
            }
            None => {
                self.led_epoch = None;
                if self.looked.is_none_or(|at| at.elapsed() >= self.server.interval) {
                    self.looked = Some(Instant::now());
                    self.applier.abandon()?;
                    if !self.is_followed() {
                        return Err(MirrorError::Stopped);
                    }
                    self.state.note_waiting(self.applier.position());
                }
            }
        }
        Ok(self.led_epoch.is_some())
    }

    /// The pause after a success: a short one soon after transactions, since more may follow.
    fn pause(&self) -> Duration {
        let interval = self.server.interval;
        let is_busy = self.last_news.is_some_and(|at| at.elapsed() < interval);
        if is_busy { interval.min(self.limits.busy_interval) } else { interval }
    }

    /// The pause after this many failures in a row: it doubles up to a bound, and varies, so that
    /// many mirrors do not ask at the same time.
    fn retry_pause(&self, failures: u32) -> Duration {
        let doubled = self.server.interval.saturating_mul(1 << (failures - 1).min(20));
        doubled.min(self.limits.retry_max).mul_f64(rand::random_range(0.75..=1.0))
    }

    /// Makes one request, or a step at the end of a dump; whether the next is due at once.
    fn turn(&mut self) -> Result<bool, MirrorError> {
        let position = self.applier.position();
        match position.dump.as_ref().map(|dump| &dump.step) {
            Some(MirrorDumpStep::Receiving) => self.receive_dump().map(|()| true),
            Some(_) => {
                self.applier.finish_dump()?;
                Ok(true)
            }
            None if position.needs_dump => {
                tracing::info!(primary = self.server.name, "requesting all records");
                self.applier.begin_dump()?;
                self.refused_dumps = 0;
                Ok(true)
            }
            None => {
                let needs_dump = self.receive_transactions()?;
                if self.applier.take_homing() {
                    self.homed.set_due();
                }
                if !needs_dump && self.homed.is_due(Instant::now()) {
                    self.compare_homed()?;
                }
                Ok(needs_dump)
            }
        }
    }

    /// Asks the primary for its homed prefixes, and compares them with those here. A primary that
    /// does not send them is followed nevertheless.
    fn compare_homed(&mut self) -> Result<(), MirrorError> {
        let address = self.server.addresses[self.address_at];
        let (scope, control) = (&self.server.scope, &self.state.control);
        let mut at_primary = BTreeSet::new();
        let take = |event: StreamEvent<'_>| {
            if let StreamEvent::Dump(DumpItem::Homed(record)) = event {
                at_primary.extend(scope.homed_prefix(record));
            }
            Ok(())
        };
        let request = self.server.dump(Some(HOMED_ONLY));
        match self.server.receive(address, &request, self.limits.request, control, take) {
            Err(_) if control.is_stopped() => return Err(MirrorError::Stopped),
            Err(error) => {
                tracing::warn!(primary = self.server.name, %error, "cannot compare homed prefixes");
                self.homed.note_failure(Instant::now());
                return Ok(());
            }
            Ok(()) => {}
        }
        let found = homed::differences(&at_primary, &self.applier.homed()?, scope);
        if let Some(different) = self.homed.note(found, Instant::now())
            && self.state.note_homed(&different)
        {
            let prefixes: Vec<_> = different.iter().map(|prefix| Handle(prefix).to_string()).collect();
            tracing::error!(
                primary = self.server.name,
                prefixes = prefixes.join(", "),
                "prefixes are homed here or at the primary, and not at both"
            );
        }
        Ok(())
    }

    /// Receives the transactions after the last one; whether a dump is necessary.
    fn receive_transactions(&mut self) -> Result<bool, MirrorError> {
        let last_id = self.applier.position().last_id;
        let request = self.server.transactions_after(last_id, self.applier.last_query_unix_ms());
        self.receive(&request)?;
        self.applier.end_transaction_stream()?;
        if self.applier.position().last_id != last_id {
            self.last_news = Some(Instant::now());
        }
        Ok(self.applier.position().needs_dump)
    }

    /// Receives all records, or those after the last item of an interrupted dump.
    fn receive_dump(&mut self) -> Result<(), MirrorError> {
        let dump = self.applier.position().dump.clone().unwrap_or_default();
        // Without the transaction that follows the dump, it begins again.
        let start = dump.after.as_ref().filter(|_| dump.source.is_some());
        let start = start.map(|(kind, item)| StartingPoint { item, kind: *kind });
        match self.receive(&self.server.dump(start)) {
            Err(MirrorError::Refused(..)) if start.is_some() && self.refused_dumps >= DUMP_REFUSALS_MAX => {
                // It may be the starting point that is refused.
                self.applier.begin_dump()?;
                self.refused_dumps = 0;
                return Ok(());
            }
            Err(error @ MirrorError::Refused(..)) => {
                self.refused_dumps += 1;
                return Err(error);
            }
            received => received?,
        }
        self.applier.end_dump_items()
    }

    /// Sends a request, and applies the stream that answers it.
    fn receive(&mut self, request: &Request<'_>) -> Result<(), MirrorError> {
        let address = self.server.addresses[self.address_at];
        self.state.note_address(address);
        self.applier.begin_stream();
        let (applier, control) = (&mut self.applier, &self.state.control);
        let take = |event: StreamEvent<'_>| applier.take(event);
        match self.server.receive(address, request, self.limits.request, control, take) {
            Err(_) if self.state.control.is_stopped() => Err(MirrorError::Stopped),
            Err(MirrorError::Receive(ReceiveError::Connection(error))) => {
                // Every item so far is complete and proven.
                self.applier.end_cut_stream()?;
                Err(ReceiveError::Connection(error).into())
            }
            received => received,
        }
    }
}

/// Refusals of a dump that is to be continued, after which it begins again.
const DUMP_REFUSALS_MAX: u32 = 3;
