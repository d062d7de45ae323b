//! The configuration: a TOML file, overridden by arguments, checked before anything starts.

use crate::bulk::config::BulkConfig;
use crate::callers::config::CallersConfig;
use crate::changes::config::ChangesConfig;
use crate::costly::config::CostlyConfig;
use crate::forward::config::ForwardConfig;
use crate::index::config::IndexConfig;
use crate::mirror::config::MirrorConfig;
use crate::publish::settings::PublishConfig;
use crate::remote::config::RemoteConfig;
use crate::replication::config::ReplicationConfig;
pub use handle_daemon::administrators::AdministratorsConfig;
use handle_daemon::listen::each_once;
use handle_daemon::server_key::ServerKeyConfig;
use handle_daemon::sessions::SessionsConfig;
use handle_daemon::settings;
use handle_daemon::settings::{DAY_MS, NETWORKS, SettingError};
use handle_proto::limit;
use handle_source::{SourceConfig, check_sources};
use handle_store::StoreConfig;
use std::net::SocketAddr;
use std::path::PathBuf;

settings! {
    /// Configuration of `handle-admin`.
    pub struct Config of process on port 2642 where settings_agree {
        /// Site record, as JSON; the same as that of `handled`.
        restart site: PathBuf = PathBuf::from("/etc/handled/siteinfo.json");
        /// Which server of the site this is, by its `serverId`. Required if the site has several
        /// servers.
        restart server_id: Option<i32> = None;
        /// Threads that answer requests; 0 for one on each core. Threads that wait for the disk are
        /// additional.
        restart threads: usize = 0, 0..=1024;
        /// File of the audit log, one line of JSON for each administrative request. Without it, the
        /// lines are in the log of the process.
        live audit: Option<PathBuf> = None;
        /// Allow listing handles (opcode 105).
        live list_handles: bool = true;
        /// Refuse requests outside a session instead of sending a challenge.
        live require_sessions: bool = false;
        /// Allow handles and prefixes with control characters, or with characters that change the
        /// direction of text.
        live allow_control_characters: bool = false;
        /// Allow everything to everyone. For tests, and for networks without other hosts.
        live anonymous_full_access: bool = false;
        section store: StoreConfig;
        section publish: PublishConfig;
        section server_key: Option<ServerKeyConfig>;
        live_section administrators: AdministratorsConfig;
        section sessions: SessionsConfig;
        section sources: Vec<SourceConfig>;
        section remote: RemoteConfig;
        section replication: ReplicationConfig;
        section mirror: MirrorConfig;
        section forward: ForwardConfig;
        section callers: CallersConfig;
        section bulk: BulkConfig;
        section index: IndexConfig;
        section changes: ChangesConfig;
        section limits: AdminLimits;
        section costly: CostlyConfig;
        section tcp: TcpConfig;
        section observe: ObserveConfig;
    }
}

