//! The program `handle-cache`: its arguments, and what it does with its settings.

use crate::config::Config;
use crate::notices;
use crate::service::CacheService;
use crate::upstream::UpstreamResolver;
use clap::Parser;
use handle_daemon::program::{CommonArgs, Program, Startup};
use handle_daemon::takeover::SuccessorProgram;
use handle_worker::config::Datapath;
use handle_worker::inputs::{open_live, read_site};
use handle_worker::lifetime::{serve_until_stopped, show_few_panics};
use handle_worker::server::Server;
use handle_worker::slow::open_signer;
use handle_worker::state::ServerHooks;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Answers handle requests for a community, from answers that it fetched before.
///
/// What it does not have is resolved: from the global service down, or by the servers of
/// --upstream. It answers over UDP and TCP as handled does. Flags win over the configuration file.
///
/// Signals: SIGTERM and SIGINT answer what has arrived and stop; SIGHUP reads the configuration
/// again, as far as it can change while serving.
///
/// Exit codes: 0 stopped on request, 1 failed, 2 configuration or usage.
#[derive(Parser, Serialize, Clone, Debug)]
#[command(
    name = "handle-cache",
    version,
    max_term_width = 100,
    after_help = "Examples:
  handle-cache --listen 127.0.0.1:2641
  handle-cache --listen 127.0.0.1:2641 --upstream 192.0.2.1
  handle-cache --config /etc/handled/handle-cache.toml --check-config
  handle-cache --config /etc/handled/handle-cache.toml"
)]
pub struct CacheProgram {
    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
    /// Server that is asked about every handle: an address, with or without a port; may be given
    /// more than once.
    #[arg(long, value_name = "ADDRESS")]
    #[serde(rename = "upstream.servers")]
    upstream: Vec<String>,
    /// File with the global service: bootstrap_handles (JSON), or root_info of a deployed client.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "upstream.root")]
    root: Option<PathBuf>,
    /// Directory of a published set, from which its homed prefixes are answered.
    #[arg(long, value_name = "DIRECTORY")]
    snapshot: Option<PathBuf>,
    /// Memory for cached records, in bytes.
    #[arg(long, value_name = "BYTES")]
    #[serde(rename = "cache.bytes")]
    memory: Option<usize>,
    /// Worker threads for each address; 0 for one on each core.
    #[arg(long)]
    workers: Option<usize>,
    /// How datagrams are moved.
    #[arg(long, value_enum)]
    datapath: Option<Datapath>,
    /// Take over from the handle-cache behind the control socket, if there is one: go on with its
    /// sockets, without losing a request, and let it go.
    #[arg(long)]
    take_over: bool,
}

/// Starts a caching server. A reload reads the configuration with `startup`, if it is given.
///
/// # Errors
/// One sentence with the likely cause.
pub fn start(config: &Config, startup: Option<CacheStartup>) -> anyhow::Result<(Server, Arc<CacheService>)> {
    let cache = Arc::new(CacheService::open(config)?);
    let mut hooks = ServerHooks {
        name: Some(CacheProgram::NAME),
        cache: Some(Arc::clone(&cache) as _),
        relay: cache.relays().then(|| Arc::clone(&cache) as _),
        extension: Some(Arc::clone(&cache) as _),
        is_without_set: config.snapshot.is_none(),
        ..ServerHooks::default()
    };
    if let Some(CacheStartup { read_config, set_log }) = startup {
        let offered = Arc::clone(&cache);
        hooks.program = SuccessorProgram::of_this_process();
        hooks.set_log = Some(set_log);
        hooks.read_config = Some(Box::new(move || {
            let config = read_config()?;
            let server = config.server();
            offered.offer(config);
            Ok(server)
        }));
    }
    Ok((Server::start_with(&config.server(), hooks)?, cache))
}

/// What a program provides for reloads.
pub struct CacheStartup {
    /// Reads the configuration again.
    pub read_config: handle_daemon::program::ReadConfig<Config>,
    /// Changes what is logged.
    pub set_log: handle_daemon::log::SetLog,
}

impl std::fmt::Debug for CacheStartup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheStartup").finish_non_exhaustive()
    }
}

impl Program for CacheProgram {
    const NAME: &'static str = "handle-cache";
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(config: &Config) -> anyhow::Result<String> {
        let (server, upstream) = (config.server(), UpstreamResolver::open(&config.upstream, &config.policy)?);
        notices::key(config)?;
        open_signer(&server, &read_site(&server)?)?;
        let set = match &config.snapshot {
            Some(path) => {
                let set = open_live(&server)?.current();
                set.verify()?;
                format!(", and generation {} of {}", set.generation(), path.display())
            }
            None => String::new(),
        };
        let listen: Vec<String> = config.listen.iter().map(ToString::to_string).collect();
        Ok(format!(
            "records of {}, {} bytes of them{set}, on {}",
            upstream.description(),
            config.cache.bytes,
            listen.join(", ")
        ))
    }

    fn serve(config: &Config, startup: Startup<Config>) -> anyhow::Result<()> {
        let Startup { signals, set_log, read_config } = startup;
        show_few_panics();
        let (server, cache) = start(config, Some(CacheStartup { read_config, set_log }))?;
        drop(cache);
        serve_until_stopped(server, signals)
    }
}
