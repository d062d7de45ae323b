//! `hdl ship`: ships a published set to a directory or object storage, for the machines of a fleet.

use crate::ExitOutcome;
use crate::output;
use crate::snapshot::SigningArgs;
use anyhow::ensure;
use handle_daemon::clock::now_unix_ms;
use handle_fleet::follow::LOOK_INTERVAL;
use handle_fleet::{
    FleetUrl, SetShipper, ShipError, ShipFollower, ShipLimits, ShipOutcome, ShipRoute, StorageConfig,
    location,
};
use handle_snapshot::set::read_manifest;
use handle_snapshot::set::steps::STEPS_LEN_MAX;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time until a failed attempt is repeated with `--follow`.
const RETRY: Duration = Duration::from_secs(1);

/// Ship a published set to a directory or object storage, from which handle-fetch gets it.
///
/// Layers that are missing there are uploaded, and then the MANIFEST is replaced, if no other
/// publisher has replaced it meanwhile. Credentials of object storage come from the environment
/// (AWS_ACCESS_KEY_ID and others) or from a file.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl ship ./set file:///mnt/sets/mine
  hdl ship ./set s3://bucket/sets/mine --credentials-file ./storage-credentials
  hdl ship ./set s3://bucket/sets/mine --follow           ship every set that is published
  hdl ship ./set s3://bucket/sets/mine --take-over        replace the sets of another publisher

Exit codes: 0 shipped, or there already; 1 failed, or another publisher has shipped.")]
pub(crate) struct Args {
    /// Directory of the set.
    #[arg(value_name = "SET")]
    dir: PathBuf,
    /// Where to ship it: file:///DIRECTORY, s3://BUCKET/PATH, gs://BUCKET/PATH or
    /// az://CONTAINER/PATH.
    #[arg(value_name = "URL")]
    url: String,
    /// Ship every set and statement that is published in the directory, until this command is
    /// stopped.
    #[arg(long)]
    follow: bool,
    /// Raise the epoch of the set above that of the shipped one first, so that it replaces the sets
    /// of another publisher. That publisher then stops. A running handle-admin has the set locked;
    /// stop it first.
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    signing: SigningArgs,
    /// File with credentials and options of object storage, as NAME=value lines. Only its owner may
    /// have access to it.
    #[arg(long, value_name = "FILE")]
    credentials_file: Option<PathBuf>,
    /// Number of the last sets whose layers are kept where they were shipped to.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    sets_kept: usize,
    /// Seconds for which a layer is kept there after the last of these sets.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    grace: u64,
    /// Most bytes of the steps that are shipped beside each set, with which machines download
    /// little more than changed records; 0 for none, at most 4194304.
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = steps_len_parser())]
    steps_len: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn steps_len_parser() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(..=STEPS_LEN_MAX as i64)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    output::or_as_json(ship(args), args.json)
}

fn ship(args: &Args) -> anyhow::Result<ExitOutcome> {
    let url: FleetUrl = args.url.parse()?;
    let storage =
        StorageConfig { credentials_file: args.credentials_file.clone(), ..StorageConfig::default() };
    let store = location::open(&url, &storage)?;
    let limits = ShipLimits {
        sets_kept: args.sets_kept,
        grace: Duration::from_secs(args.grace),
        steps_len: usize::try_from(args.steps_len)?,
    };
    let route = ShipRoute { dir: args.dir.clone(), store, url: url.to_string() };
    if args.take_over {
        take_over(args, &route.open(limits)?)?;
    }
    if args.follow {
        return follow(args, ShipFollower::new(route, limits));
    }
    let mut shipper = route.open(limits)?;
    let started = Instant::now();
    let outcome = shipper.ship()?;
    shipper.ship_statement()?;
    shipper.collect(now_unix_ms())?;
    while shipper.remove_unused()? > 0 {}
    report(args, &url, outcome, started)?;
    Ok(ExitOutcome::Good)
}

/// Raises the epoch of the set above that of the set in the store, unless it is above it.
fn take_over(args: &Args, shipper: &SetShipper) -> anyhow::Result<()> {
    let (remote, ours) = (shipper.remote_epoch()?, read_manifest(&args.dir)?);
    if ours.epoch > remote {
        return Ok(());
    }
    ensure!(
        ours.seal.is_none() || args.signing.key.is_some(),
        "the set is signed, and with a higher epoch it has to be signed again: name the key of the publisher (--key FILE)"
    );
    let mut publisher = args.signing.open(&args.dir)?;
    publisher.raise_epoch(remote + 1, now_unix_ms())?;
    Ok(())
}

/// Ships until there is an error that no further attempt can mend.
fn follow(args: &Args, mut follower: ShipFollower) -> anyhow::Result<ExitOutcome> {
    let url: FleetUrl = args.url.parse()?;
    let mut last_error = None;
    loop {
        let started = Instant::now();
        match follower.turn() {
            Ok(turn) => {
                last_error = None;
                let Some(outcome) = turn.outcome else {
                    std::thread::sleep(LOOK_INTERVAL);
                    continue;
                };
                report(args, &url, outcome, started)?;
                output::check()?;
            }
            Err(error) if error.is_final() => return Err(error.into()),
            Err(error) => {
                report_failure(&error, &mut last_error);
                std::thread::sleep(RETRY);
            }
        }
    }
}

/// Prints an error once, not for each attempt.
fn report_failure(error: &ShipError, last: &mut Option<String>) {
    let text = error.to_string();
    if last.as_ref() != Some(&text) {
        output::error_line(format_args!("{text}; trying again"));
        *last = Some(text);
    }
}

fn report(args: &Args, url: &FleetUrl, outcome: ShipOutcome, started: Instant) -> anyhow::Result<()> {
    let manifest = read_manifest(Path::new(&args.dir))?;
    let (epoch, generation) = (manifest.epoch, manifest.generation);
    let uploaded = match outcome {
        ShipOutcome::Shipped(len) => Some(len),
        ShipOutcome::Unchanged => None,
    };
    if args.json {
        let shipped = json!({
            "url": url.to_string(),
            "epoch": epoch,
            "generation": generation,
            "is_new": uploaded.is_some(),
            "uploaded_bytes": uploaded.unwrap_or_default(),
        });
        output::print_json(&shipped);
        return Ok(());
    }
    let took = started.elapsed().as_millis();
    match uploaded {
        Some(len) => output::line(format_args!(
            "generation {generation} of epoch {epoch} shipped to {url}: {} uploaded in {took} ms",
            output::bytes(len)
        )),
        None => output::line(format_args!("generation {generation} of epoch {epoch} is at {url} already")),
    }
    Ok(())
}
