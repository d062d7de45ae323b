//! The program `handle-fetch`: its arguments, and what it does with its settings.

use crate::config::Config;
use crate::fetcher::{Fetcher, open_source};
use crate::state::FetchHooks;
use clap::Parser;
use handle_daemon::program::{CommonArgs, Program, Startup};
use handle_daemon::readiness;
use handle_snapshot::set::read_manifest;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Fetches the sets of a publisher into a directory, from which handled and handle-gateway serve
/// them.
///
/// It asks a directory or object storage for a new set every second, downloads the layers that are
/// missing, verifies them, and publishes the set in one step. A set that is damaged, older, or not
/// signed by a configured publisher is refused, and the old one stays. Credentials of object
/// storage come from the environment or from a file. Flags win over the configuration file.
///
/// Signals: SIGTERM and SIGINT stop; what was downloaded is used after the next start. SIGHUP
/// reloads the configuration.
///
/// Exit codes: 0 stopped on request or fetched once, 1 failed, 2 configuration or usage.
#[derive(Parser, Serialize, Clone, Debug)]
#[command(
    name = "handle-fetch",
    version = handle_fleet::location::VERSION,
    max_term_width = 100,
    after_help = "Examples:
  handle-fetch file:///mnt/sets/mine ./set
  handle-fetch s3://bucket/sets/mine ./set --once
  handle-fetch --config /etc/handled/handle-fetch.toml --check-config
  handle-fetch --config /etc/handled/handle-fetch.toml"
)]
pub struct FetchProgram {
    /// Where the sets are: file:///DIRECTORY, s3://BUCKET/PATH, gs://BUCKET/PATH or
    /// az://CONTAINER/PATH.
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Directory of the set.
    #[arg(value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
    /// Fetch once, and exit.
    #[arg(long)]
    once: bool,
    /// File with the public key of a publisher; may be given more than once. Sets of others are
    /// refused.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "publishers.keys")]
    key: Vec<PathBuf>,
}

impl Program for FetchProgram {
    const NAME: &'static str = "handle-fetch";
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(config: &Config) -> anyhow::Result<String> {
        open_source(config)?;
        let publishers = match config.accepted_publishers()? {
            Some(_) => format!("signed with one of {} keys", config.publishers.keys.len()),
            None => "signed or not".to_owned(),
        };
        let directory = config.directory.display();
        let now = match read_manifest(&config.directory) {
            Ok(manifest) => format!("which has generation {}", manifest.generation),
            Err(error) if error.is_of_another_version() => return Err(error.into()),
            Err(_) => "which has no set".to_owned(),
        };
        Ok(format!("sets from {}, {publishers}, to {directory}, {now}", config.url))
    }

    fn serve(config: &Config, startup: Startup<Config>) -> anyhow::Result<()> {
        let Startup { signals, set_log, read_config } = startup;
        let hooks = FetchHooks { read_config: Some(read_config), set_log: Some(set_log) };
        let fetcher = Fetcher::start_with(config, hooks)?;
        tracing::info!(url = config.url, directory = %config.directory.display(), "fetching");
        let (to_reload, to_stop) = (Arc::clone(fetcher.state()), Arc::clone(fetcher.state()));
        let reload = move || {
            let reply = to_reload.reload();
            tracing::info!(outcome = %reply, "reloaded");
        };
        let shutdown = &fetcher.state().shutdown;
        signals.obey_until(shutdown, || fetcher.is_finished(), reload, move || to_stop.drain())?;
        readiness::stopping();
        fetcher.stop()
    }
}
