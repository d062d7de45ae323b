//! The configuration: a TOML file, overridden by arguments, checked before anything starts.

use crate::forward::config::ForwardConfig;
use crate::observe::settings::ObserveParameters;
use crate::query_log::QueryLogSettings;
use crate::rate_limit::RateLimitConfig;
use crate::slow::config::{AdministratorsConfig, ServerKeyConfig, SlowConfig};
use crate::tcp::settings::TcpSettings;
use crate::templates::TemplatesConfig;
use crate::verification::RecordChecks;
use handle_daemon::listen::each_once;
use handle_daemon::publisher_keys::PublishersConfig;
use handle_daemon::sessions::config::SessionsConfig;
use handle_daemon::settings;
use handle_daemon::settings::file::{ConfigurationError, read};
use handle_daemon::settings::{DAY_MS, SettingError, SettingType};
use handle_net::DatapathChoice;
use handle_proto::limit;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

settings! {
    /// Configuration of `handled`.
    pub struct Config of process on port 2641 where settings_agree {
        /// Directory of the published set, which contains the file `MANIFEST`.
        restart snapshot: PathBuf = PathBuf::from("/var/lib/handled/snapshot");
        /// Site record, as JSON. Without it, the server is the only server of a site without a
        /// record.
        live site: Option<PathBuf> = None;
        /// Which server of the site this is, by its `serverId`. Required if the site has several
        /// servers.
        live server_id: Option<i32> = None;
        /// Worker threads for each address; 0 for one on each core that the process may use.
        restart workers: usize = 0, 0..=1024;
        /// Cores that the workers are pinned to, in turn. If empty, all cores that the process may
        /// use.
        restart cores: Vec<usize> = Vec::new();
        /// Pin workers to cores.
        restart pin: bool = true;
        /// Interface to the kernel for datagrams. `auto` is io_uring where it works; the log says
        /// why not.
        restart datapath: Datapath = Datapath::Auto;
        /// Receive consecutive datagrams of one peer as one buffer, a train, if the kernel supports
        /// it (UDP_GRO).
        restart receive_trains: bool = true;
        /// Send answers of equal length to one peer as one buffer, if the kernel supports it
        /// (UDP_SEGMENT).
        restart send_trains: bool = true;
        /// Share the ports of `listen` with other processes of this user, to hand over between
        /// them.
        restart share_port: bool = false;
        /// Take over from the `handled` that listens on `control`, if there is one: continue with
        /// its sockets, without loss. Needs `control`.
        restart take_over: bool = false;
        /// Verify every byte of new layers before they go live, in addition to the check by the
        /// publisher.
        live verify_new_layers: bool = true;
        /// Compare each record with its checksum before it is used in an answer. `auto`: in sets
        /// with values that are not public ([security.md](../security.md#damaged-layers)).
        live check_records: RecordChecks = RecordChecks::Auto;
        /// Rate at which the set is verified in the background after the start; 0 for no
        /// verification.
        live verify_bytes_per_s: u64 = 64 << 20, 0..=1 << 40;
        /// If no set has been published yet, wait for the first one instead of exiting.
        restart wait_for_set: bool = true;
        /// Copy the set into private memory instead of mapping its files.
        restart copy_to_memory: bool = false;
        section limits: ServerLimits;
        section observe: ObserveParameters;
        section tcp: TcpSettings;
        section templates: TemplatesConfig;
        section publishers: PublishersConfig;
        section server_key: Option<ServerKeyConfig>;
        section administrators: AdministratorsConfig;
        section slow: SlowConfig;
        section sessions: SessionsConfig;
        section forward: ForwardConfig;
        section rate_limit: RateLimitConfig;
        section query_log: QueryLogSettings;
    }
}

settings! {
    /// Bounds of all queues, buffers and tables. When one is full, datagrams are dropped and
    /// counted.
    pub struct ServerLimits {
        /// Datagrams received and answered together; a train counts as one. The portable datapath
        /// takes at most 64 single datagrams.
        restart batch_datagrams: usize = 512, 1..=1024;
        /// Datagrams answered together, including those in trains. A single train may have more.
        restart batch_segments: usize = 1 << 14, 1..=1 << 16;
        /// Answers waiting to be sent, in datagrams. The minimum is the longest answer.
        restart outbox_datagrams: usize = 1 << 15, limit::FRAGMENTS_MAX..=1 << 16;
        /// Answers waiting to be sent. The minimum is the longest answer.
        restart outbox_bytes: usize = 8 << 20, ANSWER_LEN_MAX..=1 << 30;
        /// Receive buffer of each socket in the kernel; 0 for the default of the kernel.
        restart socket_receive_bytes: usize = 4 << 20, 0..=SOCKET_BYTES_MAX;
        /// Send buffer of each socket in the kernel; 0 for the default of the kernel.
        restart socket_send_bytes: usize = 4 << 20, 0..=SOCKET_BYTES_MAX;
        /// Most datagrams of one answer. A longer answer is replaced by RC 2, and deployed clients
        /// then repeat the request over TCP. This bounds the amplification of a request with a
        /// forged source.
        live answer_datagrams: usize = 4, 1..=limit::FRAGMENTS_MAX;
        /// Most bytes of a request in fragments.
        live fragmented_request_bytes: u32 = 16 << 10, 0..=limit::MESSAGE_LEN_MAX;
        /// Requests in fragments that a worker assembles at a time. One more displaces the oldest.
        live fragmented_requests: usize = 256, 0..=1 << 20;
        /// Of these, from one address. One more displaces its oldest.
        live fragmented_requests_per_sender: usize = 16, 0..=1 << 20;
        /// Bytes that a worker keeps for requests in fragments.
        live fragmented_bytes: usize = 4 << 20, 0..=1 << 32;
        /// Time to wait for the missing fragments of a request.
        live fragmented_wait_ms: u32 = limit::UDP_REASSEMBLY_MS, 0..=DAY_MS;
        /// Most bytes of a line on the control socket.
        restart control_line_bytes: usize = 4096, 64..=1 << 20;
    }
}

/// Length of the longest possible answer, cut into datagrams.
pub(crate) const ANSWER_LEN_MAX: usize =
    limit::MESSAGE_LEN_MAX as usize + limit::FRAGMENTS_MAX * handle_proto::wire::Envelope::LEN;
/// The kernel takes a signed 32-bit number; a larger value would wrap.
const SOCKET_BYTES_MAX: usize = 1 << 30;

impl Config {
    /// Reads the configuration at `path`, for programs that run a server in their process.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn read(path: &Path) -> Result<Self, ConfigurationError> {
        read(path)
    }
}

fn settings_agree(config: &Config) -> Result<(), SettingError> {
    if config.take_over && config.control.is_none() {
        return Err(SettingError::Together(
            "`take_over` needs `control`: the control socket of the process that serves now".to_owned(),
        ));
    }
    if config.share_port {
        return Ok(());
    }
    each_once(&config.listen).map_err(|error| SettingError::Together(error.to_string()))
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

impl SettingType for Datapath {
    fn type_name() -> String {
        "`auto`, `uring`, `portable`".to_owned()
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;
    use std::net::SocketAddr;

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
}
