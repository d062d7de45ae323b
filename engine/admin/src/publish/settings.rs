//! How sets are published: `[publish]` of the configuration.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Where published sets go, when, and what becomes of the old ones.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PublishConfig {
    /// The directory that `handled` serves. Without one, nothing is published.
    pub directory: Option<PathBuf>,
    /// Milliseconds between two publications at least; what changes meanwhile is published together.
    pub interval_ms: u64,
    /// Changes that are published before the interval is over.
    pub changes_max: u64,
    /// New layers of up to so many bytes are written together with the newest ones.
    pub absorb_len: u64,
    /// How many times as long as all newer layers together each layer is kept, by merging.
    pub merge_ratio: u64,
    /// Bytes a second that merges and rebuilds write; 0 for no limit.
    pub merge_bytes_per_s: u64,
    /// Memory for sorting the records of a rebuild.
    pub memory_len: usize,
    /// With more changes than this to catch up with, the set is rebuilt.
    pub rebuild_changes: u64,
    /// Seconds that a layer stays when no set names it any more.
    pub grace_s: u64,
    /// Seconds between generations that are kept to go back to.
    pub keep_every_s: u64,
    /// How many are kept.
    pub keep_count: usize,
    /// Seconds until an attempt that failed is repeated.
    pub retry_s: u64,
    /// What looks at a set before it goes live.
    pub check: CheckConfig,
}

/// A command that sees each set before it is published, and may refuse it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckConfig {
    /// The program and its arguments, to which the directory of the candidate is added. None: no check.
    pub command: Vec<String>,
    /// Whether deltas are checked too, and not only merges and rebuilds. Each then waits for the command.
    pub deltas: bool,
    /// Seconds after which the command is ended, and the set refused.
    pub timeout_s: u64,
}

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
    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// With a sentence that names the setting.
    pub fn check(&self) -> Result<(), &'static str> {
        let rules = [
            (self.interval_ms <= 60_000, "publish.interval_ms is at most 60000"),
            (self.changes_max > 0, "publish.changes_max is at least 1"),
            (
                self.absorb_len <= 64 << 20,
                "publish.absorb_len is at most 64 MiB, for each publication writes so much",
            ),
            ((1..=16).contains(&self.merge_ratio), "publish.merge_ratio is from 1 to 16"),
            (
                self.merge_bytes_per_s == 0 || self.merge_bytes_per_s >= 1 << 20,
                "publish.merge_bytes_per_s is 0, for no limit, or at least 1 MiB: slower merges never end",
            ),
            (self.memory_len >= 1 << 20, "publish.memory_len is at least 1 MiB"),
            (self.keep_every_s > 0, "publish.keep_every_s is at least 1"),
            (self.keep_count <= 1000, "publish.keep_count is at most 1000"),
            (self.retry_s > 0, "publish.retry_s is at least 1"),
            (self.check.timeout_s > 0, "publish.check.timeout_s is at least 1"),
        ];
        rules.into_iter().find(|(is_right, _)| !is_right).map_or(Ok(()), |(_, rule)| Err(rule))
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
    fn every_limit_is_checked_at_its_edge() {
        let with = |change: fn(&mut PublishConfig)| {
            let mut config = PublishConfig::default();
            change(&mut config);
            config.check().map_err(|rule| rule.split(' ').next().unwrap_or_default())
        };
        assert_eq!(with(|_| {}), Ok(()));
        assert_eq!(with(|c| c.interval_ms = 60_000), Ok(()));
        assert_eq!(with(|c| c.interval_ms = 60_001), Err("publish.interval_ms"));
        assert_eq!(with(|c| c.changes_max = 0), Err("publish.changes_max"));
        assert_eq!(with(|c| c.absorb_len = 64 << 20), Ok(()));
        assert_eq!(with(|c| c.absorb_len = (64 << 20) + 1), Err("publish.absorb_len"));
        assert_eq!(with(|c| c.merge_ratio = 1), Ok(()));
        assert_eq!(with(|c| c.merge_ratio = 0), Err("publish.merge_ratio"));
        assert_eq!(with(|c| c.merge_ratio = 17), Err("publish.merge_ratio"));
        assert_eq!(with(|c| c.merge_bytes_per_s = 0), Ok(()));
        assert_eq!(with(|c| c.merge_bytes_per_s = 1), Err("publish.merge_bytes_per_s"));
        assert_eq!(with(|c| c.memory_len = 1 << 20), Ok(()));
        assert_eq!(with(|c| c.memory_len = 1000), Err("publish.memory_len"));
        assert_eq!(with(|c| c.keep_every_s = 0), Err("publish.keep_every_s"));
        assert_eq!(with(|c| c.keep_count = 0), Ok(()));
        assert_eq!(with(|c| c.keep_count = 1001), Err("publish.keep_count"));
        assert_eq!(with(|c| c.retry_s = 0), Err("publish.retry_s"));
        assert_eq!(with(|c| c.check.timeout_s = 0), Err("publish.check.timeout_s"));
    }

    #[test]
    fn unknown_settings_are_refused() {
        assert!(toml::from_str::<PublishConfig>("interval_ms = 5\n[check]\ncommand = [\"true\"]").is_ok());
        assert!(toml::from_str::<PublishConfig>("interval = 5").is_err());
        assert!(toml::from_str::<PublishConfig>("[check]\nprogram = \"x\"").is_err());
    }
}
