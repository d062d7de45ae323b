//! The counters of a source.

use crate::error::SourceError;
use std::sync::atomic::{AtomicU64, Ordering};

/// How requests for records ended, with a counter for each.
#[derive(Debug, Default)]
pub struct SourceCounts([AtomicU64; SourceCounts::RESULTS.len()]);

impl SourceCounts {
    /// The results, in the order of the counters.
    pub const RESULTS: [&'static str; 12] = [
        "found",
        "absent",
        "cached",
        "busy",
        "paused",
        "late",
        "unreachable",
        "refused",
        "too_long",
        "invalid",
        "conflict",
        "changed",
    ];

    /// The counts, by result.
    #[must_use]
    pub fn by_result(&self) -> [(&'static str, u64); Self::RESULTS.len()] {
        std::array::from_fn(|at| (Self::RESULTS[at], self.0[at].load(Ordering::Relaxed)))
    }

    /// The count of one result; 0 if there is no such result.
    #[must_use]
    pub fn of(&self, result: &str) -> u64 {
        self.by_result().iter().find(|(name, _)| *name == result).map_or(0, |(_, count)| *count)
    }

    pub(crate) fn found(&self) {
        self.add(0);
    }

    pub(crate) fn absent(&self) {
        self.add(1);
    }

    pub(crate) fn cached(&self) {
        self.add(2);
    }

    pub(crate) fn changed(&self) {
        self.add(11);
    }

    pub(crate) fn failed(&self, error: &SourceError) {
        self.add(match error {
            SourceError::Busy => 3,
            SourceError::Paused => 4,
            SourceError::Late => 5,
            SourceError::Unreachable(_) => 6,
            SourceError::Refused(_) => 7,
            SourceError::TooLong => 8,
            SourceError::Invalid(_) => 9,
            SourceError::Conflict => 10,
            // Requests for single records are not stopped.
            SourceError::Stopped => 5,
        });
    }

    fn add(&self, at: usize) {
        self.0[at].fetch_add(1, Ordering::Relaxed);
    }
}
