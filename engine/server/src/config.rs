//! The configuration: a TOML file, overridden by flags, checked before anything starts.

use crate::forward::config::ForwardConfig;
use crate::observe::settings::ObserveParameters;
use crate::query_log;
use crate::rate_limit::RateLimitConfig;
use crate::slow::config::{AdministratorsConfig, ServerKeyConfig, SlowConfig};
use crate::tcp::settings::TcpSettings;
use crate::templates::TemplatesConfig;
use crate::verification::RecordChecks;
use anyhow::ensure;
use handle_daemon::listen::each_once;
use handle_daemon::sessions::config::SessionsConfig;
use handle_daemon::{log, text};
use handle_net::DatapathChoice;
use handle_proto::limit;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Configuration of `handled`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// A file with settings that both processes read: administrators, sessions, site record and
    /// server key. They apply as if they were set here.
    pub shared: Option<PathBuf>,
    /// Directory of the published set: the one with the file `MANIFEST`.
    pub snapshot: PathBuf,
    /// The site record as JSON. Without it, the server is alone in a site that has no record.
    pub site: Option<PathBuf>,
    /// The `serverId` of this server in the site record; required if the site has several servers.
    pub server_id: Option<i32>,
    /// Addresses to answer on, over UDP and TCP. `[::]` accepts IPv4 as well.
    pub listen: Vec<SocketAddr>,
    /// Worker threads for each address; 0 for one on each core that this process may use.
    pub workers: usize,
    /// Cores to which the workers are pinned, in turn. Empty: all that this process may use.
    pub cores: Vec<usize>,
    /// Whether workers are pinned.
    pub pin: bool,
    /// Datapath of the workers.
    pub datapath: Datapath,
    /// Receive datagrams of one peer in trains, if the kernel supports it (UDP_GRO).
    pub receive_trains: bool,
    /// Send answers of equal length to one peer in trains, if the kernel supports it (UDP_SEGMENT).
    pub send_trains: bool,
    /// UNIX socket for `status`, `stats`, `reload` and `drain`; none when empty.
    pub control: Option<PathBuf>,
    /// Allow other processes of this user to bind the ports of `listen`, for a deliberate handover.
    pub share_port: bool,
    /// The user to become once ports are bound, when started as root: a name, or `uid:gid`.
    pub user: Option<String>,
    /// Allow running as root without `user`.
    pub allow_root: bool,
    /// Log level: error, warn, info, debug or trace, optionally by module.
    pub log: String,
    /// Take over from the `handled` behind `control`, if there is one: continue with its sockets,
    /// without loss.
    pub take_over: bool,
    /// Verify every byte of new layers before they go live, as their publisher has done.
    pub verify_new_layers: bool,
    /// When records are compared with their checksums before they are served.
    pub check_records: RecordChecks,
    /// Rate in bytes per second at which the set is verified in the background after the start; 0
    /// disables verification.
    pub verify_bytes_per_s: u64,
    /// Wait for the first set if none has been published yet, instead of exiting.
    pub wait_for_set: bool,
    /// Copy the set into private memory instead of mapping its files.
    pub copy_to_memory: bool,
    /// Bounds of all queues, buffers and tables.
    pub limits: ServerLimits,
    /// Scrape endpoint and measurements.
    pub observe: ObserveParameters,
    /// TCP connections.
    pub tcp: TcpSettings,
    /// Values computed for handles that are not stored.
    pub templates: TemplatesConfig,
    /// The key that signs answers; without it none is signed.
    pub server_key: Option<ServerKeyConfig>,
    /// Identities that may read non-public values.
    pub administrators: AdministratorsConfig,
    /// The slow path: signatures and authentication.
    pub slow: SlowConfig,
    /// Sessions with clients.
    pub sessions: SessionsConfig,
    /// What is forwarded to `handle-admin`.
    pub forward: ForwardConfig,
    /// Limits on the datagrams sent to each peer.
    pub rate_limit: RateLimitConfig,
    /// The query log.
    pub query_log: query_log::QueryLogSettings,
}

