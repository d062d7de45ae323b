//! The configuration: a TOML file, overridden by arguments, checked before anything starts.

use crate::bulk::config::BulkConfig;
use crate::callers::config::CallersConfig;
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
use handle_daemon::settings;
use handle_daemon::settings::{DAY_MS, NETWORKS, SettingError};
use handle_local::config::LocalConfig;
use handle_proto::limit;
use handle_session::SessionsConfig;
use handle_source::{SourceConfig, check_sources};
use handle_store::StoreConfig;
use std::net::SocketAddr;
use std::path::PathBuf;

settings! {
    /// Configuration of `handle-admin`.
    pub struct Config of process on port 2642 where settings_agree {
        /// Set this when the site record is elsewhere: its path, as JSON, the same as for
        /// `handled`.
        restart site: PathBuf = PathBuf::from("/etc/handled/siteinfo.json");
        /// Set this when the site has several servers: the `serverId` of this one.
        restart server_id: Option<i32> = None;
        /// Set this when an upgrade must not lose a request: continue with the sockets of the
        /// process that listens on `control`, if there is one. Needs `control`.
        restart take_over: bool = false;
        /// Set this when requests may not use all cores: threads that answer them; 0 for one on
        /// each core. Threads that wait for the disk are additional.
        restart threads: usize = 0, 0..=1024;
        /// Set this when administrative requests need a log of their own: the audit log, one line
        /// of JSON for each. Without it, the lines are in the log of the process.
        live audit: Option<PathBuf> = None;
        /// Set this when handles must not be listed: `false` refuses to (opcode 105).
        live list_handles: bool = true;
        /// Set this when all clients support sessions: requests outside one are refused instead of
        /// challenged.
        live require_sessions: bool = false;
        /// Set this when handles or prefixes have control characters, or ones that change the
        /// direction of text: allow them.
        live allow_control_characters: bool = false;
        /// Set this when a test, on a network without other hosts, needs no keys: allow everything
        /// to everyone.
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
        section local: LocalConfig;
        section forward: ForwardConfig;
        section callers: CallersConfig;
        section bulk: BulkConfig;
        section index: IndexConfig;
        section limits: AdminLimits;
        section costly: CostlyConfig;
        section tcp: TcpConfig;
        section observe: ObserveConfig;
    }
}

