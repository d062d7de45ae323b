//! Metrics of the publisher.

use super::status::PublishStatus;

handle_daemon::metrics! {
    /// Metrics of the publisher, read from its status.
    pub fn publisher_metrics<'s>(PublishStatus), "handle_admin_publish_" {
        /// Published generation.
        gauge generation = |status| status.set.as_ref().map_or(0, |set| set.generation);
        /// Handles in the published set; an upper bound if layers overlap.
        gauge handles = |status| status.set.as_ref().map_or(0, |set| set.handles);
        /// Layers of the published set.
        gauge layers = |status| status.set.as_ref().map_or(0, |set| set.layers.len());
        /// Bytes of these layers.
        gauge bytes = |status| status.set.as_ref().map_or(0, |set| set.layers.iter().sum::<u64>());
        /// Transactions not published yet.
        gauge pending_transactions = |status| status.pending;
        /// 1 if this process publishes: it has the lease, or needs none.
        gauge leading = |status| status.lease.as_ref().is_none_or(|lease| lease.held);
        /// Epoch of the process that publishes; 0 without a lease.
        gauge lease_epoch = |status| status.lease.as_ref().map_or(0, |lease| lease.epoch);
        /// Times that this process has taken over publishing.
        counter lease_taken = |status| status.lease.as_ref().map_or(0, |lease| lease.taken);
        /// 1 while the lease can be neither taken nor renewed.
        gauge lease_failing = |status| status.lease.as_ref().is_some_and(|lease| lease.last_error.is_some());
        /// 1 while an operator holds publishing.
        gauge held = |status| status.held.is_some();
        /// 1 while the last attempt to publish has failed.
        gauge failing = |status| status.last_error.is_some();
        /// Merges and rebuilds in progress.
        gauge running_jobs = |status| status.running.len();
        /// Generations kept for a roll-back.
        gauge kept_generations = |status| status.kept.len();
        /// Delta layers that went live.
        counter deltas = |status| status.counts.deltas;
        /// Handles in these layers.
        counter changes = |status| status.counts.changes;
        /// Bytes of changed records.
        counter changed_bytes = |status| status.counts.changed_bytes;
        /// Bytes written for delta layers, including rewritten records.
        counter delta_bytes = |status| status.counts.delta_bytes;
        /// Merges that went live.
        counter merges = |status| status.counts.merges;
        /// Bytes written by merges.
        counter merged_bytes = |status| status.counts.merged_bytes;
        /// Rebuilds that went live.
        counter rebuilds = |status| status.counts.rebuilds;
        /// Bytes written by rebuilds.
        counter rebuilt_bytes = |status| status.counts.rebuilt_bytes;
        /// Attempts that failed.
        counter failures = |status| status.counts.failures;
        /// Sets rejected by the check.
        counter refused = |status| status.counts.refused;
        /// Records left out because they do not fit into a layer; the log names them.
        counter left_out = |status| status.counts.left_out;
        /// Files removed after their grace time.
        counter files_removed = |status| status.counts.files_removed;
        /// Signed statements that the set is still current.
        counter statements = |status| status.counts.statements;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::{LeaseStatus, PublishCounts, SetStatus};
    use handle_daemon::metrics::MetricsText;

    #[test]
    fn every_number_of_the_status_is_a_metric() {
        let set = SetStatus {
            epoch: 1,
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
            statements: 213,
        };
        let no = Some("no".to_owned());
        let lease = LeaseStatus { held: true, epoch: 105, taken: 106, last_error: no, ..Default::default() };
        let status = PublishStatus {
            set: Some(set),
            pending: 104,
            lease: Some(lease),
            held: Some("yes".to_owned()),
            last_error: Some("no".to_owned()),
            counts,
            ..PublishStatus::default()
        };
        let mut text = MetricsText::default();
        text.add_table(publisher_metrics(), &status);
        let text = text.finish().unwrap();
        let expected = [
            "generation 101",
            "handles 102",
            "layers 2",
            "bytes 103",
            "pending_transactions 104",
            "leading 1",
            "lease_epoch 105",
            "lease_taken_total 106",
            "lease_failing 1",
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
            "statements_total 213",
        ];
        let lines: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("handle_admin_publish_")).collect();
        assert_eq!(lines, expected);
    }
}
