//! The status of publishing.

use crate::lease::LeaseStatus;
use handle_snapshot::set::manifest::Manifest;
use serde::Serialize;

/// The state of publishing, as `status` shows it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PublishStatus {
    /// The published set; none before the first.
    pub set: Option<SetStatus>,
    /// The last transaction of the store.
    pub store_transaction: u64,
    /// Transactions that are not published yet.
    pub pending: u64,
    /// The reason of the hold, if an operator holds publishing.
    pub held: Option<String>,
    /// Why the set has to be rebuilt from all records, until it has been.
    pub rebuild: Option<String>,
    /// Merges and rebuilds in progress.
    pub running: Vec<JobStatus>,
    /// Kept generations, oldest first.
    pub kept: Vec<KeptStatus>,
    /// Which process publishes; none if only this one can have the store open, or each publishes
    /// for itself.
    pub lease: Option<LeaseStatus>,
    /// The error of the last attempt, if it failed.
    pub last_error: Option<String>,
    /// When this error first occurred.
    pub last_error_unix_ms: Option<u64>,
    /// Counts since the start of the process.
    pub counts: PublishCounts,
}

/// A set, as `status` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct SetStatus {
    /// Raised when another publisher takes over.
    pub epoch: u64,
    /// Number of the publication.
    pub generation: u64,
    /// When it was published.
    pub created_unix_ms: u64,
    /// Handles in it.
    pub handles: u64,
    /// The last transaction that it shows.
    pub transaction: Option<u64>,
    /// Bytes of each layer, newest first.
    pub layers: Vec<u64>,
}

/// A merge or a rebuild, as `status` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct JobStatus {
    /// `merge` or `rebuild`.
    pub what: &'static str,
    /// Layers that are merged.
    pub layers: usize,
    /// Bytes of these layers.
    pub bytes: u64,
    /// Records read so far, by a merge; written so far, by a rebuild.
    pub records: u64,
    /// When it began.
    pub started_unix_ms: u64,
}

/// A kept generation, as `status` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct KeptStatus {
    /// Number of the publication.
    pub generation: u64,
    /// When it was published.
    pub created_unix_ms: u64,
    /// Handles in it.
    pub handles: u64,
    /// The last transaction that it shows.
    pub transaction: Option<u64>,
}

/// What publishing has done since the process started.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PublishCounts {
    /// Deltas that went live.
    pub deltas: u64,
    /// Handles in them.
    pub changes: u64,
    /// Bytes of the changed records.
    pub changed_bytes: u64,
    /// Bytes written for deltas, including the layers they replaced.
    pub delta_bytes: u64,
    /// Merges that went live.
    pub merges: u64,
    /// Bytes written by merges.
    pub merged_bytes: u64,
    /// Rebuilds that went live.
    pub rebuilds: u64,
    /// Bytes written by rebuilds.
    pub rebuilt_bytes: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Sets that the check refused.
    pub refused: u64,
    /// Records that exceed the limits of a layer.
    pub left_out: u64,
    /// Layers removed.
    pub files_removed: u64,
    /// Statements that a set is still current.
    pub statements: u64,
}

impl From<&Manifest> for SetStatus {
    fn from(set: &Manifest) -> Self {
        Self {
            epoch: set.epoch,
            generation: set.generation,
            created_unix_ms: set.created_unix_ms,
            handles: set.handles_count,
            transaction: set.source.map(|source| source.transaction),
            layers: set.layers.iter().map(|layer| layer.len).collect(),
        }
    }
}

impl From<&Manifest> for KeptStatus {
    fn from(set: &Manifest) -> Self {
        Self {
            generation: set.generation,
            created_unix_ms: set.created_unix_ms,
            handles: set.handles_count,
            transaction: set.source.map(|source| source.transaction),
        }
    }
}
