//! The progress of a mirror, for its status and its metrics.

use super::batch::AppliedCounts;
use super::error::MirrorError;
use super::position::{MirrorDumpStep, MirrorPosition};
use handle_client::replication::connection::StreamControl;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::metrics::{MetricNumber, MetricSeries};
use handle_proto::Handle;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a mirror is doing with one server of a primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MirrorActivity {
    /// No request has been answered since the start.
    #[default]
    Starting,
    /// Transactions are requested as they are made.
    Following,
    /// All records are being received.
    Dumping,
    /// The last attempt has failed.
    Failing,
    /// The mirror has been promoted.
    Promoted,
    /// Another process over the same database follows.
    Waiting,
}

/// The progress with one server of a primary.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SourceStatus {
    /// The name of the primary, with the position of the server if there are several.
    pub name: String,
    /// The address that is asked.
    pub address: Option<SocketAddr>,
    /// What the mirror is doing.
    pub activity: MirrorActivity,
    /// Seconds since the last request after which all transactions had been applied, by the clock
    /// of this machine, whatever that of the primary says; `None` before the first dump.
    pub lag_seconds: Option<f64>,
    /// Seconds by which the clock of the primary was ahead of that of this machine at its last
    /// answer; negative if it was behind.
    pub clock_ahead_seconds: Option<f64>,
    /// Transactions that the primary is known to have, and that are not in the store yet. A primary
    /// tells its last transaction only at the start of a dump.
    pub lag_transactions: u64,
    /// The highest transaction that the primary is known to have.
    pub primary_transaction: u64,
    /// The last transaction of the primary that is in the store.
    pub last_transaction: u64,
    /// Time of this request, by the clock of this machine, in milliseconds since 1970.
    pub last_success_unix_ms: Option<u64>,
    /// The same by a clock that is never set: a moment, and how long before it the request was.
    #[serde(skip)]
    last_success: Option<(Instant, Duration)>,
    /// The last error.
    pub last_error: Option<String>,
    /// When it occurred, in milliseconds since 1970.
    pub last_error_unix_ms: Option<u64>,
    /// Attempts that have failed since the last success.
    pub failures: u64,
    /// Whether a stream of transactions has been applied in part. Until one is complete, nothing is
    /// published.
    pub is_partial: bool,
    /// Whether notices of the primary arrive.
    pub is_notified: bool,
    /// Records of the dump in progress so far.
    pub dump_records: Option<u64>,
    /// Whether the dump in progress has been received, and what it did not name is being removed.
    pub dump_received: bool,
    /// Number of prefixes that are homed at the primary or here, and not at both; `None` before
    /// they have been compared.
    pub homed_differences: Option<u64>,
    /// The first of these prefixes.
    pub homed_different: Vec<String>,
    /// Sums since the start of the process.
    pub counts: MirrorSourceCounts,
    /// The last record that was left out, and why.
    pub last_left_out: Option<String>,
}

/// Prefixes that the status names if they are homed at one side only.
const HOMED_NAMED_MAX: usize = 10;

impl SourceStatus {
    /// Notes a request after which everything was here.
    const fn note_contact(&mut self, asked_unix_ms: u64, asked: Instant) {
        self.last_success_unix_ms = Some(asked_unix_ms);
        self.last_success = Some((asked, Duration::ZERO));
    }

    /// Notes the time of such a request from before the start.
    fn note_stored_contact(&mut self, asked_unix_ms: u64, now_unix_ms: u64) {
        self.last_success_unix_ms = Some(asked_unix_ms);
        let before = Duration::from_millis(now_unix_ms.saturating_sub(asked_unix_ms));
        self.last_success = Some((Instant::now(), before));
    }

    fn note_primary_has(&mut self, id: u64) {
        self.primary_transaction = self.primary_transaction.max(id);
        self.lag_transactions =
            self.primary_transaction - self.last_transaction.min(self.primary_transaction);
    }
}

/// Sums since the start of the process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MirrorSourceCounts {
    /// Streams of transactions that were received to their end.
    pub streams: u64,
    /// Complete dumps.
    pub dumps: u64,
    /// Changes and records that were received.
    pub items: u64,
    /// Of these, those that changed the store.
    pub changes: u64,
    /// Records that a dump removed, because it did not name them.
    pub removed: u64,
    /// Records that were left out, because they exceed a limit of the store.
    pub left_out: u64,
    /// Bytes of streams, as they came from the network.
    pub bytes: u64,
    /// Notices of the primary.
    pub notices: u64,
    /// Errors by kind.
    pub errors: BTreeMap<&'static str, u64>,
}

/// The progress with one server of a primary, shared by its thread and those that report it.
#[derive(Debug)]
pub struct MirrorSourceState {
    status: Mutex<SourceStatus>,
    /// Counts the bytes of streams, and ends them.
    pub control: Arc<StreamControl>,
}