fn settings_agree(config: &Config) -> Result<(), SettingError> {
    each_once(&config.listen).map_err(|error| SettingError::Together(error.to_string()))?;
    check_sources(&config.sources)?;
    let copies = config.sources.iter().any(|source| source.pull.is_some());
    let has_lease = config.publish.directory.is_some() && config.publish.lease_ms > 0;
    match copies && config.store.is_in_database() && !has_lease {
        true => Err(SettingError::Together(
            "`sources.pull` with a store in a database needs `publish.directory` and `publish.lease_ms`: of several \
             processes, the one that publishes copies"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

settings! {
    /// Bounds of records, challenges and logs.
    pub struct AdminLimits {
        /// Most bytes of a handle.
        live handle_bytes: usize = limit::HANDLE_LEN_MAX, 1..=limit::HANDLE_LEN_MAX;
        /// Most values of a record. Clients of other implementations read no more than 2048.
        live record_values: usize = limit::VALUES_COUNT_MAX, 1..=limit::VALUES_COUNT_MAX;
        /// Most bytes of the values of a record, so that all of them fit into an answer.
        live record_bytes: usize = limit::VALUES_LEN_MAX, 1..=limit::VALUES_LEN_MAX;
        /// Most references of a value.
        live value_references: usize = limit::REFERENCES_COUNT_MAX, 0..=limit::REFERENCES_COUNT_MAX;
        /// Challenges waiting for an answer. One more displaces the oldest.
        live challenges: usize = 65_536, 1..=1 << 24;
        /// Bytes of the challenged requests.
        live challenge_bytes: usize = 64 << 20, limit::MESSAGE_LEN_MAX as usize..=1 << 32;
        /// Challenges to one IPv4 address or IPv6 /64. One more displaces its oldest.
        live challenges_per_source <= challenges: usize = 1024, 1..=1 << 24;
        /// Sources that are exempt from the limits of challenges, work and wrong secret keys by
        /// source: `handle-gateway` on other hosts, and servers that verify answers here.
        live exempt_sources: Vec<String> = Vec::new(), NETWORKS;
        /// Time in which a challenge can be answered.
        live challenge_ms: u32 = 60_000, 1..=3_600_000;
        /// Values of groups (HS_VLIST) looked up for one decision.
        live group_lookups: usize = limit::VLIST_EXPANSION_MAX, 0..=limit::VLIST_EXPANSION_MAX;
        /// Keys tried for an identity that does not name one.
        live keys_tried: usize = 16, 1..=1024;
        /// Most PBKDF2 rounds in the answer to a challenge. Four take about a microsecond.
        live pbkdf2_iterations: u32 = 100_000, 1..=limit::PBKDF2_ITERATIONS_MAX;
        /// Most PBKDF2 work for one answer: rounds, times one for each 160 bits of the derived key,
        /// times the keys that are tried.
        live pbkdf2_work: u32 = 160_000, 1..=1 << 30;
        /// Least bits of the derived key.
        live pbkdf2_key_bits_min <= pbkdf2_key_bits_max: u32 = 160, 128..=limit::PBKDF2_KEY_BITS_MAX;
        /// Most bits of the derived key.
        live pbkdf2_key_bits_max: u32 = 256, 128..=limit::PBKDF2_KEY_BITS_MAX;
        /// Lines of the audit log for requests that were refused, anonymous or without effect.
        live audit_refusals_per_s: u32 = 50, 1..=100_000;
        /// Of these, for one IPv4 address or IPv6 /64.
        live audit_refusals_per_source_per_s <= audit_refusals_per_s: u32 = 10, 1..=100_000;
        /// Bytes of such lines, as an average; 64 times as many in a burst.
        live audit_refusals_bytes_per_s: usize = 1024, 256..=1 << 30;
        /// Bytes at which the file of the audit log is rotated.
        live audit_file_bytes: usize = 64 << 20, 64 << 10..=1 << 40;
        /// Rotated files of the audit log that are kept; `audit.jsonl.1` is the newest.
        live audit_files: u32 = 16, 1..=10_000;
        /// Free bytes of a file system below which it counts as nearly full.
        live disk_free_bytes: usize = 256 << 20, 0..=1 << 50;
        /// Most bytes of a line on the control socket.
        live control_line_bytes: usize = 4096, 64..=1 << 20;
    }
}

settings! {
    /// Limits on the number and duration of connections.
    pub struct TcpConfig {
        /// Connections waiting to be accepted. The kernel allows at most `net.core.somaxconn`.
        restart backlog: u32 = 1024, 1..=1 << 16;
        /// Connections at a time. One more displaces a connection that is idle, or whose request is
        /// incomplete.
        live connections: usize = 4096, 1..=1 << 20;
        /// Of these, from one IPv4 address or IPv6 /64. A /56 may have twice as many, a /48 four
        /// times.
        live connections_per_source <= connections: usize = 512, 1..=1 << 20;
        /// Requests in progress at a time; others wait. Each may need as much memory as the longest
        /// message.
        restart requests: usize = 256, 1..=1 << 12;
        /// Most bytes of a request, without its envelope.
        live request_bytes: u32 = limit::MESSAGE_LEN_MAX, 64..=limit::MESSAGE_LEN_MAX;
        /// Bytes of all incomplete requests, without the first 4096 of each. Beyond it, the
        /// connections with the oldest ones are closed.
        live input_bytes: usize = 64 << 20, 1 << 20..=1 << 36;
        /// Most time that a connection stays open without a request.
        live idle_ms: u32 = limit::TCP_IDLE_TIMEOUT_MS, 1..=DAY_MS;
        /// Most time for a request to arrive, from its first byte to its last.
        live read_ms: u32 = 30_000, 1..=DAY_MS;
        /// Most time for one message of an answer to be read.
        live write_ms: u32 = 30_000, 1..=DAY_MS;
        /// Most time that a closed connection waits for the other side to close.
        live linger_ms: u32 = 1000, 0..=DAY_MS;
    }
}

settings! {
    /// Scrape endpoint and readiness ([admin-metrics.md](admin-metrics.md)).
    pub struct ObserveConfig {
        /// TCP address of `/metrics`, `/healthz` and `/readyz`; none if not set. The endpoint has
        /// neither encryption nor authentication, so it belongs on loopback or a private network.
        restart http: Option<SocketAddr> = None;
        /// HTTP connections at a time; more are refused.
        restart http_connections: usize = 16, 1..=1024;
        /// Most bytes of the head of an HTTP request.
        live http_header_bytes: usize = 4096, 64..=1 << 20;
        /// Most time for one HTTP connection.
        restart http_timeout_ms: u32 = 5000, 1..=600_000;
        /// Least time between two readiness checks, which write to the store and read it back.
        restart probe_every_ms: u32 = 1000, 0..=DAY_MS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn says_which_settings_contradict_each_other() {
        let says = |text: &str| toml::from_str::<Config>(text).unwrap().check().unwrap_err().to_string();
        assert!(says("[remote]\nenabled = true").contains("remote.root"));
        let twice = says("listen = [\"127.0.0.1:2642\", \"127.0.0.1:2642\"]");
        assert_eq!(twice, "`listen` names 127.0.0.1:2642 twice");
        let copied = "[store.postgres]\nurl = \"postgresql://u@h/d\"\n[[sources]]\nname = \"a\"\n\
                      prefixes = [\"10.1\"]\nurl = \"http://a.example\"\npull = {}\n[publish]\n";
        assert!(says(copied).contains("`sources.pull` with a store in a database"));
        assert!(says(&format!("{copied}directory = \"set\"\nlease_ms = 0")).contains("`publish.lease_ms`"));
        let agrees = format!("{copied}directory = \"set\"");
        assert_eq!(toml::from_str::<Config>(&agrees).unwrap().check(), Ok(()));
    }
}
