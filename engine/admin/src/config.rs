//! What an operator says: a TOML file, with flags over it, checked before anything starts.

use crate::audit::{AuditBounds, FileBounds};
use crate::costly::CostlyConfig;
use crate::forward::ForwardConfig;
use crate::operation::OperationBounds;
use crate::permission::Administrators;
use crate::publish::PublishConfig;
use crate::remote::RemoteConfig;
use crate::service::ChallengeEffort;
use crate::store::StoreConfig;
use anyhow::ensure;
use handle_auth::challenges::ChallengeLimits;
use handle_auth::kdf::Pbkdf2Limits;
use handle_auth::source::SourceList;
pub use handle_daemon::administrators::AdministratorsConfig;
use handle_daemon::identity::identities;
use handle_daemon::listen::each_once;
use handle_daemon::server_key::ServerKeyConfig;
use handle_daemon::sessions::SessionsConfig;
use handle_daemon::sessions::config::exempt_sources;
use handle_daemon::{log, text};
use handle_proto::limit;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Configuration of `handle-admin`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// A file with settings that both processes read: administrators, sessions, site record and server key. They count
    /// as if they stood here.
    pub shared: Option<PathBuf>,
    /// The site record as JSON; the same as that of `handled`.
    pub site: PathBuf,
    /// Which server of the site this is, by its `serverId`; must be said where there are several.
    pub server_id: Option<i32>,
    /// Addresses to answer on, over TCP: what the site record calls the interface for administration.
    pub listen: Vec<SocketAddr>,
    /// Threads that answer requests; 0 for one on each core. Those that wait for the disk are besides.
    pub threads: usize,
    /// UNIX socket for `status`, `stats`, `reload` and `drain`; none when empty.
    pub control: Option<PathBuf>,
    /// File for a line of JSON for each administrative request; the log, where that is not said.
    pub audit: Option<PathBuf>,
    /// The user to become once ports are bound, when started as root: a name, or `uid:gid`.
    pub user: Option<String>,
    /// Serve as root all the same, without `user`.
    pub allow_root: bool,
    /// What is logged: error, warn, info, debug or trace, by module if need be.
    pub log: String,
    /// Whether handles are listed (opcode 105).
    pub list_handles: bool,
    /// Whether whoever has no session is refused instead of challenged.
    pub require_sessions: bool,
    /// Whether handles may be created whose names have control characters.
    pub allow_control_characters: bool,
    /// Everybody may do everything. For tests, and for networks where nobody else is.
    pub anonymous_full_access: bool,
    /// The records.
    pub store: StoreConfig,
    /// How records become what resolvers serve.
    pub publish: PublishConfig,
    /// The key that signs answers; without it none is signed.
    pub server_key: Option<ServerKeyConfig>,
    /// Who may do what, beside the administrators of handles.
    pub administrators: AdministratorsConfig,
    /// Keys agreed on with clients.
    pub sessions: SessionsConfig,
    /// Other services, which may be asked about identities whose handles are not here.
    pub elsewhere: RemoteConfig,
    /// Requests that `handled` hands over.
    pub forward: ForwardConfig,
    /// Sizes of everything that is bounded.
    pub limits: AdminLimits,
    /// Work that strangers ask for and that takes long.
    pub costly: CostlyConfig,
    /// Connections.
    pub tcp: TcpConfig,
    /// What the outside may see.
    pub observe: ObserveConfig,
}

