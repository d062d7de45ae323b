//! The program `handle-admin`: its arguments, and what it does with its settings.

use crate::config::Config;
use crate::local;
use crate::mirror::promote_stopped::{self, PromoteArgs};
use crate::publish::check_set;
use crate::remote::RemoteServices;
use crate::server::{Server, read_identity, site_differences};
use crate::settings::AdminHooks;
use crate::state::AdminState;
use crate::succession::{HandoverOutcome, Succession};
use anyhow::{Context as _, anyhow};
use clap::{Parser, Subcommand};
use handle_auth::source::SourceList;
use handle_daemon::program::{CommonArgs, Program, Startup};
use handle_daemon::takeover::SuccessorProgram;
use handle_daemon::text::listed;
use handle_daemon::{log, readiness};
use handle_store::{Store, StoreError};
use serde::Serialize;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Keeps the authoritative records of a service, and changes them for their administrators.
///
/// It answers the handle protocol over TCP on a port of its own, which the site record names as the
/// interface for administration. A change is acknowledged when it is on the disk. Flags win over
/// the configuration file.
///
/// Signals: SIGTERM and SIGINT answer what has arrived and stop; SIGHUP opens the audit log
/// again and reloads the configuration.
///
/// Exit codes: 0 stopped on request, 1 failed, 2 configuration or usage.
#[derive(Parser, Serialize, Clone, Debug)]
#[command(
    name = "handle-admin",
    version,
    max_term_width = 100,
    subcommand_value_name = "COMMAND",
    after_help = "Examples:
  handle-admin --config /etc/handled/handle-admin.toml --check-config
  handle-admin --config /etc/handled/handle-admin.toml
  handle-admin --config /etc/handled/handle-admin.toml --take-over
  echo status | socat - UNIX:/run/handle-admin/control.sock"
)]
pub struct AdminProgram {
    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
    /// The file of the store.
    #[arg(long)]
    #[serde(rename = "store.file")]
    store: Option<PathBuf>,
    /// Site record of this service, as JSON.
    #[arg(long)]
    site: Option<PathBuf>,
    /// Which server of the site this is (its `serverId`).
    #[arg(long)]
    server_id: Option<i32>,
    /// Take over from the handle-admin behind the control socket, if there is one: continue with
    /// its sockets and its store, and let it exit, without refusing a change.
    #[arg(long)]
    take_over: bool,
    #[command(subcommand)]
    #[serde(skip)]
    command: Option<AdminCommand>,
}

/// What the program does instead of serving.
#[derive(Subcommand, Clone, Debug)]
enum AdminCommand {
    Promote(PromoteArgs),
}

impl Program for AdminProgram {
    const NAME: &'static str = "handle-admin";
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn run_command(&self) -> Option<anyhow::Result<String>> {
        self.command.as_ref().map(|AdminCommand::Promote(args)| promote_stopped::run(args))
    }

    fn check(config: &Config) -> anyhow::Result<String> {
        let (site, key) = read_identity(config)?;
        local::rights(config)?;
        for difference in site_differences(config, &site) {
            log::say(format_args!("handle-admin: warning: {difference}"));
        }
        RemoteServices::open(&config.remote, SourceList::default())?;
        let records = match Store::open_to_read(&config.store) {
            Ok(store) => {
                let stats = store.stats()?;
                drop(store);
                if !config.store.is_in_database() {
                    let file = &config.store.file;
                    File::options().write(true).open(file).with_context(|| {
                        format!(
                            "the store {0} cannot be written (`ls -l {0}` shows who has access)",
                            file.display()
                        )
                    })?;
                }
                format!("{} records under {} homed prefixes", stats.records, stats.homed_prefixes)
            }
            // Asked before a reload: the process that serves has looked at it.
            Err(StoreError::Locked(path)) => {
                format!("records not looked at, for {} is in use", path.display())
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(directory) = &config.publish.directory {
            check_set(directory)?;
        }
        Ok(format!(
            "{records}, for server {} of {} in the site, {}, on {}",
            site.server_at() + 1,
            site.servers_count(),
            if key.is_some() { "with a key to sign" } else { "without a key to sign" },
            config.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        ))
    }

    fn serve(config: &Config, startup: Startup<Config>) -> anyhow::Result<()> {
        let Startup { signals, set_log, read_config } = startup;
        // Looking through the store takes a while, and nothing is under way until the server
        // serves.
        let starting = signals.exit_at_once().context("cannot listen to signals")?;
        let hooks = AdminHooks {
            read_config: Some(Arc::new(read_config)),
            set_log: Some(Arc::new(set_log)),
            succession: Arc::new(Succession::new(SuccessorProgram::of_this_process())),
        };
        let mut server = Server::start_with(config, hooks.clone())?;
        drop(starting);
        readiness::ready("serving");
        tracing::info!(addresses = %listed(server.addresses()), last_transaction = server.shared().service.store.last_id(), "serving");
        if config.sessions.are_enabled() && config.sessions.socket.is_none() {
            tracing::info!(
                "sessions are known to this process alone; deployed clients set them up with handled, and administer only where \
                 both have the same `sessions.socket`"
            );
        }
        let current = Arc::new(CurrentServer::default());
        let (to_reload, to_stop) = (Arc::clone(&current), Arc::clone(&current));
        let obeyed = signals.obey(move || to_reload.reload(), move || to_stop.stop());
        obeyed.context("cannot start the thread that listens to signals")?;
        loop {
            current.set(server.shared());
            server.wait_until_finished();
            let Some(successor) = hooks.succession.next().filter(|_| !current.is_stopping()) else { break };
            tracing::info!("closing the store for the other process: answering received requests");
            let in_force = server.shared().config();
            match hooks.succession.hand_over(server.leave(), &successor) {
                HandoverOutcome::Served => {
                    hooks.succession.finish_reports();
                    return Ok(());
                }
                HandoverOutcome::Failed(left) => {
                    let is_stopping = || current.is_stopping();
                    server = Server::start_again(&in_force, hooks.clone(), left, is_stopping)?;
                    tracing::info!(addresses = %listed(server.addresses()), "serving again");
                    hooks.succession.handover.resume();
                }
            }
        }
        readiness::stopping();
        tracing::info!("stopping: answering received requests");
        let failure = server.failure();
        server.stop();
        // Started again, the store is read from the disk as it is there, and publishing goes on
        // where the set is.
        failure.map_or(Ok(()), |why| Err(anyhow!(why)))
    }
}

/// The server to which signals are addressed. It does not keep the store open.
#[derive(Default)]
struct CurrentServer {
    state: Mutex<Weak<AdminState>>,
    stops: AtomicBool,
}

impl CurrentServer {
    fn set(&self, state: &Arc<AdminState>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(state);
        if self.is_stopping() {
            state.drain();
        }
    }

    fn state(&self) -> Option<Arc<AdminState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    fn is_stopping(&self) -> bool {
        self.stops.load(Ordering::SeqCst)
    }

    fn stop(&self) {
        self.stops.store(true, Ordering::SeqCst);
        if let Some(state) = self.state() {
            state.drain();
        }
    }

    fn reload(&self) {
        let Some(state) = self.state() else { return };
        if let Err(error) = state.service.audit.reopen(state.config().audit_files()) {
            tracing::error!("{error:#}");
        }
        let reply = state.reload();
        tracing::info!(outcome = %reply, "reloaded");
    }
}
