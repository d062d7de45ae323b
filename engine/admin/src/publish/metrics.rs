//! Metrics of the publisher.

use super::status::PublishStatus;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// One metric: its name, its help, and how it is read from the status.
type Metric = (&'static str, &'static str, fn(&PublishStatus) -> u64);

/// Numbers that go up and down.
const GAUGES: [Metric; 9] = [
    ("publish_generation", "Generation that is published", |status| {
        status.set.as_ref().map_or(0, |set| set.generation)
    }),
    ("publish_handles", "Handles in the published set", |status| {
        status.set.as_ref().map_or(0, |set| set.handles)
    }),
    ("publish_layers", "Layers of the published set", |status| {
        status.set.as_ref().map_or(0, |set| set.layers.len() as u64)
    }),
    ("publish_bytes", "Bytes of the published set", |status| {
        status.set.as_ref().map_or(0, |set| set.layers.iter().sum())
    }),
    ("publish_pending_transactions", "Transactions that are not published yet", |status| status.pending),
    ("publish_held", "1 while publishing is held by an operator", |status| u64::from(status.held.is_some())),
    ("publish_failing", "1 while the last attempt to publish has failed", |status| {
        u64::from(status.last_error.is_some())
    }),
    ("publish_running_jobs", "Merges and rebuilds that run", |status| status.running.len() as u64),
    ("publish_kept_generations", "Generations that are kept to go back to", |status| {
        status.kept.len() as u64
    }),
];

/// Numbers that grow from the start of the process on.
const COUNTERS: [Metric; 12] = [
    ("publish_deltas", "Layers of changes that went live", |status| status.counts.deltas),
    ("publish_changes", "Handles in layers of changes", |status| status.counts.changes),
    ("publish_changed_bytes", "Bytes of what had changed", |status| status.counts.changed_bytes),
    ("publish_delta_bytes", "Bytes written for changes, with what was written again", |status| {
        status.counts.delta_bytes
    }),
    ("publish_merges", "Merges that went live", |status| status.counts.merges),
    ("publish_merged_bytes", "Bytes that merges wrote", |status| status.counts.merged_bytes),
    ("publish_rebuilds", "Rebuilds that went live", |status| status.counts.rebuilds),
    ("publish_rebuilt_bytes", "Bytes that rebuilds wrote", |status| status.counts.rebuilt_bytes),
    ("publish_failures", "Attempts that failed", |status| status.counts.failures),
    ("publish_refused", "Sets that the check refused", |status| status.counts.refused),
    ("publish_left_out", "Records that no layer can have", |status| status.counts.left_out),
    ("publish_files_removed", "Files removed after their grace time", |status| status.counts.files_removed),
];

/// Registers the metrics of `status`.
pub fn register(registry: &mut Registry, status: &PublishStatus) {
    for (name, help, read) in GAUGES {
        registry.register(name, help, ConstGauge::new(read(status)));
    }
    for (name, help, read) in COUNTERS {
        registry.register(name, help, ConstCounter::new(read(status)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::{PublishCounts, SetStatus};
    use prometheus_client::encoding::text::encode;

    #[test]
    fn every_number_of_the_status_is_a_metric() {
        let set = SetStatus {
            generation: 101,
            created_unix_ms: 1,
            handles: 102,
            transaction: Some(1),
            layers: vec![100, 3],
        };
        let counts = PublishCounts {
            deltas: 201,
            changes: 202,
            changed_bytes: 203,
            delta_bytes: 204,
            merges: 205,
            merged_bytes: 206,
            rebuilds: 207,
            rebuilt_bytes: 208,
            failures: 209,
            refused: 210,
            left_out: 211,
            files_removed: 212,
        };
        let status = PublishStatus {
            set: Some(set),
            pending: 104,
            held: Some("yes".to_owned()),
            last_error: Some("no".to_owned()),
            counts,
            ..PublishStatus::default()
        };
        let mut registry = Registry::with_prefix("handle_admin");
        register(&mut registry, &status);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let expected = [
            "generation 101",
            "handles 102",
            "layers 2",
            "bytes 103",
            "pending_transactions 104",
            "held 1",
            "failing 1",
            "running_jobs 0",
            "kept_generations 0",
            "deltas_total 201",
            "changes_total 202",
            "changed_bytes_total 203",
            "delta_bytes_total 204",
            "merges_total 205",
            "merged_bytes_total 206",
            "rebuilds_total 207",
            "rebuilt_bytes_total 208",
            "failures_total 209",
            "refused_total 210",
            "left_out_total 211",
            "files_removed_total 212",
        ];
        let lines: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("handle_admin_publish_")).collect();
        assert_eq!(lines, expected);
    }
}
