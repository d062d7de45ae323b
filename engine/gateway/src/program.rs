//! The program `handle-gateway`: its arguments, and what it does with its settings.

use crate::config::Config;
use crate::inputs::GatewaySources;
use crate::reload::reload;
use crate::server::Gateway;
use crate::settings::GatewayHooks;
use anyhow::ensure;
use clap::Parser;
use handle_daemon::program::{CommonArgs, Program, Startup};
use handle_daemon::takeover::SuccessorProgram;
use handle_daemon::text::listed;
use handle_daemon::{log, readiness};
use handle_snapshot::set::{SetError, SetErrorKind, read_manifest};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Answers HTTP: the JSON API, the handle protocol in bodies of POST, and redirects to the URLs of
/// records.
///
/// Answers come from a published set, which it maps as handled does, and from the Handle System for
/// handles that the set does not have. A new set is taken while serving. Flags win over the
/// configuration file.
///
/// Signals: SIGTERM and SIGINT answer the requests under way and stop; SIGHUP reads the
/// configuration again and takes the published set now.
///
/// Exit codes: 0 stopped on request, 1 failed, 2 configuration or usage.
#[derive(Parser, Serialize, Clone, Debug)]
#[command(
    name = "handle-gateway",
    version,
    max_term_width = 100,
    after_help = "Examples:
  handle-gateway --snapshot ./set --listen 127.0.0.1:8000
  handle-gateway --config /etc/handled/handle-gateway.toml --check-config
  handle-gateway --config /etc/handled/handle-gateway.toml --take-over
  handle-gateway --root bootstrap_handles --listen 127.0.0.1:8000
  echo status | socat - UNIX:/run/handle-gateway/control.sock"
)]
pub struct GatewayProgram {
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
    /// File of the global service, to resolve handles that the set does not have.
    #[arg(long)]
    #[serde(rename = "upstream.root")]
    root: Option<PathBuf>,
    /// Worker threads; 0 for one on each core.
    #[arg(long)]
    workers: Option<usize>,
    /// Take over from the handle-gateway that listens on the control socket, if there is one: serve
    /// from its sockets and let it exit, without losing a request.
    #[arg(long)]
    take_over: bool,
}

impl Program for GatewayProgram {
    const NAME: &'static str = "handle-gateway";
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(config: &Config) -> anyhow::Result<String> {
        let mut sources = Vec::new();
        let unpublished = config.snapshot.as_ref().filter(|directory| {
            matches!(read_manifest(directory), Err(SetError { kind: SetErrorKind::NotPublished, .. }))
        });
        // As before the first start of handle-admin: the rest of the configuration is checked.
        let GatewaySources { set, upstream, .. } = match unpublished {
            Some(directory) => {
                let directory = directory.display();
                log::say(format_args!(
                    "handle-gateway: warning: no set is published in {directory} (there is no MANIFEST): \
                     publish one before handle-gateway starts"
                ));
                sources.push(format!("the first set in {directory}"));
                GatewaySources::open_without_set(config)?
            }
            None => GatewaySources::open(config)?,
        };
        if let Some(mapped) = set {
            let set = mapped.current();
            set.verify()?;
            sources.push(format!("generation {} with {} layers", set.generation(), set.layers().len()));
        }
        if upstream.is_some() {
            sources.push("the Handle System".to_owned());
        }
        let join = |addresses: &[SocketAddr]| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("answers from {}, on {}", sources.join(" and "), join(&config.listen));
        let certificates = &config.tls.client_certificates.listen;
        if !certificates.is_empty() {
            text.push_str(&format!(", with client certificates on {}", join(certificates)));
        }
        Ok(text)
    }

    fn serve(config: &Config, startup: Startup<Config>) -> anyhow::Result<()> {
        let Startup { signals, set_log, read_config } = startup;
        let program = SuccessorProgram::of_this_process();
        let hooks = GatewayHooks { program, read_config: Some(read_config), set_log: Some(set_log) };
        let gateway = Gateway::start_with(config, hooks)?;
        readiness::ready("serving");
        let state = gateway.state();
        let (addresses, certificates) = (gateway.addresses(), &state.writing.certificate_addresses);
        tracing::info!(addresses = %listed(addresses), certificates = %listed(certificates), workers = state.process.workers_count, "serving");
        let (to_reload, to_stop) = (Arc::clone(gateway.state()), Arc::clone(gateway.state()));
        let reload = move || {
            let reply = reload(&to_reload);
            tracing::info!(outcome = %reply, "reloaded");
        };
        let shutdown = &state.process.shutdown;
        signals.obey_until(shutdown, || gateway.is_finished(), reload, move || to_stop.drain())?;
        // After a takeover, the service continues.
        if !gateway.state().is_handed_over() {
            readiness::stopping();
        }
        let was_stopped = gateway.state().is_draining();
        tracing::info!("stopping: answering the requests under way");
        gateway.stop()?;
        ensure!(was_stopped, "all workers have stopped because of errors; see the log");
        Ok(())
    }
}