fn settings_agree(config: &Config) -> Result<(), SettingError> {
    each_once(&config.listen).map_err(|error| SettingError::Together(error.to_string()))?;
    if config.take_over && config.control.is_none() {
        return Err(SettingError::Together(
            "`take_over` needs `control`: the control socket of the process that serves now".to_owned(),
        ));
    }
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
        /// Set this when records must be smaller than an answer can be: most bytes of the values of
        /// a record.
        live record_bytes: usize = limit::VALUES_LEN_MAX, 1..=limit::VALUES_LEN_MAX;
        /// Set this when more clients authenticate at a time, or memory is short: challenges that
        /// wait for an answer, with 1 KiB for the request of each, in total. One source has a 64th.
        /// One more, of all or of a source, displaces the oldest.
        live challenges: usize = 65_536, 1..=1 << 24;
        /// Set this when a host sends requests of many clients, as `handle-gateway` elsewhere, or
        /// verifies answers here: sources without the limits of challenges, work and wrong secret
        /// keys by source.
        live exempt_sources: Vec<String> = Vec::new(), NETWORKS;
        /// Set this when clients take longer to sign, as people with a device: time to answer a
        /// challenge.
        live challenge_ms: u32 = 60_000, 1..=3_600_000;
        /// Set this when clients derive keys with more rounds, or fewer should be computed: most
        /// PBKDF2 rounds in the answer to a challenge. Four take about a microsecond. All keys that
        /// are tried for an answer may take 1.6 times as many, each once for each 160 bits.
        live pbkdf2_iterations: u32 = 100_000, 1..=limit::PBKDF2_ITERATIONS_MAX;
        /// Set this when refused requests should take less of the audit log, or be seen more
        /// completely: lines per second for requests that were refused, anonymous or without
        /// effect, with 20 bytes per second for each, in a burst 64 times as many. One source gets
        /// a fifth of the lines.
        live audit_refusals_per_s: u32 = 50, 1..=100_000;
        /// Set this when the audit log must go back further, or its disk is small: bytes at which
        /// its file is rotated. 16 rotated files are kept; `audit.jsonl.1` is the newest.
        live audit_file_bytes: usize = 64 << 20, 64 << 10..=1 << 40;
        /// Set this when the warning of a full disk should come later or earlier: free bytes of a
        /// file system below which it counts as nearly full.
        live disk_free_bytes: usize = 256 << 20, 0..=1 << 50;
    } constants {
        /// As long as the protocol and deployed servers allow.
        handle_bytes: usize = limit::HANDLE_LEN_MAX;
        /// Clients of other implementations read no more values of a record.
        record_values: usize = limit::VALUES_COUNT_MAX;
        /// As many references of a value as clients of other implementations read.
        value_references: usize = limit::REFERENCES_COUNT_MAX;
        /// Values of groups (HS_VLIST) looked up for one decision: as many as deployed servers
        /// expand, so that nobody loses rights, and circular groups end.
        group_lookups: usize = limit::VLIST_EXPANSION_MAX;
        /// Keys tried for an identity that does not name one. Each may cost a signature check, and
        /// records with more keys are not known.
        keys_tried: usize = 16;
        /// Least bits of a derived key: those of HMAC-SHA1, which clients use.
        pbkdf2_key_bits_min: u32 = 160;
        /// Most bits of a derived key, which no known client exceeds. Each 160 take another run.
        pbkdf2_key_bits_max: u32 = 256;
        /// Rotated files of the audit log that are kept, which is 1 GiB with files of 64 MiB.
        audit_files: u32 = 16;
        /// Most bytes of a line on the control socket: several times the longest command.
        control_line_bytes: usize = 4096;
    }
}

impl AdminLimits {
    /// Bytes of all challenged requests that wait: 1 KiB for each, and always the longest message.
    #[must_use]
    pub fn challenge_bytes(&self) -> usize {
        self.challenges.saturating_mul(1024).max(limit::MESSAGE_LEN_MAX as usize)
    }

    /// Challenges of one IPv4 address or IPv6 /64: a 64th of all.
    #[must_use]
    pub const fn challenges_per_source(&self) -> usize {
        self.challenges.div_ceil(64)
    }

    /// PBKDF2 rounds for one answer, with all keys that are tried: 1.6 times those of one key.
    #[must_use]
    pub const fn pbkdf2_work(&self) -> u32 {
        self.pbkdf2_iterations.saturating_add(self.pbkdf2_iterations / 5 * 3)
    }

    /// Bytes of the lines for refused requests, as an average; 64 times as many in a burst. The
    /// 1024 of 50 lines are 86 MiB a day, so nobody replaces all rotated files within a week.
    #[must_use]
    pub const fn audit_refusals_bytes_per_s(&self) -> u64 {
        let bytes = self.audit_refusals_per_s as u64 * 1024 / 50;
        if bytes < 256 { 256 } else { bytes }
    }

    /// Lines of the audit log for refused requests of one IPv4 address or IPv6 /64: a fifth of all.
    #[must_use]
    pub const fn audit_refusals_per_source_per_s(&self) -> u32 {
        self.audit_refusals_per_s.div_ceil(5)
    }
}