/// How datagrams are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Datapath {
    /// io_uring where it works, else the portable way; the log says which and why.
    #[default]
    Auto,
    /// io_uring, or not at all.
    Uring,
    /// recvmmsg and sendmmsg.
    Portable,
}

impl From<Datapath> for DatapathChoice {
    fn from(datapath: Datapath) -> Self {
        match datapath {
            Datapath::Auto => Self::Auto,
            Datapath::Uring => Self::Uring,
            Datapath::Portable => Self::Portable,
        }
    }
}

/// Bounds of all queues, buffers and tables. When one is full, datagrams are dropped and counted.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerLimits {
    /// Datagrams that are received and answered together; a train counts once. The portable
    /// datapath takes at most 64 single datagrams.
    pub batch_datagrams: usize,
    /// Datagrams that are answered together, including those in trains; a single train may have
    /// more.
    pub batch_segments: usize,
    /// Datagrams of answers waiting to be sent.
    pub outbox_datagrams: usize,
    /// Bytes of answers waiting to be sent.
    pub outbox_bytes: usize,
    /// Receive buffer of each socket in the kernel, in bytes; 0 for the kernel's default.
    pub socket_receive_bytes: usize,
    /// Send buffer of each socket in the kernel, in bytes; 0 for the kernel's default.
    pub socket_send_bytes: usize,
    /// Maximum datagrams of one answer. For longer answers, the response tells the client to ask
    /// over TCP. This bounds the amplification of a request with a forged source.
    pub answer_datagrams: usize,
    /// Maximum bytes of a fragmented request.
    pub fragmented_request_bytes: u32,
    /// Maximum fragmented requests that a worker reassembles at a time.
    pub fragmented_requests: usize,
    /// Maximum fragmented requests from one address that a worker reassembles at a time.
    pub fragmented_requests_per_sender: usize,
    /// Maximum bytes that a worker keeps for fragmented requests.
    pub fragmented_bytes: usize,
    /// Time to wait for the missing fragments of a request, in milliseconds.
    pub fragmented_wait_ms: u32,
    /// Maximum bytes of a line on the control socket.
    pub control_line_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shared: None,
            snapshot: PathBuf::from("/var/lib/handled/snapshot"),
            site: None,
            server_id: None,
            listen: vec![SocketAddr::from(([0u16; 8], limit::PORT))],
            workers: 0,
            cores: Vec::new(),
            pin: true,
            datapath: Datapath::Auto,
            receive_trains: true,
            send_trains: true,
            control: None,
            share_port: false,
            user: None,
            allow_root: false,
            log: "info".to_owned(),
            take_over: false,
            verify_new_layers: true,
            check_records: RecordChecks::Auto,
            verify_bytes_per_s: 64 << 20,
            wait_for_set: true,
            copy_to_memory: false,
            limits: ServerLimits::default(),
            observe: ObserveParameters::default(),
            tcp: TcpSettings::default(),
            templates: TemplatesConfig::default(),
            server_key: None,
            administrators: AdministratorsConfig::default(),
            slow: SlowConfig::default(),
            sessions: SessionsConfig::default(),
            forward: ForwardConfig::default(),
            rate_limit: RateLimitConfig::default(),
            query_log: query_log::QueryLogSettings::default(),
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            batch_datagrams: 512,
            batch_segments: 1 << 14,
            outbox_datagrams: 1 << 15,
            outbox_bytes: 8 << 20,
            socket_receive_bytes: 4 << 20,
            socket_send_bytes: 4 << 20,
            answer_datagrams: 4,
            fragmented_request_bytes: 16 << 10,
            fragmented_requests: 256,
            fragmented_requests_per_sender: 16,
            fragmented_bytes: 4 << 20,
            fragmented_wait_ms: limit::UDP_REASSEMBLY_MS,
            control_line_bytes: 4096,
        }
    }
}

