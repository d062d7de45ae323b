//! The progress of copying a source, for its status, its metrics and commands of operators.

use super::error::PullError;
use super::position::{PullPosition, RefusedDeletions};
use handle_daemon::clock::now_unix_ms;
use handle_daemon::metrics::{MetricNumber, MetricSeries};
use handle_proto::Handle;
use handle_proto::printable::Printable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Records of one comparison or request that are named in the log because they cannot be stored.
const LOGGED_MAX: u64 = 100;

/// What is being done about a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PullActivity {
    /// Nothing yet since the start.
    #[default]
    Starting,
    /// All records are being compared.
    Comparing,
    /// Waiting until the next request is due.
    Waiting,
    /// The last attempt has failed.
    Failing,
    /// Another process copies, or this one is a mirror.
    Elsewhere,
}

/// Why a record is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RejectReason {
    /// Its handle has another prefix.
    Foreign,
    /// It breaks a bound of records, or is not readable.
    Unfit,
}

impl RejectReason {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::Foreign, Self::Unfit];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::Unfit => "unfit",
        }
    }
}

/// The progress with one source.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PullStatus {
    /// Its name.
    pub source: String,
    /// What is being done.
    pub activity: PullActivity,
    /// Seconds since everything of the source was last here, as far as the source says; `None`
    /// before the first comparison, and if another process copies.
    pub age_seconds: Option<f64>,
    /// Seconds since all records were compared last.
    pub compared_seconds: Option<f64>,
    /// Records that the source has listed in the last complete comparison.
    pub records: u64,
    /// Records that the comparison in progress has received.
    pub comparing_records: Option<u64>,
    /// The cursor up to which changes are here, if the source reports changes.
    pub cursor: Option<String>,
    /// Handles that the last comparison has not deleted, because there were too many.
    pub refused: Option<RefusedDeletions>,
    /// The last error.
    pub last_error: Option<String>,
    /// When it occurred, in milliseconds since 1970.
    pub last_error_unix_ms: Option<u64>,
    /// Attempts that have failed since the last success.
    pub failures: u64,
    /// The last record that cannot be stored, and why.
    pub last_rejected: Option<String>,
    /// Sums since the start of the process.
    pub counts: PullCounts,
    #[serde(skip)]
    pulled_unix_ms: Option<u64>,
    #[serde(skip)]
    compared_unix_ms: Option<u64>,
}

/// Sums since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PullCounts {
    /// Complete comparisons.
    pub compares: u64,
    /// Requests for changes that were answered to their end.
    pub polls: u64,
    /// Items that were received.
    pub items: u64,
    /// Handles that were created.
    pub created: u64,
    /// Records that were replaced.
    pub replaced: u64,
    /// Handles that were deleted.
    pub deleted: u64,
    /// Records that cannot be stored, by reason.
    pub rejected: BTreeMap<RejectReason, u64>,
    /// Failed attempts by kind.
    pub errors: BTreeMap<&'static str, u64>,
}

/// Changes of one commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullChanges {
    /// Handles that were created.
    pub created: u64,
    /// Records that were replaced.
    pub replaced: u64,
    /// Handles that were deleted.
    pub deleted: u64,
}

/// The progress with one source, shared by its thread and those that report it.
#[derive(Debug)]
pub struct PullState {
    status: Mutex<PullStatus>,
    /// Whether an operator asks for a comparison.
    is_requested: Mutex<bool>,
}

