//! How sets are published: `[publish]` of the configuration.

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Settings for publishing: the directory, the intervals, and the treatment of old sets.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PublishConfig {
    /// The directory that `handled` serves. Without one, nothing is published.
    pub directory: Option<PathBuf>,
    /// Minimum milliseconds between two publications; changes in between are published together.
    pub interval_ms: u64,
    /// Number of changes that are published before the interval is over.
    pub changes_max: u64,
    /// New layers of up to this many bytes are written together with the newest layers.
    pub absorb_len: u64,
    /// Merging keeps each layer at least this many times as long as all newer layers together.
    pub merge_ratio: u64,
    /// Bytes per second that merges and rebuilds write; 0 for no limit.
    pub merge_bytes_per_s: u64,
    /// Memory for sorting the records of a rebuild.
    pub memory_len: usize,
    /// With more changes than this to catch up with, the set is rebuilt.
    pub rebuild_changes: u64,
    /// Seconds that a layer file stays after no set names it any more.
    pub grace_s: u64,
    /// Seconds between generations that are kept for a roll back.
    pub keep_every_s: u64,
    /// Number of generations that are kept.
    pub keep_count: usize,
    /// Seconds until a failed attempt is repeated.
    pub retry_s: u64,
    /// The command that checks a set before it goes live.
    pub check: CheckConfig,
}

/// A command that checks each set before it is published, and may refuse it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckConfig {
    /// The program and its arguments; the directory of the candidate is appended. Empty: no check.
    pub command: Vec<String>,
    /// Whether deltas are checked too, not only merges and rebuilds. Each delta then waits for the
    /// command.
    pub deltas: bool,
    /// Seconds after which the command is killed and the set refused.
    pub timeout_s: u64,
}

/// Maximum time for which files and generations may be kept: a year and a day.
const GRACE_S_MAX: u64 = 366 * 86_400;
/// Maximum time until a failed attempt is repeated or a command is killed: a day.
const RETRY_S_MAX: u64 = 86_400;

impl Default for PublishConfig {
    fn default() -> Self {
        Self {
            directory: None,
            interval_ms: 20,
            changes_max: 10_000,
            absorb_len: 64 << 10,
            merge_ratio: 2,
            merge_bytes_per_s: 64 << 20,
            memory_len: 256 << 20,
            rebuild_changes: 1_000_000,
            grace_s: 60,
            keep_every_s: 3600,
            keep_count: 24,
            retry_s: 1,
            check: CheckConfig::default(),
        }
    }
}

impl Default for CheckConfig {
    fn default() -> Self {
        Self { command: Vec::new(), deltas: true, timeout_s: 60 }
    }
}

impl PublishConfig {
    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting, and what it should be.
    pub fn check(&self) -> anyhow::Result<()> {
        let bounds = [
            ("interval_ms", self.interval_ms, 0, 60_000),
            ("changes_max", self.changes_max, 1, 1 << 30),
            // Each publication writes this many bytes.
            ("absorb_len", self.absorb_len, 0, 64 << 20),
            ("merge_ratio", self.merge_ratio, 1, 16),
            ("memory_len", self.memory_len as u64, 1 << 20, 1 << 40),
            ("rebuild_changes", self.rebuild_changes, 0, 1 << 40),
            // Keeps additions to a time within its range.
            ("grace_s", self.grace_s, 0, GRACE_S_MAX),
            ("keep_every_s", self.keep_every_s, 1, GRACE_S_MAX),
            ("keep_count", self.keep_count as u64, 0, 1000),
            ("retry_s", self.retry_s, 1, RETRY_S_MAX),
            ("check.timeout_s", self.check.timeout_s, 1, RETRY_S_MAX),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`publish.{name}` is {value}: it must be from {least} to {most}"
            );
        }
        // At a lower rate, merging would never end.
        ensure!(
            self.merge_bytes_per_s == 0 || (1 << 20..=1 << 40).contains(&self.merge_bytes_per_s),
            "`publish.merge_bytes_per_s` is {}: it must be from 1 MiB to 1 TiB, or 0 for no limit",
            self.merge_bytes_per_s
        );
        Ok(())
    }

    pub(crate) const fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    pub(crate) const fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_s)
    }

    pub(crate) const fn retry(&self) -> Duration {
        Duration::from_secs(self.retry_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_are_as_fast_as_they_can_or_fast_enough_to_end() {
        let with = |merge_bytes_per_s| {
            PublishConfig { merge_bytes_per_s, ..PublishConfig::default() }.check().is_ok()
        };
        assert!(with(0) && !with(1) && with(1 << 20));
    }

    #[test]
    fn unknown_settings_are_refused() {
        assert!(toml::from_str::<PublishConfig>("interval_ms = 5\n[check]\ncommand = [\"true\"]").is_ok());
        assert!(toml::from_str::<PublishConfig>("interval = 5").is_err());
        assert!(toml::from_str::<PublishConfig>("[check]\nprogram = \"x\"").is_err());
    }
}