/// Sizes of everything that is bounded.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminLimits {
    /// Most bytes of a handle.
    pub handle_bytes: usize,
    /// Most values of a record; clients of others read no more than 2048.
    pub record_values: usize,
    /// Most bytes of the values of a record, so that all of them fit into an answer.
    pub record_bytes: usize,
    /// Most references of a value.
    pub value_references: usize,
    /// Challenges that wait for an answer; the oldest makes room for a new one.
    pub challenges: usize,
    /// Bytes of the requests that were challenged.
    pub challenge_bytes: usize,
    /// Challenges that wait for an answer of one source: an IPv4 address, or a /64 of IPv6. One more displaces its oldest.
    pub challenges_per_source: usize,
    /// Addresses and networks that limits of challenges and work by source do not apply to.
    pub exempt_sources: Vec<String>,
    /// How long a challenge can be answered, in milliseconds.
    pub challenge_ms: u32,
    /// Most values of groups (HS_VLIST) that are looked up to find whether somebody is an administrator.
    pub group_lookups: usize,
    /// Most keys of one identity that are tried when it does not say which.
    pub keys_tried: usize,
    /// Most PBKDF2 rounds that the answer to a challenge may ask for; four take about a microsecond.
    pub pbkdf2_iterations: u32,
    /// Most rounds, times one for each 160 bits of the derived key, times the keys that are tried.
    pub pbkdf2_work: u32,
    /// Least bits of a derived key.
    pub pbkdf2_key_bits_min: u32,
    /// Most bits of a derived key.
    pub pbkdf2_key_bits_max: u32,
    /// Lines of the audit log in one second for requests that were refused, anonymous or without an effect.
    pub audit_refusals_per_s: u32,
    /// Of these, those of one source: an IPv4 address, or a /64 of IPv6.
    pub audit_refusals_per_source_per_s: u32,
    /// Bytes of such lines in one second, over time; 64 times as many at once.
    pub audit_refusals_bytes_per_s: usize,
    /// Bytes at which the file of the audit log is rotated.
    pub audit_file_bytes: usize,
    /// Older files of the audit log that are kept.
    pub audit_files: u32,
    /// Free bytes of a file system below which it counts as nearly full.
    pub disk_free_bytes: usize,
    /// Most bytes of a line on the control socket.
    pub control_line_bytes: usize,
}

/// Who may be connected, how many, for how long.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcpConfig {
    /// Connections that wait to be accepted; the kernel grants at most `net.core.somaxconn`.
    pub backlog: u32,
    /// Connections at a time. One more takes the place of one that is idle, or whose request does not arrive.
    pub connections: usize,
    /// Of these, from one source: an IPv4 address, or a /64 of IPv6. A /56 may have twice as many, a /48 four times.
    pub connections_per_source: usize,
    /// Requests that are worked on at a time; the others wait. Each may need as much memory as the longest message.
    pub requests: usize,
    /// Most bytes of a request, without its envelope.
    pub request_bytes: u32,
    /// Bytes of all requests that are not whole, without the first 4096 of each. The oldest make room for others.
    pub input_bytes: usize,
    /// How long a connection may be open without a request, in milliseconds.
    pub idle_ms: u32,
    /// How long a request may take to arrive, from its first byte to its last, in milliseconds.
    pub read_ms: u32,
    /// How long the reading of one message of an answer may take, in milliseconds.
    pub write_ms: u32,
    /// How long a connection that is closed waits for the end of the other side, in milliseconds.
    pub linger_ms: u32,
}

/// What the outside may see, and how much that may cost.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveConfig {
    /// TCP address of `/metrics`, `/healthz` and `/readyz`; none when empty. There is no encryption and nobody is
    /// asked who they are, so it belongs on loopback or a network of one's own.
    pub http: Option<SocketAddr>,
    /// HTTP connections at a time; more are refused.
    pub http_connections: usize,
    /// Most bytes of the head of an HTTP request.
    pub http_header_bytes: usize,
    /// How long one HTTP connection may take from first to last byte, in milliseconds.
    pub http_patience_ms: u32,
    /// Readiness is found out by writing to the store and reading it back, at most once in so many milliseconds.
    pub probe_every_ms: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shared: None,
            site: PathBuf::from("/etc/handled/siteinfo.json"),
            server_id: None,
            listen: vec![SocketAddr::from(([0u16; 8], 2642))],
            threads: 0,
            control: None,
            audit: None,
            user: None,
            allow_root: false,
            log: "info".to_owned(),
            list_handles: true,
            require_sessions: false,
            allow_control_characters: false,
            anonymous_full_access: false,
            store: StoreConfig::default(),
            publish: PublishConfig::default(),
            server_key: None,
            administrators: AdministratorsConfig::default(),
            sessions: SessionsConfig::default(),
            elsewhere: RemoteConfig::default(),
            forward: ForwardConfig::default(),
            limits: AdminLimits::default(),
            costly: CostlyConfig::default(),
            tcp: TcpConfig::default(),
            observe: ObserveConfig::default(),
        }
    }
}