settings! {
    /// Limits on connections.
    pub struct TcpConfig {
        /// Set this when more clients are connected at a time, or memory or descriptors are short:
        /// most connections. One more displaces one that is idle, or whose request is incomplete.
        live connections: usize = 4096, 1..=1 << 20;
        /// Set this when many clients share an address, as behind a gateway or NAT: connections of
        /// one IPv4 address or IPv6 /64. A /56 may have twice as many, a /48 four times.
        live connections_per_source <= connections: usize = 512, 1..=1 << 20;
        /// Set this when memory is short: requests in progress at a time; others wait. Each may
        /// need the memory of the longest message.
        restart requests: usize = 256, 1..=1 << 12;
        /// Set this when memory is short, or many clients send long requests slowly: bytes of all
        /// incomplete requests, without the first 4096 of each. Beyond it, the connections with the
        /// oldest are closed.
        live input_bytes: usize = 64 << 20, 1 << 20..=1 << 36;
        /// Set this when clients keep connections for longer, or there are too few: most time
        /// without a request.
        live idle_ms: u32 = limit::TCP_IDLE_TIMEOUT_MS, 1..=DAY_MS;
    } constants {
        /// Connections waiting to be accepted: a burst of a second. The kernel allows at most
        /// `net.core.somaxconn`, 4096 by default.
        backlog: u32 = 1024;
        /// Most time for a request to arrive, from its first byte to its last: the longest message
        /// over a line of 300 kbit/s.
        read_ms: u32 = 30_000;
        /// Most time for one message of an answer to be read, as for a request.
        write_ms: u32 = 30_000;
        /// Most time that a closed connection waits for the other side to close: several times the
        /// longest round trip on Earth.
        linger_ms: u32 = 1000;
    }
}

settings! {
    /// Scrape endpoint and readiness ([admin-metrics.md](admin-metrics.md)).
    pub struct ObserveConfig {
        /// Set this when the process is monitored: TCP address of `/metrics`, `/healthz` and
        /// `/readyz`; none if not set. It has neither encryption nor authentication, so it belongs
        /// on loopback or a private network.
        restart http: Option<SocketAddr> = None;
    } constants {
        /// HTTP connections at a time; more are refused. A few monitors, each with a connection or
        /// two.
        http_connections: usize = 16;
        /// Most bytes of the head of an HTTP request: several times what monitors send.
        http_header_bytes: usize = 4096;
        /// Most time for one HTTP connection. Monitors give up after 10 seconds.
        http_timeout_ms: u32 = 5000;
        /// Least time between two readiness checks, which write to the store and read it back, so
        /// that whoever asks cannot wear the disk.
        probe_every_ms: u32 = 1000;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn related_bounds_are_shares_of_one_setting() {
        let mut config = Config::default();
        let bounds = |config: &Config| {
            let (limits, bulk) = (&config.limits, &config.bulk);
            [
                limits.challenge_bytes(),
                limits.challenges_per_source(),
                limits.pbkdf2_work() as usize,
                limits.audit_refusals_per_source_per_s() as usize,
                usize::try_from(limits.audit_refusals_bytes_per_s()).unwrap(),
                bulk.keys(),
                bulk.keys_per_identity(),
                bulk.results_per_identity(),
                config.replication.streams_per_identity(),
                config.callers.limits().per_identity,
            ]
        };
        assert_eq!(bounds(&config), [64 << 20, 1024, 160_000, 10, 1024, 10_000, 2500, 500_000, 4, 64]);
        (config.limits.challenges, config.limits.pbkdf2_iterations) = (1, 1);
        (config.limits.audit_refusals_per_s, config.bulk.results) = (1, 1);
        (config.replication.streams, config.callers.sessions) = (1, 1);
        // Each is enough for one.
        assert_eq!(bounds(&config), [limit::MESSAGE_LEN_MAX as usize, 1, 1, 1, 256, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn says_which_settings_contradict_each_other() {
        let says = |text: &str| toml::from_str::<Config>(text).unwrap().check().unwrap_err().to_string();
        assert!(says("[remote]\nenabled = true").contains("remote.root"));
        assert!(says("take_over = true").contains("`take_over` needs `control`"));
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
