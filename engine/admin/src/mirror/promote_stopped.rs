//! `handle-admin promote`: promotes a mirror whose `handle-admin` is stopped.

use super::promote::promote;
use crate::config::Config;
use anyhow::Context as _;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::settings::file;
use handle_proto::printable::PrintableLines;
use handle_store::{Store, StoreError};
use serde_json::json;
use std::path::PathBuf;

/// Make a mirror the primary while its handle-admin is stopped.
///
/// The site record becomes that of a primary site, with the next serial number. Transactions get
/// numbers above those of the lost primary. Do this only if the primary is lost or stopped: what
/// two primaries accept is never joined. A running handle-admin is promoted by
/// `hdl mirror promote`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Example:
  handle-admin promote --config /srv/handle/handle-admin.toml

Exit codes: 0 promoted, 1 not promoted.")]
pub struct PromoteArgs {
    /// The configuration of the stopped handle-admin.
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
    /// Promote even before the end of a dump, although some records are missing, or older than
    /// others.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Promotes the mirror, and returns what to print.
pub(crate) fn run(args: &PromoteArgs) -> anyhow::Result<String> {
    let config: Config = file::read(&args.config)?;
    let store = match Store::open(&config.store) {
        Err(error @ StoreError::Locked(_)) => {
            return Err(error).context(
                "a running handle-admin is promoted by `hdl mirror promote --socket` with its control socket",
            );
        }
        opened => opened?,
    };
    let promotion = promote(&store, &config.site, args.force, now_unix_ms())?;
    let text = match args.json {
        true => json!(promotion).to_string(),
        false => promotion.lines().join("\n"),
    };
    Ok(format!("{}\n", PrintableLines(text)))
}