impl Default for AdminLimits {
    fn default() -> Self {
        Self {
            handle_bytes: limit::HANDLE_LEN_MAX,
            record_values: limit::VALUES_COUNT_MAX,
            record_bytes: RECORD_BYTES_MAX,
            value_references: limit::REFERENCES_COUNT_MAX,
            challenges: 65_536,
            challenge_bytes: 64 << 20,
            challenges_per_source: 1024,
            exempt_sources: Vec::new(),
            challenge_ms: 60_000,
            group_lookups: limit::VLIST_EXPANSION_MAX,
            keys_tried: 16,
            pbkdf2_iterations: 100_000,
            pbkdf2_work: 160_000,
            pbkdf2_key_bits_min: 160,
            pbkdf2_key_bits_max: 256,
            audit_refusals_per_s: 50,
            audit_refusals_per_source_per_s: 10,
            audit_refusals_bytes_per_s: 1024,
            audit_file_bytes: 64 << 20,
            audit_files: 16,
            disk_free_bytes: 256 << 20,
            control_line_bytes: 4096,
        }
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            backlog: 1024,
            connections: 4096,
            connections_per_source: 512,
            requests: 256,
            request_bytes: limit::MESSAGE_LEN_MAX,
            input_bytes: 64 << 20,
            idle_ms: limit::TCP_IDLE_TIMEOUT_MS,
            read_ms: 30_000,
            write_ms: 30_000,
            linger_ms: 1000,
        }
    }
}

impl Default for ObserveConfig {
    fn default() -> Self {
        Self {
            http: None,
            http_connections: 16,
            http_header_bytes: 4096,
            http_patience_ms: 5000,
            probe_every_ms: 1000,
        }
    }
}

/// Bytes of values that fit into an answer, whatever digest, signature and handle go with them.
pub const RECORD_BYTES_MAX: usize = limit::MESSAGE_LEN_MAX as usize - 8192;
/// Longest wait that may be configured: a day.
const WAIT_MS_MAX: usize = 86_400_000;

