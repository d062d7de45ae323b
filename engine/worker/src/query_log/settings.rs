//! The section `[query_log]` of the configuration.

use handle_auth::source::Network;
use handle_daemon::settings;
use handle_daemon::settings::SettingType;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

settings! {
    /// The query log ([README.md](README.md#query-log)).
    pub struct QueryLogSettings {
        /// Set this when queries are to be logged: file to which lines are appended; a new one gets
        /// mode 0640.
        restart path: Option<PathBuf> = None;
        /// Set this when programs read the log: format of a line, that of the access log of
        /// deployed servers, or JSON.
        live format: QueryLogFormat = QueryLogFormat::Handle;
        /// Set this when a sample is enough: one in this many answers of each worker is logged.
        live sample_every: u32 = 1, 1..=u32::MAX;
        /// Set this when the disk takes more or fewer lines: most per second of all workers
        /// together. Others are dropped and counted.
        live lines_per_second: u32 = 1000, 1..=1_000_000;
        /// Set this when abuse must be traced to hosts: log whole addresses, otherwise an IPv4 /24
        /// or IPv6 /48.
        live whole_addresses: bool = false;
    } constants {
        /// Lines waiting to be written: a second of the default rate. Others are dropped and
        /// counted.
        queue_lines: usize = 1024;
        /// Prefix length of a logged network, IPv4: too short to name a person.
        ipv4_bits: u8 = 24;
        /// Prefix length of a logged network, IPv6: what one site has.
        ipv6_bits: u8 = 48;
    }
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

impl SettingType for QueryLogFormat {
    fn type_name() -> String {
        "`handle`, `json`".to_owned()
    }
}

impl QueryLogSettings {
    /// Truncates an address for logging. Returns it with the number of bits kept.
    pub(super) fn cut(&self, ip: IpAddr) -> (IpAddr, u8) {
        let ip = ip.to_canonical();
        let (all, some) = if ip.is_ipv4() { (32, self.ipv4_bits) } else { (128, self.ipv6_bits) };
        let bits = if self.whole_addresses { all } else { some };
        (Network::new(ip, bits).address(), bits)
    }
}