impl MirrorSourceState {
    /// The state before the first request.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let status = SourceStatus { name: name.to_owned(), ..SourceStatus::default() };
        Self { status: Mutex::new(status), control: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, SourceStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that another process over the same database follows, which has come to `position`.
    pub(super) fn note_waiting(&self, position: &MirrorPosition) {
        let mut status = self.lock();
        status.activity = MirrorActivity::Waiting;
        status.last_transaction = position.last_id;
        status.note_primary_has(position.last_id);
        // That process writes its position at least once a minute while it follows.
        match (status.last_success_unix_ms, position.contact_unix_ms) {
            (_, 0) => {}
            (None, contact_unix_ms) => status.note_stored_contact(contact_unix_ms, now_unix_ms()),
            (Some(known), contact_unix_ms) if known != contact_unix_ms => {
                status.note_contact(contact_unix_ms, Instant::now());
            }
            _ => {}
        }
        (status.dump_records, status.dump_received) = (None, false);
    }

    /// The current status.
    #[must_use]
    pub fn status(&self) -> SourceStatus {
        let mut status = self.lock().clone();
        status.lag_seconds = status.last_success.map(|(at, before)| (before + at.elapsed()).as_secs_f64());
        status.counts.bytes = self.control.bytes();
        status
    }

    /// Takes over a position from the store.
    pub(super) fn set_position(&self, position: &MirrorPosition) {
        let mut status = self.lock();
        status.last_transaction = position.last_id;
        let dumped = position.dump.as_ref().and_then(|dump| dump.source).map_or(0, |(id, _)| id);
        status.note_primary_has(position.last_id.max(dumped));
        // After a start. A position that was written without the time here has that of the primary.
        if status.last_success_unix_ms.is_none() && position.has_been_complete() {
            let now_unix_ms = now_unix_ms();
            let stored = match position.contact_unix_ms {
                0 => MirrorPosition::believed(position.complete_unix_ms, now_unix_ms),
                contact_unix_ms => contact_unix_ms,
            };
            status.note_stored_contact(stored, now_unix_ms);
        }
        status.is_partial = position.is_partial;
        status.dump_records = position.dump.as_ref().map(|dump| dump.records);
        status.dump_received =
            position.dump.as_ref().is_some_and(|dump| dump.step != MirrorDumpStep::Receiving);
        if position.dump.is_some() {
            status.activity = MirrorActivity::Dumping;
        }
        if !position.is_followed() {
            status.activity = MirrorActivity::Promoted;
        }
    }

    /// Takes over a position from the store after a stream that is not believed.
    pub(super) fn note_abandoned(&self, position: &MirrorPosition) {
        self.lock().primary_transaction = 0;
        self.set_position(position);
    }

    /// Notes that the primary has this transaction.
    pub(super) fn note_primary_has(&self, id: u64) {
        self.lock().note_primary_has(id);
    }

    /// Notes a commit.
    pub(super) fn note_applied(&self, applied: AppliedCounts) {
        let counts = &mut self.lock().counts;
        counts.items += applied.items;
        counts.changes += applied.changed;
    }

    pub(super) fn note_removed(&self, removed: u64) {
        self.lock().counts.removed += removed;
    }

    pub(super) fn note_dump(&self) {
        self.lock().counts.dumps += 1;
    }

    /// Notes that a record cannot be stored.
    pub(super) fn note_left_out(&self, handle: &[u8], why: &str) {
        let mut status = self.lock();
        status.counts.left_out += 1;
        status.last_left_out = Some(format!("{}: {why}", Handle(handle)));
    }

    /// Notes prefixes that are homed at one side only; whether others are than before.
    pub(super) fn note_homed(&self, different: &[Vec<u8>]) -> bool {
        let (mut status, count) = (self.lock(), different.len() as u64);
        let named = different.iter().take(HOMED_NAMED_MAX).map(|prefix| Handle(prefix).to_string());
        let named: Vec<String> = named.collect();
        let is_new =
            count > 0 && (status.homed_differences, &status.homed_different) != (Some(count), &named);
        (status.homed_differences, status.homed_different) = (Some(count), named);
        is_new
    }

    /// Notes whether notices of the primary arrive.
    pub(super) fn note_notified(&self, is_notified: bool) {
        self.lock().is_notified = is_notified;
    }

    pub(super) fn note_notice(&self) {
        self.lock().counts.notices += 1;
    }

    /// Notes the address that is asked from now on.
    pub(super) fn note_address(&self, address: SocketAddr) {
        self.lock().address = Some(address);
    }

    /// Notes the time of the primary in an answer.
    pub(super) fn note_clock(&self, primary_unix_ms: u64, now_unix_ms: u64) {
        let (primary, here) = (primary_unix_ms as f64, now_unix_ms as f64);
        self.lock().clock_ahead_seconds = Some((primary - here) / 1000.0);
    }

    /// Notes that all transactions up to the request that was sent then have been applied.
    pub(super) fn note_success(&self, asked_unix_ms: u64, asked: Instant) {
        let mut status = self.lock();
        status.note_contact(asked_unix_ms, asked);
        status.activity = MirrorActivity::Following;
        status.failures = 0;
        // An older copy of the primary may have lower numbers than the primary before.
        status.primary_transaction = status.last_transaction;
        status.lag_transactions = 0;
        status.counts.streams += 1;
    }

    /// Notes an error; returns whether it differs from the last one, so that it is logged.
    pub(super) fn note_error(&self, error: &MirrorError) -> bool {
        let Some(kind) = error.kind() else { return false };
        let (mut status, text) = (self.lock(), error.to_string());
        let is_new = status.failures == 0 || status.last_error.as_ref() != Some(&text);
        status.last_error = Some(text);
        status.last_error_unix_ms = Some(now_unix_ms());
        status.failures += 1;
        status.activity = MirrorActivity::Failing;
        *status.counts.errors.entry(kind).or_default() += 1;
        is_new
    }

    /// Notes that nothing is taken from this primary any more.
    pub(super) fn note_promoted(&self) {
        self.lock().activity = MirrorActivity::Promoted;
    }
}

fn by_primary<N: Into<MetricNumber>>(
    all: &[SourceStatus],
    number: impl Fn(&SourceStatus) -> Option<N>,
) -> MetricSeries {
    MetricSeries::by_labels(all.iter().filter_map(|one| Some(([one.name.clone()], number(one)?))))
}

handle_daemon::metrics! {
    /// Metrics of a mirror, by primary.
    pub fn mirror_metrics<'s>(Vec<SourceStatus>), "handle_admin_mirror_" {
        /// Seconds since the last request after which everything from the primary was here.
        gauge lag_seconds [primary] = |all| by_primary(all, |one| one.lag_seconds);
        /// Seconds by which the clock of the primary was ahead at its last answer; negative if
        /// behind.
        gauge clock_ahead_seconds [primary] = |all| by_primary(all, |one| one.clock_ahead_seconds);
        /// Transactions of the primary that are not in the store; it tells its last one at the
        /// start of a dump only, otherwise these are the received ones.
        gauge lag_transactions [primary] = |all| by_primary(all, |one| Some(one.lag_transactions));
        /// The last transaction of the primary that is in the store.
        gauge last_transaction [primary] = |all| by_primary(all, |one| Some(one.last_transaction));
        /// Attempts that have failed since the last success.
        gauge failures [primary] = |all| by_primary(all, |one| Some(one.failures));
        /// 1 while a dump is in progress; nothing is published until it is complete.
        gauge dumping [primary] = |all| by_primary(all, |one| Some(one.dump_records.is_some()));
        /// 1 while a stream of transactions is applied in part; nothing is published until one is
        /// complete.
        gauge partial [primary] = |all| by_primary(all, |one| Some(one.is_partial));
        /// Prefixes homed at the primary or here, and not at both, compared after each change and
        /// every ten minutes.
        gauge homed_differences [primary] = |all| by_primary(all, |one| one.homed_differences);
        /// 1 while notices of the primary arrive.
        gauge notified [primary] = |all| by_primary(all, |one| Some(one.is_notified));
        /// Notices of the primary.
        counter notices [primary] = |all| by_primary(all, |one| Some(one.counts.notices));
        /// Streams of transactions that were received to their end.
        counter streams [primary] = |all| by_primary(all, |one| Some(one.counts.streams));
        /// Complete dumps.
        counter dumps [primary] = |all| by_primary(all, |one| Some(one.counts.dumps));
        /// Bytes of streams, as they came from the network.
        counter bytes [primary] = |all| by_primary(all, |one| Some(one.counts.bytes));
        /// Changes and records that were received.
        counter items [primary] = |all| by_primary(all, |one| Some(one.counts.items));
        /// Of these, those that changed the store.
        counter changes [primary] = |all| by_primary(all, |one| Some(one.counts.changes));
        /// Records that dumps removed, because they did not name them.
        counter removed [primary] = |all| by_primary(all, |one| Some(one.counts.removed));
        /// Records left out because they exceed a limit of the store; the status names the last.
        counter left_out [primary] = |all| by_primary(all, |one| Some(one.counts.left_out));
        /// Failed attempts: no `connection`, or it ended early; an `unproven` answer or stream;
        /// `refused` by the primary; a `damaged`, `replayed` or out-of-`order` stream; the `store`
        /// failed.
        counter errors [primary, kind] = |all| error_series(all);
    }
}

fn error_series(all: &[SourceStatus]) -> MetricSeries {
    MetricSeries::by_labels(all.iter().flat_map(|one| {
        MirrorError::KINDS.into_iter().map(|kind| {
            let count = one.counts.errors.get(kind).copied().unwrap_or_default();
            ([one.name.clone(), kind.to_owned()], count)
        })
    }))
}