impl Config {
    /// Reads the file at `path`. Paths in it are relative to its directory.
    ///
    /// # Errors
    /// When it cannot be read, or says something that is not understood.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let (mut config, directory): (Self, _) = text::configuration(path)?;
        config.shared = config.shared.map(|shared| directory.join(shared));
        config.site = directory.join(&config.site);
        config.store.file = directory.join(&config.store.file);
        config.publish.directory = config.publish.directory.map(|set| directory.join(set));
        config.control = config.control.map(|control| directory.join(control));
        config.audit = config.audit.map(|audit| directory.join(audit));
        config.server_key = config.server_key.map(|key| key.relative_to(directory));
        config.sessions = config.sessions.relative_to(directory);
        config.elsewhere = config.elsewhere.relative_to(directory);
        config.forward = config.forward.relative_to(directory);
        Ok(config)
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting, and what it should be.
    pub fn check(&self) -> anyhow::Result<()> {
        log::check(&self.log)?;
        ensure!(!self.listen.is_empty(), "`listen` is empty: name at least one address, as \"[::]:2642\"");
        each_once(&self.listen)?;
        self.sessions.check()?;
        exempt_sources("limits.exempt_sources", &self.limits.exempt_sources)?;
        self.elsewhere.check()?;
        self.forward.check()?;
        let (limits, tcp, observe) = (&self.limits, &self.tcp, &self.observe);
        let (bits_min, bits_max) = (limits.pbkdf2_key_bits_min, limits.pbkdf2_key_bits_max);
        let bounds = [
            ("threads", self.threads, 0, 1024),
            ("limits.handle_bytes", limits.handle_bytes, 1, limit::HANDLE_LEN_MAX),
            ("limits.record_values", limits.record_values, 1, limit::VALUES_COUNT_MAX),
            ("limits.record_bytes", limits.record_bytes, 1, RECORD_BYTES_MAX),
            ("limits.value_references", limits.value_references, 0, limit::LIST_COUNT_MAX),
            ("limits.challenges", limits.challenges, 1, 1 << 24),
            ("limits.challenge_bytes", limits.challenge_bytes, limit::MESSAGE_LEN_MAX as usize, 1 << 32),
            ("limits.challenges_per_source", limits.challenges_per_source, 1, limits.challenges),
            ("limits.challenge_ms", limits.challenge_ms as usize, 1, 3_600_000),
            ("limits.group_lookups", limits.group_lookups, 0, limit::VLIST_EXPANSION_MAX),
            ("limits.keys_tried", limits.keys_tried, 1, 1024),
            (
                "limits.pbkdf2_iterations",
                limits.pbkdf2_iterations as usize,
                1,
                limit::PBKDF2_ITERATIONS_MAX as usize,
            ),
            ("limits.pbkdf2_work", limits.pbkdf2_work as usize, 1, 1 << 30),
            ("limits.pbkdf2_key_bits_min", bits_min as usize, 128, bits_max as usize),
            ("limits.pbkdf2_key_bits_max", bits_max as usize, 128, limit::PBKDF2_KEY_BITS_MAX as usize),
            ("limits.audit_refusals_per_s", limits.audit_refusals_per_s as usize, 1, 100_000),
            (
                "limits.audit_refusals_per_source_per_s",
                limits.audit_refusals_per_source_per_s as usize,
                1,
                limits.audit_refusals_per_s as usize,
            ),
            ("limits.audit_refusals_bytes_per_s", limits.audit_refusals_bytes_per_s, 256, 1 << 30),
            ("limits.audit_file_bytes", limits.audit_file_bytes, 64 << 10, 1 << 40),
            ("limits.audit_files", limits.audit_files as usize, 1, 10_000),
            ("limits.disk_free_bytes", limits.disk_free_bytes, 0, 1 << 50),
            ("costly.threads", self.costly.threads, 0, 256),
            ("costly.requests", self.costly.requests, 1, 1 << 12),
            ("limits.control_line_bytes", limits.control_line_bytes, 64, 1 << 20),
            ("tcp.backlog", tcp.backlog as usize, 1, 1 << 16),
            ("tcp.connections", tcp.connections, 1, 1 << 20),
            ("tcp.connections_per_source", tcp.connections_per_source, 1, tcp.connections),
            ("tcp.requests", tcp.requests, 1, 1 << 12),
            ("tcp.request_bytes", tcp.request_bytes as usize, 64, limit::MESSAGE_LEN_MAX as usize),
            ("tcp.input_bytes", tcp.input_bytes, 1 << 20, 1 << 36),
            ("tcp.idle_ms", tcp.idle_ms as usize, 1, WAIT_MS_MAX),
            ("tcp.read_ms", tcp.read_ms as usize, 1, WAIT_MS_MAX),
            ("tcp.write_ms", tcp.write_ms as usize, 1, WAIT_MS_MAX),
            ("tcp.linger_ms", tcp.linger_ms as usize, 0, WAIT_MS_MAX),
            ("observe.http_connections", observe.http_connections, 1, 1 << 10),
            ("observe.http_header_bytes", observe.http_header_bytes, 64, 1 << 20),
            ("observe.http_patience_ms", observe.http_patience_ms as usize, 1, 600_000),
            ("observe.probe_every_ms", observe.probe_every_ms as usize, 0, WAIT_MS_MAX),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`{name}` is {value}: it must be from {least} to {most}"
            );
        }
        if let Some(key) = &self.server_key {
            key.check()?;
        }
        self.administrators()?;
        self.publish.check()?;
        self.store.check()
    }

    /// Who may do what.
    ///
    /// # Errors
    /// Names the identity that is none.
    pub fn administrators(&self) -> anyhow::Result<Administrators> {
        let config = &self.administrators;
        Ok(Administrators {
            server: identities("administrators.server", &config.server)?,
            server_full_access: config.server_full_access,
            home_only: identities("administrators.home_only", &config.home_only)?,
            replication: identities("administrators.replication", &config.replication)?,
            backup: identities("administrators.backup", &config.backup)?,
            status: identities("administrators.status", &config.status)?,
            prefix_administrators: config.prefix_administrators,
            lookups_max: self.limits.group_lookups,
        })
    }

    /// How many lines of requests without an effect the audit log takes.
    #[must_use]
    pub const fn audit_bounds(&self) -> AuditBounds {
        AuditBounds {
            lines_per_s: self.limits.audit_refusals_per_s,
            lines_per_source_per_s: self.limits.audit_refusals_per_source_per_s,
            bytes_per_s: self.limits.audit_refusals_bytes_per_s as u64,
        }
    }

    /// How large the audit log grows.
    #[must_use]
    pub const fn audit_files(&self) -> FileBounds {
        FileBounds { bytes_max: self.limits.audit_file_bytes as u64, files_max: self.limits.audit_files }
    }

    /// Bounds of what is stored.
    #[must_use]
    pub const fn bounds(&self) -> OperationBounds {
        OperationBounds {
            handle_bytes: self.limits.handle_bytes,
            values: self.limits.record_values,
            references: self.limits.value_references,
            record_bytes: self.limits.record_bytes,
            control_characters: self.allow_control_characters,
        }
    }

    /// What answers to challenges may cost.
    #[must_use]
    pub const fn effort(&self) -> ChallengeEffort {
        ChallengeEffort {
            pbkdf2: Pbkdf2Limits {
                iterations_max: self.limits.pbkdf2_iterations,
                key_bits_min: self.limits.pbkdf2_key_bits_min,
                key_bits_max: self.limits.pbkdf2_key_bits_max,
                work_max: self.limits.pbkdf2_work,
            },
            keys_tried: self.limits.keys_tried,
            requires_sessions: self.require_sessions,
        }
    }

    /// How many challenges wait.
    #[must_use]
    pub fn challenge_limits(&self) -> ChallengeLimits {
        ChallengeLimits {
            challenges_max: self.limits.challenges,
            bytes_max: self.limits.challenge_bytes,
            per_source_max: self.limits.challenges_per_source,
            datagrams_per_source_max: None,
            age_ms_max: self.limits.challenge_ms.into(),
            exempt: SourceList::parse(&self.limits.exempt_sources).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_survives_toml() {
        let config = Config::default();
        config.check().unwrap();
        let text = toml::to_string(&config).unwrap();
        let again: Config = toml::from_str(&text).unwrap();
        assert_eq!(toml::to_string(&again).unwrap(), text);
        let error = toml::from_str::<Config>("lissten = []").unwrap_err();
        assert!(error.to_string().contains("lissten"));
    }

    #[test]
    fn limits_hold_at_their_edges_and_say_which_setting_is_wrong() {
        let says = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().err().map(|error| format!("{error:#}")).unwrap_or_default()
        };
        assert_eq!(says(|it| it.limits.record_values = 2048), "");
        assert!(says(|it| it.limits.record_values = 2049).contains("limits.record_values"));
        assert_eq!(says(|it| it.limits.record_bytes = RECORD_BYTES_MAX), "");
        assert!(says(|it| it.limits.record_bytes = RECORD_BYTES_MAX + 1).contains("limits.record_bytes"));
        assert_eq!(says(|it| it.limits.handle_bytes = 2048), "");
        assert!(says(|it| it.limits.handle_bytes = 2049).contains("limits.handle_bytes"));
        assert_eq!(says(|it| it.tcp.requests = 1), "");
        assert!(says(|it| it.tcp.requests = 0).contains("tcp.requests"));
        assert!(says(|it| it.tcp.connections_per_source = it.tcp.connections + 1).contains("per_source"));
        assert!(says(|it| it.limits.pbkdf2_iterations = 1_000_001).contains("pbkdf2_iterations"));
        assert_eq!(says(|it| it.limits.audit_refusals_per_source_per_s = 50), "");
        assert!(
            says(|it| it.limits.audit_refusals_per_source_per_s = 51).contains("audit_refusals_per_source")
        );
        assert!(says(|it| it.elsewhere.enabled = true).contains("elsewhere.root"));
        assert!(says(|it| it.elsewhere.at_once = 0).contains("elsewhere.at_once"));
        assert_eq!(says(|it| it.elsewhere.questions = 256), "");
        assert!(says(|it| it.elsewhere.questions = 257).contains("elsewhere.questions"));
        assert!(says(|it| it.elsewhere.patience_ms = 120_001).contains("elsewhere.patience_ms"));
        assert!(says(|it| it.elsewhere.cache_s = 172_801).contains("elsewhere.cache_s"));
        assert!(says(|it| it.observe.http_connections = 0).contains("observe.http_connections"));
        assert!(says(|it| it.listen.clear()).contains("`listen`"));
        assert!(says(|it| it.log = "handle_admin=loud".to_owned()).contains("`log`"));
        assert!(
            says(|it| it.administrators.backup = vec!["300:".to_owned()]).contains("administrators.backup")
        );
        assert!(says(|it| it.publish.changes_max = 0).contains("publish.changes_max"));
        assert!(says(|it| it.store.queue_changes = 0).contains("store.queue_changes"));
    }
}
