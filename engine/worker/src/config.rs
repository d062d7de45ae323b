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
use handle_daemon::settings;
use handle_daemon::settings::file::{ConfigurationError, read};
use handle_daemon::settings::{SettingError, SettingType};
use handle_net::DatapathChoice;
use handle_proto::limit;
use handle_session::config::SessionsConfig;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Declares the configuration of a process that serves by workers: the settings that `handled` and
/// `handle-cache` have in common, and then its own.
#[macro_export]
macro_rules! worker_settings {
    (
        $(#[doc = $about:literal])*
        $visibility:vis struct $section:ident where $rule:path {
            $($lines:tt)*
        } $($constants:tt)*
    ) => {
        handle_daemon::settings! {
            $(#[doc = $about])*
            $visibility struct $section of process on port 2641 where $rule {
                /// Set this when the server belongs to a site of the Handle System, or signs
                /// answers: the site record, as JSON. Without it, it is the only server of a site
                /// without a record.
                live site: Option<std::path::PathBuf> = None;
                /// Set this when the site has several servers: the `serverId` of this one.
                live server_id: Option<i32> = None;
                /// Set this when the process should use fewer cores than it may: worker threads for
                /// each address; 0 for one on each core.
                restart workers: usize = 0, 0..=1024;
                /// Set this when the network card or other processes need certain cores: those of
                /// the workers, in turn. If empty, all that the process may use.
                restart cores: Vec<usize> = Vec::new();
                /// Set this when other processes share the cores: with `false`, the kernel moves
                /// workers between them.
                restart pin: bool = true;
                /// Set this when io_uring is forbidden, or must not be left without notice: the
                /// interface to the kernel for datagrams. `auto` is io_uring where it works; the
                /// log says why not.
                restart datapath: $crate::config::Datapath = $crate::config::Datapath::Auto;
                /// Set this when a network driver mishandles trains: with `false`, each datagram is
                /// received and sent by itself. Otherwise, consecutive ones of a peer are received
                /// as one buffer (UDP_GRO), and answers of equal length to it are sent as one
                /// (UDP_SEGMENT).
                restart trains: bool = true;
                /// Set this when another process of this user is to take over the ports of
                /// `listen`: both may have them open.
                restart share_port: bool = false;
                /// Set this when an upgrade must not lose a request: continue with the sockets of
                /// the process that listens on `control`, if there is one. Needs `control`.
                restart take_over: bool = false;
                $($lines)*
            } $($constants)*
        }
    };
}

worker_settings! {
    /// Configuration of `handled`.
    pub struct Config where settings_agree {
        /// Set this when the set is elsewhere: its directory, with the file `MANIFEST`.
        restart snapshot: PathBuf = PathBuf::from("/var/lib/handled/snapshot");
        /// Set this when disks or memory may damage files, or cannot: whether each record is
        /// compared with its checksum before it is used. `auto`: in sets with values that are not
        /// public ([security.md](../security.md#damaged-layers)).
        live check_records: RecordChecks = RecordChecks::Auto;
        /// Set this when reading the whole set disturbs others on the disk: rate of its
        /// verification in the background after the start; 0 for none.
        live verify_bytes_per_s: u64 = 64 << 20, 0..=1 << 40;
        /// Set this when files of the set may be evicted from memory, or change: copy it into
        /// private memory instead of mapping it.
        restart copy_to_memory: bool = false;
        /// Set this when a missing set is a mistake, as in an image that contains it: with `false`,
        /// the process exits with an error instead of waiting for the first set.
        restart wait_for_set: bool = true;
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
    } constants {
        /// Every byte of new layers is verified before they go live, because a layer that is
        /// damaged on its way replaces one that was not.
        verify_new_layers: bool = true;
    }
}

settings! {
    /// Queues, buffers and tables. When one is full, datagrams are dropped and counted.
    pub struct ServerLimits {
        /// Set this when the counter of datagrams dropped by the kernel grows, or memory is short:
        /// receive buffer of each socket in the kernel; 0 for its default.
        restart socket_receive_bytes: usize = 4 << 20, 0..=SOCKET_BYTES_MAX;
        /// Set this when records are longer and all clients are known: most datagrams of one
        /// answer. A longer one is replaced by RC 2, and deployed clients repeat the request over
        /// TCP. This bounds the amplification of requests with forged sources.
        live answer_datagrams: usize = 4, 1..=limit::FRAGMENTS_MAX;
    } constants {
        /// Datagrams received and answered together; a train counts as one. Receive buffers of
        /// trains take 64 KiB each, so this bounds them to 33 MiB. The portable datapath takes at
        /// most 64 single datagrams.
        batch_datagrams: usize = 512;
        /// Datagrams answered together, including those in trains: 32 trains of the longest kind
        /// for each 512 datagrams. A single train may have more.
        batch_segments: usize = 1 << 14;
        /// Answers waiting to be sent, in datagrams: two for each of a full batch. At least those
        /// of the longest answer.
        outbox_datagrams: usize = 1 << 15;
        /// Answers waiting to be sent: 512 bytes for each of a full batch. At least the longest
        /// answer.
        outbox_bytes: usize = 8 << 20;
        /// Send buffer of each socket in the kernel: half of the answers waiting to be sent.
        socket_send_bytes: usize = 4 << 20;
        /// Most bytes of a request in fragments, which a query with hundreds of types does not
        /// reach. Changes come over TCP.
        fragmented_request_bytes: u32 = 16 << 10;
        /// Requests in fragments that a worker assembles at a time: as many as fit into
        /// `fragmented_bytes`. One more displaces the oldest.
        fragmented_requests: usize = 256;
        /// Of these, from one address. One more displaces its oldest.
        fragmented_requests_per_sender: usize = 16;
        /// Bytes that a worker keeps for requests in fragments: 256 of the longest.
        fragmented_bytes: usize = 4 << 20;
        /// Time to wait for the missing fragments of a request.
        fragmented_wait_ms: u32 = limit::UDP_REASSEMBLY_MS;
        /// Most bytes of a line on the control socket: several times the longest command.
        control_line_bytes: usize = 4096;
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
        config.limits.answer_datagrams = 0;
        assert!(config.check().unwrap_err().to_string().contains("limits.answer_datagrams"));
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