/// Length of the longest possible answer, cut into datagrams.
pub(crate) const ANSWER_LEN_MAX: usize =
    limit::MESSAGE_LEN_MAX as usize + limit::FRAGMENTS_MAX * handle_proto::wire::Envelope::LEN;
/// Longest configurable wait: one day.
pub(crate) const WAIT_MS_MAX: u32 = 86_400_000;

impl Config {
    /// Reads the file at `path`. Relative paths in it are resolved against its directory.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let (mut config, directory): (Self, _) = text::configuration(path)?;
        config.shared = config.shared.map(|shared| directory.join(shared));
        config.snapshot = directory.join(&config.snapshot);
        config.site = config.site.map(|site| directory.join(site));
        config.control = config.control.map(|control| directory.join(control));
        config.server_key = config.server_key.map(|key| key.relative_to(directory));
        config.sessions = config.sessions.relative_to(directory);
        config.forward = config.forward.relative_to(directory);
        config.query_log.path = config.query_log.path.map(|path| directory.join(path));
        Ok(config)
    }

    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting and its allowed values.
    pub fn check(&self) -> anyhow::Result<()> {
        log::check(&self.log)?;
        ensure!(
            self.control.is_some() || !self.take_over,
            "`take_over` needs `control`: the control socket of the process that serves now"
        );
        ensure!(!self.listen.is_empty(), "`listen` is empty: name at least one address, as \"[::]:2641\"");
        if !self.share_port {
            each_once(&self.listen)?;
        }
        ensure!(self.workers <= 1024, "`workers` is {}: the maximum is 1024", self.workers);
        ensure!(
            self.verify_bytes_per_s <= 1 << 40,
            "`verify_bytes_per_s` is {}: at most 1 TiB a second; 0 for no verification",
            self.verify_bytes_per_s
        );
        let limits = &self.limits;
        ensure!(
            (1..=1024).contains(&limits.batch_datagrams),
            "`limits.batch_datagrams` is {}: it must be from 1 to 1024",
            limits.batch_datagrams
        );
        ensure!(
            (1..=1 << 16).contains(&limits.batch_segments),
            "`limits.batch_segments` is {}: it must be from 1 to 65536",
            limits.batch_segments
        );
        ensure!(
            (limit::FRAGMENTS_MAX..=1 << 16).contains(&limits.outbox_datagrams),
            "`limits.outbox_datagrams` is {}: the longest answer takes {}, and 65536 are the most",
            limits.outbox_datagrams,
            limit::FRAGMENTS_MAX
        );
        ensure!(
            (ANSWER_LEN_MAX..=1 << 30).contains(&limits.outbox_bytes),
            "`limits.outbox_bytes` is {}: the longest answer takes {ANSWER_LEN_MAX}, and 1 GiB is the most",
            limits.outbox_bytes
        );
        ensure!(
            (1..=limit::FRAGMENTS_MAX).contains(&limits.answer_datagrams),
            "`limits.answer_datagrams` is {}: it must be from 1 to {}",
            limits.answer_datagrams,
            limit::FRAGMENTS_MAX
        );
        ensure!(
            limits.fragmented_request_bytes <= limit::MESSAGE_LEN_MAX,
            "`limits.fragmented_request_bytes` is {}: no message has more than {}",
            limits.fragmented_request_bytes,
            limit::MESSAGE_LEN_MAX
        );
        ensure!(
            limits.fragmented_requests <= 1 << 20,
            "`limits.fragmented_requests` is {}: at most 1048576",
            limits.fragmented_requests
        );
        ensure!(
            limits.fragmented_bytes <= 1 << 32,
            "`limits.fragmented_bytes` is {}: at most 4 GiB",
            limits.fragmented_bytes
        );
        ensure!(
            limits.fragmented_requests_per_sender <= 1 << 20,
            "`limits.fragmented_requests_per_sender` is {}: at most 1048576",
            limits.fragmented_requests_per_sender
        );
        ensure!(
            limits.fragmented_wait_ms <= WAIT_MS_MAX,
            "`limits.fragmented_wait_ms` is {}: at most {WAIT_MS_MAX}, a day",
            limits.fragmented_wait_ms
        );
        // The kernel takes a signed 32-bit number; a larger value would wrap.
        for (name, bytes) in [
            ("socket_receive_bytes", limits.socket_receive_bytes),
            ("socket_send_bytes", limits.socket_send_bytes),
        ] {
            ensure!(bytes <= 1 << 30, "`limits.{name}` is {bytes}: at most 1 GiB; 0 for the kernel's own");
        }
        ensure!(
            (64..=1 << 20).contains(&limits.control_line_bytes),
            "`limits.control_line_bytes` is {}: it must be from 64 to 1048576",
            limits.control_line_bytes
        );
        if let Some(key) = &self.server_key {
            key.check()?;
        }
        self.administrators.check()?;
        self.slow.check()?;
        self.sessions.check()?;
        self.forward.check()?;
        self.observe.check()?;
        self.query_log.check()?;
        self.rate_limit.check()?;
        self.tcp.check()?;
        self.templates.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_survives_toml() {
        let config = Config::default();
        config.check().unwrap();
        let again: Config = toml::from_str("").unwrap();
        assert_eq!(again.limits.batch_datagrams, config.limits.batch_datagrams);
    }

    #[test]
    fn says_which_setting_is_wrong() {
        let mut config = Config::default();
        config.limits.batch_datagrams = 0;
        assert!(config.check().unwrap_err().to_string().contains("limits.batch_datagrams"));
        config = Config { log: "handled=loud".to_owned(), ..Config::default() };
        assert!(config.check().unwrap_err().to_string().contains("`log`"));
        config = Config { take_over: true, ..Config::default() };
        assert!(config.check().unwrap_err().to_string().contains("`take_over` needs `control`"));
        config = Config { listen: vec![], ..Config::default() };
        assert!(config.check().unwrap_err().to_string().contains("listen"));
        let [any, one] = [0, 2641].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        config = Config { listen: vec![any, any, one], ..Config::default() };
        config.check().unwrap();
        config.listen.push(one);
        assert_eq!(config.check().unwrap_err().to_string(), "`listen` names 127.0.0.1:2641 twice");
        let error = toml::from_str::<Config>("lissten = []").unwrap_err();
        assert!(error.to_string().contains("lissten"));
    }

    #[test]
    fn limits_hold_at_their_edges() {
        let with = |change: fn(&mut ServerLimits)| {
            let mut config = Config::default();
            change(&mut config.limits);
            config.check().is_ok()
        };
        assert!(with(|limits| limits.batch_datagrams = 1024));
        assert!(!with(|limits| limits.batch_datagrams = 1025));
        assert!(with(|limits| limits.batch_segments = 1 << 16));
        assert!(!with(|limits| limits.batch_segments = (1 << 16) + 1));
        assert!(!with(|limits| limits.batch_segments = 0));
        assert!(with(|limits| limits.outbox_bytes = ANSWER_LEN_MAX));
        assert!(!with(|limits| limits.outbox_bytes = ANSWER_LEN_MAX - 1));
        assert!(with(|limits| limits.outbox_datagrams = limit::FRAGMENTS_MAX));
        assert!(!with(|limits| limits.outbox_datagrams = limit::FRAGMENTS_MAX - 1));
        assert!(with(|limits| limits.answer_datagrams = limit::FRAGMENTS_MAX));
        assert!(!with(|limits| limits.answer_datagrams = limit::FRAGMENTS_MAX + 1));
        assert!(!with(|limits| limits.answer_datagrams = 0));
        assert!(with(|limits| limits.fragmented_request_bytes = limit::MESSAGE_LEN_MAX));
        assert!(!with(|limits| limits.fragmented_request_bytes = limit::MESSAGE_LEN_MAX + 1));
        assert!(with(|limits| limits.control_line_bytes = 64));
        assert!(!with(|limits| limits.control_line_bytes = 63));
    }
}
