//! What publishing does, as metrics.

use super::status::PublishStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// One metric: name, what it says, and how it is read from a status.
type Metric<T> = (&'static str, &'static str, fn(&PublishStatus) -> T);

/// What there is now.
const GAUGES: [Metric<u64>; 9] = [
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

/// What was done since the process started.
const COUNTERS: [Metric<u64>; 12] = [
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

/// Reads the status whenever somebody scrapes.
pub struct PublishMetrics(Box<dyn Fn() -> PublishStatus + Send + Sync>);

impl PublishMetrics {
    /// Metrics of what `status` gives.
    pub fn new(status: impl Fn() -> PublishStatus + Send + Sync + 'static) -> Self {
        Self(Box::new(status))
    }
}

impl fmt::Debug for PublishMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishMetrics").finish_non_exhaustive()
    }
}

impl Collector for PublishMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = (self.0)();
        for (name, help, read) in GAUGES {
            let gauge = ConstGauge::new(i64::try_from(read(&status)).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        for (name, help, read) in COUNTERS {
            let counter = ConstCounter::new(read(&status));
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::{Counts, SetStatus};
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    #[test]
    fn every_number_of_the_status_is_a_metric() {
        let set = SetStatus {
            generation: 101,
            created_unix_ms: 1,
            handles: 102,
            transaction: Some(1),
            layers: vec![100, 3],
        };
        let counts = Counts {
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
        registry.register_collector(Box::new(PublishMetrics::new(move || status.clone())));
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