impl PullState {
    /// The state before the first request.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let status = PullStatus { source: name.to_owned(), ..PullStatus::default() };
        Self { status: Mutex::new(status), is_requested: Mutex::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, PullStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the source.
    #[must_use]
    pub fn name(&self) -> String {
        self.lock().source.clone()
    }

    /// The current status.
    #[must_use]
    pub fn status(&self) -> PullStatus {
        let mut status = self.lock().clone();
        let now = now_unix_ms();
        let age = |since: Option<u64>| since.map(|since| now.saturating_sub(since) as f64 / 1000.0);
        if status.activity != PullActivity::Elsewhere {
            status.age_seconds = age(status.pulled_unix_ms);
            status.compared_seconds = age(status.compared_unix_ms);
        }
        status
    }

    /// Asks for a comparison at once.
    pub fn request(&self) {
        *self.is_requested.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Whether a comparison was asked for since the last call.
    pub(super) fn take_request(&self) -> bool {
        std::mem::take(&mut *self.is_requested.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a comparison is asked for.
    pub(super) fn is_requested(&self) -> bool {
        *self.is_requested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a position from the store.
    pub(super) fn set_position(&self, position: &PullPosition) {
        let mut status = self.lock();
        status.cursor.clone_from(&position.cursor);
        status.refused = position.refused;
        status.records = position.records;
        status.compared_unix_ms = position.compared_unix_ms;
        status.pulled_unix_ms = status.pulled_unix_ms.max(position.pulled_unix_ms);
    }

    pub(super) fn note_elsewhere(&self) {
        let mut status = self.lock();
        (status.activity, status.comparing_records) = (PullActivity::Elsewhere, None);
    }

    pub(super) fn note_comparing(&self, records: u64) {
        let mut status = self.lock();
        (status.activity, status.comparing_records) = (PullActivity::Comparing, Some(records));
    }

    pub(super) fn note_item(&self) {
        self.lock().counts.items += 1;
    }

    pub(super) fn note_changes(&self, changes: PullChanges) {
        let counts = &mut self.lock().counts;
        counts.created += changes.created;
        counts.replaced += changes.replaced;
        counts.deleted += changes.deleted;
    }

    pub(super) fn note_compare(&self) {
        self.lock().counts.compares += 1;
    }

    pub(super) fn note_poll(&self) {
        self.lock().counts.polls += 1;
    }

    /// Notes that a record cannot be stored. `count` is the number of those before it.
    pub(super) fn note_rejected(&self, handle: Option<&[u8]>, reason: RejectReason, why: &str, count: u64) {
        let mut status = self.lock();
        let (handle, why) = (Handle(handle.unwrap_or(b"?")).to_string(), Printable(why).to_string());
        if count < LOGGED_MAX {
            let source = &status.source;
            tracing::warn!(source, handle, why, "a record of a source cannot be stored");
        }
        *status.counts.rejected.entry(reason).or_default() += 1;
        status.last_rejected = Some(format!("{handle}: {why}"));
    }

    /// Notes that everything up to `asked_unix_ms` is here.
    pub(super) fn note_success(&self, asked_unix_ms: u64) {
        let mut status = self.lock();
        if status.failures > 0 {
            let source = &status.source;
            tracing::info!(source, "a source is copied again");
        }
        status.pulled_unix_ms = Some(asked_unix_ms);
        (status.activity, status.failures, status.comparing_records) = (PullActivity::Waiting, 0, None);
    }

    /// Notes an error, which is logged if it differs from the last one.
    pub(super) fn note_error(&self, error: &PullError) {
        let (mut status, text) = (self.lock(), Printable(error).to_string());
        if status.failures == 0 || status.last_error.as_ref() != Some(&text) {
            let source = &status.source;
            tracing::warn!(source, error = text, "a source cannot be copied");
        }
        (status.last_error, status.last_error_unix_ms) = (Some(text), Some(now_unix_ms()));
        status.failures += 1;
        (status.activity, status.comparing_records) = (PullActivity::Failing, None);
        *status.counts.errors.entry(error.kind()).or_default() += 1;
    }

    /// Attempts that have failed since the last success.
    pub(super) fn failures(&self) -> u64 {
        self.lock().failures
    }
}

fn by_source<N: Into<MetricNumber>>(
    all: &[PullStatus],
    number: impl Fn(&PullStatus) -> Option<N>,
) -> MetricSeries {
    MetricSeries::by_labels(all.iter().filter_map(|one| Some(([one.source.clone()], number(one)?))))
}

/// Numbers of each source by another label.
fn by_label(all: &[PullStatus], number: impl Fn(&PullStatus) -> Vec<(&'static str, u64)>) -> MetricSeries {
    MetricSeries::by_labels(all.iter().flat_map(|one| {
        let labelled = |(label, count): (&str, u64)| ([one.source.clone(), label.to_owned()], count);
        number(one).into_iter().map(labelled).collect::<Vec<_>>()
    }))
}

handle_daemon::metrics! {
    /// Metrics of copied sources.
    pub fn pull_metrics<'s>(Vec<PullStatus>), "handle_admin_pull_" {
        /// 1 if this process copies the source; 0 if another process does, or this is a mirror.
        gauge active [source] = |all| by_source(all, |one| Some(one.activity != PullActivity::Elsewhere));
        /// Seconds since everything of the source was last here, where this process copies it.
        gauge age_seconds [source] = |all| by_source(all, |one| one.age_seconds);
        /// Seconds since all records were compared last, where this process copies the source.
        gauge compared_seconds [source] = |all| by_source(all, |one| one.compared_seconds);
        /// Records that the source has listed in the last complete comparison.
        gauge records [source] = |all| by_source(all, |one| Some(one.records));
        /// Handles that the last comparison did not delete, as they were more than 10 percent of
        /// all, until an operator accepts them.
        gauge refused_deletions [source] = |all| {
            by_source(all, |one| Some(one.refused.map_or(0, |refused| refused.deletions)))
        };
        /// Attempts that have failed since the last success.
        gauge failures [source] = |all| by_source(all, |one| Some(one.failures));
        /// Complete comparisons.
        counter compares [source] = |all| by_source(all, |one| Some(one.counts.compares));
        /// Requests for changes that were answered to their end.
        counter polls [source] = |all| by_source(all, |one| Some(one.counts.polls));
        /// Records and deletions that were received.
        counter items [source] = |all| by_source(all, |one| Some(one.counts.items));
        /// Changes of the store: handles `created` and `deleted`, records `replaced`.
        counter changes [source, kind] = |all| by_label(all, |one| {
            let counts = &one.counts;
            vec![("created", counts.created), ("deleted", counts.deleted), ("replaced", counts.replaced)]
        });
        /// Records that cannot be stored: `foreign`, of another prefix, or `unfit`, unreadable or
        /// beyond a bound; log and status name them.
        counter rejected [source, reason] = |all| by_label(all, |one| {
            let count = |reason| one.counts.rejected.get(&reason).copied().unwrap_or_default();
            RejectReason::ALL.map(|reason| (reason.name(), count(reason))).to_vec()
        });
        /// Failed attempts: the `source` does not answer as it should, its `listing` is too long or
        /// slow, the `store` failed, or another process has copied (`superseded`).
        counter errors [source, kind] = |all| by_label(all, |one| {
            let count = |kind| one.counts.errors.get(kind).copied().unwrap_or_default();
            PullError::KINDS.map(|kind| (kind, count(kind))).to_vec()
        });
    }
}
