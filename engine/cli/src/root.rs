//! `hdl root`: what is known of the global service, and the same asked for anew.

use crate::client::ClientArgs;
use crate::{ExitOutcome, output, snapshot};
use anyhow::Context as _;
use handle_client::bootstrap;
use handle_client::lookup::LookupOptions;
use handle_client::refresh::refresh;
use handle_client::{BlockingDriver, Question};
use handle_proto::json::site_to_json;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// Show where the global service is, or get its records anew.
///
/// With --refresh the records of the global service are asked for again. Only what is signed by it, and whose values
/// are all signed up to the keys that the old file trusts, takes the place of the old file.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl root
  hdl root --json
  hdl root --refresh --output bootstrap_handles

Exit codes: 0 shown or written, 1 failed; then nothing is written.")]
pub(crate) struct Args {
    /// Ask for the records anew, and verify them.
    #[arg(long, requires = "output")]
    refresh: bool,
    /// Where to write them; the file that was read may be named.
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
        let file = refresh(&client.root.get(), snapshot::now_unix_ms(), &mut fetch)
            .context("the records of the global service stay as they are")?;
        bootstrap::write(path, &file).with_context(|| format!("cannot write {}", path.display()))?;
        println!(
            "{}: {} records, all signed",
            path.display(),
            file["handles"].as_object().map_or(0, serde_json::Map::len)
        );
        return Ok(ExitOutcome::Good);
    }
    let root = client.root.get();
    anyhow::ensure!(!root.sites.is_empty(), "the global service is not known: name a file of it (--root)");
    // The binary form does not say it.
    let updated = root.updated_unix_ms.and_then(|ms| i64::try_from(ms / 1000).ok()).map(output::unix_time);
    if args.json {
        let sites: Vec<_> = root.sites.iter().map(|site| site_to_json(&site.view())).collect();
        let keys = root.trusted_keys.len();
        output::print_json(&json!({ "written": updated, "trustedKeys": keys, "sites": sites }));
        return Ok(ExitOutcome::Good);
    }
    let written = updated.as_deref().unwrap_or("at an unknown time");
    println!("written {written}, {} trusted keys", root.trusted_keys.len());
    for site in &root.sites {
        println!("{}", output::describe(handle_proto::data::kind::HS_SITE, site.as_bytes()));
    }
    Ok(ExitOutcome::Good)
}
