//! `[query_log]` in the configuration.

use anyhow::ensure;
use handle_auth::source::Network;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// Settings of the query log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueryLogSettings {
    /// Path of the log file; none when empty. Lines are appended; a new file gets mode 0640.
    pub path: Option<PathBuf>,
    /// Format of a line.
    pub format: QueryLogFormat,
    /// Log one of this many answers of each worker.
    pub sample_every: u32,
    /// Maximum lines per second of all workers together; further lines are dropped and counted.
    pub lines_per_second: u32,
    /// Maximum lines waiting to be written; further lines are dropped and counted.
    pub queue_lines: usize,
    /// Log whole client addresses instead of the networks below.
    pub whole_addresses: bool,
    /// Bits of an IPv4 address that are logged.
    pub ipv4_bits: u8,
    /// Bits of an IPv6 address that are logged.
    pub ipv6_bits: u8,
}

/// Format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueryLogFormat {
    /// The access log format of deployed servers.
    #[default]
    Handle,
    /// One JSON object.
    Json,
}

impl Default for QueryLogSettings {
    fn default() -> Self {
        Self {
            path: None,
            format: QueryLogFormat::Handle,
            sample_every: 1,
            lines_per_second: 1000,
            queue_lines: 1024,
            whole_addresses: false,
            ipv4_bits: 24,
            ipv6_bits: 48,
        }
    }
}

impl QueryLogSettings {
    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting and its allowed values.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.sample_every > 0,
            "`query_log.sample_every` is 0: 1 logs every answer, 100 one of a hundred"
        );
        ensure!(
            (1..=1_000_000).contains(&self.lines_per_second),
            "`query_log.lines_per_second` is {}: it must be from 1 to 1000000",
            self.lines_per_second
        );
        ensure!(
            (1..=1 << 20).contains(&self.queue_lines),
            "`query_log.queue_lines` is {}: it must be from 1 to 1048576",
            self.queue_lines
        );
        ensure!(self.ipv4_bits <= 32, "`query_log.ipv4_bits` is {}: an address has 32", self.ipv4_bits);
        ensure!(self.ipv6_bits <= 128, "`query_log.ipv6_bits` is {}: an address has 128", self.ipv6_bits);
        Ok(())
    }

    /// Truncates an address for logging. Returns it with the number of bits kept.
    pub(super) fn cut(&self, ip: IpAddr) -> (IpAddr, u8) {
        let ip = ip.to_canonical();
        let (all, some) = if ip.is_ipv4() { (32, self.ipv4_bits) } else { (128, self.ipv6_bits) };
        let bits = if self.whole_addresses { all } else { some };
        (Network::new(ip, bits).address(), bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_their_edges() {
        let with = |change: fn(&mut QueryLogSettings)| {
            let mut settings = QueryLogSettings::default();
            change(&mut settings);
            settings.check().is_ok()
        };
        assert!(with(|_| {}) && !QueryLogSettings::default().whole_addresses, "privacy is the default");
        assert!(!with(|s| s.sample_every = 0));
        assert!(with(|s| s.lines_per_second = 1) && with(|s| s.lines_per_second = 1_000_000));
        assert!(!with(|s| s.lines_per_second = 0) && !with(|s| s.lines_per_second = 1_000_001));
        assert!(with(|s| s.queue_lines = 1) && with(|s| s.queue_lines = 1 << 20));
        assert!(!with(|s| s.queue_lines = 0) && !with(|s| s.queue_lines = (1 << 20) + 1));
        assert!(
            with(|s| (s.ipv4_bits, s.ipv6_bits) = (0, 0)) && with(|s| (s.ipv4_bits, s.ipv6_bits) = (32, 128))
        );
        assert!(!with(|s| s.ipv4_bits = 33) && !with(|s| s.ipv6_bits = 129));
    }
}
