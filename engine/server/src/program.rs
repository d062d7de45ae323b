//! The program `handled`: its arguments, and what it does with its settings.

use crate::first_set;
use anyhow::{Context as _, anyhow};
use clap::Parser;
use handle_daemon::log;
use handle_daemon::program::{CommonArgs, Program, Startup};
use handle_daemon::takeover::SuccessorProgram;
use handle_daemon::text::listed;
use handle_worker::config::{Config, Datapath};
use handle_worker::inputs::{open_live, read_site};
use handle_worker::lifetime::{serve_until_stopped, show_few_panics};
use handle_worker::state::ServerHooks;
use handle_worker::{Server, slow};
use serde::Serialize;
use std::path::PathBuf;

/// Serves a published set of handle records over UDP and TCP.
///
/// The set is a directory that `hdl snapshot publish` fills. A new set is taken while serving,
/// without losing a request. Flags win over the configuration file.
///
/// Signals: SIGTERM and SIGINT answer what has arrived and stop; SIGHUP reads the configuration
/// again, as far as it can change while serving, takes the published set now, and opens the query
/// log again.
///
/// Exit codes: 0 stopped on request, 1 failed, 2 configuration or usage.
#[derive(Parser, Serialize, Clone, Debug)]
#[command(
    name = "handled",
    version,
    max_term_width = 100,
    after_help = "Examples:
  handled --snapshot ./set --listen 127.0.0.1:2641
  handled --config /etc/handled/handled.toml --check-config
  handled --config /etc/handled/handled.toml --take-over
  echo status | socat - UNIX:/run/handled/control.sock"
)]
pub struct HandledProgram {
    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
    /// Directory of the published set.
    #[arg(long)]
    snapshot: Option<PathBuf>,
    /// Site record of this service, as JSON.
    #[arg(long)]
    site: Option<PathBuf>,
    /// Which server of the site this is (its `serverId`).
    #[arg(long)]
    server_id: Option<i32>,
    /// Worker threads for each address; 0 for one on each core.
    #[arg(long)]
    workers: Option<usize>,
    /// How datagrams are moved.
    #[arg(long, value_enum)]
    datapath: Option<Datapath>,
    /// Share the ports with other processes of this user: for handing over, on purpose.
    #[arg(long)]
    share_port: bool,
    /// Take over from the handled behind the control socket, if there is one: go on with its
    /// sockets, without losing a request, and let it go.
    #[arg(long)]
    take_over: bool,
    /// Copy the set into memory instead of mapping its files.
    #[arg(long)]
    copy_to_memory: bool,
}

impl Program for HandledProgram {
    const NAME: &'static str = "handled";
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(config: &Config) -> anyhow::Result<String> {
        if config.pin {
            // Those that workers come to: each has a socket for each address.
            let workers_count = if config.workers == 0 { config.cores.len() } else { config.workers };
            config
                .cores
                .iter()
                .take(workers_count * config.listen.len())
                .try_for_each(|&core| check_core(core))?;
        }
        let site = read_site(config)?;
        slow::open_signer(config, &site)?;
        for difference in site.differences() {
            log::say(format_args!("handled: warning: {difference}"));
        }
        let listen = listed(&config.listen);
        if config.wait_for_set && first_set::is_unpublished(config) {
            // As before the first start of handle-admin, and after `hdl init --adopt`.
            let directory = config.snapshot.display();
            log::say(format_args!(
                "handled: warning: no set is published in {directory} (there is no MANIFEST): handled waits for the first one"
            ));
            return Ok(format!("waits for the first set in {directory}, to answer on {listen}"));
        }
        let live = open_live(config)?;
        let set = live.current();
        set.verify()?;
        Ok(format!(
            "generation {} with {} layers, {} bytes, for server {} of {} in the site, on {}",
            set.generation(),
            set.layers().len(),
            set.bytes_mapped(),
            site.service().server_at + 1,
            site.service().servers_count,
            listen,
        ))
    }

    fn serve(config: &Config, startup: Startup<Config>) -> anyhow::Result<()> {
        let Startup { mut signals, set_log, read_config } = startup;
        show_few_panics();
        if !first_set::wait_for_set(config, || signals.is_stopping())? {
            return Ok(());
        }
        let (read_config, set_log) = (Some(read_config), Some(set_log));
        let server = Server::start_with(
            config,
            ServerHooks {
                program: SuccessorProgram::of_this_process(),
                read_config,
                set_log,
                ..ServerHooks::default()
            },
        )?;
        serve_until_stopped(server, signals)
    }
}

/// Checks whether a worker could run on `core`, on a temporary thread.
fn check_core(core: usize) -> anyhow::Result<()> {
    let pinned = std::thread::spawn(move || handle_net::pin_to_core(core)).join();
    let pinned = pinned.map_err(|_| anyhow!("the thread that tried panicked"))?;
    pinned.with_context(|| format!("`cores`: cannot run on core {core} (which are allowed: taskset -p $$)"))
}
