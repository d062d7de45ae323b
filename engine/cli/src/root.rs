//! `hdl root`: shows the global service, and refreshes its records.

use crate::client::ClientArgs;
use crate::{ExitOutcome, output};
use anyhow::Context as _;
use handle_client::bootstrap;
use handle_client::lookup::LookupOptions;
use handle_client::refresh::refresh;
use handle_client::{BlockingDriver, Question};
use handle_daemon::clock::now_unix_ms;
use handle_proto::json::site_to_json;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// Show the global service, or refresh its records.
///
/// With --refresh, the records of the global service are resolved again. They replace the old file
/// only if the answers are signed by the global service and all values are signed, up to the keys
/// that the old file trusts.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl root
  hdl root --json
  hdl root --refresh --output bootstrap_handles

Exit codes: 0 shown or written, 1 failed, nothing written.")]
pub(crate) struct Args {
    /// Resolve the records again, and verify them.
    #[arg(long, requires = "output")]
    refresh: bool,
    /// File to write; may be the file that was read.
    #[arg(long, value_name = "FILE", requires = "refresh")]
    output: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, conflicts_with = "refresh")]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    output::or_as_json(show_or_refresh(args), args.json)
}

fn show_or_refresh(args: &Args) -> anyhow::Result<ExitOutcome> {
    let client = args.client.client()?;
    if let Some(path) = &args.output {
        let mut driver = BlockingDriver::new(Arc::clone(&client));
        let options = LookupOptions { use_cache: false, ..LookupOptions::default() };
        let mut fetch = |question: &Question| {
            let outcome = driver.resolve(question, &options).outcome;
            outcome.inspect_err(|error| eprintln!("hdl: {error}")).ok().map(|answer| (*answer).clone())
        };
        let file = refresh(&client.root.get(), now_unix_ms(), &mut fetch)
            .context("cannot refresh the records of the global service (no file was changed)")?;
        bootstrap::write(path, &file).with_context(|| format!("cannot write {}", path.display()))?;
        println!(
            "{}: {}, all signed",
            path.display(),
            output::counted(
                file["handles"].as_object().map_or(0, serde_json::Map::len) as u64,
                "record",
                "records"
            )
        );
        return Ok(ExitOutcome::Good);
    }
    let root = client.root.get();
    anyhow::ensure!(
        !root.sites.is_empty(),
        "the global service is not known: name a bootstrap file with --root FILE"
    );
    // The binary form has no trusted keys.
    let updated = root.updated_unix_ms.and_then(|ms| i64::try_from(ms / 1000).ok()).map(output::unix_time);
    if args.json {
        let sites: Vec<_> = root.sites.iter().map(|site| site_to_json(&site.view())).collect();
        let keys = root.trusted_keys.len();
        output::print_json(&json!({ "written": updated, "trustedKeys": keys, "sites": sites }));
        return Ok(ExitOutcome::Good);
    }
    let written = updated.as_deref().unwrap_or("at an unknown time");
    println!(
        "written {written}, {}",
        output::counted(root.trusted_keys.len() as u64, "trusted key", "trusted keys")
    );
    for site in &root.sites {
        println!("{}", output::describe(handle_proto::data::kind::HS_SITE, site.as_bytes()));
    }
    Ok(ExitOutcome::Good)
}
